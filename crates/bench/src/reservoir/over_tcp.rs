//! HTTP/1.1 with a connection for each stream: TLS over TCP, by the NICs or by the hosts, or plain TCP.

use super::{PORT, Pacing, Reservoir, shell};
use core::num::NonZeroU64;
use ktls_offload::Offload;
use offload_api::{TlsSuite, TlsVersion};
use offload_base::Seed;
use offload_base::cost::CpuMeter;
use offload_bench_tls::connection::Mode;
use offload_reservoir::Server;
use offload_reservoir::dial::{Dial, DialFuture, DialStream};
use offload_testbed::bed::BedHost;
use offload_testbed::identity::{Agreement, Randomness, server_name};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Serves at the host's port, each stream paced to its share.
pub(super) fn serve(plan: &Reservoir, host: &BedHost, server: Server, meter: &CpuMeter) -> io::Result<()> {
    let mut listener = host.stack().listen(PORT, usize::from(plan.streams) + 2)?;
    let config = AGREEMENT.server_config(Randomness::Seeded(plan.seed.derive("server")), plan.observers.key_log());
    let config = Arc::new(config.ok_or(io::ErrorKind::Unsupported)?);
    let share = plan.pace / plan.scale.max(1) / u64::from(plan.streams.max(1)) / 8;
    let share = if plan.pacing == Pacing::Paced { NonZeroU64::new(share) } else { None };
    let (mode, host, shell) = (plan.mode, host.clone(), shell(host, meter));
    let _serves = host.clone().spawn("serving", async move {
        while let Ok(stream) = listener.accept().await {
            stream.set_pacing_rate(share);
            let (server, config) = (server.clone(), config.clone());
            shell.spawn(async move {
                if mode == Mode::Tcp {
                    return server.serve(stream, "client").await;
                }
                let Ok(mut stream) = ktls_offload::accept(stream, config).await else { return };
                if mode == Mode::TlsNic {
                    // The stream stays offloaded even with many retransmissions, because the run measures exactly that.
                    stream.set_retransmit_limit(None);
                    stream.offload(Offload::BOTH);
                }
                server.serve(stream, "client").await;
            });
        }
    });
    Ok(())
}

/// Connects from the copying host.
pub(super) struct BenchTcpDialer {
    host: BedHost,
    to: SocketAddr,
    mode: Mode,
    seed: Seed,
    dialed: AtomicU64,
}

impl BenchTcpDialer {
    pub(super) fn new(plan: &Reservoir, host: &BedHost, server: &BedHost) -> BenchTcpDialer {
        let to = SocketAddr::from((server.address(), PORT));
        BenchTcpDialer { host: host.clone(), to, mode: plan.mode, seed: plan.seed, dialed: AtomicU64::new(0) }
    }
}

impl Dial for BenchTcpDialer {
    fn dial<'a>(&'a self, _: &'a str, _: u16) -> DialFuture<'a> {
        Box::pin(async move {
            let stream = self.host.stack().connect(None, self.to).await?;
            if self.mode == Mode::Tcp {
                return Ok(Box::new(stream) as Box<dyn DialStream>);
            }
            // Each connection draws its own randomness.
            let number = self.dialed.fetch_add(1, Ordering::Relaxed);
            let randomness = Randomness::Seeded(self.seed.derive(&format!("client {number}")));
            let config = AGREEMENT.client_config(randomness, None).ok_or(io::ErrorKind::Unsupported)?;
            let connected = ktls_offload::connect(stream, Arc::new(config), server_name()).await;
            let mut stream = connected.map_err(io::Error::other)?;
            if self.mode == Mode::TlsNic {
                stream.set_retransmit_limit(None);
                stream.offload(Offload::BOTH);
            }
            Ok(Box::new(stream) as Box<dyn DialStream>)
        })
    }
}

const AGREEMENT: Agreement = Agreement { version: TlsVersion::Tls13, suite: TlsSuite::Aes256Gcm };
