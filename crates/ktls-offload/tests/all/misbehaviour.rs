//! Peers that violate the protocol. Each must get its alert, and the application a typed error and no unverified byte.

use crate::rig;

use ktls_offload::{AlertDescription, FixedKeys, KtlsStream, TlsError};
use offload_api::{Handle, RxMeta, TlsSuite, TlsVersion, Verdict};
use proptest::prelude::*;
use rig::{CIPHERS, CountingSchedule, MockTransport, MockWire, TestCipher, counted, data, record};
use std::io;
use tokio::io::AsyncReadExt;

const SUITE: TlsSuite = TlsSuite::Aes128Gcm;

/// Creates a stream whose peer is the test.
fn victim() -> (MockWire, KtlsStream<MockTransport>) {
    victim_with(SUITE.into())
}

fn victim_with(cipher: TestCipher) -> (MockWire, KtlsStream<MockTransport>) {
    let wire = MockWire::new(0);
    let (_, schedule, keys) = CountingSchedule::pair(cipher);
    let (_, b) = wire.ends();
    let victim = KtlsStream::new(b, keys.swapped(), Box::new(schedule)).unwrap();
    (wire, victim)
}

/// Builds a record of the peer.
fn protected(number: u64, content_type: u8, content: &[u8], padding: usize) -> Vec<u8> {
    record(&counted(SUITE, 1), number, content_type, content, padding)
}

/// Reads until the end. Returns the data and the end.
async fn read(victim: &mut KtlsStream<MockTransport>) -> (Vec<u8>, io::Result<()>) {
    let mut content = Vec::new();
    loop {
        match victim.next_chunk().await {
            Ok(Some(chunk)) => content.extend_from_slice(&chunk),
            Ok(None) => return (content, Ok(())),
            Err(error) => return (content, Err(error)),
        }
    }
}

/// Feeds bytes in segments of `cut` bytes. Returns the data read, the error, and the alert sent.
async fn feed(cipher: TestCipher, bytes: &[u8], cut: usize) -> (Vec<u8>, Option<TlsError>, Option<AlertDescription>) {
    let (wire, mut victim) = victim_with(cipher);
    for segment in bytes.chunks(cut) {
        wire.inject(1, segment, RxMeta::default());
    }
    wire.end(1);
    let (content, end) = read(&mut victim).await;
    let error = end.err().map(|error| error.get_ref().unwrap().downcast_ref::<TlsError>().unwrap().clone());
    drop(victim);
    let sent = wire.lock()[1].wire.clone();
    let description = (sent.len() == cipher.overhead() + 2).then(|| {
        let key = counted(cipher, 101);
        let (prefix, rest) = sent.split_at(rig::device::prefix_len(&key));
        let (body, tag) = rest.split_at(rest.len() - 16);
        let (nonce, aad) = rig::device::protection(&key, 0, prefix);
        let mut body = body.to_vec();
        rig::device::aead(&key).open_in_place(&nonce, &aad, &mut body, tag.try_into().unwrap()).unwrap();
        assert_eq!(if rig::device::is_12(&key) { prefix[0] } else { body[2] }, 21);
        AlertDescription(body[1])
    });
    (content, error, description)
}

async fn expect(bytes: &[u8], content: &[u8], error: Option<TlsError>) {
    expect_with(SUITE.into(), bytes, content, error).await;
}

async fn expect_with(cipher: TestCipher, bytes: &[u8], content: &[u8], error: Option<TlsError>) {
    for cut in [1, 7, 1 << 20] {
        // Closing the transport without an alert is correct for a dropped stream.
        let alert = error.as_ref().and_then(TlsError::alert);
        let (got, got_error, got_alert) = feed(cipher, bytes, cut).await;
        assert_eq!((got_error, got_alert), (error.clone(), alert), "cut {cut}");
        assert!(got == content, "cut {cut}");
    }
}

#[tokio::test]
async fn each_offence_has_its_error_and_its_alert() {
    let good = protected(0, 23, b"good", 0);
    let close = protected(1, 21, &[1, 0], 0);
    expect(&[&good[..], &close].concat(), b"good", None).await;
    // Data after close_notify are ignored.
    expect(&[&good[..], &close, b"\x00garbage"].concat(), b"good", None).await;
    expect(&good, b"good", Some(TlsError::Truncated)).await;
    expect(&good[..good.len() - 1], b"", Some(TlsError::Truncated)).await;

    // A valid record comes first: its content must be delivered despite the later error.
    let after_good = |bytes: &[u8]| [&good[..], bytes].concat();
    let cases = [
        (vec![23, 3, 3, 0x41, 1], TlsError::RecordOverflow { length: 0x4101 }),
        (vec![23, 3, 3, 0, 16], TlsError::BadRecordMac),
        (vec![23, 3, 1, 0, 32], TlsError::UnknownVersion(0x0301)),
        (vec![20, 3, 3, 0, 1, 1], TlsError::UnexpectedRecord(20)),
        (vec![21, 3, 3, 0, 2, 1, 0], TlsError::UnexpectedRecord(21)),
        (b"GET / HTTP/1.1\r\n\r\n".to_vec(), TlsError::UnexpectedRecord(b'G')),
        (protected(2, 23, b"wrong number", 0), TlsError::BadRecordMac),
        (protected(1, 0, b"", 0), TlsError::OnlyPadding),
        (protected(1, 0, b"", 300), TlsError::OnlyPadding),
        (protected(1, 20, &[1], 0), TlsError::UnexpectedContent(20)),
        (protected(1, 99, b"?", 5), TlsError::UnexpectedContent(99)),
        (protected(1, 23, &[0; 16385], 0), TlsError::RecordOverflow { length: 16386 }),
        (protected(1, 23, b"x", 16385), TlsError::RecordOverflow { length: 16387 }),
        (protected(1, 21, &[2, 20], 0), TlsError::AlertReceived(AlertDescription::BAD_RECORD_MAC)),
        (protected(1, 21, &[1], 0), TlsError::MalformedAlert),
        (protected(1, 22, &[1, 0, 0, 0], 0), TlsError::UnexpectedHandshake(1)),
        (protected(1, 22, &[24, 0, 0, 1, 9], 0), TlsError::InvalidKeyUpdate(9)),
        (protected(1, 22, &[24, 0, 0, 1, 0, 4, 0, 0, 0], 0), TlsError::KeyUpdateInsideRecord),
        (protected(1, 22, b"", 0), TlsError::EmptyFragment),
        ([protected(1, 22, &[4, 0, 0, 9], 0), protected(2, 23, b"x", 0)].concat(), TlsError::Interleaved),
    ];
    for (bytes, error) in cases {
        expect(&after_good(&bytes), b"good", Some(error)).await;
    }
}

#[tokio::test]
async fn offences_against_tls12_have_theirs() {
    for cipher in CIPHERS.into_iter().filter(|cipher| cipher.version == TlsVersion::Tls12) {
        let of = |number, content_type, content: &[u8]| record(&counted(cipher, 1), number, content_type, content, 0);
        let good = of(0, 23, b"good");
        expect_with(cipher, &[&good[..], &of(1, 21, &[1, 0])].concat(), b"good", None).await;
        expect_with(
            cipher,
            &[&good[..], &of(1, 23, b""), &of(2, 23, &[9; 16384])].concat(),
            &[b"good", &[9; 16384][..]].concat(),
            Some(TlsError::Truncated),
        )
        .await;
        let longest = 16384 + cipher.overhead() - 5;
        // A length outside the bounds is reported from the header alone.
        let header = |length: usize| vec![23, 3, 3, (length >> 8) as u8, length as u8];
        let mut turned = of(1, 23, b"a record of another type");
        // The outer type and the explicit nonce are authenticated, so changing either must fail.
        turned[0] = 22;
        let mut shorter = of(1, 23, b"nonce");
        shorter[6] ^= 1;
        let cases = [
            (header(longest + 1), TlsError::RecordOverflow { length: longest + 1 }),
            (header(cipher.overhead() - 6), TlsError::BadRecordMac),
            (vec![20, 3, 3, 0, 1, 1], TlsError::UnexpectedRecord(20)),
            (vec![24, 3, 3, 0, 40], TlsError::UnexpectedRecord(24)),
            (vec![23, 3, 1, 0, 40], TlsError::UnknownVersion(0x0301)),
            (of(2, 23, b"wrong number"), TlsError::BadRecordMac),
            (turned, TlsError::BadRecordMac),
            (shorter, TlsError::BadRecordMac),
            (of(1, 21, &[2, 20]), TlsError::AlertReceived(AlertDescription::BAD_RECORD_MAC)),
            (of(1, 21, &[9, 20]), TlsError::MalformedAlert),
            (of(1, 22, &[24, 0, 0, 1, 0]), TlsError::UnexpectedHandshake(24)),
            (of(1, 22, &[4, 0, 0, 0]), TlsError::UnexpectedHandshake(4)),
            (of(1, 22, b""), TlsError::EmptyFragment),
        ];
        for (bytes, error) in cases {
            expect_with(cipher, &[&good[..], &bytes].concat(), b"good", Some(error)).await;
        }
    }
}

#[tokio::test]
async fn refused_renegotiation_leaves_the_stream_open() {
    for cipher in CIPHERS.into_iter().filter(|cipher| cipher.version == TlsVersion::Tls12) {
        let (wire, mut victim) = victim_with(cipher);
        let key = counted(cipher, 1);
        wire.inject(1, &record(&key, 0, 22, &[0, 0, 0, 0], 0), RxMeta::default());
        // The keys came without a handshake, so the stream accepts the requests of both roles.
        wire.inject(1, &record(&key, 1, 22, &[1, 0, 0, 2, 3, 3], 0), RxMeta::default());
        wire.inject(1, &record(&key, 2, 23, b"still here", 0), RxMeta::default());
        assert_eq!(victim.next_chunk().await.unwrap().unwrap(), "still here");
        let sent = wire.lock()[1].wire.clone();
        let key = counted(cipher, 101);
        let mut rest = &sent[..];
        for number in 0..2 {
            let (alert, after) = rest.split_at(cipher.overhead() + 2);
            let (prefix, sealed) = alert.split_at(rig::device::prefix_len(&key));
            let (body, tag) = sealed.split_at(2);
            let (nonce, aad) = rig::device::protection(&key, number, prefix);
            let mut body = body.to_vec();
            rig::device::aead(&key).open_in_place(&nonce, &aad, &mut body, tag.try_into().unwrap()).unwrap();
            assert_eq!((prefix[0], &body[..]), (21, &[1, 100][..]));
            rest = after;
        }
        assert!(rest.is_empty());
        // The stream is still usable, but TLS 1.2 has no key updates.
        let error = victim.update_keys(true).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::Unsupported);
        let key = counted(cipher, 1);
        for number in 3..6 {
            wire.inject(1, &record(&key, number, 22, &[0, 0, 0, 0], 0), RxMeta::default());
        }
        let error = victim.next_chunk().await.unwrap_err();
        let expected = TlsError::TooManyRenegotiations;
        assert_eq!(error.get_ref().unwrap().downcast_ref(), Some(&expected));
    }
}

#[tokio::test]
async fn allowed_messages_are_accepted() {
    let records = [
        protected(0, 23, b"", 0),
        protected(1, 23, b"a", 16383),
        protected(2, 23, b"", 100),
        protected(3, 21, &[1, 90], 0), // user_canceled
        protected(4, 22, &[4, 0, 0], 3),
        protected(5, 22, &[2, 7, 7, 24, 0, 0, 1, 0], 0), // the rest of a ticket, and a KeyUpdate
        record(&counted(SUITE, 2), 0, 23, &[0; 16384], 0),
        record(&counted(SUITE, 2), 1, 21, &[1, 0], 0),
    ];
    expect(&records.concat(), &[&b"a"[..], &[0; 16384]].concat(), None).await;
}

#[tokio::test]
async fn errors_stay_and_stop_writing() {
    let (wire, mut victim) = victim();
    wire.inject(1, &[1, 2, 3, 4, 5], RxMeta::default());
    for _ in 0..3 {
        assert_eq!(victim.next_chunk().await.unwrap_err().kind(), io::ErrorKind::InvalidData);
        assert!(victim.send_chunk("no".into()).await.is_err());
        assert!(victim.close().await.is_err());
    }
    assert_eq!(victim.counters().tx_records_sw, 1, "only the alert is sent");
}

#[tokio::test]
async fn peer_errors_are_counted() {
    let (wire, mut victim) = victim();
    let mut record = protected(0, 23, b"text", 0);
    record[7] ^= 1;
    wire.inject(1, &record, RxMeta::default());
    assert!(victim.next_chunk().await.is_err());
    assert_eq!((victim.counters().decrypt_error, victim.counters().rx_records_sw), (1, 1));

    // A KeyUpdate to an end with a fixed key.
    let (_, _, keys) = CountingSchedule::pair(SUITE);
    let wire = MockWire::new(0);
    let (_, b) = wire.ends();
    let mut fixed = KtlsStream::new(b, keys.swapped(), Box::new(FixedKeys)).unwrap();
    wire.inject(1, &protected(0, 22, &[24, 0, 0, 1, 0], 0), RxMeta::default());
    assert!(fixed.next_chunk().await.is_err());
    let counters = fixed.counters();
    assert_eq!((counters.rx_rekey_received, counters.rx_rekey_error, counters.rx_rekey_ok), (1, 1, 0));
}

#[tokio::test]
async fn tickets_to_a_server_are_unexpected() {
    let (_, _, keys) = CountingSchedule::pair(SUITE);
    let wire = MockWire::new(0);
    let (_, b) = wire.ends();
    let mut server = KtlsStream::new(b, keys.swapped(), Box::new(FixedKeys)).unwrap();
    wire.inject(1, &protected(0, 22, &[4, 0, 0, 0], 0), RxMeta::default());
    let error = read(&mut server).await.1.unwrap_err();
    assert_eq!(error.get_ref().unwrap().downcast_ref(), Some(&TlsError::UnexpectedHandshake(4)));
}

#[tokio::test]
async fn verdicts_of_unknown_contexts_are_ignored() {
    let (wire, mut victim) = victim();
    let stranger = RxMeta::default().marked(Handle { index: 9, generation: 9 }, Verdict::Done);
    // Plaintext with a forged claim of decryption.
    let mut forged = vec![23, 3, 3, 0, 22];
    forged.extend_from_slice(b"evil!\x17");
    forged.extend_from_slice(&[0; 16]);
    wire.inject(1, &protected(0, 23, b"good", 0), stranger);
    wire.inject(1, &forged, stranger);
    let (content, end) = read(&mut victim).await;
    assert_eq!(content, b"good");
    assert_eq!(end.unwrap_err().get_ref().unwrap().downcast_ref(), Some(&TlsError::BadRecordMac));
}

proptest! {
    #[test]
    fn any_bytes_are_a_typed_error(
        cipher in prop::sample::select(CIPHERS.to_vec()),
        bytes in prop::collection::vec(any::<u8>(), 0..500),
        cut in 1usize..60,
    ) {
        let (content, error, _) = block_on(feed(cipher, &bytes, cut));
        prop_assert_eq!(content, b"");
        prop_assert!(error.is_some());
    }

    #[test]
    fn one_flipped_bit_and_nothing_of_its_record_is_read(
        cipher in prop::sample::select(CIPHERS.to_vec()),
        lengths in prop::collection::vec(0usize..200, 1..6),
        flip: prop::sample::Index,
        bit in 0u8..8,
        cut in 1usize..400,
    ) {
        let mut bytes = Vec::new();
        let mut ends = Vec::new();
        let mut content = Vec::new();
        for (number, length) in lengths.iter().enumerate() {
            bytes.extend(record(&counted(cipher, 1), number as u64, 23, &data(number as u64, *length), number));
            content.extend(data(number as u64, *length));
            ends.push((bytes.len(), content.len()));
        }
        let at = flip.index(bytes.len());
        bytes[at] ^= 1 << bit;
        // Records before the altered one are still delivered.
        let before = ends.iter().take_while(|(end, _)| *end <= at).last().map_or(0, |(_, content)| *content);
        let (got, error, _) = block_on(feed(cipher, &bytes, cut));
        prop_assert_eq!(&got[..], &content[..before]);
        prop_assert!(error.is_some());
    }
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
}

#[tokio::test]
async fn reading_byte_by_byte_gives_the_same() {
    let (wire, mut victim) = victim();
    wire.inject(1, &[protected(0, 23, b"abc", 9), protected(1, 21, &[1, 0], 0)].concat(), RxMeta::default());
    let mut content = Vec::new();
    let mut byte = [0];
    while victim.read(&mut byte).await.unwrap() == 1 {
        content.push(byte[0]);
    }
    assert_eq!(content, b"abc");
}
