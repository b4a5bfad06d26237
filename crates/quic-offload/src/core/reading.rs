//! What applications read of streams whose bytes may come far out of their order.
//!
//! The state machine ends a connection of which a stream has more than 1,024 pieces, once it kept 2,048: pieces that wait for
//! one before them, or for the application; whole packets are not joined. 2,048 of them are 2.9 MB. So where streams have
//! windows as large as that, it is read after each datagram, unordered, and the bytes are put in order here, in [`Pieces`].
//! Where windows are small it does all of it, as ever.
//!
//! **Credit.** The state machine grants the peer new bytes as soon as bytes are read from it, in order or not: of the stream,
//! and of the connection. Bytes that are kept here would come on top, without end for a peer that leaves out a byte. So the
//! connection's window is made smaller by what is kept, and larger again when the application takes it ([`Credit`]): all
//! streams together keep no more than `receive_window`. The bytes that are missing have their credit already, so they come
//! whatever is kept back. The stream's own window cannot be held back: one stream may fill the connection's.
//!
//! **Tiny pieces.** What is kept beside the bytes is bounded by gaps ([`Pieces`]); a peer that makes more of them than one for
//! each 512 bytes of the connection's window loses the connection, here and in the state machine, whose own note of what
//! came grows alike.
//!
//! **A limit of the state machine.** When one packet wastes 32 KiB of its buffers (many short frames of one stream, for
//! each of which it counts the whole packet), it copies what it holds together, and takes bytes at offsets below the
//! *number* of bytes read for known ones. Read unordered, these are bytes that fill a gap: they would be lost, and the stream
//! would hang. As it is read after each datagram, only a packet with so many frames of one stream does that; it ends the
//! connection, with a word that says so.

use super::connection::Conn;
use super::pieces::Pieces;
use crate::config::Config;
use bytes::Bytes;
use noq_proto::{ReadError, StreamId};
use std::collections::HashMap;

/// The streams of a connection that are read out of their order.
#[derive(Debug)]
pub(crate) struct Reading {
    /// Of streams that the application has begun to read.
    streams: HashMap<StreamId, OfStream>,
    /// Those of which frames have come since they were last read.
    fresh: Vec<StreamId>,
    is_unordered: bool,
    /// Bytes and runs that are kept.
    bytes: u64,
    runs: usize,
    credit: Credit,
    most_runs: usize,
    /// Bytes of the longest packet, without header and tag.
    most_payload: usize,
}

#[derive(Debug, Default)]
struct OfStream {
    pieces: Pieces,
    /// Frames that came since it was last read.
    frames: u32,
    end: Option<End>,
}

/// What the peer may send, as the state machine has it: it makes a window smaller by granting nothing for the next bytes
/// that are read, the debt.
///
/// Invariant: no byte is read but against the debt; so what the peer may send in all is the window, and what the application
/// took.
#[derive(Debug)]
struct Credit {
    window: u64,
    /// Bytes that the window is smaller by: those that are kept, the debt, and what may be granted.
    smaller: u64,
    debt: u64,
}

#[derive(Clone, Copy, Debug)]
enum End {
    Finished,
    Reset(u64),
    Closed,
}

/// What a stream has for an application.
#[derive(Debug)]
pub(crate) enum Next {
    Data(Bytes),
    Finished,
    Reset(u64),
    Nothing,
    /// Nothing, and nothing will be.
    Closed,
}

impl Reading {
    pub(super) fn new(config: &Config) -> Reading {
        let longest = config.udp_payload.max(1472);
        let most_frames = BUFFERS_WASTED / u32::from(longest);
        // First byte, connection ID, a number of one byte, tag.
        let most_payload = usize::from(longest) - (1 + usize::from(config.cid_bytes.clamp(1, 20)) + 1 + 16);
        Reading {
            streams: HashMap::new(),
            fresh: Vec::new(),
            is_unordered: config.stream_window > LARGE_WINDOW && most_frames >= FEWEST_FRAMES,
            bytes: 0,
            runs: 0,
            credit: Credit { window: config.receive_window.into(), smaller: 0, debt: 0 },
            most_runs: (config.receive_window as usize / 512).max(4096),
            most_payload,
        }
    }

    /// Whether streams have to be looked at after each datagram.
    pub(super) fn is_busy(&self) -> bool {
        !self.streams.is_empty()
    }

    /// A frame of a stream came.
    pub(super) fn note_frame(&mut self, id: StreamId) {
        let Some(of) = self.streams.get_mut(&id) else { return };
        if of.frames == 0 {
            self.fresh.push(id);
        }
        of.frames += 1;
    }

    /// Nobody reads the stream any more.
    pub(crate) fn forget(&mut self, id: StreamId) {
        if let Some(of) = self.streams.remove(&id) {
            self.bytes -= of.pieces.bytes();
            self.runs -= of.pieces.runs();
        }
    }
}

impl Credit {
    /// Has a debt for the next bytes to be read, and grants what the application took, once that is worth a frame. True: the
    /// peer is to be told.
    fn settle(&mut self, kept: u64, noq: &mut noq_proto::Connection) -> bool {
        let step = (self.window / 16).max(1);
        let granted = self.smaller.saturating_sub(kept + self.debt);
        if granted >= 2 * step {
            self.smaller -= granted;
            self.tell(noq);
        }
        if self.debt < step {
            let more = (step - self.debt).min(self.window - self.smaller);
            (self.smaller, self.debt) = (self.smaller + more, self.debt + more);
            self.tell(noq);
        }
        granted >= 2 * step
    }

    fn tell(&self, noq: &mut noq_proto::Connection) {
        let window = noq_proto::VarInt::from_u64(self.window - self.smaller);
        noq.set_receive_window(window.unwrap_or(noq_proto::VarInt::MAX));
    }
}

impl Conn {
    /// The next bytes of a stream, `most` at most. True: the peer is to be told of more room.
    pub(crate) fn read_stream(&mut self, id: StreamId, most: usize) -> (Next, bool) {
        if !self.reading.is_unordered {
            return self.read_ordered(id, most);
        }
        self.reading.streams.entry(id).or_default();
        let mut owes = false;
        let next = match self.take_piece(id, most) {
            None => {
                owes = self.read_ahead(id);
                self.take_piece(id, most)
            }
            next => next,
        };
        owes |= self.settle();
        let next = next.map(Next::Data).unwrap_or_else(|| {
            // What is left is behind a gap.
            match self.reading.streams.get(&id).and_then(|of| of.end) {
                None => Next::Nothing,
                Some(End::Finished) => Next::Finished,
                Some(End::Reset(code)) => Next::Reset(code),
                Some(End::Closed) => Next::Closed,
            }
        });
        (next, owes)
    }

    fn read_ordered(&mut self, id: StreamId, most: usize) -> (Next, bool) {
        let mut stream = self.noq.recv_stream(id);
        let Ok(mut chunks) = stream.read(true) else { return (Next::Closed, false) };
        let next = match chunks.next(most) {
            Ok(Some(chunk)) => Next::Data(chunk.bytes),
            Ok(None) => Next::Finished,
            Err(ReadError::Reset(code)) => Next::Reset(code.into_inner()),
            Err(ReadError::Blocked) => Next::Nothing,
        };
        (next, chunks.finalize().should_transmit())
    }

    fn take_piece(&mut self, id: StreamId, most: usize) -> Option<Bytes> {
        let Reading { streams, bytes, runs, .. } = &mut self.reading;
        let pieces = &mut streams.get_mut(&id)?.pieces;
        let runs_before = pieces.runs();
        let data = pieces.take(most)?;
        *bytes -= data.len() as u64;
        *runs -= runs_before - pieces.runs();
        Some(data)
    }

    /// Takes from the state machine what there is of a stream. True: the peer is to be told of more room.
    fn read_ahead(&mut self, id: StreamId) -> bool {
        let Conn { noq, reading: Reading { streams, bytes, runs, credit, .. }, .. } = self;
        let Some(of) = streams.get_mut(&id).filter(|of| of.end.is_none()) else { return false };
        of.frames = 0;
        let before = (of.pieces.bytes(), of.pieces.runs());
        let mut owes = false;
        while of.end.is_none() {
            owes |= credit.settle(*bytes + of.pieces.bytes() - before.0, noq);
            let mut stream = noq.recv_stream(id);
            let Ok(mut chunks) = stream.read(false) else {
                of.end = Some(End::Closed);
                break;
            };
            // Without a debt the peer has sent all that it may, and all of it was read.
            let next = chunks.next(credit.debt.max(1) as usize);
            owes |= chunks.finalize().should_transmit();
            match next {
                Ok(Some(chunk)) => {
                    credit.debt = credit.debt.saturating_sub(chunk.bytes.len() as u64);
                    of.pieces.insert(chunk.offset, chunk.bytes);
                }
                Ok(None) => of.end = Some(End::Finished),
                Err(ReadError::Reset(code)) => {
                    // RFC 9000 3.2: what came of it may be dropped.
                    of.pieces = Pieces::default();
                    of.end = Some(End::Reset(code.into_inner()));
                }
                Err(ReadError::Blocked) => break,
            }
        }
        *bytes = *bytes + of.pieces.bytes() - before.0;
        *runs = *runs + of.pieces.runs() - before.1;
        owes
    }

    /// Reads the streams of which something has come. What is wrong, if the peer went too far.
    pub(super) fn read_fresh(&mut self) -> Result<(), String> {
        for id in core::mem::take(&mut self.reading.fresh) {
            let Reading { streams, most_payload, .. } = &self.reading;
            let Some(of) = streams.get(&id) else { continue };
            let (had_gaps, frames, bytes) = (of.pieces.has_gaps(), of.frames, of.pieces.bytes());
            let most = *most_payload * frames as usize;
            self.read_ahead(id);
            // Of what the packet had, nothing was there to be read but what is new: each of its frames counts as the packet's bytes.
            let read = self.reading.streams.get(&id).map_or(0, |of| of.pieces.bytes().saturating_sub(bytes));
            if had_gaps && most.saturating_sub(read as usize) > BUFFERS_WASTED as usize {
                return Err(format!("a packet has {frames} frames of stream {id}, of which bytes are missing"));
            }
        }
        self.settle();
        let (runs, most) = (self.reading.runs, self.reading.most_runs);
        match runs > most {
            true => Err(format!("streams have {runs} gaps, and {most} at most")),
            false => Ok(()),
        }
    }

    /// Grants the peer what the application took, or gave up. True: it is to be told.
    pub(crate) fn settle(&mut self) -> bool {
        let Conn { noq, reading: Reading { is_unordered, bytes, credit, .. }, .. } = self;
        *is_unordered && credit.settle(*bytes, noq)
    }
}

/// Of full packets, fewer pieces than the state machine keeps.
const LARGE_WINDOW: u32 = 2 << 20;
/// What the state machine lets be wasted before it copies.
const BUFFERS_WASTED: u32 = 32 << 10;
/// Peers repeat a few at a time. Where datagrams are so large that these are too many, the state machine orders the bytes.
const FEWEST_FRAMES: u32 = 8;

#[cfg(test)]
mod tests {
    use super::super::tests::{NOW, client_of, config, connect, datagram, sent, server_of};
    use super::super::{Core, Stage};
    use super::*;
    use crate::crypto::keyring::Plain;
    use bytes::BytesMut;
    use offload_quic::HeaderKey;
    use std::sync::Arc;

    /// A server, and a client that sends what it likes.
    struct Crafted {
        server: Core,
        client: Core,
        cid: Vec<u8>,
        number: u64,
    }

    /// The client's first stream one way.
    const ID: u64 = 2;

    impl Crafted {
        /// With a stream that the server waits for.
        fn new(stream_window: u32, receive_window: u32) -> Crafted {
            let config = |seed| Config { stream_window, receive_window, ..config(seed) };
            let (mut client, mut server) = (client_of(config(3)), server_of(config(2)));
            let at = connect(&mut client);
            let mut cid = Vec::new();
            for _ in 0..4 {
                for data in sent(&mut client) {
                    if data[0] < 0x80 {
                        cid = data[1..9].to_vec();
                    }
                    server.receive(NOW, datagram(5000, 443, data));
                }
                sent(&mut server).into_iter().for_each(|data| client.receive(NOW, datagram(443, 5000, data)));
            }
            assert_eq!((at, client.connections[0].stage, server.connections[0].stage), (0, Stage::Open, Stage::Open));
            let mut crafted = Crafted { server, client, cid, number: 1000 };
            crafted.send([(0, 0)], false);
            assert_eq!(crafted.read(), 0);
            crafted
        }

        fn conn(&mut self) -> &mut Conn {
            &mut self.server.connections[0]
        }

        fn id() -> StreamId {
            StreamId::new(noq_proto::Side::Client, noq_proto::Dir::Uni, ID >> 2)
        }

        /// One packet of frames, each of so many bytes at an offset.
        fn send(&mut self, frames: impl IntoIterator<Item = (u64, u64)>, fin: bool) {
            let mut payload = Vec::new();
            for (at, bytes) in frames {
                payload.extend([0x0e | u8::from(fin), ID as u8]);
                payload.extend((at | 0xc0 << 56).to_be_bytes());
                payload.extend((bytes as u16 | 0x40 << 8).to_be_bytes());
                payload.extend((at..at + bytes).map(|at| (at % 251) as u8));
            }
            self.send_payload(&payload);
        }

        fn send_payload(&mut self, payload: &[u8]) {
            self.number += 1;
            let mut packet = BytesMut::from(&[0x43][..]);
            packet.extend_from_slice(&self.cid);
            packet.extend_from_slice(&(self.number as u32).to_be_bytes());
            packet.extend_from_slice(payload);
            packet.extend_from_slice(&[0; 16 + 4]);
            let keys = self.client.connections[0].keyring.lock();
            let header_key = Arc::new(HeaderKey::new(&keys.header(true).unwrap()));
            let (key, bytes) = (keys.generation(true, 0).unwrap(), packet.len());
            drop(keys);
            let plain = Plain { key, header_key, path: 0, number: self.number, bytes, cid_bytes: self.cid.len() };
            assert!(plain.seal(&mut packet));
            self.server.receive(NOW, datagram(5000, 443, packet));
            // What it grants, it grants by packets.
            let _answers = sent(&mut self.server);
        }

        /// Reads all that there is.
        fn read(&mut self) -> u64 {
            let mut bytes = 0;
            while let (Next::Data(data), _) = self.conn().read_stream(Crafted::id(), 10_000) {
                assert!(data.len() <= 10_000);
                bytes += data.len() as u64;
            }
            bytes
        }

        fn why(&mut self) -> String {
            self.conn().closed.as_ref().map(ToString::to_string).unwrap_or_default()
        }
    }

    /// Each second piece of 6,000, and then the others.
    #[test]
    fn many_pieces_may_come_before_those_before_them() {
        let mut crafted = Crafted::new(8 << 20, 16 << 20);
        let pieces = 6000;
        for piece in (1..pieces).step_by(2) {
            crafted.send([(1000 * piece, 1000)], piece + 1 == pieces);
            assert_eq!(crafted.why(), "", "after {piece} pieces");
        }
        assert_eq!((crafted.read(), crafted.conn().reading.runs), (0, 3000));
        let mut bytes = 0;
        for piece in (0..pieces).step_by(2) {
            crafted.send([(1000 * piece, 1000)], false);
            bytes += crafted.read();
        }
        assert_eq!(bytes, 1000 * pieces);
        assert!(matches!(crafted.conn().read_stream(Crafted::id(), 1), (Next::Finished, _)));
        let reading = &crafted.conn().reading;
        assert_eq!((reading.bytes, reading.runs), (0, 0));
        assert!(reading.credit.smaller <= reading.credit.window / 16 * 3);
    }

    /// The first byte never comes. What does come is no more than the connection's window.
    #[test]
    fn a_peer_that_leaves_out_a_byte_has_no_more_room_than_the_window() {
        let window = 1 << 20;
        let mut crafted = Crafted::new(4 << 20, window);
        let mut at = 1;
        while at < 8 << 20 && crafted.why().is_empty() {
            crafted.send([(at, 1000)], false);
            at += 1000;
        }
        assert!(crafted.why().contains("data limits"), "{} bytes: {}", at, crafted.why());
        let held = crafted.conn().reading.bytes;
        assert!((u64::from(window) - 2000..=u64::from(window)).contains(&held), "{held}");
    }

    #[test]
    fn room_comes_back_when_the_application_has_taken_what_was_kept() {
        let window: u64 = 1 << 20;
        let mut crafted = Crafted::new(4 << 20, window as u32);
        for round in 0..5 {
            let begin = round * window;
            for piece in 1..window / 1024 {
                crafted.send([(begin + 1024 * piece, 1024)], false);
            }
            assert_eq!((crafted.why(), crafted.read()), (String::new(), 0));
            assert!(crafted.conn().reading.credit.smaller > window * 7 / 8);
            crafted.send([(begin, 1024)], false);
            assert_eq!(crafted.read(), window);
            let reading = &crafted.conn().reading;
            assert!(reading.bytes == 0 && reading.credit.smaller < window / 4);
        }
    }

    #[test]
    fn a_peer_of_tiny_pieces_ends_by_a_bound() {
        let mut crafted = Crafted::new(4 << 20, 1 << 20);
        let mut pieces = 0;
        while pieces < 10_000 && crafted.why().is_empty() {
            crafted.send((0..10).map(|more| (2 * (pieces + more) + 1, 1)), false);
            pieces += 10;
        }
        assert!(crafted.why().contains("4100 gaps, and 4096 at most"), "{pieces}: {}", crafted.why());
    }

    /// The state machine would lose bytes of a packet that fills gaps in very many frames.
    #[test]
    fn frames_that_fill_gaps_arrive_or_the_connection_ends() {
        for (frames, goes_on) in [(2, true), (22, true), (60, false)] {
            let mut crafted = Crafted::new(4 << 20, 16 << 20);
            for piece in 0..100 {
                crafted.send([(100_000 + 1000 * piece, 1000)], false);
            }
            crafted.send((0..frames).map(|piece| (20 * piece, 20)), false);
            assert_eq!(crafted.read(), if goes_on { 20 * frames } else { 0 }, "{frames}");
            assert_eq!(crafted.why().contains("frames of stream"), !goes_on, "{frames}: {}", crafted.why());
        }
    }

    #[test]
    fn a_reset_drops_what_was_kept_and_gives_its_room_back() {
        let mut crafted = Crafted::new(4 << 20, 1 << 20);
        for piece in 1..500 {
            crafted.send([(1000 * piece, 1000)], false);
        }
        assert!(crafted.conn().reading.credit.smaller > 500_000);
        // RESET_STREAM, code 9, final size 500,000.
        let mut reset = vec![0x04, ID as u8, 9];
        reset.extend((500_000u32 | 2 << 30).to_be_bytes());
        crafted.send_payload(&reset);
        assert!(matches!(crafted.conn().read_stream(Crafted::id(), 1), (Next::Reset(9), _)));
        let reading = &crafted.conn().reading;
        assert_eq!((reading.bytes, reading.runs), (0, 0));
        assert!(reading.credit.smaller <= reading.credit.window / 16 * 3);
    }

    #[test]
    fn a_stream_that_nobody_reads_any_more_gives_its_room_back() {
        let mut crafted = Crafted::new(4 << 20, 1 << 20);
        for piece in 1..500 {
            crafted.send([(1000 * piece, 1000)], false);
        }
        crafted.conn().reading.forget(Crafted::id());
        assert!(crafted.conn().settle());
        let reading = &crafted.conn().reading;
        assert_eq!((reading.bytes, reading.runs), (0, 0));
        assert!(reading.credit.smaller <= reading.credit.window / 16 * 3);
    }

    /// The state machine keeps 2,048 packets of a stream, which are fewer than a window may have.
    #[test]
    fn an_application_that_reads_nothing_keeps_no_more_waiting_than_the_window() {
        let window: u64 = 6 << 20;
        let mut crafted = Crafted::new(4 << 20, window as u32);
        let mut at = 0;
        while at < 32 << 20 && crafted.why().is_empty() {
            crafted.send([(at, 1024)], false);
            at += 1024;
        }
        assert!(crafted.why().contains("data limits"), "{}", crafted.why());
        assert_eq!(crafted.conn().reading.bytes, window);
    }

    #[test]
    fn small_windows_are_left_to_the_state_machine() {
        let mut crafted = Crafted::new(2 << 20, 16 << 20);
        crafted.send([(1000, 1000)], false);
        assert_eq!((crafted.read(), crafted.conn().reading.bytes), (0, 0));
        crafted.send([(0, 1000)], false);
        assert_eq!(crafted.read(), 2000);
    }
}
