//! Tests with forged, stale and malformed segments.

use crate::packets::{across, answers, packet};
use crate::pair::{ADDRESS, HostPair, PORT, PairConfig, TCP};
use bytes::BytesMut;
use core::net::IpAddr;
use core::time::Duration;
use offload_api::rx::Checksums;
use offload_api::{NetDevice, RxMeta, RxPacket};
use offload_base::counters::CounterSet;
use offload_base::{Seed, Seq};
use offload_host_stack::{ConnectionError, FlowId, HostCounters, TcpConfig, TcpState};
use proptest::prelude::*;
use smoltcp::wire::{IpAddress, IpProtocol, Ipv4Packet, TcpOption, TcpPacket, TcpSeqNumber};

/// Minimum time between two challenge ACKs of one connection.
const CHALLENGE_INTERVAL: Duration = Duration::from_millis(500);

/// A handmade frame from side 0 to side 1.
#[derive(Clone, Debug)]
struct CraftedSegment {
    ports: (u16, u16),
    seq: Seq,
    ack: Option<Seq>,
    flags: &'static str,
    window: u16,
    timestamps: Option<(u32, u32)>,
    sack: Vec<(u32, u32)>,
    payload: Vec<u8>,
}

impl CraftedSegment {
    fn frame(&self) -> Vec<u8> {
        let mut options = [0; 40];
        // The options are padded to a multiple of four bytes, as the header length field requires.
        let mut rest = &mut options[..];
        if let Some((tsval, tsecr)) = self.timestamps {
            rest = TcpOption::TimeStamp { tsval, tsecr }.emit(rest);
        }
        for blocks in self.sack.chunks(3) {
            let mut three = [None; 3];
            three.iter_mut().zip(blocks).for_each(|(slot, block)| *slot = Some(*block));
            rest = TcpOption::SackRange(three).emit(rest);
        }
        let used = (40 - rest.len()).next_multiple_of(4);
        let header = 20 + used;
        let mut frame = across(IpProtocol::Tcp, &vec![0; header + self.payload.len()]);
        let mut tcp = TcpPacket::new_unchecked(&mut frame[TCP..]);
        tcp.set_header_len(header as u8);
        tcp.set_src_port(self.ports.0);
        tcp.set_dst_port(self.ports.1);
        tcp.set_seq_number(TcpSeqNumber(self.seq.0 as i32));
        tcp.set_ack_number(TcpSeqNumber(self.ack.unwrap_or_default().0 as i32));
        tcp.set_ack(self.ack.is_some());
        tcp.set_syn(self.flags.contains('S'));
        tcp.set_fin(self.flags.contains('F'));
        tcp.set_rst(self.flags.contains('R'));
        tcp.set_window_len(self.window);
        tcp.options_mut().copy_from_slice(&options[..used]);
        frame[TCP + header..].copy_from_slice(&self.payload);
        let (from, to) = (IpAddress::from(ADDRESS[0]), IpAddress::from(ADDRESS[1]));
        TcpPacket::new_unchecked(&mut frame[TCP..]).fill_checksum(&from, &to);
        frame
    }
}

/// Returns a pair with a connection, and the numbers that an eavesdropper would know.
fn known() -> (HostPair, [FlowId; 2], CraftedSegment) {
    known_to(TcpConfig::default())
}

/// Like [`known`], with `tcp` as side 1's configuration.
fn known_to(tcp: TcpConfig) -> (HostPair, [FlowId; 2], CraftedSegment) {
    let (mut pair, ids) =
        HostPair::connected(&PairConfig { tcp: [TcpConfig::default(), tcp], ..PairConfig::default() });
    pair.stacks[0].send_copy(ids[0], &[7; 100]);
    pair.stacks[1].send_copy(ids[1], &[8; 100]);
    pair.run_for(Duration::from_millis(100));
    let crafted = CraftedSegment {
        ports: (pair.stacks[0].flow(ids[0]).local.port(), PORT),
        seq: pair.stacks[0].first_seq(ids[0]) + 100,
        ack: Some(pair.stacks[1].first_seq(ids[1]) + 100),
        flags: "",
        window: 1000,
        timestamps: None,
        sack: Vec::new(),
        payload: Vec::new(),
    };
    (pair, ids, crafted)
}

/// Delivers a frame to side 1 and returns the frames that side 1 sends.
fn deliver(pair: &mut HostPair, frame: &[u8]) -> Vec<Vec<u8>> {
    pair.nics[1].port().deliver(frame);
    while pair.stacks[1].poll(pair.now, &mut pair.nics[1]) {}
    pair.nics[1].port().drain().into()
}

/// Adds the peer's current timestamp, because RFC 7323 drops segments without one.
fn stamped(pair: &mut HostPair, ids: [FlowId; 2], mut crafted: CraftedSegment) -> CraftedSegment {
    pair.stacks[0].send_copy(ids[0], &[9; 1]);
    pair.stacks[0].push(ids[0]);
    while pair.stacks[0].poll(pair.now, &mut pair.nics[0]) {}
    let sent = pair.nics[0].port().drain().pop_back().expect("a segment");
    pair.nics[1].port().deliver(&sent);
    let tcp = TcpPacket::new_unchecked(&sent[TCP..]);
    let Ok((_, TcpOption::TimeStamp { tsval, tsecr })) = TcpOption::parse(&tcp.options()[2..]) else {
        panic!("no timestamps");
    };
    while pair.stacks[1].poll(pair.now, &mut pair.nics[1]) {}
    pair.nics[1].port().drain();
    crafted.timestamps = Some((tsval, tsecr));
    crafted.seq += 1;
    crafted
}

#[test]
fn only_an_exact_reset_closes_the_connection() {
    let (mut pair, ids, crafted) = known();
    for (off, answers) in [(1u32, 1), (1000, 1), (0x4000_0000, 0)] {
        let forged = CraftedSegment { seq: crafted.seq + off, flags: "R", ..crafted.clone() };
        let answer = deliver(&mut pair, &forged.frame());
        assert_eq!((answer.len(), pair.stacks[1].state(ids[1])), (answers, TcpState::Established), "{off}");
        pair.run_for(CHALLENGE_INTERVAL);
    }
    assert_eq!(pair.stacks[1].counters().challenge_acks, 2);
    deliver(&mut pair, &CraftedSegment { flags: "R", ..crafted }.frame());
    assert_eq!(pair.stacks[1].state(ids[1]), TcpState::Closed);
    assert_eq!(pair.stacks[1].counters().established_resets, 1);
}

#[test]
fn syn_on_an_open_connection_is_challenged() {
    let (mut pair, ids, crafted) = known();
    let crafted = stamped(&mut pair, ids, crafted);
    for off in [0, 1, 5000] {
        let forged = CraftedSegment { seq: crafted.seq + off, flags: "S", ack: None, ..crafted.clone() };
        let answer = deliver(&mut pair, &forged.frame());
        let tcp = TcpPacket::new_unchecked(&answer[0][TCP..]);
        assert!(answer.len() == 1 && tcp.ack() && !tcp.rst());
        assert_eq!(tcp.ack_number().0 as u32, crafted.seq.0);
        pair.run_for(CHALLENGE_INTERVAL);
    }
    assert_eq!(pair.stacks[1].state(ids[1]), TcpState::Established);
}

#[test]
fn challenge_limits_of_connections_are_independent() {
    let (mut pair, _, crafted) = known();
    let other = pair.open();
    let other = CraftedSegment {
        ports: (pair.stacks[0].flow(other[0]).local.port(), PORT),
        seq: pair.stacks[0].first_seq(other[0]),
        ..crafted.clone()
    };
    let mut answers = |crafted: &CraftedSegment, times: u32, wait: Duration| {
        let forged = CraftedSegment { seq: crafted.seq + 10, flags: "R", ..crafted.clone() };
        (0..times)
            .map(|_| {
                pair.now += wait;
                deliver(&mut pair, &forged.frame()).len()
            })
            .sum::<usize>()
    };
    let spent = [0, 10, 5000].map(|guesses| {
        let to_one = answers(&crafted, guesses, Duration::ZERO);
        let to_other = answers(&other, 5000, Duration::from_micros(180));
        (to_one, to_other)
    });
    assert_eq!(spent, [(0, 2), (1, 2), (1, 2)], "each run takes 0.9 seconds");
}

#[test]
fn acknowledgment_of_unsent_data_changes_nothing() {
    let (mut pair, ids, crafted) = known();
    let crafted = stamped(&mut pair, ids, crafted);
    let stats = pair.stacks[1].stats(ids[1]);
    let forged = CraftedSegment { ack: crafted.ack.map(|ack| ack + 5000), payload: vec![1; 10], ..crafted };
    assert_eq!(deliver(&mut pair, &forged.frame()).len(), 1);
    assert_eq!(pair.stacks[1].stats(ids[1]), stats);
}

#[test]
fn data_beyond_the_window_are_always_answered() {
    let (mut pair, ids, crafted) = known();
    let crafted = stamped(&mut pair, ids, crafted);
    let beyond = CraftedSegment { seq: crafted.seq + 10_000_000, payload: vec![1; 10], ..crafted };
    for _ in 0..3 {
        assert_eq!(deliver(&mut pair, &beyond.frame()).len(), 1);
    }
}

/// The reported byte may have arrived just now. Only a peer that acknowledges an earlier position later on, without
/// this byte, has discarded it.
#[test]
fn sack_of_the_first_missing_byte_is_no_reneging() {
    let (mut pair, ids, crafted) = known();
    let crafted = stamped(&mut pair, ids, crafted);
    pair.stacks[1].send_copy(ids[1], &[8; 500]);
    pair.stacks[1].push(ids[1]);
    while pair.stacks[1].poll(pair.now, &mut pair.nics[1]) {}
    assert_eq!(pair.nics[1].port().drain().len(), 1);
    let una = crafted.ack.unwrap();
    let reports = |from: u32| CraftedSegment {
        sack: vec![(una.0.wrapping_add(from), una.0.wrapping_add(500))],
        ..crafted.clone()
    };
    for _ in 0..2 {
        deliver(&mut pair, &reports(0).frame());
        assert_eq!(pair.stacks[1].counters().sack_reneging, 0);
    }
    deliver(&mut pair, &CraftedSegment { ack: Some(una + 100), ..reports(100) }.frame());
    assert_eq!(pair.stacks[1].counters().sack_reneging, 1);
}

#[test]
fn timestamp_with_an_unacceptable_ack_is_ignored() {
    let (mut pair, ids, crafted) = known();
    let crafted = stamped(&mut pair, ids, crafted);
    let (value, echo) = crafted.timestamps.unwrap();
    let timestamps = Some((value.wrapping_add(0x7fff_ffff), echo));
    let forged = CraftedSegment { ack: crafted.ack.map(|ack| ack + 5000), timestamps, ..crafted.clone() };
    deliver(&mut pair, &forged.frame());
    deliver(&mut pair, &CraftedSegment { payload: vec![1; 10], ..crafted }.frame());
    assert_eq!(pair.stacks[1].stats(ids[1]).bytes_received, 111);
    assert_eq!(pair.stacks[1].counters().paws_drops, 0);
}

#[test]
fn data_with_an_old_acknowledgment_are_dropped() {
    let (mut pair, ids, crafted) = narrow();
    let window = pair.stacks[1].stats(ids[1]).peer_window as u32;
    pair.stacks[1].send_copy(ids[1], &[8; 100_000]);
    pair.stacks[1].push(ids[1]);
    let mut read = Vec::new();
    pair.run_until(|pair| {
        pair.read(0, ids[0], &mut read);
        read.len() == 100_000
    });
    pair.run_for(Duration::from_millis(100));
    let una = crafted.ack.unwrap() + 100_000;
    // RFC 5961 5.2: as far back as the peer's largest window, here at most 20,000 bytes.
    for (ago, taken) in [(20_001, 0), (0x4000_0000, 0), (window, 10)] {
        let forged = CraftedSegment { ack: Some(una - ago), payload: vec![1; 10], ..crafted.clone() };
        deliver(&mut pair, &forged.frame());
        assert_eq!(pair.stacks[1].stats(ids[1]).bytes_received, taken, "{ago}");
        pair.run_for(CHALLENGE_INTERVAL);
    }
    assert_eq!(pair.stacks[1].counters().challenge_acks, 2);
}

#[test]
fn answering_peer_may_keep_its_window_closed() {
    let (mut pair, ids, crafted) = narrow();
    pair.stacks[1].send_copy(ids[1], &[8; 100]);
    pair.stacks[1].push(ids[1]);
    // The wire drops all frames, so that only the handmade answers keep the connection alive.
    let sent = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let count = sent.clone();
    pair.wire.filter = Some(Box::new(move |_, _| {
        count.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        true
    }));
    let end = pair.now + Duration::from_secs(2 * 3600);
    let mut answered = 0;
    while pair.now < end {
        pair.step();
        if core::mem::replace(&mut answered, sent.load(std::sync::atomic::Ordering::Relaxed)) != answered {
            deliver(&mut pair, &CraftedSegment { window: 0, ..crafted.clone() }.frame());
        }
        assert_eq!(pair.stacks[1].state(ids[1]), TcpState::Established, "after {answered} times, at {:?}", pair.now);
    }
    assert!(answered > 30, "{answered} times");
    pair.wire.filter = None;
    deliver(&mut pair, &crafted.frame());
    let mut read = Vec::new();
    let end = pair.now + Duration::from_secs(2);
    pair.run_until(|pair| pair.read(0, ids[0], &mut read) > 0);
    assert!(read == [8; 100] && pair.now < end, "data must leave as soon as the window opens");
    pair.run_for(Duration::from_secs(1));

    // A peer that stops answering is given up.
    pair.stacks[1].send_copy(ids[1], &[8; 100]);
    pair.stacks[1].push(ids[1]);
    pair.wire.filter = Some(Box::new(|_, _| true));
    pair.step();
    deliver(&mut pair, &CraftedSegment { ack: crafted.ack.map(|ack| ack + 100), window: 0, ..crafted }.frame());
    pair.run_for(Duration::from_secs(3600));
    assert_eq!(pair.stacks[1].state(ids[1]), TcpState::Closed);
}

#[test]
fn silent_peer_with_a_closed_window_is_given_up() {
    let (mut pair, ids, crafted) = narrow();
    deliver(&mut pair, &CraftedSegment { window: 0, ..crafted }.frame());
    pair.wire.filter = Some(Box::new(|_, _| true));
    pair.stacks[1].send_copy(ids[1], &[8; 100]);
    pair.stacks[1].push(ids[1]);
    pair.run_for(Duration::from_secs(2 * 3600));
    assert_eq!(pair.stacks[1].state(ids[1]), TcpState::Closed);
    assert!(pair.stacks[1].counters().window_probes > 5, "the window must have been probed");
}

#[test]
fn segment_with_an_old_timestamp_is_dropped() {
    let (mut pair, ids, crafted) = known();
    let crafted = stamped(&mut pair, ids, crafted);
    let (value, echo) = crafted.timestamps.unwrap();
    let stale =
        CraftedSegment { timestamps: Some((value.wrapping_sub(1), echo)), payload: vec![1; 10], ..crafted.clone() };
    deliver(&mut pair, &stale.frame());
    assert_eq!(pair.stacks[1].counters().paws_drops, 1);
    assert_eq!(pair.stacks[1].stats(ids[1]).bytes_received, 101);
    let fresh = CraftedSegment { payload: vec![1; 10], ..crafted };
    deliver(&mut pair, &fresh.frame());
    assert_eq!(pair.stacks[1].stats(ids[1]).bytes_received, 111);
}

/// RFC 7323 5.5: after 24 days the peer's clock may have wrapped.
#[test]
fn timestamp_check_expires_after_24_days() {
    let day = Duration::from_secs(24 * 3600);
    for (days, taken) in [(23, 101), (25, 111)] {
        let (mut pair, ids, crafted) = known();
        let crafted = stamped(&mut pair, ids, crafted);
        let (value, echo) = crafted.timestamps.unwrap();
        pair.now += days * day;
        let older = Some((value.wrapping_sub(0x4000_0000), echo));
        deliver(&mut pair, &CraftedSegment { timestamps: older, payload: vec![1; 10], ..crafted }.frame());
        assert_eq!(pair.stacks[1].stats(ids[1]).bytes_received, taken, "idle for {days} days");
    }
}

/// CVE-2019-11479: a peer that asks for tiny segments could make a host send mostly headers.
#[test]
fn segment_size_has_a_lower_bound() {
    for (asked, given) in [(8u16, 48), (100, 100)] {
        let tcp = TcpConfig { timestamps: false, ..TcpConfig::default() };
        let mut pair = HostPair::new(&PairConfig { tcp: [tcp.clone(), tcp], ..PairConfig::default() });
        pair.stacks[1].listen(PORT, 1).unwrap();
        pair.stacks[0].connect(pair.now, None, (ADDRESS[1], PORT).into()).unwrap();
        while pair.stacks[0].poll(pair.now, &mut pair.nics[0]) {}
        let mut syn = pair.nics[0].port().drain().pop_front().expect("a SYN");
        assert_eq!(syn[TCP + 20..TCP + 22], [2, 4], "the first option is the segment size");
        syn[TCP + 22..TCP + 24].copy_from_slice(&asked.to_be_bytes());
        TcpPacket::new_unchecked(&mut syn[TCP..]).fill_checksum(&ADDRESS[0].into(), &ADDRESS[1].into());
        pair.nics[1].port().deliver(&syn);
        pair.run_for(Duration::from_millis(10));
        let server = pair.stacks[1].accept(PORT).unwrap();
        assert_eq!(pair.stacks[1].stats(server).segment_size, given);
    }
}

/// RFC 9293 3.10.7.2: only a SYN opens a connection, and a segment without ACK, SYN and RST gets no answer.
#[test]
fn listener_ignores_segments_without_syn_ack_or_rst() {
    let mut pair = HostPair::new(&PairConfig::default());
    pair.stacks[1].listen(PORT, 3).unwrap();
    let bare = CraftedSegment {
        ports: (5000, PORT),
        seq: Seq(1),
        ack: None,
        flags: "",
        window: 1000,
        timestamps: None,
        sack: Vec::new(),
        payload: Vec::new(),
    };
    for flags in ["", "F", "SF"] {
        let answers = deliver(&mut pair, &CraftedSegment { flags, ..bare.clone() }.frame());
        assert_eq!((answers.len(), pair.stacks[1].connections()), (0, 0), "{flags:?}");
    }
    assert_eq!(pair.stacks[1].counters().in_errors, 3);
    assert_eq!(deliver(&mut pair, &CraftedSegment { ack: Some(Seq(7)), ..bare.clone() }.frame()).len(), 1, "a reset");
    // A closed port answers all segments with resets.
    let closed = CraftedSegment { ports: (5000, PORT + 1), ..bare };
    for flags in ["", "F", "SF"] {
        assert_eq!(deliver(&mut pair, &CraftedSegment { flags, ..closed.clone() }.frame()).len(), 1, "{flags:?}");
    }
}

#[test]
fn duplicate_segment_is_reported_by_a_dsack() {
    let (mut pair, ids, crafted) = known();
    let crafted = stamped(&mut pair, ids, crafted);
    let again = CraftedSegment { seq: crafted.seq - 60, payload: vec![7; 60], ..crafted.clone() };
    let answer = deliver(&mut pair, &again.frame());
    let tcp = TcpPacket::new_unchecked(&answer[0][TCP..]);
    let block = tcp.selective_ack_ranges().unwrap()[0];
    assert_eq!(block, Some(((crafted.seq - 60).0, crafted.seq.0)));
    assert_eq!(pair.stacks[1].counters().dsacks_sent, 1);
}

#[test]
fn unknown_flows_get_a_limited_number_of_valid_resets() {
    let (mut pair, _, crafted) = known();
    let stranger = CraftedSegment { ports: (1, 2), ..crafted.clone() };
    let answer = deliver(&mut pair, &stranger.frame());
    let tcp = TcpPacket::new_unchecked(&answer[0][TCP..]);
    assert!(tcp.rst() && !tcp.ack());
    assert_eq!(tcp.seq_number().0 as u32, stranger.ack.unwrap().0);
    // RFC 9293 3.10.7.1: if the segment has no ACK, the reset acknowledges the segment.
    let stranger = CraftedSegment { ack: None, payload: vec![0; 10], flags: "F", ..stranger };
    let answer = deliver(&mut pair, &stranger.frame());
    let tcp = TcpPacket::new_unchecked(&answer[0][TCP..]);
    assert!(tcp.rst() && tcp.ack() && tcp.seq_number().0 == 0);
    assert_eq!(tcp.ack_number().0 as u32, stranger.seq.0.wrapping_add(11));
    // A reset gets no answer.
    assert!(deliver(&mut pair, &CraftedSegment { flags: "R", ..stranger.clone() }.frame()).is_empty());
    let more: usize = (0..3000).map(|_| deliver(&mut pair, &stranger.frame()).len()).sum();
    assert!((498..1500).contains(&more), "{more} resets, expected about 1000 per second");
}

#[test]
fn packet_for_another_host_is_counted_and_dropped() {
    let (mut pair, _, crafted) = known();
    let good = crafted.frame();
    let altered = |at: usize, value: u8| {
        let mut frame = good.clone();
        frame[at] = value;
        if !crate::OVER_SIX {
            Ipv4Packet::new_unchecked(&mut frame[14..]).fill_checksum();
        }
        frame
    };
    let before = *pair.stacks[1].counters();
    pair.nics[1].port().verdict = Checksums::Unchecked;
    // Ethernet destination and type; IP version, protocol and destination; TCP checksum.
    let (protocol, destination) = if crate::OVER_SIX { (20, 53) } else { (23, 33) };
    let alterations = [(0, 4), (12, 0x99), (14, 0x75), (protocol, 132), (destination, 77), (TCP + 16, 0xff)];
    for (at, value) in alterations {
        let answers = deliver(&mut pair, &altered(at, value));
        assert_eq!(answers.len(), usize::from(at == protocol), "byte {at}: only the protocol gets an error");
    }
    let after = pair.stacks[1].counters();
    let counted = |names: [&'static str; 2]| {
        let of = |counters: &HostCounters| {
            let mut set = CounterSet::default();
            set.add(counters);
            names.iter().map(|name| set.value(name)).sum::<u64>()
        };
        of(after) - of(&before)
    };
    assert_eq!(counted(["IpInReceives", "Ip6InReceives"]), 6);
    assert_eq!(counted(["IpInAddrErrors", "Ip6InAddrErrors"]), 2, "Ethernet and IP destination");
    assert_eq!(counted(["IpInUnknownProtos", "Ip6InUnknownProtos"]), 2, "EtherType and protocol");
    assert_eq!(counted(["IpInHdrErrors", "Ip6InHdrErrors"]), 1, "IP version");
    assert_eq!(after.checksum_errors - before.checksum_errors, 1, "TCP checksum");
    pair.nics[1].port().verdict = Checksums::Bad;
    deliver(&mut pair, &good);
    assert_eq!(pair.stacks[1].counters().checksum_errors - before.checksum_errors, 2, "the device reported it");
}

#[test]
fn packet_with_an_invalid_source_is_dropped() {
    let mut pair = HostPair::new(&PairConfig::default());
    pair.stacks[1].listen(PORT, 16).unwrap();
    let sources: [&[&str]; 2] = [
        &["127.0.0.1", "127.255.0.1", "10.0.0.2", "10.0.0.255", "10.0.0.0", "255.255.255.255", "224.0.0.1", "0.0.0.0"],
        &["::1", "::ffff:10.0.0.1", "fd00::2", "ff02::1", "::"],
    ];
    for source in sources[usize::from(crate::OVER_SIX)] {
        let (source, to): (IpAddr, IpAddr) = (source.parse().unwrap(), ADDRESS[1]);
        let mut bytes = [0; 20];
        let mut tcp = TcpPacket::new_unchecked(&mut bytes[..]);
        tcp.set_src_port(1024);
        tcp.set_dst_port(PORT);
        tcp.set_header_len(20);
        tcp.set_syn(true);
        tcp.set_window_len(65_535);
        tcp.fill_checksum(&source.into(), &to.into());
        let answers = answers(&mut pair, &packet(source, to, IpProtocol::Tcp, &bytes));
        assert_eq!((answers.len(), pair.stacks[1].connections()), (0, 0), "{source}");
    }
    let counters = pair.stacks[1].counters();
    let dropped = counters.ip_in_address_errors + counters.ip6_in_address_errors;
    assert_eq!(dropped, sources[usize::from(crate::OVER_SIX)].len() as u64);
}

/// Returns a pair in which side 1 has a small receive buffer and reads nothing, and side 0's next segment.
fn narrow() -> (HostPair, [FlowId; 2], CraftedSegment) {
    let mut setup = PairConfig::default();
    for tcp in &mut setup.tcp {
        (tcp.timestamps, tcp.receive_buffer) = (false, 20_000);
    }
    let (pair, ids) = HostPair::connected(&setup);
    let crafted = CraftedSegment {
        ports: (pair.stacks[0].flow(ids[0]).local.port(), PORT),
        seq: pair.stacks[0].first_seq(ids[0]),
        ack: Some(pair.stacks[1].first_seq(ids[1])),
        flags: "",
        window: 1000,
        timestamps: None,
        sack: Vec::new(),
        payload: Vec::new(),
    };
    (pair, ids, crafted)
}

/// Like [`narrow`], with the window filled to its edge. Also returns the number of received bytes.
fn closed_window() -> (HostPair, [FlowId; 2], CraftedSegment, usize) {
    let (mut pair, ids, mut crafted) = narrow();
    pair.stacks[0].send_copy(ids[0], &[7; 50_000]);
    pair.stacks[0].push(ids[0]);
    pair.run_for(Duration::from_millis(100));
    let stats = pair.stacks[0].stats(ids[0]);
    crafted.seq += stats.bytes_acknowledged as u32;
    crafted.payload = vec![7; stats.peer_window as usize];
    deliver(&mut pair, &crafted.frame());
    pair.run_for(Duration::from_millis(100));
    crafted.seq += stats.peer_window as u32;
    (pair, ids, crafted, (stats.bytes_acknowledged + stats.peer_window) as usize)
}

#[test]
fn fin_after_bytes_beyond_the_window_is_ignored() {
    let (mut pair, ids, crafted) = narrow();
    let window = pair.stacks[0].stats(ids[0]).peer_window as usize;
    let mut read = Vec::new();
    let one_too_many = CraftedSegment { flags: "F", payload: vec![7; window + 1], ..crafted.clone() };
    assert_eq!(deliver(&mut pair, &one_too_many.frame()).len(), 1, "the peer gets an acknowledgment");
    assert_eq!(pair.read(1, ids[1], &mut read), window);
    assert_eq!((pair.stacks[1].at_end(ids[1]), pair.stacks[1].state(ids[1])), (false, TcpState::Established));
    let rest = CraftedSegment { seq: crafted.seq + window as u32, flags: "F", payload: vec![7; 1], ..crafted };
    deliver(&mut pair, &rest.frame());
    assert_eq!(pair.read(1, ids[1], &mut read), 1);
    assert_eq!((pair.stacks[1].at_end(ids[1]), pair.stacks[1].state(ids[1])), (true, TcpState::CloseWait));

    let (mut pair, ids, crafted, taken) = closed_window();
    let all_too_many = CraftedSegment { flags: "F", payload: vec![9; 1000], ..crafted };
    assert_eq!(deliver(&mut pair, &all_too_many.frame()).len(), 1);
    read.clear();
    assert_eq!(pair.read(1, ids[1], &mut read), taken);
    assert_eq!((pair.stacks[1].at_end(ids[1]), pair.stacks[1].state(ids[1])), (false, TcpState::Established));
}

#[test]
fn one_byte_window_probe_is_answered_and_its_ack_used() {
    let (mut pair, ids, crafted, taken) = closed_window();
    pair.stacks[1].send_copy(ids[1], &[8; 100]);
    pair.stacks[1].push(ids[1]);
    assert!(pair.stacks[1].poll(pair.now, &mut pair.nics[1]) || !pair.nics[1].port().sent.is_empty());
    pair.nics[1].port().drain();
    let probe = CraftedSegment { payload: vec![7; 1], ack: crafted.ack.map(|ack| ack + 100), ..crafted.clone() };
    for _ in 0..3 {
        let answers = deliver(&mut pair, &probe.frame());
        assert_eq!(answers.len(), 1);
        let answer = TcpPacket::new_unchecked(&answers[0][TCP..]);
        assert_eq!((answer.ack_number(), answer.window_len()), (TcpSeqNumber(crafted.seq.0 as i32), 0));
    }
    assert_eq!(pair.stacks[1].stats(ids[1]).bytes_acknowledged, 100, "the probe's acknowledgment counts");
    // A FIN without data takes no memory.
    deliver(&mut pair, &CraftedSegment { flags: "F", payload: Vec::new(), ..probe }.frame());
    let mut read = Vec::new();
    assert_eq!(pair.read(1, ids[1], &mut read), taken);
    assert_eq!((pair.stacks[1].at_end(ids[1]), pair.stacks[1].state(ids[1])), (true, TcpState::CloseWait));
}

/// Offsets of sequence and acknowledgment number from the expected ones, flags, window, SACK blocks, payload length,
/// and whether timestamps are present.
type SegmentOffsets = (i32, i32, u8, u16, Vec<(i32, i32)>, usize, bool);

/// Generates segments close to the connection's expectations, so that they pass the first checks.
fn near() -> impl Strategy<Value = SegmentOffsets> {
    let close = || prop_oneof![Just(0), -20_000..20_000i32, any::<i32>()];
    let blocks = proptest::collection::vec((close(), close()), 0..3);
    (close(), close(), any::<u8>(), any::<u16>(), blocks, 0usize..3000, any::<bool>())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn crafted_segments_cause_no_panic_and_no_busy_loop(
        seed: u64,
        segments in proptest::collection::vec((near(), 0u64..3_000_000_000), 1..60),
    ) {
        let (mut pair, ids) = HostPair::connected(&PairConfig { seed: Seed(seed), ..PairConfig::default() });
        let (client, server) = (pair.stacks[0].first_seq(ids[0]), pair.stacks[1].first_seq(ids[1]));
        pair.stacks[1].send_copy(ids[1], &[8; 50_000]);
        pair.stacks[1].push(ids[1]);
        let mut detached = false;
        for (index, ((seq, ack, flags, window, sack, bytes, stamp), wait)) in segments.into_iter().enumerate() {
            let crafted = CraftedSegment {
                ports: (pair.stacks[0].flow(ids[0]).local.port(), PORT),
                seq: Seq(client.0.wrapping_add(seq as u32)),
                ack: (flags & 1 == 0).then(|| Seq(server.0.wrapping_add(ack as u32))),
                flags: ["", "", "", "F", "S", "R", "SF", ""][usize::from(flags >> 1 & 7)],
                window,
                timestamps: stamp.then_some((wait as u32, 0)),
                sack: sack.iter().map(|(from, to)| {
                    (server.0.wrapping_add(*from as u32), server.0.wrapping_add(*to as u32))
                }).collect(),
                payload: vec![1; bytes.min(1400)],
            };
            let mut frame = crafted.frame();
            if flags > 250 {
                frame.truncate(usize::from(window) % frame.len());
            }
            // The device reports good checksums, so that the whole segment is processed.
            let packet = RxPacket::new(BytesMut::from(&frame[..]), RxMeta { checksums: Checksums::Good, ..RxMeta::default() });
            pair.stacks[1].receive(pair.now, packet, &mut pair.nics[1]);
            let mut rounds = 0;
            while pair.stacks[1].poll(pair.now, &mut pair.nics[1]) {
                rounds += 1;
                prop_assert!(rounds < 1000, "the stack must come to rest");
            }
            prop_assert!(pair.nics[1].port().drain().len() < 500);
            if index == 30 {
                pair.stacks[1].detach(pair.now, ids[1]);
                detached = true;
            }
            pair.now += Duration::from_nanos(if wait % 3 == 0 { wait } else { wait % 100_000 });
            prop_assert!(pair.nics[1].next_event().is_none());
        }
        if !detached {
            while pair.stacks[1].take(ids[1]).is_some() {}
            pair.stacks[1].detach(pair.now, ids[1]);
        }
        // With the wire cut, every connection ends, in any state.
        pair.wire.config.loss = 1.0;
        pair.run_for(Duration::from_secs(4 * 3600));
        prop_assert_eq!(pair.stacks[1].connections(), 0);
    }

    #[test]
    fn random_frames_cause_no_panic(frames in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..120), 1..20)) {
        let (mut pair, ids) = HostPair::connected(&PairConfig::default());
        for bytes in frames {
            let mut frame = CraftedSegment {
                ports: (1, PORT), seq: Seq(0), ack: None, flags: "S", window: 1, timestamps: None, sack: Vec::new(),
                payload: Vec::new(),
            }.frame();
            // Random bytes replace the whole frame, all after Ethernet, or all after IP.
            let kept = [0, 14, TCP][bytes.len() % 3];
            frame.truncate(kept);
            frame.extend_from_slice(&bytes);
            let meta = RxMeta { checksums: Checksums::Good, ..RxMeta::default() };
            let packet = RxPacket::new(BytesMut::from(&frame[..]), meta);
            pair.stacks[1].receive(pair.now, packet, &mut pair.nics[1]);
        }
        pair.run_for(Duration::from_millis(10));
        prop_assert_eq!(pair.stacks[0].state(ids[0]), TcpState::Established);
    }
}

/// While data are in flight, retransmissions with growing timeouts serve as window probes.
#[test]
fn zero_window_timeout_covers_data_in_flight() {
    let zero_window_timeout = Some(Duration::from_secs(300));
    let (mut pair, ids, crafted) = known_to(TcpConfig { zero_window_timeout, ..TcpConfig::default() });
    let crafted = stamped(&mut pair, ids, crafted);
    pair.wire.filter = Some(Box::new(|_, _| true));
    pair.stacks[1].send_copy(ids[1], &[0; 1200]);
    pair.stacks[1].push(ids[1]);
    pair.run_now();
    let closed = CraftedSegment { window: 0, ..crafted };
    let seconds_until_it_ends = (1..600).find(|_| {
        // The peer answers all the time.
        deliver(&mut pair, &closed.frame());
        pair.run_for(Duration::from_secs(1));
        pair.stacks[1].error(ids[1]).is_some()
    });
    assert_eq!(seconds_until_it_ends, Some(300));
    assert_eq!(pair.stacks[1].error(ids[1]), Some(ConnectionError::TimedOut));
}
