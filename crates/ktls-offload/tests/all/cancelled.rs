//! Futures dropped at any point, and tasks that leave. Accepted data must not be lost or sent twice, and every waiting
//! task must be woken. The executor polls only woken tasks, so that a missing wake shows as a standstill. Streams are
//! tiny, so that tasks wait often.

use crate::rig;

use ktls_offload::{FixedKeys, KtlsStream};
use offload_api::{TlsSuite, TokioSegments};
use offload_base::{Rng, Seed};
use proptest::prelude::*;
use rig::tasks::{TlsTask, run, turn, within};
use rig::{CountingSchedule, SUITES};
use std::cell::RefCell;
use std::rc::Rc;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};

type TokioStream = KtlsStream<TokioSegments<DuplexStream>>;

/// Creates two streams with `room` bytes of buffer between them in each direction.
fn pair(suite: TlsSuite, room: usize) -> (TokioStream, TokioStream) {
    let (one, other, keys) = CountingSchedule::pair(suite);
    let (near, far) = tokio::io::duplex(room);
    let near = KtlsStream::new(TokioSegments::new(near), keys.clone(), Box::new(one)).unwrap();
    let far = KtlsStream::new(TokioSegments::new(far), keys.swapped(), Box::new(other)).unwrap();
    (near, far)
}

/// Sends runs of one number each, and drops some futures. Records how much of each run was sent for certain and at
/// most.
async fn send(stream: &mut TokioStream, rng: &mut Rng, sent: &RefCell<Vec<(u8, usize, usize)>>) {
    for number in 1..=20u8 {
        let length = 1 + rng.below(400) as usize;
        let data = vec![number; length];
        sent.borrow_mut().push((number, 0, length));
        let least = match rng.below(4) {
            0 => within(rng.below(4), stream.send_chunk(data.into()))
                .await
                .map_or(0, |done| done.map(|()| length).unwrap()),
            // A dropped write has written nothing.
            1 => {
                let written = within(rng.below(4), stream.write(&data)).await.map_or(0, Result::unwrap);
                sent.borrow_mut().last_mut().unwrap().2 = written;
                written
            }
            2 => {
                if rng.chance(0.5) {
                    stream.update_keys(rng.chance(0.5)).unwrap();
                }
                let _ = within(rng.below(3), stream.flush()).await;
                // No data arrive, so this only polls.
                assert!(within(1, stream.next_chunk()).await.is_none());
                stream.write_all(&data).await.unwrap();
                length
            }
            _ => {
                stream.send_chunk(data.into()).await.unwrap();
                length
            }
        };
        sent.borrow_mut().last_mut().unwrap().1 = least;
        turn().await;
    }
    // A dropped close is repeated; it must send only one close_notify.
    while within(1 + rng.below(2), stream.close()).await.is_none() {
        turn().await;
    }
}

/// Reads to the end, with some reads dropped.
async fn receive(stream: &mut TokioStream, rng: &mut Rng, got: &RefCell<Vec<u8>>) {
    let mut buffer = [0; 50];
    loop {
        let polls = rng.below(4);
        let chunk = match rng.below(4) {
            0 => within(polls, stream.next_chunk()).await.map(|chunk| chunk.unwrap().map(|bytes| bytes.to_vec())),
            1 => {
                let read = within(polls, stream.read(&mut buffer)).await;
                read.map(|read| Some(buffer[..read.unwrap()].to_vec()).filter(|bytes| !bytes.is_empty()))
            }
            2 => {
                let ready = within(polls, stream.ready()).await;
                assert!(ready.is_none_or(|outcome| outcome.unwrap().handle().is_none()));
                turn().await;
                continue;
            }
            // Some reads must be awaited, or the test would only spin.
            _ => Some(stream.next_chunk().await.unwrap().map(|bytes| bytes.to_vec())),
        };
        match chunk {
            Some(Some(bytes)) => got.borrow_mut().extend(bytes),
            Some(None) => return,
            None => turn().await,
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn taken_data_arrive_once_after_cancelled_futures(
        seed in any::<u64>(),
        room in prop::sample::select(vec![1usize, 7, 64, 1000, 1 << 20]),
        record in prop::sample::select(vec![1usize, 30, 16_384]),
        suite in prop::sample::select(SUITES.to_vec()),
    ) {
        let (mut near, mut far) = pair(suite, room);
        near.set_record_size(record);
        let (sent, got) = (RefCell::new(Vec::new()), RefCell::new(Vec::new()));
        let (mut sending, mut receiving) = (Seed(seed).stream("send"), Seed(seed).stream("receive"));
        let done = run(vec![
            Box::pin(send(&mut near, &mut sending, &sent)),
            Box::pin(receive(&mut far, &mut receiving, &got)),
        ]);
        prop_assert!(done, "all tasks wait; {} bytes arrived of {:?}", got.borrow().len(), sent.borrow());
        let got = got.borrow();
        let mut rest = &got[..];
        for (number, least, most) in sent.borrow().iter() {
            let run = rest.iter().take_while(|byte| *byte == number).count();
            prop_assert!((*least..=*most).contains(&run), "{run} of {number}, between {least} and {most}");
            rest = &rest[run..];
        }
        prop_assert!(rest.is_empty(), "out of order, or twice");
    }

    /// At both ends one task reads and another writes. Reads and flushes are dropped, and readers leave for good.
    #[test]
    fn tasks_that_share_a_stream_leave_each_other_awake(
        seed in any::<u64>(),
        room in prop::sample::select(vec![1usize, 7, 64, 1000]),
        leaves in prop::collection::vec(any::<bool>(), 2),
    ) {
        const BYTES: usize = 3000;
        let (near, far) = pair(SUITES[0], room);
        let mut tasks: Vec<TlsTask<'_>> = Vec::new();
        let mut halves = Vec::new();
        for (side, stream) in [near, far].into_iter().enumerate() {
            // The halves share one stream behind a lock, so each may overwrite the other's waker.
            let (reader, mut writer) = tokio::io::split(stream);
            let rng = Rc::new(RefCell::new(Seed(seed).stream(["near", "far"][side])));
            let writes = rng.clone();
            tasks.push(Box::pin(async move {
                let mut left = BYTES;
                while left > 0 {
                    let length = (1 + writes.borrow_mut().below(300) as usize).min(left);
                    writer.write_all(&vec![7; length]).await.unwrap();
                    left -= length;
                    let polls = writes.borrow_mut().below(3);
                    let _ = within(polls, writer.flush()).await;
                }
                writer.flush().await.unwrap();
            }));
            halves.push((reader, rng, leaves[side]));
        }
        for (mut reader, rng, leaves) in halves {
            tasks.push(Box::pin(async move {
                let (mut got, mut buffer) = (0, [0; 100]);
                while got < BYTES {
                    let polls = rng.borrow_mut().below(4);
                    match within(polls, reader.read(&mut buffer)).await {
                        Some(read) => got += read.unwrap(),
                        // Another read continues on the same half.
                        None => turn().await,
                    }
                    if leaves && got > BYTES / 2 {
                        // The reader consumes its data, or the peer's writer could not finish.
                        reader.read_exact(&mut vec![0; BYTES - got]).await.unwrap();
                        return;
                    }
                }
            }));
        }
        prop_assert!(run(tasks), "all tasks wait");
    }
}

/// Queued data are delivered by any task that polls, even if the closing future was dropped.
#[test]
fn a_close_that_is_given_up_is_carried_out_by_whoever_polls() {
    let (_, _, keys) = CountingSchedule::pair(SUITES[0]);
    let (near, far) = tokio::io::duplex(10);
    let mut near = KtlsStream::new(TokioSegments::new(near), keys.clone(), Box::new(FixedKeys)).unwrap();
    let mut far = KtlsStream::new(TokioSegments::new(far), keys.swapped(), Box::new(FixedKeys)).unwrap();
    let done = run(vec![
        Box::pin(async move {
            near.write_all(&[7; 1000]).await.unwrap();
            assert!(within(1, near.close()).await.is_none());
            // Only reads follow, which must deliver the queued data.
            assert_eq!(near.next_chunk().await.unwrap(), None);
        }),
        Box::pin(async move {
            let mut all = Vec::new();
            far.read_to_end(&mut all).await.unwrap();
            assert_eq!(all, [7; 1000]);
            far.close().await.unwrap();
        }),
    ]);
    assert!(done);
}
