//! Configuration of endpoints.

use crate::core::MAX_UNORDERED;
use crate::crypto::acknowledgements::ASKED;
use crate::crypto::session::{NoInitialSuite, initial_suite};
use crate::crypto::tokens::ResetKey;
use core::num::NonZeroU64;
use core::time::Duration;
use noq_proto::{AckFrequencyConfig, IdleTimeout, MtuDiscoveryConfig, TransportConfig, VarInt};
use offload_base::RandomSource;
use rustls::quic::Suite;

/// Configuration of an endpoint and its connections.
///
/// ```
/// use quic_offload::Config;
///
/// let config = Config::default().with(|config| (config.paths, config.max_connections) = (4, 1000));
/// assert_eq!(config.udp_payload, 1472);
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Config {
    /// Source of connection IDs, tokens and other random values. `None`: the system. A seed is for virtual time only.
    pub random: Option<RandomSource>,
    /// Key of stateless resets, by which a restarted endpoint resets its predecessor's connections. `None`: a random
    /// key, so that peers notice a restart only by a timeout.
    pub reset_key: Option<ResetKey>,
    /// Directions in which a device seals or opens packets, if the device supports QUIC.
    pub offload: Offload,
    /// Length of this end's connection IDs, 1 to 20 bytes; other values count as the nearest valid one. Endpoint and
    /// device find connections by these IDs.
    pub cid_bytes: u8,
    /// Maximum number of paths per connection (draft-ietf-quic-multipath-21); with 1, multipath is off. A peer of
    /// another implementation may open one more, which is reserved for a client that lost its last path.
    pub paths: u32,
    /// Maximum number of connection IDs per path in the device. The oldest is replaced first.
    pub device_cids_a_path: usize,
    /// Maximum number of open connections. Further connections are refused. Half-open client connections do not count.
    pub max_connections: usize,
    /// Number of half-open connections above which clients must prove their address first (Retry).
    pub retry_above: usize,
    /// Maximum number of half-open client connections. Further clients are refused.
    pub max_handshakes: usize,
    /// Time limit of a client's handshake. Afterwards the connection is dropped silently.
    pub handshake: Duration,
    /// Maximum number of open streams per direction that the peer may have.
    pub streams: u32,
    /// Receive window of a stream, in bytes. Above 2 MiB, if datagrams have at most 16,384 bytes, a stream may have any
    /// number of gaps, as paths of different delay cause them, and may use the whole `receive_window`. Up to 2 MiB, a
    /// stream may have 1,024 waiting pieces.
    pub stream_window: u32,
    /// Receive window of a connection, in bytes.
    pub receive_window: u32,
    /// Maximum number of unacknowledged bytes of a connection.
    pub send_window: u32,
    /// Maximum rate of a connection in bytes per second, sent evenly paced. `None`: as fast as the congestion window
    /// allows, in bursts. If the bottleneck's queue is far shorter than the bytes in flight, slow start overflows the
    /// queue; set its rate, or less, here.
    pub pacing_rate: Option<NonZeroU64>,
    /// Idle timeout of a connection.
    pub idle: Duration,
    /// Interval of keep-alives on each path. Clients behind a router that forgets address mappings need this: the
    /// server's packets to an old address are lost until the client sends again (RFC 9000 10.1.2).
    pub keep_alive: Option<Duration>,
    /// The largest UDP payload that path MTU discovery tries.
    pub udp_payload: u16,
    /// Whether the fixed bit is randomized for peers that allow it (RFC 9287).
    pub grease: bool,
    /// Usage limits of keys, for device and software together.
    pub limits: AeadLimits,
    /// Whether each client waits for the application's decision ([`Endpoint::incoming`](crate::Endpoint::incoming)).
    /// Otherwise clients are accepted within the limits above.
    pub decides: bool,
    /// Event logs of connections. `None`: no logs.
    #[cfg(feature = "qlog")]
    pub qlog: Option<crate::Qlog>,
}

/// Usage limits of keys (RFC 9001 6.6), if lower than the cipher's. Keys are updated before the first limit. If an
/// update is not possible, the connection ends.
///
/// ```
/// use quic_offload::AeadLimits;
///
/// let careful = AeadLimits { sealed: 1 << 20, ..AeadLimits::default() };
/// assert_eq!(careful.forged, u64::MAX, "as many as the cipher allows");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AeadLimits {
    /// Maximum number of packets sealed by one key. The state machine tries to update the key 10,000 packets earlier.
    pub sealed: u64,
    /// Maximum number of unauthentic packets per connection.
    pub forged: u64,
}

impl Default for AeadLimits {
    fn default() -> AeadLimits {
        AeadLimits { sealed: u64::MAX, forged: u64::MAX }
    }
}

/// The device's share of packet protection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Offload {
    /// The device seals and opens packets.
    #[default]
    Both,
    /// The device seals packets.
    Transmit,
    /// The device opens packets.
    Receive,
    /// Software seals and opens packets.
    None,
    /// Packets are not encrypted at all. For comparison only; both ends must choose it. (Feature `measure`.)
    #[cfg(feature = "measure")]
    Unprotected,
}

impl Offload {
    pub(crate) fn transmit(self) -> bool {
        matches!(self, Offload::Both | Offload::Transmit)
    }

    pub(crate) fn receive(self) -> bool {
        matches!(self, Offload::Both | Offload::Receive)
    }

    pub(crate) fn is_unprotected(self) -> bool {
        #[cfg(feature = "measure")]
        return self == Offload::Unprotected;
        #[cfg(not(feature = "measure"))]
        false
    }
}

impl Default for Config {
    fn default() -> Config {
        Config {
            random: None,
            reset_key: None,
            offload: Offload::default(),
            cid_bytes: 8,
            paths: 1,
            device_cids_a_path: 8,
            max_connections: 1 << 16,
            retry_above: 1 << 8,
            max_handshakes: 1 << 12,
            handshake: Duration::from_secs(10),
            streams: 100,
            // With full packets, a window of this size has fewer pieces than the state machine keeps per stream.
            stream_window: 2 << 20,
            receive_window: 16 << 20,
            send_window: 8 << 20,
            pacing_rate: None,
            idle: Duration::from_secs(30),
            keep_alive: None,
            udp_payload: 1472,
            grease: true,
            limits: AeadLimits::default(),
            decides: false,
            #[cfg(feature = "qlog")]
            qlog: None,
        }
    }
}

impl Config {
    /// Returns the configuration after `change`. Struct expressions cannot create a `Config`, because later versions
    /// may add fields.
    #[must_use]
    pub fn with<R>(mut self, change: impl FnOnce(&mut Config) -> R) -> Config {
        change(&mut self);
        self
    }

    /// Sets the largest datagrams that fit into IP packets of `mtu` bytes, for IPv4 and IPv6, up to the size at which a
    /// stream may have any number of gaps.
    ///
    /// ```
    /// use quic_offload::Config;
    ///
    /// let of = |mtu| Config::default().for_mtu(mtu).udp_payload;
    /// assert_eq!((of(1500), of(9000), of(u16::MAX), of(1000)), (1452, 8952, 16_384, 1200));
    /// ```
    #[must_use]
    pub fn for_mtu(mut self, mtu: u16) -> Config {
        self.udp_payload = mtu.saturating_sub(HEADERS).clamp(MIN_DATAGRAM, MAX_UNORDERED);
        self
    }

    pub(crate) fn transport(&self) -> TransportConfig {
        let mut transport = TransportConfig::default();
        let mut discovery = MtuDiscoveryConfig::default();
        discovery.upper_bound(self.udp_payload);
        let mut acknowledgements = AckFrequencyConfig::default();
        // The state machine sends the request only to peers that have the extension.
        acknowledgements.max_ack_delay(Some(ASKED));
        transport
            .max_concurrent_bidi_streams(self.streams.into())
            .max_concurrent_uni_streams(self.streams.into())
            .stream_receive_window(self.stream_window.into())
            .receive_window(self.receive_window.into())
            .send_window(self.send_window.into())
            .max_outgoing_bytes_per_second(self.pacing_rate.map(NonZeroU64::get))
            .max_idle_timeout(Some(idle(self.idle)))
            .keep_alive_interval(self.keep_alive)
            .default_path_keep_alive_interval(self.keep_alive)
            .ack_frequency_config(Some(acknowledgements))
            .mtu_discovery_config((self.udp_payload > 1200).then_some(discovery));
        if self.paths > 1 {
            // One more than configured is announced, for a client that must replace its last path.
            transport.max_concurrent_multipath_paths(self.paths.saturating_add(1));
        }
        transport
    }
}

/// Bytes of the IPv6 and UDP headers.
const HEADERS: u16 = 40 + 8;
/// The minimum datagram size of every path (RFC 9000 14).
const MIN_DATAGRAM: u16 = 1200;

fn idle(span: Duration) -> IdleTimeout {
    let longest = IdleTimeout::from(VarInt::from_u32(u32::MAX));
    IdleTimeout::try_from(span).unwrap_or(longest)
}

/// A client's TLS configuration, suitable for QUIC. 0-RTT is always disabled.
///
/// ```
/// use offload_base::Seed;
/// use offload_testbed::identity::{Randomness, client_config};
/// use quic_offload::ClientTls;
///
/// assert!(ClientTls::new(client_config(Randomness::Seeded(Seed(1)), None)).is_ok());
/// ```
#[derive(Clone)]
pub struct ClientTls {
    pub(crate) tls: rustls::ClientConfig,
    pub(crate) initial: Suite,
}

/// A server's TLS configuration, suitable for QUIC. 0-RTT is always disabled.
///
/// ```
/// use offload_base::Seed;
/// use offload_testbed::identity::{Randomness, server_config};
/// use quic_offload::ServerTls;
///
/// assert!(ServerTls::new(server_config(Randomness::Seeded(Seed(1)), None)).is_ok());
/// ```
#[derive(Clone)]
pub struct ServerTls {
    pub(crate) tls: rustls::ServerConfig,
    pub(crate) initial: Suite,
}

impl ClientTls {
    /// Wraps a configuration with TLS 1.3.
    ///
    /// # Errors
    /// If the provider lacks the cipher suite of QUIC's first packets.
    pub fn new(mut tls: rustls::ClientConfig) -> Result<ClientTls, NoInitialSuite> {
        tls.enable_early_data = false;
        Ok(ClientTls { initial: initial_suite(tls.crypto_provider())?, tls })
    }
}

impl ServerTls {
    /// Wraps a configuration with TLS 1.3.
    ///
    /// # Errors
    /// If the provider lacks the cipher suite of QUIC's first packets.
    pub fn new(mut tls: rustls::ServerConfig) -> Result<ServerTls, NoInitialSuite> {
        tls.max_early_data_size = 0;
        Ok(ServerTls { initial: initial_suite(tls.crypto_provider())?, tls })
    }
}

impl core::fmt::Debug for ClientTls {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("ClientTls(..)")
    }
}

impl core::fmt::Debug for ServerTls {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("ServerTls(..)")
    }
}
