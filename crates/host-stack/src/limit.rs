//! A bound on what strangers can make a host send.

use core::time::Duration;
use offload_base::Instant;

/// At most so many a second.
#[derive(Debug)]
pub(crate) struct RateLimit {
    a_second: u32,
    since: Instant,
    used: u32,
}

impl RateLimit {
    pub(crate) fn new(a_second: u32) -> RateLimit {
        RateLimit { a_second, since: Instant::ZERO, used: 0 }
    }

    /// Whether one more is within the limit; if so, it counts.
    pub(crate) fn allow(&mut self, now: Instant) -> bool {
        if now - self.since >= Duration::from_secs(1) {
            self.since = now;
            self.used = 0;
        }
        let allowed = self.used < self.a_second;
        self.used += u32::from(allowed);
        allowed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn starts_afresh_every_second() {
        let mut limit = RateLimit::new(2);
        let at = |millis: u64| Instant::ZERO + Duration::from_millis(millis);
        assert_eq!([0, 1, 2, 999, 1000].map(|millis| limit.allow(at(millis))), [true, true, false, false, true]);
    }
}
