//! No key and salt sends or accepts a number twice: not after deletion and re-addition, as a successor, in another
//! layer, or in a later process.

use super::KINDS;
use super::rig::{NOW, SecureEnd, address, frame, sa, tcp};
use core::time::Duration;
use ipsec::{KeyMemory, KeyedDevice, KeyingError, NumberFile, NumberMark, NumberStore, SaEvent, SaId, SecureDevice};
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

/// The store that survives a process.
#[derive(Clone, Debug, Default)]
struct SharedDisk(Arc<Mutex<DiskContent>>);

#[derive(Clone, Debug, Default)]
struct DiskContent {
    marks: BTreeMap<(bool, Vec<u8>, u32), u64>,
    written: usize,
    broken: bool,
    /// Writes succeed but report an error, as if the folder could not be synced.
    unsure: bool,
}

impl SharedDisk {
    fn content(&self) -> std::sync::MutexGuard<'_, DiskContent> {
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

impl NumberStore for SharedDisk {
    fn mark(&self, direction: Direction, key: &EspKey, spi: u32) -> u64 {
        self.content().marks.get(&entry(direction, key, spi)).copied().unwrap_or(0)
    }

    fn write(&mut self, marks: &[NumberMark<'_>]) -> io::Result<()> {
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

/// Starts a process: a host with this number and the last process's store.
fn begin(number: u8, disk: &SharedDisk) -> SecureEnd {
    SecureEnd::remembering(number, NicConfig::default(), KeyMemory::new().with_store(disk.clone()))
}

/// Kills a process, so that its final writes are missing.
fn kill(end: SecureEnd, disk: &SharedDisk) {
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

fn send_one(end: &mut SecureEnd) -> Frame {
    end.send(tcp(false, b"one", None)).remove(0)
}

#[test]
fn used_key_is_refused_for_a_second_sa() {
    let mut end = SecureEnd::new(1);
    end.key(&[transmitting(OffloadKind::None)]);
    let first = end.secure.sad().ids().next().unwrap();
    let again = SaParams { spi: 0x2001, reqid: 2, ..transmitting(OffloadKind::None) };
    let gmac = SaParams { key: EspKey::new(EspSuite::Aes128Gmac, &[7; 20]).unwrap(), ..again.clone() };
    let refused = Err(KeyingError::KeyReused);
    // Another SPI, suite or first number does not make the nonces different.
    for params in [&again, &gmac, &SaParams { last_number: 1 << 40, ..again.clone() }] {
        assert_eq!(end.keying().add_sa(NOW, params.clone()), refused, "at the same time");
    }
    end.keying().delete_sa(first).unwrap();
    assert_eq!(end.keying().add_sa(NOW, again.clone()), refused, "one after the other");
    assert_eq!(end.keying().add_sa(NOW, transmitting(OffloadKind::None)), refused, "as it was");
    assert_eq!(end.secure.sad().len(), 0, "a refused SA leaves no trace");
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
fn key_for_both_directions_is_refused() {
    let answers = |spi| SaParams {
        spi,
        source: address(false, 2),
        destination: address(false, 1),
        ..sa(Direction::Receive, OffloadKind::None, EspMode::Transport, false)
    };
    let refused = Err(KeyingError::KeyOfOtherDirection);
    let mut end = SecureEnd::new(1);
    end.key(&[transmitting(OffloadKind::None)]);
    assert_eq!(end.keying().add_sa(NOW, answers(0x1002)), refused);
    let other = SaParams { key: key(9), ..answers(0x1002) };
    let other = end.keying().add_sa(NOW, other).unwrap().sa;
    assert_eq!(end.keying().rekey_sa(NOW, other, 0x1003, answers(0).key), refused, "nor as a successor's");
    let mut end = SecureEnd::new(1);
    end.key(&[answers(0x1002)]);
    assert_eq!(end.keying().add_sa(NOW, transmitting(OffloadKind::None)), refused);
    // A refused SA does not use its key.
    let into = end.secure.sad().ids().next().unwrap();
    end.keying().delete_sa(into).unwrap();
    assert!(end.keying().add_sa(NOW, transmitting(OffloadKind::None)).is_ok());
}

#[test]
fn layers_with_one_memory_share_used_keys() {
    let memory = KeyMemory::new();
    let mut ends = [1, 2].map(|number| SecureEnd::remembering(number, NicConfig::default(), memory.clone()));
    ends[0].key(&[transmitting(OffloadKind::None)]);
    assert_eq!(ends[1].keying().add_sa(NOW, transmitting(OffloadKind::None)), Err(KeyingError::KeyReused));
}

#[test]
fn next_process_skips_numbers_possibly_sent() {
    const STEP: u64 = 1 << 20;
    for kind in KINDS {
        let disk = SharedDisk::default();
        let mut end = begin(1, &disk);
        end.key(&[transmitting(kind)]);
        assert_eq!(disk.written(), 0, "nothing is sent yet");
        assert_eq!((number_of(&send_one(&mut end)), number_of(&send_one(&mut end))), (1, 2));
        assert_eq!(disk.written(), 1, "{kind:?}");
        // After the kill, the store has only the mark, which is ahead of the sent numbers.
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
        // A higher number in the key file takes precedence.
        end.key(&[SaParams { last_number: 5, ..transmitting(kind) }]);
        assert_eq!(number_of(&send_one(&mut end)), STEP + 3, "it ended in order");
        drop(end);
        let mut end = begin(1, &disk);
        end.key(&[SaParams { last_number: 9 * STEP, ..transmitting(kind) }]);
        assert_eq!(number_of(&send_one(&mut end)), 9 * STEP + 1);
    }
}

/// Processes share a folder, as the programs of one user do.
#[test]
#[cfg(target_os = "linux")]
fn numbers_continue_in_every_process_with_the_key() {
    let folder = tempfile::tempdir().unwrap();
    let begin = || {
        let memory = KeyMemory::new().with_store(NumberFile::in_folder(folder.path()).unwrap());
        SecureEnd::remembering(1, NicConfig::default(), memory)
    };
    for kind in KINDS {
        let mut used = HashSet::new();
        // Each kind of offload has another key. Nonces do not depend on SPIs.
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
fn number_without_a_written_mark_is_not_sent() {
    for kind in KINDS {
        let disk = SharedDisk::default();
        disk.content().broken = true;
        let mut end = begin(1, &disk);
        end.key(&[transmitting(kind)]);
        let mut try_at = |milliseconds| {
            let now = NOW + Duration::from_millis(milliseconds);
            let _ = end.secure.transmit(now, tcp(false, b"one", None), &NoRecords);
            end.frames().len()
        };
        assert_eq!(try_at(0), 0);
        disk.content().broken = false;
        assert_eq!((try_at(999), try_at(1000)), (0, 1), "a full disk is not asked for each packet");
        assert_eq!(end.counted("ipsec_tx_numbers_unwritten"), 2, "{kind:?}");
    }
}

/// A trial tests whether keys would be refused before a host starts, and the host may never start.
#[test]
fn trial_writes_no_marks() {
    for direction in [Direction::Transmit, Direction::Receive] {
        let disk = SharedDisk::default();
        let memory = KeyMemory::new().with_store(disk.clone());
        let params = sa(direction, OffloadKind::None, EspMode::Transport, false);
        let mut end = SecureEnd::remembering(1, NicConfig::default(), memory.trial());
        end.key(&[SaParams { last_number: 9 << 20, ..params.clone() }]);
        drop(end);
        assert_eq!(disk.written(), 0);
        let mut end = SecureEnd::remembering(1, NicConfig::default(), memory);
        assert!(end.keying().add_sa(NOW, params).is_ok(), "nor is the key used");
        assert_eq!(end.secure.sad().ids().next().map(|id| end.secure.sad().find(id).unwrap().number()), Some(0));
    }
}

/// A failed write may still have succeeded in full.
#[test]
fn failed_write_of_exact_numbers_counts_as_written() {
    for kind in KINDS {
        let disk = SharedDisk::default();
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

/// Senders that share a key are separated by SPI: the numbers of one do not affect the other.
#[test]
fn receiving_sas_with_one_key_have_separate_numbers() {
    let disk = SharedDisk::default();
    let receiving = |spi| SaParams { spi, ..sa(Direction::Receive, OffloadKind::None, EspMode::Transport, false) };
    let mut from = [0x1001, 0x1002].map(|spi| {
        let mut end = SecureEnd::new(1);
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
        // After a crash, the few numbers up to the mark are lost; after an orderly end no number is.
        let heard: usize = (0..60).map(|_| to.receive([send_one(&mut from[1])]).len()).sum();
        assert!(heard >= 20, "{heard} of the other's");
        kill(to, &disk);
    }
}

/// Two peers share a key and an SPI. The remaining SA does not lower the mark of the deleted one.
#[test]
fn deleted_sa_keeps_its_mark_beside_an_equal_sa() {
    let disk = SharedDisk::default();
    let of = |direction, from| {
        let tunnel = sa(direction, OffloadKind::None, EspMode::Tunnel, false);
        SaParams { source: address(false, from), ..tunnel }
    };
    let mut senders = [1, 3].map(|from| {
        let mut end = SecureEnd::new(from);
        end.key(&[of(Direction::Transmit, from)]);
        end
    });
    let captured: Vec<Frame> = (0..9).map(|_| send_one(&mut senders[0])).collect();
    let mut to = begin(2, &disk);
    to.key(&[of(Direction::Receive, 1), of(Direction::Receive, 3)]);
    assert_eq!(to.receive(captured.iter().cloned()).len(), 9);
    to.receive([send_one(&mut senders[1])]);
    let first = to.keying().find_sa(Direction::Receive, 0x1001, address(false, 1), address(false, 2)).unwrap();
    // The other SA's mark is the same entry, and its own numbers are lower.
    to.keying().delete_sa(first).unwrap();
    drop(to);
    let mut to = begin(2, &disk);
    to.key(&[of(Direction::Receive, 1)]);
    assert_eq!(to.receive(captured).len(), 0);
    assert_eq!(to.receive([send_one(&mut senders[0])]).len(), 1, "a new number is accepted");
}

#[test]
fn next_process_refuses_captured_packets() {
    for kind in KINDS {
        let (mut from, disk) = (SecureEnd::new(1), SharedDisk::default());
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
        // New packets up to the mark are lost with the replays. At a low packet rate, these are few.
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
fn killed_receiver_accepts_a_restarted_sender() {
    let disks = [SharedDisk::default(), SharedDisk::default()];
    let mut ends = [begin(1, &disks[0]), begin(2, &disks[1])];
    let params =
        [transmitting(OffloadKind::None), sa(Direction::Receive, OffloadKind::None, EspMode::Transport, false)];
    // Both ends are killed in each round, so each continues from its mark.
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
enum KeyStep {
    Add(usize),
    Rekey(prop::sample::Index, usize),
    Delete(prop::sample::Index),
    Send(usize),
    /// A frame captured earlier.
    Replay(prop::sample::Index),
    Reset,
    /// Restart of the sender or the receiver; killed or ended.
    Begin(bool, bool),
    Break(bool),
    Time(u64),
}

fn step() -> impl Strategy<Value = KeyStep> {
    use prop::sample::Index;
    prop_oneof![
        4 => (0..KEYS).prop_map(KeyStep::Add),
        2 => (any::<Index>(), 0..KEYS).prop_map(|(which, key)| KeyStep::Rekey(which, key)),
        2 => any::<Index>().prop_map(KeyStep::Delete),
        6 => (1usize..4000).prop_map(KeyStep::Send),
        3 => any::<Index>().prop_map(KeyStep::Replay),
        1 => Just(KeyStep::Reset),
        2 => any::<(bool, bool)>().prop_map(|(sender, killed)| KeyStep::Begin(sender, killed)),
        1 => any::<bool>().prop_map(KeyStep::Break),
        2 => (0u64..3000).prop_map(KeyStep::Time),
    ]
}

const KEYS: usize = 4;

fn key(which: usize) -> EspKey {
    EspKey::new(EspSuite::Aes128Gcm, &[which as u8; 20]).unwrap()
}

fn protecting(direction: Direction) -> Policy {
    Policy { direction, selector: Selector::ANY, priority: 0, action: Action::Protect(Template::transport(1)) }
}

/// Returns all frames that leave.
fn frames(end: &mut SecureEnd) -> Vec<Frame> {
    let mut frames = Vec::new();
    for _ in 0..20 {
        end.secure.flush(NOW);
        end.device.process(NOW);
        frames.extend(core::iter::from_fn(|| end.device.poll_frame(NOW)));
        let _ = end.secure.poll_event();
    }
    frames
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn no_number_is_used_twice_under_a_key(
        steps in prop::collection::vec(step(), 1..80),
        kinds in prop::sample::select(KINDS.into_iter().flat_map(|from| KINDS.map(|to| [from, to])).collect::<Vec<_>>()),
    ) {
        let disks = [SharedDisk::default(), SharedDisk::default()];
        let open = |which: usize| {
            let mut end = begin(which as u8 + 1, &disks[which]);
            end.keying().add_policy(protecting([Direction::Transmit, Direction::Receive][which])).unwrap();
            end
        };
        let mut ends = [open(0), open(1)];
        let (mut spi, mut sas, mut now) = (0x1000, Vec::<SaId>::new(), NOW);
        // The key of each SPI; the numbers on the wire by key; and the packets delivered at the other end.
        let (mut keys, mut used, mut came) = (HashMap::new(), HashSet::new(), HashSet::new());
        let (mut wire, mut word) = (Vec::<Frame>::new(), 0u32);
        for step in steps {
            let mut arriving = Vec::new();
            match step {
                KeyStep::Add(which) => {
                    spi += 1;
                    let params = SaParams { spi, key: key(which), ..transmitting(kinds[0]) };
                    if let Ok(added) = ends[0].keying().add_sa(now, params) {
                        sas.push(added.sa);
                        keys.insert(spi, which);
                    }
                }
                KeyStep::Rekey(old, which) => {
                    spi += 1;
                    if !sas.is_empty() && let Ok(added) = ends[0].keying().rekey_sa(now, *old.get(&sas), spi, key(which)) {
                        sas.push(added.sa);
                        keys.insert(spi, which);
                    }
                }
                KeyStep::Delete(which) => {
                    if !sas.is_empty() {
                        let gone = sas.remove(which.index(sas.len()));
                        ends[0].keying().delete_sa(gone).unwrap();
                    }
                }
                KeyStep::Send(bytes) => {
                    word += 1;
                    let data = [&word.to_be_bytes()[..], &vec![7; bytes]].concat();
                    let _ = ends[0].secure.transmit(now, tcp(false, &data, None), &NoRecords);
                }
                KeyStep::Replay(which) => arriving.extend((!wire.is_empty()).then(|| which.get(&wire).clone())),
                KeyStep::Reset => ends.iter_mut().for_each(|end| end.device.reset(NOW)),
                KeyStep::Begin(sender, killed) => {
                    let which = usize::from(!sender);
                    // Posted packets leave first; they are on the wire even if the process is killed.
                    let before = disks[which].content().clone();
                    if sender {
                        arriving.extend(frames(&mut ends[0]));
                        sas.clear();
                    }
                    let (fresh, broken) = (open(which), before.broken);
                    drop(core::mem::replace(&mut ends[which], fresh));
                    if killed {
                        *disks[which].content() = DiskContent { broken, ..before };
                    }
                    // The new process read the store before; it reads the current state now.
                    ends[which] = open(which);
                }
                KeyStep::Break(broken) => disks.iter().for_each(|disk| disk.content().broken = broken),
                KeyStep::Time(milliseconds) => now += Duration::from_millis(milliseconds),
            }
            for frame in frames(&mut ends[0]) {
                arriving.push(frame);
            }
            for frame in arriving {
                let Some(at) = EspAt::find(&frame.data) else { continue };
                let replayed = wire.iter().any(|before| before.data == frame.data);
                let which = keys[&at.spi];
                let number = u64::from_be_bytes(frame.data[at.esp + 8..at.esp + 16].try_into().unwrap());
                // A number may appear on the wire again only as a copy of the captured frame.
                prop_assert!(replayed || used.insert((which, number)), "key {which} sent {number} twice");
                wire.push(frame.clone());
                // The receiver learns each SA when its first frame arrives, as from a perfect keying daemon.
                let params = sa(Direction::Receive, kinds[1], EspMode::Transport, false);
                let _ = ends[1].keying().add_sa(now, SaParams { spi: at.spi, key: key(which), ..params });
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
fn lent_sa_belongs_to_the_device_and_its_key_is_used_up() {
    let disk = SharedDisk::default();
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
    // The host's own packets use the other SA, although that SA is older.
    let frames = end.send(tcp(false, b"hello", None));
    assert_eq!(frames[0].data[34..38], 0x1003u32.to_be_bytes());
    // After a reset, neither the device nor the host knows the lent SA's numbers.
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
    // A successor is accepted, whatever happened to the predecessor.
    next.key(&[SaParams { spi: 0x1004, key: EspKey::new(EspSuite::Aes128Gcm, &[10; 20]).unwrap(), ..whole }]);
    assert_eq!(next.keying().lend_sas(Direction::Transmit, 1).map(|lent| lent.len()), Ok(1));
    // An SA is not lent if its mark cannot be written.
    next.key(&others[..1]);
    disk.content().broken = true;
    assert_eq!(next.keying().lend_sas(Direction::Transmit, 2), Err(KeyingError::NotWritten));
    disk.content().broken = false;
    assert_eq!(next.keying().lend_sas(Direction::Transmit, 2).map(|lent| lent.len()), Ok(1));
}

#[test]
fn lent_receiving_sa_opens_no_packet_of_this_host() {
    let (mut sender, mut end) = (SecureEnd::new(1), begin(2, &SharedDisk::default()));
    let params = |direction, offload| sa(direction, offload, EspMode::Transport, false);
    sender.key(&[params(Direction::Transmit, OffloadKind::None)]);
    end.key(&[params(Direction::Receive, OffloadKind::Packet)]);
    assert_eq!(end.keying().lend_sas(Direction::Receive, 1).map(|lent| lent.len()), Ok(1));
    let frame = sender.send(tcp(false, b"hello", None)).remove(0);
    // The device lost the SA, and only the device knew the received numbers.
    end.device.reset(NOW);
    end.device.process(NOW);
    while end.secure.poll_event().is_some() {}
    assert_eq!(end.receive([frame.clone(), frame]), Vec::<Vec<u8>>::new());
    assert_eq!(end.counted("XfrmInStateExpired"), 2);
}

/// Packets from a NIC's switch find lent SAs by the device's own policies: the newer of two SAs, and after its deletion
/// the other.
#[test]
fn switch_packets_find_lent_sas_by_policy() {
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
        // The host's own requests are processed first.
        for _ in 0..4 {
            secure.flush(NOW);
            device.process(NOW);
        }
        // The packet enters at the switch and never passes the IPsec layer.
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
