//! `Range` and `Content-Range` (RFC 9110 section 14).

use core::ops::Range;

/// The part of a file that a `Range` field selects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SelectedRange {
    /// The whole file, because the field is malformed, has an unknown unit, or lists several ranges.
    Whole,
    /// A part of the file.
    Part(Range<u64>),
    /// A range of bytes outside the file.
    Nothing,
}

/// Reads a `Range` field for a file of `length` bytes. A field with several ranges is ignored, as section 14.2 allows.
///
/// ```
/// use http_rules::range::{SelectedRange, select};
///
/// assert_eq!(select("bytes=10-19", 15), SelectedRange::Part(10..15));
/// assert_eq!(select("bytes=-4", 15), SelectedRange::Part(11..15));
/// assert_eq!(select("bytes=15-", 15), SelectedRange::Nothing);
/// assert_eq!(select("bytes=0-1,3-4", 15), SelectedRange::Whole);
/// ```
pub fn select(header: &str, length: u64) -> SelectedRange {
    let mut ranges = ranges(header);
    match (ranges.next(), ranges.next()) {
        (Some(range), None) => select_one(range, length),
        _ => SelectedRange::Whole,
    }
}

/// Splits a `Range` field of bytes into its ranges, and skips empty list elements (section 5.6.1.2).
fn ranges(header: &str) -> impl Iterator<Item = &str> {
    // RFC 9110 14.1: names of units are case-insensitive.
    let (unit, ranges) = header.split_once('=').unwrap_or_default();
    let ranges = if unit.eq_ignore_ascii_case("bytes") { ranges } else { "" };
    ranges.split(',').map(|range| range.trim_matches([' ', '\t'])).filter(|range| !range.is_empty())
}

fn select_one(range: &str, length: u64) -> SelectedRange {
    let Some((first, last)) = range.split_once('-') else { return SelectedRange::Whole };
    let range = match (number(first), number(last)) {
        (Some(first), Some(last)) if first <= last => first..last.saturating_add(1).min(length),
        (Some(first), None) if last.is_empty() => first..length,
        // A suffix: the last bytes of the file, or all of a shorter file (section 14.1.2). A suffix of an empty file is
        // satisfiable, but a 206 cannot express an empty range, so the whole file is selected.
        (None, Some(1..)) if first.is_empty() && length == 0 => return SelectedRange::Whole,
        (None, Some(count)) if first.is_empty() => length.saturating_sub(count)..length,
        _ => return SelectedRange::Whole,
    };
    if range.start >= range.end { SelectedRange::Nothing } else { SelectedRange::Part(range) }
}

/// Tests whether a field requests bytes in the form of RFC 9110 section 14.1, possibly several ranges.
///
/// ```
/// use http_rules::range::is_range;
///
/// assert!(is_range("bytes=0-99") && is_range("bytes=0-1, -5"));
/// assert!(!is_range("0-99") && !is_range("bytes=9-1"));
/// ```
pub fn is_range(header: &str) -> bool {
    let mut all = ranges(header).peekable();
    all.peek().is_some() && all.all(|range| select_one(range, u64::MAX) != SelectedRange::Whole)
}

/// The `Content-Range` of a message.
///
/// ```
/// use http_rules::range::ContentRange;
///
/// assert_eq!("bytes 0-99/200".parse(), Ok(ContentRange { bytes: Some(0..100), size: 200 }));
/// assert_eq!("bytes */200".parse(), Ok(ContentRange { bytes: None, size: 200 }));
/// assert!("bytes 0-99/50".parse::<ContentRange>().is_err());
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContentRange {
    /// Range of the bytes in the message. `None` if the message only states the size.
    pub bytes: Option<Range<u64>>,
    /// Size of the whole file.
    pub size: u64,
}

impl core::str::FromStr for ContentRange {
    type Err = String;

    fn from_str(text: &str) -> Result<ContentRange, String> {
        let wrong = || "Content-Range is written `bytes FIRST-LAST/SIZE`, with the size in digits".to_owned();
        let (bytes, size) = text.strip_prefix("bytes ").and_then(|rest| rest.split_once('/')).ok_or_else(wrong)?;
        let exact = |text: &str| number(text).filter(|number| *number < MAX_FILE_BYTES);
        let size = exact(size).ok_or_else(wrong)?;
        if bytes == "*" {
            return Ok(ContentRange { bytes: None, size });
        }
        let (first, last) = bytes.split_once('-').ok_or_else(wrong)?;
        match (exact(first), exact(last)) {
            (Some(first), Some(last)) if first <= last && last < size => {
                Ok(ContentRange { bytes: Some(first..last + 1), size })
            }
            _ => Err(wrong()),
        }
    }
}

/// Parses digits only. A number too large for any file is replaced by the maximum.
fn number(text: &str) -> Option<u64> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    // Too many digits for 64 bits still form a valid number, which lies past the end of any file.
    digits.then(|| text.parse().unwrap_or(u64::MAX))
}

/// Upper bound for the size of a file, so that the sum of two offsets never overflows.
pub const MAX_FILE_BYTES: u64 = 1 << 62;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_of_a_range_is_read() {
        let cases = [
            ("bytes=0-0", SelectedRange::Part(0..1)),
            ("bytes=0-", SelectedRange::Part(0..100)),
            ("bytes=99-99", SelectedRange::Part(99..100)),
            ("bytes=99-99999999999999999999999", SelectedRange::Part(99..100)),
            ("bytes=-1", SelectedRange::Part(99..100)),
            ("bytes=-1000", SelectedRange::Part(0..100)),
            ("bytes=-0", SelectedRange::Nothing),
            ("bytes=100-", SelectedRange::Nothing),
            ("bytes=100-200", SelectedRange::Nothing),
            ("bytes=5-4", SelectedRange::Whole),
            ("bytes=-", SelectedRange::Whole),
            ("bytes=a-b", SelectedRange::Whole),
            ("bytes=+1-2", SelectedRange::Whole),
            ("bytes=1-2,4-5", SelectedRange::Whole),
            ("Bytes=0-0", SelectedRange::Part(0..1)),
            ("bytes= 0-0 ", SelectedRange::Part(0..1)),
            ("bytes=,0-0,", SelectedRange::Part(0..1)),
            ("bytes=0 - 0", SelectedRange::Whole),
            ("bytes =0-0", SelectedRange::Whole),
            ("bytes=", SelectedRange::Whole),
            ("bytes=,", SelectedRange::Whole),
            ("bytes=18446744073709551615-", SelectedRange::Nothing),
            ("bytes=-18446744073709551616", SelectedRange::Part(0..100)),
            ("lines=1-2", SelectedRange::Whole),
            ("", SelectedRange::Whole),
        ];
        for (header, expected) in cases {
            let is_one = expected != SelectedRange::Whole || header == "bytes=1-2,4-5";
            assert_eq!(is_range(header), is_one, "{header}");
            assert_eq!(select(header, 100), expected, "{header}");
        }
        assert_eq!((select("bytes=0-", 0), select("bytes=-0", 0)), (SelectedRange::Nothing, SelectedRange::Nothing));
        assert_eq!(select("bytes=-5", 0), SelectedRange::Whole);
    }

    #[test]
    fn content_ranges_are_exact_or_refused() {
        for bad in [
            "",
            "bytes 0-1",
            "bytes 0-1/*",
            "bytes 1-0/9",
            "bytes 0-9/9",
            "0-1/9",
            "bytes -1/9",
            "bytes 0-/9",
            "bytes +0-1/9",
        ] {
            assert!(bad.parse::<ContentRange>().is_err(), "{bad}");
        }
        assert!(format!("bytes 0-1/{}", u64::MAX).parse::<ContentRange>().is_err());
    }
}
