//! Two NICs with switches and two tenants: no tenant receives another's packets, and the wire shows no plaintext.

use bytes::{Bytes, BytesMut};
use core::task::Waker;
use nic_sim::eswitch::{EswitchAnswer, EswitchCommand};
use nic_sim::frame::Frame;
use nic_sim::switch::overlay::{TunnelHeaders, encapsulate};
use nic_sim::switch::{
    Change, FunctionConfig, Mac, RuleFile, SwitchMode, Tunnel, TunnelDevice, TunnelHop, TunnelKind, TunnelProtection,
    TunnelSet,
};
use nic_sim::wire::Port;
use nic_sim::{
    Costs, Delays, Driver, EswitchDriver, NicConfig, SwitchConfig, SwitchedDevice, Vport, function, switched_nic,
};
use offload_api::{Direction, EspKey, EspSuite, NetDevice, NoRecords, OffloadKind, SaParams, Selector, TxPacket};
use offload_base::Instant;
use offload_base::counters::CounterSet;
use offload_esp::{EspAt, EspCipher, OuterHeaders as EspHeaders};
use proptest::prelude::*;

const NOW: Instant = Instant::ZERO;
const DEVICE: TunnelDevice = TunnelDevice { kind: TunnelKind::Vxlan, number: 0 };

/// A hypervisor with its NIC and a virtual machine of each tenant.
struct Hypervisor {
    side: u8,
    device: SwitchedDevice,
    host: Driver,
    eswitch: EswitchDriver,
    machines: Vec<Driver>,
}

fn mac(side: u8, number: u8) -> Mac {
    Mac([2, 0, 0, side, 0, number])
}

fn address(side: u8) -> core::net::IpAddr {
    [192, 0, 2, side].into()
}

/// Returns the SA of a tenant's packets from one side to the other.
fn sa(direction: Direction, from: u8, to: u8, tenant: u8) -> SaParams {
    let key = EspKey::new(EspSuite::Aes128Gcm, &[16 * from + tenant; 20]).expect("20 bytes");
    let spi = 0x1000 + u32::from(16 * from + tenant);
    let params = SaParams::new(direction, spi, address(from), address(to), key);
    SaParams { esn: true, offload: OffloadKind::Packet, ..params }
}

fn network(tenant: u8) -> u32 {
    100 + u32::from(tenant)
}

impl Hypervisor {
    fn new(side: u8) -> Hypervisor {
        Hypervisor::with(side, NicConfig::default()).0
    }

    /// With a host's function of this configuration. Returns the drivers of all its queues but the first.
    fn with(side: u8, own: NicConfig) -> (Hypervisor, Vec<Driver>) {
        let config = |mac: Mac| NicConfig { mac: mac.0, delays: Delays::NONE, line_rate: None, ..NicConfig::default() };
        let own = NicConfig { queues: own.queues, costs: own.costs, ..config(mac(side, 9)) };
        let (mut device, mut host, eswitch) = switched_nic(own, SwitchConfig::default());
        let machines = (0..2).map(|number| {
            let (function, mut drivers) = function(config(mac(side, number)));
            device.plug(Vport::Virtual(number.into()), FunctionConfig::new(mac(side, number)), function);
            drivers.remove(0)
        });
        let machines = machines.collect();
        let mut this = Hypervisor { side, device, host: host.remove(0), eswitch, machines };
        this.set_up();
        (this, host)
    }

    fn set_up(&mut self) {
        let (own, other) = (self.side, 3 - self.side);
        self.ask(EswitchCommand::Mode(SwitchMode::Switchdev));
        self.ask(EswitchCommand::Tunnel(Tunnel::new(DEVICE, vec![address(own)])));
        let hop = TunnelHop { source: mac(own, 9), destination: mac(other, 9) };
        self.ask(EswitchCommand::NextHop(address(other), Some(hop)));
        for tenant in 0..2 {
            let ipsec = self.host.ipsec().expect("the host has IPsec");
            let send = vec![ipsec.add_sa(&sa(Direction::Transmit, own, other, tenant)).expect("room")];
            let receive = vec![ipsec.add_sa(&sa(Direction::Receive, other, own, tenant)).expect("room")];
            self.ask(EswitchCommand::Protect(DEVICE, Some(network(tenant)), Some(TunnelProtection { send, receive })));
            let lines = format!(
                "tc filter add dev pf0vf{tenant} ingress prio 1 flower action tunnel_key set src_ip {} dst_ip {} id {} nocsum \
                 action mirred egress redirect dev vxlan0\n\
                 tc filter add dev vxlan0 ingress prio 1 flower enc_key_id {} action tunnel_key unset \
                 action mirred egress redirect dev pf0vf{tenant}",
                address(own),
                address(other),
                network(tenant),
                network(tenant),
            );
            self.ask(EswitchCommand::Change(RuleFile::parse("test", &lines).expect("good lines").changes));
        }
    }

    fn ask(&mut self, command: EswitchCommand) {
        self.eswitch.command(command).expect("room");
        self.device.process(NOW);
        assert_eq!(self.eswitch.answer(), Some(EswitchAnswer::Done));
        while self.device.poll_frame(NOW).is_some() {}
    }

    /// Returns the frames on the wire when a virtual machine sends a frame.
    fn sends(&mut self, machine: usize, frame: &[u8]) -> Vec<Frame> {
        let packet = TxPacket { header: frame.iter().copied().collect(), ..TxPacket::default() };
        let _ = self.machines[machine].transmit(NOW, packet, &NoRecords);
        self.machines[machine].flush(NOW);
        self.device.process(NOW);
        core::iter::from_fn(|| self.device.poll_frame(NOW)).collect()
    }

    /// Returns the frames on the wire when the host sends a frame through the uplink's representor.
    fn injects(&mut self, frame: &[u8]) -> Vec<Bytes> {
        assert!(self.eswitch.send(Vport::Uplink, Bytes::copy_from_slice(frame)));
        self.device.process(NOW);
        core::iter::from_fn(|| self.device.poll_frame(NOW)).map(|frame| frame.data).collect()
    }

    /// Receives frames from the wire. Returns the number of packets for each virtual machine and for the host.
    fn hears(&mut self, frames: impl IntoIterator<Item = Frame>) -> [usize; 3] {
        frames.into_iter().for_each(|frame| self.device.receive_frame(NOW, frame));
        self.device.process(NOW);
        let count = |driver: &mut Driver| core::iter::from_fn(|| driver.receive(NOW)).count();
        let [one, other] = &mut self.machines[..] else { unreachable!("there are two machines") };
        [count(one), count(other), count(&mut self.host)]
    }

    /// Returns the received bytes that the host's function counted.
    fn host_bytes(&self) -> u64 {
        let mut set = CounterSet::default();
        self.device.count(&mut set);
        set.value("rx_bytes")
    }

    fn counted(&self) -> [u64; 4] {
        let (switch, uplink) = (self.device.switch_counters(), self.device.uplink_counters());
        [switch.unprotected, switch.other_sa, uplink.not_opened, switch.spoofed]
    }
}

/// Returns a datagram from a virtual machine on the left to one on the right.
fn datagram(tenant: u8, from: Mac) -> Vec<u8> {
    let mut frame = [mac(2, tenant).0, from.0].concat();
    frame.extend([8, 0, 0x45, 0, 0, 60, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    frame.extend([0, 7, 0, 9, 0, 40, 0, 0]);
    frame.extend([0x5a; 32]);
    frame
}

/// Returns a frame that the left hypervisor would send in plaintext.
fn wrapped(tenant: u8, in_network: u32) -> Bytes {
    let set = TunnelSet { key: Some(in_network), checksum: false, ..TunnelSet::new(address(1), address(2)) };
    let hop = TunnelHop { source: mac(1, 9), destination: mac(2, 9) };
    let outer = TunnelHeaders { kind: TunnelKind::Vxlan, set, hop, source_port: 50_000, identification: 0 };
    encapsulate(&outer, &Bytes::from(datagram(tenant, mac(1, tenant))).into()).bytes
}

/// Returns the frame under the SA of a tenant that has the key.
fn sealed(plain: &[u8], tenant: u8, number: u64) -> BytesMut {
    let params = sa(Direction::Transmit, 1, 2, tenant);
    let mut frame = BytesMut::new();
    EspHeaders::for_packet(&params, &plain[14..]).expect("IP").wrap(
        &EspCipher::new(&params),
        plain,
        number,
        &mut frame,
    );
    frame
}

#[test]
fn a_tenant_hears_its_own_frames_and_the_wire_hides_them() {
    let (mut left, mut right) = (Hypervisor::new(1), Hypervisor::new(2));
    for tenant in 0..2u8 {
        let sent = left.sends(tenant.into(), &datagram(tenant, mac(1, tenant)));
        assert_eq!(sent.len(), 1);
        assert!(!sent[0].data.windows(8).any(|window| window == [0x5a; 8]));
        let mut heard = [0; 3];
        heard[usize::from(tenant)] = 1;
        assert_eq!(right.hears(sent.clone()), heard);
        assert_eq!(right.hears(sent), [0; 3], "a replay");
    }
    assert_eq!(right.counted(), [0, 0, 2, 0]);
}

/// Engines work on a byte in a nanosecond.
#[test]
fn esp_at_the_uplink_takes_the_time_it_costs() {
    let costs = Costs { crypto_rate: Some(8_000_000_000), ..Costs::default() };
    let [mut left, mut right] =
        [1, 2].map(|side| Hypervisor::with(side, NicConfig { costs, ..NicConfig::default() }).0);
    let plain = wrapped(0, network(0));
    assert!(left.sends(0, &datagram(0, mac(1, 0))).is_empty());
    let leaves = left.device.next_event().expect("it is being sealed");
    assert_eq!(leaves.as_nanos(), plain.len() as u64);
    let frame = left.device.poll_frame(leaves).expect("it is sealed");
    let bytes = frame.len() as u64;
    assert_eq!(right.hears([frame]), [0; 3]);
    let heard = right.device.next_event().expect("it is being opened");
    assert_eq!(heard.as_nanos(), bytes);
    // Frames that arrive meanwhile stay behind it, although no engine works on them.
    right.device.receive_frame(NOW, Frame::new(plain.clone()));
    assert_eq!(right.device.switch_counters().frames_in, 0);
    right.device.process(heard);
    assert_eq!(right.device.switch_counters().frames_in, 2);
    assert!(right.machines[0].receive(heard).is_some());
}

#[test]
fn frame_for_a_machine_does_not_wait_for_the_hosts_memory() {
    let costs = Costs { pcie_rate: Some(8_000_000_000), ..Costs::default() };
    let mut right = Hypervisor::with(2, NicConfig { costs, ..NicConfig::default() }).0;
    let mut own = [&mac(2, 9).0[..], &mac(1, 9).0, &[0x88, 0xb5]].concat();
    own.resize(1000, 0);
    right.device.receive_frame(NOW, Frame::new(own.into()));
    assert_eq!(right.device.switch_counters().frames_in, 1);
    right.device.receive_frame(NOW, Frame::new(wrapped(0, network(0))));
    assert_eq!(right.device.switch_counters().frames_in, 2, "the frame waits for the host's memory");
}

#[test]
fn frames_that_wait_for_engines_are_bounded() {
    let costs = Costs { crypto_rate: Some(8_000_000_000), ..Costs::default() };
    let [mut left, mut right] =
        [1, 2].map(|side| Hypervisor::with(side, NicConfig { costs, ..NicConfig::default() }).0);
    assert!(left.sends(0, &datagram(0, mac(1, 0))).is_empty());
    let leaves = left.device.next_event().expect("it is being sealed");
    right.device.receive_frame(NOW, left.device.poll_frame(leaves).expect("it is sealed"));
    for _ in 0..2000 {
        right.device.receive_frame(NOW, Frame::new(wrapped(0, network(0))));
    }
    let full = right.device.uplink_counters().uplink_full;
    assert_eq!(full, 2000 - 1023, "1,024 frames wait");
    right.device.process(right.device.next_event().expect("a frame is being opened"));
    assert_eq!(right.device.switch_counters().frames_in, 1024);
}

#[test]
fn a_handle_of_another_queue_is_another_sa() {
    let (mut right, mut others) = Hypervisor::with(2, NicConfig { queues: 2, ..NicConfig::default() });
    let stranger = sa(Direction::Receive, 1, 2, 7);
    let ipsec = others[0].ipsec().expect("each queue has IPsec");
    // As many SAs as the tenants have, so that the handles are equal.
    let handles: Vec<_> =
        (0..4).map(|tenant| ipsec.add_sa(&SaParams { spi: 0x2000 + tenant, ..stranger.clone() })).collect();
    assert!(handles.iter().all(Result::is_ok));
    right.device.process(NOW);
    while right.device.poll_frame(NOW).is_some() {}
    for spi in 0x2000..0x2004 {
        let params = SaParams { spi, ..sa(Direction::Transmit, 1, 2, 7) };
        let (plain, mut frame) = (wrapped(0, network(0)), BytesMut::new());
        EspHeaders::for_packet(&params, &plain[14..]).expect("IP").wrap(
            &EspCipher::new(&params),
            &plain,
            9,
            &mut frame,
        );
        assert_eq!(right.hears([Frame::new(frame.freeze())]), [0; 3]);
    }
    assert_eq!(right.device.uplink_counters().opened, 4, "the SAs opened the packets");
    assert_eq!(right.counted()[0], 4, "the SAs belong to no network");
}

#[test]
fn policies_protect_packets_without_a_network_and_fragments() {
    let mut left = Hypervisor::new(1);
    let ipsec = left.host.ipsec().expect("the host has IPsec");
    let params = sa(Direction::Transmit, 1, 2, 5);
    let handle = ipsec.add_sa(&params).expect("room");
    let selector = Selector { protocol: Some(17), destination_port: Some(4789), ..Selector::ANY };
    ipsec.set_policy(&selector, 0, handle).expect("room");
    left.ask(EswitchCommand::Protect(DEVICE, Some(network(0)), None));
    let sent = left.sends(0, &datagram(0, mac(1, 0)));
    let spi: Vec<_> = sent.iter().map(|frame| frame.data[34..38].to_vec()).collect();
    assert_eq!(spi, [params.spi.to_be_bytes()]);
    // A virtual machine directly on the wire: a packet without ports may match the policy.
    let rule = "tc filter replace dev pf0vf0 ingress prio 1 flower action mirred egress redirect dev p0";
    left.ask(EswitchCommand::Change(RuleFile::parse("test", rule).expect("a valid rule").changes));
    assert_eq!(left.sends(0, &datagram(0, mac(1, 0))).len(), 1, "no policy names port 9");
    let mut fragment = datagram(0, mac(1, 0));
    fragment[21] = 8;
    assert_eq!(left.sends(0, &fragment).len(), 0);
    assert_eq!(left.device.uplink_counters().not_protected, 1);
    // Between other addresses the packet does not belong to the SA, even if the policy names the SA.
    let mut tunnel = datagram(0, mac(1, 0));
    tunnel[36..38].copy_from_slice(&4789u16.to_be_bytes());
    assert_eq!(left.sends(0, &tunnel).len(), 0);
    assert_eq!(left.device.uplink_counters().not_protected, 2);
}

#[test]
fn after_a_reset_no_frame_of_a_protected_network_leaves() {
    let (mut left, mut right) = (Hypervisor::new(1), Hypervisor::new(2));
    left.device.reset(NOW);
    right.device.reset(NOW);
    assert_eq!(left.sends(0, &datagram(0, mac(1, 0))).len(), 0);
    assert_eq!(left.device.uplink_counters().not_protected, 1);
    assert_eq!(right.hears([Frame::new(wrapped(0, network(0)))]), [0; 3]);
    assert_eq!(right.counted(), [1, 0, 0, 0]);
    // A function is removed while its driver sends.
    left.ask(EswitchCommand::Remove(Vport::Virtual(0)));
    assert_eq!(left.sends(0, &datagram(0, mac(1, 0))).len(), 0);
    left.eswitch.command(EswitchCommand::Reset(Vport::Virtual(0))).expect("room");
    left.device.process(NOW);
    assert_eq!(left.eswitch.answer(), Some(EswitchAnswer::NoFunction(Vport::Virtual(0))));
}

#[test]
fn unmatched_frames_go_to_the_host_and_on_to_its_choice() {
    let mut left = Hypervisor::new(1);
    left.ask(EswitchCommand::Replace(Vec::new()));
    let frame = datagram(0, mac(1, 0));
    assert_eq!(left.sends(0, &frame).len(), 0);
    let (port, seen) = left.eswitch.receive().expect("the host sees it");
    assert_eq!((port, &seen[..]), (Vport::Virtual(0), &frame[..]));
    let mut answer = frame.clone();
    answer[..6].copy_from_slice(&mac(1, 1).0);
    assert!(left.eswitch.send(Vport::Virtual(1), answer.into()));
    assert_eq!(left.hears([]), [0, 1, 0]);
    // Frames that the host does not take in time are dropped and counted.
    for _ in 0..2000 {
        left.sends(0, &frame);
    }
    let seen = core::iter::from_fn(|| left.eswitch.receive()).count();
    assert_eq!(seen as u64 + left.device.uplink_counters().representor_full, 2000);
    assert!(seen > 0 && seen < 2000);
}

#[test]
fn the_hosts_function_counts_foreign_and_rejected_packets() {
    let mut right = Hypervisor::new(2);
    let bytes_before = right.host_bytes();
    for tenant in 0..2u8 {
        let frame = sealed(&wrapped(tenant, network(tenant)), tenant, 9).freeze();
        assert_eq!(right.hears([Frame::new(frame.clone())]).iter().sum::<usize>(), 1);
        let taken = right.host_bytes();
        assert_eq!(right.hears([Frame::new(frame.clone())]), [0; 3], "a replay");
        assert_eq!(right.host_bytes(), taken + frame.len() as u64, "the host's function counts it");
    }
    assert!(right.host_bytes() > bytes_before);
    // Crypto offload: a packet that the SA opened goes to the host if it is addressed to the host.
    let params = SaParams { spi: 0x3000, offload: OffloadKind::Crypto, ..sa(Direction::Receive, 1, 2, 6) };
    right.host.ipsec().expect("the host has IPsec").add_sa(&params).expect("room");
    right.device.process(NOW);
    while right.device.poll_frame(NOW).is_some() {}
    for number in 1..4u64 {
        let (mut plain, mut frame) = (wrapped(0, network(0)).to_vec(), BytesMut::new());
        plain[..6].copy_from_slice(&mac(2, 5).0);
        let params = SaParams { direction: Direction::Transmit, ..params.clone() };
        let headers = EspHeaders::for_packet(&params, &plain[14..]).expect("IP");
        headers.wrap(&EspCipher::new(&params), &plain, number, &mut frame);
        assert_eq!(right.hears([Frame::new(frame.freeze())]), [0; 3]);
        assert_eq!(right.device.counters().rx_drop_address, number, "the frame has another address");
    }
}

#[test]
fn the_hosts_function_gets_only_neighbour_messages() {
    let mut right = Hypervisor::new(2);
    let plain = |protocol: u8| {
        let mut frame = datagram(0, mac(1, 9));
        frame[..6].copy_from_slice(&mac(2, 9).0);
        frame[23] = protocol;
        Frame::new(frame.into())
    };
    let arp = Frame::new([&mac(2, 9).0[..], &mac(1, 9).0, &[8, 6, 0, 1, 8, 0, 6, 4, 0, 2], &[0; 38]].concat().into());
    assert_eq!(right.hears([plain(17), arp.clone()]), [0, 0, 2]);
    assert!(right.eswitch.receive().is_none());
    right.ask(EswitchCommand::RepresentUplink(true));
    // A packet opened by an SA without a network is shown in its original form.
    let params = SaParams { spi: 0x3000, ..sa(Direction::Receive, 1, 2, 6) };
    right.host.ipsec().expect("the host has IPsec").add_sa(&params).expect("room");
    right.device.process(NOW);
    while right.device.poll_frame(NOW).is_some() {}
    let (mut inside, mut frame) = (wrapped(0, 300).to_vec(), BytesMut::new());
    inside[..6].copy_from_slice(&mac(2, 9).0);
    let params = SaParams { direction: Direction::Transmit, ..params };
    let headers = EspHeaders::for_packet(&params, &inside[14..]).expect("IP");
    headers.wrap(&EspCipher::new(&params), &inside, 1, &mut frame);
    assert_eq!(right.hears([plain(17), arp.clone(), Frame::new(frame.freeze())]), [0, 0, 1]);
    let seen: Vec<_> = core::iter::from_fn(|| right.eswitch.receive()).collect();
    let uplink = |bytes: Bytes| (Vport::Uplink, bytes);
    assert_eq!(seen, [uplink(plain(17).data), uplink(arp.data), uplink(inside.into())]);
}

#[test]
fn if_all_tunnels_are_protected_no_sender_passes_in_the_clear() {
    let mut left = Hypervisor::new(1);
    left.ask(EswitchCommand::Protect(DEVICE, Some(network(0)), None));
    let wraps = |left: &mut Hypervisor| left.sends(0, &datagram(0, mac(1, 0))).len();
    let tunnel = wrapped(0, network(0));
    assert_eq!((wraps(&mut left), left.injects(&tunnel)), (1, vec![tunnel.clone()]), "no protection is required");
    left.ask(EswitchCommand::ProtectAll(true));
    // One frame is wrapped by the switch, and the other is injected by the host.
    assert_eq!((wraps(&mut left), left.injects(&tunnel)), (0, Vec::new()));
    assert_eq!(left.device.uplink_counters().not_protected, 2);
    let other = datagram(0, mac(1, 9));
    assert_eq!(left.injects(&other), [Bytes::from(other.clone())], "the frame is not a tunnel packet");
    // With a policy for VXLAN the same frames leave under its SA.
    let ipsec = left.host.ipsec().expect("the host has IPsec");
    let params = sa(Direction::Transmit, 1, 2, 5);
    let handle = ipsec.add_sa(&params).expect("room");
    let selector = Selector { protocol: Some(17), destination_port: Some(4789), ..Selector::ANY };
    ipsec.set_policy(&selector, 0, handle).expect("room");
    left.ask(EswitchCommand::ProtectAll(true));
    assert_eq!(wraps(&mut left), 1);
    let sent = left.injects(&tunnel);
    assert_eq!(sent.iter().map(|frame| frame[34..38].to_vec()).collect::<Vec<_>>(), [params.spi.to_be_bytes()]);
    // The other direction: plaintext is rejected, and any SA suffices for the tenant's packets.
    let mut right = Hypervisor::new(2);
    right.ask(EswitchCommand::Protect(DEVICE, Some(network(0)), None));
    assert_eq!(right.hears([Frame::new(tunnel.clone())]), [1, 0, 0]);
    right.ask(EswitchCommand::ProtectAll(true));
    assert_eq!(right.hears([Frame::new(tunnel.clone())]), [0; 3]);
    assert_eq!(right.counted()[0], 1);
    let params = SaParams { spi: 0x3000, ..sa(Direction::Receive, 1, 2, 6) };
    right.host.ipsec().expect("the host has IPsec").add_sa(&params).expect("room");
    right.ask(EswitchCommand::ProtectAll(true));
    let (params, mut frame) = (SaParams { direction: Direction::Transmit, ..params }, BytesMut::new());
    let headers = EspHeaders::for_packet(&params, &tunnel[14..]).expect("IP");
    headers.wrap(&EspCipher::new(&params), &tunnel, 1, &mut frame);
    assert_eq!(right.hears([Frame::new(frame.freeze())]), [1, 0, 0]);
}

/// A packet that the switch encapsulates is a tunnel packet at any port.
#[test]
fn a_tunnel_at_a_port_of_its_own_is_protected_too() {
    let mut left = Hypervisor::new(1);
    left.ask(EswitchCommand::Protect(DEVICE, Some(network(0)), None));
    let wrap = format!("src_ip {} dst_ip {} id 900 dst_port 8472 nocsum", address(1), address(2));
    let rule = format!(
        "tc filter del dev pf0vf0 ingress prio 1\ntc filter add dev pf0vf0 ingress prio 1 flower action tunnel_key set {wrap} \
         action mirred egress redirect dev vxlan0"
    );
    left.ask(EswitchCommand::Change(RuleFile::parse("test", &rule).expect("good lines").changes));
    let sends = |left: &mut Hypervisor| left.sends(0, &datagram(0, mac(1, 0))).len();
    assert_eq!(sends(&mut left), 1, "no protection is required");
    left.ask(EswitchCommand::ProtectAll(true));
    assert_eq!((sends(&mut left), left.device.uplink_counters().not_protected), (0, 1));
}

/// Returns a fragment of a packet of the first virtual machine, or of a sender with forged addresses.
fn fragment(identification: u8, place: u8, port: u16) -> Vec<u8> {
    let mut frame = datagram(0, mac(1, 0));
    (frame[19], frame[20], frame[21]) = (identification, if place == 0 { 0x20 } else { 0 }, place);
    frame[36..38].copy_from_slice(&port.to_be_bytes());
    frame
}

/// All tunnels are protected, and frames of the first virtual machine go to the wire unchanged.
fn protected_beside_the_wire() -> Hypervisor {
    let mut left = Hypervisor::new(1);
    let rule = "tc filter replace dev pf0vf0 ingress prio 1 flower action mirred egress redirect dev p0";
    left.ask(EswitchCommand::Change(RuleFile::parse("test", rule).expect("a valid rule").changes));
    left.ask(EswitchCommand::ProtectAll(true));
    left
}

/// A packet's first fragment shows the port and decides about the other fragments.
#[test]
fn if_all_tunnels_are_protected_tunnelless_fragments_pass() {
    let (plain, tunnel) = (9, 4789);
    // In later fragments, the bytes at the port's offset are arbitrary.
    let course = [
        (fragment(1, 0, plain), 1),
        (fragment(1, 5, tunnel), 1),
        (fragment(2, 0, tunnel), 0),
        (fragment(2, 5, plain), 0),
        (fragment(1, 9, tunnel), 1),
        (fragment(3, 5, plain), 0),
        (fragment(1, 0, tunnel), 0),
        (fragment(1, 5, plain), 0),
    ];
    let mut left = protected_beside_the_wire();
    for (place, (frame, leave)) in course.iter().enumerate() {
        assert_eq!(left.sends(0, frame).len(), *leave, "of a machine, {place}");
    }
    assert_eq!(left.device.uplink_counters().not_protected, 5);
    for (place, (frame, leave)) in course.iter().enumerate() {
        assert_eq!(left.injects(frame).len(), *leave, "by the representor, {place}");
    }
    let mut left = protected_beside_the_wire();
    for (place, (frame, leave)) in course.iter().enumerate() {
        let tagged = [&frame[..12], &[0x81, 0, 0, 7], &frame[12..]].concat();
        assert_eq!(left.sends(0, &tagged).len(), *leave, "behind a tag, {place}");
    }
    // In the other direction, a Linux with the uplink's representor would reassemble the fragments.
    let mut right = Hypervisor::new(2);
    right.ask(EswitchCommand::RepresentUplink(true));
    right.ask(EswitchCommand::ProtectAll(true));
    let mut shown = |port: u16| {
        let mut first = wrapped(0, network(0)).to_vec();
        first[20] = 0x20;
        first[36..38].copy_from_slice(&port.to_be_bytes());
        assert_eq!(right.hears([Frame::new(first.into())]), [0; 3]);
        (core::iter::from_fn(|| right.eswitch.receive()).count(), right.counted()[0])
    };
    assert_eq!((shown(plain), shown(tunnel)), ((1, 0), (0, 1)));
}

/// Machines choose their IP addresses, and therefore the identification of their fragments.
#[test]
fn fragments_of_one_machine_do_not_affect_the_others() {
    let (plain, tunnel) = (9, 4789);
    let mut left = protected_beside_the_wire();
    assert_eq!(left.injects(&fragment(1, 0, tunnel)).len(), 0);
    assert_eq!(left.sends(0, &fragment(1, 0, plain)).len(), 1, "the fragment is of no tunnel");
    assert_eq!(left.injects(&fragment(1, 5, plain)).len(), 0, "the end of the tunnel's packet");
    // A second packet with the same identification, while fragments of the first may still arrive.
    assert_eq!(left.injects(&fragment(1, 0, plain)).len(), 0);
    assert_eq!(left.injects(&fragment(1, 5, plain)).len(), 0);
    // A sender does not use up the space of others.
    assert_eq!(left.injects(&fragment(2, 0, plain)).len(), 1);
    for number in 0..2000u16 {
        let mut first = fragment(0, 0, plain);
        first[18..20].copy_from_slice(&(1000 + number).to_be_bytes());
        assert_eq!(left.sends(0, &first).len(), 1);
    }
    assert_eq!(left.injects(&fragment(2, 5, plain)).len(), 1);
}

/// If rules name a port, tunnels are recognized at this port too: in whole packets and fragments, in both directions.
#[test]
fn a_tunnel_at_its_own_port_is_known_from_every_sender() {
    let whole = |port: u16| {
        let mut frame = datagram(0, mac(1, 0));
        frame[36..38].copy_from_slice(&port.to_be_bytes());
        frame
    };
    let (plain, own) = (9, 8472);
    let shown = |right: &mut Hypervisor, frame: &[u8]| {
        assert_eq!(right.hears([Frame::new(Bytes::copy_from_slice(frame))]), [0; 3]);
        core::iter::from_fn(|| right.eswitch.receive()).count()
    };
    // A port may be named by a match or by an action.
    for words in [
        "flower enc_dst_port 8472 action drop",
        "flower action tunnel_key set src_ip 192.0.2.1 dst_ip 192.0.2.2 id 9 dst_port 8472 action mirred egress redirect dev vxlan0",
    ] {
        let device = if words.contains("redirect") { "pf0vf1" } else { "vxlan0" };
        let rule = format!("tc filter add dev {device} ingress prio 9 {words}");
        let rule = RuleFile::parse("test", &rule).expect("a valid rule").changes;
        let mut left = protected_beside_the_wire();
        left.ask(EswitchCommand::RepresentUplink(true));
        assert_eq!(
            (left.injects(&whole(own)).len(), shown(&mut left, &whole(own))),
            (1, 1),
            "no rule names the port yet"
        );
        left.ask(EswitchCommand::Change(rule));
        assert_eq!((left.injects(&whole(own)).len(), shown(&mut left, &whole(own))), (0, 0));
        // The first fragment shows the port; later ones follow it.
        assert_eq!((left.injects(&fragment(1, 0, own)).len(), shown(&mut left, &fragment(1, 0, own))), (0, 0));
        assert_eq!(left.injects(&fragment(1, 5, plain)).len(), 0);
        assert_eq!((left.injects(&fragment(2, 0, plain)).len(), shown(&mut left, &fragment(2, 0, plain))), (1, 1));
    }
}

/// More headers than the NIC reads may hide a tunnel, which a Linux would find.
#[test]
fn if_all_tunnels_are_protected_opaque_packets_do_not_pass() {
    let behind = |headers: u8| {
        let mut frame =
            [&mac(2, 9).0[..], &mac(1, 0).0, &[0x86, 0xdd, 0x60, 0, 0, 0, 0, 8 * headers + 24, 60, 64]].concat();
        frame.extend([0xfd; 32]);
        (1..=headers).for_each(|number| frame.extend([if number == headers { 17 } else { 60 }, 0, 1, 4, 0, 0, 0, 0]));
        frame.extend([0, 9, 0, 9, 0, 24, 0, 0]);
        frame.extend([0; 16]);
        frame
    };
    let mut left = protected_beside_the_wire();
    left.ask(EswitchCommand::RepresentUplink(true));
    let mut pass = |headers: u8| {
        let frame = behind(headers);
        let sent = (left.sends(0, &frame).len(), left.injects(&frame).len());
        assert_eq!(left.hears([Frame::new(frame.into())]), [0; 3]);
        let shown = core::iter::from_fn(|| left.eswitch.receive()).count();
        (sent.0, sent.1, shown, left.device.uplink_counters().not_protected, left.counted()[0])
    };
    assert_eq!(pass(8), (1, 1, 1, 0, 0));
    assert_eq!(pass(9), (0, 0, 0, 2, 1));
}

/// A tunnel without a device here may belong to a Linux with the uplink's representor.
#[test]
fn if_all_tunnels_are_protected_unknown_tunnels_do_not_pass() {
    let mut right = Hypervisor::new(2);
    right.ask(EswitchCommand::RepresentUplink(true));
    let geneve = {
        let mut frame = wrapped(0, network(0)).to_vec();
        frame[36..38].copy_from_slice(&6081u16.to_be_bytes());
        frame
    };
    let elsewhere = {
        let mut frame = wrapped(0, network(0)).to_vec();
        frame[33] = 77;
        frame
    };
    let shown = |right: &mut Hypervisor, frame: &[u8]| {
        assert_eq!(right.hears([Frame::new(Bytes::copy_from_slice(frame))]), [0; 3]);
        core::iter::from_fn(|| right.eswitch.receive()).count()
    };
    assert_eq!((shown(&mut right, &geneve), shown(&mut right, &elsewhere)), (1, 1), "no protection is required");
    right.ask(EswitchCommand::ProtectAll(true));
    assert_eq!((shown(&mut right, &geneve), shown(&mut right, &elsewhere), right.counted()[0]), (0, 0, 2));
}

#[test]
fn host_deliveries_stay_due_while_frames_wait_for_the_port() {
    let delays = Delays { engine: Delays::default().engine, ..Delays::NONE };
    let own = NicConfig { mac: mac(2, 9).0, line_rate: Some(1_000_000), delays, ..NicConfig::default() };
    let quick = NicConfig { mac: mac(2, 0).0, delays: Delays::NONE, line_rate: None, ..NicConfig::default() };
    let (mut device, mut host, mut eswitch) = switched_nic(own.clone(), SwitchConfig::default());
    let (plugged, mut machine) = function(quick);
    device.plug(Vport::Virtual(0), FunctionConfig::new(mac(2, 0)), plugged);
    eswitch.command(EswitchCommand::Mode(SwitchMode::Switchdev)).expect("room");
    let rule = "tc filter add dev pf0vf0 ingress prio 1 flower action mirred egress redirect dev p0";
    let change = RuleFile::parse("test", rule).expect("a valid rule").changes;
    eswitch.command(EswitchCommand::Change(change)).expect("room");
    device.process(NOW);
    let frame = datagram(0, mac(2, 0));
    // More frames than the port's queue holds, so that frames wait.
    for _ in 0..64 {
        let packet = TxPacket { header: frame.iter().copied().collect(), ..TxPacket::default() };
        let _ = machine[0].transmit(NOW, packet, &NoRecords);
    }
    machine[0].flush(NOW);
    device.process(NOW);
    assert!(device.poll_frame(NOW).is_some());
    device.process(NOW);
    // At a megabit per second a frame takes half a millisecond.
    let port = device.next_event().expect("they wait");
    assert!(port > NOW + core::time::Duration::from_micros(50), "{port:?}");
    let mut arrival = datagram(0, mac(1, 0));
    arrival[..6].copy_from_slice(&mac(2, 9).0);
    device.receive_frame(NOW, Frame::new(arrival.into()));
    assert_eq!(device.next_event(), Some(NOW + own.delays.engine), "the host's frame is under way");
    device.process(NOW + own.delays.engine);
    assert!(host[0].receive(NOW + own.delays.engine).is_some());
}

/// An attempt to cross between tenants.
#[derive(Clone, Copy, Debug)]
enum CrossingAttempt {
    /// A packet of a protected network in plaintext.
    Plain { tenant: u8 },
    /// A packet of the other tenant's network under the sender's own SA.
    OtherNetwork { tenant: u8 },
    /// A packet without a tunnel under the sender's own SA.
    NoTunnel { tenant: u8 },
    /// A valid packet with a changed byte.
    Changed { tenant: u8, at: u8 },
    /// A virtual machine with the other's Ethernet address.
    Forged { tenant: u8 },
    /// A valid packet.
    Honest { tenant: u8 },
}

fn attempt() -> impl Strategy<Value = CrossingAttempt> {
    (0u8..6, 0u8..2, 0u8..60).prop_map(|(kind, tenant, at)| match kind {
        0 => CrossingAttempt::Plain { tenant },
        1 => CrossingAttempt::OtherNetwork { tenant },
        2 => CrossingAttempt::NoTunnel { tenant },
        3 => CrossingAttempt::Changed { tenant, at },
        4 => CrossingAttempt::Forged { tenant },
        _ => CrossingAttempt::Honest { tenant },
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// No attempt succeeds, in any order, and each attempt is counted by its kind.
    #[test]
    fn frames_do_not_cross_networks(attempts in prop::collection::vec(attempt(), 1..40)) {
        let (mut left, mut right) = (Hypervisor::new(1), Hypervisor::new(2));
        let (mut expected, mut spoofed) = ([0u64; 4], 0);
        for (number, attempt) in (1 << 20..).zip(attempts) {
            let mut heard = [0; 3];
            // Each attempt has its own sequence number, so that no packet is a replay.
            match attempt {
                CrossingAttempt::Plain { tenant } => {
                    expected[0] += 1;
                    prop_assert_eq!(right.hears([Frame::new(wrapped(tenant, network(tenant)))]), heard);
                }
                CrossingAttempt::OtherNetwork { tenant } => {
                    expected[1] += 1;
                    let frame = sealed(&wrapped(1 - tenant, network(1 - tenant)), tenant, number);
                    prop_assert_eq!(right.hears([Frame::new(frame.freeze())]), heard);
                }
                CrossingAttempt::NoTunnel { tenant } => {
                    expected[1] += 1;
                    let mut plain = wrapped(tenant, network(tenant)).to_vec();
                    plain[36..38].copy_from_slice(&9u16.to_be_bytes());
                    prop_assert_eq!(right.hears([Frame::new(sealed(&plain, tenant, number).freeze())]), heard);
                }
                CrossingAttempt::Changed { tenant, at } => {
                    let mut frame = sealed(&wrapped(tenant, network(tenant)), tenant, number);
                    // Behind the IV, so that the packet still belongs to the SA.
                    let place = 50 + usize::from(at);
                    frame[place] ^= 1;
                    expected[2] += 1;
                    heard[2] = 1; // as it was on the wire, for the host to count
                    prop_assert_eq!(right.hears([Frame::new(frame.freeze())]), heard);
                }
                CrossingAttempt::Forged { tenant } => {
                    spoofed += 1;
                    let frame = datagram(1 - tenant, mac(1, 1 - tenant));
                    prop_assert_eq!(left.sends(tenant.into(), &frame).len(), 0);
                }
                CrossingAttempt::Honest { tenant } => {
                    heard[usize::from(tenant)] = 1;
                    let frame = sealed(&wrapped(tenant, network(tenant)), tenant, number);
                    prop_assert_eq!(right.hears([Frame::new(frame.freeze())]), heard);
                }
            }
        }
        prop_assert_eq!(right.counted(), expected);
        prop_assert_eq!(left.counted(), [0, 0, 0, spoofed]);
    }
}

/// A port that always has another frame, with a forged address.
struct FloodingPort;

impl Port for FloodingPort {
    fn receive_frame(&mut self, _: Instant, _: Frame) {}

    fn poll_frame(&mut self, _: Instant) -> Option<Frame> {
        let mut frame = vec![0; 60];
        frame[..12].copy_from_slice(&[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 66]);
        Some(Frame::new(frame.into()))
    }

    fn process(&mut self, _: Instant) {}

    fn next_event(&self) -> Option<Instant> {
        Some(Instant::ZERO)
    }

    fn register_doorbell(&mut self, _: &Waker) {}
}

#[test]
fn an_endless_sender_does_not_starve_the_nic() {
    let (mut device, _host, _eswitch) = switched_nic(NicConfig::default(), SwitchConfig::default());
    device.attach(Vport::Virtual(0), FunctionConfig::new(Mac([2, 0, 0, 0, 0, 9])), FloodingPort);
    for turn in 1..=3 {
        device.process(Instant::ZERO);
        let mut set = CounterSet::default();
        device.count(&mut set);
        assert_eq!(set.value("eswitch_drop_spoofed"), 128 * turn, "64 for each of two functions a turn");
        assert_eq!(device.next_event(), Some(Instant::ZERO), "the flood continues");
    }
}

/// Random rules for virtual machines and the tunnel, one per line.
fn rules() -> impl Strategy<Value = String> {
    let of_machine = ((0u8..2, prop::option::of(0u8..2), prop::option::of(0u8..2)), (0u32..3, any::<bool>(), 0u8..4))
        // Tunnel rules may name any network, also unprotected and foreign ones.
        .prop_map(|((from, to, mirror), (number, spelled, end))| {
            let matching = to.map_or(String::new(), |to| format!(" dst_mac {}", mac(2, to)));
            let mirror = mirror.map_or(String::new(), |to| format!(" action mirred egress mirror dev pf0vf{to}"));
            let port = if spelled { " dst_port 4789" } else { "" };
            let set = format!(
                " action tunnel_key set src_ip {} dst_ip {} id {}{port} nocsum",
                address(1),
                address(2),
                network(0) + number
            );
            let end = match end {
                0 => "drop".into(),
                1 => format!("mirred egress redirect dev pf0vf{}", 1 - from),
                _ => "mirred egress redirect dev vxlan0".into(),
            };
            format!("dev pf0vf{from} ingress PRIO flower{matching}{mirror}{set} action {end}")
        });
    let of_tunnel = (prop::option::of(0u32..3), 0u8..2, any::<bool>()).prop_map(|(number, to, unset)| {
        let matching = number.map_or(String::new(), |number| format!(" enc_key_id {}", network(0) + number));
        let unset = if unset { " action tunnel_key unset" } else { "" };
        format!("dev vxlan0 ingress PRIO flower{matching}{unset} action mirred egress redirect dev pf0vf{to}")
    });
    prop::collection::vec(prop_oneof![of_machine, of_tunnel], 0..10).prop_map(|lines| {
        let line = |(number, line): (usize, &String)| {
            format!("tc filter add {}\n", line.replace("PRIO", &format!("prio {}", number + 1)))
        };
        lines.iter().enumerate().map(line).collect()
    })
}

/// Returns the network of a frame on the wire, and the tenant of its SA.
fn on_the_wire(frame: &[u8]) -> (u32, Option<u8>) {
    let at = |bytes: &[u8], udp: usize| u32::from_be_bytes([0, bytes[udp + 12], bytes[udp + 13], bytes[udp + 14]]);
    if frame[23] == 17 {
        return (at(frame, 34), None);
    }
    let mut opened = frame.to_vec();
    let found = EspAt::find(&opened).expect("ESP, or a tunnel in the clear");
    let tenant = (found.spi - 0x1000 - 16) as u8;
    let cipher = EspCipher::new(&sa(Direction::Receive, 1, 2, tenant));
    cipher.open(&mut opened, &found, found.low.into()).expect("under the tenant's own key");
    (at(&opened, found.esp + 16), Some(tenant))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// For any rules of machines and tunnel: a protected network leaves only under its own SA. Forged frames,
    /// plaintext, and packets of another SA reach no machine.
    #[test]
    fn no_rules_let_anything_cross((ours, theirs) in (rules(), rules()), attempts in prop::collection::vec(attempt(), 1..20)) {
        let (mut left, mut right) = (Hypervisor::new(1), Hypervisor::new(2));
        for (side, lines) in [(&mut left, ours), (&mut right, theirs)] {
            let changes = RuleFile::parse("drawn", &lines).expect("good lines").changes;
            // The rules replace the initial ones, including the correct ones.
            let rules = changes.into_iter().filter_map(|change| match change {
                Change::Add(rule) => Some(rule),
                _ => None,
            });
            side.ask(EswitchCommand::Replace(rules.collect()));
        }
        let (mut expected, mut spoofed) = ([0u64; 4], 0);
        for (number, attempt) in (1 << 20..).zip(attempts) {
            // Rules may send an inner frame to either machine, so only the sum is checked.
            let machines = |heard: [usize; 3]| heard[0] + heard[1];
            match attempt {
                CrossingAttempt::Plain { tenant } => {
                    expected[0] += 1;
                    prop_assert_eq!(machines(right.hears([Frame::new(wrapped(tenant, network(tenant)))])), 0);
                }
                CrossingAttempt::OtherNetwork { tenant } => {
                    expected[1] += 1;
                    let frame = sealed(&wrapped(1 - tenant, network(1 - tenant)), tenant, number);
                    prop_assert_eq!(machines(right.hears([Frame::new(frame.freeze())])), 0);
                }
                CrossingAttempt::NoTunnel { tenant } => {
                    expected[1] += 1;
                    let mut plain = wrapped(tenant, network(tenant)).to_vec();
                    plain[36..38].copy_from_slice(&9u16.to_be_bytes());
                    prop_assert_eq!(machines(right.hears([Frame::new(sealed(&plain, tenant, number).freeze())])), 0);
                }
                CrossingAttempt::Changed { tenant, at } => {
                    expected[2] += 1;
                    let mut frame = sealed(&wrapped(tenant, network(tenant)), tenant, number);
                    frame[50 + usize::from(at)] ^= 1;
                    prop_assert_eq!(machines(right.hears([Frame::new(frame.freeze())])), 0);
                }
                CrossingAttempt::Forged { tenant } => {
                    spoofed += 1;
                    prop_assert_eq!(left.sends(tenant.into(), &datagram(1 - tenant, mac(1, 1 - tenant))).len(), 0);
                    prop_assert_eq!(machines(left.hears([])), 0);
                }
                CrossingAttempt::Honest { tenant } => {
                    // If anything leaves, its network must belong to the tenant of its SA.
                    for frame in left.sends(tenant.into(), &datagram(tenant, mac(1, tenant))) {
                        let (network_seen, under) = on_the_wire(&frame.data);
                        let owner = (0..2).find(|tenant| network(*tenant) == network_seen);
                        prop_assert_eq!(owner, under);
                    }
                    let _ = left.hears([]);
                }
            }
        }
        prop_assert_eq!(right.counted(), expected);
        prop_assert_eq!(left.counted(), [0, 0, 0, spoofed]);
    }
}
