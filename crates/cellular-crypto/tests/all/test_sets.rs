//! 128-NEA and 128-NIA 1 to 3 with any number of bits: 3GPP's test sets, and another implementation on random messages.

use std::ops::Range;

use cellular_crypto::{
    Algorithm, Backend, CipherJob, Direction, Engine, Iv, Key, MacJob, OpenJob, PduNumber, SealJob, TagLen,
};
use oxirush_security::nas_eps::{KNasEnc, KNasInt};
use oxirush_security::{Bearer, CipheringAlgorithm, IntegrityAlgorithm, nea_cipher_bits, nia_mac_bits};
use proptest::prelude::*;
use serde::Deserialize;

#[derive(Deserialize)]
struct TestSets {
    ciphering: Vec<TestSet>,
    integrity: Vec<TestSet>,
}

#[derive(Deserialize)]
struct TestSet {
    set: String,
    key: String,
    count: u32,
    bearer: u8,
    direction: usize,
    bits: usize,
    message: String,
    ciphertext: Option<String>,
    mac: Option<String>,
}

impl TestSet {
    fn key(&self) -> Key {
        let number = self.set.as_bytes()[3] - b'0';
        Key::new(Algorithm::from_number(number).unwrap(), &unhex(&self.key)).unwrap()
    }

    fn number(&self) -> PduNumber {
        let direction = [Direction::Uplink, Direction::Downlink][self.direction];
        PduNumber::new(self.count, self.bearer, direction).unwrap()
    }
}

#[test]
fn test_sets_of_3gpp_pass() {
    let sets: TestSets = serde_json::from_str(include_str!("vectors/3gpp_128.json")).unwrap();
    assert_eq!((sets.ciphering.len(), sets.integrity.len()), (12, 17));
    for set in &sets.ciphering {
        let (key, mut data) = (set.key(), unhex(&set.message));
        key.cipher_bits(&Iv::cipher(key.algorithm(), set.number()), &mut data, set.bits).unwrap();
        let expected = unhex(set.ciphertext.as_ref().unwrap());
        assert_eq!(first(&data, set.bits), first(&expected, set.bits), "{}", set.set);
    }
    // Only the given number of bits of a message is compared or authenticated.
    for set in &sets.integrity {
        let (key, message) = (set.key(), unhex(&set.message));
        let iv = Iv::mac(key.algorithm(), set.number(), TagLen::FOUR);
        let tag = key.mac_bits(&iv, &message, set.bits, TagLen::FOUR).unwrap();
        assert_eq!(tag.as_bytes(), unhex(set.mac.as_ref().unwrap()), "{}", set.set);
    }
}

#[test]
fn all_lengths_to_600_bits_match_another_implementation() {
    let message: Vec<u8> = (0..76u32).map(|index| (index * index * 37 + 11) as u8).collect();
    for algorithm in OF_128_BITS {
        let key = [0x5a; 16];
        for bits in 0..=600 {
            check(algorithm, key, 0x0102_0304 + bits as u32, (bits % 32) as u8, bits % 2, &message, bits);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Long messages, with random keys and numbers.
    #[test]
    fn random_messages_match_another_implementation(
        which in 0..3usize, key: [u8; 16], count: u32, bearer in 0..32u8, direction in 0..2usize,
        message in proptest::collection::vec(any::<u8>(), 0..3000), short in 0..8usize,
    ) {
        // Up to seven bits of the last byte are not part of the message.
        let bits = (8 * message.len()).saturating_sub(short);
        check(OF_128_BITS[which], key, count, bearer, direction, &message, bits);
    }

    /// Every back-end gives the same result in a batch as for single messages.
    #[test]
    fn batch_matches_single_messages(
        jobs in proptest::collection::vec((0..6usize, any::<u8>(), any::<[u8; 16]>(), lengths()), 0..40),
    ) {
        let keys: Vec<Key> = jobs.iter()
            .map(|(which, ..)| Algorithm::ALL[*which])
            .zip(&jobs)
            .map(|(algorithm, (_, key, ..))| Key::new(algorithm, &vec![*key; algorithm.key_len()]).unwrap())
            .collect();
        let messages: Vec<Vec<u8>> =
            jobs.iter().map(|(_, key, iv, len)| (0..*len).map(|at| (at as u8).wrapping_mul(*key) ^ iv[at % 16]).collect()).collect();
        let mut expected = messages.clone();
        let mut tags = Vec::new();
        // Expected: each message alone, in portable code.
        let portable = Engine::with_backend(Backend::Portable).unwrap();
        for ((key, (.., iv, _)), data) in keys.iter().zip(&jobs).zip(&mut expected) {
            let mut job = [MacJob::new(key, Iv::from_bytes(*iv), data, TagLen::FOUR).unwrap()];
            portable.mac(&mut job);
            tags.push(job[0].tag());
            portable.cipher(&mut [CipherJob::new(key, Iv::from_bytes(*iv), data).unwrap()]);
        }
        // Found: all messages in one batch, with each back-end.
        for engine in Backend::ALL.into_iter().filter_map(Engine::with_backend) {
            let mut macs: Vec<MacJob<'_>> = keys.iter().zip(&jobs).zip(&messages)
                .map(|((key, (.., iv, _)), message)| MacJob::new(key, Iv::from_bytes(*iv), message, TagLen::FOUR).unwrap())
                .collect();
            engine.mac(&mut macs);
            prop_assert_eq!(&macs.iter().map(MacJob::tag).collect::<Vec<_>>(), &tags);
            let mut data = messages.clone();
            let mut ciphers: Vec<CipherJob<'_>> = keys.iter().zip(&jobs).zip(&mut data)
                .map(|((key, (.., iv, _)), data)| CipherJob::new(key, Iv::from_bytes(*iv), data).unwrap())
                .collect();
            engine.cipher(&mut ciphers);
            prop_assert_eq!(&data, &expected);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Every back-end seals in a batch as for single messages. A batch opens authentic messages and wipes the other
    /// messages.
    #[test]
    fn batch_seals_and_opens_like_single_messages(
        jobs in proptest::collection::vec((3..6usize, any::<u8>(), any::<[u8; 16]>(), lengths(), any::<bool>()), 0..40),
    ) {
        let key = |(which, key, ..): &(usize, u8, [u8; 16], usize, bool)| Key::new(Algorithm::ALL[*which], &[*key; 32]).unwrap();
        let keys: Vec<Key> = jobs.iter().map(key).collect();
        let clear: Vec<Vec<u8>> = jobs.iter().map(|(_, key, iv, len, _)| (0..*len).map(|at| at as u8 ^ key ^ iv[at % 16]).collect()).collect();
        // Expected: each message alone, in portable code.
        let portable = Engine::with_backend(Backend::Portable).unwrap();
        let (mut sealed, mut tags) = (clear.clone(), Vec::new());
        for ((key, (_, _, iv, len, _)), data) in keys.iter().zip(&jobs).zip(&mut sealed) {
            let mut job = [SealJob::new(key, Iv::from_bytes(*iv), &iv[..len % 16], data, TagLen::FOUR).unwrap()];
            portable.seal(&mut job);
            tags.push(job[0].tag());
        }
        // Found: all messages in one batch, with each back-end.
        for engine in Backend::ALL.into_iter().filter_map(Engine::with_backend) {
            let mut data = clear.clone();
            let mut seals: Vec<SealJob<'_>> = keys.iter().zip(&jobs).zip(&mut data)
                .map(|((key, (_, _, iv, len, _)), data)| {
                    SealJob::new(key, Iv::from_bytes(*iv), &iv[..len % 16], data, TagLen::FOUR).unwrap()
                })
                .collect();
            engine.seal(&mut seals);
            prop_assert_eq!(&seals.iter().map(SealJob::tag).collect::<Vec<_>>(), &tags);
            prop_assert_eq!(&data, &sealed);
            // Some tags are wrong.
            let spoilt: Vec<[u8; 4]> = jobs.iter().zip(&tags)
                .map(|((.., right), tag)| [tag.as_bytes()[0] ^ u8::from(!right), tag.as_bytes()[1], tag.as_bytes()[2], tag.as_bytes()[3]])
                .collect();
            let mut opens: Vec<OpenJob<'_>> = keys.iter().zip(&jobs).zip(&mut data).zip(&spoilt)
                .map(|(((key, (_, _, iv, len, _)), data), tag)| {
                    OpenJob::new(key, Iv::from_bytes(*iv), &iv[..len % 16], data, tag).unwrap()
                })
                .collect();
            engine.open(&mut opens);
            let authentic: Vec<bool> = opens.iter().map(OpenJob::is_authentic).collect();
            prop_assert_eq!(authentic, jobs.iter().map(|(.., right)| *right).collect::<Vec<_>>());
            // Data of forged messages are zeros.
            for ((data, clear), (.., right)) in data.iter().zip(&clear).zip(&jobs) {
                let wiped = vec![0; clear.len()];
                prop_assert_eq!(data, if *right { clear } else { &wiped });
            }
        }
    }
}

const OF_128_BITS: [Algorithm; 3] = [Algorithm::Snow3g, Algorithm::Aes128, Algorithm::Zuc128];

/// Lengths around blocks of 16 and 64 bytes, and long ones.
fn lengths() -> impl Strategy<Value = usize> {
    const NEAR: [Range<usize>; 4] = [0..20, 60..70, 120..140, 0..1600];
    (0..NEAR.len()).prop_flat_map(|which| NEAR[which].clone())
}

fn check(algorithm: Algorithm, key: [u8; 16], count: u32, bearer: u8, direction: usize, message: &[u8], bits: usize) {
    let ours = Key::new(algorithm, &key).unwrap();
    let number = PduNumber::new(count, bearer, [Direction::Uplink, Direction::Downlink][direction]).unwrap();
    let their_bearer = Bearer::new(bearer).unwrap();
    let their_direction = oxirush_security::Direction::try_from(direction as u8).unwrap();
    let which = OF_128_BITS.iter().position(|one| *one == algorithm).unwrap();

    let (mut data, mut expected) = (message.to_vec(), message.to_vec());
    ours.cipher_bits(&Iv::cipher(algorithm, number), &mut data, bits).unwrap();
    let theirs = [CipheringAlgorithm::Snow3g, CipheringAlgorithm::Aes, CipheringAlgorithm::Zuc][which];
    let their_key = KNasEnc::from_slice(&key).unwrap();
    nea_cipher_bits(&their_key, count, their_bearer, their_direction, &mut expected, bits as u64, theirs).unwrap();
    assert_eq!(data, expected, "{algorithm:?}, {bits} bits");

    // The same for the MAC.
    let iv = Iv::mac(algorithm, number, TagLen::FOUR);
    let tag = ours.mac_bits(&iv, message, bits, TagLen::FOUR).unwrap();
    let theirs = [IntegrityAlgorithm::Snow3g, IntegrityAlgorithm::Aes, IntegrityAlgorithm::Zuc][which];
    let their_key = KNasInt::from_slice(&key).unwrap();
    let expected =
        nia_mac_bits(&their_key, count, their_bearer, their_direction, message, bits as u64, theirs).unwrap();
    assert_eq!(tag.as_bytes(), expected.to_be_bytes(), "{algorithm:?}, {bits} bits");
}

/// Returns the first bits, with zeros in the rest of the last byte.
fn first(bytes: &[u8], bits: usize) -> Vec<u8> {
    let mut first = bytes[..bits.div_ceil(8)].to_vec();
    if let (Some(last), used @ 1..) = (first.last_mut(), bits % 8) {
        *last &= !(0xff >> used);
    }
    first
}

fn unhex(text: &str) -> Vec<u8> {
    text.as_bytes().chunks(2).map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap()).collect()
}
