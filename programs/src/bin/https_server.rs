//! Serves a folder over HTTP/1.1 from an emulated host: over plain TCP, over TLS on the CPU, and over TLS on the NIC.
//!
//! `cargo run --release --bin https_server -- [FOLDER]` fetches every file, including subfolders, from a second
//! emulated host and prints the cost of each mode. `cargo run --release --features tap --bin https_server -- [FOLDER]
//! --tap nic0` serves this machine and prints the commands to run there.

use clap::Parser;
use futures_util::future::join_all;
use nic_sim::NicConfig;
use offload_base::Seed;
use offload_cli::program;
use offload_cli::trace_options::TraceFile;
use offload_console::say;
use offload_programs::outside::{RunFiles, Stop, authority_file, begin_capture, listed, told, unusable};
use offload_programs::web::Mode;
use offload_programs::web::comparison::{self, Comparison};
use offload_programs::web::folder::FolderOptions;
use offload_programs::web::pin::Pin;
use offload_programs::web::server::Server;
use offload_testbed::bed::ClockKind;
use offload_testbed::identity::{self, Randomness};
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Serves a folder over HTTP/1.1 from an emulated host, in three modes: http, https-cpu (TLS by the host) and https-nic
/// (TLS by the NIC). Without an end for its wire, a client on a second emulated host fetches every file, including
/// subfolders, whole and in ranges, and a table shows the cost. With an end, any peer is served: http at port 80,
/// https-nic at 443, https-cpu at 8443.
///
/// Ctrl-C or SIGTERM ends the server; pending answers have ten more seconds, or until a second Ctrl-C.
///
/// Exit status: 0; 1 if something did not arrive as it should, or the TAP was deleted; 2 if an option is bad or nothing
/// can be served.
#[derive(Debug, Parser)]
#[command(name = "https_server", version, allow_negative_numbers = true)]
struct Options {
    /// The folder to serve. Default: three files of seeded data, or this folder if the wire has an end
    folder: Option<PathBuf>,
    /// Only these modes, comma-separated: http, https-cpu, https-nic
    #[arg(long, value_delimiter = ',', default_values_t = Mode::ALL)]
    mode: Vec<Mode>,
    /// Serve at this port; for one mode only
    #[arg(long)]
    port: Option<u16>,
    /// Change the transmit key of each TLS connection after this many records
    #[arg(long, value_name = "RECORDS", value_parser = clap::value_parser!(u64).range(2..))]
    records_per_key: Option<u64>,
    /// Connections of the built-in client
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=1000))]
    connections: u16,
    /// SHA-256 of the only certificate that the built-in client accepts. The server's own is printed at the start
    #[arg(long, value_name = "SHA256")]
    pin: Option<Pin>,
    #[command(flatten)]
    serving: FolderOptions,
}

fn main() -> ExitCode {
    program::main(NAME, |options: &Options| {
        let has_end = options.serving.outside.is_asked_for();
        told(NAME, if has_end { serve(options) } else { compare(options) })
    })
}

/// Serves the peer at the other end of the wire until interrupted and returns the counters as text.
fn serve(options: &Options) -> Result<String, Stop> {
    if options.port.is_some() && options.mode.len() != 1 {
        return Err(unusable("--port is for one --mode only"));
    }
    let folder = options.folder.as_deref().unwrap_or(Path::new("."));
    let (site, mut outside) = options.serving.open(NAME, "server", folder)?;
    let limits = options.serving.limits.limits();
    let servers: Vec<Server> = options
        .mode
        .iter()
        .map(|mode| {
            Server::new(site.clone(), *mode, identity::server_config(Randomness::System, outside.secrets()))
                .with_records_per_key(options.records_per_key)
                .with_limits(limits.clone())
        })
        .collect();
    let port = |mode: &Mode| options.port.unwrap_or(mode.port());
    // All servers share the limits, so that one client cannot use up each mode's slots in turn.
    let listening = || servers.iter().zip(&options.mode);
    let ended = outside.until_interrupted(
        &instructions(options, site.folder()),
        |host| listening().map(|(server, mode)| server.listen(host, port(mode))).collect::<Result<Vec<_>, _>>(),
        join_all(servers.iter().map(Server::close)),
    );
    let mut counters = outside.end()?;
    ended?;
    servers.iter().for_each(|server| counters.add_set(&server.counters()));
    Ok(listed(&counters))
}

/// Returns the commands to run at the other end.
fn instructions(options: &Options, folder: &Path) -> String {
    let address = options.serving.outside.address;
    let mut text = options.serving.instructions(folder);
    for mode in &options.mode {
        let port = options.port.unwrap_or(mode.port());
        let (how, url) = if mode.is_secure() {
            let (name, authority) = ("server.nic-offload.test", authority_file());
            (format!("--cacert {authority} --resolve {name}:{port}:{address} "), format!("https://{name}:{port}/"))
        } else {
            (String::new(), format!("http://{address}:{port}/"))
        };
        text += &format!("  curl {how}{url}\n  curl {how}-T FILE {url}\n");
    }
    text + &pin_to_take() + &second_pin() + "Ctrl-C ends it and prints the counters.\n"
}

/// Returns a line with the SHA-256 of the certificate for clients without Ed25519.
fn second_pin() -> String {
    format!(
        "Clients without Ed25519 are shown an ECDSA certificate: {}\n",
        Pin::for_certificate(&identity::server_certificate_p256())
    )
}

/// Returns a line with the SHA-256 of the certificate, for a client's `--pin`.
fn pin_to_take() -> String {
    format!(
        "The SHA-256 of the server's certificate, for a client's --pin: {}\n",
        Pin::for_certificate(&identity::server_certificate())
    )
}

/// Serves a second emulated host, once for each mode, and returns a table of the costs.
fn compare(options: &Options) -> Result<String, Stop> {
    if options.port.is_some() {
        return Err(unusable("--port is for a wire with an end: --tap, --dgram, --stream"));
    }
    let (wire, trace) = (&options.serving.wire, &options.serving.trace);
    let seed = wire.seed();
    let own = match options.folder {
        Some(_) => None,
        None => Some(SeededFolder::new(seed).map_err(unusable)?),
    };
    let folder = options.folder.as_deref().or(own.as_ref().map(|own| &*own.0)).unwrap_or(Path::new("."));
    // Virtual time is the default, because a comparison should be the same on every run.
    let comparison = Comparison {
        connections: usize::from(options.connections),
        clock: if wire.real { ClockKind::Real } else { ClockKind::Virtual },
        seed,
        link: wire.link(),
        nic: NicConfig { mtu: wire.mtu, ..NicConfig::default() },
        pin: options.pin,
        records_per_key: options.records_per_key,
        ..Comparison::new(folder).map_err(unusable)?
    };
    RunFiles { served: Some(folder), ..RunFiles::new(trace) }.check(&options.serving.outside)?;
    let run = |comparison: &Comparison, mode: Mode| {
        comparison.run(mode).map_err(|error| (format!("{mode}: {error}"), program::FAILED))
    };
    if options.mode.len() > 1 {
        // The first run pays for memory that later runs find ready. A discarded run keeps that cost out of the
        // comparison.
        run(&Comparison { connections: 1, ..comparison.clone() }, options.mode[0])?;
    }
    let mut rows = Vec::new();
    for (at, mode) in options.mode.iter().enumerate() {
        let last = at + 1 == options.mode.len();
        let capture = trace.pcap.as_deref().filter(|_| last).map(begin_capture).transpose().map_err(unusable)?;
        let trace = if last { trace.begin().map_err(unusable)? } else { None };
        let tracer = trace.as_ref().map(|trace| trace.tracer().clone());
        rows.push(run(&Comparison { capture, tracer, ..comparison.clone() }, *mode)?);
        if let Some(summary) = trace.map(TraceFile::end).transpose().map_err(unusable)? {
            say!("{NAME}: {summary}");
        }
    }
    Ok(pin_to_take() + &comparison::table(&rows))
}

/// A temporary folder with files of the sizes of a page, a picture and a film. Deleted on drop.
struct SeededFolder(PathBuf);

impl SeededFolder {
    fn new(seed: Seed) -> io::Result<SeededFolder> {
        let folder = std::env::temp_dir().join(format!("nic-offload-site-{}", std::process::id()));
        std::fs::create_dir(&folder)?;
        let folder = SeededFolder(folder);
        for (name, bytes) in [("page", 12 << 10), ("picture", 300 << 10), ("film", 24 << 20)] {
            let mut content = vec![0; bytes];
            seed.stream(name).fill(&mut content);
            std::fs::write(folder.0.join(name), content)?;
        }
        Ok(folder)
    }
}

impl Drop for SeededFolder {
    fn drop(&mut self) {
        // The folder is temporary: a failure to delete it does no harm.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

const NAME: &str = "https_server";
