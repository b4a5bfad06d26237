//! Parses values: addresses, ports, numbers, and values that may occur once.

use super::words::{StatementWords, printable};
use super::{KeyFileError, KeyFileProblem};
use core::net::IpAddr;
use offload_api::{Direction, EspMode, Prefix};
use zeroize::Zeroizing;

/// Parses a value that may occur once, after its word.
pub(super) fn once<T>(
    words: &mut StatementWords,
    word: &str,
    place: &mut Option<T>,
    read: impl FnOnce(&mut StatementWords) -> Result<T, KeyFileError>,
) -> Result<(), KeyFileError> {
    if place.is_some() {
        return Err(words.error(KeyFileProblem::Twice(printable(word))));
    }
    *place = Some(read(words)?);
    Ok(())
}

pub(super) fn address(words: &mut StatementWords) -> Result<IpAddr, KeyFileError> {
    words.value("an address", |word| word.parse().ok())
}

pub(super) fn prefix(words: &mut StatementWords) -> Result<Prefix, KeyFileError> {
    words.value("an address, or one with a prefix length", |word| match word.split_once('/') {
        Some((address, bits)) => Prefix::new(address.parse().ok()?, bits.parse().ok()?),
        None => word.parse().ok().map(Prefix::host),
    })
}

pub(super) fn direction(words: &mut StatementWords) -> Result<Direction, KeyFileError> {
    words.value("in or out", |word| match word {
        "in" => Some(Direction::Receive),
        "out" => Some(Direction::Transmit),
        _ => None,
    })
}

pub(super) fn mode(words: &mut StatementWords) -> Result<EspMode, KeyFileError> {
    words.value("transport or tunnel", |word| match word {
        "transport" => Some(EspMode::Transport),
        "tunnel" => Some(EspMode::Tunnel),
        _ => None,
    })
}

pub(super) fn protocol(words: &mut StatementWords) -> Result<u8, KeyFileError> {
    words.value("a protocol's name or number", |word| match word {
        "tcp" => Some(6),
        "udp" => Some(17),
        "icmp" => Some(1),
        "ipv6-icmp" | "icmpv6" => Some(58),
        "sctp" => Some(132),
        _ => word.parse().ok(),
    })
}

pub(super) fn port(words: &mut StatementWords) -> Result<u16, KeyFileError> {
    words.value("a port", |word| word.parse().ok())
}

pub(super) fn spi(words: &mut StatementWords) -> Result<u32, KeyFileError> {
    words.value("an SPI", number)
}

/// Parses a decimal or hexadecimal number.
pub(super) fn number(word: &str) -> Option<u32> {
    match word.strip_prefix("0x") {
        Some(digits) => u32::from_str_radix(digits, 16).ok(),
        None => word.parse().ok(),
    }
}

/// Parses the bytes of a key, and leaves no copy of them in memory.
pub(super) fn hexadecimal(word: &str) -> Option<Zeroizing<Vec<u8>>> {
    let digits = word.strip_prefix("0x")?.as_bytes();
    if !digits.len().is_multiple_of(2) {
        return None;
    }
    let digit = |digit: u8| char::from(digit).to_digit(16).map(|value| value as u8);
    // Allocated at full size, because a growing vector leaves copies behind.
    let mut bytes = Zeroizing::new(Vec::with_capacity(digits.len() / 2));
    for pair in digits.chunks_exact(2) {
        bytes.push(digit(pair[0])? << 4 | digit(pair[1])?);
    }
    Some(bytes)
}
