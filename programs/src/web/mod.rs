//! HTTP/1.1 and HTTP/3 between emulated hosts, or between one and the rest of the world (`outside`).
//!
//! - [`site`]: a folder as a web site, as crate `http_rules` has it: ranges, preconditions;
//! - [`server`]: serves it over plain TCP, TLS on the CPU, TLS on the NIC; files go out as `ktls_offload` sends them;
//! - [`limits`]: what clients may take of a server; `patience`: how long it waits for one, step by step; `rationed`: what one
//!   may have in memory;
//! - [`http3`]: the same site over QUIC;
//! - [`folder`]: what the programs that serve one have in common;
//! - [`client`]: fetches, over either; [`pin`]: trusts one certificate and no other;
//! - [`comparison`]: both on two hosts joined by a wire, once for each mode, and what that cost; [`content`]: what there
//!   is to fetch.

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
    /// Nobody: plain HTTP.
    Http,
    /// The hosts, with ring.
    HttpsCpu,
    /// The NICs.
    HttpsNic,
}

impl Mode {
    /// All of them.
    pub const ALL: [Mode; 3] = [Mode::Http, Mode::HttpsCpu, Mode::HttpsNic];

    /// What it is called in tables and options.
    pub const fn name(self) -> &'static str {
        match self {
            Mode::Http => "http",
            Mode::HttpsCpu => "https-cpu",
            Mode::HttpsNic => "https-nic",
        }
    }

    /// Where it is served if nothing else is said.
    pub const fn port(self) -> u16 {
        match self {
            Mode::Http => 80,
            Mode::HttpsCpu => 8443,
            Mode::HttpsNic => 443,
        }
    }

    /// Whether there is TLS at all.
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

/// What goes wrong at one end of a connection, in whichever layer.
pub type Failure = Box<dyn core::error::Error + Send + Sync>;
