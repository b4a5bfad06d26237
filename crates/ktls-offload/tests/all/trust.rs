//! Trust in verdicts: records that a device decrypted partly, with several contexts in turn, or with an outdated key.
//! If any byte is wrong, no content is released.

use crate::rig;

use ktls_offload::{KtlsStream, Offload, TlsError};
use offload_api::rx::NvmeVerdict;
use offload_api::{Handle, RxMeta, RxSegment, SegmentStream, TlsKey, TlsSuite, Verdict, engines};
use proptest::prelude::*;
use rig::{CIPHERS, MockTransport, MockWire, SUITES, TestCipher, counted, device, record, streams};
use std::task::{Context, Poll, Waker};

/// The treatment of a piece of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PieceKind {
    /// Not decrypted.
    Ciphertext,
    /// Decrypted by the first context.
    First,
    /// Decrypted by the second context, which has the same key.
    Second,
    /// Not decrypted, but marked with a handle of an earlier generation.
    Stranger,
}

/// A stream with two known contexts, and its peer.
struct TrustSetup {
    wire: MockWire,
    stream: KtlsStream<MockTransport>,
    contexts: [Handle; 2],
    _peer: KtlsStream<MockTransport>,
}

impl TrustSetup {
    fn new(cipher: TestCipher) -> TrustSetup {
        let wire = MockWire::new(1).with_devices(0.0, 1);
        let (peer, mut stream) = streams(&wire, cipher);
        let contexts = [(); 2].map(|()| {
            stream.offload(Offload { tx: false, rx: true });
            let Poll::Ready(Ok(outcome)) = stream.poll_ready(&mut context()) else { panic!("the device is ready") };
            wire.reset(1);
            outcome.handle().unwrap()
        });
        TrustSetup { wire, stream, contexts, _peer: peer }
    }

    fn inject(&self, bytes: &[u8], meta: RxMeta) {
        self.wire.inject(1, bytes, meta);
    }

    /// Returns the device's metadata of a piece.
    fn meta(&self, piece: PieceKind) -> RxMeta {
        let handle = match piece {
            PieceKind::Ciphertext => return RxMeta::default(),
            PieceKind::First => self.contexts[0],
            PieceKind::Second => self.contexts[1],
            PieceKind::Stranger => Handle { generation: self.contexts[1].generation - 1, ..self.contexts[1] },
        };
        RxMeta::default().marked(handle, Verdict::Done)
    }

    /// Reads all data. Returns the ranges and the error.
    fn read(&mut self) -> (Vec<RxSegment>, Option<TlsError>) {
        let mut all = Vec::new();
        loop {
            match self.stream.poll_segment(&mut context()) {
                Poll::Pending | Poll::Ready(Ok(None)) => return (all, None),
                Poll::Ready(Ok(Some(range))) => all.push(range),
                Poll::Ready(Err(error)) => {
                    return (all, Some(error.get_ref().unwrap().downcast_ref::<TlsError>().unwrap().clone()));
                }
            }
        }
    }
}

fn context() -> Context<'static> {
    Context::from_waker(Waker::noop())
}

fn bytes_of(ranges: &[RxSegment]) -> Vec<u8> {
    ranges.iter().flat_map(|range| range.data.to_vec()).collect()
}

/// Returns a sealed record, and the same record as a device passes it up.
fn sealed_and_plain(key: &TlsKey, number: u64, content: &[u8]) -> (Vec<u8>, Vec<u8>) {
    let sealed = record(key, number, 23, content, 0);
    let mut plain = sealed.clone();
    let end = plain.len() - 16;
    let (prefix, rest) = plain.split_at_mut(device::prefix_len(key));
    let (nonce, _) = device::protection(key, number, prefix);
    let body = end - prefix.len();
    device::aead(key).apply_keystream(&nonce, 0, &mut rest[..body]).unwrap();
    (sealed, plain)
}

/// Returns the positions at which `cuts` divide `length` bytes.
fn places(cuts: &[prop::sample::Index], length: usize) -> Vec<usize> {
    let mut places: Vec<usize> = cuts.iter().map(|cut| cut.index(length)).chain([0, length]).collect();
    places.sort_unstable();
    places.dedup();
    places
}

proptest! {
    #[test]
    fn wrong_records_are_never_delivered(
        cipher in prop::sample::select(CIPHERS.to_vec()),
        length in 0usize..3000,
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..6),
        kinds in prop::collection::vec(
            prop::sample::select(vec![PieceKind::Ciphertext, PieceKind::First, PieceKind::Second, PieceKind::Stranger]), 8),
        flip in prop::option::of((any::<prop::sample::Index>(), 0u8..8)),
    ) {
        let key = counted(cipher, 1);
        let mut victim = TrustSetup::new(cipher);
        let content = rig::data(7, length);
        let (sealed, plain) = sealed_and_plain(&key, 0, &content);
        let prefix = device::prefix_len(&key);
        // Pieces may begin anywhere, even within the header or the tag.
        let places = places(&cuts, sealed.len());
        let pieces: Vec<(usize, usize, PieceKind)> =
            places.windows(2).zip(&kinds).map(|(place, kind)| (place[0], place[1], *kind)).collect();
        // A single context that decrypted the whole record has verified the tag.
        let by_one = pieces.iter().all(|(.., kind)| *kind == pieces[0].2)
            && matches!(pieces[0].2, PieceKind::First | PieceKind::Second);
        let flip = flip.map(|(at, bit)| (prefix + at.index(sealed.len() - prefix), bit));
        for (from, to, kind) in pieces {
            let decrypted = matches!(kind, PieceKind::First | PieceKind::Second);
            let mut bytes = if decrypted { &plain } else { &sealed }[from..to].to_vec();
            if let Some((at, bit)) = flip && (from..to).contains(&at) {
                bytes[at - from] ^= 1 << bit;
            }
            victim.inject(&bytes, victim.meta(kind));
        }
        // A valid record follows.
        victim.inject(&record(&key, 1, 23, b"after it", 0), RxMeta::default());
        let (ranges, error) = victim.read();
        // The test's device verifies no tags, so a record from one context is trusted even if altered.
        if flip.is_some() && !by_one {
            prop_assert_eq!((ranges.len(), error), (0, Some(TlsError::BadRecordMac)));
        } else if flip.is_none() {
            prop_assert_eq!(error, None);
            prop_assert_eq!(bytes_of(&ranges), [&content[..], b"after it"].concat());
            let counters = victim.stream.counters();
            prop_assert_eq!(counters.rx_records_device, u64::from(by_one));
        }
    }
}

/// Two contexts decrypted a record together, so neither has verified the tag.
#[test]
fn a_record_that_two_contexts_decrypted_between_them_is_checked() {
    for suite in SUITES {
        let key = counted(suite, 1);
        let (_, plain) = sealed_and_plain(&key, 0, &[7; 1000]);
        for wrong in [None, Some(100), Some(900), Some(plain.len() - 1)] {
            let mut victim = TrustSetup::new(suite.into());
            let mut bytes = plain.clone();
            if let Some(at) = wrong {
                bytes[at] ^= 1;
            }
            let (first, second) = bytes.split_at(600);
            victim.inject(first, victim.meta(PieceKind::First));
            victim.inject(second, victim.meta(PieceKind::Second));
            let (ranges, error) = victim.read();
            match wrong {
                None => assert_eq!((bytes_of(&ranges), error), (vec![7; 1000], None)),
                Some(_) => assert_eq!((ranges.len(), error), (0, Some(TlsError::BadRecordMac))),
            }
            assert_eq!(victim.stream.counters().rx_records_partial, 1);
        }
    }
}

/// Records of a new key that the device decrypted with the old key.
#[test]
fn bytes_of_an_earlier_key_are_restored_and_checked() {
    const CONTENT: usize = 1000;
    const GARBLED: usize = 700;
    for suite in SUITES {
        let (old, new) = (counted(suite, 1), counted(suite, 2));
        let (sealed, _) = sealed_and_plain(&new, 0, &[7; CONTENT]);
        for wrong in [None, Some(5), Some(GARBLED - 1), Some(GARBLED), Some(sealed.len() - 1)] {
            let mut victim = TrustSetup::new(suite.into());
            victim.inject(&record(&old, 0, 22, &[24, 0, 0, 1, 0], 0), RxMeta::default());
            let mut bytes = sealed.clone();
            // The device keeps counting with the old key.
            let (nonce, _) = device::protection(&old, 1, &sealed[..5]);
            device::aead(&old).apply_keystream(&nonce, 0, &mut bytes[5..GARBLED]).unwrap();
            if let Some(at) = wrong {
                bytes[at] ^= 0x10;
            }
            let (garbled, rest) = bytes.split_at(GARBLED);
            // An engine above TLS claims a verdict over the garbled bytes.
            let meta = victim.meta(PieceKind::Second).marked(NVME, Verdict::Done);
            victim.inject(garbled, meta);
            victim.inject(rest, RxMeta::default().marked(NVME, Verdict::Done));
            let (ranges, error) = victim.read();
            if wrong.is_some() {
                assert_eq!((ranges.len(), error), (0, Some(TlsError::BadRecordMac)));
                continue;
            }
            assert_eq!((bytes_of(&ranges), error), (vec![7; CONTENT], None));
            assert_eq!(victim.stream.counters().rx_restored_bytes, GARBLED as u64 - 5);
            // A digest verdict over garbled bytes does not hold for the restored bytes.
            assert!(ranges.iter().take(1).all(|range| range.meta.nvme() == NvmeVerdict::NotChecked), "{ranges:?}");
        }
    }
}

#[test]
fn replaced_keys_are_dropped_after_all_data_are_read() {
    let suite: TlsSuite = SUITES[0];
    let wire = MockWire::new(4).with_devices(0.0, 4);
    let (mut near, mut far) = streams(&wire, suite);
    far.offload(Offload { tx: false, rx: true });
    assert!(far.poll_ready(&mut context()).is_ready());
    let mut send = |text: &'static [u8]| {
        near.send(text.into(), offload_api::TxTag::PLAIN);
        near.flush();
        near.update_keys(false).unwrap();
    };
    let read = |far: &mut KtlsStream<MockTransport>| {
        while let Poll::Ready(chunk) = far.poll_chunk(&mut context()) {
            chunk.unwrap().unwrap();
        }
        let state = format!("{far:?}");
        state.split_once("earlier_receive_keys: ").unwrap().1[..1].parse::<usize>().unwrap()
    };
    send(b"with the first");
    assert_eq!(read(&mut far), 1, "the old key is kept for data that its context decrypted");
    send(b"with the second");
    assert_eq!(read(&mut far), 1, "the device had the second key: the first is gone, and the third is new");
    send(b"with the third");
    assert_eq!(read(&mut far), 1);
}

/// A context of NVMe/TCP in the records.
const NVME: Handle = Handle { index: Handle::indices(engines::NVME_TCP, 1).start, generation: 0 };
