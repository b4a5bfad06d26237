//! A host and a target, each on an emulated host of a testbed in virtual time.

#![allow(dead_code, reason = "each test file uses its own part")]

use bytes::{Bytes, BytesMut};
use core::future::Future;
use core::time::Duration;
use nic_sim::jobs::WrappingKey;
use nic_sim::transforms::{SecretBytes, Tweak};
use nic_sim::wire::LinkConfig;
use nic_sim::wire::impairment::{Impairments, Reorder, Share};
use nic_sim::{NicConfig, NvmeTcpEngineConfig};
use nvme_tcp::host::{ConnectFuture, Connector, Host, HostConfig, HostIdentity, KeyedVolume};
use nvme_tcp::namespace::{MemoryStorage, Namespace};
use nvme_tcp::target::{Server, Target, TargetConfig, Threads, TransportConfig};
use offload_api::{SegmentStream, XtsStage};
use offload_base::counters::CounterSet;
use offload_base::{Seed, Timers};
use offload_host_stack::TcpConfig;
use offload_testbed::identity::{Randomness, client_config, server_config, server_name};
use offload_testbed::{BedHost, Capture, JoinHandle, Runtime, Testbed};
use resumable_aead::{DataUnits, XtsKey};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

pub(crate) const DISK: &str = "nqn.2026-01.test:disk";
const PORT: u16 = 4420;

/// Protocol layers below NVMe/TCP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Layers {
    Tcp,
    Tls,
    /// TLS with sealing and opening by the NICs.
    TlsNic,
    /// TLS by the NICs, with a key update every given number of records.
    TlsNicKeys(u64),
}

impl Layers {
    fn offload<S: SegmentStream>(self, stream: &mut ktls_offload::KtlsStream<S>) {
        if let Layers::TlsNicKeys(records) = self {
            stream.set_records_per_key(records);
        }
        if self != Layers::Tls {
            stream.set_retransmit_limit(None);
            stream.offload(ktls_offload::Offload::BOTH);
        }
    }
}

pub(crate) struct NvmeNetwork {
    bed: Testbed,
    layers: Layers,
    seed: Seed,
    server: Server,
    /// While set, streams are reset at once, accepted ones and existing ones.
    away: Arc<AtomicBool>,
    resets: Arc<Mutex<u64>>,
}

impl NvmeNetwork {
    /// Creates a target with 4 MiB in blocks of 512 bytes on host 0, and a host 1, connected by a wire with `loss`.
    pub(crate) fn new(seed: u64, transport: TransportConfig, layers: Layers, loss: f64) -> NvmeNetwork {
        NvmeNetwork::build(seed, transport, layers, loss, NicConfig::default(), None, 512)
    }

    /// Creates a testbed with another block size and the same capacity.
    pub(crate) fn of_blocks(
        seed: u64,
        block: u32,
        transport: TransportConfig,
        layers: Layers,
        loss: f64,
    ) -> NvmeNetwork {
        NvmeNetwork::build(seed, transport, layers, loss, NicConfig::default(), None, block)
    }

    /// Creates a testbed with a host NIC limited to `contexts` NVMe/TCP contexts.
    pub(crate) fn with_contexts(seed: u64, contexts: u32) -> NvmeNetwork {
        let nic = NicConfig {
            engines: NvmeTcpEngineConfig { contexts, ..NvmeTcpEngineConfig::default() }.into(),
            ..NicConfig::default()
        };
        NvmeNetwork::build(seed, TransportConfig::default(), Layers::Tcp, 0.0, nic, None, 512)
    }

    /// Creates a testbed with NICs that cache `contexts` contexts and keep the other contexts in host memory.
    pub(crate) fn with_cache(seed: u64, layers: Layers, contexts: usize) -> NvmeNetwork {
        let nic = NicConfig { context_cache_bytes: contexts * 208, ..NicConfig::default() };
        NvmeNetwork::build(seed, TransportConfig::default(), layers, 0.0, nic, None, 512)
    }

    /// Creates a testbed with NICs that cut and join up to 256 KiB and wait to join more received data.
    pub(crate) fn with_large_nics(seed: u64, layers: Layers, loss: f64) -> NvmeNetwork {
        let lro_wait = Duration::from_millis(1);
        let nic = NicConfig { tso_max_bytes: 256 << 10, lro_max_bytes: 256 << 10, lro_wait, ..NicConfig::default() };
        NvmeNetwork::build(seed, TransportConfig::default(), layers, loss, nic, None, 512)
    }

    /// Creates a testbed with a captured wire without loss.
    pub(crate) fn captured(seed: u64, transport: TransportConfig, capture: &Capture) -> NvmeNetwork {
        NvmeNetwork::build(seed, transport, Layers::Tcp, 0.0, NicConfig::default(), Some(capture.clone()), 512)
    }

    /// Creates a captured testbed over other layers.
    pub(crate) fn captured_over(
        seed: u64,
        transport: TransportConfig,
        layers: Layers,
        capture: &Capture,
    ) -> NvmeNetwork {
        NvmeNetwork::build(seed, transport, layers, 0.0, NicConfig::default(), Some(capture.clone()), 512)
    }

    fn build(
        seed: u64,
        transport: TransportConfig,
        layers: Layers,
        loss: f64,
        nic: NicConfig,
        capture: Option<Capture>,
        block: u32,
    ) -> NvmeNetwork {
        let seed = Seed(seed);
        // Delayed packets arrive out of order, which makes a device lose and regain its place in the stream.
        let reorder = Reorder { share: Share::new(loss).unwrap(), hold: Duration::from_micros(40) };
        let impairments =
            Impairments { loss: Share::new(loss).unwrap(), reorder: Some(reorder), ..Impairments::default() };
        let link = LinkConfig { rate: Some(2_000_000_000), impairments, ..LinkConfig::default() };
        let mut builder = Testbed::builder(seed)
            // Limits of the NIC's engines apply to the host only, so that the target always has contexts.
            .host("target", NicConfig { engines: NicConfig::default().engines, ..nic.clone() }, TcpConfig::default())
            .host("host", nic, TcpConfig::default())
            .wire(0, 1, link);
        if let Some(capture) = &capture {
            builder = builder.captured(capture);
        }
        let bed = builder.build().unwrap();
        let mut target = Target::new(TargetConfig { transport, ..TargetConfig::default() }).unwrap();
        target.add_subsystem(DISK, None).unwrap();
        let storage = Arc::new(MemoryStorage::new(8192 * 512));
        target.add_namespace(DISK, Namespace::new(1, block, storage).unwrap()).unwrap();
        target.advertise((bed.host(0).address(), PORT).into());
        let runtime = bed.host(0).runtime();
        let server = Server::new(target, runtime, Arc::new(Threads::new(1).unwrap())).with_digests_by_device();
        let (away, resets) = (Arc::new(AtomicBool::new(false)), Arc::default());
        let _task =
            bed.host(0).spawn("accept", accept(bed.host(0).clone(), server.clone(), layers, seed, away.clone()));
        NvmeNetwork { bed, layers, seed, server, away, resets }
    }

    pub(crate) fn host_config(&self) -> HostConfig {
        HostConfig::new(DISK, HostIdentity::random(&mut self.seed.stream("host")))
    }

    pub(crate) fn connector(&self) -> impl Connector + 'static {
        let (near, far) = (self.bed.host(1).clone(), self.bed.host(0).address());
        let (layers, seed, resets) = (self.layers, self.seed, self.resets.clone());
        NetworkConnector { near, far: (far, PORT).into(), layers, seed, count: Mutex::new(0), resets }
    }

    pub(crate) fn server(&self) -> &Server {
        &self.server
    }

    pub(crate) fn timers(&self) -> Arc<dyn Timers> {
        self.bed.host(1).runtime()
    }

    pub(crate) fn runtime(&self) -> Arc<dyn Runtime> {
        self.bed.host(1).runtime()
    }

    /// Runs `task` on the host.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let _task = self.bed.host(1).spawn("nvme", task);
    }

    /// Creates a host and runs its tasks.
    pub(crate) fn connect(&self, config: HostConfig) -> Host {
        let (host, tasks) = Host::new(self.connector(), self.timers(), config);
        tasks.into_iter().for_each(|task| self.spawn(task));
        host
    }

    pub(crate) fn run<T: Send + 'static>(&mut self, future: impl Future<Output = T> + Send + 'static) -> T {
        let running = self.bed.host(1).spawn("application", future);
        // Limits the virtual time, so that a test that hangs fails instead of running forever.
        self.bed.run_within(Duration::from_secs(3600), running)
    }

    pub(crate) fn counters(&self) -> CounterSet {
        self.bed.counters()
    }

    /// Returns the counters of the host alone.
    pub(crate) fn host_counters(&self) -> CounterSet {
        let mut set = CounterSet::default();
        self.bed.host(1).count(&mut set);
        set
    }

    /// Resets the host's NIC at these times, in milliseconds from now.
    pub(crate) fn reset_host_at(&self, times: impl IntoIterator<Item = u64>) -> JoinHandle<()> {
        self.reset_at(1, times, |_| ())
    }

    /// Resets the host's NIC at these times, and imports the key of `volume` again after each reset.
    pub(crate) fn reset_host_with(&self, volume: TestVolume, times: impl IntoIterator<Item = u64>) -> JoinHandle<()> {
        self.reset_at(1, times, move |host| volume.import(host))
    }

    /// Imports the key of `volume` into the host's NIC.
    pub(crate) fn import(&self, volume: &TestVolume) {
        volume.import(self.bed.host(1));
    }

    /// Returns a function that imports keys, for use in a task.
    pub(crate) fn importer(&self) -> impl Fn(&TestVolume) + Send + 'static {
        let host = self.bed.host(1).clone();
        move |volume| volume.import(&host)
    }

    /// Returns a function that removes a key from the host's NIC.
    pub(crate) fn forgetter(&self) -> impl Fn(XtsStage) + Send + 'static {
        let host = self.bed.host(1).clone();
        move |key| host.stack().with_device(|device| device.contexts().unwrap().remove(key.key))
    }

    /// Resets the target's NIC at these times.
    pub(crate) fn reset_target_at(&self, times: impl IntoIterator<Item = u64>) -> JoinHandle<()> {
        self.reset_at(0, times, |_| ())
    }

    fn reset_at(
        &self,
        host: usize,
        times: impl IntoIterator<Item = u64>,
        then: impl Fn(&BedHost) + Send + 'static,
    ) -> JoinHandle<()> {
        let (runtime, host) = (self.bed.host(host).runtime(), self.bed.host(host).clone());
        // Collected before the task starts, because the iterator need not be `Send`.
        let times: Vec<u64> = times.into_iter().collect();
        let start = runtime.now();
        host.clone().spawn("resetter", async move {
            for time in times {
                runtime.sleep_until(start + Duration::from_millis(time)).await;
                host.reset_device();
                // The driver notices the reset meanwhile.
                runtime.sleep(Duration::from_millis(1)).await;
                then(&host);
            }
        })
    }

    /// Resets the existing streams at these times, in milliseconds from now.
    pub(crate) fn cutter(&self, times: impl IntoIterator<Item = u64>) -> JoinHandle<()> {
        let (runtime, host, away) = (self.bed.host(0).runtime(), self.bed.host(0).clone(), self.away.clone());
        let times: Vec<u64> = times.into_iter().collect();
        let start = runtime.now();
        host.spawn("cutter", async move {
            for time in times {
                runtime.sleep_until(start + Duration::from_millis(time)).await;
                // Long enough for every serving task to see the flag, which is polled each millisecond.
                away.store(true, Ordering::Relaxed);
                runtime.sleep(Duration::from_millis(2)).await;
                away.store(false, Ordering::Relaxed);
            }
        })
    }

    /// Makes the target unreachable permanently after `delay`.
    pub(crate) fn go_away_after(&self, delay: Duration) -> JoinHandle<()> {
        let (runtime, away) = (self.bed.host(0).runtime(), self.away.clone());
        self.bed.host(0).spawn("leaver", async move {
            runtime.sleep(delay).await;
            away.store(true, Ordering::Relaxed);
            runtime.sleep(Duration::from_millis(5)).await;
        })
    }
}

/// A volume of tenant 7. Its whole key exists in memory only where it is used.
#[derive(Clone)]
pub(crate) struct TestVolume {
    pub(crate) number: u64,
    pub(crate) block: usize,
    pub(crate) keyed: KeyedVolume,
}

pub(crate) const TENANT: u32 = 7;

impl TestVolume {
    pub(crate) fn new(number: u64, block: usize) -> TestVolume {
        let key = XtsKey::new(TestVolume::key(number).bytes()).unwrap();
        let keyed = resumable_aead::Volume::new(key, DataUnits::new(block).unwrap()).into();
        TestVolume { number, block, keyed }
    }

    pub(crate) fn key_byte(number: u64, at: usize) -> u8 {
        ((number ^ 0x5ca1_ab1e).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(at as u32 * 7) >> 13) as u8 ^ at as u8
    }

    fn key(number: u64) -> SecretBytes {
        SecretBytes::new((0..64).map(|at| TestVolume::key_byte(number, at)).collect())
    }

    /// Imports the key into the NIC of `host`, and stores its handle in the volume.
    fn import(&self, host: &BedHost) {
        let tenant = WrappingKey { tenant: TENANT, key: SecretBytes::new(vec![9; 32]) };
        let key = host.stack().with_device(|device| {
            let device = device.contexts().unwrap();
            tenant.import(device, self.number, &TestVolume::key(self.number), self.block as u32, Tweak::Unit).unwrap()
        });
        self.keyed.set_device_key(Some(key));
    }

    /// Encrypts `data` as the medium must hold them from block `first` on.
    pub(crate) fn encrypt(&self, first: u64, data: &mut [u8]) {
        self.keyed.volume().encrypt(first, 0, data).unwrap();
    }
}

struct NetworkConnector {
    near: BedHost,
    far: std::net::SocketAddr,
    layers: Layers,
    seed: Seed,
    /// Number of connections, so that no two handshakes draw the same random numbers.
    count: Mutex<u64>,
    resets: Arc<Mutex<u64>>,
}

impl Connector for NetworkConnector {
    fn connect(&self) -> ConnectFuture {
        let number = {
            let mut count = self.count.lock().unwrap();
            *count += 1;
            *count
        };
        let (near, far, layers) = (self.near.clone(), self.far, self.layers);
        // Each connection has its own randomness, or two sessions would share keys.
        let seed = self.seed.derive(&format!("client {number}"));
        Box::pin(async move {
            let stream = near.stack().connect(None, far).await?;
            stream.set_nodelay(true);
            Ok(match layers {
                Layers::Tcp => Box::new(stream) as Box<dyn SegmentStream>,
                Layers::Tls | Layers::TlsNic | Layers::TlsNicKeys(_) => {
                    let config = Arc::new(client_config(Randomness::Seeded(seed), None));
                    let mut stream = ktls_offload::connect(stream, config, server_name()).await?;
                    layers.offload(&mut stream);
                    stream.ready().await?;
                    Box::new(stream)
                }
            })
        })
    }
}

async fn accept(host: BedHost, server: Server, layers: Layers, seed: Seed, away: Arc<AtomicBool>) {
    let mut listener = host.stack().listen(PORT, 64).unwrap();
    for number in 0.. {
        let Ok(stream) = listener.accept().await else { continue };
        stream.set_nodelay(true);
        let (server, away, runtime) = (server.clone(), away.clone(), host.runtime());
        let seed = seed.derive(&format!("server {number}"));
        let _task = host.spawn("serve", async move {
            let serving = async move {
                match layers {
                    Layers::Tcp => drop(server.serve(stream).await),
                    Layers::Tls | Layers::TlsNic | Layers::TlsNicKeys(_) => {
                        let config = Arc::new(server_config(Randomness::Seeded(seed), None));
                        let Ok(mut stream) = ktls_offload::accept(stream, config).await else { return };
                        layers.offload(&mut stream);
                        drop(server.serve(stream).await);
                    }
                }
            };
            let watching = async move {
                while !away.load(Ordering::Relaxed) {
                    runtime.sleep(Duration::from_millis(1)).await;
                }
            };
            futures_util::future::select(Box::pin(serving), Box::pin(watching)).await;
        });
    }
}

/// Returns `count` different blocks of 512 bytes.
pub(crate) fn blocks(count: usize) -> Bytes {
    let mut data = BytesMut::zeroed(count * 512);
    Seed(count as u64).stream("blocks").fill(&mut data);
    data.freeze()
}
