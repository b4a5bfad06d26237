//! TLS between two hosts: their NICs encrypt and decrypt.

use ktls_offload::{Offload, accept, connect};
use offload_testbed::identity::{Randomness, client_config, server_config, server_name};
use offload_testbed::wire::LinkConfig;
use offload_testbed::{NicConfig, Seed, TcpConfig, Testbed};
use std::io::{self, Write};
use std::sync::Arc;
use tokio::io::AsyncReadExt;

fn main() -> io::Result<()> {
    offload_examples::teaching("Sends a MiB over TLS, which both NICs encrypt and decrypt.");
    let mut bed = Testbed::builder(Seed(1)) // two hosts, a NIC each, a wire; in virtual time
        .host("server", NicConfig::default(), TcpConfig::default())
        .host("client", NicConfig::default(), TcpConfig::default())
        .wire(0, 1, LinkConfig::default())
        .build()?;
    let (server, client) = (bed.host(0).clone(), bed.host(1).clone());
    let (mut listener, address) = (server.stack().listen(443, 8)?, (server.address(), 443).into());

    server.spawn("server", async move {
        let config = Arc::new(server_config(Randomness::Seeded(Seed(2)), None));
        let mut stream = accept(listener.accept().await?, config).await?; // rustls shakes hands
        stream.offload(Offload::BOTH); // the NIC gets the keys
        stream.send_chunk(vec![7; 1 << 20].into()).await?;
        stream.close().await
    });
    let (bytes, counters) = bed.run(async move {
        let config = Arc::new(client_config(Randomness::Seeded(Seed(3)), None));
        let mut stream = connect(client.stack().connect(None, address).await?, config, server_name()).await?;
        stream.offload(Offload::BOTH);
        let mut received = Vec::new();
        stream.read_to_end(&mut received).await?;
        io::Result::Ok((received.len(), stream.into_counters()))
    })?;
    let (by_nic, by_software) = (counters.rx_records_device, counters.rx_records_sw);
    writeln!(io::stdout(), "{bytes} bytes; the NIC decrypted {by_nic} records, software {by_software}")
}
