//! Aimed segments into an open connection, while its application reads and writes and time passes.
//!
//! Byte N of the peer's stream always has the same value, so delivered data can be checked without knowing which
//! segments the connection accepted. Checked properties:
//! - delivered data is the peer's stream from its beginning, and no more than was sent; the end of the stream is where
//!   the peer put one;
//! - acknowledged bytes were sent, without a gap, and the acknowledgment never moves back;
//! - the right edge of the window never moves back, nor further than the receive buffer beyond the read position;
//! - transmitted data is the application's stream, in segments of the peer's size, within the peer's window;
//! - the connection comes to rest, and its memory is bounded.
//!
//! Input: a byte of configuration, then operations: an opcode and its arguments. Missing bytes are zero.

use crate::input::Input;
use bytes::BytesMut;
use core::time::Duration;
use offload_api::mock::MockDevice;
use offload_api::rx::Checksums;
use offload_api::{RxMeta, RxPacket, TxPacket};
use offload_base::{Instant, Seed};
use offload_host_stack::{Config, CongestionAlgorithm, Ecn, FlowId, KeepAlive, Stack, TcpState};
use smoltcp::wire::{TcpControl, TcpOption, TcpPacket, TcpRepr, TcpSeqNumber, TcpTimestampRepr};
use std::collections::BTreeSet;

/// Runs one input.
pub fn run(input: &[u8]) {
    let mut input = Input(input);
    let Some(mut rig) = ConnectionRig::open(input.byte()) else { return };
    for _ in 0..MAX_OPERATIONS {
        if input.0.is_empty() {
            break;
        }
        rig.operate(&mut input);
        rig.poll_until_idle();
    }
}

/// A stack with a connection, and the state of its peer.
struct ConnectionRig {
    now: Instant,
    stack: Stack,
    nic: MockDevice,
    /// The connection. `None` after the application has dropped it.
    id: Option<FlowId>,
    peer: TcpFuzzPeer,
    written: u64,
    read: u64,
}

/// The peer's view of the connection. Positions count bytes from the first byte of a stream; the SYN precedes that.
#[derive(Default)]
struct TcpFuzzPeer {
    opened: bool,
    /// Bytes sent without a gap, regardless of their fate; and, below, ranges beyond.
    sent_until: u64,
    sent_beyond: Vec<(u64, u64)>,
    fins: BTreeSet<u64>,
    /// The right edge of the window that the peer offered.
    offered: u64,
    /// The acknowledged position of the peer's stream; below, the right edge and the shift of the window that the stack
    /// offered.
    acknowledged: u64,
    edge: u64,
    shift: u8,
    /// The end of the received stream.
    heard: u64,
    timestamp: Option<u32>,
}

impl ConnectionRig {
    /// Opens a connection with the options in the bits of `choices`. Returns `None` if no connection was established.
    fn open(choices: u8) -> Option<ConnectionRig> {
        let bit = |number: u8| choices >> number & 1 == 1;
        let mut config = Config::new([10, 0, 0, 1].into(), [2, 0, 0, 0, 0, 1], Seed(1))
            .with_neighbour([10, 0, 0, 2].into(), [2, 0, 0, 0, 0, 2]);
        config.tcp.initial_sequence = Some(OURS);
        (config.tcp.sack, config.tcp.timestamps, config.tcp.window_scaling) = (!bit(0), !bit(1), !bit(2));
        config.tcp.nodelay = bit(3);
        config.tcp.congestion = if bit(4) { CongestionAlgorithm::NewReno } else { CongestionAlgorithm::Cubic };
        config.tcp.ecn = if bit(5) { Ecn::Request } else { Ecn::Accept };
        config.tcp.keep_alive = bit(6).then(KeepAlive::default);
        (config.tcp.receive_buffer, config.tcp.send_buffer) = (RECEIVE_BUFFER, SEND_BUFFER);
        let peer = TcpFuzzPeer { edge: 0, ..TcpFuzzPeer::default() };
        let (now, nic) = (Instant::ZERO, crate::device(ROOM));
        let mut rig = ConnectionRig { now, stack: Stack::new(config), nic, id: None, peer, written: 0, read: 0 };
        // A passive open, or below an active one.
        if bit(7) {
            rig.stack.listen(OUR_PORT, 4).ok()?;
            rig.deliver(&InjectedSegment { syn: true, seq: THEIRS, ..InjectedSegment::default() });
            rig.poll_until_idle();
            rig.deliver(&InjectedSegment { ack: Some(OURS.wrapping_add(1)), ..InjectedSegment::at(0) });
            rig.poll_until_idle();
            rig.id = Some(rig.stack.accept(OUR_PORT)?);
        } else {
            let remote = (core::net::Ipv4Addr::new(10, 0, 0, 2), THEIR_PORT).into();
            rig.id = Some(rig.stack.connect(rig.now, Some(OUR_PORT), remote).ok()?);
            rig.poll_until_idle();
            let ack = Some(OURS.wrapping_add(1));
            rig.deliver(&InjectedSegment { syn: true, seq: THEIRS, ack, ..InjectedSegment::default() });
            rig.poll_until_idle();
        }
        rig.peer.opened = true;
        assert_eq!(rig.id.map(|id| rig.stack.state(id)), Some(TcpState::Established), "choices {choices:#x}");
        Some(rig)
    }

    fn operate(&mut self, input: &mut Input<'_>) {
        match input.byte() % 16 {
            // The next segment of a regular peer.
            0 | 1 => {
                let length = usize::from(input.word() % 3000);
                let ack = Some(seq_of(OURS, self.peer.heard));
                self.deliver(&InjectedSegment {
                    ack,
                    length,
                    window: input.word(),
                    ..InjectedSegment::at(self.peer.sent_until)
                });
            }
            // An aimed segment.
            2..=6 => {
                let segment = self.aimed(input);
                self.deliver(&segment);
            }
            // An acknowledgment of everything received.
            7 => {
                let ack = Some(seq_of(OURS, self.peer.heard));
                self.deliver(&InjectedSegment { ack, window: u16::MAX, ..InjectedSegment::at(self.peer.sent_until) });
            }
            8 | 9 => self.now += Duration::from_micros(1 << (input.byte() % 37)),
            // Advance to the next event.
            10 => self.now = self.stack.next_event().unwrap_or(self.now).max(self.now),
            11 => self.nic.set_room(if input.byte().is_multiple_of(4) { 0 } else { ROOM }),
            12 => self.read(usize::from(input.word())),
            13 => self.write(usize::from(input.word())),
            _ => self.close(input.byte()),
        }
    }

    /// Returns a segment with numbers near the edges of the connection's state.
    fn aimed(&mut self, input: &mut Input<'_>) -> InjectedSegment {
        let peer = &self.peer;
        let near = |base: u64, by: u8| base.wrapping_add_signed(i64::from(by as i8) * 97);
        let (place, by) = (input.byte(), input.byte());
        let from = match place % 6 {
            0 => peer.acknowledged,
            1 => near(peer.acknowledged, by),
            2 => near(peer.edge, by),
            3 => near(peer.sent_until, by),
            4 => u64::from(by) << 24,
            _ => peer.sent_until,
        };
        let (place, by) = (input.byte(), input.byte());
        let ack = match place % 6 {
            0 => peer.heard,
            1 => peer.heard * u64::from(by) / 255,
            2 => near(peer.heard, by),
            3 => near(0, by),
            4 => u64::from(by) << 24,
            _ => peer.heard,
        };
        let flags = input.byte();
        let rare = |mask: u8| flags & mask == mask;
        let block = |input: &mut Input<'_>| {
            let (from, to) = (u64::from(input.byte()), u64::from(input.byte()));
            (seq_of(OURS, peer.heard * from / 255), seq_of(OURS, peer.heard * to / 255))
        };
        let sacks = if flags & 1 == 1 { [(); 3].map(|()| Some(block(input))) } else { [None; 3] };
        InjectedSegment {
            syn: rare(0b1100_0010),
            fin: rare(0b0000_1110),
            rst: rare(0b1111_0000),
            psh: rare(0b10),
            ack: (flags & 0b0011_1000 != 0b0011_1000).then(|| seq_of(OURS, ack)),
            length: if flags & 4 == 4 { usize::from(input.word() % 4000) } else { 0 },
            window: input.word(),
            sacks,
            clock: i32::from(input.byte() as i8) << (flags & 0b11),
            urgent: rare(0b0101_0100),
            ..InjectedSegment::at(from)
        }
    }

    fn read(&mut self, most: usize) {
        let Some(id) = self.id else { return };
        let mut bytes = 0;
        while bytes < most
            && let Some(segment) = self.stack.take(id)
        {
            for byte in segment.data.iter() {
                assert_eq!(*byte, byte_of(self.read), "byte {} of the peer's stream", self.read);
                // Each byte is checked by its position, so a lost, repeated or moved byte shows.
                self.read += 1;
            }
            bytes += segment.data.len();
            self.stack.consume(id, segment.data.len());
        }
        assert!(self.read <= self.peer.sent_until, "more was delivered than was sent without a gap");
        if self.stack.at_end(id) && self.stack.error(id).is_none() {
            assert!(self.peer.fins.contains(&self.read), "an end that the peer did not send: {}", self.read);
        }
    }

    fn write(&mut self, bytes: usize) {
        let Some(id) = self.id.filter(|id| self.stack.may_send(*id)) else { return };
        let bytes = bytes.min(self.stack.room(id));
        let data: Vec<u8> = (self.written..).take(bytes).map(byte_of).collect();
        self.stack.send(id, data.into(), offload_api::TxTag::PLAIN);
        self.written += bytes as u64;
        if bytes % 2 == 1 {
            self.stack.push(id);
        }
    }

    fn close(&mut self, how: u8) {
        let Some(id) = self.id else { return };
        match how {
            0..=127 => self.stack.push(id),
            128..=220 => self.stack.finish(id),
            221..=230 => self.stack.abort(id),
            _ => {
                self.id = None;
                self.stack.detach(self.now, id);
            }
        }
    }

    /// Delivers a segment to the stack and records the data that the peer sent with it.
    fn deliver(&mut self, segment: &InjectedSegment) {
        if self.peer.opened && !segment.syn {
            // A segment that begins before the stream may end in it.
            let from = signed_position_of(THEIRS, segment.seq, self.peer.sent_until);
            if let Ok(to) = u64::try_from(from + segment.length as i64) {
                self.peer.note_sent(from.max(0) as u64, to, segment.fin);
            }
        }
        let opening = segment.syn;
        if let Some(ack) = segment.ack
            && let Some(at) = position_of(OURS, ack, self.peer.heard)
        {
            let shift = if opening || self.peer.shift == 0 { 0 } else { PEER_SHIFT };
            self.peer.offered = self.peer.offered.max(at + (u64::from(segment.window) << shift));
        }
        // The peer's clock may be wrong, but the echo is always a received value.
        let (clock, heard) = (self.now.as_millis() as u32, self.peer.timestamp);
        let timestamps = heard.or(segment.syn.then_some(0)).map(|echo| {
            let value = clock.wrapping_add(1_000).wrapping_add_signed(segment.clock);
            (value, echo)
        });
        let frame = segment.frame(timestamps);
        let meta = RxMeta { checksums: Checksums::Good, ..RxMeta::default() };
        self.stack.receive(self.now, RxPacket::new(BytesMut::from(&frame[..]), meta), &mut self.nic);
    }

    /// Lets the stack work until it is idle, and checks the packets that it sends.
    fn poll_until_idle(&mut self) {
        let mut rounds = 0;
        while self.stack.poll(self.now, &mut self.nic) {
            rounds += 1;
            assert!(rounds < 1000, "the stack does not come to rest");
        }
        while self.stack.next_ready().is_some() {}
        for packet in self.nic.take_sent() {
            self.peer.hear(&packet, self.id.map(|_| self.read), self.written);
        }
        // One connection, and at most one in a state after its end.
        assert!(self.stack.connections() <= 2);
        if let Some(id) = self.id {
            let stats = self.stack.stats(id);
            assert!(stats.unacknowledged <= SEND_BUFFER as u64 + 1);
            assert!(stats.in_flight <= stats.unacknowledged + 1);
        }
    }
}

impl TcpFuzzPeer {
    fn note_sent(&mut self, from: u64, to: u64, fin: bool) {
        if fin {
            self.fins.insert(to);
        }
        self.sent_beyond.push((from, to));
        // A FIN takes a sequence number. Bytes after the FIN may be sent without belonging to the stream.
        while let Some(index) = self.sent_beyond.iter().position(|(from, _)| *from <= self.sent_until) {
            let (_, to) = self.sent_beyond.swap_remove(index);
            self.sent_until = self.sent_until.max(to);
        }
    }

    /// Checks a packet from the stack. `read` is the application's read position; `None` without an application.
    fn hear(&mut self, packet: &TxPacket, read: Option<u64>, written: u64) {
        let tcp = TcpPacket::new_checked(&packet.header[34..]).expect("a whole header");
        let payload: Vec<u8> = packet.fragments.concat();
        let mut options = tcp.options();
        while !options.is_empty() {
            let (rest, option) = TcpOption::parse(options).expect("options that are well formed");
            match option {
                TcpOption::WindowScale(shift) => self.shift = shift,
                TcpOption::TimeStamp { tsval, .. } => self.timestamp = Some(tsval),
                _ => {}
            }
            options = rest;
        }
        if tcp.rst() {
            return;
        }
        if tcp.ack() {
            let ack = tcp.ack_number().0 as u32;
            let fins = u64::from(!self.fins.is_empty());
            let at = position_of(THEIRS, ack, self.acknowledged).expect("not before the stream");
            assert!(at >= self.acknowledged, "{at} is acknowledged after {}", self.acknowledged);
            assert!(at <= self.sent_until + fins, "{at} is acknowledged, {} was sent", self.sent_until);
            self.acknowledged = at;
            let shift = if tcp.syn() { 0 } else { self.shift };
            let edge = at + (u64::from(tcp.window_len()) << shift);
            // The scale truncates the window, so the edge may move back by less than one unit of the scale.
            assert!(edge + (1 << shift) > self.edge || tcp.syn(), "an edge at {edge} after {}", self.edge);
            let most = read.map_or(u64::MAX, |read| read + RECEIVE_BUFFER as u64 + 2);
            assert!(edge <= most, "more is offered than there is memory for");
            self.edge = self.edge.max(edge);
        }
        if tcp.syn() {
            return;
        }
        let end = payload.len() as u64 + u64::from(tcp.fin());
        let from = position_of(OURS, tcp.seq_number().0 as u32, self.heard);
        let Some(from) = from else {
            // A probe of a peer that has not yet received anything has the SYN's number.
            assert_eq!(end, 0);
            return;
        };
        for (at, byte) in (from..).zip(&payload) {
            assert_eq!(*byte, byte_of(at), "byte {at} of the application's stream");
        }
        assert!(payload.is_empty() || from + payload.len() as u64 <= written, "bytes that were never written");
        assert!(end == 0 || from + end <= self.offered, "beyond the window: {} of {}", from + end, self.offered);
        let cut = usize::from(packet.ask.mss.unwrap_or(MSS));
        assert!(cut <= usize::from(MSS) && (packet.ask.mss.is_some() || payload.len() <= usize::from(MSS)));
        self.heard = self.heard.max(from + end);
    }
}

/// A segment from the peer.
#[derive(Default)]
struct InjectedSegment {
    syn: bool,
    fin: bool,
    rst: bool,
    psh: bool,
    urgent: bool,
    seq: u32,
    ack: Option<u32>,
    window: u16,
    length: usize,
    sacks: [Option<(u32, u32)>; 3],
    /// Error of the peer's clock in milliseconds.
    clock: i32,
}

impl InjectedSegment {
    fn at(position: u64) -> InjectedSegment {
        InjectedSegment { seq: seq_of(THEIRS, position), window: u16::MAX, ..InjectedSegment::default() }
    }

    fn frame(&self, timestamps: Option<(u32, u32)>) -> Vec<u8> {
        let first = self.seq.wrapping_sub(THEIRS).wrapping_sub(1);
        let payload: Vec<u8> = (0..self.length as u32).map(|at| byte_of(u64::from(first.wrapping_add(at)))).collect();
        let repr = TcpRepr {
            src_port: THEIR_PORT,
            dst_port: OUR_PORT,
            control: match (self.syn, self.rst) {
                (true, _) => TcpControl::Syn,
                (_, true) => TcpControl::Rst,
                _ if self.fin => TcpControl::Fin,
                _ if self.psh => TcpControl::Psh,
                _ => TcpControl::None,
            },
            seq_number: TcpSeqNumber(self.seq as i32),
            ack_number: self.ack.map(|ack| TcpSeqNumber(ack as i32)),
            window_len: self.window,
            window_scale: self.syn.then_some(PEER_SHIFT),
            max_seg_size: self.syn.then_some(MSS),
            sack_permitted: self.syn,
            sack_ranges: if self.syn { [None; 3] } else { self.sacks },
            timestamp: timestamps.map(|(value, echo)| TcpTimestampRepr::new(value, echo)),
            payload: &payload,
        };
        let mut tcp = vec![0; repr.buffer_len()];
        let addresses = [[10, 0, 0, 2], [10, 0, 0, 1]].map(|bytes: [u8; 4]| core::net::Ipv4Addr::from(bytes).into());
        let mut packet = TcpPacket::new_unchecked(&mut tcp[..]);
        repr.emit(&mut packet, &addresses[0], &addresses[1], &smoltcp::phy::ChecksumCapabilities::ignored());
        packet.set_urg(self.urgent);
        // The flags are set directly, because smoltcp supports only one control flag at a time.
        packet.set_fin(self.fin);
        packet.set_rst(self.rst);
        let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0, 0x45, 0];
        frame.extend_from_slice(&((20 + tcp.len()) as u16).to_be_bytes());
        frame.extend_from_slice(&[0, 0, 0, 0, 64, 6, 0, 0, 10, 0, 0, 2, 10, 0, 0, 1]);
        frame.extend_from_slice(&tcp);
        frame
    }
}

/// Returns the byte at a position of either stream: the low bits of the position, mixed, so that a shift shows.
fn byte_of(position: u64) -> u8 {
    ((position as u32).wrapping_mul(0x9e37_79b1) >> 24) as u8
}

/// Returns the sequence number of a position in the stream with the initial number `initial`.
fn seq_of(initial: u32, position: u64) -> u32 {
    initial.wrapping_add(1).wrapping_add(position as u32)
}

/// Returns the position of `seq` nearest to `near`, or `None` before the stream.
fn position_of(initial: u32, seq: u32, near: u64) -> Option<u64> {
    signed_position_of(initial, seq, near).try_into().ok()
}

/// Returns the position of `seq` nearest to `near`, negative before the stream.
fn signed_position_of(initial: u32, seq: u32, near: u64) -> i64 {
    let off = seq.wrapping_sub(seq_of(initial, near)) as i32;
    near as i64 + i64::from(off)
}

/// Initial sequence numbers near the end of the range, so that both streams wrap around early.
const OURS: u32 = u32::MAX - 30_000;
const THEIRS: u32 = u32::MAX - 50_000;
const OUR_PORT: u16 = 5000;
const THEIR_PORT: u16 = 80;
/// Free send slots of the device while it has any.
const ROOM: usize = 4;
const MSS: u16 = 1400;
const PEER_SHIFT: u8 = 3;
const RECEIVE_BUFFER: usize = 200_000;
const SEND_BUFFER: usize = 100_000;
/// Limit of operations. More of them make an input slower, but find no more.
const MAX_OPERATIONS: usize = 2_000;
