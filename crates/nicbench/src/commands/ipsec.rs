//! `nicbench ipsec`.

use clap::Args;
use nic_sim::NicConfig;
use offload_bench::ipsec::{Ipsec, IpsecMode, IpsecRun};
use offload_bench_tls::table;
use offload_cli::options;
use offload_cli::own;
use offload_cli::run_options::VirtualOptions;
use offload_cli::scenario::{self, About, Failure, Made, Modes, Scenario};

/// Datagrams of one size, plain and under ESP, over a number of SAs: CPU time per packet at both ends; virtual time
#[derive(Args, Debug)]
#[command(allow_negative_numbers = true)]
pub(crate) struct IpsecOptions {
    /// Modes of ESP, comma-separated: plain (no ESP), esp-cpu (by the hosts), esp-crypto (by the NICs, except headers),
    /// esp-packet (by the NICs)
    #[arg(long, value_parser = options::choice::<IpsecMode>(), value_delimiter = ',', default_values_t = IpsecMode::ALL)]
    pub mode: Vec<IpsecMode>,
    /// Bytes of an IP packet before ESP
    #[arg(long, value_name = "SIZE", default_value = "1400", value_parser = options::size::<u16>(64..=9000))]
    packet_size: u16,
    /// SAs, each with a flow and a policy of its own
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=10_000))]
    sas: u16,
    /// Packets in all
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u64).range(1..=100_000_000))]
    packets: u64,
    /// Queues of each NIC, and shards of each host, over which the flows are spread
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=64))]
    queues: u16,
    #[command(flatten)]
    run: VirtualOptions,
}

impl Scenario for IpsecOptions {
    fn about(&self) -> About<'_> {
        self.run.about(self.mode.len())
    }

    fn run(&self) -> Result<Made, Failure> {
        let nic = self.run.common.nic.apply(NicConfig { queues: self.queues, ..NicConfig::default() });
        let plan = |mode: &IpsecMode| Ipsec {
            packet_size: self.packet_size,
            sas: self.sas,
            packets: self.packets,
            nic: nic.clone(),
            ..Ipsec::new(*mode, self.run.seed())
        };
        // The label is the mode alone, because all other options are equal.
        let plans = self.mode.iter().map(|mode| (mode.to_string(), plan(mode))).collect();
        let runs = Modes::of_plans("ipsec", &self.run.common, plans)?.make(0, |plan, observers, _| {
            let mode = plan.mode;
            Ipsec { observers, ..plan }.run().map_err(|error| Failure::in_mode(mode, error))
        })?;
        let options = own!(self: packet_size, sas, packets, queues);
        let whole = runs.iter().all(|run| run.run.sha256_ok);
        Ok(Made::new(self.run.facts("ipsec", &nic, options), &runs, whole, text(&runs, self.run.common.wide)))
    }
}

fn text(runs: &[IpsecRun], wide: bool) -> String {
    let heading = ["mode", "tx ns/packet", "rx ns/packet", "tx packets/CPU s", "rx packets/CPU s"];
    let mut rows = vec![heading.map(String::from).to_vec()];
    rows.extend(runs.iter().map(|run| {
        vec![
            run.run.mode.clone(),
            format!("{:.0}", run.tx_ns_per_packet),
            format!("{:.0}", run.rx_ns_per_packet),
            format!("{:.0}", run.tx_packets_per_cpu_second),
            format!("{:.0}", run.rx_packets_per_cpu_second),
        ]
    }));
    let common: Vec<_> = runs.iter().map(|run| run.run.clone()).collect();
    scenario::text(&common, wide, "", &table::align(&rows))
}
