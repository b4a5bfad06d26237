//! Reads a disk, or writes it, over NVMe/TCP through two emulated NICs, several ways, and shows what the offloads save the host.

use bytes::{Bytes, BytesMut};
use clap::{Parser, ValueEnum};
use core::fmt;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use ktls_offload::Offload as TlsOffload;
use nic_sim::NicConfig;
use nic_sim::jobs::{ImportError, WrappingKey};
use nic_sim::transforms::{Secret, Tweak};
use nvme_tcp::host::{CommandFuture, KeyedVolume, ReadFuture};
use nvme_tcp::resumable_aead::{DataUnits, Volume, XtsKey};
use nvme_tcp::{
    Buffer, ConnectFuture, Connector, Host, HostConfig, HostIdentity, MemoryStorage, Namespace, Offload, Server, Storage,
    Target, TargetConfig, Threads,
};
use offload_api::{Refused, SegmentStream};
use offload_base::Seed;
use offload_base::cost::{self, Domain, Meter, Work};
use offload_base::counters::CounterSet;
use offload_bench_tls::connection::nic_on;
use offload_bench_tls::facts::HostCost;
use offload_bench_tls::observers::Observers;
use offload_bench_tls::table;
use offload_cli::options;
use offload_cli::own;
use offload_cli::run_options::RunOptions;
use offload_cli::scenario::{About, Failure, Made, Modes, OutputFiles, Scenario};
use offload_host_stack::{TcpConfig, TcpListener};
use offload_testbed::identity::{self, Randomness};
use offload_testbed::{BedHost, Testbed};
use serde::Serialize;
use std::collections::BTreeMap;
use std::error::Error;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Reads a disk, or writes it, over NVMe/TCP through two emulated NICs, with data digests: with everything done by the host's CPU, with
/// its NIC placing data, and the NICs making and checking digests too; with both estimated, by skipping what the NIC would do; and over TLS,
/// by the CPU, by the NICs, and by the NICs with data placed and checked, and digests made. Prints a table of what a byte costs; costs are nanoseconds of CPU time.
///
/// Exit status: 0; 1 if what was read, or written, is not what the disk holds; 2 if an option is bad.
#[derive(Debug, Parser)]
#[command(name = "nvme_loopback", version, allow_negative_numbers = true)]
pub struct NvmeLoopback {
    /// How much to read, or write: 256MiB, 1GB
    #[arg(long, value_parser = options::some_bytes, default_value = "256MiB")]
    size: u64,
    /// Bytes of a command
    #[arg(long, value_parser = options::bytes, default_value = "256KiB")]
    io: u64,
    /// Commands under way at a time
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..=1024))]
    depth: u16,
    /// I/O queues
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=64))]
    queues: u16,
    /// Only these modes, comma-separated
    #[arg(long, value_delimiter = ',', value_enum, default_values_t = Mode::ALL)]
    mode: Vec<Mode>,
    /// The disk holds ciphertext only, of AES-256-XTS: the host decrypts and encrypts, or its NIC where that places and checks. There is
    /// no emulation of that
    #[arg(long)]
    xts: bool,
    /// Write the disk instead of reading it. There is no emulation of that
    #[arg(long)]
    write: bool,
    #[command(flatten)]
    run: RunOptions,
}

/// Who does what.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Mode {
    /// The CPU copies and checks.
    Cpu,
    /// The NIC places, the CPU checks.
    Place,
    /// The NIC places and checks; the target's NIC fills digests in.
    PlaceCheck,
    /// Nobody does either: an estimate of the last.
    Emulate,
    /// As `cpu`, over TLS by the CPUs.
    TlsCpu,
    /// As `cpu`, over TLS by the NICs.
    TlsNic,
    /// Over TLS by the NICs: the one that sends data makes XTS and fills digests in, then seals; that of the host opens, places and checks.
    TlsPlaceCheck,
}

impl Mode {
    const ALL: [Mode; 7] =
        [Mode::Cpu, Mode::Place, Mode::PlaceCheck, Mode::Emulate, Mode::TlsCpu, Mode::TlsNic, Mode::TlsPlaceCheck];

    fn is_tls(self) -> bool {
        matches!(self, Mode::TlsCpu | Mode::TlsNic | Mode::TlsPlaceCheck)
    }

    fn offload(self) -> Offload {
        match self {
            Mode::Cpu | Mode::TlsCpu | Mode::TlsNic => Offload::None,
            Mode::Place => Offload::Place,
            Mode::PlaceCheck | Mode::TlsPlaceCheck => Offload::PlaceAndCheck,
            Mode::Emulate => Offload::Emulate,
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.to_possible_value().map_or(Ok(()), |value| f.pad(value.get_name()))
    }
}

/// What a way came to.
#[derive(Clone, Debug, Serialize)]
struct Run {
    mode: String,
    bytes: u64,
    data_ok: bool,
    goodput_gbps: f64,
    host_ns_per_byte: HostCost,
    target_ns_per_byte: HostCost,
    device_ns_per_byte: f64,
    placed_share: f64,
    counters: BTreeMap<String, u64>,
}

impl Scenario for NvmeLoopback {
    fn about(&self) -> About<'_> {
        self.run.about(self.mode.len())
    }

    fn run(&self) -> Result<Made, Failure> {
        run_all(self)
    }
}

fn run_all(options: &NvmeLoopback) -> Result<Made, Failure> {
    if !options.io.is_multiple_of(u64::from(BLOCK)) || options.io == 0 || options.io > 1 << 20 {
        return Err(Failure::Unusable("a read has whole blocks of 4096 bytes, 1 MiB at most".into()));
    }
    let has_no_emulation = options.xts || options.write;
    let modes: Vec<Mode> =
        options.mode.iter().copied().filter(|mode| !has_no_emulation || *mode != Mode::Emulate).collect();
    if modes.is_empty() {
        return Err(Failure::Unusable(
            "--mode emulate leaves buffers as they are: --xts has nothing to decrypt, nor --write anything to do"
                .into(),
        ));
    }
    let modes = Modes::new(NAME, &options.run, &modes, OutputFiles::default())?;
    let own = own!(options: size, io, depth, queues);
    let own = own.into_iter().chain(options.xts.then(|| ("xts", "AES-256".into())));
    let own = own.chain(options.write.then(|| ("write", "true".into())));
    let runs = modes.make(options.size, |mode, observers, _| {
        run(options, mode, &observers).map_err(|error| Failure::of(mode, error))
    })?;
    let whole = runs.iter().all(|run| run.data_ok);
    let text = table(&runs, options.run.output.wide) + table::noise_in(options.size, &[]);
    Ok(Made::new(options.run.facts(NAME, &options.run.nic(NicConfig::default()), own), &runs, whole, text))
}

fn run(options: &NvmeLoopback, mode: Mode, observers: &Observers) -> Result<Run, Box<dyn Error>> {
    let seed = options.run.wire.seed();
    let meter = Meter::new();
    let nic = nic_on(options.run.clock(), &options.run.nic(NicConfig::default()));
    let builder = Testbed::builder(seed)
        .clock(options.run.clock())
        .meter(&meter)
        .host("target", nic.clone(), TcpConfig::default())
        .host("host", nic, TcpConfig::default())
        .wire(0, 1, options.run.wire.link());
    let mut bed = observers.attach(builder).build()?;
    let attached = meter.attach();
    let pattern = pattern(seed, mode);
    let (there, here) = (bed.host(0).clone(), bed.host(1).clone());
    let volume = options.xts.then(|| volume(seed, &here)).transpose()?;
    let listener = there.stack().listen(PORT, 64)?;
    let disk = match options.write {
        true => Arc::new(MemoryStorage::new(options.size.next_multiple_of(PATTERN as u64))),
        false => Arc::new(filled(options.size, &pattern, volume.as_ref())?),
    };
    let mut server = Server::new(target(disk.clone())?, there.runtime(), Arc::new(Threads::new(1)?));
    if mode.offload() == Offload::PlaceAndCheck {
        server = server.with_digests_by_device();
    }
    let _runs_on = there.spawn("target", serve(there.clone(), listener, server, mode, seed));
    let mut config = HostConfig::new(NQN, HostIdentity::random(&mut seed.stream("nvme host")));
    config.queues = options.queues;
    config.depth = options.depth;
    config.data_digest = true;
    config.offload = mode.offload();
    let connects =
        Connects { near: here.clone(), far: (there.address(), PORT).into(), mode, seed, count: AtomicU64::new(0) };
    let (host, tasks) = Host::new(connects, here.runtime(), config);
    for task in tasks {
        let _runs_on = here.spawn("host", task);
    }
    let (size, io, depth) = (options.size, options.io, options.depth);
    let job =
        Job { bytes: size, io, depth, pattern: pattern.clone(), volume: volume.clone(), mode, write: options.write };
    let working = here.spawn("application", work_through(job, host, here.clone(), meter.clone(), observers.clone()));
    let (mut data_ok, took) = observers.run(&mut bed, mode, working)?;
    drop(attached);
    observers.finish()?;
    let counters = bed.counters();
    let mut of_host = CounterSet::default();
    bed.host(1).count(&mut of_host);
    // Threads report what they spent when they end.
    drop(bed);
    let report = meter.take();
    if options.write {
        data_ok &= is_written(&disk, size, &pattern, volume.as_ref())?;
    }
    let devices = report.total(Domain::Device(0)) + report.total(Domain::Device(1));
    let bytes = options.size;
    Ok(Run {
        mode: mode.to_string(),
        bytes,
        data_ok,
        goodput_gbps: bytes as f64 * 8.0 / took.as_nanos().max(1) as f64,
        host_ns_per_byte: HostCost::of(&report, here.domain(), bytes),
        target_ns_per_byte: HostCost::of(&report, there.domain(), bytes),
        device_ns_per_byte: devices.as_nanos() as f64 / bytes.max(1) as f64,
        placed_share: of_host.value("rx_nvmeotcp_bytes") as f64 / bytes.max(1) as f64,
        counters: counters.moved().map(|(name, value)| (name.to_string(), value)).collect(),
    })
}

/// A volume with a key of this seed, which the NIC of `host` has too.
fn volume(seed: Seed, host: &BedHost) -> Result<KeyedVolume, Box<dyn Error>> {
    let drawn = |name, bytes| {
        let mut key = vec![0; bytes];
        seed.stream(name).fill(&mut key);
        Secret::new(key)
    };
    let (key, wrapping) = (drawn("volume", 64), WrappingKey { tenant: 1, key: drawn("wrapping key", 32) });
    let on_device = host.stack().with_device(|device| {
        let device = device.contexts().ok_or(ImportError::Refused(Refused::Unsupported))?;
        wrapping.import(device, 1, &key, BLOCK, Tweak::Unit)
    })?;
    let volume = KeyedVolume::from(Volume::new(XtsKey::new(key.bytes())?, DataUnits::new(BLOCK as usize)?));
    volume.set_device_key(Some(on_device));
    Ok(volume)
}

/// Storage of `bytes` bytes that holds the pattern over and over, or what a volume makes of it.
fn filled(bytes: u64, pattern: &Bytes, volume: Option<&KeyedVolume>) -> Result<MemoryStorage, Box<dyn Error>> {
    let bytes = bytes.next_multiple_of(PATTERN as u64);
    let storage = MemoryStorage::new(bytes);
    for at in (0..bytes).step_by(PATTERN) {
        storage.write(at, &[on_medium(at, pattern, volume)?])?;
    }
    Ok(storage)
}

/// Whether the first `bytes` bytes hold that.
fn is_written(
    storage: &MemoryStorage,
    bytes: u64,
    pattern: &Bytes,
    volume: Option<&KeyedVolume>,
) -> Result<bool, Box<dyn Error>> {
    for at in (0..bytes).step_by(PATTERN) {
        let len = (bytes - at).min(PATTERN as u64) as usize;
        let found = storage.read(at, len)?.concat();
        if found[..] != on_medium(at, pattern, volume)?[..len] {
            return Ok(false);
        }
    }
    Ok(true)
}

/// What the pattern is on the medium if it begins at `at`.
fn on_medium(at: u64, pattern: &Bytes, volume: Option<&KeyedVolume>) -> Result<Bytes, Box<dyn Error>> {
    let Some(volume) = volume else { return Ok(pattern.clone()) };
    let mut made = BytesMut::from(&pattern[..]);
    volume.volume().encrypt(at / u64::from(BLOCK), 0, &mut made)?;
    Ok(made.freeze())
}

fn target(storage: Arc<MemoryStorage>) -> Result<Target, Box<dyn Error>> {
    let mut target = Target::new(TargetConfig::default())?;
    target.add_subsystem(NQN, None)?;
    target.add_namespace(NQN, Namespace::new(1, BLOCK, storage)?)?;
    Ok(target)
}

/// What the disk holds.
fn pattern(seed: Seed, mode: Mode) -> Bytes {
    let mut pattern = BytesMut::zeroed(PATTERN);
    match mode {
        Mode::Emulate => pattern.fill(0xcc),
        _ => seed.stream("disk").fill(&mut pattern),
    }
    pattern.freeze()
}

async fn serve(host: BedHost, mut listener: TcpListener, server: Server, mode: Mode, seed: Seed) {
    for number in 0u64.. {
        let Ok(stream) = listener.accept().await else { continue };
        stream.set_nodelay(true);
        let server = server.clone();
        let randomness = Randomness::Seeded(seed.derive(&format!("target {number}")));
        let _runs_on = host.spawn("serve", async move {
            if !mode.is_tls() {
                return drop(server.serve(stream).await);
            }
            let config = Arc::new(identity::server_config(randomness, None));
            let Ok(mut stream) = ktls_offload::accept(stream, config).await else { return };
            if mode != Mode::TlsCpu {
                stream.offload(TlsOffload::BOTH);
            }
            drop(server.serve(stream).await);
        });
    }
}

/// Opens streams over the emulated NIC.
struct Connects {
    near: BedHost,
    far: std::net::SocketAddr,
    mode: Mode,
    seed: Seed,
    count: AtomicU64,
}

impl Connector for Connects {
    fn connect(&self) -> ConnectFuture {
        let number = self.count.fetch_add(1, Ordering::Relaxed);
        let randomness = Randomness::Seeded(self.seed.derive(&format!("host {number}")));
        let (near, far, mode) = (self.near.clone(), self.far, self.mode);
        Box::pin(async move {
            let stream = near.stack().connect(None, far).await?;
            stream.set_nodelay(true);
            if !mode.is_tls() {
                return Ok(Box::new(stream) as Box<dyn SegmentStream>);
            }
            let config = Arc::new(identity::client_config(randomness, None));
            let mut stream = ktls_offload::connect(stream, config, identity::server_name()).await?;
            if mode != Mode::TlsCpu {
                stream.offload(TlsOffload::BOTH);
                stream.ready().await?;
            }
            Ok(Box::new(stream))
        })
    }
}

/// What is to be read, or written.
struct Job {
    bytes: u64,
    io: u64,
    depth: u16,
    pattern: Bytes,
    volume: Option<KeyedVolume>,
    mode: Mode,
    write: bool,
}

/// Reads or writes everything in order; whether what was read was right, and how long it took.
async fn work_through(
    job: Job,
    host: Host,
    bed_host: BedHost,
    meter: Meter,
    observers: Observers,
) -> io::Result<(bool, core::time::Duration)> {
    host.ready().await.map_err(io::Error::other)?;
    let mut disk = host.disk(1).await.map_err(io::Error::other)?;
    if let Some(volume) = &job.volume {
        disk = disk.with_volume(volume.clone()).map_err(io::Error::other)?;
    }
    let mut buffers: Vec<Buffer> = (0..job.depth).map(|_| disk.buffer((job.io / u64::from(BLOCK)) as u32)).collect();
    meter.restart();
    let started = bed_host.now();
    let (mut next, mut done, mut all_right) = (0, 0, true);
    let mut under_way = FuturesUnordered::new();
    while done < job.bytes {
        while next < job.bytes
            && let Some(buffer) = buffers.pop()
        {
            // The last command may go beyond what is wanted; the disk is as long as that.
            let first = (next / u64::from(BLOCK)).min(disk.blocks() - job.io / u64::from(BLOCK));
            let working = match job.write {
                true => {
                    Working::Write(disk.write(first, part_of(&job.pattern, first * u64::from(BLOCK), job.io)), buffer)
                }
                false => Working::Read(disk.read(first, buffer)),
            };
            under_way.push(async move { (first, working.finish().await) });
            next += job.io;
        }
        let Some((first, finished)) = under_way.next().await else { break };
        let buffer = finished?;
        let _application = cost::work(Work::Application);
        all_right &= job.write || job.mode == Mode::Emulate || holds(&buffer, &job.pattern, first * u64::from(BLOCK));
        buffers.push(buffer);
        done += job.io;
        observers.arrived(job.io);
    }
    let took = bed_host.now() - started;
    host.close().await;
    Ok((all_right, took))
}

/// A command under way, and the buffer for the next.
enum Working {
    Read(ReadFuture),
    Write(CommandFuture, Buffer),
}

impl Working {
    async fn finish(self) -> io::Result<Buffer> {
        match self {
            Working::Read(reading) => reading.await.map_err(io::Error::other),
            Working::Write(writing, buffer) => writing.await.map(|_| buffer).map_err(io::Error::other),
        }
    }
}

/// What the disk is to hold from `at` on: at most a whole pattern.
fn part_of(pattern: &Bytes, at: u64, bytes: u64) -> impl Iterator<Item = Bytes> {
    let from = (at % PATTERN as u64) as usize;
    let first = (bytes as usize).min(PATTERN - from);
    let pieces = [pattern.slice(from..from + first), pattern.slice(..bytes as usize - first)];
    pieces.into_iter().filter(|piece| !piece.is_empty())
}

/// Whether a buffer holds what the disk does from `at` on.
fn holds(buffer: &Buffer, pattern: &Bytes, at: u64) -> bool {
    let mut at = (at % PATTERN as u64) as usize;
    buffer.parts().iter().all(|part| {
        let mut rest = &part[..];
        while !rest.is_empty() {
            let expected = &pattern[at..at + rest.len().min(PATTERN - at)];
            if rest[..expected.len()] != *expected {
                return false;
            }
            rest = &rest[expected.len()..];
            at = (at + expected.len()) % PATTERN;
        }
        true
    })
}

fn table(runs: &[Run], wide: bool) -> String {
    let software = runs.iter().find(|run| run.mode == "cpu").map(|run| run.host_ns_per_byte.total);
    let mut heading = ["mode", "goodput Gb/s", "placed", "host ns/B"].map(String::from).to_vec();
    heading.extend(software.map(|_| "less than cpu".into()));
    let parts = ["copy", "crc", "crypto", "stack", "framing", "target ns/B", "devices ns/B"];
    heading.extend(parts.iter().filter(|_| wide).map(|part| part.to_string()));
    let mut rows = vec![heading];
    rows.extend(runs.iter().map(|run| {
        let host = &run.host_ns_per_byte;
        let mut row = vec![
            run.mode.clone(),
            format!("{:.2}", run.goodput_gbps),
            format!("{:.1}%", run.placed_share * 100.0),
            format!("{:.3}", host.total),
        ];
        row.extend(software.map(|software| match run.mode.as_str() {
            "cpu" => String::new(),
            _ => format!("{:.1}x", software / host.total.max(f64::MIN_POSITIVE)),
        }));
        let parts = [
            host.copy,
            host.crc,
            host.crypto,
            host.stack,
            host.framing,
            run.target_ns_per_byte.total,
            run.device_ns_per_byte,
        ];
        row.extend(parts.iter().filter(|_| wide).map(|cost| format!("{cost:.3}")));
        row
    }));
    let more = if wide { "" } else { "; --wide shows its parts, the target and both devices" };
    table::align(&rows) + &format!("host: CPU time of the host that reads or writes, nanoseconds per byte{more}\n")
}

const NAME: &str = "nvme_loopback";
const NQN: &str = "nqn.2026-01.example:disk";
const PORT: u16 = 4420;
const BLOCK: u32 = 4096;
const PATTERN: usize = 1 << 20;
