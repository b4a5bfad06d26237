//! Fabrics: accepted packets leave once, in order, at the times of closed forms, despite changes of instances.

use crypto_services::{
    ChainId, DepartedPacket, Fabric, FabricConfig, FabricError, Graph, GraphError, GraphStep, Packet, Pipeline,
    Service, ServiceChain, ServiceCosts, Suite, TransformDirection,
};
use offload_base::Seed;
use proptest::prelude::*;
use std::collections::HashMap;

fn all_of(fabric: &mut Fabric) -> Vec<DepartedPacket> {
    while let Some(at) = fabric.next_event_ns() {
        fabric.advance(at);
    }
    core::iter::from_fn(|| fabric.poll()).collect()
}

#[test]
fn ambiguous_graphs_are_refused_with_short_errors() {
    let wrong = |text: &str| text.parse::<Graph>().unwrap_err();
    let twice = ["ghash:blocks=3,extra=1", "ghash:extra=2,once,extra=1", "ghash:extra=2,extra=1"];
    for text in twice {
        let second = GraphError::Option { step: 1, option: "extra=1".into() };
        assert_eq!(wrong(text), second, "neither number is ignored");
    }
    // A packet of a known flow would pass no service.
    assert_eq!(wrong("key-expansion:once > ghash:once"), GraphError::OnlyOnce);
    let escaped = "\u{10ffff}".repeat(100);
    for text in [escaped.clone(), format!("ghash:{escaped}")] {
        assert!(wrong(&text).to_string().len() < 500, "{}", wrong(&text));
    }
}

#[test]
fn single_chain_matches_the_closed_form() {
    let mut rng = Seed(4).stream("fabric");
    for round in 0..60 {
        let services = [Service::Counter, Service::Aes128, Service::Zuc, Service::Ghash];
        let mut chain = ServiceChain::new(&services).unwrap();
        (0..round % 9).for_each(|_| chain.grow());
        let graph = Graph::new(services.map(GraphStep::for_service).to_vec()).unwrap();
        let mut fabric = Fabric::new(FabricConfig { queue: 1000, ..FabricConfig::default() });
        let id = fabric.add_chain(graph, 1).unwrap();
        for stage in chain.stages() {
            fabric.set_up(stage.service, stage.instances).unwrap();
        }
        let (mut pipeline, mut now, mut expected) = (Pipeline::new(&chain), 0.0, Vec::new());
        for name in 0..80 {
            now += rng.below(4000) as f64;
            let bytes = 16 * (1 + rng.below(92) as u32);
            fabric.offer(now, Packet { chain: id, flow: 0, bytes, name }).unwrap();
            expected.push(pipeline.pass(now, bytes / 16).left_ns);
        }
        let left = all_of(&mut fabric);
        assert_eq!(left.len(), expected.len());
        for (left, expected) in left.iter().zip(expected) {
            // The fabric rounds each block to whole picoseconds.
            assert!((left.left_ns - expected).abs() < 10.0, "{left:?}, {expected}");
        }
    }
}

#[test]
fn serial_instances_add_throughput_not_speed() {
    let graph: Graph = "aes-128:serial".parse().unwrap();
    let one = Service::Aes128.cost().block_ns * 10.0;
    for instances in [1, 2, 4] {
        let mut fabric = Fabric::new(FabricConfig::default());
        let chain = fabric.add_chain(graph.clone(), 1).unwrap();
        fabric.set_up(Service::Aes128, instances).unwrap();
        for name in 0..8 {
            fabric.offer(0.0, Packet { chain, flow: name, bytes: 160, name }).unwrap();
        }
        let left: Vec<f64> = all_of(&mut fabric).iter().map(|departed| departed.left_ns).collect();
        assert!((left[0] - one).abs() < 1.0, "{left:?}");
        assert!((left[7] - one * f64::from(8 / instances)).abs() < 10.0, "{left:?}");
    }
}

#[test]
fn flow_key_is_expanded_once_until_forgotten() {
    let config = FabricConfig { flows: 2, ..FabricConfig::default() };
    let mut fabric = Fabric::new(config);
    let chain = fabric.add_chain("key-expansion:once,blocks=1 > counter".parse().unwrap(), 1).unwrap();
    let mut expansions = |now: f64, flow: u64| {
        fabric.offer(now, Packet { chain, flow, bytes: 64, name: 0 }).unwrap();
        all_of(&mut fabric);
        fabric.take_window()[0].work.packets()
    };
    let seen: Vec<u64> =
        [1, 1, 2, 1, 3, 1, 2, 2].iter().zip(1..).map(|(flow, at)| expansions(1e6 * f64::from(at), *flow)).collect();
    // Flow 3 replaces flow 2, the least recently used. Flow 2 comes again and replaces flow 3.
    assert_eq!(seen, [1, 0, 1, 0, 1, 0, 1, 0]);
}

#[test]
fn packet_waits_for_the_key_expansion() {
    let costs = ServiceCosts::default().scaled(Service::KeyExpansion, 100.0);
    let mut fabric = Fabric::new(FabricConfig { costs, ..FabricConfig::default() });
    let chain = fabric.add_chain("key-expansion:once,blocks=1 > aes-128".parse().unwrap(), 1).unwrap();
    let block = Service::Aes128.cost().block_ns;
    for (name, now) in [(0, 0.0), (1, 10.0 * block), (2, 300.0 * block)] {
        fabric.offer(now, Packet { chain, flow: 0, bytes: 16, name }).unwrap();
    }
    let left: Vec<f64> = all_of(&mut fabric).iter().map(|departed| departed.left_ns / block).collect();
    // The second packet arrives during the expansion, so the key is expanded once more.
    for (left, expected) in left.iter().zip([101.0, 201.0, 301.0]) {
        assert!((left - expected).abs() < 0.01, "{left} {expected}");
    }
}

#[test]
fn large_shares_divide_a_service() {
    let mut fabric = Fabric::new(FabricConfig { queue: 8, ..FabricConfig::default() });
    let graph: Graph = "aes-128".parse().unwrap();
    let chains = [fabric.add_chain(graph.clone(), 1 << 30).unwrap(), fabric.add_chain(graph, 1 << 31).unwrap()];
    let (mut now, mut left) = (0.0, [0f64; 2]);
    while now < 1e7 {
        now += 100.0;
        for chain in chains {
            let _ = fabric.offer(now, Packet { chain, flow: 0, bytes: 16, name: 0 });
        }
        while let Some(departed) = fabric.poll() {
            left[usize::from(departed.packet.chain == chains[1])] += 1.0;
        }
    }
    assert!((left[1] / left[0] / 2.0 - 1.0).abs() < 0.03, "{left:?}");
}

#[test]
fn invalid_times_do_not_lose_packets() {
    for cost in [1e300, f64::INFINITY, f64::NAN, -1.0] {
        let costs = ServiceCosts::default().scaled(Service::Aes128, cost).starting_in(cost);
        let mut fabric = Fabric::new(FabricConfig { costs, ..FabricConfig::default() });
        let chain = fabric.add_chain("aes-128 > ghash".parse().unwrap(), 1).unwrap();
        for (name, now) in [f64::NAN, -1.0, 10.0, f64::INFINITY].into_iter().enumerate() {
            fabric.set_instances(now, Service::Aes128, 1 + name as u32).unwrap();
            fabric.offer(now, Packet { chain, flow: 0, bytes: u32::MAX, name: name as u64 }).unwrap();
        }
        fabric.advance(f64::INFINITY);
        let left: Vec<DepartedPacket> = core::iter::from_fn(|| fabric.poll()).collect();
        assert!(left.iter().map(|departed| departed.packet.name).eq(0..4) && left[0].sojourn_ns() > 1e6, "{left:?}");
        assert_eq!((fabric.instances(Service::Aes128), fabric.under_way()), (4, 0));
    }
}

#[test]
fn set_up_replaces_starting_and_retiring_instances() {
    let mut fabric = Fabric::new(FabricConfig::default());
    let chain = fabric.add_chain("aes-128:serial".parse().unwrap(), 1).unwrap();
    fabric.set_up(Service::Aes128, 4).unwrap();
    for name in 0..4 {
        fabric.offer(0.0, Packet { chain, flow: name, bytes: 16_000, name }).unwrap();
    }
    fabric.set_instances(0.0, Service::Aes128, 1).unwrap();
    fabric.set_up(Service::Aes128, 1).unwrap();
    assert_eq!((fabric.take_window()[0].instances, fabric.area()), (1, 1.0));
    fabric.set_instances(0.0, Service::Aes128, 64).unwrap();
    fabric.set_up(Service::Aes128, 2).unwrap();
    // One of the two is idle and starts a waiting packet; the other is busy.
    fabric.offer(0.0, Packet { chain, flow: 4, bytes: 1600, name: 4 }).unwrap();
    fabric.offer(0.0, Packet { chain, flow: 5, bytes: 1600, name: 5 }).unwrap();
    fabric.set_up(Service::Aes128, 3).unwrap();
    let left: Vec<(u64, f64)> = all_of(&mut fabric).iter().map(|left| (left.packet.name, left.left_ns)).collect();
    assert_eq!(left.len(), 6);
    assert!(left[0].0 == 4 && left[1].0 == 5 && left[0].1 == left[1].1, "{left:?}");
    assert_eq!((fabric.instances(Service::Aes128), fabric.area()), (3, 3.0));
}

#[test]
fn tenants_get_their_shares() {
    let mut fabric = Fabric::new(FabricConfig { queue: 64, ..FabricConfig::default() });
    let graph: Graph = "aes-128 > ghash".parse().unwrap();
    let chains = [fabric.add_chain(graph.clone(), 1).unwrap(), fabric.add_chain(graph, 3).unwrap()];
    let (mut now, mut left) = (0.0, HashMap::<ChainId, f64>::new());
    // Both demand much more than the capacity, one in small packets.
    while now < 1e8 {
        now += 2000.0;
        for (chain, bytes) in chains.iter().zip([64, 1464]) {
            for name in 0..4 {
                let _ = fabric.offer(now, Packet { chain: *chain, flow: name, bytes, name });
            }
        }
        while let Some(departed) = fabric.poll() {
            *left.entry(departed.packet.chain).or_default() += f64::from(departed.packet.bytes.div_ceil(16));
        }
    }
    // Shares apply to blocks, not to packets, whatever their sizes.
    let ratio = left[&chains[1]] / left[&chains[0]];
    assert!((ratio / 3.0 - 1.0).abs() < 0.03, "{ratio}");
    assert!(fabric.refused() > 0);
}

#[test]
fn opposite_orders_of_services_do_not_deadlock() {
    let mut fabric = Fabric::new(FabricConfig { queue: 1, ..FabricConfig::default() });
    // With one place at each service, two full queues could wait for each other.
    let one = fabric.add_chain("aes-128 > sha-1:serial > compare".parse().unwrap(), 1).unwrap();
    let other = fabric.add_chain("sha-1:serial > aes-128 > compare".parse().unwrap(), 1).unwrap();
    let (mut taken, mut now) = (0, 0.0);
    for name in 0..4000 {
        now += 1000.0;
        for chain in [one, other] {
            taken += usize::from(fabric.offer(now, Packet { chain, flow: 0, bytes: 300, name }).is_ok());
        }
    }
    assert!(taken > 100);
    assert_eq!(all_of(&mut fabric).len(), taken);
    assert_eq!(fabric.under_way(), 0);
}

#[test]
fn area_is_occupied_at_once_and_freed_after_use() {
    let config = FabricConfig { area: 4.0, ..FabricConfig::default() };
    let mut fabric = Fabric::new(config);
    let chain = fabric.add_chain("aes-128:serial".parse().unwrap(), 1).unwrap();
    assert_eq!(fabric.set_instances(0.0, Service::Aes128, 0), Err(FabricError::NoInstance(Service::Aes128)));
    assert_eq!(fabric.set_instances(0.0, Service::Zuc, 1), Err(FabricError::NotUsed(Service::Zuc)));
    assert_eq!(fabric.set_instances(0.0, Service::Aes128, 5), Err(FabricError::Area { needed: 5.0, has: 4.0 }));
    fabric.set_instances(0.0, Service::Aes128, 4).unwrap();
    assert_eq!((fabric.area(), fabric.instances(Service::Aes128)), (4.0, 1));
    // Configuration takes 2 ms by default.
    fabric.advance(2e6);
    assert_eq!(fabric.instances(Service::Aes128), 4);
    assert!((fabric.area_seconds() - 4.0 * 2e-3).abs() < 1e-9);
    // Three instances work and the fourth retires at once. Then all but one should retire.
    for name in 0..3 {
        fabric.offer(2e6, Packet { chain, flow: name, bytes: 1600, name }).unwrap();
    }
    fabric.set_instances(2e6, Service::Aes128, 1).unwrap();
    assert_eq!(fabric.area(), 3.0);
    // Retiring instances may be needed again.
    fabric.set_instances(2e6 + 10.0, Service::Aes128, 3).unwrap();
    assert_eq!(fabric.area(), 3.0, "no new instance is configured");
    fabric.set_instances(2e6 + 20.0, Service::Aes128, 1).unwrap();
    assert_eq!(all_of(&mut fabric).len(), 3);
    assert_eq!((fabric.area(), fabric.instances(Service::Aes128)), (1.0, 1));
    // Instances under configuration are removed first.
    fabric.set_instances(9e6, Service::Aes128, 3).unwrap();
    fabric.set_instances(9e6, Service::Aes128, 1).unwrap();
    fabric.advance(20e6);
    assert_eq!(fabric.instances(Service::Aes128), 1);
}

#[derive(Clone, Debug)]
enum FabricAction {
    Offer { chain: usize, flow: u64, bytes: u32 },
    Set { service: usize, instances: u32 },
}

fn act() -> impl Strategy<Value = (u32, FabricAction)> {
    let offer =
        (0usize..3, 0u64..4, 0u32..2000).prop_map(|(chain, flow, bytes)| FabricAction::Offer { chain, flow, bytes });
    let set = (0usize..4, 0u32..6).prop_map(|(service, instances)| FabricAction::Set { service, instances });
    (0u32..60_000, prop_oneof![6 => offer, 1 => set])
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Accepted packets leave exactly once, in the order of their flow, and no earlier than possible, for any changes.
    #[test]
    fn packets_leave_once_and_in_order(acts in prop::collection::vec(act(), 1..250), queue in 1usize..20) {
        let costs = ServiceCosts::default().starting_in(30_000.0);
        let config = FabricConfig { costs, queue, flows: 2, area: 12.0 };
        let mut fabric = Fabric::new(config);
        let chains = [
            fabric.add_chain(Suite::Aes128Gcm.graph(TransformDirection::Undo), 1).unwrap(),
            fabric.add_chain(Suite::Aes128CbcSha.graph(TransformDirection::Apply), 2).unwrap(),
            fabric.add_chain(Suite::Aes128CbcSha.graph(TransformDirection::Undo), 3).unwrap(),
        ];
        // All services are shared by at least two chains, so changes affect several tenants.
        let services = [Service::Aes128, Service::Ghash, Service::Sha1, Service::KeyExpansion];
        let (mut now, mut names) = (0.0, HashMap::<(ChainId, u64), Vec<u64>>::new());
        for (name, (pause, act)) in (0..).zip(&acts) {
            now += f64::from(*pause);
            match act {
                FabricAction::Offer { chain, flow, bytes } => {
                    let packet = Packet { chain: chains[*chain], flow: *flow, bytes: *bytes, name };
                    if fabric.offer(now, packet).is_ok() {
                        names.entry((packet.chain, *flow)).or_default().push(name);
                    }
                }
                FabricAction::Set { service, instances } => {
                    let _ = fabric.set_instances(now, services[*service], *instances);
                    prop_assert!(fabric.area() <= 12.0 + 1e-6);
                }
            }
        }
        let mut before = 0.0;
        for departed in all_of(&mut fabric) {
            let Packet { chain, flow, name, bytes } = departed.packet;
            let of_flow = names.get_mut(&(chain, flow)).unwrap();
            prop_assert_eq!(of_flow.remove(0), name);
            // 26 ns is the time of the fastest service for a block, shared by fewer than six instances.
            prop_assert!(departed.left_ns >= before && departed.sojourn_ns() >= f64::from(bytes.div_ceil(16).max(1)) * 26.0 / 6.0);
            before = departed.left_ns;
        }
        prop_assert!(names.values().all(Vec::is_empty));
        prop_assert_eq!(fabric.under_way(), 0);
    }
}
