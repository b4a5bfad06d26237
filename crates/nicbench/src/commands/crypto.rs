//! `nicbench crypto`, and the program `lookaside`.

use bytes::Bytes;
use clap::Parser;
use core::time::Duration;
use nic_sim::NicConfig;
use nic_sim::lookaside::LookasideUnit;
use offload_bench::jobs::{BLOCK, JobWay, Jobs, JobsError, Kind, table, text};
use offload_bench_tls::facts::Facts;
use offload_cli::nic_options::{self, NicOptions};
use offload_cli::options;
use offload_cli::output::OutputOptions;
use offload_cli::own;
use offload_cli::scenario::{self, About, Failure, Made, Scenario};
use std::path::PathBuf;

/// Ciphers, integrity and compression several ways: on the CPU, by jobs of an accelerator, inline in a NIC, by chains
/// of small services; the time of devices is virtual, the time of the CPU is measured
///
/// The accelerator's time follows from the latency and the rate of its units. Only the inline way has NICs.
///
/// Exit status: 0; 1 if a job failed; 2 if an option is bad or the file cannot be read.
#[derive(Debug, Parser)]
#[command(name = "lookaside", version, allow_negative_numbers = true)]
pub struct CryptoOptions {
    /// The file to process. Default: text that repeats itself
    file: Option<PathBuf>,
    /// Ways of processing, comma-separated: cpu, lookaside, inline (TLS records of a NIC: AEADs of TLS alone), services
    /// (AEADs and CBC). Default: all ways that support the transform
    #[arg(long, value_parser = options::choice::<JobWay>(), value_delimiter = ',')]
    way: Vec<JobWay>,
    /// Transforms, comma-separated
    #[arg(long, value_parser = options::choice::<Kind>(), value_delimiter = ',', default_value = "aes-128-gcm")]
    transform: Vec<Kind>,
    /// Bytes of a job
    #[arg(long, value_name = "SIZE", default_value = "16KiB", value_parser = options::size::<u32>(16..=1 << 20))]
    size: u32,
    /// Outstanding jobs of the accelerator, comma-separated: a row for each
    #[arg(long, value_delimiter = ',', default_value = "1,13,128", value_parser = clap::value_parser!(u16).range(1..=4096))]
    in_flight: Vec<u16>,
    /// Units of the accelerator
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=64))]
    units: u16,
    /// Latency of a unit
    #[arg(long, value_name = "TIME", value_parser = options::time, default_value = "60us")]
    latency: Duration,
    /// Bytes that a unit reads in a second
    #[arg(long, value_parser = options::some_bytes, default_value = "3109000000")]
    unit_rate: u64,
    /// Bytes in all, without a file
    #[arg(long, value_parser = options::some_bytes, default_value = "64MiB", conflicts_with = "file")]
    bytes: u64,
    #[command(flatten)]
    output: OutputOptions,
    #[command(flatten)]
    nic: NicOptions,
}

impl Scenario for CryptoOptions {
    fn about(&self) -> About<'_> {
        // The CPU's rows follow the machine's clock.
        About { output: &self.output, runs: self.rows().len(), is_real: true }
    }

    fn run(&self) -> Result<Made, Failure> {
        let data = self.data()?;
        let nic = self.nic.apply(NicConfig::default());
        let unit = LookasideUnit { latency: self.latency, rate: Some(self.unit_rate) };
        let (mut runs, mut fills) = (Vec::new(), String::new());
        for (kind, way, in_flight) in self.rows() {
            let units = vec![unit; self.units.into()];
            let size = self.size as usize;
            let nic = nic.clone();
            let jobs = Jobs { size, in_flight: in_flight.into(), units, nic, ..Jobs::new(kind, data.clone()) };
            runs.push(jobs.run(way).map_err(|error| match error {
                JobsError::Job(_) | JobsError::Bulk(_) => Failure::in_mode(way, error),
                error => Failure::Unusable(format!("{way}: {error}")),
            })?);
            if way == JobWay::Lookaside {
                fills = format!(
                    "The accelerator's time is virtual. Rate x latency, and the job that is read meanwhile: {:.1} in flight fill it.\n",
                    jobs.fills()
                );
            }
        }
        let options = own!(self: size, units, unit_rate).into_iter().chain([
            ("latency_us", (self.latency.as_nanos() as f64 / 1000.0).to_string()),
            ("bytes", data.len().to_string()),
        ]);
        let facts = Facts { nic: nic_options::values(&nic), ..scenario::facts("crypto", 0, options) };
        Ok(Made::new(facts, &runs, true, format!("{}\n{fills}", table(&runs))))
    }
}

impl CryptoOptions {
    /// Returns the bytes of all jobs. The bytes of a file are padded to whole blocks.
    fn data(&self) -> Result<Bytes, Failure> {
        let Some(path) = &self.file else { return Ok(text(self.bytes as usize)) };
        let mut bytes = std::fs::read(path).map_err(|error| Failure::about(path, &error))?;
        // CBC and XTS work on whole blocks.
        bytes.resize(bytes.len().next_multiple_of(BLOCK).max(BLOCK), 0);
        Ok(bytes.into())
    }

    /// Returns the rows to run. The CPU and a NIC have no outstanding jobs, so they have one row each.
    fn rows(&self) -> Vec<(Kind, JobWay, u16)> {
        let ways = |kind: Kind| -> Vec<JobWay> {
            if !self.way.is_empty() {
                return self.way.clone();
            }
            // By default only ways that support the transform are run; a way that was asked for fails with its reason.
            let can = |way: &JobWay| match way {
                JobWay::Inline => kind.suite().is_some(),
                JobWay::Services => kind.has_services(),
                JobWay::Cpu | JobWay::Lookaside => true,
            };
            JobWay::ALL.into_iter().filter(can).collect()
        };
        // Only jobs and services have a depth; other ways would repeat the same row.
        let has_depth = |way| matches!(way, JobWay::Lookaside | JobWay::Services);
        let depths = |way| if has_depth(way) { self.in_flight.len() } else { 1 };
        let rows = self.transform.iter().flat_map(|kind| ways(*kind).into_iter().map(move |way| (*kind, way)));
        rows.flat_map(|(kind, way)| self.in_flight.iter().take(depths(way)).map(move |depth| (kind, way, *depth)))
            .collect()
    }
}
