//! Packet numbers, truncated to 1 to 4 bytes on the wire (RFC 9000 17.1, A.2, A.3).

/// Expands a truncated packet number: returns the number with `truncated` as its lowest `bytes` bytes that is closest
/// to the successor of `largest`, the largest number opened so far (RFC 9000 A.3).
///
/// ```
/// use offload_quic::number::expand;
///
/// assert_eq!(expand(Some(0xa82f30ea), 0x9b32, 2), 0xa82f9b32);
/// assert_eq!(expand(None, 7, 1), 7);
/// ```
pub fn expand(largest: Option<u64>, truncated: u32, bytes: usize) -> u64 {
    let expected = largest.map_or(0, |largest| largest + 1);
    let window = 1u64 << (8 * bytes);
    let half = window / 2;
    // The candidate has the upper bits of the expected number; the closest one may be a window above or below.
    let candidate = expected & !(window - 1) | u64::from(truncated);
    if candidate + half <= expected && candidate < LIMIT - window {
        candidate + window
    } else if candidate > expected + half && candidate >= window {
        candidate - window
    } else {
        candidate
    }
}

/// Upper bound of packet numbers, which have 62 bits (RFC 9000 17.1).
const LIMIT: u64 = 1 << 62;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Returns the size in bytes with which `number` must be sent, given the largest number that the peer has
    /// acknowledged. Returns `None` if too many packets are in flight (RFC 9000 A.2).
    fn bytes_for(number: u64, acknowledged: Option<u64>) -> Option<usize> {
        let unacknowledged = match acknowledged {
            Some(acknowledged) => number.checked_sub(acknowledged)?,
            None => number + 1,
        };
        (1..=4).find(|bytes| unacknowledged <= 1 << (8 * bytes - 1))
    }

    #[test]
    fn number_size_matches_the_rfc_example() {
        assert_eq!((bytes_for(0xac5c02, Some(0xabe8b3)), bytes_for(0xace8fe, Some(0xabe8b3))), (Some(2), Some(3)));
    }

    #[test]
    fn first_numbers_need_no_window_below_zero() {
        for bytes in 1..=4 {
            assert_eq!(expand(None, 0, bytes), 0);
            assert_eq!(expand(Some(0), 1, bytes), 1);
            assert_eq!(expand(Some(0), 200, bytes), 200, "nothing is less than nothing");
        }
        // There is no window above the upper end, either.
        assert_eq!(expand(Some(LIMIT - 2), 0xff, 1), LIMIT - 1);
    }

    proptest! {
        /// Compares with the definition: of all numbers with these low bytes, the closest to the expected one.
        #[test]
        fn closest_number_is_chosen(
            largest in prop_oneof![0u64..1000, 0..LIMIT - 1, LIMIT - 1000..LIMIT - 1],
            offset in -(1i64 << 33)..1 << 33,
            bytes in 1usize..=4,
        ) {
            let truncated = (largest.wrapping_add_signed(offset) & ((1 << (8 * bytes)) - 1)) as u32;
            let window = 1i128 << (8 * bytes);
            let expected = i128::from(largest) + 1;
            let base = expected - expected.rem_euclid(window) + i128::from(truncated);
            let closest = [base - window, base, base + window]
                .into_iter()
                .filter(|number| (0..i128::from(LIMIT)).contains(number))
                // Of two equally close numbers, the greater one.
                .min_by_key(|number| ((number - expected).abs(), core::cmp::Reverse(*number)))
                .unwrap();
            prop_assert_eq!(i128::from(expand(Some(largest), truncated, bytes)), closest);
        }

        #[test]
        fn truncated_number_is_expanded(
            acknowledged in prop::option::of(0u64..LIMIT / 2),
            ahead in 0u64..1 << 31,
            lost in any::<prop::sample::Index>(),
        ) {
            let number = acknowledged.map_or(ahead, |acknowledged| acknowledged + ahead);
            let Some(bytes) = bytes_for(number, acknowledged) else { return Ok(()) };
            // The peer has opened a packet between the acknowledged one and the previous one.
            let from = acknowledged.unwrap_or(0);
            let largest = from + lost.index((number - from).max(1) as usize) as u64;
            let truncated = (number & ((1 << (8 * bytes)) - 1)) as u32;
            prop_assert_eq!(expand(Some(largest), truncated, bytes), number);
        }
    }
}
