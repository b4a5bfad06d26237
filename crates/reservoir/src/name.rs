//! Names of files below a root, in URLs and file systems.
//!
//! Invariant: a name has no component that leaves the root, no component reserved by this crate, and no zero byte.

use core::fmt;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// A path below a root; empty for the root itself.
///
/// ```
/// use offload_reservoir::name::Name;
///
/// let name = Name::from_url("/a%20folder/b")?;
/// assert_eq!(name.path(), std::path::Path::new("a folder/b"));
/// assert_eq!(name.to_url(), "/a%20folder/b");
/// assert!(Name::from_url("/a/../b").is_err());
/// # Ok::<(), offload_reservoir::name::BadName>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Name(PathBuf);

/// Error of parsing a name.
///
/// See [`Name`] for an example.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BadName {
    /// A percent sign without two hexadecimal digits, or a zero byte.
    #[error("`{0}` is no path: a percent sign needs two hexadecimal digits other than 00 behind it")]
    Escape(String),
    /// A component `.` or `..`.
    #[error("`{0}` has a component `.` or `..`: name the file itself")]
    Dots(String),
    /// A component with the prefix of unfinished files.
    #[error("`{0}` begins with {RESERVED}, as unfinished files do: choose another name")]
    Reserved(String),
    /// A component or path beyond the limits of file systems.
    #[error("a component of the path is longer than 255 bytes, or the path longer than 4096")]
    Long,
}

impl Name {
    /// Returns the root.
    pub fn root() -> Name {
        Name::default()
    }

    /// Parses the path of a URL. Leading, trailing and repeated slashes are ignored.
    ///
    /// # Errors
    /// If the path leads out of the root or is invalid.
    pub fn from_url(path: &str) -> Result<Name, BadName> {
        let mut name = Name::root();
        for part in path.split('/').filter(|part| !part.is_empty()) {
            let bytes = decoded(part).ok_or_else(|| BadName::Escape(part.into()))?;
            if bytes.contains(&b'/') {
                return Err(BadName::Escape(part.into()));
            }
            name = name.join(&OsString::from_vec(bytes))?;
        }
        Ok(name)
    }

    /// Converts a relative path of a file system.
    ///
    /// # Errors
    /// The errors of [`from_url`](Self::from_url).
    pub fn from_path(path: &Path) -> Result<Name, BadName> {
        path.components().try_fold(Name::root(), |name, part| name.join(part.as_os_str()))
    }

    /// Returns the name of the entry `part` in this folder.
    ///
    /// # Errors
    /// The errors of [`from_url`](Self::from_url).
    pub fn join(&self, part: &OsStr) -> Result<Name, BadName> {
        let shown = || part.to_string_lossy().into_owned();
        match part.as_bytes() {
            b"." | b".." | b"" => Err(BadName::Dots(shown())),
            bytes if bytes.contains(&0) || bytes.contains(&b'/') => Err(BadName::Escape(shown())),
            bytes if bytes.starts_with(RESERVED.as_bytes()) => Err(BadName::Reserved(shown())),
            bytes if bytes.len() > 255 || self.0.as_os_str().len() + bytes.len() > 4096 => Err(BadName::Long),
            _ => Ok(Name(self.0.join(part))),
        }
    }

    /// Returns the path relative to the root.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Returns the last component.
    pub fn last(&self) -> Option<&OsStr> {
        self.0.file_name()
    }

    /// Returns the parent folder.
    pub fn folder(&self) -> Name {
        Name(self.0.parent().map(Path::to_owned).unwrap_or_default())
    }

    /// Returns whether this name is `other` or lies below it.
    pub fn is_below(&self, other: &Name) -> bool {
        self.0.starts_with(&other.0)
    }

    /// Formats the name as a URL path with a leading slash.
    pub fn to_url(&self) -> String {
        let parts = self.0.components().map(|part| format!("/{}", escaped(part.as_os_str().as_bytes())));
        let path: String = parts.collect();
        if path.is_empty() { "/".into() } else { path }
    }

    /// Returns the hidden name of the incomplete file.
    pub(crate) fn unfinished(&self) -> Name {
        self.beside("part")
    }

    /// Returns the hidden name of the journal.
    pub(crate) fn journal(&self) -> Name {
        self.beside("journal")
    }

    /// Returns the hidden name of the journal of a share.
    pub(crate) fn journal_of(&self, share: u16) -> Name {
        if share == 0 { self.journal() } else { self.beside(&format!("journal-{share}")) }
    }

    fn beside(&self, what: &str) -> Name {
        let last = self.last().unwrap_or_default().as_bytes();
        // A hash has a fixed length. The name itself with a suffix could exceed the limit of the file system.
        let hash = crate::digest::hexadecimal(&blake3::hash(last).as_bytes()[..HASHED]);
        Name(self.folder().0.join(format!("{RESERVED}{hash}.{what}")))
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.to_url())
    }
}

/// Tests whether a name is that of an unfinished file or its journal. Other names with the same prefix belong to users.
pub(crate) fn is_unfinished(part: &OsStr) -> bool {
    let Some(rest) = part.as_bytes().strip_prefix(RESERVED.as_bytes()) else { return false };
    let Some((hash, kind)) = rest.split_at_checked(2 * HASHED) else { return false };
    // The whole format must match, because users may have files with the same prefix.
    let is_kind = match kind {
        b".part" | b".journal" => true,
        kind => kind.strip_prefix(b".journal-").is_some_and(|share| share.iter().all(u8::is_ascii_digit)),
    };
    is_kind && hash.iter().all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f'))
}

/// Escapes bytes for a URL path (RFC 3986 section 2.3).
pub(crate) fn escaped(name: &[u8]) -> String {
    let escape = |byte: &u8| match *byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => char::from(*byte).to_string(),
        byte => format!("%{byte:02X}"),
    };
    name.iter().map(escape).collect()
}

/// Decodes percent escapes (RFC 3986 section 2.1). Returns `None` if an escape is malformed or a zero byte.
pub(crate) fn decoded(text: &str) -> Option<Vec<u8>> {
    let mut bytes = text.bytes();
    let mut decoded = Vec::with_capacity(text.len());
    while let Some(byte) = bytes.next() {
        let byte = match byte {
            b'%' => {
                let digits = [bytes.next()?, bytes.next()?];
                // `from_str_radix` alone would accept a sign.
                let digits = str::from_utf8(&digits).ok().filter(|_| digits.iter().all(u8::is_ascii_hexdigit))?;
                u8::from_str_radix(digits, 16).ok()?
            }
            other => other,
        };
        // The system would end the path there.
        if byte == 0 {
            return None;
        }
        decoded.push(byte);
    }
    Some(decoded)
}

/// Prefix of this crate's hidden names.
pub(crate) const RESERVED: &str = ".reservoir-";
/// Length of the hash in a hidden name, in bytes.
const HASHED: usize = 12;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn odd_names_survive_and_invalid_ones_are_refused() {
        for odd in ["/a%0Ab", "/%FF%FE", "/%25", "/-", "/...", "/%3Fx%23", "/%E4%BD%A0"] {
            assert_eq!(Name::from_url(odd).unwrap().to_url(), odd);
        }
        assert_eq!(Name::from_url("//a///b/").unwrap().to_url(), "/a/b");
        assert_eq!(Name::from_url("/").unwrap(), Name::root());
        for bad in ["/..", "/a/../b", "/.", "/%2e%2e/x", "/%00", "/%", "/%4", "/%zz", "/%+1", "/a%2Fb", "/.reservoir-x"]
        {
            assert!(Name::from_url(bad).is_err(), "{bad}");
        }
        assert_eq!(Name::from_url(&format!("/{}", "x".repeat(256))), Err(BadName::Long));
        assert_eq!(Name::from_url(&"/x".repeat(3000)), Err(BadName::Long));
        assert!(Name::from_path(Path::new("/etc/passwd")).is_err());
    }

    #[test]
    fn unfinished_names_differ_from_user_names() {
        let name = Name::from_url("/a/b").unwrap();
        for hidden in [name.unfinished(), name.journal(), name.journal_of(63)] {
            assert!(is_unfinished(hidden.last().unwrap()), "{hidden}");
        }
        for own in [
            ".reservoir-",
            ".reservoir-settings",
            ".reservoir-0123456789ab.part",
            "part",
            ".reservoir-0123456789abcdef01234567",
        ] {
            assert!(!is_unfinished(OsStr::new(own)), "{own}");
        }
    }

    #[test]
    fn a_path_is_below_by_components() {
        let name = |url| Name::from_url(url).unwrap();
        assert!(name("/data/x").is_below(&name("/data")) && name("/data").is_below(&Name::root()));
        assert!(!name("/database").is_below(&name("/data")));
        let (one, other) = (name("/a/b"), name("/a/c"));
        assert_ne!(one.unfinished(), other.unfinished());
        assert_ne!(one.unfinished(), one.journal());
        assert_eq!(one.unfinished().folder(), name("/a"));
    }
}
