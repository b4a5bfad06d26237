//! Entries of send, receive, control and completion rings.
//!
//! Each entry is a typed value that cannot be malformed. The sizes of entries on the bus are in [`crate::dma`].

use bytes::{Bytes, BytesMut};
use core::num::NonZeroU16;
use offload_api::rss::INDIRECTION_ENTRIES;
use offload_api::{ContextEvent, Direction, FlowKey, Handle, Key, LAYERS, Piece, Placements, RxMeta, Spec, TxPacket};
use offload_base::Seq;
use smallvec::SmallVec;

/// An entry of a send ring.
#[derive(Debug)]
pub struct SendEntry {
    /// Identifier of the entry in its completion.
    pub slot: u32,
    /// Work to do.
    pub descriptor: SendDescriptor,
}

/// The work of a send ring entry. Entries of one flow are processed strictly in order, and so are all others, except
/// that a packet with a rate may wait for its time and be overtaken.
#[expect(
    clippy::large_enum_variant,
    reason = "nearly all entries are packets, and a box would cost each an allocation"
)]
#[derive(Debug)]
pub enum SendDescriptor {
    /// Sends a packet.
    Packet(TxPacket),
    /// Static parameters of a context: the number of the first unit.
    StaticParameters {
        /// Context to change.
        handle: Handle,
        /// Number of the unit at which the next progress parameters point.
        number: u64,
    },
    /// Progress parameters: the next unit starts at this position of its layer's stream. Positions are as in
    /// [`Dump`](Self::Dump).
    ProgressParameters {
        /// Context to change.
        handle: Handle,
        /// Position of the unit's start.
        start: Seq,
    },
    /// Waits until all earlier entries have taken effect.
    Fence,
    /// Passes bytes through contexts without sending them. The bytes come next in the contexts' streams.
    Dump {
        /// Contexts by layer. The context of the highest layer processes the bytes first.
        contexts: [Option<Handle>; LAYERS],
        /// Position of the first byte by layer: its TCP sequence number, or for a higher layer the low bits of its
        /// stream offset.
        places: [Seq; LAYERS],
        /// Bytes to process, at most an MTU.
        bytes: Bytes,
        /// Bytes that follow in the stream of the highest context, if that context needs them.
        ahead: Bytes,
    },
    /// Bytes that follow the next packet in the stream of a context that needs them.
    Ahead {
        /// Context that needs the bytes.
        context: Handle,
        /// Bytes in the order of the stream.
        bytes: Bytes,
    },
    /// A command of the control ring that takes effect between two packets. The completion is that of a send
    /// descriptor.
    Control {
        /// Number of resets, as in [`ControlEntry`].
        epoch: u64,
        /// Command to carry out.
        command: Box<ControlCommand>,
    },
}

/// A completion of send descriptors.
///
/// ```
/// use nic_rings::packet::SendCompletion;
/// use nic_rings::{NicConfig, rings};
///
/// let (mut device, mut driver) = rings(&NicConfig::default());
/// let done = SendCompletion { slots: [0, 1, 2].into_iter().collect(), failed: 0b100 };
/// device.send_completions.push(done.clone()).unwrap();
/// assert!(done.has_failed(2) && !done.has_failed(1));
/// assert_eq!(driver.send_completions.pop(), Some(done));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SendCompletion {
    /// Completed descriptors, a few at a time.
    pub slots: SmallVec<[u32; SendCompletion::BATCH]>,
    /// Descriptors that failed, as a bit mask by position in `slots`: the contexts that they name are not at the
    /// expected position.
    pub failed: u8,
}

impl SendCompletion {
    /// Maximum number of descriptors in one completion.
    pub const BATCH: usize = 8;

    /// Tests whether the descriptor at this position failed.
    pub const fn has_failed(&self, place: usize) -> bool {
        self.failed & 1 << place != 0
    }
}

/// An entry of a receive ring: an empty buffer for the device. The device fills a buffer with one packet after the
/// other, and splits each packet off, as long as there is room for another frame.
pub type ReceiveDescriptor = BytesMut;

/// A receive completion: a packet, in a part split off from a buffer.
///
/// ```
/// use bytes::BytesMut;
/// use nic_rings::packet::ReceiveCompletion;
/// use nic_rings::{NicConfig, rings};
/// use offload_api::{Placements, RxMeta};
///
/// let (mut device, mut driver) = rings(&NicConfig::default());
/// driver.receive.push(BytesMut::zeroed(4096)).unwrap();
/// let mut buffer = device.receive.pop().unwrap();
/// let completion = ReceiveCompletion {
///     frame: buffer.split_to(60), // what arrived
///     meta: RxMeta::default(),
///     joined: None,
///     placed: Placements::new(),
///     ends_buffer: false,
/// };
/// device.receive_completions.push(completion).unwrap();
/// assert_eq!(driver.receive_completions.pop().unwrap().frame.len(), 60);
/// ```
#[derive(Debug)]
pub struct ReceiveCompletion {
    /// Received packet, starting with the Ethernet header.
    pub frame: BytesMut,
    /// Results of the device's checks and engines.
    pub meta: RxMeta,
    /// Payload bytes of each joined segment except the last. `None` if the packet is a single segment.
    pub joined: Option<NonZeroU16>,
    /// Parts of the payload that were placed in buffers of commands.
    pub placed: Placements,
    /// Whether the rest of the buffer is too small for another frame. The driver then gives the device another buffer.
    pub ends_buffer: bool,
}

/// An entry of the control ring.
///
/// ```
/// use nic_rings::packet::{ControlCommand, ControlCompletion, ControlEntry};
/// use nic_rings::{NicConfig, rings};
/// use offload_api::Handle;
///
/// let (mut device, mut driver) = rings(&NicConfig::default());
/// let handle = Handle { index: 3, generation: 0 };
/// driver.control.push(ControlEntry { epoch: 0, report: false, command: ControlCommand::Destroy { handle } }).unwrap();
/// let ControlCommand::Destroy { handle } = device.control.pop().unwrap().command else { panic!() };
/// device.control_completions.push(ControlCompletion::Destroyed(handle)).unwrap();
/// assert_eq!(driver.control_completions.pop(), Some(ControlCompletion::Destroyed(handle)));
/// ```
#[derive(Debug)]
pub struct ControlEntry {
    /// Number of resets that the driver had seen at the submission. The device discards commands from before its last
    /// reset.
    pub epoch: u64,
    /// Whether to report a command that is otherwise not reported.
    pub report: bool,
    /// The command.
    pub command: ControlCommand,
}

/// A command of the control ring.
#[derive(Debug)]
pub enum ControlCommand {
    /// Creates a context.
    Create {
        /// Handle of the new context.
        handle: Handle,
        /// Flow of the context, as the host sees it.
        flow: Option<FlowKey>,
        /// Direction of the packets.
        direction: Direction,
        /// Keys by which received packets select the context.
        keys: Vec<Key>,
        /// Specification for the engine.
        spec: Spec,
    },
    /// Turns a parked transmit context into a new one, in the same slot. The engine knows the kind of context. Reported
    /// only if the entry requests it.
    Reuse {
        /// Handle of the new context.
        handle: Handle,
        /// Flow of the context, as the host sees it.
        flow: FlowKey,
        /// Specification for the engine.
        spec: Spec,
    },
    /// Removes the key from a transmit context, and keeps its slot for [`Reuse`](Self::Reuse). Reported only if the
    /// entry requests it.
    Park {
        /// Context to park.
        handle: Handle,
    },
    /// Requests the position at which a receive context expects a unit.
    Query {
        /// Context to query.
        handle: Handle,
    },
    /// Tells a receive context whether a unit starts at the expected position.
    Answer {
        /// Context that expects a unit.
        handle: Handle,
        /// Position of the query.
        header: Seq,
        /// Number of the unit at that position, zero if units have no numbers. `None` if no unit starts there.
        number: Option<u64>,
    },
    /// Provides a buffer, into which the device places the data for it.
    Place {
        /// Context of the flow.
        handle: Handle,
        /// Identifier of the buffer, such as the number of the command that reads into it.
        buffer: u64,
        /// Pieces of the buffer, in order. Dropping a piece returns it to its owner.
        pieces: Vec<Piece>,
        /// Stages for the data on their way, as defined by the engine. `None` if there are none.
        stages: Option<Spec>,
    },
    /// Returns the rest of a buffer to its owner.
    Unplace {
        /// Context of the flow.
        handle: Handle,
        /// Identifier of the buffer.
        buffer: u64,
    },
    /// Sends a context a command that its engine defines.
    Command {
        /// Context to command.
        handle: Handle,
        /// Command, of a type defined by the engine.
        command: Spec,
    },
    /// Starts or stops steering received packets with a key to a context.
    Steer {
        /// Context to receive the packets.
        handle: Handle,
        /// Key shown by the packets.
        key: Key,
        /// Whether to start steering.
        to_it: bool,
    },
    /// Changes the state of an engine that belongs to no context.
    Change {
        /// Number of the engine.
        engine: u8,
        /// Change, of a type defined by the engine.
        change: Spec,
    },
    /// Sets the table that spreads received packets over the queues.
    SetIndirection {
        /// Queue for each value of a hash's low bits.
        table: Box<[u16; INDIRECTION_ENTRIES]>,
    },
    /// Removes a context.
    Destroy {
        /// Context to remove.
        handle: Handle,
    },
}

/// A report of the device on the control ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ControlCompletion {
    /// The context was created and works.
    Created(Handle),
    /// The context could not be created.
    Refused(Handle),
    /// The position at which a context expects a unit.
    Resync {
        /// Context that was queried.
        handle: Handle,
        /// Position of the header's first byte. `None` if the context no longer waits for an answer.
        header: Option<Seq>,
    },
    /// The answer was processed.
    Answered(Handle),
    /// A context was parked or reused, and the entry requested a report.
    Done(Handle),
    /// The new table is in effect.
    IndirectionSet,
    /// The context was removed.
    Destroyed(Handle),
    /// The engine of this number was changed.
    Changed(u8),
    /// An event of a context.
    Event(ContextEvent),
    /// A transmit context was removed without a command, because the key for its packets is missing.
    KeyMissing {
        /// Context that was removed.
        handle: Handle,
        /// Context that has, or had, the key.
        key: Handle,
    },
    /// The device was reset. All contexts are gone, and earlier commands are discarded.
    Reset {
        /// Number of resets so far.
        resets: u64,
    },
}

impl ControlCompletion {
    /// Tests whether this answers a command. Other reports are spontaneous.
    pub fn is_answer(&self) -> bool {
        match self {
            // Listed without a wildcard, so that a new completion must be assigned to one of the two kinds.
            ControlCompletion::Event(_) | ControlCompletion::KeyMissing { .. } | ControlCompletion::Reset { .. } => {
                false
            }
            ControlCompletion::Created(_)
            | ControlCompletion::Refused(_)
            | ControlCompletion::Resync { .. }
            | ControlCompletion::Answered(_)
            | ControlCompletion::Done(_)
            | ControlCompletion::IndirectionSet
            | ControlCompletion::Destroyed(_)
            | ControlCompletion::Changed(_) => true,
        }
    }
}

/// Maximum number of pieces in a buffer.
pub const MAX_PIECES: usize = 256;
