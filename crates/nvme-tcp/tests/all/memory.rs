//! Memory that hosts can make a target hold, measured by the allocator: at most the reported amount, for any division
//! of data, number of connections, and amount of unread answers.

#![allow(unsafe_code, reason = "an allocator that counts")]

use crate::rig::storage::BlockingStorage;
use crate::rig::{Client, DISK, ReceivedPdu, connect_command, host_data, segment, target};
use bytes::{Bytes, BytesMut};
use core::cell::Cell;
use nic_sim::NicConfig;
use nvme_tcp::core::controller::Job;
use nvme_tcp::namespace::Namespace;
use nvme_tcp::target::{Target, TargetConfig, TargetError, TransportConfig};
use nvme_tcp::wire::{
    Command, DataHeader, FabricsType, InitializeRequest, IoOpcode, Pdu, PduFraming, ReadyToTransfer, Sgl, Status,
};
use offload_api::{RxMeta, RxSegment};
use offload_base::{BufferPool, Instant, Seq};
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::Arc;

/// Counts bytes that this thread has allocated and not freed. Tests run on several threads.
struct MemoryTestAllocator;

thread_local! {
    static HELD: Cell<isize> = const { Cell::new(0) };
}

// SAFETY: forwards every call to the system allocator unchanged.
unsafe impl GlobalAlloc for MemoryTestAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        HELD.set(HELD.get() + layout.size().max(16) as isize);
        // SAFETY: the caller's guarantees are passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        HELD.set(HELD.get() - layout.size().max(16) as isize);
        // SAFETY: the caller's guarantees are passed on.
        unsafe { System.dealloc(place, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: MemoryTestAllocator = MemoryTestAllocator;

fn framed(wire: &Client, pdu: &Pdu, data: &[u8]) -> Vec<u8> {
    wire.framing.frame(pdu, [Bytes::copy_from_slice(data)]).into_pieces().collect::<Vec<_>>().concat()
}

const MIB: usize = 1 << 20;

/// Opens a queue with an outstanding R2T of 1 MiB, and its admin queue.
fn asked(target: &mut Target) -> (Client, Client, ReadyToTransfer) {
    let (mut wire, admin) = Client::io(target, false);
    let write = Command::new(IoOpcode::Write as u8, 5).with_namespace(1).with_u32(12, 2047);
    let came = wire.send(target, &Pdu::Command(write.with_sgl(Sgl::transport(MIB as u32))), &[]);
    let [ReceivedPdu(Pdu::ReadyToTransfer(request), _)] = came[..] else { panic!("{came:?}") };
    (wire, admin, request)
}

#[test]
fn data_in_one_byte_segments_use_little_memory() {
    let mut target = target(TransportConfig::default());
    let (mut wire, _admin, request) = asked(&mut target);
    let bytes = framed(&wire, &Pdu::HostData(host_data(&request)), &vec![1; MIB]);
    let before = HELD.get();
    // The last byte is kept back, so that the command holds all its data when measured.
    for byte in &bytes[..bytes.len() - 1] {
        wire.connection.handle_segment(wire.now, segment(&[*byte]), &mut target);
    }
    let held = HELD.get() - before;
    assert!(held < 2 * MIB as isize, "{held} bytes of heap for 1 MiB of payload");
    let came = wire.send_bytes(&mut target, &bytes[bytes.len() - 1..]);
    assert!(
        matches!(came[..], [ReceivedPdu(Pdu::Response(completion), _)] if completion.status.is_success()),
        "{came:?}"
    );
}

#[test]
fn commands_in_one_byte_segments_use_little_memory() {
    let mut target = target(TransportConfig::default());
    let (mut wire, _admin) = Client::io(&mut target, false);
    let before = HELD.get();
    let write = |id| Command::new(IoOpcode::Write as u8, id).with_namespace(1).with_u32(12, 15);
    for id in 0..32 {
        let bytes = framed(&wire, &Pdu::Command(write(id).with_sgl(Sgl::in_capsule(8192))), &[1; 8192]);
        for byte in bytes {
            wire.connection.handle_segment(wire.now, segment(&[byte]), &mut target);
        }
    }
    let held = HELD.get() - before;
    assert!(held < 32 * 10_000, "{held} bytes of heap for {} of payload", 32 * 8192);
}

/// One data byte in each receive buffer; the rest of the buffer is a refused command.
#[test]
fn small_piece_does_not_keep_its_buffer() {
    let mut target = target(TransportConfig::default());
    let (mut wire, _admin, request) = asked(&mut target);
    let refused = Command::new(IoOpcode::Write as u8, 9).with_namespace(77).with_sgl(Sgl::in_capsule(8192));
    let refused = framed(&wire, &Pdu::Command(refused), &[0; 8192]);
    let before = HELD.get();
    for offset in 0..512 {
        let ReadyToTransfer { command, tag, .. } = request;
        let header = DataHeader { command, tag, offset, length: 1, last: false, success: false };
        let mut bytes = framed(&wire, &Pdu::HostData(header), &[offset as u8]);
        for _ in 0..7 {
            bytes.extend(&refused);
        }
        let mut buffer = BytesMut::with_capacity(64 << 10);
        buffer.extend_from_slice(&bytes);
        let segment = RxSegment { seq: Seq(0), data: buffer.into(), meta: RxMeta::default() };
        wire.connection.handle_segment(wire.now, segment, &mut target);
        while wire.connection.poll_transmit().is_some() {}
    }
    let held = HELD.get() - before;
    assert!(held < MIB as isize, "{held} bytes of heap for 512 of payload");
}

/// Runs all jobs. Returns the PDUs handed to the stream, which releases nothing.
fn work_and_transmit(wire: &mut Client, target: &mut Target) -> Vec<Bytes> {
    while let Some(job) = wire.connection.poll_job() {
        wire.connection.complete(wire.now, Job::run(job), target);
    }
    core::iter::from_fn(|| wire.connection.poll_transmit()).flat_map(|pdu| pdu.into_pieces()).collect()
}

#[test]
fn memory_of_all_hosts_is_limited() {
    // Enough for the I/O queues of 15 hosts, and for one more stream.
    const STREAM: usize = 152 << 10;
    let limit = min_memory() + 14 * (min_memory() - STREAM) + STREAM;
    let mut target = target_with(limit, 4096);
    let before = HELD.get();
    let (admin, controller) = Client::admin(&mut target);
    let mut queues = Vec::new();
    let refused = loop {
        let mut wire = Client::open(&mut target, false);
        let completion = wire.connect(&mut target, queues.len() as u16 + 1, controller);
        if !completion.status.is_success() {
            break completion.status;
        }
        queues.push((wire, Vec::new()));
    };
    assert_eq!((refused, target.stats().refused_connections), (Status::CONNECT_BUSY, 1));
    assert_eq!(queues.len(), 15);
    // Each queue reads 16 MiB and leaves the data in its stream.
    let read = |id| Command::new(IoOpcode::Read as u8, id).with_namespace(1).with_u32(12, 255);
    for (wire, taken) in &mut queues {
        for id in 0..16 {
            let bytes = framed(wire, &Pdu::Command(read(id).with_sgl(Sgl::transport(MIB as u32))), &[]);
            wire.connection.handle_segment(wire.now, segment(&bytes), &mut target);
            taken.extend(work_and_transmit(wire, &mut target));
        }
        let read: usize = taken.iter().map(Bytes::len).sum();
        assert!(read >= MIB, "each queue completes one of the largest commands");
    }
    let held = HELD.get() - before;
    assert!(target.stats().memory <= limit && held <= limit as isize, "{held} bytes of heap");
    assert!(held >= (queues.len() * MIB) as isize);
    let write = |id| Command::new(IoOpcode::Write as u8, id).with_namespace(1).with_u32(12, 0);
    // A waiting connection is called as soon as there is room.
    let (called, waits) = (queues[1].0.connection.id(), queues[0].0.connection.id());
    let _ = target.take_wakeups();
    queues[0].1.clear();
    let wakeups = target.take_wakeups();
    assert!(wakeups.contains(&waits), "its own data were released");
    let (mut ended, _) = queues.pop().unwrap();
    ended.connection.handle_end(&mut target);
    drop(ended);
    assert!(target.take_wakeups().contains(&called));
    let (wire, taken) = &mut queues[0];
    taken.extend(work_and_transmit(wire, &mut target));
    assert!(taken.iter().map(Bytes::len).sum::<usize>() >= MIB);
    taken.clear();
    while {
        let more = work_and_transmit(wire, &mut target);
        !more.is_empty()
    } {}
    let written = wire.command(&mut target, write(1), &[7; 4096]).status;
    assert!(written.is_success());
    // Everything that was charged must be freed in the end.
    drop((queues, admin, target));
    let held = HELD.get() - before;
    assert!(held <= 0, "{held} bytes are left");
}

/// Returns the minimum memory for a host with one I/O queue.
fn min_memory() -> usize {
    match Target::new(TargetConfig { memory: 0, ..TargetConfig::default() }) {
        Err(TargetError::Memory { memory: 0, needed }) => needed,
        other => panic!("{other:?}"),
    }
}

fn target_with(memory: usize, block_bytes: u32) -> Target {
    let mut target = Target::new(TargetConfig { memory, ..TargetConfig::default() }).unwrap();
    target.add_subsystem(DISK, None).unwrap();
    target.add_namespace(DISK, Namespace::new(1, block_bytes, Arc::new(BlockingStorage)).unwrap()).unwrap();
    target
}

#[test]
fn target_without_memory_for_a_host_is_refused() {
    let needed = min_memory();
    let error = Target::new(TargetConfig { memory: needed - 1, ..TargetConfig::default() }).unwrap_err();
    assert!(error.to_string().contains(&format!("needs {needed}: give the target more `memory`")), "{error}");
    let transport = TransportConfig { max_transfer: 20, ..TransportConfig::default() };
    assert!(Target::new(TargetConfig { transport, ..TargetConfig::default() }).is_err(), "4 GiB exceed 1 GiB");
    let mut target = target_with(needed, 512);
    let (_io, _admin) = Client::io(&mut target, false);
}

/// In-capsule data must always fit, even while requested data are on the way.
#[test]
fn in_capsule_data_always_have_room() {
    let mut target = target_with(min_memory(), 512);
    let (mut wire, mut admin, request) = asked(&mut target);
    let write = |id| {
        let write = Command::new(IoOpcode::Write as u8, id).with_namespace(1).with_u32(12, 15);
        Pdu::Command(write.with_sgl(Sgl::in_capsule(8192)))
    };
    let before = (HELD.get(), target.stats().memory);
    // As many as the queue has entries; none is executed before its data are complete.
    for id in 100..131 {
        assert!(wire.connection.wants_input());
        let bytes = framed(&wire, &write(id), &vec![1; 8192]);
        wire.connection.handle_segment(wire.now, segment(&bytes), &mut target);
    }
    assert!(wire.collect().is_empty());
    let held = (HELD.get() - before.0, target.stats().memory);
    assert!(held.0 > 31 * 8192 && held.0 < 32 * 10_000 && held.1 == before.1, "{held:?}");
    let came = wire.send(&mut target, &Pdu::HostData(host_data(&request)), &vec![1; MIB]);
    let written = |came: &ReceivedPdu| matches!(came.0, Pdu::Response(written) if written.status.is_success());
    assert!(came.len() == 32 && came.iter().all(written), "{came:?}");
    // A stream without room is refused, and the admin queue keeps working.
    assert_eq!(target.stats().memory, min_memory());
    assert!(target.accept(wire.now).is_refused());
    let disconnect = Command::fabrics(FabricsType::Disconnect, 9);
    assert_eq!(admin.command(&mut target, disconnect, &[]).status, Status::INVALID_QUEUE_TYPE);
}

/// Pieces large enough to keep their buffers, each in a NIC buffer of its own.
#[test]
fn kept_piece_is_charged_with_its_nic_buffer() {
    for lro_max_bytes in [NicConfig::default().lro_max_bytes, 256 << 10] {
        let buffer = NicConfig { lro_max_bytes, ..NicConfig::default() }.receive_buffer_bytes();
        let mut transport = TransportConfig::default();
        transport.receive_buffer = transport.receive_buffer.max(buffer);
        let mut target = target(transport);
        let (mut wire, _admin, request) = asked(&mut target);
        let (before, charged) = (HELD.get(), target.stats().memory);
        for offset in (0..MIB as u32).step_by(16 << 10).take(63) {
            let ReadyToTransfer { command, tag, .. } = request;
            let header = DataHeader { command, tag, offset, length: 16 << 10, last: false, success: false };
            let mut pool = BufferPool::new(buffer, 1);
            let mut data = pool.take();
            data.extend_from_slice(&framed(&wire, &Pdu::HostData(header), &[1; 16 << 10]));
            let segment = RxSegment { seq: Seq(0), data: data.into(), meta: RxMeta::default() };
            wire.connection.handle_segment(wire.now, segment, &mut target);
        }
        let (held, charged) = (HELD.get() - before, target.stats().memory - charged);
        // The data were charged with the request, and the connection's fixed cost when it began.
        assert!(
            held as usize <= charged + MIB + MIB / 16,
            "{held} bytes of heap, {charged} charged, in buffers of {buffer}"
        );
        assert!(held as usize >= 63 * buffer, "the pieces must keep their buffers");
    }
}

#[test]
fn silent_streams_cost_little() {
    let mut target = target_with(min_memory() + 20 * (8 << 10), 512);
    let silent: Vec<_> = (0..20).map(|_| target.accept(Instant::ZERO)).collect();
    assert!(silent.iter().all(|connection| !connection.is_closing()));
    // A real host connects and takes the memory that the silent streams would need later.
    let (_wire, _admin, _) = asked(&mut target);
    let icreq = Pdu::InitializeRequest(InitializeRequest::default());
    let refused = silent.into_iter().filter_map(|mut connection| {
        let bytes = PduFraming::default().frame(&icreq, []).into_pieces().collect::<Vec<_>>().concat();
        connection.handle_segment(Instant::ZERO, segment(&bytes), &mut target);
        connection.is_refused().then_some(connection)
    });
    let refused: Vec<_> = refused.collect();
    assert_eq!((refused.len(), target.stats().refused_connections), (20, 20), "no stream has room");
    assert!(refused.into_iter().all(|mut connection| connection.is_closing() && connection.poll_transmit().is_none()));
}

/// Tests each kind of command that can occupy the entries of a queue.
#[test]
fn queue_holds_no_more_than_its_charge() {
    let reads = |id| (Command::new(IoOpcode::Read as u8, id).with_u32(12, 7).with_sgl(Sgl::transport(4096)), 0);
    let asked = |id| (Command::new(IoOpcode::Write as u8, id).with_u32(12, 7).with_sgl(Sgl::transport(4096)), 0);
    let writes = |id| (Command::new(IoOpcode::Write as u8, id).with_sgl(Sgl::in_capsule(512)), 512);
    let flushes = |id| (Command::new(IoOpcode::Flush as u8, id), 0);
    let unknown = |id| (Command::new(0x7f, id), 0);
    type Make = fn(u16) -> (Command, usize);
    let rows: [(&str, Make); 5] =
        [("reads", reads), ("writes", asked), ("capsules", writes), ("flushes", flushes), ("refused", unknown)];
    for (name, make) in rows {
        for (entries, carries_out) in [(1023u16, false), (1023, true), (2, true)] {
            let transport = TransportConfig { in_capsule: 512, ..TransportConfig::default() };
            let mut target = Target::new(TargetConfig { transport, ..TargetConfig::default() }).unwrap();
            target.add_subsystem(DISK, None).unwrap();
            target.add_namespace(DISK, Namespace::new(1, 512, Arc::new(BlockingStorage)).unwrap()).unwrap();
            let (_admin, controller) = Client::admin(&mut target);
            let mut wire = Client::open(&mut target, false);
            let (command, data) = connect_command(1, controller);
            let before = (HELD.get(), target.stats().memory);
            let size = u32::from(entries - 1);
            assert!(wire.command(&mut target, command.with_u32(11, size), &data.to_bytes()).status.is_success());
            let mut sent = 0;
            while wire.connection.wants_input() && (carries_out || sent < entries) && sent < 3000 {
                let (command, bytes) = make(sent);
                let bytes = framed(&wire, &Pdu::Command(command.with_namespace(1)), &vec![1; bytes]);
                wire.connection.handle_segment(wire.now, segment(&bytes), &mut target);
                if carries_out {
                    while let Some(job) = wire.connection.poll_job() {
                        wire.connection.complete(wire.now, Job::run(job), &mut target);
                    }
                }
                sent += 1;
                if name == "writes" && sent == entries {
                    // The data of these commands do not arrive.
                    break;
                }
            }
            let held = (HELD.get() - before.0, target.stats().memory - before.1);
            // Memory promised for data is not included unless data are held.
            let charged = held.1 as isize - if name == "reads" && carries_out { 0 } else { MIB as isize };
            assert!(held.0 <= charged, "{name}, {entries} entries, {sent} sent: {} held, {charged} charged", held.0);
        }
    }
}

/// Pieces large enough to keep their buffers, but there is no memory to charge them.
#[test]
fn uncharged_buffers_are_not_kept() {
    let mut target = target_with(min_memory(), 512);
    let (mut wire, _admin, request) = asked(&mut target);
    let refused = Command::new(IoOpcode::Write as u8, 9).with_namespace(77).with_sgl(Sgl::in_capsule(8192));
    let refused = framed(&wire, &Pdu::Command(refused), &[0; 8192]);
    let before = HELD.get();
    for offset in (0..MIB as u32).step_by(16 << 10).take(63) {
        let ReadyToTransfer { command, tag, .. } = request;
        let header = DataHeader { command, tag, offset, length: 16 << 10, last: false, success: false };
        let mut buffer = BytesMut::with_capacity(64 << 10);
        buffer.extend_from_slice(&framed(&wire, &Pdu::HostData(header), &[1; 16 << 10]));
        (0..5).for_each(|_| buffer.extend_from_slice(&refused));
        let segment = RxSegment { seq: Seq(0), data: buffer.into(), meta: RxMeta::default() };
        wire.connection.handle_segment(wire.now, segment, &mut target);
        while wire.connection.poll_transmit().is_some() {}
    }
    let held = HELD.get() - before;
    assert!(held < 5 * MIB as isize / 4, "{held} bytes of heap for less than 1 MiB of payload");
}
