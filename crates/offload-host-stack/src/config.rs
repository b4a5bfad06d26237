//! Configuration of a host: addresses, neighbours, and TCP parameters with Linux's defaults.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use core::time::Duration;
use offload_api::Prefix;
use offload_base::RandomSource;

/// Configuration of a host: its addresses, routes, neighbours and TCP parameters.
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
    /// Length of the address prefix that all hosts on this Ethernet share, in bits.
    pub prefix_len: u8,
    /// Next hop for destinations outside the local prefix.
    pub gateway: Option<Ipv4Addr>,
    /// Static routes, as (destinations, next hop). `None` as next hop sends packets directly to their destination. The
    /// longest prefix wins; of equal prefixes, the first wins.
    pub routes: Vec<(Prefix, Option<IpAddr>)>,
    /// IPv6 configuration. `None` if the interface speaks IPv4 only.
    pub ipv6: Option<Ipv6Config>,
    /// Permanent neighbour entries, as (IP address, Ethernet address). The stack finds all other neighbours by ARP and
    /// NDP.
    pub neighbours: Vec<(IpAddr, [u8; 6])>,
    /// Source of initial sequence numbers, timestamps, SYN cookies, local ports, IP identifications and the flow
    /// table's hash key. A seeded source is predictable for anybody who knows the seed: with real peers, use [the
    /// system's](RandomSource::from_system).
    pub random: RandomSource,
    /// Maximum number of connections. Above this limit, a connect call fails, and a SYN is dropped and counted.
    pub max_connections: usize,
    /// TCP parameters.
    pub tcp: TcpConfig,
}

impl Config {
    /// Returns the configuration of a host on an Ethernet with prefix length 24, without a gateway, with default TCP
    /// parameters.
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

    /// Sets the prefix length of the local Ethernet. Values above 32 count as 32.
    pub fn with_prefix_len(mut self, bits: u8) -> Config {
        self.prefix_len = bits.min(32);
        self
    }

    /// Sets the gateway to other networks.
    pub fn with_gateway(mut self, gateway: Ipv4Addr) -> Config {
        self.gateway = Some(gateway);
        self
    }

    /// Adds a static route: packets to `destinations` go to the next hop that leads to `via`. `via` may be a neighbour
    /// or an address behind a gateway, of either IP version. A tunnel's traffic, for example, is routed to the tunnel's
    /// far end. `None` as `via` sends packets directly to their destination. Of several routes for one prefix, the one
    /// added first wins. [`Host::set_routes`](crate::Host::set_routes) replaces all routes.
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

    /// Adds IPv6 to the interface.
    pub fn with_ipv6(mut self, ipv6: Ipv6Config) -> Config {
        self.ipv6 = Some(ipv6);
        self
    }

    /// Adds a permanent neighbour entry: `address` is at `mac`.
    pub fn with_neighbour(mut self, address: IpAddr, mac: [u8; 6]) -> Config {
        self.neighbours.push((address, mac));
        self
    }
}

/// Configuration of a host's IPv6. The interface also has a link-local address, made of its Ethernet address (RFC 4291,
/// appendix A). By default the stack ignores router advertisements and does not detect duplicate addresses, so each
/// host needs a different address.
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
    /// Address of the interface. If unspecified, the interface has no configured address.
    pub address: Ipv6Addr,
    /// Length of the address prefix that all hosts on this Ethernet share, in bits.
    pub prefix_len: u8,
    /// Next hop for destinations outside the local prefix.
    pub gateway: Option<Ipv6Addr>,
    /// Whether an address is used only after a second without an answer to a duplicate-address probe (RFC 4862 5.4).
    pub detect_duplicates: bool,
    /// Whether the host solicits routers and uses their advertisements: default routers, prefixes, autoconfigured
    /// addresses and the link's MTU (RFC 4861 6.3, RFC 4862 5.5).
    pub discover_routers: bool,
}

impl Ipv6Config {
    /// Returns the configuration of an interface with `address`, prefix length 64 and no gateway.
    pub fn new(address: Ipv6Addr) -> Ipv6Config {
        Ipv6Config { address, prefix_len: 64, gateway: None, detect_duplicates: false, discover_routers: false }
    }

    /// Returns the configuration of an interface without a configured address. The interface has its link-local address
    /// and, with router discovery, the addresses made of advertised prefixes.
    pub fn unassigned() -> Ipv6Config {
        Ipv6Config::new(Ipv6Addr::UNSPECIFIED)
    }

    /// Enables duplicate address detection.
    pub fn with_duplicate_detection(self) -> Ipv6Config {
        Ipv6Config { detect_duplicates: true, ..self }
    }

    /// Enables router discovery.
    pub fn with_router_discovery(self) -> Ipv6Config {
        Ipv6Config { discover_routers: true, ..self }
    }

    /// Sets the prefix length of the local Ethernet. Values above 128 count as 128.
    pub fn with_prefix_len(self, bits: u8) -> Ipv6Config {
        Ipv6Config { prefix_len: bits.min(128), ..self }
    }

    /// Sets the gateway to other networks.
    pub fn with_gateway(self, gateway: Ipv6Addr) -> Ipv6Config {
        Ipv6Config { gateway: Some(gateway), ..self }
    }
}

/// Congestion control algorithm of a connection.
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

/// Use of explicit congestion notification (ECN, RFC 3168).
///
/// ```
/// use offload_host_stack::{Ecn, TcpConfig};
///
/// assert_eq!(TcpConfig::default().ecn, Ecn::Accept);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Ecn {
    /// Neither requested nor accepted.
    Off,
    /// Used at the peer's request.
    #[default]
    Accept,
    /// Requested on connections from here, and accepted from peers.
    Request,
}

/// TCP parameters. Defaults are Linux's, where Linux has the parameter.
///
/// ```
/// use offload_host_stack::TcpConfig;
///
/// let small = TcpConfig { receive_buffer: 64 << 10, ..TcpConfig::default() };
/// assert!(small.sack && small.timestamps);
/// ```
#[derive(Clone, Debug)]
pub struct TcpConfig {
    /// Target maximum of unacknowledged and unsent bytes in a connection's send queue.
    pub send_buffer: usize,
    /// Maximum memory of a connection's received and unconsumed data, at true buffer size.
    pub receive_buffer: usize,
    /// Initial limit of the receive buffer. The limit grows up to `receive_buffer` while the application reads, so that
    /// the window stays at twice the bytes read per round trip.
    pub initial_receive_buffer: usize,
    /// Sequence number of every SYN, for tests of the wrap at 2^32. If `None`, RFC 6528 with a key from
    /// [`Config::random`].
    pub initial_sequence: Option<u32>,
    /// Selective acknowledgments (RFC 2018), including duplicate SACKs (RFC 2883).
    pub sack: bool,
    /// Timestamps and PAWS (RFC 7323).
    pub timestamps: bool,
    /// Window scaling (RFC 7323).
    pub window_scaling: bool,
    /// Whether new connections send small segments at once, without waiting for an ACK (no Nagle algorithm).
    pub nodelay: bool,
    /// Congestion control of new connections.
    pub congestion: CongestionAlgorithm,
    /// Explicit congestion notification.
    pub ecn: Ecn,
    /// Segments in the initial congestion window (RFC 6928).
    pub initial_window: u32,
    /// Maximum delay of an acknowledgment.
    pub delayed_ack: Duration,
    /// Retransmission timeout before the first RTT sample.
    pub initial_rto: Duration,
    /// Minimum distance of the retransmission timeout from the smoothed round-trip time, as in Linux. RFC 6298 (2.4)
    /// instead asks for a minimum timeout of one second.
    pub min_rto: Duration,
    /// Maximum of the retransmission timeout and of the time between window probes.
    pub max_rto: Duration,
    /// Maximum number of SYN retransmissions.
    pub syn_retries: u32,
    /// Maximum number of SYN-ACK retransmissions.
    pub syn_ack_retries: u32,
    /// Maximum number of consecutive unanswered data retransmissions.
    pub retries: u32,
    /// Like `retries`, for a connection whose stream the application has dropped.
    pub orphan_retries: u32,
    /// Keep-alive probing of silent peers on new connections. `None` disables probing.
    pub keep_alive: Option<KeepAlive>,
    /// Maximum time that sent bytes of new connections may stay unacknowledged (RFC 5482's user timeout, without the
    /// option on the wire). `None` leaves the limit to `retries`.
    pub user_timeout: Option<Duration>,
    /// Maximum time that an answering peer may keep its window closed while bytes wait; then the connection is reset.
    /// If `None`, a closed window never ends a connection (RFC 9293 3.8.6.1), except that half a minute is the limit
    /// while the stack's [memory](TcpMemory::most) is exhausted (RFC 6429).
    pub zero_window_timeout: Option<Duration>,
    /// Memory limits of all connections' queues together. If `None`, 384 and 512 MiB, or the memory of sixteen
    /// connections with full buffers if that is more.
    pub memory: Option<TcpMemory>,
    /// Maximum time that a dropped connection waits for the peer's FIN.
    pub fin_timeout: Duration,
    /// Duration of TIME-WAIT (RFC 9293: 2 MSL; Linux: one minute).
    pub time_wait: Duration,
}

/// Memory limits of all connections' queues in a host, like Linux's tcp_mem. The queues hold received and unconsumed
/// bytes (in or out of order) and unacknowledged bytes, at true buffer size. Shards divide the limits equally.
///
/// Regardless of the limits, each connection may have 4 KiB or one segment.
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
    /// Bytes in use at which memory pressure begins. Under pressure, each receive window and each send queue is limited
    /// to 64 KiB of memory. Pressure ends at three quarters of this value.
    pub pressure: usize,
    /// Bytes in use above which the stack refuses new connections and drops data that do not fit the minimum queue. It
    /// also resets dropped connections, and connections whose peers have kept their windows closed for half a minute.
    pub most: usize,
}

impl TcpMemory {
    /// No limit over all connections; each connection keeps its own limits.
    pub const UNLIMITED: TcpMemory = TcpMemory { pressure: usize::MAX, most: usize::MAX };

    /// Returns one of `parts` equal shares of the limits.
    pub(crate) fn shared_by(self, parts: usize) -> TcpMemory {
        TcpMemory { pressure: self.pressure / parts, most: self.most / parts }
    }
}

impl TcpConfig {
    /// Returns the memory limits: the configured ones, or defaults derived from the buffer sizes.
    pub fn memory_bounds(&self) -> TcpMemory {
        let sixteen = self.send_buffer.saturating_add(self.receive_buffer).saturating_mul(16);
        let usual =
            TcpMemory { pressure: sixteen.max(384 << 20), most: sixteen.saturating_add(sixteen / 3).max(512 << 20) };
        self.memory.unwrap_or(usual)
    }
}

/// Probing of silent peers (RFC 9293 3.8.4). The default is Linux's: the first probe after two hours, then one every 75
/// seconds, nine in all.
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
    /// Idle time before the first probe.
    pub idle: Duration,
    /// Time between probes.
    pub interval: Duration,
    /// Number of unanswered probes after which the connection is aborted.
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
