//! Perfetto's trace format: a hand-written encoder of the few messages that a timeline needs.
//!
//! Source: `protos/perfetto/trace` of the Perfetto project: `trace.proto`, `trace_packet.proto`,
//! `track_event/track_event.proto`, `track_event/track_descriptor.proto`, `track_event/debug_annotation.proto`; and the
//! encoding of Protocol Buffers: a key (field number and wire type) before each value, numbers as varints.
//!
//! Each function returns one `Trace.packet` that can be appended to a file.

use offload_base::Instant;

/// A named number attached to a slice.
pub(super) type Note<'a> = (&'a str, u64);

/// A slice: an event on a track, from `from` to `to`.
pub(super) struct Slice<'a> {
    pub(super) track: u64,
    pub(super) name: &'a str,
    pub(super) from: Instant,
    pub(super) to: Instant,
    pub(super) notes: &'a [Note<'a>],
    /// Arrows that begin here or pass through.
    pub(super) flows: &'a [u64],
    /// Arrows that end here.
    pub(super) ends: &'a [u64],
}

impl Slice<'_> {
    /// Encodes the packets of the slice's begin and end events.
    pub(super) fn packets(&self) -> Vec<u8> {
        let mut begin = ProtobufMessage::default();
        begin.number(track_event::TYPE, SLICE_BEGIN);
        begin.number(track_event::TRACK_UUID, self.track);
        begin.text(track_event::NAME, self.name);
        for (name, value) in self.notes {
            let mut note = ProtobufMessage::default();
            note.text(debug_annotation::NAME, name);
            note.number(debug_annotation::UINT_VALUE, *value);
            begin.message(track_event::DEBUG_ANNOTATIONS, &note);
        }
        self.flows.iter().for_each(|id| begin.fixed(track_event::FLOW_IDS, *id));
        self.ends.iter().for_each(|id| begin.fixed(track_event::TERMINATING_FLOW_IDS, *id));
        // Perfetto matches begin and end events by track, so the end carries no name.
        let mut end = ProtobufMessage::default();
        end.number(track_event::TYPE, SLICE_END);
        end.number(track_event::TRACK_UUID, self.track);
        let mut packets = event_packet(self.from, &begin);
        packets.extend(event_packet(self.to, &end));
        packets
    }
}

/// Encodes a counter's new value.
pub(super) fn counter(track: u64, at: Instant, value: u64) -> Vec<u8> {
    let mut event = ProtobufMessage::default();
    event.number(track_event::TYPE, COUNTER);
    event.number(track_event::TRACK_UUID, track);
    event.number(track_event::COUNTER_VALUE, value);
    event_packet(at, &event)
}

/// Encodes a track descriptor, as a child of `parent` if given.
pub(super) fn track(uuid: u64, parent: Option<u64>, name: &str, is_counter: bool) -> Vec<u8> {
    // Track numbers are assigned in order, so they also give the display order: from the application down to the wire.
    let mut descriptor = ProtobufMessage::default();
    descriptor.number(track_descriptor::UUID, uuid);
    descriptor.text(track_descriptor::NAME, name);
    if let Some(parent) = parent {
        descriptor.number(track_descriptor::PARENT_UUID, parent);
    }
    descriptor.number(track_descriptor::CHILD_ORDERING, EXPLICIT);
    descriptor.number(track_descriptor::SIBLING_ORDER_RANK, uuid);
    if is_counter {
        descriptor.message(track_descriptor::COUNTER, &ProtobufMessage::default());
    }
    let mut packet = ProtobufMessage::default();
    packet.message(trace_packet::TRACK_DESCRIPTOR, &descriptor);
    packet.in_trace()
}

/// Encodes the first packet of a sequence.
pub(super) fn beginning() -> Vec<u8> {
    let mut packet = ProtobufMessage::default();
    packet.number(trace_packet::SEQUENCE_FLAGS, INCREMENTAL_STATE_CLEARED);
    packet.in_trace()
}

fn event_packet(at: Instant, event: &ProtobufMessage) -> Vec<u8> {
    let mut packet = ProtobufMessage::default();
    packet.number(trace_packet::TIMESTAMP, at.as_nanos());
    packet.message(trace_packet::TRACK_EVENT, event);
    packet.in_trace()
}

/// A protobuf message under construction.
#[derive(Default)]
struct ProtobufMessage(Vec<u8>);

impl ProtobufMessage {
    fn number(&mut self, field: u64, value: u64) {
        self.varint(field << 3 | VARINT);
        self.varint(value);
    }

    fn fixed(&mut self, field: u64, value: u64) {
        self.varint(field << 3 | FIXED_64);
        self.0.extend(value.to_le_bytes());
    }

    fn text(&mut self, field: u64, text: &str) {
        self.bytes(field, text.as_bytes());
    }

    fn message(&mut self, field: u64, message: &ProtobufMessage) {
        self.bytes(field, &message.0);
    }

    fn bytes(&mut self, field: u64, bytes: &[u8]) {
        self.varint(field << 3 | LENGTH_DELIMITED);
        self.varint(bytes.len() as u64);
        self.0.extend_from_slice(bytes);
    }

    /// Appends a varint: seven bits a byte, lowest first. The highest bit is set if more bytes follow.
    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }

    /// Wraps the message as a packet of the trace's only sequence.
    fn in_trace(mut self) -> Vec<u8> {
        self.number(trace_packet::TRUSTED_PACKET_SEQUENCE_ID, 1);
        let mut trace = ProtobufMessage::default();
        trace.message(TRACE_PACKET, &self);
        trace.0
    }
}

const VARINT: u64 = 0;
const FIXED_64: u64 = 1;
const LENGTH_DELIMITED: u64 = 2;

/// `Trace.packet`.
const TRACE_PACKET: u64 = 1;
mod trace_packet {
    pub(super) const TIMESTAMP: u64 = 8;
    pub(super) const TRUSTED_PACKET_SEQUENCE_ID: u64 = 10;
    pub(super) const TRACK_EVENT: u64 = 11;
    pub(super) const SEQUENCE_FLAGS: u64 = 13;
    pub(super) const TRACK_DESCRIPTOR: u64 = 60;
}
mod track_descriptor {
    pub(super) const UUID: u64 = 1;
    pub(super) const NAME: u64 = 2;
    pub(super) const PARENT_UUID: u64 = 5;
    pub(super) const COUNTER: u64 = 8;
    pub(super) const CHILD_ORDERING: u64 = 11;
    pub(super) const SIBLING_ORDER_RANK: u64 = 12;
}
mod track_event {
    pub(super) const DEBUG_ANNOTATIONS: u64 = 4;
    pub(super) const TYPE: u64 = 9;
    pub(super) const TRACK_UUID: u64 = 11;
    pub(super) const NAME: u64 = 23;
    pub(super) const COUNTER_VALUE: u64 = 30;
    pub(super) const FLOW_IDS: u64 = 47;
    pub(super) const TERMINATING_FLOW_IDS: u64 = 48;
}
mod debug_annotation {
    pub(super) const UINT_VALUE: u64 = 3;
    pub(super) const NAME: u64 = 10;
}
const SLICE_BEGIN: u64 = 1;
const SLICE_END: u64 = 2;
const COUNTER: u64 = 4;
/// `ChildTracksOrdering.EXPLICIT`: order by rank.
const EXPLICIT: u64 = 3;
/// `SequenceFlags.SEQ_INCREMENTAL_STATE_CLEARED`.
const INCREMENTAL_STATE_CLEARED: u64 = 1;

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A value of a decoded message.
    #[derive(Clone, Debug, PartialEq)]
    pub(in super::super) enum ProtobufValue {
        Number(u64),
        Bytes(Vec<u8>),
    }

    /// Decodes the fields of a message in order. The decoder is independent of the encoder, so that errors do not
    /// cancel.
    pub(in super::super) fn decode(mut bytes: &[u8]) -> Vec<(u64, ProtobufValue)> {
        fn varint(bytes: &mut &[u8]) -> u64 {
            let end = bytes.iter().position(|byte| byte & 0x80 == 0).expect("a varint ends");
            let (number, rest) = bytes.split_at(end + 1);
            *bytes = rest;
            number.iter().rev().fold(0, |value, byte| value << 7 | u64::from(byte & 0x7f))
        }
        let mut fields = Vec::new();
        while !bytes.is_empty() {
            let key = varint(&mut bytes);
            let value = match key & 7 {
                0 => ProtobufValue::Number(varint(&mut bytes)),
                1 => {
                    let (fixed, rest) = bytes.split_first_chunk::<8>().expect("eight bytes");
                    bytes = rest;
                    ProtobufValue::Number(u64::from_le_bytes(*fixed))
                }
                2 => {
                    let len = varint(&mut bytes) as usize;
                    let (value, rest) = bytes.split_at(len);
                    bytes = rest;
                    ProtobufValue::Bytes(value.to_vec())
                }
                other => panic!("no wire type of ours: {other}"),
            };
            fields.push((key >> 3, value));
        }
        fields
    }

    /// Returns the first value of a field.
    pub(in super::super) fn field(message: &[(u64, ProtobufValue)], number: u64) -> Option<ProtobufValue> {
        message.iter().find(|(field, _)| *field == number).map(|(_, value)| value.clone())
    }

    #[test]
    fn encoded_slice_decodes() {
        let slice = Slice {
            track: 300,
            name: "send",
            from: Instant::from_nanos(1),
            to: Instant::from_nanos(u64::MAX),
            notes: &[("bytes", 1 << 40)],
            flows: &[7],
            ends: &[u64::MAX, 0],
        };
        let trace = decode(&slice.packets());
        assert_eq!(trace.len(), 2, "a beginning and an end");
        let [begin, end] = [0, 1].map(|index| match &trace[index] {
            (1, ProtobufValue::Bytes(packet)) => decode(packet),
            other => panic!("no packet: {other:?}"),
        });
        assert_eq!(field(&begin, 8), Some(ProtobufValue::Number(1)));
        assert_eq!(field(&end, 8), Some(ProtobufValue::Number(u64::MAX)));
        let Some(ProtobufValue::Bytes(event)) = field(&begin, 11) else { panic!("no event") };
        let note = vec![0x52, 5, b'b', b'y', b't', b'e', b's', 0x18, 0x80, 0x80, 0x80, 0x80, 0x80, 0x20];
        let expected = [
            (9, ProtobufValue::Number(1)),
            (11, ProtobufValue::Number(300)),
            (23, ProtobufValue::Bytes(b"send".to_vec())),
            (4, ProtobufValue::Bytes(note)),
            (47, ProtobufValue::Number(7)),
            (48, ProtobufValue::Number(u64::MAX)),
            (48, ProtobufValue::Number(0)),
        ];
        assert_eq!(decode(&event), expected);
    }
}
