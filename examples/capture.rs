//! A capture of a wire for Wireshark, with the TLS secrets in it.
//!
//! `cargo run --release --example capture -- tls.pcapng` `tshark -r tls.pcapng -q -z follow,tls,ascii,0`
//!
//! The NICs do the TLS, so the capture shows that the wire carries only TLS: no plain bytes, no extra messages. The
//! secrets are in the file (pcapng decryption secrets), so Wireshark shows the plain text without a key file.

#![allow(clippy::print_stdout, reason = "printing is the whole purpose, so a failed write loses no other work")]

use ktls_offload::{Offload, accept, connect};
use offload_testbed::identity::{Randomness, client_config, server_config, server_name};
use offload_testbed::wire::LinkConfig;
use offload_testbed::{Capture, NicConfig, Seed, TcpConfig, Testbed};
use std::io;
use std::sync::Arc;
use tokio::io::AsyncReadExt;

fn main() -> io::Result<()> {
    let file = offload_examples::teaching_with_file(
        "Captures a TLS stream and its secrets for Wireshark. Default file: tls.pcapng.",
    );
    let path = file.unwrap_or_else(|| "tls.pcapng".into());
    let named = |error| io::Error::other(format!("{}: {error}", path.display()));
    // A capture contains secrets and must not replace another file.
    if path.exists() {
        return Err(named(io::ErrorKind::AlreadyExists.into()));
    }
    let capture = Capture::create(&path).map_err(named)?; // readable by its owner only
    let mut bed = Testbed::builder(Seed(1))
        .host("server", NicConfig::default(), TcpConfig::default())
        .host("client", NicConfig::default(), TcpConfig::default())
        .wire(0, 1, LinkConfig::default())
        .captured(&capture) // frames sent and received at the server's end of the wire
        .build()?;
    let (server, client) = (bed.host(0).clone(), bed.host(1).clone());
    let mut listener = server.stack().listen(443, 8)?;
    let address = (server.address(), 443).into();

    let secrets = Arc::new(capture.clone()); // rustls passes its secrets to the capture
    server.spawn("server", async move {
        let config = Arc::new(server_config(Randomness::Seeded(Seed(2)), Some(secrets)));
        let mut stream = accept(listener.accept().await?, config).await?;
        stream.offload(Offload::BOTH);
        stream.send_chunk("sealed by the NIC, and readable in Wireshark\n".into()).await?;
        stream.close().await
    });
    let text = bed.run(async move {
        let config = Arc::new(client_config(Randomness::Seeded(Seed(3)), None));
        let mut stream = connect(client.stack().connect(None, address).await?, config, server_name()).await?;
        stream.offload(Offload::BOTH);
        let mut text = String::new();
        stream.read_to_string(&mut text).await?;
        io::Result::Ok(text)
    })?;
    capture.finish()?;
    print!("the client read: {text}");
    println!("the wire is in {}", path.display());
    Ok(())
}
