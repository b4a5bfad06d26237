//! Loss of a task of a host: every waiting caller gets an error.

use crate::bed;

use bed::{Layers, NvmeNetwork, blocks};
use core::future::Future;
use core::pin::Pin;
use core::task::{Context, Poll, Waker};
use core::time::Duration;
use nvme_tcp::host::{
    Buffer, CommandError, ConnectFuture, Connector, Host, HostConfig, HostError, HostTask, Offload, ReadError,
};
use nvme_tcp::target::TransportConfig;
use nvme_tcp::wire::commands;
use offload_base::{Alarm, Clock, Instant, Timers};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TaskFate {
    Dropped,
    Panics,
}

/// Control of a doomed task.
#[derive(Default)]
struct TaskControl {
    come: AtomicBool,
    /// The task is being polled and must panic.
    burning: AtomicBool,
    waker: Mutex<Option<Waker>>,
}

impl TaskControl {
    fn come(&self) {
        self.come.store(true, Ordering::Relaxed);
        if let Some(waker) = self.waker.lock().unwrap().take() {
            waker.wake();
        }
    }
}

/// A task that runs until its doom.
struct ControlledTask {
    task: Option<HostTask>,
    fate: TaskFate,
    doom: Arc<TaskControl>,
}

impl Future for ControlledTask {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        *self.doom.waker.lock().unwrap() = Some(cx.waker().clone());
        let come = self.doom.come.load(Ordering::Relaxed);
        if come && self.fate == TaskFate::Dropped {
            self.task = None;
        }
        let doom = self.doom.clone();
        let Some(task) = &mut self.task else { return Poll::Ready(()) };
        doom.burning.store(come, Ordering::Relaxed);
        let polled = catch_unwind(AssertUnwindSafe(|| task.as_mut().poll(cx)));
        doom.burning.store(false, Ordering::Relaxed);
        match polled {
            Ok(polled) => polled,
            // Drops the task, as a runtime does.
            Err(_) => {
                self.task = None;
                Poll::Ready(())
            }
        }
    }
}

/// A clock that panics while a doomed task runs.
struct PanickingTimers(Arc<dyn Timers>, Arc<TaskControl>);

impl Clock for PanickingTimers {
    fn now(&self) -> Instant {
        assert!(!self.1.burning.load(Ordering::Relaxed), "expected panic of the test");
        self.0.now()
    }
}

impl Timers for PanickingTimers {
    fn alarm(&self) -> Box<dyn Alarm> {
        self.0.alarm()
    }
}

struct PanickingConnector;

impl Connector for PanickingConnector {
    fn connect(&self) -> ConnectFuture {
        panic!("expected panic of the test")
    }
}

fn is_lost(error: &CommandError) -> bool {
    matches!(error, CommandError::Lost(HostError::TaskLost))
}

/// Creates a host with task `number` doomed.
fn doomed(bed: &NvmeNetwork, number: usize, fate: TaskFate) -> (Host, Arc<TaskControl>) {
    let mut config = bed.host_config();
    config.queues = 2;
    doomed_with(bed, config, number, fate)
}

fn doomed_with(bed: &NvmeNetwork, config: HostConfig, number: usize, fate: TaskFate) -> (Host, Arc<TaskControl>) {
    let doom = Arc::<TaskControl>::default();
    let timers = Arc::new(PanickingTimers(bed.timers(), doom.clone()));
    let (host, tasks) = Host::new(bed.connector(), timers, config);
    for (place, task) in tasks.into_iter().enumerate() {
        if place == number {
            bed.spawn(ControlledTask { task: Some(task), fate, doom: doom.clone() });
        } else {
            bed.spawn(task);
        }
    }
    (host, doom)
}

#[test]
fn lost_task_fails_all_waiting_calls() {
    for fate in [TaskFate::Dropped, TaskFate::Panics] {
        for number in 0..3 {
            let mut bed = NvmeNetwork::new(60 + number as u64, TransportConfig::default(), Layers::Tcp, 0.0);
            let (host, doom) = doomed(&bed, number, fate);
            let runtime = bed.runtime();
            bed.run(async move {
                host.ready().await.unwrap();
                let disk = host.disk(1).await.unwrap();
                disk.write(0, [blocks(8)]).await.unwrap();
                // Enough commands that each queue has running and waiting ones.
                let reads: Vec<_> = (0..600).map(|_| disk.read(0, disk.buffer(8))).collect();
                let writes: Vec<_> = (0..600).map(|_| disk.write(8, [blocks(64)])).collect();
                let log = host.admin_read(commands::log_page(2, 0, 512), Buffer::zeroed(512));
                runtime.sleep(Duration::from_micros(3)).await;
                doom.come();
                let mut lost = 0;
                for read in reads {
                    match read.await {
                        Ok(buffer) => assert_eq!(buffer.to_vec(), blocks(8)),
                        // The buffer is empty if the lost task had it.
                        Err(ReadError { error, buffer }) => {
                            lost += 1;
                            assert!(is_lost(&error), "{fate:?} {number}: {error}");
                            assert!(matches!(buffer.len(), 0 | 4096));
                        }
                    }
                }
                assert!(lost > 500, "{fate:?} {number}: {lost}");
                for write in writes {
                    let written = write.await;
                    assert!(written.as_ref().is_err_and(is_lost), "{fate:?} {number}: {written:?}");
                }
                match log.await {
                    // Answered during the admin task's shutdown.
                    Ok(buffer) => assert!(number > 0 && buffer.len() == 512),
                    Err(failed) => assert!(is_lost(&failed.error)),
                }
                // Later calls fail, too.
                assert!(disk.flush().await.is_err_and(|error| is_lost(&error)));
                assert!(matches!(host.ready().await, Err(HostError::TaskLost)));
                assert!(matches!(host.next_event().await, Err(HostError::TaskLost)));
                host.close().await;
            });
        }
    }
}

/// The device must not keep contexts of a queue whose task is lost.
#[test]
fn lost_task_releases_its_contexts() {
    for fate in [TaskFate::Dropped, TaskFate::Panics] {
        let mut bed = NvmeNetwork::new(66, TransportConfig::default(), Layers::Tcp, 0.0);
        let (offload, data_digest) = (Offload::PlaceAndCheck, true);
        let mut config = bed.host_config();
        config.queues = 1;
        config.offload = offload;
        config.data_digest = data_digest;
        let (host, doom) = doomed_with(&bed, config, 1, fate);
        let runtime = bed.runtime();
        bed.run(async move {
            host.ready().await.unwrap();
            let disk = host.disk(1).await.unwrap();
            // Several commands, because a context is installed only with traffic.
            for _ in 0..4 {
                disk.write(0, [blocks(64)]).await.unwrap();
                disk.read(0, disk.buffer(64)).await.unwrap();
            }
            doom.come();
            assert!(matches!(host.next_event().await, Err(HostError::TaskLost)));
            runtime.sleep(Duration::from_millis(50)).await;
        });
        let counters = bed.host_counters();
        for (made, gone) in [("rx_nvmeotcp_sk_add", "rx_nvmeotcp_sk_del"), ("tx_nvmeotcp_sk_add", "tx_nvmeotcp_sk_del")]
        {
            assert!(counters.value(made) > 0, "{fate:?}: {made}");
            assert_eq!(counters.value(gone), counters.value(made), "{fate:?}: {gone}");
        }
    }
}

#[test]
fn dropped_tasks_end_the_host() {
    let mut bed = NvmeNetwork::new(70, TransportConfig::default(), Layers::Tcp, 0.0);
    let (host, tasks) = Host::new(bed.connector(), bed.timers(), bed.host_config());
    let waits = host.clone();
    bed.run(async move {
        let log = host.admin_read(commands::log_page(2, 0, 512), Buffer::zeroed(512));
        drop(tasks);
        let Err(ReadError { error, buffer }) = log.await else { panic!("the command was never sent") };
        assert!(is_lost(&error));
        assert_eq!(buffer.len(), 512, "the buffer never left the lane");
        assert!(matches!(waits.ready().await, Err(HostError::TaskLost)));
    });
}

#[test]
fn closed_host_reports_closed_not_lost() {
    let mut bed = NvmeNetwork::new(71, TransportConfig::default(), Layers::Tcp, 0.0);
    let host = bed.connect(bed.host_config());
    bed.run(async move {
        host.ready().await.unwrap();
        host.close().await;
        let late = host.admin_read(commands::log_page(2, 0, 512), Buffer::zeroed(512)).await;
        assert!(matches!(late, Err(ReadError { error: CommandError::Lost(HostError::Closed), .. })));
    });
}

#[test]
fn panicking_connector_ends_the_host() {
    let mut bed = NvmeNetwork::new(72, TransportConfig::default(), Layers::Tcp, 0.0);
    let (host, tasks) = Host::new(PanickingConnector, bed.timers(), bed.host_config());
    for task in tasks {
        bed.spawn(ControlledTask { task: Some(task), fate: TaskFate::Panics, doom: Arc::default() });
    }
    let ready = bed.run(async move { host.ready().await });
    assert!(matches!(ready, Err(HostError::TaskLost)), "{ready:?}");
}
