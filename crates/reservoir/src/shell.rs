//! The runtime services that the library uses: timers, a thread pool for blocking calls, and tasks. Implemented by
//! tokio and by a testbed.

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

/// The runtime services.
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
    /// Combines the services.
    pub fn new(timers: Arc<dyn Timers>, pool: Arc<dyn Blocking>, spawn: Arc<dyn Fn(Task) + Send + Sync>) -> Shell {
        Shell { timers, pool, spawn }
    }

    /// Uses the tokio runtime of the caller.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub fn tokio() -> Shell {
        let pool = |work: Box<dyn FnOnce() + Send>| drop(tokio::task::spawn_blocking(work));
        // The task is detached.
        let spawn = |task: Task| drop(tokio::spawn(task));
        Shell::new(Arc::new(TokioTimers::current()), Arc::new(pool), Arc::new(spawn))
    }

    /// Returns the present time.
    pub fn now(&self) -> Instant {
        self.timers.now()
    }

    pub(crate) fn timers(&self) -> &Arc<dyn Timers> {
        &self.timers
    }

    /// Waits for `span`.
    pub async fn sleep(&self, span: Duration) {
        self.sleep_until(self.now() + span).await;
    }

    pub(crate) async fn sleep_until(&self, deadline: Instant) {
        let mut alarm = self.timers.alarm();
        poll_fn(|cx| alarm.poll(cx, Some(deadline))).await;
    }

    /// Returns the output of `future`, or `TimedOut` after `span`.
    pub(crate) async fn within<T>(&self, span: Duration, future: impl Future<Output = T>) -> io::Result<T> {
        tokio::select! {
            biased;
            done = future => Ok(done),
            () = self.sleep(span) => Err(io::ErrorKind::TimedOut.into()),
        }
    }

    /// Starts `work` on the pool at once, and returns its result.
    pub fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> io::Result<T> + Send + 'static,
    ) -> impl Future<Output = io::Result<T>> + Send + 'static {
        let begun = self.pool.call(work);
        async { begun.await? }
    }

    /// Spawns a detached task.
    pub fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        (self.spawn)(Box::pin(task));
    }
}
