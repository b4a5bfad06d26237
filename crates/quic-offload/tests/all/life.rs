//! The lifecycle of connections and streams: limits, address validation, datagrams, resets, stopped streams, dropped
//! halves, cancelled futures.

use crate::rig::{self, QuicTestbed, nic, without_quic};
use bytes::Bytes;
use core::time::Duration;
use offload_base::Seed;
use offload_testbed::identity::{Randomness, client_config, server_config};
use offload_wire::LinkConfig;
use quic_offload::{ClientTls, Closed, ConnectError, ServerTls, StreamError, TokioEndpoint};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

fn world() -> QuicTestbed {
    QuicTestbed::new(2, [nic(), without_quic()], LinkConfig::default())
}

#[test]
fn clients_prove_their_address_under_load() {
    let mut world = world();
    let far = world.config("far").with(|c| c.retry_above = 0);
    let done = world.transfer([world.config("near"), far], false, 10_000, 10_000);
    assert_eq!((done.server.retries, done.server.connections), (1, 1));
}

#[test]
fn connections_beyond_the_limit_are_refused() {
    let mut world = world();
    let (client, _driver) = world.client(world.config("near").with(|c| c.max_connections = 2));
    let (server, _server_driver) = world.server(world.config("far").with(|c| c.max_connections = 1));
    let (tls, to) = (world.client_tls(), world.to(false));
    let near = world.near.spawn("client", async move {
        let first = rig::connect(&client, &tls, to).await;
        let second = rig::connect(&client, &tls, to).await;
        let third = client.connect(&tls, to, "server.nic-offload.test").and(Ok(()));
        (first.is_ok(), second.map(|_| ()), third)
    });
    let (first, second, third) = world.bed.run(near);
    assert!(first);
    // Draining takes some time, so the first connection still counts.
    assert!(matches!(second, Err(Closed::PeerFound(_))), "{second:?}");
    assert_eq!(third, Err(ConnectError::TooMany(2)));
    assert_eq!(server.counters().refused, 1);
}

#[test]
fn datagrams_arrive_without_streams() {
    let mut world = world();
    let (client, _driver) = world.client(world.config("near"));
    let (server, _server_driver) = world.server(world.config("far"));
    let (tls, to) = (world.client_tls(), world.to(false));
    let far = world.far.spawn("server", async move {
        let connection = server.accept().await.unwrap();
        loop {
            let Ok(datagram) = connection.receive_datagram().await else { break };
            connection.send_datagram(datagram).await.unwrap();
        }
    });
    let near = world.near.spawn("client", async move {
        let connection = rig::connect(&client, &tls, to).await.unwrap();
        for at in 0..100u8 {
            connection.send_datagram(Bytes::from(vec![at; 1000])).await.unwrap();
            assert_eq!(connection.receive_datagram().await.unwrap(), vec![at; 1000]);
        }
        // Longer than any packet on this path.
        let too_long = connection.send_datagram(Bytes::from(vec![0; 3000])).await;
        assert!(matches!(too_long, Err(quic_offload::DatagramError::TooLong)));
        connection.close(0, "");
    });
    world.bed.run(async move {
        near.await;
        far.await;
    });
}

/// Writes until the stream has no room.
fn fill(stream: &mut quic_offload::SendStream) {
    let mut cx = core::task::Context::from_waker(core::task::Waker::noop());
    while stream.poll_write_some(&mut cx, &[7; 1 << 16]).is_ready() {}
}

/// Each half of a stream ends in its own way, and the connection stays open.
#[test]
fn streams_are_reset_stopped_and_dropped() {
    let mut world = world();
    let (client, _driver) = world.client(world.config("near"));
    let (server, _server_driver) = world.server(world.config("far"));
    let (tls, to, host) = (world.client_tls(), world.to(false), world.near.clone());
    let far = world.far.spawn("server", async move {
        let connection = server.accept().await.unwrap();
        let mut reset = connection.accept_uni().await.unwrap();
        let mut byte = [0];
        reset.read_exact(&mut byte).await.unwrap();
        assert_eq!(reset.receive(10).await, Err(StreamError::Reset(41)));
        let mut stopped = connection.accept_uni().await.unwrap();
        stopped.read_exact(&mut byte).await.unwrap();
        stopped.stop(42);
        // This stream is never read, which does not block the other streams.
        let unread = connection.accept_uni().await.unwrap();
        let mut dropped = connection.accept_uni().await.unwrap();
        dropped.read_exact(&mut byte).await.unwrap();
        assert_eq!(dropped.receive(10).await, Err(StreamError::Reset(0)), "half of it is not all of it");
        let (mut send, mut receive) = connection.accept_bi().await.unwrap();
        let mut text = String::new();
        receive.read_to_string(&mut text).await.unwrap();
        send.write_all(text.to_uppercase().as_bytes()).await.unwrap();
        send.shutdown().await.unwrap();
        assert_eq!(connection.closed().await, Closed::ByPeer { code: 3, reason: Bytes::new() });
        drop(unread);
    });
    let near = world.near.spawn("client", async move {
        let connection = rig::connect(&client, &tls, to).await.unwrap();
        let mut reset = connection.open_uni().await.unwrap();
        reset.write_all(b"x").await.unwrap();
        // By now the byte has been sent.
        host.runtime().sleep(Duration::from_millis(1)).await;
        reset.reset(41);
        let mut stopped = connection.open_uni().await.unwrap();
        stopped.write_all(b"x").await.unwrap();
        assert_eq!(stopped.acknowledged().await, Err(StreamError::Stopped(42)));
        let mut unread = connection.open_uni().await.unwrap();
        // The stream's window is filled, and the writes that wait for room are cancelled.
        fill(&mut unread);
        host.runtime().sleep(Duration::from_millis(5)).await;
        fill(&mut unread);
        let mut dropped = connection.open_uni().await.unwrap();
        dropped.write_all(b"x").await.unwrap();
        host.runtime().sleep(Duration::from_millis(1)).await;
        drop(dropped);
        let (mut send, mut receive) = connection.open_bi().await.unwrap();
        send.write_all(b"hello").await.unwrap();
        send.finish().unwrap();
        assert_eq!(send.finish(), Err(StreamError::Ended));
        let mut text = String::new();
        receive.read_to_string(&mut text).await.unwrap();
        assert_eq!(text, "HELLO");
        connection.close(3, "");
        assert_eq!(connection.open_uni().await.map(|_| ()), Err(Closed::Here));
    });
    world.bed.run(async move {
        near.await;
        far.await;
    });
}

/// RFC 9000 10.3: an endpoint without state sends resets, which the client understands although its device opens
/// packets.
#[test]
fn endpoint_without_state_resets_connections() {
    let mut world = world();
    let (client, _driver) = world.client(world.config("near"));
    let (server, driver) = rig::stoppable(&world.far, rig::PORT, world.config("far"), world.server_tls());
    let (tls, to) = (world.client_tls(), world.to(false));
    let near = world.near.clone();
    let asking = world.near.spawn("client", async move {
        let connection = rig::connect(&client, &tls, to).await.unwrap();
        let mut stream = connection.open_uni().await.unwrap();
        stream.send(rig::body(0, 100_000)).await.unwrap();
        // The second part is sent to the server's successor.
        near.runtime().sleep(Duration::from_millis(10)).await;
        stream.send(rig::body(0, 100_000)).await.unwrap();
        let closed = connection.closed().await;
        (closed, client.counters())
    });
    let (far, config, tls) = (world.far.clone(), world.config("far"), world.server_tls());
    let restarting = world.far.spawn("server", async move {
        let connection = server.accept().await.unwrap();
        far.runtime().sleep(Duration::from_millis(5)).await;
        // The server stops abruptly. Its successor has the same keys and no state.
        driver.stop();
        let (again, _driver) = rig::start(&far, rig::PORT, config, Some(tls));
        drop(connection);
        again.accept().await.map(|_| ())
    });
    let (closed, counters) = world.bed.run(asking);
    drop(restarting);
    assert_eq!(closed, Closed::Reset);
    assert!(counters.sealed_by_device > 0);
}

/// Dropped futures leave no state behind.
#[test]
fn dropped_connections_leave_no_state() {
    let mut world = world();
    let (client, driver) = world.client(world.config("near"));
    let (server, server_driver) = world.server(world.config("far"));
    let (tls, to) = (world.client_tls(), world.to(false));
    let near = world.near.spawn("client", async move {
        for _ in 0..10 {
            drop(client.connect(&tls, to, "server.nic-offload.test").unwrap());
        }
        let connection = rig::connect(&client, &tls, to).await.unwrap();
        drop(connection.open_bi().await.unwrap());
        drop(connection);
        client.close(0, "");
        client.drained().await;
        driver.await.unwrap();
        assert_eq!(client.connect(&tls, to, "x").map(|_| ()), Err(ConnectError::Endpoint));
    });
    world.bed.run(near);
    server.close(0, "");
    world.bed.run(async move { server_driver.await.unwrap() });
    assert_eq!(world.near.device_contexts(), 0);
}

#[test]
fn an_idle_connection_ends() {
    let mut world = world();
    let (client, _driver) = world.client(world.config("near").with(|c| c.idle = Duration::from_secs(3)));
    let (_server, _server_driver) = world.server(world.config("far"));
    let (tls, to) = (world.client_tls(), world.to(false));
    let near = world.near.spawn("client", async move {
        let connection = rig::connect(&client, &tls, to).await.unwrap();
        connection.closed().await
    });
    assert_eq!(world.bed.run(near), Closed::TimedOut);
}

#[test]
fn wrong_certificate_name_is_refused() {
    let mut world = world();
    let (client, _driver) = world.client(world.config("near"));
    let (_server, _server_driver) = world.server(world.config("far"));
    let (tls, to) = (world.client_tls(), world.to(false));
    let near = world.near.spawn("client", async move { client.connect(&tls, to, "other.test").unwrap().await });
    let failed = world.bed.run(near).map(|_| ());
    assert!(matches!(failed, Err(Closed::Protocol(_))), "{failed:?}");
}

/// The last handle is the endpoint, a connection or a stream.
#[test]
fn driver_ends_with_the_last_handle() {
    for last in ["endpoint", "connection", "stream"] {
        let mut world = world();
        let (client, driver) = world.client(world.config("near"));
        let (server, server_driver) = world.server(world.config("far"));
        let (tls, to, host) = (world.client_tls(), world.to(false), world.far.clone());
        let far = world.far.spawn("server", async move {
            let closed = server.accept().await.unwrap().closed().await;
            (closed, host.now())
        });
        let (host, settled) = (world.near.clone(), world.near.clone());
        let near = world.near.spawn("client", async move {
            let connection = rig::connect(&client, &tls, to).await.unwrap();
            let stream = connection.open_uni().await.unwrap();
            let mut handles: Vec<(&str, Box<dyn Send>)> = vec![
                ("endpoint", Box::new(client)),
                ("connection", Box::new(connection)),
                ("stream", Box::new(stream)),
            ];
            // The chosen handle is dropped last.
            handles.sort_by_key(|(name, _)| *name == last);
            let mut times = Vec::new();
            for (name, handle) in handles {
                host.runtime().sleep(Duration::from_secs(1)).await;
                times.push((name, host.now()));
                drop(handle);
            }
            times.retain(|(name, _)| *name != "endpoint");
            times.last().unwrap().1
        });
        let (dropped, (closed, at)) = world.bed.run_within(Duration::from_secs(20), async move {
            let ends = (near.await, far.await);
            driver.await.unwrap();
            server_driver.await.unwrap();
            // The device needs some time to give contexts back.
            settled.runtime().sleep(Duration::from_micros(100)).await;
            ends
        });
        assert_eq!(closed, Closed::ByPeer { code: 0, reason: Bytes::new() });
        assert!(at > dropped, "{last}: an open connection goes on without its endpoint");
        assert_eq!(world.near.device_contexts() + world.far.device_contexts(), 0, "contexts are given back");
    }
}

#[test]
fn unaccepted_connections_end_with_their_endpoint() {
    for handshake_is_done in [false, true] {
        let mut world = world();
        let (client, _driver) = world.client(world.config("near"));
        let (server, server_driver) = world.server(world.config("far"));
        let (tls, to, host) = (world.client_tls(), world.to(false), world.near.clone());
        let closed = world.bed.run_within(Duration::from_secs(20), async move {
            let connection = rig::connect(&client, &tls, to).await.unwrap();
            if handshake_is_done {
                host.runtime().sleep(Duration::from_millis(100)).await;
            }
            // The server's application never accepts the connection.
            drop(server);
            let closed = connection.closed().await;
            server_driver.await.unwrap();
            closed
        });
        match closed {
            Closed::ByPeer { code: 0, .. } => assert!(handshake_is_done),
            // RFC 9000 10.2.3: a close during the handshake does not reveal the application's code.
            Closed::PeerFound(_) => assert!(!handshake_is_done),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn rest_of_a_stream_is_read_up_to_a_limit() {
    let mut world = world();
    let (client, _driver) = world.client(world.config("near"));
    let (server, _server_driver) = world.server(world.config("far"));
    let (tls, to) = (world.client_tls(), world.to(false));
    let far = world.far.spawn("server", async move {
        let connection = server.accept().await.unwrap();
        for code in [None, Some(9)] {
            let mut stream = connection.accept_uni().await.unwrap();
            // The second limit is one byte too short.
            let limit = if code.is_some() { 99_999 } else { 100_000 };
            let read = stream.read_to_end(limit).await;
            match code {
                None => assert!(read.unwrap() == rig::body(0, limit)),
                Some(code) => {
                    assert_eq!(read, Err(StreamError::TooLong(limit)));
                    stream.stop(code);
                }
            }
        }
        connection.closed().await;
    });
    let near = world.near.spawn("client", async move {
        let connection = rig::connect(&client, &tls, to).await.unwrap();
        let mut stops = Vec::new();
        for finishes in [true, false] {
            let mut stream = connection.open_uni().await.unwrap();
            stream.send(rig::body(0, 100_000)).await.unwrap();
            if finishes {
                stream.finish().unwrap();
            }
            stops.push(stream.stopped().await);
        }
        // The acknowledgment of a reset is not reported.
        let mut stream = connection.open_uni().await.unwrap();
        stream.send(rig::body(0, 10)).await.unwrap();
        stream.reset(3);
        stops.push(stream.stopped().await);
        connection.close(0, "");
        stops
    });
    let stops = world.bed.run(async move {
        let stops = near.await;
        far.await;
        stops
    });
    assert_eq!(stops, [Ok(None), Ok(Some(9)), Err(StreamError::Ended)]);
}

#[test]
fn stopped_stream_gives_the_code_until_it_is_reset() {
    let mut world = world();
    let (client, _driver) = world.client(world.config("near"));
    let (server, _server_driver) = world.server(world.config("far"));
    let (tls, to, host) = (world.client_tls(), world.to(false), world.near.clone());
    let far = world.far.spawn("server", async move {
        let connection = server.accept().await.unwrap();
        for _ in 0..2 {
            let mut stream = connection.accept_uni().await.unwrap();
            stream.read_exact(&mut [0]).await.unwrap();
            stream.stop(9);
        }
        connection.closed().await;
    });
    let near = world.near.spawn("client", async move {
        let connection = rig::connect(&client, &tls, to).await.unwrap();
        // A write reports the stop, and so does `stopped`.
        for waits in [true, false] {
            let mut stream = connection.open_uni().await.unwrap();
            stream.send(rig::body(0, 1)).await.unwrap();
            if waits {
                assert_eq!(stream.stopped().await, Ok(Some(9)));
            } else {
                host.runtime().sleep(Duration::from_millis(5)).await;
            }
            for _ in 0..2 {
                assert_eq!(stream.send(rig::body(0, 1)).await, Err(StreamError::Stopped(9)));
                assert_eq!(stream.finish(), Err(StreamError::Stopped(9)));
                assert_eq!(stream.shutdown().await.unwrap_err().kind(), std::io::ErrorKind::BrokenPipe);
                assert_eq!(stream.stopped().await, Ok(Some(9)));
            }
            stream.reset(3);
            host.runtime().sleep(Duration::from_millis(5)).await;
            assert_eq!(stream.send(rig::body(0, 1)).await, Err(StreamError::Ended));
            assert_eq!(stream.finish(), Err(StreamError::Ended));
            assert_eq!(stream.stopped().await, Err(StreamError::Ended));
        }
        connection.close(0, "");
    });
    world.bed.run(async move {
        near.await;
        far.await;
    });
}

#[test]
#[should_panic(expected = "an error code of QUIC is at most 2^62 - 1")]
fn error_code_that_quic_cannot_carry_panics() {
    let world = world();
    let (client, _driver) = world.client(world.config("near"));
    client.close(1 << 62, "");
}

/// When an endpoint's last handle is dropped, its task ends and frees the port.
#[tokio::test]
async fn tokio_endpoint_frees_its_port_with_the_last_handle() {
    let tls = ServerTls::new(server_config(Randomness::Seeded(Seed(1)), None)).unwrap();
    let server = TokioEndpoint::server("127.0.0.1:0".parse().unwrap(), tls).unwrap();
    let client = TokioEndpoint::client("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = server.local_addr();
    let tls = ClientTls::new(client_config(Randomness::Seeded(Seed(2)), None)).unwrap();
    let connection = rig::connect(&client, &tls, address).await.unwrap();
    drop(server.accept().await.unwrap());
    assert_eq!(connection.closed().await, Closed::ByPeer { code: 0, reason: Bytes::new() });
    server.drained().await;
    let also = server.clone();
    drop(server);
    assert!(std::net::UdpSocket::bind(address).is_err(), "another handle is left");
    drop(also);
    // Lets the driver's task run.
    tokio::task::yield_now().await;
    std::net::UdpSocket::bind(address).unwrap();
}

/// A transfer over the kernel's sockets.
#[tokio::test]
async fn transfer_runs_over_kernel_sockets() {
    let tls = ServerTls::new(server_config(Randomness::Seeded(Seed(1)), None)).unwrap();
    let server = TokioEndpoint::server("127.0.0.1:0".parse().unwrap(), tls).unwrap();
    let to = server.local_addr();
    let client = TokioEndpoint::client("127.0.0.1:0".parse().unwrap()).unwrap();
    let serving = tokio::spawn(async move {
        let connection = server.accept().await.unwrap();
        let (mut send, mut receive) = connection.accept_bi().await.unwrap();
        let bytes = rig::read_all(&mut receive).await;
        send.send(Bytes::from(bytes.to_string())).await.unwrap();
        send.finish().unwrap();
        connection.closed().await
    });
    let tls = ClientTls::new(client_config(Randomness::Seeded(Seed(2)), None)).unwrap();
    let connection = rig::connect(&client, &tls, to).await.unwrap();
    let (mut send, mut receive) = connection.open_bi().await.unwrap();
    send.send(rig::body(0, 3_000_000)).await.unwrap();
    send.finish().unwrap();
    let mut answer = String::new();
    receive.read_to_string(&mut answer).await.unwrap();
    assert_eq!(answer, "3000000");
    connection.close(1, "thanks");
    assert_eq!(serving.await.unwrap(), Closed::ByPeer { code: 1, reason: "thanks".into() });
}
