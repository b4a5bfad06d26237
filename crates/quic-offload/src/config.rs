//! How an endpoint is set up.

use crate::core::MOST_UNORDERED;
use crate::crypto::acknowledgements::ASKED;
use crate::crypto::session::{NoInitialSuite, initial_suite};
use crate::crypto::tokens::ResetKey;
use core::num::NonZeroU64;
use core::time::Duration;
use noq_proto::{AckFrequencyConfig, IdleTimeout, MtuDiscoveryConfig, TransportConfig, VarInt};
use offload_base::RandomSource;
use rustls::quic::Suite;

/// How an endpoint and its connections behave.
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
    /// Where connection IDs, tokens and the rest come from; `None`: the system. A seed is for virtual time alone.
    pub random: Option<RandomSource>,
    /// With what connections are reset that this endpoint does not know, because they are of one before it. `None`: a random one, and peers
    /// of an endpoint that is begun anew learn of that by silence.
    pub reset_key: Option<ResetKey>,
    /// Whether a device seals and opens packets, if there is one that does.
    pub offload: Offload,
    /// Bytes of this end's connection IDs, 1 to 20; 0 counts as 1, and more than 20 as 20. Endpoint and device find connections by these IDs.
    pub cid_bytes: u8,
    /// Most paths of a connection at a time, if the peer has several, too (draft-ietf-quic-multipath-21); 1: there is no multipath. A
    /// peer of another make may have one more: it is there for a client whose last path was given up.
    pub paths: u32,
    /// Connection IDs of a connection that the device is told of, for each path. The oldest goes first.
    pub device_cids_a_path: usize,
    /// Maximum of open connections at a time. Further connections are refused. Half-open connections of clients do not count.
    pub max_connections: usize,
    /// Number of half-open connections from which on clients have to prove their address first (Retry).
    pub retry_above: usize,
    /// Maximum of half-open connections of clients. Further ones are refused.
    pub max_handshakes: usize,
    /// Time for a client's handshake. Afterwards the connection is dropped silently.
    pub handshake: Duration,
    /// Most streams in each direction that a peer may have open.
    pub streams: u32,
    /// Bytes of a stream that a peer may send before they are read. Above 2 MiB, and where datagrams have 16,384 bytes at most,
    /// a stream may have any number of pieces that wait for one before them, as paths of unlike delay make them, and may use all
    /// of `receive_window`; up to 2 MiB, 1,024 pieces.
    pub stream_window: u32,
    /// Bytes of a connection that a peer may send before they are read.
    pub receive_window: u32,
    /// Bytes that wait to be acknowledged, of a connection.
    pub send_window: u32,
    /// Bytes per second that a connection sends at most, one packet after the other; `None`: as fast as its congestion window allows, in bursts.
    /// A path whose queue is far shorter than what is under way on it loses what a start brings beyond its rate: this is that rate, or less.
    pub pacing_rate: Option<NonZeroU64>,
    /// A connection on which nothing happens ends after this.
    pub idle: Duration,
    /// Something is sent on each path after so much silence. A client behind a router that forgets addresses wants it: what a server sends to
    /// an address of before is lost until the client sends something (RFC 9000 10.1.2).
    pub keep_alive: Option<Duration>,
    /// The largest datagram that is tried, without UDP's header.
    pub udp_payload: u16,
    /// Whether the fixed bit is sent at random to peers that do not mind (RFC 9287).
    pub grease: bool,
    /// How often keys may be used, by device and software together.
    pub limits: AeadLimits,
    /// Whether each client waits for the application's decision ([`Endpoint::incoming`](crate::Endpoint::incoming)). Otherwise clients are
    /// accepted as far as the limits above allow.
    pub decides: bool,
    /// Where the events of connections are written, if anywhere.
    #[cfg(feature = "qlog")]
    pub qlog: Option<crate::Qlog>,
}

/// How often keys may be used (RFC 9001 6.6), if that is to be less often than their cipher allows. Keys change before the
/// first limit, and the connection ends where they cannot.
///
/// ```
/// use quic_offload::AeadLimits;
///
/// let careful = AeadLimits { sealed: 1 << 20, ..AeadLimits::default() };
/// assert_eq!(careful.forged, u64::MAX, "as many as the cipher allows");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AeadLimits {
    /// Packets that are sealed by one key. The state machine begins to look for the next key 10,000 packets before.
    pub sealed: u64,
    /// Packets of a connection that are not authentic.
    pub forged: u64,
}

impl Default for AeadLimits {
    fn default() -> AeadLimits {
        AeadLimits { sealed: u64::MAX, forged: u64::MAX }
    }
}

/// What a device is asked to do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Offload {
    /// Seal and open packets.
    #[default]
    Both,
    /// Seal packets.
    Transmit,
    /// Open packets.
    Receive,
    /// Nothing: software does it.
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
            // Fewer packets than the state machine keeps of a stream.
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
    /// Returns the configuration with other values of fields. A later version may have more fields, so no struct expression makes a `Config`.
    #[must_use]
    pub fn with<R>(mut self, change: impl FnOnce(&mut Config) -> R) -> Config {
        change(&mut self);
        self
    }

    /// With the largest datagrams that IP packets of so many bytes carry, whether IPv4 or IPv6; no larger than those of which a stream may
    /// have any number of pieces that wait for one before them.
    ///
    /// ```
    /// use quic_offload::Config;
    ///
    /// let of = |mtu| Config::default().for_mtu(mtu).udp_payload;
    /// assert_eq!((of(1500), of(9000), of(u16::MAX), of(1000)), (1452, 8952, 16_384, 1200));
    /// ```
    #[must_use]
    pub fn for_mtu(mut self, mtu: u16) -> Config {
        self.udp_payload = mtu.saturating_sub(HEADERS).clamp(LEAST_DATAGRAM, MOST_UNORDERED);
        self
    }

    pub(crate) fn transport(&self) -> TransportConfig {
        let mut transport = TransportConfig::default();
        let mut discovery = MtuDiscoveryConfig::default();
        discovery.upper_bound(self.udp_payload);
        let mut acknowledgements = AckFrequencyConfig::default();
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
            transport.max_concurrent_multipath_paths(self.paths.saturating_add(1));
        }
        transport
    }
}

/// IPv6's and UDP's.
const HEADERS: u16 = 40 + 8;
/// RFC 9000 14: a path carries these at least.
const LEAST_DATAGRAM: u16 = 1200;

fn idle(span: Duration) -> IdleTimeout {
    let longest = IdleTimeout::from(VarInt::from_u32(u32::MAX));
    IdleTimeout::try_from(span).unwrap_or(longest)
}

/// A client's side of TLS, fit for QUIC. 0-RTT is not used, whatever the configuration says.
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

/// A server's side of TLS, fit for QUIC. 0-RTT is not used, whatever the configuration says.
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
    /// Of a configuration that has TLS 1.3.
    ///
    /// # Errors
    /// If the provider lacks the cipher suite of the first packets.
    pub fn new(mut tls: rustls::ClientConfig) -> Result<ClientTls, NoInitialSuite> {
        tls.enable_early_data = false;
        Ok(ClientTls { initial: initial_suite(tls.crypto_provider())?, tls })
    }
}

impl ServerTls {
    /// Of a configuration that has TLS 1.3.
    ///
    /// # Errors
    /// If the provider lacks the cipher suite of the first packets.
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
