//! The service task: drains the device, does what is due, arms the interrupt, rechecks, and parks.

use super::{Shard, Wakers};
use core::future::{Future, poll_fn};
use core::task::{Context, Poll, Waker};
use offload_base::Alarm;
use std::sync::Arc;

pub(crate) fn serve(shard: Arc<Shard>) -> impl Future<Output = ()> + Send + 'static {
    let mut alarm = shard.timers().alarm();
    poll_fn(move |cx| poll_serve(&shard, &mut *alarm, cx))
}

fn poll_serve(shard: &Shard, alarm: &mut dyn Alarm, cx: &mut Context<'_>) -> Poll<()> {
    for _ in 0..ROUNDS_A_POLL {
        let mut wakers = Wakers::new();
        let (deadline, idle, is_over, handed_on) = {
            let mut inner = shard.lock();
            let inner = &mut *inner;
            let now = shard.timers().now();
            if !inner.service.as_ref().is_some_and(|service| service.will_wake(cx.waker())) {
                inner.service = Some(cx.waker().clone());
            }
            if let Some((mesh, index)) = &shard.mesh {
                // Looked at by whoever is to be woken for it: nothing that comes from now on is missed.
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
                // Nobody is left who could wait for anything.
                inner.service = None;
            }
            // Arm, then look again: what came in between would otherwise wait for the next interrupt.
            let idle = !is_over && !more && inner.device.arm(cx.waker());
            let deadline = inner.next_event();
            inner.service_at = deadline;
            (deadline, idle, is_over, handed_on)
        };
        wakers.into_iter().for_each(Waker::wake);
        shard.hand_on(handed_on);
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
    // Others have their turn.
    cx.waker().wake_by_ref();
    Poll::Pending
}

/// Rounds before other tasks have their turn.
const ROUNDS_A_POLL: usize = 4;
