//! Sequence numbers: counted for sent packets, checked against a window for received packets (RFC 4303 3.3.3, 3.4.3,
//! appendix A).
//!
//! Invariants: no number is issued twice, or beyond the limit. A window accepts no number twice, and moves only for
//! authentic packets.

/// The sequence numbers of a transmit SA.
///
/// ```
/// use offload_esp::SendNumber;
///
/// let mut numbers = SendNumber::new(0, false);
/// let first = numbers.peek(3).unwrap(); // three packets: 1, 2, 3
/// numbers.take(3);
/// assert_eq!((first, numbers.last()), (1, 3));
/// assert_eq!(SendNumber::new(u64::from(u32::MAX), false).peek(1), None, "used up");
/// ```
#[derive(Clone, Copy, Debug)]
pub struct SendNumber {
    last: u64,
    limit: u64,
}

impl SendNumber {
    /// Continues after `last`. With `esn`, numbers go up to 2^64 - 1 instead of 2^32 - 1.
    pub fn new(last: u64, esn: bool) -> SendNumber {
        SendNumber { last, limit: limit(esn) }
    }

    /// Returns the first of the next `packets` numbers without using them. Returns `None` if fewer are left.
    pub fn peek(&self, packets: u32) -> Option<u64> {
        (self.limit.saturating_sub(self.last) >= u64::from(packets)).then(|| self.last + 1)
    }

    /// Uses the numbers that [`peek`](Self::peek) showed.
    ///
    /// # Panics
    /// If fewer numbers are left, because a repeated number would reveal the key.
    pub fn take(&mut self, packets: u32) {
        assert!(self.peek(packets).is_some(), "the sequence numbers are used up");
        self.last += u64::from(packets);
    }

    /// Skips all numbers up to `last`, which another component uses.
    pub fn go_on_after(&mut self, last: u64) {
        self.last = self.last.max(last);
    }

    /// Tests whether numbers go up to 2^64 - 1.
    pub fn is_extended(&self) -> bool {
        self.limit == limit(true)
    }

    /// Returns the last number used, or 0 before the first.
    pub fn last(&self) -> u64 {
        self.last
    }
}

/// Returns the highest number of an SA.
pub const fn limit(esn: bool) -> u64 {
    if esn { u64::MAX } else { u32::MAX as u64 }
}

/// The error for a number that is too old, was accepted before, or is impossible.
///
/// ```
/// use offload_esp::{NotNew, ReplayWindow};
///
/// let window = ReplayWindow::new(64, false, 1000);
/// assert_eq!(window.check(1), Err(NotNew), "older than the window");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the sequence number is not new")]
pub struct NotNew;

/// The replay window of a receive SA.
///
/// ```
/// use offload_esp::ReplayWindow;
///
/// let mut window = ReplayWindow::new(64, true, 0);
/// for low in [1, 3, 2] {
/// let number = window.check(low).unwrap(); // The packet is authenticated next. Only then:
///     window.accept(number);
/// }
/// assert!(window.check(2).is_err(), "a replay");
/// // RFC 4303 appendix A: the upper half follows from the window.
/// let mut window = ReplayWindow::new(64, true, 0xffff_fff0);
/// assert_eq!(window.check(5), Ok(0x1_0000_0005));
/// ```
#[derive(Clone, Debug)]
pub struct ReplayWindow {
    top: u64,
    size: u32,
    /// Distance below the top up to which numbers are remembered; at most `size`.
    memory: u32,
    esn: bool,
    /// One bit per number, in a ring with one word more than the window, so that whole words can be cleared as the
    /// window moves (RFC 6479).
    words: Box<[u64]>,
}

impl ReplayWindow {
    /// Creates a window of `size` numbers that ends at `top`. Unless `top` is 0, all numbers in it count as accepted.
    pub fn new(size: u32, esn: bool, top: u64) -> ReplayWindow {
        ReplayWindow::remembering(size, size, esn, top)
    }

    /// Creates a window that remembers only the last `memory` of its `size` numbers, and takes older ones as accepted.
    /// For a device that needs the window only to complete numbers, and leaves the check to the host.
    ///
    /// ```
    /// use offload_esp::ReplayWindow;
    ///
    /// let mut window = ReplayWindow::remembering(4096, 64, true, 0);
    /// assert!(window.accept(1000) && window.accept(990));
    /// assert!(!window.is_new(900), "not known any more");
    /// assert_eq!(window.whole(900), Ok(900));
    /// ```
    pub fn remembering(size: u32, memory: u32, esn: bool, top: u64) -> ReplayWindow {
        let memory = memory.min(size);
        // A window that continues after a restart does not know which numbers were accepted, so it refuses all of them.
        let seen = if top == 0 { 0 } else { u64::MAX };
        let mut window = ReplayWindow { top, size, memory, esn, words: vec![seen; words_of(memory)].into() };
        // The bits ahead of the top in the top's own word belong to later numbers.
        for ahead in 1..64 - (top % 64) {
            window.set(top + ahead, false);
        }
        window
    }

    /// Creates a window of `size` numbers that ends at `top`, and takes no number as accepted. For a device that takes
    /// over from another component, which continues to check.
    pub fn without_history(size: u32, esn: bool, top: u64) -> ReplayWindow {
        let mut window = ReplayWindow::new(size, esn, top);
        window.words.fill(0);
        window
    }

    /// Returns the size of the state saved by [`save`](Self::save) for a window that remembers `memory` numbers.
    pub const fn saved_len(memory: u32) -> usize {
        HEAD_BYTES + 8 * words_of(memory)
    }

    /// Appends the state to `image`.
    ///
    /// ```
    /// use offload_esp::ReplayWindow;
    ///
    /// let mut window = ReplayWindow::new(64, true, 0);
    /// window.accept(7);
    /// let mut image = Vec::new();
    /// window.save(&mut image);
    /// assert_eq!(image.len(), ReplayWindow::saved_len(64));
    /// let (restored, rest) = ReplayWindow::restore(&image).unwrap();
    /// assert!(!restored.is_new(7) && restored.is_new(8) && rest.is_empty());
    /// ```
    pub fn save(&self, image: &mut Vec<u8>) {
        image.extend_from_slice(&self.top.to_le_bytes());
        image.extend_from_slice(&self.size.to_le_bytes());
        image.extend_from_slice(&self.memory.to_le_bytes());
        image.push(u8::from(self.esn));
        self.words.iter().for_each(|word| image.extend_from_slice(&word.to_le_bytes()));
    }

    /// Restores a state saved by [`save`](Self::save), and returns the bytes after it. Returns `None` if `save` did
    /// not write `image`.
    pub fn restore(image: &[u8]) -> Option<(ReplayWindow, &[u8])> {
        let (top, image) = image.split_first_chunk()?;
        let (size, image) = image.split_first_chunk()?;
        let (memory, image) = image.split_first_chunk()?;
        let (esn, mut image) = image.split_first()?;
        let (size, memory) = (u32::from_le_bytes(*size), u32::from_le_bytes(*memory));
        // An image comes from host memory, so it is checked before it determines an allocation.
        if memory > size {
            return None;
        }
        let mut words = Vec::with_capacity(words_of(memory).min(image.len() / 8));
        for _ in 0..words_of(memory) {
            let (word, rest) = image.split_first_chunk()?;
            words.push(u64::from_le_bytes(*word));
            image = rest;
        }
        let (top, esn, words) = (u64::from_le_bytes(*top), *esn != 0, words.into());
        Some((ReplayWindow { top, size, memory, esn, words }, image))
    }

    /// Returns the highest accepted number.
    pub fn top(&self) -> u64 {
        self.top
    }

    /// Returns the complete number of a packet that shows `low`, if the packet may be accepted once it is
    /// authenticated.
    ///
    /// # Errors
    /// If the number was accepted before, or is too old.
    pub fn check(&self, low: u32) -> Result<u64, NotNew> {
        let number = self.whole(low)?;
        if self.is_new(number) { Ok(number) } else { Err(NotNew) }
    }

    /// Tests whether `number` may be accepted.
    pub fn is_new(&self, number: u64) -> bool {
        if number == 0 || number > limit(self.esn) {
            return false;
        }
        if number > self.top {
            return true;
        }
        // Older numbers are not remembered, and count as accepted.
        self.top - number < u64::from(self.memory) && !self.get(number)
    }

    /// Accepts the number of an authentic packet. Returns false if it was accepted before, or is too old.
    pub fn accept(&mut self, number: u64) -> bool {
        if !self.is_new(number) {
            return false;
        }
        if number > self.top {
            let (old, new) = (self.top / 64, number / 64);
            // A jump beyond the window clears each word once, not once per skipped number.
            for word in (old + 1..=new).take(self.words.len()) {
                let at = self.at(word);
                self.words[at] = 0;
            }
            self.top = number;
        }
        self.set(number, true);
        true
    }

    /// Completes a number with the upper half that is closest to the window (RFC 4303 A2.2).
    pub fn whole(&self, low: u32) -> Result<u64, NotNew> {
        if !self.esn {
            return Ok(u64::from(low));
        }
        let (top_high, top_low) = (self.top >> 32, self.top as u32);
        // RFC 4303 A2.2 distinguishes whether the window lies within one value of the upper half or spans two.
        let bottom = top_low.wrapping_sub(self.size - 1);
        let high = if top_low >= self.size - 1 {
            if low >= bottom { Some(top_high) } else { top_high.checked_add(1) }
        } else if low >= bottom {
            // The window extends to numbers before the last wrap of the lower half.
            top_high.checked_sub(1)
        } else {
            Some(top_high)
        };
        let high = high.filter(|high| *high <= u64::from(u32::MAX)).ok_or(NotNew)?;
        Ok((high << 32) | u64::from(low))
    }

    fn at(&self, word: u64) -> usize {
        // The number of words is a power of two, which saves a division per packet.
        word as usize & (self.words.len() - 1)
    }

    fn get(&self, number: u64) -> bool {
        self.words[self.at(number / 64)] >> (number % 64) & 1 == 1
    }

    fn set(&mut self, number: u64, seen: bool) {
        let at = self.at(number / 64);
        let bit = 1 << (number % 64);
        if seen {
            self.words[at] |= bit;
        } else {
            self.words[at] &= !bit;
        }
    }
}

/// Returns the number of words of a window that remembers `memory` numbers.
const fn words_of(memory: u32) -> usize {
    (memory.div_ceil(64) as usize + 1).next_power_of_two()
}

/// Size in bytes of the top, two sizes and a flag.
const HEAD_BYTES: usize = 8 + 4 + 4 + 1;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    /// A model of a window: the set of all accepted numbers.
    struct WindowModel {
        seen: BTreeSet<u64>,
        size: u64,
    }

    impl WindowModel {
        fn accept(&mut self, number: u64) -> bool {
            let top = self.seen.last().copied().unwrap_or(0);
            let fits = number > top || top - number < self.size;
            number != 0 && fits && self.seen.insert(number)
        }
    }

    proptest! {
        #[test]
        fn window_accepts_the_same_numbers_as_a_set(
            size in prop::sample::select(vec![32u32, 33, 64, 100, 128, 256, 1000, 4096]),
            start in prop::sample::select(vec![1u64, 60, 0xffff_ff00, 0x1_0000_0000, 0x5_0000_0010]),
            steps in prop::collection::vec((-300i64..300, 0u32..30), 1..200),
        ) {
            let mut window = ReplayWindow::new(size, true, start - 1);
            let behind = (start - 1).saturating_sub(u64::from(size));
            let mut oracle = WindowModel { seen: (behind + 1..start).collect(), size: u64::from(size) };
            let mut at = start;
            for (step, jump) in steps {
                let number = at.saturating_add_signed(step).max(1);
                if jump == 0 {
                    at += 5000;
                }
                // The upper half can be completed while the number is near the window.
                let guessed = window.check(number as u32);
                prop_assert_eq!(guessed == Ok(number), window.is_new(number), "{} at {}", number, window.top());
                prop_assert_eq!(window.accept(number), oracle.accept(number), "{} at {}", number, window.top());
                let mut image = Vec::new();
                window.save(&mut image);
                window = ReplayWindow::restore(&image).unwrap().0;
                at = at.max(number);
            }
        }
    }

    proptest! {
        /// RFC 4303 A2.2: the completion works after any loss shorter than half of the number space.
        #[test]
        fn upper_half_is_completed_after_any_gap(
            size in prop::sample::select(vec![32u32, 64, 256, 4096]),
            top in any::<u64>().prop_map(|top| top >> (top % 40)),
            gap in 1u64..1 << 32,
            late in 0u64..4096,
        ) {
            let window = ReplayWindow::without_history(size, true, top);
            let gap = gap.min((1 << 32) - u64::from(size));
            if let Some(number) = top.checked_add(gap) {
                prop_assert_eq!(window.check(number as u32), Ok(number));
            }
            if late < u64::from(size).min(top) {
                prop_assert_eq!(window.check((top - late) as u32), Ok(top - late));
            }
        }
    }

    #[test]
    fn numbers_end_at_the_limit() {
        let mut numbers = SendNumber::new(u64::MAX - 1, true);
        assert_eq!(numbers.peek(2), None);
        assert_eq!(numbers.peek(1), Some(u64::MAX));
        numbers.take(1);
        assert_eq!(numbers.peek(1), None);
        let mut numbers = SendNumber::new(5, false);
        numbers.go_on_after(9);
        assert_eq!(numbers.peek(1), Some(10));
        numbers.go_on_after(7);
        assert_eq!(numbers.peek(1), Some(10), "never back");
        let window = ReplayWindow::new(64, false, 5);
        assert!(!window.is_new(1 << 32) && !window.is_new(0));
    }

    #[test]
    fn window_without_history_accepts_each_number_once() {
        for top in [5, 63, 64, 1000, 0xffff_fff0, 0x1_0000_0010] {
            let mut window = ReplayWindow::without_history(64, true, top);
            for number in (1..=top).rev().take(64).chain(top + 1..top + 3) {
                assert_eq!(window.check(number as u32), Ok(number));
                assert!(window.accept(number) && !window.accept(number), "{number} of {top}");
            }
            assert!(!window.is_new(0) && !window.is_new(top.saturating_sub(64)));
        }
    }

    #[test]
    fn new_window_does_not_extend_below_zero() {
        let window = ReplayWindow::new(64, true, 0);
        assert_eq!(window.check(0xffff_ffff), Err(NotNew), "that would be before the first");
        assert_eq!(window.check(0), Err(NotNew));
    }
}
