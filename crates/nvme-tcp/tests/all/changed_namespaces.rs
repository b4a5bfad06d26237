//! Namespaces that are replaced while a host is connected, or that a controller cannot describe. No command may reach a
//! replacement, and a namespace in doubt must not delay others.

use crate::made_by_hand;

use core::time::Duration;
use futures_util::FutureExt;
use futures_util::future::join_all;
use made_by_hand::{ControllerAction, ScriptedController, WAS, is_gone, is_identify, is_io, with};
use nvme_tcp::host::{Buffer, Host, HostEvent};
use nvme_tcp::wire::{AdminOpcode, Command, IoOpcode, NamespaceData, Notices, Status, commands};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

const IS: NamespaceData = NamespaceData { nguid: [8; 16], ..WAS };
/// Log page that triggers an event in these tests.
const HEALTH: u8 = 2;

/// Sends the command whose answer makes the test's controller complete an event request.
async fn have_events_told(host: &Host) {
    host.admin_read(commands::log_page(HEALTH, 0, 512), Buffer::zeroed(512)).await.unwrap();
}

fn is_health(queue: u16, command: &Command) -> bool {
    queue == 0 && command.opcode() == AdminOpcode::GetLogPage as u8 && command.u32(10) as u8 == HEALTH
}

#[test]
fn replaced_namespace_gets_no_old_commands() {
    // The namespace now, the log page's entries, the number of inspections, and whether the disk stays usable.
    let rows: [(NamespaceData, &[u32], u32, bool); 5] = [
        (IS, &[1], 1, false),
        (NamespaceData { blocks: 999, ..WAS }, &[3, 1], 1, false),
        // More namespaces than the controller can list.
        (IS, &[u32::MAX], 1, false),
        (NamespaceData { blocks: 1001, ..WAS }, &[1], 1, true),
        (WAS, &[2, 3], 0, true),
    ];
    for (now, named, looks, goes_on) in rows {
        // Numbers of event requests, Identify commands, and writes.
        let counts = Arc::new([const { AtomicU32::new(0) }; 3]);
        let seen = counts.clone();
        let mut faulty = ScriptedController::new(move |_, queue, command| {
            if queue == 0 && command.opcode() == AdminOpcode::AsyncEventRequest as u8 {
                return if seen[0].fetch_add(1, Relaxed) == 0 {
                    ControllerAction::Hold
                } else {
                    ControllerAction::Never
                };
            }
            if is_health(queue, command) {
                return ControllerAction::AnswerHeld;
            }
            if is_identify(queue, command, 0, 1) {
                seen[1].fetch_add(1, Relaxed);
            }
            if is_io(queue, command, IoOpcode::Write) {
                seen[2].fetch_add(1, Relaxed);
            }
            ControllerAction::Answer
        });
        // The host enables only notices that the controller supports.
        (faulty.data.notices, faulty.changed) = (Notices::NAMESPACES, named.to_vec());
        let looked = counts.clone();
        faulty.namespace = Box::new(move |_| (if looked[1].load(Relaxed) > 1 { now.clone() } else { WAS }, Vec::new()));
        with(
            faulty,
            |config| config.keep_alive = Duration::ZERO,
            move |host, _| async move {
                host.ready().await.unwrap();
                let disk = host.disk(1).await.unwrap();
                let write = || disk.write(0, [vec![1; 4096].into()]);
                write().await.unwrap();
                have_events_told(&host).await;
                // Held, because it is not known yet which namespaces have changed.
                let ended = join_all([write(), write()]).await;
                let [_, looked, written] = [0, 1, 2].map(|of| counts[of].load(Relaxed));
                assert_eq!((looked, written), (1 + looks, if goes_on { 3 } else { 1 }), "{named:?}, {goes_on}");
                let listed = if named == [u32::MAX] { Vec::new() } else { named.to_vec() };
                assert_eq!(host.next_event().await.unwrap(), HostEvent::NamespacesChanged(listed));
                if goes_on {
                    assert!(ended.iter().all(Result::is_ok), "{ended:?}");
                } else {
                    assert!(ended.iter().all(is_gone), "{ended:?}");
                    // The new namespace is usable by a new disk, and the old disk stays unusable.
                    let again = host.disk(1).await.unwrap();
                    again.write(0, [vec![1; 4096].into()]).await.unwrap();
                    assert!(is_gone(&write().await));
                }
                assert_eq!(host.stats().connects, 1);
            },
        );
    }
}

/// The second event arrives with the answer that describes the namespace as of the first event.
#[test]
fn inspection_before_another_change_is_ignored() {
    let counts = Arc::new([const { AtomicU32::new(0) }; 2]);
    let seen = counts.clone();
    let mut faulty = ScriptedController::new(move |_, queue, command| {
        if queue == 0 && command.opcode() == AdminOpcode::AsyncEventRequest as u8 {
            return if seen[0].fetch_add(1, Relaxed) < 2 { ControllerAction::Hold } else { ControllerAction::Never };
        }
        let looks = seen[1].fetch_add(u32::from(is_identify(queue, command, 0, 1)), Relaxed);
        if is_health(queue, command) || (is_identify(queue, command, 0, 1) && looks == 1) {
            return ControllerAction::AnswerHeld;
        }
        ControllerAction::Answer
    });
    (faulty.data.notices, faulty.changed) = (Notices::NAMESPACES, vec![1]);
    let looked = counts.clone();
    faulty.namespace = Box::new(move |_| (if looked[1].load(Relaxed) > 2 { IS } else { WAS }, Vec::new()));
    with(
        faulty,
        |config| config.keep_alive = Duration::ZERO,
        move |host, _| async move {
            host.ready().await.unwrap();
            let disk = host.disk(1).await.unwrap();
            have_events_told(&host).await;
            assert!(is_gone(&disk.flush().await));
            assert_eq!(counts[1].load(Relaxed), 3);
        },
    );
}

/// After a reconnect, the controller cannot describe one namespace, temporarily or permanently.
#[test]
fn unknown_namespace_does_not_delay_others() {
    let without_retry = |status: Status| Status::new(status.code_type(), status.code(), false);
    // Status, number of refusals, milliseconds until a command for it ends, and whether the command succeeds.
    let rows = [
        (Status::NOT_READY, 5, 300..1500, true),
        (Status::INTERNAL_ERROR, u32::MAX, 6000..8100, false),
        (Status::INVALID_NAMESPACE, 1, 0..100, false),
        (without_retry(Status::INVALID_NAMESPACE), 1, 0..100, false),
    ];
    for (status, times, took, is_there) in rows {
        let refused = AtomicU32::new(0);
        let mut faulty = ScriptedController::new(move |association, queue, command| match association {
            1 if is_io(queue, command, IoOpcode::Flush) => ControllerAction::Close,
            2.. if is_identify(queue, command, 0, 1) && refused.fetch_add(1, Relaxed) < times => {
                ControllerAction::Refuse(status)
            }
            _ => ControllerAction::Answer,
        });
        faulty.namespace = Box::new(|_| (WAS, Vec::new()));
        with(
            faulty,
            |config| config.path_wait = Duration::from_secs(8),
            move |host, runtime| async move {
                host.ready().await.unwrap();
                let (untold, other) = (host.disk(1).await.unwrap(), host.disk(2).await.unwrap());
                let (start, flush) = (runtime.now(), other.flush());
                runtime.sleep(Duration::from_millis(5)).await;
                let (waits, given_up) = (untold.verify(0, 1), untold.verify(1, 1));
                flush.await.unwrap();
                assert!(runtime.now() - start < Duration::from_millis(100), "{status}");
                // A command that waits for an inspection was never sent, so cancelling it takes effect at once.
                given_up.cancel();
                let early = given_up.await;
                assert!(runtime.now() - start < Duration::from_millis(100), "{status}: {early:?}");
                let ended = waits.await;
                let waited = (runtime.now() - start).as_millis();
                assert!(took.contains(&waited), "{status}: {waited} ms");
                match is_there {
                    true => drop(ended.unwrap()),
                    false => {
                        assert!(is_gone(&ended), "{status}: {ended:?}");
                        assert_eq!(host.next_event().await.unwrap(), HostEvent::NamespacesChanged(vec![1]));
                    }
                }
                assert_eq!(host.stats().connects, 2, "{status}");
            },
        );
    }
}

/// The application inspects a namespace before the host can. Commands for the old namespace end at once.
#[test]
fn waiting_commands_fail_when_namespace_is_replaced() {
    let counts = Arc::new(AtomicU32::new(0));
    let seen = counts.clone();
    let mut faulty = ScriptedController::new(move |association, queue, command| match association {
        1 if is_io(queue, command, IoOpcode::Flush) => ControllerAction::Close,
        // First inspection for the disk, second by the host after the reconnect.
        _ if is_identify(queue, command, 0, 1) && seen.fetch_add(1, Relaxed) == 1 => {
            ControllerAction::Refuse(Status::NOT_READY)
        }
        _ => ControllerAction::Answer,
    });
    let looked = counts.clone();
    faulty.namespace = Box::new(move |_| (if looked.load(Relaxed) > 1 { IS } else { WAS }, Vec::new()));
    with(
        faulty,
        |_| (),
        |host, runtime| async move {
            host.ready().await.unwrap();
            let disk = host.disk(1).await.unwrap();
            let waits = disk.flush();
            while host.stats().connects < 2 {
                runtime.sleep(Duration::from_millis(1)).await;
            }
            host.disk(1).await.unwrap();
            // The host itself would inspect the namespace again after 20 ms.
            runtime.sleep(Duration::from_millis(5)).await;
            let ended = waits.now_or_never().expect("the command has ended");
            assert!(is_gone(&ended), "{ended:?}");
        },
    );
}
