//! A netlink socket: the agent's connection to its kernel.

use crate::channel::Channel;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::net::netlink::{SocketAddrNetlink, XFRM};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, bind, recv, sendto, socket_with, sockopt,
};
use std::io;
use zeroize::{Zeroize, Zeroizing};

/// Family of a netlink socket.
///
/// See [`NetlinkSocket`] for an example.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// `NETLINK_ROUTE`: network devices, and the objects of `tc`.
    Route,
    /// `NETLINK_XFRM`: SAs and policies.
    Xfrm,
}

/// Result of a read from a kernel.
///
/// See [`NetlinkSocket`] for an example.
#[derive(Clone, Copy, Debug)]
pub enum KernelRead<'a> {
    /// A datagram.
    Datagram(&'a [u8]),
    /// Datagrams were dropped: request a new snapshot.
    Lost,
}

/// A netlink socket. Received datagrams are overwritten after use, because they may contain keys.
///
/// ```
/// use linux_mirror::netlink::message;
/// use linux_mirror::{Family, KernelRead, NetlinkSocket};
///
/// let mut kernel = NetlinkSocket::connect(Family::Route, 0)?;
/// assert!(kernel.read_next(|_| ())?.is_none(), "the kernel sends nothing unrequested");
/// kernel.send(&message(18, 0x301, 1, &[0; 16], &[]))?; // RTM_GETLINK, a dump
/// let heard = kernel.read_next(|heard| matches!(heard, KernelRead::Datagram(datagram) if datagram.len() > 16))?;
/// assert_eq!(heard, Some(true));
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct NetlinkSocket {
    socket: OwnedFd,
    datagram: Zeroizing<Vec<u8>>,
}

impl NetlinkSocket {
    /// Opens a socket that receives the messages of `groups`, a bit mask.
    ///
    /// # Errors
    /// Fails if this process may not open such a socket.
    pub fn connect(family: Family, groups: u32) -> io::Result<NetlinkSocket> {
        let protocol = match family {
            Family::Route => None, // its number is 0
            Family::Xfrm => Some(XFRM),
        };
        let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, protocol)?;
        // Many messages may arrive at once. Without the right to a large buffer, messages may be dropped, and a new
        // snapshot follows.
        let _ = sockopt::set_socket_recv_buffer_size_force(&socket, RECEIVE_BUFFER_BYTES)
            .or_else(|_| sockopt::set_socket_recv_buffer_size(&socket, RECEIVE_BUFFER_BYTES));
        bind(&socket, &SocketAddrNetlink::new(0, groups))?;
        Ok(NetlinkSocket { socket, datagram: Zeroizing::new(vec![0; MAX_DATAGRAM_BYTES]) })
    }

    /// Sends a message to the kernel.
    ///
    /// # Errors
    /// Fails if the kernel does not accept the message.
    pub fn send(&self, request: &[u8]) -> io::Result<()> {
        sendto(&self.socket, request, SendFlags::empty(), &SocketAddrNetlink::new(0, 0))?;
        Ok(())
    }

    /// Passes the kernel's next datagram to `take`. Returns `None` if none is available now.
    ///
    /// # Errors
    /// Fails if the socket fails.
    pub fn read_next<R>(&mut self, take: impl FnOnce(KernelRead<'_>) -> R) -> io::Result<Option<R>> {
        let length = match recv(&self.socket, &mut self.datagram[..], RecvFlags::TRUNC | RecvFlags::DONTWAIT) {
            Ok((_, length)) if length <= MAX_DATAGRAM_BYTES => length,
            // The kernel dropped datagrams, or sent one longer than any real one.
            Ok(_) | Err(Errno::NOBUFS) => return Ok(Some(take(KernelRead::Lost))),
            Err(Errno::AGAIN | Errno::INTR) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let taken = take(KernelRead::Datagram(&self.datagram[..length]));
        // The datagram may contain keys, and the buffer lives as long as the socket.
        self.datagram[..length].zeroize();
        Ok(Some(taken))
    }

    /// Waits for input from the kernel or the mirror, and returns which of the two have any. `at_once` does not block.
    ///
    /// # Errors
    /// Fails if the system call fails.
    pub fn wait(&self, mirror: &Channel, at_once: bool) -> io::Result<[bool; 2]> {
        let mut ends = [PollFd::new(&self.socket, PollFlags::IN), PollFd::new(mirror, PollFlags::IN)];
        match poll(&mut ends, at_once.then_some(&Timespec::default())) {
            Ok(_) => Ok([0, 1].map(|end: usize| !ends[end].revents().is_empty())),
            Err(Errno::INTR) => Ok([false; 2]),
            Err(error) => Err(error.into()),
        }
    }
}

/// Maximum length of a kernel's datagram: a dump fills at most 32 KiB.
const MAX_DATAGRAM_BYTES: usize = 1 << 16;
/// Requested size of the receive buffer in bytes.
const RECEIVE_BUFFER_BYTES: usize = 8 << 20;
