//! Long-running controllers: hosts connect, stay, fall silent and reconnect without locking other hosts out.
//! Connections end with their commands.

use crate::rig;

use bytes::Bytes;
use core::time::Duration;
use nvme_tcp::namespace::{MemoryStorage, Namespace};
use nvme_tcp::target::{Target, TargetConfig, TargetError, TransportConfig};
use nvme_tcp::wire::{
    AdminOpcode, Command, ConnectData, DISCOVERY_NQN, FabricsType, FatalStatus, IoOpcode, Pdu, Sgl, Status, page,
    property,
};
use offload_base::Instant;
use rig::storage::{CountingStorage, counting_target};
use rig::{
    Client, DISK, HOST, ReceivedPdu, connect_command, first_block, property_get, property_set, segment, send_only,
    statuses, target, termination, two_queues,
};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Opens an admin queue of the discovery controller.
fn discovery(target: &mut Target) -> Client {
    let mut wire = Client::open(target, false);
    let (command, data) = connect_command(0, 0xffff);
    let data = ConnectData { subsystem: DISCOVERY_NQN.into(), ..data };
    assert!(wire.command(target, command, &data.to_bytes()).status.is_success());
    assert!(wire.command(target, property_set(1), &[]).status.is_success());
    wire
}

#[test]
fn unsent_answers_are_limited() {
    let transport = TransportConfig::default();
    let mut target = target(transport);
    let mut wire = discovery(&mut target);
    // Each command asks for the largest possible log page: 1 MiB.
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
            // The last PDU of an answer is data with SUCCESS, or a response.
            answers += usize::from(pdu.head[0] == 0x05 || pdu.head[1] & 0x08 != 0);
            bytes += pdu.data.iter().map(Bytes::len).sum::<usize>();
        }
        assert!(held > 0, "every command is answered");
        assert!(held <= transport.budget + (1 << 20) + 4096, "{held} bytes held");
        wire.connection.resume(wire.now, &mut target);
    }
    assert_eq!(bytes, COMMANDS << 20);
    assert!(wire.connection.wants_input() && wire.connection.poll_transmit().is_none());
}

#[test]
fn reset_discards_event_requests() {
    let mut target = target(TransportConfig::default());
    let (mut wire, _) = Client::admin(&mut target);
    let enable = Command::new(AdminOpcode::SetFeatures as u8, 1).with_u32(10, 0x0b).with_u32(11, 1 << 8);
    for round in 0..12 {
        assert!(wire.command(&mut target, enable, &[]).status.is_success());
        // One event in each round, because the log is never read.
        let storage = Arc::new(CountingStorage::default());
        target.add_namespace(DISK, Namespace::new(10 + round, 512, storage).unwrap()).unwrap();
        let told: Vec<ReceivedPdu> = (100..104)
            .flat_map(|id| {
                wire.send(&mut target, &Pdu::Command(Command::new(AdminOpcode::AsyncEventRequest as u8, id)), &[])
            })
            .collect();
        let [ReceivedPdu(Pdu::Response(completion), _)] = told[..] else { panic!("round {round}: {told:?}") };
        assert_eq!((completion.status, completion.result), (Status::SUCCESS, 0x04_0002), "round {round}");
        assert!(wire.command(&mut target, property_set(0), &[]).status.is_success());
        assert!(wire.command(&mut target, property_set(0x0046_0001), &[]).status.is_success());
    }
}

#[test]
fn new_controller_waits_for_old_commands() {
    // Once with the host's connections lost, and once with the loss unnoticed.
    for noticed in [true, false] {
        let (mut target, storage) = counting_target();
        let (mut wire, mut admin) = Client::io(&mut target, false);
        let write = Command::new(IoOpcode::Write as u8, 5).with_namespace(1).with_sgl(Sgl::in_capsule(512));
        let capsule = |id, wire: &Client| {
            let pdu = Pdu::Command(write.with_identifier(id));
            wire.framing.frame(&pdu, [Bytes::from(vec![1; 512])]).into_pieces().collect::<Vec<_>>().concat()
        };
        let capsules = [capsule(5, &wire), capsule(6, &wire)].concat();
        wire.connection.handle_segment(wire.now, segment(&capsules), &mut target);
        let stuck = wire.connection.poll_job().expect("a write");
        if noticed {
            // The admin queue ends first. Jobs that have not begun never begin then.
            admin.connection.handle_end(&mut target);
            assert!(wire.connection.poll_job().is_none());
            wire.connection.handle_end(&mut target);
        }
        // The host connects at once, even repeatedly, but its controllers are not ready.
        let mut again: Vec<(Client, u16)> = (0..3).map(|_| Client::admin(&mut target)).collect();
        let status =
            |wire: &mut Client, target: &mut Target| wire.command(target, property_get(property::CSTS), &[]).result & 1;
        let (last, controller) = again.last_mut().unwrap();
        assert_eq!(status(last, &mut target), 0, "noticed: {noticed}");
        let too_early = Client::open(&mut target, false).connect(&mut target, 1, *controller);
        assert_eq!(too_early.status, Status::CONNECT_BUSY);
        let (command, data) = connect_command(0, 0xffff);
        for other in [
            ConnectData { host_id: [9; 16], ..data.clone() },
            // Hosts may share a default identifier.
            ConnectData { host: "nqn.2026-01.test:other".into(), ..data },
        ] {
            let mut another_host = Client::open(&mut target, false);
            assert!(another_host.command(&mut target, command, &other.to_bytes()).status.is_success(), "{other:?}");
            assert!(another_host.command(&mut target, property_set(0x0046_0001), &[]).status.is_success());
            assert_eq!(status(&mut another_host, &mut target), 1);
        }
        // The old write ends, which makes all three controllers ready.
        stuck.run();
        assert_eq!(storage.writes.load(Ordering::Relaxed), 1);
        assert!(again.iter_mut().all(|(wire, _)| status(wire, &mut target) == 1));
        assert!(Client::open(&mut target, false).connect(&mut target, 1, again[2].1).status.is_success());
        if !noticed {
            // Later commands of the old controller do not delay controllers that were opened before.
            let late = wire.connection.poll_job().expect("a write");
            let (mut more, _) = Client::admin(&mut target);
            assert_eq!(status(&mut more, &mut target), 0);
            assert!(again.iter_mut().all(|(wire, _)| status(wire, &mut target) == 1));
            late.run();
            assert_eq!(status(&mut more, &mut target), 1);
        }
    }
}

#[test]
fn dead_controller_expires_beside_its_successor() {
    let mut target = target(TransportConfig::default());
    let open = |target: &mut Target, now, keep_alive: u32| {
        let mut wire = Client::open(target, false);
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
    // The new controller does not replace the old one, which may still be alive.
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
fn known_host_connects_at_the_controller_limit() {
    let mut target = Target::new(TargetConfig { max_controllers: 3, ..TargetConfig::default() }).unwrap();
    target.add_subsystem(DISK, None).unwrap();
    let open = |target: &mut Target, seconds, host: u8| {
        let mut wire = Client::open(target, false);
        wire.now = Instant::ZERO + Duration::from_secs(seconds);
        let (command, data) = connect_command(0, 0xffff);
        let data = ConnectData { host_id: [host; 16], ..data };
        let answer = wire.command(target, command, &data.to_bytes());
        (wire, answer)
    };
    let (mut other, _) = open(&mut target, 0, 1);
    let (mut first, _) = open(&mut target, 1, 2);
    let (mut second, _) = open(&mut target, 2, 2);
    // Commands refresh the controller's age even without a keep-alive.
    first.now = Instant::ZERO + Duration::from_secs(3);
    assert!(first.command(&mut target, property_set(0x0046_0001), &[]).status.is_success());
    let keep_alive = Command::new(AdminOpcode::KeepAlive as u8, 1);
    assert!(first.command(&mut target, keep_alive, &[]).status.is_success());
    assert_eq!(open(&mut target, 4, 3).1.status, Status::CONNECT_BUSY, "another host");
    // Host 2 gets another controller in place of its own least recently heard one.
    let (mut third, answer) = open(&mut target, 4, 2);
    assert!(answer.status.is_success());
    assert_eq!(target.controllers(), 3);
    for (wire, closes) in [(&mut other, false), (&mut first, false), (&mut second, true), (&mut third, false)] {
        wire.connection.handle_wakeup(&mut target);
        assert_eq!(wire.connection.is_closing(), closes);
    }
}

#[test]
fn reset_waits_for_running_commands() {
    let (mut target, _storage) = counting_target();
    let (mut wire, mut admin) = Client::io(&mut target, false);
    let zero = Command::new(IoOpcode::WriteZeroes as u8, 5).with_namespace(1);
    let capsule = wire.framing.frame(&Pdu::Command(zero), []).into_pieces().collect::<Vec<_>>().concat();
    wire.connection.handle_segment(wire.now, segment(&capsule), &mut target);
    let stuck = wire.connection.poll_job().expect("a job");
    assert!(admin.command(&mut target, property_set(0), &[]).status.is_success());
    assert!(admin.command(&mut target, property_set(0x0046_0001), &[]).status.is_success());
    assert_eq!(admin.command(&mut target, property_get(property::CSTS), &[]).result, 0, "not ready yet");
    // RDY follows the end of the old command, not the write to CC.EN.
    stuck.run();
    assert_eq!(admin.command(&mut target, property_get(property::CSTS), &[]).result, 1);
}

#[test]
fn io_queues_accept_the_reported_capsule_size() {
    let mut target = target(TransportConfig { in_capsule: 4096, ..TransportConfig::default() });
    let (mut wire, _admin) = Client::io(&mut target, false);
    let write = |blocks: u32| Command::new(IoOpcode::Write as u8, 5).with_namespace(1).with_u32(12, blocks - 1);
    assert!(wire.command(&mut target, write(8), &[1; 4096]).status.is_success());
    let long = Pdu::Command(write(9).with_sgl(Sgl::in_capsule(4608)));
    let came = wire.send(&mut target, &long, &[1; 4608]);
    assert_eq!(termination(&came).0.fatal_status(), Some(FatalStatus::LimitExceeded));
}

#[test]
fn prp_data_pointers_are_refused() {
    let mut target = target(TransportConfig::default());
    let (mut wire, _admin) = Client::io(&mut target, false);
    for pointer in [0, 0b10, 0b11] {
        let read = Command::new(IoOpcode::Read as u8, 5).with_u32(0, 2 | pointer << 14 | 5 << 16).with_namespace(1);
        let read = read.with_sgl(Sgl::transport(512));
        assert_eq!(wire.command(&mut target, read, &[]).status, Status::INVALID_FIELD, "PSDT {pointer:#b}");
    }
}

#[test]
fn requests_end_at_multiples_of_four_bytes() {
    for (request_bytes, lengths) in [(1021, &[1020, 1020, 8][..]), (1, &[4; 512][..]), (2048, &[2048][..])] {
        let mut target = target(TransportConfig { request_bytes, requests: 1024, ..TransportConfig::default() });
        let (_admin, controller) = Client::admin(&mut target);
        let mut wire = Client::open_with_requests(&mut target, 1024);
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
    let (mut wire, _admin) = Client::io(&mut target, false);
    let deallocate =
        Command::new(IoOpcode::DatasetManagement as u8, 5).with_namespace(1).with_sgl(Sgl::transport(1025));
    assert_eq!(wire.command(&mut target, deallocate, &[]).status, Status::INVALID_SGL_LENGTH);
}

#[test]
fn namespace_ids_differ_between_subsystems() {
    let describe = |subsystem: &str| {
        let mut target = Target::new(TargetConfig::default()).unwrap();
        target.add_subsystem(subsystem, None).unwrap();
        target.add_namespace(subsystem, Namespace::new(1, 512, Arc::<CountingStorage>::default()).unwrap()).unwrap();
        let mut wire = Client::open(&mut target, false);
        let (command, data) = connect_command(0, 0xffff);
        let data = ConnectData { subsystem: subsystem.into(), host: HOST.into(), ..data };
        assert!(wire.command(&mut target, command, &data.to_bytes()).status.is_success());
        assert!(wire.command(&mut target, property_set(0x0046_0001), &[]).status.is_success());
        let mut identify = |cns: u32, namespace: u32| {
            let command = Command::new(AdminOpcode::Identify as u8, 2).with_u32(10, cns).with_namespace(namespace);
            let came = wire.send(&mut target, &Pdu::Command(command.with_sgl(Sgl::transport(4096))), &[]);
            came.into_iter().flat_map(|came| came.1).collect::<Vec<u8>>()
        };
        // CMIC bit 1: the subsystem accepts several controllers.
        assert_eq!(identify(1, 0)[76], 0b10);
        let (data, descriptors) = (identify(0, 1), identify(3, 1));
        assert_eq!(data[104..120], descriptors[4..20], "NGUID");
        (descriptors[4..20].to_vec(), descriptors[24..40].to_vec())
    };
    // Identifiers are derived from names, so they must be stable and different.
    let first = describe("nqn.2026-01.test:one");
    assert_eq!(first, describe("nqn.2026-01.test:one"), "the same in every run");
    let second = describe("nqn.2026-01.test:two");
    assert!(first.0 != second.0 && first.1 != second.1);
}

#[test]
fn disconnect_waits_for_running_commands() {
    let mut target = target(TransportConfig::default());
    let (_admin, [mut first, mut second], controller) = two_queues(&mut target);
    let write =
        |id| Pdu::Command(Command::new(IoOpcode::Write as u8, id).with_namespace(1).with_sgl(Sgl::in_capsule(512)));
    send_only(&mut first, &mut target, &write(5), &[0xaa; 512]);
    let slow = first.connection.poll_job().unwrap();
    send_only(&mut first, &mut target, &write(6), &[0xcc; 512]);
    send_only(&mut first, &mut target, &Pdu::Command(Command::fabrics(FabricsType::Disconnect, 9)), &[]);
    assert_eq!(statuses(&first.collect()), [(6, Status::ABORTED_QUEUE_DELETED)], "the job had not begun");
    assert!(first.connection.poll_job().is_none() && !first.connection.is_closing());
    assert!(!first.connection.wants_input());
    let early = Client::open(&mut target, false).connect(&mut target, 1, controller);
    assert_eq!(early.status, Status::CONNECT_INVALID_PARAMETERS, "the queue still exists");
    first.connection.complete(first.now, slow.run(), &mut target);
    assert_eq!(
        statuses(&first.collect()),
        [(5, Status::SUCCESS), (9, Status::SUCCESS)],
        "the running command first, then the Disconnect"
    );
    assert!(first.connection.is_closing());
    // The queue exists again, and no old command may follow its writes.
    let mut again = Client::open(&mut target, false);
    assert!(again.connect(&mut target, 1, controller).status.is_success());
    let write = Command::new(IoOpcode::Write as u8, 6).with_namespace(1);
    assert!(again.command(&mut target, write, &[0xbb; 512]).status.is_success());
    assert_eq!(first_block(&mut second, &mut target), 0xbb);
}

#[test]
fn reconnected_queue_waits_for_its_old_commands() {
    let mut target = target(TransportConfig::default());
    let (_admin, [mut first, mut second], controller) = two_queues(&mut target);
    let write = Pdu::Command(Command::new(IoOpcode::Write as u8, 5).with_namespace(1).with_sgl(Sgl::in_capsule(512)));
    send_only(&mut first, &mut target, &write, &[0xaa; 512]);
    let slow = first.connection.poll_job().unwrap();
    first.connection.handle_end(&mut target);
    let _ = target.take_wakeups();
    // Lost once more while the Connect waits. Another queue does not wait.
    let connect = |target: &mut Target, queue| {
        let mut wire = Client::open(target, false);
        let (command, data) = connect_command(queue, controller);
        let came = wire.send(target, &Pdu::Command(command), &data.to_bytes());
        (wire, came)
    };
    let (mut lost, came) = connect(&mut target, 1);
    assert!(came.is_empty() && !lost.connection.wants_input());
    lost.connection.handle_end(&mut target);
    let (mut again, came) = connect(&mut target, 1);
    assert!(came.is_empty(), "the write of the first connection is still running");
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

/// Connects a controller that is not enabled, with this keep-alive time in milliseconds.
fn with_keep_alive(target: &mut Target, host: u8, keep_alive: u32, now: Instant) -> (Client, Status) {
    let mut wire = Client::open(target, false);
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
fn keep_alive_timer_runs_only_while_ready() {
    let mut target = target(TransportConfig::default());
    let (mut wire, _) = with_keep_alive(&mut target, 7, 5000, at(0));
    assert_eq!(
        wire.command(&mut target, Command::new(AdminOpcode::KeepAlive as u8, 3), &[]).status,
        Status::COMMAND_SEQUENCE_ERROR
    );
    let alive = |wire: &mut Client, target: &mut Target, now| {
        wire.connection.handle_timeout(now, target);
        !wire.connection.is_closing()
    };
    // The timer does not run before the controller is enabled.
    assert!(alive(&mut wire, &mut target, at(0)) && alive(&mut wire, &mut target, at(100)));
    wire.now = at(100);
    assert!(wire.command(&mut target, property_set(0x0046_0001), &[]).status.is_success());
    assert_eq!(wire.connection.next_event(&target), Some(at(105)));
    // Property accesses do not restart the timer then. During a shutdown, no keep-alive is due.
    wire.now = at(104);
    assert!(wire.command(&mut target, property_get(property::CSTS), &[]).status.is_success());
    assert_eq!(wire.connection.next_event(&target), Some(at(105)));
    send_only(&mut wire, &mut target, &Pdu::Command(property_set(0x0046_4001)), &[]);
    let flush = wire.connection.poll_job().expect("a slow flush");
    assert!(alive(&mut wire, &mut target, at(1000)));
    wire.now = at(1000);
    wire.connection.complete(wire.now, flush.run(), &mut target);
    assert!(alive(&mut wire, &mut target, at(1001)));
    assert_eq!(wire.connection.next_event(&target), Some(at(1121)), "time to disconnect");
    assert!(!alive(&mut wire, &mut target, at(1121)));
}

#[test]
fn host_waiting_for_ready_is_not_lost() {
    let (mut target, _storage) = counting_target();
    let (mut old, old_admin) = Client::io(&mut target, false);
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
    // The connection is woken, because its timer starts now.
    assert!(target.take_wakeups().contains(&wire.connection.id()));
    wire.connection.handle_wakeup(&mut target);
    wire.connection.handle_timeout(at(61), &mut target);
    assert_eq!(wire.connection.next_event(&target), Some(at(66)));
}

#[test]
fn forsaken_controllers_are_replaced() {
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
    let keep_alive = |wire: &mut Client, target: &mut Target, now| {
        wire.now = now;
        assert!(wire.command(target, Command::new(AdminOpcode::KeepAlive as u8, 3), &[]).status.is_success());
    };
    // One host with a queue and without a keep-alive; the others without queues, with any keep-alive.
    let (mut works, _) = enabled(&mut target, 7, 0, at(0));
    let mut queue = Client::open(&mut target, false);
    assert!(queue.connect(&mut target, 1, 1).status.is_success());
    let (mut keeps, _) = enabled(&mut target, 1, 600_000, at(0));
    let (mut first, _) = enabled(&mut target, 3, 0, at(1));
    let (mut second, _) = enabled(&mut target, 4, u32::MAX, at(2));
    assert_eq!(enabled(&mut target, 5, 5000, at(9)).1, Status::CONNECT_BUSY, "they still have time to connect queues");
    keep_alive(&mut keeps, &mut target, at(10));
    let (mut stranger, status) = enabled(&mut target, 5, 5000, at(12));
    assert!(status.is_success(), "the silent controller is replaced");
    let (mut another, status) = enabled(&mut target, 6, 5000, at(12));
    assert!(status.is_success());
    keep_alive(&mut keeps, &mut target, at(13));
    let (mut third, status) = enabled(&mut target, 8, 5000, at(13));
    assert!(status.is_success(), "a keep-alive does not protect a controller without queues");
    assert_eq!(enabled(&mut target, 9, 5000, at(14)).1, Status::CONNECT_BUSY);
    let wires = [&mut works, &mut keeps, &mut first, &mut second, &mut stranger, &mut another, &mut third];
    // Only controllers without queues were replaced, oldest sign of life first.
    let ended = wires.map(|wire| {
        wire.connection.handle_wakeup(&mut target);
        wire.connection.is_closing()
    });
    assert_eq!(ended, [false, true, true, true, false, false, false]);
}

#[test]
fn unused_queue_does_not_protect_a_controller() {
    let mut target = Target::new(TargetConfig { max_controllers: 3, ..TargetConfig::default() }).unwrap();
    target.add_subsystem(DISK, None).unwrap();
    target.add_namespace(DISK, Namespace::new(1, 512, Arc::new(MemoryStorage::new(1 << 20))).unwrap()).unwrap();
    // Each host gets the controller with its own number.
    let with_queue = |target: &mut Target, host: u8, keep_alive, now| {
        let (mut admin, status) = with_keep_alive(target, host, keep_alive, now);
        assert!(status.is_success());
        assert!(admin.command(target, property_set(0x0046_0001), &[]).status.is_success());
        let mut queue = Client::open(target, false);
        queue.now = now;
        let (command, data) = connect_command(1, u16::from(host));
        let data = ConnectData { host_id: [host; 16], ..data };
        assert!(queue.command(target, command, &data.to_bytes()).status.is_success());
        (admin, queue)
    };
    let (mut idle, _queue) = with_queue(&mut target, 1, 0, at(0));
    let (mut uses, mut queue) = with_queue(&mut target, 2, 0, at(0));
    let (mut keeps, _other_queue) = with_queue(&mut target, 3, 60_000, at(0));
    // Only the second host uses its queue. The third has a keep-alive timer instead.
    queue.now = at(50);
    let flush = Command::new(IoOpcode::Flush as u8, 5).with_namespace(1);
    assert!(queue.command(&mut target, flush, &[]).status.is_success());
    assert_eq!(with_keep_alive(&mut target, 4, 5000, at(119)).1, Status::CONNECT_BUSY);
    // All controllers are taken. The idle one is ended 120 s after its last command, not before.
    let (_stranger, status) = with_keep_alive(&mut target, 4, 5000, at(120));
    assert!(status.is_success());
    assert_eq!(with_keep_alive(&mut target, 5, 5000, at(121)).1, Status::CONNECT_BUSY);
    let ended = [&mut idle, &mut uses, &mut keeps].map(|wire| {
        wire.connection.handle_wakeup(&mut target);
        wire.connection.is_closing()
    });
    assert_eq!(ended, [true, false, false]);
}

#[test]
fn disconnect_requests_no_further_data() {
    let transport = TransportConfig { budget: 4096, ..TransportConfig::default() };
    let mut target = target(transport);
    let (mut wire, _admin) = Client::io(&mut target, false);
    let write = |id| {
        let write = Command::new(IoOpcode::Write as u8, id).with_namespace(1).with_u32(12, 7);
        Pdu::Command(write.with_sgl(Sgl::transport(4096)))
    };
    // The budget allows requests for one command only.
    for id in [5, 6, 7] {
        send_only(&mut wire, &mut target, &write(id), &[]);
    }
    let came = wire.collect();
    assert!(matches!(came[..], [ReceivedPdu(Pdu::ReadyToTransfer(_), _)]), "{came:?}");
    let came = wire.send(&mut target, &Pdu::Command(Command::fabrics(FabricsType::Disconnect, 9)), &[]);
    let ended = Status::ABORTED_QUEUE_DELETED;
    assert_eq!(statuses(&came), [(5, ended), (6, ended), (7, ended), (9, Status::SUCCESS)]);
    assert_eq!(came.len(), 4, "no requests for data: {came:?}");
}

#[test]
fn duplicate_uuid_is_refused() {
    let mut target = Target::new(TargetConfig::default()).unwrap();
    let namespace = |id| Namespace::new(id, 512, Arc::<CountingStorage>::default()).unwrap();
    for name in [DISK, "nqn.2026-01.test:other"] {
        target.add_subsystem(name, None).unwrap();
    }
    target.add_namespace(DISK, namespace(1).with_uuid([9; 16])).unwrap();
    let refused = target.add_namespace("nqn.2026-01.test:other", namespace(1).with_uuid([9; 16])).unwrap_err();
    assert_eq!(refused, TargetError::SameUuid(1, DISK.into()));
    target.add_namespace("nqn.2026-01.test:other", namespace(1)).unwrap();
}
