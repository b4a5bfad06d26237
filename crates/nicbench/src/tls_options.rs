//! Options about TLS and its offload that examples and `nicbench` share, and what their values are called.

use crate::options::{self, name};
use clap::{Args, ValueEnum};
use nic_sim::{NicConfig, TransmitResync};
use offload_api::{ResyncMode, TlsSuite, TlsVersion};
use offload_testbed::identity::Agreement;

/// What the two ends of a connection agree on, and how their NICs go about it.
///
/// ```
/// use clap::Parser;
/// use nic_sim::{NicConfig, TransmitResync};
/// use nicbench::tls_options::TlsOptions;
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
    #[arg(long, value_name = "VERSION", value_enum, default_value_t = VersionName::Tls13)]
    pub tls: VersionName,
    /// The cipher suite
    #[arg(long, value_enum, default_value_t = SuiteName::Aes128Gcm)]
    pub suite: SuiteName,
    /// How a receiving NIC that lost its place finds it again
    #[arg(long, value_enum, default_value_t = ResyncName::DriverRequest)]
    pub resync: ResyncName,
    /// How a sending NIC goes on after a retransmission
    #[arg(long, value_enum, default_value_t = TransmitResyncName::Dump)]
    pub transmit_resync: TransmitResyncName,
    /// Pad records, so that the encrypted part of each is a multiple of this size (TLS 1.3)
    #[arg(long, value_name = "SIZE", default_value = "1", value_parser = options::size::<u16>(1..=16384))]
    pub padding: u16,
}

impl TlsOptions {
    /// Whether they go together.
    ///
    /// # Errors
    /// In words, if not.
    pub fn check(&self) -> Result<(), String> {
        match self.tls {
            VersionName::Tls12 if self.padding > 1 => Err("--padding: records of TLS 1.2 have none".into()),
            _ => Ok(()),
        }
    }

    /// What a handshake is to agree on.
    pub fn agreement(&self) -> Agreement {
        Agreement { version: self.tls.into(), suite: self.suite.into() }
    }

    /// `nic` with what is asked of it.
    pub fn nic(&self, nic: NicConfig) -> NicConfig {
        let mut engines = nic.engines.with_transmit_resync(self.transmit_resync.into());
        engines.tls.resync = self.resync.into();
        NicConfig { engines, ..nic }
    }

    /// The options that another run needs to be the same, by name.
    pub fn facts(&self) -> [(&'static str, String); 5] {
        [
            ("tls", name(self.tls)),
            ("suite", name(self.suite)),
            ("resync", name(self.resync)),
            ("transmit_resync", name(self.transmit_resync)),
            ("padding", self.padding.to_string()),
        ]
    }
}

/// A version of TLS.
///
/// ```
/// use offload_api::TlsVersion;
/// use nicbench::tls_options::VersionName;
///
/// assert_eq!(TlsVersion::from(VersionName::Tls12), TlsVersion::Tls12);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum VersionName {
    /// TLS 1.2.
    #[value(name = "1.2")]
    Tls12,
    /// TLS 1.3.
    #[value(name = "1.3")]
    Tls13,
}

impl From<VersionName> for TlsVersion {
    fn from(name: VersionName) -> TlsVersion {
        match name {
            VersionName::Tls12 => TlsVersion::Tls12,
            VersionName::Tls13 => TlsVersion::Tls13,
        }
    }
}

/// A cipher suite.
///
/// ```
/// use offload_api::TlsSuite;
/// use nicbench::tls_options::SuiteName;
///
/// assert_eq!(TlsSuite::from(SuiteName::Aes256Gcm), TlsSuite::Aes256Gcm);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum SuiteName {
    /// AES-128-GCM.
    #[value(name = "aes-128-gcm")]
    Aes128Gcm,
    /// AES-256-GCM.
    #[value(name = "aes-256-gcm")]
    Aes256Gcm,
    /// ChaCha20-Poly1305.
    #[value(name = "chacha20-poly1305")]
    ChaCha20Poly1305,
}

impl From<SuiteName> for TlsSuite {
    fn from(name: SuiteName) -> TlsSuite {
        match name {
            SuiteName::Aes128Gcm => TlsSuite::Aes128Gcm,
            SuiteName::Aes256Gcm => TlsSuite::Aes256Gcm,
            SuiteName::ChaCha20Poly1305 => TlsSuite::ChaCha20Poly1305,
        }
    }
}

/// A way to find the place in the stream again.
///
/// ```
/// use offload_api::ResyncMode;
/// use nicbench::tls_options::ResyncName;
///
/// assert_eq!(ResyncMode::from(ResyncName::CoreHint), ResyncMode::CoreHint);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ResyncName {
    /// The NIC searches, and asks.
    DriverRequest,
    /// The NIC waits to be told.
    CoreHint,
    /// The NIC searches, announces a question and asks it later, when TLS has noted the answer.
    Asynchronous,
}

impl From<ResyncName> for ResyncMode {
    fn from(name: ResyncName) -> ResyncMode {
        match name {
            ResyncName::DriverRequest => ResyncMode::DriverRequest,
            ResyncName::CoreHint => ResyncMode::CoreHint,
            ResyncName::Asynchronous => ResyncMode::Asynchronous,
        }
    }
}

/// A way to go on after a retransmission.
///
/// ```
/// use nic_sim::TransmitResync;
/// use nicbench::tls_options::TransmitResyncName;
///
/// assert_eq!(TransmitResync::from(TransmitResyncName::Dump), TransmitResync::Dump);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum TransmitResyncName {
    /// The NIC reads the record's earlier bytes once more.
    Dump,
    /// Software seals the record, the NIC goes on with the next.
    NextRecord,
}

impl From<TransmitResyncName> for TransmitResync {
    fn from(name: TransmitResyncName) -> TransmitResync {
        match name {
            TransmitResyncName::Dump => TransmitResync::Dump,
            TransmitResyncName::NextRecord => TransmitResync::NextRecord,
        }
    }
}
