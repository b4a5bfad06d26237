//! UUIDs by which hosts recognise namespaces. The UUID also serves as NGUID.
//!
//! Hosts take two namespaces with the same UUID for two paths to the same blocks, and a namespace with another UUID for
//! other blocks. The UUID of a file therefore stays with the file: it is generated once and stored in `PATH.identity`.
//!
//! ```text
//!   nvme-tcp: by what hosts recognise the blocks, version 1
//!   uuid 4c4bb6a3-54bd-4bb9-9d0c-1a38c5c1a3b5
//!   end
//! ```

use super::open_error::OpenError;
use super::system::{self, FileSystem};
use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

/// Generates a random UUID for a namespace that ends with its process: RFC 9562 5.4.
///
/// ```
/// let uuids = [nvme_tcp::namespace::random_uuid()?, nvme_tcp::namespace::random_uuid()?];
/// assert_ne!(uuids[0], uuids[1]);
/// # std::io::Result::Ok(())
/// ```
///
/// # Errors
/// If the system has no random generator.
pub fn random_uuid() -> io::Result<[u8; 16]> {
    let mut uuid = [0; 16];
    File::open(GENERATOR)?.read_exact(&mut uuid)?;
    Ok(with_version(uuid, 4))
}

/// Returns the file's UUID: the one stored beside the file, or a new one, which is then stored.
pub(super) fn file_uuid(system: &dyn FileSystem, path: &Path) -> Result<[u8; 16], OpenError> {
    let path = system::with_suffix(path, ".identity");
    if let Some(content) = system.read(&path, MAX_BYTES).map_err(OpenError::about(&path))? {
        return parse(&content).ok_or(OpenError::Identity { path });
    }
    let uuid = random_uuid().map_err(OpenError::about(Path::new(GENERATOR)))?;
    // A UUID that a crash could lose must not be reported to hosts.
    system::replace(system, &path, text(&uuid).as_bytes())
        .and_then(|()| system::sync_name(system, &path))
        .inspect_err(|_| {
            // The next process must not find a file name that was never synced.
            let _ = system.remove(&path);
        })
        .map_err(OpenError::about(&path))?;
    Ok(uuid)
}

/// Returns the UUID of a block device, derived from its hardware or driver name. A device without a name gets a random
/// UUID at each opening, so that no host confuses two devices.
pub(super) fn device_uuid(major: u32, minor: u32) -> io::Result<[u8; 16]> {
    let folder = PathBuf::from(format!("/sys/dev/block/{major}:{minor}"));
    match named_device(&folder) {
        Some(name) => Ok(with_version(fnv1a(name.bytes()).to_be_bytes(), 8)),
        None => random_uuid(),
    }
}

/// Returns the permanent name of a device and the number of its partition.
fn named_device(folder: &Path) -> Option<String> {
    let read = |path: PathBuf| Some(fs::read_to_string(path).ok()?.trim().to_owned()).filter(|text| !text.is_empty());
    let partition = read(folder.join("partition"));
    // sysfs links a partition to a folder inside the folder of the whole device.
    let whole =
        if partition.is_some() { fs::canonicalize(folder).ok()?.parent()?.to_owned() } else { folder.to_owned() };
    let names = ["dm/uuid", "wwid", "device/wwid", "serial", "device/serial"];
    let (kind, name) = names.iter().find_map(|kind| Some((kind, read(whole.join(kind))?)))?;
    Some(format!("{kind}\0{name}\0{}", partition.unwrap_or_default()))
}

/// Derives a UUID from a subsystem name and a namespace identifier. RFC 9562 5.8: version 8 is for custom UUIDs. Here
/// it is the 128-bit FNV-1a hash, because the result must differ for different names and stay the same on every machine
/// and in every version.
pub(crate) fn derived_uuid(subsystem: &str, id: u32) -> [u8; 16] {
    with_version(fnv1a(subsystem.bytes().chain([0]).chain(id.to_be_bytes())).to_be_bytes(), 8)
}

/// Computes the 128-bit FNV-1a hash (draft-eastlake-fnv).
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
        // Writing to a string cannot fail.
        let _ = write!(digits, "{byte:02x}");
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
/// Source of random bytes: random(4).
const GENERATOR: &str = "/dev/urandom";
const MAX_BYTES: u64 = 1024;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uuid_file_round_trips_and_rejects_damage() {
        let uuid = random_uuid().unwrap();
        assert_eq!((uuid[6] >> 4, uuid[8] >> 6), (4, 0b10));
        let kept = text(&uuid);
        assert_eq!(parse(kept.as_bytes()), Some(uuid));
        for cut in 0..kept.len() {
            assert_eq!(parse(&kept.as_bytes()[..cut]), None, "cut after {cut} bytes");
        }
        assert_eq!(parse(kept.replace("uuid ", "uuid +").as_bytes()), None);
        assert_eq!(parse(b"\xff"), None);
    }

    #[test]
    fn device_names_include_the_partition() {
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
    fn derived_uuids_differ_by_name() {
        // FNV-1a of 128 bits: the offset basis, and the value that implementations publish for "a".
        assert_eq!(fnv1a(core::iter::empty()), 0x6c62272e07bb014262b821756295c58d);
        assert_eq!(fnv1a(core::iter::once(b'a')), 0xd228cb696f1a8caf78912b704e4a8964);
        let uuids = [("nqn.a", 1), ("nqn.b", 1), ("nqn.a", 2)].map(|(name, id)| derived_uuid(name, id));
        assert!(uuids[0] != uuids[1] && uuids[0] != uuids[2] && uuids[1] != uuids[2]);
        assert!(uuids.iter().all(|uuid| uuid[6] >> 4 == 8 && uuid[8] >> 6 == 0b10));
    }
}
