//! A scripted host, which can violate the protocol.

#![allow(dead_code, reason = "each test file uses its own part")]

pub(crate) mod storage;

use bytes::{Bytes, BytesMut};
use nvme_tcp::core::controller::Connection;
use nvme_tcp::namespace::{MemoryStorage, Namespace};
use nvme_tcp::target::{Target, TargetConfig, TransportConfig};
use nvme_tcp::wire::{
    Command, Completion, ConnectData, ConnectionSide, DataHeader, FabricsType, InitializeRequest, IoOpcode, Pdu,
    PduFraming, PduItem, PduLimits, PduReceiver, ReadyToTransfer, Sgl, Status, Termination, property,
};
use offload_api::{RxMeta, RxSegment};
use offload_base::{Instant, Seq};
use std::sync::Arc;

pub(crate) const DISK: &str = "nqn.2026-01.test:disk";
pub(crate) const HOST: &str = "nqn.2026-01.test:host";

/// Creates a target with one disk of 1 MiB and 64 blocks of 512 bytes.
pub(crate) fn target(transport: TransportConfig) -> Target {
    let mut target = Target::new(TargetConfig { transport, ..TargetConfig::default() }).unwrap();
    target.add_subsystem(DISK, None).unwrap();
    let storage = Arc::new(MemoryStorage::new((2048 + 64) * 512));
    target.add_namespace(DISK, Namespace::new(1, 512, storage).unwrap()).unwrap();
    target
}

/// A client of the target: a connection, and the host's end of it.
pub(crate) struct Client {
    pub(crate) connection: Connection,
    pub(crate) framing: PduFraming,
    receiver: PduReceiver,
    pub(crate) now: Instant,
}

/// A received PDU and its data.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ReceivedPdu(pub(crate) Pdu, pub(crate) Vec<u8>);

impl Client {
    pub(crate) fn new(target: &mut Target) -> Client {
        let connection = target.accept(Instant::ZERO);
        let receiver = PduReceiver::new(ConnectionSide::Host, PduLimits::default());
        Client { connection, framing: PduFraming::default(), receiver, now: Instant::ZERO }
    }

    /// Opens a connection with or without digests.
    pub(crate) fn open(target: &mut Target, digests: bool) -> Client {
        Client::open_as(target, digests, 4)
    }

    /// Opens a connection that allows `requests` outstanding requests to transfer.
    pub(crate) fn open_with_requests(target: &mut Target, requests: u32) -> Client {
        Client::open_as(target, false, requests)
    }

    fn open_as(target: &mut Target, digests: bool, requests: u32) -> Client {
        let mut wire = Client::new(target);
        let request = InitializeRequest {
            header_digest: digests,
            data_digest: digests,
            max_requests: requests - 1,
            ..InitializeRequest::default()
        };
        let came = wire.send(target, &Pdu::InitializeRequest(request), &[]);
        let [ReceivedPdu(Pdu::InitializeResponse(response), _)] = &came[..] else { panic!("{came:?}") };
        assert_eq!((response.header_digest, response.data_digest), (digests, digests));
        wire.framing = PduFraming { header_digest: digests, data_digest: digests, alignment: 0 };
        let limits = PduLimits { header_digest: digests, data_digest: digests, ..PduLimits::default() };
        wire.receiver.set_limits(limits);
        wire
    }

    /// Opens the admin queue of an enabled controller. Returns the controller's identifier, too.
    pub(crate) fn admin(target: &mut Target) -> (Client, u16) {
        let mut wire = Client::open(target, false);
        let completion = wire.connect(target, 0, 0xffff);
        assert!(completion.status.is_success(), "{completion:?}");
        let enable = Command::fabrics(FabricsType::PropertySet, 1).with_u32(11, property::CC).with_u32(12, 0x0046_0001);
        assert!(wire.command(target, enable, &[]).status.is_success());
        (wire, completion.result as u16)
    }

    /// Opens an I/O queue. Returns the admin queue, too, which must be kept alive.
    pub(crate) fn io(target: &mut Target, digests: bool) -> (Client, Client) {
        let (admin, controller) = Client::admin(target);
        let mut wire = Client::open(target, digests);
        let completion = wire.connect(target, 1, controller);
        assert!(completion.status.is_success(), "{completion:?}");
        (wire, admin)
    }

    pub(crate) fn connect(&mut self, target: &mut Target, queue: u16, controller: u16) -> Completion {
        let (command, data) = connect_command(queue, controller);
        self.command(target, command, &data.to_bytes())
    }

    /// Sends a command with in-capsule data, and expects a completion without data.
    pub(crate) fn command(&mut self, target: &mut Target, command: Command, data: &[u8]) -> Completion {
        let command = if data.is_empty() { command } else { command.with_sgl(Sgl::in_capsule(data.len() as u32)) };
        let came = self.send(target, &Pdu::Command(command), data);
        let [ReceivedPdu(Pdu::Response(completion), _)] = &came[..] else { panic!("{command:?}: {came:?}") };
        assert_eq!(completion.command, command.identifier());
        *completion
    }

    /// Sends a PDU and returns the received PDUs.
    pub(crate) fn send(&mut self, target: &mut Target, pdu: &Pdu, data: &[u8]) -> Vec<ReceivedPdu> {
        let pieces = self.framing.frame(pdu, [Bytes::copy_from_slice(data)]).into_pieces();
        self.send_bytes(target, &pieces.collect::<Vec<_>>().concat())
    }

    pub(crate) fn send_bytes(&mut self, target: &mut Target, bytes: &[u8]) -> Vec<ReceivedPdu> {
        self.connection.handle_segment(self.now, segment(bytes), target);
        // Jobs run at once, so that tests see all answers.
        while let Some(job) = self.connection.poll_job() {
            self.connection.complete(self.now, job.run(), target);
        }
        self.collect()
    }

    /// Collects the PDUs from the controller.
    pub(crate) fn collect(&mut self) -> Vec<ReceivedPdu> {
        let mut came = Vec::new();
        while let Some(pdu) = self.connection.poll_transmit() {
            for piece in pdu.into_pieces() {
                self.receiver.push(segment(&piece));
            }
            while let Some(received) = self.receiver.poll().unwrap() {
                match received {
                    PduItem::Header { pdu, .. } => came.push(ReceivedPdu(pdu, Vec::new())),
                    PduItem::Data(segment) => came.last_mut().unwrap().1.extend_from_slice(&segment.data),
                    PduItem::DataEnd { intact } => assert!(intact),
                }
            }
        }
        came
    }
}

pub(crate) fn connect_command(queue: u16, controller: u16) -> (Command, ConnectData) {
    let command = Command::fabrics(FabricsType::Connect, 0)
        .with_u32(10, u32::from(queue) << 16)
        .with_u32(11, 31)
        .with_sgl(Sgl::in_capsule(ConnectData::LEN as u32));
    let data = ConnectData { host_id: [7; 16], controller, subsystem: DISK.into(), host: HOST.into() };
    (command, data)
}

pub(crate) fn segment(bytes: &[u8]) -> RxSegment {
    RxSegment { seq: Seq(0), data: BytesMut::from(bytes).into(), meta: RxMeta::default() }
}

pub(crate) fn host_data(request: &ReadyToTransfer) -> DataHeader {
    let ReadyToTransfer { command, tag, offset, length } = *request;
    DataHeader { command, tag, offset, length, last: true, success: false }
}

pub(crate) fn termination(came: &[ReceivedPdu]) -> (Termination, &[u8]) {
    match came {
        [.., ReceivedPdu(Pdu::ControllerTermination(termination), header)] => (*termination, header),
        _ => panic!("no C2HTermReq: {came:?}"),
    }
}

pub(crate) fn property_set(value: u32) -> Command {
    Command::fabrics(FabricsType::PropertySet, 20).with_u32(11, property::CC).with_u32(12, value)
}

pub(crate) fn property_get(offset: u32) -> Command {
    Command::fabrics(FabricsType::PropertyGet, 21).with_u32(11, offset)
}

/// Opens two I/O queues of one controller. Returns the admin queue, too.
pub(crate) fn two_queues(target: &mut Target) -> (Client, [Client; 2], u16) {
    let (admin, controller) = Client::admin(target);
    let queues = [1, 2].map(|queue| {
        let mut wire = Client::open(target, false);
        assert!(wire.connect(target, queue, controller).status.is_success());
        wire
    });
    (admin, queues, controller)
}

/// Sends a PDU without running the resulting jobs.
pub(crate) fn send_only(wire: &mut Client, target: &mut Target, pdu: &Pdu, data: &[u8]) {
    let bytes = wire.framing.frame(pdu, [Bytes::copy_from_slice(data)]).into_pieces().collect::<Vec<_>>().concat();
    wire.connection.handle_segment(wire.now, segment(&bytes), target);
}

pub(crate) fn statuses(came: &[ReceivedPdu]) -> Vec<(u16, Status)> {
    let status = |came: &ReceivedPdu| match came.0 {
        Pdu::Response(completion) => (completion.command, completion.status),
        _ => panic!("{came:?}"),
    };
    came.iter().map(status).collect()
}

pub(crate) fn first_block(wire: &mut Client, target: &mut Target) -> u8 {
    let read = Command::new(IoOpcode::Read as u8, 77).with_namespace(1).with_sgl(Sgl::transport(512));
    wire.send(target, &Pdu::Command(read), &[])[0].1[0]
}
