//! What the device below a stream does for the queue on it.
//!
//! Whatever the device refuses or loses, the connection goes on in software; after a reset it is asked again.

use super::Offload;
use crate::core::queue::{Order, Queue};
use crate::sending::Sending;
use core::task::{Context, Poll};
use offload_api::{
    DeviceEvent, Handle, NvmeTcpConfig, NvmeTcpDevice, NvmeTcpLimits, Refused, RxMeta, SegmentStream, Verdict, engines,
};
use offload_base::Seq;

/// Who speaks for data in an emulation.
const EMULATED: Handle = Handle { index: Handle::indices(engines::NVME_TCP, 1).start, generation: u32::MAX };

/// One queue's context in a device.
#[derive(Debug, Default)]
pub(super) struct Offloading {
    wanted: Offload,
    handle: Option<Handle>,
    limits: Option<NvmeTcpLimits>,
    /// Where the device thinks a PDU starts.
    question: Option<Seq>,
}

impl Offloading {
    pub(super) fn want(&mut self, offload: Offload) {
        self.wanted = offload;
    }

    /// Hears what the device has to say, and asks it for a context if there is none; false: nothing happened.
    pub(super) fn poll(
        &mut self,
        cx: &mut Context<'_>,
        stream: &mut dyn SegmentStream,
        queue: &mut Queue,
        sending: &mut Sending,
    ) -> bool {
        let wanted = self.wanted.asks_a_device();
        if !wanted && !sending.uses_device() {
            return false;
        }
        let mut progress = false;
        while let Poll::Ready(event) = stream.poll_device_event(cx) {
            progress = true;
            self.hear(&event, queue);
            sending.hear(&event, stream);
        }
        if let (Some(handle), Some(header)) = (self.handle, self.question)
            && let Some(is_header) = queue.began_at(header)
        {
            self.question = None;
            with_device(stream, |device| device.answer_resync(handle, header, is_header));
        }
        if wanted && self.handle.is_none() && queue.is_open() && queue.is_between_pdus() {
            self.add(stream, queue);
        }
        progress
    }

    /// Passes the queue's orders on. Without a device buffers go home at once.
    pub(super) fn carry_out(&mut self, stream: &mut dyn SegmentStream, queue: &mut Queue) {
        while let Some(order) = queue.poll_order() {
            let Some(handle) = self.handle else { continue };
            with_device(stream, |device| match order {
                Order::Place { command, buffer } => device.place(handle, command, buffer),
                Order::Release { command } => device.release(handle, command),
            });
        }
    }

    /// In an emulation, data count as checked.
    pub(super) fn emulate(&self, meta: &mut RxMeta) {
        if self.wanted.is_emulation() {
            meta.marks.set(EMULATED, Verdict::Done);
        }
    }

    /// Gives the context up; all buffers go home.
    pub(super) fn end(&mut self, stream: &mut dyn SegmentStream) {
        self.wanted = Offload::None;
        if let Some(handle) = self.handle.take() {
            with_device(stream, |device| device.remove(handle));
        }
    }

    fn hear(&mut self, event: &DeviceEvent, queue: &mut Queue) {
        match *event {
            DeviceEvent::Ready { handle, .. } if self.handle == Some(handle) => queue.set_placement(self.limits),
            DeviceEvent::ResyncRequested { handle, header, .. } if self.handle == Some(handle) => {
                self.question = Some(header);
            }
            DeviceEvent::Removed { handle, .. } if self.handle == Some(handle) => {
                // Refused by the device itself: it would be again.
                (self.handle, self.question, self.wanted) = (None, None, Offload::None);
                queue.set_placement(None);
            }
            DeviceEvent::Reset => {
                (self.handle, self.question) = (None, None);
                queue.set_placement(None);
            }
            _ => {}
        }
    }

    fn add(&mut self, stream: &mut dyn SegmentStream, queue: &Queue) {
        let Some(start) = stream.next_seq() else {
            // Over TLS that is not known while a part of a record is here.
            if !stream.control(&mut |_, _| ()) {
                self.wanted = Offload::None;
            }
            return;
        };
        let framing = queue.framing();
        let config = NvmeTcpConfig {
            header_digest: framing.header_digest,
            data_digest: framing.data_digest,
            alignment: queue.alignment(),
            check: framing.data_digest && self.wanted == Offload::PlaceAndCheck,
            over_tls: false,
        };
        let mut added = None;
        stream.control(&mut |flow, device| {
            added = device.nvme().map(|device| (device.add(&flow, start, &config), device.limits()));
        });
        match added {
            Some((Ok(handle), limits)) => (self.handle, self.limits) = (Some(handle), Some(limits)),
            // Later, maybe.
            Some((Err(Refused::Busy | Refused::Resetting), _)) => {}
            Some((Err(_), _)) | None => self.wanted = Offload::None,
        }
    }
}

fn with_device(stream: &mut dyn SegmentStream, f: impl FnOnce(&mut dyn NvmeTcpDevice)) {
    let mut f = Some(f);
    stream.control(&mut |_, device| {
        if let (Some(device), Some(f)) = (device.nvme(), f.take()) {
            f(device);
        }
    });
}
