//! A transmitter and a receiver, with a network between them that loses, duplicates and reorders PDUs.

use std::collections::BTreeSet;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use offload_base::Instant;
use pdcp::crypto::{Algorithm, Direction, Iv, Key, PduNumber, TagLen};
use pdcp::{
    BearerKind, Config, Entity, IncomingPdu, Receiver, RepeatedKeys, SduSendError, Security, SnLen, StatusReport,
    Transmitter,
};
use proptest::prelude::*;

const BEARER: u8 = 3;

/// Returns keys for both uses. `None`: the null algorithm.
fn security(algorithm: Option<Algorithm>, key: u8) -> Security {
    let security = Security::new(BEARER, Direction::Downlink).unwrap();
    let Some(algorithm) = algorithm else { return security };
    let [ciphering, integrity] =
        [key, key ^ 0x80].map(|byte| Key::new(algorithm, &vec![byte; algorithm.key_len()]).unwrap());
    security.ciphered(ciphering).authenticated(integrity)
}

fn sdu(number: usize) -> Bytes {
    (0..number % 97 + 3).map(|at| (at * 31 + number * 7) as u8).chain((number as u32).to_be_bytes()).collect()
}

fn pdu(bytes: &Bytes) -> IncomingPdu {
    IncomingPdu::Pdu(BytesMut::from(&bytes[..]))
}

fn drain(receiver: &mut Receiver) -> Vec<u32> {
    std::iter::from_fn(|| receiver.poll_sdu())
        .map(|got| {
            assert_eq!(got.data, sdu(got.count as usize));
            got.count
        })
        .collect()
}

fn at(millis: u64) -> Instant {
    Instant::ZERO + Duration::from_millis(millis)
}

fn algorithms() -> impl Strategy<Value = Option<Algorithm>> {
    (0..=6u8).prop_map(Algorithm::from_number)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// PDUs within the window are delivered once and in order; lost ones are given up when t-Reordering ends.
    #[test]
    fn each_sdu_arrives_once_and_in_order(
        algorithm in algorithms(), long: bool, out_of_order: bool, batch in 1..40usize,
        fates in proptest::collection::vec((0..10u8, 0..30usize), 1..400),
    ) {
        let mut config = Config::data(BearerKind::Unacknowledged, if long { SnLen::Eighteen } else { SnLen::Twelve });
        config.out_of_order = out_of_order;
        let mut transmitter = Transmitter::new(config.clone(), security(algorithm, 1)).unwrap();
        let mut receiver = Receiver::new(config, security(algorithm, 1)).unwrap();
        let mut pdus = Vec::new();
        for number in 0..fates.len() {
            transmitter.send(Instant::ZERO, sdu(number)).unwrap();
            // Taken in between, so that batches of different sizes are protected.
            if number % 13 == 0 {
                pdus.extend(transmitter.take(batch).unwrap());
            }
        }
        pdus.extend(transmitter.take(usize::MAX).unwrap());
        prop_assert_eq!(pdus.len(), fates.len());

        // One in ten is lost, one in ten duplicated; each is late by some places.
        let mut network: Vec<(usize, usize)> = Vec::new();
        for (number, (fate, late)) in fates.iter().enumerate() {
            let copies = match fate { 0 => 0, 1 => 2, _ => 1 };
            network.extend((0..copies).map(|copy| (number + late + 7 * copy, number)));
        }
        network.sort();
        let mut delivered = Vec::new();
        for arrivals in network.chunks(batch) {
            receiver.receive(at(0), arrivals.iter().map(|(_, number)| pdu(&pdus[*number])));
            delivered.extend(drain(&mut receiver));
        }
        // Only t-Reordering can give up the lost PDUs.
        while let Some(end) = receiver.next_event() {
            receiver.handle_timeout(end);
            delivered.extend(drain(&mut receiver));
        }
        let arrived: BTreeSet<u32> = network.iter().map(|(_, number)| *number as u32).collect();
        // Without order, only uniqueness can be checked.
        if out_of_order {
            let unsorted = delivered.clone();
            delivered.sort();
            delivered.dedup();
            prop_assert_eq!(unsorted.len(), delivered.len());
        }
        prop_assert_eq!(delivered, arrived.iter().copied().collect::<Vec<_>>());
        let counters = receiver.counters();
        prop_assert_eq!(counters.duplicate as usize, network.len() - arrived.len());
        let last = arrived.last().map_or(0, |last| last + 1) as usize;
        prop_assert_eq!(counters.given_up as usize, last - arrived.len());
        prop_assert_eq!(counters.integrity + counters.outside + counters.malformed + counters.full, 0);
    }

    /// Garbage changes only counters, and with MAC-I no garbage is delivered.
    #[test]
    fn garbage_changes_only_counters(
        long: bool, control: bool, garbage in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..40), 0..60),
    ) {
        let sn = if long { SnLen::Eighteen } else { SnLen::Twelve };
        let config = Config::data(BearerKind::Acknowledged, sn);
        let algorithm = Some(Algorithm::Aes128);
        let mut entity = Entity::new(config.clone(), security(algorithm, 1), security(algorithm, 1)).unwrap();
        let mut sender = Transmitter::new(config, security(algorithm, 1)).unwrap();
        for (number, mut bytes) in garbage.into_iter().enumerate() {
            if let Some(first) = bytes.first_mut().filter(|_| !control) {
                *first |= 0x80;
            }
            // Garbage must not keep the next genuine PDU out.
            entity.receive(Instant::ZERO, [IncomingPdu::Pdu(BytesMut::from(&bytes[..]))]);
            sender.send(Instant::ZERO, sdu(number)).unwrap();
            let sent = sender.take(1).unwrap();
            entity.receive(Instant::ZERO, sent.iter().map(pdu));
            let got = entity.poll_sdu().unwrap();
            prop_assert_eq!((got.count as usize, got.data), (number, sdu(number)));
            prop_assert_eq!(entity.poll_sdu(), None);
        }
    }
}

/// A device's result is accepted if its COUNT was right, and repeated otherwise.
#[test]
fn count_of_a_device_is_checked() {
    let config = Config::data(BearerKind::Unacknowledged, SnLen::Twelve);
    for algorithm in Algorithm::ALL {
        let keys = || security(Some(algorithm), 9);
        let mut transmitter = Transmitter::new(config.clone(), keys()).unwrap();
        let mut receiver = Receiver::new(config.clone(), keys()).unwrap();
        (0..40).for_each(|number| transmitter.send(Instant::ZERO, sdu(number)).unwrap());
        let key = Key::new(algorithm, &vec![9; algorithm.key_len()]).unwrap();
        for (count, sealed) in transmitter.take(40).unwrap().into_iter().enumerate() {
            // Every fourth PDU was opened one HFN too high.
            let taken = if count % 4 == 3 { count as u32 + 4096 } else { count as u32 };
            let number = PduNumber::new(taken, BEARER - 1, Direction::Downlink).unwrap();
            let mut opened = BytesMut::from(sealed);
            key.cipher(&Iv::cipher(algorithm, number), &mut opened[2..]).unwrap();
            receiver.receive(Instant::ZERO, [IncomingPdu::Opened { count: taken, pdu: opened }]);
        }
        assert_eq!(drain(&mut receiver), (0..40).collect::<Vec<_>>(), "{algorithm:?}");
        assert_eq!((receiver.counters().redone, receiver.counters().offloaded), (10, 30));
    }
}

/// TS 38.323 5.8, 5.9: the MAC-I covers header and SDU; then SDU and MAC-I are ciphered, except the SDAP header.
#[test]
fn pdu_matches_the_standard() {
    for algorithm in Algorithm::ALL {
        let mut config = Config::data(BearerKind::Acknowledged, SnLen::Eighteen);
        config.clear = 1;
        let mut transmitter = Transmitter::new(config, security(Some(algorithm), 5)).unwrap();
        for _ in 0..3 {
            transmitter.send(Instant::ZERO, b"\x42an IP packet".as_slice().into()).unwrap();
        }
        let pdus = transmitter.take(3).unwrap();
        let [ciphering, integrity] =
            [5, 0x85].map(|byte| Key::new(algorithm, &vec![byte; algorithm.key_len()]).unwrap());
        let number = PduNumber::new(2, BEARER - 1, Direction::Downlink).unwrap();
        let mut expected = b"\x80\x00\x02\x42an IP packet".to_vec();
        let tag = integrity.mac(&Iv::mac(algorithm, number, TagLen::FOUR), &expected, TagLen::FOUR).unwrap();
        expected.extend(tag.as_bytes());
        ciphering.cipher(&Iv::cipher(algorithm, number), &mut expected[4..]).unwrap();
        assert_eq!(pdus[2], expected, "{algorithm:?}");
    }
}

/// Sequence numbers wrap around and COUNTs do not, at both ends, with a loss at every wrap.
#[test]
fn hfn_counts_wraps_of_the_sequence_number() {
    let config = Config::data(BearerKind::Unacknowledged, SnLen::Twelve);
    let mut transmitter = Transmitter::new(config.clone(), security(Some(Algorithm::Aes128), 1)).unwrap();
    let mut receiver = Receiver::new(config, security(Some(Algorithm::Aes128), 1)).unwrap();
    let mut expected = 0;
    for number in 0..3 * 4096 + 100 {
        transmitter.send(Instant::ZERO, sdu(number)).unwrap();
        let sent = transmitter.take(1).unwrap();
        // Lost, just before the sequence number wraps.
        if number % 4096 == 4095 {
            continue;
        }
        receiver.receive(at(number as u64), sent.iter().map(pdu));
        if let Some(end) = receiver.next_event().filter(|end| *end <= at(number as u64)) {
            receiver.handle_timeout(end);
        }
        expected += drain(&mut receiver).len();
    }
    receiver.handle_timeout(Instant::MAX);
    expected += drain(&mut receiver).len();
    assert_eq!(expected, 3 * 4096 + 100 - 3);
    assert_eq!((receiver.counters().given_up, receiver.counters().integrity), (3, 0));
}

#[test]
fn gap_blocks_delivery_without_a_timer_up_to_the_window() {
    let mut config = Config::data(BearerKind::Acknowledged, SnLen::Twelve);
    config.reordering = None;
    let mut transmitter = Transmitter::new(config.clone(), security(None, 1)).unwrap();
    let mut receiver = Receiver::new(config, security(None, 1)).unwrap();
    (0..3000).for_each(|number| transmitter.send(Instant::ZERO, sdu(number)).unwrap());
    let pdus = transmitter.take(3000).unwrap();
    assert_eq!(pdus.len(), 2048, "a window's worth may be unconfirmed");
    assert!(!transmitter.has_pdus());
    receiver.receive(at(0), pdus[1..].iter().map(pdu));
    assert_eq!((receiver.poll_sdu(), receiver.next_event()), (None, None));

    let report = StatusReport::parse(&receiver.status_report().to_bytes()).unwrap();
    transmitter.handle_status(&report);
    let again = transmitter.take(10).unwrap();
    assert_eq!(again[0], pdus[0], "what is sent again is the same bytes");
    assert_eq!(again.len(), 1, "and the window is still held up by it");
    receiver.receive(at(0), again.iter().map(pdu));
    assert_eq!(drain(&mut receiver), (0..2048).collect::<Vec<_>>());
    transmitter.handle_status(&receiver.status_report());
    assert_eq!(transmitter.take(3000).unwrap().len(), 3000 - 2048);
}

#[test]
fn receiver_buffer_is_bounded() {
    let mut config = Config::data(BearerKind::Unacknowledged, SnLen::Twelve);
    let mut transmitter = Transmitter::new(config.clone(), security(None, 1)).unwrap();
    config.buffer = 10_000;
    let mut receiver = Receiver::new(config, security(None, 1)).unwrap();
    (0..20).for_each(|_| transmitter.send(Instant::ZERO, vec![0; 1000].into()).unwrap());
    let pdus = transmitter.take(20).unwrap();
    receiver.receive(at(0), pdus[1..].iter().map(pdu));
    assert_eq!(receiver.counters().full, 12, "an SDU costs 256 bytes more than its length");
    receiver.receive(at(0), [pdu(&pdus[0])]);
    assert_eq!(std::iter::from_fn(|| receiver.poll_sdu()).count(), 8);
}

#[test]
fn sdus_are_discarded_when_their_timer_ends() {
    let mut config = Config::data(BearerKind::Acknowledged, SnLen::Twelve);
    config.discard = Some(Duration::from_millis(10));
    config.buffer = 100 + 2 * 256;
    let mut transmitter = Transmitter::new(config, security(None, 1)).unwrap();
    transmitter.send(at(0), vec![0; 40].into()).unwrap();
    // The first SDU has a COUNT, the second has not.
    transmitter.take(1).unwrap();
    transmitter.send(at(5), vec![1; 40].into()).unwrap();
    assert_eq!(transmitter.send(at(5), vec![2; 40].into()), Err(SduSendError::Full));
    assert_eq!(transmitter.next_event(), Some(at(10)));
    assert_eq!(transmitter.handle_timeout(at(10)), [0], "RLC need not send it any more");
    assert_eq!(transmitter.next_event(), Some(at(15)));
    assert!(transmitter.handle_timeout(at(15)).is_empty(), "it had no COUNT yet");
    transmitter.send(at(15), vec![3; 40].into()).unwrap();
    assert_eq!(transmitter.take(9).unwrap()[0][..3], [0x80, 1, 3], "so it leaves no gap");
}

#[test]
fn acknowledged_bearer_survives_new_keys() {
    let config = Config::data(BearerKind::Acknowledged, SnLen::Twelve);
    let algorithm = |number| Algorithm::from_number(number);
    let mut near = Entity::new(config.clone(), security(algorithm(1), 1), security(algorithm(1), 2)).unwrap();
    let mut far = Entity::new(config, security(algorithm(1), 2), security(algorithm(1), 1)).unwrap();
    (0..30).for_each(|number| near.send(Instant::ZERO, sdu(number)).unwrap());
    let pdus = near.take(30).unwrap();
    // The first ten are confirmed, and every second one of the rest arrives.
    far.receive(at(0), pdus[..10].iter().chain(pdus[10..].iter().skip(1).step_by(2)).map(pdu));
    (0..10).for_each(|count| near.confirm(count));

    // Both algorithms and keys change.
    near.reestablish(security(algorithm(6), 3), security(algorithm(6), 4)).unwrap();
    far.reestablish(security(algorithm(6), 4), security(algorithm(6), 3)).unwrap();
    let report = far.take(10).unwrap();
    near.receive(at(0), report.iter().map(pdu));
    let again = near.take(100).unwrap();
    assert_eq!(again.len(), 1 + 10, "a report, and what the peer lacks");
    far.receive(at(0), again.iter().map(pdu));
    let got: Vec<u32> = std::iter::from_fn(|| far.poll_sdu()).map(|sdu| sdu.count).collect();
    assert_eq!(got, (0..30).collect::<Vec<_>>());
    assert_eq!((far.malformed(), far.receiver().counters().integrity), (0, 0));
}

#[test]
fn other_bearers_restart_at_zero_with_new_keys() {
    for (config, kept) in [(Config::data(BearerKind::Unacknowledged, SnLen::Twelve), 3), (Config::signalling(), 0)] {
        let mut transmitter = Transmitter::new(config.clone(), security(Some(Algorithm::Snow5g), 1)).unwrap();
        let mut receiver = Receiver::new(config, security(Some(Algorithm::Snow5g), 1)).unwrap();
        (0..5).for_each(|number| transmitter.send(Instant::ZERO, sdu(number)).unwrap());
        let pdus = transmitter.take(5).unwrap();
        receiver.receive(at(0), pdus[2..].iter().map(pdu));
        receiver.reestablish(security(Some(Algorithm::Snow5g), 2));
        assert_eq!(drain(&mut receiver).len(), kept);
        transmitter.reestablish(security(Some(Algorithm::Snow5g), 2)).unwrap();
        transmitter.send(Instant::ZERO, sdu(0)).unwrap();
        // Late PDUs under the old keys are rejected.
        receiver.receive(at(0), [pdu(&pdus[0]), pdu(&pdus[1])]);
        assert_eq!(receiver.counters().integrity, 2);
        receiver.receive(at(0), transmitter.take(1).unwrap().iter().map(pdu));
        assert_eq!(drain(&mut receiver), [0]);
    }
}

/// Under the same key, identity and direction, a second SDU would get COUNT 0.
#[test]
fn repeated_keys_are_refused() {
    let keys = |identity, byte| {
        let key = Key::new(Algorithm::Aes128, &[byte; 16]).unwrap();
        Security::new(identity, Direction::Uplink).unwrap().ciphered(key)
    };
    for config in [Config::data(BearerKind::Unacknowledged, SnLen::Twelve), Config::signalling()] {
        let mut transmitter = Transmitter::new(config, keys(1, 1)).unwrap();
        assert_eq!(transmitter.reestablish(keys(1, 1)), Ok(()), "no COUNT was used");
        transmitter.send(Instant::ZERO, sdu(1)).unwrap();
        let first = transmitter.take(1).unwrap();
        // One reused key is enough for a refusal.
        let other_mac = Key::new(Algorithm::Zuc128, &[3; 16]).unwrap();
        assert_eq!(transmitter.reestablish(keys(1, 1).authenticated(other_mac)), Err(RepeatedKeys), "same key stream");
        transmitter.send(Instant::ZERO, sdu(1)).unwrap();
        assert_ne!(transmitter.take(1).unwrap(), first, "it goes on with the next COUNT");
        assert_eq!(transmitter.reestablish(keys(2, 1)), Ok(()), "another identity is another key stream");
    }
    // An acknowledged bearer keeps its COUNTs and sends the same bytes again.
    let mut transmitter = Transmitter::new(Config::data(BearerKind::Acknowledged, SnLen::Twelve), keys(1, 1)).unwrap();
    transmitter.send(Instant::ZERO, sdu(1)).unwrap();
    let first = transmitter.take(1).unwrap();
    assert_eq!(transmitter.reestablish(keys(1, 1)), Ok(()));
    assert_eq!(transmitter.take(1).unwrap(), first);
}

/// A device's verdict depends on a COUNT that may be wrong when the PDU reaches the receiver.
#[test]
fn rejected_pdus_are_opened_with_the_count_of_the_window() {
    let config = Config::data(BearerKind::Unacknowledged, SnLen::Twelve);
    let keys = security(Some(Algorithm::Snow3g), 1);
    let mut transmitter = Transmitter::new(config.clone(), keys.clone()).unwrap();
    let mut receiver = Receiver::new(config.clone(), keys.clone()).unwrap();
    transmitter.send(Instant::ZERO, sdu(0)).unwrap();
    let sent = transmitter.take(1).unwrap();
    let rejected = |wrong| {
        let mut pdus = [(wrong, BytesMut::from(&sent[0][..]))];
        assert_eq!(keys.open(config.clear_bytes(), &mut pdus), [wrong == 0]);
        let [(count, pdu)] = pdus;
        IncomingPdu::Rejected { count, pdu }
    };
    receiver.receive(at(0), [rejected(4096)]);
    assert_eq!((drain(&mut receiver), receiver.counters().redone, receiver.counters().integrity), (vec![0], 1, 0));
    let mut forged = BytesMut::from(&sent[0][..]);
    forged[4] ^= 1;
    receiver.receive(at(0), [IncomingPdu::Rejected { count: 0, pdu: forged }]);
    assert_eq!((receiver.counters().integrity, receiver.counters().offloaded), (1, 0));
}

/// The window's edges (TS 38.323 5.2.2.1): the sequence number at RX_DELIV - window belongs to the next HFN only below
/// that.
#[test]
fn counts_at_the_edges_of_the_window_are_found() {
    let window = u64::from(SnLen::Twelve.window());
    for deliver in [0, 1, window - 1, window, window + 1, 4095, 4096, 3 * window, 3 * window + 17, (1 << 32) - 1] {
        for count in deliver.saturating_sub(window)..(deliver + window).min(1 << 32) {
            let sn = (count % 4096) as u16 | 0x8000;
            assert_eq!(SnLen::Twelve.count_near(deliver, &sn.to_be_bytes()), Some(count as u32), "RX_DELIV {deliver}");
        }
    }
}

/// An early SDU is charged even if empty, and does not keep its datagram's receive buffer.
#[test]
fn early_sdus_are_charged_at_their_true_size() {
    for out_of_order in [false, true] {
        let mut config = Config::data(BearerKind::Unacknowledged, SnLen::Eighteen);
        (config.buffer, config.reordering, config.out_of_order) = (1 << 20, None, out_of_order);
        let mut receiver = Receiver::new(config, Security::new(1, Direction::Uplink).unwrap()).unwrap();
        // COUNT 0 is missing, so every SDU is early.
        for count in 1..100_000u32 {
            receiver.receive(at(0), [IncomingPdu::Pdu(BytesMut::from(&(count | 0x80_0000).to_be_bytes()[1..]))]);
        }
        let kept = 99_999 - receiver.counters().full;
        let (least, most) = if out_of_order { (4096, 1 << 14) } else { (1024, 4096) };
        assert!((least..=most).contains(&kept), "{kept} of {out_of_order}");
        // The missing PDU frees the buffer.
        receiver.receive(at(0), [IncomingPdu::Pdu(BytesMut::from(&[0x80, 0, 0][..]))]);
        assert_eq!(receiver.counters().delivered, kept + 1);
        receiver
            .receive(at(0), [IncomingPdu::Pdu(BytesMut::from(&((kept as u32 + 9) | 0x80_0000).to_be_bytes()[1..]))]);
        assert_eq!(receiver.counters().full, 99_999 - kept, "there is room again");
    }
}

#[test]
fn early_sdus_do_not_keep_receive_buffers() {
    let mut config = Config::data(BearerKind::Unacknowledged, SnLen::Twelve);
    config.reordering = None;
    let mut receiver = Receiver::new(config, Security::new(1, Direction::Uplink).unwrap()).unwrap();
    let mut buffer = BytesMut::with_capacity(2048);
    buffer.extend_from_slice(b"\x80\x01early");
    let pdu = buffer.split();
    receiver.receive(at(0), [IncomingPdu::Pdu(pdu)]);
    // `BytesMut` gives the memory back to its last owner.
    assert!(buffer.try_reclaim(2048), "the SDU is a copy");
    receiver.receive(at(0), [IncomingPdu::Pdu(BytesMut::from(&b"\x80\x00first"[..]))]);
    let got: Vec<_> = std::iter::from_fn(|| receiver.poll_sdu()).map(|sdu| sdu.data).collect();
    assert_eq!(got, ["first", "early"]);
}

/// One SDU always fits, however small the buffer.
#[test]
fn small_buffer_takes_one_sdu_at_a_time() {
    let mut config = Config::data(BearerKind::Unacknowledged, SnLen::Twelve);
    config.buffer = 1000;
    let mut transmitter = Transmitter::new(config, security(None, 1)).unwrap();
    transmitter.send(at(0), vec![0; 9000].into()).unwrap();
    assert_eq!(transmitter.send(at(0), vec![0; 1].into()), Err(SduSendError::Full));
    assert_eq!(transmitter.take(9).unwrap().len(), 1);
    transmitter.send(at(0), vec![0; 800].into()).unwrap();
}
