//! Options of the emulated host's TCP.

use clap::{Args, ValueEnum};
use core::time::Duration;
use offload_cli::options::bytes;
use offload_host_stack::{CongestionAlgorithm, Ecn, TcpConfig};

/// The options of TCP.
#[derive(Args, Clone, Debug)]
pub(super) struct TcpOptions {
    /// Congestion control algorithm
    #[arg(long, default_value = "cubic", requires = "end")]
    pub(super) congestion: Congestion,
    /// Request explicit congestion notification (ECN). Requests of peers are accepted in any case
    #[arg(long, requires = "end")]
    pub(super) ecn: bool,
    /// Bytes of a connection's send buffer and of its receive buffer: 16MiB. Default: 4 MiB and 6 MiB
    #[arg(long, value_name = "SIZE", value_parser = bytes, requires = "end")]
    pub(super) buffers: Option<u64>,
}

/// Congestion control algorithms.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(super) enum Congestion {
    /// RFC 9438.
    Cubic,
    /// RFC 5681.
    NewReno,
}

/// Time that a peer outside may keep its window closed while still answering; then the connection is given up.
const ZERO_WINDOW: Duration = Duration::from_secs(300);

impl TcpOptions {
    /// Returns the default configuration of TCP, changed by these options.
    pub(super) fn config(&self) -> TcpConfig {
        let usual = TcpConfig::default();
        let buffer = |usual| self.buffers.map_or(usual, |bytes| bytes as usize);
        TcpConfig {
            send_buffer: buffer(usual.send_buffer),
            receive_buffer: buffer(usual.receive_buffer),
            congestion: match self.congestion {
                Congestion::Cubic => CongestionAlgorithm::Cubic,
                Congestion::NewReno => CongestionAlgorithm::NewReno,
            },
            zero_window_timeout: Some(ZERO_WINDOW),
            ecn: if self.ecn { Ecn::Request } else { usual.ecn },
            ..usual
        }
    }
}
