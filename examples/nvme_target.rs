//! Serves disks over NVMe/TCP: a Linux host connects with `nvme connect -t tcp`, or ours with `nvme_host`.
//!
//! `cargo run --release --example nvme_target -- --listen 127.0.0.1:4420 --nqn nqn.2026-01.example:disk --memory 1GiB`

use bytesize::ByteSize;
use clap::Parser;
use ktls_offload::TokioSegments;
use nvme_tcp::controller::{Target, TargetConfig, TransportConfig};
use nvme_tcp::namespace::{FileStorage, MemoryStorage, Namespace, Storage};
use nvme_tcp::shell::{Server, Threads};
use offload_bench::program;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use testbed::{RealClock, TokioRuntime, tokio_runtime};
use tokio::net::{TcpListener, TcpStream};

/// Serves disks over NVMe/TCP, and tells hosts about them by discovery at the same address. Prints `ready ADDR` when
/// it listens.
#[derive(Debug, Parser)]
#[command(name = "nvme_target", version)]
struct Options {
    /// Where to listen
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:4420")]
    listen: SocketAddr,
    /// The subsystem's name
    #[arg(long, value_name = "NQN", default_value = "nqn.2026-01.example:disk")]
    nqn: String,
    /// A namespace in memory, of this size; repeatable. Those in memory are numbered first, from 1 on
    #[arg(long, value_name = "SIZE")]
    memory: Vec<ByteSize>,
    /// A namespace in a file or block device, as large as it is; repeatable
    #[arg(long, value_name = "PATH")]
    file: Vec<PathBuf>,
    /// Files past the page cache (O_DIRECT)
    #[arg(long)]
    direct: bool,
    /// Bytes of a block: 512 or 4096
    #[arg(long, value_name = "BYTES", default_value_t = 4096)]
    block_size: u32,
    /// The address that discovery tells; default: where it listens. Repeatable
    #[arg(long, value_name = "ADDR")]
    advertise: Vec<SocketAddr>,
    /// A host that may connect; repeatable. Default: any
    #[arg(long, value_name = "NQN")]
    host: Vec<String>,
    /// Threads for files
    #[arg(long, default_value_t = 8)]
    threads: usize,
    /// Bytes of one request to transfer (R2T) at most
    #[arg(long, value_name = "SIZE", default_value = "1MiB")]
    request: ByteSize,
    /// Data bytes of one C2HData PDU at most
    #[arg(long, value_name = "SIZE", default_value = "1MiB")]
    data_pdu: ByteSize,
}

fn main() -> ExitCode {
    let options: Options = match program::options(NAME) {
        Ok(options) => options,
        Err(status) => return status,
    };
    let served = prepare(&options).and_then(|target| {
        let tokio = tokio_runtime::start(2, None).map_err(|error| error.to_string())?;
        tokio.block_on(serve(&options, target)).map_err(|error| format!("{}: {error}", options.listen))
    });
    match served {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => program::fail(NAME, &message, program::UNUSABLE),
    }
}

/// The target with its namespaces.
fn prepare(options: &Options) -> Result<Target, String> {
    let transport = TransportConfig {
        request_bytes: u32::try_from(options.request.as_u64()).map_err(|error| error.to_string())?,
        data_bytes: u32::try_from(options.data_pdu.as_u64()).map_err(|error| error.to_string())?,
        ..TransportConfig::default()
    };
    let mut target = Target::new(TargetConfig { transport, ..TargetConfig::default() });
    let hosts = (!options.host.is_empty()).then(|| options.host.clone());
    target.add_subsystem(&options.nqn, hosts).map_err(|error| error.to_string())?;
    let mut storages: Vec<Arc<dyn Storage>> = Vec::new();
    for size in &options.memory {
        storages.push(Arc::new(MemoryStorage::new(size.as_u64())));
    }
    for path in &options.file {
        let file = FileStorage::open(path, options.direct);
        storages.push(Arc::new(file.map_err(|error| format!("{}: {error}", path.display()))?));
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

async fn serve(options: &Options, mut target: Target) -> io::Result<()> {
    let listener = TcpListener::bind(options.listen).await?;
    let address = listener.local_addr()?;
    let advertised = if options.advertise.is_empty() { vec![address] } else { options.advertise.clone() };
    advertised.into_iter().for_each(|address| target.advertise(address));
    let timers = Arc::new(TokioRuntime::new(tokio::runtime::Handle::current(), RealClock::new()));
    let server = Server::new(target, timers, Arc::new(Threads::new(options.threads)?));
    println!("ready {address}");
    io::stdout().flush()?;
    loop {
        // A connection that fails before it is accepted is nobody's loss.
        let Ok((stream, peer)) = listener.accept().await else { continue };
        let serving = server.serve(TokioSegments::new(without_delay(stream)));
        tokio::spawn(async move {
            if let Err(error) = serving.await {
                eprintln!("{peer}: {error}");
            }
        });
    }
}

/// Small PDUs must not wait for acknowledgments.
fn without_delay(stream: TcpStream) -> TcpStream {
    // It works without, only slower.
    let _ = stream.set_nodelay(true);
    stream
}

const NAME: &str = "nvme_target";
