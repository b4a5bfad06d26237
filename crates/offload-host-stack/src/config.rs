//! How a host is set up: addresses, neighbours, and the knobs of its TCP with Linux's defaults.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use core::time::Duration;
use offload_api::Prefix;
use offload_base::RandomSource;

/// A host's own addresses, whom it can reach, and its TCP.
///
/// ```
/// use offload_host_stack::Config;
/// use offload_base::Seed;
///
/// let config = Config::new([10, 0, 0, 1].into(), [2, 0, 0, 0, 0, 1], Seed(7))
///     .with_gateway([10, 0, 0, 254].into())
///     .with_neighbour([10, 0, 0, 2].into(), [2, 0, 0, 0, 0, 2]);
/// assert_eq!((config.prefix_len, config.neighbours.len()), (24, 1));
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Config {
    /// Ethernet address of the interface.
    pub mac: [u8; 6],
    /// IPv4 address of the interface.
    pub address: Ipv4Addr,
    /// Bits that the addresses of all hosts on this Ethernet have in common.
    pub prefix_len: u8,
    /// Where packets for all other addresses go.
    pub gateway: Option<Ipv4Addr>,
    /// Destinations whose packets go another one's way, such as that of a tunnel's other end; `None`: their own. The longest prefix
    /// counts, the first of several.
    pub routes: Vec<(Prefix, Option<IpAddr>)>,
    /// IPv6, if the interface speaks it beside IPv4.
    pub ipv6: Option<Ipv6Config>,
    /// Ethernet addresses that are known beforehand, and stay: nobody is asked for them. All others on this
    /// Ethernet are found by ARP and NDP.
    pub neighbours: Vec<(IpAddr, [u8; 6])>,
    /// Where initial sequence numbers, timestamps, cookies, local ports, identifications and the key of the flow table
    /// come from. With a seed, anybody who knows it can guess them all: where real peers are, take
    /// [the system's](RandomSource::from_system).
    pub random: RandomSource,
    /// The most connections at a time; a connection beyond is refused, a SYN beyond dropped and counted.
    pub max_connections: usize,
    /// TCP.
    pub tcp: TcpConfig,
}

impl Config {
    /// A host on an Ethernet of 256 addresses (prefix length 24), without a gateway, with the default TCP.
    pub fn new(address: Ipv4Addr, mac: [u8; 6], random: impl Into<RandomSource>) -> Config {
        Config {
            mac,
            address,
            prefix_len: 24,
            gateway: None,
            routes: Vec::new(),
            ipv6: None,
            neighbours: Vec::new(),
            random: random.into(),
            max_connections: 65_536,
            tcp: TcpConfig::default(),
        }
    }

    /// The same host, on an Ethernet of all addresses that share their first `bits` bits (at most 32) with its own.
    pub fn with_prefix_len(mut self, bits: u8) -> Config {
        self.prefix_len = bits.min(32);
        self
    }

    /// The same host, able to reach other networks by way of `gateway`.
    pub fn with_gateway(mut self, gateway: Ipv4Addr) -> Config {
        self.gateway = Some(gateway);
        self
    }

    /// The same host, whose packets for these destinations go the way of `via`, a neighbour or somebody behind a gateway, of either
    /// IP: what a device below wraps for a tunnel leaves for the tunnel's other end. `None`: they go their own way. Of several routes with a destination, the
    /// one added first decides. [`Host::set_routes`](crate::Host::set_routes) puts others in their place.
    ///
    /// ```
    /// # use offload_host_stack::Config;
    /// # use offload_base::Seed;
    /// use offload_api::Prefix;
    ///
    /// let tunnel = Prefix::new([192, 168, 0, 0].into(), 16).unwrap();
    /// let config = Config::new([10, 0, 0, 1].into(), [2, 0, 0, 0, 0, 1], Seed(7)).with_route(tunnel, Some([10, 0, 0, 9].into()));
    /// assert_eq!(config.routes.len(), 1);
    /// ```
    pub fn with_route(mut self, destinations: Prefix, via: Option<IpAddr>) -> Config {
        self.routes.push((destinations, via));
        self
    }

    /// The same host, which speaks IPv6 too.
    pub fn with_ipv6(mut self, ipv6: Ipv6Config) -> Config {
        self.ipv6 = Some(ipv6);
        self
    }

    /// The same host, which need not ask for `address`: it is at `mac`.
    pub fn with_neighbour(mut self, address: IpAddr, mac: [u8; 6]) -> Config {
        self.neighbours.push((address, mac));
        self
    }
}

/// A host's IPv6. Besides the address given, the interface has a link-local one, made of its Ethernet address
/// (RFC 4291, appendix A). Unless asked for, nothing is configured by routers' advertisements, and no address is asked for
/// before it is used: give each host a different one.
///
/// ```
/// use offload_host_stack::{Config, Ipv6Config};
/// use offload_base::Seed;
///
/// let six = Ipv6Config::new("fd00::1".parse().unwrap()).with_gateway("fe80::1".parse().unwrap());
/// let config = Config::new([10, 0, 0, 1].into(), [2, 0, 0, 0, 0, 1], Seed(7)).with_ipv6(six);
/// assert_eq!(config.ipv6.unwrap().prefix_len, 64);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ipv6Config {
    /// Address of the interface; unspecified: none that is set up.
    pub address: Ipv6Addr,
    /// Bits that the addresses of all hosts on this Ethernet have in common.
    pub prefix_len: u8,
    /// Where packets for all other addresses go.
    pub gateway: Option<Ipv6Addr>,
    /// Addresses are used only after nobody has answered for a second to the question whose they are (RFC 4862 5.4).
    pub detect_duplicates: bool,
    /// Routers are asked for, and what they advertise is believed: themselves, prefixes, addresses made of those, the
    /// link's MTU (RFC 4861 6.3, RFC 4862 5.5).
    pub discover_routers: bool,
}

impl Ipv6Config {
    /// An address on an Ethernet of addresses with the same first 64 bits, without a gateway.
    pub fn new(address: Ipv6Addr) -> Ipv6Config {
        Ipv6Config { address, prefix_len: 64, gateway: None, detect_duplicates: false, discover_routers: false }
    }

    /// No address but the link-local one, and those that routers' prefixes make, if they are listened to.
    pub fn unassigned() -> Ipv6Config {
        Ipv6Config::new(Ipv6Addr::UNSPECIFIED)
    }

    /// The same, which uses no address before it has found out that nobody else does.
    pub fn with_duplicate_detection(self) -> Ipv6Config {
        Ipv6Config { detect_duplicates: true, ..self }
    }

    /// The same, which listens to routers.
    pub fn with_router_discovery(self) -> Ipv6Config {
        Ipv6Config { discover_routers: true, ..self }
    }

    /// The same, on an Ethernet of all addresses that share their first `bits` bits (at most 128) with it.
    pub fn with_prefix_len(self, bits: u8) -> Ipv6Config {
        Ipv6Config { prefix_len: bits.min(128), ..self }
    }

    /// The same, able to reach other networks by way of `gateway`.
    pub fn with_gateway(self, gateway: Ipv6Addr) -> Ipv6Config {
        Ipv6Config { gateway: Some(gateway), ..self }
    }
}

/// How a connection finds out how much the network takes.
///
/// ```
/// use offload_host_stack::{CongestionAlgorithm, TcpConfig};
///
/// let reno = TcpConfig { congestion: CongestionAlgorithm::NewReno, ..TcpConfig::default() };
/// assert_ne!(reno.congestion, CongestionAlgorithm::default());
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum CongestionAlgorithm {
    /// CUBIC (RFC 9438), with HyStart++ (RFC 9406).
    #[default]
    Cubic,
    /// NewReno (RFC 5681), with HyStart++.
    NewReno,
}

/// Whether congestion may be marked rather than answered with loss (ECN, RFC 3168).
///
/// ```
/// use offload_host_stack::{Ecn, TcpConfig};
///
/// assert_eq!(TcpConfig::default().ecn, Ecn::Accept);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Ecn {
    /// No.
    Off,
    /// If the peer asks for it.
    #[default]
    Accept,
    /// This side asks for it, too.
    Request,
}

/// The knobs of TCP. The defaults are Linux's, where Linux has the knob. Build it from the default, as here, because
/// later versions may add fields.
///
/// ```
/// use offload_host_stack::TcpConfig;
///
/// let small = TcpConfig { receive_buffer: 64 << 10, ..TcpConfig::default() };
/// assert!(small.sack && small.timestamps);
/// ```
#[derive(Clone, Debug)]
pub struct TcpConfig {
    /// Unacknowledged and unsent bytes a connection's send queue wants at most.
    pub send_buffer: usize,
    /// Memory, at its true size, that a connection's received and unconsumed data may take at most.
    pub receive_buffer: usize,
    /// The same at the beginning. It grows up to `receive_buffer` as the application takes what arrives, so that the
    /// window is twice what it takes in a round trip.
    pub initial_receive_buffer: usize,
    /// The sequence number of every SYN, for tests of the wrap at 2^32. `None`: RFC 6528, from [`Config::random`].
    pub initial_sequence: Option<u32>,
    /// Selective acknowledgments (RFC 2018), duplicate ones included (RFC 2883).
    pub sack: bool,
    /// Timestamps and PAWS (RFC 7323).
    pub timestamps: bool,
    /// Window scaling (RFC 7323).
    pub window_scaling: bool,
    /// Whether small segments leave at once on new connections, without waiting for an ACK (Nagle).
    pub nodelay: bool,
    /// What controls congestion on new connections.
    pub congestion: CongestionAlgorithm,
    /// Explicit congestion notification.
    pub ecn: Ecn,
    /// Segments in the initial congestion window (RFC 6928).
    pub initial_window: u32,
    /// How long an acknowledgment may wait for company.
    pub delayed_ack: Duration,
    /// The retransmission timeout before the first RTT sample.
    pub initial_rto: Duration,
    /// How far the retransmission timeout is at least beyond the round-trip time, as in Linux. RFC 6298 (2.4) asks for a
    /// timeout of a second.
    pub min_rto: Duration,
    /// The greatest retransmission timeout, and the greatest time between window probes.
    pub max_rto: Duration,
    /// How often a SYN is repeated.
    pub syn_retries: u32,
    /// How often a SYN-ACK is repeated.
    pub syn_ack_retries: u32,
    /// How often data are repeated in a row without an answer.
    pub retries: u32,
    /// The same, once the application has dropped its stream.
    pub orphan_retries: u32,
    /// Whether silent peers are probed on new connections.
    pub keep_alive: Option<KeepAlive>,
    /// How long bytes may wait for their acknowledgment on new connections (RFC 5482's user timeout, not told to the
    /// peer). `None`: as long as `retries` allows.
    pub user_timeout: Option<Duration>,
    /// How long a peer may keep its window closed over bytes that wait, and answer all the while, before the connection is
    /// reset. `None`: for ever, as RFC 9293 (3.8.6.1) has it; but no longer than half a minute while the stack's
    /// [memory](TcpMemory::most) is taken up (RFC 6429).
    pub zero_window_timeout: Option<Duration>,
    /// What the queues of all connections may take. `None`: 384 and 512 MiB; or as much as sixteen connections with full
    /// buffers, if that is more.
    pub memory: Option<TcpMemory>,
    /// How long a dropped connection waits for the peer to close its side.
    pub fin_timeout: Duration,
    /// How long a closed connection answers for late segments (RFC 9293: 2 MSL; Linux: a minute).
    pub time_wait: Duration,
}

/// What the queues of all connections of a host may take in memory, as Linux's tcp_mem: bytes received and not consumed, in
/// order or not, and bytes queued and not acknowledged, buffers at their true size. Shards share it out.
///
/// Each connection may have 4 KiB, or one segment, whatever the others take.
///
/// ```
/// use offload_host_stack::{TcpConfig, TcpMemory};
///
/// let memory = TcpMemory { pressure: 24 << 20, most: 32 << 20 };
/// let small = TcpConfig { memory: Some(memory), ..TcpConfig::default() };
/// assert!(small.memory_bounds().most < TcpConfig::default().memory_bounds().most);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TcpMemory {
    /// Above this, peers are offered what 64 KiB of memory hold at most, and send queues want no more either, until a quarter
    /// less is taken.
    pub pressure: usize,
    /// Above this, new connections are refused, and data that find more than that in their connection's queue are dropped;
    /// connections that nobody holds, and those whose peers keep their windows closed for half a minute, are reset.
    pub most: usize,
}

impl TcpMemory {
    /// No bound but those of each connection.
    pub const UNLIMITED: TcpMemory = TcpMemory { pressure: usize::MAX, most: usize::MAX };

    /// One of so many equal parts.
    pub(crate) fn shared_by(self, parts: usize) -> TcpMemory {
        TcpMemory { pressure: self.pressure / parts, most: self.most / parts }
    }
}

impl TcpConfig {
    /// What the queues of all connections may take: as was set, or what goes with the buffers.
    pub fn memory_bounds(&self) -> TcpMemory {
        let sixteen = self.send_buffer.saturating_add(self.receive_buffer).saturating_mul(16);
        let usual =
            TcpMemory { pressure: sixteen.max(384 << 20), most: sixteen.saturating_add(sixteen / 3).max(512 << 20) };
        self.memory.unwrap_or(usual)
    }
}

/// When and how often a silent peer is probed (RFC 9293 3.8.4). The default is Linux's: after two hours, every 75 seconds,
/// nine times.
///
/// ```
/// use core::time::Duration;
/// use offload_host_stack::{KeepAlive, TcpConfig};
///
/// let keep_alive = KeepAlive { idle: Duration::from_secs(60), ..KeepAlive::default() };
/// let config = TcpConfig { keep_alive: Some(keep_alive), ..TcpConfig::default() };
/// assert_eq!(config.keep_alive.unwrap().probes, 9);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeepAlive {
    /// Silence before the first probe.
    pub idle: Duration,
    /// Time between probes.
    pub interval: Duration,
    /// Probes in a row without an answer before the connection is given up.
    pub probes: u32,
}

impl Default for KeepAlive {
    fn default() -> KeepAlive {
        KeepAlive { idle: Duration::from_secs(7200), interval: Duration::from_secs(75), probes: 9 }
    }
}

impl Default for TcpConfig {
    fn default() -> TcpConfig {
        TcpConfig {
            send_buffer: 4 << 20,
            receive_buffer: 6 << 20,
            initial_receive_buffer: 128 << 10,
            initial_sequence: None,
            sack: true,
            timestamps: true,
            window_scaling: true,
            nodelay: false,
            congestion: CongestionAlgorithm::Cubic,
            ecn: Ecn::Accept,
            initial_window: 10,
            delayed_ack: Duration::from_millis(40),
            initial_rto: Duration::from_secs(1),
            min_rto: Duration::from_millis(200),
            max_rto: Duration::from_secs(120),
            syn_retries: 6,
            syn_ack_retries: 5,
            retries: 15,
            orphan_retries: 8,
            keep_alive: None,
            user_timeout: None,
            zero_window_timeout: None,
            memory: None,
            fin_timeout: Duration::from_secs(60),
            time_wait: Duration::from_secs(60),
        }
    }
}
