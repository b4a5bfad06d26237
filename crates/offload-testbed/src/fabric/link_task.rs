//! The task of one direction of a wire, or of several wires between the same two ports.
//!
//! Invariant: frames leave the wires in the order of arrival; frames that arrive at the same instant leave in the order
//! of the wires.

use super::lanes::lane_of;
use super::queue::{FrameReceiver, FrameSender};
use crate::runtime::{Runtime, lock};
use core::future::poll_fn;
use core::task::Poll;
use nic_sim::wire::Link;
use offload_base::Instant;
use offload_base::time::earliest;
use std::sync::{Arc, Mutex, MutexGuard};

/// Runs at least one wire. Never ends.
///
/// If a frame's wire holds the sender back, later frames for other wires wait too, because all frames come from one
/// port.
pub(super) async fn run<const LANES: usize>(
    runtime: Arc<dyn Runtime>,
    lanes: [Arc<Mutex<Link>>; LANES],
    mut from: FrameReceiver,
    mut to: FrameSender,
) {
    let mut alarm = runtime.alarm();
    poll_fn(|cx| {
        let now = runtime.now();
        let mut links = lanes.each_ref().map(|link| lock(link));
        let held_until = loop {
            if from.is_empty() && from.wait(cx.waker()) {
                break None;
            }
            let lane = match LANES {
                1 => 0,
                several => from.front().map_or(0, |frame| lane_of(frame, several)),
            };
            let link = &mut links[lane];
            let ready_at = link.ready_at();
            // Taking the frame later keeps it in the bounded queue, which in turn holds the port back.
            if ready_at > now {
                break Some(ready_at);
            }
            if let Some(frame) = from.pop() {
                link.send(now, frame);
            }
        };
        from.notify();
        let mut next_arrival = None;
        while let Some((arrival, link)) = next_of(&mut links) {
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

/// Returns the wire whose next frame arrives first, and the arrival time.
fn next_of<'a, const LANES: usize>(links: &'a mut [MutexGuard<'_, Link>; LANES]) -> Option<(Instant, &'a mut Link)> {
    let arrivals = links.iter_mut().filter_map(|link| Some((link.next_event()?, &mut **link)));
    // `min_by_key` returns the first of equal arrivals.
    arrivals.min_by_key(|(arrival, _)| *arrival)
}
