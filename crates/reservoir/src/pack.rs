//! Packs: many small files in one body, each with its name, time and hash, so that a tree needs no round trip per file.
//!
//! ```text
//!  file:  length of the head, 4 bytes | head, a line of JSON | BLAKE3 of the bytes, 32 bytes | bytes      end:  four zeros
//! ```
//! All numbers are big-endian. A body without its end was cut off.

use crate::name::{BadName, Name};
use bytes::{Buf, BufMut, Bytes, BytesMut};
use http_rules::date::{from_nanoseconds, nanoseconds};
use serde::{Deserialize, Serialize};
use std::time::SystemTime;

/// A file in a pack.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Packed {
    /// Name relative to the folder of the pack.
    pub(crate) name: Name,
    pub(crate) modified: SystemTime,
    /// The nine permission bits of the source. `None` if unknown.
    pub(crate) mode: Option<u32>,
    pub(crate) bytes: Bytes,
}

#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct PackHead {
    /// Escaped as in a URL, so that any name fits.
    name: String,
    size: u64,
    /// Modification time in nanoseconds since 1970, negative before.
    modified: i128,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    mode: Option<u32>,
}

impl Packed {
    /// Appends the file to `into`.
    pub(crate) fn write(&self, into: &mut BytesMut) {
        let (name, modified) = (self.name.to_url(), nanoseconds(self.modified));
        let (size, mode) = (self.bytes.len() as u64, self.mode);
        let head = serde_json::to_vec(&PackHead { name, size, modified, mode }).expect("strings and numbers");
        into.reserve(4 + head.len() + HASH + self.bytes.len());
        into.put_u32(u32::try_from(head.len()).expect("names are at most 4096 bytes"));
        into.put_slice(&head);
        into.put_slice(blake3::hash(&self.bytes).as_bytes());
        into.put_slice(&self.bytes);
    }
}

/// Appends the end of a pack.
pub(crate) fn write_end(into: &mut BytesMut) {
    into.put_u32(0);
}

/// Error of parsing a pack.
#[derive(Debug, PartialEq, thiserror::Error)]
pub(crate) enum BadPack {
    #[error("the head of a packed file is longer than {MAX_HEAD_BYTES} bytes, or no head")]
    Head,
    #[error("a packed file has {0} bytes: at most {MAX_FILE_BYTES} fit")]
    Large(u64),
    #[error("a packed file cannot be here: {0}")]
    Name(#[from] BadName),
    #[error("{0}: the received bytes differ from the packed ones: send the file again")]
    Differs(Name),
}

/// A streaming parser of a pack. It buffers at most one file and one piece.
#[derive(Default)]
pub(crate) struct Unpacker {
    buffer: BytesMut,
    ended: bool,
}

impl Unpacker {
    /// Appends the next bytes.
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// Returns whether the end of the pack was reached and no bytes follow.
    pub(crate) fn is_ended(&self) -> bool {
        self.ended && self.buffer.is_empty()
    }

    /// Returns the next complete file.
    pub(crate) fn next(&mut self) -> Result<Option<Packed>, BadPack> {
        if self.ended || self.buffer.len() < 4 {
            return Ok(None);
        }
        let length = (&self.buffer[..4]).get_u32() as usize;
        if length == 0 {
            self.buffer.advance(4);
            self.ended = true;
            return Ok(None);
        }
        // Both limits are checked before the data arrive, so that a peer cannot make this end buffer more.
        if length > MAX_HEAD_BYTES {
            return Err(BadPack::Head);
        }
        if self.buffer.len() < 4 + length {
            return Ok(None);
        }
        let head: PackHead = serde_json::from_slice(&self.buffer[4..4 + length]).map_err(|_| BadPack::Head)?;
        let modified = from_nanoseconds(head.modified).ok_or(BadPack::Head)?;
        if head.size > MAX_FILE_BYTES {
            return Err(BadPack::Large(head.size));
        }
        let all = 4 + length + HASH + head.size as usize;
        if self.buffer.len() < all {
            return Ok(None);
        }
        let name = Name::from_url(&head.name)?;
        if name == Name::root() {
            return Err(BadPack::Head);
        }
        let mut file = self.buffer.split_to(all);
        file.advance(4 + length);
        let hash = file.split_to(HASH);
        let bytes = file.freeze();
        // The hash is compared before the file is released: a corrupt file must never be written.
        if blake3::hash(&bytes).as_bytes()[..] != hash[..] {
            return Err(BadPack::Differs(name));
        }
        Ok(Some(Packed { name, modified, mode: head.mode, bytes }))
    }
}

/// Media type of a pack.
pub(crate) const KIND: &str = "application/x-reservoir-pack";
/// Media type of a list of names, one per line, that requests a pack.
pub(crate) const NAMES: &str = "application/x-reservoir-names";
/// Maximum length of a packed file in bytes.
pub(crate) const MAX_FILE_BYTES: u64 = 256 << 10;
/// Maximum number of files in a requested pack.
pub(crate) const MAX_FILES: usize = 4096;
/// Maximum length of a head in bytes: an escaped name of 4096 bytes, and more.
const MAX_HEAD_BYTES: usize = 16 << 10;
const HASH: usize = 32;

#[cfg(test)]
mod tests {
    use super::*;

    fn packed(url: &str, bytes: &'static [u8]) -> Packed {
        packed_at(1_700_000_000_123_456_789, url, bytes)
    }

    fn packed_at(time: i128, url: &str, bytes: &'static [u8]) -> Packed {
        let modified = from_nanoseconds(time).unwrap();
        Packed { name: Name::from_url(url).unwrap(), modified, mode: Some(0o640), bytes: Bytes::from_static(bytes) }
    }

    #[test]
    fn files_come_through_however_the_pack_is_cut() {
        let (old, late) = (packed_at(-1, "/old", b"o"), packed_at(300_000_000_000_000_000_005, "/late", b"l"));
        let files = [packed("/a%0Ab/%FF", b"one"), packed("/empty", b""), old, late, packed("/c", &[7; 5000])];
        let mut wire = BytesMut::new();
        files.iter().for_each(|file| file.write(&mut wire));
        write_end(&mut wire);
        for size in [1, 3, 100, wire.len()] {
            let (mut unpacker, mut came) = (Unpacker::default(), Vec::new());
            for piece in wire.chunks(size) {
                assert!(!unpacker.is_ended());
                unpacker.push(piece);
                while let Some(file) = unpacker.next().unwrap() {
                    came.push(file);
                }
            }
            assert!(unpacker.is_ended() && came == files, "pieces of {size}");
            unpacker.push(b"x");
            assert!(!unpacker.is_ended(), "there is something behind the end");
        }
    }

    #[test]
    fn invalid_packs_are_refused_without_storing_them() {
        let refused = |wire: &[u8]| {
            let mut unpacker = Unpacker::default();
            unpacker.push(wire);
            unpacker.next().unwrap_err()
        };
        assert_eq!(refused(b"GET / HTTP/1.1"), BadPack::Head);
        assert_eq!(refused(b"\0\0\0\x02{}"), BadPack::Head);
        let with = |head: &str| [&(head.len() as u32).to_be_bytes()[..], head.as_bytes(), &[0; 64]].concat();
        assert_eq!(refused(&with(r#"{"name":"a","size":9999999,"modified":0}"#)), BadPack::Large(9_999_999));
        assert_eq!(refused(&with(&format!(r#"{{"name":"a","size":1,"modified":{}}}"#, i128::MAX))), BadPack::Head);
        for name in ["..", "a/../b", "%00", "%zz", "a%2Fb", ".reservoir-x"] {
            let head = format!(r#"{{"name":"{name}","size":1,"modified":0}}"#);
            assert!(matches!(refused(&with(&head)), BadPack::Name(_)), "{name}");
        }
        assert_eq!(refused(&with(r#"{"name":"/","size":1,"modified":0}"#)), BadPack::Head);
        let mut wire = BytesMut::new();
        packed("/a", b"bytes").write(&mut wire);
        *wire.last_mut().unwrap() ^= 1;
        assert_eq!(refused(&wire), BadPack::Differs(Name::from_url("/a").unwrap()));
    }
}
