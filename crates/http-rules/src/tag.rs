//! Entity tags, and fields with lists of tags (RFC 9110 section 8.8.3).

use core::fmt;
use http::HeaderValue;

/// An entity tag.
///
/// ```
/// use http_rules::EntityTag;
///
/// assert_eq!(EntityTag::strong("abc").to_string(), "\"abc\"");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EntityTag {
    opaque: String,
}

impl EntityTag {
    /// Creates a strong tag from letters and digits.
    ///
    /// # Panics
    /// If `opaque` contains other characters.
    pub fn strong(opaque: &str) -> EntityTag {
        assert!(
            opaque.bytes().all(|byte| byte.is_ascii_alphanumeric()),
            "{opaque:?} contains other characters than letters and digits"
        );
        EntityTag { opaque: opaque.into() }
    }

    /// Returns the tag as a field value.
    pub fn to_value(&self) -> HeaderValue {
        HeaderValue::try_from(self.to_string()).expect("letters, digits and quotes")
    }
}

impl fmt::Display for EntityTag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\"", self.opaque)
    }
}

/// The comparison of two tags (RFC 9110 section 8.8.3.2).
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum TagComparison {
    /// Strong comparison: a weak tag equals no tag.
    Strong,
    /// Weak comparison: weak tags count as strong ones.
    Weak,
}

/// A field of tags, compared with the present tag.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum TagField {
    /// The value `*`.
    Any,
    /// A list of tags. `has` tells whether the present tag is listed.
    List { has: bool },
    /// A value that is neither `*` nor a list of tags.
    Malformed,
}

impl TagField {
    /// Reads the lines of a field. `present` is `None` if the target has no tag.
    pub(crate) fn read<'a>(
        lines: impl Iterator<Item = &'a HeaderValue>,
        present: Option<&EntityTag>,
        comparison: TagComparison,
    ) -> TagField {
        let (mut stars, mut tags, mut has) = (0, 0, false);
        for line in lines {
            // Bytes instead of text, because a tag may contain bytes beyond ASCII.
            let mut rest = line.as_bytes();
            loop {
                rest = rest.trim_ascii_start();
                match rest {
                    [] => break,
                    // RFC 9110 5.6.1.2: empty list elements are ignored.
                    [b',', behind @ ..] => {
                        rest = behind;
                        continue;
                    }
                    [b'*', behind @ ..] => {
                        stars += 1;
                        rest = behind;
                    }
                    _ => {
                        let Some((is_weak, opaque, behind)) = next_tag(rest) else { return TagField::Malformed };
                        let is_equal = present.is_some_and(|present| present.opaque.as_bytes() == opaque);
                        has |= is_equal && (comparison == TagComparison::Weak || !is_weak);
                        tags += 1;
                        rest = behind;
                    }
                }
                if !matches!(rest.trim_ascii_start(), [] | [b',', ..]) {
                    return TagField::Malformed;
                }
            }
        }
        // A star must stand alone (RFC 9110 13.1.1), so that a mixture is malformed.
        match (stars, tags) {
            (1, 0) => TagField::Any,
            (0, 1..) => TagField::List { has },
            _ => TagField::Malformed,
        }
    }
}

/// Splits a tag off `text`. Returns whether the tag is weak, the bytes between its quotes, and the rest of the text.
fn next_tag(text: &[u8]) -> Option<(bool, &[u8], &[u8])> {
    // RFC 9110 8.8.3: the `W` is case-sensitive.
    let strong = text.strip_prefix(b"W/");
    let quoted = strong.unwrap_or(text).strip_prefix(b"\"")?;
    let end = quoted.iter().position(|byte| *byte == b'"')?;
    let (opaque, rest) = (&quoted[..end], &quoted[end + 1..]);
    // RFC 9110 8.8.3: a tag contains neither spaces nor control characters.
    opaque.iter().all(|byte| *byte > b' ' && *byte != 0x7f).then_some((strong.is_some(), opaque, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(lines: &[&str], comparison: TagComparison) -> TagField {
        let values: Vec<HeaderValue> = lines.iter().map(|line| line.parse().unwrap()).collect();
        TagField::read(values.iter(), Some(&EntityTag::strong("a")), comparison)
    }

    #[test]
    fn lists_are_read_in_every_form() {
        let (with, without) = (TagField::List { has: true }, TagField::List { has: false });
        let cases: [(&[&str], TagField, TagField); 25] = [
            (&["\"a\""], with, with),
            (&["W/\"a\""], without, with),
            (&["w/\"a\""], TagField::Malformed, TagField::Malformed),
            (&["\"b\""], without, without),
            (&["\"b\", \"a\""], with, with),
            (&["\"b\",\"a\""], with, with),
            (&["\"b\",\tW/\"a\" , \"c\""], without, with),
            (&[",, \"a\" ,"], with, with),
            (&["\"b\"", "\"a\""], with, with),
            (&["\"b,\\\", \"a\""], with, with),
            (&["\",\"a\""], TagField::Malformed, TagField::Malformed),
            (&["\"\""], without, without),
            (&["*"], TagField::Any, TagField::Any),
            (&[" * ,"], TagField::Any, TagField::Any),
            (&["*", "*"], TagField::Malformed, TagField::Malformed),
            (&["*, \"a\""], TagField::Malformed, TagField::Malformed),
            (&["*\"a\""], TagField::Malformed, TagField::Malformed),
            (&["\"a\"", "*"], TagField::Malformed, TagField::Malformed),
            (&["\"a\" \"b\""], TagField::Malformed, TagField::Malformed),
            (&["a"], TagField::Malformed, TagField::Malformed),
            (&["\"a"], TagField::Malformed, TagField::Malformed),
            (&["'a'"], TagField::Malformed, TagField::Malformed),
            (&["\"a b\""], TagField::Malformed, TagField::Malformed),
            (&[""], TagField::Malformed, TagField::Malformed),
            (&[","], TagField::Malformed, TagField::Malformed),
        ];
        for (lines, strong, weak) in cases {
            assert_eq!(read(lines, TagComparison::Strong), strong, "{lines:?}, strong");
            assert_eq!(read(lines, TagComparison::Weak), weak, "{lines:?}, weak");
        }
        // A tag may contain bytes beyond ASCII.
        let value = HeaderValue::from_bytes(b"\"\xe4\", \"a\"").unwrap();
        assert_eq!(TagField::read([&value].into_iter(), Some(&EntityTag::strong("a")), TagComparison::Strong), with);
        assert_eq!(TagField::read([&value].into_iter(), None, TagComparison::Weak), without);
    }
}
