//! A server and a client on two hosts joined by a wire. The client fetches every file, whole and in ranges, over a few
//! persistent connections at once. A run for each mode shows the costs of both hosts.

use super::client::{HttpsClientTls, Session, read_body};
use super::content::Content;
use super::limits::WebLimits;
use super::pin::{Pin, trust};
use super::server::Server;
use super::site::Site;
use super::{Mode, WebFailure};
use core::net::SocketAddr;
use futures_util::future::try_join_all;
use hyper::StatusCode;
use ktls_offload::{Blocking, InPlace};
use nic_sim::wire::LinkConfig;
use nic_sim::{Delays, NicConfig};
use offload_base::Seed;
use offload_base::cost::{self, CpuMeter, Domain, WorkKind};
use offload_base::counters::CounterSet;
use offload_bench_tls::facts::HostCost;
use offload_bench_tls::table::{align, noise_in};
use offload_host_stack::TcpConfig;
use offload_testbed::bed::{ClockKind, Testbed};
use offload_testbed::identity::{self, Randomness};
use offload_testbed::{BedHost, Capture, Tracer};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Settings of a comparison.
#[derive(Clone)]
pub struct Comparison {
    /// The folder that is served.
    pub folder: PathBuf,
    /// The content of the folder, which is also the expected data.
    pub content: Arc<Content>,
    /// Connections at once.
    pub connections: usize,
    /// The clock.
    pub clock: ClockKind,
    /// The seed of all random numbers.
    pub seed: Seed,
    /// Settings of each direction of the wire.
    pub link: LinkConfig,
    /// Settings of both NICs.
    pub nic: NicConfig,
    /// The only certificate that the client accepts.
    pub pin: Option<Pin>,
    /// Number of records after which each end updates its key.
    pub records_per_key: Option<u64>,
    /// Capture of the frames at the server's NIC.
    pub capture: Option<Capture>,
    /// Writer of the timeline.
    pub tracer: Option<Tracer>,
}

/// The result of a run.
#[derive(Clone, Debug)]
pub struct WebComparisonRow {
    /// The mode.
    pub mode: Mode,
    /// Answered requests.
    pub requests: u64,
    /// Bytes of the answers' bodies.
    pub bytes: u64,
    /// Body bytes per second, from the first request to the last answer, in 10^9 bits.
    pub goodput_gbps: f64,
    /// The server's CPU time per byte of body.
    pub server: HostCost,
    /// The client's CPU time per byte of body.
    pub client: HostCost,
    /// CPU time of both emulated devices per byte of body.
    pub device: f64,
    /// All counters of the run.
    pub counters: CounterSet,
}

impl Comparison {
    /// Creates a comparison in virtual time over a clean wire, with four connections that fetch all files of `folder`.
    ///
    /// # Errors As [`Content::read_folder`].
    pub fn new(folder: &Path) -> Result<Comparison, String> {
        Ok(Comparison {
            folder: folder.to_owned(),
            content: Arc::new(Content::read_folder(folder)?),
            connections: 4,
            clock: ClockKind::Virtual,
            seed: Seed(1),
            link: LinkConfig::default(),
            nic: NicConfig::default(),
            pin: None,
            records_per_key: None,
            capture: None,
            tracer: None,
        })
    }

    /// Runs `mode`. Every received byte is compared with the folder's content.
    ///
    /// # Errors If an answer is not as expected.
    pub fn run(&self, mode: Mode) -> Result<WebComparisonRow, WebFailure> {
        let meter = CpuMeter::new();
        let nic = match self.clock {
            ClockKind::Virtual => self.nic.clone(),
            // A delayed host thread must not cost packets, so the ring has its maximum length.
            ClockKind::Real => {
                NicConfig { delays: Delays::NONE, line_rate: None, receive_ring: 8192, ..self.nic.clone() }
            }
        };
        let mut builder = Testbed::builder(self.seed)
            .clock(self.clock)
            .meter(&meter)
            .host("server", nic.clone(), TcpConfig::default())
            .host("client", nic, TcpConfig::default())
            .wire(SERVER, CLIENT, self.link.clone())
            .traced(self.tracer.as_ref());
        if let Some(capture) = &self.capture {
            builder = builder.captured(capture);
        }
        let mut bed = builder.build()?;
        let key_log = self.capture.clone().map(|capture| Arc::new(capture) as Arc<dyn rustls::KeyLog>);
        let site = Site::new(&self.folder, self.pool())?;
        let mut server = Server::new(site, mode, identity::server_config(self.randomness("server"), key_log))
            .with_records_per_key(self.records_per_key)
            .with_limits(WebLimits::none());
        // Dates in answers would make two runs in virtual time differ.
        if self.clock == ClockKind::Virtual {
            server = server.without_dates();
        }
        let (host, client) = (bed.host(SERVER).clone(), bed.host(CLIENT).clone());
        let attached = meter.attach();
        let _listens_on = server.listen(&host, mode.port())?;
        let fetching = client.spawn("application", {
            let (client, meter, this) = (client.clone(), meter.clone(), self.clone());
            async move { this.fetch(mode, client, host, meter).await }
        });
        let fetched = bed.run(fetching);
        if fetched.is_ok() {
            bed.run(server.idle());
        }
        drop(attached);
        let Fetched { requests, bytes, nanoseconds, tls } = fetched?;

        let mut counters = bed.counters();
        counters.add_set(&server.counters());
        counters.add_set(&tls);
        if let Some(capture) = &self.capture {
            capture.finish()?;
        }
        // Threads report their CPU time when they end, so the testbed is dropped first.
        drop(bed);
        let report = meter.take();
        let of = |host: usize| HostCost::from_report(&report, Domain::Host(host as u8), bytes);
        let devices = report.total(Domain::Device(SERVER as u8)) + report.total(Domain::Device(CLIENT as u8));
        Ok(WebComparisonRow {
            mode,
            requests,
            bytes,
            goodput_gbps: bytes as f64 * 8.0 / nanoseconds.max(1) as f64,
            server: of(SERVER),
            client: of(CLIENT),
            device: devices.as_nanos() as f64 / bytes.max(1) as f64,
            counters,
        })
    }

    async fn fetch(self, mode: Mode, client: BedHost, server: BedHost, meter: CpuMeter) -> Result<Fetched, WebFailure> {
        let to = SocketAddr::from((server.address(), mode.port()));
        let tls = match mode.is_secure() {
            true => Some(self.client_tls(mode)?),
            false => None,
        };
        let mut sessions = Vec::new();
        for _ in 0..self.connections {
            sessions.push(Session::open(&client, to, "server.nic-offload.test", tls.clone()).await?);
        }
        // Handshakes are not part of the measurement.
        meter.restart();
        let started = client.now();
        let fetching = sessions.into_iter().map(|session| fetch_everything(session, self.content.clone()));
        let tasks: Vec<_> = fetching.map(|fetching| client.spawn("fetch", fetching)).collect();
        let all = try_join_all(tasks).await?;
        let nanoseconds = (client.now() - started).as_nanos();
        let (mut fetched, mut tls) = (Fetched { nanoseconds, ..Fetched::default() }, CounterSet::default());
        for (session, requests, bytes) in all {
            fetched.requests += requests;
            fetched.bytes += bytes;
            tls.add_set(&session.close().await?);
        }
        Ok(Fetched { tls, ..fetched })
    }

    fn client_tls(&self, mode: Mode) -> Result<HttpsClientTls, WebFailure> {
        let mut config = identity::client_config(self.randomness("client"), None);
        trust(&mut config, vec![identity::authority()], self.pin)?;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        let nic = mode == Mode::HttpsNic;
        let records_per_key = self.records_per_key;
        Ok(HttpsClientTls { config: Arc::new(config), name: identity::server_name(), nic, records_per_key })
    }

    /// Returns the source of an end's secrets.
    fn randomness(&self, end: &str) -> Randomness {
        match self.clock {
            ClockKind::Virtual => Randomness::Seeded(self.seed.derive(end)),
            ClockKind::Real => Randomness::System,
        }
    }

    fn pool(&self) -> Arc<dyn Blocking> {
        match self.clock {
            ClockKind::Virtual => Arc::new(InPlace),
            ClockKind::Real => tokio_pool(),
        }
    }
}

/// Returns tokio's pool of threads for blocking work, for tasks on a tokio runtime.
pub fn tokio_pool() -> Arc<dyn Blocking> {
    Arc::new(|work: Box<dyn FnOnce() + Send>| drop(tokio::task::spawn_blocking(work)))
}

/// Measurements at the client.
#[derive(Default)]
struct Fetched {
    requests: u64,
    bytes: u64,
    nanoseconds: u128,
    tls: CounterSet,
}

/// Fetches every file whole, then its first bytes, its middle half and its last bytes. Returns the numbers of requests
/// and bytes.
async fn fetch_everything(mut session: Session, content: Arc<Content>) -> Result<(Session, u64, u64), WebFailure> {
    let (mut requests, mut bytes) = (0, 0);
    for file in content.files() {
        let (path, length) = (&file.path, file.bytes.len());
        // A short file is its own edge; an empty file has no valid range.
        let edge = length.min(EDGE);
        let mut wanted = vec![(None, 0..length)];
        if length > 0 {
            let middle = length / 4..length - length / 4;
            wanted.push((Some(format!("bytes=0-{}", edge - 1)), 0..edge));
            wanted.push((Some(format!("bytes={}-{}", middle.start, middle.end - 1)), middle));
            wanted.push((Some(format!("bytes=-{edge}")), length - edge..length));
        }
        for (range, expected) in wanted {
            let response = session.get(path, range.as_deref()).await?;
            let status = if range.is_some() { StatusCode::PARTIAL_CONTENT } else { StatusCode::OK };
            if response.status() != status {
                return Err(format!("{path}: {} where {status} should be", response.status()).into());
            }
            let mut left = &file.bytes[expected];
            bytes += read_body(response, |chunk| {
                let _application = cost::work(WorkKind::Application);
                let same = left.get(..chunk.len()) == Some(chunk);
                left = left.get(chunk.len()..).unwrap_or_default();
                if same { Ok(()) } else { Err(format!("{path}: the received data DIFFERS from the file").into()) }
            })
            .await?;
            if !left.is_empty() {
                return Err(format!("{path}: {} bytes did not arrive", left.len()).into());
            }
            requests += 1;
        }
    }
    Ok((session, requests, bytes))
}

/// Returns a table with a row for each mode, and an explanation.
///
/// ```
/// assert!(offload_programs::web::comparison::table(&[]).contains("mode requests bytes"));
/// ```
pub fn table(rows: &[WebComparisonRow]) -> String {
    let mut cells: Vec<Vec<String>> = vec![HEADING.map(String::from).to_vec()];
    for row in rows {
        let mut line = vec![
            row.mode.to_string(),
            row.requests.to_string(),
            row.bytes.to_string(),
            format!("{:.2}", row.goodput_gbps),
        ];
        for cost in [row.server, row.client] {
            line.extend([cost.stack, cost.copy, cost.framing, cost.crypto, cost.total].map(|ns| format!("{ns:.3}")));
        }
        line.push(format!("{:.3}", row.device));
        cells.push(line);
    }
    align(&cells) + CAPTION + &saved(rows)
}

const CAPTION: &str = "server, client: CPU time of that host in nanoseconds per byte of the answers' bodies; device: that of both \
                       devices; reading files and comparing received data not counted\n";

const HEADING: [&str; 15] = [
    "mode",
    "requests",
    "bytes",
    "Gb/s",
    "server stack",
    "server copy",
    "server framing",
    "server crypto",
    "server total",
    "client stack",
    "client copy",
    "client framing",
    "client crypto",
    "client total",
    "device",
];

/// Returns a sentence about the server's costs if all three modes were run, and a warning if the costs are noise.
fn saved(rows: &[WebComparisonRow]) -> String {
    let fewest = rows.iter().map(|row| row.bytes).min().unwrap_or(u64::MAX);
    let find = |mode| rows.iter().find(|row| row.mode == mode);
    let (Some(http), Some(cpu), Some(nic)) = (find(Mode::Http), find(Mode::HttpsCpu), find(Mode::HttpsNic)) else {
        return noise_in(fewest, &[]).into();
    };
    let [server, client] = [|row: &WebComparisonRow| row.server.total, |row: &WebComparisonRow| row.client.total]
        .map(|of| [http, cpu, nic].map(of));
    let [without, software, by_nic] = server;
    format!(
        "Of the server's time a byte takes {without:.3} ns without TLS, {software:.3} with TLS in software, {by_nic:.3} with TLS \
         by the NIC.\n{}{}",
        short_answers(nic),
        noise_in(fewest, &[server, client])
    )
}

/// Returns a warning if answers are too short for offload, else an empty text.
fn short_answers(row: &WebComparisonRow) -> String {
    let mean = row.bytes / row.requests.max(1);
    if mean >= SHORT_ANSWER {
        return String::new();
    }
    format!(
        "An answer has {mean} bytes on average. Below 4 KiB, the cost of a record hides the NIC's saving of a byte: serve larger \
         files to see it.\n"
    )
}

const SERVER: usize = 0;
const CLIENT: usize = 1;
/// Bytes of an answer below which a NIC saves little: with `nicbench http --file-size 4KiB` the saving is a tenth of
/// the server's time.
const SHORT_ANSWER: u64 = 4096;
/// Bytes fetched from either end of a file.
const EDGE: usize = 1000;
