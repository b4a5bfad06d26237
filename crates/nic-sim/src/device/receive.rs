//! From the port to the receive ring.
//!
//! The device never holds a packet back, changes its order or drops it for what is in it: a wrong checksum or a
//! wrong tag is reported with the packet, which is then as it was on the wire.

use crate::context::TlsEngine;
use crate::device::{Device, ETHERNET_HEADER};
use crate::dma;
use crate::engine::checksum;
use crate::engine::layout::Layout;
use crate::packet::ReceiveCompletion;
use bytes::BytesMut;
use offload_api::RxMeta;
use offload_api::rx::{Checksums, TlsVerdict};
use offload_base::Instant;
use std::collections::VecDeque;

/// The receive side's state: packets on their way into host memory, oldest first.
#[derive(Debug, Default)]
pub(super) struct ReceiveSide {
    under_way: VecDeque<(Instant, ReceiveCompletion)>,
}

impl ReceiveSide {
    pub(super) fn next_due(&self) -> Option<Instant> {
        self.under_way.front().map(|(at, _)| *at)
    }
}

impl Device {
    /// Takes a frame from the wire. The host sees it when `process` finds its time come.
    pub(super) fn take_frame(&mut self, now: Instant, data: &[u8]) {
        if !is_for(data, self.config.mac) {
            self.counters.rx_drop_address += 1;
            return;
        }
        if data.len() > usize::from(self.config.mtu) + ETHERNET_HEADER {
            self.counters.rx_oversize_pkts_phy += 1;
            return;
        }
        // The driver posts buffers that hold an MTU.
        let Some(mut buffer) = self.rings.receive.pop() else {
            self.counters.rx_out_of_buffer += 1;
            return;
        };
        self.counters.rx_packets += 1;
        self.counters.rx_bytes += data.len() as u64;
        self.dma.rx_descriptors += dma::RECEIVE_DESCRIPTOR;
        self.dma.rx_payload += data.len() as u64;
        let meta = self.work_on(data, &mut buffer);
        let due = now + self.config.delays.dma + self.config.delays.engine;
        self.receive.under_way.push_back((due, ReceiveCompletion { frame: buffer, meta }));
    }

    /// Shows the host what has reached its memory by `now`.
    pub(super) fn show_received(&mut self, now: Instant) {
        while self.receive.next_due().is_some_and(|due| due <= now) {
            let Some((_, completion)) = self.receive.under_way.pop_front() else { break };
            // As many completions fit as buffers were posted.
            let _room = self.rings.receive_completions.stage(completion);
            self.dma.completions += dma::COMPLETION;
        }
        if self.rings.receive_completions.staged() > 0 {
            self.rings.receive_completions.publish();
            self.interrupt(now);
        }
    }

    /// Writes the frame to `buffer`, decrypted if it can be, and says what was found out about it.
    fn work_on(&mut self, data: &[u8], buffer: &mut BytesMut) -> RxMeta {
        buffer.clear();
        let mut meta = RxMeta::default();
        let layout = if self.config.checksum_offload { Layout::of_frame(data) } else { None };
        let Some(layout) = layout else {
            self.counters.rx_csum_none += 1;
            buffer.extend_from_slice(data);
            return meta;
        };
        meta.checksums = checksum::check(data, &layout);
        match meta.checksums {
            Checksums::Good => self.counters.rx_csum_unnecessary += 1,
            Checksums::Bad => self.counters.rx_csum_bad += 1,
            Checksums::Unchecked => self.counters.rx_csum_none += 1,
        }
        if meta.checksums != Checksums::Good {
            buffer.extend_from_slice(data);
            return meta;
        }
        self.decrypt(data, &layout, buffer, &mut meta);
        if meta.tls != TlsVerdict::Decrypted {
            buffer.clear();
            buffer.extend_from_slice(data);
        }
        meta
    }

    /// Runs the payload through the flow's receive engine, if it has one.
    fn decrypt(&mut self, data: &[u8], layout: &Layout, buffer: &mut BytesMut, meta: &mut RxMeta) {
        if layout.payload == layout.end {
            return;
        }
        let Some(handle) = self.steering.find(&layout.flow_of_receiver(data)) else { return };
        let Some(context) = self.contexts.get_mut(handle, &mut self.dma) else { return };
        let TlsEngine::Receive(engine) = context.engine else { return };
        buffer.extend_from_slice(&data[..layout.payload]);
        buffer.resize(layout.end, 0);
        let payload = &data[layout.payload..layout.end];
        let received = engine.receive(context.key, layout.seq(data), payload, &mut buffer[layout.payload..]);
        meta.tls = received.verdict;
        meta.context = Some(handle);
        match received.verdict {
            TlsVerdict::Decrypted => {
                self.counters.rx_tls_decrypted_packets += 1;
                self.counters.rx_tls_decrypted_bytes += received.walked.body_bytes;
            }
            TlsVerdict::Error => self.counters.rx_tls_err += 1,
            TlsVerdict::ResyncRequested => self.counters.rx_tls_resync_req_pkt += 1,
            TlsVerdict::NotDecrypted => {}
        }
        self.counters.rx_tls_lost += u64::from(received.lost);
        self.counters.rx_tls_found += u64::from(received.found);
    }
}

/// Whether the frame is for this address: its own, or for all.
fn is_for(frame: &[u8], mac: [u8; 6]) -> bool {
    frame.len() >= ETHERNET_HEADER && (frame[..6] == mac || frame[0] & 1 == 1)
}
