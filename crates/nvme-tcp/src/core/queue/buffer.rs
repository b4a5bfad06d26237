//! Memory that commands read into.

use bytes::BytesMut;
use offload_base::cost::{self, Work};

/// A buffer in any number of parts, filled as if they were one.
///
/// ```
/// use bytes::BytesMut;
/// use nvme_tcp::host::Buffer;
///
/// let mut buffer = Buffer::from_parts([BytesMut::zeroed(3), BytesMut::zeroed(5)]);
/// buffer.put(1, b"ab-cd");
/// assert_eq!(buffer.len(), 8);
/// assert_eq!(buffer.to_vec(), b"\0ab-cd\0\0");
/// assert_eq!(buffer.parts()[1][..], b"-cd\0\0"[..]);
/// ```
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Buffer {
    parts: Vec<BytesMut>,
    len: usize,
}

impl Buffer {
    /// `bytes` zeros in one part.
    pub fn zeroed(bytes: usize) -> Buffer {
        Buffer::from_parts([BytesMut::zeroed(bytes)])
    }

    /// What is in `parts`, one behind the other.
    pub fn from_parts(parts: impl IntoIterator<Item = BytesMut>) -> Buffer {
        let parts: Vec<BytesMut> = parts.into_iter().filter(|part| !part.is_empty()).collect();
        let len = parts.iter().map(|part| part.len()).sum();
        Buffer { parts, len }
    }

    /// Bytes of all parts.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The parts, in order.
    pub fn parts(&self) -> &[BytesMut] {
        &self.parts
    }

    /// The parts, to keep.
    pub fn into_parts(self) -> Vec<BytesMut> {
        self.parts
    }

    /// All bytes, copied into one piece.
    pub fn to_vec(&self) -> Vec<u8> {
        self.parts.concat()
    }

    /// Copies `data` to `offset`.
    ///
    /// # Panics
    /// If they do not fit there.
    pub fn put(&mut self, offset: usize, data: &[u8]) {
        let _scope = cost::work(Work::Copy);
        assert!(offset + data.len() <= self.len, "data beyond the end of a buffer");
        let (mut skip, mut rest) = (offset, data);
        for part in &mut self.parts {
            if rest.is_empty() {
                return;
            }
            if skip >= part.len() {
                skip -= part.len();
                continue;
            }
            let (now, later) = rest.split_at(rest.len().min(part.len() - skip));
            part[skip..skip + now.len()].copy_from_slice(now);
            (skip, rest) = (0, later);
        }
    }
}

impl From<BytesMut> for Buffer {
    fn from(part: BytesMut) -> Buffer {
        Buffer::from_parts([part])
    }
}
