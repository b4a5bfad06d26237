//! Tests of a device without room: pending packets leave as soon as there is room, and not a timeout later.

use crate::pair::{HostPair, PairConfig};
use core::time::Duration;

/// Lets `span` pass without room in side 0's device, then makes room. Returns the number of frames that leave.
fn starve(pair: &mut HostPair, span: Duration) -> usize {
    pair.nics[0].port().ring = 0;
    pair.run_for(span);
    pair.nics[0].port().ring = usize::MAX;
    while pair.stacks[0].poll(pair.now, &mut pair.nics[0]) {}
    pair.nics[0].port().drain().len()
}

#[test]
fn window_probe_waits_for_room() {
    let mut setup = PairConfig::default();
    setup.tcp[1].receive_buffer = 20_000;
    let (mut pair, ids) = HostPair::connected(&setup);
    pair.stacks[0].send_copy(ids[0], &[7; 50_000]);
    pair.stacks[0].push(ids[0]);
    // The rest of the window is used first, by a short segment after a wait.
    pair.run_until(|pair| pair.stacks[0].counters().window_probes > 0);
    pair.run_for(Duration::from_millis(10));
    pair.nics[0].port().ring = 0;
    pair.run_until(|pair| pair.stacks[0].counters().window_probes > 1);
    assert_eq!(starve(&mut pair, Duration::from_millis(1)), 1);
}

#[test]
fn tail_loss_probe_waits_for_room() {
    let (mut pair, ids) = HostPair::connected(&PairConfig::default());
    pair.wire.config.loss = 1.0;
    pair.stacks[0].send_copy(ids[0], &[7; 1000]);
    pair.stacks[0].push(ids[0]);
    pair.run_now();
    assert_eq!(starve(&mut pair, Duration::from_millis(100)), 1);
    let counters = pair.stacks[0].counters();
    assert_eq!((counters.loss_probes, counters.timeouts), (1, 0));
}

#[test]
fn acknowledgment_and_reset_wait_for_room() {
    let (mut pair, ids) = HostPair::connected(&PairConfig::default());
    pair.nics[0].port().ring = 0;
    pair.stacks[1].send_copy(ids[1], &[7; 100]);
    pair.stacks[1].push(ids[1]);
    assert_eq!(starve(&mut pair, Duration::from_millis(100)), 1);
    pair.stacks[0].abort(ids[0]);
    assert_eq!(starve(&mut pair, Duration::from_millis(1)), 1);
    assert_eq!(pair.stacks[0].counters().out_resets, 1);
}
