//! Keys as bytes.

use core::fmt;
use zeroize::Zeroizing;

/// A key. Wiped on drop, and never printed.
///
/// ```
/// use offload_transforms::SecretBytes;
///
/// let key = SecretBytes::new(vec![7; 32]);
/// assert_eq!(format!("{key:?}"), "Secret(32 bytes)");
/// assert_eq!(key.bytes(), [7; 32]);
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct SecretBytes(Zeroizing<Vec<u8>>);

impl SecretBytes {
    /// Wraps the bytes without copying them.
    pub fn new(bytes: Vec<u8>) -> SecretBytes {
        SecretBytes(Zeroizing::new(bytes))
    }

    /// Returns the bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for SecretBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The length is public, and tells a wrong key from a right one in a log.
        write!(f, "Secret({} bytes)", self.0.len())
    }
}
