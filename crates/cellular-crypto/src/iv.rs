//! IVs, which give each message its own keystream: COUNT, BEARER and DIRECTION in 16 bytes.

use crate::{Algorithm, TagLen};

/// A message's direction (DIRECTION).
///
/// See [`PduNumber`] for an example.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// From the user equipment to the network: 0.
    Uplink,
    /// To the user equipment: 1.
    Downlink,
}

/// COUNT, BEARER and DIRECTION. With one key, no two messages may have the same number.
///
/// ```
/// use cellular_crypto::{Algorithm, Direction, Iv, PduNumber};
///
/// let number = PduNumber::new(0x398a59b4, 0x15, Direction::Downlink).expect("a bearer below 32");
/// let iv = Iv::cipher(Algorithm::Snow3g, number);
/// assert_eq!(iv.bytes()[..8], [0x39, 0x8a, 0x59, 0xb4, 0xac, 0, 0, 0]);
/// assert_eq!(PduNumber::new(0, 32, Direction::Uplink), None);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PduNumber {
    count: u32,
    bearer: u8,
    direction: Direction,
}

impl PduNumber {
    /// Returns `None` for a bearer of 32 or more: BEARER has five bits.
    pub fn new(count: u32, bearer: u8, direction: Direction) -> Option<PduNumber> {
        (bearer < 32).then_some(PduNumber { count, bearer, direction })
    }

    /// Returns COUNT.
    pub fn count(self) -> u32 {
        self.count
    }

    /// Returns BEARER, which is below 32.
    pub fn bearer(self) -> u8 {
        self.bearer
    }

    /// Returns DIRECTION.
    pub fn direction(self) -> Direction {
        self.direction
    }

    fn direction_bit(self) -> u8 {
        match self.direction {
            Direction::Uplink => 0,
            Direction::Downlink => 1,
        }
    }
}

/// A generator's 16-byte starting value, besides the key.
///
/// Each operation has its own layout: [`Iv::cipher`] for NEA, [`Iv::mac`] for NIA, [`Iv::aead`] for NCA.
/// [`Iv::from_bytes`] takes 16 bytes in any other layout, for example from a test vector.
///
/// ```
/// use cellular_crypto::{Algorithm, Direction, Iv, PduNumber, TagLen};
///
/// let number = PduNumber::new(7, 1, Direction::Uplink).expect("a bearer below 32");
/// let iv = Iv::aead(Algorithm::Snow5g, number, TagLen::FOUR);
/// assert_eq!(iv.bytes(), &[0x24, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0, 0]);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Iv([u8; 16]);

impl Iv {
    /// Uses the 16 bytes unchanged. AES-128 takes the first eight as the MAC's prefix, and as the high half of the
    /// counter block.
    pub fn from_bytes(bytes: [u8; 16]) -> Iv {
        Iv(bytes)
    }

    /// Returns the bytes.
    pub fn bytes(&self) -> &[u8; 16] {
        &self.0
    }

    /// Returns the IV for ciphering.
    pub fn cipher(algorithm: Algorithm, number: PduNumber) -> Iv {
        match algorithm {
            // TS 33.401 B.1.3: the low half counts blocks.
            Algorithm::Aes128 => Iv::twice(prefix(number), [0; 8]),
            // TS 35.215 3.4, 35.221 3.3.
            Algorithm::Snow3g | Algorithm::Zuc128 => Iv::twice(prefix(number), prefix(number)),
            Algorithm::Snow5g | Algorithm::Aes256 | Algorithm::Zuc256 => Iv::wide(0, number),
        }
    }

    /// Returns the IV for integrity.
    pub fn mac(algorithm: Algorithm, number: PduNumber, tag: TagLen) -> Iv {
        let direction = number.direction_bit();
        match algorithm {
            // TS 35.215 4.4, with FRESH = BEARER | 0^27 (TS 33.401 B.2.2).
            Algorithm::Snow3g => {
                let (count, fresh) = (number.count, u32::from(number.bearer) << 27);
                let direction = u32::from(direction);
                let words = [count, fresh, count ^ (direction << 31), fresh ^ (direction << 15)];
                Iv::from_words(words)
            }
            Algorithm::Aes128 => Iv::twice(prefix(number), [0; 8]),
            // TS 35.221 4.3.
            Algorithm::Zuc128 => {
                let [c0, c1, c2, c3] = number.count.to_be_bytes();
                let half = [c0, c1, c2, c3, number.bearer << 3, 0, 0, 0];
                let mut iv = Iv::twice(half, half);
                iv.0[8] ^= direction << 7;
                iv.0[14] ^= direction << 7;
                iv
            }
            Algorithm::Snow5g | Algorithm::Aes256 | Algorithm::Zuc256 => Iv::wide(8 * tag.get() as u8, number),
        }
    }

    /// Returns the IV for ciphering and integrity in one pass, by the 256-bit algorithms. For the other algorithms it
    /// is [`Iv::cipher`].
    pub fn aead(algorithm: Algorithm, number: PduNumber, tag: TagLen) -> Iv {
        match algorithm.has_aead() {
            true => Iv::wide(8 * tag.get() as u8 + 4, number),
            false => Iv::cipher(algorithm, number),
        }
    }

    /// Replaces bytes 2 to 7 of a 256-bit algorithm's IV, which are zero by default. No published text was found that
    /// defines them.
    pub fn with_middle(mut self, middle: [u8; 6]) -> Iv {
        self.0[2..8].copy_from_slice(&middle);
        self
    }

    /// Returns the layout of the published vectors of the 256-bit algorithms. The first byte differs by NEA, NIA, NCA and
    /// tag length.
    fn wide(first: u8, number: PduNumber) -> Iv {
        let mut bytes = [0; 16];
        bytes[0] = first;
        bytes[1] = number.bearer << 1 | number.direction_bit();
        bytes[8..12].copy_from_slice(&number.count.to_be_bytes());
        Iv(bytes)
    }

    fn twice(high: [u8; 8], low: [u8; 8]) -> Iv {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&high);
        bytes[8..].copy_from_slice(&low);
        Iv(bytes)
    }

    fn from_words(words: [u32; 4]) -> Iv {
        let mut bytes = [0; 16];
        for (bytes, word) in bytes.chunks_exact_mut(4).zip(words) {
            bytes.copy_from_slice(&word.to_be_bytes());
        }
        Iv(bytes)
    }
}

/// COUNT | BEARER | DIRECTION | 0^26.
fn prefix(number: PduNumber) -> [u8; 8] {
    let [c0, c1, c2, c3] = number.count.to_be_bytes();
    [c0, c1, c2, c3, number.bearer << 3 | number.direction_bit() << 2, 0, 0, 0]
}
