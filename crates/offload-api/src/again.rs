//! Backoff after a device has refused a flow's context for the time being.
//!
//! Devices do not announce free space: with many waiting flows, every free slot would wake all of them. Instead each
//! flow asks again when it has work for the device, such as a record or a PDU. The interval grows with the number of
//! refusals.
//!
//! A context that the device removed on its own, because it could not do the accepted work, counts as a late refusal:
//! the flow waits as after a refusal for lack of space, and the interval grows with the number of lost contexts.
//!
//! Invariant: after `n` units of waiting for space, a flow asks at most once in `n` units, up to
//! [`UNITS_BETWEEN_ASKS`]. Refusals for short-lived reasons are retried with each unit.

use crate::refused::ContextRefusal;

/// The backoff state of one flow for one context.
///
/// ```
/// use offload_api::{ContextBackoff, ContextRefusal};
///
/// let mut again = ContextBackoff::default();
/// assert!(!again.is_due(), "no context is wanted");
/// again.begin();
/// assert!(again.is_due());
/// again.note_refused(ContextRefusal::NoSpace);
/// again.note_refused(ContextRefusal::NoSpace);
/// assert!(again.waits() && !again.is_due());
/// again.note_unit();
/// again.note_unit();
/// assert!(again.is_due(), "the second unit after the second refusal");
/// assert!(again.end(), "the device has accepted after a refusal");
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ContextBackoff {
    waits: bool,
    refused: bool,
    /// Units left before the next request.
    pass: u8,
    /// Interval after the next refusal, in units.
    next: u8,
    /// Interval after the next loss, in units; 0 if no context was lost since the beginning.
    after_loss: u8,
}

impl ContextBackoff {
    /// Starts waiting for a context. The next unit asks the device, regardless of earlier refusals.
    pub fn begin(&mut self) {
        *self = ContextBackoff { waits: true, refused: self.refused, ..ContextBackoff::default() };
    }

    /// Records a refusal for the time being.
    pub fn note_refused(&mut self, reason: ContextRefusal) {
        (self.waits, self.refused) = (true, true);
        (self.pass, self.next) = match reason {
            ContextRefusal::NoSpace => {
                // The first refusal waits for one unit, and each further one doubles the wait.
                let pass = self.next.max(1);
                (pass, (2 * pass).min(UNITS_BETWEEN_ASKS))
            }
            // A full ring or a reset ends soon, so the interval does not grow.
            _ => (1, self.next),
        };
    }

    /// Records that the device accepted the context and later removed it on its own.
    ///
    /// ```
    /// use offload_api::ContextBackoff;
    ///
    /// let mut again = ContextBackoff::default();
    /// again.begin();
    /// again.end();
    /// again.note_lost();
    /// assert!(again.waits() && !again.is_due());
    /// again.note_unit();
    /// assert!(again.is_due(), "with the first unit after the first loss");
    /// assert!(again.end(), "a loss counts as a refusal");
    /// ```
    pub fn note_lost(&mut self) {
        // Losses have their own interval: a device may accept a context again and again and lose it each time.
        let pass = self.after_loss.max(1);
        let next = (2 * pass).min(UNITS_BETWEEN_ASKS);
        *self = ContextBackoff { waits: true, refused: true, pass, next, after_loss: next };
    }

    /// Makes the flow ask with the next unit, because an answer is wanted now.
    pub fn hurry(&mut self) {
        self.pass = 0;
    }

    /// Records one more unit of work.
    pub fn note_unit(&mut self) {
        self.pass = self.pass.saturating_sub(1);
    }

    /// Ends the waiting: the device has the context, or will never have it. Returns whether the device refused before.
    pub fn end(&mut self) -> bool {
        // The interval after losses survives, because the context may be lost again.
        let ended = ContextBackoff { after_loss: self.after_loss, ..ContextBackoff::default() };
        core::mem::replace(self, ended).refused
    }

    /// Tests whether the flow waits for a replacement of a lost context, and must not ask yet.
    pub fn rests_after_loss(&self) -> bool {
        self.waits && self.after_loss > 0 && self.pass > 0
    }

    /// Tests whether the flow waits for a context.
    pub fn waits(&self) -> bool {
        self.waits
    }

    /// Tests whether to ask now.
    pub fn is_due(&self) -> bool {
        self.waits && self.pass == 0
    }

    /// Tests whether the device refused since the first request.
    pub fn was_refused(&self) -> bool {
        self.refused
    }
}

/// Maximum number of units between two requests.
pub const UNITS_BETWEEN_ASKS: u8 = 32;

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the units with which a flow asks if every request is refused for the same `reason`.
    fn asks(reason: ContextRefusal, units: u32) -> Vec<u32> {
        let mut again = ContextBackoff::default();
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
        assert_eq!(asks(ContextRefusal::NoSpace, 130), [1, 3, 7, 15, 31, 63, 95, 127]);
        assert_eq!(asks(ContextRefusal::Busy, 4), [1, 2, 3, 4]);
        assert_eq!(asks(ContextRefusal::Resetting, 4), [1, 2, 3, 4]);
    }

    #[test]
    fn the_more_is_lost_the_less_is_asked() {
        let mut again = ContextBackoff::default();
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
        assert_eq!(again.pass, 1, "a new beginning resets the interval");
    }

    #[test]
    fn a_new_beginning_asks_at_once_and_remembers_the_refusal() {
        let mut again = ContextBackoff::default();
        (0..9).for_each(|_| again.note_refused(ContextRefusal::NoSpace));
        assert!(!again.is_due());
        again.begin();
        assert!(again.is_due() && again.was_refused());
        assert!(again.end());
        assert_eq!(again, ContextBackoff::default());
    }
}
