//! Placement and digests by the NIC of an emulated host: the same data as by the CPU, despite faults of packets,
//! commands, connections and the device. Every buffer comes back.

use crate::bed;

use bed::{Layers, NvmeNetwork, blocks};
use bytes::BytesMut;
use core::time::Duration;
use nvme_tcp::OffloadCounters;
use nvme_tcp::exercise::Exercise;
use nvme_tcp::host::{Buffer, CommandError, Host, Offload, ReadError};
use nvme_tcp::target::TransportConfig;
use offload_base::Seed;
use offload_base::counters::CounterSet;
use proptest::prelude::*;

fn connect(bed: &NvmeNetwork, offload: Offload, queues: u16) -> Host {
    let mut config = bed.host_config();
    (config.offload, config.queues, config.data_digest) = (offload, queues, true);
    config.reconnect_delay = Duration::from_millis(20);
    bed.connect(config)
}

fn exercise(seed: u64) -> Exercise {
    Exercise { bytes: 12 << 20, blocks: 8192, command_bytes: 256 << 10, ..Exercise::new(Seed(seed)) }
}

#[test]
fn placed_data_match_copied_data() {
    for (seed, loss) in [(21, 0.0), (22, 0.01), (23, 0.05)] {
        for transport in [
            TransportConfig::default(),
            TransportConfig { data_bytes: 50_000, ..TransportConfig::default() },
            TransportConfig { data_bytes: 6_000, ..TransportConfig::default() },
        ] {
            for offload in [Offload::Place, Offload::PlaceAndCheck] {
                let mut bed = NvmeNetwork::new(seed, transport, Layers::Tcp, loss);
                let host = connect(&bed, offload, 2);
                let stats = bed.run(async move {
                    host.ready().await.unwrap();
                    let disk = host.disk(1).await.unwrap();
                    exercise(seed).run(&disk, |_| ()).await.unwrap();
                    host.stats()
                });
                assert_eq!((stats.connects, stats.retries), (1, 0), "seed {seed}");
                let counters = bed.counters();
                let count = |name| counters.value(name);
                assert!(count("rx_nvmeotcp_bytes") > 4 << 20, "seed {seed}: {}", count("rx_nvmeotcp_bytes"));
                assert_eq!(count("rx_nvmeotcp_checked") > 0, offload == Offload::PlaceAndCheck);
                // Loss makes the device lose its place and resynchronise.
                if loss > 0.0 {
                    assert!(count("rx_nvmeotcp_drop") > 0 && count("rx_nvmeotcp_resync") > 0, "seed {seed}");
                }
                assert_eq!(count("rx_nvmeotcp_sk_add"), 2);
            }
        }
    }
}

/// Parts that are neighbours in memory come back unchanged and filled.
#[test]
fn buffer_from_one_slab_keeps_its_parts() {
    for offload in [Offload::None, Offload::Place] {
        let mut bed = NvmeNetwork::new(3, TransportConfig::default(), Layers::Tcp, 0.0);
        let host = connect(&bed, offload, 1);
        let data = blocks(256);
        let expected = data.clone();
        bed.run(async move {
            host.ready().await.unwrap();
            let disk = host.disk(1).await.unwrap();
            disk.write(0, [data]).await.unwrap();
            // Several rounds, because placement begins only once the context is installed.
            for _ in 0..4 {
                let mut slab = BytesMut::zeroed(128 << 10);
                let parts = [1 << 10, 63 << 10, 32 << 10, 32 << 10].map(|bytes| slab.split_to(bytes));
                let places = parts.each_ref().map(|part| (part.as_ptr().addr(), part.len()));
                let buffer = disk.read(0, Buffer::from_parts(parts)).await.unwrap();
                let after: Vec<_> = buffer.parts().iter().map(|part| (part.as_ptr().addr(), part.len())).collect();
                assert_eq!(after, places, "{offload:?}");
                assert_eq!(buffer.to_vec(), expected, "{offload:?}");
            }
        });
        assert_eq!(bed.counters().value("rx_nvmeotcp_bytes") > 0, offload == Offload::Place);
    }
}

/// Packets longer than the headers can express are placed, checked, given digests and encrypted like others, in both
/// directions.
#[test]
fn packets_beyond_64_kib_are_offloaded() {
    for layers in [Layers::Tcp, Layers::TlsNic] {
        for (seed, loss) in [(81, 0.0), (82, 0.01)] {
            let mut bed = NvmeNetwork::with_large_nics(seed, layers, loss);
            let host = connect(&bed, Offload::PlaceAndCheck, 2);
            exercised_through_resets(&mut bed, host, exercise(seed), loss);
            let counters = bed.counters();
            let count = |name| counters.value(name);
            if loss == 0.0 {
                for [bytes, packets] in [["rx_lro_bytes", "rx_lro_packets"], ["tx_tso_bytes", "tx_tso_packets"]] {
                    assert!(count(bytes) / count(packets) > 1 << 16, "{bytes}, seed {seed}");
                }
            }
            assert!(count("rx_nvmeotcp_bytes") > 4 << 20 && count("tx_nvmeotcp_digests") > 20, "seed {seed}");
            assert_eq!(count("tx_drop_out_of_sync"), 0, "seed {seed}");
        }
    }
}

/// Both NICs fill in digests. A wrong digest would cause a retry.
#[test]
fn device_digests_match_the_cpu() {
    for (seed, loss) in [(41, 0.0), (42, 0.01), (43, 0.05)] {
        let (mut bypass, mut needs_software) = (0, 0);
        for transport in [
            TransportConfig::default(),
            TransportConfig { data_bytes: 20_000, max_data: 20_000, ..TransportConfig::default() },
            TransportConfig { data_bytes: 3_000, max_data: 4_096, ..TransportConfig::default() },
        ] {
            // Digests from the target are checked by the host's CPU or NIC; in the other direction by the target's CPU.
            for offload in [Offload::None, Offload::PlaceAndCheck] {
                let mut bed = NvmeNetwork::new(seed, transport, Layers::Tcp, loss);
                let host = connect(&bed, offload, 2);
                exercised_through_resets(&mut bed, host, exercise(seed), loss);
                let counters = bed.counters();
                let count = |name| counters.value(name);
                assert!(count("tx_nvmeotcp_digests") > 20, "seed {seed}: {}", count("tx_nvmeotcp_digests"));
                assert_eq!(count("tx_drop_out_of_sync"), 0, "seed {seed}");
                if loss > 0.0 {
                    // Chance decides which of these paths a loss or a reset takes, so the counts are summed.
                    bypass += count("tx_nvmeotcp_bypass");
                    needs_software += count("tx_nvmeotcp_needs_software");
                    let dumped = count("tx_nvmeotcp_dump_bytes");
                    assert!(dumped > 0 || transport.data_bytes > 100_000, "seed {seed}: {dumped}");
                } else {
                    let contexts = if offload == Offload::None { 3 } else { 5 };
                    assert_eq!(count("tx_nvmeotcp_sk_add"), contexts, "seed {seed}");
                    assert_eq!(count("tx_nvmeotcp_ooo") + count("tx_nvmeotcp_needs_software"), 0, "seed {seed}");
                }
            }
        }
        assert_eq!(
            (bypass > 0, needs_software > 0),
            (loss > 0.0, loss > 0.0),
            "seed {seed}: {bypass} {needs_software}"
        );
    }
}

/// Writes and reads the disk over one association without a retry. With loss, both NICs are reset meanwhile.
fn exercised_through_resets(bed: &mut NvmeNetwork, host: Host, exercise: Exercise, loss: f64) {
    let seed = exercise.seed;
    let times: &[u64] = if loss > 0.0 { &[45, 80, 130] } else { &[] };
    let resets = [bed.reset_target_at(times.to_vec()), bed.reset_host_at(times.to_vec())];
    let stats = bed.run(async move {
        host.ready().await.unwrap();
        let disk = host.disk(1).await.unwrap();
        exercise.run(&disk, |_| ()).await.unwrap();
        for reset in resets {
            reset.await;
        }
        host.close().await;
        host.stats()
    });
    assert_eq!((stats.connects, stats.retries), (1, 0), "{seed:?}");
}

#[test]
fn tls_records_are_opened_placed_and_checked_at_once() {
    for (seed, loss) in [(51, 0.0), (52, 0.005), (53, 0.03)] {
        for data_bytes in [1 << 20, 6_000] {
            let transport = TransportConfig { data_bytes, ..TransportConfig::default() };
            let mut bed = NvmeNetwork::new(seed, transport, Layers::TlsNic, loss);
            let host = connect(&bed, Offload::PlaceAndCheck, 2);
            let stats = bed.run(async move {
                host.ready().await.unwrap();
                let disk = host.disk(1).await.unwrap();
                exercise(seed).run(&disk, |_| ()).await.unwrap();
                host.stats()
            });
            assert_eq!((stats.connects, stats.retries), (1, 0), "seed {seed}");
            let counters = bed.counters();
            let count = |name| counters.value(name);
            let least = if loss == 0.0 { 4 << 20 } else { 1 << 20 };
            assert!(count("rx_nvmeotcp_bytes") > least, "seed {seed}: {} bytes placed", count("rx_nvmeotcp_bytes"));
            assert!(count("rx_nvmeotcp_checked") > 500, "seed {seed}: {} packets", count("rx_nvmeotcp_checked"));
            if loss > 0.0 {
                assert!(count("rx_nvmeotcp_drop") > 0 && count("rx_nvmeotcp_resync") > 0, "seed {seed}");
            }
        }
    }
}

/// Both NICs fill in digests and encrypt in one pass. A wrong digest would cause a retry, a wrong tag would end the
/// connection. Contexts are lost on both sides, and keys change within PDUs.
#[test]
fn device_digests_over_tls_match_the_cpu() {
    // Chance decides where loss and resets strike, so several runs are summed.
    let rows: [(&[u64], f64, Layers); 4] = [
        (&[61], 0.0, Layers::TlsNic),
        (&[62], 0.0, Layers::TlsNicKeys(7)),
        (&[63], 0.01, Layers::TlsNic),
        (&[64, 65, 66], 0.02, Layers::TlsNicKeys(150)),
    ];
    for (seeds, loss, layers) in rows {
        for data_bytes in [1 << 20, 20_000, 3_000] {
            let transport = TransportConfig {
                data_bytes,
                max_data: data_bytes.clamp(4_096, 1 << 17),
                ..TransportConfig::default()
            };
            let runs: Vec<CounterSet> = seeds
                .iter()
                .map(|seed| {
                    let mut bed = NvmeNetwork::new(*seed, transport, layers, loss);
                    let host = connect(&bed, Offload::PlaceAndCheck, 2);
                    let bytes = (6 << 20) / seeds.len() as u64;
                    exercised_through_resets(&mut bed, host, Exercise { bytes, ..exercise(*seed) }, loss);
                    bed.counters()
                })
                .collect();
            let count = |name| runs.iter().map(|counters| counters.value(name)).sum::<u64>();
            // Until a new key is on the NIC, software makes digests and records.
            let least = if layers == Layers::TlsNic { 20 } else { 1 };
            assert!(count("tx_nvmeotcp_digests") >= least, "seeds {seeds:?}: {}", count("tx_nvmeotcp_digests"));
            assert_eq!(count("tx_drop_out_of_sync"), 0, "seeds {seeds:?}");
            if loss > 0.0 {
                let dumped = count("tx_nvmeotcp_dump_bytes");
                assert!(dumped > 0 || data_bytes > 100_000, "seeds {seeds:?}: {dumped}");
                assert!(count("tx_nvmeotcp_bypass") + count("tx_nvmeotcp_needs_software") > 0, "seeds {seeds:?}");
            } else if layers == Layers::TlsNic {
                let lost = count("tx_nvmeotcp_ooo") + count("tx_nvmeotcp_needs_software") + count("tx_tls_ooo");
                assert_eq!(lost, 0, "seeds {seeds:?}");
                assert_eq!(count("HostTxSealedUnits"), 0, "seeds {seeds:?}");
            } else {
                assert!(count("HostTxSealedUnits") > 100, "seeds {seeds:?}: {}", count("HostTxSealedUnits"));
            }
        }
    }
}

/// The NIC loses its contexts and connections are cut. Software continues, and every buffer comes back.
#[test]
fn tls_survives_device_resets_and_lost_connections() {
    let mut after_resets = 0;
    for seed in [50, 55, 57] {
        let mut bed = NvmeNetwork::new(seed, TransportConfig::default(), Layers::TlsNic, 0.005);
        let host = connect(&bed, Offload::PlaceAndCheck, 2);
        // The host ends if its first connection is cut, and on a lossy wire connecting may take longer than the rest.
        let host = bed.run(async move {
            host.ready().await.unwrap();
            host
        });
        let cutter = bed.cutter([20, 70]);
        let resets = bed.reset_host_at([5, 40, 41, 90]);
        bed.run(async move {
            let disk = host.disk(1).await.unwrap();
            exercise(seed).run(&disk, |_| ()).await.unwrap();
            cutter.await;
            resets.await;
            let data = blocks(256);
            disk.write(0, [data.clone()]).await.unwrap();
            assert!(disk.read(0, disk.buffer(256)).await.unwrap().to_vec() == data);
        });
        let counters = bed.counters();
        let added = counters.value("rx_nvmeotcp_sk_add");
        assert!(added >= 6, "seed {seed}: both queues have new contexts after each cut, {added} in all");
        after_resets += added - 6;
        assert!(counters.value("rx_nvmeotcp_bytes") > 2 << 20, "seed {seed}: {}", counters.value("rx_nvmeotcp_bytes"));
    }
    // Not after each reset, because a cut may come before the end of the current record.
    assert!(after_resets > 0, "contexts are added after resets");
}

/// Treatment of a read.
#[derive(Clone, Copy, Debug)]
enum ReadFate {
    Awaited,
    Cancelled,
    /// The future is dropped.
    Dropped,
}

/// A read of the property test: first block, sizes of the parts in blocks, pause before it in microseconds, treatment,
/// and time until the treatment in microseconds.
type ReadPlan = (u64, Vec<u32>, u64, ReadFate, u64);

fn readings() -> impl Strategy<Value = Vec<ReadPlan>> {
    let fate = prop_oneof![2 => Just(ReadFate::Awaited), 2 => Just(ReadFate::Cancelled), 1 => Just(ReadFate::Dropped)];
    let parts = prop::collection::vec(1u32..100, 1..5);
    prop::collection::vec((0u64..7_000, parts, 0u64..3_000, fate, 0u64..4_000), 1..40)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    /// Commands are cancelled and dropped, packets lost, connections cut, devices reset. Each piece of a buffer returns
    /// exactly once. A missing or a duplicate piece would make its command wait forever.
    #[test]
    fn every_piece_returns_once(
        seed in 1_000u64..2_000,
        over_tls: bool,
        loss in prop_oneof![Just(0.0), Just(0.01), Just(0.05)],
        data_bytes in prop_oneof![Just(1u32 << 20), Just(7_000)],
        readings in readings(),
        cuts in prop::collection::vec(1u64..120, 0..3),
        resets in prop::collection::vec(1u64..120, 0..4),
    ) {
        let transport = TransportConfig { data_bytes, ..TransportConfig::default() };
        let layers = if over_tls { Layers::TlsNic } else { Layers::Tcp };
        let mut bed = NvmeNetwork::new(seed, transport, layers, loss);
        let host = connect(&bed, Offload::PlaceAndCheck, 2);
        let (host, disk, data) = bed.run(async move {
            host.ready().await.unwrap();
            let disk = host.disk(1).await.unwrap();
            let data = blocks(8_192);
            for first in (0..8_192).step_by(512) {
                disk.write(first as u64, [data.slice(first * 512..(first + 512) * 512)]).await.unwrap();
            }
            (host, disk, data)
        });
        // The cutter and the resets sleep from one time to the next, so the times must be in order.
        let mut ordered = [cuts, resets];
        ordered.iter_mut().for_each(|times| times.sort_unstable());
        let [cuts, resets] = ordered;
        let disturbances = [bed.cutter(cuts), bed.reset_host_at(resets)];
        let runtime = bed.runtime();
        bed.run(async move {
            let mut under_way = Vec::new();
            for (first, parts, pause, fate, later) in readings {
                runtime.sleep(Duration::from_micros(pause)).await;
                let buffer = Buffer::from_parts(parts.iter().map(|blocks| BytesMut::zeroed(*blocks as usize * 512)));
                let memory = memory_of(&buffer);
                let read = disk.read(first, buffer);
                let runtime = runtime.clone();
                let data = data.clone();
                under_way.push(async move {
                    match fate {
                        ReadFate::Awaited => {}
                        ReadFate::Cancelled | ReadFate::Dropped => runtime.sleep(Duration::from_micros(later)).await,
                    }
                    match fate {
                        ReadFate::Awaited => {}
                        ReadFate::Cancelled => read.cancel(),
                        ReadFate::Dropped => return,
                    }
                    match read.await {
                        Ok(buffer) => {
                            // The caller must get its own memory back, whether the device or the CPU filled it.
                            assert_eq!(memory_of(&buffer), memory);
                            let from = first as usize * 512;
                            assert!(buffer.to_vec() == data[from..from + buffer.len()], "wrong data");
                        }
                        Err(ReadError { error: CommandError::Cancelled, buffer }) => {
                            assert_eq!(memory_of(&buffer), memory, "the memory must be the same");
                        }
                        Err(failed) => panic!("{failed}"),
                    }
                });
            }
            futures_util::future::join_all(under_way).await;
            for disturbance in disturbances {
                disturbance.await;
            }
            // The host still works after all disturbances.
            assert!(disk.read(0, disk.buffer(512)).await.unwrap().to_vec() == data[..512 * 512]);
            host.close().await;
        });
    }
}

/// Returns address and length of each part.
fn memory_of(buffer: &Buffer) -> Vec<(usize, usize)> {
    buffer.parts().iter().map(|part| (part.as_ptr() as usize, part.len())).collect()
}

#[test]
fn cancelled_reads_return_lent_buffers() {
    let mut bed = NvmeNetwork::new(24, TransportConfig::default(), Layers::Tcp, 0.01);
    let host = connect(&bed, Offload::PlaceAndCheck, 1);
    let runtime = bed.runtime();
    bed.run(async move {
        host.ready().await.unwrap();
        let disk = host.disk(1).await.unwrap();
        let data = blocks(256);
        disk.write(0, [data.clone()]).await.unwrap();
        for round in 0..60 {
            let reads: Vec<_> = (0..4).map(|_| disk.read(0, disk.buffer(256))).collect();
            runtime.sleep(Duration::from_micros(round * 20)).await;
            reads.iter().for_each(|read| read.cancel());
            for read in reads {
                match read.await {
                    Ok(buffer) => assert!(buffer.to_vec() == data),
                    Err(ReadError { error: CommandError::Cancelled, buffer }) => assert_eq!(buffer.len(), 256 * 512),
                    Err(failed) => panic!("{failed}"),
                }
            }
            drop(disk.read(64, disk.buffer(128)));
        }
        assert!(disk.read(0, disk.buffer(256)).await.unwrap().to_vec() == data);
    });
    assert!(bed.counters().value("rx_nvmeotcp_ddp_teardown") > 0);
}

#[test]
fn lost_connections_and_resets_return_lent_buffers() {
    for seed in [25, 27] {
        let mut bed = NvmeNetwork::new(seed, TransportConfig::default(), Layers::Tcp, 0.005);
        let host = connect(&bed, Offload::PlaceAndCheck, 2);
        let cutter = bed.cutter([40, 90, 150]);
        let resets = bed.reset_host_at([12, 25, 60, 61, 110, 140]);
        let stats = bed.run(async move {
            host.ready().await.unwrap();
            let disk = host.disk(1).await.unwrap();
            Exercise { bytes: 40 << 20, ..exercise(seed) }.run(&disk, |_| ()).await.unwrap();
            cutter.await;
            resets.await;
            host.stats()
        });
        // A lost buffer would make the exercise hang.
        assert!(stats.connects >= 3 && stats.replays > 0, "seed {seed}: {stats:?}");
        let counters = bed.counters();
        assert!(counters.value("resets") >= 6 && counters.value("rx_nvmeotcp_sk_add") > 6);
    }
}

#[test]
fn nic_without_room_leaves_queues_to_the_cpu() {
    let mut bed = NvmeNetwork::with_contexts(27, 1);
    let host = connect(&bed, Offload::PlaceAndCheck, 3);
    let asked = bed.run(async move {
        host.ready().await.unwrap();
        let disk = host.disk(1).await.unwrap();
        exercise(27).run(&disk, |_| ()).await.unwrap();
        host.offload_counters()
    });
    let counters = bed.counters();
    let failed = counters.value("rx_nvmeotcp_sk_add_fail") + counters.value("tx_nvmeotcp_sk_add_fail");
    assert_eq!(counters.value("rx_nvmeotcp_sk_add"), 1);
    // Two queues for receiving, three for sending.
    assert_eq!((asked.offload_refused, asked.offload_later), (5, 0));
    assert_eq!(asked.offload_refused + asked.offload_retried, failed);
}

#[test]
fn refused_queue_is_offloaded_when_there_is_room() {
    let mut bed = NvmeNetwork::with_contexts(27, 1);
    let (first, second) = (connect(&bed, Offload::Place, 1), connect(&bed, Offload::Place, 1));
    let (before, after) = bed.run(async move {
        let (mut disks, data) = (Vec::new(), blocks(64));
        for host in [&first, &second] {
            host.ready().await.unwrap();
            disks.push(host.disk(1).await.unwrap());
            disks[0].write(0, [data.clone()]).await.unwrap();
        }
        assert_eq!(first.offload_counters(), OffloadCounters::default());
        disks[1].read(0, disks[1].buffer(64)).await.unwrap();
        let before = second.offload_counters();
        first.close().await;
        // A refused context is requested again at the latest with every 32nd PDU.
        for _ in 0..33 {
            let buffer = disks[1].read(0, disks[1].buffer(64)).await.unwrap();
            assert_eq!(buffer.to_vec(), data);
        }
        (before, second.offload_counters())
    });
    assert_eq!((before.offload_refused, before.offload_later), (1, 0));
    assert!(after.offload_retried > before.offload_retried);
    assert_eq!((after.offload_refused, after.offload_later), (1, 1));
    assert_eq!(bed.counters().value("rx_nvmeotcp_sk_add"), 2);
}

/// Thresholds of blktests nvme/056: shares of all bytes and packets received by the host's interface.
#[test]
fn only_large_commands_are_offloaded() {
    for kib in [4u32, 8, 16, 32, 64, 128, 256, 512, 1024] {
        let mut bed = NvmeNetwork::new(28, TransportConfig::default(), Layers::Tcp, 0.0);
        let host = connect(&bed, Offload::PlaceAndCheck, 1);
        let before = bed.run(async move {
            host.ready().await.unwrap();
            let disk = host.disk(1).await.unwrap();
            let blocks = kib * 2;
            for round in 0..(8 << 10) / kib / 8 {
                let reads: Vec<_> = (0..8)
                    .map(|place| disk.read(u64::from((round + place) % 4 * blocks), disk.buffer(blocks)))
                    .collect();
                for read in reads {
                    read.await.unwrap();
                }
            }
            host.stats()
        });
        assert_eq!(before.connects, 1);
        let counters = bed.host_counters();
        let share = |name, of| counters.value(name) as f64 / counters.value(of) as f64;
        let (bytes, packets) = (share("rx_nvmeotcp_bytes", "rx_bytes"), share("rx_nvmeotcp_packets", "rx_packets"));
        let lost = counters.value("rx_nvmeotcp_drop") + counters.value("rx_nvmeotcp_resync");
        // Small commands are copied, because lending their buffers would cost more.
        if kib < 32 {
            assert_eq!((bytes, packets), (0.0, 0.0), "{kib} KiB");
        } else {
            assert!(bytes >= 0.9 && packets >= 0.95, "{kib} KiB: {bytes} of bytes, {packets} of packets");
        }
        assert!(lost as f64 <= 0.05 * counters.value("rx_packets") as f64, "{kib} KiB: {lost}");
    }
}
