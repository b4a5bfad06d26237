//! How fast the kernel sends what is in a socket of TCP: packets leave one after the other, and not in the bursts of a window that opens.

use crate::pace::Rate;
use nix::sys::socket::SetSockOpt;
use nix::{getsockopt_impl, libc, setsockopt_impl, sockopt_impl};
use tokio::net::TcpStream;

sockopt_impl!(
    /// Bytes per second (socket(7) has it since Linux 3.13; since 4.20 it takes 64 bits, where a `long` has them).
    MaxPacingRate,
    Both,
    libc::SOL_SOCKET,
    libc::SO_MAX_PACING_RATE,
    u64
);

/// Has the kernel send no faster than `rate` on this connection, packet by packet; a wish, which a kernel may not know.
///
/// ```
/// # async fn example(stream: tokio::net::TcpStream) {
/// offload_reservoir::tls::pace(&stream, Some("1G".parse().unwrap()));
/// # }
/// ```
pub fn pace(stream: &TcpStream, rate: Option<Rate>) {
    let Some(rate) = rate else { return };
    // The kernel counts heads of packets and records too, the rate is that of what they bring.
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
        // More than fits in 32 bits.
        pace(&stream, Some("100G".parse().unwrap()));
        assert_eq!(MaxPacingRate.get(&stream), Ok(13_281_250_000));
    }
}
