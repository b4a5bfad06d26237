//! `nicbench fio`.

use clap::Args;
use nic_sim::NicConfig;
use offload_bench::fio::{Fio, FioRun, NvmeOffload, Pattern};
use offload_bench_tls::bulk::Mode;
use offload_bench_tls::table;
use offload_cli::options;
use offload_cli::own;
use offload_cli::run_options::RunOptions;
use offload_cli::scenario::{self, About, Failure, Made, Modes, OutputFiles, Scenario};

/// Commands to an NVMe/TCP target with a disk in memory, with a fixed number outstanding: commands per second, latency
/// percentiles, host cost per command
#[derive(Args, Debug)]
#[command(allow_negative_numbers = true)]
pub(crate) struct FioOptions {
    /// Modes of TLS under NVMe/TCP, comma-separated: tcp (no TLS), tls-cpu, tls-nic
    #[arg(long, value_parser = options::choice::<Mode>(), value_delimiter = ',', default_values_t = Mode::ALL)]
    pub mode: Vec<Mode>,
    /// Direction and order of the commands: read, write, randread, randwrite
    #[arg(long, value_parser = options::choice::<Pattern>(), default_value_t = Pattern::RandomRead)]
    pattern: Pattern,
    /// Bytes of a command, a multiple of 512: 4KiB, 256KiB
    #[arg(long, value_name = "SIZE", value_parser = block, default_value = "4KiB")]
    block_size: u32,
    /// Outstanding commands of each job
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u16).range(1..=1024))]
    depth: u16,
    /// I/O queues, a job for each
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=64))]
    jobs: u16,
    /// Commands in all
    #[arg(long, default_value_t = 4096, value_parser = clap::value_parser!(u64).range(1..))]
    operations: u64,
    /// Bytes of the disk, in memory
    #[arg(long, value_name = "SIZE", value_parser = options::size::<u64>(1 << 20..=4 << 30), default_value = "64MiB")]
    disk_size: u64,
    /// CRC32C over the headers of PDUs
    #[arg(long)]
    hdgst: bool,
    /// CRC32C over the data of PDUs
    #[arg(long)]
    ddgst: bool,
    /// NVMe/TCP offloads of the NICs: none, place, place-check (under TLS too, if the NICs do TLS); emulate: no
    /// offload, and reads skip copies and digests, as an estimate
    #[arg(long, value_parser = options::choice::<NvmeOffload>(), default_value_t = NvmeOffload::None)]
    offload: NvmeOffload,
    /// Commands that move fewer bytes are not placed. Default: 32KiB
    #[arg(long, value_name = "SIZE", value_parser = options::size::<usize>(0..=1 << 40))]
    place_from: Option<usize>,
    #[command(flatten)]
    run: RunOptions,
}

impl Scenario for FioOptions {
    fn about(&self) -> About<'_> {
        self.run.about(self.mode.len())
    }

    fn run(&self) -> Result<Made, Failure> {
        let modes = Modes::new("fio", &self.run, &self.mode, OutputFiles::default())?;
        let runs = modes.make(0, |mode, observers, _| {
            Fio { observers, ..self.fio(mode) }.run().map_err(|error| Failure::in_mode(mode, error))
        })?;
        let nic = self.nic();
        let own = own!(self: pattern, block_size, depth, jobs, operations, disk_size, hdgst, ddgst, offload);
        // The threshold is a value of the NIC, so it is reported as the NIC has it.
        let own = own.into_iter().chain([("place_from", nic.engines.nvme_tcp.io_threshold.to_string())]);
        let whole = runs.iter().all(|run| run.run.sha256_ok);
        Ok(Made::new(self.run.facts("fio", &nic, own), &runs, whole, text(&runs, self.run.common.wide)))
    }
}

impl FioOptions {
    fn nic(&self) -> NicConfig {
        let mut nic = self.run.nic(NicConfig::default());
        let of_nvme = &mut nic.engines.nvme_tcp;
        of_nvme.io_threshold = self.place_from.unwrap_or(of_nvme.io_threshold);
        nic
    }

    fn fio(&self, mode: Mode) -> Fio {
        Fio {
            block_size: self.block_size,
            depth: self.depth,
            jobs: self.jobs,
            operations: self.operations,
            disk_size: self.disk_size,
            header_digest: self.hdgst,
            data_digest: self.ddgst,
            offload: self.offload,
            clock: self.run.clock(),
            seed: self.run.wire.seed(),
            nic: self.nic(),
            link: self.run.wire.link(),
            ..Fio::new(mode, self.pattern)
        }
    }
}

fn text(runs: &[FioRun], wide: bool) -> String {
    let common: Vec<_> = runs.iter().map(|run| run.run.clone()).collect();
    let heading =
        ["mode", "offload", "placed", "IOPS", "p50 us", "p99 us", "max us", "target us/op", "host us/op", "copy+crc"];
    let mut rows = vec![heading.map(String::from).to_vec()];
    rows.extend(runs.iter().map(|run| {
        vec![
            run.run.mode.clone(),
            run.offload.clone(),
            format!("{:.1}%", run.placed_share * 100.0),
            format!("{:.0}", run.iops),
            format!("{:.1}", run.latency_us.p50),
            format!("{:.1}", run.latency_us.p99),
            format!("{:.1}", run.latency_us.max),
            format!("{:.3}", run.target_us_per_operation),
            format!("{:.3}", run.host_us_per_operation),
            format!("{:.1}%", run.copy_crc_share),
        ]
    }));
    let remarks = format!("{}\n{}{}", table::align(&rows), table::saved(&common), table::noise(&common));
    scenario::text(&common, wide, "", &remarks)
}

fn block(text: &str) -> Result<u32, String> {
    let bytes = options::bytes(text)?;
    // The disk has blocks of 512 bytes, and a command moves whole blocks.
    let fits = (512..=1 << 20).contains(&bytes) && bytes.is_multiple_of(512);
    if fits { Ok(bytes as u32) } else { Err("a command moves 512 bytes to 1MiB, in steps of 512".into()) }
}
