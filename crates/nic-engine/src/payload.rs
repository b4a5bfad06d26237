//! A packet's payload on its way through the stream engines of its flow: as it was on the wire, then in the buffer in which
//! the host gets it.
//!
//! Invariant: whatever the engines did, the host gets as many bytes as there were on the wire: those an engine made of all of
//! them, or else those of the wire. In place of what was put into buffers of its own, the latter have a hole.

use bytes::BytesMut;
use offload_api::{Piece, Placements};
use offload_base::Seq;
use smallvec::SmallVec;

/// Parts of a range of bytes: where each begins, and how long it is.
pub type Parts = SmallVec<[(usize, usize); 2]>;

/// What an engine saw of its units' content in a packet, for the engine above.
///
/// ```
/// use nic_engine::{Content, Parts};
/// use offload_base::Seq;
///
/// // Behind 5 bytes of a unit's header there are 100 bytes of content.
/// let content = Content { last: Seq(1000), skipped: 0, parts: Parts::from_iter([(5, 100)]) };
/// assert_eq!(content.parts.iter().map(|(_, bytes)| bytes).sum::<usize>(), 100);
/// ```
#[derive(Debug)]
pub struct Content {
    /// Where in the stream the engine stood before.
    pub last: Seq,
    /// Bytes of content from there on that it passed over.
    pub skipped: u32,
    /// Where content lies in what it opened then.
    pub parts: Parts,
}

/// The payload of a received packet.
#[derive(Debug)]
pub struct Payload<'a> {
    seq: Seq,
    wire: &'a [u8],
    buffer: &'a mut BytesMut,
    /// Where in the buffer it begins.
    start: usize,
    is_opened: bool,
    content: Option<Content>,
    /// Whether there is an engine above to look at the content.
    is_looked_at: bool,
    placed: &'a mut Placements,
}

impl<'a> Payload<'a> {
    /// The bytes `wire` at `seq`, which are to be appended to `buffer` one way or another; what is put elsewhere goes to
    /// `placed`, which is empty.
    pub fn new(
        seq: Seq,
        wire: &'a [u8],
        buffer: &'a mut BytesMut,
        placed: &'a mut Placements,
        is_looked_at: bool,
    ) -> Payload<'a> {
        let start = buffer.len();
        Payload { seq, wire, buffer, start, is_opened: false, content: None, is_looked_at, placed }
    }

    /// Sequence number of its first byte.
    pub fn seq(&self) -> Seq {
        self.seq
    }

    /// Sequence number behind its last byte.
    pub fn end(&self) -> Seq {
        self.seq + self.wire.len() as u32
    }

    /// The bytes as they were on the wire.
    pub fn wire(&self) -> &[u8] {
        self.wire
    }

    /// What `open` appended, as a whole or in part.
    pub fn opened(&self) -> &[u8] {
        &self.buffer[self.start..]
    }

    /// Whether the host gets what an engine made of it.
    pub fn is_opened(&self) -> bool {
        self.is_opened
    }

    /// Has `f` append what it makes of the bytes of the wire. It says whether that is to be handed on in their place, which
    /// needs as many bytes; other engines may look at it if not. `None`, without a call of `f`: an engine below opened them.
    pub fn open<T>(&mut self, f: impl FnOnce(&[u8], &mut BytesMut) -> (bool, T)) -> Option<T> {
        if self.is_opened {
            return None;
        }
        self.buffer.truncate(self.start);
        let (is_opened, result) = f(self.wire, self.buffer);
        self.is_opened = is_opened && self.buffer.len() == self.start + self.wire.len();
        Some(result)
    }

    /// Whether there is an engine above that may want to know of content.
    pub fn is_looked_at(&self) -> bool {
        self.is_looked_at
    }

    /// What the engine below saw of content; `None`: nothing that could be set in relation to what was seen before, or there
    /// is no such engine.
    pub fn content(&self) -> Option<&Content> {
        self.content.as_ref()
    }

    /// Shows the engine above this.
    pub fn show(&mut self, content: Option<Content>) {
        self.content = content;
    }

    /// Notes pieces that were filled with bytes of the payload, each with where it begins there, in order.
    pub fn place(&mut self, pieces: Placements) {
        if !pieces.is_empty() {
            *self.placed = pieces;
        }
    }

    /// The work is done: what no engine made goes to the buffer as it was.
    pub fn finish(self) {
        let Payload { wire, buffer, start, is_opened, placed, .. } = self;
        if is_opened {
            return;
        }
        buffer.truncate(start);
        if placed.is_empty() {
            return buffer.extend_from_slice(wire);
        }
        buffer.resize(start + wire.len(), 0);
        let mut at = 0;
        for (offset, piece) in placed.iter() {
            buffer[start + at..start + offset].copy_from_slice(&wire[at..*offset]);
            at = offset + Piece::len(piece);
        }
        buffer[start + at..].copy_from_slice(&wire[at..]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the host gets of `wire` behind a segment that is there, after these engines, each with what it makes of it.
    fn handed_on(wire: &[u8], engines: &[(bool, &[u8])]) -> (Vec<bool>, Vec<u8>) {
        let (mut buffer, mut placed) = (BytesMut::from(&b"before "[..]), Placements::new());
        let mut payload = Payload::new(Seq(1), wire, &mut buffer, &mut placed, false);
        let open = |(is_opened, made): &(bool, &[u8])| {
            payload.open(|bytes, buffer| {
                assert_eq!(bytes, wire);
                buffer.extend_from_slice(made);
                (*is_opened, ())
            })
        };
        let ran = engines.iter().map(open).map(|ran| ran.is_some()).collect();
        payload.finish();
        (ran, buffer[b"before ".len()..].to_vec())
    }

    #[test]
    fn one_engine_opens_a_payload_and_no_byte_is_lost_or_added() {
        assert_eq!(handed_on(b"wire", &[(true, b"open"), (true, b"more")]), (vec![true, false], b"open".to_vec()));
        assert_eq!(handed_on(b"wire", &[(false, b"part"), (true, b"open")]), (vec![true, true], b"open".to_vec()));
        assert_eq!(handed_on(b"wire", &[(true, b"too long")]), (vec![true], b"wire".to_vec()));
        assert_eq!(handed_on(b"wire", &[(true, b"no"), (true, b"")]), (vec![true, true], b"wire".to_vec()));
    }
}
