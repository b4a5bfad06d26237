//! Two hosts with a node each.

use bytes::Bytes;
use core::net::SocketAddr;
use core::time::Duration;
use nic_pdcp::{PdcpBatches, PdcpPackets};
use nic_sim::NicConfig;
use nic_sim::engine::Engines;
use nic_sim::lookaside::LookasideConfig;
use nic_sim::wire::LinkConfig;
use nic_sim::wire::impairment::{Impairments, Reorder, Share};
use offload_api::DatagramSocket;
use offload_base::Seed;
use offload_host_stack::{Host, TcpConfig};
use offload_testbed::Testbed;
use offload_testbed::bed::BedHost;
use pdcp::crypto::{Algorithm, Direction, Key};
use pdcp::gtpu::{Bearer, GtpTunnel, GtpuCounters, Node, PduProtection};
use pdcp::{BearerKind, Config, Security, SnLen};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use crate::faulty::Faulty;

pub(crate) const PORT: u16 = 2152;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PduPath {
    Cpu,
    Nic,
    Jobs,
}

pub(crate) const WAYS: [PduPath; 3] = [PduPath::Cpu, PduPath::Nic, PduPath::Jobs];

pub(crate) struct PdcpTestbed {
    pub(crate) bed: Testbed,
    pub(crate) ends: [(BedHost, Node); 2],
    /// Whether an end's sockets hold back received datagrams.
    pub(crate) keeps: [Arc<AtomicBool>; 2],
}

impl PdcpTestbed {
    /// Creates two hosts with room for `contexts` contexts in each NIC.
    pub(crate) fn new(seed: u64, hows: [PduPath; 2], contexts: u32, wire: LinkConfig) -> PdcpTestbed {
        PdcpTestbed::with_accelerator(seed, hows, contexts, wire, LookasideConfig::default())
    }

    /// Creates two hosts with multi-queue NICs, each with room for `contexts` contexts.
    pub(crate) fn for_queues(
        seed: u64,
        hows: [PduPath; 2],
        queues: u16,
        contexts: u32,
        wire: LinkConfig,
    ) -> PdcpTestbed {
        PdcpTestbed::with(seed, hows, queues, contexts, wire, LookasideConfig::default())
    }

    pub(crate) fn with_accelerator(
        seed: u64,
        hows: [PduPath; 2],
        contexts: u32,
        wire: LinkConfig,
        accelerator: LookasideConfig,
    ) -> PdcpTestbed {
        PdcpTestbed::with(seed, hows, 1, contexts, wire, accelerator)
    }

    fn with(
        seed: u64,
        hows: [PduPath; 2],
        queues: u16,
        contexts: u32,
        wire: LinkConfig,
        accelerator: LookasideConfig,
    ) -> PdcpTestbed {
        let nic = NicConfig { lro_datagrams: true, context_cache_bytes: 3 * 208, queues, ..NicConfig::default() };
        let mut builder = Testbed::builder(Seed(seed));
        for name in ["near", "far"] {
            let add = move |engines: &mut Engines| engines.add_packet(PdcpPackets, contexts);
            builder = builder.host(name, nic.clone(), TcpConfig::default()).engines(add);
            builder = builder.accelerator_with(accelerator.clone(), |engines| engines.add_job(PdcpBatches, 64));
        }
        let bed = builder.wire(0, 1, wire).build().unwrap();
        let keeps: [Arc<AtomicBool>; 2] = Default::default();
        let ends = [0, 1].map(|number| {
            let host = bed.host(number).clone();
            let protection = || match hows[number] {
                PduPath::Cpu => PduProtection::Cpu,
                PduPath::Nic => PduProtection::Device,
                PduPath::Jobs => PduProtection::Jobs(Box::new(host.accelerator().unwrap().client())),
            };
            let socket = |shard: &Host| {
                let socket = Faulty::new(shard.bind_udp(Some(PORT)).unwrap());
                Faulty { keeps: keeps[number].clone(), ..socket }
            };
            let queues = host.shards().iter().map(|shard| (socket(shard), protection()));
            let (node, drivers) = Node::for_queues(queues, host.runtime());
            drivers.into_iter().for_each(|driver| drop(host.spawn("pdcp", driver)));
            (host, node)
        });
        PdcpTestbed { bed, ends, keeps }
    }

    /// Opens a bearer at both ends.
    pub(crate) fn open(&self, number: u32, config: &Config, epoch: u8) -> [Bearer; 2] {
        let address = |end: usize| SocketAddr::from((self.ends[end].0.address(), PORT));
        [0, 1].map(|end| {
            let (local, remote) = (1 + number * 2 + end as u32, 2 + number * 2 - end as u32);
            let [sent, received] = keys(number, epoch, end);
            let tunnel = GtpTunnel { local, remote, peer: address(1 - end) };
            self.ends[end].1.open(tunnel, config.clone(), sent, received).unwrap()
        })
    }

    /// Opens a bearer of another node at the near host, and its peer.
    pub(crate) fn pair(
        &self,
        socket: impl DatagramSocket + 'static,
        protection: PduProtection,
        config: Config,
    ) -> (Bearer, Bearer) {
        let (_, near, far) = self.pair_of(socket, protection, config);
        (near, far)
    }

    /// Opens the same pair, and returns that node too.
    pub(crate) fn pair_of(
        &self,
        socket: impl DatagramSocket + 'static,
        protection: PduProtection,
        config: Config,
    ) -> (Node, Bearer, Bearer) {
        let host = &self.ends[0].0;
        let (node, driver) = Node::new(socket, host.runtime(), protection);
        drop(host.spawn("another", driver));
        let address = |end: usize, port| SocketAddr::from((self.ends[end].0.address(), port));
        let tunnel = GtpTunnel { local: 1, remote: 2, peer: address(1, PORT) };
        let [sent, received] = keys(0, 0, 0);
        let near = node.open(tunnel, config.clone(), sent, received).unwrap();
        let tunnel = GtpTunnel { local: 2, remote: 1, peer: address(0, PORT + 1) };
        let [sent, received] = keys(0, 0, 1);
        (node, near, self.ends[1].1.open(tunnel, config, sent, received).unwrap())
    }

    pub(crate) fn counters(&self, end: usize) -> GtpuCounters {
        self.ends[end].1.counters()
    }
}

/// Returns the keys of an end's sending and receiving direction.
pub(crate) fn keys(bearer: u32, epoch: u8, end: usize) -> [Security; 2] {
    let algorithm = [Algorithm::Snow3g, Algorithm::Aes128, Algorithm::Zuc256][bearer as usize % 3];
    let of = |direction: Direction| {
        let key = |which: u8| {
            let bytes: Vec<u8> = (0..algorithm.key_len()).map(|at| at as u8 ^ which ^ epoch << 3).collect();
            Key::new(algorithm, &bytes).unwrap()
        };
        let salt = if direction == Direction::Uplink { 0x40 } else { 0x80 };
        Security::new(1 + bearer as u8, direction).unwrap().ciphered(key(salt)).authenticated(key(salt | 1))
    };
    let both = [of(Direction::Downlink), of(Direction::Uplink)];
    if end == 0 {
        both
    } else {
        let [down, up] = both;
        [up, down]
    }
}

pub(crate) fn config() -> Config {
    let mut config = Config::data(BearerKind::Unacknowledged, SnLen::Eighteen);
    config.reordering = Some(Duration::from_millis(2));
    config
}

pub(crate) fn config_with(buffer: usize) -> Config {
    let mut config = config();
    config.buffer = buffer;
    config
}

/// Returns an SDU of varying length that contains its number and the epoch of the keys.
pub(crate) fn sdu(epoch: u8, number: u32) -> Bytes {
    let mut sdu = vec![epoch; 5 + (number as usize * 37 / 8) % 1200];
    sdu[1..5].copy_from_slice(&number.to_be_bytes());
    sdu.into()
}

/// Sends `count` SDUs per epoch, receives until the end marker, and returns the received SDUs.
pub(crate) async fn carry(hosts: [BedHost; 2], bearers: [Bearer; 2], epochs: u8, count: u32) -> Vec<(u8, u32)> {
    carry_on(SduFlow { bearer: 0, epochs, count, burst: 25 }, hosts, bearers).await
}

/// The traffic of one bearer.
pub(crate) struct SduFlow {
    pub(crate) bearer: u32,
    pub(crate) epochs: u8,
    /// SDUs per epoch of keys.
    pub(crate) count: u32,
    /// SDUs sent at a time. All bursts together must fit into the receiver's socket.
    pub(crate) burst: u32,
}

/// Carries the traffic of one of several bearers.
pub(crate) async fn carry_on(flow: SduFlow, hosts: [BedHost; 2], [near, far]: [Bearer; 2]) -> Vec<(u8, u32)> {
    let SduFlow { bearer, epochs, count, burst } = flow;
    let runtime = hosts[0].runtime();
    let sending = hosts[0].spawn("sends", async move {
        for epoch in 0..epochs {
            if epoch > 0 {
                let [sent, received] = keys(bearer, epoch, 0);
                near.reestablish(sent, received).unwrap();
            }
            for number in 0..count {
                near.send(sdu(epoch, number)).await.unwrap();
                if number % burst == burst - 1 {
                    runtime.sleep(Duration::from_micros(100)).await;
                }
            }
            // Long enough for all PDUs to arrive and for t-Reordering.
            runtime.sleep(Duration::from_millis(20)).await;
        }
        loop {
            near.end();
            runtime.sleep(Duration::from_millis(5)).await;
        }
    });
    let runtime = hosts[1].runtime();
    let far = std::sync::Arc::new(far);
    let rekeyed = far.clone();
    let rekeying = hosts[1].spawn("rekeys", async move {
        for epoch in 1..epochs {
            runtime.sleep(Duration::from_millis(20)).await;
            let [sent, received] = keys(bearer, epoch, 1);
            rekeyed.reestablish(sent, received).unwrap();
        }
    });
    let mut came = Vec::new();
    while let Some(got) = far.receive().await {
        let (epoch, number) = (got.data[0], u32::from_be_bytes(got.data[1..5].try_into().unwrap()));
        assert_eq!(got.data, sdu(epoch, number), "as it was sent");
        assert_eq!(got.count, number, "under its own COUNT");
        came.push((epoch, number));
    }
    drop((sending, rekeying));
    came
}

pub(crate) fn bad_wire(loss: &str) -> LinkConfig {
    let share = |text: &str| text.parse::<Share>().unwrap();
    let impairments = Impairments {
        loss: share(loss),
        reorder: Some(Reorder { share: share(loss), hold: Duration::from_micros(40) }),
        duplicate: share(loss),
        corrupt: share(loss),
        ..Impairments::default()
    };
    LinkConfig { impairments, rate: Some(5_000_000_000), ..LinkConfig::default() }
}
