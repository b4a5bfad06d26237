//! 128-NIA3 (TS 35.221 4): the sum of the keystream's windows of 32 bits that begin where the message has a one.

use crate::words::Words;

/// A MAC under way: it takes its generator's blocks in order.
pub(crate) struct Eia3<'a> {
    message: &'a [u8],
    bits: usize,
    /// The last word of the block before.
    previous: u32,
    sum: u32,
}

impl<'a> Eia3<'a> {
    /// Of the first `bits` of `message`, which has as many.
    pub(crate) fn new(message: &'a [u8], bits: usize) -> Self {
        Eia3 { message, bits, previous: 0, sum: 0 }
    }

    /// How many words of keystream go in.
    pub(crate) fn words(&self) -> usize {
        self.bits.div_ceil(32) + 2
    }

    /// The keystream's 64 bytes number `index`.
    #[inline(always)]
    pub(crate) fn take<W: Words>(&mut self, proof: W::Proof, index: usize, block: &[u8; 64]) {
        // The window of message word `m` ends in keystream word `m + 1`.
        let end = 16 * (index + 1) - 1;
        if index > 0 && 32 * end <= self.bits {
            let message = self.message[4 * (16 * index - 1)..].first_chunk().expect("as many bits");
            self.sum ^= W::windows(proof, self.previous, block, message);
        } else {
            self.take_words(index, block);
        }
        self.previous = u32::from_be_bytes(*block.last_chunk().expect("64 bytes"));
    }

    fn take_words(&mut self, index: usize, block: &[u8; 64]) {
        let (last, mut previous) = (self.words() - 1, self.previous);
        for (word, bytes) in block.as_chunks::<4>().0.iter().enumerate() {
            let (number, bytes) = (16 * index + word, u32::from_be_bytes(*bytes));
            if number > last {
                break;
            }
            if number > 0 {
                self.sum ^= self.window(number - 1, u64::from(previous) << 32 | u64::from(bytes));
            }
            if number == last {
                self.sum ^= bytes;
            }
            previous = bytes;
        }
    }

    /// What message word `m`, and the end if it is there, takes from the keystream that begins with the same bit.
    fn window(&self, m: usize, keystream: u64) -> u32 {
        let (whole, rest) = (self.bits / 32, self.bits % 32);
        if m > whole {
            return 0;
        }
        let mut word = [0; 4];
        let bytes = &self.message[4 * m..self.bits.div_ceil(8).min(4 * m + 4)];
        word[..bytes.len()].copy_from_slice(bytes);
        let word = u32::from_be_bytes(word);
        if m < whole {
            return window(keystream, word);
        }
        let kept = word & !(u32::MAX.checked_shr(rest as u32).unwrap_or(0));
        window(keystream, kept) ^ (keystream << rest >> 32) as u32
    }

    /// When all blocks were taken.
    pub(crate) fn tag(&self) -> [u8; 4] {
        self.sum.to_be_bytes()
    }
}

/// The windows of sixteen message words, the first of which begins with `previous`.
pub(crate) fn windows(previous: u32, block: &[u8; 64], message: &[u8; 64]) -> u32 {
    let mut previous = previous;
    let mut sum = 0;
    for (block, message) in block.as_chunks::<4>().0.iter().zip(message.as_chunks::<4>().0) {
        let word = u32::from_be_bytes(*block);
        sum ^= window(u64::from(previous) << 32 | u64::from(word), u32::from_be_bytes(*message));
        previous = word;
    }
    sum
}

#[inline(always)]
fn window(keystream: u64, message: u32) -> u32 {
    (0..32).fold(0, |sum, bit| {
        let mask = (message << bit >> 31).wrapping_neg();
        sum ^ (keystream << bit >> 32) as u32 & mask
    })
}
