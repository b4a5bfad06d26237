//! HTTP/1.1 and HTTP/3 between emulated hosts, or between one and a peer outside the emulation.
//!
//! - [`site`]: a folder as a web site by the rules of crate `http_rules`: ranges, preconditions;
//! - [`server`]: serves a site over plain TCP, over TLS on the CPU and over TLS on the NIC, without copying files;
//! - [`limits`]: limits of clients; `patience`: time limits of a connection, step by step; `rationed`: memory limits of
//!   a connection;
//! - [`http3`]: the same site over QUIC;
//! - [`folder`]: common options of the programs that serve a folder;
//! - [`client`]: fetches over either; [`pin`]: trusts a single certificate;
//! - [`comparison`]: server and client on two hosts joined by a wire, once for each mode, with the costs; [`content`]:
//!   the files to fetch.

pub mod client;
pub mod comparison;
pub mod content;
pub mod folder;
pub mod http3;
pub mod limits;
mod patience;
mod rationed;
pub mod server;
pub mod site;

pub use offload_reservoir::digest::hexadecimal;
pub use offload_reservoir::pin;

use core::fmt;
use core::str::FromStr;

/// The end that encrypts: CPU or NIC.
///
/// ```
/// use offload_programs::web::Mode;
///
/// assert_eq!("https-nic".parse(), Ok(Mode::HttpsNic));
/// assert_eq!(Mode::Http.port(), 80);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// No encryption: plain HTTP.
    Http,
    /// The hosts' CPUs, with ring.
    HttpsCpu,
    /// The NICs.
    HttpsNic,
}

impl Mode {
    /// All modes.
    pub const ALL: [Mode; 3] = [Mode::Http, Mode::HttpsCpu, Mode::HttpsNic];

    /// Returns the name in tables and options.
    pub const fn name(self) -> &'static str {
        match self {
            Mode::Http => "http",
            Mode::HttpsCpu => "https-cpu",
            Mode::HttpsNic => "https-nic",
        }
    }

    /// Returns the default port.
    pub const fn port(self) -> u16 {
        match self {
            Mode::Http => 80,
            Mode::HttpsCpu => 8443,
            Mode::HttpsNic => 443,
        }
    }

    /// Returns whether the mode uses TLS.
    pub const fn is_secure(self) -> bool {
        !matches!(self, Mode::Http)
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Mode {
    type Err = String;
    fn from_str(text: &str) -> Result<Mode, String> {
        Mode::ALL.into_iter().find(|mode| mode.name() == text).ok_or_else(|| "http, https-cpu or https-nic".into())
    }
}

/// An error at one end of a connection, in any layer.
pub type WebFailure = Box<dyn core::error::Error + Send + Sync>;
