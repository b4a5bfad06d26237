//! Serves a folder over HTTP/3 from an emulated host whose wire ends outside: packets protected by the CPU, and by the NIC.
//!
//! `cargo run --release --features tap --example h3_server -- FOLDER --tap nic0` prints what to do at the other end.

use clap::Parser;
use nicbench::files::check_outside;
use nicbench::options::WireOptions;
use nicbench::program;
use offload_examples::outside::{
    Outside, OutsideOptions, authority_file, begin_capture, keyed_until_interrupted, listed, stop, take_leave,
};
use offload_examples::web::comparison::tokio_pool;
use offload_examples::web::http3::Mode;
use offload_examples::web::http3::server::Server;
use offload_examples::web::limits::LimitOptions;
use offload_examples::web::site::Site;
use offload_testbed::identity::{self, Randomness};
use quic_offload::Config;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

/// Serves a folder over HTTP/3 from an emulated host: at UDP port 443 the NIC protects packets (h3-nic), at 8443 the CPU does
/// (h3-cpu). GET gives files, whole or in ranges, and lists folders; what is sent with PUT or POST is answered with its size and
/// SHA-256.
///
/// Ctrl-C or SIGTERM ends it; answers under way have ten more seconds, or until a second Ctrl-C.
///
/// Exit status: 0; 1 if the TAP was deleted; 2 if an option is bad, or the folder or the wire's end cannot be opened.
#[derive(Debug, Parser)]
#[command(name = "h3_server", version, allow_negative_numbers = true)]
struct Options {
    /// What to serve
    #[arg(default_value = ".")]
    folder: PathBuf,
    /// Only these modes, comma-separated: h3-cpu, h3-nic
    #[arg(long, value_delimiter = ',', default_values_t = Mode::ALL)]
    mode: Vec<Mode>,
    /// Ask for other keys after so many packets; QUIC allows it every three probe timeouts
    #[arg(long, value_name = "PACKETS", value_parser = clap::value_parser!(u64).range(1..))]
    key_update_every: Option<u64>,
    /// Paths of a connection that a client may have at a time (draft-ietf-quic-multipath-21)
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=8))]
    paths: u32,
    /// Capture what the server's NIC sends and receives (pcapng, TLS secrets inside)
    #[arg(long, value_name = "FILE")]
    pcap: Option<PathBuf>,
    #[command(flatten)]
    outside: OutsideOptions,
    #[command(flatten)]
    limits: LimitOptions,
    #[command(flatten)]
    wire: WireOptions,
}

fn main() -> ExitCode {
    program::main(NAME, execute)
}

fn execute(options: &Options) -> ExitCode {
    match serve(options) {
        Ok(text) => program::write_out(NAME, &text),
        Err((message, status)) => program::fail(NAME, &message, status),
    }
}

/// Serves the peer at the other end of the wire until it is interrupted, and tells what was counted.
fn serve(options: &Options) -> Result<String, (String, u8)> {
    options.outside.check(&options.wire).map_err(unusable)?;
    let site = Site::new(&options.folder, tokio_pool())
        .map_err(|error| unusable(format!("{}: {error}", options.folder.display())))?;
    let outside = Outside::open(&options.outside).map_err(unusable)?;
    if let Some(pcap) = &options.pcap {
        check_outside(&options.folder, pcap).map_err(unusable)?;
    }
    let capture = options.pcap.as_deref().map(begin_capture).transpose().map_err(unusable)?;
    let mut bed = outside.bed("server", &options.outside, &options.wire, capture.as_ref(), None).map_err(unusable)?;
    let host = bed.host(0).clone();
    let limits = options.limits.limits();
    // IPv6's and UDP's headers.
    let config = Config {
        paths: options.paths,
        max_connections: options.limits.max_connections(),
        udp_payload: options.wire.mtu.saturating_sub(48).max(1200),
        ..Config::default()
    };
    let servers = options.mode.iter().map(|mode| {
        let secrets = capture.clone().map(|capture| Arc::new(capture) as Arc<dyn rustls::KeyLog>);
        let tls = identity::server_config(Randomness::System, secrets);
        let server = Server::new(site.clone(), *mode, tls, config.clone()).map_err(unusable)?;
        Ok(server.with_limits(limits.clone()).with_key_update_every(options.key_update_every))
    });
    let servers = servers.collect::<Result<Vec<_>, _>>()?;
    let ended = bed.run(async {
        let mut listening = Vec::new();
        for (server, mode) in servers.iter().zip(&options.mode) {
            listening.push(server.listen(&host, mode.port())?);
        }
        // Whoever does not want to read this may want to be served.
        let _written = program::write_out(NAME, &instructions(options, site.folder()));
        keyed_until_interrupted(&outside, &host, &options.outside).await?;
        let _end_with_the_host = listening;
        take_leave(&host, servers.iter().map(Server::close)).await
    });
    ended.map_err(stop)?;
    let mut counters = bed.counters();
    outside.count(&mut counters);
    servers.iter().for_each(|server| counters.add_set(&server.counters()));
    if let Some(capture) = capture {
        capture.finish().map_err(|error| unusable(format!("the capture: {error}")))?;
    }
    Ok(listed(&counters))
}

fn unusable(message: impl ToString) -> (String, u8) {
    (message.to_string(), program::UNUSABLE)
}

/// What to do at the other end.
fn instructions(options: &Options, folder: &Path) -> String {
    let (address, authority) = (options.outside.address, authority_file());
    let mut text = format!(
        "{} serve {}. At the other end, as root:\n{}then\n  ping {address}\n",
        options.outside.host(),
        folder.display(),
        options.outside.set_up(options.wire.mtu)
    );
    for mode in &options.mode {
        let (name, port) = ("server.nic-offload.test", mode.port());
        text += &format!(
            "  curl --http3-only --cacert {authority} --resolve {name}:{port}:{address} https://{name}:{port}/\n"
        );
    }
    text + "Ctrl-C ends it and shows what was counted.\n"
}

const NAME: &str = "h3_server";
