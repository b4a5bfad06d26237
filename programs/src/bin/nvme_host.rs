//! A host for NVMe/TCP targets: `nvme_target`, Linux's nvmet, or any other.
//!
//! `cargo run --release --bin nvme_host -- --connect 127.0.0.1:4420 --data-digest verify` uses the kernel's TCP. With
//! an end for a wire (`--tap` and similar) it runs on an emulated host, and the NIC may place read data and check the
//! digests.

use bytesize::ByteSize;
use clap::{Parser, Subcommand};
use indicatif::{ProgressBar, ProgressStyle};
use nvme_tcp::api::TokioSegments;
use nvme_tcp::exercise::Exercise;
use nvme_tcp::host::{HostTask, KeyedVolume, discover};
use nvme_tcp::wire::DiscoveryEntry;
use nvme_tcp::{ConnectFuture, Connector, Disk, Host, HostConfig, HostIdentity, TokioTimers};
use offload_api::SegmentStream;
use offload_base::{RandomSource, RealClock, Seed, Timers};
use offload_bench::fio::NvmeOffload;
use offload_cli::options::{self, WireOptions};
use offload_cli::program;
use offload_cli::trace_options::TraceOptions;
use offload_console::say;
use offload_programs::outside::{OutsideHost, OutsideOptions, RunFiles, Stop, listed, unusable};
use offload_programs::volume;
use offload_testbed::{BedHost, tokio_runtime};
use std::error::Error;
use std::io::{self, IsTerminal, Read, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::net::TcpStream;
use tokio::sync::mpsc;

/// Discovers, reads, writes and tests the namespaces of an NVMe/TCP target, over the kernel's TCP or from an emulated
/// host with a wire to the outside.
///
/// Exit status: 0; 1 if the target is not reached or does not behave as it should; 2 if an option is bad.
#[derive(Debug, Parser)]
#[command(name = "nvme_host", version, allow_negative_numbers = true)]
struct Options {
    /// Address of the target; without --nqn, of its discovery service
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:4420")]
    connect: SocketAddr,
    /// The subsystem. Default: the first that discovery lists
    #[arg(long, value_name = "NQN")]
    nqn: Option<String>,
    /// Name of this host. Default: derived from its identifier
    #[arg(long, value_name = "NQN")]
    hostnqn: Option<String>,
    /// Unique identifier of this host. Default: a new one in each run, or with --seed always the same
    #[arg(long, value_name = "UUID", value_parser = uuid)]
    hostid: Option<[u8; 16]>,
    /// Header digests
    #[arg(long, visible_alias = "header-digest")]
    hdgst: bool,
    /// Data digests
    #[arg(long, visible_alias = "data-digest")]
    ddgst: bool,
    /// I/O queues
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..1024))]
    queues: u16,
    /// Commands in a queue at a time
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u16).range(1..4096))]
    depth: u16,
    /// Requests to transfer (R2T) that a command may have outstanding
    #[arg(long, default_value_t = 4)]
    requests: u32,
    /// The namespace
    #[arg(long, default_value_t = 1)]
    namespace: u32,
    /// Encrypt the volume: blocks are written and read under AES-XTS with the key in this file, 32 or 64 bytes; the
    /// target has ciphertext only. The CPU encrypts and decrypts the blocks that the emulated host's NIC does not
    #[arg(long, value_name = "KEYFILE")]
    xts: Option<PathBuf>,
    /// Seconds until a silent target is given up; 0: never, and commands that change data are then not sent again
    #[arg(long, default_value_t = 5)]
    keep_alive: u64,
    /// Work of the emulated host's NIC: place, or place-check to check the data digests as well
    #[arg(long, value_parser = options::choice::<NvmeOffload>(), default_value_t = NvmeOffload::None, requires = "end")]
    offload: NvmeOffload,
    #[command(flatten)]
    outside: OutsideOptions,
    #[command(flatten)]
    trace: TraceOptions,
    #[command(flatten)]
    wire: WireOptions,
    #[command(subcommand)]
    what: HostAction,
}

#[derive(Debug, Subcommand)]
enum HostAction {
    /// Lists the subsystems, or the addresses of the one named
    Discover,
    /// Describes the controller and its namespaces
    Id,
    /// Writes blocks to standard output
    Read {
        /// The first block
        #[arg(long, default_value_t = 0)]
        first: u64,
        /// Number of blocks
        #[arg(long, default_value_t = 1)]
        blocks: u64,
    },
    /// Writes standard input to blocks and pads the last block with zeros
    Write {
        /// The first block
        #[arg(long, default_value_t = 0)]
        first: u64,
    },
    /// Writes at random and reads the data back. Existing data is lost!
    Verify {
        /// Bytes to write and read in all
        #[arg(long, default_value = "256MiB")]
        size: ByteSize,
        /// Size of the part of the namespace that is used, from its beginning
        #[arg(long, default_value = "64MiB")]
        span: ByteSize,
        /// Most bytes of a command
        #[arg(long, default_value = "128KiB")]
        command: ByteSize,
        /// Seed of all random choices
        #[arg(long, default_value_t = 1)]
        seed: u64,
        /// Do not use Write Zeroes, which some targets do not support
        #[arg(long)]
        no_zeroes: bool,
    },
}

fn main() -> ExitCode {
    program::main(NAME, execute)
}

fn execute(options: &Options) -> ExitCode {
    match check(options).map_err(unusable).and_then(|()| emulated_or_not(options)) {
        Ok(()) => ExitCode::SUCCESS,
        Err((message, status)) => program::fail(NAME, &message, status),
    }
}

fn check(options: &Options) -> Result<(), &'static str> {
    options.outside.check_with(&options.wire, &options.trace)?;
    if options.outside.changes_keys() {
        return Err("--key-changes and --mirror are for programs that run until interrupted");
    }
    if options.offload == NvmeOffload::Emulate {
        return Err("--offload emulate leaves buffers as they are: it is for measurements, with nicbench fio");
    }
    Ok(())
}

fn emulated_or_not(options: &Options) -> Result<(), Stop> {
    if options.outside.is_asked_for() {
        return emulated(options);
    }
    let tokio = tokio_runtime::start(2, None).map_err(unusable)?;
    told(options, tokio.block_on(run(options, &Network::Kernel(tokio.handle().clone()))))
}

/// Runs on an emulated host and prints the counters to standard error.
fn emulated(options: &Options) -> Result<(), Stop> {
    let files = RunFiles::new(&options.trace);
    let mut outside = OutsideHost::open(NAME, "host", &options.outside, &options.wire, &files)?;
    let network = Network::Emulated(outside.host().clone());
    say!("At the other end, as root:\n{}", options.outside.set_up(options.wire.mtu).trim_end());
    let done = outside.until_done(run(options, &network));
    let counters = outside.end()?;
    say!("{}", listed(&counters).trim_end());
    told(options, done.unwrap_or_else(|gone| Err(gone.into())))
}

/// Turns a failure into a message. A reader that closed standard output early is no failure.
fn told(options: &Options, outcome: Result<(), Box<dyn Error>>) -> Result<(), Stop> {
    let heard_enough = |error: &io::Error| error.kind() == io::ErrorKind::BrokenPipe;
    match outcome {
        Err(error) if error.downcast_ref().is_some_and(heard_enough) => Ok(()),
        Err(error) => Err((format!("{}: {}", options.connect, program::shown(&error.to_string())), program::FAILED)),
        Ok(()) => Ok(()),
    }
}

/// The network that streams use.
#[derive(Clone)]
enum Network {
    /// The kernel's TCP.
    Kernel(tokio::runtime::Handle),
    /// An emulated host.
    Emulated(BedHost),
}

impl Network {
    fn timers(&self) -> Arc<dyn Timers> {
        match self {
            Network::Kernel(runtime) => Arc::new(TokioTimers::new(runtime.clone(), RealClock::new())),
            Network::Emulated(host) => host.runtime(),
        }
    }

    fn spawn(&self, task: HostTask) {
        match self {
            Network::Kernel(runtime) => drop(runtime.spawn(task)),
            Network::Emulated(host) => drop(host.spawn("nvme", task)),
        }
    }

    /// Creates a volume with the key in a file. An emulated host's NIC gets the key too.
    fn volume(&self, key: &Path, block: u32) -> Result<KeyedVolume, String> {
        match self {
            Network::Kernel(_) => volume::read(key, block, None),
            Network::Emulated(host) => host.stack().with_device(|device| volume::read(key, block, device.contexts())),
        }
    }

    fn to(&self, address: SocketAddr) -> KernelOrEmulatedConnector {
        KernelOrEmulatedConnector { network: self.clone(), address }
    }
}

/// Connects streams to a target without Nagle's delay, because small PDUs must not wait for acknowledgments.
struct KernelOrEmulatedConnector {
    network: Network,
    address: SocketAddr,
}

impl Connector for KernelOrEmulatedConnector {
    fn connect(&self) -> ConnectFuture {
        let address = self.address;
        match self.network.clone() {
            Network::Kernel(_) => Box::pin(async move {
                let stream = TcpStream::connect(address).await?;
                stream.set_nodelay(true)?;
                Ok(Box::new(TokioSegments::new(stream)) as Box<dyn SegmentStream>)
            }),
            Network::Emulated(host) => Box::pin(async move {
                let stream = host.stack().connect(None, address).await?;
                stream.set_nodelay(true);
                Ok(Box::new(stream) as Box<dyn SegmentStream>)
            }),
        }
    }
}

async fn run(options: &Options, network: &Network) -> Result<(), Box<dyn Error>> {
    let (mut address, timers) = (options.connect, network.timers());
    let mut config = HostConfig::new(options.nqn.as_deref().unwrap_or_default(), identity(options)?);
    config.queues = options.queues;
    config.depth = options.depth;
    config.header_digest = options.hdgst;
    config.data_digest = options.ddgst;
    config.requests = options.requests;
    config.keep_alive = Duration::from_secs(options.keep_alive);
    config.offload = options.offload.of_host();
    if let Some(name) = &options.hostnqn {
        config.host.clone_from(name);
    }
    let only_discovers = matches!(options.what, HostAction::Discover);
    if options.nqn.is_none() || only_discovers {
        let log = discover(&network.to(address), &timers, &config).await?;
        if only_discovers {
            let wanted = |entry: &&DiscoveryEntry| options.nqn.as_ref().is_none_or(|name| *name == entry.subsystem);
            for entry in log.entries.iter().filter(wanted) {
                let [subsystem, address, service] =
                    [&entry.subsystem, &entry.address, &entry.service].map(|text| program::shown(text));
                writeln!(io::stdout(), "{subsystem} {address} {service}")?;
            }
            return Ok(());
        }
        // Some targets, Linux's among them, list the discovery subsystem too.
        let disks = log.entries.into_iter().filter(|entry| entry.kind == NVM_SUBSYSTEM);
        let mut reachable = disks.filter_map(|entry| Some((entry.socket_address()?, entry.subsystem)));
        (address, config.subsystem) = reachable.next().ok_or("discovery lists no NVM subsystem over TCP")?;
    }
    let (host, tasks) = Host::new(network.to(address), timers, config);
    tasks.into_iter().for_each(|task| network.spawn(task));
    host.ready().await?;
    let (headers, data) = host.digests().unwrap_or((options.hdgst, options.ddgst));
    if (options.hdgst && !headers) || (options.ddgst && !data) {
        return Err("the target does not support the requested digests".into());
    }
    // The connection is closed even if the work failed, so that the target frees it at once.
    let done = work(options, &host, network).await;
    host.close().await;
    done
}

/// Returns the identity of this host: a random one, unless a seed is to repeat the run.
fn identity(options: &Options) -> io::Result<HostIdentity> {
    if let Some(id) = options.hostid {
        return Ok(HostIdentity::from_uuid(id));
    }
    let source = match options.wire.seed {
        Some(seed) => RandomSource::from(Seed(seed)),
        None => RandomSource::from_system()?,
    };
    Ok(HostIdentity::random(&mut source.stream("nvme host")))
}

/// Parses 32 hexadecimal digits, with or without dashes.
fn uuid(text: &str) -> Result<[u8; 16], &'static str> {
    let digits = text.replace('-', "");
    let is_one = digits.len() == 32 && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    let number = is_one.then(|| u128::from_str_radix(&digits, 16).ok()).flatten();
    number.map(u128::to_be_bytes).ok_or("no UUID: 32 hexadecimal digits")
}

async fn work(options: &Options, host: &Host, network: &Network) -> Result<(), Box<dyn Error>> {
    if matches!(options.what, HostAction::Id | HostAction::Discover) {
        return identify(host).await;
    }
    let mut disk = host.disk(options.namespace).await?;
    if let Some(key) = &options.xts {
        let volume = network.volume(key, disk.block_size())?;
        disk = disk.with_volume(volume)?;
    }
    let block = u64::from(disk.block_size());
    // 256 blocks keep the program's own buffers small where a target allows very large transfers.
    let most = u64::from(disk.max_transfer() / disk.block_size()).min(256);
    match options.what {
        HostAction::Discover | HostAction::Id => {}
        HostAction::Read { first, blocks } => {
            // The sum may overflow: the numbers come from the command line.
            let end = first.checked_add(blocks).filter(|end| *end <= disk.blocks());
            let end = end.ok_or_else(|| format!("the namespace has {} blocks", disk.blocks()))?;
            let mut next = first;
            while next < end {
                let count = most.min(end - next);
                let buffer = disk.read(next, disk.buffer(count as u32)).await?;
                buffer.parts().iter().try_for_each(|part| io::stdout().write_all(part))?;
                next += count;
            }
            io::stdout().flush()?;
        }
        HostAction::Write { first } => {
            let mut next = first;
            let mut input = input(most * block);
            while let Some(data) = input.recv().await {
                let mut data = data?;
                // A namespace is written in whole blocks.
                data.resize(data.len().next_multiple_of(block as usize), 0);
                let count = data.len() as u64 / block;
                disk.write(next, [data.into()]).await?;
                next += count;
            }
            // Written data may still be in the target's volatile cache.
            disk.flush().await?;
        }
        HostAction::Verify { size, span, command, seed, no_zeroes } => {
            let exercise = Exercise {
                bytes: size.as_u64(),
                depth: usize::from(options.depth) * host.queues(),
                command_bytes: u32::try_from(command.as_u64())?,
                blocks: span.as_u64() / block,
                zeroes: !no_zeroes,
                ..Exercise::new(Seed(seed))
            };
            verify(exercise, host, &disk).await?;
        }
    }
    Ok(())
}

/// Reads standard input in pieces of `piece` bytes, the last one shorter. A separate thread waits for input so that
/// signals are handled meanwhile.
fn input(piece: u64) -> mpsc::Receiver<io::Result<Vec<u8>>> {
    let (sender, receiver) = mpsc::channel(1);
    std::thread::spawn(move || {
        loop {
            let mut data = Vec::new();
            let read = io::stdin().lock().take(piece).read_to_end(&mut data);
            if matches!(read, Ok(0)) || sender.blocking_send(read.map(|_| data)).is_err() {
                break;
            }
        }
    });
    receiver
}

async fn identify(host: &Host) -> Result<(), Box<dyn Error>> {
    let mut out = io::stdout();
    let data = host.controller().ok_or("the controller is gone")?;
    let [subsystem, model, serial, firmware] =
        [&data.subsystem, &data.model, &data.serial, &data.firmware].map(|text| program::shown(text));
    writeln!(out, "controller {} of {subsystem}", data.controller)?;
    writeln!(out, "model      {model} (serial {serial}, firmware {firmware})")?;
    writeln!(out, "version    {}.{}", data.version >> 16, data.version >> 8 & 0xff)?;
    writeln!(out, "queues     {}", host.queues())?;
    writeln!(out, "capsule    {} bytes of data", (data.command_capsule.max(4) - 4) * 16)?;
    for id in host.namespaces().await? {
        let disk = host.disk(id).await?;
        let bytes = ByteSize(disk.blocks() * u64::from(disk.block_size()));
        writeln!(out, "namespace  {id}: {} blocks of {} bytes, {bytes}", disk.blocks(), disk.block_size())?;
    }
    Ok(())
}

async fn verify(exercise: Exercise, host: &Host, disk: &Disk) -> Result<(), Box<dyn Error>> {
    let style = ProgressStyle::with_template("{bar:40} {bytes}/{total_bytes} {bytes_per_sec} {eta}")?;
    // Control characters of a progress bar would spoil a log file.
    let bar = if io::stderr().is_terminal() { ProgressBar::new(exercise.bytes) } else { ProgressBar::hidden() };
    let bar = bar.with_style(style);
    let started = Instant::now();
    let report = exercise.run(disk, |done| bar.set_position(done)).await?;
    bar.finish_and_clear();
    let (stats, took) = (host.stats(), started.elapsed());
    writeln!(
        io::stdout(),
        "verified: {} written, {} read and compared by {} commands in {:.2} s; {} connections, {} replays, {} retries",
        ByteSize(report.written_bytes),
        ByteSize(report.read_bytes),
        report.commands,
        took.as_secs_f64(),
        stats.connects,
        stats.replays,
        stats.retries,
    )?;
    Ok(())
}

const NAME: &str = "nvme_host";
/// Subsystem type (SUBTYPE) of a discovery entry for an NVM subsystem.
const NVM_SUBSYSTEM: u8 = 2;
