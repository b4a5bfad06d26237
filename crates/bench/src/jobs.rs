//! One transform on bytes, in four places: on the CPU, by jobs of a lookaside accelerator, inline in a NIC, and by
//! chains of small services.
//!
//! The CPU does one job after the other, and its time is measured. The accelerator's time is virtual: it follows from
//! the configured latency and rate of its units; the host's cost of submission and completion is measured. Inline work
//! has no jobs: a NIC seals TLS records of the job's size on transmit, in virtual time, and the host's cost of records
//! is measured. Services are a device of their own, in virtual time; the host's cost of their jobs is not measured
//! separately. All results are compared with the results of the CPU.

use bytes::{Bytes, BytesMut};
use core::time::Duration;
use crypto_services::{Goal, Predictive, ServiceQueue, ServiceQueueConfig};
use nic_sim::NicConfig;
use nic_sim::lookaside;
use nic_sim::lookaside::{Lookaside, LookasideConfig, LookasideUnit};
use offload_api::{CompletedJob, Handle, Job, JobQueue, JobStatus, TlsSuite, TlsVersion};
use offload_base::{Instant, Seed};
use offload_bench_tls::bulk::{Bulk, BulkError, Mode};
use offload_bench_tls::choices;
use offload_bench_tls::facts::Run;
use offload_bench_tls::payload::Payload;
use offload_compression::Compression;
use offload_jobs::{CpuConfig, CpuQueue, OpenTransform};
use offload_testbed::identity::Agreement;
use offload_transforms::protection::{BlockProtection, Check, Format};
use offload_transforms::{Aead, HmacHash, MacOrder, SecretBytes, Transform, Tweak};
use serde::Serialize;

choices! {
    /// A transform of bytes.
    pub enum Kind {
        /// AES-128-GCM.
        Aes128Gcm = "aes-128-gcm",
        /// AES-256-GCM.
        Aes256Gcm = "aes-256-gcm",
        /// AES-128-CCM.
        Aes128Ccm = "aes-128-ccm",
        /// ChaCha20-Poly1305.
        ChaCha20Poly1305 = "chacha20-poly1305",
        /// AES-128-CBC, then HMAC-SHA1.
        CbcSha1 = "aes-128-cbc-sha1",
        /// AES-256-XTS in units of 4 KiB.
        Xts = "xts",
        /// T10-DIF added to blocks of 4 KiB.
        Pi = "pi",
        /// DEFLATE, fast.
        Deflate = "deflate",
        /// LZ4 frames.
        Lz4 = "lz4",
        /// A copy with its CRC-32.
        Copy = "copy",
        /// LZ4, padding, AES-256-XTS and T10-DIF in one job.
        Chain = "chain",
    }
}

choices! {
    /// The place of the work.
    pub enum JobWay {
        /// A CPU core, one job after the other.
        Cpu = "cpu",
        /// A lookaside accelerator, from memory to memory.
        Lookaside = "lookaside",
        /// A NIC, on transmit: TLS records.
        Inline = "inline",
        /// Chains of small services on a device of 64 units of area, with as many instances as the load needs.
        Services = "services",
    }
}

impl Kind {
    /// Returns the transform of the job queue's session.
    pub fn transform(self) -> Transform {
        let key = |len| SecretBytes::new((0..len).collect());
        // Data in memory has no protection information; only the stored form has.
        let pi = BlockProtection {
            memory: None,
            wire: Some(Format { interval: BLOCK as u32, ..Format::default() }),
            check: Check::ALL,
        };
        let xts = || Transform::Xts { key: key(64), unit: BLOCK as u32, tweak: Tweak::Unit };
        let aead = |aead: Aead| Transform::Aead { aead, key: key(aead.key_len() as u8) };
        let compression = |format: Compression, level| format.at_level(level);
        match self {
            Kind::Aes128Gcm => aead(Aead::Aes128Gcm),
            Kind::Aes256Gcm => aead(Aead::Aes256Gcm),
            Kind::Aes128Ccm => aead(Aead::Aes128Ccm),
            Kind::ChaCha20Poly1305 => aead(Aead::ChaCha20Poly1305),
            Kind::CbcSha1 => {
                let (order, hash) = (MacOrder::EncryptThenMac, HmacHash::Sha1);
                Transform::CbcHmac { order, hash, cipher_key: key(16), mac_key: key(20) }
            }
            Kind::Xts => xts(),
            Kind::Pi => Transform::Protection(pi),
            Kind::Deflate => compression(Compression::Deflate, 1),
            Kind::Lz4 => compression(Compression::Lz4, 0),
            Kind::Copy => Transform::Copy,
            // Compression comes first, because ciphertext does not compress.
            Kind::Chain => {
                let pad = Transform::Pad { unit: BLOCK as u32 };
                Transform::Chain(vec![compression(Compression::Lz4, 0), pad, xts(), Transform::Protection(pi)])
            }
        }
    }

    /// Returns the TLS cipher suite, if TLS has one for the transform. A NIC can then do the work inline.
    pub fn suite(self) -> Option<TlsSuite> {
        match self {
            Kind::Aes128Gcm => Some(TlsSuite::Aes128Gcm),
            Kind::Aes256Gcm => Some(TlsSuite::Aes256Gcm),
            Kind::ChaCha20Poly1305 => Some(TlsSuite::ChaCha20Poly1305),
            _ => None,
        }
    }

    /// Returns whether a chain of services exists for the transform.
    pub fn has_services(self) -> bool {
        self.suite().is_some() || self == Kind::CbcSha1
    }

    /// Returns whether sources must consist of whole blocks of [`BLOCK`] bytes.
    pub fn works_on_blocks(self) -> bool {
        matches!(self, Kind::Xts | Kind::Pi)
    }
}

/// The settings of a run.
///
/// ```
/// use offload_bench::jobs::{JobWay, Jobs, Kind, text};
///
/// let jobs = Jobs { in_flight: 4, ..Jobs::new(Kind::Aes128Gcm, text(1 << 20)) };
/// let lookaside = jobs.run(JobWay::Lookaside)?;
/// let alone = Jobs { in_flight: 1, ..jobs.clone() }.run(JobWay::Lookaside)?;
/// assert!(lookaside.megabytes_per_second > 3.5 * alone.megabytes_per_second, "latency bounds one at a time");
/// // Source and result, and the descriptors.
/// assert!((2.0..2.1).contains(&lookaside.pcie_bytes_per_byte.unwrap()));
/// # Ok::<(), offload_bench::jobs::JobsError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Jobs {
    /// The transform.
    pub kind: Kind,
    /// The source bytes.
    pub data: Bytes,
    /// Bytes of a job.
    pub size: usize,
    /// Outstanding jobs at the accelerator.
    pub in_flight: usize,
    /// Units of the accelerator.
    pub units: Vec<LookasideUnit>,
    /// Settings of the NICs for inline work.
    pub nic: NicConfig,
}

/// The result of one run.
///
/// See [`Jobs`] for an example.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct JobRun {
    /// The place of the work.
    pub way: &'static str,
    /// The transform.
    pub transform: &'static str,
    /// Bytes of a job.
    pub size: usize,
    /// Outstanding jobs.
    pub in_flight: usize,
    /// Units of the accelerator; 0 without an accelerator.
    pub units: usize,
    /// Source bytes per second, in 10^6: of CPU time on the CPU, else of virtual time.
    pub megabytes_per_second: f64,
    /// Mean time from submission to completion, in microseconds. `None` for inline work, which has no completions.
    pub latency_us: Option<f64>,
    /// CPU time of the host per job, in nanoseconds. `None` for services, where the time is not separated from the
    /// device's.
    pub host_ns_per_job: Option<f64>,
    /// CPU time of the host per byte, in nanoseconds. `None` for services.
    pub host_ns_per_byte: Option<f64>,
    /// PCIe bytes of the work per source byte; for inline work, the NIC's additional PCIe bytes. `None` for services,
    /// whose model has no PCIe.
    pub pcie_bytes_per_byte: Option<f64>,
    /// Result bytes per source byte.
    pub result_bytes_per_byte: f64,
}

/// The reason why there is no result.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JobsError {
    /// No NIC does the transform inline.
    #[error("{0} cannot be done inline by a NIC: leave `inline` out")]
    NotInline(Kind),
    /// No chain of services exists for the transform.
    #[error("{0} has no chain of services: leave `services` out")]
    NotServices(Kind),
    /// The transform does not support the size of a job.
    #[error("{kind} works on whole blocks of 4096 bytes, not on jobs of {size}")]
    Blocks {
        /// The transform.
        kind: Kind,
        /// Bytes of a job.
        size: usize,
    },
    /// The size exceeds the limit of TLS records, 16 KiB.
    #[error("{0} bytes exceed a TLS record: use 16 KiB at most")]
    RecordSize(usize),
    /// A job failed.
    #[error("a job failed: {0}")]
    Job(JobStatus),
    /// The transfer failed.
    #[error(transparent)]
    Bulk(#[from] BulkError),
}

impl Jobs {
    /// Returns jobs of 16 KiB, 32 at a time, on one unit of the default speed.
    pub fn new(kind: Kind, data: Bytes) -> Jobs {
        Jobs {
            kind,
            data,
            size: 16 << 10,
            in_flight: 32,
            units: vec![LookasideUnit::default()],
            nic: NicConfig::default(),
        }
    }

    /// Runs the jobs.
    ///
    /// # Errors If the size is not supported, a job fails, or the place of work does not support the transform.
    pub fn run(&self, way: JobWay) -> Result<JobRun, JobsError> {
        if self.kind.works_on_blocks() && !self.size.is_multiple_of(BLOCK) {
            return Err(JobsError::Blocks { kind: self.kind, size: self.size });
        }
        match way {
            JobWay::Cpu => self.on_the_cpu(),
            JobWay::Lookaside => self.by_jobs(),
            JobWay::Inline => self.inline(),
            JobWay::Services => self.by_services(),
        }
    }

    /// Returns the number of outstanding jobs that keeps the units busy: rate x latency, plus the job that is being
    /// read.
    pub fn fills(&self) -> f64 {
        let of = |unit: &LookasideUnit| {
            unit.rate.map_or(0.0, |rate| rate as f64 * unit.latency.as_secs_f64() / self.size as f64)
        };
        self.units.iter().map(of).sum::<f64>() + 1.0
    }

    /// Returns the source of each job. Transforms that work on blocks get whole blocks.
    fn sources(&self) -> Vec<Bytes> {
        let whole = if self.kind.works_on_blocks() { self.data.len() / BLOCK * BLOCK } else { self.data.len() };
        (0..whole).step_by(self.size.max(1)).map(|at| self.data.slice(at..whole.min(at + self.size))).collect()
    }

    /// Runs one job after the other on this core. The queue does a job on submission.
    fn on_the_cpu(&self) -> Result<JobRun, JobsError> {
        let mut queue = CpuQueue::new(CpuConfig::default());
        let session = self.open(&mut queue);
        let sources = self.sources();
        let (mut took, mut results) = (Duration::ZERO, 0);
        for (number, source) in (0..).zip(&sources) {
            let job = job(session, number, source);
            let start = std::time::Instant::now();
            let _room = queue.submit(Instant::ZERO, job);
            let done = queue.complete(Instant::MAX);
            took += start.elapsed();
            results += done.map_or(Ok(0), |done| result(&done))?;
        }
        let (jobs, bytes) = (sources.len().max(1) as f64, total(&sources));
        // Reading the clock takes time too, which is subtracted.
        let nanos = (took.as_nanos() as f64 - jobs * clock()).max(1.0);
        Ok(JobRun {
            in_flight: 1,
            units: 0,
            megabytes_per_second: 1000.0 * bytes / nanos,
            latency_us: Some(nanos / jobs / 1000.0),
            host_ns_per_job: Some(nanos / jobs),
            host_ns_per_byte: Some(nanos / bytes),
            pcie_bytes_per_byte: Some(0.0),
            result_bytes_per_byte: results as f64 / bytes,
            ..self.row(JobWay::Cpu)
        })
    }

    /// Runs the jobs on the accelerator, in virtual time, and measures the host's cost.
    fn by_jobs(&self) -> Result<JobRun, JobsError> {
        let config =
            LookasideConfig { depth: self.in_flight + 1, units: self.units.clone(), ..LookasideConfig::default() };
        let (mut device, mut queues) = lookaside(config, |_| ());
        let queue = &mut queues[0];
        let session = self.open(queue);
        run_until_idle(&mut device, queue);
        // Opening the session moved bytes over PCIe too, which are not part of the jobs.
        let before = pcie(&device);
        let sources = self.sources();
        let (mut now, mut host, mut results) = (Instant::ZERO, Duration::ZERO, 0);
        let (mut next, mut ended, mut waited, mut looks) = (0, 0, Duration::ZERO, 0);
        let mut submitted_at = vec![Instant::ZERO; sources.len()];
        let (mut jobs, mut dones) = (Vec::new(), Vec::new());
        while ended < sources.len() {
            // Building jobs and their buffers is the application's work and is not measured.
            while next < sources.len() && next - ended < self.in_flight {
                submitted_at[next] = now;
                jobs.push(job(session, next as u64, &sources[next]));
                next += 1;
            }
            let start = std::time::Instant::now();
            for job in jobs.drain(..) {
                let _room = queue.submit(now, job);
            }
            queue.flush(now);
            host += start.elapsed();
            looks += 2;
            device.process(now);
            let start = std::time::Instant::now();
            while let Some(done) = queue.complete(now) {
                dones.push(done);
            }
            host += start.elapsed();
            // Time advances only when no job has completed, so that each completion gets its exact time.
            if dones.is_empty() {
                now = device.next_event().unwrap_or(now).max(now);
            }
            for done in dones.drain(..) {
                waited += now - submitted_at[done.user as usize];
                results += result(&done)?;
                ended += 1;
            }
        }
        let (jobs, bytes) = (sources.len().max(1) as f64, total(&sources));
        let host = (host.as_nanos() as f64 - f64::from(looks) * clock()).max(0.0);
        Ok(JobRun {
            megabytes_per_second: 1000.0 * bytes / (now - Instant::ZERO).as_nanos() as f64,
            latency_us: Some(waited.as_nanos() as f64 / jobs / 1000.0),
            host_ns_per_job: Some(host / jobs),
            host_ns_per_byte: Some(host / bytes),
            pcie_bytes_per_byte: Some((pcie(&device) - before) as f64 / bytes),
            result_bytes_per_byte: results as f64 / bytes,
            ..self.row(JobWay::Lookaside)
        })
    }

    /// Runs the jobs on a device of services, in virtual time. The controller may use the whole area.
    fn by_services(&self) -> Result<JobRun, JobsError> {
        let config = ServiceQueueConfig { depth: self.in_flight, ..ServiceQueueConfig::default() };
        let goal = Goal::new(SERVICES_TARGET_NS, config.fabric.area);
        let mut queue = ServiceQueue::new(config, Box::new(Predictive::new(goal)));
        let session = queue.open(self.kind.transform()).map_err(|_| JobsError::NotServices(self.kind))?;
        let sources = self.sources();
        let (mut now, mut results, mut waited) = (Instant::ZERO, 0, Duration::ZERO);
        let (mut next, mut ended) = (0, 0);
        let mut submitted_at = vec![Instant::ZERO; sources.len()];
        while ended < sources.len() {
            while next < sources.len() && queue.room() > 0 {
                submitted_at[next] = now;
                let _room = queue.submit(now, job(session, next as u64, &sources[next]));
                next += 1;
            }
            queue.flush(now);
            while let Some(done) = queue.complete(now) {
                waited += now - submitted_at[done.user as usize];
                results += result(&done)?;
                ended += 1;
            }
            // Time advances only when no more jobs can be submitted, so that the queue stays full.
            if queue.room() == 0 || next == sources.len() {
                now = queue.next_event().unwrap_or(now).max(now);
            }
        }
        let (jobs, bytes) = (sources.len().max(1) as f64, total(&sources));
        Ok(JobRun {
            units: 0,
            megabytes_per_second: 1000.0 * bytes / (now - Instant::ZERO).as_nanos().max(1) as f64,
            latency_us: Some(waited.as_nanos() as f64 / jobs / 1000.0),
            result_bytes_per_byte: results as f64 / bytes,
            ..self.row(JobWay::Services)
        })
    }

    /// Sends TLS records of the job's size through a NIC, and the same bytes in plain for comparison.
    fn inline(&self) -> Result<JobRun, JobsError> {
        let suite = self.kind.suite().ok_or(JobsError::NotInline(self.kind))?;
        // A job becomes one TLS record, so the record's limit applies.
        if self.size > RECORD_MAX {
            return Err(JobsError::RecordSize(self.size));
        }
        let transfer = |mode| {
            let agreement = Agreement { version: TlsVersion::Tls13, suite };
            let payload = Payload::seeded(Seed(1), self.data.len() as u64);
            let nic = self.nic.clone();
            Bulk { agreement, nic, record_size: self.size, checked: false, ..Bulk::new(mode, payload) }.run()
        };
        let (plain, sealed) = (transfer(Mode::Tcp)?, transfer(Mode::TlsNic)?);
        let bytes = sealed.bytes.max(1) as f64;
        // Record overhead and the metadata for the NIC cross PCIe too. Both NICs take part, hence the half.
        let pcie = |run: &Run| run.dma_bytes.values().sum::<u64>() as f64 / 2.0;
        let cost = sealed.tx_host_ns_per_byte;
        let host = cost.framing + cost.crypto;
        Ok(JobRun {
            in_flight: 0,
            units: 0,
            megabytes_per_second: 1000.0 * sealed.goodput_gbps / 8.0,
            latency_us: None,
            host_ns_per_job: Some(host * self.size as f64),
            host_ns_per_byte: Some(host),
            pcie_bytes_per_byte: Some((pcie(&sealed) - pcie(&plain)) / bytes),
            result_bytes_per_byte: 1.0 + RECORD_BESIDE / self.size as f64,
            ..self.row(JobWay::Inline)
        })
    }

    fn row(&self, way: JobWay) -> JobRun {
        use offload_bench_tls::choice::Choice;
        JobRun {
            way: way.name(),
            transform: self.kind.name(),
            size: self.size,
            in_flight: self.in_flight,
            units: self.units.len(),
            megabytes_per_second: 0.0,
            latency_us: None,
            host_ns_per_job: None,
            host_ns_per_byte: None,
            pcie_bytes_per_byte: None,
            result_bytes_per_byte: 0.0,
        }
    }

    fn open(&self, queue: &mut impl JobQueue) -> Handle {
        let opened = queue.open(self.kind.transform()).map_err(|(refused, _)| refused);
        opened.expect("the first session has room")
    }
}

/// Returns `bytes` bytes of repetitive text, as a source.
pub fn text(bytes: usize) -> Bytes {
    b"It is a block of a volume, and repeats itself. ".iter().copied().cycle().take(bytes).collect::<Vec<u8>>().into()
}

/// Returns the runs as a table, one row each.
///
/// ```
/// assert!(offload_bench::jobs::table(&[]).contains("in flight"));
/// ```
pub fn table(runs: &[JobRun]) -> String {
    let mut text = String::from(
        "                                               latency  host ns  host    PCIe    result\n\
         transform          way          size in flight   MB/s       us    a job   ns/B   B/B       B/B\n",
    );
    for run in runs {
        let JobRun { way, transform, size, in_flight, megabytes_per_second: rate, .. } = run;
        let latency = run.latency_us.map_or("-".into(), |latency| format!("{latency:.1}"));
        let job = run.host_ns_per_job.map_or("-".into(), |job| format!("{job:.0}"));
        let byte = run.host_ns_per_byte.map_or("-".into(), |byte| format!("{byte:.3}"));
        let pcie = run.pcie_bytes_per_byte.map_or("-".into(), |pcie| format!("{pcie:.2}"));
        let result = run.result_bytes_per_byte;
        text += &format!(
            "{transform:<18} {way:<10} {size:>6} {in_flight:>9} {rate:>6.0} {latency:>8} {job:>8} {byte:>6} {pcie:>5} \
             {result:>9.3}\n"
        );
    }
    text
}

fn job(session: Handle, number: u64, source: &Bytes) -> Job {
    let target = BytesMut::with_capacity(source.len() + source.len() / 64 + 2 * BLOCK);
    Job { user: number, iv: u128::from(number).to_le_bytes(), ..Job::new(session, source.clone(), target) }
}

fn result(done: &CompletedJob) -> Result<usize, JobsError> {
    match done.outcome.status {
        JobStatus::Done => Ok(done.outcome.produced),
        status => Err(JobsError::Job(status)),
    }
}

/// Runs the device until it is idle.
fn run_until_idle(device: &mut Lookaside, queue: &mut impl JobQueue) {
    let mut now = Instant::ZERO;
    queue.flush(now);
    device.process(now);
    while let Some(at) = device.next_event() {
        now = at;
        device.process(now);
    }
    let _none = queue.complete(now);
}

fn pcie(device: &Lookaside) -> u64 {
    let dma = device.dma();
    dma.job_descriptors + dma.job_source + dma.job_target + dma.completions
}

/// Returns the least time of reading the clock twice, in nanoseconds. With few jobs outstanding, this is as long as the
/// work itself.
fn clock() -> f64 {
    let batch = |_| (0..LOOKS).map(|_| std::time::Instant::now().elapsed()).sum::<Duration>();
    let least = (0..10).map(batch).min().unwrap_or_default();
    least.as_nanos() as f64 / f64::from(LOOKS)
}

fn total(sources: &[Bytes]) -> f64 {
    sources.iter().map(Bytes::len).sum::<usize>().max(1) as f64
}

/// Bytes of a block.
pub const BLOCK: usize = 4096;
const LOOKS: u32 = 1000;
/// Latency target of 99 of 100 jobs on a device of services.
const SERVICES_TARGET_NS: f64 = 1e6;
/// Most content bytes of a TLS record.
const RECORD_MAX: usize = 16 << 10;
/// Bytes of a record's header, content type and tag.
const RECORD_BESIDE: f64 = 22.0;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::published;

    fn jobs(kind: Kind, in_flight: usize) -> Jobs {
        Jobs { in_flight, ..Jobs::new(kind, text(4 << 20)) }
    }

    /// Two constants are calibrated on these rows, at 1 and at 128 threads. The curve between both is a prediction.
    #[test]
    fn calibrated_unit_reproduces_the_published_rows() {
        let figures = published::figures();
        for (kind, id) in [(Kind::Aes128Gcm, "serrano-qat-gcm"), (Kind::CbcSha1, "serrano-qat-cbc-sha1")] {
            let figure = figures.iter().find(|figure| figure.id == id).expect("it is published");
            for in_flight in [1, 128] {
                // Enough jobs that the latency of the first ones does not count.
                let plan = Jobs { in_flight, ..Jobs::new(kind, text(32 << 20)) };
                let found = plan.run(JobWay::Lookaside).unwrap().megabytes_per_second;
                // The published axis is threads, each of which waits for one job.
                let theirs = figure.value("lookaside", in_flight as f64).unwrap();
                assert!((0.97..=1.03).contains(&(found / theirs)), "{id}, {in_flight}: {found}, not {theirs}");
            }
        }
    }

    #[test]
    fn rate_times_latency_in_flight_is_the_full_rate() {
        // `fills` is between 12 and 13, so 13 jobs must reach the full rate, and 6 about half.
        let plan = jobs(Kind::Copy, 13);
        assert!((12.0..13.0).contains(&plan.fills()), "{}", plan.fills());
        let full = jobs(Kind::Copy, 128).run(JobWay::Lookaside).unwrap().megabytes_per_second;
        let found = plan.run(JobWay::Lookaside).unwrap().megabytes_per_second;
        assert!(found > 0.97 * full, "{found} of {full}");
        // Below the product of rate and latency, throughput is proportional to the jobs in flight.
        let half = jobs(Kind::Copy, 6).run(JobWay::Lookaside).unwrap().megabytes_per_second;
        assert!(half < 0.6 * full, "{half} of {full}");
    }

    #[test]
    fn cpu_jobs_and_services_give_the_same_result() {
        for kind in Kind::ALL {
            let plan = Jobs { size: 8192, ..Jobs::new(kind, text(1 << 18)) };
            let (cpu, lookaside) = (plan.run(JobWay::Cpu).unwrap(), plan.run(JobWay::Lookaside).unwrap());
            assert_eq!(cpu.result_bytes_per_byte, lookaside.result_bytes_per_byte, "{kind}");
            assert_eq!(cpu.pcie_bytes_per_byte, Some(0.0));
            // Transforms without a chain of services must be refused instead of giving wrong results.
            match plan.run(JobWay::Services) {
                Ok(services) => assert_eq!(cpu.result_bytes_per_byte, services.result_bytes_per_byte, "{kind}"),
                Err(error) => assert!(!kind.has_services(), "{error}"),
            }
            // The source and the result cross PCIe once each; the rest is descriptors.
            let crossed = 1.0 + lookaside.result_bytes_per_byte;
            assert!(
                (crossed..crossed + 0.1).contains(&lookaside.pcie_bytes_per_byte.unwrap()),
                "{kind}: {lookaside:?}"
            );
        }
    }

    #[test]
    fn inline_tls_adds_hardly_any_pcie_traffic() {
        let run = jobs(Kind::Aes128Gcm, 1).run(JobWay::Inline).unwrap();
        assert!((0.0..0.05).contains(&run.pcie_bytes_per_byte.unwrap()), "{run:?}");
        let refused = |jobs: Jobs, way| jobs.run(way).unwrap_err().to_string();
        assert!(refused(jobs(Kind::Xts, 1), JobWay::Inline).contains("xts"));
        assert!(refused(Jobs { size: 1000, ..jobs(Kind::Pi, 1) }, JobWay::Cpu).contains("4096"));
        assert!(refused(Jobs { size: 1 << 20, ..jobs(Kind::Aes256Gcm, 1) }, JobWay::Inline).contains("16 KiB"));
    }
}
