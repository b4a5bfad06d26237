//! What hosts cannot make a controller do, whether they mean it or not: hold more than its share, do what is over, say
//! that data are safe that are not.

mod rig;

use bytes::Bytes;
use core::time::Duration;
use nvme_tcp::controller::{Target, TargetConfig, TransportConfig};
use nvme_tcp::namespace::{Namespace, Pieces, Storage};
use nvme_tcp::nvme::fabrics::{ConnectData, DISCOVERY_NQN, property};
use nvme_tcp::nvme::log::page;
use nvme_tcp::{AdminOpcode, Command, FabricsType, FatalStatus, IoOpcode, Pdu, Sgl, Status};
use offload_base::Instant;
use rig::{Came, DISK, HOST, Wire, connect_command, segment, target, termination};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

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
    let (mut target, storage) = (Target::new(TargetConfig::default()), Arc::<Counting>::default());
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
    let mut target = Target::new(TargetConfig { max_controllers: 3, ..TargetConfig::default() });
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
        let mut target = Target::new(TargetConfig::default());
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
    let read = Command::new(IoOpcode::Read as u8, 7).with_namespace(1).with_sgl(Sgl::transport(512));
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
