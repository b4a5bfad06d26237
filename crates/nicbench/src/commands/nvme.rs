//! The NVMe/TCP loopback: reads or writes a disk through two emulated NICs in several modes, and shows the saving of
//! the offloads.

use clap::Parser;
use nic_sim::NicConfig;
use offload_bench::nvme::{Nvme, NvmeMode, NvmeRun};
use offload_bench_tls::table;
use offload_cli::options;
use offload_cli::own;
use offload_cli::run_options::RunOptions;
use offload_cli::scenario::{About, Failure, Made, Modes, OutputFiles, Scenario};

/// Reads or writes a disk over NVMe/TCP through two emulated NICs, with data digests: with all work on the host's CPU;
/// with data placed by its NIC; with digests made and checked by the NICs too; with both estimated, by skipping the
/// NIC's work; and over TLS, by the CPU, by the NICs, and by the NICs with data placed and checked, and digests made.
/// Prints a table of the cost per byte, in nanoseconds of CPU time.
///
/// Exit status: 0; 1 if the data differ from the disk's; 2 if an option is bad.
#[derive(Debug, Parser)]
#[command(name = "nvme_loopback", version, allow_negative_numbers = true)]
pub struct NvmeLoopback {
    /// Bytes to read or write: 256MiB, 1GB
    #[arg(long, value_parser = options::some_bytes, default_value = "256MiB")]
    size: u64,
    /// Bytes of a command
    #[arg(long, value_parser = options::bytes, default_value = "256KiB")]
    io: u64,
    /// Outstanding commands
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..=1024))]
    depth: u16,
    /// I/O queues
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=64))]
    queues: u16,
    /// Only these modes, comma-separated
    #[arg(long, value_parser = options::choice::<NvmeMode>(), value_delimiter = ',', default_values_t = NvmeMode::ALL)]
    mode: Vec<NvmeMode>,
    /// The disk holds only ciphertext, of AES-256-XTS: the host decrypts and encrypts, or its NIC if the NIC places and
    /// checks. There is no emulation of this
    #[arg(long)]
    xts: bool,
    /// Write the disk instead of reading it. There is no emulation of this
    #[arg(long)]
    write: bool,
    #[command(flatten)]
    run: RunOptions,
}

impl Scenario for NvmeLoopback {
    fn about(&self) -> About<'_> {
        self.run.about(self.mode.len())
    }

    fn run(&self) -> Result<Made, Failure> {
        self.plan(NvmeMode::Cpu).check().map_err(|error| Failure::Unusable(error.to_string()))?;
        // Emulation leaves buffers unfilled, so the mode is skipped with these options and refused if it is the only
        // mode.
        let has_no_emulation = self.xts || self.write;
        let modes: Vec<NvmeMode> =
            self.mode.iter().copied().filter(|mode| !has_no_emulation || *mode != NvmeMode::Emulate).collect();
        if modes.is_empty() {
            return Err(Failure::Unusable(
                "--mode emulate leaves buffers as they are: --xts has nothing to decrypt, nor --write anything to do"
                    .into(),
            ));
        }
        let modes = Modes::new(NAME, &self.run, &modes, OutputFiles::default())?;
        let own = own!(self: size, io, depth, queues);
        // Options that are off stay out of the facts, so that old rows keep their form.
        let own = own.into_iter().chain(self.xts.then(|| ("xts", "AES-256".into())));
        let own = own.chain(self.write.then(|| ("write", "true".into())));
        let runs = modes.make(self.size, |mode, observers, _| {
            Nvme { observers, ..self.plan(mode) }.run().map_err(|error| Failure::in_mode(mode, error))
        })?;
        let whole = runs.iter().all(|run| run.data_ok);
        let text = text(&runs, self.run.common.wide) + table::noise_in(self.size, &[]);
        Ok(Made::new(self.run.facts(NAME, &self.run.nic(NicConfig::default()), own), &runs, whole, text))
    }
}

impl NvmeLoopback {
    fn plan(&self, mode: NvmeMode) -> Nvme {
        let usual = Nvme::new(mode);
        Nvme {
            bytes: self.size,
            io: self.io,
            depth: self.depth,
            queues: self.queues,
            xts: self.xts,
            write: self.write,
            clock: self.run.clock(),
            seed: self.run.wire.seed(),
            nic: self.run.nic(usual.nic),
            link: self.run.wire.link(),
            ..usual
        }
    }
}

fn text(runs: &[NvmeRun], wide: bool) -> String {
    let heading = ["mode", "goodput Gb/s", "placed", "host ns/B"];
    let parts = ["copy", "crc", "crypto", "stack", "framing", "target ns/B", "devices ns/B"];
    let mut rows =
        vec![heading.iter().chain(parts.iter().filter(|_| wide)).map(|cell| cell.to_string()).collect::<Vec<_>>()];
    rows.extend(runs.iter().map(|run| {
        let host = &run.host_ns_per_byte;
        let mut row = vec![
            run.mode.clone(),
            format!("{:.2}", run.goodput_gbps),
            format!("{:.1}%", run.placed_share * 100.0),
            format!("{:.3}", host.total),
        ];
        let parts = [
            host.copy,
            host.crc,
            host.crypto,
            host.stack,
            host.framing,
            run.target_ns_per_byte.total,
            run.device_ns_per_byte,
        ];
        row.extend(parts.iter().filter(|_| wide).map(|cost| format!("{cost:.3}")));
        row
    }));
    table::add_factor(&mut rows, runs.iter().map(|run| ((), &run.mode[..], run.host_ns_per_byte.total)));
    let more = if wide { "" } else { "; --wide shows its parts, the target and both devices" };
    table::align(&rows) + &format!("host: CPU time of the host that reads or writes, nanoseconds per byte{more}\n")
}

const NAME: &str = "nvme_loopback";
