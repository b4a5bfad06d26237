//! HTTP/3: all streams on one QUIC connection. Packets are protected by the NICs, by the hosts, or not at all.

use super::{PORT, Pacing, Reservoir, shell};
use core::num::NonZeroU64;
use offload_api::QuicCipher;
use offload_base::RandomSource;
use offload_base::cost::CpuMeter;
use offload_bench_tls::connection::Mode;
use offload_reservoir::Server;
use offload_reservoir::dial::{Dial, DialFuture, QuicDialFuture};
use offload_testbed::bed::BedHost;
use offload_testbed::identity::{Randomness, quic_client_config, quic_server_config, server_name};
use quic_offload::http3::ALPN;
use quic_offload::{ClientTls, Config, Endpoint, Offload, ServerTls};
use std::io;
use std::net::SocketAddr;

/// Serves at the host's port.
pub(super) fn serve(plan: &Reservoir, host: &BedHost, server: Server, meter: &CpuMeter) -> io::Result<()> {
    let mut tls = quic_server_config(
        QuicCipher::Aes256Gcm,
        Randomness::Seeded(plan.seed.derive("server")),
        plan.observers.key_log(),
    );
    tls.alpn_protocols = vec![ALPN.to_vec()];
    let tls = ServerTls::new(tls).map_err(io::Error::other)?;
    let socket = host.stack().bind_udp(Some(PORT))?;
    let (endpoint, driver) = Endpoint::new(socket, host.runtime(), config(plan, "server"), Some(tls))?;
    let _runs = host.spawn("quic", driver);
    let shell = shell(host, meter);
    let _serves = host.spawn("serving", async move {
        while let Some(connection) = endpoint.accept().await {
            let server = server.clone();
            shell.spawn(async move { server.serve_http3(connection).await });
        }
    });
    Ok(())
}

/// Connects from the copying host.
pub(super) struct BenchQuicDialer {
    endpoint: Endpoint,
    tls: ClientTls,
    to: SocketAddr,
}

impl BenchQuicDialer {
    pub(super) fn new(plan: &Reservoir, host: &BedHost, server: &BedHost) -> io::Result<BenchQuicDialer> {
        let mut tls = quic_client_config(QuicCipher::Aes256Gcm, Randomness::Seeded(plan.seed.derive("client")), None);
        tls.alpn_protocols = vec![ALPN.to_vec()];
        let tls = ClientTls::new(tls).map_err(io::Error::other)?;
        let (endpoint, driver) =
            Endpoint::new(host.stack().bind_udp(None)?, host.runtime(), config(plan, "client"), None)?;
        let _runs = host.spawn("quic", driver);
        Ok(BenchQuicDialer { endpoint, tls, to: SocketAddr::from((server.address(), PORT)) })
    }
}

impl Dial for BenchQuicDialer {
    fn dial<'a>(&'a self, _: &'a str, _: u16) -> DialFuture<'a> {
        Box::pin(async { Err(io::ErrorKind::Unsupported.into()) })
    }

    fn speaks_quic(&self, _: &str, _: u16) -> bool {
        true
    }

    fn quic<'a>(&'a self, _: &'a str, _: u16) -> QuicDialFuture<'a> {
        Box::pin(async move {
            let connecting = self.endpoint.connect(&self.tls, self.to, &server_name().to_str());
            Ok(connecting.map_err(io::Error::other)?.await?)
        })
    }
}

/// Returns the configuration of an end. The one connection gets the windows of all streams.
fn config(plan: &Reservoir, end: &str) -> Config {
    let window = (plan.window as u64 * u64::from(plan.streams) / plan.scale.max(1)).max(64 << 10);
    // QUIC windows have 32 bits here, which limits the connection to 4 GiB.
    let window = u32::try_from(window).unwrap_or(u32::MAX);
    let offload = match plan.mode {
        Mode::TlsNic => Offload::Both,
        Mode::TlsCpu => Offload::None,
        Mode::Tcp => Offload::Unprotected,
    };
    let random = Some(RandomSource::from(plan.seed.derive("quic").derive(end)));
    // All streams share the one connection, so it gets the whole pace.
    let pace = plan.pace / plan.scale.max(1) / 8;
    let pacing_rate = if plan.pacing == Pacing::Paced { NonZeroU64::new(pace) } else { None };
    offload_reservoir::quic::config(window)
        .with(|c| (c.random, c.offload, c.pacing_rate) = (random, offload, pacing_rate))
        .for_mtu(plan.nic.mtu)
}
