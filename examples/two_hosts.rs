//! The smallest testbed: two hosts with TCP, a NIC each, and a wire between them.
//!
//! `cargo run --release --example two_hosts`
//!
//! Time is virtual: the run takes microseconds of simulated time, and every run is the same. The last lines show work
//! that the NICs did on their own: they cut long packets into segments (TSO), and joined segments again (LRO).

#![allow(clippy::print_stdout, reason = "printing is the whole purpose, so a failed write loses no other work")]

use core::time::Duration;
use offload_testbed::wire::LinkConfig;
use offload_testbed::{NicConfig, Seed, TcpConfig, Testbed};
use std::io;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

fn main() -> io::Result<()> {
    offload_examples::teaching("Joins two hosts by a wire and sends TCP between them.");
    // 25 Gb/s, 10 us in each direction. All random numbers of the run follow from the seed.
    let link = LinkConfig { rate: Some(25_000_000_000), delay: Duration::from_micros(10), ..LinkConfig::default() };
    let mut bed = Testbed::builder(Seed(1))
        .host("left", NicConfig::default(), TcpConfig::default())
        .host("right", NicConfig::default(), TcpConfig::default())
        .wire(0, 1, link)
        .build()?;
    let (left, right) = (bed.host(0).clone(), bed.host(1).clone());
    println!("left is {}, right is {}", left.address(), right.address());

    // A server on the left host that echoes.
    let mut listener = left.stack().listen(7, 8)?;
    left.spawn("echo", async move {
        while let Ok(stream) = listener.accept().await {
            let (mut read, mut write) = tokio::io::split(stream);
            tokio::io::copy(&mut read, &mut write).await?;
            write.shutdown().await?;
        }
        io::Result::Ok(())
    });

    // A client on the right host.
    let address = (left.address(), 7).into();
    let started = bed.now();
    let task = right.clone().spawn("client", async move {
        let stream = right.stack().connect(None, address).await?;
        let (mut read, mut write) = tokio::io::split(stream);
        let sent = vec![42; 1 << 20];
        let send = async {
            write.write_all(&sent).await?;
            write.shutdown().await
        };
        let mut echoed = Vec::new();
        // Both directions must run at the same time: the echo stops when its windows are full.
        let (sending, reading) = tokio::join!(send, read.read_to_end(&mut echoed));
        sending.and(reading)?;
        io::Result::Ok(echoed == sent)
    });
    // Virtual time advances only inside `run`.
    let equal = bed.run(task)?;
    println!("1 MiB came back equal: {equal}, after {:?} of virtual time", bed.now() - started);

    let counters = bed.counters();
    let (tso, frames) = (counters.value("tx_tso_packets"), counters.value("tx_packets"));
    println!("frames on the wire: {frames}; packets that the NICs cut: {tso}");
    println!("packets that the NICs joined from several frames: {}", counters.value("rx_lro_packets"));
    Ok(())
}
