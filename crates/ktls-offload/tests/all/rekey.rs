//! KeyUpdates, requested and not, in software and while a device uses the old key.

use crate::rig;

use bytes::Bytes;
use ktls_offload::{
    AlertDescription, FixedKeys, KeySchedule, KtlsStream, NotOffloaded, Offload, OffloadOutcome, ScheduleError,
    TlsCounters, TlsError, TrafficKeys,
};
use offload_api::{ContextRefusal, SegmentStream, TlsKey, TlsSuite, TlsVersion, TxTag};
use proptest::prelude::*;
use rig::{CountingSchedule, MockWire, SUITES, SegmentLengths, TestCipher, data, streams};
use std::future::poll_fn;
use std::task::Poll;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

#[tokio::test]
async fn keys_change_in_both_directions_when_asked() {
    for suite in SUITES {
        let wire = MockWire::new(1);
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
    let wire = MockWire::new(2);
    let (mut near, mut far) = streams(&wire, SUITES[0]);
    for _ in 0..10 {
        near.update_keys(true).unwrap();
    }
    near.write_all(b"x").await.unwrap();
    far.read_exact(&mut [0]).await.unwrap();
    assert_eq!(far.counters().rx_rekey_received, 10);
    assert_eq!(far.counters().tx_rekey_ok, 1);
    far.write_all(b"y").await.unwrap();
    assert_eq!(far.counters().tx_rekey_ok, 2, "later requests are answered before the data");
    near.read_exact(&mut [0]).await.unwrap();
    assert_eq!(near.counters().rx_rekey_ok, 2);
}

#[tokio::test]
async fn keys_change_by_themselves_before_they_are_used_up() {
    let wire = MockWire::new(3);
    let (mut near, mut far) = streams(&wire, SUITES[1]);
    // 50 records, with at most four per key including the KeyUpdate.
    near.set_record_size(100);
    near.set_records_per_key(4);
    let payload = data(3, 5000);
    near.send_chunk(Bytes::from(payload.clone())).await.unwrap();
    near.close().await.unwrap();
    let mut got = Vec::new();
    far.read_to_end(&mut got).await.unwrap();
    assert!(got == payload);
    assert_eq!(near.counters().tx_rekey_ok, 16, "three data records and a KeyUpdate per key");
    assert_eq!(far.counters().rx_rekey_ok, 16);
}

#[tokio::test]
async fn a_key_that_is_older_than_it_may_be_is_changed_at_once() {
    let wire = MockWire::new(3);
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
async fn stream_ends_without_room_for_a_key_update() {
    let (_, _, keys) = CountingSchedule::pair(SUITES[0]);
    // The first record number is beyond the key's limit already.
    let keys = TrafficKeys { transmit: (u64::MAX - 2, keys.transmit.1), ..keys };
    let wire = MockWire::new(4);
    let (a, b) = wire.ends();
    let mut near = KtlsStream::new(a, keys.clone(), Box::new(UnusedSchedule)).unwrap();
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

/// TLS 1.2 has no key updates. Beyond the key's limit, writes are refused, and the peer learns that data are missing.
#[tokio::test]
async fn a_key_that_is_used_up_ends_a_stream_of_tls12() {
    let cipher = TestCipher { version: TlsVersion::Tls12, suite: TlsSuite::Aes128Gcm };
    for device in [false, true] {
        let wire = MockWire::new(5).with_devices(0.0, 5);
        let (mut near, mut far) = streams(&wire, cipher);
        if device {
            assert!(near.offload(Offload { tx: true, rx: false }).tx.handle().is_some());
        }
        near.set_records_per_key(3);
        for text in ["1", "2", "3"] {
            SegmentStream::send(&mut near, text.into(), TxTag::PLAIN);
        }
        // `send` returns no error; the next call of `poll_room` reports it.
        SegmentStream::send(&mut near, "4".into(), TxTag::PLAIN);
        SegmentStream::flush(&mut near);
        let error = poll_fn(|cx| near.poll_room(cx)).await.unwrap_err();
        assert_eq!(error.get_ref().unwrap().downcast_ref(), Some(&TlsError::KeyExhausted));
        assert!(near.close().await.is_err(), "incomplete data must not end orderly");
        let counters = near.counters();
        let sealed = if device { (1, 3) } else { (4, 0) };
        assert_eq!((counters.tx_records_sw, counters.tx_records_device), sealed, "software seals the alert");
        let mut got = Vec::new();
        let error = far.read_to_end(&mut got).await.unwrap_err();
        let expected = TlsError::AlertReceived(AlertDescription::INTERNAL_ERROR);
        assert_eq!(error.get_ref().unwrap().downcast_ref(), Some(&expected));
        assert_eq!(got, b"123");
    }
}

#[tokio::test]
async fn stream_without_a_next_key_ends_before_a_number_repeats() {
    let (_, _, keys) = CountingSchedule::pair(SUITES[0]);
    let (a, b) = MockWire::new(4).ends();
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
    let wire = MockWire::new(5).with_devices(0.0, 5);
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
    // The device may get the new key too.
    assert!(near.offload(Offload { tx: true, rx: false }).tx.handle().is_some_and(|again| again != handle));
    near.send_chunk(Bytes::from(data(3, 50_000))).await.unwrap();
    near.close().await.unwrap();
    let mut got = Vec::new();
    far.read_to_end(&mut got).await.unwrap();
    assert!(got == [data(1, 50_000), data(2, 50_000), data(3, 50_000)].concat());
    assert_eq!(wire.lock()[0].sealed_units, 0);
}

/// Like Linux: software seals with the new key until the old key's records are acknowledged, then the device.
#[tokio::test]
async fn transmit_key_moves_to_the_device_after_the_last_ack() {
    let wire = MockWire::new(5).with_devices(0.0, 5);
    let (mut near, mut far) = streams(&wire, SUITES[0]);
    near.offload(Offload { tx: true, rx: false }).tx.handle().unwrap();
    wire.lock()[0].hold = true;
    near.send_chunk("old".into()).await.unwrap();
    near.update_keys(false).unwrap();
    near.send_chunk("new, software".into()).await.unwrap();
    assert_eq!(near.transmit_context(), None, "records of the old context are in flight");
    assert_eq!(near.counters().tx_rekey_device, 0);
    wire.lock()[0].hold = false;
    wire.pump(0, usize::MAX);
    near.send_chunk("new, device".into()).await.unwrap();
    assert!(near.transmit_context().is_some());
    assert_eq!((near.counters().tx_rekey_ok, near.counters().tx_rekey_device), (1, 1));
    // A key that changes again before the device has it stays in software, and so does a refused key.
    wire.lock()[0].hold = true;
    near.update_keys(false).unwrap();
    near.update_keys(false).unwrap();
    wire.lock()[0].hold = false;
    wire.pump(0, usize::MAX);
    wire.lock()[0].device.as_mut().unwrap().refuse = Some(ContextRefusal::Unsupported);
    near.send_chunk("software".into()).await.unwrap();
    assert_eq!((near.counters().tx_rekey_sw, near.counters().curr_tx_sw), (2, 1));
    // A key that waits when the direction ends has the third outcome.
    wire.lock()[0].device.as_mut().unwrap().refuse = None;
    near.offload(Offload { tx: true, rx: false }).tx.handle().unwrap();
    near.update_keys(false).unwrap();
    near.close().await.unwrap();
    check_rekeys(near.counters());
    assert_eq!(near.counters().tx_rekey_aborted, 1);
    let mut got = Vec::new();
    far.read_to_end(&mut got).await.unwrap();
    assert_eq!(got, b"oldnew, softwarenew, devicesoftware");
    assert_eq!((far.counters().rx_rekey_ok, far.counters().rx_rekey_sw), (4, 4));
}

/// The transport drops a sealer when the next sealer is installed, but a next key may never come.
#[tokio::test]
async fn sealer_without_a_key_follows_the_replaced_sealer() {
    for end in [|stream: &mut KtlsStream<rig::MockTransport>| stream.update_keys(false).unwrap(), SegmentStream::finish]
    {
        let wire = MockWire::new(5).with_devices(0.0, 5);
        let (mut near, _far) = streams(&wire, SUITES[0]);
        near.offload(Offload { tx: true, rx: false }).tx.handle().unwrap();
        near.send_chunk("sealed by the device".into()).await.unwrap();
        assert_eq!(wire.lock()[0].sealers(), 1);
        wire.lock()[0].device.as_mut().unwrap().refuse = Some(ContextRefusal::NoSpace);
        end(&mut near);
        assert_eq!(wire.lock()[0].sealers(), 2);
    }
}

#[tokio::test]
async fn a_receive_key_goes_to_the_device_by_itself() {
    let wire = MockWire::new(7).with_devices(0.0, 7);
    let (mut near, mut far) = streams(&wire, SUITES[1]);
    near.send_chunk("go".into()).await.unwrap();
    far.next_chunk().await.unwrap();
    far.offload(Offload { tx: false, rx: true });
    far.ready().await.unwrap();
    for round in 1..5 {
        near.update_keys(false).unwrap();
        near.send_chunk("in software: it arrived with the KeyUpdate".into()).await.unwrap();
        far.next_chunk().await.unwrap();
        near.send_chunk(Bytes::from(data(round, 500))).await.unwrap();
        assert!(far.next_chunk().await.unwrap().unwrap() == data(round, 500));
        assert_eq!((far.counters().rx_rekey_ok, far.counters().rx_rekey_device), (round, round));
        assert_eq!(far.counters().rx_records_device, 2 * round);
    }
}

/// Checks that the outcomes of changed keys add up, once both directions have ended.
fn check_rekeys(counters: &TlsCounters) {
    let TlsCounters { tx_rekey_device, tx_rekey_sw, tx_rekey_aborted, .. } = *counters;
    assert_eq!(tx_rekey_device + tx_rekey_sw + tx_rekey_aborted, counters.tx_rekey_ok, "{counters:?}");
    let TlsCounters { rx_rekey_device, rx_rekey_sw, rx_rekey_aborted, .. } = *counters;
    assert_eq!(rx_rekey_device + rx_rekey_sw + rx_rekey_aborted, counters.rx_rekey_ok, "{counters:?}");
    assert!(tx_rekey_aborted <= 1 && rx_rekey_aborted <= 1, "{counters:?}");
}

#[derive(Clone, Debug)]
enum RekeyStep {
    Write(usize),
    Rekey(bool),
    Offload(Offload),
    Read,
    Refuse(Option<ContextRefusal>),
    Reset,
    Hold(bool),
}

fn turns() -> impl Strategy<Value = Vec<(usize, RekeyStep)>> {
    let ask = (any::<bool>(), any::<bool>()).prop_map(|(tx, rx)| RekeyStep::Offload(Offload { tx, rx }));
    let turn = prop_oneof![
        4 => (1usize..3_000).prop_map(RekeyStep::Write),
        4 => any::<bool>().prop_map(RekeyStep::Rekey),
        2 => Just(RekeyStep::Offload(Offload::BOTH)),
        1 => ask,
        3 => Just(RekeyStep::Read),
        1 => prop::sample::select(vec![None, Some(ContextRefusal::Unsupported), Some(ContextRefusal::NoSpace), Some(ContextRefusal::Busy)]).prop_map(RekeyStep::Refuse),
        1 => Just(RekeyStep::Reset),
        1 => any::<bool>().prop_map(RekeyStep::Hold),
    ];
    prop::collection::vec((0usize..2, turn), 1..60)
}

proptest! {
    /// Invariant of key updates: the keys received by the device, kept in software, or abandoned at the end add up to
    /// the KeyUpdates sent, in both directions. All data arrive.
    #[test]
    fn key_counters_add_up(turns in turns(), seed: u64, miss in prop_oneof![Just(0.0), 0.0..0.3f64]) {
        let wire = MockWire::new(seed).with_devices(miss, seed);
        let streams = streams(&wire, SUITES[0]);
        let mut ends = [streams.0, streams.1];
        let (mut written, mut read) = ([Vec::new(), Vec::new()], [Vec::new(), Vec::new()]);
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            for (side, turn) in turns {
                let end = &mut ends[side];
                match turn {
                    RekeyStep::Write(bytes) => {
                        let payload = data(written[side].len() as u64, bytes);
                        written[side].extend_from_slice(&payload);
                        end.send_chunk(payload.into()).await.unwrap();
                    }
                    // Each KeyUpdate is followed by data, because a reader limits KeyUpdates without data.
                    RekeyStep::Rekey(both) => {
                        let payload = data(7, 1);
                        written[side].extend_from_slice(&payload);
                        end.update_keys(both).unwrap();
                        end.send_chunk(payload.into()).await.unwrap();
                    }
                    RekeyStep::Offload(ask) => {
                        end.offload(ask);
                    }
                    RekeyStep::Read => read_what_is_there(end, &mut read[side]).await,
                    RekeyStep::Refuse(refusal) => wire.lock()[side].device.as_mut().unwrap().refuse = refusal,
                    RekeyStep::Reset => wire.lock()[side].device.as_mut().unwrap().reset(),
                    RekeyStep::Hold(hold) => {
                        wire.lock()[side].hold = hold;
                        // Held data must leave when the hold ends.
                        if !hold {
                            wire.pump(side, usize::MAX);
                        }
                    }
                }
            }
            for side in 0..2 {
                wire.lock()[side].hold = false;
                wire.pump(side, usize::MAX);
            }
            for end in &mut ends {
                end.close().await.unwrap();
            }
            for (end, read) in ends.iter_mut().zip(&mut read) {
                end.read_to_end(read).await.unwrap();
            }
        });
        prop_assert!(read[1] == written[0] && read[0] == written[1]);
        for (end, peer) in [(0, 1), (1, 0)] {
            check_rekeys(ends[end].counters());
            prop_assert_eq!(ends[end].counters().tx_rekey_ok, ends[peer].counters().rx_rekey_received);
        }
    }
}

async fn read_what_is_there(end: &mut KtlsStream<rig::MockTransport>, read: &mut Vec<u8>) {
    loop {
        let chunk = poll_fn(|cx| match end.poll_chunk(cx) {
            Poll::Ready(chunk) => Poll::Ready(chunk),
            Poll::Pending => Poll::Ready(Ok(None)),
        });
        let Some(chunk) = chunk.await.unwrap() else { return };
        read.extend_from_slice(&chunk);
    }
}

#[tokio::test]
async fn bytes_decrypted_with_a_replaced_key_are_restored() {
    for (cut, miss) in [
        (SegmentLengths::Every(100), 0.0),
        (SegmentLengths::Every(1448), 0.0),
        (SegmentLengths::UpTo(300), 0.3),
        (SegmentLengths::Every(37), 0.5),
    ] {
        for suite in SUITES {
            let wire = MockWire::new(6).with_devices(miss, 6);
            wire.lock()[0].cut = cut;
            let (mut near, mut far) = streams(&wire, suite);
            near.set_record_size(1000);
            near.send_chunk("go".into()).await.unwrap();
            far.next_chunk().await.unwrap();
            far.offload(Offload { tx: false, rx: true });
            far.ready().await.unwrap();
            // All data reach the device before the reader opens the KeyUpdates, which change the key twice.
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
            // A packet with the end of a record has a wrong tag and passes up as ciphertext. Only smaller packets are
            // garbled.
            let restored = far.counters().rx_restored_bytes > 0;
            assert_eq!(
                restored,
                !matches!(cut, SegmentLengths::Every(1448)),
                "{cut:?}: the model decrypts with the old key"
            );
            assert_eq!(far.counters().decrypt_error, 0);
            assert_eq!(far.counters().rx_sw, 3, "at first, and after each of two keys");
        }
    }
}

#[tokio::test]
async fn the_device_may_have_the_next_key() {
    let wire = MockWire::new(7).with_devices(0.0, 7);
    let (mut near, mut far) = streams(&wire, SUITES[2]);
    let mut handles = Vec::new();
    for round in 0..4 {
        near.update_keys(false).unwrap();
        near.send_chunk("go".into()).await.unwrap();
        assert_eq!(far.next_chunk().await.unwrap().unwrap(), "go");
        far.offload(Offload { tx: false, rx: true });
        let OffloadOutcome::Device(handle) = far.ready().await.unwrap() else { panic!("refused") };
        handles.push(handle);
        near.send_chunk(Bytes::from(data(round, 9_000))).await.unwrap();
        let segment = poll_fn(|cx| far.poll_segment(cx)).await.unwrap().unwrap();
        assert_eq!(segment.meta.tls_context(), Some(handle));
        let mut rest = vec![0; 9_000 - segment.data.len()];
        far.consume(segment.data.len());
        far.read_exact(&mut rest).await.unwrap();
        assert!([&segment.data[..], &rest].concat() == data(round, 9_000));
    }
    assert_eq!(far.counters().rx_records_device, 7, "four of data, three KeyUpdates");
    assert_eq!(wire.lock()[1].device.as_ref().unwrap().removed, handles[..3]);
}

#[tokio::test]
async fn bytes_of_one_context_survive_later_keys() {
    let wire = MockWire::new(8).with_devices(0.0, 8);
    // With packets smaller than a record, the device decrypts some with an outdated key.
    wire.lock()[0].cut = SegmentLengths::Every(37);
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
        // The first context decrypted all data, so at most seven more may follow while some are unread.
        let refused = outcome == OffloadOutcome::Refused(NotOffloaded::Unread);
        assert_eq!(refused, (7..11).contains(&round), "round {round}: {outcome:?}");
    }
    assert!(far.counters().rx_restored_bytes > 0);
    assert_eq!(far.counters().decrypt_error, 0);
}

/// A key schedule that must not be used.
struct UnusedSchedule;

impl KeySchedule for UnusedSchedule {
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
