//! Sealing packets. The host queues packets complete and in plaintext, with space for the tag.
//!
//! The packet is first cut (USO). Then each datagram is sealed under the number in its own header.

use super::{QuicCounters, QuicEngine, phase_of};
use bytes::BytesMut;
use nic_engine::Context;
use offload_api::{Direction, Protocol, QuicAsk, TxPacket};
use offload_formats::quic::{MAX_CID_BYTES, ShortHeader};
use offload_formats::{Headers, TransportHeader};
use offload_quic::number::expand;
use offload_quic::packet::{key_phase_of, truncated_number};
use offload_quic::seal;

/// The state for sealing the datagrams of one packet.
#[derive(Debug)]
pub(crate) struct DatagramSealer {
    ask: QuicAsk,
    transport: TransportHeader,
    /// Whether to fill in checksums after sealing.
    checksum: bool,
}

/// The reason why a packet cannot be sealed. No part of the packet leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum QuicDrop {
    /// The context is missing, or is a receive context.
    Context,
    /// The datagram is not a single packet with a short header.
    NotQuic,
    /// The number was used before, or is below the requested one.
    Number,
    /// The key of the generation is missing.
    Key,
}

impl QuicDrop {
    pub(super) fn count(self, counters: &mut QuicCounters) {
        counters.quic_tx_drop_pkts += 1;
        counters.quic_tx_drop_number += u64::from(self == QuicDrop::Number);
        counters.quic_tx_drop_key += u64::from(self == QuicDrop::Key);
    }
}

impl DatagramSealer {
    /// Prepares the sealing of a packet.
    pub(super) fn begin(
        context: &Context<'_, QuicEngine>,
        ask: QuicAsk,
        packet: &mut TxPacket,
    ) -> Result<DatagramSealer, QuicDrop> {
        if context.state.direction != Direction::Transmit {
            return Err(QuicDrop::Context);
        }
        let transport = Headers::parse_unfinished(&packet.header).transport();
        let transport = transport
            .filter(|transport| transport.protocol == Protocol::Udp && usize::from(ask.cid_bytes) <= MAX_CID_BYTES);
        let transport = transport.ok_or(QuicDrop::NotQuic)?;
        // The checksum must cover the sealed bytes, so the segmentation must not compute it before.
        let checksum = core::mem::take(&mut packet.ask.checksum);
        Ok(DatagramSealer { ask, transport, checksum })
    }

    /// Seals the next datagram.
    pub(super) fn seal(
        &mut self,
        Context { state, held, .. }: Context<'_, QuicEngine>,
        plain: &[u8],
        counters: &mut QuicCounters,
    ) -> Result<BytesMut, QuicDrop> {
        let QuicAsk { path, cid_bytes, generation, number: least, .. } = self.ask;
        let mut frame = BytesMut::from(plain);
        let packet = frame.get_mut(self.transport.payload..).ok_or(QuicDrop::NotQuic)?;
        let ShortHeader { number_at } =
            ShortHeader::parse_greased(packet, cid_bytes.into()).ok_or(QuicDrop::NotQuic)?;
        // The packet's own header decides the number, because the receiver reads the number there.
        let (truncated, bytes) = truncated_number(packet, number_at).ok_or(QuicDrop::NotQuic)?;
        let number = expand(least.checked_sub(1), truncated, bytes);
        // A number must never be sealed twice under one key: the nonce would repeat.
        if number < least || state.paths.next(path).is_some_and(|next| number < next) {
            return Err(QuicDrop::Number);
        }
        let slot = &held.keys[phase_of(key_phase_of(packet[0]).into())];
        // The phase alone is ambiguous, because generations two apart share it.
        let slot = slot.as_ref().filter(|slot| slot.number as u16 == generation as u16).ok_or(QuicDrop::Key)?;
        seal(&slot.key, &held.header, packet, number_at, path, number).map_err(|_| QuicDrop::NotQuic)?;
        counters.quic_tx_pkts += 1;
        counters.quic_tx_bytes += packet.len() as u64;
        // Used even if the frame is dropped later, because the sealed bytes may have left the engine.
        state.paths.use_up(path, number);
        self.ask.number = number + 1;
        if self.checksum {
            TransportHeader { end: frame.len(), ..self.transport }.fill_checksums(&mut frame);
        }
        Ok(frame)
    }
}
