//! Nodes on two hosts: key changes, NICs that are reset or full, unknown peers, and a wire that loses and reorders.

use bytes::Bytes;
use core::net::SocketAddr;
use core::time::Duration;
use nic_sim::wire::LinkConfig;
use offload_formats::{Gtpu, GtpuMessage};
use pdcp::SnLen;
use pdcp::gtpu::{BearerOpenError, GtpTunnel};
use proptest::prelude::*;
use std::sync::atomic::Ordering::Relaxed;

use crate::world::*;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(schedules_wanted()))]

    /// With every kind of offload, a bad wire, NIC resets and accelerators that disappear, each SDU arrives at most
    /// once, in order and unchanged.
    #[test]
    fn sdus_arrive_at_most_once_and_in_order(
        seed: u64, near in prop::sample::select(&WAYS[..]), far in prop::sample::select(&WAYS[..]), contexts in 0u32..4,
        loss in prop::sample::select(&["0", "0.01", "0.1"][..]), resets in prop::collection::vec((0u64..3000, 0usize..2), 0..4),
        losses in prop::collection::vec((0u64..3000, 0usize..2), 0..3), short: bool, count in 1u32..2000,
    ) {
        let mut world = PdcpTestbed::new(seed, [near, far], contexts, bad_wire(loss));
        let mut config = config();
        if short {
            config.sn = SnLen::Twelve;
        }
        let bearers = world.open(0, &config, 0);
        // Each task loses an accelerator or resets a NIC at some time in the first 3 ms.
        for (after, end) in losses {
            let host = world.ends[end].0.clone();
            drop(world.ends[0].0.spawn("loses its accelerator", async move {
                host.runtime().sleep(Duration::from_micros(after)).await;
                host.lose_accelerator();
            }));
        }
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
        // Most SDUs arrive; a run of fewer than 20 may lose any number.
        prop_assert!(came.len() as u32 >= count / 2 || count < 20, "{} of {count}", came.len());
    }
}

/// Returns the number of schedules to run: `PDCP_SCHEDULES`, or a few.
fn schedules_wanted() -> u32 {
    std::env::var("PDCP_SCHEDULES").map_or(24, |count| count.parse().expect("PDCP_SCHEDULES is a number"))
}

/// New keys restart at COUNT 0, and PDUs under the old keys are not mistaken for PDUs under the new ones.
#[test]
fn new_keys_do_not_affect_old_pdus() {
    for near in WAYS {
        for far in WAYS {
            let mut world = PdcpTestbed::new(3, [near, far], 8, LinkConfig::default());
            let bearers = world.open(0, &config(), 0);
            let hosts = [world.ends[0].0.clone(), world.ends[1].0.clone()];
            let came = world.bed.run_within(Duration::from_secs(60), carry(hosts, bearers, 3, 300));
            let all: Vec<_> = (0..3).flat_map(|epoch| (0..300).map(move |number| (epoch, number))).collect();
            assert_eq!(came, all, "{near:?} to {far:?}");
            // The first SDUs of each epoch are sent before the NIC has the context.
            let by_nic = world.counters(0).protected_by_device;
            assert_eq!(by_nic >= 800, near == PduPath::Nic, "{near:?}: {by_nic}");
            let opened = world.counters(1).opened_by_device;
            assert_eq!(opened >= 800, far != PduPath::Cpu, "{far:?}: {opened}");
        }
    }
}

/// A NIC without the engine, or without room, leaves the work to the CPU.
#[test]
fn cpu_works_if_the_nic_has_no_room() {
    for contexts in [0, 1] {
        let mut world = PdcpTestbed::new(4, [PduPath::Nic, PduPath::Nic], contexts, LinkConfig::default());
        let bearers: Vec<_> = (0..3).map(|number| world.open(number, &config(), 0)).collect();
        let hosts = [world.ends[0].0.clone(), world.ends[1].0.clone()];
        for bearers in bearers {
            let came = world.bed.run_within(Duration::from_secs(60), carry(hosts.clone(), bearers, 1, 100));
            assert_eq!(came.len(), 100);
        }
        // Some offload protected or opened every SDU, without failures.
        let (sent, received) = (world.counters(0), world.counters(1));
        assert_eq!(sent.protected_by_device + sent.protected_by_software, 300);
        assert_eq!(sent.protected_by_device > 0, contexts > 0);
        assert_eq!((received.integrity, received.redone), (0, 0));
    }
}

/// Echo requests are answered; datagrams of unknown tunnels and other protocols are only counted.
#[test]
fn unknown_peers_are_answered_or_counted() {
    let mut world = PdcpTestbed::new(5, [PduPath::Nic, PduPath::Cpu], 8, LinkConfig::default());
    let _bearers = world.open(0, &config(), 0);
    let (host, _) = &world.ends[1];
    let stranger = host.stack().bind_udp(Some(4000)).unwrap();
    let to: SocketAddr = (world.ends[0].0.address(), PORT).into();
    let answer = world.bed.run(async move {
        let mut data = vec![0; 11];
        Gtpu::new(GtpuMessage::Data, 99, 3).write(&mut data);
        // An unknown tunnel; three malformed datagrams; an echo request.
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
fn tunnel_has_one_bearer_and_closes_with_it() {
    let mut world = PdcpTestbed::new(6, [PduPath::Nic, PduPath::Nic], 8, LinkConfig::default());
    let [near, far] = world.open(0, &config(), 0);
    let node = world.ends[0].1.clone();
    let tunnel = GtpTunnel { local: 1, remote: 9, peer: (world.ends[1].0.address(), PORT).into() };
    let open = || {
        let [sent, received] = keys(0, 0, 0);
        node.open(tunnel, config(), sent, received)
    };
    assert!(matches!(open(), Err(BearerOpenError::InUse(1))));
    let (host, settled) = (world.ends[0].0.clone(), Duration::from_millis(5));
    world.bed.run(async { host.runtime().sleep(settled).await });
    // One context per direction.
    assert_eq!(world.ends[0].0.device_contexts(), 2);
    // The contexts end with their bearers.
    drop((near, far));
    let host = world.ends[0].0.clone();
    world.bed.run(async { host.runtime().sleep(settled).await });
    assert_eq!([0, 1].map(|end| world.ends[end].0.device_contexts()), [0, 0], "given back");
    assert!(open().is_ok());
}

/// A TEID may be reused at once by another bearer with its own keys: COUNT 0 is not used again with the old keys.
#[test]
fn reopened_tunnel_uses_its_own_keys() {
    for near in WAYS {
        for far in WAYS {
            let mut world = PdcpTestbed::new(7, [near, far], 8, LinkConfig::default());
            let hosts = [world.ends[0].0.clone(), world.ends[1].0.clone()];
            // Each epoch opens the same TEIDs with other keys.
            for epoch in 0..3 {
                let [near, far] = world.open(0, &config(), epoch);
                let (host, got) = (hosts[0].clone(), std::sync::Arc::new(far));
                let receives = got.clone();
                let came = world.bed.run_within(Duration::from_secs(60), async move {
                    for number in 0..20 {
                        near.send(sdu(epoch, number)).await.unwrap();
                    }
                    // The far end reads after all PDUs have arrived.
                    host.runtime().sleep(Duration::from_millis(5)).await;
                    let mut came = Vec::new();
                    while came.len() < 20 {
                        came.push(receives.receive().await.unwrap().data);
                    }
                    came
                });
                assert!(came.iter().zip(0..).all(|(got, number)| *got == sdu(epoch, number)));
                // Both ends of the tunnel are closed before the next epoch.
                drop(got);
            }
            let counters = world.counters(1);
            assert_eq!((counters.integrity, counters.stale, counters.given_up), (0, 0, 0), "{near:?} to {far:?}");
        }
    }
}

/// PDUs that a NIC opened under old keys may be read after a key change. They are in clear, and must not be taken for
/// PDUs under the new keys.
#[test]
fn pdus_opened_under_old_keys_are_stale() {
    for queues in [1, 4] {
        let mut world = PdcpTestbed::for_queues(8, [PduPath::Cpu, PduPath::Nic], queues, 8, LinkConfig::default());
        let [near, far] = world.open(0, &config(), 0);
        let (host, keeps) = (world.ends[0].0.clone(), world.keeps[1].clone());
        let came = world.bed.run_within(Duration::from_secs(5), async move {
            // Each pause lets contexts and datagrams arrive.
            let pause = || host.runtime().sleep(Duration::from_millis(5));
            let send = async |epoch: u8| {
                for number in 0..10 {
                    near.send(sdu(epoch, number)).await.unwrap();
                }
            };
            pause().await;
            // The far socket withholds the datagrams that the NIC has opened.
            keeps.store(true, Relaxed);
            send(0).await;
            pause().await;
            // The far end changes its keys before it reads them.
            let [sent, received] = keys(0, 1, 1);
            far.reestablish(sent, received).unwrap();
            pause().await;
            keeps.store(false, Relaxed);
            // This makes the node poll its socket again.
            far.send(sdu(1, 0)).await.unwrap();
            pause().await;
            // Now the near end follows.
            let [sent, received] = keys(0, 1, 0);
            near.reestablish(sent, received).unwrap();
            send(1).await;
            let mut came = Vec::new();
            while came.len() < 10 {
                came.push(far.receive().await.unwrap().data);
            }
            came
        });
        assert!(came.iter().zip(0..).all(|(got, number)| *got == sdu(1, number)), "{came:?}");
        let counters = world.counters(1);
        assert_eq!((counters.stale, counters.opened_by_device, counters.redone), (10, 10, 0), "{counters:?}");
    }
}
