//! Contexts of TLS, and of engines that were added to a NIC, as the driver knows them: which exist, and where the device stands
//! in the stream of each.
//!
//! A context is created at once as far as the host is concerned; commands and packets reach the device in order.
//! It is given up only after everything posted with it is done, and its place is used again, under the next
//! generation, only after the device has said that it is gone. A transmit context may also go to a pool instead: the
//! device forgets its key and keeps its place, and the next flow's key goes there, in the order of the control ring,
//! with nothing to wait for.

use crate::Driver;
use crate::recovery::Sending;
use nic_rings::packet::{ControlCommand, ControlCompletion, ControlEntry};
use offload_api::{
    ContextNews, DeviceEvent, Direction, EngineInfo, FlowKey, Handle, Refused, Slots, TlsResync, engines,
};
use offload_base::Seq;
use offload_formats::Headers;
use std::collections::VecDeque;

/// All contexts, by place.
#[derive(Debug)]
pub(super) struct Contexts {
    /// By engine.
    slots: Vec<Slots<Shadow>>,
    /// Places where the device keeps a TLS context without a key, for transmission.
    pool: Vec<Handle>,
    /// How many contexts are to be given up when their last descriptor is done.
    leaving: usize,
    /// Contexts that nothing uses any more, to be given up as soon as a command fits.
    left: VecDeque<Handle>,
    commands_under_way: usize,
    /// Answers to questions of the device that found no place on the control ring.
    answers: VecDeque<Answer>,
}

/// What software says about the header at a place: the number of its record, or that there is none.
type Answer = (Handle, Seq, Option<u64>);

/// What the driver remembers of a context.
#[derive(Debug)]
pub(super) struct Shadow {
    pub(super) flow: Option<FlowKey>,
    direction: Direction,
    leaving: bool,
    sending: Sending,
    /// Descriptors under way that use the context.
    under_way: u32,
}

impl Shadow {
    pub(super) fn new(flow: Option<FlowKey>, direction: Direction) -> Shadow {
        Shadow { flow, direction, leaving: false, sending: Sending::default(), under_way: 0 }
    }

    fn can_transmit(&self) -> bool {
        self.direction == Direction::Transmit && !self.leaving
    }
}

impl Contexts {
    pub(super) fn new(infos: &[EngineInfo]) -> Contexts {
        let slots = |info: &EngineInfo| {
            // NVMe/TCP contexts and SAs have tables of their own.
            let elsewhere = matches!(info.number, engines::NVME_TCP | engines::ESP);
            Slots::new(Handle::indices(info.number, if elsewhere { 0 } else { info.contexts }))
        };
        Contexts {
            slots: infos.iter().map(slots).collect(),
            pool: Vec::new(),
            leaving: 0,
            left: VecDeque::new(),
            commands_under_way: 0,
            answers: VecDeque::new(),
        }
    }

    /// Whether packets may name this context.
    pub(super) fn can_transmit(&self, handle: Handle) -> bool {
        self.shadow(handle).is_some_and(Shadow::can_transmit)
    }

    /// A transmit context that packets may name.
    pub(super) fn sending(&self, handle: Handle) -> Option<&Sending> {
        let shadow = self.shadow(handle).filter(|shadow| shadow.can_transmit())?;
        Some(&shadow.sending)
    }

    pub(super) fn sending_mut(&mut self, handle: Handle) -> Option<&mut Sending> {
        let shadow = self.shadow_mut(handle).filter(|shadow| shadow.can_transmit())?;
        Some(&mut shadow.sending)
    }

    /// A descriptor that uses the context was posted.
    pub(super) fn note_posted(&mut self, handle: Handle) {
        if let Some(shadow) = self.shadow_mut(handle) {
            shadow.under_way += 1;
        }
    }

    /// One was done.
    pub(super) fn note_done(&mut self, handle: Handle) {
        let Some(shadow) = self.shadow_mut(handle) else { return };
        shadow.under_way -= 1;
        if shadow.leaving && shadow.under_way == 0 {
            self.leaving -= 1;
            self.left.push_back(handle);
        }
    }

    pub(super) fn waits_for_sends(&self) -> bool {
        self.leaving > 0
    }

    /// The flow of a context that nobody has given up.
    fn live_flow(&self, handle: Handle) -> Option<FlowKey> {
        self.shadow(handle).filter(|shadow| !shadow.leaving)?.flow
    }

    pub(super) fn shadow(&self, handle: Handle) -> Option<&Shadow> {
        self.slots.get(usize::from(handle.engine()))?.get(handle)
    }

    fn shadow_mut(&mut self, handle: Handle) -> Option<&mut Shadow> {
        self.slots.get_mut(usize::from(handle.engine()))?.get_mut(handle)
    }

    /// Takes a place of an engine.
    pub(super) fn insert(&mut self, engine: u8, shadow: Shadow) -> Option<Handle> {
        self.slots.get_mut(usize::from(engine))?.insert(shadow).ok()
    }

    /// Takes a place of TLS: for a transmit context one from the pool, if there is any, for others only if there is no other.
    /// True if it came from there.
    pub(super) fn occupy(&mut self, shadow: Shadow) -> Option<(Handle, bool)> {
        let slots = &mut self.slots[usize::from(engines::TLS)];
        let shadow = match shadow.direction {
            Direction::Receive => match slots.insert(shadow) {
                Ok(handle) => return Some((handle, false)),
                Err(shadow) => shadow,
            },
            Direction::Transmit => shadow,
        };
        match self.pool.pop() {
            Some(handle) => slots.fill(handle, shadow).ok().map(|()| (handle, true)),
            None => slots.insert(shadow).ok().map(|handle| (handle, false)),
        }
    }

    /// Empties a place; it is used again under the next generation.
    pub(super) fn vacate(&mut self, handle: Handle) -> Option<Shadow> {
        let shadow = self.slots.get_mut(usize::from(handle.engine()))?.remove(handle)?;
        self.leaving -= usize::from(shadow.leaving && shadow.under_way > 0);
        Some(shadow)
    }

    /// The same, and the device keeps a context there.
    pub(super) fn park(&mut self, handle: Handle) -> Option<Shadow> {
        let (shadow, next) = self.slots[usize::from(engines::TLS)].reserve(handle)?;
        self.leaving -= usize::from(shadow.leaving && shadow.under_way > 0);
        self.pool.push(next);
        Some(shadow)
    }

    /// Empties all places: a reset is the one thing that costs as much as there are contexts.
    fn vacate_all(&mut self) {
        for slots in &mut self.slots {
            let all: Vec<Handle> = slots.handles().collect();
            for handle in all {
                slots.remove(handle);
            }
        }
        for parked in self.pool.drain(..) {
            self.slots[usize::from(engines::TLS)].release(parked);
        }
        self.leaving = 0;
        self.left.clear();
        self.answers.clear();
        self.commands_under_way = 0;
    }
}

impl Driver {
    /// Takes note of what the device reports on the control ring.
    pub(super) fn reap_control(&mut self) {
        while let Some(completion) = self.rings.control_completions.pop() {
            if !matches!(completion, ControlCompletion::Reset { .. } | ControlCompletion::Event(_)) {
                self.contexts.commands_under_way = self.contexts.commands_under_way.saturating_sub(1);
            }
            match completion {
                ControlCompletion::Created(handle) => {
                    if let Some(flow) = self.nvme.flow(handle) {
                        self.events.push_back(DeviceEvent::Ready { flow, handle });
                    } else if let Some(shadow) = self.contexts.shadow(handle)
                        && shadow.direction == Direction::Receive
                    {
                        match shadow.flow {
                            Some(flow) => self.events.push_back(DeviceEvent::Ready { flow, handle }),
                            None => self.news.push_back(ContextNews::Ready(handle)),
                        }
                    }
                }
                ControlCompletion::Resync { handle, header } if handle.engine() == engines::NVME_TCP => {
                    if let (Some(flow), Some(header)) = (self.nvme.flow(handle), header) {
                        self.events.push_back(DeviceEvent::ResyncRequested { flow, handle, header });
                    }
                }
                ControlCompletion::Resync { handle, header } => self.end_query(handle, header),
                ControlCompletion::Answered(_)
                | ControlCompletion::Done(_)
                | ControlCompletion::Changed(_)
                | ControlCompletion::IndirectionSet => {}
                ControlCompletion::Refused(handle) | ControlCompletion::Destroyed(handle) => {
                    if let Some(flow) = self.nvme.vacate(handle) {
                        self.events.push_back(DeviceEvent::Removed { flow, handle });
                    } else if let Some(shadow) = self.contexts.vacate(handle) {
                        self.note_removed(&shadow, handle);
                    }
                }
                ControlCompletion::Event(event) if event.context.engine() == engines::ESP => self.sas.note(event),
                ControlCompletion::Event(event) => self.news.push_back(ContextNews::Event(event)),
                ControlCompletion::Reset { resets } => {
                    self.contexts.vacate_all();
                    self.sas.vacate_all();
                    self.nvme.vacate_all();
                    self.epoch = resets;
                    self.events.push_back(DeviceEvent::Reset);
                }
            }
        }
        self.retry_answers();
        self.finish_removals();
        self.give_waiting();
    }

    /// Has the device give up the contexts that nothing needs any more.
    pub(super) fn finish_removals(&mut self) {
        if self.contexts.left.is_empty() {
            return;
        }
        while let Some(handle) = self.contexts.left.front().copied() {
            // The device may have refused it meanwhile.
            if self.contexts.shadow(handle).is_some() && self.give_up(handle).is_err() {
                break;
            }
            self.contexts.left.pop_front();
        }
        self.ring_doorbell();
    }

    /// Has the device destroy a context, or keep it for another flow.
    fn give_up(&mut self, handle: Handle) -> Result<(), Refused> {
        let is_tls = handle.engine() == engines::TLS;
        let transmits =
            is_tls && self.contexts.shadow(handle).is_some_and(|shadow| shadow.direction == Direction::Transmit);
        if !transmits || self.contexts.pool.len() >= self.config.tls_context_pool {
            self.command(ControlCommand::Destroy { handle })?;
            self.counters.tx_tls_pool_free += u64::from(transmits);
            return Ok(());
        }
        self.command_unreported(ControlCommand::Park { handle })?;
        if let Some(shadow) = self.contexts.park(handle) {
            self.note_removed(&shadow, handle);
            // Whoever serves interrupts may be asleep, and the device will not report this.
            self.rings.interrupt.raise();
        }
        Ok(())
    }

    fn note_removed(&mut self, shadow: &Shadow, handle: Handle) {
        match shadow.flow {
            Some(flow) => self.events.push_back(DeviceEvent::Removed { flow, handle }),
            None => self.news.push_back(ContextNews::Removed(handle)),
        }
    }

    /// Gives the answers for which there was no place on the control ring.
    fn retry_answers(&mut self) {
        if self.contexts.answers.is_empty() {
            return;
        }
        while let Some((handle, header, number)) = self.contexts.answers.front().copied() {
            if self.contexts.shadow(handle).is_none() {
                self.counters.rx_tls_resync_req_skip += of_tls(handle);
            } else if self.command(ControlCommand::Answer { handle, header, number }).is_err() {
                break;
            }
            self.contexts.answers.pop_front();
        }
        self.ring_doorbell();
    }

    /// Asks the device where it thinks a unit starts, after the packet in `frame`.
    pub(super) fn query_resync(&mut self, handle: Handle, frame: &[u8]) {
        let flow = self.contexts.live_flow(handle);
        let Some(flow) = flow.filter(|_| self.command(ControlCommand::Query { handle }).is_ok()) else {
            self.counters.rx_tls_resync_req_skip += of_tls(handle);
            return;
        };
        self.counters.rx_tls_resync_req_start += of_tls(handle);
        self.ring_doorbell();
        if handle.engine() == engines::TLS
            && self.config.tls_resync == TlsResync::Asynchronous
            && let Some(transport) = Headers::parse(frame).transport()
        {
            let from = transport.seq(frame);
            let to = from + (transport.payload_len()) as u32;
            self.events.push_back(DeviceEvent::ResyncStarted { flow, handle, from, to });
        }
    }

    /// The device told where it thinks a record starts, or that it does not wait for an answer any more.
    fn end_query(&mut self, handle: Handle, header: Option<Seq>) {
        let flow = self.contexts.live_flow(handle);
        if let (Some(flow), Some(header)) = (flow, header) {
            self.counters.rx_tls_resync_req_end += of_tls(handle);
            self.events.push_back(DeviceEvent::ResyncRequested { flow, handle, header });
            return;
        }
        self.counters.rx_tls_resync_req_skip += of_tls(handle);
        if let (Some(flow), TlsResync::Asynchronous, engines::TLS) = (flow, self.config.tls_resync, handle.engine()) {
            self.events.push_back(DeviceEvent::ResyncCancelled { flow, handle });
        }
    }

    pub(super) fn has_room_for_control(&self) -> bool {
        // One place is kept for the report of a reset.
        self.contexts.commands_under_way + 1 < self.config.control_ring && self.rings.control.room() > 0
    }

    /// Stages a command, if its completion will have room.
    pub(super) fn command(&mut self, command: ControlCommand) -> Result<(), Refused> {
        if !self.has_room_for_control() {
            return Err(Refused::Busy);
        }
        self.stage_command(command, true)
    }

    /// Stages a command that needs no completion. It gets one if it takes the last place: a task that waits for a place
    /// would not hear of it otherwise. (Where there is no room for a completion, one is to come.)
    pub(super) fn command_unreported(&mut self, command: ControlCommand) -> Result<(), Refused> {
        let report = self.rings.control.room() == 1 && self.has_room_for_control();
        self.stage_command(command, report)
    }

    fn stage_command(&mut self, command: ControlCommand, report: bool) -> Result<(), Refused> {
        let entry = ControlEntry { epoch: self.epoch, report, command };
        self.rings.control.stage(entry).map_err(|_| Refused::Busy)?;
        self.contexts.commands_under_way += usize::from(report);
        Ok(())
    }
}

impl Driver {
    /// Tells a context whether a unit starts where it thinks, now or when there is room.
    pub(super) fn answer_question(&mut self, handle: Handle, header: Seq, number: Option<u64>) {
        if self.contexts.shadow(handle).is_none() {
            self.counters.rx_tls_resync_req_skip += of_tls(handle);
            return;
        }
        if self.command(ControlCommand::Answer { handle, header, number }).is_ok() {
            self.ring_doorbell();
            return;
        }
        if self.contexts.answers.len() < ANSWERS_AT_MOST {
            self.contexts.answers.push_back((handle, header, number));
            self.counters.rx_tls_resync_res_retry += of_tls(handle);
        } else {
            // The device asks again if it still waits by then, or is told again.
            self.counters.rx_tls_resync_req_skip += of_tls(handle);
        }
    }

    /// Gives a context up when nothing uses it any more.
    pub(super) fn remove_context(&mut self, handle: Handle) {
        let Some(shadow) = self.contexts.shadow_mut(handle) else { return };
        if core::mem::replace(&mut shadow.leaving, true) {
            return;
        }
        let unused = shadow.under_way == 0;
        match shadow.direction {
            _ if handle.engine() != engines::TLS => {}
            Direction::Transmit => self.counters.tx_tls_del += 1,
            Direction::Receive => self.counters.rx_tls_del += 1,
        }
        if unused {
            self.contexts.left.push_back(handle);
        } else {
            self.contexts.leaving += 1;
            self.wake_when_sent();
        }
        self.reap_sent();
        self.finish_removals();
    }
}

/// What one context of TLS counts for among what is counted of TLS; others are not.
fn of_tls(handle: Handle) -> u64 {
    u64::from(handle.engine() == engines::TLS)
}

/// Answers that wait for a place on the control ring.
const ANSWERS_AT_MOST: usize = 64;
