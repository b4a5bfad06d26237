//! A rate limit on packets that a stranger can make this host send.
//!
//! Several strangers share one limit, so the remaining budget is a side channel: an attacker who counts his own answers
//! learns whether a forged packet was answered, and so whether he guessed another connection's numbers (CVE-2016-5696,
//! CVE-2020-25705). A limit on such answers is therefore [redrawn at random](RateLimit::drawn_from) each second.

use core::time::Duration;
use offload_base::{Instant, Rng};

/// A limit on events per second.
#[derive(Debug)]
pub(crate) struct RateLimit {
    a_second: u32,
    since: Option<Instant>,
    left: u32,
    drawn_from: Option<Box<Rng>>,
}

impl RateLimit {
    pub(crate) fn new(a_second: u32) -> RateLimit {
        RateLimit { a_second, since: None, left: 0, drawn_from: None }
    }

    /// Makes the limit random: each second it is drawn anew between half and one and a half of its mean.
    pub(crate) fn drawn_from(self, rng: Rng) -> RateLimit {
        RateLimit { drawn_from: Some(Box::new(rng)), ..self }
    }

    /// Returns whether one more event is within the limit, and counts the event if so.
    pub(crate) fn allow(&mut self, now: Instant) -> bool {
        if self.since.is_none_or(|since| now - since >= Duration::from_secs(1)) {
            self.since = Some(now);
            self.left = match &mut self.drawn_from {
                // The draw is uniform over half to one and a half of the mean, so the mean rate stays as configured.
                Some(rng) => self.a_second / 2 + rng.below(u64::from(self.a_second) + 1) as u32,
                None => self.a_second,
            };
        }
        let allowed = self.left > 0;
        self.left -= u32::from(allowed);
        allowed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use offload_base::Seed;

    #[test]
    fn limit_restarts_every_second() {
        let mut limit = RateLimit::new(2);
        let at = |millis: u64| Instant::ZERO + Duration::from_millis(millis);
        assert_eq!([0, 1, 2, 999, 1000].map(|millis| limit.allow(at(millis))), [true, true, false, false, true]);
    }

    #[test]
    fn random_limit_varies_each_second_around_its_mean() {
        let mut limit = RateLimit::new(100).drawn_from(Seed(1).stream("limit"));
        let counts: Vec<u32> = (0..200)
            .map(|second| (0..1000).map(|_| u32::from(limit.allow(Instant::ZERO + Duration::from_secs(second)))).sum())
            .collect();
        assert!(counts.iter().all(|count| (50..=150).contains(count)), "{counts:?}");
        assert!(counts.iter().min() < Some(&60) && counts.iter().max() > Some(&140), "{counts:?}");
        assert!((90..=110).contains(&(counts.iter().sum::<u32>() / 200)), "{counts:?}");
    }
}
