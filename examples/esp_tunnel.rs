//! An IPsec tunnel between two hosts: ESP is done by the hosts, then by their NICs. The wire shows ESP both times.
//!
//! `cargo run --release --example esp_tunnel`
//!
//! The keys are in the syntax of `ip xfrm`; a Linux machine with the mirrored lines could be the other end. Neither TCP
//! nor the application knows about IPsec, which is a layer between the stack and the driver.

#![allow(clippy::print_stdout, reason = "printing is the whole purpose, so a failed write loses no other work")]

use ipsec::{KeyFile, KeyedDevice, SecureDevice};
use nic_sim::NicConfig;
use nic_sim::wire::LinkConfig;
use nic_sim::wire::tap::FrameRecorder;
use offload_api::{NetDevice, OffloadKind};
use offload_base::{Instant, Seed};
use offload_host_stack::TcpConfig;
use offload_testbed::Testbed;
use std::error::Error;
use std::io;
use std::net::IpAddr;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

const KEYS: &str = "
    state add src 10.0.0.1 dst 10.0.0.2 proto esp spi 0x1001 reqid 1 mode tunnel replay-window 128 flag esn
        aead rfc4106(gcm(aes)) 0x000102030405060708090a0b0c0d0e0faabbccdd 128
    state add src 10.0.0.2 dst 10.0.0.1 proto esp spi 0x1002 reqid 1 mode tunnel replay-window 128 flag esn
        aead rfc4106(gcm(aes)) 0x101112131415161718191a1b1c1d1e1fddccbbaa 128
    policy add src 10.0.0.1 dst 10.0.0.2 dir out tmpl src 10.0.0.1 dst 10.0.0.2 proto esp reqid 1 mode tunnel
    policy add src 10.0.0.2 dst 10.0.0.1 dir in tmpl src 10.0.0.2 dst 10.0.0.1 proto esp reqid 1 mode tunnel
";

fn main() -> Result<(), Box<dyn Error>> {
    offload_examples::teaching("Sends a MiB through an ESP tunnel, made by the hosts and then by their NICs.");
    for (who, kind) in [("hosts", OffloadKind::None), ("NICs", OffloadKind::Packet)] {
        let keys: KeyFile = KEYS.parse()?;
        // The same keys with another place of ESP.
        let keys = keys.offloaded(kind);
        let recorder = FrameRecorder::default();
        let mut bed = Testbed::builder(Seed(1))
            .host("left", NicConfig::default(), TcpConfig::default())
            .layer(secured(keys.clone(), [10, 0, 0, 1].into()))
            .host("right", NicConfig::default(), TcpConfig::default())
            .layer(secured(keys.mirrored(), [10, 0, 0, 2].into()))
            .wire(0, 1, LinkConfig::default())
            .recorded(&recorder)
            .build()?;
        let received = transfer(&mut bed)?;

        // IP protocol 50 is ESP, 6 is TCP. The wire must carry only ESP.
        let protocols: Vec<u8> = recorder.take().iter().filter_map(|seen| protocol(&seen.frame.data)).collect();
        let count = |number| protocols.iter().filter(|protocol| **protocol == number).count();
        println!("ESP by the {who}: {received} bytes in {} ESP packets and {} TCP packets", count(50), count(6));
        let counters = bed.counters();
        for name in ["ipsec_sw_tx_pkts", "ipsec_tx_pkts", "rx_lro_packets"] {
            println!("  {name:<18} {}", counters.value(name));
        }
    }
    Ok(())
}

/// Returns a function that wraps the queues of a NIC in IPsec with these keys.
fn secured(keys: KeyFile, local: IpAddr) -> impl Fn(Vec<Box<dyn NetDevice>>) -> Vec<Box<dyn NetDevice>> + Send + Sync {
    move |queues| {
        let mut queues = SecureDevice::for_queues(queues);
        let keying = queues[0].keying().expect("an IPsec layer takes keys");
        keys.apply(Instant::ZERO, keying, &[local]).expect("the keys fit together");
        queues
    }
}

/// Sends a mebibyte from left to right.
fn transfer(bed: &mut Testbed) -> io::Result<usize> {
    let (left, right) = (bed.host(0).clone(), bed.host(1).clone());
    let mut listener = right.stack().listen(7, 8)?;
    let address = (right.address(), 7).into();
    left.clone().spawn("sender", async move {
        let mut stream = left.stack().connect(None, address).await?;
        stream.write_all(&vec![42; 1 << 20]).await?;
        stream.shutdown().await
    });
    bed.run(async move {
        let mut received = Vec::new();
        listener.accept().await?.read_to_end(&mut received).await?;
        Ok(received.len())
    })
}

/// Returns the protocol field of the IPv4 header after an Ethernet header.
fn protocol(frame: &[u8]) -> Option<u8> {
    frame.get(12..14).filter(|kind| *kind == [8, 0]).and_then(|_| frame.get(23).copied())
}
