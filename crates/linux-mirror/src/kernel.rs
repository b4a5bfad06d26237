//! An agent's way to its kernel: a netlink socket.

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

/// What a netlink socket is about.
///
/// See [`Kernel`] for an example.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// `NETLINK_ROUTE`: network devices, and what `tc` makes.
    Route,
    /// `NETLINK_XFRM`: SAs and policies.
    Xfrm,
}

/// What was heard of a kernel.
///
/// See [`Kernel`] for an example.
#[derive(Clone, Copy, Debug)]
pub enum Heard<'a> {
    /// A datagram.
    Datagram(&'a [u8]),
    /// The kernel dropped some: ask it for everything again.
    Lost,
}

/// A netlink socket. What was heard is overwritten when it has been looked at, for it may hold keys.
///
/// ```
/// use linux_mirror::netlink::message;
/// use linux_mirror::{Family, Heard, Kernel};
///
/// let mut kernel = Kernel::connect(Family::Route, 0)?;
/// assert!(kernel.hear(|_| ())?.is_none(), "it says nothing unasked");
/// kernel.send(&message(18, 0x301, 1, &[0; 16], &[]))?; // RTM_GETLINK, a dump
/// let heard = kernel.hear(|heard| matches!(heard, Heard::Datagram(datagram) if datagram.len() > 16))?;
/// assert_eq!(heard, Some(true));
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct Kernel {
    socket: OwnedFd,
    datagram: Zeroizing<Vec<u8>>,
}

impl Kernel {
    /// A socket that hears of these groups, a bit each.
    ///
    /// # Errors
    /// If this process may not have one.
    pub fn connect(family: Family, groups: u32) -> io::Result<Kernel> {
        let protocol = match family {
            Family::Route => None, // its number is 0
            Family::Xfrm => Some(XFRM),
        };
        let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, protocol)?;
        // Much may come at a time. Without the right to so much, what is lost is asked for again.
        let _as_much_as_it_may = sockopt::set_socket_recv_buffer_size_force(&socket, RECEIVE_BUFFER)
            .or_else(|_| sockopt::set_socket_recv_buffer_size(&socket, RECEIVE_BUFFER));
        bind(&socket, &SocketAddrNetlink::new(0, groups))?;
        Ok(Kernel { socket, datagram: Zeroizing::new(vec![0; DATAGRAM]) })
    }

    /// Asks the kernel for something, or tells it something.
    ///
    /// # Errors
    /// If it does not take that.
    pub fn send(&self, request: &[u8]) -> io::Result<()> {
        sendto(&self.socket, request, SendFlags::empty(), &SocketAddrNetlink::new(0, 0))?;
        Ok(())
    }

    /// Has `take` look at what the kernel says next; `None`: it says nothing now.
    ///
    /// # Errors
    /// If the socket fails.
    pub fn hear<R>(&mut self, take: impl FnOnce(Heard<'_>) -> R) -> io::Result<Option<R>> {
        let length = match recv(&self.socket, &mut self.datagram[..], RecvFlags::TRUNC | RecvFlags::DONTWAIT) {
            Ok((_, length)) if length <= DATAGRAM => length,
            // Dropped by the kernel, or longer than anything that it makes.
            Ok(_) | Err(Errno::NOBUFS) => return Ok(Some(take(Heard::Lost))),
            Err(Errno::AGAIN | Errno::INTR) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let taken = take(Heard::Datagram(&self.datagram[..length]));
        self.datagram[..length].zeroize();
        Ok(Some(taken))
    }

    /// Waits for the kernel or the mirror: which of them has something to say. `at_once`: only looks.
    ///
    /// # Errors
    /// If the system does not let it wait.
    pub fn wait(&self, mirror: &Channel, at_once: bool) -> io::Result<[bool; 2]> {
        let mut ends = [PollFd::new(&self.socket, PollFlags::IN), PollFd::new(mirror, PollFlags::IN)];
        match poll(&mut ends, at_once.then_some(&Timespec::default())) {
            Ok(_) => Ok([0, 1].map(|end: usize| !ends[end].revents().is_empty())),
            Err(Errno::INTR) => Ok([false; 2]),
            Err(error) => Err(error.into()),
        }
    }
}

/// No message of a kernel's is longer: a dump fills at most 32 KiB.
const DATAGRAM: usize = 1 << 16;
const RECEIVE_BUFFER: usize = 8 << 20;
