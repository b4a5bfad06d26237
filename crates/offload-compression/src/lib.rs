//! DEFLATE, zlib and gzip by zlib-rs, LZ4 frames by lz4_flex; with the CRC-32 of input and output. Separate from
//! `offload-transforms`, so that NICs without compression do not build these libraries.

#![forbid(unsafe_code)]

use bytes::Bytes;
use crc_fast::{CrcAlgorithm, Digest};
use flate2::{Compress, Decompress, FlushCompress, FlushDecompress, Status};
use lz4_flex::frame::{FrameDecoder, FrameEncoder, FrameInfo};
use offload_transforms::pieces::{self, OutputBuffer, PieceReader};
use offload_transforms::{Compressor, Fault, RunChecksums, SpecError, Transform, TransformDirection};
use std::io::{self, Read, Write};
use std::sync::Arc;

/// A format of compressed data.
///
/// ```
/// use offload_compression::Compression;
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
    /// LZ4 frames with a checksum of the content. The level must be 0 to 9 and has no effect.
    Lz4,
}

impl Compression {
    /// All formats.
    pub const ALL: [Compression; 4] = [Compression::Deflate, Compression::Zlib, Compression::Gzip, Compression::Lz4];

    /// Returns the transform that compresses into this format at `level`: 0 to 9, from no compression to the best.
    ///
    /// ```
    /// use offload_compression::Compression;
    /// use offload_transforms::{Session, SpecError};
    ///
    /// assert!(Session::new(&Compression::Gzip.at_level(9)).is_ok());
    /// assert_eq!(Session::new(&Compression::Gzip.at_level(10)).unwrap_err(), SpecError::Level(10));
    /// ```
    pub fn at_level(self, level: u8) -> Transform {
        Transform::Compression(Arc::new(AtLevel { format: self, level }))
    }

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

/// A format and a level.
#[derive(Debug)]
struct AtLevel {
    format: Compression,
    level: u8,
}

/// The result of a run: bytes consumed from the source, and the checksums.
type CompressionResult = (usize, RunChecksums);

impl Compressor for AtLevel {
    fn name(&self) -> &'static str {
        self.format.name()
    }

    fn check(&self) -> Result<(), SpecError> {
        if self.level > 9 { Err(SpecError::Level(self.level)) } else { Ok(()) }
    }

    fn run(
        &self,
        direction: TransformDirection,
        source: &[Bytes],
        output: &mut OutputBuffer<'_>,
    ) -> Result<CompressionResult, Fault> {
        match (self.format, direction) {
            (Compression::Lz4, TransformDirection::Apply) => compress_lz4(source, output),
            (Compression::Lz4, TransformDirection::Undo) => decompress_lz4(source, output),
            (_, TransformDirection::Apply) => self.deflate(source, output),
            (_, TransformDirection::Undo) => self.inflate(source, output),
        }
    }
}

impl AtLevel {
    fn deflate(&self, source: &[Bytes], output: &mut OutputBuffer<'_>) -> Result<CompressionResult, Fault> {
        let level = flate2::Compression::new(self.level.into());
        let mut deflate = match self.format {
            Compression::Gzip => Compress::new_gzip(level, WINDOW),
            format => Compress::new(level, format == Compression::Zlib),
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
                output.append(new)?;
                if status == Status::StreamEnd {
                    return Ok((deflate.total_in() as usize, sums.finish()));
                }
                if part.is_empty() && new.len() < BUFFER {
                    break;
                }
            }
        }
    }

    fn inflate(&self, source: &[Bytes], output: &mut OutputBuffer<'_>) -> Result<CompressionResult, Fault> {
        let mut inflate = match self.format {
            Compression::Gzip => Decompress::new_gzip(WINDOW),
            format => Decompress::new(format == Compression::Zlib),
        };
        let (mut reader, mut sums, mut buffer) = (PieceReader::new(source), ChecksumPair::new(), [0; BUFFER]);
        loop {
            // After the last part, the remaining output is flushed. If the stream has not ended by then, it was
            // truncated.
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
                output.append(new)?;
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

fn compress_lz4(source: &[Bytes], output: &mut OutputBuffer<'_>) -> Result<CompressionResult, Fault> {
    let (mut reader, mut sums) = (PieceReader::new(source), ChecksumPair::new());
    // Computed before the encoder borrows the output. The encoder reports a full output as a mere I/O error.
    let (full, mut taken) = (output.full(), 0);
    let mut frame = FrameEncoder::with_frame_info(FrameInfo::new().content_checksum(true), &mut *output);
    while let Some(part) = reader.next(usize::MAX) {
        sums.source.update(part);
        taken += part.len();
        frame.write_all(part).map_err(|_| full)?;
    }
    frame.finish().map_err(|_| full)?;
    sums.target.update(output.result());
    Ok((taken, sums.finish()))
}

fn decompress_lz4(source: &[Bytes], output: &mut OutputBuffer<'_>) -> Result<CompressionResult, Fault> {
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
        output.append(&buffer[..new])?;
    }
    // A complete frame states its end, so the decoder asks for more bytes only if the frame is truncated.
    if counted.ended {
        return Err(Fault::Corrupt);
    }
    let target = crc_fast::crc32_iso_hdlc(output.result());
    Ok((counted.taken, RunChecksums { source: counted.crc.finalize() as u32, target }))
}

/// A reader that counts and checksums the bytes that it delivers.
struct CountingReader<'a> {
    reader: PieceReader<'a>,
    taken: usize,
    crc: Digest,
    /// Whether the decoder asked for bytes past the end of the source.
    ended: bool,
}

impl CountingReader<'_> {
    /// Skips leading skippable frames: four bytes of magic, four bytes of length, and user data, which are not part of
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

/// The README's example runs with the others.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
