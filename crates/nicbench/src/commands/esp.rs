//! The ESP loopback: sends a file over TCP through two emulated NICs, plain and under ESP, and shows the cost of ESP.

use ::ipsec::KeyFile;
use clap::Parser;
use nic_sim::NicConfig;
use offload_bench::ipsec::{self, IpsecMode as Mode, addresses};
use offload_bench::keys;
use offload_bench::services::{EspServices, ServiceController};
use offload_bench_tls::bulk::{self, Bulk, BulkError, Mode as Stream};
use offload_bench_tls::facts::Run;
use offload_bench_tls::table;
use offload_cli::options;
use offload_cli::run_options::RunOptions;
use offload_cli::scenario::{self, About, Failure, Made, Modes, OutputFiles, Scenario};
use offload_console::say;
use std::path::PathBuf;

/// Sends a file over TCP through two emulated NICs: plain, and under ESP: by the hosts, by the NICs under headers of
/// the hosts (crypto offload), and by the NICs alone (packet offload). Prints the cost of each mode for the hosts.
///
/// An SA that a NIC refuses is named on standard error; software then does its work.
///
/// Exit status: 0; 1 if the data did not arrive whole; 2 if an option is bad, a file cannot be used, or no key in it
/// protects the traffic.
#[derive(Debug, Parser)]
#[command(name = "ipsec_loopback", version, allow_negative_numbers = true)]
pub struct IpsecLoopback {
    /// The file to send. Default: seeded data
    file: Option<PathBuf>,
    /// Bytes to send without a file: 256MiB, 1GB, 4096
    #[arg(long, value_parser = options::some_bytes, default_value = "256MiB", conflicts_with = "file")]
    size: u64,
    /// Only these modes, comma-separated: plain, esp-cpu, esp-crypto, esp-packet
    #[arg(long, value_parser = options::choice::<Mode>(), value_delimiter = ',', default_values_t = Mode::ALL)]
    mode: Vec<Mode>,
    /// Use IPv6 instead of IPv4
    #[arg(long)]
    ipv6: bool,
    /// SAs and policies of the server, 10.0.0.1 and fd00::1, in the syntax of `ip xfrm`; the client, 10.0.0.2 and
    /// fd00::2, gets the same mirrored. Default: AES-128-GCM in transport mode, extended sequence numbers, keys from
    /// the seed
    #[arg(long, value_name = "FILE")]
    keys: Option<PathBuf>,
    /// Write the received bytes of the last mode into this file
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Run the NICs' ciphers as services, on a device of this area in AES-128 instances, between each NIC and the wire:
    /// esp-crypto and esp-packet then take the services' time
    #[arg(long, value_name = "AREA", value_parser = options::area)]
    services: Option<f64>,
    /// Policy for the number of instances of a service: queue (by queueing theory), hysteresis, fixed (one of each)
    #[arg(long, value_name = "POLICY", value_parser = options::choice::<ServiceController>(), default_value_t = ServiceController::Queue)]
    controller: ServiceController,
    #[command(flatten)]
    run: RunOptions,
}

impl Scenario for IpsecLoopback {
    fn about(&self) -> About<'_> {
        self.run.about(self.mode.len())
    }

    fn run(&self) -> Result<Made, Failure> {
        run(self)
    }
}

fn run(options: &IpsecLoopback) -> Result<Made, Failure> {
    scenario::check_family(options.ipv6, &options.run.wire)?;
    let seed = options.run.wire.seed();
    let payload = scenario::payload(options.file.as_deref(), seed, options.size)?;
    let keys = match &options.keys {
        Some(path) => {
            let hosts = [&addresses(0)[..], &addresses(1)];
            keys::read_for_both(path, hosts, options.ipv6, bulk::PORT).map_err(Failure::Unusable)?
        }
        // Keys from the seed let a run repeat to the byte.
        None => ipsec::usual_keys(seed),
    };
    let files = OutputFiles {
        read: options.file.iter().chain(&options.keys).map(PathBuf::as_path).collect(),
        out: options.out.as_deref(),
        ..OutputFiles::default()
    };
    let modes = Modes::new(NAME, &options.run, &options.mode, files)?;
    let checksum = scenario::checksum(&payload, &options.run)?;
    let own = [
        ("file", scenario::named(options.file.as_ref())),
        ("keys", scenario::named(options.keys.as_ref())),
        ("ipv6", options.ipv6.to_string()),
        ("services", options.services.map_or_else(|| "none".into(), |area| format!("{area} {}", options.controller))),
    ];
    let nic = options.run.nic(NicConfig::default());
    let runs = modes.make(payload.len(), |mode, observers, out| {
        // Refusals are printed before the run, because the figures are otherwise mistaken for the NIC's.
        say_what_is_refused(mode, &keys)?;
        // Services replace the NICs' ciphers, so other modes have no use for them.
        let by_nic = matches!(mode, Mode::EspCrypto | Mode::EspPacket);
        let services = options.services.filter(|_| by_nic).map(|area| {
            let services = EspServices::new(&keys, area, options.controller);
            services.map_err(|error| Failure::Unusable(format!("--services: {error}")))
        });
        let services = services.transpose()?;
        let bulk = Bulk {
            checksum: Some(checksum),
            clock: options.run.clock(),
            seed,
            nic: nic.clone(),
            link: options.run.wire.link(),
            ipv6: options.ipv6,
            // Plain TCP has no layer: the packets then pass exactly as in a run without IPsec.
            layer: mode.offload().map(|kind| ipsec::layer(keys.clone().offloaded(kind))),
            port: services.as_ref().map(EspServices::port),
            observers,
            out,
            ..Bulk::new(Stream::Tcp, payload.clone())
        };
        let mut run = bulk.run().map_err(|error| Failure::in_mode(mode, broken_off(&error)))?;
        if let Some(services) = &services {
            services.count(&mut run);
        }
        Ok(Run { mode: mode.to_string(), ..run })
    })?;
    let text = scenario::text(
        &runs,
        options.run.common.wide,
        &format!("\n{}", table::per_packet(&runs)),
        &table::timeouts(&runs),
    );
    let whole = runs.iter().all(|run| run.sha256_ok);
    Ok(Made::new(options.run.facts(NAME, &nic, own), &runs, whole, text))
}

/// Prints a line for each SA that a NIC refuses in this mode. Software then does the SA's work, so the figures are
/// software's.
fn say_what_is_refused(mode: Mode, keys: &KeyFile) -> Result<(), Failure> {
    let Some(kind) = mode.offload() else { return Ok(()) };
    let keys = keys.clone().offloaded(kind);
    for (host, keys) in [("server", &keys), ("client", &keys.mirrored())] {
        let number = usize::from(host == "client");
        for refused in keys::refused(keys, &addresses(number)).map_err(Failure::Unusable)? {
            say!("{NAME}: {mode}: {host}: {refused}");
        }
    }
    Ok(())
}

/// Formats an error with the IPsec counters up to then.
fn broken_off(error: &BulkError) -> String {
    let mut text = error.to_string();
    if let BulkError::BrokenOff { counters, .. } = error {
        let about_ipsec = |name: &str| name.starts_with("Xfrm") || name.starts_with("ipsec");
        let moved = counters.iter().filter(|(name, _)| about_ipsec(name));
        text.extend(moved.map(|(name, value)| format!(", {name} {value}")));
    }
    text
}

const NAME: &str = "ipsec_loopback";
