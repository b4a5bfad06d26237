//! Comparison with rustls and ring, packet by packet, and of masks and CCM with their definitions.

use aes::cipher::{BlockCipherEncrypt, KeyInit};
use offload_api::QuicCipher;
use offload_quic::{HeaderKey, PacketKey, QuicOpenError, TrafficSecret, UnmaskedHeader, seal};
use proptest::prelude::*;
use ring::aead;
use rustls::crypto::cipher::{AeadKey, Iv};
use rustls::crypto::ring::cipher_suite;

/// Seals a packet with other implementations: encrypts, appends the tag, and masks.
fn seal_with_others(secret: &TrafficSecret, plain: &[u8], number_at: usize, path: u32, number: u64) -> Vec<u8> {
    let (key, header_key) = (secret.key(), secret.header());
    let payload_at = number_at + usize::from(plain[0] & 3) + 1;
    let (header, payload) = plain.split_at(payload_at);
    let mut payload = payload[..payload.len() - 16].to_vec();
    let suite = match secret.cipher() {
        QuicCipher::Aes256Gcm => Some(cipher_suite::TLS13_AES_256_GCM_SHA384),
        QuicCipher::ChaCha20Poly1305 => Some(cipher_suite::TLS13_CHACHA20_POLY1305_SHA256),
        // rustls accepts 16-byte keys only from its own derivation.
        _ => None,
    };
    let tag: [u8; 16] = match suite {
        Some(suite) => {
            let quic = suite.tls13().unwrap().quic.unwrap();
            let bytes: [u8; 32] = key.key().try_into().unwrap();
            let packet_key = quic.packet_key(AeadKey::from(bytes), Iv::new(*key.iv()));
            let tag = packet_key.encrypt_in_place_for_path(path, number, header, &mut payload).unwrap();
            tag.as_ref().try_into().unwrap()
        }
        None => {
            let ring_key = aead::LessSafeKey::new(aead::UnboundKey::new(&aead::AES_128_GCM, key.key()).unwrap());
            let mut nonce = *key.iv();
            let over = (u128::from(path) << 64 | u128::from(number)).to_be_bytes();
            nonce.iter_mut().zip(&over[4..]).for_each(|(byte, over)| *byte ^= over);
            let nonce = aead::Nonce::assume_unique_for_key(nonce);
            let tag = ring_key.seal_in_place_separate_tag(nonce, aead::Aad::from(header), &mut payload).unwrap();
            tag.as_ref().try_into().unwrap()
        }
    };
    let mut packet = [header, &payload, &tag].concat();
    let algorithm = match secret.cipher() {
        QuicCipher::Aes256Gcm => &aead::quic::AES_256,
        QuicCipher::ChaCha20Poly1305 => &aead::quic::CHACHA20,
        _ => &aead::quic::AES_128,
    };
    let mask = aead::quic::HeaderProtectionKey::new(algorithm, header_key.key()).unwrap();
    let mask = mask.new_mask(&packet[number_at + 4..number_at + 20]).unwrap();
    packet[0] ^= mask[0] & 0x1f;
    (number_at..payload_at).zip(&mask[1..]).for_each(|(at, mask)| packet[at] ^= mask);
    packet
}

/// All combinations of cipher, length of the number, and length of the connection ID.
#[test]
fn every_shape_of_packet_is_sealed_and_opened() {
    for cipher in QuicCipher::ALL {
        let secret = secret_of(cipher, [9; 32]);
        let (key, header_key) = (secret.packet_key(), secret.header_key());
        for (first, cid_bytes) in (0..8).flat_map(|first| (0..=20).map(move |cid| (0x40 | first, cid))) {
            let (number, path) = (0x1234_5678_9abc + u64::from(first), cid_bytes as u32);
            let before = plain(first, &[0xcd; 20][..cid_bytes], number, b"every shape");
            let mut packet = before.clone();
            seal(&key, &header_key, &mut packet, 1 + cid_bytes, path, number).unwrap();
            if cipher != QuicCipher::Aes128Ccm {
                assert_eq!(packet, seal_with_others(&secret, &before, 1 + cid_bytes, path, number), "{cipher:?}");
            }
            let header = UnmaskedHeader::read(&header_key, &packet, 1 + cid_bytes).unwrap();
            assert_eq!(header.number(Some(number - 1)), number, "{cipher:?} {first:x} {cid_bytes}");
            header.open(&key, &mut packet, path, number).unwrap();
            assert_eq!(packet[..packet.len() - 16], before[..before.len() - 16]);
        }
    }
}

fn ciphers() -> impl Strategy<Value = QuicCipher> {
    prop::sample::select(QuicCipher::ALL.to_vec())
}

fn secret_of(cipher: QuicCipher, seed: [u8; 32]) -> TrafficSecret {
    let bytes = if cipher == QuicCipher::Aes256Gcm { 48 } else { 32 };
    TrafficSecret::new(cipher, &seed.iter().cycle().take(bytes).copied().collect::<Vec<_>>()).unwrap()
}

/// Builds a plain packet with room for its tag.
fn plain(first: u8, cid: &[u8], number: u64, payload: &[u8]) -> Vec<u8> {
    let bytes = usize::from(first & 3) + 1;
    [&[first & 0x7f], cid, &number.to_be_bytes()[8 - bytes..], payload, &[0; 16]].concat()
}

proptest! {
    #[test]
    fn packets_match_rustls_and_ring(
        cipher in ciphers().prop_filter("they have none", |cipher| *cipher != QuicCipher::Aes128Ccm),
        seed: [u8; 32],
        first: u8,
        cid in prop::collection::vec(any::<u8>(), 0..=20),
        (path, number) in (prop_oneof![Just(0), any::<u32>()], 0u64..1 << 62),
        payload in prop::collection::vec(any::<u8>(), 4..1600),
    ) {
        let secret = secret_of(cipher, seed);
        let number_at = 1 + cid.len();
        let before = plain(first, &cid, number, &payload);
        let mut ours = before.clone();
        seal(&secret.packet_key(), &secret.header_key(), &mut ours, number_at, path, number).unwrap();

        let theirs = seal_with_others(&secret, &before, number_at, path, number);
        let tag_at = theirs.len() - 16;
        prop_assert_eq!(&ours, &theirs);

        // In the other direction, with the largest opened number just below, far below, and equal.
        for largest in [number.checked_sub(1), number.checked_sub(100), Some(number)] {
            let header = UnmaskedHeader::read(&secret.header_key(), &ours, number_at).unwrap();
            prop_assert_eq!(header.key_phase(), first & 4 != 0);
            prop_assert_eq!(header.number(largest), number);
            let mut packet = ours.clone();
            header.open(&secret.packet_key(), &mut packet, path, number).unwrap();
            prop_assert_eq!(&packet[..tag_at], &before[..tag_at]);
        }
    }

    #[test]
    fn changed_packets_are_refused(
        cipher in ciphers(),
        seed: [u8; 32],
        first: u8,
        cid in prop::collection::vec(any::<u8>(), 0..=20),
        number in 100u64..1 << 62,
        payload in prop::collection::vec(any::<u8>(), 4..100),
        bit in any::<prop::sample::Index>(),
    ) {
        let secret = secret_of(cipher, seed);
        let (key, header_key) = (secret.packet_key(), secret.header_key());
        let mut packet = plain(first, &cid, number, &payload);
        seal(&key, &header_key, &mut packet, 1 + cid.len(), 0, number).unwrap();
        let bit = bit.index(packet.len() * 8);
        packet[bit / 8] ^= 1 << (bit % 8);
        let came = packet.clone();
        let header = UnmaskedHeader::read(&header_key, &packet, 1 + cid.len()).unwrap();
        let opened = header.open(&key, &mut packet, 0, header.number(Some(number - 1)));
        // A change of the number's length bits never yields the same number.
        prop_assert_eq!(opened, Err(QuicOpenError::Tag));
        // The payload may be garbage after a failure, but the header must allow another attempt.
        prop_assert_eq!(&packet[..header.payload_at()], &came[..header.payload_at()], "the header is as it came");
    }

    #[test]
    fn short_packets_are_refused(cipher in ciphers(), len in 0usize..60, cid in 0usize..=20) {
        let secret = secret_of(cipher, [3; 32]);
        let mut packet = vec![0x43; len];
        let fits = len >= 1 + cid + 4 + 16;
        let sealed = seal(&secret.packet_key(), &secret.header_key(), &mut packet, 1 + cid, 0, 0x4343_4343);
        prop_assert_eq!(sealed.is_ok(), fits);
        prop_assert_eq!(UnmaskedHeader::read(&secret.header_key(), &packet, 1 + cid).is_ok(), fits);
    }

    /// RFC 9001 5.4.3: the mask is the sample encrypted with AES.
    #[test]
    fn masks_equal_the_encrypted_sample(key: [u8; 32], sample: [u8; 16]) {
        let header_key = |cipher, key: &[u8]| {
            HeaderKey::new(&offload_api::QuicHeaderKey::new(cipher, key).unwrap())
        };
        let mut block = sample.into();
        aes::Aes256::new(&key.into()).encrypt_block(&mut block);
        prop_assert_eq!(&header_key(QuicCipher::Aes256Gcm, &key).mask(&sample), &block[..5]);
        let short: [u8; 16] = key[..16].try_into().unwrap();
        for cipher in [QuicCipher::Aes128Gcm, QuicCipher::Aes128Ccm] {
            let mut block = sample.into();
            aes::Aes128::new(&short.into()).encrypt_block(&mut block);
            prop_assert_eq!(&header_key(cipher, &short).mask(&sample), &block[..5]);
        }
    }

    /// CCM built from AES alone, as defined by RFC 3610 2 and RFC 5116 5.3: L is 3, M is 16.
    #[test]
    fn ccm_matches_rfc_3610(
        seed: [u8; 32],
        (path, number) in (any::<u32>(), 0u64..1 << 62),
        header in prop::collection::vec(any::<u8>(), 2..26),
        payload in prop::collection::vec(any::<u8>(), 0..200),
    ) {
        let key = secret_of(QuicCipher::Aes128Ccm, seed).key();
        let aes = aes::Aes128::new_from_slice(key.key()).unwrap();
        let nonce = PacketKey::new(&key).nonce(path, number);
        let block = |bytes: [u8; 16]| {
            let mut block = bytes.into();
            aes.encrypt_block(&mut block);
            <[u8; 16]>::from(block)
        };
        let first = |flags: u8, last: u32| {
            let mut bytes = [0; 16];
            bytes[0] = flags;
            bytes[1..13].copy_from_slice(&nonce);
            bytes[13..].copy_from_slice(&last.to_be_bytes()[1..]);
            bytes
        };
        let padded = |bytes: &[u8]| {
            let mut bytes = bytes.to_vec();
            bytes.resize(bytes.len().next_multiple_of(16), 0);
            bytes
        };
        let with_length = [&(header.len() as u16).to_be_bytes()[..], &header].concat();
        let blocks = [&first(64 + 8 * 7 + 2, payload.len() as u32)[..], &padded(&with_length), &padded(&payload)].concat();
        let mac = blocks.chunks(16).fold([0; 16], |mac, next| block(core::array::from_fn(|at| mac[at] ^ next[at])));
        let stream = |counter: u32| block(first(2, counter));
        let expected: Vec<u8> = payload.chunks(16).zip(1..)
            .flat_map(|(chunk, counter)| chunk.iter().zip(stream(counter)).map(|(byte, key)| byte ^ key).collect::<Vec<_>>())
            .chain(mac.iter().zip(stream(0)).map(|(byte, key)| byte ^ key))
            .collect();
        let mut sealed = payload.clone();
        let tag = PacketKey::new(&key).seal(path, number, &header, &mut sealed);
        prop_assert_eq!([&sealed[..], &tag].concat(), expected);
    }
}
