//! Which bytes of a file a request is for (RFC 9110 section 14).

use core::ops::Range;

/// What a `Range` header comes to for a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Selected {
    /// All of it: the header says nothing that is to be heeded.
    Whole,
    /// A part of it.
    Part(Range<u64>),
    /// Bytes that it does not have.
    Nothing,
}

/// Reads a `Range` header for a file of `length` bytes. More than one range at once may be ignored (section 14.2), and is.
///
/// ```
/// use offload_reservoir::range::{Selected, select};
///
/// assert_eq!(select("bytes=10-19", 15), Selected::Part(10..15));
/// assert_eq!(select("bytes=-4", 15), Selected::Part(11..15));
/// assert_eq!(select("bytes=15-", 15), Selected::Nothing);
/// assert_eq!(select("bytes=0-1,3-4", 15), Selected::Whole);
/// ```
pub fn select(header: &str, length: u64) -> Selected {
    let Some((first, last)) = header.strip_prefix("bytes=").and_then(|range| range.split_once('-')) else {
        return Selected::Whole;
    };
    let (first, last) = (first.trim(), last.trim());
    let range = match (number(first), number(last)) {
        (Some(first), Some(last)) if first <= last => first..last.saturating_add(1).min(length),
        (Some(first), None) if last.is_empty() => first..length,
        // The last so many bytes (section 14.1.2), or all if there are not so many.
        (None, Some(count)) if first.is_empty() => length.saturating_sub(count)..length,
        _ => return Selected::Whole,
    };
    if range.start >= range.end { Selected::Nothing } else { Selected::Part(range) }
}

/// Whether a header asks for bytes in a form that RFC 9110 section 14.1 has; for several ranges too, as other servers may
/// give them.
///
/// ```
/// use offload_reservoir::range::is_range;
///
/// assert!(is_range("bytes=0-99") && is_range("bytes=0-1, -5"));
/// assert!(!is_range("0-99") && !is_range("bytes=9-1"));
/// ```
pub fn is_range(header: &str) -> bool {
    let Some(ranges) = header.strip_prefix("bytes=") else { return false };
    ranges.split(',').all(|range| select(&format!("bytes={}", range.trim()), u64::MAX) != Selected::Whole)
}

/// What a `Content-Range` says of a message.
///
/// ```
/// use offload_reservoir::range::ContentRange;
///
/// assert_eq!("bytes 0-99/200".parse(), Ok(ContentRange { bytes: Some(0..100), size: 200 }));
/// assert_eq!("bytes */200".parse(), Ok(ContentRange { bytes: None, size: 200 }));
/// assert!("bytes 0-99/50".parse::<ContentRange>().is_err());
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContentRange {
    /// Which bytes it has; `None`: it has none, and tells the size.
    pub bytes: Option<Range<u64>>,
    /// The size of all.
    pub size: u64,
}

impl core::str::FromStr for ContentRange {
    type Err = String;

    fn from_str(text: &str) -> Result<ContentRange, String> {
        let wrong = || "Content-Range is written `bytes FIRST-LAST/SIZE`, with the size in digits".to_owned();
        let (bytes, size) = text.strip_prefix("bytes ").and_then(|rest| rest.split_once('/')).ok_or_else(wrong)?;
        let exact = |text: &str| number(text).filter(|number| *number < MOST_BYTES);
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

/// Digits and nothing else; a number too long for any file stands for one that is.
fn number(text: &str) -> Option<u64> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    digits.then(|| text.parse().unwrap_or(u64::MAX))
}

/// No file is larger: sums of two offsets never overflow.
pub(crate) const MOST_BYTES: u64 = 1 << 62;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_there_is() {
        let cases = [
            ("bytes=0-0", Selected::Part(0..1)),
            ("bytes=0-", Selected::Part(0..100)),
            ("bytes=99-99", Selected::Part(99..100)),
            ("bytes=99-99999999999999999999999", Selected::Part(99..100)),
            ("bytes=-1", Selected::Part(99..100)),
            ("bytes=-1000", Selected::Part(0..100)),
            ("bytes=-0", Selected::Nothing),
            ("bytes=100-", Selected::Nothing),
            ("bytes=100-200", Selected::Nothing),
            ("bytes=5-4", Selected::Whole),
            ("bytes=-", Selected::Whole),
            ("bytes=a-b", Selected::Whole),
            ("bytes=+1-2", Selected::Whole),
            ("bytes=1-2,4-5", Selected::Whole),
            ("lines=1-2", Selected::Whole),
            ("", Selected::Whole),
        ];
        for (header, expected) in cases {
            let is_one = expected != Selected::Whole || header == "bytes=1-2,4-5";
            assert_eq!(is_range(header), is_one, "{header}");
            assert_eq!(select(header, 100), expected, "{header}");
        }
        assert_eq!(select("bytes=0-", 0), Selected::Nothing);
    }

    #[test]
    fn a_content_range_is_exact_or_none() {
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
