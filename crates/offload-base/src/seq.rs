//! TCP sequence numbers.
//!
//! Invariant: a comparison is only meaningful between numbers less than 2^31 apart (RFC 9293 3.4). `Seq` therefore has
//! no total order, but the methods `before` and `after`.

use core::fmt;
use core::ops::{Add, AddAssign, Sub};

/// A TCP sequence number, modulo 2^32. Stream positions that do not wrap are plain `u64` offsets.
///
/// ```
/// use offload_base::Seq;
///
/// let start = Seq(u32::MAX - 1);
/// let end = start + 10;
/// assert_eq!(end, Seq(8));
/// assert!(start.before(end));
/// assert_eq!(end - start, 10);
/// assert_eq!(start - end, -10);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Seq(pub u32);

impl Seq {
    /// Tests whether this byte comes before `other` in the stream.
    pub const fn before(self, other: Seq) -> bool {
        // The sign of the wrapped difference is right for distances below 2^31.
        (self.0.wrapping_sub(other.0) as i32) < 0
    }

    /// Tests whether this byte comes after `other` in the stream.
    pub const fn after(self, other: Seq) -> bool {
        other.before(self)
    }

    /// Tests whether `self` is before `other` or equal.
    pub const fn at_or_before(self, other: Seq) -> bool {
        !other.before(self)
    }

    /// Tests whether `self` is after `other` or equal.
    pub const fn at_or_after(self, other: Seq) -> bool {
        !self.before(other)
    }

    /// Tests whether `self` lies in the half-open range `start..end`.
    pub const fn within(self, start: Seq, end: Seq) -> bool {
        self.at_or_after(start) && self.before(end)
    }

    /// Returns the number of bytes from `earlier` up to `self`, modulo 2^32.
    pub const fn distance_from(self, earlier: Seq) -> u32 {
        self.0.wrapping_sub(earlier.0)
    }

    /// Returns the earlier of two numbers.
    pub const fn min(self, other: Seq) -> Seq {
        if other.before(self) { other } else { self }
    }

    /// Returns the later of two numbers.
    pub const fn max(self, other: Seq) -> Seq {
        if other.after(self) { other } else { self }
    }
}

impl Add<u32> for Seq {
    type Output = Seq;
    fn add(self, bytes: u32) -> Seq {
        Seq(self.0.wrapping_add(bytes))
    }
}

impl AddAssign<u32> for Seq {
    fn add_assign(&mut self, bytes: u32) {
        *self = *self + bytes;
    }
}

impl Sub<u32> for Seq {
    type Output = Seq;
    fn sub(self, bytes: u32) -> Seq {
        Seq(self.0.wrapping_sub(bytes))
    }
}

/// Computes the signed distance. It is negative if the left-hand number comes first.
impl Sub for Seq {
    type Output = i32;
    fn sub(self, other: Seq) -> i32 {
        self.0.wrapping_sub(other.0) as i32
    }
}

impl fmt::Debug for Seq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "seq {}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn order_follows_distance(start: u32, step in 1u32..0x8000_0000) {
            let (a, b) = (Seq(start), Seq(start) + step);
            prop_assert!(a.before(b) && b.after(a) && !b.before(a));
            prop_assert_eq!(b.distance_from(a), step);
            prop_assert_eq!(a.max(b), b);
            prop_assert_eq!(a.min(b), a);
            prop_assert!(a.within(a, b) && !b.within(a, b));
        }
    }
}
