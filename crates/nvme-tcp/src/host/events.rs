//! Asynchronous events of a controller: requested, read from the log page, and delivered to callers.
//!
//! ```text
//!   Asking --- request sent --> Waiting --- event --> Found --- its log page asked for --> Reading --- told --> Asking
//! ```
//!
//! NVM Express Base Specification 2.0, 5.2: an event of a type is reported once, until its log page is read.

use crate::core::queue::{Buffer, CommandData, FinishedCommand, Queue, Submission};
use crate::wire::{ControllerData, Notices, commands, page, parse_namespace_list};
use core::task::Waker;
use offload_base::Instant;
use std::collections::VecDeque;

/// An event that the controller reported.
///
/// See [`Host::next_event`](super::Host::next_event) for an example.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum HostEvent {
    /// These namespaces were added, removed or changed. If the list is empty, more have changed than the controller can
    /// list.
    NamespacesChanged(Vec<u32>),
    /// The discovery log changed.
    DiscoveryChanged,
    /// Any other event. Its log page was read, to enable further events of this type, and discarded.
    Other {
        /// Asynchronous Event Type: 0 error, 1 SMART, 2 notice, 6 I/O command set, 7 vendor.
        kind: u8,
        /// Asynchronous Event Information.
        information: u8,
        /// The log page about it.
        page: u8,
    },
}

/// The events that no caller has taken yet.
#[derive(Debug, Default)]
pub(super) struct StoredEvents {
    events: VecDeque<HostEvent>,
    pub(super) waiting: Vec<Waker>,
}

/// Meaning of a completed event command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum EventResult {
    /// No event to report.
    Nothing,
    /// Namespaces have changed. The log page with their identifiers is still to be read.
    NamespacesMayDiffer,
    /// This event has happened.
    Event(HostEvent),
}

/// State of event handling on the admin queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum EventState {
    /// The controller reports no events, or not any more.
    #[default]
    Off,
    Asking,
    /// An Asynchronous Event Request with this identifier is outstanding.
    Waiting(u16),
    /// The request completed with this result; its log page is to be read.
    Found(u32),
    /// A Get Log Page with this identifier is outstanding, for this result.
    Reading(u16, u32),
}

/// Returns the supported notices that the host enables.
pub(super) fn requested_notices(controller: &ControllerData) -> Notices {
    controller.notices.and(Notices(Notices::NAMESPACES.0 | Notices::DISCOVERY.0))
}

impl StoredEvents {
    pub(super) fn take(&mut self) -> Option<HostEvent> {
        self.events.pop_front()
    }

    /// Stores an event. Duplicates are dropped, and so is the oldest event if there are too many.
    pub(super) fn keep(&mut self, event: HostEvent) {
        if !self.events.contains(&event) {
            // Nobody may ever take events, so the oldest one makes room.
            if self.events.len() == UNTOLD {
                self.events.pop_front();
            }
            self.events.push_back(event);
        }
        self.waiting.drain(..).for_each(Waker::wake);
    }
}

impl EventState {
    /// Returns whether a slot of the queue has to be reserved for the next command.
    pub(super) fn needs_slot(self) -> bool {
        matches!(self, EventState::Asking | EventState::Found(_))
    }

    /// Sends the next command, if one is due.
    pub(super) fn send_next(&mut self, queue: &mut Queue, now: Instant) {
        match *self {
            EventState::Asking => {
                let submission = Submission { command: commands::event_request(), payload: CommandData::None };
                // Without room, the state stays the same, and a later round tries again.
                if let Ok(id) = queue.submit_open_ended(submission) {
                    *self = EventState::Waiting(id);
                }
            }
            EventState::Found(result) => {
                let command = commands::log_page_of_event((result >> 16) as u8, LOG_BYTES);
                let payload = CommandData::Read(Buffer::zeroed(LOG_BYTES as usize));
                if let Ok(id) = queue.submit(now, Submission { command, payload }) {
                    *self = EventState::Reading(id, result);
                }
            }
            EventState::Off | EventState::Waiting(_) | EventState::Reading(..) => {}
        }
    }

    /// Takes a completed command of this module and returns its meaning.
    ///
    /// # Errors
    /// Returns a command of others unchanged.
    #[expect(clippy::result_large_err, reason = "the error is the end of a command, which moves by value either way")]
    pub(super) fn finish(&mut self, finished: FinishedCommand) -> Result<EventResult, FinishedCommand> {
        match *self {
            EventState::Waiting(id) if id == finished.id => {
                let completion = finished.completion;
                // A controller that rejects the request once would always reject it.
                if !completion.status.is_success() {
                    *self = EventState::Off;
                    return Ok(EventResult::Nothing);
                }
                let result = completion.result as u32;
                *self = EventState::Found(result);
                Ok(if is_about_namespaces(result) { EventResult::NamespacesMayDiffer } else { EventResult::Nothing })
            }
            EventState::Reading(id, result) if id == finished.id => {
                *self = EventState::Asking;
                let read = finished.completion.status.is_success();
                let log = match finished.submission.payload {
                    CommandData::Read(buffer) if read => buffer.to_vec(),
                    _ => Vec::new(),
                };
                Ok(EventResult::Event(event(result, &log)))
            }
            _ => Err(finished),
        }
    }
}

/// Returns whether the request's `result` reports changed namespaces.
fn is_about_namespaces(result: u32) -> bool {
    (result as u8 & 0b111, (result >> 8) as u8) == (NOTICE, NAMESPACE_ATTRIBUTES)
}

/// Decodes the event from the request's `result` and its log page.
fn event(result: u32, log: &[u8]) -> HostEvent {
    let (kind, information, page) = (result as u8 & 0b111, (result >> 8) as u8, (result >> 16) as u8);
    match (kind, information) {
        (NOTICE, NAMESPACE_ATTRIBUTES) if page == page::CHANGED_NAMESPACES => {
            let namespaces = parse_namespace_list(log);
            HostEvent::NamespacesChanged(if namespaces.contains(&u32::MAX) { Vec::new() } else { namespaces })
        }
        (NOTICE, DISCOVERY_LOG) => HostEvent::DiscoveryChanged,
        _ => HostEvent::Other { kind, information, page },
    }
}

/// Asynchronous Event Type and Asynchronous Event Information.
const NOTICE: u8 = 2;
const NAMESPACE_ATTRIBUTES: u8 = 0x00;
const DISCOVERY_LOG: u8 = 0xf0;
/// Bytes to read of a log page; the longest relevant page has as many.
const LOG_BYTES: u32 = 4096;
/// Maximum number of stored events.
const UNTOLD: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_decoded_from_results_and_logs() {
        let mut log = vec![0; 4096];
        log[0] = 3;
        log[4] = 9;
        assert_eq!(event(0x04_00_02, &log), HostEvent::NamespacesChanged(vec![3, 9]));
        log[..4].fill(0xff);
        assert_eq!(event(0x04_00_02, &log), HostEvent::NamespacesChanged(Vec::new()));
        assert_eq!(event(0x70_f0_02, &[]), HostEvent::DiscoveryChanged);
        assert_eq!(event(0x02_01_01, &[]), HostEvent::Other { kind: 1, information: 1, page: 2 });
    }

    #[test]
    fn stored_events_are_limited() {
        let mut untold = StoredEvents::default();
        for information in 0..200 {
            untold.keep(HostEvent::Other { kind: 7, information, page: 0xc0 });
            untold.keep(HostEvent::Other { kind: 7, information, page: 0xc0 });
        }
        let left: Vec<HostEvent> = core::iter::from_fn(|| untold.take()).collect();
        assert_eq!((left.len(), left[0].clone()), (64, HostEvent::Other { kind: 7, information: 136, page: 0xc0 }));
    }
}
