//! Random keys, bytes and pieces: the same result as another implementation gives, and back again.

use crate::{cut, run};
use aws_lc_rs::{aead, cipher, cmac, hmac, iv};
use bytes::Bytes;
use offload_transforms::protection::{Check, Format, Guard, Kind, Protection};
use offload_transforms::{
    Aead, Checksums, Compression, Hash, Order, Parameters, Secret, Session, Transform, Tweak, Way,
};
use proptest::prelude::*;
use std::io::{Read, Write};
use xts_mode::Xts128;

fn bytes(most: usize) -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(any::<u8>(), 0..most)
}

fn cuts() -> impl Strategy<Value = Vec<usize>> {
    prop::collection::vec(any::<usize>(), 0..6)
}

/// Applies in pieces cut one way, and undoes in pieces cut another.
fn both_ways(transform: &Transform, with: Parameters<'_>, plain: &[u8], cuts: &[usize]) -> Vec<u8> {
    let session = Session::new(transform).unwrap();
    let (applied, _) = run(&session, Way::Apply, with, &cut(plain, cuts)).unwrap();
    let (undone, _) = run(&session, Way::Undo, with, &cut(&applied, cuts)).unwrap();
    assert_eq!(undone, plain, "{}", transform.name());
    applied
}

fn aes(key: &[u8]) -> &'static cipher::Algorithm {
    if key.len() == 16 { &cipher::AES_128 } else { &cipher::AES_256 }
}

fn cbc(key: &[u8], iv: [u8; 16], data: &mut [u8]) {
    let key = cipher::UnboundCipherKey::new(aes(key), key).unwrap();
    let iv = cipher::EncryptionContext::Iv128(iv::FixedLength::from(iv));
    cipher::EncryptingKey::cbc(key).unwrap().less_safe_encrypt(data, iv).unwrap();
}

/// Text-like bytes: compression has something to do.
fn words(seed: &[u8]) -> Vec<u8> {
    let mut text = Vec::new();
    for byte in seed {
        match byte % 4 {
            0 => text.extend(b"the block "),
            1 => text.extend(b"of a volume "),
            2 => text.extend(b"is here. "),
            _ => text.push(*byte),
        }
    }
    text
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn aeads(key in any::<[u8; 32]>(), iv in any::<[u8; 16]>(), aad in bytes(40), plain in bytes(3000), cuts in cuts()) {
        for kind in [Aead::Aes128Gcm, Aead::Aes256Gcm, Aead::ChaCha20Poly1305] {
            let key = &key[..kind.key_len()];
            let transform = Transform::Aead { aead: kind, key: Secret::new(key.to_vec()) };
            let sealed = both_ways(&transform, Parameters { iv, aad: &aad }, &plain, &cuts);
            let algorithm = match kind {
                Aead::Aes128Gcm => &aead::AES_128_GCM,
                Aead::Aes256Gcm => &aead::AES_256_GCM,
                _ => &aead::CHACHA20_POLY1305,
            };
            let other = aead::LessSafeKey::new(aead::UnboundKey::new(algorithm, key).unwrap());
            let mut expected = plain.clone();
            let nonce = aead::Nonce::try_assume_unique_for_key(&iv[..12]).unwrap();
            other.seal_in_place_append_tag(nonce, aead::Aad::from(&aad), &mut expected).unwrap();
            prop_assert_eq!(sealed, expected);
        }
    }

    /// Beside CCM made of AES-CTR and AES-CBC as RFC 3610 2 says.
    #[test]
    fn ccm(key in any::<[u8; 32]>(), iv in any::<[u8; 16]>(), aad in bytes(40), plain in bytes(600), cuts in cuts()) {
        for kind in [Aead::Aes128Ccm, Aead::Aes256Ccm] {
            let key = &key[..kind.key_len()];
            let transform = Transform::Aead { aead: kind, key: Secret::new(key.to_vec()) };
            let sealed = both_ways(&transform, Parameters { iv, aad: &aad }, &plain, &cuts);
            let block = |flags: u8, last: u32| {
                let mut block = [0; 16];
                block[0] = flags;
                block[1..13].copy_from_slice(&iv[..12]);
                block[13..].copy_from_slice(&last.to_be_bytes()[1..]);
                block
            };
            let mut macked = block(if aad.is_empty() { 0x3a } else { 0x7a }, plain.len() as u32).to_vec();
            if !aad.is_empty() {
                macked.extend((aad.len() as u16).to_be_bytes());
                macked.extend(&aad);
                macked.resize(macked.len().next_multiple_of(16), 0);
            }
            macked.extend(&plain);
            macked.resize(macked.len().next_multiple_of(16), 0);
            cbc(key, [0; 16], &mut macked);
            // The tag is encrypted with counter 0, the message from 1 on.
            let mut expected = macked[macked.len() - 16..].to_vec();
            expected.extend(&plain);
            let unbound = cipher::UnboundCipherKey::new(aes(key), key).unwrap();
            let counter = cipher::EncryptionContext::Iv128(iv::FixedLength::from(block(2, 0)));
            cipher::EncryptingKey::ctr(unbound).unwrap().less_safe_encrypt(&mut expected, counter).unwrap();
            expected.rotate_left(16);
            prop_assert_eq!(sealed, expected);
        }
    }

    #[test]
    fn cbc_with_hmac(
        key in any::<[u8; 32]>(), iv in any::<[u8; 16]>(), aad in any::<[u8; 11]>(), plain in bytes(1200),
        cuts in cuts(), long in any::<bool>(), sha1 in any::<bool>(), order in any::<bool>(),
    ) {
        let (order, hash) = (
            if order { Order::EncryptThenMac } else { Order::MacThenEncrypt },
            if sha1 { Hash::Sha1 } else { Hash::Sha256 },
        );
        let cipher_key = &key[..if long { 32 } else { 16 }];
        let mac_key = &key[..hash.len()];
        let transform = Transform::CbcHmac {
            order,
            hash,
            cipher_key: Secret::new(cipher_key.to_vec()),
            mac_key: Secret::new(mac_key.to_vec()),
        };
        let sealed = both_ways(&transform, Parameters { iv, aad: &aad }, &plain, &cuts);

        let algorithm = if sha1 { hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY } else { hmac::HMAC_SHA256 };
        let mac = |parts: &[&[u8]]| {
            let mut mac = hmac::Context::with_key(&hmac::Key::new(algorithm, mac_key));
            parts.iter().for_each(|part| mac.update(part));
            mac.sign().as_ref().to_vec()
        };
        let mut expected = plain.clone();
        if order == Order::MacThenEncrypt {
            expected.extend(mac(&[&aad, &(plain.len() as u16).to_be_bytes(), &plain]));
        }
        let padding = 16 - expected.len() % 16;
        expected.resize(expected.len() + padding, padding as u8 - 1);
        cbc(cipher_key, iv, &mut expected);
        if order == Order::EncryptThenMac {
            expected.extend(mac(&[&aad, &iv, &expected]));
        }
        prop_assert_eq!(sealed, expected);
    }

    /// Padding may be longer than it need be; of any wrong byte the opener says one and the same thing.
    #[test]
    fn longer_padding(plain in bytes(700), more in 0usize..16, wrong in any::<usize>(), sha1 in any::<bool>()) {
        let hash = if sha1 { Hash::Sha1 } else { Hash::Sha256 };
        let session = Session::new(&Transform::CbcHmac {
            order: Order::MacThenEncrypt,
            hash,
            cipher_key: Secret::new(vec![7; 16]),
            mac_key: Secret::new(vec![8; 20]),
        }).unwrap();
        let algorithm = if sha1 { hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY } else { hmac::HMAC_SHA256 };
        let with = Parameters { iv: [3; 16], aad: b"eleven byte" };
        let mut mac = hmac::Context::with_key(&hmac::Key::new(algorithm, &[8; 20]));
        mac.update(b"eleven byte");
        mac.update(&(plain.len() as u16).to_be_bytes());
        mac.update(&plain);
        let mut record = plain.clone();
        record.extend(mac.sign().as_ref());
        let least = 16 - record.len() % 16;
        let padding = (least + 16 * more).min(least + 240);
        record.resize(record.len() + padding, (padding - 1) as u8);
        let mut sealed = record.clone();
        cbc(&[7; 16], [3; 16], &mut sealed);
        prop_assert_eq!(run(&session, Way::Undo, with, &[sealed.into()]).unwrap().0, &plain[..]);

        let at = wrong % record.len();
        record[at] ^= 1 << (wrong % 7);
        cbc(&[7; 16], [3; 16], &mut record);
        let refused = run(&session, Way::Undo, with, &[record.into()]);
        prop_assert_eq!(refused, Err(offload_transforms::Fault::NotAuthentic));
    }

    #[test]
    fn counter_mode_and_cmac(key in any::<[u8; 32]>(), iv in any::<[u8; 16]>(), plain in bytes(800), cuts in cuts()) {
        for len in [16, 32] {
            let key = &key[..len];
            let secret = Secret::new(key.to_vec());
            let sealed = both_ways(&Transform::Ctr { key: secret.clone() }, Parameters { iv, aad: b"" }, &plain, &cuts);
            let mut expected = plain.clone();
            let unbound = cipher::UnboundCipherKey::new(aes(key), key).unwrap();
            let counter = cipher::EncryptionContext::Iv128(iv::FixedLength::from(iv));
            cipher::EncryptingKey::ctr(unbound).unwrap().less_safe_encrypt(&mut expected, counter).unwrap();
            prop_assert_eq!(sealed, expected);

            let with_tag = both_ways(&Transform::Cmac { key: secret }, Parameters::default(), &plain, &cuts);
            let algorithm = if len == 16 { cmac::AES_128 } else { cmac::AES_256 };
            let tag = cmac::sign(&cmac::Key::new(algorithm, key).unwrap(), &plain).unwrap();
            prop_assert_eq!(&with_tag[plain.len()..], tag.as_ref());
        }
    }

    #[test]
    fn xts(key in prop::collection::vec(any::<u8>(), 64), number in prop_oneof![any::<u64>().prop_map(u128::from), any::<u128>()], unit in 16u32..600, units in 0usize..6,
           fill in any::<u8>(), cuts in cuts(), large in any::<bool>()) {
        use aes::cipher::KeyInit;
        let (unit, tweak, step) = if large { (4096, Tweak::Sectors512, 8) } else { (unit, Tweak::Unit, 1) };
        let number = number >> 1;
        let plain: Vec<u8> = (0..unit as usize * units).map(|at| (at as u8).wrapping_mul(31) ^ fill).collect();
        let transform = Transform::Xts { key: Secret::new(key.clone()), unit, tweak };
        let with = Parameters { iv: number.to_le_bytes(), aad: b"" };
        let sealed = both_ways(&transform, with, &plain, &cuts);
        let other = Xts128::new(
            aes::Aes256::new_from_slice(&key[..32]).unwrap(),
            aes::Aes256::new_from_slice(&key[32..]).unwrap(),
        );
        let mut expected = plain.clone();
        for (index, unit) in expected.chunks_mut(unit as usize).enumerate() {
            other.encrypt_sector(unit, xts_mode::get_tweak_default(number + step * index as u128));
        }
        prop_assert_eq!(sealed, expected);
    }

    #[test]
    fn protection_information(
        interval in 1u32..700, blocks in 0usize..5, lba in any::<u64>(), first in any::<u64>(), application in 0u16..0xffff,
        kind in prop_oneof![Just(Kind::Type1), Just(Kind::Type2), Just(Kind::Type3)],
        guard in prop_oneof![Just(Guard::Crc16), Just(Guard::Crc32), Just(Guard::Crc64), Just(Guard::InternetChecksum)],
        other in prop_oneof![Just(Guard::Crc16), Just(Guard::Crc32), Just(Guard::Crc64), Just(Guard::InternetChecksum)],
        storage_bits in 0u8..=32, storage in any::<u64>(), cuts in cuts(), fill in any::<u8>(),
    ) {
        let storage = if storage_bits == 0 { 0 } else { storage >> (64 - storage_bits) };
        let wire = Format { kind, guard, interval, application, storage_bits, storage };
        let place = u128::from(first) << 64 | u128::from(lba);
        let with = Parameters { iv: place.to_le_bytes(), aad: b"" };
        let plain: Vec<u8> = (0..interval as usize * blocks).map(|at| (at as u8).wrapping_mul(91) ^ fill).collect();
        let add = Protection { memory: None, wire: Some(wire), check: Check::ALL };
        let protected = both_ways(&Transform::Protection(add), with, &plain, &cuts);

        // Bit by bit, as the standards have it.
        let mut expected = Vec::new();
        for (index, block) in (0u64..).zip(plain.chunks(interval as usize)) {
            expected.extend(block);
            match guard {
                Guard::Crc16 => expected.extend(crc::Crc::<u16>::new(&crc::CRC_16_T10_DIF).checksum(block).to_be_bytes()),
                Guard::Crc32 => expected.extend(crc::Crc::<u32>::new(&crc::CRC_32_ISCSI).checksum(block).to_be_bytes()),
                Guard::Crc64 => expected.extend(crc::Crc::<u64>::new(&crc::CRC_64_NVME).checksum(block).to_be_bytes()),
                _ => {
                    let words = block.chunks(2).map(|word| u32::from(word[0]) << 8 | u32::from(*word.get(1).unwrap_or(&0)));
                    let sum = words.fold(0, |sum, word| { let sum = sum + word; (sum & 0xffff) + (sum >> 16) });
                    expected.extend((!(sum as u16)).to_be_bytes());
                }
            }
            expected.extend(application.to_be_bytes());
            let reference = match kind {
                Kind::Type1 => lba.wrapping_add(index),
                Kind::Type2 => first.wrapping_add(index),
                Kind::Type3 => first,
            };
            let (space, bytes) = match guard {
                Guard::Crc32 => (80, 10),
                Guard::Crc64 => (48, 6),
                _ => (32, 4),
            };
            let bits = space - storage_bits;
            let reference = u128::from(reference) & ((1 << bits) - 1) | u128::from(storage) << bits;
            expected.extend(&reference.to_be_bytes()[16 - bytes..]);
        }
        prop_assert_eq!(&protected, &expected);

        // Into another format and back.
        let memory = Format { guard: other, application: application ^ 1, storage_bits: 0, storage: 0, ..wire };
        let transform = Protection { memory: Some(memory), wire: Some(wire), check: Check::ALL };
        let session = Session::new(&Transform::Protection(transform)).unwrap();
        let (in_memory, _) = run(&session, Way::Undo, with, &cut(&protected, &cuts)).unwrap();
        let (back, _) = run(&session, Way::Apply, with, &cut(&in_memory, &cuts)).unwrap();
        prop_assert_eq!(back, expected);
        let alone = Protection { memory: None, wire: Some(memory), check: Check::ALL };
        prop_assert_eq!(in_memory, both_ways(&Transform::Protection(alone), with, &plain, &cuts));
    }

    #[test]
    fn compression(seed in bytes(2000), level in 0u8..=9, cuts in cuts()) {
        let plain = words(&seed);
        for format in Compression::ALL {
            let transform = Transform::Compression { format, level };
            let packed = both_ways(&transform, Parameters::default(), &plain, &cuts);
            let (unpacked, mut theirs) = (match format {
                Compression::Deflate => miniz_oxide::inflate::decompress_to_vec(&packed).unwrap(),
                Compression::Zlib => miniz_oxide::inflate::decompress_to_vec_zlib(&packed).unwrap(),
                // RFC 1952 2.3: a head of ten bytes, CRC and length behind.
                Compression::Gzip => miniz_oxide::inflate::decompress_to_vec(&packed[10..packed.len() - 8]).unwrap(),
                _ => {
                    let mut unpacked = Vec::new();
                    lz4::Decoder::new(&packed[..]).unwrap().read_to_end(&mut unpacked).unwrap();
                    unpacked
                }
            }, match format {
                Compression::Deflate => miniz_oxide::deflate::compress_to_vec(&plain, level),
                Compression::Zlib => miniz_oxide::deflate::compress_to_vec_zlib(&plain, level),
                Compression::Gzip => continue,
                _ => {
                    let mut frame = lz4::EncoderBuilder::new().level(level.into()).build(Vec::new()).unwrap();
                    frame.write_all(&plain).unwrap();
                    frame.finish().0
                }
            });
            prop_assert_eq!(&unpacked, &plain);
            let len = theirs.len();
            theirs.extend(b"behind it");
            let session = Session::new(&transform).unwrap();
            let (unpacked, report) = run(&session, Way::Undo, Parameters::default(), &cut(&theirs, &cuts)).unwrap();
            prop_assert_eq!(&unpacked, &plain);
            prop_assert_eq!(report.consumed, len);
            let crc = |bytes: &[u8]| crc::Crc::<u32>::new(&crc::CRC_32_ISO_HDLC).checksum(bytes);
            let sums = Checksums { source: crc(&theirs[..report.consumed]), target: crc(&plain) };
            prop_assert_eq!(report.checksums, Some(sums));
        }
    }

    /// A chain gives what its steps give one after the other.
    #[test]
    fn chains(seed in bytes(600), lba in any::<u64>(), cuts in cuts()) {
        let plain = words(&seed);
        let wire = Format { guard: Guard::Crc64, ..Format::default() };
        let steps = vec![
            Transform::Compression { format: Compression::Lz4, level: 0 },
            Transform::Pad { unit: 512 },
            Transform::Xts { key: Secret::new((0..64).collect()), unit: 512, tweak: Tweak::Unit },
            Transform::Protection(Protection { memory: None, wire: Some(wire), check: Check::ALL }),
        ];
        let with = Parameters { iv: u128::from(lba).to_le_bytes(), aad: b"" };
        let stored = both_ways(&Transform::Chain(steps.clone()), with, &plain, &cuts);
        let one_by_one = steps.iter().fold(plain, |bytes, step| {
            run(&Session::new(step).unwrap(), Way::Apply, with, &[Bytes::from(bytes)]).unwrap().0
        });
        prop_assert_eq!(stored, one_by_one);
    }
}
