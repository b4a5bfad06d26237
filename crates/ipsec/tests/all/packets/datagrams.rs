//! Datagrams of all sizes arrive whole, under every kind of protection: the host or the NIC fragments them if
//! necessary.

use super::rig::{NOW, SecureEnd, address, sa};
use super::{KINDS, MODES};
use bytes::Bytes;
use core::net::{IpAddr, SocketAddr};
use nic_sim::NicConfig;
use nic_sim::frame::Frame;
use offload_api::fragmentation::fragment;
use offload_api::{
    Action, Direction, DontFragment, EspMode, OffloadKind, Policy, SaParams, Selector, Template, TxPacket,
};
use offload_base::Seed;
use offload_host_stack::{Config, Ipv6Config, Stack};

/// A host with a stack.
struct DatagramHost {
    end: SecureEnd,
    stack: Stack,
}

impl DatagramHost {
    fn new(number: u8, end: SecureEnd) -> DatagramHost {
        let mac = |number| [2, 0, 0, 0, 0, number];
        let (own, other) = ([10, 0, 0, number], 3 - number);
        let IpAddr::V6(six) = address(true, number) else { unreachable!("IPv6 was asked for") };
        let config = Config::new(own.into(), mac(number), Seed(1))
            .with_ipv6(Ipv6Config::new(six))
            .with_neighbour(address(false, other), mac(other))
            .with_neighbour(address(true, other), mac(other));
        DatagramHost { end, stack: Stack::new(config) }
    }

    fn poll(&mut self) -> Vec<Frame> {
        let mut frames = Vec::new();
        loop {
            while self.stack.poll(NOW, &mut self.end.secure) {}
            let left = self.end.frames();
            if left.is_empty() {
                return frames;
            }
            frames.extend(left);
        }
    }

    fn receive(&mut self, frames: Vec<Frame>) -> Vec<Frame> {
        use nic_sim::wire::Port;
        frames.into_iter().for_each(|frame| self.end.device.receive_frame(NOW, frame));
        self.end.device.process(NOW);
        self.poll()
    }
}

/// The kind of connection between the hosts: inner and outer family, mode, and kind of offload.
#[derive(Clone, Copy, Debug)]
struct DatagramPath {
    mode: EspMode,
    inner_ipv6: bool,
    outer_ipv6: bool,
    kind: OffloadKind,
    dont_fragment: DontFragment,
}

impl DatagramPath {
    fn all() -> impl Iterator<Item = DatagramPath> {
        let modes = MODES.into_iter().flat_map(|mode| [false, true].map(|inner_ipv6| (mode, inner_ipv6)));
        let outer = |(mode, inner_ipv6): (EspMode, bool)| {
            let outers: &[bool] = if mode == EspMode::Tunnel { &[false, true] } else { &[inner_ipv6] };
            outers.iter().map(move |outer_ipv6| (mode, inner_ipv6, *outer_ipv6)).collect::<Vec<_>>()
        };
        modes.flat_map(outer).flat_map(|(mode, inner_ipv6, outer_ipv6)| {
            let bits = [DontFragment::Copy, DontFragment::Set, DontFragment::Clear];
            KINDS.into_iter().flat_map(move |kind| {
                bits.map(|dont_fragment| DatagramPath { mode, inner_ipv6, outer_ipv6, kind, dont_fragment })
            })
        })
    }

    fn template(&self, from: u8) -> Template {
        let outer = |number| address(self.outer_ipv6, number);
        match self.mode {
            EspMode::Transport => Template::transport(1),
            EspMode::Tunnel => Template::tunnel(outer(from), outer(3 - from), 1),
        }
    }

    /// Returns two hosts that protect `protocol` of the inner family and bypass all other packets.
    fn hosts(&self, protocol: u8) -> [DatagramHost; 2] {
        self.hosts_that_protect(Selector { protocol: Some(protocol), ..Selector::ANY })
    }

    /// Returns two hosts that protect the packets matched by `sent`, and the replies.
    fn hosts_that_protect(&self, sent: Selector) -> [DatagramHost; 2] {
        [1, 2].map(|number| {
            let mut end = SecureEnd::with(number, NicConfig::default());
            for (direction, from) in [(Direction::Transmit, number), (Direction::Receive, 3 - number)] {
                let selector = if from == 1 { sent } else { sent.reversed() };
                let action = Action::Protect(self.template(from));
                end.keying().add_policy(Policy { direction, selector, priority: 0, action }).unwrap();
                let params = sa(direction, self.kind, self.mode, self.outer_ipv6);
                let outer = |number| address(self.outer_ipv6, number);
                let params = SaParams {
                    source: outer(from),
                    destination: outer(3 - from),
                    spi: 0x1000 + u32::from(from),
                    dont_fragment: self.dont_fragment,
                    key: offload_api::EspKey::new(offload_api::EspSuite::Aes128Gcm, &[from; 20]).unwrap(),
                    ..params
                };
                assert_eq!(end.keying().add_sa(NOW, params).unwrap().refused, None);
                end.keying().set_default(direction, true);
            }
            end.drain();
            DatagramHost::new(number, end)
        })
    }
}

/// Returns sizes around every limit, and some beyond.
fn sizes() -> impl Iterator<Item = usize> {
    [0, 1, 8, 600, 1199, 1200, 1201]
        .into_iter()
        .chain((1360..=1480).step_by(3))
        .chain([1452, 1453, 1472, 1473, 2000, 3000, 4001, 9000])
}

fn only_esp(frames: &[Frame]) -> bool {
    frames.iter().all(|frame| !frame.data.windows(24).any(|part| part == [b'S'; 24]))
}

#[test]
fn datagrams_of_all_sizes_arrive() {
    for way in DatagramPath::all() {
        let [mut from, mut to] = way.hosts(17);
        from.stack.bind_udp(Some(5000)).unwrap();
        to.stack.bind_udp(Some(53)).unwrap();
        for bytes in sizes() {
            let there = SocketAddr::new(address(way.inner_ipv6, 2), 53);
            let data = Bytes::from(vec![b'S'; bytes]);
            from.stack.send_datagram(NOW, 5000, there, data.clone(), &from.end.secure).unwrap();
            let frames = from.poll();
            assert!(!frames.is_empty() && only_esp(&frames), "{bytes} bytes, {way:?}");
            assert!(frames.iter().all(|frame| frame.data.len() <= 1514));
            to.receive(frames);
            let arrived = to.stack.take_datagram(53).map(|datagram| datagram.data.freeze());
            assert_eq!(arrived, Some(data), "{bytes} bytes, {way:?}");
        }
        assert_eq!(from.end.counted("XfrmOutStateModeError") + from.end.counted("XfrmOutError"), 0);
    }
}

/// Fragments show no ports, and the policy still applies to them.
#[test]
fn datagrams_of_all_sizes_arrive_with_port_policies() {
    for way in DatagramPath::all() {
        let dns = Selector { protocol: Some(17), destination_port: Some(53), ..Selector::ANY };
        let [mut from, mut to] = way.hosts_that_protect(dns);
        from.stack.bind_udp(Some(5000)).unwrap();
        to.stack.bind_udp(Some(53)).unwrap();
        for bytes in [8, 1000, 1380, 1400, 1410, 1420, 1440, 1452, 1472, 3000] {
            let there = SocketAddr::new(address(way.inner_ipv6, 2), 53);
            let data = Bytes::from(vec![b'S'; bytes]);
            from.stack.send_datagram(NOW, 5000, there, data.clone(), &from.end.secure).unwrap();
            let frames = from.poll();
            assert!(!frames.is_empty() && only_esp(&frames), "{bytes} bytes, {way:?}");
            to.receive(frames);
            let arrived = to.stack.take_datagram(53).map(|datagram| datagram.data.freeze());
            assert_eq!(arrived, Some(data), "{bytes} bytes, {way:?}");
        }
    }
}

/// Returns an echo request of host 1 with `bytes` of data, fragmented for an MTU of 1500 if necessary.
fn echo_request(ipv6: bool, bytes: usize) -> Vec<TxPacket> {
    let protocol = if ipv6 { 58 } else { 1 };
    let mut packet = super::rig::datagram(ipv6, 53, &vec![b'S'; bytes], u16::MAX).remove(0);
    packet.header[if ipv6 { 20 } else { 23 }] = protocol;
    if !ipv6 {
        offload_formats::checksum::fill_ipv4_header(&mut packet.header[14..]);
    }
    let mut message = packet.fragments[0].to_vec();
    message[..8].copy_from_slice(&[if ipv6 { 128 } else { 8 }, 0, 0, 0, 0, 1, 0, 1]);
    let mut sum = match ipv6 {
        true => offload_formats::InternetSum::pseudo_header(58, address(true, 1), address(true, 2), message.len()),
        false => offload_formats::InternetSum::default(),
    };
    sum.add(&message);
    message[2..4].copy_from_slice(&sum.finish().to_be_bytes());
    packet.fragments = [Bytes::from(message)].into_iter().collect();
    match packet.header.len() - 14 + packet.payload_len() > 1500 {
        true => fragment(packet, 14, 1500, 77).unwrap(),
        false => vec![packet],
    }
}

#[test]
fn echoes_of_all_sizes_are_answered() {
    for way in DatagramPath::all() {
        let [mut from, mut to] = way.hosts(if way.inner_ipv6 { 58 } else { 1 });
        for bytes in sizes().filter(|bytes| *bytes >= 24) {
            let requests = echo_request(way.inner_ipv6, bytes);
            let frames: Vec<Frame> = requests.into_iter().flat_map(|request| from.end.send(request)).collect();
            assert!(!frames.is_empty() && only_esp(&frames), "{bytes} bytes, {way:?}");
            let answers = to.receive(frames);
            assert!(!answers.is_empty() && only_esp(&answers), "{bytes} bytes, {way:?}");
            let before = from.end.counted("ipsec_rx_reasm_fails");
            let plain = from.end.receive(answers);
            assert_eq!(from.end.counted("ipsec_rx_reasm_fails"), before);
            let echoed: usize = plain.iter().map(|frame| frame.iter().filter(|byte| **byte == b'S').count()).sum();
            assert!(echoed >= bytes, "{echoed} of {bytes} bytes, {way:?}");
        }
    }
}

#[test]
fn datagrams_arrive_after_the_path_mtu_shrinks() {
    for way in DatagramPath::all().filter(|way| way.inner_ipv6) {
        let [mut from, mut to] = way.hosts(17);
        from.stack.bind_udp(Some(5000)).unwrap();
        to.stack.bind_udp(Some(53)).unwrap();
        let there = SocketAddr::new(address(true, 2), 53);
        let send = |from: &mut DatagramHost, bytes: usize| {
            from.stack.send_datagram(NOW, 5000, there, vec![b'S'; bytes].into(), &from.end.secure).unwrap();
            from.poll()
        };
        let large = send(&mut from, 1300).remove(0);
        from.receive(vec![super::path_mtu::too_big(&large.data, 1280)]);
        assert_eq!(from.end.counted("ipsec_rx_path_mtu"), 1, "{way:?}");
        for bytes in [1000, 1170, 1200, 1212, 1232, 1240, 1300, 1452, 3000] {
            let frames = send(&mut from, bytes);
            assert!(frames.iter().all(|frame| frame.data.len() <= 1294), "{bytes} bytes, {way:?}");
            to.receive(frames);
            assert_eq!(to.stack.take_datagram(53).map(|datagram| datagram.data.len()), Some(bytes), "{way:?}");
        }
    }
}

#[test]
fn tunnel_fragments_of_two_packets_are_not_joined() {
    let way = DatagramPath {
        mode: EspMode::Tunnel,
        inner_ipv6: true,
        outer_ipv6: true,
        kind: OffloadKind::None,
        dont_fragment: DontFragment::Copy,
    };
    let [mut from, mut to] = way.hosts(17);
    to.stack.bind_udp(Some(53)).unwrap();
    let datagram = |byte: u8| super::rig::datagram(true, 53, &[byte; 1440], 1500).remove(0);
    let frames: Vec<Vec<Frame>> = [1, 2].map(|byte| from.end.send(datagram(byte))).into();
    assert_eq!(frames[0].len(), 2);
    // All fragments of one packet arrive between the halves of the other.
    let order = [&frames[0][..1], &frames[1][..], &frames[0][1..]].concat();
    to.receive(order);
    let mut arrived: Vec<Vec<u8>> =
        core::iter::from_fn(|| to.stack.take_datagram(53)).map(|datagram| datagram.data.to_vec()).collect();
    arrived.sort();
    assert_eq!(arrived, [vec![1; 1440], vec![2; 1440]]);
}

/// After ESP, fragments are identified by addresses, protocol and identification, because only the first fragment has
/// the SPI.
#[test]
fn esp_fragments_of_two_sas_are_not_joined() {
    for ipv6 in [false, true] {
        let mut ends = [SecureEnd::new(1), SecureEnd::new(2)];
        for (port, name) in [(53, 1), (54, 2)] {
            let selector = Selector { protocol: Some(17), destination_port: Some(port), ..Selector::ANY };
            for (end, direction) in ends.iter_mut().zip([Direction::Transmit, Direction::Receive]) {
                let action = Action::Protect(Template::transport(name));
                end.keying().add_policy(Policy { direction, selector, priority: 0, action }).unwrap();
                let key = offload_api::EspKey::new(offload_api::EspSuite::Aes128Gcm, &[name as u8; 20]).unwrap();
                let params = sa(direction, OffloadKind::None, EspMode::Transport, ipv6);
                end.keying().add_sa(NOW, SaParams { spi: 0x1000 + name, reqid: name, key, ..params }).unwrap();
            }
        }
        let [mut from, mut to] = ends;
        let frames = [53, 54].map(|port| {
            let packets = super::rig::datagram(ipv6, port, &vec![port as u8; if ipv6 { 1452 } else { 1472 }], 1500);
            packets.into_iter().flat_map(|packet| from.send(packet)).collect::<Vec<_>>()
        });
        assert_eq!(frames.each_ref().map(Vec::len), [2, 2]);
        // All fragments of one packet arrive between the halves of the other.
        let order = [&frames[0][..1], &frames[1][..], &frames[0][1..]].concat();
        assert_eq!(to.receive(order).len(), 2, "IPv6: {ipv6}");
    }
}
