//! The share of offload that remains under loss and reordering, and the cost of resynchronization.
//!
//! Many streams share one pair of NICs; each sends full records in one direction, and only that direction of the wire
//! is impaired. The results are counts, not times: records by the place of their decryption, and bytes that the
//! sender's NIC read again. The policy that ends the offload of flows with many retransmissions is off. All modes of
//! receive and transmit resynchronization can be selected.

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

/// The impairment of a share of the packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Trouble {
    /// Packets are lost.
    Loss,
    /// Packets are delayed by [`HOLD`], so that others overtake them.
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

/// The settings of a run.
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
    /// The impairment.
    pub trouble: Trouble,
    /// The share of impaired packets, 0 to 1.
    pub share: f64,
    /// Simultaneous connections.
    pub streams: u64,
    /// Records sent on each connection.
    pub records: u64,
    /// Resynchronization of the receiving NIC.
    pub resync: ResyncMode,
    /// Resynchronization of the sending NIC.
    pub transmit_resync: TransmitResync,
    /// Settings of both NICs, except for the two above.
    pub nic: NicConfig,
    /// The seed of all random numbers.
    pub seed: Seed,
    /// The observers of the run.
    pub observers: Observers,
}

impl Recovery {
    /// Returns 128 streams of 64 records with driver requests and DUMPs.
    pub fn new(trouble: Trouble, share: f64, seed: Seed) -> Recovery {
        let (resync, transmit_resync) = (ResyncMode::default(), TransmitResync::default());
        let (nic, observers) = (NicConfig::default(), Observers::default());
        Recovery { trouble, share, streams: 128, records: 64, resync, transmit_resync, nic, seed, observers }
    }

    /// Returns the runs of the whole table: each receive mode over loss and reordering at the published shares, and the
    /// other transmit mode over loss.
    pub fn grid(self) -> Vec<Recovery> {
        let ways = [ResyncMode::DriverRequest, ResyncMode::CoreHint, ResyncMode::Asynchronous];
        let mut runs: Vec<Recovery> = ways
            .into_iter()
            .flat_map(|resync| [Trouble::Loss, Trouble::Reordering].map(|trouble| (resync, trouble)))
            .map(|(resync, trouble)| Recovery { trouble, resync, ..self.clone() })
            .collect();
        // The transmit mode matters only for retransmissions, which reordering causes rarely.
        runs.push(Recovery { trouble: Trouble::Loss, transmit_resync: TransmitResync::NextRecord, ..self });
        let shares = |run: Recovery| PERCENTAGES.map(|percent| Recovery { share: percent / 100.0, ..run.clone() });
        runs.into_iter().flat_map(shares).collect()
    }

    /// Returns the name of the run among others: `loss-0.01-driver-request-dump`.
    pub fn label(&self) -> String {
        let (resync, transmit_resync) = self.ways();
        format!("{}-{}-{resync}-{transmit_resync}", self.trouble.name(), self.share).replace(' ', "-")
    }

    /// Runs the streams in virtual time.
    ///
    /// # Errors If a connection fails.
    ///
    /// # Panics If the share is not from 0 to 1.
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
        // Only the data's direction is impaired, so that lost acknowledgments do not blur the counts.
        if self.share > 0.0 {
            // The server is on the left, so this is the direction of the data.
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
        // Shares are of records or of payload, so that runs of different lengths compare.
        let row = Row {
            trouble: plan.trouble,
            share: plan.share,
            resync,
            transmit_resync,
            full: of_records(opened.value("TlsRxRecordsDevice")),
            partial: of_records(opened.value("TlsRxRecordsPartial")),
            none: of_records(opened.value("TlsRxRecordsSw")),
            dumped: of_payload(counters.value("tx_tls_dump_bytes")),
            // Descriptors of DUMPs are counted with their data by the device, so the data is subtracted.
            descriptors: of_payload(dma.tx_parameters + dma.tx_resync - counters.value("tx_tls_dump_bytes")),
            retransmitted: counters.value("TcpRetransSegs"),
            resyncs: counters.value("tx_tls_ooo"),
            questions: counters.value("rx_tls_resync_req_end"),
            told: counters.value("rx_tls_resync_res_ok"),
            sealed: counters.value("tx_tls_needs_software"),
        };
        // Counters of TLS streams are added, because the streams are closed by now.
        let measured = Measured::take(bed, &meter, sent.iter().chain(&fetched.tls));
        let bytes = plan.streams * plan.records * RECORD as u64;
        Ok(RecoveryRun { run: measured.run(Mode::TlsNic, bytes, fetched.whole, fetched.ended - Instant::ZERO), row })
    }

    /// Returns the names of the receive and transmit modes in tables.
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

    /// Returns the keys of a stream at the server.
    fn keys(&self, stream: u64) -> TrafficKeys {
        let mut secrets = self.seed.stream(&format!("stream {stream}"));
        TrafficKeys { transmit: (0, key(&mut secrets)), receive: (0, key(&mut secrets)) }
    }
}

/// The result of one run: the fields of `ktls_loopback`, over the whole time including connecting, and the remaining
/// offload.
///
/// See [`Recovery`] for an example.
#[derive(Clone, Debug, Serialize)]
pub struct RecoveryRun {
    /// The common fields.
    #[serde(flatten)]
    pub run: Run,
    /// The remaining offload.
    #[serde(flatten)]
    pub row: Row,
}

/// The offload that remained, with shares in percent.
///
/// See [`Recovery`] for an example.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Row {
    /// The impairment.
    pub trouble: Trouble,
    /// The share of impaired packets, 0 to 1.
    pub share: f64,
    /// Resynchronization of the receiving NIC.
    pub resync: &'static str,
    /// Resynchronization of the sending NIC.
    pub transmit_resync: &'static str,
    /// Records fully decrypted by the receiver's NIC.
    pub full: f64,
    /// Records partly decrypted by the receiver's NIC.
    pub partial: f64,
    /// Records decrypted in software.
    pub none: f64,
    /// Payload that the sender's NIC read again in DUMPs, in percent of all payload.
    pub dumped: f64,
    /// Descriptors of DUMPs, parameters and fences, in percent of all payload.
    pub descriptors: f64,
    /// Retransmitted segments.
    pub retransmitted: u64,
    /// Packets that were not the next of their context.
    pub resyncs: u64,
    /// Requests to the receiver's TLS for the position of a record.
    pub questions: u64,
    /// Record positions, requested or not, that the receiver's NIC could use.
    pub told: u64,
    /// Retransmitted records that the sender encrypted in software.
    pub sealed: u64,
}

/// Rows as a Markdown table.
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
        // Clients choose their port by the number of their stream.
        let number = u64::from(stream.peer_addr().port() - FIRST_CLIENT_PORT);
        // Each stream has a task of its own, because a lossy stream must not delay the other streams.
        sending.push(host.spawn(format!("stream {number}"), send(run.clone(), stream, number)));
    }
    join_all(sending).await.into_iter().collect()
}

async fn send(run: Arc<Recovery>, stream: TcpStream, number: u64) -> io::Result<TlsCounters> {
    let mut stream = tls(stream, run.keys(number))?;
    // The stream must stay offloaded however often it retransmits, because the run measures exactly that.
    stream.set_retransmit_limit(None);
    // The first record tells the client's software where records are. The device encrypts the records after it.
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

/// Measurements at the client.
struct RecoveryClientResult {
    /// Records by the place of decryption, without the first and the closing record of a stream.
    opened: CounterSet,
    tls: Vec<TlsCounters>,
    whole: bool,
    ended: Instant,
}

async fn fetch(run: Arc<Recovery>, host: BedHost, server: BedHost) -> io::Result<RecoveryClientResult> {
    let receiving: Vec<_> = (0..run.streams)
        .map(|number| {
            host.spawn(format!("stream {number}"), receive(run.clone(), host.clone(), server.clone(), number))
        })
        .collect();
    let mut fetched =
        RecoveryClientResult { opened: CounterSet::default(), tls: Vec::new(), whole: true, ended: host.now() };
    for received in join_all(receiving).await {
        let (counters, before, equal) = received?;
        // Records before the offload were decrypted in software and do not count.
        fetched.opened.add(&TlsCounters { rx_records_sw: counters.rx_records_sw - before, ..counters });
        fetched.tls.push(counters);
        fetched.whole &= equal;
    }
    fetched.ended = host.now();
    Ok(fetched)
}

/// Counters, records decrypted before the measurement, and whether all bytes are right.
type RecoveryStreamResult = (TlsCounters, u64, bool);

async fn receive(run: Arc<Recovery>, host: BedHost, server: BedHost, number: u64) -> io::Result<RecoveryStreamResult> {
    let port = FIRST_CLIENT_PORT + number as u16;
    let stream = host.stack().connect(Some(port), (server.address(), PORT).into()).await?;
    let mut stream = tls(stream, run.keys(number).swapped())?;
    stream.next_chunk().await?;
    let before = stream.counters().rx_records_sw;
    // Only records after this point can be offloaded, so the server waits for the word `go`.
    stream.offload(Offload { tx: false, rx: true });
    // The receive context must be installed before the data is requested.
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

/// Time that a reordered packet is delayed: four times the wire's delay.
pub const HOLD: core::time::Duration = core::time::Duration::from_micros(20);
/// The shares of the published figures, in percent.
pub const PERCENTAGES: [f64; 6] = [0.0, 0.5, 1.0, 2.0, 3.0, 5.0];
const RECORD: usize = 16 * 1024;
const PORT: u16 = 443;
const FIRST_CLIENT_PORT: u16 = 20_000;
