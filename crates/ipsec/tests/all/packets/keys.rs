//! No key and salt send under one number twice, and none is received twice, by whatever door they come: added, deleted and
//! added again, as successors, in another layer, in a process that begins anew.

use super::KINDS;
use super::rig::{End, NOW, address, frame, sa, tcp};
use core::time::Duration;
use ipsec::{KeyMemory, KeyedDevice, KeyingError, Mark, NumberFile, NumberStore, SaEvent, SaId, SecureDevice};
use nic_sim::eswitch::EswitchCommand;
use nic_sim::frame::Frame;
use nic_sim::switch::SwitchMode;
use nic_sim::wire::Port;
use nic_sim::{Delays, NicConfig, SwitchConfig, Vport, switched_nic};
use offload_api::{
    Action, Direction, EspKey, EspMode, EspSuite, Limit, NetDevice, NoRecords, OffloadKind, Policy, SaParams, Selector,
    Template,
};
use offload_esp::EspAt;
use proptest::prelude::*;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::io;
use std::sync::{Arc, Mutex};

/// What is there when the next process begins.
#[derive(Clone, Debug, Default)]
struct Disk(Arc<Mutex<Content>>);

#[derive(Clone, Debug, Default)]
struct Content {
    marks: BTreeMap<(bool, Vec<u8>, u32), u64>,
    written: usize,
    broken: bool,
    /// What is written is there, and nobody knows: the folder could not be made durable.
    unsure: bool,
}

impl Disk {
    fn content(&self) -> std::sync::MutexGuard<'_, Content> {
        self.0.lock().unwrap()
    }

    fn written(&self) -> usize {
        self.content().written
    }
}

fn entry(direction: Direction, key: &EspKey, spi: u32) -> (bool, Vec<u8>, u32) {
    let sent = direction == Direction::Transmit;
    (sent, [key.key(), key.salt()].concat(), if sent { 0 } else { spi })
}

impl NumberStore for Disk {
    fn mark(&self, direction: Direction, key: &EspKey, spi: u32) -> u64 {
        self.content().marks.get(&entry(direction, key, spi)).copied().unwrap_or(0)
    }

    fn write(&mut self, marks: &[Mark<'_>]) -> io::Result<()> {
        let mut content = self.content();
        if content.broken {
            return Err(io::Error::other("no space"));
        }
        content.written += 1;
        let mut new = BTreeMap::new();
        for mark in marks {
            let number = new.entry(entry(mark.direction, mark.key, mark.spi)).or_insert(0);
            *number = mark.number.max(*number);
        }
        content.marks.extend(new);
        if content.unsure { Err(io::Error::other("it may be there")) } else { Ok(()) }
    }
}

/// A process that begins: a host of this number, and what there is of the last one.
fn begin(number: u8, disk: &Disk) -> End {
    End::remembering(number, NicConfig::default(), KeyMemory::new().with_store(disk.clone()))
}

/// It is killed: what it would have written at its end is not there.
fn kill(end: End, disk: &Disk) {
    let before = disk.content().clone();
    drop(end);
    *disk.content() = before;
}

fn transmitting(kind: OffloadKind) -> SaParams {
    sa(Direction::Transmit, kind, EspMode::Transport, false)
}

fn number_of(frame: &Frame) -> u64 {
    u64::from_be_bytes(frame.data[42..50].try_into().unwrap())
}

fn send_one(end: &mut End) -> Frame {
    end.send(tcp(false, b"one", None)).remove(0)
}

#[test]
fn a_key_that_was_used_sends_by_no_second_sa() {
    let mut end = End::new(1);
    end.key(&[transmitting(OffloadKind::None)]);
    let first = end.secure.sad().ids().next().unwrap();
    let again = SaParams { spi: 0x2001, reqid: 2, ..transmitting(OffloadKind::None) };
    let gmac = SaParams { key: EspKey::new(EspSuite::Aes128Gmac, &[7; 20]).unwrap(), ..again.clone() };
    let refused = Err(KeyingError::KeyReused);
    for params in [&again, &gmac, &SaParams { last_number: 1 << 40, ..again.clone() }] {
        assert_eq!(end.keying().add_sa(NOW, params.clone()), refused, "at the same time");
    }
    end.keying().delete_sa(first).unwrap();
    assert_eq!(end.keying().add_sa(NOW, again.clone()), refused, "one after the other");
    assert_eq!(end.keying().add_sa(NOW, transmitting(OffloadKind::None)), refused, "as it was");
    assert_eq!(end.secure.sad().len(), 0, "nothing is left of what was refused");
    let other = SaParams { key: EspKey::new(EspSuite::Aes128Gcm, &[8; 20]).unwrap(), ..again };
    let second = end.keying().add_sa(NOW, other).unwrap().sa;
    let back = end.keying().rekey_sa(NOW, second, 0x3001, transmitting(OffloadKind::None).key);
    assert_eq!(back, refused, "and back");
    let into = sa(Direction::Receive, OffloadKind::None, EspMode::Transport, false);
    let into = end.keying().add_sa(NOW, into.clone()).and_then(|added| {
        end.keying().delete_sa(added.sa)?;
        end.keying().add_sa(NOW, into)
    });
    assert!(into.is_ok(), "who receives chooses no nonces");
}

/// The other end counts from one as well.
#[test]
fn no_key_is_for_both_directions() {
    let answers = |spi| SaParams {
        spi,
        source: address(false, 2),
        destination: address(false, 1),
        ..sa(Direction::Receive, OffloadKind::None, EspMode::Transport, false)
    };
    let refused = Err(KeyingError::KeyOfOtherDirection);
    let mut end = End::new(1);
    end.key(&[transmitting(OffloadKind::None)]);
    assert_eq!(end.keying().add_sa(NOW, answers(0x1002)), refused);
    let other = SaParams { key: key(9), ..answers(0x1002) };
    let other = end.keying().add_sa(NOW, other).unwrap().sa;
    assert_eq!(end.keying().rekey_sa(NOW, other, 0x1003, answers(0).key), refused, "nor as a successor's");
    let mut end = End::new(1);
    end.key(&[answers(0x1002)]);
    assert_eq!(end.keying().add_sa(NOW, transmitting(OffloadKind::None)), refused);
    // It was not used by what was refused.
    let into = end.secure.sad().ids().next().unwrap();
    end.keying().delete_sa(into).unwrap();
    assert!(end.keying().add_sa(NOW, transmitting(OffloadKind::None)).is_ok());
}

#[test]
fn a_key_that_one_layer_used_no_other_of_the_memory_uses() {
    let memory = KeyMemory::new();
    let mut ends = [1, 2].map(|number| End::remembering(number, NicConfig::default(), memory.clone()));
    ends[0].key(&[transmitting(OffloadKind::None)]);
    assert_eq!(ends[1].keying().add_sa(NOW, transmitting(OffloadKind::None)), Err(KeyingError::KeyReused));
}

#[test]
fn a_process_goes_on_behind_what_the_last_one_may_have_sent() {
    const STEP: u64 = 1 << 20;
    for kind in KINDS {
        let disk = Disk::default();
        let mut end = begin(1, &disk);
        end.key(&[transmitting(kind)]);
        assert_eq!(disk.written(), 0, "nothing is sent yet");
        assert_eq!((number_of(&send_one(&mut end)), number_of(&send_one(&mut end))), (1, 2));
        assert_eq!(disk.written(), 1, "{kind:?}");
        kill(end, &disk);
        let mut end = begin(1, &disk);
        end.key(&[transmitting(kind)]);
        assert_eq!(number_of(&send_one(&mut end)), STEP + 1, "killed");
        end.keying().write_numbers();
        let written: Vec<u64> = disk.content().marks.values().copied().collect();
        assert_eq!(written, [STEP + 1], "{kind:?}: as far as it sent, before the layer ends");
        assert_eq!(number_of(&send_one(&mut end)), STEP + 2);
        drop(end);
        let mut end = begin(1, &disk);
        // What the file says counts if it is further on.
        end.key(&[SaParams { last_number: 5, ..transmitting(kind) }]);
        assert_eq!(number_of(&send_one(&mut end)), STEP + 3, "it ended in order");
        drop(end);
        let mut end = begin(1, &disk);
        end.key(&[SaParams { last_number: 9 * STEP, ..transmitting(kind) }]);
        assert_eq!(number_of(&send_one(&mut end)), 9 * STEP + 1);
    }
}

/// Processes that share a folder, as the programs of one user do.
#[test]
#[cfg(target_os = "linux")]
fn numbers_go_on_in_every_process_that_has_the_key() {
    let folder = tempfile::tempdir().unwrap();
    let begin = || {
        let memory = KeyMemory::new().with_store(NumberFile::in_folder(folder.path()).unwrap());
        End::remembering(1, NicConfig::default(), memory)
    };
    for kind in KINDS {
        let mut used = HashSet::new();
        // Each kind has another key; nonces do not depend on SPIs.
        let params = |spi| SaParams { spi, key: key(kind as usize), ..transmitting(kind) };
        for spi in [0x1001, 0x1001, 0x2001] {
            let (mut end, mut second) = (begin(), begin());
            end.key(&[params(spi)]);
            assert_eq!(second.keying().add_sa(NOW, params(0x3001)).err(), Some(KeyingError::KeyInUse));
            assert!((0..3).all(|_| used.insert(number_of(&send_one(&mut end)))), "{kind:?}: {used:?}");
            drop(end);
            assert!(second.keying().add_sa(NOW, params(0x3001)).is_ok());
        }
    }
}

#[test]
fn a_number_that_cannot_be_written_down_is_not_sent() {
    for kind in KINDS {
        let disk = Disk::default();
        disk.content().broken = true;
        let mut end = begin(1, &disk);
        end.key(&[transmitting(kind)]);
        let mut try_at = |milliseconds| {
            let now = NOW + Duration::from_millis(milliseconds);
            let _dropped = end.secure.transmit(now, tcp(false, b"one", None), &NoRecords);
            end.frames().len()
        };
        assert_eq!(try_at(0), 0);
        disk.content().broken = false;
        assert_eq!((try_at(999), try_at(1000)), (0, 1), "a full disk is not asked for each packet");
        assert_eq!(end.counted("ipsec_tx_numbers_unwritten"), 2, "{kind:?}");
    }
}

/// Whether keys would be refused is tried before a host begins, and may not come to pass.
#[test]
fn a_trial_writes_nothing_down() {
    for direction in [Direction::Transmit, Direction::Receive] {
        let disk = Disk::default();
        let memory = KeyMemory::new().with_store(disk.clone());
        let params = sa(direction, OffloadKind::None, EspMode::Transport, false);
        let mut end = End::remembering(1, NicConfig::default(), memory.trial());
        end.key(&[SaParams { last_number: 9 << 20, ..params.clone() }]);
        drop(end);
        assert_eq!(disk.written(), 0);
        let mut end = End::remembering(1, NicConfig::default(), memory);
        assert!(end.keying().add_sa(NOW, params).is_ok(), "nor is the key used");
        assert_eq!(end.secure.sad().ids().next().map(|id| end.secure.sad().find(id).unwrap().number()), Some(0));
    }
}

/// Of a write that failed, it may all be there.
#[test]
fn numbers_that_may_have_been_written_as_they_were_are_not_gone_beyond() {
    for kind in KINDS {
        let disk = Disk::default();
        let mut end = begin(1, &disk);
        end.key(&[transmitting(kind)]);
        let mut used = HashSet::from([number_of(&send_one(&mut end))]);
        disk.content().unsure = true;
        end.keying().write_numbers();
        disk.content().unsure = false;
        used.insert(number_of(&send_one(&mut end)));
        kill(end, &disk);
        let mut end = begin(1, &disk);
        end.key(&[transmitting(kind)]);
        assert!(used.insert(number_of(&send_one(&mut end))), "{kind:?}: {used:?}");
    }
}

/// Senders that share a key are told apart by their SAs: what one has sent says nothing of the other.
#[test]
fn sas_that_receive_under_one_key_are_each_held_to_their_own_numbers() {
    let disk = Disk::default();
    let receiving = |spi| SaParams { spi, ..sa(Direction::Receive, OffloadKind::None, EspMode::Transport, false) };
    let mut from = [0x1001, 0x1002].map(|spi| {
        let mut end = End::new(1);
        end.key(&[SaParams { spi, ..transmitting(OffloadKind::None) }]);
        end
    });
    for ended_in_order in [false, true] {
        let mut to = begin(2, &disk);
        to.key(&[receiving(0x1001), receiving(0x1002)]);
        let many: Vec<Frame> = (0..100).map(|_| send_one(&mut from[0])).collect();
        assert!(to.receive(many.iter().cloned()).len() > 50);
        to.receive([send_one(&mut from[1])]);
        if ended_in_order {
            drop(to);
        } else {
            kill(to, &disk);
        }
        let mut to = begin(2, &disk);
        to.key(&[receiving(0x1001), receiving(0x1002)]);
        assert_eq!(to.receive(many).len(), 0, "captured");
        let heard: usize = (0..60).map(|_| to.receive([send_one(&mut from[1])]).len()).sum();
        assert!(heard >= 20, "{heard} of the other's");
        kill(to, &disk);
    }
}

/// Two peers that share a key and an SPI: the one that stays does not take back what was written down of the one that went.
#[test]
fn what_one_that_went_received_stays_written_down_though_another_has_its_key_and_spi() {
    let disk = Disk::default();
    let of = |direction, from| {
        let tunnel = sa(direction, OffloadKind::None, EspMode::Tunnel, false);
        SaParams { source: address(false, from), ..tunnel }
    };
    let mut senders = [1, 3].map(|from| {
        let mut end = End::new(from);
        end.key(&[of(Direction::Transmit, from)]);
        end
    });
    let captured: Vec<Frame> = (0..9).map(|_| send_one(&mut senders[0])).collect();
    let mut to = begin(2, &disk);
    to.key(&[of(Direction::Receive, 1), of(Direction::Receive, 3)]);
    assert_eq!(to.receive(captured.iter().cloned()).len(), 9);
    to.receive([send_one(&mut senders[1])]);
    let first = to.keying().find_sa(Direction::Receive, 0x1001, address(false, 1), address(false, 2)).unwrap();
    to.keying().delete_sa(first).unwrap();
    drop(to);
    let mut to = begin(2, &disk);
    to.key(&[of(Direction::Receive, 1)]);
    assert_eq!(to.receive(captured).len(), 0);
    assert_eq!(to.receive([send_one(&mut senders[0])]).len(), 1, "what is new is heard");
}

#[test]
fn what_was_captured_is_not_accepted_by_the_next_process() {
    for kind in KINDS {
        let (mut from, disk) = (End::new(1), Disk::default());
        from.key(&[transmitting(OffloadKind::None)]);
        let captured: Vec<Frame> = (0..20).map(|_| send_one(&mut from)).collect();
        let params = sa(Direction::Receive, kind, EspMode::Transport, false);
        let mut to = begin(2, &disk);
        to.key(std::slice::from_ref(&params));
        assert_eq!(to.receive(captured[..9].iter().cloned()).len(), 9, "{kind:?}");
        assert!(disk.written() < 9);
        kill(to, &disk);
        let mut to = begin(2, &disk);
        to.key(std::slice::from_ref(&params));
        assert_eq!(to.receive(captured[..9].iter().cloned()).len(), 0, "{kind:?}");
        // Some that come are given up with those that came: not many, where not many come.
        let more: usize = (20..60).map(|_| to.receive([send_one(&mut from)]).len()).sum();
        assert!(more >= 30, "{more}");
        let later = send_one(&mut from);
        drop(to);
        let mut to = begin(2, &disk);
        to.key(&[params]);
        assert_eq!(to.receive([later.clone(), later]).len(), 1, "after an orderly end, all that come are new");
    }
}

#[test]
fn a_sender_that_begins_anew_is_heard_by_a_receiver_that_was_killed() {
    let disks = [Disk::default(), Disk::default()];
    let mut ends = [begin(1, &disks[0]), begin(2, &disks[1])];
    let params =
        [transmitting(OffloadKind::None), sa(Direction::Receive, OffloadKind::None, EspMode::Transport, false)];
    for round in 0..5 {
        ends[0].key(&params[..1]);
        ends[1].key(&params[1..]);
        for _ in 0..5000 {
            let frame = send_one(&mut ends[0]);
            assert_eq!(ends[1].receive([frame]).len(), 1, "round {round}");
        }
        let [from, to] = ends;
        kill(from, &disks[0]);
        kill(to, &disks[1]);
        ends = [begin(1, &disks[0]), begin(2, &disks[1])];
    }
}

#[derive(Clone, Debug)]
enum Step {
    Add(usize),
    Rekey(prop::sample::Index, usize),
    Delete(prop::sample::Index),
    Send(usize),
    /// One that was on the wire before.
    Replay(prop::sample::Index),
    Reset,
    /// Of the sender or of the receiver; killed.
    Begin(bool, bool),
    Break(bool),
    Time(u64),
}

fn step() -> impl Strategy<Value = Step> {
    use prop::sample::Index;
    prop_oneof![
        4 => (0..KEYS).prop_map(Step::Add),
        2 => (any::<Index>(), 0..KEYS).prop_map(|(which, key)| Step::Rekey(which, key)),
        2 => any::<Index>().prop_map(Step::Delete),
        6 => (1usize..4000).prop_map(Step::Send),
        3 => any::<Index>().prop_map(Step::Replay),
        1 => Just(Step::Reset),
        2 => any::<(bool, bool)>().prop_map(|(sender, killed)| Step::Begin(sender, killed)),
        1 => any::<bool>().prop_map(Step::Break),
        2 => (0u64..3000).prop_map(Step::Time),
    ]
}

const KEYS: usize = 4;

fn key(which: usize) -> EspKey {
    EspKey::new(EspSuite::Aes128Gcm, &[which as u8; 20]).unwrap()
}

fn protecting(direction: Direction) -> Policy {
    Policy { direction, selector: Selector::ANY, priority: 0, action: Action::Protect(Template::transport(1)) }
}

/// Frames that leave, all of them.
fn frames(end: &mut End) -> Vec<Frame> {
    let mut frames = Vec::new();
    for _ in 0..20 {
        end.secure.flush(NOW);
        end.device.process(NOW);
        frames.extend(core::iter::from_fn(|| end.device.poll_frame(NOW)));
        let _reset = end.secure.poll_event();
    }
    frames
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn no_number_is_sent_or_received_twice_under_a_key(
        steps in prop::collection::vec(step(), 1..80),
        kinds in prop::sample::select(KINDS.into_iter().flat_map(|from| KINDS.map(|to| [from, to])).collect::<Vec<_>>()),
    ) {
        let disks = [Disk::default(), Disk::default()];
        let open = |which: usize| {
            let mut end = begin(which as u8 + 1, &disks[which]);
            end.keying().add_policy(protecting([Direction::Transmit, Direction::Receive][which])).unwrap();
            end
        };
        let mut ends = [open(0), open(1)];
        let (mut spi, mut sas, mut now) = (0x1000, Vec::<SaId>::new(), NOW);
        // What each SPI's key is; what was on the wire, by key and number; and what came out at the other end.
        let (mut keys, mut used, mut came) = (HashMap::new(), HashSet::new(), HashSet::new());
        let (mut wire, mut word) = (Vec::<Frame>::new(), 0u32);
        for step in steps {
            let mut arriving = Vec::new();
            match step {
                Step::Add(which) => {
                    spi += 1;
                    let params = SaParams { spi, key: key(which), ..transmitting(kinds[0]) };
                    if let Ok(added) = ends[0].keying().add_sa(now, params) {
                        sas.push(added.sa);
                        keys.insert(spi, which);
                    }
                }
                Step::Rekey(old, which) => {
                    spi += 1;
                    if !sas.is_empty() && let Ok(added) = ends[0].keying().rekey_sa(now, *old.get(&sas), spi, key(which)) {
                        sas.push(added.sa);
                        keys.insert(spi, which);
                    }
                }
                Step::Delete(which) => {
                    if !sas.is_empty() {
                        let gone = sas.remove(which.index(sas.len()));
                        ends[0].keying().delete_sa(gone).unwrap();
                    }
                }
                Step::Send(bytes) => {
                    word += 1;
                    let data = [&word.to_be_bytes()[..], &vec![7; bytes]].concat();
                    let _or_refused = ends[0].secure.transmit(now, tcp(false, &data, None), &NoRecords);
                }
                Step::Replay(which) => arriving.extend((!wire.is_empty()).then(|| which.get(&wire).clone())),
                Step::Reset => ends.iter_mut().for_each(|end| end.device.reset(NOW)),
                Step::Begin(sender, killed) => {
                    let which = usize::from(!sender);
                    // What was posted leaves first; it is on the wire whatever becomes of the process.
                    let before = disks[which].content().clone();
                    if sender {
                        arriving.extend(frames(&mut ends[0]));
                        sas.clear();
                    }
                    let (fresh, broken) = (open(which), before.broken);
                    drop(core::mem::replace(&mut ends[which], fresh));
                    if killed {
                        *disks[which].content() = Content { broken, ..before };
                    }
                    // It read what was there before: read again what is there by now.
                    ends[which] = open(which);
                }
                Step::Break(broken) => disks.iter().for_each(|disk| disk.content().broken = broken),
                Step::Time(milliseconds) => now += Duration::from_millis(milliseconds),
            }
            for frame in frames(&mut ends[0]) {
                arriving.push(frame);
            }
            for frame in arriving {
                let Some(at) = EspAt::find(&frame.data) else { continue };
                let replayed = wire.iter().any(|before| before.data == frame.data);
                let which = keys[&at.spi];
                let number = u64::from_be_bytes(frame.data[at.esp + 8..at.esp + 16].try_into().unwrap());
                prop_assert!(replayed || used.insert((which, number)), "key {which} sent {number} twice");
                wire.push(frame.clone());
                let params = sa(Direction::Receive, kinds[1], EspMode::Transport, false);
                let _there_already = ends[1].keying().add_sa(now, SaParams { spi: at.spi, key: key(which), ..params });
                frames(&mut ends[1]);
                for plain in ends[1].receive([frame]) {
                    let word: [u8; 4] = plain[54..58].try_into().unwrap();
                    prop_assert!(came.insert(word), "{word:?} came twice");
                }
            }
        }
    }
}

#[test]
fn an_sa_that_is_lent_is_the_devices_alone_and_its_key_is_of_no_use_to_the_next_process() {
    let disk = Disk::default();
    let mut end = begin(1, &disk);
    let whole = sa(Direction::Transmit, OffloadKind::Packet, EspMode::Transport, false);
    let others = [
        SaParams { spi: 0x1002, reqid: 2, key: EspKey::new(EspSuite::Aes128Gcm, &[8; 20]).unwrap(), ..whole.clone() },
        SaParams {
            spi: 0x1003,
            offload: OffloadKind::None,
            key: EspKey::new(EspSuite::Aes128Gcm, &[9; 20]).unwrap(),
            ..whole.clone()
        },
    ];
    end.key(&others[1..]);
    end.key(&[whole.clone(), others[0].clone()]);
    let lent = end.keying().lend_sas(Direction::Transmit, 1).unwrap();
    assert_eq!(lent.len(), 1, "neither another's, nor one that the device has not");
    assert_eq!(end.keying().lend_sas(Direction::Transmit, 1).as_ref(), Ok(&lent), "it is lent once");
    assert_eq!(end.keying().lend_sas(Direction::Receive, 1), Ok(Vec::new()));
    // The host's own packets leave by the other one, though that is older.
    let frames = end.send(tcp(false, b"hello", None));
    assert_eq!(frames[0].data[34..38], 0x1003u32.to_be_bytes());
    // A device that was reset knows no numbers, and neither does the host.
    end.device.reset(NOW);
    end.device.process(NOW);
    while end.secure.poll_event().is_some() {}
    assert_eq!(end.keying().lend_sas(Direction::Transmit, 1), Ok(Vec::new()));
    assert_eq!(end.send(tcp(false, b"hello", None))[0].data[34..38], 0x1003u32.to_be_bytes());
    drop(end);
    let mut next = begin(1, &disk);
    next.key(core::slice::from_ref(&whole));
    let sa = next.keying().find_sa(Direction::Transmit, whole.spi, whole.source, whole.destination).unwrap();
    assert_eq!(next.keying().lend_sas(Direction::Transmit, 1), Err(KeyingError::UsedUp));
    let told = core::iter::from_fn(|| next.keying().poll_sa_event());
    assert!(told.eq([SaEvent::SoftLimit { sa, limit: Limit::Packets }]), "it needs a successor");
    // Which one gets, whatever became of its predecessor.
    next.key(&[SaParams { spi: 0x1004, key: EspKey::new(EspSuite::Aes128Gcm, &[10; 20]).unwrap(), ..whole }]);
    assert_eq!(next.keying().lend_sas(Direction::Transmit, 1).map(|lent| lent.len()), Ok(1));
    // What cannot be written down is not lent.
    next.key(&others[..1]);
    disk.content().broken = true;
    assert_eq!(next.keying().lend_sas(Direction::Transmit, 2), Err(KeyingError::NotWritten));
    disk.content().broken = false;
    assert_eq!(next.keying().lend_sas(Direction::Transmit, 2).map(|lent| lent.len()), Ok(1));
}

#[test]
fn a_receiving_sa_that_is_lent_opens_nothing_for_this_host() {
    let (mut sender, mut end) = (End::new(1), begin(2, &Disk::default()));
    let params = |direction, offload| sa(direction, offload, EspMode::Transport, false);
    sender.key(&[params(Direction::Transmit, OffloadKind::None)]);
    end.key(&[params(Direction::Receive, OffloadKind::Packet)]);
    assert_eq!(end.keying().lend_sas(Direction::Receive, 1).map(|lent| lent.len()), Ok(1));
    let frame = sender.send(tcp(false, b"hello", None)).remove(0);
    // The device does not know it any more, and which numbers came nobody else does.
    end.device.reset(NOW);
    end.device.process(NOW);
    while end.secure.poll_event().is_some() {}
    assert_eq!(end.receive([frame.clone(), frame]), Vec::<Vec<u8>>::new());
    assert_eq!(end.counted("XfrmInStateExpired"), 2);
}

/// What a NIC's switch sends finds them by the device's own policies: of two, the newer one, and after that is gone, the other.
#[test]
fn policies_lead_what_a_switch_sends_to_sas_that_are_lent() {
    let config = NicConfig { delays: Delays::NONE, line_rate: None, ..NicConfig::default() };
    let (mut device, mut host, mut eswitch) = switched_nic(config, SwitchConfig::default());
    eswitch.command(EswitchCommand::Mode(SwitchMode::Switchdev)).unwrap();
    let mut secure = SecureDevice::new(Box::new(host.remove(0)));
    let first = SaParams { reqid: 1, ..sa(Direction::Transmit, OffloadKind::Packet, EspMode::Transport, false) };
    let key = EspKey::new(EspSuite::Aes128Gcm, &[8; 20]).unwrap();
    let successor = SaParams { spi: 0x1002, key, ..first.clone() };
    let policy =
        Policy { selector: Selector { protocol: Some(6), ..Selector::ANY }, ..protecting(Direction::Transmit) };
    let keying = secure.keying().unwrap();
    keying.add_policy(policy).unwrap();
    keying.add_sa(NOW, first).unwrap();
    let packet = frame(&tcp(false, b"of a machine", None));
    let mut spi = |secure: &mut SecureDevice| {
        // What the host asked for comes first.
        for _ in 0..4 {
            secure.flush(NOW);
            device.process(NOW);
        }
        assert!(eswitch.send(Vport::Uplink, packet.data.clone()));
        device.process(NOW);
        let sent: Vec<Frame> = core::iter::from_fn(|| device.poll_frame(NOW)).collect();
        let [frame] = &sent[..] else { panic!("{sent:?}") };
        EspAt::find(&frame.data).map(|at| at.spi)
    };
    assert_eq!(spi(&mut secure), None, "it is the host's");
    let lend = |secure: &mut SecureDevice| secure.keying().unwrap().lend_sas(Direction::Transmit, 1).unwrap().len();
    assert_eq!(lend(&mut secure), 1);
    assert_eq!(spi(&mut secure), Some(0x1001));
    let newer = secure.keying().unwrap().add_sa(NOW, successor).unwrap().sa;
    assert_eq!(spi(&mut secure), Some(0x1001), "it is not lent yet");
    assert_eq!(lend(&mut secure), 2);
    assert_eq!(spi(&mut secure), Some(0x1002));
    assert_eq!(lend(&mut secure), 2);
    assert_eq!(spi(&mut secure), Some(0x1002), "it stays");
    secure.keying().unwrap().delete_sa(newer).unwrap();
    assert_eq!(lend(&mut secure), 1);
    assert_eq!(spi(&mut secure), Some(0x1001));
    secure.keying().unwrap().delete_policy(Direction::Transmit, &policy.selector, policy.priority).unwrap();
    assert_eq!(spi(&mut secure), None, "nobody wants it protected any more");
    secure.keying().unwrap().add_policy(policy).unwrap();
    assert_eq!(spi(&mut secure), Some(0x1001), "a policy that comes when the SA is lent");
}
