//! Checks and answers of a host, one test for each rule of the specification. `pdu.rs` tests the checks of headers
//! alone.

use bytes::{Bytes, BytesMut};
use core::task::Waker;
use core::time::Duration;
use nvme_tcp::core::queue::{AbandonResult, CommandData, Queue, QueueConfig, QueueError, Submission};
use nvme_tcp::host::Buffer;
use nvme_tcp::wire::{
    Command, Completion, ConnectionSide, DataHeader, FatalStatus, InitializeResponse, IoOpcode, Pdu, PduFraming,
    PduItem, PduLimits, PduReceiver, ReadyToTransfer, SglKind, Status, Termination, commands,
};
use offload_api::{RxMeta, RxSegment};
use offload_base::{Instant, Seq};
use resumable_aead::{DataUnits, Volume, XtsKey};

const AGREED: InitializeResponse =
    InitializeResponse { version: 0, alignment: 0, header_digest: false, data_digest: false, max_data: 4096 };

fn new_queue(digests: bool) -> Queue {
    let config = QueueConfig {
        depth: 4,
        header_digest: digests,
        data_digest: digests,
        requests: 2,
        in_capsule: 512,
        ..QueueConfig::default()
    };
    let mut queue = Queue::new(Instant::ZERO, config);
    queue.poll_transmit().expect("ICReq");
    queue
}

fn open_queue(digests: bool) -> Queue {
    let mut queue = new_queue(digests);
    let response = InitializeResponse { header_digest: digests, data_digest: digests, ..AGREED };
    send(&mut queue, PduFraming::default(), &Pdu::InitializeResponse(response), &[]);
    assert!(queue.is_open());
    queue
}

fn send(queue: &mut Queue, framing: PduFraming, pdu: &Pdu, data: &[u8]) {
    let bytes = framing.frame(pdu, [Bytes::copy_from_slice(data)]).into_pieces().collect::<Vec<_>>().concat();
    let data = BytesMut::from(&bytes[..]).into();
    queue.handle_segment(RxSegment { seq: Seq(0), data, meta: RxMeta::default() });
}

/// Lets the controller send `pdu`, and expects an H2CTermReq with this FES, this FEI and the faulty header.
fn ends(queue: &mut Queue, pdu: &Pdu, data: &[u8], fes: FatalStatus, fei: u32) {
    while queue.poll_transmit().is_some() {}
    send(queue, PduFraming::default(), pdu, data);
    let answer = queue.poll_transmit().unwrap_or_else(|| panic!("no answer to {pdu:?}"));
    let bytes: Vec<u8> = answer.into_pieces().collect::<Vec<_>>().concat();
    let Some(Pdu::HostTermination(termination)) = Pdu::parse(&bytes) else { panic!("{pdu:?}: {bytes:x?}") };
    assert_eq!(termination.fatal_status(), Some(fes), "{pdu:?}");
    assert_eq!(termination.information, fei.to_le_bytes(), "{pdu:?}");
    assert_eq!(bytes[24 + 8..], pdu.header()[8..bytes.len() - 24], "the header in question");
    assert!(matches!(queue.error(), Some(QueueError::Misbehaved(_))) && queue.room() == 0);
    assert!(queue.poll_transmit().is_none(), "nothing may follow the TermReq");
}

fn read(queue: &mut Queue, bytes: usize) -> u16 {
    let command = commands::range(IoOpcode::Read, 1, 0, 8);
    let payload = CommandData::Read(Buffer::zeroed(bytes));
    queue.submit(Instant::ZERO, Submission { command, payload }).expect("there is room")
}

fn write(queue: &mut Queue, bytes: usize) -> u16 {
    let command = commands::range(IoOpcode::Write, 1, 0, 8);
    let payload = CommandData::Write([Bytes::from(vec![7; bytes])].into_iter().collect());
    queue.submit(Instant::ZERO, Submission { command, payload }).expect("there is room")
}

fn data(command: u16, length: u32) -> DataHeader {
    DataHeader { command, tag: 0, offset: 0, length, last: true, success: false }
}

#[test]
fn invalid_icresp_is_refused() {
    let rows = [
        (InitializeResponse { version: 1, ..AGREED }, 8),
        (InitializeResponse { alignment: 32, ..AGREED }, 10),
        (InitializeResponse { header_digest: true, ..AGREED }, 11),
        (InitializeResponse { data_digest: true, ..AGREED }, 11),
        (InitializeResponse { max_data: 4092, ..AGREED }, 12),
        (InitializeResponse { max_data: 4098, ..AGREED }, 12),
    ];
    for (response, fei) in rows {
        let pdu = Pdu::InitializeResponse(response);
        ends(&mut new_queue(false), &pdu, &[], FatalStatus::InvalidHeaderField, fei);
    }
}

#[test]
fn controller_may_decline_digests() {
    let mut queue = new_queue(true);
    send(&mut queue, PduFraming::default(), &Pdu::InitializeResponse(AGREED), &[]);
    let id = read(&mut queue, 512);
    let capsule = queue.poll_transmit().unwrap();
    assert_eq!(capsule.len(), 72, "no header digest");
    send(&mut queue, PduFraming::default(), &Pdu::ControllerData(data(id, 512)), &[1; 512]);
    let response = Completion { command: id, ..Completion::default() };
    send(&mut queue, PduFraming::default(), &Pdu::Response(response), &[]);
    assert!(queue.poll_finished().unwrap().completion.status.is_success());
}

#[test]
fn icresp_must_come_first_and_once() {
    let again = Pdu::InitializeResponse(AGREED);
    ends(&mut open_queue(false), &again, &[], FatalStatus::SequenceError, 0);
    let response = Pdu::Response(Completion::default());
    ends(&mut new_queue(false), &response, &[], FatalStatus::SequenceError, 0);
}

#[test]
fn completion_of_an_unknown_command_is_fatal() {
    let mut queue = open_queue(false);
    let id = read(&mut queue, 512);
    let stranger = Completion { command: id ^ 1, ..Completion::default() };
    ends(&mut queue, &Pdu::Response(stranger), &[], FatalStatus::InvalidHeaderField, 20);
    // A completion of an earlier command in the same slot does not match a current one either.
    let mut queue = open_queue(false);
    let id = read(&mut queue, 512);
    send(&mut queue, PduFraming::default(), &Pdu::Response(Completion { command: id, ..Completion::default() }), &[]);
    assert_ne!(read(&mut queue, 512), id);
    let late = Completion { command: id, ..Completion::default() };
    ends(&mut queue, &Pdu::Response(late), &[], FatalStatus::InvalidHeaderField, 20);
}

#[test]
fn unrequested_data_are_fatal() {
    type HeaderEdit = fn(&mut DataHeader);
    let rows: [(HeaderEdit, FatalStatus, u32, usize); 4] = [
        // Unknown command; not the next byte; beyond the end; SUCCESS before the last PDU.
        (|data| data.command ^= 1, FatalStatus::InvalidHeaderField, 8, 512),
        (|data| data.offset = 4, FatalStatus::DataOutOfRange, 12, 512),
        (|data| data.length = 516, FatalStatus::DataOutOfRange, 16, 516),
        (|data| (data.success, data.last) = (true, false), FatalStatus::InvalidHeaderField, 1, 512),
    ];
    for (change, fes, fei, length) in rows {
        let mut queue = open_queue(false);
        let mut header = data(read(&mut queue, 512), 512);
        change(&mut header);
        ends(&mut queue, &Pdu::ControllerData(header), &vec![1; length], fes, fei);
    }
    let mut queue = open_queue(false);
    let header = data(write(&mut queue, 4096), 512);
    ends(&mut queue, &Pdu::ControllerData(header), &[1; 512], FatalStatus::DataOutOfRange, 12);
}

#[test]
fn invalid_requests_for_data_are_fatal() {
    let ask = |command, offset, length| ReadyToTransfer { command, tag: 9, offset, length };
    let mut queue = open_queue(false);
    let id = write(&mut queue, 8192);
    ends(&mut queue, &Pdu::ReadyToTransfer(ask(id ^ 1, 0, 512)), &[], FatalStatus::InvalidHeaderField, 8);
    for (offset, length, fes, fei) in [
        (0, 0, FatalStatus::InvalidHeaderField, 16),
        (0, 8196, FatalStatus::DataOutOfRange, 16),
        (8192, 4, FatalStatus::DataOutOfRange, 16),
        (u32::MAX, u32::MAX, FatalStatus::DataOutOfRange, 16),
    ] {
        let mut queue = open_queue(false);
        let id = write(&mut queue, 8192);
        ends(&mut queue, &Pdu::ReadyToTransfer(ask(id, offset, length)), &[], fes, fei);
    }
    // The command has no data, or had all data in its capsule.
    let mut queue = open_queue(false);
    let id = read(&mut queue, 512);
    ends(&mut queue, &Pdu::ReadyToTransfer(ask(id, 0, 512)), &[], FatalStatus::DataOutOfRange, 12);
    let mut queue = open_queue(false);
    let id = write(&mut queue, 512);
    ends(&mut queue, &Pdu::ReadyToTransfer(ask(id, 0, 512)), &[], FatalStatus::DataOutOfRange, 12);
    // Bytes that were requested before.
    let mut queue = open_queue(false);
    let id = write(&mut queue, 8192);
    send(&mut queue, PduFraming::default(), &Pdu::ReadyToTransfer(ask(id, 0, 4096)), &[]);
    ends(&mut queue, &Pdu::ReadyToTransfer(ask(id, 0, 4096)), &[], FatalStatus::DataOutOfRange, 12);
}

#[test]
fn excess_requests_for_data_are_fatal() {
    let mut queue = open_queue(false);
    let id = write(&mut queue, 8192);
    let ask =
        |number: u32| Pdu::ReadyToTransfer(ReadyToTransfer { command: id, tag: 1, offset: number * 512, length: 512 });
    // Two requests are allowed until their data are sent.
    send(&mut queue, PduFraming::default(), &ask(0), &[]);
    send(&mut queue, PduFraming::default(), &ask(1), &[]);
    while queue.poll_transmit().is_some() {}
    send(&mut queue, PduFraming::default(), &ask(2), &[]);
    send(&mut queue, PduFraming::default(), &ask(3), &[]);
    assert!(queue.error().is_none());
    send(&mut queue, PduFraming::default(), &ask(4), &[]);
    let Some(QueueError::Misbehaved(error)) = queue.error() else { panic!("{:?}", queue.error()) };
    assert_eq!((error.status, error.information), (FatalStatus::LimitExceeded, [0; 4]));
}

#[test]
fn data_are_sent_as_requested_within_maxh2cdata() {
    let mut queue = open_queue(false);
    let id = write(&mut queue, 12_000);
    let capsule = queue.poll_transmit().unwrap();
    let Some(Pdu::Command(command)) = Pdu::parse(&capsule.head) else { panic!() };
    assert_eq!((command.sgl().kind(), command.sgl().length), (Some(SglKind::Transport), 12_000));
    let ask = ReadyToTransfer { command: id, tag: 3, offset: 1000, length: 10_000 };
    send(&mut queue, PduFraming::default(), &Pdu::ReadyToTransfer(ask), &[]);
    let sent: Vec<(u16, u32, u32, bool)> = core::iter::from_fn(|| queue.poll_transmit())
        .map(|pdu| match Pdu::parse(&pdu.head) {
            Some(Pdu::HostData(data)) => (data.tag, data.offset, data.length, data.last),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(sent, [(3, 1000, 4096, false), (3, 5096, 4096, false), (3, 9192, 1808, true)]);
    // Small data travel in the capsule.
    write(&mut queue, 512);
    let Some(Pdu::Command(command)) = Pdu::parse(&queue.poll_transmit().unwrap().head) else { panic!() };
    assert_eq!((command.sgl().kind(), command.sgl().length), (Some(SglKind::InCapsule), 512));
}

#[test]
fn early_response_waits_for_the_data() {
    let mut queue = open_queue(false);
    let id = write(&mut queue, 8192);
    let ask = ReadyToTransfer { command: id, tag: 1, offset: 0, length: 8192 };
    send(&mut queue, PduFraming::default(), &Pdu::ReadyToTransfer(ask), &[]);
    let response = Completion { command: id, status: Status::WRITE_FAULT, ..Completion::default() };
    send(&mut queue, PduFraming::default(), &Pdu::Response(response), &[]);
    // The identifier stays in use until the data have left, because the data PDUs carry it.
    assert!(queue.poll_finished().is_none() && queue.room() == 3);
    while queue.poll_transmit().is_some() {}
    assert_eq!(queue.poll_finished().unwrap().completion.status, Status::WRITE_FAULT);
    assert_eq!(queue.room(), 4);
}

#[test]
fn wrong_data_digest_fails_only_its_command() {
    let framing = PduFraming { header_digest: true, data_digest: true, alignment: 0 };
    let mut queue = open_queue(true);
    let (spoilt, good) = (read(&mut queue, 512), read(&mut queue, 512));
    for (id, flip) in [(spoilt, 1), (good, 0)] {
        let pdu = framing.frame(&Pdu::ControllerData(data(id, 512)), [Bytes::from(vec![3; 512])]);
        let mut bytes = pdu.into_pieces().collect::<Vec<_>>().concat();
        // Position 200 is in the data, so the header digest stays correct.
        bytes[200] ^= flip;
        let data = BytesMut::from(&bytes[..]).into();
        queue.handle_segment(RxSegment { seq: Seq(0), data, meta: RxMeta::default() });
        let response = Completion { command: id, ..Completion::default() };
        send(&mut queue, framing, &Pdu::Response(response), &[]);
    }
    let finished = queue.poll_finished().unwrap();
    assert_eq!((finished.id, finished.completion.status), (spoilt, Status::TRANSIENT_TRANSPORT_ERROR));
    assert!(!finished.completion.status.do_not_retry());
    let finished = queue.poll_finished().unwrap();
    assert_eq!((finished.id, finished.completion.status), (good, Status::SUCCESS));
}

#[test]
fn success_without_all_data_is_an_error() {
    let mut queue = open_queue(false);
    let id = read(&mut queue, 1024);
    send(
        &mut queue,
        PduFraming::default(),
        &Pdu::ControllerData(DataHeader { success: true, ..data(id, 512) }),
        &[1; 512],
    );
    assert_eq!(queue.poll_finished().unwrap().completion.status, Status::DATA_TRANSFER_ERROR);
}

#[test]
fn abandoned_read_finishes_silently() {
    let mut queue = open_queue(false);
    let id = read(&mut queue, 1024);
    let AbandonResult::Now(CommandData::Read(buffer)) = queue.abandon(id) else { panic!("the read was active") };
    assert_eq!(buffer.len(), 1024);
    assert!(matches!(queue.abandon(id), AbandonResult::Complete));
    send(
        &mut queue,
        PduFraming::default(),
        &Pdu::ControllerData(DataHeader { success: true, ..data(id, 1024) }),
        &[1; 1024],
    );
    // The slot is free again, and nothing is reported, because the buffer was returned before.
    assert!(queue.poll_finished().is_none() && queue.room() == 4 && queue.error().is_none());
}

/// The data would be sent as zeros with a correct digest.
#[test]
fn partial_blocks_of_a_volume_are_refused() {
    let volume = Volume::new(
        XtsKey::new(&core::array::from_fn::<u8, 64, _>(|at| at as u8)).unwrap(),
        DataUnits::new(512).unwrap(),
    );
    for (first, bytes, taken) in
        [(0, 512, true), (0, 8192, true), (0, 500, false), (0, 8200, false), (u64::MAX, 512, false)]
    {
        let mut queue = open_queue(true);
        while queue.poll_transmit().is_some() {}
        let pieces = [Bytes::from(vec![7; 100]), Bytes::from(vec![7; bytes - 100])].into_iter().collect();
        let payload = CommandData::Encrypt(pieces, volume.clone().into());
        let submission = Submission { command: commands::range(IoOpcode::Write, 1, first, 1), payload };
        match queue.submit(Instant::ZERO, submission) {
            Ok(_) => assert!(taken, "{bytes} bytes from block {first} on"),
            Err(refused) => {
                assert!(!taken, "{refused}");
                let said = format!(
                    "{bytes} bytes from block {first} on cannot be encrypted: give whole blocks that the volume has"
                );
                assert_eq!(refused.to_string(), said);
                let CommandData::Encrypt(pieces, _) = refused.into_submission().payload else {
                    panic!("the payload must be unchanged")
                };
                assert_eq!(pieces.concat().len(), bytes, "all data come back");
                assert!(queue.poll_transmit().is_none() && queue.room() == 4);
            }
        }
    }
}

#[test]
fn abandoned_write_finishes_when_answered() {
    let mut queue = open_queue(false);
    let submission =
        Submission { command: commands::range(IoOpcode::WriteZeroes, 1, 0, 8), payload: CommandData::None };
    let zeroes = queue.submit(Instant::ZERO, submission).unwrap();
    let write = write(&mut queue, 8192);
    assert!(matches!(queue.abandon(write), AbandonResult::Unanswered));
    assert!(matches!(queue.abandon(zeroes), AbandonResult::Unanswered));
    let ask = ReadyToTransfer { command: write, tag: 1, offset: 0, length: 8192 };
    send(&mut queue, PduFraming::default(), &Pdu::ReadyToTransfer(ask), &[]);
    while queue.poll_transmit().is_some() {}
    assert!(queue.poll_finished().is_none());
    for id in [zeroes, write] {
        send(
            &mut queue,
            PduFraming::default(),
            &Pdu::Response(Completion { command: id, ..Completion::default() }),
            &[],
        );
        let finished = queue.poll_finished().expect("the command has finished");
        assert_eq!((finished.id, finished.completion.status), (id, Status::SUCCESS));
    }
    // The command is returned as unfinished if its connection ends.
    let left = self::write(&mut queue, 8192);
    assert!(matches!(queue.abandon(left), AbandonResult::Unanswered));
    let unfinished = queue.poll_unfinished(Waker::noop()).unwrap();
    assert!(matches!(&unfinished[..], [(id, _)] if *id == left));
}

#[test]
fn termreq_of_the_controller_is_not_answered() {
    let mut queue = open_queue(false);
    let id = read(&mut queue, 512);
    while queue.poll_transmit().is_some() {}
    let termination = Termination { status: 2, information: [0; 4] };
    send(&mut queue, PduFraming::default(), &Pdu::ControllerTermination(termination), &[0; 24]);
    assert_eq!(queue.error(), Some(&QueueError::Terminated(termination)));
    assert!(queue.poll_transmit().is_none());
    let unfinished = queue.poll_unfinished(Waker::noop()).unwrap();
    assert!(matches!(&unfinished[..], [(unfinished, _)] if *unfinished == id));
}

#[test]
fn missing_answers_time_out() {
    let mut queue = new_queue(false);
    let due = queue.next_event().unwrap();
    queue.handle_timeout(due);
    assert_eq!(queue.error(), Some(&QueueError::TimedOut), "ICResp");
    let mut queue = open_queue(false);
    assert_eq!(queue.next_event(), None);
    // The deadline of a finished command must not count.
    let first = read(&mut queue, 512);
    let later = Instant::ZERO + Duration::from_secs(1);
    let submission = Submission { command: commands::flush(1), payload: CommandData::None };
    queue.submit(later, submission).unwrap();
    send(
        &mut queue,
        PduFraming::default(),
        &Pdu::Response(Completion { command: first, ..Completion::default() }),
        &[],
    );
    let due = later + Duration::from_secs(30);
    assert_eq!(queue.next_event(), Some(due));
    queue.handle_timeout(due);
    assert_eq!(queue.error(), Some(&QueueError::TimedOut));
    assert_eq!(queue.poll_unfinished(Waker::noop()).unwrap().len(), 1);
}

#[test]
fn wrong_header_digest_is_fatal() {
    let framing = PduFraming { header_digest: true, data_digest: true, alignment: 0 };
    let mut queue = open_queue(true);
    let id = read(&mut queue, 512);
    while queue.poll_transmit().is_some() {}
    let response = Pdu::Response(Completion { command: id, ..Completion::default() });
    let mut bytes = framing.frame(&response, []).into_pieces().collect::<Vec<_>>().concat();
    bytes[24] ^= 1;
    let wrong: [u8; 4] = bytes[24..28].try_into().unwrap();
    queue.handle_segment(RxSegment { seq: Seq(0), data: BytesMut::from(&bytes[..]).into(), meta: RxMeta::default() });
    let Some(QueueError::Misbehaved(error)) = queue.error() else { panic!("{:?}", queue.error()) };
    assert_eq!((error.status, error.information), (FatalStatus::HeaderDigest, wrong));
}

/// A controller's receiver accepts the capsules of a host, with every digest setting.
#[test]
fn capsules_are_framed_as_negotiated() {
    for digests in [false, true] {
        let mut queue = open_queue(digests);
        write(&mut queue, 300);
        let limits = PduLimits { header_digest: digests, data_digest: digests, ..PduLimits::default() };
        let mut receiver = PduReceiver::new(ConnectionSide::Controller, limits);
        let bytes = queue.poll_transmit().unwrap().into_pieces().collect::<Vec<_>>().concat();
        assert_eq!(bytes.len(), 72 + 300 + if digests { 8 } else { 0 });
        receiver.push(RxSegment { seq: Seq(0), data: BytesMut::from(&bytes[..]).into(), meta: RxMeta::default() });
        let Ok(Some(PduItem::Header { pdu: Pdu::Command(command), data: 300 })) = receiver.poll() else { panic!() };
        assert_eq!(Command::from_bytes(*command.as_bytes()).opcode(), IoOpcode::Write as u8);
        let Ok(Some(PduItem::Data(_))) = receiver.poll() else { panic!() };
        assert!(matches!(receiver.poll(), Ok(Some(PduItem::DataEnd { intact: true }))));
    }
}
