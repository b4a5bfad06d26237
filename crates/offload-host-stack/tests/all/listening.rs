//! Tests of listeners in SYN floods, and of reused ports.

use crate::packets::{across, answers};
use crate::pair::{ADDRESS, HostPair, PORT, PairConfig};
use crate::transfer::{exchange, pattern};
use crate::wire::WireConfig;
use core::time::Duration;
use offload_base::Seed;
use offload_host_stack::{ConnectionError, Ecn, FlowId, SocketOpenError, TcpConfig, TcpState};
use smoltcp::wire::{IpProtocol, Ipv4Packet, TcpPacket, TcpSeqNumber};

const SECOND: Duration = Duration::from_secs(1);
const BACKLOG: usize = 64;

/// Sends `syns` SYNs to side 1 without completing a handshake, one per millisecond.
fn flood(pair: &mut HostPair, syns: usize) {
    for _ in 0..syns {
        let id = pair.stacks[0].connect(pair.now, None, (ADDRESS[1], PORT).into()).unwrap();
        pair.run_now();
        // The flooding client forgets the connection and gets no answer.
        pair.wire.filter = Some(Box::new(|from, _| from == 1));
        pair.run_for(Duration::from_millis(1));
        pair.wire.filter = None;
        pair.stacks[0].detach(pair.now, id);
    }
}

/// Opens and accepts a connection during a flood.
fn connect(pair: &mut HostPair) -> [FlowId; 2] {
    let client = pair.stacks[0].connect(pair.now, None, (ADDRESS[1], PORT).into()).unwrap();
    pair.run_for(SECOND / 10);
    assert_eq!(pair.stacks[0].state(client), TcpState::Established, "a cookie must open the connection at once");
    [client, pair.stacks[1].accept(PORT).expect("an open connection")]
}

#[test]
fn syn_flood_takes_no_memory_and_clients_connect() {
    for timestamps in [true, false] {
        let tcp = TcpConfig { timestamps, ..TcpConfig::default() };
        let mut pair = HostPair::new(&PairConfig { tcp: [tcp, TcpConfig::default()], ..PairConfig::default() });
        pair.stacks[1].listen(PORT, BACKLOG).unwrap();
        flood(&mut pair, 1000);
        assert_eq!(pair.stacks[1].connections(), BACKLOG);
        let dropped = pair.stacks[1].counters().request_queue_drops;
        assert!((150..250).contains(&dropped), "{dropped} SYNs dropped within the grace time of 200 ms");
        // A few SYNs come from ports that were used before.
        let cookies = pair.stacks[1].counters().cookies_sent;
        assert!((980..=1000).contains(&(cookies + dropped + BACKLOG as u64)), "{cookies} cookies, {dropped} dropped");

        let ids = connect(&mut pair);
        assert_eq!(pair.stacks[1].counters().cookies_received, 1);
        assert_eq!(pair.stacks[1].stats(ids[1]).segment_size, if timestamps { 1448 } else { 1460 });
        // The window is scaled if the cookie could hold the SYN's options.
        assert_eq!(pair.stacks[1].stats(ids[1]).peer_window > 65_535, timestamps);
        let data = pattern(Seed(1), 1_000_000);
        exchange(&mut pair, ids, [&data, &data], [5000, 5000]);
        pair.stacks[1].detach(pair.now, ids[1]);

        flood(&mut pair, 1000);
        assert!(pair.stacks[1].connections() <= BACKLOG + 1);
        pair.run_for(SECOND * 200);
        assert_eq!(pair.stacks[1].connections(), 0, "half-open connections time out");
    }
}

/// Returns a SYN to side 1's listener that no client sent.
fn syn(number: u32) -> Vec<u8> {
    let mut bytes = [0; 20];
    let mut tcp = TcpPacket::new_unchecked(&mut bytes[..]);
    tcp.set_src_port(1024 + (number % 60_000) as u16);
    tcp.set_dst_port(PORT);
    tcp.set_seq_number(TcpSeqNumber(number as i32));
    tcp.set_header_len(20);
    tcp.set_syn(true);
    tcp.set_window_len(65_535);
    tcp.fill_checksum(&ADDRESS[0].into(), &ADDRESS[1].into());
    across(IpProtocol::Tcp, &bytes)
}

#[test]
fn clients_connect_during_100_000_syns_per_second() {
    const SYNS: u32 = 100_000;
    let mut pair = HostPair::new(&PairConfig::default());
    pair.stacks[1].listen(PORT, BACKLOG).unwrap();
    let mut accepted = 0;
    for number in 0..SYNS {
        answers(&mut pair, &syn(number));
        pair.now += SECOND / SYNS;
        assert!(pair.stacks[1].connections() <= BACKLOG + accepted);
        if number % (SYNS / 4) == SYNS / 4 - 1 {
            let ids = connect(&mut pair);
            accepted += 1;
            let data = pattern(Seed(1), 100_000);
            exchange(&mut pair, ids, [&data, &data], [5000, 5000]);
        }
    }
    let counters = pair.stacks[1].counters();
    assert_eq!((accepted, counters.cookies_received), (4, 4));
    // SYNs dropped within the grace time of 200 ms.
    assert!((19_000..21_000).contains(&counters.request_queue_drops), "{}", counters.request_queue_drops);
    assert!(counters.cookies_sent > 75_000, "{}", counters.cookies_sent);
}

/// A flooding host with a real address resets each SYN-ACK, because it knows no such connection. There is room now and
/// then, yet rarely for other clients.
#[test]
fn clients_connect_during_a_flood_of_reset_connections() {
    const SYNS_PER_SECOND: u32 = 500;
    let delay = SECOND / 20;
    let mut pair =
        HostPair::new(&PairConfig { wire: WireConfig { delay, ..WireConfig::default() }, ..PairConfig::default() });
    pair.stacks[1].listen(PORT, 16).unwrap();
    // The flood continues while the client connects and receives.
    let mut number = 0;
    let mut flood = |pair: &mut HostPair, span: Duration| {
        for _ in 0..(SYNS_PER_SECOND as f64 * span.as_secs_f64()) as u32 {
            number += 1;
            pair.nics[1].port().deliver(&syn(number));
            pair.run_for(SECOND / SYNS_PER_SECOND);
        }
    };
    flood(&mut pair, SECOND);
    assert!(pair.stacks[1].counters().attempt_fails > 100, "most connections must be reset");
    let begin = pair.now;
    let client = pair.stacks[0].connect(pair.now, Some(900), (ADDRESS[1], PORT).into()).unwrap();
    while pair.stacks[0].state(client) != TcpState::Established {
        flood(&mut pair, SECOND / 10);
        assert!(pair.now - begin < SECOND, "the client must connect within a second");
    }
    flood(&mut pair, SECOND / 5);
    let server = pair.stacks[1].accept(PORT).expect("an open connection");
    let data = pattern(Seed(1), 1 << 20);
    let mut got = Vec::new();
    pair.stacks[1].send_copy(server, &data);
    pair.stacks[1].push(server);
    while got.len() < data.len() {
        flood(&mut pair, SECOND / 10);
        pair.read(0, client, &mut got);
        assert!(pair.now - begin < SECOND * 5, "{} bytes", got.len());
    }
    assert!(got == data);
}

/// The half-open connections of a closed listener do not belong to the next listener of the port.
#[test]
fn new_listener_does_not_count_old_half_open_ones() {
    let mut pair = HostPair::new(&PairConfig::default());
    let half_open = |pair: &mut HostPair| {
        pair.wire.filter = Some(Box::new(|from, _| from == 1));
        let ids = [(); 2].map(|()| pair.stacks[0].connect(pair.now, None, (ADDRESS[1], PORT).into()).unwrap());
        pair.run_for(SECOND / 100);
        pair.wire.filter = None;
        ids
    };
    pair.stacks[1].listen(PORT, 2).unwrap();
    let old = half_open(&mut pair);
    pair.stacks[1].close_listener(pair.now, PORT);
    pair.stacks[1].listen(PORT, 2).unwrap();
    half_open(&mut pair);
    assert_eq!(pair.stacks[1].connections(), 4);
    // The old listener's connections complete their handshakes and are reset; the new one's stay half open.
    pair.wire.filter = Some(Box::new({
        let ports = old.map(|id| pair.stacks[0].flow(id).local.port());
        move |from, frame| {
            let tcp = TcpPacket::new_unchecked(&frame[34..]);
            !ports.contains(&if from == 0 { tcp.src_port() } else { tcp.dst_port() })
        }
    }));
    pair.run_for(SECOND * 3 / 2);
    assert_eq!(old.map(|id| pair.stacks[0].error(id)), [Some(ConnectionError::Reset); 2]);
    assert_eq!((pair.stacks[1].connections(), pair.stacks[1].accept(PORT)), (2, None));
    let before = pair.stacks[1].counters().listen_drops;
    answers(&mut pair, &syn(1));
    assert_eq!(pair.stacks[1].counters().listen_drops, before + 1, "the backlog must be full");
}

#[test]
fn cookie_opens_one_connection_for_its_client_only() {
    let mut pair = HostPair::new(&PairConfig::default());
    pair.stacks[1].listen(PORT, BACKLOG).unwrap();
    flood(&mut pair, 400);
    let client = pair.stacks[0].connect(pair.now, None, (ADDRESS[1], PORT).into()).unwrap();
    // The client's acknowledgment is held back. It is delivered with altered numbers, then unchanged, and then again.
    let held = std::sync::Arc::new(std::sync::Mutex::new(None));
    let hold = held.clone();
    pair.wire.filter = Some(Box::new(move |from, frame| {
        let tcp = TcpPacket::new_unchecked(&frame[34..]);
        let acknowledges = from == 0 && tcp.ack() && !tcp.syn();
        if acknowledges {
            hold.lock().unwrap().get_or_insert(frame.to_vec());
        }
        acknowledges
    }));
    pair.run_for(SECOND / 10);
    assert_eq!(pair.stacks[0].state(client), TcpState::Established);
    let frame: Vec<u8> = held.lock().unwrap().take().expect("an acknowledgment");
    let deliver = |pair: &mut HostPair, frame: &[u8]| {
        pair.nics[1].port().deliver(frame);
        pair.run_now();
        pair.stacks[1].accept(PORT)
    };
    // Bytes of the acknowledgment and sequence numbers, and of the source port and address.
    let alterations = [(34 + 8, 1), (34 + 11, 8), (34 + 4, 1), (34 + 7, 1), (34 + 1, 1), (14 + 15, 4)];
    for (at, bit) in alterations {
        let mut forged = frame.clone();
        forged[at] ^= bit;
        let mut ip = Ipv4Packet::new_unchecked(&mut forged[14..]);
        ip.fill_checksum();
        let from = ip.src_addr();
        TcpPacket::new_unchecked(&mut forged[34..]).fill_checksum(&from.into(), &ADDRESS[1].into());
        assert_eq!(deliver(&mut pair, &forged), None, "byte {at}");
    }
    assert_eq!(pair.stacks[1].counters().cookies_failed, alterations.len() as u64);
    let now = pair.now;
    assert!(deliver(&mut pair, &frame).is_some());
    assert_eq!(deliver(&mut pair, &frame), None, "the connection exists already");
    assert_eq!(pair.now, now);
}

#[test]
fn cookie_encodes_the_next_lower_segment_size() {
    let sizes =
        [(400, 256), (600, 536), (1300, 1220), (1400, 1360), (1450, 1400), (1480, 1440), (1500, 1460), (9000, 8960)];
    for (mtu, size) in sizes {
        let mut pair = HostPair::new(&PairConfig { mtu, ..PairConfig::default() });
        pair.stacks[1].listen(PORT, BACKLOG).unwrap();
        flood(&mut pair, 400);
        let ids = connect(&mut pair);
        assert_eq!(pair.stacks[1].counters().cookies_received, 1, "MTU {mtu}");
        assert_eq!(pair.stacks[1].stats(ids[1]).segment_size, size - 12, "MTU {mtu}; timestamps take 12");
    }
}

#[test]
fn cookie_answer_does_not_accept_ecn() {
    let asks = TcpConfig { ecn: Ecn::Request, ..TcpConfig::default() };
    let mut pair = HostPair::new(&PairConfig { tcp: [asks, TcpConfig::default()], ..PairConfig::default() });
    pair.stacks[1].listen(PORT, BACKLOG).unwrap();
    flood(&mut pair, 400);
    let answers = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
    let seen = answers.clone();
    pair.wire.filter = Some(Box::new(move |from, frame| {
        let tcp = TcpPacket::new_unchecked(&frame[34..]);
        if from == 1 && tcp.syn() {
            seen.lock().unwrap().push(tcp.ece());
        }
        false
    }));
    connect(&mut pair);
    assert_eq!(pair.stacks[1].counters().cookies_received, 1);
    assert_eq!(*answers.lock().unwrap(), [false], "a cookie does not hold the client's ECN request");
}

#[test]
fn cookie_is_valid_for_a_minute() {
    let mut pair = HostPair::new(&PairConfig::default());
    pair.stacks[1].listen(PORT, BACKLOG).unwrap();
    flood(&mut pair, 400);
    let client = pair.stacks[0].connect(pair.now, None, (ADDRESS[1], PORT).into()).unwrap();
    pair.wire.filter = Some(Box::new(move |from, frame| {
        let tcp = TcpPacket::new_unchecked(&frame[34..]);
        from == 0 && tcp.ack() && !tcp.syn()
    }));
    pair.run_for(SECOND * 60);
    pair.wire.filter = None;
    pair.stacks[0].send_copy(client, b"in time");
    pair.run_for(SECOND);
    assert_eq!(pair.stacks[0].error(client), None);
    assert!(pair.stacks[1].accept(PORT).is_some());
}

#[test]
fn cookie_expires() {
    let mut pair = HostPair::new(&PairConfig::default());
    pair.stacks[1].listen(PORT, BACKLOG).unwrap();
    flood(&mut pair, 400);
    let client = pair.stacks[0].connect(pair.now, None, (ADDRESS[1], PORT).into()).unwrap();
    pair.wire.filter = Some(Box::new(move |from, frame| {
        let tcp = TcpPacket::new_unchecked(&frame[34..]);
        from == 0 && tcp.ack() && !tcp.syn()
    }));
    pair.run_for(SECOND * 129);
    pair.wire.filter = None;
    assert_eq!(pair.stacks[0].state(client), TcpState::Established);
    pair.stacks[0].send_copy(client, b"am I late?");
    pair.run_for(SECOND);
    assert_eq!(pair.stacks[0].error(client), Some(ConnectionError::Reset));
    assert_eq!(pair.stacks[1].accept(PORT), None);
}

#[test]
fn port_has_one_listener_and_is_free_after_its_close() {
    let (mut pair, ids) = HostPair::connected(&PairConfig::default());
    assert_eq!(pair.stacks[1].listen(PORT, 3), Err(SocketOpenError::InUse));
    pair.stacks[1].close_listener(pair.now, PORT);
    // Connections of the port, open or in TIME-WAIT, do not prevent listening.
    pair.stacks[1].listen(PORT, 3).unwrap();
    pair.stacks[1].detach(pair.now, ids[1]);
    pair.run_for(SECOND / 10);
    pair.stacks[0].detach(pair.now, ids[0]);
    pair.run_for(SECOND / 10);
    assert_eq!((pair.stacks[0].connections(), pair.stacks[1].connections()), (0, 1), "TIME-WAIT");
    pair.stacks[1].close_listener(pair.now, PORT);
    pair.stacks[1].listen(PORT, 3).unwrap();
    let ids = pair.open();
    let data = pattern(Seed(1), 10_000);
    exchange(&mut pair, ids, [&data, &data], [1000, 1000]);
}

/// Opens a connection from port 7000, moves bytes, and closes it, client first.
fn use_port(pair: &mut HostPair) {
    let client = pair.stacks[0].connect(pair.now, Some(7000), (ADDRESS[1], PORT).into()).unwrap();
    pair.run_until(|pair| pair.stacks[0].state(client) == TcpState::Established);
    pair.run_for(SECOND / 10);
    let server = pair.stacks[1].accept(PORT).unwrap();
    let data = pattern(Seed(1), 10_000);
    exchange(pair, [client, server], [&data, &data], [1000, 1000]);
    pair.stacks[0].detach(pair.now, client);
    pair.run_for(SECOND / 10);
    pair.stacks[1].detach(pair.now, server);
    pair.run_for(SECOND / 10);
}

/// Returns a pair with a listener and at most `most` connections on side 1.
fn limited_pair(most: usize, backlog: usize) -> HostPair {
    let mut pair = HostPair::new(&PairConfig::default());
    let mut config = crate::pair::config(1, pair.seed, TcpConfig::default());
    config.max_connections = most;
    pair.stacks[1] = offload_host_stack::Stack::new(config);
    pair.stacks[1].listen(PORT, backlog).unwrap();
    pair
}

#[test]
fn fin_wait_2_connections_yield_to_new_ones() {
    const MAX_CONNECTIONS: usize = 8;
    let mut pair = limited_pair(MAX_CONNECTIONS, 3);
    let mut clients = Vec::new();
    for _ in 0..20 {
        let [client, server] = connect(&mut pair);
        // The server closes the connection; the client never does.
        pair.stacks[1].detach(pair.now, server);
        pair.run_for(SECOND / 100);
        assert_eq!(pair.stacks[0].state(client), TcpState::CloseWait);
        clients.push(client);
    }
    assert_eq!(pair.stacks[1].connections(), MAX_CONNECTIONS);
    assert_eq!(pair.stacks[1].counters().aborts_on_memory, 12);
    // A client that still sends gets a reset.
    pair.stacks[0].send_copy(clients[0], b"and");
    pair.run_for(SECOND / 10);
    assert_eq!(pair.stacks[0].error(clients[0]), Some(ConnectionError::Reset));
}

#[test]
fn refused_syn_removes_no_waiting_connection() {
    const MAX_CONNECTIONS: usize = 4;
    let mut pair = limited_pair(MAX_CONNECTIONS, 1);
    for accepted in [true, false] {
        let before = pair.stacks[1].counters().time_wait_overflows;
        while pair.stacks[1].connections() < MAX_CONNECTIONS {
            let [client, server] = connect(&mut pair);
            pair.stacks[1].detach(pair.now, server);
            pair.run_for(SECOND / 100);
            pair.stacks[0].detach(pair.now, client);
            pair.run_for(SECOND / 100);
        }
        // This connection occupies the backlog, open or half open.
        pair.wire.filter = Some(Box::new(move |from, _| !accepted && from == 1));
        let first = pair.stacks[0].connect(pair.now, None, (ADDRESS[1], PORT).into()).unwrap();
        pair.run_for(SECOND / 100);
        assert_eq!(pair.stacks[1].counters().time_wait_overflows, before + 1);
        let second = pair.stacks[0].connect(pair.now, None, (ADDRESS[1], PORT).into()).unwrap();
        pair.run_for(SECOND / 100);
        assert_eq!(
            pair.stacks[1].counters().time_wait_overflows,
            before + 1,
            "no connection may be removed for a refused SYN"
        );
        pair.wire.filter = None;
        pair.stacks[0].detach(pair.now, first);
        pair.stacks[0].detach(pair.now, second);
        pair.run_for(SECOND * 70);
        if let Some(server) = pair.stacks[1].accept(PORT) {
            pair.stacks[1].detach(pair.now, server);
        }
        pair.run_for(SECOND * 70);
    }
    // A local connect that fails must not remove a connection, either.
    let [client, server] = connect(&mut pair);
    pair.stacks[0].listen(7, 1).unwrap();
    let there = (ADDRESS[0], 7).into();
    let taken = pair.stacks[1].connect(pair.now, Some(9), there).unwrap();
    pair.run_for(SECOND / 100);
    assert_eq!([server, taken].map(|id| pair.stacks[1].state(id)), [TcpState::Established; 2]);
    while pair.stacks[1].connections() < MAX_CONNECTIONS {
        let [client, server] = connect(&mut pair);
        pair.stacks[1].detach(pair.now, server);
        pair.run_for(SECOND / 100);
        pair.stacks[0].detach(pair.now, client);
        pair.run_for(SECOND / 100);
    }
    assert_eq!(pair.stacks[1].connect(pair.now, Some(9), there), Err(SocketOpenError::InUse));
    assert_eq!(pair.stacks[1].connections(), MAX_CONNECTIONS);
    pair.stacks[0].detach(pair.now, client);
}

#[test]
fn time_wait_connections_yield_to_new_ones() {
    const MAX_CONNECTIONS: usize = 8;
    let mut pair = limited_pair(MAX_CONNECTIONS, 3);
    for _ in 0..20 {
        let [client, server] = connect(&mut pair);
        // The server closes first, and enters TIME-WAIT.
        pair.stacks[1].detach(pair.now, server);
        pair.run_for(SECOND / 10);
        pair.stacks[0].detach(pair.now, client);
        pair.run_for(SECOND / 10);
    }
    assert_eq!(pair.stacks[1].connections(), MAX_CONNECTIONS);
    assert_eq!(pair.stacks[1].counters().time_wait_overflows, 12);
    // Open connections are not removed.
    for open in 0..=MAX_CONNECTIONS {
        let client = pair.stacks[0].connect(pair.now, None, (ADDRESS[1], PORT).into()).unwrap();
        pair.run_for(SECOND / 10);
        assert_eq!(pair.stacks[0].state(client) == TcpState::Established, open < MAX_CONNECTIONS, "{open}");
        assert_eq!(pair.stacks[1].accept(PORT).is_some(), open < MAX_CONNECTIONS);
    }
}

#[test]
fn time_wait_port_is_reusable_after_a_second() {
    for initial_sequence in [None, Some(5)] {
        let tcp = TcpConfig { initial_sequence, ..TcpConfig::default() };
        let mut pair = HostPair::new(&PairConfig { tcp: [tcp.clone(), tcp], ..PairConfig::default() });
        pair.stacks[1].listen(PORT, 3).unwrap();
        for _ in 0..5 {
            use_port(&mut pair);
            if pair.stacks[0].connections() > 0 {
                let again = pair.stacks[0].connect(pair.now, Some(7000), (ADDRESS[1], PORT).into());
                assert_eq!(
                    again,
                    Err(SocketOpenError::InUse),
                    "the port must not be reusable before a second has passed"
                );
            }
            pair.run_for(SECOND);
        }
    }
}

#[test]
fn time_wait_port_is_not_reusable_without_timestamps() {
    let tcp = TcpConfig { timestamps: false, ..TcpConfig::default() };
    let mut pair = HostPair::new(&PairConfig { tcp: [tcp.clone(), tcp], ..PairConfig::default() });
    pair.stacks[1].listen(PORT, 3).unwrap();
    use_port(&mut pair);
    pair.run_for(SECOND * 2);
    let waits = pair.stacks[0].connections() == 1;
    let again = pair.stacks[0].connect(pair.now, Some(7000), (ADDRESS[1], PORT).into());
    assert_eq!((waits, again), (true, Err(SocketOpenError::InUse)));
    pair.run_for(SECOND * 60);
    use_port(&mut pair);
}
