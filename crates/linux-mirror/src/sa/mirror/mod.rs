//! The NIC's side: what the agent says is replayed into a [`Keying`], and what became of it goes back.
//!
//! ```text
//!   bytes of the agent --> receive --> Keying: add, update, delete          report --> counters, expiries --> bytes for the agent
//!                             |
//!                             +--> poll_refusal: what could not be replayed, and why
//! ```
//!
//! - `sas`, `policies`: what the kernel has, and what was made of it; `numbers`: how far those came that went;
//! - `outbox`: what the agent is to be told; `log`: what was counted and refused.
//!
//! Invariants: an SA that could not be added is not there in part. Packets of a policy that could not be added are dropped, and so is
//! everything until the first snapshot is whole. An agent that goes leaves everything as it is; one that comes back says what there is,
//! and what it does not name goes then.

mod log;
mod numbers;
mod outbox;
mod policies;
mod sas;

pub use log::{MirrorCounters, Refusal};

use crate::sa::change::Change;
use crate::sa::frame::{Decoder, FrameError, Message, VERSION};
use core::net::IpAddr;
use ipsec::Keying;
use log::Log;
use offload_api::OffloadKind;
use offload_base::Instant;
use outbox::Outbox;
use policies::Policies;
use sas::Sas;
use std::collections::BTreeSet;
use zeroize::Zeroizing;

/// What a kernel's SAs and policies are at a [`Keying`], without the socket that they come by.
///
/// ```
/// use ipsec::{KeyedDevice, SecureDevice};
/// use nic_sim::{NicConfig, nic};
/// use offload_api::{Direction, EspKey, EspSuite, SaParams};
/// use offload_base::Instant;
/// use linux_mirror::sa::{Change, Message, Mirror, MirroredSa, Used, encode};
///
/// let (here, there) = ("10.0.0.1".parse()?, "10.0.0.2".parse()?);
/// let (_device, driver) = nic(NicConfig::default());
/// let mut secure = SecureDevice::new(Box::new(driver));
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
    decoder: Decoder,
    /// Heard the agent's hello, and nothing that made no sense since.
    synchronized: bool,
    sas: Sas,
    policies: Policies,
    /// So many SAs, and so many policies, are held at most.
    most: usize,
    /// The number of the last snapshot, and whether it is under way.
    snapshot: u64,
    in_snapshot: bool,
    /// What the agent synced last.
    synced: u32,
    outbox: Outbox,
    log: Log,
}

/// What is replayed into, and when.
struct Replay<'a> {
    now: Instant,
    snapshot: u64,
    most: usize,
    keying: &'a mut dyn Keying,
    outbox: &'a mut Outbox,
    log: &'a mut Log,
}

impl Mirror {
    /// For a host of these addresses, by which it is known which way an SA goes if the kernel does not say.
    pub fn new(local: &[IpAddr]) -> Mirror {
        let mut outbox = Outbox::default();
        outbox.begin();
        Mirror {
            decoder: Decoder::new(),
            synchronized: false,
            sas: Sas::new(local),
            policies: Policies::default(),
            most: MOST,
            snapshot: 0,
            in_snapshot: false,
            synced: 0,
            outbox,
            log: Log::default(),
        }
    }

    /// The same, with this much of each SA for a device to do.
    #[must_use]
    pub fn offloaded(mut self, kind: OffloadKind) -> Mirror {
        self.sas.offload = kind;
        self
    }

    /// The same, with room for this many SAs and this many policies; 65,536 by default. SAs beyond are not there. If there are more policies,
    /// nothing passes until there are fewer.
    #[must_use]
    pub fn with_room_for(mut self, most: usize) -> Mirror {
        self.most = most;
        self
    }

    /// Another stream begins: what is left of the last one is forgotten, and the agent is asked for everything.
    pub fn connect(&mut self) {
        self.decoder = Decoder::new();
        self.synchronized = false;
        self.outbox.begin();
    }

    /// Takes the next bytes of the agent, and does with `keying` what they say.
    pub fn receive(&mut self, now: Instant, bytes: &[u8], keying: &mut dyn Keying) {
        let mut decoder = core::mem::take(&mut self.decoder);
        decoder.decode(bytes, |message| match message {
            Ok(Message::Hello(VERSION)) => (self.synchronized, self.in_snapshot) = (true, false),
            Ok(Message::Hello(other)) => {
                self.synchronized = false;
                self.log.refuse(Refusal::Version(other));
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
            if let Some((name, hard)) = self.sas.expired(event) {
                self.log.counts.reports += 1;
                self.outbox.expired(name, hard);
            }
        }
        if !self.synchronized {
            return; // counters are there later as well
        }
        for (name, used) in self.sas.news(keying) {
            self.log.counts.reports += 1;
            self.outbox.used(name, used);
        }
    }

    /// Has the agent tell of everything that its kernel has told until now; then [`synced`](Self::synced) is this number, and all of that
    /// was replayed.
    pub fn sync(&mut self, number: u32) {
        self.outbox.sync(number);
    }

    /// The number that was synced last.
    pub fn synced(&self) -> u32 {
        self.synced
    }

    /// The next bytes for the agent.
    pub fn poll_transmit(&mut self) -> Option<Zeroizing<Vec<u8>>> {
        self.outbox.next(self.synchronized)
    }

    /// What could not be replayed since somebody asked last.
    pub fn poll_refusal(&mut self) -> Option<Refusal> {
        self.log.next()
    }

    /// The reqids of SAs that are there, for a host whose NIC works by them for others than the host (`Keying::lend_sas`).
    pub fn reqids(&self) -> BTreeSet<u32> {
        self.sas.reqids()
    }

    /// How many SAs of a reqid are there: so many are lent if all are.
    pub fn sas_of(&self, reqid: u32) -> usize {
        self.sas.count_of(reqid)
    }

    /// The reqids of SAs that came or went since somebody asked last: those to lend anew.
    pub fn poll_reqids(&mut self) -> BTreeSet<u32> {
        self.sas.poll_changed()
    }

    /// What was counted so far.
    pub fn counters(&self) -> MirrorCounters {
        self.log.counts
    }

    fn replay(&mut self, now: Instant, change: Change, keying: &mut dyn Keying) {
        if let Change::SnapshotBegins = change {
            self.snapshot += 1;
            self.in_snapshot = true;
            return self.policies.begin_snapshot();
        }
        let Mirror { sas, policies, snapshot, in_snapshot, outbox, log, most, .. } = self;
        let to = &mut Replay { now, snapshot: *snapshot, most: *most, keying, outbox, log };
        match change {
            Change::SnapshotEnds if core::mem::take(in_snapshot) => {
                to.log.counts.snapshots += 1;
                sas.end_snapshot(to);
                policies.end_snapshot(to);
            }
            // It began before a hello, and is followed by another one.
            Change::SnapshotBegins | Change::SnapshotEnds => {}
            Change::Sa(sa) => sas.put(to, *sa),
            Change::SaUnsupported(name, why) => sas.unsupported(to, name, why),
            Change::SaGone(name) => sas.gone(to, (name.destination, name.spi)),
            Change::AllSasGone => sas.all_gone(to),
            Change::Policy(policy) => policies.put(to, policy),
            Change::PolicyGone(index) => policies.gone(to, index),
            Change::AllPoliciesGone => policies.all_gone(to),
            Change::Defaults { receive, transmit } => policies.set_defaults(to, receive, transmit),
        }
    }

    /// What the agent says makes no sense: it is to begin again.
    fn lose(&mut self, error: FrameError) {
        self.synchronized = false;
        self.log.counts.bad_frames += 1;
        self.outbox.ask();
        self.log.refuse(Refusal::Frame(error));
    }
}

/// How many SAs, and how many policies.
const MOST: usize = 1 << 16;
