//! Serves and reads a disk in a file, over NVMe/TCP on this machine's own TCP, without an emulated NIC.
//!
//! `cargo run --release --example nvme_disk`
//!
//! The `Server` and `Host` are the same as in `nvme_read`, over `tokio::net::TcpStream`: the CPU does copies and
//! digests. A Linux host could be the other end of either: programs `nvme_target` and `nvme_host` are these two ends.

#![allow(clippy::print_stdout, reason = "printing is the whole purpose, so a failed write loses no other work")]

use nvme_tcp::api::TokioSegments;
use nvme_tcp::{
    FileStorage, Host, HostConfig, HostIdentity, Namespace, Server, Target, TargetConfig, Threads, TokioTimers,
};
use std::error::Error;
use std::fs::{self, File};
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use tokio::net::{TcpListener, TcpStream};

type Result<T> = core::result::Result<T, Box<dyn Error + Send + Sync>>;

const NAME: &str = "nqn.2026-01.example:disk";
const BLOCK: u32 = 512;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    offload_examples::teaching("Serves a disk in a file over NVMe/TCP on this machine's own TCP, and reads it back.");
    let folder = std::env::temp_dir().join(format!("nvme_disk-{}", std::process::id()));
    fs::create_dir_all(&folder)?;
    let outcome = write_and_read(&folder.join("disk.img")).await;
    fs::remove_dir_all(&folder)?;
    outcome
}

async fn write_and_read(image: &Path) -> Result<()> {
    File::create_new(image)?.set_len(16 << 20)?;
    let address = serve(image).await?;
    println!("serving {} at {address}", image.display());

    // Called for each queue of the host, and again after a lost connection.
    let connector = move || async move {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?; // small PDUs must not wait for acknowledgments
        io::Result::Ok(TokioSegments::new(stream))
    };
    let mut config = HostConfig::new(NAME, HostIdentity::from_uuid([7; 16]));
    // Without a NIC, the CPU computes the digests.
    config.data_digest = true;
    let (host, tasks) = Host::new(connector, timers(), config);
    for task in tasks {
        tokio::spawn(task);
    }
    host.ready().await?;
    let disk = host.disk(1).await?;
    println!("the disk has {} blocks of {BLOCK} bytes", disk.blocks());

    let mut block = vec![0; BLOCK as usize];
    block[..14].copy_from_slice(b"kept in a file");
    disk.write(8, [block.into()]).await?;
    disk.flush().await?; // now it is durable: the file was synced
    let block = disk.read(8, disk.buffer(1)).await?.to_vec();
    println!("block 8 reads {:?}", String::from_utf8_lossy(&block[..14]));

    // The image is an ordinary file: block 8 begins at byte 4096.
    let file = fs::read(image)?;
    println!("and the file has the same bytes there: {}", file[4096..4096 + 512] == block);
    Ok(())
}

/// Serves the image on a port chosen by the system.
async fn serve(image: &Path) -> Result<SocketAddr> {
    let mut target = Target::new(TargetConfig::default())?;
    target.add_subsystem(NAME, None)?;
    let storage = Arc::new(FileStorage::open(image, false)?);
    target.add_namespace(NAME, Namespace::new(1, BLOCK, storage)?)?;
    // Threads of their own read and write the file.
    let server = Server::new(target, timers(), Arc::new(Threads::new(2)?));
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    tokio::spawn(async move {
        while let Ok((stream, _peer)) = listener.accept().await {
            let serving = server.serve(TokioSegments::new(stream));
            tokio::spawn(async move { drop(serving.await) });
        }
    });
    Ok(address)
}

fn timers() -> Arc<TokioTimers> {
    Arc::new(TokioTimers::current())
}
