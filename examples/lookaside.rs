//! Runs a file through an accelerator as jobs, memory to memory, and beside it on the CPU.
//!
//! `cargo run --release --example lookaside -- [FILE] --transform aes-128-gcm --in-flight 1,4,13,32`

use bytes::Bytes;
use clap::Parser;
use core::time::Duration;
use nic_sim::lookaside::Unit;
use offload_bench::jobs::{BLOCK, JobRun, JobWay, Jobs, JobsError, Kind, table, text};
use offload_cli::{options, program};
use std::path::PathBuf;
use std::process::ExitCode;

/// Runs a file through an accelerator as jobs, memory to memory, with so many in flight; on one core of the CPU; and inline, as
/// records that a NIC seals. Prints throughput, latency, CPU time of the host for each job, and bytes over PCIe for each byte of
/// the file.
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
    #[arg(long, value_parser = options::choice::<Kind>(), default_value = "aes-128-gcm")]
    transform: Kind,
    /// Only these ways, comma-separated; inline is for the AEADs of TLS
    #[arg(long, value_parser = options::choice::<JobWay>(), value_delimiter = ',', default_values_t = [JobWay::Cpu, JobWay::Lookaside])]
    way: Vec<JobWay>,
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

fn main() -> ExitCode {
    let options = Options::parse();
    if options.job == 0 || !options.job.is_multiple_of(BLOCK as u64) || options.job > MOST {
        let message = format!("a job of {} bytes: it has whole blocks of {BLOCK} bytes, up to 1 MiB", options.job);
        return program::fail(NAME, &message, program::UNUSABLE);
    }
    let data = match data(&options) {
        Ok(data) => data,
        Err(failure) => {
            return program::fail(NAME, &failure, program::UNUSABLE);
        }
    };
    let rows = runs(&options, data);
    match rows {
        Ok(rows) if options.json => {
            program::write_out(NAME, &(serde_json::to_string_pretty(&rows).unwrap_or_default() + "\n"))
        }
        Ok(rows) => program::write_out(NAME, &text_of(&options, &rows)),
        Err(error @ (JobsError::NotInline(_) | JobsError::Blocks { .. } | JobsError::RecordSize(_))) => {
            program::fail(NAME, &error.to_string(), program::UNUSABLE)
        }
        Err(error) => program::fail(NAME, &error.to_string(), program::FAILED),
    }
}

/// What is to be worked on, in whole blocks.
fn data(options: &Options) -> Result<Bytes, String> {
    let mut bytes = match &options.file {
        Some(path) => std::fs::read(path).map_err(|error| format!("{}: {error}", path.display()))?,
        None => text(options.size as usize).into(),
    };
    bytes.resize(bytes.len().next_multiple_of(BLOCK).max(BLOCK), 0);
    Ok(bytes.into())
}

fn runs(options: &Options, data: Bytes) -> Result<Vec<JobRun>, JobsError> {
    let jobs = jobs(options, data);
    let mut rows = Vec::new();
    for way in &options.way {
        // The CPU and a NIC have no jobs in flight.
        let depths = if *way == JobWay::Lookaside { options.in_flight.len() } else { 1 };
        for in_flight in &options.in_flight[..depths] {
            rows.push(Jobs { in_flight: (*in_flight).into(), ..jobs.clone() }.run(*way)?);
        }
    }
    Ok(rows)
}

fn jobs(options: &Options, data: Bytes) -> Jobs {
    let unit = Unit { latency: Duration::from_micros(options.latency), rate: Some(options.rate) };
    let (size, units) = (options.job as usize, vec![unit; options.units.into()]);
    Jobs { size, units, ..Jobs::new(options.transform, data) }
}

fn text_of(options: &Options, rows: &[JobRun]) -> String {
    let mut text = table(rows);
    if options.way.contains(&JobWay::Lookaside) {
        let fills = jobs(options, Bytes::new()).fills();
        text += &format!(
            "\nThe accelerator's time is virtual. Rate x latency, and the job that is read meanwhile: {fills:.1} in flight fill it.\n"
        );
    }
    text
}

const NAME: &str = "lookaside";

/// Bytes of the longest job.
const MOST: u64 = 1 << 20;
