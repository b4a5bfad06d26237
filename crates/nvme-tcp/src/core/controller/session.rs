//! One controller's state: what hosts call a controller exists from a Connect of an admin queue to its end.

use super::bell::Bell;
use super::connection::ConnectionId;
use super::work::{AllUnderWay, Work};
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
    /// I/O queues by their number, and what each has under way.
    queues: BTreeMap<u16, (ConnectionId, Arc<Work>)>,
    /// Commands that lost connections left under way, by the number of their queue.
    left_behind: BTreeMap<u16, AllUnderWay>,
    /// Commands under way from before a reset, and from controllers that the host had before.
    unfinished: AllUnderWay,
    configuration: u32,
    status: u32,
    keep_alive: Duration,
    /// As it was when somebody looked last.
    stage: Stage,
    last_heard: Instant,
    /// When the host last sent a command of an I/O queue.
    last_used: Instant,
    pub(super) began: Instant,
    pub(super) features: super::features::Features,
    errors: VecDeque<ErrorEntry>,
    error_count: u64,
    /// Identifiers of Asynchronous Event Requests that wait.
    waiting: VecDeque<u16>,
    changed: BTreeSet<u32>,
    discovery_changed: bool,
    /// Told, and the log not read since: not told again.
    told_namespaces: bool,
    told_discovery: bool,
}

/// The next step that a controller expects of its host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// To enable it, or to go.
    Idle,
    /// To wait, until it is ready or shut down.
    Busy,
    /// To keep it alive.
    Active,
}

/// What a reset ends.
#[derive(Debug, Default)]
pub(super) struct Reset {
    /// I/O queues.
    pub(super) queues: Vec<ConnectionId>,
    /// Requests for events.
    pub(super) waiting: Vec<u16>,
}

/// Something hosts can be told about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Notice {
    /// A namespace came, went or changed.
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
        unfinished: AllUnderWay,
    ) -> Session {
        Session {
            subsystem,
            host,
            host_id,
            admin,
            queues: BTreeMap::new(),
            left_behind: BTreeMap::new(),
            unfinished,
            configuration: 0,
            status: 0,
            keep_alive,
            stage: Stage::Idle,
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

    /// Makes `connection` the queue `id`: what it has under way is to be noted there, and nothing is to be done for it
    /// before what is under way of the queue's earlier connections is over. `None` if there is a queue of that number.
    pub(super) fn add_queue(
        &mut self,
        id: u16,
        connection: ConnectionId,
        bell: &Arc<Bell>,
    ) -> Option<(Arc<Work>, AllUnderWay)> {
        if self.queue_exists(id) {
            return None;
        }
        let work = Work::new(bell);
        self.queues.insert(id, (connection, work.clone()));
        Some((work, self.left_behind.get(&id).cloned().unwrap_or_default()))
    }

    /// Has a command of an I/O queue end before its time, if it can; the connection that is to look at it.
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
        // Not ready while something is under way of before the last reset, or of an earlier controller.
        if self.unfinished.is_over() { self.status } else { self.status & !CSTS_READY }
    }

    pub(super) fn is_ready(&self) -> bool {
        self.status() & CSTS_READY != 0
    }

    /// Writes CC.
    pub(super) fn configure(&mut self, value: u32) -> Reset {
        let before = core::mem::replace(&mut self.configuration, value);
        let mut reset = Reset::default();
        if value & CC_ENABLE == 0 && before & CC_ENABLE != 0 {
            // A controller reset: queues go, requests for events go, features are as at the beginning.
            reset.queues.extend(self.queues());
            reset.waiting.extend(core::mem::take(&mut self.waiting));
            self.features = Default::default();
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

    /// The flushes of a shutdown are over, whether they succeeded or not.
    pub(super) fn shut_down(&mut self) {
        if self.status & CSTS_SHUTTING_DOWN != 0 {
            self.status = self.status & !CSTS_SHUTTING_DOWN | CSTS_SHUT_DOWN;
        }
    }

    /// Has no more work begin; what is under way.
    pub(super) fn end_work(&mut self) -> &AllUnderWay {
        self.unfinished.extend(self.queues.values().map(|(_, work)| work.end()));
        for under_way in core::mem::take(&mut self.left_behind).into_values() {
            self.unfinished.extend(under_way.iter().cloned());
        }
        &self.unfinished
    }

    /// All commands under way, of all connections.
    pub(super) fn under_way(&self) -> AllUnderWay {
        let mut under_way = self.unfinished.clone();
        under_way.extend(self.queues.values().map(|(_, work)| work.so_far()));
        under_way.extend(self.left_behind.values().flat_map(|under_way| under_way.iter().cloned()));
        under_way
    }

    pub(super) fn keep_alive(&self) -> Duration {
        self.keep_alive
    }

    pub(super) fn set_keep_alive(&mut self, now: Instant, keep_alive: Duration) {
        self.keep_alive = keep_alive;
        self.heard(now);
    }

    /// The host is alive.
    pub(super) fn heard(&mut self, now: Instant) {
        self.last_heard = now;
    }

    /// The host sends a command of an I/O queue. That says nothing about its admin queue.
    pub(super) fn note_use(&mut self, now: Instant) {
        self.last_used = now;
    }

    /// The host reads or writes a property: that counts as long as it has nothing else to be heard by.
    pub(super) fn hear_property(&mut self, now: Instant) {
        self.watch(now);
        if self.stage != Stage::Active {
            self.heard(now);
        }
    }

    /// Sees whether the keep-alive timer runs at `now`: it does from when that is seen on.
    ///
    /// NVM Express Base Specification 2.0, 3.9: the timer is active while CC.EN = 1, CSTS.RDY = 1, CC.SHN = 0 and
    /// CSTS.SHST = 0. A host cannot say that it is alive before, and does not have to later.
    pub(super) fn watch(&mut self, now: Instant) {
        let stage = if self.configuration & CC_ENABLE == 0 || self.status & CSTS_SHUT_DOWN != 0 {
            Stage::Idle
        } else if self.configuration & CC_SHUTDOWN != 0 || !self.unfinished.is_over_or_calls(self.admin) {
            Stage::Busy
        } else {
            Stage::Active
        };
        if stage != self.stage {
            self.stage = stage;
            self.heard(now);
        }
    }

    /// When the host last said that it is alive.
    pub(super) fn last_heard(&self) -> Instant {
        self.last_heard
    }

    /// When the host counts as lost.
    pub(super) fn alive_until(&self) -> Option<Instant> {
        match self.stage {
            Stage::Idle => Some(self.last_heard + IDLE_TIME),
            Stage::Busy => None,
            // KAS: the host is waited for in whole seconds.
            Stage::Active => Some(self.keep_alive.as_millis().div_ceil(1000) as u64)
                .filter(|seconds| *seconds > 0)
                .map(|seconds| self.last_heard + Duration::from_secs(seconds)),
        }
    }

    /// Whether its place may go to a host that needs it at `now`, and how soon, the least first: it has had time to get
    /// I/O queues, and has none, whatever its host promised; or its host promised no sign of life and gives none.
    pub(super) fn is_forsaken(&self, now: Instant) -> Option<(bool, Instant)> {
        if self.queues.is_empty() {
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

    pub(super) fn notice(&mut self, notice: Notice) {
        match notice {
            Notice::Namespace(id) => {
                self.changed.insert(id);
            }
            Notice::Discovery => self.discovery_changed = true,
        }
    }

    /// The changed-namespace log, which is cleared as it is read, unless `retain`.
    pub(super) fn changed_namespaces(&mut self, retain: bool) -> Vec<u8> {
        let page = log::changed_namespaces(self.changed.iter().copied());
        if !retain {
            self.changed.clear();
            self.told_namespaces = false;
        }
        page
    }

    /// The discovery log was read.
    pub(super) fn discovery_read(&mut self) {
        self.discovery_changed = false;
        self.told_discovery = false;
    }

    /// Takes an Asynchronous Event Request; false if there are as many as may be.
    pub(super) fn wait_for_event(&mut self, command: u16) -> bool {
        if self.waiting.len() > usize::from(EVENT_REQUESTS) {
            return false;
        }
        self.waiting.push_back(command);
        true
    }

    /// Takes back a waiting request.
    pub(super) fn abort_wait(&mut self, command: u16) -> bool {
        let before = self.waiting.len();
        self.waiting.retain(|waiting| *waiting != command);
        self.waiting.len() != before
    }

    /// The next event to tell, and the request it answers.
    pub(super) fn poll_event(&mut self) -> Option<(u16, u64)> {
        let enabled = self.features.notices();
        let event = if !self.told_namespaces && !self.changed.is_empty() && enabled.has(Notices::NAMESPACES) {
            notice(0x00, log::page::CHANGED_NAMESPACES)
        } else if !self.told_discovery && self.discovery_changed && enabled.has(Notices::DISCOVERY) {
            notice(0xf0, log::page::DISCOVERY)
        } else {
            return None;
        };
        let command = self.waiting.pop_front()?;
        if event == notice(0x00, log::page::CHANGED_NAMESPACES) {
            self.told_namespaces = true;
        } else {
            self.told_discovery = true;
        }
        Some((command, event))
    }
}

/// Result of an Asynchronous Event Request: type 2 (notice), what happened, and the log page about it.
const fn notice(information: u8, page: u8) -> u64 {
    2 | (information as u64) << 8 | (page as u64) << 16
}

/// AERL: Asynchronous Event Requests at a time, less one.
pub(super) const EVENT_REQUESTS: u8 = 3;
/// How long a host may leave a controller that is not enabled, or shut down, without a command; and one that it has not
/// promised to keep alive, if another host needs its place.
const IDLE_TIME: Duration = Duration::from_secs(120);
/// How long a host has to connect I/O queues before its place may go to another that needs it.
const SETUP_TIME: Duration = Duration::from_secs(10);
/// A keep-alive time that is as good as none.
const LONG_KEEP_ALIVE: Duration = Duration::from_secs(600);
/// Entries of the error log.
pub(super) const ERROR_ENTRIES: usize = 64;
