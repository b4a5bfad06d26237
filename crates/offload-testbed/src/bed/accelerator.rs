//! An accelerator beside a host's CPU: a task charged to the host's device, and a queue for the host's tasks.

use crate::domain::in_domain;
use crate::runtime::{Runtime, lock};
use core::future::poll_fn;
use core::task::Poll;
use nic_sim::dma::DmaBytes;
use nic_sim::engine::Engines;
use nic_sim::lookaside;
use nic_sim::lookaside::{Lookaside, LookasideConfig};
use offload_base::cost::Domain;
use offload_base::counters::CounterSet;
use offload_jobs::SharedQueue;
use std::sync::{Arc, Mutex};

/// An accelerator of a host. A clone refers to the same accelerator.
#[derive(Clone)]
pub(super) struct Accelerator {
    queue: Arc<SharedQueue>,
    /// The device. `None` after the device has been lost.
    device: Arc<Mutex<Option<Lookaside>>>,
}

impl Accelerator {
    /// Builds the accelerator of host `number` and starts its tasks.
    pub(super) fn bring_up(
        config: &LookasideConfig,
        add: impl FnOnce(&mut Engines),
        number: usize,
        of_device: &Arc<dyn Runtime>,
        of_host: &Arc<dyn Runtime>,
    ) -> Accelerator {
        let (device, mut queues) = lookaside(config.clone(), add);
        let device = Arc::new(Mutex::new(Some(device)));
        let (queue, runs) = SharedQueue::new(queues.swap_remove(0), of_host.clone());
        of_host.spawn("jobs", in_domain(Domain::Host(number as u8), runs));
        of_device.spawn("accelerator", in_domain(Domain::Device(number as u8), run(of_device.clone(), device.clone())));
        Accelerator { queue: Arc::new(queue), device }
    }

    pub(super) fn queue(&self) -> &SharedQueue {
        &self.queue
    }

    pub(super) fn dma(&self) -> DmaBytes {
        lock(&self.device).as_ref().map(Lookaside::dma).unwrap_or_default()
    }

    pub(super) fn count(&self, set: &mut CounterSet) {
        if let Some(device) = &*lock(&self.device) {
            device.count(set);
        }
    }

    pub(super) fn lose(&self) {
        drop(lock(&self.device).take());
    }
}

/// Runs the device until the device is lost.
async fn run(runtime: Arc<dyn Runtime>, device: Arc<Mutex<Option<Lookaside>>>) {
    let mut alarm = runtime.alarm();
    poll_fn(|cx| {
        let now = runtime.now();
        let mut device = lock(&device);
        // The device was lost; its jobs were answered when it was dropped.
        let Some(device) = device.as_mut() else { return Poll::Ready(()) };
        device.process(now);
        let sleeps = device.arm(cx.waker());
        let next = device.next_event();
        if !sleeps || alarm.poll(cx, next).is_ready() {
            // The task does not loop here: if the device never gets past this instant, the executor must notice.
            cx.waker().wake_by_ref();
        }
        Poll::Pending
    })
    .await
}
