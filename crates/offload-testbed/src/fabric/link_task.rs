//! Keeps one direction of a wire going.

use super::queue::{FrameReceiver, FrameSender};
use crate::runtime::{Runtime, lock};
use core::future::poll_fn;
use core::task::Poll;
use nic_sim::wire::Link;
use offload_base::time::earliest;
use std::sync::{Arc, Mutex};

/// Never ends.
pub(super) async fn run(
    runtime: Arc<dyn Runtime>,
    link: Arc<Mutex<Link>>,
    mut from: FrameReceiver,
    mut to: FrameSender,
) {
    let mut alarm = runtime.alarm();
    poll_fn(|cx| {
        let now = runtime.now();
        let mut link = lock(&link);
        let held_until = loop {
            if from.is_empty() && from.wait(cx.waker()) {
                break None;
            }
            let ready_at = link.ready_at();
            if ready_at > now {
                break Some(ready_at);
            }
            if let Some(frame) = from.pop() {
                link.send(now, frame);
            }
        };
        from.notify();
        let mut next_arrival = None;
        while let Some(arrival) = link.next_event() {
            if arrival > now {
                next_arrival = Some(arrival);
                break;
            }
            if !to.has_room() {
                to.notify();
                if to.wait(cx.waker()) {
                    break;
                }
            }
            if let Some(frame) = link.poll(now)
                && to.push(frame).is_err()
            {
                unreachable!("this task alone fills the queue, and has just seen room in it");
            }
        }
        to.notify();
        if alarm.poll(cx, earliest(held_until, next_arrival)).is_ready() {
            cx.waker().wake_by_ref();
        }
        Poll::Pending
    })
    .await
}
