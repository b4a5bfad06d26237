//! Rates, and pacing by rate.
//!
//! Invariant: over any interval, a pacer admits at most rate x interval plus one burst.

use core::str::FromStr;
use core::time::Duration;
use offload_base::Instant;
use offload_base::text::bits_per_second;
use std::sync::{Mutex, PoisonError};

/// A rate in bits per second.
///
/// ```
/// use offload_reservoir::pace::Rate;
///
/// assert_eq!("2.5G".parse(), Ok(Rate::bits(2_500_000_000)));
/// assert_eq!(Rate::bits(10).shared_by(4), Rate::bits(3));
/// assert!("fast".parse::<Rate>().is_err() && "0".parse::<Rate>().is_err());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate(u64);

impl Rate {
    /// Creates a rate of `bits` bits per second, at least one.
    pub fn bits(bits: u64) -> Rate {
        Rate(bits.max(1))
    }

    /// Returns the rate in bits per second.
    pub fn as_bits(self) -> u64 {
        self.0
    }

    /// Returns the equal share of each of `connections` connections.
    pub fn shared_by(self, connections: usize) -> Rate {
        Rate::bits(self.0.div_ceil(connections.max(1) as u64))
    }

    /// Returns the time that `bytes` bytes take.
    pub fn time_of(self, bytes: u64) -> Duration {
        let nanos = u128::from(bytes) * 8 * 1_000_000_000 / u128::from(self.0);
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }
}

impl FromStr for Rate {
    type Err = String;

    fn from_str(text: &str) -> Result<Rate, String> {
        let wrong = || format!("`{text}` is no rate: bits per second, such as 9G, 2.5G or 400M");
        bits_per_second(text).map(Rate).ok_or_else(wrong)
    }
}

/// A pacer: shares a rate among all its users.
///
/// ```
/// use core::time::Duration;
/// use offload_base::Instant;
/// use offload_reservoir::pace::{Pace, Rate};
///
/// let pace = Pace::new(Rate::bits(8_000_000)); // a byte in a microsecond
/// let start = Instant::ZERO;
/// assert_eq!(pace.take(start, 1_000_000), start); // at once, and on account
/// assert_eq!(pace.take(start, 1), start + Duration::from_secs(1));
/// ```
#[derive(Debug)]
pub struct Pace {
    rate: Rate,
    free: Mutex<Instant>,
}

impl Pace {
    /// Creates an unused pacer.
    pub fn new(rate: Rate) -> Pace {
        Pace { rate, free: Mutex::new(Instant::ZERO) }
    }

    /// Returns the rate.
    pub fn rate(&self) -> Rate {
        self.rate
    }

    /// Returns the time at which `bytes` bytes that are ready `now` may be sent, and reserves their share.
    pub fn take(&self, now: Instant, bytes: u64) -> Instant {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        let at = now.max(*free);
        *free = at + self.rate.time_of(bytes);
        at
    }

    /// Takes `bytes` that were sent already. Returns the time before which the caller must not send again, or `None` if
    /// the wait is shorter than a timer is worth. Small pieces thus wait once for many, and a late timer costs no
    /// throughput.
    pub(crate) fn wait_after(&self, now: Instant, bytes: u64) -> Option<Instant> {
        // The clock may be younger than the grain.
        let since = Instant::ZERO + (now - Instant::ZERO).saturating_sub(GRAIN);
        let turn = self.take(since, bytes);
        (turn > now + GRAIN).then_some(turn)
    }
}

/// The resolution of kernel timers on a busy machine.
const GRAIN: Duration = Duration::from_millis(5);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_span_has_more_than_its_share() {
        let pace = Pace::new("1G".parse().unwrap());
        let (mut now, mut sent) = (Instant::ZERO, Vec::new());
        for round in 0..1000_u64 {
            let bytes = 1 + round * 7919 % 65_536;
            now += Duration::from_nanos(round * 104_729 % 400_000);
            let at = pace.take(now, bytes);
            assert!(at >= now);
            sent.push((at, bytes));
        }
        for from in (0..sent.len()).step_by(37) {
            let bytes: u64 = sent[from..].iter().map(|(_, bytes)| bytes).sum();
            let span = sent[sent.len() - 1].0 - sent[from].0;
            let share = span.as_nanos() as u64 / 8;
            assert!(bytes <= share + 65_536 + sent.len() as u64, "{bytes} in {span:?}");
        }
    }

    /// With a one-millisecond timer per packet, 1 Gbit/s would become 12 Mbit/s.
    #[test]
    fn small_pieces_share_their_waits() {
        let pace = Pace::new("1G".parse().unwrap());
        let (mut now, mut waits) = (Instant::ZERO, 0);
        for _ in 0..10_000 {
            if let Some(turn) = pace.wait_after(now, 1452) {
                (now, waits) = (turn, waits + 1);
            }
        }
        let whole = Rate::time_of(pace.rate(), 10_000 * 1452);
        assert!(now <= Instant::ZERO + whole && now + GRAIN * 2 > Instant::ZERO + whole, "{now:?} {whole:?}");
        assert!((10..30).contains(&waits), "{waits}");
    }

    #[test]
    fn rates_are_written_as_people_write_them() {
        let bits = |text: &str| text.parse::<Rate>().map(Rate::as_bits);
        assert_eq!((bits("400M"), bits("10k"), bits("7")), (Ok(400_000_000), Ok(10_000), Ok(7)));
        for bad in ["", "G", "-1G", "1Gb", "1e99", "inf", "nan", "1 G"] {
            assert!(bits(bad).is_err(), "{bad}");
        }
        assert_eq!(Rate::bits(1).time_of(u64::MAX), Duration::from_nanos(u64::MAX));
    }
}
