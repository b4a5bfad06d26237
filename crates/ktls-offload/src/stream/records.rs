//! Data that become records when the transport asks for them, under the transport's lock.
//!
//! Invariant: a record is begun only if it needs nothing but framing: no key change and no policy decision is due.
//! Otherwise the data remain unchanged for the slower path, which writes one record at a time.

use super::acks::AckLog;
use super::policy::RetransmitPolicy;
use crate::counters::TlsCounters;
use crate::record::ContentType;
use crate::record::send::{RecordContent, RecordSender};
use bytes::Bytes;
use offload_api::{NextPiece, SentBytes, TxTag};
use smallvec::SmallVec;

/// A divider of data into contents of one record size. The last content ends with the data.
pub(super) struct Cutter<'a> {
    data: &'a mut NextPiece<'a>,
    /// The part of a piece that did not fit into the previous record.
    rest: Option<(Bytes, TxTag)>,
    size: usize,
}

pub(super) type RecordPieces = SmallVec<[(Bytes, TxTag); PIECES]>;

impl<'a> Cutter<'a> {
    pub(super) fn new(data: &'a mut NextPiece<'a>, size: usize) -> Cutter<'a> {
        Cutter { data, rest: None, size }
    }

    /// Returns the content of the next record and its length, or `None` at the end of the data. `sent` is passed to the
    /// data source.
    pub(super) fn next_content(&mut self, sent: SentBytes) -> Option<(RecordPieces, usize)> {
        let (mut content, mut length) = (RecordPieces::new(), 0);
        while length < self.size {
            let Some((mut data, tag)) = self.rest.take().or_else(|| (self.data)(sent)) else { break };
            let part = data.split_to((self.size - length).min(data.len()));
            let bytes = part.len();
            if bytes > 0 {
                content.push((part, tag));
            }
            if !data.is_empty() {
                self.rest = Some((data, tag.advanced(bytes as u32)));
            }
            length += bytes;
        }
        (length > 0).then_some((content, length))
    }
}

/// Data being framed into records for a device.
pub(super) struct DeviceRecords<'a, 'd> {
    cutter: &'a mut Cutter<'d>,
    sender: &'a mut RecordSender,
    acks: &'a mut AckLog,
    counters: &'a mut TlsCounters,
    policy: &'a mut RetransmitPolicy,
    /// The content of a record that could not be begun.
    left: Option<(RecordPieces, usize)>,
    /// Length of the framed records in bytes.
    wire: u64,
    framed: smallvec::IntoIter<[(Bytes, TxTag); PIECES]>,
}

impl<'a, 'd> DeviceRecords<'a, 'd> {
    /// Creates records of the data in `cutter`.
    pub(super) fn new(
        cutter: &'a mut Cutter<'d>,
        sender: &'a mut RecordSender,
        acks: &'a mut AckLog,
        counters: &'a mut TlsCounters,
        policy: &'a mut RetransmitPolicy,
    ) -> DeviceRecords<'a, 'd> {
        let framed = RecordPieces::new().into_iter();
        DeviceRecords { cutter, sender, acks, counters, policy, left: None, wire: 0, framed }
    }

    /// Returns the next piece of a record. `sent` tells the bytes sent so far.
    pub(super) fn next(&mut self, sent: SentBytes) -> Option<(Bytes, TxTag)> {
        if self.framed.len() == 0 && self.left.is_none() {
            self.frame(sent);
        }
        self.framed.next()
    }

    /// Returns the length of the framed records in bytes, and the content of the record that could not be begun.
    pub(super) fn end(self) -> (u64, Option<(RecordPieces, usize)>) {
        (self.wire, self.left)
    }

    /// Frames the next record, if there are data and nothing else must happen first.
    fn frame(&mut self, sent: SentBytes) {
        let Some((content, length)) = self.cutter.next_content(sent) else { return };
        if self.sender.records_left() == 0 || !self.policy.admits(length as u64, sent) {
            self.left = Some((content, length));
            return;
        }
        let mut pieces = RecordPieces::new();
        let queue = &mut |bytes, tag| pieces.push((bytes, tag));
        let framed =
            self.sender.record(ContentType::ApplicationData, RecordContent::Shared(&content), self.counters, queue);
        if framed.is_err() {
            // The slower path meets the same error and reports it.
            self.left = Some((content, length));
            return;
        }
        let wire: usize = pieces.iter().map(|(bytes, _)| bytes.len()).sum();
        self.acks.wire(wire);
        self.acks.record(length);
        self.wire += wire as u64;
        self.framed = pieces.into_iter();
    }
}

/// Pieces of a record for a device: prefix, content and trailer. The content of a PDU has up to three: header, data and
/// digest.
const PIECES: usize = 5;
