//! Contexts that come and go on the send ring, in order with packets ([`CommandRing::Send`]).
//!
//! A context can be used at once, and is given up after all that was posted before. Its place is used again, under the next
//! generation, after the device has given it up. What may be asked of a context is its engine's: the engine has a face of its
//! own, which keeps a `T` of each.
//!
//! Invariant: the driver names no context to the device that it has not told it of.

use crate::Driver;
use nic_rings::EngineDescription;
use nic_rings::packet::{ControlCommand, SendDescriptor};
use offload_api::{CommandRing, ContextEvent, Direction, Handle, Slots};
use std::collections::VecDeque;

/// The contexts of one engine, by place.
#[derive(Debug)]
pub(super) struct OrderedContexts<T> {
    pub(super) slots: Slots<Ordered<T>>,
    /// Commands on the ring whose end somebody waits for.
    under_way: usize,
    /// What there was no room for; each context is given up only once.
    waiting: VecDeque<ControlCommand>,
    news: VecDeque<OrderedNews>,
    /// Some came since it was last asked.
    fresh: bool,
}

/// What the driver remembers of a context.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ordered<T> {
    pub(super) direction: Direction,
    pub(super) leaving: bool,
    /// What its engine's face needs to know of it.
    pub(super) of_engine: T,
}

/// Something that happened to a context.
#[derive(Clone, Copy, Debug)]
pub(super) enum OrderedNews {
    /// A receive context works from now on.
    Ready(Handle),
    /// It is gone.
    Removed(Handle),
    /// It is gone: the device was reset.
    Lost(Handle),
    /// What its engine has to tell.
    Event(ContextEvent),
}

/// What a command does to a context's being there.
#[derive(Clone, Copy, Debug)]
pub(super) enum Change {
    Added(Handle),
    Removed(Handle),
}

impl Change {
    pub(super) fn by(command: &ControlCommand) -> Option<Change> {
        match command {
            ControlCommand::Create { handle, .. } => Some(Change::Added(*handle)),
            ControlCommand::Destroy { handle } => Some(Change::Removed(*handle)),
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

    /// Whether there are news since this was last asked: if nobody wants them, nobody is to stay awake for them.
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

    /// The device has done it.
    pub(super) fn note_done(&mut self, change: Change) {
        self.under_way = self.under_way.saturating_sub(1);
        match change {
            Change::Added(handle) => {
                let there = self.slots.get(handle).filter(|context| !context.leaving);
                if there.is_some_and(|context| context.direction == Direction::Receive) {
                    self.tell(OrderedNews::Ready(handle));
                }
            }
            Change::Removed(handle) => {
                if self.slots.remove(handle).is_some() {
                    self.tell(OrderedNews::Removed(handle));
                }
            }
        }
    }

    /// The device has told of something.
    pub(super) fn note(&mut self, event: ContextEvent) {
        self.tell(OrderedNews::Event(event));
    }

    /// The device has none any more.
    pub(super) fn vacate_all(&mut self) {
        let all: Vec<Handle> = self.slots.handles().collect();
        for handle in all {
            self.slots.remove(handle);
            self.tell(OrderedNews::Lost(handle));
        }
        self.under_way = 0;
        self.waiting.clear();
    }

    /// A transmit context that is not being given up.
    pub(super) fn sending(&self, handle: Handle) -> Option<&T> {
        let context = self.slots.get(handle).filter(|context| !context.leaving)?;
        (context.direction == Direction::Transmit).then_some(&context.of_engine)
    }
}

impl Driver {
    /// Whether a context comes and goes on the send ring.
    pub(super) fn is_ordered(&self, context: Handle) -> bool {
        self.description(context.engine()).is_some_and(is_ordered)
    }

    /// Posts what waited for room.
    pub(super) fn post_waiting_commands(&mut self) {
        while self.send.has_room()
            && let Some(command) = self.ordered.waiting.pop_front()
        {
            self.post_command(command);
        }
        self.ring_doorbell();
    }

    pub(super) fn post_command(&mut self, command: ControlCommand) {
        if Change::by(&command).is_some() {
            self.ordered.under_way += 1;
            self.wake_when_sent();
        }
        self.post(SendDescriptor::Control { epoch: self.epoch, command: Box::new(command) });
    }

    /// Posts a command, now or when there is room: it takes something away, or changes it.
    pub(super) fn post_or_wait(&mut self, command: ControlCommand) {
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

/// Whether the contexts of an engine come and go on the send ring.
pub(super) fn is_ordered(engine: &EngineDescription) -> bool {
    engine.info.ring == CommandRing::Send
}
