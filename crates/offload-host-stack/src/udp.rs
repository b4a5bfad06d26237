//! UDP (RFC 768): sockets, the datagrams that wait to be read, and the contexts in the device that are a socket's.
//!
//! Invariants: what a socket's datagrams take is bounded, at the size of the buffers they are in; one that finds no
//! space is dropped and counted. A context is one socket's, from when it is made through that until the device says
//! that it is gone, or the socket is closed.

use crate::stack::OpenError;
use bytes::BytesMut;
use core::net::SocketAddr;
use offload_api::{ContextNews, Datagram, Handle, PacketAsk, SendRefusal, SocketEvent, TxDatagram};
use std::collections::{BTreeMap, VecDeque};
use std::io;

/// Why a datagram was not sent.
///
/// ```
/// use offload_host_stack::SendError;
///
/// assert_eq!(std::io::Error::from(SendError::Unreachable).kind(), std::io::ErrorKind::HostUnreachable);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SendError {
    /// The address is not one that this stack can reach.
    #[error("the address cannot be reached from here")]
    Unreachable,
    /// No packet has space for so many bytes.
    #[error("a datagram to this address may have {most} bytes")]
    TooLong {
        /// The most bytes that do.
        most: usize,
    },
    /// The path takes no packet with so many bytes, and it is not to be cut into fragments: it is one of many, the device is to
    /// work on it, or its sender said so.
    #[error("the path to this address takes datagrams of {most} bytes")]
    SegmentTooLong {
        /// The most bytes it does take.
        most: usize,
    },
    /// The source is not an address of this host in that IP version.
    #[error("the source is not an address of this host, or not of the destination's IP version")]
    ForeignSource,
    /// The device does not have the context that is to work on it, or it is not a socket's of this stack.
    #[error(
        "the device has no such context of a socket here: seal the datagram in software and send it without the ask"
    )]
    NoContext,
    /// The device takes no more at the moment. The socket will be [ready](crate::Stack::next_udp_ready) when it does.
    #[error("the device takes no more at the moment")]
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
    /// What a protocol is told that wanted to send `datagrams`.
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

/// The sockets by port.
#[derive(Debug, Default)]
pub(crate) struct Sockets {
    bound: BTreeMap<u16, Socket>,
    /// Whose the contexts are.
    owners: BTreeMap<Handle, Owner>,
    /// Ports of sockets with news, each once.
    ready: VecDeque<u16>,
    /// Ports of sockets that wait for the device, each once.
    blocked: Vec<u16>,
}

#[derive(Debug, Default)]
struct Socket {
    queue: VecDeque<Datagram>,
    /// Bytes of the buffers they are in.
    charged: usize,
    noted: bool,
    blocked: bool,
    /// It had access to the device, and hears of it.
    controlled: bool,
    events: VecDeque<SocketEvent>,
}

/// Of a context.
#[derive(Clone, Copy, Debug)]
struct Owner {
    port: u16,
    /// Nothing is to be sent by it any more.
    given_up: bool,
}

impl Sockets {
    pub(crate) fn is_bound(&self, port: u16) -> bool {
        self.bound.contains_key(&port)
    }

    pub(crate) fn bind(&mut self, port: u16) -> Result<(), OpenError> {
        if self.is_bound(port) {
            return Err(OpenError::InUse);
        }
        self.bound.insert(port, Socket::default());
        Ok(())
    }

    /// Closes the socket at `port`; gives the contexts that were its own, and are to be given back.
    #[must_use]
    pub(crate) fn close(&mut self, port: u16) -> Vec<Handle> {
        if let Some(socket) = self.bound.remove(&port)
            && socket.blocked
        {
            self.blocked.retain(|other| *other != port);
        }
        self.ready.retain(|other| *other != port);
        let own = self.owners.extract_if(.., |_, owner| owner.port == port);
        own.filter(|(_, owner)| !owner.given_up).map(|(context, _)| context).collect()
    }

    /// Keeps a datagram for the socket at `port`; false if it has no space.
    pub(crate) fn deliver(&mut self, port: u16, datagram: Datagram) -> bool {
        let Some(socket) = self.bound.get_mut(&port) else { return false };
        let charge = charge_for(&datagram);
        if socket.charged + charge > QUEUE_BYTES {
            return false;
        }
        socket.charged += charge;
        socket.queue.push_back(datagram);
        self.note(port);
        true
    }

    /// There is news for the socket at `port`.
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

    /// The next datagram as it was sent: the first of those that the device joined.
    pub(crate) fn take_single(&mut self, port: u16) -> Option<(BytesMut, SocketAddr)> {
        let mut datagram = self.take(port)?;
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

    /// From now on the socket at `port` hears of the device.
    pub(crate) fn mark_controlled(&mut self, port: u16) {
        if let Some(socket) = self.bound.get_mut(&port) {
            socket.controlled = true;
        }
    }

    /// The socket at `port` has made a context.
    pub(crate) fn own(&mut self, port: u16, context: Handle) {
        if self.is_bound(port) {
            self.owners.insert(context, Owner { port, given_up: false });
        }
    }

    /// A context is given up; what still happens to it, its socket hears.
    pub(crate) fn give_up(&mut self, context: Handle) {
        if let Some(owner) = self.owners.get_mut(&context) {
            owner.given_up = true;
        }
    }

    /// Whether sockets may ask for this context.
    pub(crate) fn may_ask(&self, ask: PacketAsk) -> bool {
        self.owners.get(&ask.context).is_some_and(|owner| !owner.given_up)
    }

    /// Something happened to a context.
    pub(crate) fn on_news(&mut self, news: ContextNews) {
        let context = match news {
            ContextNews::Ready(context) | ContextNews::Removed(context) => context,
            ContextNews::Event(event) => event.context,
        };
        self.tell(context, SocketEvent::Context(news));
        if matches!(news, ContextNews::Removed(_)) {
            self.owners.remove(&context);
        }
    }

    /// A driver has dropped what this was asked for.
    pub(crate) fn on_dropped(&mut self, ask: PacketAsk) {
        self.tell(ask.context, SocketEvent::NotSent(ask));
    }

    /// Every context is gone.
    pub(crate) fn on_reset(&mut self) {
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

    /// What a device says of packets has no bound of its own. What there is of contexts themselves has theirs.
    fn put_event(&mut self, port: u16, event: SocketEvent) {
        let Some(socket) = self.bound.get_mut(&port) else { return };
        let of_packets = matches!(event, SocketEvent::NotSent(_) | SocketEvent::Context(ContextNews::Event(_)));
        if of_packets && socket.events.len() >= EVENTS_OF_PACKETS {
            return;
        }
        socket.events.push_back(event);
        self.note(port);
    }

    /// The socket at `port` waits for the device.
    pub(crate) fn block(&mut self, port: u16) {
        if let Some(socket) = self.bound.get_mut(&port)
            && !core::mem::replace(&mut socket.blocked, true)
        {
            self.blocked.push(port);
        }
    }

    /// The device takes packets again.
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

/// What a datagram takes: a receive buffer of its own, whatever its size.
fn charge_for(datagram: &Datagram) -> usize {
    datagram.data.len().max(BUFFER_BYTES)
}

/// Events of packets that wait in one socket, for one that does not look.
const EVENTS_OF_PACKETS: usize = 1024;
/// Bytes of buffers that wait in one socket: Linux's rmem_default.
const QUEUE_BYTES: usize = 212_992;
/// A device's receive buffer for a packet of up to 1500 bytes.
const BUFFER_BYTES: usize = 2048;
