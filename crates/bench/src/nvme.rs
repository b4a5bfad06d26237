//! The cost of a byte of a disk that is read or written in order, over NVMe/TCP with data digests, if the CPU or the
//! NIC copies, checks and encrypts.
//!
//! The target serves a namespace in memory that repeats one MiB. The clock and the meter run from the moment when all
//! queues are connected to the end of the last command.

use crate::disk::{DiskWire, SUBSYSTEM};
use bytes::{Bytes, BytesMut};
use core::time::Duration;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use nic_sim::NicConfig;
use nic_sim::jobs::{ImportError, WrappingKey};
use nic_sim::transforms::{SecretBytes, Tweak};
use nic_sim::wire::LinkConfig;
use nvme_tcp::host::{CommandFuture, KeyedVolume, ReadFuture};
use nvme_tcp::resumable_aead::{DataUnits, Volume, XtsKey};
use nvme_tcp::{Buffer, Host, HostConfig, HostIdentity, MemoryStorage, Offload, Storage};
use offload_api::ContextRefusal;
use offload_base::Seed;
use offload_base::cost::{self, CpuMeter, Domain, WorkKind};
use offload_base::counters::CounterSet;
use offload_bench_tls::choices;
use offload_bench_tls::connection::{Mode, nic_on};
use offload_bench_tls::facts::HostCost;
use offload_bench_tls::observers::Observers;
use offload_host_stack::TcpConfig;
use offload_testbed::bed::{BedHost, ClockKind, Testbed};
use serde::Serialize;
use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

choices! {
    /// The work of the CPUs and of the NICs.
    pub enum NvmeMode {
        /// The CPU copies and checks.
        Cpu = "cpu",
        /// The NIC places, the CPU checks.
        Place = "place",
        /// The NIC places and checks; the target's NIC fills in digests.
        PlaceCheck = "place-check",
        /// An estimate of `place-check` without a NIC: nobody copies or checks.
        Emulate = "emulate",
        /// Like `cpu`, over TLS by the CPUs.
        TlsCpu = "tls-cpu",
        /// Like `cpu`, over TLS by the NICs.
        TlsNic = "tls-nic",
        /// Over TLS by the NICs: the sender's NIC does XTS, fills in digests and encrypts; the host's NIC decrypts,
        /// places and checks.
        TlsPlaceCheck = "tls-place-check",
    }
}

impl NvmeMode {
    /// Returns the mode of the TLS below NVMe/TCP.
    const fn tls(self) -> Mode {
        match self {
            NvmeMode::Cpu | NvmeMode::Place | NvmeMode::PlaceCheck | NvmeMode::Emulate => Mode::Tcp,
            NvmeMode::TlsCpu => Mode::TlsCpu,
            NvmeMode::TlsNic | NvmeMode::TlsPlaceCheck => Mode::TlsNic,
        }
    }

    const fn offload(self) -> Offload {
        match self {
            NvmeMode::Cpu | NvmeMode::TlsCpu | NvmeMode::TlsNic => Offload::None,
            NvmeMode::Place => Offload::Place,
            NvmeMode::PlaceCheck | NvmeMode::TlsPlaceCheck => Offload::PlaceAndCheck,
            NvmeMode::Emulate => Offload::Emulate,
        }
    }
}

/// The settings of a run.
///
/// ```
/// use offload_bench::nvme::{Nvme, NvmeMode};
///
/// let run = Nvme { bytes: 1 << 20, ..Nvme::new(NvmeMode::PlaceCheck) }.run()?;
/// assert!(run.data_ok && run.placed_share == 1.0, "the NIC placed all bytes");
/// assert!(Nvme { io: 1000, ..Nvme::new(NvmeMode::Cpu) }.check().is_err(), "a block has 4096 bytes");
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Nvme {
    /// The work of the CPUs and of the NICs.
    pub mode: NvmeMode,
    /// Bytes to read or write.
    pub bytes: u64,
    /// Bytes of a command: whole blocks of 4096, 1 MiB at most.
    pub io: u64,
    /// Outstanding commands.
    pub depth: u16,
    /// I/O queues.
    pub queues: u16,
    /// Whether the disk holds ciphertext of AES-256-XTS.
    pub xts: bool,
    /// Whether the disk is written.
    pub write: bool,
    /// The clock.
    pub clock: ClockKind,
    /// The seed of all random numbers.
    pub seed: Seed,
    /// Settings of both NICs.
    pub nic: NicConfig,
    /// Settings of each direction of the wire.
    pub link: LinkConfig,
    /// The observers of the run.
    pub observers: Observers,
}

/// The result of one run. See [`Nvme`] for an example.
#[derive(Clone, Debug, Serialize)]
pub struct NvmeRun {
    /// The name of the [mode](NvmeMode).
    pub mode: String,
    /// Bytes read or written.
    pub bytes: u64,
    /// Whether the host, or the disk, has the right bytes.
    pub data_ok: bool,
    /// Bytes in 10^9 bits per second of the run's clock.
    pub goodput_gbps: f64,
    /// CPU time of the host that reads or writes.
    pub host_ns_per_byte: HostCost,
    /// CPU time of the target.
    pub target_ns_per_byte: HostCost,
    /// CPU time of both emulated devices.
    pub device_ns_per_byte: f64,
    /// The share of the bytes that the host's NIC placed.
    pub placed_share: f64,
    /// Counters of both hosts, devices and the wire that moved, summed by name.
    pub counters: BTreeMap<String, u64>,
}

impl Nvme {
    /// Returns reads of 256 MiB in commands of 256 KiB, 16 outstanding in one queue, in virtual time over a clean wire.
    pub fn new(mode: NvmeMode) -> Nvme {
        Nvme {
            mode,
            bytes: 256 << 20,
            io: 256 << 10,
            depth: 16,
            queues: 1,
            xts: false,
            write: false,
            clock: ClockKind::Virtual,
            seed: Seed(1),
            nic: NicConfig::default(),
            link: LinkConfig::default(),
            observers: Observers::default(),
        }
    }

    /// Checks the size of a command.
    ///
    /// # Errors
    /// [`io::ErrorKind::InvalidInput`] if a command has no whole blocks, or too many.
    pub fn check(&self) -> io::Result<()> {
        if !self.io.is_multiple_of(u64::from(BLOCK)) || self.io == 0 || self.io > 1 << 20 {
            let text = "a read has whole blocks of 4096 bytes, 1 MiB at most";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        Ok(())
    }

    /// Runs the commands. Wrong bytes are reported in the result and are not an error.
    ///
    /// # Errors If the size of a command is invalid, the testbed cannot be set up, or a connection or a command fails.
    pub fn run(self) -> io::Result<NvmeRun> {
        self.check()?;
        let meter = CpuMeter::new();
        let nic = nic_on(self.clock, &self.nic);
        let builder = Testbed::builder(self.seed)
            .clock(self.clock)
            .meter(&meter)
            .host("target", nic.clone(), TcpConfig::default())
            .host("host", nic, TcpConfig::default())
            .wire(0, 1, self.link.clone());
        let mut bed = self.observers.attach(builder).build()?;
        let attached = meter.attach();
        let (there, here) = (bed.host(0).clone(), bed.host(1).clone());
        // The key is imported before the measurement, because that is a one-time cost.
        let volume = self.xts.then(|| volume(self.seed, &here)).transpose()?;
        let job = Arc::new(NvmeJob { pattern: pattern(self.seed, self.mode), volume, plan: self });
        let plan = &job.plan;
        let disk = match plan.write {
            true => Arc::new(MemoryStorage::new(plan.bytes.next_multiple_of(PATTERN as u64))),
            false => Arc::new(job.filled()?),
        };
        let wire = DiskWire::new(plan.mode.tls(), plan.clock, plan.seed);
        wire.serve(&there, disk.clone(), BLOCK, plan.queues, plan.mode.offload() == Offload::PlaceAndCheck)?;
        let mut config = HostConfig::new(SUBSYSTEM, HostIdentity::random(&mut plan.seed.stream("nvme host")));
        config.queues = plan.queues;
        config.depth = plan.depth;
        config.data_digest = true;
        config.offload = plan.mode.offload();
        let host = wire.connect_host(&here, &there, config);
        let working = here.spawn("application", work_through(job.clone(), host, here.clone(), meter.clone()));
        let (mut data_ok, took) = plan.observers.run(&mut bed, plan.mode, working)?;
        drop(attached);
        plan.observers.finish()?;
        let counters = bed.counters();
        // `counters` sums both hosts, but the placed share needs the counters of this host alone.
        let mut of_host = CounterSet::default();
        bed.host(1).count(&mut of_host);
        // Threads report their CPU time when they end, so the testbed is dropped first.
        drop(bed);
        let report = meter.take();
        // Reads are checked as they complete; writes can be checked only on the disk.
        if plan.write {
            data_ok &= job.is_written(&disk)?;
        }
        let devices = report.total(Domain::Device(0)) + report.total(Domain::Device(1));
        let bytes = plan.bytes;
        Ok(NvmeRun {
            mode: plan.mode.to_string(),
            bytes,
            data_ok,
            goodput_gbps: bytes as f64 * 8.0 / took.as_nanos().max(1) as f64,
            host_ns_per_byte: HostCost::from_report(&report, here.domain(), bytes),
            target_ns_per_byte: HostCost::from_report(&report, there.domain(), bytes),
            device_ns_per_byte: devices.as_nanos() as f64 / bytes.max(1) as f64,
            placed_share: of_host.value("rx_nvmeotcp_bytes") as f64 / bytes.max(1) as f64,
            counters: counters.moved().map(|(name, value)| (name.to_string(), value)).collect(),
        })
    }
}

/// A run with the content of its disk.
struct NvmeJob {
    plan: Nvme,
    pattern: Bytes,
    volume: Option<KeyedVolume>,
}

impl NvmeJob {
    /// Returns storage that holds the pattern over and over, or the volume's ciphertext of it.
    fn filled(&self) -> io::Result<MemoryStorage> {
        let bytes = self.plan.bytes.next_multiple_of(PATTERN as u64);
        let storage = MemoryStorage::new(bytes);
        // Each piece is encrypted for its own position.
        for at in (0..bytes).step_by(PATTERN) {
            storage.write(at, &[self.on_medium(at)?])?;
        }
        Ok(storage)
    }

    /// Tests whether the disk holds the written data.
    fn is_written(&self, storage: &MemoryStorage) -> io::Result<bool> {
        let bytes = self.plan.bytes;
        for at in (0..bytes).step_by(PATTERN) {
            let len = (bytes - at).min(PATTERN as u64) as usize;
            let found = storage.read(at, len)?.concat();
            if found[..] != self.on_medium(at)?[..len] {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Returns the pattern as stored on the medium from `at` on.
    fn on_medium(&self, at: u64) -> io::Result<Bytes> {
        let Some(volume) = &self.volume else { return Ok(self.pattern.clone()) };
        let mut made = BytesMut::from(&self.pattern[..]);
        volume.volume().encrypt(at / u64::from(BLOCK), 0, &mut made).map_err(io::Error::other)?;
        Ok(made.freeze())
    }
}

/// Reads or writes everything in order. Returns whether all read bytes are right, and the time taken.
async fn work_through(
    job: Arc<NvmeJob>,
    host: Host,
    bed_host: BedHost,
    meter: CpuMeter,
) -> io::Result<(bool, Duration)> {
    let plan = &job.plan;
    host.ready().await.map_err(io::Error::other)?;
    let mut disk = host.disk(1).await.map_err(io::Error::other)?;
    if let Some(volume) = &job.volume {
        disk = disk.with_volume(volume.clone()).map_err(io::Error::other)?;
    }
    // Buffers are reused, as an application would do, so their allocation is not measured.
    let mut buffers: Vec<Buffer> = (0..plan.depth).map(|_| disk.buffer((plan.io / u64::from(BLOCK)) as u32)).collect();
    meter.restart();
    let started = bed_host.now();
    let (mut next, mut done, mut all_right) = (0, 0, true);
    let mut under_way = FuturesUnordered::new();
    while done < plan.bytes {
        while next < plan.bytes
            && let Some(buffer) = buffers.pop()
        {
            // The last command may reach beyond the requested bytes; the disk is long enough for that.
            let first = (next / u64::from(BLOCK)).min(disk.blocks() - plan.io / u64::from(BLOCK));
            let working = match plan.write {
                true => {
                    Command::Write(disk.write(first, part_of(&job.pattern, first * u64::from(BLOCK), plan.io)), buffer)
                }
                false => Command::ReadFuture(disk.read(first, buffer)),
            };
            under_way.push(async move { (first, working.finish().await) });
            next += plan.io;
        }
        let Some((first, finished)) = under_way.next().await else { break };
        let buffer = finished?;
        // Comparing is the work of the test application and is not charged to the host.
        let _application = cost::work(WorkKind::Application);
        all_right &=
            plan.write || plan.mode == NvmeMode::Emulate || holds(&buffer, &job.pattern, first * u64::from(BLOCK));
        buffers.push(buffer);
        done += plan.io;
        plan.observers.arrived(plan.io);
    }
    let took = bed_host.now() - started;
    host.close().await;
    Ok((all_right, took))
}

/// Returns a volume with a key from this seed, which the NIC of `host` has too.
fn volume(seed: Seed, host: &BedHost) -> io::Result<KeyedVolume> {
    let drawn = |name, bytes| {
        let mut key = vec![0; bytes];
        seed.stream(name).fill(&mut key);
        SecretBytes::new(key)
    };
    let (key, wrapping) = (drawn("volume", 64), WrappingKey { tenant: 1, key: drawn("wrapping key", 32) });
    let on_device = host.stack().with_device(|device| {
        let device = device.contexts().ok_or(ImportError::Refused(ContextRefusal::Unsupported))?;
        wrapping.import(device, 1, &key, BLOCK, Tweak::Unit)
    });
    let on_device = on_device.map_err(io::Error::other)?;
    let key = XtsKey::new(key.bytes()).map_err(io::Error::other)?;
    let units = DataUnits::new(BLOCK as usize).map_err(io::Error::other)?;
    let volume = KeyedVolume::from(Volume::new(key, units));
    volume.set_device_key(Some(on_device));
    Ok(volume)
}

/// Returns the content of the disk.
fn pattern(seed: Seed, mode: NvmeMode) -> Bytes {
    let mut pattern = BytesMut::zeroed(PATTERN);
    match mode {
        NvmeMode::Emulate => pattern.fill(0xcc),
        _ => seed.stream("disk").fill(&mut pattern),
    }
    pattern.freeze()
}

/// An outstanding command, with the buffer for the next.
enum Command {
    ReadFuture(ReadFuture),
    Write(CommandFuture, Buffer),
}

impl Command {
    async fn finish(self) -> io::Result<Buffer> {
        match self {
            Command::ReadFuture(reading) => reading.await.map_err(io::Error::other),
            Command::Write(writing, buffer) => writing.await.map(|_| buffer).map_err(io::Error::other),
        }
    }
}

/// Returns the pieces of the content from `at` on: at most one whole pattern.
fn part_of(pattern: &Bytes, at: u64, bytes: u64) -> impl Iterator<Item = Bytes> {
    let from = (at % PATTERN as u64) as usize;
    let first = (bytes as usize).min(PATTERN - from);
    let pieces = [pattern.slice(from..from + first), pattern.slice(..bytes as usize - first)];
    pieces.into_iter().filter(|piece| !piece.is_empty())
}

/// Tests whether a buffer equals the content from `at` on.
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

/// Bytes of a block.
const BLOCK: u32 = 4096;
const PATTERN: usize = 1 << 20;
