//! What has no room, cannot be sent or is not read.

use bytes::{Bytes, BytesMut};
use core::net::SocketAddr;
use core::time::Duration;
use nic_sim::lookaside::LookasideConfig;
use nic_sim::wire::LinkConfig;
use offload_api::Job;
use offload_base::Instant;
use offload_formats::{Gtpu, GtpuMessage};
use offload_jobs::{CpuConfig, CpuQueue};
use offload_transforms::Transform;
use pdcp::crypto::Direction;
use pdcp::gtpu::{Bearer, Protection, Tunnel};
use pdcp::{Config, Security};

use crate::faulty::Faulty;
use crate::world::*;

/// An accelerator's queue may have one place, which the command takes that makes a session; or be shared with others that fill it.
#[test]
fn a_full_queue_of_jobs_loses_nothing() {
    for depth in [1, 2, 5] {
        let config = LookasideConfig { depth, ..LookasideConfig::default() };
        let mut world = World::with_accelerator(8, [How::Jobs, How::Jobs], 8, LinkConfig::default(), config);
        let bearers = world.open(0, &config_with(8 << 20), 0);
        let hosts = [world.ends[0].0.clone(), world.ends[1].0.clone()];
        let came = world.bed.run_within(Duration::from_secs(60), carry(hosts, bearers, 2, 100));
        let counters = world.counters(0);
        assert_eq!(came.len(), 200, "depth {depth}: {counters:?} {:?}", world.counters(1));
        // A session may take the last place from a job, and is there for all that follow; there are two generations of keys.
        assert!(counters.batches_lost <= 2 && counters.protected_by_jobs > 0, "depth {depth}: {counters:?}");
    }
}

/// What waits for a place in a queue that others have filled goes on when they are through, though nothing else happens; so it does if they filled
/// it with commands, which end without a job.
#[test]
fn room_in_a_shared_queue_is_noticed() {
    for with_jobs in [true, false] {
        let config = LookasideConfig { depth: 4, ..LookasideConfig::default() };
        let mut world = World::with_accelerator(9, [How::Jobs, How::Cpu], 8, LinkConfig::default(), config);
        let [near, far] = world.open(0, &config_with(8 << 20), 0);
        let mut other = world.ends[0].0.accelerator().unwrap().client();
        let host = world.ends[0].0.clone();
        let got = world.bed.run_within(Duration::from_secs(5), async move {
            // The first makes the session.
            near.send(sdu(0, 0)).await.unwrap();
            far.receive().await.unwrap();
            host.runtime().sleep(Duration::from_millis(1)).await;
            if with_jobs {
                let session = other.open(Transform::Copy).unwrap();
                host.runtime().sleep(Duration::from_millis(1)).await;
                for _ in 0..4 {
                    other.submit(Job::new(session, Bytes::from(vec![0; 64]), BytesMut::with_capacity(64))).unwrap();
                }
            } else {
                (0..4).for_each(|_| drop(other.open(Transform::Copy)));
            }
            other.flush();
            near.send(sdu(0, 1)).await.unwrap();
            far.receive().await.unwrap().data
        });
        assert_eq!(got, sdu(0, 1), "jobs: {with_jobs}");
    }
}

/// A socket that takes nothing for a while, and then everything: what waited for room goes on, though the peer says nothing.
#[test]
fn a_socket_that_takes_nothing_for_a_while_stalls_nobody() {
    for queue in [None, Some(CpuQueue::new(CpuConfig::default()))] {
        let wire = LinkConfig { rate: Some(1_000_000_000), ..LinkConfig::default() };
        let mut world = World::new(10, [How::Cpu, How::Cpu], 8, wire);
        let host = world.ends[0].0.clone();
        let gate = Some((host.runtime().alarm(), Instant::ZERO + Duration::from_millis(2)));
        let socket = Faulty { gate, ..Faulty::new(host.stack().bind_udp(Some(PORT + 1)).unwrap()) };
        // A queue without the engine: each of its jobs comes back at once, and the CPU does it.
        let jobs = queue.is_some();
        let protection = queue.map_or(Protection::Cpu, |queue| Protection::Jobs(Box::new(queue)));
        let (near, far) = world.pair(socket, protection, config_with(200_000));
        let sending = host.spawn("sends", async move {
            for number in 0..3000 {
                near.send(sdu(0, number)).await.unwrap();
            }
            near
        });
        world.bed.run_within(Duration::from_secs(30), async move {
            for number in 0..3000 {
                assert_eq!(far.receive().await.unwrap().data, sdu(0, number), "jobs: {jobs}");
            }
            drop(sending.await);
        });
    }
}

/// A packet that is too long for the path goes in fragments, whether a NIC has the bearer or not.
#[test]
fn a_long_sdu_arrives_in_fragments() {
    for near in WAYS {
        let mut world = World::new(11, [near, How::Nic], 8, LinkConfig::default());
        let [near_end, far_end] = world.open(0, &config(), 0);
        let host = world.ends[0].0.clone();
        let came = world.bed.run_within(Duration::from_secs(5), async move {
            // The NICs have it by then.
            host.runtime().sleep(Duration::from_millis(5)).await;
            for bytes in [1500, 40, 4000, 1457, 1458] {
                near_end.send(vec![7; bytes].into()).await.unwrap();
            }
            let mut came = Vec::new();
            while came.len() < 5 {
                came.push(far_end.receive().await.unwrap().data.len());
            }
            came
        });
        assert_eq!(came, [1500, 40, 4000, 1457, 1458], "{near:?}");
    }
}

/// One datagram that cannot be sent is that one's affair.
#[test]
fn an_error_of_one_datagram_ends_nothing() {
    let mut world = World::new(12, [How::Cpu, How::Cpu], 8, LinkConfig::default());
    let host = world.ends[0].0.clone();
    let socket = Faulty { errors: 3, ..Faulty::new(host.stack().bind_udp(Some(PORT + 1)).unwrap()) };
    let (near, far) = world.pair(socket, Protection::Cpu, config());
    let got = world.bed.run_within(Duration::from_secs(5), async move {
        for number in 0..8 {
            near.send(sdu(0, number)).await.unwrap();
            host.runtime().sleep(Duration::from_millis(1)).await;
        }
        far.receive().await.unwrap().count
    });
    assert_eq!(got, 3);
}

/// A bearer without keys, whose peer is a socket that says what the test wants.
fn crafted(world: &World, config: Config) -> (Bearer, offload_host_stack::UdpSocket, SocketAddr) {
    let null = || Security::new(1, Direction::Uplink).unwrap();
    let peer = SocketAddr::from((world.ends[1].0.address(), 4000));
    let bearer = world.ends[0].1.open(Tunnel { local: 1, remote: 2, peer }, config, null(), null()).unwrap();
    let socket = world.ends[1].0.stack().bind_udp(Some(4000)).unwrap();
    (bearer, socket, (world.ends[0].0.address(), PORT).into())
}

fn message(message: GtpuMessage, payload: &[u8]) -> Bytes {
    let mut datagram = vec![0; Gtpu::BYTES];
    Gtpu::new(message, 1, payload.len()).write(&mut datagram);
    datagram.extend_from_slice(payload);
    datagram.into()
}

/// SDUs without a byte take room, too: a peer cannot have a node keep any number of them.
#[test]
fn empty_sdus_that_nobody_reads_are_bounded() {
    let mut world = World::new(13, [How::Cpu, How::Cpu], 8, LinkConfig::default());
    let (_bearer, peer, to) = crafted(&world, config_with(10_000));
    let host = world.ends[1].0.clone();
    world.bed.run(async move {
        for count in 0..200u32 {
            let header = (count | 0x80_0000).to_be_bytes();
            peer.send_to(message(GtpuMessage::Data, &header[1..]), to).await.unwrap();
            if count % 50 == 49 {
                host.runtime().sleep(Duration::from_millis(1)).await;
            }
        }
    });
    assert!(world.counters(0).unread > 100, "{:?}", world.counters(0));
}

/// New keys give up the wait for what is missing: what was held up is delivered, and the end comes behind it.
#[test]
fn what_new_keys_deliver_is_heard_of_before_the_end() {
    for ended in [false, true] {
        let mut config = config();
        config.reordering = None;
        if ended {
            config.reordering = Some(Duration::from_secs(100));
        }
        let mut world = World::new(14, [How::Cpu, How::Cpu], 8, LinkConfig::default());
        let (bearer, peer, to) = crafted(&world, config);
        let bearer = std::sync::Arc::new(bearer);
        let (reads, host) = (bearer.clone(), world.ends[0].0.clone());
        let reading = host.spawn("reads", async move {
            let first = reads.receive().await.map(|sdu| sdu.data);
            if ended { (first, reads.receive().await.map(|sdu| sdu.data)) } else { (first, None) }
        });
        let got = world.bed.run_within(Duration::from_secs(5), async move {
            peer.send_to(message(GtpuMessage::Data, b"\x80\0\x01second"), to).await.unwrap();
            if ended {
                peer.send_to(message(GtpuMessage::EndMarker, b""), to).await.unwrap();
            }
            host.runtime().sleep(Duration::from_millis(1)).await;
            let null = || Security::new(1, Direction::Uplink).unwrap();
            bearer.reestablish(null(), null());
            reading.await
        });
        assert_eq!(got, (Some(Bytes::from_static(b"second")), None), "ended: {ended}");
    }
}
