//! A disk behind the wire: an NVMe/TCP target with a namespace in memory at one host, and a host with queues to the
//! target, over TCP or TLS.

use ktls_offload::KtlsStream;
use nvme_tcp::{
    ConnectFuture, Connector, Disk, Host, HostConfig, MemoryStorage, Namespace, Server, Target, TargetConfig, Threads,
};
use offload_api::SegmentStream;
use offload_base::Seed;
use offload_bench_tls::connection::Mode;
use offload_host_stack::{TcpListener, TcpStream};
use offload_testbed::bed::{BedHost, ClockKind};
use offload_testbed::identity::{self, Randomness};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A disk's transport. Clones belong to the same disk.
#[derive(Clone, Debug)]
pub(crate) struct DiskWire {
    /// The mode of TLS below NVMe/TCP.
    mode: Mode,
    clock: ClockKind,
    seed: Seed,
    /// Number of handshakes, so that each draws different randomness.
    handshakes: Arc<AtomicU64>,
}

impl DiskWire {
    pub(crate) fn new(mode: Mode, clock: ClockKind, seed: Seed) -> DiskWire {
        DiskWire { mode, clock, seed, handshakes: Arc::default() }
    }

    /// Serves `storage` at `host`, in blocks of `block_bytes`, over at most `queues` I/O queues.
    pub(crate) fn serve(
        &self,
        host: &BedHost,
        storage: Arc<MemoryStorage>,
        block_bytes: u32,
        queues: u16,
        digests_by_device: bool,
    ) -> io::Result<()> {
        let mut target = Target::new(TargetConfig::default()).map_err(io::Error::other)?;
        target.add_subsystem(SUBSYSTEM, None).map_err(io::Error::other)?;
        let namespace = Namespace::new(1, block_bytes, storage).map_err(io::Error::other)?;
        target.add_namespace(SUBSYSTEM, namespace).map_err(io::Error::other)?;
        target.advertise((host.address(), PORT).into());
        let server = Server::new(target, host.runtime(), Arc::new(Threads::new(1)?));
        let server = if digests_by_device { server.with_digests_by_device() } else { server };
        let listener = host.stack().listen(PORT, usize::from(queues) + 1)?;
        let _accepts = host.spawn("disk", self.clone().accept(host.clone(), listener, server));
        Ok(())
    }

    /// Returns the disk that `far` serves, as `near` reaches it.
    pub(crate) async fn open(&self, near: &BedHost, far: &BedHost, config: HostConfig) -> io::Result<Disk> {
        let host = self.connect_host(near, far, config);
        host.ready().await.map_err(io::Error::other)?;
        host.disk(1).await.map_err(io::Error::other)
    }

    /// Begins to connect `near` to the target at `far`.
    pub(crate) fn connect_host(&self, near: &BedHost, far: &BedHost, config: HostConfig) -> Host {
        let opens = DiskConnector { wire: self.clone(), near: near.clone(), far: far.clone() };
        let (host, tasks) = Host::new(opens, near.runtime(), config);
        for task in tasks {
            let _runs_on = near.spawn("nvme", task);
        }
        host
    }

    async fn accept(self, host: BedHost, mut listener: TcpListener, server: Server) -> io::Result<()> {
        loop {
            let stream = listener.accept().await?;
            stream.set_nodelay(true);
            let (wire, server) = (self.clone(), server.clone());
            let _serves = host.spawn("serve", async move {
                if wire.mode == Mode::Tcp {
                    drop(server.serve(stream).await);
                    return;
                }
                // Each connection has its own randomness, so that a seeded run draws no secret twice.
                let config = Arc::new(identity::server_config(wire.randomness("server"), None));
                let Ok(stream) = ktls_offload::accept(stream, config).await else { return };
                drop(server.serve(wire.offloaded(stream)).await);
            });
        }
    }

    async fn connect(self, near: BedHost, far: BedHost) -> io::Result<Box<dyn SegmentStream>> {
        let stream = near.stack().connect(None, (far.address(), PORT).into()).await?;
        stream.set_nodelay(true);
        if self.mode == Mode::Tcp {
            return Ok(Box::new(stream));
        }
        let config = Arc::new(identity::client_config(self.randomness("client"), None));
        let stream = ktls_offload::connect(stream, config, identity::server_name()).await.map_err(io::Error::other)?;
        let mut stream = self.offloaded(stream);
        // Only data that the NIC decrypts can be placed, so offload must be active before the first command.
        stream.ready().await?;
        Ok(Box::new(stream))
    }

    fn randomness(&self, end: &str) -> Randomness {
        match self.clock {
            ClockKind::Virtual => {
                let number = self.handshakes.fetch_add(1, Ordering::Relaxed);
                Randomness::Seeded(self.seed.derive(&format!("{end} {number}")))
            }
            ClockKind::Real => Randomness::System,
        }
    }

    /// Offloads a stream to the NIC if the mode says so.
    fn offloaded(&self, mut stream: KtlsStream<TcpStream>) -> KtlsStream<TcpStream> {
        if self.mode == Mode::TlsNic {
            // The stream stays offloaded even on a bad wire, because the run measures exactly that.
            stream.set_retransmit_limit(None);
            stream.offload(ktls_offload::Offload::BOTH);
        }
        stream
    }
}

/// Connects streams to the target.
struct DiskConnector {
    wire: DiskWire,
    near: BedHost,
    far: BedHost,
}

impl Connector for DiskConnector {
    fn connect(&self) -> ConnectFuture {
        Box::pin(self.wire.clone().connect(self.near.clone(), self.far.clone()))
    }
}

/// The served subsystem.
pub(crate) const SUBSYSTEM: &str = "nqn.2026-01.example:disk";
const PORT: u16 = 4420;
