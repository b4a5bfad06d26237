//! Equal bytes in software, on a device, and with any mixture.

use crate::rig;

use bytes::Bytes;
use ktls_offload::{NotOffloaded, Offload, OffloadOutcome, TlsCounters};
use offload_api::{ContextRefusal, DeviceEvent, SegmentStream, TlsContexts, TlsSuite, TxTag};
use proptest::prelude::*;
use rig::{CIPHERS, MockWire, SegmentLengths, TestCipher, data, streams};
use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt, ReadBuf};

/// The results of one run.
struct OffloadRun {
    wire: Vec<u8>,
    plaintext: Vec<u8>,
    sender: TlsCounters,
    receiver: TlsCounters,
}

#[derive(Clone, Debug)]
struct OffloadPlan {
    cipher: TestCipher,
    /// The padding multiple of the inner plaintext, where the version has padding.
    padding: usize,
    writes: Vec<usize>,
    chunks: bool,
    record_size: usize,
    cut: SegmentLengths,
    tx: bool,
    rx: bool,
    /// Whether the receiver offloads before any data arrive.
    early: bool,
    miss: f64,
    window: usize,
    seed: u64,
}

fn run(plan: &OffloadPlan) -> OffloadRun {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        // One record tells the receiver's transport its position, as after a handshake.
        const PRELUDE: &str = "go";
        let wire = MockWire::new(plan.seed).with_devices(plan.miss, plan.seed);
        wire.lock()[0].cut = plan.cut;
        wire.lock()[0].window = plan.window;
        let (mut near, mut far) = streams(&wire, plan.cipher);
        near.set_record_size(plan.record_size);
        near.set_padding(plan.padding);
        if plan.rx && plan.early {
            assert!(far.offload(Offload { tx: false, rx: true }).rx.handle().is_some());
        }
        near.write_all(PRELUDE.as_bytes()).await.unwrap();
        far.read_exact(&mut [0; PRELUDE.len()]).await.unwrap();
        if plan.rx {
            far.offload(Offload { tx: false, rx: true });
            assert!(far.ready().await.unwrap().handle().is_some());
        }
        let offloaded = near.offload(Offload { tx: plan.tx, rx: false });
        assert_eq!(offloaded.tx.handle().is_some(), plan.tx);
        let writes = plan.writes.clone();
        // Both ways to write must give equal records.
        let (chunks, seed) = (plan.chunks, plan.seed);
        let write = async move {
            for (index, length) in writes.into_iter().enumerate() {
                let bytes = data(seed + index as u64, length);
                if chunks {
                    near.send_chunk(Bytes::from(bytes)).await.unwrap();
                } else {
                    near.write_all(&bytes).await.unwrap();
                }
            }
            near.close().await.unwrap();
            *near.counters()
        };
        let read = async move {
            let mut plaintext = Vec::new();
            far.read_to_end(&mut plaintext).await.unwrap();
            (plaintext, *far.counters())
        };
        let (sender, (plaintext, receiver)) = tokio::join!(write, read);
        let halves = wire.lock();
        assert_eq!(halves[1].consumed, halves[1].received, "every byte was given back to the window");
        assert_eq!(halves[0].device.as_ref().unwrap().contexts(), 0, "no context is left behind");
        assert_eq!(halves[1].device.as_ref().unwrap().contexts(), 0, "no context is left behind");
        OffloadRun { wire: halves[0].wire.clone(), plaintext, sender, receiver }
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]
    #[test]
    fn any_division_of_labour_gives_the_same_bytes(
        cipher in prop::sample::select(CIPHERS.to_vec()),
        padding in prop_oneof![Just(1usize), 2usize..500, Just(4096)],
        writes in prop::collection::vec(0usize..40_000, 1..6),
        chunks: bool,
        record_size in prop_oneof![Just(16384usize), 1usize..16384, 200usize..2000],
        cut in prop_oneof![Just(SegmentLengths::Every(1448)), (20u64..3000).prop_map(SegmentLengths::UpTo), Just(SegmentLengths::Every(65536))],
        tx: bool,
        rx: bool,
        early: bool,
        miss in prop_oneof![Just(0.0), Just(0.3), Just(0.7), Just(1.0)],
        window in prop_oneof![Just(usize::MAX), 1000usize..20_000],
        seed: u64,
    ) {
        // One-byte records are slow, so write less data.
        let writes: Vec<usize> = if record_size < 100 { writes.iter().map(|w| w / 20).collect() } else { writes };
        let plan = OffloadPlan { cipher, padding, writes, chunks, record_size, cut, tx, rx, early, miss, window, seed: seed >> 1 };
        let expected: Vec<u8> =
            plan.writes.iter().enumerate().flat_map(|(i, length)| data(plan.seed + i as u64, *length)).collect();
        let one = run(&plan);
        prop_assert!(one.plaintext == expected, "plaintext differs");
        let software = run(&OffloadPlan { tx: false, rx: false, chunks: !chunks, window: usize::MAX, cut: SegmentLengths::Every(999), ..plan.clone() });
        prop_assert!(software.plaintext == expected);
        prop_assert!(one.wire == software.wire, "the wire bytes differ");
        if tx {
            prop_assert_eq!(one.sender.tx_records_sw, 1);
        }
        if !rx || miss == 1.0 {
            prop_assert_eq!((one.receiver.rx_records_device, one.receiver.rx_records_partial), (0, 0));
        }
    }
}

#[test]
fn every_split_of_a_record_works_on_both_paths() {
    for cipher in CIPHERS {
        for (cut, miss) in (1..=75).flat_map(|cut| [(cut, 0.0), (cut, 0.5), (cut, 1.0)]) {
            let plan = OffloadPlan {
                cipher,
                padding: 1,
                writes: vec![50, 3, 40],
                chunks: true,
                record_size: 50,
                cut: SegmentLengths::Every(cut),
                tx: true,
                rx: true,
                early: cut % 2 == 0,
                miss,
                window: usize::MAX,
                seed: cut as u64,
            };
            let run = run(&plan);
            let expected = [data(plan.seed, 50), data(plan.seed + 1, 3), data(plan.seed + 2, 40)].concat();
            assert_eq!(run.plaintext, expected, "cut {cut}, miss {miss}");
            let (device, partial, software) =
                (run.receiver.rx_records_device, run.receiver.rx_records_partial, run.receiver.rx_records_sw);
            assert_eq!(device + partial + software, 5, "the prelude, three of data, close_notify");
            if miss == 0.0 {
                assert_eq!((device, partial), (4 + u64::from(plan.early), 0), "cut {cut}");
            } else if miss == 1.0 {
                assert_eq!((device, partial), (0, 0), "cut {cut}");
            }
        }
    }
}

#[tokio::test]
async fn a_receive_context_may_be_there_before_the_first_byte() {
    let wire = MockWire::new(11).with_devices(0.0, 11);
    let (mut near, mut far) = streams(&wire, TlsSuite::Aes128Gcm);
    let rx = far.offload(Offload::BOTH).rx;
    assert_eq!(far.ready().await.unwrap(), rx);
    assert!(rx.handle().is_some());
    near.send_chunk("first".into()).await.unwrap();
    assert_eq!(far.next_chunk().await.unwrap().unwrap(), "first");
    assert_eq!((far.counters().rx_records_device, far.counters().rx_records_sw), (1, 0));
}

#[tokio::test]
async fn where_the_transport_cannot_tell_the_first_bytes_do() {
    let wire = MockWire::new(12).with_devices(0.0, 12);
    wire.lock()[1].tells_next = false;
    let (mut near, mut far) = streams(&wire, TlsSuite::Aes128Gcm);
    assert_eq!(far.offload(Offload { tx: false, rx: true }).rx, OffloadOutcome::Deferred);
    assert!(poll_fn(|cx| Poll::Ready(far.poll_ready(cx).is_pending())).await);
    near.send_chunk("first".into()).await.unwrap();
    assert!(far.ready().await.unwrap().handle().is_some());
    near.send_chunk("second".into()).await.unwrap();
    assert_eq!(far.next_chunk().await.unwrap().unwrap(), "first");
    assert_eq!(far.next_chunk().await.unwrap().unwrap(), "second");
    assert_eq!((far.counters().rx_records_device, far.counters().rx_records_sw), (1, 1));
}

/// Unread content keeps the window closed, but the header for which a context waits must still arrive.
#[test]
fn ready_does_not_wait_for_a_window_that_a_reader_must_open() {
    const WINDOW: usize = 25;
    let cx = &mut Context::from_waker(Waker::noop());
    let wire = MockWire::new(3).with_devices(0.0, 3);
    (wire.lock()[0].hold, wire.lock()[0].window) = (true, WINDOW);
    let (mut near, mut far) = streams(&wire, TlsSuite::Aes128Gcm);
    near.send(data(1, 1000).into(), TxTag::PLAIN);
    near.send(data(2, 1000).into(), TxTag::PLAIN);
    // One record, and three bytes of the next header.
    for _ in 0..(1000 + 22 + 3) / WINDOW {
        assert!(far.poll_chunk(cx).is_pending());
        wire.pump(0, WINDOW);
    }
    let mut some = [0; 50];
    assert!(Pin::new(&mut far).poll_read(cx, &mut ReadBuf::new(&mut some)).is_ready());
    assert_eq!(far.offload(Offload { tx: false, rx: true }).rx, OffloadOutcome::Deferred);
    for _ in 0..3 {
        if far.poll_ready(cx).is_ready() {
            break;
        }
        wire.pump(0, usize::MAX);
    }
    assert!(far.receive_context().is_some(), "the closed window holds the header back");
}

#[tokio::test]
async fn event_of_a_reset_before_a_context_does_not_lose_it() {
    let wire = MockWire::new(13).with_devices(0.0, 13);
    wire.lock()[1].tells_next = false;
    let (mut near, mut far) = streams(&wire, TlsSuite::Aes128Gcm);
    assert_eq!(far.offload(Offload { tx: false, rx: true }).rx, OffloadOutcome::Deferred);
    wire.lock()[1].device.as_mut().unwrap().push_event(DeviceEvent::Reset);
    near.send_chunk("adds the context".into()).await.unwrap();
    far.next_chunk().await.unwrap();
    assert_eq!(wire.lock()[1].device.as_ref().unwrap().contexts(), 1);
    near.send_chunk("has the news read".into()).await.unwrap();
    assert_eq!(far.next_chunk().await.unwrap().unwrap(), "has the news read");
    assert_eq!(wire.lock()[1].device.as_ref().unwrap().contexts(), 1, "one context was removed, and another exists");
    assert_eq!(wire.lock()[1].device.as_ref().unwrap().removed.len(), 1);
    assert!(far.ready().await.unwrap().handle().is_some());
    // The same with a transmit context.
    let handle = far.offload(Offload { tx: true, rx: false }).tx.handle().unwrap();
    wire.lock()[1].device.as_mut().unwrap().push_event(DeviceEvent::Reset);
    far.send_chunk("reads the news".into()).await.unwrap();
    assert_eq!(wire.lock()[1].device.as_ref().unwrap().removed.last(), Some(&handle));
    assert_eq!(wire.lock()[1].device.as_ref().unwrap().contexts(), 1, "the receive context returns with the next read");
}

#[tokio::test]
async fn with_everything_on_devices_the_cpu_does_no_crypto() {
    let wire = MockWire::new(1).with_devices(0.0, 1);
    let (mut near, mut far) = streams(&wire, TlsSuite::Aes128Gcm);
    // One record tells the receiver its position; data follow after its "go".
    near.send_chunk("prelude".into()).await.unwrap();
    assert_eq!(far.next_chunk().await.unwrap().unwrap(), "prelude");
    let rx = far.offload(Offload { tx: false, rx: true }).rx;
    assert!(rx.handle().is_some());
    assert_eq!(far.ready().await.unwrap(), rx);
    assert_eq!(far.receive_context(), rx.handle());
    assert!(near.offload(Offload::BOTH).tx.handle().is_some());

    let payload = Bytes::from(data(9, 256 << 10));
    near.send_chunk(payload.clone()).await.unwrap();
    near.close().await.unwrap();
    let mut received = Vec::new();
    while let Some(chunk) = far.next_chunk().await.unwrap() {
        received.extend_from_slice(&chunk);
    }
    assert!(received == payload);
    let (sent, got) = (near.counters(), far.counters());
    assert_eq!((sent.tx_records_sw, sent.tx_records_device), (1, 17), "256 KiB are 16 records, then close_notify");
    assert_eq!((got.rx_records_sw, got.rx_records_device, got.rx_records_partial), (1, 17, 0));
    assert_eq!((sent.tx_device, sent.curr_tx_device, sent.curr_tx_sw), (1, 0, 0), "the direction is closed");
    assert_eq!((got.rx_device, got.curr_rx_device, got.curr_rx_sw, got.rx_sw), (1, 0, 0, 1));
    assert_eq!((sent.curr_rx_device, got.curr_tx_sw), (1, 1), "the other direction is open");
}

#[tokio::test]
async fn a_reset_in_the_middle_of_a_record_is_never_seen_on_the_wire() {
    const MARKER: &[u8] = b"the marker that must not leak in";
    // A repeated marker would be visible in any window of plaintext on the wire.
    let payload: Vec<u8> = MARKER.iter().copied().cycle().take(100_000).collect();
    let mut wires = Vec::new();
    for reset_after in [None, Some(0), Some(4), Some(5), Some(6), Some(9_000), Some(16_405), Some(40_000)] {
        let wire = MockWire::new(3).with_devices(0.0, 3);
        let (mut near, mut far) = streams(&wire, TlsSuite::Aes128Gcm);
        near.offload(Offload { tx: true, rx: false });
        wire.lock()[0].hold = true;
        near.send_chunk(Bytes::from(payload.clone())).await.unwrap();
        if let Some(bytes) = reset_after {
            wire.pump(0, bytes);
            wire.reset(0);
        }
        // More records after the reset, by device or software, and no further polling.
        near.send_chunk(Bytes::from(payload.clone())).await.unwrap();
        let resets = u64::from(reset_after.is_some());
        let counters = near.counters();
        assert_eq!((counters.device_resets, counters.tx_sw, counters.tx_device), (resets, 1 + resets, 1 + resets));
        assert_eq!((counters.curr_tx_sw, counters.curr_tx_device), (0, 1));
        near.close().await.unwrap();
        drop(near);
        wire.lock()[0].hold = false;
        wire.pump(0, usize::MAX);

        let mut received = Vec::new();
        far.read_to_end(&mut received).await.unwrap();
        assert!(received == [payload.clone(), payload.clone()].concat(), "after {reset_after:?}");
        let halves = wire.lock();
        assert_eq!(halves[0].sealed_units > 0, reset_after.is_some());
        assert!(!halves[0].wire.windows(MARKER.len()).any(|window| window == MARKER));
        wires.push(halves[0].wire.clone());
    }
    assert!(wires.windows(2).all(|pair| pair[0] == pair[1]), "the wire bytes depend on the reset");
}

#[tokio::test]
async fn a_device_that_comes_back_is_used_again() {
    let wire = MockWire::new(4).with_devices(0.0, 4);
    let (mut near, mut far) = streams(&wire, TlsSuite::Aes256Gcm);
    let mut expected = Vec::new();
    near.offload(Offload { tx: true, rx: false });
    far.offload(Offload { tx: false, rx: true });
    for round in 0..4 {
        let bytes = data(round, 30_000);
        expected.extend_from_slice(&bytes);
        near.send_chunk(Bytes::from(bytes.clone())).await.unwrap();
        assert!(near.transmit_context().is_some(), "round {round}");
        let tail = data(round + 100, 20_000);
        expected.extend_from_slice(&tail);
        near.send_chunk(Bytes::from(tail)).await.unwrap();
        wire.reset(0);
        let mut got = vec![0; 50_000];
        far.read_exact(&mut got).await.unwrap();
        assert!(got == expected[expected.len() - 50_000..]);
        assert!(matches!(far.ready().await.unwrap(), OffloadOutcome::Device(_)));
        wire.reset(1);
        assert!(matches!(far.ready().await.unwrap(), OffloadOutcome::Device(_)), "the next context");
    }
    assert_eq!((near.counters().tx_device, near.counters().device_resets), (4, 3), "the last one was not looked at");
    assert_eq!((far.counters().rx_device, far.counters().device_resets), (5, 4));
    assert!(far.counters().rx_records_device > 0);
}

#[tokio::test]
async fn flows_return_to_a_device_that_is_busy_at_first() {
    let wire = MockWire::new(14).with_devices(0.0, 14);
    let (mut near, mut far) = streams(&wire, TlsSuite::Aes128Gcm);
    near.offload(Offload { tx: true, rx: false });
    far.offload(Offload { tx: false, rx: true });
    let refuse = |refusal| wire.lock().iter_mut().for_each(|half| half.device.as_mut().unwrap().refuse = refusal);
    let mut expected = Vec::new();
    for (refusal, on_device) in
        [(Some(ContextRefusal::Busy), false), (None, true), (Some(ContextRefusal::Unsupported), false), (None, false)]
    {
        refuse(refusal);
        if refusal.is_some() {
            (0..2).for_each(|side| wire.reset(side));
        }
        for _ in 0..2 {
            let text = data(expected.len() as u64, 100);
            near.send_chunk(text.clone().into()).await.unwrap();
            assert_eq!(far.next_chunk().await.unwrap().unwrap(), text);
            expected.extend(text);
        }
        assert_eq!(near.transmit_context().is_some(), on_device, "{refusal:?}");
        assert_eq!(far.receive_context().is_some(), on_device, "{refusal:?}");
    }
    // After a permanent refusal only the application asks again.
    assert!(near.offload(Offload { tx: true, rx: false }).tx.handle().is_some());
    far.offload(Offload { tx: false, rx: true });
    assert!(far.ready().await.unwrap().handle().is_some());
}

#[tokio::test]
async fn verdicts_of_old_contexts_count_after_many_new_ones() {
    const RX: Offload = Offload { tx: false, rx: true };
    for resets in 0..=9 {
        let wire = MockWire::new(7).with_devices(0.0, 7);
        let (mut near, mut far) = streams(&wire, TlsSuite::Aes128Gcm);
        near.send_chunk("go".into()).await.unwrap();
        assert_eq!(far.next_chunk().await.unwrap().unwrap(), "go");
        far.offload(RX);
        far.ready().await.unwrap();
        // Decrypted by the first context, and unread while further contexts follow.
        near.send_chunk(Bytes::from(data(1, 9_000))).await.unwrap();
        for reset in 0..resets {
            wire.reset(1);
            far.offload(RX);
            let outcome = far.ready().await.unwrap();
            assert_eq!(outcome.handle().is_some(), reset < 7, "{outcome:?}: eight contexts are remembered");
            assert_eq!(outcome == OffloadOutcome::Refused(NotOffloaded::Unread), reset >= 7);
        }
        near.send_chunk(Bytes::from(data(2, 9_000))).await.unwrap();
        let mut got = vec![0; 18_000];
        far.read_exact(&mut got).await.unwrap();
        assert!(got == [data(1, 9_000), data(2, 9_000)].concat(), "{resets} resets");
        // All data are read, so another context is possible.
        wire.reset(1);
        far.offload(RX);
        assert!(far.ready().await.unwrap().handle().is_some(), "{resets} resets");
        near.send_chunk(Bytes::from(data(3, 9_000))).await.unwrap();
        near.close().await.unwrap();
        let mut rest = Vec::new();
        far.read_to_end(&mut rest).await.unwrap();
        assert!(rest == data(3, 9_000));
        let counters = far.counters();
        let software = 1 + u64::from(resets > 7);
        assert_eq!((counters.rx_records_sw, counters.rx_records_partial, counters.decrypt_error), (software, 0, 0));
    }
}

#[tokio::test]
async fn a_context_begins_behind_everything_that_arrived() {
    for arrived in 0..=120 {
        let wire = MockWire::new(5).with_devices(0.0, 5);
        wire.lock()[0].cut = SegmentLengths::Every(13);
        let (mut near, mut far) = streams(&wire, TlsSuite::Aes128Gcm);
        wire.lock()[0].hold = true;
        for _ in 0..6 {
            near.send_chunk(Bytes::from(vec![7; 30])).await.unwrap();
        }
        wire.pump(0, arrived);
        let outcome = far.offload(Offload { tx: false, rx: true }).rx;
        // A partial header leaves the next record's position unknown.
        let deferred = (1..5).contains(&(arrived % 52));
        assert_eq!(outcome == OffloadOutcome::Deferred, deferred, "{arrived} bytes: {outcome:?}");
        wire.pump(0, 20); // the rest of a header at least, and less than two records
        let ready = poll_fn(|cx| Poll::Ready(far.poll_ready(cx))).await;
        assert!(matches!(ready, Poll::Ready(Ok(OffloadOutcome::Device(_)))), "{arrived} bytes: {ready:?}");
        wire.lock()[0].hold = false;
        wire.pump(0, usize::MAX);
        near.close().await.unwrap();
        let mut all = Vec::new();
        far.read_to_end(&mut all).await.unwrap();
        assert_eq!(all, vec![7; 180]);
        assert_eq!(far.counters().decrypt_error, 0);
        assert!(far.counters().rx_records_device >= 2, "{arrived} bytes: {:?}", far.counters());
    }
}

#[tokio::test]
async fn refusals_have_reasons_and_change_no_state() {
    let wire = MockWire::new(6);
    let (mut near, mut far) = streams(&wire, TlsSuite::Aes128Gcm);
    let none = near.offload(Offload::BOTH);
    assert_eq!(none.tx, OffloadOutcome::Refused(NotOffloaded::NoDevice));
    assert_eq!(none.rx, OffloadOutcome::Refused(NotOffloaded::NoDevice));
    assert_eq!(near.ready().await.unwrap(), OffloadOutcome::Refused(NotOffloaded::NoDevice));
    assert_eq!(near.counters().offload_refused, 2);

    let wire = wire.with_devices(0.0, 6);
    wire.lock()[0].device.as_mut().unwrap().refuse = Some(ContextRefusal::NoSpace);
    assert_eq!(near.offload(Offload::BOTH).tx, OffloadOutcome::Refused(NotOffloaded::Device(ContextRefusal::NoSpace)));
    near.send_chunk("still here".into()).await.unwrap();
    assert_eq!(far.next_chunk().await.unwrap().unwrap(), "still here");
    near.close().await.unwrap();
    assert_eq!(near.offload(Offload { tx: true, rx: false }).tx, OffloadOutcome::Refused(NotOffloaded::Closed));
    assert_eq!(far.next_chunk().await.unwrap(), None);
    assert_eq!(far.offload(Offload { tx: false, rx: true }).rx, OffloadOutcome::Refused(NotOffloaded::Closed));
}

#[tokio::test]
async fn a_context_that_the_device_takes_away_is_not_used() {
    let wire = MockWire::new(7).with_devices(0.0, 7);
    let (mut near, mut far) = streams(&wire, TlsSuite::Aes128Gcm);
    let handle = near.offload(Offload { tx: true, rx: false }).tx.handle().unwrap();
    near.send_chunk("one".into()).await.unwrap();
    {
        let mut halves = wire.lock();
        halves[0].device.as_mut().unwrap().push_event(DeviceEvent::Removed { flow: rig::device::FLOW, handle });
    }
    near.send_chunk("two".into()).await.unwrap();
    assert_ne!(near.transmit_context(), Some(handle));
    assert_eq!(far.next_chunk().await.unwrap().unwrap(), "one");
    assert_eq!(far.next_chunk().await.unwrap().unwrap(), "two");
}

/// A header, data and a digest of a protocol above need no separate records.
#[tokio::test]
async fn pieces_sent_at_once_share_records() {
    let mut wires = Vec::new();
    for tx in [false, true] {
        let wire = MockWire::new(9).with_devices(0.0, 9);
        let (mut near, mut far) = streams(&wire, TlsSuite::Aes128Gcm);
        assert_eq!(near.offload(Offload { tx, rx: false }).tx.handle().is_some(), tx);
        let mut expected = Vec::new();
        for (lengths, records) in [
            (&[76, 4096, 4][..], 1),
            (&[24, 40_000, 4], 3),
            (&[24, 16_356, 4], 1),
            (&[16_384, 0, 4], 2),
            (&[0], 0),
            (&[], 0),
        ] {
            let before = near.counters().tx_records_sw + near.counters().tx_records_device;
            // Pieces are cut at the record size only, not at piece boundaries.
            let pieces: Vec<Bytes> = lengths.iter().map(|length| data(*length as u64, *length).into()).collect();
            expected.extend(pieces.concat());
            let first = near.send_pieces(&mut pieces.into_iter().map(|piece| (piece, TxTag::PLAIN)));
            assert_eq!(first.is_some(), records > 0);
            let after = near.counters().tx_records_sw + near.counters().tx_records_device;
            assert_eq!(after - before, records, "{lengths:?}");
        }
        SegmentStream::flush(&mut near);
        let mut found = vec![0; expected.len()];
        far.read_exact(&mut found).await.unwrap();
        assert!(found == expected);
        assert_eq!(near.counters().tx_records_device > 0, tx);
        wires.push(wire.lock()[0].wire.clone());
    }
    assert!(wires[0] == wires[1]);
}

#[tokio::test]
async fn a_stream_of_segments_keeps_sequence_metadata_and_offsets() {
    let wire = MockWire::new(8).with_devices(0.0, 8);
    wire.lock()[0].cut = SegmentLengths::Every(100);
    let (mut near, mut far) = streams(&wire, TlsSuite::Aes128Gcm);
    // Records, segments and reads all have different boundaries.
    near.set_record_size(150);
    near.send_chunk("prelude".into()).await.unwrap();
    far.next_chunk().await.unwrap();
    let handle = far.offload(Offload { tx: false, rx: true }).rx.handle();
    far.ready().await.unwrap();

    wire.lock()[0].hold = true;
    let first = SegmentStream::send(&mut near, Bytes::from(data(1, 400)), TxTag::PLAIN);
    assert!(poll_fn(|cx| Poll::Ready(near.poll_acked(cx, 407).is_pending())).await);
    wire.lock()[0].hold = false;
    SegmentStream::flush(&mut near);
    poll_fn(|cx| near.poll_acked(cx, 407)).await.unwrap();

    let mut content = Vec::new();
    let mut expected = first;
    while content.len() < 400 {
        let segment = poll_fn(|cx| far.poll_segment(cx)).await.unwrap().unwrap();
        if content.len().is_multiple_of(150) && !content.is_empty() {
            expected += 22; // type and tag of one record, header of the next
        }
        // Content keeps the sequence numbers of its wire bytes.
        assert_eq!(segment.seq, expected);
        assert_eq!(segment.meta.tls_context(), handle);
        expected = segment.end();
        content.extend_from_slice(&segment.data);
        far.consume(segment.data.len());
    }
    assert_eq!(content, data(1, 400));
    {
        let halves = wire.lock();
        assert_eq!(halves[1].consumed, halves[1].received);
    }
    assert!(
        far.control(&mut |_, contexts| assert!(TlsContexts::from_contexts(contexts).is_none())),
        "the TLS engine is hidden"
    );
}
