//! Runs a file through an accelerator as jobs, memory to memory, and beside it on the CPU.
//!
//! `cargo run --release --example lookaside -- [FILE] --transform aes-128-gcm --in-flight 1,4,13,32`

use bytes::{Bytes, BytesMut};
use clap::{Parser, ValueEnum};
use core::time::Duration;
use nic_sim::lookaside;
use nic_sim::lookaside::{Lookaside, LookasideConfig, Unit};
use nicbench::options;
use offload_api::{Handle, Job, JobQueue, JobStatus};
use offload_base::Instant;
use offload_jobs::{CpuConfig, CpuQueue, Opens};
use offload_transforms::protection::{Check, Format, Protection};
use offload_transforms::{Aead, Compression, Hash, Order, Secret, Transform, Tweak};
use serde::Serialize;
use std::path::PathBuf;
use std::process::ExitCode;

/// Runs a file through an accelerator as jobs, memory to memory, with so many in flight; and on one core of the CPU. Prints
/// throughput, latency, CPU time of the host for each job, and bytes over PCIe for each byte of the file.
///
/// The accelerator's time is virtual: it follows from latency and rate of its units, which are stated, not measured. The CPU's
/// time is measured.
///
/// Exit status: 0; 1 if a job failed; 2 if an option is bad or the file cannot be read.
#[derive(Debug, Parser)]
#[command(name = "lookaside", version)]
struct Options {
    /// What to work on. Without it: text that repeats itself
    file: Option<PathBuf>,
    /// How much to work on without a file: 64MiB, 1GB, 4096
    #[arg(long, value_parser = options::bytes, default_value = "16MiB", conflicts_with = "file")]
    size: u64,
    /// What to do
    #[arg(long, value_enum, default_value = "aes-128-gcm")]
    transform: Kind,
    /// Only these ways, comma-separated
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = [Way::Cpu, Way::Lookaside])]
    way: Vec<Way>,
    /// Jobs in flight, comma-separated: a row for each
    #[arg(long, value_delimiter = ',', default_values_t = [1, 4, 13, 32], value_parser = clap::value_parser!(u16).range(1..=4096))]
    in_flight: Vec<u16>,
    /// Bytes of a job, whole blocks of 4 KiB
    #[arg(long, value_parser = options::bytes, default_value = "16KiB")]
    job: u64,
    /// Units of the accelerator
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=64))]
    units: u16,
    /// Latency of a unit, in microseconds
    #[arg(long, default_value_t = 60)]
    latency: u64,
    /// Rate of a unit, in bytes a second
    #[arg(long, value_parser = options::bytes, default_value = "3109000000")]
    rate: u64,
    /// Print the rows as one JSON array
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Kind {
    #[value(name = "aes-128-gcm")]
    Aes128Gcm,
    #[value(name = "chacha20-poly1305")]
    ChaCha20Poly1305,
    #[value(name = "aes-128-cbc-sha1")]
    CbcSha1,
    Xts,
    Pi,
    Deflate,
    Lz4,
    Copy,
    Chain,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
enum Way {
    Cpu,
    Lookaside,
}

/// What one way gave.
#[derive(Debug, Serialize)]
struct Row {
    way: Way,
    in_flight: u16,
    megabytes_per_second: f64,
    latency_us: f64,
    host_ns_per_job: f64,
    pcie_bytes_per_byte: f64,
    result_bytes_per_byte: f64,
}

fn main() -> ExitCode {
    let options = Options::parse();
    if options.job == 0 || !options.job.is_multiple_of(BLOCK as u64) || options.job > MOST {
        eprintln!("lookaside: a job of {} bytes: it has whole blocks of {BLOCK} bytes, up to 1 MiB", options.job);
        return ExitCode::from(2);
    }
    let data = match data(&options) {
        Ok(data) => data,
        Err(failure) => {
            eprintln!("lookaside: {failure}");
            return ExitCode::from(2);
        }
    };
    let rows: Result<Vec<Row>, JobStatus> = options
        .way
        .iter()
        .flat_map(|way| {
            options.in_flight.iter().take(if *way == Way::Cpu { 1 } else { usize::MAX }).map(move |n| (*way, *n))
        })
        .map(|(way, in_flight)| match way {
            Way::Cpu => on_the_cpu(&options, &data),
            Way::Lookaside => by_jobs(&options, &data, in_flight),
        })
        .collect();
    match rows {
        Ok(rows) if options.json => println!("{}", serde_json::to_string_pretty(&rows).unwrap_or_default()),
        Ok(rows) => print(&options, &rows),
        Err(status) => {
            eprintln!("lookaside: a job failed: {status}");
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

/// What is to be worked on, a job each, in whole blocks.
fn data(options: &Options) -> Result<Vec<Bytes>, String> {
    let mut bytes = match &options.file {
        Some(path) => std::fs::read(path).map_err(|error| format!("{}: {error}", path.display()))?,
        None => b"It is a block of a volume, and repeats itself. "
            .iter()
            .copied()
            .cycle()
            .take(options.size as usize)
            .collect(),
    };
    bytes.resize(bytes.len().next_multiple_of(BLOCK).max(BLOCK), 0);
    let bytes = Bytes::from(bytes);
    let job = options.job as usize;
    Ok((0..bytes.len()).step_by(job).map(|at| bytes.slice(at..bytes.len().min(at + job))).collect())
}

fn transform(kind: Kind) -> Transform {
    let key = |len| Secret::new((0..len).collect());
    let pi = Protection {
        memory: None,
        wire: Some(Format { interval: BLOCK as u32, ..Format::default() }),
        check: Check::ALL,
    };
    let xts = || Transform::Xts { key: key(64), unit: BLOCK as u32, tweak: Tweak::Unit };
    match kind {
        Kind::Aes128Gcm => Transform::Aead { aead: Aead::Aes128Gcm, key: key(16) },
        Kind::ChaCha20Poly1305 => Transform::Aead { aead: Aead::ChaCha20Poly1305, key: key(32) },
        Kind::CbcSha1 => {
            Transform::CbcHmac { order: Order::EncryptThenMac, hash: Hash::Sha1, cipher_key: key(16), mac_key: key(20) }
        }
        Kind::Xts => xts(),
        Kind::Pi => Transform::Protection(pi),
        Kind::Deflate => Transform::Compression { format: Compression::Deflate, level: 1 },
        Kind::Lz4 => Transform::Compression { format: Compression::Lz4, level: 0 },
        Kind::Copy => Transform::Copy,
        Kind::Chain => Transform::Chain(vec![
            Transform::Compression { format: Compression::Lz4, level: 0 },
            Transform::Pad { unit: BLOCK as u32 },
            xts(),
            Transform::Protection(pi),
        ]),
    }
}

/// One job after the other on this core. The queue does a job when it is submitted.
fn on_the_cpu(options: &Options, data: &[Bytes]) -> Result<Row, JobStatus> {
    let mut queue = CpuQueue::new(CpuConfig::default());
    let session = open(&mut queue, options);
    let (mut took, mut results) = (Duration::ZERO, 0);
    for (lba, source) in (0..).zip(data) {
        let job = job(session, lba, source);
        let start = std::time::Instant::now();
        let _room = queue.submit(Instant::ZERO, job);
        let done = queue.complete(Instant::MAX);
        took += start.elapsed();
        results += done.map_or(Ok(0), result)?;
    }
    let (jobs, bytes) = (data.len() as f64, total(data));
    let nanos = took.as_nanos() as f64;
    Ok(Row {
        way: Way::Cpu,
        in_flight: 1,
        megabytes_per_second: 1000.0 * bytes / nanos,
        latency_us: nanos / jobs / 1000.0,
        host_ns_per_job: nanos / jobs,
        pcie_bytes_per_byte: 0.0,
        result_bytes_per_byte: results as f64 / bytes,
    })
}

/// By the accelerator, in virtual time; what the host does about it is measured.
fn by_jobs(options: &Options, data: &[Bytes], in_flight: u16) -> Result<Row, JobStatus> {
    let unit = Unit { latency: Duration::from_micros(options.latency), rate: Some(options.rate) };
    let config = LookasideConfig {
        depth: usize::from(in_flight) + 1,
        units: vec![unit; options.units.into()],
        ..LookasideConfig::default()
    };
    let (mut device, mut queues) = lookaside(config, |_| ());
    let queue = &mut queues[0];
    let session = open(queue, options);
    run(&mut device, queue, &mut { Instant::ZERO });
    let before = pcie(&device);
    let (mut now, mut host, mut results) = (Instant::ZERO, Duration::ZERO, 0);
    let (mut next, mut ended, mut waited) = (0, 0, Duration::ZERO);
    let mut submitted_at = vec![Instant::ZERO; data.len()];
    let mut jobs = Vec::new();
    let mut dones = Vec::new();
    while ended < data.len() {
        // The program's own part, buffers, is not the queue's.
        while next < data.len() && next - ended < usize::from(in_flight) {
            submitted_at[next] = now;
            jobs.push(job(session, next as u64, &data[next]));
            next += 1;
        }
        let start = std::time::Instant::now();
        for job in jobs.drain(..) {
            let _room = queue.submit(now, job);
        }
        queue.flush(now);
        host += start.elapsed();
        device.process(now);
        let start = std::time::Instant::now();
        while let Some(done) = queue.complete(now) {
            dones.push(done);
        }
        host += start.elapsed();
        if dones.is_empty() {
            now = device.next_event().unwrap_or(now).max(now);
        }
        for done in dones.drain(..) {
            waited += now - submitted_at[done.user as usize];
            results += result(done)?;
            ended += 1;
        }
    }
    let (jobs, bytes) = (data.len() as f64, total(data));
    Ok(Row {
        way: Way::Lookaside,
        in_flight,
        megabytes_per_second: 1000.0 * bytes / (now - Instant::ZERO).as_nanos() as f64,
        latency_us: waited.as_nanos() as f64 / jobs / 1000.0,
        host_ns_per_job: host.as_nanos() as f64 / jobs,
        pcie_bytes_per_byte: (pcie(&device) - before) as f64 / bytes,
        result_bytes_per_byte: results as f64 / bytes,
    })
}

fn open(queue: &mut impl JobQueue, options: &Options) -> Handle {
    queue.open(transform(options.transform)).map_err(|(refused, _)| refused).expect("the first session has room")
}

fn job(session: Handle, number: u64, source: &Bytes) -> Job {
    let target = BytesMut::with_capacity(source.len() + source.len() / 64 + 2 * BLOCK);
    Job { user: number, iv: u128::from(number).to_le_bytes(), ..Job::new(session, source.clone(), target) }
}

fn result(done: offload_api::Done) -> Result<usize, JobStatus> {
    match done.outcome.status {
        JobStatus::Done => Ok(done.outcome.produced),
        status => Err(status),
    }
}

/// Runs the device until it has nothing to do.
fn run(device: &mut Lookaside, queue: &mut impl JobQueue, now: &mut Instant) {
    queue.flush(*now);
    device.process(*now);
    while let Some(at) = device.next_event() {
        *now = at;
        device.process(*now);
    }
    let _none = queue.complete(*now);
}

fn pcie(device: &Lookaside) -> u64 {
    let dma = device.dma();
    dma.job_descriptors + dma.job_source + dma.job_target + dma.completions
}

fn total(data: &[Bytes]) -> f64 {
    data.iter().map(Bytes::len).sum::<usize>() as f64
}

fn print(options: &Options, rows: &[Row]) {
    println!("                             latency  host ns   PCIe    result");
    println!("way        in flight   MB/s       us    a job   B/B       B/B");
    for row in rows {
        let way = format!("{:?}", row.way).to_lowercase();
        println!(
            "{way:<10} {:>9} {:>6.0} {:>8.1} {:>8.0} {:>5.2} {:>9.3}",
            row.in_flight,
            row.megabytes_per_second,
            row.latency_us,
            row.host_ns_per_job,
            row.pcie_bytes_per_byte,
            row.result_bytes_per_byte
        );
    }
    if options.way.contains(&Way::Lookaside) {
        let fills =
            f64::from(options.units) * options.rate as f64 * options.latency as f64 / 1e6 / options.job as f64 + 1.0;
        println!(
            "\nThe accelerator's time is virtual. Rate x latency, and the job that is read meanwhile: {fills:.1} in flight fill it."
        );
    }
}

/// Bytes of a block.
const BLOCK: usize = 4096;

/// Bytes of the longest job.
const MOST: u64 = 1 << 20;
