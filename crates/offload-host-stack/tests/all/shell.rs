//! Tests of the async shell, on an executor with a virtual clock.

use crate::nic::{MaskSealer, MaskingNic};
use crate::pair::{ADDRESS, FOUR, PORT, SIX, config};
use crate::transfer::pattern;
use crate::wire::{FaultyWire, WireConfig};
use bytes::Bytes;
use core::future::{Future, poll_fn};
use core::pin::Pin;
use core::task::{Context, Poll, Waker};
use core::time::Duration;
use offload_api::{DeviceEvent, Handle, Layer, SegmentStream, SendProgress, TxTag, UnitTag};
use offload_base::{Alarm, Clock, Instant, Seed, Timers};
use offload_host_stack::{Host, TcpConfig, TcpListener, TcpStream};
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Wake;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// An executor with a clock that jumps from deadline to deadline.
#[derive(Default)]
struct VirtualRuntime {
    now: Mutex<Instant>,
    alarms: Mutex<BTreeMap<(Instant, u64), Waker>>,
    next_alarm: Mutex<u64>,
    /// Number of clock reads. A shell reads the clock each time after taking its lock.
    looks: AtomicU64,
    ready: Mutex<VecDeque<usize>>,
}

struct ShellTask {
    runtime: Arc<VirtualRuntime>,
    index: usize,
}

impl Wake for ShellTask {
    fn wake(self: Arc<Self>) {
        let mut ready = self.runtime.ready.lock().unwrap();
        if !ready.contains(&self.index) {
            ready.push_back(self.index);
        }
    }
}

struct VirtualTimers(Arc<VirtualRuntime>);

impl Clock for VirtualTimers {
    fn now(&self) -> Instant {
        self.0.looks.fetch_add(1, Ordering::Relaxed);
        *self.0.now.lock().unwrap()
    }
}

impl Timers for VirtualTimers {
    fn alarm(&self) -> Box<dyn Alarm> {
        Box::new(VirtualAlarm { runtime: self.0.clone(), set: None })
    }
}

struct VirtualAlarm {
    runtime: Arc<VirtualRuntime>,
    set: Option<(Instant, u64)>,
}

impl Alarm for VirtualAlarm {
    fn poll(&mut self, cx: &mut Context<'_>, deadline: Option<Instant>) -> Poll<()> {
        let mut alarms = self.runtime.alarms.lock().unwrap();
        if let Some(set) = self.set.take() {
            alarms.remove(&set);
        }
        let Some(deadline) = deadline else { return Poll::Pending };
        if deadline <= *self.runtime.now.lock().unwrap() {
            return Poll::Ready(());
        }
        let mut next = self.runtime.next_alarm.lock().unwrap();
        *next += 1;
        self.set = Some((deadline, *next));
        alarms.insert((deadline, *next), cx.waker().clone());
        Poll::Pending
    }
}

type BoxFuture = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Two hosts with their service tasks, and the tasks of a test.
struct ShellWorld {
    runtime: Arc<VirtualRuntime>,
    tasks: Vec<Option<BoxFuture>>,
    hosts: Vec<Host>,
    nics: [MaskingNic; 2],
    wire: FaultyWire,
}

impl ShellWorld {
    fn new(wire: WireConfig, tcp: TcpConfig) -> ShellWorld {
        let (runtime, seed) = (Arc::new(VirtualRuntime::default()), Seed(5));
        let nics = [(); 2].map(|()| MaskingNic::new(1500, 65_536, true));
        let timers = Arc::new(VirtualTimers(runtime.clone()));
        let hosts: Vec<Host> = (0..2)
            .map(|side| Host::new(config(side, seed, tcp.clone()), Box::new(nics[side].clone()), timers.clone()))
            .collect();
        let mut world = ShellWorld { runtime, tasks: Vec::new(), hosts, nics, wire: FaultyWire::new(wire, seed) };
        for side in 0..2 {
            let service = world.hosts[side].serve();
            world.spawn(service);
        }
        world
    }

    fn spawn(&mut self, task: impl Future<Output = ()> + Send + 'static) {
        self.runtime.ready.lock().unwrap().push_back(self.tasks.len());
        self.tasks.push(Some(Box::pin(task)));
    }

    /// Runs until every task has ended, or, without `all`, every task except the services.
    fn run(&mut self, all: bool) {
        loop {
            loop {
                // The lock must be free while a task runs, because the task may wake another one.
                let next = self.runtime.ready.lock().unwrap().pop_front();
                let Some(index) = next else { break };
                let Some(task) = &mut self.tasks[index] else { continue };
                let waker = Waker::from(Arc::new(ShellTask { runtime: self.runtime.clone(), index }));
                if task.as_mut().poll(&mut Context::from_waker(&waker)).is_ready() {
                    self.tasks[index] = None;
                }
            }
            let now = *self.runtime.now.lock().unwrap();
            let mut moved = false;
            for side in 0..2 {
                let frames = self.nics[side].port().drain();
                moved |= !frames.is_empty();
                frames.into_iter().for_each(|frame| self.wire.send(now, side, frame));
            }
            while let Some((to, frame)) = self.wire.receive(now) {
                self.nics[to].port().deliver(&frame);
                moved = true;
            }
            if moved || !self.runtime.ready.lock().unwrap().is_empty() {
                continue;
            }
            if self.tasks.iter().skip(if all { 0 } else { 2 }).all(Option::is_none) {
                return;
            }
            let alarm = self.runtime.alarms.lock().unwrap().first_key_value().map(|((at, _), _)| *at);
            let next = [alarm, self.wire.next_event()].into_iter().flatten().min();
            let next = next.expect("waiting tasks must have a next event");
            *self.runtime.now.lock().unwrap() = next;
            let mut alarms = self.runtime.alarms.lock().unwrap();
            while let Some(first) = alarms.first_entry().filter(|first| first.key().0 <= next) {
                first.remove().wake();
            }
        }
    }
}

async fn read(stream: &mut TcpStream, buffer: &mut [u8]) -> io::Result<usize> {
    poll_fn(|cx| {
        let mut buffer = ReadBuf::new(buffer);
        Pin::new(&mut *stream).poll_read(cx, &mut buffer).map_ok(|()| buffer.filled().len())
    })
    .await
}

async fn read_to_end(stream: &mut TcpStream, step: usize) -> io::Result<Vec<u8>> {
    let (mut all, mut buffer) = (Vec::new(), vec![0; step]);
    loop {
        match read(stream, &mut buffer).await? {
            0 => return Ok(all),
            bytes => all.extend_from_slice(&buffer[..bytes]),
        }
    }
}

async fn write_all(stream: &mut TcpStream, mut data: &[u8]) -> io::Result<()> {
    while !data.is_empty() {
        let bytes = poll_fn(|cx| Pin::new(&mut *stream).poll_write(cx, data)).await?;
        data = &data[bytes..];
    }
    Ok(())
}

async fn accept(mut listener: TcpListener) -> (TcpListener, TcpStream) {
    let stream = listener.accept().await.unwrap();
    (listener, stream)
}

fn server_address() -> core::net::SocketAddr {
    (ADDRESS[1], PORT).into()
}

#[test]
fn bytes_are_echoed_and_the_services_end() {
    let wire = WireConfig { loss: 0.01, ..WireConfig::default() };
    // The buffers are far smaller than the data, so both sides wait for each other repeatedly.
    let mut world =
        ShellWorld::new(wire, TcpConfig { send_buffer: 30_000, receive_buffer: 50_000, ..TcpConfig::default() });
    let listener = world.hosts[1].listen(PORT, 4).unwrap();
    world.spawn(async move {
        let (_listener, mut stream) = accept(listener).await;
        let mut buffer = vec![0; 5000];
        loop {
            let bytes = read(&mut stream, &mut buffer).await.unwrap();
            if bytes == 0 {
                break;
            }
            write_all(&mut stream, &buffer[..bytes]).await.unwrap();
        }
        poll_fn(|cx| Pin::new(&mut stream).poll_shutdown(cx)).await.unwrap();
    });
    let connecting = world.hosts[0].connect(None, server_address());
    world.spawn(async move {
        let mut stream = connecting.await.unwrap();
        assert_eq!(stream.peer_addr(), server_address());
        let data = pattern(Seed(9), 400_000);
        let mut echoed = Vec::new();
        // Both directions in one task: it writes and reads as much as possible.
        let (mut sent, mut finished) = (0, false);
        poll_fn(|cx| {
            loop {
                let mut moved = false;
                if sent < data.len() {
                    if let Poll::Ready(bytes) = Pin::new(&mut stream).poll_write(cx, &data[sent..]) {
                        sent += bytes.unwrap();
                        moved = true;
                    }
                } else if !core::mem::replace(&mut finished, true) {
                    stream.finish();
                }
                let mut buffer = [0; 3000];
                let mut buffer = ReadBuf::new(&mut buffer);
                if let Poll::Ready(result) = Pin::new(&mut stream).poll_read(cx, &mut buffer) {
                    result.unwrap();
                    if buffer.filled().is_empty() {
                        return Poll::Ready(());
                    }
                    echoed.extend_from_slice(buffer.filled());
                    moved = true;
                }
                if !moved {
                    return Poll::Pending;
                }
            }
        })
        .await;
        assert!(echoed == data);
        assert!(stream.stats().smoothed_rtt.unwrap() >= Duration::from_micros(100));
    });
    world.hosts.clear();
    world.run(true);
    assert!(
        *world.runtime.now.lock().unwrap() >= Instant::ZERO + Duration::from_secs(60),
        "the service must run until TIME-WAIT ends"
    );
}

#[test]
fn dropped_stream_is_delivered_sealed_after_a_reset() {
    // Losses make the stack send data again after the reset, which only software can seal.
    let wire = WireConfig { loss: 0.03, ..WireConfig::default() };
    let mut world = ShellWorld::new(wire, TcpConfig::default());
    let listener = world.hosts[1].listen(PORT, 4).unwrap();
    let (plain, got) = (pattern(Seed(3), 200 * 1000), Arc::new(Mutex::new(Vec::new())));
    let (nic, data, result) = (world.nics[0].clone(), plain.clone(), got.clone());
    let connecting = world.hosts[0].connect(None, server_address());
    world.spawn(async move {
        let mut stream = connecting.await.unwrap();
        let mut context: Option<Handle> = None;
        assert!(stream.control(&mut |_, _| context = Some(nic.port().add_context())));
        stream.install(Layer::FIRST, Box::new(MaskSealer));
        for (number, unit) in data.chunks(1000).enumerate() {
            let tag = UnitTag { number: number as u64, at: 0, len: 1000, touched_from: 0 };
            let tag = TxTag::device(context.unwrap(), tag);
            stream.send(Bytes::copy_from_slice(unit), tag);
        }
        stream.flush();
        poll_fn(|cx| stream.poll_acked(cx, 50_000)).await.unwrap();
        nic.port().reset();
        assert_eq!(poll_fn(|cx| stream.poll_device_event(cx)).await, DeviceEvent::Reset);
        // The stream is dropped here, with three quarters of its data still unsent.
    });
    world.spawn(async move {
        let (_listener, mut stream) = accept(listener).await;
        *result.lock().unwrap() = read_to_end(&mut stream, 7000).await.unwrap();
    });
    world.run(false);
    let got = got.lock().unwrap();
    assert_eq!(got.len(), plain.len());
    for (place, (sealed, plain)) in got.iter().zip(&plain).enumerate() {
        let unit = offload_api::Unit {
            layer: Layer::FIRST,
            number: place as u64 / 1000,
            offset: 0,
            start: Default::default(),
            len: 1000,
            touched_from: 0,
        };
        let at = unit.start + place as u32 % 1000;
        assert_eq!(*sealed, plain ^ crate::nic::mask(unit, at), "byte {place}");
    }
    assert!(world.hosts[0].counters().sealed_units > 100);
}

#[test]
fn send_turn_takes_the_lock_once() {
    let tcp = TcpConfig { send_buffer: 10_000, ..TcpConfig::default() };
    let mut world = ShellWorld::new(WireConfig::default(), tcp);
    let listener = world.hosts[1].listen(PORT, 4).unwrap();
    let (nic, runtime) = (world.nics[0].clone(), world.runtime.clone());
    let connecting = world.hosts[0].connect(None, server_address());
    world.spawn(async move {
        let mut stream = connecting.await.unwrap();
        assert!(stream.control(&mut |_, _| ()));
        let first = stream.first_seq();
        // Polls a send of two pieces of 3,000 bytes. Returns the result, the number of pieces requested, and how often
        // the lock was taken.
        let turn = |stream: &mut TcpStream, cx: &mut Context<'_>| {
            let (mut asked, before) = (0, runtime.looks.load(Ordering::Relaxed));
            let mut pieces = |_| {
                asked += 1;
                (asked <= 2).then(|| (Bytes::from(vec![asked; 3_000]), TxTag::PLAIN))
            };
            let listener = cx.waker().clone();
            let turn = stream.poll_send(cx, &listener, &mut pieces);
            (turn.map(Result::unwrap), asked, runtime.looks.load(Ordering::Relaxed) - before)
        };
        poll_fn(|cx| {
            let queued = |offset: u32| Poll::Ready(SendProgress::Queued(Some(first + offset)));
            assert_eq!(turn(&mut stream, cx), (queued(0), 3, 1));
            assert_eq!(turn(&mut stream, cx), (queued(6_000), 3, 1), "a turn may exceed the room");
            assert_eq!(turn(&mut stream, cx), (Poll::Pending, 0, 1), "without room no piece is requested");
            nic.port().reset();
            Poll::Ready(())
        })
        .await;
        let news = poll_fn(|cx| match turn(&mut stream, cx) {
            (Poll::Pending, 0, 1) => Poll::Pending,
            ended => Poll::Ready(ended),
        });
        assert_eq!(
            news.await,
            (Poll::Ready(SendProgress::News(DeviceEvent::Reset)), 0, 1),
            "device news come before data"
        );
        poll_fn(|cx| match turn(&mut stream, cx) {
            (Poll::Pending, 0, 1) => Poll::Pending,
            (Poll::Ready(SendProgress::Queued(_)), 3, 1) => Poll::Ready(()),
            other => panic!("{other:?}"),
        })
        .await;
        stream.finish();
        assert!(poll_fn(|cx| stream.poll_segment(cx)).await.unwrap().is_none());
        let waker = Waker::noop();
        let over = stream.poll_send(&mut Context::from_waker(waker), waker, &mut |_| None);
        assert!(matches!(over, Poll::Ready(Err(error)) if error.kind() == io::ErrorKind::BrokenPipe));
    });
    let got = Arc::new(Mutex::new(Vec::new()));
    let result = got.clone();
    world.spawn(async move {
        let (_listener, mut stream) = accept(listener).await;
        *result.lock().unwrap() = read_to_end(&mut stream, 7000).await.unwrap();
    });
    world.run(false);
    let expected: Vec<u8> = (0..6).flat_map(|piece| vec![piece % 2 + 1; 3_000]).collect();
    assert!(*got.lock().unwrap() == expected);
}

#[test]
fn handles_are_send_and_sync() {
    fn sendable<T: Send + 'static>() {}
    fn shareable<T: Sync>() {}
    sendable::<(Host, TcpStream, TcpListener)>();
    shareable::<(Host, TcpStream, TcpListener)>();
}

#[test]
fn udp_socket_waits_for_datagrams() {
    let mut world = ShellWorld::new(WireConfig::default(), TcpConfig::default());
    let server = world.hosts[1].bind_udp(Some(53)).unwrap();
    let client = world.hosts[0].bind_udp(None).unwrap();
    assert_eq!(world.hosts[1].bind_udp(Some(53)).unwrap_err().kind(), io::ErrorKind::AddrInUse);
    assert_eq!((server.local_addr(), server.local_addrs()[0]), ((FOUR[1], 53).into(), (FOUR[1], 53).into()));
    assert!(server.local_addrs().contains(&(SIX[1], 53).into()), "the socket also has the IPv6 address");
    world.spawn(async move {
        for _ in 0..100 {
            let (data, from) = server.recv_from().await.unwrap();
            server.send_to(data.freeze(), from).await.unwrap();
        }
    });
    world.spawn(async move {
        for number in 0..100u8 {
            client.send_to(Bytes::from(vec![number; 100]), (ADDRESS[1], 53).into()).await.unwrap();
            let (data, from) = client.recv_from().await.unwrap();
            assert_eq!((&data[..], from), (&[number; 100][..], (ADDRESS[1], 53).into()));
        }
        let long = client.send_to(Bytes::from(vec![0; 65_536]), (ADDRESS[1], 53).into()).await;
        assert_eq!(long.unwrap_err().kind(), io::ErrorKind::InvalidInput);
    });
    world.run(false);
}

#[test]
fn waiting_tasks_share_a_sockets_datagrams() {
    let mut world = ShellWorld::new(WireConfig::default(), TcpConfig::default());
    let server = Arc::new(world.hosts[1].bind_udp(Some(53)).unwrap());
    let client = world.hosts[0].bind_udp(None).unwrap();
    for _ in 0..3 {
        let server = server.clone();
        world.spawn(async move {
            server.recv_from().await.unwrap();
        });
    }
    world.spawn(async move {
        // All three tasks wait by now. The datagrams leave in one go.
        for number in 0..3 {
            client.send_to(Bytes::from(vec![number; 100]), (ADDRESS[1], 53).into()).await.unwrap();
        }
    });
    world.run(false);
}

#[test]
fn errors_reach_waiting_tasks() {
    let mut world = ShellWorld::new(WireConfig::default(), TcpConfig::default());
    let refused = world.hosts[0].connect(None, (ADDRESS[1], 9).into());
    let nowhere = world.hosts[0].connect(None, "[::1]:80".parse().unwrap());
    let listener = world.hosts[1].listen(PORT, 4).unwrap();
    assert_eq!(world.hosts[1].listen(PORT, 4).unwrap_err().kind(), io::ErrorKind::AddrInUse);
    let connecting = world.hosts[0].connect(Some(1234), server_address());
    world.spawn(async move {
        assert_eq!(refused.await.unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
        assert_eq!(nowhere.await.unwrap_err().kind(), io::ErrorKind::HostUnreachable);
        let mut stream = connecting.await.unwrap();
        assert_eq!(stream.local_addr(), (ADDRESS[0], 1234).into());
        let error = read(&mut stream, &mut [0; 10]).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
        let error = write_all(&mut stream, b"late").await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
        let error = poll_fn(|cx| stream.poll_acked(cx, 1)).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
    });
    world.spawn(async move {
        let (_listener, mut stream) = accept(listener).await;
        stream.abort();
        let error = read(&mut stream, &mut [0; 10]).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionAborted);
    });
    world.run(false);
}

#[test]
fn segments_keep_sequence_numbers_and_verdicts() {
    let mut world = ShellWorld::new(WireConfig::default(), TcpConfig::default());
    let listener = world.hosts[1].listen(PORT, 4).unwrap();
    let connecting = world.hosts[0].connect(None, server_address());
    world.spawn(async move {
        let mut stream = connecting.await.unwrap();
        stream.set_nodelay(true);
        let first = stream.first_seq();
        assert_eq!(stream.send(Bytes::from(vec![1; 3000]), TxTag::PLAIN), first);
        assert_eq!(stream.send(Bytes::from(vec![2; 10]), TxTag::PLAIN), first + 3000);
        stream.finish();
        assert!(poll_fn(|cx| stream.poll_segment(cx)).await.unwrap().is_none());
        poll_fn(|cx| stream.poll_acked(cx, 3010)).await.unwrap();
    });
    world.spawn(async move {
        let (_listener, mut stream) = accept(listener).await;
        let mut next = None;
        let mut total = 0;
        while let Some(segment) = poll_fn(|cx| stream.poll_segment(cx)).await.unwrap() {
            assert_eq!(segment.meta.checksums, offload_api::rx::Checksums::Good);
            assert_eq!(segment.seq, next.unwrap_or(segment.seq));
            next = Some(segment.end());
            total += segment.data.len();
            stream.consume(segment.data.len());
        }
        assert_eq!(total, 3010);
    });
    world.run(false);
}

#[test]
fn dropped_connect_future_ends_the_connection() {
    let mut world = ShellWorld::new(WireConfig { loss: 1.0, ..WireConfig::default() }, TcpConfig::default());
    let connecting = world.hosts[0].connect(None, server_address());
    assert_eq!(world.hosts[0].connections(), 1);
    drop(connecting);
    assert_eq!(world.hosts[0].connections(), 0);
    world.hosts.clear();
    world.run(true);
}
