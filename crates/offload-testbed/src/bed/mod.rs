//! Hosts with NICs, joined by wires, in virtual or in real time.
//!
//! Virtual time: all tasks run in one executor on the thread that calls [`Testbed::run`]. Real time: each device with
//! its wire, and each host with its applications, is assigned to one of as many threads as the machine has cores, on
//! one clock. tokio serves applications that want its sockets or timers.

mod accelerator;
mod builder;
mod eswitch;
mod nic;

use accelerator::Accelerator;
pub use builder::Builder;
pub use eswitch::Eswitch;

use crate::domain::in_domain;
use crate::executor::VirtualTime;
use crate::fabric::Cable;
use crate::real_threads::RealThreads;
use crate::runtime::{JoinHandle, Runtime};
use crate::tokio_runtime;
use core::fmt;
use core::future::Future;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use core::time::Duration;
use nic::HostNic;
use nic_sim::dma::DmaBytes;
use offload_api::Prefix;
use offload_base::cost::{CpuMeter, Domain};
use offload_base::counters::CounterSet;
use offload_base::{Instant, RealClock, Seed};
use offload_host_stack::Host;
use offload_jobs::SharedQueue;
use std::borrow::Cow;
use std::io;
use std::sync::Arc;

/// The clock of a testbed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ClockKind {
    /// Virtual time, from event to event: every run is the same.
    #[default]
    Virtual,
    /// The machine's clock.
    Real,
}

/// Hosts with NICs, joined by wires, and the executor that runs them.
///
/// ```
/// use offload_host_stack::TcpConfig;
/// use nic_sim::NicConfig;
/// use nic_sim::wire::LinkConfig;
/// use offload_base::Seed;
/// use offload_testbed::Testbed;
/// use tokio::io::{AsyncReadExt, AsyncWriteExt};
///
/// let mut bed = Testbed::builder(Seed(1))
///     .host("server", NicConfig::default(), TcpConfig::default())
///     .host("client", NicConfig::default(), TcpConfig::default())
///     .wire(0, 1, LinkConfig::default())
///     .build()?;
/// let (server, client) = (bed.host(0).clone(), bed.host(1).clone());
///
/// let mut listener = server.stack().listen(7, 8)?;
/// let echo = server.spawn("echo", async move {
///     let mut stream = listener.accept().await?;
///     let mut word = [0; 5];
///     stream.read_exact(&mut word).await?;
///     stream.write_all(&word).await
/// });
/// let to = (server.address(), 7).into();
/// let heard = client.clone().spawn("client", async move {
///     let mut stream = client.stack().connect(None, to).await?;
///     stream.write_all(b"hello").await?;
///     let mut word = [0; 5];
///     stream.read_exact(&mut word).await?;
///     std::io::Result::Ok(word)
/// });
/// assert_eq!(&bed.run(heard)?, b"hello");
/// bed.run(echo)?;
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct Testbed {
    hosts: Vec<BedHost>,
    cables: Vec<Cable>,
    engine: BedExecutor,
}

impl Testbed {
    /// Returns a builder with randomness from `seed`. Only secrets of a host that is attached to an
    /// [outside](Builder::attach) peer in real time do not come from the seed.
    pub fn builder(seed: Seed) -> Builder {
        Builder::new(seed)
    }

    /// Returns a host, numbered in the order of [`Builder::host`] calls.
    ///
    /// # Panics
    /// If the host does not exist.
    pub fn host(&self, number: usize) -> &BedHost {
        &self.hosts[number]
    }

    /// Returns a wire, in the order of the builder's calls; several wires between two hosts count one by one. The cable
    /// can change the impairments in one or both directions.
    ///
    /// # Panics
    /// If the wire does not exist.
    pub fn cable(&self, number: usize) -> &Cable {
        &self.cables[number]
    }

    /// Runs `future` to its end, and all other tasks meanwhile. In virtual time nothing happens between two calls.
    pub fn run<T>(&mut self, future: impl Future<Output = T>) -> T {
        match &mut self.engine {
            BedExecutor::Virtual(run) => run.block_on(future),
            BedExecutor::Real { tokio, .. } => tokio.block_on(future),
        }
    }

    /// Runs `future`, which must end within `span` of virtual time. Without a limit, a run could continue for ever if
    /// one task waits for ever while timers keep firing. In real time `span` has no effect.
    ///
    /// # Panics
    /// If `future` has not ended by then; the message names the waiting tasks.
    pub fn run_within<T>(&mut self, span: Duration, future: impl Future<Output = T>) -> T {
        match &mut self.engine {
            BedExecutor::Virtual(run) => run.block_within(span, future),
            BedExecutor::Real { tokio, .. } => tokio.block_on(future),
        }
    }

    /// Returns the runtime of the first host. [`BedHost::runtime`] returns the runtime of any host.
    pub fn runtime(&self) -> Arc<dyn Runtime> {
        self.engine.host_runtime(0)
    }

    /// Returns the present instant.
    pub fn now(&self) -> Instant {
        self.engine.host_runtime(0).now()
    }

    /// Returns the counters of all hosts, drivers, devices and wires, added up by name.
    pub fn counters(&self) -> CounterSet {
        let mut set = CounterSet::default();
        for host in &self.hosts {
            host.count(&mut set);
        }
        for cable in &self.cables {
            cable.count(&mut set);
        }
        set
    }

    /// Returns the bytes that all devices moved over PCIe.
    pub fn dma(&self) -> DmaBytes {
        let mut all = DmaBytes::default();
        for host in &self.hosts {
            all += host.dma();
        }
        all
    }
}

/// A host of a testbed. A clone refers to the same host.
///
/// See [`Testbed`] for an example.
#[derive(Clone)]
pub struct BedHost {
    name: String,
    address: Ipv4Addr,
    ipv6: Ipv6Addr,
    link_local: Ipv6Addr,
    mac: [u8; 6],
    domain: Domain,
    shards: Arc<[Host]>,
    nic: HostNic,
    eswitch: Option<Eswitch>,
    accelerator: Option<Accelerator>,
    runtime: Arc<dyn Runtime>,
}

impl BedHost {
    /// Returns the TCP/IP stack; the first shard if there are several.
    pub fn stack(&self) -> &Host {
        &self.shards[0]
    }

    /// Returns the shards of the TCP/IP stack, one for each queue of the NIC
    /// ([`NicConfig::queues`](nic_sim::NicConfig::queues)).
    ///
    /// ```
    /// use offload_host_stack::TcpConfig;
    /// use nic_sim::NicConfig;
    /// use offload_base::Seed;
    /// use offload_testbed::Testbed;
    ///
    /// let nic = NicConfig { queues: 4, ..NicConfig::default() };
    /// let bed = Testbed::builder(Seed(1)).host("server", nic, TcpConfig::default()).build()?;
    /// let listeners: std::io::Result<Vec<_>> = bed.host(0).shards().iter().map(|shard| shard.listen(443, 128)).collect();
    /// assert_eq!(listeners?.len(), 4);
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn shards(&self) -> &[Host] {
        &self.shards
    }

    /// Returns the IPv4 address.
    pub fn address(&self) -> Ipv4Addr {
        self.address
    }

    /// Returns the Ethernet address of the NIC.
    pub fn mac(&self) -> [u8; 6] {
        self.mac
    }

    /// Returns the IPv6 address.
    pub fn ipv6_address(&self) -> Ipv6Addr {
        self.ipv6
    }

    /// Returns the link-local IPv6 address (RFC 4291 2.5.6).
    pub fn link_local_address(&self) -> Ipv6Addr {
        self.link_local
    }

    /// Returns the domain that pays for the time of the host's tasks.
    pub fn domain(&self) -> Domain {
        self.domain
    }

    /// Spawns a task on this host and charges its time to the host.
    pub fn spawn<T: Send + 'static>(
        &self,
        name: impl Into<Cow<'static, str>>,
        future: impl Future<Output = T> + Send + 'static,
    ) -> JoinHandle<T> {
        let name: Cow<'static, str> = format!("{}: {}", self.name, name.into()).into();
        self.runtime.spawn(name, in_domain(self.domain(), future))
    }

    /// Returns the runtime of this host.
    pub fn runtime(&self) -> Arc<dyn Runtime> {
        self.runtime.clone()
    }

    /// Replaces the routes of all shards: see [`Host::set_routes`].
    pub fn set_routes(&self, routes: &[(Prefix, Option<IpAddr>)]) {
        self.shards.iter().for_each(|shard| shard.set_routes(routes.to_vec()));
    }

    /// Returns the present instant.
    pub fn now(&self) -> Instant {
        self.runtime.now()
    }

    /// Returns the manager of the NIC's switch. `None` if the NIC has no switch.
    pub fn eswitch(&self) -> Option<&Eswitch> {
        self.eswitch.as_ref()
    }

    /// Resets the NIC, which loses all contexts. For a virtual machine, only its function is reset.
    pub fn reset_device(&self) {
        self.nic.reset(self.runtime.now());
    }

    /// Removes the host's [accelerator](Builder::accelerator), as if the device's thread had died. Pending and later
    /// jobs come back as [`Gone`](offload_api::JobStatus::Gone). Does nothing without an accelerator.
    pub fn lose_accelerator(&self) {
        if let Some(accelerator) = &self.accelerator {
            accelerator.lose();
        }
    }

    /// Returns the number of contexts on the NIC.
    pub fn device_contexts(&self) -> usize {
        self.nic.contexts()
    }

    /// Returns the counters of each queue of the NIC, engines included.
    pub fn queue_counters(&self) -> Vec<CounterSet> {
        self.nic.queue_counters()
    }

    /// Returns the queue of the [accelerator](Builder::accelerator) beside the CPU; the first queue if there are
    /// several. `None` without an accelerator.
    ///
    /// ```
    /// use bytes::BytesMut;
    /// use nic_sim::NicConfig;
    /// use nic_sim::lookaside::LookasideConfig;
    /// use offload_api::Job;
    /// use offload_base::Seed;
    /// use offload_host_stack::TcpConfig;
    /// use offload_testbed::Testbed;
    /// use offload_transforms::Transform;
    ///
    /// let mut bed = Testbed::builder(Seed(1))
    ///     .host("server", NicConfig::default(), TcpConfig::default())
    ///     .accelerator(LookasideConfig::default())
    ///     .build()?;
    /// let mut client = bed.host(0).accelerator().expect("it has one").client();
    /// let copy = client.open(Transform::Copy).map_err(|(refused, _)| std::io::Error::other(refused))?;
    /// let done = bed.run(client.run(Job::new(copy, "bytes".into(), BytesMut::with_capacity(5))));
    /// assert_eq!(&done.target[..], b"bytes");
    /// // A unit's latency, a doorbell, DMA to and fro, and the interrupt that tells the host.
    /// assert_eq!((bed.now().as_micros(), bed.dma().job_target), (64, 5));
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn accelerator(&self) -> Option<&SharedQueue> {
        self.accelerator.as_ref().map(Accelerator::queue)
    }

    /// Returns the bytes that the NIC and the accelerator moved over PCIe.
    pub fn dma(&self) -> DmaBytes {
        let mut all = self.nic.dma();
        if let Some(accelerator) = &self.accelerator {
            all += accelerator.dma();
        }
        all
    }

    /// Adds the counters of stack, driver, device and accelerator to `set`.
    pub fn count(&self, set: &mut CounterSet) {
        for shard in &*self.shards {
            set.add(&shard.counters());
            shard.with_device(|driver| driver.count(set));
        }
        self.nic.count(set);
        if let Some(accelerator) = &self.accelerator {
            accelerator.count(set);
        }
    }
}

impl fmt::Debug for BedHost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BedHost").field("name", &self.name).field("address", &self.address).finish_non_exhaustive()
    }
}

/// The executor of a testbed.
#[derive(Debug)]
enum BedExecutor {
    Virtual(VirtualTime),
    Real { threads: RealThreads, tokio: tokio::runtime::Runtime },
}

impl BedExecutor {
    fn start(clock: ClockKind, meter: Option<&CpuMeter>, hosts: usize) -> io::Result<BedExecutor> {
        match clock {
            ClockKind::Virtual => Ok(BedExecutor::Virtual(VirtualTime::new())),
            ClockKind::Real => {
                // One worker thread: tokio serves sockets and timers only, the tasks run on the testbed's own threads.
                let tokio = tokio_runtime::start(1, meter.cloned())?;
                let threads = RealThreads::start(tokio.handle(), RealClock::new(), meter, hosts)?;
                Ok(BedExecutor::Real { threads, tokio })
            }
        }
    }

    fn host_runtime(&self, number: usize) -> Arc<dyn Runtime> {
        match self {
            BedExecutor::Virtual(run) => Arc::new(run.handle()),
            BedExecutor::Real { threads, .. } => Arc::new(threads.host(number)),
        }
    }

    fn device_runtime(&self, number: usize) -> Arc<dyn Runtime> {
        match self {
            BedExecutor::Virtual(run) => Arc::new(run.handle()),
            BedExecutor::Real { threads, .. } => Arc::new(threads.device(number)),
        }
    }

    /// Returns whether two devices run on different threads.
    fn parts(&self, one: usize, other: usize) -> bool {
        match self {
            BedExecutor::Virtual(_) => false,
            BedExecutor::Real { threads, .. } => threads.parts_devices(one, other),
        }
    }
}
