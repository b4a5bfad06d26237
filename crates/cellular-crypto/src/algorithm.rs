//! The six algorithms of 5G.

/// A cipher of 5G. Its number is that in the standards' names: 1 is 128-NEA1 and 128-NIA1, 4 is 256-NEA4, 256-NIA4 and
/// 256-NCA4.
/// ```
/// use cellular_crypto::Algorithm;
///
/// assert_eq!(Algorithm::from_number(3), Some(Algorithm::Zuc128));
/// assert_eq!(Algorithm::Snow5g.number(), 4);
/// assert_eq!(Algorithm::Snow5g.key_len(), 32);
/// assert!(Algorithm::Aes256.has_aead() && !Algorithm::Aes128.has_aead());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Algorithm {
    /// 128-NEA1, 128-NIA1 (TS 35.215, 35.216): the same as 128-EEA1, UEA2, UIA2.
    Snow3g,
    /// 128-NEA2 (AES in counter mode), 128-NIA2 (AES-CMAC): TS 33.401 annex B.
    Aes128,
    /// 128-NEA3, 128-NIA3 (TS 35.221, 35.222).
    Zuc128,
    /// 256-NEA4, 256-NIA4, 256-NCA4 (TS 35.240 and after).
    Snow5g,
    /// 256-NEA5, 256-NIA5, 256-NCA5.
    Aes256,
    /// 256-NEA6, 256-NIA6, 256-NCA6 (TS 35.246 and after).
    Zuc256,
}

impl Algorithm {
    /// All algorithms, by number.
    pub const ALL: [Algorithm; 6] = [
        Algorithm::Snow3g,
        Algorithm::Aes128,
        Algorithm::Zuc128,
        Algorithm::Snow5g,
        Algorithm::Aes256,
        Algorithm::Zuc256,
    ];

    /// Returns the number, 1 to 6.
    pub fn number(self) -> u8 {
        match self {
            Algorithm::Snow3g => 1,
            Algorithm::Aes128 => 2,
            Algorithm::Zuc128 => 3,
            Algorithm::Snow5g => 4,
            Algorithm::Aes256 => 5,
            Algorithm::Zuc256 => 6,
        }
    }

    /// Returns the algorithm with this number, or `None`. The null cipher, 0, is not an algorithm here.
    pub fn from_number(number: u8) -> Option<Algorithm> {
        Algorithm::ALL.into_iter().find(|algorithm| algorithm.number() == number)
    }

    /// Returns the length of a key in bytes.
    pub fn key_len(self) -> usize {
        if self.has_aead() { 32 } else { 16 }
    }

    /// Tests whether the algorithm has an NCA: ciphering and integrity in one pass. The three algorithms of 256 bits
    /// have one.
    pub fn has_aead(self) -> bool {
        self.number() >= 4
    }
}
