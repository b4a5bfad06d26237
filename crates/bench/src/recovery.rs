//! How much of the offload survives loss and reordering, and what finding the place again costs.
//!
//! Many streams share one pair of NICs; each sends full records one way, and only the wire that way is impaired. What
//! is told are counts, not times: records by who opened them, and bytes that the sender's NIC read again. The policy
//! that takes flows which retransmit off their device is switched off. Each way of receiving NICs to find their places,
//! and of sending ones to go on after a retransmission, can be asked for.

use bytes::Bytes;
use core::fmt;
use futures_util::future::{join_all, try_join};
use ktls_offload::{FixedKeys, KtlsStream, Offload, TlsCounters, TrafficKeys};
use nic_sim::wire::impairment::{RandomLoss, Reorder, Reordering};
use nic_sim::wire::{Impairment, LinkConfig, Share};
use nic_sim::{NicConfig, TransmitResync};
use offload_api::{ResyncMode, TlsKey, TlsSuite, TlsVersion};
use offload_base::cost::{self, CpuMeter, WorkKind};
use offload_base::counters::CounterSet;
use offload_base::{Instant, Rng, Seed};
use offload_bench_tls::connection::Mode;
use offload_bench_tls::facts::Run;
use offload_bench_tls::measured::Measured;
use offload_bench_tls::observers::Observers;
use offload_host_stack::{TcpConfig, TcpStream};
use offload_testbed::{BedHost, Testbed};
use serde::Serialize;
use std::io;
use std::sync::Arc;

/// What the wire does to a share of the packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Trouble {
    /// It loses them.
    Loss,
    /// It holds them back for [`HOLD`], so that others overtake them.
    Reordering,
}

impl Trouble {
    const fn name(self) -> &'static str {
        match self {
            Trouble::Loss => "loss",
            Trouble::Reordering => "reordering",
        }
    }
}

/// A run to be made.
///
/// ```
/// use offload_base::Seed;
/// use offload_bench::recovery::{Recovery, Trouble};
///
/// let clean = Recovery { streams: 2, records: 8, ..Recovery::new(Trouble::Loss, 0.0, Seed(1)) };
/// let made = clean.run()?;
/// assert!(made.run.sha256_ok);
/// assert_eq!((made.row.full, made.row.dumped), (100.0, 0.0));
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Recovery {
    /// What the wire does.
    pub trouble: Trouble,
    /// To which share of the packets, 0 to 1.
    pub share: f64,
    /// Connections at once.
    pub streams: u64,
    /// Records that each sends.
    pub records: u64,
    /// How the receiving NIC finds its place again.
    pub resync: ResyncMode,
    /// How the sending one goes on after a retransmission.
    pub transmit_resync: TransmitResync,
    /// Both NICs, but for the two ways above.
    pub nic: NicConfig,
    /// The seed of everything random.
    pub seed: Seed,
    /// The observers of the run.
    pub observers: Observers,
}

impl Recovery {
    /// 128 streams of 64 records; driver requests, and DUMPs.
    pub fn new(trouble: Trouble, share: f64, seed: Seed) -> Recovery {
        let (resync, transmit_resync) = (ResyncMode::default(), TransmitResync::default());
        let (nic, observers) = (NicConfig::default(), Observers::default());
        Recovery { trouble, share, streams: 128, records: 64, resync, transmit_resync, nic, seed, observers }
    }

    /// The runs of the whole table: each way to find the place, over loss and reordering at the published shares; and the
    /// other way to go on after a retransmission, over loss.
    pub fn grid(self) -> Vec<Recovery> {
        let ways = [ResyncMode::DriverRequest, ResyncMode::CoreHint, ResyncMode::Asynchronous];
        let mut runs: Vec<Recovery> = ways
            .into_iter()
            .flat_map(|resync| [Trouble::Loss, Trouble::Reordering].map(|trouble| (resync, trouble)))
            .map(|(resync, trouble)| Recovery { trouble, resync, ..self.clone() })
            .collect();
        runs.push(Recovery { trouble: Trouble::Loss, transmit_resync: TransmitResync::NextRecord, ..self });
        let shares = |run: Recovery| PERCENTAGES.map(|percent| Recovery { share: percent / 100.0, ..run.clone() });
        runs.into_iter().flat_map(shares).collect()
    }

    /// Returns the name of the run among others: `loss-0.01-driver-request-dump`.
    pub fn label(&self) -> String {
        let (resync, transmit_resync) = self.ways();
        format!("{}-{}-{resync}-{transmit_resync}", self.trouble.name(), self.share).replace(' ', "-")
    }

    /// Makes the run, in virtual time.
    ///
    /// # Errors
    /// When a connection fails.
    ///
    /// # Panics
    /// If the share is none.
    pub fn run(self) -> io::Result<RecoveryRun> {
        let meter = CpuMeter::new();
        let mut nic = self.nic.clone();
        nic.engines.tls.resync = self.resync;
        nic.engines = nic.engines.with_transmit_resync(self.transmit_resync);
        let builder = Testbed::builder(self.seed)
            .meter(&meter)
            .host("server", nic.clone(), TcpConfig::default())
            .host("client", nic, TcpConfig::default())
            .wire(0, 1, LinkConfig::default());
        let mut bed = self.observers.attach(builder).build()?;
        if self.share > 0.0 {
            let link = bed.cable(0).left_to_right.clone();
            link.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).impair(self.impairment());
        }
        let (server, client) = (bed.host(0).clone(), bed.host(1).clone());
        let attached = meter.attach();
        let plan = Arc::new(self);
        let serving = server.spawn("application", serve(plan.clone(), server.clone()));
        let fetching = client.spawn("application", fetch(plan.clone(), client.clone(), server.clone()));
        let both = plan.observers.run(&mut bed, plan.label(), try_join(serving, fetching));
        drop(attached);
        let (sent, fetched) = both?;
        plan.observers.finish()?;
        let (opened, counters, dma) = (&fetched.opened, bed.counters(), server.dma());
        let of_payload = |bytes: u64| bytes as f64 * 100.0 / (plan.streams * plan.records * RECORD as u64) as f64;
        let of_records = |records: u64| records as f64 * 100.0 / (plan.streams * plan.records) as f64;
        let (resync, transmit_resync) = plan.ways();
        let row = Row {
            trouble: plan.trouble,
            share: plan.share,
            resync,
            transmit_resync,
            full: of_records(opened.value("TlsRxRecordsDevice")),
            partial: of_records(opened.value("TlsRxRecordsPartial")),
            none: of_records(opened.value("TlsRxRecordsSw")),
            dumped: of_payload(counters.value("tx_tls_dump_bytes")),
            descriptors: of_payload(dma.tx_parameters + dma.tx_resync - counters.value("tx_tls_dump_bytes")),
            retransmitted: counters.value("TcpRetransSegs"),
            resyncs: counters.value("tx_tls_ooo"),
            questions: counters.value("rx_tls_resync_req_end"),
            told: counters.value("rx_tls_resync_res_ok"),
            sealed: counters.value("tx_tls_needs_software"),
        };
        let measured = Measured::take(bed, &meter, sent.iter().chain(&fetched.tls));
        let bytes = plan.streams * plan.records * RECORD as u64;
        Ok(RecoveryRun { run: measured.run(Mode::TlsNic, bytes, fetched.whole, fetched.ended - Instant::ZERO), row })
    }

    /// The ways in which the receiving and the sending NIC go on, as tables name them.
    fn ways(&self) -> (&'static str, &'static str) {
        let resync = match self.resync {
            ResyncMode::CoreHint => "core hint",
            ResyncMode::Asynchronous => "asynchronous",
            _ => "driver request",
        };
        let transmit_resync = match self.transmit_resync {
            TransmitResync::Dump => "dump",
            TransmitResync::NextRecord => "next record",
        };
        (resync, transmit_resync)
    }

    fn impairment(&self) -> Box<dyn Impairment> {
        let share = Share::new(self.share).expect("a share is from 0 to 1");
        match self.trouble {
            Trouble::Loss => Box::new(RandomLoss::new(share, self.seed.stream("loss"))),
            Trouble::Reordering => {
                Box::new(Reordering::new(Reorder { share, hold: HOLD }, self.seed.stream("reordering")))
            }
        }
    }

    /// The keys of a stream, from the server's side.
    fn keys(&self, stream: u64) -> TrafficKeys {
        let mut secrets = self.seed.stream(&format!("stream {stream}"));
        TrafficKeys { transmit: (0, key(&mut secrets)), receive: (0, key(&mut secrets)) }
    }
}

/// What one run reports: what `ktls_loopback` does, of the whole time with connecting in it, and what was left.
///
/// See [`Recovery`] for an example.
#[derive(Clone, Debug, Serialize)]
pub struct RecoveryRun {
    /// The common fields.
    #[serde(flatten)]
    pub run: Run,
    /// What was left of the offload.
    #[serde(flatten)]
    pub row: Row,
}

/// What was left of the offload. Shares in percent.
///
/// See [`Recovery`] for an example.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Row {
    /// What the wire did.
    pub trouble: Trouble,
    /// To which share of the packets, 0 to 1.
    pub share: f64,
    /// How the receiving NIC found its place again.
    pub resync: &'static str,
    /// How the sending one went on after a retransmission.
    pub transmit_resync: &'static str,
    /// Records that the receiver's NIC opened.
    pub full: f64,
    /// Records that it opened in part.
    pub partial: f64,
    /// Records that it left to software.
    pub none: f64,
    /// Payload that the sender's NIC read again in DUMPs, in percent of all payload.
    pub dumped: f64,
    /// Descriptors of DUMPs, parameters and fences, in percent of all payload.
    pub descriptors: f64,
    /// Segments sent again.
    pub retransmitted: u64,
    /// Times a packet was not the next of its context.
    pub resyncs: u64,
    /// Times the receiver's TLS was asked where a record begins.
    pub questions: u64,
    /// Times the receiver's NIC was told of one, asked or not, and had use for it.
    pub told: u64,
    /// Records that the sender's software sealed, for they were sent again.
    pub sealed: u64,
}

/// Rows, as a table in Markdown.
///
/// ```
/// use offload_bench::recovery::Table;
///
/// assert!(Table(&[]).to_string().starts_with("| wire |"));
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Table<'a>(pub &'a [Row]);

impl fmt::Display for Table<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "| wire | % | receiver, sender | records full | partial | none | DUMPs, % of payload | descriptors, % | \
             segments again | out of order | sealed again | questions | answers of use |"
        )?;
        writeln!(f, "|---|---|---|---|---|---|---|---|---|---|---|---|---|")?;
        for row in self.0 {
            let wire = row.trouble.name();
            writeln!(
                f,
                "| {wire} | {:.1} | {}, {} | {:.1} | {:.1} | {:.1} | {:.2} | {:.2} | {} | {} | {} | {} | {} |",
                row.share * 100.0,
                row.resync,
                row.transmit_resync,
                row.full,
                row.partial,
                row.none,
                row.dumped,
                row.descriptors,
                row.retransmitted,
                row.resyncs,
                row.sealed,
                row.questions,
                row.told
            )?;
        }
        Ok(())
    }
}

async fn serve(run: Arc<Recovery>, host: BedHost) -> io::Result<Vec<TlsCounters>> {
    let mut listener = host.stack().listen(PORT, run.streams as usize)?;
    let mut sending = Vec::new();
    for _ in 0..run.streams {
        let stream = listener.accept().await?;
        // Clients say by their port which stream they are.
        let number = u64::from(stream.peer_addr().port() - FIRST_CLIENT_PORT);
        sending.push(host.spawn(format!("stream {number}"), send(run.clone(), stream, number)));
    }
    join_all(sending).await.into_iter().collect()
}

async fn send(run: Arc<Recovery>, stream: TcpStream, number: u64) -> io::Result<TlsCounters> {
    let mut stream = tls(stream, run.keys(number))?;
    stream.set_retransmit_limit(None);
    // From the first record on the client knows where records are; the device makes those after it.
    stream.send_chunk(Bytes::from_static(b"hello")).await?;
    stream.next_chunk().await?;
    stream.offload(Offload { tx: true, rx: false });
    let data = Bytes::from(vec![number as u8; RECORD]);
    for _ in 0..run.records {
        stream.send_chunk(data.clone()).await?;
    }
    stream.close().await?;
    Ok(*stream.counters())
}

/// What the client can tell afterwards.
struct Fetched {
    /// Records by who opened them; not the first of a stream, nor the one that closes it.
    opened: CounterSet,
    tls: Vec<TlsCounters>,
    whole: bool,
    ended: Instant,
}

async fn fetch(run: Arc<Recovery>, host: BedHost, server: BedHost) -> io::Result<Fetched> {
    let receiving: Vec<_> = (0..run.streams)
        .map(|number| {
            host.spawn(format!("stream {number}"), receive(run.clone(), host.clone(), server.clone(), number))
        })
        .collect();
    let mut fetched = Fetched { opened: CounterSet::default(), tls: Vec::new(), whole: true, ended: host.now() };
    for received in join_all(receiving).await {
        let (counters, before, equal) = received?;
        fetched.opened.add(&TlsCounters { rx_records_sw: counters.rx_records_sw - before, ..counters });
        fetched.tls.push(counters);
        fetched.whole &= equal;
    }
    fetched.ended = host.now();
    Ok(fetched)
}

/// Counters, records opened before any was counted, and whether all bytes are what was sent.
type Received = (TlsCounters, u64, bool);

async fn receive(run: Arc<Recovery>, host: BedHost, server: BedHost, number: u64) -> io::Result<Received> {
    let port = FIRST_CLIENT_PORT + number as u16;
    let stream = host.stack().connect(Some(port), (server.address(), PORT).into()).await?;
    let mut stream = tls(stream, run.keys(number).swapped())?;
    stream.next_chunk().await?;
    let before = stream.counters().rx_records_sw;
    stream.offload(Offload { tx: false, rx: true });
    stream.ready().await?;
    stream.send_chunk(Bytes::from_static(b"go")).await?;
    let (mut left, mut equal) = (run.records * RECORD as u64, true);
    while left > 0 {
        let chunk = stream.next_chunk().await?.ok_or(io::ErrorKind::UnexpectedEof)?;
        let _application = cost::work(WorkKind::Application);
        equal &= chunk.iter().all(|byte| *byte == number as u8);
        run.observers.arrived(chunk.len() as u64);
        left = left.checked_sub(chunk.len() as u64).ok_or(io::ErrorKind::InvalidData)?;
    }
    Ok((*stream.counters(), before, equal))
}

fn tls(stream: TcpStream, keys: TrafficKeys) -> io::Result<KtlsStream<TcpStream>> {
    KtlsStream::new(stream, keys, Box::new(FixedKeys)).map_err(io::Error::other)
}

fn key(secrets: &mut Rng) -> TlsKey {
    let (mut key, mut iv) = ([0; 16], [0; 12]);
    secrets.fill(&mut key);
    secrets.fill(&mut iv);
    TlsKey::new(TlsVersion::Tls13, TlsSuite::Aes128Gcm, &key, iv).expect("16 bytes are such a key")
}

/// How long a reordered packet is held back: four times the wire's delay.
pub const HOLD: core::time::Duration = core::time::Duration::from_micros(20);
/// The shares of the published figures, in percent.
pub const PERCENTAGES: [f64; 6] = [0.0, 0.5, 1.0, 2.0, 3.0, 5.0];
const RECORD: usize = 16 * 1024;
const PORT: u16 = 443;
const FIRST_CLIENT_PORT: u16 = 20_000;
