//! An `iperf3 -s` on an emulated host: TCP in either or both directions, over as many streams as the client requests.
//!
//! One test runs at a time; other clients are told that the server is busy. The only specification of the protocol is
//! the program itself: a control connection carries one byte for each step and JSON for parameters and results, and
//! each stream begins with the same cookie as the control connection.

use bytes::Bytes;
use core::future::poll_fn;
use core::num::NonZeroU64;
use core::pin::pin;
use core::sync::atomic::{AtomicU64, Ordering};
use core::time::Duration;
use offload_api::{SegmentStream, TxTag};
use offload_base::Instant;
use offload_console::say;
use offload_host_stack::{CongestionAlgorithm, KeepAlive, TcpListener, TcpStream};
use offload_testbed::{BedHost, JoinHandle};
use serde::{Deserialize, Serialize};
use std::io::{self, ErrorKind};
use std::sync::Arc;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::watch;

/// Default port of iperf3.
pub const PORT: u16 = 5201;

/// Listens at `port` of `host` and returns the task that serves tests until the listener fails.
///
/// # Errors If the port is taken.
pub fn listen(host: &BedHost, port: u16) -> io::Result<impl Future<Output = io::Result<()>> + use<>> {
    let mut server = Server { listener: host.stack().listen(port, BACKLOG)?, host: host.clone() };
    Ok(host.spawn("iperf3", async move {
        loop {
            let control = server.listener.accept().await?;
            let peer = control.peer_addr();
            if let Err(error) = server.test(control).await {
                say!("{peer}: {error}");
            }
        }
    }))
}

struct Server {
    host: BedHost,
    listener: TcpListener,
}

/// A step of the protocol, as one byte on the control connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i8)]
enum ProtocolStep {
    TestStart = 1,
    TestRunning = 2,
    TestEnd = 4,
    ParameterExchange = 9,
    CreateStreams = 10,
    ClientTerminate = 12,
    ExchangeResults = 13,
    DisplayResults = 14,
    AccessDenied = -1,
    ServerError = -2,
}

/// Parameters of a client's test. Parameters that make no difference to the server are left out.
#[derive(Debug, Deserialize)]
#[serde(default)]
struct TestParameters {
    udp: bool,
    sctp: bool,
    parallel: usize,
    reverse: bool,
    bidirectional: bool,
    /// Bytes of a write.
    len: usize,
    /// Seconds at the beginning that are excluded from the result.
    omit: u64,
    /// Bits per second of a stream, enforced by the sending program; 0 for no limit.
    bandwidth: u64,
    /// Bits per second of a stream with headers, enforced by the device; 0 for no limit.
    fqrate: u64,
    nodelay: bool,
    congestion: Option<String>,
}

impl Default for TestParameters {
    fn default() -> TestParameters {
        TestParameters {
            udp: false,
            sctp: false,
            parallel: 1,
            reverse: false,
            bidirectional: false,
            len: 128 << 10,
            omit: 0,
            bandwidth: 0,
            fqrate: 0,
            nodelay: false,
            congestion: None,
        }
    }
}

impl TestParameters {
    /// Returns for each stream, in the order of opening, whether the server sends on it.
    fn sending(&self) -> Vec<bool> {
        match self.bidirectional {
            true => [vec![false; self.parallel], vec![true; self.parallel]].concat(),
            false => vec![self.reverse; self.parallel],
        }
    }

    /// Returns the congestion control of the test, or `None` if the server does not support a parameter.
    fn served(&self) -> Option<CongestionAlgorithm> {
        let bounded = (1..=MAX_STREAMS).contains(&self.parallel) && (1..=MAX_WRITTEN).contains(&self.len);
        match self.congestion.as_deref() {
            _ if self.udp || self.sctp || !bounded => None,
            None | Some("cubic") => Some(CongestionAlgorithm::Cubic),
            Some("reno") => Some(CongestionAlgorithm::NewReno),
            Some(_) => None,
        }
    }

    fn set_up(&self, stream: &TcpStream, congestion: CongestionAlgorithm) {
        stream.set_nodelay(self.nodelay);
        stream.set_congestion(congestion);
        // The device counts headers too. `bandwidth` is the rate of content, so a device limited to it would let its
        // queue grow.
        stream.set_pacing_rate(bytes_a_second(self.fqrate));
    }
}

/// Converts bits to bytes. `None` means no limit.
fn bytes_a_second(bits: u64) -> Option<NonZeroU64> {
    NonZeroU64::new(bits.div_ceil(8))
}

/// Measurements at the server's end.
#[derive(Debug, Serialize)]
struct TestResults {
    // Clients require these numbers, but the server does not measure CPU time.
    cpu_util_total: f64,
    cpu_util_user: f64,
    cpu_util_system: f64,
    /// 1 if `retransmits` below is valid, -1 if the server sends no stream.
    sender_has_retransmits: i8,
    streams: Vec<StreamResult>,
}

#[derive(Debug, Serialize)]
struct StreamResult {
    id: usize,
    bytes: u64,
    retransmits: i64,
    jitter: f64,
    errors: u64,
    packets: u64,
    start_time: f64,
    end_time: f64,
}

impl TestResults {
    fn from_streams(streams: Vec<StreamResult>) -> TestResults {
        let sends = streams.iter().any(|stream| stream.retransmits >= 0);
        TestResults {
            cpu_util_total: 0.0,
            cpu_util_user: 0.0,
            cpu_util_system: 0.0,
            sender_has_retransmits: if sends { 1 } else { -1 },
            streams,
        }
    }
}

impl StreamResult {
    /// Returns the result of the stream that was opened after `place` others.
    fn for_stream(place: usize, bytes: u64, sends: bool, stream: &TcpStream, seconds: f64) -> StreamResult {
        // Both ends number streams 1, 3, 4, 5 and so on.
        let id = if place == 0 { 1 } else { place + 2 };
        let retransmits = if sends { stream.stats().retransmits as i64 } else { -1 };
        StreamResult { id, bytes, retransmits, jitter: 0.0, errors: 0, packets: 0, start_time: 0.0, end_time: seconds }
    }
}

/// The sending side of a stream.
struct StreamPace {
    /// Bytes of a write.
    len: usize,
    /// Bytes per second; `None` for no limit.
    rate: Option<NonZeroU64>,
}

/// A stream of a test, and the task that moves its data until the test ends.
struct TestStream {
    sends: bool,
    /// Bytes received, or bytes that have left this host.
    bytes: Arc<AtomicU64>,
    /// Bytes moved before the measured part of the test.
    omitted: u64,
    task: JoinHandle<TcpStream>,
}

impl Server {
    /// Runs a test from the first byte of the control connection to the last.
    async fn test(&mut self, mut control: TcpStream) -> io::Result<()> {
        // A client on a dead machine must not block other clients.
        control.set_keep_alive(Some(KeepAlive { idle: PATIENCE, interval: PATIENCE / 10, probes: 5 }));
        control.set_nodelay(true);
        let mut cookie = NO_COOKIE;
        self.soon(control.read_exact(&mut cookie)).await?;
        tell(&mut control, ProtocolStep::ParameterExchange).await?;
        let asked: TestParameters = serde_json::from_slice(&self.soon(read_json(&mut control)).await?)?;
        // An unsupported test is answered by an error number, so that the client prints a message instead of hanging.
        let Some(congestion) = asked.served() else {
            tell(&mut control, ProtocolStep::ServerError).await?;
            control.write_i32(NOT_IMPLEMENTED).await?;
            control.write_i32(0).await?;
            SegmentStream::flush(&mut control);
            return Err(io::Error::new(ErrorKind::Unsupported, "unsupported test: use TCP with cubic or reno"));
        };
        tell(&mut control, ProtocolStep::CreateStreams).await?;
        let streams = self.streams(asked.sending().len(), &cookie).await?;
        tell(&mut control, ProtocolStep::TestStart).await?;
        tell(&mut control, ProtocolStep::TestRunning).await?;
        // All streams stop at the same moment, when the client ends the test.
        let ended = watch::Sender::new(false);
        let mut flows = Vec::new();
        for (stream, sends) in streams.into_iter().zip(asked.sending()) {
            asked.set_up(&stream, congestion);
            let sends = sends.then(|| StreamPace { len: asked.len, rate: bytes_a_second(asked.bandwidth) });
            flows.push(self.flow(stream, sends, ended.subscribe()));
        }
        let began = self.run(&mut control, &asked, &mut flows).await?;
        let seconds = self.host.now().saturating_since(began).as_secs_f64();
        ended.send_replace(true);
        let mut streams = Vec::new();
        let mut results = Vec::new();
        for (place, flow) in flows.into_iter().enumerate() {
            // The stream comes back from its task, because its statistics are read after the end.
            let stream = flow.task.await;
            let bytes = if flow.sends { on_its_way(&stream) } else { flow.bytes.load(Ordering::Relaxed) };
            let bytes = bytes.saturating_sub(flow.omitted);
            results.push(StreamResult::for_stream(place, bytes, flow.sends, &stream, seconds));
            streams.push((stream, flow.sends));
        }
        tell(&mut control, ProtocolStep::ExchangeResults).await?;
        let _theirs = self.soon(read_json(&mut control)).await?;
        write_json(&mut control, &TestResults::from_streams(results)).await?;
        tell(&mut control, ProtocolStep::DisplayResults).await?;
        // The client either confirms the end or closes the connection.
        let _done = self.soon(control.read_i8()).await;
        // Queued data is of no use after the test.
        streams.iter_mut().filter(|(_, sends)| *sends).for_each(|(stream, _)| stream.abort());
        Ok(())
    }

    /// Waits for the streams of a test. Refuses streams without the test's cookie.
    async fn streams(&mut self, count: usize, cookie: &Cookie) -> io::Result<Vec<TcpStream>> {
        let mut streams = Vec::new();
        while streams.len() < count {
            let host = self.host.clone();
            let mut stream = soon(&host, self.listener.accept()).await?;
            let mut its = NO_COOKIE;
            match self.soon(stream.read_exact(&mut its)).await {
                Ok(_) if its == *cookie => streams.push(stream),
                _ => tell(&mut stream, ProtocolStep::AccessDenied).await?,
            }
        }
        Ok(streams)
    }

    /// Waits for the end of a test and returns the start of its measured part.
    async fn run(
        &mut self,
        control: &mut TcpStream,
        asked: &TestParameters,
        flows: &mut [TestStream],
    ) -> io::Result<Instant> {
        let mut began = self.host.now();
        let runtime = self.host.runtime();
        let mut counted = pin!(runtime.sleep(Duration::from_secs(asked.omit)));
        let mut omits = asked.omit > 0;
        let (mut stalled, mut moved) = (pin!(runtime.sleep(STALL)), 0);
        loop {
            tokio::select! {
                // `biased` with the control connection first: the end of the test must be seen even if other events are
                // always ready.
                biased;
                step = control.read_i8() => match step? {
                    step if step == ProtocolStep::TestEnd as i8 => return Ok(began),
                    step if step == ProtocolStep::ClientTerminate as i8 => return Err(ErrorKind::ConnectionAborted.into()),
                    _ => return Err(ErrorKind::InvalidData.into()),
                },
                another = self.listener.accept() => {
                    // The refused client may have closed its connection already.
                    let _denied = tell(&mut another?, ProtocolStep::AccessDenied).await;
                }
                () = &mut counted, if omits => {
                    omits = false;
                    began = self.host.now();
                    flows.iter_mut().for_each(|flow| flow.omitted = flow.bytes.load(Ordering::Relaxed));
                }
                () = &mut stalled => {
                    // Other clients wait for this test, so a test without progress is ended.
                    let before = core::mem::replace(&mut moved, total(flows));
                    if moved == before {
                        return Err(ErrorKind::TimedOut.into());
                    }
                    stalled.set(runtime.sleep(STALL));
                }
            }
        }
    }

    fn flow(&self, mut stream: TcpStream, sending: Option<StreamPace>, mut ended: watch::Receiver<bool>) -> TestStream {
        let bytes = Arc::new(AtomicU64::new(0));
        let (counter, sends, host) = (bytes.clone(), sending.is_some(), self.host.clone());
        let task = self.host.spawn("iperf3 stream", async move {
            let moves = async {
                match sending {
                    Some(sending) => send(&host, &mut stream, &counter, sending).await,
                    None => receive(&mut stream, &counter).await,
                }
            };
            tokio::select! {
                biased;
                _ = ended.wait_for(|ended| *ended) => {}
                // A stream that ended early still counts with the bytes that it moved.
                _ended_early = moves => {}
            }
            stream
        });
        TestStream { sends, bytes, omitted: 0, task }
    }

    /// Runs `step`, which fails if the client exceeds the time for one step.
    async fn soon<T>(&self, step: impl Future<Output = io::Result<T>>) -> io::Result<T> {
        soon(&self.host, step).await
    }
}

async fn soon<T>(host: &BedHost, step: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    tokio::select! {
        biased;
        done = step => done,
        () = host.runtime().sleep(PATIENCE) => Err(ErrorKind::TimedOut.into()),
    }
}

fn total(flows: &[TestStream]) -> u64 {
    flows.iter().map(|flow| flow.bytes.load(Ordering::Relaxed)).sum()
}

/// Returns the bytes that have left this host. Bytes that wait in the send queue say nothing about the network.
fn on_its_way(stream: &TcpStream) -> u64 {
    let stats = stream.stats();
    stats.bytes_acknowledged + stats.in_flight
}

/// Sends until cancelled.
async fn send(host: &BedHost, stream: &mut TcpStream, counter: &AtomicU64, sending: StreamPace) -> io::Result<()> {
    // Short writes are combined into one piece, because a queue of tiny pieces would use more memory for the pieces
    // than for their bytes.
    let most = MIN_PIECE.div_ceil(sending.len) * sending.len;
    // A paced stream sends a hundredth of a second's worth at a time.
    let length = sending.rate.map_or(most, |rate| most.min((rate.get() / 100).max(1) as usize));
    let block = Bytes::from(vec![0x5a; length]);
    let (began, mut queued) = (host.now(), 0);
    loop {
        let mut room = poll_fn(|cx| stream.poll_room(cx)).await?;
        counter.store(on_its_way(stream), Ordering::Relaxed);
        if let Some(rate) = sending.rate {
            let due = Duration::from_secs_f64(queued as f64 / rate.get() as f64);
            host.runtime().sleep_until(began + due).await;
            room = length;
        }
        for _ in 0..room.div_ceil(length) {
            stream.send(block.clone(), TxTag::PLAIN);
            queued += length as u64;
        }
        SegmentStream::flush(stream);
    }
}

/// Receives until the end of the stream.
async fn receive(stream: &mut TcpStream, counter: &AtomicU64) -> io::Result<()> {
    while let Some(segment) = poll_fn(|cx| stream.poll_segment(cx)).await? {
        counter.fetch_add(segment.data.len() as u64, Ordering::Relaxed);
        stream.consume(segment.data.len());
    }
    Ok(())
}

async fn tell(control: &mut (impl AsyncWrite + Unpin), step: ProtocolStep) -> io::Result<()> {
    control.write_i8(step as i8).await?;
    control.flush().await
}

/// Reads JSON that follows its length.
async fn read_json(control: &mut (impl AsyncRead + Unpin)) -> io::Result<Vec<u8>> {
    let length = control.read_u32().await? as usize;
    // The length comes from the client, so it must not decide about memory alone.
    if length > MAX_JSON {
        return Err(io::Error::new(ErrorKind::InvalidData, format!("{length} bytes of JSON")));
    }
    let mut text = vec![0; length];
    control.read_exact(&mut text).await?;
    Ok(text)
}

async fn write_json(control: &mut (impl AsyncWrite + Unpin), value: &impl Serialize) -> io::Result<()> {
    let text = serde_json::to_vec(value)?;
    control.write_u32(text.len() as u32).await?;
    control.write_all(&text).await?;
    control.flush().await
}

/// The identifier at the beginning of each stream of a test: text, and a zero byte.
type Cookie = [u8; 37];
const NO_COOKIE: Cookie = [0; 37];

/// Time limit of a client for one step.
const PATIENCE: Duration = Duration::from_secs(10);
/// Time limit of a test without progress, the same as that of clients.
const STALL: Duration = Duration::from_secs(120);
/// Least bytes queued at a time on a stream.
const MIN_PIECE: usize = 16 << 10;
const MAX_STREAMS: usize = 128;
const MAX_WRITTEN: usize = 1 << 20;
const MAX_JSON: usize = 256 << 10;
/// Connections that may wait to be accepted: all streams of a test and some more.
const BACKLOG: usize = 2 * MAX_STREAMS + 16;
/// The error number that clients show for an option that is not implemented.
const NOT_IMPLEMENTED: i32 = 13;
