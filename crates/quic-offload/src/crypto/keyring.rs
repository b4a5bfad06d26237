//! The 1-RTT keys of a connection.
//!
//! The state machine believes that it seals and opens packets. Sealing, it leaves a packet plain, with what it takes to seal it in the
//! tag's room, and on a list; the endpoint has a device seal it, or software. Opening, a packet that a device opened comes with a
//! verdict, out of band, where nobody on the wire can forge it; it is compared with path, number and key as the state machine
//! recovered them itself.
//!
//! Invariant: what is on the list is plain in the datagrams that the state machine has just given, and nothing else is.

use super::number_of;
use super::session::Secret as Bytes;
use crate::config::AeadLimits;
use bytes::BytesMut;
use noq_proto::PathId;
use noq_proto::crypto::{self, CryptoError, KeyPair, Keys};
use offload_api::{QuicCipher, QuicHeaderKey, QuicKey};
use offload_quic::{HeaderKey, PacketKey, TrafficSecret, TAG, UnmaskedHeader};
use std::collections::VecDeque;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Looks at what is in a packet before the state machine does.
pub(crate) trait Sift: Send + core::fmt::Debug {
    /// Takes out of a payload what the state machine is not to have yet, and puts in what it is. False: the packet is to be dropped, as
    /// if it had been lost.
    fn sift(&mut self, payload: &mut BytesMut) -> bool;
}

/// What state machine and endpoint share.
#[derive(Debug)]
pub(crate) struct Keyring {
    /// Bytes of the connection IDs by which packets come.
    cid_bytes: usize,
    /// Packets are neither sealed nor opened by anybody, to compare with.
    unprotected: bool,
    limits: AeadLimits,
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
pub(crate) struct Inner {
    transmit: Option<Chain>,
    receive: Option<Chain>,
    /// What the device said about the packet that the state machine is about to look at.
    pub(crate) verdict: Option<DeviceOpened>,
    /// Packets that the state machine left plain, the oldest first.
    plain: Vec<Plain>,
    /// What software opened since this was last looked at.
    pub(crate) learned: Vec<Learned>,
    /// Packets that a device opened, and that software did.
    pub(crate) opened: [u64; 2],
    /// The highest generation under which anything was opened.
    pub(crate) opened_generation: u64,
    pub(crate) used_up: UsedUp,
    /// The peer acknowledges as fast as it is asked to.
    pub(crate) acknowledges_as_asked: bool,
    pub(crate) sift: Option<Arc<Mutex<dyn Sift>>>,
}

/// Whether a key has sealed as many packets as it may, in software or by a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum UsedUp {
    #[default]
    No,
    /// But for a few, which tell the peer.
    Nearly,
    Yes,
}

/// A device opened the packet, under these.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DeviceOpened {
    pub(crate) path: u32,
    pub(crate) number: u64,
    /// The lowest bits of the key's generation.
    pub(crate) generation: u8,
}

/// A packet that was left plain.
#[derive(Clone, Debug)]
pub(crate) struct Plain {
    pub(crate) key: Arc<Generation>,
    pub(crate) path: u32,
    pub(crate) number: u64,
    /// Bytes of the packet, and of the connection ID in it.
    pub(crate) bytes: usize,
    pub(crate) cid_bytes: usize,
}

/// An authentic packet says which path its connection ID is of.
#[derive(Clone, Debug)]
pub(crate) struct Learned {
    pub(crate) cid: smallvec::SmallVec<[u8; 20]>,
    pub(crate) path: u32,
    pub(crate) number: u64,
}

/// The keys of one generation.
#[derive(Debug)]
pub(crate) struct Generation {
    pub(crate) number: u64,
    pub(crate) key: QuicKey,
    packet: PacketKey,
    /// The header key, which all generations share.
    header_key: Arc<HeaderKey>,
    /// Packets that were to be sealed, in software or by a device.
    sealed: AtomicU64,
}

/// Keys of one direction.
#[derive(Debug)]
struct Chain {
    header: QuicHeaderKey,
    /// The secret of the last generation that was made.
    secret: TrafficSecret,
    /// The latest, the oldest first: enough for those before the ones in use, those in use and the next.
    generations: VecDeque<Arc<Generation>>,
}

impl Keyring {
    pub(crate) fn new(cid_bytes: usize, unprotected: bool, limits: AeadLimits) -> Keyring {
        Keyring { cid_bytes, unprotected, limits, inner: Mutex::default() }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The first generation, from the secrets of client and server.
    pub(crate) fn begin(self: &Arc<Self>, cipher: QuicCipher, is_client: bool, secrets: &[Bytes; 2]) -> Option<Keys> {
        let [client, server] = secrets.each_ref().map(|secret| TrafficSecret::new(cipher, secret).ok());
        let (ours, theirs) = if is_client { (client?, server?) } else { (server?, client?) };
        let mut inner = self.lock();
        let (transmit, receive) = (Chain::new(ours), Chain::new(theirs));
        let local = Box::new(SealedElsewhere);
        let remote = Box::new(PerhapsOpened { keyring: self.clone(), key: receive.latest().header_key.clone() });
        let packet = self.pair(&transmit, &receive);
        (inner.transmit, inner.receive) = (Some(transmit), Some(receive));
        Some(Keys { header: KeyPair { local, remote }, packet })
    }

    /// The next generation.
    pub(crate) fn next(self: &Arc<Self>) -> Option<KeyPair<Box<dyn crypto::PacketKey>>> {
        let mut inner = self.lock();
        let Inner { transmit: Some(transmit), receive: Some(receive), .. } = &mut *inner else { return None };
        transmit.advance();
        receive.advance();
        Some(self.pair(transmit, receive))
    }

    fn pair(self: &Arc<Self>, transmit: &Chain, receive: &Chain) -> KeyPair<Box<dyn crypto::PacketKey>> {
        let key = |chain: &Chain| -> Box<dyn crypto::PacketKey> {
            Box::new(OneRttKey { keyring: self.clone(), generation: chain.latest().clone() })
        };
        KeyPair { local: key(transmit), remote: key(receive) }
    }
}

impl Inner {
    /// The header key of what is sent, or received, for a device, once there is one.
    pub(crate) fn header(&self, transmit: bool) -> Option<QuicHeaderKey> {
        Some(self.chain(transmit)?.header.clone())
    }

    /// The keys of a generation, if they are known still, or already.
    pub(crate) fn generation(&self, transmit: bool, number: u64) -> Option<Arc<Generation>> {
        self.chain(transmit)?.generations.iter().find(|generation| generation.number == number).cloned()
    }

    /// Takes the packets that the state machine left plain, and reserves room for as many again.
    pub(crate) fn take_plain(&mut self) -> Vec<Plain> {
        let room = Vec::with_capacity(self.plain.len());
        core::mem::replace(&mut self.plain, room)
    }

    fn chain(&self, transmit: bool) -> Option<&Chain> {
        if transmit { self.transmit.as_ref() } else { self.receive.as_ref() }
    }
}

impl Chain {
    fn new(secret: TrafficSecret) -> Chain {
        let (header, header_key) = (secret.header(), Arc::new(secret.header_key()));
        let first = Generation::of(&secret, header_key, 0);
        Chain { header, secret, generations: [Arc::new(first)].into() }
    }

    fn advance(&mut self) {
        self.secret = self.secret.next();
        let next = Generation::of(&self.secret, self.latest().header_key.clone(), self.latest().number + 1);
        self.generations.push_back(Arc::new(next));
        if self.generations.len() > KEPT {
            self.generations.pop_front();
        }
    }

    fn latest(&self) -> &Arc<Generation> {
        self.generations.back().expect("a chain begins with one")
    }
}

impl Generation {
    fn of(secret: &TrafficSecret, header_key: Arc<HeaderKey>, number: u64) -> Generation {
        Generation { number, key: secret.key(), packet: secret.packet_key(), header_key, sealed: AtomicU64::new(0) }
    }
}

impl Plain {
    /// What is in the tag's room.
    pub(crate) fn room(&self) -> [u8; TAG] {
        let mut room = [0; TAG];
        room[..4].copy_from_slice(&(self.key.number as u32).to_be_bytes());
        room[4..8].copy_from_slice(&self.path.to_be_bytes());
        room[8..].copy_from_slice(&self.number.to_be_bytes());
        room
    }

    /// Seals the packet in software.
    pub(crate) fn seal(&self, packet: &mut [u8]) -> bool {
        let Plain { key, path, number, cid_bytes, .. } = self;
        offload_quic::seal(&key.packet, &key.header_key, packet, 1 + cid_bytes, *path, *number).is_ok()
    }
}

/// A key of one direction and generation, as the state machine sees it.
struct OneRttKey {
    keyring: Arc<Keyring>,
    generation: Arc<Generation>,
}

impl crypto::PacketKey for OneRttKey {
    fn encrypt(&self, path: PathId, number: u64, packet: &mut [u8], header_len: usize) {
        if self.keyring.unprotected {
            return;
        }
        let number_bytes = usize::from(packet[0] & 3) + 1;
        let plain = Plain {
            key: self.generation.clone(),
            path: number_of(path),
            number,
            bytes: packet.len(),
            cid_bytes: header_len - 1 - number_bytes,
        };
        let room_at = packet.len() - TAG;
        packet[room_at..].copy_from_slice(&plain.room());
        // The state machine goes on where it may not change keys yet.
        let (sealed, limit) = (self.generation.sealed.fetch_add(1, Relaxed), self.confidentiality_limit());
        let mut inner = self.keyring.lock();
        if sealed + LAST_WORDS >= limit {
            inner.used_up = inner.used_up.max(if sealed >= limit { UsedUp::Yes } else { UsedUp::Nearly });
        }
        inner.plain.push(plain);
    }

    fn decrypt(&self, path: PathId, number: u64, header: &[u8], payload: &mut BytesMut) -> Result<(), CryptoError> {
        let tag_at = payload.len().checked_sub(TAG).ok_or(CryptoError)?;
        let mut inner = self.keyring.lock();
        let path = number_of(path);
        if let Some(opened) = inner.verdict.take() {
            // Recovered by the state machine itself: they have to be those of the nonce that the device used.
            let generation = self.generation.number as u8;
            if opened != (DeviceOpened { path, number, generation }) {
                return Err(CryptoError);
            }
            inner.opened[0] += 1;
        } else if !self.keyring.unprotected {
            let (body, tag) = payload.split_at_mut(tag_at);
            let tag = (&*tag).try_into().map_err(|_| CryptoError)?;
            self.generation.packet.open(path, number, header, body, &tag).map_err(|_| CryptoError)?;
            let cid = header.get(1..1 + self.keyring.cid_bytes).ok_or(CryptoError)?.into();
            inner.learned.push(Learned { cid, path, number });
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

/// Header protection of what is sent: it is done with the sealing, for its sample is ciphertext.
struct SealedElsewhere;

impl crypto::HeaderKey for SealedElsewhere {
    fn decrypt(&self, _: usize, _: &mut [u8]) {}

    fn encrypt(&self, _: usize, _: &mut [u8]) {}

    fn sample_size(&self) -> usize {
        offload_quic::SAMPLE
    }
}

/// Header protection of what is received, unless the device took it off.
struct PerhapsOpened {
    keyring: Arc<Keyring>,
    key: Arc<HeaderKey>,
}

impl crypto::HeaderKey for PerhapsOpened {
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

/// The state machine has the next generation made when it begins with one: of those before it, packets may be under way.
const KEPT: usize = 4;
/// Packets of a key that are kept for the end of a connection: those of one turn, and those that say so.
const LAST_WORDS: u64 = 64;

#[cfg(test)]
mod tests {
    use super::*;

    const RIGHT: DeviceOpened = DeviceOpened { path: 3, number: 70_000, generation: 1 };

    /// Tests whether a plain packet of path 3 with number 70,000 under the key of generation 1 is taken as opened by a device.
    fn is_believed(verdict: DeviceOpened) -> bool {
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
    fn verdict_of_a_device_is_believed_if_all_of_it_is_right() {
        assert!(is_believed(RIGHT));
        for wrong in [
            DeviceOpened { path: 2, ..RIGHT },
            DeviceOpened { path: 0, ..RIGHT },
            DeviceOpened { number: RIGHT.number + 1, ..RIGHT },
            DeviceOpened { number: RIGHT.number & 0xffff, ..RIGHT },
            DeviceOpened { generation: 0, ..RIGHT },
            DeviceOpened { generation: 2, ..RIGHT },
            DeviceOpened { generation: 3, ..RIGHT },
        ] {
            assert!(!is_believed(wrong), "{wrong:?}");
        }
    }
}
