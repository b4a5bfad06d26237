//! Data-encryption keys: one for each tenant and volume, imported wrapped, so that no queue carries a key.
//!
//! A tenant's keys are wrapped under the tenant's wrapping key, which the device was given once. To erase a volume, its key is given
//! up: the data stay in place, and nobody can read them.
//!
//! A wrapped key is AES-KWP (RFC 5649) over the purpose of the key and the key itself: tenant (4 bytes), volume (8), bytes of a unit (4), all
//! big-endian, tweak (1: 0 counts units, 1 sectors of 512 bytes), and 32 or 64 bytes of key. So an unwrapped key is for that tenant and
//! volume, in these units: the plain numbers beside a wrapped key must be the same.

use crate::perform::open;
use aes_kw::cipher::KeyInit;
use aes_kw::{KwpAes128, KwpAes256};
use core::fmt;
use offload_api::{Contexts, Handle, JobQueue, ContextRefusal, XtsStage};
use offload_transforms::{Secret, Session, SpecError, Transform, Tweak};
use thiserror::Error;
use zeroize::Zeroizing;

/// The name of the engine that has data-encryption keys.
pub const DATA_KEYS: &str = "data keys";

/// What a data-encryption key is made from. Opened on a device, it is a session that encrypts and decrypts by AES-XTS; the IV
/// of a job is the LBA.
///
/// ```
/// use offload_jobs::{DataKey, WrappingKey};
/// use offload_transforms::{Secret, Tweak};
///
/// let tenant = WrappingKey { tenant: 7, key: Secret::new(vec![1; 32]) };
/// let wrapped = tenant.wrap(1, &Secret::new((0..64).collect()), 512, Tweak::Unit)?;
/// let key: DataKey = tenant.unwrap(&wrapped)?;
/// assert_eq!((key.tenant, key.volume), (7, 1));
/// // Another tenant's key does not open it.
/// let other = WrappingKey { tenant: 8, key: Secret::new(vec![2; 32]) };
/// assert!(other.unwrap(&wrapped).is_err());
/// # Ok::<(), offload_jobs::ImportError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DataKeySpec {
    /// Whose it is.
    pub tenant: u32,
    /// The volume that it is for.
    pub volume: u64,
    /// The key, wrapped under the tenant's key together with the other fields.
    pub wrapped: Vec<u8>,
    /// Bytes of a unit of AES-XTS.
    pub unit: u32,
    /// How tweaks count.
    pub tweak: Tweak,
}

impl DataKeySpec {
    /// Opens it on a queue.
    ///
    /// # Errors
    /// As [`Opens::open`](crate::Opens::open).
    pub fn open<Q: JobQueue + ?Sized>(self, queue: &mut Q) -> Result<Handle, (ContextRefusal, Option<DataKeySpec>)> {
        self.import(queue.contexts())
    }

    /// Imports it into a device, a NIC's queue say, whose engines that work on packets then refer to it by its handle.
    ///
    /// # Errors
    /// As [`Opens::open`](crate::Opens::open).
    pub fn import(self, contexts: &mut dyn Contexts) -> Result<Handle, (ContextRefusal, Option<DataKeySpec>)> {
        open(contexts, DATA_KEYS, self)
    }
}

/// A data-encryption key. See [`DataKeySpec`].
pub struct DataKey {
    /// Whose it is.
    pub tenant: u32,
    /// The volume that it is for.
    pub volume: u64,
    /// Bytes of a unit of AES-XTS.
    pub unit: u32,
    /// How tweaks count.
    pub tweak: Tweak,
    /// The key itself.
    pub key: Secret,
    /// It, expanded, once a job was run. Expanded it takes a kilobyte, and most of a million keys wait.
    session: Option<Box<Session>>,
}

impl DataKey {
    /// A key that was unwrapped before.
    ///
    /// # Errors
    /// If it is no key of AES-XTS, or there are no units of this size.
    pub fn new(tenant: u32, volume: u64, unit: u32, tweak: Tweak, key: Secret) -> Result<DataKey, SpecError> {
        let mut made = DataKey::again(tenant, volume, unit, tweak, key);
        made.session()?;
        made.session = None;
        Ok(made)
    }

    /// A key that was [made](Self::new) once, from what it consists of.
    ///
    /// ```
    /// use offload_jobs::DataKey;
    /// use offload_transforms::{Secret, Tweak};
    ///
    /// let made = DataKey::new(7, 1, 512, Tweak::Unit, Secret::new((0..64).collect()))?;
    /// let mut again = DataKey::again(made.tenant, made.volume, made.unit, made.tweak, made.key.clone());
    /// assert!(again.session().is_ok());
    /// # Ok::<(), offload_transforms::SpecError>(())
    /// ```
    pub const fn again(tenant: u32, volume: u64, unit: u32, tweak: Tweak, key: Secret) -> DataKey {
        DataKey { tenant, volume, unit, tweak, key, session: None }
    }

    /// What runs its jobs. The first call expands the key.
    ///
    /// # Errors
    /// As [`new`](Self::new), of one that was never made so.
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

/// A tenant's key, that its data-encryption keys are wrapped under: what the engine [`DATA_KEYS`] is
/// [changed](offload_api::Contexts::change) by. See [`DataKeySpec`] for an example.
#[derive(Clone, Debug)]
pub struct WrappingKey {
    /// Whose it is.
    pub tenant: u32,
    /// 16 or 32 bytes; none: the tenant has no key any more.
    pub key: Secret,
}

/// Why a key could not be wrapped, unwrapped or imported.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ImportError {
    /// The wrapping key has another length than AES keys.
    #[error("a wrapping key has 16 or 32 bytes, not {0}")]
    WrappingKey(usize),
    /// It belongs to another tenant.
    #[error("the key is tenant {found}'s, and was to be unwrapped with tenant {tenant}'s")]
    Tenant {
        /// Whose wrapping key it was.
        tenant: u32,
        /// Whose key it is.
        found: u32,
    },
    /// It was wrapped under another key, or changed.
    #[error("the key was wrapped under another key, or was changed")]
    NotAuthentic,
    /// It is no key.
    #[error(transparent)]
    Spec(#[from] SpecError),
    /// The device did not take it.
    #[error("the device does not take the key: {0}")]
    Refused(#[from] ContextRefusal),
}

impl WrappingKey {
    /// Gives it to a device, for the keys that the tenant will import there.
    ///
    /// # Errors
    /// If the device has no keys, or no room for a command now.
    pub fn give(&self, contexts: &mut dyn Contexts) -> Result<(), ContextRefusal> {
        let engine = contexts.engine(DATA_KEYS).ok_or(ContextRefusal::Unsupported)?.number;
        contexts.change(engine, Box::new(self.clone())).map_err(|(refused, _)| refused)
    }

    /// Has a device take the key of a volume, for the stages of engines that work on packets: gives it this key, and imports
    /// the volume's, wrapped. What names the key is what comes back.
    ///
    /// # Errors
    /// As [`wrap`](Self::wrap); [`ImportError::Refused`], if the device has no such keys, or no room for one now.
    pub fn import(
        &self,
        device: &mut dyn Contexts,
        volume: u64,
        key: &Secret,
        unit: u32,
        tweak: Tweak,
    ) -> Result<XtsStage, ImportError> {
        let wrapped = self.wrap(volume, key, unit, tweak)?;
        self.give(device)?;
        let key = wrapped.import(device).map_err(|(refused, _)| refused)?;
        Ok(XtsStage { key, tenant: self.tenant, volume })
    }

    /// Wraps a key for a volume.
    ///
    /// # Errors
    /// If the wrapping key is not an AES key.
    pub fn wrap(&self, volume: u64, key: &Secret, unit: u32, tweak: Tweak) -> Result<DataKeySpec, ImportError> {
        let content = Zeroizing::new([&purpose(self.tenant, volume, unit, tweak)[..], key.bytes()].concat());
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
    /// If it is another tenant's, was wrapped under another key or for another volume, unit or tweak, or is no key.
    pub fn unwrap(&self, spec: &DataKeySpec) -> Result<DataKey, ImportError> {
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
        let key = content.and_then(|content| content.strip_prefix(&purpose)).ok_or(ImportError::NotAuthentic)?;
        Ok(DataKey::new(spec.tenant, spec.volume, spec.unit, spec.tweak, Secret::new(key.to_vec()))?)
    }
}

/// Returns the purpose of a key, which is wrapped with the key: see the module.
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
    fn wrapped_key_is_that_of_openssl() {
        let tenant = WrappingKey { tenant: 7, key: Secret::new((0..32).collect()) };
        let spec = tenant.wrap(1, &Secret::new((0..64).collect()), 512, Tweak::Unit).unwrap();
        let hex: String = spec.wrapped.iter().map(|byte| format!("{byte:02x}")).collect();
        let expected = "909cfacc283e3ee1043f0e39ef0f056c7caabfd4daffec3865bafdda31fbb8e87842146ec379d4f3c7e11ed3dbdef9b1\
                        8a974fb5f33834837853573ecc244f3203906ad3290f2862727b2a1c31fb6b7659710e9f52f9b73cd4500d918a4a037f";
        assert_eq!(hex, expected);
        assert_eq!(tenant.unwrap(&spec).unwrap().key.bytes(), (0..64).collect::<Vec<u8>>());
    }

    /// The plain fields beside a wrapped key are not protected in storage, so they must match the wrapped ones.
    #[test]
    fn wrapped_key_is_for_its_volume_unit_and_tweak_alone() {
        let tenant = WrappingKey { tenant: 1, key: Secret::new(vec![3; 32]) };
        let spec = tenant.wrap(1, &Secret::new((0..64).collect()), 512, Tweak::Unit).unwrap();
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
    fn what_is_no_wrapped_key_is_refused() {
        let tenant = WrappingKey { tenant: 1, key: Secret::new(vec![3; 16]) };
        let spec = tenant.wrap(9, &Secret::new(vec![5; 64]), 512, Tweak::Unit).unwrap();
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
        let none = WrappingKey { tenant: 1, key: Secret::new(vec![]) };
        assert_eq!(none.unwrap(&spec).unwrap_err(), ImportError::WrappingKey(0));
        let short = tenant.wrap(9, &Secret::new(vec![5; 24]), 512, Tweak::Unit).unwrap();
        assert!(matches!(tenant.unwrap(&short), Err(ImportError::Spec(_))));
    }
}
