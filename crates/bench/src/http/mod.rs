//! A web server and clients that fetch a file repeatedly over persistent connections (HTTP/1.1).
//!
//! The server answers with a head, then the file as shared bytes without copying, from memory or read from a disk
//! behind the wire ([`FileSource`]). Each connection has one outstanding request; its latency is the time from the request
//! to the last byte of the answer. Keys are installed as after a handshake; the clock and the meter start when all
//! connections are ready.

mod files;

pub use files::FileSource;

use crate::crowd::ConnectionGroup;
use crate::latency::{Latencies, Latency, per_request};
use bytes::{Bytes, BytesMut};
use files::Source;
use futures_util::future::{join_all, try_join};
use ktls_offload::{Offload, TlsCounters};
use nic_sim::NicConfig;
use nic_sim::wire::LinkConfig;
use offload_api::TlsSuite;
use offload_base::cost::{self, CpuMeter, WorkKind};
use offload_base::{Instant, Seed};
use offload_bench_tls::connection::{Connection, GO, Mode, nic_on, tcp};
use offload_bench_tls::facts::Run;
use offload_bench_tls::measured::Measured;
use offload_bench_tls::observers::Observers;
use offload_host_stack::TcpListener;
use offload_testbed::bed::{BedHost, ClockKind, Testbed};
use serde::Serialize;
use std::io;
use std::sync::Arc;

/// The settings of a run.
///
/// ```
/// use offload_bench_tls::bulk::Mode;
/// use offload_bench::http::Http;
///
/// let run = Http { connections: 4, requests: 40, file_size: 10_000, ..Http::new(Mode::TlsNic) }.run()?;
/// assert_eq!((run.requests, run.run.bytes), (40, 400_000));
/// assert!(run.latency_us.p50 <= run.latency_us.max);
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Http {
    /// The mode of TLS.
    pub mode: Mode,
    /// Simultaneous connections, 1 to 32,768.
    pub connections: u16,
    /// Requests in total, shared evenly by the connections.
    pub requests: u64,
    /// The location of the file.
    pub files: FileSource,
    /// Bytes of the file.
    pub file_size: usize,
    /// Content bytes of a full record, 1 to 16384.
    pub record_size: usize,
    /// The clock.
    pub clock: ClockKind,
    /// The seed of all random numbers.
    pub seed: Seed,
    /// Settings of both NICs. Each host has one shard per queue.
    pub nic: NicConfig,
    /// Settings of each direction of the wire.
    pub link: LinkConfig,
    /// The observers of the run.
    pub observers: Observers,
}

impl Http {
    /// Returns 64 connections with 1024 requests for 64 KiB in memory, in virtual time over a clean wire, with 16 KiB
    /// records.
    pub fn new(mode: Mode) -> Http {
        Http {
            mode,
            connections: 64,
            requests: 1024,
            files: FileSource::Memory,
            file_size: 64 * 1024,
            record_size: 16 * 1024,
            clock: ClockKind::Virtual,
            seed: Seed(1),
            nic: NicConfig::default(),
            link: LinkConfig::default(),
            observers: Observers::default(),
        }
    }

    /// Runs the requests and returns the result. Wrong bytes are reported in the result and are not an error.
    ///
    /// # Errors If the testbed cannot be set up, a connection fails, or an answer is invalid.
    pub fn run(self) -> io::Result<HttpRun> {
        let meter = CpuMeter::new();
        let nic = nic_on(self.clock, &self.nic);
        let builder = Testbed::builder(self.seed)
            .clock(self.clock)
            .meter(&meter)
            .host("server", nic.clone(), tcp())
            .host("client", nic, tcp())
            .wire(SERVER, CLIENT, self.link.clone());
        let mut bed = self.observers.attach(builder).build()?;
        let plan =
            Arc::new(HttpPlan { file: self.file(), crowd: self.crowd(), latencies: Latencies::new(), http: self });
        let (server, client) = (bed.host(SERVER).clone(), bed.host(CLIENT).clone());
        let attached = meter.attach();
        let listeners = plan.crowd.listen(&server)?;
        // The server task needs the client's host too: the disk may be there.
        let ends = (server.clone(), client.clone());
        let serving = server.spawn("application", serve(plan.clone(), ends, listeners, meter.clone()));
        let asking = client.spawn("application", ask(plan.clone(), client.clone(), server.clone()));
        let both = plan.http.observers.run(&mut bed, plan.http.mode, try_join(serving, asking));
        drop(attached);
        let (served, asked) = both?;
        plan.http.observers.finish()?;
        let tls = served.tls.iter().chain(asked.iter().filter_map(|asked| asked.tls.as_ref()));
        let measured = Measured::take(bed, &meter, tls);
        // Only complete answers are recorded, so this is the number of successful requests.
        let requests = plan.latencies.count();
        let bytes = requests * plan.file.len() as u64;
        let ended = asked.iter().map(|asked| asked.ended).max().unwrap_or(served.started);
        let span = ended - served.started;
        let whole = asked.iter().all(|asked| asked.equal) && requests == plan.http.requests;
        let run = measured.run(plan.http.mode, bytes, whole, span);
        Ok(HttpRun {
            run,
            connections: plan.http.connections,
            files: plan.http.files.to_string(),
            file_bytes: plan.file.len() as u64,
            requests,
            seconds: span.as_secs_f64(),
            requests_per_second: requests as f64 / span.as_secs_f64().max(1e-9),
            latency_us: plan.latencies.percentiles(),
            server_us_per_request: per_request(&measured.report, server.domain(), requests),
            client_us_per_request: per_request(&measured.report, client.domain(), requests),
        })
    }

    fn crowd(&self) -> ConnectionGroup {
        ConnectionGroup {
            mode: self.mode,
            connections: self.connections,
            record_size: self.record_size,
            suite: TlsSuite::Aes128Gcm,
            seed: self.seed,
            of_server: Offload::BOTH,
            of_client: Offload::BOTH,
            port: PORT,
        }
    }

    fn file(&self) -> Bytes {
        let mut file = BytesMut::zeroed(self.file_size);
        self.seed.stream("file").fill(&mut file);
        file.freeze()
    }

    /// Returns the number of requests of connection `number`.
    fn share(&self, number: u16) -> u64 {
        let connections = u64::from(self.connections);
        self.requests / connections + u64::from(u64::from(number) < self.requests % connections)
    }
}

/// The result of one run: the fields of `ktls_loopback`, and results of requests.
///
/// See [`Http`] for an example.
#[derive(Clone, Debug, Serialize)]
pub struct HttpRun {
    /// The common fields; the server is the sending host.
    #[serde(flatten)]
    pub run: Run,
    /// Simultaneous connections.
    pub connections: u16,
    /// The location of the file.
    pub files: String,
    /// Bytes of the file.
    pub file_bytes: u64,
    /// Answered requests.
    pub requests: u64,
    /// Seconds from the common start to the last byte of the last answer.
    pub seconds: f64,
    /// Answers per second.
    pub requests_per_second: f64,
    /// Time from a request to the last byte of its answer.
    pub latency_us: Latency,
    /// The server's CPU time per request, in microseconds.
    pub server_us_per_request: f64,
    /// The client's CPU time per request, in microseconds.
    pub client_us_per_request: f64,
}

struct HttpPlan {
    http: Http,
    crowd: ConnectionGroup,
    file: Bytes,
    latencies: Latencies,
}

/// Measurements at the server.
struct HttpServerResult {
    started: Instant,
    tls: Vec<TlsCounters>,
}

async fn serve(
    plan: Arc<HttpPlan>,
    (host, client): (BedHost, BedHost),
    listeners: Vec<TcpListener>,
    meter: CpuMeter,
) -> io::Result<HttpServerResult> {
    // The disk is at the clients' host, because there is only one wire.
    let source = Source::open(plan.http.files, plan.file.clone(), &host, &client).await?;
    let ready = plan.crowd.admit(&host, listeners).await?;
    meter.restart();
    let started = host.now();
    let answering: Vec<_> =
        ready.into_iter().map(|connection| host.spawn("answering", answer(source.clone(), connection))).collect();
    let mut tls = Vec::new();
    for answered in join_all(answering).await {
        tls.extend(answered?);
    }
    Ok(HttpServerResult { started, tls })
}

/// Answers requests until the client closes.
async fn answer(source: Source, mut connection: Connection) -> io::Result<Option<TlsCounters>> {
    // All connections are ready: the clients may start.
    connection.send(Bytes::from_static(GO)).await?;
    let head = Bytes::from(format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", source.len()));
    let mut asked = BytesMut::new();
    while let Some(chunk) = connection.receive().await? {
        asked.extend_from_slice(&chunk);
        while let Some(length) = request_length(&asked)? {
            let _request = asked.split_to(length);
            connection.send(head.clone()).await?;
            for piece in source.read().await?.into_iter().filter(|piece| !piece.is_empty()) {
                connection.send(piece).await?;
            }
        }
        // An incomplete request may not grow without a limit.
        if asked.len() > LONGEST_HEAD {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "a request without an end"));
        }
    }
    connection.close().await?;
    Ok(connection.counters())
}

/// Returns the length of the request at the start of `asked`, or `None` if it is incomplete.
fn request_length(asked: &[u8]) -> io::Result<Option<usize>> {
    let mut headers = [httparse::EMPTY_HEADER; 16];
    let parsed = httparse::Request::new(&mut headers).parse(asked).map_err(invalid)?;
    Ok(if let httparse::Status::Complete(length) = parsed { Some(length) } else { None })
}

/// Measurements of a client's connection.
struct HttpClientResult {
    ended: Instant,
    equal: bool,
    tls: Option<TlsCounters>,
}

async fn ask(plan: Arc<HttpPlan>, host: BedHost, server: BedHost) -> io::Result<Vec<HttpClientResult>> {
    let asking: Vec<_> = (0..plan.http.connections)
        .map(|number| host.spawn("asking", ask_often(plan.clone(), host.clone(), server.clone(), number)))
        .collect();
    join_all(asking).await.into_iter().collect()
}

async fn ask_often(plan: Arc<HttpPlan>, host: BedHost, server: BedHost, number: u16) -> io::Result<HttpClientResult> {
    let mut connection = plan.crowd.join(&host, &server, number).await?;
    connection.expect_go().await?;
    let mut done = HttpClientResult { ended: host.now(), equal: true, tls: None };
    for _ in 0..plan.http.share(number) {
        let asked = host.now();
        connection.send(Bytes::from_static(REQUEST)).await?;
        done.equal &= whole_answer(&mut connection, &plan.file).await?;
        done.ended = host.now();
        plan.latencies.record(done.ended - asked);
        plan.http.observers.arrived(plan.file.len() as u64);
    }
    connection.close().await?;
    done.tls = connection.counters();
    Ok(done)
}

/// Reads one answer and returns whether its body equals the file.
async fn whole_answer(connection: &mut Connection, file: &[u8]) -> io::Result<bool> {
    let mut head = BytesMut::new();
    let (mut arrived, mut equal) = (None, true);
    while arrived != Some(file.len()) {
        let chunk = connection.receive().await?.ok_or(io::ErrorKind::UnexpectedEof)?;
        // Comparing is the work of the test application and is not charged to the host.
        let _application = cost::work(WorkKind::Application);
        // The first chunks may contain only a part of the head.
        let body = match arrived {
            Some(_) => chunk,
            None => {
                head.extend_from_slice(&chunk);
                let Some((length, announced)) = answer_head(&head)? else { continue };
                if announced != file.len() {
                    return Err(invalid("an answer of another length"));
                }
                arrived = Some(0);
                head.split_off(length).freeze()
            }
        };
        let at = arrived.unwrap_or(0);
        let expected = file.get(at..at + body.len()).ok_or_else(|| invalid("more than the answer"))?;
        equal &= body == expected;
        arrived = Some(at + body.len());
    }
    Ok(equal)
}

/// Returns the length of an answer's head and the announced length of its body, or `None` if the head is incomplete.
fn answer_head(head: &[u8]) -> io::Result<Option<(usize, usize)>> {
    let mut headers = [httparse::EMPTY_HEADER; 16];
    let mut answer = httparse::Response::new(&mut headers);
    let httparse::Status::Complete(length) = answer.parse(head).map_err(invalid)? else { return Ok(None) };
    let announced = answer.headers.iter().find(|header| header.name.eq_ignore_ascii_case("content-length"));
    let announced = announced.and_then(|header| core::str::from_utf8(header.value).ok()?.parse().ok());
    Ok(Some((length, announced.ok_or_else(|| invalid("an answer without a length"))?)))
}

fn invalid(what: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

const REQUEST: &[u8] = b"GET /file HTTP/1.1\r\nhost: server\r\n\r\n";
const LONGEST_HEAD: usize = 8 * 1024;
const SERVER: usize = 0;
const CLIENT: usize = 1;
const PORT: u16 = 80;

#[cfg(test)]
mod tests {
    use super::*;
    use core::sync::atomic::Ordering;

    #[test]
    fn every_request_is_answered_whole_in_every_mode() {
        let ways = Mode::ALL.into_iter().flat_map(|mode| FileSource::ALL.map(|files| (mode, files)));
        for (mode, files) in ways {
            // An empty file, a single byte, a few records, and more than one read of the disk.
            for (connections, requests, file_size) in [(1, 3, 0), (3, 10, 1), (5, 7, 40_000), (2, 3, 600_000)] {
                let http = Http { connections, requests, files, file_size, ..Http::new(mode) };
                let observers = http.observers.clone();
                let made = http.run().unwrap();
                assert!(made.run.sha256_ok, "{made:?}");
                assert_eq!(observers.received.load(Ordering::Relaxed), requests * file_size as u64);
                let placed = made.run.counters.get("rx_nvmeotcp_bytes").is_some_and(|bytes| *bytes > 0);
                // Short reads are not placed, because the setup would cost more, as in Linux.
                assert_eq!(placed, files == FileSource::NvmeNic && file_size >= 40_000, "{made:?}");
                assert_eq!((made.requests, made.run.bytes), (requests, requests * file_size as u64));
                assert!(
                    made.latency_us.p50 > 10.0 && made.requests_per_second > 0.0,
                    "a round trip is 10 us: {made:?}"
                );
            }
        }
    }

    #[test]
    fn the_same_seed_gives_the_same_latencies() {
        let run = || Http { connections: 9, requests: 90, ..Http::new(Mode::TlsNic) }.run().unwrap();
        let (one, other) = (run(), run());
        assert_eq!((one.latency_us.p50, one.latency_us.max), (other.latency_us.p50, other.latency_us.max));
        assert_eq!(one.seconds, other.seconds);
    }
}
