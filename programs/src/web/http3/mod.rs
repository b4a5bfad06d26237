//! HTTP/3 (RFC 9114) over `quic-offload`: crate `h3` does the framing, the NIC or the CPU protects packets.
//!
//! [`server`] serves a [`Site`](super::site::Site) within [`WebLimits`](super::limits::WebLimits); `body` reads the bodies of
//! requests. [`quic_offload::http3`] has the streams.

mod body;
pub mod server;

use core::fmt;
use core::str::FromStr;

/// The end that protects the packets: CPU or NIC.
///
/// ```
/// use offload_programs::web::http3::Mode;
///
/// assert_eq!("h3-nic".parse(), Ok(Mode::Nic));
/// assert_eq!(Mode::Cpu.port(), 8443);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// The host.
    Cpu,
    /// The NIC.
    Nic,
}

impl Mode {
    /// All modes.
    pub const ALL: [Mode; 2] = [Mode::Cpu, Mode::Nic];

    /// Returns the default port, one of the usual ports of HTTPS.
    pub const fn port(self) -> u16 {
        match self {
            Mode::Cpu => 8443,
            Mode::Nic => 443,
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Mode::Cpu => "h3-cpu",
            Mode::Nic => "h3-nic",
        })
    }
}

impl FromStr for Mode {
    type Err = String;
    fn from_str(text: &str) -> Result<Mode, String> {
        Mode::ALL.into_iter().find(|mode| mode.to_string() == text).ok_or_else(|| "h3-cpu or h3-nic".into())
    }
}
