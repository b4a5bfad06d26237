//! Several paths of one connection (draft-ietf-quic-multipath-21).

use crate::rig::{self, QuicTestbed, nic};
use bytes::Bytes;
use core::net::IpAddr;
use core::time::Duration;
use nic_sim::NicConfig;
use offload_base::Instant;
use offload_wire::impairment::WireCut;
use offload_wire::{LinkConfig, Overflow};
use quic_offload::{Closed, Connection, Offload, PathError};

/// IPv4 and IPv6 are two paths between the hosts.
#[test]
fn stream_survives_the_loss_of_one_of_two_paths() {
    let link = LinkConfig { delay: Duration::from_micros(5), ..LinkConfig::default() };
    for queues in [1, 4] {
        let nic = NicConfig { queues, ..nic() };
        let mut world = QuicTestbed::new(8, [nic.clone(), nic], link.clone());
        let config = |name| world.config(name).with(|c| c.paths = 3);
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
            assert_eq!(connection.statistics().paths, 2);
            // The second stream has only the other path.
            connection.close_path(0).unwrap();
            send().await;
            assert_eq!(connection.statistics().paths, 1);
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
        // Software opens only the first packets of each path's connection IDs.
        assert!(server.opened_by_device > 10_000 && server.opened_by_software < 40, "{server:?}");
        assert!(client.sealed_by_device > 10_000 && client.sealed_by_software < 40, "{client:?}");
        assert!(!world.wire.contains(rig::MARKER));
    }
}

/// The first wire is cut half-way. Until then both ends avoid the backup, although only the client declared it.
#[test]
fn backup_path_carries_nothing_until_the_other_fails() {
    for offload in [Offload::Both, Offload::None] {
        let link = LinkConfig { delay: Duration::from_millis(1), ..LinkConfig::default() };
        let mut world = QuicTestbed::wired(15, [nic(), nic()], vec![link; 2]);
        let config = |name| world.config(name).with(|c| (c.paths, c.offload) = (2, offload));
        let (client, _driver) = world.client(config("near"));
        let (server, _server_driver) = world.server(config("far"));
        let (tls, first, second) = (world.client_tls(), world.to(false), world.to(true));
        let (from, host): (IpAddr, _) = (world.near.ipv6_address().into(), world.near.clone());
        let cut = Instant::from_nanos(1_000_000_000);
        world.bed.cable(0).impair(|| WireCut::new(cut..Instant::MAX));
        let sent_on =
            |connection: &Connection| [0, 1].map(|path| connection.path_statistics(path).map(|path| path.sent));
        let far = world.far.spawn("server", async move {
            let connection = server.accept().await.unwrap();
            let (mut send, mut receive) = connection.accept_bi().await.unwrap();
            while let Some(data) = receive.receive(1 << 20).await.unwrap() {
                send.send(data).await.unwrap();
            }
            send.finish().unwrap();
            connection.closed().await;
            sent_on(&connection)
        });
        let near = world.near.spawn("client", async move {
            let connection = rig::connect(&client, &tls, first).await.unwrap();
            let backup = connection.open_path(second, Some(from)).await.unwrap();
            connection.set_backup(backup, true).unwrap();
            assert!(matches!(connection.set_backup(9, true), Err(PathError::Refused(_))));
            // Path validation and MTU discovery are over before the counts start.
            host.runtime().sleep(Duration::from_millis(100)).await;
            let mut sent = vec![sent_on(&connection)];
            let (mut send, mut receive) = connection.open_bi().await.unwrap();
            for half in 0..2 {
                for at in (0..1 << 20).step_by(1 << 16) {
                    send.send(rig::body((half << 20) + at, 1 << 16)).await.unwrap();
                }
                let mut left = 1 << 20;
                while left > 0 {
                    left -= receive.receive(left).await.unwrap().unwrap().len();
                }
                sent.push(sent_on(&connection));
                if half == 0 {
                    assert!(host.now() < cut);
                    host.runtime().sleep(cut - host.now()).await;
                }
            }
            let received = connection.statistics().bytes_received;
            connection.close(0, "");
            (sent, received)
        });
        let (sent, received) = world.bed.run(near);
        drop(far);
        let [before, half, after] = sent.try_into().unwrap();
        let on_backup = |sent: [Option<u64>; 2]| sent[1].unwrap();
        // A few probes and keep-alives use the backup too.
        assert!(on_backup(half) - on_backup(before) < 10, "{offload:?}: {before:?} {half:?}");
        assert!(on_backup(after) - on_backup(half) > 700, "{offload:?}: {half:?} {after:?}");
        assert!(received > 2 << 20);
    }
}

/// One path per wire. One wire is cut, and the stream continues on the other wires.
#[test]
fn stream_survives_a_cut_wire() {
    for offload in [Offload::Both, Offload::None] {
        let link = LinkConfig {
            rate: Some(1_000_000_000),
            delay: Duration::from_millis(1),
            overflow: Overflow::Drop,
            ..LinkConfig::default()
        };
        let mut world = QuicTestbed::wired(10, [nic(), nic()], vec![link; 3]);
        let config = |name| world.config(name).with(|c| (c.paths, c.offload) = (3, offload));
        let (client, _driver) = world.client(config("near"));
        let (server, _server_driver) = world.server(config("far"));
        let (tls, first) = (world.client_tls(), world.to(false));
        let routes: [(IpAddr, IpAddr); 2] = [
            (world.near.ipv6_address().into(), world.far.ipv6_address().into()),
            (world.near.link_local_address().into(), world.far.link_local_address().into()),
        ];
        world.bed.cable(1).impair(|| WireCut::new(Instant::from_nanos(60_000_000)..Instant::MAX));
        let host = world.far.clone();
        let far = world.far.spawn("server", async move {
            let connection = server.accept().await.unwrap();
            let mut stream = connection.accept_uni().await.unwrap();
            let (mut at, mut longest, mut last) = (0, Duration::ZERO, host.now());
            while let Some(data) = stream.receive(1 << 20).await.unwrap() {
                assert!(data == rig::body(at, data.len()), "from {at} on");
                at += data.len() as u64;
                longest = longest.max(host.now() - last);
                last = host.now();
            }
            connection.closed().await;
            (at, longest)
        });
        let asking = client.clone();
        let near = world.near.spawn("client", async move {
            let connection = rig::connect(&asking, &tls, first).await.unwrap();
            for (from, to) in routes {
                connection.open_path((to, rig::PORT).into(), Some(from)).await.unwrap();
            }
            let mut stream = connection.open_uni().await.unwrap();
            for at in (0..48 << 20).step_by(1 << 18) {
                stream.send(rig::body(at, 1 << 18)).await.unwrap();
            }
            stream.finish().unwrap();
            stream.acknowledged().await.unwrap();
            let sent = [0, 2].map(|path| connection.path_statistics(path).unwrap().sent);
            assert_eq!(connection.statistics().paths, 2);
            connection.close(0, "");
            sent
        });
        let (sent, (bytes, longest)) = world.bed.run(async move { (near.await, far.await) });
        assert_eq!(bytes, 48 << 20);
        assert!(sent.iter().all(|sent| *sent > 5000), "the others are used: {sent:?}");
        assert_eq!(client.counters().silent_paths, 1);
        // A path is found silent after about three probe timeouts of both ends, with acknowledgments within 5 ms. The
        // state machine retransmits when it discards the path, three probe timeouts later.
        assert!(longest < 3 * PROBE_TIMEOUT, "{offload:?}: nothing for {longest:?}");
    }
}

/// The path's wire is cut from the beginning, and keep-alives are on: the path never opens, and another one does. The
/// result is the same if the application stops waiting earlier.
#[test]
fn path_without_answers_ends() {
    for (offload, waits) in
        [(Offload::Both, true), (Offload::None, true), (Offload::Both, false), (Offload::None, false)]
    {
        let link = LinkConfig { delay: Duration::from_millis(1), ..LinkConfig::default() };
        let mut world = QuicTestbed::wired(12, [nic(), nic()], vec![link; 3]);
        world.bed.cable(1).impair(|| WireCut::new(Instant::ZERO..Instant::MAX));
        let keep_alive = Some(Duration::from_millis(100));
        let config = |name| world.config(name).with(|c| (c.paths, c.keep_alive, c.offload) = (2, keep_alive, offload));
        let (client, _driver) = world.client(config("near"));
        let (server, _server_driver) = world.server(config("far"));
        let (tls, first, host) = (world.client_tls(), world.to(false), world.near.clone());
        let [cut, other]: [(IpAddr, IpAddr); 2] = [
            (world.near.ipv6_address().into(), world.far.ipv6_address().into()),
            (world.near.link_local_address().into(), world.far.link_local_address().into()),
        ];
        let far = world.far.spawn("server", async move { server.accept().await.unwrap().closed().await });
        let near = world.near.spawn("client", async move {
            let connection = rig::connect(&client, &tls, first).await.unwrap();
            let began = host.now();
            // Either the path times out, or the application gives up after a second.
            let asked = Duration::from_secs(if waits { 60 } else { 1 });
            let opened = tokio::select! {
                opened = connection.open_path((cut.1, rig::PORT).into(), Some(cut.0)) => Some(opened),
                () = host.runtime().sleep(asked) => None,
            };
            let took = host.now() - began;
            // The failed path does not count against the limit.
            let other = connection.open_path((other.1, rig::PORT).into(), Some(other.0)).await;
            connection.close(7, "");
            (opened, took, other)
        });
        let ((opened, took, other), closed) = world.bed.run(async move { (near.await, far.await) });
        assert_eq!(opened, waits.then_some(Err(PathError::NoAnswer)), "{offload:?}");
        assert!(!waits || (3..=4).contains(&took.as_secs()), "{took:?}");
        assert_eq!((other, closed), (Ok(2), Closed::ByPeer { code: 7, reason: Bytes::new() }), "{offload:?}");
    }
}

/// Two paths that carry one stream alternately: more pieces wait for earlier ones than the state machine keeps.
#[test]
fn one_stream_uses_equal_and_unequal_paths() {
    for delays in [[5, 5], [5, 20]] {
        let links = delays.map(|delay| LinkConfig {
            rate: Some(1_000_000_000),
            delay: Duration::from_millis(delay),
            overflow: Overflow::Drop,
            queue_limit: 2_500_000,
            ..LinkConfig::default()
        });
        let mut world = QuicTestbed::wired(11, [nic(), nic()], links);
        // The windows exceed the product of bandwidth and delay of both paths together.
        let config =
            |name| world.config(name).with(|c| (c.paths, c.stream_window, c.receive_window) = (2, 40 << 20, 40 << 20));
        let (client, _driver) = world.client(config("near").with(|c| c.send_window = 40 << 20));
        let (server, _server_driver) = world.server(config("far"));
        let (tls, first, second) = (world.client_tls(), world.to(false), world.to(true));
        let from: IpAddr = world.near.ipv6_address().into();
        let far = world.far.spawn("server", async move {
            let connection = server.accept().await.unwrap();
            let mut stream = connection.accept_uni().await.unwrap();
            let bytes = rig::read_all(&mut stream).await;
            (bytes, connection.closed().await)
        });
        let near = world.near.spawn("client", async move {
            let connection = rig::connect(&client, &tls, first).await.unwrap();
            connection.open_path(second, Some(from)).await.unwrap();
            let mut stream = connection.open_uni().await.unwrap();
            for at in (0..64 << 20).step_by(1 << 18) {
                stream.send(rig::body(at, 1 << 18)).await.unwrap();
            }
            stream.finish().unwrap();
            stream.acknowledged().await.unwrap();
            let sent = [0, 1].map(|path| connection.path_statistics(path).unwrap().sent);
            connection.close(7, "");
            sent
        });
        let (sent, (bytes, closed)) = world.bed.run(async move { (near.await, far.await) });
        assert_eq!(bytes, 64 << 20, "{delays:?}");
        assert!(matches!(closed, Closed::ByPeer { code: 7, .. }), "{closed:?}");
        assert!(sent.iter().all(|sent| *sent > 5000), "{delays:?}: both are used: {sent:?}");
    }
}

/// RFC 9002 6.2.1: a round trip of 2 ms, four times its variation, and 25 ms for the peer's delay.
const PROBE_TIMEOUT: Duration = Duration::from_millis(2 + 1 + 25);

#[test]
fn peer_without_multipath_is_reported() {
    let mut world = QuicTestbed::new(9, [nic(), nic()], LinkConfig::default());
    let (client, _driver) = world.client(world.config("near").with(|c| c.paths = 3));
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

/// Each end abandons another path at the same time, so no path is left. The client opens one more, and the streams
/// continue, even if a connection may have only two paths.
#[test]
fn ends_that_abandon_different_paths_use_a_new_one() {
    for paths in [2, 3] {
        let link = LinkConfig { delay: Duration::from_millis(1), ..LinkConfig::default() };
        let mut world = QuicTestbed::new(13, [nic(), nic()], link);
        let config = |name| world.config(name).with(|c| c.paths = paths);
        let (client, _driver) = world.client(config("near"));
        let (server, _server_driver) = world.server(config("far"));
        let (tls, first, second) = (world.client_tls(), world.to(false), world.to(true));
        let from: IpAddr = world.near.ipv6_address().into();
        let at = Instant::from_nanos(100_000_000);
        let host = world.far.clone();
        let far = world.far.spawn("server", async move {
            let connection = server.accept().await.unwrap();
            let mut stream = connection.accept_uni().await.unwrap();
            assert_eq!(rig::read_all(&mut stream).await, 10);
            host.runtime().sleep(at - host.now()).await;
            connection.close_path(1).unwrap();
            let mut stream = connection.accept_uni().await.unwrap();
            (rig::read_all(&mut stream).await, connection.closed().await)
        });
        let (host, asking) = (world.near.clone(), client.clone());
        let near = world.near.spawn("client", async move {
            let connection = rig::connect(&asking, &tls, first).await.unwrap();
            connection.open_path(second, Some(from)).await.unwrap();
            let mut stream = connection.open_uni().await.unwrap();
            stream.send(rig::body(0, 10)).await.unwrap();
            stream.finish().unwrap();
            stream.acknowledged().await.unwrap();
            host.runtime().sleep(at - host.now()).await;
            // The server closes path 1 at the same moment.
            connection.close_path(0).unwrap();
            let mut stream = connection.open_uni().await.unwrap();
            stream.send(rig::body(0, 1 << 20)).await.unwrap();
            stream.finish().unwrap();
            stream.acknowledged().await.unwrap();
            let went_on = host.now() - at;
            connection.close(7, "");
            went_on
        });
        let (went_on, (bytes, closed)) = world.bed.run(async move { (near.await, far.await) });
        assert_eq!(bytes, 1 << 20);
        assert!(matches!(closed, Closed::ByPeer { code: 7, .. }), "{closed:?}");
        assert_eq!(client.counters().reopened_paths, 1);
        assert!(went_on < Duration::from_millis(500), "{paths} paths: {went_on:?}");
    }
}

/// A client without any path reports this. Its peer hears nothing more and times out.
#[test]
fn connection_without_a_path_ends() {
    let link = LinkConfig { delay: Duration::from_millis(1), ..LinkConfig::default() };
    let mut world = QuicTestbed::new(14, [nic(), nic()], link);
    let config = |name| world.config(name).with(|c| c.paths = 2);
    let (client, _driver) = world.client(config("near"));
    let (server, _server_driver) = world.server(config("far"));
    let (tls, first, second) = (world.client_tls(), world.to(false), world.to(true));
    let from: IpAddr = world.near.ipv6_address().into();
    let at = Instant::from_nanos(100_000_000);
    world.bed.cable(0).impair(|| WireCut::new(at + Duration::from_millis(2)..Instant::MAX));
    let host = world.far.clone();
    let far = world.far.spawn("server", async move {
        let connection = server.accept().await.unwrap();
        host.runtime().sleep(at - host.now()).await;
        connection.close_path(1).unwrap();
        connection.closed().await
    });
    let host = world.near.clone();
    let near = world.near.spawn("client", async move {
        let connection = rig::connect(&client, &tls, first).await.unwrap();
        connection.open_path(second, Some(from)).await.unwrap();
        host.runtime().sleep(at - host.now()).await;
        connection.close_path(0).unwrap();
        connection.closed().await
    });
    for closed in world.bed.run(async move { [near.await, far.await] }) {
        assert!(matches!(closed, Closed::NoPath | Closed::TimedOut), "{closed:?}");
    }
}
