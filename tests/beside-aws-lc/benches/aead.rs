//! The speed of sealing and opening a record: whole, and in pieces of packet size.
//!
//! - `seal`, `open`: one-shot, 64 B to 16 KiB, beside ring, aws-lc-rs and RustCrypto;
//! - `seal-pieces`, `open-pieces`: a 16 KiB record in pieces of 64, 256, 1448 and 8948 bytes (the last two fill packets
//!   of 1500 and 9000), by every back end of this processor, beside the other libraries' one-shot on the whole record;
//! - `state-copy`: the cost of a copy of a state.
//!
//! Opening needs fresh ciphertext each time: buffers are refilled outside the measured time, for all libraries alike.
//! Only figures of one run are comparable.

use std::hint::black_box;
use std::time::{Duration, Instant};

use criterion::measurement::WallTime;
use criterion::{BenchmarkGroup, BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use resumable_aead::{Algorithm, Backend, Key, State};

/// Seals or opens one message. Nonce and AAD are fixed, because they do not affect the cost.
trait OneShot {
    fn seal(&self, data: &mut [u8]) -> [u8; 16];
    fn open(&self, data: &mut [u8], tag: &[u8; 16]);
}

struct OneShotKey(Key);

impl OneShot for OneShotKey {
    fn seal(&self, data: &mut [u8]) -> [u8; 16] {
        self.0.seal_in_place(&NONCE, &AAD, data).unwrap()
    }

    fn open(&self, data: &mut [u8], tag: &[u8; 16]) {
        self.0.open_in_place(&NONCE, &AAD, data, tag).unwrap();
    }
}

struct PiecewiseKey {
    key: Key,
    piece: usize,
}

impl OneShot for PiecewiseKey {
    fn seal(&self, data: &mut [u8]) -> [u8; 16] {
        let mut state = State::with_len(&self.key, &NONCE, &AAD, data.len() as u64).unwrap();
        for piece in data.chunks_mut(self.piece) {
            state.encrypt(&self.key, piece).unwrap();
        }
        state.tag(&self.key).unwrap()
    }

    fn open(&self, data: &mut [u8], tag: &[u8; 16]) {
        let mut state = State::with_len(&self.key, &NONCE, &AAD, data.len() as u64).unwrap();
        for piece in data.chunks_mut(self.piece) {
            state.decrypt(&self.key, piece).unwrap();
        }
        state.verify(&self.key, tag).unwrap();
    }
}

struct Ring(ring::aead::LessSafeKey);

impl OneShot for Ring {
    fn seal(&self, data: &mut [u8]) -> [u8; 16] {
        use ring::aead::{Aad, Nonce};
        let nonce = Nonce::assume_unique_for_key(NONCE);
        self.0.seal_in_place_separate_tag(nonce, Aad::from(AAD), data).unwrap().as_ref().try_into().unwrap()
    }

    fn open(&self, data: &mut [u8], tag: &[u8; 16]) {
        use ring::aead::{Aad, Nonce, Tag};
        let nonce = Nonce::assume_unique_for_key(NONCE);
        self.0.open_in_place_separate_tag(nonce, Aad::from(AAD), Tag::from(*tag), data, 0..).unwrap();
    }
}

struct AwsLc(aws_lc_rs::aead::LessSafeKey);

impl OneShot for AwsLc {
    fn seal(&self, data: &mut [u8]) -> [u8; 16] {
        use aws_lc_rs::aead::{Aad, Nonce};
        let nonce = Nonce::assume_unique_for_key(NONCE);
        self.0.seal_in_place_separate_tag(nonce, Aad::from(AAD), data).unwrap().as_ref().try_into().unwrap()
    }

    fn open(&self, data: &mut [u8], tag: &[u8; 16]) {
        use aws_lc_rs::aead::{Aad, Nonce};
        let nonce = Nonce::assume_unique_for_key(NONCE);
        self.0.open_in_place_separate_tag(nonce, Aad::from(AAD), tag, data).unwrap();
    }
}

struct RustCrypto<C>(C);

impl<C: aes_gcm::aead::AeadInOut<NonceSize = aes_gcm::aead::consts::U12, TagSize = aes_gcm::aead::consts::U16>> OneShot
    for RustCrypto<C>
{
    fn seal(&self, data: &mut [u8]) -> [u8; 16] {
        self.0.encrypt_inout_detached(&NONCE.into(), &AAD, data.into()).unwrap().into()
    }

    fn open(&self, data: &mut [u8], tag: &[u8; 16]) {
        self.0.decrypt_inout_detached(&NONCE.into(), &AAD, data.into(), &(*tag).into()).unwrap();
    }
}

/// Returns the other libraries by name.
fn others(algorithm: Algorithm) -> Vec<(&'static str, Box<dyn OneShot>)> {
    use aes_gcm::KeyInit;
    let key = &KEY[..algorithm.key_len()];
    let (rust_crypto, ring, aws_lc): (Box<dyn OneShot>, _, _) = match algorithm {
        Algorithm::Aes128Gcm => (
            Box::new(RustCrypto(aes_gcm::Aes128Gcm::new_from_slice(key).unwrap())),
            &ring::aead::AES_128_GCM,
            &aws_lc_rs::aead::AES_128_GCM,
        ),
        Algorithm::Aes256Gcm => (
            Box::new(RustCrypto(aes_gcm::Aes256Gcm::new_from_slice(key).unwrap())),
            &ring::aead::AES_256_GCM,
            &aws_lc_rs::aead::AES_256_GCM,
        ),
        Algorithm::ChaCha20Poly1305 => (
            Box::new(RustCrypto(chacha20poly1305::ChaCha20Poly1305::new_from_slice(key).unwrap())),
            &ring::aead::CHACHA20_POLY1305,
            &aws_lc_rs::aead::CHACHA20_POLY1305,
        ),
        Algorithm::Aes128Ccm => {
            let ccm = ccm::Ccm::<aes::Aes128, ccm::consts::U16, ccm::consts::U12>::new_from_slice(key).unwrap();
            return vec![("rustcrypto", Box::new(RustCrypto(ccm)))];
        }
        _ => return Vec::new(),
    };
    let ring = ring::aead::LessSafeKey::new(ring::aead::UnboundKey::new(ring, key).unwrap());
    let aws_lc = aws_lc_rs::aead::LessSafeKey::new(aws_lc_rs::aead::UnboundKey::new(aws_lc, key).unwrap());
    vec![("ring", Box::new(Ring(ring))), ("aws-lc-rs", Box::new(AwsLc(aws_lc))), ("rustcrypto", rust_crypto)]
}

fn one_shot(criterion: &mut Criterion) {
    for algorithm in Algorithm::ALL {
        let own = OneShotKey(Key::new(algorithm, &KEY[..algorithm.key_len()]).unwrap());
        let mut contenders: Vec<(&str, Box<dyn OneShot>)> = vec![("own", Box::new(own))];
        contenders.extend(others(algorithm));

        for sealing in [true, false] {
            let mut group = group(criterion, if sealing { "seal" } else { "open" }, algorithm);
            for len in [64, 256, 1024, 1448, 4096, RECORD] {
                for (name, contender) in &contenders {
                    measure(&mut group, BenchmarkId::new(*name, len), contender.as_ref(), len, sealing);
                }
            }
        }
    }
}

fn in_pieces(criterion: &mut Criterion) {
    for algorithm in Algorithm::ALL {
        for sealing in [true, false] {
            let mut group = group(criterion, if sealing { "seal-pieces" } else { "open-pieces" }, algorithm);
            for (name, contender) in others(algorithm) {
                measure(&mut group, BenchmarkId::new(name, "one-shot"), contender.as_ref(), RECORD, sealing);
            }
            // The fastest back end first.
            for backend in Backend::ALL.into_iter().rev() {
                let Ok(key) = Key::with_backend(algorithm, &KEY[..algorithm.key_len()], backend) else { continue };
                let name = format!("{backend:?}");
                measure(&mut group, BenchmarkId::new(&name, "one-shot"), &OneShotKey(key), RECORD, sealing);
                for piece in [64, 256, 1448, 8948] {
                    let key = Key::with_backend(algorithm, &KEY[..algorithm.key_len()], backend).unwrap();
                    measure(&mut group, BenchmarkId::new(&name, piece), &PiecewiseKey { key, piece }, RECORD, sealing);
                }
            }
        }
    }
}

fn state_copy(criterion: &mut Criterion) {
    for algorithm in Algorithm::ALL {
        let key = Key::new(algorithm, &KEY[..algorithm.key_len()]).unwrap();
        let state = State::new(&key, &NONCE, &AAD);
        criterion.bench_function(&format!("state-copy/{algorithm:?}"), |bencher| {
            let mut kept = state;
            bencher.iter(|| {
                kept = *black_box(&state);
                black_box(&mut kept);
            });
        });
    }
}

fn group<'a>(criterion: &'a mut Criterion, what: &str, algorithm: Algorithm) -> BenchmarkGroup<'a, WallTime> {
    let mut group = criterion.benchmark_group(format!("{what}/{algorithm:?}"));
    group.sample_size(20).warm_up_time(Duration::from_millis(100)).measurement_time(Duration::from_millis(400));
    group
}

fn measure(
    group: &mut BenchmarkGroup<'_, WallTime>,
    id: BenchmarkId,
    contender: &dyn OneShot,
    len: usize,
    sealing: bool,
) {
    group.throughput(Throughput::Bytes(len as u64));
    let mut data = vec![0x5a; len];
    if sealing {
        group.bench_function(id, |bencher| bencher.iter(|| contender.seal(black_box(&mut data))));
        return;
    }
    let tag = contender.seal(&mut data);
    // Few enough buffers to stay in the cache, and enough to hide the cost of the clock.
    let mut buffers = vec![data.clone(); (65536 / len).clamp(8, 64)];
    group.bench_function(id, |bencher| {
        bencher.iter_custom(|iterations| {
            let mut elapsed = Duration::ZERO;
            let mut left = iterations as usize;
            while left != 0 {
                let now = left.min(buffers.len());
                for buffer in &mut buffers[..now] {
                    buffer.copy_from_slice(&data);
                }
                let start = Instant::now();
                for buffer in &mut buffers[..now] {
                    contender.open(black_box(buffer), &tag);
                }
                elapsed += start.elapsed();
                left -= now;
            }
            elapsed
        });
    });
}

const RECORD: usize = 16384;
const NONCE: [u8; 12] = [3; 12];
const AAD: [u8; 5] = [23, 3, 3, 64, 17];
const KEY: [u8; 32] = [7; 32];

criterion_group! {
    name = benches;
    config = Criterion::default().without_plots().nresamples(2000);
    targets = one_shot, in_pieces, state_copy
}
criterion_main!(benches);
