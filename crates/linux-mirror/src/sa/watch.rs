//! A kernel's SAs and policies, from its netlink messages: what is there, then what becomes of it.
//!
//! ```text
//!   handle_datagram: messages --> changes       overrun: the kernel dropped some --> everything is asked for again
//!   poll_request: dump of SAs, then of policies, then defaults; one at a time, for the kernel has one dump a socket
//! ```
//!
//! Invariant: changes between `SnapshotBegins` and `SnapshotEnds` tell of everything that was there when it began and still is.

use crate::dump::{Dump, KernelRefused};
use crate::netlink::{DONE, ERROR, Message, messages};
use crate::sa::change::{Change, Report, SaName};
use crate::sa::xfrm::{kind, policy, request, state};
use std::collections::BTreeMap;

/// What a kernel's netlink messages say, without the socket.
///
/// ```
/// use linux_mirror::sa::Watcher;
///
/// let mut watcher = Watcher::new();
/// let dump = watcher.poll_request().expect("it asks for what is there");
/// assert_eq!(dump[4..6], 0x12u16.to_ne_bytes(), "XFRM_MSG_GETSA");
/// assert!(watcher.poll_request().is_none(), "one at a time");
/// ```
#[derive(Debug)]
pub struct Watcher {
    dump: Dump<Step>,
    /// Whether the mirror knows that a snapshot has begun.
    begun: bool,
    /// The number that the mirror is to hear of when it was told everything.
    sync: Option<u32>,
    /// When each SA was added: the kernel is told what an SA did together with this.
    added: BTreeMap<SaName, u64>,
    malformed: u64,
}

/// What is being asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Sas,
    Policies,
    Defaults,
}

impl Default for Watcher {
    fn default() -> Watcher {
        Watcher::new()
    }
}

impl Watcher {
    /// It begins with a snapshot.
    pub fn new() -> Watcher {
        Watcher { dump: Dump::new(), begun: false, sync: None, added: BTreeMap::new(), malformed: 0 }
    }

    /// Asks for everything again: the kernel dropped messages (`ENOBUFS`), or somebody new listens.
    pub fn ask_again(&mut self) {
        self.dump.again = true;
        // A dump goes on where it was; an answer that is not one of a dump may be among what was dropped.
        if self.dump.step == Some(Step::Defaults) {
            self.dump.step = None;
        }
    }

    /// What the kernel is to be sent next.
    pub fn poll_request(&mut self) -> Option<Vec<u8>> {
        if self.dump.begins() {
            self.begun = false;
            self.dump.ask(Step::Sas, request::dump_sas);
        }
        self.dump.requests.pop_front()
    }

    /// Takes a datagram of the kernel's, at `now` in seconds since 1970, and gives `take` what became of SAs and policies.
    ///
    /// # Errors
    /// If the kernel does not give SAs or policies at all.
    pub fn handle_datagram(
        &mut self,
        now: u64,
        datagram: &[u8],
        mut take: impl FnMut(Change),
    ) -> Result<(), KernelRefused> {
        for message in messages(datagram) {
            match message {
                Some(message) => self.handle_message(now, &message, &mut take)?,
                None => self.malformed += 1,
            }
        }
        Ok(())
    }

    /// Passes on what became of an SA outside, at `now` in seconds since 1970.
    pub fn handle_report(&mut self, now: u64, report: Report) {
        if self.dump.requests.len() >= MOST_REQUESTS {
            return; // the next counters tell as much
        }
        match report {
            Report::Used(name, used) => {
                if let Some(added) = self.added.get(&name) {
                    self.dump.send(|sequence| request::used(sequence, name, used, *added, now));
                }
            }
            Report::Expired(name, hard) => self.dump.send(|sequence| request::expire(sequence, name, hard)),
        }
    }

    /// The mirror is to hear of this number when it was told everything that the kernel has told until now.
    pub fn sync(&mut self, number: u32) {
        self.sync = Some(number);
    }

    /// Whether the mirror waits for a number that only what the kernel has still to tell keeps back.
    pub fn is_synced_next(&self) -> bool {
        self.sync.is_some() && self.dump.is_complete()
    }

    /// There was nothing more to read of the kernel's: the number that the mirror is to hear of. It waits for the end of a snapshot that is
    /// under way or wanted, for that brings what the kernel dropped.
    pub fn poll_synced(&mut self) -> Option<u32> {
        if self.is_synced_next() { self.sync.take() } else { None }
    }

    /// How many messages made no sense.
    pub fn malformed(&self) -> u64 {
        self.malformed
    }

    fn handle_message(
        &mut self,
        now: u64,
        message: &Message<'_>,
        take: &mut impl FnMut(Change),
    ) -> Result<(), KernelRefused> {
        let answered = self.dump.answered_by(message);
        let answers = answered.is_some();
        if answers && !self.begun {
            self.begun = true;
            self.added.clear();
            take(Change::SnapshotBegins);
        }
        match message.kind {
            // It may have ended before all was told.
            DONE if answers => match message.errno() {
                0 => self.go_on(take),
                errno => return Err(KernelRefused::Sas { errno }),
            },
            ERROR if answers => match (message.errno(), answered) {
                (0, _) => {}
                // Before Linux 5.14 there are no defaults: everything passes. Other errors say nothing of the kind.
                (EINVAL, Some(Step::Defaults)) => {
                    take(Change::Defaults { receive: true, transmit: true });
                    self.go_on(take);
                }
                (errno, _) => return Err(KernelRefused::Sas { errno }),
            },
            _ => {
                match self.read(now, message) {
                    Some(change) => change.into_iter().for_each(&mut *take),
                    None => self.malformed += 1,
                }
                if answers && message.kind == kind::GET_DEFAULT {
                    self.go_on(take);
                }
            }
        }
        Ok(())
    }

    /// The last question is answered.
    fn go_on(&mut self, take: &mut impl FnMut(Change)) {
        match self.dump.step {
            None => {}
            Some(Step::Sas) => self.dump.ask(Step::Policies, request::dump_policies),
            Some(Step::Policies) => self.dump.ask(Step::Defaults, request::defaults),
            Some(Step::Defaults) => {
                self.dump.step = None;
                take(Change::SnapshotEnds);
            }
        }
    }

    /// What a message says; outer `None`: it makes no sense, inner: it says nothing about what is mirrored.
    fn read(&mut self, now: u64, message: &Message<'_>) -> Option<Option<Change>> {
        let payload = message.payload;
        Some(match message.kind {
            kind::NEW_SA | kind::UPDATE_SA => {
                let told = state::read(payload, now)?;
                if self.added.len() < MOST_SAS || self.added.contains_key(&told.name) {
                    self.added.insert(told.name, told.added);
                }
                told.into_change()
            }
            kind::DELETE_SA => state::read_deleted(payload)?.map(|name| self.gone(name)),
            kind::EXPIRE => match state::read_expired(payload)? {
                (Some(name), true) => Some(self.gone(name)),
                _ => None,
            },
            kind::FLUSH_SAS => state::is_flush_of_esp(payload)?.then(|| {
                self.added.clear();
                Change::AllSasGone
            }),
            kind::NEW_POLICY | kind::UPDATE_POLICY => policy::read(payload)?.map(Change::Policy),
            kind::DELETE_POLICY => Some(Change::PolicyGone(policy::read_deleted(payload)?)),
            kind::POLICY_EXPIRE => match policy::read_expired(payload)? {
                (index, true) => Some(Change::PolicyGone(index)),
                (_, false) => None,
            },
            kind::FLUSH_POLICIES => policy::is_of_main(payload).then_some(Change::AllPoliciesGone),
            kind::GET_DEFAULT => {
                let (receive, transmit) = policy::read_defaults(payload)?;
                Some(Change::Defaults { receive, transmit })
            }
            _ => None,
        })
    }

    fn gone(&mut self, name: SaName) -> Change {
        self.added.remove(&name);
        Change::SaGone(name)
    }
}

/// How many messages for the kernel wait at most.
const MOST_REQUESTS: usize = 4096;
/// The kernel does not know what it is asked for.
const EINVAL: u32 = 22;
/// Of how many SAs it is known when they were added; the kernel is not told what others did.
const MOST_SAS: usize = 1 << 16;
