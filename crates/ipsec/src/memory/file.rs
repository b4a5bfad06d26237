//! Numbers in a file beside the key file.
//!
//! A file of text, for its owner's eyes: the key of the hashes, then a line each for the keys that were used, by their
//! hashes. It is written anew and put in the place of the one before (`.new`, then renamed), file and folder made durable;
//! a lock file beside it (`.lock`) keeps out a second process. Entries stay: a key that comes back next year goes on behind
//! what it sent this year.
//!
//! Invariant: whenever the machine stops, the file that is there afterwards is whole, and has all marks of the calls of
//! [`write`](NumberStore::write) that returned.

use super::{Mark, NumberStore, UsedKeys};
use core::fmt;
use offload_api::{Direction, EspKey};
use ring::hmac;
use ring::rand::{SecureRandom, SystemRandom};
use std::collections::BTreeMap;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use zeroize::Zeroizing;

/// The numbers of keys, in a file. Nobody else has it open as long as this is there.
///
/// ```
/// use ipsec::{KeyMemory, Mark, NumberFile, NumberFileError, NumberStore};
/// use offload_api::{Direction, EspKey, EspSuite};
///
/// let folder = std::env::temp_dir().join(format!("numbers-{}", std::process::id()));
/// std::fs::create_dir_all(&folder)?;
/// std::fs::write(folder.join("keys"), "policy setdefault in accept out accept")?;
/// let key = EspKey::new(EspSuite::Aes128Gcm, &[7; 20]).unwrap();
///
/// let mut numbers = NumberFile::beside(&folder.join("keys"))?;
/// let again = NumberFile::beside(&folder.join("keys"));
/// assert!(matches!(again, Err(NumberFileError::InUse { .. })), "somebody has it");
/// numbers.write(&[Mark { direction: Direction::Transmit, key: &key, spi: 0x1001, number: 1 << 20 }])?;
/// drop(numbers);
///
/// let numbers = NumberFile::beside(&folder.join("keys"))?;
/// assert_eq!(numbers.mark(Direction::Transmit, &key, 0x1001), 1 << 20);
/// let memory = KeyMemory::of_process().with_store(numbers);
/// # std::fs::remove_dir_all(&folder)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct NumberFile {
    entries: Entries,
    folder: OnDisk,
    _lock: File,
}

/// Why the numbers of keys cannot be had.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NumberFileError {
    /// It cannot be read, or its folder not be written to.
    #[error("{}: {error}: it keeps the numbers that were sent under the keys, and must be readable and writable", path.display())]
    Io {
        /// Which file.
        path: PathBuf,
        /// What the system says.
        error: io::Error,
    },
    /// Another process has it.
    #[error("{}: another process uses these keys: end it, or use other keys", path.display())]
    InUse {
        /// Which file.
        path: PathBuf,
    },
    /// It is not what was written.
    #[error("{}: line {line} is not what was written there: replace all keys of the key file, then remove it", path.display())]
    Damaged {
        /// Which file.
        path: PathBuf,
        /// Where, from 1 on.
        line: usize,
    },
}

impl NumberFile {
    /// The numbers of the keys in the file at `key_file`, which are in one of that name with `.numbers` at its end. There
    /// need be none yet.
    ///
    /// # Errors
    /// If it cannot be read or written, is damaged, or another process has it.
    pub fn beside(key_file: &Path) -> Result<NumberFile, NumberFileError> {
        // One file by two names is one.
        let named = key_file.canonicalize();
        let named = named.map_err(|error| NumberFileError::Io { path: key_file.into(), error })?;
        let path = with_ending(&named, ".numbers");
        let about = |error| NumberFileError::Io { path: path.clone(), error };
        let lock = for_its_owner().create(true).truncate(false).open(with_ending(&path, ".lock")).map_err(about)?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(NumberFileError::InUse { path }),
            Err(TryLockError::Error(error)) => return Err(about(error)),
        }
        let entries = match std::fs::read_to_string(&path) {
            Ok(text) => Entries::read(&text).map_err(|line| NumberFileError::Damaged { path: path.clone(), line })?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Entries::new().map_err(about)?,
            Err(error) => return Err(about(error)),
        };
        let mut file = NumberFile { entries, folder: OnDisk { path: path.clone() }, _lock: lock };
        // Better now than when a packet is to leave.
        file.write(&[]).map_err(about)?;
        Ok(file)
    }
}

impl NumberStore for NumberFile {
    fn mark(&self, direction: Direction, key: &EspKey, spi: u32) -> u64 {
        self.entries.mark(direction, key, spi)
    }

    fn write(&mut self, marks: &[Mark<'_>]) -> io::Result<()> {
        self.entries.write(marks, &mut self.folder)
    }
}

/// What is in the file.
struct Entries {
    secret: Zeroizing<[u8; SECRET]>,
    hasher: hmac::Key,
    marks: BTreeMap<(u8, Hash), u64>,
}

type Hash = [u8; 16];

impl Entries {
    fn new() -> io::Result<Entries> {
        let mut secret = Zeroizing::new([0; SECRET]);
        SystemRandom::new().fill(&mut *secret).map_err(|_| io::Error::other("the system has no random numbers"))?;
        Ok(Entries::with(secret))
    }

    fn with(secret: Zeroizing<[u8; SECRET]>) -> Entries {
        Entries { hasher: hmac::Key::new(hmac::HMAC_SHA256, &*secret), secret, marks: BTreeMap::new() }
    }

    /// Reads a file; an error names the first line that this program did not write.
    fn read(text: &str) -> Result<Entries, usize> {
        let mut lines = text.lines().zip(1..);
        let head = lines.next().filter(|(line, _)| *line == HEAD);
        head.ok_or(1usize)?;
        let secret = lines.next().and_then(|(line, _)| unhex(line.strip_prefix("secret ")?)).ok_or(2usize)?;
        let mut entries = Entries::with(Zeroizing::new(secret));
        let mut ended = false;
        for (line, at) in lines {
            if ended {
                return Err(at);
            }
            ended = line == END;
            if ended {
                continue;
            }
            let mut words = line.split(' ');
            let direction = words.next().and_then(|word| DIRECTIONS.iter().position(|known| *known == word));
            let (hash, number) = (words.next().and_then(unhex), words.next().and_then(|word| word.parse().ok()));
            let (Some(direction), Some(hash), Some(number), None) = (direction, hash, number, words.next()) else {
                return Err(at);
            };
            if entries.marks.insert((direction as u8, hash), number).is_some() {
                return Err(at);
            }
        }
        if ended { Ok(entries) } else { Err(text.lines().count() + 1) }
    }

    fn text(&self) -> Zeroizing<String> {
        // Of one size from the start: what a string outgrows is not wiped.
        let mut text = Zeroizing::new(String::with_capacity(256 + LONGEST_LINE * self.marks.len()));
        text.push_str(&format!("{HEAD}\nsecret {}\n", *hex(&*self.secret)));
        for ((direction, hash), number) in &self.marks {
            text.push_str(&format!("{} {} {number}\n", DIRECTIONS[usize::from(*direction)], *hex(hash)));
        }
        text.push_str(END);
        text.push('\n');
        text
    }

    fn mark(&self, direction: Direction, key: &EspKey, spi: u32) -> u64 {
        self.marks.get(&(direction as u8, self.hash(direction, key, spi))).copied().unwrap_or(0)
    }

    fn write(&mut self, marks: &[Mark<'_>], folder: &mut dyn Folder) -> io::Result<()> {
        let before = self.marks.clone();
        let mut new = BTreeMap::<(u8, Hash), u64>::new();
        for mark in marks {
            let hash = self.hash(mark.direction, mark.key, mark.spi);
            let number = new.entry((mark.direction as u8, hash)).or_default();
            *number = mark.number.max(*number);
        }
        self.marks.extend(new);
        let written = match self.marks.len() > ENTRIES {
            true => {
                Err(io::Error::other(format!("it has {ENTRIES} keys, as many as it can: begin with a new key file")))
            }
            false => put_in_place(folder, self.text().as_bytes()),
        };
        if written.is_err() {
            self.marks = before;
        }
        written
    }

    /// Of all that nonces and key streams depend on; of what is received, with what is authentic beside the number.
    fn hash(&self, direction: Direction, key: &EspKey, spi: u32) -> Hash {
        let mut context = hmac::Context::with_key(&self.hasher);
        context.update(key.key());
        context.update(key.salt());
        if direction == Direction::Receive {
            context.update(&spi.to_be_bytes());
        }
        let mut hash = [0; 16];
        hash.copy_from_slice(&context.sign().as_ref()[..16]);
        hash
    }
}

impl fmt::Debug for Entries {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Entries({} marks, redacted)", self.marks.len())
    }
}

/// Puts a new file in the place of the one there is.
fn put_in_place(folder: &mut dyn Folder, bytes: &[u8]) -> io::Result<()> {
    folder.write_new(bytes)?;
    // Before its name changes, or after a power cut it could be empty under the new one.
    folder.sync_new()?;
    folder.rename_new()?;
    folder.sync_folder()
}

/// What a folder does for the file. What was written and not made durable may be gone after a power cut.
trait Folder {
    /// Makes the new file, which nobody else may read.
    fn write_new(&mut self, bytes: &[u8]) -> io::Result<()>;
    /// Makes what is in it durable.
    fn sync_new(&mut self) -> io::Result<()>;
    /// Gives it the name of the one there is.
    fn rename_new(&mut self) -> io::Result<()>;
    /// Makes names durable.
    fn sync_folder(&mut self) -> io::Result<()>;
}

/// The folder that a file is in.
#[derive(Debug)]
struct OnDisk {
    path: PathBuf,
}

impl OnDisk {
    fn new_path(&self) -> PathBuf {
        with_ending(&self.path, ".new")
    }
}

impl Folder for OnDisk {
    fn write_new(&mut self, bytes: &[u8]) -> io::Result<()> {
        match std::fs::remove_file(self.new_path()) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            Err(_) | Ok(()) => {}
        }
        for_its_owner().create_new(true).open(self.new_path())?.write_all(bytes)
    }

    fn sync_new(&mut self) -> io::Result<()> {
        File::open(self.new_path())?.sync_all()
    }

    fn rename_new(&mut self) -> io::Result<()> {
        std::fs::rename(self.new_path(), &self.path)
    }

    fn sync_folder(&mut self) -> io::Result<()> {
        let folder = self.path.parent().filter(|folder| !folder.as_os_str().is_empty());
        File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
    }
}

fn with_ending(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(ending);
    name.into()
}

/// Opens for writing what nobody but its owner is to read.
fn for_its_owner() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.write(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options
}

fn hex(bytes: &[u8]) -> Zeroizing<String> {
    let digit = |value: u8| char::from(b"0123456789abcdef"[usize::from(value)]);
    let mut text = Zeroizing::new(String::with_capacity(2 * bytes.len()));
    text.extend(bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]));
    text
}

fn unhex<const N: usize>(text: &str) -> Option<[u8; N]> {
    let mut bytes = [0; N];
    if text.len() != 2 * N {
        return None;
    }
    for (byte, pair) in bytes.iter_mut().zip(text.as_bytes().chunks(2)) {
        let digit = |at: usize| char::from(pair[at]).to_digit(16);
        *byte = (digit(0)? << 4 | digit(1)?) as u8;
    }
    Some(bytes)
}

const HEAD: &str = "nic-offload: numbers used under keys of ESP, 1";
/// A file that was cut short has none.
const END: &str = "end";
/// By what they are as a number.
const DIRECTIONS: [&str; 2] = ["sent", "received"];
const SECRET: usize = 32;
const LONGEST_LINE: usize = 8 + 1 + 32 + 1 + 20 + 1;
/// As many for sending as a process remembers, and as many for receiving.
const ENTRIES: usize = 2 * UsedKeys::MOST;

#[cfg(test)]
mod tests {
    use super::*;
    use offload_api::EspSuite;
    use proptest::prelude::*;

    fn key(byte: u8) -> EspKey {
        EspKey::new(EspSuite::Aes128Gcm, &[byte; 20]).unwrap()
    }

    /// A folder on a disk that forgets what was not made durable, and stops to answer after so many calls.
    #[derive(Clone, Default)]
    struct Forgetful {
        new: Vec<u8>,
        new_durable: bool,
        /// What the name leads to, and what it leads to after a power cut; and whether that is all there.
        now: Vec<u8>,
        after: (Vec<u8>, bool),
        now_durable: bool,
        calls_left: usize,
    }

    impl Forgetful {
        fn call(&mut self) -> io::Result<()> {
            self.calls_left = self.calls_left.checked_sub(1).ok_or_else(|| io::Error::other("the power is cut"))?;
            Ok(())
        }

        /// What may be there after a power cut: the old file or the new one, if the new name was not made durable.
        fn found(&self) -> Vec<(Vec<u8>, bool)> {
            vec![self.after.clone(), (self.now.clone(), self.now_durable)]
        }
    }

    impl Folder for Forgetful {
        fn write_new(&mut self, bytes: &[u8]) -> io::Result<()> {
            self.call()?;
            (self.new, self.new_durable) = (bytes.to_vec(), false);
            Ok(())
        }
        fn sync_new(&mut self) -> io::Result<()> {
            self.call()?;
            self.new_durable = true;
            Ok(())
        }
        fn rename_new(&mut self) -> io::Result<()> {
            self.call()?;
            (self.now, self.now_durable) = (core::mem::take(&mut self.new), self.new_durable);
            Ok(())
        }
        fn sync_folder(&mut self) -> io::Result<()> {
            self.call()?;
            self.after = (self.now.clone(), self.now_durable);
            Ok(())
        }
    }

    #[test]
    fn what_was_written_is_there_after_a_power_cut_at_any_time() {
        let mut empty = Entries::with(Zeroizing::new([9; SECRET]));
        let mut start = Forgetful { calls_left: 4, ..Forgetful::default() };
        empty.write(&[], &mut start).unwrap();
        for calls in 0..12 {
            let mut folder = Forgetful { calls_left: calls, ..start.clone() };
            let mut entries = Entries::with(Zeroizing::new([9; SECRET]));
            let mut written = 0;
            for number in 1..=3 {
                let mark = Mark { direction: Direction::Transmit, key: &key(1), spi: 7, number };
                match entries.write(&[mark], &mut folder) {
                    Ok(()) => written = number,
                    Err(_) => break,
                }
            }
            assert_eq!(written as usize, calls / 4);
            for (bytes, durable) in folder.found() {
                assert!(durable, "after {calls} calls the file may be empty");
                let found = Entries::read(core::str::from_utf8(&bytes).unwrap()).expect("a whole file");
                let mark = found.mark(Direction::Transmit, &key(1), 7);
                assert!((written..=written + 1).contains(&mark), "{mark} after {calls} calls, {written} written");
            }
        }
    }

    #[test]
    fn a_mark_that_could_not_be_written_is_none() {
        let mut entries = Entries::with(Zeroizing::new([9; SECRET]));
        let mark = Mark { direction: Direction::Receive, key: &key(1), spi: 7, number: 7 };
        assert!(entries.write(&[mark], &mut Forgetful::default()).is_err());
        assert_eq!(entries.mark(Direction::Receive, &key(1), 7), 0);
    }

    #[test]
    fn what_is_received_is_told_apart_by_its_spi_and_the_highest_of_several_counts() {
        let mut entries = Entries::with(Zeroizing::new([9; SECRET]));
        let key = key(1);
        let mark = |spi, number| Mark { direction: Direction::Receive, key: &key, spi, number };
        let mut folder = Forgetful { calls_left: 8, ..Forgetful::default() };
        entries.write(&[mark(7, 5), mark(7, 3), mark(8, 1)], &mut folder).unwrap();
        assert_eq!([7, 8, 9].map(|spi| entries.mark(Direction::Receive, &key, spi)), [5, 1, 0]);
        entries.write(&[mark(7, 4)], &mut folder).unwrap();
        assert_eq!(entries.mark(Direction::Receive, &key, 7), 4, "less was written ahead than was needed");
    }

    #[test]
    fn damage_is_told_by_its_line() {
        let mut entries = Entries::with(Zeroizing::new([0xab; SECRET]));
        let marks = [(Direction::Transmit, 1), (Direction::Receive, 1), (Direction::Receive, 2)];
        for (direction, byte) in marks {
            let mut folder = Forgetful { calls_left: 4, ..Forgetful::default() };
            entries.write(&[Mark { direction, key: &key(byte), spi: 7, number: u64::MAX }], &mut folder).unwrap();
        }
        let text = entries.text();
        assert_eq!(Entries::read(&text).unwrap().marks, entries.marks);
        let lines: Vec<&str> = text.lines().collect();
        for at in 0..lines.len() {
            let mut damaged = lines.clone();
            damaged[at] = "sent";
            assert_eq!(Entries::read(&damaged.join("\n")).err(), Some(at + 1));
            // Cut short, and a line twice.
            assert!(Entries::read(&lines[..at].join("\n")).is_err());
            damaged.insert(at, lines[at]);
            damaged[at + 1] = lines[at];
            assert_eq!(Entries::read(&damaged.join("\n")).err(), Some(at + 2).filter(|_| at > 0).or(Some(2)));
        }
        assert!(format!("{entries:?}").ends_with("redacted)"));
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in "(nic-offload: numbers used under keys of ESP, 1\n)?[a-z0-9 \n]{0,200}") {
            let _read_or_refused = Entries::read(&text);
        }
    }

    #[cfg(unix)]
    #[test]
    fn the_file_is_for_its_owner_and_for_one_process() {
        use std::os::unix::fs::{PermissionsExt, symlink};
        let folder = std::env::temp_dir().join(format!("ipsec-numbers-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let keys = folder.join("keys");
        std::fs::write(&keys, "").unwrap();
        symlink(&keys, folder.join("other")).unwrap();
        let mut file = NumberFile::beside(&keys).unwrap();
        for name in ["keys", "other"] {
            let refused = NumberFile::beside(&folder.join(name)).unwrap_err();
            assert!(matches!(refused, NumberFileError::InUse { .. }), "{refused}");
        }
        file.write(&[Mark { direction: Direction::Transmit, key: &key(3), spi: 7, number: 77 }]).unwrap();
        for name in ["keys.numbers", "keys.numbers.lock"] {
            let mode = std::fs::metadata(folder.join(name)).unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o600, "{name}");
        }
        let text = std::fs::read_to_string(folder.join("keys.numbers")).unwrap();
        assert!(!text.contains(&hex(&[3; 16])[..]), "no keys in it");
        drop(file);
        let file = NumberFile::beside(&folder.join("other")).unwrap();
        assert_eq!(file.mark(Direction::Transmit, &key(3), 8), 77);
        assert_eq!((file.mark(Direction::Receive, &key(3), 7), file.mark(Direction::Transmit, &key(4), 7)), (0, 0));
        drop(file);
        std::fs::write(folder.join("keys.numbers"), "else").unwrap();
        let refused = NumberFile::beside(&keys).unwrap_err().to_string();
        assert!(
            refused.ends_with("line 1 is not what was written there: replace all keys of the key file, then remove it")
        );
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
