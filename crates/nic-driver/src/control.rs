//! The control ring: commands, given at once or queued for room, and the device's reports.
//!
//! Invariant: a command is never queued twice, no matter what a peer sends. The queue is therefore bounded by the
//! number of contexts and their buffers.

use crate::Driver;
use crate::contexts::Shadow;
use nic_rings::packet::{ControlCommand, ControlCompletion, ControlEntry};
use offload_api::{ContextNews, ContextRefusal, DeviceEvent, Direction, Handle, ResyncMode};
use offload_base::Seq;
use offload_formats::Headers;
use std::collections::{HashSet, VecDeque};

/// The driver's state of the control ring.
#[derive(Debug, Default)]
pub(super) struct ControlQueue {
    /// Number of commands with an outstanding completion.
    under_way: usize,
    /// Commands queued until the ring has room, each once.
    waiting: VecDeque<WaitingCommand>,
    /// The elements of `waiting`.
    waits: HashSet<WaitingCommand>,
}

/// A command that can wait for room. Queueing it a second time would add nothing: a query reports the state at its
/// execution, only the last answer counts, and no buffer is given while a command waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum WaitingCommand {
    Query(Handle),
    Answer(Handle),
    Unplace(Handle, u64),
    GiveUp(Handle),
}

impl ControlQueue {
    /// Tests whether a command waits for room.
    pub(super) fn is_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    fn clear(&mut self) {
        *self = ControlQueue::default();
    }
}

impl Driver {
    /// Processes the device's reports on the control ring.
    pub(super) fn reap_control(&mut self) {
        while let Some(completion) = self.rings.control_completions.pop() {
            if completion.is_answer() {
                // Saturating, because the report of a reset clears the count.
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
                // The device has discarded its contexts and the commands from before, so no completion for these will
                // come.
                ControlCompletion::Reset { resets } => {
                    self.contexts.vacate_all();
                    self.control.clear();
                    self.ordered.vacate_all();
                    self.epoch = resets;
                    self.events.push_back(DeviceEvent::Reset);
                }
            }
        }
        // Each completion makes room for a command.
        self.give_waiting();
    }

    fn note_created(&mut self, handle: Handle) {
        let Some(shadow) = self.contexts.shadow(handle) else { return };
        // A transmit context is usable at once, so its creation is no news.
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

    /// Queries the position at which a context expects a unit, after the packet in `frame`.
    pub(super) fn query_resync(&mut self, handle: Handle, frame: &[u8]) {
        let Some(flow) = self.contexts.live(handle).and_then(|shadow| shadow.flow) else {
            self.counts.for_context(handle).skipped += 1;
            return;
        };
        self.give_or_wait(WaitingCommand::Query(handle));
        if self.resync_of(handle) == ResyncMode::Asynchronous
            && let Some(transport) = Headers::parse(frame).transport()
        {
            let from = transport.seq(frame);
            let to = from + (transport.payload_len()) as u32;
            self.events.push_back(DeviceEvent::ResyncStarted { flow, handle, from, to });
        }
    }

    /// Processes the device's report of a context's expected unit, or of the end of its wait.
    fn end_query(&mut self, handle: Handle, header: Option<Seq>) {
        let flow = self.contexts.live(handle).and_then(|shadow| shadow.flow);
        if let (Some(flow), Some(header)) = (flow, header) {
            self.counts.for_context(handle).told += 1;
            self.events.push_back(DeviceEvent::ResyncRequested { flow, handle, header });
            return;
        }
        self.counts.for_context(handle).skipped += 1;
        if let (Some(flow), ResyncMode::Asynchronous) = (flow, self.resync_of(handle)) {
            self.events.push_back(DeviceEvent::ResyncCancelled { flow, handle });
        }
    }

    fn resync_of(&self, handle: Handle) -> ResyncMode {
        self.description(handle.engine()).map(|engine| engine.info.resync).unwrap_or_default()
    }

    /// Gives the device a command, now or once there is room.
    pub(super) fn give_or_wait(&mut self, command: WaitingCommand) {
        // Commands that wait go first, to keep the order of a context's commands.
        if self.control.is_waiting() || !self.has_room_for_control() {
            if self.control.waits.insert(command) {
                self.control.waiting.push_back(command);
                if let WaitingCommand::Answer(handle) = command {
                    self.counts.for_context(handle).retried += 1;
                }
            }
            return self.give_waiting();
        }
        // The room was checked above.
        let _ = self.give(command);
        self.ring_doorbell();
    }

    /// Gives the device the queued commands, as far as there is room.
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

    /// Gives the device a command. Does nothing if the command's context is gone meanwhile.
    fn give(&mut self, command: WaitingCommand) -> Result<(), ContextRefusal> {
        match command {
            WaitingCommand::Query(handle) if self.contexts.live(handle).is_some() => {
                self.command(ControlCommand::Query { handle })?;
                self.counts.for_context(handle).asked += 1;
            }
            WaitingCommand::Answer(handle) => match self.contexts.live(handle).and_then(|shadow| shadow.answer) {
                Some((header, number)) => self.command(ControlCommand::Answer { handle, header, number })?,
                None => self.counts.for_context(handle).skipped += 1,
            },
            WaitingCommand::Unplace(handle, buffer) if self.contexts.live(handle).is_some() => {
                self.command(ControlCommand::Unplace { handle, buffer })?;
            }
            WaitingCommand::GiveUp(handle) => self.give_up(handle)?,
            WaitingCommand::Query(_) | WaitingCommand::Unplace(..) => {}
        }
        Ok(())
    }

    /// Lets the device destroy an unused context, or park it for another flow.
    fn give_up(&mut self, handle: Handle) -> Result<(), ContextRefusal> {
        // The device may have refused the context meanwhile.
        let Some(shadow) = self.contexts.shadow(handle) else { return Ok(()) };
        // Only transmit contexts are parked: a receive context must be confirmed, because packets may still arrive for
        // it.
        let transmits = shadow.direction == Direction::Transmit;
        let pool = self.description(handle.engine()).map_or(0, |engine| engine.info.pool);
        if !transmits || self.contexts.pooled(handle.engine()) >= pool {
            self.command(ControlCommand::Destroy { handle })?;
            self.counts.for_context(handle).pool_free += u64::from(transmits);
            return Ok(());
        }
        self.command_unreported(ControlCommand::Park { handle })?;
        if let Some(shadow) = self.contexts.park(handle) {
            self.note_removed(&shadow, handle);
            // The device does not report this command, and the task that serves interrupts may be asleep.
            self.rings.interrupt.raise();
        }
        Ok(())
    }

    pub(super) fn has_room_for_control(&self) -> bool {
        self.has_room_for_commands(1)
    }

    pub(super) fn has_room_for_commands(&self, commands: usize) -> bool {
        // One entry is reserved for the report of a reset.
        self.control.under_way + commands < self.config.control_ring && self.rings.control.room() >= commands
    }

    /// Stages a command if there is room for its completion.
    pub(super) fn command(&mut self, command: ControlCommand) -> Result<(), ContextRefusal> {
        if !self.has_room_for_control() {
            return Err(ContextRefusal::Busy);
        }
        self.stage_command(command, true)
    }

    /// Stages a command that needs no completion. If the command takes the last entry, a completion is requested,
    /// because a task that waits for room would otherwise not be woken. (Without room for another completion, one is
    /// outstanding anyway.)
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

    /// A peer makes the device lose its position repeatedly, while the device does not read its control ring.
    #[test]
    fn control_command_is_queued_only_once() {
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
        // The first query and answer found room at once.
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
