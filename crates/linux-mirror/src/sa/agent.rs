//! The agent's side for SAs and policies.

use crate::agent::{MirroredState, WriteToMirror};
use crate::sa::change::{SaChange, SaReport};
use crate::sa::frame::{FrameDecoder, Message, encode};
use crate::sa::watch::SaWatcher;
use std::io;
use std::time::{SystemTime, UNIX_EPOCH};
use zeroize::Zeroizing;

/// The kernel's SAs and policies, as mirrored by an agent.
#[derive(Default)]
pub(crate) struct SaAgentState {
    watcher: SaWatcher,
    decoder: FrameDecoder,
}

impl MirroredState for SaAgentState {
    fn hello(&self) -> Zeroizing<Vec<u8>> {
        encode(&Message::hello())
    }

    fn poll_request(&mut self) -> Option<Vec<u8>> {
        self.watcher.poll_request()
    }

    fn request_snapshot(&mut self) {
        self.watcher.request_snapshot();
    }

    fn handle_kernel(&mut self, datagram: &[u8], say: &mut WriteToMirror<'_>) -> io::Result<()> {
        // Changes are collected first, because the watcher's callback cannot return the error of a write.
        let mut changes: Vec<SaChange> = Vec::new();
        let handled = self.watcher.handle_datagram(now(), datagram, |change| changes.push(change));
        for change in changes {
            say(&encode(&Message::Change(change)))?;
        }
        handled.map_err(io::Error::other)
    }

    fn handle_mirror(&mut self, bytes: &[u8]) -> io::Result<bool> {
        let (mut asked, mut sync, mut reports): (bool, Option<u32>, Vec<SaReport>) = Default::default();
        self.decoder.decode(bytes, |message| match message {
            Ok(Message::Ask(_)) => asked = true,
            Ok(Message::Report(report)) => reports.push(report),
            Ok(Message::Sync(number)) => sync = Some(number),
            // The end of a message for a previous agent.
            _ => {}
        });
        let now = now();
        reports.into_iter().for_each(|report| self.watcher.handle_report(now, report));
        // All messages that the kernel sent before the mirror's sync are in the socket's queue by now.
        sync.into_iter().for_each(|number| self.watcher.sync(number));
        Ok(asked)
    }

    fn is_synced_next(&self) -> bool {
        self.watcher.is_synced_next()
    }

    fn poll_synced(&mut self) -> Option<Zeroizing<Vec<u8>>> {
        self.watcher.poll_synced().map(|number| encode(&Message::Synced(number)))
    }
}

/// Returns the seconds since 1970.
fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs())
}
