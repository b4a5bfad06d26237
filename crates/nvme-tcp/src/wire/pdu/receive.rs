//! Parsing of PDUs from a stream.
//!
//! Invariants: results do not depend on the positions where the stream is cut. Data are passed on in the received
//! pieces, with the device's metadata. The CPU computes a data digest while the data pass, or not at all: as long as
//! the device verified all bytes of a PDU, the receiver holds the data back until it knows whether the device verified
//! the digest, too.

use super::fatal::{FatalError, FatalStatus};
use super::frame::alignment_bytes;
use super::{MAX_HEADER, Pdu, PduType};
use crate::wire::{DIGEST_LEN, Digest};
use offload_api::RxSegment;
use offload_api::rx::NvmeVerdict;
use offload_base::Seq;
use offload_base::cost::{self, WorkKind};
use offload_formats::nvme::PduHeader;
use std::collections::VecDeque;

/// End of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectionSide {
    /// The host, which sends commands.
    Host,
    /// The controller, which executes commands.
    Controller,
}

/// The limits and framing that the receiver enforces, as negotiated when the connection is opened.
///
/// See [`PduReceiver`] for an example.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PduLimits {
    /// Headers carry digests.
    pub header_digest: bool,
    /// Data carry digests.
    pub data_digest: bool,
    /// Our HPDA or CPDA: data must begin at a multiple of `(alignment + 1) * 4` bytes.
    pub alignment: u8,
    /// Maximum number of data bytes in a command capsule.
    pub max_in_capsule: u32,
    /// Maximum number of data bytes in a data PDU.
    pub max_data: u32,
}

/// An item parsed from the stream.
#[derive(Debug)]
pub enum PduItem {
    /// A complete, checked header. Data follow if the PDU has data.
    Header {
        /// The parsed header.
        pdu: Pdu,
        /// Number of data bytes that follow. If zero, neither [`Data`](PduItem::Data) nor
        /// [`DataEnd`](PduItem::DataEnd) follows.
        data: u32,
    },
    /// The next data of the PDU.
    Data(RxSegment),
    /// All data of the PDU have been returned.
    DataEnd {
        /// The digest matches, or the PDU has no data digest.
        intact: bool,
    },
}

/// A parser of the PDUs of one connection.
///
/// ```
/// use bytes::{Bytes, BytesMut};
/// use nvme_tcp::wire::{PduFraming, InitializeRequest, PduLimits, Pdu, PduItem, PduReceiver, ConnectionSide};
/// use offload_api::{RxMeta, RxSegment};
/// use offload_base::Seq;
///
/// let request = Pdu::InitializeRequest(InitializeRequest::default());
/// let bytes: Vec<Bytes> = PduFraming::default().frame(&request, []).into_pieces().collect();
/// let mut receiver = PduReceiver::new(ConnectionSide::Controller, PduLimits::default());
/// for byte in bytes.concat() {
///     receiver.push(RxSegment { seq: Seq(0), data: BytesMut::from(&[byte][..]).into(), meta: RxMeta::default() });
/// }
/// let Ok(Some(PduItem::Header { pdu, data: 0 })) = receiver.poll() else { panic!() };
/// assert_eq!(pdu, request);
/// ```
#[derive(Debug)]
pub struct PduReceiver {
    side: ConnectionSide,
    limits: PduLimits,
    input: VecDeque<RxSegment>,
    state: PduState,
    header: [u8; MAX_HEADER + DIGEST_LEN],
    have: usize,
    /// Bytes of PDUs consumed so far.
    taken: u64,
    /// Sequence numbers where the last PDUs began. `None` unless [`log_starts`](Self::log_starts) was called.
    starts: Option<VecDeque<Seq>>,
}

#[derive(Debug)]
enum PduState {
    Header,
    Padding {
        left: u32,
        data: u32,
    },
    Data {
        left: u32,
        digest: DataSum,
    },
    DataDigest {
        have: usize,
        bytes: [u8; DIGEST_LEN],
        digest: DataSum,
    },
    /// Releases data that were held back; `then` is the state afterwards.
    Release {
        pieces: VecDeque<RxSegment>,
        then: NextState,
    },
    Failed(FatalError),
}

/// Verification of a data digest.
#[derive(Debug)]
enum DataSum {
    /// The PDU has no data digest.
    Off,
    /// The device verified all data so far; the pieces are held back.
    Device(VecDeque<RxSegment>),
    /// The CPU computes the digest.
    Software(Digest),
}

#[derive(Debug)]
enum NextState {
    /// More data follow.
    Data { left: u32, digest: Digest },
    /// The data digest follows; `have` of its bytes are here.
    DataDigest { have: usize, bytes: [u8; DIGEST_LEN], digest: Digest },
    /// The PDU is complete.
    End,
}

impl Default for PduLimits {
    fn default() -> PduLimits {
        PduLimits { header_digest: false, data_digest: false, alignment: 0, max_in_capsule: 8192, max_data: 1 << 20 }
    }
}

impl PduReceiver {
    /// Creates a receiver for `side`.
    pub fn new(side: ConnectionSide, limits: PduLimits) -> PduReceiver {
        PduReceiver {
            side,
            limits,
            input: VecDeque::new(),
            state: PduState::Header,
            header: [0; MAX_HEADER + DIGEST_LEN],
            have: 0,
            taken: 0,
            starts: None,
        }
    }

    /// Enforces other limits from the next PDU on. Call this only between PDUs, when the two ends have agreed.
    pub fn set_limits(&mut self, limits: PduLimits) {
        self.limits = limits;
    }

    /// Returns the enforced limits.
    pub fn limits(&self) -> PduLimits {
        self.limits
    }

    /// Appends the next range of the stream.
    pub fn push(&mut self, segment: RxSegment) {
        if !segment.data.is_empty() && !matches!(self.state, PduState::Failed(_)) {
            self.input.push_back(segment);
        }
    }

    /// Returns whether the stream is between PDUs, where it may end.
    pub fn is_between_pdus(&self) -> bool {
        matches!(self.state, PduState::Header) && self.have == 0 && self.input.is_empty()
    }

    /// Returns how many bytes of the current PDU are still missing; zero between PDUs. `None` if the header is
    /// incomplete, or if [`poll`](Self::poll) has to be called first.
    pub fn rest(&self) -> Option<u32> {
        if !self.input.is_empty() {
            return None;
        }
        let trailer = if self.limits.data_digest { DIGEST_LEN as u32 } else { 0 };
        match &self.state {
            PduState::Header => (self.have == 0).then_some(0),
            PduState::Padding { left, data } => Some(left + data + trailer),
            PduState::Data { left, .. } => Some(left + trailer),
            PduState::DataDigest { have, .. } => Some((DIGEST_LEN - have) as u32),
            PduState::Release { .. } | PduState::Failed(_) => None,
        }
    }

    /// Returns the last header, without its digest.
    pub fn header(&self) -> &[u8] {
        let length = PduType::from_u8(self.common().kind).map_or(PduHeader::BYTES, PduType::header_len);
        &self.header[..length]
    }

    /// Records the start of each PDU from now on.
    pub(crate) fn log_starts(&mut self) {
        self.starts.get_or_insert_default();
    }

    /// Returns whether one of the recorded PDUs began at `seq`. `None` if the stream has not reached `seq`.
    pub(crate) fn began_at(&self, seq: Seq) -> Option<bool> {
        let starts = self.starts.as_ref()?;
        let last = starts.back()?;
        if last.before(seq) { None } else { Some(starts.contains(&seq)) }
    }

    /// Returns the number of stream bytes consumed so far.
    pub fn taken(&self) -> u64 {
        self.taken
    }

    /// Returns the next item; `None` if more input is needed.
    ///
    /// # Errors
    /// The fatal error that ends the connection. Later calls return the same error.
    pub fn poll(&mut self) -> Result<Option<PduItem>, FatalError> {
        let _scope = cost::work(WorkKind::Framing);
        loop {
            let step = match &mut self.state {
                PduState::Header => self.header_step(),
                PduState::Padding { .. } => self.padding_step(),
                PduState::Data { .. } => self.data_step(),
                PduState::DataDigest { .. } => self.digest_step(),
                PduState::Release { .. } => self.release_step(),
                PduState::Failed(error) => return Err(error.clone()),
            };
            match step {
                Ok(ParseStep::Give(received)) => return Ok(Some(received)),
                Ok(ParseStep::Again) => {}
                Ok(ParseStep::Starved) => return Ok(None),
                Err(error) => {
                    self.input.clear();
                    self.state = PduState::Failed(error.clone());
                    return Err(error);
                }
            }
        }
    }

    fn header_step(&mut self) -> Result<ParseStep, FatalError> {
        if !self.fill_header(PduHeader::BYTES) {
            return Ok(ParseStep::Starved);
        }
        // Checked before waiting for the rest of the header: a wrong length must fail at once, not stall the
        // connection.
        let kind = self.check_common()?;
        let digested = self.limits.header_digest && !kind.never_digested();
        let header_len = kind.header_len();
        let whole = header_len + if digested { DIGEST_LEN } else { 0 };
        if !self.fill_header(whole) {
            return Ok(ParseStep::Starved);
        }
        if digested {
            let received = self.header[header_len..whole].try_into().unwrap_or_default();
            if Digest::compute(&self.header[..header_len]).wire() != received {
                return Err(FatalError::header_digest(received, &self.header[..header_len]));
            }
        }
        let header = &self.header[..header_len];
        let Some(pdu) = Pdu::parse(header) else {
            return Err(FatalError::new(FatalStatus::InvalidHeaderField, 0, header));
        };
        // check_common has checked these lengths, so the subtractions cannot underflow.
        let PduHeader { data_offset, len: plen, .. } = self.common();
        let data_start = if self.has_data(kind, plen) { u32::from(data_offset) } else { whole as u32 };
        let trailer = if self.has_data(kind, plen) && self.limits.data_digest { DIGEST_LEN as u32 } else { 0 };
        let data = plen - data_start - trailer;
        if let Pdu::HostData(announced) | Pdu::ControllerData(announced) = &pdu
            && announced.length != data
        {
            return Err(FatalError::new(FatalStatus::InvalidHeaderField, 4, header));
        }
        // The bytes stay in place until the next PDU: an error in the data quotes them.
        self.have = 0;
        self.state = PduState::Padding { left: data_start - whole as u32, data };
        Ok(ParseStep::Give(PduItem::Header { pdu, data }))
    }

    /// Checks type, flags, HLEN, PDO and PLEN of the common header.
    fn check_common(&self) -> Result<PduType, FatalError> {
        let header = &self.header[..self.have.min(MAX_HEADER)];
        let wrong = |offset| Err(FatalError::new(FatalStatus::InvalidHeaderField, offset, header));
        let common = self.common();
        let kind = match PduType::from_u8(common.kind) {
            Some(kind) if kind.is_from_host() == (self.side == ConnectionSide::Controller) => kind,
            _ => return wrong(0),
        };
        if usize::from(common.header_len) != kind.header_len() {
            return wrong(2);
        }
        let plen = common.len;
        // The flag must match the negotiated digests exactly: HDGSTF on a connection without digests is an error as
        // well.
        let digested = self.limits.header_digest && !kind.never_digested();
        if !kind.never_digested() && common.has_header_digest() != digested {
            return wrong(1);
        }
        let header_end = (kind.header_len() + if digested { DIGEST_LEN } else { 0 }) as u32;
        if plen < header_end {
            return wrong(4);
        }
        match kind {
            // A TermReq carries up to 128 bytes of the faulty header.
            PduType::HostTermination | PduType::ControllerTermination => {
                if plen > header_end + MAX_HEADER as u32 {
                    return wrong(4);
                }
            }
            _ if !self.has_data(kind, plen) => {
                if plen != header_end || matches!(kind, PduType::HostData | PduType::ControllerData) {
                    return wrong(4);
                }
            }
            _ => {
                let start = u32::from(common.data_offset);
                if start < header_end || !start.is_multiple_of(alignment_bytes(self.limits.alignment) as u32) {
                    return wrong(3);
                }
                if common.has_data_digest() != self.limits.data_digest {
                    return wrong(1);
                }
                let trailer = if self.limits.data_digest { DIGEST_LEN as u32 } else { 0 };
                let Some(data) = plen.checked_sub(start + trailer).filter(|data| *data > 0) else {
                    return wrong(4);
                };
                let limit = if kind == PduType::Command { self.limits.max_in_capsule } else { self.limits.max_data };
                if data > limit {
                    return Err(FatalError::new(FatalStatus::LimitExceeded, 4, header));
                }
            }
        }
        Ok(kind)
    }

    /// Parses the common header. Bytes not yet received are zero or left over from the last PDU.
    fn common(&self) -> PduHeader {
        let [a, b, c, d, e, f, g, h, ..] = self.header;
        PduHeader::parse(&[a, b, c, d, e, f, g, h])
    }

    /// Returns whether a PDU of `kind` and `plen` bytes has data.
    fn has_data(&self, kind: PduType, plen: u32) -> bool {
        let digest = if self.limits.header_digest { DIGEST_LEN } else { 0 };
        kind.carries_data() && plen as usize > kind.header_len() + digest
    }

    fn padding_step(&mut self) -> Result<ParseStep, FatalError> {
        let PduState::Padding { left, data } = self.state else { return Ok(ParseStep::Again) };
        // The content of the padding is not checked.
        if left > 0 {
            let Some(skipped) = self.take(left) else { return Ok(ParseStep::Starved) };
            self.state = PduState::Padding { left: left - skipped.data.len() as u32, data };
            return Ok(ParseStep::Again);
        }
        if data == 0 {
            self.state = PduState::Header;
            return Ok(ParseStep::Again);
        }
        let digested = self.limits.data_digest && self.common().has_data_digest();
        let kind = PduType::from_u8(self.common().kind);
        let digest = match kind {
            Some(kind) if digested && kind.carries_data() => DataSum::Device(VecDeque::new()),
            _ => DataSum::Off,
        };
        self.state = PduState::Data { left: data, digest };
        Ok(ParseStep::Again)
    }

    fn data_step(&mut self) -> Result<ParseStep, FatalError> {
        let PduState::Data { left, .. } = self.state else { return Ok(ParseStep::Again) };
        let Some(mut segment) = self.take(left) else { return Ok(ParseStep::Starved) };
        let PduState::Data { left, digest } = core::mem::replace(&mut self.state, PduState::Header) else {
            return Ok(ParseStep::Again);
        };
        let left = left - segment.data.len() as u32;
        let (digest, give) = match digest {
            DataSum::Off => (DataSum::Off, Some(segment)),
            DataSum::Device(mut pieces) if segment.meta.nvme() == NvmeVerdict::Good => {
                pieces.push_back(segment);
                (DataSum::Device(pieces), None)
            }
            // The device did not verify this piece. The CPU computes the digest of all pieces held back, and of the
            // rest.
            DataSum::Device(mut pieces) => {
                pieces.push_back(segment);
                let digest = sum(&mut pieces);
                let then = match left {
                    0 => NextState::DataDigest { have: 0, bytes: [0; DIGEST_LEN], digest },
                    left => NextState::Data { left, digest },
                };
                self.state = PduState::Release { pieces, then };
                return Ok(ParseStep::Again);
            }
            DataSum::Software(mut digest) => {
                update(&mut digest, &mut segment);
                (DataSum::Software(digest), Some(segment))
            }
        };
        self.state = match (left, digest) {
            // Without a digest, an empty release reports the end of the data.
            (0, DataSum::Off) => PduState::Release { pieces: VecDeque::new(), then: NextState::End },
            (0, digest) => PduState::DataDigest { have: 0, bytes: [0; DIGEST_LEN], digest },
            (left, digest) => PduState::Data { left, digest },
        };
        Ok(give.map_or(ParseStep::Again, |segment| ParseStep::Give(PduItem::Data(segment))))
    }

    fn digest_step(&mut self) -> Result<ParseStep, FatalError> {
        let PduState::DataDigest { have, .. } = self.state else { return Ok(ParseStep::Again) };
        let Some(segment) = self.take((DIGEST_LEN - have) as u32) else { return Ok(ParseStep::Starved) };
        let PduState::DataDigest { have, mut bytes, digest } = core::mem::replace(&mut self.state, PduState::Header)
        else {
            return Ok(ParseStep::Again);
        };
        bytes[have..have + segment.data.len()].copy_from_slice(&segment.data);
        let have = have + segment.data.len();
        let vouched = segment.meta.nvme() == NvmeVerdict::Good;
        // A digest may be cut into several segments. The device's verdict counts only if every segment carries it.
        match digest {
            DataSum::Device(pieces) if vouched && have == DIGEST_LEN => {
                self.state = PduState::Release { pieces, then: NextState::End };
                Ok(ParseStep::Again)
            }
            DataSum::Device(pieces) if vouched => {
                self.state = PduState::DataDigest { have, bytes, digest: DataSum::Device(pieces) };
                Ok(ParseStep::Again)
            }
            // The device did not verify the digest itself, so the CPU verifies the data that were held back.
            DataSum::Device(mut pieces) => {
                let digest = sum(&mut pieces);
                self.state = PduState::Release { pieces, then: NextState::DataDigest { have, bytes, digest } };
                Ok(ParseStep::Again)
            }
            digest if have < DIGEST_LEN => {
                self.state = PduState::DataDigest { have, bytes, digest };
                Ok(ParseStep::Again)
            }
            DataSum::Software(digest) => Ok(ParseStep::Give(PduItem::DataEnd { intact: digest.wire() == bytes })),
            DataSum::Off => Ok(ParseStep::Give(PduItem::DataEnd { intact: true })),
        }
    }

    fn release_step(&mut self) -> Result<ParseStep, FatalError> {
        let PduState::Release { pieces, .. } = &mut self.state else { return Ok(ParseStep::Again) };
        if let Some(segment) = pieces.pop_front() {
            return Ok(ParseStep::Give(PduItem::Data(segment)));
        }
        let PduState::Release { then, .. } = core::mem::replace(&mut self.state, PduState::Header) else {
            return Ok(ParseStep::Again);
        };
        match then {
            // The rest of the data is passed on as it arrives.
            NextState::Data { left, digest } => self.state = PduState::Data { left, digest: DataSum::Software(digest) },
            NextState::DataDigest { have: DIGEST_LEN, bytes, digest } => {
                return Ok(ParseStep::Give(PduItem::DataEnd { intact: digest.wire() == bytes }));
            }
            NextState::DataDigest { have, bytes, digest } => {
                self.state = PduState::DataDigest { have, bytes, digest: DataSum::Software(digest) };
            }
            NextState::End => return Ok(ParseStep::Give(PduItem::DataEnd { intact: true })),
        }
        Ok(ParseStep::Again)
    }

    /// Collects the first `wanted` bytes of a PDU. Returns false if bytes are missing.
    fn fill_header(&mut self, wanted: usize) -> bool {
        while self.have < wanted {
            let Some(segment) = self.take((wanted - self.have) as u32) else { return false };
            // Only the first byte of a header marks the start of a PDU.
            if let (0, Some(starts)) = (self.have, &mut self.starts) {
                if starts.len() == STARTS {
                    starts.pop_front();
                }
                starts.push_back(segment.seq);
            }
            self.header[self.have..self.have + segment.data.len()].copy_from_slice(&segment.data);
            self.have += segment.data.len();
        }
        true
    }

    /// Takes up to `most` bytes of the input from a single segment.
    fn take(&mut self, most: u32) -> Option<RxSegment> {
        let first = self.input.front_mut()?;
        let taken =
            if first.data.len() > most as usize { first.split_to(most as usize) } else { self.input.pop_front()? };
        self.taken += taken.data.len() as u64;
        Some(taken)
    }
}

enum ParseStep {
    Give(PduItem),
    Again,
    Starved,
}

/// Number of recorded PDU starts.
const STARTS: usize = 64;

fn sum(pieces: &mut VecDeque<RxSegment>) -> Digest {
    let mut digest = Digest::default();
    pieces.iter_mut().for_each(|piece| update(&mut digest, piece));
    digest
}

/// Adds the bytes of the wire, undoing decryption by a device. If that is not possible, the digest is wrong and the PDU
/// fails.
fn update(digest: &mut Digest, segment: &mut RxSegment) {
    let _ = segment.data.close();
    digest.update(&segment.data);
}
