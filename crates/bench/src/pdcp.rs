//! User packets of a mobile network from one host to the other, over PDCP in GTP-U: without ciphering, or ciphered by
//! the hosts, by accelerators, or by the NICs.
//!
//! The sender is a base station's unit or a gateway with PDCP; the receiver stands for everything down to the phone.
//! There is no radio between both, and no RLC to retransmit: a lost packet stays lost and delays later ones until
//! t-Reordering expires.

use core::fmt;
use core::future::poll_fn;
use core::net::{IpAddr, SocketAddr};
use core::pin::pin;
use core::task::Poll;
use core::time::Duration;
use futures_util::future::{try_join, try_join_all};
use nic_pdcp::{PdcpBatches, PdcpPackets};
use nic_sim::NicConfig;
use nic_sim::engine::Engines;
use nic_sim::lookaside::LookasideConfig;
use nic_sim::wire::LinkConfig;
use offload_base::cost::{self, CpuMeter, WorkKind};
use offload_base::counters::CounterSet;
use offload_base::{Instant, Seed};
use offload_bench_tls::choices;
use offload_bench_tls::connection::{nic_on, tcp};
use offload_bench_tls::facts::Run;
use offload_bench_tls::measured::Measured;
use offload_bench_tls::observers::Observers;
use offload_bench_tls::payload::Payload;
use offload_testbed::JoinHandle;
use offload_testbed::bed::{BedHost, ClockKind, Testbed};
use pdcp::crypto::{Algorithm, Direction, Key};
use pdcp::gtpu::{Bearer, BearerError, BearerOpenError, GtpTunnel, Node, PduProtection};
use pdcp::{BearerKind, Config, Sdu, Security, SnLen};
use std::io;
use std::sync::Arc;

choices! {
    /// The place of ciphering and integrity protection.
    pub enum PdcpMode {
        /// No protection: the null algorithms.
        PdcpPlain = "pdcp-plain",
        /// The hosts' CPUs, up to 64 PDUs at a time in parallel lanes.
        PdcpCpu = "pdcp-cpu",
        /// Accelerators beside the CPUs, one job for the PDUs that are ready together.
        PdcpJobs = "pdcp-jobs",
        /// The NICs.
        PdcpNic = "pdcp-nic",
    }
}

/// The settings of a transfer.
///
/// ```
/// use offload_base::Seed;
/// use offload_bench_tls::payload::Payload;
/// use offload_bench::pdcp::{PdcpMode, PdcpBulk};
///
/// let run = PdcpBulk::new(PdcpMode::PdcpNic, Payload::seeded(Seed(1), 1_000_000)).run()?;
/// assert!(run.sha256_ok && run.counters["pdcp_rx_pdus"] > 700);
/// # Ok::<(), offload_bench::pdcp::PdcpError>(())
/// ```
#[derive(Clone)]
pub struct PdcpBulk {
    /// The place of ciphering and integrity protection.
    pub mode: PdcpMode,
    /// The data sent on each bearer.
    pub payload: Payload,
    /// Simultaneous bearers.
    pub bearers: u16,
    /// Bytes of an SDU; the last SDU is shorter.
    pub sdu: u16,
    /// The algorithm of ciphering (NEA) and integrity (NIA).
    pub algorithm: Algorithm,
    /// Whether there is integrity protection. On data bearers that is the network's choice.
    pub integrity: bool,
    /// Length of sequence numbers.
    pub sn: SnLen,
    /// Time that a missing PDU delays later ones (t-Reordering). At most half of all sequence numbers may pass
    /// meanwhile, or COUNT is guessed wrongly.
    pub reordering: Duration,
    /// The clock.
    pub clock: ClockKind,
    /// The seed of all random numbers.
    pub seed: Seed,
    /// Settings of both NICs. Each host has one shard per queue, and its node one socket per shard.
    pub nic: NicConfig,
    /// Settings of each direction of the wire.
    pub link: LinkConfig,
    /// Whether to use IPv6 instead of IPv4.
    pub ipv6: bool,
    /// The observers of the run.
    pub observers: Observers,
}

/// The reason why a transfer failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PdcpError {
    /// An error of the testbed, of a socket or of the payload.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// A bearer was not opened.
    #[error("no bearer: {0}")]
    Open(#[from] BearerOpenError),
    /// An SDU was not sent.
    #[error("an SDU was not sent: {0}")]
    Bearer(#[from] BearerError),
    /// An SDU of this size does not fit a packet.
    #[error("SDUs of {sdu} bytes do not fit the MTU: {most} do")]
    SduTooLong {
        /// The requested size.
        sdu: u16,
        /// The largest size that fits.
        most: u16,
    },
}

impl PdcpBulk {
    /// Returns a transfer in virtual time over a clean wire, on one bearer, by SNOW 3G with integrity.
    pub fn new(mode: PdcpMode, payload: Payload) -> PdcpBulk {
        PdcpBulk {
            mode,
            payload,
            bearers: 1,
            sdu: 1400,
            algorithm: Algorithm::Snow3g,
            integrity: true,
            sn: SnLen::Eighteen,
            reordering: Duration::from_millis(1),
            clock: ClockKind::Virtual,
            seed: Seed(1),
            nic: NicConfig { lro_datagrams: true, ..NicConfig::default() },
            link: LinkConfig::default(),
            ipv6: false,
            observers: Observers::default(),
        }
    }

    /// Returns the longest SDU that fits one packet.
    pub fn most_sdu(&self) -> u16 {
        let ip = if self.ipv6 { 40 } else { 20 };
        self.nic.mtu.saturating_sub(ip + UDP_AND_GTPU + HEADER_AND_MAC)
    }

    /// Runs the transfer and returns the result. `sha256_ok` means that no SDU arrived changed, twice or out of order,
    /// and that all arrived if the wire lost none.
    ///
    /// # Errors If the transfer cannot be made.
    pub fn run(self) -> Result<Run, PdcpError> {
        if self.sdu > self.most_sdu() || self.sdu == 0 {
            return Err(PdcpError::SduTooLong { sdu: self.sdu, most: self.most_sdu() });
        }
        let (meter, nic) = (CpuMeter::new(), nic_on(self.clock, &self.nic));
        let mut builder = Testbed::builder(self.seed).clock(self.clock).meter(&meter);
        for name in ["sender", "receiver"] {
            let add = |engines: &mut Engines| engines.add_packet(PdcpPackets, CONTEXTS);
            builder = builder.host(name, nic.clone(), tcp()).engines(add);
            if self.mode == PdcpMode::PdcpJobs {
                let config = LookasideConfig::default();
                builder = builder.accelerator_with(config, |engines| engines.add_job(PdcpBatches, CONTEXTS));
            }
        }
        builder = builder.wire(0, 1, self.link.clone());
        let mut bed = self.observers.attach(builder).build()?;
        let (sender, receiver) = (bed.host(0).clone(), bed.host(1).clone());
        let attached = meter.attach();
        let [(sends, from), (receives, to)] = [self.node(&sender)?, self.node(&receiver)?];
        let bulk = Arc::new(self);
        // The tasks below move the hosts, so the spawning handles are cloned first.
        let (sent, received) = (sender.clone(), receiver.clone());
        let sending = bulk.clone().send(sends.clone(), sender.clone(), address(&receiver, bulk.ipv6), meter.clone());
        let receiving = bulk.clone().receive(receives.clone(), receiver.clone(), address(&sender, bulk.ipv6));
        let sending = sent.spawn("application", sending);
        let receiving = received.spawn("application", receiving);
        let both = bulk.observers.run(&mut bed, bulk.mode, try_join(sending, receiving));
        drop((attached, from, to));
        let (started, arrived) = both?;
        bulk.observers.finish()?;
        let mut counters = CounterSet::default();
        [sends, receives].iter().for_each(|node| counters.add(&node.counters()));
        // PDCP does not retransmit, so completeness is expected only of a clean wire.
        let lossless = bulk.link.impairments == Default::default();
        let whole = arrived.iter().all(|one| one.right && (!lossless || one.bytes == bulk.payload.len()));
        let bytes = arrived.iter().map(|one| one.bytes).sum();
        let ended = arrived.iter().map(|one| one.last).max().unwrap_or(started);
        let mut run = Measured::take(bed, &meter, []).run(bulk.mode, bytes, whole, ended - started);
        run.counters.extend(counters.moved().map(|(name, value)| (name.into(), value)));
        Ok(run)
    }

    fn node(&self, host: &BedHost) -> io::Result<(Node, Vec<JoinHandle<io::Result<()>>>)> {
        let protection = || match (self.mode, host.accelerator()) {
            (PdcpMode::PdcpNic, _) => PduProtection::Device,
            (PdcpMode::PdcpJobs, Some(queue)) => PduProtection::Jobs(Box::new(queue.client())),
            _ => PduProtection::Cpu,
        };
        let queues = host.shards().iter().map(|shard| Ok((shard.bind_udp(Some(PORT))?, protection())));
        let queues = queues.collect::<io::Result<Vec<_>>>()?;
        let (node, drivers) = Node::for_queues(queues, host.runtime());
        Ok((node, drivers.into_iter().map(|driver| host.spawn("pdcp", driver)).collect()))
    }

    /// Returns the keys of ciphering and integrity of a bearer and direction, derived from the seed.
    fn secrets(&self, number: u16, direction: Direction) -> [Vec<u8>; 2] {
        let mut secrets = self.seed.stream(&format!("bearer {number} {direction:?}"));
        [(); 2].map(|()| {
            let mut key = vec![0; self.algorithm.key_len()];
            secrets.fill(&mut key);
            key
        })
    }

    /// Returns the TEIDs at the sender and at the receiver: each end chooses its own.
    fn tunnels(number: u16) -> [u32; 2] {
        [0, TUNNELS].map(|base| base + u32::from(number) + 1)
    }

    /// Returns the keys of all bearers, for readers of a capture. Each direction of a bearer has a line with the TEID,
    /// `uplink` or `downlink`, the bearer (1 to 32), the bits of a sequence number, the algorithm's number, and the
    /// keys of ciphering and of integrity in hexadecimal digits (`-` without a key).
    ///
    /// ```
    /// use offload_base::Seed;
    /// use offload_bench_tls::payload::Payload;
    /// use offload_bench::pdcp::{PdcpMode, PdcpBulk};
    ///
    /// let keys = PdcpBulk::new(PdcpMode::PdcpNic, Payload::seeded(Seed(1), 0)).key_lines();
    /// assert!(keys.starts_with("65537 downlink 1 18 1 ") && keys.lines().count() == 2);
    /// ```
    pub fn key_lines(&self) -> String {
        let hex = |key: &[u8]| key.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        let mut lines = String::new();
        for number in 0..self.bearers {
            let [at_sender, at_receiver] = PdcpBulk::tunnels(number);
            // A packet carries the TEID of its receiver.
            let ways = [(at_receiver, Direction::Downlink, "downlink"), (at_sender, Direction::Uplink, "uplink")];
            for (tunnel, direction, name) in ways {
                let [cipher, integrity] = match self.mode {
                    PdcpMode::PdcpPlain => [(); 2].map(|()| "-".into()),
                    _ => self.secrets(number, direction).map(|key| hex(&key)),
                };
                let integrity = if self.integrity { integrity } else { "-".into() };
                let (bits, algorithm) = (if self.sn == SnLen::Twelve { 12 } else { 18 }, self.algorithm.number());
                lines += &format!("{tunnel} {name} {} {bits} {algorithm} {cipher} {integrity}\n", 1 + number % 32);
            }
        }
        lines
    }

    fn open(&self, node: &Node, number: u16, peer: SocketAddr, downlink: bool) -> Result<Bearer, BearerOpenError> {
        let security = |direction: Direction| {
            let security = Security::new(1 + (number % 32) as u8, direction).expect("1 to 32");
            if self.mode == PdcpMode::PdcpPlain {
                return security;
            }
            let key = |key: Vec<u8>| Key::new(self.algorithm, &key).expect("as long as it wants");
            let [cipher, integrity] = self.secrets(number, direction).map(key);
            let security = security.ciphered(cipher);
            if self.integrity { security.authenticated(integrity) } else { security }
        };
        let (down, up) = (security(Direction::Downlink), security(Direction::Uplink));
        let [sent, received] = if downlink { [down, up] } else { [up, down] };
        let [mut local, mut remote] = PdcpBulk::tunnels(number);
        if !downlink {
            core::mem::swap(&mut local, &mut remote);
        }
        let mut config = Config::data(BearerKind::Unacknowledged, self.sn);
        config.reordering = Some(self.reordering);
        node.open(GtpTunnel { local, remote, peer }, config, sent, received)
    }

    /// Sends on all bearers and returns the start time.
    async fn send(
        self: Arc<PdcpBulk>,
        node: Node,
        host: BedHost,
        to: IpAddr,
        meter: CpuMeter,
    ) -> Result<Instant, PdcpError> {
        let peer = SocketAddr::new(to, PORT);
        let bearers = (0..self.bearers).map(|number| self.open(&node, number, peer, true));
        let bearers = bearers.collect::<Result<Vec<_>, _>>()?;
        // The contexts of both NICs are installed by then.
        host.runtime().sleep(SETTLED).await;
        meter.restart();
        let started = host.now();
        try_join_all(bearers.iter().map(|bearer| self.send_on(bearer, &host))).await?;
        Ok(started)
    }

    async fn send_on(&self, bearer: &Bearer, host: &BedHost) -> Result<(), PdcpError> {
        let mut pieces = self.payload.pieces(self.sdu.into())?;
        while let Some(piece) = {
            let _application = cost::work(WorkKind::Application);
            pieces.next()
        } {
            bearer.send(piece?).await?;
        }
        // An end marker may be lost, so it is repeated until the receiver answers.
        let mut heard = pin!(bearer.receive());
        loop {
            bearer.end();
            let runtime = host.runtime();
            let mut pause = pin!(runtime.sleep(PAUSE));
            let answered = poll_fn(|cx| {
                if heard.as_mut().poll(cx).is_ready() {
                    return Poll::Ready(true);
                }
                pause.as_mut().poll(cx).map(|()| false)
            });
            if answered.await {
                return Ok(());
            }
        }
    }

    async fn receive(
        self: Arc<PdcpBulk>,
        node: Node,
        host: BedHost,
        from: IpAddr,
    ) -> Result<Vec<ReceivedSdus>, PdcpError> {
        let peer = SocketAddr::new(from, PORT);
        let bearers = (0..self.bearers).map(|number| self.open(&node, number, peer, false));
        let bearers = bearers.collect::<Result<Vec<_>, _>>()?;
        let arrived = try_join_all(bearers.iter().map(|bearer| self.receive_on(bearer, &host))).await?;
        // The answers are still in transit.
        host.runtime().sleep(SETTLED).await;
        Ok(arrived)
    }

    async fn receive_on(&self, bearer: &Bearer, host: &BedHost) -> Result<ReceivedSdus, PdcpError> {
        let mut arrived = ReceivedSdus { bytes: 0, right: true, last: host.now() };
        let mut expected = (0..).zip(self.payload.pieces(self.sdu.into())?);
        while let Some(Sdu { count, data }) = bearer.receive().await {
            let _application = cost::work(WorkKind::Application);
            arrived.bytes += data.len() as u64;
            arrived.last = host.now();
            // COUNT is the SDU's position. Skipped positions were lost. A late or duplicated SDU is behind the iterator
            // and counts as wrong.
            let found = expected.find(|(place, _)| *place == count);
            arrived.right &= found.is_some_and(|(_, piece)| piece.is_ok_and(|piece| piece == data));
            self.observers.arrived(data.len() as u64);
        }
        // The sender waits for one of these answers.
        for _ in 0..DONE_TIMES {
            bearer.send(DONE.into()).await?;
        }
        Ok(arrived)
    }
}

/// The received data of a bearer.
struct ReceivedSdus {
    bytes: u64,
    /// Whether all SDUs were unchanged, in order, and without duplicates.
    right: bool,
    last: Instant,
}

impl fmt::Debug for PdcpBulk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PdcpBulk").field("mode", &self.mode).field("bytes", &self.payload.len()).finish_non_exhaustive()
    }
}

fn address(host: &BedHost, ipv6: bool) -> IpAddr {
    if ipv6 { host.ipv6_address().into() } else { host.address().into() }
}

const PORT: u16 = 2152;
/// Bytes of the headers of UDP and GTP-U.
const UDP_AND_GTPU: u16 = 8 + 8;
/// Bytes of the longest PDCP header and of MAC-I.
const HEADER_AND_MAC: u16 = 3 + 4;
/// First TEID of the receiver, less one.
const TUNNELS: u32 = 1 << 16;
const CONTEXTS: u32 = 1 << 17;
const SETTLED: Duration = Duration::from_millis(5);
const PAUSE: Duration = Duration::from_millis(10);
const DONE: &[u8] = b"done";
/// The answer is sent several times because it may be lost and is not acknowledged.
const DONE_TIMES: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;
    use nic_sim::wire::impairment::{Impairments, Reorder, Share};

    fn bulk(mode: PdcpMode) -> PdcpBulk {
        PdcpBulk::new(mode, Payload::seeded(Seed(1), 2_000_000))
    }

    fn counted(run: &Run, name: &str) -> u64 {
        run.counters.get(name).copied().unwrap_or(0)
    }

    #[test]
    fn each_mode_carries_the_payload_and_counts_its_packets() {
        for mode in PdcpMode::ALL {
            for ipv6 in [false, true] {
                let run = PdcpBulk { ipv6, ..bulk(mode) }.run().unwrap();
                assert!(run.sha256_ok && run.bytes == 2_000_000, "{mode}: {run:?}");
                let by = |name: &str| counted(&run, name) > 1000;
                assert_eq!(
                    by("PdcpProtectedDevice") && by("pdcp_tx_pdus"),
                    mode == PdcpMode::PdcpNic,
                    "{mode}: {run:?}"
                );
                assert_eq!(by("PdcpProtectedJobs"), mode == PdcpMode::PdcpJobs, "{mode}");
                // The null algorithms are software too.
                let here = matches!(mode, PdcpMode::PdcpPlain | PdcpMode::PdcpCpu);
                assert_eq!(by("PdcpProtectedSw"), here, "{mode}");
                assert_eq!(by("PdcpOpenedDevice"), !here, "{mode}: {run:?}");
                assert_eq!(by("pdcp_rx_pdus"), mode == PdcpMode::PdcpNic, "{mode}");
                assert_eq!(counted(&run, "PdcpRedone") + counted(&run, "PdcpIntegrity"), 0, "{mode}");
            }
        }
    }

    /// Sequence numbers of 12 bits wrap around; packets are lost, duplicated and reordered.
    #[test]
    fn received_sdus_are_right_and_in_order_over_a_bad_wire() {
        let share = |text: &str| text.parse::<Share>().unwrap();
        let impairments = Impairments {
            loss: share("0.02"),
            reorder: Some(Reorder { share: share("0.02"), hold: Duration::from_micros(30) }),
            duplicate: share("0.01"),
            corrupt: share("0.002"),
            ..Impairments::default()
        };
        for mode in PdcpMode::ALL {
            for algorithm in [Algorithm::Snow3g, Algorithm::Aes128, Algorithm::Zuc256] {
                let rate = Some(1_000_000_000);
                let link = LinkConfig { impairments, rate, ..LinkConfig::default() };
                let payload = Payload::seeded(Seed(2), 6_000_000);
                // The rate is low, so that reordered packets really overtake each other.
                let usual = PdcpBulk { payload, link, algorithm, ..bulk(mode) };
                let run = PdcpBulk { sn: SnLen::Twelve, bearers: 2, sdu: 700, ..usual }.run().unwrap();
                assert!(run.sha256_ok && run.bytes > 11_000_000, "{mode} {algorithm:?}: {run:?}");
                assert!(counted(&run, "PdcpGivenUp") > 100 && counted(&run, "PdcpDuplicates") > 50, "{mode}: {run:?}");
                assert_eq!(
                    counted(&run, "PdcpOpenedDevice") > 10_000,
                    mode == PdcpMode::PdcpNic || mode == PdcpMode::PdcpJobs
                );
            }
        }
    }

    #[test]
    fn with_several_queues_all_of_it_arrives() {
        for mode in PdcpMode::ALL {
            for queues in [2, 4] {
                let usual = bulk(mode);
                let nic = NicConfig { queues, ..usual.nic.clone() };
                let run = PdcpBulk { nic, bearers: 4, ..usual }.run().unwrap();
                assert!(run.sha256_ok && run.bytes == 8_000_000, "{mode}: {run:?}");
                // A NIC with contexts delivers each PDU to its bearer's queue.
                let handed = counted(&run, "GtpuHandedOn");
                assert_eq!(handed > 1000, mode != PdcpMode::PdcpNic, "{mode}: {run:?}");
            }
        }
    }

    #[test]
    fn an_sdu_that_fits_no_packet_is_refused() {
        let refused = PdcpBulk { sdu: 1458, ..bulk(PdcpMode::PdcpCpu) }.run().unwrap_err();
        assert_eq!(refused.to_string(), "SDUs of 1458 bytes do not fit the MTU: 1457 do");
        assert!(PdcpBulk { sdu: 1457, ..bulk(PdcpMode::PdcpNic) }.run().unwrap().sha256_ok);
    }
}
