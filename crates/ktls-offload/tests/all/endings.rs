//! The end of streams: closed, failed, aborted or dropped; and the tasks that learn of the end.

use crate::rig;

use ktls_offload::{KtlsStream, NotOffloaded, Offload, OffloadOutcome, TlsError};
use offload_api::{RxMeta, SegmentStream, TlsSuite, TxTag};
use rig::{CountingSchedule, MockTransport, MockWire, streams};
use std::future::Future;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

const SUITE: TlsSuite = TlsSuite::Aes128Gcm;

/// Reads until the end. Returns the data and the end.
async fn read(stream: &mut KtlsStream<MockTransport>) -> (Vec<u8>, io::Result<()>) {
    let mut all = Vec::new();
    loop {
        match stream.next_chunk().await {
            Ok(Some(chunk)) => all.extend_from_slice(&chunk),
            Ok(None) => return (all, Ok(())),
            Err(error) => return (all, Err(error)),
        }
    }
}

#[tokio::test]
async fn only_a_close_looks_complete_to_the_peer() {
    type CloseCall = fn(KtlsStream<MockTransport>);
    let endings: [(CloseCall, bool); 4] = [
        (drop, false),
        (|stream| assert_eq!(stream.into_counters().curr_tx_sw, 0), false),
        // The writing task is gone, and so is the read half.
        (|stream| drop(tokio::io::split(stream)), false),
        (|mut stream| SegmentStream::finish(&mut stream), true),
    ];
    for device in [false, true] {
        for (number, (end, meant)) in endings.into_iter().enumerate() {
            let wire = MockWire::new(3).with_devices(0.0, 3);
            let (mut near, mut far) = streams(&wire, SUITE);
            if device {
                near.offload(Offload::BOTH);
            }
            // Data written before still arrive.
            wire.lock()[0].hold = true;
            near.send_chunk(rig::data(1, 20_000).into()).await.unwrap();
            end(near);
            wire.lock()[0].hold = false;
            wire.pump(0, usize::MAX);
            let (got, ended) = read(&mut far).await;
            assert!(got == rig::data(1, 20_000), "ending {number}");
            match ended {
                Ok(()) => assert!(meant, "ending {number} looks like a close"),
                Err(error) => {
                    assert!(!meant, "ending {number}: {error}");
                    assert_eq!(error.get_ref().unwrap().downcast_ref(), Some(&TlsError::Truncated));
                }
            }
            assert_eq!(wire.lock()[0].device.as_ref().unwrap().contexts(), 0);
        }
    }
}

#[tokio::test]
async fn failed_or_cancelled_writer_does_not_look_complete() {
    async fn application(mut stream: KtlsStream<MockTransport>) -> io::Result<()> {
        stream.write_all(b"first half").await?;
        Err(io::Error::other("the disk failed"))
    }
    let wire = MockWire::new(3);
    let (near, mut far) = streams(&wire, SUITE);
    application(near).await.unwrap_err();
    let (got, ended) = read(&mut far).await;
    assert_eq!((&got[..], ended.is_err()), (&b"first half"[..], true));
}

#[tokio::test]
async fn a_reader_does_not_take_its_own_abort_for_an_end() {
    for unread in [false, true] {
        let wire = MockWire::new(3);
        let (mut near, mut far) = streams(&wire, SUITE);
        near.write_all(b"half of it, and more").await.unwrap();
        far.read_exact(&mut [0; 10]).await.unwrap();
        if !unread {
            far.read_exact(&mut [0; 10]).await.unwrap();
        }
        far.abort();
        for _ in 0..2 {
            let error = far.next_chunk().await.unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::ConnectionAborted);
        }
        assert_eq!(far.close().await.unwrap_err().kind(), io::ErrorKind::ConnectionAborted);
        assert_eq!(far.write_all(b"x").await.unwrap_err().kind(), io::ErrorKind::ConnectionAborted);
    }
    // A close_notify received before stays valid.
    let wire = MockWire::new(3);
    let (mut near, mut far) = streams(&wire, SUITE);
    near.close().await.unwrap();
    assert_eq!(far.next_chunk().await.unwrap(), None);
    far.abort();
    assert_eq!(far.next_chunk().await.unwrap(), None);
}

#[tokio::test]
async fn ended_directions_have_no_context() {
    let wire = MockWire::new(3).with_devices(0.0, 3);
    let (mut near, mut far) = streams(&wire, SUITE);
    far.offload(Offload::BOTH);
    far.ready().await.unwrap();
    near.write_all(b"GET / HTTP/7").await.unwrap();
    far.read_exact(&mut [0; 12]).await.unwrap();
    // The server rejects a bad request: its answer ends the connection, and the rest is not read.
    far.close().await.unwrap();
    assert_eq!((far.counters().curr_tx_device, far.counters().curr_rx_device), (0, 1));
    let counters = far.into_counters();
    assert_eq!((counters.curr_tx_device, counters.curr_tx_sw), (0, 0));
    assert_eq!((counters.curr_rx_device, counters.curr_rx_sw), (0, 0));
}

/// A waker that counts wakes.
#[derive(Default)]
struct EndingWakeCounter(AtomicUsize);

impl Wake for EndingWakeCounter {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

fn task() -> (Arc<EndingWakeCounter>, Waker) {
    let woken = Arc::new(EndingWakeCounter::default());
    (woken.clone(), woken.into())
}

#[test]
fn reader_and_writer_notice_each_others_actions() {
    type StreamAction = fn(&MockWire, &mut KtlsStream<MockTransport>);
    let acts: [StreamAction; 3] = [
        |_, stream| stream.abort(),
        // The writer finds that there is no next key.
        |_, stream| assert!(stream.update_keys(false).is_err()),
        // The reader finds a record that fails authentication.
        |wire, stream| {
            wire.inject(0, &[23, 3, 3, 0, 17], RxMeta::default());
            wire.inject(0, &[0; 17], RxMeta::default());
            assert!(stream.poll_chunk(&mut Context::from_waker(Waker::noop())).is_ready());
        },
    ];
    for (number, act) in acts.into_iter().enumerate() {
        let wire = MockWire::new(1);
        let (_, _, keys) = CountingSchedule::pair(SUITE);
        let (a, _b) = wire.ends();
        let mut stream = KtlsStream::new(a, keys, Box::new(ktls_offload::FixedKeys)).unwrap();
        wire.lock()[0].hold = true;
        let ((reads, reader), (writes, writer)) = (task(), task());
        assert!(stream.poll_chunk(&mut Context::from_waker(&reader)).is_pending());
        stream.send("never acknowledged".into(), offload_api::TxTag::PLAIN);
        assert!(stream.poll_acked(&mut Context::from_waker(&writer), 1 << 20).is_pending());
        // The transport knows only the last task that registered, so the stream itself must wake the other tasks.
        wire.lock()[0].forget_wakers();
        act(&wire, &mut stream);
        assert_eq!([&reads, &writes].map(|task| task.0.load(Ordering::Relaxed) > 0), [true; 2], "act {number}");
        assert!(stream.poll_chunk(&mut Context::from_waker(Waker::noop())).is_ready());
        assert!(stream.poll_room(&mut Context::from_waker(Waker::noop())).is_ready());
    }
}

/// The transport wakes one task for device events. Here that task was a writer, which then went away.
#[test]
fn news_of_the_device_reach_the_task_that_waits_for_them() {
    let wire = MockWire::new(1).with_devices(0.0, 1);
    let (mut near, _far) = streams(&wire, SUITE);
    wire.lock()[0].device.as_mut().unwrap().silent = true;
    let asked = near.offload(Offload::BOTH);
    let handle = asked.rx.handle().unwrap();
    let ((reads, reader), (writes, writer)) = (task(), task());
    assert!(near.poll_ready(&mut Context::from_waker(&reader)).is_pending());
    assert!(near.poll_room(&mut Context::from_waker(&writer)).is_ready());
    let ready = offload_api::DeviceEvent::Ready { flow: rig::device::FLOW, handle };
    wire.lock()[0].device.as_mut().unwrap().push_event(ready);
    wire.pump(1, 0); // wakes the task that the transport knows
    assert!(reads.0.load(Ordering::Relaxed) > 0, "the writer was woken {} times", writes.0.load(Ordering::Relaxed));
    assert!(near.poll_ready(&mut Context::from_waker(&reader)).is_ready());
    // The reader is woken too if the writer receives the event.
    let removed = offload_api::DeviceEvent::Removed { flow: rig::device::FLOW, handle };
    assert!(near.poll_chunk(&mut Context::from_waker(&reader)).is_pending());
    let before = reads.0.load(Ordering::Relaxed);
    wire.lock()[0].device.as_mut().unwrap().push_event(removed);
    assert!(near.poll_room(&mut Context::from_waker(&writer)).is_ready());
    assert!(reads.0.load(Ordering::Relaxed) > before);
}

/// `offload` receives pending data. A task that waits in a read must still be woken for more.
#[test]
fn asking_for_a_device_leaves_a_waiting_reader_awake() {
    let wire = MockWire::new(1).with_devices(0.0, 1);
    // The device's event would wake the reader too.
    wire.lock()[0].device.as_mut().unwrap().silent = true;
    let (mut near, mut far) = streams(&wire, SUITE);
    let (reads, reader) = task();
    assert!(near.poll_chunk(&mut Context::from_waker(&reader)).is_pending());
    near.offload(Offload::BOTH);
    let before = reads.0.load(Ordering::Relaxed);
    let mut send = pin!(far.write_all(b"x"));
    assert!(matches!(send.as_mut().poll(&mut Context::from_waker(Waker::noop())), Poll::Ready(Ok(()))));
    assert!(reads.0.load(Ordering::Relaxed) > before);
}

/// A failed stream takes no data. A task that waits for their acknowledgment gets an error.
#[test]
fn failed_stream_does_not_wait_for_unsent_data() {
    let wire = MockWire::new(1);
    let (mut near, mut far) = streams(&wire, SUITE);
    near.send("taken".into(), TxTag::PLAIN);
    let cx = &mut Context::from_waker(Waker::noop());
    wire.inject(0, &[23, 3, 3, 0, 17], RxMeta::default());
    wire.inject(0, &[0; 17], RxMeta::default());
    assert!(near.poll_chunk(cx).is_ready());
    near.send("not taken".into(), TxTag::PLAIN);
    assert!(matches!(near.poll_acked(cx, 5), Poll::Ready(Ok(()))), "accepted data are delivered");
    assert!(matches!(near.poll_acked(cx, 14), Poll::Ready(Err(_))));
    // The same after a regular end.
    far.finish();
    far.send("not taken".into(), TxTag::PLAIN);
    let Poll::Ready(Err(error)) = far.poll_acked(cx, 9) else { panic!("the data will never be sent") };
    assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
}

/// `ready` receives pending data. If the connection is then lost, complete records are still read.
#[tokio::test]
async fn data_before_a_lost_connection_are_read() {
    let wire = MockWire::new(3).with_devices(0.0, 3);
    wire.lock()[1].tells_next = false;
    let (mut near, mut far) = streams(&wire, SUITE);
    assert_eq!(far.offload(Offload { tx: false, rx: true }).rx, OffloadOutcome::Deferred);
    // A record, and a part of the next.
    wire.lock()[0].hold = true;
    near.send("whole".into(), TxTag::PLAIN);
    near.send("never whole".into(), TxTag::PLAIN);
    wire.pump(0, 22 + "whole".len() + 3);
    let cx = &mut Context::from_waker(Waker::noop());
    assert!(far.poll_ready(cx).is_pending());
    wire.lose(1);
    let outcome = far.ready().await;
    assert_eq!(outcome.unwrap(), OffloadOutcome::Refused(NotOffloaded::Closed));
    assert_eq!(far.next_chunk().await.unwrap().unwrap(), "whole");
    assert_eq!(far.next_chunk().await.unwrap_err().kind(), io::ErrorKind::ConnectionReset);
}

/// The peer sends no TLS records, so no context can ever begin after them. `ready` then returns, and a read reports the
/// error.
#[tokio::test]
async fn invalid_record_header_fails_without_waiting() {
    let wire = MockWire::new(3).with_devices(0.0, 3);
    let (_near, mut far) = streams(&wire, SUITE);
    wire.inject(1, b"GET / HTTP/1.1", RxMeta::default());
    assert_eq!(far.offload(Offload { tx: false, rx: true }).rx, OffloadOutcome::Refused(NotOffloaded::Closed));
    assert_eq!(far.ready().await.unwrap(), OffloadOutcome::Refused(NotOffloaded::Closed));
    let error = far.next_chunk().await.unwrap_err();
    assert_eq!(error.get_ref().unwrap().downcast_ref(), Some(&TlsError::UnexpectedRecord(b'G')));
    // The same after the stream ended.
    assert_eq!(far.offload(Offload { tx: false, rx: true }).rx, OffloadOutcome::Refused(NotOffloaded::Closed));
}
