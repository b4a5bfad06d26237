//! Two hosts in virtual time, with a client and a server.
#![allow(dead_code, reason = "each test uses some of it")]

use bytes::Bytes;
use core::future::{Future, poll_fn};
use core::net::{IpAddr, SocketAddr};
use core::task::{Context, Poll, Waker};
use core::time::Duration;
use nic_sim::{NicConfig, QuicEngineConfig};
use offload_api::{Contexts, Datagram, DatagramSocket, SendLimits, SendRefusal, SocketEvent, TxDatagram};
use offload_base::counters::CounterSet;
use offload_base::{RandomSource, Seed, Timers};
use offload_host_stack::{TcpConfig, UdpSocket};
use offload_testbed::identity::{self, Randomness, server_name};
use offload_testbed::{BedHost, JoinHandle, Testbed};
use offload_wire::{FrameRecorder, LinkConfig};
use quic_offload::StreamError;
use quic_offload::{ClientTls, Closed, Config, Connection, Counters, Driver, Endpoint, ReceiveStream, ServerTls};
use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, Mutex};

pub(crate) const PORT: u16 = 4433;

/// The text that marks plain text on the wire.
pub(crate) const MARKER: &[u8] = b"PLAINTEXT";

pub(crate) struct QuicTestbed {
    pub(crate) bed: Testbed,
    pub(crate) near: BedHost,
    pub(crate) far: BedHost,
    pub(crate) wire: FrameRecorder,
    pub(crate) seed: Seed,
}

pub(crate) fn nic() -> NicConfig {
    NicConfig { lro_datagrams: true, ..NicConfig::default() }
}

pub(crate) fn without_quic() -> NicConfig {
    NicConfig { engines: QuicEngineConfig { contexts: 0 }.into(), ..nic() }
}

impl QuicTestbed {
    pub(crate) fn new(seed: u64, nics: [NicConfig; 2], link: LinkConfig) -> QuicTestbed {
        QuicTestbed::wired(seed, nics, [link])
    }

    /// Creates a world with a wire for each address of a host.
    pub(crate) fn wired(seed: u64, nics: [NicConfig; 2], links: impl IntoIterator<Item = LinkConfig>) -> QuicTestbed {
        let wire = FrameRecorder::default();
        let mut builder = Testbed::builder(Seed(seed));
        for (name, nic) in ["near", "far"].into_iter().zip(nics) {
            builder = builder.host(name, nic, TcpConfig::default());
        }
        let bed = builder.wires(0, 1, links).recorded(&wire).build().unwrap();
        let (near, far) = (bed.host(0).clone(), bed.host(1).clone());
        QuicTestbed { bed, near, far, wire, seed: Seed(seed) }
    }

    pub(crate) fn config(&self, name: &str) -> Config {
        Config::default().with(|c| c.random = Some(RandomSource::from(self.seed.derive(name))))
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

/// A driver that can be dropped together with its socket.
pub(crate) struct DriverStopper(Arc<Mutex<Option<Driver>>>, Arc<Mutex<Option<Waker>>>);

impl DriverStopper {
    pub(crate) fn stop(self) {
        drop(self.0.lock().unwrap().take());
        self.1.lock().unwrap().take().into_iter().for_each(Waker::wake);
    }
}

pub(crate) fn stoppable(host: &BedHost, port: u16, config: Config, tls: ServerTls) -> (Endpoint, DriverStopper) {
    let socket = host.stack().bind_udp(Some(port)).unwrap();
    let (endpoint, driver) = Endpoint::new(socket, host.runtime(), config, Some(tls)).unwrap();
    let stop = DriverStopper(Arc::new(Mutex::new(Some(driver))), Arc::default());
    let (driver, waker) = (stop.0.clone(), stop.1.clone());
    let _driver_task = host.spawn(
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

/// Returns position-dependent bytes, with the marker among them.
pub(crate) fn body(from: u64, bytes: usize) -> Bytes {
    /// Bytes after which all three factors below repeat.
    const PERIOD: usize = 97 * 251 * 256;
    static ONCE: LazyLock<Vec<u8>> = LazyLock::new(|| {
        let byte = |at| if at % 97 < MARKER.len() { MARKER[at % 97] } else { (at / 97 + at % 251) as u8 };
        (0..PERIOD).map(byte).collect()
    });
    let mut body = Vec::with_capacity(bytes);
    while body.len() < bytes {
        let rest = &ONCE[(from as usize + body.len()) % PERIOD..];
        body.extend_from_slice(&rest[..rest.len().min(bytes - body.len())]);
    }
    body.into()
}

/// Reads a stream to its end. Returns its length. Each read is started and dropped once before.
pub(crate) async fn read_all(stream: &mut ReceiveStream) -> u64 {
    read_by(stream, |_| {}).await.unwrap()
}

/// Reads a stream to its end and reports the progress.
async fn read_by(stream: &mut ReceiveStream, mut so_far: impl FnMut(u64)) -> Result<u64, StreamError> {
    let mut at = 0;
    loop {
        so_far(at);
        let first = poll_fn(|cx| {
            let receiving = core::pin::pin!(stream.receive(1 << 10));
            Poll::Ready(match receiving.poll(cx) {
                Poll::Ready(data) => Some(data),
                Poll::Pending => None,
            })
        });
        let data = match first.await {
            Some(data) => data,
            None => stream.receive(1 << 20).await,
        };
        let Some(data) = data? else { break };
        assert!(data == body(at, data.len()), "from {at} on");
        at += data.len() as u64;
    }
    Ok(at)
}

/// A stream from client to server, and one back.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct TransferPlan {
    /// Whether the first path uses IPv6.
    pub(crate) six: bool,
    pub(crate) bytes: [usize; 2],
    /// Bytes written between requested key updates.
    pub(crate) every: Option<usize>,
    /// Whether a second path uses the other version of IP.
    pub(crate) second: bool,
    /// Whether the client abandons the first path half-way, and the server the second.
    pub(crate) gives_up: [bool; 2],
    /// Number of changes of the client's port, and their interval in microseconds. Packets to an old port are lost.
    pub(crate) moves: (u8, u16),
    /// The socket call with which the client's or the server's device disappears.
    pub(crate) disappears: [Option<u16>; 2],
}

/// The result of a transfer.
#[derive(Debug)]
pub(crate) struct QuicTransfer {
    pub(crate) client: Counters,
    pub(crate) server: Counters,
    pub(crate) updates: u64,
    /// Whether no path was left.
    pub(crate) lost: bool,
}

impl QuicTestbed {
    /// Sends `bytes` from client to server on a stream, and `back` in the other direction.
    pub(crate) fn transfer(&mut self, configs: [Config; 2], six: bool, bytes: usize, back: usize) -> QuicTransfer {
        self.transfer_by(configs, TransferPlan { six, bytes: [bytes, back], ..TransferPlan::default() })
    }

    pub(crate) fn transfer_by(&mut self, configs: [Config; 2], plan: TransferPlan) -> QuicTransfer {
        let done = self.transfer_without_looking(configs, plan);
        assert!(!self.wire.contains(MARKER), "nothing leaves as it is");
        assert!(!done.lost || plan.gives_up != [false; 2], "a path that nobody gives up stays");
        done
    }

    pub(crate) fn transfer_without_looking(&mut self, configs: [Config; 2], plan: TransferPlan) -> QuicTransfer {
        let [near, far] = configs;
        let TransferPlan { six, bytes: [bytes, back], every, second, gives_up, moves, disappears } = plan;
        let (socket, mover) = RigSocket::new(&self.near, 5000, moves.0, disappears[0]);
        let (client, driver) = Endpoint::new(socket, self.near.runtime(), near, None).unwrap();
        let client_driver = self.near.spawn("driver", driver);
        let (socket, _) = RigSocket::new(&self.far, PORT, 0, disappears[1]);
        let (server, driver) = Endpoint::new(socket, self.far.runtime(), far, Some(self.server_tls())).unwrap();
        let server_driver = self.far.spawn("driver", driver);
        let (tls, to, accepting) = (self.client_tls(), self.to(six), server.clone());
        let from: IpAddr = if six { self.near.address().into() } else { self.near.ipv6_address().into() };
        let second = second.then(|| (self.to(!six), from));
        let host = self.near.clone();
        let serving = self.far.spawn("server", async move {
            let connection = accepting.accept().await.unwrap();
            // RFC 9000 9: no move during the handshake. Also not while a path is validated, because the state machine
            // would give up (docs/quic.md).
            let (paths, known) = (1 + usize::from(plan.second), connection.clone());
            let movements = host.clone().spawn("moves", async move {
                while known.close_reason().is_none() && known.statistics().paths < paths {
                    host.runtime().sleep(Duration::from_micros(50)).await;
                }
                for _ in 0..moves.0 {
                    host.runtime().sleep(Duration::from_micros(moves.1.into())).await;
                    mover.go_on();
                }
            });
            let (mut send, mut receive) = connection.accept_bi().await?;
            let mut gives_up = gives_up[1];
            let received = read_by(&mut receive, |at| {
                if at >= bytes as u64 / 2 && core::mem::take(&mut gives_up) {
                    let _ = connection.close_path(1);
                }
            });
            assert_eq!(received.await?, bytes as u64);
            send.send(body(0, back)).await?;
            send.finish()?;
            let closed = connection.closed().await;
            drop(movements);
            // The peer's close may be lost.
            let told = Closed::ByPeer { code: 7, reason: Bytes::from_static(b"done") };
            match closed {
                Closed::TimedOut | Closed::Reset => Ok(()),
                closed if closed == told => Ok(()),
                closed => Err(StreamError::Closed(closed)),
            }
        });
        let (connecting, host, settled) = (client.clone(), self.near.clone(), self.near.clone());
        let every = every.unwrap_or(usize::MAX);
        let asking = self.near.spawn("client", async move {
            let connection = connect(&connecting, &tls, to).await.unwrap();
            if let Some((to, from)) = second {
                let _ = connection.open_path(to, Some(from)).await;
            }
            let (mut send, mut receive) = connection.open_bi().await?;
            let mut asked = 0;
            for at in (0..bytes).step_by(100_000) {
                if at / every > asked {
                    asked = at / every;
                    connection.update_keys();
                    // The state machine ignores requests while it keeps older keys: for three PTO.
                    host.runtime().sleep(Duration::from_millis(200)).await;
                }
                if gives_up[0] && (at..at + 100_000).contains(&(bytes / 2)) {
                    let _ = connection.close_path(0);
                }
                send.send(body(at as u64, 100_000.min(bytes - at))).await?;
            }
            send.finish()?;
            assert_eq!(read_by(&mut receive, |_| {}).await?, back as u64);
            let updates = connection.statistics().key_updates;
            connection.close(7, "done");
            Ok::<_, StreamError>(updates)
        });
        let ends = [client.clone(), server.clone()];
        let (asked, served) = self.bed.run(async move {
            let (asked, served) = (asking.await, serving.await);
            for end in ends {
                end.close(0, "");
                end.drained().await;
            }
            client_driver.await.unwrap();
            server_driver.await.unwrap();
            // The device needs some time to give contexts back.
            settled.runtime().sleep(Duration::from_micros(100)).await;
            (asked, served)
        });
        // One end reports the lost paths; the other reports the same or times out.
        let lost = [asked.as_ref().err(), served.as_ref().err()].contains(&Some(&StreamError::Closed(Closed::NoPath)));
        let updates = if lost { 0 } else { served.and(asked).unwrap() };
        QuicTransfer { client: client.counters(), server: server.counters(), updates, lost }
    }
}

/// A socket with a changing port, as behind a router that forgets mappings. Its device disappears with all contexts
/// after a number of calls; later calls find no device.
struct RigSocket {
    /// Device contexts belong to the first socket.
    sockets: Vec<UdpSocket>,
    at: Arc<AtomicUsize>,
    waker: Arc<Mutex<Option<Waker>>>,
    host: BedHost,
    /// Calls before the device disappears. `None` if it stays.
    left: Option<u16>,
    is_gone: bool,
}

struct Mover(Arc<AtomicUsize>, Arc<Mutex<Option<Waker>>>);

impl Mover {
    fn go_on(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
        self.1.lock().unwrap().take().into_iter().for_each(Waker::wake);
    }
}

impl RigSocket {
    fn new(host: &BedHost, port: u16, moves: u8, left: Option<u16>) -> (RigSocket, Mover) {
        let sockets = (0..=u16::from(moves)).map(|at| host.stack().bind_udp(Some(port + at)).unwrap()).collect();
        let (at, waker) = (Arc::new(AtomicUsize::new(0)), Arc::default());
        let mover = Mover(Arc::clone(&at), Arc::clone(&waker));
        (RigSocket { sockets, at, waker, host: host.clone(), left, is_gone: false }, mover)
    }

    /// Counts a call. Returns the socket of the latest port.
    fn step(&mut self) -> &mut UdpSocket {
        match &mut self.left {
            Some(0) => {
                self.host.reset_device();
                (self.left, self.is_gone) = (None, true);
            }
            Some(left) => *left -= 1,
            None => {}
        }
        &mut self.sockets[self.at.load(Ordering::Relaxed)]
    }
}

impl DatagramSocket for RigSocket {
    fn poll_send(
        &mut self,
        cx: &mut Context<'_>,
        batch: &mut VecDeque<TxDatagram>,
    ) -> Poll<Result<usize, SendRefusal>> {
        *self.waker.lock().unwrap() = Some(cx.waker().clone());
        self.step();
        let asks_nothing = batch.iter().take_while(|datagram| !self.is_gone || datagram.ask.is_none()).count();
        if asks_nothing == 0 && !batch.is_empty() {
            return Poll::Ready(Err(SendRefusal::Ask));
        }
        let mut rest = batch.split_off(asks_nothing);
        let sent = self.sockets[self.at.load(Ordering::Relaxed)].poll_send(cx, batch);
        batch.append(&mut rest);
        sent
    }

    fn limits(&mut self, to: SocketAddr) -> SendLimits {
        self.step().limits(to)
    }

    fn poll_receive(
        &mut self,
        cx: &mut Context<'_>,
        batch: &mut Vec<Datagram>,
        most: usize,
    ) -> Poll<io::Result<usize>> {
        *self.waker.lock().unwrap() = Some(cx.waker().clone());
        let at = self.at.load(Ordering::Relaxed);
        for before in &mut self.sockets[..at] {
            while before.poll_receive(cx, &mut Vec::new(), most).is_ready() {}
        }
        DatagramSocket::poll_receive(self.step(), cx, batch, most)
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        DatagramSocket::local_addr(&self.sockets[0])
    }

    fn control(&mut self, f: &mut dyn FnMut(&mut dyn Contexts)) -> bool {
        self.step();
        !self.is_gone && self.sockets[0].control(f)
    }

    fn poll_device_event(&mut self, cx: &mut Context<'_>) -> Poll<SocketEvent> {
        self.step();
        for socket in &mut self.sockets {
            if let Poll::Ready(event) = socket.poll_device_event(cx) {
                return Poll::Ready(event);
            }
        }
        Poll::Pending
    }
}
