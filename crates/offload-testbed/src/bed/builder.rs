//! The builder of a testbed: hosts, NICs, wires, and the order in which they are put together.

use super::accelerator::Accelerator;
use super::nic::HostNic;
use super::{BedExecutor, BedHost, ClockKind, Eswitch, Testbed};
use crate::capture::Capture;
use crate::fabric::{Cable, MAX_LANES, Station, connect_lanes, join_threads, link_local};
use crate::runtime::{Runtime, lock};
use crate::trace::{TracedDevice, TracedNic, TracedPort, Tracer};
use core::fmt;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use core::task::Waker;
use nic_sim::engine::Engines;
use nic_sim::frame::Frame;
use nic_sim::lookaside::LookasideConfig;
use nic_sim::switch::{FunctionConfig, Mac};
use nic_sim::wire::{FrameRecorder, Link, LinkConfig, Port};
use nic_sim::{Driver, NicConfig, SwitchConfig, Vport, function_with, multi_queue_nic_with, switched_nic};
use offload_api::{NetDevice, Prefix};
use offload_base::cost::{CpuMeter, Domain};
use offload_base::{Instant, RandomSource, Seed};
use offload_host_stack::{Config, Host, Ipv6Config, TcpConfig};
use std::io;
use std::sync::{Arc, Mutex};

/// A builder of testbeds.
///
/// See [`Testbed`] for an example.
#[derive(Debug)]
pub struct Builder {
    seed: Seed,
    /// Whether even hosts with an outside peer derive their secrets from the seed.
    guessable: bool,
    clock: ClockKind,
    meter: Option<CpuMeter>,
    tracer: Option<Tracer>,
    hosts: Vec<HostPlan>,
    machines: Vec<OutsideMachine>,
    wires: Vec<Wire>,
}

/// An outside virtual machine at a function of a host's NIC.
struct OutsideMachine {
    host: usize,
    at: Vport,
    config: FunctionConfig,
    port: Box<dyn Port>,
}

impl fmt::Debug for OutsideMachine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OutsideMachine").field("host", &self.host).field("at", &self.at).finish_non_exhaustive()
    }
}

#[derive(Debug)]
struct HostPlan {
    name: String,
    nic: NicConfig,
    tcp: TcpConfig,
    address: Ipv4Addr,
    gateway: Option<Ipv4Addr>,
    routes: Vec<(Prefix, Option<IpAddr>)>,
    ipv6: Ipv6Config,
    /// Engines added to the NIC's own.
    engines: Option<EngineRegistrar>,
    /// The layer between the drivers and the stack.
    layer: Option<DeviceLayer>,
    /// The layer between the NIC and the wire.
    port: Option<PortLayer>,
    /// The accelerator beside the CPU, with added engines.
    accelerator: Option<(LookasideConfig, EngineRegistrar)>,
    /// Outside neighbours; the other hosts are neighbours anyway.
    neighbours: Vec<(IpAddr, [u8; 6])>,
    place: NicLocation,
    /// Domain that pays for the time of the host's tasks.
    domain: Domain,
}

/// Location of a host's PCI function.
#[derive(Clone, Copy, Debug)]
enum NicLocation {
    /// A NIC of the host's own, without a switch.
    Own,
    /// A NIC of the host's own, with a switch.
    Switched(SwitchConfig),
    /// A port of another host's NIC.
    At { host: usize, port: Vport },
}

/// A function that adds engines to a NIC's own.
#[derive(Clone)]
struct EngineRegistrar(Arc<dyn Fn(&mut Engines) + Send + Sync>);

impl fmt::Debug for EngineRegistrar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("EngineRegistrar")
    }
}

/// A function that wraps the drivers of a NIC's queues before the stack gets them.
#[derive(Clone)]
struct DeviceLayer(Arc<Around>);

type Around = dyn Fn(Vec<Box<dyn NetDevice>>) -> Vec<Box<dyn NetDevice>> + Send + Sync;

impl fmt::Debug for DeviceLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("DeviceLayer")
    }
}

/// A function that wraps a NIC before the wire gets it.
#[derive(Clone)]
struct PortLayer(Arc<AroundPort>);

type AroundPort = dyn Fn(Box<dyn Port>) -> Box<dyn Port> + Send + Sync;

impl fmt::Debug for PortLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PortLayer")
    }
}

#[derive(Debug)]
struct Wire {
    left: usize,
    right: WireEnd,
    /// One link, or one for each address of a host.
    links: Vec<LinkConfig>,
    capture: Option<Capture>,
    recorder: Option<FrameRecorder>,
}

/// The far end of a wire.
#[derive(Debug)]
enum WireEnd {
    Host(usize),
    Outside(Station),
}

impl Builder {
    pub(super) fn new(seed: Seed) -> Builder {
        Builder {
            seed,
            guessable: false,
            clock: ClockKind::Virtual,
            meter: None,
            tracer: None,
            hosts: Vec::new(),
            machines: Vec::new(),
            wires: Vec::new(),
        }
    }

    /// Chooses the clock; the default is virtual time.
    #[must_use]
    pub fn clock(mut self, clock: ClockKind) -> Builder {
        self.clock = clock;
        self
    }

    /// Derives all secrets from the seed, including the secrets of hosts with an [outside](Self::attach) peer in real
    /// time: initial sequence numbers, ports, cookies and hash keys are then the same in every run. Anybody who knows
    /// the seed can break into the host's connections. Without this call, such secrets come from the system's
    /// generator.
    #[must_use]
    pub fn guessable(mut self) -> Builder {
        self.guessable = true;
        self
    }

    /// Meters every thread of the run.
    #[cfg(feature = "meter")]
    #[must_use]
    pub fn meter(mut self, meter: &CpuMeter) -> Builder {
        self.meter = Some(meter.clone());
        self
    }

    /// Writes a timeline of all events of hosts, NICs and wires. Does nothing without a tracer. The meter's times of
    /// hosts and devices then include the tracer's own time.
    #[must_use]
    pub fn traced<'a>(mut self, tracer: impl Into<Option<&'a Tracer>>) -> Builder {
        self.tracer = tracer.into().cloned();
        self
    }

    /// Adds a host with a NIC; hosts are numbered in the order of these calls. Host `n`, counted from 0, has the
    /// addresses 10.0.0.`n + 1` and fd00::`n + 1`, and its NIC a matching Ethernet address. From the 255th host on, the
    /// third byte of the IPv4 address increases.
    ///
    /// # Panics
    /// At the 2001st host.
    #[must_use]
    pub fn host(mut self, name: &str, nic: NicConfig, tcp: TcpConfig) -> Builder {
        assert!(self.hosts.len() < MAX_HOSTS, "a testbed has at most {MAX_HOSTS} hosts");
        // The last byte of an address is neither 0 (network) nor 255 (broadcast).
        let (block, last) = ((self.hosts.len() / HOSTS_A_BLOCK) as u8, (self.hosts.len() % HOSTS_A_BLOCK + 1) as u8);
        let nic = NicConfig { mac: [0x02, 0, 0, 0, block, last], ..nic };
        let address = Ipv4Addr::new(10, 0, block, last);
        let ipv6 = Ipv6Config::new(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, self.hosts.len() as u16 + 1));
        let domain = Domain::Host(u8::try_from(self.hosts.len()).unwrap_or(u8::MAX));
        self.hosts.push(HostPlan {
            name: name.into(),
            nic,
            tcp,
            address,
            gateway: None,
            routes: Vec::new(),
            ipv6,
            engines: None,
            layer: None,
            port: None,
            accelerator: None,
            neighbours: Vec::new(),
            place: NicLocation::Own,
            domain,
        });
        self
    }

    /// Gives the last host's NIC a switch, initially in legacy mode. [`BedHost::eswitch`] manages the switch.
    ///
    /// # Panics
    /// If no host exists yet, or engines were added to its NIC.
    #[must_use]
    pub fn switched(mut self, switch: SwitchConfig) -> Builder {
        // A switched NIC builds its functions itself, without the added engines.
        assert!(self.last_host().engines.is_none(), "the host's function of a NIC with a switch has the usual engines");
        self.last_host().place = NicLocation::Switched(switch);
        self
    }

    /// Adds a virtual machine: a host at the next virtual function of a switched NIC. The machine has a stack, a driver
    /// and addresses like any host and is numbered among the hosts; `nic` configures its function.
    ///
    /// See [`Eswitch`](super::Eswitch) for an example.
    ///
    /// # Panics
    /// If `host` has no switch, at the 257th machine of one host, and where [`host`](Self::host) panics.
    #[must_use]
    pub fn vm(mut self, host: usize, name: &str, nic: NicConfig, tcp: TcpConfig) -> Builder {
        let switched = self.hosts.get(host).is_some_and(|plan| matches!(plan.place, NicLocation::Switched(_)));
        assert!(switched, "a virtual machine needs a host whose NIC has a switch");
        let is_there = |plan: &&HostPlan| matches!(plan.place, NicLocation::At { host: of, .. } if of == host);
        let number = self.hosts.iter().filter(is_there).count() as u16;
        assert!(number < Vport::FUNCTIONS, "a NIC has at most {} virtual functions", Vport::FUNCTIONS);
        self = self.host(name, nic, tcp);
        self.last_host().place = NicLocation::At { host, port: Vport::Virtual(number) };
        self
    }

    /// Puts an outside virtual machine, such as a QEMU behind a [`DgramPort`](crate::attach::DgramPort), at a function
    /// of the last host's switched NIC. Frames pass unchanged.
    ///
    /// ```
    /// # use core::task::Waker;
    /// # use nic_sim::frame::Frame;
    /// # use nic_sim::wire::Port;
    /// # use offload_base::Instant;
    /// use nic_sim::switch::{FunctionConfig, Mac};
    /// use nic_sim::{NicConfig, SwitchConfig, Vport};
    /// use offload_base::Seed;
    /// use offload_host_stack::TcpConfig;
    /// use offload_testbed::Testbed;
    /// # struct OutsideMachine;
    /// # impl Port for OutsideMachine {
    /// #     fn receive_frame(&mut self, _: Instant, _: Frame) {}
    /// #     fn poll_frame(&mut self, _: Instant) -> Option<Frame> { None }
    /// #     fn process(&mut self, _: Instant) {}
    /// #     fn next_event(&self) -> Option<Instant> { None }
    /// #     fn register_doorbell(&mut self, _: &Waker) {}
    /// # }
    ///
    /// let bed = Testbed::builder(Seed(1))
    ///     .host("hypervisor", NicConfig::default(), TcpConfig::default())
    ///     .switched(SwitchConfig::default())
    ///     .machine(Vport::Virtual(0), FunctionConfig::new(Mac([2, 0, 0, 0, 1, 0])), OutsideMachine)
    ///     .build()?;
    /// assert!(bed.host(0).eswitch().is_some());
    /// # Ok::<(), std::io::Error>(())
    /// ```
    ///
    /// # Panics
    /// If no host exists yet, or its NIC has no switch.
    #[must_use]
    pub fn machine(mut self, at: Vport, config: FunctionConfig, port: impl Port + 'static) -> Builder {
        assert!(
            matches!(self.last_host().place, NicLocation::Switched(_)),
            "a virtual machine needs a NIC with a switch"
        );
        let host = self.hosts.len() - 1;
        self.machines.push(OutsideMachine { host, at, config, port: Box::new(port) });
        self
    }

    /// Charges the time of the last host's tasks to `domain` instead of the host's own domain.
    ///
    /// # Panics
    /// If no host exists yet.
    #[must_use]
    pub fn charged_to(mut self, domain: Domain) -> Builder {
        self.last_host().domain = domain;
        self
    }

    /// Gives the last host another IPv4 address.
    ///
    /// # Panics
    /// If no host exists yet.
    #[must_use]
    pub fn address(mut self, address: Ipv4Addr) -> Builder {
        self.last_host().address = address;
        self
    }

    /// Sets the last host's IPv4 gateway. [`ipv6`](Self::ipv6) sets the IPv6 gateway.
    ///
    /// # Panics
    /// If no host exists yet.
    #[must_use]
    pub fn gateway(mut self, gateway: Ipv4Addr) -> Builder {
        self.last_host().gateway = Some(gateway);
        self
    }

    /// Adds a route of the last host: see [`Config::with_route`].
    ///
    /// # Panics
    /// If no host exists yet.
    #[must_use]
    pub fn route(mut self, destinations: Prefix, via: Option<IpAddr>) -> Builder {
        self.last_host().routes.push((destinations, via));
        self
    }

    /// Sets the last host's IPv6 address and other IPv6 settings.
    ///
    /// # Panics
    /// If no host exists yet.
    #[must_use]
    pub fn ipv6(mut self, ipv6: Ipv6Config) -> Builder {
        self.last_host().ipv6 = ipv6;
        self
    }

    /// Adds engines to each queue of the last host's NIC.
    ///
    /// # Panics
    /// If no host exists yet.
    #[must_use]
    pub fn engines(mut self, add: impl Fn(&mut Engines) + Send + Sync + 'static) -> Builder {
        self.last_host().engines = Some(EngineRegistrar(Arc::new(add)));
        self
    }

    /// Puts a layer, such as IPsec, between the last host's stack and its driver: a device around a device. `around`
    /// receives the drivers of all queues at once, because a layer may keep state for all queues, for example the
    /// counters of an SA. It returns as many devices, in the same order.
    ///
    /// # Panics
    /// If no host exists yet.
    #[must_use]
    pub fn layer(
        mut self,
        around: impl Fn(Vec<Box<dyn NetDevice>>) -> Vec<Box<dyn NetDevice>> + Send + Sync + 'static,
    ) -> Builder {
        self.last_host().layer = Some(DeviceLayer(Arc::new(around)));
        self
    }

    /// Puts a layer, such as services that delay packets, between the last host's NIC and its wire: a port around a
    /// port. Does nothing for a virtual machine, because a virtual function has no port.
    ///
    /// ```
    /// use offload_host_stack::TcpConfig;
    /// use nic_sim::NicConfig;
    /// use nic_sim::wire::{LinkConfig, Port};
    /// use offload_base::Seed;
    /// use offload_testbed::Testbed;
    /// use std::sync::{Arc, Mutex};
    ///
    /// // A port that somebody else looks at as well.
    /// let seen = Arc::new(Mutex::new(None));
    /// let place = seen.clone();
    /// let bed = Testbed::builder(Seed(1))
    ///     .host("server", NicConfig::default(), TcpConfig::default())
    ///     .port(move |port| {
    ///         let port = Arc::new(Mutex::new(port));
    ///         *place.lock().unwrap() = Some(port.clone());
    ///         Box::new(port)
    ///     })
    ///     .host("client", NicConfig::default(), TcpConfig::default())
    ///     .wire(0, 1, LinkConfig::default())
    ///     .build()?;
    /// assert!(seen.lock().unwrap().is_some());
    /// # drop(bed);
    /// # Ok::<(), std::io::Error>(())
    /// ```
    ///
    /// # Panics
    /// If no host exists yet.
    #[must_use]
    pub fn port(mut self, around: impl Fn(Box<dyn Port>) -> Box<dyn Port> + Send + Sync + 'static) -> Builder {
        self.last_host().port = Some(PortLayer(Arc::new(around)));
        self
    }

    /// Puts an accelerator beside the last host's CPU. It runs jobs from memory to memory: see
    /// [`BedHost::accelerator`].
    ///
    /// # Panics
    /// If no host exists yet.
    #[must_use]
    pub fn accelerator(self, config: LookasideConfig) -> Builder {
        self.accelerator_with(config, |_| ())
    }

    /// Adds an accelerator as [`accelerator`](Self::accelerator) does, with further engines.
    ///
    /// # Panics
    /// If no host exists yet.
    #[must_use]
    pub fn accelerator_with(
        mut self,
        config: LookasideConfig,
        add: impl Fn(&mut Engines) + Send + Sync + 'static,
    ) -> Builder {
        self.last_host().accelerator = Some((config, EngineRegistrar(Arc::new(add))));
        self
    }

    /// Adds an outside neighbour, with Ethernet address `mac`, to the last host's table.
    ///
    /// # Panics
    /// If no host exists yet.
    #[must_use]
    pub fn neighbour(mut self, address: impl Into<IpAddr>, mac: [u8; 6]) -> Builder {
        self.last_host().neighbours.push((address.into(), mac));
        self
    }

    /// Joins the NICs of two hosts by a wire with equal directions.
    #[must_use]
    pub fn wire(mut self, left: usize, right: usize, link: LinkConfig) -> Builder {
        self.wires.push(Wire { left, right: WireEnd::Host(right), links: vec![link], capture: None, recorder: None });
        self
    }

    /// Joins the NICs of two hosts by several wires, each with its own rate, delay and loss. Packets to a host's IPv4
    /// address take the first wire, packets to its IPv6 address the second, packets to its
    /// [link-local](BedHost::link_local_address) address the third. The wires are [cables](Testbed::cable) in that
    /// order. The NIC sends in one sequence, so a wire that [holds back](nic_sim::wire::Overflow::HoldBack) also delays
    /// packets for the other wires.
    ///
    /// ```
    /// use offload_host_stack::TcpConfig;
    /// use nic_sim::NicConfig;
    /// use nic_sim::wire::LinkConfig;
    /// use offload_base::Seed;
    /// use offload_testbed::Testbed;
    ///
    /// let slow = LinkConfig { rate: Some(1_000_000_000), ..LinkConfig::default() };
    /// let bed = Testbed::builder(Seed(1))
    ///     .host("server", NicConfig::default(), TcpConfig::default())
    ///     .host("client", NicConfig::default(), TcpConfig::default())
    ///     .wires(0, 1, [LinkConfig::default(), slow])
    ///     .build()?;
    /// assert!(bed.cable(1).left_to_right.lock().is_ok());
    /// # Ok::<(), std::io::Error>(())
    /// ```
    ///
    /// # Panics
    /// If `links` is empty or has more than three links.
    #[must_use]
    pub fn wires(mut self, left: usize, right: usize, links: impl IntoIterator<Item = LinkConfig>) -> Builder {
        let links: Vec<_> = links.into_iter().collect();
        assert!((1..=MAX_LANES).contains(&links.len()), "two hosts have one to three wires, one for each address");
        self.wires.push(Wire { left, right: WireEnd::Host(right), links, capture: None, recorder: None });
        self
    }

    /// Joins the NIC of a host to an outside port by an ordinary wire. A port with a file or socket (see
    /// [`attach`](crate::attach)) works in real time only; the host's secrets then come from the system and not from
    /// the seed (see [`guessable`](Self::guessable)).
    #[must_use]
    pub fn attach(mut self, host: usize, name: &str, port: impl Port + 'static, link: LinkConfig) -> Builder {
        let outside = Station::new(name, Domain::Wire, port);
        self.wires.push(Wire {
            left: host,
            right: WireEnd::Outside(outside),
            links: vec![link],
            capture: None,
            recorder: None,
        });
        self
    }

    /// Captures the traffic of the last wire at its left end.
    ///
    /// # Panics
    /// If no wire exists yet.
    #[must_use]
    pub fn captured(mut self, capture: &Capture) -> Builder {
        self.last_wire().capture = Some(capture.clone());
        self
    }

    /// Records the traffic of the last wire at its left end, in memory.
    ///
    /// # Panics
    /// If no wire exists yet.
    #[must_use]
    pub fn recorded(mut self, recorder: &FrameRecorder) -> Builder {
        self.last_wire().recorder = Some(recorder.clone());
        self
    }

    /// Builds the testbed and starts the tasks of its devices and wires.
    ///
    /// # Errors
    /// In real time, if a thread or tokio cannot be started, or if the system has no randomness; if a capture cannot be
    /// written.
    ///
    /// # Panics
    /// If a wire ends at a host that does not exist or already has a wire; if a layer returns fewer queues.
    pub fn build(mut self) -> io::Result<Testbed> {
        let engine = BedExecutor::start(self.clock, self.meter.as_ref(), self.hosts.len())?;
        let mut ports = Vec::new();
        let mut hosts = Vec::new();
        for (number, plan) in self.hosts.iter().enumerate() {
            // A source for each host, so that one more host does not change the other hosts' secrets.
            let random = self.random_source(number)?;
            let mut nic = plan.nic.clone();
            if !random.is_seeded() {
                // With the key, an attacker could direct all flows to one queue.
                random.stream("rss key").fill(&mut nic.rss_key);
            }
            let mut eswitch = None;
            let add = |engines: &mut Engines| {
                if let Some(EngineRegistrar(add)) = &plan.engines {
                    add(engines);
                }
            };
            let (nic, drivers) = match plan.place {
                NicLocation::Own => {
                    let (device, drivers) = multi_queue_nic_with(nic, add);
                    (HostNic::Own(Arc::new(Mutex::new(device))), drivers)
                }
                NicLocation::Switched(switch) => {
                    let (device, drivers, manager) = switched_nic(nic, switch);
                    eswitch = Some(Eswitch::new(manager));
                    (HostNic::Function { nic: Arc::new(Mutex::new(device)), port: Vport::Physical }, drivers)
                }
                NicLocation::At { host, port } => {
                    let config = FunctionConfig { mtu: nic.mtu, ..FunctionConfig::new(Mac(nic.mac)) };
                    let (function, drivers) = function_with(nic, add);
                    let Some(Some(HostNic::Function { nic, .. })) = ports.get(host) else {
                        unreachable!("the host of a virtual machine was built before it, and has a switch")
                    };
                    lock(nic).plug(port, config, function);
                    (HostNic::Function { nic: nic.clone(), port }, drivers)
                }
            };
            ports.push(Some(nic.clone()));
            let built = HostParts { nic, drivers, eswitch };
            let accelerator = plan.accelerator.as_ref().map(|(config, EngineRegistrar(add))| {
                let (of_device, of_host) = (engine.device_runtime(number), engine.host_runtime(number));
                Accelerator::bring_up(config, |engines| add(engines), number, &of_device, &of_host)
            });
            let host = self.bring_up(plan, random, built, &engine.host_runtime(number));
            hosts.push(BedHost { accelerator, ..host });
        }
        // Machines attach after all hosts are built, because their functions live on these hosts' NICs.
        for OutsideMachine { host, at, config, port } in core::mem::take(&mut self.machines) {
            let Some(Some(HostNic::Function { nic, .. })) = ports.get(host) else {
                unreachable!("a machine's host has a switch")
            };
            lock(nic).attach(at, config, port);
        }
        let mut cables = Vec::new();
        for (number, wire) in self.wires.into_iter().enumerate() {
            let mut nic_station = |host: usize, peer: &str| {
                let device = ports[host].take().expect("a NIC has one port: it takes one wire");
                let plan = &self.hosts[host];
                let around = plan.port.as_ref();
                let plug = Plug { host, name: plan.name.clone(), peer, rate: wire.links[0].rate, around };
                match device {
                    HostNic::Own(device) => plug.station(device, self.tracer.as_ref()),
                    HostNic::Function { nic, port: Vport::Physical } => plug.station(nic, self.tracer.as_ref()),
                    HostNic::Function { .. } => panic!("a virtual machine has no port: the wire is its host's"),
                }
            };
            let peer = match &wire.right {
                WireEnd::Host(host) => &self.hosts[*host].name,
                WireEnd::Outside(station) => &station.name,
            };
            // The left end first: taps of capture and recorder belong to it.
            let left = nic_station(wire.left, peer);
            let (right, right_runs_on) = match wire.right {
                WireEnd::Host(host) => (nic_station(host, &self.hosts[wire.left].name), host),
                WireEnd::Outside(station) => (station, wire.left),
            };
            let left = match &wire.capture {
                Some(capture) => {
                    let tap = capture.tap(&left.name)?;
                    left.tapped(tap)
                }
                None => left,
            };
            let left = match wire.recorder {
                Some(recorder) => left.tapped(recorder),
                None => left,
            };
            // A seed for each wire, so that the impairments of one wire do not depend on the other wires.
            let seed = self.seed.derive(&format!("wire {number}"));
            let lanes: Vec<_> = wire.links.iter().zip(0..).map(|(link, lane)| cable_of(link, seed, lane)).collect();
            let (left_runs, right_runs) = (engine.device_runtime(wire.left), engine.device_runtime(right_runs_on));
            // Ends on different threads need queues that are safe and fast between threads.
            if engine.parts(wire.left, right_runs_on) {
                join_threads([&left_runs, &right_runs], [left, right], &lanes);
            } else {
                connect_lanes(&left_runs, [left, right], &lanes);
            }
            cables.extend(lanes);
        }
        // Functions behind a switch exchange frames even if the switch has no wire.
        for (number, nic) in ports.into_iter().enumerate() {
            if let Some(HostNic::Function { nic, port: Vport::Physical }) = nic {
                let plan = &self.hosts[number];
                let around = plan.port.as_ref();
                let plug = Plug { host: number, name: plan.name.clone(), peer: "nothing", rate: None, around };
                let stations =
                    [plug.station(nic, self.tracer.as_ref()), Station::new("nothing", Domain::Wire, Unplugged)];
                let nowhere = cable_of(&LinkConfig::default(), self.seed, 0);
                connect_lanes(&engine.device_runtime(number), stations, &[nowhere]);
            }
        }
        Ok(Testbed { hosts, cables, engine })
    }

    /// Returns the source of a host's secrets. A seed suffices in virtual time and between emulated hosts; an outside
    /// peer may be an attacker.
    fn random_source(&self, host: usize) -> io::Result<RandomSource> {
        let outside = self.wires.iter().any(|wire| wire.left == host && matches!(wire.right, WireEnd::Outside(_)));
        let outside = outside || self.machines.iter().any(|machine| machine.host == host);
        if outside && self.clock == ClockKind::Real && !self.guessable {
            return RandomSource::from_system();
        }
        Ok(self.seed.derive(&format!("host {host}")).into())
    }

    fn bring_up(
        &self,
        plan: &HostPlan,
        random: RandomSource,
        HostParts { nic, drivers, eswitch }: HostParts,
        runtime: &Arc<dyn Runtime>,
    ) -> BedHost {
        let mut config = Config::new(plan.address, plan.nic.mac, random).with_ipv6(plan.ipv6);
        config.tcp = plan.tcp.clone();
        (config.gateway, config.routes) = (plan.gateway, plan.routes.clone());
        // Every host knows every other host's Ethernet address, so that runs need no neighbour discovery.
        for neighbour in self.hosts.iter().filter(|other| other.address != plan.address) {
            for address in [IpAddr::from(neighbour.address), IpAddr::from(neighbour.ipv6.address)] {
                config = config.with_neighbour(address, neighbour.nic.mac);
            }
        }
        for (address, mac) in &plan.neighbours {
            config = config.with_neighbour(*address, *mac);
        }
        let mut queues: Vec<Box<dyn NetDevice>> = drivers.into_iter().map(|driver| Box::new(driver) as _).collect();
        if let Some(DeviceLayer(around)) = &plan.layer {
            queues = around(queues);
        }
        // The tracer wraps the layer, so that the timeline shows the stack's view of the device.
        if let Some(tracer) = &self.tracer {
            let traced = |(number, queue)| Box::new(TracedDevice::new(queue, tracer, &plan.name, number)) as _;
            queues = queues.into_iter().enumerate().map(traced).collect();
        }
        assert_eq!(queues.len(), usize::from(plan.nic.queues), "a layer gives back as many queues as it was given");
        let shards = Host::shards(config, queues, runtime.clone());
        let bed_host = BedHost {
            name: plan.name.clone(),
            address: plan.address,
            ipv6: plan.ipv6.address,
            link_local: link_local(plan.nic.mac),
            mac: plan.nic.mac,
            domain: plan.domain,
            shards: shards.into(),
            nic,
            eswitch,
            accelerator: None,
            runtime: runtime.clone(),
        };
        if let Some(eswitch) = &bed_host.eswitch {
            bed_host.spawn("eswitch", eswitch.clone().serve());
        }
        // Each shard has its own task, so that a trace and a deadlock message name the shard.
        for (index, shard) in bed_host.shards.iter().enumerate() {
            let name = if index == 0 { "stack".into() } else { format!("stack, shard {index}") };
            bed_host.spawn(name, shard.serve());
        }
        bed_host
    }

    fn last_host(&mut self) -> &mut HostPlan {
        self.hosts.last_mut().expect("there is a host to say something about")
    }

    fn last_wire(&mut self) -> &mut Wire {
        self.wires.last_mut().expect("there is a wire to look at")
    }
}

/// Hosts per block: their addresses differ in the last byte alone.
const HOSTS_A_BLOCK: usize = 254;
const MAX_HOSTS: usize = 2000;

/// An unconnected port: drops every frame.
struct Unplugged;

impl Port for Unplugged {
    fn receive_frame(&mut self, _now: Instant, _frame: Frame) {}

    fn poll_frame(&mut self, _now: Instant) -> Option<Frame> {
        None
    }

    fn process(&mut self, _now: Instant) {}

    fn next_event(&self) -> Option<Instant> {
        None
    }

    fn register_doorbell(&mut self, _waker: &Waker) {}
}

/// Parts of a host that are built before its stack.
struct HostParts {
    nic: HostNic,
    drivers: Vec<Driver>,
    eswitch: Option<Eswitch>,
}

/// The host's end of a wire.
struct Plug<'a> {
    host: usize,
    name: String,
    peer: &'a str,
    rate: Option<u64>,
    around: Option<&'a PortLayer>,
}

impl Plug<'_> {
    fn station(self, port: impl TracedNic + 'static, tracer: Option<&Tracer>) -> Station {
        let (name, domain) = (self.name, Domain::Device(u8::try_from(self.host).unwrap_or(u8::MAX)));
        let port: Box<dyn Port> = match tracer {
            Some(tracer) => Box::new(TracedPort::new(port, tracer, &name, self.peer, self.rate)),
            None => Box::new(port),
        };
        let port = match self.around {
            Some(PortLayer(around)) => around(port),
            None => port,
        };
        Station::boxed(name, domain, port)
    }
}

/// Builds a wire, or one of several wires between two NICs.
fn cable_of(link: &LinkConfig, seed: Seed, lane: usize) -> Cable {
    // The first lane uses the plain seed, so that one wire behaves as before there were lanes.
    let seed = if lane == 0 { seed } else { seed.derive(&format!("lane {lane}")) };
    Cable::from_links(Link::new(link, seed.derive("left to right")), Link::new(link, seed.derive("right to left")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_attached_in_real_time_use_system_secrets() {
        let hosts = |clock| {
            let host = || NicConfig::default();
            Testbed::builder(Seed(1))
                .clock(clock)
                .host("attached", host(), TcpConfig::default())
                .attach(0, "outside", Unplugged, LinkConfig::default())
                .host("left", host(), TcpConfig::default())
                .host("right", host(), TcpConfig::default())
                .wire(1, 2, LinkConfig::default())
        };
        let seeded = |builder: &Builder| [0, 1, 2].map(|host| builder.random_source(host).unwrap().is_seeded());
        assert_eq!(seeded(&hosts(ClockKind::Virtual)), [true; 3]);
        assert_eq!(seeded(&hosts(ClockKind::Real)), [false, true, true]);
        assert_eq!(seeded(&hosts(ClockKind::Real).guessable()), [true; 3]);
        let builder = hosts(ClockKind::Real);
        assert_ne!(builder.random_source(0).unwrap(), builder.random_source(0).unwrap());
    }
}
