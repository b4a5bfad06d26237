//! The 1-RTT keys of a connection.
//!
//! The state machine calls these keys as if they sealed and opened packets. On sending, the key leaves the packet
//! plain, writes the sealing parameters into the space of the tag, and adds the packet to a list; the endpoint then has
//! a device or software seal the packet. On receiving, a packet opened by a device comes with a verdict, out of band,
//! so that no sender can forge it. The verdict is compared with the path, number and key that the state machine
//! recovered itself.
//!
//! Invariant: exactly the packets on the list are plain in the datagrams that the state machine has just returned.

use super::number_of;
use super::session::Secret as Bytes;
use crate::config::AeadLimits;
use bytes::BytesMut;
use noq_proto::PathId;
use noq_proto::crypto::{self, CryptoError, KeyPair, Keys};
use offload_api::{QuicCipher, QuicHeaderKey, QuicKey};
use offload_quic::{HeaderKey, PacketKey, TAG, TrafficSecret, UnmaskedHeader};
use std::collections::VecDeque;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A filter that changes a packet's payload before the state machine sees it.
pub(crate) trait PayloadFilter: Send + core::fmt::Debug {
    /// Removes frames that the state machine must not get yet, and adds frames that it can get now. Returns false if
    /// the packet must be dropped like a lost one.
    fn sift(&mut self, payload: &mut BytesMut) -> bool;
}

/// The keys and reports shared by the state machine and the endpoint.
#[derive(Debug)]
pub(crate) struct Keyring {
    /// Length of the local connection IDs.
    cid_bytes: usize,
    /// Whether packets are neither sealed nor opened at all, for comparison.
    unprotected: bool,
    limits: AeadLimits,
    inner: Mutex<KeyringState>,
}

#[derive(Debug, Default)]
pub(crate) struct KeyringState {
    transmit: Option<KeyChain>,
    receive: Option<KeyChain>,
    /// The device's verdict on the packet that the state machine processes next.
    pub(crate) verdict: Option<DeviceOpened>,
    /// Packets left plain by the state machine, the oldest first.
    plain: Vec<PlainPacket>,
    /// Packets opened by software since the last look.
    pub(crate) learned: Vec<LearnedCid>,
    /// Numbers of packets opened by a device and by software.
    pub(crate) opened: [u64; 2],
    /// The highest generation that has opened a packet.
    pub(crate) opened_generation: u64,
    pub(crate) used_up: KeyUsage,
    /// Whether the peer can be asked for shorter acknowledgment delays.
    pub(crate) acknowledges_as_asked: bool,
    pub(crate) sift: Option<Arc<Mutex<dyn PayloadFilter>>>,
}

/// Whether a key has sealed its maximum of packets, in software or by a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum KeyUsage {
    #[default]
    No,
    /// Only a few packets are left, to tell the peer.
    Nearly,
    Yes,
}

/// A device's verdict: it opened the packet with these parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DeviceOpened {
    pub(crate) path: u32,
    pub(crate) number: u64,
    /// The low bits of the key's generation.
    pub(crate) generation: u8,
}

/// A packet left plain.
#[derive(Clone, Debug)]
pub(crate) struct PlainPacket {
    pub(crate) key: Arc<KeyGeneration>,
    pub(crate) path: u32,
    pub(crate) number: u64,
    /// Length of the packet, and of its connection ID.
    pub(crate) bytes: usize,
    pub(crate) cid_bytes: usize,
}

/// The path of a connection ID, learned from an authentic packet.
#[derive(Clone, Debug)]
pub(crate) struct LearnedCid {
    pub(crate) cid: smallvec::SmallVec<[u8; 20]>,
    pub(crate) path: u32,
    pub(crate) number: u64,
}

/// The keys of one generation.
#[derive(Debug)]
pub(crate) struct KeyGeneration {
    pub(crate) number: u64,
    pub(crate) key: QuicKey,
    packet: PacketKey,
    /// The header key, shared by all generations.
    header_key: Arc<HeaderKey>,
    /// Packets sealed, or to be sealed, in software or by a device.
    sealed: AtomicU64,
}

/// The keys of one direction.
#[derive(Debug)]
struct KeyChain {
    header: QuicHeaderKey,
    /// The secret of the latest generation.
    secret: TrafficSecret,
    /// The latest generations, the oldest first: the previous, the current and the next generation are always present.
    generations: VecDeque<Arc<KeyGeneration>>,
}

impl Keyring {
    pub(crate) fn new(cid_bytes: usize, unprotected: bool, limits: AeadLimits) -> Keyring {
        Keyring { cid_bytes, unprotected, limits, inner: Mutex::default() }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, KeyringState> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Creates the first generation from the secrets of client and server.
    pub(crate) fn begin(self: &Arc<Self>, cipher: QuicCipher, is_client: bool, secrets: &[Bytes; 2]) -> Option<Keys> {
        let [client, server] = secrets.each_ref().map(|secret| TrafficSecret::new(cipher, secret).ok());
        let (ours, theirs) = if is_client { (client?, server?) } else { (server?, client?) };
        let mut inner = self.lock();
        let (transmit, receive) = (KeyChain::new(ours), KeyChain::new(theirs));
        // The header key for sending does nothing, because the device or `PlainPacket::seal` also protects the header.
        let local = Box::new(SealedHeaderKey);
        let remote = Box::new(OpenedHeaderKey { keyring: self.clone(), key: receive.latest().header_key.clone() });
        let packet = self.pair(&transmit, &receive);
        (inner.transmit, inner.receive) = (Some(transmit), Some(receive));
        Some(Keys { header: KeyPair { local, remote }, packet })
    }

    /// Creates the next generation.
    pub(crate) fn next(self: &Arc<Self>) -> Option<KeyPair<Box<dyn crypto::PacketKey>>> {
        let mut inner = self.lock();
        let KeyringState { transmit: Some(transmit), receive: Some(receive), .. } = &mut *inner else { return None };
        transmit.advance();
        receive.advance();
        Some(self.pair(transmit, receive))
    }

    fn pair(self: &Arc<Self>, transmit: &KeyChain, receive: &KeyChain) -> KeyPair<Box<dyn crypto::PacketKey>> {
        let key = |chain: &KeyChain| -> Box<dyn crypto::PacketKey> {
            Box::new(OneRttKey { keyring: self.clone(), generation: chain.latest().clone() })
        };
        KeyPair { local: key(transmit), remote: key(receive) }
    }
}

impl KeyringState {
    /// Returns the header key of a direction, for a device. `None` before the handshake.
    pub(crate) fn header(&self, transmit: bool) -> Option<QuicHeaderKey> {
        Some(self.chain(transmit)?.header.clone())
    }

    /// Returns the keys of a generation, if they exist.
    pub(crate) fn generation(&self, transmit: bool, number: u64) -> Option<Arc<KeyGeneration>> {
        self.chain(transmit)?.generations.iter().find(|generation| generation.number == number).cloned()
    }

    /// Takes the plain packets. The new list has room for as many, to avoid reallocation.
    pub(crate) fn take_plain(&mut self) -> Vec<PlainPacket> {
        let room = Vec::with_capacity(self.plain.len());
        core::mem::replace(&mut self.plain, room)
    }

    fn chain(&self, transmit: bool) -> Option<&KeyChain> {
        if transmit { self.transmit.as_ref() } else { self.receive.as_ref() }
    }
}

impl KeyChain {
    fn new(secret: TrafficSecret) -> KeyChain {
        let (header, header_key) = (secret.header(), Arc::new(secret.header_key()));
        let first = KeyGeneration::from_secret(&secret, header_key, 0);
        KeyChain { header, secret, generations: [Arc::new(first)].into() }
    }

    fn advance(&mut self) {
        self.secret = self.secret.next();
        let next = KeyGeneration::from_secret(&self.secret, self.latest().header_key.clone(), self.latest().number + 1);
        self.generations.push_back(Arc::new(next));
        if self.generations.len() > KEPT {
            self.generations.pop_front();
        }
    }

    fn latest(&self) -> &Arc<KeyGeneration> {
        self.generations.back().expect("a chain begins with one")
    }
}

impl KeyGeneration {
    fn from_secret(secret: &TrafficSecret, header_key: Arc<HeaderKey>, number: u64) -> KeyGeneration {
        KeyGeneration { number, key: secret.key(), packet: secret.packet_key(), header_key, sealed: AtomicU64::new(0) }
    }
}

impl PlainPacket {
    /// Returns the sealing parameters, as stored in the space of the tag.
    pub(crate) fn room(&self) -> [u8; TAG] {
        let mut room = [0; TAG];
        room[..4].copy_from_slice(&(self.key.number as u32).to_be_bytes());
        room[4..8].copy_from_slice(&self.path.to_be_bytes());
        room[8..].copy_from_slice(&self.number.to_be_bytes());
        room
    }

    /// Seals the packet in software.
    pub(crate) fn seal(&self, packet: &mut [u8]) -> bool {
        let PlainPacket { key, path, number, cid_bytes, .. } = self;
        offload_quic::seal(&key.packet, &key.header_key, packet, 1 + cid_bytes, *path, *number).is_ok()
    }
}

/// A packet key of one direction and generation, as the state machine sees it.
struct OneRttKey {
    keyring: Arc<Keyring>,
    generation: Arc<KeyGeneration>,
}

impl crypto::PacketKey for OneRttKey {
    fn encrypt(&self, path: PathId, number: u64, packet: &mut [u8], header_len: usize) {
        if self.keyring.unprotected {
            return;
        }
        // The two low bits of the first byte give the length of the packet number.
        let number_bytes = usize::from(packet[0] & 3) + 1;
        let plain = PlainPacket {
            key: self.generation.clone(),
            path: number_of(path),
            number,
            bytes: packet.len(),
            cid_bytes: header_len - 1 - number_bytes,
        };
        let room_at = packet.len() - TAG;
        packet[room_at..].copy_from_slice(&plain.room());
        // The state machine continues at the limit if it may not update keys yet. So the endpoint is told when the
        // limit is near.
        let (sealed, limit) = (self.generation.sealed.fetch_add(1, Relaxed), self.confidentiality_limit());
        let mut inner = self.keyring.lock();
        if sealed + LAST_WORDS >= limit {
            inner.used_up = inner.used_up.max(if sealed >= limit { KeyUsage::Yes } else { KeyUsage::Nearly });
        }
        inner.plain.push(plain);
    }

    fn decrypt(&self, path: PathId, number: u64, header: &[u8], payload: &mut BytesMut) -> Result<(), CryptoError> {
        let tag_at = payload.len().checked_sub(TAG).ok_or(CryptoError)?;
        let mut inner = self.keyring.lock();
        let path = number_of(path);
        if let Some(opened) = inner.verdict.take() {
            // The state machine recovered these values itself. They must equal the parameters of the device's nonce.
            let generation = self.generation.number as u8;
            if opened != (DeviceOpened { path, number, generation }) {
                return Err(CryptoError);
            }
            inner.opened[0] += 1;
        } else if !self.keyring.unprotected {
            // Software opens the packet, which also reveals the path of its connection ID.
            let (body, tag) = payload.split_at_mut(tag_at);
            let tag = (&*tag).try_into().map_err(|_| CryptoError)?;
            self.generation.packet.open(path, number, header, body, &tag).map_err(|_| CryptoError)?;
            let cid = header.get(1..1 + self.keyring.cid_bytes).ok_or(CryptoError)?.into();
            inner.learned.push(LearnedCid { cid, path, number });
            inner.opened[1] += 1;
        }
        inner.opened_generation = inner.opened_generation.max(self.generation.number);
        payload.truncate(tag_at);
        let Some(sift) = &inner.sift else { return Ok(()) };
        let is_kept = sift.lock().unwrap_or_else(PoisonError::into_inner).sift(payload);
        is_kept.then_some(()).ok_or(CryptoError)
    }

    fn tag_len(&self) -> usize {
        TAG
    }

    fn confidentiality_limit(&self) -> u64 {
        self.generation.key.cipher().confidentiality_limit().min(self.keyring.limits.sealed)
    }

    fn integrity_limit(&self) -> u64 {
        self.generation.key.cipher().integrity_limit().min(self.keyring.limits.forged)
    }
}

/// The header protection of sent packets, which does nothing: it is applied with sealing, because its sample is
/// ciphertext.
struct SealedHeaderKey;

impl crypto::HeaderKey for SealedHeaderKey {
    fn decrypt(&self, _: usize, _: &mut [u8]) {}

    fn encrypt(&self, _: usize, _: &mut [u8]) {}

    fn sample_size(&self) -> usize {
        offload_quic::SAMPLE
    }
}

/// The header protection of received packets, unless the device removed it.
struct OpenedHeaderKey {
    keyring: Arc<Keyring>,
    key: Arc<HeaderKey>,
}

impl crypto::HeaderKey for OpenedHeaderKey {
    fn decrypt(&self, number_at: usize, packet: &mut [u8]) {
        if self.keyring.unprotected || self.keyring.lock().verdict.is_some() {
            return;
        }
        if let Ok(header) = UnmaskedHeader::read(&self.key, packet, number_at) {
            header.write(packet);
        }
    }

    fn encrypt(&self, _: usize, _: &mut [u8]) {}

    fn sample_size(&self) -> usize {
        offload_quic::SAMPLE
    }
}

/// The state machine requests the next generation when it starts using one, and packets of the previous one may still
/// be under way.
const KEPT: usize = 4;
/// Packets per key that are reserved for the end of a connection: one turn's packets, and the close.
const LAST_WORDS: u64 = 64;

#[cfg(test)]
mod tests {
    use super::*;

    const RIGHT: DeviceOpened = DeviceOpened { path: 3, number: 70_000, generation: 1 };

    /// Tests whether a verdict on a plain packet of path 3 with number 70,000 under generation 1 is accepted.
    fn is_accepted(verdict: DeviceOpened) -> bool {
        let keyring = Arc::new(Keyring::new(8, false, AeadLimits::default()));
        let secrets = [1, 2].map(|byte| Bytes::from(vec![byte; 32]));
        keyring.begin(QuicCipher::Aes128Gcm, true, &secrets).unwrap();
        let keys = keyring.next().unwrap();
        keyring.lock().verdict = Some(verdict);
        let mut payload = BytesMut::from(&[7; 50][..]);
        let header = [&[0x45][..], &[9; 8], &[0; 4]].concat();
        let taken = keys.remote.decrypt(PathId::from(RIGHT.path), RIGHT.number, &header, &mut payload).is_ok();
        let mut inner = keyring.lock();
        assert_eq!(inner.verdict.take(), None, "a verdict is about one packet");
        assert_eq!((payload.len(), inner.opened), if taken { (50 - TAG, [1, 0]) } else { (50, [0, 0]) });
        assert!(inner.learned.is_empty(), "only what software opened tells a path");
        taken
    }

    #[test]
    fn device_verdict_is_accepted_only_if_all_fields_match() {
        assert!(is_accepted(RIGHT));
        for wrong in [
            DeviceOpened { path: 2, ..RIGHT },
            DeviceOpened { path: 0, ..RIGHT },
            DeviceOpened { number: RIGHT.number + 1, ..RIGHT },
            DeviceOpened { number: RIGHT.number & 0xffff, ..RIGHT },
            DeviceOpened { generation: 0, ..RIGHT },
            DeviceOpened { generation: 2, ..RIGHT },
            DeviceOpened { generation: 3, ..RIGHT },
        ] {
            assert!(!is_accepted(wrong), "{wrong:?}");
        }
    }
}
