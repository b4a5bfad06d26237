//! Return to a device after a temporary refusal, and peers that change keys without sending data.

use crate::rig;

use ktls_offload::{KtlsStream, NotOffloaded, Offload, OffloadOutcome};
use offload_api::{ContextRefusal, Contexts, TlsSuite};
use rig::{MockTransport, MockWire, streams};
use std::task::Poll;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

const SUITE: TlsSuite = TlsSuite::Aes128Gcm;
const TX: Offload = Offload { tx: true, rx: false };
const RX: Offload = Offload { tx: false, rx: true };

fn refuse(wire: &MockWire, with: Option<ContextRefusal>) {
    wire.lock().iter_mut().for_each(|half| half.device.as_mut().unwrap().refuse = with);
}

async fn exchange(near: &mut KtlsStream<MockTransport>, far: &mut KtlsStream<MockTransport>, records: usize) {
    for _ in 0..records {
        near.send_chunk("more".into()).await.unwrap();
        assert_eq!(far.next_chunk().await.unwrap().unwrap(), "more");
    }
}

/// Creates two streams: one sends to a device, the other receives from one.
async fn offloaded(wire: &MockWire) -> (KtlsStream<MockTransport>, KtlsStream<MockTransport>) {
    let (mut near, mut far) = streams(wire, SUITE);
    exchange(&mut near, &mut far, 1).await;
    near.offload(TX).tx.handle().unwrap();
    far.offload(RX);
    far.ready().await.unwrap().handle().unwrap();
    (near, far)
}

#[tokio::test]
async fn a_device_that_is_busy_when_a_key_changes_gets_it_later() {
    for passing in [ContextRefusal::Busy, ContextRefusal::Resetting] {
        let wire = MockWire::new(7).with_devices(0.0, 7);
        let (mut near, mut far) = offloaded(&wire).await;
        refuse(&wire, Some(passing));
        near.update_keys(false).unwrap();
        exchange(&mut near, &mut far, 3).await;
        assert_eq!((near.transmit_context(), far.receive_context()), (None, None));
        // An application that asks gets the refusal, which changes nothing.
        let refused = OffloadOutcome::Refused(NotOffloaded::Device(passing));
        assert_eq!(far.ready().await.unwrap(), refused);
        assert_eq!((near.offload(TX).tx, far.offload(RX).rx), (refused, refused));
        refuse(&wire, None);
        exchange(&mut near, &mut far, 3).await;
        assert!(near.transmit_context().is_some() && far.receive_context().is_some());
        assert_eq!((near.counters().tx_rekey_device, near.counters().tx_rekey_sw), (1, 0));
        assert_eq!((far.counters().rx_rekey_device, far.counters().rx_rekey_sw), (1, 0));
    }
}

#[tokio::test]
async fn busy_device_takes_the_stream_later() {
    let wire = MockWire::new(7).with_devices(0.0, 7);
    let (mut near, mut far) = streams(&wire, SUITE);
    refuse(&wire, Some(ContextRefusal::Busy));
    let busy = OffloadOutcome::Refused(NotOffloaded::Device(ContextRefusal::Busy));
    assert_eq!((near.offload(TX).tx, far.offload(RX).rx), (busy, busy));
    exchange(&mut near, &mut far, 3).await;
    refuse(&wire, None);
    exchange(&mut near, &mut far, 2).await;
    assert!(near.transmit_context().is_some() && far.receive_context().is_some());
    assert_eq!(
        (near.counters().offload_refused, far.counters().offload_refused),
        (1, 1),
        "repeated requests are not counted"
    );
}

#[tokio::test]
async fn full_device_is_asked_less_often_and_later_takes_the_stream() {
    let wire = MockWire::new(7).with_devices(0.0, 7);
    let (mut near, mut far) = streams(&wire, SUITE);
    refuse(&wire, Some(ContextRefusal::NoSpace));
    let full = OffloadOutcome::Refused(NotOffloaded::Device(ContextRefusal::NoSpace));
    assert_eq!((near.offload(TX).tx, far.offload(RX).rx), (full, full));
    exchange(&mut near, &mut far, 100).await;
    for counters in [near.counters(), far.counters()] {
        // With records 1, 3, 7, 15, 31, 63 and 95.
        assert_eq!((counters.offload_refused, counters.offload_retried, counters.offload_later), (1, 7, 0));
    }
    refuse(&wire, None);
    exchange(&mut near, &mut far, 26).await;
    assert_eq!((near.transmit_context(), far.receive_context()), (None, None));
    exchange(&mut near, &mut far, 2).await;
    assert!(near.transmit_context().is_some() && far.receive_context().is_some());
    for counters in [near.counters(), far.counters()] {
        assert_eq!((counters.offload_refused, counters.offload_retried, counters.offload_later), (1, 8, 1));
    }
    assert_eq!((near.counters().tx_device, far.counters().rx_device), (1, 1));
}

/// A device may give up contexts repeatedly, if its resources are short.
#[tokio::test]
async fn a_device_that_gave_contexts_up_is_asked_less_and_less_often() {
    let wire = MockWire::new(7).with_devices(0.0, 7);
    let (mut near, mut far) = offloaded(&wire).await;
    let mut records = Vec::new();
    for _ in 0..4 {
        let lost = [near.transmit_context().unwrap(), far.receive_context().unwrap()];
        for (half, handle) in lost.into_iter().enumerate() {
            // The device removes both contexts without being asked.
            wire.lock()[half].device.as_mut().unwrap().remove(handle);
        }
        let mut without = [0; 2];
        while near.transmit_context().is_none_or(|context| context == lost[0])
            || far.receive_context().is_none_or(|context| context == lost[1])
        {
            exchange(&mut near, &mut far, 1).await;
            without[0] += u32::from(near.transmit_context().is_none());
            without[1] += u32::from(far.receive_context().is_none());
        }
        records.push(without);
    }
    // Each loss doubles the number of records before the next request. The receiver counts complete records.
    assert_eq!(records, [[0, 1], [1, 2], [3, 4], [7, 8]]);
    for counters in [near.counters(), far.counters()] {
        assert_eq!((counters.offload_retried, counters.offload_later), (4, 4));
    }
}

/// Other streams must free space, and they may wait for this stream.
#[tokio::test]
async fn ready_reports_a_full_device_at_once_and_asks_each_time() {
    let wire = MockWire::new(7).with_devices(0.0, 7);
    wire.lock()[1].tells_next = false;
    let (mut near, mut far) = streams(&wire, SUITE);
    refuse(&wire, Some(ContextRefusal::NoSpace));
    let full = OffloadOutcome::Refused(NotOffloaded::Device(ContextRefusal::NoSpace));
    assert_eq!(far.offload(RX).rx, OffloadOutcome::Deferred);
    near.send_chunk("first".into()).await.unwrap();
    for _ in 0..5 {
        // The answer must come in the first poll: waiting for space could be a deadlock.
        let answer = std::future::poll_fn(|cx| Poll::Ready(far.poll_ready(cx))).await;
        assert!(matches!(answer, Poll::Ready(Ok(outcome)) if outcome == full), "{answer:?}");
    }
    refuse(&wire, None);
    assert!(far.ready().await.unwrap().handle().is_some());
    assert_eq!((far.counters().offload_retried, far.counters().offload_later), (5, 1));
}

#[tokio::test]
async fn permanently_refused_context_is_not_requested_again() {
    let wire = MockWire::new(7).with_devices(0.0, 7);
    let (mut near, mut far) = streams(&wire, SUITE);
    refuse(&wire, Some(ContextRefusal::Unsupported));
    let never = OffloadOutcome::Refused(NotOffloaded::Device(ContextRefusal::Unsupported));
    assert_eq!((near.offload(TX).tx, far.offload(RX).rx), (never, never));
    refuse(&wire, None);
    exchange(&mut near, &mut far, 100).await;
    assert_eq!((near.transmit_context(), far.receive_context()), (None, None));
    for counters in [near.counters(), far.counters()] {
        assert_eq!((counters.offload_retried, counters.offload_later), (0, 0));
    }
}

#[tokio::test]
async fn reset_makes_room_for_waiting_streams() {
    let wire = MockWire::new(7).with_devices(0.0, 7);
    let (mut near, mut far) = streams(&wire, SUITE);
    refuse(&wire, Some(ContextRefusal::NoSpace));
    near.offload(TX);
    far.offload(RX);
    exchange(&mut near, &mut far, 100).await;
    refuse(&wire, None);
    wire.reset(0);
    exchange(&mut near, &mut far, 1).await;
    assert!(near.transmit_context().is_some());
}

#[tokio::test]
async fn many_key_updates_at_once_do_not_push_a_stream_off_its_device() {
    let wire = MockWire::new(7).with_devices(0.0, 7);
    let (mut near, mut far) = offloaded(&wire).await;
    wire.lock()[0].hold = true;
    for _ in 0..40 {
        near.update_keys(false).unwrap();
    }
    near.send_chunk("data".into()).await.unwrap();
    wire.lock()[0].hold = false;
    wire.pump(0, usize::MAX);
    assert_eq!(far.next_chunk().await.unwrap().unwrap(), "data");
    let removed = wire.lock()[1].device.as_ref().unwrap().removed.len();
    // A peer must not make the device create a context for each small record.
    assert!(removed <= 9, "{removed} contexts made and taken away for 40 records of 27 bytes");
    exchange(&mut near, &mut far, 20).await;
    assert!(far.receive_context().is_some(), "never goes back: {:?}", far.ready().await);
    assert_eq!(far.counters().decrypt_error, 0);
}

/// The work that a peer causes on the device is bounded by its data.
#[tokio::test]
async fn key_updates_between_records_of_a_byte_cost_the_device_little() {
    const ROUNDS: usize = 400;
    let wire = MockWire::new(8).with_devices(0.0, 8);
    let (mut near, mut far) = offloaded(&wire).await;
    for _ in 0..ROUNDS {
        near.update_keys(false).unwrap();
        exchange(&mut near, &mut far, 1).await;
    }
    let removed = wire.lock()[1].device.as_ref().unwrap().removed.len();
    assert!((8..=9 + ROUNDS / 16).contains(&removed), "{removed} contexts made and taken away");
    exchange(&mut near, &mut far, 20).await;
    assert!(far.receive_context().is_some());
}

/// A client that only reads, changes its keys in bursts and requests changes in return, with cover traffic between.
#[tokio::test]
async fn peer_of_an_active_reader_may_change_keys_at_any_rate() {
    for device in [false, true] {
        let wire = MockWire::new(9).with_devices(0.0, 9);
        let (mut server, mut client) = streams(&wire, SUITE);
        if device {
            server.offload(Offload::BOTH);
            server.ready().await.unwrap();
        }
        let payload = rig::data(9, 100_000);
        for _ in 0..10 {
            wire.lock()[1].hold = true;
            for _ in 0..100 {
                // Each requests a KeyUpdate in return; the server answers them together.
                client.update_keys(true).unwrap();
            }
            wire.lock()[1].hold = false;
            wire.pump(1, usize::MAX);
            server.write_all(&payload).await.unwrap();
            // A server reads while it writes. Four polls process all records.
            for _ in 0..4 {
                let read = std::future::poll_fn(|cx| Poll::Ready(server.poll_chunk(cx)));
                assert!(read.await.is_pending(), "the client sends no data");
            }
            let mut got = vec![0; payload.len()];
            client.read_exact(&mut got).await.unwrap();
            assert!(got == payload);
        }
        client.write_all(b"thanks").await.unwrap();
        server.read_exact(&mut [0; 6]).await.unwrap();
        let counters = server.counters();
        assert_eq!((counters.rx_rekey_received, counters.rx_rekey_error), (1000, 0));
        assert!(counters.tx_rekey_ok <= 20, "{} answers", counters.tx_rekey_ok);
    }
}
