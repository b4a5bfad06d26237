//! Asynchronous events of a controller: asked for, looked into, told to those who ask.
//!
//! ```text
//!   Asking --- request sent --> Waiting --- event --> Found --- its log page asked for --> Reading --- told --> Asking
//! ```
//!
//! NVM Express Base Specification 2.0, 5.2: an event of a kind comes once, until its log page is read.

use crate::core::queue::{Buffer, Finished, Payload, Queue, Submission};
use crate::wire::{ControllerData, Notices, commands, page, parse_namespace_list};
use core::task::Waker;
use offload_base::Instant;
use std::collections::VecDeque;

/// Something that a controller tells without having been asked.
///
/// See [`Host::next_event`](super::Host::next_event) for an example.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum HostEvent {
    /// These namespaces came, went or changed. None of them named: more did than the controller can list.
    NamespacesChanged(Vec<u32>),
    /// The discovery log changed.
    DiscoveryChanged,
    /// Something else. Its log page has been read and is not kept, so that it can be told again.
    Other {
        /// Asynchronous Event Type: 0 error, 1 SMART, 2 notice, 6 I/O command set, 7 vendor.
        kind: u8,
        /// Asynchronous Event Information.
        information: u8,
        /// The log page about it.
        page: u8,
    },
}

/// Events that nobody has taken yet.
#[derive(Debug, Default)]
pub(super) struct Untold {
    events: VecDeque<HostEvent>,
    pub(super) waiting: Vec<Waker>,
}

/// The result of a command that was sent to learn of an event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Heard {
    /// Nothing that matters yet.
    Nothing,
    /// Namespaces have changed; which, is to be read.
    NamespacesMayDiffer,
    /// This has happened.
    Event(HostEvent),
}

/// How far the admin queue is with events.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Events {
    /// There are none to be had.
    #[default]
    Off,
    Asking,
    /// The request has this identifier.
    Waiting(u16),
    /// Found by this result of a request.
    Found(u32),
    /// The command that reads its log page has this identifier.
    Reading(u16, u32),
}

/// Changes that a controller tells of, and that a host takes an interest in.
pub(super) fn of_interest(controller: &ControllerData) -> Notices {
    controller.notices.and(Notices(Notices::NAMESPACES.0 | Notices::DISCOVERY.0))
}

impl Untold {
    pub(super) fn take(&mut self) -> Option<HostEvent> {
        self.events.pop_front()
    }

    /// Keeps an event; the same twice is no news.
    pub(super) fn keep(&mut self, event: HostEvent) {
        if !self.events.contains(&event) {
            if self.events.len() == UNTOLD {
                self.events.pop_front();
            }
            self.events.push_back(event);
        }
        self.waiting.drain(..).for_each(Waker::wake);
    }
}

impl Events {
    /// Whether a place in the queue is to be kept for it.
    pub(super) fn wants_place(self) -> bool {
        matches!(self, Events::Asking | Events::Found(_))
    }

    /// Sends what is to be sent next.
    pub(super) fn go_on(&mut self, queue: &mut Queue, now: Instant) {
        match *self {
            Events::Asking => {
                let submission = Submission { command: commands::event_request(), payload: Payload::None };
                if let Ok(id) = queue.submit_open_ended(submission) {
                    *self = Events::Waiting(id);
                }
            }
            Events::Found(result) => {
                let command = commands::log_page_of_event((result >> 16) as u8, LOG_BYTES);
                let payload = Payload::Read(Buffer::zeroed(LOG_BYTES as usize));
                if let Ok(id) = queue.submit(now, Submission { command, payload }) {
                    *self = Events::Reading(id, result);
                }
            }
            Events::Off | Events::Waiting(_) | Events::Reading(..) => {}
        }
    }

    /// Takes the end of a command, if it is one of these, and tells what it comes to.
    ///
    /// # Errors
    /// Gives back the end of a command that is not one of these.
    #[expect(clippy::result_large_err, reason = "the error is the end of a command, which moves by value either way")]
    pub(super) fn finish(&mut self, finished: Finished) -> Result<Heard, Finished> {
        match *self {
            Events::Waiting(id) if id == finished.id => {
                let completion = finished.completion;
                // A controller that will not have the request will not have it later.
                if !completion.status.is_success() {
                    *self = Events::Off;
                    return Ok(Heard::Nothing);
                }
                let result = completion.result as u32;
                *self = Events::Found(result);
                Ok(if is_about_namespaces(result) { Heard::NamespacesMayDiffer } else { Heard::Nothing })
            }
            Events::Reading(id, result) if id == finished.id => {
                *self = Events::Asking;
                let read = finished.completion.status.is_success();
                let log = match finished.submission.payload {
                    Payload::Read(buffer) if read => buffer.to_vec(),
                    _ => Vec::new(),
                };
                Ok(Heard::Event(event(result, &log)))
            }
            _ => Err(finished),
        }
    }
}

/// Whether a request's `result` says that namespaces have changed.
fn is_about_namespaces(result: u32) -> bool {
    (result as u8 & 0b111, (result >> 8) as u8) == (NOTICE, NAMESPACE_ATTRIBUTES)
}

/// The event that a request's `result` and the log page it names tell of.
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

/// Asynchronous Event Type, and of that the information.
const NOTICE: u8 = 2;
const NAMESPACE_ATTRIBUTES: u8 = 0x00;
const DISCOVERY_LOG: u8 = 0xf0;
/// As much as the longest page has that matters here.
const LOG_BYTES: u32 = 4096;
/// Events that are kept until somebody asks; of more, the oldest are forgotten.
const UNTOLD: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_and_log_pages_tell_events() {
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
    fn what_nobody_takes_is_bounded() {
        let mut untold = Untold::default();
        for information in 0..200 {
            untold.keep(HostEvent::Other { kind: 7, information, page: 0xc0 });
            untold.keep(HostEvent::Other { kind: 7, information, page: 0xc0 });
        }
        let left: Vec<HostEvent> = core::iter::from_fn(|| untold.take()).collect();
        assert_eq!((left.len(), left[0].clone()), (64, HostEvent::Other { kind: 7, information: 136, page: 0xc0 }));
    }
}
