//! Transfers between a client and a server with devices at both ends, at one end or at neither.

use crate::rig::{QuicTestbed, TransferPlan, nic, without_quic};
use core::time::Duration;
use nic_sim::{NicConfig, QuicEngineConfig};
use offload_wire::LinkConfig;
use quic_offload::Offload;

const MEGABYTE: usize = 1 << 20;

fn world(nics: [NicConfig; 2]) -> QuicTestbed {
    QuicTestbed::new(1, nics, LinkConfig::default())
}

#[test]
fn software_carries_streams_in_both_directions() {
    for six in [false, true] {
        let mut world = world([without_quic(), without_quic()]);
        let configs = [world.config("near"), world.config("far")];
        let done = world.transfer(configs, six, MEGABYTE, MEGABYTE / 2);
        assert_eq!((done.client.sealed_by_device, done.client.opened_by_device), (0, 0));
        assert!(done.client.sealed_by_software > 700 && done.server.opened_by_software > 700);
        assert_eq!((done.server.connections, done.server.contexts), (1, 0));
    }
}

/// All combinations of offload at both ends.
#[test]
fn devices_seal_and_open_as_configured() {
    let all = [Offload::Both, Offload::Transmit, Offload::Receive, Offload::None];
    for (near, far) in all.into_iter().flat_map(|near| all.map(|far| (near, far))) {
        let mut world = world([nic(), nic()]);
        let config = |name, offload| world.config(name).with(|c| c.offload = offload);
        let configs = [config("near", near), config("far", far)];
        let done = world.transfer(configs, false, MEGABYTE, MEGABYTE / 2);
        for (end, offload) in [(done.client, near), (done.server, far)] {
            let seals = matches!(offload, Offload::Both | Offload::Transmit);
            let opens = matches!(offload, Offload::Both | Offload::Receive);
            assert_eq!(end.sealed_by_device > 300, seals, "{near:?} {far:?} {end:?}");
            assert_eq!(end.opened_by_device > 300, opens, "{near:?} {far:?} {end:?}");
            // The first packets are sealed before the contexts exist: at most one per connection ID and key.
            assert!(!seals || end.sealed_by_software < 20, "{near:?} {far:?} {end:?}");
            assert!(!opens || end.opened_by_software < 20, "{near:?} {far:?} {end:?}");
            assert_eq!(end.dropped + end.lost_in_device + end.refused_by_device, 0);
        }
        let counters = world.counters();
        assert_eq!(counters.value("quic_tx_drop_pkts"), 0);
        assert_eq!(world.near.device_contexts() + world.far.device_contexts(), 0, "they were given back");
    }
}

/// Equal seeds put equal bytes on the wire.
#[test]
fn equal_seeds_send_equal_bytes() {
    let run = || {
        let mut world = world([nic(), nic()]);
        let configs = [world.config("near"), world.config("far")];
        let done = world.transfer(configs, false, MEGABYTE, 1000);
        (done.client, done.server, world.bed.now(), world.counters().iter().collect::<Vec<_>>())
    };
    assert_eq!(run(), run());
}

#[test]
fn several_queues_and_no_segmentation_change_nothing() {
    for queues in [1, 2, 4] {
        for udp_segmentation in [true, false] {
            let nic = NicConfig { queues, udp_segmentation, ..nic() };
            let mut world = world([nic.clone(), nic]);
            let configs = [world.config("near"), world.config("far")];
            let done = world.transfer(configs, false, MEGABYTE, MEGABYTE / 4);
            assert!(done.server.opened_by_device > 600 && done.client.sealed_by_device > 600, "{done:?}");
        }
    }
}

/// Without protection the plain text is visible, which shows that the other tests look in the right place.
#[test]
fn unprotected_bytes_are_visible() {
    let mut world = world([nic(), nic()]);
    let config = |name| world.config(name).with(|c| c.offload = Offload::Unprotected);
    let configs = [config("near"), config("far")];
    let done =
        world.transfer_without_looking(configs, TransferPlan { bytes: [MEGABYTE, 1000], ..TransferPlan::default() });
    assert!(world.wire.contains(crate::rig::MARKER));
    assert_eq!(done.client.sealed_by_device + done.client.sealed_by_software + done.server.opened_by_device, 0);
}

/// A connection without room for its context is sealed in software, and gets a context when others leave.
#[test]
fn full_device_is_asked_again() {
    // Two contexts are enough for both directions of the first connection.
    let mut world = world([NicConfig { engines: QuicEngineConfig { contexts: 2 }.into(), ..nic() }, nic()]);
    let (client, _driver) = world.client(world.config("near"));
    let (server, _server_driver) = world.server(world.config("far"));
    let (tls, to) = (world.client_tls(), world.to(false));
    let far = world.far.spawn("server", async move {
        for _ in 0..2 {
            let connection = server.accept().await.unwrap();
            loop {
                let Ok(mut stream) = connection.accept_uni().await else { break };
                crate::rig::read_all(&mut stream).await;
            }
        }
    });
    let (near, counted) = (world.near.clone(), client.clone());
    let asking = world.near.spawn("client", async move {
        let first = crate::rig::connect(&client, &tls, to).await.unwrap();
        near.runtime().sleep(Duration::from_millis(1)).await;
        let second = crate::rig::connect(&client, &tls, to).await.unwrap();
        let send = async |connection: &quic_offload::Connection| {
            let mut stream = connection.open_uni().await.unwrap();
            stream.send(crate::rig::body(0, 300_000)).await.unwrap();
            stream.finish().unwrap();
            stream.acknowledged().await.unwrap();
            client.counters()
        };
        let by_first = send(&first).await;
        let by_second = send(&second).await;
        assert_eq!(by_first.sealed_by_device, by_second.sealed_by_device, "there is no room for the second");
        assert!(by_second.contexts_refused > 0);
        drop(first);
        // The wait before a full device is asked again grows with each refusal.
        near.runtime().sleep(Duration::from_millis(2000)).await;
        let _ = send(&second).await;
        let came_back = send(&second).await;
        drop(second);
        (by_second, came_back)
    });
    let (before, after) = world.bed.run(async move {
        let result = asking.await;
        far.await;
        result
    });
    assert!(after.sealed_by_device > before.sealed_by_device + 100, "{before:?} {after:?}");
    drop(counted);
}
