//! A lookaside accelerator behind its queues: results, timing, and faults.

mod data_keys;
mod faults;
mod gone;
mod memory_search;
mod own_engine;
mod schedules;
mod speed;

use bytes::{Bytes, BytesMut};
use nic_sim::lookaside::Lookaside;
use offload_api::{CompletedJob, Handle, Job, JobQueue};
use offload_base::Instant;

/// Makes a job with a target of more than twice the source's length.
fn job(session: Handle, user: u64, source: Bytes) -> Job {
    let target = BytesMut::with_capacity(2 * source.len() + 1000);
    Job { user, ..Job::new(session, source, target) }
}

/// Runs the device until nothing is due. Returns the completed jobs with their times.
fn run(device: &mut Lookaside, queue: &mut impl JobQueue, now: &mut Instant) -> Vec<(Instant, CompletedJob)> {
    let mut ended = Vec::new();
    loop {
        device.process(*now);
        while let Some(done) = queue.complete(*now) {
            ended.push((*now, done));
        }
        match device.next_event() {
            Some(at) => *now = at.max(*now),
            None => return ended,
        }
    }
}
