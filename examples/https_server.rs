//! Serves a folder over HTTP/1.1 from an emulated host: over plain TCP, over TLS on the CPU, over TLS on the NIC.
//!
//! `cargo run --release --example https_server -- [FOLDER]` fetches everything from a second emulated host, and shows what
//! each way cost. `cargo run --release --features tap --example https_server -- [FOLDER] --tap nic0` serves this machine,
//! and prints what to do there.

use clap::Parser;
use ktls_offload::SendFileError;
use nic_sim::NicConfig;
use offload_base::Seed;
use offload_bench::options::WireOptions;
use offload_examples::web::comparison::{self, Comparison, tokio_pool};
use offload_examples::web::outside::{Outside, OutsideOptions, begin_capture, interrupted, listed};
use offload_examples::web::pin::Pin;
use offload_examples::web::server::Server;
use offload_examples::web::site::Site;
use offload_examples::web::{Failure, Mode};
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use testbed::bed::ClockKind;
use testbed::identity::{self, Randomness};

/// Serves a folder over HTTP/1.1 from an emulated host, in three modes: http, https-cpu (TLS by the host) and https-nic
/// (TLS by the NIC). Without an end for its wire, a client on a second emulated host fetches every file, whole and in
/// ranges, and a table tells what that cost. With one, whoever is there is served: http at port 80, https-nic at 443,
/// https-cpu at 8443.
///
/// Exit status: 0; 1 if something did not arrive as it should; 2 if an option is bad or nothing can be served.
#[derive(Debug, Parser)]
#[command(name = "https_server", version, allow_negative_numbers = true)]
struct Options {
    /// What to serve. Without it: three files of seeded data, or with an end for the wire, this folder
    folder: Option<PathBuf>,
    /// Only these modes, comma-separated: http, https-cpu, https-nic
    #[arg(long, value_delimiter = ',', default_values_t = Mode::ALL)]
    mode: Vec<Mode>,
    /// Serve at this port; for one mode only
    #[arg(long)]
    port: Option<u16>,
    /// Change the transmit key of each TLS connection after so many records
    #[arg(long, value_name = "RECORDS", value_parser = clap::value_parser!(u64).range(2..))]
    records_per_key: Option<u64>,
    /// Connections of the built-in client
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=1000))]
    connections: u16,
    /// The SHA-256 of the only certificate that the built-in client takes
    #[arg(long, value_name = "SHA256")]
    pin: Option<Pin>,
    /// Capture what the server's NIC sends and receives, in the last mode (pcapng, TLS secrets inside)
    #[arg(long, value_name = "FILE")]
    pcap: Option<PathBuf>,
    #[command(flatten)]
    outside: OutsideOptions,
    #[command(flatten)]
    wire: WireOptions,
}

fn main() -> ExitCode {
    let options = Options::parse();
    let result = if options.outside.is_asked_for() { serve(&options) } else { compare(&options) };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err((message, status)) => {
            eprintln!("https_server: {message}");
            ExitCode::from(status)
        }
    }
}

/// What went wrong, and the exit status that says so.
type Stop = (String, u8);

fn unusable(message: impl ToString) -> Stop {
    (message.to_string(), UNUSABLE)
}

/// Serves whoever is at the other end of the wire until it is interrupted.
fn serve(options: &Options) -> Result<(), Stop> {
    if options.wire.virtual_time {
        return Err(unusable("what is outside the emulation has no virtual time"));
    }
    if options.port.is_some() && options.mode.len() != 1 {
        return Err(unusable("--port is for one --mode only"));
    }
    let folder = options.folder.as_deref().unwrap_or(Path::new("."));
    let site = Site::new(folder, tokio_pool()).map_err(|error| unusable(format!("{}: {error}", folder.display())))?;
    let capture = options.pcap.as_deref().map(begin_capture).transpose().map_err(unusable)?;
    let outside = Outside::open(&options.outside).map_err(unusable)?;
    let mut bed = outside.bed("server", &options.outside, &options.wire, capture.as_ref()).map_err(unusable)?;
    let host = bed.host(0).clone();
    let servers: Vec<Server> = options
        .mode
        .iter()
        .map(|mode| {
            let secrets = capture.clone().map(|capture| Arc::new(capture) as Arc<dyn rustls::KeyLog>);
            Server::new(site.clone(), *mode, identity::server_config(Randomness::System, secrets))
                .with_records_per_key(options.records_per_key)
        })
        .collect();
    bed.run(async {
        let mut listening = Vec::new();
        for (server, mode) in servers.iter().zip(&options.mode) {
            listening.push(server.listen(&host, options.port.unwrap_or(mode.port()))?);
        }
        print!("{}", instructions(options, site.folder()));
        interrupted().await
    })
    .map_err(unusable)?;
    let mut counters = bed.counters();
    outside.count(&mut counters);
    for server in &servers {
        counters.add_set(&server.counters());
    }
    print!("{}", listed(&counters));
    capture.map_or(Ok(()), |capture| capture.finish()).map_err(|error| unusable(format!("the capture: {error}")))
}

/// What to do at the other end.
fn instructions(options: &Options, folder: &Path) -> String {
    let address = options.outside.address;
    let mut text = format!(
        "{address} and {} serve {}. At the other end, as root:\n{}then\n  ping {address}\n",
        options.outside.address6,
        folder.display(),
        options.outside.set_up(options.wire.mtu)
    );
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
    text + "Ctrl-C ends it and shows what was counted.\n"
}

fn authority_file() -> &'static str {
    concat!(env!("CARGO_MANIFEST_DIR"), "/../crates/testbed/identity/ca.pem")
}

/// Serves a second emulated host, once for each mode.
fn compare(options: &Options) -> Result<(), Stop> {
    if options.port.is_some() {
        return Err(unusable("--port is for a wire with an end: --tap, --dgram, --stream"));
    }
    let seed = Seed(options.wire.seed);
    let own = match options.folder {
        Some(_) => None,
        None => Some(SeededFolder::new(seed).map_err(unusable)?),
    };
    let folder = options.folder.as_deref().or(own.as_ref().map(|own| &*own.0)).unwrap_or(Path::new("."));
    let comparison = Comparison {
        connections: usize::from(options.connections),
        clock: if options.wire.real { ClockKind::Real } else { ClockKind::Virtual },
        seed,
        link: options.wire.link(),
        nic: NicConfig { mtu: options.wire.mtu, ..NicConfig::default() },
        pin: options.pin,
        records_per_key: options.records_per_key,
        ..Comparison::new(folder)
    };
    let run = |comparison: &Comparison, mode: Mode| {
        comparison.run(mode).map_err(|error| (format!("{mode}: {error}"), status_of(&error)))
    };
    if options.mode.len() > 1 {
        // Whatever runs first pays for memory that the others find ready. Let that be none of those compared.
        run(&Comparison { connections: 1, ..comparison.clone() }, options.mode[0])?;
    }
    let mut rows = Vec::new();
    for (at, mode) in options.mode.iter().enumerate() {
        let last = at + 1 == options.mode.len();
        let capture = options.pcap.as_deref().filter(|_| last).map(begin_capture).transpose().map_err(unusable)?;
        rows.push(run(&Comparison { capture, ..comparison.clone() }, *mode)?);
    }
    print!("{}", comparison::table(&rows));
    Ok(())
}

/// A folder that is of no use is nobody's failure to deliver.
fn status_of(error: &Failure) -> u8 {
    let unusable = error.downcast_ref::<io::Error>().is_some_and(|error| {
        !error.get_ref().is_some_and(|inner| inner.is::<SendFileError>())
            && matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
    });
    if unusable { UNUSABLE } else { NOT_ARRIVED }
}

/// A folder with a page, a picture and a film, as far as their sizes go, that goes when this does.
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
        // It is among the temporary files: nothing depends on its going.
        let _remains = std::fs::remove_dir_all(&self.0);
    }
}

/// Something that was asked for did not arrive as it should.
const NOT_ARRIVED: u8 = 1;
/// A bad option, an unreadable folder, or no right to open the TAP.
const UNUSABLE: u8 = 2;
