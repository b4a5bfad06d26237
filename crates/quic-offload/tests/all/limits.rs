//! Usage limits of keys (RFC 9001 6.6), in software and in a device.

use crate::rig::{self, QuicTestbed, TransferPlan, nic};
use bytes::Bytes;
use core::time::Duration;
use offload_wire::LinkConfig;
use quic_offload::{AeadLimits, Closed, Offload};

const WAYS: [Offload; 2] = [Offload::Both, Offload::None];

#[test]
fn keys_change_before_their_limit() {
    for offload in WAYS {
        // Slow enough for the state machine, which updates keys at most every three probe timeouts.
        let link = LinkConfig { rate: Some(50_000_000), ..LinkConfig::default() };
        let mut world = QuicTestbed::new(11, [nic(), nic()], link);
        let limits = AeadLimits { sealed: 12_000, ..AeadLimits::default() };
        let config = |name| world.config(name).with(|c| (c.offload, c.limits) = (offload, limits));
        let configs = [config("near"), config("far")];
        let done = world
            .transfer_without_looking(configs, TransferPlan { bytes: [10_000_000, 1000], ..TransferPlan::default() });
        assert!(done.updates >= 3, "{} updates by {offload:?}", done.updates);
        assert_eq!((done.client.keys_used_up, done.server.keys_used_up), (0, 0));
    }
}

/// If keys cannot be updated fast enough, the connection ends before a key exceeds its limit.
#[test]
fn connection_ends_at_the_limit_of_its_key() {
    for offload in WAYS {
        let mut world = QuicTestbed::new(12, [nic(), nic()], LinkConfig::default());
        let limits = AeadLimits { sealed: 10_500, ..AeadLimits::default() };
        let (client, _driver) = world.client(world.config("near").with(|c| (c.offload, c.limits) = (offload, limits)));
        let (server, _server_driver) = world.server(world.config("far"));
        let (tls, to) = (world.client_tls(), world.to(false));
        let far = world.far.spawn("server", async move {
            let connection = server.accept().await.unwrap();
            let mut stream = connection.accept_uni().await.unwrap();
            while let Ok(Some(_)) = stream.receive(1 << 20).await {}
            connection.closed().await
        });
        let sending = client.clone();
        let near = world.near.spawn("client", async move {
            let connection = rig::connect(&sending, &tls, to).await.unwrap();
            let mut stream = connection.open_uni().await.unwrap();
            while stream.send(Bytes::from(vec![0; 1 << 20])).await.is_ok() {}
            connection.closed().await
        });
        let (near, far) = world.bed.run(async move { (near.await, far.await) });
        assert!(matches!(&near, Closed::Protocol(why) if why.contains("AEAD_LIMIT_REACHED")), "{near:?}");
        assert!(matches!(far, Closed::ByPeer { code: 0x0f, .. }), "{far:?}");
        let counters = client.counters();
        let sealed = counters.sealed_by_device + counters.sealed_by_software;
        // The first generation is replaced after 1,000 packets at most.
        assert!((10_000..11_600).contains(&sealed), "{counters:?}");
        assert_eq!(counters.keys_used_up, 1);
    }
}

/// Forged packets with valid connection IDs end the connection at the limit. Each forgery counts once, whether or not a
/// device tried it first.
#[test]
fn forged_packets_are_counted_once_and_end_the_connection() {
    for offload in WAYS {
        let mut world = QuicTestbed::new(13, [nic(), nic()], LinkConfig::default());
        let (client, _driver) = world.client(world.config("near").with(|c| c.offload = offload));
        let limits = AeadLimits { forged: 50, ..AeadLimits::default() };
        let (server, _server_driver) =
            world.server(world.config("far").with(|c| (c.offload, c.limits) = (offload, limits)));
        let (tls, to) = (world.client_tls(), world.to(false));
        let (sent, heard) = tokio::sync::oneshot::channel();
        let far = world.far.spawn("server", async move {
            let connection = server.accept().await.unwrap();
            let mut stream = connection.accept_uni().await.unwrap();
            assert_eq!(rig::read_all(&mut stream).await, 100_000);
            let _ = sent.send(());
            connection.closed().await
        });
        let (host, wire) = (world.near.clone(), world.wire.clone());
        let near = world.near.spawn("client", async move {
            let connection = rig::connect(&client, &tls, to).await.unwrap();
            let mut stream = connection.open_uni().await.unwrap();
            stream.send(rig::body(0, 100_000)).await.unwrap();
            stream.finish().unwrap();
            heard.await.unwrap();
            // All altered copies of the last packet to the server.
            let seen = wire.seen();
            let to_server =
                |frame: &[u8]| frame.len() > 1000 && frame[36..38] == rig::PORT.to_be_bytes() && frame[42] < 0x80;
            let last = seen.iter().rev().find(|seen| to_server(&seen.frame.data)).unwrap();
            let mut packet = last.frame.data[42..].to_vec();
            let socket = host.stack().bind_udp(Some(6000)).unwrap();
            let mut forge = async |count: usize| {
                for _ in 0..count {
                    *packet.last_mut().unwrap() ^= 0x55;
                    packet[40] = packet[40].wrapping_add(1);
                    socket.send_to(Bytes::from(packet.clone()), to).await.unwrap();
                    host.runtime().sleep(Duration::from_micros(10)).await;
                }
            };
            forge(50).await;
            let mut more = connection.open_uni().await.unwrap();
            more.send(Bytes::from_static(b"still here")).await.unwrap();
            more.finish().unwrap();
            more.acknowledged().await.unwrap();
            forge(1).await;
            connection.closed().await
        });
        let (near, far) = world.bed.run(async move { (near.await, far.await) });
        assert!(matches!(&far, Closed::Protocol(why) if why.contains("integrity")), "{offload:?}: {far:?}");
        // RFC 9001 6.6: the connection is unusable, and the state machine sends nothing more.
        assert!(matches!(near, Closed::PeerFound(_) | Closed::TimedOut), "{near:?}");
        let tried = world.counters().value("quic_rx_auth_fail");
        assert_eq!(tried > 0, offload == Offload::Both, "the device tried {tried}");
    }
}
