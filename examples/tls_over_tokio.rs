//! TLS without a NIC: over the kernel's TCP on this machine, in software.
//!
//! `cargo run --release --example tls_over_tokio`
//!
//! A `KtlsStream` runs over any `SegmentStream`. `TokioSegments` makes one of a `tokio::net::TcpStream`. No device is
//! below the stream, so `offload` is refused and the CPU encrypts and decrypts every record. The peer could be any TLS
//! server or client.

#![allow(clippy::print_stdout, reason = "printing is the whole purpose, so a failed write loses no other work")]

use ktls_offload::api::TokioSegments;
use ktls_offload::{Offload, accept, connect};
use offload_testbed::identity::{Randomness, client_config, server_config, server_name};
use std::io;
use std::sync::Arc;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

#[tokio::main(flavor = "current_thread")]
async fn main() -> io::Result<()> {
    offload_examples::teaching("Sends a line over TLS on this machine's own TCP, without a NIC.");
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let server = tokio::spawn(async move {
        let (socket, _client) = listener.accept().await?;
        let config = Arc::new(server_config(Randomness::System, None));
        let mut stream = accept(TokioSegments::new(socket), config).await?;
        // A device below the stream would get the keys now. A socket has no device and refuses.
        let outcome = stream.offload(Offload::BOTH);
        println!("server: offload when sending: {:?}", outcome.tx);
        let mut question = [0; 5];
        stream.read_exact(&mut question).await?;
        stream.write_all(b"hello from software").await?;
        stream.close().await
    });

    // The client of this process; any other TLS client would do.
    let socket = TcpStream::connect(address).await?;
    let config = Arc::new(client_config(Randomness::System, None));
    let mut stream = connect(TokioSegments::new(socket), config, server_name()).await?;
    stream.write_all(b"hello").await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    let (version, suite) = (stream.negotiated().version, stream.negotiated().suite);
    println!("client: {answer:?} over {version:?}, {suite:?}");
    server.await.map_err(io::Error::other)?
}
