//! Every chain produces the same bytes as another implementation.

use bytes::{Bytes, BytesMut};
use cellular_crypto::{Algorithm, Iv, Key, TagLen};
use crypto_services::{Graph, NotAuthentic, SecretBytes, Suite, SuiteCipher, SuiteKeys, TransformDirection};
use offload_base::Seed;
use offload_transforms::{Aead, HmacHash, MacOrder, Parameters, Session, Transform};

fn keys_of(suite: Suite, rng: &mut offload_base::Rng) -> SuiteKeys {
    let mut secret = |bytes: usize| {
        let mut key = vec![0; bytes];
        rng.fill(&mut key);
        SecretBytes::new(key)
    };
    let [cipher, mac, header] = suite.key_lengths().map(&mut secret);
    SuiteKeys { cipher, mac, header }
}

/// Seals with another implementation: ring's or our own one-shot AEAD, TLS CBC, or the complete 5G ciphers.
fn reference(suite: Suite, keys: &SuiteKeys, iv: [u8; 16], aad: &[u8], plain: &[u8]) -> Vec<u8> {
    let by = |transform: Transform| {
        let mut sealed = BytesMut::with_capacity(plain.len() + 64);
        let source = [Bytes::copy_from_slice(plain)];
        let session = Session::new(&transform).unwrap();
        session.run(TransformDirection::Apply, Parameters { iv, aad }, &source, &mut sealed).unwrap();
        sealed.to_vec()
    };
    let aead = |aead| by(Transform::Aead { aead, key: keys.cipher.clone() });
    let cbc = |order| {
        let (cipher_key, mac_key) = (keys.cipher.clone(), keys.mac.clone());
        by(Transform::CbcHmac { order, hash: HmacHash::Sha1, cipher_key, mac_key })
    };
    let key = |number| Key::new(Algorithm::from_number(number).unwrap(), keys.cipher.bytes()).unwrap();
    match suite {
        // QUIC's header mask does not affect the sealed packet.
        Suite::Aes128Gcm | Suite::QuicAes128Gcm => aead(Aead::Aes128Gcm),
        Suite::Aes256Gcm => aead(Aead::Aes256Gcm),
        Suite::ChaCha20Poly1305 => aead(Aead::ChaCha20Poly1305),
        Suite::Aes128CbcSha | Suite::Aes256CbcSha => cbc(MacOrder::MacThenEncrypt),
        Suite::Aes128CbcShaEtm | Suite::Aes256CbcShaEtm => cbc(MacOrder::EncryptThenMac),
        Suite::Nea(number) => {
            let mut data = plain.to_vec();
            key(number).cipher(&Iv::from_bytes(iv), &mut data).unwrap();
            data
        }
        Suite::Nia(number) => {
            let mac = key(number).mac(&Iv::from_bytes(iv), plain, TagLen::new(4).unwrap()).unwrap();
            [plain, mac.as_bytes()].concat()
        }
        _ => unreachable!("all suites are above"),
    }
}

#[test]
fn every_chain_matches_its_cipher() {
    let mut rng = Seed(21).stream("suites");
    for suite in Suite::ALL {
        for round in 0..120 {
            let keys = keys_of(suite, &mut rng);
            let cipher = SuiteCipher::new(suite, &keys).unwrap();
            let mut iv = [0; 16];
            rng.fill(&mut iv);
            // The TLS header without its length.
            let mut aad = vec![0; if keys.mac.bytes().is_empty() { rng.below(40) as usize } else { 11 }];
            if matches!(suite, Suite::Aes128CbcShaEtm | Suite::Aes256CbcShaEtm) {
                aad.resize(13, 0);
            }
            rng.fill(&mut aad);
            let mut plain = vec![0; if round < 70 { round } else { rng.below(3000) as usize }];
            rng.fill(&mut plain);
            let mut packet = plain.clone();
            cipher.seal(&iv, &aad, &mut packet);
            assert_eq!(packet, reference(suite, &keys, iv, &aad, &plain), "{} {}", suite.name(), plain.len());
            let sealed = packet.clone();
            assert_eq!(cipher.open(&iv, &aad, &mut packet), Ok(()));
            assert_eq!(packet, plain);
            // A 5G cipher has no tag, so damage is not detected.
            if matches!(suite, Suite::Nea(_)) {
                continue;
            }
            let (mut broken, place) = (sealed.clone(), rng.below(sealed.len() as u64) as usize);
            broken[place] ^= 1 << rng.below(8);
            assert_eq!(cipher.open(&iv, &aad, &mut broken), Err(NotAuthentic), "{} {place}", suite.name());
            assert!(broken.is_empty(), "no plaintext is exposed");
            let mut short = sealed[..rng.below(4) as usize].to_vec();
            assert_eq!(cipher.open(&iv, &aad, &mut short), Err(NotAuthentic));
        }
    }
}

/// Published results: test cases 4 and 16 of the GCM specification, and RFC 8439 2.8.2.
#[test]
fn aead_chains_match_published_vectors() {
    const GCM_PLAIN: &str = "d9313225f88406e5a55909c5aff5269a86a7a9531534f7da2e4c303d8a318a721c3c0c95956809532fcf0e2449a6b525b16aedf5aa0de657ba637b39";
    const GCM_AAD: &str = "feedfacedeadbeeffeedfacedeadbeefabaddad2";
    const GCM_KEY: &str = "feffe9928665731c6d6a8f9467308308";
    let chacha_key: String = (0x80..0xa0).map(|byte| format!("{byte:02x}")).collect();
    let chacha_plain = "Ladies and Gentlemen of the class of '99: If I could offer you only one tip for the future, sunscreen would be it.";
    let chacha_plain: String = chacha_plain.bytes().map(|byte| format!("{byte:02x}")).collect();
    let cases = [
        (
            Suite::Aes128Gcm,
            (GCM_KEY, "cafebabefacedbaddecaf888", GCM_AAD, GCM_PLAIN),
            "42831ec2217774244b7221b784d0d49ce3aa212f2c02a4e035c17e2329aca12e21d514b25466931c7d8f6a5aac84aa051ba30b396a0aac973d58e091",
            "5bc94fbc3221a5db94fae95ae7121a47",
        ),
        (
            Suite::Aes256Gcm,
            (&(GCM_KEY.to_owned() + GCM_KEY), "cafebabefacedbaddecaf888", GCM_AAD, GCM_PLAIN),
            "522dc1f099567d07f47f37a32a84427d643a8cdcbfe5c0c97598a2bd2555d1aa8cb08e48590dbb3da7b08b1056828838c5f61e6393ba7a0abcc9f662",
            "76fc6ece0f4e1768cddf8853bb2d551b",
        ),
        (
            Suite::ChaCha20Poly1305,
            (&chacha_key, "070000004041424344454647", "50515253c0c1c2c3c4c5c6c7", &chacha_plain),
            "d31a8d34648e60db7b86afbc53ef7ec2",
            "1ae10b594f09e26a7e902ecbd0600691",
        ),
    ];
    for (suite, (key, nonce, aad, plain), begins, tag) in cases {
        let cipher = SuiteCipher::new(suite, &SuiteKeys::from_cipher_key(unhex(key))).unwrap();
        let mut iv = [0; 16];
        iv[..12].copy_from_slice(&unhex(nonce));
        let mut packet = unhex(plain);
        cipher.seal(&iv, &unhex(aad), &mut packet);
        // The ciphertext of RFC 8439 is compared only at its beginning; the tag covers the rest.
        assert!(packet.starts_with(&unhex(begins)) && packet.ends_with(&unhex(tag)), "{}", suite.name());
        assert_eq!(packet.len(), plain.len() / 2 + 16);
        assert_eq!(cipher.open(&iv, &unhex(aad), &mut packet), Ok(()));
        assert_eq!(packet, unhex(plain));
    }
}

fn unhex(text: &str) -> Vec<u8> {
    text.as_bytes().chunks(2).map(|pair| u8::from_str_radix(core::str::from_utf8(pair).unwrap(), 16).unwrap()).collect()
}

#[test]
fn wrong_key_lengths_are_refused() {
    for suite in Suite::ALL {
        assert_eq!(Suite::from_name(suite.name()), Some(suite));
        for way in [TransformDirection::Apply, TransformDirection::Undo] {
            let graph = suite.graph(way);
            assert_eq!(Graph::new(graph.steps().to_vec()), Ok(graph.clone()), "each service occurs once");
            assert_eq!(graph.to_string().parse::<Graph>().unwrap(), graph);
        }
        let [cipher, mac, header] = suite.key_lengths();
        for (wrong, at) in [(cipher + 1, 0), (mac + 1, 1), (header + 1, 2)] {
            let mut lengths = [cipher, mac, header];
            lengths[at] = wrong;
            let [cipher, mac, header] = lengths.map(|bytes| SecretBytes::new(vec![1; bytes]));
            assert!(SuiteCipher::new(suite, &SuiteKeys { cipher, mac, header }).is_err());
        }
    }
}

#[test]
fn unsealable_packet_becomes_empty() {
    for suite in [Suite::Aes128CbcSha, Suite::Aes256CbcSha] {
        let cipher = SuiteCipher::new(suite, &keys_of(suite, &mut Seed(3).stream("cannot"))).unwrap();
        for (aad, bytes) in [(0, 10), (13, 10), (11, 18_157)] {
            let mut packet = vec![9; bytes];
            cipher.seal(&[1; 16], &vec![2; aad], &mut packet);
            assert!(packet.is_empty(), "{} {aad} {bytes}", suite.name());
        }
    }
    let cipher = SuiteCipher::new(Suite::Nea(1), &SuiteKeys::from_cipher_key(vec![7; 16])).unwrap();
    let mut packet = vec![0; 1 << 29];
    assert_eq!(cipher.open(&[1; 16], &[], &mut packet), Err(NotAuthentic), "a packet that is too long is refused");
    assert!(packet.is_empty());
}

#[test]
fn no_key_is_printed() {
    for suite in Suite::ALL {
        let keys = SuiteKeys {
            cipher: SecretBytes::new(vec![0xab; suite.key_lengths()[0]]),
            mac: SecretBytes::new(vec![0xab; suite.key_lengths()[1]]),
            header: SecretBytes::new(vec![0xab; suite.key_lengths()[2]]),
        };
        let shown = format!("{keys:?} {:?}", SuiteCipher::new(suite, &keys).unwrap());
        assert!(!shown.contains("171") && !shown.to_lowercase().contains("abab"), "{shown}");
    }
}
