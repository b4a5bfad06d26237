//! Completion of commands: answered, all requested data sent, and the buffer back from the device.

use super::{ActiveCommand, INDEX_MASK, Queue};
use crate::core::queue::{CommandData, DeviceOrder, FinishedCommand, Submission};
use crate::wire::{Completion, Status};

impl Queue {
    /// Asks the device to release a buffer, and waits for it.
    pub(super) fn recall_buffer(&mut self, id: u16) {
        self.orders.push_back(DeviceOrder::Release { command: id });
        self.homing.push(id);
    }

    /// Continues with a command that waited for its buffer.
    pub(super) fn finish_if_returned(&mut self, id: u16) {
        if self.active(id).is_none() {
            return;
        }
        if self.take_returned_buffer(id) {
            self.finish_if_done(id);
        } else {
            self.homing.push(id);
        }
    }

    /// Takes a returned buffer, and passes the buffer of an abandoned command to its task. Returns false if a device
    /// still has a part.
    pub(super) fn take_returned_buffer(&mut self, id: u16) -> bool {
        let Some(active) = self.active(id) else { return true };
        let Some(landing) = active.landing.take_if(|landing| landing.is_home()) else {
            return active.landing.is_none();
        };
        active.submission.payload = CommandData::Read(landing.finish());
        // The task of an abandoned read waits for the buffer only, not for the controller's answer.
        if active.abandoned {
            let payload = core::mem::take(&mut active.submission.payload);
            let submission = Submission { command: active.submission.command, payload };
            let completion = Completion { command: id, status: Status::ABORTED_BY_HOST, ..Completion::default() };
            self.finished.push_back(FinishedCommand { id, completion, submission });
        }
        true
    }

    /// Completes the command if it is answered, all requested data have been sent, and its buffer is back.
    pub(super) fn finish_if_done(&mut self, id: u16) {
        let done = |active: &&mut ActiveCommand| active.response.is_some() && active.outstanding == 0;
        if self.active(id).filter(done).is_none() {
            return;
        }
        if !self.take_returned_buffer(id) {
            if !self.homing.contains(&id) {
                self.recall_buffer(id);
            }
            return;
        }
        let index = id & INDEX_MASK;
        let slot = &mut self.slots[usize::from(index)];
        let Some(active) = slot.active.take() else { return };
        self.free.push(index);
        let Some(mut completion) = active.response.filter(|_| !active.abandoned) else { return };
        let reads = matches!(active.submission.payload, CommandData::Read(_));
        if completion.status.is_success() && active.damaged {
            // NVMe/TCP Transport Specification 1.0, 3.3.1.1.2: a wrong data digest fails the command, not the
            // connection.
            completion.status = Status::TRANSIENT_TRANSPORT_ERROR;
        // A controller that reports success without having sent all data must not make the host trust old buffer
        // contents.
        } else if completion.status.is_success() && reads && active.received < active.total {
            completion.status = Status::DATA_TRANSFER_ERROR;
        }
        let mut submission = active.submission;
        if completion.status.is_success()
            && let CommandData::Read(buffer) = &mut submission.payload
            && !buffer.open(submission.command.first_block())
        {
            completion.status = Status::DATA_TRANSFER_ERROR;
        }
        self.finished.push_back(FinishedCommand { id, completion, submission });
    }
}
