//! A context's state as bytes, for host memory: 208 of them, the published size of a flow's context. What an engine does not use
//! of them is zero, and takes no memory of this process.
//!
//! Invariant: what was written is read back the same, with zeros behind it. The driver never reads or writes an image.

use core::fmt;
use offload_base::Seq;
use zeroize::{Zeroize, ZeroizeOnDrop, Zeroizing};

/// An engine's state, written out. Not printed: it holds keystream.
///
/// ```
/// use nic_engine::ContextImage;
///
/// let image = ContextImage::of(|image| image.put_u32(7));
/// assert_eq!(image.read(|image| image.take_u32()), Some(7));
/// ```
#[derive(Zeroize, ZeroizeOnDrop)]
pub struct ContextImage {
    used: Box<[u8]>,
}

impl ContextImage {
    /// Bytes of a flow's context (Pismenny et al., ASPLOS 2021).
    pub const BYTES: usize = 208;

    /// What `write` writes.
    ///
    /// # Panics
    /// If that is more than an image holds.
    pub fn of(write: impl FnOnce(&mut ImageWriter<'_>)) -> ContextImage {
        let mut bytes = Zeroizing::new([0; ContextImage::BYTES]);
        let mut writer = ImageWriter { rest: &mut bytes[..] };
        write(&mut writer);
        let left = writer.rest.len();
        ContextImage { used: bytes[..ContextImage::BYTES - left].into() }
    }

    /// What `read` makes of it.
    pub fn read<T>(&self, read: impl FnOnce(&mut ImageReader<'_>) -> Option<T>) -> Option<T> {
        let mut bytes = Zeroizing::new([0; ContextImage::BYTES]);
        bytes[..self.used.len()].copy_from_slice(&self.used);
        read(&mut ImageReader { rest: &bytes[..] })
    }
}

impl fmt::Debug for ContextImage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ContextImage(redacted)")
    }
}

/// Puts values one after the other.
pub struct ImageWriter<'a> {
    rest: &'a mut [u8],
}

impl ImageWriter<'_> {
    /// Bytes.
    ///
    /// # Panics
    /// If there is no room for them.
    pub fn put(&mut self, bytes: &[u8]) {
        let (here, rest) = core::mem::take(&mut self.rest).split_at_mut(bytes.len());
        here.copy_from_slice(bytes);
        self.rest = rest;
    }

    /// A byte.
    pub fn put_u8(&mut self, value: u8) {
        self.put(&[value]);
    }

    /// Two bytes, little-endian.
    pub fn put_u16(&mut self, value: u16) {
        self.put(&value.to_le_bytes());
    }

    /// Four bytes, little-endian.
    pub fn put_u32(&mut self, value: u32) {
        self.put(&value.to_le_bytes());
    }

    /// Eight bytes, little-endian.
    pub fn put_u64(&mut self, value: u64) {
        self.put(&value.to_le_bytes());
    }

    /// A sequence number.
    pub fn put_seq(&mut self, seq: Seq) {
        self.put(&seq.0.to_le_bytes());
    }
}

/// Takes values in the order they were put.
pub struct ImageReader<'a> {
    rest: &'a [u8],
}

impl ImageReader<'_> {
    /// So many bytes.
    pub fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (here, rest) = self.rest.split_first_chunk::<N>()?;
        self.rest = rest;
        Some(*here)
    }

    /// A byte.
    pub fn take_u8(&mut self) -> Option<u8> {
        self.take().map(|[value]| value)
    }

    /// Two bytes, little-endian.
    pub fn take_u16(&mut self) -> Option<u16> {
        self.take().map(u16::from_le_bytes)
    }

    /// Four bytes, little-endian.
    pub fn take_u32(&mut self) -> Option<u32> {
        self.take().map(u32::from_le_bytes)
    }

    /// What is left.
    pub fn rest(&self) -> &[u8] {
        self.rest
    }

    /// Eight bytes, little-endian.
    pub fn take_u64(&mut self) -> Option<u64> {
        self.take().map(u64::from_le_bytes)
    }

    /// A sequence number.
    pub fn take_seq(&mut self) -> Option<Seq> {
        self.take().map(u32::from_le_bytes).map(Seq)
    }
}
