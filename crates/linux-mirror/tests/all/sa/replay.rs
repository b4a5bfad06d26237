//! Tests of kernel, agent and mirror together. After all messages are processed, the mirror equals the kernel, whatever
//! the history: notices, dropped notices, agents that die in the middle of a message, and restarted mirrors.

use super::kernel::{FakeKernel, KernelPolicy, KernelSa};
use core::net::IpAddr;
use core::time::Duration;
use ipsec::{KeyedDevice, Keying, KeyingError, SaAdded, SaEvent, SaId, SaUse, SecureDevice};
use linux_mirror::sa::{
    FrameDecoder, KernelSaId, KernelSaUse, Message, MirroredPolicy, SaChange, SaMirror, SaMirrorRefusal, SaReport,
    SaWatcher, UnsupportedSa, encode,
};
use nic_sim::{NicConfig, nic};
use offload_api::{Direction, EspKey, Handle, Lifetime, Limit, OffloadKind, SaParams};
use offload_base::Instant;
use proptest::collection::vec;
use proptest::prelude::*;
use std::collections::VecDeque;

/// A kernel, an agent, a mirror and a `Keying`.
struct MirrorPair {
    kernel: FakeKernel,
    watcher: SaWatcher,
    decoder: FrameDecoder,
    /// Bytes on their way to the mirror.
    stream: VecDeque<u8>,
    mirror: SaMirror,
    secure: SecureDevice,
    keys: u64,
}

impl MirrorPair {
    fn new(offload: OffloadKind) -> MirrorPair {
        let (_device, driver) = nic(NicConfig::default());
        let mut pair = MirrorPair {
            kernel: FakeKernel::default(),
            watcher: SaWatcher::new(),
            decoder: FrameDecoder::new(),
            stream: VecDeque::new(),
            mirror: SaMirror::new(&[HERE]).offloaded(offload),
            secure: SecureDevice::new(Box::new(driver)),
            keys: 0,
        };
        pair.say(&Message::hello());
        pair
    }

    fn say(&mut self, message: &Message) {
        self.stream.extend(encode(message).iter());
    }

    fn keying(&mut self) -> &mut dyn Keying {
        self.secure.keying().unwrap()
    }

    /// Lets the agent read the kernel's pending messages.
    fn hear_kernel(&mut self) {
        loop {
            while let Some(request) = self.watcher.poll_request() {
                self.kernel.request(&request);
            }
            if self.kernel.queue.is_empty() {
                // A socket reports dropped messages before any other.
                if core::mem::take(&mut self.kernel.full) {
                    self.watcher.request_snapshot();
                    continue;
                }
                if let Some(number) = self.watcher.poll_synced() {
                    self.say(&Message::Synced(number));
                }
                return;
            }
            for datagram in core::mem::take(&mut self.kernel.queue) {
                let mut said = Vec::new();
                self.watcher.handle_datagram(NOW, &datagram, |change| said.push(Message::Change(change))).unwrap();
                said.iter().for_each(|message| self.say(message));
            }
        }
    }

    /// Lets the mirror read at most `bytes` bytes of the stream.
    fn deliver(&mut self, bytes: usize) {
        let bytes: Vec<u8> = self.stream.drain(..bytes.min(self.stream.len())).collect();
        self.mirror.receive(Instant::ZERO, &bytes, self.secure.keying().unwrap());
    }

    /// Lets the agent read the mirror's messages. Returns the reports.
    fn hear_mirror(&mut self) -> Vec<SaReport> {
        let (mut asked, mut reports, mut sync) = (false, Vec::new(), None);
        while let Some(bytes) = self.mirror.poll_transmit() {
            self.decoder.decode(&bytes, |message| match message.unwrap() {
                Message::Ask(_) => asked = true,
                Message::Report(report) => reports.push(report),
                Message::Sync(number) => sync = Some(number),
                other => panic!("{other:?}"),
            });
        }
        sync.into_iter().for_each(|number| self.watcher.sync(number));
        if asked {
            self.watcher.request_snapshot();
            self.say(&Message::hello());
        }
        reports
    }

    /// Runs until no side has pending messages.
    fn exchange_all(&mut self) {
        for _ in 0..4 {
            self.hear_mirror();
            self.hear_kernel();
            self.deliver(usize::MAX);
        }
    }

    fn add_sa(&mut self, spi: u32, received: bool) {
        self.keys += 1;
        let (source, destination) = if received { (THERE, HERE) } else { (HERE, THERE) };
        self.kernel.add_sa(KernelSa::new(source, destination, spi, self.keys));
    }

    /// Checks that the installed SAs and policies equal the kernel's.
    fn check(&mut self) {
        for spi in 0x100..0x108 {
            for (direction, source, destination) in
                [(Direction::Transmit, HERE, THERE), (Direction::Receive, THERE, HERE)]
            {
                let name = match destination {
                    IpAddr::V4(address) => [&address.octets()[..], &[0; 12]].concat(),
                    IpAddr::V6(_) => unreachable!(),
                };
                let there = self.keying().find_sa(direction, spi, source, destination).is_some();
                assert_eq!(there, self.kernel.sas.contains_key(&(name, spi)), "{direction:?} {spi:#x}");
            }
        }
        for index in 0..6 {
            let policy = self.kernel.policies.get(&index).cloned();
            // The only way to query a policy is to delete and add it again.
            for priority in [index, index + 100] {
                let expected = policy.as_ref().is_some_and(|policy| policy.info.priority == priority);
                let selector = offload_api::Selector {
                    source: Some(offload_api::Prefix::host(other(index))),
                    destination: Some(offload_api::Prefix::host(HERE)),
                    ..offload_api::Selector::ANY
                };
                let there = self.keying().delete_policy(Direction::Receive, &selector, priority).is_ok();
                assert_eq!(there, expected, "policy {index} of priority {priority}");
                if there {
                    let template = offload_api::Template::transport(1);
                    let action = offload_api::Action::Protect(template);
                    let policy = offload_api::Policy { direction: Direction::Receive, selector, priority, action };
                    self.keying().add_policy(policy).unwrap();
                }
            }
        }
    }
}

#[derive(Clone, Debug)]
enum HistoryStep {
    AddSa(u32, bool),
    UpdateSa(usize, u64),
    DeleteSa(usize, bool),
    PutPolicy(u32, bool),
    DeletePolicy(usize),
    /// The agent reads the kernel's messages.
    Hear,
    Deliver(usize),
    /// The kernel drops messages from now on, until the agent notices.
    Full,
    AgentDies,
    /// The connection is lost, and a new one opened.
    Reconnect,
    Settle,
}

fn steps() -> impl Strategy<Value = Vec<HistoryStep>> {
    vec(
        prop_oneof![
            4 => (0x100..0x108u32, any::<bool>()).prop_map(|(spi, received)| HistoryStep::AddSa(spi, received)),
            2 => (0..8usize, 1..1000u64).prop_map(|(number, packets)| HistoryStep::UpdateSa(number, packets)),
            3 => (0..8usize, any::<bool>()).prop_map(|(number, expires)| HistoryStep::DeleteSa(number, expires)),
            3 => (0..6u32, any::<bool>()).prop_map(|(index, changed)| HistoryStep::PutPolicy(index, changed)),
            2 => (0..6usize).prop_map(HistoryStep::DeletePolicy),
            4 => Just(HistoryStep::Hear),
            4 => (1..300usize).prop_map(HistoryStep::Deliver),
            1 => Just(HistoryStep::Full),
            1 => Just(HistoryStep::AgentDies),
            1 => Just(HistoryStep::Reconnect),
            1 => Just(HistoryStep::Settle),
        ],
        0..60,
    )
}

proptest! {
    #[test]
    fn mirror_equals_the_kernel_after_any_history(steps in steps(), offload in prop_oneof![Just(OffloadKind::None), Just(OffloadKind::Packet)]) {
        let mut pair = MirrorPair::new(offload);
        for step in steps {
            match step {
                HistoryStep::AddSa(spi, received) => pair.add_sa(spi, received),
                HistoryStep::UpdateSa(number, packets) => pair.kernel.update_sa(number, packets),
                HistoryStep::DeleteSa(number, expires) => pair.kernel.delete_sa(number, expires),
                HistoryStep::PutPolicy(index, changed) => {
                    let priority = if changed { index + 100 } else { index };
                    pair.kernel.put_policy(KernelPolicy::new(index, 0, other(index), HERE, priority));
                }
                HistoryStep::DeletePolicy(number) => pair.kernel.delete_policy(number),
                HistoryStep::Hear => pair.hear_kernel(),
                HistoryStep::Deliver(bytes) => pair.deliver(bytes),
                HistoryStep::Full => pair.kernel.full = true,
                HistoryStep::AgentDies => {
                    // The dead agent's unsent bytes are lost, perhaps in the middle of a message, and its socket is
                    // closed.
                    pair.kernel.queue.clear();
                    pair.kernel.full = false;
                    let left = pair.stream.len() / 2;
                    pair.stream.truncate(left);
                    (pair.watcher, pair.decoder) = (SaWatcher::new(), FrameDecoder::new());
                    pair.say(&Message::hello());
                }
                HistoryStep::Reconnect => {
                    pair.stream.clear();
                    pair.mirror.connect();
                }
                HistoryStep::Settle => {
                    pair.exchange_all();
                    pair.check();
                }
            }
        }
        pair.exchange_all();
        pair.check();
    }
}

#[test]
fn snapshot_applies_at_its_last_byte() {
    let mut pair = MirrorPair::new(OffloadKind::None);
    pair.kernel.put_policy(KernelPolicy::new(1, 0, other(1), HERE, 7));
    pair.hear_kernel();
    pair.deliver(pair.stream.len() - 1);
    assert_eq!(pair.mirror.counters().snapshots, 0);
    pair.deliver(1);
    assert_eq!(pair.mirror.counters().snapshots, 1);
}

#[test]
fn snapshot_keeps_unchanged_sas() {
    let mut pair = MirrorPair::new(OffloadKind::Packet);
    pair.add_sa(0x100, false);
    pair.exchange_all();
    let before = (pair.mirror.counters(), pair.keying().find_sa(Direction::Transmit, 0x100, HERE, THERE));
    pair.watcher.request_snapshot();
    pair.exchange_all();
    let after = (pair.mirror.counters(), pair.keying().find_sa(Direction::Transmit, 0x100, HERE, THERE));
    assert_eq!(before.1, after.1);
    assert_eq!((after.0.sas_added, after.0.sas_deleted, after.0.snapshots), (1, 0, before.0.snapshots + 1));
}

#[test]
fn sa_that_becomes_unsupported_is_deleted() {
    let mut pair = MirrorPair::new(OffloadKind::Packet);
    pair.add_sa(0x100, true);
    pair.exchange_all();
    assert!(pair.keying().find_sa(Direction::Receive, 0x100, THERE, HERE).is_some());
    let name = KernelSaId { source: THERE, destination: HERE, spi: 0x100 };
    pair.say(&Message::Change(SaChange::SaUnsupported(name, UnsupportedSa::Mark)));
    pair.deliver(usize::MAX);
    assert!(pair.keying().find_sa(Direction::Receive, 0x100, THERE, HERE).is_none());
}

/// The kernel distinguishes policies by more than is mirrored, and gives a re-added policy a new index. In any order of
/// events, a policy is installed while the kernel has one, and an unsupported policy lets nothing pass.
#[test]
fn policies_with_equal_selectors_replace_each_other() {
    let selector =
        offload_api::Selector { destination: Some(offload_api::Prefix::host(THERE)), ..offload_api::Selector::ANY };
    let protect = offload_api::Action::Protect(offload_api::Template::transport(1));
    let policy = |index, action| {
        let direction = Direction::Transmit;
        Message::Change(SaChange::Policy(MirroredPolicy { index, direction, selector, priority: 5, action }))
    };
    // An installed policy shows by the refusal of an equal one.
    let in_force = |pair: &mut MirrorPair, action| {
        let keying = pair.keying();
        let policy = offload_api::Policy { direction: Direction::Transmit, selector, priority: 5, action };
        assert_eq!(keying.add_policy(policy), Err(ipsec::KeyingError::Exists), "a policy is installed");
    };
    let mut pair = MirrorPair::new(OffloadKind::None);
    pair.say(&Message::Change(SaChange::SnapshotBegins));
    pair.say(&policy(9, Ok(protect)));
    pair.say(&Message::Change(SaChange::SnapshotEnds));
    pair.say(&Message::Change(SaChange::SnapshotBegins));
    pair.say(&policy(17, Ok(protect)));
    pair.say(&Message::Change(SaChange::SnapshotEnds));
    pair.deliver(usize::MAX);
    in_force(&mut pair, protect);
    // An unsupported policy overrides both; when it goes, the other one returns.
    pair.say(&policy(18, Err(UnsupportedSa::Mark)));
    pair.deliver(usize::MAX);
    let before = pair.mirror.counters();
    pair.say(&Message::Change(SaChange::PolicyGone(18)));
    pair.deliver(usize::MAX);
    in_force(&mut pair, protect);
    let after = pair.mirror.counters();
    assert_eq!(
        (after.policies_deleted, after.policies_added),
        (before.policies_deleted + 1, before.policies_added + 1)
    );
    pair.say(&Message::Change(SaChange::PolicyGone(17)));
    pair.deliver(usize::MAX);
    assert!(pair.keying().delete_policy(Direction::Transmit, &selector, 5).is_err(), "no policy is installed any more");
}

#[test]
fn reused_key_is_refused_and_expired() {
    let mut pair = MirrorPair::new(OffloadKind::None);
    pair.add_sa(0x100, false);
    pair.exchange_all();
    // A NAT changed a port: the same key under other parameters.
    let mut sa = pair.kernel.sas.values().next().unwrap().clone();
    sa.info.reqid = 7;
    pair.kernel.add_sa(sa);
    pair.hear_kernel();
    pair.deliver(usize::MAX);
    let name = KernelSaId { source: HERE, destination: THERE, spi: 0x100 };
    assert_eq!(pair.mirror.poll_refusal(), Some(SaMirrorRefusal::Sa(name, KeyingError::KeyReused)));
    assert_eq!(pair.hear_mirror(), [SaReport::Expired(name, false)]);
}

#[test]
fn sa_gets_its_remaining_lifetime_and_total_use() {
    let mut sa = KernelSa::new(HERE, THERE, 0x100, 1);
    let limits = &mut sa.info.lifetime_cfg;
    (limits.soft_packet_limit, limits.hard_packet_limit, limits.hard_byte_limit) = (80, 100, 5000);
    (sa.info.lifetime_cur.packets, sa.info.lifetime_cur.bytes) = (90, 4000);
    let mut pair = MirrorPair::new(OffloadKind::None);
    let mut recorder =
        RecordingKeying { used: SaUse { packets: 3, bytes: 30, number: 3 }, ..RecordingKeying::default() };
    pair.kernel.add_sa(sa);
    pair.hear_kernel();
    let bytes: Vec<u8> = pair.stream.drain(..).collect();
    pair.mirror.receive(Instant::ZERO, &bytes, &mut recorder);
    let Lifetime { soft, hard } = recorder.added[0].lifetime;
    assert_eq!((soft.packets, hard.packets, hard.bytes, soft.bytes), (Some(1), Some(10), Some(1000), None));
    pair.hear_mirror();
    pair.mirror.report(&mut recorder);
    let name = KernelSaId { source: HERE, destination: THERE, spi: 0x100 };
    assert_eq!(pair.hear_mirror(), [SaReport::Used(name, KernelSaUse { packets: 93, bytes: 4030 })]);
    pair.mirror.report(&mut recorder);
    assert_eq!(pair.hear_mirror(), [], "no new use");
    for (event, hard) in [
        (SaEvent::SoftLimit { sa: ID, limit: Limit::Packets }, false),
        (SaEvent::HardLimit { sa: ID, limit: Limit::Packets }, true),
        (SaEvent::SequenceExhausted { sa: ID }, true),
    ] {
        recorder.events.push(event);
        pair.mirror.report(&mut recorder);
        assert_eq!(pair.hear_mirror(), [SaReport::Expired(name, hard)], "{event:?}");
    }
}

/// A `Keying` that records its calls.
#[derive(Default)]
struct RecordingKeying {
    added: Vec<SaParams>,
    updated: Vec<Lifetime>,
    policies: Vec<offload_api::Policy>,
    bypass: [bool; 2],
    used: SaUse,
    events: Vec<SaEvent>,
}

impl Keying for RecordingKeying {
    fn add_sa(&mut self, _: Instant, sa: SaParams) -> Result<SaAdded, KeyingError> {
        let spi = sa.spi;
        self.added.push(sa);
        Ok(SaAdded { sa: ID, spi, refused: None })
    }
    fn update_sa(&mut self, _: Instant, _: SaId, lifetime: Lifetime) -> Result<(), KeyingError> {
        self.updated.push(lifetime);
        Ok(())
    }
    fn rekey_sa(&mut self, _: Instant, _: SaId, _: u32, _: EspKey) -> Result<SaAdded, KeyingError> {
        Err(KeyingError::NotFound)
    }
    fn delete_sa(&mut self, _: SaId) -> Result<(), KeyingError> {
        Ok(())
    }
    fn find_sa(&self, _: Direction, _: u32, _: IpAddr, _: IpAddr) -> Option<SaId> {
        None
    }
    fn sa_use(&self, _: SaId) -> Option<SaUse> {
        Some(self.used)
    }
    fn lend_sas(&mut self, _: Direction, _: u32) -> Result<Vec<offload_api::Handle>, KeyingError> {
        Ok(Vec::new())
    }
    fn add_policy(&mut self, policy: offload_api::Policy) -> Result<(), KeyingError> {
        self.policies.push(policy);
        Ok(())
    }
    fn delete_policy(
        &mut self,
        direction: Direction,
        selector: &offload_api::Selector,
        priority: u32,
    ) -> Result<(), KeyingError> {
        let is_meant =
            |one: &offload_api::Policy| (one.direction, one.selector, one.priority) == (direction, *selector, priority);
        let before = self.policies.len();
        self.policies.retain(|one| !is_meant(one));
        if self.policies.len() < before { Ok(()) } else { Err(KeyingError::NotFound) }
    }
    fn policies(&self, direction: Direction) -> Vec<offload_api::Policy> {
        self.policies.iter().filter(|policy| policy.direction == direction).copied().collect()
    }
    fn set_default(&mut self, direction: Direction, bypass: bool) {
        self.bypass[direction as usize] = bypass;
    }
    fn poll_sa_event(&mut self) -> Option<SaEvent> {
        self.events.pop()
    }
    fn write_numbers(&mut self) {}
}

#[test]
fn sync_completes_after_all_earlier_changes() {
    let mut pair = MirrorPair::new(OffloadKind::None);
    pair.exchange_all();
    pair.mirror.sync(7);
    let mut numbers = Vec::new();
    while let Some(bytes) = pair.mirror.poll_transmit() {
        pair.decoder.decode(&bytes, |message| numbers.extend(matches!(message, Ok(Message::Sync(7))).then_some(7)));
    }
    assert_eq!(numbers, [7]);
    pair.add_sa(0x100, false);
    pair.hear_kernel();
    pair.say(&Message::Synced(7));
    pair.deliver(pair.stream.len() - 1);
    assert_eq!(pair.mirror.synced(), 0);
    pair.deliver(1);
    assert_eq!(pair.mirror.synced(), 7);
    assert!(pair.keying().find_sa(Direction::Transmit, 0x100, HERE, THERE).is_some());
}

#[test]
fn sync_waits_for_dropped_messages() {
    let mut pair = MirrorPair::new(OffloadKind::None);
    pair.exchange_all();
    pair.kernel.full = true;
    pair.add_sa(0x100, false);
    pair.mirror.sync(7);
    pair.hear_mirror();
    // The agent notices the dropped messages, but has no answer yet.
    pair.kernel.full = false;
    pair.watcher.request_snapshot();
    assert_eq!(pair.watcher.poll_synced(), None);
    let dump = pair.watcher.poll_request().expect("a snapshot must be requested");
    assert_eq!(pair.watcher.poll_synced(), None);
    pair.kernel.request(&dump);
    pair.hear_kernel();
    pair.deliver(usize::MAX);
    assert_eq!(pair.mirror.synced(), 7);
    assert!(pair.keying().find_sa(Direction::Transmit, 0x100, HERE, THERE).is_some());
    pair.hear_kernel();
    assert!(pair.stream.is_empty(), "the sync is answered once");
}

/// The kernel's SA received no packets, so its reported number is 0.
#[test]
fn re_added_receive_sa_continues_its_numbers() {
    let mut pair = MirrorPair::new(OffloadKind::None);
    let mut recorder =
        RecordingKeying { used: SaUse { packets: 3, bytes: 30, number: 77 }, ..RecordingKeying::default() };
    pair.add_sa(0x100, true);
    let mut sa = pair.kernel.sas.values().next().unwrap().clone();
    // Returns the number of added SAs, and the last one's starting number.
    let mut heard = |pair: &mut MirrorPair| {
        pair.hear_kernel();
        let bytes: Vec<u8> = pair.stream.drain(..).collect();
        pair.mirror.receive(Instant::ZERO, &bytes, &mut recorder);
        (recorder.added.len(), recorder.added.last().unwrap().last_number)
    };
    assert_eq!(heard(&mut pair), (1, 0));
    sa.info.reqid = 7;
    pair.kernel.add_sa(sa.clone());
    assert_eq!(heard(&mut pair), (2, 77), "changed parameters give another SA");
    pair.kernel.delete_sa(0, false);
    pair.kernel.add_sa(sa);
    assert_eq!(heard(&mut pair), (3, 77), "the SA was deleted and added again");
    pair.kernel.delete_sa(0, false);
    pair.add_sa(0x100, true);
    assert_eq!(heard(&mut pair), (4, 0), "a new key starts at 0");
}

#[test]
fn new_limit_counts_unreported_use() {
    let mut pair = MirrorPair::new(OffloadKind::None);
    let mut recorder = RecordingKeying::default();
    let mut sa = KernelSa::new(HERE, THERE, 0x100, 1);
    sa.info.lifetime_cfg.hard_byte_limit = 5000;
    sa.info.lifetime_cfg.hard_add_expires_seconds = 100;
    let mut put = |pair: &mut MirrorPair, sa: &KernelSa, seconds: u64, bytes: u64| {
        pair.kernel.add_sa(sa.clone());
        pair.hear_kernel();
        let stream: Vec<u8> = pair.stream.drain(..).collect();
        recorder.used = SaUse { packets: 1, bytes, number: 1 };
        pair.mirror.receive(Instant::ZERO + Duration::from_secs(seconds), &stream, &mut recorder);
        core::mem::take(&mut recorder.updated).pop().map(|lifetime| (lifetime.hard.bytes, lifetime.hard.time))
    };
    assert_eq!(put(&mut pair, &sa, 0, 0), None);
    // No report was requested meanwhile.
    sa.info.lifetime_cfg.hard_byte_limit = 6000;
    let hundred = Some(Duration::from_secs(100));
    assert_eq!(put(&mut pair, &sa, 0, 4000), Some((Some(2000), hundred)));
    // Remaining time that decreases by itself is no change; a longer, shorter or removed limit is.
    sa.info.lifetime_cfg.hard_add_expires_seconds = 60;
    assert_eq!(put(&mut pair, &sa, 40, 4000), None, "60 seconds remain");
    sa.info.lifetime_cfg.hard_add_expires_seconds = 80;
    assert_eq!(put(&mut pair, &sa, 40, 4000), Some((Some(2000), Some(Duration::from_secs(80)))), "20 seconds longer");
    sa.info.lifetime_cfg.hard_add_expires_seconds = 10;
    assert_eq!(put(&mut pair, &sa, 40, 4000), Some((Some(2000), Some(Duration::from_secs(10)))));
    sa.info.lifetime_cfg.hard_add_expires_seconds = 0;
    assert_eq!(put(&mut pair, &sa, 40, 4000), Some((Some(2000), None)), "the limit is removed");
}

#[test]
fn excess_policies_let_nothing_pass() {
    let mut pair = MirrorPair::new(OffloadKind::None);
    pair.mirror = SaMirror::new(&[HERE]).with_room_for(4);
    let mut recorder = RecordingKeying::default();
    let put = |pair: &mut MirrorPair, index: u32| {
        pair.kernel.put_policy(KernelPolicy::new(index, 0, other(index), HERE, index))
    };
    // Three rounds suffice for a request, its answer and the resulting changes.
    let mut deliver = |pair: &mut MirrorPair| {
        for _ in 0..3 {
            pair.hear_kernel();
            let bytes: Vec<u8> = pair.stream.drain(..).collect();
            pair.mirror.receive(Instant::ZERO, &bytes, &mut recorder);
            pair.hear_mirror();
        }
        (recorder.bypass, recorder.policies.iter().map(|policy| policy.priority).collect::<Vec<_>>())
    };
    (0..4).for_each(|index| put(&mut pair, index));
    assert_eq!(deliver(&mut pair), ([true; 2], vec![0, 1, 2, 3]));
    // One policy too many, which cannot be enforced.
    put(&mut pair, 4);
    assert_eq!(deliver(&mut pair), ([false; 2], vec![]));
    assert_eq!(pair.mirror.poll_refusal(), Some(SaMirrorRefusal::TooManyPolicies(4)));
    // Other messages do not help: the policy is still missing.
    pair.say(&Message::Change(SaChange::Defaults { receive: true, transmit: true }));
    pair.watcher.request_snapshot();
    assert_eq!(deliver(&mut pair), ([false; 2], vec![]));
    // With room again, a snapshot is requested, which brings the missing policy.
    pair.kernel.delete_policy(1);
    assert_eq!(deliver(&mut pair), ([true; 2], vec![0, 2, 3, 4]));
    (5..7).for_each(|index| put(&mut pair, index));
    assert_eq!(deliver(&mut pair).0, [false; 2]);
    // The excess policies, which are not held here, are deleted.
    [5, 4].into_iter().for_each(|place| pair.kernel.delete_policy(place));
    assert_eq!(deliver(&mut pair), ([true; 2], vec![0, 2, 3, 4]));
    (5..7).for_each(|index| put(&mut pair, index));
    assert_eq!(deliver(&mut pair).0, [false; 2]);
    pair.say(&Message::Change(SaChange::AllPoliciesGone));
    assert_eq!(deliver(&mut pair), ([true; 2], vec![]), "an empty set is within the limit");
}

#[test]
fn defaults_apply_after_the_first_snapshot() {
    let mut pair = MirrorPair::new(OffloadKind::None);
    let mut recorder = RecordingKeying::default();
    pair.mirror = SaMirror::new(&[HERE]);
    let mut says = |pair: &mut MirrorPair, message: Message| {
        pair.say(&message);
        let bytes: Vec<u8> = pair.stream.drain(..).collect();
        pair.mirror.receive(Instant::ZERO, &bytes, &mut recorder);
        recorder.bypass
    };
    says(&mut pair, Message::hello());
    says(&mut pair, Message::Change(SaChange::SnapshotBegins));
    let passes = SaChange::Defaults { receive: true, transmit: true };
    assert_eq!(says(&mut pair, Message::Change(passes)), [false; 2], "a dropping policy may be missing");
    assert_eq!(says(&mut pair, Message::Change(SaChange::SnapshotEnds)), [true; 2]);
}

#[test]
fn agent_that_never_reads_causes_no_memory_growth() {
    let mut pair = MirrorPair::new(OffloadKind::None);
    pair.add_sa(0x100, false);
    pair.exchange_all();
    let mut sa = pair.kernel.sas.values().next().unwrap().clone();
    for reqid in 2..100 {
        // A request from an agent is malformed and gets an answer, and so does a reused key.
        pair.say(&Message::Ask(1));
        pair.say(&Message::hello());
        sa.info.reqid = reqid;
        pair.kernel.add_sa(sa.clone());
        pair.hear_kernel();
        pair.deliver(usize::MAX);
        pair.mirror.sync(reqid);
    }
    let waiting = core::iter::from_fn(|| pair.mirror.poll_transmit()).count();
    assert_eq!(waiting, 3, "a restart, a sync and an expiry");
}

#[test]
fn expiry_waits_for_an_agent() {
    let mut pair = MirrorPair::new(OffloadKind::None);
    let mut recorder = RecordingKeying::default();
    pair.add_sa(0x100, false);
    pair.hear_kernel();
    let bytes: Vec<u8> = pair.stream.drain(..).collect();
    pair.mirror.receive(Instant::ZERO, &bytes, &mut recorder);
    pair.hear_mirror();
    pair.mirror.connect();
    recorder.events.push(SaEvent::HardLimit { sa: ID, limit: Limit::Packets });
    pair.mirror.report(&mut recorder);
    assert_eq!(pair.hear_mirror(), []);
    let bytes: Vec<u8> = pair.stream.drain(..).collect();
    pair.mirror.receive(Instant::ZERO, &bytes, &mut recorder);
    let name = KernelSaId { source: HERE, destination: THERE, spi: 0x100 };
    assert_eq!(pair.hear_mirror(), [SaReport::Expired(name, true)]);
}

#[test]
fn other_protocol_version_is_refused() {
    let mut pair = MirrorPair::new(OffloadKind::None);
    pair.stream.clear();
    pair.say(&Message::Hello(2));
    pair.exchange_all();
    let refused: Vec<_> = core::iter::from_fn(|| pair.mirror.poll_refusal()).collect();
    assert!(refused.contains(&SaMirrorRefusal::Version(2)), "{refused:?}");
}

/// Returns the peer address of policy `index`.
fn other(index: u32) -> IpAddr {
    [10, 0, 1, index as u8].into()
}

const HERE: IpAddr = IpAddr::V4(core::net::Ipv4Addr::new(10, 0, 0, 1));
const THERE: IpAddr = IpAddr::V4(core::net::Ipv4Addr::new(10, 0, 0, 2));
const NOW: u64 = 1000;
const ID: SaId = SaId(Handle { index: 3, generation: 0 });
