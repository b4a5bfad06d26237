//! The control ring: creation and removal of contexts, and reset.
//!
//! Commands run some time after the doorbell, even while the port is busy. They also run before the next descriptor is
//! fetched, because the descriptor may depend on earlier commands.

use crate::queue_pair::QueuePair;
use nic_engine::hosted::Subject;
use nic_rings::dma;
use nic_rings::packet::{ControlCommand, ControlCompletion};
use offload_api::Spec;
use offload_api::{Direction, Handle};
use offload_base::Instant;

impl QueuePair {
    /// Resets the device: removes all contexts, discards the send ring, and informs the driver. Receive buffers stay
    /// posted.
    pub fn reset(&mut self, now: Instant) {
        self.contexts.clear();
        self.steering.clear();
        self.flush_send_ring();
        self.lost.clear();
        self.counters.resets += 1;
        self.show_sent(now);
        self.reset_unreported = true;
        self.report_reset(now);
        // The device's thread may sleep beyond the time of the interrupt started here.
        self.rings.doorbell.raise();
    }

    /// Executes commands that are due.
    pub(super) fn run_control_when_due(&mut self, now: Instant) {
        if self.control_due.is_some_and(|due| due <= now) {
            let used = self.used();
            self.run_control(now);
            self.occupy(now, used);
        }
    }

    /// Executes all commands posted so far.
    pub(super) fn run_control(&mut self, now: Instant) {
        self.control_due = None;
        while let Some(entry) = self.rings.control.pop() {
            self.dma.control += bytes_of(&entry.command);
            // Commands from before a reset refer to contexts that are gone.
            if entry.epoch != self.counters.resets {
                continue;
            }
            let is_reported =
                entry.report || !matches!(entry.command, ControlCommand::Reuse { .. } | ControlCommand::Park { .. });
            let completion = self.carry_out(entry.command);
            if is_reported {
                // The driver bounds its commands by the size of the completion ring.
                let _ = self.report(now, completion);
            }
        }
    }

    /// Executes a command of the send ring, unless it is from before the last reset.
    pub(super) fn run_command(&mut self, epoch: u64, command: ControlCommand) {
        self.dma.tx_parameters += dma::COMMAND_DESCRIPTOR;
        if epoch == self.counters.resets {
            // The descriptor has its own completion.
            let _ = self.carry_out(command);
        }
    }

    fn carry_out(&mut self, command: ControlCommand) -> ControlCompletion {
        match command {
            ControlCommand::Create { handle, flow, direction, keys, spec } => {
                match self.create(handle, direction, Subject { flow, keys }, spec) {
                    // The driver reserved the handle before; the answer tells only whether the engine accepts the
                    // parameters.
                    true => ControlCompletion::Created(handle),
                    false => ControlCompletion::Refused(handle),
                }
            }
            ControlCommand::Reuse { handle, flow, spec } => {
                // The driver reuses contexts only with parameters that the engine accepted before.
                let subject = Subject { flow: Some(flow), keys: Vec::new() };
                let _ = self.create(handle, Direction::Transmit, subject, spec);
                ControlCompletion::Done(handle)
            }
            ControlCommand::Park { handle } => {
                // The context is removed completely: a parked handle keeps only its slot in the driver's pool.
                self.contexts.remove(handle, &mut self.steering);
                ControlCompletion::Done(handle)
            }
            ControlCommand::Query { handle } => {
                let header = self.contexts.question(handle, &mut self.dma);
                ControlCompletion::Resync { handle, header }
            }
            ControlCommand::Answer { handle, header, number } => {
                self.contexts.answer(handle, (header, number), &mut self.dma);
                ControlCompletion::Answered(handle)
            }
            ControlCommand::Place { handle, buffer, pieces, stages } => {
                self.contexts.place(handle, buffer, pieces, stages);
                ControlCompletion::Answered(handle)
            }
            ControlCommand::Unplace { handle, buffer } => {
                self.contexts.unplace(handle, buffer);
                ControlCompletion::Answered(handle)
            }
            ControlCommand::Command { handle, command } => {
                self.contexts.command(handle, command, &mut self.dma);
                ControlCompletion::Answered(handle)
            }
            ControlCommand::Steer { handle, key, to_it } => {
                self.contexts.steer(handle, key, to_it, &mut self.steering);
                ControlCompletion::Answered(handle)
            }
            ControlCommand::Change { engine, change } => {
                self.contexts.change(engine, change);
                ControlCompletion::Changed(engine)
            }
            ControlCommand::SetIndirection { table } => {
                // The table belongs to the function, which takes it after this call.
                self.new_indirection = Some(table);
                ControlCompletion::IndirectionSet
            }
            ControlCommand::Destroy { handle } => {
                self.contexts.remove(handle, &mut self.steering);
                ControlCompletion::Destroyed(handle)
            }
        }
    }

    /// Reports events of contexts while the completion ring has room.
    pub(super) fn report_events(&mut self, now: Instant) {
        // Room is reserved for answers to commands.
        while self.contexts.may_have_events()
            && self.rings.control_completions.room() > self.config.control_ring
            && let Some(event) = self.contexts.pop_event()
        {
            let _ = self.report(now, ControlCompletion::Event(event));
        }
    }

    /// Removes a transmit context that lacks a key. Software then seals the queued data.
    pub(super) fn lose(&mut self, handle: Handle, key: Handle) {
        self.contexts.remove(handle, &mut self.steering);
        self.lost.push_back((handle, key));
    }

    /// Reports removed contexts with their missing keys while the completion ring has room.
    pub(super) fn report_lost(&mut self, now: Instant) {
        // Room is reserved for answers to commands.
        while self.rings.control_completions.room() > self.config.control_ring
            && let Some((handle, key)) = self.lost.pop_front()
        {
            let _ = self.report(now, ControlCompletion::KeyMissing { handle, key });
        }
    }

    /// Reports the last reset as soon as there is room. Earlier resets may have been reported before.
    pub(super) fn report_reset(&mut self, now: Instant) {
        if self.reset_unreported {
            let reset = ControlCompletion::Reset { resets: self.counters.resets };
            self.reset_unreported = self.report(now, reset).is_err();
        }
    }

    fn create(&mut self, handle: Handle, direction: Direction, subject: Subject, spec: Spec) -> bool {
        let QueuePair { contexts, steering, dma, .. } = self;
        contexts.create(handle, direction, spec, subject, steering, dma)
    }

    pub(super) fn report(&mut self, now: Instant, completion: ControlCompletion) -> Result<(), ControlCompletion> {
        self.rings.control_completions.push(completion)?;
        self.dma.completions += dma::COMPLETION;
        self.interrupt(now);
        Ok(())
    }
}

/// Returns the DMA bytes of a command on the control ring.
fn bytes_of(command: &ControlCommand) -> u64 {
    match command {
        ControlCommand::Create { .. } | ControlCommand::Destroy { .. } => dma::CONTROL_COMMAND,
        // One descriptor per piece, and one for the stages.
        ControlCommand::Place { pieces, stages, .. } => {
            let descriptors = 1 + u64::from(stages.is_some());
            descriptors * dma::CONTROL_QUERY + dma::RECEIVE_DESCRIPTOR * pieces.len() as u64
        }
        ControlCommand::SetIndirection { table } => dma::CONTROL_QUERY + size_of_val(&**table) as u64,
        ControlCommand::Reuse { .. } => dma::CONTROL_REUSE,
        ControlCommand::Park { .. } => dma::CONTROL_PARK,
        ControlCommand::Query { .. }
        | ControlCommand::Answer { .. }
        | ControlCommand::Unplace { .. }
        | ControlCommand::Command { .. }
        | ControlCommand::Steer { .. }
        | ControlCommand::Change { .. } => dma::CONTROL_QUERY,
    }
}
