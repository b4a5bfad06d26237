//! Writes the bytes of a range into a [`LandingFile`] in order: divided at block boundaries, hashed and written by the
//! pool, piece by piece.
//!
//! One piece is written while the next arrives; no further pieces are buffered. Blocks that are present already are
//! compared instead of written.

use crate::blocks::{BlockHasher, BlockSum, Blocks};
use crate::body::PIECE;
use crate::direct::aligned;
use crate::landing::{LandingFile, SyncEpoch};
use crate::shell::Shell;
use bytes::BytesMut;
use core::any::Any;
use core::ops::Range;
use core::pin::Pin;
use offload_base::cost::{self, WorkKind};
use std::io;
use std::sync::Arc;

/// The part of a block received so far.
struct BlockSegment {
    block: u64,
    hasher: Option<BlockHasher>,
    crc: u32,
    bytes: u64,
    writes: bool,
}

type WriteFuture = Pin<Box<dyn Future<Output = io::Result<BlockSegment>> + Send>>;

/// The writer of one range.
pub(crate) struct Sink {
    shell: Shell,
    landing: Arc<LandingFile>,
    range: Range<u64>,
    /// Offset of the next byte.
    at: u64,
    buffer: BytesMut,
    segment: Option<BlockSegment>,
    writing: Option<WriteFuture>,
    written: RangeOutcome,
    /// A guard that is kept until the last write ends, even if the sink is dropped.
    held: Option<Arc<dyn Any + Send + Sync>>,
}

/// The outcome of writing a range.
#[derive(Debug, Default)]
pub(crate) struct RangeOutcome {
    /// Whole blocks written, with their checksums. They are not in the journal yet.
    pub(crate) blocks: Vec<(u64, BlockSum)>,
    /// Partial blocks written.
    pub(crate) parts: Vec<Range<u64>>,
    /// Sync epoch at the start of the range.
    pub(crate) epoch: SyncEpoch,
    /// CRC32C of the range.
    pub(crate) crc: u32,
    /// A present block that differs from the received one.
    pub(crate) differs: Option<u64>,
    bytes: u64,
}

impl Sink {
    pub(crate) fn new(shell: Shell, landing: Arc<LandingFile>, range: Range<u64>) -> Sink {
        let (at, buffer) = (range.start, BytesMut::new());
        let written = RangeOutcome { epoch: landing.epoch(), ..RangeOutcome::default() };
        Sink { shell, landing, range, at, buffer, segment: None, writing: None, written, held: None }
    }

    /// Keeps `held` alive until the last write ends.
    pub(crate) fn hold(&mut self, held: Arc<dyn Any + Send + Sync>) {
        self.held = Some(held);
    }

    fn blocks(&self) -> Blocks {
        self.landing.blocks()
    }

    /// Writes the next bytes.
    ///
    /// # Errors
    /// If the bytes exceed the range, or the medium fails.
    pub(crate) async fn push(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        if bytes.len() as u64 > self.range.end - self.at {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "more bytes came than the range has"));
        }
        while !bytes.is_empty() {
            // A piece must not cross a block boundary.
            let block_end = self.blocks().range(self.at / self.blocks().block()).end.min(self.range.end);
            // Pieces are written while the next piece arrives.
            let room = (PIECE - self.buffer.len()).min((block_end - self.at) as usize).min(bytes.len());
            if self.buffer.capacity() == 0 {
                self.buffer = aligned(PIECE.min((block_end - self.at) as usize));
                self.buffer.clear();
            }
            let copying = cost::work(WorkKind::Copy);
            self.buffer.extend_from_slice(&bytes[..room]);
            drop(copying);
            bytes = &bytes[room..];
            self.at += room as u64;
            if self.at == block_end || self.buffer.len() == PIECE {
                self.flush().await?;
            }
        }
        Ok(())
    }

    /// Starts writing the buffered piece, after the write in progress.
    async fn flush(&mut self) -> io::Result<()> {
        self.finish_write().await?;
        if self.buffer.is_empty() {
            return Ok(());
        }
        let piece = core::mem::take(&mut self.buffer).freeze();
        let offset = self.at - piece.len() as u64;
        let blocks = self.blocks();
        let block = offset / blocks.block();
        let mut segment = match self.segment.take() {
            Some(segment) if segment.block == block => segment,
            before => {
                self.end_segment(before);
                let whole = blocks.range(block);
                // Only a block received from its start can be hashed as a tree node.
                let is_whole = whole.start == offset && whole.end <= self.range.end;
                let hasher = is_whole.then(|| BlockHasher::new(blocks, block));
                // A present block is only compared. Another request may have journaled it.
                let writes = self.landing.sum(block).is_none();
                BlockSegment { block, hasher, crc: 0, bytes: 0, writes }
            }
        };
        let (landing, held) = (self.landing.clone(), self.held.clone());
        self.writing = Some(Box::pin(self.shell.blocking(move || {
            match &mut segment.hasher {
                Some(hasher) => hasher.update(&piece),
                None => segment.crc = crc32c::crc32c_append(segment.crc, &piece),
            }
            segment.bytes += piece.len() as u64;
            if segment.writes {
                landing.write(&piece, offset)?;
            }
            drop(held);
            Ok(segment)
        })));
        Ok(())
    }

    async fn finish_write(&mut self) -> io::Result<()> {
        if let Some(writing) = self.writing.take() {
            self.segment = Some(writing.await?);
        }
        Ok(())
    }

    fn end_segment(&mut self, segment: Option<BlockSegment>) {
        let Some(segment) = segment else { return };
        let start = self.range.start + self.written.bytes;
        let sum = segment.hasher.map(|hasher| hasher.finish());
        let crc = sum.map_or(segment.crc, |sum| sum.crc);
        self.written.crc = crc32c::crc32c_combine(self.written.crc, crc, segment.bytes as usize);
        self.written.bytes += segment.bytes;
        match (sum, segment.writes) {
            (Some(sum), true) => self.written.blocks.push((segment.block, sum)),
            (Some(sum), false) if self.landing.sum(segment.block).is_some_and(|there| there != sum) => {
                self.written.differs = Some(segment.block);
            }
            (None, true) => self.written.parts.push(start..start + segment.bytes),
            (_, false) => {}
        }
    }

    /// Ends the range after its last byte.
    ///
    /// # Errors
    /// If bytes are missing, or the medium fails.
    pub(crate) async fn end(mut self) -> io::Result<RangeOutcome> {
        self.flush().await?;
        self.finish_write().await?;
        let last = self.segment.take();
        self.end_segment(last);
        if self.at < self.range.end {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "fewer bytes came than the range has"));
        }
        Ok(self.written)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::landing::ResumeMode;
    use crate::name::Name;
    use crate::rooted::Rooted;
    use offload_base::Seed;

    fn landing(folder: &std::path::Path, size: u64) -> Arc<LandingFile> {
        let (name, blocks) = (Name::from_url("/file").unwrap(), Blocks::new(size, 1 << 20).unwrap());
        let folder = Arc::new(Rooted::open(folder).unwrap());
        Arc::new(LandingFile::open(folder, &name, blocks, "test", ResumeMode::Anew).unwrap())
    }

    /// Any range in any pieces: whole blocks have checksums, the rest are parts, and the CRC covers the range.
    #[tokio::test]
    async fn any_range_in_any_pieces_is_cut_at_blocks() {
        let folder = tempfile::tempdir().unwrap();
        let mut file = vec![0; 5 << 20];
        let mut random = Seed(1).stream("sink");
        random.fill(&mut file);
        for range in [0..file.len(), 100..200, 1 << 20..2 << 20, 1000..(3 << 20) + 5, (4 << 20) + 1..file.len()] {
            let landing = landing(folder.path(), file.len() as u64);
            let mut sink = Sink::new(Shell::tokio(), landing.clone(), range.start as u64..range.end as u64);
            let mut left = &file[range.clone()];
            while !left.is_empty() {
                let (piece, rest) = left.split_at(left.len().min(1 + random.below(700_000) as usize));
                sink.push(piece).await.unwrap();
                left = rest;
            }
            let written = sink.end().await.unwrap();
            assert_eq!(written.crc, crc32c::crc32c(&file[range.clone()]), "{range:?}");
            let whole = landing.blocks().within(&(range.start as u64..range.end as u64));
            assert_eq!(
                written.blocks.iter().map(|(number, _)| *number).collect::<Vec<_>>(),
                whole.clone().collect::<Vec<_>>()
            );
            let of_blocks: u64 =
                whole.map(|number| landing.blocks().range(number)).map(|range| range.end - range.start).sum();
            let of_parts: u64 = written.parts.iter().map(|part| part.end - part.start).sum();
            assert_eq!(of_blocks + of_parts, range.len() as u64);
            for (number, sum) in written.blocks {
                assert_eq!(landing.read_back(number).unwrap(), sum);
            }
        }
    }

    #[tokio::test]
    async fn a_block_that_is_there_is_compared_and_not_written() {
        let folder = tempfile::tempdir().unwrap();
        let landing = landing(folder.path(), 1 << 20);
        let (first, other) = (vec![1; 1 << 20], vec![2; 1 << 20]);
        for (bytes, differs) in [(&first, None), (&first, None), (&other, Some(0))] {
            let mut sink = Sink::new(Shell::tokio(), landing.clone(), 0..1 << 20);
            sink.push(bytes).await.unwrap();
            assert!(sink.push(b"x").await.is_err(), "too many bytes");
            let written = sink.end().await.unwrap();
            assert_eq!(written.differs, differs);
            written.blocks.iter().for_each(|(number, sum)| landing.done(*number, *sum, written.epoch).unwrap());
        }
        assert_eq!(landing.read_back(0).unwrap(), landing.sum(0).unwrap());
        let mut short = Sink::new(Shell::tokio(), landing, 0..1 << 20);
        short.push(b"too few").await.unwrap();
        assert!(short.end().await.is_err());
    }
}
