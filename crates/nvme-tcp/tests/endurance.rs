//! What hosts cannot make a controller do, whether they mean it or not: hold more than its share, do what is over, say
//! that data are safe that are not.

mod rig;

use bytes::Bytes;
use core::time::Duration;
use nvme_tcp::core::controller::{Done, Job};
use nvme_tcp::namespace::{MemoryStorage, Namespace, Pieces, Storage};
use nvme_tcp::target::{Target, TargetConfig, TargetError, TransportConfig};
use nvme_tcp::wire::{
    AdminOpcode, Command, ConnectData, DISCOVERY_NQN, FabricsType, FatalStatus, IoOpcode, Pdu, Sgl, Status, page,
    property,
};
use offload_base::Instant;
use rig::{Came, DISK, HOST, Wire, connect_command, host_data, segment, target, termination};
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// A disk that counts what is asked of it.
#[derive(Default)]
struct Counting {
    writes: AtomicU64,
    flushes: AtomicU64,
    /// Nothing can be flushed any more.
    is_broken: AtomicBool,
}

impl Storage for Counting {
    fn capacity(&self) -> u64 {
        1 << 20
    }

    fn read(&self, _: u64, _: usize) -> io::Result<Pieces> {
        panic!("a disk that cannot be read")
    }

    fn write(&self, _: u64, _: &[Bytes]) -> io::Result<()> {
        self.writes.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    fn zero(&self, _: u64, _: u64) -> io::Result<()> {
        Ok(())
    }

    fn flush(&self) -> io::Result<()> {
        self.flushes.fetch_add(1, Ordering::Relaxed);
        if self.is_broken.load(Ordering::Relaxed) { Err(io::ErrorKind::Other.into()) } else { Ok(()) }
    }

    fn may_block(&self) -> bool {
        true
    }
}

fn counting_target() -> (Target, Arc<Counting>) {
    let (mut target, storage) = (Target::new(TargetConfig::default()).unwrap(), Arc::<Counting>::default());
    target.add_subsystem(DISK, None).unwrap();
    target.add_namespace(DISK, Namespace::new(1, 512, storage.clone()).unwrap()).unwrap();
    (target, storage)
}

fn property_set(value: u32) -> Command {
    Command::fabrics(FabricsType::PropertySet, 20).with_u32(11, property::CC).with_u32(12, value)
}

fn property_get(offset: u32) -> Command {
    Command::fabrics(FabricsType::PropertyGet, 21).with_u32(11, offset)
}

/// An admin queue of the discovery controller.
fn discovery(target: &mut Target) -> Wire {
    let mut wire = Wire::open(target, false);
    let (command, data) = connect_command(0, 0xffff);
    let data = ConnectData { subsystem: DISCOVERY_NQN.into(), ..data };
    assert!(wire.command(target, command, &data.to_bytes()).status.is_success());
    assert!(wire.command(target, property_set(1), &[]).status.is_success());
    wire
}

#[test]
fn answers_that_nobody_takes_are_bounded() {
    let transport = TransportConfig::default();
    let mut target = target(transport);
    let mut wire = discovery(&mut target);
    let words = (1u32 << 18) - 1;
    let log = Command::new(AdminOpcode::GetLogPage as u8, 5)
        .with_u32(10, u32::from(page::DISCOVERY) | words << 16)
        .with_u32(11, words >> 16)
        .with_sgl(Sgl::transport(1 << 20));
    let capsule = wire.framing.frame(&Pdu::Command(log), []).into_pieces().collect::<Vec<_>>().concat();
    const COMMANDS: usize = 200;
    wire.connection.handle_segment(wire.now, segment(&capsule.repeat(COMMANDS)), &mut target);
    assert!(!wire.connection.wants_input());
    let (mut answers, mut bytes) = (0, 0);
    while answers < COMMANDS {
        let mut held = 0;
        while let Some(pdu) = wire.connection.poll_transmit() {
            held += pdu.len() as usize;
            // The last of an answer: its data with SUCCESS, or a response.
            answers += usize::from(pdu.head[0] == 0x05 || pdu.head[1] & 0x08 != 0);
            bytes += pdu.data.iter().map(Bytes::len).sum::<usize>();
        }
        assert!(held > 0, "all are answered in the end");
        assert!(held <= transport.budget + (1 << 20) + 4096, "{held} bytes held");
        wire.connection.resume(wire.now, &mut target);
    }
    assert_eq!(bytes, COMMANDS << 20);
    assert!(wire.connection.wants_input() && wire.connection.poll_transmit().is_none());
}

#[test]
fn a_reset_takes_requests_for_events_away() {
    let mut target = target(TransportConfig::default());
    let (mut wire, _) = Wire::admin(&mut target);
    let enable = Command::new(AdminOpcode::SetFeatures as u8, 1).with_u32(10, 0x0b).with_u32(11, 1 << 8);
    for round in 0..12 {
        assert!(wire.command(&mut target, enable, &[]).status.is_success());
        // Told once in each round, for nobody reads the log.
        let storage = Arc::new(Counting::default());
        target.add_namespace(DISK, Namespace::new(10 + round, 512, storage).unwrap()).unwrap();
        let told: Vec<Came> = (100..104)
            .flat_map(|id| {
                wire.send(&mut target, &Pdu::Command(Command::new(AdminOpcode::AsyncEventRequest as u8, id)), &[])
            })
            .collect();
        let [Came(Pdu::Response(completion), _)] = told[..] else { panic!("round {round}: {told:?}") };
        assert_eq!((completion.status, completion.result), (Status::SUCCESS, 0x04_0002), "round {round}");
        assert!(wire.command(&mut target, property_set(0), &[]).status.is_success());
        assert!(wire.command(&mut target, property_set(0x0046_0001), &[]).status.is_success());
    }
}

#[test]
fn what_is_under_way_is_over_before_its_host_goes_on() {
    // With the host's connections lost, and with nobody having noticed.
    for noticed in [true, false] {
        let (mut target, storage) = counting_target();
        let (mut wire, mut admin) = Wire::io(&mut target, false);
        let write = Command::new(IoOpcode::Write as u8, 5).with_namespace(1).with_sgl(Sgl::in_capsule(512));
        let capsule = |id, wire: &Wire| {
            let pdu = Pdu::Command(write.with_identifier(id));
            wire.framing.frame(&pdu, [Bytes::from(vec![1; 512])]).into_pieces().collect::<Vec<_>>().concat()
        };
        let capsules = [capsule(5, &wire), capsule(6, &wire)].concat();
        wire.connection.handle_segment(wire.now, segment(&capsules), &mut target);
        let stuck = wire.connection.poll_job().expect("a write");
        if noticed {
            // The admin queue's first; what had not begun never will.
            admin.connection.handle_end(&mut target);
            assert!(wire.connection.poll_job().is_none());
            wire.connection.handle_end(&mut target);
        }
        // It gets in at once, and again, if it is lost again, but is not ready.
        let mut again: Vec<(Wire, u16)> = (0..3).map(|_| Wire::admin(&mut target)).collect();
        let status =
            |wire: &mut Wire, target: &mut Target| wire.command(target, property_get(property::CSTS), &[]).result & 1;
        let (last, controller) = again.last_mut().unwrap();
        assert_eq!(status(last, &mut target), 0, "noticed: {noticed}");
        let too_early = Wire::open(&mut target, false).connect(&mut target, 1, *controller);
        assert_eq!(too_early.status, Status::CONNECT_BUSY);
        let (command, data) = connect_command(0, 0xffff);
        for other in [
            ConnectData { host_id: [9; 16], ..data.clone() },
            // All hosts of a kind may have the same by default.
            ConnectData { host: "nqn.2026-01.test:other".into(), ..data },
        ] {
            let mut another_host = Wire::open(&mut target, false);
            assert!(another_host.command(&mut target, command, &other.to_bytes()).status.is_success(), "{other:?}");
            assert!(another_host.command(&mut target, property_set(0x0046_0001), &[]).status.is_success());
            assert_eq!(status(&mut another_host, &mut target), 1);
        }
        stuck.run();
        assert_eq!(storage.writes.load(Ordering::Relaxed), 1);
        assert!(again.iter_mut().all(|(wire, _)| status(wire, &mut target) == 1));
        assert!(Wire::open(&mut target, false).connect(&mut target, 1, again[2].1).status.is_success());
        if !noticed {
            // What the old controller still has to do keeps nobody waiting: nobody knows that it is old.
            let late = wire.connection.poll_job().expect("a write");
            let (mut more, _) = Wire::admin(&mut target);
            assert_eq!(status(&mut more, &mut target), 0);
            assert!(again.iter_mut().all(|(wire, _)| status(wire, &mut target) == 1));
            late.run();
            assert_eq!(status(&mut more, &mut target), 1);
        }
    }
}

#[test]
fn a_controller_nobody_has_noticed_the_end_of_expires_beside_its_successor() {
    let mut target = target(TransportConfig::default());
    let open = |target: &mut Target, now, keep_alive: u32| {
        let mut wire = Wire::open(target, false);
        wire.now = now;
        let (command, data) = connect_command(0, 0xffff);
        let answer = wire.command(target, command.with_u32(12, keep_alive), &data.to_bytes());
        assert!(answer.status.is_success(), "{answer:?}");
        assert!(wire.command(target, property_set(0x0046_0001), &[]).status.is_success());
        wire
    };
    let at = |seconds| Instant::ZERO + Duration::from_secs(seconds);
    let mut dead = open(&mut target, at(0), 5000);
    let mut alive = open(&mut target, at(3), 5000);
    assert_eq!(target.controllers(), 2);
    for (wire, expires) in [(&mut dead, 5), (&mut alive, 8)] {
        assert_eq!(wire.connection.next_event(&target), Some(at(expires)));
    }
    dead.connection.handle_timeout(at(5), &mut target);
    alive.connection.handle_timeout(at(5), &mut target);
    assert!(dead.connection.is_closing() && !alive.connection.is_closing());
    assert_eq!(target.controllers(), 1);
}

#[test]
fn controllers_without_end_lock_nobody_out_who_is_known() {
    let mut target = Target::new(TargetConfig { max_controllers: 3, ..TargetConfig::default() }).unwrap();
    target.add_subsystem(DISK, None).unwrap();
    let open = |target: &mut Target, seconds, host: u8| {
        let mut wire = Wire::open(target, false);
        wire.now = Instant::ZERO + Duration::from_secs(seconds);
        let (command, data) = connect_command(0, 0xffff);
        let data = ConnectData { host_id: [host; 16], ..data };
        let answer = wire.command(target, command, &data.to_bytes());
        (wire, answer)
    };
    let (mut other, _) = open(&mut target, 0, 1);
    let (mut first, _) = open(&mut target, 1, 2);
    let (mut second, _) = open(&mut target, 2, 2);
    // No keep-alive was asked for, but it says that the connection is alive.
    first.now = Instant::ZERO + Duration::from_secs(3);
    assert!(first.command(&mut target, property_set(0x0046_0001), &[]).status.is_success());
    let keep_alive = Command::new(AdminOpcode::KeepAlive as u8, 1);
    assert!(first.command(&mut target, keep_alive, &[]).status.is_success());
    assert_eq!(open(&mut target, 4, 3).1.status, Status::CONNECT_BUSY, "a stranger");
    let (mut third, answer) = open(&mut target, 4, 2);
    assert!(answer.status.is_success());
    assert_eq!(target.controllers(), 3);
    for (wire, closes) in [(&mut other, false), (&mut first, false), (&mut second, true), (&mut third, false)] {
        wire.connection.handle_wakeup(&mut target);
        assert_eq!(wire.connection.is_closing(), closes);
    }
}

#[test]
fn a_reset_waits_for_what_is_under_way() {
    let (mut target, _storage) = counting_target();
    let (mut wire, mut admin) = Wire::io(&mut target, false);
    let zero = Command::new(IoOpcode::WriteZeroes as u8, 5).with_namespace(1);
    let capsule = wire.framing.frame(&Pdu::Command(zero), []).into_pieces().collect::<Vec<_>>().concat();
    wire.connection.handle_segment(wire.now, segment(&capsule), &mut target);
    let stuck = wire.connection.poll_job().expect("a job");
    assert!(admin.command(&mut target, property_set(0), &[]).status.is_success());
    assert!(admin.command(&mut target, property_set(0x0046_0001), &[]).status.is_success());
    assert_eq!(admin.command(&mut target, property_get(property::CSTS), &[]).result, 0, "not ready yet");
    stuck.run();
    assert_eq!(admin.command(&mut target, property_get(property::CSTS), &[]).result, 1);
}

#[test]
fn a_host_is_told_of_a_shutdown_when_all_is_durable() {
    let (mut target, storage) = counting_target();
    let (mut wire, _) = Wire::admin(&mut target);
    let pdu = Pdu::Command(property_set(0x0046_4001));
    let capsule = wire.framing.frame(&pdu, []).into_pieces().collect::<Vec<_>>().concat();
    wire.connection.handle_segment(wire.now, segment(&capsule), &mut target);
    assert!(wire.collect().is_empty(), "not before the flush");
    let flush = wire.connection.poll_job().expect("a flush");
    wire.connection.complete(wire.now, flush.run(), &mut target);
    assert_eq!(storage.flushes.load(Ordering::Relaxed), 1);
    assert!(matches!(wire.collect()[..], [Came(Pdu::Response(completion), _)] if completion.status.is_success()));
    assert_eq!(wire.command(&mut target, property_get(property::CSTS), &[]).result, 1 | 0b10 << 2);
}

#[test]
fn a_shutdown_whose_flush_fails_is_over_too() {
    let (mut target, storage) = counting_target();
    let (mut wire, _) = Wire::admin(&mut target);
    storage.is_broken.store(true, Ordering::Relaxed);
    let status = wire.command(&mut target, property_set(0x0046_4001), &[]).status;
    assert!(!status.is_success(), "what was written may not be durable");
    assert_eq!(storage.flushes.load(Ordering::Relaxed), 1);
    assert_eq!(wire.command(&mut target, property_get(property::CSTS), &[]).result, 1 | 0b10 << 2);
}

#[test]
fn what_is_to_be_durable_is_before_it_is_complete() {
    let (mut target, storage) = counting_target();
    let (mut wire, mut admin) = Wire::io(&mut target, false);
    let io = |opcode: IoOpcode| Command::new(opcode as u8, 5).with_namespace(1);
    let unit_access = 1 << 30;
    let mut range = [0; 16];
    range[4] = 1;
    let deallocate = io(IoOpcode::DatasetManagement).with_u32(11, 1 << 2);
    for (cache, command, data, flushes) in [
        (1, io(IoOpcode::Flush), &[][..], 1),
        (1, io(IoOpcode::Write), &[1; 512][..], 0),
        (1, io(IoOpcode::Write).with_u32(12, unit_access), &[1; 512][..], 1),
        (1, io(IoOpcode::WriteZeroes).with_u32(12, unit_access), &[][..], 1),
        (1, deallocate, &range[..], 0),
        (0, io(IoOpcode::Write), &[1; 512][..], 1),
        (0, io(IoOpcode::WriteZeroes), &[][..], 1),
        (0, deallocate, &range[..], 1),
    ] {
        let set = Command::new(AdminOpcode::SetFeatures as u8, 1).with_u32(10, 0x06).with_u32(11, cache);
        assert!(admin.command(&mut target, set, &[]).status.is_success());
        let before = storage.flushes.load(Ordering::Relaxed);
        assert!(wire.command(&mut target, command, data).status.is_success(), "{command:?}");
        assert_eq!(storage.flushes.load(Ordering::Relaxed) - before, flushes, "cache {cache}: {command:?}");
    }
}

#[test]
fn storage_that_panics_fails_its_command_alone() {
    let (mut target, _) = counting_target();
    let (mut wire, _admin) = Wire::io(&mut target, false);
    let read = Command::new(IoOpcode::Read as u8, 5).with_namespace(1).with_sgl(Sgl::transport(512));
    assert_eq!(wire.command(&mut target, read, &[]).status, Status::INTERNAL_ERROR);
    let write = Command::new(IoOpcode::Write as u8, 5).with_namespace(1);
    assert!(wire.command(&mut target, write, &[1; 512]).status.is_success());
}

#[test]
fn io_queues_take_what_the_controller_says() {
    let mut target = target(TransportConfig { in_capsule: 4096, ..TransportConfig::default() });
    let (mut wire, _admin) = Wire::io(&mut target, false);
    let write = |blocks: u32| Command::new(IoOpcode::Write as u8, 5).with_namespace(1).with_u32(12, blocks - 1);
    assert!(wire.command(&mut target, write(8), &[1; 4096]).status.is_success());
    let long = Pdu::Command(write(9).with_sgl(Sgl::in_capsule(4608)));
    let came = wire.send(&mut target, &long, &[1; 4608]);
    assert_eq!(termination(&came).0.fatal_status(), Some(FatalStatus::LimitExceeded));
}

#[test]
fn pages_of_memory_are_no_way_to_describe_data() {
    let mut target = target(TransportConfig::default());
    let (mut wire, _admin) = Wire::io(&mut target, false);
    for pointer in [0, 0b10, 0b11] {
        let read = Command::new(IoOpcode::Read as u8, 5).with_u32(0, 2 | pointer << 14 | 5 << 16).with_namespace(1);
        let read = read.with_sgl(Sgl::transport(512));
        assert_eq!(wire.command(&mut target, read, &[]).status, Status::INVALID_FIELD, "PSDT {pointer:#b}");
    }
}

#[test]
fn requests_end_at_words_whatever_was_configured() {
    for (request_bytes, lengths) in [(1021, &[1020, 1020, 8][..]), (1, &[4; 512][..]), (2048, &[2048][..])] {
        let mut target = target(TransportConfig { request_bytes, requests: 1024, ..TransportConfig::default() });
        let (_admin, controller) = Wire::admin(&mut target);
        let mut wire = Wire::open_with_requests(&mut target, 1024);
        assert!(wire.connect(&mut target, 1, controller).status.is_success());
        let write = Command::new(IoOpcode::Write as u8, 5).with_namespace(1).with_u32(12, 3);
        let came = wire.send(&mut target, &Pdu::Command(write.with_sgl(Sgl::transport(2048))), &[]);
        let asked: Vec<u32> = came
            .iter()
            .map(|came| match came.0 {
                Pdu::ReadyToTransfer(request) => request.length,
                _ => panic!("{came:?}"),
            })
            .collect();
        assert_eq!(asked, lengths, "{request_bytes}");
    }
    let mut target = target(TransportConfig::default());
    let (mut wire, _admin) = Wire::io(&mut target, false);
    let deallocate =
        Command::new(IoOpcode::DatasetManagement as u8, 5).with_namespace(1).with_sgl(Sgl::transport(1025));
    assert_eq!(wire.command(&mut target, deallocate, &[]).status, Status::INVALID_SGL_LENGTH);
}

#[test]
fn hosts_tell_namespaces_of_different_subsystems_apart() {
    let describe = |subsystem: &str| {
        let mut target = Target::new(TargetConfig::default()).unwrap();
        target.add_subsystem(subsystem, None).unwrap();
        target.add_namespace(subsystem, Namespace::new(1, 512, Arc::<Counting>::default()).unwrap()).unwrap();
        let mut wire = Wire::open(&mut target, false);
        let (command, data) = connect_command(0, 0xffff);
        let data = ConnectData { subsystem: subsystem.into(), host: HOST.into(), ..data };
        assert!(wire.command(&mut target, command, &data.to_bytes()).status.is_success());
        assert!(wire.command(&mut target, property_set(0x0046_0001), &[]).status.is_success());
        let mut identify = |cns: u32, namespace: u32| {
            let command = Command::new(AdminOpcode::Identify as u8, 2).with_u32(10, cns).with_namespace(namespace);
            let came = wire.send(&mut target, &Pdu::Command(command.with_sgl(Sgl::transport(4096))), &[]);
            came.into_iter().flat_map(|came| came.1).collect::<Vec<u8>>()
        };
        // CMIC bit 1: a second way to the same subsystem is welcome.
        assert_eq!(identify(1, 0)[76], 0b10);
        let (data, descriptors) = (identify(0, 1), identify(3, 1));
        assert_eq!(data[104..120], descriptors[4..20], "NGUID");
        (descriptors[4..20].to_vec(), descriptors[24..40].to_vec())
    };
    let first = describe("nqn.2026-01.test:one");
    assert_eq!(first, describe("nqn.2026-01.test:one"), "the same in every run");
    let second = describe("nqn.2026-01.test:two");
    assert!(first.0 != second.0 && first.1 != second.1);
}

/// Two I/O queues of one controller, and its admin queue.
fn two_queues(target: &mut Target) -> (Wire, [Wire; 2], u16) {
    let (admin, controller) = Wire::admin(target);
    let queues = [1, 2].map(|queue| {
        let mut wire = Wire::open(target, false);
        assert!(wire.connect(target, queue, controller).status.is_success());
        wire
    });
    (admin, queues, controller)
}

/// Sends a PDU without doing the work that it makes.
fn send_only(wire: &mut Wire, target: &mut Target, pdu: &Pdu, data: &[u8]) {
    let bytes = wire.framing.frame(pdu, [Bytes::copy_from_slice(data)]).into_pieces().collect::<Vec<_>>().concat();
    wire.connection.handle_segment(wire.now, segment(&bytes), target);
}

fn statuses(came: &[Came]) -> Vec<(u16, Status)> {
    let status = |came: &Came| match came.0 {
        Pdu::Response(completion) => (completion.command, completion.status),
        _ => panic!("{came:?}"),
    };
    came.iter().map(status).collect()
}

fn first_block(wire: &mut Wire, target: &mut Target) -> u8 {
    let read = Command::new(IoOpcode::Read as u8, 77).with_namespace(1).with_sgl(Sgl::transport(512));
    wire.send(target, &Pdu::Command(read), &[])[0].1[0]
}

#[test]
fn a_disconnect_is_answered_when_what_runs_is_over() {
    let mut target = target(TransportConfig::default());
    let (_admin, [mut first, mut second], controller) = two_queues(&mut target);
    let write =
        |id| Pdu::Command(Command::new(IoOpcode::Write as u8, id).with_namespace(1).with_sgl(Sgl::in_capsule(512)));
    send_only(&mut first, &mut target, &write(5), &[0xaa; 512]);
    let slow = first.connection.poll_job().unwrap();
    send_only(&mut first, &mut target, &write(6), &[0xcc; 512]);
    send_only(&mut first, &mut target, &Pdu::Command(Command::fabrics(FabricsType::Disconnect, 9)), &[]);
    assert_eq!(statuses(&first.collect()), [(6, Status::ABORTED_QUEUE_DELETED)], "it had not begun");
    assert!(first.connection.poll_job().is_none() && !first.connection.is_closing());
    assert!(!first.connection.wants_input());
    let early = Wire::open(&mut target, false).connect(&mut target, 1, controller);
    assert_eq!(early.status, Status::CONNECT_INVALID_PARAMETERS, "the queue is there still");
    first.connection.complete(first.now, slow.run(), &mut target);
    assert_eq!(
        statuses(&first.collect()),
        [(5, Status::SUCCESS), (9, Status::SUCCESS)],
        "as it ended, and last the Disconnect"
    );
    assert!(first.connection.is_closing());
    // The same queue is there again, and nothing comes after what it writes.
    let mut again = Wire::open(&mut target, false);
    assert!(again.connect(&mut target, 1, controller).status.is_success());
    let write = Command::new(IoOpcode::Write as u8, 6).with_namespace(1);
    assert!(again.command(&mut target, write, &[0xbb; 512]).status.is_success());
    assert_eq!(first_block(&mut second, &mut target), 0xbb);
}

#[test]
fn a_queue_is_connected_again_when_nothing_of_it_is_under_way() {
    let mut target = target(TransportConfig::default());
    let (_admin, [mut first, mut second], controller) = two_queues(&mut target);
    let write = Pdu::Command(Command::new(IoOpcode::Write as u8, 5).with_namespace(1).with_sgl(Sgl::in_capsule(512)));
    send_only(&mut first, &mut target, &write, &[0xaa; 512]);
    let slow = first.connection.poll_job().unwrap();
    first.connection.handle_end(&mut target);
    let _told = target.take_wakeups();
    // Lost once more while it waits; another queue waits for nothing.
    let connect = |target: &mut Target, queue| {
        let mut wire = Wire::open(target, false);
        let (command, data) = connect_command(queue, controller);
        let came = wire.send(target, &Pdu::Command(command), &data.to_bytes());
        (wire, came)
    };
    let (mut lost, came) = connect(&mut target, 1);
    assert!(came.is_empty() && !lost.connection.wants_input());
    lost.connection.handle_end(&mut target);
    let (mut again, came) = connect(&mut target, 1);
    assert!(came.is_empty(), "not before the write of the queue's first connection is over");
    again.connection.handle_wakeup(&mut target);
    assert!(again.collect().is_empty());
    assert!(statuses(&connect(&mut target, 3).1)[0].1.is_success());
    drop(slow.run());
    assert!(target.take_wakeups().contains(&again.connection.id()));
    again.connection.handle_wakeup(&mut target);
    assert_eq!(statuses(&again.collect()), [(0, Status::SUCCESS)]);
    let write = Command::new(IoOpcode::Write as u8, 6).with_namespace(1);
    assert!(again.command(&mut target, write, &[0xbb; 512]).status.is_success());
    assert_eq!(first_block(&mut second, &mut target), 0xbb);
}

/// A controller that is not enabled, of a host that promised to be heard of every five seconds.
fn with_keep_alive(target: &mut Target, host: u8, keep_alive: u32, now: Instant) -> (Wire, Status) {
    let mut wire = Wire::open(target, false);
    wire.now = now;
    let (command, data) = connect_command(0, 0xffff);
    let data = ConnectData { host_id: [host; 16], ..data };
    let status = wire.command(target, command.with_u32(12, keep_alive), &data.to_bytes()).status;
    (wire, status)
}

const fn at(seconds: u64) -> Instant {
    Instant::from_nanos(seconds * 1_000_000_000)
}

#[test]
fn no_keep_alive_is_due_while_a_host_can_send_none() {
    let mut target = target(TransportConfig::default());
    let (mut wire, _) = with_keep_alive(&mut target, 7, 5000, at(0));
    assert_eq!(
        wire.command(&mut target, Command::new(AdminOpcode::KeepAlive as u8, 3), &[]).status,
        Status::COMMAND_SEQUENCE_ERROR
    );
    let alive = |wire: &mut Wire, target: &mut Target, now| {
        wire.connection.handle_timeout(now, target);
        !wire.connection.is_closing()
    };
    // Before it is enabled.
    assert!(alive(&mut wire, &mut target, at(0)) && alive(&mut wire, &mut target, at(100)));
    wire.now = at(100);
    assert!(wire.command(&mut target, property_set(0x0046_0001), &[]).status.is_success());
    assert_eq!(wire.connection.next_event(&target), Some(at(105)));
    // Asking for properties is no sign of life then; nor does a shutdown have to be.
    wire.now = at(104);
    assert!(wire.command(&mut target, property_get(property::CSTS), &[]).status.is_success());
    assert_eq!(wire.connection.next_event(&target), Some(at(105)));
    send_only(&mut wire, &mut target, &Pdu::Command(property_set(0x0046_4001)), &[]);
    let flush = wire.connection.poll_job().expect("a flush that takes its time");
    assert!(alive(&mut wire, &mut target, at(1000)));
    wire.now = at(1000);
    wire.connection.complete(wire.now, flush.run(), &mut target);
    assert!(alive(&mut wire, &mut target, at(1001)));
    assert_eq!(wire.connection.next_event(&target), Some(at(1121)), "time to go");
    assert!(!alive(&mut wire, &mut target, at(1121)));
}

#[test]
fn a_host_that_waits_for_a_controller_to_get_ready_is_not_lost() {
    let (mut target, _storage) = counting_target();
    let (mut old, old_admin) = Wire::io(&mut target, false);
    let write = Command::new(IoOpcode::Write as u8, 5).with_namespace(1).with_sgl(Sgl::in_capsule(512));
    send_only(&mut old, &mut target, &Pdu::Command(write), &[1; 512]);
    let stuck = old.connection.poll_job().unwrap();
    drop(old_admin);
    let (mut wire, _) = with_keep_alive(&mut target, 7, 5000, at(0));
    assert!(wire.command(&mut target, property_set(0x0046_0001), &[]).status.is_success());
    assert_eq!(wire.connection.next_event(&target), None);
    wire.connection.handle_timeout(at(60), &mut target);
    assert!(!wire.connection.is_closing());
    drop(stuck.run());
    // It is called, for its time begins now.
    assert!(target.take_wakeups().contains(&wire.connection.id()));
    wire.connection.handle_wakeup(&mut target);
    wire.connection.handle_timeout(at(61), &mut target);
    assert_eq!(wire.connection.next_event(&target), Some(at(66)));
}

#[test]
fn forsaken_controllers_keep_no_host_out() {
    let mut target = Target::new(TargetConfig { max_controllers: 4, ..TargetConfig::default() }).unwrap();
    target.add_subsystem(DISK, None).unwrap();
    target.add_namespace(DISK, Namespace::new(1, 512, Arc::new(MemoryStorage::new(1 << 20))).unwrap()).unwrap();
    let enabled = |target: &mut Target, host, keep_alive, now| {
        let (mut wire, status) = with_keep_alive(target, host, keep_alive, now);
        if status.is_success() {
            assert!(wire.command(target, property_set(0x0046_0001), &[]).status.is_success());
        }
        (wire, status)
    };
    let keep_alive = |wire: &mut Wire, target: &mut Target, now| {
        wire.now = now;
        assert!(wire.command(target, Command::new(AdminOpcode::KeepAlive as u8, 3), &[]).status.is_success());
    };
    // One with a queue and without a keep-alive; others without a queue, whatever their hosts promised and keep.
    let (mut works, _) = enabled(&mut target, 7, 0, at(0));
    let mut queue = Wire::open(&mut target, false);
    assert!(queue.connect(&mut target, 1, 1).status.is_success());
    let (mut keeps, _) = enabled(&mut target, 1, 600_000, at(0));
    let (mut first, _) = enabled(&mut target, 3, 0, at(1));
    let (mut second, _) = enabled(&mut target, 4, u32::MAX, at(2));
    assert_eq!(enabled(&mut target, 5, 5000, at(9)).1, Status::CONNECT_BUSY, "they may connect queues yet");
    keep_alive(&mut keeps, &mut target, at(10));
    let (mut stranger, status) = enabled(&mut target, 5, 5000, at(12));
    assert!(status.is_success(), "the first was heard of last");
    let (mut another, status) = enabled(&mut target, 6, 5000, at(12));
    assert!(status.is_success());
    keep_alive(&mut keeps, &mut target, at(13));
    let (mut third, status) = enabled(&mut target, 8, 5000, at(13));
    assert!(status.is_success(), "what is promised and kept is no reason to keep others out");
    assert_eq!(enabled(&mut target, 9, 5000, at(14)).1, Status::CONNECT_BUSY);
    let wires = [&mut works, &mut keeps, &mut first, &mut second, &mut stranger, &mut another, &mut third];
    let ended = wires.map(|wire| {
        wire.connection.handle_wakeup(&mut target);
        wire.connection.is_closing()
    });
    assert_eq!(ended, [false, true, true, true, false, false, false]);
}

#[test]
fn a_queue_that_nobody_uses_keeps_no_host_out() {
    let mut target = Target::new(TargetConfig { max_controllers: 3, ..TargetConfig::default() }).unwrap();
    target.add_subsystem(DISK, None).unwrap();
    target.add_namespace(DISK, Namespace::new(1, 512, Arc::new(MemoryStorage::new(1 << 20))).unwrap()).unwrap();
    // Hosts get controllers of their own numbers.
    let with_queue = |target: &mut Target, host: u8, keep_alive, now| {
        let (mut admin, status) = with_keep_alive(target, host, keep_alive, now);
        assert!(status.is_success());
        assert!(admin.command(target, property_set(0x0046_0001), &[]).status.is_success());
        let mut queue = Wire::open(target, false);
        queue.now = now;
        let (command, data) = connect_command(1, u16::from(host));
        let data = ConnectData { host_id: [host; 16], ..data };
        assert!(queue.command(target, command, &data.to_bytes()).status.is_success());
        (admin, queue)
    };
    let (mut idle, _queue) = with_queue(&mut target, 1, 0, at(0));
    let (mut uses, mut queue) = with_queue(&mut target, 2, 0, at(0));
    let (mut keeps, _other_queue) = with_queue(&mut target, 3, 60_000, at(0));
    queue.now = at(50);
    let flush = Command::new(IoOpcode::Flush as u8, 5).with_namespace(1);
    assert!(queue.command(&mut target, flush, &[]).status.is_success());
    assert_eq!(with_keep_alive(&mut target, 4, 5000, at(119)).1, Status::CONNECT_BUSY);
    let (_stranger, status) = with_keep_alive(&mut target, 4, 5000, at(120));
    assert!(status.is_success());
    assert_eq!(with_keep_alive(&mut target, 5, 5000, at(121)).1, Status::CONNECT_BUSY);
    let ended = [&mut idle, &mut uses, &mut keeps].map(|wire| {
        wire.connection.handle_wakeup(&mut target);
        wire.connection.is_closing()
    });
    assert_eq!(ended, [true, false, false]);
}

/// A disk that does something else first when it is written to or flushed, and counts flushes.
struct Hooked(MemoryStorage, Mutex<Option<Hook>>, AtomicU64);

type Hook = Box<dyn FnOnce() + Send>;

impl Storage for Hooked {
    fn capacity(&self) -> u64 {
        self.0.capacity()
    }

    fn read(&self, offset: u64, bytes: usize) -> io::Result<Pieces> {
        self.0.read(offset, bytes)
    }

    fn write(&self, offset: u64, data: &[Bytes]) -> io::Result<()> {
        let hook = self.1.lock().unwrap().take();
        if let Some(hook) = hook {
            hook();
        }
        self.0.write(offset, data)
    }

    fn zero(&self, offset: u64, bytes: u64) -> io::Result<()> {
        self.0.zero(offset, bytes)
    }

    fn flush(&self) -> io::Result<()> {
        self.2.fetch_add(1, Ordering::Relaxed);
        let hook = self.1.lock().unwrap().take();
        if let Some(hook) = hook {
            hook();
        }
        Ok(())
    }

    fn may_block(&self) -> bool {
        true
    }
}

fn hooked_target() -> (Target, Arc<Hooked>) {
    let storage = Arc::new(Hooked(MemoryStorage::new(64 << 20), Mutex::default(), AtomicU64::new(0)));
    let mut target = Target::new(TargetConfig::default()).unwrap();
    target.add_subsystem(DISK, None).unwrap();
    target.add_namespace(DISK, Namespace::new(1, 512, storage.clone()).unwrap()).unwrap();
    (target, storage)
}

/// Jobs that are to be advanced again.
type Later = Arc<Mutex<Vec<Job>>>;

fn advance(job: Job, later: &Later) -> Option<Done> {
    let later = later.clone();
    job.advance(move |job| later.lock().unwrap().push(job))
}

/// Advances it until it is done or waits for others; `later` gets it then, when its turn comes.
fn advance_far(mut job: Job, later: &Later) -> Option<Done> {
    loop {
        if let Some(done) = advance(job, later) {
            return Some(done);
        }
        let more = later.lock().unwrap().pop();
        job = more?;
    }
}

#[test]
fn what_has_to_wait_for_its_place_or_a_flush_occupies_no_thread() {
    let (mut target, storage) = hooked_target();
    let (_admin, [mut first, mut second], _) = two_queues(&mut target);
    let write = |id, block: u64, value: u8, wire: &mut Wire, target: &mut Target, durable: u32| {
        let write = Command::new(IoOpcode::Write as u8, id).with_namespace(1).with_u64(10, block).with_u32(12, durable);
        send_only(wire, target, &Pdu::Command(write.with_sgl(Sgl::in_capsule(512))), &[value; 512]);
        wire.connection.poll_job().unwrap()
    };
    let flush = |wire: &mut Wire, target: &mut Target| {
        send_only(wire, target, &Pdu::Command(Command::new(IoOpcode::Flush as u8, 8).with_namespace(1)), &[]);
        wire.connection.poll_job().unwrap()
    };
    let durable = 1 << 30;
    // While the slow one holds its thread, writing or flushing, another thread gets the others.
    for is_flushing in [false, true] {
        let (later, done) = (Later::default(), Arc::<Mutex<Vec<Done>>>::default());
        let mut slow = write(5, 0, 0xaa, &mut first, &mut target, durable);
        if is_flushing {
            assert!(advance(slow, &later).is_none(), "it is to be made durable");
            slow = later.lock().unwrap().pop().unwrap();
        }
        let same_place = write(6, 0, 0xbb, &mut second, &mut target, 0);
        let beside = write(7, 9, 0xcc, &mut second, &mut target, durable);
        let flush = flush(&mut second, &mut target);
        let (in_hook, done_there) = (later.clone(), done.clone());
        let flushes = storage.2.load(Ordering::Relaxed);
        *storage.1.lock().unwrap() = Some(Box::new(move || {
            let ended = [same_place, flush, beside].map(|job| advance_far(job, &in_hook));
            let have_ended = ended.each_ref().map(Option::is_some);
            // What is written before a flush began is made durable by it: that of the others is enough for the slow one.
            assert_eq!(have_ended, if is_flushing { [true, false, false] } else { [false, true, true] });
            done_there.lock().unwrap().extend(ended.into_iter().flatten());
            assert!(in_hook.lock().unwrap().is_empty(), "nobody is called before its turn");
        }));
        let ended = match advance(slow, &later) {
            Some(ended) => ended,
            None => {
                let slow = later.lock().unwrap().pop().unwrap();
                advance_far(slow, &later).expect("nobody flushes")
            }
        };
        first.connection.complete(first.now, ended, &mut target);
        loop {
            let called = later.lock().unwrap().pop();
            let Some(called) = called else { break };
            done.lock().unwrap().extend(advance_far(called, &later));
        }
        let flushed = storage.2.load(Ordering::Relaxed) - flushes;
        // While one flush is under way, what comes waits for the next, and that one is enough for all.
        assert_eq!(flushed, if is_flushing { 2 } else { 3 });
        let done = core::mem::take(&mut *done.lock().unwrap());
        assert_eq!(done.len(), 3);
        done.into_iter().for_each(|done| second.connection.complete(second.now, done, &mut target));
        let came = [statuses(&first.collect()), statuses(&second.collect())].concat();
        assert!(came.iter().all(|(_, status)| status.is_success()), "{came:?}");
        assert_eq!(first_block(&mut second, &mut target), 0xbb, "in the order they came");
    }
}

#[test]
fn long_work_goes_on_in_parts_and_ends_when_it_is_aborted() {
    let (mut target, _storage) = hooked_target();
    let (mut admin, [mut queue, _], _) = two_queues(&mut target);
    let zero = |id| Pdu::Command(Command::new(IoOpcode::WriteZeroes as u8, id).with_namespace(1).with_u32(12, 0xffff));
    let abort = |command: u32| Command::new(AdminOpcode::Abort as u8, 11).with_u32(10, 1 | command << 16);
    let later = Later::default();
    send_only(&mut queue, &mut target, &zero(5), &[]);
    let mut job = queue.connection.poll_job().unwrap();
    let mut parts = 1;
    let done = loop {
        if let Some(done) = advance(job, &later) {
            break done;
        }
        job = later.lock().unwrap().pop().unwrap();
        parts += 1;
    };
    queue.connection.complete(queue.now, done, &mut target);
    assert_eq!((parts, &statuses(&queue.collect())[..]), (32, &[(5, Status::SUCCESS)][..]), "1 MiB each");
    // One that is under way, one that is not, one whose data are still to come, and one whose data are on their way.
    send_only(&mut queue, &mut target, &zero(6), &[]);
    let job = queue.connection.poll_job().unwrap();
    assert!(advance(job, &later).is_none());
    send_only(&mut queue, &mut target, &zero(7), &[]);
    let write = Command::new(IoOpcode::Write as u8, 8).with_namespace(1).with_sgl(Sgl::transport(512));
    send_only(&mut queue, &mut target, &Pdu::Command(write), &[]);
    let came = queue.collect();
    let [Came(Pdu::ReadyToTransfer(request), _)] = came[..] else { panic!("{came:?}") };
    for id in [6, 7, 8] {
        assert_eq!(admin.command(&mut target, abort(id), &[]).result, 1, "not at once");
    }
    assert!(target.take_wakeups().contains(&queue.connection.id()));
    queue.connection.handle_wakeup(&mut target);
    assert_eq!(statuses(&queue.collect()), [(7, Status::ABORTED_BY_REQUEST)]);
    let job = later.lock().unwrap().pop().unwrap();
    let done = advance(job, &later).expect("no further part");
    queue.connection.complete(queue.now, done, &mut target);
    assert_eq!(statuses(&queue.collect()), [(6, Status::ABORTED_BY_REQUEST)]);
    let came = queue.send(&mut target, &Pdu::HostData(host_data(&request)), &[7; 512]);
    assert_eq!(statuses(&came), [(8, Status::ABORTED_BY_REQUEST)]);
    assert_eq!(first_block(&mut queue, &mut target), 0, "nothing was written");
}

#[test]
fn an_abort_is_about_the_command_that_was_there() {
    let (mut target, _storage) = hooked_target();
    let (mut admin, [mut queue, _], _) = two_queues(&mut target);
    let abort = |command: u32| Command::new(AdminOpcode::Abort as u8, 11).with_u32(10, 1 | command << 16);
    let zero = |id| Pdu::Command(Command::new(IoOpcode::WriteZeroes as u8, id).with_namespace(1));
    send_only(&mut queue, &mut target, &zero(5), &[]);
    // One that is there, and one that is not yet, when they are named; all that before their connection looks.
    assert_eq!(admin.command(&mut target, abort(5), &[]).result, 1);
    assert_eq!(admin.command(&mut target, abort(6), &[]).result, 1);
    send_only(&mut queue, &mut target, &zero(6), &[]);
    queue.connection.handle_wakeup(&mut target);
    assert_eq!(statuses(&queue.collect()), [(5, Status::ABORTED_BY_REQUEST)]);
    while let Some(job) = queue.connection.poll_job() {
        queue.connection.complete(queue.now, job.run(), &mut target);
    }
    assert_eq!(statuses(&queue.collect()), [(6, Status::SUCCESS)]);
}

#[test]
fn a_disconnect_asks_for_nothing_that_it_ends() {
    let transport = TransportConfig { budget: 4096, ..TransportConfig::default() };
    let mut target = target(transport);
    let (mut wire, _admin) = Wire::io(&mut target, false);
    let write = |id| {
        let write = Command::new(IoOpcode::Write as u8, id).with_namespace(1).with_u32(12, 7);
        Pdu::Command(write.with_sgl(Sgl::transport(4096)))
    };
    // There is room to ask for the data of one.
    for id in [5, 6, 7] {
        send_only(&mut wire, &mut target, &write(id), &[]);
    }
    let came = wire.collect();
    assert!(matches!(came[..], [Came(Pdu::ReadyToTransfer(_), _)]), "{came:?}");
    let came = wire.send(&mut target, &Pdu::Command(Command::fabrics(FabricsType::Disconnect, 9)), &[]);
    let ended = Status::ABORTED_QUEUE_DELETED;
    assert_eq!(statuses(&came), [(5, ended), (6, ended), (7, ended), (9, Status::SUCCESS)]);
    assert_eq!(came.len(), 4, "no requests for data: {came:?}");
}

#[test]
fn one_queue_does_not_fill_the_storage_with_its_work() {
    let (mut target, _storage) = hooked_target();
    let (_admin, controller) = Wire::admin(&mut target);
    let mut wire = Wire::open(&mut target, false);
    let (command, data) = connect_command(1, controller);
    let answer = wire.command(&mut target, command.with_u32(11, 1023 - 1), &data.to_bytes());
    assert!(answer.status.is_success());
    let flush = |id| Pdu::Command(Command::new(IoOpcode::Flush as u8, id).with_namespace(1));
    (0..1000).for_each(|id| send_only(&mut wire, &mut target, &flush(id), &[]));
    let jobs: Vec<Job> = core::iter::from_fn(|| wire.connection.poll_job()).collect();
    assert_eq!(jobs.len(), 128);
    for job in jobs {
        wire.connection.complete(wire.now, job.run(), &mut target);
    }
    assert!(wire.connection.poll_job().is_some());
}

#[test]
fn no_two_namespaces_have_one_uuid() {
    let mut target = Target::new(TargetConfig::default()).unwrap();
    let namespace = |id| Namespace::new(id, 512, Arc::<Counting>::default()).unwrap();
    for name in [DISK, "nqn.2026-01.test:other"] {
        target.add_subsystem(name, None).unwrap();
    }
    target.add_namespace(DISK, namespace(1).with_uuid([9; 16])).unwrap();
    let refused = target.add_namespace("nqn.2026-01.test:other", namespace(1).with_uuid([9; 16])).unwrap_err();
    assert_eq!(refused, TargetError::SameUuid(1, DISK.into()));
    target.add_namespace("nqn.2026-01.test:other", namespace(1)).unwrap();
}
