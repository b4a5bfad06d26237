//! Controllers that misbehave, fall silent or go away, and what becomes of a host and its commands: every one ends.

use core::future::poll_fn;
use core::time::Duration;
use futures_util::future::{join, join_all};
use host_stack::TcpConfig;
use nic_sim::NicConfig;
use nic_sim::wire::LinkConfig;
use nvme_tcp::host::{Buffer, commands};
use nvme_tcp::nvme::fabrics::property;
use nvme_tcp::nvme::identify::{ControllerData, NamespaceData};
use nvme_tcp::pdu::{DataHeader, InitializeResponse, Limits, Side};
use nvme_tcp::shell::host::{CommandError, Connecting, Connector, Failed, Host, HostConfig, HostError};
use nvme_tcp::{AdminOpcode, Command, Completion, FabricsType, Framing, IoOpcode, Pdu, Received, Receiver, Status};
use offload_api::{SegmentStream, TxTag};
use offload_base::Seed;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use testbed::{BedHost, Testbed};

/// What a controller does about a command.
#[derive(Clone, Copy)]
enum Act {
    Answer,
    /// Before the next one is.
    AnswerLate,
    /// In one go with the next one, after it.
    AnswerAfterNext,
    /// The connection ends in one go with the answers that are late.
    AnswerLateAndClose,
    Refuse(Status),
    Never,
    /// The connection ends.
    Close,
}

type Acts = dyn Fn(u32, u16, &Command) -> Act + Send + Sync;

/// What a controller is like.
struct Faulty {
    data: ControllerData,
    /// MQES.
    entries: u16,
    /// Given the number of the association (from 1 on), the queue, and the command.
    act: Box<Acts>,
    /// Given the number of the association.
    queues: fn(u32) -> u16,
    associations: AtomicU32,
}

impl Faulty {
    fn new(act: impl Fn(u32, u16, &Command) -> Act + Send + Sync + 'static) -> Faulty {
        let data = ControllerData {
            controller: 1,
            keep_alive: 10,
            sgl_support: 1,
            command_capsule: 4,
            response_capsule: 1,
            ..ControllerData::default()
        };
        let associations = AtomicU32::new(0);
        Faulty { data, entries: 127, act: Box::new(act), queues: |_| 1, associations }
    }

    /// What is sent for a command, and the completion's result.
    fn answer(&self, association: u32, command: &Command) -> (Vec<u8>, u64) {
        let (opcode, word) = (command.opcode(), command.u32(11));
        match AdminOpcode::from_u8(opcode) {
            Some(AdminOpcode::Fabrics) => match FabricsType::from_u8(command.fabrics_type()) {
                Some(FabricsType::Connect) => (Vec::new(), 1),
                Some(FabricsType::PropertyGet) if word == property::CAP => {
                    (Vec::new(), u64::from(self.entries) | 20 << 24)
                }
                Some(FabricsType::PropertyGet) => (Vec::new(), 1),
                _ => (Vec::new(), 0),
            },
            Some(AdminOpcode::Identify) if command.u32(10) == 1 => (self.data.to_bytes(), 0),
            Some(AdminOpcode::Identify) => {
                (NamespaceData { blocks: 1000, block_shift: 12, nguid: [7; 16] }.to_bytes(), 0)
            }
            Some(AdminOpcode::SetFeatures) => {
                let queues = u64::from((self.queues)(association) - 1);
                (Vec::new(), queues | queues << 16)
            }
            // Also Read, of an I/O queue.
            Some(AdminOpcode::GetLogPage) => (vec![0; command.sgl().length as usize], 0),
            _ => (Vec::new(), 0),
        }
    }
}

/// One connection; `None` when it ends.
async fn serve(mut stream: impl SegmentStream, faulty: Arc<Faulty>) -> Option<()> {
    let mut receiver = Receiver::new(Side::Controller, Limits { max_in_capsule: 8192, ..Limits::default() });
    let (mut queue, mut association) = (0, faulty.associations.load(Ordering::Relaxed));
    let (mut late, mut after_next) = (Vec::new(), Vec::new());
    loop {
        let segment = poll_fn(|cx| stream.poll_segment(cx)).await.ok()??;
        stream.consume(segment.data.len());
        receiver.push(segment);
        while let Some(received) = receiver.poll().ok()? {
            let command = match received {
                Received::Header { pdu: Pdu::Command(command), .. } => command,
                Received::Header { pdu: Pdu::InitializeRequest(_), .. } => {
                    let agreed = InitializeResponse {
                        version: 0,
                        alignment: 0,
                        header_digest: false,
                        data_digest: false,
                        max_data: 4096,
                    };
                    send(&mut stream, &Pdu::InitializeResponse(agreed), Vec::new());
                    stream.flush();
                    continue;
                }
                _ => continue,
            };
            let fabrics = command.opcode() == AdminOpcode::Fabrics as u8;
            if fabrics && command.fabrics_type() == FabricsType::Connect as u8 {
                queue = command.u16(42);
                if queue == 0 {
                    association = faulty.associations.fetch_add(1, Ordering::Relaxed) + 1;
                }
            }
            let mut answered = vec![(command, Status::SUCCESS)];
            let mut closes = false;
            match (faulty.act)(association, queue, &command) {
                Act::Answer => {}
                Act::Refuse(status) => answered[0].1 = status,
                Act::AnswerLate => {
                    late.push(command);
                    continue;
                }
                Act::AnswerAfterNext => {
                    after_next.push(command);
                    continue;
                }
                Act::AnswerLateAndClose => {
                    answered.clear();
                    closes = true;
                }
                Act::Never => continue,
                Act::Close => return None,
            }
            let (before, after) = (late.drain(..), after_next.drain(..));
            let answered = before.map(succeeds).chain(answered).chain(after.map(succeeds));
            for (command, status) in answered {
                let (data, result) = faulty.answer(association, &command);
                let id = command.identifier();
                if status.is_success() && !data.is_empty() {
                    let length = data.len() as u32;
                    let header = DataHeader { command: id, tag: 0, offset: 0, length, last: true, success: false };
                    send(&mut stream, &Pdu::ControllerData(header), data);
                }
                let completion = Completion { result, queue_head: 0xffff, queue: 0, command: id, status };
                send(&mut stream, &Pdu::Response(completion), Vec::new());
            }
            stream.flush();
            if closes {
                stream.finish();
                return None;
            }
        }
    }
}

fn send(stream: &mut impl SegmentStream, pdu: &Pdu, data: Vec<u8>) {
    for piece in Framing::default().frame(pdu, [data.into()]).into_pieces() {
        stream.send(piece, TxTag::PLAIN);
    }
}

fn succeeds(command: Command) -> (Command, Status) {
    (command, Status::SUCCESS)
}

struct Opens(BedHost, core::net::SocketAddr);

impl Connector for Opens {
    fn connect(&self) -> Connecting {
        let (host, address) = (self.0.clone(), self.1);
        Box::pin(async move { Ok(Box::new(host.stack().connect(None, address).await?) as Box<dyn SegmentStream>) })
    }
}

/// Runs `test` with a host of the controller; its config is changed first.
fn with<T: Send + 'static, F: Future<Output = T> + Send + 'static>(
    faulty: Faulty,
    change: impl FnOnce(&mut HostConfig),
    test: impl FnOnce(Host, Arc<dyn testbed::Runtime>) -> F,
) -> T {
    let mut bed = Testbed::builder(Seed(1))
        .host("controller", NicConfig::default(), TcpConfig::default())
        .host("host", NicConfig::default(), TcpConfig::default())
        .wire(0, 1, LinkConfig::default())
        .build()
        .unwrap();
    let (far, near) = (bed.host(0).clone(), bed.host(1).clone());
    let (faulty, accepting) = (Arc::new(faulty), far.clone());
    let _runs_on = far.spawn("accept", async move {
        let mut listener = accepting.stack().listen(PORT, 64).unwrap();
        while let Ok(stream) = listener.accept().await {
            let faulty = faulty.clone();
            let _runs_on = accepting.spawn("serve", async move {
                let _ended = serve(stream, faulty).await;
            });
        }
    });
    let mut config = HostConfig::new("nqn.2026-01.test:disk");
    config.reconnect_delay = Duration::from_millis(20);
    change(&mut config);
    let opens = Opens(near.clone(), (far.address(), PORT).into());
    let (host, tasks) = Host::new(opens, near.runtime(), config);
    for task in tasks {
        let _runs_on = near.spawn("nvme", task);
    }
    let running = near.spawn("application", test(host, near.runtime()));
    bed.run(running)
}

fn is_io(queue: u16, command: &Command, opcode: IoOpcode) -> bool {
    queue > 0 && command.opcode() == opcode as u8
}

#[test]
fn what_cannot_be_used_is_refused() {
    type Change = fn(&mut Faulty);
    let rows: [(Change, &str); 4] = [
        (|faulty| faulty.entries = 0, "no room"),
        (|faulty| faulty.data.in_capsule_offset = 1, "do not follow"),
        (|faulty| faulty.data.command_capsule = 3, "too small"),
        (|faulty| faulty.data.sgl_support = 0, "SGLs"),
    ];
    for (change, reason) in rows {
        let mut faulty = Faulty::new(|_, _, _| Act::Answer);
        change(&mut faulty);
        let refused = with(faulty, |_| (), |host, _| async move { host.ready().await });
        let Err(HostError::Unsuitable(text)) = refused else { panic!("{reason}: {refused:?}") };
        assert!(text.contains(reason), "{text}");
    }
}

#[test]
fn a_queue_is_no_deeper_than_the_controller_takes() {
    for (entries, max_commands, sent) in [(7, 0, 7), (127, 9, 8), (127, 1, 1), (500, 0, 200)] {
        let size = Arc::new(Mutex::new(0));
        let seen = size.clone();
        let mut faulty = Faulty::new(move |_, queue, command| {
            if queue == 1 && command.opcode() == AdminOpcode::Fabrics as u8 {
                *seen.lock().unwrap() = command.u16(44);
            }
            Act::Answer
        });
        (faulty.entries, faulty.data.max_commands) = (entries, max_commands);
        with(faulty, |config| config.depth = 200, |host, _| async move { host.ready().await.unwrap() });
        assert_eq!(*size.lock().unwrap(), sent, "MQES {entries}, MAXCMD {max_commands}");
    }
}

#[test]
fn a_command_that_no_connection_survives_fails_in_the_end() {
    let faulty = Faulty::new(|_, queue, command| match is_io(queue, command, IoOpcode::Read) {
        true if command.u64(10) == 13 => Act::Close,
        _ => Act::Answer,
    });
    let (stats, took) = with(
        faulty,
        |_| (),
        |host, runtime| async move {
            host.ready().await.unwrap();
            let disk = host.disk(1).await.unwrap();
            let start = runtime.now();
            let failed = disk.read(13, disk.buffer(1)).await;
            let Err(Failed { error: CommandError::Lost(_), buffer }) = failed else { panic!("{failed:?}") };
            assert_eq!(buffer.len(), 4096);
            let took = runtime.now() - start;
            disk.read(12, disk.buffer(1)).await.unwrap();
            (host.stats(), took)
        },
    );
    assert_eq!((stats.replays, stats.connects), (8, 10));
    // 20, 40, 80, .. ms: connections that do not last are no reason to begin anew.
    assert!(took > Duration::from_secs(5), "{took:?}");
}

#[test]
fn a_controller_that_is_gone_again_is_no_reason_to_give_up() {
    let faulty = Faulty::new(|association, queue, command| match (association, queue, command.opcode()) {
        (1, 1, opcode) if opcode == IoOpcode::Flush as u8 => Act::Close,
        // Gone between the admin queue's Connect and this one.
        (2, 1, opcode) if opcode == AdminOpcode::Fabrics as u8 => Act::Refuse(Status::CONNECT_INVALID_PARAMETERS),
        _ => Act::Answer,
    });
    let stats = with(
        faulty,
        |_| (),
        |host, _| async move {
            host.ready().await.unwrap();
            host.disk(1).await.unwrap().flush().await.unwrap();
            host.stats()
        },
    );
    assert_eq!((stats.connects, stats.replays), (2, 1));
}

#[test]
fn with_fewer_queues_than_before_nothing_is_left_behind() {
    let mut faulty = Faulty::new(|association, queue, command| match is_io(queue, command, IoOpcode::Read) {
        // Reads of block 1 are never answered.
        true if command.u64(10) == 1 || association == 1 => Act::Never,
        _ if is_io(queue, command, IoOpcode::Flush) && association == 1 => Act::Close,
        _ => Act::Answer,
    });
    faulty.queues = |association| if association == 1 { 4 } else { 1 };
    with(
        faulty,
        |config| config.queues = 4,
        |host, runtime| async move {
            host.ready().await.unwrap();
            assert_eq!(host.queues(), 4);
            let disk = host.disk(1).await.unwrap();
            let reads: Vec<_> = (0..8).map(|_| disk.read(0, disk.buffer(1))).collect();
            let stuck: Vec<_> = (0..8).map(|_| disk.read(1, disk.buffer(1))).collect();
            disk.flush().await.unwrap();
            assert!(join_all(reads).await.iter().all(Result::is_ok));
            runtime.sleep(Duration::from_secs(1)).await;
            assert_eq!(host.queues(), 1);
            stuck.iter().for_each(|read| read.cancel());
            for read in join_all(stuck).await {
                assert!(matches!(read, Err(Failed { error: CommandError::Cancelled, .. })), "{read:?}");
            }
        },
    );
}

#[test]
fn a_command_that_ends_during_the_goodbye_ends() {
    for (of_read, of_shutdown) in [
        (Act::AnswerLate, Act::Answer),
        (Act::AnswerAfterNext, Act::Answer),
        (Act::AnswerLate, Act::AnswerLateAndClose),
    ] {
        let faulty = Faulty::new(move |_, queue, command| match AdminOpcode::from_u8(command.opcode()) {
            Some(AdminOpcode::GetLogPage) if queue == 0 => of_read,
            // CC.SHN
            Some(AdminOpcode::Fabrics)
                if command.fabrics_type() == FabricsType::PropertySet as u8 && command.u32(12) & 0b11 << 14 != 0 =>
            {
                of_shutdown
            }
            _ => Act::Answer,
        });
        with(
            faulty,
            |config| config.keep_alive = Duration::ZERO,
            |host, runtime| async move {
                host.ready().await.unwrap();
                let read = host.admin_read(commands::log_page(2, 0, 512), Buffer::zeroed(512));
                runtime.sleep(Duration::from_millis(100)).await;
                let (read, ()) = join(read, host.close()).await;
                assert_eq!(read.unwrap().len(), 512);
            },
        );
    }
}

#[test]
fn a_host_can_be_closed_while_it_connects() {
    for connects in [0, 1] {
        // At first, or again after a loss.
        let faulty = Faulty::new(move |association, queue, command| match association {
            _ if is_io(queue, command, IoOpcode::Flush) => Act::Close,
            _ if association > connects => Act::Never,
            _ => Act::Answer,
        });
        with(
            faulty,
            |_| (),
            move |host, runtime| async move {
                let mut lost = None;
                if connects == 1 {
                    host.ready().await.unwrap();
                    lost = Some(host.disk(1).await.unwrap().flush());
                }
                runtime.sleep(Duration::from_secs(1)).await;
                let start = runtime.now();
                host.close().await;
                assert!(runtime.now() - start < Duration::from_secs(1));
                assert!(matches!(host.ready().await, Err(HostError::Closed)));
                if let Some(lost) = lost {
                    assert!(matches!(lost.await, Err(CommandError::Lost(HostError::Closed))));
                }
            },
        );
    }
}

#[test]
fn a_controller_that_falls_silent_is_noticed() {
    let faulty = Faulty::new(|association, queue, command| match AdminOpcode::from_u8(command.opcode()) {
        Some(AdminOpcode::KeepAlive) if queue == 0 && association == 1 => Act::Never,
        _ => Act::Answer,
    });
    let connects = with(
        faulty,
        |config| config.keep_alive = Duration::from_secs(2),
        |host, runtime| async move {
            host.ready().await.unwrap();
            runtime.sleep(Duration::from_millis(1900)).await;
            assert_eq!(host.stats().connects, 1);
            runtime.sleep(Duration::from_secs(8)).await;
            host.stats().connects
        },
    );
    assert_eq!(connects, 2);
}

/// A controller that was not heard of for a time may carry out what it was sent until it has given the host up.
#[test]
fn what_was_lost_in_silence_is_sent_again_when_the_controller_must_have_given_up() {
    for (act, least) in [(Act::Never, 5000), (Act::Close, 20)] {
        let faulty = Faulty::new(move |association, queue, command| match is_io(queue, command, IoOpcode::Write) {
            true if association == 1 => act,
            _ => Act::Answer,
        });
        let (took, stats) = with(
            faulty,
            |config| {
                config.command_timeout = Duration::from_secs(1);
                config.keep_alive = Duration::from_millis(4300);
            },
            move |host, runtime| async move {
                host.ready().await.unwrap();
                let disk = host.disk(1).await.unwrap();
                let start = runtime.now();
                disk.write(0, [vec![1; 4096].into()]).await.unwrap();
                (runtime.now() - start, host.stats())
            },
        );
        let timeout = if matches!(act, Act::Never) { 1000 } else { 0 };
        let waited = took.as_millis().checked_sub(timeout).unwrap();
        assert!((least..least + 10).contains(&waited), "{took:?}");
        assert_eq!((stats.connects, stats.replays), (2, 1));
    }
}

const PORT: u16 = 4420;
