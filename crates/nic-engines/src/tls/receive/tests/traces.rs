//! The packet traces of the publication on autonomous offload, step by step: the verdict on each packet and the
//! engine's position afterwards.
//!
//! Records have 121 bytes, starting with number 5 at byte 0, so headers are at 0, 121, 242, 363 and so on. "M" is the
//! next header when packets are lost.
//!
//! Source: Pismenny et al., "Autonomous NIC Offloads", ASPLOS 2021, section 4.3 and its figures; Linux'
//! Documentation/networking/tls-offload.rst, "Resync handling".

use super::*;

/// The state of the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TrackingState {
    /// Offloading; the next byte is this byte.
    Offloading(u32),
    Searching,
    /// Asked about the header at this byte, and following lengths.
    Tracking(u32),
    /// Tracking, and confirmed by software.
    Confirmed(u32),
}
use TrackingState::{Confirmed, Offloading, Searching, Tracking};

impl ReceiveRig {
    fn at(&self) -> TrackingState {
        match &self.engine.place {
            StreamTracking::Known { next, .. } => Offloading(next.distance_from(START)),
            StreamTracking::Searching { .. } => Searching,
            StreamTracking::Tracking(track) if track.confirmed.is_some() => Confirmed(track.asked.distance_from(START)),
            StreamTracking::Tracking(track) => Tracking(track.asked.distance_from(START)),
            place => panic!("unexpected state of a searching engine: {place:?}"),
        }
    }

    /// Receives the packet of bytes `from..to`.
    fn step(&mut self, from: usize, to: usize) -> (TlsVerdict, TrackingState) {
        (self.verdict(from, to), self.at())
    }

    fn says(&mut self, header: u32, number: Option<u64>) -> (bool, TrackingState) {
        (self.engine.answer(START + header, number), self.at())
    }
}

/// A packet from the past: an unnecessary retransmission, or a packet that fills a hole.
#[test]
fn a_retransmission_passes_by() {
    let mut rig = ReceiveRig::new(3, 100);
    assert_eq!(rig.step(0, 60), (Decrypted, Offloading(60)));
    assert_eq!(rig.step(60, 120), (Decrypted, Offloading(120)));
    assert_eq!(rig.step(0, 60), (NotDecrypted, Offloading(120)));
    assert_eq!(rig.step(30, 90), (NotDecrypted, Offloading(120)), "cut differently from the first time");
    assert_eq!(rig.step(90, 180), (NotDecrypted, Offloading(120)), "partly from the past: ignored as a whole");
    assert_eq!(rig.step(120, 180), (Decrypted, Offloading(180)));
}

/// A gap inside a record: M's position is known, and M arrives.
#[test]
fn a_gap_inside_a_record() {
    let mut rig = ReceiveRig::new(4, 100);
    assert_eq!(rig.step(0, 30), (Decrypted, Offloading(30)));
    // 30..60 is missing.
    assert_eq!(rig.step(60, 100), (NotDecrypted, Offloading(30)), "before M: ignored");
    assert_eq!(
        rig.feed(100, 160),
        ReceivedRecords { found: true, ..ReceivedRecords::UNTOUCHED },
        "contains M: not offloaded"
    );
    assert_eq!(rig.at(), Offloading(160), "but the position moved on");
    assert_eq!(rig.step(30, 60), (NotDecrypted, Offloading(160)), "the hole is filled: from the past");
    assert_eq!(rig.step(160, 300), (Decrypted, Offloading(300)), "offloaded again from the next packet on");
}

/// A gap over a header: M itself is missing. The engine searches, asks, follows lengths, gets an answer, and resumes.
#[test]
fn a_gap_over_a_header() {
    let mut rig = ReceiveRig::new(7, 100);
    assert_eq!(rig.step(0, 30), (Decrypted, Offloading(30)));
    // 30..150 is missing, and with it M at 121.
    assert_eq!(rig.step(150, 200), (NotDecrypted, Searching));
    assert_eq!(rig.step(200, 260), (ResyncRequested, Tracking(242)), "a candidate header");
    assert_eq!(rig.engine.question(), Some(START + 242));
    assert_eq!(rig.step(260, 380), (NotDecrypted, Tracking(242)), "a header at 363, as its length says");
    assert_eq!(rig.step(30, 150), (NotDecrypted, Tracking(242)), "the hole is filled: from the past");
    assert_eq!(rig.says(242, Some(7)), (true, Confirmed(242)));
    assert_eq!(rig.step(380, 480), (NotDecrypted, Confirmed(242)), "no header in it");
    assert_eq!(rig.feed(480, 500), ReceivedRecords { found: true, ..ReceivedRecords::UNTOUCHED }, "record 9 at 484");
    assert_eq!(rig.at(), Offloading(500));
    assert_eq!(rig.step(500, 847), (Decrypted, Offloading(847)));
}

/// A gap that starts inside a record header, so that even the length is unknown.
#[test]
fn a_gap_inside_a_header() {
    let mut rig = ReceiveRig::new(5, 100);
    assert_eq!(rig.step(0, 123), (Decrypted, Offloading(123)), "two bytes of M");
    // 123..130 is missing.
    assert_eq!(rig.step(130, 200), (NotDecrypted, Searching), "the end of M's record is unknown");
    assert_eq!(rig.step(200, 300), (ResyncRequested, Tracking(242)));
    assert_eq!(rig.says(242, Some(7)), (true, Confirmed(242)));
    assert_eq!(rig.step(300, 400), (NotDecrypted, Offloading(400)));
    assert_eq!(rig.step(400, 605), (Decrypted, Offloading(605)));
}

/// A gap beyond the next header: M and the next header are missing, with a whole record.
#[test]
fn a_gap_beyond_the_next_header() {
    let mut rig = ReceiveRig::new(9, 100);
    assert_eq!(rig.step(0, 100), (Decrypted, Offloading(100)));
    // 100..400 is missing: headers at 121, 242 and 363.
    assert_eq!(rig.step(400, 450), (NotDecrypted, Searching), "no header in it");
    assert_eq!(rig.step(450, 500), (ResyncRequested, Tracking(484)));
    // While tracking, a second gap hides the header at 605, and the request becomes pointless.
    assert_eq!(rig.step(650, 700), (NotDecrypted, Searching));
    assert_eq!(rig.says(484, Some(9)), (false, Searching), "late");
    assert_eq!(rig.step(700, 800), (ResyncRequested, Tracking(726)));
    assert_eq!(rig.says(726, Some(11)), (true, Confirmed(726)));
    assert_eq!(rig.step(800, 860), (NotDecrypted, Offloading(860)), "record 12 at 847");
    assert_eq!(rig.step(860, 1089), (Decrypted, Offloading(1089)));
}

/// Late answers and answers to other requests have no effect; a negative answer restarts the search.
#[test]
fn a_late_answer_and_a_no() {
    let mut rig = ReceiveRig::new(8, 100);
    assert_eq!(
        rig.step(10, 130),
        (ResyncRequested, Tracking(121)),
        "the packet that shows the gap contains the candidate"
    );
    assert_eq!(rig.says(122, Some(6)), (false, Tracking(121)), "another question");
    assert_eq!(rig.says(121, None), (true, Searching));
    assert_eq!(rig.says(121, Some(6)), (false, Searching), "after the negative answer");
    assert_eq!(rig.step(130, 250), (ResyncRequested, Tracking(242)));
    // The answer may take any time, because lengths are followed meanwhile.
    assert_eq!(rig.step(250, 500), (NotDecrypted, Tracking(242)));
    assert_eq!(rig.step(500, 700), (NotDecrypted, Tracking(242)));
    assert_eq!(rig.says(121, Some(6)), (false, Tracking(242)), "the answer to the previous request");
    assert_eq!(rig.says(242, Some(7)), (true, Confirmed(242)), "the answer to this request, three records later");
    assert_eq!(rig.step(700, 750), (NotDecrypted, Offloading(750)), "record 11 at 726");
    assert_eq!(rig.step(750, 968), (Decrypted, Offloading(968)));
    assert_eq!(rig.says(242, Some(7)), (false, Offloading(968)), "said twice");
}

/// A header split over two packets, and the header that leads back.
#[test]
fn a_header_split_over_two_packets() {
    for split in 122..126 {
        let mut rig = ReceiveRig::new(5, 100);
        assert_eq!(rig.step(10, split), (NotDecrypted, Searching), "the first bytes of the header");
        assert_eq!(rig.step(split, 200), (ResyncRequested, Tracking(121)), "split at {split}");
        assert_eq!(rig.says(121, Some(6)), (true, Confirmed(121)));
        let next_split = 242 + split - 121;
        assert_eq!(
            rig.step(200, next_split),
            (NotDecrypted, Offloading(next_split as u32)),
            "in the middle of a header"
        );
        assert_eq!(rig.step(next_split, 605), (Decrypted, Offloading(605)));
    }
    // Two packets that are not adjacent do not form a header, even if their bytes would.
    let mut rig = ReceiveRig::new(5, 100);
    assert_eq!(rig.step(10, 123), (NotDecrypted, Searching));
    assert_eq!(rig.step(124, 200), (NotDecrypted, Searching));
}

/// While tracking, a header split over two packets is recognized.
#[test]
fn a_header_split_while_tracking() {
    let mut rig = ReceiveRig::new(6, 100);
    assert_eq!(rig.step(10, 130), (ResyncRequested, Tracking(121)));
    assert_eq!(rig.step(130, 244), (NotDecrypted, Tracking(121)));
    assert_eq!(rig.step(244, 364), (NotDecrypted, Tracking(121)));
    assert_eq!(rig.step(364, 400), (NotDecrypted, Tracking(121)));
    assert_eq!(rig.says(121, Some(6)), (true, Confirmed(121)));
    assert_eq!(rig.step(400, 490), (NotDecrypted, Offloading(490)));
    assert_eq!(rig.step(490, 726), (Decrypted, Offloading(726)));
}
