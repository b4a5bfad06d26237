//! The half of a stream that receives: ranges become records, and content waits to be taken.
//!
//! Invariant: a side that ended stays so. Every received byte is told to the transport's `consume` once: when what it was
//! for is done with, or before, if the window would never open again otherwise.

use super::Side;
use crate::counters::TlsCounters;
use crate::error::TlsError;
use crate::record::WIRE_MAX;
use crate::record::inbox;
use crate::record::receive::{Receiver, Record};
use core::task::{Context, Poll};
use offload_api::{RxSegment, SegmentStream};
use offload_base::Seq;
use std::collections::VecDeque;
use std::io;

pub(super) struct ReceiveHalf {
    side: Side,
    receiver: Receiver,
    /// Opened content that nobody has taken.
    plain: VecDeque<RxSegment>,
    /// Bytes that `consume` was told before the application had them.
    early_credit: usize,
    /// Bytes that are done with, which `consume` is told before the transport is asked for more.
    owed_credit: usize,
    /// The transport's last word, got while nobody was reading.
    ended: Option<io::Result<()>>,
}

impl ReceiveHalf {
    pub(super) fn new(receiver: Receiver) -> ReceiveHalf {
        let plain = VecDeque::new();
        ReceiveHalf { side: Side::Open, receiver, plain, early_credit: 0, owed_credit: 0, ended: None }
    }

    pub(super) fn side(&self) -> &Side {
        &self.side
    }

    pub(super) fn is_open(&self) -> bool {
        self.side == Side::Open
    }

    /// Nothing more is read, whatever has arrived.
    pub(super) fn end(&mut self, end: Side) {
        self.side = end;
        self.receiver.clear();
    }

    /// The record layer.
    pub(super) fn receiver(&mut self) -> &mut Receiver {
        &mut self.receiver
    }

    /// The same, to be looked at.
    pub(super) fn records(&self) -> &Receiver {
        &self.receiver
    }

    /// Whether there is content to take.
    pub(super) fn has_content(&self) -> bool {
        !self.plain.is_empty()
    }

    /// What is to be taken next.
    #[cfg(feature = "tokio")]
    pub(super) fn front(&mut self) -> Option<&mut RxSegment> {
        self.plain.front_mut()
    }

    /// Where the content that is to be taken next begins, if there is some.
    pub(super) fn content_seq(&self) -> Option<Seq> {
        self.plain.front().map(|range| range.seq)
    }

    pub(super) fn take(&mut self) -> Option<RxSegment> {
        self.plain.pop_front()
    }

    /// Throws away what nobody has taken.
    pub(super) fn discard(&mut self) {
        self.plain = VecDeque::new();
    }

    /// Takes all content, that of the one record that is there.
    pub(super) fn take_whole(&mut self, length: usize) -> Vec<u8> {
        let mut content = Vec::with_capacity(length);
        self.plain.drain(..).for_each(|range| content.extend_from_slice(&range.data));
        content
    }

    /// Opens the next record, if all of it is here.
    pub(super) fn next_record(&mut self, counters: &mut TlsCounters) -> Result<Option<Record>, TlsError> {
        self.receiver.next_record(&mut self.plain, counters)
    }

    /// What the transport has next, or its last word if that came before anybody read.
    pub(super) fn poll_segment<S: SegmentStream>(
        &mut self,
        stream: &mut S,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<Option<RxSegment>>> {
        match self.ended.take() {
            Some(ended) => Poll::Ready(ended.map(|()| None)),
            None => stream.poll_segment(cx),
        }
    }

    /// Keeps the transport's last word for who reads.
    pub(super) fn keep_end(&mut self, ended: io::Result<()>) {
        self.ended = Some(ended);
    }

    /// Takes in all that has arrived. The transport's window bounds how much that is.
    pub(super) fn take_in<S: SegmentStream>(&mut self, stream: &mut S, cx: &mut Context<'_>) {
        while self.ended.is_none() {
            match stream.poll_segment(cx) {
                Poll::Ready(Ok(Some(segment))) => self.receiver.push(segment),
                Poll::Ready(Ok(None)) => self.ended = Some(Ok(())),
                Poll::Ready(Err(error)) => self.ended = Some(Err(error)),
                Poll::Pending => break,
            }
        }
    }

    /// The transport has nothing more for now: memory that is not needed goes, and the window opens.
    pub(super) fn rest<S: SegmentStream>(&mut self, stream: &mut S) {
        self.receiver.shrink();
        inbox::shrink(&mut self.plain);
        // A window smaller than a record would never open again. (Who waits for a device has maybe not read all.)
        let unread: usize = self.plain.iter().map(|range| range.data.len()).sum();
        let due = (unread + self.receiver.pending().min(WIRE_MAX)).saturating_sub(self.early_credit);
        if due > 0 {
            self.early_credit += due;
            stream.consume(due);
        }
    }

    /// Notes that `bytes` more received bytes are done with. The transport is told when there are no others, or before it
    /// is asked for more: a record may be several chunks, and a range of the transport's several records.
    pub(super) fn credit<S: SegmentStream>(&mut self, stream: &mut S, bytes: usize) {
        let told = self.early_credit.min(bytes);
        self.early_credit -= told;
        self.owed_credit += bytes - told;
        let nothing_left = self.plain.is_empty() && self.receiver.pending() == 0;
        if nothing_left || self.side != Side::Open {
            self.settle_credit(stream);
        }
    }

    pub(super) fn settle_credit<S: SegmentStream>(&mut self, stream: &mut S) {
        let owed = core::mem::take(&mut self.owed_credit);
        if owed > 0 {
            stream.consume(owed);
        }
    }
}
