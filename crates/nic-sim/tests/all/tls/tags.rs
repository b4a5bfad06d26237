//! Tags split over two packets: each byte is compared, in either packet.

use super::*;

const LENGTH: usize = 300;

/// Returns the verdict on the second packet of a record that is cut at byte `split` of its tag, with byte `wrong`
/// flipped, if any. If `evicted`, the context goes to host memory and back between the packets.
fn second_verdict(cipher: TlsTestCipher, split: usize, wrong: Option<usize>, evicted: bool) -> TlsVerdict {
    let mut stream = RecordStream::sealed_with(cipher, Seq(u32::MAX - 50), 7, &[LENGTH]);
    let tag = stream.wire.len() - 16;
    if let Some(wrong) = wrong {
        stream.wire[tag + wrong] ^= 0x40;
    }
    let other = RecordStream::sealed_with(cipher, Seq(0), 7, &[LENGTH]);
    let (mut device, mut driver) = nic(fast(NicConfig { context_cache_bytes: 208, ..NicConfig::default() }));
    // The second flow's context evicts the first one from a cache of one.
    for (stream, port) in [(&stream, 5000), (&other, 5001)].into_iter().take(1 + usize::from(evicted)) {
        driver
            .tls()
            .unwrap()
            .add(&flow(port).reversed(), Direction::Receive, stream.start, 7, &key_for(cipher))
            .unwrap();
    }
    frames(&mut device);
    let mut deliver = |frame: &Frame| {
        device.receive_frame(Instant::ZERO, frame.clone());
        device.process(Instant::ZERO);
        driver.receive(Instant::ZERO).unwrap().meta.tls()
    };
    let [first, second] = &segments_cut_at(&stream, flow(5000), &[tag + split])[..] else { panic!("one cut") };
    // The first packet ends inside the tag, and all its record bytes are decrypted.
    assert_eq!(deliver(first), TlsVerdict::Decrypted, "the first part cannot be judged yet");
    if evicted {
        assert_eq!(deliver(&segments_cut_at(&other, flow(5001), &[])[0]), TlsVerdict::Decrypted);
    }
    let verdict = deliver(second);
    let counted = device.counters();
    assert_eq!(counted.ctx_evicted > 0 && counted.ctx_fetched > 0, evicted);
    verdict
}

fn each_byte_counts(evicted: bool) {
    for cipher in [AES_128, (TlsVersion::Tls12, TlsSuite::ChaCha20Poly1305)] {
        for split in 1..16 {
            assert_eq!(second_verdict(cipher, split, None, evicted), TlsVerdict::Decrypted);
            for wrong in 0..16 {
                let verdict = second_verdict(cipher, split, Some(wrong), evicted);
                assert_eq!(verdict, TlsVerdict::Error, "byte {wrong} of a tag cut at {split}, {cipher:?}");
            }
        }
    }
}

#[test]
fn each_tag_byte_is_verified_in_any_packet() {
    each_byte_counts(false);
}

#[test]
fn each_tag_byte_is_verified_after_an_eviction() {
    each_byte_counts(true);
}

/// Neither the received nor the expected tag is printed, because the message is not verified yet.
#[test]
fn a_tag_that_is_awaited_is_never_printed() {
    let stream = RecordStream::new(Seq(0), 7, &[LENGTH]);
    let tag = stream.wire.len() - 16;
    let (mut device, mut driver) = nic(fast(NicConfig::default()));
    driver.tls().unwrap().add(&sender().reversed(), Direction::Receive, Seq(0), 7, &key()).unwrap();
    frames(&mut device);
    device.receive_frame(Instant::ZERO, segments_cut_at(&stream, sender(), &[tag])[0].clone());
    device.process(Instant::ZERO);
    assert_eq!(driver.receive(Instant::ZERO).unwrap().meta.tls(), TlsVerdict::Decrypted);
    let printed = format!("{device:?}");
    let bytes = stream.wire[tag..].iter().map(u8::to_string).collect::<Vec<_>>();
    assert!(printed.contains("Tag"), "the context is at the tag");
    assert!(!printed.contains(&bytes.join(", ")), "{printed}");
}
