//! The end of what one nonce can protect, and calls out of order.

use crate::common::{SplitMix, begin, keys, seal_with_others};
use resumable_aead::{
    Algorithm, Backend, Key, KeyError, KeyLengthError, MessageTooLong, State, StateBytesError, StateError, TagMismatch,
    VerifyError,
};

/// Returns a state at `position` of `len` bytes, at the beginning of a block. The state is parsed from bytes, because processing so long a message would take
/// minutes.
fn state_at(key: &Key, nonce: &[u8; 12], position: u64, len: u64) -> State {
    let mut bytes = State::with_len(key, nonce, b"", len).unwrap().to_bytes();
    assert!(position.is_multiple_of(16));
    bytes[24..32].copy_from_slice(&position.to_le_bytes());
    State::from_bytes(&bytes).unwrap()
}

#[test]
fn last_counter_values_match_the_cipher() {
    // The oracle is the block cipher itself, for the last counters.
    use aes::cipher::{BlockCipherEncrypt, KeyInit};
    let key_bytes = SplitMix(1).bytes(16);
    let nonce = [0x5c; 12];
    let cipher = aes::Aes128::new_from_slice(&key_bytes).unwrap();
    let limit = Algorithm::Aes128Gcm.message_len_max();
    let blocks = 100;
    let start = limit - 16 * blocks;
    let mut expected = Vec::new();
    for block in 0..blocks {
        let counter = u32::MAX - (blocks - 1 - block) as u32;
        let mut bytes = [0; 16];
        bytes[..12].copy_from_slice(&nonce);
        bytes[12..].copy_from_slice(&counter.to_be_bytes());
        let mut bytes = bytes.into();
        cipher.encrypt_block(&mut bytes);
        expected.extend_from_slice(&bytes);
    }
    for key in keys(Algorithm::Aes128Gcm, &key_bytes) {
        let mut data = vec![0; expected.len()];
        key.apply_keystream(&nonce, start, &mut data).unwrap();
        assert_eq!(data, expected, "{key:?}");

        let mut data = vec![0; expected.len()];
        state_at(&key, &nonce, start, limit).encrypt(&key, &mut data).unwrap();
        assert_eq!(data, expected, "{key:?}");
    }
}

#[test]
fn backends_agree_across_counter_carries() {
    for algorithm in Algorithm::ALL {
        let key_bytes = SplitMix(2).bytes(algorithm.key_len());
        let nonce = [9; 12];
        let len = 2944; // a multiple of 64: the state written by hand begins at a block
        let near = [1 << 12, 1 << 20, 1 << 28, 1 << 35, algorithm.message_len_max()];
        for end in near.map(|near: u64| (near + 1472).min(algorithm.message_len_max())) {
            let start = (end - len as u64) & !15;
            let plaintext = SplitMix(end).bytes(len);
            let mut seen: Option<(Vec<u8>, [u8; 16])> = None;
            for key in keys(algorithm, &key_bytes) {
                let mut data = plaintext.clone();
                let mut state = state_at(&key, &nonce, start, start + len as u64);
                for piece in data.chunks_mut(1001) {
                    state.encrypt(&key, piece).unwrap();
                }
                let sealed = (data, state.tag(&key).unwrap());
                assert_eq!(seen.get_or_insert_with(|| sealed.clone()), &sealed, "{key:?} at {start}");

                // Seeking gives the same keystream, also from within a block.
                let (mut data, _) = sealed;
                key.apply_keystream(&nonce, start, &mut data[..77]).unwrap();
                key.apply_keystream(&nonce, start + 77, &mut data[77..]).unwrap();
                assert!(data == plaintext, "{key:?} at {start}");
            }
        }
    }
}

#[test]
fn exceeding_the_limit_fails_and_leaves_data_untouched() {
    for algorithm in Algorithm::ALL {
        let limit = algorithm.message_len_max();
        for key in keys(algorithm, &vec![1; algorithm.key_len()]) {
            let start = (limit - 16) & !15;
            let mut state = state_at(&key, &[0; 12], start, limit);
            state.authenticate_ciphertext(&key, &vec![0; (limit - start) as usize - 10]).unwrap();
            let before = state.to_bytes();
            let mut data = [7; 11];
            assert_eq!(state.encrypt(&key, &mut data), Err(StateError::MessageTooLong(MessageTooLong)));
            assert_eq!(state.decrypt(&key, &mut data), Err(StateError::MessageTooLong(MessageTooLong)));
            assert_eq!(state.authenticate_ciphertext(&key, &data), Err(StateError::MessageTooLong(MessageTooLong)));
            assert_eq!(state.authenticate_plaintext(&key, &data), Err(StateError::MessageTooLong(MessageTooLong)));
            assert_eq!(key.apply_keystream(&[0; 12], limit - 10, &mut data), Err(MessageTooLong));
            assert_eq!(key.apply_keystream(&[0; 12], u64::MAX, &mut data), Err(MessageTooLong));
            assert_eq!(data, [7; 11]);
            assert_eq!(state.to_bytes(), before);

            state.encrypt(&key, &mut data[..10]).unwrap();
            state.encrypt(&key, &mut []).unwrap();
            assert_eq!(state.position(), limit);
            assert!(state.encrypt(&key, &mut data[..1]).is_err());
            state.tag(&key).unwrap();
        }
    }
}

#[test]
fn empty_message_has_a_tag() {
    for algorithm in Algorithm::ALL {
        let key_bytes = SplitMix(3).bytes(algorithm.key_len());
        let (_, tag) = seal_with_others(algorithm, &key_bytes, &[4; 12], b"", b"");
        for key in keys(algorithm, &key_bytes) {
            assert_eq!(key.seal_in_place(&[4; 12], b"", &mut []), Ok(tag));
            let mut state = begin(&key, &[4; 12], b"", 0);
            state.encrypt(&key, &mut []).unwrap();
            state.authenticate_ciphertext(&key, &[]).unwrap();
            state.authenticate_plaintext(&key, &[]).unwrap();
            state.verify(&key, &tag[..algorithm.tag_len()]).unwrap();
        }
    }
}

#[test]
fn every_wrong_tag_is_refused() {
    for algorithm in Algorithm::ALL {
        for key in keys(algorithm, &vec![2; algorithm.key_len()]) {
            let mut sealed = *b"some message";
            let tag = key.seal_in_place(&[0; 12], b"header", &mut sealed).unwrap();
            let open = |nonce: [u8; 12], aad: &[u8], mut data: [u8; 12], tag: [u8; 16]| {
                let opened = key.open_in_place(&nonce, aad, &mut data, &tag);
                assert!(opened.is_ok() || data == [0; 12], "{key:?}");
                opened
            };
            assert_eq!(open([0; 12], b"header", sealed, tag), Ok(()));
            for bit in 0..128 {
                let mut wrong = tag;
                wrong[bit / 8] ^= 1 << (bit % 8);
                assert_eq!(open([0; 12], b"header", sealed, wrong), Err(TagMismatch));
            }
            let mut wrong = sealed;
            wrong[11] ^= 0x80;
            assert_eq!(open([0; 12], b"header", wrong, tag), Err(TagMismatch));
            assert_eq!(open([1; 12], b"header", sealed, tag), Err(TagMismatch));
            assert_eq!(open([0; 12], b"headed", sealed, tag), Err(TagMismatch));

            let mut state = begin(&key, &[0; 12], b"header", sealed.len());
            state.authenticate_ciphertext(&key, &sealed).unwrap();
            assert_eq!(state.verify(&key, &tag[..algorithm.tag_len()]), Ok(()));
            assert_eq!(state.verify(&key, &tag[..algorithm.tag_len() - 1]), Err(VerifyError::TagMismatch(TagMismatch)));
            assert_eq!(state.verify(&key, &[]), Err(VerifyError::TagMismatch(TagMismatch)));
        }
    }
}

#[test]
fn out_of_order_calls_fail_and_change_nothing() {
    for algorithm in Algorithm::ALL {
        let key = Key::new(algorithm, &vec![3; algorithm.key_len()]).unwrap();
        let other = Key::new(algorithm, &vec![4; algorithm.key_len()]).unwrap();
        let mut data = [1; 20];

        let mut state = begin(&key, &[0; 12], b"", 60);
        state.encrypt(&key, &mut data[..5]).unwrap();
        let before = (state.to_bytes(), data);
        assert_eq!(state.decrypt(&key, &mut data), Err(StateError::MixedDirections));
        assert_eq!(state.encrypt(&other, &mut data), Err(StateError::WrongKey));
        assert_eq!(state.authenticate_ciphertext(&other, &data), Err(StateError::WrongKey));
        assert_eq!(state.authenticate_plaintext(&other, &data), Err(StateError::WrongKey));
        assert_eq!(state.tag(&other), Err(StateError::WrongKey));
        assert_eq!(state.verify(&other, &[0; 16]), Err(VerifyError::Misuse(StateError::WrongKey)));
        let mut destination = [0; 19];
        let mismatch = Err(StateError::LengthMismatch { source_len: 20, destination_len: 19 });
        assert_eq!(state.encrypt_to(&key, &data, &mut destination), mismatch);
        assert_eq!(state.decrypt_to(&key, &data, &mut destination), mismatch);
        assert_eq!((state.to_bytes(), data), before);

        let mut state = begin(&key, &[0; 12], b"", 60);
        state.authenticate_ciphertext(&key, &data).unwrap(); // goes with either way
        state.decrypt(&key, &mut data).unwrap();
        assert_eq!(state.encrypt(&key, &mut data), Err(StateError::MixedDirections));

        for other in Algorithm::ALL.into_iter().filter(|other| *other != algorithm) {
            let other = Key::new(other, &vec![3; other.key_len()]).unwrap();
            assert_eq!(state.decrypt(&other, &mut data), Err(StateError::WrongKey));
        }
    }
}

/// Only CCM has the length in its first block.
#[test]
fn declared_length_is_enforced() {
    let key = Key::new(Algorithm::Aes256Ccm8, &[1; 32]).unwrap();
    let mut data = [7; 40];
    let mut without = State::new(&key, &[0; 12], b"aad");
    assert_eq!(without.encrypt(&key, &mut data), Err(StateError::LengthNotGiven));
    assert_eq!(without.encrypt(&key, &mut []), Err(StateError::LengthNotGiven));
    assert_eq!(without.authenticate_plaintext(&key, &data), Err(StateError::LengthNotGiven));
    assert_eq!(State::from_bytes(&without.to_bytes()).unwrap().tag(&key), Err(StateError::LengthNotGiven));

    let mut state = begin(&key, &[0; 12], b"aad", 30);
    state.encrypt(&key, &mut data[..17]).unwrap();
    let before = (state.to_bytes(), data);
    assert_eq!(state.encrypt(&key, &mut data[..14]), Err(StateError::PastLength { declared: 30 }));
    assert_eq!(state.authenticate_ciphertext(&key, &data[..14]), Err(StateError::PastLength { declared: 30 }));
    assert_eq!(state.tag(&key), Err(StateError::Unfinished { missing: 13 }));
    let unfinished = VerifyError::Misuse(StateError::Unfinished { missing: 13 });
    assert_eq!(state.verify(&key, &[0; 8]), Err(unfinished));
    assert_eq!((state.to_bytes(), data), before);
    state.encrypt(&key, &mut data[17..30]).unwrap();
    let tag = state.tag(&key).unwrap();
    assert_eq!(key.open_in_place(&[0; 12], b"aad", &mut data[..30], &tag), Ok(()));
    assert_eq!(data, [7; 40]);

    let max = Algorithm::Aes256Ccm8.message_len_max();
    assert_eq!(State::with_len(&key, &[0; 12], b"", max + 1).map(|_| ()), Err(MessageTooLong));
    // A length that is less than the position.
    let mut bytes = state.to_bytes();
    bytes[40 + 32] = 29;
    assert_eq!(State::from_bytes(&bytes).map(|_| ()), Err(StateBytesError::Invalid("authenticator")));
}

/// From 65280 bytes on, the AAD's length has another encoding (SP 800-38C A.2.2).
#[test]
fn long_aad_uses_the_longer_length_encoding() {
    for len in [65279, 65280, 65281] {
        let aad = SplitMix(len).bytes(len as usize);
        let (_, tag) = seal_with_others(Algorithm::Aes128Ccm, &[5; 16], &[6; 12], &aad, b"");
        for key in keys(Algorithm::Aes128Ccm, &[5; 16]) {
            assert_eq!(key.seal_in_place(&[6; 12], &aad, &mut []), Ok(tag), "{key:?} {len}");
        }
    }
}

#[test]
fn keys_of_a_wrong_length_are_refused() {
    for algorithm in Algorithm::ALL {
        for found in [0, 15, 16, 17, 24, 31, 32, 33] {
            let key = Key::new(algorithm, &vec![0; found]);
            if found == algorithm.key_len() {
                assert!(key.is_ok());
            } else {
                assert_eq!(key.err(), Some(KeyLengthError { algorithm, found }));
            }
        }
        for backend in Backend::ALL {
            let key = Key::with_backend(algorithm, &vec![0; algorithm.key_len()], backend);
            match backend.is_available(algorithm) {
                true => assert_eq!(key.unwrap().backend(), backend),
                false => assert_eq!(key.err(), Some(KeyError::BackendUnavailable { backend, algorithm })),
            }
        }
    }
}

#[test]
fn impossible_state_bytes_are_refused() {
    for algorithm in Algorithm::ALL {
        let key = Key::new(algorithm, &vec![5; algorithm.key_len()]).unwrap();
        let mut state = begin(&key, &[6; 12], b"aad", 32);
        state.encrypt(&key, &mut [0; 32]).unwrap();
        let good = state.to_bytes();
        let spoil = |at: usize, value: u8| {
            let mut bytes = good;
            bytes[at] = value;
            State::from_bytes(&bytes).map(|_| ())
        };
        assert_eq!(spoil(0, 1), Ok(()));
        assert_eq!(spoil(0, 2), Err(StateBytesError::UnknownLayout(2)));
        assert_eq!(spoil(1, 0), Err(StateBytesError::Invalid("algorithm")));
        assert_eq!(spoil(2, 3), Err(StateBytesError::Invalid("direction")));
        assert_eq!(spoil(3, 1), Err(StateBytesError::Invalid("padding")));
        assert_eq!(spoil(20, 1), Err(StateBytesError::Invalid("padding")));
        assert_eq!(spoil(31, 1), Err(StateBytesError::Invalid("position")));
        // On a block's boundary the last byte belongs to nothing.
        assert_eq!(spoil(State::BYTES - 1, 1), Err(StateBytesError::Invalid("authenticator")));
        if algorithm == Algorithm::ChaCha20Poly1305 {
            assert_eq!(spoil(40 + 16, 5), Err(StateBytesError::Invalid("authenticator"))); // accumulator too large
            assert_eq!(spoil(40 + 24 + 3, 0xff), Err(StateBytesError::Invalid("authenticator"))); // not clamped
        }
    }
}

#[test]
fn state_at_the_message_limit_can_be_parsed() {
    for algorithm in Algorithm::ALL {
        let key = Key::new(algorithm, &vec![5; algorithm.key_len()]).unwrap();
        let end = algorithm.message_len_max();
        let last = end & !15;
        let state = state_at(&key, &[6; 12], last, end);
        assert_eq!(state.position(), last);
        let mut bytes = state.to_bytes();
        bytes[24..32].copy_from_slice(&(last + 16).to_le_bytes());
        assert_eq!(State::from_bytes(&bytes).map(|_| ()), Err(StateBytesError::Invalid("position")));
    }
}

#[test]
fn state_is_small_and_secrets_are_not_printed() {
    assert_eq!(size_of::<State>(), 128); // of the 208 that an engine has for a flow
    const { assert!(State::BYTES <= 208 - 64) };
    fn is_shareable<T: Send + Sync + 'static>() {}
    is_shareable::<Key>();
    is_shareable::<State>();

    for algorithm in Algorithm::ALL {
        let key = Key::new(algorithm, &vec![0xab; algorithm.key_len()]).unwrap();
        let printed = format!("{key:?} {:?}", State::new(&key, &[0xcd; 12], b""));
        for secret in ["171", "abab", "205", "cdcd"] {
            assert!(!printed.to_lowercase().contains(secret), "{printed}");
        }
    }
}
