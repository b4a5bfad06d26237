//! Multi-queue NICs with a socket per queue: bearers are spread over the queues, and datagrams at other queues are
//! forwarded.

use core::time::Duration;
use futures_util::future::join_all;
use nic_sim::wire::LinkConfig;
use pdcp::gtpu::Bearer;
use proptest::prelude::*;

use crate::world::*;

/// Returns the SDUs received on each of several concurrent bearers.
fn carried(world: &mut PdcpTestbed, bearers: u32, epochs: u8, count: u32) -> Vec<Vec<(u8, u32)>> {
    let opened: Vec<_> = (0..bearers).map(|number| world.open(number, &config(), 0)).collect();
    carry_all(world, opened, epochs, count)
}

fn carry_all(world: &mut PdcpTestbed, opened: Vec<[Bearer; 2]>, epochs: u8, count: u32) -> Vec<Vec<(u8, u32)>> {
    let hosts = [world.ends[0].0.clone(), world.ends[1].0.clone()];
    let flow = |bearer| SduFlow { bearer, epochs, count, burst: 5 };
    let all: Vec<_> = (0..).zip(opened).map(|(number, ends)| carry_on(flow(number), hosts.clone(), ends)).collect();
    world.bed.run_within(Duration::from_secs(60), join_all(all))
}

/// With each kind of offload and any number of queues at either end, all SDUs arrive in order, across key changes.
#[test]
fn every_bearer_carries_all_sdus_on_any_queue() {
    for near in WAYS {
        for far in WAYS {
            for queues in [1, 2, 4] {
                let mut world = PdcpTestbed::for_queues(21, [near, far], queues, 16, LinkConfig::default());
                let all: Vec<_> = (0..2).flat_map(|epoch| (0..100).map(move |number| (epoch, number))).collect();
                for (bearer, came) in carried(&mut world, 6, 2, 100).iter().enumerate() {
                    assert_eq!(*came, all, "bearer {bearer}, {near:?} to {far:?}, {queues} queues");
                }
                // Of 1200 PDUs, a NIC misses only the first of each bearer and epoch.
                let (sent, received) = (world.counters(0), world.counters(1));
                assert_eq!(sent.protected_by_device > 1000, near == PduPath::Nic, "{sent:?}");
                assert_eq!(received.opened_by_device > 1000, far != PduPath::Cpu, "{received:?}");
                assert_eq!((received.handed_drops, received.no_tunnel, received.given_up), (0, 0, 0), "{received:?}");
                // All bearers have the same addresses and ports, so datagrams without a context arrive at one queue.
                assert_eq!(
                    received.handed_on > 100,
                    queues > 1 && far != PduPath::Nic,
                    "{far:?}, {queues}: {received:?}"
                );
            }
        }
    }
}

/// With contexts, a NIC steers PDUs and end markers to the queues of their bearers, and every queue has some.
#[test]
fn nic_steers_by_port_and_tunnel() {
    for queues in [1u16, 2, 4] {
        let mut world = PdcpTestbed::for_queues(22, [PduPath::Nic, PduPath::Nic], queues, 16, LinkConfig::default());
        let opened: Vec<_> = (0..8).map(|number| world.open(number, &config(), 0)).collect();
        // All contexts are installed before the first PDU.
        let (host, settled) = (world.ends[0].0.clone(), Duration::from_millis(5));
        world.bed.run(async move { host.runtime().sleep(settled).await });
        assert_eq!(world.counters(1).contexts, 16);
        let came = carry_all(&mut world, opened, 1, 100);
        assert!(came.iter().all(|came| came.len() == 100));
        let counters = world.counters(1);
        assert_eq!((counters.handed_on, counters.opened_by_device), (0, 800), "{counters:?}");
        let by_queue = world.ends[1].0.queue_counters();
        assert_eq!(by_queue.len(), queues.into());
        // The eight bearers are spread evenly.
        let fewest = by_queue.iter().map(|queue| queue.value("rx_packets")).min().unwrap();
        assert!(fewest >= 800 / u64::from(queues) * 9 / 10, "{queues} queues: {by_queue:?}");
    }
}

/// A multi-queue NIC that is reset or full leaves the work to the CPU at the bearers' queues.
#[test]
fn cpu_works_at_bearer_queues_without_contexts() {
    for (contexts, queues) in [(0, 4), (1, 4), (3, 2)] {
        let mut world =
            PdcpTestbed::for_queues(23, [PduPath::Nic, PduPath::Nic], queues, contexts, LinkConfig::default());
        let came = carried(&mut world, 8, 1, 100);
        assert!(came.iter().all(|came| came.len() == 100), "{:?}", world.counters(1));
        // Bearers without a context are opened at their queues, after forwarding.
        let counters = world.counters(1);
        assert!(counters.opened_here > 100 && counters.handed_on > 100, "{counters:?}");
        // The sending end takes the first context.
        assert_eq!(counters.opened_by_device > 0, contexts > 1, "{counters:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]

    /// Over a bad wire with NIC resets, each bearer's SDUs arrive at most once, in order and unchanged.
    #[test]
    fn sdus_arrive_at_most_once_and_in_order(
        seed: u64, near in prop::sample::select(&WAYS[..]), far in prop::sample::select(&WAYS[..]), queues in 1u16..5,
        contexts in 0u32..5, loss in prop::sample::select(&["0", "0.01", "0.1"][..]), bearers in 1u32..7,
        resets in prop::collection::vec((0u64..3000, 0usize..2), 0..4), count in 20u32..400,
    ) {
        let mut world = PdcpTestbed::for_queues(seed, [near, far], queues, contexts, bad_wire(loss));
        for (after, end) in resets {
            let host = world.ends[end].0.clone();
            drop(world.ends[0].0.spawn("reset", async move {
                host.runtime().sleep(Duration::from_micros(after)).await;
                host.reset_device();
            }));
        }
        for came in carried(&mut world, bearers, 1, count) {
            prop_assert!(came.windows(2).all(|two| two[0] < two[1]), "in order, each once");
            prop_assert!(came.len() as u32 >= count / 2, "{} of {count}", came.len());
        }
    }
}
