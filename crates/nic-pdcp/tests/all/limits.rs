//! Full queues, datagrams that cannot be sent, and SDUs that are not read.

use bytes::{Bytes, BytesMut};
use core::future::{Future, poll_fn};
use core::net::SocketAddr;
use core::task::{Context, Poll, Waker};
use core::time::Duration;
use nic_sim::lookaside::{LookasideConfig, LookasideUnit};
use nic_sim::wire::LinkConfig;
use offload_api::Job;
use offload_base::Instant;
use offload_formats::{Gtpu, GtpuMessage};
use offload_jobs::{CpuConfig, CpuQueue};
use offload_transforms::Transform;
use pdcp::crypto::Direction;
use pdcp::gtpu::{Bearer, BearerError, BearerOpenError, GtpTunnel, PduProtection};
use pdcp::{BearerKind, Config, Security, SnLen};
use std::sync::Arc;

use crate::faulty::Faulty;
use crate::world::*;

/// An accelerator's queue may have one place, which is taken by the command that creates a session, or may be shared
/// with other clients that fill it.
#[test]
fn full_job_queue_loses_no_sdu() {
    for depth in [1, 2, 5] {
        let config = LookasideConfig { depth, ..LookasideConfig::default() };
        // Two generations of keys: each needs a session of the accelerator.
        let mut world =
            PdcpTestbed::with_accelerator(8, [PduPath::Jobs, PduPath::Jobs], 8, LinkConfig::default(), config);
        let bearers = world.open(0, &config_with(8 << 20), 0);
        let hosts = [world.ends[0].0.clone(), world.ends[1].0.clone()];
        let came = world.bed.run_within(Duration::from_secs(60), carry(hosts, bearers, 2, 100));
        let counters = world.counters(0);
        assert_eq!(came.len(), 200, "depth {depth}: {counters:?} {:?}", world.counters(1));
        // A session may take the last place from a job, and then serves all later jobs. There are two generations of
        // keys.
        assert!(counters.batches_lost <= 2 && counters.protected_by_jobs > 0, "depth {depth}: {counters:?}");
    }
}

/// Jobs that wait for a place in a shared queue continue when the other clients' entries are finished, without any
/// other event, even if these entries were commands.
#[test]
fn jobs_continue_when_a_shared_queue_has_room() {
    for with_jobs in [true, false] {
        let config = LookasideConfig { depth: 4, ..LookasideConfig::default() };
        let mut world =
            PdcpTestbed::with_accelerator(9, [PduPath::Jobs, PduPath::Cpu], 8, LinkConfig::default(), config);
        let [near, far] = world.open(0, &config_with(8 << 20), 0);
        // The other client fills all four entries.
        let mut other = world.ends[0].0.accelerator().unwrap().client();
        let host = world.ends[0].0.clone();
        let got = world.bed.run_within(Duration::from_secs(5), async move {
            // The first SDU creates the session.
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
            // No entry is free now: this SDU's job has to wait.
            near.send(sdu(0, 1)).await.unwrap();
            far.receive().await.unwrap().data
        });
        assert_eq!(got, sdu(0, 1), "jobs: {with_jobs}");
    }
}

/// A socket accepts nothing for a while and then everything: waiting datagrams continue, although the peer sends
/// nothing.
#[test]
fn blocked_socket_does_not_stall_bearers() {
    for queue in [None, Some(CpuQueue::new(CpuConfig::default()))] {
        let wire = LinkConfig { rate: Some(1_000_000_000), ..LinkConfig::default() };
        let mut world = PdcpTestbed::new(10, [PduPath::Cpu, PduPath::Cpu], 8, wire);
        let host = world.ends[0].0.clone();
        // The socket accepts nothing in the first 2 ms.
        let gate = Some((host.runtime().alarm(), Instant::ZERO + Duration::from_millis(2)));
        let socket = Faulty { gate, ..Faulty::new(host.stack().bind_udp(Some(PORT + 1)).unwrap()) };
        // A queue without the engine: each job fails at once, and the CPU does the work.
        let jobs = queue.is_some();
        let protection = queue.map_or(PduProtection::Cpu, |queue| PduProtection::Jobs(Box::new(queue)));
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

/// A packet that is too long for the path is fragmented, whether or not a NIC has the bearer.
#[test]
fn long_sdu_arrives_in_fragments() {
    for near in WAYS {
        let mut world = PdcpTestbed::new(11, [near, PduPath::Nic], 8, LinkConfig::default());
        let [near_end, far_end] = world.open(0, &config(), 0);
        let host = world.ends[0].0.clone();
        let came = world.bed.run_within(Duration::from_secs(5), async move {
            // By now the NICs have the contexts.
            host.runtime().sleep(Duration::from_millis(5)).await;
            // 1457 and 1458 bytes are around the longest SDU that needs no fragments.
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

/// A datagram that cannot be sent affects no other.
#[test]
fn error_of_one_datagram_affects_no_other() {
    let mut world = PdcpTestbed::new(12, [PduPath::Cpu, PduPath::Cpu], 8, LinkConfig::default());
    let host = world.ends[0].0.clone();
    let socket = Faulty { errors: 3, ..Faulty::new(host.stack().bind_udp(Some(PORT + 1)).unwrap()) };
    let (near, far) = world.pair(socket, PduProtection::Cpu, config());
    let got = world.bed.run_within(Duration::from_secs(5), async move {
        for number in 0..8 {
            near.send(sdu(0, number)).await.unwrap();
            host.runtime().sleep(Duration::from_millis(1)).await;
        }
        far.receive().await.unwrap().count
    });
    // The first three datagrams failed.
    assert_eq!(got, 3);
}

/// Returns a bearer without keys and a socket as its peer, by which the test sends hand-made messages.
fn crafted(world: &PdcpTestbed, config: Config) -> (Bearer, offload_host_stack::UdpSocket, SocketAddr) {
    let null = || Security::new(1, Direction::Uplink).unwrap();
    let peer = SocketAddr::from((world.ends[1].0.address(), 4000));
    let bearer = world.ends[0].1.open(GtpTunnel { local: 1, remote: 2, peer }, config, null(), null()).unwrap();
    let socket = world.ends[1].0.stack().bind_udp(Some(4000)).unwrap();
    (bearer, socket, (world.ends[0].0.address(), PORT).into())
}

fn message(message: GtpuMessage, payload: &[u8]) -> Bytes {
    let mut datagram = vec![0; Gtpu::BYTES];
    Gtpu::new(message, 1, payload.len()).write(&mut datagram);
    datagram.extend_from_slice(payload);
    datagram.into()
}

/// Empty SDUs are charged too, so that a peer cannot fill a node's memory with them.
#[test]
fn unread_empty_sdus_are_bounded() {
    let mut world = PdcpTestbed::new(13, [PduPath::Cpu, PduPath::Cpu], 8, LinkConfig::default());
    let (_bearer, peer, to) = crafted(&world, config_with(10_000));
    let host = world.ends[1].0.clone();
    world.bed.run(async move {
        for count in 0..200u32 {
            let header = (count | 0x80_0000).to_be_bytes();
            peer.send_to(message(GtpuMessage::Data, &header[1..]), to).await.unwrap();
            // Pauses let the node take the datagrams.
            if count % 50 == 49 {
                host.runtime().sleep(Duration::from_millis(1)).await;
            }
        }
    });
    assert!(world.counters(0).unread > 100, "{:?}", world.counters(0));
}

/// New keys end the wait for missing PDUs: held-up SDUs are delivered, and the end comes after them.
#[test]
fn sdus_delivered_by_new_keys_precede_the_end() {
    for ended in [false, true] {
        // The receiver holds COUNT 1, because COUNT 0 never comes.
        let mut config = config();
        config.reordering = None;
        if ended {
            config.reordering = Some(Duration::from_secs(100));
        }
        let mut world = PdcpTestbed::new(14, [PduPath::Cpu, PduPath::Cpu], 8, LinkConfig::default());
        let (bearer, peer, to) = crafted(&world, config);
        let bearer = std::sync::Arc::new(bearer);
        let (reads, host) = (bearer.clone(), world.ends[0].0.clone());
        // The reader waits before the PDU arrives.
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
            // The new keys end the reordering.
            bearer.reestablish(null(), null()).unwrap();
            reading.await
        });
        assert_eq!(got, (Some(Bytes::from_static(b"second")), None), "ended: {ended}");
    }
}

/// `Bearer::send` takes `&self`: several tasks may wait for room, and all continue.
#[test]
fn all_tasks_that_wait_for_room_are_woken() {
    let wire = LinkConfig { rate: Some(100_000_000), ..LinkConfig::default() };
    let mut world = PdcpTestbed::new(15, [PduPath::Cpu, PduPath::Cpu], 8, wire);
    // The buffer has room for a few SDUs only.
    let [near, far] = world.open(0, &config_with(3000), 0);
    let (near, host) = (Arc::new(near), world.ends[0].0.clone());
    let send = |near: Arc<Bearer>| async move {
        for number in 0..200 {
            near.send(sdu(0, number)).await.unwrap();
        }
    };
    let tasks = [0, 1].map(|_| host.spawn("sends", send(near.clone())));
    let drain = world.ends[1].0.spawn("drains", async move { while far.receive().await.is_some() {} });
    world.bed.run_within(Duration::from_secs(60), async move {
        for task in tasks {
            task.await;
        }
    });
    drop(drain);
}

/// A dropped future does not take another task's wake-up.
#[test]
fn dropped_receive_leaves_the_other_waiting_task() {
    let mut world = PdcpTestbed::new(16, [PduPath::Cpu, PduPath::Cpu], 8, LinkConfig::default());
    let [near, far] = world.open(0, &config(), 0);
    let (far, host) = (Arc::new(far), world.ends[1].0.clone());
    let reads = far.clone();
    let first = host.spawn("reads", async move { reads.receive().await.map(|sdu| sdu.data) });
    let got = world.bed.run_within(Duration::from_secs(5), async move {
        host.runtime().sleep(Duration::from_millis(1)).await;
        {
            // The second future waits too, and is dropped at the end of this block.
            let mut second = core::pin::pin!(far.receive());
            let is_pending = poll_fn(|cx| Poll::Ready(second.as_mut().poll(cx).is_pending()));
            assert!(is_pending.await);
        }
        near.send(sdu(0, 1)).await.unwrap();
        first.await
    });
    assert_eq!(got, Some(sdu(0, 1)));
}

/// A task that never runs and ends with its last waker. It owns a bearer of the node that holds the waker.
struct BearerTask {
    _bearer: Bearer,
}

impl std::task::Wake for BearerTask {
    fn wake(self: Arc<Self>) {}
}

#[test]
fn task_that_ends_with_a_dropped_receive_closes_its_bearer() {
    for moves in [false, true] {
        let world = PdcpTestbed::new(23, [PduPath::Cpu, PduPath::Cpu], 8, LinkConfig::default());
        let ([_, far], [_, other]) = (world.open(0, &config(), 0), world.open(1, &config(), 0));
        let task = Arc::new(BearerTask { _bearer: other });
        let known = Arc::downgrade(&task);
        let waker = Waker::from(task);
        let mut receiving = Box::pin(far.receive());
        assert!(receiving.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        drop(waker);
        assert_eq!(known.strong_count(), 1, "the node has the last waker");
        if moves {
            assert!(receiving.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
            assert_eq!(known.strong_count(), 0, "another task polls the future now");
        }
        // If the node still holds the waker, this drops the task and with it the other bearer.
        drop(receiving);
        assert_eq!(known.strong_count(), 0);
    }
}

/// More PDUs may be in jobs than the window of COUNTs holds: without losses, all arrive.
#[test]
fn slow_jobs_lose_no_pdu() {
    for (how, sn, latency) in [
        (PduPath::Cpu, SnLen::Twelve, 3000),
        (PduPath::Jobs, SnLen::Eighteen, 3000),
        (PduPath::Jobs, SnLen::Twelve, 300),
        (PduPath::Jobs, SnLen::Twelve, 3000),
    ] {
        // Jobs of two units overtake each other.
        let unit = LookasideUnit { latency: Duration::from_micros(latency), rate: None };
        let other = LookasideUnit { latency: Duration::from_micros(latency / 3), rate: None };
        let accelerator = LookasideConfig { units: vec![unit, other], ..LookasideConfig::default() };
        let wire = LinkConfig { rate: Some(100_000_000_000), ..LinkConfig::default() };
        let mut world = PdcpTestbed::with_accelerator(17, [PduPath::Cpu, how], 8, wire, accelerator);
        let mut config = Config::data(BearerKind::Unacknowledged, sn);
        config.reordering = Some(Duration::from_millis(50));
        let bearers = world.open(0, &config, 0);
        let hosts = [world.ends[0].0.clone(), world.ends[1].0.clone()];
        let flow = SduFlow { bearer: 0, epochs: 1, count: 10_000, burst: 100 };
        let came = world.bed.run_within(Duration::from_secs(60), carry_on(flow, hosts, bearers));
        let counters = world.counters(1);
        assert_eq!(came.len(), 10_000, "{how:?}, {sn:?}, {latency} us: {counters:?}");
        assert_eq!((counters.integrity, counters.redone), (0, 0), "{how:?}, {sn:?}, {latency} us");
    }
}

/// PDUs of fast jobs wait for an earlier slow job. The buffer bounds them, so that a peer cannot fill the node's
/// memory.
#[test]
fn pdus_behind_a_slow_job_are_bounded() {
    let slow = LookasideUnit { latency: Duration::from_secs(10), rate: Some(1000) };
    let fast = LookasideUnit { latency: Duration::from_micros(10), rate: None };
    let accelerator = LookasideConfig { units: vec![slow, fast], ..LookasideConfig::default() };
    let mut world =
        PdcpTestbed::with_accelerator(22, [PduPath::Cpu, PduPath::Jobs], 8, LinkConfig::default(), accelerator);
    let [near, _far] = world.open(0, &config_with(100_000), 0);
    let host = world.ends[0].0.clone();
    world.bed.run_within(Duration::from_secs(5), async move {
        for number in 0..3000 {
            near.send(sdu(0, number)).await.unwrap();
            if number % 25 == 24 {
                host.runtime().sleep(Duration::from_micros(100)).await;
            }
        }
        host.runtime().sleep(Duration::from_millis(5)).await;
    });
    assert!(world.counters(1).dropped > 2000, "{:?}", world.counters(1));
}

/// If an accelerator's thread ends, the node continues with the CPU.
#[test]
fn node_goes_on_without_its_accelerator() {
    let mut world = PdcpTestbed::new(18, [PduPath::Cpu, PduPath::Cpu], 8, LinkConfig::default());
    let (device, mut queues) =
        nic_sim::lookaside(LookasideConfig::default(), |engines| engines.add_job(nic_pdcp::PdcpBatches, 64));
    // The accelerator is gone before the first job.
    drop(device);
    let socket = world.ends[0].0.stack().bind_udp(Some(PORT + 1)).unwrap();
    let (near, far) = world.pair(socket, PduProtection::Jobs(Box::new(queues.remove(0))), config());
    let got = world.bed.run_within(Duration::from_secs(5), async move {
        let mut got = Vec::new();
        for number in 0..200 {
            near.send(sdu(0, number)).await.unwrap();
            far.send(sdu(1, number)).await.unwrap();
            got.push((far.receive().await.unwrap().data, near.receive().await.unwrap().data));
        }
        got
    });
    assert!(got.iter().zip(0..).all(|(got, number)| *got == (sdu(0, number), sdu(1, number))));
}

/// Two bearers under one key, identity and direction would give two SDUs the same key stream, at the same time or one
/// after the other.
#[test]
fn node_refuses_keys_that_it_has_used() {
    for queues in [1, 4] {
        let mut world = PdcpTestbed::for_queues(19, [PduPath::Cpu, PduPath::Cpu], queues, 8, LinkConfig::default());
        let node = world.ends[0].1.clone();
        let peer = SocketAddr::from((world.ends[1].0.address(), PORT));
        let open = |local, bearer, epoch| {
            let [sent, received] = keys(bearer, epoch, 0);
            node.open(GtpTunnel { local, remote: local, peer }, config(), sent, received)
        };
        let [near, far] = world.open(0, &config(), 0);
        assert!(matches!(open(7, 0, 0), Err(BearerOpenError::RepeatedKeys(_))), "another bearer has them");
        // A refused key change leaves the bearer with its old keys.
        let used = world.bed.run(async move {
            near.send(sdu(0, 0)).await.unwrap();
            far.receive().await.unwrap();
            let [sent, received] = keys(0, 0, 0);
            assert!(matches!(near.reestablish(sent, received), Err(BearerError::RepeatedKeys(_))));
            near.send(sdu(0, 1)).await.unwrap();
            assert_eq!(far.receive().await.unwrap().count, 1, "it goes on with its keys");
            let [sent, received] = keys(0, 1, 0);
            near.reestablish(sent, received).unwrap();
            // The second keys of this bearer protected nothing.
            drop(near);
            [0, 1]
        });
        // Open other tunnels with the keys of either epoch.
        let results = used.map(|epoch| open(8 + u32::from(epoch), 0, epoch).is_ok());
        assert_eq!(results, [false, true], "PDUs were sent under the first keys only, {queues} queues");
    }
}

/// PDUs under old keys wait for a socket that accepts nothing, or are in jobs, when the keys change. They must not be
/// protected under the new keys, which use the same COUNTs for other SDUs.
#[test]
fn waiting_pdus_of_old_keys_are_dropped() {
    for by_jobs in [false, true] {
        let unit = LookasideUnit { latency: Duration::from_millis(3), rate: None };
        let accelerator = LookasideConfig { units: vec![unit], ..LookasideConfig::default() };
        let mut world =
            PdcpTestbed::with_accelerator(20, [PduPath::Cpu, PduPath::Cpu], 8, LinkConfig::default(), accelerator);
        let host = world.ends[0].0.clone();
        // The socket accepts nothing until all SDUs have been sent.
        let gate = Some((host.runtime().alarm(), Instant::ZERO + Duration::from_millis(8)));
        let socket = Faulty { gate, ..Faulty::new(host.stack().bind_udp(Some(PORT + 1)).unwrap()) };
        let protection = match by_jobs {
            true => PduProtection::Jobs(Box::new(host.accelerator().unwrap().client())),
            false => PduProtection::Device,
        };
        let (node, near, far) = world.pair_of(socket, protection, config());
        let got = world.bed.run_within(Duration::from_secs(5), async move {
            let send = async |epoch: u8| {
                for number in 0..5 {
                    near.send(sdu(epoch, number)).await.unwrap();
                }
                // Enough time for a context, but not for a job.
                host.runtime().sleep(Duration::from_millis(1)).await;
            };
            host.runtime().sleep(Duration::from_millis(1)).await;
            send(0).await;
            // Both ends change keys while the PDUs wait.
            let [sent, received] = keys(0, 1, 0);
            near.reestablish(sent, received).unwrap();
            let [sent, received] = keys(0, 1, 1);
            far.reestablish(sent, received).unwrap();
            send(1).await;
            // Only the SDUs of the new keys arrive.
            let mut got = Vec::new();
            while got.len() < 5 {
                got.push(far.receive().await.unwrap().data);
            }
            got
        });
        assert!(got.iter().zip(0..).all(|(got, number)| *got == sdu(1, number)), "jobs: {by_jobs}, {got:?}");
        let counters = node.counters();
        assert_eq!(counters.stale, if by_jobs { 5 } else { 0 }, "jobs: {by_jobs}");
        assert_eq!(counters.protected_by_software, 0, "jobs: {by_jobs}, {counters:?}");
    }
}

/// PDUs are being opened by jobs when the keys change: their SDUs are not delivered under the new keys.
#[test]
fn jobs_of_old_keys_deliver_nothing() {
    let unit = LookasideUnit { latency: Duration::from_millis(3), rate: None };
    let accelerator = LookasideConfig { units: vec![unit], ..LookasideConfig::default() };
    let mut world =
        PdcpTestbed::with_accelerator(21, [PduPath::Cpu, PduPath::Jobs], 8, LinkConfig::default(), accelerator);
    let [near, far] = world.open(0, &config(), 0);
    let host = world.ends[0].0.clone();
    let got = world.bed.run_within(Duration::from_secs(5), async move {
        near.send(sdu(0, 0)).await.unwrap();
        host.runtime().sleep(Duration::from_millis(1)).await;
        // The job that opens the first PDU needs two more milliseconds.
        let [sent, received] = keys(0, 1, 1);
        far.reestablish(sent, received).unwrap();
        let [sent, received] = keys(0, 1, 0);
        near.reestablish(sent, received).unwrap();
        near.send(sdu(1, 0)).await.unwrap();
        far.receive().await.unwrap().data
    });
    assert_eq!((got, world.counters(1).stale), (sdu(1, 0), 1));
}
