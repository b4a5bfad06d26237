//! The speed of the simulation in virtual time: packets per second of CPU time, and memory, for several numbers of
//! hosts and flows.
//!
//! `cargo run --release -p nicbench --example simulation_speed`

#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "printing is the whole purpose, so a failed write loses no other work"
)]

use bytes::Bytes;
use clap::Parser;
use core::future::poll_fn;
use futures_util::future::join_all;
use nic_sim::NicConfig;
use nic_sim::wire::LinkConfig;
use offload_api::{SegmentStream, TxTag};
use offload_base::Seed;
use offload_host_stack::{TcpConfig, TcpStream};
use offload_testbed::{BedHost, Testbed};
use rustix::time::{ClockId, clock_gettime};
use std::io;
use std::process::ExitCode;

/// Runs pairs of hosts with plain TCP flows between them, all flows at once, and prints a table. Opening and closing
/// the flows counts. The time is the CPU time of the only thread, so a busy machine changes it little. Memory is the
/// peak resident size, including pages that earlier runs of the same command left to the allocator.
#[derive(Debug, Parser)]
#[command(version)]
struct Options {
    /// Seed of everything random
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Mebibytes that all flows of a run send together
    #[arg(long, default_value_t = 512, value_parser = clap::value_parser!(u64).range(1..=65_536))]
    mebibytes: u64,
    /// Runs, each as hosts:flows: an even number of hosts up to 254, and flows in all, up to 25,000 a pair of hosts
    #[arg(long, value_delimiter = ',', value_parser = shape,
          default_value = "2:1,2:10,2:100,2:1000,2:10000,20:10,20:1000,20:10000,100:100,100:10000,100:100000")]
    runs: Vec<(usize, usize)>,
}

fn main() -> ExitCode {
    let options = Options::parse();
    println!("| hosts | flows | packets | virtual ms | CPU s | packets a CPU second | memory, MiB |");
    println!("|---|---|---|---|---|---|---|");
    for (hosts, flows) in options.runs {
        if let Err(error) = run(Seed(options.seed), hosts, flows, options.mebibytes << 20) {
            eprintln!("simulation_speed: {hosts} hosts, {flows} flows: {error}");
            return ExitCode::from(2);
        }
    }
    ExitCode::SUCCESS
}

fn shape(text: &str) -> Result<(usize, usize), String> {
    let numbers = text.split_once(':').and_then(|(hosts, flows)| Some((hosts.parse().ok()?, flows.parse().ok()?)));
    let (hosts, flows): (usize, usize) = numbers.ok_or("hosts:flows, such as 2:100")?;
    let pairs = hosts / 2;
    let may_be = hosts > 0 && hosts <= 254 && hosts.is_multiple_of(2) && flows >= pairs && flows <= pairs * 25_000;
    if may_be { Ok((hosts, flows)) } else { Err("too many or too few of one for the other".into()) }
}

fn run(seed: Seed, hosts: usize, flows: usize, bytes: u64) -> io::Result<()> {
    // Resets the kernel's record of the peak, if the system permits this.
    let _may_not = std::fs::write("/proc/self/clear_refs", "5");
    let mut builder = Testbed::builder(seed);
    for host in 0..hosts {
        builder = builder.host(&format!("host {host}"), NicConfig::default(), TcpConfig::default());
    }
    for pair in 0..hosts / 2 {
        builder = builder.wire(2 * pair, 2 * pair + 1, LinkConfig::default());
    }
    let mut bed = builder.build()?;
    // Building the testbed is not part of the simulation's speed.
    let before = cpu_seconds();
    let (flows_a_pair, bytes_a_flow) = (flows / (hosts / 2), bytes / flows as u64);
    let mut tasks = Vec::new();
    for pair in 0..hosts / 2 {
        let (sender, receiver) = (bed.host(2 * pair).clone(), bed.host(2 * pair + 1).clone());
        let mut listener = receiver.stack().listen(PORT, flows_a_pair)?;
        tasks.push(receiver.clone().spawn("receiver", async move {
            let mut receiving = Vec::with_capacity(flows_a_pair);
            for _ in 0..flows_a_pair {
                let stream = listener.accept().await?;
                receiving.push(receiver.spawn("flow", receive(stream, bytes_a_flow)));
            }
            join_all(receiving).await.into_iter().collect::<io::Result<()>>()
        }));
        let to = bed.host(2 * pair + 1).address();
        tasks.extend((0..flows_a_pair).map(|_| sender.spawn("flow", send(sender.clone(), to.into(), bytes_a_flow))));
    }
    for ended in bed.run(join_all(tasks)) {
        ended?;
    }
    let (seconds, packets) = (cpu_seconds() - before, bed.counters().value("tx_packets"));
    println!(
        "| {hosts} | {} | {packets} | {:.3} | {seconds:.2} | {:.0} | {} |",
        flows_a_pair * (hosts / 2),
        bed.now().as_nanos() as f64 / 1e6,
        packets as f64 / seconds,
        peak_mebibytes().map_or_else(|| "-".into(), |peak| peak.to_string())
    );
    Ok(())
}

async fn send(host: BedHost, to: core::net::IpAddr, bytes: u64) -> io::Result<()> {
    let mut stream = host.stack().connect(None, (to, PORT).into()).await?;
    let message = Bytes::from_static(&[0x5a; MESSAGE]);
    let mut left = bytes;
    while left > 0 {
        poll_fn(|cx| stream.poll_room(cx)).await?;
        let part = message.slice(..left.min(MESSAGE as u64) as usize);
        left -= part.len() as u64;
        stream.send(part, TxTag::PLAIN);
        stream.flush();
    }
    stream.finish();
    poll_fn(|cx| stream.poll_acked(cx, bytes)).await
}

async fn receive(mut stream: TcpStream, bytes: u64) -> io::Result<()> {
    let mut received = 0;
    while let Some(segment) = poll_fn(|cx| stream.poll_segment(cx)).await? {
        received += segment.data.len() as u64;
        stream.consume(segment.data.len());
    }
    if received == bytes { Ok(()) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
}

fn cpu_seconds() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// Returns the peak resident size since the last reset.
fn peak_mebibytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.trim().strip_suffix(" kB")?.parse::<u64>().ok().map(|kibibytes| kibibytes / 1024)
}

const PORT: u16 = 80;
const MESSAGE: usize = 64 << 10;
