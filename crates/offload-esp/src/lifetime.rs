//! The lifetime of an SA (RFC 4301 4.4.2.1): soft and hard limits of bytes, packets and time.
//!
//! Invariant: each limit is reported once, and nothing passes after a hard limit has been reached.

use offload_api::{Lifetime, Limit, Limits};
use offload_base::Instant;
use offload_base::time::earliest;

/// A meter that compares the use of an SA with its lifetime.
///
/// ```
/// use offload_esp::{LifetimeMeter, ReachedLimit};
/// use offload_api::{Lifetime, Limit, Limits};
/// use offload_base::Instant;
///
/// let soft = Limits { packets: Some(2), ..Limits::default() };
/// let hard = Limits { packets: Some(3), ..Limits::default() };
/// let mut meter = LifetimeMeter::new(Instant::ZERO, Lifetime { soft, hard });
/// assert!(meter.allows(3) && !meter.allows(4), "three packets at once would be all");
/// assert_eq!(meter.spend(2, 200), Some(ReachedLimit::Soft(Limit::Packets)));
/// assert_eq!(meter.spend(1, 100), Some(ReachedLimit::Hard(Limit::Packets)));
/// assert!(meter.is_dead());
/// ```
#[derive(Clone, Copy, Debug)]
pub struct LifetimeMeter {
    lifetime: Lifetime,
    added: Instant,
    bytes: u64,
    packets: u64,
    soft_told: bool,
    dead: bool,
}

/// A limit that was just reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReachedLimit {
    /// A soft limit.
    Soft(Limit),
    /// A hard limit: the SA is dead.
    Hard(Limit),
}

impl LifetimeMeter {
    /// Creates a meter. Time counts from `now`.
    pub fn new(now: Instant, lifetime: Lifetime) -> LifetimeMeter {
        LifetimeMeter { lifetime, added: now, bytes: 0, packets: 0, soft_told: false, dead: false }
    }

    /// Starts a new lifetime. The counts in [`bytes`](Self::bytes) and [`packets`](Self::packets) continue, and the new
    /// limits are added to them.
    pub fn renew(&mut self, now: Instant, lifetime: Lifetime) {
        // The counts continue, so the new limits start where the old ones were reached.
        let above = |limits: Limits| Limits {
            bytes: limits.bytes.map(|bytes| bytes.saturating_add(self.bytes)),
            packets: limits.packets.map(|packets| packets.saturating_add(self.packets)),
            time: limits.time,
        };
        self.lifetime = Lifetime { soft: above(lifetime.soft), hard: above(lifetime.hard) };
        self.added = now;
        self.soft_told = false;
        self.dead = false;
    }

    /// Size of the image made by [`save`](Self::save) in bytes.
    pub const SAVED_LEN: usize = 1 + 6 * 8;

    /// Saves the state except for time limits, for a device without a clock.
    ///
    /// ```
    /// use offload_esp::LifetimeMeter;
    /// use offload_api::{Lifetime, Limits};
    /// use offload_base::Instant;
    ///
    /// let hard = Limits { bytes: Some(100), ..Limits::default() };
    /// let mut meter = LifetimeMeter::new(Instant::ZERO, Lifetime { hard, ..Lifetime::default() });
    /// meter.spend(1, 60);
    /// let mut restored = LifetimeMeter::restore(&meter.save());
    /// assert_eq!((restored.bytes(), restored.packets()), (60, 1));
    /// assert!(restored.spend(1, 40).is_some(), "the limit is known");
    /// ```
    pub fn save(&self) -> [u8; LifetimeMeter::SAVED_LEN] {
        let Lifetime { soft, hard } = self.lifetime;
        let limits = [soft.bytes, soft.packets, hard.bytes, hard.packets];
        let mut flags = u8::from(self.soft_told) | u8::from(self.dead) << 1;
        let mut image = [0; LifetimeMeter::SAVED_LEN];
        let values = limits.map(Option::unwrap_or_default).into_iter().chain([self.bytes, self.packets]);
        for (place, value) in image[1..].chunks_exact_mut(8).zip(values) {
            place.copy_from_slice(&value.to_le_bytes());
        }
        for (bit, _) in limits.iter().enumerate().filter(|(_, limit)| limit.is_some()) {
            flags |= 4 << bit;
        }
        image[0] = flags;
        image
    }

    /// Restores the state saved by [`save`](Self::save).
    pub fn restore(image: &[u8; LifetimeMeter::SAVED_LEN]) -> LifetimeMeter {
        let flags = image[0];
        let value = |at: usize| u64::from_le_bytes(core::array::from_fn(|byte| image[1 + 8 * at + byte]));
        let limit = |at: usize| (flags & 4 << at != 0).then(|| value(at));
        let soft = Limits { bytes: limit(0), packets: limit(1), time: None };
        let hard = Limits { bytes: limit(2), packets: limit(3), time: None };
        LifetimeMeter {
            lifetime: Lifetime { soft, hard },
            added: Instant::ZERO,
            bytes: value(4),
            packets: value(5),
            soft_told: flags & 1 != 0,
            dead: flags & 2 != 0,
        }
    }

    /// Tests whether a hard limit was reached.
    pub fn is_dead(&self) -> bool {
        self.dead
    }

    /// Tests whether `packets` packets may pass. The last packet may exceed the limit of bytes, as in Linux.
    pub fn allows(&self, packets: u64) -> bool {
        !self.dead && self.lifetime.hard.packets.is_none_or(|most| self.packets + packets <= most)
    }

    /// Counts packets that passed. Returns a limit reached by these.
    pub fn spend(&mut self, packets: u64, bytes: u64) -> Option<ReachedLimit> {
        self.packets += packets;
        self.bytes += bytes;
        let reached = |limits: &Limits| {
            let over = |limit: Option<u64>, spent: u64| limit.is_some_and(|limit| spent >= limit);
            match () {
                // If several limits are reached at once, one report suffices: it makes the peer rekey.
                () if over(limits.bytes, self.bytes) => Some(Limit::Bytes),
                () if over(limits.packets, self.packets) => Some(Limit::Packets),
                () => None,
            }
        };
        let (hard, soft) = (reached(&self.lifetime.hard), reached(&self.lifetime.soft));
        self.tell(hard, soft)
    }

    /// Returns the time of the next time limit.
    pub fn next_event(&self) -> Option<Instant> {
        if self.dead {
            return None;
        }
        let at = |limits: &Limits| limits.time.map(|time| self.added + time);
        let soft = if self.soft_told { None } else { at(&self.lifetime.soft) };
        earliest(soft, at(&self.lifetime.hard))
    }

    /// Checks the time limits at `now`. Returns a limit that was reached.
    pub fn handle_timeout(&mut self, now: Instant) -> Option<ReachedLimit> {
        let due = |limits: &Limits| limits.time.is_some_and(|time| self.added + time <= now).then_some(Limit::Time);
        let (hard, soft) = (due(&self.lifetime.hard), due(&self.lifetime.soft));
        self.tell(hard, soft)
    }

    /// Notes a limit that another component found to be reached. Returns the limit unless it was reported before.
    pub fn note(&mut self, reached: ReachedLimit) -> Option<ReachedLimit> {
        match reached {
            ReachedLimit::Soft(limit) => self.tell(None, Some(limit)),
            ReachedLimit::Hard(limit) => self.tell(Some(limit), None),
        }
    }

    /// Returns the remaining bytes and packets, for another component to count down. A reported soft limit is omitted.
    pub fn left(&self) -> Lifetime {
        let left = |limits: &Limits| Limits {
            bytes: limits.bytes.map(|most| most.saturating_sub(self.bytes)),
            packets: limits.packets.map(|most| most.saturating_sub(self.packets)),
            time: limits.time,
        };
        let soft = if self.soft_told { Limits::default() } else { left(&self.lifetime.soft) };
        Lifetime { soft, hard: left(&self.lifetime.hard) }
    }

    /// Returns the number of bytes that passed.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the number of packets that passed.
    pub fn packets(&self) -> u64 {
        self.packets
    }

    fn tell(&mut self, hard: Option<Limit>, soft: Option<Limit>) -> Option<ReachedLimit> {
        // A hard limit makes the soft one irrelevant, even if both were reached at once.
        if let Some(limit) = hard
            && !self.dead
        {
            self.dead = true;
            return Some(ReachedLimit::Hard(limit));
        }
        if let Some(limit) = soft
            && !self.soft_told
            && !self.dead
        {
            self.soft_told = true;
            return Some(ReachedLimit::Soft(limit));
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::time::Duration;

    #[test]
    fn time_limit_is_reported_once_and_can_be_renewed() {
        let limits = |seconds| Limits { time: Some(Duration::from_secs(seconds)), ..Limits::default() };
        let lifetime = Lifetime { soft: limits(1), hard: limits(2) };
        let mut meter = LifetimeMeter::new(Instant::ZERO, lifetime);
        let at = |seconds| Instant::ZERO + Duration::from_secs(seconds);
        assert_eq!(meter.next_event(), Some(at(1)));
        assert_eq!(meter.handle_timeout(at(1)), Some(ReachedLimit::Soft(Limit::Time)));
        assert_eq!(meter.handle_timeout(at(1)), None);
        assert_eq!(meter.next_event(), Some(at(2)));
        meter.renew(at(1), lifetime);
        assert_eq!(meter.next_event(), Some(at(2)), "soft again");
        assert_eq!(meter.handle_timeout(at(3)), Some(ReachedLimit::Hard(Limit::Time)), "late, and both at once");
        assert!(meter.is_dead() && !meter.allows(1));
        assert_eq!(meter.next_event(), None);
    }

    #[test]
    fn remaining_limits_omit_spent_and_reported_ones() {
        let limits = |packets| Limits { packets: Some(packets), ..Limits::default() };
        let mut meter = LifetimeMeter::new(Instant::ZERO, Lifetime { soft: limits(3), hard: limits(6) });
        assert_eq!(meter.spend(2, 0), None);
        assert_eq!(meter.left(), Lifetime { soft: limits(1), hard: limits(4) });
        assert_eq!(meter.note(ReachedLimit::Soft(Limit::Bytes)), Some(ReachedLimit::Soft(Limit::Bytes)));
        assert_eq!(meter.spend(1, 0), None, "told before, by whom ever");
        assert_eq!(meter.left(), Lifetime { soft: Limits::default(), hard: limits(3) });
        meter.renew(Instant::ZERO, Lifetime { soft: limits(3), hard: limits(6) });
        assert_eq!(meter.left(), Lifetime { soft: limits(3), hard: limits(6) });
        assert_eq!(meter.note(ReachedLimit::Hard(Limit::Packets)), Some(ReachedLimit::Hard(Limit::Packets)));
        assert_eq!(meter.note(ReachedLimit::Hard(Limit::Packets)), None);
        assert!(meter.is_dead());
    }

    #[test]
    fn saved_meter_remembers_reported_limits() {
        let limits = |packets| Limits { packets: Some(packets), ..Limits::default() };
        let mut meter = LifetimeMeter::new(Instant::ZERO, Lifetime { soft: limits(2), hard: limits(4) });
        let told: Vec<_> = (0..5)
            .map(|_| {
                meter = LifetimeMeter::restore(&meter.save());
                (meter.spend(1, 0), meter.is_dead())
            })
            .collect();
        let (soft, hard) = (Some(ReachedLimit::Soft(Limit::Packets)), Some(ReachedLimit::Hard(Limit::Packets)));
        assert_eq!(told, [(None, false), (soft, false), (None, false), (hard, true), (None, true)]);
    }

    #[test]
    fn new_limits_count_from_the_present_use() {
        let lifetime = Lifetime { hard: Limits { bytes: Some(100), ..Limits::default() }, ..Lifetime::default() };
        let mut meter = LifetimeMeter::new(Instant::ZERO, lifetime);
        assert_eq!(meter.spend(1, 99), None);
        meter.renew(Instant::ZERO, lifetime);
        assert_eq!(meter.spend(1, 99), None);
        assert_eq!(meter.spend(1, 1), Some(ReachedLimit::Hard(Limit::Bytes)));
        assert_eq!((meter.bytes(), meter.packets()), (199, 3));
    }
}
