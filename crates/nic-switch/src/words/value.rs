//! Parsers and printers of values in tc's syntax.

use crate::matching::{ARP, ClassMatch, IPV4, IPV6, Mac, Ports, SERVICE_VLAN, VLAN};
use crate::{EtherMatch, matching};
use core::net::IpAddr;
use offload_api::Prefix;
use offload_formats::protocol::{ICMP, ICMPV6, SCTP, TCP, UDP};

/// Parses a number, decimal or hexadecimal with `0x`.
pub(super) fn number<T: TryFrom<u64>>(word: &str) -> Option<T> {
    let value = match word.strip_prefix("0x") {
        Some(digits) => digits_only(digits, |c| c.is_ascii_hexdigit()).and_then(|d| u64::from_str_radix(d, 16).ok()),
        None => digits_only(word, |c| c.is_ascii_digit()).and_then(|d| d.parse().ok()),
    };
    T::try_from(value?).ok()
}

/// Parses bits per second: a number with a unit in powers of 1000; bits without a unit.
pub(super) fn rate(word: &str) -> Option<u64> {
    scaled(word, &[("gbit", 1_000_000_000), ("mbit", 1_000_000), ("kbit", 1000), ("bit", 1), ("bps", 8), ("", 1)])
}

/// Parses bytes: a number with a unit in powers of 1024; bytes without a unit.
pub(super) fn size(word: &str) -> Option<u32> {
    let bytes = scaled(word, &[("mb", 1 << 20), ("m", 1 << 20), ("kb", 1 << 10), ("k", 1 << 10), ("b", 1), ("", 1)])?;
    u32::try_from(bytes).ok()
}

pub(super) fn prefix(word: &str) -> Option<Prefix> {
    let Some((address, bits)) = word.split_once('/') else { return word.parse().ok().map(Prefix::host) };
    Prefix::new(address.parse().ok()?, number(bits)?)
}

pub(super) fn address(word: &str) -> Option<IpAddr> {
    word.parse().ok()
}

pub(super) fn ether(word: &str) -> Option<EtherMatch> {
    let Some((address, mask)) = word.split_once('/') else { return word.parse().ok().map(EtherMatch::exactly) };
    let mask = match number::<u32>(mask) {
        Some(bits) if bits <= 48 => {
            // An Ethernet address is the lower six bytes of the number.
            let ones = (u64::MAX << (48 - bits)).to_be_bytes();
            Mac([ones[2], ones[3], ones[4], ones[5], ones[6], ones[7]])
        }
        _ => mask.parse().ok()?,
    };
    Some(EtherMatch::new(address.parse().ok()?, mask))
}

pub(super) fn ports(word: &str) -> Option<Ports> {
    match word.split_once('-') {
        Some((first, last)) => Some(Ports::Range(number(first)?, number(last)?)),
        None => number(word).map(Ports::One),
    }
}

/// Parses an EtherType by name or number. Numbers below 0x600 are lengths.
pub(super) fn ether_type(word: &str) -> Option<u16> {
    let named = ETHER_TYPES.iter().find(|(_, name)| *name == word).map(|(value, _)| *value);
    named
        .or_else(|| if word == "ipv4" { Some(IPV4) } else { None })
        .or_else(|| number(word).filter(|value| *value >= 0x600))
}

/// Parses a traffic class with an optional mask after a slash.
pub(super) fn class(word: &str) -> Option<ClassMatch> {
    let (class, mask) = word.split_once('/').unwrap_or((word, "0xff"));
    Some(ClassMatch::new(number(class)?, number(mask)?))
}

/// Parses `all` or an EtherType.
pub(super) fn filter_protocol(word: &str) -> Option<Option<u16>> {
    if word == "all" { Some(None) } else { ether_type(word).map(Some) }
}

/// Parses the EtherType of a VLAN tag, ignoring case.
pub(super) fn tag(word: &str) -> Option<u16> {
    ether_type(&word.to_ascii_lowercase()).filter(|value| matching::is_vlan(*value))
}

/// Parses an IP protocol by name or number. Numbers are hexadecimal, as in tc.
pub(super) fn ip_protocol(word: &str) -> Option<u8> {
    let named = IP_PROTOCOLS.iter().find(|(_, name)| *name == word).map(|(value, _)| *value);
    let digits = word.strip_prefix("0x").unwrap_or(word);
    let is_number = digits.chars().all(|c| c.is_ascii_hexdigit());
    named.or_else(|| u8::from_str_radix(digits, 16).ok().filter(|_| is_number))
}

pub(super) fn ether_type_name(value: u16) -> String {
    let named = ETHER_TYPES.iter().find(|(one, _)| *one == value);
    named.map_or_else(|| format!("0x{value:04x}"), |(_, name)| (*name).into())
}

/// Returns the name where tc accepts it. The ICMP of the other IP version must be a number.
pub(super) fn ip_protocol_name(value: u8, network: Option<u16>) -> String {
    // tc refuses the name of the other version's ICMP.
    let is_taken = match value {
        ICMP => network == Some(IPV4),
        ICMPV6 => network == Some(IPV6),
        _ => true,
    };
    let named = IP_PROTOCOLS.iter().find(|(one, _)| *one == value && is_taken);
    named.map_or_else(|| format!("0x{value:x}"), |(_, name)| (*name).into())
}

pub(super) fn prefix_text(prefix: &Prefix) -> String {
    let (address, bits) = (prefix.address(), prefix.bits());
    if Prefix::host(address) == *prefix { address.to_string() } else { format!("{address}/{bits}") }
}

/// Returns `text` if it contains only digits.
fn digits_only(text: &str, is_digit: impl Fn(char) -> bool) -> Option<&str> {
    text.chars().all(is_digit).then_some(text)
}

fn scaled(word: &str, units: &[(&str, u64)]) -> Option<u64> {
    let digits = word.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = word[digits.len()..].to_ascii_lowercase();
    let (_, factor) = units.iter().find(|(name, _)| *name == unit)?;
    number::<u64>(digits)?.checked_mul(*factor)
}

const ETHER_TYPES: [(u16, &str); 5] =
    [(IPV4, "ip"), (IPV6, "ipv6"), (ARP, "arp"), (VLAN, "802.1q"), (SERVICE_VLAN, "802.1ad")];
const IP_PROTOCOLS: [(u8, &str); 5] = [(TCP, "tcp"), (UDP, "udp"), (SCTP, "sctp"), (ICMP, "icmp"), (ICMPV6, "icmpv6")];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_count_in_thousands_and_sizes_in_1024s() {
        assert_eq!(
            (rate("8mbit"), rate("1Kbit"), rate("100bps"), rate("7")),
            (Some(8_000_000), Some(1000), Some(800), Some(7))
        );
        assert_eq!((size("64k"), size("2mb"), size("9"), size("8g")), (Some(65_536), Some(2 << 20), Some(9), None));
        assert_eq!((rate("18446744073709551615kbit"), rate("mbit"), rate("-1bit")), (None, None, None));
    }

    #[test]
    fn masks_are_bits_or_addresses() {
        let one = ether("01:02:03:04:05:06/24").unwrap();
        assert_eq!(one, ether("01:02:03:00:00:00/ff:ff:ff:00:00:00").unwrap());
        assert_eq!((ether("01:02:03:04:05:06/49"), ether("01/24")), (None, None));
        assert_eq!((ip_protocol("41"), ip_protocol("0x29"), ip_protocol("+1")), (Some(0x41), Some(41), None));
        assert_eq!(number::<u8>("0x"), None);
        assert_eq!((number::<u8>("255"), number::<u8>("256"), number::<u8>("+1")), (Some(255), None, None));
    }
}
