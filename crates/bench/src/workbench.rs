//! A device and its driver without wire, delays, stack or clock: packets are put in and taken out by hand. For benches
//! of the device.

use bytes::Bytes;
use core::net::{IpAddr, Ipv4Addr, SocketAddr};
use nic_sim::frame::Frame;
use nic_sim::wire::Port;
use nic_sim::{Delays, Device, Driver, NicConfig, nic};
use offload_api::{
    Direction, FlowKey, Handle, Layer, Lookup, NetDevice, QueuedBytes, RecordSource, StreamAsk, TlsKey, TlsSuite,
    TlsVersion, TransmitResult, TxAsk, TxPacket, TxTag, TypedContexts, Unit,
};
use offload_base::{Instant, Seq};

/// A device and its driver.
///
/// ```
/// use nic_sim::stats::TlsEngineCounters;
/// use offload_bench::workbench::{Stream, Workbench, flow};
///
/// let stream = Stream::records(2, 16_384);
/// let mut sender = Workbench::new(Default::default());
/// let context = sender.transmit_context(flow(0), 0);
/// sender.send(&stream, 0..stream.len(), 1448, Some(context));
/// let frames = sender.frames();
/// assert_eq!(frames.len(), stream.len().div_ceil(1448));
///
/// let mut receiver = Workbench::new(Default::default());
/// receiver.receive_context(flow(0).reversed(), 0);
/// frames.into_iter().for_each(|frame| receiver.arrive(frame));
/// assert_eq!(receiver.drain(), stream.len());
/// let counted: TlsEngineCounters = receiver.device.engine_counters();
/// assert_eq!(counted.rx_tls_decrypted_bytes, 2 * 16_385, "the content type's byte is counted");
/// ```
#[derive(Debug)]
pub struct Workbench {
    /// The device.
    pub device: Device,
    /// The driver.
    pub driver: Driver,
}

impl Workbench {
    /// Creates a NIC with `config`, but without delays and line rate.
    pub fn new(config: NicConfig) -> Workbench {
        let (device, driver) = nic(NicConfig { delays: Delays::NONE, line_rate: None, ..config });
        Workbench { device, driver }
    }

    /// Adds a TLS context that encrypts the transmitted data of `flow` from record `number` on, which starts at
    /// sequence number 0.
    ///
    /// # Panics If the device has no room for the context.
    pub fn transmit_context(&mut self, flow: FlowKey, number: u64) -> Handle {
        self.context(flow, Direction::Transmit, number)
    }

    /// Adds a TLS context that decrypts the received data of `flow`.
    ///
    /// # Panics If the device has no room for the context.
    pub fn receive_context(&mut self, flow: FlowKey, number: u64) -> Handle {
        self.context(flow, Direction::Receive, number)
    }

    /// Removes a context and waits for the device.
    pub fn remove(&mut self, context: Handle) {
        self.driver.tls().unwrap().remove(context);
        self.process_all();
    }

    /// Posts a range of the stream in packets as large as the device accepts, to be cut at `mss`.
    ///
    /// # Panics If the device rejects a packet.
    pub fn send(&mut self, stream: &Stream, range: core::ops::Range<usize>, mss: u16, context: Option<Handle>) {
        let most = (self.device.config().tso_max_bytes as usize / mss as usize).max(1) * mss as usize;
        let checksum = self.device.config().checksum_offload;
        let mut at = range.start;
        while at < range.end {
            let end = range.end.min(at + most);
            // A packet that fits one segment is not cut.
            let mss = (end - at > mss as usize).then_some(mss);
            // The stream has one layer of units, so the second place of the request stays empty.
            let of_packet = |context| StreamAsk::whole(context, at as u64, (end - at) as u32);
            let streams = [context.map(of_packet), None];
            let ask = TxAsk { seq: Seq(at as u32), streams, checksum, mss, ..TxAsk::default() };
            let fragments = [stream.queued.slice(at..end)].into_iter().collect();
            let packet = TxPacket { header: headers(stream.flow, at as u32).as_slice().into(), fragments, ask };
            assert_eq!(self.driver.transmit(Instant::ZERO, packet, stream), TransmitResult::Posted);
            at = end;
        }
        self.driver.flush(Instant::ZERO);
    }

    /// Lets the device work and returns the transmitted frames.
    pub fn frames(&mut self) -> Vec<Frame> {
        self.device.process(Instant::ZERO);
        core::iter::from_fn(|| self.device.poll_frame(Instant::ZERO)).collect()
    }

    /// Lets the device work, discards its frames and handles the driver's events. Returns the number of frames.
    pub fn process_all(&mut self) -> usize {
        self.device.process(Instant::ZERO);
        let mut left = 0;
        while self.device.poll_frame(Instant::ZERO).is_some() {
            left += 1;
        }
        // Unread events would fill the driver's queue over many iterations.
        while self.driver.poll_event().is_some() {}
        left
    }

    /// Delivers a frame to the device.
    pub fn arrive(&mut self, frame: Frame) {
        self.device.receive_frame(Instant::ZERO, frame);
    }

    /// Lets the device process received frames and the driver take them. Returns the payload bytes, for TCP packets
    /// without options.
    pub fn drain(&mut self) -> usize {
        self.device.process(Instant::ZERO);
        let mut bytes = 0;
        while let Some(packet) = self.driver.receive(Instant::ZERO) {
            bytes += packet.frame.len() - HEADER_BYTES;
        }
        bytes
    }

    fn context(&mut self, flow: FlowKey, direction: Direction, number: u64) -> Handle {
        let handle =
            self.driver.tls().unwrap().add(&flow, direction, Seq(0), number, &key()).expect("the device has room");
        self.process_all();
        handle
    }
}

/// A byte stream as a stack queues it, with or without TLS records.
#[derive(Clone, Debug)]
pub struct Stream {
    flow: FlowKey,
    record: usize,
    queued: Bytes,
}

impl Stream {
    /// Creates `count` TLS 1.3 records of `content` bytes each, numbered from 0, on [`flow`] 0.
    pub fn records(count: usize, content: usize) -> Stream {
        let body = (content + 1 + 16) as u16;
        let mut queued = Vec::with_capacity(count * (content + RECORD_OVERHEAD));
        for _ in 0..count {
            queued.extend_from_slice(&[23, 3, 3, (body >> 8) as u8, body as u8]);
            queued.resize(queued.len() + content, 0x5a);
            queued.push(23);
            // The device writes the tag here.
            queued.resize(queued.len() + 16, 0);
        }
        Stream { flow: flow(0), record: content + RECORD_OVERHEAD, queued: queued.into() }
    }

    /// Creates `bytes` bytes without records.
    pub fn plain(bytes: usize) -> Stream {
        Stream { flow: flow(0), record: 0, queued: vec![0x5a; bytes].into() }
    }

    /// Returns the same bytes on another flow.
    pub fn on(&self, flow: FlowKey) -> Stream {
        Stream { flow, ..self.clone() }
    }

    /// Returns the number of bytes.
    pub fn len(&self) -> usize {
        self.queued.len()
    }

    /// Returns whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.queued.is_empty()
    }
}

impl RecordSource for Stream {
    fn unit_at(&self, layer: Layer, offset: u64) -> Lookup {
        if self.record == 0 || offset >= self.queued.len() as u64 {
            return Lookup::BeforeStart;
        }
        let number = offset / self.record as u64;
        let offset = number * self.record as u64;
        let (start, len) = (Seq(offset as u32), self.record as u32);
        Lookup::In(Unit { layer, number, offset, start, len, touched_from: 0 })
    }

    fn pieces(&self, _: Layer, from: u64, to: u64, sink: &mut dyn FnMut(QueuedBytes)) {
        let bytes = self.queued.slice(from as usize..to as usize);
        sink(QueuedBytes { bytes, tag: TxTag::PLAIN, offsets: [from, 0] });
    }
}

/// Returns the flow with this number at the sender: one server, and a client address and port for each flow.
pub fn flow(number: u32) -> FlowKey {
    let client = Ipv4Addr::from_bits(0x0b00_0000 + number / PORTS);
    let client = SocketAddr::new(IpAddr::V4(client), 1024 + (number % PORTS) as u16);
    FlowKey::tcp(SocketAddr::new(IpAddr::V4(SERVER), 443), client)
}

/// Returns headers of Ethernet, IPv4 and TCP, without the lengths and checksums that the device fills in.
fn headers(flow: FlowKey, seq: u32) -> [u8; HEADER_BYTES] {
    // `flow` makes only IPv4 flows.
    let (IpAddr::V4(source), IpAddr::V4(destination)) = (flow.local.ip(), flow.remote.ip()) else {
        unreachable!("the workbench has IPv4 flows only");
    };
    let mut bytes = [0; HEADER_BYTES];
    bytes[..14].copy_from_slice(&[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 9, 8, 0]);
    bytes[14..26].copy_from_slice(&[0x45, 0, 0, 40, 0, 0, 0x40, 0, 64, 6, 0, 0]);
    bytes[26..30].copy_from_slice(&source.octets());
    bytes[30..34].copy_from_slice(&destination.octets());
    bytes[34..36].copy_from_slice(&flow.local.port().to_be_bytes());
    bytes[36..38].copy_from_slice(&flow.remote.port().to_be_bytes());
    bytes[38..42].copy_from_slice(&seq.to_be_bytes());
    bytes[46..50].copy_from_slice(&[0x50, 0x10, 0xff, 0xff]);
    bytes
}

fn key() -> TlsKey {
    TlsKey::new(TlsVersion::Tls13, TlsSuite::Aes128Gcm, &[7; 16], [3; 12]).expect("as long as the suite has it")
}

/// Bytes of a record's header, content type and tag.
pub const RECORD_OVERHEAD: usize = 5 + 1 + 16;
/// Bytes of the headers of Ethernet, IPv4 and TCP without options.
const HEADER_BYTES: usize = 14 + 20 + 20;
const SERVER: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
/// Number of flows of one client address.
const PORTS: u32 = 60_000;
