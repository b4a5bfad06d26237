//! `nicbench crypto`.

use super::runs::{Made, value};
use clap::Args;
use core::time::Duration;
use nic_sim::lookaside::Unit;
use offload_bench::jobs::{JobWay, Jobs, Kind, table, text};
use offload_bench_tls::facts::Facts;
use offload_cli::options;

/// Ciphers, integrity and compression several ways: on the CPU, by jobs of an accelerator, inline in a NIC, by chains of small
/// services; devices' time is virtual, the CPU's is measured
#[derive(Args, Debug)]
#[command(allow_negative_numbers = true)]
pub(crate) struct CryptoOptions {
    /// Who does it, comma-separated: cpu, lookaside, inline (TLS records of a NIC: AEADs of TLS alone), services (these, and CBC).
    /// Default: those that can
    #[arg(long, value_parser = options::choice::<JobWay>(), value_delimiter = ',')]
    pub way: Vec<JobWay>,
    /// What is done, comma-separated
    #[arg(long, value_parser = options::choice::<Kind>(), value_delimiter = ',', default_value = "aes-128-gcm")]
    transform: Vec<Kind>,
    /// Bytes of a job
    #[arg(long, value_name = "SIZE", default_value = "16KiB", value_parser = options::size::<u32>(16..=1 << 20))]
    size: u32,
    /// Jobs that the accelerator has at a time, comma-separated: a row for each
    #[arg(long, value_delimiter = ',', default_value = "1,13,128", value_parser = clap::value_parser!(u16).range(1..=4096))]
    in_flight: Vec<u16>,
    /// Units of the accelerator
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=64))]
    units: u16,
    /// Latency of a unit
    #[arg(long, value_name = "TIME", value_parser = options::time, default_value = "60us")]
    latency: Duration,
    /// Bytes that a unit reads in a second
    #[arg(long, value_parser = options::bytes, default_value = "3109000000")]
    unit_rate: u64,
    /// Bytes in all
    #[arg(long, value_parser = options::bytes, default_value = "64MiB")]
    bytes: u64,
    /// Print the facts as one JSON object
    #[arg(long)]
    pub json: bool,
}

impl CryptoOptions {
    pub(crate) fn run(&self) -> Result<Made, String> {
        let data = text(self.bytes.max(1) as usize);
        let unit = Unit { latency: self.latency, rate: Some(self.unit_rate) };
        let mut runs = Vec::new();
        for (kind, way, in_flight) in self.rows() {
            let jobs = Jobs {
                size: self.size as usize,
                in_flight: in_flight.into(),
                units: vec![unit; self.units.into()],
                ..Jobs::new(kind, data.clone())
            };
            runs.push(jobs.run(way).map_err(|error| format!("{way}: {error}"))?);
        }
        let options = [
            ("size", self.size.to_string()),
            ("units", self.units.to_string()),
            ("latency_us", (self.latency.as_nanos() as f64 / 1000.0).to_string()),
            ("unit_rate", self.unit_rate.to_string()),
            ("bytes", self.bytes.to_string()),
        ];
        let facts = Facts {
            command: "crypto".into(),
            options: options.into_iter().map(|(name, value)| (name.to_string(), value)).collect(),
            runs: runs.iter().map(value).collect(),
            ..Facts::default()
        };
        Ok(Made { facts, text: table(&runs), whole: true })
    }

    /// How many runs it makes.
    pub(crate) fn runs(&self) -> usize {
        self.rows().len()
    }

    /// What is run: the CPU and a NIC have no jobs in flight, and a row each.
    fn rows(&self) -> Vec<(Kind, JobWay, u16)> {
        let ways = |kind: Kind| -> Vec<JobWay> {
            if !self.way.is_empty() {
                return self.way.clone();
            }
            let can = |way: &JobWay| match way {
                JobWay::Inline => kind.suite().is_some(),
                JobWay::Services => kind.has_services(),
                JobWay::Cpu | JobWay::Lookaside => true,
            };
            JobWay::ALL.into_iter().filter(can).collect()
        };
        let has_depth = |way| matches!(way, JobWay::Lookaside | JobWay::Services);
        let depths = |way| if has_depth(way) { self.in_flight.len() } else { 1 };
        let rows = self.transform.iter().flat_map(|kind| ways(*kind).into_iter().map(move |way| (*kind, way)));
        rows.flat_map(|(kind, way)| self.in_flight.iter().take(depths(way)).map(move |depth| (kind, way, *depth)))
            .collect()
    }
}
