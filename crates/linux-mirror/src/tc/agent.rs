//! The agent's side for filters.

use crate::agent::{MirroredState, WriteToMirror};
use crate::tc::line::{FilterLine, LineReader, MAX_LINE_BYTES, RuleId, RuleUse, VERSION};
use crate::tc::watch::{FilterChange, FilterWatcher};
use nic_switch::RuleAction;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::Permissions;
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use zeroize::Zeroizing;

/// The kernel's filters, as mirrored by an agent.
pub(crate) struct FilterAgentState {
    watcher: FilterWatcher,
    reader: LineReader,
    /// Use of each rule in the switch.
    used: BTreeMap<RuleId, RuleUse>,
    /// File for the use of the rules.
    counters: Option<PathBuf>,
    /// Filters that the kernel has listed since the current snapshot began. Filters deleted with a qdisc are not
    /// announced, so only a snapshot reveals that they are gone.
    told: Option<BTreeSet<RuleId>>,
}

impl MirroredState for FilterAgentState {
    fn hello(&self) -> Zeroizing<Vec<u8>> {
        // The empty line ends an incomplete line of a previous agent.
        Zeroizing::new([b"\n", &encode(&FilterLine::Hello(VERSION))[..]].concat())
    }

    fn poll_request(&mut self) -> Option<Vec<u8>> {
        self.watcher.poll_request()
    }

    fn request_snapshot(&mut self) {
        self.watcher.request_snapshot();
    }

    fn handle_kernel(&mut self, datagram: &[u8], say: &mut WriteToMirror<'_>) -> io::Result<()> {
        let mut changes = Vec::new();
        let handled = self.watcher.handle_datagram(datagram, |change| changes.push(change));
        let known = self.used.len();
        for change in changes {
            self.pass_on(change, say)?;
        }
        // Deleted filters leave the counters file at once, so that a monitor does not see stale rules.
        if self.used.len() < known {
            self.write_counters()?;
        }
        handled.map_err(io::Error::other)
    }

    fn handle_mirror(&mut self, bytes: &[u8]) -> io::Result<bool> {
        let (mut asked, mut used) = (false, Vec::new());
        self.reader.read(bytes, |line| match line {
            Ok(FilterLine::Ask(_)) => asked = true,
            Ok(FilterLine::Used(place, what)) => used.push((place, what)),
            // The end of a line for a previous agent.
            _ => {}
        });
        if !used.is_empty() {
            self.used.extend(used);
            self.write_counters()?;
        }
        Ok(asked)
    }
}

impl FilterAgentState {
    pub(crate) fn new(counters: Option<&Path>) -> FilterAgentState {
        FilterAgentState {
            watcher: FilterWatcher::new(),
            reader: LineReader::new(),
            used: BTreeMap::new(),
            counters: counters.map(Path::to_owned),
            told: None,
        }
    }

    fn pass_on(&mut self, change: FilterChange, say: &mut WriteToMirror<'_>) -> io::Result<()> {
        match change {
            FilterChange::Begins => {
                self.told = Some(BTreeSet::new());
                say(&encode(&FilterLine::Begins))
            }
            FilterChange::Ends => {
                if let Some(told) = self.told.take() {
                    self.used.retain(|place, _| told.contains(place));
                }
                say(&encode(&FilterLine::Ends))
            }
            FilterChange::Gone(selection) => {
                self.used
                    .retain(|place, _| !selection.includes(place.device, place.chain, place.priority, place.handle));
                say(&encode(&FilterLine::Gone(selection)))
            }
            FilterChange::There(rule, why) => {
                let place = RuleId::from_rule(&rule);
                self.told.iter_mut().for_each(|told| told.extend(place));
                let mut why = why.map(|why| why.to_string());
                let mut line = FilterLine::There(rule);
                if line.to_string().len() > MAX_LINE_BYTES
                    && let FilterLine::There(rule) = &mut line
                {
                    // The mirror cannot be told the rule, so its frames are left to the kernel.
                    rule.actions = vec![RuleAction::Pass];
                    why = Some(format!("its line exceeds {MAX_LINE_BYTES} bytes"));
                }
                say(&encode(&line))?;
                match place.zip(why) {
                    Some((place, why)) => say(&encode(&FilterLine::Refused(place, why))),
                    None => Ok(()),
                }
            }
        }
    }

    fn write_counters(&self) -> io::Result<()> {
        let text: String = self.used.iter().map(|(place, used)| format!("{place} {used}\n")).collect();
        self.counters.as_ref().map_or(Ok(()), |path| replace_file(path, &text))
    }
}

/// Returns the line as bytes of the stream.
fn encode(line: &FilterLine) -> Vec<u8> {
    format!("{line}\n").into_bytes()
}

/// Replaces the file at `path` by a new file.
fn replace_file(path: &Path, text: &str) -> io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    // Other agents may write in this folder, and strangers may have placed links there: the new file has a unique name.
    let mut new = tempfile::Builder::new().permissions(Permissions::from_mode(0o666)).tempfile_in(folder)?;
    new.write_all(text.as_bytes())?;
    new.persist(path)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::replace_file;
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
            replace_file(&at(name), text).unwrap();
        }
        let read = ["victim", "rules.p1", "rules.p2"].map(|name| fs::read_to_string(at(name)).unwrap());
        assert_eq!(read, ["precious", "three\n", "two\n"]);
        assert!(at("rules.new").is_symlink());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 4, "no temporary file may be left");
        assert_eq!(
            at("rules.p1").metadata().unwrap().permissions().mode() & 0o444,
            0o444,
            "the file must be readable for monitors"
        );
        fs::create_dir(at("folder")).unwrap();
        assert!(replace_file(&at("folder"), "text").is_err());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 5);
    }
}
