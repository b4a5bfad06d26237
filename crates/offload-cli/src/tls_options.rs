//! Options of TLS and its offload, shared by the examples and `nicbench`, with the names of their values.

use crate::options::{self, Names};
use clap::Args;
use nic_sim::{NicConfig, TransmitResync};
use offload_api::{QuicCipher, ResyncMode, TlsSuite, TlsVersion};
use offload_testbed::identity::Agreement;

/// The parameters of a TLS connection, and the resynchronization modes of its NICs.
///
/// ```
/// use clap::Parser;
/// use nic_sim::{NicConfig, TransmitResync};
/// use offload_cli::tls_options::TlsOptions;
///
/// #[derive(Debug, Parser)]
/// #[command(version)]
/// struct Options {
///     #[command(flatten)]
///     tls: TlsOptions,
/// }
///
/// let options = Options::parse_from(["demo", "--tls", "1.2", "--transmit-resync", "next-record"]);
/// assert_eq!(options.tls.nic(NicConfig::default()).engines.tls.transmit_resync, TransmitResync::NextRecord);
/// assert!(options.tls.check().is_ok());
/// let options = Options::parse_from(["demo", "--tls", "1.2", "--padding", "512"]);
/// assert!(options.tls.check().is_err(), "there is no padding in TLS 1.2");
/// ```
#[derive(Args, Clone, Copy, Debug)]
pub struct TlsOptions {
    /// The version of TLS
    #[arg(long, value_name = "VERSION", value_parser = VERSIONS.parser(), default_value = "1.3")]
    pub tls: TlsVersion,
    /// The cipher suite
    #[arg(long, value_parser = SUITES.parser(), default_value = "aes-128-gcm")]
    pub suite: TlsSuite,
    /// Resynchronization of a receiving NIC that lost its place. Default: driver-request
    #[arg(long, value_parser = RESYNCS.parser())]
    pub resync: Option<ResyncMode>,
    /// Resynchronization of a sending NIC after a retransmission. Default: dump
    #[arg(long, value_parser = TRANSMIT_RESYNCS.parser())]
    pub transmit_resync: Option<TransmitResync>,
    /// Pad records, so that the encrypted part of each is a multiple of this size (TLS 1.3)
    #[arg(long, value_name = "SIZE", default_value = "1", value_parser = options::size::<u16>(1..=16384))]
    pub padding: u16,
}

impl TlsOptions {
    /// Checks that the options can be combined.
    ///
    /// # Errors
    /// A message if not.
    pub fn check(&self) -> Result<(), String> {
        match self.tls {
            // RFC 5246 pads only block ciphers, and RFC 8446 5.4 introduced record padding.
            TlsVersion::Tls12 if self.padding > 1 => Err("--padding: records of TLS 1.2 have none".into()),
            _ => Ok(()),
        }
    }

    /// Returns the version and suite that a handshake must agree on.
    pub fn agreement(&self) -> Agreement {
        Agreement { version: self.tls, suite: self.suite }
    }

    /// Returns `nic` with the requested resynchronization modes.
    pub fn nic(&self, nic: NicConfig) -> NicConfig {
        let mut engines = nic.engines;
        if let Some(resync) = self.transmit_resync {
            engines = engines.with_transmit_resync(resync);
        }
        engines.tls.resync = self.resync.unwrap_or(engines.tls.resync);
        NicConfig { engines, ..nic }
    }

    /// Returns the options that a repeated run needs, by name, with the resynchronization modes of `nic`.
    pub fn facts(&self, nic: &NicConfig) -> [(&'static str, String); 5] {
        [
            ("tls", VERSIONS.name(&self.tls)),
            ("suite", SUITES.name(&self.suite)),
            ("resync", RESYNCS.name(&nic.engines.tls.resync)),
            ("transmit_resync", TRANSMIT_RESYNCS.name(&nic.engines.tls.transmit_resync)),
            ("padding", self.padding.to_string()),
        ]
    }
}

/// The versions of TLS.
pub const VERSIONS: Names<TlsVersion> =
    Names(&[("1.2", "TLS 1.2", TlsVersion::Tls12), ("1.3", "TLS 1.3", TlsVersion::Tls13)]);

/// The cipher suites of TLS that NICs know.
pub const SUITES: Names<TlsSuite> = Names(&[
    ("aes-128-gcm", "AES-128-GCM", TlsSuite::Aes128Gcm),
    ("aes-256-gcm", "AES-256-GCM", TlsSuite::Aes256Gcm),
    ("chacha20-poly1305", "ChaCha20-Poly1305", TlsSuite::ChaCha20Poly1305),
]);

/// The ways in which a receiving NIC finds its place in the stream again.
pub const RESYNCS: Names<ResyncMode> = Names(&[
    ("driver-request", "The NIC searches, and asks", ResyncMode::DriverRequest),
    ("core-hint", "The NIC waits to be told", ResyncMode::CoreHint),
    (
        "asynchronous",
        "The NIC searches, announces a question and asks it later, when TLS has noted the answer",
        ResyncMode::Asynchronous,
    ),
]);

/// The ways in which a sending NIC continues after a retransmission.
pub const TRANSMIT_RESYNCS: Names<TransmitResync> = Names(&[
    ("dump", "The NIC reads the record's earlier bytes once more", TransmitResync::Dump),
    ("next-record", "Software seals the record, the NIC goes on with the next", TransmitResync::NextRecord),
]);

/// The ciphers of QUIC's packets.
pub const QUIC_CIPHERS: Names<QuicCipher> = Names(&[
    ("aes128-gcm", "AES-128-GCM", QuicCipher::Aes128Gcm),
    ("aes256-gcm", "AES-256-GCM", QuicCipher::Aes256Gcm),
    ("aes128-ccm", "AES-128-CCM", QuicCipher::Aes128Ccm),
    ("chacha20-poly1305", "ChaCha20-Poly1305", QuicCipher::ChaCha20Poly1305),
]);
