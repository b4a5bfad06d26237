//! AEADs that can stop and resume, with every back end of this processor.

use crate::pieces::bytes;
use aws_lc_rs::aead::{AES_128_GCM, AES_256_GCM, Aad, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey};
use proptest::prelude::*;
use resumable_aead::{Algorithm, Backend, Key};

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn whole_messages(key in any::<[u8; 32]>(), nonce in any::<[u8; 12]>(), aad in bytes(100), plain in bytes(5000)) {
        for (algorithm, theirs) in [
            (Algorithm::Aes128Gcm, &AES_128_GCM),
            (Algorithm::Aes256Gcm, &AES_256_GCM),
            (Algorithm::ChaCha20Poly1305, &CHACHA20_POLY1305),
        ] {
            let key = &key[..algorithm.key_len()];
            let mut expected = plain.clone();
            let other = LessSafeKey::new(UnboundKey::new(theirs, key).unwrap());
            let nonce_of_theirs = Nonce::assume_unique_for_key(nonce);
            let expected_tag = other.seal_in_place_separate_tag(nonce_of_theirs, Aad::from(&aad), &mut expected).unwrap();
            for backend in Backend::ALL.into_iter().filter(|backend| backend.is_available(algorithm)) {
                let ours = Key::with_backend(algorithm, key, backend).unwrap();
                let mut sealed = plain.clone();
                let tag = ours.seal_in_place(&nonce, &aad, &mut sealed).unwrap();
                prop_assert_eq!(&sealed, &expected, "{:?}", &ours);
                prop_assert_eq!(&tag, expected_tag.as_ref(), "{:?}", &ours);
            }
        }
    }
}
