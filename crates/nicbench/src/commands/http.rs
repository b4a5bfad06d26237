//! `nicbench http`.

use clap::Args;
use nic_sim::NicConfig;
use offload_bench::http::{FileSource, Http, HttpRun};
use offload_bench_tls::bulk::Mode;
use offload_bench_tls::table;
use offload_cli::options;
use offload_cli::own;
use offload_cli::run_options::RunOptions;
use offload_cli::scenario::{self, About, Failure, Made, Modes, OutputFiles, Scenario};

/// A web server, and clients that request one file over persistent connections: requests per second, latency
/// percentiles, host cost per request
#[derive(Args, Debug)]
#[command(allow_negative_numbers = true)]
pub(crate) struct HttpOptions {
    /// Modes of TLS, comma-separated: tcp (plain HTTP), tls-cpu, tls-nic
    #[arg(long, value_parser = options::choice::<Mode>(), value_delimiter = ',', default_values_t = Mode::ALL)]
    pub mode: Vec<Mode>,
    /// Concurrent connections, each with one outstanding request
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..=32_768))]
    connections: u16,
    /// Requests in all
    #[arg(long, default_value_t = 4096, value_parser = clap::value_parser!(u64).range(1..))]
    requests: u64,
    /// Location of the file: memory, or a disk at the clients' end of the wire. The server reads the disk for each
    /// request by NVMe/TCP with data digests, copied and checked by its CPU (nvme-cpu) or NIC (nvme-nic)
    #[arg(long, value_parser = options::choice::<FileSource>(), default_value_t = FileSource::Memory)]
    files: FileSource,
    /// Bytes of the file, in memory: 4KiB, 1MiB
    #[arg(long, value_name = "SIZE", value_parser = options::size::<usize>(0..=1 << 30), default_value = "64KiB")]
    file_size: usize,
    /// Content bytes of a full TLS record
    #[arg(long, value_name = "SIZE", default_value = "16KiB", value_parser = options::size::<u16>(1..=16384))]
    record_size: u16,
    /// Queues of each NIC, and shards of each host, over which RSS spreads connections
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=64))]
    queues: u16,
    #[command(flatten)]
    run: RunOptions,
}

impl Scenario for HttpOptions {
    fn about(&self) -> About<'_> {
        self.run.about(self.mode.len())
    }

    fn run(&self) -> Result<Made, Failure> {
        let modes = Modes::new("http", &self.run, &self.mode, OutputFiles::default())?;
        let runs = modes.make(0, |mode, observers, _| {
            Http { observers, ..self.http(mode) }.run().map_err(|error| Failure::in_mode(mode, error))
        })?;
        // Queues are a NIC value as well, but also decide the number of shards, so they are an option of the run.
        let own = own!(self: connections, requests, files, file_size, record_size, queues);
        let whole = runs.iter().all(|run| run.run.sha256_ok);
        Ok(Made::new(self.run.facts("http", &self.nic(), own), &runs, whole, text(&runs, self.run.common.wide)))
    }
}

impl HttpOptions {
    fn nic(&self) -> NicConfig {
        NicConfig { queues: self.queues, ..self.run.nic(NicConfig::default()) }
    }

    fn http(&self, mode: Mode) -> Http {
        Http {
            connections: self.connections,
            requests: self.requests,
            files: self.files,
            file_size: self.file_size,
            record_size: usize::from(self.record_size),
            clock: self.run.clock(),
            seed: self.run.wire.seed(),
            nic: self.nic(),
            link: self.run.wire.link(),
            ..Http::new(mode)
        }
    }
}

fn text(runs: &[HttpRun], wide: bool) -> String {
    let common: Vec<_> = runs.iter().map(|run| run.run.clone()).collect();
    let heading = ["mode", "requests /s", "p50 us", "p99 us", "server us/request"];
    let more = ["client us/request", "p90 us", "p99.9 us", "max us"];
    let mut rows =
        vec![heading.iter().chain(more.iter().filter(|_| wide)).map(|cell| cell.to_string()).collect::<Vec<_>>()];
    rows.extend(runs.iter().map(|run| {
        let latency = run.latency_us;
        let mut row = vec![run.run.mode.clone(), format!("{:.0}", run.requests_per_second)];
        row.extend([latency.p50, latency.p99].map(|us| format!("{us:.1}")));
        row.push(format!("{:.2}", run.server_us_per_request));
        if wide {
            row.push(format!("{:.2}", run.client_us_per_request));
            row.extend([latency.p90, latency.p999, latency.max].map(|us| format!("{us:.1}")));
        }
        row
    }));
    table::add_factor(&mut rows, runs.iter().map(|run| ((), &run.run.mode[..], run.server_us_per_request)));
    let units = "us/request: CPU time of a host for a request, in microseconds\n";
    scenario::text(&common, wide, "", &format!("{}{units}{}", table::align(&rows), table::noise(&common)))
}
