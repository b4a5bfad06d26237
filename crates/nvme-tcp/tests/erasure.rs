//! Crypto-erase with active streams: encryption by the CPU and by the NIC, reads and writes.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "tests say why they skip, and what they measured")]

#[path = "all/bed/mod.rs"]
mod bed;
#[path = "../../nic-sim/tests/lookaside/memory_search.rs"]
mod memory_search;

use bed::{Layers, NvmeNetwork, TestVolume};
use bytes::Bytes;
use core::time::Duration;
use futures_util::stream::{FuturesUnordered, StreamExt};
use memory_search::{copies, scrub_stack};
use nvme_tcp::host::{CommandError, Offload};
use nvme_tcp::target::TransportConfig;
use offload_testbed::Capture;
use std::io;
use std::sync::{Arc, Mutex};

const BLOCKS: u32 = 64;

fn copies_of(number: u64) -> usize {
    scrub_stack();
    copies(|at| TestVolume::key_byte(number, at))
}

/// Written plaintext, which must not appear on the wire.
const PATTERN: [u8; 16] = *b"never on a wire!";

/// All bytes that crossed the wire.
#[derive(Clone, Default)]
struct WireLog(Arc<Mutex<Vec<u8>>>);

impl io::Write for WireLog {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Numbers of commands by result.
#[derive(Debug, Default)]
struct CommandCounts {
    done: usize,
    erased: usize,
}

impl CommandCounts {
    fn note(&mut self, end: Result<(), CommandError>) {
        match end {
            Ok(()) => self.done += 1,
            Err(CommandError::Erased) => self.erased += 1,
            Err(other) => panic!("{other}"),
        }
    }
}

/// Reads and writes a volume that is erased meanwhile. All running commands end, only ciphertext is sent, and no copy
/// of the key remains.
fn erased_under_way(number: u64, layers: Layers, offload: Offload, writes: bool) {
    let wire = WireLog::default();
    let capture = Capture::new(wire.clone()).unwrap();
    let transport = TransportConfig::default();
    let mut bed = NvmeNetwork::captured_over(number, transport, layers, &capture);
    let mut config = bed.host_config();
    (config.offload, config.queues, config.data_digest) = (offload, 2, true);
    let host = bed.connect(config);
    // The second volume shows that an erasure affects no other volume.
    let (volume, other) = (TestVolume::new(number, 512), TestVolume::new(number + 1, 512));
    [&volume, &other].into_iter().for_each(|volume| bed.import(volume));
    let (forget, timers) = (bed.forgetter(), bed.runtime());
    let (keyed, also) = (volume.keyed.clone(), other.keyed.clone());
    assert!(copies_of(number) > 0, "the search must find an existing key");
    let case = format!("{layers:?} {offload:?}, writes {writes}");
    let told = case.clone();
    let (ends, others) = bed.run(async move {
        host.ready().await.unwrap();
        let raw = host.disk(1).await.unwrap();
        let (disk, beside) = (raw.clone().with_volume(keyed.clone()).unwrap(), raw.with_volume(also).unwrap());
        let data = Bytes::from(PATTERN.repeat(32 * BLOCKS as usize));
        let start = |first: u64| {
            let (disk, data) = (disk.clone(), data.clone());
            async move {
                match writes {
                    true => disk.write(first, [data]).await.map(|_| ()),
                    false => disk.read(first, disk.buffer(BLOCKS)).await.map(|_| ()).map_err(|failed| failed.error),
                }
            }
        };
        let mut under_way: FuturesUnordered<_> = (0..40).map(|at| start(at * u64::from(BLOCKS))).collect();
        let mut beside_it: FuturesUnordered<_> = (50..60)
            .map(|at| {
                let (beside, data) = (beside.clone(), data.clone());
                async move {
                    beside.write(at * u64::from(BLOCKS), [data.clone()]).await.unwrap();
                    let read = beside.read(at * u64::from(BLOCKS), beside.buffer(BLOCKS)).await.unwrap();
                    assert!(read.to_vec() == data);
                }
            })
            .collect();
        let mut ends = CommandCounts::default();
        while ends.done < 5 {
            ends.note(under_way.next().await.expect("more are under way"));
        }
        let erased_at = timers.now();
        if let Some(key) = keyed.erase() {
            forget(key);
        }
        // Time for the tasks to drop their copies of the volume.
        timers.sleep(Duration::from_micros(100)).await;
        assert_eq!(
            copies_of(number),
            0,
            "erased, the key is nowhere, though {} commands are under way",
            under_way.len()
        );
        while let Some(end) = under_way.next().await {
            ends.note(end);
        }
        let took = timers.now() - erased_at;
        assert!(took < Duration::from_secs(5), "no command waits for a timeout: {took:?}, {told}");
        ends.note(start(0).await);
        keyed.set_device_key(None);
        let mut others = 0;
        while beside_it.next().await.is_some() {
            others += 1;
        }
        (ends, others)
    });
    println!("{case}: {ends:?}");
    assert_eq!((ends.done + ends.erased, others), (41, 10), "{case}");
    assert!(ends.erased > 20, "most were under way: {ends:?}, {case}");
    let counters = bed.host_counters();
    let by_device = match writes {
        true => counters.value("tx_nvmeotcp_sealed_bytes"),
        false => counters.value("rx_nvmeotcp_opened_bytes"),
    };
    assert_eq!(by_device > 0, offload == Offload::PlaceAndCheck, "{case}");
    capture.finish().unwrap();
    let wire = wire.0.lock().unwrap();
    assert!(wire.len() > 1 << 20 && memchr::memmem::find(&wire, &PATTERN).is_none(), "no plaintext is sent: {case}");
    assert!(copies_of(number) == 0 && copies_of(number + 1) > 0, "the other volume keeps its key: {case}");
}

/// Drops a volume and its disk while the host continues. No copy of the key may remain.
fn dropped(number: u64, layers: Layers, offload: Offload) {
    let mut bed = NvmeNetwork::new(number, TransportConfig::default(), layers, 0.0);
    let mut config = bed.host_config();
    (config.offload, config.data_digest) = (offload, true);
    let host = bed.connect(config);
    let volume = TestVolume::new(number, 512);
    bed.import(&volume);
    let (forget, timers) = (bed.forgetter(), bed.runtime());
    bed.run(async move {
        host.ready().await.unwrap();
        let raw = host.disk(1).await.unwrap();
        let keyed = volume.keyed;
        let disk = raw.clone().with_volume(keyed.clone()).unwrap();
        let data = Bytes::from(PATTERN.repeat(32 * BLOCKS as usize));
        disk.write(0, [data.clone()]).await.unwrap();
        let read = disk.read(0, disk.buffer(BLOCKS)).await.unwrap();
        assert!(read.to_vec() == data && copies_of(number) > 0);
        drop(read);
        let key = keyed.device_key().unwrap();
        drop((disk, keyed));
        forget(key);
        timers.sleep(Duration::from_millis(100)).await;
        assert_eq!(copies_of(number), 0, "{layers:?} {offload:?}");
        raw.read(0, raw.buffer(1)).await.unwrap();
    });
}

#[test]
fn dropped_volume_leaves_no_key() {
    for (at, layers) in [Layers::Tcp, Layers::TlsNic].into_iter().enumerate() {
        for (by, offload) in [Offload::None, Offload::PlaceAndCheck].into_iter().enumerate() {
            dropped(200 + 10 * at as u64 + by as u64, layers, offload);
        }
    }
}

#[test]
fn erasure_ends_only_the_volumes_commands() {
    erased_under_way(100, Layers::Tcp, Offload::None, false);
    erased_under_way(102, Layers::TlsNic, Offload::PlaceAndCheck, false);
    erased_under_way(104, Layers::Tcp, Offload::PlaceAndCheck, true);
    erased_under_way(106, Layers::TlsNic, Offload::None, true);
    erased_under_way(108, Layers::TlsNic, Offload::PlaceAndCheck, true);
}
