//! The cost of a lost packet for an offload: the NIC loses its position in the stream, and finds it again.
//!
//! `cargo run --release --example lose_a_packet`
//!
//! A server sends 256 records of 16 KiB, each in about twelve packets. After the loss of a packet with a record's
//! header, the receiving NIC no longer knows where records begin. The NIC searches for a possible header and asks; TLS
//! answers, and the NIC goes on. Software finishes the records in between. Before the sending NIC encrypts a
//! retransmission from the middle of a record, it reads the record's first bytes again. The client receives every byte.
//!
//! `resync_story` draws one such loss, packet by packet.

#![allow(clippy::print_stdout, reason = "printing is the whole purpose, so a failed write loses no other work")]

use ktls_offload::{Offload, accept, connect};
use offload_testbed::identity::{Randomness, client_config, server_config, server_name};
use offload_testbed::wire::{Impairments, LinkConfig, Overflow};
use offload_testbed::{NicConfig, Seed, TcpConfig, Testbed};
use std::error::Error;
use std::io;
use std::sync::Arc;
use tokio::io::AsyncReadExt;

const BYTES: usize = 4 << 20;

fn main() -> Result<(), Box<dyn Error>> {
    offload_examples::teaching("Loses packets, and shows how a NIC finds its place in a TLS stream again.");
    println!("        records opened by       NIC told where    read again over PCIe,");
    println!("loss   NIC  both  software     a record begins   % of all payload");
    for loss in ["0", "0.001", "0.01", "0.05"] {
        let impairments = Impairments { loss: loss.parse()?, ..Impairments::default() };
        // A full queue delays packets here instead of dropping them, so that the wire loses only the share in `loss`.
        let link = LinkConfig { impairments, overflow: Overflow::HoldBack, ..LinkConfig::default() };
        let mut bed = Testbed::builder(Seed(1))
            .host("server", NicConfig::default(), TcpConfig::default())
            .host("client", NicConfig::default(), TcpConfig::default())
            .wire(0, 1, link)
            .build()?;
        let (received, tls) = transfer(&mut bed)?;
        assert_eq!(received, BYTES, "TCP must retransmit every lost byte");
        let again = bed.counters().value("tx_tls_dump_bytes") as f64 / BYTES as f64 * 100.0;
        let (nic, both, software) = (tls.rx_records_device, tls.rx_records_partial, tls.rx_records_sw);
        let answers = tls.rx_device_resync;
        println!("{loss:<5} {nic:>4} {both:>5} {software:>9} {answers:>19} {again:>20.1}");
    }
    Ok(())
}

/// Sends [`BYTES`] from the server to the client. Returns the number of received bytes, and the counters of the
/// client's TLS.
fn transfer(bed: &mut Testbed) -> io::Result<(usize, ktls_offload::TlsCounters)> {
    let (server, client) = (bed.host(0).clone(), bed.host(1).clone());
    let mut listener = server.stack().listen(443, 8)?;
    let address = (server.address(), 443).into();
    server.spawn("server", async move {
        let config = Arc::new(server_config(Randomness::Seeded(Seed(2)), None));
        let mut stream = accept(listener.accept().await?, config).await?;
        stream.offload(Offload::BOTH);
        // The flow must stay on the NIC regardless of retransmissions.
        stream.set_retransmit_limit(None);
        stream.send_chunk(vec![7; BYTES].into()).await?;
        stream.close().await
    });
    bed.run(async move {
        let config = Arc::new(client_config(Randomness::Seeded(Seed(3)), None));
        let mut stream = connect(client.stack().connect(None, address).await?, config, server_name()).await?;
        stream.offload(Offload::BOTH);
        let mut received = Vec::new();
        stream.read_to_end(&mut received).await?;
        Ok((received.len(), stream.into_counters()))
    })
}
