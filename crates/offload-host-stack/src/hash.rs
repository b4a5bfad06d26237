//! SipHash-2-4 (Aumasson, Bernstein 2012), a keyed hash. Without the key, a remote host can neither choose flows that
//! fall into one bucket nor guess initial sequence numbers (RFC 6528). Equal keys give equal tables on any machine.

use core::hash::{BuildHasher, Hasher};

/// A SipHash key, and a builder of hashers with this key.
#[derive(Clone, Copy)]
pub(crate) struct SipKey(pub(crate) u64, pub(crate) u64);

impl BuildHasher for SipKey {
    type Hasher = SipHasher;
    fn build_hasher(&self) -> SipHasher {
        SipHasher {
            state: [
                self.0 ^ 0x736f_6d65_7073_6575,
                self.1 ^ 0x646f_7261_6e64_6f6d,
                self.0 ^ 0x6c79_6765_6e65_7261,
                self.1 ^ 0x7465_6462_7974_6573,
            ],
            pending: 0,
            pending_bytes: 0,
            total: 0,
        }
    }
}

impl core::fmt::Debug for SipKey {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("SipKey(redacted)")
    }
}

/// Running state of a SipHash computation.
#[derive(Clone, Debug)]
pub(crate) struct SipHasher {
    state: [u64; 4],
    pending: u64,
    pending_bytes: u32,
    total: u8,
}

impl SipHasher {
    fn word(&mut self, word: u64) {
        self.state[3] ^= word;
        self.rounds(2);
        self.state[0] ^= word;
    }

    fn rounds(&mut self, count: usize) {
        let [mut a, mut b, mut c, mut d] = self.state;
        for _ in 0..count {
            a = a.wrapping_add(b);
            c = c.wrapping_add(d);
            b = b.rotate_left(13) ^ a;
            d = d.rotate_left(16) ^ c;
            a = a.rotate_left(32);
            c = c.wrapping_add(b);
            a = a.wrapping_add(d);
            b = b.rotate_left(17) ^ c;
            d = d.rotate_left(21) ^ a;
            c = c.rotate_left(32);
        }
        self.state = [a, b, c, d];
    }
}

impl Hasher for SipHasher {
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.pending |= u64::from(*byte) << (8 * self.pending_bytes);
            self.pending_bytes += 1;
            if self.pending_bytes == 8 {
                let word = core::mem::take(&mut self.pending);
                self.pending_bytes = 0;
                self.word(word);
            }
        }
        self.total = self.total.wrapping_add(bytes.len() as u8);
    }

    fn write_u64(&mut self, word: u64) {
        if self.pending_bytes == 0 {
            self.total = self.total.wrapping_add(8);
            self.word(word);
        } else {
            self.write(&word.to_le_bytes());
        }
    }

    fn finish(&self) -> u64 {
        let mut last = self.clone();
        last.word(self.pending | u64::from(self.total) << 56);
        last.state[2] ^= 0xff;
        last.rounds(4);
        last.state.iter().fold(0, |hash, word| hash ^ word)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hasher_matches_the_papers_test_vector() {
        // Appendix A of the SipHash paper: key 00..0f, message 00..0e.
        let key = SipKey(0x0706_0504_0302_0100, 0x0f0e_0d0c_0b0a_0908);
        let message: Vec<u8> = (0..15).collect();
        let mut hasher = key.build_hasher();
        hasher.write(&message);
        assert_eq!(hasher.finish(), 0xa129_ca61_49be_45e5);
        let mut by_words = key.build_hasher();
        by_words.write_u64(u64::from_le_bytes(message[..8].try_into().unwrap()));
        by_words.write(&message[8..]);
        assert_eq!(by_words.finish(), hasher.finish());
    }
}
