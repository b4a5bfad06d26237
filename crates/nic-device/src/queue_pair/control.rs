//! The control ring: contexts come and go; and reset, which takes them all.
//!
//! Commands are carried out a while after the doorbell, whether or not the port can take a frame; and before the next
//! descriptor that is fetched, for it may depend on those that were given before it.

use crate::queue_pair::QueuePair;
use nic_engine::hosted::Subject;
use nic_rings::dma;
use nic_rings::packet::{ControlCommand, ControlCompletion};
use offload_api::Spec;
use offload_api::{Direction, Handle};
use offload_base::Instant;

impl QueuePair {
    /// Resets the device: every context is gone, what was on the send ring is thrown away, and the driver is
    /// told. Receive buffers stay posted.
    pub fn reset(&mut self, now: Instant) {
        self.contexts.clear();
        self.steering.clear();
        self.flush_send_ring();
        self.lost.clear();
        self.counters.resets += 1;
        self.show_sent(now);
        self.reset_unreported = true;
        self.report_reset(now);
        // Whoever runs the device may be asleep until a later event than the interrupt this starts.
        self.rings.doorbell.raise();
    }

    /// Carries out what was given, if it is time.
    pub(super) fn run_control_when_due(&mut self, now: Instant) {
        if self.control_due.is_some_and(|due| due <= now) {
            let used = self.used();
            self.run_control(now);
            self.occupy(now, used);
        }
    }

    /// Carries out all commands given so far.
    pub(super) fn run_control(&mut self, now: Instant) {
        self.control_due = None;
        while let Some(entry) = self.rings.control.pop() {
            self.dma.control += bytes_of(&entry.command);
            if entry.epoch != self.counters.resets {
                continue;
            }
            let is_reported =
                entry.report || !matches!(entry.command, ControlCommand::Reuse { .. } | ControlCommand::Park { .. });
            let completion = self.carry_out(entry.command);
            if is_reported {
                // The driver gives no more commands than there is room for completions.
                let _room = self.report(now, completion);
            }
        }
    }

    /// Carries out a command of the send ring, unless it is from before the last reset.
    pub(super) fn run_command(&mut self, epoch: u64, command: ControlCommand) {
        self.dma.tx_parameters += dma::COMMAND_DESCRIPTOR;
        if epoch == self.counters.resets {
            // It is reported as a descriptor.
            let _completion = self.carry_out(command);
        }
    }

    fn carry_out(&mut self, command: ControlCommand) -> ControlCompletion {
        match command {
            ControlCommand::Create { handle, flow, direction, keys, spec } => {
                match self.create(handle, direction, Subject { flow, keys }, spec) {
                    true => ControlCompletion::Created(handle),
                    false => ControlCompletion::Refused(handle),
                }
            }
            ControlCommand::Reuse { handle, flow, spec } => {
                // The driver asks for nothing that the engines do not know.
                let subject = Subject { flow: Some(flow), keys: Vec::new() };
                let _made = self.create(handle, Direction::Transmit, subject, spec);
                ControlCompletion::Done(handle)
            }
            ControlCommand::Park { handle } => {
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
                self.new_indirection = Some(table);
                ControlCompletion::IndirectionSet
            }
            ControlCommand::Destroy { handle } => {
                self.contexts.remove(handle, &mut self.steering);
                ControlCompletion::Destroyed(handle)
            }
        }
    }

    /// Tells the host what happened to contexts, as far as there is room.
    pub(super) fn report_events(&mut self, now: Instant) {
        // Answers to commands must find room.
        while self.contexts.may_have_events()
            && self.rings.control_completions.room() > self.config.control_ring
            && let Some(event) = self.contexts.pop_event()
        {
            let _room = self.report(now, ControlCompletion::Event(event));
        }
    }

    /// A transmit context cannot go on without a key that is not there: it is given up, so that software does what is queued for it.
    pub(super) fn lose(&mut self, handle: Handle, key: Handle) {
        self.contexts.remove(handle, &mut self.steering);
        self.lost.push_back((handle, key));
    }

    /// Tells the driver of contexts that were given up so, as far as there is room.
    pub(super) fn report_lost(&mut self, now: Instant) {
        // Answers to commands must find room.
        while self.rings.control_completions.room() > self.config.control_ring
            && let Some((handle, key)) = self.lost.pop_front()
        {
            let _room = self.report(now, ControlCompletion::KeyMissing { handle, key });
        }
    }

    /// Tells the driver of the last reset, as soon as there is room: in between, it may have been told of others.
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

/// What a command weighs on the control ring.
fn bytes_of(command: &ControlCommand) -> u64 {
    match command {
        ControlCommand::Create { .. } | ControlCommand::Destroy { .. } => dma::CONTROL_COMMAND,
        // One descriptor for each piece, and one for the stages.
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
