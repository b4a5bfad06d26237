//! A job queue on the cores of a simulated host, in virtual time.

use crate::perform;
use crate::sessions::CpuSessions;
use core::task::Waker;
use core::time::Duration;
use offload_api::{CompletedJob, Contexts, Job, JobOutcome, JobQueue, JobStatus};
use offload_base::Instant;
use std::collections::VecDeque;

/// The speed of a host's cores.
///
/// ```
/// use offload_jobs::CpuConfig;
///
/// assert_eq!(CpuConfig { cores: 4, ..CpuConfig::default() }.rate, 3_150_000_000);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CpuConfig {
    /// Maximum number of jobs.
    pub depth: usize,
    /// Maximum number of sessions.
    pub sessions: u32,
    /// Number of cores, and thereby of simultaneous jobs.
    pub cores: usize,
    /// Bytes of source and additional authenticated data that a core processes per second.
    pub rate: u64,
    /// Fixed time of a job.
    pub per_job: Duration,
}

/// One core with a published speed: AES-128-GCM with AES-NI at 3,150 MB/s (SERRANO D3.1, figure 5). The fixed time per
/// job is an assumption.
impl Default for CpuConfig {
    fn default() -> CpuConfig {
        CpuConfig { depth: 256, sessions: 1 << 20, cores: 1, rate: 3_150_000_000, per_job: Duration::from_nanos(200) }
    }
}

/// A [`JobQueue`] on the CPU in virtual time. Jobs are carried out, and take the time stated by [`CpuConfig`], which is
/// charged to the host ([`host_time`](CpuQueue::host_time)).
///
/// See the crate's README for an example.
#[derive(Debug)]
pub struct CpuQueue {
    config: CpuConfig,
    sessions: CpuSessions,
    /// Time at which each core becomes free.
    cores: Vec<Instant>,
    /// Jobs with their completion times.
    under_way: VecDeque<(Instant, CompletedJob)>,
    host_time: Duration,
}

impl CpuQueue {
    /// Creates a queue without sessions.
    pub fn new(config: CpuConfig) -> CpuQueue {
        CpuQueue {
            sessions: CpuSessions::new(config.sessions),
            cores: vec![Instant::ZERO; config.cores.max(1)],
            under_way: VecDeque::new(),
            host_time: Duration::ZERO,
            config,
        }
    }

    /// Returns the total time that the host's cores spent on jobs.
    pub fn host_time(&self) -> Duration {
        self.host_time
    }
}

impl JobQueue for CpuQueue {
    fn contexts(&mut self) -> &mut dyn Contexts {
        &mut self.sessions
    }

    fn room(&self) -> usize {
        self.config.depth - self.under_way.len()
    }

    fn submit(&mut self, now: Instant, mut job: Job) -> Result<(), Job> {
        if self.room() == 0 {
            return Err(job);
        }
        let Some(session) = self.sessions.get(job.session) else {
            self.under_way.push_front((now, job.done(JobOutcome::failed(JobStatus::NoSession))));
            return Ok(());
        };
        let nanos = (job.read_len() as u128 * 1_000_000_000).div_ceil(u128::from(self.config.rate.max(1)));
        let takes = self.config.per_job + Duration::from_nanos(nanos as u64);
        // The work is done immediately. Only its completion is delayed in virtual time.
        let outcome = perform(session, &mut job);
        self.host_time += takes;
        // The job goes to the core that becomes free first.
        if let Some(free) = self.cores.iter_mut().min() {
            *free = now.max(*free) + takes;
            self.under_way.push_back((*free, job.done(outcome)));
        }
        Ok(())
    }

    fn flush(&mut self, _: Instant) {}

    fn complete(&mut self, now: Instant) -> Option<CompletedJob> {
        // With several cores, a later job may end first.
        let first = (0..self.under_way.len()).min_by_key(|at| self.under_way[*at].0)?;
        if self.under_way[first].0 > now {
            return None;
        }
        self.under_way.remove(first).map(|(_, done)| done)
    }

    /// Ignores the waker: completion depends on virtual time alone, which the program advances.
    fn arm(&mut self, _: &Waker) -> bool {
        true
    }

    fn next_event(&self) -> Option<Instant> {
        self.under_way.iter().map(|(at, _)| *at).min()
    }
}
