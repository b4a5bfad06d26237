//! NVMe/TCP contexts, and what they make of a packet.
//!
//! Invariants: a handle finds its context only while that very context lives; a context that goes drops the buffers it
//! was given, and so sends them home.

use crate::device::Device;
use crate::engine::nvme::{NvmeReceive, NvmeTransmit, Placement, Received};
use crate::engine::tls_rx::Shown;
use crate::steering::Steering;
use bytes::BytesMut;
use offload_api::rx::{NvmeVerdict, TlsVerdict};
use offload_api::{FlowKey, Handle, Placements, RxMeta};
use offload_formats::Transport;
use std::collections::BTreeMap;

/// All NVMe/TCP contexts of a device, on the NIC.
#[derive(Debug, Default)]
pub(super) struct NvmeContexts {
    contexts: BTreeMap<Handle, NvmeContext>,
    steering: Steering,
    /// Those for what leaves, with their flows.
    transmits: BTreeMap<Handle, (FlowKey, NvmeTransmit)>,
}

/// One of them, for what arrives.
#[derive(Debug)]
pub(super) struct NvmeContext {
    flow: FlowKey,
    pub(super) engine: NvmeReceive,
    pub(super) placement: Placement,
}

impl NvmeContexts {
    pub(super) fn insert(&mut self, handle: Handle, flow: FlowKey, engine: NvmeReceive) {
        self.steering.insert(flow, handle);
        self.contexts.insert(handle, NvmeContext { flow, engine, placement: Placement::default() });
    }

    pub(super) fn insert_transmit(&mut self, handle: Handle, flow: FlowKey) {
        self.transmits.insert(handle, (flow, NvmeTransmit::default()));
    }

    pub(super) fn transmit_mut(&mut self, handle: Handle) -> Option<&mut NvmeTransmit> {
        self.transmits.get_mut(&handle).map(|(_, engine)| engine)
    }

    /// The flow of a transmit context.
    pub(super) fn transmit_flow(&self, handle: Handle) -> Option<FlowKey> {
        self.transmits.get(&handle).map(|(flow, _)| *flow)
    }

    pub(super) fn get_mut(&mut self, handle: Handle) -> Option<&mut NvmeContext> {
        self.contexts.get_mut(&handle)
    }

    /// The context that follows what arrives of a flow, over TLS or not.
    pub(super) fn following(&mut self, flow: &FlowKey, over_tls: bool) -> Option<&mut NvmeContext> {
        let context = self.contexts.get_mut(&self.steering.find(flow)?)?;
        (context.engine.is_over_tls() == over_tls).then_some(context)
    }

    pub(super) fn remove(&mut self, handle: Handle) {
        if let Some(context) = self.contexts.remove(&handle) {
            self.steering.remove(&context.flow, handle);
        }
        self.transmits.remove(&handle);
    }

    pub(super) fn clear(&mut self) {
        self.contexts.clear();
        self.transmits.clear();
        self.steering.clear();
    }

    pub(super) fn follows(&self, flow: &FlowKey) -> bool {
        self.steering.find(flow).is_some()
    }

    /// Whether no flow is followed as it arrives.
    pub(super) fn is_empty(&self) -> bool {
        self.contexts.is_empty()
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
        let Some(context) = self.nvme.following(&transport.flow_of_receiver(data), false) else {
            buffer.extend_from_slice(payload);
            return Placements::new();
        };
        let received = context.engine.receive(transport.seq(data), payload, &mut context.placement);
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
        let Some(context) = self.nvme.following(&transport.flow_of_receiver(data), true) else {
            return Placements::new();
        };
        let seq = transport.seq(data);
        let received = match meta.tls {
            TlsVerdict::Decrypted => context.engine.receive_content(seq, &shown.parts, plain, &mut context.placement),
            _ => context.engine.pass_over(shown, seq + (transport.payload_len()) as u32, plain),
        };
        self.note_pdus(received, meta)
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

/// NVMe/TCP contexts are numbered from here on, so that no two contexts of a device have the same handle.
pub(crate) const NVME_HANDLES: u32 = 1 << 31;
