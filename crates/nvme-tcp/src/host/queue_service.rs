//! The work of one queue: sends commands of its lane and completes them.

use super::HostShared;
use super::disk::NO_BLOCKS;
use super::error::{CommandError, HostError};
use super::events::{EventResult, EventState, HostEvent};
use super::inspections::NamespaceInspections;
use super::lane::{
    CommandLane, CommandTicket, LaneBatch, LaneEntry, LaneInstruction, OwnedTicket, RetryCounts, TemporaryFailure,
};
use super::link::QueueLink;
use super::lock;
use super::scope::Effect;
use crate::core::queue::{AbandonResult, CommandData, FinishedCommand, QueueError, Submission, SubmitError};
use crate::wire::{Command, Status, commands};
use core::future::poll_fn;
use core::task::{Context, Poll};
use core::time::Duration;
use offload_base::{Instant, time};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Reason why the service of a queue ended.
#[derive(Debug)]
pub(super) enum ServiceEnd {
    /// The host is to be closed.
    Wanted,
    /// All connections of this controller are given up.
    Cut,
    /// This connection failed.
    Failed(HostError),
}

/// Duties of a queue beside the commands of its lane.
#[derive(Debug, Default)]
pub(super) struct QueueDuties {
    /// Interval of Keep Alive commands, if any.
    pub(super) keep_alive: Option<Duration>,
    /// Whether to request events.
    pub(super) events: bool,
    /// Inspections of namespaces, if any.
    pub(super) looking: Option<NamespaceInspections>,
}

/// Serves lane `number` on `link` until the connection ends. If the queue fails, the controller is lost with it.
/// Unfinished commands return to the lane.
pub(super) async fn serve(
    shared: &HostShared,
    number: usize,
    generation: u64,
    mut link: QueueLink,
    upkeep: QueueDuties,
) -> ServiceEnd {
    let lane = &shared.lanes[number];
    let mut serving = QueueService {
        shared,
        lane,
        generation,
        may_retry: number > 0,
        jobs: BTreeMap::new(),
        keep_alive: upkeep.keep_alive.map(|every| KeepAliveTimer {
            every,
            due: shared.timers.now() + every,
            outstanding: None,
        }),
        events: if upkeep.events { EventState::Asking } else { EventState::Off },
        looking: upkeep.looking,
    };
    let ended = poll_fn(|cx| serving.poll(&mut link, cx)).await;
    if number == 0 && matches!(ended, ServiceEnd::Wanted) {
        serving.send_shutdown(&mut link).await;
    }
    let mut jobs = serving.jobs;
    if let ServiceEnd::Failed(error) = &ended {
        // Before any command ends for this reason: a command submitted then must not go to another queue of the lost
        // controller.
        shared.lose_controller(generation, error, number == 0 && error.is_final());
    }
    let mut unfinished = Vec::new();
    let last_words =
        matches!(ended, ServiceEnd::Wanted | ServiceEnd::Failed(HostError::Queue(QueueError::Misbehaved(_))));
    let mut queue = link.finish(last_words).await;
    let error = match &ended {
        ServiceEnd::Failed(error) => error.clone(),
        ServiceEnd::Wanted | ServiceEnd::Cut => shared.loss().error,
    };
    for (id, submission) in poll_fn(|cx| match queue.poll_unfinished(cx.waker()) {
        Some(unfinished) => Poll::Ready(unfinished),
        None => Poll::Pending,
    })
    .await
    {
        let Some((ticket, mut counts)) = jobs.remove(&id) else { continue };
        counts.replays += 1;
        let entry = LaneEntry { submission, ticket, counts, was_sent: true };
        // A host that is closed sends nothing again.
        let refusal = if matches!(ended, ServiceEnd::Wanted) { None } else { shared.no_replay(&entry, &error) };
        match refusal {
            Some(refusal) => entry.complete(refusal),
            None => unfinished.push(entry),
        }
    }
    let replays = unfinished.iter().filter(|entry| !entry.ticket.is_cancelled()).count();
    if replays > 0 && !matches!(ended, ServiceEnd::Wanted) {
        lock(&shared.central).stats.replays += replays as u64;
    }
    lane.return_to_front(unfinished);
    ended
}

impl HostShared {
    /// Returns the error if a command that was running on a connection lost by `error` must not be sent again.
    fn no_replay(&self, entry: &LaneEntry, error: &HostError) -> Option<CommandError> {
        let scope = entry.ticket.scope();
        if scope.changes() && self.may_execute_later(error) {
            return Some(CommandError::Uncertain(error.clone()));
        }
        if entry.ticket.is_cancelled() {
            return None; // completed on the next connection
        }
        // A namespace that was not inspected may be another one after the reconnect.
        if scope.effect == Effect::Once || (scope.is_about_blocks() && scope.changes() && !entry.ticket.is_inspected())
        {
            return Some(CommandError::Uncertain(error.clone()));
        }
        // The command itself may be the reason why connections are lost.
        (entry.counts.replays > self.config.replays).then(|| CommandError::Lost(error.clone()))
    }

    /// Returns whether a controller lost by `error` may execute old commands at any later time: it did not notice the
    /// loss, and there is no keep-alive.
    fn may_execute_later(&self, error: &HostError) -> bool {
        error.is_silence() && self.config.keep_alive.is_zero()
    }
}

struct QueueService<'a> {
    shared: &'a HostShared,
    lane: &'a CommandLane,
    generation: u64,
    may_retry: bool,
    /// Running commands by identifier.
    jobs: BTreeMap<u16, (OwnedTicket, RetryCounts)>,
    keep_alive: Option<KeepAliveTimer>,
    events: EventState,
    looking: Option<NamespaceInspections>,
}

struct KeepAliveTimer {
    every: Duration,
    due: Instant,
    outstanding: Option<u16>,
}

impl QueueService<'_> {
    fn poll(&mut self, link: &mut QueueLink, cx: &mut Context<'_>) -> Poll<ServiceEnd> {
        for _ in 0..ROUNDS {
            match self.poll_once(link, cx) {
                Ok(true) => {}
                Ok(false) => return Poll::Pending,
                Err(ended) => return Poll::Ready(ended),
            }
        }
        // Yields, so that other tasks can run.
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// Performs one round of work. Returns false if there was nothing to do.
    fn poll_once(&mut self, link: &mut QueueLink, cx: &mut Context<'_>) -> Result<bool, ServiceEnd> {
        let now = self.shared.timers.now();
        let LaneBatch { instruction, entries, cancelled, rested } = self.lane.take_work(cx, self.room(link), now);
        let had_entries = !entries.is_empty();
        self.submit(link, now, entries);
        self.abandon(link, cancelled);
        self.follow_instruction(instruction)?;
        self.stay_alive(link, now)?;
        let due = time::earliest(self.send_duties(link, now), rested);
        let worked = link.poll(cx, due);
        let has_finished = self.complete_finished(link);
        Ok(had_entries | has_finished | worked.map_err(ServiceEnd::Failed)?)
    }

    /// Returns the number of commands that the lane may send.
    fn room(&self, link: &QueueLink) -> usize {
        // Slots are reserved for the keep-alive, the next event command, and the next inspection.
        let looks = self.looking.as_ref().is_some_and(NamespaceInspections::needs_slot);
        let kept = usize::from(self.keep_alive.is_some()) + usize::from(self.events.needs_slot()) + usize::from(looks);
        link.queue.room().saturating_sub(kept)
    }

    /// Submits the lane's commands; a command without room goes back to the lane.
    fn submit(&mut self, link: &mut QueueLink, now: Instant, entries: Vec<LaneEntry>) {
        let mut unsent = Vec::new();
        for entry in entries {
            if let Some(refusal) = entry.refusal() {
                entry.complete(refusal);
                continue;
            }
            if entry.is_in_doubt() {
                // Sent now, the command could reach another namespace with the same number.
                self.lane.delay(None, entry);
                continue;
            }
            let LaneEntry { submission, ticket, counts, was_sent } = entry;
            match link.queue.submit(now, submission) {
                Ok(id) => {
                    ticket.enter(id);
                    self.jobs.insert(id, (ticket, counts));
                }
                Err(SubmitError::NoRoom(submission)) => unsent.push(LaneEntry { submission, ticket, counts, was_sent }),
                Err(SubmitError::Erased(submission)) => ticket.complete(Err(CommandError::Erased), submission.payload),
                Err(refused) => ticket.complete(Err(NO_BLOCKS), refused.into_submission().payload),
            }
        }
        if !unsent.is_empty() {
            self.lane.return_to_front(unsent);
        }
    }

    /// Abandons the commands that their callers cancelled.
    fn abandon(&mut self, link: &mut QueueLink, cancelled: Vec<Arc<CommandTicket>>) {
        for ticket in cancelled {
            let Some(id) = ticket.id().filter(|id| self.jobs.get(id).is_some_and(|(job, _)| job.is(&ticket))) else {
                continue;
            };
            let payload = match link.queue.abandon(id) {
                AbandonResult::Now(payload) => payload,
                // The command changes nothing, so no command has to wait for its answer.
                AbandonResult::Unanswered => CommandData::None,
                AbandonResult::Later | AbandonResult::Complete => continue,
            };
            if let Some((ticket, _)) = self.jobs.remove(&id) {
                ticket.complete(Err(CommandError::Cancelled), payload);
            }
        }
    }

    /// Ends the service if the instruction says so.
    fn follow_instruction(&self, instruction: Option<LaneInstruction>) -> Result<(), ServiceEnd> {
        match instruction {
            Some(LaneInstruction::End) => Err(ServiceEnd::Wanted),
            Some(LaneInstruction::Cut) => Err(ServiceEnd::Cut),
            Some(LaneInstruction::Open(association)) => {
                // A new controller replaced an unread `Cut`. The instruction is put back for the next connection.
                self.lane.instruct(LaneInstruction::Open(association));
                Err(ServiceEnd::Cut)
            }
            None => Ok(()),
        }
    }

    /// Sends commands for events and inspections. Returns when the queue has to act by itself.
    fn send_duties(&mut self, link: &mut QueueLink, now: Instant) -> Option<Instant> {
        self.events.send_next(&mut link.queue, now);
        let due = self.keep_alive.as_ref().map(|keep_alive| keep_alive.due);
        let Some(looking) = &mut self.looking else { return due };
        looking.send_next(&mut link.queue, now);
        time::earliest(due, looking.next_event())
    }

    /// Completes all finished commands. Returns whether there were any.
    fn complete_finished(&mut self, link: &mut QueueLink) -> bool {
        let mut any = false;
        while let Some(finished) = link.queue.poll_finished() {
            self.complete(finished);
            any = true;
        }
        any
    }

    fn stay_alive(&mut self, link: &mut QueueLink, now: Instant) -> Result<(), ServiceEnd> {
        let Some(keep_alive) = &mut self.keep_alive else { return Ok(()) };
        if now < keep_alive.due {
            return Ok(());
        }
        // The last Keep Alive was not answered within a whole interval.
        if keep_alive.outstanding.is_some() {
            return Err(ServiceEnd::Failed(HostError::TimedOut("a keep-alive")));
        }
        let submission = Submission { command: commands::keep_alive(), payload: CommandData::None };
        keep_alive.outstanding = link.queue.submit(now, submission).ok();
        keep_alive.due = now + keep_alive.every;
        Ok(())
    }

    /// Shuts the controller down, if it still answers. Commands that finish meanwhile are completed.
    async fn send_shutdown(&mut self, link: &mut QueueLink) {
        if link.queue.is_open() {
            let shutdown: Command = commands::property_set(crate::wire::property::CC, SHUTDOWN);
            // The host ends with any answer, and without one.
            let _ = link.execute_among("shutdown", shutdown, CommandData::None, |other| self.complete(other)).await;
        }
        // Commands that finished with the answer or with the end of the connection.
        self.complete_finished(link);
    }

    fn complete(&mut self, finished: FinishedCommand) {
        // Commands of the queue's own duties belong to no job, so they are sorted out first.
        let finished = match self.events.finish(finished) {
            Ok(heard) => return self.report_event(heard),
            Err(finished) => finished,
        };
        let finished = match &mut self.looking {
            Some(looking) => match looking.finish(self.shared.timers.now(), finished) {
                Ok(None) => return,
                Ok(Some(found)) => return self.shared.decide(found),
                Err(finished) => finished,
            },
            None => finished,
        };
        let FinishedCommand { id, completion, submission } = finished;
        if let Some(keep_alive) = &mut self.keep_alive
            && keep_alive.outstanding == Some(id)
        {
            keep_alive.outstanding = None;
            return;
        }
        let Some((ticket, mut counts)) = self.jobs.remove(&id) else { return };
        let status = completion.status;
        // An abandoned command has no caller for its result; the completion shows that it cannot be executed any more.
        if ticket.is_cancelled() {
            ticket.complete(Err(CommandError::Cancelled), submission.payload);
        } else if submission.payload.is_erased() {
            ticket.complete(Err(CommandError::Erased), submission.payload);
        } else if status.is_success() {
            ticket.complete(Ok(completion), submission.payload);
        } else if let Some(pause) = self.pause_before_retry(&ticket, status, &mut counts) {
            lock(&self.shared.central).stats.retries += 1;
            let entry = LaneEntry { submission, ticket, counts, was_sent: false };
            if pause.is_zero() {
                self.lane.return_to_front(vec![entry]);
            } else {
                self.lane.delay(Some(self.shared.timers.now() + pause), entry);
            }
        } else {
            ticket.complete(Err(CommandError::Status(status)), submission.payload);
        }
    }

    fn report_event(&mut self, heard: EventResult) {
        match heard {
            EventResult::Nothing => {}
            EventResult::NamespacesMayDiffer => {
                let known = self.shared.doubt();
                if let Some(looking) = &mut self.looking {
                    looking.doubt(known);
                }
            }
            EventResult::Event(event) => {
                if let Some(looking) = &mut self.looking {
                    looking.name(if let HostEvent::NamespacesChanged(namespaces) = &event { namespaces } else { &[] });
                    self.shared.wake_lanes();
                }
                lock(&self.shared.central).untold.keep(event);
            }
        }
    }

    /// Returns the pause before a command that failed with `status` is sent again. `None` if it is not sent again.
    fn pause_before_retry(&self, ticket: &OwnedTicket, status: Status, counts: &mut RetryCounts) -> Option<Duration> {
        let config = &self.shared.config;
        // The host itself reports damaged data, with a status that allows a retry, although the command was executed.
        if !self.may_retry || status.do_not_retry() || ticket.scope().effect == Effect::Once {
            return None;
        }
        if status.is_same_as(Status::ANA_PERSISTENT_LOSS) {
            return None; // this controller will not regain the namespace
        }
        if !status.is_passing() {
            // Other errors use up the limited number of retries.
            counts.temporary = None;
            counts.retries += 1;
            return (counts.retries <= config.retries).then_some(Duration::ZERO);
        }
        let (now, generation) = (self.shared.timers.now(), self.generation);
        let before = counts.temporary.filter(|passing| passing.generation == generation);
        let passing = before.unwrap_or(TemporaryFailure { generation, since: now, times: 0 });
        counts.temporary = Some(TemporaryFailure { times: passing.times.saturating_add(1), ..passing });
        let pause = pause(passing.times);
        (now + pause <= passing.since + config.path_wait).then_some(pause)
    }
}

/// Returns the pause before retry number `times`.
pub(super) fn pause(times: u32) -> Duration {
    (FIRST_PAUSE * (1 << times.min(16))).min(LONGEST_PAUSE)
}

/// CC: enabled, entries of 64 and 16 bytes, SHN 01b: a normal shutdown.
const SHUTDOWN: u32 = 1 | 6 << 16 | 4 << 20 | 1 << 14;
/// First pause before a retry. Each pause doubles, up to the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// Maximum number of rounds before the task yields.
const ROUNDS: usize = 16;
