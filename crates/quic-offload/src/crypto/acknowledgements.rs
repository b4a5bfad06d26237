//! How soon a peer acknowledges (draft-ietf-quic-ack-frequency).
//!
//! RFC 9000 lets a peer wait 25 ms with acknowledgements, which is most of a probe timeout where a round trip takes less. A peer that has
//! the extension is asked for [`ASKED`]: what was lost at the end of a burst, and paths that were cut, are noticed sooner, and keys
//! may change more often.

use core::time::Duration;
use std::borrow::Cow;

/// What a peer's transport parameters (RFC 9000 18) say: without its least delay, if nobody may ask for that delay, and whether
/// it waits as long as it is asked to.
///
/// The state machine takes a least delay above 25 ms and asks for one between that and 25 ms, which ends the program.
pub(crate) fn asked(parameters: &[u8]) -> (Cow<'_, [u8]>, bool) {
    let Some((at, delay)) = find(parameters, LEAST_DELAY) else { return (parameters.into(), false) };
    match delay <= ASKED.as_micros() as u64 {
        true => (parameters.into(), true),
        false => ([&parameters[..at.start], &parameters[at.end..]].concat().into(), false),
    }
}

/// Where a parameter is, and its value, which is a number.
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

/// RFC 9000 16.
fn number(bytes: &mut &[u8]) -> Option<u64> {
    let length = 1 << (bytes.first()? >> 6);
    let encoded = bytes.split_off(..length)?;
    let whole = encoded.iter().fold(0, |number, byte| number << 8 | u64::from(*byte));
    Some(whole & (u64::MAX >> (64 - 8 * length + 2)))
}

/// How long a peer is asked to wait at most.
pub(crate) const ASKED: Duration = Duration::from_millis(5);
/// `min_ack_delay`, in microseconds.
const LEAST_DELAY: u64 = 0xff04_de1b;

#[cfg(test)]
mod tests {
    use super::*;

    const ID: [u8; 8] = [0xc0, 0, 0, 0, 0xff, 0x04, 0xde, 0x1b];

    #[test]
    fn a_least_delay_that_cannot_be_asked_for_is_left_out() {
        let before = [0x01, 0x04, 0x80, 0, 0x75, 0x30];
        let after = [0x0f, 0x02, 1, 2];
        for (value, is_asked) in [(&[1, 0x3f][..], true), (&[2, 0x43, 0xe8], true), (&[4, 0x80, 0, 0x13, 0x88], true)] {
            let whole = [&before, &ID[..], value, &after].concat();
            assert_eq!(asked(&whole), (Cow::Borrowed(&whole[..]), is_asked));
        }
        for value in [&[4, 0x80, 0, 0x13, 0x89][..], &[8, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff]] {
            let whole = [&before, &ID[..], value, &after].concat();
            assert_eq!(asked(&whole), (Cow::Owned([&before[..], &after].concat()), false));
        }
        assert_eq!(asked(&before), (Cow::Borrowed(&before[..]), false));
    }

    /// What is no list of parameters is for the state machine to refuse.
    #[test]
    fn nothing_is_found_in_what_is_cut_off() {
        let whole = [&ID[..], &[4, 0x80, 0, 0x13, 0x88]].concat();
        for end in 0..whole.len() {
            assert_eq!(asked(&whole[..end]), (Cow::Borrowed(&whole[..end]), false));
        }
        assert!(!asked(&[ID.as_slice(), &[0xff; 8]].concat()).1);
        assert!(!asked(&[ID.as_slice(), &[0]].concat()).1);
    }
}
