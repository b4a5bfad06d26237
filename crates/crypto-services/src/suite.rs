//! Ciphers by name: their graphs and their bytes.

use crate::primitives::{AesBlocks, CipherBlock, Ghash, chacha, counters, poly1305, tags_equal, xor};
use crate::{Graph, GraphStep, Service};
use bytes::{Bytes, BytesMut};
use cellular_crypto::{Algorithm, Iv, Key, TagLen};
use core::fmt;
use offload_transforms::{HmacHash, MacOrder, Parameters, SecretBytes, Session, Transform, TransformDirection};

/// A cipher made of services.
///
/// ```
/// use crypto_services::{Suite, TransformDirection};
///
/// let suite = Suite::from_name("aes-128-gcm").expect("there is one of that name");
/// assert!(suite.serves().contains(&"TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256"));
/// assert_eq!(
///     suite.graph(TransformDirection::Apply).to_string(),
///     "key-expansion:once,blocks=1 > counter:extra=1 > aes-128:extra=1 > ghash:extra=2"
/// );
/// assert_eq!(Suite::ALL.len(), 20);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Suite {
    /// AES-128-GCM; the tag follows the ciphertext.
    Aes128Gcm,
    /// AES-256-GCM.
    Aes256Gcm,
    /// ChaCha20-Poly1305.
    ChaCha20Poly1305,
    /// AES-128-CBC and HMAC-SHA1 in the order of TLS 1.2, MAC-then-encrypt.
    Aes128CbcSha,
    /// AES-256-CBC and HMAC-SHA1 in the order of TLS 1.2, MAC-then-encrypt.
    Aes256CbcSha,
    /// AES-128-CBC and HMAC-SHA1, encrypt-then-MAC (RFC 7366).
    Aes128CbcShaEtm,
    /// AES-256-CBC and HMAC-SHA1, encrypt-then-MAC.
    Aes256CbcShaEtm,
    /// AES-128-GCM with QUIC's header mask.
    QuicAes128Gcm,
    /// A 5G cipher by number, 1 to 6.
    Nea(u8),
    /// A 5G integrity algorithm by number, 1 to 6. A MAC of four bytes follows the data.
    Nia(u8),
}

impl Suite {
    /// All suites.
    pub const ALL: [Suite; 20] = [
        Suite::Aes128Gcm,
        Suite::Aes256Gcm,
        Suite::ChaCha20Poly1305,
        Suite::Aes128CbcSha,
        Suite::Aes256CbcSha,
        Suite::Aes128CbcShaEtm,
        Suite::Aes256CbcShaEtm,
        Suite::QuicAes128Gcm,
        Suite::Nea(1),
        Suite::Nea(2),
        Suite::Nea(3),
        Suite::Nea(4),
        Suite::Nea(5),
        Suite::Nea(6),
        Suite::Nia(1),
        Suite::Nia(2),
        Suite::Nia(3),
        Suite::Nia(4),
        Suite::Nia(5),
        Suite::Nia(6),
    ];

    /// Returns the suite's name.
    pub fn name(self) -> &'static str {
        match self {
            Suite::Aes128Gcm => "aes-128-gcm",
            Suite::Aes256Gcm => "aes-256-gcm",
            Suite::ChaCha20Poly1305 => "chacha20-poly1305",
            Suite::Aes128CbcSha => "aes-128-cbc-sha",
            Suite::Aes256CbcSha => "aes-256-cbc-sha",
            Suite::Aes128CbcShaEtm => "aes-128-cbc-sha-etm",
            Suite::Aes256CbcShaEtm => "aes-256-cbc-sha-etm",
            Suite::QuicAes128Gcm => "quic-aes-128-gcm",
            Suite::Nea(number) => NEA[usize::from(number.clamp(1, 6)) - 1],
            Suite::Nia(number) => NIA[usize::from(number.clamp(1, 6)) - 1],
        }
    }

    /// Returns the suite with this name.
    pub fn from_name(name: &str) -> Option<Suite> {
        Suite::ALL.into_iter().find(|suite| suite.name() == name)
    }

    /// Returns the protocol names with this suite as data path: the ones of the poster, and ESP.
    pub fn serves(self) -> &'static [&'static str] {
        match self {
            Suite::Aes128Gcm => &[
                "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256",
                "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256",
                "TLS_RSA_WITH_AES_128_GCM_SHA256",
                "ESP with rfc4106(gcm(aes)) and 128 bits",
            ],
            Suite::Aes256Gcm => &["TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384", "ESP with rfc4106(gcm(aes)) and 256 bits"],
            Suite::ChaCha20Poly1305 => &["TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256"],
            Suite::Aes128CbcSha | Suite::Aes128CbcShaEtm => &["TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA"],
            Suite::Aes256CbcSha | Suite::Aes256CbcShaEtm => &["TLS_RSA_WITH_AES_256_CBC_SHA"],
            Suite::QuicAes128Gcm | Suite::Nea(_) | Suite::Nia(_) => &[],
        }
    }

    /// The services that a packet passes, on its way out ([`TransformDirection::Apply`]) or in.
    pub fn graph(self, way: TransformDirection) -> Graph {
        let step = GraphStep::for_service;
        let blocks = |service, extra| GraphStep { follows_length: false, extra, ..step(service) };
        let more = |service, extra| GraphStep { extra, ..step(service) };
        let once = GraphStep { once: true, ..blocks(Service::KeyExpansion, 1) };
        let sealing = way == TransformDirection::Apply;
        let serial = |step: GraphStep| GraphStep { serial: true, ..step };
        let mut steps = match self {
            // One AES block masks the tag. GHASH has one block of additional data and one of lengths.
            Suite::Aes128Gcm => gcm(Service::Aes128, 1),
            Suite::Aes256Gcm => gcm(Service::Aes256, 1),
            // One more AES block for the header mask.
            Suite::QuicAes128Gcm => {
                let mut steps = gcm(Service::Aes128, 2);
                steps.push(blocks(Service::HeaderMask, 1));
                steps
            }
            // Four blocks of 16 bytes make the Poly1305 key.
            Suite::ChaCha20Poly1305 => vec![more(Service::ChaCha, 4), more(Service::Poly1305, 2)],
            // 13 bytes of header, 20 of the MAC and 1 to 16 of padding. HMAC hashes two padded keys and the inner hash.
            Suite::Aes128CbcSha | Suite::Aes256CbcSha | Suite::Aes128CbcShaEtm | Suite::Aes256CbcShaEtm => {
                let is_256 = matches!(self, Suite::Aes256CbcSha | Suite::Aes256CbcShaEtm);
                let aes = if is_256 { Service::Aes256 } else { Service::Aes128 };
                // Blocks depend on each other only when encrypting.
                let cipher = [more(Service::Cbc, 2), more(aes, 2)];
                let cipher = if sealing { cipher.map(serial) } else { cipher };
                let mac = [serial(more(Service::Sha1, 13)), blocks(Service::Hmac, 4)];
                let encrypts_first = matches!(self, Suite::Aes128CbcShaEtm | Suite::Aes256CbcShaEtm);
                // Opening reverses the order of sealing.
                let mac_first = encrypts_first != sealing;
                let (first, then) = if mac_first { (mac, cipher) } else { (cipher, mac) };
                [once].into_iter().chain(first).chain(then).collect()
            }
            Suite::Nea(1) => vec![more(Service::Snow3g, 1)],
            Suite::Nea(2) => vec![once, step(Service::Counter), step(Service::Aes128)],
            Suite::Nea(3) => vec![more(Service::Zuc, 1)],
            Suite::Nea(4) => vec![more(Service::Snow5g, 1)],
            Suite::Nea(5) => vec![once, step(Service::Counter), step(Service::Aes256)],
            Suite::Nea(_) => vec![more(Service::Zuc, 1)],
            // Five words of keystream, then the polynomial.
            Suite::Nia(1) => vec![blocks(Service::Snow3g, 3), serial(more(Service::KeystreamMac, 1))],
            Suite::Nia(2) => {
                vec![once, serial(more(Service::Cmac, 1)), serial(more(Service::Aes128, 1))]
            }
            Suite::Nia(3) => vec![more(Service::Zuc, 2), more(Service::KeystreamMac, 1)],
            Suite::Nia(4) => vec![blocks(Service::Snow5g, 3), more(Service::Ghash, 2)],
            Suite::Nia(5) => {
                vec![once, blocks(Service::Counter, 3), blocks(Service::Aes256, 3), more(Service::Ghash, 2)]
            }
            Suite::Nia(_) => vec![blocks(Service::Zuc, 4), more(Service::Ghash, 2)],
        };
        if !sealing && !matches!(self, Suite::Nea(_)) {
            steps.push(blocks(Service::Compare, 1));
        }
        // No suite names a service twice; a test checks all suites.
        Graph::from_suite_steps(steps)
    }

    /// Returns the key lengths in bytes: cipher, MAC, header.
    pub fn key_lengths(self) -> [usize; 3] {
        match self {
            Suite::Aes128Gcm => [16, 0, 0],
            Suite::Aes256Gcm | Suite::ChaCha20Poly1305 => [32, 0, 0],
            Suite::Aes128CbcSha | Suite::Aes128CbcShaEtm => [16, 20, 0],
            Suite::Aes256CbcSha | Suite::Aes256CbcShaEtm => [32, 20, 0],
            Suite::QuicAes128Gcm => [16, 0, 16],
            Suite::Nea(number) | Suite::Nia(number) => [if number <= 3 { 16 } else { 32 }, 0, 0],
        }
    }
}

fn gcm(aes: Service, aes_blocks: u32) -> Vec<GraphStep> {
    let more = |service, extra| GraphStep { extra, ..GraphStep::for_service(service) };
    let expansion = GraphStep { once: true, follows_length: false, ..more(Service::KeyExpansion, 1) };
    vec![expansion, more(Service::Counter, 1), more(aes, aes_blocks), more(Service::Ghash, 2)]
}

/// The keys of a suite, as a handshake provides them.
///
/// See [`SuiteCipher`] for an example.
#[derive(Clone, Debug)]
pub struct SuiteKeys {
    /// Key of the cipher.
    pub cipher: SecretBytes,
    /// HMAC key; empty for suites without HMAC.
    pub mac: SecretBytes,
    /// Key of the header mask; empty for suites without one.
    pub header: SecretBytes,
}

impl SuiteKeys {
    /// Creates a cipher key without other keys.
    pub fn from_cipher_key(key: Vec<u8>) -> SuiteKeys {
        SuiteKeys {
            cipher: SecretBytes::new(key),
            mac: SecretBytes::new(Vec::new()),
            header: SecretBytes::new(Vec::new()),
        }
    }
}

/// A key has a wrong length for its suite.
///
/// ```
/// use crypto_services::{SuiteCipher, SuiteKeys, Suite};
///
/// let wrong = SuiteCipher::new(Suite::Aes128Gcm, &SuiteKeys::from_cipher_key(vec![0; 15])).unwrap_err();
/// assert_eq!(wrong.to_string(), "aes-128-gcm takes keys of 16 + 0 + 0 bytes (cipher, MAC, header), not of 15 + 0 + 0");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{} takes keys of {} bytes (cipher, MAC, header), not of {}",
    suite.name(), KeyLengths(suite.key_lengths()), KeyLengths(*found)
)]
pub struct KeysError {
    suite: Suite,
    found: [usize; 3],
}

struct KeyLengths([usize; 3]);

impl fmt::Display for KeyLengths {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c] = self.0;
        write!(f, "{a} + {b} + {c}")
    }
}

/// A packet is not authentic: its tag is wrong, or its length is impossible for the suite.
///
/// See [`SuiteCipher`] for an example.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the packet does not match its tag")]
pub struct NotAuthentic;

/// A suite with the keys of a flow.
///
/// ```
/// use crypto_services::{SuiteCipher, SuiteKeys, NotAuthentic, Suite};
///
/// let cipher = SuiteCipher::new(Suite::Aes128Gcm, &SuiteKeys::from_cipher_key(vec![7; 16]))?;
/// let mut packet = b"attack at dawn".to_vec();
/// cipher.seal(&[1; 16], b"header", &mut packet);
/// assert_eq!(packet.len(), 14 + 16);
/// assert_eq!(cipher.open(&[1; 16], b"another", &mut packet.clone()), Err(NotAuthentic));
/// assert_eq!(cipher.open(&[1; 16], b"header", &mut packet), Ok(()));
/// assert_eq!(packet, b"attack at dawn");
/// # Ok::<(), crypto_services::KeysError>(())
/// ```
pub struct SuiteCipher {
    suite: Suite,
    inner: CipherState,
}

enum CipherState {
    Gcm {
        aes: AesBlocks,
        hash: Ghash,
        header: Option<AesBlocks>,
    },
    ChaCha(SecretBytes),
    /// Opened in constant time for any length of the padding. The back-end of the lookaside engine does both in one.
    Cbc(Session),
    Ctr(AesBlocks),
    Cellular(Box<Key>),
}

impl SuiteCipher {
    /// Creates a cipher with keys of the suite's lengths ([`Suite::key_lengths`]).
    ///
    /// # Errors
    /// [`KeysError`] if a key has another length.
    pub fn new(suite: Suite, keys: &SuiteKeys) -> Result<SuiteCipher, KeysError> {
        let found = [&keys.cipher, &keys.mac, &keys.header].map(|key| key.bytes().len());
        let wrong = KeysError { suite, found };
        // Superfluous keys are refused as well, because they indicate a wrong suite.
        if found != suite.key_lengths() {
            return Err(wrong);
        }
        let key = keys.cipher.bytes();
        let aes = |key: &[u8]| AesBlocks::new(key).ok_or(wrong);
        let cellular = |algorithm: Option<Algorithm>| {
            let key = algorithm.and_then(|algorithm| Key::new(algorithm, key).ok()).ok_or(wrong)?;
            Ok(CipherState::Cellular(Box::new(key)))
        };
        let inner = match suite {
            Suite::Aes128Gcm | Suite::Aes256Gcm | Suite::QuicAes128Gcm => {
                let cipher = aes(key)?;
                // GHASH's key is the encryption of a zero block.
                let mut hash_key = [[0; 16]];
                cipher.encrypt(&mut hash_key);
                let header = match found[2] {
                    0 => None,
                    _ => Some(aes(keys.header.bytes())?),
                };
                CipherState::Gcm { aes: cipher, hash: Ghash::new(&hash_key[0]), header }
            }
            Suite::ChaCha20Poly1305 => CipherState::ChaCha(keys.cipher.clone()),
            Suite::Aes128CbcSha | Suite::Aes256CbcSha | Suite::Aes128CbcShaEtm | Suite::Aes256CbcShaEtm => {
                let order = match suite {
                    Suite::Aes128CbcShaEtm | Suite::Aes256CbcShaEtm => MacOrder::EncryptThenMac,
                    _ => MacOrder::MacThenEncrypt,
                };
                let (cipher_key, mac_key) = (keys.cipher.clone(), keys.mac.clone());
                let transform = Transform::CbcHmac { order, hash: HmacHash::Sha1, cipher_key, mac_key };
                CipherState::Cbc(Session::new(&transform).map_err(|_| wrong)?)
            }
            Suite::Nea(2) => CipherState::Ctr(aes(key)?),
            Suite::Nea(number) | Suite::Nia(number) => cellular(Algorithm::from_number(number))?,
        };
        Ok(SuiteCipher { suite, inner })
    }

    /// Returns the suite.
    pub fn suite(&self) -> Suite {
        self.suite
    }

    /// Seals a packet in place and appends its tag. The nonce is the first 12 bytes of the IV for suites with a nonce
    /// (GCM, ChaCha20), and all 16 for suites with an IV. A packet that the suite cannot seal becomes empty, so that no
    /// plaintext is sent: for 5G, packets of 512 MiB and more; for TLS CBC with MAC-then-encrypt, packets of more than
    /// 18,156 bytes, or additional data of other than 11 bytes (the header without its length).
    pub fn seal(&self, iv: &CipherBlock, aad: &[u8], packet: &mut Vec<u8>) {
        match &self.inner {
            CipherState::Gcm { aes, hash, .. } => {
                let mask = gcm_keystream(aes, iv, packet);
                packet.extend(gcm_tag(hash, aad, packet, mask));
            }
            CipherState::ChaCha(key) => {
                let tag = chacha_pass(key, iv, aad, packet, TransformDirection::Apply);
                packet.extend(tag);
            }
            CipherState::Cbc(session) => {
                // A refused packet is empty.
                let _ = by_session(session, TransformDirection::Apply, iv, aad, packet);
            }
            // The low half counts blocks from zero, regardless of the IV (TS 33.401 B.1.3).
            CipherState::Ctr(aes) => lay_counters(aes, u128::from_be_bytes(*iv) >> 64 << 64, packet),
            CipherState::Cellular(key) => {
                // Only packets beyond the length limit of the algorithm fail here.
                let sealed = match self.suite {
                    Suite::Nia(_) => cellular_mac(key, iv, packet).map(|mac| packet.extend(mac)),
                    _ => key.cipher(&Iv::from_bytes(*iv), packet).ok(),
                };
                if sealed.is_none() {
                    packet.clear();
                }
            }
        }
    }

    /// Opens a packet in place and removes its tag. A packet that is not authentic becomes empty.
    ///
    /// # Errors
    /// [`NotAuthentic`].
    pub fn open(&self, iv: &CipherBlock, aad: &[u8], packet: &mut Vec<u8>) -> Result<(), NotAuthentic> {
        let opened = self.try_open(iv, aad, packet);
        if opened.is_err() {
            packet.clear();
        }
        opened
    }

    fn try_open(&self, iv: &CipherBlock, aad: &[u8], packet: &mut Vec<u8>) -> Result<(), NotAuthentic> {
        match &self.inner {
            CipherState::Gcm { aes, hash, .. } => {
                let tag = take_tag(packet, 16)?;
                let mut j0 = [gcm_j0(iv)];
                // The tag is checked before decryption, so that no unverified plaintext exists.
                aes.encrypt(&mut j0);
                check(&gcm_tag(hash, aad, packet, j0[0]), &tag)?;
                gcm_keystream(aes, iv, packet);
                Ok(())
            }
            CipherState::ChaCha(key) => {
                let tag = take_tag(packet, 16)?;
                check(&chacha_pass(key, iv, aad, packet, TransformDirection::Undo), &tag)
            }
            CipherState::Cbc(session) => by_session(session, TransformDirection::Undo, iv, aad, packet),
            CipherState::Ctr(_) => {
                self.seal(iv, aad, packet);
                Ok(())
            }
            CipherState::Cellular(key) => match self.suite {
                Suite::Nia(_) => {
                    let tag = take_tag(packet, MAC_BYTES)?;
                    check(&cellular_mac(key, iv, packet).ok_or(NotAuthentic)?, &tag)
                }
                _ => key.cipher(&Iv::from_bytes(*iv), packet).map_err(|_| NotAuthentic),
            },
        }
    }

    /// Returns the header mask from 16 bytes of the sealed packet. `None` if the suite masks no headers.
    ///
    /// ```
    /// use crypto_services::{SuiteCipher, SuiteKeys, Suite};
    /// use offload_transforms::SecretBytes;
    ///
    /// let keys = SuiteKeys { header: SecretBytes::new(vec![1; 16]), ..SuiteKeys::from_cipher_key(vec![7; 16]) };
    /// let cipher = SuiteCipher::new(Suite::QuicAes128Gcm, &keys)?;
    /// assert!(cipher.header_mask([0; 16]).is_some());
    /// # Ok::<(), crypto_services::KeysError>(())
    /// ```
    pub fn header_mask(&self, sample: CipherBlock) -> Option<[u8; 5]> {
        match &self.inner {
            CipherState::Gcm { header: Some(header), .. } => Some(crate::primitives::header_mask(header, sample)),
            _ => None,
        }
    }
}

impl fmt::Debug for SuiteCipher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SuiteCipher({})", self.suite.name())
    }
}

fn check(tag: &[u8], found: &[u8]) -> Result<(), NotAuthentic> {
    tags_equal(tag, found).then_some(()).ok_or(NotAuthentic)
}

fn take_tag(packet: &mut Vec<u8>, bytes: usize) -> Result<Vec<u8>, NotAuthentic> {
    packet.len().checked_sub(bytes).map(|at| packet.split_off(at)).ok_or(NotAuthentic)
}

fn gcm_j0(iv: &CipherBlock) -> CipherBlock {
    let mut j0 = *iv;
    j0[12..].copy_from_slice(&[0, 0, 0, 1]);
    j0
}

/// Applies counter mode from the second counter block on. Returns the encrypted first counter block, which masks the
/// tag.
fn gcm_keystream(aes: &AesBlocks, iv: &CipherBlock, data: &mut [u8]) -> CipherBlock {
    let mut blocks = counters(gcm_j0(iv), 1 + data.len().div_ceil(16));
    aes.encrypt(&mut blocks);
    let (mask, keystream) = blocks.split_first().map_or(([0; 16], &[][..]), |(mask, rest)| (*mask, rest));
    xor(data, keystream.as_flattened());
    mask
}

fn gcm_tag(hash: &Ghash, aad: &[u8], data: &[u8], mask: CipherBlock) -> CipherBlock {
    let mut hash = hash.clone();
    hash.update(aad);
    hash.update(data);
    let mut tag = hash.finish(aad.len(), data.len());
    xor(&mut tag, &mask);
    tag
}

/// Returns the tag of the ciphertext.
fn chacha_pass(
    key: &SecretBytes,
    iv: &CipherBlock,
    aad: &[u8],
    data: &mut [u8],
    way: TransformDirection,
) -> CipherBlock {
    let mut nonce = [0; 12];
    nonce.copy_from_slice(&iv[..12]);
    let Some(keystream) = chacha(key.bytes(), &nonce, 1 + data.len().div_ceil(64)) else { return [0; 16] };
    // RFC 8439 2.6: the first keystream block supplies the one-time key.
    let (first, rest) = keystream.split_at(64);
    let mut mac_key = zeroize::Zeroizing::new([0; 32]);
    mac_key.copy_from_slice(&first[..32]);
    // The tag covers the ciphertext, so the order depends on the direction.
    match way {
        TransformDirection::Apply => {
            xor(data, rest);
            poly1305(&mac_key, aad, data)
        }
        TransformDirection::Undo => {
            let tag = poly1305(&mac_key, aad, data);
            xor(data, rest);
            tag
        }
    }
}

/// Applies counter mode with a counter of 128 bits.
fn lay_counters(aes: &AesBlocks, first: u128, data: &mut [u8]) {
    let mut blocks: Vec<CipherBlock> =
        (0..data.len().div_ceil(16) as u128).map(|number| first.wrapping_add(number).to_be_bytes()).collect();
    aes.encrypt(&mut blocks);
    xor(data, blocks.as_flattened());
}

fn cellular_mac(key: &Key, iv: &CipherBlock, message: &[u8]) -> Option<Vec<u8>> {
    let mac = key.mac(&Iv::from_bytes(*iv), message, TagLen::new(MAC_BYTES)?).ok()?;
    Some(mac.as_bytes().to_vec())
}

fn by_session(
    session: &Session,
    way: TransformDirection,
    iv: &CipherBlock,
    aad: &[u8],
    packet: &mut Vec<u8>,
) -> Result<(), NotAuthentic> {
    let mut target = BytesMut::with_capacity(packet.len() + SESSION_ADDS);
    let source = [Bytes::from(core::mem::take(packet))];
    session.run(way, Parameters { iv: *iv, aad }, &source, &mut target).map_err(|_| NotAuthentic)?;
    *packet = target.into();
    Ok(())
}

/// Maximum length of MAC and padding.
const SESSION_ADDS: usize = 64;
/// Bytes of a MAC-I.
const MAC_BYTES: usize = 4;
const NEA: [&str; 6] = ["nea1", "nea2", "nea3", "nea4", "nea5", "nea6"];
const NIA: [&str; 6] = ["nia1", "nia2", "nia3", "nia4", "nia5", "nia6"];
