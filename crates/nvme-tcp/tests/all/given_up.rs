//! Abandoned commands: their futures end when no execution is possible any more, and overlapping later commands wait.

use crate::made_by_hand;

use core::future::Future;
use core::pin::pin;
use core::task::{Context, Poll, Waker};
use core::time::Duration;
use futures_util::future::{join3, select};
use made_by_hand::{ControllerAction, ScriptedController, with};
use nvme_tcp::host::{CommandError, CommandFuture, Disk, Host, HostError, ReadError};
use nvme_tcp::wire::{AdminOpcode, Command, IoOpcode, Status, commands};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

/// Commands received on I/O queues, in order: association, opcode and first block.
type CommandLog = Arc<Mutex<Vec<(u32, u8, u64)>>>;

/// Creates a controller with two I/O queues that acts on I/O commands as given, and records them.
fn remembering(
    act: impl Fn(u32, &Command) -> ControllerAction + Send + Sync + 'static,
) -> (ScriptedController, CommandLog) {
    let seen = CommandLog::default();
    let remembers = seen.clone();
    let mut faulty = ScriptedController::new(move |association, queue, command| {
        if queue == 0 || command.opcode() == AdminOpcode::Fabrics as u8 {
            return ControllerAction::Answer;
        }
        remembers.lock().unwrap().push((association, command.opcode(), command.u64(10)));
        act(association, command)
    });
    faulty.queues = |_| 2;
    (faulty, seen)
}

fn block(byte: u8) -> [bytes::Bytes; 1] {
    [vec![byte; 4096].into()]
}

fn is_over<T>(future: &mut (impl Future<Output = T> + Unpin)) -> bool {
    matches!(pin!(future).poll(&mut Context::from_waker(Waker::noop())), Poll::Ready(_))
}

const COPY: u8 = 0x19;

/// Commands that change block 3, and possibly blocks near it.
const CHANGES: [fn(&Host, &Disk) -> CommandFuture; 5] = [
    |_, disk| disk.write(3, block(1)),
    |_, disk| disk.write_zeroes(3, 1),
    |_, disk| disk.write_uncorrectable(3, 1),
    |_, disk| disk.deallocate(&[(1, 1), (3, 1)]),
    |host, _| host.io(Command::new(COPY, 0).with_namespace(1).with_u64(10, 3), []),
];

/// Ways to abandon a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AbandonMethod {
    Cancel,
    Drop,
    Timeout,
}

#[test]
fn abandoned_command_is_not_overtaken() {
    for (number, change) in CHANGES.into_iter().enumerate() {
        for door in [AbandonMethod::Cancel, AbandonMethod::Drop, AbandonMethod::Timeout] {
            let is_first = AtomicBool::new(true);
            let (faulty, seen) = remembering(move |_, command| {
                let is_change = !matches!(IoOpcode::from_u8(command.opcode()), Some(IoOpcode::Flush | IoOpcode::Read));
                // Answered together with the next command on its queue.
                if is_change && is_first.swap(false, Ordering::Relaxed) {
                    ControllerAction::AnswerLate
                } else {
                    ControllerAction::Answer
                }
            });
            with(
                faulty,
                |config| config.queues = 2,
                move |host, runtime| async move {
                    host.ready().await.unwrap();
                    let disk = host.disk(1).await.unwrap();
                    // Queues take turns, so this command goes to the first one.
                    let mut given_up = Some(change(&host, &disk));
                    match door {
                        AbandonMethod::Cancel => {
                            runtime.sleep(Duration::from_millis(1)).await;
                            given_up.as_ref().unwrap().cancel();
                        }
                        AbandonMethod::Drop => {
                            runtime.sleep(Duration::from_millis(1)).await;
                            given_up = None;
                        }
                        AbandonMethod::Timeout => {
                            let sleep = runtime.sleep(Duration::from_millis(1));
                            drop(select(given_up.take().unwrap(), Box::pin(sleep)).await);
                        }
                    }
                    // Commands on the second queue that need not wait. Copy may concern any block, so a flush is used
                    // beside it.
                    let elsewhere = |read: bool| match (number, read) {
                        (4, _) => disk.flush(),
                        (_, false) => disk.write(400, block(3)),
                        (_, true) => disk.verify(4, 1),
                    };
                    elsewhere(false).await.unwrap();
                    let mut write = disk.write(3, block(2));
                    elsewhere(true).await.unwrap();
                    let mut read = disk.read(3, disk.buffer(1));
                    let mut zeroes = disk.write_zeroes(0, 5);
                    runtime.sleep(Duration::from_millis(50)).await;
                    assert!(!is_over(&mut write) && !is_over(&mut read) && !is_over(&mut zeroes));
                    assert!(
                        given_up.as_mut().is_none_or(|given_up| !is_over(given_up)),
                        "the command may still be executed"
                    );
                    // The three overlapping commands have not been sent, although the second queue is idle.
                    assert_eq!(seen.lock().unwrap().len(), 3, "{number}, {door:?}");
                    // The flush makes the controller answer the abandoned command.
                    disk.flush().await.unwrap();
                    if let Some(given_up) = given_up {
                        assert!(matches!(given_up.await, Err(CommandError::Cancelled)));
                    }
                    write.await.unwrap();
                    read.await.unwrap();
                    zeroes.await.unwrap();
                    assert_eq!(seen.lock().unwrap().len(), 7, "{number}, {door:?}");
                },
            );
        }
    }
}

#[test]
fn abandoned_read_only_command_ends_at_once() {
    let (faulty, _) = remembering(|_, _| ControllerAction::Never);
    with(
        faulty,
        |config| config.queues = 2,
        |host, runtime| async move {
            host.ready().await.unwrap();
            let disk = host.disk(1).await.unwrap();
            let others = [disk.flush(), disk.compare(3, block(1)), disk.verify(3, 1)];
            let read = disk.read(3, disk.buffer(1));
            let start = runtime.now();
            runtime.sleep(Duration::from_millis(1)).await;
            others.iter().for_each(CommandFuture::cancel);
            read.cancel();
            // The controller never answers, so only the cancellation can end the commands.
            for other in others {
                assert!(matches!(other.await, Err(CommandError::Cancelled)));
            }
            let Err(ReadError { error: CommandError::Cancelled, buffer }) = read.await else { panic!() };
            assert_eq!(buffer.len(), 4096);
            assert!(runtime.now() - start < Duration::from_millis(2));
        },
    );
}

#[test]
fn abandoned_write_ends_with_the_next_connection() {
    // After a silent loss, the next connection is made when the controller has given the host up.
    for (act, least, most) in [(ControllerAction::Never, 6000, 6100), (ControllerAction::Close, 20, 100)] {
        for when in [0, 500] {
            let (faulty, seen) = remembering(move |association, command| match command.opcode() {
                opcode if opcode == IoOpcode::Write as u8 && association == 1 => ControllerAction::Never,
                // Ends the connection of the queue with the write.
                opcode if opcode == IoOpcode::Flush as u8 && association == 1 => act,
                _ => ControllerAction::Answer,
            });
            with(
                faulty,
                move |config| {
                    config.command_timeout = Duration::from_secs(1);
                    config.keep_alive = Duration::from_secs(5);
                    // Long enough that the command can be abandoned before the reconnect.
                    config.reconnect_delay = Duration::from_millis(20 + when);
                },
                move |host, runtime| async move {
                    host.ready().await.unwrap();
                    let disk = host.disk(1).await.unwrap();
                    let start = runtime.now();
                    let write = disk.write(3, block(1));
                    let flush = disk.flush();
                    let give_up_after = if matches!(act, ControllerAction::Never) { 2 * when } else { when };
                    runtime.sleep(Duration::from_millis(1 + give_up_after)).await;
                    write.cancel();
                    let overlapping = disk.write(3, block(2));
                    assert!(matches!(write.await, Err(CommandError::Cancelled)));
                    let took = (runtime.now() - start).as_millis() as u64;
                    assert!((least..=most + when).contains(&took), "{took} ms, given up after {give_up_after} ms");
                    overlapping.await.unwrap();
                    flush.await.unwrap();
                    let seen = seen.lock().unwrap();
                    let writes: Vec<_> = seen.iter().filter(|seen| seen.1 == IoOpcode::Write as u8).collect();
                    assert!(matches!(writes[..], [(1, _, 3), (2, _, 3)]), "not sent again: {seen:?}");
                },
            );
        }
    }
}

#[test]
fn held_command_can_be_abandoned() {
    let (faulty, seen) = remembering(|_, command| match command.opcode() {
        opcode if opcode == IoOpcode::Write as u8 => ControllerAction::Never,
        _ => ControllerAction::Answer,
    });
    with(
        faulty,
        |config| config.queues = 2,
        move |host, runtime| async move {
            host.ready().await.unwrap();
            let disk = host.disk(1).await.unwrap();
            let write = disk.write(3, block(1));
            runtime.sleep(Duration::from_millis(1)).await;
            drop(write);
            // All of these overlap the abandoned write, which is never answered, so they must not be sent.
            let (held, read) = (disk.write(3, block(2)), disk.read(2, disk.buffer(2)));
            drop(disk.write(3, block(3)));
            held.cancel();
            read.cancel();
            assert!(matches!(held.await, Err(CommandError::Cancelled)));
            let Err(ReadError { error: CommandError::Cancelled, buffer }) = read.await else { panic!() };
            assert_eq!(buffer.len(), 2 * 4096);
            let last = disk.read(3, disk.buffer(1));
            runtime.sleep(Duration::from_millis(1)).await;
            host.close().await;
            let Err(ReadError { error: CommandError::Lost(HostError::Closed), buffer }) = last.await else { panic!() };
            assert_eq!(buffer.len(), 4096);
            assert!(matches!(disk.write(3, block(4)).await, Err(CommandError::Lost(HostError::Closed))));
            assert_eq!(seen.lock().unwrap().len(), 1, "nothing but the first write was sent");
        },
    );
}

#[test]
fn admin_commands_wait_for_abandoned_changes() {
    const NAMESPACE_MANAGEMENT: u8 = 0x0d;
    let seen = Arc::new(Mutex::new(Vec::new()));
    let remembers = seen.clone();
    let faulty = ScriptedController::new(move |_, queue, command| {
        if command.opcode() != AdminOpcode::Fabrics as u8 {
            remembers.lock().unwrap().push((queue, command.opcode()));
        }
        match command.opcode() {
            NAMESPACE_MANAGEMENT => ControllerAction::AnswerLate,
            _ => ControllerAction::Answer,
        }
    });
    with(
        faulty,
        |config| config.keep_alive = Duration::from_secs(2),
        move |host, runtime| async move {
            host.ready().await.unwrap();
            let disk = host.disk(1).await.unwrap();
            seen.lock().unwrap().clear();
            let creates = host.admin(Command::new(NAMESPACE_MANAGEMENT, 0), []);
            runtime.sleep(Duration::from_millis(1)).await;
            drop(creates);
            // These commands may see its effect. An Abort may concern the command itself.
            let (list, read) = (host.namespaces(), disk.read(0, disk.buffer(1)));
            let aborts = async {
                runtime.sleep(Duration::from_millis(1)).await;
                assert_eq!(*seen.lock().unwrap(), [(0, NAMESPACE_MANAGEMENT)]);
                host.admin(Command::new(AdminOpcode::Abort as u8, 0), []).await.unwrap();
            };
            let (list, read, ()) = join3(list, read, aborts).await;
            list.unwrap();
            read.unwrap();
            let mut seen = seen.lock().unwrap().clone();
            // Identify and the read use different queues, so their order is open.
            seen[2..].sort_unstable();
            let (abort, identify) = (AdminOpcode::Abort as u8, AdminOpcode::Identify as u8);
            assert_eq!(seen, [(0, NAMESPACE_MANAGEMENT), (0, abort), (0, identify), (1, IoOpcode::Read as u8)]);
        },
    );
}

/// Without a keep-alive, a controller may execute a command at any later time.
#[test]
fn changes_are_not_resent_without_a_keep_alive() {
    for cancelled in [false, true] {
        let (faulty, seen) =
            remembering(
                |association, _| if association == 1 { ControllerAction::Never } else { ControllerAction::Answer },
            );
        let stats = with(
            faulty,
            |config| {
                config.queues = 2;
                config.command_timeout = Duration::from_secs(1);
                config.keep_alive = Duration::ZERO;
            },
            move |host, runtime| async move {
                host.ready().await.unwrap();
                let disk = host.disk(1).await.unwrap();
                let changes: Vec<CommandFuture> = CHANGES.iter().map(|change| change(&host, &disk)).collect();
                let read = disk.read(0, disk.buffer(1));
                runtime.sleep(Duration::from_millis(1)).await;
                if cancelled {
                    changes.iter().for_each(CommandFuture::cancel);
                }
                // Cancelled or not, the result is unknown.
                for change in changes {
                    let ended = change.await;
                    assert!(matches!(ended, Err(CommandError::Uncertain(_))), "{ended:?}");
                }
                read.await.unwrap();
                host.stats()
            },
        );
        assert_eq!((stats.connects, stats.replays), (2, 1));
        let again: Vec<u8> = seen.lock().unwrap().iter().filter(|seen| seen.0 == 2).map(|seen| seen.1).collect();
        assert_eq!(again, [IoOpcode::Read as u8]);
    }
    // If both sides notice the loss, the command is sent again.
    let (faulty, _) =
        remembering(|association, _| if association == 1 { ControllerAction::Close } else { ControllerAction::Answer });
    let stats = with(
        faulty,
        |config| config.keep_alive = Duration::ZERO,
        |host, _| async move {
            host.ready().await.unwrap();
            host.disk(1).await.unwrap().write(0, block(1)).await.unwrap();
            host.stats()
        },
    );
    assert_eq!(stats.replays, 1);
}

#[test]
fn unrepeatable_command_is_sent_once() {
    type Submit = fn(&Host) -> CommandFuture;
    let rows: [(Submit, bool); 8] = [
        // Namespace Management, Format NVM, Security Send, Property Set.
        (|host| host.admin(Command::new(0x0d, 0), []), false),
        (|host| host.admin(Command::new(0x80, 0), []), false),
        (|host| host.admin(Command::new(0x81, 0), block(1)), false),
        (|host| host.admin(commands::property_set(0x20, 0x4e56_4d65), []), false),
        // Reservation Acquire, Copy; a write to a namespace that was not inspected.
        (|host| host.io(Command::new(0x11, 0).with_namespace(1), []), false),
        (|host| host.io(Command::new(COPY, 0).with_namespace(1), []), false),
        (|host| host.io(commands::range(IoOpcode::Write, 2, 0, 1), block(1)), false),
        (|host| host.io(commands::range(IoOpcode::Write, 1, 0, 1), block(1)), true),
    ];
    for (number, (submit, again)) in rows.into_iter().enumerate() {
        let sent = Arc::new(Mutex::new(0));
        let count = sent.clone();
        let faulty = ScriptedController::new(move |association, queue, command| {
            let closes = match (queue, command.opcode()) {
                (0, 0x0d | 0x80 | 0x81) => true,
                (0, 0x7f) => command.u32(11) == 0x20,
                (1.., 0x11 | COPY | 0x01) => true,
                _ => false,
            };
            if closes {
                *count.lock().unwrap() += 1;
            }
            if closes && association == 1 { ControllerAction::Close } else { ControllerAction::Answer }
        });
        with(
            faulty,
            |_| (),
            move |host, _| async move {
                host.ready().await.unwrap();
                host.disk(1).await.unwrap();
                let ended = submit(&host).await;
                if again {
                    ended.unwrap();
                } else {
                    assert!(matches!(ended, Err(CommandError::Uncertain(_))), "row {number}: {ended:?}");
                }
                // The host itself continues.
                host.disk(1).await.unwrap().flush().await.unwrap();
            },
        );
        assert_eq!(*sent.lock().unwrap(), 1 + u32::from(again), "row {number}");
    }
}

#[test]
fn unrepeatable_command_is_not_retried() {
    let (faulty, seen) = remembering(|_, command| match command.opcode() {
        COPY | 0x01 => ControllerAction::Refuse(Status::INTERNAL_ERROR),
        _ => ControllerAction::Answer,
    });
    with(
        faulty,
        |_| (),
        move |host, _| async move {
            host.ready().await.unwrap();
            host.disk(1).await.unwrap();
            // One attempt for Copy, and one plus five retries for a write.
            for (command, times) in
                [(Command::new(COPY, 0).with_namespace(1), 1), (commands::range(IoOpcode::Write, 1, 0, 1), 6)]
            {
                let failed = host.io(command, block(1)).await;
                assert!(matches!(failed, Err(CommandError::Status(_))), "{failed:?}");
                assert_eq!(core::mem::take(&mut *seen.lock().unwrap()).len(), times);
            }
        },
    );
}
