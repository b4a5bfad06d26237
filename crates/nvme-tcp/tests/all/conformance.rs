//! Checks and answers of a controller, one test for each rule of the specification. `pdu.rs` tests the checks of
//! headers alone.

use crate::rig;

use core::time::Duration;
use nvme_tcp::target::TransportConfig;
use nvme_tcp::wire::{
    AdminOpcode, Command, ControllerData, ControllerKind, DISCOVERY_NQN, DataHeader, DiscoveryEntry, DiscoveryLog,
    FabricsType, FatalStatus, InitializeRequest, IoOpcode, NamespaceData, Pdu, ReadyToTransfer, Sgl, Status,
    Termination, property,
};
use offload_base::Instant;
use rig::{Client, DISK, ReceivedPdu, connect_command, host_data, target, termination};

/// Sends `pdu` and expects a C2HTermReq with this FES, this FEI and the faulty header.
fn ends(wire: &mut Client, target: &mut nvme_tcp::target::Target, pdu: &Pdu, data: &[u8], fes: FatalStatus, fei: u32) {
    let came = wire.send(target, pdu, data);
    let (termination, header) = termination(&came);
    assert_eq!(termination.fatal_status(), Some(fes), "{pdu:?}");
    assert_eq!(termination.information, fei.to_le_bytes(), "{pdu:?}");
    assert_eq!(header[8..], pdu.header()[8..header.len()], "the header in question");
    assert!(wire.connection.is_closing() && !wire.connection.wants_input());
}

#[test]
fn icreq_with_nonzero_version_is_refused() {
    let mut target = target(TransportConfig::default());
    let request = InitializeRequest { version: 1, ..InitializeRequest::default() };
    ends(
        &mut Client::new(&mut target),
        &mut target,
        &Pdu::InitializeRequest(request),
        &[],
        FatalStatus::InvalidHeaderField,
        8,
    );
}

#[test]
fn icreq_with_alignment_above_31_is_refused() {
    let mut target = target(TransportConfig::default());
    let request = InitializeRequest { alignment: 32, ..InitializeRequest::default() };
    ends(
        &mut Client::new(&mut target),
        &mut target,
        &Pdu::InitializeRequest(request),
        &[],
        FatalStatus::InvalidHeaderField,
        10,
    );
}

#[test]
fn icreq_must_come_first_and_once() {
    let mut target = target(TransportConfig::default());
    let request = Pdu::InitializeRequest(InitializeRequest::default());
    let mut wire = Client::open(&mut target, false);
    ends(&mut wire, &mut target, &request, &[], FatalStatus::SequenceError, 0);
    let keep_alive = Pdu::Command(Command::new(AdminOpcode::KeepAlive as u8, 0));
    ends(&mut Client::new(&mut target), &mut target, &keep_alive, &[], FatalStatus::SequenceError, 0);
}

/// Opens a queue with an outstanding R2T for a write of 8 blocks.
fn asked(target: &mut nvme_tcp::target::Target) -> (Client, Client, ReadyToTransfer) {
    let (mut wire, admin) = Client::io(target, false);
    let write = Command::new(IoOpcode::Write as u8, 5).with_namespace(1).with_u32(12, 7).with_sgl(Sgl::transport(4096));
    let came = wire.send(target, &Pdu::Command(write), &[]);
    let [ReceivedPdu(Pdu::ReadyToTransfer(request), _)] = came[..] else { panic!("{came:?}") };
    assert_eq!((request.command, request.offset, request.length), (5, 0, 4096));
    (wire, admin, request)
}

#[test]
fn unrequested_data_are_fatal() {
    type DataChange = fn(&mut DataHeader);
    let rows: [(DataChange, FatalStatus, u32, usize); 8] = [
        // TTAG out of range; TTAG not outstanding; wrong command; not the next byte; beyond the end; wrong LAST_PDU.
        (|data| data.tag = u16::MAX, FatalStatus::SequenceError, 10, 4096),
        (|data| data.tag ^= 1, FatalStatus::InvalidHeaderField, 10, 4096),
        (|data| data.command += 1, FatalStatus::SequenceError, 8, 4096),
        (|data| data.offset = 512, FatalStatus::DataOutOfRange, 12, 4096),
        (|data| data.offset = 4096, FatalStatus::DataOutOfRange, 12, 4096),
        (|data| data.length = 4100, FatalStatus::DataOutOfRange, 16, 4100),
        (|data| data.last = false, FatalStatus::InvalidHeaderField, 1, 4096),
        (|data| data.length = 2048, FatalStatus::InvalidHeaderField, 1, 2048),
    ];
    for (change, fes, fei, length) in rows {
        let mut target = target(TransportConfig::default());
        let (mut wire, _admin, request) = asked(&mut target);
        let mut data = host_data(&request);
        change(&mut data);
        ends(&mut wire, &mut target, &Pdu::HostData(data), &vec![1; length], fes, fei);
    }
}

#[test]
fn repeated_data_are_fatal() {
    let mut target = target(TransportConfig::default());
    let (mut wire, _admin, request) = asked(&mut target);
    let data = Pdu::HostData(host_data(&request));
    let came = wire.send(&mut target, &data, &[1; 4096]);
    assert!(matches!(came[..], [ReceivedPdu(Pdu::Response(completion), _)] if completion.status.is_success()));
    ends(&mut wire, &mut target, &data, &[1; 4096], FatalStatus::InvalidHeaderField, 10);
}

#[test]
fn sgl_must_describe_the_capsule() {
    let write = || Command::new(IoOpcode::Write as u8, 5).with_namespace(1);
    let rows = [
        // Wrong length; transport SGL with in-capsule data; unknown type; too long; no data in the capsule.
        (write().with_sgl(Sgl::in_capsule(1024)), 512, FatalStatus::UnsupportedParameter, 40),
        (write().with_sgl(Sgl::transport(512)), 512, FatalStatus::UnsupportedParameter, 47),
        (write().with_sgl(Sgl { identifier: 0x22, ..Sgl::transport(512) }), 0, FatalStatus::UnsupportedParameter, 47),
        (write().with_sgl(Sgl::in_capsule(8704)), 512, FatalStatus::LimitExceeded, 40),
        (write().with_sgl(Sgl::in_capsule(512)), 0, FatalStatus::UnsupportedParameter, 40),
    ];
    for (command, length, fes, fei) in rows {
        let mut target = target(TransportConfig::default());
        let (mut wire, _admin) = Client::io(&mut target, false);
        ends(&mut wire, &mut target, &Pdu::Command(command), &vec![1; length], fes, fei);
    }
}

/// Fails the command only, because the PDU's header still gives the start of the next PDU.
#[test]
fn offset_into_a_capsule_ends_the_command_alone() {
    let mut target = target(TransportConfig::default());
    let (mut wire, _admin) = Client::io(&mut target, false);
    let write = Command::new(IoOpcode::Write as u8, 5).with_namespace(1);
    let odd = write.with_sgl(Sgl { address: 64, ..Sgl::in_capsule(512) });
    for (command, status) in
        [(odd, Status::INVALID_SGL_OFFSET), (write.with_sgl(Sgl::in_capsule(512)), Status::SUCCESS)]
    {
        let came = wire.send(&mut target, &Pdu::Command(command), &[1; 512]);
        assert!(
            matches!(came[..], [ReceivedPdu(Pdu::Response(completion), _)] if completion.status == status),
            "{came:?}"
        );
    }
}

#[test]
fn commands_beyond_the_queue_depth_are_fatal() {
    let mut target = target(TransportConfig::default());
    let (mut wire, _admin) = Client::io(&mut target, false);
    let write =
        |id| Pdu::Command(Command::new(IoOpcode::Write as u8, id).with_namespace(1).with_sgl(Sgl::transport(512)));
    // The last write exceeds the 32 entries of the queue.
    for id in 0..32 {
        assert!(matches!(wire.send(&mut target, &write(id), &[])[..], [ReceivedPdu(Pdu::ReadyToTransfer(_), _)]));
    }
    ends(&mut wire, &mut target, &write(32), &[], FatalStatus::SequenceError, 0);
}

#[test]
fn identifier_in_use_is_refused() {
    let mut target = target(TransportConfig::default());
    let (mut wire, _admin, request) = asked(&mut target);
    let again = Command::new(IoOpcode::Write as u8, request.command).with_namespace(1);
    assert_eq!(wire.command(&mut target, again, &[9; 512]).status, Status::COMMAND_ID_CONFLICT);
    let came = wire.send(&mut target, &Pdu::HostData(host_data(&request)), &[1; 4096]);
    assert!(
        matches!(came[..], [ReceivedPdu(Pdu::Response(completion), _)] if completion.status.is_success()),
        "the first command continues"
    );
}

#[test]
fn wrong_data_digest_fails_only_the_command() {
    let mut target = target(TransportConfig::default());
    let (mut wire, _admin) = Client::io(&mut target, true);
    let write = Command::new(IoOpcode::Write as u8, 5).with_namespace(1);
    let bytes = |wire: &Client, pdu: &Pdu, data: Vec<u8>| {
        let mut bytes = wire.framing.frame(pdu, [data.into()]).into_pieces().collect::<Vec<_>>().concat();
        *bytes.last_mut().unwrap() ^= 1;
        bytes
    };
    let failed = |came: Vec<ReceivedPdu>| {
        let [ReceivedPdu(Pdu::Response(completion), _)] = came[..] else { panic!("{came:?}") };
        assert_eq!(completion.status, Status::TRANSIENT_TRANSPORT_ERROR);
    };
    // Both kinds of data are checked: in the capsule, and in H2CData PDUs.
    let wrong = bytes(&wire, &Pdu::Command(write.with_sgl(Sgl::in_capsule(512))), vec![9; 512]);
    failed(wire.send_bytes(&mut target, &wrong));
    let came = wire.send(&mut target, &Pdu::Command(write.with_sgl(Sgl::transport(512))), &[]);
    let [ReceivedPdu(Pdu::ReadyToTransfer(request), _)] = came[..] else { panic!("{came:?}") };
    let wrong = bytes(&wire, &Pdu::HostData(host_data(&request)), vec![9; 512]);
    failed(wire.send_bytes(&mut target, &wrong));
    let read = Command::new(IoOpcode::Read as u8, 6).with_namespace(1).with_sgl(Sgl::transport(512));
    let came = wire.send(&mut target, &Pdu::Command(read), &[]);
    assert_eq!(came[0].1, [0; 512], "nothing was written");
}

#[test]
fn oversized_command_is_not_fatal() {
    let mut target = target(TransportConfig { max_transfer: 1, ..TransportConfig::default() });
    let (mut wire, _admin) = Client::io(&mut target, false);
    for opcode in [IoOpcode::Write, IoOpcode::Read, IoOpcode::Compare] {
        let command = Command::new(opcode as u8, 5).with_namespace(1).with_u32(12, 31).with_sgl(Sgl::transport(16384));
        assert_eq!(wire.command(&mut target, command, &[]).status, Status::INVALID_FIELD);
    }
}

#[test]
fn invalid_io_commands_are_refused() {
    let mut target = target(TransportConfig::default());
    let (mut wire, _admin) = Client::io(&mut target, false);
    let io = |opcode: IoOpcode| Command::new(opcode as u8, 5).with_namespace(1);
    let block = Sgl::transport(512);
    // Each command is wrong in one respect only, so that the status shows which check refused it.
    let rows = [
        (Command::new(0x7e, 5).with_namespace(1), Status::INVALID_OPCODE),
        (io(IoOpcode::Read).with_namespace(2).with_sgl(block), Status::INVALID_NAMESPACE),
        (io(IoOpcode::Read).with_u64(10, 2112).with_sgl(block), Status::LBA_OUT_OF_RANGE),
        (io(IoOpcode::Read).with_u64(10, u64::MAX).with_sgl(block), Status::LBA_OUT_OF_RANGE),
        (
            io(IoOpcode::Write).with_u64(10, 2111).with_u32(12, 1).with_sgl(Sgl::transport(1024)),
            Status::LBA_OUT_OF_RANGE,
        ),
        (io(IoOpcode::Verify).with_u64(10, 2112), Status::LBA_OUT_OF_RANGE),
        (io(IoOpcode::WriteZeroes).with_u64(10, 2112), Status::LBA_OUT_OF_RANGE),
        (io(IoOpcode::WriteUncorrectable).with_u64(10, 2112), Status::LBA_OUT_OF_RANGE),
        (io(IoOpcode::Read).with_sgl(Sgl::transport(1024)), Status::INVALID_SGL_LENGTH),
        (io(IoOpcode::Write).with_sgl(Sgl::transport(1024)), Status::INVALID_SGL_LENGTH),
        (io(IoOpcode::DatasetManagement).with_u32(10, 1).with_sgl(Sgl::transport(16)), Status::INVALID_SGL_LENGTH),
        (io(IoOpcode::Flush).with_namespace(9), Status::INVALID_NAMESPACE),
    ];
    for (command, status) in rows {
        assert_eq!(wire.command(&mut target, command, &[]).status, status, "{command:?}");
    }
    // The range is in the data, so this check runs after their arrival.
    let mut range = [0; 16];
    range[4] = 1;
    range[8..16].copy_from_slice(&2112u64.to_le_bytes());
    let deallocate = io(IoOpcode::DatasetManagement).with_u32(11, 1 << 2);
    assert_eq!(wire.command(&mut target, deallocate, &range).status, Status::LBA_OUT_OF_RANGE);
}

#[test]
fn invalid_connects_are_refused() {
    let mut target = target(TransportConfig::default());
    target.add_subsystem("nqn.2026-01.test:private", Some(vec!["nqn.2026-01.test:friend".into()])).unwrap();
    let (_admin, controller) = Client::admin(&mut target);
    let (command, good) = connect_command(0, 0xffff);
    let (io_command, io_good) = connect_command(1, controller);
    let parameters = Status::CONNECT_INVALID_PARAMETERS;
    let in_data = |offset: u64| 1 << 16 | offset;
    // The result holds the offset of the wrong field. Bit 16 says that the field is in the data.
    let rows = [
        (command.with_u32(10, 1), good.clone(), Status::CONNECT_FORMAT, 0),
        (command.with_u32(11, 0), good.clone(), parameters, 44),
        (command.with_u32(11, 0xffff), good.clone(), parameters, 44),
        (command, nvme(&good, "", DISK), parameters, in_data(512)),
        (command, nvme(&good, &good.host, "nqn.2026-01.test:none"), parameters, in_data(256)),
        (command, nvme(&good, &good.host, "nqn.2026-01.test:private"), Status::CONNECT_INVALID_HOST, 0),
        (command, nvme_tcp::wire::ConnectData { controller: 1, ..good.clone() }, parameters, in_data(16)),
        (io_command.with_u32(10, 999 << 16), io_good.clone(), parameters, 42),
        (io_command, nvme_tcp::wire::ConnectData { controller: 99, ..io_good.clone() }, parameters, in_data(16)),
        (io_command, nvme(&io_good, "nqn.2026-01.test:other", DISK), parameters, in_data(512)),
        (io_command, nvme_tcp::wire::ConnectData { host_id: [8; 16], ..io_good.clone() }, parameters, in_data(0)),
    ];
    for (command, data, status, result) in rows {
        let completion = Client::open(&mut target, false).command(&mut target, command, &data.to_bytes());
        assert_eq!((completion.status, completion.result), (status, result), "{command:?} {data:?}");
    }
    // Not before the controller is enabled, not twice for the same queue, and not twice on one connection.
    let mut unready = Client::open(&mut target, false);
    let number = unready.connect(&mut target, 0, 0xffff).result as u16;
    assert_eq!(Client::open(&mut target, false).connect(&mut target, 1, number).status, Status::CONNECT_BUSY);
    let mut queue = Client::open(&mut target, false);
    assert!(queue.connect(&mut target, 1, controller).status.is_success());
    assert_eq!(Client::open(&mut target, false).connect(&mut target, 1, controller).status, parameters);
    assert_eq!(queue.connect(&mut target, 1, controller).status, Status::COMMAND_SEQUENCE_ERROR);
    let early = Command::new(AdminOpcode::Identify as u8, 1);
    assert_eq!(
        Client::open(&mut target, false).command(&mut target, early, &[]).status,
        Status::COMMAND_SEQUENCE_ERROR
    );
}

fn nvme(good: &nvme_tcp::wire::ConnectData, host: &str, subsystem: &str) -> nvme_tcp::wire::ConnectData {
    nvme_tcp::wire::ConnectData { host: host.into(), subsystem: subsystem.into(), ..good.clone() }
}

/// Reads data by an admin command.
fn read(wire: &mut Client, target: &mut nvme_tcp::target::Target, command: Command, length: u32) -> Vec<u8> {
    let command = command.with_sgl(Sgl::transport(length));
    let mut came = wire.send(target, &Pdu::Command(command), &[]);
    let last = came.pop().unwrap();
    assert!(matches!(last.0, Pdu::Response(completion) if completion.status.is_success()), "{command:?}: {last:?}");
    came.into_iter().flat_map(|came| came.1).collect()
}

fn log(page: u8, length: u32) -> Command {
    let words = length / 4 - 1;
    Command::new(AdminOpcode::GetLogPage as u8, 3).with_u32(10, u32::from(page) | words << 16).with_namespace(u32::MAX)
}

#[test]
fn identify_data_satisfy_linux() {
    let mut target = target(TransportConfig::default());
    let (mut wire, controller) = Client::admin(&mut target);
    let identify = |cns: u32| Command::new(AdminOpcode::Identify as u8, 2).with_u32(10, cns);
    let data = ControllerData::parse(&read(&mut wire, &mut target, identify(1), 4096)).unwrap();
    assert_eq!(data.controller, controller);
    // Linux refuses a controller if one of these fields is too small.
    assert!(data.keep_alive != 0 && data.command_capsule >= 4 && data.response_capsule >= 1);
    assert!(data.sgl_support & 3 != 0);
    assert_eq!((data.kind, data.version, data.subsystem.as_str()), (ControllerKind::Io, 0x20000, DISK));
    let namespace = NamespaceData::parse(&read(&mut wire, &mut target, identify(0).with_namespace(1), 4096)).unwrap();
    assert_eq!((namespace.blocks, namespace.block_shift), (2112, 9));
    let list = read(&mut wire, &mut target, identify(2), 4096);
    assert_eq!(nvme_tcp::wire::parse_namespace_list(&list), [1]);
    for cns in [0x03, 0x05, 0x06, 0x08, 0x10, 0x11, 0x12, 0x13, 0x1c] {
        assert_eq!(read(&mut wire, &mut target, identify(cns).with_namespace(1), 4096).len(), 4096, "CNS {cns:#x}");
    }
    assert_eq!(wire.command(&mut target, identify(0xff), &[]).status, Status::INVALID_FIELD);
    // Only controllers with Namespace Management report the common capabilities of all namespaces.
    for cns in [0x00, 0x11] {
        let all = identify(cns).with_namespace(u32::MAX).with_sgl(Sgl::transport(4096));
        assert_eq!(wire.command(&mut target, all, &[]).status, Status::INVALID_NAMESPACE);
    }
    assert!(data.serial.len() == 16 && data.serial.bytes().all(|byte| byte.is_ascii_hexdigit()), "{:?}", data.serial);
}

#[test]
fn event_is_reported_once_until_its_log_is_read() {
    let mut target = target(TransportConfig::default());
    let (mut wire, _) = Client::admin(&mut target);
    let enable = Command::new(AdminOpcode::SetFeatures as u8, 1).with_u32(10, 0x0b).with_u32(11, 1 << 8);
    assert!(wire.command(&mut target, enable, &[]).status.is_success());
    let wait = |id| Pdu::Command(Command::new(AdminOpcode::AsyncEventRequest as u8, id));
    assert!(wire.send(&mut target, &wait(10), &[]).is_empty());
    for id in [2, 3] {
        let storage = std::sync::Arc::new(nvme_tcp::namespace::MemoryStorage::new(4096));
        target.add_namespace(DISK, nvme_tcp::namespace::Namespace::new(id, 512, storage).unwrap()).unwrap();
    }
    assert!(target.take_wakeups().contains(&wire.connection.id()));
    wire.connection.handle_wakeup(&mut target);
    let came = wire.collect();
    let [ReceivedPdu(Pdu::Response(completion), _)] = came[..] else { panic!("{came:?}") };
    assert_eq!((completion.command, completion.result), (10, 0x04_0002));
    assert!(wire.send(&mut target, &wait(11), &[]).is_empty(), "not reported again before the log was read");
    // Reading the log page clears the event and enables the next event.
    let changed = read(&mut wire, &mut target, log(0x04, 4096), 4096);
    assert_eq!(nvme_tcp::wire::parse_namespace_list(&changed), [2, 3]);
    assert_eq!(read(&mut wire, &mut target, log(0x04, 4096), 4096), [0; 4096], "reading clears it");
    target.remove_namespace(DISK, 2).unwrap();
    wire.connection.handle_wakeup(&mut target);
    assert_eq!(wire.collect().len(), 1);
}

#[test]
fn abort_cancels_event_requests() {
    let mut target = target(TransportConfig::default());
    let (mut wire, _) = Client::admin(&mut target);
    let wait = Pdu::Command(Command::new(AdminOpcode::AsyncEventRequest as u8, 10));
    assert!(wire.send(&mut target, &wait, &[]).is_empty());
    let abort = |id: u32| Pdu::Command(Command::new(AdminOpcode::Abort as u8, 11).with_u32(10, id << 16));
    // Result 0 means aborted, result 1 not aborted.
    let came = wire.send(&mut target, &abort(10), &[]);
    let [ReceivedPdu(Pdu::Response(first), _), ReceivedPdu(Pdu::Response(second), _)] = came[..] else {
        panic!("{came:?}")
    };
    assert_eq!((first.command, first.status), (10, Status::ABORTED_BY_REQUEST));
    assert_eq!((second.command, second.result), (11, 0));
    let came = wire.send(&mut target, &abort(10), &[]);
    assert!(matches!(came[..], [ReceivedPdu(Pdu::Response(completion), _)] if completion.result == 1), "{came:?}");
}

#[test]
fn logs_report_errors_and_usage() {
    let mut target = target(TransportConfig::default());
    let (mut wire, mut admin) = Client::io(&mut target, false);
    let write = Command::new(IoOpcode::Write as u8, 5).with_namespace(1);
    assert!(wire.command(&mut target, write, &[3; 512]).status.is_success());
    let beyond = write.with_u64(10, 4242);
    assert_eq!(wire.command(&mut target, beyond, &[3; 512]).status, Status::LBA_OUT_OF_RANGE);
    let errors = read(&mut admin, &mut target, log(0x01, 128), 128);
    assert_eq!((errors[0], errors[8], errors[10], errors[24]), (1, 1, 5, 1), "count, queue, command, namespace");
    assert_eq!(u64::from_le_bytes(errors[16..24].try_into().unwrap()), 4242);
    assert_eq!(errors[64..], [0; 64], "one entry");
    let smart = read(&mut admin, &mut target, log(0x02, 512), 512);
    assert_eq!((smart[48], smart[80], smart[176]), (1, 1, 1), "data units written, write commands, error entries");
    let effects = read(&mut admin, &mut target, log(0x05, 4096), 4096);
    assert_eq!((effects[0x06 * 4], effects[1024 + 4], effects[1024 + 8], effects[1024 + 0x0e * 4]), (1, 3, 1, 0));
    let firmware = read(&mut admin, &mut target, log(0x03, 512), 512);
    assert_eq!(&firmware[8..13], b"0.1.0");
    assert_eq!(
        admin.command(&mut target, log(0x0e, 512).with_sgl(Sgl::transport(512)), &[]).status,
        Status::INVALID_LOG_PAGE
    );
}

#[test]
fn discovery_lists_accessible_subsystems() {
    let mut target = target(TransportConfig::default());
    target.add_subsystem("nqn.2026-01.test:private", Some(vec!["nqn.2026-01.test:friend".into()])).unwrap();
    target.advertise("192.0.2.7:4420".parse().unwrap());
    let mut wire = Client::open(&mut target, false);
    let (command, data) = connect_command(0, 0xffff);
    let data = nvme(&data, &data.host, DISCOVERY_NQN);
    assert!(wire.command(&mut target, command, &data.to_bytes()).status.is_success());
    let enable = Command::fabrics(FabricsType::PropertySet, 1).with_u32(11, property::CC).with_u32(12, 0x0046_0001);
    assert!(wire.command(&mut target, enable, &[]).status.is_success());
    // The private subsystem admits another host only, so this host must not see it.
    let found = DiscoveryLog::parse(&read(&mut wire, &mut target, log(0x70, 4096), 4096)).unwrap();
    assert_eq!(found.entries, [DiscoveryEntry::new(DISK, "192.0.2.7:4420".parse().unwrap())]);
    assert_eq!(found.generation, 0, "unchanged since the start");
    // The second kilobyte alone, because hosts read long logs in parts.
    let part = read(&mut wire, &mut target, log(0x70, 1024).with_u64(12, 1024), 1024);
    assert_eq!(part, found.to_bytes()[1024..]);
    target.advertise("192.0.2.8:4420".parse().unwrap());
    let changed = DiscoveryLog::parse(&read(&mut wire, &mut target, log(0x70, 4096), 4096)).unwrap();
    assert_eq!((changed.generation, changed.entries.len()), (1, 2));
}

#[test]
fn silent_host_loses_its_queues() {
    let mut target = target(TransportConfig::default());
    let mut admin = Client::open(&mut target, false);
    let (command, data) = connect_command(0, 0xffff);
    let controller = admin.command(&mut target, command.with_u32(12, 3500), &data.to_bytes()).result as u16;
    let enable = Command::fabrics(FabricsType::PropertySet, 1).with_u32(11, property::CC).with_u32(12, 0x0046_0001);
    assert!(admin.command(&mut target, enable, &[]).status.is_success());
    let mut queue = Client::open(&mut target, false);
    assert!(queue.connect(&mut target, 1, controller).status.is_success());
    admin.now = Instant::ZERO + Duration::from_secs(3);
    assert!(admin.command(&mut target, Command::new(AdminOpcode::KeepAlive as u8, 2), &[]).status.is_success());
    // KATO of 3.5 seconds is rounded up to the granularity of one second.
    let due = admin.connection.next_event(&target).unwrap();
    assert_eq!(due, Instant::ZERO + Duration::from_secs(7), "whole seconds after the last keep alive");
    admin.connection.handle_timeout(Instant::ZERO + Duration::from_millis(6900), &mut target);
    assert!(!admin.connection.is_closing());
    admin.connection.handle_timeout(due, &mut target);
    assert!(admin.connection.is_closing() && target.controllers() == 0);
    assert!(target.take_wakeups().contains(&queue.connection.id()));
    queue.connection.handle_wakeup(&mut target);
    assert!(queue.connection.is_closing());
}

#[test]
fn stream_without_connect_times_out() {
    let mut target = target(TransportConfig::default());
    let mut wire = Client::open(&mut target, false);
    let due = wire.connection.next_event(&target).unwrap();
    wire.connection.handle_timeout(due, &mut target);
    assert!(wire.connection.is_closing());
}

#[test]
fn disconnect_aborts_the_queues_commands() {
    let mut target = target(TransportConfig::default());
    let (mut wire, mut admin, _request) = asked(&mut target);
    let disconnect = Command::fabrics(FabricsType::Disconnect, 9);
    let came = wire.send(&mut target, &Pdu::Command(disconnect), &[]);
    let statuses: Vec<_> = came
        .iter()
        .map(|came| match came.0 {
            Pdu::Response(completion) => (completion.command, completion.status),
            _ => panic!("{came:?}"),
        })
        .collect();
    assert_eq!(statuses, [(5, Status::ABORTED_QUEUE_DELETED), (9, Status::SUCCESS)]);
    assert!(wire.connection.is_closing());
    // An admin queue cannot be disconnected: ending it ends the controller.
    assert_eq!(admin.command(&mut target, disconnect, &[]).status, Status::INVALID_QUEUE_TYPE);
}

#[test]
fn reset_ends_the_io_queues() {
    let mut target = target(TransportConfig::default());
    let (mut wire, mut admin) = Client::io(&mut target, false);
    let configuration = Command::fabrics(FabricsType::PropertyGet, 2).with_u32(11, property::CC);
    assert_eq!(admin.command(&mut target, configuration, &[]).result, 0x0046_0001, "the value written");
    let disable = Command::fabrics(FabricsType::PropertySet, 1).with_u32(11, property::CC);
    assert!(admin.command(&mut target, disable, &[]).status.is_success());
    assert_eq!(admin.command(&mut target, configuration, &[]).result, 0);
    assert_eq!(target.take_wakeups(), [wire.connection.id()]);
    wire.connection.handle_wakeup(&mut target);
    assert!(wire.connection.is_closing() && !admin.connection.is_closing());
    let status = Command::fabrics(FabricsType::PropertyGet, 2).with_u32(11, property::CSTS);
    assert_eq!(admin.command(&mut target, status, &[]).result, 0);
}

#[test]
fn termreq_is_not_answered() {
    let mut target = target(TransportConfig::default());
    let (_wire, mut admin) = Client::io(&mut target, false);
    let ending = Pdu::HostTermination(Termination { status: 1, information: [0; 4] });
    assert!(admin.send(&mut target, &ending, b"whatever").is_empty());
    assert!(admin.connection.is_closing() && target.controllers() == 0);
}

#[test]
fn features_keep_their_values() {
    let mut target = target(TransportConfig::default());
    let (mut wire, _) = Client::admin(&mut target);
    let set =
        |id: u32, value: u32| Command::new(AdminOpcode::SetFeatures as u8, 1).with_u32(10, id).with_u32(11, value);
    let get = |id: u32| Command::new(AdminOpcode::GetFeatures as u8, 1).with_u32(10, id);
    for (id, value) in [(0x01, 7), (0x04, 350), (0x05, 3), (0x06, 0), (0x0a, 1), (0x0b, 0x100), (0x0f, 9000)] {
        assert!(wire.command(&mut target, set(id, value), &[]).status.is_success(), "feature {id:#x}");
        assert_eq!(wire.command(&mut target, get(id), &[]).result, u64::from(value), "feature {id:#x}");
    }
    assert_eq!(wire.command(&mut target, get(0x04 | 1 << 8), &[]).result, 343, "the default");
    assert_eq!(wire.command(&mut target, get(0x06 | 3 << 8), &[]).result, 4, "changeable");
    assert_eq!(
        wire.command(&mut target, set(0x07, 0x0001_0003), &[]).result,
        0x0001_0001,
        "queues: the smaller number of both"
    );
    assert_eq!(wire.command(&mut target, set(0x06 | 1 << 31, 1), &[]).status, Status::FEATURE_NOT_SAVEABLE);
    assert_eq!(wire.command(&mut target, set(0x81, 1), &[]).status, Status::FEATURE_NOT_CHANGEABLE);
    assert_eq!(wire.command(&mut target, get(0x7f), &[]).status, Status::INVALID_FIELD);
    // The timestamp counts on from the value set, in milliseconds.
    assert!(wire.command(&mut target, set(0x0e, 0), &[1, 2, 0, 0, 0, 0, 0, 0]).status.is_success());
    wire.now = Instant::ZERO + Duration::from_millis(5);
    assert_eq!(read(&mut wire, &mut target, get(0x0e), 8), [6, 2, 0, 0, 0, 0, 2, 0]);
}
