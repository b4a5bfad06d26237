//! The file of a number store: its entries, and their durability.
//!
//! The file is text, readable by its owner only: the secret of the hashes, then a line per used key with the key's hash
//! and mark. Later marks are appended after the end line, one line per call, and synced. When there are as many
//! appended marks as keys, the file is replaced: a new file (`.new`) is written, synced and renamed, and the folder is
//! synced. So the cost of a mark does not depend on the number of keys. No entries are ever dropped: a key that returns
//! after a year continues after its last number.
//!
//! When the file is full, the least recently written half of the entries is [spent](super::spent): a second file
//! (`.spent`) records only that these keys were used, so that returning keys are refused. The second file is
//! written first, so that every used key is in one of the files at any time. If an SA still sends by a spent key, its
//! next mark gives the key a line again.
//!
//! Invariant: whenever the machine stops, both files are whole, except for the last line of an unfinished call, and
//! have all marks of the calls of [`write`](NumberEntries::write) that returned.

use super::spent_key_filter::SpentKeyFilter;
use super::store::NumberFileError;
use super::{NumberMark, SPENT};
use core::fmt;
use offload_api::{Direction, EspKey};
use ring::hmac;
use ring::rand::{SecureRandom, SystemRandom};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};
use zeroize::Zeroizing;

/// The content of the file.
pub(super) struct NumberEntries {
    secret: Zeroizing<[u8; SECRET]>,
    hasher: hmac::Key,
    /// Start of the store, in seconds since 1970. `None` in files of earlier versions.
    since: Option<u64>,
    marks: BTreeMap<KeyName, NumberEntry>,
    /// The number of writes so far, which gives entries an age.
    writes: u64,
    /// Keys of added SAs that have no entry yet.
    begun: BTreeSet<KeyName>,
    spent: Option<Arc<SpentKeyFilter>>,
    /// The number of spent keys according to this file. The other file has at least as many.
    spent_at_least: u32,
    /// The number of exact marks.
    most: usize,
    /// The number of marks appended after the end. `None` if the next write must replace the file, because appending is
    /// impossible or a partial line may be at the end.
    behind: Option<usize>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct NumberEntry {
    number: u64,
    /// The last write that contained the entry.
    written: u64,
}

/// The direction and the hash of a key.
pub(super) type KeyName = (u8, KeyHash);

type KeyHash = [u8; 16];

impl NumberEntries {
    /// Starts a new store.
    pub(super) fn new() -> io::Result<NumberEntries> {
        let mut secret = Zeroizing::new([0; SECRET]);
        SystemRandom::new().fill(&mut *secret).map_err(|_| io::Error::other("the system has no random numbers"))?;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_err(io::Error::other)?;
        Ok(NumberEntries { since: Some(now.as_secs()), ..NumberEntries::with(secret) })
    }

    /// Reads the file at `path` and its file of spent keys. Returns `None` if there is no file.
    pub(super) fn open(path: &Path) -> Result<Option<NumberEntries>, NumberFileError> {
        let mut entries = match std::fs::read(path) {
            Ok(text) => NumberEntries::read(&String::from_utf8_lossy(&text))
                .map_err(|line| NumberFileError::Damaged { path: path.into(), line })?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(NumberFileError::Io { path: path.into(), error }),
        };
        if entries.spent_at_least > 0 {
            let path = spent_path(path);
            let read = std::fs::read(&path).is_ok_and(|bytes| entries.read_spent(&bytes));
            read.then_some(()).ok_or(NumberFileError::SpentDamaged { path })?;
        }
        Ok(Some(entries))
    }

    pub(super) fn with(secret: Zeroizing<[u8; SECRET]>) -> NumberEntries {
        let hasher = hmac::Key::new(hmac::HMAC_SHA256, &*secret);
        let (marks, most) = (BTreeMap::new(), ENTRIES);
        NumberEntries {
            hasher,
            secret,
            since: None,
            marks,
            writes: 0,
            begun: BTreeSet::new(),
            spent: None,
            spent_at_least: 0,
            most,
            behind: None,
        }
    }

    /// Parses a file. An error is the number of the first line that this program did not write.
    fn read(text: &str) -> Result<NumberEntries, usize> {
        let mut lines = text.lines().zip(1..);
        let head = lines.next().filter(|(line, _)| *line == HEAD);
        head.ok_or(1usize)?;
        let secret = lines.next().and_then(|(line, _)| unhex(line.strip_prefix("secret ")?)).ok_or(2usize)?;
        let mut entries = NumberEntries::with(Zeroizing::new(secret));
        let mut lines_to_end = 0;
        for (line, at) in lines {
            if line == END {
                lines_to_end = at;
                break;
            }
            if let Some(since) = line.strip_prefix("since ").filter(|_| at == 3) {
                entries.since = Some(since.parse().map_err(|_| at)?);
                continue;
            }
            let may_be_spent = at == 3 || (at == 4 && entries.since.is_some());
            if let Some(keys) = line.strip_prefix("spent ").filter(|_| may_be_spent) {
                entries.spent_at_least = keys.parse().ok().filter(|keys| *keys > 0).ok_or(at)?;
                continue;
            }
            let [(name, number)] = read_marks(line).ok_or(at)?[..] else { return Err(at) };
            // Lines are sorted by age, so the header lines come first and a name occurs once.
            if entries.marks.contains_key(&name) {
                return Err(at);
            }
            entries.put([(name, number)]);
        }
        if lines_to_end == 0 {
            return Err(text.lines().count() + 1);
        }
        // The file up to the end line was written and synced as a whole.
        entries.behind = Some(0);
        let behind: usize = text.split_inclusive('\n').skip(lines_to_end).map(str::len).sum();
        entries.read_appended(&text[text.len() - behind..]).map_err(|line| lines_to_end + line)?;
        Ok(entries)
    }

    /// Parses the lines after the end line. An error is the number of the first line, from 1 on, that this program did
    /// not write.
    pub(super) fn read_appended(&mut self, text: &str) -> Result<(), usize> {
        // A power cut may leave the last line incomplete. No line can follow it.
        let mut cut_short = None;
        let last = text.lines().count();
        for (line, at) in text.lines().zip(1..) {
            let is_whole = at < last || text.ends_with('\n');
            match read_marks(line).filter(|_| is_whole) {
                Some(_) if cut_short.is_some() => return Err(cut_short.unwrap_or(at)),
                Some(marks) => self.put(marks),
                None => _ = cut_short.get_or_insert(at),
            }
        }
        // Nothing may be appended after an incomplete line.
        self.behind = self.behind.filter(|_| cut_short.is_none()).map(|behind| behind + last);
        Ok(())
    }

    fn text(&self) -> Zeroizing<String> {
        // Allocated at full size, because a growing string leaves copies of the secret behind.
        let mut text = Zeroizing::new(String::with_capacity(256 + MAX_LINE * self.marks.len()));
        text.push_str(&format!("{HEAD}\nsecret {}\n", *hex(&*self.secret)));
        if let Some(since) = self.since {
            text.push_str(&format!("since {since}\n"));
        }
        if let Some(spent) = &self.spent {
            text.push_str(&format!("spent {}\n", spent.keys()));
        }
        let mut marks: Vec<_> = self.marks.iter().collect();
        marks.sort_by_key(|(_, entry)| entry.written);
        for (name, NumberEntry { number, .. }) in marks {
            push_mark(&mut text, name, *number);
            text.push('\n');
        }
        text.push_str(END);
        text.push('\n');
        text
    }

    /// Returns the name of a key's entry.
    pub(super) fn name(&self, direction: Direction, key: &EspKey, spi: u32) -> KeyName {
        (direction as u8, self.hash(direction, key, spi))
    }

    /// Returns the mark of an entry, or [`SPENT`]. `None` if the key was never used.
    pub(super) fn find(&self, name: KeyName) -> Option<u64> {
        // An exact entry takes precedence, because a spent key gets a new entry if its SA continues.
        let spent = || self.spent.as_ref().is_some_and(|spent| spent.contains(wide(name)));
        self.marks.get(&name).map(|entry| entry.number).or_else(|| spent().then_some(SPENT))
    }

    /// Tests whether the store began before `written`, and so knows every number that was used since.
    pub(super) fn began_before(&self, written: SystemTime) -> bool {
        let written = written.duration_since(UNIX_EPOCH).map_or(0, |written| written.as_secs());
        self.since.is_some_and(|since| since <= written)
    }

    /// Tests whether `other` is an earlier or a later state of the same file.
    pub(super) fn is_of(&self, other: &NumberEntries) -> bool {
        self.secret == other.secret
    }

    /// Returns the mark of a key's entry, [`SPENT`], or 0 if the key was never used.
    pub(super) fn mark(&self, direction: Direction, key: &EspKey, spi: u32) -> u64 {
        self.find(self.name(direction, key, spi)).unwrap_or(0)
    }

    /// Gives a key an entry with the next write.
    pub(super) fn begin(&mut self, name: KeyName) {
        self.begun.insert(name);
    }

    /// Returns the keys that get an entry with the next write.
    pub(super) fn begun(&self) -> &BTreeSet<KeyName> {
        &self.begun
    }

    /// Writes all of the marks. On failure, the file has no new mark.
    pub(super) fn write(
        &mut self,
        marks: &[NumberMark<'_>],
        folder: &mut dyn NumberFolder,
        spent: &mut dyn NumberFolder,
    ) -> io::Result<()> {
        // A key without marks gets an entry too, or its claim would be forgotten at the next start.
        let unknown = |name: &&KeyName| self.find(**name).is_none();
        let mut new: BTreeMap<KeyName, u64> = self.begun.iter().filter(unknown).map(|name| (*name, 0)).collect();
        for mark in marks {
            let number = new.entry(self.name(mark.direction, mark.key, mark.spi)).or_default();
            *number = mark.number.max(*number);
        }
        // Appending is cheaper, but keeps the file bounded only if the appended marks do not outnumber the keys.
        let keys = self.marks.len() + new.keys().filter(|name| !self.marks.contains_key(*name)).count();
        let behind = self.behind.take().map(|behind| behind + new.len());
        match behind.filter(|behind| keys <= self.most && *behind <= keys.max(MIN_APPENDED) && !new.is_empty()) {
            Some(behind) => {
                let mut line = String::new();
                for (name, number) in &new {
                    line.push_str(if line.is_empty() { "" } else { " " });
                    push_mark(&mut line, name, *number);
                }
                line.push('\n');
                folder.append(line.as_bytes())?;
                folder.sync()?;
                self.put(new);
                self.behind = Some(behind);
            }
            None => {
                // Restored on failure, so that memory never claims marks that the file may lack.
                let before = (self.marks.clone(), self.spent.clone());
                self.put(new);
                let room = if keys > self.most { self.spend(spent) } else { Ok(()) };
                if let Err(error) = room.and_then(|()| replace_file(folder, self.text().as_bytes())) {
                    (self.marks, self.spent) = before;
                    return Err(error);
                }
                self.behind = Some(0);
            }
        }
        self.begun.clear();
        Ok(())
    }

    /// Makes the next write create the file anew.
    pub(super) fn discard_file(&mut self) {
        self.behind = None;
    }

    /// Stores marks as of one write.
    fn put(&mut self, marks: impl IntoIterator<Item = (KeyName, u64)>) {
        self.writes += 1;
        let written = self.writes;
        self.marks.extend(marks.into_iter().map(|(name, number)| (name, NumberEntry { number, written })));
    }

    /// Makes room: spends the least recently written half of the entries.
    fn spend(&mut self, folder: &mut dyn NumberFolder) -> io::Result<()> {
        if self.spent.as_ref().is_some_and(|spent| !spent.has_room()) {
            return Err(io::Error::other("it knows of as many keys as it can: begin with new keys and another store"));
        }
        let mut ages: Vec<_> = self.marks.iter().map(|(name, entry)| (entry.written, *name)).collect();
        ages.sort_unstable();
        let spent = Arc::make_mut(self.spent.get_or_insert_with(|| Arc::new(SpentKeyFilter::new())));
        for (_, name) in &ages[..ages.len() / 2] {
            self.marks.remove(name);
            spent.insert(wide(*name));
        }
        let table = spent.to_bytes();
        let tag = hmac::sign(&self.hasher, &table);
        replace_file(folder, &[tag.as_ref(), &table].concat())
    }

    /// Parses the file of spent keys. Returns false if it is not as this program wrote it.
    fn read_spent(&mut self, bytes: &[u8]) -> bool {
        let read = bytes.split_at_checked(TAG).and_then(|(tag, table)| {
            hmac::verify(&self.hasher, table, tag).ok()?;
            SpentKeyFilter::from_bytes(table).filter(|spent| spent.keys() >= self.spent_at_least)
        });
        self.spent = read.map(Arc::new);
        self.spent.is_some()
    }

    /// Hashes all inputs of nonces and key streams. The hash of a received key includes the SPI, which is
    /// authenticated.
    fn hash(&self, direction: Direction, key: &EspKey, spi: u32) -> KeyHash {
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

impl fmt::Debug for NumberEntries {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NumberEntries({} marks, redacted)", self.marks.len())
    }
}

/// Parses the marks of a line, separated by spaces.
fn read_marks(line: &str) -> Option<Vec<(KeyName, u64)>> {
    let words: Vec<&str> = line.split(' ').collect();
    let (marks, []) = words.as_chunks::<3>() else { return None };
    let read = |[direction, hash, number]: &[&str; 3]| {
        let direction = DIRECTIONS.iter().position(|known| known == direction)?;
        Some(((direction as u8, unhex(hash)?), number.parse().ok()?))
    };
    marks.iter().map(read).collect()
}

fn push_mark(text: &mut String, (direction, hash): &KeyName, number: u64) {
    text.push_str(&format!("{} {} {number}", DIRECTIONS[usize::from(*direction)], *hex(hash)));
}

/// Returns the hash of an entry among spent keys, different for sent and received keys.
fn wide((direction, hash): KeyName) -> u128 {
    u128::from_be_bytes(hash) ^ u128::from(direction)
}

/// Replaces the file by a new one.
fn replace_file(folder: &mut dyn NumberFolder, bytes: &[u8]) -> io::Result<()> {
    folder.write_new(bytes)?;
    // Synced before the rename: otherwise the file could be empty under its new name after a power cut.
    folder.sync_new()?;
    folder.rename_new()?;
    folder.sync_folder()
}

/// The file operations of a store. After a power cut, unsynced data may be lost.
pub(super) trait NumberFolder {
    /// Writes the new file, readable by its owner only.
    fn write_new(&mut self, bytes: &[u8]) -> io::Result<()>;
    /// Syncs the new file.
    fn sync_new(&mut self) -> io::Result<()>;
    /// Renames the new file, which replaces the old one.
    fn rename_new(&mut self) -> io::Result<()>;
    /// Syncs the folder, and so the names in it.
    fn sync_folder(&mut self) -> io::Result<()>;
    /// Appends to the file.
    fn append(&mut self, bytes: &[u8]) -> io::Result<()>;
    /// Syncs the appended data.
    fn sync(&mut self) -> io::Result<()>;
}

/// A file in a folder on disk.
#[derive(Debug)]
pub(super) struct DiskFolder {
    path: PathBuf,
    /// The last written file, kept open because the system reports each write error once per descriptor.
    written: Option<File>,
}

impl DiskFolder {
    pub(super) fn new(path: &Path) -> DiskFolder {
        DiskFolder { path: path.into(), written: None }
    }

    fn new_path(&self) -> PathBuf {
        with_ending(&self.path, ".new")
    }

    fn write(&mut self, mut file: File, bytes: &[u8]) -> io::Result<()> {
        let written = file.write_all(bytes);
        self.written = Some(file);
        written
    }

    /// Syncs the last written file and drops its descriptor. The system reports an error once and leaves the state of
    /// the file unknown, so that a second sync proves nothing.
    fn sync_written(&mut self) -> io::Result<()> {
        self.written.take().map_or(Ok(()), |file| file.sync_all())
    }
}

impl NumberFolder for DiskFolder {
    fn write_new(&mut self, bytes: &[u8]) -> io::Result<()> {
        match std::fs::remove_file(self.new_path()) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            Err(_) | Ok(()) => {}
        }
        self.write(private_options().create_new(true).open(self.new_path())?, bytes)
    }

    fn sync_new(&mut self) -> io::Result<()> {
        self.sync_written()
    }

    fn rename_new(&mut self) -> io::Result<()> {
        std::fs::rename(self.new_path(), &self.path)
    }

    fn sync_folder(&mut self) -> io::Result<()> {
        sync_folder_of(&self.path)
    }

    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.write(OpenOptions::new().append(true).open(&self.path)?, bytes)
    }

    fn sync(&mut self) -> io::Result<()> {
        self.sync_written()
    }
}

/// Syncs the folder of a file, and so the file's name.
pub(super) fn sync_folder_of(path: &Path) -> io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
}

/// Returns the path of the file of spent keys.
pub(super) fn spent_path(path: &Path) -> PathBuf {
    with_ending(path, ".spent")
}

pub(super) fn with_ending(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(ending);
    name.into()
}

/// Returns options that open a file for writing, readable by its owner only.
pub(super) fn private_options() -> OpenOptions {
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
/// The line after the entries. Its absence shows a truncated file.
const END: &str = "end";
/// Names of the directions, by their numeric value.
const DIRECTIONS: [&str; 2] = ["sent", "received"];
const SECRET: usize = 32;
const MAX_LINE: usize = 8 + 1 + 32 + 1 + 20 + 1;
/// Number of exact marks: more than a daemon has SAs at a time.
const ENTRIES: usize = 131_072;
/// Minimum number of appended marks before a small file is replaced.
const MIN_APPENDED: usize = 1024;
/// Length of an HMAC-SHA-256 in bytes.
const TAG: usize = 32;

#[cfg(test)]
mod tests {
    use super::*;
    use offload_api::EspSuite;
    use proptest::prelude::*;

    fn key(byte: u8) -> EspKey {
        EspKey::new(EspSuite::Aes128Gcm, &[byte; 20]).unwrap()
    }

    /// A simulated folder that loses unsynced data in a power cut and fails after a number of calls.
    #[derive(Clone, Default)]
    struct ForgetfulFolder {
        new: Vec<u8>,
        new_durable: bool,
        /// The file's content now, and after a power cut with a flag whether it is complete.
        now: Vec<u8>,
        after: (Vec<u8>, bool),
        now_durable: bool,
        calls_left: usize,
        appended: usize,
        /// Whether unsynced data was appended.
        grew: bool,
    }

    impl ForgetfulFolder {
        fn call(&mut self) -> io::Result<()> {
            self.calls_left = self.calls_left.checked_sub(1).ok_or_else(|| io::Error::other("the power is cut"))?;
            Ok(())
        }

        /// Returns all possible contents after a power cut: the old or the new file if the rename was not synced, and
        /// any prefix of appended data.
        fn found(&self) -> Vec<(Vec<u8>, bool)> {
            let mut found = vec![self.after.clone(), (self.now.clone(), self.now_durable)];
            if self.grew {
                found.extend((self.after.0.len()..self.now.len()).map(|end| (self.now[..end].to_vec(), true)));
                let mut hole = self.now.clone();
                hole[self.after.0.len()..].iter_mut().take(20).for_each(|byte| *byte = 0);
                found.push((hole, true));
            }
            found
        }
    }

    impl NumberFolder for ForgetfulFolder {
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
            self.grew = false;
            Ok(())
        }
        fn sync_folder(&mut self) -> io::Result<()> {
            self.call()?;
            self.after = (self.now.clone(), self.now_durable);
            Ok(())
        }
        fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
            self.call()?;
            self.now.extend_from_slice(bytes);
            (self.appended, self.grew) = (self.appended + 1, true);
            Ok(())
        }
        fn sync(&mut self) -> io::Result<()> {
            self.call()?;
            self.after.0.clone_from(&self.now);
            self.grew = false;
            Ok(())
        }
    }

    #[test]
    fn written_marks_survive_any_power_cut() {
        let mut empty = NumberEntries::with(Zeroizing::new([9; SECRET]));
        let mut start = ForgetfulFolder { calls_left: 4, ..ForgetfulFolder::default() };
        empty.write(&[], &mut start, &mut ForgetfulFolder::default()).unwrap();
        for calls in 0..12 {
            let mut folder = ForgetfulFolder { calls_left: calls, ..start.clone() };
            let mut entries = NumberEntries::with(Zeroizing::new([9; SECRET]));
            let mut written = 0;
            for number in 1..=3 {
                let mark = NumberMark { direction: Direction::Transmit, key: &key(1), spi: 7, number };
                match entries.write(&[mark], &mut folder, &mut ForgetfulFolder::default()) {
                    Ok(()) => written = number,
                    Err(_) => break,
                }
            }
            // The first write of a process replaces the file; later writes append a line.
            assert_eq!(written as usize, [0, 0, 0, 0, 1, 1, 2, 2, 3, 3, 3, 3][calls]);
            // Every state that a power cut can leave must contain all acknowledged marks, and at most the one in
            // progress.
            for (bytes, durable) in folder.found() {
                assert!(durable, "after {calls} calls the file may be empty");
                let found = NumberEntries::read(core::str::from_utf8(&bytes).unwrap()).expect("a whole file");
                let mark = found.mark(Direction::Transmit, &key(1), 7);
                assert!((written..=written + 1).contains(&mark), "{mark} after {calls} calls, {written} written");
            }
        }
    }

    /// A mark costs one line, however many keys there are. The file is replaced only after as many new marks as it has
    /// keys.
    #[test]
    fn file_is_replaced_rarely() {
        let mut folder = ForgetfulFolder { calls_left: usize::MAX, ..ForgetfulFolder::default() };
        let mut entries = NumberEntries::with(Zeroizing::new([9; SECRET]));
        let (mut anew, mut last) = (0, 0);
        for number in 1..=5000 {
            let mark = NumberMark { direction: Direction::Transmit, key: &key(number as u8), spi: 7, number };
            entries.write(&[mark], &mut folder, &mut ForgetfulFolder::default()).unwrap();
            anew += usize::from(folder.appended == last);
            last = folder.appended;
        }
        // The first write, and one replacement whenever the appended marks exceed the limit.
        assert_eq!(anew, 1 + 5000 / (MIN_APPENDED + 1));
        let text = core::str::from_utf8(&folder.now).unwrap();
        let found = NumberEntries::read(text).unwrap();
        let numbers = |entries: &NumberEntries| entries.marks.values().map(|entry| entry.number).collect::<Vec<_>>();
        assert_eq!(numbers(&found), numbers(&entries));
        // After a failed append, the next write replaces the file.
        let key = key(1);
        let mark = |number| NumberMark { direction: Direction::Transmit, key: &key, spi: 7, number };
        folder.calls_left = 1;
        assert!(entries.write(&[mark(9000)], &mut folder, &mut ForgetfulFolder::default()).is_err());
        folder.calls_left = 4;
        entries.write(&[mark(9001)], &mut folder, &mut ForgetfulFolder::default()).unwrap();
        assert_eq!(folder.appended, last + 1);
        let found = NumberEntries::read(core::str::from_utf8(&folder.now).unwrap()).unwrap();
        assert_eq!(found.mark(Direction::Transmit, &key, 7), 9001);
    }

    #[test]
    fn failed_write_leaves_no_mark() {
        let mut entries = NumberEntries::with(Zeroizing::new([9; SECRET]));
        let mark = NumberMark { direction: Direction::Receive, key: &key(1), spi: 7, number: 7 };
        assert!(entries.write(&[mark], &mut ForgetfulFolder::default(), &mut ForgetfulFolder::default()).is_err());
        assert_eq!(entries.mark(Direction::Receive, &key(1), 7), 0);
    }

    #[test]
    fn received_marks_are_kept_by_spi_and_the_highest_counts() {
        let mut entries = NumberEntries::with(Zeroizing::new([9; SECRET]));
        let key = key(1);
        let mark = |spi, number| NumberMark { direction: Direction::Receive, key: &key, spi, number };
        let mut folder = ForgetfulFolder { calls_left: 8, ..ForgetfulFolder::default() };
        entries.write(&[mark(7, 5), mark(7, 3), mark(8, 1)], &mut folder, &mut ForgetfulFolder::default()).unwrap();
        assert_eq!([7, 8, 9].map(|spi| entries.mark(Direction::Receive, &key, spi)), [5, 1, 0]);
        entries.write(&[mark(7, 4)], &mut folder, &mut ForgetfulFolder::default()).unwrap();
        assert_eq!(entries.mark(Direction::Receive, &key, 7), 4, "less was written ahead than was needed");
    }

    /// A full file forgets marks, but never that a key was used.
    #[test]
    fn oldest_half_of_a_full_file_is_spent_and_stays_known() {
        let bytes = |folder: &ForgetfulFolder| core::str::from_utf8(&folder.now).unwrap().to_owned();
        let disk = || ForgetfulFolder { calls_left: usize::MAX, ..ForgetfulFolder::default() };
        let (mut numbers, mut spent) = (disk(), disk());
        let mut entries = NumberEntries { most: 8, ..NumberEntries::with(Zeroizing::new([9; SECRET])) };
        let mut write = |entries: &mut NumberEntries, direction, byte: u8, number| {
            let mark = NumberMark { direction, key: &key(byte), spi: 7, number };
            entries.write(&[mark], &mut numbers, &mut spent).unwrap();
            (bytes(&numbers), spent.now.clone())
        };
        for byte in 0..4 {
            write(&mut entries, Direction::Transmit, byte, 100);
            let (_, table) = write(&mut entries, Direction::Receive, byte, 200);
            assert!(table.is_empty(), "there is room");
        }
        // A rewritten entry is no longer old.
        write(&mut entries, Direction::Transmit, 0, 150);
        let (text, table) = write(&mut entries, Direction::Transmit, 4, 100);
        for mut entries in [NumberEntries::read(&text).unwrap(), entries] {
            if entries.spent.is_none() {
                assert_eq!(entries.spent_at_least, 4);
                for damaged in [&table[..10], &[], &[&[1], &table[1..]].concat()] {
                    assert!(!entries.read_spent(damaged));
                }
                assert!(entries.read_spent(&table));
            }
            let mark = |direction, byte| entries.mark(direction, &key(byte), 7);
            assert_eq!([0, 1, 2, 3, 4].map(|byte| mark(Direction::Transmit, byte)), [150, SPENT, SPENT, 100, 100]);
            assert_eq!([0, 1, 2, 3, 4].map(|byte| mark(Direction::Receive, byte)), [SPENT, SPENT, 200, 200, 0]);
            // An SA that still uses a spent key continues.
            let mark = NumberMark { direction: Direction::Transmit, key: &key(1), spi: 7, number: 300 };
            entries.write(&[mark], &mut disk(), &mut ForgetfulFolder::default()).unwrap();
            assert_eq!(entries.mark(Direction::Transmit, &key(1), 7), 300);
        }
    }

    /// The spent keys are written to their file before they leave the other file.
    #[test]
    fn power_cut_during_spending_forgets_no_key() {
        let disk = |calls_left| ForgetfulFolder { calls_left, ..ForgetfulFolder::default() };
        for calls in 0..9 {
            let mut entries = NumberEntries { most: 4, ..NumberEntries::with(Zeroizing::new([9; SECRET])) };
            let (mut numbers, mut spent) = (disk(usize::MAX), disk(calls.min(4)));
            for byte in 0..4 {
                let mark = NumberMark { direction: Direction::Transmit, key: &key(byte), spi: 7, number: 100 };
                entries.write(&[mark], &mut numbers, &mut spent).unwrap();
            }
            // The first four calls concern the file of spent keys, the rest the file of numbers.
            numbers.calls_left = calls.saturating_sub(4);
            let mark = NumberMark { direction: Direction::Transmit, key: &key(9), spi: 7, number: 100 };
            let written = entries.write(&[mark], &mut numbers, &mut spent).is_ok();
            assert_eq!(written, calls == 8);
            for (text, _) in numbers.found() {
                for (table, _) in spent.found() {
                    let mut found = NumberEntries::read(core::str::from_utf8(&text).unwrap()).unwrap();
                    if found.spent_at_least > 0 {
                        assert!(found.read_spent(&table), "{calls}");
                    }
                    for byte in 0..4 {
                        let mark = found.mark(Direction::Transmit, &key(byte), 7);
                        assert!(matches!(mark, 100 | SPENT), "{mark} after {calls} calls");
                    }
                }
            }
            // Memory must agree with one of the states that the files may have.
            let marks = (0..4).map(|byte| entries.mark(Direction::Transmit, &key(byte), 7));
            assert!(marks.into_iter().all(|mark| mark == 100 || (written && mark == SPENT)));
        }
    }

    #[test]
    fn damage_is_reported_with_its_line() {
        let mut entries = NumberEntries::with(Zeroizing::new([0xab; SECRET]));
        let marks = [(Direction::Transmit, 1), (Direction::Receive, 1), (Direction::Receive, 2)];
        for (direction, byte) in marks {
            let mut folder = ForgetfulFolder { calls_left: 4, ..ForgetfulFolder::default() };
            entries
                .write(
                    &[NumberMark { direction, key: &key(byte), spi: 7, number: u64::MAX }],
                    &mut folder,
                    &mut ForgetfulFolder::default(),
                )
                .unwrap();
        }
        let text = entries.text();
        assert_eq!(NumberEntries::read(&text).unwrap().marks, entries.marks);
        // After the end line, an incomplete last line is ignored. A malformed line before a complete one is damage.
        let text = text.as_str();
        let line = "sent 000102030405060708090a0b0c0d0e0f 9";
        let end = text.lines().count();
        let marks = |text: &str| NumberEntries::read(text).map(|entries| entries.marks.len());
        assert_eq!(marks(&format!("{text}{line}\n")), Ok(4));
        assert_eq!(marks(&format!("{text}{line}")), Ok(3), "the number may go on");
        assert_eq!(marks(&format!("{text}{line}\nsent 00")), Ok(4));
        assert_eq!(marks(&format!("{text}\u{fffd}\0\n")), Ok(3));
        assert_eq!(marks(&format!("{text}sent 00\n{line}\n")), Err(end + 1));
        let lines: Vec<&str> = text.lines().collect();
        for at in 0..lines.len() {
            let mut damaged = lines.clone();
            damaged[at] = "sent";
            assert_eq!(NumberEntries::read(&damaged.join("\n")).err(), Some(at + 1));
            // A truncated file, and a duplicate line.
            assert!(NumberEntries::read(&lines[..at].join("\n")).is_err());
            damaged.insert(at, lines[at]);
            damaged[at + 1] = lines[at];
            let is_last = at + 1 == lines.len();
            assert_eq!(NumberEntries::read(&damaged.join("\n")).err(), Some(at + 2).filter(|_| !is_last));
        }
        assert!(format!("{entries:?}").ends_with("redacted)"));
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in "(nic-offload: numbers used under keys of ESP, 1\n)?[a-z0-9 \n]{0,200}") {
            let _ = NumberEntries::read(&text);
        }
    }
}
