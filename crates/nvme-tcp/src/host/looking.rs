//! Namespaces in doubt: looked at again by the admin queue, one after the other, while what is for them waits.
//!
//! ```text
//!                   .------ not now: after a pause -------.
//!                   v                                     |
//!   in doubt ---> its data ---> its descriptors ---> compared ---> the same: what is for it goes on
//!                   ^                                     |
//!                   '-- in doubt again meanwhile ---------'-----> another, or none: gone
//! ```
//!
//! NVM Express Base Specification 2.0, 5.17.2.1 and 5.17.2.3. A controller that does not tell of one namespace keeps no
//! other waiting; and it has [`path_wait`](super::HostConfig::path_wait) to do so.

use super::known::{Known, NAMESPACE, NAMESPACE_DESCRIPTORS, has_descriptors};
use super::serving::pause;
use crate::core::queue::{Buffer, Finished, Payload, Queue, Submission};
use crate::wire::{NamespaceData, NamespaceIds, Status, commands, identify};
use core::time::Duration;
use offload_base::Instant;
use std::collections::VecDeque;
use std::sync::Arc;

/// Namespaces that are in doubt, and how far the one is that is looked at.
#[derive(Debug)]
pub(super) struct Looking {
    has_descriptors: bool,
    patience: Duration,
    /// In doubt since an event whose log page has not been read.
    unnamed: Vec<Arc<Known>>,
    in_doubt: VecDeque<Doubt>,
    look: Option<Look>,
}

/// A namespace that is to be looked at.
#[derive(Debug)]
struct Doubt {
    known: Arc<Known>,
    /// Whether an event has told of it.
    is_told: bool,
    /// Not before that.
    due: Instant,
    /// Since when the controller has not told of it, and how often it was asked.
    unanswered: Option<(Instant, u32)>,
}

/// A namespace that is looked at.
#[derive(Debug)]
struct Look {
    doubt: Doubt,
    /// What it says of the namespace, and then of its identifiers.
    page: Option<Vec<u8>>,
    /// The command that is under way.
    asked: Option<u16>,
    /// It came into doubt again: what was read may be what it was before.
    is_stale: bool,
}

/// What there is under the number of a namespace that was in doubt.
#[derive(Debug)]
pub(super) struct Found {
    /// What was there before.
    pub(super) known: Arc<Known>,
    /// What is; `None`: nothing that can be used.
    pub(super) now: Option<(NamespaceData, NamespaceIds)>,
    /// Whether an event has told that it has changed.
    pub(super) is_told: bool,
}

impl Looking {
    /// All that are `known`, behind a new connection to a controller of `version`, which may take `patience` to tell.
    pub(super) fn new(version: u32, patience: Duration, known: Vec<Arc<Known>>) -> Looking {
        let in_doubt = known.into_iter().map(|known| Doubt::new(known, false)).collect();
        Looking { has_descriptors: has_descriptors(version), patience, unnamed: Vec::new(), in_doubt, look: None }
    }

    /// An event says that some of those that are `known` may have changed; which, its log page tells.
    pub(super) fn doubt(&mut self, known: Vec<Arc<Known>>) {
        self.unnamed = known;
        if let Some(look) = &mut self.look {
            look.is_stale = true;
        }
    }

    /// The log page is read: these have changed; if none is named, any may have. The others are as they were.
    pub(super) fn name(&mut self, namespaces: &[u32]) {
        for known in core::mem::take(&mut self.unnamed) {
            let is_named = namespaces.is_empty() || namespaces.contains(&known.id);
            let look = self.look.as_mut().map(|look| &mut look.doubt);
            match self.in_doubt.iter_mut().chain(look).find(|doubt| doubt.known.is_one_with(&known)) {
                Some(doubt) => doubt.is_told |= is_named,
                None if is_named => self.in_doubt.push_back(Doubt::new(known, true)),
                None => known.trust(),
            }
        }
    }

    /// Whether a place in the queue is to be kept for it.
    pub(super) fn wants_place(&self) -> bool {
        self.look.as_ref().map_or(!self.in_doubt.is_empty(), |look| look.asked.is_none())
    }

    /// When there is something to do, beside what the ends of commands bring.
    pub(super) fn next_event(&self) -> Option<Instant> {
        if self.look.is_some() { None } else { self.in_doubt.iter().map(|doubt| doubt.due).min() }
    }

    /// Sends what is to be sent next.
    pub(super) fn go_on(&mut self, queue: &mut Queue, now: Instant) {
        if self.look.is_none() {
            self.in_doubt.retain(|doubt| !doubt.known.is_gone());
            let next = self.in_doubt.iter().position(|doubt| doubt.due <= now);
            let doubt = next.and_then(|next| self.in_doubt.remove(next));
            self.look = doubt.map(|doubt| Look { doubt, page: None, asked: None, is_stale: false });
        }
        if let Some(look) = &mut self.look
            && look.asked.is_none()
        {
            let cns = if look.page.is_none() { NAMESPACE } else { NAMESPACE_DESCRIPTORS };
            let command = commands::identify(cns, look.doubt.known.id);
            let payload = Payload::Read(Buffer::zeroed(identify::LEN));
            look.asked = queue.submit(now, Submission { command, payload }).ok();
        }
    }

    /// Takes the end of a command, if it is one of these, and tells what was found, if anything.
    ///
    /// # Errors
    /// Gives back the end of a command that is not one of these.
    #[expect(clippy::result_large_err, reason = "the error is the end of a command, which moves by value either way")]
    pub(super) fn finish(&mut self, now: Instant, finished: Finished) -> Result<Option<Found>, Finished> {
        let Some(mut look) = self.look.take_if(|look| look.asked == Some(finished.id)) else { return Err(finished) };
        look.asked = None;
        let status = finished.completion.status;
        let answer = match finished.submission.payload {
            Payload::Read(buffer) if status.is_success() => buffer.to_vec(),
            // There is no such namespace, or no such thing to be told of it.
            _ if status.do_not_retry() || status.is_same_as(Status::INVALID_NAMESPACE) => Vec::new(),
            _ => return Ok(self.put_off(now, look.doubt)),
        };
        if look.is_stale {
            self.in_doubt.push_front(look.doubt);
            return Ok(None);
        }
        let (namespace, descriptors) = match look.page.take() {
            None if self.has_descriptors && !answer.is_empty() => {
                look.page = Some(answer);
                self.look = Some(look);
                return Ok(None);
            }
            None => (answer, Vec::new()),
            Some(namespace) => (namespace, answer),
        };
        let now = NamespaceData::parse(&namespace).map(|data| (data, NamespaceIds::parse(&namespace, &descriptors)));
        Ok(Some(Found { known: look.doubt.known, now, is_told: look.doubt.is_told }))
    }

    /// The controller cannot tell now. One that cannot for too long has no such namespace.
    fn put_off(&mut self, now: Instant, mut doubt: Doubt) -> Option<Found> {
        let (since, times) = doubt.unanswered.unwrap_or((now, 0));
        doubt.unanswered = Some((since, times.saturating_add(1)));
        doubt.due = now + pause(times);
        if doubt.due > since + self.patience {
            return Some(Found { known: doubt.known, now: None, is_told: doubt.is_told });
        }
        self.in_doubt.push_back(doubt);
        None
    }
}

impl Doubt {
    fn new(known: Arc<Known>, is_told: bool) -> Doubt {
        Doubt { known, is_told, due: Instant::ZERO, unanswered: None }
    }
}
