//! A host with several queues against an adversary and an oracle. Writes are cancelled, dropped and timed out at random
//! times, connections are lost, and buffers have parts that are neighbours in memory.
//!
//! The oracle tracks the values that each block may hold. A command that succeeded determines its blocks. An abandoned
//! command was executed or not, block by block. The next read decides, and the value must not change afterwards.

use crate::bed;

use bed::{Layers, NvmeNetwork};
use bytes::{Bytes, BytesMut};
use core::time::Duration;
use futures_util::future::{Either, join_all, select};
use nvme_tcp::host::{Buffer, CommandError, CommandFuture, Disk, Host, Offload};
use nvme_tcp::target::TransportConfig;
use offload_base::{Rng, Seed};
use offload_testbed::Runtime;
use std::sync::Arc;

/// Possible values of each block: the number of a write, or 0 for zeros.
struct BlockModel {
    blocks: Vec<Vec<u32>>,
    /// Number of writes so far.
    writes: u32,
}

/// Treatment of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CommandFate {
    Awaited,
    Cancelled,
    Dropped,
    TimedOut,
}

impl BlockModel {
    fn new() -> BlockModel {
        BlockModel { blocks: vec![vec![0]; BLOCKS as usize], writes: 0 }
    }

    /// Notes that a command puts `value` into some blocks, certainly or possibly.
    fn change(&mut self, first: u64, count: u64, value: u32, is_certain: bool) {
        for held in &mut self.blocks[first as usize..][..count as usize] {
            if is_certain {
                held.clear();
            }
            if !held.contains(&value) {
                held.push(value);
            }
        }
    }

    /// Checks the blocks that a read returned.
    fn check(&mut self, first: u64, found: &[u8], note: &str) {
        for (block, bytes) in (first..).zip(found.chunks_exact(BLOCK)) {
            let held = &mut self.blocks[block as usize];
            let value = u32::from_le_bytes(bytes[..4].try_into().unwrap());
            assert!(held.contains(&value), "block {block} holds {value}, not one of {held:?}: {note}");
            assert!(bytes == content(value), "block {block} holds parts of several writes: {note}");
            // The read has decided: the block must keep this value.
            *held = vec![value];
        }
    }
}

/// Returns the content that write `value` puts into a block.
fn content(value: u32) -> Vec<u8> {
    value.to_le_bytes().repeat(BLOCK / 4)
}

struct RandomUser {
    rng: Rng,
    oracle: BlockModel,
    host: Host,
    disk: Disk,
    runtime: Arc<dyn Runtime>,
}

impl RandomUser {
    /// Performs a random operation. Abandoned operations on the same blocks may still be running.
    async fn step(&mut self) {
        let count = 1 + self.rng.below(u64::from(self.disk.max_transfer().min(128 << 10)) / BLOCK as u64);
        let count = if self.rng.chance(0.5) { count.min(8) } else { count };
        let first = self.rng.below(BLOCKS - count + 1);
        match self.rng.below(8) {
            0..4 => self.change(first, count).await,
            4 => self.keep_queues_busy(),
            _ => self.read(first, count).await,
        }
    }

    async fn change(&mut self, first: u64, count: u64) {
        self.oracle.writes += 1;
        let (value, done) = match self.rng.below(6) {
            0 => (0, self.disk.write_zeroes(first, count as u32)),
            1 => (0, self.disk.deallocate(&[(first, count as u32)])),
            _ => {
                let pieces = self.pieces(count);
                (self.oracle.writes, self.disk.write(first, pieces))
            }
        };
        let fate = [CommandFate::Awaited, CommandFate::Cancelled, CommandFate::Dropped, CommandFate::TimedOut]
            [self.rng.below(4) as usize];
        let pause = self.pause();
        // An abandoned command without a result may or may not have been executed.
        let ended = match fate {
            CommandFate::Awaited => Some(done.await),
            CommandFate::Cancelled => {
                pause.await;
                done.cancel();
                // A caller that drops the future has abandoned the command as well.
                if self.rng.chance(0.5) { Some(done.await) } else { None }
            }
            CommandFate::Dropped => {
                pause.await;
                drop(done);
                None
            }
            CommandFate::TimedOut => match select(done, Box::pin(pause)).await {
                Either::Left((ended, _)) => Some(ended),
                Either::Right(_) => None,
            },
        };
        match ended {
            Some(Ok(_)) => self.oracle.change(first, count, value, true),
            None | Some(Err(CommandError::Cancelled)) if fate != CommandFate::Awaited => {
                self.oracle.change(first, count, value, false);
            }
            other => panic!("{fate:?}: {other:?}"),
        }
    }

    fn pieces(&mut self, count: u64) -> Vec<Bytes> {
        let mut data: Bytes = content(self.oracle.writes).repeat(count as usize).into();
        let rest = data.split_off(self.rng.below(data.len() as u64) as usize);
        vec![data, rest]
    }

    /// Occupies queues with commands on separate blocks, so that the next command may have to wait.
    fn keep_queues_busy(&mut self) {
        let commands: Vec<CommandFuture> = (0..self.rng.below(8))
            .map(|number| match number % 2 {
                0 => self.disk.write(BLOCKS, [Bytes::from(vec![1; 64 << 10])]),
                _ => self.disk.flush(),
            })
            .collect();
        if self.rng.chance(0.5) {
            // The commands continue in a task; without the task, they are abandoned.
            let _task = self.runtime.spawn("busy", async move { drop(join_all(commands).await) });
        }
    }

    async fn read(&mut self, first: u64, count: u64) {
        let bytes = count as usize * BLOCK;
        let mut slab = BytesMut::zeroed(bytes);
        let mut parts = Vec::new();
        for _ in 0..self.rng.below(4) {
            parts.push(slab.split_to(self.rng.below(slab.len() as u64) as usize));
        }
        parts.push(slab);
        let shape: Vec<usize> = parts.iter().map(BytesMut::len).filter(|len| *len > 0).collect();
        let read = self.disk.read(first, Buffer::from_parts(parts));
        let gives_up = self.rng.chance(0.2);
        if gives_up {
            self.pause().await;
            read.cancel();
        }
        match read.await {
            Ok(buffer) => {
                self.oracle.check(first, &buffer.to_vec(), &format!("{count} blocks from {first} on, in {shape:?}"));
                assert_eq!(buffer.parts().iter().map(|part| part.len()).collect::<Vec<_>>(), shape);
            }
            Err(failed) => {
                assert!(gives_up && matches!(failed.error, CommandError::Cancelled), "{}", failed.error);
                assert_eq!(failed.buffer.parts().iter().map(|part| part.len()).collect::<Vec<_>>(), shape);
            }
        }
    }

    fn pause(&mut self) -> impl Future<Output = ()> + Send + 'static {
        let micros = match self.rng.below(4) {
            0 => 0,
            1 => self.rng.below(100),
            2 => self.rng.below(2_000),
            _ => self.rng.below(50_000),
        };
        self.runtime.sleep(Duration::from_micros(micros))
    }
}

fn run(seed: u64, layers: Layers, loss: f64, offload: Offload, queues: u16) {
    let mut bed = NvmeNetwork::new(seed, TransportConfig::default(), layers, loss);
    let mut config = bed.host_config();
    (config.queues, config.offload, config.replays) = (queues, offload, u32::MAX);
    config.reconnect_delay = Duration::from_millis(5);
    // The short timeouts make some losses silent.
    (config.command_timeout, config.keep_alive) = (Duration::from_millis(400), Duration::from_secs(1));
    let host = bed.connect(config);
    // The host ends if its first connection is cut.
    let host = bed.run(async move {
        host.ready().await.unwrap();
        host
    });
    let mut rng = Seed(seed).stream("cuts");
    let mut at = 20;
    let cuts = (0..8).map(|_| {
        at += rng.below(400);
        at
    });
    let _cuts = bed.cutter(cuts);
    let runtime = bed.runtime();
    bed.run(async move {
        let disk = host.disk(1).await.unwrap();
        let rng = Seed(seed).stream("adversary");
        let mut adversary = RandomUser { rng, oracle: BlockModel::new(), host, disk, runtime };
        for _ in 0..STEPS {
            adversary.step().await;
        }
        // No abandoned command may change a block any more.
        for _ in 0..2 {
            for first in (0..BLOCKS).step_by(64) {
                adversary.read_all(first).await;
            }
            adversary.runtime.sleep(Duration::from_secs(2)).await;
        }
        assert_eq!(adversary.host.queues(), usize::from(queues));
        assert!(adversary.host.stats().connects > 1, "{:?}", adversary.host.stats());
    });
}

impl RandomUser {
    async fn read_all(&mut self, first: u64) {
        let buffer = self.disk.read(first, self.disk.buffer(64)).await.unwrap();
        self.oracle.check(first, &buffer.to_vec(), "in the end");
    }
}

#[test]
fn blocks_hold_possible_values_after_faults() {
    for seed in 0..6 {
        for (layers, loss, offload) in [
            (Layers::Tcp, 0.0, Offload::None),
            (Layers::Tcp, 0.02, Offload::Place),
            (Layers::Tls, 0.01, Offload::None),
            (Layers::TlsNic, 0.0, Offload::PlaceAndCheck),
        ] {
            run(100 + seed, layers, loss, offload, 1 + seed as u16 % 4);
        }
    }
}

/// Number of tested blocks, and bytes of each.
const BLOCKS: u64 = 512;
const BLOCK: usize = 512;
const STEPS: usize = 150;
