//! Two applications that do whatever a seed says with a stream each, in two tasks, a reader and a writer: writes, reads,
//! futures given up at any poll, keys that change, devices asked for, reset and evicting, readers that go away, ends that
//! are meant, and streams dropped or aborted. What was accepted arrives in order, or a part of it and an error; a clean end
//! only after a close; nobody waits when nothing is under way any more; queues are bounded; no context stays in a device.
//! On the CPU and on devices, and where nothing is given up, with the same outcome.

use crate::rig;

use bytes::Bytes;
use ktls_offload::{KtlsStream, Offload, TlsError};
use offload_api::{ContextRefusal, SegmentStream, TlsVersion, TxTag};
use offload_base::{Rng, Seed};
use proptest::prelude::*;
use rig::tasks::{Task, run_beside, turn, within};
use rig::{CIPHERS, Cipher, Cut, End, Wire, streams};
use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// How a writer ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ending {
    Close,
    /// It polls a close once, and goes.
    CloseGivenUp,
    /// The stream is dropped, whatever its reader is doing.
    Drop,
    Abort,
}

#[derive(Clone, Debug)]
struct Plan {
    seed: u64,
    cipher: Cipher,
    window: usize,
    send_buffer: usize,
    cut: Cut,
    record_size: usize,
    padding: usize,
    miss: f64,
    endings: [Ending; 2],
    /// The reader of the first end goes away.
    leaves: bool,
    /// Futures are given up.
    gives_up: bool,
}

fn plans() -> impl Strategy<Value = Plan> {
    let ending = || {
        prop_oneof![
            4 => Just(Ending::Close),
            1 => Just(Ending::CloseGivenUp),
            1 => Just(Ending::Drop),
            1 => Just(Ending::Abort),
        ]
    };
    let wire = (
        prop::sample::select(vec![1usize, 100, 3000, 1 << 20]),
        prop::sample::select(vec![1usize, 500, 1 << 16]),
        prop_oneof![Just(Cut::Every(1)), Just(Cut::Every(1448)), (2u64..600).prop_map(Cut::UpTo)],
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
        Plan { seed, cipher, window, send_buffer, cut, record_size, padding, miss, endings, leaves, gives_up }
    })
}

/// An application: its stream, and what it did with it.
struct Side {
    number: usize,
    /// `None` once dropped.
    stream: RefCell<Option<KtlsStream<End>>>,
    /// Tasks that use it.
    users: Cell<usize>,
    accepted: Cell<usize>,
    closed: Cell<bool>,
    dropped: Cell<bool>,
    aborted: Cell<bool>,
    got: Cell<usize>,
    ended: RefCell<Option<io::Result<()>>>,
    left: Cell<bool>,
    /// The tasks that wait, for when the stream is dropped.
    waiting: RefCell<Vec<Waker>>,
}

impl Side {
    fn new(number: usize, stream: KtlsStream<End>) -> Side {
        Side {
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

    /// Waits for what `poll` gives; `None` if the stream was dropped.
    async fn wait<T>(&self, mut poll: impl FnMut(&mut KtlsStream<End>, &mut Context<'_>) -> Poll<T>) -> Option<T> {
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

    fn with<T>(&self, f: impl FnOnce(&mut KtlsStream<End>) -> T) -> Option<T> {
        self.stream.borrow_mut().as_mut().map(f)
    }

    fn drop_stream(&self) {
        drop(self.stream.borrow_mut().take());
        self.waiting.borrow_mut().drain(..).for_each(Waker::wake);
    }

    /// A task is done. The last one drops the stream.
    fn leave(&self) {
        self.users.set(self.users.get() - 1);
        if self.users.get() == 0 {
            self.drop_stream();
        }
    }
}

/// The byte that `side` sends at `place`.
fn byte(side: usize, place: usize) -> u8 {
    (place as u32).wrapping_mul(2_654_435_761).to_be_bytes()[0] ^ side as u8
}

/// Patience for a future: any number of polls, or few.
fn polls(plan: &Plan, rng: &mut Rng) -> u64 {
    if plan.gives_up && rng.chance(0.4) { rng.below(4) } else { u64::MAX }
}

async fn write(plan: &Plan, wire: &Wire, side: &Side, peer: &Side, rng: &mut Rng) {
    let tiny = plan.record_size == 1 || matches!(plan.cut, Cut::Every(1));
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
                let accepted = side.accepted.get() as u64;
                let acked = side.wait(|stream, cx| stream.poll_acked(cx, accepted));
                // Its peer may read no more.
                let polls = if plan.leaves && side.number == 1 { rng.below(4) } else { polls(plan, rng) };
                within(polls, acked).await
            }
            6 => {
                let (both, times) = (rng.chance(0.5), 1 + rng.below(3));
                let update = |stream: &mut KtlsStream<End>| match stream.update_keys(both) {
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
            Some(None) => return side.leave(), // dropped by another
            Some(Some(Err(error))) => {
                let failed = side.ended.borrow().as_ref().is_some_and(Result::is_err);
                assert!(peer.aborted.get() || side.aborted.get() || failed, "nobody is to blame: {error}");
                return side.leave();
            }
            Some(Some(Ok(()))) => {}
            None => turn().await,
        }
        let waiting = wire.lock()[side.number].waiting();
        let overhead = 1 + (plan.cipher.overhead() + plan.padding) / plan.record_size.min(most as usize);
        assert!(waiting <= plan.send_buffer + most as usize * overhead + 8192, "{waiting} bytes queued");
    }
    match plan.endings[side.number] {
        Ending::Close => {
            side.closed.set(true);
            if let Some(Err(error)) = side.wait(|stream, cx| Pin::new(stream).poll_shutdown(cx)).await {
                assert!(peer.aborted.get() || side.ended.borrow().as_ref().is_some_and(Result::is_err), "{error}");
            }
        }
        Ending::CloseGivenUp => {
            side.closed.set(true);
            within(1, side.wait(|stream, cx| Pin::new(stream).poll_shutdown(cx))).await;
        }
        Ending::Drop => {
            side.dropped.set(true);
            side.drop_stream();
        }
        Ending::Abort => {
            side.aborted.set(true);
            side.with(SegmentStream::abort);
        }
    }
    side.leave();
}

/// What devices do.
fn trouble(wire: &Wire, side: usize, rng: &mut Rng) {
    // Drawn without a device as well: the rest of the schedule is the same.
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

async fn read(plan: &Plan, side: &Side, peer: &Side, rng: &mut Rng) {
    let leaves_at = if plan.leaves && side.number == 0 { rng.below(5000) as usize } else { usize::MAX };
    loop {
        if side.got.get() >= leaves_at {
            side.left.set(true);
            return side.leave();
        }
        let room = 1 + rng.below(100) as usize;
        let read = match rng.below(4) {
            0 => {
                // Over transports that cannot tell, it waits for the peer.
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
                assert!(at + bytes.len() <= peer.accepted.get(), "more than was sent");
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

/// Bytes that arrived, and how they ended, in each direction.
type Outcome = [(usize, bool); 2];

fn play(plan: &Plan, device: bool) -> Outcome {
    let mut wire = Wire::new(plan.seed);
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
        Side::new(number - 1, stream)
    });
    let mut random =
        ["one writes", "one reads", "other writes", "other reads", "wire"].map(|name| Seed(plan.seed).stream(name));
    let [writes, reads, other_writes, other_reads, network] = &mut random;
    let tasks: Vec<Task<'_>> = vec![
        Box::pin(write(plan, &wire, &sides[0], &sides[1], writes)),
        Box::pin(read(plan, &sides[0], &sides[1], reads)),
        Box::pin(write(plan, &wire, &sides[1], &sides[0], other_writes)),
        Box::pin(read(plan, &sides[1], &sides[0], other_reads)),
    ];
    let mut steps = 0;
    let mut step = |busy: bool| {
        steps += 1;
        assert!(steps < MOST_STEPS, "it never comes to an end");
        if busy && network.chance(0.7) {
            return true;
        }
        let (first, limit) = (network.below(2) as usize, 1 + network.below(4000) as usize);
        wire.step(first, limit) || wire.step(1 - first, limit)
    };
    let done = run_beside(tasks, &mut step);
    let state = || sides.each_ref().map(|side| (side.accepted.get(), side.got.get(), format!("{:?}", side.stream)));
    assert!(done, "everybody waits, and nothing is under way: {:?}", state());
    while step(false) {}

    for (side, peer) in [(&sides[0], &sides[1]), (&sides[1], &sides[0])] {
        let half = &wire.lock()[side.number];
        assert_eq!(half.device.as_ref().map_or(0, |device| device.contexts()), 0, "contexts that nobody gave back");
        let ended = side.ended.borrow();
        let Some(ended) = &*ended else {
            assert!(side.left.get() || side.dropped.get(), "a reader ends with an end");
            continue;
        };
        match ended {
            Ok(()) => {
                assert!(peer.closed.get(), "an end that nobody meant");
                assert_eq!(side.got.get(), peer.accepted.get(), "a clean end of less than all");
            }
            Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => assert!(side.aborted.get(), "{error}"),
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => assert!(peer.aborted.get(), "{error}"),
            Err(error) => {
                let inner = error.get_ref().and_then(|inner| inner.downcast_ref());
                assert_eq!(inner, Some(&TlsError::Truncated), "{error}");
                assert!(peer.dropped.get(), "cut short, and nobody did it");
                assert_eq!(side.got.get(), peer.accepted.get(), "what was accepted before a drop is delivered");
            }
        }
    }
    sides.each_ref().map(|side| (side.got.get(), matches!(&*side.ended.borrow(), Some(Ok(())))))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn what_was_accepted_arrives_whatever_two_applications_do(plan in plans()) {
        let plain = play(&plan, false);
        let offloaded = play(&plan, true);
        if !plan.gives_up && !plan.leaves && plan.endings.iter().all(|ending| *ending == Ending::Close) {
            prop_assert_eq!(plain, offloaded);
            prop_assert!(plain.iter().all(|(_, clean)| *clean));
        }
    }
}

/// Things that a writer does.
const STEPS: usize = 30;
/// Polls and steps of the wire together.
const MOST_STEPS: u32 = 2_000_000;
