//! The NIC's side: what the agent says is replayed into a [`Keying`], and what became of it goes back.
//!
//! ```text
//!   bytes of the agent --> receive --> Keying: add, update, delete          report --> counters, expiries --> bytes for the agent
//!                             |
//!                             +--> poll_refusal: what could not be replayed, and why
//! ```
//!
//! Invariants: an SA that could not be added is not there in part. Packets of a policy that could not be added are dropped, and so is
//! everything until the first snapshot is whole. An agent that goes leaves everything as it is; one that comes back says what there is,
//! and what it does not name goes then.

use crate::change::{Change, MirroredPolicy, MirroredSa, Report, SaName, Unsupported, Used};
use crate::frame::{Decoder, FrameError, Message, VERSION, encode};
use core::net::IpAddr;
use offload_api::{Direction, Keying, KeyingError, Lifetime, OffloadKind, Policy, SaEvent, SaId, SaParams, SaRefused};
use offload_base::Instant;
use std::collections::{BTreeMap, VecDeque};
use zeroize::Zeroizing;

/// What a kernel's SAs and policies are at a [`Keying`], without the socket that they come by.
///
/// ```
/// use nic_sim::{NicConfig, nic};
/// use offload_api::{Direction, EspKey, EspSuite, NetDevice, SaParams};
/// use offload_base::Instant;
/// use sa_mirror::{Change, Message, Mirror, MirroredSa, Used, encode};
///
/// let (here, there) = ("10.0.0.1".parse()?, "10.0.0.2".parse()?);
/// let (_device, driver) = nic(NicConfig::default());
/// let mut secure = ipsec::SecureDevice::new(Box::new(driver));
/// let keying = secure.keying().unwrap();
/// let mut mirror = Mirror::new(&[here]);
///
/// // An agent's side:
/// let key = EspKey::new(EspSuite::Aes128Gcm, &[7; 20]).unwrap();
/// let params = SaParams::new(Direction::Transmit, 0x1001, here, there, key);
/// let sa = MirroredSa { params, direction: None, sent: 0, received: 0, used: Used::default() };
/// for change in [Change::SnapshotBegins, Change::Sa(Box::new(sa)), Change::SnapshotEnds] {
///     mirror.receive(Instant::ZERO, &encode(&Message::Change(change)), keying);
/// }
/// assert!(keying.find_sa(Direction::Transmit, 0x1001, here, there).is_none(), "it has to say hello first");
/// # let key = EspKey::new(EspSuite::Aes128Gcm, &[7; 20]).unwrap();
/// # let params = SaParams::new(Direction::Transmit, 0x1001, here, there, key);
/// # let sa = MirroredSa { params, direction: None, sent: 0, received: 0, used: Used::default() };
/// mirror.receive(Instant::ZERO, &encode(&Message::hello()), keying);
/// for change in [Change::SnapshotBegins, Change::Sa(Box::new(sa)), Change::SnapshotEnds] {
///     mirror.receive(Instant::ZERO, &encode(&Message::Change(change)), keying);
/// }
/// assert!(keying.find_sa(Direction::Transmit, 0x1001, here, there).is_some());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Mirror {
    local: Vec<IpAddr>,
    offload: OffloadKind,
    decoder: Decoder,
    /// Heard the agent's hello, and nothing that made no sense since.
    synchronized: bool,
    /// By destination and SPI, as the kernel knows them.
    sas: BTreeMap<(IpAddr, u32), Entry<MirroredSa, SaId>>,
    /// By the kernel's index.
    policies: BTreeMap<u32, Entry<MirroredPolicy, Policy>>,
    /// The number of the last snapshot, and whether it is under way.
    snapshot: u64,
    in_snapshot: bool,
    /// What the agent synced last.
    synced: u32,
    refusals: VecDeque<Refusal>,
    out: VecDeque<Zeroizing<Vec<u8>>>,
    counts: MirrorCounters,
}

/// What the kernel has, and what was made of it: nothing if that was refused.
#[derive(Debug)]
struct Entry<T, U> {
    told: T,
    added: Option<U>,
    /// The snapshot that named it last.
    snapshot: u64,
    /// What was reported of it last.
    reported: Used,
}

offload_base::counters! {
    /// What a mirror counts.
    ///
    /// ```
    /// let mirror = sa_mirror::Mirror::new(&[]);
    /// assert_eq!(mirror.counters().sas_added, 0);
    /// ```
    pub struct MirrorCounters {
        /// SAs that came.
        pub sas_added: "mirror_sas_added",
        /// SAs that got another lifetime.
        pub sas_updated: "mirror_sas_updated",
        /// SAs that went.
        pub sas_deleted: "mirror_sas_deleted",
        /// SAs that could not be added at all.
        pub sas_refused: "mirror_sas_refused",
        /// SAs that a device was asked for and that software has to do.
        pub sas_in_software: "mirror_sas_in_software",
        /// Policies that came or changed.
        pub policies_added: "mirror_policies_added",
        /// Policies that went.
        pub policies_deleted: "mirror_policies_deleted",
        /// Policies that could not be added, or that drop their packets because they are not supported.
        pub policies_refused: "mirror_policies_refused",
        /// Snapshots that were whole.
        pub snapshots: "mirror_snapshots",
        /// Frames that made no sense.
        pub bad_frames: "mirror_bad_frames",
        /// Reports to the agent: counters and expiries.
        pub reports: "mirror_reports",
        /// Refusals that were forgotten because nobody asked for them.
        pub refusals_lost: "mirror_refusals_lost",
    }
}

/// What could not be replayed as it is, and why. Nothing of it is secret.
///
/// ```
/// use offload_api::KeyingError;
/// use sa_mirror::{Refusal, SaName};
///
/// let name = SaName { source: [10, 0, 0, 1].into(), destination: [10, 0, 0, 2].into(), spi: 0x1001 };
/// let refusal = Refusal::Sa(name, KeyingError::Spi(7));
/// assert_eq!(refusal.to_string(), "SA 0x1001 from 10.0.0.1 to 10.0.0.2 is not there: the SPI 7 is reserved");
/// ```
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// The SA has no counterpart here.
    #[error("{0} is not there: {1}")]
    Unsupported(SaName, Unsupported),
    /// Neither of its addresses is one of this host's.
    #[error("{0} is not there: neither address is one of this host")]
    Elsewhere(SaName),
    /// The IPsec layer does not take it.
    #[error("{0} is not there: {1}")]
    Sa(SaName, KeyingError),
    /// The IPsec layer does not give it another lifetime.
    #[error("{0} keeps its lifetime: {1}")]
    Update(SaName, KeyingError),
    /// The device does not take it; software does.
    #[error("{0} stays in software: {1}")]
    Software(SaName, SaRefused),
    /// The policy has no counterpart here: its packets are dropped.
    #[error("policy {0} drops its packets: {1}")]
    PolicyUnsupported(u32, Unsupported),
    /// The IPsec layer does not take the policy.
    #[error("policy {0} is not there: {1}")]
    Policy(u32, KeyingError),
    /// There is more than a mirror holds.
    #[error("there are more than {0} SAs or policies, and the mirror holds no more")]
    TooMany(usize),
    /// The agent speaks another version.
    #[error("the agent speaks version {0} of the protocol, the mirror version {VERSION}: use those of one release")]
    Version(u16),
    /// The agent's bytes make no sense; it is asked to begin again.
    #[error("the agent's bytes make no sense: {0}")]
    Frame(FrameError),
}

impl Mirror {
    /// For a host of these addresses, by which it is known which way an SA goes if the kernel does not say.
    pub fn new(local: &[IpAddr]) -> Mirror {
        let (sas, policies, refusals, mut out) = (BTreeMap::new(), BTreeMap::new(), VecDeque::new(), VecDeque::new());
        out.push_back(encode(&Message::ask()));
        Mirror {
            local: local.to_vec(),
            offload: OffloadKind::None,
            decoder: Decoder::new(),
            synchronized: false,
            sas,
            policies,
            snapshot: 0,
            in_snapshot: false,
            synced: 0,
            refusals,
            out,
            counts: MirrorCounters::default(),
        }
    }

    /// The same, with this much of each SA for a device to do.
    #[must_use]
    pub fn offloaded(mut self, kind: OffloadKind) -> Mirror {
        self.offload = kind;
        self
    }

    /// Another stream begins: what is left of the last one is forgotten, and the agent is asked for everything.
    pub fn connect(&mut self) {
        self.decoder = Decoder::new();
        self.synchronized = false;
        self.out.clear();
        self.out.push_back(encode(&Message::ask()));
    }

    /// Takes the next bytes of the agent, and does with `keying` what they say.
    pub fn receive(&mut self, now: Instant, bytes: &[u8], keying: &mut dyn Keying) {
        let mut decoder = core::mem::take(&mut self.decoder);
        decoder.decode(bytes, |message| match message {
            Ok(Message::Hello(VERSION)) => (self.synchronized, self.in_snapshot) = (true, false),
            Ok(Message::Hello(other)) => {
                self.synchronized = false;
                self.refuse(Refusal::Version(other));
            }
            // What is left of an agent that is no more.
            _ if !self.synchronized => {}
            Ok(Message::Change(change)) => self.replay(now, change, keying),
            Ok(Message::Synced(number)) => self.synced = number,
            Ok(Message::Ask(_) | Message::Report(_) | Message::Sync(_)) => self.lose(FrameError::Value("the sender")),
            Err(error) => self.lose(error),
        });
        self.decoder = decoder;
    }

    /// Tells the agent what SAs did since it was told last, and which ones need a successor.
    pub fn report(&mut self, keying: &mut dyn Keying) {
        while let Some(event) = keying.poll_sa_event() {
            let (sa, hard) = match event {
                SaEvent::SoftLimit { sa, .. } => (sa, false),
                SaEvent::HardLimit { sa, .. } | SaEvent::SequenceExhausted { sa } => (sa, true),
                _ => continue,
            };
            if let Some(name) = self.name_of(sa) {
                self.say(Report::Expired(name, hard));
            }
        }
        if !self.synchronized || self.out.len() > MOST_WAITING {
            return; // counters are there later as well
        }
        let mut news = Vec::new();
        for entry in self.sas.values_mut() {
            let Some(used) = entry.added.and_then(|sa| keying.sa_use(sa)) else { continue };
            let used = entry.told.used + Used { bytes: used.bytes, packets: used.packets };
            if used != entry.reported {
                entry.reported = used;
                news.push(Report::Used(entry.told.name(), used));
            }
        }
        news.into_iter().for_each(|report| self.say(report));
    }

    /// Has the agent tell of everything that its kernel has told until now; then [`synced`](Self::synced) is this number, and all of that
    /// was replayed.
    pub fn sync(&mut self, number: u32) {
        self.out.push_back(encode(&Message::Sync(number)));
    }

    /// The number that was synced last.
    pub fn synced(&self) -> u32 {
        self.synced
    }

    /// The next bytes for the agent.
    pub fn poll_transmit(&mut self) -> Option<Zeroizing<Vec<u8>>> {
        self.out.pop_front()
    }

    /// What could not be replayed since somebody asked last.
    pub fn poll_refusal(&mut self) -> Option<Refusal> {
        self.refusals.pop_front()
    }

    /// What was counted so far.
    pub fn counters(&self) -> MirrorCounters {
        self.counts
    }

    fn replay(&mut self, now: Instant, change: Change, keying: &mut dyn Keying) {
        match change {
            Change::SnapshotBegins => {
                self.snapshot += 1;
                self.in_snapshot = true;
            }
            Change::SnapshotEnds if self.in_snapshot => self.end_snapshot(keying),
            // It began before a hello, and is followed by another one.
            Change::SnapshotEnds => {}
            Change::Sa(sa) => self.sa(now, *sa, keying),
            Change::SaUnsupported(name, why) => {
                // It may have been one that is mirrored, and changed.
                self.sa_gone((name.destination, name.spi), keying);
                self.counts.sas_refused += 1;
                self.refuse(Refusal::Unsupported(name, why));
            }
            Change::SaGone(name) => self.sa_gone((name.destination, name.spi), keying),
            Change::AllSasGone => {
                core::mem::take(&mut self.sas).into_values().for_each(|entry| self.delete_sa(entry, keying));
            }
            Change::Policy(policy) => self.policy(policy, keying),
            Change::PolicyGone(index) => self.policy_gone(index, keying),
            Change::AllPoliciesGone => {
                core::mem::take(&mut self.policies).into_values().for_each(|entry| self.delete_policy(entry, keying));
            }
            Change::Defaults { receive, transmit } => {
                keying.set_default(Direction::Receive, receive);
                keying.set_default(Direction::Transmit, transmit);
            }
        }
    }

    /// What the snapshot did not name is not there any more.
    fn end_snapshot(&mut self, keying: &mut dyn Keying) {
        self.in_snapshot = false;
        self.counts.snapshots += 1;
        let now = self.snapshot;
        let old: Vec<_> = self.sas.iter().filter(|(_, sa)| sa.snapshot != now).map(|(name, _)| *name).collect();
        old.into_iter().for_each(|name| self.sa_gone(name, keying));
        let old: Vec<_> =
            self.policies.iter().filter(|(_, one)| one.snapshot != now).map(|(index, _)| *index).collect();
        old.into_iter().for_each(|index| self.policy_gone(index, keying));
    }

    fn sa(&mut self, now: Instant, told: MirroredSa, keying: &mut dyn Keying) {
        let key = (told.params.destination, told.params.spi);
        if let Some(entry) = self.sas.get_mut(&key) {
            entry.snapshot = self.snapshot;
            if is_same(&entry.told.params, &told.params) {
                return self.update(now, key, told, keying);
            }
            self.sa_gone(key, keying);
        }
        if self.sas.len() >= MOST {
            self.counts.sas_refused += 1;
            return self.refuse(Refusal::TooMany(MOST));
        }
        let added = self.add(now, &told, keying);
        self.sas.insert(key, Entry { reported: told.used, told, added, snapshot: self.snapshot });
    }

    fn add(&mut self, now: Instant, told: &MirroredSa, keying: &mut dyn Keying) -> Option<SaId> {
        let name = told.name();
        let Some(direction) = told.direction.or_else(|| self.direction_of(&name)) else {
            self.counts.sas_refused += 1;
            self.refuse(Refusal::Elsewhere(name));
            return None;
        };
        let params = SaParams {
            direction,
            last_number: if direction == Direction::Transmit { told.sent } else { told.received },
            lifetime: left_of(told.params.lifetime, told.used),
            offload: self.offload,
            ..told.params.clone()
        };
        match keying.add_sa(now, params) {
            Ok(added) => {
                self.counts.sas_added += 1;
                if let Some(why) = added.refused {
                    self.counts.sas_in_software += 1;
                    self.refuse(Refusal::Software(name, why));
                }
                Some(added.sa)
            }
            Err(error) => {
                self.counts.sas_refused += 1;
                self.refuse(Refusal::Sa(name, error));
                if error == KeyingError::KeyReused {
                    // The kernel changed what cannot change under one key: the daemon is to agree on another.
                    self.say(Report::Expired(name, false));
                }
                None
            }
        }
    }

    /// The same SA as before, with another lifetime perhaps.
    fn update(&mut self, now: Instant, key: (IpAddr, u32), told: MirroredSa, keying: &mut dyn Keying) {
        let Some(entry) = self.sas.get_mut(&key) else { return };
        // Time that is left grows less by itself.
        let other = |old: Lifetime, new: Lifetime| {
            [(old.soft, new.soft), (old.hard, new.hard)]
                .into_iter()
                .any(|(old, new)| (old.bytes, old.packets) != (new.bytes, new.packets) || old.time < new.time)
        };
        let Some(sa) = entry.added.filter(|_| other(entry.told.params.lifetime, told.params.lifetime)) else { return };
        entry.told.params.lifetime = told.params.lifetime;
        let name = told.name();
        match keying.update_sa(now, sa, left_of(told.params.lifetime, entry.reported)) {
            Ok(()) => self.counts.sas_updated += 1,
            Err(error) => self.refuse(Refusal::Update(name, error)),
        }
    }

    fn direction_of(&self, name: &SaName) -> Option<Direction> {
        if self.local.contains(&name.destination) || name.destination.is_unspecified() {
            return Some(Direction::Receive);
        }
        self.local.contains(&name.source).then_some(Direction::Transmit)
    }

    fn sa_gone(&mut self, key: (IpAddr, u32), keying: &mut dyn Keying) {
        let entry = self.sas.remove(&key);
        entry.into_iter().for_each(|entry| self.delete_sa(entry, keying));
    }

    fn delete_sa(&mut self, entry: Entry<MirroredSa, SaId>, keying: &mut dyn Keying) {
        if let Some(sa) = entry.added
            && keying.delete_sa(sa).is_ok()
        {
            self.counts.sas_deleted += 1;
        }
    }

    fn policy(&mut self, told: MirroredPolicy, keying: &mut dyn Keying) {
        if let Some(entry) = self.policies.get_mut(&told.index) {
            entry.snapshot = self.snapshot;
            if entry.told == told {
                return;
            }
            // No packet passes in between.
            self.policy_gone(told.index, keying);
        }
        if self.policies.len() >= MOST {
            self.counts.policies_refused += 1;
            return self.refuse(Refusal::TooMany(MOST));
        }
        if let Err(why) = &told.action {
            self.counts.policies_refused += 1;
            self.refuse(Refusal::PolicyUnsupported(told.index, why.clone()));
        }
        let policy = told.policy();
        let added = match keying.add_policy(policy) {
            Ok(()) => Some(policy),
            // The kernel may have several for the same packets, which differ in what is not mirrored. Of one of these nothing passes, so of all.
            Err(KeyingError::Exists) if told.action.is_err() => {
                let Policy { direction, selector, priority, .. } = policy;
                let holder =
                    self.policies.values_mut().find(|entry| entry.added.is_some_and(|other| is_of(&other, &policy)));
                holder.into_iter().for_each(|holder| holder.added = None);
                let _was_there = keying.delete_policy(direction, &selector, priority);
                keying.add_policy(policy).is_ok().then_some(policy)
            }
            Err(error) => {
                self.counts.policies_refused += 1;
                self.refuse(Refusal::Policy(told.index, error));
                None
            }
        };
        self.counts.policies_added += u64::from(added.is_some());
        let entry = Entry { told, added, snapshot: self.snapshot, reported: Used::default() };
        self.policies.insert(entry.told.index, entry);
    }

    /// The policy of a place is gone: another one that was told for the same packets, and was refused for that one's sake, takes it at once. One
    /// of which nothing passes comes first.
    fn fill_place(&mut self, of: &Policy, keying: &mut dyn Keying) {
        let waits =
            |entry: &&mut Entry<MirroredPolicy, Policy>| entry.added.is_none() && is_of(&entry.told.policy(), of);
        let waiting = self.policies.values_mut().filter(waits).min_by_key(|entry| entry.told.action.is_ok());
        if let Some(entry) = waiting {
            let policy = entry.told.policy();
            entry.added = keying.add_policy(policy).is_ok().then_some(policy);
            self.counts.policies_added += u64::from(entry.added.is_some());
        }
    }

    fn policy_gone(&mut self, index: u32, keying: &mut dyn Keying) {
        let entry = self.policies.remove(&index);
        entry.into_iter().for_each(|entry| self.delete_policy(entry, keying));
    }

    fn delete_policy(&mut self, entry: Entry<MirroredPolicy, Policy>, keying: &mut dyn Keying) {
        let Some(policy) = entry.added else { return };
        let Policy { direction, selector, priority, .. } = policy;
        if keying.delete_policy(direction, &selector, priority).is_ok() {
            self.counts.policies_deleted += 1;
        }
        self.fill_place(&policy, keying);
    }

    /// What the agent says makes no sense: it is to begin again.
    fn lose(&mut self, error: FrameError) {
        self.synchronized = false;
        self.counts.bad_frames += 1;
        self.out.push_back(encode(&Message::ask()));
        self.refuse(Refusal::Frame(error));
    }

    fn name_of(&self, sa: SaId) -> Option<SaName> {
        self.sas.values().find(|entry| entry.added == Some(sa)).map(|entry| entry.told.name())
    }

    fn say(&mut self, report: Report) {
        self.counts.reports += 1;
        self.out.push_back(encode(&Message::Report(report)));
    }

    fn refuse(&mut self, refusal: Refusal) {
        if self.refusals.len() >= MOST_REFUSALS {
            self.refusals.pop_front();
            self.counts.refusals_lost += 1;
        }
        self.refusals.push_back(refusal);
    }
}

/// Whether two policies are for the same packets, with the same priority: there is a place for one of them.
fn is_of(one: &Policy, other: &Policy) -> bool {
    (one.direction, one.selector, one.priority) == (other.direction, other.selector, other.priority)
}

/// What is left of a lifetime for an SA that did this much of it.
fn left_of(mut lifetime: Lifetime, used: Used) -> Lifetime {
    for limits in [&mut lifetime.soft, &mut lifetime.hard] {
        limits.bytes = limits.bytes.map(|bytes| bytes.saturating_sub(used.bytes).max(1));
        limits.packets = limits.packets.map(|packets| packets.saturating_sub(used.packets).max(1));
    }
    lifetime
}

/// Whether both are one SA, but for its lifetime.
fn is_same(one: &SaParams, other: &SaParams) -> bool {
    let all = |sa: &SaParams| {
        let header = (sa.dont_fragment, sa.dscp, sa.dscp_out, sa.ecn);
        let name = (sa.source, sa.destination, sa.spi);
        (name, sa.mode, sa.reqid, sa.key.suite(), sa.esn, sa.replay_window, sa.encapsulation, sa.keep_alive, header)
    };
    all(one) == all(other) && one.key.is_same_as(&other.key)
}

/// How many SAs, and how many policies.
const MOST: usize = 1 << 16;
const MOST_REFUSALS: usize = 1024;
/// How many messages for the agent wait until it is told of no more counters.
const MOST_WAITING: usize = 4096;
