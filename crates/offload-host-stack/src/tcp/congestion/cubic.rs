//! CUBIC (RFC 9438): after a loss the window returns to its previous value along a cubic curve of time, stays near it,
//! and then probes for more. Where Reno's window would be larger, CUBIC follows Reno.
//!
//! ```text
//! W_cubic(t) = C * (t - K)^3 + W_max        t: time since congestion avoidance began; K: time at which the curve is at W_max
//! ```
//!
//! The names are those of the RFC's section 4.1.2. Windows are in bytes, times on the curve in microseconds. The
//! remainder of each division is kept for the next division, so that small acknowledgments count in full.

use super::slow_start::SlowStart;
use super::{AckedBytes, CongestionControl, CongestionSignal, MAX_WINDOW, rescaled};
use core::time::Duration;
use offload_base::Instant;

#[derive(Clone, Debug)]
pub(crate) struct Cubic {
    mss: u64,
    /// Initial window, in segments.
    initial: u32,
    window: u64,
    threshold: u64,
    slow_start: SlowStart,
    /// Window before the last reduction, or less if it had not returned to the previous one.
    w_max: u64,
    /// Window before the last reduction.
    cwnd_prior: u64,
    /// State while data are in flight. `None` for an idle connection.
    course: Option<Box<ActiveState>>,
}

/// State needed only while data are in flight.
#[derive(Clone, Copy, Debug, Default)]
struct ActiveState {
    epoch: Option<CubicEpoch>,
    before: Option<CubicUndo>,
}

/// Congestion avoidance from its start to the next reduction.
#[derive(Clone, Copy, Debug)]
struct CubicEpoch {
    /// Start, moved to a later time by each period in which the window was not used.
    began: Instant,
    /// Time at which the window was last used.
    used_at: Instant,
    /// Whether the window is unused now.
    unused: bool,
    /// Time at which the curve reaches `origin`, in microseconds.
    k: u64,
    origin: u64,
    /// Reno's window.
    w_est: u64,
    /// Remainder of the window's growth.
    rest: u64,
    /// Remainder of the Reno window's growth.
    est_rest: u64,
}

/// State to restore if the last reduction was spurious.
#[derive(Clone, Copy, Debug)]
struct CubicUndo {
    window: u64,
    threshold: u64,
    w_max: u64,
    cwnd_prior: u64,
    epoch: Option<CubicEpoch>,
}

impl Cubic {
    pub(crate) fn new(mss: u64, initial_segments: u32) -> Cubic {
        Cubic {
            mss,
            initial: initial_segments,
            window: u64::from(initial_segments) * mss,
            threshold: u64::MAX,
            slow_start: SlowStart::default(),
            w_max: 0,
            cwnd_prior: 0,
            course: None,
        }
    }

    fn epoch(&self) -> Option<CubicEpoch> {
        self.course.as_ref().and_then(|course| course.epoch)
    }

    fn active_state(&mut self) -> &mut ActiveState {
        self.course.get_or_insert_default()
    }

    fn begin_epoch(&mut self, now: Instant) -> CubicEpoch {
        if self.w_max == 0 {
            // RFC 9438 4.8, 4.10: after a timeout, or after a slow start without a loss, the curve starts at its
            // middle.
            self.w_max = self.window;
        }
        // The curve's position for this window: before its middle, or after it if the connection continues after a
        // quiet time.
        let (began, k) = match self.window >= self.w_max {
            true => (back(now, self.k_for(self.window - self.w_max)), 0),
            false => (now, self.k_for(self.w_max - self.window)),
        };
        let (origin, w_est) = (self.w_max, self.window);
        CubicEpoch { began, used_at: now, unused: false, k, origin, w_est, rest: 0, est_rest: 0 }
    }

    /// Returns K in microseconds (RFC 9438 (2)): the cube root of `below` bytes, in segments, divided by C.
    fn k_for(&self, below: u64) -> u64 {
        let cube = u128::from(below) * MICROS_CUBED * C_DENOMINATOR / (C_NUMERATOR * u128::from(self.mss));
        cube_root(cube)
    }

    /// Returns W_cubic(t) at `t` microseconds of the epoch (RFC 9438 (1)).
    fn w_cubic(&self, epoch: &CubicEpoch, t: u64) -> u64 {
        let distance = u128::from(t.abs_diff(epoch.k).min(MAX_DISTANCE_MICROS));
        let bytes = C_NUMERATOR * u128::from(self.mss) * distance.pow(3) / (C_DENOMINATOR * MICROS_CUBED);
        let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
        if t < epoch.k { epoch.origin.saturating_sub(bytes) } else { epoch.origin.saturating_add(bytes) }
    }

    /// Grows the window in congestion avoidance (RFC 9438 4.2 to 4.5).
    fn avoid_congestion(&mut self, ack: &AckedBytes, acked: u64) {
        let mut epoch = self.epoch().unwrap_or_else(|| self.begin_epoch(ack.now));
        if core::mem::take(&mut epoch.unused) {
            // RFC 9438 5.8: t excludes the time in which the window did not limit the sender.
            epoch.began += ack.now - epoch.used_at;
        }
        epoch.used_at = ack.now;
        let t = micros(ack.now - epoch.began);
        // RFC 9438 (4), with alpha = 3 * (1 - beta) / (1 + beta) = 9 / 17 until Reno's window would reach its previous
        // value.
        let (gain, share) = if epoch.w_est < self.cwnd_prior { (9, 17) } else { (1, 1) };
        let earned = gain * u128::from(acked) * u128::from(self.mss) + u128::from(epoch.est_rest);
        let price = share * u128::from(self.window);
        epoch.w_est = epoch.w_est.saturating_add((earned / price) as u64).min(MAX_WINDOW);
        epoch.est_rest = (earned % price) as u64;
        if self.w_cubic(&epoch, t) < epoch.w_est {
            self.window = self.window.max(epoch.w_est);
        } else {
            let ahead = t + micros(ack.smoothed_rtt.unwrap_or_default());
            let target = self.w_cubic(&epoch, ahead).clamp(self.window, self.window + self.window / 2);
            let earned = u128::from(target - self.window) * u128::from(acked) + u128::from(epoch.rest);
            let growth = (earned / u128::from(self.window)) as u64;
            epoch.rest = (earned % u128::from(self.window)) as u64;
            self.window += growth.min(self.window / 2);
        }
        self.active_state().epoch = Some(epoch);
    }
}

impl CongestionControl for Cubic {
    fn window(&self) -> u64 {
        self.window
    }

    fn threshold(&self) -> u64 {
        self.threshold
    }

    fn set_mss(&mut self, mss: u64) {
        // RFC 9438 4.1 counts the curve in segments, too, so a new epoch starts at the current window.
        let old = core::mem::replace(&mut self.mss, mss);
        for bytes in [&mut self.window, &mut self.threshold, &mut self.w_max, &mut self.cwnd_prior] {
            *bytes = rescaled(*bytes, old, mss);
        }
        if let Some(course) = &mut self.course {
            course.epoch = None;
            if let Some(before) = &mut course.before {
                before.epoch = None;
                for bytes in [&mut before.window, &mut before.threshold, &mut before.w_max, &mut before.cwnd_prior] {
                    *bytes = rescaled(*bytes, old, mss);
                }
            }
        }
        self.window = self.window.max(mss);
    }

    fn on_ack(&mut self, ack: &AckedBytes) {
        if !ack.limited {
            if let Some(epoch) = self.course.as_mut().and_then(|course| course.epoch.as_mut()) {
                epoch.unused = true;
            }
            return;
        }
        let mut acked = ack.bytes;
        if self.window < self.threshold {
            acked = self.slow_start.grow(ack, &mut self.window, &mut self.threshold);
        }
        if self.window >= self.threshold && acked > 0 {
            self.avoid_congestion(ack, acked);
        }
        self.window = self.window.min(MAX_WINDOW);
    }

    fn on_congestion(&mut self, signal: CongestionSignal, carried: u64) {
        // A mark is certain, so it is never undone.
        let before = (signal == CongestionSignal::Loss).then_some(CubicUndo {
            window: self.window,
            threshold: self.threshold,
            w_max: self.w_max,
            cwnd_prior: self.cwnd_prior,
            epoch: self.epoch(),
        });
        // RFC 9438 4.7: a window that has not returned to its previous value yields to other, perhaps new, flows.
        self.w_max = if self.window < self.w_max { (self.window * 10 + self.window * 7) / 20 } else { self.window };
        self.cwnd_prior = self.window;
        // RFC 9438 4.6: beta is 0.7.
        let cut = carried.min(self.window) * 7 / 10;
        self.threshold = cut.max(2 * self.mss);
        self.window = match signal {
            CongestionSignal::Loss => self.threshold,
            CongestionSignal::Mark => cut.max(self.mss),
        };
        *self.active_state() = ActiveState { epoch: None, before };
    }

    fn on_timeout(&mut self, carried: Option<u64>) {
        if let Some(carried) = carried {
            self.on_congestion(CongestionSignal::Loss, carried);
        }
        // RFC 9438 4.8: the next epoch has K = 0, with W_max at its start.
        self.w_max = 0;
        self.active_state().epoch = None;
        self.window = self.mss;
    }

    fn on_spurious(&mut self) {
        // RFC 9438 4.9: restore the state before the reduction.
        if let Some(before) = self.course.as_mut().and_then(|course| course.before.take()) {
            self.window = self.window.max(before.window);
            self.threshold = before.threshold;
            self.w_max = before.w_max;
            self.cwnd_prior = before.cwnd_prior;
            self.active_state().epoch = before.epoch;
        }
    }

    fn on_idle(&mut self, long: bool) {
        if long {
            // RFC 5681 4.1: the restart window.
            self.window = self.window.min(u64::from(self.initial) * self.mss);
            self.course = None;
        }
    }

    fn on_quiet(&mut self) {
        // RFC 9438 5.8: when the window is used again, time continues on the curve from the current window. The
        // position follows from the window alone, so no state is kept.
        self.course = None;
    }

    fn adopt(&mut self, window: u64, threshold: u64) {
        (self.window, self.threshold) = (window, threshold);
    }
}

fn micros(span: Duration) -> u64 {
    u64::try_from(span.as_micros()).unwrap_or(u64::MAX / 2)
}

/// Returns the instant `micros` microseconds before `now`.
fn back(now: Instant, micros: u64) -> Instant {
    Instant::from_nanos(now.as_nanos().saturating_sub(micros.saturating_mul(1000)))
}

/// Returns the largest number with a cube of at most `cube`.
fn cube_root(cube: u128) -> u64 {
    // Bit by bit, from the highest bit that the root of a 128-bit number can have.
    let mut root = 0u128;
    for bit in (0..=CUBE_ROOT_BITS).rev() {
        let candidate = root | 1 << bit;
        if candidate.pow(3) <= cube {
            root = candidate;
        }
    }
    root as u64
}

/// C = 0.4 segments per second cubed (RFC 9438 5).
const C_NUMERATOR: u128 = 4;
const C_DENOMINATOR: u128 = 10;
/// Cubic microseconds in a cubic second.
const MICROS_CUBED: u128 = 1_000_000_000_000_000_000;
/// Maximum distance from the middle of the curve: two hours. Its cube fits 128 bits with any segment size, and the
/// window has reached its maximum long before.
const MAX_DISTANCE_MICROS: u64 = 7_200_000_000;
/// Highest bit of a cube root: all numbers of 42 bits have cubes within 128 bits.
const CUBE_ROOT_BITS: u32 = 41;

#[cfg(test)]
mod tests {
    use super::super::tests::acked;
    use super::*;
    use proptest::prelude::*;

    const MSS: u64 = 1000;

    /// Returns the state after a loss with `window` bytes carried, with no previous state.
    fn cut(window: u64) -> Cubic {
        let mut cubic = Cubic::new(MSS, 10);
        (cubic.window, cubic.threshold) = (window, window);
        cubic.on_congestion(CongestionSignal::Loss, window);
        cubic
    }

    /// Returns W_cubic(t) in segments, as in the RFC.
    fn curve(t: f64, w_max: f64, cwnd_epoch: f64) -> f64 {
        let k = ((w_max - cwnd_epoch) / 0.4).cbrt();
        0.4 * (t - k).powi(3) + w_max
    }

    /// Acknowledges one window per 100 ms for `millis`.
    fn run(cubic: &mut Cubic, from: u64, millis: u64) {
        for round in 0..millis / 100 {
            let segments = cubic.window / MSS;
            for segment in 0..segments {
                cubic.on_ack(&acked(from + round * 100 + segment * 100 / segments, MSS));
            }
        }
    }

    #[test]
    fn curve_matches_the_rfcs_formula() {
        let mut cubic = cut(10_000 * MSS);
        assert_eq!((cubic.window, cubic.threshold), (7_000 * MSS, 7_000 * MSS), "beta is 0.7");
        let epoch = cubic.begin_epoch(Instant::ZERO);
        let k = (3_000.0f64 / 0.4).cbrt();
        assert!((epoch.k as f64 / 1e6 - k).abs() < 1e-5, "K is {} and should be {k}", epoch.k);
        for tenths in 0..600u64 {
            let t = tenths as f64 / 10.0;
            let (ours, formula) = (cubic.w_cubic(&epoch, tenths * 100_000) as f64 / MSS as f64, curve(t, 1e4, 7e3));
            assert!((ours - formula).abs() < 0.1, "W_cubic({t}) = {ours}, not {formula}");
        }
        // The window follows the curve: concave up to K, flat there, convex after it.
        let mut at = 0;
        for seconds in [5, 10, 15, 19, 20, 25, 30] {
            run(&mut cubic, at * 1000, (seconds - at) * 1000);
            at = seconds;
            let (window, formula) = (cubic.window as f64 / MSS as f64, curve(seconds as f64, 1e4, 7e3));
            assert!((window / formula - 1.0).abs() < 0.01, "at {seconds} s {window}, the curve is at {formula}");
        }
    }

    #[test]
    fn small_window_grows_like_reno() {
        // RFC 9438 4.3: with an RTT of 100 ms and 10 segments, the cubic curve takes seconds. Reno's share is 9/17 of a
        // segment per round trip up to the previous window, then a whole segment.
        let mut cubic = cut(10 * MSS);
        assert_eq!(cubic.window, 7 * MSS);
        run(&mut cubic, 0, 100);
        assert!(cubic.window.abs_diff(7 * MSS + MSS * 9 / 17) < 30, "{}", cubic.window);
        run(&mut cubic, 100, 500);
        let six_rounds = 7 * MSS + 6 * MSS * 9 / 17;
        assert!(cubic.window.abs_diff(six_rounds) < 300, "{} is not near {six_rounds}", cubic.window);
        let mut cubic = cut(10 * MSS);
        let epoch = CubicEpoch { w_est: 10 * MSS, ..cubic.begin_epoch(Instant::ZERO) };
        cubic.active_state().epoch = Some(epoch);
        cubic.window = 10 * MSS;
        cubic.on_ack(&acked(0, 10 * MSS));
        assert_eq!(cubic.window, 11 * MSS, "alpha is 1 from cwnd_prior on");
    }

    #[test]
    fn unrecovered_window_lowers_w_max() {
        let mut cubic = cut(1000 * MSS);
        assert_eq!(cubic.w_max, 1000 * MSS);
        cubic.on_congestion(CongestionSignal::Loss, cubic.window);
        // RFC 9438 (5): cwnd * (1 + beta) / 2.
        assert_eq!((cubic.w_max, cubic.cwnd_prior), (595 * MSS, 700 * MSS));
        cubic.window = 600 * MSS;
        cubic.on_congestion(CongestionSignal::Loss, cubic.window);
        assert_eq!(cubic.w_max, 600 * MSS, "the window had returned to its previous value");
    }

    #[test]
    fn curve_starts_at_its_middle_after_a_timeout() {
        let mut cubic = Cubic::new(MSS, 10);
        (cubic.window, cubic.threshold) = (100 * MSS, 50 * MSS);
        cubic.on_timeout(Some(100 * MSS));
        assert_eq!((cubic.window, cubic.threshold), (MSS, 70 * MSS));
        run(&mut cubic, 0, 1000);
        let epoch = cubic.epoch().expect("congestion avoidance has begun");
        assert_eq!((epoch.k, epoch.origin), (0, 70 * MSS));
    }

    #[test]
    fn unused_time_does_not_advance_the_curve() {
        let mut busy = cut(1000 * MSS);
        let mut idle = busy.clone();
        run(&mut busy, 0, 2000);
        run(&mut idle, 0, 1000);
        let before = idle.window;
        let unused = |millis| AckedBytes { limited: false, ..acked(millis, MSS) };
        (1000..61_000).step_by(100).for_each(|millis| idle.on_ack(&unused(millis)));
        assert_eq!(idle.window, before);
        run(&mut idle, 61_000, 1000);
        assert!(idle.window.abs_diff(busy.window) < 10 * MSS, "{} and {}", idle.window, busy.window);
    }

    #[test]
    fn quiet_connection_stays_on_its_curve() {
        let mut busy = cut(10_000 * MSS);
        let mut quiet = busy.clone();
        for second in 0..40 {
            for tenth in 0..10 {
                run(&mut busy, second * 1000 + tenth * 100, 100);
                run(&mut quiet, second * 1000 + tenth * 100, 100);
                quiet.on_quiet();
            }
            // Where the curve is flat, the window grows like Reno's, and leaves that phase four seconds earlier.
            let ratio = quiet.window as f64 / busy.window as f64;
            assert!((0.99..1.15).contains(&ratio), "after {second} s {} to {}", quiet.window, busy.window);
        }
        assert!(busy.window > 12_000 * MSS, "the window must be far beyond the middle of the curve");
    }

    #[test]
    fn curve_scales_with_the_segment_size() {
        let mut whole = cut(1000 * MSS);
        let mut halves = whole.clone();
        halves.set_mss(MSS / 2);
        let all =
            |cubic: &Cubic| [cubic.window, cubic.threshold, cubic.w_max, cubic.cwnd_prior].map(|at| at / cubic.mss);
        assert_eq!(all(&halves), all(&whole));
        for second in 0..20 {
            for tenth in 0..10 {
                let millis = second * 1000 + tenth * 100;
                let (of_whole, of_halves) = (whole.window, halves.window);
                whole.on_ack(&acked(millis, of_whole));
                halves.on_ack(&acked(millis, of_halves));
            }
            let (whole, halves) = (whole.window / MSS, halves.window / (MSS / 2));
            assert!(whole.abs_diff(halves) <= 2, "after {second} s {whole} segments and {halves} of half their size");
        }
        // The restored state is counted in new segments, too.
        whole.on_congestion(CongestionSignal::Loss, whole.window);
        let mut doubled = whole.clone();
        doubled.set_mss(2 * MSS);
        whole.on_spurious();
        doubled.on_spurious();
        assert_eq!(all(&doubled), all(&whole));
    }

    #[test]
    fn spurious_loss_is_undone() {
        let mut cubic = cut(1000 * MSS);
        run(&mut cubic, 0, 3000);
        let before = cubic.clone();
        cubic.on_congestion(CongestionSignal::Loss, cubic.window);
        cubic.on_spurious();
        assert_eq!(
            (cubic.window, cubic.threshold, cubic.w_max, cubic.cwnd_prior),
            (before.window, before.threshold, before.w_max, before.cwnd_prior)
        );
        run(&mut cubic, 3000, 3000);
        let mut undisturbed = before.clone();
        run(&mut undisturbed, 3000, 3000);
        assert_eq!(cubic.window, undisturbed.window, "the window continues on the same curve");
    }

    #[test]
    fn minimum_window_is_one_segment_after_a_mark() {
        let mut cubic = Cubic::new(MSS, 1);
        let mut marked = cubic.clone();
        cubic.on_congestion(CongestionSignal::Loss, MSS);
        marked.on_congestion(CongestionSignal::Mark, MSS);
        assert_eq!([cubic.window, marked.window, cubic.threshold, marked.threshold], [2000, 1000, 2000, 2000]);
    }

    proptest! {
        #[test]
        fn cube_root_is_exact(root in 0u64..1 << 41, below: u64) {
            let cube = u128::from(root).pow(3);
            prop_assert_eq!(cube_root(cube), root);
            let next = u128::from(root + 1).pow(3);
            prop_assert_eq!(cube_root(cube + u128::from(below) % (next - cube)), root);
        }

        #[test]
        fn window_stays_within_its_bounds(
            steps in proptest::collection::vec((0u8..8, 0u64..10_000_000, 0u64..100_000), 1..200),
            mss in 1u64..9000,
        ) {
            let mut cubic = Cubic::new(mss, 10);
            let mut millis = 0;
            for (step, bytes, wait) in steps {
                millis += wait;
                match step {
                    0 => cubic.on_congestion(CongestionSignal::Loss, bytes),
                    1 => cubic.on_congestion(CongestionSignal::Mark, bytes),
                    2 => cubic.on_timeout(Some(bytes)),
                    3 => cubic.on_spurious(),
                    4 => cubic.set_mss(bytes % 9000 + 1),
                    5 => cubic.on_ack(&AckedBytes { limited: false, ..acked(millis, bytes) }),
                    _ => {
                        let before = cubic.window;
                        cubic.on_ack(&acked(millis, bytes));
                        prop_assert!(cubic.window >= before);
                    }
                }
                prop_assert!(cubic.window >= cubic.mss && cubic.window <= MAX_WINDOW);
            }
        }
    }
}
