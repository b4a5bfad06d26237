//! The [`JobQueue`] interface of a client, so that code written for a queue of its own can share one.

use crate::shared::JobClient;
use core::task::{Context, Poll, Waker};
use offload_api::{
    CompletedJob, ContextNews, ContextRefusal, Contexts, EngineInfo, Handle, Job, JobQueue, Key, NewContext, Piece,
    Spec,
};
use offload_base::{Instant, Seq};

impl JobQueue for JobClient {
    fn contexts(&mut self) -> &mut dyn Contexts {
        self
    }

    fn room(&self) -> usize {
        self.queue(|queue, _| queue.room())
    }

    fn submit(&mut self, _: Instant, job: Job) -> Result<(), Job> {
        JobClient::submit(self, job)
    }

    fn flush(&mut self, _: Instant) {
        JobClient::flush(self);
    }

    fn complete(&mut self, _: Instant) -> Option<CompletedJob> {
        // No waker: a caller of this interface waits through `arm`.
        match self.poll_done(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(done) => done,
            Poll::Pending => None,
        }
    }

    fn arm(&mut self, waker: &Waker) -> bool {
        self.wait(waker)
    }

    /// Returns `None`, because the task that runs the shared queue handles timeouts.
    fn next_event(&self) -> Option<Instant> {
        None
    }
}

/// The sessions of this client. News are consumed by the shared queue.
impl Contexts for JobClient {
    fn engine(&mut self, name: &str) -> Option<EngineInfo> {
        self.queue(|queue, _| queue.contexts().engine(name))
    }

    fn create(&mut self, new: NewContext) -> Result<Handle, (ContextRefusal, Spec)> {
        self.queue(|queue, sessions| {
            let session = queue.contexts().create(new)?;
            sessions.push(session);
            Ok(session)
        })
    }

    fn steer(&mut self, context: Handle, key: Key, to_it: bool) -> Result<(), ContextRefusal> {
        self.queue(|queue, _| queue.contexts().steer(context, key, to_it))
    }

    fn command(&mut self, context: Handle, command: Spec) -> Result<(), (ContextRefusal, Spec)> {
        self.queue(|queue, _| queue.contexts().command(context, command))
    }

    fn change(&mut self, engine: u8, change: Spec) -> Result<(), (ContextRefusal, Spec)> {
        self.queue(|queue, _| queue.contexts().change(engine, change))
    }

    fn place(&mut self, context: Handle, buffer: u64, pieces: Vec<Piece>, stages: Option<Spec>) {
        self.queue(|queue, _| queue.contexts().place(context, buffer, pieces, stages));
    }

    fn release(&mut self, context: Handle, buffer: u64) {
        self.queue(|queue, _| queue.contexts().release(context, buffer));
    }

    fn answer(&mut self, context: Handle, header: Seq, number: Option<u64>) {
        self.queue(|queue, _| queue.contexts().answer(context, header, number));
    }

    fn remove(&mut self, context: Handle) {
        self.close(context);
    }

    fn poll_news(&mut self) -> Option<ContextNews> {
        None
    }
}
