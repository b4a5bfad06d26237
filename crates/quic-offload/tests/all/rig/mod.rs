//! Two hosts in virtual time, a client at one and a server at the other.
#![allow(dead_code, reason = "each test uses some of it")]

use bytes::Bytes;
use core::future::{Future, poll_fn};
use core::net::{IpAddr, SocketAddr};
use core::task::{Poll, Waker};
use core::time::Duration;
use nic_sim::NicConfig;
use offload_base::counters::CounterSet;
use offload_base::{RandomSource, Seed, Timers};
use offload_host_stack::TcpConfig;
use offload_testbed::identity::{self, Randomness, server_name};
use offload_testbed::{BedHost, JoinHandle, Testbed};
use offload_wire::{LinkConfig, Recorder};
use quic_offload::{ClientTls, Closed, Config, Connection, Counters, Driver, Endpoint, ReceiveStream, ServerTls};
use std::sync::{Arc, Mutex};

pub(crate) const PORT: u16 = 4433;

/// What tells plain text on the wire.
pub(crate) const MARKER: &[u8] = b"PLAINTEXT";

pub(crate) struct World {
    pub(crate) bed: Testbed,
    pub(crate) near: BedHost,
    pub(crate) far: BedHost,
    pub(crate) wire: Recorder,
    pub(crate) seed: Seed,
}

pub(crate) fn nic() -> NicConfig {
    NicConfig { lro_datagrams: true, ..NicConfig::default() }
}

pub(crate) fn without_quic() -> NicConfig {
    NicConfig { quic_contexts: 0, ..nic() }
}

impl World {
    pub(crate) fn new(seed: u64, nics: [NicConfig; 2], link: LinkConfig) -> World {
        World::wired(seed, nics, [link])
    }

    /// With a wire for each address of a host.
    pub(crate) fn wired(seed: u64, nics: [NicConfig; 2], links: impl IntoIterator<Item = LinkConfig>) -> World {
        let wire = Recorder::default();
        let mut builder = Testbed::builder(Seed(seed));
        for (name, nic) in ["near", "far"].into_iter().zip(nics) {
            builder = builder.host(name, nic, TcpConfig::default());
        }
        let bed = builder.wires(0, 1, links).recorded(&wire).build().unwrap();
        let (near, far) = (bed.host(0).clone(), bed.host(1).clone());
        World { bed, near, far, wire, seed: Seed(seed) }
    }

    pub(crate) fn config(&self, name: &str) -> Config {
        Config { random: Some(RandomSource::from(self.seed.derive(name))), ..Config::default() }
    }

    pub(crate) fn client(&self, config: Config) -> (Endpoint, JoinHandle<std::io::Result<()>>) {
        start(&self.near, 5000, config, None)
    }

    pub(crate) fn server(&self, config: Config) -> (Endpoint, JoinHandle<std::io::Result<()>>) {
        start(&self.far, PORT, config, Some(self.server_tls()))
    }

    pub(crate) fn server_tls(&self) -> ServerTls {
        let tls = identity::server_config(Randomness::Seeded(self.seed.derive("server")), None);
        ServerTls::new(tls).unwrap()
    }

    pub(crate) fn client_tls(&self) -> ClientTls {
        ClientTls::new(identity::client_config(Randomness::Seeded(self.seed.derive("client")), None)).unwrap()
    }

    pub(crate) fn to(&self, six: bool) -> SocketAddr {
        let address: IpAddr = if six { self.far.ipv6_address().into() } else { self.far.address().into() };
        (address, PORT).into()
    }

    pub(crate) fn counters(&self) -> CounterSet {
        self.bed.counters()
    }
}

pub(crate) fn start(
    host: &BedHost,
    port: u16,
    config: Config,
    tls: Option<ServerTls>,
) -> (Endpoint, JoinHandle<std::io::Result<()>>) {
    let socket = host.stack().bind_udp(Some(port)).unwrap();
    let timers: Arc<dyn Timers> = host.runtime();
    let (endpoint, driver) = Endpoint::new(socket, timers, config, tls).unwrap();
    (endpoint, host.spawn("driver", driver))
}

/// A driver that can be dropped, with its socket.
pub(crate) struct Stop(Arc<Mutex<Option<Driver>>>, Arc<Mutex<Option<Waker>>>);

impl Stop {
    pub(crate) fn stop(self) {
        drop(self.0.lock().unwrap().take());
        self.1.lock().unwrap().take().into_iter().for_each(Waker::wake);
    }
}

pub(crate) fn stoppable(host: &BedHost, port: u16, config: Config, tls: ServerTls) -> (Endpoint, Stop) {
    let socket = host.stack().bind_udp(Some(port)).unwrap();
    let (endpoint, driver) = Endpoint::new(socket, host.runtime(), config, Some(tls)).unwrap();
    let stop = Stop(Arc::new(Mutex::new(Some(driver))), Arc::default());
    let (driver, waker) = (stop.0.clone(), stop.1.clone());
    let _running = host.spawn(
        "driver",
        poll_fn(move |cx| {
            *waker.lock().unwrap() = Some(cx.waker().clone());
            match &mut *driver.lock().unwrap() {
                Some(driver) => core::pin::Pin::new(driver).poll(cx).map(|_| ()),
                None => Poll::Ready(()),
            }
        }),
    );
    (endpoint, stop)
}

pub(crate) async fn connect(endpoint: &Endpoint, tls: &ClientTls, to: SocketAddr) -> Result<Connection, Closed> {
    endpoint.connect(tls, to, server_name().to_str().as_ref()).unwrap().await
}

/// Bytes that tell where they are, with the marker among them.
pub(crate) fn body(from: u64, bytes: usize) -> Bytes {
    (from..from + bytes as u64)
        .map(|at| {
            let at = at as usize;
            if at % 97 < MARKER.len() { MARKER[at % 97] } else { (at / 97 + at % 251) as u8 }
        })
        .collect()
}

/// Reads a stream to its end, and says how much that was. Each read is begun and dropped once before.
pub(crate) async fn read_all(stream: &mut ReceiveStream) -> u64 {
    let mut at = 0;
    loop {
        let first = poll_fn(|cx| {
            let receiving = core::pin::pin!(stream.receive(1 << 10));
            Poll::Ready(match receiving.poll(cx) {
                Poll::Ready(data) => Some(data.unwrap()),
                Poll::Pending => None,
            })
        });
        let data = match first.await {
            Some(data) => data,
            None => stream.receive(1 << 20).await.unwrap(),
        };
        let Some(data) = data else { break };
        assert!(data == body(at, data.len()), "from {at} on");
        at += data.len() as u64;
    }
    at
}

/// What a transfer took.
#[derive(Debug)]
pub(crate) struct Transfer {
    pub(crate) client: Counters,
    pub(crate) server: Counters,
    pub(crate) updates: u64,
}

impl World {
    /// Sends `bytes` from client to server on a stream, and `back` the other way.
    pub(crate) fn transfer(&mut self, configs: [Config; 2], six: bool, bytes: usize, back: usize) -> Transfer {
        let done = self.transfer_without_looking(configs, six, bytes, back);
        assert!(!self.wire.contains(MARKER), "nothing leaves as it is");
        done
    }

    pub(crate) fn transfer_without_looking(
        &mut self,
        configs: [Config; 2],
        six: bool,
        bytes: usize,
        back: usize,
    ) -> Transfer {
        self.run_transfer(configs, six, bytes, back, usize::MAX, false)
    }

    /// The same both ways, with other keys every so many bytes, and perhaps a second path.
    pub(crate) fn transfer_by(
        &mut self,
        configs: [Config; 2],
        six: bool,
        bytes: [usize; 2],
        every: usize,
        second: bool,
    ) -> Transfer {
        let done = self.run_transfer(configs, six, bytes[0], bytes[1], every, second);
        assert!(!self.wire.contains(MARKER), "nothing leaves as it is");
        done
    }

    /// The same, and asks for other keys each time that so many bytes were written.
    pub(crate) fn transfer_updating(&mut self, configs: [Config; 2], bytes: usize, every: usize) -> Transfer {
        self.run_transfer(configs, false, bytes, 1000, every, false)
    }

    fn run_transfer(
        &mut self,
        configs: [Config; 2],
        six: bool,
        bytes: usize,
        back: usize,
        every: usize,
        second: bool,
    ) -> Transfer {
        let [near, far] = configs;
        let ((client, client_driver), (server, server_driver)) = (self.client(near), self.server(far));
        let (tls, to, accepting) = (self.client_tls(), self.to(six), server.clone());
        let from: IpAddr = if six { self.near.address().into() } else { self.near.ipv6_address().into() };
        let second = second.then(|| (self.to(!six), from));
        let serving = self.far.spawn("server", async move {
            let connection = accepting.accept().await.unwrap();
            let (mut send, mut receive) = connection.accept_bi().await.unwrap();
            assert_eq!(read_all(&mut receive).await, bytes as u64);
            send.send(body(0, back)).await.unwrap();
            send.finish().unwrap();
            let closed = connection.closed().await;
            // Or what says so was lost.
            let told = Closed::ByPeer { code: 7, reason: Bytes::from_static(b"done") };
            assert!(closed == told || closed == Closed::TimedOut || closed == Closed::Reset, "{closed:?}");
        });
        let (connecting, host, settled) = (client.clone(), self.near.clone(), self.near.clone());
        let asking = self.near.spawn("client", async move {
            let connection = connect(&connecting, &tls, to).await.unwrap();
            if let Some((to, from)) = second {
                let _or_lost = connection.open_path(to, Some(from)).await;
            }
            let (mut send, mut receive) = connection.open_bi().await.unwrap();
            let mut asked = 0;
            for at in (0..bytes).step_by(100_000) {
                if at / every > asked {
                    asked = at / every;
                    connection.update_keys();
                    // The state machine ignores it while keys before the last ones are kept: for three PTO.
                    host.runtime().sleep(Duration::from_millis(200)).await;
                }
                send.send(body(at as u64, 100_000.min(bytes - at))).await.unwrap();
            }
            send.finish().unwrap();
            assert_eq!(read_all(&mut receive).await, back as u64);
            let updates = connection.statistics().unwrap().key_updates;
            connection.close(7, "done");
            updates
        });
        let ends = [client.clone(), server.clone()];
        let updates = self.bed.run(async move {
            let updates = asking.await;
            serving.await;
            for end in ends {
                end.close(0, "");
                end.drained().await;
            }
            client_driver.await.unwrap();
            server_driver.await.unwrap();
            // Contexts are given back.
            settled.runtime().sleep(Duration::from_micros(100)).await;
            updates
        });
        Transfer { client: client.counters(), server: server.counters(), updates }
    }
}
