//! What runs the engine: timers, a pool for calls that block, tasks. Tokio has all three, and so has a testbed.

use core::future::poll_fn;
use core::pin::Pin;
use core::time::Duration;
use ktls_offload::Blocking;
use offload_api::TokioTimers;
use offload_base::Instant;
use offload_base::time::Timers;
use std::io;
use std::sync::Arc;

/// A task without a result.
pub type Task = Pin<Box<dyn Future<Output = ()> + Send>>;

/// What runs the engine.
///
/// ```
/// use core::time::Duration;
/// use offload_reservoir::Shell;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> std::io::Result<()> {
/// let shell = Shell::tokio();
/// assert_eq!(shell.blocking(|| Ok(6 * 7)).await?, 42);
/// shell.sleep(Duration::from_millis(1)).await;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Shell {
    timers: Arc<dyn Timers>,
    pool: Arc<dyn Blocking>,
    spawn: Arc<dyn Fn(Task) + Send + Sync>,
}

impl Shell {
    /// Out of its parts.
    pub fn new(timers: Arc<dyn Timers>, pool: Arc<dyn Blocking>, spawn: Arc<dyn Fn(Task) + Send + Sync>) -> Shell {
        Shell { timers, pool, spawn }
    }

    /// The tokio runtime that runs the caller.
    ///
    /// # Panics
    /// If there is none.
    pub fn tokio() -> Shell {
        let pool = |work: Box<dyn FnOnce() + Send>| drop(tokio::task::spawn_blocking(work));
        // A task ends by itself: nobody waits for it.
        let spawn = |task: Task| drop(tokio::spawn(task));
        Shell::new(Arc::new(TokioTimers::current()), Arc::new(pool), Arc::new(spawn))
    }

    /// The present instant.
    pub fn now(&self) -> Instant {
        self.timers.now()
    }

    pub(crate) fn timers(&self) -> &Arc<dyn Timers> {
        &self.timers
    }

    /// Ready when `span` has passed.
    pub async fn sleep(&self, span: Duration) {
        self.sleep_until(self.now() + span).await;
    }

    pub(crate) async fn sleep_until(&self, deadline: Instant) {
        let mut alarm = self.timers.alarm();
        poll_fn(|cx| alarm.poll(cx, Some(deadline))).await;
    }

    /// What `future` comes to, unless it takes longer than `span`.
    pub(crate) async fn within<T>(&self, span: Duration, future: impl Future<Output = T>) -> io::Result<T> {
        tokio::select! {
            biased;
            done = future => Ok(done),
            () = self.sleep(span) => Err(io::ErrorKind::TimedOut.into()),
        }
    }

    /// Begins `work` on the pool at once; gives what it comes to.
    pub fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> io::Result<T> + Send + 'static,
    ) -> impl Future<Output = io::Result<T>> + Send + 'static {
        let begun = self.pool.call(work);
        async { begun.await? }
    }

    /// Runs a task beside the caller's.
    pub fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        (self.spawn)(Box::pin(task));
    }
}
