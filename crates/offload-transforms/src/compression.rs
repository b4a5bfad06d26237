//! DEFLATE, zlib and gzip with zlib-rs, LZ4 frames with lz4_flex, and the CRC-32 of both sides.

use crate::pieces::{self, OutputBuffer, PieceReader};
use crate::{Fault, RunChecksums, SpecError, TransformDirection};
use bytes::Bytes;
use crc_fast::{CrcAlgorithm, Digest};
use flate2::{Compress, Decompress, FlushCompress, FlushDecompress, Status};
use lz4_flex::frame::{FrameDecoder, FrameEncoder, FrameInfo};
use std::io::{self, Read, Write};

/// A format of compressed data.
///
/// ```
/// use offload_transforms::Compression;
///
/// assert_eq!(Compression::ALL.map(Compression::name), ["deflate", "zlib", "gzip", "lz4"]);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Compression {
    /// Raw DEFLATE (RFC 1951).
    Deflate,
    /// DEFLATE in a zlib frame (RFC 1950).
    Zlib,
    /// DEFLATE in a gzip frame (RFC 1952).
    Gzip,
    /// LZ4 frames with a checksum of the content. The level is ignored.
    Lz4,
}

impl Compression {
    /// All formats.
    pub const ALL: [Compression; 4] = [Compression::Deflate, Compression::Zlib, Compression::Gzip, Compression::Lz4];

    /// Returns the name of the format.
    pub const fn name(self) -> &'static str {
        match self {
            Compression::Deflate => "deflate",
            Compression::Zlib => "zlib",
            Compression::Gzip => "gzip",
            Compression::Lz4 => "lz4",
        }
    }
}

/// A compressor for a format, with a valid level.
pub(crate) struct Compressor {
    format: Compression,
    level: flate2::Compression,
}

/// The result of a run: bytes consumed from the source, and the checksums.
pub(crate) type CompressionResult = (usize, RunChecksums);

impl Compressor {
    pub(crate) fn new(format: Compression, level: u8) -> Result<Compressor, SpecError> {
        if level > 9 {
            return Err(SpecError::Level(level));
        }
        Ok(Compressor { format, level: flate2::Compression::new(level.into()) })
    }

    pub(crate) fn run(
        &self,
        way: TransformDirection,
        source: &[Bytes],
        room: &mut OutputBuffer<'_>,
    ) -> Result<CompressionResult, Fault> {
        match (self.format, way) {
            (Compression::Lz4, TransformDirection::Apply) => compress_lz4(source, room),
            (Compression::Lz4, TransformDirection::Undo) => decompress_lz4(source, room),
            (_, TransformDirection::Apply) => self.deflate(source, room),
            (_, TransformDirection::Undo) => self.inflate(source, room),
        }
    }

    fn deflate(&self, source: &[Bytes], room: &mut OutputBuffer<'_>) -> Result<CompressionResult, Fault> {
        let mut deflate = match self.format {
            Compression::Gzip => Compress::new_gzip(self.level, WINDOW),
            format => Compress::new(self.level, format == Compression::Zlib),
        };
        let (mut reader, mut sums, mut buffer) = (PieceReader::new(source), ChecksumPair::new(), [0; BUFFER]);
        loop {
            let mut part = reader.next(usize::MAX).unwrap_or_default();
            // An empty part marks the end of the source.
            let flush = if part.is_empty() { FlushCompress::Finish } else { FlushCompress::None };
            sums.source.update(part);
            // A part may need several output buffers. It is done when it is consumed and the last buffer is not full.
            loop {
                let (before, so_far) = (deflate.total_in(), deflate.total_out());
                let status = deflate.compress(part, &mut buffer, flush).map_err(|_| Fault::Corrupt)?;
                part = &part[(deflate.total_in() - before) as usize..];
                let new = &buffer[..(deflate.total_out() - so_far) as usize];
                sums.target.update(new);
                room.append(new)?;
                if status == Status::StreamEnd {
                    return Ok((deflate.total_in() as usize, sums.finish()));
                }
                if part.is_empty() && new.len() < BUFFER {
                    break;
                }
            }
        }
    }

    fn inflate(&self, source: &[Bytes], room: &mut OutputBuffer<'_>) -> Result<CompressionResult, Fault> {
        let mut inflate = match self.format {
            Compression::Gzip => Decompress::new_gzip(WINDOW),
            format => Decompress::new(format == Compression::Zlib),
        };
        let (mut reader, mut sums, mut buffer) = (PieceReader::new(source), ChecksumPair::new(), [0; BUFFER]);
        loop {
            // After the last part, the remaining output is flushed. If then the stream has not ended, it was cut short.
            let (mut part, is_last) = reader.next(usize::MAX).map_or((&[][..], true), |part| (part, false));
            loop {
                let (before, so_far) = (inflate.total_in(), inflate.total_out());
                let status =
                    inflate.decompress(part, &mut buffer, FlushDecompress::None).map_err(|_| Fault::Corrupt)?;
                let (taken, rest) = part.split_at((inflate.total_in() - before) as usize);
                part = rest;
                let new = &buffer[..(inflate.total_out() - so_far) as usize];
                sums.source.update(taken);
                sums.target.update(new);
                room.append(new)?;
                if status == Status::StreamEnd {
                    return Ok((inflate.total_in() as usize, sums.finish()));
                }
                // No progress: the decoder needs the next part.
                if taken.is_empty() && new.is_empty() {
                    break;
                }
            }
            if is_last || !part.is_empty() {
                return Err(Fault::Corrupt);
            }
        }
    }
}

fn compress_lz4(source: &[Bytes], room: &mut OutputBuffer<'_>) -> Result<CompressionResult, Fault> {
    let (mut reader, mut sums) = (PieceReader::new(source), ChecksumPair::new());
    // Computed before the encoder borrows the room. The encoder reports a lack of room as a mere I/O error.
    let (full, mut taken) = (room.full(), 0);
    let mut frame = FrameEncoder::with_frame_info(FrameInfo::new().content_checksum(true), &mut *room);
    while let Some(part) = reader.next(usize::MAX) {
        sums.source.update(part);
        taken += part.len();
        frame.write_all(part).map_err(|_| full)?;
    }
    frame.finish().map_err(|_| full)?;
    sums.target.update(room.result());
    Ok((taken, sums.finish()))
}

fn decompress_lz4(source: &[Bytes], room: &mut OutputBuffer<'_>) -> Result<CompressionResult, Fault> {
    let crc = Digest::new(CrcAlgorithm::Crc32IsoHdlc);
    let mut counted = CountingReader { reader: PieceReader::new(source), taken: 0, crc, ended: false };
    counted.skip_user_data()?;
    // Nothing but skippable frames: a valid stream with an empty result.
    if counted.taken > 0 && counted.taken == pieces::len(source) {
        return Ok((counted.taken, RunChecksums { source: counted.crc.finalize() as u32, target: 0 }));
    }
    let mut frame = FrameDecoder::new(&mut counted);
    let mut buffer = [0; BUFFER];
    loop {
        let new = frame.read(&mut buffer).map_err(|_| Fault::Corrupt)?;
        if new == 0 {
            break;
        }
        room.append(&buffer[..new])?;
    }
    // A complete frame states its end, so the decoder asks for more bytes only if the frame is cut short.
    if counted.ended {
        return Err(Fault::Corrupt);
    }
    let target = crc_fast::crc32_iso_hdlc(room.result());
    Ok((counted.taken, RunChecksums { source: counted.crc.finalize() as u32, target }))
}

/// A reader that counts the bytes it delivers.
struct CountingReader<'a> {
    reader: PieceReader<'a>,
    taken: usize,
    crc: Digest,
    /// Whether the decoder asked for bytes behind the end.
    ended: bool,
}

impl CountingReader<'_> {
    /// Skips the next skippable frames: four bytes of magic, four bytes of length, and user data, which are not part of
    /// the result.
    fn skip_user_data(&mut self) -> Result<(), Fault> {
        let mut head = [0; 8];
        while self.reader.clone().fill(&mut head) {
            let [magic, len] =
                [0, 4].map(|at| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]));
            if !SKIPPABLE.contains(&magic) {
                break;
            }
            let all = head.len() as u64 + u64::from(len);
            let taken = io::copy(&mut self.by_ref().take(all), &mut io::sink()).map_err(|_| Fault::Corrupt)?;
            if taken < all {
                return Err(Fault::Corrupt);
            }
        }
        Ok(())
    }
}

impl Read for CountingReader<'_> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let len = self.reader.read(bytes)?;
        self.crc.update(&bytes[..len]);
        self.taken += len;
        self.ended |= len == 0 && !bytes.is_empty();
        Ok(len)
    }
}

/// Running checksums of both sides.
struct ChecksumPair {
    source: Digest,
    target: Digest,
}

impl ChecksumPair {
    fn new() -> ChecksumPair {
        ChecksumPair {
            source: Digest::new(CrcAlgorithm::Crc32IsoHdlc),
            target: Digest::new(CrcAlgorithm::Crc32IsoHdlc),
        }
    }

    fn finish(&self) -> RunChecksums {
        RunChecksums { source: self.source.finalize() as u32, target: self.target.finalize() as u32 }
    }
}

/// Size of the output buffer of a stream in bytes.
const BUFFER: usize = 8192;

/// Magic numbers of skippable frames (LZ4 Frame Format 1.6.4).
const SKIPPABLE: core::ops::RangeInclusive<u32> = 0x184d_2a50..=0x184d_2a5f;

/// Binary logarithm of the maximum window, 32 KiB.
const WINDOW: u8 = 15;
