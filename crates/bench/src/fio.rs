//! Commands to an NVMe/TCP target, several at a time: reads or writes, sequential or random.
//!
//! The target serves a namespace in memory; the host has an I/O queue for each job. The content of a block follows from
//! its position, so that a read can be checked, and all written blocks are checked at the end. The clock and the meter
//! run from the moment when all queues are connected to the end of the last command.

use crate::disk::{DiskWire, SUBSYSTEM};
use crate::latency::{Latencies, Latency, per_request};
use bytes::Bytes;
use futures_util::future::join_all;
use nic_sim::NicConfig;
use nic_sim::wire::LinkConfig;
use nvme_tcp::{Disk, HostConfig, HostIdentity, MemoryStorage, Offload, Storage};
use offload_base::cost::{self, CpuMeter, Domain, WorkKind};
use offload_base::{Instant, Rng, Seed};
use offload_bench_tls::bulk::Mode;
use offload_bench_tls::choices;
use offload_bench_tls::connection::{nic_on, tcp};
use offload_bench_tls::facts::Run;
use offload_bench_tls::measured::Measured;
use offload_bench_tls::observers::Observers;
use offload_testbed::bed::{BedHost, ClockKind, Testbed};
use serde::Serialize;
use std::io;
use std::sync::Arc;

/// The settings of a run.
///
/// ```
/// use offload_bench_tls::bulk::Mode;
/// use offload_bench::fio::{Fio, Pattern};
///
/// let run = Fio { operations: 50, depth: 4, ..Fio::new(Mode::TlsNic, Pattern::RandomRead) }.run()?;
/// assert_eq!((run.operations, run.run.bytes), (50, 50 * 4096));
/// assert!(run.run.sha256_ok, "every block was the one that was asked for");
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Fio {
    /// The mode of TLS below NVMe/TCP.
    pub mode: Mode,
    /// The kind and order of commands.
    pub pattern: Pattern,
    /// Bytes of a command, a multiple of 512.
    pub block_size: u32,
    /// Outstanding commands of each job.
    pub depth: u16,
    /// I/O queues, one for each job.
    pub jobs: u16,
    /// Commands in total, shared evenly by the jobs.
    pub operations: u64,
    /// Bytes of the disk.
    pub disk_size: u64,
    /// CRC32C over PDU headers.
    pub header_digest: bool,
    /// CRC32C over PDU data.
    pub data_digest: bool,
    /// The NICs' share of NVMe/TCP; under TLS, only effective if the NICs do TLS too.
    pub offload: NvmeOffload,
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

choices! {
    /// The NICs' share of the work of NVMe/TCP.
    ///
    /// ```
    /// use offload_bench::fio::NvmeOffload;
    ///
    /// assert_eq!(NvmeOffload::PlaceCheck.to_string(), "place-check");
    /// ```
    pub enum NvmeOffload {
        /// No offload.
        None = "none",
        /// The host's NIC places read data.
        Place = "place",
        /// The host's NIC also checks data digests, and both NICs fill in digests of sent data.
        PlaceCheck = "place-check",
        /// An estimate of `place-check` without a NIC, by skipping copies and digests of read data. The disk holds
        /// 0xcc, and read data is not checked.
        Emulate = "emulate",
    }
}

impl NvmeOffload {
    /// Returns the offload that a host requests from its NIC.
    pub const fn of_host(self) -> Offload {
        match self {
            NvmeOffload::None => Offload::None,
            NvmeOffload::Place => Offload::Place,
            NvmeOffload::PlaceCheck => Offload::PlaceAndCheck,
            NvmeOffload::Emulate => Offload::Emulate,
        }
    }
}

choices! {
    /// The kind and order of commands.
    pub enum Pattern {
        /// Sequential reads.
        Read = "read",
        /// Sequential writes.
        Write = "write",
        /// Random reads.
        RandomRead = "randread",
        /// Random writes.
        RandomWrite = "randwrite",
    }
}

impl Pattern {
    const fn writes(self) -> bool {
        matches!(self, Pattern::Write | Pattern::RandomWrite)
    }

    const fn random(self) -> bool {
        matches!(self, Pattern::RandomRead | Pattern::RandomWrite)
    }
}

/// The result of one run: the fields of `ktls_loopback`, and results of commands.
///
/// See [`Fio`] for an example.
#[derive(Clone, Debug, Serialize)]
pub struct FioRun {
    /// The common fields. The target counts as the sender of all runs, including writes.
    #[serde(flatten)]
    pub run: Run,
    /// The kind and order of commands.
    pub pattern: String,
    /// The NICs' share of NVMe/TCP.
    pub offload: String,
    /// Share of the read bytes that the NIC placed.
    pub placed_share: f64,
    /// Share of the host's CPU time that copies and digests took, in percent.
    pub copy_crc_share: f64,
    /// Bytes of a command.
    pub block_bytes: u32,
    /// Outstanding commands of each job.
    pub depth: u16,
    /// I/O queues.
    pub jobs: u16,
    /// Successful commands.
    pub operations: u64,
    /// Seconds from the first command to the end of the last.
    pub seconds: f64,
    /// Commands per second.
    pub iops: f64,
    /// Time from a command to its end.
    pub latency_us: Latency,
    /// The target's CPU time per command, in microseconds.
    pub target_us_per_operation: f64,
    /// The host's CPU time per command, in microseconds.
    pub host_us_per_operation: f64,
}

impl Fio {
    /// Returns 2048 commands of 4 KiB on a disk of 16 MiB, 32 outstanding in one queue, without digests, in virtual
    /// time over a clean wire.
    pub fn new(mode: Mode, pattern: Pattern) -> Fio {
        Fio {
            mode,
            pattern,
            block_size: 4096,
            depth: 32,
            jobs: 1,
            operations: 2048,
            disk_size: 16 << 20,
            header_digest: false,
            data_digest: false,
            offload: NvmeOffload::None,
            clock: ClockKind::Virtual,
            seed: Seed(1),
            nic: NicConfig::default(),
            link: LinkConfig::default(),
            observers: Observers::default(),
        }
    }

    /// Runs the commands and returns the result. Wrong bytes are reported in the result and are not an error.
    ///
    /// # Errors If the testbed cannot be set up, the options contradict each other, or a connection or a command fails.
    pub fn run(self) -> io::Result<FioRun> {
        if !self.block_size.is_multiple_of(BLOCK) || self.block_size == 0 || self.places() == 0 {
            return Err(invalid("a command moves whole blocks of 512 bytes, and fits the disk"));
        }
        let meter = CpuMeter::new();
        let nic = nic_on(self.clock, &self.nic);
        let builder = Testbed::builder(self.seed)
            .clock(self.clock)
            .meter(&meter)
            .host("target", nic.clone(), tcp())
            .host("host", nic, tcp())
            .wire(TARGET, HOST, self.link.clone());
        let mut bed = self.observers.attach(builder).build()?;
        let content = self.content();
        let storage = Arc::new(MemoryStorage::new(self.disk_size));
        // A run of writes starts with an empty disk, so that old content cannot pass as written.
        if !self.pattern.writes() {
            storage.write(0, std::slice::from_ref(&content))?;
        }
        let wire = DiskWire::new(self.mode, self.clock, self.seed);
        let plan = Arc::new(FioPlan { fio: self, content, storage, wire, latencies: Latencies::new() });
        let (target, host) = (bed.host(TARGET).clone(), bed.host(HOST).clone());
        // The disk is filled by now, so filling is charged to no host.
        let attached = meter.attach();
        let digests_by_device = plan.fio.offload == NvmeOffload::PlaceCheck;
        plan.wire.serve(&target, plan.storage.clone(), BLOCK, plan.fio.jobs, digests_by_device)?;
        let worked = plan.fio.observers.run(
            &mut bed,
            plan.fio.mode,
            host.spawn("application", work(plan.clone(), host.clone(), target, meter.clone())),
        );
        drop(attached);
        let worked = worked?;
        plan.fio.observers.finish()?;
        let written = plan.written_right(&worked.written)?;
        let measured = Measured::take(bed, &meter, []);
        let (operations, fio) = (plan.latencies.count(), &plan.fio);
        // Only successful commands count, not the requested number.
        let bytes = operations * u64::from(fio.block_size);
        let span = worked.ended - worked.started;
        let whole = worked.equal && written && operations == fio.operations;
        let run = measured.run(fio.mode, bytes, whole, span);
        let placed = run.counters.get("rx_nvmeotcp_bytes").copied().unwrap_or_default();
        let reads = run.rx_host_ns_per_byte;
        Ok(FioRun {
            run,
            pattern: fio.pattern.to_string(),
            offload: fio.offload.to_string(),
            placed_share: if fio.pattern.writes() { 0.0 } else { placed as f64 / bytes.max(1) as f64 },
            copy_crc_share: 100.0 * (reads.copy + reads.crc) / reads.total.max(f64::MIN_POSITIVE),
            block_bytes: fio.block_size,
            depth: fio.depth,
            jobs: fio.jobs,
            operations,
            seconds: span.as_secs_f64(),
            iops: operations as f64 / span.as_secs_f64().max(1e-9),
            latency_us: plan.latencies.percentiles(),
            target_us_per_operation: per_request(&measured.report, Domain::Host(TARGET as u8), operations),
            host_us_per_operation: per_request(&measured.report, Domain::Host(HOST as u8), operations),
        })
    }

    /// Returns the content of the disk, or the content to write.
    fn content(&self) -> Bytes {
        let mut content = vec![0; self.disk_size as usize];
        match self.offload {
            NvmeOffload::Emulate => content.fill(0xcc),
            _ => self.seed.stream("disk").fill(&mut content),
        }
        content.into()
    }

    /// Returns the number of positions for commands on the disk.
    fn places(&self) -> u64 {
        self.disk_size / u64::from(self.block_size.max(1))
    }

    /// Returns the number of commands of worker `number`.
    fn share(&self, number: u64) -> u64 {
        let workers = u64::from(self.jobs) * u64::from(self.depth);
        self.operations / workers + u64::from(number < self.operations % workers)
    }
}

struct FioPlan {
    fio: Fio,
    content: Bytes,
    storage: Arc<MemoryStorage>,
    wire: DiskWire,
    latencies: Latencies,
}

impl FioPlan {
    /// Tests whether the storage holds the written data at these positions.
    fn written_right(&self, places: &[u64]) -> io::Result<bool> {
        let size = u64::from(self.fio.block_size);
        for place in places {
            let mut at = (place * size) as usize;
            for piece in self.storage.read(place * size, size as usize)? {
                if piece != self.content[at..at + piece.len()] {
                    return Ok(false);
                }
                at += piece.len();
            }
        }
        Ok(true)
    }
}

/// Measurements at the host.
struct FioResult {
    started: Instant,
    ended: Instant,
    equal: bool,
    /// Positions of the writes.
    written: Vec<u64>,
}

async fn work(plan: Arc<FioPlan>, near: BedHost, far: BedHost, meter: CpuMeter) -> io::Result<FioResult> {
    let mut config = HostConfig::new(SUBSYSTEM, HostIdentity::random(&mut plan.fio.seed.stream("nvme host")));
    config.queues = plan.fio.jobs;
    // NVMe queues have at least two entries, because a full queue leaves one of them free.
    config.depth = plan.fio.depth.max(2);
    config.header_digest = plan.fio.header_digest;
    config.data_digest = plan.fio.data_digest;
    config.offload = plan.fio.offload.of_host();
    let disk = plan.wire.open(&near, &far, config).await?;
    // Each queue is used once before the measurement, because a first command has one-time costs.
    for _ in 0..plan.fio.jobs {
        disk.read(0, disk.buffer(1)).await.map_err(io::Error::other)?;
    }
    meter.restart();
    let started = near.now();
    let workers = u64::from(plan.fio.jobs) * u64::from(plan.fio.depth);
    let working: Vec<_> = (0..workers)
        .map(|number| near.spawn("worker", one_after_the_other(plan.clone(), near.clone(), disk.clone(), number)))
        .collect();
    let mut all = FioResult { started, ended: started, equal: true, written: Vec::new() };
    for worked in join_all(working).await {
        let worked = worked?;
        all.ended = all.ended.max(worked.ended);
        all.equal &= worked.equal;
        all.written.extend(worked.written);
    }
    Ok(all)
}

async fn one_after_the_other(plan: Arc<FioPlan>, host: BedHost, disk: Disk, number: u64) -> io::Result<FioResult> {
    let fio = &plan.fio;
    let mut places: Rng = fio.seed.stream(&format!("worker {number}"));
    let workers = u64::from(fio.jobs) * u64::from(fio.depth);
    let (blocks, started) = (fio.block_size / BLOCK, host.now());
    let mut worked = FioResult { started, ended: started, equal: true, written: Vec::new() };
    // The buffer is reused for all commands, as an application would do.
    let mut buffer = disk.buffer(blocks);
    for turn in 0..fio.share(number) {
        // Sequential workers interleave: each takes every n-th position.
        let drawn = if fio.pattern.random() { places.next_u64() } else { turn * workers + number };
        let place = drawn % fio.places();
        let first = place * u64::from(blocks);
        let bytes = (place * u64::from(fio.block_size)) as usize;
        let expected = plan.content.slice(bytes..bytes + fio.block_size as usize);
        let asked = host.now();
        if fio.pattern.writes() {
            disk.write(first, [expected]).await.map_err(io::Error::other)?;
            worked.ended = host.now();
            worked.written.push(place);
        } else {
            buffer = disk.read(first, buffer).await.map_err(io::Error::other)?;
            worked.ended = host.now();
            // Comparing is the work of the test application and is not charged to the host.
            let _application = cost::work(WorkKind::Application);
            let mut rest = &expected[..];
            for part in buffer.parts().iter().filter(|_| fio.offload != NvmeOffload::Emulate) {
                let (mine, later) = rest.split_at(part.len());
                worked.equal &= mine == &part[..];
                rest = later;
            }
        }
        plan.latencies.record(worked.ended - asked);
        fio.observers.arrived(fio.block_size.into());
    }
    Ok(worked)
}

fn invalid(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, what)
}

/// Bytes of a block.
const BLOCK: u32 = 512;
const TARGET: usize = 0;
const HOST: usize = 1;

#[cfg(test)]
mod tests {
    use super::*;
    use core::sync::atomic::Ordering;
    use nic_sim::NvmeTcpEngineConfig;

    #[test]
    fn every_command_moves_the_right_bytes_in_every_mode() {
        for mode in Mode::ALL {
            for pattern in Pattern::ALL {
                // Half of the patterns run with digests, so that both cases are covered.
                let digests = pattern.random();
                let fio = Fio {
                    operations: 41,
                    depth: 3,
                    jobs: 2,
                    header_digest: digests,
                    data_digest: digests,
                    ..Fio::new(mode, pattern)
                };
                let observers = fio.observers.clone();
                let made = Fio { block_size: 8192, ..fio }.run().unwrap();
                assert_eq!(observers.received.load(Ordering::Relaxed), 41 * 8192);
                assert!(made.run.sha256_ok, "{made:?}");
                assert_eq!((made.operations, made.run.bytes), (41, 41 * 8192), "{mode} {pattern}");
                assert!(made.latency_us.p50 > 10.0, "a round trip is 10 us: {made:?}");
            }
        }
    }

    #[test]
    fn placed_data_is_right_and_counted() {
        for mode in Mode::ALL {
            for offload in NvmeOffload::ALL {
                // The threshold is below the block size, so that all reads may be placed.
                let nic = NicConfig {
                    engines: NvmeTcpEngineConfig { io_threshold: 4096, ..NvmeTcpEngineConfig::default() }.into(),
                    ..NicConfig::default()
                };
                let fio = Fio {
                    operations: 60,
                    depth: 4,
                    block_size: 65_536,
                    data_digest: true,
                    offload,
                    nic,
                    ..Fio::new(mode, Pattern::RandomRead)
                };
                let made = fio.run().unwrap();
                assert!(made.run.sha256_ok, "{mode} {offload}");
                let placed = !matches!(offload, NvmeOffload::None | NvmeOffload::Emulate) && mode != Mode::TlsCpu;
                if matches!(offload, NvmeOffload::None | NvmeOffload::Emulate) {
                    // Emulation skips digests, and only the plain run computes them on the host.
                    let crc = made.run.rx_host_ns_per_byte.crc;
                    assert_eq!(crc > 0.0, offload == NvmeOffload::None, "{mode} {offload}: {crc}");
                }
                assert_eq!(made.placed_share > 0.9, placed, "{mode} {offload}: {}", made.placed_share);
            }
        }
    }

    #[test]
    fn the_same_seed_gives_the_same_latencies() {
        let run = || Fio { operations: 100, ..Fio::new(Mode::TlsNic, Pattern::RandomRead) }.run().unwrap();
        let (one, other) = (run(), run());
        assert_eq!((one.latency_us.p50, one.latency_us.max), (other.latency_us.p50, other.latency_us.max));
    }

    #[test]
    fn blocks_that_do_not_fit_the_disk_are_refused() {
        for (block_size, disk_size) in [(0, 1 << 20), (700, 1 << 20), (8192, 4096)] {
            let fio = Fio { block_size, disk_size, ..Fio::new(Mode::Tcp, Pattern::Read) };
            assert_eq!(fio.run().unwrap_err().kind(), io::ErrorKind::InvalidInput);
        }
    }
}
