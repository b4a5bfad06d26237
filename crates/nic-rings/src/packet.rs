//! What crosses PCIe: the entries of send, receive, control and completion rings.
//!
//! Each entry is a typed value that cannot be malformed; what it weighs on the bus is in [`crate::dma`].

use bytes::{Bytes, BytesMut};
use core::num::NonZeroU16;
use offload_api::rss::INDIRECTION_ENTRIES;
use offload_api::{ContextEvent, Direction, FlowKey, Handle, Key, LAYERS, Piece, Placements, RxMeta, Spec, TxPacket};
use offload_base::Seq;
use smallvec::SmallVec;

/// An entry of a send ring.
#[derive(Debug)]
pub struct SendEntry {
    /// What its completion will call it.
    pub slot: u32,
    /// What is to be done.
    pub descriptor: SendDescriptor,
}

/// What a send ring asks for. What concerns one flow is worked on strictly in order, and so is everything else but for
/// packets that ask for a rate: others pass them while they wait for their time.
#[expect(clippy::large_enum_variant, reason = "packets are what the ring is for; a box would cost each an allocation")]
#[derive(Debug)]
pub enum SendDescriptor {
    /// Send a packet.
    Packet(TxPacket),
    /// Static parameters of a context: the unit number that counting starts from.
    StaticParameters {
        /// The context.
        handle: Handle,
        /// Number of the unit that the next progress parameters point at.
        number: u64,
    },
    /// Progress parameters: a unit starts at this place of its layer's stream, and it is the next to come. Places are as in
    /// [`Dump`](Self::Dump).
    ProgressParameters {
        /// The context.
        handle: Handle,
        /// Where the unit starts.
        start: Seq,
    },
    /// Go on only after everything before has taken effect.
    Fence,
    /// Run these bytes, which come next in the streams of contexts, through those without sending them.
    Dump {
        /// The contexts, by layer; that of the highest works first.
        contexts: [Option<Handle>; LAYERS],
        /// Where the first byte is, by layer: its TCP sequence number, and in the streams of layers above, the low bits of its
        /// offset.
        places: [Seq; LAYERS],
        /// The bytes, at most an MTU of them.
        bytes: Bytes,
        /// What follows them in the stream of the highest context, if that needs to know.
        ahead: Bytes,
    },
    /// What follows the next packet in the stream of a context that needs to know.
    Ahead {
        /// The context.
        context: Handle,
        /// The bytes.
        bytes: Bytes,
    },
    /// What the control ring asks for, taking effect between the packets that it was given between. It is reported as done
    /// like any descriptor.
    Control {
        /// As in [`ControlEntry`].
        epoch: u64,
        /// What to do.
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
    /// Which ones are done, a few at a time.
    pub slots: SmallVec<[u32; SendCompletion::BATCH]>,
    /// Which of these did not do what they were to, a bit each from the lowest on: the contexts that they name do not stand where
    /// they would.
    pub failed: u8,
}

impl SendCompletion {
    /// Descriptors that one completion reports at most.
    pub const BATCH: usize = 8;

    /// Whether the descriptor of the slot at this place failed.
    pub const fn has_failed(&self, place: usize) -> bool {
        self.failed & 1 << place != 0
    }
}

/// An entry of a receive ring: an empty buffer given to the device. It takes one packet after the other, each cut off
/// as it is completed, for as long as there is room for a frame.
pub type ReceiveDescriptor = BytesMut;

/// A receive completion: a part of a buffer comes back with a packet in it.
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
    /// The packet, Ethernet header first.
    pub frame: BytesMut,
    /// What the device found out about it.
    pub meta: RxMeta,
    /// If it was joined of several segments: payload bytes of each, but for the last.
    pub joined: Option<NonZeroU16>,
    /// Parts of the payload that are in buffers of commands.
    pub placed: Placements,
    /// The rest of the buffer it came in is too small for another: one more may be given to the device.
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
    /// How many resets the driver had heard of when it gave the command. The device forgets commands from
    /// before its last reset, whenever they come.
    pub epoch: u64,
    /// Report also a command that is not reported otherwise.
    pub report: bool,
    /// The command.
    pub command: ControlCommand,
}

/// What the control ring asks for.
#[derive(Debug)]
pub enum ControlCommand {
    /// Create a context.
    Create {
        /// What it will be called.
        handle: Handle,
        /// The flow that it follows, as the host sees it.
        flow: Option<FlowKey>,
        /// Which half of that, or which packets.
        direction: Direction,
        /// What received packets find it by.
        keys: Vec<Key>,
        /// What its engine makes it from.
        spec: Spec,
    },
    /// Make a transmit context of one that was parked, in the same place. It is of a kind that the engine knows, and is reported only if the entry
    /// asks for that.
    Reuse {
        /// What it will be called.
        handle: Handle,
        /// The flow, as the host sees it.
        flow: FlowKey,
        /// What its engine makes it from.
        spec: Spec,
    },
    /// Take the key from a transmit context, and keep its place for [`Reuse`](Self::Reuse). It is reported only if the entry
    /// asks for that.
    Park {
        /// Which one.
        handle: Handle,
    },
    /// Tell where a receive context thinks a unit starts.
    Query {
        /// Which one.
        handle: Handle,
    },
    /// Tell a receive context whether a unit starts where it thinks.
    Answer {
        /// Which one.
        handle: Handle,
        /// Where it was asked about.
        header: Seq,
        /// The number of the unit that starts there, zero where units have none; `None`: none does.
        number: Option<u64>,
    },
    /// Take a buffer, and place there what is meant for it.
    Place {
        /// The flow's context.
        handle: Handle,
        /// What the buffer is called: the command whose data belong there, say.
        buffer: u64,
        /// Its pieces, in order. A dropped piece goes home.
        pieces: Vec<Piece>,
        /// The stages that the data pass on their way, as the engine defines them. `None` if there are none.
        stages: Option<Spec>,
    },
    /// Send home what is left of a buffer.
    Unplace {
        /// The flow's context.
        handle: Handle,
        /// The buffer.
        buffer: u64,
    },
    /// Tell a context something, in its engine's own words.
    Command {
        /// Which one.
        handle: Handle,
        /// Of a type that the engine says.
        command: Spec,
    },
    /// Have received packets with a key go to a context, or no longer.
    Steer {
        /// Which one.
        handle: Handle,
        /// What packets show.
        key: Key,
        /// They go there from now on.
        to_it: bool,
    },
    /// Change what an engine knows that is of no context.
    Change {
        /// Its number.
        engine: u8,
        /// Of a type that the engine says.
        change: Spec,
    },
    /// Spread received packets over the queues by another table.
    SetIndirection {
        /// The queue for each value of a hash's last bits.
        table: Box<[u16; INDIRECTION_ENTRIES]>,
    },
    /// Give up a context.
    Destroy {
        /// Which one.
        handle: Handle,
    },
}

/// What the device reports besides completions of packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ControlCompletion {
    /// The context exists and works.
    Created(Handle),
    /// The context could not be created.
    Refused(Handle),
    /// Where the context thinks a unit starts; `None`: it does not wait for an answer any more.
    Resync {
        /// The context.
        handle: Handle,
        /// The header's first byte.
        header: Option<Seq>,
    },
    /// The answer was taken.
    Answered(Handle),
    /// A context was parked, or made of one that was, and the entry asked for a report.
    Done(Handle),
    /// Packets are spread by the new table.
    IndirectionSet,
    /// The context is gone.
    Destroyed(Handle),
    /// The engine of this number was changed.
    Changed(u8),
    /// A context has something to tell.
    Event(ContextEvent),
    /// A transmit context is gone, which nobody had asked for: what it was to send needs a key that is not there.
    KeyMissing {
        /// The context.
        handle: Handle,
        /// The context that the key is, or was.
        key: Handle,
    },
    /// The device was reset: all contexts are gone, and commands from before are forgotten.
    Reset {
        /// How often it was, in all.
        resets: u64,
    },
}

impl ControlCompletion {
    /// Whether it answers a command: the others come by themselves.
    pub fn is_answer(&self) -> bool {
        match self {
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

/// Most pieces of a buffer.
pub const MAX_PIECES: usize = 256;
