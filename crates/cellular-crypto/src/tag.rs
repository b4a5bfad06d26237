//! Tags (MAC-I) and their lengths.

use subtle::{Choice, ConstantTimeEq};

/// The length of a tag: 4 to 16 bytes.
///
/// ```
/// use cellular_crypto::TagLen;
///
/// assert_eq!(TagLen::new(4), Some(TagLen::FOUR));
/// assert_eq!(TagLen::new(3), None);
/// assert_eq!(TagLen::new(16).map(TagLen::get), Some(16));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TagLen(u8);

impl TagLen {
    /// The tag length of 5G: a 32-bit MAC-I.
    pub const FOUR: TagLen = TagLen(4);

    /// Returns `None` unless `bytes` is 4 to 16.
    pub fn new(bytes: usize) -> Option<TagLen> {
        (4..=16).contains(&bytes).then_some(TagLen(bytes as u8))
    }

    /// Returns the number of bytes.
    pub fn get(self) -> usize {
        usize::from(self.0)
    }
}

/// A tag. Comparison takes constant time.
///
/// ```
/// use cellular_crypto::{Algorithm, Iv, Key, TagLen};
///
/// let key = Key::new(Algorithm::Snow5g, &[7; 32])?;
/// let tag = key.mac(&Iv::from_bytes([0x40; 16]), b"message", TagLen::new(8).expect("4 to 16"))?;
/// assert_eq!(tag.as_bytes().len(), 8);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Tag {
    bytes: [u8; 16],
    len: TagLen,
}

impl Tag {
    /// Takes the first bytes of a full tag.
    pub(crate) fn truncate(mut bytes: [u8; 16], len: TagLen) -> Tag {
        bytes[len.get()..].fill(0);
        Tag { bytes, len }
    }

    /// Returns the tag's bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len.get()]
    }

    /// Tests whether `other` equals the tag's bytes, in constant time.
    pub fn fits(&self, other: &[u8]) -> bool {
        bool::from(self.as_bytes().ct_eq(other))
    }
}

impl PartialEq for Tag {
    fn eq(&self, other: &Tag) -> bool {
        let equal: Choice = self.bytes.ct_eq(&other.bytes);
        self.len == other.len && bool::from(equal)
    }
}

impl Eq for Tag {}
