//! Interoperability with another state machine, noq's or quinn's, with its own TLS and packet protection. Their
//! interfaces are alike, so this file is compiled with each; the differences are in the parent module.

use super::proto::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use super::proto::{
    ClientConfig, Connection, ConnectionHandle, DatagramEvent, Dir, Endpoint, EndpointConfig, Event, ServerConfig,
    StreamId,
};
use super::{endpoint, handle, open_path, poll_transmit, transport};
use crate::rig::{self, QuicTestbed, nic};
use bytes::{Bytes, BytesMut};
use core::net::SocketAddr;
use core::time::Duration;
use offload_host_stack::UdpSocket;
use offload_testbed::BedHost;
use offload_testbed::identity::{self, Randomness, server_name};
use offload_wire::LinkConfig;
use offload_wire::impairment::{Impairments, Reorder, Share};
use quic_offload::Offload;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

/// An endpoint on a host's socket, which sends and receives unidirectional streams.
struct Peer {
    host: BedHost,
    socket: UdpSocket,
    endpoint: Endpoint,
    connection: Option<(ConnectionHandle, Connection)>,
    epoch: Instant,
    /// The stream being sent, the bytes written and its length.
    sending: Option<(StreamId, u64, u64)>,
    to_send: u64,
    /// Bytes received per stream.
    received: HashMap<StreamId, u64>,
    finished: u64,
    key_updates: bool,
    second: Option<(SocketAddr, core::net::IpAddr)>,
    closed: bool,
}

impl Peer {
    fn new(host: &BedHost, port: u16, server: bool, world: &QuicTestbed) -> Peer {
        let config = Arc::new(EndpointConfig::new(Arc::new(ring_key())));
        let tls = identity::server_config(Randomness::Seeded(world.seed.derive("peer")), None);
        let server = server.then(|| {
            let mut server = ServerConfig::with_crypto(Arc::new(QuicServerConfig::try_from(tls).unwrap()));
            server.transport_config(transport());
            Arc::new(server)
        });
        Peer {
            host: host.clone(),
            socket: host.stack().bind_udp(Some(port)).unwrap(),
            endpoint: endpoint(config, server),
            connection: None,
            epoch: Instant::now(),
            sending: None,
            to_send: 0,
            received: HashMap::new(),
            finished: 0,
            key_updates: false,
            second: None,
            closed: false,
        }
    }

    fn now(&self) -> Instant {
        self.epoch + (self.host.now() - offload_base::Instant::ZERO)
    }

    fn connect(&mut self, world: &QuicTestbed, to: SocketAddr) {
        let tls = identity::client_config(Randomness::Seeded(world.seed.derive("peer")), None);
        let mut config = ClientConfig::new(Arc::new(QuicClientConfig::try_from(tls).unwrap()));
        config.transport_config(transport());
        let name = server_name();
        self.connection = Some(self.endpoint.connect(self.now(), config, to, name.to_str().as_ref()).unwrap());
    }

    /// Runs until the connection is closed.
    async fn run(mut self) -> Peer {
        loop {
            self.work().await;
            if self.closed {
                return self;
            }
            let due = self.connection.as_mut().and_then(|(_, connection)| connection.poll_timeout());
            let wait = due.map_or(Duration::from_secs(60), |at| at.saturating_duration_since(self.now()));
            // A pacer that asks for less than a nanosecond would repeat for ever.
            let sleep = self.host.runtime().sleep(wait.max(Duration::from_micros(1)));
            let got = tokio::select! {
                biased;
                got = self.socket.recv_from() => Some(got.unwrap()),
                () = sleep => None,
            };
            match got {
                Some((data, from)) => self.take(data, from).await,
                None => {
                    let now = self.now();
                    if let Some((_, connection)) = &mut self.connection {
                        connection.handle_timeout(now);
                    }
                }
            }
        }
    }

    async fn take(&mut self, data: BytesMut, from: SocketAddr) {
        let (now, mut answer) = (self.now(), Vec::new());
        let to = if from.is_ipv6() { self.host.ipv6_address().into() } else { self.host.address().into() };
        match handle(&mut self.endpoint, now, from, to, data, &mut answer) {
            Some(DatagramEvent::ConnectionEvent(_, event)) => {
                if let Some((_, connection)) = &mut self.connection {
                    connection.handle_event(event);
                }
            }
            Some(DatagramEvent::NewConnection(incoming)) => {
                self.connection = Some(self.endpoint.accept(incoming, now, &mut answer, None).unwrap());
            }
            Some(DatagramEvent::Response(transmit)) => {
                self.socket.send_to(Bytes::from(answer), transmit.destination).await.unwrap();
            }
            None => {}
        }
    }

    async fn work(&mut self) {
        let now = self.now();
        let Some((handle, connection)) = &mut self.connection else { return };
        while let Some(event) = connection.poll_endpoint_events() {
            if let Some(answer) = self.endpoint.handle_event(*handle, event) {
                connection.handle_event(answer);
            }
        }
        while let Some(event) = connection.poll() {
            self.closed |= matches!(event, Event::ConnectionLost { .. });
        }
        if !connection.is_handshaking() && self.sending.is_none() && self.to_send > 0 {
            let id = connection.streams().open(Dir::Uni).unwrap();
            self.sending = Some((id, 0, core::mem::take(&mut self.to_send)));
        }
        if let Some((to, from)) = self.second
            && open_path(connection, to, from, now)
        {
            self.second = None;
        }
        if let Some((id, at, end)) = &mut self.sending {
            while *at < *end {
                let piece = rig::body(*at, (*end - *at).min(1 << 16) as usize);
                let Ok(written) = connection.send_stream(*id).write(&piece) else { break };
                *at += written as u64;
                // A key update is requested after every write; the state machine ignores requests that are too early.
                if self.key_updates {
                    connection.force_key_update();
                }
            }
            if *at == *end {
                let _ = connection.send_stream(*id).finish();
            }
        }
        while let Some(id) = connection.streams().accept(Dir::Uni) {
            self.received.insert(id, 0);
        }
        // Finished streams are removed, so that each is counted once.
        self.received.retain(|id, at| {
            let mut stream = connection.recv_stream(*id);
            let Ok(mut chunks) = stream.read(true) else { return false };
            let over = loop {
                match chunks.next(usize::MAX) {
                    Ok(Some(chunk)) => {
                        assert!(chunk.bytes == rig::body(*at, chunk.bytes.len()), "from {at} on");
                        *at += chunk.bytes.len() as u64;
                    }
                    Ok(None) => break true,
                    Err(_) => break false,
                }
            };
            let _ = chunks.finalize();
            self.finished += if over { *at } else { 0 };
            !over
        });
        let mut data = Vec::new();
        while let Some(transmit) = poll_transmit(connection, now, &mut data) {
            for datagram in data[..transmit.size].chunks(transmit.segment_size.unwrap_or(transmit.size)) {
                let _ = self.socket.send_to(Bytes::copy_from_slice(datagram), transmit.destination).await;
            }
            data.clear();
        }
    }
}

fn ring_key() -> ring::hmac::Key {
    ring::hmac::Key::new(ring::hmac::HMAC_SHA256, &[7; 32])
}

const BYTES: u64 = 2 << 20;

fn lossy() -> LinkConfig {
    let share = |percent: f64| Share::new(percent / 100.0).unwrap();
    let reorder = Some(Reorder { share: share(1.0), hold: Duration::from_micros(20) });
    let impairments = Impairments { loss: share(1.0), duplicate: share(0.5), reorder, ..Impairments::default() };
    LinkConfig { delay: Duration::from_micros(10), impairments, ..LinkConfig::default() }
}

/// Our client, with all combinations of device and software, and their server: a stream in each direction.
#[test]
fn peer_server_opens_packets_sealed_by_devices() {
    for link in [LinkConfig::default(), lossy()] {
        for offload in [Offload::Both, Offload::Transmit, Offload::Receive, Offload::None] {
            let mut world = QuicTestbed::new(11, [nic(), nic()], link.clone());
            let mut theirs = Peer::new(&world.far, rig::PORT, true, &world);
            (theirs.to_send, theirs.key_updates) = (BYTES, true);
            let serving = world.far.spawn("peer", theirs.run());
            let (client, _driver) = world.client(world.config("near").with(|c| (c.offload, c.paths) = (offload, 3)));
            let (tls, to, six) = (world.client_tls(), world.to(false), world.to(true));
            let from = world.near.ipv6_address().into();
            let counted = client.clone();
            let near = world.near.spawn("client", async move {
                let connection = rig::connect(&client, &tls, to).await.unwrap();
                if super::HAS_PATHS {
                    connection.open_path(six, Some(from)).await.unwrap();
                }
                let mut theirs = connection.accept_uni().await.unwrap();
                let mut ours = connection.open_uni().await.unwrap();
                for at in (0..BYTES).step_by(1 << 18) {
                    // Both ends request updates, so their updates may cross.
                    connection.update_keys();
                    ours.send(rig::body(at, 1 << 18)).await.unwrap();
                }
                ours.finish().unwrap();
                assert_eq!(rig::read_all(&mut theirs).await, BYTES);
                ours.acknowledged().await.unwrap();
                connection.close(0, "");
            });
            let theirs = world.bed.run(async move {
                near.await;
                serving.await
            });
            assert_eq!(theirs.finished, BYTES, "{offload:?}");
            let counters = counted.counters();
            let (seals, opens) = (
                matches!(offload, Offload::Both | Offload::Transmit),
                matches!(offload, Offload::Both | Offload::Receive),
            );
            assert_eq!(counters.sealed_by_device > 1000, seals, "{offload:?} {counters:?}");
            assert_eq!(counters.opened_by_device > 1000, opens, "{offload:?} {counters:?}");
            assert!(!world.wire.contains(rig::MARKER));
        }
    }
}

/// Their client opens the paths and updates the keys.
#[test]
fn devices_serve_a_peer_client() {
    for link in [LinkConfig::default(), lossy()] {
        for offload in [Offload::Both, Offload::None] {
            let mut world = QuicTestbed::new(12, [nic(), nic()], link.clone());
            let mut theirs = Peer::new(&world.near, 5000, false, &world);
            theirs.connect(&world, world.to(false));
            (theirs.to_send, theirs.key_updates) = (BYTES, true);
            // Their client opens the second path, because only clients may.
            theirs.second = super::HAS_PATHS.then(|| (world.to(true), world.near.ipv6_address().into()));
            let (server, _driver) = world.server(world.config("far").with(|c| (c.offload, c.paths) = (offload, 3)));
            let counted = server.clone();
            let asking = world.near.spawn("peer", theirs.run());
            let far = world.far.spawn("server", async move {
                let connection = server.accept().await.unwrap();
                let mut ours = connection.open_uni().await.unwrap();
                for at in (0..BYTES).step_by(1 << 18) {
                    ours.send(rig::body(at, 1 << 18)).await.unwrap();
                }
                ours.finish().unwrap();
                let mut theirs = connection.accept_uni().await.unwrap();
                assert_eq!(rig::read_all(&mut theirs).await, BYTES);
                ours.acknowledged().await.unwrap();
                assert_eq!(connection.statistics().paths, 1 + usize::from(super::HAS_PATHS));
                connection.close(0, "");
            });
            let theirs = world.bed.run(async move {
                far.await;
                asking.await
            });
            assert_eq!(theirs.finished, BYTES, "{offload:?}");
            let counters = counted.counters();
            assert_eq!(counters.opened_by_device > 1000, offload == Offload::Both, "{counters:?}");
            assert_eq!(counters.sealed_by_device > 1000, offload == Offload::Both, "{counters:?}");
        }
    }
}
