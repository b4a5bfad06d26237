//! What a driver is told of a device's engines, and what it counts of their contexts.

use offload_api::{Direction, EngineInfo};
use offload_base::counters::Counters;

/// An engine as the driver of its NIC knows it.
///
/// ```
/// use nic_rings::{ContextCounters, EngineDescription};
/// use offload_api::EngineInfo;
/// use offload_base::counters::CounterSet;
///
/// let mut engine = EngineDescription::new(EngineInfo::new(7, "unmask", 100));
/// engine.publish = |counters, visit| visit("unmask_contexts", counters.receive.created);
/// let mut counted = ContextCounters::default();
/// counted.receive.created = 2;
/// let mut set = CounterSet::default();
/// set.add(&engine.published(&counted));
/// assert_eq!(set.value("unmask_contexts"), 2);
/// ```
#[derive(Clone, Debug)]
pub struct EngineDescription {
    /// The part that protocols are told, too.
    pub info: EngineInfo,
    /// How the driver restores a transmit context that does not stand at a packet. `None`: the engine follows no flow.
    pub transmit_resync: Option<TransmitResync>,
    /// Visits the driver's counters of the engine's contexts under the names that they are published by. At first there are no names,
    /// so that nothing is published.
    pub publish: Publish,
}

/// A function that visits counters of contexts under their published names.
pub type Publish = fn(&ContextCounters, &mut dyn FnMut(&'static str, u64));

impl EngineDescription {
    /// An engine that is usual in all but its `info`, and follows no flow.
    pub fn new(info: EngineInfo) -> EngineDescription {
        EngineDescription { info, transmit_resync: None, publish: |_, _| () }
    }

    /// The counters of the engine's contexts under their published names.
    pub fn published<'a>(&'a self, counters: &'a ContextCounters) -> impl Counters + 'a {
        Published { publish: self.publish, counters }
    }
}

struct Published<'a> {
    publish: Publish,
    counters: &'a ContextCounters,
}

impl Counters for Published<'_> {
    fn visit(&self, visitor: &mut dyn FnMut(&'static str, u64)) {
        (self.publish)(self.counters, visitor);
    }
}

/// A driver's counters of the contexts of one engine.
///
/// See [`EngineDescription`] for an example.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ContextCounters {
    /// Transmit contexts.
    pub transmit: Lifecycles,
    /// Receive contexts.
    pub receive: Lifecycles,
    /// Transmit contexts created in the device; the others came from the driver's pool.
    pub pool_alloc: u64,
    /// Transmit contexts destroyed in the device; the others went to the driver's pool.
    pub pool_free: u64,
    /// Buffers given to the device.
    pub placed: u64,
    /// Buffers that the device did not take.
    pub not_placed: u64,
    /// Buffers asked back before they were full.
    pub released: u64,
    /// Times a context was asked where it thinks a unit starts.
    pub asked: u64,
    /// Times it told, and the protocol was asked.
    pub told: u64,
    /// Questions and answers that came to nothing.
    pub skipped: u64,
    /// Answers that waited for room on the control ring.
    pub retried: u64,
    /// Packets that were not the next of their context, so that it had to be rebuilt, or they to be sealed in software.
    pub ooo: u64,
    /// Times a context began afresh at a unit, and the bytes before it were sealed in software.
    pub next_record: u64,
    /// DUMPs posted.
    pub dump_packets: u64,
    /// Bytes in DUMPs.
    pub dump_bytes: u64,
    /// Payload bytes of packets that needed a resync.
    pub resync_bytes: u64,
    /// Packets that were not the next, and left without the context because it changes no byte of them.
    pub bypass: u64,
    /// Packets dropped because their unit is no longer in the send queue.
    pub no_sync_data: u64,
    /// Packets dropped because the transport says that they are of no unit.
    pub no_unit: u64,
    /// Packets sent back to be sealed in software.
    pub needs_software: u64,
    /// Packets refused because the device cannot wrap them.
    pub not_wrapped: u64,
}

impl ContextCounters {
    /// The lifecycles of one direction.
    pub fn direction(&mut self, direction: Direction) -> &mut Lifecycles {
        match direction {
            Direction::Transmit => &mut self.transmit,
            Direction::Receive => &mut self.receive,
        }
    }
}

/// Contexts made and given up.
///
/// See [`EngineDescription`] for an example.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lifecycles {
    /// Contexts created.
    pub created: u64,
    /// Contexts refused.
    pub refused: u64,
    /// Contexts given up.
    pub removed: u64,
}

/// What a driver does about a packet that is not the next of its transmit context: one that is sent again, or that
/// comes after one.
///
/// ```
/// use nic_rings::TransmitResync;
///
/// assert_eq!(TransmitResync::default(), TransmitResync::Dump);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum TransmitResync {
    /// It has the device go to that place: the bytes of the unit before it are read once more (DUMPs). The host's CPU
    /// has nothing to do, the bus has.
    #[default]
    Dump,
    /// It has software seal the unit, and the device goes on where it stood, or begins afresh at the next unit. The
    /// bus has nothing to do, the host's CPU has.
    NextRecord,
}
