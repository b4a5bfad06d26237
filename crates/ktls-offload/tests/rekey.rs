//! KeyUpdates, asked for and not, in software and while a device works with the key that is changed.

mod rig;

use bytes::Bytes;
use ktls_offload::{
    AlertDescription, FixedKeys, KeySchedule, KtlsStream, NotOffloaded, Offload, Outcome, ScheduleError, TlsError,
    TrafficKeys,
};
use offload_api::{SegmentStream, TlsKey};
use rig::{Counting, Cut, SUITES, Wire, data, streams};
use std::future::poll_fn;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

#[tokio::test]
async fn keys_change_in_both_directions_when_asked() {
    for suite in SUITES {
        let wire = Wire::new(1);
        let (mut near, mut far) = streams(&wire, suite);
        let mut got = vec![0; 3];
        for round in 0..5u64 {
            near.write_all(b"one").await.unwrap();
            near.update_keys(true).unwrap();
            near.write_all(b"two").await.unwrap();
            far.read_exact(&mut got).await.unwrap();
            far.read_exact(&mut got).await.unwrap();
            assert_eq!(got, b"two");
            far.write_all(b"tri").await.unwrap();
            near.read_exact(&mut got).await.unwrap();
            assert_eq!(got, b"tri");
            assert_eq!((near.counters().tx_rekey_ok, near.counters().rx_rekey_ok), (round + 1, round + 1));
            assert_eq!((far.counters().tx_rekey_ok, far.counters().rx_rekey_ok), (round + 1, round + 1));
        }
    }
}

#[tokio::test]
async fn a_peer_that_keeps_asking_is_answered_once_until_data_go() {
    let wire = Wire::new(2);
    let (mut near, mut far) = streams(&wire, SUITES[0]);
    for _ in 0..10 {
        near.update_keys(true).unwrap();
    }
    near.write_all(b"x").await.unwrap();
    far.read_exact(&mut [0]).await.unwrap();
    assert_eq!(far.counters().rx_rekey_received, 10);
    assert_eq!(far.counters().tx_rekey_ok, 1);
    far.write_all(b"y").await.unwrap();
    assert_eq!(far.counters().tx_rekey_ok, 2, "the later requests are answered before the data");
    near.read_exact(&mut [0]).await.unwrap();
    assert_eq!(near.counters().rx_rekey_ok, 2);

    let wire = Wire::new(2);
    let (mut near, mut far) = streams(&wire, SUITES[0]);
    for _ in 0..40 {
        near.update_keys(false).unwrap();
    }
    let error = far.next_chunk().await.unwrap_err();
    assert_eq!(error.get_ref().unwrap().downcast_ref(), Some(&TlsError::TooManyKeyUpdates));
}

#[tokio::test]
async fn keys_change_by_themselves_before_they_are_used_up() {
    let wire = Wire::new(3);
    let (mut near, mut far) = streams(&wire, SUITES[1]);
    near.set_record_size(100);
    near.set_records_per_key(4);
    let payload = data(3, 5000);
    near.send_chunk(Bytes::from(payload.clone())).await.unwrap();
    near.close().await.unwrap();
    let mut got = Vec::new();
    far.read_to_end(&mut got).await.unwrap();
    assert!(got == payload);
    assert_eq!(near.counters().tx_rekey_ok, 16, "three of data and a KeyUpdate each");
    assert_eq!(far.counters().rx_rekey_ok, 16);
}

#[tokio::test]
async fn a_key_that_is_older_than_it_may_be_is_changed_at_once() {
    let wire = Wire::new(3);
    let (mut near, mut far) = streams(&wire, SUITES[1]);
    for _ in 0..5 {
        near.write_all(b"x").await.unwrap();
    }
    near.set_records_per_key(4);
    for rekeys in [1, 1, 1, 2] {
        near.write_all(b"y").await.unwrap();
        assert_eq!(near.counters().tx_rekey_ok, rekeys);
    }
    near.close().await.unwrap();
    let mut got = Vec::new();
    far.read_to_end(&mut got).await.unwrap();
    assert_eq!(got, b"xxxxxyyyy");
}

#[tokio::test]
async fn a_key_with_no_room_for_a_key_update_ends_the_stream_with_the_schedule_where_it_was() {
    let (_, _, keys) = Counting::pair(SUITES[0]);
    let keys = TrafficKeys { transmit: (u64::MAX - 2, keys.transmit.1), ..keys };
    let wire = Wire::new(4);
    let (a, b) = wire.ends();
    let mut near = KtlsStream::new(a, keys.clone(), Box::new(NeverAsked)).unwrap();
    let mut far = KtlsStream::new(b, keys.swapped(), Box::new(FixedKeys)).unwrap();
    for _ in 0..2 {
        let error = near.write_all(b"x").await.unwrap_err();
        assert_eq!(error.get_ref().unwrap().downcast_ref(), Some(&TlsError::KeyExhausted));
    }
    assert_eq!((near.counters().tx_rekey_error, near.counters().tx_rekey_ok), (1, 0));
    let error = far.next_chunk().await.unwrap_err();
    let expected = TlsError::AlertReceived(AlertDescription::INTERNAL_ERROR);
    assert_eq!(error.get_ref().unwrap().downcast_ref(), Some(&expected));
}

#[tokio::test]
async fn without_a_next_key_the_stream_ends_before_a_number_is_used_twice() {
    let (_, _, keys) = Counting::pair(SUITES[0]);
    let (a, b) = Wire::new(4).ends();
    let mut near = KtlsStream::new(a, keys.clone(), Box::new(FixedKeys)).unwrap();
    let mut far = KtlsStream::new(b, keys.swapped(), Box::new(FixedKeys)).unwrap();
    near.set_records_per_key(3);
    near.write_all(b"1").await.unwrap();
    near.write_all(b"2").await.unwrap();
    let error = near.write_all(b"3").await.unwrap_err();
    let expected = TlsError::Schedule(ScheduleError::NoMoreKeys);
    assert_eq!(error.get_ref().unwrap().downcast_ref(), Some(&expected));
    assert_eq!(near.counters().tx_rekey_error, 1);
    let mut got = Vec::new();
    assert!(far.read_to_end(&mut got).await.is_err(), "an internal_error alert ends it");
    assert_eq!(got, b"12");
}

#[tokio::test]
async fn a_transmit_context_goes_after_the_last_record_of_its_key() {
    let wire = Wire::new(5).with_devices(0.0, 5);
    let (mut near, mut far) = streams(&wire, SUITES[0]);
    let handle = near.offload(Offload { tx: true, rx: false }).tx.handle().unwrap();
    wire.lock()[0].hold = true;
    near.send_chunk(Bytes::from(data(1, 50_000))).await.unwrap();
    near.update_keys(false).unwrap();
    near.send_chunk(Bytes::from(data(2, 50_000))).await.unwrap();
    assert_eq!((near.counters().tx_records_device, near.counters().tx_records_sw), (5, 4));
    assert!(wire.lock()[0].released.is_empty(), "records of the old key are still queued");
    wire.lock()[0].hold = false;
    wire.pump(0, usize::MAX);
    assert_eq!(wire.lock()[0].released, [handle]);
    // The device may have the new key as well.
    assert!(near.offload(Offload { tx: true, rx: false }).tx.handle().is_some_and(|again| again != handle));
    near.send_chunk(Bytes::from(data(3, 50_000))).await.unwrap();
    drop(near);
    let mut got = Vec::new();
    far.read_to_end(&mut got).await.unwrap();
    assert!(got == [data(1, 50_000), data(2, 50_000), data(3, 50_000)].concat());
    assert_eq!(wire.lock()[0].sealed_units, 0);
}

#[tokio::test]
async fn what_a_device_decrypted_with_a_key_that_had_changed_is_restored() {
    for (cut, miss) in [(Cut::Every(100), 0.0), (Cut::Every(1448), 0.0), (Cut::UpTo(300), 0.3), (Cut::Every(37), 0.5)] {
        for suite in SUITES {
            let wire = Wire::new(6).with_devices(miss, 6);
            wire.lock()[0].cut = cut;
            let (mut near, mut far) = streams(&wire, suite);
            near.set_record_size(1000);
            near.send_chunk("go".into()).await.unwrap();
            far.next_chunk().await.unwrap();
            far.offload(Offload { tx: false, rx: true });
            far.ready().await.unwrap();
            // All of it arrives at the device before anybody opens the KeyUpdates, which change the key twice.
            let mut expected = Vec::new();
            for round in 0..3 {
                let payload = data(round, 7_500);
                near.send_chunk(Bytes::from(payload.clone())).await.unwrap();
                expected.extend(payload);
                if round < 2 {
                    near.update_keys(false).unwrap();
                }
            }
            near.close().await.unwrap();
            let mut got = Vec::new();
            far.read_to_end(&mut got).await.unwrap();
            assert!(got == expected, "{cut:?} {suite:?}");
            assert_eq!(far.counters().rx_rekey_ok, 2);
            // A packet with a record's end in it has a wrong tag, so only smaller ones show it.
            let restored = far.counters().rx_restored_bytes > 0;
            assert_eq!(restored, !matches!(cut, Cut::Every(1448)), "{cut:?}: the model decrypts what it should not");
            assert_eq!(far.counters().decrypt_error, 0);
            assert_eq!(far.counters().curr_rx_sw, 1);
        }
    }
}

#[tokio::test]
async fn the_device_may_have_the_next_key() {
    let wire = Wire::new(7).with_devices(0.0, 7);
    let (mut near, mut far) = streams(&wire, SUITES[2]);
    let mut handles = Vec::new();
    for round in 0..4 {
        near.update_keys(false).unwrap();
        near.send_chunk("go".into()).await.unwrap();
        assert_eq!(far.next_chunk().await.unwrap().unwrap(), "go");
        far.offload(Offload { tx: false, rx: true });
        let Outcome::Device(handle) = far.ready().await.unwrap() else { panic!("refused") };
        handles.push(handle);
        near.send_chunk(Bytes::from(data(round, 9_000))).await.unwrap();
        let segment = poll_fn(|cx| far.poll_segment(cx)).await.unwrap().unwrap();
        assert_eq!(segment.meta.context, Some(handle));
        let mut rest = vec![0; 9_000 - segment.data.len()];
        far.consume(segment.data.len());
        far.read_exact(&mut rest).await.unwrap();
        assert!([&segment.data[..], &rest].concat() == data(round, 9_000));
    }
    assert_eq!(far.counters().rx_records_device, 7, "four of data, three KeyUpdates");
    assert_eq!(wire.lock()[1].device.as_ref().unwrap().removed, handles[..3]);
}

#[tokio::test]
async fn what_one_context_decrypted_outlives_the_keys_that_came_since() {
    let wire = Wire::new(8).with_devices(0.0, 8);
    // Packets smaller than a record: the device decrypts some with a key that is no longer the one.
    wire.lock()[0].cut = Cut::Every(37);
    let (mut near, mut far) = streams(&wire, SUITES[0]);
    near.send_chunk("go".into()).await.unwrap();
    far.next_chunk().await.unwrap();
    far.offload(Offload { tx: false, rx: true });
    far.ready().await.unwrap();
    for round in 0..12 {
        near.update_keys(false).unwrap();
        near.send_chunk(Bytes::from(data(round, 1000))).await.unwrap();
    }
    for round in 0..12 {
        let mut got = vec![0; 1000];
        far.read_exact(&mut got).await.unwrap();
        assert!(got == data(round, 1000), "round {round}");
        let outcome = far.offload(Offload { tx: false, rx: true }).rx;
        // The first context decrypted all of it, so seven may follow while some of that is unread.
        let refused = outcome == Outcome::Refused(NotOffloaded::Unread);
        assert_eq!(refused, (7..11).contains(&round), "round {round}: {outcome:?}");
    }
    assert!(far.counters().rx_restored_bytes > 0);
    assert_eq!(far.counters().decrypt_error, 0);
}

/// The schedule of an end that has no business asking for a key.
struct NeverAsked;

impl KeySchedule for NeverAsked {
    fn next_transmit_key(&mut self) -> Result<TlsKey, ScheduleError> {
        panic!("asked for a key that nothing can announce")
    }

    fn next_receive_key(&mut self) -> Result<TlsKey, ScheduleError> {
        panic!("asked for a key that nobody announced")
    }

    fn store_ticket(&mut self, _: &[u8]) -> Result<(), ScheduleError> {
        Ok(())
    }
}
