//! The description of a device's engines for its driver, and the driver's counters of their contexts.

use offload_api::{Direction, EngineInfo};
use offload_base::counters::Counters;

/// An engine, as described to the driver of its NIC.
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
    /// Part of the description that protocols also see.
    pub info: EngineInfo,
    /// Method of restoring a transmit context that is out of sequence. `None` if the engine follows no flow.
    pub transmit_resync: Option<TransmitResync>,
    /// Visits the driver's counters of the engine's contexts under their published names. The default publishes
    /// nothing.
    pub publish: Publish,
}

/// A function that visits the counters of contexts under their published names.
pub type Publish = fn(&ContextCounters, &mut dyn FnMut(&'static str, u64));

impl EngineDescription {
    /// Creates a description with defaults for everything but `info`. The engine follows no flow.
    pub fn new(info: EngineInfo) -> EngineDescription {
        EngineDescription { info, transmit_resync: None, publish: |_, _| () }
    }

    /// Returns the counters of the engine's contexts under their published names.
    pub fn published<'a>(&'a self, counters: &'a ContextCounters) -> impl Counters + 'a {
        PublishedCounters { publish: self.publish, counters }
    }
}

struct PublishedCounters<'a> {
    publish: Publish,
    counters: &'a ContextCounters,
}

impl Counters for PublishedCounters<'_> {
    fn visit(&self, visitor: &mut dyn FnMut(&'static str, u64)) {
        // The engine names its own counters, so the driver depends on no engine.
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
    /// Transmit contexts created in the device. All others came from the driver's pool.
    pub pool_alloc: u64,
    /// Transmit contexts destroyed in the device. All others went to the driver's pool.
    pub pool_free: u64,
    /// Buffers given to the device for placement.
    pub placed: u64,
    /// Buffers refused by the device.
    pub not_placed: u64,
    /// Buffers reclaimed before they were full.
    pub released: u64,
    /// Queries to contexts about the start of a unit.
    pub asked: u64,
    /// Answers of contexts, each passed to the protocol as a question.
    pub told: u64,
    /// Queries and answers without effect.
    pub skipped: u64,
    /// Answers delayed by a full control ring.
    pub retried: u64,
    /// Packets out of sequence for their context, which was rebuilt, or replaced by software.
    pub ooo: u64,
    /// Restarts of a context at the next unit, with the bytes before sealed in software.
    pub next_record: u64,
    /// DUMPs posted.
    pub dump_packets: u64,
    /// Bytes in DUMPs.
    pub dump_bytes: u64,
    /// Payload bytes of packets that needed a resync.
    pub resync_bytes: u64,
    /// Packets out of sequence that were sent without their context, because it changes none of their bytes.
    pub bypass: u64,
    /// Packets dropped because their unit is no longer in the send queue.
    pub no_sync_data: u64,
    /// Packets dropped because the transport finds no unit for them.
    pub no_unit: u64,
    /// Packets returned for sealing in software.
    pub needs_software: u64,
    /// Packets refused because the device cannot encapsulate them.
    pub not_wrapped: u64,
}

impl ContextCounters {
    /// Returns the lifecycle counters of one direction.
    pub fn direction(&mut self, direction: Direction) -> &mut Lifecycles {
        match direction {
            Direction::Transmit => &mut self.transmit,
            Direction::Receive => &mut self.receive,
        }
    }
}

/// Counters of created and removed contexts.
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

/// A driver's treatment of a packet that is not the next packet of its transmit context: a retransmission, or the first
/// packet after one.
///
/// ```
/// use nic_rings::TransmitResync;
///
/// assert_eq!(TransmitResync::default(), TransmitResync::Dump);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum TransmitResync {
    /// The device is moved to the packet's position: it reads the bytes of the unit in front of the packet again
    /// (DUMPs). This costs bus transfers, but no CPU time.
    #[default]
    Dump,
    /// Software seals the unit. The device continues where it was, or restarts at the next unit. This costs CPU time,
    /// but no bus transfers.
    NextRecord,
}
