//! Fetches a file over HTTP or HTTPS with an emulated host, from a server outside the emulation.
//!
//! `cargo run --release --features tap --bin https_client -- --tap nic0 --connect 10.77.0.2 https://NAME:PORT/PATH`

use clap::Parser;
use core::net::{IpAddr, SocketAddr};
use core::time::Duration;
use http_rules::range::is_range;
use hyper::Uri;
use hyper::http::uri::Scheme;
use offload_base::counters::CounterSet;
use offload_base::text::with_causes;
use offload_cli::options::WireOptions;
use offload_cli::program;
use offload_cli::trace_options::TraceOptions;
use offload_console::write_out;
use offload_programs::outside::{OutsideHost, OutsideOptions, RunFiles, listed};
use offload_programs::web::client::{HttpsClientTls, Session, read_body};
use offload_programs::web::pin::{Pin, trust};
use offload_programs::web::{WebFailure, hexadecimal};
use offload_testbed::BedHost;
use offload_testbed::identity::{self, Randomness};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use sha2::{Digest, Sha256};
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

/// Fetches files with an emulated host and TLS by its NIC, one after the other on one connection, and prints their
/// sizes and hashes and the counters. The server is outside the emulation, so the wire needs an end: --tap, --dgram or
/// --stream.
///
/// Exit status: 0; 1 if a file did not arrive, or the server's certificate is not trusted; 2 if an option is bad or the
/// wire's end cannot be opened.
#[derive(Debug, Parser)]
#[command(name = "https_client", version, allow_negative_numbers = true)]
struct Options {
    /// URLs to fetch. Names are not looked up: give a name's address with --connect
    #[arg(required = true)]
    urls: Vec<Uri>,
    /// The server's address, if the URL has a name or another address
    #[arg(long, value_name = "ADDRESS")]
    connect: Option<IpAddr>,
    /// Trust the authorities in this file (PEM) instead of the testbed's own
    #[arg(long, value_name = "FILE")]
    cacert: Option<PathBuf>,
    /// Also require that the server's certificate has this SHA-256. https_server prints its own at the start; `openssl
    /// x509 -in FILE -noout -fingerprint -sha256` prints that of any certificate
    #[arg(long, value_name = "SHA256")]
    pin: Option<Pin>,
    /// Fetch only this part: bytes=0-99
    #[arg(long, value_parser = byte_range)]
    range: Option<String>,
    /// Store the file (the last URL's)
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// TLS on the CPU, not on the NIC
    #[arg(long)]
    cpu: bool,
    /// Change the transmit key after this many records
    #[arg(long, value_name = "RECORDS", value_parser = clap::value_parser!(u64).range(2..))]
    records_per_key: Option<u64>,
    #[command(flatten)]
    outside: OutsideOptions,
    #[command(flatten)]
    trace: TraceOptions,
    #[command(flatten)]
    wire: WireOptions,
}

fn main() -> ExitCode {
    program::main(NAME, execute)
}

fn execute(options: &Options) -> ExitCode {
    match run(options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(FetchStop::Unusable(message)) => program::fail(NAME, &message, program::UNUSABLE),
        Err(FetchStop::NotFetched(error)) => program::fail(NAME, &with_causes(&*error), program::FAILED),
    }
}

/// Checks the value of a `Range` header.
fn byte_range(text: &str) -> Result<String, String> {
    if is_range(text) { Ok(text.into()) } else { Err("a range is bytes=0-99, bytes=100- or bytes=-100".into()) }
}

/// The reason why nothing was fetched.
enum FetchStop {
    /// An option, a file or the TAP cannot be used.
    Unusable(String),
    /// The server is unreachable, is not trusted, or did not return the file.
    NotFetched(WebFailure),
}

impl From<(String, u8)> for FetchStop {
    fn from((message, _): (String, u8)) -> FetchStop {
        FetchStop::Unusable(message)
    }
}

fn unusable(message: impl ToString) -> FetchStop {
    FetchStop::Unusable(message.to_string())
}

fn run(options: &Options) -> Result<(), FetchStop> {
    options.outside.check(&options.wire).map_err(unusable)?;
    let target = FetchTarget::from_options(options).map_err(unusable)?;
    if options.outside.changes_keys() {
        return Err(unusable("--key-changes and --mirror are for programs that run until interrupted"));
    }
    let mut tls = if target.secure { Some(client_tls(options, &target).map_err(unusable)?) } else { None };
    let files = RunFiles {
        read: options.cacert.iter().map(PathBuf::as_path).collect(),
        out: options.out.as_deref(),
        ..RunFiles::new(&options.trace)
    };
    // All options are checked before the wire is opened, so that a bad option leaves no TAP behind.
    let mut outside = OutsideHost::open(NAME, "client", &options.outside, &options.wire, &files)?;
    if let (Some(tls), Some(secrets)) = (&mut tls, outside.secrets()) {
        Arc::make_mut(&mut tls.config).key_log = secrets;
    }
    let host = outside.host().clone();
    // The instructions are optional: a fetch needs no reader.
    let _ = write_out(&format!("At the other end, as root:\n{}", options.outside.set_up(options.wire.mtu)));
    let fetched = outside.until_done(fetch(options, &host, &target, tls));
    let mut counters = outside.end()?;
    let fetched = fetched.unwrap_or_else(|gone| Err(gone.into()));
    if let Ok(tls) = &fetched {
        counters.add_set(tls);
    }
    let written = write_out(&listed(&counters)).map_err(not_written);
    fetched.map_err(FetchStop::NotFetched).and(written.map_err(FetchStop::NotFetched))
}

/// The server to connect to, and the name expected in its certificate.
struct FetchTarget {
    secure: bool,
    address: SocketAddr,
    name: String,
    authority: String,
}

impl FetchTarget {
    /// Returns the server of all URLs. All URLs must name the same server because there is one connection.
    fn from_options(options: &Options) -> Result<FetchTarget, String> {
        let first = &options.urls[0];
        let server = |url: &Uri| (url.scheme().cloned(), url.authority().map(ToString::to_string));
        if let Some(other) = options.urls.iter().find(|other| server(other) != server(first)) {
            return Err(format!("{other}: is at another server than {first}"));
        }
        let secure = match first.scheme() {
            Some(scheme) if *scheme == Scheme::HTTPS => true,
            Some(scheme) if *scheme == Scheme::HTTP => false,
            _ => return Err(format!("{first}: is no http:// or https:// URL")),
        };
        let (Some(host), Some(authority)) = (first.host(), first.authority()) else {
            return Err(format!("{first}: names no server"));
        };
        let name = host.trim_start_matches('[').trim_end_matches(']').to_string();
        let address = options.connect.or_else(|| name.parse().ok()).ok_or("a name needs --connect ADDRESS")?;
        let port = first.port_u16().unwrap_or(if secure { 443 } else { 80 });
        Ok(FetchTarget { secure, address: (address, port).into(), name, authority: authority.to_string() })
    }
}

fn client_tls(options: &Options, target: &FetchTarget) -> Result<HttpsClientTls, String> {
    let mut config = identity::client_config(Randomness::System, None);
    match &options.cacert {
        None => trust(&mut config, vec![identity::authority()], options.pin).map_err(|error| error.to_string())?,
        Some(path) => {
            let about = |error: &dyn core::fmt::Display| format!("{}: {error}", path.display());
            let authorities = CertificateDer::pem_file_iter(path).and_then(|certificates| certificates.collect());
            let authorities: Vec<_> = authorities.map_err(|error| about(&error))?;
            if authorities.is_empty() {
                return Err(about(&"holds no certificate in PEM form"));
            }
            trust(&mut config, authorities, options.pin).map_err(|error| about(&error))?;
        }
    }
    // The client speaks only HTTP/1.1, so ALPN offers nothing else.
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    let name = ServerName::try_from(target.name.clone()).map_err(|error| error.to_string())?;
    Ok(HttpsClientTls { config: Arc::new(config), name, nic: !options.cpu, records_per_key: options.records_per_key })
}

/// Fetches one URL after the other and returns the TLS counters.
async fn fetch(
    options: &Options,
    host: &BedHost,
    target: &FetchTarget,
    tls: Option<HttpsClientTls>,
) -> Result<CounterSet, WebFailure> {
    let mut session = Session::open(host, target.address, &target.authority, tls).await?;
    // Failures to print are reported at the end: the fetch itself goes on.
    let mut told = Ok(());
    if target.secure {
        told = write_out(&format!("{}: {}\n", target.authority, session.suite()));
    }
    for url in &options.urls {
        let path = url.path_and_query().map_or("/", |path| path.as_str());
        let response = session.get(path, options.range.as_deref()).await?;
        let status = response.status();
        let mut out: Box<dyn Write + Send> = match &options.out {
            Some(path) => Box::new(BufWriter::new(File::create(path)?)),
            None => Box::new(io::sink()),
        };
        let mut hash = Sha256::new();
        let bytes = read_body(response, |chunk| {
            hash.update(chunk);
            Ok(out.write_all(chunk)?)
        })
        .await?;
        out.flush()?;
        let about = format!("{url}: {status}, {bytes} bytes, SHA-256 {}\n", hexadecimal(&hash.finalize()));
        told = told.and(write_out(&about));
        if !status.is_success() {
            return Err(format!("{url}: {status}").into());
        }
    }
    let counters = session.close_both_sides(host, PATIENCE).await?;
    told.map_err(not_written).map(|()| counters)
}

fn not_written(error: io::Error) -> WebFailure {
    format!("standard output: {error}").into()
}

const NAME: &str = "https_client";
/// Time limit for the server to close its end of the connection.
const PATIENCE: Duration = Duration::from_secs(2);
