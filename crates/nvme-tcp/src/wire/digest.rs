//! CRC32C, the header and data digest of NVMe/TCP.
//!
//! NVMe/TCP Transport Specification 1.0, 3.3.1.1: polynomial 0x1EDC6F41, seed all ones, final inversion, little-endian
//! on the wire. Invariant: a digest depends only on the bytes, never on the boundaries of the pieces.

use offload_base::cost::{self, WorkKind};

/// A digest of bytes that arrive in pieces.
///
/// ```
/// use nvme_tcp::wire::Digest;
///
/// // RFC 3720 B.4: 32 bytes of zeros.
/// let mut digest = Digest::default();
/// digest.update(&[0; 10]);
/// digest.update(&[0; 22]);
/// assert_eq!(digest.wire(), [0xaa, 0x36, 0x91, 0x8a]);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Digest(u32);

impl Digest {
    /// Computes the digest of `bytes`.
    pub fn compute(bytes: &[u8]) -> Digest {
        let mut digest = Digest::default();
        digest.update(bytes);
        digest
    }

    /// Adds `bytes` to the digest.
    pub fn update(&mut self, bytes: &[u8]) {
        let _scope = cost::work(WorkKind::Digest);
        self.0 = crc32c::crc32c_append(self.0, bytes);
    }

    /// Returns the digest as sent on the wire.
    pub fn wire(self) -> [u8; 4] {
        self.0.to_le_bytes()
    }
}

/// Bytes of a digest on the wire.
pub(crate) const DIGEST_LEN: usize = 4;

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 3720 B.4.
    #[test]
    fn published_vectors() {
        let ascending: Vec<u8> = (0..32).collect();
        let descending: Vec<u8> = (0..32).rev().collect();
        assert_eq!(Digest::compute(&[0; 32]).wire(), [0xaa, 0x36, 0x91, 0x8a]);
        assert_eq!(Digest::compute(&[0xff; 32]).wire(), [0x43, 0xab, 0xa8, 0x62]);
        assert_eq!(Digest::compute(&ascending).wire(), [0x4e, 0x79, 0xdd, 0x46]);
        assert_eq!(Digest::compute(&descending).wire(), [0x5c, 0xdb, 0x3f, 0x11]);
    }
}
