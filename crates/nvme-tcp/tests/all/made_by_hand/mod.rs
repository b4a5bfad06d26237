//! A scripted controller that answers commands, or does not, as a test decides.

#![allow(dead_code, reason = "each test file uses its own part")]

use core::future::poll_fn;
use core::time::Duration;
use nic_sim::NicConfig;
use nic_sim::wire::LinkConfig;
use nvme_tcp::host::{CommandError, ConnectFuture, Connector, Host, HostConfig, HostIdentity};
use nvme_tcp::wire::{
    AdminOpcode, Command, Completion, ConnectionSide, ControllerData, DataHeader, FabricsType, InitializeResponse,
    IoOpcode, NamespaceData, Pdu, PduFraming, PduItem, PduLimits, PduReceiver, Status, property,
};
use offload_api::{SegmentStream, TxTag};
use offload_base::Seed;
use offload_host_stack::TcpConfig;
use offload_testbed::{BedHost, Testbed};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// Action of the controller to a command.
#[derive(Clone, Copy)]
pub(crate) enum ControllerAction {
    Answer,
    /// Answer before the next answer.
    AnswerLate,
    /// Answer together with the next answer, after it.
    AnswerAfterNext,
    /// Answer before the answer to a command with [`ControllerAction::AnswerHeld`].
    Hold,
    AnswerHeld,
    /// Send the late answers and end the connection.
    AnswerLateAndClose,
    Refuse(Status),
    Never,
    /// End the connection.
    Close,
}

type NamespaceScript = dyn Fn(u32) -> (NamespaceData, Vec<u8>) + Send + Sync;
type ReactionScript = dyn Fn(u32, u16, &Command) -> ControllerAction + Send + Sync;

/// A scripted controller.
pub(crate) struct ScriptedController {
    pub(crate) data: ControllerData,
    /// MQES.
    pub(crate) entries: u16,
    /// Action, given the number of the association (from 1), the queue, and the command.
    act: Box<ReactionScript>,
    /// Number of I/O queues, given the number of the association.
    pub(crate) queues: fn(u32) -> u16,
    /// Namespace data and descriptors of every namespace, given the number of the association.
    pub(crate) namespace: Box<NamespaceScript>,
    /// Contents of the changed-namespace log.
    pub(crate) changed: Vec<u32>,
    associations: AtomicU32,
}

impl ScriptedController {
    pub(crate) fn new(
        act: impl Fn(u32, u16, &Command) -> ControllerAction + Send + Sync + 'static,
    ) -> ScriptedController {
        let data = ControllerData {
            controller: 1,
            keep_alive: 10,
            sgl_support: 1,
            command_capsule: 4,
            response_capsule: 1,
            ..ControllerData::default()
        };
        let associations = AtomicU32::new(0);
        let namespace = Box::new(|_| (NamespaceData { blocks: 1000, block_shift: 12, nguid: [7; 16] }, Vec::new()));
        ScriptedController {
            data,
            entries: 127,
            act: Box::new(act),
            queues: |_| 1,
            namespace,
            changed: Vec::new(),
            associations,
        }
    }

    /// Returns the data for a command, and the completion's result.
    fn answer(&self, association: u32, queue: u16, command: &Command) -> (Vec<u8>, u64) {
        let (opcode, word) = (command.opcode(), command.u32(11));
        match AdminOpcode::from_u8(opcode) {
            Some(AdminOpcode::Fabrics) => match FabricsType::from_u8(command.fabrics_type()) {
                Some(FabricsType::Connect) => (Vec::new(), 1),
                // CAP has the queue size (MQES) and, from bit 24, the time to become ready in units of 500 ms.
                Some(FabricsType::PropertyGet) if word == property::CAP => {
                    (Vec::new(), u64::from(self.entries) | 20 << 24)
                }
                Some(FabricsType::PropertyGet) => (Vec::new(), 1),
                _ => (Vec::new(), 0),
            },
            Some(AdminOpcode::Identify) if command.u32(10) == 1 => (self.data.to_bytes(), 0),
            Some(AdminOpcode::Identify) if command.u32(10) == 3 => {
                let mut descriptors = (self.namespace)(association).1;
                descriptors.resize(4096, 0);
                (descriptors, 0)
            }
            Some(AdminOpcode::Identify) => ((self.namespace)(association).0.to_bytes(), 0),
            Some(AdminOpcode::SetFeatures) => {
                let queues = u64::from((self.queues)(association) - 1);
                (Vec::new(), queues | queues << 16)
            }
            Some(AdminOpcode::AsyncEventRequest) => (Vec::new(), NAMESPACES_CHANGED),
            Some(AdminOpcode::GetLogPage) if queue == 0 && command.u32(10) as u8 == CHANGED_NAMESPACES => {
                let mut list: Vec<u8> = self.changed.iter().flat_map(|id| id.to_le_bytes()).collect();
                list.resize(command.sgl().length as usize, 0);
                (list, 0)
            }
            // Read has the same opcode as Get Log Page.
            Some(AdminOpcode::GetLogPage) => (vec![0; command.sgl().length as usize], 0),
            _ => (Vec::new(), 0),
        }
    }
}

/// Serves one connection. `None` when it ends.
async fn serve(mut stream: impl SegmentStream, faulty: Arc<ScriptedController>) -> Option<()> {
    let mut receiver =
        PduReceiver::new(ConnectionSide::Controller, PduLimits { max_in_capsule: 8192, ..PduLimits::default() });
    let (mut queue, mut association) = (0, faulty.associations.load(Ordering::Relaxed));
    let (mut late, mut after_next, mut held) = (Vec::new(), Vec::new(), Vec::new());
    loop {
        let segment = poll_fn(|cx| stream.poll_segment(cx)).await.ok()??;
        stream.consume(segment.data.len());
        receiver.push(segment);
        while let Some(received) = receiver.poll().ok()? {
            let command = match received {
                PduItem::Header { pdu: Pdu::Command(command), .. } => command,
                PduItem::Header { pdu: Pdu::InitializeRequest(_), .. } => {
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
                // A Connect of the admin queue begins an association. I/O queues belong to the latest one.
                if queue == 0 {
                    association = faulty.associations.fetch_add(1, Ordering::Relaxed) + 1;
                }
            }
            let mut answered = vec![(command, Status::SUCCESS)];
            let mut closes = false;
            match (faulty.act)(association, queue, &command) {
                ControllerAction::Answer => {}
                ControllerAction::Refuse(status) => answered[0].1 = status,
                ControllerAction::AnswerLate => {
                    late.push(command);
                    continue;
                }
                ControllerAction::AnswerAfterNext => {
                    after_next.push(command);
                    continue;
                }
                ControllerAction::Hold => {
                    held.push(command);
                    continue;
                }
                ControllerAction::AnswerHeld => late.append(&mut held),
                ControllerAction::AnswerLateAndClose => {
                    answered.clear();
                    closes = true;
                }
                ControllerAction::Never => continue,
                ControllerAction::Close => return None,
            }
            let (before, after) = (late.drain(..), after_next.drain(..));
            // The order of answers is part of the script: late ones, this one, then those after it.
            let answered = before.map(succeeds).chain(answered).chain(after.map(succeeds));
            for (command, status) in answered {
                let (data, result) = faulty.answer(association, queue, &command);
                let id = command.identifier();
                if status.is_success() && !data.is_empty() {
                    let length = data.len() as u32;
                    // The data are sent in one PDU, because a host accepts any division into PDUs.
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
    for piece in PduFraming::default().frame(pdu, [data.into()]).into_pieces() {
        stream.send(piece, TxTag::PLAIN);
    }
}

fn succeeds(command: Command) -> (Command, Status) {
    (command, Status::SUCCESS)
}

struct ScriptedConnector(BedHost, core::net::SocketAddr);

impl Connector for ScriptedConnector {
    fn connect(&self) -> ConnectFuture {
        let (host, address) = (self.0.clone(), self.1);
        Box::pin(async move { Ok(Box::new(host.stack().connect(None, address).await?) as Box<dyn SegmentStream>) })
    }
}

/// Runs `test` with a host connected to the controller. `change` adjusts the host's configuration.
pub(crate) fn with<T: Send + 'static, F: Future<Output = T> + Send + 'static>(
    faulty: ScriptedController,
    change: impl FnOnce(&mut HostConfig),
    test: impl FnOnce(Host, Arc<dyn offload_testbed::Runtime>) -> F,
) -> T {
    let mut bed = Testbed::builder(Seed(1))
        .host("controller", NicConfig::default(), TcpConfig::default())
        .host("host", NicConfig::default(), TcpConfig::default())
        .wire(0, 1, LinkConfig::default())
        .build()
        .unwrap();
    let (far, near) = (bed.host(0).clone(), bed.host(1).clone());
    let (faulty, accepting) = (Arc::new(faulty), far.clone());
    let _task = far.spawn("accept", async move {
        let mut listener = accepting.stack().listen(PORT, 64).unwrap();
        while let Ok(stream) = listener.accept().await {
            let faulty = faulty.clone();
            let _task = accepting.spawn("serve", async move {
                let _ = serve(stream, faulty).await;
            });
        }
    });
    let mut config = HostConfig::new("nqn.2026-01.test:disk", HostIdentity::from_uuid([7; 16]));
    // Short, because many tests lose a connection on purpose.
    config.reconnect_delay = Duration::from_millis(20);
    change(&mut config);
    let opens = ScriptedConnector(near.clone(), (far.address(), PORT).into());
    let (host, tasks) = Host::new(opens, near.runtime(), config);
    for task in tasks {
        let _task = near.spawn("nvme", task);
    }
    let running = near.spawn("application", test(host, near.runtime()));
    bed.run(running)
}

pub(crate) fn is_io(queue: u16, command: &Command, opcode: IoOpcode) -> bool {
    queue > 0 && command.opcode() == opcode as u8
}

/// Returns whether `command` is an Identify for this structure of this namespace.
pub(crate) fn is_identify(queue: u16, command: &Command, cns: u32, namespace: u32) -> bool {
    queue == 0
        && command.opcode() == AdminOpcode::Identify as u8
        && (command.u32(10), command.namespace()) == (cns, namespace)
}

/// Returns whether a command failed because namespace 1 was replaced.
pub(crate) fn is_gone<T>(ended: &Result<T, CommandError>) -> bool {
    matches!(ended, Err(CommandError::NamespaceChanged { namespace: 1 }))
}

/// The initial namespace.
pub(crate) const WAS: NamespaceData = NamespaceData { blocks: 1000, block_shift: 12, nguid: [7; 16] };
/// Result of an Asynchronous Event Request: notice, namespace attributes changed, log page 04h.
const NAMESPACES_CHANGED: u64 = 0x04_00_02;
const CHANGED_NAMESPACES: u8 = 4;
const PORT: u16 = 4420;
