//! What a protocol over UDP sees of a transport.

use crate::contexts::{ContextNews, Contexts};
use crate::datagram::{Datagram, TxDatagram};
use crate::tx::PacketAsk;
use core::net::{IpAddr, SocketAddr};
use core::task::{Context, Poll};
use std::collections::VecDeque;
use std::io;

/// A UDP socket whose datagrams keep what the device said about their packets, and carry what the device is to do with
/// theirs. A socket of `offload-host-stack` is one; with feature `tokio`, one of the kernel's is, too, without a device
#[cfg_attr(all(feature = "tokio", target_os = "linux"), doc = "([`TokioDatagrams`](crate::TokioDatagrams)).")]
#[cfg_attr(not(all(feature = "tokio", target_os = "linux")), doc = "(`TokioDatagrams`).")]
///
/// It is one task's: each kind of waiting (to send, to receive, for device events) has one waker.
///
/// **The device.** [`control`](Self::control) gives access to its contexts. Contexts that are made there are the socket's: it hears what
/// happens to them by [`poll_device_event`](Self::poll_device_event), datagrams may [ask](TxDatagram::ask) for them, and
/// they are given back when the socket is dropped. Without a device, `control` says so, every ask is refused
/// ([`SendRefused::Ask`]), no event ever comes, and what is received says nothing in its `meta`: a protocol works on
/// the CPU then, and needs to know no more than that.
///
/// **What is to be sealed never leaves as it is.** An ask that cannot be met is refused where that is known at once: the
/// datagram is still its owner's, to be sealed in software and sent without the ask. Where it is known only later, for
/// the device was reset or is full, it is dropped, counted, and told by [`SocketEvent::NotSent`].
///
/// No method has a default: a socket around a socket would forget one, and nobody would notice.
///
/// ```
/// use bytes::Bytes;
/// use offload_api::{DatagramSocket, PacketAsk, SendRefused, TxDatagram};
/// use std::collections::VecDeque;
/// use std::future::poll_fn;
///
/// /// Sends a datagram by a context of the device or, if the device will not, as software seals it.
/// async fn send(
///     socket: &mut dyn DatagramSocket,
///     plain: TxDatagram,
///     ask: PacketAsk,
///     seal: impl Fn(&TxDatagram) -> Bytes,
/// ) -> Result<(), SendRefused> {
///     let mut batch = VecDeque::from([TxDatagram { ask: Some(ask), ..plain }]);
///     while !batch.is_empty() {
///         match poll_fn(|cx| socket.poll_send(cx, &mut batch)).await {
///             Ok(_) => {}
///             Err(SendRefused::Ask) => {
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
    /// Takes datagrams off the front of `batch` and sends them, as many as the device takes; says how many. Pending if it
    /// takes none at the moment.
    ///
    /// # Errors
    /// If the first one is refused, and nothing was sent by this call. It is still the first one.
    fn poll_send(&mut self, cx: &mut Context<'_>, batch: &mut VecDeque<TxDatagram>)
    -> Poll<Result<usize, SendRefused>>;

    /// What can be sent to an address at the moment. It may change with the path.
    fn limits(&mut self, to: SocketAddr) -> SendLimits;

    /// Puts datagrams that arrived behind what `batch` has, `most` of them at most; says how many, at least one when
    /// ready. One that the device joined of several counts once ([`Datagram::split`]).
    ///
    /// # Errors
    /// Those of a kernel's socket.
    fn poll_receive(&mut self, cx: &mut Context<'_>, batch: &mut Vec<Datagram>, most: usize)
    -> Poll<io::Result<usize>>;

    /// This end's address and port. The address is unspecified where the socket takes what is sent to any of its host's.
    ///
    /// # Errors
    /// Those of a kernel's socket.
    fn local_addr(&self) -> io::Result<SocketAddr>;

    /// Calls `f` with the contexts of the device. Returns false, without a call of `f`, if no device with contexts is
    /// below. The contexts give `f` no news: [`poll_device_event`](Self::poll_device_event) does.
    fn control(&mut self, f: &mut dyn FnMut(&mut dyn Contexts)) -> bool;

    /// The next event of the socket's contexts.
    fn poll_device_event(&mut self, cx: &mut Context<'_>) -> Poll<SocketEvent>;
}

/// What a [`DatagramSocket`] takes at a time.
///
/// ```
/// use offload_api::SendLimits;
///
/// let limits = SendLimits { bytes: 1472, segments: 64, segments_bytes: 65_507 };
/// assert_eq!(limits.segments_of(1200), 54);
/// assert_eq!(limits.segments_of(1), 64);
/// assert_eq!(limits.segments_of(1473), 0, "none of that size fits in a packet");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SendLimits {
    /// Most bytes of a datagram that the path takes as one packet, as far as is known.
    pub bytes: usize,
    /// Most datagrams in one [`TxDatagram`].
    pub segments: usize,
    /// Most bytes of them together.
    pub segments_bytes: usize,
}

impl SendLimits {
    /// How many datagrams of so many bytes one [`TxDatagram`] may be.
    pub fn segments_of(&self, bytes: u16) -> usize {
        if usize::from(bytes) > self.bytes {
            0
        } else {
            self.segments.min(self.segments_bytes / usize::from(bytes.max(1)))
        }
    }
}

/// Why datagrams were not sent. They are still their owner's.
///
/// ```
/// use offload_api::SendRefused;
///
/// assert_eq!(std::io::Error::from(SendRefused::TooLong { most: 1472 }).kind(), std::io::ErrorKind::InvalidInput);
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SendRefused {
    /// There is no way to that address.
    #[error("{to} cannot be reached from here")]
    Unreachable {
        /// The address.
        to: SocketAddr,
    },
    /// No packet has space for so many bytes; or the path takes none, and they may not be cut into fragments.
    #[error("a datagram to this address may have {most} bytes: send fewer at a time")]
    TooLong {
        /// The most bytes of a datagram.
        most: usize,
    },
    /// They are too many, or have too many bytes together.
    #[error("at most {segments} datagrams of together {bytes} bytes go at a time: cut them into several sends")]
    TooMany {
        /// The most datagrams.
        segments: usize,
        /// The most bytes of them together.
        bytes: usize,
    },
    /// The source is no address of this host, or none by which `to` can be reached.
    #[error("{source_address} is not an address of this host in the IP version of {to}")]
    Source {
        /// The address that they were to be sent from.
        source_address: IpAddr,
        /// And to which.
        to: SocketAddr,
    },
    /// No device does what is asked: there is none, or it does not have the context.
    #[error("no device has the context that is asked for: seal the datagram in software and send it without the ask")]
    Ask,
    /// The kernel would not.
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl From<SendRefused> for io::Error {
    fn from(refused: SendRefused) -> io::Error {
        let kind = match refused {
            SendRefused::Io(error) => return error,
            SendRefused::Unreachable { .. } => io::ErrorKind::HostUnreachable,
            SendRefused::Source { .. } => io::ErrorKind::AddrNotAvailable,
            SendRefused::Ask => io::ErrorKind::Unsupported,
            SendRefused::TooLong { .. } | SendRefused::TooMany { .. } => io::ErrorKind::InvalidInput,
        };
        io::Error::new(kind, refused)
    }
}

/// What a socket hears of its device.
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
    /// The device was reset: every context is gone. New ones may be made.
    Reset,
    /// Something happened to a context of the socket.
    Context(ContextNews),
    /// What this was asked for was dropped, and counted, on its way to the device, which would not have it. Of several
    /// datagrams none was sent from this number on that the device was to cut from the same packet.
    NotSent(PacketAsk),
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Protocols keep sockets of any kind.
    #[allow(dead_code, reason = "that it compiles is the test")]
    fn is_object_safe(socket: Box<dyn DatagramSocket>) -> Box<dyn DatagramSocket> {
        socket
    }
}
