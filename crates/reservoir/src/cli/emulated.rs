//! `reservoir serve` on an emulated host with TLS offload to its NIC. The wire ends at a TAP device of this machine or
//! at a QEMU network card.

use crate::serve::ServeOptions;
use clap::Args;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::path::PathBuf;
use std::process::ExitCode;

/// Options of the emulated host and its wire.
#[derive(Args, Debug)]
pub(crate) struct HostOptions {
    /// Serve from an emulated host whose wire ends at this TAP device, which is created if missing
    #[arg(long, value_name = "NAME", group = "end")]
    tap: Option<String>,
    /// Serve from an emulated host whose wire ends at a QEMU's `-netdev dgram`: the socket of this side, and the socket
    /// of the other side
    #[arg(long, value_names = ["OURS", "THEIRS"], num_args = 2, group = "end")]
    dgram: Vec<PathBuf>,
    /// IPv4 address of the emulated host
    #[arg(long, default_value = "10.77.0.1", requires = "end")]
    address: Ipv4Addr,
    /// IPv4 address that the other end should take
    #[arg(long, default_value = "10.77.0.2", requires = "end")]
    peer: Ipv4Addr,
    /// Additional IPv6 address of the emulated host
    #[arg(long, value_name = "ADDRESS", default_value = "fd77::1", requires = "end")]
    address6: Ipv6Addr,
    /// Maximum length of IP packets of the emulated host
    #[arg(long, value_name = "SIZE", default_value_t = 1500, value_parser = clap::value_parser!(u16).range(1280..=9216), requires = "end")]
    mtu: u16,
    /// Send and receive buffer of a connection on the emulated host: 64MiB. Default: 4 MiB and 6 MiB
    #[arg(long, value_name = "SIZE", requires = "end", value_parser = buffer)]
    buffers: Option<bytesize::ByteSize>,
    /// Do the TLS on the emulated host's CPU instead of its NIC
    #[arg(long, requires = "end")]
    cpu: bool,
}

impl HostOptions {
    /// Returns whether an emulated host is requested.
    pub(crate) fn is_asked_for(&self) -> bool {
        self.tap.is_some() || !self.dgram.is_empty()
    }
}

/// Parses the size of a buffer. A connection stalls with less than a few packets.
fn buffer(text: &str) -> Result<bytesize::ByteSize, String> {
    let size = text.parse::<bytesize::ByteSize>().ok().filter(|size| (64 << 10..=1 << 30).contains(&size.0));
    size.ok_or_else(|| "takes a size from 64KiB to 1GiB".to_owned())
}

/// Serves until a signal, or until the TAP device is deleted.
#[cfg(feature = "tap")]
pub(crate) fn run(options: &ServeOptions) -> ExitCode {
    match host::serve_from_host(options) {
        Ok(counted) => {
            crate::print(&counted);
            ExitCode::SUCCESS
        }
        Err((message, status)) => crate::fail(&message, status),
    }
}

/// Reports that this program was built without emulated hosts.
#[cfg(not(feature = "tap"))]
pub(crate) fn run(options: &ServeOptions) -> ExitCode {
    let HostOptions { address, peer, address6, mtu, buffers, cpu, .. } = &options.host;
    let _ = (address, peer, address6, mtu, buffers, cpu);
    crate::fail("this was built without emulated hosts: build with --features tap", crate::UNUSABLE)
}

#[cfg(feature = "tap")]
mod host {
    use super::HostOptions;
    use crate::serve::{
        AcceptError, ClientSource, ExitReason, HandshakeFuture, Http3Options, ServeOptions, serve, unusable,
    };
    use core::time::Duration;
    use ktls_offload::Offload;
    use offload_reservoir::dial::DialStream;
    use offload_reservoir::quic::quic_offload::{self, Endpoint};
    use offload_reservoir::rustls::ServerConfig;
    use offload_testbed::attach::End;
    use offload_testbed::host_stack::{Ipv6Config, TcpListener};
    use offload_testbed::nic_sim::Delays;
    use offload_testbed::wire::LinkConfig;
    use offload_testbed::{ClockKind, NicConfig, Seed, TcpConfig, Testbed};
    use std::io;
    use std::net::SocketAddr;
    use std::sync::Arc;

    /// Serves, and returns the counters as text.
    pub(super) fn serve_from_host(options: &ServeOptions) -> Result<String, ExitReason> {
        let end = options.host.end().map_err(unusable)?;
        let mut bed = options.host.bed(&end).map_err(unusable)?;
        let mut config = options.tls()?;
        // The NIC needs the keys.
        config.enable_secret_extraction = true;
        let (host, port) = (bed.host(0).clone(), options.listen.port());
        let address = SocketAddr::from((host.address(), port));
        let ended = bed.run(async {
            let end = &end;
            let listener =
                host.stack().listen(port, BACKLOG).map_err(|error| unusable(format!("port {port}: {error}")))?;
            let by_nic = !options.host.cpu;
            let door = EmulatedListener { listener, config: Arc::new(config), address, by_nic, end };
            let mut kept = None;
            let http3 = match options.http3(address)? {
                Some(Http3Options { tls, config, kept: key }) => {
                    kept = key;
                    let about = |error: io::Error| unusable(format!("UDP port {port}: {error}"));
                    let socket = host.stack().bind_udp(Some(port)).map_err(about)?;
                    let offload = if by_nic { quic_offload::Offload::Both } else { quic_offload::Offload::None };
                    let config = config.with(|c| c.offload = offload).for_mtu(options.host.mtu);
                    let (endpoint, driver) = Endpoint::new(socket, host.runtime(), config, Some(tls)).map_err(about)?;
                    let _quic_task = host.spawn("quic", driver);
                    Some(endpoint)
                }
                None => None,
            };
            serve(options, door, http3, &options.host.instructions()).await?;
            // Connections end when their last bytes are queued, but these bytes can be sent only while this host
            // exists.
            let sent = async {
                while host.stack().tcp_memory() > 0 {
                    tokio::time::sleep(TICK).await;
                }
                tokio::time::sleep(CLOSING).await;
            };
            let _ = tokio::time::timeout(crate::serve::FAREWELL, sent).await;
            drop(kept);
            Ok(())
        });
        let mut counters = bed.counters();
        counters.add(&end.counters());
        ended?;
        Ok(counters.moved().map(|(name, value)| format!("{name:32}\t{value}\n")).collect())
    }

    impl HostOptions {
        fn end(&self) -> io::Result<End> {
            let about = |error: io::Error, path: &std::path::Path| {
                io::Error::new(error.kind(), format!("{}: {error}", path.display()))
            };
            match (&self.tap, &self.dgram[..]) {
                (Some(name), _) => End::tap(name),
                (None, [ours, theirs]) => End::dgram(ours, theirs).map_err(|error| about(error, ours)),
                _ => Err(io::ErrorKind::InvalidInput.into()),
            }
        }

        fn bed(&self, end: &End) -> io::Result<Testbed> {
            let nic = NicConfig {
                mtu: self.mtu,
                delays: Delays::NONE,
                line_rate: None,
                // A host thread that waits for a core must not cause packet loss.
                receive_ring: 8192,
                ..NicConfig::default()
            };
            let usual = TcpConfig::default();
            let buffer = |usual| self.buffers.map_or(usual, |size| usize::try_from(size.0).unwrap_or(usual));
            let tcp = TcpConfig {
                send_buffer: buffer(usual.send_buffer),
                receive_buffer: buffer(usual.receive_buffer),
                zero_window_timeout: Some(ZERO_WINDOW),
                ..usual
            };
            let wire = LinkConfig { rate: None, delay: Duration::ZERO, ..LinkConfig::default() };
            // The seed is not used: the wire loses no packets, and secrets come from the system.
            Testbed::builder(Seed(1))
                .clock(ClockKind::Real)
                .host("server", nic, tcp)
                .address(self.address)
                .ipv6(Ipv6Config::new(self.address6))
                .attach(0, end.name(), end.port(), wire)
                .build()
        }

        /// Returns the commands for the other end.
        fn instructions(&self) -> String {
            let device = self.tap.as_deref().unwrap_or("eth0");
            format!(
                "At the other end, as root:\n  ip addr add {}/24 dev {device}\n  ip link set {device} mtu {} up\n\
                 Ctrl-C ends the server and prints its counters.\n",
                self.peer, self.mtu
            )
        }
    }

    /// The emulated host's TCP, with TLS on its NIC.
    struct EmulatedListener<'a> {
        listener: TcpListener,
        config: Arc<ServerConfig>,
        address: SocketAddr,
        by_nic: bool,
        end: &'a End,
    }

    impl ClientSource for EmulatedListener<'_> {
        fn address(&self) -> String {
            self.address.to_string()
        }

        async fn next(&mut self) -> Result<(SocketAddr, HandshakeFuture), AcceptError> {
            let stream = tokio::select! {
                biased;
                error = self.end.gone() => return Err(AcceptError::AnyMore(error)),
                accepted = self.listener.accept() => accepted.map_err(AcceptError::Now)?,
            };
            let (peer, config, by_nic) = (stream.peer_addr(), self.config.clone(), self.by_nic);
            // TCP continues to send queued data after the connection is closed.
            stream.set_user_timeout(Some(LINGER));
            let handshake = async move {
                let mut stream = ktls_offload::accept(stream, config).await.ok()?;
                if by_nic {
                    // If the NIC refuses, the CPU does the TLS.
                    let _ = stream.offload(Offload::BOTH);
                }
                Some(Box::new(stream) as Box<dyn DialStream>)
            };
            Ok((peer, Box::pin(handshake)))
        }
    }

    /// Interval of checks whether all data are sent.
    const TICK: Duration = Duration::from_millis(20);
    /// Time for which the host continues: longer than TCP waits before it repeats a FIN.
    const CLOSING: Duration = Duration::from_secs(1);
    /// Maximum number of connections waiting to be accepted.
    const BACKLOG: usize = 1024;
    /// Maximum time for which a peer may keep its window closed.
    const ZERO_WINDOW: Duration = Duration::from_secs(300);
    /// Maximum time for which sent data may remain unacknowledged.
    const LINGER: Duration = Duration::from_secs(60);
}
