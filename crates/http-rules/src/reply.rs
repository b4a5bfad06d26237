//! Answers to GET and HEAD of a file.

use crate::conditions::{CurrentState, Preconditions, UnmetPrecondition, single};
use crate::date;
use crate::range::{SelectedRange, select};
use crate::tag::{TagComparison, TagField};
use crate::version::FileVersion;
use core::ops::Range;
use http::header::{ACCEPT_RANGES, CONTENT_RANGE, ETAG, IF_RANGE, LAST_MODIFIED, RANGE};
use http::{HeaderMap, HeaderValue, Method, StatusCode};
use std::time::SystemTime;

/// The answer to a GET or HEAD of a file, without its bytes.
///
/// See [`reply`] for an example.
#[derive(Clone, Debug)]
pub struct FileReply {
    /// Status of the answer: 200, 206, 304, 400, 412 or 416.
    pub status: StatusCode,
    /// Bytes of the file to send. Empty unless the status is 200 or 206.
    pub range: Range<u64>,
    /// Fields that follow from the version and the range. The caller adds `Content-Length` and `Content-Type`.
    pub fields: HeaderMap,
}

/// Decides the answer to a GET or HEAD at `now`: evaluates the preconditions, then `If-Range` and `Range` (RFC 9110
/// section 13.2.2).
///
/// ```
/// use http_rules::http::{HeaderMap, Method, StatusCode};
/// use http_rules::{FileVersion, reply};
/// use std::time::SystemTime;
///
/// let time = SystemTime::UNIX_EPOCH;
/// let version = FileVersion { inode: 1, size: 100, modified: time, changed: time };
/// let mut fields = HeaderMap::new();
/// fields.insert("range", "bytes=90-".parse()?);
/// let part = reply(&Method::GET, &fields, &version, SystemTime::now());
/// assert_eq!((part.status, part.range), (StatusCode::PARTIAL_CONTENT, 90..100));
/// // A range is only valid for GET.
/// let head = reply(&Method::HEAD, &fields, &version, SystemTime::now());
/// assert_eq!((head.status, head.range), (StatusCode::OK, 0..100));
/// # Ok::<(), Box<dyn core::error::Error>>(())
/// ```
pub fn reply(method: &Method, asked: &HeaderMap, version: &FileVersion, now: SystemTime) -> FileReply {
    let mut fields = HeaderMap::new();
    fields.insert(ETAG, version.entity_tag().to_value());
    // RFC 9110 15.4.5: a 304 has the fields that a 200 would have.
    if let Some(date) = version.last_modified(now) {
        fields.insert(LAST_MODIFIED, date);
    }
    if let Err(unmet) = Preconditions::from_fields(method, asked).evaluate(CurrentState::Version(version)) {
        if unmet != UnmetPrecondition::NotModified {
            fields.remove(LAST_MODIFIED);
        }
        return FileReply { status: unmet.status(), range: 0..0, fields };
    }
    fields.insert(ACCEPT_RANGES, HeaderValue::from_static("bytes"));
    let size = version.size;
    match selected(method, asked, version, now) {
        SelectedRange::Whole => FileReply { status: StatusCode::OK, range: 0..size, fields },
        SelectedRange::Part(range) => {
            fields.insert(CONTENT_RANGE, ascii(format!("bytes {}-{}/{size}", range.start, range.end - 1)));
            FileReply { status: StatusCode::PARTIAL_CONTENT, range, fields }
        }
        SelectedRange::Nothing => {
            fields.insert(CONTENT_RANGE, ascii(format!("bytes */{size}")));
            FileReply { status: StatusCode::RANGE_NOT_SATISFIABLE, range: 0..0, fields }
        }
    }
}

fn selected(method: &Method, asked: &HeaderMap, version: &FileVersion, now: SystemTime) -> SelectedRange {
    // RFC 9110 14.2: a range is only defined for GET, and two `Range` fields are malformed.
    let range = if *method == Method::GET { single(asked, &RANGE) } else { None };
    match range {
        Some(range) if is_same(asked, version, now) => select(range, version.size),
        _ => SelectedRange::Whole,
    }
}

/// Tests whether `If-Range`, if present, names exactly this version (section 13.1.5).
fn is_same(asked: &HeaderMap, version: &FileVersion, now: SystemTime) -> bool {
    if !asked.contains_key(IF_RANGE) {
        return true;
    }
    let Some(known) = single(asked, &IF_RANGE) else { return false };
    match date::parse(known) {
        Some(known) => version.has_strong_date(now) && date::seconds(known) == date::seconds(version.modified),
        // The field holds one tag, neither `*` nor a list.
        None if known.contains(',') => false,
        None => {
            let tag = version.entity_tag();
            let field = TagField::read(asked.get_all(IF_RANGE).iter(), Some(&tag), TagComparison::Strong);
            field == TagField::List { has: true }
        }
    }
}

fn ascii(text: String) -> HeaderValue {
    HeaderValue::try_from(text).expect("the value consists of ASCII digits and signs")
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::header::HeaderName;

    fn version() -> FileVersion {
        let modified = FileVersion::change_time(784_111_777, 5);
        FileVersion { inode: 1, size: 100, modified, changed: modified }
    }

    fn answer(method: &Method, lines: &[(&str, &str)], version: &FileVersion, now: i64) -> FileReply {
        let mut asked = HeaderMap::new();
        let tag = version.entity_tag().to_string();
        for (name, value) in lines {
            asked.append(name.parse::<HeaderName>().unwrap(), value.replace("TAG", &tag).parse().unwrap());
        }
        reply(method, &asked, version, FileVersion::change_time(now, 0))
    }

    const NOW: i64 = 1_000_000_000;
    const DATE: &str = "Sun, 06 Nov 1994 08:49:37 GMT";

    #[test]
    fn range_is_served_if_if_range_matches() {
        let part = (206, 10..20);
        let whole = (200, 0..100);
        type ReplyRow<'a> = (&'a [(&'a str, &'a str)], (u16, Range<u64>));
        let table: &[ReplyRow<'_>] = &[
            (&[], whole.clone()),
            (&[("range", "bytes=10-19")], part.clone()),
            (&[("range", "bytes=10-19"), ("range", "bytes=10-19")], whole.clone()),
            (&[("range", "bytes=100-")], (416, 0..0)),
            (&[("range", "bytes=-0")], (416, 0..0)),
            (&[("range", "bytes=10-19"), ("if-range", "TAG")], part.clone()),
            (&[("range", "bytes=10-19"), ("if-range", "W/TAG")], whole.clone()),
            (&[("range", "bytes=10-19"), ("if-range", "\"x\"")], whole.clone()),
            (&[("range", "bytes=10-19"), ("if-range", "*")], whole.clone()),
            (&[("range", "bytes=10-19"), ("if-range", "\"x\", TAG")], whole.clone()),
            (&[("range", "bytes=10-19"), ("if-range", "TAG"), ("if-range", "TAG")], whole.clone()),
            (&[("range", "bytes=10-19"), ("if-range", "x")], whole.clone()),
            (&[("range", "bytes=10-19"), ("if-range", DATE)], part.clone()),
            (&[("range", "bytes=10-19"), ("if-range", "Sun Nov  6 08:49:37 1994")], part),
            (&[("range", "bytes=10-19"), ("if-range", "Sun, 06 Nov 1994 08:49:38 GMT")], whole.clone()),
            (&[("range", "bytes=100-"), ("if-range", "\"x\"")], whole.clone()),
            (&[("if-range", "TAG")], whole),
            // Preconditions are evaluated before ranges.
            (&[("range", "bytes=10-19"), ("if-none-match", "TAG")], (304, 0..0)),
            (&[("range", "bytes=10-19"), ("if-modified-since", DATE)], (304, 0..0)),
            (&[("range", "bytes=10-19"), ("if-match", "\"x\"")], (412, 0..0)),
            (&[("range", "bytes=100-"), ("if-match", "\"x\"")], (412, 0..0)),
        ];
        for (lines, expected) in table {
            let got = answer(&Method::GET, lines, &version(), NOW);
            assert_eq!((got.status.as_u16(), got.range), *expected, "{lines:?}");
            let head = answer(&Method::HEAD, lines, &version(), NOW);
            let expected = if matches!(expected.0, 206 | 416) { (200, 0..100) } else { expected.clone() };
            assert_eq!((head.status.as_u16(), head.range), expected, "HEAD, {lines:?}");
        }
    }

    /// A user may have set the date, and within the current second another write may follow, so the date does not
    /// identify a version.
    #[test]
    fn weak_date_gives_no_range() {
        let lines = [("range", "bytes=10-19"), ("if-range", DATE)];
        let set = FileVersion { changed: FileVersion::change_time(NOW - 100, 0), ..version() };
        assert_eq!(answer(&Method::GET, &lines, &set, NOW).status, StatusCode::OK);
        // The client may have a version with the same date, or of the second before.
        let next = FileVersion { changed: FileVersion::change_time(784_111_778, 0), ..version() };
        assert_eq!(answer(&Method::GET, &lines, &next, NOW).status, StatusCode::OK);
        assert_eq!(answer(&Method::GET, &lines, &version(), 784_111_778).status, StatusCode::OK);
        assert_eq!(answer(&Method::GET, &lines, &version(), 784_111_780).status, StatusCode::PARTIAL_CONTENT);
    }

    #[test]
    fn fields_follow_from_version_and_status() {
        let fields = |lines: &[(&str, &str)]| {
            let mut names: Vec<_> =
                answer(&Method::GET, lines, &version(), NOW).fields.keys().map(HeaderName::to_string).collect();
            names.sort();
            names.join(" ")
        };
        assert_eq!(fields(&[]), "accept-ranges etag last-modified");
        assert_eq!(fields(&[("range", "bytes=0-")]), "accept-ranges content-range etag last-modified");
        assert_eq!(fields(&[("if-none-match", "TAG")]), "etag last-modified");
        assert_eq!(fields(&[("if-match", "\"x\"")]), "etag");
        let unsatisfiable = answer(&Method::GET, &[("range", "bytes=100-")], &version(), NOW);
        assert_eq!(unsatisfiable.fields[CONTENT_RANGE], "bytes */100");
        let old = FileVersion { modified: FileVersion::change_time(-62_167_219_201, 0), ..version() };
        assert!(!answer(&Method::GET, &[], &old, NOW).fields.contains_key(LAST_MODIFIED));
    }
}
