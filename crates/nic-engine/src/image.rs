//! Images of contexts in host memory, 208 bytes each, the published size of a flow's context. Unused bytes are zero,
//! and take no memory of this process.
//!
//! Invariant: reading returns the written values, followed by zeros. The driver never reads or writes an image.

use core::fmt;
use offload_base::Seq;
use zeroize::{Zeroize, ZeroizeOnDrop, Zeroizing};

/// The state of a context as bytes. Never printed, because the state contains keystream.
///
/// ```
/// use nic_engine::ContextImage;
///
/// let image = ContextImage::build(|image| image.put_u32(7));
/// assert_eq!(image.read(|image| image.take_u32()), Some(7));
/// ```
#[derive(Zeroize, ZeroizeOnDrop)]
pub struct ContextImage {
    used: Box<[u8]>,
}

impl ContextImage {
    /// Size of a flow's context in bytes (Pismenny et al., ASPLOS 2021).
    pub const BYTES: usize = 208;

    /// Creates an image with the values written by `write`.
    ///
    /// # Panics
    /// If the values exceed the size of an image.
    pub fn build(write: impl FnOnce(&mut ImageWriter<'_>)) -> ContextImage {
        // Wiped on drop: a state may contain key material, such as keystream.
        let mut bytes = Zeroizing::new([0; ContextImage::BYTES]);
        let mut writer = ImageWriter { rest: &mut bytes[..] };
        write(&mut writer);
        // Only the written part is stored. A million idle contexts should not hold a million zero-filled tails.
        let left = writer.rest.len();
        ContextImage { used: bytes[..ContextImage::BYTES - left].into() }
    }

    /// Reads values from the image.
    pub fn read<T>(&self, read: impl FnOnce(&mut ImageReader<'_>) -> Option<T>) -> Option<T> {
        let mut bytes = Zeroizing::new([0; ContextImage::BYTES]);
        // The unused rest reads as zeros, like the memory that hardware would have written.
        bytes[..self.used.len()].copy_from_slice(&self.used);
        read(&mut ImageReader { rest: &bytes[..] })
    }
}

impl fmt::Debug for ContextImage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ContextImage(redacted)")
    }
}

/// A writer of consecutive values.
pub struct ImageWriter<'a> {
    rest: &'a mut [u8],
}

impl ImageWriter<'_> {
    /// Writes bytes.
    ///
    /// # Panics
    /// If the bytes exceed the image.
    pub fn put(&mut self, bytes: &[u8]) {
        let (here, rest) = core::mem::take(&mut self.rest).split_at_mut(bytes.len());
        here.copy_from_slice(bytes);
        self.rest = rest;
    }

    /// Writes a byte.
    pub fn put_u8(&mut self, value: u8) {
        self.put(&[value]);
    }

    /// Writes two bytes, little-endian.
    pub fn put_u16(&mut self, value: u16) {
        self.put(&value.to_le_bytes());
    }

    /// Writes four bytes, little-endian.
    pub fn put_u32(&mut self, value: u32) {
        self.put(&value.to_le_bytes());
    }

    /// Writes eight bytes, little-endian.
    pub fn put_u64(&mut self, value: u64) {
        self.put(&value.to_le_bytes());
    }

    /// Writes a sequence number.
    pub fn put_seq(&mut self, seq: Seq) {
        self.put(&seq.0.to_le_bytes());
    }
}

/// A reader of values in the order of their writing.
pub struct ImageReader<'a> {
    rest: &'a [u8],
}

impl ImageReader<'_> {
    /// Reads `N` bytes.
    pub fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (here, rest) = self.rest.split_first_chunk::<N>()?;
        self.rest = rest;
        Some(*here)
    }

    /// Reads a byte.
    pub fn take_u8(&mut self) -> Option<u8> {
        self.take().map(|[value]| value)
    }

    /// Reads two bytes, little-endian.
    pub fn take_u16(&mut self) -> Option<u16> {
        self.take().map(u16::from_le_bytes)
    }

    /// Reads four bytes, little-endian.
    pub fn take_u32(&mut self) -> Option<u32> {
        self.take().map(u32::from_le_bytes)
    }

    /// Returns the unread bytes.
    pub fn rest(&self) -> &[u8] {
        self.rest
    }

    /// Reads eight bytes, little-endian.
    pub fn take_u64(&mut self) -> Option<u64> {
        self.take().map(u64::from_le_bytes)
    }

    /// Reads a sequence number.
    pub fn take_seq(&mut self) -> Option<Seq> {
        self.take().map(u32::from_le_bytes).map(Seq)
    }
}
