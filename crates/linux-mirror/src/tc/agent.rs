//! Filters as an agent mirrors them.

use crate::agent::{Say, Source};
use crate::tc::line::{Line, MOST_BYTES, Place, Reader, Used, VERSION};
use crate::tc::watch::{FilterChange, Watcher};
use nic_switch::RuleAction;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::Permissions;
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use zeroize::Zeroizing;

/// The filters of the kernel.
pub(crate) struct Filters {
    watcher: Watcher,
    reader: Reader,
    /// What rules did, and where that is written.
    used: BTreeMap<Place, Used>,
    counters: Option<PathBuf>,
    /// What the kernel has told since it began to tell of everything: with a qdisc, filters go that it does not tell of.
    told: Option<BTreeSet<Place>>,
}

impl Source for Filters {
    fn hello(&self) -> Zeroizing<Vec<u8>> {
        // The empty line ends what another agent left unsaid.
        Zeroizing::new([b"\n", &encode(&Line::Hello(VERSION))[..]].concat())
    }

    fn poll_request(&mut self) -> Option<Vec<u8>> {
        self.watcher.poll_request()
    }

    fn ask_again(&mut self) {
        self.watcher.ask_again();
    }

    fn handle_kernel(&mut self, datagram: &[u8], say: &mut Say<'_>) -> io::Result<()> {
        let mut changes = Vec::new();
        let handled = self.watcher.handle_datagram(datagram, |change| changes.push(change));
        let known = self.used.len();
        for change in changes {
            self.pass_on(change, say)?;
        }
        if self.used.len() < known {
            self.write_counters()?;
        }
        handled.map_err(io::Error::other)
    }

    fn handle_mirror(&mut self, bytes: &[u8]) -> io::Result<bool> {
        let (mut asked, mut used) = (false, Vec::new());
        self.reader.read(bytes, |line| match line {
            Ok(Line::Ask(_)) => asked = true,
            Ok(Line::Used(place, what)) => used.push((place, what)),
            // The end of what was for another agent.
            _ => {}
        });
        if !used.is_empty() {
            self.used.extend(used);
            self.write_counters()?;
        }
        Ok(asked)
    }
}

impl Filters {
    pub(crate) fn new(counters: Option<&Path>) -> Filters {
        Filters {
            watcher: Watcher::new(),
            reader: Reader::new(),
            used: BTreeMap::new(),
            counters: counters.map(Path::to_owned),
            told: None,
        }
    }

    fn pass_on(&mut self, change: FilterChange, say: &mut Say<'_>) -> io::Result<()> {
        match change {
            FilterChange::Begins => {
                self.told = Some(BTreeSet::new());
                say(&encode(&Line::Begins))
            }
            FilterChange::Ends => {
                if let Some(told) = self.told.take() {
                    self.used.retain(|place, _| told.contains(place));
                }
                say(&encode(&Line::Ends))
            }
            FilterChange::Gone(selection) => {
                self.used
                    .retain(|place, _| !selection.includes(place.device, place.chain, place.priority, place.handle));
                say(&encode(&Line::Gone(selection)))
            }
            FilterChange::There(rule, why) => {
                let place = Place::of(&rule);
                self.told.iter_mut().for_each(|told| told.extend(place));
                let mut why = why.map(|why| why.to_string());
                let mut line = Line::There(rule);
                if line.to_string().len() > MOST_BYTES
                    && let Line::There(rule) = &mut line
                {
                    // What the mirror cannot be told is the kernel's to do.
                    rule.actions = vec![RuleAction::Pass];
                    why = Some(format!("it takes more than {MOST_BYTES} bytes to tell"));
                }
                say(&encode(&line))?;
                match place.zip(why) {
                    Some((place, why)) => say(&encode(&Line::Refused(place, why))),
                    None => Ok(()),
                }
            }
        }
    }

    fn write_counters(&self) -> io::Result<()> {
        let text: String = self.used.iter().map(|(place, used)| format!("{place} {used}\n")).collect();
        self.counters.as_ref().map_or(Ok(()), |path| put_in_place(path, &text))
    }
}

/// Returns the line as bytes of the stream.
fn encode(line: &Line) -> Vec<u8> {
    format!("{line}\n").into_bytes()
}

/// Replaces the file at `path` by a new file.
fn put_in_place(path: &Path, text: &str) -> io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    // Other agents may write beside this one, and strangers may have put links there: the new file has a unique name.
    let mut new = tempfile::Builder::new().permissions(Permissions::from_mode(0o666)).tempfile_in(folder)?;
    new.write_all(text.as_bytes())?;
    new.persist(path)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::put_in_place;
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};

    #[test]
    fn counters_touch_no_file_but_their_own() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::write(at("victim"), "precious").unwrap();
        for name in ["rules.new", "rules.p1"] {
            symlink(at("victim"), at(name)).unwrap();
        }
        for (name, text) in [("rules.p1", "one\n"), ("rules.p2", "two\n"), ("rules.p1", "three\n")] {
            put_in_place(&at(name), text).unwrap();
        }
        let read = ["victim", "rules.p1", "rules.p2"].map(|name| fs::read_to_string(at(name)).unwrap());
        assert_eq!(read, ["precious", "three\n", "two\n"]);
        assert!(at("rules.new").is_symlink());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 4, "nothing else is left");
        assert_eq!(at("rules.p1").metadata().unwrap().permissions().mode() & 0o444, 0o444, "monitors read it");
        fs::create_dir(at("folder")).unwrap();
        assert!(put_in_place(&at("folder"), "text").is_err());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 5);
    }
}
