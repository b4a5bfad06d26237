//! Transforms files in jobs on threads of this machine: volumes as dm-crypt writes them, and compressed files.
//!
//! `cargo run --release --bin transform -- volume.img sealed.img --transform xts --key volume.key --unit 4096`

use bytes::{Bytes, BytesMut};
use clap::{Parser, ValueEnum};
use offload_api::{CompletedJob, Handle, Job, JobQueue, JobStatus, Way};
use offload_base::Instant;
use offload_cli::{options, program};
use offload_compression::Compression;
use offload_jobs::{OpenTransform, PoolQueue};
use offload_transforms::protection::{BlockProtection, Check, Format};
use offload_transforms::{SecretBytes, Transform, Tweak};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::thread::available_parallelism;

/// Applies a transform to a file, or undoes one, in jobs on threads of this machine. Other programs read the output:
/// dm-crypt (`aes-xts-plain64`), NVMe drives with protection information, gzip, lz4, and every program that knows zlib.
///
/// Exit status: 0; 1 if the file is damaged or has another format; 2 if an option is bad or a file cannot be used.
#[derive(Debug, Parser)]
#[command(name = "transform", version)]
struct Options {
    /// Input file
    from: PathBuf,
    /// Output file
    to: PathBuf,
    /// The transform
    #[arg(long, value_enum)]
    transform: TransformKind,
    /// Undo the transform: decrypt, decompress; verify protection information and remove it
    #[arg(long)]
    undo: bool,
    /// The key of AES-XTS, 32 or 64 bytes
    #[arg(long, value_name = "FILE", required_if_eq("transform", "xts"))]
    key: Option<PathBuf>,
    /// Bytes of an AES-XTS unit (dm-crypt's sector_size) or of a block with protection information
    #[arg(long, default_value_t = 512, value_parser = clap::value_parser!(u32).range(16..=65536))]
    unit: u32,
    /// Counting of tweaks: by units (dm-crypt's iv_large_sectors) or by sectors of 512 bytes (without it). With units
    /// of 512 bytes both are the same
    #[arg(long, value_enum, default_value_t = TweakCount::Sectors512)]
    tweak: TweakCount,
    /// Compression level, 0 (no compression) to 9
    #[arg(long, default_value_t = 6, value_parser = clap::value_parser!(u8).range(0..=9))]
    level: u8,
    /// Bytes of a job, whole units; each compressed job is a gzip member or an LZ4 frame
    #[arg(long, value_parser = options::bytes, default_value = "1MiB")]
    job: u64,
    /// Most bytes that a compressed file may expand to
    #[arg(long, value_parser = options::bytes, default_value = "1GiB")]
    most: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum TransformKind {
    Xts,
    /// T10 protection information of type 1 after each block
    Pi,
    Gzip,
    Zlib,
    Lz4,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum TweakCount {
    Units,
    Sectors512,
}

fn main() -> ExitCode {
    program::main(NAME, |options: &Options| match execute(options) {
        Ok(()) => ExitCode::SUCCESS,
        Err((message, status)) => program::fail(NAME, &message, status),
    })
}

/// A message and the exit status.
type TransformFailure = (String, u8);

fn execute(options: &Options) -> Result<(), TransformFailure> {
    let source = Bytes::from(fs::read(&options.from).map_err(|error| about(&options.from, &error))?);
    let transform = transform(options)?;
    let threads = available_parallelism().map_or(1, core::num::NonZero::get);
    let mut queue = PoolQueue::new(threads, DEPTH);
    let session = queue.open(transform).map_err(|(refused, _)| (refused.to_string(), program::UNUSABLE))?;
    let compressed = !matches!(options.transform, TransformKind::Xts | TransformKind::Pi);
    let result = if options.undo && compressed {
        unpacked(&mut queue, session, source, options.most as usize)?
    } else {
        in_jobs(&mut queue, session, &source, options)?
    };
    fs::write(&options.to, result).map_err(|error| about(&options.to, &error))
}

fn transform(options: &Options) -> Result<Transform, TransformFailure> {
    let compression = |format: Compression| Ok(format.at_level(options.level));
    match (options.transform, &options.key) {
        (TransformKind::Gzip, _) => compression(Compression::Gzip),
        (TransformKind::Zlib, _) => compression(Compression::Zlib),
        (TransformKind::Lz4, _) => compression(Compression::Lz4),
        (TransformKind::Pi, _) => {
            let wire = Some(Format { interval: options.unit, ..Format::default() });
            Ok(Transform::Protection(BlockProtection { memory: None, wire, check: Check::ALL }))
        }
        (TransformKind::Xts, None) => Err(("AES-XTS has a key: --key".into(), program::UNUSABLE)),
        (TransformKind::Xts, Some(path)) => {
            let key = SecretBytes::new(fs::read(path).map_err(|error| about(path, &error))?);
            let tweak = match options.tweak {
                TweakCount::Units => Tweak::Unit,
                TweakCount::Sectors512 => Tweak::Sectors512,
            };
            if !options.job.is_multiple_of(options.unit.into()) {
                let message = format!("--job {} is no multiple of --unit {}", options.job, options.unit);
                return Err((message, program::UNUSABLE));
            }
            let transform = Transform::Xts { key, unit: options.unit, tweak };
            // A queue reports only that a transform is unknown. Building a session here first gives the reason.
            let made = offload_transforms::Session::new(&transform);
            made.map(|_| transform).map_err(|error| (error.to_string(), program::UNUSABLE))
        }
    }
}

/// Cuts the source into jobs of one length, keeps the queue full, and returns the results in order.
fn in_jobs(
    queue: &mut PoolQueue,
    session: Handle,
    source: &Bytes,
    options: &Options,
) -> Result<Vec<u8>, TransformFailure> {
    // A zlib file is one stream and cannot be cut.
    let whole = options.transform == TransformKind::Zlib;
    let unit = options.unit as usize;
    // Blocks with protection information are longer.
    let size = match (whole, options.transform, options.undo) {
        (true, ..) => source.len().max(1),
        (false, TransformKind::Pi, true) => (options.job.max(1) as usize).div_ceil(unit) * (unit + PROTECTION),
        (false, TransformKind::Pi, false) => (options.job.max(1) as usize).next_multiple_of(unit),
        _ => options.job.max(1) as usize,
    };
    let starts: Vec<usize> = (0..source.len().max(1)).step_by(size).collect();
    let (mut results, mut next, mut ended) = (vec![BytesMut::new(); starts.len()], 0, 0);
    while ended < starts.len() {
        while next < starts.len() && queue.room() > 0 {
            let piece = source.slice(starts[next]..source.len().min(starts[next] + size));
            // Incompressible data grows by the headers of its format, so the target is a little longer than the source.
            let target = BytesMut::with_capacity(piece.len() + piece.len() / 32 + 4096);
            let mut job = Job { user: next as u64, ..Job::new(session, piece, target) };
            job.way = if options.undo { Way::Undo } else { Way::Apply };
            let per_count = match (options.transform, options.undo, options.tweak) {
                (TransformKind::Pi, true, _) => unit + PROTECTION,
                (TransformKind::Pi, false, _) | (_, _, TweakCount::Units) => unit,
                (_, _, TweakCount::Sectors512) => 512,
            };
            job.iv = ((starts[next] / per_count) as u128).to_le_bytes();
            if queue.submit(Instant::ZERO, job).is_err() {
                break;
            }
            next += 1;
        }
        // Jobs end in any order; each result goes to its own place by the job's number.
        queue.flush(Instant::ZERO);
        queue.wait();
        while let Some(done) = queue.complete(Instant::ZERO) {
            let at = done.user as usize;
            results[at] = result(done)?;
            ended += 1;
        }
    }
    Ok(results.concat())
}

/// Decompresses one member or frame after the other, up to `most` bytes in all.
fn unpacked(
    queue: &mut PoolQueue,
    session: Handle,
    mut source: Bytes,
    most: usize,
) -> Result<Vec<u8>, TransformFailure> {
    let (mut all, mut room) = (Vec::new(), 4 * source.len().max(1024));
    while !source.is_empty() {
        let left = most - all.len();
        let target = BytesMut::with_capacity(room.min(left));
        let job = Job { way: Way::Undo, ..Job::new(session, source.clone(), target) };
        let taken = queue.submit(Instant::ZERO, job);
        debug_assert!(taken.is_ok(), "one at a time");
        queue.flush(Instant::ZERO);
        queue.wait();
        let Some(done) = queue.complete(Instant::ZERO) else { continue };
        // The size of the result is unknown before the job ends, so a job that ran out of space runs again with twice
        // as much.
        if done.outcome.status == JobStatus::OutOfSpace && room < left {
            room *= 2;
            continue;
        }
        let consumed = done.outcome.consumed;
        all.extend_from_slice(&result(done)?);
        source = source.slice(consumed..);
    }
    Ok(all)
}

fn result(done: CompletedJob) -> Result<BytesMut, TransformFailure> {
    match done.outcome.status {
        JobStatus::Done => Ok(done.target),
        status => Err((status.to_string(), program::FAILED)),
    }
}

fn about(path: &Path, error: &std::io::Error) -> TransformFailure {
    (format!("{}: {error}", path.display()), program::UNUSABLE)
}

const NAME: &str = "transform";
/// Bytes of protection information after a block.
const PROTECTION: usize = 8;
/// Jobs queued at a time.
const DEPTH: usize = 64;
