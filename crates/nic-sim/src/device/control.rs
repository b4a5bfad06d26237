//! The control ring: contexts come and go; and reset, which takes them all.
//!
//! Commands are carried out a while after the doorbell, whether or not the port can take a frame; and before the next
//! descriptor that is fetched, for it may depend on those that were given before it.

use crate::context::Subject;
use crate::device::Device;
use crate::dma;
use crate::packet::{ControlCommand, ControlCompletion, Spec};
use crate::steering::Key;
use offload_api::{Direction, FlowKey, Handle};
use offload_base::Instant;

impl Device {
    /// Resets the device: every context is gone, what was on the send ring is thrown away, and the driver is
    /// told. Receive buffers stay posted.
    pub fn reset(&mut self, now: Instant) {
        self.contexts.clear();
        self.steering.clear();
        self.esp.clear();
        self.flush_send_ring();
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
            self.run_control(now);
        }
    }

    /// Carries out all commands given so far.
    pub(super) fn run_control(&mut self, now: Instant) {
        self.control_due = None;
        while let Some(entry) = self.rings.control.pop() {
            self.dma.control += match &entry.command {
                ControlCommand::Create { .. } | ControlCommand::Destroy { .. } => dma::CONTROL_COMMAND,
                // A descriptor for each piece.
                ControlCommand::Place { pieces, .. } => {
                    dma::CONTROL_QUERY + dma::RECEIVE_DESCRIPTOR * pieces.len() as u64
                }
                ControlCommand::Query { .. } | ControlCommand::Answer { .. } | ControlCommand::Unplace { .. } => {
                    dma::CONTROL_QUERY
                }
                ControlCommand::SetIndirection { table } => dma::CONTROL_QUERY + size_of_val(&**table) as u64,
                ControlCommand::Reuse { .. } => dma::CONTROL_REUSE,
                ControlCommand::Park { .. } => dma::CONTROL_PARK,
            };
            if entry.epoch != self.counters.resets {
                continue;
            }
            let report = entry.report;
            let completion = match entry.command {
                ControlCommand::Create { handle, flow, direction, layer, spec } => {
                    match self.create(handle, flow, direction, layer, spec) {
                        true => ControlCompletion::Created(handle),
                        false => ControlCompletion::Refused(handle),
                    }
                }
                ControlCommand::Reuse { handle, flow, spec } => {
                    // The driver asks for nothing that the engines do not know.
                    let _made = self.create(handle, flow, Direction::Transmit, 0, spec);
                    if !report {
                        continue;
                    }
                    ControlCompletion::Done(handle)
                }
                ControlCommand::Park { handle } => {
                    self.contexts.remove(handle, &mut self.steering);
                    if !report {
                        continue;
                    }
                    ControlCompletion::Done(handle)
                }
                ControlCommand::Query { handle } => {
                    let header = self.contexts.question(handle, &mut self.dma);
                    ControlCompletion::Resync { handle, header }
                }
                ControlCommand::Answer { handle, header, number } => {
                    self.contexts.answer(handle, (header, number), &mut self.dma, &mut self.counters);
                    ControlCompletion::Answered(handle)
                }
                ControlCommand::Place { handle, buffer, pieces } => {
                    self.contexts.place(handle, buffer, pieces);
                    ControlCompletion::Answered(handle)
                }
                ControlCommand::Unplace { handle, buffer } => {
                    self.contexts.unplace(handle, buffer);
                    ControlCompletion::Answered(handle)
                }
                ControlCommand::SetIndirection { table } => {
                    self.new_indirection = Some(table);
                    ControlCompletion::IndirectionSet
                }
                ControlCommand::Destroy { handle } => {
                    self.contexts.remove(handle, &mut self.steering);
                    ControlCompletion::Destroyed(handle)
                }
            };
            // The driver gives no more commands than there is room for completions.
            let _room = self.report(now, completion);
        }
    }

    /// Tells the driver of the last reset, as soon as there is room: in between, it may have been told of others.
    pub(super) fn report_reset(&mut self, now: Instant) {
        if self.reset_unreported {
            let reset = ControlCompletion::Reset { resets: self.counters.resets };
            self.reset_unreported = self.report(now, reset).is_err();
        }
    }

    fn create(&mut self, handle: Handle, flow: FlowKey, direction: Direction, layer: usize, spec: Spec) -> bool {
        let keys = match direction {
            Direction::Transmit => Vec::new(),
            Direction::Receive => vec![Key::Flow(flow, layer)],
        };
        let Device { contexts, steering, dma, .. } = self;
        contexts.create(handle, direction, spec, Subject { flow: Some(flow), keys }, steering, dma)
    }

    pub(super) fn report(&mut self, now: Instant, completion: ControlCompletion) -> Result<(), ControlCompletion> {
        self.rings.control_completions.push(completion)?;
        self.dma.completions += dma::COMPLETION;
        self.interrupt(now);
        Ok(())
    }
}
