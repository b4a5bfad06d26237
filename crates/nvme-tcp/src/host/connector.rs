//! Opening of streams to a controller.

use core::future::Future;
use core::pin::Pin;
use offload_api::SegmentStream;
use std::io;

/// A future that opens a stream.
pub type ConnectFuture = Pin<Box<dyn Future<Output = io::Result<Box<dyn SegmentStream>>> + Send>>;

/// A factory of streams to one controller. The host opens a stream for each queue, and again after each loss. Any
/// closure that returns a future of a stream is a connector.
///
/// ```
/// use nvme_tcp::host::Connector;
/// use offload_api::SegmentStream;
///
/// fn by<S: SegmentStream + 'static>(open: fn() -> std::future::Ready<std::io::Result<S>>) -> impl Connector {
///     open
/// }
/// ```
pub trait Connector: Send + Sync {
    /// Opens a stream.
    fn connect(&self) -> ConnectFuture;
}

impl<F, R, S> Connector for F
where
    F: Fn() -> R + Send + Sync,
    R: Future<Output = io::Result<S>> + Send + 'static,
    S: SegmentStream + 'static,
{
    fn connect(&self) -> ConnectFuture {
        let opening = self();
        Box::pin(async move { Ok(Box::new(opening.await?) as Box<dyn SegmentStream>) })
    }
}
