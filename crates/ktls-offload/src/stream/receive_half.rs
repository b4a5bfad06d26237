//! The receiving half of a stream: turns ranges into records and queues their content.
//!
//! Invariant: a direction that ended stays so. Every received byte is reported to the transport's `consume` exactly
//! once: when it is consumed, or earlier if the window would otherwise never open again.

use super::DirectionState;
use crate::counters::TlsCounters;
use crate::error::TlsError;
use crate::record::WIRE_MAX;
use crate::record::inbox;
use crate::record::receive::{Record, RecordReceiver};
use core::task::{Context, Poll};
use offload_api::{RxSegment, SegmentStream};
use offload_base::Seq;
use std::collections::VecDeque;
use std::io;

pub(super) struct ReceiveHalf {
    side: DirectionState,
    receiver: RecordReceiver,
    /// Opened content that the application has not taken.
    plain: VecDeque<RxSegment>,
    /// Bytes reported to `consume` before the application took them.
    early_credit: usize,
    /// Consumed bytes that are reported to `consume` before the next poll of the transport.
    owed_credit: usize,
    /// The end of the transport, received while no task was reading.
    ended: Option<io::Result<()>>,
}

impl ReceiveHalf {
    pub(super) fn new(receiver: RecordReceiver) -> ReceiveHalf {
        let plain = VecDeque::new();
        ReceiveHalf { side: DirectionState::Open, receiver, plain, early_credit: 0, owed_credit: 0, ended: None }
    }

    pub(super) fn side(&self) -> &DirectionState {
        &self.side
    }

    pub(super) fn is_open(&self) -> bool {
        self.side == DirectionState::Open
    }

    /// Ends the direction; received data are not read.
    pub(super) fn end(&mut self, end: DirectionState) {
        self.side = end;
        self.receiver.clear();
    }

    /// Returns the record layer.
    pub(super) fn receiver(&mut self) -> &mut RecordReceiver {
        &mut self.receiver
    }

    /// Returns the record layer for queries.
    pub(super) fn records(&self) -> &RecordReceiver {
        &self.receiver
    }

    /// Returns whether there is content to take.
    pub(super) fn has_content(&self) -> bool {
        !self.plain.is_empty()
    }

    /// Returns the next content range.
    #[cfg(feature = "tokio")]
    pub(super) fn front(&mut self) -> Option<&mut RxSegment> {
        self.plain.front_mut()
    }

    /// Returns the sequence number of the next content, if there is content.
    pub(super) fn content_seq(&self) -> Option<Seq> {
        self.plain.front().map(|range| range.seq)
    }

    pub(super) fn take(&mut self) -> Option<RxSegment> {
        self.plain.pop_front()
    }

    /// Discards content that was not taken.
    pub(super) fn discard(&mut self) {
        self.plain = VecDeque::new();
    }

    /// Takes all content, which belongs to one record.
    pub(super) fn take_whole(&mut self, length: usize) -> Vec<u8> {
        let mut content = Vec::with_capacity(length);
        self.plain.drain(..).for_each(|range| content.extend_from_slice(&range.data));
        content
    }

    /// Opens the next record, if it is complete.
    pub(super) fn next_record(&mut self, counters: &mut TlsCounters) -> Result<Option<Record>, TlsError> {
        self.receiver.next_record(&mut self.plain, counters)
    }

    /// Polls the transport for the next range, or returns the end that was stored earlier.
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

    /// Stores the end of the transport for the reader.
    pub(super) fn keep_end(&mut self, ended: io::Result<()>) {
        self.ended = Some(ended);
    }

    /// Receives all data that the transport has ready. The transport's window bounds their amount.
    pub(super) fn receive_ready_data<S: SegmentStream>(&mut self, stream: &mut S, cx: &mut Context<'_>) {
        while self.ended.is_none() {
            match stream.poll_segment(cx) {
                Poll::Ready(Ok(Some(segment))) => self.receiver.push(segment),
                Poll::Ready(Ok(None)) => self.ended = Some(Ok(())),
                Poll::Ready(Err(error)) => self.ended = Some(Err(error)),
                Poll::Pending => break,
            }
        }
    }

    /// Frees unneeded memory and opens the window. Called when the transport has no more data for now.
    pub(super) fn rest<S: SegmentStream>(&mut self, stream: &mut S) {
        self.receiver.shrink();
        inbox::shrink(&mut self.plain);
        // A window smaller than a record would never open again. A task that waits for a device may leave content
        // unread.
        let unread: usize = self.plain.iter().map(|range| range.data.len()).sum();
        let due = (unread + self.receiver.pending().min(WIRE_MAX)).saturating_sub(self.early_credit);
        if due > 0 {
            self.early_credit += due;
            stream.consume(due);
        }
    }

    /// Notes that `bytes` more received bytes were consumed. They are reported to the transport when no others remain,
    /// or before the next poll. Batching is useful because a record may be several chunks, and a range several records.
    pub(super) fn credit<S: SegmentStream>(&mut self, stream: &mut S, bytes: usize) {
        let told = self.early_credit.min(bytes);
        self.early_credit -= told;
        self.owed_credit += bytes - told;
        let nothing_left = self.plain.is_empty() && self.receiver.pending() == 0;
        if nothing_left || self.side != DirectionState::Open {
            self.return_credit(stream);
        }
    }

    pub(super) fn return_credit<S: SegmentStream>(&mut self, stream: &mut S) {
        let owed = core::mem::take(&mut self.owed_credit);
        if owed > 0 {
            stream.consume(owed);
        }
    }
}
