//! PDUs framed for sending.

use super::{DataEncryption, Pdu, PduType};
use crate::wire::{DIGEST_LEN, Digest};
use bytes::{BufMut, Bytes, BytesMut};
use offload_api::MarkedData;
use offload_base::cost::{self, WorkKind};
use offload_formats::nvme::PduHeader;
use smallvec::SmallVec;

/// The framing parameters of one direction, as negotiated.
///
/// ```
/// use bytes::Bytes;
/// use nvme_tcp::wire::{Command, PduFraming, IoOpcode, Pdu, Sgl};
///
/// let framing = PduFraming { header_digest: true, data_digest: true, alignment: 0 };
/// let write = Command::new(IoOpcode::Write as u8, 1).with_sgl(Sgl::in_capsule(512));
/// let pdu = framing.frame(&Pdu::Command(write), [Bytes::from(vec![0; 512])]);
/// assert_eq!(pdu.len(), 72 + 4 + 512 + 4);
/// assert_eq!(pdu.into_pieces().map(|piece| piece.len()).collect::<Vec<_>>(), [76, 512, 4]);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PduFraming {
    /// Headers carry digests.
    pub header_digest: bool,
    /// Data carry digests.
    pub data_digest: bool,
    /// HPDA or CPDA of the receiver: data begin at a multiple of `(alignment + 1) * 4` bytes.
    pub alignment: u8,
}

impl PduFraming {
    /// Frames `pdu` with `data`. The data digest is computed later, by [`WirePdu::into_pieces`] or by a device.
    ///
    /// # Panics
    /// If the PDU would not fit the 32 bits of PLEN.
    pub fn frame(&self, pdu: &Pdu, data: impl IntoIterator<Item = Bytes>) -> WirePdu {
        let _scope = cost::work(WorkKind::Framing);
        let data: SmallVec<[Bytes; 4]> = data.into_iter().filter(|piece| !piece.is_empty()).collect();
        let data_len: usize = data.iter().map(Bytes::len).sum();
        let kind = pdu.kind();
        let header_len = kind.header_len();
        // Only PDUs after the handshake and before a TermReq carry header digests, and a PDU without data has no data
        // digest.
        let digested = self.header_digest && !kind.never_digested();
        let data_digest = self.data_digest && kind.carries_data() && data_len > 0;
        let mut start = header_len + if digested { DIGEST_LEN } else { 0 };
        let header_end = start;
        if kind.carries_data() && data_len > 0 {
            start = start.next_multiple_of(alignment_bytes(self.alignment));
        }
        let len = start + data_len + if data_digest { DIGEST_LEN } else { 0 };
        let mut header = pdu.header();
        let mut common = pdu.common();
        common.flags |= if digested { PduHeader::HEADER_DIGEST } else { 0 };
        common.flags |= if data_digest { PduHeader::DATA_DIGEST } else { 0 };
        // PDO is zero without data, and for a TermReq, whose data directly follow the header.
        common.data_offset = if kind.carries_data() && data_len > 0 { start as u8 } else { 0 };
        common.len = u32::try_from(len).expect("PLEN has 32 bits");
        header[..PduHeader::BYTES].copy_from_slice(&common.to_bytes());
        let mut head = BytesMut::with_capacity(start);
        head.extend_from_slice(&header[..header_len]);
        if digested {
            head.extend_from_slice(&Digest::compute(&header[..header_len]).wire());
        }
        head.put_bytes(0, start - header_end);
        WirePdu { kind, head: head.freeze(), data, data_digest, len: common.len, sealing: None }
    }
}

/// A framed PDU in pieces.
///
/// See [`PduFraming`] for an example.
#[derive(Clone, Debug)]
pub struct WirePdu {
    /// The PDU's type.
    pub kind: PduType,
    /// Header, header digest, padding.
    pub head: Bytes,
    /// The data.
    pub data: SmallVec<[Bytes; 4]>,
    /// A data digest follows the data.
    pub data_digest: bool,
    len: u32,
    /// Encryption still to be applied to the data.
    sealing: Option<DataEncryption>,
}

impl WirePdu {
    /// PLEN: bytes on the wire, the data digest included.
    pub fn len(&self) -> u32 {
        self.len
    }

    /// Returns false, because every PDU has a header.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Sets the encryption to apply to the data; `None` leaves the data as they are.
    pub(crate) fn with_sealing(self, sealing: Option<DataEncryption>) -> WirePdu {
        WirePdu { sealing, ..self }
    }

    /// Returns the encryption to apply, if a device can apply it to this type of PDU.
    pub(crate) fn sealing(&self) -> Option<&DataEncryption> {
        self.sealing.as_ref().filter(|_| self.kind == PduType::HostData)
    }

    /// Encrypts the data, if encryption is pending.
    pub(crate) fn sealed(mut self) -> WirePdu {
        if let Some(sealing) = self.sealing.take() {
            self.data = SmallVec::from_iter([sealing.encrypt(&self.data)]);
        }
        self
    }

    /// Returns all bytes to send. Encrypts the data and computes the data digest.
    pub fn into_pieces(self) -> impl Iterator<Item = Bytes> {
        self.sealed().into_wire()
    }

    fn into_wire(self) -> impl Iterator<Item = Bytes> {
        let trailer = self.data_digest.then(|| {
            let mut digest = Digest::default();
            for piece in &self.data {
                digest.update(piece);
            }
            Bytes::copy_from_slice(&digest.wire())
        });
        core::iter::once(self.head).chain(self.data).chain(trailer)
    }

    /// Returns all bytes to send with encryption and data digest left to a device. `marked` in the header tells the
    /// device which key and blocks to use.
    pub(crate) fn into_pieces_for_stages(mut self, marked: MarkedData) -> impl Iterator<Item = Bytes> {
        let mut head = BytesMut::from(&self.head[..]);
        if let Some(header) = head.first_chunk_mut() {
            // The device or the sealer removes the mark before the PDU is sent.
            marked.write(header);
        }
        (self.head, self.sealing) = (head.freeze(), None);
        self.into_pieces_for_device()
    }

    /// Returns all bytes to send with the data digest left to a device: zeros are in its place.
    pub(crate) fn into_pieces_for_device(self) -> impl Iterator<Item = Bytes> {
        self.sealed().into_unsummed()
    }

    fn into_unsummed(self) -> impl Iterator<Item = Bytes> {
        let trailer = self.data_digest.then(|| Bytes::from_static(&[0; DIGEST_LEN]));
        core::iter::once(self.head).chain(self.data).chain(trailer)
    }
}

/// Converts HPDA or CPDA to bytes.
pub(crate) const fn alignment_bytes(alignment: u8) -> usize {
    (alignment as usize + 1) * 4
}
