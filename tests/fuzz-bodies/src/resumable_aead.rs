//! A message through every back end by an arbitrary sequence of calls, against ring or RustCrypto's CCM; and arbitrary
//! bytes as states.

use crate::input::Input;
use resumable_aead::{Algorithm, Backend, Key, State, TagMismatch};

/// Runs one input.
pub fn run(input: &[u8]) {
    let mut input = Input(input);
    if input.byte() == 0xff {
        any_state(&mut input);
    } else {
        a_message(&mut input);
    }
}

/// Parses arbitrary bytes as a state. A valid state must not panic in any operation.
fn any_state(input: &mut Input<'_>) {
    let key_bytes = input.array::<32>();
    let Ok(mut state) = State::from_bytes(&input.array()) else { return };
    assert_eq!(State::from_bytes(&state.to_bytes()).unwrap().to_bytes(), state.to_bytes());
    let algorithm = state.algorithm();
    // A state contains a check value of its key, which is replaced by that of the key used here.
    for backend in Backend::ALL.into_iter().filter(|backend| backend.is_available(algorithm)) {
        let key = Key::with_backend(algorithm, &key_bytes[..algorithm.key_len()], backend).unwrap();
        let mut bytes = state.to_bytes();
        bytes[4..8].copy_from_slice(&State::new(&key, &[0; 12], b"").to_bytes()[4..8]);
        state = State::from_bytes(&bytes).unwrap();
        let mut data = input.0.to_vec();
        let _ = state.encrypt(&key, &mut data);
        let _ = state.decrypt(&key, &mut data);
        let _ = state.authenticate_plaintext(&key, &data);
        assert!(state.position() <= algorithm.message_len_max());
        assert_eq!(State::from_bytes(&state.to_bytes()).unwrap().tag(&key), state.tag(&key));
    }
}

fn a_message(input: &mut Input<'_>) {
    let algorithm = Algorithm::ALL[usize::from(input.byte()) % Algorithm::ALL.len()];
    let key_bytes = &input.array::<32>()[..algorithm.key_len()];
    let nonce = input.array::<12>();
    let aad_len = usize::from(input.byte());
    let aad = input.take(aad_len);
    let encrypting = input.byte().is_multiple_of(2);
    let calls = input.take(24);
    // The rest is the message, repeated so that long pieces occur.
    let times = 1 + usize::from(input.byte()) % 8;
    let plaintext = input.0.repeat(times);
    let (ciphertext, tag) = seal_with_another(algorithm, key_bytes, &nonce, aad, &plaintext);

    for backend in Backend::ALL.into_iter().filter(|backend| backend.is_available(algorithm)) {
        let key = Key::with_backend(algorithm, key_bytes, backend).unwrap();
        let mut data = plaintext.clone();
        assert_eq!(key.seal_in_place(&nonce, aad, &mut data), Ok(tag));
        assert!(data == ciphertext);
        assert_eq!(key.open_in_place(&nonce, aad, &mut data, &tag), Ok(()));
        assert!(data == plaintext);
        // A single wrong bit in the tag must be detected.
        let mut wrong = tag;
        wrong[calls.len() % algorithm.tag_len()] ^= 1;
        assert_eq!(key.open_in_place(&nonce, aad, &mut data, &wrong), Err(TagMismatch));

        let (from, to) = if encrypting { (&plaintext, &ciphertext) } else { (&ciphertext, &plaintext) };
        let mut state = State::with_len(&key, &nonce, aad, from.len() as u64).unwrap();
        let mut at = 0;
        for call in calls.chunks_exact(3) {
            let len = usize::from(u16::from_le_bytes([call[1], call[2]])) % 5000;
            let range = at..from.len().min(at + len);
            let (source, expected) = (&from[range.clone()], &to[range.clone()]);
            let mut data = source.to_vec();
            match (call[0] % 6, encrypting) {
                (0, _) => state.authenticate_ciphertext(&key, &ciphertext[range.clone()]).unwrap(),
                (1, _) => state.authenticate_plaintext(&key, &plaintext[range.clone()]).unwrap(),
                (2, true) => state.encrypt_to(&key, source, &mut data).unwrap(),
                (2, false) => state.decrypt_to(&key, source, &mut data).unwrap(),
                (3, _) => state = State::from_bytes(&state.to_bytes()).unwrap(),
                (_, true) => state.encrypt(&key, &mut data).unwrap(),
                (_, false) => state.decrypt(&key, &mut data).unwrap(),
            }
            // Saving and loading the state moves nothing.
            match call[0] % 6 {
                0 | 1 => at = range.end,
                3 => {}
                _ => {
                    assert!(data == expected);
                    at = range.end;
                }
            }
            let mut data = source.to_vec();
            key.apply_keystream(&nonce, range.start as u64, &mut data).unwrap();
            assert!(data == expected);
        }
        state.authenticate_ciphertext(&key, &ciphertext[at..]).unwrap();
        assert_eq!(state.tag(&key), Ok(tag));
    }
}

fn seal_with_another(
    algorithm: Algorithm,
    key: &[u8],
    nonce: &[u8; 12],
    aad: &[u8],
    data: &[u8],
) -> (Vec<u8>, [u8; 16]) {
    use ring::aead;
    let algorithm = match algorithm {
        Algorithm::Aes128Gcm => &aead::AES_128_GCM,
        Algorithm::Aes256Gcm => &aead::AES_256_GCM,
        Algorithm::ChaCha20Poly1305 => &aead::CHACHA20_POLY1305,
        _ => return seal_with_rust_crypto(algorithm, key, nonce, aad, data),
    };
    let key = aead::LessSafeKey::new(aead::UnboundKey::new(algorithm, key).unwrap());
    let mut data = data.to_vec();
    let nonce = aead::Nonce::assume_unique_for_key(*nonce);
    let tag = key.seal_in_place_separate_tag(nonce, aead::Aad::from(aad), &mut data).unwrap();
    (data, tag.as_ref().try_into().unwrap())
}

fn seal_with_rust_crypto(
    algorithm: Algorithm,
    key: &[u8],
    nonce: &[u8; 12],
    aad: &[u8],
    data: &[u8],
) -> (Vec<u8>, [u8; 16]) {
    use aes::{Aes128, Aes256};
    use ccm::consts::{U8, U12, U16};
    use ccm::{AeadInOut, Ccm, KeyInit};
    let (mut data, mut tag) = (data.to_vec(), [0; 16]);
    macro_rules! seal {
        ($aes:ty, $tag_len:ty) => {{
            let ccm = Ccm::<$aes, $tag_len, U12>::new_from_slice(key).unwrap();
            let short = ccm.encrypt_inout_detached(&(*nonce).into(), aad, data.as_mut_slice().into()).unwrap();
            tag[..short.len()].copy_from_slice(&short);
        }};
    }
    match algorithm {
        Algorithm::Aes128Ccm => seal!(Aes128, U16),
        Algorithm::Aes256Ccm => seal!(Aes256, U16),
        Algorithm::Aes128Ccm8 => seal!(Aes128, U8),
        _ => seal!(Aes256, U8),
    }
    (data, tag)
}
