//! UDP (RFC 768): sockets, their receive queues, and their contexts in the device.
//!
//! Invariants:
//! - A socket's receive queue is bounded, at true buffer size. A datagram that does not fit is dropped and counted.
//! - A context belongs to the socket through which it was created, until the device reports its removal or the socket
//!   is closed.

use crate::stack::SocketOpenError;
use bytes::BytesMut;
use core::net::SocketAddr;
use offload_api::{ContextNews, Datagram, Handle, PacketAsk, SendRefusal, SocketEvent, TxDatagram};
use std::collections::{BTreeMap, VecDeque};
use std::io;

/// Reason for which a datagram was not sent.
///
/// ```
/// use offload_host_stack::SendError;
///
/// assert_eq!(std::io::Error::from(SendError::Unreachable).kind(), std::io::ErrorKind::HostUnreachable);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SendError {
    /// The stack has no route to the address.
    #[error("the address cannot be reached from here")]
    Unreachable,
    /// The datagram exceeds the maximum packet size.
    #[error("a datagram to this address may have {most} bytes")]
    TooLong {
        /// Maximum length in bytes.
        most: usize,
    },
    /// The datagram exceeds the path MTU and may not be fragmented: it is one of several segments, a device context has
    /// to process it, or the sender asked for no fragmentation.
    #[error("the path to this address takes datagrams of {most} bytes")]
    SegmentTooLong {
        /// Maximum length on this path, in bytes.
        most: usize,
    },
    /// The source is not an address of this host in that IP version.
    #[error("the source is not an address of this host, or not of the destination's IP version")]
    ForeignSource,
    /// The device has no such context, or the context belongs to no socket of this stack.
    #[error(
        "the device has no such context of a socket here: seal the datagram in software and send it without the ask"
    )]
    NoContext,
    /// The device is full. The socket will be [ready](crate::Stack::next_udp_ready) when it has room.
    #[error("the device is full: send again when the socket is ready")]
    Full,
}

impl From<SendError> for io::Error {
    fn from(error: SendError) -> io::Error {
        let kind = match error {
            SendError::Unreachable => io::ErrorKind::HostUnreachable,
            SendError::ForeignSource => io::ErrorKind::AddrNotAvailable,
            SendError::NoContext => io::ErrorKind::Unsupported,
            SendError::TooLong { .. } | SendError::SegmentTooLong { .. } => io::ErrorKind::InvalidInput,
            SendError::Full => io::ErrorKind::WouldBlock,
        };
        io::Error::new(kind, error)
    }
}

impl SendError {
    /// Returns the refusal that the sender of `datagrams` gets.
    pub(crate) fn refusal(self, datagrams: &TxDatagram) -> SendRefusal {
        let to = datagrams.to;
        match (self, datagrams.source) {
            (SendError::TooLong { most }, _) if datagrams.segment.is_some() => {
                let each = datagrams.segment.map_or(1, |bytes| bytes.get().into());
                SendRefusal::TooMany { segments: most / each, bytes: most }
            }
            (SendError::TooLong { most } | SendError::SegmentTooLong { most }, _) => SendRefusal::TooLong { most },
            (SendError::ForeignSource, Some(source_address)) => SendRefusal::Source { source_address, to },
            (SendError::NoContext, _) => SendRefusal::Ask,
            (SendError::Unreachable | SendError::ForeignSource, _) => SendRefusal::Unreachable { to },
            (SendError::Full, _) => SendRefusal::Io(self.into()),
        }
    }
}

/// The bound sockets, by port.
#[derive(Debug, Default)]
pub(crate) struct UdpSockets {
    bound: BTreeMap<u16, BoundSocket>,
    /// Owner of each context.
    owners: BTreeMap<Handle, ContextOwner>,
    /// Ports of sockets with news, each at most once.
    ready: VecDeque<u16>,
    /// Ports of sockets that wait for room in the device, each at most once.
    blocked: Vec<u16>,
}

#[derive(Debug, Default)]
struct BoundSocket {
    queue: VecDeque<Datagram>,
    /// Buffer memory of `queue`, in bytes.
    charged: usize,
    noted: bool,
    blocked: bool,
    /// Whether the socket had access to the device's contexts, and so gets their events.
    controlled: bool,
    events: VecDeque<SocketEvent>,
}

/// Owner of a device context.
#[derive(Clone, Copy, Debug)]
struct ContextOwner {
    port: u16,
    /// Whether the socket has removed the context, so that no datagram may use it.
    given_up: bool,
}

impl UdpSockets {
    pub(crate) fn is_bound(&self, port: u16) -> bool {
        self.bound.contains_key(&port)
    }

    pub(crate) fn bind(&mut self, port: u16) -> Result<(), SocketOpenError> {
        if self.is_bound(port) {
            return Err(SocketOpenError::InUse);
        }
        self.bound.insert(port, BoundSocket::default());
        Ok(())
    }

    /// Closes the socket at `port` and returns its remaining contexts, which the caller must remove from the device.
    #[must_use]
    pub(crate) fn close(&mut self, port: u16) -> Vec<Handle> {
        if let Some(socket) = self.bound.remove(&port)
            && socket.blocked
        {
            self.blocked.retain(|other| *other != port);
        }
        self.ready.retain(|other| *other != port);
        // The device still has the contexts that the socket has not removed itself.
        let own = self.owners.extract_if(.., |_, owner| owner.port == port);
        own.filter(|(_, owner)| !owner.given_up).map(|(context, _)| context).collect()
    }

    /// Queues a datagram at the socket at `port`. Returns false if the queue is full.
    pub(crate) fn deliver(&mut self, port: u16, datagram: Datagram) -> bool {
        let Some(socket) = self.bound.get_mut(&port) else { return false };
        let charge = charge_for(&datagram);
        if socket.charged + charge > MAX_QUEUE_BYTES {
            return false;
        }
        socket.charged += charge;
        socket.queue.push_back(datagram);
        self.note(port);
        true
    }

    /// Puts the socket at `port` into the ready queue.
    fn note(&mut self, port: u16) {
        if let Some(socket) = self.bound.get_mut(&port)
            && !core::mem::replace(&mut socket.noted, true)
        {
            self.ready.push_back(port);
        }
    }

    pub(crate) fn take(&mut self, port: u16) -> Option<Datagram> {
        let socket = self.bound.get_mut(&port)?;
        let datagram = socket.queue.pop_front()?;
        socket.charged -= charge_for(&datagram);
        Some(datagram)
    }

    /// Takes the next single datagram, splitting datagrams that the device joined.
    pub(crate) fn take_single(&mut self, port: u16) -> Option<(BytesMut, SocketAddr)> {
        let mut datagram = self.take(port)?;
        // The application reads single datagrams, although the device may have joined several equal-sized ones.
        let single = datagram.joined.map_or(usize::MAX, |bytes| bytes.get().into()).min(datagram.data.len());
        let (data, from) = (datagram.data.split_to(single), datagram.from);
        if !datagram.data.is_empty()
            && let Some(socket) = self.bound.get_mut(&port)
        {
            socket.charged += charge_for(&datagram);
            socket.queue.push_front(datagram);
        }
        Some((data, from))
    }

    /// Subscribes the socket at `port` to device events.
    pub(crate) fn mark_controlled(&mut self, port: u16) {
        if let Some(socket) = self.bound.get_mut(&port) {
            socket.controlled = true;
        }
    }

    /// Makes the socket at `port` the owner of `context`.
    pub(crate) fn own(&mut self, port: u16, context: Handle) {
        if self.is_bound(port) {
            self.owners.insert(context, ContextOwner { port, given_up: false });
        }
    }

    /// Marks `context` as removed by its socket. The socket still gets its events.
    pub(crate) fn give_up(&mut self, context: Handle) {
        if let Some(owner) = self.owners.get_mut(&context) {
            owner.given_up = true;
        }
    }

    /// Returns whether datagrams may name this context.
    pub(crate) fn may_ask(&self, ask: PacketAsk) -> bool {
        self.owners.get(&ask.context).is_some_and(|owner| !owner.given_up)
    }

    /// Passes news of a context to its owner.
    pub(crate) fn on_news(&mut self, news: ContextNews) {
        let context = match news {
            ContextNews::Ready(context) | ContextNews::Removed(context) => context,
            ContextNews::Event(event) => event.context,
        };
        self.tell(context, SocketEvent::Context(news));
        // `Removed` is the last news of a context, so the owner is told before the context is forgotten.
        if matches!(news, ContextNews::Removed(_)) {
            self.owners.remove(&context);
        }
    }

    /// Reports a datagram that a driver dropped to the context's owner.
    pub(crate) fn on_dropped(&mut self, ask: PacketAsk) {
        self.tell(ask.context, SocketEvent::NotSent(ask));
    }

    /// Forgets all contexts and reports the reset to the sockets.
    pub(crate) fn on_reset(&mut self) {
        // A reset destroys all contexts at once, so later news about old handles reach no socket.
        self.owners.clear();
        let controlled: Vec<u16> =
            self.bound.iter().filter(|(_, socket)| socket.controlled).map(|(port, _)| *port).collect();
        for port in controlled {
            self.put_event(port, SocketEvent::Reset);
        }
    }

    pub(crate) fn take_event(&mut self, port: u16) -> Option<SocketEvent> {
        self.bound.get_mut(&port)?.events.pop_front()
    }

    fn tell(&mut self, context: Handle, event: SocketEvent) {
        if let Some(owner) = self.owners.get(&context) {
            self.put_event(owner.port, event);
        }
    }

    /// Queues an event at the socket. Only events about packets are limited here, because a device may report any
    /// number of them; a context has a bounded number of other events.
    fn put_event(&mut self, port: u16, event: SocketEvent) {
        let Some(socket) = self.bound.get_mut(&port) else { return };
        let of_packets = matches!(event, SocketEvent::NotSent(_) | SocketEvent::Context(ContextNews::Event(_)));
        if of_packets && socket.events.len() >= MAX_PACKET_EVENTS {
            return;
        }
        socket.events.push_back(event);
        self.note(port);
    }

    /// Marks the socket at `port` as waiting for room in the device.
    pub(crate) fn block(&mut self, port: u16) {
        if let Some(socket) = self.bound.get_mut(&port)
            && !core::mem::replace(&mut socket.blocked, true)
        {
            self.blocked.push(port);
        }
    }

    /// Makes all waiting sockets ready, because the device has room again.
    pub(crate) fn unblock(&mut self) {
        for port in self.blocked.drain(..) {
            let Some(socket) = self.bound.get_mut(&port) else { continue };
            socket.blocked = false;
            if !core::mem::replace(&mut socket.noted, true) {
                self.ready.push_back(port);
            }
        }
    }

    pub(crate) fn next_ready(&mut self) -> Option<u16> {
        let port = self.ready.pop_front()?;
        if let Some(socket) = self.bound.get_mut(&port) {
            socket.noted = false;
        }
        Some(port)
    }
}

/// Returns the memory charge of a datagram. Even a short one occupies a whole receive buffer.
fn charge_for(datagram: &Datagram) -> usize {
    datagram.data.len().max(BUFFER_BYTES)
}

/// Maximum number of queued packet events of one socket.
const MAX_PACKET_EVENTS: usize = 1024;
/// Maximum buffer memory of one socket's receive queue, in bytes: Linux's rmem_default.
const MAX_QUEUE_BYTES: usize = 212_992;
/// Size of a device's receive buffer for packets of up to 1500 bytes.
const BUFFER_BYTES: usize = 2048;
