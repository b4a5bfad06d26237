//! The service task: drains the device, handles timers, arms the interrupt, checks again, and sleeps.

use super::{ReadyWakers, Shard};
use core::future::{Future, poll_fn};
use core::task::{Context, Poll, Waker};
use offload_base::Alarm;
use std::sync::Arc;

pub(crate) fn serve(shard: Arc<Shard>) -> impl Future<Output = ()> + Send + 'static {
    let mut alarm = shard.timers().alarm();
    poll_fn(move |cx| poll_serve(&shard, &mut *alarm, cx))
}

fn poll_serve(shard: &Shard, alarm: &mut dyn Alarm, cx: &mut Context<'_>) -> Poll<()> {
    // Wakers are collected under the lock and called afterwards: a woken task would only wait for the lock.
    for _ in 0..MAX_ROUNDS_PER_POLL {
        let mut wakers = ReadyWakers::new();
        let (deadline, idle, is_over, handed_on) = {
            let mut inner = shard.lock();
            let inner = &mut *inner;
            let now = shard.timers().now();
            // Application calls wake this task through the stored waker when an earlier deadline or more work appears.
            if !inner.service.as_ref().is_some_and(|service| service.will_wake(cx.waker())) {
                inner.service = Some(cx.waker().clone());
            }
            if let Some((mesh, index)) = &shard.mesh {
                // The mailbox is read after the waker is stored there, so a later packet wakes this task.
                let passed = mesh.collect(*index, cx.waker());
                if mesh.flows_have_moved() {
                    inner.stack.note_flows_moved();
                }
                passed.into_iter().for_each(|passed| inner.stack.receive_passed(now, passed, &mut *inner.device));
            }
            let more = inner.stack.poll(now, &mut *inner.device);
            let handed_on = inner.stack.take_passed();
            inner.unfinished = false;
            inner.collect_ready(&mut wakers);
            let is_over = !inner.is_needed();
            if is_over {
                // No application handle is left, so no call will need the service task.
                inner.service = None;
            }
            // Packets that arrive between the poll and the arming would wait for the next interrupt, so `arm` checks
            // the rings once more.
            let idle = !is_over && !more && inner.device.arm(cx.waker());
            let deadline = inner.next_event();
            inner.service_at = deadline;
            (deadline, idle, is_over, handed_on)
        };
        wakers.into_iter().for_each(Waker::wake);
        // Packets for other shards are delivered without this shard's lock, which the other shards may want meanwhile.
        shard.pass_on_packets(handed_on);
        if is_over {
            if let Some((mesh, index)) = &shard.mesh {
                mesh.close(*index);
            }
            return Poll::Ready(());
        }
        if idle && alarm.poll(cx, deadline).is_pending() {
            return Poll::Pending;
        }
    }
    // The task yields after a few rounds, so that a busy device does not starve other tasks.
    cx.waker().wake_by_ref();
    Poll::Pending
}

/// Rounds in one poll of the service task.
const MAX_ROUNDS_PER_POLL: usize = 4;
