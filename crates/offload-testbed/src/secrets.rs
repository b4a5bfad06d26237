//! TLS randomness from a seed, so that a handshake repeats to the byte; and key logs.
//!
//! **For simulation only.** The seed reveals every key.

pub use crate::ccm_suite::tls13_aes_128_ccm;
use crate::runtime::lock;
use core::fmt::{self, Write};
use offload_base::{Rng, Seed};
use rustls::crypto::ring as ring_provider;
use rustls::crypto::{
    ActiveKeyExchange, CryptoProvider, GetRandomFailed, SecureRandom, SharedSecret, SupportedKxGroup,
};
use rustls::ffdhe_groups::FfdheGroup;
use rustls::{Error, KeyLog, NamedGroup, PeerMisbehaved};
use std::sync::Mutex;
use x25519_dalek::{PublicKey, StaticSecret};

/// Returns a rustls provider with all randomness from streams of `seed`: ring's TLS 1.3 suites,
/// `TLS13_AES_128_GCM_SHA256` first, and X25519 only. Ed25519 signatures are deterministic anyway.
///
/// Each end of a connection needs its own provider with its own seed. rustls requires `'static` sources of randomness,
/// so each call leaks a few hundred bytes.
///
/// Each of the two ends of a connection has its own, with its own seed. rustls wants the sources of randomness to live
/// as long as the process, so each call leaves a few hundred bytes behind for good.
///
/// ```
/// use offload_base::Seed;
/// use offload_testbed::secrets::seeded_provider;
///
/// let (mut once, mut again) = ([0; 32], [0; 32]);
/// seeded_provider(Seed(7)).secure_random.fill(&mut once).unwrap();
/// seeded_provider(Seed(7)).secure_random.fill(&mut again).unwrap();
/// assert_eq!(once, again);
/// ```
pub fn seeded_provider(seed: Seed) -> CryptoProvider {
    let mut provider = seeded(seed);
    provider.cipher_suites.retain(|suite| suite.tls13().is_some());
    provider
}

/// Returns the provider of [`seeded_provider`] with the suites of TLS 1.2, which repeat as well, after the suites of
/// 1.3.
pub(crate) fn seeded(seed: Seed) -> CryptoProvider {
    // Two streams: key shares must not depend on how many other random bytes a handshake draws.
    let random: &'static SeededRandom = Box::leak(Box::new(SeededRandom::new(seed.stream("tls random"))));
    let key_shares: &'static SeededRandom = Box::leak(Box::new(SeededRandom::new(seed.stream("tls key shares"))));
    let group: &'static SeededX25519 = Box::leak(Box::new(SeededX25519 { key_shares }));
    CryptoProvider { kx_groups: vec![group], secure_random: random, ..system_provider() }
}

/// Returns ring's provider with the system's randomness. The suites of TLS 1.3 come first, in the order of
/// [`seeded_provider`]; then the suites of TLS 1.2 for the testbed's certificate; then the suites for outside servers
/// with an RSA key.
///
/// ```
/// let provider = offload_testbed::secrets::system_provider();
/// assert_eq!(provider.cipher_suites[0].suite(), rustls::CipherSuite::TLS13_AES_128_GCM_SHA256);
/// ```
pub fn system_provider() -> CryptoProvider {
    use ring_provider::cipher_suite as suite;
    let cipher_suites = vec![
        suite::TLS13_AES_128_GCM_SHA256,
        suite::TLS13_AES_256_GCM_SHA384,
        suite::TLS13_CHACHA20_POLY1305_SHA256,
        suite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,
        suite::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384,
        suite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256,
        suite::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,
        suite::TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384,
        suite::TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256,
    ];
    CryptoProvider { cipher_suites, ..ring_provider::default_provider() }
}

/// Formats a line of a key log in the format of `SSLKEYLOGFILE`, newline included.
///
/// ```
/// use offload_testbed::secrets::key_log_line;
///
/// assert_eq!(key_log_line("SERVER_TRAFFIC_SECRET_0", &[1, 2], &[0xab]), "SERVER_TRAFFIC_SECRET_0 0102 ab\n");
/// ```
pub fn key_log_line(label: &str, client_random: &[u8], secret: &[u8]) -> String {
    let mut line = String::with_capacity(label.len() + 2 * (client_random.len() + secret.len()) + 3);
    line.push_str(label);
    for bytes in [client_random, secret] {
        line.push(' ');
        for byte in bytes {
            // Writing to a string cannot fail.
            let _ = write!(line, "{byte:02x}");
        }
    }
    line.push('\n');
    line
}

/// A key log that collects lines in memory, for secrets without a capture.
///
/// ```
/// use rustls::KeyLog;
/// use offload_testbed::secrets::KeyLines;
///
/// let lines = KeyLines::default();
/// lines.log("EXPORTER_SECRET", &[1], &[2]);
/// assert_eq!(lines.text(), "EXPORTER_SECRET 01 02\n");
/// ```
#[derive(Default)]
pub struct KeyLines {
    lines: Mutex<String>,
}

impl KeyLines {
    /// Returns all lines so far.
    pub fn text(&self) -> String {
        lock(&self.lines).clone()
    }
}

impl KeyLog for KeyLines {
    fn log(&self, label: &str, client_random: &[u8], secret: &[u8]) {
        lock(&self.lines).push_str(&key_log_line(label, client_random, secret));
    }
}

/// Omits the secrets.
impl fmt::Debug for KeyLines {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyLines").field("lines", &lock(&self.lines).lines().count()).finish()
    }
}

struct SeededRandom {
    rng: Mutex<Rng>,
}

impl SeededRandom {
    fn new(rng: Rng) -> SeededRandom {
        SeededRandom { rng: Mutex::new(rng) }
    }
}

impl SecureRandom for SeededRandom {
    fn fill(&self, bytes: &mut [u8]) -> Result<(), GetRandomFailed> {
        lock(&self.rng).fill(bytes);
        Ok(())
    }
}

/// Omits the generator's state, from which the keys follow.
impl fmt::Debug for SeededRandom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SeededRandom")
    }
}

/// X25519 (RFC 7748) with secrets from a seeded stream.
#[derive(Debug)]
struct SeededX25519 {
    key_shares: &'static SeededRandom,
}

impl SupportedKxGroup for SeededX25519 {
    fn start(&self) -> Result<Box<dyn ActiveKeyExchange>, Error> {
        let mut secret = [0; 32];
        lock(&self.key_shares.rng).fill(&mut secret);
        let secret = StaticSecret::from(secret);
        let public = PublicKey::from(&secret);
        Ok(Box::new(KeyShare { secret, public }))
    }

    fn ffdhe_group(&self) -> Option<FfdheGroup<'static>> {
        None
    }

    fn name(&self) -> NamedGroup {
        NamedGroup::X25519
    }
}

struct KeyShare {
    secret: StaticSecret,
    public: PublicKey,
}

impl ActiveKeyExchange for KeyShare {
    fn complete(self: Box<Self>, peer: &[u8]) -> Result<SharedSecret, Error> {
        let peer: [u8; 32] = peer.try_into().map_err(|_| PeerMisbehaved::InvalidKeyShare)?;
        let shared = self.secret.diffie_hellman(&PublicKey::from(peer));
        // RFC 8446 7.4.2: an all-zero result must be refused.
        if !shared.was_contributory() {
            return Err(PeerMisbehaved::InvalidKeyShare.into());
        }
        Ok(SharedSecret::from(&shared.as_bytes()[..]))
    }

    fn pub_key(&self) -> &[u8] {
        self.public.as_bytes()
    }

    fn ffdhe_group(&self) -> Option<FfdheGroup<'static>> {
        None
    }

    fn group(&self) -> NamedGroup {
        NamedGroup::X25519
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_exchange_agrees_with_ring() {
        let ours = seeded_provider(Seed(1)).kx_groups[0].start().expect("a key share");
        let theirs = ring_provider::kx_group::X25519.start().expect("a key share");
        let (our_public, their_public) = (ours.pub_key().to_vec(), theirs.pub_key().to_vec());
        let (our_secret, their_secret) = (ours.complete(&their_public), theirs.complete(&our_public));
        assert_eq!(our_secret.expect("agreed").secret_bytes(), their_secret.expect("agreed").secret_bytes());
    }

    #[test]
    fn bad_key_shares_are_refused() {
        for bad in [&[0u8; 32][..], &[9; 31], &[]] {
            let share = seeded_provider(Seed(1)).kx_groups[0].start().expect("a key share");
            let refused = share.complete(bad).err();
            assert_eq!(refused, Some(Error::PeerMisbehaved(PeerMisbehaved::InvalidKeyShare)));
        }
    }
}
