//! Arbitrary bytes as the stream of a host into a controller, and of a controller into a host: at worst the connection
//! ends. The connection is opened first, so that the bytes get past the handshake.
use bytes::{Bytes, BytesMut};
use nvme_tcp::core::queue::{CommandData, Queue, QueueConfig, Submission};
use nvme_tcp::wire::{ConnectData, InitializeRequest, InitializeResponse, IoOpcode, Pdu, PduFraming, Sgl, commands};
use nvme_tcp::{Buffer, MemoryStorage, Namespace, Target, TargetConfig};
use offload_api::{RxMeta, RxSegment};
use offload_base::{Instant, Seq};
use std::sync::Arc;

const DISK: &str = "nqn.2026-01.test:disk";

/// Runs one input.
pub fn run(input: &[u8]) {
    let [kind, cut, bytes @ ..] = input else { return };
    let cut = usize::from(*cut) + 1;
    if kind & 1 == 0 { controller(kind & 2 != 0, cut, bytes) } else { host(kind & 2 != 0, cut, bytes) }
}

fn segment(bytes: &[u8]) -> RxSegment {
    RxSegment { seq: Seq(0), data: BytesMut::from(bytes).into(), meta: RxMeta::default() }
}

fn framed(pdu: &Pdu, data: Vec<u8>) -> Vec<u8> {
    PduFraming::default().frame(pdu, [Bytes::from(data)]).into_pieces().collect::<Vec<_>>().concat()
}

fn controller(connected: bool, cut: usize, bytes: &[u8]) {
    let mut target = Target::new(TargetConfig::default()).unwrap();
    target.add_subsystem(DISK, None).unwrap();
    let storage = Arc::new(MemoryStorage::new(1 << 20));
    target.add_namespace(DISK, Namespace::new(1, 512, storage).unwrap()).unwrap();
    let mut connection = target.accept(Instant::ZERO);
    let mut stream = Vec::new();
    if connected {
        stream.extend(framed(&Pdu::InitializeRequest(InitializeRequest::default()), Vec::new()));
        let data = ConnectData {
            host_id: [1; 16],
            controller: 0xffff,
            subsystem: DISK.into(),
            host: "nqn.2026-01.test:host".into(),
        };
        let connect = commands::connect(0, 31, core::time::Duration::ZERO).with_sgl(Sgl::in_capsule(1024));
        stream.extend(framed(&Pdu::Command(connect), data.to_bytes()));
        stream.extend(framed(&Pdu::Command(commands::property_set(0x14, 0x0046_0001)), Vec::new()));
    }
    stream.extend(bytes);
    // PDUs may be cut anywhere, so the input chooses the cut.
    for part in stream.chunks(cut) {
        connection.handle_segment(Instant::ZERO, segment(part), &mut target);
        while let Some(job) = connection.poll_job() {
            connection.complete(Instant::ZERO, job.run(), &mut target);
        }
        while connection.poll_transmit().is_some() {}
    }
    connection.handle_end(&mut target);
}

fn host(digests: bool, cut: usize, bytes: &[u8]) {
    let config = QueueConfig { depth: 8, data_digest: digests, requests: 2, ..QueueConfig::default() };
    let mut queue = Queue::new(Instant::ZERO, config);
    let agreed = InitializeResponse { data_digest: digests, max_data: 4096, ..InitializeResponse::default() };
    queue.handle_segment(segment(&framed(&Pdu::InitializeResponse(agreed), Vec::new())));
    // Commands in flight, so that responses and R2Ts find something to match.
    for bytes in [512, 4096, 16384] {
        let read = commands::range(IoOpcode::Read, 1, 0, 1);
        let _id = queue
            .submit(Instant::ZERO, Submission { command: read, payload: CommandData::Read(Buffer::zeroed(bytes)) })
            .expect("there is room");
        let write = commands::range(IoOpcode::Write, 1, 0, 1);
        let data = [Bytes::from(vec![7; bytes])].into_iter().collect();
        let _id = queue
            .submit(Instant::ZERO, Submission { command: write, payload: CommandData::Write(data) })
            .expect("there is room");
    }
    let (mut finished, mut sent) = (0, 0);
    for part in bytes.chunks(cut) {
        queue.handle_segment(segment(part));
        while let Some(pdu) = queue.poll_transmit() {
            sent += pdu.len();
        }
        while queue.poll_finished().is_some() {
            finished += 1;
        }
    }
    // The queue must not do more than requested: the data of each write once, and the end of each command once.
    assert!(finished <= 6);
    assert!(sent < 1 << 20);
}
