//! The host's driver of the NIC, a [`NetDevice`].
//!
//! - `contexts`: the driver's view of contexts of any engine; `face`: the interface of protocols to contexts;
//!   `control`: the control ring; `counts`: counters of contexts;
//! - `ordered`: contexts that are commanded on the send ring;
//! - `ipsec`: SAs and policies, the interface to such an engine;
//! - `rss`: distribution of packets over queues;
//! - `jobs`: [`JobDriver`], the separate driver of a lookaside accelerator;
//! - `eswitch`: [`EswitchDriver`], the host's control of its NIC's switch;
//! - `transmit`: conversion of packets to descriptors; `recovery`: restoration of contexts in front of a packet that is
//!   not the device's next one, on the same ring, for any engines.
//!
//! Invariant: a descriptor is in flight until it is reported as done, and the descriptors in flight never exceed the
//! entries of the ring. The device therefore always has room for its completions.

#![forbid(unsafe_code)]

mod contexts;
mod control;
mod counts;
mod eswitch;
mod face;
mod ipsec;
mod jobs;
mod ordered;
mod recovery;
mod rss;
pub mod stats;
mod transmit;

use crate::stats::DriverCounters;
use contexts::ContextTable;
use control::ControlQueue;
use core::any::Any;
use core::task::Waker;
use counts::EngineCounts;
pub use eswitch::EswitchDriver;
use ipsec::{DeviceSas, device_sas};
pub use jobs::JobDriver;
use nic_rings::packet::ReceiveCompletion;
use nic_rings::{ContextCounters, DriverRings, EngineDescription, NicConfig};
use offload_api::{
    ContextNews, DeviceEvent, FlowKey, IpsecDevice, NetDevice, PathCaps, RecordSource, RssDevice, RxPacket,
    TransmitResult, TxPacket, Verdict,
};
use offload_base::counters::CounterSet;
use offload_base::{BufferPool, Instant};
use rss::RssQueue;
use std::collections::VecDeque;
use transmit::DescriptorQueue;

/// The driver of one queue pair of a NIC. Created by `nic_sim::nic`, or with its siblings by
/// `nic_sim::multi_queue_nic`.
///
/// ```
/// use nic_sim::{NicConfig, nic};
/// use offload_api::{FlowKey, NetDevice};
///
/// let (_device, driver) = nic(NicConfig::default());
/// let flow = FlowKey::tcp("10.0.0.1:1".parse().unwrap(), "10.0.0.2:2".parse().unwrap());
/// assert_eq!(driver.path(&flow).mtu, 1500);
/// assert!(driver.room(&flow) > 0);
/// ```
#[derive(Debug)]
pub struct Driver {
    config: NicConfig,
    rings: DriverRings,
    buffers: BufferPool,
    send: DescriptorQueue,
    contexts: ContextTable,
    ordered: DeviceSas,
    control: ControlQueue,
    rss: RssQueue,
    /// Engines of the NIC, by number.
    engines: Vec<EngineDescription>,
    events: VecDeque<DeviceEvent>,
    /// News of contexts that follow no flow.
    news: VecDeque<ContextNews>,
    /// Number of receive buffers in the device, or in unread completions.
    buffers_out: usize,
    /// Number of resets seen.
    epoch: u64,
    counts: EngineCounts,
    counters: DriverCounters,
}

impl Driver {
    /// Creates the driver of queue pair `queue` at these ends of the rings, for a device with these engines.
    pub fn new(config: NicConfig, queue: u16, rings: DriverRings, engines: Vec<EngineDescription>) -> Driver {
        let buffer_bytes = config.receive_buffer_bytes();
        let mut driver = Driver {
            buffers: BufferPool::new(buffer_bytes, (SLAB_BYTES / buffer_bytes).max(1)),
            send: DescriptorQueue::new(config.send_ring, recovery::descriptors_at_most(&config, &engines)),
            contexts: ContextTable::new(&engines),
            ordered: device_sas(&engines),
            control: ControlQueue::default(),
            rss: RssQueue::new(&config, queue),
            counts: EngineCounts::new(engines.len()),
            engines,
            events: VecDeque::new(),
            news: VecDeque::new(),
            buffers_out: 0,
            epoch: 0,
            counters: DriverCounters::default(),
            config,
            rings,
        };
        driver.post_buffers();
        driver
    }

    /// Returns the maximum number of send ring entries that one packet needs, with the longest resync.
    pub fn descriptors_at_most(config: &NicConfig, engines: &[EngineDescription]) -> usize {
        recovery::descriptors_at_most(config, engines)
    }

    /// Returns the counters of the driver, without its contexts.
    pub fn counters(&self) -> DriverCounters {
        self.counters
    }

    /// Returns the driver's counters of an engine's contexts. `engine` is the engine's number.
    ///
    /// ```
    /// use nic_sim::{NicConfig, nic};
    /// use offload_api::engines;
    ///
    /// let (_device, driver) = nic(NicConfig::default());
    /// assert_eq!(driver.context_counters(engines::TLS).ooo, 0);
    /// ```
    pub fn context_counters(&self, engine: u8) -> ContextCounters {
        self.counts.get(engine)
    }

    fn description(&self, number: u8) -> Option<&EngineDescription> {
        self.engines.get(usize::from(number))
    }

    /// If the room is zero, requests a wake-up of the interrupt task when more descriptors are done.
    fn or_wake_later(&self, room: usize) -> usize {
        if room == 0 {
            self.wake_when_sent();
        }
        room
    }

    /// Requests a wake-up of the interrupt task when more descriptors are done. Needed because another task may start
    /// to wait for room while the interrupt task is already asleep.
    fn wake_when_sent(&self) {
        self.rings.send_interrupt.rearm();
        if !self.rings.send_completions.is_empty() {
            self.rings.send_interrupt.raise();
        }
    }

    /// Gives the device as many receive buffers as it can hold.
    fn post_buffers(&mut self) {
        while self.buffers_out < self.config.receive_buffers() {
            if self.rings.receive.stage(self.buffers.take()).is_err() {
                break;
            }
            self.buffers_out += 1;
        }
        self.rings.receive.publish();
    }
}

impl NetDevice for Driver {
    fn path(&self, _flow: &FlowKey) -> PathCaps {
        PathCaps {
            epoch: self.epoch,
            mtu: self.config.mtu,
            checksum: self.config.checksum_offload,
            tso_max_bytes: self.config.tso_max_bytes,
            udp_segmentation: self.config.udp_segmentation && self.config.tso_max_bytes > 0,
            pacing: self.config.pacing,
        }
    }

    fn room(&self, _flow: &FlowKey) -> usize {
        self.or_wake_later(self.send.room(&self.config))
    }

    fn room_paced(&self, flow: &FlowKey) -> usize {
        self.or_wake_later(self.send.room_paced(flow, &self.config))
    }

    fn transmit(&mut self, now: Instant, packet: TxPacket, source: &dyn RecordSource) -> TransmitResult {
        self.reap_sent();
        self.post_packet(now, packet, source)
    }

    fn flush(&mut self, _now: Instant) {
        self.ring_doorbell();
    }

    fn receive(&mut self, _now: Instant) -> Option<RxPacket> {
        let Some(completion) = self.rings.receive_completions.pop() else {
            self.post_buffers();
            return None;
        };
        // A buffer holds several packets. Only the completion of its last packet frees its entry.
        self.buffers_out -= usize::from(completion.ends_buffer);
        // Buffers are given in batches, at the latest when the device has used half of them.
        if self.buffers_out * 2 < self.config.receive_buffers() {
            self.post_buffers();
        }
        for mark in completion.meta.marks.iter().filter(|mark| mark.verdict == Verdict::Asks) {
            self.query_resync(mark.context, &completion.frame);
        }
        let ReceiveCompletion { frame, meta, joined, placed, .. } = completion;
        Some(RxPacket { frame, meta, joined, placed })
    }

    fn serves(&self, flow: &FlowKey) -> bool {
        self.rss.serves(flow)
    }

    fn poll_event(&mut self) -> Option<DeviceEvent> {
        self.reap_sent();
        self.reap_control();
        self.events.pop_front()
    }

    fn arm(&mut self, waker: &Waker) -> bool {
        self.rings.interrupt.arm(waker);
        self.reap_sent();
        let waits_for_sends =
            self.send.is_starved() || self.contexts.waits_for_sends() || self.ordered.waits_for_sends();
        // Register before the checks below, so that an event between check and sleep still wakes the task. Registered
        // even if unused now: `wake_when_sent` may arm the interrupt while the task is asleep.
        self.rings.send_interrupt.register(waker);
        if waits_for_sends {
            self.rings.send_interrupt.rearm();
        }
        let reported = waits_for_sends && !self.rings.send_completions.is_empty();
        let room_again = self.send.take_room_again();
        let fresh_news = self.ordered.has_fresh_news();
        let nothing_there = !reported
            && !room_again
            && self.events.is_empty()
            && self.news.is_empty()
            && !fresh_news
            && self.rings.receive_completions.is_empty()
            && self.rings.control_completions.is_empty();
        if !nothing_there {
            self.rings.interrupt.disarm();
            self.rings.send_interrupt.disarm();
        }
        nothing_there
    }

    fn next_event(&self) -> Option<Instant> {
        None
    }

    fn handle_timeout(&mut self, _now: Instant) {}

    fn count(&self, set: &mut CounterSet) {
        set.add(&self.counters);
        self.counts.add_to(&self.engines, set);
    }

    fn rss(&mut self) -> Option<&mut dyn RssDevice> {
        if self.config.queues > 1 { Some(self) } else { None }
    }

    fn ipsec(&mut self) -> Option<&mut dyn IpsecDevice> {
        if self.has_ipsec() { Some(self) } else { None }
    }

    fn contexts(&mut self) -> Option<&mut dyn offload_api::Contexts> {
        Some(self)
    }

    fn as_any(&mut self) -> &mut dyn Any {
        self
    }
}

/// Size of a slab of buffers in bytes. Larger buffers are allocated one by one.
const SLAB_BYTES: usize = 96 << 10;

/// Compiles and runs the README's example.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

#[cfg(test)]
mod tests {
    use super::*;
    use nic_engines::EngineConfigs;
    use nic_rings::{DeviceRings, rings};

    /// Creates a driver, and the device's ends of the rings.
    pub(super) fn driver(config: NicConfig) -> (DeviceRings, Driver) {
        driver_with(config, |_| ())
    }

    /// Creates the same for a NIC with other engines.
    pub(super) fn driver_with(
        config: NicConfig,
        change: impl FnOnce(&mut Vec<EngineDescription>),
    ) -> (DeviceRings, Driver) {
        let (device, host) = rings(&config);
        let mut engines = EngineConfigs::default().engines().descriptions();
        change(&mut engines);
        (device, Driver::new(config, 0, host, engines))
    }
}
