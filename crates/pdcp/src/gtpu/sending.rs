//! From PDUs to datagrams, and to the socket.

use super::GtpTunnel;
use super::batches::JobBatches;
use super::core::NodeCore;
use crate::ClearPdu;
use ::core::num::NonZeroU16;
use ::core::task::{Context, Poll};
use bytes::{Bytes, BytesMut};
use offload_api::{DatagramSocket, Handle, PacketAsk, SendRefusal, TxDatagram};
use offload_base::Instant;
use offload_base::cost::{self, WorkKind};
use offload_formats::{Gtpu, GtpuMessage};
use smallvec::SmallVec;
use std::collections::VecDeque;

/// Datagrams that wait for the socket.
#[derive(Default)]
pub(super) struct OutgoingPdus {
    datagrams: VecDeque<TxDatagram>,
    /// For each datagram that a NIC must protect: its PDUs in clear.
    clear: VecDeque<Option<ClearBurst>>,
    /// The bearer that has the next turn.
    turn: u32,
}

/// PDUs that a NIC must protect, of the bearer with this TEID.
struct ClearBurst {
    tunnel: u32,
    pdus: Vec<ClearPdu>,
}

impl OutgoingPdus {
    pub(super) fn has_room(&self) -> bool {
        self.datagrams.len() < MAX_OUTGOING
    }

    pub(super) fn push(&mut self, datagram: TxDatagram) {
        self.push_with(datagram, None);
    }

    fn push_with(&mut self, datagram: TxDatagram, clear: Option<ClearBurst>) {
        self.datagrams.push_back(datagram);
        self.clear.push_back(clear);
    }

    /// Drops datagrams that a NIC would protect under old keys. Under new keys, their COUNTs might be used twice.
    pub(super) fn drop_clear(&mut self, tunnel: u32) {
        let mut kept = self.clear.iter().map(|clear| clear.as_ref().is_none_or(|clear| clear.tunnel != tunnel));
        self.datagrams.retain(|_| kept.next().unwrap_or(true));
        self.clear.retain(|clear| clear.as_ref().is_none_or(|clear| clear.tunnel != tunnel));
    }

    /// Queues PDUs as one datagram, or as a burst that the NIC segments.
    fn push_run(&mut self, to: &GtpTunnel, context: Option<Handle>, run: Vec<PduBody>) {
        let Some(first) = run.first() else { return };
        let (bytes, number) = (first.bytes, first.clear.as_ref().map_or(0, ClearPdu::count));
        // The NIC cuts the burst into datagrams of equal length.
        let segment = if run.len() > 1 { NonZeroU16::new((Gtpu::BYTES + bytes) as u16) } else { None };
        let mut headers = BytesMut::zeroed(run.len() * Gtpu::BYTES);
        let mut pieces = SmallVec::new();
        let mut clear = Vec::new();
        for body in run {
            Gtpu::new(GtpuMessage::Data, to.remote, bytes).write(&mut headers);
            pieces.push(headers.split_to(Gtpu::BYTES).freeze());
            pieces.extend(body.pieces);
            clear.extend(body.clear);
        }
        let ask = context.map(|context| PacketAsk { context, number: number.into(), args: 0 });
        let datagram = TxDatagram { pieces, segment, ask, ..TxDatagram::new(to.peer, Bytes::new()) };
        self.push_with(datagram, ask.map(|_| ClearBurst { tunnel: to.local, pdus: clear }));
    }
}

impl NodeCore {
    /// Makes datagrams from PDUs, the bearers in turn, while there is room. Returns whether any were made.
    pub(super) fn make(
        &mut self,
        now: Instant,
        socket: &mut dyn DatagramSocket,
        mut jobs: Option<&mut JobBatches>,
    ) -> bool {
        let (mut made, mut waiting) = (false, Vec::new());
        while self.outgoing.has_room() && !jobs.as_ref().is_some_and(|jobs| jobs.is_full()) {
            // Round-robin: the search starts after the bearer of the last turn.
            let next = self.ready.range(self.outgoing.turn..).chain(&self.ready).next().copied();
            let Some(tunnel) = next else { break };
            self.outgoing.turn = tunnel.wrapping_add(1);
            let _framing = cost::work(WorkKind::Framing);
            if self.make_for_bearer(now, tunnel, socket, jobs.as_deref_mut()) {
                made = true;
                self.schedule(tunnel);
                continue;
            }
            self.ready.remove(&tunnel);
            if self.bearers.get(&tunnel).is_some_and(|state| state.end_marker) {
                waiting.push(tunnel);
            }
        }
        // An end marker waits for the PDUs that a job has.
        self.ready.extend(waiting);
        made
    }

    fn make_for_bearer(
        &mut self,
        now: Instant,
        tunnel: u32,
        socket: &mut dyn DatagramSocket,
        jobs: Option<&mut JobBatches>,
    ) -> bool {
        let Some(state) = self.bearers.get_mut(&tunnel) else { return false };
        // A report goes first and in clear, even if a device protects the bearer.
        if let Some(report) = state.entity.take_report() {
            let datagram = datagram_of(&state.tunnel, report);
            self.outgoing.push(datagram);
            return true;
        }
        let sealer = state.contexts.sealer();
        let is_null = state.keys[0].is_null();
        if sealer.is_none() && (is_null || jobs.is_none()) {
            // Without a device, the CPU protects the batch here.
            let bodies: Result<Vec<PduBody>, _> = if is_null {
                state.entity.take_clear(A_TURN).map(|pdus| pdus.into_iter().map(PduBody::clear).collect())
            } else {
                state.entity.take(A_TURN).map(|pdus| pdus.into_iter().map(PduBody::protected).collect())
            };
            let Ok(bodies) = bodies else { return state.note_exhausted(&mut self.woken) };
            if bodies.is_empty() {
                return self.make_end_marker(tunnel);
            }
            state.wake_sender(&mut self.woken);
            self.counters.protected_by_software += bodies.len() as u64;
            let asks = state.contexts.note_sent(bodies.len());
            self.asking.extend(asks.then_some(tunnel));
            self.send(tunnel, bodies, None, socket);
            return true;
        }
        let Ok(pdus) = state.entity.take_clear(A_TURN) else { return state.note_exhausted(&mut self.woken) };
        if pdus.is_empty() {
            // The end marker must not overtake PDUs in jobs.
            if jobs.is_some_and(|jobs| jobs.is_sending(tunnel)) {
                return false;
            }
            return self.make_end_marker(tunnel);
        }
        state.wake_sender(&mut self.woken);
        match (sealer, jobs) {
            (Some(context), _) => {
                self.counters.protected_by_device += pdus.len() as u64;
                self.send(tunnel, pdus.into_iter().map(PduBody::clear).collect(), Some(context), socket);
            }
            (None, Some(jobs)) => jobs.protect(now, state, &pdus),
            (None, None) => {}
        }
        true
    }

    fn make_end_marker(&mut self, tunnel: u32) -> bool {
        let Some(state) = self.bearers.get_mut(&tunnel).filter(|state| state.end_marker) else { return false };
        state.end_marker = false;
        let mut marker = BytesMut::zeroed(Gtpu::BYTES);
        Gtpu::new(GtpuMessage::EndMarker, state.tunnel.remote, 0).write(&mut marker);
        let datagram = TxDatagram::new(state.tunnel.peer, marker.freeze());
        self.outgoing.push(datagram);
        true
    }

    /// Sends PDUs. Consecutive PDUs of equal length form a burst for segmentation (USO). With a context, the NIC
    /// protects the PDUs, which then need consecutive COUNTs.
    fn send(&mut self, tunnel: u32, pdus: Vec<PduBody>, context: Option<Handle>, socket: &mut dyn DatagramSocket) {
        let Some(to) = self.bearers.get(&tunnel).map(|state| state.tunnel) else { return };
        let limits = socket.limits(to.peer);
        let mut run: Vec<PduBody> = Vec::new();
        for pdu in pdus {
            // A burst is limited by the path and by the descriptors of a ring entry.
            let most = limits.segments_of((Gtpu::BYTES + pdu.bytes) as u16).clamp(1, MAX_SEGMENTS);
            if run.last().is_some_and(|last| run.len() == most || !last.can_join(&pdu)) {
                self.outgoing.push_run(&to, context, ::core::mem::take(&mut run));
            }
            run.push(pdu);
        }
        self.outgoing.push_run(&to, context, run);
    }

    /// Sends the PDUs that a job protected.
    pub(super) fn push_protected(
        &mut self,
        tunnel: u32,
        pdus: impl Iterator<Item = Bytes>,
        socket: &mut dyn DatagramSocket,
    ) {
        self.send(tunnel, pdus.map(PduBody::protected).collect(), None, socket);
    }

    /// Sends datagrams to the socket. Returns whether all were sent. A refused datagram is dropped alone, because a
    /// broken socket also fails on receive.
    pub(super) fn poll_send(&mut self, cx: &mut Context<'_>, socket: &mut dyn DatagramSocket) -> bool {
        while !self.outgoing.datagrams.is_empty() {
            match socket.poll_send(cx, &mut self.outgoing.datagrams) {
                Poll::Pending => return false,
                Poll::Ready(Ok(sent)) => drop(self.outgoing.clear.drain(..sent)),
                Poll::Ready(Err(SendRefusal::Ask)) => self.protect_first(),
                // Without a NIC's work, IP may fragment the datagram.
                Poll::Ready(Err(SendRefusal::TooLong { .. }))
                    if matches!(self.outgoing.clear.front(), Some(Some(_))) =>
                {
                    self.protect_first();
                }
                Poll::Ready(Err(_)) => {
                    self.counters.refused += 1;
                    self.outgoing.datagrams.pop_front();
                    self.outgoing.clear.pop_front();
                }
            }
        }
        true
    }

    /// Protects the first datagram's PDUs by the CPU, under the same COUNTs, because the NIC refused.
    fn protect_first(&mut self) {
        let (Some(_), Some(clear)) = (self.outgoing.datagrams.pop_front(), self.outgoing.clear.pop_front()) else {
            return;
        };
        let Some(ClearBurst { tunnel, pdus }) = clear else { return };
        let Some(state) = self.bearers.get_mut(&tunnel) else { return };
        self.counters.protected_by_device -= pdus.len() as u64;
        self.counters.protected_by_software += pdus.len() as u64;
        let mut bytes: Vec<_> = pdus.iter().map(|pdu| (pdu.count(), pdu.to_bytes())).collect();
        state.keys[0].protect(state.config.clear_bytes(), &mut bytes);
        // Pushed in reverse, so that the PDUs keep their order at the front.
        for (_, pdu) in bytes.into_iter().rev() {
            self.outgoing.datagrams.push_front(datagram_of(&state.tunnel, pdu.freeze()));
            self.outgoing.clear.push_front(None);
        }
    }
}

/// A PDU to be sent, protected or in clear.
struct PduBody {
    pieces: SmallVec<[Bytes; 3]>,
    bytes: usize,
    clear: Option<ClearPdu>,
}

impl PduBody {
    fn protected(pdu: Bytes) -> PduBody {
        PduBody { bytes: pdu.len(), pieces: SmallVec::from_iter([pdu]), clear: None }
    }

    /// In parts, so that the SDU is not copied.
    fn clear(pdu: ClearPdu) -> PduBody {
        let mut pieces = SmallVec::from_iter([Bytes::copy_from_slice(pdu.header()), pdu.sdu().clone()]);
        if pdu.mac_bytes() > 0 {
            pieces.push(Bytes::from_static(&[0; 4]));
        }
        PduBody { bytes: pdu.bytes(), pieces, clear: Some(pdu) }
    }

    /// Tests whether the next PDU can be part of the same burst.
    fn can_join(&self, next: &PduBody) -> bool {
        let count = |body: &PduBody| body.clear.as_ref().map(|pdu| u64::from(pdu.count()));
        self.bytes == next.bytes && count(self).map(|count| count + 1) == count(next)
    }
}

/// Makes a datagram of one PDU, sharing its bytes.
fn datagram_of(to: &GtpTunnel, pdu: Bytes) -> TxDatagram {
    let mut header = BytesMut::zeroed(Gtpu::BYTES);
    Gtpu::new(GtpuMessage::Data, to.remote, pdu.len()).write(&mut header);
    let pieces = SmallVec::from_iter([header.freeze(), pdu]);
    TxDatagram { pieces, ..TxDatagram::new(to.peer, Bytes::new()) }
}

/// PDUs of a bearer per turn.
const A_TURN: usize = 32;
/// Limit of waiting datagrams.
const MAX_OUTGOING: usize = 256;
/// PDUs per burst, limited by the number of pieces in a ring's descriptors.
const MAX_SEGMENTS: usize = 16;
