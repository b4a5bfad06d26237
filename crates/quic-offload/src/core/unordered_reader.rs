//! Unordered reading of streams with bytes far out of order.
//!
//! The state machine closes a connection if a stream has more than 1,024 pieces after buffering 2,048: pieces that wait
//! for an earlier one, or for the application. It does not join whole packets, so 2,048 pieces are 2.9 MB. So if stream
//! windows are that large, this module reads each stream unordered after each datagram and reassembles it in
//! [`StreamPieces`]. With small windows, the state machine reassembles.
//!
//! **Credit.** As soon as bytes are read, in order or not, the state machine grants the peer as many new bytes, for the
//! stream and for the connection. A peer that leaves out a byte could then send without limit. So the connection's
//! window is reduced by the buffered bytes, and raised again when the application takes them ([`Credit`]): all streams
//! together buffer at most `receive_window`. Missing bytes already have credit, so they can always arrive. A stream's
//! own window cannot be reduced, so one stream may fill the connection's window.
//!
//! **Tiny pieces.** The overhead of the buffer is bounded by the number of gaps ([`StreamPieces`]). If a peer causes more
//! gaps than one per 512 bytes of the connection's window, the connection is closed, because the state machine's own
//! record of received ranges grows as well.
//!
//! **Unread streams.** If many packets of a stream arrived and the application has not started reading, the stream is
//! read ahead too.
//!
//! **A limit of the state machine.** In unordered reading, the state machine loses bytes of packets with very many
//! short frames; [`sift`](super::sift) keeps such packets away.

use super::EndpointCore;
use super::connection::Conn;
use super::pieces::StreamPieces;
use crate::config::Config;
use bytes::Bytes;
use noq_proto::{ReadError, StreamId, VarInt};
use offload_base::Instant;
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The streams of a connection that are read unordered.
#[derive(Debug)]
pub(crate) struct UnorderedReader {
    /// Streams with at least one frame received, or read by the application.
    pub(super) streams: HashMap<StreamId, UnorderedStream>,
    /// Streams with frames since the last read.
    fresh: Vec<StreamId>,
    is_unordered: bool,
    /// Number of buffered bytes.
    pub(super) bytes: u64,
    pub(super) runs: usize,
    credit: Credit,
    most_runs: usize,
    /// Streams with held-back frames.
    pub(super) holding: Vec<StreamId>,
    pub(super) held: usize,
}

#[derive(Debug, Default)]
pub(super) struct UnorderedStream {
    pub(super) pieces: StreamPieces,
    /// Bytes held back from the state machine.
    pub(super) held: StreamPieces,
    /// Frames since the last read.
    frames: u32,
    /// Whether the stream is read as its packets arrive.
    is_begun: bool,
    /// The final size, if known.
    pub(super) size: Option<u64>,
    pub(super) end: Option<StreamEnd>,
}

/// The peer's credit in the state machine. The module reduces a window by granting nothing for the next bytes that are
/// read, the debt.
///
/// Invariant: bytes are read only against the debt, so the peer's total credit is the window plus the bytes that the
/// application took.
#[derive(Debug)]
struct Credit {
    window: u64,
    /// The reduction of the window: buffered bytes, the debt, and credit not granted yet.
    smaller: u64,
    debt: u64,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum StreamEnd {
    Finished,
    Reset(u64),
    Closed,
}

/// The result of reading a stream.
#[derive(Debug)]
pub(crate) enum ReadResult {
    Data(Bytes),
    Finished,
    Reset(u64),
    Nothing,
    /// No data, and no further data will arrive.
    Closed,
}

impl UnorderedReader {
    pub(super) fn new(config: &Config) -> UnorderedReader {
        // The state machine receives datagrams of at least 1472 bytes, whatever the configuration says.
        let longest = config.udp_payload.max(1472);
        UnorderedReader {
            streams: HashMap::new(),
            fresh: Vec::new(),
            is_unordered: config.stream_window > LARGE_WINDOW && longest <= MAX_UNORDERED,
            bytes: 0,
            runs: 0,
            credit: Credit { window: config.receive_window.into(), smaller: 0, debt: 0 },
            most_runs: (config.receive_window as usize / 512).max(4096),
            holding: Vec::new(),
            held: 0,
        }
    }

    /// Tests whether streams are read unordered.
    pub(super) fn is_unordered(&self) -> bool {
        self.is_unordered
    }

    /// Tests whether streams must be read after each datagram.
    pub(super) fn is_busy(&self) -> bool {
        !self.streams.is_empty()
    }

    /// Records a stream frame.
    pub(super) fn note_frame(&mut self, id: StreamId) {
        if !self.is_unordered {
            return;
        }
        let of = self.streams.entry(id).or_default();
        of.frames += 1;
        // A stream without a reader is read ahead only when many frames have arrived, so that short streams cost
        // nothing.
        if of.frames == if of.is_begun { 1 } else { MAX_UNREAD } {
            self.fresh.push(id);
        }
    }

    /// Forgets a stream that the application no longer reads.
    fn forget(&mut self, id: StreamId) {
        if let Some(of) = self.streams.remove(&id) {
            self.bytes -= of.pieces.bytes();
            self.runs -= of.pieces.runs();
        }
    }

    fn take_piece(&mut self, id: StreamId, most: usize) -> Option<Bytes> {
        let UnorderedReader { streams, bytes, runs, .. } = self;
        let pieces = &mut streams.get_mut(&id)?.pieces;
        let runs_before = pieces.runs();
        let data = pieces.take(most)?;
        *bytes -= data.len() as u64;
        *runs -= runs_before - pieces.runs();
        Some(data)
    }

    /// Reads a stream from the state machine. Returns whether the peer must be told of new credit.
    fn read_ahead(&mut self, id: StreamId, noq: &mut noq_proto::Connection) -> bool {
        let UnorderedReader { streams, bytes, runs, credit, .. } = self;
        let Some(of) = streams.get_mut(&id).filter(|of| of.end.is_none()) else { return false };
        (of.frames, of.is_begun) = (0, true);
        // The totals of the connection change by the difference.
        let before = (of.pieces.bytes(), of.pieces.runs());
        let mut owes = false;
        while of.end.is_none() {
            // Each read needs a debt, so it is renewed before the read.
            owes |= credit.grant_credit(*bytes + of.pieces.bytes() - before.0, noq);
            let mut stream = noq.recv_stream(id);
            let Ok(mut chunks) = stream.read(false) else {
                of.end = Some(StreamEnd::Closed);
                break;
            };
            // Without a debt, the peer has used all its credit and all of it was read.
            let next = chunks.next(credit.debt.max(1) as usize);
            owes |= chunks.finalize().should_transmit();
            match next {
                Ok(Some(chunk)) => {
                    credit.debt = credit.debt.saturating_sub(chunk.bytes.len() as u64);
                    of.pieces.insert(chunk.offset, chunk.bytes);
                }
                Ok(None) => of.end = Some(StreamEnd::Finished),
                Err(ReadError::Reset(code)) => {
                    // RFC 9000 3.2: data received before a reset may be dropped.
                    of.pieces = StreamPieces::default();
                    of.end = Some(StreamEnd::Reset(code.into_inner()));
                }
                Err(ReadError::Blocked) => break,
            }
        }
        *bytes = *bytes + of.pieces.bytes() - before.0;
        *runs = *runs + of.pieces.runs() - before.1;
        owes
    }

    /// Returns the result when no bytes are available: the end, or a gap.
    fn rest(&self, id: StreamId, is_over: bool) -> ReadResult {
        let Some(of) = self.streams.get(&id) else { return ReadResult::Nothing };
        match of.end {
            // After the connection's end, the state machine may never learn that the stream is complete.
            None if is_over && of.size == Some(of.pieces.next()) => ReadResult::Finished,
            None => ReadResult::Nothing,
            Some(StreamEnd::Finished) => ReadResult::Finished,
            Some(StreamEnd::Reset(code)) => ReadResult::Reset(code),
            Some(StreamEnd::Closed) => ReadResult::Closed,
        }
    }

    /// Grants the peer the bytes that the application took or gave up. Returns whether the peer must be told.
    fn grant_credit(&mut self, noq: &mut noq_proto::Connection) -> bool {
        self.is_unordered && self.credit.grant_credit(self.bytes, noq)
    }
}

impl Credit {
    /// Renews the debt for the next reads, and grants credit once it is worth a frame. Returns whether the peer must be
    /// told.
    fn grant_credit(&mut self, kept: u64, noq: &mut noq_proto::Connection) -> bool {
        let step = (self.window / 16).max(1);
        let granted = self.smaller.saturating_sub(kept + self.debt);
        // Small grants are collected, because each costs a frame.
        if granted >= 2 * step {
            self.smaller -= granted;
            self.set_window(noq);
        }
        if self.debt < step {
            let more = (step - self.debt).min(self.window - self.smaller);
            (self.smaller, self.debt) = (self.smaller + more, self.debt + more);
            self.set_window(noq);
        }
        granted >= 2 * step
    }

    fn set_window(&self, noq: &mut noq_proto::Connection) {
        let window = VarInt::from_u64(self.window - self.smaller);
        noq.set_receive_window(window.unwrap_or(VarInt::MAX));
    }
}

impl Conn {
    /// Reads a stream for the application, at most `most` bytes. Returns also whether the peer must be told of new
    /// credit.
    pub(crate) fn read_stream(&mut self, id: StreamId, most: usize) -> (ReadResult, bool) {
        let mut reading = lock(&self.reading);
        if !reading.is_unordered {
            drop(reading);
            return self.read_ordered(id, most);
        }
        reading.streams.entry(id).or_default();
        let mut owes = false;
        let next = match reading.take_piece(id, most) {
            // { => The buffered bytes are used up or begin with a gap, so the state machine may have more.
            None => {
                owes = reading.read_ahead(id, &mut self.noq);
                reading.take_piece(id, most)
            }
            next => next,
        };
        owes |= reading.grant_credit(&mut self.noq);
        (next.map_or_else(|| reading.rest(id, self.closed.is_some()), ReadResult::Data), owes)
    }

    fn read_ordered(&mut self, id: StreamId, most: usize) -> (ReadResult, bool) {
        let mut stream = self.noq.recv_stream(id);
        let Ok(mut chunks) = stream.read(true) else { return (ReadResult::Closed, false) };
        let next = match chunks.next(most) {
            Ok(Some(chunk)) => ReadResult::Data(chunk.bytes),
            Ok(None) => ReadResult::Finished,
            Err(ReadError::Reset(code)) => ReadResult::Reset(code.into_inner()),
            Err(ReadError::Blocked) => ReadResult::Nothing,
        };
        (next, chunks.finalize().should_transmit())
    }

    /// Reads all streams with new frames. Returns an error if the peer caused too many gaps.
    pub(super) fn read_new_frames(&mut self) -> Result<(), String> {
        let mut reading = lock(&self.reading);
        for id in core::mem::take(&mut reading.fresh) {
            reading.read_ahead(id, &mut self.noq);
        }
        if reading.note_handed_over() {
            self.noq.ping();
        }
        reading.grant_credit(&mut self.noq);
        let (runs, most) = (reading.runs, reading.most_runs);
        match runs > most {
            true => Err(format!("streams have {runs} gaps, and {most} at most")),
            false => Ok(()),
        }
    }

    /// Tests whether streams must be read after each datagram.
    pub(super) fn is_reading(&self) -> bool {
        lock(&self.reading).is_busy()
    }
}

impl EndpointCore {
    /// Ends the reading of a stream. With a code, the peer is told to stop sending.
    pub(crate) fn forget_stream(&mut self, at: usize, now: Instant, id: StreamId, code: Option<VarInt>) {
        // The events of earlier packets still count for the stream.
        self.take_events(at, now);
        let Some(conn) = self.connections.get_mut(at) else { return };
        let mut reading = lock(&conn.reading);
        reading.forget(id);
        let mut owes = reading.grant_credit(&mut conn.noq);
        drop(reading);
        if let Some(code) = code {
            // The peer is told to stop only if the stream is still open.
            owes |= conn.noq.recv_stream(id).stop(code).is_ok();
        }
        if owes {
            self.touch(at);
        }
    }
}

pub(super) fn lock(reading: &Mutex<UnorderedReader>) -> MutexGuard<'_, UnorderedReader> {
    reading.lock().unwrap_or_else(PoisonError::into_inner)
}

/// With full packets, a window of this size has fewer pieces than the state machine keeps.
const LARGE_WINDOW: u32 = 2 << 20;
/// Bytes that the state machine may waste before it copies its buffers.
pub(super) const BUFFERS_WASTED: u32 = 32 << 10;
/// With larger datagrams, two pieces waste more than that, so the state machine reassembles.
pub(crate) const MAX_UNORDERED: u16 = (BUFFERS_WASTED / 2) as u16;
/// Unread frames of a stream before it is read ahead; the state machine keeps 2,048.
const MAX_UNREAD: u32 = 512;

#[cfg(test)]
mod tests {
    use super::super::crafted::{CraftedPair, ID};
    use super::super::tests::NOW;
    use super::*;

    /// Every second piece of 6,000 first, then the others.
    #[test]
    fn many_pieces_may_precede_earlier_ones() {
        let mut crafted = CraftedPair::read_from(8 << 20, 16 << 20);
        let pieces = 6000;
        for piece in (1..pieces).step_by(2) {
            crafted.send([(1000 * piece, 1000)], piece + 1 == pieces);
            assert_eq!(crafted.why(), "", "after {piece} pieces");
        }
        assert_eq!((crafted.read(), crafted.reading().runs), (0, 3000));
        let mut bytes = 0;
        for piece in (0..pieces).step_by(2) {
            crafted.send([(1000 * piece, 1000)], false);
            bytes += crafted.read();
        }
        assert_eq!(bytes, 1000 * pieces);
        assert!(matches!(crafted.conn().read_stream(CraftedPair::id(), 1), (ReadResult::Finished, _)));
        let reading = crafted.reading();
        assert_eq!((reading.bytes, reading.runs), (0, 0));
        assert!(reading.credit.smaller <= reading.credit.window / 16 * 3);
    }

    /// The first byte never arrives. The peer can send at most the connection's window.
    #[test]
    fn missing_byte_limits_the_peer_to_the_window() {
        let window = 1 << 20;
        let mut crafted = CraftedPair::read_from(4 << 20, window);
        let mut at = 1;
        while at < 8 << 20 && crafted.why().is_empty() {
            crafted.send([(at, 1000)], false);
            at += 1000;
        }
        assert!(crafted.why().contains("data limits"), "{} bytes: {}", at, crafted.why());
        let held = crafted.reading().bytes;
        assert!((u64::from(window) - 2000..=u64::from(window)).contains(&held), "{held}");
    }

    #[test]
    fn reading_kept_bytes_returns_credit() {
        let window: u64 = 1 << 20;
        let mut crafted = CraftedPair::read_from(4 << 20, window as u32);
        for round in 0..5 {
            let begin = round * window;
            for piece in 1..window / 1024 {
                crafted.send([(begin + 1024 * piece, 1024)], false);
            }
            assert_eq!((crafted.why(), crafted.read()), (String::new(), 0));
            assert!(crafted.reading().credit.smaller > window * 7 / 8);
            crafted.send([(begin, 1024)], false);
            assert_eq!(crafted.read(), window);
            let reading = crafted.reading();
            assert!(reading.bytes == 0 && reading.credit.smaller < window / 4);
        }
    }

    #[test]
    fn too_many_tiny_pieces_end_the_connection() {
        let mut crafted = CraftedPair::read_from(4 << 20, 1 << 20);
        let mut pieces = 0;
        while pieces < 10_000 && crafted.why().is_empty() {
            crafted.send((0..10).map(|more| (2 * (pieces + more) + 1, 1)), false);
            pieces += 10;
        }
        assert!(crafted.why().contains("4100 gaps, and 4096 at most"), "{pieces}: {}", crafted.why());
    }

    #[test]
    fn reset_drops_kept_bytes_and_returns_credit() {
        let mut crafted = CraftedPair::read_from(4 << 20, 1 << 20);
        for piece in 1..500 {
            crafted.send([(1000 * piece, 1000)], false);
        }
        assert!(crafted.reading().credit.smaller > 500_000);
        // RESET_STREAM with code 9 and final size 500,000.
        let mut reset = vec![0x04, ID as u8, 9];
        reset.extend((500_000u32 | 2 << 30).to_be_bytes());
        crafted.send_payload(&reset);
        assert!(matches!(crafted.conn().read_stream(CraftedPair::id(), 1), (ReadResult::Reset(9), _)));
        let reading = crafted.reading();
        assert_eq!((reading.bytes, reading.runs), (0, 0));
        assert!(reading.credit.smaller <= reading.credit.window / 16 * 3);
    }

    #[test]
    fn stopped_stream_returns_credit() {
        let mut crafted = CraftedPair::read_from(4 << 20, 1 << 20);
        for piece in 1..500 {
            crafted.send([(1000 * piece, 1000)], false);
        }
        crafted.server.forget_stream(0, NOW, CraftedPair::id(), None);
        let reading = crafted.reading();
        assert_eq!((reading.bytes, reading.runs), (0, 0));
        assert!(reading.credit.smaller <= reading.credit.window / 16 * 3);
    }

    /// The state machine keeps 2,048 packets per stream, fewer than a window may have.
    #[test]
    fn unread_bytes_do_not_exceed_the_window() {
        let window: u64 = 6 << 20;
        let mut crafted = CraftedPair::read_from(4 << 20, window as u32);
        let mut at = 0;
        while at < 32 << 20 && crafted.why().is_empty() {
            crafted.send([(at, 1024)], false);
            at += 1024;
        }
        assert!(crafted.why().contains("data limits"), "{}", crafted.why());
        assert_eq!(crafted.reading().bytes, window);
    }

    /// The application may start reading when the whole stream has arrived.
    #[test]
    fn application_may_start_reading_late() {
        for frame in [1024, 100] {
            let mut crafted = CraftedPair::new(4 << 20, 16 << 20);
            let bytes = 4096 * frame;
            for at in (0..bytes).step_by(frame as usize) {
                crafted.send([(at, frame)], at + frame == bytes);
                assert_eq!(crafted.why(), "", "after {at} bytes");
            }
            assert_eq!(crafted.read(), bytes);
            assert!(matches!(crafted.conn().read_stream(CraftedPair::id(), 1), (ReadResult::Finished, _)));
        }
    }

    /// A dropped stream leaves no state behind.
    #[test]
    fn dropped_streams_are_forgotten() {
        let mut crafted = CraftedPair::new(4 << 20, 16 << 20);
        for at in 0..10 {
            crafted.send([(100 * at, 100)], false);
        }
        assert_eq!(crafted.reading().streams.len(), 1);
        crafted.server.forget_stream(0, NOW, CraftedPair::id(), Some(VarInt::from_u32(7)));
        for at in 10..20 {
            crafted.send([(100 * at, 100)], at == 19);
        }
        assert_eq!(crafted.why(), "");
        assert!(crafted.reading().streams.is_empty());
    }

    #[test]
    fn small_windows_are_left_to_the_state_machine() {
        let mut crafted = CraftedPair::read_from(2 << 20, 16 << 20);
        crafted.send([(1000, 1000)], false);
        assert_eq!((crafted.read(), crafted.reading().bytes), (0, 0));
        crafted.send([(0, 1000)], false);
        assert_eq!(crafted.read(), 2000);
    }
}
