//! A model of a NIC's TLS engine. Like hardware, the model decrypts a packet as a whole or not at all, and decrypts
//! bytes before the tag of their record is known.

use bytes::Bytes;
use offload_api::{
    Capabilities, ContextNews, ContextRefusal, Contexts, DeviceEvent, Direction, EngineInfo, FlowKey, Handle,
    NewContext, Piece, ResyncMode, RxMeta, Spec, TlsCapabilities, TlsContext, TlsContexts, TlsKey, TlsSuite,
    TlsVersion, Verdict, engines,
};
use offload_base::{Rng, Seq};
use resumable_aead::{Algorithm, Key, State};
use std::collections::VecDeque;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};

pub(crate) const FLOW: FlowKey = FlowKey::tcp(
    SocketAddr::V4(SocketAddrV4::new(Ipv4Addr::LOCALHOST, 1)),
    SocketAddr::V4(SocketAddrV4::new(Ipv4Addr::LOCALHOST, 2)),
);

pub(crate) struct MockTlsDevice {
    contexts: Vec<(Handle, DeviceContext)>,
    next_index: u32,
    events: VecDeque<DeviceEvent>,
    /// Share of packets that the device leaves untouched.
    pub(crate) miss: f64,
    /// Refusal for every request, if set.
    pub(crate) refuse: Option<ContextRefusal>,
    /// Suppresses the events that report installed contexts.
    pub(crate) silent: bool,
    pub(crate) removed: Vec<Handle>,
    /// Resynchronization mode that the device announces.
    pub(crate) resync: ResyncMode,
    /// Answers received about record boundaries.
    pub(crate) told: Vec<(Handle, Seq, Option<u64>)>,
    rng: Rng,
}

enum DeviceContext {
    Transmit { key: TlsKey, start: Seq, number: u64 },
    Receive(Box<Tracker>),
}

/// Position of the receive engine in its stream of records.
#[derive(Clone)]
struct Tracker {
    key: TlsKey,
    expected: Seq,
    number: u64,
    head: Vec<u8>,
    state: Option<State>,
    tag: Vec<u8>,
}

impl MockTlsDevice {
    pub(crate) fn new(rng: Rng, miss: f64) -> MockTlsDevice {
        MockTlsDevice {
            contexts: Vec::new(),
            next_index: 0,
            events: VecDeque::new(),
            miss,
            refuse: None,
            silent: false,
            removed: Vec::new(),
            resync: ResyncMode::DriverRequest,
            told: Vec::new(),
            rng,
        }
    }

    pub(crate) fn reset(&mut self) {
        self.contexts.clear();
        self.events.push_back(DeviceEvent::Reset);
    }

    pub(crate) fn push_event(&mut self, event: DeviceEvent) {
        self.events.push_back(event);
    }

    pub(crate) fn poll_event(&mut self) -> Option<DeviceEvent> {
        self.events.pop_front()
    }

    pub(crate) fn has_events(&self) -> bool {
        !self.events.is_empty()
    }

    /// Removes the oldest context.
    pub(crate) fn evict(&mut self) {
        if !self.contexts.is_empty() {
            let (handle, _) = self.contexts.remove(0);
            self.events.push_back(DeviceEvent::Removed { flow: FLOW, handle });
        }
    }

    pub(crate) fn contexts(&self) -> usize {
        self.contexts.len()
    }

    /// Seals a record, if the context is known.
    pub(crate) fn transmit(&mut self, handle: Handle, at: Seq, number: u64, plain: &[Bytes]) -> Option<Bytes> {
        let (_, DeviceContext::Transmit { key, start, number: first }) =
            self.contexts.iter().find(|(h, _)| *h == handle)?
        else {
            panic!("a record sent with a receive context");
        };
        assert!(at.at_or_after(*start) && number >= *first, "a record from before the context");
        assert!(at != *start || number == *first, "the first record has another number");
        let mut record = plain.concat();
        let length = record.len();
        assert_eq!(record[1..5], [3, 3, ((length - 5) >> 8) as u8, (length - 5) as u8]);
        assert!(record[0] == 23 || is_12(key) && matches!(record[0], 21 | 22));
        let (prefix, rest) = record.split_at_mut(prefix_len(key));
        let (body, tag) = rest.split_at_mut(rest.len() - 16);
        // The device fills in the tag, so the host must leave it empty.
        assert_eq!(tag, [0; 16]);
        let (nonce, aad) = protection(key, number, prefix);
        tag.copy_from_slice(&aead(key).seal_in_place(&nonce, &aad, body).unwrap());
        Some(record.into())
    }

    /// Decrypts a segment in place, if all tags in it are correct.
    pub(crate) fn receive(&mut self, seq: Seq, payload: &mut [u8]) -> RxMeta {
        let mut meta = RxMeta::default();
        let missed = self.rng.chance(self.miss);
        let end = seq + payload.len() as u32;
        for (handle, context) in &mut self.contexts {
            let DeviceContext::Receive(tracker) = context else { continue };
            if end.at_or_before(tracker.expected) {
                continue; // the segment precedes the context
            }
            assert!(seq.at_or_before(tracker.expected), "the model's wire has no gaps");
            let skip = tracker.expected.distance_from(seq) as usize;
            // Decrypts a copy: a packet with a wrong tag must pass up as received.
            let mut copy = payload[skip..].to_vec();
            let right = tracker.run(&mut copy);
            if skip > 0 || missed {
                continue;
            }
            if right {
                payload.copy_from_slice(&copy);
                meta = meta.marked(*handle, Verdict::Done);
            } else {
                meta.marks.set(*handle, Verdict::Failed);
            }
        }
        meta
    }
}

impl Tracker {
    fn run(&mut self, bytes: &mut [u8]) -> bool {
        self.expected += bytes.len() as u32;
        let key = aead(&self.key);
        let mut right = true;
        let mut at = 0;
        while at < bytes.len() {
            let Some(state) = &mut self.state else {
                self.head.push(bytes[at]);
                at += 1;
                if self.head.len() == prefix_len(&self.key) {
                    let (nonce, aad) = protection(&self.key, self.number, &self.head);
                    self.state = Some(State::new(&key, &nonce, &aad));
                }
                continue;
            };
            // The length is trusted before the tag is verified, as in hardware.
            let length = usize::from(u16::from_be_bytes([self.head[3], self.head[4]]));
            let body = (length + 5).saturating_sub(prefix_len(&self.key) + 16);
            // The tag of a record may be spread over several packets.
            let left = body - state.position() as usize;
            let take = left.min(bytes.len() - at);
            state.decrypt(&key, &mut bytes[at..at + take]).unwrap();
            at += take;
            let tag = (16 - self.tag.len()).min(bytes.len() - at);
            self.tag.extend_from_slice(&bytes[at..at + tag]);
            at += tag;
            if self.tag.len() == 16 {
                right &= state.verify(&key, &self.tag).is_ok();
                self.number += 1;
                self.state = None;
                self.head.clear();
                self.tag.clear();
            }
        }
        right
    }
}

impl Contexts for MockTlsDevice {
    fn engine(&mut self, name: &str) -> Option<EngineInfo> {
        (name == TlsContexts::ENGINE).then(|| EngineInfo {
            counts_units: true,
            resync: self.resync,
            capabilities: Capabilities::new(TlsCapabilities {
                versions: &[TlsVersion::Tls12, TlsVersion::Tls13],
                suites: &[TlsSuite::Aes128Gcm, TlsSuite::Aes256Gcm, TlsSuite::ChaCha20Poly1305],
            }),
            ..EngineInfo::new(engines::TLS, TlsContexts::ENGINE, Handle::PLACES)
        })
    }

    fn create(&mut self, new: NewContext) -> Result<Handle, (ContextRefusal, Spec)> {
        let NewContext { direction, flow, spec, .. } = new;
        assert_eq!(flow, Some(FLOW));
        if let Some(refused) = self.refuse {
            return Err((refused, spec));
        }
        let TlsContext { start, number, key } = *spec.downcast().map_err(|spec| (ContextRefusal::Unsupported, spec))?;
        let handle = Handle { index: self.next_index, generation: 1 };
        self.next_index += 1;
        let context = match direction {
            Direction::Transmit => DeviceContext::Transmit { key, start, number },
            Direction::Receive => {
                if !self.silent {
                    self.events.push_back(DeviceEvent::Ready { flow: FLOW, handle });
                }
                let tracker = Tracker { key, expected: start, number, head: vec![], state: None, tag: vec![] };
                DeviceContext::Receive(Box::new(tracker))
            }
        };
        self.contexts.push((handle, context));
        Ok(handle)
    }

    fn place(&mut self, _: Handle, _: u64, _: Vec<Piece>, _: Option<Spec>) {
        unreachable!("TLS places nothing")
    }

    fn answer(&mut self, handle: Handle, header: Seq, number: Option<u64>) {
        self.told.push((handle, header, number));
    }

    fn remove(&mut self, handle: Handle) {
        self.contexts.retain(|(known, _)| *known != handle);
        self.removed.push(handle);
        self.events.push_back(DeviceEvent::Removed { flow: FLOW, handle });
    }

    fn poll_news(&mut self) -> Option<ContextNews> {
        None
    }
}

pub(crate) fn aead(key: &TlsKey) -> Key {
    let algorithm = match key.suite() {
        TlsSuite::Aes128Gcm => Algorithm::Aes128Gcm,
        TlsSuite::Aes256Gcm => Algorithm::Aes256Gcm,
        _ => Algorithm::ChaCha20Poly1305,
    };
    Key::new(algorithm, key.key()).unwrap()
}

pub(crate) fn is_12(key: &TlsKey) -> bool {
    key.version() == TlsVersion::Tls12
}

/// Returns the length of the header and, for AES-GCM in TLS 1.2, the explicit nonce (RFC 5288 section 3).
pub(crate) fn prefix_len(key: &TlsKey) -> usize {
    if is_12(key) && key.suite() != TlsSuite::ChaCha20Poly1305 { 13 } else { 5 }
}

/// Returns the nonce and additional data of a record that begins with `prefix`, by RFC 8446 section 5, RFC 5288 section
/// 3, RFC 5246 section 6.2.3.3 and RFC 7905 section 2. Written independently of the crate, so that shared errors are
/// unlikely.
pub(crate) fn protection(key: &TlsKey, number: u64, prefix: &[u8]) -> ([u8; 12], Vec<u8>) {
    let mut nonce = *key.iv();
    let (header, explicit) = prefix.split_at(5);
    if explicit.is_empty() {
        nonce[4..].iter_mut().zip(number.to_be_bytes()).for_each(|(byte, number)| *byte ^= number);
    } else {
        nonce[4..].copy_from_slice(explicit);
    }
    if !is_12(key) {
        return (nonce, header.to_vec());
    }
    let content = u16::from_be_bytes([header[3], header[4]]).wrapping_sub(explicit.len() as u16 + 16);
    (nonce, [&number.to_be_bytes()[..], &header[..3], &content.to_be_bytes()].concat())
}
