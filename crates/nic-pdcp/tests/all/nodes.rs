//! Nodes on two hosts: keys that change, NICs that are reset or full, strangers, and a wire that loses and reorders.

use bytes::Bytes;
use core::net::SocketAddr;
use core::time::Duration;
use nic_pdcp::{PdcpBatches, PdcpPackets};
use nic_sim::NicConfig;
use nic_sim::engine::Engines;
use nic_sim::lookaside::LookasideConfig;
use nic_sim::wire::LinkConfig;
use nic_sim::wire::impairment::{Impairments, Reorder, Share};
use offload_base::Seed;
use offload_formats::{Gtpu, GtpuMessage};
use offload_host_stack::TcpConfig;
use offload_testbed::Testbed;
use offload_testbed::bed::BedHost;
use pdcp::crypto::{Algorithm, Direction, Key};
use pdcp::gtpu::{Bearer, GtpuCounters, Node, OpenError, Protection, Tunnel};
use pdcp::{BearerKind, Config, Security, SnLen};
use proptest::prelude::*;

const PORT: u16 = 2152;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum How {
    Cpu,
    Nic,
    Jobs,
}

const WAYS: [How; 3] = [How::Cpu, How::Nic, How::Jobs];

struct World {
    bed: Testbed,
    ends: [(BedHost, Node); 2],
}

impl World {
    /// Two hosts, each with room for so many contexts in its NIC.
    fn new(seed: u64, hows: [How; 2], contexts: u32, wire: LinkConfig) -> World {
        let nic = NicConfig { lro_datagrams: true, context_cache_bytes: 3 * 208, ..NicConfig::default() };
        let mut builder = Testbed::builder(Seed(seed));
        for name in ["near", "far"] {
            let packets = PdcpPackets::default();
            let add = move |engines: &mut Engines| engines.add_packet(packets.clone(), contexts);
            builder = builder.host(name, nic.clone(), TcpConfig::default()).engines(add);
            builder = builder.accelerator_with(LookasideConfig::default(), |engines| engines.add_job(PdcpBatches, 64));
        }
        let bed = builder.wire(0, 1, wire).build().unwrap();
        let ends = [0, 1].map(|number| {
            let host = bed.host(number).clone();
            let protection = match hows[number] {
                How::Cpu => Protection::Cpu,
                How::Nic => Protection::Device,
                How::Jobs => Protection::Jobs(Box::new(host.accelerator().unwrap().client())),
            };
            let socket = host.stack().bind_udp(Some(PORT)).unwrap();
            let (node, driver) = Node::new(socket, host.runtime(), protection);
            drop(host.spawn("pdcp", driver));
            (host, node)
        });
        World { bed, ends }
    }

    /// A bearer at both ends.
    fn open(&self, number: u32, config: &Config, epoch: u8) -> [Bearer; 2] {
        let address = |end: usize| SocketAddr::from((self.ends[end].0.address(), PORT));
        [0, 1].map(|end| {
            let (local, remote) = (1 + number * 2 + end as u32, 2 + number * 2 - end as u32);
            let [sent, received] = keys(number, epoch, end);
            let tunnel = Tunnel { local, remote, peer: address(1 - end) };
            self.ends[end].1.open(tunnel, config.clone(), sent, received).unwrap()
        })
    }

    fn counters(&self, end: usize) -> GtpuCounters {
        self.ends[end].1.counters()
    }
}

/// Of what an end sends, and of what it receives.
fn keys(bearer: u32, epoch: u8, end: usize) -> [Security; 2] {
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

fn config() -> Config {
    let mut config = Config::data(BearerKind::Unacknowledged, SnLen::Eighteen);
    config.reordering = Some(Duration::from_millis(2));
    config
}

/// SDUs of several lengths that say their number, and the keys in use.
fn sdu(epoch: u8, number: u32) -> Bytes {
    let mut sdu = vec![epoch; 5 + (number as usize * 37 / 8) % 1200];
    sdu[1..5].copy_from_slice(&number.to_be_bytes());
    sdu.into()
}

/// Sends so many SDUs, and takes them until the end marker comes; says which came.
async fn carry(hosts: [BedHost; 2], [near, far]: [Bearer; 2], epochs: u8, count: u32) -> Vec<(u8, u32)> {
    let runtime = hosts[0].runtime();
    let sending = hosts[0].spawn("sends", async move {
        for epoch in 0..epochs {
            if epoch > 0 {
                let [sent, received] = keys(0, epoch, 0);
                near.reestablish(sent, received);
            }
            for number in 0..count {
                near.send(sdu(epoch, number)).await.unwrap();
                if number % 25 == 24 {
                    // A burst as long as the receiver's socket has room for.
                    runtime.sleep(Duration::from_micros(100)).await;
                }
            }
            // Long enough for all of it, and for t-Reordering.
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
            let [sent, received] = keys(0, epoch, 1);
            rekeyed.reestablish(sent, received);
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

fn bad_wire(loss: &str) -> LinkConfig {
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

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// In all ways, over a bad wire, with NICs that are reset: each SDU comes once at most, in order, as it was sent.
    #[test]
    fn schedules(
        seed: u64, near in prop::sample::select(&WAYS[..]), far in prop::sample::select(&WAYS[..]), contexts in 0u32..4,
        loss in prop::sample::select(&["0", "0.01", "0.1"][..]), resets in prop::collection::vec((0u64..3000, 0usize..2), 0..4),
        count in 1u32..2000,
    ) {
        let mut world = World::new(seed, [near, far], contexts, bad_wire(loss));
        let bearers = world.open(0, &config(), 0);
        for (after, end) in resets {
            let host = world.ends[end].0.clone();
            drop(world.ends[0].0.spawn("reset", async move {
                host.runtime().sleep(Duration::from_micros(after)).await;
                host.reset_device();
            }));
        }
        let hosts = [world.ends[0].0.clone(), world.ends[1].0.clone()];
        let came = world.bed.run_within(Duration::from_secs(60), carry(hosts, bearers, 1, count));
        prop_assert!(came.windows(2).all(|two| two[0] < two[1]), "in order, each once");
        prop_assert!(came.len() as u32 >= count / 2 || count < 20, "{} of {count}", came.len());
    }
}

/// New keys begin at COUNT 0 again: what the old ones protected is not taken for theirs, in any way.
#[test]
fn new_keys_do_not_meddle_with_old_ones() {
    for near in WAYS {
        for far in WAYS {
            let mut world = World::new(3, [near, far], 8, LinkConfig::default());
            let bearers = world.open(0, &config(), 0);
            let hosts = [world.ends[0].0.clone(), world.ends[1].0.clone()];
            let came = world.bed.run_within(Duration::from_secs(60), carry(hosts, bearers, 3, 300));
            let all: Vec<_> = (0..3).flat_map(|epoch| (0..300).map(move |number| (epoch, number))).collect();
            assert_eq!(came, all, "{near:?} to {far:?}");
            let by_nic = world.counters(0).protected_by_device;
            assert_eq!(by_nic >= 800, near == How::Nic, "{near:?}: {by_nic}");
            let opened = world.counters(1).opened_by_device;
            assert_eq!(opened >= 800, far != How::Cpu, "{far:?}: {opened}");
        }
    }
}

/// A NIC without the engine, or without room, leaves the work to the CPU.
#[test]
fn without_room_in_the_nic_the_cpu_does_it() {
    for contexts in [0, 1] {
        let mut world = World::new(4, [How::Nic, How::Nic], contexts, LinkConfig::default());
        let bearers: Vec<_> = (0..3).map(|number| world.open(number, &config(), 0)).collect();
        let hosts = [world.ends[0].0.clone(), world.ends[1].0.clone()];
        for bearers in bearers {
            let came = world.bed.run_within(Duration::from_secs(60), carry(hosts.clone(), bearers, 1, 100));
            assert_eq!(came.len(), 100);
        }
        let (sent, received) = (world.counters(0), world.counters(1));
        assert_eq!(sent.protected_by_device + sent.protected_by_software, 300);
        assert_eq!(sent.protected_by_device > 0, contexts > 0);
        assert_eq!((received.integrity, received.redone), (0, 0));
    }
}

/// An echo is answered; what is nobody's, or no GTP-U, is counted and makes nothing.
#[test]
fn strangers_are_answered_or_counted() {
    let mut world = World::new(5, [How::Nic, How::Cpu], 8, LinkConfig::default());
    let _bearers = world.open(0, &config(), 0);
    let (host, _) = &world.ends[1];
    let stranger = host.stack().bind_udp(Some(4000)).unwrap();
    let to: SocketAddr = (world.ends[0].0.address(), PORT).into();
    let answer = world.bed.run(async move {
        let mut data = vec![0; 11];
        Gtpu::new(GtpuMessage::Data, 99, 3).write(&mut data);
        for datagram in
            [&data[..], b"", b"\x30", b"\x30\x63\x00\x00\x00\x00\x00\x01", b"\x32\x01\x00\x04\0\0\0\0\x12\x34\0\0"]
        {
            stranger.send_to(Bytes::copy_from_slice(datagram), to).await.unwrap();
        }
        stranger.recv_from().await.unwrap().0
    });
    assert_eq!(answer[..], *b"\x32\x02\x00\x06\0\0\0\0\x12\x34\0\0\x0e\0");
    let counters = world.counters(0);
    assert_eq!((counters.no_tunnel, counters.malformed, counters.echoes), (1, 3, 1));
}

#[test]
fn a_tunnel_is_one_bearers_and_closed_with_it() {
    let mut world = World::new(6, [How::Nic, How::Nic], 8, LinkConfig::default());
    let [near, far] = world.open(0, &config(), 0);
    let node = world.ends[0].1.clone();
    let tunnel = Tunnel { local: 1, remote: 9, peer: (world.ends[1].0.address(), PORT).into() };
    let open = || {
        let [sent, received] = keys(0, 0, 0);
        node.open(tunnel, config(), sent, received)
    };
    assert!(matches!(open(), Err(OpenError::InUse(1))));
    let (host, settled) = (world.ends[0].0.clone(), Duration::from_millis(5));
    world.bed.run(async { host.runtime().sleep(settled).await });
    assert_eq!(world.ends[0].0.device_contexts(), 2);
    drop((near, far));
    let host = world.ends[0].0.clone();
    world.bed.run(async { host.runtime().sleep(settled).await });
    assert_eq!([0, 1].map(|end| world.ends[end].0.device_contexts()), [0, 0], "given back");
    assert!(open().is_ok());
}

/// A tunnel's number may be given to another bearer at once, with keys of its own: COUNT 0 is not used again with the old ones.
#[test]
fn a_tunnel_that_is_opened_again_has_its_own_keys() {
    for near in WAYS {
        for far in WAYS {
            let mut world = World::new(7, [near, far], 8, LinkConfig::default());
            let hosts = [world.ends[0].0.clone(), world.ends[1].0.clone()];
            for epoch in 0..3 {
                let [near, far] = world.open(0, &config(), epoch);
                let (host, got) = (hosts[0].clone(), std::sync::Arc::new(far));
                let receives = got.clone();
                let came = world.bed.run_within(Duration::from_secs(60), async move {
                    for number in 0..20 {
                        near.send(sdu(epoch, number)).await.unwrap();
                    }
                    host.runtime().sleep(Duration::from_millis(5)).await;
                    let mut came = Vec::new();
                    while came.len() < 20 {
                        came.push(receives.receive().await.unwrap().data);
                    }
                    came
                });
                assert!(came.iter().zip(0..).all(|(got, number)| *got == sdu(epoch, number)));
                drop(got);
            }
            let counters = world.counters(1);
            assert_eq!((counters.integrity, counters.stale, counters.given_up), (0, 0, 0), "{near:?} to {far:?}");
        }
    }
}
