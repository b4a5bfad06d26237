//! Ports with something outside behind them: a guest's network card, a TAP of this machine.
//!
//! ```text
//!  fabric's thread:  Port -- read, write, never blocking --> socket or device file
//!                      ^                                           |
//!                   doorbell <-- a thread that only waits <-- ready again
//! ```
//!
//! - [`dgram`]: [`DgramPort`], QEMU's `-netdev dgram` over Unix sockets: one datagram, one frame;
//! - [`stream`]: [`StreamPort`], QEMU's `-netdev stream` over Unix sockets or TCP: a length before each frame;
//! - [`end`]: [`End`], any of these, for programs whose users choose;
//! - [`front`]: [`KeyingFront`], which lets a Linux negotiate keys for an emulated host;
//! - [`concern`]: [`Concern`], which tells IKE, ESP and questions about neighbours apart;
//! - [`gate`]: [`Gate`], where what a keying daemon says waits until its kernel is mirrored; [`gate_queue`]: [`GateQueue`], in what order;
//! - [`gone`]: [`Gone`], by which a program hears that the outside has gone for good;
//! - `tap`, with the feature of that name: `TapPort`, a TAP of the machine's kernel, super-segments and all.
//!
//! Frames are moved by the task of the port, on the fabric's thread: nothing is handed from thread to thread, and a
//! wire that takes no more frames leaves them where they come from. The other way what the outside does not take
//! waits in a short queue; what does not fit there is dropped and counted. All of this happens in real time only.

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

pub use concern::{Concern, Concerns};
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
    /// What a port counts that has something outside behind it.
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
        /// Frames from outside.
        pub rx_frames: "attach_rx_packets",
        /// Their bytes.
        pub rx_bytes: "attach_rx_bytes",
        /// Super-segments from outside; each made several frames.
        pub rx_super_segments: "attach_rx_super_segments",
        /// What came from outside and was no frame: too short, too long, or headers that contradict each other.
        pub rx_malformed: "attach_rx_malformed",
        /// Frames that went outside.
        pub tx_frames: "attach_tx_packets",
        /// Their bytes; of a super-segment the headers once.
        pub tx_bytes: "attach_tx_bytes",
        /// Super-segments that went outside; each was several frames.
        pub tx_super_segments: "attach_tx_super_segments",
        /// Frames dropped: the outside had not taken those before.
        pub tx_queue_drops: "attach_tx_queue_drops",
        /// Frames dropped: nobody is there to take them.
        pub tx_unreachable: "attach_tx_unreachable",
        /// How often the outside went away or failed.
        pub failures: "attach_failures",
    }
}
