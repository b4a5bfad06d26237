//! `--watch`: the progress of a run, step by step, on standard error.
//!
//! On a terminal each screen replaces the last one: rates, and every counter that moved in the step, with its `ethtool
//! -S` name. Elsewhere each step is a line. Rates are per second of the run's clock.

use core::time::Duration;
use offload_bench_tls::live::{HostSample, Sample};
use std::io::{self, IsTerminal, Write};
use std::sync::{Mutex, PoisonError};

/// The display of `--watch`, with the last sample.
pub(crate) struct CounterWatch {
    redraws: bool,
    shown: Mutex<WatchState>,
}

#[derive(Default)]
struct WatchState {
    last: Option<Sample>,
    /// Lines of the last screen, which the next screen replaces.
    lines: usize,
}

impl CounterWatch {
    pub(crate) fn on_standard_error() -> CounterWatch {
        CounterWatch { redraws: io::stderr().is_terminal(), shown: Mutex::default() }
    }

    pub(crate) fn show(&self, sample: &Sample) {
        let mut shown = self.shown.lock().unwrap_or_else(PoisonError::into_inner);
        // Another mode, or an earlier time, belongs to a new run whose counters start from zero.
        let last = shown.last.take().filter(|last| last.mode == sample.mode && last.at < sample.at);
        let mut text = String::new();
        if self.redraws {
            let screen = screen(last.as_ref(), sample);
            // The last screen of another mode stays visible.
            if last.is_some() && shown.lines > 0 {
                text = format!("\x1b[{}A\x1b[J", shown.lines);
            }
            shown.lines = screen.lines().count();
            text += &screen;
        } else {
            text = line(last.as_ref(), sample);
        }
        shown.last = Some(sample.clone());
        // A closed standard error must not end the run.
        let _ = io::stderr().write_all(text.as_bytes());
    }
}

/// Formats a step as a line.
fn line(last: Option<&Sample>, now: &Sample) -> String {
    let step = SampleStep { last, now };
    let counted = |name: &str| {
        let (before, after) = (step.total_before(name), total(now, name));
        format!("{after} (+{})", after.saturating_sub(before))
    };
    format!(
        "{:<8} {:>9} {:>8.2} Gb/s  retransmits {}  lost place {}  found {}  sent out of order {}  contexts {} + {}\n",
        now.mode,
        clock(now.at),
        step.gbps(),
        counted(RETRANSMITS),
        counted(LOST),
        counted(FOUND),
        counted(OUT_OF_ORDER),
        now.sender.contexts,
        now.receiver.contexts,
    )
}

/// Formats a step as a screen.
fn screen(last: Option<&Sample>, now: &Sample) -> String {
    let step = SampleStep { last, now };
    let mut text = format!(
        "{}  at {}  {:.2} Gb/s  {:.1} MiB received\n{:<30} {:>26} {:>26}\n{:<30} {:>26} {:>26}\n",
        now.mode,
        clock(now.at),
        step.gbps(),
        now.received as f64 / f64::from(1 << 20),
        "",
        "sender",
        "receiver",
        "contexts",
        now.sender.contexts,
        now.receiver.contexts,
    );
    let mut names: Vec<&str> = now.sender.counters.iter().chain(now.receiver.counters.iter()).map(|of| of.0).collect();
    names.sort_unstable();
    names.dedup();
    // A counter is shown if it moved at either host, so that both columns stay comparable.
    let moved = |name: &&str| {
        step.moved(name, &now.sender, |last| &last.sender) || step.moved(name, &now.receiver, |last| &last.receiver)
    };
    // The most important counters come first.
    names.sort_by_key(|name| !FIRST.contains(name));
    let moved: Vec<&str> = names.into_iter().filter(|name| FIRST.contains(name) || moved(name)).collect();
    for name in moved.iter().take(MAX_ROWS) {
        let sender = step.cell(name, &now.sender, |last| &last.sender);
        let receiver = step.cell(name, &now.receiver, |last| &last.receiver);
        text += &format!("{name:<30} {sender:>26} {receiver:>26}\n");
    }
    // More rows would scroll, and a scrolled screen cannot be redrawn in place.
    let more = moved.len().saturating_sub(MAX_ROWS);
    if more > 0 {
        text += &format!("... and {more} more\n");
    }
    text
}

/// The interval from the previous sample to the current one.
struct SampleStep<'a> {
    last: Option<&'a Sample>,
    now: &'a Sample,
}

impl SampleStep<'_> {
    fn seconds(&self) -> f64 {
        (self.now.at - self.last.map_or(Duration::ZERO, |last| last.at)).as_secs_f64().max(1e-9)
    }

    fn gbps(&self) -> f64 {
        let received = self.now.received - self.last.map_or(0, |last| last.received);
        received as f64 * 8.0 / self.seconds() / 1e9
    }

    fn total_before(&self, name: &str) -> u64 {
        self.last.map_or(0, |last| total(last, name))
    }

    fn difference(&self, name: &str, now: &HostSample, of: fn(&Sample) -> &HostSample) -> u64 {
        let before = self.last.map_or(0, |last| of(last).counters.value(name));
        now.counters.value(name).saturating_sub(before)
    }

    fn moved(&self, name: &str, now: &HostSample, of: fn(&Sample) -> &HostSample) -> bool {
        self.difference(name, now, of) > 0
    }

    /// Formats a counter and its rate.
    fn cell(&self, name: &str, now: &HostSample, of: fn(&Sample) -> &HostSample) -> String {
        let rate = self.difference(name, now, of) as f64 / self.seconds();
        format!("{} {:>11}", now.counters.value(name), short(rate) + "/s")
    }
}

/// Returns a counter's sum over both hosts.
fn total(sample: &Sample, name: &str) -> u64 {
    sample.sender.counters.value(name) + sample.receiver.counters.value(name)
}

/// Formats a number in few characters: `81.3k`.
fn short(value: f64) -> String {
    match value {
        value if value >= 1e9 => format!("{:.1}G", value / 1e9),
        value if value >= 1e6 => format!("{:.1}M", value / 1e6),
        value if value >= 1e3 => format!("{:.1}k", value / 1e3),
        value => format!("{value:.0}"),
    }
}

/// Formats a time of the run's clock.
fn clock(at: Duration) -> String {
    if at >= Duration::from_secs(1) {
        format!("{:.1}s", at.as_secs_f64())
    } else {
        format!("{:.2}ms", at.as_secs_f64() * 1e3)
    }
}

const RETRANSMITS: &str = "TcpRetransSegs";
const LOST: &str = "rx_tls_lost";
const FOUND: &str = "rx_tls_found";
const OUT_OF_ORDER: &str = "tx_tls_ooo";
/// Counters in the first rows of a screen, even if they did not move.
const FIRST: [&str; 6] = ["tx_packets", "rx_packets", RETRANSMITS, LOST, FOUND, OUT_OF_ORDER];
/// Maximum number of counter rows: a screen of 24 lines with the three heading lines and the line of omitted counters.
const MAX_ROWS: usize = 19;

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use offload_base::counters::CounterSet;

    offload_base::counters! {
        /// Some counters of a host.
        pub(crate) struct SampleCounters {
            /// Frames.
            pub frames: "tx_packets",
            /// Retransmitted segments.
            pub again: "TcpRetransSegs",
            /// Lost places.
            pub lost: "rx_tls_lost",
            /// Answers.
            pub answers: "rx_tls_resync_res_ok",
        }
    }

    pub(crate) fn sample(at: Duration, received: u64, counted: SampleCounters) -> Sample {
        let host = || {
            let mut counters = CounterSet::default();
            counters.add(&counted);
            HostSample { counters, contexts: 8 }
        };
        Sample { mode: "tls-nic".into(), at, received, sender: host(), receiver: host() }
    }

    #[test]
    fn line_shows_totals_and_changes() {
        let before =
            sample(Duration::from_millis(1), 1_000_000, SampleCounters { again: 2, ..SampleCounters::default() });
        let now = sample(
            Duration::from_millis(2),
            11_000_000,
            SampleCounters { again: 5, lost: 1, ..SampleCounters::default() },
        );
        assert_eq!(
            line(Some(&before), &now),
            "tls-nic     2.00ms    80.00 Gb/s  retransmits 10 (+6)  lost place 2 (+2)  found 0 (+0)  sent out of order 0 (+0)  \
             contexts 8 + 8\n"
        );
        assert!(line(None, &before).contains("retransmits 4 (+4)"));
    }

    #[test]
    fn screen_shows_only_moved_counters() {
        let counted = SampleCounters { frames: 9, answers: 3, ..SampleCounters::default() };
        let before = sample(Duration::from_millis(1), 0, counted);
        let now = sample(Duration::from_millis(2), 0, SampleCounters { frames: 1_009, ..counted });
        let (first, next) = (screen(None, &now), screen(Some(&before), &now));
        assert!(first.contains("rx_tls_resync_res_ok") && !next.contains("rx_tls_resync_res_ok"), "{next}");
        assert!(next.contains("1009      1.0M/s"), "{next}");
        assert!(next.contains("TcpRetransSegs") && next.lines().count() <= 24, "{next}");
    }
}
