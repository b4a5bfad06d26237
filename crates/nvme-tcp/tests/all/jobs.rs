//! Storage operations of a controller: durability, order, execution in parts, and the limit of concurrent jobs.

use crate::rig;

use nvme_tcp::core::controller::{Job, JobResult};
use nvme_tcp::target::Target;
use nvme_tcp::wire::{AdminOpcode, Command, IoOpcode, Pdu, Sgl, Status, property};
use rig::storage::{counting_target, hooked_target};
use rig::{
    Client, ReceivedPdu, connect_command, first_block, host_data, property_get, property_set, segment, send_only,
    statuses, two_queues,
};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

#[test]
fn shutdown_completes_when_all_data_are_durable() {
    let (mut target, storage) = counting_target();
    let (mut wire, _) = Client::admin(&mut target);
    let pdu = Pdu::Command(property_set(0x0046_4001));
    let capsule = wire.framing.frame(&pdu, []).into_pieces().collect::<Vec<_>>().concat();
    wire.connection.handle_segment(wire.now, segment(&capsule), &mut target);
    assert!(wire.collect().is_empty(), "not before the flush");
    let flush = wire.connection.poll_job().expect("a flush");
    wire.connection.complete(wire.now, flush.run(), &mut target);
    assert_eq!(storage.flushes.load(Ordering::Relaxed), 1);
    assert!(
        matches!(wire.collect()[..], [ReceivedPdu(Pdu::Response(completion), _)] if completion.status.is_success())
    );
    assert_eq!(wire.command(&mut target, property_get(property::CSTS), &[]).result, 1 | 0b10 << 2);
}

#[test]
fn shutdown_completes_after_a_failed_flush() {
    let (mut target, storage) = counting_target();
    let (mut wire, _) = Client::admin(&mut target);
    storage.is_broken.store(true, Ordering::Relaxed);
    let status = wire.command(&mut target, property_set(0x0046_4001), &[]).status;
    assert!(!status.is_success(), "written data may not be durable");
    assert_eq!(storage.flushes.load(Ordering::Relaxed), 1);
    assert_eq!(wire.command(&mut target, property_get(property::CSTS), &[]).result, 1 | 0b10 << 2);
}

#[test]
fn durable_commands_flush_before_completion() {
    let (mut target, storage) = counting_target();
    let (mut wire, mut admin) = Client::io(&mut target, false);
    let io = |opcode: IoOpcode| Command::new(opcode as u8, 5).with_namespace(1);
    let unit_access = 1 << 30;
    let mut range = [0; 16];
    range[4] = 1;
    let deallocate = io(IoOpcode::DatasetManagement).with_u32(11, 1 << 2);
    // Write cache, command, data, and number of flushes: with the cache, only FUA and Flush are durable.
    for (cache, command, data, flushes) in [
        (1, io(IoOpcode::Flush), &[][..], 1),
        (1, io(IoOpcode::Write), &[1; 512][..], 0),
        (1, io(IoOpcode::Write).with_u32(12, unit_access), &[1; 512][..], 1),
        (1, io(IoOpcode::WriteZeroes).with_u32(12, unit_access), &[][..], 1),
        (1, deallocate, &range[..], 0),
        (0, io(IoOpcode::Write), &[1; 512][..], 1),
        (0, io(IoOpcode::WriteZeroes), &[][..], 1),
        (0, deallocate, &range[..], 1),
    ] {
        let set = Command::new(AdminOpcode::SetFeatures as u8, 1).with_u32(10, 0x06).with_u32(11, cache);
        assert!(admin.command(&mut target, set, &[]).status.is_success());
        let before = storage.flushes.load(Ordering::Relaxed);
        assert!(wire.command(&mut target, command, data).status.is_success(), "{command:?}");
        assert_eq!(storage.flushes.load(Ordering::Relaxed) - before, flushes, "cache {cache}: {command:?}");
    }
}

#[test]
fn panicking_storage_fails_only_its_command() {
    let (mut target, _) = counting_target();
    let (mut wire, _admin) = Client::io(&mut target, false);
    let read = Command::new(IoOpcode::Read as u8, 5).with_namespace(1).with_sgl(Sgl::transport(512));
    assert_eq!(wire.command(&mut target, read, &[]).status, Status::INTERNAL_ERROR);
    let write = Command::new(IoOpcode::Write as u8, 5).with_namespace(1);
    assert!(wire.command(&mut target, write, &[1; 512]).status.is_success());
}

/// Jobs to advance again.
type PostponedJobs = Arc<Mutex<Vec<Job>>>;

fn advance(job: Job, later: &PostponedJobs) -> Option<JobResult> {
    let later = later.clone();
    job.advance(move |job| later.lock().unwrap().push(job))
}

/// Advances a job until its end or until it has to wait. `later` receives a waiting job with its turn.
fn advance_far(mut job: Job, later: &PostponedJobs) -> Option<JobResult> {
    loop {
        if let Some(done) = advance(job, later) {
            return Some(done);
        }
        let more = later.lock().unwrap().pop();
        job = more?;
    }
}

#[test]
fn waiting_jobs_occupy_no_thread() {
    let (mut target, storage) = hooked_target();
    let (_admin, [mut first, mut second], _) = two_queues(&mut target);
    let write = |id, block: u64, value: u8, wire: &mut Client, target: &mut Target, durable: u32| {
        let write = Command::new(IoOpcode::Write as u8, id).with_namespace(1).with_u64(10, block).with_u32(12, durable);
        send_only(wire, target, &Pdu::Command(write.with_sgl(Sgl::in_capsule(512))), &[value; 512]);
        wire.connection.poll_job().unwrap()
    };
    let flush = |wire: &mut Client, target: &mut Target| {
        send_only(wire, target, &Pdu::Command(Command::new(IoOpcode::Flush as u8, 8).with_namespace(1)), &[]);
        wire.connection.poll_job().unwrap()
    };
    let durable = 1 << 30;
    // While the slow job occupies its thread, writing or flushing, another thread runs the other jobs.
    for is_flushing in [false, true] {
        let (later, done) = (PostponedJobs::default(), Arc::<Mutex<Vec<JobResult>>>::default());
        let mut slow = write(5, 0, 0xaa, &mut first, &mut target, durable);
        if is_flushing {
            assert!(advance(slow, &later).is_none(), "the flush is a part of its own");
            slow = later.lock().unwrap().pop().unwrap();
        }
        let same_place = write(6, 0, 0xbb, &mut second, &mut target, 0);
        let beside = write(7, 9, 0xcc, &mut second, &mut target, durable);
        let flush = flush(&mut second, &mut target);
        let (in_hook, done_there) = (later.clone(), done.clone());
        let flushes = storage.flushes.load(Ordering::Relaxed);
        *storage.hook.lock().unwrap() = Some(Box::new(move || {
            let ended = [same_place, flush, beside].map(|job| advance_far(job, &in_hook));
            let have_ended = ended.each_ref().map(Option::is_some);
            // One flush covers data written before the flush began, so the flush of the others also covers the slow
            // write.
            assert_eq!(have_ended, if is_flushing { [true, false, false] } else { [false, true, true] });
            done_there.lock().unwrap().extend(ended.into_iter().flatten());
            assert!(in_hook.lock().unwrap().is_empty(), "no job gets its turn early");
        }));
        let ended = match advance(slow, &later) {
            Some(ended) => ended,
            None => {
                let slow = later.lock().unwrap().pop().unwrap();
                advance_far(slow, &later).expect("no flush is running")
            }
        };
        first.connection.complete(first.now, ended, &mut target);
        loop {
            let called = later.lock().unwrap().pop();
            let Some(called) = called else { break };
            done.lock().unwrap().extend(advance_far(called, &later));
        }
        let flushed = storage.flushes.load(Ordering::Relaxed) - flushes;
        // Writes that end during a flush share the next flush.
        assert_eq!(flushed, if is_flushing { 2 } else { 3 });
        let done = core::mem::take(&mut *done.lock().unwrap());
        assert_eq!(done.len(), 3);
        done.into_iter().for_each(|done| second.connection.complete(second.now, done, &mut target));
        let came = [statuses(&first.collect()), statuses(&second.collect())].concat();
        assert!(came.iter().all(|(_, status)| status.is_success()), "{came:?}");
        assert_eq!(first_block(&mut second, &mut target), 0xbb, "in order of arrival");
    }
}

#[test]
fn long_job_runs_in_parts_and_can_be_aborted() {
    let (mut target, _storage) = hooked_target();
    let (mut admin, [mut queue, _], _) = two_queues(&mut target);
    let zero = |id| Pdu::Command(Command::new(IoOpcode::WriteZeroes as u8, id).with_namespace(1).with_u32(12, 0xffff));
    let abort = |command: u32| Command::new(AdminOpcode::Abort as u8, 11).with_u32(10, 1 | command << 16);
    let later = PostponedJobs::default();
    send_only(&mut queue, &mut target, &zero(5), &[]);
    let mut job = queue.connection.poll_job().unwrap();
    let mut parts = 1;
    let done = loop {
        if let Some(done) = advance(job, &later) {
            break done;
        }
        job = later.lock().unwrap().pop().unwrap();
        parts += 1;
    };
    queue.connection.complete(queue.now, done, &mut target);
    assert_eq!((parts, &statuses(&queue.collect())[..]), (32, &[(5, Status::SUCCESS)][..]), "1 MiB each");
    // A running command, a waiting one, one without requested data, and one with data on the way.
    send_only(&mut queue, &mut target, &zero(6), &[]);
    let job = queue.connection.poll_job().unwrap();
    assert!(advance(job, &later).is_none());
    send_only(&mut queue, &mut target, &zero(7), &[]);
    let write = Command::new(IoOpcode::Write as u8, 8).with_namespace(1).with_sgl(Sgl::transport(512));
    send_only(&mut queue, &mut target, &Pdu::Command(write), &[]);
    let came = queue.collect();
    let [ReceivedPdu(Pdu::ReadyToTransfer(request), _)] = came[..] else { panic!("{came:?}") };
    // The admin queue cannot abort an I/O command itself: the result says not aborted.
    for id in [6, 7, 8] {
        assert_eq!(admin.command(&mut target, abort(id), &[]).result, 1, "not at once");
    }
    assert!(target.take_wakeups().contains(&queue.connection.id()));
    queue.connection.handle_wakeup(&mut target);
    assert_eq!(statuses(&queue.collect()), [(7, Status::ABORTED_BY_REQUEST)]);
    let job = later.lock().unwrap().pop().unwrap();
    let done = advance(job, &later).expect("no further part");
    queue.connection.complete(queue.now, done, &mut target);
    assert_eq!(statuses(&queue.collect()), [(6, Status::ABORTED_BY_REQUEST)]);
    let came = queue.send(&mut target, &Pdu::HostData(host_data(&request)), &[7; 512]);
    assert_eq!(statuses(&came), [(8, Status::ABORTED_BY_REQUEST)]);
    assert_eq!(first_block(&mut queue, &mut target), 0, "nothing was written");
}

#[test]
fn abort_does_not_affect_a_later_command() {
    let (mut target, _storage) = hooked_target();
    let (mut admin, [mut queue, _], _) = two_queues(&mut target);
    let abort = |command: u32| Command::new(AdminOpcode::Abort as u8, 11).with_u32(10, 1 | command << 16);
    let zero = |id| Pdu::Command(Command::new(IoOpcode::WriteZeroes as u8, id).with_namespace(1));
    send_only(&mut queue, &mut target, &zero(5), &[]);
    // Aborts a command that was received, and one not received yet. The connection looks at both later.
    assert_eq!(admin.command(&mut target, abort(5), &[]).result, 1);
    assert_eq!(admin.command(&mut target, abort(6), &[]).result, 1);
    send_only(&mut queue, &mut target, &zero(6), &[]);
    queue.connection.handle_wakeup(&mut target);
    assert_eq!(statuses(&queue.collect()), [(5, Status::ABORTED_BY_REQUEST)]);
    // Command 6 runs, because the Abort came before it.
    while let Some(job) = queue.connection.poll_job() {
        queue.connection.complete(queue.now, job.run(), &mut target);
    }
    assert_eq!(statuses(&queue.collect()), [(6, Status::SUCCESS)]);
}

#[test]
fn jobs_of_one_queue_are_limited() {
    let (mut target, _storage) = hooked_target();
    let (_admin, controller) = Client::admin(&mut target);
    let mut wire = Client::open(&mut target, false);
    let (command, data) = connect_command(1, controller);
    let answer = wire.command(&mut target, command.with_u32(11, 1023 - 1), &data.to_bytes());
    assert!(answer.status.is_success());
    let flush = |id| Pdu::Command(Command::new(IoOpcode::Flush as u8, id).with_namespace(1));
    (0..1000).for_each(|id| send_only(&mut wire, &mut target, &flush(id), &[]));
    let jobs: Vec<Job> = core::iter::from_fn(|| wire.connection.poll_job()).collect();
    // The remaining commands wait in the connection until jobs complete.
    assert_eq!(jobs.len(), 128);
    for job in jobs {
        wire.connection.complete(wire.now, job.run(), &mut target);
    }
    assert!(wire.connection.poll_job().is_some());
}
