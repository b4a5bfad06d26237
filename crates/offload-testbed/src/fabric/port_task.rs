//! The task of a port. See [`Port`] for the contract with a port.

use super::queue::{FrameReceiver, FrameSender};
use crate::runtime::Runtime;
use core::future::poll_fn;
use core::task::Poll;
use nic_sim::wire::{Port, Tap, TapDirection};
use std::sync::Arc;

/// Runs the port. Never ends.
pub(super) async fn run(
    runtime: Arc<dyn Runtime>,
    mut port: Box<dyn Port>,
    mut tap: Option<Box<dyn Tap>>,
    mut inbound: FrameReceiver,
    mut outbound: FrameSender,
) {
    let mut alarm = runtime.alarm();
    let mut arrived = Vec::new();
    poll_fn(|cx| {
        let now = runtime.now();
        // The doorbell is armed before the port is served, so that an event in between wakes the task again.
        port.register_doorbell(cx.waker());
        // Frames that a link on another thread adds meanwhile wait until the host has seen this batch.
        for _ in 0..inbound.len() {
            let Some(frame) = inbound.pop() else { break };
            if let Some(tap) = &mut tap {
                tap.frame(now, TapDirection::Inbound, &frame);
            }
            arrived.push(frame);
        }
        inbound.notify();
        port.receive_frames(now, &mut arrived);
        if !inbound.wait(cx.waker()) {
            cx.waker().wake_by_ref();
        }
        port.process(now);
        let mut held_back = false;
        loop {
            if !outbound.has_room() {
                // The link must be told of the queued frames before it can make room.
                outbound.notify();
                if outbound.wait(cx.waker()) {
                    held_back = true;
                    break;
                }
            }
            let Some(frame) = port.poll_frame(now) else { break };
            if let Some(tap) = &mut tap {
                tap.frame(now, TapDirection::Outbound, &frame);
            }
            if outbound.push(frame).is_err() {
                unreachable!("this task alone fills the queue, and has just seen room in it");
            }
        }
        outbound.notify();
        // The frame that is held back may be the port's next event, and would be due at once for as long as it is held.
        // A later event then waits until there is room, which is no longer than the wire takes for a frame.
        let next = port.next_event().filter(|at| !held_back || *at > now);
        if alarm.poll(cx, next).is_ready() {
            // The task does not loop here: if the port never gets past this instant, the executor must notice.
            cx.waker().wake_by_ref();
        }
        Poll::Pending
    })
    .await
}
