//! Serves disks over NVMe/TCP: a Linux host connects with `nvme connect -t tcp`, ours with `nvme_host`.
//!
//! `cargo run --release --bin nvme_target -- --listen 127.0.0.1:4420 --nqn nqn.2026-01.example:disk --memory 1GiB` uses
//! the kernel's TCP. With an end for a wire (`--tap` and similar) it serves from an emulated host, and the NIC computes
//! the data digests.

use bytesize::ByteSize;
use clap::Parser;
use core::convert::Infallible;
use nvme_tcp::api::TokioSegments;
use nvme_tcp::target::{TransportConfig, derived_serial};
use nvme_tcp::{FileStorage, Namespace, Server, Storage, Target, TargetConfig, Threads, TokioTimers};
use offload_api::SegmentStream;
use offload_base::descriptors;
use offload_base::slots::ConnectionSlots;
use offload_cli::options::{self, WireOptions};
use offload_cli::program;
use offload_cli::trace_options::TraceOptions;
use offload_console::{say, write_out};
use offload_programs::outside::{
    OutsideHost, OutsideOptions, RunFiles, Stop, kernel_until_interrupted, listed, unusable,
};
use offload_testbed::{BedHost, tokio_runtime};
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};

/// Serves disks over NVMe/TCP and announces them by discovery at the same address. Prints `ready ADDR` when listening:
/// over the kernel's TCP, or on an emulated host with a wire to the outside, at port 4420 or the port of `--listen`.
///
/// Ctrl-C or SIGTERM ends the target; commands already received are carried out and answered first.
///
/// Exit status: 0 when interrupted; 1 if the TAP was deleted; 2 if an option is bad or nothing can be served.
#[derive(Debug, Parser)]
#[command(name = "nvme_target", version, allow_negative_numbers = true)]
struct Options {
    /// The address to listen at
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:4420")]
    listen: SocketAddr,
    /// Name (NQN) of the subsystem
    #[arg(long, value_name = "NQN", default_value = "nqn.2026-01.example:disk")]
    nqn: String,
    /// A namespace in memory, of this size; repeatable. Namespaces in memory are numbered first, from 1; hosts see them
    /// as new disks after each start
    #[arg(long, value_name = "SIZE")]
    memory: Vec<ByteSize>,
    /// A namespace in a file or block device, as large as that is; repeatable. Blocks of a file that Write
    /// Uncorrectable marks are listed in PATH.uncorrectable while any is marked; marks of a block device are lost when
    /// the program ends. The UUID by which hosts recognise a file is stored in PATH.identity: keep both together. A
    /// block device's UUID follows from the device's own name
    #[arg(long, value_name = "PATH")]
    file: Vec<PathBuf>,
    /// Serial number, at most 20 ASCII characters. Default: derived from this machine, the subsystem's name and the
    /// port
    #[arg(long, value_parser = serial_number)]
    serial: Option<String>,
    /// Memory for commands and data in transit of all hosts together; beyond it connections wait or are refused. Each
    /// 304 KiB allow one connection; a further one replaces a connection without a Connect
    #[arg(long, value_name = "SIZE", default_value = "1GiB")]
    max_memory: ByteSize,
    /// Open files with O_DIRECT, bypassing the page cache
    #[arg(long)]
    direct: bool,
    /// Size of a block: 512 or 4KiB
    #[arg(long, value_name = "SIZE", default_value = "4KiB", value_parser = options::size::<u32>(512..=4096))]
    block_size: u32,
    /// Address that discovery announces. Default: the listening address. Repeatable
    #[arg(long, value_name = "ADDR")]
    advertise: Vec<SocketAddr>,
    /// A host that may connect; repeatable. Default: any
    #[arg(long, value_name = "NQN", value_parser = host_name)]
    host: Vec<String>,
    /// Threads for files, at most 1024
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: u16,
    /// Bytes of one request to transfer (R2T) at most: a multiple of 4, from 4 KiB to 1 GiB
    #[arg(long, value_name = "SIZE", default_value = "1MiB", value_parser = transfer_size)]
    request: u32,
    /// Data bytes of one C2HData PDU at most: a multiple of 4, from 4 KiB to 1 GiB
    #[arg(long, value_name = "SIZE", default_value = "1MiB", value_parser = transfer_size)]
    data_pdu: u32,
    /// Compute data digests on the emulated host, not on its NIC
    #[arg(long, requires = "end")]
    cpu: bool,
    #[command(flatten)]
    outside: OutsideOptions,
    #[command(flatten)]
    trace: TraceOptions,
    #[command(flatten)]
    wire: WireOptions,
}

impl Options {
    /// Returns the maximum number of connections. Connections must not use up the memory before their hosts have sent a
    /// Connect, nor the open files.
    fn connections(&self, files: Option<u64>) -> usize {
        let by_memory = self.max_memory.as_u64() / (2 * STRANGER_BYTES);
        let by_files = files.map(|files| files.saturating_sub(OTHER_FILES + self.file.len() as u64));
        by_memory.min(by_files.unwrap_or(u64::MAX)).max(1) as usize
    }
}

fn main() -> ExitCode {
    program::main(NAME, execute)
}

fn execute(options: &Options) -> ExitCode {
    match serve(options) {
        Ok(()) => ExitCode::SUCCESS,
        Err((message, status)) => program::fail(NAME, &message, status),
    }
}

fn serve(options: &Options) -> Result<(), Stop> {
    options.outside.check_with(&options.wire, &options.trace).map_err(unusable)?;
    // Files beside a namespace hold its identity and its marks, so no output may overwrite them.
    let kept: Vec<PathBuf> = options.file.iter().flat_map(|file| kept_of(file)).collect();
    let read = kept.iter().map(PathBuf::as_path).collect();
    let files = RunFiles { read, ..RunFiles::new(&options.trace) };
    files.check(&options.outside)?;
    let target = prepare(options).map_err(unusable)?;
    if options.outside.is_asked_for() {
        return serve_emulated(options, target, &files);
    }
    let tokio = tokio_runtime::start(2, None).map_err(unusable)?;
    let served = tokio.block_on(serve_over_the_kernel(options, target));
    served.map_err(|error| unusable(format!("{}: {error}", options.listen)))
}

/// Returns the paths of a namespace's file, of its marks and of its identity.
fn kept_of(file: &Path) -> [PathBuf; 3] {
    ["", ".uncorrectable", ".identity"].map(|ending| {
        let mut name = file.as_os_str().to_owned();
        name.push(ending);
        name.into()
    })
}

/// Builds the target with its namespaces.
fn prepare(options: &Options) -> Result<Target, String> {
    let transport =
        TransportConfig { request_bytes: options.request, data_bytes: options.data_pdu, ..TransportConfig::default() };
    let serial = options.serial.clone().unwrap_or_else(|| {
        // Without a machine id, serial numbers of two machines may be equal.
        let machine = std::fs::read_to_string("/etc/machine-id").unwrap_or_default();
        derived_serial(&format!("{}\0{}\0{}", machine.trim(), options.nqn, options.listen.port()))
    });
    let memory = usize::try_from(options.max_memory.as_u64()).unwrap_or(usize::MAX);
    let mut target = Target::new(TargetConfig { serial, memory, transport, ..TargetConfig::default() })
        .map_err(|error| error.to_string())?;
    let hosts = (!options.host.is_empty()).then(|| options.host.clone());
    target.add_subsystem(&options.nqn, hosts).map_err(|error| error.to_string())?;
    // The order of `storages` decides the namespace numbers: namespaces in memory come first, as the help says.
    let mut storages: Vec<Arc<dyn Storage>> = Vec::new();
    for size in &options.memory {
        let memory = FileStorage::in_memory(size.as_u64());
        storages.push(Arc::new(memory.map_err(|error| format!("{size} of memory: {error}"))?));
    }
    for path in &options.file {
        let [_, _, identity] = kept_of(path);
        let had_identity = identity.exists();
        let file = FileStorage::open(path, options.direct);
        storages.push(Arc::new(file.map_err(|error| error.to_string())?));
        if !had_identity && identity.exists() {
            say!("{NAME}: hosts know {} by the UUID in {}: keep them together", path.display(), identity.display());
        }
        let rest = path.metadata().map_or(0, |about| about.len() % u64::from(options.block_size));
        if rest > 0 {
            say!("{NAME}: {}: the last {rest} bytes are no whole block and are not served", path.display());
        }
    }
    if storages.is_empty() {
        return Err("nothing to serve: give --memory SIZE or --file PATH".into());
    }
    for (id, storage) in (1..).zip(storages) {
        let namespace = Namespace::new(id, options.block_size, storage).map_err(|error| error.to_string())?;
        target.add_namespace(&options.nqn, namespace).map_err(|error| error.to_string())?;
    }
    Ok(target)
}

/// Serves from an emulated host until interrupted and prints the counters.
fn serve_emulated(options: &Options, mut target: Target, files: &RunFiles<'_>) -> Result<(), Stop> {
    let mut outside = OutsideHost::open(NAME, "target", &options.outside, &options.wire, files)?;
    let address = SocketAddr::new(options.outside.address.into(), options.listen.port());
    let advertised = if options.advertise.is_empty() { vec![address] } else { options.advertise.clone() };
    advertised.into_iter().for_each(|address| target.advertise(address));
    let threads = Arc::new(Threads::new(options.threads.into()).map_err(unusable)?);
    let server = Server::new(target, outside.host().runtime(), threads);
    let server = if options.cpu { server } else { server.with_digests_by_device() };
    let (set_up, nqn) = (options.outside.set_up(options.wire.mtu), &options.nqn);
    let instructions = format!(
        "{} serve {nqn}. At the other end, as root:\n{set_up}then\n  nvme connect -t tcp -a {} -s {} -n {nqn}\n\
         Ctrl-C ends it and prints the counters.\nready {address}\n",
        options.outside.host(),
        address.ip(),
        address.port()
    );
    // Connections of the emulated host use no file descriptors, so only memory limits them.
    let slots = ConnectionSlots::new(options.connections(None));
    let ended = outside.until_interrupted(
        &instructions,
        |host| {
            let listener = host.stack().listen(address.port(), BACKLOG)?;
            Ok(host.spawn("listener", accept(host.clone(), listener, server.clone(), slots)))
        },
        server.close(),
    );
    let counters = outside.end()?;
    ended?;
    write_out(&listed(&counters)).map_err(|error| (format!("standard output: {error}"), program::FAILED))
}

async fn accept(
    host: BedHost,
    mut listener: offload_host_stack::TcpListener,
    server: Server,
    slots: ConnectionSlots,
) -> io::Result<()> {
    loop {
        let mut stream = listener.accept().await?;
        stream.set_nodelay(true);
        let peer = stream.peer_addr();
        let Some(slot) = slots.acquire(peer.ip()) else {
            stream.abort();
            continue;
        };
        let serving = server.serve_in(slot, stream);
        // Connections end by themselves, so the task is not awaited.
        let _ends_by_itself = host.spawn("connection", async move {
            if let Err(error) = serving.await {
                say!("{peer}: {error}");
            }
        });
    }
}

async fn serve_over_the_kernel(options: &Options, mut target: Target) -> io::Result<()> {
    let listener = TcpListener::bind(options.listen).await?;
    let address = listener.local_addr()?;
    let advertised = if options.advertise.is_empty() { vec![address] } else { options.advertise.clone() };
    // A host that learns the address 0.0.0.0 by discovery would connect to itself.
    if let Some(unspecified) = advertised.iter().find(|address| address.ip().is_unspecified()) {
        say!("{NAME}: hosts cannot connect to {unspecified}, which discovery tells them: give --advertise ADDR");
    }
    advertised.into_iter().for_each(|address| target.advertise(address));
    let timers = Arc::new(TokioTimers::current());
    let server = Server::new(target, timers, Arc::new(Threads::new(options.threads.into())?));
    let slots = ConnectionSlots::new(options.connections(descriptors::raise_limit()?));
    kernel_until_interrupted(accept_over_the_kernel(&listener, &server, &slots), server.close()).await
}

async fn accept_over_the_kernel(
    listener: &TcpListener,
    server: &Server,
    slots: &ConnectionSlots,
) -> io::Result<Infallible> {
    // The output is optional: hosts are served without a reader.
    let _ = program::write_out(NAME, &format!("ready {}\n", listener.local_addr()?));
    let mut failing = false;
    loop {
        let (stream, peer) = match listener.accept().await {
            Ok(accepted) => accepted,
            // Accept fails at once again while file descriptors are short. The pause keeps this loop from spinning, and
            // the flag keeps it from filling the log.
            Err(error) => {
                if !core::mem::replace(&mut failing, true) {
                    say!("{NAME}: no connection can be accepted: {error}");
                }
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        failing = false;
        // Without a slot the stream is dropped, which closes it.
        let Some(slot) = slots.acquire(peer.ip()) else { continue };
        let serving = server.serve_in(slot, TokioSegments::new(without_delay(stream)));
        tokio::spawn(async move {
            if let Err(error) = serving.await {
                say!("{peer}: {error}");
            }
        });
    }
}

/// Turns off Nagle's delay, because small PDUs must not wait for acknowledgments.
fn without_delay(stream: TcpStream) -> TcpStream {
    // The stream works with the delay too, only slower.
    let _ = stream.set_nodelay(true);
    stream
}

/// Parses the number of bytes of a data PDU or of a request.
fn transfer_size(text: &str) -> Result<u32, String> {
    let size: ByteSize = text.parse()?;
    match u32::try_from(size.as_u64()) {
        Ok(bytes @ 4096..=0x4000_0000) if bytes.is_multiple_of(4) => Ok(bytes),
        _ => Err("a multiple of 4, from 4 KiB to 1 GiB".into()),
    }
}

fn serial_number(text: &str) -> Result<String, String> {
    let fits = (1..=20).contains(&text.len()) && text.bytes().all(|byte| (0x20..0x7f).contains(&byte));
    fits.then(|| text.to_owned()).ok_or_else(|| "1 to 20 ASCII characters".into())
}

fn host_name(text: &str) -> Result<String, String> {
    let is_name = text.starts_with("nqn.") && text.len() <= 223;
    is_name.then(|| text.to_owned()).ok_or_else(|| "no NQN: \"nqn.\" and at most 223 bytes".into())
}

const NAME: &str = "nvme_target";
/// Memory of a connection after the host's ICReq.
const STRANGER_BYTES: u64 = 152 << 10;
/// Open files besides connections and namespaces: the runtime's own, and new connections that overlap ending ones.
const OTHER_FILES: u64 = 48;
/// Connections that may wait to be accepted.
const BACKLOG: usize = 1024;
/// Pause between two attempts to accept while no connection can be accepted.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
