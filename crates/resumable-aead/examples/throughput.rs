//! How fast every back-end of this processor is, beside ring and aws-lc-rs: `cargo run --release --example throughput`.
//!
//! Prints GB/s (1e9 bytes) of the fastest of many short runs. On a machine that others use too, medians say how busy
//! it was; the fastest run says what the code can do.

use std::hint::black_box;
use std::time::{Duration, Instant};

use resumable_aead::{Algorithm, Backend, Key, State};

fn main() {
    for algorithm in Algorithm::ALL {
        println!("\n{algorithm:?}: seal whole messages\n");
        println!("| bytes | ring | aws-lc-rs | {} |", names(algorithm).join(" | "));
        println!("|---|{}", "---|".repeat(2 + names(algorithm).len()));
        for len in [64, 256, 1024, 1448, 4096, RECORD] {
            print!("| {len} | {:.2} | {:.2} |", ring(algorithm, len), aws_lc(algorithm, len));
            for key in keys(algorithm) {
                let mut data = vec![0; len];
                print!(" {:.2} |", rate(len, || _ = black_box(key.seal_in_place(&NONCE, &AAD, black_box(&mut data)))));
            }
            println!();
        }

        println!(
            "\n{algorithm:?}: a record of {RECORD} bytes in pieces: seal / open / seal from source to destination\n"
        );
        println!("| piece | {} |", names(algorithm).join(" | "));
        println!("|---|{}", "---|".repeat(names(algorithm).len()));
        for piece in [64, 256, 1448, 8948] {
            print!("| {piece} |");
            for key in keys(algorithm) {
                let mut data = vec![0; RECORD];
                let seal = rate(RECORD, || {
                    let mut state = State::new(&key, &NONCE, &AAD);
                    data.chunks_mut(piece).for_each(|piece| state.encrypt(&key, piece).unwrap_or(()));
                    _ = black_box(state.tag(&key));
                });
                let open = rate(RECORD, || {
                    let mut state = State::new(&key, &NONCE, &AAD);
                    data.chunks_mut(piece).for_each(|piece| state.decrypt(&key, piece).unwrap_or(()));
                    _ = black_box(state.tag(&key));
                });
                let mut sealed = vec![0; RECORD];
                let copy = rate(RECORD, || {
                    let mut state = State::new(&key, &NONCE, &AAD);
                    for (from, to) in data.chunks(piece).zip(sealed.chunks_mut(piece)) {
                        state.encrypt_to(&key, from, to).unwrap_or(());
                    }
                    _ = black_box(state.tag(&key));
                });
                print!(" {seal:.2} / {open:.2} / {copy:.2} |");
            }
            println!();
        }
    }
}

/// Bytes per nanosecond of the fastest of many runs.
fn rate(len: usize, mut work: impl FnMut()) -> f64 {
    let mut fastest = Duration::MAX;
    let begin = Instant::now();
    while begin.elapsed() < Duration::from_millis(150) {
        let start = Instant::now();
        for _ in 0..REPEATS {
            work();
        }
        fastest = fastest.min(start.elapsed());
    }
    (len * REPEATS as usize) as f64 / fastest.as_nanos() as f64
}

fn ring(algorithm: Algorithm, len: usize) -> f64 {
    use ring::aead::{AES_128_GCM, AES_256_GCM, Aad, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey};
    let of = match algorithm {
        Algorithm::Aes128Gcm => &AES_128_GCM,
        Algorithm::Aes256Gcm => &AES_256_GCM,
        Algorithm::ChaCha20Poly1305 => &CHACHA20_POLY1305,
    };
    let Ok(key) = UnboundKey::new(of, &KEY[..algorithm.key_len()]).map(LessSafeKey::new) else { return 0.0 };
    let mut data = vec![0; len];
    rate(len, || {
        let nonce = Nonce::assume_unique_for_key(NONCE);
        _ = black_box(key.seal_in_place_separate_tag(nonce, Aad::from(AAD), black_box(&mut data)));
    })
}

fn aws_lc(algorithm: Algorithm, len: usize) -> f64 {
    use aws_lc_rs::aead::{AES_128_GCM, AES_256_GCM, Aad, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey};
    let of = match algorithm {
        Algorithm::Aes128Gcm => &AES_128_GCM,
        Algorithm::Aes256Gcm => &AES_256_GCM,
        Algorithm::ChaCha20Poly1305 => &CHACHA20_POLY1305,
    };
    let Ok(key) = UnboundKey::new(of, &KEY[..algorithm.key_len()]).map(LessSafeKey::new) else { return 0.0 };
    let mut data = vec![0; len];
    rate(len, || {
        let nonce = Nonce::assume_unique_for_key(NONCE);
        _ = black_box(key.seal_in_place_separate_tag(nonce, Aad::from(AAD), black_box(&mut data)));
    })
}

fn keys(algorithm: Algorithm) -> Vec<Key> {
    let keys = Backend::ALL.map(|backend| Key::with_backend(algorithm, &KEY[..algorithm.key_len()], backend));
    keys.into_iter().flatten().collect()
}

fn names(algorithm: Algorithm) -> Vec<String> {
    keys(algorithm).iter().map(|key| format!("{:?}", key.backend())).collect()
}

const RECORD: usize = 16384;
const REPEATS: u32 = 8;
const NONCE: [u8; 12] = [3; 12];
const AAD: [u8; 5] = [23, 3, 3, 64, 17];
const KEY: [u8; 32] = [7; 32];
