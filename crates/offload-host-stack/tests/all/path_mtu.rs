//! Tests of path MTU discovery, with real and forged ICMP errors.

use crate::packets::packet;
use crate::pair::{ADDRESS, FULL, HostPair, PORT, PairConfig, TCP};
use core::net::IpAddr;
use core::time::Duration;
use offload_host_stack::{ConnectionError, TcpState};
use smoltcp::wire::{Icmpv4Message, Icmpv4Packet, Icmpv6Packet, IpProtocol, Ipv4Packet};
use std::sync::{Arc, Mutex};

/// The content of an ICMP error: a smaller MTU, a closed port, or no route.
#[derive(Clone, Copy)]
enum ReportedError {
    TooLarge(u16),
    NoPort,
    NoRoute,
}

/// Returns an ICMP error about `frame` from side 0, as side 0 receives it.
fn unreachable(says: ReportedError, frame: &[u8]) -> Vec<u8> {
    let mut answer = if crate::OVER_SIX { unreachable_six(says, frame) } else { unreachable_four(says, frame) };
    answer[..12].rotate_left(6); // from side 1 to side 0
    answer
}

fn unreachable_six(says: ReportedError, frame: &[u8]) -> Vec<u8> {
    let (kind, code, mtu) = match says {
        ReportedError::TooLarge(mtu) => (2, 0, mtu),
        ReportedError::NoPort => (1, 4, 0),
        ReportedError::NoRoute => (1, 0, 0),
    };
    let mut message = vec![kind, code, 0, 0, 0, 0];
    message.extend_from_slice(&mtu.to_be_bytes());
    message.extend_from_slice(&frame[14..frame.len().min(14 + 1232)]);
    let [IpAddr::V6(to), IpAddr::V6(from)] = ADDRESS else { panic!("the addresses must be IPv6") };
    Icmpv6Packet::new_unchecked(&mut message[..]).fill_checksum(&from, &to);
    packet(from.into(), to.into(), IpProtocol::Icmpv6, &message)
}

fn unreachable_four(says: ReportedError, frame: &[u8]) -> Vec<u8> {
    let (code, mtu) = match says {
        ReportedError::TooLarge(mtu) => (4, mtu),
        ReportedError::NoPort => (3, 0),
        ReportedError::NoRoute => (1, 0),
    };
    let mut message = vec![3, code, 0, 0, 0, 0];
    message.extend_from_slice(&mtu.to_be_bytes());
    message.extend_from_slice(&frame[14..frame.len().min(14 + 28)]);
    let mut icmp = Icmpv4Packet::new_unchecked(&mut message[..]);
    icmp.set_msg_type(Icmpv4Message::DstUnreachable);
    icmp.fill_checksum();
    packet(ADDRESS[1], ADDRESS[0], IpProtocol::Icmp, &message)
}

/// Returns the frame with its TCP sequence number changed by `by`.
fn with_other_seq(frame: &[u8], by: u32) -> Vec<u8> {
    let mut frame = frame.to_vec();
    let seq = u32::from_be_bytes(frame[TCP + 4..TCP + 8].try_into().unwrap()).wrapping_add(by);
    frame[TCP + 4..TCP + 8].copy_from_slice(&seq.to_be_bytes());
    frame
}

#[test]
fn path_mtu_is_found_at_once_without_window_reduction() {
    // Reported MTU, forwarded length, and the largest packet sent in the end.
    let of_four = [(1000, 1000, 1000), (0, 1492, 1492), (0, 1400, 1006), (300, 300, 552)];
    // IPv6 routers always report the MTU, and always forward 1280 bytes.
    let of_six = [(1400, 1400, 1400), (1281, 1281, 1281), (1280, 1280, 1280), (1492, 1492, 1492)];
    for (told, forwards, largest) in if crate::OVER_SIX { of_six } else { of_four } {
        for tso in [65_536, 0] {
            let (mut pair, ids) = HostPair::connected(&PairConfig { tso, ..PairConfig::default() });
            let answers = Arc::new(Mutex::new(Vec::new()));
            let sizes = Arc::new(Mutex::new((0, 0u32)));
            let (told_to, seen) = (answers.clone(), sizes.clone());
            pair.wire.filter = Some(Box::new(move |from, frame| {
                let length = frame.len() as u16 - 14;
                let whole = crate::OVER_SIX || Ipv4Packet::new_unchecked(&frame[14..]).dont_frag();
                let stopped = from == 0 && length > forwards && whole;
                if stopped {
                    told_to.lock().unwrap().push(unreachable(ReportedError::TooLarge(told), frame));
                } else if from == 0 {
                    let mut seen = seen.lock().unwrap();
                    seen.0 = seen.0.max(length);
                    seen.1 += u32::from(!whole);
                }
                stopped
            }));
            let data: Vec<u8> = crate::transfer::pattern(pair.seed, 300_000);
            pair.stacks[0].send_copy(ids[0], &data);
            let window = pair.stacks[0].stats(ids[0]).congestion_window;
            let mut read = Vec::new();
            pair.run_until(|pair| {
                for answer in answers.lock().unwrap().drain(..) {
                    pair.nics[0].port().deliver(&answer);
                }
                pair.read(1, ids[1], &mut read);
                read.len() == data.len()
            });
            assert!(read == data);
            let (seen, fragmentable) = *sizes.lock().unwrap();
            assert_eq!(seen, largest, "told {told}, forwards {forwards}");
            assert_eq!(fragmentable > 0, told == 300, "DF is cleared only below the minimum MTU");
            assert_eq!(pair.stacks[0].counters().timeouts, 0);
            let stats = pair.stacks[0].stats(ids[0]);
            assert_eq!(stats.slow_start_threshold, u64::MAX, "no congestion response");
            assert!(stats.congestion_window * 2 > window);
            // The next connection uses the path MTU, which expires after ten minutes.
            let next = pair.stacks[0].connect(pair.now, None, (ADDRESS[1], PORT).into()).unwrap();
            pair.run_for(Duration::from_secs(1));
            assert!(pair.stacks[0].stats(next).segment_size <= usize::from(largest) + 14 - TCP - 32);
            pair.run_for(Duration::from_secs(601));
            pair.stacks[0].send_copy(next, b"again");
            pair.stacks[0].push(next);
            pair.run_for(Duration::from_millis(1));
            assert_eq!(pair.stacks[0].stats(next).segment_size, FULL);
        }
    }
}

#[test]
fn report_about_a_packet_not_in_flight_is_ignored() {
    let (mut pair, ids) = HostPair::connected(&PairConfig::default());
    let sent = Arc::new(Mutex::new(Vec::new()));
    let copy = sent.clone();
    pair.wire.filter = Some(Box::new(move |from, frame| {
        if from == 0 && frame.len() > 1000 {
            copy.lock().unwrap().push(frame.to_vec());
        }
        false
    }));
    pair.stacks[0].send_copy(ids[0], &[1; 20_000]);
    pair.run_now();
    let frame = sent.lock().unwrap()[0].clone();
    for by in [u32::MAX, 20_000, 0x8000_0000] {
        pair.nics[0].port().deliver(&unreachable(ReportedError::TooLarge(NARROW_MTU), &with_other_seq(&frame, by)));
        pair.run_now();
    }
    // The MTU is not smaller than the packet; or, in IPv6, below the minimum MTU.
    let nonsense = if crate::OVER_SIX { [1500, 1279] } else { [1500, 1500] };
    for told in nonsense {
        pair.nics[0].port().deliver(&unreachable(ReportedError::TooLarge(told), &frame));
        pair.run_now();
    }
    let counters = pair.stacks[0].counters();
    assert_eq!((counters.stray_icmp_errors, counters.paths_narrowed), (5, 0));
    assert_eq!(pair.stacks[0].stats(ids[0]).segment_size, FULL);
    pair.nics[0].port().deliver(&unreachable(ReportedError::TooLarge(NARROW_MTU), &frame));
    pair.run_now();
    assert_eq!(pair.stacks[0].stats(ids[0]).segment_size, FULL - usize::from(1500 - NARROW_MTU));
}

#[test]
fn icmp_error_ends_only_an_opening_connection() {
    for (says, error) in
        [(ReportedError::NoPort, ConnectionError::Refused), (ReportedError::NoRoute, ConnectionError::Unreachable)]
    {
        let mut pair = HostPair::new(&PairConfig::default());
        let id = pair.stacks[0].connect(pair.now, None, (ADDRESS[1], PORT).into()).unwrap();
        while pair.stacks[0].poll(pair.now, &mut pair.nics[0]) {}
        let syn = pair.nics[0].port().drain().pop_front().unwrap();
        pair.nics[0].port().deliver(&unreachable(says, &with_other_seq(&syn, 1)));
        pair.run_now();
        assert_eq!(pair.stacks[0].state(id), TcpState::SynSent);
        pair.nics[0].port().deliver(&unreachable(says, &syn));
        pair.run_now();
        assert_eq!(pair.stacks[0].error(id), Some(error));

        let (mut pair, ids) = HostPair::connected(&PairConfig::default());
        pair.stacks[0].send_copy(ids[0], &[1; 1000]);
        pair.stacks[0].push(ids[0]);
        while pair.stacks[0].poll(pair.now, &mut pair.nics[0]) {}
        let frame = pair.nics[0].port().drain().pop_front().unwrap();
        pair.nics[0].port().deliver(&unreachable(says, &frame));
        pair.run_for(Duration::from_secs(1));
        assert_eq!(pair.stacks[0].state(ids[0]), TcpState::Established);
    }
}

#[test]
fn reports_raise_no_mtu_and_datagrams_affect_no_segments() {
    let (mut pair, ids) = HostPair::connected(&PairConfig::default());
    let port = pair.stacks[0].bind_udp(None).unwrap();
    let to = (ADDRESS[1], PORT).into();
    let datagram = |pair: &mut HostPair| {
        pair.stacks[0].send_datagram(pair.now, port, to, vec![5; 1400].into(), &pair.nics[0]).unwrap();
        while pair.stacks[0].poll(pair.now, &mut pair.nics[0]) {}
        pair.nics[0].port().drain()
    };
    // First, a report about a datagram must not affect segments.
    let sent = datagram(&mut pair);
    assert_eq!(sent.len(), 1);
    pair.nics[0].port().deliver(&unreachable(ReportedError::TooLarge(NARROW_MTU), &sent[0]));
    pair.run_for(Duration::from_secs(1));
    assert_eq!(datagram(&mut pair).len(), 2, "the report applies to datagrams");
    let segment = |pair: &mut HostPair| {
        pair.stacks[0].send_copy(ids[0], &[1; 2000]);
        while pair.stacks[0].poll(pair.now, &mut pair.nics[0]) {}
        pair.nics[0].port().drain().pop_front().unwrap()
    };
    let frame = segment(&mut pair);
    assert_eq!(pair.stacks[0].stats(ids[0]).segment_size, FULL);

    pair.nics[0].port().deliver(&unreachable(ReportedError::TooLarge(NARROW_MTU), &frame));
    pair.run_for(Duration::from_secs(1));
    let narrow = FULL - usize::from(1500 - NARROW_MTU);
    assert_eq!(pair.stacks[0].stats(ids[0]).segment_size, narrow);
    // Then, a late report of a larger MTU must not raise the path MTU.
    let late = segment(&mut pair);
    pair.nics[0].port().deliver(&unreachable(ReportedError::TooLarge(NARROW_MTU + 20), &late));
    pair.run_for(Duration::from_secs(1));
    assert_eq!(pair.stacks[0].stats(ids[0]).segment_size, narrow);
}

/// Smaller than the wire's MTU, and above every minimum.
const NARROW_MTU: u16 = 1300;
