//! Disks that hold only ciphertext: the same data and the same medium whether the CPU or the NIC encrypts, despite
//! faults of packets and the device.

use crate::bed;

use bed::{Layers, NvmeNetwork, TestVolume};
use bytes::{Bytes, BytesMut};
use core::time::Duration;
use nvme_tcp::exercise::Exercise;
use nvme_tcp::host::{Buffer, CommandError, Host, Offload};
use nvme_tcp::target::TransportConfig;
use offload_api::XtsStage;
use offload_base::Seed;
use offload_base::counters::CounterSet;

fn volume(block: usize) -> TestVolume {
    TestVolume::new(1, block)
}

fn connect(bed: &NvmeNetwork, offload: Offload, data_digest: bool) -> Host {
    let mut config = bed.host_config();
    (config.offload, config.queues, config.data_digest) = (offload, 2, data_digest);
    bed.connect(config)
}

/// Writes and reads a volume at random, then compares the medium with the encryption of the data read last.
fn exercised(mut bed: NvmeNetwork, block: usize, offload: Offload, data_digest: bool, resets: &[u64]) -> CounterSet {
    let host = connect(&bed, offload, data_digest);
    let case = format!("{offload:?}, digests {data_digest}, blocks of {block}");
    let volume = volume(block);
    bed.import(&volume);
    let resets = bed.reset_host_with(volume.clone(), resets.to_vec());
    let keyed = volume.keyed.clone();
    // The raw disk shows the medium, the disk with the volume its plaintext.
    let (stats, plain, medium) = bed.run(async move {
        host.ready().await.unwrap();
        let raw = host.disk(1).await.unwrap();
        let disk = raw.clone().with_volume(keyed).unwrap();
        let blocks = (1 << 20) / block as u64;
        let exercise =
            Exercise { bytes: 6 << 20, blocks, command_bytes: 128 << 10, zeroes: false, ..Exercise::new(Seed(7)) };
        exercise.run(&disk, |_| ()).await.unwrap_or_else(|error| panic!("{error}: {case}"));
        resets.await;
        let (mut plain, mut medium) = (Vec::new(), Vec::new());
        for first in (0..blocks).step_by((64 << 10) / block) {
            let buffer = |disk: &nvme_tcp::Disk| disk.buffer((64 << 10) / block as u32);
            plain.extend(disk.read(first, buffer(&disk)).await.unwrap().to_vec());
            medium.extend(raw.read(first, buffer(&raw)).await.unwrap().to_vec());
        }
        (host.stats(), plain, medium)
    });
    assert_eq!((stats.connects, stats.retries), (1, 0), "{offload:?}");
    assert_ne!(plain, medium);
    // The encryption by device or CPU must be the one that the volume's own cipher computes.
    let mut made = plain;
    volume.encrypt(0, &mut made);
    assert!(made == medium, "the medium holds what the cipher makes, and nothing else: {offload:?}, blocks of {block}");
    bed.counters()
}

#[test]
fn device_encryption_matches_the_cpu() {
    for layers in [Layers::Tcp, Layers::TlsNic] {
        for (block, seed, loss) in [(512, 91, 0.0), (4096, 92, 0.0), (512, 93, 0.01), (4096, 94, 0.03)] {
            for (offload, data_digest) in [
                (Offload::None, true),
                // Software computes the digests, so it needs the encrypted data.
                (Offload::Place, true),
                (Offload::Place, false),
                (Offload::PlaceAndCheck, true),
            ] {
                let transport = TransportConfig { data_bytes: 50_000, ..TransportConfig::default() };
                let bed = NvmeNetwork::of_blocks(seed, block, transport, layers, loss);
                let resets: &[u64] = if loss > 0.0 { &[15, 30] } else { &[] };
                println!("{layers:?} {loss}");
                let counters = exercised(bed, block as usize, offload, data_digest, resets);
                let count = |name| counters.value(name);
                let case = format!("{layers:?}, {offload:?}, digests {data_digest}, blocks of {block}, loss {loss}");
                let (opened, placed) = (count("rx_nvmeotcp_opened_bytes"), count("rx_nvmeotcp_bytes"));
                let sealed = count("tx_nvmeotcp_sealed_bytes");
                let by_device = offload == Offload::PlaceAndCheck;
                assert_eq!(sealed > 2 << 20, by_device, "{sealed} bytes encrypted by the device: {case}");
                assert_eq!(count("tx_drop_out_of_sync"), 0, "{case}");
                if offload == Offload::None || (offload == Offload::Place && data_digest) {
                    assert_eq!(opened, 0, "{case}");
                } else {
                    assert!(opened > 200_000 && opened < placed, "{opened} of {placed} bytes: {case}");
                    // One MiB was read without decryption.
                    let left = (placed - opened).saturating_sub(1 << 20);
                    assert!(
                        loss > 0.0 || left < opened / 1000,
                        "packets cut blocks: {left} bytes beside {opened}: {case}"
                    );
                }
            }
        }
    }
}

#[test]
fn buffer_parts_of_any_length_are_decrypted() {
    for offload in [Offload::None, Offload::PlaceAndCheck] {
        let mut bed = NvmeNetwork::new(95, TransportConfig::default(), Layers::Tcp, 0.0);
        let host = connect(&bed, offload, true);
        let volume = volume(512);
        bed.import(&volume);
        bed.run(async move {
            host.ready().await.unwrap();
            let disk = host.disk(1).await.unwrap().with_volume(volume.keyed.clone()).unwrap();
            let data: Bytes = (0..64 << 10).map(|at: u32| (at * 5 / 3) as u8).collect::<Vec<u8>>().into();
            disk.write(9, [data.slice(..700), data.slice(700..)]).await.unwrap();
            disk.compare(9, [data.clone()]).await.unwrap();
            for cut in [1, 15, 16, 1000, 4097] {
                let mut slab = BytesMut::zeroed(64 << 10);
                let parts = [slab.split_to(cut), slab.split_to(7), slab];
                let buffer = disk.read(9, Buffer::from_parts(parts)).await.unwrap();
                assert!(buffer.to_vec() == data, "{offload:?}, {cut}");
                // The buffer holds ciphertext if it is read without the volume.
                let raw = host.disk(1).await.unwrap().read(9, buffer).await.unwrap().to_vec();
                let mut made = data.to_vec();
                volume.encrypt(9, &mut made);
                assert!(raw == made, "{offload:?}, {cut}");
            }
        });
    }
}

/// The device must not use these keys; the CPU decrypts.
#[test]
fn foreign_and_missing_keys_are_not_used() {
    for wrong in ["tenant", "volume", "gone", "none"] {
        let mut bed = NvmeNetwork::new(97, TransportConfig::default(), Layers::Tcp, 0.0);
        let host = connect(&bed, Offload::PlaceAndCheck, true);
        let volume = volume(512);
        bed.import(&volume);
        let (forget, keyed) = (bed.forgetter(), volume.keyed.clone());
        bed.run(async move {
            host.ready().await.unwrap();
            let disk = host.disk(1).await.unwrap().with_volume(keyed.clone()).unwrap();
            let data = bed::blocks(128);
            disk.write(9, [data.clone()]).await.unwrap();
            let key = keyed.device_key().unwrap();
            match wrong {
                "tenant" => keyed.set_device_key(Some(XtsStage { tenant: bed::TENANT + 1, ..key })),
                "volume" => keyed.set_device_key(Some(XtsStage { volume: 2, ..key })),
                "gone" => forget(key),
                _ => keyed.set_device_key(None),
            }
            assert!(disk.read(9, disk.buffer(128)).await.unwrap().to_vec() == data, "{wrong}");
        });
        let count = |name| bed.host_counters().value(name);
        assert_eq!((count("rx_nvmeotcp_opened_bytes"), count("tx_nvmeotcp_sealed_bytes")), (0, 64 << 10), "{wrong}");
        assert!(count("rx_nvmeotcp_bytes") >= 64 << 10, "the data were placed all the same: {wrong}");
    }
}

/// Writes do not wait for a timeout: the device reports the missing key at once, and the CPU encrypts the queued data.
#[test]
fn cpu_encrypts_when_the_device_lost_the_key() {
    for (layers, wrong) in
        [Layers::Tcp, Layers::TlsNic].into_iter().flat_map(|layers| ["gone", "tenant"].map(|wrong| (layers, wrong)))
    {
        let case = format!("{layers:?}, {wrong}");
        let mut bed = NvmeNetwork::new(101, TransportConfig::default(), layers, 0.0);
        let host = connect(&bed, Offload::PlaceAndCheck, true);
        let (volume, other) = (TestVolume::new(1, 512), TestVolume::new(2, 512));
        [&volume, &other].into_iter().for_each(|volume| bed.import(volume));
        let (forget, timers, told) = (bed.forgetter(), bed.runtime(), case.clone());
        let stats = bed.run(async move {
            host.ready().await.unwrap();
            let raw = host.disk(1).await.unwrap();
            let disk = raw.clone().with_volume(volume.keyed.clone()).unwrap();
            let beside = raw.clone().with_volume(other.keyed.clone()).unwrap();
            let data = bed::blocks(128);
            disk.write(0, [data.clone()]).await.unwrap();
            let key = volume.keyed.device_key().unwrap();
            // In either case, the device cannot use the key that the stream names.
            match wrong {
                "gone" => forget(key),
                _ => volume.keyed.set_device_key(Some(XtsStage { tenant: bed::TENANT + 1, ..key })),
            }
            let began = timers.now();
            let writes = futures_util::future::join_all((1..9).map(|at| disk.write(128 * at, [data.clone()])));
            let (ends, beside_it) = futures_util::future::join(writes, beside.write(128 * 9, [data.clone()])).await;
            for end in ends.into_iter().chain([beside_it]) {
                end.unwrap();
            }
            let took = timers.now() - began;
            // Each connection loses one packet to the missing key. The retransmission must not take several timeouts.
            assert!(took < Duration::from_secs(2), "{took:?}: {told}");
            assert_eq!((volume.keyed.device_key(), other.keyed.device_key().is_some()), (None, true), "{told}");
            for (at, of) in (1..10).map(|at| (128 * at, if at < 9 { &volume } else { &other })) {
                let mut made = data.to_vec();
                of.encrypt(at, &mut made);
                assert!(raw.read(at, raw.buffer(128)).await.unwrap().to_vec() == made, "{told}, {at}");
            }
            // The device continues with the other volume.
            for _ in 0..40 {
                beside.write(128 * 9, [data.clone()]).await.unwrap();
            }
            host.stats()
        });
        assert_eq!((stats.connects, stats.retries), (1, 0), "{case}");
        let count = |name| bed.host_counters().value(name);
        assert!((1..=2).contains(&count("tx_drop_no_key")), "each of two connections finds it out once: {case}");
        assert!(count("tx_nvmeotcp_sealed_bytes") > 15 * (64 << 10), "{case}");
    }
}

/// With more volumes than the NIC has room for keys, a packet fetches only the keys that its commands need.
#[test]
fn packets_fetch_only_the_keys_they_need() {
    const VOLUMES: u64 = 30;
    for layers in [Layers::Tcp, Layers::TlsNic] {
        let mut bed = NvmeNetwork::with_cache(102, layers, 8);
        let mut config = bed.host_config();
        (config.offload, config.data_digest) = (Offload::PlaceAndCheck, true);
        let host = bed.connect(config);
        let volumes: Vec<TestVolume> = (0..VOLUMES).map(|number| TestVolume::new(number, 512)).collect();
        volumes.iter().for_each(|volume| bed.import(volume));
        let disks = bed.run(async move {
            host.ready().await.unwrap();
            let raw = host.disk(1).await.unwrap();
            let disk = |volume: &TestVolume| raw.clone().with_volume(volume.keyed.clone()).unwrap();
            let disks: Vec<nvme_tcp::Disk> = volumes.iter().map(disk).collect();
            for (disk, at) in disks.iter().zip(0..) {
                disk.write(128 * at, [bed::blocks(128)]).await.unwrap();
            }
            (host, disks)
        });
        // All contexts have been used once, so later fetches are caused by the commands alone.
        let fetched = bed.host_counters().value("ctx_fetched");
        let disks = bed.run(async move {
            let (_, all) = &disks;
            let reads = all.iter().zip(0..).map(|(disk, at)| disk.read(128 * at, disk.buffer(128)));
            for read in futures_util::future::join_all(reads).await {
                assert!(read.unwrap().to_vec() == bed::blocks(128));
            }
            for _ in 0..20 {
                all[0].write(0, [bed::blocks(128)]).await.unwrap();
            }
            disks
        });
        let more = bed.host_counters().value("ctx_fetched") - fetched;
        assert!(more < 20 * VOLUMES, "{more} contexts were fetched: {layers:?}");
        drop(disks);
    }
}

/// The program that manages the device must see that its key is gone, whatever the volume was used for.
#[test]
fn reset_removes_the_key_of_a_read_only_volume() {
    let mut bed = NvmeNetwork::new(98, TransportConfig::default(), Layers::Tcp, 0.0);
    let host = connect(&bed, Offload::PlaceAndCheck, true);
    let volume = volume(512);
    bed.import(&volume);
    let reset = bed.reset_host_at([10]);
    let (keyed, timers) = (volume.keyed, bed.runtime());
    bed.run(async move {
        host.ready().await.unwrap();
        let disk = host.disk(1).await.unwrap().with_volume(keyed.clone()).unwrap();
        disk.read(9, disk.buffer(128)).await.unwrap();
        assert!(keyed.device_key().is_some());
        reset.await;
        timers.sleep(Duration::from_millis(5)).await;
        assert_eq!(keyed.device_key(), None);
        disk.read(9, disk.buffer(128)).await.unwrap();
    });
    assert!(bed.host_counters().value("rx_nvmeotcp_opened_bytes") > 60_000, "the device decrypted what was read first");
}

/// Queued data name a volume by a number, and there are 255 numbers.
#[test]
fn erased_volumes_free_their_numbers() {
    for layers in [Layers::Tcp, Layers::TlsNic] {
        let mut bed = NvmeNetwork::new(99, TransportConfig::default(), layers, 0.0);
        let host = connect(&bed, Offload::PlaceAndCheck, true);
        let (import, forget) = (bed.importer(), bed.forgetter());
        bed.run(async move {
            host.ready().await.unwrap();
            let raw = host.disk(1).await.unwrap();
            let data = bed::blocks(32);
            for number in 0..300 {
                let volume = TestVolume::new(number, 512);
                import(&volume);
                let disk = raw.clone().with_volume(volume.keyed.clone()).unwrap();
                disk.write(number, [data.clone()]).await.unwrap();
                let mut made = data.to_vec();
                volume.encrypt(number, &mut made);
                assert!(raw.read(number, raw.buffer(32)).await.unwrap().to_vec() == made, "{number}");
                // The erasure frees the number, so the 256th volume can be encrypted by the device, too.
                volume.keyed.erase().into_iter().for_each(&forget);
            }
        });
        let sealed = bed.host_counters().value("tx_nvmeotcp_sealed_bytes");
        assert_eq!(sealed, 300 * 32 * 512, "{layers:?}");
    }
}

#[test]
fn partial_blocks_and_zeros_are_refused() {
    let mut bed = NvmeNetwork::new(96, TransportConfig::default(), Layers::Tcp, 0.0);
    let host = connect(&bed, Offload::None, false);
    bed.run(async move {
        host.ready().await.unwrap();
        let disk = host.disk(1).await.unwrap();
        assert!(matches!(disk.clone().with_volume(volume(4096).keyed), Err(CommandError::Invalid(_))));
        let disk = disk.with_volume(volume(512).keyed).unwrap();
        assert!(matches!(disk.write_zeroes(0, 1).await, Err(CommandError::Invalid(_))));
        assert!(disk.write(0, [Bytes::from_static(&[0; 500])]).await.is_err());
    });
}
