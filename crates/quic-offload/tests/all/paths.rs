//! Several paths of one connection (draft-ietf-quic-multipath-21).

use crate::rig::{self, World, nic};
use core::net::IpAddr;
use core::time::Duration;
use nic_sim::NicConfig;
use offload_wire::LinkConfig;
use quic_offload::{Config, PathError};

/// IPv4 and IPv6 are two ways between the hosts.
#[test]
fn two_paths_carry_one_stream_and_one_may_go() {
    let link = LinkConfig { delay: Duration::from_micros(5), ..LinkConfig::default() };
    for queues in [1, 4] {
        let nic = NicConfig { queues, ..nic() };
        let mut world = World::new(8, [nic.clone(), nic], link.clone());
        let config = |name| Config { paths: 3, ..world.config(name) };
        let (client, _driver) = world.client(config("near"));
        let (server, _server_driver) = world.server(config("far"));
        let (tls, first, second) = (world.client_tls(), world.to(false), world.to(true));
        let from: IpAddr = world.near.ipv6_address().into();
        let serving = server.clone();
        let far = world.far.spawn("server", async move {
            let connection = serving.accept().await.unwrap();
            for _ in 0..2 {
                let mut stream = connection.accept_uni().await.unwrap();
                assert_eq!(rig::read_all(&mut stream).await, 8 << 20);
            }
            connection.closed().await;
        });
        let asking = client.clone();
        let near = world.near.spawn("client", async move {
            let connection = rig::connect(&asking, &tls, first).await.unwrap();
            let path = connection.open_path(second, Some(from)).await.unwrap();
            assert_eq!(path, 1);
            let send = async || {
                let mut stream = connection.open_uni().await.unwrap();
                for at in (0..8 << 20).step_by(1 << 18) {
                    stream.send(rig::body(at, 1 << 18)).await.unwrap();
                }
                stream.finish().unwrap();
                stream.acknowledged().await.unwrap();
            };
            send().await;
            let sent = [0, 1].map(|path| connection.path_statistics(path).unwrap().sent);
            assert_eq!(connection.statistics().unwrap().paths, 2);
            connection.close_path(0).unwrap();
            send().await;
            assert_eq!(connection.statistics().unwrap().paths, 1);
            assert!(matches!(connection.close_path(9), Err(PathError::Refused(_))));
            connection.close(0, "");
            sent
        });
        let sent = world.bed.run(async move {
            let sent = near.await;
            far.await;
            sent
        });
        assert!(sent.iter().all(|sent| *sent > 100), "both are used: {sent:?}");
        let (client, server) = (client.counters(), server.counters());
        assert!(server.opened_by_device > 10_000 && server.opened_by_software < 40, "{server:?}");
        assert!(client.sealed_by_device > 10_000 && client.sealed_by_software < 40, "{client:?}");
        assert!(!world.wire.contains(rig::MARKER));
    }
}

#[test]
fn a_peer_without_multipath_says_so() {
    let mut world = World::new(9, [nic(), nic()], LinkConfig::default());
    let (client, _driver) = world.client(Config { paths: 3, ..world.config("near") });
    let (server, _server_driver) = world.server(world.config("far"));
    let (tls, to) = (world.client_tls(), world.to(false));
    let near = world.near.spawn("client", async move {
        let connection = rig::connect(&client, &tls, to).await.unwrap();
        connection.open_path(to, None).await
    });
    let opened = world.bed.run(near);
    assert!(matches!(opened, Err(PathError::Refused(_))), "{opened:?}");
    drop(server);
}
