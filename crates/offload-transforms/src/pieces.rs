//! Sources in pieces, and targets that never grow.

use crate::Fault;
use bytes::{Buf, Bytes, BytesMut};
use std::io::{self, Read, Write};

/// Bytes of all pieces.
pub fn len(source: &[Bytes]) -> usize {
    source.iter().map(Bytes::len).sum()
}

/// The part of a target to which a run appends its result.
///
/// Invariant: the target never grows beyond its initial capacity. After a failed run the target has its old length, and
/// the result is wiped. See [`Compressor`](crate::Compressor) for an example.
#[derive(Debug)]
pub struct OutputBuffer<'a> {
    target: &'a mut BytesMut,
    start: usize,
    kept: bool,
}

impl<'a> OutputBuffer<'a> {
    pub(crate) fn new(target: &'a mut BytesMut) -> OutputBuffer<'a> {
        OutputBuffer { start: target.len(), target, kept: false }
    }

    /// Returns the size of the result so far in bytes.
    pub fn written(&self) -> usize {
        self.target.len() - self.start
    }

    pub(crate) fn left(&self) -> usize {
        self.target.capacity() - self.target.len()
    }

    pub(crate) fn needs(&self, more: usize) -> Result<(), Fault> {
        if more > self.left() { Err(self.full()) } else { Ok(()) }
    }

    /// Returns the fault of a result that does not fit.
    pub fn full(&self) -> Fault {
        Fault::OutOfSpace { room: self.target.capacity() - self.start }
    }

    /// Appends bytes to the result.
    ///
    /// # Errors
    /// [`Fault::OutOfSpace`], if they do not fit.
    pub fn append(&mut self, bytes: &[u8]) -> Result<(), Fault> {
        self.needs(bytes.len())?;
        self.target.extend_from_slice(bytes);
        Ok(())
    }

    /// Appends all pieces.
    pub(crate) fn append_all(&mut self, source: &[Bytes]) -> Result<(), Fault> {
        self.needs(len(source))?;
        source.iter().for_each(|piece| self.target.extend_from_slice(piece));
        Ok(())
    }

    /// The result so far.
    pub fn result(&mut self) -> &mut [u8] {
        &mut self.target[self.start..]
    }

    /// Removes and wipes the last `by` bytes of the result.
    pub(crate) fn shorten(&mut self, by: usize) {
        let left = self.target.len() - by;
        // Truncating alone would leave the bytes in the spare capacity, where a later owner could read them.
        self.target[left..].fill(0);
        self.target.truncate(left);
    }

    /// Keeps the result in the target, and returns its size.
    pub(crate) fn keep(mut self) -> usize {
        self.kept = true;
        self.written()
    }
}

impl Drop for OutputBuffer<'_> {
    fn drop(&mut self) {
        if !self.kept {
            self.shorten(self.written());
        }
    }
}

/// A write fails only if there is no room.
impl Write for OutputBuffer<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self.append(bytes) {
            Ok(()) => Ok(bytes.len()),
            Err(_) => Err(io::ErrorKind::StorageFull.into()),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Reads pieces one after the other. See [`Compressor`](crate::Compressor) for an example.
#[derive(Clone, Debug)]
pub struct PieceReader<'a> {
    piece: &'a [u8],
    rest: core::slice::Iter<'a, Bytes>,
}

impl<'a> PieceReader<'a> {
    /// A reader of all pieces.
    pub fn new(source: &'a [Bytes]) -> PieceReader<'a> {
        PieceReader { piece: &[], rest: source.iter() }
    }

    /// The next bytes, `most` at most and one at least; `None`: there are no more.
    pub fn next(&mut self, most: usize) -> Option<&'a [u8]> {
        while self.piece.is_empty() {
            self.piece = self.rest.next()?;
        }
        let (next, rest) = self.piece.split_at(most.min(self.piece.len()));
        self.piece = rest;
        Some(next)
    }

    /// Fills `bytes`. False: there are too few left.
    pub fn fill(&mut self, bytes: &mut [u8]) -> bool {
        self.read_exact(bytes).is_ok()
    }
}

impl Read for PieceReader<'_> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let Some(mut next) = self.next(bytes.len()) else { return Ok(0) };
        let len = next.len();
        next.copy_to_slice(&mut bytes[..len]);
        Ok(len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn discarded_result_leaves_no_trace() {
        let mut target = BytesMut::with_capacity(16);
        target.extend_from_slice(b"old");
        let mut room = OutputBuffer::new(&mut target);
        room.append(b"secret").unwrap();
        assert_eq!(room.append(&[0; 11]), Err(Fault::OutOfSpace { room: 13 }));
        drop(room);
        assert_eq!(target, "old");
        target.resize(9, 1);
        let mut room = OutputBuffer::new(&mut target);
        room.append(b"x").unwrap();
        room.append_all(&[]).unwrap();
        assert_eq!(room.keep(), 1);
        assert_eq!(target.len(), 10);
    }

    /// Bytes that a run takes back are wiped, or the next writer would find them past the target's end.
    #[test]
    #[cfg(target_os = "linux")]
    fn removed_bytes_are_wiped() {
        use std::os::unix::fs::FileExt;
        let mut target = BytesMut::with_capacity(16);
        target.extend_from_slice(b"old");
        let start = target.as_ptr() as u64;
        let mut room = OutputBuffer::new(&mut target);
        room.append(b"secret bytes").unwrap();
        room.shorten(5);
        assert_eq!(room.result(), b"secret ");
        let memory = std::fs::File::open("/proc/self/mem").unwrap();
        let mut bytes = [0; 15];
        memory.read_exact_at(&mut bytes, start).unwrap();
        assert_eq!(&bytes, b"oldsecret \0\0\0\0\0");
        drop(room);
        memory.read_exact_at(&mut bytes, start).unwrap();
        assert_eq!(bytes, *b"old\0\0\0\0\0\0\0\0\0\0\0\0");
    }

    #[test]
    fn reader_joins_pieces_and_skips_empty_ones() {
        let pieces = [Bytes::new(), "ab".into(), Bytes::new(), "cde".into()];
        let mut reader = PieceReader::new(&pieces);
        let mut three = [0; 3];
        assert!(reader.fill(&mut three));
        assert_eq!((&three, reader.next(9), reader.next(9)), (b"abc", Some(&b"de"[..]), None));
        assert!(!reader.fill(&mut three));
    }
}
