//! Patterns of excluded names.

use crate::name::Name;
use core::str::FromStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// A pattern: `*` matches any characters except a slash, `?` matches one. A pattern with a slash is compared with the
/// path below the source, a pattern without a slash with each component.
///
/// ```
/// use offload_reservoir::copy::ExcludePattern;
/// use offload_reservoir::name::Name;
///
/// let fits = |pattern: &str, path| pattern.parse::<ExcludePattern>().unwrap().fits(&Name::from_url(path).unwrap());
/// assert!(fits("*.tmp", "/a/b.tmp") && fits("cache", "/a/cache/b"));
/// assert!(fits("a/*", "/a/b") && !fits("a/*", "/b/a"));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExcludePattern(Vec<u8>);

impl FromStr for ExcludePattern {
    type Err = String;

    fn from_str(text: &str) -> Result<ExcludePattern, String> {
        let text = text.trim_matches('/');
        if text.is_empty() {
            Err("a pattern has at least one character".into())
        } else {
            Ok(ExcludePattern(text.into()))
        }
    }
}

impl ExcludePattern {
    /// Returns whether the pattern matches `name` or a folder that contains it.
    pub fn fits(&self, name: &Name) -> bool {
        self.fits_path(name.path())
    }

    /// Tests a path that need not be a valid name.
    pub(super) fn fits_path(&self, path: &Path) -> bool {
        let mut parts = path.components().map(|part| part.as_os_str().as_bytes());
        if !self.0.contains(&b'/') {
            return parts.any(|part| fits(&self.0, part));
        }
        let mut path = Vec::new();
        parts.any(|part| {
            if !path.is_empty() {
                path.push(b'/');
            }
            path.extend_from_slice(part);
            fits(&self.0, &path)
        })
    }
}

/// Matches without recursion: on a mismatch the last star takes one more character. Earlier stars are never revisited.
fn fits(pattern: &[u8], text: &[u8]) -> bool {
    let (mut p, mut t, mut star) = (0, 0, None);
    while t < text.len() {
        match pattern.get(p) {
            Some(b'*') => {
                star = Some((p, t));
                p += 1;
            }
            Some(b'?') if text[t] != b'/' => (p, t) = (p + 1, t + 1),
            Some(byte) if *byte == text[t] => (p, t) = (p + 1, t + 1),
            _ => match star {
                Some((at, taken)) if text[taken] != b'/' => {
                    star = Some((at, taken + 1));
                    (p, t) = (at + 1, taken + 1);
                }
                _ => return false,
            },
        }
    }
    pattern[p..].iter().all(|byte| *byte == b'*')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stars_stop_at_slashes_and_take_no_time() {
        for (pattern, text, expected) in [
            ("*", "", true),
            ("*", "a", true),
            ("*", "a/b", false),
            ("a*b*c", "a--b--c", true),
            ("a*b*c", "a--b--d", false),
            ("?", "/", false),
            ("x?z", "xyz", true),
            ("*a", "ba", true),
            ("**", "ab", true),
            ("a", "ab", false),
        ] {
            assert_eq!(fits(pattern.as_bytes(), text.as_bytes()), expected, "{pattern} {text}");
        }
        assert!(!fits("*a".repeat(100).as_bytes(), &[b'b'; 10_000]));
    }
}
