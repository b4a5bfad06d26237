//! Where work that blocks is done, whatever the runtime.

use core::future::Future;
use std::io;
use tokio::sync::oneshot;

/// Has work done that may block: on a thread pool, usually. Any closure that takes the work is one.
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
    /// Has `work` done soon, or does it now. To drop it is to fail what waits for it.
    fn run(&self, work: Box<dyn FnOnce() + Send>);
}

impl<F: Fn(Box<dyn FnOnce() + Send>) + Send + Sync> Blocking for F {
    fn run(&self, work: Box<dyn FnOnce() + Send>) {
        self(work);
    }
}

impl dyn Blocking {
    /// Begins `work`; gives what it comes to.
    ///
    /// # Errors
    /// If the pool dropped it.
    pub fn call<T: Send + 'static, W: FnOnce() -> T + Send + 'static>(
        &self,
        work: W,
    ) -> impl Future<Output = io::Result<T>> + Send + use<T, W> {
        let result = begin(self, work);
        async { result.await.map_err(|_| dropped()) }
    }
}

/// As [`call`](Blocking::call), by polling.
pub(super) fn begin<T: Send + 'static>(
    pool: &dyn Blocking,
    work: impl FnOnce() -> T + Send + 'static,
) -> oneshot::Receiver<T> {
    let (done, result) = oneshot::channel();
    pool.run(Box::new(move || {
        // Whoever waited may have gone.
        let _nobody_waits = done.send(work());
    }));
    result
}

pub(super) fn dropped() -> io::Error {
    io::Error::other("the pool dropped the work")
}

/// Does it at once, where it was asked for: in virtual time, where nothing may happen on another thread, and in
/// programs that have nothing else to do.
///
/// See [`send_file`](crate::send_file) for an example.
#[derive(Clone, Copy, Debug, Default)]
pub struct InPlace;

impl Blocking for InPlace {
    fn run(&self, work: Box<dyn FnOnce() + Send>) {
        work();
    }
}
