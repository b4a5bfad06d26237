//! AES by itself: each back-end compared with a block cipher that works block by block.

use aes::cipher::{BlockCipherEncrypt, KeyInit};
use proptest::prelude::*;
use resumable_aead::{AesKey, Backend, CbcMac};

fn backends() -> impl Iterator<Item = Backend> {
    Backend::ALL.into_iter().filter(|backend| AesKey::is_available(*backend))
}

fn encrypt(key: &[u8], block: u128) -> u128 {
    let mut block = block.to_be_bytes().into();
    match key.len() {
        16 => aes::Aes128::new_from_slice(key).unwrap().encrypt_block(&mut block),
        _ => aes::Aes256::new_from_slice(key).unwrap().encrypt_block(&mut block),
    }
    u128::from_be_bytes(block.into())
}

fn key() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![any::<[u8; 16]>().prop_map(Vec::from), any::<[u8; 32]>().prop_map(Vec::from)]
}

/// Counters, some of them near the end of 32, 64 and 128 bits.
fn counter() -> impl Strategy<Value = u128> {
    let near = |end: u32| {
        (any::<u128>(), 0u128..80).prop_map(move |(above, before)| {
            let low = u128::MAX >> (128 - end);
            above & !low | (low - before)
        })
    };
    prop_oneof![any::<u128>(), near(32), near(64), near(128)]
}

proptest! {
    #[test]
    fn counter_mode_matches_single_blocks(key in key(), first in counter(), len in 0usize..2500, byte: u8) {
        let mut expected = vec![byte; len];
        for (number, block) in expected.chunks_mut(16).enumerate() {
            let keystream = encrypt(&key, first.wrapping_add(number as u128)).to_be_bytes();
            block.iter_mut().zip(keystream).for_each(|(byte, key)| *byte ^= key);
        }
        for backend in backends() {
            let mut data = vec![byte; len];
            AesKey::with_backend(&key, backend).unwrap().counter_mode(first, &mut data);
            prop_assert!(data == expected, "{backend:?}");
        }
    }

    #[test]
    fn parallel_cbc_macs_match_single_messages(
        keys in prop::collection::vec(key(), 1..6),
        messages in prop::collection::vec((0usize..6, [0usize..3, 0usize..40, 0usize..3], any::<u8>()), 0..50),
    ) {
        let made = |key: &Vec<u8>, backend| AesKey::with_backend(key, backend).unwrap();
        let parts: Vec<[Vec<u8>; 3]> = messages
            .iter()
            .map(|(_, blocks, byte)| blocks.map(|blocks| (0..16 * blocks).map(|at| (at as u8).wrapping_mul(31) ^ byte).collect()))
            .collect();
        for backend in backends() {
            let expanded: Vec<AesKey> = keys.iter().map(|key| made(key, backend)).collect();
            let mut macs: Vec<CbcMac<'_>> = messages
                .iter()
                .zip(&parts)
                .map(|((key, ..), parts)| CbcMac::new(&expanded[key % keys.len()], parts.each_ref().map(|part| &part[..])))
                .collect();
            CbcMac::run(&mut macs);
            for (((key, ..), parts), mac) in messages.iter().zip(&parts).zip(&macs) {
                let blocks = parts.concat();
                let expected = blocks.as_chunks::<16>().0.iter().fold(0, |mac, block| {
                    encrypt(&keys[key % keys.len()], mac ^ u128::from_be_bytes(*block))
                });
                prop_assert_eq!(u128::from_be_bytes(mac.mac()), expected, "{:?}", backend);
            }
        }
    }
}
