//! When a device that refused a flow for the time being is asked again.
//!
//! No device tells that there is room: with many flows waiting, each place that came free would wake all of them. So each
//! flow asks when it has work for the device, a record, say, or a PDU, and the less often, the longer it was refused.
//!
//! A context that the device gave up unasked, for what it accepted it could not do in the end, is a refusal that came late:
//! such a flow asks as one that was refused for want of space, and the less often, the more contexts it lost.
//!
//! Invariant: a flow refused for want of space asks at most once in `n` units of work after `n` units of waiting, up to
//! [`UNITS_BETWEEN_ASKS`]; what passes in a moment is asked for with each unit.

use crate::refused::Refused;

/// One flow's waiting for one context.
///
/// ```
/// use offload_api::{AskAgain, Refused};
///
/// let mut again = AskAgain::default();
/// assert!(!again.is_due(), "nobody wants a context");
/// again.begin();
/// assert!(again.is_due());
/// again.note_refused(Refused::NoSpace);
/// again.note_refused(Refused::NoSpace);
/// assert!(again.waits() && !again.is_due());
/// again.note_unit();
/// again.note_unit();
/// assert!(again.is_due(), "the second unit after the second refusal");
/// assert!(again.end(), "the device has it, and had refused before");
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AskAgain {
    waits: bool,
    refused: bool,
    /// Units that may pass before the device is asked.
    pass: u8,
    /// How many after the next refusal.
    next: u8,
    /// How many after the next loss; 0: nothing was lost since the beginning.
    after_loss: u8,
}

impl AskAgain {
    /// A context is wanted, and the device is to be asked with the next unit whatever it said before.
    pub fn begin(&mut self) {
        *self = AskAgain { waits: true, refused: self.refused, ..AskAgain::default() };
    }

    /// The device was asked and refused for the time being.
    pub fn note_refused(&mut self, reason: Refused) {
        (self.waits, self.refused) = (true, true);
        (self.pass, self.next) = match reason {
            Refused::NoSpace => {
                let pass = self.next.max(1);
                (pass, (2 * pass).min(UNITS_BETWEEN_ASKS))
            }
            // These pass in a moment.
            _ => (1, self.next),
        };
    }

    /// The device took the context, and gave it up unasked.
    ///
    /// ```
    /// use offload_api::AskAgain;
    ///
    /// let mut again = AskAgain::default();
    /// again.begin();
    /// again.end();
    /// again.note_lost();
    /// assert!(again.waits() && !again.is_due());
    /// again.note_unit();
    /// assert!(again.is_due(), "with the first unit after the first loss");
    /// assert!(again.end(), "what is lost counts as refused");
    /// ```
    pub fn note_lost(&mut self) {
        let pass = self.after_loss.max(1);
        let next = (2 * pass).min(UNITS_BETWEEN_ASKS);
        *self = AskAgain { waits: true, refused: true, pass, next, after_loss: next };
    }

    /// Somebody wants an answer now: if a context is wanted, the device is asked whatever it said before.
    pub fn hurry(&mut self) {
        self.pass = 0;
    }

    /// The flow has one more unit of work.
    pub fn note_unit(&mut self) {
        self.pass = self.pass.saturating_sub(1);
    }

    /// Nothing is wanted any more: the device has the context, or will never have it. True if it had refused before.
    pub fn end(&mut self) -> bool {
        let ended = AskAgain { after_loss: self.after_loss, ..AskAgain::default() };
        core::mem::replace(self, ended).refused
    }

    /// Whether a context is wanted instead of one that was lost, and the device is not to be asked yet.
    pub fn rests_after_loss(&self) -> bool {
        self.waits && self.after_loss > 0 && self.pass > 0
    }

    /// Whether a context is wanted.
    pub fn waits(&self) -> bool {
        self.waits
    }

    /// Whether to ask now.
    pub fn is_due(&self) -> bool {
        self.waits && self.pass == 0
    }

    /// Whether the device refused since it was first asked.
    pub fn was_refused(&self) -> bool {
        self.refused
    }
}

/// Most units of work between two asks.
pub const UNITS_BETWEEN_ASKS: u8 = 32;

#[cfg(test)]
mod tests {
    use super::*;

    /// Which of `units` units a flow asks with, when it is always told the same.
    fn asks(reason: Refused, units: u32) -> Vec<u32> {
        let mut again = AskAgain::default();
        again.note_refused(reason);
        let mut asked = Vec::new();
        for unit in 1..=units {
            again.note_unit();
            if again.is_due() {
                asked.push(unit);
                again.note_refused(reason);
            }
        }
        asked
    }

    #[test]
    fn the_longer_there_is_no_space_the_less_is_asked() {
        assert_eq!(asks(Refused::NoSpace, 130), [1, 3, 7, 15, 31, 63, 95, 127]);
        assert_eq!(asks(Refused::Busy, 4), [1, 2, 3, 4]);
        assert_eq!(asks(Refused::Resetting, 4), [1, 2, 3, 4]);
    }

    #[test]
    fn the_more_is_lost_the_less_is_asked() {
        let mut again = AskAgain::default();
        again.begin();
        let mut passed = Vec::new();
        for _ in 0..7 {
            again.end();
            again.note_lost();
            assert!(again.rests_after_loss());
            let units = (1..).find(|_| {
                again.note_unit();
                again.is_due()
            });
            passed.push(units.unwrap());
        }
        assert_eq!(passed, [1, 2, 4, 8, 16, 32, 32]);
        assert!(!again.rests_after_loss());
        again.begin();
        again.end();
        again.note_lost();
        assert_eq!(again.pass, 1, "a new beginning forgets");
    }

    #[test]
    fn a_new_beginning_asks_at_once_and_remembers_the_refusal() {
        let mut again = AskAgain::default();
        (0..9).for_each(|_| again.note_refused(Refused::NoSpace));
        assert!(!again.is_due());
        again.begin();
        assert!(again.is_due() && again.was_refused());
        assert!(again.end());
        assert_eq!(again, AskAgain::default());
    }
}
