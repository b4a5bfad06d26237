//! ICMP messages quote the packet that they answer. A quote of a protected packet must not leave unprotected.

use super::KINDS;
use super::rig::{NOW, SecureEnd, address, datagram, sa};
use bytes::Bytes;
use core::net::IpAddr;
use core::time::Duration;
use nic_sim::frame::Frame;
use nic_sim::wire::Port;
use offload_api::{
    Action, Direction, EspKey, EspMode, EspSuite, OffloadKind, Policy, Protection, RxMeta, RxPacket, SaParams,
    Selector, Template, TxPacket,
};
use offload_base::{Instant, Seed};
use offload_host_stack::{Config, Ipv6Config, Stack};

const SECRET: &[u8] = b"attack at dawn, and tell nobody about it";

/// Reasons for an ICMP answer.
#[derive(Clone, Copy, Debug)]
enum Cause {
    Echo,
    Port,
    Protocol,
    /// A fragment is missing.
    Incomplete,
}

/// The protection that applies to the answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReplyProtection {
    Plain,
    /// Authenticated but not encrypted.
    Authentic,
    Secret,
}

fn stack() -> Stack {
    let IpAddr::V6(six) = address(true, 2) else { unreachable!("IPv6 was asked for") };
    let config = Config::new([10, 0, 0, 2].into(), [2, 0, 0, 0, 0, 2], Seed(1))
        .with_ipv6(Ipv6Config::new(six))
        .with_neighbour(address(false, 1), [2, 0, 0, 0, 0, 1])
        .with_neighbour(address(true, 1), [2, 0, 0, 0, 0, 1]);
    Stack::new(config)
}

/// Returns a packet of host 1 with `protocol`, and `text` after its IP header.
fn packet(ipv6: bool, protocol: u8, text: Vec<u8>) -> TxPacket {
    let mut packet = datagram(ipv6, 9, &vec![0; text.len() - 8], u16::MAX).remove(0);
    packet.header[if ipv6 { 20 } else { 23 }] = protocol;
    if !ipv6 {
        offload_formats::checksum::fill_ipv4_header(&mut packet.header[14..]);
    }
    packet.fragments = [Bytes::from(text)].into_iter().collect();
    packet
}

fn cause(cause: Cause, ipv6: bool) -> Vec<TxPacket> {
    match cause {
        Cause::Port => datagram(ipv6, 9, SECRET, 1500),
        Cause::Protocol => vec![packet(ipv6, 253, SECRET.to_vec())],
        Cause::Incomplete => datagram(ipv6, 9, &[SECRET, &[0; 1400]].concat(), 1300),
        Cause::Echo => {
            let mut message = [&[if ipv6 { 128 } else { 8 }, 0, 0, 0, 0, 1, 0, 1][..], SECRET].concat();
            let mut sum = match ipv6 {
                true => {
                    offload_formats::InternetSum::pseudo_header(58, address(true, 1), address(true, 2), message.len())
                }
                false => offload_formats::InternetSum::default(),
            };
            sum.add(&message);
            message[2..4].copy_from_slice(&sum.finish().to_be_bytes());
            vec![packet(ipv6, if ipv6 { 58 } else { 1 }, message)]
        }
    }
}

/// Returns host 2's answers to packets that arrive by an SA, if its own packets get `out`.
fn answers(of: Cause, ipv6: bool, mode: EspMode, kind: OffloadKind, out: ReplyProtection) -> (Vec<Frame>, u64) {
    let (mut from, mut to) = (SecureEnd::new(1), SecureEnd::new(2));
    let template = |from: u8| match mode {
        EspMode::Transport => Template::transport(1),
        EspMode::Tunnel => Template::tunnel(address(ipv6, from), address(ipv6, 3 - from), 1),
    };
    for (end, direction) in [(&mut from, Direction::Transmit), (&mut to, Direction::Receive)] {
        let action = Action::Protect(template(1));
        end.keying().add_policy(Policy { direction, selector: Selector::ANY, priority: 0, action }).unwrap();
        end.keying()
            .add_sa(
                NOW,
                sa(direction, if direction == Direction::Receive { kind } else { OffloadKind::None }, mode, ipv6),
            )
            .unwrap();
        end.drain();
    }
    // The reply's protection is independent of the request's.
    let suite = match out {
        ReplyProtection::Plain => None,
        ReplyProtection::Authentic => Some(EspSuite::Aes128Gmac),
        ReplyProtection::Secret => Some(EspSuite::Aes128Gcm),
    };
    let action = suite.map_or(Action::Bypass, |_| Action::Protect(template(2)));
    to.keying()
        .add_policy(Policy { direction: Direction::Transmit, selector: Selector::ANY, priority: 0, action })
        .unwrap();
    if let Some(suite) = suite {
        let params = SaParams {
            source: address(ipv6, 2),
            destination: address(ipv6, 1),
            key: EspKey::new(suite, &[9; 20]).unwrap(),
            ..sa(Direction::Transmit, OffloadKind::None, mode, ipv6)
        };
        to.keying().add_sa(NOW, params).unwrap();
    }
    to.drain();
    let mut stack = stack();
    let mut frames: Vec<Frame> = cause(of, ipv6).into_iter().flat_map(|packet| from.send(packet)).collect();
    // With only the first fragment, reassembly times out, which is one of the causes.
    frames.truncate(1);
    for frame in frames {
        assert!(!shows(&frame), "protected on its way there");
        to.device.receive_frame(NOW, frame);
    }
    to.device.process(NOW);
    let mut frames = Vec::new();
    // The second poll is after the reassembly timeout.
    for now in [NOW, NOW + Duration::from_secs(61)] {
        frames.extend(poll(&mut to, &mut stack, now));
    }
    let counters = stack.counters();
    let answered = counters.icmp_out_echo_replies
        + counters.icmp_out_unreachables
        + counters.icmp_out_time_exceeded
        + counters.icmp6_out_echo_replies
        + counters.icmp6_out_unreachables
        + counters.icmp6_out_time_exceeded
        + counters.icmp6_out_parameter_problems;
    assert_eq!(answered, 1, "{of:?}, IPv6: {ipv6}, {mode:?}, {kind:?}, {out:?}");
    (frames, to.counted("ipsec_tx_icmp_unprotected"))
}

fn poll(end: &mut SecureEnd, stack: &mut Stack, now: Instant) -> Vec<Frame> {
    while stack.poll(now, &mut end.secure) {}
    end.frames()
}

fn shows(frame: &Frame) -> bool {
    frame.data.windows(14).any(|part| part == &SECRET[..14])
}

#[test]
fn protected_packet_is_not_quoted_in_clear() {
    let causes = [
        (Cause::Echo, &[false, true][..]),
        (Cause::Port, &[false, true]),
        (Cause::Protocol, &[false, true]),
        (Cause::Incomplete, &[false, true]),
    ];
    for (cause, families) in causes {
        for (ipv6, mode) in families.iter().flat_map(|ipv6| super::MODES.map(|mode| (*ipv6, mode))) {
            // Transport mode carries whole packets only, so no fragment arrives by it.
            if matches!((cause, mode), (Cause::Incomplete, EspMode::Transport)) {
                continue;
            }
            for kind in KINDS {
                for out in [ReplyProtection::Plain, ReplyProtection::Authentic, ReplyProtection::Secret] {
                    let what = format!("{cause:?}, IPv6: {ipv6}, {mode:?}, {kind:?}, {out:?}");
                    let (frames, kept) = answers(cause, ipv6, mode, kind, out);
                    assert!(!frames.iter().any(shows), "{what}");
                    // Only a reply that is encrypted again may quote an encrypted packet.
                    let leaves = u64::from(out == ReplyProtection::Secret);
                    assert_eq!((frames.len() as u64, kept), (leaves, 1 - leaves), "{what}");
                }
            }
        }
    }
}

#[test]
fn packet_in_clear_is_answered_in_clear() {
    for ipv6 in [false, true] {
        let mut to = SecureEnd::new(2);
        for direction in [Direction::Transmit, Direction::Receive] {
            to.keying().set_default(direction, true);
        }
        let mut stack = stack();
        for packet in cause(Cause::Port, ipv6) {
            to.device.receive_frame(NOW, super::rig::frame(&packet));
        }
        to.device.process(NOW);
        assert!(poll(&mut to, &mut stack, NOW).iter().all(shows), "IPv6: {ipv6}");
        assert_eq!(to.counted("ipsec_tx_icmp_unprotected"), 0);
    }
}

#[test]
fn plain_and_protected_fragments_are_not_joined() {
    for ipv6 in [false, true] {
        let (mut stack, mut device) = (stack(), SecureEnd::new(2));
        stack.bind_udp(Some(9)).unwrap();
        let pieces = datagram(ipv6, 9, &[SECRET, &[0; 1400]].concat(), 1300);
        let mut receive = |piece: usize, protection| {
            let frame = super::rig::frame(&pieces[piece]).data;
            let meta = RxMeta { protection, ..RxMeta::default() };
            stack.receive(NOW, RxPacket::new(frame[..].into(), meta), &mut device.secure);
            stack.take_datagram(9).is_some()
        };
        assert!(!receive(0, Protection::Secret) && !receive(1, Protection::None), "IPv6: {ipv6}");
        assert!(receive(1, Protection::Secret) && receive(0, Protection::None), "each with its own");
    }
}
