//! Data that become records when the transport asks for them, under its own lock, and not before.
//!
//! Invariant: a record is begun only if nothing has to happen before it but framing: no key is due to change, and nobody
//! is due to judge whether the device should go on. What is left then is as it was, to be written one step at a time.

use super::acks::AckLog;
use super::policy::RetransmitPolicy;
use crate::counters::TlsCounters;
use crate::record::ContentType;
use crate::record::send::{Content, Sender};
use bytes::Bytes;
use offload_api::{NextPiece, SentBytes, TxTag};
use smallvec::SmallVec;

/// Pieces of data in records of one size, the last of which ends with the data.
pub(super) struct Cutter<'a> {
    data: &'a mut NextPiece<'a>,
    /// What the record before had no room for.
    rest: Option<(Bytes, TxTag)>,
    size: usize,
}

pub(super) type Pieces = SmallVec<[(Bytes, TxTag); PIECES]>;

impl<'a> Cutter<'a> {
    pub(super) fn new(data: &'a mut NextPiece<'a>, size: usize) -> Cutter<'a> {
        Cutter { data, rest: None, size }
    }

    /// The content of the next record, and its length; `None` at the end of the data. `sent` has left.
    pub(super) fn next_content(&mut self, sent: SentBytes) -> Option<(Pieces, usize)> {
        let (mut content, mut length) = (Pieces::new(), 0);
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

/// Data on their way into records for a device.
pub(super) struct Records<'a, 'd> {
    cutter: &'a mut Cutter<'d>,
    sender: &'a mut Sender,
    acks: &'a mut AckLog,
    counters: &'a mut TlsCounters,
    policy: &'a mut RetransmitPolicy,
    /// Content of a record that was not begun.
    left: Option<(Pieces, usize)>,
    /// Bytes of the records.
    wire: u64,
    framed: smallvec::IntoIter<[(Bytes, TxTag); PIECES]>,
}

impl<'a, 'd> Records<'a, 'd> {
    /// Of what `cutter` gives.
    pub(super) fn new(
        cutter: &'a mut Cutter<'d>,
        sender: &'a mut Sender,
        acks: &'a mut AckLog,
        counters: &'a mut TlsCounters,
        policy: &'a mut RetransmitPolicy,
    ) -> Records<'a, 'd> {
        let framed = Pieces::new().into_iter();
        Records { cutter, sender, acks, counters, policy, left: None, wire: 0, framed }
    }

    /// The next piece, `sent` having left.
    pub(super) fn next(&mut self, sent: SentBytes) -> Option<(Bytes, TxTag)> {
        if self.framed.len() == 0 && self.left.is_none() {
            self.frame(sent);
        }
        self.framed.next()
    }

    /// Bytes of the records, and the content of one that was not begun.
    pub(super) fn end(self) -> (u64, Option<(Pieces, usize)>) {
        (self.wire, self.left)
    }

    /// Frames the next record, if there is one and nothing has to happen first.
    fn frame(&mut self, sent: SentBytes) {
        let Some((content, length)) = self.cutter.next_content(sent) else { return };
        if self.sender.records_left() == 0 || !self.policy.admits(length as u64, sent) {
            self.left = Some((content, length));
            return;
        }
        let mut pieces = Pieces::new();
        let queue = &mut |bytes, tag| pieces.push((bytes, tag));
        let framed = self.sender.record(ContentType::ApplicationData, Content::Shared(&content), self.counters, queue);
        if framed.is_err() {
            // It fails again, and is told, where it is written one step at a time.
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

/// Of a record left to a device: prefix, content, trailer; the content of a PDU is its header, data and digest.
const PIECES: usize = 5;
