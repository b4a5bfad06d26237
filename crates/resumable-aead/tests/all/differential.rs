//! Every back-end against ring, or RustCrypto's CCM: random messages, splits, seeks, and sequences of calls.
//!
//! `RESUMABLE_AEAD_CASES` sets the number of cases per algorithm (thousands by default), `RESUMABLE_AEAD_SEED` the
//! first seed.

use crate::common::{SplitMix, begin, keys, seal_with_others};
use bytes::BytesMut;
use resumable_aead::{Algorithm, Key, State, TagMismatch};

#[test]
fn aes_128_gcm_matches_other_implementations() {
    run(Algorithm::Aes128Gcm);
}

#[test]
fn aes_256_gcm_matches_other_implementations() {
    run(Algorithm::Aes256Gcm);
}

#[test]
fn chacha20_poly1305_matches_other_implementations() {
    run(Algorithm::ChaCha20Poly1305);
}

#[test]
fn aes_ccm_matches_other_implementations() {
    run(Algorithm::Aes128Ccm);
    run(Algorithm::Aes256Ccm);
    run(Algorithm::Aes128Ccm8);
    run(Algorithm::Aes256Ccm8);
}

fn run(algorithm: Algorithm) {
    let number = |name: &str, default: u64| std::env::var(name).map_or(default, |text| text.parse().unwrap());
    let cases = number("RESUMABLE_AEAD_CASES", if algorithm.needs_len() { 500 } else { 3000 });
    let first = number("RESUMABLE_AEAD_SEED", 1) << 32;
    for case in first..first + cases {
        one_case(algorithm, &mut SplitMix(case), case);
    }
}

fn one_case(algorithm: Algorithm, random: &mut SplitMix, case: u64) {
    let key_bytes = random.bytes(algorithm.key_len());
    let nonce: [u8; 12] = random.bytes(12).try_into().unwrap();
    let aad_len = random.len(100);
    let aad = random.bytes(aad_len);
    let len = random.len(5000);
    let plaintext = random.bytes(len);
    let (ciphertext, tag) = seal_with_others(algorithm, &key_bytes, &nonce, &aad, &plaintext);

    let keys = keys(algorithm, &key_bytes);
    for key in &keys {
        let say = || format!("{key:?}, case {case}, {len} bytes, {aad_len} of AAD");

        let mut data = plaintext.clone();
        assert_eq!(key.seal_in_place(&nonce, &aad, &mut data), Ok(tag), "{}", say());
        assert!(data == ciphertext, "{}", say());
        assert_eq!(key.open_in_place(&nonce, &aad, &mut data, &tag), Ok(()), "{}", say());
        assert!(data == plaintext, "{}", say());

        let mut wrong = tag;
        wrong[random.below(algorithm.tag_len())] ^= 1 << random.below(8);
        let mut data = ciphertext.clone();
        assert_eq!(key.open_in_place(&nonce, &aad, &mut data, &wrong), Err(TagMismatch), "{}", say());
        assert!(data.iter().all(|&byte| byte == 0), "{}", say());

        // A seek: the keystream of any range.
        let start = random.below(len + 1);
        let end = start + random.len(len - start);
        let mut data = ciphertext[start..end].to_vec();
        key.apply_keystream(&nonce, start as u64, &mut data).unwrap();
        assert!(data == plaintext[start..end], "{}: keystream of {start}..{end}", say());
    }
    for _ in 0..2 {
        assert_eq!(walk(&keys, random, &nonce, &aad, &plaintext, &ciphertext, true), tag, "case {case}, encrypting");
        assert_eq!(walk(&keys, random, &nonce, &aad, &plaintext, &ciphertext, false), tag, "case {case}, decrypting");
    }
}

/// Processes a message in random pieces, each by a random call. Half the time one back-end processes all pieces, half
/// the time each piece has a random one. Returns the tag.
fn walk(
    keys: &[Key],
    random: &mut SplitMix,
    nonce: &[u8; 12],
    aad: &[u8],
    plaintext: &[u8],
    ciphertext: &[u8],
    encrypting: bool,
) -> [u8; 16] {
    let steady = random.below(2) == 0;
    let usual = random.below(keys.len());
    let mut key = &keys[usual];
    let mut state = begin(key, nonce, aad, plaintext.len());
    let (from, to) = if encrypting { (plaintext, ciphertext) } else { (ciphertext, plaintext) };
    let mut at = 0;
    while at < from.len() {
        if !steady {
            key = &keys[random.below(keys.len())];
        }
        let end = at + random.len(from.len() - at);
        let range = at..end;
        match random.below(9) {
            0 => state.authenticate_ciphertext(key, &ciphertext[range.clone()]).unwrap(),
            1 => state.authenticate_plaintext(key, &plaintext[range.clone()]).unwrap(),
            2 | 3 => {
                let mut data = vec![0xaa; range.len()];
                if encrypting {
                    state.encrypt_to(key, &from[range.clone()], &mut data).unwrap();
                } else {
                    state.decrypt_to(key, &from[range.clone()], &mut data).unwrap();
                }
                assert!(data == to[range.clone()], "{key:?} {range:?}");
            }
            4 => {
                // Appends to existing bytes, into uninitialised memory.
                let before = random.below(70);
                let mut data = BytesMut::with_capacity(before + random.below(2) * range.len());
                data.extend_from_slice(&[0x55; 70][..before]);
                if encrypting {
                    state.encrypt_append(key, &from[range.clone()], &mut data).unwrap();
                } else {
                    state.decrypt_append(key, &from[range.clone()], &mut data).unwrap();
                }
                assert!(data[before..] == to[range.clone()], "{key:?} {range:?}");
                assert!(data[..before].iter().all(|&byte| byte == 0x55), "{key:?} {range:?}");
            }
            _ => {
                // Guard bytes detect writes past the end; the alignment is random.
                let before = random.below(20);
                let mut data = vec![0x55; before + range.len() + 20];
                data[before..before + range.len()].copy_from_slice(&from[range.clone()]);
                let (guard, rest) = data.split_at_mut(before);
                let (piece, guard_after) = rest.split_at_mut(range.len());
                if encrypting {
                    state.encrypt(key, piece).unwrap();
                } else {
                    state.decrypt(key, piece).unwrap();
                }
                assert!(*piece == to[range.clone()], "{key:?} {range:?}");
                assert!(guard.iter().chain(&*guard_after).all(|&byte| byte == 0x55), "{key:?} {range:?}");
            }
        }
        at = end;
        assert_eq!(state.position(), at as u64);
        if random.below(4) == 0 {
            state = State::from_bytes(&state.to_bytes()).unwrap();
        }
    }
    let tag = state.tag(key).unwrap();
    state.verify(key, &tag[..key.algorithm().tag_len()]).unwrap();
    tag
}
