//! By what hosts recognise the bytes of a namespace: a UUID, which is its NGUID too.
//!
//! Hosts take two namespaces with one UUID for two ways to the same blocks, and a namespace with another for other blocks.
//! So the UUID of a file goes with the file, wherever it is served: it is made up once, and kept in `PATH.identity`.
//!
//! ```text
//!   nvme-tcp: by what hosts recognise the blocks, version 1
//!   uuid 4c4bb6a3-54bd-4bb9-9d0c-1a38c5c1a3b5
//!   end
//! ```

use super::open_error::OpenError;
use super::system::{self, System};
use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

/// A UUID from the system's generator, for a namespace that ends with its process: RFC 9562 5.4.
///
/// ```
/// let uuids = [nvme_tcp::namespace::random_uuid()?, nvme_tcp::namespace::random_uuid()?];
/// assert_ne!(uuids[0], uuids[1]);
/// # std::io::Result::Ok(())
/// ```
///
/// # Errors
/// If the system has no generator.
pub fn random_uuid() -> io::Result<[u8; 16]> {
    let mut uuid = [0; 16];
    File::open(GENERATOR)?.read_exact(&mut uuid)?;
    Ok(with_version(uuid, 4))
}

/// The UUID of the file at `path`, wherever links lead: what is kept beside it, or one that is from now on.
pub(super) fn of_file(system: &dyn System, path: &Path) -> Result<[u8; 16], OpenError> {
    let path = system::with_suffix(path, ".identity");
    if let Some(content) = system.read(&path, MAX_BYTES).map_err(OpenError::about(&path))? {
        return parse(&content).ok_or(OpenError::Identity { path });
    }
    let uuid = random_uuid().map_err(OpenError::about(Path::new(GENERATOR)))?;
    // Hosts are not to be told what may be gone when the machine ends.
    system::replace(system, &path, text(&uuid).as_bytes())
        .and_then(|()| system::sync_name(system, &path))
        .inspect_err(|_| {
            // The next process must not find a name that no sync has covered.
            let _ = system.remove(&path);
        })
        .map_err(OpenError::about(&path))?;
    Ok(uuid)
}

/// The UUID of a block device: it follows from what its maker or its driver calls it. One without a name gets another each
/// time it is opened, so that no host takes it for what it is not.
pub(super) fn of_device(major: u32, minor: u32) -> io::Result<[u8; 16]> {
    let folder = PathBuf::from(format!("/sys/dev/block/{major}:{minor}"));
    match named_device(&folder) {
        Some(name) => Ok(with_version(fnv1a(name.bytes()).to_be_bytes(), 8)),
        None => random_uuid(),
    }
}

/// What the device is called for good, and which part of it this is.
fn named_device(folder: &Path) -> Option<String> {
    let read = |path: PathBuf| Some(fs::read_to_string(path).ok()?.trim().to_owned()).filter(|text| !text.is_empty());
    let partition = read(folder.join("partition"));
    // `..` of a link is the folder that it leads to the inside of.
    let whole =
        if partition.is_some() { fs::canonicalize(folder).ok()?.parent()?.to_owned() } else { folder.to_owned() };
    let names = ["dm/uuid", "wwid", "device/wwid", "serial", "device/serial"];
    let (kind, name) = names.iter().find_map(|kind| Some((kind, read(whole.join(kind))?)))?;
    Some(format!("{kind}\0{name}\0{}", partition.unwrap_or_default()))
}

/// RFC 9562 5.8: version 8 is for uses of one's own. Here, a hash of both names: FNV-1a of 128 bits, for it has to tell
/// apart what an operator called differently, and is to be the same everywhere and for ever.
pub(crate) fn derived_uuid(subsystem: &str, id: u32) -> [u8; 16] {
    with_version(fnv1a(subsystem.bytes().chain([0]).chain(id.to_be_bytes())).to_be_bytes(), 8)
}

/// draft-eastlake-fnv, 128 bits.
pub(crate) fn fnv1a(bytes: impl Iterator<Item = u8>) -> u128 {
    bytes.fold(0x6c62_272e_07bb_0142_62b8_2175_6295_c58d, |hash: u128, byte| {
        (hash ^ u128::from(byte)).wrapping_mul(1 << 88 | 0x13b)
    })
}

fn with_version(mut uuid: [u8; 16], version: u8) -> [u8; 16] {
    uuid[6] = version << 4 | (uuid[6] & 0x0f);
    uuid[8] = 0x80 | (uuid[8] & 0x3f);
    uuid
}

fn text(uuid: &[u8; 16]) -> String {
    let mut digits = String::new();
    for (place, byte) in uuid.iter().enumerate() {
        if matches!(place, 4 | 6 | 8 | 10) {
            digits.push('-');
        }
        // Writing to a string does not fail.
        let _written = write!(digits, "{byte:02x}");
    }
    format!("{FIRST_LINE}\nuuid {digits}\nend\n")
}

fn parse(content: &[u8]) -> Option<[u8; 16]> {
    let lines = core::str::from_utf8(content).ok()?.strip_prefix(FIRST_LINE)?.strip_prefix('\n')?;
    let digits = lines.strip_prefix("uuid ")?.strip_suffix("\nend\n")?.replace('-', "");
    let is_hex = digits.len() == 32 && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    Some(u128::from_str_radix(&digits, 16).ok().filter(|_| is_hex)?.to_be_bytes())
}

const FIRST_LINE: &str = "nvme-tcp: by what hosts recognise the blocks, version 1";
/// Of random bytes: random(4).
const GENERATOR: &str = "/dev/urandom";
const MAX_BYTES: u64 = 1024;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_is_read_and_nothing_else() {
        let uuid = random_uuid().unwrap();
        assert_eq!((uuid[6] >> 4, uuid[8] >> 6), (4, 0b10));
        let kept = text(&uuid);
        assert_eq!(parse(kept.as_bytes()), Some(uuid));
        for cut in 0..kept.len() {
            assert_eq!(parse(&kept.as_bytes()[..cut]), None, "{cut} bytes of it");
        }
        assert_eq!(parse(kept.replace("uuid ", "uuid +").as_bytes()), None);
        assert_eq!(parse(b"\xff"), None);
    }

    #[test]
    fn devices_are_told_apart_by_their_names_and_parts() {
        let folder = std::env::temp_dir().join(format!("nvme-tcp-identity-{}", std::process::id()));
        let part = folder.join("part");
        fs::create_dir_all(&part).unwrap();
        assert_eq!(named_device(&folder), None);
        fs::write(folder.join("serial"), "S1\n").unwrap();
        fs::write(part.join("partition"), "3\n").unwrap();
        let names = [&folder, &part].map(|folder| named_device(folder).unwrap());
        assert_eq!(names, ["serial\0S1\0", "serial\0S1\x003"]);
        fs::write(folder.join("wwid"), "W1\n").unwrap();
        assert_eq!(named_device(&folder).unwrap(), "wwid\0W1\0");
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn namespaces_of_other_names_have_other_uuids() {
        // FNV-1a of 128 bits: the offset basis, and the value that implementations publish for "a".
        assert_eq!(fnv1a(core::iter::empty()), 0x6c62272e07bb014262b821756295c58d);
        assert_eq!(fnv1a(core::iter::once(b'a')), 0xd228cb696f1a8caf78912b704e4a8964);
        let uuids = [("nqn.a", 1), ("nqn.b", 1), ("nqn.a", 2)].map(|(name, id)| derived_uuid(name, id));
        assert!(uuids[0] != uuids[1] && uuids[0] != uuids[2] && uuids[1] != uuids[2]);
        assert!(uuids.iter().all(|uuid| uuid[6] >> 4 == 8 && uuid[8] >> 6 == 0b10));
    }
}
