//! The tasks that join ports by wires: one task for each port and one for each direction of a wire. A task is woken
//! only when it has work.
//!
//! ```text
//!  port task: Port, Tap --queue--> link task: Link --queue--> port task: Tap, Port
//!                       <--queue-- link task: Link <--queue--
//! ```
//!
//! Frames move through bounded queues. A link that holds its sender back stops taking frames, its queue fills, and the
//! port task leaves further frames in the port. The queues are lock-free, and the tasks of a fabric may run on several
//! threads.

mod lanes;
mod link_task;
mod port_task;
mod queue;

pub(crate) use lanes::{MAX_LANES, link_local};
pub use queue::{FrameReceiver, FrameSender, frame_queue, frame_queue_between_threads};

use crate::domain::in_domain;
use crate::runtime::{Runtime, lock};
use core::fmt;
use nic_sim::wire::{Impairment, Link, Port, Tap};
use offload_base::cost::Domain;
use offload_base::counters::CounterSet;
use std::sync::{Arc, Mutex};

/// A port ready to be connected, with its name, its domain and its observer.
///
/// See [`connect`] for an example.
pub struct Station {
    /// Name of the port's task.
    pub name: String,
    /// Domain that pays for the port's time.
    pub domain: Domain,
    /// The port.
    pub port: Box<dyn Port>,
    /// Observer of the port's frames. `None` if no tap was added.
    pub tap: Option<Box<dyn Tap>>,
}

impl Station {
    /// Creates a station without a tap.
    pub fn new(name: impl Into<String>, domain: Domain, port: impl Port + 'static) -> Station {
        Station::boxed(name, domain, Box::new(port))
    }

    /// Creates a station from a boxed port.
    pub(crate) fn boxed(name: impl Into<String>, domain: Domain, port: Box<dyn Port>) -> Station {
        Station { name: name.into(), domain, port, tap: None }
    }

    /// Adds a tap after the existing taps.
    #[must_use]
    pub fn tapped(mut self, tap: impl Tap + 'static) -> Station {
        self.tap = Some(match self.tap {
            None => Box::new(tap),
            Some(first) => Box::new(BothTaps(first, tap)),
        });
        self
    }
}

impl fmt::Debug for Station {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut station = f.debug_struct("Station");
        station.field("name", &self.name).field("domain", &self.domain).field("tapped", &self.tap.is_some());
        station.finish_non_exhaustive()
    }
}

/// Both directions of a connected wire, for counting and for changing impairments.
///
/// See [`connect`] for an example.
#[derive(Clone, Debug)]
pub struct Cable {
    /// Link from the left station to the right one.
    pub left_to_right: Arc<Mutex<Link>>,
    /// Link from the right station to the left one.
    pub right_to_left: Arc<Mutex<Link>>,
}

impl Cable {
    pub(crate) fn from_links(left_to_right: Link, right_to_left: Link) -> Cable {
        Cable { left_to_right: Arc::new(Mutex::new(left_to_right)), right_to_left: Arc::new(Mutex::new(right_to_left)) }
    }

    /// Adds an impairment to each direction, after the existing impairments, for example to cut the wire.
    pub fn impair<I: Impairment + 'static>(&self, mut impairment: impl FnMut() -> I) {
        for link in [&self.left_to_right, &self.right_to_left] {
            lock(link).impair(Box::new(impairment()));
        }
    }

    /// Adds the counters of both directions to `set`.
    pub fn count(&self, set: &mut CounterSet) {
        for link in [&self.left_to_right, &self.right_to_left] {
            lock(link).count(set);
        }
    }
}

/// Joins two stations by a wire and spawns their tasks on `runtime`.
///
/// ```
/// use core::time::Duration;
/// # use core::task::Waker;
/// # use nic_sim::frame::Frame;
/// use nic_sim::wire::{Link, LinkConfig, Port, FrameRecorder};
/// use offload_base::cost::Domain;
/// use offload_base::{Instant, Seed};
/// use std::sync::Arc;
/// use offload_testbed::{Runtime, Station, VirtualTime, connect};
/// # struct Greeter(u32);
/// # impl Port for Greeter {
/// #     fn receive_frame(&mut self, _: Instant, _: Frame) {}
/// #     fn poll_frame(&mut self, _: Instant) -> Option<Frame> {
/// #         self.0 = self.0.checked_sub(1)?;
/// #         Some(Frame::from(vec![0; 1514]))
/// #     }
/// #     fn process(&mut self, _: Instant) {}
/// #     fn next_event(&self) -> Option<Instant> { None }
/// #     fn register_doorbell(&mut self, _: &Waker) {}
/// # }
///
/// let mut run = VirtualTime::new();
/// let runtime: Arc<dyn Runtime> = Arc::new(run.handle());
/// let recorder = FrameRecorder::default();
/// let left = Station::new("left", Domain::Device(0), Greeter(3)); // a port that sends three frames
/// let right = Station::new("right", Domain::Device(1), Greeter(0)).tapped(recorder.clone());
/// let config = LinkConfig::default();
/// connect(&runtime, left, right, Link::new(&config, Seed(1)), Link::new(&config, Seed(2)));
///
/// run.run_for(Duration::from_millis(1));
/// // 1538 byte times at 100 Gb/s, and 5 us of delay.
/// let arrivals: Vec<u64> = recorder.seen().iter().map(|seen| seen.at.as_nanos()).collect();
/// assert_eq!(arrivals, [5_123, 5_246, 5_369]);
/// ```
pub fn connect(
    runtime: &Arc<dyn Runtime>,
    left: Station,
    right: Station,
    left_to_right: Link,
    right_to_left: Link,
) -> Cable {
    let cable = Cable::from_links(left_to_right, right_to_left);
    connect_lanes(runtime, [left, right], core::slice::from_ref(&cable));
    cable
}

/// Joins two stations on two threads. Each runtime, the left one first, runs its station and the direction of the wire
/// that leads to the station.
pub fn connect_threads(
    runtimes: [&Arc<dyn Runtime>; 2],
    left: Station,
    right: Station,
    left_to_right: Link,
    right_to_left: Link,
) -> Cable {
    let cable = Cable::from_links(left_to_right, right_to_left);
    join_threads(runtimes, [left, right], core::slice::from_ref(&cable));
    cable
}

/// Joins two stations by several wires; a frame's destination address selects its wire.
pub(crate) fn connect_lanes(runtime: &Arc<dyn Runtime>, stations: [Station; 2], cables: &[Cable]) {
    join([runtime; 2], stations, cables, || frame_queue(QUEUE_FRAMES));
}

/// Joins two stations on two threads by several wires.
pub(crate) fn join_threads(runtimes: [&Arc<dyn Runtime>; 2], stations: [Station; 2], cables: &[Cable]) {
    join(runtimes, stations, cables, || frame_queue_between_threads(QUEUE_FRAMES_BETWEEN_THREADS));
}

/// Joins two stations. Each runtime runs its station and the links that lead to the station, so only outgoing frames
/// cross threads, through a queue made by `queue`.
fn join(
    [left_runs, right_runs]: [&Arc<dyn Runtime>; 2],
    [left, right]: [Station; 2],
    cables: &[Cable],
    queue: impl Fn() -> (FrameSender, FrameReceiver),
) {
    let there = format!("wire {} > {}", left.name, right.name);
    let back = format!("wire {} > {}", right.name, left.name);
    let (from_left, into_there) = queue();
    // A link and the port that it leads to share a thread, so this queue is the cheap one.
    let (out_of_there, to_right) = frame_queue(QUEUE_FRAMES);
    let (from_right, into_back) = queue();
    let (out_of_back, to_left) = frame_queue(QUEUE_FRAMES);
    run_port(left_runs, left, to_left, from_left);
    run_port(right_runs, right, to_right, from_right);
    let links = |of: fn(&Cable) -> &Arc<Mutex<Link>>| cables.iter().map(|cable| of(cable).clone()).collect();
    run_links(right_runs, there, links(|cable| &cable.left_to_right), into_there, out_of_there);
    run_links(left_runs, back, links(|cable| &cable.right_to_left), into_back, out_of_back);
}

/// Runs a port between its inbound and its outbound queue: one end of a fabric that [`connect`] does not build.
pub fn run_port(runtime: &Arc<dyn Runtime>, station: Station, inbound: FrameReceiver, outbound: FrameSender) {
    let Station { name, domain, port, tap } = station;
    let task = port_task::run(runtime.clone(), port, tap, inbound, outbound);
    runtime.spawn_task(name.into(), Box::pin(in_domain(domain, task)));
}

/// Runs one direction of a wire under `name`: a part of a fabric that [`connect`] does not build.
pub fn run_link(
    runtime: &Arc<dyn Runtime>,
    name: String,
    link: Arc<Mutex<Link>>,
    from: FrameReceiver,
    to: FrameSender,
) {
    keep_going(runtime, name, [link], from, to);
}

/// Runs one, two or three wires between the same ports.
fn run_links(
    runtime: &Arc<dyn Runtime>,
    name: String,
    links: Vec<Arc<Mutex<Link>>>,
    from: FrameReceiver,
    to: FrameSender,
) {
    match <[_; 1]>::try_from(links).map_err(<[_; 2]>::try_from) {
        Ok(one) => keep_going(runtime, name, one, from, to),
        Err(Ok(two)) => keep_going(runtime, name, two, from, to),
        Err(Err(links)) => match <[_; MAX_LANES]>::try_from(links) {
            Ok(three) => keep_going(runtime, name, three, from, to),
            Err(links) => unreachable!("a test bed has one to {MAX_LANES} wires, this one {}", links.len()),
        },
    }
}

/// Spawns a task for a fixed number of wires. With one wire, the usual case, frames need no lane lookup.
fn keep_going<const LANES: usize>(
    runtime: &Arc<dyn Runtime>,
    name: String,
    links: [Arc<Mutex<Link>>; LANES],
    from: FrameReceiver,
    to: FrameSender,
) {
    let task = link_task::run(runtime.clone(), links, from, to);
    runtime.spawn_task(name.into(), Box::pin(in_domain(Domain::Wire, task)));
}

/// Two taps in sequence.
struct BothTaps<T>(Box<dyn Tap>, T);

impl<T: Tap> Tap for BothTaps<T> {
    fn frame(
        &mut self,
        at: offload_base::Instant,
        direction: nic_sim::wire::TapDirection,
        frame: &nic_sim::frame::Frame,
    ) {
        self.0.frame(at, direction, frame);
        self.1.frame(at, direction, frame);
    }
}

/// Frames between a port and a link: enough to pass many at once, too few to act as a buffer of their own.
const QUEUE_FRAMES: usize = 64;
/// Frames between two threads, which do not alternate. The queue must hold, in full loads, the output of one thread
/// while the other is busy.
const QUEUE_FRAMES_BETWEEN_THREADS: usize = 512;

#[cfg(test)]
mod tests;
