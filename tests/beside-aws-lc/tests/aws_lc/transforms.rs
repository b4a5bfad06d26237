//! Transforms of random keys, bytes and pieces give the same result as AWS-LC, and the inverse restores the source.

use crate::pieces::{both_ways, bytes, cuts, run};
use aws_lc_rs::{aead, cipher, cmac, hmac, iv};
use offload_transforms::{Aead, HmacHash, MacOrder, Parameters, SecretBytes, Session, Transform, TransformDirection};
use proptest::prelude::*;

fn aes(key: &[u8]) -> &'static cipher::Algorithm {
    if key.len() == 16 { &cipher::AES_128 } else { &cipher::AES_256 }
}

fn cbc(key: &[u8], iv: [u8; 16], data: &mut [u8]) {
    let key = cipher::UnboundCipherKey::new(aes(key), key).unwrap();
    let iv = cipher::EncryptionContext::Iv128(iv::FixedLength::from(iv));
    cipher::EncryptingKey::cbc(key).unwrap().less_safe_encrypt(data, iv).unwrap();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn aeads(key in any::<[u8; 32]>(), iv in any::<[u8; 16]>(), aad in bytes(40), plain in bytes(3000), cuts in cuts()) {
        for kind in [Aead::Aes128Gcm, Aead::Aes256Gcm, Aead::ChaCha20Poly1305] {
            let key = &key[..kind.key_len()];
            let transform = Transform::Aead { aead: kind, key: SecretBytes::new(key.to_vec()) };
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

    /// Compares with CCM composed of AES-CTR and AES-CBC by RFC 3610 2.
    #[test]
    fn ccm(key in any::<[u8; 32]>(), iv in any::<[u8; 16]>(), aad in bytes(40), plain in bytes(600), cuts in cuts()) {
        for kind in [Aead::Aes128Ccm, Aead::Aes256Ccm] {
            let key = &key[..kind.key_len()];
            let transform = Transform::Aead { aead: kind, key: SecretBytes::new(key.to_vec()) };
            let sealed = both_ways(&transform, Parameters { iv, aad: &aad }, &plain, &cuts);
            let block = |flags: u8, last: u32| {
                let mut block = [0; 16];
                block[0] = flags;
                block[1..13].copy_from_slice(&iv[..12]);
                block[13..].copy_from_slice(&last.to_be_bytes()[1..]);
                block
            };
            // RFC 3610 2.2: the flags contain the tag's length, the length of the length field, and whether there is
            // AAD.
            let mut macked = block(if aad.is_empty() { 0x3a } else { 0x7a }, plain.len() as u32).to_vec();
            if !aad.is_empty() {
                macked.extend((aad.len() as u16).to_be_bytes());
                macked.extend(&aad);
                macked.resize(macked.len().next_multiple_of(16), 0);
            }
            macked.extend(&plain);
            macked.resize(macked.len().next_multiple_of(16), 0);
            cbc(key, [0; 16], &mut macked);
            // The tag is encrypted with counter 0, the message from counter 1 on.
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
            if order { MacOrder::EncryptThenMac } else { MacOrder::MacThenEncrypt },
            if sha1 { HmacHash::Sha1 } else { HmacHash::Sha256 },
        );
        let cipher_key = &key[..if long { 32 } else { 16 }];
        let mac_key = &key[..hash.len()];
        let transform = Transform::CbcHmac {
            order,
            hash,
            cipher_key: SecretBytes::new(cipher_key.to_vec()),
            mac_key: SecretBytes::new(mac_key.to_vec()),
        };
        let sealed = both_ways(&transform, Parameters { iv, aad: &aad }, &plain, &cuts);

        let algorithm = if sha1 { hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY } else { hmac::HMAC_SHA256 };
        let mac = |parts: &[&[u8]]| {
            let mut mac = hmac::Context::with_key(&hmac::Key::new(algorithm, mac_key));
            parts.iter().for_each(|part| mac.update(part));
            mac.sign().as_ref().to_vec()
        };
        let mut expected = plain.clone();
        if order == MacOrder::MacThenEncrypt {
            expected.extend(mac(&[&aad, &(plain.len() as u16).to_be_bytes(), &plain]));
        }
        let padding = 16 - expected.len() % 16;
        expected.resize(expected.len() + padding, padding as u8 - 1);
        cbc(cipher_key, iv, &mut expected);
        if order == MacOrder::EncryptThenMac {
            expected.extend(mac(&[&aad, &iv, &expected]));
        }
        prop_assert_eq!(sealed, expected);
    }

    /// Padding may be longer than necessary. The opener reports every wrong byte by the same error, or an attacker
    /// could tell padding from MAC.
    #[test]
    fn longer_padding(plain in bytes(700), more in 0usize..16, wrong in any::<usize>(), sha1 in any::<bool>()) {
        let hash = if sha1 { HmacHash::Sha1 } else { HmacHash::Sha256 };
        let session = Session::new(&Transform::CbcHmac {
            order: MacOrder::MacThenEncrypt,
            hash,
            cipher_key: SecretBytes::new(vec![7; 16]),
            mac_key: SecretBytes::new(vec![8; 20]),
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
        prop_assert_eq!(run(&session, TransformDirection::Undo, with, &[sealed.into()]).unwrap().0, &plain[..]);

        let at = wrong % record.len();
        record[at] ^= 1 << (wrong % 7);
        cbc(&[7; 16], [3; 16], &mut record);
        let refused = run(&session, TransformDirection::Undo, with, &[record.into()]);
        prop_assert_eq!(refused, Err(offload_transforms::Fault::NotAuthentic));
    }

    #[test]
    fn counter_mode_and_cmac(key in any::<[u8; 32]>(), iv in any::<[u8; 16]>(), plain in bytes(800), cuts in cuts()) {
        for len in [16, 32] {
            let key = &key[..len];
            let secret = SecretBytes::new(key.to_vec());
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
}
