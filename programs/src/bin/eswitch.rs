//! A NIC with a switch for virtual machines in other processes, for example QEMU guests, each attached to a virtual
//! function.
//!
//! `cargo run --release --features tap --bin eswitch -- --rules FILE --vf 0=vm0.sock --vf 1=vm1.sock --uplink tap:nic0`
//! prints the QEMU arguments of each guest. Rules are lines of `tc filter`; the NIC does tunnels and ESP.

use clap::Parser;
use core::net::{Ipv4Addr, Ipv6Addr};
use nic_sim::SwitchConfig;
use offload_bench::keys;
use offload_cli::options::WireOptions;
use offload_cli::program;
use offload_cli::trace_options::TraceOptions;
use offload_programs::outside::{EndAt, NumberOptions, OutsideHost, OutsideOptions, RunFiles, Stop, told, unusable};
use offload_programs::switching::{LinuxSteering, MachineAt, Manager, ProtectedNetwork, Report, RepresentorAt};
use offload_testbed::attach::End;
use std::io;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::PoisonError;

/// A NIC with a switch. Each --vf attaches a virtual machine of another process, for example a QEMU guest, to a virtual
/// function; the guest's QEMU arguments are printed. The NIC's own host has --address, and tunnels end there.
///
/// Without --rules the switch learns addresses (legacy mode). SIGHUP reloads the rules under traffic: each frame meets
/// either the old rules or the new ones. Ctrl-C or SIGTERM ends the program and prints the counters.
///
/// Exit status: 0; 1 if the TAP was deleted; 2 if an option or a file is bad, or a socket or the wire's end cannot be
/// opened.
#[derive(Debug, Parser)]
#[command(name = "eswitch", version, allow_negative_numbers = true)]
struct Options {
    /// Rules and functions: lines of `tc filter ... flower`, `ip link set p0 vf ...` and `devlink`
    #[arg(long, value_name = "FILE")]
    rules: Option<PathBuf>,
    /// A socket for the agent `linux-mirror tc` of a Linux machine: the flower filters of that machine's kernel become
    /// the rules
    #[arg(long, value_name = "SOCKET", conflicts_with_all = ["rules", "networks"])]
    filters: Option<PathBuf>,
    /// The representor of a port (p0, pf0vf0), as a network card of the same Linux machine, attached to QEMU's `-netdev
    /// dgram`: this end receives at SOCKET, the guest at SOCKET.guest. Repeatable
    #[arg(long = "representor", value_name = "PORT=SOCKET", requires = "filters")]
    representors: Vec<RepresentorAt>,
    /// A virtual machine at function N with a network card at QEMU's `-netdev dgram`: this end receives at SOCKET, the
    /// guest at SOCKET.guest. Repeatable
    #[arg(long = "vf", value_name = "N=SOCKET", required = true)]
    machines: Vec<MachineAt>,
    /// End of the wire: tap:NAME, dgram:OURS,THEIRS or stream:PATH
    #[arg(long, value_name = "END")]
    uplink: EndAt,
    /// Address of the NIC's own host, where tunnels end
    #[arg(long, default_value = "10.77.0.1")]
    address: Ipv4Addr,
    /// Address that the printed instructions give to the other end
    #[arg(long, default_value = "10.77.0.2")]
    peer: Ipv4Addr,
    /// IPv6 address of the host, in addition to the IPv4 one
    #[arg(long, value_name = "ADDRESS", default_value = "fd77::1")]
    address6: Ipv6Addr,
    /// IPv6 address that the printed instructions give to the other end
    #[arg(long, value_name = "PEER", default_value = "fd77::2")]
    peer6: Ipv6Addr,
    /// Next hop to other IPv4 networks, for the host and for tunnels
    #[arg(long, value_name = "ADDRESS")]
    gateway: Option<Ipv4Addr>,
    /// Next hop to other IPv6 networks
    #[arg(long, value_name = "ADDRESS")]
    gateway6: Option<Ipv6Addr>,
    /// SAs and policies in the syntax of `ip xfrm`. SAs of protected networks need `offload packet`, and each run needs
    /// new keys
    #[arg(long, value_name = "FILE")]
    keys: Option<PathBuf>,
    #[command(flatten)]
    numbers: NumberOptions,
    /// Take SAs and policies from the same Linux machine. Its keying daemon negotiates for the NIC's host.
    /// `linux-mirror sa` there sends them to this socket. No packet of a tunnel passes without an SA then. The daemon's
    /// network card is the representor of p0.
    #[arg(long, value_name = "SOCKET", requires = "filters", conflicts_with = "keys")]
    mirror: Option<PathBuf>,
    /// At each SIGHUP, read this file and apply its changes to SAs and policies
    #[arg(long, value_name = "FILE", requires = "keys")]
    key_changes: Option<PathBuf>,
    /// A tunnel network that must be protected by the SAs of these reqids: vxlan0:100=16. Repeatable
    #[arg(long = "protect", value_name = "NETWORK=REQID", requires = "keys")]
    networks: Vec<ProtectedNetwork>,
    /// Print the counters as a line of JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    trace: TraceOptions,
    #[command(flatten)]
    wire: WireOptions,
}

fn main() -> ExitCode {
    program::main(NAME, |options| told(NAME, run(options)))
}

/// Switches frames until interrupted and returns the counters as text.
fn run(options: &Options) -> Result<String, Stop> {
    let outside_options = options.outside();
    let sas = match &options.keys {
        Some(path) => {
            let addresses = [options.address.into(), options.address6.into()];
            keys::read(path, &addresses).map_err(unusable)?.sas().cloned().collect()
        }
        None => Vec::new(),
    };
    let (machines, networks) = (options.machines.clone(), options.networks.clone());
    let mut manager =
        Manager::new(options.rules.clone(), machines, networks, sas, options.wire.mtu).map_err(unusable)?;
    let mut steered = None;
    if let Some(filters) = &options.filters {
        let steering = LinuxSteering::new(&options.representors, Some(filters));
        let steering = steering.map_err(|error| unusable(format!("{}: {error}", filters.display())))?;
        // Serving consumes the manager with its steering, so the shared counters are taken here.
        steered = Some(steering.counters());
        manager = manager.steered(steering);
    }
    if options.mirror.is_some() {
        manager = manager.keyed(options.address.into());
    }
    let files =
        RunFiles { read: options.rules.iter().map(PathBuf::as_path).collect(), ..RunFiles::new(&options.trace) };
    let mut ends = Vec::new();
    // The machines' ports are added before the testbed starts, so no frame arrives at a missing port.
    let mut outside = OutsideHost::open_with(NAME, "hypervisor", &outside_options, &options.wire, &files, |builder| {
        let mut builder = builder.switched(SwitchConfig::default());
        for machine in &options.machines {
            let name = machine.socket.display();
            let end = End::dgram(&machine.socket, &machine.theirs())
                .map_err(|error| io::Error::other(format!("{name}: {error}")))?;
            builder = builder.machine(machine.port(), manager.function(machine), end.port());
            ends.push((machine.port(), end));
        }
        Ok(builder)
    })?;
    let host = outside.host().clone();
    let gate = options.mirror.as_ref().map(|_| outside.gate());
    // The switch is configured before it serves: a refused rule must end the program with an error.
    outside.set_up(manager.begin(&host)).map_err(unusable)?;
    let instructions = options.instructions(&manager, &outside_options);
    let mut rules = Vec::new();
    let ended = outside.until_interrupted_beside(&instructions, |host| manager.serve(host.clone(), gate), async {
        rules = Manager::rules(&host).await
    });
    drop(host);
    let mut counters = outside.end()?;
    if let Some(steered) = steered {
        let (representors, filters, gate) = *steered.lock().unwrap_or_else(PoisonError::into_inner);
        counters.add(&representors);
        counters.add(&filters);
        counters.add(&gate);
    }
    ended?;
    let machines = ends.iter().map(|(at, end)| (*at, end.counters())).collect();
    let report = Report { rules, machines, counters };
    Ok(if options.json { report.json() } else { report.text() })
}

impl Options {
    fn outside(&self) -> OutsideOptions {
        let mut options = OutsideOptions::ending_at(&self.uplink);
        (options.address, options.peer, options.gateway) = (self.address, self.peer, self.gateway);
        (options.address6, options.peer6, options.gateway6) = (self.address6, self.peer6, self.gateway6);
        (options.keys, options.key_changes) = (self.keys.clone(), self.key_changes.clone());
        options.numbers = self.numbers.clone();
        (options.mirror, options.lends) = (self.mirror.clone(), self.mirror.is_some());
        options
    }

    /// Returns the commands to run at the other end and for each machine.
    fn instructions(&self, manager: &Manager, outside: &OutsideOptions) -> String {
        let mut text = String::new();
        for machine in &self.machines {
            let line = machine.qemu(manager.function(machine).mac, manager.machine_mtu(machine));
            text += &format!("{}: qemu-system-x86_64 {line}\n", machine.port());
        }
        text + &format!(
            "The NIC's host is {}. At the other end of its wire, as root:\n{}Ctrl-C ends it and prints the counters.\n",
            outside.host(),
            outside.set_up(self.wire.mtu)
        )
    }
}

const NAME: &str = "eswitch";
