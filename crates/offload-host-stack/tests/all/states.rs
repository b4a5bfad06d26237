//! Tests of opening and closing connections, with and without faults.

use crate::pair::{ADDRESS, FULL, HostPair, PORT, PairConfig, TCP};
use crate::transfer::{exchange, pattern};
use crate::wire::WireConfig;
use core::time::Duration;
use offload_base::Seed;
use offload_host_stack::{ConnectionError, TcpConfig, TcpState};
use smoltcp::wire::TcpPacket;

const SECOND: Duration = Duration::from_secs(1);

/// Drops up to `count` frames from `side` that `unwanted` selects.
fn drop_frames(pair: &mut HostPair, side: usize, mut count: u32, unwanted: fn(&TcpPacket<&[u8]>) -> bool) {
    pair.wire.filter = Some(Box::new(move |from, frame| {
        let hit = from == side && count > 0 && unwanted(&TcpPacket::new_unchecked(&frame[TCP..]));
        count -= u32::from(hit);
        hit
    }));
}

#[test]
fn lost_syn_or_syn_ack_is_repeated() {
    for side in 0..2 {
        let mut pair = HostPair::new(&PairConfig::default());
        drop_frames(&mut pair, side, 2, |tcp| tcp.syn());
        let ids = pair.open();
        assert!(pair.now.as_millis() >= 3000, "1 s, then 2 s");
        let data = pattern(Seed(1), 10_000);
        exchange(&mut pair, ids, [&data, &data], [1000, 1000]);
    }
}

#[test]
fn data_complete_a_handshake_without_its_last_ack() {
    let mut pair = HostPair::new(&PairConfig::default());
    drop_frames(&mut pair, 0, 1, |tcp| tcp.ack() && !tcp.syn());
    pair.stacks[1].listen(PORT, 1).unwrap();
    let client = pair.stacks[0].connect(pair.now, None, (ADDRESS[1], PORT).into()).unwrap();
    pair.run_until(|pair| pair.stacks[0].state(client) == TcpState::Established);
    pair.stacks[0].send_copy(client, b"hello");
    let mut server = None;
    pair.run_until(|pair| {
        server = pair.stacks[1].accept(PORT);
        server.is_some()
    });
    let mut got = Vec::new();
    pair.read(1, server.unwrap(), &mut got);
    assert_eq!(got, b"hello");
}

#[test]
fn initial_window_is_ten_segments() {
    // RFC 6928: the initial window is ten segments.
    let (mut pair, ids) = HostPair::connected(&PairConfig::default());
    pair.stacks[0].send_copy(ids[0], &pattern(Seed(1), 100_000));
    while pair.stacks[0].poll(pair.now, &mut pair.nics[0]) {}
    let stats = pair.stacks[0].stats(ids[0]);
    assert_eq!((stats.in_flight, stats.segment_size), (10 * FULL as u64, FULL));
}

#[test]
fn lost_fin_is_repeated_by_either_side() {
    for side in 0..2 {
        let (mut pair, ids) = HostPair::connected(&PairConfig::default());
        drop_frames(&mut pair, side, 3, |tcp| tcp.fin());
        let data = pattern(Seed(1), 10_000);
        exchange(&mut pair, ids, [&data, &data], [1000, 1000]);
        pair.run_for(SECOND);
        assert!(
            ids.iter()
                .enumerate()
                .all(|(side, id)| { matches!(pair.stacks[side].state(*id), TcpState::TimeWait | TcpState::Closed) })
        );
    }
}

#[test]
fn simultaneous_close_ends_in_time_wait() {
    let (mut pair, ids) = HostPair::connected(&PairConfig::default());
    for (stack, id) in pair.stacks.iter_mut().zip(ids) {
        stack.finish(id);
    }
    pair.run_for(SECOND);
    for (stack, id) in pair.stacks.iter_mut().zip(ids) {
        assert_eq!(stack.state(id), TcpState::TimeWait);
        assert!(stack.at_end(id));
    }
}

#[test]
fn simultaneous_open_establishes_the_connection() {
    let mut pair = HostPair::new(&PairConfig::default());
    let ids = [0, 1].map(|side| {
        let remote = (ADDRESS[1 - side], 5000).into();
        pair.stacks[side].connect(pair.now, Some(5000), remote).unwrap()
    });
    pair.run_for(SECOND);
    assert_eq!([0, 1].map(|side| pair.stacks[side].state(ids[side])), [TcpState::Established; 2]);
    let data = pattern(Seed(1), 10_000);
    exchange(&mut pair, ids, [&data, &data], [1000, 1000]);
}

#[test]
fn half_closed_connection_still_delivers_data() {
    let (mut pair, ids) = HostPair::connected(&PairConfig::default());
    pair.stacks[0].finish(ids[0]);
    pair.run_for(SECOND);
    assert_eq!((pair.stacks[0].state(ids[0]), pair.stacks[1].state(ids[1])), (TcpState::FinWait2, TcpState::CloseWait));
    assert!(pair.stacks[1].at_end(ids[1]));
    let data = pattern(Seed(1), 1_000_000);
    let (mut sent, mut got) = (0, Vec::new());
    pair.run_until(|pair| {
        let bytes = pair.stacks[1].room(ids[1]).min(data.len() - sent);
        pair.stacks[1].send_copy(ids[1], &data[sent..sent + bytes]);
        sent += bytes;
        if sent == data.len() {
            pair.stacks[1].finish(ids[1]);
        }
        pair.read(0, ids[0], &mut got);
        pair.stacks[0].at_end(ids[0])
    });
    assert!(got == data);
}

#[test]
fn closed_port_refuses_the_connection() {
    let mut pair = HostPair::new(&PairConfig::default());
    let client = pair.stacks[0].connect(pair.now, None, (ADDRESS[1], PORT).into()).unwrap();
    pair.run_until(|pair| pair.stacks[0].state(client) == TcpState::Closed);
    assert_eq!(pair.stacks[0].error(client), Some(ConnectionError::Refused));
    assert_eq!(pair.stacks[1].counters().out_resets, 1);
}

#[test]
fn unanswered_syn_times_out() {
    let wire = WireConfig { loss: 1.0, ..WireConfig::default() };
    let mut pair = HostPair::new(&PairConfig { wire, ..PairConfig::default() });
    let client = pair.stacks[0].connect(pair.now, None, (ADDRESS[1], PORT).into()).unwrap();
    pair.run_until(|pair| pair.stacks[0].state(client) == TcpState::Closed);
    assert_eq!(pair.stacks[0].error(client), Some(ConnectionError::TimedOut));
    assert_eq!(pair.now.as_millis(), 127_000, "1 + 2 + 4 + ... + 64 s, as in Linux");
}

#[test]
fn vanished_peer_times_out_with_or_without_application() {
    for detached in [false, true] {
        let (mut pair, ids) = HostPair::connected(&PairConfig::default());
        pair.stacks[0].send_copy(ids[0], &[0; 100_000]);
        pair.wire.config.loss = 1.0;
        if detached {
            pair.stacks[0].detach(pair.now, ids[0]);
            pair.run_until(|pair| pair.stacks[0].connections() == 0);
        } else {
            pair.run_until(|pair| pair.stacks[0].error(ids[0]).is_some());
            assert_eq!(pair.stacks[0].error(ids[0]), Some(ConnectionError::TimedOut));
        }
        assert_eq!(pair.stacks[0].counters().aborts_on_timeout, 1);
    }
}

#[test]
fn data_before_a_reset_can_be_read() {
    let (mut pair, ids) = HostPair::connected(&PairConfig::default());
    pair.stacks[0].send_copy(ids[0], b"last words");
    pair.run_for(SECOND);
    pair.stacks[0].abort(ids[0]);
    pair.run_for(SECOND);
    assert_eq!(pair.stacks[0].error(ids[0]), Some(ConnectionError::Aborted));
    assert_eq!(pair.stacks[1].error(ids[1]), Some(ConnectionError::Reset));
    let mut got = Vec::new();
    pair.read(1, ids[1], &mut got);
    assert_eq!(got, b"last words");
    for (stack, id) in pair.stacks.iter_mut().zip(ids) {
        stack.detach(pair.now, id);
        assert_eq!(stack.connections(), 0);
    }
}

#[test]
fn dropped_stream_delivers_and_resets_unread_data() {
    let wire = WireConfig { loss: 0.05, ..WireConfig::default() };
    let (mut pair, ids) = HostPair::connected(&PairConfig { wire, ..PairConfig::default() });
    let data = pattern(Seed(1), 200_000);
    pair.stacks[0].send_copy(ids[0], &data);
    pair.stacks[1].send_copy(ids[1], &data);
    pair.stacks[0].detach(pair.now, ids[0]);
    let mut got = Vec::new();
    pair.run_until(|pair| {
        pair.read(1, ids[1], &mut got);
        got.len() == data.len() && pair.stacks[0].connections() == 0
    });
    assert!(got == data);
    // The reset may be lost. Then the peer's next data cause another one.
    pair.stacks[1].send_copy(ids[1], b"anyone?");
    pair.run_until(|pair| pair.stacks[1].error(ids[1]).is_some());
    assert_eq!(pair.stacks[1].error(ids[1]), Some(ConnectionError::Reset));
    assert_eq!(pair.stacks[0].counters().aborts_on_data, 1);
}

#[test]
fn dropped_stream_times_out_in_fin_wait_2() {
    let (mut pair, ids) = HostPair::connected(&PairConfig::default());
    pair.stacks[0].detach(pair.now, ids[0]);
    pair.run_for(SECOND * 61);
    assert_eq!(pair.stacks[0].connections(), 0);
    pair.stacks[1].send_copy(ids[1], b"anyone?");
    pair.run_for(SECOND);
    assert_eq!(pair.stacks[1].error(ids[1]), Some(ConnectionError::Reset));
}

#[test]
fn listener_keeps_to_its_backlog() {
    let mut pair = HostPair::new(&PairConfig::default());
    pair.stacks[1].listen(PORT, 3).unwrap();
    let clients: Vec<_> =
        (0..10).map(|_| pair.stacks[0].connect(pair.now, None, (ADDRESS[1], PORT).into()).unwrap()).collect();
    pair.run_for(SECOND / 2);
    assert!(pair.stacks[1].connections() <= 6);
    assert!(pair.stacks[1].counters().listen_drops > 0);
    let mut accepted = 0;
    pair.run_until(|pair| {
        accepted += usize::from(pair.stacks[1].accept(PORT).is_some());
        accepted == clients.len()
    });
}

#[test]
fn closed_listener_resets_unaccepted_connections() {
    let mut pair = HostPair::new(&PairConfig::default());
    pair.stacks[1].listen(PORT, 3).unwrap();
    let client = pair.stacks[0].connect(pair.now, None, (ADDRESS[1], PORT).into()).unwrap();
    pair.run_for(SECOND);
    pair.stacks[1].close_listener(pair.now, PORT);
    pair.run_for(SECOND);
    assert_eq!(pair.stacks[0].error(client), Some(ConnectionError::Reset));
    assert_eq!(pair.stacks[1].connections(), 0);
}

#[test]
fn time_wait_flow_yields_to_a_new_connection() {
    let mut pair = HostPair::new(&PairConfig::default());
    pair.stacks[1].listen(PORT, 3).unwrap();
    for round in 0..3 {
        let client = pair.stacks[0].connect(pair.now, Some(7000), (ADDRESS[1], PORT).into()).unwrap();
        pair.run_until(|pair| pair.stacks[0].state(client) == TcpState::Established);
        pair.run_for(SECOND);
        let server = pair.stacks[1].accept(PORT).unwrap();
        // The server closes first and therefore enters TIME-WAIT.
        pair.stacks[1].detach(pair.now, server);
        pair.run_for(SECOND);
        pair.stacks[0].detach(pair.now, client);
        pair.run_for(SECOND);
        assert_eq!((pair.stacks[0].connections(), pair.stacks[1].connections()), (0, 1), "round {round}");
    }
}

#[test]
fn only_a_repeated_fin_restarts_time_wait() {
    for fin in [false, true] {
        let (mut pair, ids) = HostPair::connected(&PairConfig::default());
        let kept = std::sync::Arc::new(std::sync::Mutex::new(None));
        let keep = kept.clone();
        pair.wire.filter = Some(Box::new(move |from, frame| {
            let tcp = TcpPacket::new_unchecked(&frame[TCP..]);
            if from == 1 && tcp.fin() == fin && tcp.segment_len() > 0 {
                keep.lock().unwrap().get_or_insert(frame.to_vec());
            }
            false
        }));
        let data = pattern(Seed(1), 10_000);
        exchange(&mut pair, ids, [&data, &data], [1000, 1000]);
        pair.stacks[0].detach(pair.now, ids[0]);
        pair.run_for(30 * SECOND);
        let frame = kept.lock().unwrap().take().expect("a segment");
        pair.nics[0].port().deliver(&frame);
        pair.run_for(31 * SECOND);
        assert_eq!(pair.stacks[0].connections(), usize::from(fin));
        pair.run_for(30 * SECOND);
        assert_eq!(pair.stacks[0].connections(), 0);
    }
}

#[test]
fn closed_window_reopens_despite_lost_updates() {
    let small = TcpConfig { receive_buffer: 20_000, ..TcpConfig::default() };
    let setup = PairConfig { tcp: [TcpConfig::default(), small], ..PairConfig::default() };
    let (mut pair, ids) = HostPair::connected(&setup);
    let data = pattern(Seed(1), 100_000);
    pair.stacks[0].send_copy(ids[0], &data);
    pair.stacks[0].finish(ids[0]);
    pair.run_for(SECOND * 10);
    assert!(pair.stacks[0].counters().window_probes > 0);
    assert!(pair.stacks[1].counters().to_zero_window > 0);
    assert_eq!(pair.stacks[0].counters().timeouts, 0);
    let mut got = Vec::new();
    // Three window updates are lost, and the probes find the open window.
    drop_frames(&mut pair, 1, 3, |tcp| tcp.window_len() > 0);
    pair.run_until(|pair| {
        pair.read(1, ids[1], &mut got);
        pair.stacks[1].at_end(ids[1])
    });
    assert!(got == data);
}

#[test]
fn closed_window_does_not_time_out_an_answering_peer() {
    let small = TcpConfig { receive_buffer: 20_000, ..TcpConfig::default() };
    let setup = PairConfig { tcp: [TcpConfig::default(), small], ..PairConfig::default() };
    let (mut pair, ids) = HostPair::connected(&setup);
    pair.stacks[0].send_copy(ids[0], &[0; 100_000]);
    pair.run_for(SECOND * 36_000);
    assert_eq!(pair.stacks[0].state(ids[0]), TcpState::Established);
}

#[test]
fn sequence_numbers_wrap() {
    for initial in [u32::MAX, u32::MAX - 1, u32::MAX - 100_000, 0x7fff_ffff - 100_000] {
        let tcp = TcpConfig { initial_sequence: Some(initial), ..TcpConfig::default() };
        let wire = WireConfig { loss: 0.02, reorder: 0.02, ..WireConfig::default() };
        let (mut pair, ids) =
            HostPair::connected(&PairConfig { tcp: [tcp.clone(), tcp], wire, ..PairConfig::default() });
        let data = pattern(Seed(1), 300_000);
        exchange(&mut pair, ids, [&data, &data], [5000, 5000]);
    }
}

#[test]
fn small_writes_are_joined_without_nodelay() {
    for (nodelay, segments) in [(false, 2), (true, 50)] {
        let tcp = TcpConfig { nodelay, ..TcpConfig::default() };
        let (mut pair, ids) = HostPair::connected(&PairConfig { tcp: [tcp.clone(), tcp], ..PairConfig::default() });
        let before = pair.nics[0].port().packets;
        for _ in 0..50 {
            pair.stacks[0].send_copy(ids[0], b"tiny");
            pair.run_now();
        }
        pair.run_for(SECOND);
        assert_eq!(pair.nics[0].port().packets - before, segments);
        let mut got = Vec::new();
        pair.read(1, ids[1], &mut got);
        assert_eq!(got.len(), 200);
    }
}

#[test]
fn acknowledgment_is_delayed() {
    let (mut pair, ids) = HostPair::connected(&PairConfig::default());
    // After the quick acknowledgments of a new connection.
    for _ in 0..20 {
        pair.stacks[0].send_copy(ids[0], b"warm up");
        pair.run_for(SECOND / 10);
    }
    let before = pair.nics[1].port().packets;
    pair.stacks[0].send_copy(ids[0], b"one");
    pair.run_for(Duration::from_millis(39));
    assert_eq!(pair.nics[1].port().packets, before);
    pair.run_for(Duration::from_millis(2));
    assert_eq!(pair.nics[1].port().packets, before + 1);
}
