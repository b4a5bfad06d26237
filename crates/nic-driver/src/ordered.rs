//! Contexts that are commanded on the send ring, in order with packets ([`CommandRing::Send`]).
//!
//! A context can be used at once, and is removed after everything posted before. Its place is reused, with the next
//! generation, after the device has removed the context. The engine has an interface of its own, which keeps a `T` for
//! each context.
//!
//! Invariant: the device receives the command that creates a context before any descriptor that names the context.

use crate::Driver;
use nic_rings::EngineDescription;
use nic_rings::packet::{ControlCommand, SendDescriptor};
use offload_api::{CommandRing, ContextEvent, Direction, Handle, Slots};
use std::collections::VecDeque;

/// The contexts of one engine, by place.
#[derive(Debug)]
pub(super) struct OrderedContexts<T> {
    pub(super) slots: Slots<OrderedContext<T>>,
    /// Number of commands on the ring with an awaited completion.
    under_way: usize,
    /// Commands that wait for room. A context's removal appears only once.
    waiting: VecDeque<ControlCommand>,
    news: VecDeque<OrderedNews>,
    /// Whether news were added since the last check.
    fresh: bool,
}

/// The driver's record of a context.
#[derive(Clone, Copy, Debug)]
pub(super) struct OrderedContext<T> {
    pub(super) direction: Direction,
    pub(super) leaving: bool,
    /// Data of the engine's interface.
    pub(super) of_engine: T,
}

/// News of a context.
#[derive(Clone, Copy, Debug)]
pub(super) enum OrderedNews {
    /// The receive context works from now on.
    Ready(Handle),
    /// The context was removed.
    Removed(Handle),
    /// The context was lost in a reset of the device.
    Lost(Handle),
    /// The engine reported an event.
    Event(ContextEvent),
}

/// The creation or removal of a context by a command.
#[derive(Clone, Copy, Debug)]
pub(super) enum ContextChange {
    Added(Handle),
    Removed(Handle),
}

impl ContextChange {
    pub(super) fn by(command: &ControlCommand) -> Option<ContextChange> {
        match command {
            ControlCommand::Create { handle, .. } => Some(ContextChange::Added(*handle)),
            ControlCommand::Destroy { handle } => Some(ContextChange::Removed(*handle)),
            _ => None,
        }
    }
}

impl<T> OrderedContexts<T> {
    pub(super) fn new(engine: u8, places: u32) -> OrderedContexts<T> {
        OrderedContexts {
            slots: Slots::new(Handle::indices(engine, places)),
            under_way: 0,
            waiting: VecDeque::new(),
            news: VecDeque::new(),
            fresh: false,
        }
    }

    pub(super) fn waits_for_sends(&self) -> bool {
        self.under_way > 0 || !self.waiting.is_empty()
    }

    /// Tests whether news were added since the last call. Without interest in the news, a task may then sleep although
    /// some remain.
    pub(super) fn has_fresh_news(&mut self) -> bool {
        core::mem::take(&mut self.fresh) && !self.news.is_empty()
    }

    fn tell(&mut self, news: OrderedNews) {
        self.news.push_back(news);
        self.fresh = true;
    }

    pub(super) fn pop_news(&mut self) -> Option<OrderedNews> {
        self.news.pop_front()
    }

    /// Processes the completion of a command.
    pub(super) fn note_done(&mut self, change: ContextChange) {
        self.under_way = self.under_way.saturating_sub(1);
        match change {
            ContextChange::Added(handle) => {
                let there = self.slots.get(handle).filter(|context| !context.leaving);
                if there.is_some_and(|context| context.direction == Direction::Receive) {
                    self.tell(OrderedNews::Ready(handle));
                }
            }
            ContextChange::Removed(handle) => {
                if self.slots.remove(handle).is_some() {
                    self.tell(OrderedNews::Removed(handle));
                }
            }
        }
    }

    /// Processes an event of the device.
    pub(super) fn note(&mut self, event: ContextEvent) {
        self.tell(OrderedNews::Event(event));
    }

    /// Notes that the device has lost all contexts.
    pub(super) fn vacate_all(&mut self) {
        let all: Vec<Handle> = self.slots.handles().collect();
        for handle in all {
            self.slots.remove(handle);
            self.tell(OrderedNews::Lost(handle));
        }
        self.under_way = 0;
        self.waiting.clear();
    }

    /// Returns the data of a transmit context that is not being removed.
    pub(super) fn sending(&self, handle: Handle) -> Option<&T> {
        let context = self.slots.get(handle).filter(|context| !context.leaving)?;
        (context.direction == Direction::Transmit).then_some(&context.of_engine)
    }
}

impl Driver {
    /// Tests whether a context is commanded on the send ring.
    pub(super) fn is_ordered(&self, context: Handle) -> bool {
        self.description(context.engine()).is_some_and(is_ordered)
    }

    /// Posts the commands that waited for room.
    pub(super) fn post_waiting_commands(&mut self) {
        while self.send.has_room()
            && let Some(command) = self.ordered.waiting.pop_front()
        {
            self.post_command(command);
        }
        self.ring_doorbell();
    }

    pub(super) fn post_command(&mut self, command: ControlCommand) {
        // Only creations and removals have completions that somebody waits for.
        if ContextChange::by(&command).is_some() {
            self.ordered.under_way += 1;
            self.wake_when_sent();
        }
        self.post(SendDescriptor::Control { epoch: self.epoch, command: Box::new(command) });
    }

    /// Posts a command now, or once there is room. For removals and changes, which must not fail.
    pub(super) fn post_or_wait(&mut self, command: ControlCommand) {
        // Always queued first, so that a later command cannot overtake one that waits for room.
        self.ordered.waiting.push_back(command);
        self.post_waiting_commands();
        if !self.ordered.waiting.is_empty() {
            self.wake_when_sent();
        }
    }

    pub(super) fn has_room_for_command(&mut self) -> bool {
        self.reap_sent();
        self.post_waiting_commands();
        self.send.has_room()
    }
}

/// Tests whether the contexts of an engine are commanded on the send ring.
pub(super) fn is_ordered(engine: &EngineDescription) -> bool {
    engine.info.ring == CommandRing::Send
}
