//! Serves a folder over HTTP from an emulated host to this machine, or to a guest: the wire ends at a TAP of the
//! kernel, or at a QEMU's network card.
//!
//! `cargo run --release --features tap --example tap_server -- [FOLDER]`, then the commands it prints.

use bytes::{Bytes, BytesMut};
use clap::Parser;
use core::convert::Infallible;
use core::net::Ipv4Addr;
use futures_util::stream;
use host_stack::{TcpConfig, TcpStream};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::header::{ALLOW, CONTENT_LENGTH, CONTENT_TYPE, HeaderValue};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use ktls_offload::Offload;
use nic_sim::wire::Port;
use nic_sim::{Delays, NicConfig};
use offload_base::Seed;
use offload_base::counters::CounterSet;
use offload_bench::options::WireOptions;
use rustls::ServerConfig;
use sha2::{Digest, Sha256};
use std::fs::File;
use std::io::{self, BufWriter};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};
use testbed::attach::{AttachCounters, DgramPort, StreamPort};
use testbed::bed::ClockKind;
use testbed::identity::{self, Randomness};
use testbed::{BedHost, Capture, Testbed};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite};
use tokio::signal::unix::{SignalKind, signal};

/// Serves a folder over HTTP/1.1 from an emulated host. GET gives files and lists folders; PUT takes any bytes,
/// keeps none of them, and answers with their number and SHA-256.
#[derive(Debug, Parser)]
#[command(version)]
struct Options {
    /// What to serve
    #[arg(default_value = ".")]
    folder: PathBuf,
    /// The wire ends at this TAP, which is made if it is not there
    #[arg(long, value_name = "NAME", default_value = "nic0", group = "end")]
    tap: String,
    /// The wire ends at a QEMU's `-netdev dgram`: the socket this side receives at, and the other side's
    #[arg(long, value_names = ["OURS", "THEIRS"], num_args = 2, group = "end")]
    dgram: Vec<PathBuf>,
    /// The wire ends at a QEMU's `-netdev stream`, which connects to this socket
    #[arg(long, value_name = "PATH", group = "end")]
    stream: Option<PathBuf>,
    /// The emulated host's address
    #[arg(long, default_value = "10.77.0.1")]
    address: Ipv4Addr,
    /// The address that whoever is at the other end is told to take
    #[arg(long, default_value = "10.77.0.2")]
    peer: Ipv4Addr,
    /// The port to serve at. Default: 80, with --tls 443
    #[arg(long)]
    port: Option<u16>,
    /// HTTPS: the emulated NIC seals and opens the records
    #[arg(long)]
    tls: bool,
    /// Capture what the emulated NIC sends and receives (pcapng, TLS secrets inside)
    #[arg(long, value_name = "FILE")]
    pcap: Option<PathBuf>,
    #[command(flatten)]
    wire: WireOptions,
}

fn main() -> ExitCode {
    match run(Options::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("tap_server: {message}");
            ExitCode::from(CANNOT_RUN)
        }
    }
}

fn run(mut options: Options) -> Result<(), String> {
    if options.wire.virtual_time {
        return Err("what is outside the emulation has no virtual time".into());
    }
    options.wire.real = true;
    let folder = options.folder.canonicalize().map_err(|error| format!("{}: {error}", options.folder.display()))?;
    if !folder.is_dir() {
        return Err(format!("{} is no folder", folder.display()));
    }
    let capture = options.pcap.as_deref().map(begin_capture).transpose()?;
    let outside = Outside::open(&options)?;
    let mut bed = build(&options, &outside, capture.as_ref()).map_err(|error| error.to_string())?;
    let host = bed.host(0).clone();
    let tls = options.tls.then(|| {
        let secrets = capture.clone().map(|capture| Arc::new(capture) as Arc<dyn rustls::KeyLog>);
        let mut config = identity::server_config(Randomness::System, secrets);
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Arc::new(config)
    });
    let port = options.port.unwrap_or(if options.tls { 443 } else { 80 });
    let site = Site { folder, tls };
    bed.run(async {
        let listening = serve(&host, port, site)?;
        print!("{}", instructions(&options, &outside, port));
        let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
        tokio::select! {
            biased;
            _ = interrupt.recv() => Ok(()),
            _ = terminate.recv() => Ok(()),
            ended = listening => ended,
        }
    })
    .map_err(|error: io::Error| error.to_string())?;
    let mut counters = bed.counters();
    counters.add(&outside.counters());
    print_counters(&counters);
    capture.map_or(Ok(()), |capture| capture.finish()).map_err(|error| format!("the capture: {error}"))
}

/// What the wire leads to.
struct Outside {
    name: String,
    port: Arc<Mutex<dyn Port>>,
    counters: Box<dyn Fn() -> AttachCounters>,
}

impl Outside {
    fn open(options: &Options) -> Result<Outside, String> {
        if let [ours, theirs] = &options.dgram[..] {
            let port = DgramPort::bind(ours, theirs).map_err(|error| format!("{}: {error}", ours.display()))?;
            return Ok(Outside::with("guest", port, DgramPort::counters));
        }
        if let Some(path) = &options.stream {
            let port = StreamPort::listen_unix(path).map_err(|error| format!("{}: {error}", path.display()))?;
            return Ok(Outside::with("guest", port, StreamPort::counters));
        }
        Outside::tap(options)
    }

    #[cfg(feature = "tap")]
    fn tap(options: &Options) -> Result<Outside, String> {
        use testbed::attach::{TapConfig, TapPort};
        let port = TapPort::open(TapConfig::named(&options.tap)).map_err(|error| error.to_string())?;
        Ok(Outside::with(&options.tap, port, TapPort::counters))
    }

    #[cfg(not(feature = "tap"))]
    fn tap(_: &Options) -> Result<Outside, String> {
        Err("this was built without TAPs: build with --features tap, or use --dgram or --stream".into())
    }

    fn with<P: Port + 'static>(name: &str, port: P, counters: fn(&P) -> AttachCounters) -> Outside {
        let port = Arc::new(Mutex::new(port));
        let looked_at = port.clone();
        let counters = Box::new(move || counters(&looked_at.lock().unwrap_or_else(PoisonError::into_inner)));
        Outside { name: name.into(), port, counters }
    }

    fn counters(&self) -> AttachCounters {
        (self.counters)()
    }
}

fn build(options: &Options, outside: &Outside, capture: Option<&Capture>) -> io::Result<Testbed> {
    let nic = NicConfig {
        mtu: options.wire.mtu,
        delays: Delays::NONE,
        line_rate: None,
        // A host thread that waits for a core must not cost packets.
        receive_ring: 8192,
        ..NicConfig::default()
    };
    let mut builder = Testbed::builder(Seed(options.wire.seed))
        .clock(ClockKind::Real)
        .host("server", nic, TcpConfig::default())
        .address(options.address)
        .attach(0, &outside.name, outside.port.clone(), options.wire.link());
    if let Some(capture) = capture {
        builder = builder.captured(capture);
    }
    builder.build()
}

fn begin_capture(path: &Path) -> Result<Capture, String> {
    let begun = File::create(path).and_then(|file| Capture::new(BufWriter::new(file)));
    begun.map_err(|error| format!("{}: {error}", path.display()))
}

/// What to do at the other end.
fn instructions(options: &Options, outside: &Outside, port: u16) -> String {
    let Options { address, peer, .. } = options;
    let device = if outside.name == options.tap { &options.tap } else { "eth0" };
    let (url, how) = if options.tls {
        let name = "server.nic-offload.test";
        let certificate = concat!(env!("CARGO_MANIFEST_DIR"), "/../crates/testbed/identity/ca.pem");
        (format!("https://{name}:{port}/"), format!("--cacert {certificate} --resolve {name}:{port}:{address} "))
    } else {
        (format!("http://{address}:{port}/"), String::new())
    };
    format!(
        "{address} serves {folder}. At the other end, as root:\n\
         \x20 ip addr add {peer}/24 dev {device}\n\
         \x20 ip link set {device} mtu {mtu} up\n\
         then\n\
         \x20 ping {address}\n\
         \x20 curl {how}{url}\n\
         \x20 curl {how}-T FILE {url}\n\
         Ctrl-C ends it and shows what was counted.\n",
        folder = options.folder.display(),
        mtu = options.wire.mtu,
    )
}

fn print_counters(counters: &CounterSet) {
    for (name, value) in counters.moved() {
        println!("{name:28} {value}");
    }
}

/// What is served, and how.
#[derive(Clone)]
struct Site {
    folder: PathBuf,
    tls: Option<Arc<ServerConfig>>,
}

type Body = BoxBody<Bytes, io::Error>;

/// Listens, and serves whoever comes until the listener fails.
fn serve(host: &BedHost, port: u16, site: Site) -> io::Result<impl Future<Output = io::Result<()>>> {
    let mut listener = host.stack().listen(port, BACKLOG)?;
    let acceptor = host.clone();
    Ok(host.spawn("listener", async move {
        loop {
            let stream = listener.accept().await?;
            let (peer, site) = (stream.peer_addr(), site.clone());
            // A connection ends when it ends: nobody waits for it.
            let _ends_by_itself = acceptor.spawn("connection", async move {
                if let Err(error) = converse(stream, site).await {
                    eprintln!("{peer}: {error}");
                }
            });
        }
    }))
}

async fn converse(stream: TcpStream, site: Site) -> Result<(), Box<dyn core::error::Error + Send + Sync>> {
    match site.tls.clone() {
        None => speak_http(stream, site).await?,
        Some(config) => {
            let mut stream = ktls_offload::accept(stream, config).await?;
            stream.offload(Offload::BOTH);
            speak_http(stream, site).await?;
        }
    }
    Ok(())
}

async fn speak_http(stream: impl AsyncRead + AsyncWrite + Unpin, site: Site) -> hyper::Result<()> {
    let service = service_fn(move |request| {
        let site = site.clone();
        async move { Ok::<_, Infallible>(site.answer(request).await) }
    });
    hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service).await
}

impl Site {
    async fn answer(&self, request: Request<Incoming>) -> Response<Body> {
        let answer = match *request.method() {
            Method::GET | Method::HEAD => self.give(request.uri().path()).await,
            Method::PUT | Method::POST => take(request.into_body()).await,
            _ => {
                let mut refusal = text(StatusCode::METHOD_NOT_ALLOWED, "GET, HEAD, PUT or POST\n");
                refusal.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD, PUT, POST"));
                return refusal;
            }
        };
        answer.unwrap_or_else(|error| match error.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => text(StatusCode::NOT_FOUND, "not found\n"),
            io::ErrorKind::PermissionDenied => text(StatusCode::FORBIDDEN, "forbidden\n"),
            io::ErrorKind::InvalidInput => text(StatusCode::BAD_REQUEST, "no path of a file\n"),
            _ => text(StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")),
        })
    }

    /// The file at `path`, or what is in the folder there.
    async fn give(&self, path: &str) -> io::Result<Response<Body>> {
        let relative = decoded(path).ok_or(io::ErrorKind::InvalidInput)?;
        let found = tokio::fs::canonicalize(self.folder.join(relative.trim_start_matches('/'))).await?;
        // Neither `..` nor a link leads out of the folder.
        if !found.starts_with(&self.folder) {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        let file = tokio::fs::File::open(&found).await?;
        let metadata = file.metadata().await?;
        if metadata.is_dir() {
            return Ok(text(StatusCode::OK, listing(&found).await?));
        }
        if !metadata.is_file() {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        let pieces = stream::try_unfold(file.take(metadata.len()), |mut file| async move {
            let mut piece = BytesMut::with_capacity(PIECE);
            let read = file.read_buf(&mut piece).await?;
            Ok::<_, io::Error>((read > 0).then(|| (Frame::data(piece.freeze()), file)))
        });
        let mut response = Response::new(BodyExt::boxed(StreamBody::new(pieces)));
        response.headers_mut().insert(CONTENT_LENGTH, metadata.len().into());
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
        Ok(response)
    }
}

/// Counts and hashes what is sent here.
async fn take(mut body: Incoming) -> io::Result<Response<Body>> {
    let (mut bytes, mut hash) = (0, Sha256::new());
    while let Some(frame) = body.frame().await {
        if let Ok(data) = frame.map_err(io::Error::other)?.into_data() {
            bytes += data.len();
            hash.update(&data);
        }
    }
    let hash: String = hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
    Ok(text(StatusCode::OK, format!("{bytes} {hash}\n")))
}

async fn listing(folder: &Path) -> io::Result<String> {
    let mut entries = tokio::fs::read_dir(folder).await?;
    let mut names = Vec::new();
    while let Some(entry) = entries.next_entry().await? {
        let slash = if entry.file_type().await?.is_dir() { "/" } else { "" };
        names.push(format!("{}{slash}\n", entry.file_name().to_string_lossy()));
    }
    names.sort();
    Ok(names.concat())
}

fn text(status: StatusCode, body: impl Into<Bytes>) -> Response<Body> {
    let mut response = Response::new(Full::new(body.into()).map_err(|never| match never {}).boxed());
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    response
}

/// A path of a URL without its percent signs (RFC 3986 2.1); `None`: it is not UTF-8, or not a path.
fn decoded(path: &str) -> Option<String> {
    let mut bytes = path.bytes();
    let mut decoded = Vec::new();
    while let Some(byte) = bytes.next() {
        decoded.push(match byte {
            b'%' => {
                let digits = [bytes.next()?, bytes.next()?];
                u8::from_str_radix(str::from_utf8(&digits).ok()?, 16).ok()?
            }
            0 => return None,
            other => other,
        });
    }
    String::from_utf8(decoded).ok().filter(|path| !path.contains('\0'))
}

const BACKLOG: usize = 1024;
/// Bytes of a file read at a time.
const PIECE: usize = 256 * 1024;
/// A bad option, an unreadable folder, or no right to open the TAP.
const CANNOT_RUN: u8 = 2;
