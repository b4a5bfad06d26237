//! Runs a cipher as a chain of small services on a device, and shows the latency of packets and the number of instances
//! that a controller gives each service.
//!
//! `cargo run --release --bin microservices -- --chain aes-128-gcm --load bursty --svg run.svg`

use clap::Parser;
use core::time::Duration;
use crypto_services::{
    Graph, PacketArrival, RunOutcome, SecretBytes, Study, Suite, SuiteCipher, SuiteKeys, TrafficLoad,
    TransformDirection, picture, text,
};
use offload_bench::services::ServiceController;
use offload_cli::{options, program};
use serde_json::json;
use std::process::ExitCode;

/// Passes a load through a chain of services on a small device, in virtual time. Prints the latency of packets by size,
/// the number of windows of 10 ms in which more than one packet in 100 exceeded the target, and the area that instances
/// occupied.
///
/// Only the cost of AES is fitted, to two rows of a published table; the costs of the other services are assumed
/// (--sensitivity, --poster).
///
/// Exit status: 0; 1 if the device has no room for the chain; 2 if an option is bad or a file cannot be read.
#[derive(Debug, Parser)]
#[command(name = "microservices", version)]
struct Options {
    /// A suite (aes-128-gcm, chacha20-poly1305, aes-128-cbc-sha, nea1 ...) or a graph: "counter > aes-128:extra=1 > ghash"
    #[arg(long, default_value = "aes-128-gcm", value_parser = chain)]
    chain: ChainChoice,
    /// steady, bursty, mixed, on-off, imix, web-search, data-mining, or a file with a line for each packet:
    /// microseconds, flow, bytes
    #[arg(long, default_value = "bursty")]
    load: String,
    /// Bits per second of the load: 1G, 200M
    #[arg(long, value_parser = rate, default_value = "1G")]
    rate: u64,
    /// Duration of the load
    #[arg(long, value_parser = options::time, default_value = "2s")]
    time: Duration,
    /// Seed of the load's random numbers
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Area of the device, in AES-128 instances
    #[arg(long, default_value = "64", value_parser = options::area)]
    area: f64,
    /// queue (predicts by queueing theory), hysteresis (by utilisation of services), fixed (one instance of each)
    #[arg(long, value_parser = options::choice::<ServiceController>(), default_value_t = ServiceController::Queue)]
    controller: ServiceController,
    /// Latency that 99 of 100 packets must meet
    #[arg(long, value_parser = options::time, default_value = "1ms")]
    target: Duration,
    /// Also print the least area that would have sufficed if all packets had been known
    #[arg(long)]
    optimum: bool,
    /// Also print how the area changes when the costs of services are halved and doubled
    #[arg(long)]
    sensitivity: bool,
    /// Also print each decision of the controller
    #[arg(long)]
    decisions: bool,
    /// Only print the published table beside the model
    #[arg(long)]
    poster: bool,
    /// Draw instances, load and latencies into a file
    #[arg(long)]
    svg: Option<std::path::PathBuf>,
    /// Print the run as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Debug)]
enum ChainChoice {
    Suite(Suite),
    Graph(Graph),
}

fn chain(name: &str) -> Result<ChainChoice, String> {
    let graph = || name.parse().map(ChainChoice::Graph).map_err(|error: crypto_services::GraphError| error.to_string());
    Suite::from_name(name).map_or_else(graph, |suite| Ok(ChainChoice::Suite(suite)))
}

fn main() -> ExitCode {
    program::main("microservices", run)
}

fn run(options: &Options) -> ExitCode {
    if options.poster {
        return match text::poster() {
            Ok(table) => program::write_out(NAME, &table),
            Err(error) => program::fail(NAME, &error.to_string(), 1),
        };
    }
    let load = match load(options) {
        Ok(load) => load,
        Err(message) => return program::fail(NAME, &message, 2),
    };
    let graph = match &options.chain {
        ChainChoice::Suite(suite) => suite.graph(TransformDirection::Apply),
        ChainChoice::Graph(graph) => graph.clone(),
    };
    let mut study = Study::new(graph);
    (study.fabric.area, study.target_ns) = (options.area, options.target.as_nanos() as f64);
    let mut controller = options.controller.controller(options.target, options.area);
    let outcome = match study.run(&load, controller.as_mut()) {
        Ok(outcome) => outcome,
        Err(error) => return program::fail(NAME, &error.to_string(), 1),
    };
    if let Some(file) = &options.svg {
        let chain = match options.chain {
            ChainChoice::Suite(suite) => suite.name(),
            ChainChoice::Graph(_) => "a graph",
        };
        let title = format!("{chain} under {}, controller {}", options.load, controller.name());
        if let Err(error) = std::fs::write(file, picture::draw_run(&study, &outcome, &title)) {
            return program::fail(NAME, &format!("{}: {error}", file.display()), 1);
        }
    }
    let told = if options.json { json(&study, &outcome) } else { told(options, &study, &outcome, &load) };
    program::write_out(NAME, &told)
}

fn told(options: &Options, study: &Study, outcome: &RunOutcome, load: &[PacketArrival]) -> String {
    let mut told = format!("chain: {}\n{}", study.graph, text::describe_run(study, outcome));
    if let ChainChoice::Suite(suite) = options.chain {
        told += &sealed(suite, load);
    }
    if options.optimum
        && let Ok(optimum) = study.optimum(load)
    {
        let times = outcome.area_seconds / optimum.area_seconds;
        told += &format!(
            "the least area: {:.2} on average, with {} windows missed; the controller took {times:.3} times that\n",
            optimum.area_seconds / (outcome.windows.len() as f64 * study.window_ns / 1e9),
            optimum.missed
        );
    }
    if options.decisions {
        for change in &outcome.changes {
            let (service, to) = (change.decision.service.name(), change.decision.instances);
            let done = if change.done { "" } else { " (no area)" };
            told += &format!(
                "{:>9.3} ms {service} {} -> {to}: {}{done}\n",
                change.at_ns / 1e6,
                change.from,
                change.decision.why
            );
        }
    }
    if options.sensitivity {
        told += &text::sensitivity(study, load);
    }
    told
}

/// Seals and opens packets of the load with the bytes of the services and returns a line about the result.
fn sealed(suite: Suite, load: &[PacketArrival]) -> String {
    let [cipher, mac, header] = suite.key_lengths().map(|bytes| SecretBytes::new(vec![7; bytes]));
    let Ok(cipher) = SuiteCipher::new(suite, &SuiteKeys { cipher, mac, header }) else { return String::new() };
    let aad = [0; 11];
    let mut bytes = 0;
    let load: Vec<_> = load.iter().filter(|arrival| arrival.bytes <= LONGEST_SEALED).take(SEALED).collect();
    for (number, arrival) in load.iter().enumerate() {
        let (mut iv, plain) = ([0; 16], vec![number as u8; arrival.bytes as usize]);
        iv[4..12].copy_from_slice(&(number as u64).to_be_bytes());
        let mut packet = plain.clone();
        cipher.seal(&iv, &aad, &mut packet);
        if cipher.open(&iv, &aad, &mut packet).is_err() || packet != plain {
            return format!("packet {number} differs after sealing and opening\n");
        }
        bytes += plain.len();
    }
    format!("{} packets, {bytes} bytes, were sealed by {} and opened again\n", load.len(), suite.name())
}

fn load(options: &Options) -> Result<Vec<PacketArrival>, String> {
    if let Some(load) = TrafficLoad::from_name(&options.load) {
        let arrivals = load.arrivals(options.seed, options.rate as f64, options.time.as_secs_f64());
        let load: Vec<PacketArrival> = arrivals.take(PACKETS_MAX + 1).collect();
        return match load.len() {
            0 => Err("not one packet comes at this --rate in this --time".to_owned()),
            1..=PACKETS_MAX => Ok(load),
            _ => Err(format!("more than {PACKETS_MAX} packets come at this --rate in this --time")),
        };
    }
    let file = &options.load;
    let text = std::fs::read_to_string(file).map_err(|error| {
        let names: Vec<&str> = TrafficLoad::ALL.iter().map(|load| load.name()).collect();
        format!("{file} is no load ({}) and cannot be read: {error}", names.join(", "))
    })?;
    let mut load: Vec<PacketArrival> = Vec::new();
    for (number, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let words: Vec<&str> = line.split([',', ' ', '\t']).filter(|word| !word.is_empty()).collect();
        let arrival = match words[..] {
            [at, flow, bytes] => at.parse::<f64>().ok().zip(flow.parse().ok()).zip(bytes.parse::<u32>().ok()),
            _ => None,
        };
        let arrival = arrival.map(|((at, flow), bytes)| PacketArrival { at_ns: 1000.0 * at, flow, bytes });
        let in_order = |arrival: &PacketArrival| load.last().is_none_or(|last| last.at_ns <= arrival.at_ns);
        let good = arrival.filter(|arrival| {
            (0.0..LONGEST_NS).contains(&arrival.at_ns) && (1..=65_535).contains(&arrival.bytes) && in_order(arrival)
        });
        let wrong = || {
            format!("{file}, line {}: takes microseconds, flow and bytes (1 to 65535), in order of time", number + 1)
        };
        load.push(good.ok_or_else(wrong)?);
    }
    if load.is_empty() {
        return Err(format!("{file}: there is no packet in it"));
    }
    Ok(load)
}

fn json(study: &Study, outcome: &RunOutcome) -> String {
    let windows = outcome.windows.iter().map(|window| {
        let p99 = window.p99_ns.is_finite().then_some(window.p99_ns / 1e3);
        json!({ "ms": window.at_ns / 1e6, "packets": window.packets, "bits_a_second": window.bits_a_second,
            "p99_us": p99, "instances": window.instances })
    });
    let sizes = outcome.sizes.iter().map(|size| {
        json!({ "bytes": size.bytes, "packets": size.packets, "bits_a_second": size.bits_a_second,
            "p50_us": size.p50_ns / 1e3, "p99_us": size.p99_ns / 1e3 })
    });
    let changes = outcome.changes.iter().map(|change| {
        json!({ "ms": change.at_ns / 1e6, "service": change.decision.service.name(), "from": change.from,
            "to": change.decision.instances, "why": change.decision.why, "done": change.done })
    });
    let services: Vec<_> = study.graph.steps().iter().map(|step| step.service.name()).collect();
    let all = json!({
        "chain": study.graph.to_string(), "services": services, "mean_area": outcome.mean_area(study),
        "missed": outcome.missed, "refused": outcome.refused, "departed": outcome.departed,
        "sizes": sizes.collect::<Vec<_>>(), "windows": windows.collect::<Vec<_>>(), "changes": changes.collect::<Vec<_>>(),
    });
    format!("{all:#}\n")
}

fn rate(text: &str) -> Result<u64, String> {
    text.parse::<options::WireRate>()
        .ok()
        .and_then(|rate| rate.0)
        .ok_or_else(|| "a rate is 200M or 1G bits a second".to_owned())
}

const NAME: &str = "microservices";
/// Most packets of a load, limited by memory.
const PACKETS_MAX: usize = 50_000_000;
/// Packets that are sealed as a check of the bytes.
const SEALED: usize = 1000;
/// Most bytes of a TLS record.
const LONGEST_SEALED: u32 = 16_384;
/// One day.
const LONGEST_NS: f64 = 86_400e9;
