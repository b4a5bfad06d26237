//! From the send ring to the port.
//!
//! Descriptors are worked on strictly in order, a frame at a time: the next one is fetched when the port can
//! take more, so a slow line backs up into the ring, not into the device.

use crate::context::{TlsContext, TlsEngine};
use crate::device::Device;
use crate::dma;
use crate::engine::segmentation::Segmenter;
use crate::engine::tls_record::Walked;
use crate::engine::tls_tx::{TlsTransmit, TransmitError};
use crate::frame::Frame;
use crate::packet::{SendCompletion, SendDescriptor};
use bytes::Bytes;
use core::time::Duration;
use offload_api::{Handle, TxPacket};
use offload_base::{Instant, Seq};
use resumable_aead::Key;

/// The transmit side's state.
#[derive(Debug, Default)]
pub(super) struct TransmitSide {
    activity: Activity,
    /// The packet being sent.
    current: Option<Segmenter>,
    /// When the port has sent what it was given.
    port_free_at: Instant,
    /// Descriptors done and not yet reported.
    done: u32,
    /// Where DUMPs go: through the engine and nowhere.
    scratch: Vec<u8>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Activity {
    /// The ring was empty when last looked at.
    #[default]
    Idle,
    /// A doorbell rang; its descriptors can be acted on from then.
    Fetching { until: Instant },
    /// Working through the ring.
    Sending,
}

impl TransmitSide {
    pub(super) fn is_idle(&self) -> bool {
        self.activity == Activity::Idle
    }
}

/// Why a packet was given up before its last byte.
enum GivenUp {
    UnknownContext,
    OutOfSync,
}

impl Device {
    /// The next frame to leave at `now`, if the port is free and there is one. Its line time is taken up.
    pub(super) fn next_frame(&mut self, now: Instant) -> Option<Frame> {
        if let Activity::Fetching { until } = self.transmit.activity
            && until <= now
        {
            self.transmit.activity = Activity::Sending;
        }
        if self.transmit.activity != Activity::Sending || self.transmit.port_free_at > now {
            return None;
        }
        loop {
            let Some(segmenter) = self.transmit.current.take() else {
                if self.transmit.done >= COMPLETION_BATCH {
                    self.show_sent(now);
                }
                if self.fetch_descriptor(now) {
                    continue;
                }
                self.show_sent(now);
                return None;
            };
            if let Some(frame) = self.send_segment(segmenter) {
                let line_time = line_time(&frame, self.config.line_rate);
                self.transmit.port_free_at = self.transmit.port_free_at.max(now) + line_time;
                return Some(frame);
            }
        }
    }

    /// Starts fetching if a doorbell rang while the transmit side was idle. One that rings later finds it at work.
    pub(super) fn notice_doorbell(&mut self, now: Instant) {
        if !self.transmit.is_idle() || (self.rings.send.is_empty() && self.rings.control.is_empty()) {
            return;
        }
        let delays = self.config.delays;
        self.transmit.activity = Activity::Fetching { until: now + delays.doorbell + delays.dma + delays.engine };
    }

    pub(super) fn next_transmit(&self) -> Option<Instant> {
        match self.transmit.activity {
            Activity::Idle => None,
            Activity::Fetching { until } => Some(until.max(self.transmit.port_free_at)),
            Activity::Sending => Some(self.transmit.port_free_at),
        }
    }

    /// Reports the descriptors that are done, and wakes the driver if it waits for that.
    pub(super) fn show_sent(&mut self, now: Instant) {
        if self.transmit.done == 0 {
            return;
        }
        let completion = SendCompletion { descriptors: core::mem::take(&mut self.transmit.done) };
        // As many completions fit as descriptors do, and each stands for one at least.
        let _room = self.rings.send_completions.push(completion);
        self.dma.completions += dma::COMPLETION;
        self.send_interrupt(now);
    }

    /// Throws away what is on the send ring, as done.
    pub(super) fn flush_send_ring(&mut self) {
        if self.transmit.current.take().is_some() {
            self.transmit.done += 1;
        }
        while self.rings.send.pop().is_some() {
            self.transmit.done += 1;
        }
        self.transmit.activity = Activity::Idle;
    }

    /// Takes the next descriptor and acts on it. False: there is none.
    fn fetch_descriptor(&mut self, now: Instant) -> bool {
        // A command given before a descriptor was published is carried out before it: count, then look.
        let published = !self.rings.send.is_empty();
        self.run_control(now);
        let Some(descriptor) = published.then(|| self.rings.send.pop()).flatten() else {
            self.transmit.activity = Activity::Idle;
            return false;
        };
        match descriptor {
            SendDescriptor::Packet(packet) => self.start_packet(packet),
            SendDescriptor::TlsStatic { handle, number } => {
                self.dma.tx_parameters += dma::STATIC_PARAMETERS_DESCRIPTOR;
                self.set_parameters(handle, |engine| engine.set_static(number));
            }
            SendDescriptor::TlsProgress { handle, start } => {
                self.dma.tx_parameters += dma::PROGRESS_PARAMETERS_DESCRIPTOR;
                self.set_parameters(handle, |engine| engine.set_progress(start));
            }
            // Work is in order here, and every descriptor takes effect before the next is fetched.
            SendDescriptor::Fence => {
                self.dma.tx_parameters += dma::FENCE_DESCRIPTOR;
                self.transmit.done += 1;
            }
            SendDescriptor::Dump { handle, seq, bytes } => self.run_dump(handle, seq, &bytes),
        }
        true
    }

    fn start_packet(&mut self, packet: TxPacket) {
        self.dma.tx_descriptors += dma::packet_descriptor_bytes(packet.header.len(), packet.fragments.len());
        self.dma.tx_payload += packet.payload_len() as u64;
        let ask = packet.ask;
        if ask.mss.is_some() {
            self.counters.tx_tso_packets += 1;
            self.counters.tx_tso_bytes += packet.payload_len() as u64;
        }
        if let Some(handle) = ask.context {
            match transmit_context(self.contexts.get_mut(handle, &mut self.dma)) {
                None => return self.give_up(GivenUp::UnknownContext),
                Some((context, _)) if !context.expects(ask.seq) => return self.give_up(GivenUp::OutOfSync),
                Some(_) => {}
            }
        }
        self.transmit.current = Some(Segmenter::new(packet));
    }

    /// Makes the next segment of the packet, and keeps the packet if there is more of it.
    fn send_segment(&mut self, mut segmenter: Segmenter) -> Option<Frame> {
        let ask = segmenter.packet().ask;
        let mut context = None;
        if let Some(handle) = ask.context {
            context = transmit_context(self.contexts.get_mut(handle, &mut self.dma));
            if context.is_none() {
                self.give_up(GivenUp::UnknownContext);
                return None;
            }
        }
        let mut walked = Walked::default();
        let made = segmenter.next_frame(&mut self.frames, |seq, source, destination| match &mut context {
            None => {
                destination.copy_from_slice(source);
                Ok(())
            }
            Some((engine, key)) => {
                walked.body_bytes += engine.encrypt(key, seq, source, destination)?.body_bytes;
                Ok::<(), TransmitError>(())
            }
        });
        let Ok(frame) = made else {
            // What was made of the segment may be plaintext in part: it goes nowhere.
            self.give_up(GivenUp::OutOfSync);
            return None;
        };
        if ask.context.is_some() {
            self.counters.tx_tls_encrypted_packets += 1;
            self.counters.tx_tls_encrypted_bytes += walked.body_bytes;
        }
        if ask.checksum && segmenter.has_layout() {
            self.counters.tx_csum_partial += 1;
        }
        self.counters.tx_packets += 1;
        self.counters.tx_bytes += frame.len() as u64;
        if segmenter.is_done() {
            self.transmit.done += 1;
        } else {
            self.transmit.current = Some(segmenter);
        }
        Some(Frame::new(frame.freeze()))
    }

    fn give_up(&mut self, why: GivenUp) {
        match why {
            GivenUp::UnknownContext => self.counters.tx_drop_unknown_context += 1,
            GivenUp::OutOfSync => self.counters.tx_drop_out_of_sync += 1,
        }
        self.transmit.done += 1;
    }

    fn set_parameters(&mut self, handle: Handle, set: impl FnOnce(&mut TlsTransmit)) {
        match transmit_context(self.contexts.get_mut(handle, &mut self.dma)) {
            Some((engine, _)) => set(engine),
            None => self.counters.tx_stale_parameters += 1,
        }
        self.transmit.done += 1;
    }

    fn run_dump(&mut self, handle: Handle, seq: Seq, bytes: &Bytes) {
        self.dma.tx_resync += dma::DUMP_DESCRIPTOR + bytes.len() as u64;
        self.transmit.done += 1;
        self.transmit.scratch.resize(bytes.len(), 0);
        match transmit_context(self.contexts.get_mut(handle, &mut self.dma)) {
            Some((engine, key)) => {
                if engine.encrypt(key, seq, bytes, &mut self.transmit.scratch).is_err() {
                    self.counters.tx_stale_parameters += 1;
                }
            }
            None => self.counters.tx_stale_parameters += 1,
        }
    }
}

/// How long the port is busy with a frame.
fn line_time(frame: &Frame, rate: Option<u64>) -> Duration {
    rate.map_or(Duration::ZERO, |rate| {
        let nanos = frame.wire_len() as u128 * 8 * 1_000_000_000 / u128::from(rate.max(1));
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    })
}

/// The transmit engine and key of a context, if it has one.
fn transmit_context(context: Option<TlsContext<'_>>) -> Option<(&mut TlsTransmit, &Key)> {
    match context? {
        TlsContext { engine: TlsEngine::Transmit(engine), key, .. } => Some((engine, key)),
        TlsContext { engine: TlsEngine::Receive(_), .. } => None,
    }
}

/// Send descriptors that one completion reports, unless the ring runs empty first.
const COMPLETION_BATCH: u32 = 8;
