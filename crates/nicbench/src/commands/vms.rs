//! `nicbench vms`.

use clap::Parser;
use nic_sim::NicConfig;
use nic_sim::wire::impairment::Impairments;
use nic_sim::wire::{LinkConfig, Share};
use offload_bench::vms::{TunnelChoice, VmMode, Vms, VmsRun};
use offload_bench_tls::table;
use offload_cli::options;
use offload_cli::own;
use offload_cli::run_options::VirtualOptions;
use offload_cli::scenario::{About, Failure, Made, Modes, Scenario};

/// Virtual machines on two hypervisors send to each other, plain, in an overlay, and in an overlay under ESP, all by
/// the NICs: CPU time per byte of guests, hypervisors and devices for 1, 2, 4 .. virtual machines; virtual time
#[derive(Debug, Parser)]
#[command(name = "vm_overlay", version, allow_negative_numbers = true)]
pub struct VmsOptions {
    /// Treatment of frames between the hypervisors, comma-separated: plain, overlay (in a tunnel), overlay-esp (in a
    /// tunnel under ESP)
    #[arg(long, value_parser = options::choice::<VmMode>(), value_delimiter = ',', default_values_t = VmMode::ALL)]
    pub mode: Vec<VmMode>,
    /// Tunnel protocol: vxlan, gre, geneve
    #[arg(long, value_parser = options::choice::<TunnelChoice>(), default_value_t = TunnelChoice::Vxlan)]
    tunnel: TunnelChoice,
    /// Maximum number of virtual machines on each hypervisor; runs have 1, 2, 4 .. and this number
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=256))]
    vms: u16,
    /// SAs of each virtual machine and direction
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=16))]
    sas: u16,
    /// Use IPv6 between the hypervisors
    #[arg(long)]
    ipv6: bool,
    /// Bytes in all, divided among the virtual machines
    #[arg(long, value_name = "SIZE", default_value = "64MiB", value_parser = options::size::<u64>(256..=1 << 40))]
    size: u64,
    /// Share of frames lost on the wire between the hypervisors
    #[arg(long, default_value = "0")]
    loss: Share,
    #[command(flatten)]
    run: VirtualOptions,
}

impl Scenario for VmsOptions {
    fn about(&self) -> About<'_> {
        self.run.about(self.plans().len())
    }

    fn run(&self) -> Result<Made, Failure> {
        let modes = Modes::of_plans("vms", &self.run.common, self.plans())?;
        let runs = modes.make(0, |plan, observers, _| {
            // An error must name the number of machines too, because one mode has several runs.
            let label = format!("{}, {} virtual machines", plan.mode, plan.vms);
            Vms { observers, ..plan }.run().map_err(|error| Failure::in_mode(label, error))
        })?;
        let options = own!(self: tunnel, vms, sas, ipv6, size, loss);
        let whole = runs.iter().all(|run| run.whole);
        let nic = self.run.common.nic.apply(NicConfig::default());
        let text = text(modes.labels(), &runs, self.run.common.wide);
        Ok(Made::new(self.run.facts("vms", &nic, options), &runs, whole, text))
    }
}

impl VmsOptions {
    /// Returns the runs by their labels, such as `overlay-esp-8`.
    fn plans(&self) -> Vec<(String, Vms)> {
        let plan = |mode: VmMode, vms: u16| {
            let usual = Vms::new(mode);
            let (nics, impairments) = (&self.run.common.nic, Impairments { loss: self.loss, ..Impairments::default() });
            Vms {
                tunnel: self.tunnel,
                vms,
                sas: self.sas,
                ipv6: self.ipv6,
                bytes: self.size,
                nic: nics.apply(usual.nic),
                function: nics.apply(usual.function),
                link: LinkConfig { impairments, ..LinkConfig::default() },
                seed: self.run.seed(),
                ..usual
            }
        };
        let counts = self.counts();
        let of_mode = |mode: &VmMode| counts.iter().map(|vms| plan(*mode, *vms)).collect::<Vec<_>>();
        self.mode.iter().flat_map(of_mode).map(|plan| (plan.label(), plan)).collect()
    }

    /// Returns the powers of two below the requested number, and this number.
    fn counts(&self) -> Vec<u16> {
        let mut counts: Vec<u16> = (0..9).map(|power| 1 << power).take_while(|count| *count < self.vms).collect();
        counts.push(self.vms);
        counts
    }
}

fn text<'a>(labels: impl Iterator<Item = &'a str>, runs: &'a [VmsRun], wide: bool) -> String {
    let heading = ["mode", "VMs", "Gb/s", "guests tx", "rx", "hypervisors", "their crypto", "frames", "devices"];
    let more = ["packets", "wrapped", "protected"];
    let mut rows =
        vec![heading.iter().chain(more.iter().filter(|_| wide)).map(|cell| cell.to_string()).collect::<Vec<_>>()];
    rows.extend(runs.iter().map(|run| {
        let mut row = vec![
            run.mode.clone(),
            run.vms.to_string(),
            format!("{:.1}", run.goodput_gbps),
            format!("{:.3}", run.tx_guests_ns_per_byte.total),
            format!("{:.3}", run.rx_guests_ns_per_byte.total),
            format!("{:.4}", run.hypervisors_ns_per_byte.total),
            format!("{:.4}", run.hypervisors_ns_per_byte.crypto),
            run.represented.to_string(),
            format!("{:.3}", run.device_ns_per_byte),
        ];
        let more = [run.packets, run.wrapped, run.protected];
        row.extend(more.iter().filter(|_| wide).map(u64::to_string));
        row
    }));
    let counters = || table::counters(labels.zip(runs.iter().map(|run| &run.counters)));
    let counters = if wide { format!("\n{}", counters()) } else { String::new() };
    format!("{}{CAPTION}{counters}", table::align(&rows))
}

const CAPTION: &str = "CPU time in nanoseconds per byte of user data: of all sending and receiving guests, of both hypervisors' hosts (in \
                       all, and for crypto), of both\nemulated devices; frames: those that a hypervisor's host was shown\n";
