//! The interface of a UDP transport to a protocol.

use crate::contexts::{ContextNews, Contexts};
use crate::datagram::{Datagram, TxDatagram};
use crate::tx::PacketAsk;
use core::net::{IpAddr, SocketAddr};
use core::task::{Context, Poll};
use std::collections::VecDeque;
use std::io;

/// A UDP socket with offload metadata: received datagrams carry the device's verdicts, and outgoing datagrams carry
/// requests to the device. Sockets of `offload-host-stack` implement the trait; with feature `tokio` so does a kernel
/// socket, without a device
#[cfg_attr(all(feature = "tokio", target_os = "linux"), doc = "([`TokioDatagrams`](crate::TokioDatagrams)).")]
#[cfg_attr(not(all(feature = "tokio", target_os = "linux")), doc = "(`TokioDatagrams`).")]
///
/// A socket belongs to one task: each kind of waiting (to send, to receive, for device events) has one waker.
///
/// **The device.** [`control`](Self::control) gives access to the contexts of the device. New contexts belong to the
/// socket: their events arrive at [`poll_device_event`](Self::poll_device_event), datagrams may [ask](TxDatagram::ask)
/// for their work, and dropping the socket removes them. Without a device, `control` returns false, every ask is
/// refused ([`SendRefusal::Ask`]), there are no events, and the `meta` of received datagrams is empty. A protocol then
/// works on the CPU without further checks.
///
/// **Plaintext never leaves.** If an ask cannot be met, the socket refuses the datagram at once where this is known;
/// the caller still owns the datagram, seals it in software and sends it without the ask. If the failure is known only
/// later, because the device was reset or is full, the socket drops and counts the datagram and reports
/// [`SocketEvent::NotSent`].
///
/// No method has a default, because a socket that wraps another socket could then forget to forward the method.
///
/// ```
/// use bytes::Bytes;
/// use offload_api::{DatagramSocket, PacketAsk, SendRefusal, TxDatagram};
/// use std::collections::VecDeque;
/// use std::future::poll_fn;
///
/// /// Sends a datagram by a context of the device or, if the device will not, as software seals it.
/// async fn send(
///     socket: &mut dyn DatagramSocket,
///     plain: TxDatagram,
///     ask: PacketAsk,
///     seal: impl Fn(&TxDatagram) -> Bytes,
/// ) -> Result<(), SendRefusal> {
///     let mut batch = VecDeque::from([TxDatagram { ask: Some(ask), ..plain }]);
///     while !batch.is_empty() {
///         match poll_fn(|cx| socket.poll_send(cx, &mut batch)).await {
///             Ok(_) => {}
///             Err(SendRefusal::Ask) => {
///                 let refused = &mut batch[0];
///                 refused.pieces = [seal(refused)].into_iter().collect();
///                 refused.ask = None;
///             }
///             Err(error) => return Err(error),
///         }
///     }
///     Ok(())
/// }
/// ```
pub trait DatagramSocket: Send + Unpin {
    /// Sends datagrams from the front of `batch`, as many as the device accepts, and removes them. Returns their
    /// number; pending if the device accepts none at the moment.
    ///
    /// # Errors
    /// If the first datagram is refused and this call sent nothing. The datagram stays first in `batch`.
    fn poll_send(&mut self, cx: &mut Context<'_>, batch: &mut VecDeque<TxDatagram>)
    -> Poll<Result<usize, SendRefusal>>;

    /// Returns the current limits for datagrams to an address. They may change with the path.
    fn limits(&mut self, to: SocketAddr) -> SendLimits;

    /// Appends up to `most` received datagrams to `batch`. Returns their number, at least one when ready. A datagram
    /// that the device joined counts once ([`Datagram::split`]).
    ///
    /// # Errors
    /// The errors of a kernel socket.
    fn poll_receive(&mut self, cx: &mut Context<'_>, batch: &mut Vec<Datagram>, most: usize)
    -> Poll<io::Result<usize>>;

    /// Returns the local address and port. The address is unspecified if the socket receives on all addresses of its
    /// host.
    ///
    /// # Errors
    /// The errors of a kernel socket.
    fn local_addr(&self) -> io::Result<SocketAddr>;

    /// Calls `f` with the contexts of the device. Returns false without calling `f` if there is no device with
    /// contexts. The contexts passed to `f` report no events; [`poll_device_event`](Self::poll_device_event) does.
    fn control(&mut self, f: &mut dyn FnMut(&mut dyn Contexts)) -> bool;

    /// Returns the next event of the socket's contexts.
    fn poll_device_event(&mut self, cx: &mut Context<'_>) -> Poll<SocketEvent>;
}

/// The limits of one send on a [`DatagramSocket`].
///
/// ```
/// use offload_api::SendLimits;
///
/// let limits = SendLimits { bytes: 1472, segments: 64, segments_bytes: 65_507 };
/// assert_eq!(limits.segments_of(1200), 54);
/// assert_eq!(limits.segments_of(1), 64);
/// assert_eq!(limits.segments_of(1473), 0, "no datagram of this size fits in a packet");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SendLimits {
    /// Maximum bytes of a datagram that the path carries in one packet, as far as is known.
    pub bytes: usize,
    /// Maximum number of datagrams in one [`TxDatagram`].
    pub segments: usize,
    /// Maximum bytes of these datagrams together.
    pub segments_bytes: usize,
}

impl SendLimits {
    /// Returns the maximum number of datagrams of `bytes` bytes in one [`TxDatagram`].
    pub fn segments_of(&self, bytes: u16) -> usize {
        if usize::from(bytes) > self.bytes {
            0
        } else {
            self.segments.min(self.segments_bytes / usize::from(bytes.max(1)))
        }
    }
}

/// The reasons for which datagrams are not sent. The caller still owns the datagrams.
///
/// ```
/// use offload_api::SendRefusal;
///
/// assert_eq!(std::io::Error::from(SendRefusal::TooLong { most: 1472 }).kind(), std::io::ErrorKind::InvalidInput);
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SendRefusal {
    /// There is no route to the address.
    #[error("{to} cannot be reached from here")]
    Unreachable {
        /// The destination.
        to: SocketAddr,
    },
    /// The datagram is longer than any packet, or longer than the path carries while fragmentation is forbidden.
    #[error("a datagram to this address may have {most} bytes: send fewer at a time")]
    TooLong {
        /// Maximum bytes of a datagram.
        most: usize,
    },
    /// There are too many datagrams, or too many bytes.
    #[error("at most {segments} datagrams with {bytes} bytes in total fit in one send: split them into several sends")]
    TooMany {
        /// Maximum number of datagrams.
        segments: usize,
        /// Maximum bytes of the datagrams together.
        bytes: usize,
    },
    /// The source is not an address of this host, or is of the other IP version than `to`.
    #[error("{source_address} is not an address of this host in the IP version of {to}")]
    Source {
        /// The requested source address.
        source_address: IpAddr,
        /// The destination.
        to: SocketAddr,
    },
    /// There is no device, or the device does not have the context.
    #[error("no device has the requested context: seal the datagram in software and send it without the ask")]
    Ask,
    /// An error of the kernel.
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl From<SendRefusal> for io::Error {
    fn from(refused: SendRefusal) -> io::Error {
        let kind = match refused {
            SendRefusal::Io(error) => return error,
            SendRefusal::Unreachable { .. } => io::ErrorKind::HostUnreachable,
            SendRefusal::Source { .. } => io::ErrorKind::AddrNotAvailable,
            SendRefusal::Ask => io::ErrorKind::Unsupported,
            SendRefusal::TooLong { .. } | SendRefusal::TooMany { .. } => io::ErrorKind::InvalidInput,
        };
        io::Error::new(kind, refused)
    }
}

/// An event of a socket's device.
///
/// ```
/// use offload_api::{ContextNews, Handle, PacketAsk, SocketEvent};
///
/// /// The number of the first datagram that has to be sent anew.
/// fn lost(event: SocketEvent) -> Option<u64> {
///     match event {
///         SocketEvent::NotSent(PacketAsk { number, .. }) => Some(number),
///         _ => None,
///     }
/// }
///
/// let context = Handle { index: 3, generation: 0 };
/// assert_eq!(lost(SocketEvent::NotSent(PacketAsk { context, number: 9, args: 0 })), Some(9));
/// assert_eq!(lost(SocketEvent::Context(ContextNews::Ready(context))), None);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SocketEvent {
    /// The device was reset: all contexts are gone. New ones may be created.
    Reset,
    /// An event of one of the socket's contexts.
    Context(ContextNews),
    /// Datagrams with this ask were dropped and counted, because the device rejected them after the send. If the device
    /// cuts several datagrams from one packet, all datagrams from this number on were dropped.
    NotSent(PacketAsk),
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Compiles only if the trait is object-safe: protocols keep boxed sockets.
    #[allow(dead_code, reason = "that it compiles is the test")]
    fn is_object_safe(socket: Box<dyn DatagramSocket>) -> Box<dyn DatagramSocket> {
        socket
    }
}
