//! Execution of blocking work, independent of the runtime.

use core::future::Future;
use std::io;
use tokio::sync::oneshot;

/// An executor for work that may block, usually a thread pool. Any closure that accepts the work is an executor.
///
/// ```
/// use ktls_offload::Blocking;
/// use std::sync::Arc;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> std::io::Result<()> {
/// let pool: Arc<dyn Blocking> =
///     Arc::new(|work: Box<dyn FnOnce() + Send>| drop(tokio::task::spawn_blocking(work)));
/// assert_eq!(pool.call(|| 6 * 7).await?, 42);
/// # Ok(())
/// # }
/// ```
pub trait Blocking: Send + Sync {
    /// Runs `work` now or soon. If the work is dropped, its caller gets an error.
    fn run(&self, work: Box<dyn FnOnce() + Send>);
}

impl<F: Fn(Box<dyn FnOnce() + Send>) + Send + Sync> Blocking for F {
    fn run(&self, work: Box<dyn FnOnce() + Send>) {
        self(work);
    }
}

impl dyn Blocking {
    /// Starts `work` and returns its result.
    ///
    /// # Errors
    /// If the pool dropped the work.
    pub fn call<T: Send + 'static, W: FnOnce() -> T + Send + 'static>(
        &self,
        work: W,
    ) -> impl Future<Output = io::Result<T>> + Send + use<T, W> {
        let result = begin(self, work);
        async { result.await.map_err(|_| dropped()) }
    }
}

/// Starts `work`; the result is polled instead of awaited (see [`call`](Blocking::call)).
pub(super) fn begin<T: Send + 'static>(
    pool: &dyn Blocking,
    work: impl FnOnce() -> T + Send + 'static,
) -> oneshot::Receiver<T> {
    let (done, result) = oneshot::channel();
    pool.run(Box::new(move || {
        // The receiver may be gone, because its caller stopped waiting.
        let _ = done.send(work());
    }));
    result
}

pub(super) fn dropped() -> io::Error {
    io::Error::other("the pool dropped the work")
}

/// An executor that runs work at once in the caller: for virtual time, where other threads are not allowed, and for
/// programs without other tasks.
///
/// See [`send_file`](crate::send_file) for an example.
#[derive(Clone, Copy, Debug, Default)]
pub struct InPlace;

impl Blocking for InPlace {
    fn run(&self, work: Box<dyn FnOnce() + Send>) {
        work();
    }
}
