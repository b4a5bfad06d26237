//! Errors in the specification of a transform, and in one run.

use crate::protection::Mismatch;
use thiserror::Error;

/// The reason that a transform has no session: an error of the caller.
///
/// ```
/// use offload_transforms::{SecretBytes, Session, SpecError, Transform};
///
/// let refused = Session::new(&Transform::Ctr { key: SecretBytes::new(vec![0; 24]) });
/// assert_eq!(refused.unwrap_err(), SpecError::KeyLength { name: "AES-CTR", found: 24, takes: "16 or 32" });
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum SpecError {
    /// The key does not fit the cipher.
    #[error("{name} takes a key of {takes} bytes, not of {found}")]
    KeyLength {
        /// Name of the cipher.
        name: &'static str,
        /// Size of the key in bytes.
        found: usize,
        /// Allowed sizes.
        takes: &'static str,
    },
    /// Both halves of the AES-XTS key are equal, which makes the key weak (FIPS 140-3, implementation guidance C.I).
    #[error("the halves of the key are equal: AES-XTS takes two different keys")]
    EqualHalves,
    /// The size of the unit is not allowed.
    #[error("{name} takes units of {takes} bytes, not of {found}")]
    Unit {
        /// Name of the transform.
        name: &'static str,
        /// Size of the unit in bytes.
        found: u32,
        /// Allowed sizes.
        takes: &'static str,
    },
    /// No side has protection information, or the sides differ in the size of their blocks.
    #[error("protection information needs a format on one side, or on both with blocks of one size")]
    Domains,
    /// The storage tag needs more bits than the format has.
    #[error("a storage tag of {found} bits: this format has room for {room}")]
    // The tag shares its field with the reference tag, so its size is limited by the guard's format.
    StorageTag {
        /// Bits of the tag.
        found: u8,
        /// Bits of the format.
        room: u8,
    },
    /// An application tag of 0xffff would turn off all checks, and no block would be verified.
    #[error("an application tag of 0xffff turns all checks off: choose another one")]
    ApplicationTag,
    /// The compression level is not 0 to 9.
    #[error("compression level {0}: levels are 0 to 9")]
    Level(u8),
    /// The chain is empty, or contains another chain.
    #[error("a chain needs at least one step, and cannot contain another chain")]
    Chain,
}

/// The reason that a run failed. The target is then unchanged.
///
/// ```
/// use bytes::{Bytes, BytesMut};
/// use offload_transforms::{Fault, Parameters, Session, Transform, TransformDirection};
///
/// let copy = Session::new(&Transform::Copy)?;
/// let mut short = BytesMut::with_capacity(10);
/// let fault = copy.run(TransformDirection::Apply, Parameters::default(), &[Bytes::from_static(b"twelve bytes")], &mut short);
/// assert!(matches!(fault, Err(Fault::OutOfSpace { .. })));
/// # Ok::<(), offload_transforms::SpecError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Fault {
    /// The result does not fit into the target.
    #[error("the result does not fit into the target's {room} bytes: enlarge the target, or refuse the data")]
    OutOfSpace {
        /// Capacity of the target in bytes.
        room: usize,
    },
    /// The transform does not accept the length of the source.
    #[error("{name} cannot work on {found} bytes: it takes {takes}")]
    SourceLength {
        /// Name of the transform.
        name: &'static str,
        /// Size of the source in bytes.
        found: usize,
        /// Accepted lengths.
        takes: &'static str,
    },
    /// The tag, or the MAC and padding, do not match the data.
    #[error("the data are not authentic: the key is wrong, or the data were changed")]
    NotAuthentic,
    /// The compressed or padded data are damaged or truncated.
    #[error("the data are damaged or truncated: nothing can be restored")]
    Corrupt,
    /// The protection information does not match the data or their location.
    #[error(transparent)]
    Integrity(#[from] Mismatch),
}
