//! What a driver puts on the send ring before a packet that is not the next: looked at there, for a device that works
//! strictly in order needs no fence, and would not miss one.

use super::*;
use crate::device::DeviceRings;
use crate::nic::rings;
use crate::packet::SendDescriptor;
use offload_api::{DigestAsk, TxAsk, TxPacket, TxTag, UnitPlace, UnitTag};
use offload_api::{Direction, FlowKey, NetDevice, NvmeTcpDevice, TlsDevice, TlsKey, TlsSuite, TlsVersion};
use offload_base::Instant;

/// Records of [`RECORD`] bytes, and PDUs of as many, one after the other.
struct Records;

impl RecordSource for Records {
    fn unit_at(&self, layer: Layer, seq: Seq) -> Lookup {
        let (number, start) = (u64::from(seq.0 / RECORD), Seq(seq.0 / RECORD * RECORD));
        Lookup::In(Unit { layer, number, start, end: start + RECORD })
    }

    fn bytes(&self, layer: Layer, from: Seq, to: Seq, sink: &mut dyn FnMut(Bytes)) {
        let mut bytes = vec![0; to.distance_from(from) as usize];
        if let (Layer::NvmeTcp, Some(flags)) = (layer, bytes.get_mut(1)) {
            *flags = 0b10; // a data digest
        }
        sink(bytes.into());
    }
}

/// The same, the records filled with PDUs of [`PDU`] bytes that want digests of a context.
struct Stacked(Handle);

impl RecordSource for Stacked {
    fn unit_at(&self, layer: Layer, seq: Seq) -> Lookup {
        let start = Seq(seq.0 / PDU * PDU);
        match layer {
            Layer::Tls => Records.unit_at(layer, seq),
            Layer::NvmeTcp => Lookup::In(Unit { layer, number: u64::from(seq.0 / PDU), start, end: start + PDU }),
        }
    }

    fn bytes(&self, layer: Layer, from: Seq, to: Seq, sink: &mut dyn FnMut(Bytes)) {
        Records.bytes(layer, from, to, sink);
    }

    fn pieces(&self, layer: Layer, from: Seq, to: Seq, sink: &mut dyn FnMut(Bytes, TxTag)) {
        let units = [None, Some(UnitTag { number: u64::from(from.0 / PDU), at: from.0 % PDU, len: PDU })];
        let tag = TxTag { digests: Some(self.0), units, ..TxTag::PLAIN };
        self.bytes(layer, from, to, &mut |bytes| sink(bytes, tag));
    }
}

struct Rig {
    driver: Driver,
    device: DeviceRings,
}

impl Rig {
    fn new(tls_transmit_resync: TransmitResync) -> Rig {
        let config = NicConfig { tls_transmit_resync, ..NicConfig::default() };
        let (device, host) = rings(&config);
        Rig {
            driver: {
                let infos = crate::engine::Engines::of(&config).infos();
                Driver::new(config, 0, host, infos)
            },
            device,
        }
    }

    fn tls(&mut self) -> Handle {
        let key = TlsKey::new(TlsVersion::Tls13, TlsSuite::Aes128Gcm, &[7; 16], [9; 12]).unwrap();
        TlsDevice::add(&mut self.driver, &flow(), Direction::Transmit, Seq(0), 0, &key).unwrap()
    }

    fn post(&mut self, context: Handle, seq: u32) -> String {
        self.post_with(TxAsk { context: Some(context), seq: Seq(seq), ..TxAsk::default() }, &Records)
    }

    /// Letters for what comes on the ring with a packet: parameters, fence, DUMP, packet.
    fn post_with(&mut self, ask: TxAsk, source: &dyn RecordSource) -> String {
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
                SendDescriptor::Dump { .. } | SendDescriptor::DumpContent { .. } => 'd',
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
    let context = rig.driver.add_transmit(&flow()).unwrap();
    assert_eq!(rig.post(context, RECORD - 1000), "PFdd.", "a digest is in it");
}

/// Digests first, then records: each context's parameters have taken effect before anything goes by them.
#[test]
fn a_fence_stands_behind_the_parameters_of_each_of_two_contexts() {
    let mut rig = Rig::new(TransmitResync::Dump);
    let (tls, nvme) = (rig.tls(), rig.driver.add_transmit(&flow()).unwrap());
    let at = |seq: u32| {
        let first = UnitPlace { number: u64::from(seq / PDU), at: seq % PDU };
        let next = UnitPlace { at: first.at + 1000, ..first };
        let digests = Some(DigestAsk { context: nvme, content: 1, first, next });
        TxAsk { context: Some(tls), seq: Seq(seq), digests, ..TxAsk::default() }
    };
    assert_eq!(rig.post_with(at(0), &Stacked(nvme)), "PPPF.", "at the start of both");
    assert_eq!(rig.post_with(at(1000), &Stacked(nvme)), ".");
    assert_eq!(rig.post_with(at(RECORD + 1000), &Stacked(nvme)), "PFdddPPFd.", "2 of 3 DUMPs are of the PDU only");
}

const RECORD: u32 = 4000;
const PDU: u32 = 9000;
