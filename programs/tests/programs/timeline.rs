//! Timelines, parsed by a reader that shares no code with the writer.

use std::collections::BTreeMap;
use std::path::Path;

/// Returns the number of slices and counter values of each track, by name.
///
/// # Panics If an event has no named track, the times of a track go back, or a slice is not closed.
pub(crate) fn tracks(path: &Path) -> BTreeMap<String, u64> {
    let file = std::fs::read(path).unwrap();
    let (mut names, mut latest, mut open) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::<u64, i64>::new());
    let mut events = BTreeMap::new();
    for (_, packet) in fields(&file) {
        let packet: BTreeMap<u64, Field<'_>> = fields(packet.bytes()).into_iter().collect();
        if let Some(track) = packet.get(&TRACK_DESCRIPTOR) {
            let track: BTreeMap<u64, Field<'_>> = fields(track.bytes()).into_iter().collect();
            names.insert(track[&1].number(), String::from_utf8(track[&2].bytes().to_vec()).unwrap());
        }
        let Some(event) = packet.get(&TRACK_EVENT) else { continue };
        let event: BTreeMap<u64, Field<'_>> = fields(event.bytes()).into_iter().collect();
        let (track, at) = (event[&TRACK_OF_EVENT].number(), packet[&TIMESTAMP].number());
        assert!(latest.insert(track, at).is_none_or(|before| before <= at), "{}: time goes back", names[&track]);
        let open = open.entry(track).or_default();
        match event[&KIND_OF_EVENT].number() {
            1 => *open += 1,
            2 => *open -= 1,
            kind => assert_eq!(kind, 4, "a counter"),
        }
        assert!(*open >= 0, "{}: a slice ends that has not begun", names[&track]);
        *events.entry(names[&track].clone()).or_default() += 1;
    }
    assert!(open.values().all(|open| *open == 0), "slices were not closed: {open:?} of {names:?}");
    events
}

/// The value of a field.
enum Field<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

impl<'a> Field<'a> {
    fn number(&self) -> u64 {
        match self {
            Field::Number(number) => *number,
            Field::Bytes(_) => panic!("bytes, not a number"),
        }
    }

    fn bytes(&self) -> &'a [u8] {
        match self {
            Field::Bytes(bytes) => bytes,
            Field::Number(_) => panic!("a number, not bytes"),
        }
    }
}

/// Parses the fields of a message, in order.
fn fields(mut rest: &[u8]) -> Vec<(u64, Field<'_>)> {
    let mut found = Vec::new();
    while !rest.is_empty() {
        let key = varint(&mut rest);
        // The low three bits of a key are the wire type of protobuf, the others the number of the field.
        let field = match key & 7 {
            0 => Field::Number(varint(&mut rest)),
            1 => Field::Number(u64::from_le_bytes(taken(&mut rest, 8).try_into().unwrap())),
            2 => {
                let bytes = varint(&mut rest) as usize;
                Field::Bytes(taken(&mut rest, bytes))
            }
            other => panic!("wire type {other}"),
        };
        found.push((key >> 3, field));
    }
    found
}

fn varint(rest: &mut &[u8]) -> u64 {
    let bytes = 1 + rest.iter().position(|byte| byte & 0x80 == 0).expect("a number ends");
    taken(rest, bytes).iter().rev().fold(0, |number, byte| number << 7 | u64::from(byte & 0x7f))
}

fn taken<'a>(rest: &mut &'a [u8], bytes: usize) -> &'a [u8] {
    let (taken, left) = rest.split_at(bytes);
    *rest = left;
    taken
}

// Field numbers of perfetto's protos/perfetto/trace.
const TIMESTAMP: u64 = 8;
const TRACK_EVENT: u64 = 11;
const TRACK_DESCRIPTOR: u64 = 60;
const KIND_OF_EVENT: u64 = 9;
const TRACK_OF_EVENT: u64 = 11;
