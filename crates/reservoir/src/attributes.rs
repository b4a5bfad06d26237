//! Permission bits and extended attributes of files, copied on request.

use crate::name::{decoded, escaped};
use core::str::FromStr;

/// The attributes that are copied with a file.
///
/// ```
/// use offload_reservoir::attributes::Preserve;
///
/// assert_eq!("mode,xattrs".parse(), Ok(Preserve { mode: true, extended: true }));
/// assert!("owner".parse::<Preserve>().is_err());
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Preserve {
    /// The permission bits.
    pub mode: bool,
    /// Extended attributes in the `user.` namespace.
    pub extended: bool,
}

impl Preserve {
    pub(crate) fn is_empty(self) -> bool {
        self == Preserve::default()
    }

    pub(crate) fn to_text(self) -> String {
        let names = [(self.mode, "mode"), (self.extended, "xattrs")];
        names.into_iter().filter(|(is, _)| *is).map(|(_, name)| name).collect::<Vec<_>>().join(",")
    }
}

impl FromStr for Preserve {
    type Err = String;

    fn from_str(text: &str) -> Result<Preserve, String> {
        text.split(',').map(str::trim).try_fold(Preserve::default(), |preserve, name| match name {
            "mode" => Ok(Preserve { mode: true, ..preserve }),
            "xattrs" => Ok(Preserve { extended: true, ..preserve }),
            _ => Err(format!("`{name}` is no attribute: use mode, xattrs, or both with a comma")),
        })
    }
}

/// The attributes of a file.
///
/// See [`StoredFile`](crate::storage::StoredFile) for reading and setting them.
///
/// ```
/// use offload_reservoir::attributes::Attributes;
///
/// assert_eq!(Attributes::default().mode, None);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Attributes {
    /// The nine permission bits.
    pub mode: Option<u32>,
    /// Extended attributes as (name, value). Names begin with `user.`.
    pub extended: Vec<(Vec<u8>, Vec<u8>)>,
}

impl Attributes {
    pub(crate) fn is_empty(&self) -> bool {
        self.mode.is_none() && self.extended.is_empty()
    }

    /// Checks that the attributes fit into an HTTP header field.
    ///
    /// # Errors
    /// A text for the user, if the attributes are too many or too long.
    pub(crate) fn check(&self) -> Result<(), String> {
        let (count, bytes) = (self.extended.len(), self.to_text().len());
        if count > MAX_EXTENDED || bytes > MAX_FIELD_BYTES {
            let most = format!("at most {MAX_EXTENDED} of {MAX_FIELD_BYTES} bytes go with a file");
            return Err(format!("{count} extended attributes of {bytes} bytes as HTTP has them, and {most}"));
        }
        Ok(())
    }

    /// Formats the attributes as an HTTP field: `mode=640&user.name=value`, escaped as in a URL.
    pub(crate) fn to_text(&self) -> String {
        let mode = self.mode.map(|mode| format!("mode={mode:o}"));
        let extended = self.extended.iter().map(|(name, value)| format!("{}={}", escaped(name), escaped(value)));
        mode.into_iter().chain(extended).collect::<Vec<_>>().join("&")
    }

    /// Parses an HTTP field. Returns `None` if the text is malformed or names attributes that may not be set.
    pub(crate) fn from_text(text: &str) -> Option<Attributes> {
        let mut attributes = Attributes::default();
        for member in text.split('&').filter(|member| !member.is_empty()) {
            let (name, value) = member.split_once('=')?;
            if name == "mode" {
                // Set-user-ID and similar bits are refused, because they grant the rights of another user.
                attributes.mode = Some(u32::from_str_radix(value, 8).ok().filter(|mode| *mode <= 0o777)?);
                continue;
            }
            let name = decoded(name).filter(|name| name.starts_with(USERS) && name.len() <= 255)?;
            attributes.extended.push((name, decoded_value(value)?));
        }
        (text.len() <= MAX_FIELD_BYTES && attributes.extended.len() <= MAX_EXTENDED).then_some(attributes)
    }
}

/// Decodes a value. Values may contain zero bytes, names may not.
fn decoded_value(text: &str) -> Option<Vec<u8>> {
    let parts = text.split("%00").map(decoded).collect::<Option<Vec<_>>>()?;
    Some(parts.join(&0))
}

/// The header field that requests and carries attributes.
pub(crate) const FIELD: &str = "reservoir-attributes";
/// The namespace of the attributes that users may set.
pub(crate) const USERS: &[u8] = b"user.";
/// Maximum length of the field. Request heads are limited to half a MiB, and over HTTP/3 to twice this length.
pub(crate) const MAX_FIELD_BYTES: usize = 128 << 10;
const MAX_EXTENDED: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_come_through_and_others_are_refused() {
        let extended = vec![(b"user.a b".to_vec(), b"\0=&%00\xff".to_vec()), (b"user.empty".to_vec(), Vec::new())];
        for attributes in [Attributes::default(), Attributes { mode: Some(0o640), extended }] {
            assert_eq!(Attributes::from_text(&attributes.to_text()), Some(attributes));
        }
        for bad in ["mode=4755", "mode=9", "mode", "security.capability=x", "user.%00=x", "user.a=%zz", "trusted.x=1"] {
            assert_eq!(Attributes::from_text(bad), None, "{bad}");
        }
        assert_eq!(Attributes::from_text(&format!("user.a={}", "x".repeat(MAX_FIELD_BYTES))), None);
        // An escaped byte takes three bytes.
        let of = |bytes| Attributes { mode: None, extended: vec![(b"user.a".to_vec(), vec![0xff; bytes])] };
        assert!(of(MAX_FIELD_BYTES / 3 - 3).check().is_ok() && of(MAX_FIELD_BYTES / 3).check().is_err());
        let all = Preserve { mode: true, extended: true };
        assert_eq!((all.to_text().parse(), Preserve::default().to_text()), (Ok(all), String::new()));
    }
}
