//! Tests of keep-alive probes and the user timeout.

use crate::pair::{HostPair, PairConfig};
use core::time::Duration;
use offload_host_stack::{ConnectionError, FlowId, KeepAlive, TcpConfig, TcpState};

const SECOND: Duration = Duration::from_secs(1);
const KEEP_ALIVE: KeepAlive = KeepAlive { idle: Duration::from_secs(60), interval: Duration::from_secs(5), probes: 3 };

/// Returns a pair with `tcp` on side 0, which has just heard from its peer.
fn connected(tcp: TcpConfig) -> (HostPair, [FlowId; 2]) {
    let (mut pair, ids) =
        HostPair::connected(&PairConfig { tcp: [tcp, TcpConfig::default()], ..PairConfig::default() });
    pair.stacks[0].send_copy(ids[0], b"hello");
    pair.run_for(SECOND / 10);
    (pair, ids)
}

/// Cuts the wire. Returns the seconds until side 0 gives up.
fn cut(pair: &mut HostPair, id: FlowId) -> u64 {
    pair.wire.filter = Some(Box::new(|_, _| true));
    let begin = pair.now;
    while pair.stacks[0].error(id).is_none() {
        pair.run_for(SECOND / 10);
    }
    assert_eq!(pair.stacks[0].error(id), Some(ConnectionError::TimedOut));
    (pair.now - begin + SECOND / 2).as_secs()
}

#[test]
fn answering_peer_is_probed_and_kept() {
    let (mut pair, ids) = connected(TcpConfig { keep_alive: Some(KEEP_ALIVE), ..TcpConfig::default() });
    pair.run_for(SECOND * 601);
    assert_eq!(pair.stacks[0].counters().keep_alives, 10, "one probe per minute");
    assert_eq!([0, 1].map(|side| pair.stacks[side].state(ids[side])), [TcpState::Established; 2]);
    // While the peer sends data, no probe is needed.
    for _ in 0..20 {
        pair.stacks[1].send_copy(ids[1], b"still here");
        pair.run_for(SECOND * 30);
    }
    pair.stacks[0].set_keep_alive(pair.now, ids[0], None);
    pair.run_for(SECOND * 600);
    assert!(pair.stacks[0].counters().keep_alives <= 11);
}

#[test]
fn silent_peer_is_given_up_after_the_configured_probes() {
    let (mut pair, ids) = connected(TcpConfig::default());
    pair.stacks[0].set_keep_alive(pair.now, ids[0], Some(KEEP_ALIVE));
    assert_eq!(cut(&mut pair, ids[0]), 60 + 3 * 5);
    assert_eq!(pair.stacks[0].counters().keep_alives, 3);
    assert_eq!(pair.stacks[0].counters().out_resets, 1);
}

#[test]
fn keep_alive_probe_reveals_a_lost_connection() {
    let (mut pair, ids) = connected(TcpConfig { keep_alive: Some(KEEP_ALIVE), ..TcpConfig::default() });
    pair.wire.filter = Some(Box::new(|_, _| true));
    // The reset is lost on the cut wire, so side 0 does not know.
    pair.stacks[1].abort(ids[1]);
    pair.stacks[1].detach(pair.now, ids[1]);
    pair.run_for(SECOND);
    pair.wire.filter = None;
    pair.run_for(SECOND * 60);
    assert_eq!(pair.stacks[0].error(ids[0]), Some(ConnectionError::Reset));
}

#[test]
fn user_timeout_limits_unacknowledged_time() {
    // Shorter and longer than the retransmissions would take.
    for seconds in [1, 30, 3000] {
        let user_timeout = Some(SECOND * seconds);
        let (mut pair, ids) = connected(TcpConfig { user_timeout, ..TcpConfig::default() });
        pair.stacks[0].send_copy(ids[0], b"first");
        pair.run_for(SECOND * 5000);
        assert_eq!(pair.stacks[0].state(ids[0]), TcpState::Established, "an idle connection has no time limit");
        pair.stacks[0].send_copy(ids[0], b"second");
        assert_eq!(cut(&mut pair, ids[0]), u64::from(seconds));
    }
}

#[test]
fn acknowledgment_restarts_the_user_timeout() {
    let (mut pair, ids) = connected(TcpConfig { user_timeout: Some(SECOND * 2), ..TcpConfig::default() });
    for _ in 0..10 {
        pair.stacks[0].send_copy(ids[0], &[1; 5000]);
        pair.run_for(SECOND);
    }
    // The peer accepts as much as its buffer holds, and then nothing for too long.
    pair.stacks[0].send_copy(ids[0], &vec![1; 20 << 20]);
    let begin = pair.now;
    pair.run_until(|pair| pair.stacks[0].error(ids[0]).is_some());
    assert!(pair.stacks[0].stats(ids[0]).bytes_acknowledged > 60_000);
    assert!(pair.now - begin >= SECOND * 2);
}

/// No probe was sent before the first one is due, so the silence before counts for nothing.
#[test]
fn short_user_timeout_keeps_an_answering_peer() {
    let tcp = TcpConfig { keep_alive: Some(KEEP_ALIVE), user_timeout: Some(SECOND * 10), ..TcpConfig::default() };
    let (mut pair, ids) = connected(tcp);
    pair.run_for(SECOND * 1000);
    assert_eq!(pair.stacks[0].state(ids[0]), TcpState::Established);
    assert!(pair.stacks[0].counters().keep_alives > 10);
    assert!(cut(&mut pair, ids[0]) <= 65, "the second unanswered probe is beyond the timeout");
}

#[test]
fn user_timeout_ends_a_silent_connection() {
    let tcp = TcpConfig { keep_alive: Some(KEEP_ALIVE), user_timeout: Some(SECOND * 62), ..TcpConfig::default() };
    let (mut pair, ids) = connected(tcp);
    assert_eq!(cut(&mut pair, ids[0]), 65, "at the first probe after the timeout");
}
