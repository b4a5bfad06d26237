//! PDUs from the controller, each checked against its command.

use super::{NvmeQueueState, Queue, ReadDestination};
use crate::core::queue::{CommandData, QueueError};
use crate::wire::{
    Completion, DataHeader, FatalError, FatalStatus, InitializeResponse, Pdu, PduFraming, PduItem, PduLimits,
    ReadyToTransfer,
};
use offload_api::RxSegment;

impl Queue {
    /// Returns whether to continue polling the receiver.
    pub(super) fn handle_received(&mut self, received: Option<PduItem>) -> Result<bool, FatalError> {
        match received {
            None => return Ok(false),
            Some(PduItem::Header { pdu, .. }) => match (self.state, pdu) {
                (NvmeQueueState::Opening, Pdu::InitializeResponse(response)) => self.initialize(&response)?,
                (NvmeQueueState::Open, Pdu::Response(completion)) => self.handle_response(completion)?,
                (NvmeQueueState::Open, Pdu::ControllerData(header)) => self.handle_data(&header)?,
                (NvmeQueueState::Open, Pdu::ReadyToTransfer(request)) => self.handle_request(&request)?,
                (_, Pdu::ControllerTermination(termination)) => {
                    self.out.clear();
                    self.close(QueueError::Terminated(termination));
                }
                _ => return Err(self.fatal(FatalStatus::SequenceError, 0)),
            },
            Some(PduItem::Data(segment)) => self.take_data(segment),
            Some(PduItem::DataEnd { intact }) => self.end_data(intact),
        }
        Ok(true)
    }

    fn initialize(&mut self, response: &InitializeResponse) -> Result<(), FatalError> {
        if response.version != 0 {
            return Err(self.fatal(FatalStatus::InvalidHeaderField, 8));
        }
        if response.alignment > MAX_ALIGNMENT {
            return Err(self.fatal(FatalStatus::InvalidHeaderField, 10));
        }
        let (header_digest, data_digest) = (response.header_digest, response.data_digest);
        // The controller may decline a digest, but not enable one that was not requested.
        if (header_digest && !self.config.header_digest) || (data_digest && !self.config.data_digest) {
            return Err(self.fatal(FatalStatus::InvalidHeaderField, 11));
        }
        // NVMe/TCP Transport Specification 1.0, 3.6.2.3: MAXH2CDATA is at least 4096, and a multiple of 4.
        if response.max_data < MIN_MAX_DATA || !response.max_data.is_multiple_of(4) {
            return Err(self.fatal(FatalStatus::InvalidHeaderField, 12));
        }
        self.framing = PduFraming { header_digest, data_digest, alignment: response.alignment };
        let limits = self.receiver.limits();
        self.receiver.set_limits(PduLimits { header_digest, data_digest, alignment: self.config.alignment, ..limits });
        self.max_data = response.max_data;
        self.state = NvmeQueueState::Open;
        Ok(())
    }

    fn handle_response(&mut self, completion: Completion) -> Result<(), FatalError> {
        // A second response to the same command is as wrong as one to an unknown command.
        let Some(active) = self.active(completion.command).filter(|active| active.response.is_none()) else {
            return Err(self.fatal(FatalStatus::InvalidHeaderField, 8 + 12));
        };
        active.response = Some(completion);
        self.finish_if_done(completion.command);
        Ok(())
    }

    fn handle_data(&mut self, header: &DataHeader) -> Result<(), FatalError> {
        let Some(active) = self.active(header.command).filter(|active| active.response.is_none()) else {
            return Err(self.fatal(FatalStatus::InvalidHeaderField, 8));
        };
        // Data of an abandoned read still arrive and are checked like others, to keep the stream valid.
        let reads = matches!(active.submission.payload, CommandData::Read(_)) || active.abandoned;
        let (received, total) = (active.received, active.total);
        if !reads || header.offset != received {
            return Err(self.fatal(FatalStatus::DataOutOfRange, 12));
        }
        if header.length > total - received {
            return Err(self.fatal(FatalStatus::DataOutOfRange, 16));
        }
        if header.success && !header.last {
            return Err(self.fatal(FatalStatus::InvalidHeaderField, 1));
        }
        self.receiving = Some(ReadDestination { id: header.command, offset: header.offset, success: header.success });
        Ok(())
    }

    fn take_data(&mut self, segment: RxSegment) {
        let Some(mut receiving) = self.receiving else { return };
        let emulated = self.is_emulated(&segment.data);
        let Some(active) = self.active(receiving.id) else { return };
        let length = segment.data.len() as u32;
        match (&mut active.landing, &mut active.submission.payload) {
            (Some(landing), _) => landing.take(receiving.offset, segment.data),
            (None, CommandData::Read(_)) if emulated => {}
            (None, CommandData::Read(buffer)) => buffer.put(receiving.offset as usize, &segment.data),
            (None, CommandData::None | CommandData::Write(_) | CommandData::Encrypt(..)) => {}
        }
        active.received += length;
        receiving.offset += length;
        self.receiving = Some(receiving);
    }

    /// Returns whether a measurement treats these data as placed.
    fn is_emulated(&self, data: &[u8]) -> bool {
        self.emulation && data.iter().take(MAGIC_BYTES).all(|byte| *byte == MAGIC)
    }

    fn end_data(&mut self, intact: bool) {
        let Some(receiving) = self.receiving.take() else { return };
        let Some(active) = self.active(receiving.id) else { return };
        active.damaged |= !intact;
        if receiving.success {
            active.response = Some(Completion { command: receiving.id, ..Completion::default() });
            self.finish_if_done(receiving.id);
        }
    }

    fn handle_request(&mut self, request: &ReadyToTransfer) -> Result<(), FatalError> {
        let (requests, max_data) = (self.config.requests.max(1), self.max_data);
        let Some(active) = self.active(request.command).filter(|active| active.response.is_none()) else {
            return Err(self.fatal(FatalStatus::InvalidHeaderField, 8));
        };
        // The controller may request each byte once, in order.
        let sends = matches!(active.submission.payload, CommandData::Write(_) | CommandData::Encrypt(..));
        let end = request.offset.checked_add(request.length).filter(|end| *end <= active.total);
        let (asked, outstanding) = (active.asked, active.outstanding);
        if !sends {
            return Err(self.fatal(FatalStatus::DataOutOfRange, 12));
        }
        if request.length == 0 {
            return Err(self.fatal(FatalStatus::InvalidHeaderField, 16));
        }
        if request.offset < asked {
            return Err(self.fatal(FatalStatus::DataOutOfRange, 12));
        }
        let Some(end) = end else {
            return Err(self.fatal(FatalStatus::DataOutOfRange, 16));
        };
        if outstanding >= requests {
            return Err(self.fatal(FatalStatus::LimitExceeded, 0));
        }
        if let Some(active) = self.active(request.command) {
            active.asked = end;
            active.outstanding += 1;
        }
        // MAXH2CDATA limits a data PDU, so a request may need several.
        let mut offset = request.offset;
        while offset < end {
            let length = (end - offset).min(max_data);
            let last = offset + length == end;
            let header =
                DataHeader { command: request.command, tag: request.tag, offset, length, last, success: false };
            let Some(active) = self.active(request.command) else { break };
            let (data, sealing) = active.submission.part(offset..offset + length);
            self.send(&Pdu::HostData(header), data, sealing, last.then_some(request.command));
            offset += length;
        }
        Ok(())
    }
}

/// Byte that marks data as placed in a measurement, and the number of bytes to check.
const MAGIC: u8 = 0xcc;
const MAGIC_BYTES: usize = 8;
/// Maximum HPDA and CPDA.
const MAX_ALIGNMENT: u8 = 31;
/// Minimum MAXH2CDATA.
const MIN_MAX_DATA: u32 = 4096;
