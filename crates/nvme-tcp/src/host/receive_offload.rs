//! Receive offload by the device below a stream.
//!
//! If the device refuses or loses the context, the connection continues in software and the device is asked again:
//! after a [reset](DeviceEvent::Reset) at once, otherwise with later PDUs.
//!
//! Invariant: a context begins at a PDU of which no byte has arrived, because the device does not see received bytes
//! again.

use super::Offload;
use crate::context_request::{ContextRequest, SharedCounters};
use crate::core::queue::{DeviceOrder, Queue};
use crate::pdu_sender::PduSender;
use crate::volume::NamedKeys;
use core::task::{Context, Poll};
use offload_api::{
    DeviceEvent, Handle, NvmeTcpConfig, NvmeTcpContexts, NvmeTcpLimits, NvmeTcpStages, RxMeta, SegmentStream,
    StageSpec, Verdict, XTS_STAGE, engines,
};
use offload_base::Seq;
use tracing::Span;

/// Handle that marks data in an emulation.
const EMULATED: Handle = Handle { index: Handle::indices(engines::NVME_TCP, 1).start, generation: u32::MAX };

/// The receive context of one queue.
#[derive(Debug, Default)]
pub(super) struct ReceiveOffload {
    wanted: Offload,
    asking: ContextRequest,
    handle: Option<Handle>,
    limits: Option<NvmeTcpLimits>,
    /// Whether the device may decrypt data. It must not if software has to compute digests of the encrypted data.
    settles: bool,
    /// Position of a PDU header to be confirmed for a resync.
    question: Option<Seq>,
}

impl ReceiveOffload {
    pub(super) fn set_offload(&mut self, offload: Offload, counters: &SharedCounters, span: &Span) {
        (self.wanted, self.asking) = (offload, ContextRequest::new(counters, span));
        if offload.uses_device() {
            self.asking.begin();
        }
    }

    /// Handles device events. Returns false if there were none.
    pub(super) fn poll(
        &mut self,
        cx: &mut Context<'_>,
        stream: &mut dyn SegmentStream,
        queue: &mut Queue,
        sending: &mut PduSender,
    ) -> bool {
        if self.handle.is_none() && !self.asking.waits() && !sending.watches_device() {
            return false;
        }
        let mut progress = false;
        while let Poll::Ready(event) = stream.poll_device_event(cx) {
            progress = true;
            self.handle_device_event(&event, stream, queue);
            sending.handle_device_event(&event, stream);
        }
        // The device asks about a position that the stream may not have reached yet.
        if let (Some(handle), Some(header)) = (self.handle, self.question)
            && let Some(is_header) = queue.began_at(header)
        {
            self.question = None;
            with_device(stream, |device| device.answer_resync(handle, header, is_header));
        }
        progress
    }

    /// Asks the device for a context, if it is time. Called when the transport is drained.
    pub(super) fn ask(&mut self, stream: &mut dyn SegmentStream, queue: &Queue) {
        if !self.asking.is_due() || !queue.is_open() {
            return;
        }
        let Some(start) = queue.rest_of_pdu().and_then(|rest| stream.seq_after(rest)) else {
            // Over TLS, the position is unknown while a record is incomplete.
            if !stream.control(&mut |_, _| ()) {
                self.asking.note_no_device();
            }
            return;
        };
        // A retransmitted segment may already have shown the device's flow bytes beyond `start`.
        if stream.furthest_seq().is_some_and(|furthest| start.before(furthest)) {
            return;
        }
        let framing = queue.framing();
        let config = NvmeTcpConfig {
            header_digest: framing.header_digest,
            data_digest: framing.data_digest,
            alignment: queue.alignment(),
            check: framing.data_digest && self.wanted == Offload::PlaceAndCheck,
        };
        self.settles = config.check || !config.data_digest;
        self.handle = self.asking.ask(stream, |flow, device| device.add(flow, start, &config));
        if self.handle.is_some() {
            with_device(stream, |device| self.limits = Some(device.limits()));
        }
    }

    /// Notes one more PDU of the queue.
    pub(super) fn note_unit(&mut self) {
        self.asking.note_unit();
    }

    /// Executes the queue's orders. Without a device, dropping an order returns its buffer.
    pub(super) fn execute_orders(&mut self, stream: &mut dyn SegmentStream, queue: &mut Queue, keys: &NamedKeys) {
        while let Some(order) = queue.poll_order() {
            let Some(handle) = self.handle else { continue };
            let settles = self.settles;
            with_device(stream, |device| match order {
                DeviceOrder::Place { command, buffer, volume } => {
                    // Without the device's digest check, software needs the ciphertext, so the device must not decrypt.
                    let key =
                        volume.filter(|_| settles).and_then(|(volume, unit)| Some((keys.name_key(&volume)?, unit)));
                    match key {
                        Some((key, unit)) => {
                            let stages = vec![StageSpec::new(XTS_STAGE, key)];
                            device.place_through(handle, NvmeTcpStages { command, unit, stages }, buffer);
                        }
                        None => device.place(handle, command, buffer),
                    }
                }
                DeviceOrder::Release { command } => device.release(handle, command),
            });
        }
    }

    /// Marks data as checked in an emulation.
    pub(super) fn emulate(&self, meta: &mut RxMeta) {
        if self.wanted.is_emulation() {
            meta.marks.set(EMULATED, Verdict::Done);
        }
    }

    /// Ends offload: removes the context, so that all buffers return.
    pub(super) fn end(&mut self, stream: &mut dyn SegmentStream) {
        self.wanted = Offload::None;
        self.asking.end();
        self.give_up(stream);
    }

    fn give_up(&mut self, stream: &mut dyn SegmentStream) {
        self.question = None;
        if let Some(handle) = self.handle.take() {
            with_device(stream, |device| device.remove(handle));
        }
    }

    fn handle_device_event(&mut self, event: &DeviceEvent, stream: &mut dyn SegmentStream, queue: &mut Queue) {
        match *event {
            DeviceEvent::Ready { handle, .. } if self.handle == Some(handle) => queue.set_placement(self.limits),
            DeviceEvent::ResyncRequested { handle, header, .. } if self.handle == Some(handle) => {
                self.question = Some(header);
            }
            DeviceEvent::Removed { handle, .. } if self.handle == Some(handle) => {
                (self.handle, self.question) = (None, None);
                queue.set_placement(None);
                self.asking.note_lost();
            }
            DeviceEvent::Reset => {
                if self.handle.is_some() || self.asking.waits() {
                    self.asking.begin();
                }
                // The event may be older than the context, so the device may still have the context.
                self.give_up(stream);
                queue.set_placement(None);
            }
            _ => {}
        }
    }
}

fn with_device(stream: &mut dyn SegmentStream, f: impl FnOnce(&mut NvmeTcpContexts<'_>)) {
    let mut f = Some(f);
    stream.control(&mut |_, contexts| {
        if let (Some(mut contexts), Some(f)) = (NvmeTcpContexts::from_contexts(contexts), f.take()) {
            f(&mut contexts);
        }
    });
}
