//! The kernel's side: an agent that reads netlink, and writes what it finds to the mirror.

use crate::channel::Channel;
use crate::kernel::{Family, Heard, Kernel};
use crate::sa::agent::Sas;
use crate::tc::agent::Filters;
use core::convert::Infallible;
use std::io;
use std::path::Path;
use zeroize::Zeroizing;

/// An agent between a kernel and a mirror.
///
/// ```
/// use linux_mirror::Agent;
/// use std::io::ErrorKind;
/// use std::path::Path;
///
/// match Agent::of_filters(Path::new("/run/filters of a mirror"), None) {
///     Ok(agent) => eprintln!("the mirror has gone: {}", agent.run()),
///     Err(error) => assert_eq!(error.kind(), ErrorKind::NotFound, "nobody is there"),
/// }
/// ```
pub struct Agent {
    kernel: Kernel,
    channel: Channel,
    source: Box<dyn Source>,
}

/// The kernel state that an agent mirrors: its questions to the kernel, and its messages for the mirror.
pub(crate) trait Source {
    /// Returns the first message for a mirror.
    fn hello(&self) -> Zeroizing<Vec<u8>>;
    /// Returns the next message for the kernel.
    fn poll_request(&mut self) -> Option<Vec<u8>>;
    /// Asks the kernel for everything again.
    fn ask_again(&mut self);
    /// Parses a datagram of the kernel, and has `say` write messages for the mirror.
    fn handle_kernel(&mut self, datagram: &[u8], say: &mut Say<'_>) -> io::Result<()>;
    /// Parses bytes of the mirror; returns whether the mirror asks for everything.
    fn handle_mirror(&mut self, bytes: &[u8]) -> io::Result<bool>;
    /// Tests whether the mirror waits for nothing but the rest of the kernel's messages.
    fn is_synced_next(&self) -> bool {
        false
    }
    /// Returns the message that all of the kernel's messages were passed on, if the mirror waits for that.
    fn poll_synced(&mut self) -> Option<Zeroizing<Vec<u8>>> {
        None
    }
}

/// Writes a message to the mirror.
pub(crate) type Say<'a> = dyn FnMut(&[u8]) -> io::Result<()> + 'a;

impl core::fmt::Debug for Agent {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Agent").finish_non_exhaustive()
    }
}

impl Agent {
    /// Returns an agent of SAs and policies for the mirror that listens at `path`, or is at the other end of the virtio-serial port there.
    /// The process needs `CAP_NET_ADMIN`.
    ///
    /// # Errors
    /// If nobody is there, or this process may not see a kernel's SAs.
    pub fn of_sas(path: &Path) -> io::Result<Agent> {
        Agent::connect(path, Family::Xfrm, SA_GROUPS, Box::new(Sas::default()))
    }

    /// Returns an agent of filters for the mirror at `path`, likewise. The packets and bytes of each rule in the switch are written to
    /// `counters`, a line each.
    ///
    /// # Errors
    /// If nobody is there.
    pub fn of_filters(path: &Path, counters: Option<&Path>) -> io::Result<Agent> {
        Agent::connect(path, Family::Route, FILTER_GROUPS, Box::new(Filters::new(counters)))
    }

    fn connect(path: &Path, family: Family, groups: u32, source: Box<dyn Source>) -> io::Result<Agent> {
        let channel = Channel::connect(path)?;
        Ok(Agent { kernel: Kernel::connect(family, groups)?, channel, source })
    }

    /// Mirrors until the other end goes, or the kernel refuses its answers: the error says so.
    pub fn run(mut self) -> io::Error {
        match self.mirror() {
            Ok(never) => match never {},
            Err(error) => error,
        }
    }

    fn mirror(&mut self) -> io::Result<Infallible> {
        self.channel.write_all(&self.source.hello())?;
        loop {
            while let Some(request) = self.source.poll_request() {
                self.kernel.send(&request)?;
            }
            // If the mirror waits for the kernel's messages, only a look.
            let [kernel, mirror] = self.kernel.wait(&self.channel, self.source.is_synced_next())?;
            if (!kernel || self.hear_all_of_kernel()?)
                && let Some(synced) = self.source.poll_synced()
            {
                self.channel.write_all(&synced)?;
            }
            if mirror {
                self.hear_mirror()?;
            }
        }
    }

    /// Passes on the kernel's datagrams; `false`: there may be more, for it does not fall silent.
    fn hear_all_of_kernel(&mut self) -> io::Result<bool> {
        let Agent { kernel, channel, source } = self;
        for _ in 0..MAX_IN_A_ROW {
            let heard = kernel.hear(|heard| match heard {
                Heard::Datagram(datagram) => source.handle_kernel(datagram, &mut |bytes| channel.write_all(bytes)),
                Heard::Lost => {
                    source.ask_again();
                    Ok(())
                }
            })?;
            match heard {
                Some(handled) => handled?,
                None => return Ok(true),
            }
        }
        Ok(false)
    }

    fn hear_mirror(&mut self) -> io::Result<()> {
        let mut bytes = [0; 4096];
        let length = self.channel.read(&mut bytes)?;
        if self.source.handle_mirror(&bytes[..length])? {
            self.source.ask_again();
            self.channel.write_all(&self.source.hello())?;
        }
        Ok(())
    }
}

/// The groups EXPIRE, SA and POLICY of XFRM, a bit each.
const SA_GROUPS: u32 = 1 << 1 | 1 << 2 | 1 << 3;
/// The groups LINK and TC of ROUTE.
const FILTER_GROUPS: u32 = 1 | 1 << 3;
/// A kernel that never falls silent does not keep the mirror from being heard.
const MAX_IN_A_ROW: usize = 1024;
