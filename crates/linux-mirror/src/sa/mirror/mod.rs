//! The mirror: applies the agent's messages to a [`Keying`], and reports the use of SAs back.
//!
//! ```text
//!   bytes of the agent --> receive --> Keying: add, update, delete          report --> counters, expiries --> bytes for the agent
//!                             |
//!                             +--> poll_refusal: unmirrored state, and reasons
//! ```
//!
//! - `sas`, `policies`: the kernel's state, and its installed counterpart; `numbers`: last sequence numbers of deleted
//!   SAs.
//! - `outbox`: messages for the agent; `log`: counters and refusals.
//!
//! Invariants:
//! - An SA that could not be added is not installed in part.
//! - Packets of a policy that could not be added are dropped. Until the first snapshot is complete, all packets are
//!   dropped.
//! - When an agent goes, everything stays as it is. A returning agent sends a snapshot, and its end removes everything
//!   that the snapshot did not name.

mod log;
mod numbers;
mod outbox;
mod policies;
mod sas;

pub use log::{SaMirrorCounters, SaMirrorRefusal};

use crate::sa::change::SaChange;
use crate::sa::frame::{FrameDecoder, FrameError, Message, VERSION};
use core::net::IpAddr;
use ipsec::Keying;
use log::MirrorLog;
use offload_api::OffloadKind;
use offload_base::Instant;
use outbox::PendingReports;
use policies::MirroredPolicies;
use sas::MirroredSas;
use std::collections::BTreeSet;
use zeroize::Zeroizing;

/// A mirror of a kernel's SAs and policies into a [`Keying`], without the socket.
///
/// ```
/// use ipsec::{KeyedDevice, SecureDevice};
/// use nic_sim::{NicConfig, nic};
/// use offload_api::{Direction, EspKey, EspSuite, SaParams};
/// use offload_base::Instant;
/// use linux_mirror::sa::{SaChange, Message, SaMirror, MirroredSa, KernelSaUse, encode};
///
/// let (here, there) = ("10.0.0.1".parse()?, "10.0.0.2".parse()?);
/// let (_device, driver) = nic(NicConfig::default());
/// let mut secure = SecureDevice::new(Box::new(driver));
/// let keying = secure.keying().unwrap();
/// let mut mirror = SaMirror::new(&[here]);
///
/// // An agent's side:
/// let key = EspKey::new(EspSuite::Aes128Gcm, &[7; 20]).unwrap();
/// let params = SaParams::new(Direction::Transmit, 0x1001, here, there, key);
/// let sa = MirroredSa { params, direction: None, sent: 0, received: 0, used: KernelSaUse::default() };
/// for change in [SaChange::SnapshotBegins, SaChange::Sa(Box::new(sa)), SaChange::SnapshotEnds] {
///     mirror.receive(Instant::ZERO, &encode(&Message::Change(change)), keying);
/// }
/// assert!(keying.find_sa(Direction::Transmit, 0x1001, here, there).is_none(), "changes before the hello are ignored");
/// # let key = EspKey::new(EspSuite::Aes128Gcm, &[7; 20]).unwrap();
/// # let params = SaParams::new(Direction::Transmit, 0x1001, here, there, key);
/// # let sa = MirroredSa { params, direction: None, sent: 0, received: 0, used: KernelSaUse::default() };
/// mirror.receive(Instant::ZERO, &encode(&Message::hello()), keying);
/// for change in [SaChange::SnapshotBegins, SaChange::Sa(Box::new(sa)), SaChange::SnapshotEnds] {
///     mirror.receive(Instant::ZERO, &encode(&Message::Change(change)), keying);
/// }
/// assert!(keying.find_sa(Direction::Transmit, 0x1001, here, there).is_some());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct SaMirror {
    decoder: FrameDecoder,
    /// Whether the agent's hello was received, and no malformed message since.
    synchronized: bool,
    sas: MirroredSas,
    policies: MirroredPolicies,
    /// Maximum number of SAs, and of policies.
    most: usize,
    /// Number of the last snapshot.
    snapshot: u64,
    /// Whether a snapshot is under way.
    in_snapshot: bool,
    /// Number of the agent's last sync.
    synced: u32,
    outbox: PendingReports,
    log: MirrorLog,
}

/// The target of a change, and the current snapshot.
struct ReplayTarget<'a> {
    now: Instant,
    snapshot: u64,
    most: usize,
    keying: &'a mut dyn Keying,
    outbox: &'a mut PendingReports,
    log: &'a mut MirrorLog,
}

impl SaMirror {
    /// Returns a mirror for a host with the addresses `local`. They determine an SA's direction if the kernel does not
    /// report it.
    pub fn new(local: &[IpAddr]) -> SaMirror {
        let mut outbox = PendingReports::default();
        outbox.begin();
        SaMirror {
            decoder: FrameDecoder::new(),
            synchronized: false,
            sas: MirroredSas::new(local),
            policies: MirroredPolicies::default(),
            most: DEFAULT_LIMIT,
            snapshot: 0,
            in_snapshot: false,
            synced: 0,
            outbox,
            log: MirrorLog::default(),
        }
    }

    /// Sets the kind of offload that is requested from a device for each SA.
    #[must_use]
    pub fn offloaded(mut self, kind: OffloadKind) -> SaMirror {
        self.sas.offload = kind;
        self
    }

    /// Limits the number of SAs and the number of policies, 65,536 each by default. Excess SAs are not installed. If
    /// there are too many policies, nothing passes until there are fewer.
    #[must_use]
    pub fn with_room_for(mut self, most: usize) -> SaMirror {
        self.most = most;
        self
    }

    /// Starts a new stream: drops partial input, and requests a snapshot.
    pub fn connect(&mut self) {
        self.decoder = FrameDecoder::new();
        self.synchronized = false;
        self.outbox.begin();
    }

    /// Processes the agent's next bytes, and applies them to `keying`.
    pub fn receive(&mut self, now: Instant, bytes: &[u8], keying: &mut dyn Keying) {
        // The decoder is taken out, because the callback needs the rest of the mirror.
        let mut decoder = core::mem::take(&mut self.decoder);
        decoder.decode(bytes, |message| match message {
            Ok(Message::Hello(VERSION)) => (self.synchronized, self.in_snapshot) = (true, false),
            Ok(Message::Hello(other)) => {
                self.synchronized = false;
                self.log.refuse(SaMirrorRefusal::Version(other));
            }
            // The rest of a stream of a previous agent.
            _ if !self.synchronized => {}
            Ok(Message::Change(change)) => self.replay(now, change, keying),
            Ok(Message::Synced(number)) => self.synced = number,
            // Only a mirror sends these messages, so the stream's other end is not an agent.
            Ok(Message::Ask(_) | Message::Report(_) | Message::Sync(_)) => self.reset(FrameError::Value("the sender")),
            Err(error) => self.reset(error),
        });
        self.decoder = decoder;
    }

    /// Reports the use of SAs since the last call, and SAs that need a successor, to the agent.
    pub fn report(&mut self, keying: &mut dyn Keying) {
        while let Some(event) = keying.poll_sa_event() {
            // Events of SAs that the mirror did not add belong to other users of the IPsec layer.
            if let Some((name, hard)) = self.sas.named_expiry(event) {
                self.log.counts.reports += 1;
                self.outbox.queue_expiry(name, hard);
            }
        }
        if !self.synchronized {
            return; // counters can be reported later
        }
        for (name, used) in self.sas.changed_uses(keying) {
            self.log.counts.reports += 1;
            self.outbox.queue_use(name, used);
        }
    }

    /// Requests a sync: the agent passes on all pending messages of its kernel. After that, [`synced`](Self::synced)
    /// returns this number, and all the messages have been applied.
    pub fn sync(&mut self, number: u32) {
        self.outbox.sync(number);
    }

    /// Returns the number of the last completed sync.
    pub fn synced(&self) -> u32 {
        self.synced
    }

    /// Returns the next bytes for the agent.
    pub fn poll_transmit(&mut self) -> Option<Zeroizing<Vec<u8>>> {
        self.outbox.next(self.synchronized)
    }

    /// Returns the next refusal.
    pub fn poll_refusal(&mut self) -> Option<SaMirrorRefusal> {
        self.log.next()
    }

    /// Returns the reqids of the installed SAs. A host lends these SAs to its NIC for packets that are not the host's
    /// own (`Keying::lend_sas`).
    pub fn reqids(&self) -> BTreeSet<u32> {
        self.sas.reqids()
    }

    /// Returns the number of installed SAs with a reqid. As many must be lent.
    pub fn sas_with_reqid(&self, reqid: u32) -> usize {
        self.sas.count_with_reqid(reqid)
    }

    /// Returns the reqids of SAs added or deleted since the last call. Their SAs must be lent again.
    pub fn poll_reqids(&mut self) -> BTreeSet<u32> {
        self.sas.poll_changed()
    }

    /// Returns the counters.
    pub fn counters(&self) -> SaMirrorCounters {
        self.log.counts
    }

    fn replay(&mut self, now: Instant, change: SaChange, keying: &mut dyn Keying) {
        if let SaChange::SnapshotBegins = change {
            self.snapshot += 1;
            self.in_snapshot = true;
            return self.policies.begin_snapshot();
        }
        let SaMirror { sas, policies, snapshot, in_snapshot, outbox, log, most, .. } = self;
        let to = &mut ReplayTarget { now, snapshot: *snapshot, most: *most, keying, outbox, log };
        match change {
            SaChange::SnapshotEnds if core::mem::take(in_snapshot) => {
                to.log.counts.snapshots += 1;
                sas.end_snapshot(to);
                policies.end_snapshot(to);
            }
            // The snapshot began before a hello; the hello is followed by another snapshot.
            SaChange::SnapshotBegins | SaChange::SnapshotEnds => {}
            SaChange::Sa(sa) => sas.put(to, *sa),
            SaChange::SaUnsupported(name, why) => sas.report_unsupported(to, name, why),
            SaChange::SaGone(name) => sas.remove(to, (name.destination, name.spi)),
            SaChange::AllSasGone => sas.remove_all(to),
            SaChange::Policy(policy) => policies.put(to, policy),
            SaChange::PolicyGone(index) => policies.remove(to, index),
            SaChange::AllPoliciesGone => policies.remove_all(to),
            SaChange::Defaults { receive, transmit } => policies.set_defaults(to, receive, transmit),
        }
    }

    /// Handles a malformed message: the agent has to start again.
    fn reset(&mut self, error: FrameError) {
        self.synchronized = false;
        self.log.counts.bad_frames += 1;
        self.outbox.queue_snapshot_request();
        self.log.refuse(SaMirrorRefusal::Frame(error));
    }
}

/// Default limit of SAs, and of policies.
const DEFAULT_LIMIT: usize = 1 << 16;
