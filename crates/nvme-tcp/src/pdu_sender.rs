//! The sender of PDUs, with digests by the CPU or by the device below, and encryption by either.
//!
//! Invariant: the bytes on the wire are the same either way. While a context exists, every PDU is queued with this
//! context, so that the device can follow the stream. The transport has a sealer for PDUs that no device handles.
//!
//! A device that refuses temporarily, is reset, or removes the context is asked again with later PDUs.

use crate::context_request::{ContextRequest, SharedCounters};
use crate::volume::NamedKeys;
use crate::volumes::{NumberedVolumes, VolumesByNumber};
use crate::wire::{DIGEST_LEN, DataEncryption, Digest, PduType, WirePdu, u32_at};
use bytes::{Bytes, BytesMut};
use core::task::Context;
use offload_api::{
    DeviceEvent, Handle, Layer, MarkedData, NvmeTcpContexts, NvmeTcpStages, SealError, Sealer, SegmentStream,
    StageSpec, TxTag, Unit, UnitTag, XTS_STAGE,
};
use offload_base::cost::{self, WorkKind};
use offload_formats::nvme::PduHeader;
use tracing::Span;

/// The sender of one stream.
#[derive(Debug, Default)]
pub(super) struct PduSender {
    /// Whether to ask the device with the first PDU that has a digest.
    wanted: bool,
    asking: ContextRequest,
    context: Option<Handle>,
    has_sealer: bool,
    volumes: NumberedVolumes,
    /// Keys of volumes on the device, as named by this sender or by the receiver of the same stream.
    keys: NamedKeys,
    pdus: u64,
    /// Bytes of all PDUs.
    sent: u64,
}

impl PduSender {
    /// Sets whether a device should fill in digests, if there is one.
    pub(super) fn set_digests_by_device(&mut self, wanted: bool, counters: &SharedCounters, span: &Span) {
        (self.wanted, self.asking) = (wanted, ContextRequest::new(counters, span));
    }

    /// Returns the keys that were named to the device.
    pub(super) fn keys(&self) -> &NamedKeys {
        &self.keys
    }

    /// Returns whether to poll for device events.
    pub(super) fn watches_device(&self) -> bool {
        self.context.is_some() || self.asking.waits()
    }

    /// Handles a device event.
    pub(super) fn handle_device_event(&mut self, event: &DeviceEvent, stream: &mut dyn SegmentStream) {
        match event {
            DeviceEvent::Reset => {
                if self.watches_device() {
                    self.asking.begin();
                }
                self.keys.forget_all();
                // The event may be older than the context, so the device may still have the context.
                self.give_up(stream);
            }
            DeviceEvent::KeyMissing { handle, key, .. } if self.context == Some(*handle) => {
                self.asking.note_key_missing();
                self.keys.forget(*key);
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
        // Plain PDUs without a digest gain nothing from a context.
        if self.context.is_none() && (pdu.data_digest || pdu.sealing().is_some()) {
            self.return_to_device(stream);
        }
        self.sent += u64::from(pdu.len());
        let Some(context) = self.context else {
            // In one call, so that over TLS the pieces share records.
            stream.send_pieces(&mut pdu.into_pieces().map(|piece| (piece, TxTag::PLAIN)));
            return;
        };
        // The device must follow the whole stream, so PDUs without work for it are tagged as well.
        let marked = self.mark(stream, context, &pdu);
        let (number, len, mut at) = (self.pdus, pdu.len(), 0);
        // From this offset on, the bytes on the wire differ from the queued ones, and a retransmission needs the device
        // or the sealer.
        let touched_from = match marked {
            Some(_) => MarkedData::AT as u32,
            None if pdu.data_digest => len.saturating_sub(DIGEST_LEN as u32),
            None => len,
        };
        self.pdus += 1;
        let mut tagged = |piece: Bytes| {
            let tag = TxTag::device(context, UnitTag { number, at, len, touched_from });
            at += piece.len() as u32;
            (piece, tag)
        };
        match marked {
            Some(marked) => stream.send_pieces(&mut pdu.into_pieces_for_stages(marked).map(&mut tagged)),
            None => stream.send_pieces(&mut pdu.into_pieces_for_device().map(&mut tagged)),
        };
    }

    /// Returns the mark by which the PDU's header makes the device encrypt the data. `None` if there is nothing to
    /// encrypt or the device cannot do it.
    fn mark(&mut self, stream: &mut dyn SegmentStream, context: Handle, pdu: &WirePdu) -> Option<MarkedData> {
        let DataEncryption { volume, first, .. } = pdu.sealing()?;
        let key = self.keys.name_key(volume)?;
        let number = self.volumes.number(volume)?;
        let marked = MarkedData::new(number, *first)?;
        // The key is sent to the device before the first PDU that needs it, on the same ring.
        let is_told = self.volumes.tell_key(number, key, || {
            let (mut stages, mut told) = (vec![StageSpec::new(XTS_STAGE, key)], false);
            stream.control(&mut |_, contexts| {
                if let Some(mut contexts) = NvmeTcpContexts::from_contexts(contexts) {
                    let stages = NvmeTcpStages { command: number, unit: 0, stages: core::mem::take(&mut stages) };
                    told = contexts.seal_with(context, stages);
                }
            });
            told
        });
        if !is_told {
            return None;
        }
        self.volumes.note_queued(number, volume, self.sent);
        Some(marked)
    }

    /// Drops the keys of volumes with all data acknowledged.
    pub(super) fn poll_arrived(&mut self, cx: &mut Context<'_>, stream: &mut dyn SegmentStream) {
        self.volumes.poll_arrived(cx, stream);
    }

    /// Returns whether a volume with data left to a device or the sealer was erased since the last call.
    pub(super) fn take_erased(&self) -> bool {
        self.volumes.take_erased()
    }

    /// Ends offload: releases the context once all PDUs queued with it have been acknowledged.
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

    /// Asks the device for a context, if one is wanted and it is time. Called before a PDU with a digest.
    fn return_to_device(&mut self, stream: &mut dyn SegmentStream) {
        if core::mem::take(&mut self.wanted) {
            self.asking.begin();
        }
        self.asking.note_unit();
        if !self.asking.is_due() {
            return;
        }
        // A new context knows no keys.
        self.volumes.forget_device_keys();
        self.context = self.asking.ask(stream, |flow, device| device.add_transmit(flow));
        if self.context.is_some() && !core::mem::replace(&mut self.has_sealer, true) {
            stream.install(Layer::FIRST, Box::new(PduSealer { volumes: self.volumes.by_number() }));
        }
    }
}

/// The sealer: encrypts a PDU's data and fills in its digest in place of a device. A second sealing of a PDU changes
/// nothing.
#[derive(Default)]
struct PduSealer {
    volumes: VolumesByNumber,
}

impl PduSealer {
    /// Encrypts the data from `start` to `end`, if the PDU's header is marked.
    fn encrypt(&self, pdu: &mut [u8], start: usize, end: usize) -> Option<()> {
        let (header, data) = pdu.split_at_mut_checked(start)?;
        let header: &mut [u8; MarkedData::END] = header.first_chunk_mut()?;
        let Some(marked) = MarkedData::read(header) else { return Some(()) };
        let volume = self.volumes.get(marked.stages())?;
        MarkedData::erase(header, (end - start) as u32);
        let at = u32_at(header, DATA_OFFSET);
        let data = data.get_mut(..end - start)?;
        let _scope = cost::work(WorkKind::Crypto);
        volume.encrypt(marked.unit(), at.into(), data).ok()
    }
}

/// Offset of DATAO in a data PDU.
const DATA_OFFSET: usize = 12;

impl Sealer for PduSealer {
    fn seal(&mut self, unit: Unit, plain: &[Bytes]) -> Result<Bytes, SealError> {
        let malformed = SealError::Malformed { number: unit.number };
        let length: usize = plain.iter().map(Bytes::len).sum();
        let mut pdu = BytesMut::with_capacity(length);
        {
            let _scope = cost::work(WorkKind::Copy);
            plain.iter().for_each(|piece| pdu.extend_from_slice(piece));
        }
        // The transport hands over whole PDUs. Everything else would be sent as plaintext, so it is refused.
        let header = PduHeader::parse(pdu.first_chunk().ok_or(malformed)?);
        if header.len as usize != length || length != unit.len as usize {
            return Err(malformed);
        }
        let start = usize::from(header.data_offset);
        if header.kind == PduType::HostData as u8 {
            let digest = if header.has_data_digest() { DIGEST_LEN } else { 0 };
            let end = length.checked_sub(digest).filter(|end| start < *end).ok_or(malformed)?;
            self.encrypt(&mut pdu, start, end).ok_or(malformed)?;
        }
        if header.has_data_digest() {
            let end = length.checked_sub(DIGEST_LEN).filter(|end| start < *end).ok_or(malformed)?;
            let (data, digest) = pdu.split_at_mut(end);
            digest.copy_from_slice(&Digest::compute(&data[start..]).wire());
        }
        Ok(pdu.freeze())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::volume::KeyedVolume;
    use crate::wire::{DataHeader, Pdu, PduFraming};
    use offload_base::Seq;
    use proptest::prelude::*;
    use resumable_aead::{DataUnits, Volume, XtsKey};

    fn unit(length: usize) -> Unit {
        Unit { layer: Layer::FIRST, number: 3, offset: 9, start: Seq(u32::MAX), len: length as u32, touched_from: 0 }
    }

    proptest! {
        #[test]
        fn sealer_and_software_send_the_same_bytes(
            data in prop::collection::vec(prop::collection::vec(any::<u8>(), 1..300), 0..5),
            header_digest: bool,
            alignment in 0u8..9,
        ) {
            let framing = PduFraming { header_digest, data_digest: true, alignment };
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
            let sealed = PduSealer::default().seal(unit(queued.len()), &pieces).unwrap();
            prop_assert_eq!(&sealed[..], &software[..]);
            prop_assert_eq!(PduSealer::default().seal(unit(queued.len()), core::slice::from_ref(&sealed)).unwrap(), sealed);
        }
    }

    #[test]
    fn sealer_and_cpu_encrypt_alike() {
        let key: Vec<u8> = (0..64).collect();
        let volume = KeyedVolume::from(Volume::new(XtsKey::new(&key).unwrap(), DataUnits::new(512).unwrap()));
        let mut sealer = PduSealer { volumes: VolumesByNumber::from_volumes(vec![volume.clone()]) };
        for (data_digest, offset) in [(true, 0), (false, 528)] {
            let framing = PduFraming { data_digest, ..PduFraming::default() };
            let header = DataHeader { command: 7, tag: 1, offset, length: 1024, last: true, success: false };
            let data = [Bytes::from(vec![5; 100]), Bytes::from(vec![6; 924])];
            let sealing = DataEncryption { volume: volume.clone(), first: 9, at: offset };
            let pdu = framing.frame(&Pdu::HostData(header), data).with_sealing(Some(sealing));
            let software: Vec<u8> = pdu.clone().into_pieces().flatten().collect();
            let queued: Vec<Bytes> = pdu.into_pieces_for_stages(MarkedData::new(1, 9).unwrap()).collect();
            assert_eq!(queued[1..3].concat()[..], [[5; 100].as_slice(), &[6; 924]].concat(), "not encrypted yet");
            let sealed = sealer.seal(unit(software.len()), &queued).unwrap();
            assert_eq!(sealed[..], software[..]);
            assert_eq!(sealer.seal(unit(software.len()), core::slice::from_ref(&sealed)).unwrap(), sealed);
            let unknown = PduSealer::default().seal(unit(software.len()), &queued);
            assert_eq!(unknown, Err(SealError::Malformed { number: 3 }), "unknown volume");
            if offset > 0 {
                volume.erase();
                let erased = sealer.seal(unit(software.len()), &queued);
                assert_eq!(erased, Err(SealError::Malformed { number: 3 }), "erased volume");
            }
        }
    }

    #[test]
    fn malformed_pdu_is_not_sealed() {
        let header = DataHeader { command: 7, tag: 1, offset: 0, length: 9, last: true, success: false };
        let framing = PduFraming { data_digest: true, ..PduFraming::default() };
        let pdu: Vec<u8> =
            framing.frame(&Pdu::HostData(header), [Bytes::from(vec![1; 9])]).into_pieces().flatten().collect();
        let malformed = Err(SealError::Malformed { number: 3 });
        assert_eq!(PduSealer::default().seal(unit(pdu.len()), &[Bytes::copy_from_slice(&pdu[1..])]), malformed);
        assert_eq!(PduSealer::default().seal(unit(pdu.len() + 1), &[Bytes::copy_from_slice(&pdu)]), malformed);
        let mut wrong = pdu;
        wrong[3] = 200;
        assert_eq!(PduSealer::default().seal(unit(wrong.len()), &[Bytes::from(wrong)]), malformed);
    }
}
