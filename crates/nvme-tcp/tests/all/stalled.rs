//! Connections that wait for memory, for a disk, or for their hosts. They continue as far as possible, and the end of
//! their hosts is noticed.

use crate::rig;

use bytes::Bytes;
use core::future::Future;
use core::pin::Pin;
use core::task::{Context, Poll, Waker};
use core::time::Duration;
use nvme_tcp::core::controller::Job;
use nvme_tcp::namespace::Namespace;
use nvme_tcp::target::{BlockingExecutor, ServeError, Server, Target, TargetConfig, TargetError, TransportConfig};
use nvme_tcp::wire::{Command, FabricsType, InitializeRequest, IoOpcode, Pdu, PduFraming, Sgl};
use offload_api::TokioSegments;
use offload_base::slots::ConnectionSlots;
use offload_base::{Alarm, Clock, Instant, Timers};
use rig::storage::BlockingStorage;
use rig::{Client, DISK, connect_command, segment};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use tokio::io::{AsyncRead, AsyncWrite, DuplexStream, ReadBuf};

const MIB: usize = 1 << 20;
/// Bytes of a PDU besides its data.
const HEADER: usize = 24;
const PIECE: usize = (64 << 10) + HEADER;

/// A clock that the test advances.
#[derive(Default)]
struct ManualClock(Mutex<Duration>);

impl Clock for ManualClock {
    fn now(&self) -> Instant {
        Instant::ZERO + *self.0.lock().unwrap()
    }
}

/// Timers that expire when their task is polled.
struct ManualTimers(Arc<ManualClock>);

impl Clock for ManualTimers {
    fn now(&self) -> Instant {
        self.0.now()
    }
}

impl Timers for ManualTimers {
    fn alarm(&self) -> Box<dyn Alarm> {
        Box::new(ManualAlarm(self.0.clone()))
    }
}

struct ManualAlarm(Arc<ManualClock>);

impl Alarm for ManualAlarm {
    fn poll(&mut self, _: &mut Context<'_>, until: Option<Instant>) -> Poll<()> {
        if until.is_some_and(|until| until <= self.0.now()) { Poll::Ready(()) } else { Poll::Pending }
    }
}

/// An executor that runs jobs at once, or keeps them.
#[derive(Default)]
struct HangingExecutor {
    hangs: AtomicBool,
    stuck: Mutex<Vec<Box<dyn FnOnce() + Send>>>,
}

impl BlockingExecutor for HangingExecutor {
    fn run(&self, work: Box<dyn FnOnce() + Send>) {
        if self.hangs.load(Ordering::SeqCst) { self.stuck.lock().unwrap().push(work) } else { work() }
    }
}

struct StallWakeFlag(AtomicBool);

impl std::task::Wake for StallWakeFlag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::SeqCst);
    }
}

type ServeFuture = Pin<Box<dyn Future<Output = Result<(), ServeError>> + Send>>;

/// A served connection and its host's end.
struct ServedHost {
    server: Server,
    serve: Option<ServeFuture>,
    woken: Arc<StallWakeFlag>,
    far: Option<DuplexStream>,
    disk: Arc<HangingExecutor>,
    time: Arc<ManualClock>,
    /// The admin queue, kept alive for its controller.
    _admin: Client,
    controller: u16,
    limit: usize,
}

impl ServedHost {
    /// Opens I/O queue 1 of a controller of `target`.
    fn new(mut target: Target) -> ServedHost {
        let limit = target.config().memory;
        let (admin, controller) = Client::admin(&mut target);
        let (disk, time) = (Arc::<HangingExecutor>::default(), Arc::<ManualClock>::default());
        let server = Server::new(target, Arc::new(ManualTimers(time.clone())), disk.clone());
        let (near, far) = tokio::io::duplex(64 << 10);
        let serve = Some(Box::pin(server.serve(TokioSegments::new(near))) as _);
        let woken = Arc::new(StallWakeFlag(AtomicBool::new(true)));
        let mut served =
            ServedHost { server, serve, woken, far: Some(far), disk, time, _admin: admin, controller, limit };
        served.send(&Pdu::InitializeRequest(InitializeRequest::default()), &[]);
        let (command, data) = connect_command(1, controller);
        served.send(&Pdu::Command(command), &data.to_bytes());
        // ICResp and the answer to the Connect.
        assert_eq!(served.take(), 128 + HEADER);
        served
    }

    /// Polls the server's task while the task is woken. Returns whether the task has ended.
    fn go(&mut self) -> bool {
        while let Some(serve) = self.serve.as_mut()
            && self.woken.0.swap(false, Ordering::SeqCst)
        {
            let waker: Waker = self.woken.clone().into();
            if serve.as_mut().poll(&mut Context::from_waker(&waker)).is_ready() {
                self.serve = None;
            }
        }
        self.serve.is_none()
    }

    /// Advances the time. Returns whether the server's task has ended.
    fn pass(&mut self, seconds: u64) -> bool {
        *self.time.0.lock().unwrap() += Duration::from_secs(seconds);
        self.woken.0.store(true, Ordering::SeqCst);
        self.go()
    }

    fn send(&mut self, pdu: &Pdu, data: &[u8]) {
        let bytes = framed(pdu, data);
        let far = Pin::new(self.far.as_mut().unwrap());
        let sent = far.poll_write(&mut Context::from_waker(Waker::noop()), &bytes);
        assert!(matches!(sent, Poll::Ready(Ok(sent)) if sent == bytes.len()), "{sent:?}");
        self.go();
    }

    fn read(&mut self, id: u16, blocks: u32) {
        self.send(&read(id, blocks), &[]);
    }

    /// Takes the bytes in the stream.
    fn take(&mut self) -> usize {
        let mut buffer = vec![0; MIB];
        let mut buffer = ReadBuf::new(&mut buffer);
        let far = Pin::new(self.far.as_mut().unwrap());
        match far.poll_read(&mut Context::from_waker(Waker::noop()), &mut buffer) {
            Poll::Ready(Ok(())) => buffer.filled().len(),
            _ => 0,
        }
    }

    /// Takes bytes until no more arrive. Calls `between` after each piece.
    fn take_all(&mut self, mut between: impl FnMut(&mut ServedHost)) -> usize {
        let mut all = 0;
        loop {
            self.go();
            between(self);
            match self.take() {
                0 => return all,
                more => all += more,
            }
        }
    }
}

fn framed(pdu: &Pdu, data: &[u8]) -> Vec<u8> {
    PduFraming::default().frame(pdu, [Bytes::copy_from_slice(data)]).into_pieces().collect::<Vec<_>>().concat()
}

fn read(id: u16, blocks: u32) -> Pdu {
    let read = Command::new(IoOpcode::Read as u8, id).with_namespace(1).with_u32(12, blocks - 1);
    Pdu::Command(read.with_sgl(Sgl::transport(blocks * 4096)))
}

/// Creates a target that sends PDUs of 64 KiB. `None` keeps the default memory.
fn target(memory: Option<usize>) -> Result<Target, TargetError> {
    let transport = TransportConfig { data_bytes: 64 << 10, ..TransportConfig::default() };
    let config = TargetConfig { transport, ..TargetConfig::default() };
    let mut target = Target::new(TargetConfig { memory: memory.unwrap_or(config.memory), ..config })?;
    target.add_subsystem(DISK, None).unwrap();
    target.add_namespace(DISK, Namespace::new(1, 4096, Arc::new(BlockingStorage)).unwrap()).unwrap();
    Ok(target)
}

/// A target with memory for little more than two hosts, all of it held by another queue.
struct StarvedTarget {
    served: ServedHost,
    other: Client,
    next: u16,
    held: Vec<nvme_tcp::wire::WirePdu>,
}

impl StarvedTarget {
    fn new() -> StarvedTarget {
        let Err(TargetError::Memory { needed, .. }) = target(Some(0)) else { panic!("no memory is enough") };
        let mut served = ServedHost::new(target(Some(2 * needed + MIB)).unwrap());
        let controller = served.controller;
        let other = served.server.with_target(|target| {
            let mut other = Client::open(target, false);
            assert!(other.connect(target, 2, controller).status.is_success());
            other
        });
        // Exceeds the promise. Only the first answer fits into the stream.
        served.read(1, 16);
        served.read(2, 256);
        served.read(3, 16);
        let mut starved = StarvedTarget { served, other, next: 1, held: Vec::new() };
        starved.take_what_is_left();
        starved
    }

    /// Reads all memory that is left, and keeps the data.
    fn take_what_is_left(&mut self) {
        let StarvedTarget { served, other, next, held } = self;
        served.server.with_target(|target| {
            for _ in 0..30 {
                // Each read takes what is free now. The loop ends when not even one block fits.
                let free = served.limit - target.stats().memory;
                if *next > 1 && free < 4096 {
                    break;
                }
                let blocks = if *next == 1 { 256 } else { (free / 4096).clamp(1, 256) as u32 };
                other.connection.handle_segment(other.now, segment(&framed(&read(*next, blocks), &[])), target);
                *next += 1;
                while let Some(job) = other.connection.poll_job() {
                    other.connection.complete(other.now, Job::run(job), target);
                }
                held.extend(core::iter::from_fn(|| other.connection.poll_transmit()));
            }
        });
    }
}

#[test]
fn read_data_are_sent_while_others_hold_all_memory() {
    let mut starved = StarvedTarget::new();
    let mut got = 0;
    while {
        starved.served.go();
        starved.take_what_is_left();
        let more = starved.served.take();
        got += more;
        more > 0
    } {}
    assert!(got >= 18 * PIECE, "{got} of {}: no progress", 18 * PIECE);
}

#[test]
fn lost_host_is_noticed_while_others_hold_all_memory() {
    let mut starved = StarvedTarget::new();
    let mut got = 0;
    while got < 16 * PIECE {
        starved.served.go();
        starved.take_what_is_left();
        let more = starved.served.take();
        assert!(more > 0, "{got}");
        got += more;
    }
    starved.served.go();
    starved.served.far = None;
    assert!(starved.served.go(), "the server has not noticed the loss");
}

/// Opens a queue with a flush that its disk never ends, followed by a Disconnect. Most read data are still unsent; the
/// last three PDUs alone do not fill the stream.
fn disconnecting() -> ServedHost {
    let mut served = ServedHost::new(target(None).unwrap());
    served.read(1, 15 * 16);
    // Only the flush hangs. The read data are in the queue already.
    served.disk.hangs.store(true, Ordering::SeqCst);
    served.send(&Pdu::Command(Command::new(IoOpcode::Flush as u8, 2).with_namespace(1)), &[]);
    served.send(&Pdu::Command(Command::fabrics(FabricsType::Disconnect, 3)), &[]);
    served
}

#[test]
fn read_data_are_sent_while_a_disconnect_waits() {
    let mut served = disconnecting();
    assert_eq!(served.take_all(|_| ()), 15 * PIECE + HEADER);
    served.disk.hangs.store(false, Ordering::SeqCst);
    let stuck = core::mem::take(&mut *served.disk.stuck.lock().unwrap());
    stuck.into_iter().for_each(|work| work());
    assert_eq!(served.take_all(|_| ()), 2 * HEADER, "the flush, and the Disconnect");
}

#[test]
fn lost_host_is_noticed_while_a_disconnect_waits() {
    let mut served = disconnecting();
    let mut got = 0;
    while got < 12 * PIECE {
        got += served.take();
        assert!(!served.go());
    }
    served.far = None;
    assert!(served.go(), "the server has not noticed the loss");
}

#[test]
fn host_that_takes_no_answers_loses_its_connection() {
    let mut served = ServedHost::new(target(None).unwrap());
    served.read(1, 256);
    // A slow host that takes something.
    assert!(!served.pass(149) && served.take() > 0);
    assert!(!served.go());
    assert_eq!(served.take_all(|_| ()), 16 * PIECE + HEADER - (64 << 10));
    assert!(!served.pass(149) && !served.pass(149) && !served.pass(1000), "no answer is pending");
    // A new answer starts the clock again.
    served.read(2, 256);
    assert!(!served.pass(149), "progress is checked every 150 seconds");
    assert!(served.pass(151));
    let stats = served.server.with_target(|target| target.stats());
    assert_eq!(stats.stalled_connections, 1);
}

#[test]
fn host_that_sends_no_requested_data_is_reset() {
    let mut served = ServedHost::new(target(None).unwrap());
    let write = |id| Command::new(IoOpcode::Write as u8, id).with_namespace(1).with_sgl(Sgl::transport(4096));
    served.send(&Pdu::Command(write(1)), &[]);
    assert_eq!(served.take(), HEADER, "a request for data");
    assert!(!served.pass(149));
    served.read(2, 1);
    assert_eq!(served.take_all(|_| ()), 4096 + 2 * HEADER, "other commands continue");
    assert!(served.pass(151) || served.pass(151));
    assert_eq!(served.server.with_target(|target| target.stats().stalled_connections), 1);
}

/// A closing server, and the waker of the task that waits for it.
struct ServerClosing {
    close: Pin<Box<dyn Future<Output = ()> + Send>>,
    woken: Arc<StallWakeFlag>,
}

impl ServerClosing {
    fn new(server: &Server) -> ServerClosing {
        ServerClosing { close: Box::pin(server.close()), woken: Arc::new(StallWakeFlag(AtomicBool::new(true))) }
    }

    /// Returns whether the close has finished, polling only if woken.
    fn is_over(&mut self) -> bool {
        let waker: Waker = self.woken.clone().into();
        let is_due = self.woken.0.swap(false, Ordering::SeqCst);
        is_due && self.close.as_mut().poll(&mut Context::from_waker(&waker)).is_ready()
    }
}

#[test]
fn closing_server_answers_received_commands() {
    let mut served = ServedHost::new(target(None).unwrap());
    served.disk.hangs.store(true, Ordering::SeqCst);
    served.read(1, 16);
    let mut closing = ServerClosing::new(&served.server);
    assert!(!closing.is_over() && !served.go());
    served.read(2, 16);
    assert_eq!(served.take(), 0, "the disk has not finished");
    served.disk.hangs.store(false, Ordering::SeqCst);
    let stuck = core::mem::take(&mut *served.disk.stuck.lock().unwrap());
    assert_eq!(stuck.len(), 1);
    stuck.into_iter().for_each(|work| work());
    let answered = served.take_all(|_| {});
    assert!((PIECE..PIECE + 2 * HEADER).contains(&answered), "{answered} bytes are not the answer to the first");
    assert!(served.serve.is_some() && !closing.is_over(), "its host has not closed");
    served.far = None;
    assert!(served.go() && closing.is_over());
}

#[test]
fn closing_server_waits_two_seconds_for_hosts() {
    let mut served = ServedHost::new(target(None).unwrap());
    let write = Command::new(IoOpcode::Write as u8, 1).with_namespace(1).with_u32(12, 15);
    served.send(&Pdu::Command(write.with_sgl(Sgl::transport(16 * 4096))), &[]);
    assert_eq!(served.take(), HEADER, "a request for data");
    let mut closing = ServerClosing::new(&served.server);
    assert!(!closing.is_over() && !served.go());
    assert!(!served.pass(1) && !closing.is_over());
    assert!(served.pass(1) && closing.is_over());
    // Streams served later are finished at once.
    let (near, mut far) = tokio::io::duplex(1 << 10);
    served.far = None;
    served.serve = Some(Box::pin(served.server.serve(TokioSegments::new(near))));
    served.woken.0.store(true, Ordering::SeqCst);
    assert!(!served.go());
    let mut buffer = [0; 8];
    let mut buffer = ReadBuf::new(&mut buffer);
    let read = Pin::new(&mut far).poll_read(&mut Context::from_waker(Waker::noop()), &mut buffer);
    assert!(read.is_ready() && buffer.filled().is_empty(), "the stream is finished");
}

#[test]
fn stream_without_a_connect_gives_its_slot_to_another() {
    let slots = ConnectionSlots::new(1);
    let address = [192, 0, 2, 1].into();
    let mut served = ServedHost::new(target(None).unwrap());
    let mut slot = slots.acquire(address).unwrap();
    let used = served.server.with_target(|target| target.stats().memory);
    for connects in [false, true] {
        let (near, far) = tokio::io::duplex(64 << 10);
        served.serve = Some(Box::pin(served.server.serve_in(slot, TokioSegments::new(near))));
        served.far = Some(far);
        served.woken.0.store(true, Ordering::SeqCst);
        served.send(&Pdu::InitializeRequest(InitializeRequest::default()), &[]);
        if connects {
            let (command, data) = connect_command(1, served.controller);
            served.send(&Pdu::Command(command), &data.to_bytes());
            assert!(slots.acquire(address).is_none() && !served.go());
            return;
        }
        slot = slots.acquire(address).unwrap();
        assert!(served.go());
        // The memory of the first stream was released.
        assert!(served.server.with_target(|target| target.stats().memory) < used);
    }
}
