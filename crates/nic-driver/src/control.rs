//! The control ring: commands given, or kept until there is room, and what the device reports.
//!
//! Invariant: whatever a peer sends, no command waits twice; so no more wait than there are contexts and buffers of theirs.

use crate::Driver;
use crate::contexts::Shadow;
use nic_rings::packet::{ControlCommand, ControlCompletion, ControlEntry};
use offload_api::{ContextNews, DeviceEvent, Direction, Handle, ContextRefusal, ResyncMode};
use offload_base::Seq;
use offload_formats::Headers;
use std::collections::{HashSet, VecDeque};

/// What the driver keeps of the control ring.
#[derive(Debug, Default)]
pub(super) struct ControlQueue {
    /// Commands whose completion is to come.
    under_way: usize,
    /// For when the ring has room; each once.
    waiting: VecDeque<Waiting>,
    /// What is in `waiting`.
    waits: HashSet<Waiting>,
}

/// A command that waits for room. Given a second time meanwhile, it would say nothing new: a query asks for what is so when
/// it is carried out, of answers the last one counts, and no buffer is given while something waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Waiting {
    Query(Handle),
    Answer(Handle),
    Unplace(Handle, u64),
    GiveUp(Handle),
}

impl ControlQueue {
    /// Whether something waits for room.
    pub(super) fn is_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    fn clear(&mut self) {
        *self = ControlQueue::default();
    }
}

impl Driver {
    /// Takes note of what the device reports on the control ring.
    pub(super) fn reap_control(&mut self) {
        while let Some(completion) = self.rings.control_completions.pop() {
            if completion.is_answer() {
                self.control.under_way = self.control.under_way.saturating_sub(1);
            }
            match completion {
                ControlCompletion::Created(handle) => self.note_created(handle),
                ControlCompletion::Resync { handle, header } => self.end_query(handle, header),
                ControlCompletion::Answered(_)
                | ControlCompletion::Done(_)
                | ControlCompletion::Changed(_)
                | ControlCompletion::IndirectionSet => {}
                ControlCompletion::Refused(handle) | ControlCompletion::Destroyed(handle) => {
                    if let Some(shadow) = self.contexts.vacate(handle) {
                        self.note_removed(&shadow, handle);
                    }
                }
                ControlCompletion::KeyMissing { handle, key } => {
                    if let Some(shadow) = self.contexts.vacate(handle) {
                        let missing = |flow| DeviceEvent::KeyMissing { flow, handle, key };
                        self.events.extend(shadow.flow.map(missing));
                        self.note_removed(&shadow, handle);
                    }
                }
                ControlCompletion::Event(event) if self.is_ordered(event.context) => self.ordered.note(event),
                ControlCompletion::Event(event) => self.news.push_back(ContextNews::Event(event)),
                ControlCompletion::Reset { resets } => {
                    self.contexts.vacate_all();
                    self.control.clear();
                    self.ordered.vacate_all();
                    self.epoch = resets;
                    self.events.push_back(DeviceEvent::Reset);
                }
            }
        }
        self.give_waiting();
    }

    fn note_created(&mut self, handle: Handle) {
        let Some(shadow) = self.contexts.shadow(handle) else { return };
        if shadow.direction == Direction::Receive {
            match shadow.flow {
                Some(flow) => self.events.push_back(DeviceEvent::Ready { flow, handle }),
                None => self.news.push_back(ContextNews::Ready(handle)),
            }
        }
    }

    fn note_removed(&mut self, shadow: &Shadow, handle: Handle) {
        match shadow.flow {
            Some(flow) => self.events.push_back(DeviceEvent::Removed { flow, handle }),
            None => self.news.push_back(ContextNews::Removed(handle)),
        }
    }

    /// Asks the device where a context thinks a unit starts, after the packet in `frame`.
    pub(super) fn query_resync(&mut self, handle: Handle, frame: &[u8]) {
        let Some(flow) = self.contexts.live(handle).and_then(|shadow| shadow.flow) else {
            self.counts.of(handle).skipped += 1;
            return;
        };
        self.give_or_wait(Waiting::Query(handle));
        if self.resync_of(handle) == ResyncMode::Asynchronous
            && let Some(transport) = Headers::parse(frame).transport()
        {
            let from = transport.seq(frame);
            let to = from + (transport.payload_len()) as u32;
            self.events.push_back(DeviceEvent::ResyncStarted { flow, handle, from, to });
        }
    }

    /// The device told where it thinks a unit starts, or that it does not wait for an answer any more.
    fn end_query(&mut self, handle: Handle, header: Option<Seq>) {
        let flow = self.contexts.live(handle).and_then(|shadow| shadow.flow);
        if let (Some(flow), Some(header)) = (flow, header) {
            self.counts.of(handle).told += 1;
            self.events.push_back(DeviceEvent::ResyncRequested { flow, handle, header });
            return;
        }
        self.counts.of(handle).skipped += 1;
        if let (Some(flow), ResyncMode::Asynchronous) = (flow, self.resync_of(handle)) {
            self.events.push_back(DeviceEvent::ResyncCancelled { flow, handle });
        }
    }

    fn resync_of(&self, handle: Handle) -> ResyncMode {
        self.description(handle.engine()).map(|engine| engine.info.resync).unwrap_or_default()
    }

    /// Gives the device a command, now or when there is room.
    pub(super) fn give_or_wait(&mut self, command: Waiting) {
        if self.control.is_waiting() || !self.has_room_for_control() {
            if self.control.waits.insert(command) {
                self.control.waiting.push_back(command);
                if let Waiting::Answer(handle) = command {
                    self.counts.of(handle).retried += 1;
                }
            }
            return self.give_waiting();
        }
        // There is room.
        let _given = self.give(command);
        self.ring_doorbell();
    }

    /// Gives the device what waits for room.
    pub(super) fn give_waiting(&mut self) {
        let mut any = false;
        while let Some(command) = self.control.waiting.front().copied()
            && self.give(command).is_ok()
        {
            self.control.waiting.pop_front();
            self.control.waits.remove(&command);
            any = true;
        }
        if any {
            self.ring_doorbell();
        }
    }

    /// Gives the device a command. If its context has gone meanwhile, it says nothing to the device.
    fn give(&mut self, command: Waiting) -> Result<(), ContextRefusal> {
        match command {
            Waiting::Query(handle) if self.contexts.live(handle).is_some() => {
                self.command(ControlCommand::Query { handle })?;
                self.counts.of(handle).asked += 1;
            }
            Waiting::Answer(handle) => match self.contexts.live(handle).and_then(|shadow| shadow.answer) {
                Some((header, number)) => self.command(ControlCommand::Answer { handle, header, number })?,
                None => self.counts.of(handle).skipped += 1,
            },
            Waiting::Unplace(handle, buffer) if self.contexts.live(handle).is_some() => {
                self.command(ControlCommand::Unplace { handle, buffer })?;
            }
            Waiting::GiveUp(handle) => self.give_up(handle)?,
            Waiting::Query(_) | Waiting::Unplace(..) => {}
        }
        Ok(())
    }

    /// Has the device destroy a context that nothing needs, or keep its place for another flow.
    fn give_up(&mut self, handle: Handle) -> Result<(), ContextRefusal> {
        // The device may have refused it meanwhile.
        let Some(shadow) = self.contexts.shadow(handle) else { return Ok(()) };
        let transmits = shadow.direction == Direction::Transmit;
        let pool = self.description(handle.engine()).map_or(0, |engine| engine.info.pool);
        if !transmits || self.contexts.pooled(handle.engine()) >= pool {
            self.command(ControlCommand::Destroy { handle })?;
            self.counts.of(handle).pool_free += u64::from(transmits);
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

    pub(super) fn has_room_for_control(&self) -> bool {
        self.has_room_for_commands(1)
    }

    pub(super) fn has_room_for_commands(&self, commands: usize) -> bool {
        // One place is kept for the report of a reset.
        self.control.under_way + commands < self.config.control_ring && self.rings.control.room() >= commands
    }

    /// Stages a command, if its completion will have room.
    pub(super) fn command(&mut self, command: ControlCommand) -> Result<(), ContextRefusal> {
        if !self.has_room_for_control() {
            return Err(ContextRefusal::Busy);
        }
        self.stage_command(command, true)
    }

    /// Stages a command that needs no completion. It gets one if it takes the last place: a task that waits for a place
    /// would not hear of it otherwise. (Where there is no room for a completion, one is to come.)
    pub(super) fn command_unreported(&mut self, command: ControlCommand) -> Result<(), ContextRefusal> {
        let report = self.rings.control.room() == 1 && self.has_room_for_control();
        self.stage_command(command, report)
    }

    fn stage_command(&mut self, command: ControlCommand, report: bool) -> Result<(), ContextRefusal> {
        let entry = ControlEntry { epoch: self.epoch, report, command };
        self.rings.control.stage(entry).map_err(|_| ContextRefusal::Busy)?;
        self.control.under_way += usize::from(report);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::driver;
    use nic_rings::config::NicConfig;
    use offload_api::{FlowKey, NetDevice, NvmeTcpConfig, TypedContexts};

    /// While the device does not come to look at its control ring, a peer has it lose its place again and again.
    #[test]
    fn what_waits_for_the_control_ring_waits_once() {
        let (mut device, mut driver) = driver(NicConfig { control_ring: 4, ..NicConfig::default() });
        let flow = FlowKey::tcp("10.0.0.2:5000".parse().unwrap(), "10.0.0.1:4420".parse().unwrap());
        let handle = driver.nvme().unwrap().add(&flow, Seq(0), &NvmeTcpConfig::default()).unwrap();
        for round in 0..100_000 {
            driver.query_resync(handle, &[]);
            let mut nvme = driver.nvme().unwrap();
            nvme.answer_resync(handle, Seq(round), round % 2 == 0);
            nvme.release(handle, 7);
        }
        assert_eq!((driver.control.waiting.len(), driver.control.waits.len()), (3, 3));
        let mut carry_out = |driver: &mut Driver| {
            let mut carried_out = Vec::new();
            while let Some(entry) = device.control.pop() {
                device.control_completions.push(ControlCompletion::Answered(handle)).unwrap();
                driver.poll_event();
                carried_out.push(entry.command);
            }
            carried_out
        };
        // A query and an answer had a place at once.
        let [_create, _query, _answer, rest @ ..] = &carry_out(&mut driver)[..] else { panic!("few commands") };
        let [
            ControlCommand::Unplace { buffer: 7, .. },
            ControlCommand::Query { .. },
            ControlCommand::Answer { header: Seq(99_999), number: None, .. },
        ] = rest
        else {
            panic!("{rest:?}")
        };
        driver.nvme().unwrap().remove(handle);
        assert!(matches!(carry_out(&mut driver)[..], [ControlCommand::Destroy { .. }]));
        assert!(!driver.control.is_waiting());
    }
}
