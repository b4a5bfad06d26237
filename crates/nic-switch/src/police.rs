//! A rate limit: a token bucket with one token per bit.

use crate::action::{Police, RuleAction};
use offload_base::Instant;

/// A token bucket. Invariant: it never holds more than a burst. Tokens are counted in billionths of a bit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TokenBucket {
    police: Police,
    tokens: u128,
    filled: Option<Instant>,
}

impl TokenBucket {
    /// Makes a full bucket.
    pub(crate) fn new(police: Police) -> TokenBucket {
        TokenBucket { police, tokens: full(&police), filled: None }
    }

    /// Makes the bucket of a police action; `None` for other actions.
    pub(crate) fn from_action(action: &RuleAction) -> Option<TokenBucket> {
        match action {
            RuleAction::Police(police) => Some(TokenBucket::new(*police)),
            _ => None,
        }
    }

    pub(crate) fn police(&self) -> Police {
        self.police
    }

    /// Takes the tokens for `bytes` bytes. Returns false, and takes no token, if there are too few.
    pub(crate) fn take(&mut self, now: Instant, bytes: usize) -> bool {
        let since = self.filled.map_or(0, |filled| (now - filled).as_nanos());
        // Tokens are added lazily, at the next frame.
        self.filled = Some(now);
        self.tokens = full(&self.police).min(self.tokens + since * u128::from(self.police.rate));
        // In billionths of a bit the refill is exact for any rate and interval.
        // Frames above the rate cost no tokens, so a fast sender still gets the rate.
        let wanted = bytes as u128 * 8 * BILLION;
        let is_enough = wanted <= self.tokens;
        if is_enough {
            self.tokens -= wanted;
        }
        is_enough
    }
}

fn full(police: &Police) -> u128 {
    u128::from(police.burst) * 8 * BILLION
}

const BILLION: u128 = 1_000_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_kept_behind_a_burst() {
        let mut bucket = TokenBucket::new(Police { rate: 8_000, burst: 1_500 });
        let at = |millis: u64| Instant::from_nanos(millis * 1_000_000);
        assert!(bucket.take(at(0), 1_000) && !bucket.take(at(0), 501) && bucket.take(at(0), 500));
        // 8000 bit/s is one byte per millisecond.
        assert!(!bucket.take(at(99), 100) && bucket.take(at(100), 100));
        assert!(!bucket.take(at(1_000_000), 1_501), "the bucket holds one burst at most");
        assert!(bucket.take(at(1_000_000), 1_500));
    }
}
