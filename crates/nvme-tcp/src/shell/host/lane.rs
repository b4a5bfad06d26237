//! Commands on their way to a queue, and back: they wait here while there is none.
//!
//! Invariant: every ticket is settled once: with the command's end, with its cancellation, or with the end of whoever
//! had the command, a task that was dropped or has panicked.

use super::error::{CommandError, Failed, HostError};
use super::{Association, Outcome, lock};
use crate::host::{Buffer, Payload, Submission};
use crate::nvme::Completion;
use core::future::Future;
use core::pin::Pin;
use core::task::{Context, Poll, Waker};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

/// A command that comes to an end without a buffer. Dropped, nobody waits for the end any more.
#[derive(Debug)]
#[must_use = "a command is given up when its future is dropped"]
pub struct Done(pub(super) Pending);

/// A command that fills a buffer, and gives it back however it ends, but for one lost with a task of the host: then the
/// buffer is empty. Dropped, nobody waits for the end any more.
#[derive(Debug)]
#[must_use = "a command is given up when its future is dropped"]
pub struct Read(pub(super) Pending);

/// One queue's commands.
#[derive(Debug, Default)]
pub(super) struct Lane {
    state: Mutex<LaneState>,
}

#[derive(Debug, Default)]
struct LaneState {
    pending: VecDeque<Entry>,
    cancelled: Vec<Arc<Ticket>>,
    news: Option<News>,
    ended: Option<HostError>,
    waker: Option<Waker>,
}

/// What the task of a queue is told.
#[derive(Clone, Debug)]
pub(super) enum News {
    /// There is a controller to connect to.
    Open(Arc<Association>),
    /// Its connections are given up.
    Cut,
    /// For good.
    End,
}

/// A command that waits for room.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) submission: Submission,
    pub(super) ticket: Owed,
    pub(super) tries: Tries,
}

/// How often a command was sent again.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Tries {
    /// Because the controller said that it may be.
    pub(super) retries: u32,
    /// Because the connection was lost under it.
    pub(super) replays: u32,
}

/// By which a command's end finds who waits for it.
#[derive(Debug, Default)]
pub(super) struct Ticket {
    state: Mutex<TicketState>,
}

/// A ticket, with whoever has to settle it.
#[derive(Debug)]
pub(super) struct Owed(Arc<Ticket>);

#[derive(Debug, Default)]
struct TicketState {
    outcome: Option<Outcome>,
    settled: bool,
    cancelled: bool,
    /// Its identifier in the queue it is in.
    id: Option<u16>,
    waker: Option<Waker>,
}

/// A command without its end.
#[derive(Debug)]
pub(super) struct Pending {
    ticket: Arc<Ticket>,
    lane: Option<Arc<Lane>>,
}

/// What the task of a queue has to do.
#[derive(Debug, Default)]
pub(super) struct Mail {
    pub(super) news: Option<News>,
    pub(super) entries: Vec<Entry>,
    pub(super) cancelled: Vec<Arc<Ticket>>,
}

impl Done {
    /// Gives the command up: the future ends with [`CommandError::Cancelled`], unless the command has ended before.
    pub fn cancel(&self) {
        self.0.cancel();
    }
}

impl Read {
    /// Gives the command up: the future ends with [`CommandError::Cancelled`] and the buffer, unless the command has
    /// ended before.
    pub fn cancel(&self) {
        self.0.cancel();
    }
}

impl Future for Done {
    type Output = Result<Completion, CommandError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.0.poll(cx).map(|(result, _)| result)
    }
}

impl Future for Read {
    type Output = Result<Buffer, Failed>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.0.poll(cx).map(|(result, payload)| {
            let buffer = match payload {
                Payload::Read(buffer) => buffer,
                Payload::None | Payload::Write(_) => Buffer::default(),
            };
            match result {
                Ok(_) => Ok(buffer),
                Err(error) => Err(Failed { error, buffer }),
            }
        })
    }
}

impl Pending {
    /// A command that is not even sent.
    pub(super) fn refused(error: CommandError, payload: Payload) -> Pending {
        let ticket = Arc::<Ticket>::default();
        Owed(ticket.clone()).settle(Err(error), payload);
        Pending { ticket, lane: None }
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Outcome> {
        let mut state = lock(&self.ticket.state);
        if let Some(outcome) = state.outcome.take() {
            return Poll::Ready(outcome);
        }
        state.waker = Some(cx.waker().clone());
        Poll::Pending
    }

    fn cancel(&self) {
        if let Some(lane) = &self.lane {
            lane.cancel(&self.ticket);
        }
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        self.cancel();
    }
}

impl Lane {
    /// Queues a command.
    pub(super) fn submit(self: &Arc<Lane>, submission: Submission) -> Pending {
        let ticket = Arc::<Ticket>::default();
        let owed = Owed(ticket.clone());
        let mut state = lock(&self.state);
        if let Some(error) = state.ended.clone() {
            drop(state);
            owed.settle(Err(CommandError::Lost(error)), submission.payload);
        } else {
            state.pending.push_back(Entry { submission, ticket: owed, tries: Tries::default() });
            wake(state.waker.take(), state);
        }
        Pending { ticket, lane: Some(self.clone()) }
    }

    /// Tells the queue's task something; the last word counts, but nothing counts more than the end.
    pub(super) fn tell(&self, news: News) {
        let mut state = lock(&self.state);
        if !matches!(state.news, Some(News::End)) {
            state.news = Some(news);
        }
        wake(state.waker.take(), state);
    }

    /// What there is to do: news, commands for at most `room` places, cancellations of what is in the queue.
    pub(super) fn take_mail(&self, cx: &Context<'_>, room: usize) -> Mail {
        let mut state = lock(&self.state);
        match &mut state.waker {
            Some(waker) => waker.clone_from(cx.waker()),
            None => state.waker = Some(cx.waker().clone()),
        }
        let count = room.min(state.pending.len());
        Mail {
            // The end stays: whoever asks is to hear of it.
            news: if matches!(state.news, Some(News::End)) { Some(News::End) } else { state.news.take() },
            entries: state.pending.drain(..count).collect(),
            cancelled: core::mem::take(&mut state.cancelled),
        }
    }

    /// Puts commands back in front, in their order.
    pub(super) fn put_back(&self, entries: Vec<Entry>) {
        let mut state = lock(&self.state);
        for entry in entries.into_iter().rev() {
            if entry.ticket.is_cancelled() {
                entry.ticket.settle(Err(CommandError::Cancelled), entry.submission.payload);
            } else if let Some(error) = state.ended.clone() {
                entry.ticket.settle(Err(CommandError::Lost(error)), entry.submission.payload);
            } else {
                lock(&entry.ticket.0.state).id = None;
                state.pending.push_front(entry);
            }
        }
        wake(state.waker.take(), state);
    }

    /// Has `other` look after what came here.
    pub(super) fn hand_over(&self, cx: &Context<'_>, other: &Lane) -> Option<News> {
        let Mail { news, entries, cancelled } = self.take_mail(cx, usize::MAX);
        if !entries.is_empty() {
            other.put_back(entries);
        }
        cancelled.iter().for_each(|ticket| other.withdraw(ticket));
        news
    }

    /// Fails everything that waits, and whatever comes. The first reason is the one that is told.
    pub(super) fn end(&self, error: &HostError) {
        let entries: Vec<Entry> = {
            let mut state = lock(&self.state);
            state.ended.get_or_insert_with(|| error.clone());
            state.news = Some(News::End);
            let entries = state.pending.drain(..).collect();
            wake(state.waker.take(), state);
            entries
        };
        for entry in entries {
            entry.ticket.settle(Err(CommandError::Lost(error.clone())), entry.submission.payload);
        }
    }

    fn cancel(&self, ticket: &Arc<Ticket>) {
        {
            let mut ticket = lock(&ticket.state);
            if ticket.settled || ticket.cancelled {
                return;
            }
            ticket.cancelled = true;
        }
        self.withdraw(ticket);
    }

    /// Finds the command that was given up, or has the queue's task find it.
    fn withdraw(&self, ticket: &Arc<Ticket>) {
        let mut state = lock(&self.state);
        match state.pending.iter().position(|entry| entry.ticket.is(ticket)) {
            Some(place) => {
                let entry = state.pending.remove(place);
                drop(state);
                if let Some(entry) = entry {
                    entry.ticket.settle(Err(CommandError::Cancelled), entry.submission.payload);
                }
            }
            None => {
                state.cancelled.push(ticket.clone());
                wake(state.waker.take(), state);
            }
        }
    }
}

impl Ticket {
    /// Its identifier in the queue.
    pub(super) fn id(&self) -> Option<u16> {
        lock(&self.state).id
    }

    fn settle(&self, result: Result<Completion, CommandError>, payload: Payload) {
        let waker = {
            let mut state = lock(&self.state);
            if state.settled {
                return;
            }
            state.settled = true;
            state.outcome = Some((result, payload));
            state.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl Owed {
    /// It is in the queue under `id`.
    pub(super) fn enter(&self, id: u16) {
        lock(&self.0.state).id = Some(id);
    }

    /// Whether it was given up.
    pub(super) fn is_cancelled(&self) -> bool {
        lock(&self.0.state).cancelled
    }

    /// Whether it is this one.
    pub(super) fn is(&self, ticket: &Arc<Ticket>) -> bool {
        Arc::ptr_eq(&self.0, ticket)
    }

    /// The command's end.
    pub(super) fn settle(self, result: Result<Completion, CommandError>, payload: Payload) {
        self.0.settle(result, payload);
    }
}

impl Drop for Owed {
    fn drop(&mut self) {
        self.0.settle(Err(CommandError::Lost(HostError::TaskLost)), Payload::None);
    }
}

/// Wakes without the lock.
fn wake<T>(waker: Option<Waker>, locked: T) {
    drop(locked);
    if let Some(waker) = waker {
        waker.wake();
    }
}
