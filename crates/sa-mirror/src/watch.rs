//! A kernel's SAs and policies, from its netlink messages: what is there, then what becomes of it.
//!
//! ```text
//!   handle_datagram: messages --> changes       overrun: the kernel dropped some --> everything is asked for again
//!   poll_request: dump of SAs, then of policies, then defaults; one at a time, for the kernel has one dump a socket
//! ```
//!
//! Invariant: changes between `SnapshotBegins` and `SnapshotEnds` tell of everything that was there when it began and still is.

use crate::change::{Change, Report, SaName};
use crate::netlink::{Message, kind, messages, policy, request, state};
use std::collections::{BTreeMap, VecDeque};

/// What a kernel's netlink messages say, without the socket.
///
/// ```
/// use sa_mirror::Watcher;
///
/// let mut watcher = Watcher::new();
/// let dump = watcher.poll_request().expect("it asks for what is there");
/// assert_eq!(dump[4..6], 0x12u16.to_ne_bytes(), "XFRM_MSG_GETSA");
/// assert!(watcher.poll_request().is_none(), "one at a time");
/// ```
#[derive(Debug)]
pub struct Watcher {
    step: Step,
    /// The sequence number of what was asked for last, by which answers are known.
    asked: u32,
    /// Whether the mirror knows that a snapshot has begun.
    begun: bool,
    /// Another snapshot is to follow this one.
    again: bool,
    /// The number that the mirror is to hear of when it was told everything.
    sync: Option<u32>,
    sequence: u32,
    requests: VecDeque<Vec<u8>>,
    /// When each SA was added: the kernel is told what an SA did together with this.
    added: BTreeMap<SaName, u64>,
    malformed: u64,
}

/// What is being asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Nothing,
    Sas,
    Policies,
    Defaults,
}

/// The kernel does not give its SAs or policies.
///
/// ```
/// let refused = sa_mirror::KernelRefused { errno: 1 };
/// assert_eq!(refused.to_string(), "the kernel gives no SAs (errno 1): the agent needs CAP_NET_ADMIN, and the kernel XFRM_USER");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the kernel gives no SAs (errno {errno}): the agent needs CAP_NET_ADMIN, and the kernel XFRM_USER")]
pub struct KernelRefused {
    /// Linux's number of the error.
    pub errno: u32,
}

impl Default for Watcher {
    fn default() -> Watcher {
        Watcher::new()
    }
}

impl Watcher {
    /// It begins with a snapshot.
    pub fn new() -> Watcher {
        Watcher {
            step: Step::Nothing,
            asked: 0,
            begun: false,
            again: true,
            sync: None,
            sequence: 0,
            requests: VecDeque::new(),
            added: BTreeMap::new(),
            malformed: 0,
        }
    }

    /// Asks for everything again: the kernel dropped messages (`ENOBUFS`), or somebody new listens.
    pub fn ask_again(&mut self) {
        self.again = true;
        // A dump goes on where it was; an answer that is not one of a dump may be among what was dropped.
        if self.step == Step::Defaults {
            self.step = Step::Nothing;
        }
    }

    /// What the kernel is to be sent next.
    pub fn poll_request(&mut self) -> Option<Vec<u8>> {
        if self.step == Step::Nothing && self.again {
            (self.again, self.begun) = (false, false);
            self.ask(Step::Sas);
        }
        self.requests.pop_front()
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
        if self.requests.len() >= MOST_REQUESTS {
            return; // the next counters tell as much
        }
        self.sequence = self.sequence.wrapping_add(1);
        self.requests.extend(match report {
            Report::Used(name, used) => {
                self.added.get(&name).map(|added| request::used(self.sequence, name, used, *added, now))
            }
            Report::Expired(name, hard) => Some(request::expire(self.sequence, name, hard)),
        });
    }

    /// The mirror is to hear of this number when it was told everything that the kernel has told until now.
    pub fn sync(&mut self, number: u32) {
        self.sync = Some(number);
    }

    /// Whether the mirror waits for a number that only what the kernel has still to tell keeps back.
    pub fn is_synced_next(&self) -> bool {
        self.sync.is_some() && self.step == Step::Nothing && !self.again
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

    fn ask(&mut self, step: Step) {
        self.step = step;
        self.sequence = self.sequence.wrapping_add(1);
        self.asked = self.sequence;
        self.requests.extend(match step {
            Step::Sas => Some(request::dump_sas(self.asked)),
            Step::Policies => Some(request::dump_policies(self.asked)),
            Step::Defaults => Some(request::defaults(self.asked)),
            Step::Nothing => None,
        });
    }

    fn handle_message(
        &mut self,
        now: u64,
        message: &Message<'_>,
        take: &mut impl FnMut(Change),
    ) -> Result<(), KernelRefused> {
        let answers = self.step != Step::Nothing && message.sequence == self.asked;
        if answers && !self.begun {
            self.begun = true;
            self.added.clear();
            take(Change::SnapshotBegins);
        }
        // What changed while it was read may be there twice, or not at all.
        self.again |= answers && message.is_interrupted();
        match message.kind {
            // It may have ended before all was told.
            kind::DONE if answers => match message.errno() {
                0 => self.go_on(take),
                errno => return Err(KernelRefused { errno }),
            },
            kind::ERROR if answers => match (message.errno(), self.step) {
                (0, _) => {}
                // Before Linux 5.14 there are no defaults: everything passes. Other errors say nothing of the kind.
                (EINVAL, Step::Defaults) => {
                    take(Change::Defaults { receive: true, transmit: true });
                    self.go_on(take);
                }
                (errno, _) => return Err(KernelRefused { errno }),
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
        match self.step {
            Step::Nothing => {}
            Step::Sas => self.ask(Step::Policies),
            Step::Policies => self.ask(Step::Defaults),
            Step::Defaults => {
                self.step = Step::Nothing;
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
