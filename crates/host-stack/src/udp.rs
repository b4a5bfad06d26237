//! UDP (RFC 768): sockets, and the datagrams that wait to be read.
//!
//! Invariant: what a socket's datagrams take is bounded, at the size of the buffers they are in; one that finds no
//! space is dropped and counted.

use crate::stack::OpenError;
use offload_api::Datagram;
use std::collections::{BTreeMap, VecDeque};
use std::io;

/// Why a datagram was not sent.
///
/// ```
/// use host_stack::SendError;
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
    /// The path takes no packet with so many bytes, and what is one of many is not cut into fragments.
    #[error("the path to this address takes datagrams of {most} bytes")]
    SegmentTooLong {
        /// The most bytes it does take.
        most: usize,
    },
    /// The device takes no more at the moment. The socket will be [ready](crate::Stack::next_udp_ready) when it does.
    #[error("the device takes no more at the moment")]
    Full,
}

impl From<SendError> for io::Error {
    fn from(error: SendError) -> io::Error {
        let kind = match error {
            SendError::Unreachable => io::ErrorKind::HostUnreachable,
            SendError::TooLong { .. } | SendError::SegmentTooLong { .. } => io::ErrorKind::InvalidInput,
            SendError::Full => io::ErrorKind::WouldBlock,
        };
        io::Error::new(kind, error)
    }
}

/// The sockets by port.
#[derive(Debug, Default)]
pub(crate) struct Sockets {
    bound: BTreeMap<u16, Socket>,
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

    pub(crate) fn close(&mut self, port: u16) {
        if let Some(socket) = self.bound.remove(&port)
            && socket.blocked
        {
            self.blocked.retain(|other| *other != port);
        }
        self.ready.retain(|other| *other != port);
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
        if !core::mem::replace(&mut socket.noted, true) {
            self.ready.push_back(port);
        }
        true
    }

    pub(crate) fn take(&mut self, port: u16) -> Option<Datagram> {
        let socket = self.bound.get_mut(&port)?;
        let datagram = socket.queue.pop_front()?;
        socket.charged -= charge_for(&datagram);
        Some(datagram)
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

/// Bytes of buffers that wait in one socket: Linux's rmem_default.
const QUEUE_BYTES: usize = 212_992;
/// A device's receive buffer for a packet of up to 1500 bytes.
const BUFFER_BYTES: usize = 2048;
