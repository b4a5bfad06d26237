//! An async TCP listener.

use super::{Shard, TcpStream};
use core::fmt;
use core::future::poll_fn;
use core::task::{Context, Poll};
use std::io;
use std::sync::Arc;

/// A TCP listener for both IP versions. Dropping the listener closes the port and resets the connections that were not
/// accepted.
///
/// ```
/// use offload_host_stack::Host;
///
/// async fn serve_one(host: Host) -> std::io::Result<()> {
///     let mut listener = host.listen(443, 128)?;
///     let stream = listener.accept().await?;
///     println!("{} is here", stream.peer_addr());
///     Ok(())
/// }
/// ```
pub struct TcpListener {
    shard: Arc<Shard>,
    port: u16,
}

impl TcpListener {
    pub(crate) fn new(shard: Arc<Shard>, port: u16) -> TcpListener {
        shard.add_handle();
        TcpListener { shard, port }
    }

    /// Returns the port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Waits for the next connection.
    ///
    /// # Errors
    /// Never at present. Callers should still handle errors, as with other listeners.
    pub async fn accept(&mut self) -> io::Result<TcpStream> {
        poll_fn(|cx| self.poll_accept(cx)).await
    }

    /// Polls for the next connection. Only the task of the last call is woken.
    ///
    /// # Errors
    /// As for [`accept`](Self::accept).
    pub fn poll_accept(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<TcpStream>> {
        let accepted = self.shard.with(|inner, _| {
            let accepted = inner.stack.accept(self.port);
            if accepted.is_none() {
                inner.wait_to_accept(self.port, cx);
            }
            accepted
        });
        match accepted {
            Some(id) => Poll::Ready(Ok(TcpStream::new(self.shard.clone(), id))),
            None => Poll::Pending,
        }
    }
}

impl Drop for TcpListener {
    fn drop(&mut self) {
        self.shard.with(|inner, now| {
            inner.stack.close_listener(now, self.port);
            // The waker belongs to this listener. A later listener of the port must not wake its task.
            inner.accepting.remove(&self.port);
            inner.transmit(now);
        });
        self.shard.remove_handle();
    }
}

impl fmt::Debug for TcpListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TcpListener").field("port", &self.port).finish_non_exhaustive()
    }
}
