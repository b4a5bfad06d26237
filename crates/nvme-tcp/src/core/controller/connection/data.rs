//! Data that hosts send: requested as budget and tags allow, and accepted only where requested.

use super::{Connection, DataDestination, DataRequest};
use crate::core::controller::Target;
use crate::wire::{DataHeader, FatalError, FatalStatus, Pdu, ReadyToTransfer, Status};
use offload_api::RxSegment;
use offload_base::Instant;

impl Connection {
    /// Requests the data of waiting commands, as budget and tags allow.
    pub(super) fn ask(&mut self) {
        while let Some(&id) = self.unasked.front() {
            let Some(incoming) = self.commands.get_mut(&id) else {
                self.unasked.pop_front();
                continue;
            };
            let total = incoming.total as usize;
            if !incoming.admitted {
                // A single command may exceed the budget, because otherwise it could never run.
                if self.asked_bytes > 0 && self.asked_bytes + total > self.config.budget {
                    return;
                }
                let Some(charge) = self.account.take_or_wait(total) else { return };
                incoming.charge = Some(charge);
                incoming.admitted = true;
                self.asked_bytes += total;
            }
            while incoming.asked < incoming.total && incoming.outstanding < self.requests_each {
                let Some(tag) = self.free_tags.pop().or_else(|| {
                    let tag = u16::try_from(self.requests.len()).ok().filter(|tag| *tag < TAGS)?;
                    self.requests.push(None);
                    Some(tag)
                }) else {
                    return;
                };
                // All requests but the last end at a multiple of 4 bytes, as MAXH2CDATA does.
                let length = (self.config.request_bytes & !3).max(4).min(incoming.total - incoming.asked);
                let offset = incoming.asked;
                self.requests[usize::from(tag)] = Some(DataRequest { command: id, next: offset, end: offset + length });
                incoming.asked += length;
                incoming.outstanding += 1;
                let request = ReadyToTransfer { command: id, tag, offset, length };
                let pdu = self.framing.frame(&Pdu::ReadyToTransfer(request), []);
                self.out_bytes += pdu.len() as usize;
                self.out.push_back(pdu);
            }
            // If bytes are left, the command is queued again when one of its requests is answered.
            self.unasked.pop_front();
        }
    }

    pub(super) fn handle_data(&mut self, header: &DataHeader) -> Result<(), FatalError> {
        // A tag that no controller could have sent is a sequence error; an idle tag is an invalid field.
        if header.tag >= TAGS {
            return Err(self.fatal(FatalStatus::SequenceError, 10));
        }
        let Some(Some(request)) = self.requests.get(usize::from(header.tag)).copied() else {
            return Err(self.fatal(FatalStatus::InvalidHeaderField, 10));
        };
        if request.command != header.command {
            return Err(self.fatal(FatalStatus::SequenceError, 8));
        }
        if header.offset != request.next {
            return Err(self.fatal(FatalStatus::DataOutOfRange, 12));
        }
        if header.length > request.end - request.next {
            return Err(self.fatal(FatalStatus::DataOutOfRange, 16));
        }
        if header.last != (request.next + header.length == request.end) {
            return Err(self.fatal(FatalStatus::InvalidHeaderField, 1));
        }
        self.receiving = Some(DataDestination {
            command: Some(header.command),
            offset: header.offset,
            end: request.end,
            tag: Some(header.tag),
        });
        Ok(())
    }

    pub(super) fn take_data(&mut self, segment: RxSegment) {
        let Some(receiving) = self.receiving.as_mut() else { return };
        let length = segment.data.len() as u32;
        let (offset, end) = (receiving.offset, receiving.end);
        receiving.offset += length;
        self.received += u64::from(length);
        if let Some(incoming) = receiving.command.and_then(|id| self.commands.get_mut(&id)) {
            incoming.received += length;
            // Data of a refused command still have to be received, to reach the next PDU, but are not stored.
            if incoming.refused.is_none() {
                let charge = &mut incoming.charge;
                let keep = |more| charge.as_mut().is_some_and(|charge| charge.grow(more));
                incoming.data.take(offset, end, segment.data, self.config.receive_buffer, keep);
            }
        }
    }

    pub(super) fn end_data(&mut self, now: Instant, intact: bool, target: &mut Target) {
        let Some(DataDestination { command: Some(id), offset, tag, .. }) = self.receiving.take() else { return };
        let Some(incoming) = self.commands.get_mut(&id) else { return };
        if !intact && incoming.refused.is_none() {
            // NVMe/TCP Transport Specification 1.0, 3.3.1.1.2: a wrong data digest fails the command, not the
            // connection.
            incoming.refused = Some(Status::TRANSIENT_TRANSPORT_ERROR);
            incoming.data.clear();
        }
        if let Some(tag) = tag
            && let Some(Some(request)) = self.requests.get_mut(usize::from(tag))
        {
            request.next = offset;
            if request.next == request.end {
                self.requests[usize::from(tag)] = None;
                self.free_tags.push(tag);
                incoming.outstanding -= 1;
                // In front of the waiting commands: the command is admitted and charged already.
                if incoming.asked < incoming.total {
                    self.unasked.push_front(id);
                }
            }
        }
        if incoming.received == incoming.total {
            self.start(now, id, target);
        }
        self.ask();
    }
}

/// The transfer tags of a connection.
const TAGS: u16 = 1024;
