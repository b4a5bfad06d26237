//! Ports to the outside: a guest's network card, a TAP of this machine.
//!
//! ```text
//!  fabric's thread:  Port -- read, write, never blocking --> socket or device file
//!                      ^                                           |
//!                   doorbell <-- a thread that only waits <-- ready again
//! ```
//!
//! - [`dgram`]: [`DgramPort`], QEMU's `-netdev dgram` over Unix sockets: one datagram a frame;
//! - [`stream`]: [`StreamPort`], QEMU's `-netdev stream` over Unix sockets or TCP: a length before each frame;
//! - [`end`]: [`End`], any of these ports, for programs that offer a choice;
//! - [`front`]: [`KeyingFront`], which lets a Linux negotiate keys for an emulated host;
//! - [`concern`]: [`FrameClass`], the class of a frame: IKE, ESP, neighbour discovery;
//! - [`gate`]: [`Gate`], which delays a keying daemon's messages until its kernel is mirrored; [`gate_queue`]:
//!   [`GateQueue`], their order;
//! - [`gone`]: [`Gone`], the signal that the outside is gone for good;
//! - `tap`, with the feature of that name: `TapPort`, a TAP of the machine's kernel, super-segments included.
//!
//! The task of the port moves frames on the fabric's thread, so that no frame crosses threads. If the wire is full,
//! inbound frames stay in the socket. Outbound frames wait in a short queue if the outside is full; frames beyond the
//! queue are dropped and counted. All ports work in real time only.

pub mod concern;
pub mod dgram;
pub mod end;
pub mod front;
pub mod gate;
pub mod gate_queue;
pub mod gone;
mod outlet;
pub mod stream;
#[cfg(feature = "tap")]
pub mod tap;
mod watcher;

pub use concern::{FrameClass, FrameClassifier};
pub use dgram::{DgramPort, bind_in_place_of_the_dead};
pub use end::End;
pub use front::{FrontCounters, KeyingFront};
pub use gate::Gate;
pub use gate_queue::{GateCounters, GateQueue};
pub use gone::Gone;
pub use stream::StreamPort;
#[cfg(feature = "tap")]
pub use tap::{TapConfig, TapError, TapPort};

offload_base::counters! {
    /// Counters of a port to the outside.
    ///
    /// ```
    /// use offload_testbed::attach::DgramPort;
    ///
    /// let (inside, _outside) = std::os::unix::net::UnixDatagram::pair()?;
    /// let port = DgramPort::paired(inside)?;
    /// assert_eq!(port.counters().rx_frames, 0);
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub struct AttachCounters {
        /// Frames received from outside.
        pub rx_frames: "attach_rx_packets",
        /// Bytes received from outside.
        pub rx_bytes: "attach_rx_bytes",
        /// Super-segments received from outside; each was cut into several frames.
        pub rx_super_segments: "attach_rx_super_segments",
        /// Malformed data from outside: too short, too long, or with contradictory headers.
        pub rx_malformed: "attach_rx_malformed",
        /// Frames sent outside.
        pub tx_frames: "attach_tx_packets",
        /// Bytes sent outside. The headers of a super-segment count once.
        pub tx_bytes: "attach_tx_bytes",
        /// Super-segments sent outside; each joins several frames.
        pub tx_super_segments: "attach_tx_super_segments",
        /// Frames dropped because the outside had not taken earlier frames.
        pub tx_queue_drops: "attach_tx_queue_drops",
        /// Frames dropped because no receiver was connected.
        pub tx_unreachable: "attach_tx_unreachable",
        /// Times that the outside disconnected or failed.
        pub failures: "attach_failures",
    }
}
