//! Packet pacing of TCP sockets by the kernel, so that packets leave evenly instead of in bursts when a window opens.

use crate::pace::Rate;
use nix::sys::socket::SetSockOpt;
use nix::{getsockopt_impl, libc, setsockopt_impl, sockopt_impl};
use tokio::net::TcpStream;

sockopt_impl!(
    /// Bytes per second (socket(7), since Linux 3.13; with 64 bits since 4.20, where `long` has 64 bits).
    MaxPacingRate,
    Both,
    libc::SOL_SOCKET,
    libc::SO_MAX_PACING_RATE,
    u64
);

/// Asks the kernel to pace this connection at `rate`. Kernels without this option ignore the request.
///
/// ```
/// # async fn example(stream: tokio::net::TcpStream) {
/// offload_reservoir::tls::pace(&stream, Some("1G".parse().unwrap()));
/// # }
/// ```
pub fn pace(stream: &TcpStream, rate: Option<Rate>) {
    let Some(rate) = rate else { return };
    // The kernel counts packet and record headers too, but the rate is that of the payload.
    let bytes = rate.as_bits().div_ceil(8);
    if let Err(error) = MaxPacingRate.set(stream, &(bytes + bytes / 16)) {
        tracing::debug!(%error, "the kernel does not pace a connection");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::socket::GetSockOpt;

    #[tokio::test]
    async fn a_connection_has_its_rate() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        pace(&stream, None);
        assert_eq!(MaxPacingRate.get(&stream), Ok(u64::MAX));
        // A rate that exceeds 32 bits.
        pace(&stream, Some("100G".parse().unwrap()));
        assert_eq!(MaxPacingRate.get(&stream), Ok(13_281_250_000));
    }
}
