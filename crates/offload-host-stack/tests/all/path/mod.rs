//! Tests of long fat paths in virtual time, over emulated NICs: throughput by window, rate and loss.
//!
//! The round trip takes 274 ms. Packets have 9000 bytes and are cut by the NIC, so that few packets must be simulated.
//! The law of windows concerns the receiver's window, so in these tests the sender's window starts above it, and each
//! row counts the bytes of the second round trip. The paced streams start the same way.

mod bed;

use bed::PathTestbed;
use core::num::NonZeroU64;
use core::time::Duration;
use nic_sim::NicConfig;
use nic_sim::wire::LinkConfig;
use nic_sim::wire::impairment::{Impairments, Share};
use offload_base::Seed;
use offload_host_stack::TcpConfig;
use std::fmt::Write;

const ROUND_TRIP: Duration = Duration::from_millis(274);
const MIB: usize = 1 << 20;

fn tcp(window: usize) -> TcpConfig {
    TcpConfig { receive_buffer: window, send_buffer: 2 * window + MIB, ..TcpConfig::default() }
}

/// Like [`tcp`], with both windows at their maximum from the start.
fn open(window: usize) -> TcpConfig {
    let initial_window = (window / 8000) as u32;
    TcpConfig { initial_window, initial_receive_buffer: window, ..tcp(window) }
}

fn nic(line_rate: u64) -> NicConfig {
    NicConfig { mtu: 9000, line_rate: Some(line_rate), ..NicConfig::default() }
}

fn link(rate: u64) -> LinkConfig {
    LinkConfig { rate: Some(rate), delay: ROUND_TRIP / 2, ..LinkConfig::default() }
}

fn gigabits(bytes: u64, span: Duration) -> f64 {
    bytes as f64 * 8.0 / span.as_nanos() as f64
}

#[test]
fn the_law_of_windows() {
    let mut table = String::from("buffer MiB  window MiB  window / RTT, Gb/s  arrived, Gb/s  of that\n");
    for buffer in [1, 4, 16, 64, 256, 512] {
        let mut bed = PathTestbed::new(Seed(1), &open(buffer * MIB), &nic(100_000_000_000), &link(100_000_000_000));
        bed.open(None);
        bed.run_for(ROUND_TRIP);
        let span = ROUND_TRIP;
        let arrived = gigabits(bed.run_for(span)[0], span);
        let window = bed.stats(0).peer_window;
        let law = gigabits(window, ROUND_TRIP);
        let share = arrived / law;
        assert!((0.95..1.05).contains(&share), "{buffer} MiB: {share}");
        let window = window as f64 / MIB as f64;
        writeln!(table, "{buffer:>10}  {window:>10.1}  {law:>18.3}  {arrived:>13.3}  {share:>7.3}").unwrap();
    }
    insta::assert_snapshot!(table);
}

/// With losses, the sender's window is the smaller one most of the time.
#[test]
fn the_law_of_windows_under_loss() {
    let mut table = String::from("lost, %  window MiB  arrived, Gb/s  of window / RTT  windows cut  timeouts\n");
    for loss in [0.0, 0.0001, 0.001, 0.01] {
        let impairments = Impairments { loss: Share::new(loss).unwrap(), ..Impairments::default() };
        let link = LinkConfig { impairments, ..link(100_000_000_000) };
        let mut bed = PathTestbed::new(Seed(1), &open(16 * MIB), &nic(100_000_000_000), &link);
        bed.open(None);
        bed.run_for(ROUND_TRIP);
        let span = 20 * ROUND_TRIP;
        let arrived = gigabits(bed.run_for(span)[0], span);
        let window = bed.stats(0).peer_window;
        let share = arrived / gigabits(window, ROUND_TRIP);
        let counters = bed.stacks[0].counters();
        let (cuts, timeouts) = (counters.sack_recoveries, counters.timeouts);
        let (percent, window) = (loss * 100.0, window as f64 / MIB as f64);
        writeln!(table, "{percent:>7}  {window:>10.1}  {arrived:>13.3}  {share:>15.3}  {cuts:>11}  {timeouts:>8}")
            .unwrap();
    }
    insta::assert_snapshot!(table);
}

#[test]
fn a_path_of_ten_gigabits_is_filled() {
    let mut bed = PathTestbed::new(Seed(1), &tcp(512 * MIB), &nic(10_000_000_000), &link(10_000_000_000));
    bed.open(None);
    let mut table = String::from("round trips  arrived, Gb/s  window, MiB\n");
    let mut last = 0.0;
    for rounds in 1..=8 {
        let span = 2 * ROUND_TRIP;
        last = gigabits(bed.run_for(span)[0], span);
        let window = bed.stats(0).congestion_window as f64 / MIB as f64;
        writeln!(table, "{:>11}  {last:>13.3}  {window:>11.1}", 2 * rounds).unwrap();
    }
    assert!(last > 9.0, "{table}");
    insta::assert_snapshot!(table);
}

#[test]
fn eight_paced_streams_share_it() {
    let mut bed = PathTestbed::new(Seed(1), &open(64 * MIB), &nic(10_000_000_000), &link(10_000_000_000));
    // An eighth of 97 % of the line rate.
    let rate = NonZeroU64::new(10_000_000_000 / 8 * 97 / 100 / 8);
    (0..8).for_each(|_| bed.open(rate));
    bed.run_for(ROUND_TRIP * 3 / 2);
    let span = ROUND_TRIP;
    let shares: Vec<f64> = bed.run_for(span).iter().map(|bytes| gigabits(*bytes, span)).collect();
    let sum: f64 = shares.iter().sum();
    // Jain's fairness index: 1 if all shares are equal.
    let fairness = sum * sum / (8.0 * shares.iter().map(|share| share * share).sum::<f64>());
    assert!(fairness > 0.95 && sum > 9.0, "{fairness}: {shares:?}");
    let shares: Vec<String> = shares.iter().map(|share| format!("{share:.3}")).collect();
    insta::assert_snapshot!(format!("Gb/s each: {}; sum {sum:.3}; fairness {fairness:.4}", shares.join(" ")));
}

/// Returns the largest share of a round trip's bytes that arrives within a tenth of it, and the bytes of two round
/// trips.
fn burst(settings: impl FnOnce(&mut offload_host_stack::Stack, offload_host_stack::FlowId)) -> (f64, u64) {
    let mut bed = PathTestbed::new(Seed(1), &open(16 * MIB), &nic(100_000_000_000), &link(100_000_000_000));
    bed.open_with(settings);
    bed.run_for(ROUND_TRIP * 3 / 2);
    let slices: Vec<u64> = (0..20).map(|_| bed.run_for(ROUND_TRIP / 10)[0]).collect();
    let whole: u64 = slices.iter().sum();
    (slices.iter().copied().max().unwrap_or(0) as f64 * 2.0 / whole as f64, whole)
}

#[test]
fn paced_window_is_spread_over_the_round_trip() {
    let [unpaced, paced] = [false, true].map(|paced| burst(|stack, id| stack.set_paced(id, paced)));
    assert!(unpaced.0 > 0.9, "a window in one burst: {unpaced:?}");
    // In slow start at twice the rate, so within half of the time.
    assert!(paced.0 < 0.25, "{paced:?}");
    assert!((0.95..1.05).contains(&(paced.1 as f64 / unpaced.1 as f64)), "{paced:?} and {unpaced:?}");
    let most = NonZeroU64::new(1_000_000);
    let (_, bytes) = burst(|stack, id| {
        stack.set_paced(id, true);
        stack.set_pacing_rate(id, most);
    });
    assert!((400_000..560_000).contains(&bytes), "{bytes} in 0.548 s at one megabyte per second with headers");
}
