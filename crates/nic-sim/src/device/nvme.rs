//! What NVMe/TCP contexts make of a packet.

use crate::context::{Context, ContextStore};
use crate::device::Device;
use crate::dma::DmaBytes;
use crate::engine::nvme::{NvmeReceive, NvmeState, NvmeTcp, NvmeTransmit, Placement, Received};
use crate::engine::tls_rx::Shown;
use bytes::BytesMut;
use offload_api::rx::{NvmeVerdict, TlsVerdict};
use offload_api::{Handle, Placements, RxMeta};
use offload_formats::Transport;

/// The engine of a context for what leaves.
pub(super) fn transmit_engine<'a>(
    contexts: &'a mut ContextStore,
    handle: Handle,
    dma: &mut DmaBytes,
) -> Option<&'a mut NvmeTransmit> {
    match contexts.get::<NvmeTcp>(handle, dma)?.state {
        NvmeState::Transmit(engine) => Some(engine),
        NvmeState::Receive(_) => None,
    }
}

impl Device {
    /// Runs the payload through the flow's NVMe/TCP engine, if it has one, and appends what is not placed elsewhere to
    /// `buffer`: with a hole for what is.
    pub(super) fn append_pdus(
        &mut self,
        data: &[u8],
        transport: &Transport,
        buffer: &mut BytesMut,
        meta: &mut RxMeta,
    ) -> Placements {
        let payload = &data[transport.payload..transport.end];
        let [follower, _] = self.steering.followers(&transport.flow_of_receiver(data));
        let Some((engine, placement)) = follower.and_then(|handle| self.nvme_receive(handle)) else {
            buffer.extend_from_slice(payload);
            return Placements::new();
        };
        let received = engine.receive(transport.seq(data), payload, placement);
        let placed = self.note_pdus(received, meta);
        let (start, mut at) = (buffer.len(), 0);
        buffer.resize(start + payload.len(), 0);
        for (offset, piece) in &placed {
            buffer[start + at..start + offset].copy_from_slice(&payload[at..*offset]);
            at = offset + piece.len();
        }
        buffer[start + at..].copy_from_slice(&payload[at..]);
        placed
    }

    /// Shows the flow's NVMe/TCP engine, if it has one over TLS, what the TLS engine saw of the content of records in a
    /// packet: `plain` is what that made of the payload. Only if all of it is handed on decrypted, anything is placed.
    pub(super) fn show_content(
        &mut self,
        data: &[u8],
        transport: &Transport,
        shown: &Shown,
        plain: &[u8],
        meta: &mut RxMeta,
    ) -> Placements {
        let [_, follower] = self.steering.followers(&transport.flow_of_receiver(data));
        let Some((engine, placement)) = follower.and_then(|handle| self.nvme_receive(handle)) else {
            return Placements::new();
        };
        let seq = transport.seq(data);
        let received = match meta.tls {
            TlsVerdict::Decrypted => engine.receive_content(seq, &shown.parts, plain, placement),
            _ => engine.pass_over(shown, seq + (transport.payload_len()) as u32, plain),
        };
        self.note_pdus(received, meta)
    }

    /// The engine of a context for what arrives, and the buffers of commands.
    pub(super) fn nvme_receive(&mut self, handle: Handle) -> Option<(&mut NvmeReceive, &mut Placement)> {
        match self.contexts.get::<NvmeTcp>(handle, &mut self.dma)? {
            Context { state: NvmeState::Receive(engine), held } => Some((engine, held)),
            Context { state: NvmeState::Transmit(_), .. } => None,
        }
    }

    fn note_pdus(&mut self, received: Received, meta: &mut RxMeta) -> Placements {
        let Received { verdict, placed, lost } = received;
        meta.nvme = verdict;
        self.counters.rx_nvmeotcp_checked += u64::from(verdict == NvmeVerdict::Good);
        self.counters.rx_nvmeotcp_drop += u64::from(lost);
        self.counters.rx_nvmeotcp_packets += u64::from(!placed.is_empty());
        self.counters.rx_nvmeotcp_bytes += placed.iter().map(|(_, piece)| piece.len() as u64).sum::<u64>();
        placed
    }
}
