//! Several wires between two ports, as between two multihomed hosts: which of them a frame takes goes by its destination.
//!
//! Invariant: what arrives leaves the wires in the order of its arrival, and that of one instant in the order of the wires.

use super::queue::{FrameReceiver, FrameSender};
use crate::runtime::{Runtime, lock};
use core::future::poll_fn;
use core::net::{IpAddr, Ipv6Addr};
use core::task::Poll;
use nic_sim::wire::Link;
use offload_base::Instant;
use offload_base::time::earliest;
use offload_formats::Headers;
use std::sync::{Arc, Mutex};

/// The most wires between two ports: a host of a testbed has as many addresses.
pub(crate) const MOST_LANES: usize = 3;

/// The wire that a frame takes: what goes to IPv4 addresses, and all that is no IPv6, the first; IPv6 the second, but for
/// link-local addresses and groups, which are the third's. Those beyond the last take the last.
fn lane_of(frame: &[u8], lanes: usize) -> usize {
    let to = Headers::parse(frame).network().map(|(version, at)| version.addresses(&frame[at..]).1);
    let lane = match to {
        Some(IpAddr::V6(to)) if to.is_unicast_link_local() || to.is_multicast() => 2,
        Some(IpAddr::V6(_)) => 1,
        _ => 0,
    };
    lane.min(lanes - 1)
}

/// Keeps one direction of several wires going. Never ends.
///
/// A frame whose wire holds its sender back holds back those behind it, as they come out of one port.
pub(super) async fn run(
    runtime: Arc<dyn Runtime>,
    lanes: Vec<Arc<Mutex<Link>>>,
    mut from: FrameReceiver,
    mut to: FrameSender,
) {
    let mut alarm = runtime.alarm();
    let mut first = None;
    poll_fn(|cx| {
        let now = runtime.now();
        let held_until = loop {
            if first.is_none() {
                first = from.pop();
            }
            let Some(frame) = first.take() else {
                if from.wait(cx.waker()) {
                    break None;
                }
                continue;
            };
            let mut lane = lock(&lanes[lane_of(&frame.data, lanes.len())]);
            let ready_at = lane.ready_at();
            if ready_at > now {
                first = Some(frame);
                break Some(ready_at);
            }
            lane.send(now, frame);
        };
        from.notify();
        let mut next_arrival = None;
        while let Some((arrival, lane)) = next_of(&lanes) {
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
            if let Some(frame) = lock(&lanes[lane]).poll(now)
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

/// When the next frame of any wire arrives, and of which.
fn next_of(lanes: &[Arc<Mutex<Link>>]) -> Option<(Instant, usize)> {
    lanes.iter().zip(0..).filter_map(|(lane, number)| Some((lock(lane).next_event()?, number))).min()
}

/// The address that IPv6 makes of an Ethernet address (RFC 4291 2.5.6, appendix A).
pub(crate) fn link_local([a, b, c, d, e, f]: [u8; 6]) -> Ipv6Addr {
    Ipv6Addr::from([0xfe, 0x80, 0, 0, 0, 0, 0, 0, a ^ 2, b, c, 0xff, 0xfe, d, e, f])
}
