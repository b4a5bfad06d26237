//! Loss, reordering, corruption and device resets, with key updates meanwhile.

use crate::rig::{self, QuicTestbed, TransferPlan, nic};
use bytes::Bytes;
use core::future::{Future, poll_fn};
use core::ops::Range;
use core::pin::Pin;
use core::time::Duration;
use nic_sim::NicConfig;
use offload_base::Instant;
use offload_base::counters::Counters;
use offload_testbed::BedHost;
use offload_wire::LinkConfig;
use offload_wire::impairment::{Crossing, Impairment, Impairments, Reorder, Share};
use quic_offload::{Closed, Config, Endpoint, Offload, ServerTls};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

const MEGABYTE: usize = 1 << 20;

fn impaired(impairments: Impairments) -> LinkConfig {
    LinkConfig { delay: Duration::from_micros(5), impairments, ..LinkConfig::default() }
}

fn share(percent: f64) -> Share {
    Share::new(percent / 100.0).unwrap()
}

/// The device needs no resynchronization: a lost or late packet does not affect others.
#[test]
fn device_opens_every_packet_after_losses() {
    for (name, impairments) in [
        ("loss", Impairments { loss: share(5.0), ..Impairments::default() }),
        (
            "reordering",
            Impairments {
                reorder: Some(Reorder { share: share(5.0), hold: Duration::from_micros(20) }),
                ..Impairments::default()
            },
        ),
    ] {
        let mut world = QuicTestbed::new(3, [nic(), nic()], impaired(impairments));
        let configs = [world.config("near"), world.config("far")];
        let done = world.transfer(configs, false, 4 * MEGABYTE, MEGABYTE);
        for end in [done.client, done.server] {
            assert!(end.opened_by_device > 500, "{name}: {end:?}");
            // Software opens packets until the device has the connection ID and the key.
            assert!(end.opened_by_software < 30, "{name}: {end:?}");
        }
        assert_eq!(missed(&world), [0, 0], "{name}");
    }
}

/// A stream in pieces of a few bytes, one per packet, with every second packet lost. The retransmission has very many
/// pieces in a packet, after later bytes were read.
#[test]
fn small_lost_pieces_arrive_in_large_windows() {
    for offload in [Offload::Both, Offload::None] {
        let link = LinkConfig { delay: Duration::from_millis(5), ..LinkConfig::default() };
        let mut world = QuicTestbed::new(23, [nic(), nic()], link);
        let at = Instant::from_nanos(500_000_000);
        // The server's acknowledgments are lost as well, so that the client retransmits everything at once.
        let mut every = [2, 1].into_iter();
        let span = at..at + Duration::from_millis(18);
        world.bed.cable(0).impair(|| Every { nth: every.next().unwrap(), ..Every::new(span.clone()) });
        let config = |name| world.config(name).with(|c| (c.stream_window, c.offload) = (16 << 20, offload));
        let (client, _driver) = world.client(config("near"));
        let (server, _server_driver) = world.server(config("far"));
        let (tls, to, host) = (world.client_tls(), world.to(false), world.near.clone());
        let far = world.far.spawn("server", async move {
            let connection = server.accept().await.unwrap();
            let mut read = [0; 2];
            for read in &mut read {
                let mut stream = connection.accept_uni().await.unwrap();
                *read = rig::read_all(&mut stream).await;
            }
            connection.close(7, "");
            read
        });
        let near = world.near.spawn("client", async move {
            let connection = rig::connect(&client, &tls, to).await.unwrap();
            // A first transfer opens the congestion window.
            let mut stream = connection.open_uni().await.unwrap();
            stream.send(rig::body(0, MEGABYTE)).await.unwrap();
            stream.finish().unwrap();
            stream.acknowledged().await.unwrap();
            host.runtime().sleep(at - host.now()).await;
            let mut stream = connection.open_uni().await.unwrap();
            // The pieces are two bytes long and leave in separate packets.
            for at in (0..800).step_by(2) {
                stream.send(rig::body(at, 2)).await.unwrap();
                host.runtime().sleep(Duration::from_micros(5)).await;
            }
            // The rest arrives and is acknowledged, and so are the acknowledgments.
            host.runtime().sleep(Duration::from_millis(15)).await;
            stream.send(rig::body(800, 20_000)).await.unwrap();
            stream.finish().unwrap();
            (connection.closed().await, client.counters())
        });
        let ((closed, counters), read) = world.bed.run(async move { (near.await, far.await) });
        assert_eq!(closed, Closed::ByPeer { code: 7, reason: Bytes::new() }, "{offload:?}");
        assert_eq!(read, [1 << 20, 20_800], "{offload:?}");
        assert_eq!(counters.sealed_by_device > 1000, offload == Offload::Both, "{counters:?}");
    }
}

offload_base::counters! {
    struct LossCounters {
        pub lost: "every_nth_lost",
    }
}

/// Loses every `nth` frame for a time.
#[derive(Debug)]
struct Every {
    span: Range<Instant>,
    nth: u64,
    frames: u64,
    counters: LossCounters,
}

impl Every {
    fn new(span: Range<Instant>) -> Every {
        Every { span, nth: 1, frames: 0, counters: LossCounters::default() }
    }
}

impl Impairment for Every {
    fn pass(&mut self, crossing: Crossing, onward: &mut dyn FnMut(Crossing)) {
        self.frames += u64::from(self.span.contains(&crossing.arrives));
        match self.span.contains(&crossing.arrives) && self.frames.is_multiple_of(self.nth) {
            true => self.counters.lost += 1,
            false => onward(crossing),
        }
    }

    fn counters(&self) -> &dyn Counters {
        &self.counters
    }
}

/// Returns the packets that the devices had a context for and could not open, because of a wrong tag or a missing key.
fn missed(world: &QuicTestbed) -> [u64; 2] {
    ["quic_rx_auth_fail", "quic_rx_no_key"].map(|name| world.counters().value(name))
}

/// Packets from before a key update arrive after the update: their key is still installed. At most 83 packets overtake
/// one, because a packet number of one byte is ambiguous after 128 (RFC 9000 A.3).
#[test]
fn device_opens_late_packets_of_the_previous_key() {
    let reorder = Some(Reorder { share: share(5.0), hold: Duration::from_millis(1) });
    for seed in 0..16 {
        let link = impaired(Impairments { reorder, ..Impairments::default() });
        let link = LinkConfig { rate: Some(1_000_000_000), ..link };
        let mut world = QuicTestbed::new(seed, [nic(), nic()], link);
        let configs = [world.config("near"), world.config("far")];
        let done = world.transfer(configs, false, 2 * MEGABYTE, MEGABYTE);
        assert!(done.updates > 0 && done.server.opened_by_device > 1000, "{seed}: {done:?}");
        assert_eq!(missed(&world), [0, 0], "seed {seed}");
    }
}

#[test]
fn only_corrupted_packets_are_lost() {
    let impairments = Impairments { corrupt: share(2.0), ..Impairments::default() };
    let mut world = QuicTestbed::new(4, [nic(), nic()], impaired(impairments));
    let configs = [world.config("near"), world.config("far")];
    let done = world.transfer(configs, false, 2 * MEGABYTE, MEGABYTE / 2);
    assert!(done.server.opened_by_device > 1000, "{done:?}");
}

/// Devices are reset repeatedly. The stream continues in software and returns to the device.
#[test]
fn reset_device_gets_all_contexts_again() {
    let mut world = QuicTestbed::new(5, [nic(), nic()], impaired(Impairments::default()));
    let (near, far) = (world.near.clone(), world.far.clone());
    let resets = world.near.spawn("resets", async move {
        for _ in 0..20 {
            near.runtime().sleep(Duration::from_micros(300)).await;
            // The devices are reset alternately, at intervals shorter than the transfer.
            near.reset_device();
            near.runtime().sleep(Duration::from_micros(170)).await;
            far.reset_device();
        }
    });
    let configs = [world.config("near"), world.config("far")];
    let done = world.transfer(configs, false, 16 * MEGABYTE, MEGABYTE);
    drop(resets);
    for end in [done.client, done.server] {
        assert!(end.resets > 2 && end.contexts > 4, "{end:?}");
        assert!(end.opened_by_device > end.opened_by_software, "{end:?}");
        assert!(end.sealed_by_device > end.sealed_by_software, "{end:?}");
    }
}

/// The device disappears at each of the first steps, at either end: the stream continues in software.
#[test]
fn stream_survives_the_loss_of_its_device() {
    for step in (0..140).step_by(7) {
        for disappears in [[Some(step), None], [None, Some(step)]] {
            let mut world = QuicTestbed::new(24, [nic(), nic()], impaired(Impairments::default()));
            let configs = [world.config("near"), world.config("far")];
            let plan =
                TransferPlan { bytes: [300_000, 300_000], every: Some(100_000), disappears, ..TransferPlan::default() };
            let done = world.transfer_by(configs, plan);
            let [gone, other] =
                if disappears[0].is_some() { [done.client, done.server] } else { [done.server, done.client] };
            assert!(gone.sealed_by_software + gone.opened_by_software > 100, "{step}: {gone:?}");
            assert!(other.sealed_by_device > other.sealed_by_software, "{step}: {other:?}");
        }
    }
}

/// The NIC's memory has room for one context, so alternating directions evict each other's context to host memory.
#[test]
fn contexts_may_lie_in_host_memory() {
    let nic = NicConfig { context_cache_bytes: 208, ..nic() };
    let mut world = QuicTestbed::new(6, [nic.clone(), nic], impaired(Impairments::default()));
    let configs = [world.config("near"), world.config("far")];
    let done = world.transfer(configs, false, MEGABYTE, MEGABYTE);
    assert!(done.server.opened_by_software < 20 && done.client.opened_by_software < 20, "{done:?}");
    assert!(world.counters().value("ctx_evicted") > 100);
}

/// Keys are updated as often as the state machine allows. The next key is installed in the device beforehand.
#[test]
fn keys_change_while_packets_are_lost() {
    for loss in [0.0, 1.0] {
        let impairments = Impairments { loss: share(loss), ..Impairments::default() };
        let mut world = QuicTestbed::new(7, [nic(), nic()], impaired(impairments));
        let configs: [Config; 2] = [world.config("near"), world.config("far")];
        let done = world.transfer_by(
            configs,
            TransferPlan { bytes: [3_000_000, 1000], every: Some(200_000), ..TransferPlan::default() },
        );
        assert!(done.updates >= 10, "{} updates", done.updates);
        for end in [done.client, done.server] {
            let software = end.opened_by_software;
            assert!(software < 30 + 4 * done.updates, "{software} in software, {} updates: {end:?}", done.updates);
            assert!(end.sealed_by_software < 20, "{end:?}");
        }
    }
}

/// Forty connections update their keys at once, with a control ring of eight entries: surplus commands wait, and
/// neither driver polls in a loop.
#[test]
fn keys_change_with_a_short_control_ring() {
    let nic = || NicConfig { control_ring: 8, ..nic() };
    let mut world = QuicTestbed::new(1, [nic(), nic()], LinkConfig::default());
    let tls = world.server_tls();
    let (client, polls_near) = counted(&world.near, 5000, world.config("client"), None);
    let (server, polls_far) = counted(&world.far, rig::PORT, world.config("server"), Some(tls));
    let (tls, to, accepting) = (world.client_tls(), world.to(false), server.clone());
    let _server_task = world.far.spawn("server", async move {
        let mut all = Vec::new();
        while let Some(connection) = accepting.accept().await {
            all.push(connection);
        }
    });
    let runtime = world.near.runtime();
    world.bed.run_within(Duration::from_secs(60), async move {
        let mut all = Vec::new();
        for _ in 0..40 {
            let connection = rig::connect(&client, &tls, to).await.unwrap();
            let stream = connection.open_uni().await.unwrap();
            all.push((connection, stream));
        }
        for round in 0..60 {
            // All connections update at the same moment, twice.
            if round == 20 || round == 40 {
                all.iter().for_each(|(connection, _)| connection.update_keys());
            }
            for (_, stream) in &mut all {
                stream.send(Bytes::from_static(&[7; 300])).await.unwrap();
            }
            runtime.sleep(Duration::from_millis(20)).await;
        }
    });
    let counters = server.counters();
    assert!(counters.keys >= 2 * 40 && counters.contexts == 2 * 40, "{counters:?}");
    assert!(counters.opened_by_device > 20 * counters.opened_by_software, "{counters:?}");
    let polls = [polls_near, polls_far].map(|polls| polls.load(Ordering::Relaxed));
    assert!(polls.iter().all(|polls| *polls < MAX_POLLS / 2), "{polls:?}");
}

/// More polls than a driver ever needs.
const MAX_POLLS: usize = 40_000;

/// Creates an endpoint and counts the polls of its driver.
fn counted(host: &BedHost, port: u16, config: Config, tls: Option<ServerTls>) -> (Endpoint, Arc<AtomicUsize>) {
    let socket = host.stack().bind_udp(Some(port)).unwrap();
    let (endpoint, mut driver) = Endpoint::new(socket, host.runtime(), config, tls).unwrap();
    let polls = Arc::new(AtomicUsize::new(0));
    let counting = polls.clone();
    let _driver_task = host.spawn(
        "driver",
        poll_fn(move |cx| {
            let polls = counting.fetch_add(1, Ordering::Relaxed);
            assert!(polls < MAX_POLLS, "the driver is polled without an end");
            Pin::new(&mut driver).poll(cx)
        }),
    );
    (endpoint, polls)
}

/// RFC 9000 17.2: at most 20 bytes. Other lengths count as the nearest valid one, at the endpoint and in its device.
#[test]
fn connection_ids_of_any_configured_length_work() {
    for cid_bytes in [20, 0, 1, 21, 22, 24, 255] {
        let mut world = QuicTestbed::new(1, [nic(), nic()], LinkConfig::default());
        let config = |name: &str| world.config(name).with(|c| c.cid_bytes = cid_bytes);
        let done = world.transfer([config("near"), config("far")], false, MEGABYTE, MEGABYTE);
        for end in [done.client, done.server] {
            assert!(end.opened_by_device > 500 && end.opened_by_software < 30, "{cid_bytes}: {end:?}");
        }
    }
}
