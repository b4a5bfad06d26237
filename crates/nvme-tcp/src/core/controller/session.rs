//! State of one controller, from the Connect of its admin queue to its end.

use super::bell::ConnectionBell;
use super::connection::ConnectionId;
use super::work::{Backlog, QueueWork};
use crate::wire::{
    CC_ENABLE, CC_SHUTDOWN, CSTS_READY, CSTS_SHUT_DOWN, CSTS_SHUTTING_DOWN, DISCOVERY_NQN, ErrorEntry, Notices, log,
};
use core::time::Duration;
use offload_base::Instant;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

#[derive(Debug)]
pub(super) struct Session {
    subsystem: String,
    pub(super) host: String,
    pub(super) host_id: [u8; 16],
    admin: ConnectionId,
    /// I/O queues by identifier, with their connections and running commands.
    queues: BTreeMap<u16, (ConnectionId, Arc<QueueWork>)>,
    /// Running commands of lost connections, by queue identifier.
    left_behind: BTreeMap<u16, Backlog>,
    /// Running commands from before a reset, and of the host's earlier controllers.
    unfinished: Backlog,
    configuration: u32,
    status: u32,
    keep_alive: Duration,
    /// The stage at the last call of [`watch`](Self::watch).
    stage: ControllerStage,
    last_heard: Instant,
    /// Time of the host's last I/O command.
    last_used: Instant,
    pub(super) began: Instant,
    pub(super) features: super::features::Features,
    errors: VecDeque<ErrorEntry>,
    error_count: u64,
    /// Identifiers of waiting Asynchronous Event Requests.
    waiting: VecDeque<u16>,
    changed: BTreeSet<u32>,
    discovery_changed: bool,
    /// Reported to the host, and the log not read since. Not reported again.
    told_namespaces: bool,
    told_discovery: bool,
}

/// The stage in the controller's life, which decides the host's deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ControllerStage {
    /// The host must enable the controller or disconnect.
    Idle,
    /// The host waits until the controller is ready or shut down.
    Busy,
    /// The host must keep the controller alive.
    Active,
}

/// Connections and commands that a reset ends.
#[derive(Debug, Default)]
pub(super) struct ControllerReset {
    /// Connections of the I/O queues.
    pub(super) queues: Vec<ConnectionId>,
    /// Identifiers of waiting Asynchronous Event Requests.
    pub(super) waiting: Vec<u16>,
}

/// An event that can be reported to hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EventNotice {
    /// A namespace was added, removed or changed.
    Namespace(u32),
    /// The discovery log changed.
    Discovery,
}

impl Session {
    pub(super) fn new(
        subsystem: String,
        host: String,
        host_id: [u8; 16],
        admin: ConnectionId,
        now: Instant,
        keep_alive: Duration,
        unfinished: Backlog,
    ) -> Session {
        Session {
            subsystem,
            host,
            host_id,
            admin,
            queues: BTreeMap::new(),
            left_behind: BTreeMap::new(),
            unfinished,
            // The controller is disabled, with the register values after a reset.
            configuration: 0,
            status: 0,
            keep_alive,
            stage: ControllerStage::Idle,
            // The timers begin with the Connect, as if the host had just been heard.
            last_heard: now,
            last_used: now,
            began: now,
            features: Default::default(),
            errors: VecDeque::new(),
            error_count: 0,
            waiting: VecDeque::new(),
            changed: BTreeSet::new(),
            discovery_changed: false,
            told_namespaces: false,
            told_discovery: false,
        }
    }

    pub(super) fn subsystem(&self) -> &str {
        &self.subsystem
    }

    pub(super) fn is_discovery(&self) -> bool {
        self.subsystem == DISCOVERY_NQN
    }

    pub(super) fn admin(&self) -> ConnectionId {
        self.admin
    }

    pub(super) fn queues(&self) -> impl Iterator<Item = ConnectionId> + '_ {
        self.queues.values().map(|(connection, _)| *connection)
    }

    pub(super) fn has_queue(&self, id: u16, connection: ConnectionId) -> bool {
        self.queues.get(&id).is_some_and(|(queue, _)| *queue == connection)
    }

    pub(super) fn queue_exists(&self, id: u16) -> bool {
        self.queues.contains_key(&id)
    }

    /// Adds queue `id`. Returns the tracker of its commands, and the commands of the queue's earlier connections that
    /// must end first. `None` if the queue exists.
    pub(super) fn add_queue(
        &mut self,
        id: u16,
        connection: ConnectionId,
        bell: &Arc<ConnectionBell>,
    ) -> Option<(Arc<QueueWork>, Backlog)> {
        if self.queue_exists(id) {
            return None;
        }
        let work = QueueWork::new(bell);
        self.queues.insert(id, (connection, work.clone()));
        Some((work, self.left_behind.get(&id).cloned().unwrap_or_default()))
    }

    /// Marks an I/O command as aborted. Returns the connection to wake.
    pub(super) fn abort_io(&self, queue: u16, command: u16) -> Option<ConnectionId> {
        let (connection, work) = self.queues.get(&queue)?;
        work.abort(command);
        Some(*connection)
    }

    pub(super) fn remove_queue(&mut self, id: u16, connection: ConnectionId) {
        if self.has_queue(id, connection)
            && let Some((_, work)) = self.queues.remove(&id)
        {
            self.left_behind.entry(id).or_default().extend([work.end()]);
            self.left_behind.retain(|_, under_way| !under_way.prune());
        }
    }

    pub(super) fn configuration(&self) -> u32 {
        self.configuration
    }

    pub(super) fn status(&self) -> u32 {
        // Not ready while commands from before the last reset, or of an earlier controller, are running.
        if self.unfinished.is_over() { self.status } else { self.status & !CSTS_READY }
    }

    pub(super) fn is_ready(&self) -> bool {
        self.status() & CSTS_READY != 0
    }

    /// Writes CC.
    pub(super) fn configure(&mut self, value: u32) -> ControllerReset {
        let before = core::mem::replace(&mut self.configuration, value);
        let mut reset = ControllerReset::default();
        if value & CC_ENABLE == 0 && before & CC_ENABLE != 0 {
            // A controller reset removes the I/O queues and the event requests, and restores the features.
            reset.queues.extend(self.queues());
            reset.waiting.extend(core::mem::take(&mut self.waiting));
            self.features = Default::default();
            // Changes that were reported before the reset are reported again, because their event requests are gone.
            (self.told_namespaces, self.told_discovery) = (false, false);
            self.end_work();
            self.queues.clear();
        }
        self.status = if value & CC_ENABLE != 0 { CSTS_READY } else { 0 };
        if value & CC_SHUTDOWN != 0 {
            self.status |= CSTS_SHUTTING_DOWN;
        }
        reset
    }

    /// Notes the end of a shutdown's flushes, successful or not.
    pub(super) fn shut_down(&mut self) {
        if self.status & CSTS_SHUTTING_DOWN != 0 {
            self.status = self.status & !CSTS_SHUTTING_DOWN | CSTS_SHUT_DOWN;
        }
    }

    /// Prevents further commands from beginning. Returns the running ones.
    pub(super) fn end_work(&mut self) -> &Backlog {
        self.unfinished.extend(self.queues.values().map(|(_, work)| work.end()));
        for under_way in core::mem::take(&mut self.left_behind).into_values() {
            self.unfinished.extend(under_way.iter().cloned());
        }
        &self.unfinished
    }

    /// Returns all running commands of all connections.
    pub(super) fn under_way(&self) -> Backlog {
        let mut under_way = self.unfinished.clone();
        under_way.extend(self.queues.values().map(|(_, work)| work.backlog()));
        under_way.extend(self.left_behind.values().flat_map(|under_way| under_way.iter().cloned()));
        under_way
    }

    pub(super) fn keep_alive(&self) -> Duration {
        self.keep_alive
    }

    pub(super) fn set_keep_alive(&mut self, now: Instant, keep_alive: Duration) {
        self.keep_alive = keep_alive;
        self.note_contact(now);
    }

    /// Restarts the keep-alive timer.
    pub(super) fn note_contact(&mut self, now: Instant) {
        self.last_heard = now;
    }

    /// Notes an I/O command. It does not restart the keep-alive timer of the admin queue.
    pub(super) fn note_use(&mut self, now: Instant) {
        self.last_used = now;
    }

    /// Notes a property access, which restarts the timer unless the controller is active.
    pub(super) fn note_property_access(&mut self, now: Instant) {
        self.watch(now);
        if self.stage != ControllerStage::Active {
            self.note_contact(now);
        }
    }

    /// Updates the stage, which decides whether the keep-alive timer runs.
    ///
    /// NVM Express Base Specification 2.0, 3.9: the timer is active while CC.EN = 1, CSTS.RDY = 1, CC.SHN = 0 and
    /// CSTS.SHST = 0. A host can send no Keep Alive before, and need not send one later.
    pub(super) fn watch(&mut self, now: Instant) {
        let stage = if self.configuration & CC_ENABLE == 0 || self.status & CSTS_SHUT_DOWN != 0 {
            ControllerStage::Idle
        } else if self.configuration & CC_SHUTDOWN != 0 || !self.unfinished.is_over_or_registers(self.admin) {
            ControllerStage::Busy
        } else {
            ControllerStage::Active
        };
        if stage != self.stage {
            self.stage = stage;
            self.note_contact(now);
        }
    }

    /// Returns when the keep-alive timer was last restarted.
    pub(super) fn last_heard(&self) -> Instant {
        self.last_heard
    }

    /// Returns when the host counts as lost; `None` if there is no deadline.
    pub(super) fn alive_until(&self) -> Option<Instant> {
        match self.stage {
            ControllerStage::Idle => Some(self.last_heard + IDLE_TIME),
            ControllerStage::Busy => None,
            // KATO is rounded up to KAS units, which are seconds here.
            ControllerStage::Active => Some(self.keep_alive.as_millis().div_ceil(1000) as u64)
                .filter(|seconds| *seconds > 0)
                .map(|seconds| self.last_heard + Duration::from_secs(seconds)),
        }
    }

    /// Returns whether the controller may be replaced for another host at `now`, with a sort key: smaller keys go
    /// first. Either the host had time to connect I/O queues and has none, or it promised no keep-alive and is silent.
    pub(super) fn replacement_order(&self, now: Instant) -> Option<(bool, Instant)> {
        if self.queues.is_empty() {
            // A controller without I/O queues serves nobody, so a keep-alive does not protect it.
            let is_old = now.saturating_since(self.began) >= SETUP_TIME;
            return is_old.then_some((false, self.last_heard));
        }
        let last = self.last_heard.max(self.last_used);
        let is_silent = now.saturating_since(last) >= IDLE_TIME;
        let promised_nothing = self.keep_alive.is_zero() || self.keep_alive >= LONG_KEEP_ALIVE;
        (is_silent && promised_nothing).then_some((true, last))
    }

    pub(super) fn record_error(&mut self, entry: ErrorEntry) {
        self.error_count += 1;
        self.errors.push_front(ErrorEntry { count: self.error_count, ..entry });
        self.errors.truncate(ERROR_ENTRIES);
    }

    pub(super) fn errors(&self) -> impl Iterator<Item = &ErrorEntry> {
        self.errors.iter()
    }

    pub(super) fn error_count(&self) -> u64 {
        self.error_count
    }

    pub(super) fn notice(&mut self, notice: EventNotice) {
        match notice {
            EventNotice::Namespace(id) => {
                self.changed.insert(id);
            }
            EventNotice::Discovery => self.discovery_changed = true,
        }
    }

    /// Returns the changed-namespace log, and clears it unless `retain`.
    pub(super) fn changed_namespaces(&mut self, retain: bool) -> Vec<u8> {
        let page = log::changed_namespaces(self.changed.iter().copied());
        if !retain {
            self.changed.clear();
            self.told_namespaces = false;
        }
        page
    }

    /// Notes that the discovery log was read.
    pub(super) fn discovery_read(&mut self) {
        self.discovery_changed = false;
        self.told_discovery = false;
    }

    /// Takes an Asynchronous Event Request. Returns false if there are too many.
    pub(super) fn wait_for_event(&mut self, command: u16) -> bool {
        if self.waiting.len() > usize::from(EVENT_REQUESTS) {
            return false;
        }
        self.waiting.push_back(command);
        true
    }

    /// Removes a waiting request. Returns whether there was one.
    pub(super) fn remove_event_request(&mut self, command: u16) -> bool {
        let before = self.waiting.len();
        self.waiting.retain(|waiting| *waiting != command);
        self.waiting.len() != before
    }

    /// Returns the next event to report, with the identifier of the request it answers.
    pub(super) fn poll_event(&mut self) -> Option<(u16, u64)> {
        let enabled = self.features.notices();
        let event = if !self.told_namespaces && !self.changed.is_empty() && enabled.has(Notices::NAMESPACES) {
            notice(0x00, log::page::CHANGED_NAMESPACES)
        } else if !self.told_discovery && self.discovery_changed && enabled.has(Notices::DISCOVERY) {
            notice(0xf0, log::page::DISCOVERY)
        } else {
            return None;
        };
        // The change stays recorded if no request waits. It is then reported with the next request.
        let command = self.waiting.pop_front()?;
        if event == notice(0x00, log::page::CHANGED_NAMESPACES) {
            self.told_namespaces = true;
        } else {
            self.told_discovery = true;
        }
        Some((command, event))
    }
}

/// Returns the result of an Asynchronous Event Request: type 2 (notice), event information, and log page.
const fn notice(information: u8, page: u8) -> u64 {
    2 | (information as u64) << 8 | (page as u64) << 16
}

/// AERL: maximum number of Asynchronous Event Requests, less one.
pub(super) const EVENT_REQUESTS: u8 = 3;
/// Time after which a silent host loses a controller that is disabled or shut down; and, if another host needs its
/// place, a controller without keep-alive.
const IDLE_TIME: Duration = Duration::from_secs(120);
/// Time that a host has to connect I/O queues before another host may take its place.
const SETUP_TIME: Duration = Duration::from_secs(10);
/// Keep-alive time that counts as no keep-alive.
const LONG_KEEP_ALIVE: Duration = Duration::from_secs(600);
/// Entries of the error log.
pub(super) const ERROR_ENTRIES: usize = 64;
