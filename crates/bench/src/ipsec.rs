//! The cost of a packet: datagrams of one size from one host to another, in clear text and under ESP, over several SAs.
//!
//! Each SA protects one flow, selected by a policy with the flow's port; flows take turns. The sender uses half of the
//! wire's rate, so that no packet is lost for lack of room. The result is CPU time, not goodput.

use crate::keys;
use crate::latency::per_request;
use bytes::{Bytes, BytesMut};
use core::fmt::Write;
use core::future::poll_fn;
use core::net::{IpAddr, Ipv4Addr};
use core::task::Poll;
use core::time::Duration;
use futures_util::future::try_join;
use ipsec::{KeyFile, KeyMemory};
use nic_sim::NicConfig;
use nic_sim::wire::LinkConfig;
use offload_api::OffloadKind;
use offload_base::cost::{self, CpuMeter, Domain, WorkKind};
use offload_base::random::Rng;
use offload_base::{Instant, Seed};
use offload_bench_tls::bulk::LayerOfHost;
use offload_bench_tls::choices;
use offload_bench_tls::connection::tcp;
use offload_bench_tls::facts::Run;
use offload_bench_tls::measured::Measured;
use offload_bench_tls::observers::Observers;
use offload_host_stack::UdpSocket;
use offload_testbed::bed::{BedHost, Testbed};
use serde::Serialize;
use std::io;
use std::sync::Arc;

choices! {
    /// The end that does ESP: CPU or NIC.
    pub enum IpsecMode {
        /// No ESP.
        Plain = "plain",
        /// ESP on the hosts' CPUs.
        EspCpu = "esp-cpu",
        /// Headers by the hosts, everything else by the NICs.
        EspCrypto = "esp-crypto",
        /// ESP by the NICs.
        EspPacket = "esp-packet",
    }
}

impl IpsecMode {
    /// Returns the requested offload. `None` without ESP.
    pub const fn offload(self) -> Option<OffloadKind> {
        match self {
            IpsecMode::Plain => None,
            IpsecMode::EspCpu => Some(OffloadKind::None),
            IpsecMode::EspCrypto => Some(OffloadKind::Crypto),
            IpsecMode::EspPacket => Some(OffloadKind::Packet),
        }
    }
}

/// Returns IPsec around the driver of each host of a [`Bulk`](offload_bench_tls::bulk::Bulk) run: `keys` for the
/// server, which is 10.0.0.1, and mirrored keys for the client.
///
/// ```
/// use offload_base::Seed;
/// use offload_bench_tls::bulk::{Bulk, Mode};
/// use offload_bench::ipsec;
/// use offload_bench_tls::payload::Payload;
///
/// let layer = Some(ipsec::layer(ipsec::usual_keys(Seed(1))));
/// let run = Bulk { layer, ..Bulk::new(Mode::Tcp, Payload::seeded(Seed(1), 100_000)) }.run().unwrap();
/// assert!(run.sha256_ok && run.counters["ipsec_sw_tx_pkts"] > 0);
/// ```
pub fn layer(keys: KeyFile) -> LayerOfHost {
    let mirrored = keys.mirrored();
    Arc::new(move |host, queues| {
        let keys = if host == 0 { &keys } else { &mirrored };
        keys::tried(keys, queues, &addresses(host), KeyMemory::new())
    })
}

/// Returns the addresses of a host of a [`Bulk`](offload_bench_tls::bulk::Bulk) run.
pub fn addresses(host: usize) -> [IpAddr; 2] {
    let number = host as u8 + 1;
    [[10, 0, 0, number].into(), [0xfd00, 0, 0, 0, 0, 0, 0, number.into()].into()]
}

/// Returns an SA in each direction, AES-128-GCM in transport mode with extended sequence numbers, and policies that
/// protect all traffic between the two hosts, for IPv4 and IPv6.
///
/// # Panics Never: the text is constant except for the keys.
pub fn usual_keys(seed: Seed) -> KeyFile {
    let mut text = String::new();
    for (source, destination, spi, direction) in [
        ("10.0.0.1", "10.0.0.2", 0x1001, "out"),
        ("10.0.0.2", "10.0.0.1", 0x1002, "in"),
        ("fd00::1", "fd00::2", 0x1003, "out"),
        ("fd00::2", "fd00::1", 0x1004, "in"),
    ] {
        let key = secret(&mut seed.stream(&format!("key from {source}")));
        text += &format!(
            "state add src {source} dst {destination} proto esp spi {spi:#x} reqid 1 mode transport\n \
             replay-window 256 flag esn aead rfc4106(gcm(aes)) 0x{key} 128\n\
             policy add src {source} dst {destination} dir {direction} tmpl proto esp reqid 1 mode transport\n"
        );
    }
    text.parse().expect("a good key file")
}

/// Returns the key and salt of AES-128-GCM in hexadecimal digits.
fn secret(randomness: &mut Rng) -> String {
    let mut key = [0; 20];
    randomness.fill(&mut key);
    key.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The settings of a run, in virtual time over a clean wire.
///
/// ```
/// use offload_base::Seed;
/// use offload_bench::ipsec::{IpsecMode, Ipsec};
///
/// let run = Ipsec { sas: 3, packets: 100, ..Ipsec::new(IpsecMode::EspCpu, Seed(1)) }.run()?;
/// assert!(run.run.sha256_ok, "each datagram arrived once");
/// assert_eq!(run.run.counters["ipsec_sw_tx_pkts"], 101, "and a first one to warm up");
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Ipsec {
    /// The end that does ESP.
    pub mode: IpsecMode,
    /// Bytes of an IP packet before ESP, 64 to 9000.
    pub packet_size: u16,
    /// Number of SAs and of flows, 1 to 10,000.
    pub sas: u16,
    /// Packets in total.
    pub packets: u64,
    /// Settings of both NICs, except for the MTU, which follows from the packet size. Each host has one shard per
    /// queue, and flows are spread over the shards.
    pub nic: NicConfig,
    /// The seed of all random numbers.
    pub seed: Seed,
    /// The observers of the run.
    pub observers: Observers,
}

/// The result of one run: the fields of `ktls_loopback`, and results per packet.
///
/// See [`Ipsec`] for an example.
#[derive(Clone, Debug, Serialize)]
pub struct IpsecRun {
    /// The common fields.
    #[serde(flatten)]
    pub run: Run,
    /// Bytes of an IP packet before ESP.
    pub packet_bytes: u16,
    /// SAs.
    pub sas: u16,
    /// Number of received packets.
    pub datagrams: u64,
    /// The sender's CPU time per packet, in nanoseconds.
    pub tx_ns_per_packet: f64,
    /// The receiver's CPU time per packet, in nanoseconds.
    pub rx_ns_per_packet: f64,
    /// Packets that one CPU of this machine could send per second.
    pub tx_packets_per_cpu_second: f64,
    /// Packets that one CPU of this machine could receive per second.
    pub rx_packets_per_cpu_second: f64,
}

impl Ipsec {
    /// Returns 10,000 packets of 1400 bytes over one SA, and NICs of one queue.
    pub fn new(mode: IpsecMode, seed: Seed) -> Ipsec {
        let (nic, observers) = (NicConfig::default(), Observers::default());
        Ipsec { mode, packet_size: 1400, sas: 1, packets: 10_000, nic, seed, observers }
    }

    /// Runs the flows and returns the result. Lost or duplicated datagrams are reported in the result and are not an
    /// error.
    ///
    /// # Errors If the options are invalid, or the testbed cannot be set up.
    pub fn run(self) -> io::Result<IpsecRun> {
        if !(64..=9000).contains(&self.packet_size) || !(1..=10_000).contains(&self.sas) || self.nic.queues == 0 {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "packets have 64 to 9000 bytes, SAs are 1 to 10,000, and there is a queue at least",
            ));
        }
        let meter = CpuMeter::new();
        // ESP lengthens packets, and no packet may be fragmented.
        let mtu = (self.packet_size + ROOM_FOR_ESP).max(1500);
        let nic = NicConfig { mtu, ..self.nic.clone() };
        let keys = self.keys()?;
        let mirrored = keys.mirrored();
        let mut builder = Testbed::builder(self.seed).meter(&meter).host("sender", nic.clone(), tcp());
        // The receiver gets the same keys with the directions exchanged.
        builder = self.secured(builder, keys, SENDER).host("receiver", nic, tcp());
        builder = self.secured(builder, mirrored, RECEIVER).wire(0, 1, LinkConfig::default());
        let mut bed = self.observers.attach(builder).build()?;
        let plan = Arc::new(self);
        let (sender, receiver) = (bed.host(0).clone(), bed.host(1).clone());
        let attached = meter.attach();
        let sockets = receiver.shards().iter().map(|shard| shard.bind_udp(Some(PORT))).collect::<io::Result<_>>()?;
        let receiving = receiver.spawn("application", receive(plan.clone(), sockets, receiver.clone()));
        let sending = sender.spawn("application", send(plan.clone(), sender.clone(), meter.clone()));
        let both = plan.observers.run(&mut bed, plan.mode, try_join(sending, receiving));
        drop(attached);
        let (started, received) = both?;
        plan.observers.finish()?;
        // The testbed ends here, because threads report their CPU time at their end.
        let measured = Measured::take(bed, &meter, []);
        let bytes = received.datagrams * u64::from(plan.payload());
        let whole = received.datagrams == plan.packets && received.once;
        let run = measured.run(plan.mode, bytes, whole, received.ended - started);
        let per_packet = |host| per_request(&measured.report, host, received.datagrams) * 1e3;
        let (tx, rx) = (per_packet(Domain::Host(0)), per_packet(Domain::Host(1)));
        Ok(IpsecRun {
            run,
            packet_bytes: plan.packet_size,
            sas: plan.sas,
            datagrams: received.datagrams,
            tx_ns_per_packet: tx,
            rx_ns_per_packet: rx,
            tx_packets_per_cpu_second: 1e9 / tx.max(f64::MIN_POSITIVE),
            rx_packets_per_cpu_second: 1e9 / rx.max(f64::MIN_POSITIVE),
        })
    }

    fn secured(
        &self,
        builder: offload_testbed::bed::Builder,
        keys: KeyFile,
        address: Ipv4Addr,
    ) -> offload_testbed::bed::Builder {
        match self.mode.offload() {
            Some(kind) => {
                let keys = keys.offloaded(kind);
                builder.layer(move |queues| keys::tried(&keys, queues, &[IpAddr::V4(address)], KeyMemory::new()))
            }
            None => builder,
        }
    }

    /// Returns an SA and a policy for each flow, for the sender.
    fn keys(&self) -> io::Result<KeyFile> {
        let (mut text, mut secrets) = (String::new(), self.seed.stream("keys"));
        for flow in 0..self.sas {
            let key = secret(&mut secrets);
            let (spi, request, port) = (0x1000 + u32::from(flow), 1 + flow, FIRST_PORT + flow);
            let _ = write!(
                text,
                "state add src {SENDER} dst {RECEIVER} proto esp spi {spi:#x} reqid {request} mode transport\n \
                 replay-window 256 flag esn aead rfc4106(gcm(aes)) 0x{key} 128\n\
                 policy add src {SENDER} dst {RECEIVER} proto udp sport {port} dir out \
                 tmpl proto esp reqid {request} mode transport\n"
            );
        }
        text.parse().map_err(|error| io::Error::other(format!("the run's own keys: {error}")))
    }

    /// Returns the bytes of a datagram without headers.
    fn payload(&self) -> u16 {
        self.packet_size - IP_AND_UDP
    }
}

/// Sends every datagram with its number and returns the start time.
async fn send(plan: Arc<Ipsec>, host: BedHost, meter: CpuMeter) -> io::Result<Instant> {
    let shards = host.shards().iter().cycle();
    let sockets: Vec<UdpSocket> = (0..plan.sas)
        .zip(shards)
        .map(|(flow, shard)| shard.bind_udp(Some(FIRST_PORT + flow)))
        .collect::<io::Result<_>>()?;
    let (runtime, payload) = (host.runtime(), usize::from(plan.payload()));
    // The first packet waits for address resolution, so it is sent before the measurement.
    sockets[0].send_to(Bytes::from_static(HELLO), (RECEIVER, PORT).into()).await?;
    runtime.sleep(Duration::from_millis(1)).await;
    meter.restart();
    let started = host.now();
    // The pause after a burst brings the rate down to half of the wire's.
    let burst_bits = BURST * u64::from(plan.packet_size + ROOM_FOR_ESP) * 8;
    let between = Duration::from_nanos(burst_bits * 1_000_000_000 / HALF_A_LINE).max(SHORTEST_PAUSE);
    for number in 0..plan.packets {
        let datagram = {
            let _application = cost::work(WorkKind::Application);
            let mut datagram = BytesMut::zeroed(payload);
            datagram[..8].copy_from_slice(&number.to_be_bytes());
            datagram.freeze()
        };
        let socket = &sockets[(number % u64::from(plan.sas)) as usize];
        socket.send_to(datagram, (RECEIVER, PORT).into()).await?;
        if (number + 1).is_multiple_of(BURST) {
            runtime.sleep(between).await;
        }
    }
    Ok(started)
}

/// Measurements at the receiver.
struct ReceivedDatagrams {
    ended: Instant,
    datagrams: u64,
    /// Whether no datagram was duplicated or changed.
    once: bool,
}

async fn receive(plan: Arc<Ipsec>, sockets: Vec<UdpSocket>, host: BedHost) -> io::Result<ReceivedDatagrams> {
    let mut seen = vec![false; plan.packets as usize];
    let mut received = ReceivedDatagrams { ended: host.now(), datagrams: 0, once: true };
    let runtime: Arc<dyn offload_testbed::Runtime> = host.runtime();
    // A lost datagram would never arrive, so a long silence ends the run too.
    while received.datagrams < plan.packets {
        let next = Box::pin(poll_fn(|cx| {
            let mut each = sockets.iter().map(|socket| socket.poll_recv_from(cx));
            each.find(Poll::is_ready).unwrap_or(Poll::Pending)
        }));
        let silence = Box::pin(runtime.sleep(LONG_SILENCE));
        let datagram = match futures_util::future::select(next, silence).await {
            futures_util::future::Either::Left((datagram, _)) => datagram?.0,
            futures_util::future::Either::Right(_) => break,
        };
        let _application = cost::work(WorkKind::Application);
        if datagram == HELLO {
            continue;
        }
        let number = datagram.first_chunk().map_or(u64::MAX, |number| u64::from_be_bytes(*number));
        // A number outside the range or seen before means a changed or duplicated datagram.
        let fresh = seen.get_mut(number as usize).is_some_and(|seen| !core::mem::replace(seen, true));
        received.once &= fresh && datagram.len() == usize::from(plan.payload());
        received.datagrams += 1;
        plan.observers.arrived(datagram.len() as u64);
        received.ended = host.now();
    }
    Ok(received)
}

const SENDER: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
const RECEIVER: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
const PORT: u16 = 9;
const FIRST_PORT: u16 = 20_000;
const HELLO: &[u8] = b"hello";
const IP_AND_UDP: u16 = 20 + 8;
/// Room for ESP header, IV, padding, trailer and ICV in transport mode.
const ROOM_FOR_ESP: u16 = 64;
/// Datagrams of a burst.
const BURST: u64 = 32;
/// Shortest pause between bursts. The receiver's interrupts are moderated, and the packets of one interrupt must fit
/// the socket's buffer.
const SHORTEST_PAUSE: Duration = Duration::from_micros(5);
/// Half of the wire's rate, in bits per second.
const HALF_A_LINE: u64 = 50_000_000_000;
/// Silence after which no more datagrams are expected.
const LONG_SILENCE: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_of_every_size_and_sa_arrive_once() {
        for mode in IpsecMode::ALL {
            // The smallest, a usual and the largest packet, with one queue and with several.
            for (packet_size, sas, queues) in [(64, 1, 1), (1400, 7, 1), (9000, 40, 1), (64, 1, 4), (1400, 40, 4)] {
                let nic = NicConfig { queues, ..NicConfig::default() };
                let made = Ipsec { packet_size, sas, nic, packets: 300, ..Ipsec::new(mode, Seed(2)) }.run().unwrap();
                assert!(made.run.sha256_ok, "{made:?}");
                assert_eq!((made.datagrams, made.run.bytes), (300, 300 * u64::from(packet_size - IP_AND_UDP)));
            }
        }
    }

    /// A device cannot follow a stream that it sees only under ESP: the hosts do TLS then, while the NICs still do ESP.
    #[test]
    fn tls_under_esp_is_done_in_software() {
        use offload_bench_tls::bulk::{Bulk, Mode};
        use offload_bench_tls::payload::Payload;
        for kind in [OffloadKind::None, OffloadKind::Crypto, OffloadKind::Packet] {
            let layer = Some(layer(usual_keys(Seed(1)).offloaded(kind)));
            let run = Bulk { layer, ..Bulk::new(Mode::TlsNic, Payload::seeded(Seed(1), 1_000_000)) }.run().unwrap();
            assert!(run.sha256_ok, "{kind:?}");
            let counted = |name: &str| run.counters.get(name).copied().unwrap_or_default();
            for (name, used) in [("TlsTxSw", true), ("TlsRxSw", true), ("TlsTxDevice", false), ("TlsRxDevice", false)] {
                assert_eq!(counted(name) > 0, used, "{name}, {kind:?}");
            }
            assert_eq!(counted("tx_tls_encrypted_packets") + counted("rx_tls_decrypted_packets"), 0, "{kind:?}");
            // A megabyte takes about 700 packets.
            assert_eq!(counted("ipsec_tx_pkts") > 700, kind != OffloadKind::None, "{kind:?}");
        }
    }

    /// Flows that no policy protects belong to the NIC's TLS engine, which resynchronizes as if there were no IPsec.
    #[test]
    fn tls_that_passes_ipsec_finds_its_place_again() {
        use nic_sim::TlsEngineConfig;
        use nic_sim::wire::{Impairments, LinkConfig, Share};
        use offload_api::ResyncMode;
        use offload_bench_tls::bulk::{Bulk, Mode};
        use offload_bench_tls::payload::Payload;
        let lossy = Impairments { loss: Share::new(0.01).unwrap(), ..Impairments::default() };
        for resync in [ResyncMode::DriverRequest, ResyncMode::CoreHint, ResyncMode::Asynchronous] {
            let decrypted = |keys: Option<&str>| {
                let layer = keys.map(|keys| layer(keys.parse().unwrap()));
                let nic = NicConfig {
                    engines: TlsEngineConfig { resync, ..TlsEngineConfig::default() }.into(),
                    ..NicConfig::default()
                };
                let link = LinkConfig { impairments: lossy, ..LinkConfig::default() };
                let run = Bulk { layer, nic, link, ..Bulk::new(Mode::TlsNic, Payload::seeded(Seed(1), 4_000_000)) };
                let run = run.run().unwrap();
                assert!(run.sha256_ok);
                run.counters["rx_tls_decrypted_packets"]
            };
            // The seed is the same, so the same packets are lost in both runs.
            let (below, without) = (decrypted(Some("policy setdefault in accept out accept")), decrypted(None));
            assert_eq!(below, without, "packets that the NIC decrypted, {resync:?}");
        }
    }

    #[test]
    fn invalid_options_are_refused() {
        for (packet_size, sas) in [(63, 1), (9001, 1), (1400, 0), (1400, 10_001)] {
            let run = Ipsec { packet_size, sas, ..Ipsec::new(IpsecMode::Plain, Seed(1)) }.run();
            assert_eq!(run.unwrap_err().kind(), io::ErrorKind::InvalidInput);
        }
        let nic = NicConfig { queues: 0, ..NicConfig::default() };
        let nowhere = Ipsec { nic, ..Ipsec::new(IpsecMode::Plain, Seed(1)) }.run();
        assert_eq!(nowhere.unwrap_err().kind(), io::ErrorKind::InvalidInput);
    }
}
