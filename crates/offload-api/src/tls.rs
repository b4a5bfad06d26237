//! TLS contexts of a device.

use crate::contexts::{Contexts, EngineInfo, NewContext, ResyncMode};
use crate::direction::Direction;
use crate::key::Key;
use crate::record::{RecordFormat, TlsSuite, TlsVersion};
use crate::refused::ContextRefusal;
use crate::unit::{Handle, Layer};
use core::fmt;
use offload_base::Seq;
use offload_formats::FlowKey;
use zeroize::{Zeroize, ZeroizeOnDrop};

/// Keys of one direction of a TLS connection. Never printed; overwritten when dropped.
///
/// ```
/// use offload_api::{TlsKey, TlsSuite, TlsVersion};
///
/// let key = TlsKey::new(TlsVersion::Tls13, TlsSuite::Aes128Gcm, &[7; 16], [9; 12]).unwrap();
/// assert!(!format!("{key:?}").contains('7'));
/// assert!(TlsKey::new(TlsVersion::Tls13, TlsSuite::Aes256Gcm, &[7; 16], [9; 12]).is_none(), "too short");
/// ```
#[derive(Clone, Zeroize, ZeroizeOnDrop)]
pub struct TlsKey {
    #[zeroize(skip)]
    version: TlsVersion,
    #[zeroize(skip)]
    suite: TlsSuite,
    key: [u8; 32],
    iv: [u8; 12],
}

impl TlsKey {
    /// Makes a key for `suite` with its static IV. For TLS 1.2 with AES-GCM the IV is the salt and the start of the
    /// explicit nonces, see [`explicit_nonce`](RecordFormat::explicit_nonce). Returns `None` if `key` does not have the
    /// suite's key length.
    pub fn new(version: TlsVersion, suite: TlsSuite, key: &[u8], iv: [u8; 12]) -> Option<TlsKey> {
        if key.len() != suite.key_len() {
            return None;
        }
        // A fixed array, so that no reallocation leaves copies of the key behind.
        let mut kept = [0; 32];
        kept[..key.len()].copy_from_slice(key);
        Some(TlsKey { version, suite, key: kept, iv })
    }

    /// Returns the protocol version, which determines framing, AAD and nonce.
    pub fn version(&self) -> TlsVersion {
        self.version
    }

    /// Returns the algorithm.
    pub fn suite(&self) -> TlsSuite {
        self.suite
    }

    /// Returns the record format.
    pub fn format(&self) -> RecordFormat {
        RecordFormat::new(self.version, self.suite)
    }

    /// Returns the key bytes.
    pub fn key(&self) -> &[u8] {
        &self.key[..self.suite.key_len()]
    }

    /// Returns the static IV.
    pub fn iv(&self) -> &[u8; 12] {
        &self.iv
    }
}

impl fmt::Debug for TlsKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TlsKey({:?}, {:?}, redacted)", self.version, self.suite)
    }
}

/// The parameters of a TLS context.
///
/// ```
/// use offload_api::{TlsContext, TlsKey, TlsSuite, TlsVersion};
/// use offload_base::Seq;
///
/// let key = TlsKey::new(TlsVersion::Tls13, TlsSuite::Aes128Gcm, &[7; 16], [9; 12]).unwrap();
/// let context = TlsContext { start: Seq(1000), number: 0, key };
/// assert!(!format!("{context:?}").contains("[7"));
/// ```
#[derive(Clone, Debug)]
pub struct TlsContext {
    /// Sequence number of the first record. (A transmit context gets its position from parameters on the send ring.)
    pub start: Seq,
    /// Number of the first record.
    pub number: u64,
    /// Keys.
    pub key: TlsKey,
}

/// The capabilities of a device's TLS engine.
///
/// ```
/// use offload_api::{TlsCapabilities, TlsKey, TlsSuite, TlsVersion};
///
/// let key = TlsKey::new(TlsVersion::Tls13, TlsSuite::Aes128Gcm, &[7; 16], [9; 12]).unwrap();
/// let knows = TlsCapabilities { versions: &[TlsVersion::Tls13], suites: &[TlsSuite::Aes128Gcm] };
/// assert!(knows.include(&key) && !TlsCapabilities { versions: &[TlsVersion::Tls12], ..knows }.include(&key));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TlsCapabilities {
    /// Supported versions.
    pub versions: &'static [TlsVersion],
    /// Supported suites, for each version.
    pub suites: &'static [TlsSuite],
}

impl TlsCapabilities {
    /// Tests whether the engine supports this key.
    pub fn include(&self, key: &TlsKey) -> bool {
        self.versions.contains(&key.version()) && self.suites.contains(&key.suite())
    }
}

/// The TLS interface of a device: a typed wrapper of [`Contexts`]. No method blocks; slow operations end in a
/// [`DeviceEvent`](crate::DeviceEvent).
///
/// ```
/// use nic_sim::{NicConfig, nic};
/// use offload_api::{Direction, FlowKey, TlsKey, TlsSuite, TlsVersion, TypedContexts};
/// use offload_base::Seq;
///
/// let (_device, mut driver) = nic(NicConfig::default());
/// let flow = FlowKey::tcp("10.0.0.1:443".parse().unwrap(), "10.0.0.2:50000".parse().unwrap());
/// let key = TlsKey::new(TlsVersion::Tls13, TlsSuite::Aes128Gcm, &[7; 16], [9; 12]).unwrap();
/// let mut contexts = driver.tls().unwrap();
/// let sender = contexts.add(&flow, Direction::Transmit, Seq(1000), 0, &key).unwrap();
/// contexts.remove(sender);
/// ```
pub struct TlsContexts<'a> {
    contexts: &'a mut dyn Contexts,
    engine: EngineInfo,
}

impl<'a> TlsContexts<'a> {
    /// Name of the engine.
    pub const ENGINE: &'static str = "tls";

    /// Wraps the contexts of a device, if the device has the engine.
    pub fn from_contexts(contexts: &'a mut dyn Contexts) -> Option<TlsContexts<'a>> {
        let engine = contexts.engine(Self::ENGINE)?;
        Some(TlsContexts { contexts, engine })
    }

    /// Makes the device follow one direction of `flow`, from record `number` at `start`. A [`Direction::Transmit`]
    /// context may be used at once; a [`Direction::Receive`] context works after [`Ready`](crate::DeviceEvent::Ready).
    ///
    /// # Errors
    /// If the device refuses. The flow then stays in software.
    pub fn add(
        &mut self,
        flow: &FlowKey,
        direction: Direction,
        start: Seq,
        number: u64,
        key: &TlsKey,
    ) -> Result<Handle, ContextRefusal> {
        // An unsupported suite is refused here, before a command occupies the ring.
        if !self.engine.capabilities.get::<TlsCapabilities>().is_some_and(|knows| knows.include(key)) {
            return Err(ContextRefusal::Unsupported);
        }
        // Transmit contexts need no steering key, because descriptors name the context.
        let keys = match direction {
            Direction::Transmit => Vec::new(),
            Direction::Receive => vec![Key::Flow(*flow, Layer::FIRST)],
        };
        let spec = Box::new(TlsContext { start, number, key: key.clone() });
        let new = NewContext { engine: self.engine.number, direction, flow: Some(*flow), keys, spec };
        self.contexts.create(new).map_err(|(refused, _)| refused)
    }

    /// Returns the resync method of the engine's receive contexts.
    pub fn resync(&self) -> ResyncMode {
        self.engine.resync
    }

    /// Answers a resync request: `number` of the record with its header at `header`, or `None` if no record starts
    /// there. With [`ResyncMode::CoreHint`] software calls this without a request, to tell the position of the next
    /// record.
    pub fn answer_resync(&mut self, handle: Handle, header: Seq, number: Option<u64>) {
        self.contexts.answer(handle, header, number);
    }

    /// Removes the context after all work posted with it; [`Removed`](crate::DeviceEvent::Removed) follows.
    pub fn remove(&mut self, handle: Handle) {
        self.contexts.remove(handle);
    }
}

impl fmt::Debug for TlsContexts<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsContexts").field("engine", &self.engine).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_wiped_and_never_printed() {
        fn is_wiped_when_dropped<T: ZeroizeOnDrop>() {}
        is_wiped_when_dropped::<TlsKey>();
        let mut key = TlsKey::new(TlsVersion::Tls12, TlsSuite::Aes256Gcm, &[0xc7; 32], [0xb3; 12]).unwrap();
        for text in [format!("{key:?}"), format!("{key:#?}")] {
            assert_eq!(text, "TlsKey(Tls12, Aes256Gcm, redacted)");
        }
        key.zeroize();
        assert_eq!((key.key(), key.iv()), (&[0; 32][..], &[0; 12]));
        assert_eq!(
            (key.version(), key.suite()),
            (TlsVersion::Tls12, TlsSuite::Aes256Gcm),
            "public fields are not wiped"
        );
    }
}
