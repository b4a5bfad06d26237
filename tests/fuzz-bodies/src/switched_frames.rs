//! Frames into a NIC with a switch, from the wire and from a virtual machine: nothing panics, no buffer grows, and a
//! protected network accepts only frames that its SA has opened.
//!
//! Input: a byte of kind, a byte of length in units of eight, that many bytes of frame, and so on. The kind selects the
//! form: plain, in a tunnel packet in clear text, in one under an SA, or from a virtual machine.

use bytes::{Bytes, BytesMut};
use nic_sim::eswitch::{EswitchAnswer, EswitchCommand};
use nic_sim::frame::Frame;
use nic_sim::wire::Port;
use nic_sim::{Delays, Driver, EswitchDriver, NicConfig, SwitchConfig, SwitchedDevice, function, switched_nic};
use nic_switch::overlay::{TunnelHeaders, encapsulate};
use nic_switch::{
    FunctionConfig, Mac, RuleFile, SwitchMode, Tunnel, TunnelDevice, TunnelHop, TunnelKind, TunnelProtection,
    TunnelSet, Vport,
};
use offload_api::{Direction, EspKey, EspSuite, NetDevice, NoRecords, OffloadKind, SaParams, TxPacket};
use offload_base::Instant;
use offload_esp::{EspCipher, OuterHeaders as EspHeaders};

/// Runs one input.
pub fn run(mut data: &[u8]) {
    let mut bed = SwitchBed::new();
    let mut number = 0;
    while let [kind, length, rest @ ..] = data {
        let (bytes, rest) = rest.split_at(rest.len().min(usize::from(*length) * 8));
        data = rest;
        number += 1;
        let tunnel = KINDS[usize::from(kind >> 2) % KINDS.len()];
        let network = if kind & 0x40 == 0 { PROTECTED } else { PLAIN };
        match kind & 3 {
            0 => bed.wire_brings(Bytes::copy_from_slice(bytes), false),
            1 => bed.wire_brings(wrapped(tunnel, network, bytes), false),
            2 => bed.wire_brings(sealed(&wrapped(tunnel, network, bytes), number), true),
            _ => bed.machine_sends(bytes),
        }
    }
}

struct SwitchBed {
    device: SwitchedDevice,
    host: Driver,
    eswitch: EswitchDriver,
    /// A machine in the protected network, and one in the other network.
    machines: [Driver; 2],
}

impl SwitchBed {
    fn new() -> SwitchBed {
        let config = NicConfig { delays: Delays::NONE, line_rate: None, receive_ring: 4, ..NicConfig::default() };
        let (mut device, mut host, eswitch) =
            switched_nic(NicConfig { mac: HERE.0, ..config.clone() }, SwitchConfig::default());
        let machines = [0, 1].map(|number| {
            let mac = Mac([2, 0, 0, 0, 1, number]);
            let (function, mut drivers) = function(NicConfig { mac: mac.0, ..config.clone() });
            device.plug(Vport::Virtual(number.into()), FunctionConfig::new(mac), function);
            drivers.remove(0)
        });
        let receive = vec![host[0].ipsec().expect("IPsec").add_sa(&sa(Direction::Receive)).expect("room")];
        let mut bed = SwitchBed { device, host: host.remove(0), eswitch, machines };
        bed.ask(EswitchCommand::Mode(SwitchMode::Switchdev));
        bed.ask(EswitchCommand::NextHop([192, 0, 2, 2].into(), Some(TunnelHop { source: HERE, destination: THERE })));
        let mut rules = String::new();
        for kind in KINDS {
            let device = TunnelDevice { kind, number: 0 };
            bed.ask(EswitchCommand::Tunnel(Tunnel::new(device, vec![[192, 0, 2, 1].into()])));
            let protection = TunnelProtection { send: Vec::new(), receive: receive.clone() };
            bed.ask(EswitchCommand::Protect(device, Some(PROTECTED), Some(protection)));
            for (port, network) in [(0, PROTECTED), (1, PLAIN)] {
                rules += &format!(
                    "tc filter add dev {device} ingress prio 1 flower enc_key_id {network} action tunnel_key unset \
                     action mirred egress redirect dev pf0vf{port}\n"
                );
            }
        }
        for (port, network) in [(0, PROTECTED), (1, PLAIN)] {
            rules += &format!(
                "tc filter add dev pf0vf{port} ingress prio 1 flower action tunnel_key set src_ip 192.0.2.1 dst_ip 192.0.2.2 \
                 id {network} action mirred egress redirect dev vxlan0\n"
            );
        }
        bed.ask(EswitchCommand::Change(RuleFile::parse("rules", &rules).expect("good lines").changes));
        bed
    }

    fn ask(&mut self, command: EswitchCommand) {
        self.eswitch.command(command).expect("room");
        self.device.process(Instant::ZERO);
        // The setup is valid, so no command may be refused.
        assert_eq!(self.eswitch.answer(), Some(EswitchAnswer::Done));
    }

    fn wire_brings(&mut self, frame: Bytes, under_sa: bool) {
        let before = self.device.switch_counters().unwrapped;
        self.device.receive_frame(Instant::ZERO, Frame::new(frame));
        let unwrapped = self.device.switch_counters().unwrapped > before;
        let heard = self.drain();
        // The protected network must not accept frames in clear text, nor the other network frames under an SA.
        assert!(heard[0] == 0 || under_sa, "in the clear");
        assert!(heard[1] == 0 || !under_sa, "by the other network's SA");
        assert!(heard.iter().sum::<usize>() == 0 || unwrapped);
    }

    fn machine_sends(&mut self, bytes: &[u8]) {
        for number in 0..2 {
            let header = bytes.iter().copied().collect();
            let _sent =
                self.machines[number].transmit(Instant::ZERO, TxPacket { header, ..TxPacket::default() }, &NoRecords);
            self.machines[number].flush(Instant::ZERO);
            let before = self.device.uplink_counters().tx_packets;
            let _heard = self.drain();
            // There is no SA for transmission.
            assert!(number == 1 || self.device.uplink_counters().tx_packets == before);
        }
    }

    /// Returns the number of frames that each virtual machine received.
    fn drain(&mut self) -> [usize; 2] {
        let now = Instant::ZERO;
        self.device.process(now);
        while self.device.poll_frame(now).is_some() {}
        self.device.process(now);
        while self.host.receive(now).is_some() {}
        while self.eswitch.receive().is_some() {}
        let heard = self.machines.each_mut().map(|driver| core::iter::from_fn(|| driver.receive(now)).count());
        self.host.flush(now);
        self.machines.iter_mut().for_each(|driver| driver.flush(now));
        heard
    }
}

/// Returns the bytes in a tunnel packet from the other hypervisor.
fn wrapped(kind: TunnelKind, network: u32, bytes: &[u8]) -> Bytes {
    let ends = TunnelSet::new([192, 0, 2, 2].into(), [192, 0, 2, 1].into());
    let set = TunnelSet { key: Some(network), checksum: false, ..ends };
    let hop = TunnelHop { source: THERE, destination: HERE };
    let outer = TunnelHeaders { kind, set, hop, source_port: 50_000, identification: 0 };
    encapsulate(&outer, &Bytes::copy_from_slice(bytes).into()).bytes
}

fn sealed(plain: &[u8], number: u64) -> Bytes {
    let params = sa(Direction::Transmit);
    let mut frame = BytesMut::new();
    let headers = EspHeaders::for_packet(&params, &plain[14..]).expect("an IP packet");
    headers.wrap(&EspCipher::new(&params), plain, number, &mut frame);
    frame.freeze()
}

fn sa(direction: Direction) -> SaParams {
    let key = EspKey::new(EspSuite::Aes128Gcm, &[7; 20]).expect("20 bytes");
    let ends = ([192, 0, 2, 2].into(), [192, 0, 2, 1].into());
    SaParams { offload: OffloadKind::Packet, ..SaParams::new(direction, 0x1000, ends.0, ends.1, key) }
}

const HERE: Mac = Mac([2, 0, 0, 0, 0, 1]);
const THERE: Mac = Mac([2, 0, 0, 0, 0, 2]);
const PROTECTED: u32 = 77;
const PLAIN: u32 = 78;
const KINDS: [TunnelKind; 3] = [TunnelKind::Vxlan, TunnelKind::Geneve, TunnelKind::Gretap];
