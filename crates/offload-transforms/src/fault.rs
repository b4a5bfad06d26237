//! What can be wrong with a transform, or with one run of it.

use crate::protection::Mismatch;
use thiserror::Error;

/// Why no session can be made of a transform: the caller's fault.
///
/// ```
/// use offload_transforms::{Secret, Session, SpecError, Transform};
///
/// let refused = Session::new(&Transform::Ctr { key: Secret::new(vec![0; 24]) });
/// assert_eq!(refused.unwrap_err(), SpecError::KeyLength { name: "AES-CTR", found: 24, takes: "16 or 32" });
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum SpecError {
    /// The key has another length than the cipher's.
    #[error("{name} takes a key of {takes} bytes, not of {found}")]
    KeyLength {
        /// The cipher.
        name: &'static str,
        /// Bytes of the key.
        found: usize,
        /// Lengths that it takes.
        takes: &'static str,
    },
    /// Both halves of a key of AES-XTS are the same, which makes it weak (FIPS 140-3, implementation guidance C.I).
    #[error("the halves of the key are equal: AES-XTS takes two different keys")]
    EqualHalves,
    /// Units of this size cannot be.
    #[error("{name} takes units of {takes} bytes, not of {found}")]
    Unit {
        /// The transform.
        name: &'static str,
        /// Bytes of the unit.
        found: u32,
        /// Sizes that it takes.
        takes: &'static str,
    },
    /// There is no protection information on either side, or the two sides differ in the size of their blocks.
    #[error("protection information needs a format on one side, or on both with blocks of one size")]
    Domains,
    /// More bits of the storage tag than the format has.
    #[error("a storage tag of {found} bits: this format has room for {room}")]
    StorageTag {
        /// Bits asked for.
        found: u8,
        /// Bits that there are.
        room: u8,
    },
    /// An application tag of 0xffff turns all checks off, so that no block would be verified.
    #[error("an application tag of 0xffff turns all checks off: choose another one")]
    ApplicationTag,
    /// Compression has the levels 0 to 9.
    #[error("compression level {0}: levels are 0 to 9")]
    Level(u8),
    /// A chain has a step at least, and no chains in it.
    #[error("a chain has one step at least, and no chain among them")]
    Chain,
}

/// Why a run ended without a result. The target is as it was before.
///
/// ```
/// use bytes::{Bytes, BytesMut};
/// use offload_transforms::{Fault, Parameters, Session, Transform, Way};
///
/// let copy = Session::new(&Transform::Copy)?;
/// let mut short = BytesMut::with_capacity(10);
/// let fault = copy.run(Way::Apply, Parameters::default(), &[Bytes::from_static(b"twelve bytes")], &mut short);
/// assert!(matches!(fault, Err(Fault::OutOfSpace { .. })));
/// # Ok::<(), offload_transforms::SpecError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Fault {
    /// The target has too little room.
    #[error("the target has room for {room} bytes, the result is longer: give it more, or refuse the data")]
    OutOfSpace {
        /// Bytes that there was room for.
        room: usize,
    },
    /// The source has a length that the transform does not take.
    #[error("{name} cannot work on {found} bytes: it takes {takes}")]
    SourceLength {
        /// The transform.
        name: &'static str,
        /// Bytes of the source.
        found: usize,
        /// What it takes.
        takes: &'static str,
    },
    /// The tag, or the MAC and padding, are not those of the data.
    #[error("the data are not authentic: another key, or they were changed")]
    NotAuthentic,
    /// The compressed data are damaged, or cut short.
    #[error("the data are damaged or cut short: they cannot be taken back")]
    Corrupt,
    /// Protection information is not that of the data, or of the place.
    #[error(transparent)]
    Integrity(#[from] Mismatch),
}
