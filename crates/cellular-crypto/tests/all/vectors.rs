//! Published vectors, each alone and all of a file as one batch, with every back-end.
//!
//! The files are test data of intel-ipsec-mb and DPDK (`vectors/LICENSE.txt`). Each file of the 256-bit set marks its
//! last vector "invalid". The vector's numbers are right, and the test program of intel-ipsec-mb compares it like the
//! others. So this test ignores the mark.

use cellular_crypto::{
    Algorithm, Backend, CipherJob, Direction, Engine, Iv, Key, MacJob, OpenJob, PduNumber, SealJob, TagLen, VerifyError,
};
use serde::Deserialize;

#[test]
fn snow_3g_vectors_pass() {
    assert_eq!(cipher(Algorithm::Snow3g, include_str!("vectors/snow3g_f8_test.json")), 21);
    assert_eq!(cipher(Algorithm::Snow3g, include_str!("vectors/snow3g_f8_linear_test.json")), 15);
    assert_eq!(mac(Algorithm::Snow3g, include_str!("vectors/snow3g_f9_test.json")), 3);
}

#[test]
fn zuc_128_vectors_pass() {
    assert_eq!(cipher(Algorithm::Zuc128, include_str!("vectors/zuc_eea3_128_test.json")), 6);
    assert_eq!(mac(Algorithm::Zuc128, include_str!("vectors/zuc_eia3_128_test.json")), 3);
}

#[test]
fn snow_5g_vectors_pass() {
    assert_eq!(cipher(Algorithm::Snow5g, include_str!("vectors/snow5g_nea4_test.json")), 20);
    assert_eq!(mac(Algorithm::Snow5g, include_str!("vectors/snow5g_nia4_test.json")), 16);
    assert_eq!(aead(Algorithm::Snow5g, include_str!("vectors/snow5g_nca4_test.json")), 20);
}

#[test]
fn aes_256_vectors_pass() {
    assert_eq!(cipher(Algorithm::Aes256, include_str!("vectors/aes_nea5_test.json")), 20);
    assert_eq!(mac(Algorithm::Aes256, include_str!("vectors/aes_nia5_test.json")), 17);
    assert_eq!(aead(Algorithm::Aes256, include_str!("vectors/aes_nca5_test.json")), 20);
}

#[test]
fn zuc_256_vectors_pass() {
    assert_eq!(cipher(Algorithm::Zuc256, include_str!("vectors/zuc_nea6_test.json")), 18);
    assert_eq!(mac(Algorithm::Zuc256, include_str!("vectors/zuc_nia6_test.json")), 17);
    assert_eq!(aead(Algorithm::Zuc256, include_str!("vectors/zuc_nca6_test.json")), 20);
}

#[test]
fn dpdk_vectors_pass() {
    #[derive(Deserialize)]
    struct Dpdk {
        tests: Vec<TestVector>,
    }
    let mut file: Dpdk = serde_json::from_str(include_str!("vectors/dpdk_nxan.json")).unwrap();
    assert_eq!(file.tests.len(), 66);
    for algorithm in [Algorithm::Snow5g, Algorithm::Aes256, Algorithm::Zuc256] {
        for (kind, check) in [("NEA", check_cipher as fn(_, &[TestVector])), ("NIA", check_mac), ("NCA", check_aead)] {
            let name = format!("{kind}{}", algorithm.number());
            let (mut of_kind, rest): (Vec<TestVector>, _) =
                file.tests.into_iter().partition(|vector| vector.alg.as_ref() == Some(&name));
            file.tests = rest;
            assert!(!of_kind.is_empty());
            for vector in &mut of_kind {
                // The file gives no tag size: it is the length of the tag.
                vector.tag_size = vector.tag.len() * 4;
            }
            check(algorithm, &of_kind);
        }
    }
    assert!(file.tests.is_empty());
}

#[derive(Deserialize)]
struct VectorFile {
    #[serde(rename = "testGroups")]
    groups: Vec<VectorGroup>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct VectorGroup {
    #[serde(default)]
    tag_size: usize,
    tests: Vec<TestVector>,
}

#[derive(Deserialize)]
struct TestVector {
    alg: Option<String>,
    key: String,
    iv: String,
    #[serde(default)]
    aad: String,
    #[serde(default)]
    msg: String,
    #[serde(default)]
    ct: String,
    #[serde(default)]
    tag: String,
    #[serde(skip)]
    tag_size: usize,
}

impl TestVector {
    fn key(&self, algorithm: Algorithm) -> Key {
        Key::new(algorithm, &unhex(&self.key)).unwrap()
    }

    /// Returns a complete IV. For ZUC-128 the vector has COUNT (little-endian), BEARER and DIRECTION.
    fn iv(&self, algorithm: Algorithm, mac: bool) -> Iv {
        match unhex(&self.iv)[..] {
            [a, b, c, d, bearer, direction] => {
                let direction = [Direction::Uplink, Direction::Downlink][usize::from(direction)];
                let number = PduNumber::new(u32::from_le_bytes([a, b, c, d]), bearer, direction).unwrap();
                if mac { Iv::mac(algorithm, number, TagLen::FOUR) } else { Iv::cipher(algorithm, number) }
            }
            ref bytes => Iv::from_bytes(bytes.try_into().unwrap()),
        }
    }

    fn tag_len(&self) -> TagLen {
        assert_eq!(self.tag.len() * 4, self.tag_size);
        TagLen::new(self.tag_size / 8).unwrap()
    }
}

fn vectors(file: &str) -> Vec<TestVector> {
    let file: VectorFile = serde_json::from_str(file).unwrap();
    let mut vectors = Vec::new();
    for mut group in file.groups {
        group.tests.iter_mut().for_each(|vector| vector.tag_size = group.tag_size);
        vectors.append(&mut group.tests);
    }
    vectors
}

fn engines() -> impl Iterator<Item = Engine> {
    Backend::ALL.into_iter().filter_map(Engine::with_backend)
}

fn cipher(algorithm: Algorithm, file: &str) -> usize {
    let vectors = vectors(file);
    check_cipher(algorithm, &vectors);
    vectors.len()
}

fn check_cipher(algorithm: Algorithm, vectors: &[TestVector]) {
    let keys: Vec<Key> = vectors.iter().map(|vector| vector.key(algorithm)).collect();
    for engine in engines() {
        // Single messages, a batch smaller than the lanes, and the whole file.
        for batch in [1, 3, vectors.len()] {
            let mut data: Vec<Vec<u8>> = vectors.iter().map(|vector| unhex(&vector.msg)).collect();
            let mut jobs: Vec<CipherJob<'_>> = data
                .iter_mut()
                .zip(vectors)
                .zip(&keys)
                .map(|((data, vector), key)| CipherJob::new(key, vector.iv(algorithm, false), data).unwrap())
                .collect();
            jobs.chunks_mut(batch).for_each(|jobs| engine.cipher(jobs));
            for (data, vector) in data.iter().zip(vectors) {
                assert_eq!(hex(data), vector.ct.to_lowercase(), "{engine:?}, {batch}, IV {}", vector.iv);
            }
        }
    }
    // Deciphering returns the message.
    for (vector, key) in vectors.iter().zip(&keys) {
        let mut data = unhex(&vector.ct);
        key.cipher(&vector.iv(algorithm, false), &mut data).unwrap();
        assert_eq!(hex(&data), vector.msg.to_lowercase());
    }
}

fn mac(algorithm: Algorithm, file: &str) -> usize {
    let vectors = vectors(file);
    check_mac(algorithm, &vectors);
    vectors.len()
}

fn check_mac(algorithm: Algorithm, vectors: &[TestVector]) {
    let keys: Vec<Key> = vectors.iter().map(|vector| vector.key(algorithm)).collect();
    let messages: Vec<Vec<u8>> = vectors.iter().map(|vector| unhex(&vector.msg)).collect();
    for engine in engines() {
        for batch in [1, 3, vectors.len()] {
            let mut jobs: Vec<MacJob<'_>> = messages
                .iter()
                .zip(vectors)
                .zip(&keys)
                .map(|((message, vector), key)| {
                    MacJob::new(key, vector.iv(algorithm, true), message, vector.tag_len()).unwrap()
                })
                .collect();
            jobs.chunks_mut(batch).for_each(|jobs| engine.mac(jobs));
            for (job, vector) in jobs.iter().zip(vectors) {
                assert_eq!(hex(job.tag().as_bytes()), vector.tag, "{engine:?}, {batch}, IV {}", vector.iv);
            }
        }
    }
    for ((vector, key), message) in vectors.iter().zip(&keys).zip(&messages) {
        let (iv, mut tag) = (vector.iv(algorithm, true), unhex(&vector.tag));
        assert_eq!(key.verify(&iv, message, &tag), Ok(()));
        // A tag with any bit changed is refused.
        for bit in 0..8 * tag.len() {
            tag[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(key.verify(&iv, message, &tag), Err(VerifyError::TagMismatch));
            tag[bit / 8] ^= 1 << (bit % 8);
        }
    }
}

fn aead(algorithm: Algorithm, file: &str) -> usize {
    let vectors = vectors(file);
    check_aead(algorithm, &vectors);
    vectors.len()
}

fn check_aead(algorithm: Algorithm, vectors: &[TestVector]) {
    let keys: Vec<Key> = vectors.iter().map(|vector| vector.key(algorithm)).collect();
    let aads: Vec<Vec<u8>> = vectors.iter().map(|vector| unhex(&vector.aad)).collect();
    let tags: Vec<Vec<u8>> = vectors.iter().map(|vector| unhex(&vector.tag)).collect();
    for engine in engines() {
        for batch in [1, 3, vectors.len()] {
            let mut data: Vec<Vec<u8>> = vectors.iter().map(|vector| unhex(&vector.msg)).collect();
            let mut jobs: Vec<SealJob<'_>> = (data.iter_mut().zip(vectors).zip(&keys).zip(&aads))
                .map(|(((data, vector), key), aad)| {
                    SealJob::new(key, vector.iv(algorithm, false), aad, data, vector.tag_len()).unwrap()
                })
                .collect();
            jobs.chunks_mut(batch).for_each(|jobs| engine.seal(jobs));
            for (job, vector) in jobs.iter().zip(vectors) {
                assert_eq!(hex(job.tag().as_bytes()), vector.tag, "{engine:?}, {batch}, IV {}", vector.iv);
            }
            for (data, vector) in data.iter().zip(vectors) {
                assert_eq!(hex(data), vector.ct, "{engine:?}, {batch}, IV {}", vector.iv);
            }
            // Every third tag is wrong.
            let mut forged = tags.clone();
            forged.iter_mut().step_by(3).for_each(|tag| tag[3] ^= 0x80);
            let mut jobs: Vec<OpenJob<'_>> = (data.iter_mut().zip(vectors).zip(&keys).zip(&aads).zip(&forged))
                .map(|((((data, vector), key), aad), tag)| {
                    OpenJob::new(key, vector.iv(algorithm, false), aad, data, tag).unwrap()
                })
                .collect();
            jobs.chunks_mut(batch).for_each(|jobs| engine.open(jobs));
            for (index, job) in jobs.iter().enumerate() {
                assert_eq!(job.is_authentic(), index % 3 != 0);
            }
            for (index, (data, vector)) in data.iter().zip(vectors).enumerate() {
                // Forged messages are wiped.
                let left = if index % 3 == 0 { "0".repeat(vector.msg.len()) } else { vector.msg.clone() };
                assert_eq!(hex(data), left, "{engine:?}, {batch}, IV {}", vector.iv);
            }
        }
    }
    for (((vector, key), aad), tag) in vectors.iter().zip(&keys).zip(&aads).zip(&tags) {
        // A tag with any bit changed is refused.
        for bit in 0..8 * tag.len() {
            let (mut data, mut tag) = (unhex(&vector.ct), tag.clone());
            tag[bit / 8] ^= 1 << (bit % 8);
            let opened = key.open(&vector.iv(algorithm, false), aad, &mut data, &tag);
            assert_eq!(opened, Err(VerifyError::TagMismatch));
        }
    }
}

fn unhex(text: &str) -> Vec<u8> {
    text.as_bytes().chunks(2).map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap()).collect()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
