//! The agent: reads the kernel's netlink messages, and writes messages to the mirror.

use crate::channel::Channel;
use crate::kernel::{Family, KernelRead, NetlinkSocket};
use crate::sa::agent::SaAgentState;
use crate::tc::agent::FilterAgentState;
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
/// match Agent::for_filters(Path::new("/run/filters of a mirror"), None) {
///     Ok(agent) => eprintln!("the mirror has gone: {}", agent.run()),
///     Err(error) => assert_eq!(error.kind(), ErrorKind::NotFound, "no mirror listens there"),
/// }
/// ```
pub struct Agent {
    kernel: NetlinkSocket,
    channel: Channel,
    source: Box<dyn MirroredState>,
}

/// The kernel state that an agent mirrors: requests to the kernel, and messages for the mirror.
pub(crate) trait MirroredState {
    /// Returns the first message for a mirror.
    fn hello(&self) -> Zeroizing<Vec<u8>>;
    /// Returns the next request to the kernel.
    fn poll_request(&mut self) -> Option<Vec<u8>>;
    /// Schedules a new snapshot.
    fn request_snapshot(&mut self);
    /// Parses a datagram of the kernel, and passes messages for the mirror to `say`.
    fn handle_kernel(&mut self, datagram: &[u8], say: &mut WriteToMirror<'_>) -> io::Result<()>;
    /// Parses bytes from the mirror. Returns whether the mirror asks for a snapshot.
    fn handle_mirror(&mut self, bytes: &[u8]) -> io::Result<bool>;
    /// Tests whether only pending datagrams of the kernel delay the mirror's sync.
    fn is_synced_next(&self) -> bool {
        false
    }
    /// Returns the answer to the mirror's sync, if all of the kernel's messages were passed on.
    fn poll_synced(&mut self) -> Option<Zeroizing<Vec<u8>>> {
        None
    }
}

/// Writes a message to the mirror.
pub(crate) type WriteToMirror<'a> = dyn FnMut(&[u8]) -> io::Result<()> + 'a;

impl core::fmt::Debug for Agent {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Agent").finish_non_exhaustive()
    }
}

impl Agent {
    /// Returns an agent of SAs and policies. `path` is the mirror's socket, or a virtio-serial port. The process needs
    /// `CAP_NET_ADMIN`.
    ///
    /// # Errors
    /// Fails if nothing listens at `path`, or if this process may not see the kernel's SAs.
    pub fn for_sas(path: &Path) -> io::Result<Agent> {
        Agent::connect(path, Family::Xfrm, SA_GROUPS, Box::new(SaAgentState::default()))
    }

    /// Returns an agent of filters for the mirror at `path`. The agent writes the packets and bytes of each rule in the
    /// switch to the file `counters`, one line per rule.
    ///
    /// # Errors
    /// Fails if nothing listens at `path`.
    pub fn for_filters(path: &Path, counters: Option<&Path>) -> io::Result<Agent> {
        Agent::connect(path, Family::Route, FILTER_GROUPS, Box::new(FilterAgentState::new(counters)))
    }

    fn connect(path: &Path, family: Family, groups: u32, source: Box<dyn MirroredState>) -> io::Result<Agent> {
        let channel = Channel::connect(path)?;
        Ok(Agent { kernel: NetlinkSocket::connect(family, groups)?, channel, source })
    }

    /// Mirrors until the mirror closes the connection, or the kernel fails to answer. Returns the error.
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
            // If only the kernel's pending messages delay the mirror's sync, this call does not block.
            let [kernel, mirror] = self.kernel.wait(&self.channel, self.source.is_synced_next())?;
            if (!kernel || self.pass_on_kernel_messages()?)
                && let Some(synced) = self.source.poll_synced()
            {
                self.channel.write_all(&synced)?;
            }
            if mirror {
                self.handle_mirror_bytes()?;
            }
        }
    }

    /// Passes on the kernel's pending datagrams. Returns false if there may be more, because the kernel keeps sending.
    fn pass_on_kernel_messages(&mut self) -> io::Result<bool> {
        let Agent { kernel, channel, source } = self;
        for _ in 0..MAX_DATAGRAMS_IN_A_ROW {
            let heard = kernel.read_next(|heard| match heard {
                KernelRead::Datagram(datagram) => source.handle_kernel(datagram, &mut |bytes| channel.write_all(bytes)),
                // The kernel dropped messages, so only a new snapshot can restore the mirror's state.
                KernelRead::Lost => {
                    source.request_snapshot();
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

    fn handle_mirror_bytes(&mut self) -> io::Result<()> {
        let mut bytes = [0; 4096];
        let length = self.channel.read(&mut bytes)?;
        // A mirror that asks for a snapshot has lost its state, and expects the hello of a new stream.
        if self.source.handle_mirror(&bytes[..length])? {
            self.source.request_snapshot();
            self.channel.write_all(&self.source.hello())?;
        }
        Ok(())
    }
}

/// XFRM groups EXPIRE, SA and POLICY, as a bit mask.
const SA_GROUPS: u32 = 1 << 1 | 1 << 2 | 1 << 3;
/// ROUTE groups LINK and TC, as a bit mask.
const FILTER_GROUPS: u32 = 1 | 1 << 3;
/// Maximum number of datagrams handled before the mirror is served, so that a busy kernel cannot starve it.
const MAX_DATAGRAMS_IN_A_ROW: usize = 1024;
