//! Commands on their way to a queue, and back: they wait here while there is none.
//!
//! Invariants: every ticket is settled once: with the command's end, with its cancellation, or with the end of the task that
//! had the command, a task that was dropped or has panicked. A command that may change something is not settled as
//! cancelled while it may still be carried out.

use super::error::{CommandError, Failed, HostError};
use super::given_up::GivenUp;
use super::known::Known;
use super::scope::Scope;
use super::{Association, Outcome, lock};
use crate::core::queue::{Buffer, Payload, Submission};
use crate::wire::Completion;
use core::future::Future;
use core::pin::Pin;
use core::task::{Context, Poll, Waker};
use offload_base::{Instant, time};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

/// A command that comes to an end without a buffer.
///
/// Dropped (by a timeout around it, or a `select!`), it is [given up](Done::cancel), and nobody hears of its end. If it
/// changes something, as a write does, it may still be carried out; but not after what comes later: a command submitted
/// after the drop that is about some of the same blocks, on whichever queue, is sent when the dropped one can no longer
/// be carried out. There is one exception: see [`cancel`](Done::cancel).
///
/// ```
/// use nvme_tcp::host::{CommandError, Disk, Done};
///
/// /// Two writes under way at once, and then both on the medium.
/// async fn twice(disk: &Disk, data: [bytes::Bytes; 2]) -> Result<(), CommandError> {
///     let [first, second]: [Done; 2] = [disk.write(0, [data[0].clone()]), disk.write(8, [data[1].clone()])];
///     first.await?;
///     second.await?;
///     disk.flush().await.map(|_| ())
/// }
/// ```
#[derive(Debug)]
#[must_use = "a command is given up when its future is dropped"]
pub struct Done(pub(super) Pending);

/// A command that fills a buffer, and gives it back however it ends, but for one lost with a task of the host: then the
/// buffer is empty. Dropped, it is given up, and nobody waits for the end any more.
#[derive(Debug)]
#[must_use = "a command is given up when its future is dropped"]
pub struct Read(pub(super) Pending);

/// One queue's commands.
#[derive(Debug)]
pub(super) struct Lane {
    given_up: Arc<GivenUp>,
    state: Mutex<LaneState>,
}

#[derive(Debug, Default)]
struct LaneState {
    pending: VecDeque<Entry>,
    /// Commands that wait until then before they are sent again, or until their namespace is in doubt no longer.
    resting: Vec<(Option<Instant>, Entry)>,
    cancelled: Vec<Arc<Ticket>>,
    news: Option<News>,
    ended: Option<HostError>,
    waker: Option<Waker>,
}

/// News for the task of a queue.
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
    /// The connection was lost under it: until there is another, it may still be carried out.
    pub(super) was_sent: bool,
}

/// How often a command was sent again.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Tries {
    /// Because the controller said that it may be.
    pub(super) retries: u32,
    /// Because the connection was lost under it.
    pub(super) replays: u32,
    /// The controller says that it cannot be carried out now.
    pub(super) passing: Option<Passing>,
}

/// For how long a command was tried again that a controller cannot carry out now.
#[derive(Clone, Copy, Debug)]
pub(super) struct Passing {
    /// The connection: behind another, the time begins anew.
    pub(super) generation: u64,
    pub(super) since: Instant,
    pub(super) times: u32,
}

/// By which a command's end finds who waits for it.
#[derive(Debug)]
pub(super) struct Ticket {
    scope: Scope,
    /// The namespace it is about, if somebody has looked at that.
    known: Option<Arc<Known>>,
    state: Mutex<TicketState>,
}

/// A ticket, with the task that has to settle it.
#[derive(Debug)]
pub(super) struct Owed(Arc<Ticket>);

#[derive(Debug, Default)]
struct TicketState {
    outcome: Option<Outcome>,
    settled: bool,
    cancelled: bool,
    /// Where it is listed as given up.
    listed: Option<Arc<GivenUp>>,
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

/// Work for the task of a queue.
#[derive(Debug, Default)]
pub(super) struct Mail {
    pub(super) news: Option<News>,
    pub(super) entries: Vec<Entry>,
    /// Of those that were sent: reads, and what else changes nothing.
    pub(super) cancelled: Vec<Arc<Ticket>>,
    /// When the next one has rested.
    pub(super) rested: Option<Instant>,
}

impl Done {
    /// Gives the command up: the future ends with [`CommandError::Cancelled`], unless the command has ended before.
    ///
    /// A command that changes nothing, or was not sent yet, ends at once. One that was sent and may change something, as
    /// a write does, ends when it can no longer be carried out: when the controller has answered, whatever it says, or
    /// when the host is connected again after a loss. So what is submitted when the future has ended comes after it. What
    /// is submitted before, and is about some of the same blocks, is held until then.
    ///
    /// There is one exception: a host without a keep-alive that loses a silent controller cannot know when that gives it up.
    /// Then the future ends with [`CommandError::Uncertain`], what was held goes on, and the command may still be carried
    /// out after it.
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
                Payload::None | Payload::Write(_) | Payload::Encrypt(..) => Buffer::default(),
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
        let ticket = Arc::new(Ticket::new(Scope::NOTHING, None));
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

impl Entry {
    /// A command that is new.
    pub(super) fn new(submission: Submission, ticket: Owed) -> Entry {
        Entry { submission, ticket, tries: Tries::default(), was_sent: false }
    }

    /// Why it is not to be sent, now that its turn has come on a new connection.
    pub(super) fn refusal(&self) -> Option<CommandError> {
        if self.was_sent && self.ticket.is_cancelled() {
            return Some(CommandError::Cancelled);
        }
        self.ticket.0.known.as_ref().filter(|known| known.is_gone()).map(|known| known.error())
    }

    /// Ends it.
    pub(super) fn settle(self, error: CommandError) {
        self.ticket.settle(Err(error), self.submission.payload);
    }

    /// Whether it has to wait until its namespace was looked at again.
    pub(super) fn is_in_doubt(&self) -> bool {
        self.ticket.0.known.as_ref().is_some_and(|known| known.is_in_doubt())
    }

    fn may_change_something_yet(&self) -> bool {
        self.was_sent && self.ticket.scope().changes()
    }
}

impl Lane {
    /// A lane of the host with these given up.
    pub(super) fn new(given_up: Arc<GivenUp>) -> Lane {
        Lane { given_up, state: Mutex::default() }
    }

    /// Queues a command, when nothing that was given up can be carried out after it.
    pub(super) fn submit(self: &Arc<Lane>, submission: Submission, ticket: Ticket) -> Pending {
        let ticket = Arc::new(ticket);
        if let Some(entry) = self.given_up.hold(self, Entry::new(submission, Owed(ticket.clone()))) {
            self.enqueue(entry);
        }
        Pending { ticket, lane: Some(self.clone()) }
    }

    /// Queues a command.
    pub(super) fn enqueue(&self, entry: Entry) {
        let mut state = lock(&self.state);
        if let Some(error) = state.ended.clone() {
            drop(state);
            entry.settle(CommandError::Lost(error));
        } else {
            state.pending.push_back(entry);
            wake(state.waker.take(), state);
        }
    }

    /// Tells the queue's task something; the last word counts, but nothing counts more than the end.
    pub(super) fn tell(&self, news: News) {
        let mut state = lock(&self.state);
        if !matches!(state.news, Some(News::End)) {
            state.news = Some(news);
        }
        wake(state.waker.take(), state);
    }

    /// What the task is told, if anything.
    pub(super) fn take_news(&self, cx: &Context<'_>) -> Option<News> {
        self.take_mail(cx, 0, Instant::ZERO).news
    }

    /// What there is to do at `now`: news, commands for at most `room` places, cancellations of what is in the queue.
    pub(super) fn take_mail(&self, cx: &Context<'_>, room: usize, now: Instant) -> Mail {
        let mut state = lock(&self.state);
        let rested = state.wake_rested(now);
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
            rested,
        }
    }

    /// Has the queue's task look whether there is something to do.
    pub(super) fn wake(&self) {
        let mut state = lock(&self.state);
        wake(state.waker.take(), state);
    }

    /// Has a command wait until then before it is sent, or until its namespace is in doubt no longer.
    pub(super) fn rest(&self, until: Option<Instant>, entry: Entry) {
        let mut state = lock(&self.state);
        lock(&entry.ticket.0.state).id = None;
        if entry.ticket.is_cancelled() || state.ended.is_some() {
            drop(state);
            self.put_back(vec![entry]);
        } else {
            state.resting.push((until, entry));
        }
    }

    /// Puts commands back in front, in their order.
    pub(super) fn put_back(&self, entries: Vec<Entry>) {
        let mut over = Vec::new();
        let mut state = lock(&self.state);
        for entry in entries.into_iter().rev() {
            if entry.ticket.is_cancelled() && !entry.may_change_something_yet() {
                over.push((entry, CommandError::Cancelled));
            } else if let Some(error) = state.ended.clone() {
                over.push((entry, CommandError::Lost(error)));
            } else {
                lock(&entry.ticket.0.state).id = None;
                state.pending.push_front(entry);
            }
        }
        wake(state.waker.take(), state);
        over.into_iter().for_each(|(entry, error)| entry.settle(error));
    }

    /// Has `other` look after what came here.
    pub(super) fn hand_over(&self, cx: &Context<'_>, other: &Lane) -> Option<News> {
        let Mail { news, entries, cancelled, .. } = self.take_mail(cx, usize::MAX, Instant::ZERO);
        if !entries.is_empty() {
            other.put_back(entries);
        }
        let resting = core::mem::take(&mut lock(&self.state).resting);
        resting.into_iter().for_each(|(_, entry)| other.enqueue(entry));
        cancelled.iter().for_each(|ticket| other.withdraw(ticket));
        news
    }

    /// Fails everything that waits, and whatever comes. The first reason is the one that is told.
    pub(super) fn end(&self, error: &HostError) {
        let entries: Vec<Entry> = {
            let mut state = lock(&self.state);
            state.ended.get_or_insert_with(|| error.clone());
            state.news = Some(News::End);
            let resting = core::mem::take(&mut state.resting).into_iter().map(|(_, entry)| entry);
            let entries = state.pending.drain(..).chain(resting).collect();
            wake(state.waker.take(), state);
            entries
        };
        entries.into_iter().for_each(|entry| entry.settle(CommandError::Lost(error.clone())));
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

    /// Ends a command that was given up, if it was not sent. If it was, what changes nothing is the queue's task to find;
    /// anything else comes to its end, and what is about the same waits for that.
    fn withdraw(&self, ticket: &Arc<Ticket>) {
        if let Some(entry) = self.given_up.withdraw(ticket) {
            return entry.settle(CommandError::Cancelled);
        }
        let mut state = lock(&self.state);
        if let Some(entry) = state.take_unsent(ticket) {
            drop(state);
            entry.settle(CommandError::Cancelled);
        } else if ticket.scope.changes() {
            drop(state);
            ticket.list(&self.given_up);
        } else {
            state.cancelled.push(ticket.clone());
            wake(state.waker.take(), state);
        }
    }
}

impl LaneState {
    /// Has those wait for room that have rested; returns when the next one has.
    fn wake_rested(&mut self, now: Instant) -> Option<Instant> {
        let mut next = None;
        for (until, entry) in core::mem::take(&mut self.resting) {
            if until.map_or(!entry.is_in_doubt(), |until| until <= now) {
                self.pending.push_back(entry);
            } else {
                next = time::earliest(next, until);
                self.resting.push((until, entry));
            }
        }
        next
    }

    /// Takes the command of `ticket` out, if it waits here and cannot be carried out.
    fn take_unsent(&mut self, ticket: &Arc<Ticket>) -> Option<Entry> {
        let is_it = |entry: &Entry| entry.ticket.is(ticket) && !entry.may_change_something_yet();
        if let Some(place) = self.pending.iter().position(is_it) {
            return self.pending.remove(place);
        }
        let place = self.resting.iter().position(|(_, entry)| is_it(entry))?;
        Some(self.resting.swap_remove(place).1)
    }
}

impl Ticket {
    /// Of a command that may do this, to that namespace.
    pub(super) fn new(scope: Scope, known: Option<Arc<Known>>) -> Ticket {
        Ticket { scope, known, state: Mutex::default() }
    }

    /// What its command may do.
    pub(super) fn scope(&self) -> Scope {
        self.scope
    }

    /// Its identifier in the queue.
    pub(super) fn id(&self) -> Option<u16> {
        lock(&self.state).id
    }

    /// Lists it as given up, unless it has ended.
    fn list(self: &Arc<Ticket>, given_up: &Arc<GivenUp>) {
        let mut state = lock(&self.state);
        if !state.settled && state.listed.is_none() {
            given_up.add(self.clone());
            state.listed = Some(given_up.clone());
        }
    }

    /// Returns where it was listed.
    fn settle(&self, result: Result<Completion, CommandError>, payload: Payload) -> Option<Arc<GivenUp>> {
        let (waker, listed) = {
            let mut state = lock(&self.state);
            if state.settled {
                return None;
            }
            state.settled = true;
            state.outcome = Some((result, payload));
            (state.waker.take(), state.listed.take())
        };
        if let Some(waker) = waker {
            waker.wake();
        }
        listed
    }
}

impl Owed {
    /// What its command may do.
    pub(super) fn scope(&self) -> Scope {
        self.0.scope
    }

    /// Whether its command is about a namespace that somebody has looked at.
    pub(super) fn is_of_known(&self) -> bool {
        self.0.known.is_some()
    }

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

    /// The command's end: it cannot be carried out any more, and what waited for that goes on.
    pub(super) fn settle(self, result: Result<Completion, CommandError>, payload: Payload) {
        if let Some(given_up) = self.0.settle(result, payload) {
            given_up.remove(&self.0);
        }
    }
}

impl Drop for Owed {
    fn drop(&mut self) {
        // With a task that is lost, the host ends: what waits for this command is not to go on.
        let _listed = self.0.settle(Err(CommandError::Lost(HostError::TaskLost)), Payload::None);
    }
}

/// Wakes without the lock.
fn wake<T>(waker: Option<Waker>, locked: T) {
    drop(locked);
    if let Some(waker) = waker {
        waker.wake();
    }
}
