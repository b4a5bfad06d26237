//! The kernel's side: an agent that reads netlink, and writes what it finds to the mirror.

use crate::change::{Change, Report};
use crate::channel::Channel;
use crate::frame::{Decoder, Message, encode};
use crate::watch::Watcher;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::netlink::{SocketAddrNetlink, XFRM};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, bind, recv, sendto, socket_with, sockopt,
};
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};
use zeroize::{Zeroize, Zeroizing};

/// An agent between a kernel and a mirror. It needs `CAP_NET_ADMIN`.
///
/// ```
/// use sa_mirror::Agent;
/// use std::io::ErrorKind;
/// use std::path::Path;
///
/// match Agent::connect(Path::new("/run/sas of a mirror")) {
///     Ok(agent) => eprintln!("the mirror has gone: {}", agent.run()),
///     Err(error) => assert_eq!(error.kind(), ErrorKind::NotFound, "nobody is there"),
/// }
/// ```
pub struct Agent {
    kernel: OwnedFd,
    channel: Channel,
    watcher: Watcher,
    decoder: Decoder,
    /// What the kernel said, and what the mirror is told: both hold keys, and are overwritten.
    datagram: Zeroizing<Vec<u8>>,
}

impl core::fmt::Debug for Agent {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Agent").finish_non_exhaustive()
    }
}

impl Agent {
    /// An agent for the mirror that listens at `path`, or is at the other end of the virtio-serial port there.
    ///
    /// # Errors
    /// If nobody is there, or this process may not see a kernel's SAs.
    pub fn connect(path: &Path) -> io::Result<Agent> {
        let channel = Channel::connect(path)?;
        let kernel = socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, Some(XFRM))?;
        // Many SAs may come at a time. Without the right to so much, what is lost is asked for again.
        let _as_much_as_it_may = sockopt::set_socket_recv_buffer_size_force(&kernel, RECEIVE_BUFFER)
            .or_else(|_| sockopt::set_socket_recv_buffer_size(&kernel, RECEIVE_BUFFER));
        bind(&kernel, &SocketAddrNetlink::new(0, GROUPS))?;
        let datagram = Zeroizing::new(vec![0; DATAGRAM]);
        Ok(Agent { kernel, channel, watcher: Watcher::new(), decoder: Decoder::new(), datagram })
    }

    /// Mirrors until the other end goes, or the kernel gives no SAs: the error says so.
    pub fn run(mut self) -> io::Error {
        match self.mirror() {
            Ok(never) => match never {},
            Err(error) => error,
        }
    }

    fn mirror(&mut self) -> io::Result<core::convert::Infallible> {
        self.say(&Message::hello())?;
        loop {
            while let Some(request) = self.watcher.poll_request() {
                sendto(&self.kernel, &request, SendFlags::empty(), &SocketAddrNetlink::new(0, 0))?;
            }
            let [kernel, mirror] = self.ready()?;
            if !kernel || self.hear_all_of_kernel()? {
                self.say_synced()?;
            }
            if mirror {
                self.hear_mirror()?;
            }
        }
    }

    /// Waits for kernel or mirror: which of them has something to say. If the mirror waits for what the kernel has to say, looks only.
    fn ready(&self) -> io::Result<[bool; 2]> {
        let mut ends = [PollFd::new(&self.kernel, PollFlags::IN), PollFd::new(&self.channel, PollFlags::IN)];
        let at_once = Timespec::default();
        match poll(&mut ends, self.watcher.is_synced_next().then_some(&at_once)) {
            Ok(_) => Ok([0, 1].map(|end: usize| !ends[end].revents().is_empty())),
            Err(Errno::INTR) => Ok([false; 2]),
            Err(error) => Err(error.into()),
        }
    }

    /// Takes what the kernel has told; `false`: there may be more, for it does not fall silent.
    fn hear_all_of_kernel(&mut self) -> io::Result<bool> {
        for _ in 0..MOST_IN_A_ROW {
            if !self.hear_kernel()? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Everything that the kernel has told was passed on.
    fn say_synced(&mut self) -> io::Result<()> {
        match self.watcher.poll_synced() {
            Some(number) => self.say(&Message::Synced(number)),
            None => Ok(()),
        }
    }

    /// Takes a datagram of the kernel's; `false`: there was none.
    fn hear_kernel(&mut self) -> io::Result<bool> {
        let length = match recv(&self.kernel, &mut self.datagram[..], RecvFlags::TRUNC | RecvFlags::DONTWAIT) {
            Ok((_, length)) if length <= DATAGRAM => length,
            // Dropped by the kernel, or longer than anything that it makes.
            Ok(_) | Err(Errno::NOBUFS) => {
                self.watcher.ask_again();
                return Ok(true);
            }
            Err(Errno::AGAIN | Errno::INTR) => return Ok(false),
            Err(error) => return Err(error.into()),
        };
        let mut changes: Vec<Change> = Vec::new();
        let handled = self.watcher.handle_datagram(now(), &self.datagram[..length], |change| changes.push(change));
        self.datagram[..length].zeroize();
        for change in changes {
            self.say(&Message::Change(change))?;
        }
        handled.map_err(io::Error::other).map(|()| true)
    }

    fn hear_mirror(&mut self) -> io::Result<()> {
        let mut bytes = [0; 4096];
        let length = self.channel.read(&mut bytes)?;
        let (mut asked, mut sync, mut reports): (bool, Option<u32>, Vec<Report>) = Default::default();
        self.decoder.decode(&bytes[..length], |message| match message {
            Ok(Message::Ask(_)) => asked = true,
            Ok(Message::Report(report)) => reports.push(report),
            Ok(Message::Sync(number)) => sync = Some(number),
            // The end of what was for another agent.
            _ => {}
        });
        let now = now();
        reports.into_iter().for_each(|report| self.watcher.handle_report(now, report));
        if asked {
            self.watcher.ask_again();
            self.say(&Message::hello())?;
        }
        // What the kernel told before the number was sent is in the socket's queue by now.
        sync.into_iter().for_each(|number| self.watcher.sync(number));
        Ok(())
    }

    fn say(&mut self, message: &Message) -> io::Result<()> {
        self.channel.write_all(&encode(message))
    }
}

/// Seconds since 1970.
fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs())
}

/// The groups EXPIRE, SA and POLICY, a bit each.
const GROUPS: u32 = 1 << 1 | 1 << 2 | 1 << 3;
/// No message of the kernel's is longer: a dump fills at most 32 KiB.
const DATAGRAM: usize = 1 << 16;
const RECEIVE_BUFFER: usize = 8 << 20;
/// A kernel that never falls silent does not keep the mirror from being heard.
const MOST_IN_A_ROW: usize = 1024;
