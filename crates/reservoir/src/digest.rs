//! Digests of files and messages in HTTP fields: `Repr-Digest`, `Content-Digest` and the fields that request them (RFC
//! 9530), and the older `Digest` (RFC 3230), which grid storage uses.

use adler2::Adler32;
use base64::Engine;
use base64::alphabet;
use base64::engine::DecodePaddingMode;
use base64::engine::general_purpose::{GeneralPurpose, GeneralPurposeConfig, STANDARD};
use core::time::Duration;
use md5::Md5;
use sha1::Sha1;
use sha2::{Digest as _, Sha256, Sha512};

/// A digest algorithm.
///
/// ```
/// use offload_reservoir::digest::HashAlgorithm;
///
/// assert_eq!(HashAlgorithm::wanted("sha-512=3, sha-256=10, unixsum=1"), Some(HashAlgorithm::Sha256));
/// assert_eq!(HashAlgorithm::wanted_by_rfc3230("adler32"), Some(HashAlgorithm::Adler32));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum HashAlgorithm {
    /// SHA-256.
    Sha256,
    /// SHA-512.
    Sha512,
    /// BLAKE3 with 32 bytes: not registered, used between peers of this crate.
    Blake3,
    /// SHA-1, for old peers; detects accidental errors only.
    Sha1,
    /// MD5, for old peers; detects accidental errors only.
    Md5,
    /// Adler-32, for grid storage; detects accidental errors only.
    Adler32,
    /// CRC32C; detects accidental errors only.
    Crc32c,
}

impl HashAlgorithm {
    /// Returns the name in RFC 9530.
    pub const fn name(self) -> &'static str {
        match self {
            HashAlgorithm::Sha256 => "sha-256",
            HashAlgorithm::Sha512 => "sha-512",
            HashAlgorithm::Blake3 => "blake3",
            HashAlgorithm::Sha1 => "sha",
            HashAlgorithm::Md5 => "md5",
            HashAlgorithm::Adler32 => "adler",
            HashAlgorithm::Crc32c => "crc32c",
        }
    }

    /// Returns the length of a digest in bytes.
    const fn length(self) -> usize {
        match self {
            HashAlgorithm::Sha512 => 64,
            HashAlgorithm::Sha256 | HashAlgorithm::Blake3 => 32,
            HashAlgorithm::Sha1 => 20,
            HashAlgorithm::Md5 => 16,
            HashAlgorithm::Adler32 | HashAlgorithm::Crc32c => 4,
        }
    }

    fn named(name: &str) -> Option<HashAlgorithm> {
        ALL.into_iter().find(|algorithm| algorithm.name().eq_ignore_ascii_case(name))
    }

    fn named_by_rfc3230(name: &str) -> Option<HashAlgorithm> {
        if name.eq_ignore_ascii_case("adler32") { Some(HashAlgorithm::Adler32) } else { HashAlgorithm::named(name) }
    }

    /// Returns the known algorithm with the highest weight in a `Want-Repr-Digest` or `Want-Content-Digest` field.
    pub fn wanted(field: &str) -> Option<HashAlgorithm> {
        let weighed = field.split(',').take(MAX_MEMBERS).filter_map(|member| {
            let (name, weight) = member.trim().split_once('=').unwrap_or((member.trim(), "1"));
            let weight: u8 = weight.trim().parse().ok().filter(|weight| (1..=10).contains(weight))?;
            Some((weight, HashAlgorithm::named(name.trim())?))
        });
        // If weights are equal, the first algorithm wins.
        weighed.reduce(|best, next| if next.0 > best.0 { next } else { best }).map(|(_, algorithm)| algorithm)
    }

    /// Returns the known algorithm with the highest weight in a `Want-Digest` field, with weights written `;q=0.5`.
    pub fn wanted_by_rfc3230(field: &str) -> Option<HashAlgorithm> {
        let weighed = field.split(',').take(MAX_MEMBERS).filter_map(|member| {
            let mut parts = member.split(';').map(str::trim);
            let algorithm = HashAlgorithm::named_by_rfc3230(parts.next()?)?;
            let weight = parts.find_map(|part| part.strip_prefix("q=")).map_or(Some(1.0), |q| q.parse::<f32>().ok())?;
            (weight > 0.0).then_some((weight, algorithm))
        });
        weighed.reduce(|best, next| if next.0 > best.0 { next } else { best }).map(|(_, algorithm)| algorithm)
    }

    /// Formats `value` as a `Repr-Digest` or `Content-Digest`.
    pub fn field(self, value: &[u8]) -> String {
        format!("{}=:{}:", self.name(), STANDARD.encode(value))
    }

    /// Formats `value` as a `Digest` of RFC 3230: Adler-32 and CRC32C in hexadecimal, the others in base64.
    pub fn field_of_rfc3230(self, value: &[u8]) -> String {
        match self {
            HashAlgorithm::Adler32 => format!("adler32={}", hexadecimal(value)),
            HashAlgorithm::Crc32c => format!("crc32c={}", hexadecimal(value)),
            _ => format!("{}={}", self.name(), STANDARD.encode(value)),
        }
    }
}

/// Parses a `Repr-Digest` or `Content-Digest`. Skips unknown algorithms.
///
/// # Errors
/// If a member is malformed, or a digest has another length than its algorithm's.
///
/// ```
/// use offload_reservoir::digest::{HashAlgorithm, read};
///
/// assert_eq!(read("x=:AA==:, crc32c=:AAECAw==:").unwrap(), [(HashAlgorithm::Crc32c, vec![0, 1, 2, 3])]);
/// assert!(read("crc32c=:AA==:").is_err());
/// ```
pub fn read(field: &str) -> Result<Vec<(HashAlgorithm, Vec<u8>)>, MalformedDigest> {
    // RFC 9651 section 3.3.5: a byte sequence is enclosed in colons, and parameters may follow.
    members(field.split(','), |member| {
        let (name, value) = member.split_once('=')?;
        let (value, _parameters) = value.split_once(';').unwrap_or((value, ""));
        let value = LENIENT.decode(value.trim().strip_prefix(':')?.strip_suffix(':')?).ok()?;
        Some((HashAlgorithm::named(name), value))
    })
}

/// Parses a `Digest` of RFC 3230. Skips unknown algorithms.
///
/// # Errors
/// If a member is malformed, or a digest has another length than its algorithm's.
///
/// ```
/// use offload_reservoir::digest::{HashAlgorithm, read_rfc3230};
///
/// assert_eq!(read_rfc3230("adler32=3da").unwrap(), [(HashAlgorithm::Adler32, vec![0, 0, 3, 0xda])]);
/// ```
pub fn read_rfc3230(field: &str) -> Result<Vec<(HashAlgorithm, Vec<u8>)>, MalformedDigest> {
    members(field.split(','), |member| {
        let (name, value) = member.split_once('=')?;
        // The values of unknown algorithms can have any form.
        let Some(algorithm) = HashAlgorithm::named_by_rfc3230(name) else { return Some((None, Vec::new())) };
        Some((Some(algorithm), hexadecimal_or_base64(algorithm, value)?))
    })
}

/// Parses an `OC-Checksum`, which ownCloud's clients send: `SHA1:` and hexadecimal digits. Skips unknown algorithms.
///
/// # Errors
/// If a member is malformed, or a checksum has another length than its algorithm's.
///
/// ```
/// use offload_reservoir::digest::{HashAlgorithm, read_checksum};
///
/// assert_eq!(read_checksum("ADLER32:11e60398").unwrap()[0].0, HashAlgorithm::Adler32);
/// ```
pub fn read_checksum(field: &str) -> Result<Vec<(HashAlgorithm, Vec<u8>)>, MalformedDigest> {
    members(field.split(' '), |member| {
        let (name, value) = member.split_once(':')?;
        // These names have no hyphens, unlike the names in RFC 9530.
        let name = |algorithm: &HashAlgorithm| match algorithm {
            HashAlgorithm::Sha1 => name.eq_ignore_ascii_case("SHA1"),
            HashAlgorithm::Adler32 => name.eq_ignore_ascii_case("ADLER32"),
            other => name.eq_ignore_ascii_case(&other.name().replace('-', "")),
        };
        let Some(algorithm) = ALL.into_iter().find(name) else { return Some((None, Vec::new())) };
        Some((Some(algorithm), hexadecimal_or_base64(algorithm, value)?))
    })
}

/// A digest field that cannot be parsed.
///
/// ```
/// use offload_reservoir::digest::{MalformedDigest, read};
///
/// let error: MalformedDigest = read("sha-256=abc").unwrap_err();
/// assert!(error.to_string().contains("malformed"));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "a digest is malformed, or has the wrong length for its algorithm: omit it, or format it as RFC 9530 specifies"
)]
pub struct MalformedDigest;

/// Parses the members of a field. `parse` returns `None` for a malformed member, and no algorithm for an unknown one.
fn members<'a>(
    members: impl Iterator<Item = &'a str>,
    parse: impl Fn(&'a str) -> Option<(Option<HashAlgorithm>, Vec<u8>)>,
) -> Result<Vec<(HashAlgorithm, Vec<u8>)>, MalformedDigest> {
    let mut known = Vec::new();
    for (count, member) in members.enumerate() {
        // Each member costs a computation, so their number is limited.
        let (algorithm, value) = parse(member.trim()).filter(|_| count < MAX_MEMBERS).ok_or(MalformedDigest)?;
        if let Some(algorithm) = algorithm {
            known.push((
                algorithm,
                Some(value).filter(|value| value.len() == algorithm.length()).ok_or(MalformedDigest)?,
            ));
        }
    }
    Ok(known)
}

/// Decodes a digest in hexadecimal or base64; the length determines the notation.
fn hexadecimal_or_base64(algorithm: HashAlgorithm, text: &str) -> Option<Vec<u8>> {
    let text = text.trim();
    let fits = |value: &Vec<u8>| value.len() == algorithm.length();
    // Leading zeros may be missing.
    let digits = if algorithm.length() == 4 { format!("{text:0>8}") } else { text.to_owned() };
    from_hexadecimal(&digits).filter(fits).or_else(|| LENIENT.decode(text).ok().filter(fits))
}

/// An incremental digest.
///
/// ```
/// use offload_reservoir::digest::{HashAlgorithm, DigestHasher, hexadecimal};
///
/// let mut summer = DigestHasher::new(HashAlgorithm::Adler32);
/// summer.update(b"Wiki");
/// summer.update(b"pedia");
/// assert_eq!(hexadecimal(&summer.finish()), "11e60398");
/// ```
pub struct DigestHasher(HasherState);

enum HasherState {
    Sha256(Sha256),
    Sha512(Sha512),
    Blake3(Box<blake3::Hasher>),
    Sha1(Sha1),
    Md5(Md5),
    Adler32(Adler32),
    Crc32c(u32),
}

impl DigestHasher {
    /// Starts a digest.
    pub fn new(algorithm: HashAlgorithm) -> DigestHasher {
        DigestHasher(match algorithm {
            HashAlgorithm::Sha256 => HasherState::Sha256(Sha256::new()),
            HashAlgorithm::Sha512 => HasherState::Sha512(Sha512::new()),
            HashAlgorithm::Blake3 => HasherState::Blake3(Box::default()),
            HashAlgorithm::Sha1 => HasherState::Sha1(Sha1::new()),
            HashAlgorithm::Md5 => HasherState::Md5(Md5::new()),
            HashAlgorithm::Adler32 => HasherState::Adler32(Adler32::new()),
            HashAlgorithm::Crc32c => HasherState::Crc32c(0),
        })
    }

    /// Hashes the next bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        match &mut self.0 {
            HasherState::Sha256(hash) => hash.update(bytes),
            HasherState::Sha512(hash) => hash.update(bytes),
            HasherState::Blake3(hash) => drop(hash.update(bytes)),
            HasherState::Sha1(hash) => hash.update(bytes),
            HasherState::Md5(hash) => hash.update(bytes),
            HasherState::Adler32(sum) => sum.write_slice(bytes),
            HasherState::Crc32c(sum) => *sum = crc32c::crc32c_append(*sum, bytes),
        }
    }

    /// Returns the digest of all bytes.
    pub fn finish(self) -> Vec<u8> {
        match self.0 {
            HasherState::Sha256(hash) => hash.finalize().to_vec(),
            HasherState::Sha512(hash) => hash.finalize().to_vec(),
            HasherState::Blake3(hash) => hash.finalize().as_bytes().to_vec(),
            HasherState::Sha1(hash) => hash.finalize().to_vec(),
            HasherState::Md5(hash) => hash.finalize().to_vec(),
            HasherState::Adler32(sum) => sum.checksum().to_be_bytes().to_vec(),
            HasherState::Crc32c(sum) => sum.to_be_bytes().to_vec(),
        }
    }
}

/// Formats bytes as hexadecimal digits.
pub fn hexadecimal(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    bytes.iter().flat_map(|byte| [byte >> 4, byte & 15]).map(|digit| char::from(DIGITS[usize::from(digit)])).collect()
}

/// Parses hexadecimal digits, two per byte. Returns `None` if the text is malformed.
pub fn from_hexadecimal(text: &str) -> Option<Vec<u8>> {
    let digit = |byte: u8| char::from(byte).to_digit(16).map(|digit| digit as u8);
    let bytes = text.as_bytes().chunks(2).map(|pair| match pair {
        [high, low] => Some(digit(*high)? << 4 | digit(*low)?),
        _ => None,
    });
    bytes.collect()
}

const ALL: [HashAlgorithm; 7] = [
    HashAlgorithm::Sha256,
    HashAlgorithm::Sha512,
    HashAlgorithm::Blake3,
    HashAlgorithm::Sha1,
    HashAlgorithm::Md5,
    HashAlgorithm::Adler32,
    HashAlgorithm::Crc32c,
];
/// Maximum number of members in a field.
const MAX_MEMBERS: usize = 32;
/// RFC 9651 section 4.2.7: padding may be missing.
const LENIENT: GeneralPurpose = GeneralPurpose::new(
    &alphabet::STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// Returns the time to wait for a server that reads a whole file before it answers: one minute plus the read time at 16
/// MiB/s.
pub(crate) fn patience(size: u64) -> Duration {
    Duration::from_secs(60 + (size >> 24))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The examples of RFC 9530 appendix D, and sums computed by `md5sum` and zlib.
    #[test]
    fn fields_are_as_the_rfcs_have_them() {
        let text = b"{\"hello\": \"world\"}\n";
        let sum = |algorithm| {
            let mut summer = DigestHasher::new(algorithm);
            summer.update(text);
            summer.finish()
        };
        let sha256 = "sha-256=:RK/0qy18MlBSVnWgjwz6lZEWjP/lF5HF9bvEF8FabDg=:";
        assert_eq!(HashAlgorithm::Sha256.field(&sum(HashAlgorithm::Sha256)), sha256);
        assert_eq!(read(sha256).unwrap(), [(HashAlgorithm::Sha256, sum(HashAlgorithm::Sha256))]);
        assert_eq!(read("sha-256=:RK/0qy18MlBSVnWgjwz6lZEWjP/lF5HF9bvEF8FabDg:;a=b").unwrap(), read(sha256).unwrap());
        for algorithm in ALL {
            let value = sum(algorithm);
            assert_eq!(read(&algorithm.field(&value)).unwrap(), [(algorithm, value.clone())]);
            assert_eq!(read_rfc3230(&algorithm.field_of_rfc3230(&value)).unwrap(), [(algorithm, value)]);
        }
        assert_eq!(read_rfc3230("adler32=3da").unwrap(), [(HashAlgorithm::Adler32, vec![0, 0, 3, 0xda])]);
        let sha1 = format!("SHA1:{} SHA3-256:x", hexadecimal(&sum(HashAlgorithm::Sha1)));
        assert_eq!(read_checksum(&sha1).unwrap(), [(HashAlgorithm::Sha1, sum(HashAlgorithm::Sha1))]);
    }

    #[test]
    fn malformed_digests_are_errors() {
        let cases =
            ["", "sha-256", "sha-256=", "sha-256=abc", "sha-256=:?:", "sha-256=:AAAA:", ",,,", "sha-256=:", "x=5"];
        for bad in cases {
            assert_eq!(read(bad), Err(MalformedDigest), "{bad}");
        }
        for bad in ["", "sha-256=ZZZ", "md5=", "adler32=xyz", "adler32=123456789"] {
            assert_eq!(read_rfc3230(bad), Err(MalformedDigest), "{bad}");
        }
        for bad in ["", "SHA1", "SHA1:", "SHA1:0000", "MD5:xyz"] {
            assert_eq!(read_checksum(bad), Err(MalformedDigest), "{bad}");
        }
        assert_eq!((read("y=:AA==:"), read_rfc3230("unixsum=30637")), (Ok(vec![]), Ok(vec![])));
        assert_eq!(read(&["y=:AA==:"; 33].join(",")), Err(MalformedDigest));
    }

    #[test]
    fn the_heaviest_known_wish_wins() {
        assert_eq!(HashAlgorithm::wanted("sha-256=0, md5=1"), Some(HashAlgorithm::Md5));
        assert_eq!(HashAlgorithm::wanted("blake3=10, sha-256=10"), Some(HashAlgorithm::Blake3));
        for none in ["", "sha-256=0", "sha-256=11", "id=5", "=", "sha-256=x"] {
            assert_eq!(HashAlgorithm::wanted(none), None, "{none}");
        }
        assert_eq!(HashAlgorithm::wanted_by_rfc3230("md5;q=0.3, adler32;q=0.9, zz"), Some(HashAlgorithm::Adler32));
        assert_eq!(HashAlgorithm::wanted_by_rfc3230("MD5"), Some(HashAlgorithm::Md5));
        assert_eq!(HashAlgorithm::wanted_by_rfc3230("md5;q=0"), None);
    }

    #[test]
    fn digits_come_in_pairs() {
        assert_eq!(from_hexadecimal(&hexadecimal(&[0, 0x9f, 0xff])), Some(vec![0, 0x9f, 0xff]));
        assert_eq!((from_hexadecimal("abc"), from_hexadecimal("zz"), from_hexadecimal("+1")), (None, None, None));
    }
}
