//! One stream from one host to another: plain TCP, or TLS by the hosts, by accelerators beside their CPUs, or by the
//! NICs.
//!
//! After the handshake, both ends offload their keys or not: the server first, which says *ready* when its receive
//! context is installed, so that the NIC misses no record; then the client, which says *go*. The clock and the meter
//! run from there to the last byte. The server sends the payload in messages and closes; then the client closes.

use crate::choice::Choice;
use crate::choices;
pub use crate::connection::Mode;
use crate::connection::{Connection, GO, READY, nic_on, tcp};
use crate::facts::Run;
use crate::measured::Measured;
use crate::observers::Observers;
use crate::payload::{Checksum, Payload};
use bytes::Bytes;
use core::fmt;
use core::net::IpAddr;
use futures_util::future::try_join;
use ktls_offload::{HandshakeError, LookasideStream, Offload, TlsCounters};
use nic_sim::lookaside::{LookasideConfig, LookasideUnit};
use nic_sim::wire::{LinkConfig, Port};
use nic_sim::{Delays, NicConfig};
use offload_api::NetDevice;
use offload_base::cost::{self, CpuMeter, WorkKind};
use offload_base::{Instant, Seed};
use offload_host_stack::{TcpListener, TcpStream};
use offload_testbed::ApplicationTrack;
use offload_testbed::bed::{BedHost, Builder, ClockKind, Testbed};
use offload_testbed::identity::{self, Agreement, Randomness};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::PathBuf;
use std::sync::Arc;

/// The settings of a transfer.
///
/// ```
/// use offload_base::Seed;
/// use offload_bench_tls::bulk::{Bulk, Mode};
/// use offload_bench_tls::payload::Payload;
///
/// let run = Bulk::new(Mode::TlsNic, Payload::seeded(Seed(1), 100_000)).run()?;
/// assert!(run.sha256_ok);
/// assert_eq!(run.tx_host_ns_per_byte.crypto, 0.0, "the NIC did it");
/// # Ok::<(), offload_bench_tls::bulk::BulkError>(())
/// ```
#[derive(Clone)]
pub struct Bulk {
    /// The mode of TLS.
    pub mode: Mode,
    /// The data to send.
    pub payload: Payload,
    /// The SHA-256 of the payload, if known already.
    pub checksum: Option<Checksum>,
    /// Whether to compare the SHA-256 of the received data; otherwise only its length counts.
    pub checked: bool,
    /// Content bytes of a full record, 1 to 16384.
    pub record_size: usize,
    /// The version of TLS and the cipher suite.
    pub agreement: Agreement,
    /// Records are padded so that their encrypted content is a multiple of this number of bytes; 1 for no padding.
    pub padding: usize,
    /// Bytes handed to the stream at once.
    pub message_size: usize,
    /// The clock.
    pub clock: ClockKind,
    /// The seed of all random numbers.
    pub seed: Seed,
    /// Settings of both NICs.
    pub nic: NicConfig,
    /// Settings of an accelerator beside the CPU of both hosts, which does the TLS instead of the NIC: records are jobs
    /// from memory to memory, unless `mode` is plain TCP. In real time its units work as fast as the machine.
    pub accelerator: Option<LookasideConfig>,
    /// Settings of each direction of the wire.
    pub link: LinkConfig,
    /// Whether to use IPv6 instead of IPv4.
    pub ipv6: bool,
    /// A layer between each host's stack and its driver, such as IPsec; called for the server (0) and for the client
    /// (1).
    pub layer: Option<LayerOfHost>,
    /// A layer between each host's NIC and the wire; called for the server (0) and for the client (1).
    pub port: Option<PortOfHost>,
    /// The observers of the run.
    pub observers: Observers,
    /// The file for received data.
    pub out: Option<PathBuf>,
}

/// Creates the layer between the stack and the driver of a host.
pub type LayerOfHost = Arc<dyn Fn(usize, Vec<Box<dyn NetDevice>>) -> Vec<Box<dyn NetDevice>> + Send + Sync>;

/// Creates the layer between the NIC of a host and its wire.
pub type PortOfHost = Arc<dyn Fn(usize, Box<dyn Port>) -> Box<dyn Port> + Send + Sync>;

choices! {
    /// The place of the TLS of a transfer.
    pub enum TlsWay {
        /// No TLS: plain TCP.
        Tcp = "tcp",
        /// The hosts' CPUs, with ring.
        Cpu = "tls-cpu",
        /// Accelerators beside the hosts' CPUs, by jobs.
        Lookaside = "tls-lookaside",
        /// The NICs.
        Nic = "tls-nic",
    }
}

impl TlsWay {
    /// Returns the mode and the accelerator of a transfer.
    ///
    /// ```
    /// use offload_bench_tls::bulk::{Mode, TlsWay};
    ///
    /// assert!(matches!(TlsWay::Nic.parts(), (Mode::TlsNic, None)));
    /// assert!(TlsWay::Lookaside.parts().1.is_some());
    /// ```
    pub fn parts(self) -> (Mode, Option<LookasideConfig>) {
        match self {
            TlsWay::Tcp => (Mode::Tcp, None),
            TlsWay::Cpu => (Mode::TlsCpu, None),
            TlsWay::Lookaside => (Mode::TlsNic, Some(LookasideConfig::default())),
            TlsWay::Nic => (Mode::TlsNic, None),
        }
    }
}

impl Bulk {
    /// Returns a transfer in virtual time over a clean wire, with 16 KiB records of TLS 1.3 and 256 KiB messages.
    pub fn new(mode: Mode, payload: Payload) -> Bulk {
        Bulk {
            mode,
            payload,
            checksum: None,
            checked: true,
            record_size: 16 * 1024,
            agreement: Agreement::default(),
            padding: 1,
            message_size: 256 * 1024,
            clock: ClockKind::Virtual,
            seed: Seed(1),
            nic: NicConfig::default(),
            accelerator: None,
            link: LinkConfig::default(),
            ipv6: false,
            layer: None,
            port: None,
            observers: Observers::default(),
            out: None,
        }
    }

    fn with_layers(&self, mut builder: Builder, host: usize) -> Builder {
        if let Some(layer) = self.layer.clone() {
            builder = builder.layer(move |queues| layer(host, queues));
        }
        if let Some(around) = self.port.clone() {
            builder = builder.port(move |port| around(host, port));
        }
        builder
    }

    /// Returns the name of the run.
    fn label(&self) -> &'static str {
        if self.by_jobs() { TlsWay::Lookaside.name() } else { self.mode.name() }
    }

    fn by_jobs(&self) -> bool {
        self.accelerator.is_some() && self.mode != Mode::Tcp
    }

    fn with_accelerator(&self, builder: Builder) -> Builder {
        match &self.accelerator {
            Some(config) => builder.accelerator(accelerator_on(self.clock, config)),
            None => builder,
        }
    }

    /// Returns the source of an end's secrets.
    fn randomness(&self, end: &str) -> Randomness {
        match self.clock {
            ClockKind::Virtual => Randomness::Seeded(self.seed.derive(end)),
            ClockKind::Real => Randomness::System,
        }
    }

    /// Returns the timeline of an end's application.
    fn application(&self, host: &str) -> Option<ApplicationTrack> {
        self.observers.tracer.as_ref().map(|tracer| tracer.application(host, "application"))
    }

    /// Runs the transfer and returns the result. A wrong checksum is reported in the result and is not an error.
    ///
    /// # Errors If the transfer cannot be made because a thread, a file, the handshake or the connection failed.
    pub fn run(self) -> Result<Run, BulkError> {
        let expected = match self.checksum {
            _ if !self.checked => None,
            Some(checksum) => Some(checksum),
            None => Some(self.payload.checksum().map_err(BulkError::Payload)?),
        };
        let meter = CpuMeter::new();
        let nic = nic_on(self.clock, &self.nic);
        // A lost FIN is retransmitted as often as data, so that a run over a bad wire still ends.
        let tcp = tcp();
        let mut builder =
            Testbed::builder(self.seed).clock(self.clock).meter(&meter).host("server", nic.clone(), tcp.clone());
        builder = self.with_accelerator(self.with_layers(builder, SERVER)).host("client", nic, tcp);
        builder = self.with_accelerator(self.with_layers(builder, CLIENT)).wire(SERVER, CLIENT, self.link.clone());
        let mut bed = self.observers.attach(builder).build().map_err(BulkError::Testbed)?;
        let bulk = Arc::new(self);
        let (server, client) = (bed.host(SERVER).clone(), bed.host(CLIENT).clone());
        let attached = meter.attach();
        // The server listens before the client can connect.
        let listener = server.stack().listen(PORT, 1)?;
        let serving = server.spawn("application", serve(bulk.clone(), server.clone(), listener, meter.clone()));
        let to = if bulk.ipv6 { IpAddr::from(server.ipv6_address()) } else { server.address().into() };
        let fetching = client.spawn("application", fetch(bulk.clone(), client.clone(), to));
        // If one end fails, the other may wait forever, so the first error ends both.
        let both = bulk.observers.run(&mut bed, bulk.label(), try_join(serving, fetching));
        drop(attached);
        let (served, fetched) = match both {
            Ok(both) => both,
            Err(error) => {
                // The counters often show the reason of a failure, so they go with the error.
                let counters = bed.counters();
                let moved = counters.moved().map(|(name, value)| (name.to_string(), value)).collect();
                return Err(BulkError::BrokenOff { error: Box::new(error), counters: moved });
            }
        };

        bulk.observers.finish().map_err(BulkError::Capture)?;
        let measured = Measured::take(bed, &meter, [served.tls, fetched.tls].iter().flatten());
        let bytes = fetched.bytes;
        // The length is compared even if checksums are off.
        let whole = bytes == bulk.payload.len() && expected.is_none_or(|expected| fetched.checksum == expected);
        Ok(measured.run(bulk.label(), bytes, whole, fetched.ended - served.started))
    }
}

impl fmt::Debug for Bulk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Bulk").field("mode", &self.mode).field("bytes", &self.payload.len()).finish_non_exhaustive()
    }
}

/// The reason why a transfer failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BulkError {
    /// The testbed could not be set up.
    #[error("the testbed cannot be set up: {0}")]
    Testbed(#[source] io::Error),
    /// The payload cannot be read.
    #[error("the payload cannot be read: {0}")]
    Payload(#[source] io::Error),
    /// The received data cannot be written.
    #[error("the received data cannot be written: {0}")]
    Output(#[source] io::Error),
    /// The capture cannot be written.
    #[error("the capture cannot be written: {0}")]
    Capture(#[source] io::Error),
    /// Crate `rustls` has no such cipher suite for this version of TLS.
    #[error("the cipher suite {0:?} is not known")]
    NoSuchSuite(Agreement),
    /// The handshake failed.
    #[error("the TLS handshake failed: {0}")]
    Handshake(#[from] HandshakeError),
    /// The connection failed.
    #[error("the connection failed: {0}")]
    Connection(#[from] io::Error),
    /// The transfer began and was cut off.
    #[error("{error}")]
    BrokenOff {
        /// The reason.
        #[source]
        error: Box<BulkError>,
        /// Counters of both hosts, devices and the wire that moved until then, summed by name.
        counters: BTreeMap<String, u64>,
    },
}

/// Wraps the stream so that the host's accelerator does the TLS, if it is to; otherwise returns the stream.
#[expect(clippy::result_large_err, reason = "the stream goes on either way")]
fn jobs(bulk: &Bulk, host: &BedHost, stream: TcpStream) -> Result<LookasideStream<TcpStream>, TcpStream> {
    match host.accelerator().filter(|_| bulk.by_jobs()) {
        Some(queue) => {
            let (stream, sends) = LookasideStream::new(stream, queue);
            host.spawn("sealed records", sends);
            Ok(stream)
        }
        None => Err(stream),
    }
}

/// Adapts the settings of an accelerator to the clock.
fn accelerator_on(clock: ClockKind, config: &LookasideConfig) -> LookasideConfig {
    match clock {
        ClockKind::Virtual => config.clone(),
        ClockKind::Real => {
            let units = vec![LookasideUnit::NO_TIME; config.units.len()];
            LookasideConfig { units, delays: Delays::NONE, ..config.clone() }
        }
    }
}

/// Measurements at the server.
struct BulkServerResult {
    started: Instant,
    tls: Option<TlsCounters>,
}

async fn serve(
    bulk: Arc<Bulk>,
    host: BedHost,
    mut listener: TcpListener,
    meter: CpuMeter,
) -> Result<BulkServerResult, BulkError> {
    let stream = listener.accept().await?;
    let mut connection = match bulk.mode {
        Mode::Tcp => Connection::Plain(stream),
        Mode::TlsCpu | Mode::TlsNic => {
            let config = bulk.agreement.server_config(bulk.randomness("server"), bulk.observers.key_log());
            let config = config.ok_or(BulkError::NoSuchSuite(bulk.agreement))?;
            let config = Arc::new(config);
            match jobs(&bulk, &host, stream) {
                Ok(stream) => Connection::Jobs(Box::new(ktls_offload::accept(stream, config).await?)),
                Err(stream) => Connection::Tls(Box::new(ktls_offload::accept(stream, config).await?)),
            }
        }
    };
    connection.pad(bulk.padding);
    // The NIC must have its receive context before the client sends, or records would be lost for offload.
    connection.offload(bulk.mode, bulk.record_size, Offload::BOTH).await?;
    connection.send(Bytes::from_static(READY)).await?;
    connection.expect_go().await?;
    meter.restart();
    let started = host.now();
    let pieces = bulk.payload.pieces(bulk.message_size).map_err(BulkError::Payload)?;
    let mut pieces = pieces;
    let track = bulk.application("server");
    while let Some(piece) = {
        let _application = cost::work(WorkKind::Application);
        pieces.next()
    } {
        let piece = piece.map_err(BulkError::Payload)?;
        let (bytes, from) = (piece.len() as u64, host.now());
        connection.send(piece).await?;
        // Spans are recorded only if a timeline is written.
        if let Some(track) = &track {
            track.span("send", from, host.now(), bytes);
        }
    }
    connection.close().await?;
    // TCP would deliver the rest after the stream is dropped too, but would not report if it gave up.
    connection.acknowledged(READY.len() as u64 + bulk.payload.len()).await?;
    connection.closed().await;
    Ok(BulkServerResult { started, tls: connection.counters() })
}

/// Measurements at the client.
struct BulkClientResult {
    ended: Instant,
    bytes: u64,
    checksum: Checksum,
    tls: Option<TlsCounters>,
}

async fn fetch(bulk: Arc<Bulk>, host: BedHost, server: IpAddr) -> Result<BulkClientResult, BulkError> {
    let stream = host.stack().connect(None, (server, PORT).into()).await?;
    let mut connection = match bulk.mode {
        Mode::Tcp => Connection::Plain(stream),
        Mode::TlsCpu | Mode::TlsNic => {
            let config = bulk.agreement.client_config(bulk.randomness("client"), None);
            let config = Arc::new(config.ok_or(BulkError::NoSuchSuite(bulk.agreement))?);
            let name = identity::server_name();
            match jobs(&bulk, &host, stream) {
                Ok(stream) => Connection::Jobs(Box::new(ktls_offload::connect(stream, config, name).await?)),
                Err(stream) => Connection::Tls(Box::new(ktls_offload::connect(stream, config, name).await?)),
            }
        }
    };
    connection.pad(bulk.padding);
    connection.expect(READY).await?;
    connection.offload(bulk.mode, bulk.record_size, Offload::BOTH).await?;
    connection.send(Bytes::from_static(GO)).await?;
    let mut arrivals = PayloadReceiver::new(&bulk)?;
    let track = bulk.application("client");
    let mut waits_since = host.now();
    while let Some(chunk) = connection.receive().await? {
        let _application = cost::work(WorkKind::Application);
        if let Some(track) = &track {
            let now = host.now();
            track.span("wait for data", waits_since, now, chunk.len() as u64);
            waits_since = now;
        }
        arrivals.take(&chunk)?;
    }
    let ended = host.now();
    connection.close().await?;
    let tls = connection.counters();
    // Hashing and writing happen after the measured time.
    let _application = cost::work(WorkKind::Application);
    let (bytes, checksum) = arrivals.finish()?;
    Ok(BulkClientResult { ended, bytes, checksum, tls })
}

/// Received data. In virtual time each chunk is hashed and written in place: a copy would go to memory that is in no
/// cache, and the pending writes would be charged to the host's next work. In real time hashing would delay the stream,
/// so chunks are collected first.
struct PayloadReceiver {
    checked: bool,
    kept: Vec<u8>,
    /// Most bytes that are collected.
    keeps: u64,
    bytes: u64,
    hasher: Sha256,
    out: Option<BufWriter<File>>,
    observers: Observers,
}

impl PayloadReceiver {
    fn new(bulk: &Bulk) -> Result<PayloadReceiver, BulkError> {
        let out = bulk.out.as_ref().map(File::create).transpose().map_err(BulkError::Output)?;
        let checked = bulk.checked || out.is_some();
        // Collecting costs nothing in virtual time, where hashing can happen in place.
        let keeps = if bulk.clock == ClockKind::Real { bulk.payload.len().min(KEPT) } else { 0 };
        Ok(PayloadReceiver {
            checked,
            kept: touched(if checked { keeps as usize } else { 0 }),
            keeps,
            bytes: 0,
            hasher: Sha256::new(),
            out: out.map(BufWriter::new),
            observers: bulk.observers.clone(),
        })
    }

    fn take(&mut self, chunk: &[u8]) -> Result<(), BulkError> {
        self.bytes += chunk.len() as u64;
        self.observers.arrived(chunk.len() as u64);
        if !self.checked {
            return Ok(());
        }
        // A chunk that does not fit is hashed at once, after the collected ones.
        if (self.kept.len() + chunk.len()) as u64 <= self.keeps {
            self.kept.extend_from_slice(chunk);
            return Ok(());
        }
        // Collected chunks come first, or the hash would mix up the order.
        self.write_kept()?;
        self.look_at(chunk)
    }

    /// Hashes and writes the collected bytes.
    fn write_kept(&mut self) -> Result<(), BulkError> {
        let mut kept = core::mem::take(&mut self.kept);
        self.look_at(&kept)?;
        kept.clear();
        self.kept = kept;
        Ok(())
    }

    fn look_at(&mut self, bytes: &[u8]) -> Result<(), BulkError> {
        self.hasher.update(bytes);
        self.out.as_mut().map_or(Ok(()), |out| out.write_all(bytes)).map_err(BulkError::Output)
    }

    fn finish(mut self) -> Result<(u64, Checksum), BulkError> {
        self.write_kept()?;
        if let Some(out) = &mut self.out {
            out.flush().map_err(BulkError::Output)?;
        }
        Ok((self.bytes, self.hasher.finalize().into()))
    }
}

/// Returns an empty vector with `bytes` bytes of memory that the system has already mapped. Otherwise the system would
/// map page by page while the clock runs.
fn touched(bytes: usize) -> Vec<u8> {
    let mut room = vec![1; bytes];
    room.clear();
    room
}

const SERVER: usize = 0;
const CLIENT: usize = 1;
/// The port of the server.
pub const PORT: u16 = 4433;
/// Bytes that are collected in real time before hashing.
const KEPT: u64 = 256 << 20;

#[cfg(test)]
mod tests {
    use super::*;
    use nic_sim::wire::Impairments;
    use nic_sim::{EngineConfigs, TlsEngineConfig, TransmitResync};
    use offload_api::{ResyncMode, TlsSuite, TlsVersion};

    fn bulk(mode: Mode) -> Bulk {
        Bulk::new(mode, Payload::seeded(Seed(1), 1_000_000))
    }

    #[test]
    fn nothing_is_lost_or_reset_at_the_edges_of_a_clean_run() {
        for version in [TlsVersion::Tls12, TlsVersion::Tls13] {
            for suite in [TlsSuite::Aes128Gcm, TlsSuite::Aes256Gcm, TlsSuite::ChaCha20Poly1305] {
                for mode in [Mode::TlsCpu, Mode::TlsNic] {
                    let agreement = Agreement { version, suite };
                    let run = Bulk { agreement, ..bulk(mode) }.run().unwrap();
                    assert!(run.sha256_ok, "{agreement:?}");
                    let counted = |name: &str| run.counters.get(name).copied().unwrap_or(0);
                    for name in ["TcpExtTCPAbortOnData", "TcpEstabResets", "rx_tls_lost", "rx_tls_resync_req_pkt"] {
                        assert_eq!(counted(name), 0, "{mode} {agreement:?}: {name}");
                    }
                    // The records are: full ones and the rest, the two closing ones, `ready` and `go`.
                    let records = 1_000_000_u64.div_ceil(16_384) + 4;
                    let (sealed, opened) = match mode {
                        Mode::TlsNic => ("TlsTxRecordsDevice", "TlsRxRecordsDevice"),
                        _ => ("TlsTxRecordsSw", "TlsRxRecordsSw"),
                    };
                    assert_eq!(counted(sealed), records, "{mode} {agreement:?}");
                    // The client's NIC gets its key after `ready`; in software there is the server's ticket as well.
                    let ticket = u64::from(version == TlsVersion::Tls13);
                    let expected = if mode == Mode::TlsNic { records - 1 } else { records + ticket };
                    assert_eq!(counted(opened), expected, "{mode} {agreement:?}");
                }
            }
        }
    }

    /// Inline, payload crosses PCIe once on transmit and once on receive. With jobs each record crosses twice more at
    /// either end: plaintext and content type to the accelerator, ciphertext and tag back, and the reverse on receive.
    #[test]
    fn jobs_cross_pcie_twice_more_than_a_nic_that_works_inline() {
        let inline = bulk(Mode::TlsNic).run().unwrap();
        let jobs = Bulk { accelerator: Some(LookasideConfig::default()), ..bulk(Mode::TlsNic) }.run().unwrap();
        assert!(jobs.sha256_ok);
        assert_eq!(jobs.mode, "tls-lookaside");
        // A receiving NIC may join packets differently, with more or fewer headers, so only the sender is compared.
        assert_eq!(jobs.dma_bytes["tx_payload"], inline.dma_bytes["tx_payload"], "the NIC sends the same bytes");
        assert_eq!((inline.dma_bytes["job_source"], inline.dma_bytes["job_target"]), (0, 0));
        // Data, `ready`, `go` and a close_notify in each direction are sealed and opened by jobs; but `ready` is opened
        // before the client's accelerator has the key. A data record has 16 KiB.
        let records = 1_000_000_u64.div_ceil(16_384);
        let (words, alerts) = ([5 + 1, 2 + 1], 2 * (2 + 1));
        let plain = 1_000_000 + records + alerts;
        let (sealed, opened) = (plain + words[0] + words[1], plain + words[1]);
        let (tags_sealed, tags_opened) = (16 * (records + 4), 16 * (records + 3));
        // The additional data are the header of 5 bytes.
        assert_eq!(
            jobs.dma_bytes["job_source"],
            (sealed + 5 * (records + 4)) + (opened + tags_opened + 5 * (records + 3))
        );
        assert_eq!(jobs.dma_bytes["job_target"], sealed + tags_sealed + opened);
        assert_eq!((jobs.tx_host_ns_per_byte.crypto, jobs.rx_host_ns_per_byte.crypto), (0.0, 0.0));
    }

    /// Retransmitted bytes are encrypted already, so a loss needs no further jobs.
    #[test]
    fn a_loss_makes_no_more_jobs() {
        let impairments = Impairments { loss: "0.01".parse().unwrap(), ..Impairments::default() };
        let with = |link: LinkConfig| {
            let accelerator = Some(LookasideConfig::default());
            let run = Bulk { link, accelerator, ..bulk(Mode::TlsNic) }.run().unwrap();
            assert!(run.sha256_ok);
            (run.dma_bytes["job_source"], run.counters.get("TcpRetransSegs").copied().unwrap_or(0))
        };
        let (clean, lossy) = (with(LinkConfig::default()), with(LinkConfig { impairments, ..LinkConfig::default() }));
        assert_eq!(clean.0, lossy.0);
        assert!(clean.1 == 0 && lossy.1 > 0, "{} segments were sent again", lossy.1);
    }

    #[test]
    fn padding_and_resync_modes_are_applied() {
        let plain = bulk(Mode::TlsNic).run().unwrap();
        let padded = Bulk { padding: 16_384, record_size: 1000, ..bulk(Mode::TlsNic) }.run().unwrap();
        assert!(padded.sha256_ok && padded.dma_bytes["tx_payload"] > 16 * plain.dma_bytes["tx_payload"]);

        let impairments = Impairments { loss: "0.01".parse().unwrap(), ..Impairments::default() };
        let lossy = |nic: NicConfig| {
            let link = LinkConfig { impairments, ..LinkConfig::default() };
            let payload = Payload::seeded(Seed(1), 6_000_000);
            let run = Bulk { nic, link, ..Bulk::new(Mode::TlsNic, payload) }.run().unwrap();
            assert!(run.sha256_ok);
            move |name: &str| run.counters.get(name).copied().unwrap_or(0)
        };
        // The default modes use DUMPs and requests, which the other modes must avoid.
        let usual = lossy(NicConfig::default());
        assert!(usual("tx_tls_dump_packets") > 0 && usual("rx_tls_resync_req_pkt") > 0);
        let sealed = lossy(NicConfig {
            engines: EngineConfigs::default().with_transmit_resync(TransmitResync::NextRecord),
            ..NicConfig::default()
        });
        assert!(sealed("tx_tls_dump_packets") == 0 && sealed("tx_tls_needs_software") > 0);
        let hinted = lossy(NicConfig {
            engines: TlsEngineConfig { resync: ResyncMode::CoreHint, ..TlsEngineConfig::default() }.into(),
            ..NicConfig::default()
        });
        assert_eq!(hinted("rx_tls_resync_req_pkt"), 0);
    }
}
