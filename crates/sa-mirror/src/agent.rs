//! The kernel's side: an agent that reads netlink, and writes what it finds to the mirror.

use crate::change::{Change, Report};
use crate::channel::Channel;
use crate::frame::{Decoder, Message, encode};
use crate::kernel::{Family, Heard, Kernel};
use crate::watch::Watcher;
use std::io;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

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
    kernel: Kernel,
    channel: Channel,
    watcher: Watcher,
    decoder: Decoder,
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
        let kernel = Kernel::connect(Family::Xfrm, GROUPS)?;
        Ok(Agent { kernel, channel, watcher: Watcher::new(), decoder: Decoder::new() })
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
                self.kernel.send(&request)?;
            }
            // If the mirror waits for what the kernel has to say, only a look.
            let [kernel, mirror] = self.kernel.wait(&self.channel, self.watcher.is_synced_next())?;
            if !kernel || self.hear_all_of_kernel()? {
                self.say_synced()?;
            }
            if mirror {
                self.hear_mirror()?;
            }
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
        let (watcher, mut changes): (_, Vec<Change>) = (&mut self.watcher, Vec::new());
        let heard = self.kernel.hear(|heard| match heard {
            Heard::Datagram(datagram) => watcher.handle_datagram(now(), datagram, |change| changes.push(change)),
            Heard::Lost => {
                watcher.ask_again();
                Ok(())
            }
        })?;
        let Some(handled) = heard else { return Ok(false) };
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
/// A kernel that never falls silent does not keep the mirror from being heard.
const MOST_IN_A_ROW: usize = 1024;
