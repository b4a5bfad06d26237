//! A queue whose jobs a host's cores do, in virtual time.

use crate::perform;
use crate::sessions::Sessions;
use core::task::Waker;
use core::time::Duration;
use offload_api::{Contexts, CompletedJob, Job, JobQueue, JobStatus, JobOutcome};
use offload_base::Instant;
use std::collections::VecDeque;

/// How fast a host's cores are.
///
/// ```
/// use offload_jobs::CpuConfig;
///
/// assert_eq!(CpuConfig { cores: 4, ..CpuConfig::default() }.rate, 3_150_000_000);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CpuConfig {
    /// Jobs that there is room for.
    pub depth: usize,
    /// Sessions that there is room for.
    pub sessions: u32,
    /// Cores that do jobs: so many at a time.
    pub cores: usize,
    /// Bytes of sources and of their additional authenticated data that a core processes in a second.
    pub rate: u64,
    /// What each job takes beside.
    pub per_job: Duration,
}

/// One core as fast as published ones: AES-128-GCM by AES-NI at 3,150 MB/s (SERRANO D3.1, figure 5). What a job takes beside is
/// assumed.
impl Default for CpuConfig {
    fn default() -> CpuConfig {
        CpuConfig { depth: 256, sessions: 1 << 20, cores: 1, rate: 3_150_000_000, per_job: Duration::from_nanos(200) }
    }
}

/// A [`JobQueue`] on the CPU, in virtual time: jobs really are done, and take the time that the [`CpuConfig`] says, which is
/// charged to the host ([`host_time`](CpuQueue::host_time)).
///
/// See the crate's README for an example.
#[derive(Debug)]
pub struct CpuQueue {
    config: CpuConfig,
    sessions: Sessions,
    /// When each core is free.
    cores: Vec<Instant>,
    /// With when they end.
    under_way: VecDeque<(Instant, CompletedJob)>,
    host_time: Duration,
}

impl CpuQueue {
    /// A queue without sessions.
    pub fn new(config: CpuConfig) -> CpuQueue {
        CpuQueue {
            sessions: Sessions::new(config.sessions),
            cores: vec![Instant::ZERO; config.cores.max(1)],
            under_way: VecDeque::new(),
            host_time: Duration::ZERO,
            config,
        }
    }

    /// The time that the host's cores took for jobs, all together.
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
        let outcome = perform(session, &mut job);
        self.host_time += takes;
        // The core that is free first.
        if let Some(free) = self.cores.iter_mut().min() {
            *free = now.max(*free) + takes;
            self.under_way.push_back((*free, job.done(outcome)));
        }
        Ok(())
    }

    fn flush(&mut self, _: Instant) {}

    fn complete(&mut self, now: Instant) -> Option<CompletedJob> {
        let first = (0..self.under_way.len()).min_by_key(|at| self.under_way[*at].0)?;
        if self.under_way[first].0 > now {
            return None;
        }
        self.under_way.remove(first).map(|(_, done)| done)
    }

    /// Nobody is woken: time has to pass first, and the program says when it has.
    fn arm(&mut self, _: &Waker) -> bool {
        true
    }

    fn next_event(&self) -> Option<Instant> {
        self.under_way.iter().map(|(at, _)| *at).min()
    }
}
