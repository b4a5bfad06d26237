//! Two applications that act at random on one stream each, in two tasks, a reader and a writer. Actions: writes, reads,
//! futures dropped at any poll, key changes, offload requests, device resets and evictions, readers that leave, regular
//! ends, drops and aborts.
//!
//! Invariants: accepted data arrive in order, or a part arrives with an error. A clean end occurs only after a close.
//! No task waits when nothing is in flight. Queues are bounded. No context stays in a device. Runs on the CPU and on
//! devices; without dropped futures, the outcomes are equal.

use crate::rig;

use bytes::Bytes;
use ktls_offload::{KtlsStream, Offload, TlsError};
use offload_api::{ContextRefusal, SegmentStream, TlsVersion, TxTag};
use offload_base::{Rng, Seed};
use proptest::prelude::*;
use rig::tasks::{TlsTask, run_beside, turn, within};
use rig::{CIPHERS, MockTransport, MockWire, SegmentLengths, TestCipher, streams};
use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// The end of a writer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WriterEnd {
    Close,
    /// The writer polls a close once, and leaves.
    CloseGivenUp,
    /// The writer drops the stream, regardless of the reader.
    Drop,
    Abort,
}

#[derive(Clone, Debug)]
struct SchedulePlan {
    seed: u64,
    cipher: TestCipher,
    window: usize,
    send_buffer: usize,
    cut: SegmentLengths,
    record_size: usize,
    padding: usize,
    miss: f64,
    endings: [WriterEnd; 2],
    /// Whether the reader of the first end leaves early.
    leaves: bool,
    /// Whether futures are dropped.
    gives_up: bool,
}

fn plans() -> impl Strategy<Value = SchedulePlan> {
    let ending = || {
        prop_oneof![
            4 => Just(WriterEnd::Close),
            1 => Just(WriterEnd::CloseGivenUp),
            1 => Just(WriterEnd::Drop),
            1 => Just(WriterEnd::Abort),
        ]
    };
    let wire = (
        prop::sample::select(vec![1usize, 100, 3000, 1 << 20]),
        prop::sample::select(vec![1usize, 500, 1 << 16]),
        prop_oneof![
            Just(SegmentLengths::Every(1)),
            Just(SegmentLengths::Every(1448)),
            (2u64..600).prop_map(SegmentLengths::UpTo)
        ],
        prop_oneof![Just(0.0), 0.0..0.3f64],
    );
    let stream = (
        prop::sample::select(CIPHERS.to_vec()),
        prop::sample::select(vec![1usize, 40, 16_384]),
        prop::sample::select(vec![1usize, 64]),
    );
    let plan = (any::<u64>(), wire, stream, [ending(), ending()], any::<bool>(), any::<bool>());
    plan.prop_map(|(seed, (window, send_buffer, cut, miss), stream, endings, leaves, gives_up)| {
        let (cipher, record_size, padding) = stream;
        SchedulePlan { seed, cipher, window, send_buffer, cut, record_size, padding, miss, endings, leaves, gives_up }
    })
}

/// An application: its stream and its history.
struct Application {
    number: usize,
    /// `None` once dropped.
    stream: RefCell<Option<KtlsStream<MockTransport>>>,
    /// Number of tasks that use the stream.
    users: Cell<usize>,
    accepted: Cell<usize>,
    closed: Cell<bool>,
    dropped: Cell<bool>,
    aborted: Cell<bool>,
    got: Cell<usize>,
    ended: RefCell<Option<io::Result<()>>>,
    left: Cell<bool>,
    /// Wakers of waiting tasks, woken when the stream is dropped.
    waiting: RefCell<Vec<Waker>>,
}

impl Application {
    fn new(number: usize, stream: KtlsStream<MockTransport>) -> Application {
        Application {
            number,
            stream: RefCell::new(Some(stream)),
            users: Cell::new(2),
            accepted: Cell::default(),
            closed: Cell::default(),
            dropped: Cell::default(),
            aborted: Cell::default(),
            got: Cell::default(),
            ended: RefCell::default(),
            left: Cell::default(),
            waiting: RefCell::default(),
        }
    }

    /// Waits for the result of `poll`. Returns `None` if the stream was dropped.
    async fn wait<T>(
        &self,
        mut poll: impl FnMut(&mut KtlsStream<MockTransport>, &mut Context<'_>) -> Poll<T>,
    ) -> Option<T> {
        poll_fn(|cx| match &mut *self.stream.borrow_mut() {
            None => Poll::Ready(None),
            Some(stream) => {
                let polled = poll(stream, cx);
                if polled.is_pending() {
                    self.waiting.borrow_mut().push(cx.waker().clone());
                }
                polled.map(Some)
            }
        })
        .await
    }

    fn with<T>(&self, f: impl FnOnce(&mut KtlsStream<MockTransport>) -> T) -> Option<T> {
        self.stream.borrow_mut().as_mut().map(f)
    }

    fn drop_stream(&self) {
        drop(self.stream.borrow_mut().take());
        self.waiting.borrow_mut().drain(..).for_each(Waker::wake);
    }

    /// Ends a task. The last task drops the stream.
    fn leave(&self) {
        self.users.set(self.users.get() - 1);
        if self.users.get() == 0 {
            self.drop_stream();
        }
    }
}

/// Returns the byte that `side` sends at offset `place`.
fn byte(side: usize, place: usize) -> u8 {
    (place as u32).wrapping_mul(2_654_435_761).to_be_bytes()[0] ^ side as u8
}

/// Returns the number of polls after which a future is dropped.
fn polls(plan: &SchedulePlan, rng: &mut Rng) -> u64 {
    if plan.gives_up && rng.chance(0.4) { rng.below(4) } else { u64::MAX }
}

async fn write(plan: &SchedulePlan, wire: &MockWire, side: &Application, peer: &Application, rng: &mut Rng) {
    let tiny = plan.record_size == 1 || matches!(plan.cut, SegmentLengths::Every(1));
    let most = if tiny { 100 } else { 3000 };
    for _ in 0..STEPS {
        let result = match rng.below(9) {
            0..=3 => {
                let from = side.accepted.get();
                let data: Vec<u8> =
                    (from..from + 1 + rng.below(most) as usize).map(|at| byte(side.number, at)).collect();
                let shared = rng.chance(0.5);
                let written = side.wait(|stream, cx| {
                    let written = if shared {
                        stream.poll_room(cx).map_ok(|_| {
                            stream.send(Bytes::from(data.clone()), TxTag::PLAIN);
                            stream.flush();
                            data.len()
                        })
                    } else {
                        Pin::new(stream).poll_write(cx, &data)
                    };
                    if let Poll::Ready(Ok(bytes)) = written {
                        // Recorded within the poll: a dropped future must not lose the count.
                        side.accepted.set(from + bytes);
                    }
                    written.map_ok(|_| ())
                });
                within(polls(plan, rng), written).await
            }
            4 => {
                let flushed = side.wait(|stream, cx| Pin::new(stream).poll_flush(cx));
                within(polls(plan, rng), flushed).await
            }
            5 => {
                // Only accepted data may be awaited, or the wait would not end.
                let accepted = side.accepted.get() as u64;
                let acked = side.wait(|stream, cx| stream.poll_acked(cx, accepted));
                // The peer may no longer read.
                let polls = if plan.leaves && side.number == 1 { rng.below(4) } else { polls(plan, rng) };
                within(polls, acked).await
            }
            6 => {
                let (both, times) = (rng.chance(0.5), 1 + rng.below(3));
                let update = |stream: &mut KtlsStream<MockTransport>| match stream.update_keys(both) {
                    Err(error) if error.kind() == io::ErrorKind::Unsupported => {
                        assert_eq!(plan.cipher.version, TlsVersion::Tls12);
                        Ok(())
                    }
                    other => other,
                };
                Some(side.with(|stream| (0..times).try_for_each(|_| update(stream))))
            }
            7 => {
                side.with(|stream| stream.offload(Offload { tx: rng.chance(0.8), rx: rng.chance(0.8) }));
                None
            }
            _ => {
                trouble(wire, side.number, rng);
                None
            }
        };
        match result {
            Some(None) => return side.leave(), // dropped by the other task
            Some(Some(Err(error))) => {
                let failed = side.ended.borrow().as_ref().is_some_and(Result::is_err);
                assert!(peer.aborted.get() || side.aborted.get() || failed, "no end caused this error: {error}");
                return side.leave();
            }
            Some(Some(Ok(()))) => {}
            None => turn().await,
        }
        let waiting = wire.lock()[side.number].waiting();
        // The transport's room counts wire bytes, so record overhead may exceed the buffer.
        let overhead = 1 + (plan.cipher.overhead() + plan.padding) / plan.record_size.min(most as usize);
        assert!(waiting <= plan.send_buffer + most as usize * overhead + 8192, "{waiting} bytes queued");
    }
    match plan.endings[side.number] {
        WriterEnd::Close => {
            side.closed.set(true);
            if let Some(Err(error)) = side.wait(|stream, cx| Pin::new(stream).poll_shutdown(cx)).await {
                assert!(peer.aborted.get() || side.ended.borrow().as_ref().is_some_and(Result::is_err), "{error}");
            }
        }
        WriterEnd::CloseGivenUp => {
            side.closed.set(true);
            within(1, side.wait(|stream, cx| Pin::new(stream).poll_shutdown(cx))).await;
        }
        WriterEnd::Drop => {
            side.dropped.set(true);
            side.drop_stream();
        }
        WriterEnd::Abort => {
            side.aborted.set(true);
            side.with(SegmentStream::abort);
        }
    }
    side.leave();
}

/// Applies a random device failure.
fn trouble(wire: &MockWire, side: usize, rng: &mut Rng) {
    // Random numbers are drawn without a device too, so that both runs have the same schedule.
    let (kind, refuse) =
        (rng.below(4), [None, None, Some(ContextRefusal::Busy), Some(ContextRefusal::NoSpace)][rng.below(4) as usize]);
    if wire.lock()[side].device.is_none() {
        return;
    }
    match kind {
        0 => wire.reset(side),
        1 | 2 => wire.evict(side),
        _ => wire.lock()[side].device.as_mut().unwrap().refuse = refuse,
    }
}

async fn read(plan: &SchedulePlan, side: &Application, peer: &Application, rng: &mut Rng) {
    let leaves_at = if plan.leaves && side.number == 0 { rng.below(5000) as usize } else { usize::MAX };
    loop {
        if side.got.get() >= leaves_at {
            side.left.set(true);
            return side.leave();
        }
        // Small reads leave content behind for the next read of another kind.
        let room = 1 + rng.below(100) as usize;
        let read = match rng.below(4) {
            0 => {
                // A transport that cannot tell the next position makes this wait for the peer, so it is always limited.
                let ready = side.wait(|stream, cx| stream.poll_ready(cx));
                match within(rng.below(4), ready).await {
                    Some(Some(Err(error))) => Some(Some(Err(error))),
                    _ => {
                        turn().await;
                        continue;
                    }
                }
            }
            1 => {
                let read = side.wait(|stream, cx| {
                    let mut buffer = vec![0; room];
                    let mut buffer = ReadBuf::new(&mut buffer);
                    Pin::new(stream).poll_read(cx, &mut buffer).map_ok(|()| buffer.filled().to_vec())
                });
                within(polls(plan, rng), read).await
            }
            2 => {
                let read = side.wait(|stream, cx| {
                    stream.poll_segment(cx).map_ok(|range| {
                        range.map_or(Vec::new(), |range| {
                            stream.consume(range.data.len());
                            range.data.to_vec()
                        })
                    })
                });
                within(polls(plan, rng), read).await
            }
            _ => {
                let read = side.wait(|stream, cx| stream.poll_chunk(cx));
                let read = within(polls(plan, rng), read).await;
                read.map(|read| read.map(|read| read.map(|chunk| chunk.map_or(Vec::new(), |chunk| chunk.to_vec()))))
            }
        };
        match read {
            None => turn().await,
            Some(None) => return side.leave(),
            Some(Some(Ok(bytes))) if !bytes.is_empty() => {
                let at = side.got.get();
                assert!(at + bytes.len() <= peer.accepted.get(), "more data than were sent");
                assert!(bytes.iter().zip(at..).all(|(got, at)| *got == byte(peer.number, at)), "other bytes at {at}");
                side.got.set(at + bytes.len());
            }
            Some(Some(ended)) => {
                *side.ended.borrow_mut() = Some(ended.map(drop));
                return side.leave();
            }
        }
    }
}

/// For each direction, the number of bytes that arrived, and whether the end was clean.
type ScheduleOutcome = [(usize, bool); 2];

fn play(plan: &SchedulePlan, device: bool) -> ScheduleOutcome {
    let mut wire = MockWire::new(plan.seed);
    if device {
        wire = wire.with_devices(plan.miss, plan.seed);
    }
    for half in wire.lock().iter_mut() {
        (half.hold, half.window, half.send_buffer, half.cut) = (true, plan.window, plan.send_buffer, plan.cut);
    }
    let (near, far) = streams(&wire, plan.cipher);
    let mut number = 0;
    let sides = [near, far].map(|mut stream| {
        stream.set_record_size(plan.record_size);
        stream.set_padding(plan.padding);
        number += 1;
        Application::new(number - 1, stream)
    });
    let mut random =
        ["one writes", "one reads", "other writes", "other reads", "wire"].map(|name| Seed(plan.seed).stream(name));
    let [writes, reads, other_writes, other_reads, network] = &mut random;
    let tasks: Vec<TlsTask<'_>> = vec![
        Box::pin(write(plan, &wire, &sides[0], &sides[1], writes)),
        Box::pin(read(plan, &sides[0], &sides[1], reads)),
        Box::pin(write(plan, &wire, &sides[1], &sides[0], other_writes)),
        Box::pin(read(plan, &sides[1], &sides[0], other_reads)),
    ];
    let mut steps = 0;
    let mut step = |busy: bool| {
        steps += 1;
        assert!(steps < MAX_STEPS, "the run does not terminate");
        // The wire is slower than the tasks, so queues fill up.
        if busy && network.chance(0.7) {
            return true;
        }
        let (first, limit) = (network.below(2) as usize, 1 + network.below(4000) as usize);
        wire.step(first, limit) || wire.step(1 - first, limit)
    };
    let done = run_beside(tasks, &mut step);
    let state = || sides.each_ref().map(|side| (side.accepted.get(), side.got.get(), format!("{:?}", side.stream)));
    assert!(done, "all tasks wait, and nothing is in flight: {:?}", state());
    // Delivers the remaining data, because a dropped stream may still have some queued.
    while step(false) {}

    for (side, peer) in [(&sides[0], &sides[1]), (&sides[1], &sides[0])] {
        let half = &wire.lock()[side.number];
        assert_eq!(half.device.as_ref().map_or(0, |device| device.contexts()), 0, "contexts were not removed");
        let ended = side.ended.borrow();
        let Some(ended) = &*ended else {
            assert!(side.left.get() || side.dropped.get(), "a reader ended without reaching the end");
            continue;
        };
        match ended {
            Ok(()) => {
                assert!(peer.closed.get(), "a clean end without a close");
                assert_eq!(side.got.get(), peer.accepted.get(), "a clean end with missing data");
            }
            Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => assert!(side.aborted.get(), "{error}"),
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => assert!(peer.aborted.get(), "{error}"),
            Err(error) => {
                let inner = error.get_ref().and_then(|inner| inner.downcast_ref());
                assert_eq!(inner, Some(&TlsError::Truncated), "{error}");
                assert!(peer.dropped.get(), "truncated without a drop");
                assert_eq!(side.got.get(), peer.accepted.get(), "data accepted before a drop are delivered");
            }
        }
    }
    sides.each_ref().map(|side| (side.got.get(), matches!(&*side.ended.borrow(), Some(Ok(())))))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn accepted_data_arrive_under_any_schedule(plan in plans()) {
        let plain = play(&plan, false);
        let offloaded = play(&plan, true);
        if !plan.gives_up && !plan.leaves && plan.endings.iter().all(|ending| *ending == WriterEnd::Close) {
            prop_assert_eq!(plain, offloaded);
            prop_assert!(plain.iter().all(|(_, clean)| *clean));
        }
    }
}

/// Actions of a writer.
const STEPS: usize = 30;
/// Maximum number of polls and wire steps in a run.
const MAX_STEPS: u32 = 2_000_000;
