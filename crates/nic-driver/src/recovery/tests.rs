//! What a driver puts on the send ring before a packet that is not the next: looked at there, for a device that works
//! strictly in order needs no fence, and would not miss one.

use super::*;
use nic_rings::DeviceRings;
use nic_rings::packet::SendDescriptor;
use offload_api::{Direction, FlowKey, NetDevice, TlsKey, TlsSuite, TlsVersion, TxAsk, TypedContexts, UnitTag};
use offload_base::{Instant, Seq};

/// Units of [`RECORD`] bytes, one after the other; the engine changes those from this byte on.
struct Records(u32);

impl RecordSource for Records {
    fn unit_at(&self, layer: Layer, offset: u64) -> Lookup {
        Lookup::In(unit(layer, offset, RECORD, self.0))
    }

    fn pieces(&self, _: Layer, from: u64, to: u64, sink: &mut dyn FnMut(QueuedBytes)) {
        sink(QueuedBytes { bytes: vec![0; (to - from) as usize].into(), tag: TxTag::PLAIN, offsets: [from, 0] });
    }
}

/// Records filled with PDUs of [`PDU`] bytes that want digests of a context; nothing frames the records.
struct Stacked(Handle);

impl RecordSource for Stacked {
    fn unit_at(&self, layer: Layer, offset: u64) -> Lookup {
        Lookup::In(match layer {
            Layer::FIRST => unit(layer, offset, RECORD, 0),
            _ => unit(layer, offset, PDU, PDU - 4),
        })
    }

    fn pieces(&self, _: Layer, from: u64, to: u64, sink: &mut dyn FnMut(QueuedBytes)) {
        let tag = |len: u32, touched_from| {
            let at = (from % u64::from(len)) as u32;
            UnitTag { number: from / u64::from(len), at, len: len + (to - from) as u32, touched_from }
        };
        let tag = TxTag::device(self.0, tag(PDU, PDU - 4)).within(None, tag(RECORD, 0)).unwrap();
        sink(QueuedBytes { bytes: vec![0; (to - from) as usize].into(), tag, offsets: [from, from] });
    }
}

fn unit(layer: Layer, offset: u64, len: u32, touched_from: u32) -> Unit {
    let number = offset / u64::from(len);
    let offset = number * u64::from(len);
    Unit { layer, number, offset, start: Seq(offset as u32), len, touched_from }
}

struct Rig {
    driver: Driver,
    device: DeviceRings,
}

impl Rig {
    fn new(tls_transmit_resync: TransmitResync) -> Rig {
        let (device, driver) = crate::tests::driver(NicConfig { tls_transmit_resync, ..NicConfig::default() });
        Rig { driver, device }
    }

    fn tls(&mut self) -> Handle {
        let key = TlsKey::new(TlsVersion::Tls13, TlsSuite::Aes128Gcm, &[7; 16], [9; 12]).unwrap();
        self.driver.tls().unwrap().add(&flow(), Direction::Transmit, Seq(0), 0, &key).unwrap()
    }

    fn post(&mut self, context: Handle, seq: u32) -> String {
        let touched_from = if context.engine() == engines::TLS { 0 } else { RECORD - 4 };
        self.post_with(seq, [Some(context), None], &Records(touched_from))
    }

    /// Letters for what comes on the ring with a packet: parameters, fence, DUMP, packet.
    fn post_with(&mut self, seq: u32, contexts: [Option<Handle>; LAYERS], source: &dyn RecordSource) -> String {
        let streams = contexts.map(|context| Some(StreamAsk::whole(context?, seq.into(), 1000)));
        let ask = TxAsk { seq: Seq(seq), streams, ..TxAsk::default() };
        let packet = TxPacket {
            header: [0xff; 54].into_iter().collect(),
            fragments: [Bytes::from(vec![0; 1000])].into_iter().collect(),
            ask,
        };
        assert_eq!(self.driver.transmit(Instant::ZERO, packet, source), Sent::Posted);
        self.driver.flush(Instant::ZERO);
        let entries = std::iter::from_fn(|| self.device.send.pop());
        entries
            .map(|entry| match entry.descriptor {
                SendDescriptor::StaticParameters { .. } | SendDescriptor::ProgressParameters { .. } => 'P',
                SendDescriptor::Fence => 'F',
                SendDescriptor::Dump { .. } => 'd',
                SendDescriptor::Packet(_) => '.',
                SendDescriptor::Control { .. } => '?',
            })
            .collect()
    }
}

fn flow() -> FlowKey {
    FlowKey::tcp("10.0.0.1:443".parse().unwrap(), "10.0.0.2:5000".parse().unwrap())
}

#[test]
fn a_fence_stands_between_parameters_and_what_goes_by_them() {
    let mut rig = Rig::new(TransmitResync::Dump);
    let context = rig.tls();
    assert_eq!(rig.post(context, 0), "PPF.", "a context's first parameters");
    assert_eq!(rig.post(context, 1000), ".");
    assert_eq!(rig.post(context, 1000), "PFd.", "the record number is the one it counts from");
    assert_eq!(rig.post(context, 2 * RECORD + 1501), "PPFdd.");

    let mut rig = Rig::new(TransmitResync::NextRecord);
    let context = rig.tls();
    assert_eq!(rig.post(context, 0), "PPF.");
    assert_eq!(rig.post(context, 3 * RECORD), "PPF.");

    let mut rig = Rig::new(TransmitResync::Dump);
    let context = rig.driver.nvme().unwrap().add_transmit(&flow()).unwrap();
    assert_eq!(rig.post(context, RECORD - 1000), "PFdd.", "a digest is in it");
}

/// Digests first, then records: each context's parameters have taken effect before anything goes by them.
#[test]
fn a_fence_stands_behind_the_parameters_of_each_of_two_contexts() {
    let mut rig = Rig::new(TransmitResync::Dump);
    let (tls, nvme) = (rig.tls(), rig.driver.nvme().unwrap().add_transmit(&flow()).unwrap());
    let contexts = [Some(tls), Some(nvme)];
    assert_eq!(rig.post_with(0, contexts, &Stacked(nvme)), "PPPF.", "at the start of both");
    assert_eq!(rig.post_with(1000, contexts, &Stacked(nvme)), ".");
    assert_eq!(
        rig.post_with(RECORD + 1000, contexts, &Stacked(nvme)),
        "PFdddPPFd.",
        "2 of 3 DUMPs are of the PDU only"
    );
}

const RECORD: u32 = 4000;
const PDU: u32 = 9000;
