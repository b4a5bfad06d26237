//! Inspection of namespaces in doubt by the admin queue, one after the other. Commands for them wait meanwhile.
//!
//! ```text
//!                   .------ not now: after a pause -------.
//!                   v                                     |
//!   in doubt ---> its data ---> its descriptors ---> compared ---> the same: commands continue
//!                   ^                                     |
//!                   '-- in doubt again meanwhile ---------'-----> another, or none: gone
//! ```
//!
//! NVM Express Base Specification 2.0, 5.17.2.1 and 5.17.2.3. A controller that cannot describe one namespace does not
//! delay the other namespaces. After [`path_wait`](super::HostConfig::path_wait), the namespace counts as gone.

use super::inspected_namespace::{InspectedNamespace, NAMESPACE, NAMESPACE_DESCRIPTORS, has_descriptors};
use super::queue_service::pause;
use crate::core::queue::{Buffer, CommandData, FinishedCommand, Queue, Submission};
use crate::wire::{NamespaceData, NamespaceIds, Status, commands, identify};
use core::time::Duration;
use offload_base::Instant;
use std::collections::VecDeque;
use std::sync::Arc;

/// Namespaces in doubt, and the inspection in progress.
#[derive(Debug)]
pub(super) struct NamespaceInspections {
    has_descriptors: bool,
    patience: Duration,
    /// Namespaces in doubt because of an event whose log page has not been read.
    unnamed: Vec<Arc<InspectedNamespace>>,
    in_doubt: VecDeque<NamespaceDoubt>,
    look: Option<OngoingInspection>,
}

/// A namespace to inspect.
#[derive(Debug)]
struct NamespaceDoubt {
    known: Arc<InspectedNamespace>,
    /// Whether an event has named it.
    is_told: bool,
    /// Earliest time of the inspection.
    due: Instant,
    /// Time of the first failed attempt, and number of attempts. `None` before the first.
    unanswered: Option<(Instant, u32)>,
}

/// The inspection in progress.
#[derive(Debug)]
struct OngoingInspection {
    doubt: NamespaceDoubt,
    /// The Identify Namespace data, once read.
    page: Option<Vec<u8>>,
    /// Identifier of the outstanding command.
    asked: Option<u16>,
    /// Whether the namespace came into doubt again, so that the data read may be obsolete.
    is_stale: bool,
}

/// Result of an inspection.
#[derive(Debug)]
pub(super) struct InspectionResult {
    /// The namespace before.
    pub(super) known: Arc<InspectedNamespace>,
    /// The namespace now. `None` if it does not exist or cannot be used.
    pub(super) now: Option<(NamespaceData, NamespaceIds)>,
    /// Whether an event has reported the change.
    pub(super) is_told: bool,
}

impl NamespaceInspections {
    /// Creates the inspection of all `known` namespaces after a connect to a controller of `version`.
    pub(super) fn new(version: u32, patience: Duration, known: Vec<Arc<InspectedNamespace>>) -> NamespaceInspections {
        let in_doubt = known.into_iter().map(|known| NamespaceDoubt::new(known, false)).collect();
        NamespaceInspections {
            has_descriptors: has_descriptors(version),
            patience,
            unnamed: Vec::new(),
            in_doubt,
            look: None,
        }
    }

    /// Puts `known` in doubt: an event reported changes, and its log page with the identifiers is not read yet.
    pub(super) fn doubt(&mut self, known: Vec<Arc<InspectedNamespace>>) {
        self.unnamed = known;
        if let Some(look) = &mut self.look {
            look.is_stale = true;
        }
    }

    /// Handles the log page: these namespaces have changed, or any if the list is empty. The others are confirmed.
    pub(super) fn name(&mut self, namespaces: &[u32]) {
        for known in core::mem::take(&mut self.unnamed) {
            // An empty list means that the log page has overflowed.
            let is_named = namespaces.is_empty() || namespaces.contains(&known.id);
            let look = self.look.as_mut().map(|look| &mut look.doubt);
            match self.in_doubt.iter_mut().chain(look).find(|doubt| doubt.known.is_same_namespace(&known)) {
                Some(doubt) => doubt.is_told |= is_named,
                None if is_named => self.in_doubt.push_back(NamespaceDoubt::new(known, true)),
                None => known.confirm(),
            }
        }
    }

    /// Returns whether a slot of the queue has to be reserved.
    pub(super) fn needs_slot(&self) -> bool {
        self.look.as_ref().map_or(!self.in_doubt.is_empty(), |look| look.asked.is_none())
    }

    /// Returns when the next inspection is due; `None` if one is in progress.
    pub(super) fn next_event(&self) -> Option<Instant> {
        if self.look.is_some() { None } else { self.in_doubt.iter().map(|doubt| doubt.due).min() }
    }

    /// Sends the next command, if one is due.
    pub(super) fn send_next(&mut self, queue: &mut Queue, now: Instant) {
        // One inspection at a time, so that a single reserved slot of the queue is enough.
        if self.look.is_none() {
            self.in_doubt.retain(|doubt| !doubt.known.is_gone());
            let next = self.in_doubt.iter().position(|doubt| doubt.due <= now);
            let doubt = next.and_then(|next| self.in_doubt.remove(next));
            self.look = doubt.map(|doubt| OngoingInspection { doubt, page: None, asked: None, is_stale: false });
        }
        if let Some(look) = &mut self.look
            && look.asked.is_none()
        {
            let cns = if look.page.is_none() { NAMESPACE } else { NAMESPACE_DESCRIPTORS };
            let command = commands::identify(cns, look.doubt.known.id);
            let payload = CommandData::Read(Buffer::zeroed(identify::LEN));
            look.asked = queue.submit(now, Submission { command, payload }).ok();
        }
    }

    /// Takes a completed command of this module. Returns the result if the inspection is complete.
    ///
    /// # Errors
    /// Returns a command of others unchanged.
    #[expect(clippy::result_large_err, reason = "the error is the end of a command, which moves by value either way")]
    pub(super) fn finish(
        &mut self,
        now: Instant,
        finished: FinishedCommand,
    ) -> Result<Option<InspectionResult>, FinishedCommand> {
        let Some(mut look) = self.look.take_if(|look| look.asked == Some(finished.id)) else { return Err(finished) };
        look.asked = None;
        let status = finished.completion.status;
        let answer = match finished.submission.payload {
            CommandData::Read(buffer) if status.is_success() => buffer.to_vec(),
            // The namespace does not exist, or the controller does not support this structure.
            _ if status.do_not_retry() || status.is_same_as(Status::INVALID_NAMESPACE) => Vec::new(),
            _ => return Ok(self.postpone(now, look.doubt)),
        };
        // The data may have been read before the latest change.
        if look.is_stale {
            self.in_doubt.push_front(look.doubt);
            return Ok(None);
        }
        // Descriptors are read second, and only if the namespace exists.
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
        Ok(Some(InspectionResult { known: look.doubt.known, now, is_told: look.doubt.is_told }))
    }

    /// Tries again later. After too long, the namespace counts as gone.
    fn postpone(&mut self, now: Instant, mut doubt: NamespaceDoubt) -> Option<InspectionResult> {
        let (since, times) = doubt.unanswered.unwrap_or((now, 0));
        doubt.unanswered = Some((since, times.saturating_add(1)));
        doubt.due = now + pause(times);
        if doubt.due > since + self.patience {
            return Some(InspectionResult { known: doubt.known, now: None, is_told: doubt.is_told });
        }
        self.in_doubt.push_back(doubt);
        None
    }
}

impl NamespaceDoubt {
    fn new(known: Arc<InspectedNamespace>, is_told: bool) -> NamespaceDoubt {
        NamespaceDoubt { known, is_told, due: Instant::ZERO, unanswered: None }
    }
}
