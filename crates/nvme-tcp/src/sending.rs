//! PDUs on their way into a stream, with digests by the CPU or by the device below.
//!
//! Invariant: the wire shows the same bytes either way. From the moment there is a context, every PDU is queued with it,
//! so that the device can follow; and the transport has a sealer for what no device will do.
//!
//! A device that refuses for the time being, was reset or gave the context up unasked is asked again, with later PDUs.

use crate::asking::{Asking, SharedCounters};
use crate::wire::{DIGEST_LEN, Digest, WirePdu};
use bytes::{Bytes, BytesMut};
use offload_api::{DeviceEvent, Handle, Layer, SealError, Sealer, SegmentStream, TxTag, Unit, UnitTag};
use offload_base::cost::{self, Work};
use offload_formats::nvme::PduHeader;

/// One stream's way of sending PDUs.
#[derive(Debug, Default)]
pub(super) struct Sending {
    /// The device is to be asked with the first PDU that has a digest.
    wanted: bool,
    asking: Asking,
    context: Option<Handle>,
    has_sealer: bool,
    pdus: u64,
}

impl Sending {
    /// Whether the device is to fill digests in, if there is one that can.
    pub(super) fn want_device(&mut self, wanted: bool, counters: &SharedCounters) {
        (self.wanted, self.asking) = (wanted, Asking::new(counters));
    }

    /// Whether device events matter.
    pub(super) fn watches_device(&self) -> bool {
        self.context.is_some() || self.asking.waits()
    }

    /// Hears what happened to the device.
    pub(super) fn hear(&mut self, event: &DeviceEvent, stream: &mut dyn SegmentStream) {
        match event {
            DeviceEvent::Reset => {
                if self.watches_device() {
                    self.asking.begin();
                }
                // The news may be older than the context: then the device still has it.
                self.give_up(stream);
            }
            DeviceEvent::Removed { handle, .. } if self.context == Some(*handle) => {
                self.context = None;
                self.asking.note_lost();
            }
            _ => {}
        }
    }

    /// Queues a PDU.
    pub(super) fn send(&mut self, stream: &mut dyn SegmentStream, pdu: WirePdu) {
        if self.context.is_none() && pdu.data_digest {
            self.return_to_device(stream);
        }
        let Some(context) = self.context else {
            // At once: over TLS they share records.
            stream.send_pieces(&mut pdu.into_pieces().map(|piece| (piece, TxTag::PLAIN)));
            return;
        };
        let (number, len, mut at) = (self.pdus, pdu.len(), 0);
        let touched_from = if pdu.data_digest { len.saturating_sub(DIGEST_LEN as u32) } else { len };
        self.pdus += 1;
        stream.send_pieces(&mut pdu.into_pieces_for_device().map(|piece| {
            let tag = TxTag::device(context, UnitTag { number, at, len, touched_from });
            at += piece.len() as u32;
            (piece, tag)
        }));
    }

    /// Gives the context up once everything queued with it has arrived; there will be no other.
    pub(super) fn end(&mut self, stream: &mut dyn SegmentStream) {
        self.wanted = false;
        self.asking.end();
        self.give_up(stream);
    }

    fn give_up(&mut self, stream: &mut dyn SegmentStream) {
        if let Some(context) = self.context.take() {
            stream.release(context);
        }
    }

    /// Asks the device for a context, if it is to get one and it is time to. Called before a PDU with a digest.
    fn return_to_device(&mut self, stream: &mut dyn SegmentStream) {
        if core::mem::take(&mut self.wanted) {
            self.asking.begin();
        }
        self.asking.note_unit();
        if !self.asking.is_due() {
            return;
        }
        self.context = self.asking.ask(stream, |flow, device| device.add_transmit(flow));
        if self.context.is_some() && !core::mem::replace(&mut self.has_sealer, true) {
            stream.install(Layer::FIRST, Box::new(DigestSealer));
        }
    }
}

/// Makes the digest of a PDU that a device was to make. Twice makes the same.
struct DigestSealer;

impl Sealer for DigestSealer {
    fn seal(&mut self, unit: Unit, plain: &[Bytes]) -> Result<Bytes, SealError> {
        let malformed = SealError::Malformed { number: unit.number };
        let length: usize = plain.iter().map(Bytes::len).sum();
        let mut pdu = BytesMut::with_capacity(length);
        {
            let _copy = cost::work(Work::Copy);
            plain.iter().for_each(|piece| pdu.extend_from_slice(piece));
        }
        let header = PduHeader::parse(pdu.first_chunk().ok_or(malformed)?);
        if header.len as usize != length || length != unit.len as usize {
            return Err(malformed);
        }
        if header.has_data_digest() {
            let start = usize::from(header.data_offset);
            let end = length.checked_sub(DIGEST_LEN).filter(|end| start < *end).ok_or(malformed)?;
            let (data, digest) = pdu.split_at_mut(end);
            digest.copy_from_slice(&Digest::of(&data[start..]).wire());
        }
        Ok(pdu.freeze())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{DataHeader, Framing, Pdu};
    use offload_base::Seq;
    use proptest::prelude::*;

    fn unit(length: usize) -> Unit {
        Unit { layer: Layer::FIRST, number: 3, offset: 9, start: Seq(u32::MAX), len: length as u32, touched_from: 0 }
    }

    proptest! {
        #[test]
        fn what_is_left_to_a_device_is_sealed_to_what_software_sends(
            data in prop::collection::vec(prop::collection::vec(any::<u8>(), 1..300), 0..5),
            header_digest: bool,
            alignment in 0u8..9,
        ) {
            let framing = Framing { header_digest, data_digest: true, alignment };
            let length: usize = data.iter().map(Vec::len).sum();
            let header =
                DataHeader { command: 7, tag: 1, offset: 0, length: length as u32, last: true, success: false };
            let pdu = framing.frame(&Pdu::ControllerData(header), data.into_iter().map(Bytes::from));
            let software: Vec<u8> = pdu.clone().into_pieces().flatten().collect();
            let pieces: Vec<Bytes> = pdu.into_pieces_for_device().collect();
            let queued = pieces.concat();
            prop_assert_eq!(queued.len(), software.len());
            if length > 0 {
                prop_assert_eq!(&queued[..queued.len() - 4], &software[..queued.len() - 4]);
            }
            let sealed = DigestSealer.seal(unit(queued.len()), &pieces).unwrap();
            prop_assert_eq!(&sealed[..], &software[..]);
            prop_assert_eq!(DigestSealer.seal(unit(queued.len()), core::slice::from_ref(&sealed)).unwrap(), sealed);
        }
    }

    #[test]
    fn what_is_no_pdu_is_not_sealed() {
        let header = DataHeader { command: 7, tag: 1, offset: 0, length: 9, last: true, success: false };
        let framing = Framing { data_digest: true, ..Framing::default() };
        let pdu: Vec<u8> =
            framing.frame(&Pdu::HostData(header), [Bytes::from(vec![1; 9])]).into_pieces().flatten().collect();
        let malformed = Err(SealError::Malformed { number: 3 });
        assert_eq!(DigestSealer.seal(unit(pdu.len()), &[Bytes::copy_from_slice(&pdu[1..])]), malformed);
        assert_eq!(DigestSealer.seal(unit(pdu.len() + 1), &[Bytes::copy_from_slice(&pdu)]), malformed);
        let mut wrong = pdu;
        wrong[3] = 200;
        assert_eq!(DigestSealer.seal(unit(wrong.len()), &[Bytes::from(wrong)]), malformed);
    }
}
