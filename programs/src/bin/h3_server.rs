//! Serves a folder over HTTP/3 from an emulated host with a wire to the outside. Packets are protected by
//! the CPU or by the NIC.
//!
//! `cargo run --release --features tap --bin h3_server -- FOLDER --tap nic0` prints the commands to run at the other
//! end.

use clap::Parser;
use futures_util::future::join_all;
use offload_api::QuicCipher;
use offload_cli::program;
use offload_cli::tls_options::QUIC_CIPHERS;
use offload_programs::outside::{Stop, authority_file, listed, told, unusable};
use offload_programs::web::folder::FolderOptions;
use offload_programs::web::http3::Mode;
use offload_programs::web::http3::server::Server;
use offload_testbed::identity::{self, Randomness};
use quic_offload::Config;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Serves a folder over HTTP/3 from an emulated host: at UDP port 443 the NIC protects packets (h3-nic), at 8443 the
/// CPU does (h3-cpu). GET returns files, whole or in ranges, and folder listings; uploads with PUT or POST are answered
/// with their size and SHA-256.
///
/// Ctrl-C or SIGTERM ends the server; pending answers have ten more seconds, or until a second Ctrl-C.
///
/// Exit status: 0; 1 if the TAP was deleted; 2 if an option is bad, or the folder or the wire's end cannot be opened.
#[derive(Debug, Parser)]
#[command(name = "h3_server", version, allow_negative_numbers = true)]
struct Options {
    /// The folder to serve
    #[arg(default_value = ".")]
    folder: PathBuf,
    /// Only these modes, comma-separated: h3-cpu, h3-nic
    #[arg(long, value_delimiter = ',', default_values_t = Mode::ALL)]
    mode: Vec<Mode>,
    /// The cipher that the server prefers for packets
    #[arg(long, value_parser = QUIC_CIPHERS.parser(), default_value = "aes128-gcm")]
    suite: QuicCipher,
    /// Request a key update after this many packets; QUIC allows one every three probe timeouts
    #[arg(long, value_name = "PACKETS", value_parser = clap::value_parser!(u64).range(1..))]
    key_update_every: Option<u64>,
    /// Paths that a client may use at a time on a connection (draft-ietf-quic-multipath-21)
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=8))]
    paths: u32,
    #[command(flatten)]
    serving: FolderOptions,
}

fn main() -> ExitCode {
    program::main(NAME, |options| told(NAME, serve(options)))
}

/// Serves the peer at the other end of the wire until interrupted and returns the counters as text.
fn serve(options: &Options) -> Result<String, Stop> {
    let (site, mut outside) = options.serving.open(NAME, "server", &options.folder)?;
    let limits = options.serving.limits.limits();
    // The MTU less the headers of IPv6 and UDP.
    let config = Config::default().with(|c| {
        c.paths = options.paths;
        c.max_connections = options.serving.limits.max_connections();
        c.udp_payload = options.serving.wire.mtu.saturating_sub(48).max(1200);
    });
    let servers = options.mode.iter().map(|mode| {
        let tls = identity::quic_server_config(options.suite, Randomness::System, outside.secrets());
        let server = Server::new(site.clone(), *mode, tls, config.clone()).map_err(unusable)?;
        Ok(server.with_limits(limits.clone()).with_key_update_every(options.key_update_every))
    });
    // All servers share the limits, so that one client cannot use up each mode's slots in turn.
    let servers = servers.collect::<Result<Vec<_>, Stop>>()?;
    let listening = || servers.iter().zip(&options.mode);
    let ended = outside.until_interrupted(
        &instructions(options, site.folder()),
        |host| listening().map(|(server, mode)| server.listen(host, mode.port())).collect::<Result<Vec<_>, _>>(),
        join_all(servers.iter().map(Server::close)),
    );
    let mut counters = outside.end()?;
    ended?;
    servers.iter().for_each(|server| counters.add_set(&server.counters()));
    Ok(listed(&counters))
}

/// Returns the commands to run at the other end.
fn instructions(options: &Options, folder: &Path) -> String {
    let (address, authority) = (options.serving.outside.address, authority_file());
    let mut text = options.serving.instructions(folder);
    for mode in &options.mode {
        let (name, port) = ("server.nic-offload.test", mode.port());
        text += &format!(
            "  curl --http3-only --cacert {authority} --resolve {name}:{port}:{address} https://{name}:{port}/\n"
        );
    }
    text + "Ctrl-C ends it and prints the counters.\n"
}

const NAME: &str = "h3_server";
