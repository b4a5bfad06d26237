//! Driver and device together: data digests that the NIC fills in are those that software would have made, whatever
//! order packets are sent in.

use bytes::Bytes;
use nic_sim::wire::Port;
use nic_sim::{Delays, Device, Driver, NicConfig, TransmitResync, nic};
use offload_api::{
    DeviceEvent, FlowKey, Handle, Layer, Lookup, NetDevice, NvmeTcpDevice, RecordSource, Sent, TxAsk, TxPacket, Unit,
};
use offload_base::{Instant, Seq};
use proptest::prelude::*;

const HEADERS: usize = 54;
const MSS: usize = 1446;

/// A stream of PDUs, as queued for the device and as it belongs on the wire.
struct Stream {
    start: Seq,
    units: Vec<Unit>,
    queued: Vec<u8>,
    wire: Vec<u8>,
    /// PDUs whose digest software made in the queue.
    sealed: Vec<bool>,
}

impl Stream {
    /// PDUs with data of these lengths; without data they have no digest.
    fn new(start: Seq, lengths: &[usize]) -> Stream {
        let (mut queued, mut wire, mut units) = (Vec::new(), Vec::new(), Vec::new());
        for (number, length) in lengths.iter().enumerate() {
            let from = start + wire.len() as u32;
            let data: Vec<u8> = (0..*length).map(|at| (at * 31 + number * 7) as u8).collect();
            let (flags, offset) = if data.is_empty() { (0, 0) } else { (0b10, 28) };
            let plen = if data.is_empty() { 24 } else { 28 + length + 4 };
            let mut header = vec![7, flags, 24, offset];
            header.extend((plen as u32).to_le_bytes());
            header.resize(if data.is_empty() { 24 } else { 28 }, number as u8);
            for bytes in [&mut queued, &mut wire] {
                bytes.extend(&header);
                bytes.extend(&data);
            }
            if !data.is_empty() {
                queued.extend([0; 4]);
                wire.extend(crc32c::crc32c(&data).to_le_bytes());
            }
            let end = start + wire.len() as u32;
            units.push(Unit { layer: Layer::NvmeTcp, number: number as u64, start: from, end });
        }
        Stream { start, sealed: vec![false; units.len()], units, queued, wire }
    }

    /// A packet of up to `bytes` bytes: those of PDUs that are the context's, or of others.
    fn packet(&self, at: usize, bytes: usize, context: Handle) -> TxPacket {
        let seq = self.start + at as u32;
        let first = self.units.iter().position(|unit| unit.contains(seq)).unwrap();
        let sealed = self.sealed[first];
        let alike = (first..self.units.len()).take_while(|unit| self.sealed[*unit] == sealed).last().unwrap();
        let end = (at + bytes).min(self.units[alike].end.distance_from(self.start) as usize);
        TxPacket {
            header: headers(seq).into(),
            fragments: [Bytes::copy_from_slice(&self.queued[at..end])].into_iter().collect(),
            ask: TxAsk {
                seq,
                context: (!sealed).then_some(context),
                checksum: true,
                mss: Some(MSS as u16),
                ..TxAsk::default()
            },
        }
    }

    /// Does what a transport does when a driver says that a packet needs software.
    fn seal(&mut self, unit: Unit) {
        let number = self.units.iter().position(|other| *other == unit).unwrap();
        assert!(!core::mem::replace(&mut self.sealed[number], true), "sealed twice");
        let range = unit.start.distance_from(self.start) as usize..unit.end.distance_from(self.start) as usize;
        self.queued[range.clone()].copy_from_slice(&self.wire[range]);
    }
}

impl RecordSource for Stream {
    fn unit_at(&self, layer: Layer, seq: Seq) -> Lookup {
        assert_eq!(layer, Layer::NvmeTcp);
        let unit = self.units.iter().find(|unit| unit.contains(seq));
        unit.map_or(Lookup::Released, |unit| Lookup::In(*unit))
    }

    fn bytes(&self, _: Layer, from: Seq, to: Seq, sink: &mut dyn FnMut(Bytes)) {
        let range = from.distance_from(self.start) as usize..to.distance_from(self.start) as usize;
        let middle = range.start + range.len() / 3;
        sink(Bytes::copy_from_slice(&self.queued[range.start..middle]));
        sink(Bytes::copy_from_slice(&self.queued[middle..range.end]));
    }
}

fn flow() -> FlowKey {
    FlowKey::tcp("10.0.0.1:4420".parse().unwrap(), "10.0.0.2:5000".parse().unwrap())
}

/// Ethernet, IPv4 and TCP headers whose lengths and checksums the device fills in.
fn headers(seq: Seq) -> Vec<u8> {
    let mut bytes = vec![0xff; 6];
    bytes.extend([2, 0, 0, 0, 0, 9, 8, 0]);
    bytes.extend([0x45, 0, 0, 40, 0, 0, 0x40, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    bytes.extend([0x11, 0x44, 0x13, 0x88]);
    bytes.extend(seq.0.to_be_bytes());
    bytes.extend([0, 0, 0, 0, 0x50, 0x10, 0xff, 0xff, 0, 0, 0, 0]);
    bytes
}

fn pair(config: NicConfig) -> (Device, Driver) {
    nic(NicConfig { delays: Delays::NONE, line_rate: None, ..config })
}

fn context(driver: &mut Driver) -> Handle {
    driver.add_transmit(&flow()).unwrap()
}

/// Sends up to `bytes` bytes from `at` on, with software's help if need be; they must be right. Where they ended.
fn send(
    device: &mut Device,
    driver: &mut Driver,
    stream: &mut Stream,
    at: usize,
    bytes: usize,
    handle: Handle,
) -> usize {
    let length = loop {
        let packet = stream.packet(at, bytes, handle);
        let length = packet.payload_len();
        match driver.transmit(Instant::ZERO, packet, &*stream) {
            Sent::Posted => break length,
            Sent::NeedsSoftware(unit) => stream.seal(unit),
            Sent::Dropped(reason) => panic!("{reason:?}"),
        }
    };
    driver.flush(Instant::ZERO);
    device.process(Instant::ZERO);
    let mut seen = at;
    while let Some(frame) = device.poll_frame(Instant::ZERO) {
        let payload = &frame.data[HEADERS..];
        assert_eq!(payload, &stream.wire[seen..seen + payload.len()], "from {seen} on");
        seen += payload.len();
    }
    assert_eq!(seen, at + length, "all of it left");
    seen
}

proptest! {
    /// Transmission in any order, in any packets, with resets: the digests are right each time.
    #[test]
    fn whatever_leaves_is_what_software_would_have_sent(
        lengths in prop::collection::vec(prop_oneof![3 => 1usize..6000, 1 => Just(0), 1 => 40_000usize..120_000], 1..8),
        start: u32,
        next_record: bool,
        sends in prop::collection::vec((any::<prop::sample::Index>(), 1usize..30_000, 0u8..24), 1..40),
    ) {
        let mut stream = Stream::new(Seq(start), &lengths);
        let tls_transmit_resync = if next_record { TransmitResync::NextRecord } else { TransmitResync::Dump };
        let (mut device, mut driver) = pair(NicConfig { tls_transmit_resync, ..NicConfig::default() });
        let mut handle = context(&mut driver);
        let mut reached = 0;
        for (index, bytes, fate) in sends {
            match fate {
                0 => {
                    device.reset(Instant::ZERO);
                    // What is sent until the driver hears of it is lost; the protocol may hear of it later.
                    while driver.poll_event().is_some() {}
                    if bytes % 2 == 0 {
                        handle = context(&mut driver);
                    }
                }
                1..10 if reached < stream.wire.len() => {
                    reached = send(&mut device, &mut driver, &mut stream, reached, bytes, handle);
                }
                _ if reached > 0 => {
                    let at = index.index(reached);
                    reached = reached.max(send(&mut device, &mut driver, &mut stream, at, bytes, handle));
                }
                _ => {}
            }
        }
        prop_assert_eq!(device.counters().tx_drop_out_of_sync, 0);
    }
}

#[test]
fn only_what_holds_a_digest_is_followed_when_it_is_sent_again() {
    let (mut device, mut driver) = pair(NicConfig::default());
    let handle = context(&mut driver);
    let mut stream = Stream::new(Seq(7), &[8000, 8000]);
    let all = stream.wire.len();
    let mut at = 0;
    while at < all {
        at = send(&mut device, &mut driver, &mut stream, at, MSS, handle);
    }
    assert_eq!(device.counters().tx_nvmeotcp_digests, 2);
    assert_eq!(driver.counters().tx_nvmeotcp_ooo, 0);
    // A middle piece; then the last of the first PDU, which goes on into the second.
    send(&mut device, &mut driver, &mut stream, 3000, MSS, handle);
    assert_eq!((driver.counters().tx_nvmeotcp_bypass, driver.counters().tx_nvmeotcp_dump_packets), (1, 0));
    send(&mut device, &mut driver, &mut stream, 7300, MSS, handle);
    let counters = driver.counters();
    assert_eq!((counters.tx_nvmeotcp_bypass, counters.tx_nvmeotcp_ooo), (1, 1));
    assert_eq!((counters.tx_nvmeotcp_dump_bytes, counters.tx_nvmeotcp_needs_software), (7300, 0));
    assert_eq!(device.counters().tx_nvmeotcp_digests, 3);
    // Too far into a PDU for DUMPs.
    let mut long = Stream::new(Seq(7 + all as u32), &[100_000]);
    let length = long.wire.len();
    send(&mut device, &mut driver, &mut long, 0, 50_000, handle);
    send(&mut device, &mut driver, &mut long, 50_000, length, handle);
    send(&mut device, &mut driver, &mut long, length - 3, 3, handle);
    assert_eq!(driver.counters().tx_nvmeotcp_needs_software, 1);
    assert_eq!(long.sealed, [true]);
}

#[test]
fn a_context_goes_after_its_last_packet() {
    let (mut device, mut driver) = pair(NicConfig { nvme_contexts: 1, ..NicConfig::default() });
    let handle = context(&mut driver);
    let stream = Stream::new(Seq(7), &[100]);
    assert_eq!(driver.transmit(Instant::ZERO, stream.packet(0, 132, handle), &stream), Sent::Posted);
    driver.remove(handle);
    assert!(driver.add_transmit(&flow()).is_err(), "there is room for one");
    driver.flush(Instant::ZERO);
    device.process(Instant::ZERO);
    let frame = device.poll_frame(Instant::ZERO).unwrap();
    assert_eq!(frame.data[HEADERS..], stream.wire);
    while device.poll_frame(Instant::ZERO).is_some() {}
    let events = |driver: &mut Driver| std::iter::from_fn(|| driver.poll_event()).collect::<Vec<_>>();
    events(&mut driver);
    device.process(Instant::ZERO);
    while device.poll_frame(Instant::ZERO).is_some() {}
    assert_eq!(events(&mut driver), [DeviceEvent::Removed { flow: flow(), handle }]);
    let next = context(&mut driver);
    assert_eq!((next.index, next.generation), (handle.index, handle.generation + 1));
    assert_eq!(driver.counters().tx_nvmeotcp_sk_del, 1);
}
