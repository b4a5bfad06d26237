//! The receive engine on generated streams. The published packet traces are in [`traces`].

mod traces;

use super::*;
use offload_api::{TlsSuite, TlsVersion};
use proptest::prelude::*;
use resumable_aead::Algorithm;

fn protection() -> RecordProtection {
    crate::tls::record::tests::protection(TlsVersion::Tls13, TlsSuite::Aes128Gcm, [3; 12])
}

const START: Seq = Seq(u32::MAX - 500);

fn key() -> Key {
    Key::new(Algorithm::Aes128Gcm, &[1; 16]).unwrap()
}

/// Returns a sealed record with a body of `length` bytes.
fn sealed(number: u64, length: usize) -> Vec<u8> {
    let mut record = vec![23, 3, 3, ((length + 16) >> 8) as u8, (length + 16) as u8];
    record.resize(5 + length + 16, number as u8);
    let mut out = BytesMut::new();
    RecordCursor::at_record(number).walk(RecordMode::Seal, &key(), &protection(), &record, &mut out).unwrap();
    out.into()
}

/// Records 5, 6, 7 and so on, of one length, and an engine that starts with record 5.
struct ReceiveRig {
    key: Key,
    stream: Vec<u8>,
    engine: TlsReceive,
}

impl ReceiveRig {
    fn new(records: u64, length: usize) -> ReceiveRig {
        let stream = (5..5 + records).flat_map(|number| sealed(number, length)).collect();
        ReceiveRig { key: key(), stream, engine: TlsReceive::new(protection(), START, 5, true) }
    }

    fn feed(&mut self, from: usize, to: usize) -> ReceivedRecords {
        let mut out = BytesMut::new();
        let received = self.engine.receive(&self.key, START + from as u32, &self.stream[from..to], &mut out);
        assert!(received.verdict != TlsVerdict::Error, "this stream has no errors");
        received
    }

    fn verdict(&mut self, from: usize, to: usize) -> TlsVerdict {
        self.feed(from, to).verdict
    }
}

use TlsVerdict::{Decrypted, NotDecrypted, ResyncRequested};

#[test]
fn the_past_passes_by() {
    let mut rig = ReceiveRig::new(3, 100);
    assert_eq!(rig.verdict(0, 60), Decrypted);
    assert_eq!(rig.verdict(0, 60), NotDecrypted);
    assert_eq!(rig.verdict(30, 90), NotDecrypted);
    assert_eq!(rig.verdict(60, 150), Decrypted);
}

#[test]
fn missing_bytes_may_still_arrive_in_order() {
    let mut rig = ReceiveRig::new(2, 100);
    assert_eq!(rig.verdict(0, 30), Decrypted);
    assert_eq!(rig.verdict(60, 90), NotDecrypted);
    assert_eq!(rig.verdict(30, 60), Decrypted);
    assert_eq!(rig.verdict(90, 121), NotDecrypted, "60..90 was ignored");
    assert!(rig.feed(121, 200).found);
    assert_eq!(rig.verdict(200, 242), Decrypted);
}

#[test]
fn a_context_that_does_not_ask_waits_for_a_hint() {
    let mut rig = ReceiveRig::new(9, 100);
    rig.engine.asks = false;
    assert!(rig.feed(10, 130).lost, "121 is in the packet, but the context does not search");
    assert_eq!(rig.verdict(130, 250), NotDecrypted);
    assert_eq!(rig.engine.question(), None);
    assert!(!rig.engine.answer(START + 242, Some(7)), "late: the header has passed");
    assert!(!rig.engine.answer(START + 363, None), "a negative answer is no hint");
    assert!(rig.engine.answer(START + 363, Some(8)));
    assert!(!rig.engine.answer(START + 242, Some(7)), "older than the last hint");
    assert_eq!(rig.feed(250, 363), ReceivedRecords::UNTOUCHED, "before it");
    assert_eq!(rig.feed(350, 480), ReceivedRecords { found: true, ..ReceivedRecords::UNTOUCHED }, "contains it");
    assert_eq!(rig.verdict(480, 605), Decrypted);
    // Lost again, with a hint for the first byte of the next packet.
    assert!(rig.feed(730, 740).lost);
    assert!(rig.engine.answer(START + 847, Some(12)));
    assert_eq!(rig.feed(740, 847), ReceivedRecords::UNTOUCHED);
    let received = rig.feed(847, 968);
    assert_eq!((received.verdict, received.found), (Decrypted, true));
}

#[test]
fn a_hint_about_a_lost_header_has_no_effect() {
    let mut rig = ReceiveRig::new(9, 100);
    rig.engine.asks = false;
    assert!(rig.feed(10, 130).lost);
    assert!(rig.engine.answer(START + 242, Some(7)));
    assert_eq!(rig.feed(250, 300), ReceivedRecords::UNTOUCHED);
    assert_eq!(rig.feed(300, 363), ReceivedRecords::UNTOUCHED);
    assert!(!rig.engine.answer(START + 242, Some(7)));
    assert!(rig.engine.answer(START + 363, Some(8)));
    assert_eq!(rig.verdict(363, 605), Decrypted);
}

/// A body that contains a false header: its length leads nowhere, and the search continues.
#[test]
fn a_false_header_is_found_out() {
    let mut stream = vec![0; 50];
    stream.extend_from_slice(&[23, 3, 3, 0, 100]);
    stream.resize(160, 1);
    let real = stream.len();
    let record = sealed(9, 100);
    stream.extend_from_slice(&record);
    stream.extend_from_slice(&sealed(10, 300));
    let mut rig = ReceiveRig { key: key(), engine: TlsReceive::new(protection(), START - 1000, 1, true), stream };
    assert_eq!(rig.verdict(0, 100), ResyncRequested);
    assert_eq!(rig.engine.question(), Some(START + 50));
    assert_eq!(rig.verdict(100, 200), ResyncRequested);
    assert_eq!(rig.engine.question(), Some(START + real as u32), "the length of the false header leads to no header");
    assert!(rig.engine.answer(START + real as u32, Some(9)));
    assert!(rig.feed(200, 300).found);
    assert_eq!(rig.verdict(300, real + 121 + 321), Decrypted);
}

/// A retransmission during a search does not hide a header that is split over the two packets around it.
#[test]
fn the_past_does_not_disturb_a_search() {
    let mut rig = ReceiveRig::new(9, 100);
    assert!(rig.feed(10, 120).lost);
    assert_eq!(rig.verdict(130, 244), NotDecrypted, "two bytes of the header at 242");
    assert_eq!(rig.verdict(100, 140), NotDecrypted, "a retransmission that contains the header at 121");
    assert_eq!(rig.engine.question(), None);
    assert_eq!(rig.verdict(230, 260), ResyncRequested, "the end of the packet is new");
    assert_eq!(rig.engine.question(), Some(START + 242));
    // After a negative answer, too, the search continues after all bytes seen.
    assert_eq!(rig.verdict(260, 300), NotDecrypted);
    assert!(rig.engine.answer(START + 242, None));
    assert_eq!(rig.verdict(100, 140), NotDecrypted);
    assert_eq!(rig.verdict(300, 380), ResyncRequested);
    assert_eq!(rig.engine.question(), Some(START + 363));
}

/// An overtaken packet may contain the header that the gap hid.
#[test]
fn a_header_in_a_late_packet_helps_if_its_record_ends_past_seen() {
    let mut rig = ReceiveRig::new(3, 1000);
    assert_eq!(rig.verdict(0, 900), Decrypted);
    assert!(rig.feed(1100, 1500).lost);
    assert_eq!(rig.verdict(900, 1100), ResyncRequested, "the header at 1021 leads to 2042");
    assert_eq!(rig.engine.question(), Some(START + 1021));
    assert!(rig.engine.answer(START + 1021, Some(6)));
    assert_eq!(rig.verdict(1500, 2000), NotDecrypted);
    assert!(rig.feed(2000, 2100).found);
    assert_eq!(rig.verdict(2100, 3063), Decrypted);
}

/// A request or its answer may be lost.
#[test]
fn a_resync_request_repeats_while_its_header_is_tracked() {
    let header = [23, 3, 3, 0, 17];
    let record: Vec<u8> = header.iter().copied().chain([0; 17]).collect();
    let many = record.repeat(RECORDS_BETWEEN_QUESTIONS as usize);
    let mut rig = ReceiveRig::new(1, 100);
    assert!(rig.feed(10, 120).lost);
    let mut at = START + 130;
    let mut asked = Vec::new();
    let mut out = BytesMut::new();
    for _ in 0..=RECORDS_TO_WAIT / RECORDS_BETWEEN_QUESTIONS {
        let received = rig.engine.receive(&rig.key, at, &many, &mut out);
        assert_eq!(received.verdict, ResyncRequested);
        asked.push(rig.engine.question().unwrap());
        at += many.len() as u32;
    }
    let (last, before) = asked.split_last().unwrap();
    assert!(before.iter().all(|header| *header == START + 130), "the same request every time");
    assert!(last.after(START + 130), "given up: the request is about another header");
}

#[test]
fn a_wrong_tag_is_an_error_once() {
    let mut rig = ReceiveRig::new(1, 50);
    rig.stream[70] ^= 1;
    let mut out = BytesMut::new();
    let received = rig.engine.receive(&rig.key, START, &rig.stream, &mut out);
    assert_eq!((received.verdict, received.lost), (TlsVerdict::Error, true));
    let after = rig.engine.receive(&rig.key, START + 71, &[0; 71], &mut out);
    assert_eq!(after, ReceivedRecords::UNTOUCHED);
}

proptest! {
    /// For any order of packets and any answers, bytes reported as decrypted are decrypted.
    #[test]
    fn decrypted_means_decrypted(
        lengths in prop::collection::vec(1usize..400, 1..30),
        cuts in prop::collection::vec(1usize..500, 1..60),
        lost in prop::collection::vec(0u8..4, 60),
        answered in prop::collection::vec(any::<bool>(), 60),
        asks: bool,
    ) {
        let key = key();
        let (mut stream, mut starts) = (Vec::new(), Vec::new());
        for (number, length) in (5..).zip(&lengths) {
            starts.push((START + stream.len() as u32, number, *length));
            stream.extend(sealed(number, *length));
        }
        let mut engine = TlsReceive::new(protection(), START, 5, asks);
        let (mut at, mut question) = (0, None);
        for (step, cut) in cuts.iter().enumerate() {
            let piece = &stream[at..stream.len().min(at + cut)];
            let seq = START + at as u32;
            at += piece.len();
            if piece.is_empty() || lost[step] == 0 {
                continue;
            }
            let mut out = BytesMut::new();
            let received = engine.receive(&key, seq, piece, &mut out);
            prop_assert!(received.verdict != TlsVerdict::Error);
            if received.verdict == Decrypted {
                prop_assert_eq!(out.len(), piece.len());
                for (offset, byte) in out.iter().enumerate() {
                    let seq = seq + offset as u32;
                    let (start, number, length) = starts.iter().rev().find(|start| start.0.at_or_before(seq)).unwrap();
                    let body = *start + HEADER as u32;
                    if seq.within(body, body + *length as u32) {
                        prop_assert_eq!(*byte, *number as u8);
                    } else {
                        prop_assert_eq!(*byte, piece[offset]);
                    }
                }
            }
            if received.verdict == ResyncRequested {
                question = engine.question();
            } else if !asks {
                // A hint about any record, late or early.
                question = Some(starts[(step * 7) % starts.len()].0);
            }
            if let (Some(asked), true) = (question, answered[step]) {
                let number = starts.iter().find(|start| start.0 == asked).map(|start| start.1);
                engine.answer(asked, number);
                question = None;
            }
        }
    }
}
