//! NVMe/TCP: its parts, and reads of a disk, by offload of the NICs.
//!
//! - `nvme/crc32c`: digests as computed for PDUs, beside the one-shot function of the same crate.
//! - `nvme/frame`, `nvme/parse`: a C2HData PDU built from its data, and parsed from segments of 1448 bytes; without
//!   digests and with both.
//! - `nvme/place`: CPU time of the host for reads of 256 KiB: copied and checked by the CPU, placed by the NIC, placed
//!   and checked by the NIC, or neither (the published emulation); in virtual time.
//! - `nvme/read`: random reads of 4 KiB (`elem/s` are IOPS) and of 256 KiB (bandwidth), with data digests, 1 to 256
//!   outstanding, in real time on this machine's cores: our host and our target over emulated NICs, by offload, and
//!   both over the kernel's loopback.
//! - `nvme/flush`: sequential writes of 4 KiB over the kernel's loopback, to memory and to a file, with and without a
//!   flush after each, beside `pwrite` and `fdatasync` of a similar file: the cost of durability, and the overhead of
//!   NVMe/TCP.
//! - At the end: the share of copies and digests in the host's CPU time, by bytes of a read, beside the published one.
//!   Source: Pismenny et al., "Autonomous NIC Offloads", ASPLOS 2021, in `crates/bench/published`; `nicbench report`
//!   compares both as well (study `nvme-share` of `sweeps/quick.toml`).
//!
//! Only figures of one run are comparable.

#![allow(clippy::print_stdout, reason = "printing is the whole purpose, so a failed write loses no other work")]

use bytes::{Bytes, BytesMut};
use core::hint::black_box;
use core::time::Duration;
use criterion::{BatchSize, BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use nic_sim::{NicConfig, NvmeTcpEngineConfig};
use nvme_tcp::wire::{ConnectionSide, DataHeader, Digest, Pdu, PduFraming, PduItem, PduLimits, PduReceiver};
use nvme_tcp::{
    Disk, FileStorage, Host, HostConfig, HostIdentity, MemoryStorage, Namespace, Server, Storage, Target, TargetConfig,
    Threads, TokioTimers,
};
use offload_api::TokioSegments;
use offload_api::{RxMeta, RxSegment};
use offload_base::{RealClock, Seed, Seq};
use offload_bench::fio::{Fio, FioRun, NvmeOffload, Pattern};
use offload_bench::published;
use offload_bench_tls::bulk::Mode;
use offload_testbed::bed::ClockKind;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::Instant;
use tokio::net::{TcpListener, TcpStream};

fn digests(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("nvme/crc32c");
    for bytes in SIZES {
        let data = vec![0x5a; bytes];
        group.throughput(Throughput::Bytes(bytes as u64));
        group.bench_with_input(BenchmarkId::new("digest", bytes), &data, |bencher, data| {
            bencher.iter(|| Digest::compute(black_box(data)).wire());
        });
        group.bench_with_input(BenchmarkId::new("crc32c crate", bytes), &data, |bencher, data| {
            bencher.iter(|| crc32c::crc32c(black_box(data)));
        });
    }
}

fn pdus(criterion: &mut Criterion) {
    for (name, digests) in [("plain", false), ("digests", true)] {
        for bytes in SIZES {
            let (framing, limits) = agreed(digests);
            let header = DataHeader { command: 7, tag: 0, offset: 0, length: bytes as u32, last: true, success: false };
            let (pdu, data) = (Pdu::ControllerData(header), Bytes::from(vec![0x5a; bytes]));
            let mut group = criterion.benchmark_group("nvme/frame");
            group.throughput(Throughput::Bytes(bytes as u64));
            group.bench_function(BenchmarkId::new(name, bytes), |bencher| {
                bencher.iter(|| framing.frame(black_box(&pdu), [data.clone()]).into_pieces().count());
            });
            group.finish();
            // The parser gets the bytes of our own framing, so both halves agree.
            let wire = framing.frame(&pdu, [data]).into_pieces().collect::<Vec<_>>().concat();
            let mut group = criterion.benchmark_group("nvme/parse");
            group.throughput(Throughput::Bytes(bytes as u64));
            group.bench_function(BenchmarkId::new(name, bytes), |bencher| {
                // Each iteration consumes its segments, so they are made anew outside the measured time.
                let segments = || wire.chunks(SEGMENT).map(segment).collect::<Vec<_>>();
                bencher.iter_batched(segments, |segments| parse(limits, segments), BatchSize::SmallInput);
            });
        }
    }
}

fn agreed(digests: bool) -> (PduFraming, PduLimits) {
    (
        PduFraming { header_digest: digests, data_digest: digests, alignment: 0 },
        PduLimits { header_digest: digests, data_digest: digests, ..PduLimits::default() },
    )
}

fn segment(bytes: &[u8]) -> RxSegment {
    RxSegment { seq: Seq(0), data: BytesMut::from(bytes).into(), meta: RxMeta::default() }
}

/// Parses one PDU, which must be intact.
fn parse(limits: PduLimits, segments: Vec<RxSegment>) {
    let mut receiver = PduReceiver::new(ConnectionSide::Host, limits);
    let mut ended = false;
    for segment in segments {
        receiver.push(segment);
        while let Some(received) = receiver.poll().expect("it is well formed") {
            ended |= matches!(black_box(received), PduItem::DataEnd { intact: true });
        }
    }
    assert!(ended, "all of it was there");
}

fn placement(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("nvme/place");
    for offload in NvmeOffload::ALL {
        let fio = Fio { operations: 64, depth: 16, ..reading(Mode::Tcp, offload, 256 << 10) };
        group.throughput(Throughput::Bytes(64 * (256 << 10)));
        group.bench_function(offload.to_string(), |bencher| {
            bencher.iter_custom(|iterations| {
                let spent = |run: FioRun| Duration::from_secs_f64(run.host_us_per_operation * 64.0 / 1e6);
                (0..iterations).map(|_| spent(made(&fio))).sum()
            });
        });
    }
}

fn reads(criterion: &mut Criterion) {
    for (block, least) in [(4 << 10, 512u64), (256 << 10, 64)] {
        let mut group = criterion.benchmark_group(format!("nvme/read {} KiB", block >> 10));
        for depth in [1u16, 16, 256] {
            let operations = least.max(depth.into());
            match block {
                4096 => group.throughput(Throughput::Elements(operations)),
                _ => group.throughput(Throughput::Bytes(operations * u64::from(block))),
            };
            for (mode, offload) in WAYS {
                let fio = Fio { operations, depth, clock: ClockKind::Real, ..reading(mode, offload, block) };
                // The run reports its own time, so criterion's clock is replaced.
                group.bench_function(format!("emulated NICs, {mode}, {offload}/{depth}"), |bencher| {
                    bencher.iter_custom(|iterations| {
                        (0..iterations).map(|_| Duration::from_secs_f64(made(&fio).seconds)).sum()
                    });
                });
            }
            group.bench_function(format!("kernel loopback/{depth}"), |bencher| {
                bencher.iter_custom(|iterations| {
                    let read = || {
                        let work = |disk: Disk| async move { read_at_random(&disk, block, depth, operations).await };
                        over_the_kernel(Arc::new(MemoryStorage::new(DISK)), depth, work).expect("the loopback works")
                    };
                    (0..iterations).map(|_| read()).sum()
                });
            });
        }
    }
}

fn flushes(criterion: &mut Criterion) {
    let path = |name: &str| std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let image = |name: &str| {
        std::fs::write(path(name), vec![0; DISK as usize]).expect("the disk has room");
        // The file is on the disk already, so that the first flush has no more work than later ones.
        std::fs::File::open(path(name)).and_then(|file| file.sync_all()).expect("the disk works");
        path(name)
    };
    let file = image("nvme-flush-served");
    let storages: [(&str, Arc<dyn Storage>); 2] = [
        ("memory", Arc::new(MemoryStorage::new(DISK))),
        ("file", Arc::new(FileStorage::open(&file, false).expect("nobody serves it"))),
    ];
    let mut group = criterion.benchmark_group("nvme/flush");
    group.throughput(Throughput::Elements(1));
    for (name, storage) in storages {
        for (what, flushed) in [("write", false), ("write, flush", true)] {
            group.bench_function(format!("{name}, {what}"), |bencher| {
                bencher.iter_custom(|iterations| {
                    let work = |disk: Disk| async move { write_in_order(&disk, iterations, flushed).await };
                    over_the_kernel(storage.clone(), 1, work).expect("the loopback works")
                });
            });
        }
    }
    let beside = image("nvme-flush-beside");
    group.bench_function("pwrite, fdatasync", |bencher| {
        let file = std::fs::File::options().write(true).open(&beside).expect("it was just written");
        let data = [0x5a; 4096];
        // Writes the same positions as above, starting at the first each time.
        bencher.iter_custom(|iterations| {
            let started = Instant::now();
            for number in 0..iterations {
                file.write_all_at(&data, number % (DISK / 4096) * 4096).expect("it has room");
                file.sync_data().expect("the disk works");
            }
            started.elapsed()
        });
    });
    group.finish();
    for file in [file, beside] {
        std::fs::remove_file(file).expect("it is ours");
    }
}

/// Returns random reads of `block_size` bytes with data digests. Reads of 4 KiB and more are placed.
fn reading(mode: Mode, offload: NvmeOffload, block_size: u32) -> Fio {
    let nic = NicConfig {
        engines: NvmeTcpEngineConfig { io_threshold: 4096, ..NvmeTcpEngineConfig::default() }.into(),
        ..NicConfig::default()
    };
    Fio { block_size, data_digest: true, offload, nic, disk_size: DISK, ..Fio::new(mode, Pattern::RandomRead) }
}

fn made(fio: &Fio) -> FioRun {
    let run = fio.clone().run().expect("the run can be made");
    assert!(run.run.sha256_ok, "the read data differs from the disk");
    run
}

/// Measures `work` with the same host and target over the kernel's loopback, each on its own thread.
fn over_the_kernel<F: Future<Output = io::Result<()>>>(
    storage: Arc<dyn Storage>,
    depth: u16,
    work: impl FnOnce(Disk) -> F,
) -> io::Result<Duration> {
    let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
    listener.set_nonblocking(true)?;
    let address = listener.local_addr()?;
    let (done, ends) = tokio::sync::oneshot::channel::<()>();
    let serving = std::thread::spawn(move || {
        on_a_runtime(async move {
            let serving = serve(listener, storage);
            futures_util::future::select(core::pin::pin!(serving), ends).await;
            Ok(())
        })
    });
    let took = on_a_runtime(async move {
        let connector = move || async move {
            let stream = TcpStream::connect(address).await?;
            stream.set_nodelay(true)?;
            Ok::<_, io::Error>(TokioSegments::new(stream))
        };
        let runtime = tokio::runtime::Handle::current();
        let timers = Arc::new(TokioTimers::new(runtime.clone(), RealClock::new()));
        let identity = HostIdentity::random(&mut Seed(1).stream("nvme host"));
        let mut config = HostConfig::new(SUBSYSTEM, identity);
        config.depth = depth.max(2);
        config.data_digest = true;
        let (host, tasks) = Host::new(connector, timers, config);
        tasks.into_iter().for_each(|task| drop(runtime.spawn(task)));
        host.ready().await.map_err(io::Error::other)?;
        let disk = host.disk(1).await.map_err(io::Error::other)?;
        let started = Instant::now();
        work(disk).await?;
        let took = started.elapsed();
        host.close().await;
        Ok(took)
    });
    // The target serves until this end of the channel is dropped.
    drop(done);
    serving.join().expect("the target's thread does not panic")?;
    took
}

fn on_a_runtime<T>(future: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(future)
}

async fn serve(listener: std::net::TcpListener, storage: Arc<dyn Storage>) -> io::Result<()> {
    let listener = TcpListener::from_std(listener)?;
    let mut target = Target::new(TargetConfig::default()).unwrap();
    target.add_subsystem(SUBSYSTEM, None).map_err(io::Error::other)?;
    let namespace = Namespace::new(1, 512, storage).map_err(io::Error::other)?;
    target.add_namespace(SUBSYSTEM, namespace).map_err(io::Error::other)?;
    target.advertise(listener.local_addr()?);
    let timers = Arc::new(TokioTimers::current());
    let server = Server::new(target, timers, Arc::new(Threads::new(1)?));
    loop {
        let (stream, _) = listener.accept().await?;
        stream.set_nodelay(true)?;
        tokio::spawn(server.serve(TokioSegments::new(stream)));
    }
}

async fn read_at_random(disk: &Disk, block: u32, depth: u16, operations: u64) -> io::Result<()> {
    let (blocks, places) = (block / 512, DISK / u64::from(block));
    let mut random = Seed(1).stream("places");
    let mut buffers: Vec<_> = (0..depth).map(|_| disk.buffer(blocks)).collect();
    let (mut asked, mut under_way) = (0, FuturesUnordered::new());
    loop {
        while asked < operations
            && let Some(buffer) = buffers.pop()
        {
            asked += 1;
            under_way.push(disk.read(random.next_u64() % places * u64::from(blocks), buffer));
        }
        let Some(read) = under_way.next().await else { return Ok(()) };
        buffers.push(read.map_err(io::Error::other)?);
    }
}

async fn write_in_order(disk: &Disk, writes: u64, flushed: bool) -> io::Result<()> {
    let data = Bytes::from_static(&[0x5a; 4096]);
    for number in 0..writes {
        disk.write(number % (DISK / 4096) * 8, [data.clone()]).await.map_err(io::Error::other)?;
        if flushed {
            disk.flush().await.map_err(io::Error::other)?;
        }
    }
    Ok(())
}

/// Prints the share of copies and digests by bytes of a read, beside the published share. Each is the median of five
/// runs.
fn shares(_: &mut Criterion) {
    let figures = published::figures();
    let theirs = figures.iter().find(|figure| figure.id == "asplos21-nvme-share").expect("it is among the data");
    println!("copy and CRC, {}:", theirs.unit);
    println!("{:>10} {:>8} {:>12} {:>10}", "bytes", "none", "place-check", "published");
    for bytes in theirs.x.clone() {
        let share = |offload| {
            let operations = ((8 << 20) as f64 / bytes) as u64;
            let fio = Fio { operations, depth: 16, ..reading(Mode::Tcp, offload, bytes as u32) };
            // The median of five runs resists other load of the machine.
            let mut shares: Vec<f64> = (0..5).map(|_| made(&fio).copy_crc_share).collect();
            shares.sort_by(f64::total_cmp);
            shares[2]
        };
        let (none, placed) = (share(NvmeOffload::None), share(NvmeOffload::PlaceCheck));
        let published = theirs.value("none", bytes).unwrap_or(f64::NAN);
        println!("{bytes:>10} {none:>7.1}% {placed:>11.1}% {published:>9.1}%");
    }
    println!("published: {}; {}; {}", theirs.source, theirs.setup, theirs.differs);
}

const SIZES: [usize; 2] = [4 << 10, 128 << 10];
/// Bytes of a segment with TCP timestamps.
const SEGMENT: usize = 1448;
const DISK: u64 = 16 << 20;
const SUBSYSTEM: &str = "nqn.2026-01.example:bench";
const WAYS: [(Mode, NvmeOffload); 7] = [
    (Mode::Tcp, NvmeOffload::None),
    (Mode::Tcp, NvmeOffload::Place),
    (Mode::Tcp, NvmeOffload::PlaceCheck),
    (Mode::Tcp, NvmeOffload::Emulate),
    (Mode::TlsCpu, NvmeOffload::None),
    (Mode::TlsNic, NvmeOffload::None),
    (Mode::TlsNic, NvmeOffload::PlaceCheck),
];

criterion_group! {
    name = benches;
    config = Criterion::default().without_plots().sample_size(10).warm_up_time(Duration::from_millis(100)).measurement_time(Duration::from_secs(1));
    targets = digests, pdus, placement, reads, flushes, shares
}
criterion_main!(benches);
