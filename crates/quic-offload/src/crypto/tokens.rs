//! Secrets that an endpoint uses for itself: address validation tokens (RFC 9000 8.1) and stateless resets (10.3).

use noq_proto::TimeSource;
use noq_proto::crypto::{CryptoError, HandshakeTokenKey};
use offload_base::{Instant, RandomSource};
use ring::{aead, hkdf, hmac};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The key of tokens. Each token is sealed under a key derived from its nonce.
pub(crate) struct TokenKey(hkdf::Prk);

impl TokenKey {
    pub(crate) fn new(random: &RandomSource) -> TokenKey {
        TokenKey(hkdf::Prk::new_less_safe(hkdf::HKDF_SHA256, &secret(random, "tokens")))
    }

    fn key(&self, nonce: u128) -> Result<aead::LessSafeKey, CryptoError> {
        let nonce = nonce.to_be_bytes();
        let info = [&nonce[..]];
        let key = self.0.expand(&info, &aead::AES_256_GCM).map_err(|_| CryptoError)?;
        Ok(aead::LessSafeKey::new(key.into()))
    }
}

impl HandshakeTokenKey for TokenKey {
    fn seal(&self, nonce: u128, data: &mut Vec<u8>) -> Result<(), CryptoError> {
        let sealed = self.key(nonce)?.seal_in_place_append_tag(ONCE(), aead::Aad::empty(), data);
        sealed.map_err(|_| CryptoError)
    }

    fn open<'a>(&self, nonce: u128, data: &'a mut [u8]) -> Result<&'a [u8], CryptoError> {
        let opened = self.key(nonce)?.open_in_place(ONCE(), aead::Aad::empty(), data);
        opened.map(|plain| &*plain).map_err(|_| CryptoError)
    }
}

/// The key of stateless resets (RFC 9000 10.3.2). If a restarted server has the same key, the clients of its
/// predecessor learn with their next packet that their connections are gone.
///
/// Servers that run at the same time need different keys, even with the same certificate. Otherwise an attacker could
/// send a packet of one server's connection to another server and use the reset in the answer to end the connection.
///
/// ```
/// use quic_offload::{Config, ResetKey};
///
/// let (private_key, address) = ([7; 32], "192.0.2.1:443");
/// let config = Config::default().with(|c| c.reset_key = Some(ResetKey::derive(&private_key, address.as_bytes())));
/// # let _ = format!("{config:?}");
/// ```
#[derive(Clone)]
pub struct ResetKey(hmac::Key);

impl ResetKey {
    /// Derives the key by HKDF-SHA256 (RFC 5869) from a secret that outlives the server, such as its private key, and a
    /// value that distinguishes the server from others with the same secret, such as its address.
    pub fn derive(secret: &[u8], server: &[u8]) -> ResetKey {
        let salt = hkdf::Salt::new(hkdf::HKDF_SHA256, b"quic-offload stateless resets");
        let info = [server];
        let extracted = salt.extract(secret);
        ResetKey(extracted.expand(&info, hmac::HMAC_SHA256).expect("a key is shorter than 255 hashes").into())
    }

    pub(crate) fn random(random: &RandomSource) -> ResetKey {
        ResetKey(hmac::Key::new(hmac::HMAC_SHA256, &secret(random, "stateless resets")))
    }

    pub(crate) fn into_key(self) -> hmac::Key {
        self.0
    }
}

impl core::fmt::Debug for ResetKey {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("ResetKey(..)")
    }
}

/// The clock of token lifetimes: a fixed day in the past plus the endpoint's clock.
#[derive(Debug, Default)]
pub(crate) struct TokenClock(AtomicU64);

impl TokenClock {
    pub(crate) fn set(&self, now: Instant) {
        self.0.store((now - Instant::ZERO).as_nanos() as u64, Ordering::Relaxed);
    }
}

impl TimeSource for TokenClock {
    fn now(&self) -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(1 << 30) + Duration::from_nanos(self.0.load(Ordering::Relaxed))
    }
}

fn secret(random: &RandomSource, name: &str) -> [u8; 32] {
    let mut secret = [0; 32];
    random.stream(name).fill(&mut secret);
    secret
}

/// The nonce is constant, because each key is used once.
const ONCE: fn() -> aead::Nonce = || aead::Nonce::assume_unique_for_key([0; 12]);

#[cfg(test)]
mod tests {
    use super::*;
    use offload_base::Seed;

    #[test]
    fn token_opens_only_with_its_nonce_and_key() {
        let key = TokenKey::new(&RandomSource::from(Seed(1)));
        let mut token = b"10.0.0.1".to_vec();
        key.seal(5, &mut token).unwrap();
        assert_eq!(token.len(), 24);
        assert_eq!(key.open(5, &mut token.clone()).unwrap(), b"10.0.0.1");
        assert!(key.open(6, &mut token.clone()).is_err());
        assert!(TokenKey::new(&RandomSource::from(Seed(2))).open(5, &mut token).is_err());
    }

    #[test]
    fn reset_key_depends_on_secret_and_server() {
        let sign = |secret: &[u8], server: &[u8]| {
            let key = ResetKey::derive(secret, server).into_key();
            hmac::sign(&key, b"a connection ID").as_ref().to_vec()
        };
        assert_eq!(sign(&[1; 32], b"here:443"), sign(&[1; 32], b"here:443"));
        assert_ne!(sign(&[1; 32], b"here:443"), sign(&[2; 32], b"here:443"));
        assert_ne!(sign(&[1; 32], b"here:443"), sign(&[1; 32], b"there:443"));
    }
}
