//! Published vectors, and comparison of every transform with another implementation on random bytes in random pieces.

mod faults;
mod pieces;
mod random;
mod vectors;

use pieces::{cut, run};

/// Parses hexadecimal text.
fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.bytes().filter(|byte| !byte.is_ascii_whitespace()).collect();
    let digit = |byte: u8| (byte as char).to_digit(16).unwrap() as u8;
    digits.chunks(2).map(|pair| digit(pair[0]) << 4 | digit(pair[1])).collect()
}
