//! The kernel's side: an agent that reads netlink, and writes what it finds to the mirror.

use crate::line::{Line, MOST_BYTES, Place, Reader, Used, VERSION};
use crate::watch::{FilterChange, Watcher};
use nic_switch::Action;
use sa_mirror::{Channel, Family, Heard, Kernel};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::Permissions;
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// An agent between a kernel and a mirror.
///
/// ```
/// use std::io::ErrorKind;
/// use std::path::Path;
/// use tc_mirror::Agent;
///
/// match Agent::connect(Path::new("/run/filters of a mirror"), None) {
///     Ok(agent) => eprintln!("the mirror has gone: {}", agent.run()),
///     Err(error) => assert_eq!(error.kind(), ErrorKind::NotFound, "nobody is there"),
/// }
/// ```
#[derive(Debug)]
pub struct Agent {
    kernel: Kernel,
    channel: Channel,
    watcher: Watcher,
    reader: Reader,
    /// What rules did, and where that is written.
    used: BTreeMap<Place, Used>,
    counters: Option<PathBuf>,
    /// What the kernel has told since it began to tell of everything: with a qdisc, filters go that it does not tell of.
    told: Option<BTreeSet<Place>>,
}

impl Agent {
    /// An agent for the mirror that listens at `path`, or is at the other end of the virtio-serial port there. What rules did in the
    /// switch is written to `counters`, a line each.
    ///
    /// # Errors
    /// If nobody is there.
    pub fn connect(path: &Path, counters: Option<&Path>) -> io::Result<Agent> {
        let channel = Channel::connect(path)?;
        let kernel = Kernel::connect(Family::Route, GROUPS)?;
        Ok(Agent {
            kernel,
            channel,
            watcher: Watcher::new(),
            reader: Reader::new(),
            used: BTreeMap::new(),
            counters: counters.map(Path::to_owned),
            told: None,
        })
    }

    /// Mirrors until the other end goes, or the kernel gives no filters: the error says so.
    pub fn run(mut self) -> io::Error {
        match self.mirror() {
            Ok(never) => match never {},
            Err(error) => error,
        }
    }

    fn mirror(&mut self) -> io::Result<core::convert::Infallible> {
        // What another agent left unsaid ends here.
        self.channel.write_all(b"\n")?;
        self.say(&Line::Hello(VERSION))?;
        loop {
            while let Some(request) = self.watcher.poll_request() {
                self.kernel.send(&request)?;
            }
            let [kernel, mirror] = self.kernel.wait(&self.channel, false)?;
            if kernel {
                self.hear_kernel()?;
            }
            if mirror {
                self.hear_mirror()?;
            }
        }
    }

    fn hear_kernel(&mut self) -> io::Result<()> {
        let (watcher, mut changes) = (&mut self.watcher, Vec::new());
        let heard = self.kernel.hear(|heard| match heard {
            Heard::Datagram(datagram) => watcher.handle_datagram(datagram, |change| changes.push(change)),
            Heard::Lost => {
                watcher.ask_again();
                Ok(())
            }
        })?;
        let handled = heard.unwrap_or(Ok(()));
        let known = self.used.len();
        for change in changes {
            self.pass_on(change)?;
        }
        if self.used.len() < known {
            self.write_counters()?;
        }
        handled.map_err(io::Error::other)
    }

    fn pass_on(&mut self, change: FilterChange) -> io::Result<()> {
        match change {
            FilterChange::Begins => {
                self.told = Some(BTreeSet::new());
                self.say(&Line::Begins)
            }
            FilterChange::Ends => {
                if let Some(told) = self.told.take() {
                    self.used.retain(|place, _| told.contains(place));
                }
                self.say(&Line::Ends)
            }
            FilterChange::Gone(selection) => {
                self.used
                    .retain(|place, _| !selection.includes(place.device, place.chain, place.priority, place.handle));
                self.say(&Line::Gone(selection))
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
                    rule.actions = vec![Action::Pass];
                    why = Some(format!("it takes more than {MOST_BYTES} bytes to tell"));
                }
                self.say(&line)?;
                match place.zip(why) {
                    Some((place, why)) => self.say(&Line::Refused(place, why)),
                    None => Ok(()),
                }
            }
        }
    }

    fn hear_mirror(&mut self) -> io::Result<()> {
        let mut bytes = [0; 4096];
        let length = self.channel.read(&mut bytes)?;
        let (mut asked, mut used) = (false, Vec::new());
        self.reader.read(&bytes[..length], |line| match line {
            Ok(Line::Ask(_)) => asked = true,
            Ok(Line::Used(place, what)) => used.push((place, what)),
            // The end of what was for another agent.
            _ => {}
        });
        if !used.is_empty() {
            self.used.extend(used);
            self.write_counters()?;
        }
        if asked {
            self.watcher.ask_again();
            self.say(&Line::Hello(VERSION))?;
        }
        Ok(())
    }

    fn write_counters(&self) -> io::Result<()> {
        let text: String = self.used.iter().map(|(place, used)| format!("{place} {used}\n")).collect();
        self.counters.as_ref().map_or(Ok(()), |path| put_in_place(path, &text))
    }

    fn say(&mut self, line: &Line) -> io::Result<()> {
        self.channel.write_all(format!("{line}\n").as_bytes())
    }
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

/// The groups LINK and TC, a bit each.
const GROUPS: u32 = 1 | 1 << 3;

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
