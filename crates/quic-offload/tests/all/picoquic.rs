//! Interoperability with picoquic, another implementation of multipath. It runs as a process that gets datagrams and
//! the virtual time.
//!
//! `tests/linux/picoquic.sh` fetches it and runs these tests, which are ignored otherwise.

use crate::rig::{self, QuicTestbed, nic};
use bytes::{Bytes, BytesMut};
use core::net::{IpAddr, Ipv6Addr, SocketAddr};
use core::time::Duration;
use offload_host_stack::UdpSocket;
use offload_testbed::BedHost;
use offload_testbed::identity::{self, Randomness};
use offload_wire::LinkConfig;
use offload_wire::impairment::{Impairments, Share};
use quic_offload::{ClientTls, Connection, Offload, ServerTls};
use std::io::{BufReader, Read, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// Their client opens a second path, updates the keys twice and its connection ID once, and abandons the first path.
#[test]
#[ignore = "needs picoquic: tests/linux/picoquic.sh"]
fn devices_serve_a_picoquic_client() {
    for (link, offload) in all() {
        let mut world = QuicTestbed::new(21, [nic(), nic()], link.clone());
        let (near, far) = (addresses(&world.near, 5000), addresses(&world.far, rig::PORT));
        // The numbers are transferred bytes.
        let actions = "path@100000,rotate@200000,renew@400000,rotate@600000,abandon@800000";
        let size = SIZE.to_string();
        let args = ["client", &far[0], &near[0], &far[1], &near[1], &file("ca.pem"), &size, &size, actions];
        let theirs = Picoquic::start(&world.near, 5000, &args);
        let mut tls = identity::server_config(Randomness::Seeded(world.seed.derive("server")), None);
        tls.alpn_protocols = vec![ALPN.to_vec()];
        let config = world.config("far").with(|c| (c.offload, c.paths) = (offload, 3));
        let (server, _driver) = rig::start(&world.far, rig::PORT, config, Some(ServerTls::new(tls).unwrap()));
        let (asking, counted) = (world.near.spawn("picoquic", theirs.run()), server.clone());
        let host = world.far.clone();
        let far = world.far.spawn("server", async move {
            let connection = server.accept().await.unwrap();
            let (mut send, mut receive) = connection.accept_bi().await.unwrap();
            assert_eq!(rig::read_all(&mut receive).await, SIZE);
            assert_eq!(connection.statistics().key_updates, 2, "as they asked");
            send.send(rig::body(0, SIZE as usize)).await.unwrap();
            send.finish().unwrap();
            send.acknowledged().await.unwrap();
            left_with(&host, &connection, 1).await;
            connection.close(0, "");
        });
        let theirs = world.bed.run(async move {
            far.await;
            asking.await
        });
        theirs.found(&[r#""done": ["path", "rotate", "renew", "rotate", "abandon"]"#, r#""paths": 1"#]);
        let counters = counted.counters();
        let by_device = [counters.sealed_by_device, counters.opened_by_device].map(|count| count > 500);
        assert_eq!(by_device, [offload == Offload::Both; 2], "{offload:?} {counters:?}");
        assert!(!world.wire.contains(rig::MARKER));
    }
}

/// Our client does so, with all combinations of device and software.
#[test]
#[ignore = "needs picoquic: tests/linux/picoquic.sh"]
fn picoquic_server_opens_packets_sealed_by_devices() {
    for (link, offload) in all() {
        let mut world = QuicTestbed::new(22, [nic(), nic()], link.clone());
        let (size, actions) = (SIZE.to_string(), "rotate@300000,renew@600000");
        let args = ["server", &file("server.pem"), &file("server.key"), &size, &size, actions];
        let serving = world.far.spawn("picoquic", Picoquic::start(&world.far, rig::PORT, &args).run());
        let mut tls = identity::client_config(Randomness::Seeded(world.seed.derive("client")), None);
        tls.alpn_protocols = vec![ALPN.to_vec()];
        let tls = ClientTls::new(tls).unwrap();
        let config = world.config("near").with(|c| (c.offload, c.paths) = (offload, 3));
        let (client, _driver) = rig::start(&world.near, 5000, config, None);
        let (first, second) = (world.to(false), world.to(true));
        let (from, host, counted) = (world.near.ipv6_address().into(), world.near.clone(), client.clone());
        let near = world.near.spawn("client", async move {
            let connection = rig::connect(&client, &tls, first).await.unwrap();
            assert_eq!(connection.open_path(second, Some(from)).await.unwrap(), 1);
            let (mut send, mut receive) = connection.open_bi().await.unwrap();
            let half = SIZE as usize / 2;
            send.send(rig::body(0, half)).await.unwrap();
            connection.update_keys();
            // Key update and abandoned path fall into the middle of the transfer.
            connection.close_path(0).unwrap();
            send.send(rig::body(half as u64, half)).await.unwrap();
            send.finish().unwrap();
            assert_eq!(rig::read_all(&mut receive).await, SIZE);
            left_with(&host, &connection, 1).await;
            assert!(connection.statistics().key_updates >= 2, "one of ours, one of theirs");
            connection.close(0, "");
        });
        let theirs = world.bed.run(async move {
            near.await;
            serving.await
        });
        theirs.found(&[r#""done": ["rotate", "renew"]"#]);
        let counters = counted.counters();
        let by_device = [counters.sealed_by_device, counters.opened_by_device].map(|count| count > 500);
        assert_eq!(by_device, [offload == Offload::Both; 2], "{offload:?} {counters:?}");
        assert!(!world.wire.contains(rig::MARKER));
    }
}

fn all() -> impl Iterator<Item = (LinkConfig, Offload)> {
    let delay = Duration::from_micros(100);
    let impairments = Impairments { loss: Share::new(0.01).unwrap(), ..Impairments::default() };
    let links =
        [LinkConfig { delay, ..LinkConfig::default() }, LinkConfig { delay, impairments, ..LinkConfig::default() }];
    links.into_iter().flat_map(|link| [Offload::Both, Offload::None].map(|offload| (link.clone(), offload)))
}

/// Waits until a connection has this number of paths.
async fn left_with(host: &BedHost, connection: &Connection, paths: usize) {
    for _ in 0..1000 {
        if connection.statistics().paths == paths {
            return;
        }
        host.runtime().sleep(Duration::from_millis(1)).await;
    }
    panic!("there are {} paths", connection.statistics().paths);
}

/// The process, and the host's socket that replaces the process's own.
struct Picoquic {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    host: BedHost,
    socket: UdpSocket,
    /// The process's last report.
    standing: String,
}

type SentData = (SocketAddr, Bytes);

impl Picoquic {
    fn start(host: &BedHost, port: u16, args: &[&str]) -> Picoquic {
        let command = std::env::var("PICOQUIC").expect("PICOQUIC is the command that runs picoquic_peer.py");
        let mut words = command.split(' ');
        let mut process = Command::new(words.next().unwrap());
        process.args(words).args(args).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = process.spawn().unwrap();
        let (input, output) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
        let socket = host.stack().bind_udp(Some(port)).unwrap();
        Picoquic { child, input, output, host: host.clone(), socket, standing: String::new() }
    }

    /// Runs until the connection is closed.
    async fn run(mut self) -> Picoquic {
        let mut came = None;
        loop {
            let (wake, sent) = self.step(came.take());
            for (to, data) in sent {
                // It probes the path MTU, and with a socket of its own such datagrams would not be fragmented.
                if data.len() <= if to.is_ipv6() { 1452 } else { 1472 } {
                    let _ = self.socket.send_to(data, to).await;
                }
            }
            if !self.standing.contains(r#""closed": null"#) {
                return self;
            }
            let now = self.host.now();
            // Its clock counts microseconds, so a shorter wait would be due for ever.
            let wait = Duration::from_nanos(wake.saturating_sub(now.as_nanos()).clamp(1000, 60_000_000_000));
            let sleep = self.host.runtime().sleep(wait);
            came = tokio::select! {
                biased;
                got = self.socket.recv_from() => Some(got.unwrap()),
                () = sleep => None,
            };
        }
    }

    /// Passes a datagram and the time to the process. Returns the time of its next call and the datagrams to send.
    fn step(&mut self, came: Option<(BytesMut, SocketAddr)>) -> (u64, Vec<SentData>) {
        let mut said = self.host.now().as_nanos().to_be_bytes().to_vec();
        said.extend(u32::from(came.is_some()).to_be_bytes());
        if let Some((data, from)) = came {
            let here: IpAddr = match from {
                SocketAddr::V4(_) => self.host.address().into(),
                SocketAddr::V6(_) => self.host.ipv6_address().into(),
            };
            for address in [from, (here, self.socket.local_addr().port()).into()] {
                said.extend(mapped(address.ip()).octets());
                said.extend(address.port().to_be_bytes());
            }
            said.extend((data.len() as u16).to_be_bytes());
            said.extend(data);
        }
        self.input.write_all(&said).unwrap();
        self.input.flush().unwrap();
        // The process answers each request with the time of its next call, its datagrams and a report.
        let (wake, count) = (u64::from_be_bytes(self.read()), u32::from_be_bytes(self.read()));
        let mut sent = Vec::new();
        for _ in 0..count {
            // The host's socket sends from its own address.
            let _: [u8; 18] = self.read();
            let (to, port) = (Ipv6Addr::from(self.read::<16>()), u16::from_be_bytes(self.read()));
            let data = self.text();
            sent.push(((to.to_canonical(), port).into(), data.into()));
        }
        self.standing = String::from_utf8(self.text()).unwrap();
        (wake, sent)
    }

    fn read<const N: usize>(&mut self) -> [u8; N] {
        let mut bytes = [0; N];
        self.output.read_exact(&mut bytes).unwrap();
        bytes
    }

    fn text(&mut self) -> Vec<u8> {
        let mut bytes = vec![0; usize::from(u16::from_be_bytes(self.read()))];
        self.output.read_exact(&mut bytes).unwrap();
        bytes
    }

    /// Checks that the process received everything without errors.
    fn found(&self, more: &[&str]) {
        let whole = [r#""fault": null"#, r#""finished": true"#, r#""failed": []"#, &format!(r#""received": {SIZE}"#)];
        for part in whole.iter().chain(more) {
            assert!(self.standing.contains(part), "{part}: {}", self.standing);
        }
    }
}

impl Drop for Picoquic {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn mapped(address: IpAddr) -> Ipv6Addr {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped(),
        IpAddr::V6(address) => address,
    }
}

/// Returns a host's addresses in the process's syntax.
fn addresses(host: &BedHost, port: u16) -> [String; 2] {
    [format!("{}@{port}", host.address()), format!("{}@{port}", host.ipv6_address())]
}

fn file(name: &str) -> String {
    format!("{}/../offload-testbed/identity/{name}", env!("CARGO_MANIFEST_DIR"))
}

const ALPN: &[u8] = b"nic-offload";
/// Bytes in each direction.
const SIZE: u64 = 1 << 20;
