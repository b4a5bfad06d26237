//! A host's queue and a controller's connection, joined by in-memory streams that are cut and interleaved at random,
//! and by emulated hosts that lose packets. Data and digests must be correct.

use crate::bed;

use bed::{Layers, NvmeNetwork};
use bytes::{Bytes, BytesMut};
use nvme_tcp::core::controller::{Connection, Job};
use nvme_tcp::core::queue::{CommandData, Queue, QueueConfig, Submission};
use nvme_tcp::exercise::Exercise;
use nvme_tcp::host::Buffer;
use nvme_tcp::namespace::{MemoryStorage, Namespace};
use nvme_tcp::target::{Target, TargetConfig, TransportConfig};
use nvme_tcp::wire::{Command, ConnectData, IoOpcode, Status, commands, property};
use offload_api::{RxMeta, RxSegment};
use offload_base::{Instant, Rng, Seed, Seq};
use proptest::prelude::*;
use smallvec::SmallVec;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

const DISK: &str = "nqn.2026-01.test:disk";
const BLOCK: usize = 512;
const BLOCKS: usize = 256;

/// One queue of each side, and the bytes in flight.
struct QueueAndConnection {
    queue: Queue,
    connection: Connection,
    there: VecDeque<u8>,
    back: VecDeque<u8>,
    jobs: Vec<Job>,
}

impl QueueAndConnection {
    fn new(target: &mut Target, config: QueueConfig) -> QueueAndConnection {
        let (queue, connection) = (Queue::new(Instant::ZERO, config), target.accept(Instant::ZERO));
        QueueAndConnection { queue, connection, there: VecDeque::new(), back: VecDeque::new(), jobs: Vec::new() }
    }

    /// Performs one random step.
    fn step(&mut self, target: &mut Target, rng: &mut Rng, most: u64) {
        match rng.below(6) {
            // PDUs move in small numbers, so that both directions interleave in many ways.
            0 => {
                for _ in 0..=rng.below(3) {
                    let Some(pdu) = self.queue.poll_transmit() else { break };
                    pdu.into_pieces().for_each(|piece| self.there.extend(&piece[..]));
                }
            }
            1 => {
                for _ in 0..=rng.below(3) {
                    let Some(pdu) = self.connection.poll_transmit() else { break };
                    pdu.into_pieces().for_each(|piece| self.back.extend(&piece[..]));
                }
            }
            2 => {
                if let Some(segment) = cut(&mut self.there, rng, most) {
                    self.connection.handle_segment(Instant::ZERO, segment, target);
                }
            }
            3 => {
                if let Some(segment) = cut(&mut self.back, rng, most) {
                    self.queue.handle_segment(segment);
                }
            }
            // Jobs complete in random order, as on several threads.
            4 => self.jobs.extend(self.connection.poll_job()),
            _ => {
                if !self.jobs.is_empty() {
                    let job = self.jobs.swap_remove(rng.below(self.jobs.len() as u64) as usize);
                    self.connection.complete(Instant::ZERO, job.run(), target);
                }
            }
        }
        assert!(self.queue.error().is_none(), "{:?}", self.queue.error());
    }

    fn execute(&mut self, target: &mut Target, rng: &mut Rng, command: Command, payload: CommandData) -> u64 {
        while !self.queue.is_open() {
            self.step(target, rng, 1 << 16);
        }
        self.queue.submit(Instant::ZERO, Submission { command, payload }).unwrap();
        loop {
            if let Some(finished) = self.queue.poll_finished() {
                assert!(finished.completion.status.is_success(), "{finished:?}");
                return finished.completion.result;
            }
            self.step(target, rng, 1 << 16);
        }
    }

    fn connect(&mut self, target: &mut Target, rng: &mut Rng, id: u16, controller: u16) -> u16 {
        let data = ConnectData { host_id: [1; 16], controller, subsystem: DISK.into(), host: "nqn.test".into() };
        let payload = CommandData::Write(SmallVec::from_iter([data.to_bytes().into()]));
        self.execute(target, rng, commands::connect(id, 31, core::time::Duration::ZERO), payload) as u16
    }
}

/// Takes up to `most` of the bytes in flight.
fn cut(stream: &mut VecDeque<u8>, rng: &mut Rng, most: u64) -> Option<RxSegment> {
    let bytes = (1 + rng.below(most) as usize).min(stream.len());
    let data: Vec<u8> = stream.drain(..bytes).collect();
    (bytes > 0).then(|| RxSegment { seq: Seq(0), data: BytesMut::from(&data[..]).into(), meta: RxMeta::default() })
}

/// Compares the disk with an oracle. Concurrent commands do not overlap.
fn commands_against_an_oracle(seed: u64, transport: TransportConfig, config: QueueConfig, most: u64) {
    let mut rng = Seed(seed).stream("pair");
    let mut target = Target::new(TargetConfig { transport, ..TargetConfig::default() }).unwrap();
    target.add_subsystem(DISK, None).unwrap();
    let storage = Arc::new(MemoryStorage::new((BLOCKS * BLOCK) as u64));
    target.add_namespace(DISK, Namespace::new(1, BLOCK as u32, storage).unwrap()).unwrap();
    let mut admin = QueueAndConnection::new(&mut target, QueueConfig::default());
    let controller = admin.connect(&mut target, &mut rng, 0, 0xffff);
    let enable = commands::property_set(property::CC, 0x0046_0001);
    admin.execute(&mut target, &mut rng, enable, CommandData::None);
    let mut pair = QueueAndConnection::new(&mut target, config);
    pair.connect(&mut target, &mut rng, 1, controller);
    pair.queue.set_in_capsule(config.in_capsule);

    let mut oracle = vec![0; BLOCKS * BLOCK];
    let mut under_way: BTreeMap<u16, (usize, usize, Option<Vec<u8>>)> = BTreeMap::new();
    let (mut left, mut idle) = (60, 0);
    while left > 0 || !under_way.is_empty() {
        if left > 0 && pair.queue.room() > 0 && rng.chance(0.3) {
            let count = 1 + rng.below(48) as usize;
            let first = rng.below((BLOCKS - count) as u64) as usize;
            // Overlapping concurrent commands have no defined result, so they are not submitted.
            let free = under_way.values().all(|(at, blocks, _)| first + count <= *at || at + blocks <= first);
            if free {
                left -= 1;
                let bytes = count * BLOCK;
                let writes = rng.chance(0.5);
                let opcode = if writes { IoOpcode::Write } else { IoOpcode::Read };
                let command = commands::range(opcode, 1, first as u64, count as u32);
                let (payload, data) = if writes {
                    let mut data = vec![0; bytes];
                    rng.fill(&mut data);
                    let whole = Bytes::from(data.clone());
                    let at = rng.below(bytes as u64) as usize;
                    let parts = [whole.slice(..at), whole.slice(at..)];
                    (CommandData::Write(parts.into_iter().filter(|part| !part.is_empty()).collect()), Some(data))
                } else {
                    let at = rng.below(bytes as u64) as usize;
                    (CommandData::Read(Buffer::from_parts([BytesMut::zeroed(at), BytesMut::zeroed(bytes - at)])), None)
                };
                let id = pair.queue.submit(Instant::ZERO, Submission { command, payload }).unwrap();
                under_way.insert(id, (first, count, data));
            }
        }
        pair.step(&mut target, &mut rng, most);
        // Detects a deadlock between the two sides.
        idle += 1;
        assert!(idle < 3_000_000, "no progress (seed {seed})");
        while let Some(finished) = pair.queue.poll_finished() {
            idle = 0;
            let (first, count, data) = under_way.remove(&finished.id).expect("the command was active");
            assert_eq!(finished.completion.status, Status::SUCCESS, "seed {seed}");
            let place = &mut oracle[first * BLOCK..(first + count) * BLOCK];
            match (data, finished.submission.payload) {
                (Some(data), _) => place.copy_from_slice(&data),
                (None, CommandData::Read(buffer)) => {
                    assert!(buffer.to_vec() == place, "seed {seed}: blocks from {first} on")
                }
                (None, payload) => panic!("{payload:?}"),
            }
        }
    }
}

fn transports() -> impl Strategy<Value = TransportConfig> {
    (0u8..8, 1u32..5, 0u32..3, 1u32..6, 512u32..20_000, 512u32..20_000).prop_map(
        |(alignment, max_data, in_capsule, requests, request_bytes, data_bytes)| TransportConfig {
            alignment,
            max_data: max_data * 4096,
            in_capsule: in_capsule * 4096,
            requests,
            // Allows PDUs with lengths that are not multiples of four.
            request_bytes,
            data_bytes,
            ..TransportConfig::default()
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn random_cuts_and_interleavings_keep_the_data(
        seed: u64,
        transport in transports(),
        (header_digest, data_digest, alignment, requests) in any::<(bool, bool, bool, bool)>(),
        most in prop_oneof![1u64..200, Just(1448), Just(40_000)],
    ) {
        let config = QueueConfig {
            depth: 31,
            header_digest,
            data_digest,
            alignment: if alignment { 15 } else { 0 },
            requests: if requests { 4 } else { 1 },
            in_capsule: transport.in_capsule,
            ..QueueConfig::default()
        };
        commands_against_an_oracle(seed, transport, config, most);
    }
}

#[test]
fn lost_and_reordered_packets_keep_the_data() {
    let small =
        TransportConfig { request_bytes: 10_000, data_bytes: 6_000, max_data: 4096, ..TransportConfig::default() };
    for (seed, loss, layers, transport) in [
        (11, 0.0, Layers::Tcp, TransportConfig::default()),
        (12, 0.01, Layers::Tcp, TransportConfig::default()),
        (13, 0.05, Layers::Tcp, small),
        (14, 0.0, Layers::Tls, small),
        (15, 0.02, Layers::Tls, small),
    ] {
        for digests in [false, true] {
            let mut bed = NvmeNetwork::new(seed, transport, layers, loss);
            let mut config = bed.host_config();
            (config.queues, config.header_digest, config.data_digest) = (2, digests, digests);
            let host = bed.connect(config);
            let stats = bed.run(async move {
                host.ready().await.unwrap();
                let disk = host.disk(1).await.unwrap();
                let exercise = Exercise { bytes: 6 << 20, blocks: 4096, ..Exercise::new(Seed(seed)) };
                exercise.run(&disk, |_| ()).await.unwrap();
                host.stats()
            });
            assert_eq!((stats.connects, stats.retries), (1, 0), "seed {seed}: TCP hides losses");
        }
    }
}
