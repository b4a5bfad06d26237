//! A watcher of a kernel's SAs and policies: parses netlink messages into a snapshot and later changes.
//!
//! ```text
//!   handle_datagram: messages --> changes       ask_again: the kernel dropped messages --> a new snapshot is requested
//!   poll_request: dump of SAs, then of policies, then defaults; one at a time: a kernel allows one dump per socket
//! ```
//!
//! Invariant: the changes between `SnapshotBegins` and `SnapshotEnds` cover all SAs and policies that existed at the
//! start and still exist.

use crate::dump::{KernelError, PendingDump};
use crate::netlink::{DONE, ERROR, Message, messages};
use crate::sa::change::{KernelSaId, SaChange, SaReport};
use crate::sa::xfrm::{kind, policy, request, state};
use std::collections::BTreeMap;

/// A watcher of a kernel's SAs and policies, without the socket.
///
/// ```
/// use linux_mirror::sa::SaWatcher;
///
/// let mut watcher = SaWatcher::new();
/// let dump = watcher.poll_request().expect("the watcher first requests a dump");
/// assert_eq!(dump[4..6], 0x12u16.to_ne_bytes(), "XFRM_MSG_GETSA");
/// assert!(watcher.poll_request().is_none(), "one dump at a time");
/// ```
#[derive(Debug)]
pub struct SaWatcher {
    dump: PendingDump<SaDumpStep>,
    /// Whether the mirror knows that a snapshot has begun.
    begun: bool,
    /// Number of the mirror's pending sync.
    sync: Option<u32>,
    /// Creation time of each SA, which the kernel needs together with the SA's use.
    added: BTreeMap<KernelSaId, u64>,
    malformed: u64,
}

/// A query of a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SaDumpStep {
    Sas,
    Policies,
    Defaults,
}

impl Default for SaWatcher {
    fn default() -> SaWatcher {
        SaWatcher::new()
    }
}

impl SaWatcher {
    /// Returns a watcher that begins with a snapshot.
    pub fn new() -> SaWatcher {
        SaWatcher { dump: PendingDump::new(), begun: false, sync: None, added: BTreeMap::new(), malformed: 0 }
    }

    /// Requests a new snapshot, because the kernel dropped messages (`ENOBUFS`) or a new mirror listens.
    pub fn request_snapshot(&mut self) {
        self.dump.again = true;
        // A dump continues after dropped messages. The answer on defaults is not a dump, and may be among the dropped
        // messages.
        if self.dump.step == Some(SaDumpStep::Defaults) {
            self.dump.step = None;
        }
    }

    /// Returns the next message for the kernel.
    pub fn poll_request(&mut self) -> Option<Vec<u8>> {
        if self.dump.poll_start() {
            self.begun = false;
            self.dump.query(SaDumpStep::Sas, request::dump_sas);
        }
        self.dump.requests.pop_front()
    }

    /// Parses a datagram of the kernel, and passes the changes to `take`. `now` is in seconds since 1970.
    ///
    /// # Errors
    /// Fails if the kernel refuses to list SAs or policies.
    pub fn handle_datagram(
        &mut self,
        now: u64,
        datagram: &[u8],
        mut take: impl FnMut(SaChange),
    ) -> Result<(), KernelError> {
        for message in messages(datagram) {
            match message {
                Some(message) => self.handle_message(now, &message, &mut take)?,
                None => self.malformed += 1,
            }
        }
        Ok(())
    }

    /// Passes a report of the mirror on to the kernel. `now` is in seconds since 1970.
    pub fn handle_report(&mut self, now: u64, report: SaReport) {
        if self.dump.requests.len() >= MAX_REQUESTS {
            return; // the next report contains the same totals
        }
        match report {
            SaReport::Used(name, used) => {
                if let Some(added) = self.added.get(&name) {
                    self.dump.send(|sequence| request::use_message(sequence, name, used, *added, now));
                }
            }
            SaReport::Expired(name, hard) => self.dump.send(|sequence| request::expire(sequence, name, hard)),
        }
    }

    /// Starts a sync: the mirror gets this number after all pending messages of the kernel.
    pub fn sync(&mut self, number: u32) {
        self.sync = Some(number);
    }

    /// Returns whether only the kernel's pending messages delay the sync.
    pub fn is_synced_next(&self) -> bool {
        self.sync.is_some() && self.dump.is_complete()
    }

    /// Returns the number of the completed sync, if no message of the kernel is pending. A sync also waits for a
    /// snapshot that is under way or requested, because it covers dropped messages.
    pub fn poll_synced(&mut self) -> Option<u32> {
        if self.is_synced_next() { self.sync.take() } else { None }
    }

    /// Returns the number of malformed messages.
    pub fn malformed(&self) -> u64 {
        self.malformed
    }

    fn handle_message(
        &mut self,
        now: u64,
        message: &Message<'_>,
        take: &mut impl FnMut(SaChange),
    ) -> Result<(), KernelError> {
        let answered = self.dump.query_answered_by(message);
        let answers = answered.is_some();
        // The snapshot begins with the first answer, so that it covers everything from the dump's start on.
        if answers && !self.begun {
            self.begun = true;
            self.added.clear();
            take(SaChange::SnapshotBegins);
        }
        match message.kind {
            // A dump may end early with an error.
            DONE if answers => match message.errno() {
                0 => self.continue_dump(take),
                errno => return Err(KernelError::Sas { errno }),
            },
            ERROR if answers => match (message.errno(), answered) {
                (0, _) => {}
                // Linux before 5.14 has no defaults: everything passes. Other errors mean something else.
                (EINVAL, Some(SaDumpStep::Defaults)) => {
                    take(SaChange::Defaults { receive: true, transmit: true });
                    self.continue_dump(take);
                }
                (errno, _) => return Err(KernelError::Sas { errno }),
            },
            _ => {
                match self.read(now, message) {
                    Some(change) => change.into_iter().for_each(&mut *take),
                    None => self.malformed += 1,
                }
                if answers && message.kind == kind::GET_DEFAULT {
                    self.continue_dump(take);
                }
            }
        }
        Ok(())
    }

    /// Continues the snapshot with the next query.
    fn continue_dump(&mut self, take: &mut impl FnMut(SaChange)) {
        match self.dump.step {
            None => {}
            Some(SaDumpStep::Sas) => self.dump.query(SaDumpStep::Policies, request::dump_policies),
            Some(SaDumpStep::Policies) => self.dump.query(SaDumpStep::Defaults, request::defaults),
            Some(SaDumpStep::Defaults) => {
                self.dump.step = None;
                take(SaChange::SnapshotEnds);
            }
        }
    }

    /// Parses a message. The outer `None` means a malformed message, the inner one a message without relevance.
    fn read(&mut self, now: u64, message: &Message<'_>) -> Option<Option<SaChange>> {
        let payload = message.payload;
        Some(match message.kind {
            kind::NEW_SA | kind::UPDATE_SA => {
                let told = state::read(payload, now)?;
                // The bound protects the agent from a kernel with endless SAs.
                if self.added.len() < MAX_TRACKED_SAS || self.added.contains_key(&told.name) {
                    self.added.insert(told.name, told.added);
                }
                told.into_change()
            }
            // Deletions and expiries of other protocols are ignored, because their SAs are not mirrored.
            kind::DELETE_SA => state::read_deleted(payload)?.map(|name| self.note_deletion(name)),
            kind::EXPIRE => match state::read_expired(payload)? {
                (Some(name), true) => Some(self.note_deletion(name)),
                _ => None,
            },
            kind::FLUSH_SAS => state::is_flush_of_esp(payload)?.then(|| {
                self.added.clear();
                SaChange::AllSasGone
            }),
            kind::NEW_POLICY | kind::UPDATE_POLICY => policy::read(payload)?.map(SaChange::Policy),
            kind::DELETE_POLICY => Some(SaChange::PolicyGone(policy::read_deleted(payload)?)),
            // A soft expiry changes nothing yet; only a hard one deletes the policy.
            kind::POLICY_EXPIRE => match policy::read_expired(payload)? {
                (index, true) => Some(SaChange::PolicyGone(index)),
                (_, false) => None,
            },
            kind::FLUSH_POLICIES => policy::is_of_main(payload).then_some(SaChange::AllPoliciesGone),
            kind::GET_DEFAULT => {
                let (receive, transmit) = policy::read_defaults(payload)?;
                Some(SaChange::Defaults { receive, transmit })
            }
            _ => None,
        })
    }

    fn note_deletion(&mut self, name: KernelSaId) -> SaChange {
        self.added.remove(&name);
        SaChange::SaGone(name)
    }
}

/// Maximum number of pending messages for the kernel.
const MAX_REQUESTS: usize = 4096;
/// Error number of a kernel that does not know the request.
const EINVAL: u32 = 22;
/// Maximum number of SAs with a known creation time. For others, the kernel gets no counters.
const MAX_TRACKED_SAS: usize = 1 << 16;
