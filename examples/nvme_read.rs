//! A disk on another host, read over NVMe/TCP: the NIC places the data in the reader's buffer and checks the digests.
//!
//! `cargo run --release --example nvme_read`
//!
//! Placement is the purpose of NVMe/TCP offload: the payload of a read goes from the wire to the buffer of the command,
//! and the host copies nothing. The same NIC checks the CRC of the data (data digest).

#![allow(clippy::print_stdout, reason = "printing is the whole purpose, so a failed write loses no other work")]

use nic_sim::NicConfig;
use nic_sim::wire::LinkConfig;
use nvme_tcp::{
    Host, HostConfig, HostIdentity, MemoryStorage, Namespace, Offload, Server, Target, TargetConfig, Threads,
};
use offload_base::Seed;
use offload_host_stack::TcpConfig;
use offload_testbed::{BedHost, Testbed};
use std::error::Error;
use std::net::SocketAddr;
use std::sync::Arc;

type Result<T> = core::result::Result<T, Box<dyn Error + Send + Sync>>;

const NAME: &str = "nqn.2026-01.example:disk";
const BLOCK: u32 = 4096;
/// Blocks of one read: 256 KiB.
const BLOCKS: u32 = 64;

fn main() -> Result<()> {
    offload_examples::teaching("Reads a disk over NVMe/TCP; the NIC places and checks the data.");
    let mut bed = Testbed::builder(Seed(1))
        .host("target", NicConfig::default(), TcpConfig::default())
        .host("reader", NicConfig::default(), TcpConfig::default())
        .wire(0, 1, LinkConfig::default())
        .build()?;
    serve_a_disk(bed.host(0))?;
    for offload in [Offload::None, Offload::PlaceAndCheck] {
        // Counters run on, so each run shows the difference.
        let before = bed.counters();
        let far = SocketAddr::from((bed.host(0).address(), 4420));
        let task = bed.host(1).spawn("reader", read(bed.host(1).clone(), far, offload));
        let equal = bed.run(task)?;
        let after = bed.counters();
        let moved = |name: &str| after.value(name) - before.value(name);
        println!("{offload:?}: the data read equals the data written: {equal}");
        println!("  bytes that the NIC placed: {}", moved("rx_nvmeotcp_bytes"));
        println!("  packets whose digests the NIC checked: {}", moved("rx_nvmeotcp_checked"));
    }
    Ok(())
}

/// Serves one disk in memory from a host of the testbed. `tokio::net::TcpListener` would work too.
fn serve_a_disk(near: &BedHost) -> Result<()> {
    let mut target = Target::new(TargetConfig::default())?;
    target.add_subsystem(NAME, None)?;
    let storage = Arc::new(MemoryStorage::new(64 << 20));
    target.add_namespace(NAME, Namespace::new(1, BLOCK, storage)?)?;
    let server = Server::new(target, near.runtime(), Arc::new(Threads::new(1)?));
    let mut listener = near.stack().listen(4420, 16)?;
    let host = near.clone();
    near.spawn("accept", async move {
        while let Ok(stream) = listener.accept().await {
            let server = server.clone();
            host.spawn("serve", async move { drop(server.serve(stream).await) });
        }
    });
    Ok(())
}

/// Writes blocks, reads them back, and returns whether both are equal.
async fn read(near: BedHost, far: SocketAddr, offload: Offload) -> Result<bool> {
    let stack = near.clone();
    let connector = move || {
        let near = stack.clone();
        async move { near.stack().connect(None, far).await }
    };
    let identity = HostIdentity::from_uuid([7; 16]);
    let mut config = HostConfig::new(NAME, identity);
    config.data_digest = true;
    config.offload = offload;
    let (host, tasks) = Host::new(connector, near.runtime(), config);
    for task in tasks {
        near.spawn("host", task);
    }
    host.ready().await?;
    let disk = host.disk(1).await?;
    let written: Vec<u8> = (0..BLOCKS * BLOCK).map(|at| (at / 7) as u8).collect();
    disk.write(0, [written.clone().into()]).await?;
    // The buffer goes to the NIC with the command, and comes back with the data.
    let buffer = disk.buffer(BLOCKS);
    let data = disk.read(0, buffer).await?;
    Ok(data.to_vec() == written)
}
