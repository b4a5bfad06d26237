//! The speed of every back end of this processor, beside other libraries: `cargo run --release -p beside-aws-lc
//! --features aws-lc --example throughput [NAME]`.
//!
//! Prints GB/s (1e9 bytes) of the fastest of many short runs. The entries of a row take turns, so that other load of
//! the machine affects all alike. `NAME` selects tables whose title contains it: `Aes128Gcm`, `ChaCha`.

#![allow(clippy::print_stdout, reason = "printing is the whole purpose, so a failed write loses no other work")]

use std::hint::black_box;
use std::time::{Duration, Instant};

use ccm::KeyInit as _;
use resumable_aead::{Algorithm, Backend, Key, State};

fn main() {
    let wanted = std::env::args().nth(1).unwrap_or_default();
    let is_wanted = |algorithm: &Algorithm| format!("{algorithm:?}").contains(&wanted);
    for algorithm in Algorithm::ALL.into_iter().filter(is_wanted) {
        whole_messages(algorithm);
        records_in_pieces(algorithm);
    }
}

fn whole_messages(algorithm: Algorithm) {
    println!("\n{algorithm:?}: seal whole messages\n");
    for (row, len) in [64, 256, 1024, 1448, 4096, RECORD].into_iter().enumerate() {
        let mut contenders = others(algorithm, len);
        for key in keys(algorithm) {
            let mut data = vec![0; len];
            contenders.push(contender(&key, move |key| {
                _ = black_box(key.seal_in_place(&NONCE, &AAD, black_box(&mut data)));
            }));
        }
        print_row(row, "bytes", len, len, contenders);
    }
}

fn records_in_pieces(algorithm: Algorithm) {
    let ways: [(&str, CipherFunction); 3] =
        [("seal", seal), ("open", open), ("seal from source to destination", seal_to)];
    for (name, way) in ways {
        println!("\n{algorithm:?}: {name}, a record of {RECORD} bytes in pieces; the others seal it whole\n");
        for (row, piece) in [64, 256, 1448, 8948].into_iter().enumerate() {
            let mut contenders = others(algorithm, RECORD);
            for key in keys(algorithm) {
                let (mut data, mut copy) = (vec![0; RECORD], vec![0; RECORD]);
                contenders.push(contender(&key, move |key| {
                    let Ok(mut state) = State::with_len(key, &NONCE, &AAD, RECORD as u64) else { return };
                    for (data, copy) in data.chunks_mut(piece).zip(copy.chunks_mut(piece)) {
                        way(&mut state, key, data, copy);
                    }
                    _ = black_box(state.tag(key));
                }));
            }
            print_row(row, "piece", piece, RECORD, contenders);
        }
    }
}

type CipherFunction = fn(&mut State, &Key, &mut [u8], &mut [u8]);

fn seal(state: &mut State, key: &Key, data: &mut [u8], _: &mut [u8]) {
    state.encrypt(key, data).unwrap_or(());
}

fn open(state: &mut State, key: &Key, data: &mut [u8], _: &mut [u8]) {
    state.decrypt(key, data).unwrap_or(());
}

fn seal_to(state: &mut State, key: &Key, data: &mut [u8], copy: &mut [u8]) {
    state.encrypt_to(key, data, copy).unwrap_or(());
}

/// A name and the measured function.
type Contender = (String, Box<dyn FnMut()>);

/// Returns our implementation with the back end of `key`.
fn contender(key: &Key, mut work: impl FnMut(&Key) + 'static) -> Contender {
    let (algorithm, backend) = (key.algorithm(), key.backend());
    let key = Key::with_backend(algorithm, &KEY[..algorithm.key_len()], backend);
    (
        format!("{backend:?}"),
        Box::new(move || {
            if let Ok(key) = &key {
                work(key)
            }
        }),
    )
}

/// Returns the other libraries that seal a whole message.
fn others(algorithm: Algorithm, len: usize) -> Vec<Contender> {
    let mut data = vec![0; len];
    let key = &KEY[..algorithm.key_len()];
    let Some((ring, aws_lc)) = ring_and_aws_lc(algorithm) else {
        let Ok(ccm) = ccm::Ccm::<aes::Aes128, ccm::consts::U16, ccm::consts::U12>::new_from_slice(&KEY[..16]) else {
            return Vec::new();
        };
        let seal = move || {
            use ccm::AeadInOut;
            _ = black_box(ccm.encrypt_inout_detached(&NONCE.into(), &AAD, black_box(data.as_mut_slice()).into()));
        };
        return vec![("RustCrypto, AES-128".to_owned(), Box::new(seal))];
    };
    let mut contenders: Vec<Contender> = Vec::new();
    if let Ok(key) = ring::aead::UnboundKey::new(ring, key).map(ring::aead::LessSafeKey::new) {
        let mut data = data.clone();
        let seal = move || {
            use ring::aead::{Aad, Nonce};
            let nonce = Nonce::assume_unique_for_key(NONCE);
            _ = black_box(key.seal_in_place_separate_tag(nonce, Aad::from(AAD), black_box(&mut data)));
        };
        contenders.push(("ring".to_owned(), Box::new(seal)));
    }
    if let Ok(key) = aws_lc_rs::aead::UnboundKey::new(aws_lc, key).map(aws_lc_rs::aead::LessSafeKey::new) {
        let seal = move || {
            use aws_lc_rs::aead::{Aad, Nonce};
            let nonce = Nonce::assume_unique_for_key(NONCE);
            _ = black_box(key.seal_in_place_separate_tag(nonce, Aad::from(AAD), black_box(&mut data)));
        };
        contenders.push(("aws-lc-rs".to_owned(), Box::new(seal)));
    }
    contenders
}

type Others = (&'static ring::aead::Algorithm, &'static aws_lc_rs::aead::Algorithm);

/// Returns `None` if ring and aws-lc lack the algorithm.
fn ring_and_aws_lc(algorithm: Algorithm) -> Option<Others> {
    use aws_lc_rs::aead as aws_lc;
    use ring::aead as ring;
    match algorithm {
        Algorithm::Aes128Gcm => Some((&ring::AES_128_GCM, &aws_lc::AES_128_GCM)),
        Algorithm::Aes256Gcm => Some((&ring::AES_256_GCM, &aws_lc::AES_256_GCM)),
        Algorithm::ChaCha20Poly1305 => Some((&ring::CHACHA20_POLY1305, &aws_lc::CHACHA20_POLY1305)),
        _ => None,
    }
}

/// Runs all entries in turn and prints a row of a table, with the heading before the first row.
fn print_row(row: usize, what: &str, size: usize, len: usize, mut contenders: Vec<Contender>) {
    if row == 0 {
        let names: Vec<&str> = contenders.iter().map(|(name, _)| name.as_str()).collect();
        println!("| {what} | {} |\n|---|{}", names.join(" | "), "---|".repeat(names.len()));
    }
    let mut fastest = vec![Duration::MAX; contenders.len()];
    let begin = Instant::now();
    while begin.elapsed() < Duration::from_millis(100) * contenders.len() as u32 {
        for ((_, work), fastest) in contenders.iter_mut().zip(&mut fastest) {
            // The first run warms up the caches.
            work();
            let start = Instant::now();
            for _ in 0..REPEATS {
                work();
            }
            *fastest = start.elapsed().min(*fastest);
        }
    }
    let rate = |fastest: &Duration| format!("{:.2}", (len * REPEATS) as f64 / fastest.as_nanos() as f64);
    println!("| {size} | {} |", fastest.iter().map(rate).collect::<Vec<_>>().join(" | "));
}

fn keys(algorithm: Algorithm) -> Vec<Key> {
    let keys = Backend::ALL.map(|backend| Key::with_backend(algorithm, &KEY[..algorithm.key_len()], backend));
    keys.into_iter().flatten().collect()
}

const RECORD: usize = 16384;
const REPEATS: usize = 8;
const NONCE: [u8; 12] = [3; 12];
const AAD: [u8; 5] = [23, 3, 3, 64, 17];
const KEY: [u8; 32] = [7; 32];
