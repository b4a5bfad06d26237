//! The delay of a peer's acknowledgments (draft-ietf-quic-ack-frequency).
//!
//! RFC 9000 lets a peer delay acknowledgments by 25 ms, which dominates the probe timeout on short paths. A peer that
//! has the extension is asked for [`ASKED`] instead. Losses at the end of a burst and cut paths are then detected
//! sooner, and keys may be updated more often.

use core::time::Duration;
use std::borrow::Cow;

/// Filters a peer's transport parameters (RFC 9000 18). Returns the parameters, without a `min_ack_delay` that is too
/// large to be asked for, and whether the peer can be asked for [`ASKED`].
///
/// The filter is needed because the state machine panics on a `min_ack_delay` above 25 ms: it asks for a delay between
/// that value and 25 ms.
pub(crate) fn check_min_ack_delay(parameters: &[u8]) -> (Cow<'_, [u8]>, bool) {
    let Some((at, delay)) = find(parameters, MIN_ACK_DELAY) else { return (parameters.into(), false) };
    match delay <= ASKED.as_micros() as u64 {
        true => (parameters.into(), true),
        false => ([&parameters[..at.start], &parameters[at.end..]].concat().into(), false),
    }
}

/// Finds an integer parameter. Returns its range and value.
fn find(parameters: &[u8], wanted: u64) -> Option<(core::ops::Range<usize>, u64)> {
    let mut left = parameters;
    loop {
        let from = parameters.len() - left.len();
        let (id, length) = (number(&mut left)?, number(&mut left)?);
        let value = left.split_off(..usize::try_from(length).ok()?)?;
        if id == wanted {
            return Some((from..parameters.len() - left.len(), number(&mut &*value)?));
        }
    }
}

/// Parses a variable-length integer (RFC 9000 16).
fn number(bytes: &mut &[u8]) -> Option<u64> {
    let length = 1 << (bytes.first()? >> 6);
    let encoded = bytes.split_off(..length)?;
    let whole = encoded.iter().fold(0, |number, byte| number << 8 | u64::from(*byte));
    Some(whole & (u64::MAX >> (64 - 8 * length + 2)))
}

/// Requested limit of a peer's acknowledgment delay.
pub(crate) const ASKED: Duration = Duration::from_millis(5);
/// The ID of `min_ack_delay`, in microseconds.
const MIN_ACK_DELAY: u64 = 0xff04_de1b;

#[cfg(test)]
mod tests {
    use super::*;

    const ID: [u8; 8] = [0xc0, 0, 0, 0, 0xff, 0x04, 0xde, 0x1b];

    #[test]
    fn excessive_min_ack_delay_is_removed() {
        let before = [0x01, 0x04, 0x80, 0, 0x75, 0x30];
        let after = [0x0f, 0x02, 1, 2];
        for (value, is_asked) in [(&[1, 0x3f][..], true), (&[2, 0x43, 0xe8], true), (&[4, 0x80, 0, 0x13, 0x88], true)] {
            let whole = [&before, &ID[..], value, &after].concat();
            assert_eq!(check_min_ack_delay(&whole), (Cow::Borrowed(&whole[..]), is_asked));
        }
        for value in [&[4, 0x80, 0, 0x13, 0x89][..], &[8, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff]] {
            let whole = [&before, &ID[..], value, &after].concat();
            assert_eq!(check_min_ack_delay(&whole), (Cow::Owned([&before[..], &after].concat()), false));
        }
        assert_eq!(check_min_ack_delay(&before), (Cow::Borrowed(&before[..]), false));
    }

    /// Malformed parameters are left to the state machine, which refuses them.
    #[test]
    fn truncated_parameters_are_unchanged() {
        let whole = [&ID[..], &[4, 0x80, 0, 0x13, 0x88]].concat();
        for end in 0..whole.len() {
            assert_eq!(check_min_ack_delay(&whole[..end]), (Cow::Borrowed(&whole[..end]), false));
        }
        assert!(!check_min_ack_delay(&[ID.as_slice(), &[0xff; 8]].concat()).1);
        assert!(!check_min_ack_delay(&[ID.as_slice(), &[0]].concat()).1);
    }
}
