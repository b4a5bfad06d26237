//! Data-encryption keys per tenant and volume. Keys are imported wrapped, so that no queue carries a plain key.
//!
//! A tenant's keys are wrapped with the tenant's wrapping key, which the device received once. To erase a volume, its
//! key is destroyed: the data remain, but nobody can read them.
//!
//! A wrapped key is AES-KWP (RFC 5649) over the key's purpose and the key: tenant (4 bytes), volume (8), size of a unit
//! in bytes (4), all big-endian, tweak (1: 0 counts units, 1 sectors of 512 bytes), and the key of 32 or 64 bytes. The
//! purpose binds the key to a tenant, a volume and a unit, and the plain fields beside a wrapped key must equal the
//! purpose.

use crate::perform::open;
use aes_kw::cipher::KeyInit;
use aes_kw::{KwpAes128, KwpAes256};
use core::fmt;
use offload_api::{ContextRefusal, Contexts, Handle, JobQueue, XtsStage};
use offload_transforms::{SecretBytes, Session, SpecError, Transform, Tweak};
use thiserror::Error;
use zeroize::Zeroizing;

/// Name of the engine for data-encryption keys.
pub const DATA_KEYS: &str = "data keys";

/// A wrapped data-encryption key with its purpose. Opened on a device, the key becomes a session that encrypts and
/// decrypts with AES-XTS. The IV of a job is the LBA.
///
/// ```
/// use offload_jobs::{DataKey, WrappingKey};
/// use offload_transforms::{SecretBytes, Tweak};
///
/// let tenant = WrappingKey { tenant: 7, key: SecretBytes::new(vec![1; 32]) };
/// let wrapped = tenant.wrap(1, &SecretBytes::new((0..64).collect()), 512, Tweak::Unit)?;
/// let key: DataKey = tenant.unwrap(&wrapped)?;
/// assert_eq!((key.tenant, key.volume), (7, 1));
/// // Another tenant's key does not open it.
/// let other = WrappingKey { tenant: 8, key: SecretBytes::new(vec![2; 32]) };
/// assert!(other.unwrap(&wrapped).is_err());
/// # Ok::<(), offload_jobs::ImportError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DataKeySpec {
    /// Tenant that owns the key.
    pub tenant: u32,
    /// Volume of the key.
    pub volume: u64,
    /// Key and purpose, wrapped with the tenant's wrapping key.
    pub wrapped: Vec<u8>,
    /// Size of an AES-XTS unit in bytes.
    pub unit: u32,
    /// Increment of the tweak.
    pub tweak: Tweak,
}

impl DataKeySpec {
    /// Creates a session for the key on a queue.
    ///
    /// # Errors
    /// See [`OpenTransform::open`](crate::OpenTransform::open).
    pub fn open<Q: JobQueue + ?Sized>(self, queue: &mut Q) -> Result<Handle, (ContextRefusal, Option<DataKeySpec>)> {
        self.import(queue.contexts())
    }

    /// Imports the key into a device, such as a NIC's queue. Packet-processing engines then refer to the key by its
    /// handle.
    ///
    /// # Errors
    /// See [`OpenTransform::open`](crate::OpenTransform::open).
    pub fn import(self, contexts: &mut dyn Contexts) -> Result<Handle, (ContextRefusal, Option<DataKeySpec>)> {
        open(contexts, DATA_KEYS, self)
    }
}

/// An unwrapped data-encryption key. See [`DataKeySpec`].
pub struct DataKey {
    /// Tenant that owns the key.
    pub tenant: u32,
    /// Volume of the key.
    pub volume: u64,
    /// Size of an AES-XTS unit in bytes.
    pub unit: u32,
    /// Increment of the tweak.
    pub tweak: Tweak,
    /// Plain key.
    pub key: SecretBytes,
    /// Expanded key. `None` before the first job, because an expanded key takes a kilobyte, and most of a million keys
    /// are idle.
    session: Option<Box<Session>>,
}

impl DataKey {
    /// Creates and checks a key.
    ///
    /// # Errors
    /// If the key is not an AES-XTS key, or the size of the units is not allowed.
    pub fn new(tenant: u32, volume: u64, unit: u32, tweak: Tweak, key: SecretBytes) -> Result<DataKey, SpecError> {
        let mut made = DataKey::again(tenant, volume, unit, tweak, key);
        // Expanding checks the key. The expanded form is dropped again until the first job.
        made.session()?;
        made.session = None;
        Ok(made)
    }

    /// Recreates a key that was [created](Self::new) before, without a check.
    ///
    /// ```
    /// use offload_jobs::DataKey;
    /// use offload_transforms::{SecretBytes, Tweak};
    ///
    /// let made = DataKey::new(7, 1, 512, Tweak::Unit, SecretBytes::new((0..64).collect()))?;
    /// let mut again = DataKey::again(made.tenant, made.volume, made.unit, made.tweak, made.key.clone());
    /// assert!(again.session().is_ok());
    /// # Ok::<(), offload_transforms::SpecError>(())
    /// ```
    pub const fn again(tenant: u32, volume: u64, unit: u32, tweak: Tweak, key: SecretBytes) -> DataKey {
        DataKey { tenant, volume, unit, tweak, key, session: None }
    }

    /// Returns the session for the key's jobs. The first call expands the key.
    ///
    /// # Errors
    /// As for [`new`](Self::new), if the key was never checked.
    pub fn session(&mut self) -> Result<&Session, SpecError> {
        match &mut self.session {
            Some(session) => Ok(session),
            none => {
                let transform = Transform::Xts { key: self.key.clone(), unit: self.unit, tweak: self.tweak };
                Ok(none.insert(Box::new(Session::new(&transform)?)))
            }
        }
    }
}

impl fmt::Debug for DataKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DataKey(tenant {}, volume {})", self.tenant, self.volume)
    }
}

/// A tenant's wrapping key. The engine [`DATA_KEYS`] receives the key as a [change](offload_api::Contexts::change). See
/// [`DataKeySpec`] for an example.
#[derive(Clone, Debug)]
pub struct WrappingKey {
    /// Tenant that owns the key.
    pub tenant: u32,
    /// Key of 16 or 32 bytes. Empty to remove the tenant's key.
    pub key: SecretBytes,
}

/// The reason that a key cannot be wrapped, unwrapped or imported.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ImportError {
    /// The wrapping key has the wrong length for AES.
    #[error("a wrapping key has 16 or 32 bytes, not {0}")]
    WrappingKey(usize),
    /// The key belongs to another tenant.
    #[error("the key belongs to tenant {found}: it cannot be unwrapped with tenant {tenant}'s wrapping key")]
    Tenant {
        /// Tenant of the wrapping key.
        tenant: u32,
        /// Tenant of the wrapped key.
        found: u32,
    },
    /// The key was wrapped with another key, or was changed.
    #[error("the key was wrapped under another key, or was changed")]
    NotAuthentic,
    /// The unwrapped bytes are not a valid key.
    #[error(transparent)]
    Spec(#[from] SpecError),
    /// The device refused the key.
    #[error("the device refused the key: {0}")]
    Refused(#[from] ContextRefusal),
}

impl WrappingKey {
    /// Gives the wrapping key to a device, for later imports of the tenant's keys.
    ///
    /// # Errors
    /// If the device has no engine for keys, or no room for a command now.
    pub fn give(&self, contexts: &mut dyn Contexts) -> Result<(), ContextRefusal> {
        let engine = contexts.engine(DATA_KEYS).ok_or(ContextRefusal::Unsupported)?.number;
        contexts.change(engine, Box::new(self.clone())).map_err(|(refused, _)| refused)
    }

    /// Imports a volume's key into a device, for the stages of packet-processing engines: gives the device this
    /// wrapping key, then the wrapped key. Returns the stage that names the key.
    ///
    /// # Errors
    /// As for [`wrap`](Self::wrap), and [`ImportError::Refused`] if the device has no engine for keys, or no room now.
    pub fn import(
        &self,
        device: &mut dyn Contexts,
        volume: u64,
        key: &SecretBytes,
        unit: u32,
        tweak: Tweak,
    ) -> Result<XtsStage, ImportError> {
        let wrapped = self.wrap(volume, key, unit, tweak)?;
        self.give(device)?;
        let key = wrapped.import(device).map_err(|(refused, _)| refused)?;
        Ok(XtsStage { key, tenant: self.tenant, volume })
    }

    /// Wraps the key of a volume.
    ///
    /// # Errors
    /// If the wrapping key is not an AES key.
    pub fn wrap(&self, volume: u64, key: &SecretBytes, unit: u32, tweak: Tweak) -> Result<DataKeySpec, ImportError> {
        // The plain key is part of this buffer, so the buffer is wiped.
        let content = Zeroizing::new([&purpose(self.tenant, volume, unit, tweak)[..], key.bytes()].concat());
        // AES-KWP pads to eight bytes, and adds eight for the integrity check (RFC 5649 4.1).
        let mut wrapped = vec![0; content.len().next_multiple_of(8) + 8];
        let done = match self.key.bytes() {
            short if short.len() == 16 => {
                KwpAes128::new_from_slice(short).map(|wrap| wrap.wrap_key(&content, &mut wrapped).is_ok())
            }
            long => KwpAes256::new_from_slice(long).map(|wrap| wrap.wrap_key(&content, &mut wrapped).is_ok()),
        };
        match done.map_err(|_| ImportError::WrappingKey(self.key.bytes().len()))? {
            true => Ok(DataKeySpec { tenant: self.tenant, volume, wrapped, unit, tweak }),
            false => Err(ImportError::NotAuthentic),
        }
    }

    /// Unwraps a key.
    ///
    /// # Errors
    /// If the key belongs to another tenant, was wrapped with another key or for another volume, unit or tweak, or is
    /// invalid.
    pub fn unwrap(&self, spec: &DataKeySpec) -> Result<DataKey, ImportError> {
        // Checked before unwrapping, for a better error. The wrapped purpose would fail anyway.
        if spec.tenant != self.tenant {
            return Err(ImportError::Tenant { tenant: self.tenant, found: spec.tenant });
        }
        let mut content = Zeroizing::new(vec![0; spec.wrapped.len().saturating_sub(8)]);
        let done = match self.key.bytes() {
            short if short.len() == 16 => {
                KwpAes128::new_from_slice(short).map(|wrap| wrap.unwrap_key(&spec.wrapped, &mut content).ok())
            }
            long => KwpAes256::new_from_slice(long).map(|wrap| wrap.unwrap_key(&spec.wrapped, &mut content).ok()),
        };
        let content = done.map_err(|_| ImportError::WrappingKey(self.key.bytes().len()))?;
        let purpose = purpose(spec.tenant, spec.volume, spec.unit, spec.tweak);
        // A failed unwrap and a wrong purpose give the same error, so that an importer learns nothing from the
        // difference.
        let key = content.and_then(|content| content.strip_prefix(&purpose)).ok_or(ImportError::NotAuthentic)?;
        Ok(DataKey::new(spec.tenant, spec.volume, spec.unit, spec.tweak, SecretBytes::new(key.to_vec()))?)
    }
}

/// Returns the purpose of a key, which is wrapped with the key; see the module.
fn purpose(tenant: u32, volume: u64, unit: u32, tweak: Tweak) -> [u8; 17] {
    let mut bytes = [0; 17];
    bytes[..4].copy_from_slice(&tenant.to_be_bytes());
    bytes[4..12].copy_from_slice(&volume.to_be_bytes());
    bytes[12..16].copy_from_slice(&unit.to_be_bytes());
    bytes[16] = u8::from(tweak == Tweak::Sectors512);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    /// OpenSSL's `id-aes256-wrap-pad` over the 81 bytes that the module's documentation lists.
    #[test]
    fn wrapped_key_matches_openssl() {
        let tenant = WrappingKey { tenant: 7, key: SecretBytes::new((0..32).collect()) };
        let spec = tenant.wrap(1, &SecretBytes::new((0..64).collect()), 512, Tweak::Unit).unwrap();
        let hex: String = spec.wrapped.iter().map(|byte| format!("{byte:02x}")).collect();
        let expected = "909cfacc283e3ee1043f0e39ef0f056c7caabfd4daffec3865bafdda31fbb8e87842146ec379d4f3c7e11ed3dbdef9b1\
                        8a974fb5f33834837853573ecc244f3203906ad3290f2862727b2a1c31fb6b7659710e9f52f9b73cd4500d918a4a037f";
        assert_eq!(hex, expected);
        assert_eq!(tenant.unwrap(&spec).unwrap().key.bytes(), (0..64).collect::<Vec<u8>>());
    }

    /// The plain fields beside a wrapped key are not protected in storage, so they must match the wrapped ones.
    #[test]
    fn wrapped_key_is_bound_to_volume_unit_and_tweak() {
        let tenant = WrappingKey { tenant: 1, key: SecretBytes::new(vec![3; 32]) };
        let spec = tenant.wrap(1, &SecretBytes::new((0..64).collect()), 512, Tweak::Unit).unwrap();
        let volume = DataKeySpec { volume: 2, ..spec.clone() };
        let unit = DataKeySpec { unit: 4096, ..spec.clone() };
        let tweak = DataKeySpec { tweak: Tweak::Sectors512, ..spec.clone() };
        for other in [volume, unit, tweak] {
            assert_eq!(tenant.unwrap(&other).unwrap_err(), ImportError::NotAuthentic, "{other:?}");
        }
        // Two tenants with the same wrapping key still cannot use each other's keys.
        let twin = WrappingKey { tenant: 2, ..tenant.clone() };
        assert_eq!(twin.unwrap(&DataKeySpec { tenant: 2, ..spec.clone() }).unwrap_err(), ImportError::NotAuthentic);
        assert!(tenant.unwrap(&spec).is_ok());
    }

    #[test]
    fn malformed_wrapped_keys_are_refused() {
        let tenant = WrappingKey { tenant: 1, key: SecretBytes::new(vec![3; 16]) };
        let spec = tenant.wrap(9, &SecretBytes::new(vec![5; 64]), 512, Tweak::Unit).unwrap();
        for bit in 0..8 * spec.wrapped.len() {
            let mut wrong = spec.clone();
            wrong.wrapped[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(tenant.unwrap(&wrong).unwrap_err(), ImportError::NotAuthentic);
        }
        for len in 0..spec.wrapped.len() {
            let wrong = DataKeySpec { wrapped: spec.wrapped[..len].to_vec(), ..spec.clone() };
            assert!(tenant.unwrap(&wrong).is_err(), "{len}");
        }
        let stranger = WrappingKey { tenant: 2, ..tenant.clone() };
        assert_eq!(stranger.unwrap(&spec).unwrap_err(), ImportError::Tenant { tenant: 2, found: 1 });
        let none = WrappingKey { tenant: 1, key: SecretBytes::new(vec![]) };
        assert_eq!(none.unwrap(&spec).unwrap_err(), ImportError::WrappingKey(0));
        let short = tenant.wrap(9, &SecretBytes::new(vec![5; 24]), 512, Tweak::Unit).unwrap();
        assert!(matches!(tenant.unwrap(&short), Err(ImportError::Spec(_))));
    }
}
