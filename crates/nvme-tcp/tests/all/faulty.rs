//! Hosts with controllers that misbehave, fall silent or disappear. Every command must end.

use crate::made_by_hand;

use core::time::Duration;
use futures_util::future::{join, join_all};
use made_by_hand::{ControllerAction, ScriptedController, WAS, is_gone, is_io, with};
use nvme_tcp::host::{Buffer, CommandError, HostError, HostEvent, ReadError, Unsuitable};
use nvme_tcp::wire::{AdminOpcode, FabricsType, IoOpcode, NamespaceData, Status, commands};
use std::sync::{Arc, Mutex};

#[test]
fn unsuitable_controllers_are_refused() {
    type ControllerChange = fn(&mut ScriptedController);
    let rows: [(ControllerChange, Unsuitable); 4] = [
        (|faulty| faulty.entries = 0, Unsuitable::NoRoom),
        (|faulty| faulty.data.in_capsule_offset = 1, Unsuitable::DataOffset),
        (|faulty| faulty.data.command_capsule = 3, Unsuitable::SmallCapsules),
        (|faulty| faulty.data.sgl_support = 0, Unsuitable::NoSgls),
    ];
    for (change, reason) in rows {
        let mut faulty = ScriptedController::new(|_, _, _| ControllerAction::Answer);
        change(&mut faulty);
        let refused = with(faulty, |_| (), |host, _| async move { host.ready().await });
        let Err(HostError::Unsuitable(why)) = refused else { panic!("{reason}: {refused:?}") };
        assert_eq!(why, reason);
    }
}

#[test]
fn queue_depth_obeys_the_controller() {
    // SQSIZE is a 0's based number, and a queue has one entry more than commands.
    for (entries, max_commands, sent) in [(7, 0, 7), (127, 9, 8), (127, 1, 1), (500, 0, 200)] {
        let size = Arc::new(Mutex::new(0));
        let seen = size.clone();
        let mut faulty = ScriptedController::new(move |_, queue, command| {
            if queue == 1 && command.opcode() == AdminOpcode::Fabrics as u8 {
                *seen.lock().unwrap() = command.u16(44);
            }
            ControllerAction::Answer
        });
        (faulty.entries, faulty.data.max_commands) = (entries, max_commands);
        with(faulty, |config| config.depth = 200, |host, _| async move { host.ready().await.unwrap() });
        assert_eq!(*size.lock().unwrap(), sent, "MQES {entries}, MAXCMD {max_commands}");
    }
}

#[test]
fn command_that_kills_connections_fails() {
    let faulty = ScriptedController::new(|_, queue, command| match is_io(queue, command, IoOpcode::Read) {
        true if command.u64(10) == 13 => ControllerAction::Close,
        _ => ControllerAction::Answer,
    });
    let (stats, took) = with(
        faulty,
        |_| (),
        |host, runtime| async move {
            host.ready().await.unwrap();
            let disk = host.disk(1).await.unwrap();
            let start = runtime.now();
            let failed = disk.read(13, disk.buffer(1)).await;
            let Err(ReadError { error: CommandError::Lost(_), buffer }) = failed else { panic!("{failed:?}") };
            assert_eq!(buffer.len(), 4096);
            let took = runtime.now() - start;
            // Other commands still succeed afterwards.
            disk.read(12, disk.buffer(1)).await.unwrap();
            (host.stats(), took)
        },
    );
    assert_eq!((stats.replays, stats.connects), (8, 10));
    // 20, 40, 80, .. ms: connections that do not last do not reset the delay.
    assert!(took > Duration::from_secs(5), "{took:?}");
}

#[test]
fn host_retries_when_the_controller_disappears() {
    let faulty = ScriptedController::new(|association, queue, command| match (association, queue, command.opcode()) {
        (1, 1, opcode) if opcode == IoOpcode::Flush as u8 => ControllerAction::Close,
        // The controller disappears between the admin queue's Connect and this one.
        (2, 1, opcode) if opcode == AdminOpcode::Fabrics as u8 => {
            ControllerAction::Refuse(Status::CONNECT_INVALID_PARAMETERS)
        }
        _ => ControllerAction::Answer,
    });
    let stats = with(
        faulty,
        |_| (),
        |host, _| async move {
            host.ready().await.unwrap();
            host.disk(1).await.unwrap().flush().await.unwrap();
            host.stats()
        },
    );
    assert_eq!((stats.connects, stats.replays), (2, 1));
}

#[test]
fn fewer_queues_after_a_loss_keep_all_commands() {
    let mut faulty =
        ScriptedController::new(|association, queue, command| match is_io(queue, command, IoOpcode::Read) {
            // Reads of block 1 are never answered.
            true if command.u64(10) == 1 || association == 1 => ControllerAction::Never,
            _ if is_io(queue, command, IoOpcode::Flush) && association == 1 => ControllerAction::Close,
            _ => ControllerAction::Answer,
        });
    faulty.queues = |association| if association == 1 { 4 } else { 1 };
    with(
        faulty,
        |config| config.queues = 4,
        |host, runtime| async move {
            host.ready().await.unwrap();
            assert_eq!(host.queues(), 4);
            let disk = host.disk(1).await.unwrap();
            let reads: Vec<_> = (0..8).map(|_| disk.read(0, disk.buffer(1))).collect();
            let stuck: Vec<_> = (0..8).map(|_| disk.read(1, disk.buffer(1))).collect();
            // The flush closes the first association, so all commands move to the single remaining queue.
            disk.flush().await.unwrap();
            assert!(join_all(reads).await.iter().all(Result::is_ok));
            runtime.sleep(Duration::from_secs(1)).await;
            assert_eq!(host.queues(), 1);
            stuck.iter().for_each(|read| read.cancel());
            for read in join_all(stuck).await {
                assert!(matches!(read, Err(ReadError { error: CommandError::Cancelled, .. })), "{read:?}");
            }
        },
    );
}

#[test]
fn command_finishes_during_the_shutdown() {
    for (of_read, of_shutdown) in [
        (ControllerAction::AnswerLate, ControllerAction::Answer),
        (ControllerAction::AnswerAfterNext, ControllerAction::Answer),
        (ControllerAction::AnswerLate, ControllerAction::AnswerLateAndClose),
    ] {
        let faulty = ScriptedController::new(move |_, queue, command| match AdminOpcode::from_u8(command.opcode()) {
            Some(AdminOpcode::GetLogPage) if queue == 0 => of_read,
            // CC.SHN requests a shutdown.
            Some(AdminOpcode::Fabrics)
                if command.fabrics_type() == FabricsType::PropertySet as u8 && command.u32(12) & 0b11 << 14 != 0 =>
            {
                of_shutdown
            }
            _ => ControllerAction::Answer,
        });
        with(
            faulty,
            |config| config.keep_alive = Duration::ZERO,
            |host, runtime| async move {
                host.ready().await.unwrap();
                let read = host.admin_read(commands::log_page(2, 0, 512), Buffer::zeroed(512));
                runtime.sleep(Duration::from_millis(100)).await;
                let (read, ()) = join(read, host.close()).await;
                assert_eq!(read.unwrap().len(), 512);
            },
        );
    }
}

#[test]
fn host_can_be_closed_while_it_connects() {
    for connects in [0, 1] {
        // During the first connect, or during a reconnect.
        let faulty = ScriptedController::new(move |association, queue, command| match association {
            _ if is_io(queue, command, IoOpcode::Flush) => ControllerAction::Close,
            _ if association > connects => ControllerAction::Never,
            _ => ControllerAction::Answer,
        });
        with(
            faulty,
            |_| (),
            move |host, runtime| async move {
                let mut lost = None;
                if connects == 1 {
                    host.ready().await.unwrap();
                    lost = Some(host.disk(1).await.unwrap().flush());
                }
                runtime.sleep(Duration::from_secs(1)).await;
                let start = runtime.now();
                host.close().await;
                assert!(runtime.now() - start < Duration::from_secs(1));
                assert!(matches!(host.ready().await, Err(HostError::Closed)));
                if let Some(lost) = lost {
                    assert!(matches!(lost.await, Err(CommandError::Lost(HostError::Closed))));
                }
            },
        );
    }
}

#[test]
fn silent_controller_is_noticed() {
    let faulty = ScriptedController::new(|association, queue, command| match AdminOpcode::from_u8(command.opcode()) {
        Some(AdminOpcode::KeepAlive) if queue == 0 && association == 1 => ControllerAction::Never,
        _ => ControllerAction::Answer,
    });
    let connects = with(
        faulty,
        |config| config.keep_alive = Duration::from_secs(2),
        |host, runtime| async move {
            host.ready().await.unwrap();
            // A Keep Alive is sent each second and missed after the second interval.
            runtime.sleep(Duration::from_millis(1900)).await;
            assert_eq!(host.stats().connects, 1);
            runtime.sleep(Duration::from_secs(8)).await;
            host.stats().connects
        },
    );
    assert_eq!(connects, 2);
}

/// A silent controller may execute old commands until it has given the host up.
#[test]
fn silent_loss_delays_resubmission() {
    for (act, queues, least) in [
        (ControllerAction::Never, 1, 5000),
        (ControllerAction::Never, 2, 5000),
        (ControllerAction::Close, 1, 20),
        (ControllerAction::Close, 2, 20),
    ] {
        let mut faulty =
            ScriptedController::new(move |association, queue, command| match is_io(queue, command, IoOpcode::Write) {
                true if association == 1 => act,
                _ => ControllerAction::Answer,
            });
        faulty.queues = |_| 2;
        let (took, stats) = with(
            faulty,
            |config| {
                config.queues = queues;
                config.command_timeout = Duration::from_secs(1);
                // The controller may execute the write until its keep-alive timer ends the association.
                config.keep_alive = Duration::from_millis(4300);
            },
            move |host, runtime| async move {
                host.ready().await.unwrap();
                let disk = host.disk(1).await.unwrap();
                let start = runtime.now();
                disk.write(0, [vec![1; 4096].into()]).await.unwrap();
                (runtime.now() - start, host.stats())
            },
        );
        // A silent loss is noticed by the command's timeout. A closed connection is noticed at once.
        let timeout = if matches!(act, ControllerAction::Never) { 1000 } else { 0 };
        let waited = took.as_millis().checked_sub(timeout).unwrap();
        assert!((least..least + 10).contains(&waited), "{took:?}");
        assert_eq!((stats.connects, stats.replays), (2, 1));
    }
}

#[test]
fn temporary_path_errors_are_retried() {
    let passing = [
        (Status::INTERNAL_PATH_ERROR, "internal path error"),
        (Status::ANA_INACCESSIBLE, "asymmetric access inaccessible"),
        (Status::ANA_TRANSITION, "asymmetric access transition"),
        (Status::CONTROLLER_PATHING_ERROR, "controller pathing error"),
        (Status::NOT_READY, "namespace not ready"),
        (Status::COMMAND_INTERRUPTED, "command interrupted"),
    ];
    for (status, name) in passing {
        // Permanently, temporarily, and with Do Not Retry.
        for (refusals, least, most, retries) in
            [(u64::MAX, 6000, 8000, 10..20), (8, 2000, 5000, 8..9), (0, 0, 10, 0..1)]
        {
            let final_status = Status::new(status.code_type(), status.code(), true);
            let refused = Arc::new(Mutex::new(0));
            let faulty = ScriptedController::new(move |_, queue, command| {
                if !is_io(queue, command, IoOpcode::Write) {
                    return ControllerAction::Answer;
                }
                let mut refused = refused.lock().unwrap();
                *refused += 1;
                match refusals {
                    0 => ControllerAction::Refuse(final_status),
                    _ if *refused > refusals => ControllerAction::Answer,
                    _ => ControllerAction::Refuse(status),
                }
            });
            // Retries of this command must not delay other commands, so a flush runs beside it.
            let (written, took, stats) = with(
                faulty,
                |config| config.path_wait = Duration::from_secs(8),
                |host, runtime| async move {
                    host.ready().await.unwrap();
                    let disk = host.disk(1).await.unwrap();
                    let start = runtime.now();
                    let write = disk.write(0, [vec![1; 4096].into()]);
                    let flush = async {
                        runtime.sleep(Duration::from_millis(5)).await;
                        disk.flush().await.unwrap();
                        assert!(runtime.now() - start < Duration::from_millis(10), "other commands continue");
                    };
                    let (written, ()) = join(write, flush).await;
                    (written, runtime.now() - start, host.stats())
                },
            );
            assert!((least..=most).contains(&took.as_millis()), "{name}, {refusals} times: {took:?}");
            assert!(retries.contains(&stats.retries), "{name}, {refusals} times: {stats:?}");
            assert_eq!(stats.connects, 1);
            match (refusals, written) {
                (8, written) => drop(written.unwrap()),
                (_, Err(CommandError::Status(told))) => {
                    assert_eq!((told.to_string(), told.do_not_retry()), (name.to_string(), refusals == 0));
                }
                (_, written) => panic!("{name}: {written:?}"),
            }
        }
    }
}

#[test]
fn persistent_path_loss_is_not_retried() {
    let faulty = ScriptedController::new(|_, queue, command| match is_io(queue, command, IoOpcode::Write) {
        true => ControllerAction::Refuse(Status::ANA_PERSISTENT_LOSS),
        false => ControllerAction::Answer,
    });
    let (written, stats) = with(
        faulty,
        |_| (),
        |host, _| async move {
            host.ready().await.unwrap();
            (host.disk(1).await.unwrap().write(0, [vec![1; 4096].into()]).await, host.stats())
        },
    );
    let Err(CommandError::Status(status)) = written else { panic!("{written:?}") };
    assert_eq!((status, stats.retries), (Status::ANA_PERSISTENT_LOSS, 0));
}

#[test]
fn reconnect_restarts_the_path_wait() {
    let faulty = ScriptedController::new(|association, queue, command| match command.opcode() {
        opcode if queue == 0 || opcode == AdminOpcode::Fabrics as u8 => ControllerAction::Answer,
        opcode if opcode == IoOpcode::Flush as u8 && association == 1 => ControllerAction::Close,
        opcode if opcode == IoOpcode::Write as u8 => ControllerAction::Refuse(Status::ANA_TRANSITION),
        _ => ControllerAction::Answer,
    });
    with(
        faulty,
        |config| config.path_wait = Duration::from_secs(8),
        |host, runtime| async move {
            host.ready().await.unwrap();
            let disk = host.disk(1).await.unwrap();
            let write = disk.write(0, [vec![1; 4096].into()]);
            runtime.sleep(Duration::from_secs(6)).await;
            disk.flush().await.unwrap();
            let start = runtime.now();
            assert!(matches!(write.await, Err(CommandError::Status(Status::ANA_TRANSITION))));
            let took = (runtime.now() - start).as_millis();
            assert!((6000..=8000).contains(&took), "{took} ms");
        },
    );
}

#[test]
fn waiting_retry_can_be_cancelled_and_survives_a_loss() {
    let faulty = ScriptedController::new(|association, queue, command| match command.opcode() {
        opcode if queue == 0 || opcode == AdminOpcode::Fabrics as u8 => ControllerAction::Answer,
        opcode if opcode == IoOpcode::Flush as u8 && association == 1 => ControllerAction::Close,
        opcode if opcode == IoOpcode::Write as u8 && (association == 1 || command.u64(10) == 9) => {
            ControllerAction::Refuse(Status::ANA_TRANSITION)
        }
        _ => ControllerAction::Answer,
    });
    with(
        faulty,
        |_| (),
        |host, runtime| async move {
            host.ready().await.unwrap();
            let disk = host.disk(1).await.unwrap();
            let writes: Vec<_> = (0..3).map(|number| disk.write(number, [vec![1; 4096].into()])).collect();
            runtime.sleep(Duration::from_millis(10)).await;
            let start = runtime.now();
            // All three writes wait for a retry. The flush ends the connection.
            writes[1].cancel();
            disk.flush().await.unwrap();
            let ended = join_all(writes).await;
            assert!(matches!(ended[..], [Ok(_), Err(CommandError::Cancelled), Ok(_)]), "{ended:?}");
            assert!(runtime.now() - start < Duration::from_millis(100));
            assert_eq!(host.stats().replays, 1, "only the flush was sent again");
            // A write that waits for its retry must also end when the host is closed.
            let resting = disk.write(9, [vec![1; 4096].into()]);
            runtime.sleep(Duration::from_millis(10)).await;
            host.close().await;
            assert!(matches!(resting.await, Err(CommandError::Lost(HostError::Closed))));
        },
    );
}

/// The namespace's data and descriptors, given the number of the association.
type NamespaceVersions = fn(u32) -> (NamespaceData, Vec<u8>);

fn uuid(byte: u8) -> Vec<u8> {
    [&[3, 16, 0, 0][..], &[byte; 16]].concat()
}

#[test]
fn namespace_replaced_after_a_loss_gets_no_old_commands() {
    let rows: [(&str, NamespaceVersions, bool); 7] = [
        ("the same", |_| (WAS, uuid(1)), true),
        ("grown", |number| (NamespaceData { blocks: 999 + u64::from(number), ..WAS }, uuid(1)), true),
        ("another NGUID", |number| (NamespaceData { nguid: [number as u8; 16], ..WAS }, Vec::new()), false),
        ("another UUID", |number| (WAS, uuid(number as u8)), false),
        ("no UUID any more", |number| (WAS, if number == 1 { uuid(1) } else { Vec::new() }), false),
        ("other blocks", |number| (NamespaceData { block_shift: 11 + number as u8, ..WAS }, uuid(1)), false),
        ("fewer blocks", |number| (NamespaceData { blocks: 1001 - u64::from(number), ..WAS }, uuid(1)), false),
    ];
    for (name, said, is_same) in rows {
        let written = Arc::new(Mutex::new(0));
        let count = written.clone();
        let mut faulty =
            ScriptedController::new(move |association, queue, command| match is_io(queue, command, IoOpcode::Write) {
                true if association == 1 => ControllerAction::Never,
                true => {
                    *count.lock().unwrap() += 1;
                    ControllerAction::Answer
                }
                false if association == 1 && is_io(queue, command, IoOpcode::Flush) => ControllerAction::Close,
                false => ControllerAction::Answer,
            });
        // Version 1.4 supports descriptors, so the host compares UUIDs.
        (faulty.namespace, faulty.data.version) = (Box::new(said), 0x0001_0400);
        with(
            faulty,
            |_| (),
            move |host, runtime| async move {
                host.ready().await.unwrap();
                let disk = host.disk(1).await.unwrap();
                let block = || [vec![1; disk.block_size() as usize].into()];
                let under_way = [disk.write(0, block()), host.io(commands::range(IoOpcode::Write, 1, 3, 1), block())];
                // Submitted while there is no connection.
                let flush = disk.flush();
                runtime.sleep(Duration::from_millis(5)).await;
                let later = [disk.write(1, block()), disk.write(2, block())];
                later[1].cancel();
                let ended = join_all(under_way.into_iter().chain(later)).await;
                assert!(matches!(ended[3], Err(CommandError::Cancelled)));
                if is_same {
                    assert!(ended[..3].iter().all(Result::is_ok), "{name}: {ended:?}");
                    flush.await.unwrap();
                    disk.read(0, disk.buffer(1)).await.unwrap();
                    assert_eq!(*written.lock().unwrap(), 3, "{name}");
                    return;
                }
                assert!(ended[..3].iter().all(is_gone), "{name}: {ended:?}");
                assert!(is_gone(&flush.await));
                assert!(is_gone(&disk.write(0, block()).await));
                assert!(is_gone(&host.io(commands::range(IoOpcode::Write, 1, 0, 1), block()).await));
                let Err(ReadError { error: CommandError::NamespaceChanged { .. }, .. }) =
                    disk.read(0, disk.buffer(1)).await
                else {
                    panic!("{name}")
                };
                assert_eq!(*written.lock().unwrap(), 0, "{name}");
                assert_eq!(host.next_event().await.unwrap(), HostEvent::NamespacesChanged(vec![1]));
                // The namespace can be used after a new inspection. The old disk stays gone.
                let again = host.disk(1).await.unwrap();
                again.flush().await.unwrap();
                assert!(is_gone(&disk.flush().await));
            },
        );
    }
}

#[test]
fn disk_of_a_grown_namespace_shares_its_fate() {
    let mut faulty = ScriptedController::new(|association, queue, command| match association {
        1 if is_io(queue, command, IoOpcode::Flush) => ControllerAction::Close,
        2 if is_io(queue, command, IoOpcode::Verify) => ControllerAction::Close,
        _ => ControllerAction::Answer,
    });
    faulty.namespace = Box::new(|number| match number {
        1 => (WAS, Vec::new()),
        2 => (NamespaceData { blocks: 2000, ..WAS }, Vec::new()),
        _ => (NamespaceData { blocks: 2000, nguid: [9; 16], ..WAS }, Vec::new()),
    });
    with(
        faulty,
        |_| (),
        |host, _| async move {
            host.ready().await.unwrap();
            let small = host.disk(1).await.unwrap();
            small.flush().await.unwrap();
            let large = host.disk(1).await.unwrap();
            // Both disks are the same namespace. If it is replaced, both must fail.
            assert_eq!((small.blocks(), large.blocks(), host.stats().connects), (1000, 2000, 2));
            let lost = large.verify(0, 1).await;
            assert!(matches!(lost, Err(CommandError::NamespaceChanged { .. })), "{lost:?}");
            assert!(matches!(small.flush().await, Err(CommandError::NamespaceChanged { .. })));
        },
    );
}
