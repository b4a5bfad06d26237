//! Transforms, and the sessions that run them.

use crate::aead::{Aead, AeadKey};
use crate::aes_key::ExpandedAesKey;
use crate::cbc_hmac::{CbcHmac, MacOrder};
use crate::copy;
use crate::pieces::{self, OutputBuffer};
use crate::protection::BlockProtection;
use crate::stream;
use crate::xts::{Tweak, XtsUnits};
use crate::{Fault, HmacHash, SecretBytes, SpecError};
use bytes::{Bytes, BytesMut};
use core::fmt;
use std::sync::Arc;

/// The specification of a transform.
///
/// ```
/// use offload_transforms::{Aead, SecretBytes, Session, Transform};
///
/// let transform = Transform::Aead { aead: Aead::Aes128Gcm, key: SecretBytes::new(vec![7; 16]) };
/// assert_eq!(transform.name(), "AES-128-GCM");
/// assert!(Session::new(&transform).is_ok());
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Transform {
    /// Seals or opens. The tag follows the ciphertext, and the nonce is the first 12 bytes of the IV.
    Aead {
        /// Algorithm.
        aead: Aead,
        /// Key of the algorithm.
        key: SecretBytes,
    },
    /// AES-CBC with HMAC.
    CbcHmac {
        /// Whether the MAC or the encryption comes first.
        order: MacOrder,
        /// The HMAC's hash.
        hash: HmacHash,
        /// AES key of 16 or 32 bytes.
        cipher_key: SecretBytes,
        /// HMAC key of 1 to 64 bytes.
        mac_key: SecretBytes,
    },
    /// AES in counter mode, equal in both directions. The IV is the first counter block.
    Ctr {
        /// Key of 16 or 32 bytes.
        key: SecretBytes,
    },
    /// AES-CMAC (NIST SP 800-38B, RFC 4493): appends the MAC, or verifies and removes it.
    Cmac {
        /// Key of 16 or 32 bytes.
        key: SecretBytes,
    },
    /// AES-XTS. The IV is the tweak of the first unit as a little-endian number, such as an LBA.
    Xts {
        /// Keys for data and tweaks, together 32 or 64 bytes.
        key: SecretBytes,
        /// Size of a unit in bytes.
        unit: u32,
        /// Increment of the tweak.
        tweak: Tweak,
    },
    /// Protection information. The IV begins with the LBA of the first block.
    Protection(BlockProtection),
    /// Compresses or decompresses. Created by `offload_compression::Compression::at_level`.
    Compression(Arc<dyn Compressor>),
    /// Copies, and computes a CRC-32.
    Copy,
    /// Pads to whole units, or removes the padding. For chains, between compression and AES-XTS.
    Pad {
        /// Size of a unit in bytes.
        unit: u32,
    },
    /// Transforms in sequence, undone in reverse order. All get the same IV and additional data.
    Chain(Vec<Transform>),
}

impl Transform {
    /// Returns the name of the transform.
    pub fn name(&self) -> &'static str {
        match self {
            Transform::Aead { aead, .. } => aead.name(),
            Transform::CbcHmac { hash: HmacHash::Sha1, .. } => "AES-CBC-HMAC-SHA1",
            Transform::CbcHmac { hash: HmacHash::Sha256, .. } => "AES-CBC-HMAC-SHA256",
            Transform::Ctr { .. } => "AES-CTR",
            Transform::Cmac { .. } => "AES-CMAC",
            Transform::Xts { .. } => "AES-XTS",
            Transform::Protection(_) => "protection information",
            Transform::Compression(compressor) => compressor.name(),
            Transform::Copy => "copy",
            Transform::Pad { .. } => "padding",
            Transform::Chain(_) => "chain",
        }
    }
}

/// A format of compressed data with a level. The crate `offload-compression` has the formats of this workspace.
///
/// ```
/// use bytes::{Bytes, BytesMut};
/// use offload_transforms::pieces::{OutputBuffer, PieceReader};
/// use offload_transforms::{RunChecksums, Compressor, Fault, Parameters, Session, SpecError, Transform, TransformDirection};
/// use std::sync::Arc;
///
/// /// Runs of one byte, as their length and the byte.
/// #[derive(Debug)]
/// struct Runs;
///
/// impl Compressor for Runs {
///     fn name(&self) -> &'static str {
///         "runs"
///     }
///     fn check(&self) -> Result<(), SpecError> {
///         Ok(())
///     }
///     fn run(&self, way: TransformDirection, source: &[Bytes], room: &mut OutputBuffer<'_>) -> Result<(usize, RunChecksums), Fault> {
///         let (mut reader, mut pair) = (PieceReader::new(source), [0; 2]);
///         assert_eq!(way, TransformDirection::Undo, "this example expands only");
///         while reader.fill(&mut pair) {
///             room.append(&vec![pair[1]; pair[0].into()])?;
///         }
///         Ok((offload_transforms::pieces::len(source), RunChecksums::default()))
///     }
/// }
///
/// let session = Session::new(&Transform::Compression(Arc::new(Runs)))?;
/// let mut target = BytesMut::with_capacity(8);
/// session.run(TransformDirection::Undo, Parameters::default(), &[Bytes::from_static(&[3, b'a', 2, b'b'])], &mut target)?;
/// assert_eq!(target, "aaabb");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait Compressor: fmt::Debug + Send + Sync {
    /// Returns the name of the format.
    fn name(&self) -> &'static str;

    /// Checks that the format has the level.
    ///
    /// # Errors
    /// [`SpecError::Level`] if the format does not have the level.
    fn check(&self) -> Result<(), SpecError>;

    /// Appends `source`, compressed or decompressed, to `room`. Returns the bytes taken of the source, and the checksums of
    /// both sides.
    ///
    /// # Errors
    /// [`Fault::OutOfSpace`] if the result does not fit; [`Fault::Corrupt`] if the source is not of the format.
    fn run(
        &self,
        way: TransformDirection,
        source: &[Bytes],
        room: &mut OutputBuffer<'_>,
    ) -> Result<(usize, RunChecksums), Fault>;
}

/// The direction of a run.
///
/// ```
/// use offload_transforms::TransformDirection;
///
/// assert_ne!(TransformDirection::Apply, TransformDirection::Undo);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum TransformDirection {
    /// Seal, encrypt, compress or add: from memory to the wire.
    #[default]
    Apply,
    /// Open, decrypt, decompress or verify: from the wire to memory.
    Undo,
}

/// The parameters of one run.
///
/// ```
/// use offload_transforms::Parameters;
///
/// let lba_9 = Parameters { iv: 9u128.to_le_bytes(), ..Parameters::default() };
/// assert!(lba_9.aad.is_empty());
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct Parameters<'a> {
    /// Nonce, IV, tweak or location, depending on the transform.
    pub iv: [u8; 16],
    /// Data that are authenticated, but not part of the source.
    pub aad: &'a [u8],
}

/// The result of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RunReport {
    /// Bytes consumed from the source. Less than its length if other data follow compressed data.
    pub consumed: usize,
    /// Bytes appended to the target.
    pub produced: usize,
    /// Checksums of a copy or (de)compression; in a chain, of the last such step.
    pub checksums: Option<RunChecksums>,
}

/// CRC-32s (as in Ethernet and gzip) of the bytes read and written.
///
/// ```
/// use bytes::{Bytes, BytesMut};
/// use offload_transforms::{RunChecksums, Parameters, RunReport, Session, Transform, TransformDirection};
///
/// let source = [Bytes::from("12345"), Bytes::from("6789")];
/// let mut target = BytesMut::with_capacity(9);
/// let report: RunReport = Session::new(&Transform::Copy)?.run(TransformDirection::Apply, Parameters::default(), &source, &mut target)?;
/// let checksums = RunChecksums { source: 0xcbf4_3926, target: 0xcbf4_3926 };
/// assert_eq!(report, RunReport { consumed: 9, produced: 9, checksums: Some(checksums) });
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RunChecksums {
    /// CRC of the consumed bytes.
    pub source: u32,
    /// CRC of the produced bytes.
    pub target: u32,
}

/// A transform with expanded keys. A run does not modify the session, so threads can share it.
///
/// ```
/// use bytes::{Bytes, BytesMut};
/// use offload_compression::Compression;
/// use offload_transforms::{Fault, Parameters, Session, Transform, TransformDirection};
///
/// let gzip = Session::new(&Compression::Gzip.at_level(6))?;
/// let mut small = BytesMut::with_capacity(2000);
/// let megabyte = Bytes::from(vec![0; 1 << 20]);
/// let report = gzip.run(TransformDirection::Apply, Parameters::default(), &[megabyte], &mut small)?;
/// assert_eq!(report.produced, small.len());
/// // The result is a megabyte, but memory is used up to the target's capacity only.
/// let fault = gzip.run(TransformDirection::Undo, Parameters::default(), &[small.freeze()], &mut BytesMut::with_capacity(4096));
/// assert_eq!(fault, Err(Fault::OutOfSpace { room: 4096 }));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Session {
    name: &'static str,
    steps: Vec<TransformStep>,
}

enum TransformStep {
    Aead(AeadKey),
    CbcHmac(CbcHmac),
    Ctr(ExpandedAesKey),
    Cmac(ExpandedAesKey),
    Xts(XtsUnits),
    Protection(BlockProtection),
    Compression(Arc<dyn Compressor>),
    Copy,
    Pad(u32),
}

impl Session {
    /// Creates a session, and expands the transform's keys.
    ///
    /// # Errors
    /// If a key, a size or a level is not allowed.
    pub fn new(transform: &Transform) -> Result<Session, SpecError> {
        let steps = match transform {
            Transform::Chain(steps) if steps.is_empty() => return Err(SpecError::Chain),
            Transform::Chain(steps) => steps.iter().map(TransformStep::new).collect::<Result<_, _>>()?,
            single => vec![TransformStep::new(single)?],
        };
        Ok(Session { name: transform.name(), steps })
    }

    /// Returns the name of the transform.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Runs the transform over the concatenated pieces of `source`, and appends the result to `target` within its
    /// capacity.
    ///
    /// # Errors
    /// See [`Fault`]. The target is then unchanged, and contains no unauthenticated data.
    pub fn run(
        &self,
        way: TransformDirection,
        with: Parameters<'_>,
        source: &[Bytes],
        target: &mut BytesMut,
    ) -> Result<RunReport, Fault> {
        let mut room = OutputBuffer::new(target);
        let mut report = RunReport { consumed: pieces::len(source), ..RunReport::default() };
        let mut taken = None;
        let last = self.steps.len() - 1;
        let mut between: Option<Bytes> = None;
        for turn in 0..=last {
            // A chain is undone from its last step to its first.
            let step = &self.steps[if way == TransformDirection::Apply { turn } else { last - turn }];
            let source = between.as_ref().map_or(source, core::slice::from_ref);
            let mut buffer = BytesMut::new();
            let used = if turn == last {
                step.run(way, with, source, &mut room)?
            } else {
                // An intermediate result may be as long as the target, or longer by the bytes that a later step
                // removes.
                let most = pieces::len(source).max(room.left()).saturating_mul(2).saturating_add(SLACK);
                // A bound is needed even for decompression, so that a small source cannot exhaust the memory.
                buffer.reserve(step.most(way, pieces::len(source)).unwrap_or(most));
                let mut room = OutputBuffer::new(&mut buffer);
                let used = step.run(way, with, source, &mut room)?;
                room.keep();
                used
            };
            // The session consumes its source in the first step; later steps consume intermediate results.
            if turn == 0 {
                taken = used.map(|(taken, _)| taken);
            }
            report.checksums = used.map(|(_, sums)| sums).or(report.checksums);
            between = Some(buffer.freeze());
        }
        report.consumed = taken.unwrap_or(report.consumed);
        report.produced = room.keep();
        Ok(report)
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Session({})", self.name)
    }
}

impl TransformStep {
    fn new(transform: &Transform) -> Result<TransformStep, SpecError> {
        Ok(match transform {
            Transform::Aead { aead, key } => TransformStep::Aead(AeadKey::new(*aead, key)?),
            Transform::CbcHmac { order, hash, cipher_key, mac_key } => {
                TransformStep::CbcHmac(CbcHmac::new(*order, *hash, cipher_key, mac_key)?)
            }
            Transform::Ctr { key } => TransformStep::Ctr(ExpandedAesKey::new("AES-CTR", key)?),
            Transform::Cmac { key } => TransformStep::Cmac(ExpandedAesKey::new("AES-CMAC", key)?),
            Transform::Xts { key, unit, tweak } => TransformStep::Xts(XtsUnits::new(key, *unit, *tweak)?),
            Transform::Protection(protection) => {
                protection.check()?;
                TransformStep::Protection(*protection)
            }
            Transform::Compression(compressor) => {
                compressor.check()?;
                TransformStep::Compression(compressor.clone())
            }
            Transform::Copy => TransformStep::Copy,
            Transform::Pad { unit } => TransformStep::Pad(copy::check_unit(*unit)?),
            Transform::Chain(_) => return Err(SpecError::Chain),
        })
    }

    fn run(
        &self,
        way: TransformDirection,
        with: Parameters<'_>,
        source: &[Bytes],
        room: &mut OutputBuffer<'_>,
    ) -> Result<Option<(usize, RunChecksums)>, Fault> {
        match self {
            TransformStep::Aead(key) => key.run(way, with, source, room)?,
            TransformStep::CbcHmac(key) => key.run(way, with, source, room)?,
            TransformStep::Ctr(key) => stream::counter_mode(key, &with.iv, source, room)?,
            TransformStep::Cmac(key) => stream::cmac(key, way, source, room)?,
            TransformStep::Xts(key) => key.run(way, with, source, room)?,
            TransformStep::Protection(protection) => {
                let (memory, wire) = (protection.memory.as_ref(), protection.wire.as_ref());
                let (from, to) = if way == TransformDirection::Apply { (memory, wire) } else { (wire, memory) };
                protection.run(from, to, with, source, room)?;
            }
            TransformStep::Compression(compressor) => return compressor.run(way, source, room).map(Some),
            TransformStep::Copy => return copy::copy(source, room).map(|sums| Some((pieces::len(source), sums))),
            TransformStep::Pad(unit) => copy::pad(*unit, way, source, room)?,
        }
        Ok(None)
    }

    /// Returns the maximum size of the result in bytes, or `None` for decompression, where the size is unknown.
    fn most(&self, way: TransformDirection, source: usize) -> Option<usize> {
        match (self, way) {
            (TransformStep::Compression(_), TransformDirection::Undo) => None,
            (TransformStep::Compression(_), TransformDirection::Apply) => Some(source + source / 128 + SLACK),
            (TransformStep::Protection(protection), _) => {
                let interval = protection.memory.or(protection.wire).map_or(1, |format| format.interval as usize);
                Some(source + (source / interval + 1) * 16)
            }
            (TransformStep::Pad(unit), _) => Some(source + *unit as usize),
            _ => Some(source + SLACK),
        }
    }
}

/// Upper bound for the size of tags, MACs, padding and the frame of compressed data, in bytes.
const SLACK: usize = 1024;
