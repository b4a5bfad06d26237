//! How streams end: meant, by an error, by an abort, or by being dropped; and who hears of it.

use crate::rig;

use ktls_offload::{KtlsStream, NotOffloaded, Offload, Outcome, TlsError};
use offload_api::{RxMeta, SegmentStream, TlsSuite, TxTag};
use rig::{Counting, End, Wire, streams};
use std::future::Future;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

const SUITE: TlsSuite = TlsSuite::Aes128Gcm;

/// What a reader has got and how it ended.
async fn read(stream: &mut KtlsStream<End>) -> (Vec<u8>, io::Result<()>) {
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
async fn only_a_close_tells_the_peer_that_this_was_all() {
    type Ending = fn(KtlsStream<End>);
    let endings: [(Ending, bool); 4] = [
        (drop, false),
        (|stream| assert_eq!(stream.into_counters().curr_tx_sw, 0), false),
        // The task that wrote is gone, and the half of it that read is as well.
        (|stream| drop(tokio::io::split(stream)), false),
        (|mut stream| SegmentStream::finish(&mut stream), true),
    ];
    for device in [false, true] {
        for (number, (end, meant)) in endings.into_iter().enumerate() {
            let wire = Wire::new(3).with_devices(0.0, 3);
            let (mut near, mut far) = streams(&wire, SUITE);
            if device {
                near.offload(Offload::BOTH);
            }
            // What was written before still arrives.
            wire.lock()[0].hold = true;
            near.send_chunk(rig::data(1, 20_000).into()).await.unwrap();
            end(near);
            wire.lock()[0].hold = false;
            wire.pump(0, usize::MAX);
            let (got, ended) = read(&mut far).await;
            assert!(got == rig::data(1, 20_000), "ending {number}");
            match ended {
                Ok(()) => assert!(meant, "ending {number} looks like one that was meant"),
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
async fn a_writer_that_fails_or_is_cancelled_half_way_does_not_look_complete() {
    async fn application(mut stream: KtlsStream<End>) -> io::Result<()> {
        stream.write_all(b"first half").await?;
        Err(io::Error::other("the disk failed"))
    }
    let wire = Wire::new(3);
    let (near, mut far) = streams(&wire, SUITE);
    application(near).await.unwrap_err();
    let (got, ended) = read(&mut far).await;
    assert_eq!((&got[..], ended.is_err()), (&b"first half"[..], true));
}

#[tokio::test]
async fn a_reader_does_not_take_its_own_abort_for_an_end() {
    for unread in [false, true] {
        let wire = Wire::new(3);
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
    // What the peer had said by then, it has said.
    let wire = Wire::new(3);
    let (mut near, mut far) = streams(&wire, SUITE);
    near.close().await.unwrap();
    assert_eq!(far.next_chunk().await.unwrap(), None);
    far.abort();
    assert_eq!(far.next_chunk().await.unwrap(), None);
}

#[tokio::test]
async fn what_ended_is_nowhere() {
    let wire = Wire::new(3).with_devices(0.0, 3);
    let (mut near, mut far) = streams(&wire, SUITE);
    far.offload(Offload::BOTH);
    far.ready().await.unwrap();
    near.write_all(b"GET / HTTP/7").await.unwrap();
    far.read_exact(&mut [0; 12]).await.unwrap();
    // A bad request: the answer ends the connection, and nobody reads on.
    far.close().await.unwrap();
    assert_eq!((far.counters().curr_tx_device, far.counters().curr_rx_device), (0, 1));
    let counters = far.into_counters();
    assert_eq!((counters.curr_tx_device, counters.curr_tx_sw), (0, 0));
    assert_eq!((counters.curr_rx_device, counters.curr_rx_sw), (0, 0));
}

/// Counts how often a task is woken.
#[derive(Default)]
struct Woken(AtomicUsize);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

fn task() -> (Arc<Woken>, Waker) {
    let woken = Arc::new(Woken::default());
    (woken.clone(), woken.into())
}

#[test]
fn a_reader_and_a_writer_hear_of_what_the_other_did_to_the_stream() {
    type Act = fn(&Wire, &mut KtlsStream<End>);
    let acts: [Act; 3] = [
        |_, stream| stream.abort(),
        // The writer finds that there is no next key.
        |_, stream| assert!(stream.update_keys(false).is_err()),
        // The reader finds a record that does not verify.
        |wire, stream| {
            wire.inject(0, &[23, 3, 3, 0, 17], RxMeta::default());
            wire.inject(0, &[0; 17], RxMeta::default());
            assert!(stream.poll_chunk(&mut Context::from_waker(Waker::noop())).is_ready());
        },
    ];
    for (number, act) in acts.into_iter().enumerate() {
        let wire = Wire::new(1);
        let (_, _, keys) = Counting::pair(SUITE);
        let (a, _b) = wire.ends();
        let mut stream = KtlsStream::new(a, keys, Box::new(ktls_offload::FixedKeys)).unwrap();
        wire.lock()[0].hold = true;
        let ((reads, reader), (writes, writer)) = (task(), task());
        assert!(stream.poll_chunk(&mut Context::from_waker(&reader)).is_pending());
        stream.send("never acknowledged".into(), offload_api::TxTag::PLAIN);
        assert!(stream.poll_acked(&mut Context::from_waker(&writer), 1 << 20).is_pending());
        wire.lock()[0].forget_wakers();
        act(&wire, &mut stream);
        assert_eq!([&reads, &writes].map(|task| task.0.load(Ordering::Relaxed) > 0), [true; 2], "act {number}");
        assert!(stream.poll_chunk(&mut Context::from_waker(Waker::noop())).is_ready());
        assert!(stream.poll_room(&mut Context::from_waker(Waker::noop())).is_ready());
    }
}

/// The transport wakes one task for news of the device; here it was a writer, which then went away.
#[test]
fn news_of_the_device_reach_the_task_that_waits_for_them() {
    let wire = Wire::new(1).with_devices(0.0, 1);
    let (mut near, _far) = streams(&wire, SUITE);
    wire.lock()[0].device.as_mut().unwrap().silent = true;
    let asked = near.offload(Offload::BOTH);
    let handle = asked.rx.handle().unwrap();
    let ((reads, reader), (writes, writer)) = (task(), task());
    assert!(near.poll_ready(&mut Context::from_waker(&reader)).is_pending());
    assert!(near.poll_room(&mut Context::from_waker(&writer)).is_ready());
    let ready = offload_api::DeviceEvent::Ready { flow: rig::device::FLOW, handle };
    wire.lock()[0].device.as_mut().unwrap().push_event(ready);
    wire.pump(1, 0); // wakes whom the transport knows
    assert!(reads.0.load(Ordering::Relaxed) > 0, "the writer was woken {} times", writes.0.load(Ordering::Relaxed));
    assert!(near.poll_ready(&mut Context::from_waker(&reader)).is_ready());
    // And if it is the writer who hears of it:
    let removed = offload_api::DeviceEvent::Removed { flow: rig::device::FLOW, handle };
    assert!(near.poll_chunk(&mut Context::from_waker(&reader)).is_pending());
    let before = reads.0.load(Ordering::Relaxed);
    wire.lock()[0].device.as_mut().unwrap().push_event(removed);
    assert!(near.poll_room(&mut Context::from_waker(&writer)).is_ready());
    assert!(reads.0.load(Ordering::Relaxed) > before);
}

/// `offload` takes in what has arrived; who waits in a read goes on waiting for the rest.
#[test]
fn asking_for_a_device_leaves_a_waiting_reader_awake() {
    let wire = Wire::new(1).with_devices(0.0, 1);
    // Its word would wake the reader as well.
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

/// Who waits for bytes to be acknowledged that went nowhere, for the stream had failed, is told.
#[test]
fn what_a_failed_stream_did_not_take_is_never_waited_for() {
    let wire = Wire::new(1);
    let (mut near, mut far) = streams(&wire, SUITE);
    near.send("taken".into(), TxTag::PLAIN);
    let cx = &mut Context::from_waker(Waker::noop());
    wire.inject(0, &[23, 3, 3, 0, 17], RxMeta::default());
    wire.inject(0, &[0; 17], RxMeta::default());
    assert!(near.poll_chunk(cx).is_ready());
    near.send("not taken".into(), TxTag::PLAIN);
    assert!(matches!(near.poll_acked(cx, 5), Poll::Ready(Ok(()))), "what was taken is delivered");
    assert!(matches!(near.poll_acked(cx, 14), Poll::Ready(Err(_))));
    // The same where the end was meant.
    far.finish();
    far.send("not taken".into(), TxTag::PLAIN);
    let Poll::Ready(Err(error)) = far.poll_acked(cx, 9) else { panic!("it waits for nothing") };
    assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
}

/// `ready` takes in what has arrived. Whole records of it are still read when the connection is lost meanwhile.
#[tokio::test]
async fn what_arrived_before_the_connection_was_lost_is_read() {
    let wire = Wire::new(3).with_devices(0.0, 3);
    wire.lock()[1].tells_next = false;
    let (mut near, mut far) = streams(&wire, SUITE);
    assert_eq!(far.offload(Offload { tx: false, rx: true }).rx, Outcome::Deferred);
    // A record, and a piece of the next.
    wire.lock()[0].hold = true;
    near.send("whole".into(), TxTag::PLAIN);
    near.send("never whole".into(), TxTag::PLAIN);
    wire.pump(0, 22 + "whole".len() + 3);
    let cx = &mut Context::from_waker(Waker::noop());
    assert!(far.poll_ready(cx).is_pending());
    wire.lose(1);
    let outcome = far.ready().await;
    assert_eq!(outcome.unwrap(), Outcome::Refused(NotOffloaded::Closed));
    assert_eq!(far.next_chunk().await.unwrap().unwrap(), "whole");
    assert_eq!(far.next_chunk().await.unwrap_err().kind(), io::ErrorKind::ConnectionReset);
}

/// A peer that sends no record: no context will ever begin behind that, and who waits for one is told to read on.
#[tokio::test]
async fn what_is_no_record_is_not_waited_behind() {
    let wire = Wire::new(3).with_devices(0.0, 3);
    let (_near, mut far) = streams(&wire, SUITE);
    wire.inject(1, b"GET / HTTP/1.1", RxMeta::default());
    assert_eq!(far.offload(Offload { tx: false, rx: true }).rx, Outcome::Refused(NotOffloaded::Closed));
    assert_eq!(far.ready().await.unwrap(), Outcome::Refused(NotOffloaded::Closed));
    let error = far.next_chunk().await.unwrap_err();
    assert_eq!(error.get_ref().unwrap().downcast_ref(), Some(&TlsError::UnexpectedRecord(b'G')));
    // Nor behind a key that the stream has ended with.
    assert_eq!(far.offload(Offload { tx: false, rx: true }).rx, Outcome::Refused(NotOffloaded::Closed));
}
