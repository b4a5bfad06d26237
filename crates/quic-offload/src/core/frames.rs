//! A parser of a packet's frames, which finds their boundaries and the stream bytes.
//!
//! Invariant: each frame ends where the state machine ends it. An unknown frame ends the parsing.

use core::ops::Range;

/// An iterator over the frames of a payload.
pub(super) struct Frames<'a> {
    payload: &'a [u8],
    at: usize,
}

/// The range and kind of a frame.
pub(super) struct Frame {
    pub(super) range: Range<usize>,
    pub(super) kind: FrameKind,
}

pub(super) enum FrameKind {
    Stream(StreamFrame),
    /// A DATAGRAM frame without a length (RFC 9221), with the range of its data.
    DatagramToTheEnd(Range<usize>),
    /// A frame allowed in probing packets (RFC 9000 9.1).
    Probing,
    Other,
}

/// A STREAM frame (RFC 9000 19.8).
#[derive(Clone, Debug)]
pub(super) struct StreamFrame {
    pub(super) id: u64,
    pub(super) offset: u64,
    pub(super) fin: bool,
    /// Range of the data in the payload.
    pub(super) data: Range<usize>,
}

impl StreamFrame {
    pub(super) fn end(&self) -> u64 {
        self.offset.saturating_add(self.data.len() as u64)
    }

    /// Maximum bytes of a frame's header.
    pub(super) const MAX_HEADER: usize = 1 + 8 + 8 + 8;

    /// Writes a frame with a length.
    pub(super) fn write(out: &mut bytes::BytesMut, id: u64, offset: u64, fin: bool, data: &[u8]) {
        out.extend_from_slice(&[STREAM | OFFSET | LENGTH | u8::from(fin)]);
        for value in [id, offset, data.len() as u64] {
            write_number(out, value);
        }
        out.extend_from_slice(data);
    }
}

/// Writes a variable-length integer (RFC 9000 16) in its shortest form.
pub(super) fn write_number(out: &mut bytes::BytesMut, value: u64) {
    // The two high bits of the first byte give the length (RFC 9000 16).
    match value {
        0..0x40 => out.extend_from_slice(&[value as u8]),
        0x40..0x4000 => out.extend_from_slice(&(value as u16 | 1 << 14).to_be_bytes()),
        0x4000..0x4000_0000 => out.extend_from_slice(&(value as u32 | 2 << 30).to_be_bytes()),
        _ => out.extend_from_slice(&(value | 3 << 62).to_be_bytes()),
    }
}

impl<'a> Frames<'a> {
    pub(super) fn new(payload: &'a [u8]) -> Frames<'a> {
        Frames { payload, at: 0 }
    }

    /// Parses the next frame. `None` at the end, or at an unknown or truncated frame.
    pub(super) fn next(&mut self) -> Option<Frame> {
        let begin = self.at;
        let kind = match self.number()? {
            PADDING => {
                let rest = &self.payload[self.at..];
                self.at += rest.iter().position(|byte| *byte != 0).unwrap_or(rest.len());
                FrameKind::Probing
            }
            kind @ 0x08..=0x0f => FrameKind::Stream(self.stream(kind as u8)?),
            // The frame has no length, so it takes the rest of the packet.
            0x30 => {
                FrameKind::DatagramToTheEnd(core::mem::replace(&mut self.at, self.payload.len())..self.payload.len())
            }
            // NEW_CONNECTION_ID and PATH_NEW_CONNECTION_ID.
            kind @ (0x18 | 0x3e78) => {
                self.numbers(if kind == 0x18 { 2 } else { 3 })?;
                let cid = *self.payload.get(self.at)?;
                self.skip(1 + u64::from(cid) + 16)?;
                FrameKind::Probing
            }
            // PATH_CHALLENGE, PATH_RESPONSE.
            0x1a | 0x1b => {
                self.skip(8)?;
                FrameKind::Probing
            }
            other => {
                self.rest(other)?;
                FrameKind::Other
            }
        };
        Some(Frame { range: begin..self.at, kind })
    }

    /// Tests whether the whole payload was parsed.
    pub(super) fn is_done(&self) -> bool {
        self.at == self.payload.len()
    }

    fn stream(&mut self, kind: u8) -> Option<StreamFrame> {
        let id = self.number()?;
        let offset = if kind & OFFSET == 0 { 0 } else { self.number()? };
        let bytes = if kind & LENGTH == 0 { (self.payload.len() - self.at) as u64 } else { self.number()? };
        let begin = self.at;
        self.skip(bytes)?;
        Some(StreamFrame { id, offset, fin: kind & FIN != 0, data: begin..self.at })
    }

    /// Skips the fields of other frames.
    fn rest(&mut self, kind: u64) -> Option<()> {
        match kind {
            // PING, HANDSHAKE_DONE, IMMEDIATE_ACK.
            0x01 | 0x1e | 0x1f => Some(()),
            // ACK and PATH_ACK, with and without ECN counts.
            0x02 | 0x03 | 0x3e | 0x3f => {
                self.numbers(if kind >= 0x3e { 3 } else { 2 })?;
                let ranges = self.number()?;
                let numbers = ranges.checked_mul(2)?.checked_add(1 + 3 * (kind & 1))?;
                self.numbers(numbers)
            }
            // MAX_DATA, MAX_STREAMS, DATA_BLOCKED, STREAMS_BLOCKED, RETIRE_CONNECTION_ID, MAX_PATH_ID, PATHS_BLOCKED.
            0x10 | 0x12..=0x14 | 0x16 | 0x17 | 0x19 | 0x3e7a | 0x3e7b => self.numbers(1),
            // STOP_SENDING, MAX_STREAM_DATA, STREAM_DATA_BLOCKED; PATH_ABANDON, _STATUS_BACKUP, _STATUS_AVAILABLE,
            // _RETIRE_CONNECTION_ID, _CIDS_BLOCKED.
            0x05 | 0x11 | 0x15 | 0x3e75..=0x3e77 | 0x3e79 | 0x3e7c => self.numbers(2),
            // RESET_STREAM.
            0x04 => self.numbers(3),
            // ACK_FREQUENCY.
            0xaf => self.numbers(4),
            // NEW_TOKEN, DATAGRAM; CRYPTO, application CONNECTION_CLOSE; transport CONNECTION_CLOSE.
            0x07 | 0x31 | 0x06 | 0x1d | 0x1c => {
                self.numbers(match kind {
                    0x07 | 0x31 => 0,
                    0x1c => 2,
                    _ => 1,
                })?;
                let bytes = self.number()?;
                self.skip(bytes)
            }
            _ => None,
        }
    }

    fn numbers(&mut self, count: u64) -> Option<()> {
        // Each integer takes at least one byte. The check bounds the loop below.
        if count > self.payload.len() as u64 {
            return None;
        }
        (0..count).try_for_each(|_| self.number().map(|_| ()))
    }

    fn number(&mut self) -> Option<u64> {
        let first = *self.payload.get(self.at)?;
        let bytes = self.payload.get(self.at..self.at + (1 << (first >> 6)))?;
        self.at += bytes.len();
        Some(bytes[1..].iter().fold(u64::from(first & 0x3f), |value, byte| value << 8 | u64::from(*byte)))
    }

    fn skip(&mut self, bytes: u64) -> Option<()> {
        let left = self.payload.len() - self.at;
        let bytes = usize::try_from(bytes).ok().filter(|bytes| *bytes <= left)?;
        self.at += bytes;
        Some(())
    }
}

pub(super) const PING: u8 = 0x01;
const PADDING: u64 = 0x00;
const STREAM: u8 = 0x08;
const FIN: u8 = 0x01;
const LENGTH: u8 = 0x02;
const OFFSET: u8 = 0x04;

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::BytesMut;

    /// One frame of each kind, by RFC 9000 19, RFC 9221, draft-ietf-quic-ack-frequency and
    /// draft-ietf-quic-multipath-21.
    fn each() -> Vec<Vec<u8>> {
        let cid = [&[4, 1, 2, 3, 4][..], &[9; 16]].concat();
        let multipath = |low: u8| [0x80, 0, 0x3e, low];
        vec![
            vec![0x01],
            vec![0x02, 9, 0, 2, 1, 0, 1, 1, 1],
            vec![0x03, 9, 0, 0, 1, 5, 6, 7],
            vec![0x04, 1, 2, 3],
            vec![0x05, 1, 2],
            vec![0x06, 1, 2, 8, 8],
            vec![0x07, 3, 8, 8, 8],
            vec![0x0e, 0x41, 0x00, 0x80, 0, 0, 5, 2, 8, 8],
            vec![0x0b, 4, 1, 8],
            vec![0x10, 0x7f, 0xff],
            vec![0x11, 1, 2],
            vec![0x12, 1],
            vec![0x13, 1],
            vec![0x14, 1],
            vec![0x15, 1, 2],
            vec![0x16, 1],
            vec![0x17, 1],
            [&[0x18, 1, 0][..], &cid].concat(),
            vec![0x19, 1],
            [&[0x1a][..], &[8; 8]].concat(),
            [&[0x1b][..], &[8; 8]].concat(),
            vec![0x1c, 1, 2, 1, 8],
            vec![0x1d, 1, 2, 8, 8],
            vec![0x1e],
            vec![0x1f],
            vec![0x31, 2, 8, 8],
            vec![0x40, 0xaf, 1, 2, 3, 4],
            vec![0x3e, 1, 9, 0, 1, 1, 0, 1],
            vec![0x3f, 1, 9, 0, 0, 1, 5, 6, 7],
            [&multipath(0x75)[..], &[1, 2]].concat(),
            [&multipath(0x76)[..], &[1, 2]].concat(),
            [&multipath(0x77)[..], &[1, 2]].concat(),
            [&multipath(0x78)[..], &[1, 2, 0], &cid].concat(),
            [&multipath(0x79)[..], &[1, 2]].concat(),
            [&multipath(0x7a)[..], &[1]].concat(),
            [&multipath(0x7b)[..], &[1]].concat(),
            [&multipath(0x7c)[..], &[1, 2]].concat(),
        ]
    }

    #[test]
    fn each_frame_ends_where_the_next_begins() {
        let all = each().concat();
        let mut frames = Frames::new(&all);
        for frame in each() {
            let found = frames.next().unwrap();
            assert_eq!(all[found.range], frame);
        }
        assert!(frames.next().is_none() && frames.is_done());
        for frame in each() {
            for end in 0..frame.len() {
                let mut frames = Frames::new(&frame[..end]);
                assert!(frames.next().is_none(), "{end} bytes of {frame:x?}");
            }
        }
    }

    #[test]
    fn frame_without_a_length_extends_to_the_end() {
        let mut frames = Frames::new(&[0, 0, 0, 0x0d, 4, 0x40, 7, 1, 2, 3]);
        assert!(matches!(
            frames.next().unwrap(),
            Frame { range: Range { start: 0, end: 3 }, kind: FrameKind::Probing }
        ));
        let Some(Frame { kind: FrameKind::Stream(frame), .. }) = frames.next() else { panic!("no stream") };
        assert_eq!((frame.id, frame.offset, frame.fin, frame.data.clone(), frame.end()), (4, 7, true, 7..10, 10));
        let mut frames = Frames::new(&[0x30, 1, 2]);
        assert!(matches!(frames.next().unwrap().kind, FrameKind::DatagramToTheEnd(Range { start: 1, end: 3 })));
    }

    #[test]
    fn unknown_frame_is_the_last_one() {
        let mut frames = Frames::new(&[1, 0x21, 1]);
        assert!(frames.next().is_some() && frames.next().is_none() && !frames.is_done());
    }

    #[test]
    fn written_frames_are_parsed_unchanged() {
        for (id, offset) in [(0, 0), (63, 64), (16_383, 16_384), (1 << 30, (1 << 62) - 3)] {
            let mut out = BytesMut::new();
            StreamFrame::write(&mut out, id, offset, true, &[1, 2]);
            let mut frames = Frames::new(&out);
            let Some(Frame { kind: FrameKind::Stream(frame), .. }) = frames.next() else { panic!("no stream") };
            assert_eq!((frame.id, frame.offset, frame.fin, &out[frame.data]), (id, offset, true, &[1, 2][..]));
            assert!(frames.is_done() && out.len() <= StreamFrame::MAX_HEADER + 2);
        }
    }
}
