//! tokio's traits and conversions for the stream. They need no runtime.

use super::{KtlsStream, WriteOutcome};
use crate::record::send::RecordContent;
use bytes::Bytes;
use core::pin::Pin;
use core::task::{Context, Poll, ready};
use offload_api::{ByteStream, SegmentStream, TokioSegments, TxTag};
use offload_base::cost::{self, WorkKind};
use std::io;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf, ReadHalf, WriteHalf};

impl<S: SegmentStream> KtlsStream<S> {
    /// Splits the stream into halves for two tasks. `ReadHalf::unsplit` joins the halves.
    ///
    /// ```
    /// use ktls_offload::{KtlsStream, SegmentStream};
    /// use std::io;
    /// use tokio::io::{AsyncWriteExt, copy, sink};
    ///
    /// async fn say_while_reading(stream: KtlsStream<impl SegmentStream + 'static>) -> io::Result<u64> {
    ///     let (mut read, mut write) = stream.into_split();
    ///     let writer = tokio::spawn(async move { write.write_all(b"hello").await });
    ///     let received = copy(&mut read, &mut sink()).await?;
    ///     writer.await??;
    ///     Ok(received)
    /// }
    /// ```
    pub fn into_split(self) -> (ReadHalf<KtlsStream<S>>, WriteHalf<KtlsStream<S>>) {
        tokio::io::split(self)
    }
}

impl<T: ByteStream> KtlsStream<TokioSegments<T>> {
    /// Ends TLS without notifying the peer, and returns the stream below. Unread received data and unflushed written
    /// data are lost. `None` if the transport was aborted.
    ///
    /// ```
    /// use ktls_offload::KtlsStream;
    /// use ktls_offload::api::TokioSegments;
    /// use tokio::io::AsyncWriteExt;
    /// use tokio::net::TcpStream;
    ///
    /// /// Leaves TLS, and keeps the connection for the plaintext protocol that both ends agreed on.
    /// async fn leave(mut stream: KtlsStream<TokioSegments<TcpStream>>) -> std::io::Result<Option<TcpStream>> {
    ///     stream.flush().await?;
    ///     Ok(stream.into_inner())
    /// }
    /// ```
    pub fn into_inner(mut self) -> Option<T> {
        self.end();
        self.stream.take()
    }
}

impl<S: SegmentStream> AsyncRead for KtlsStream<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if into.remaining() == 0 {
            return Poll::Ready(Ok(()));
        }
        ready!(self.poll_plain(cx))?;
        let copy = cost::work(WorkKind::Copy);
        let mut copied = 0;
        while let Some(front) = self.receive.front()
            && into.remaining() > 0
        {
            let length = front.data.len().min(into.remaining());
            into.put_slice(&front.data[..length]);
            copied += length;
            if length == front.data.len() {
                self.receive.take();
            } else {
                front.skip(length);
            }
        }
        drop(copy);
        self.credit(copied);
        Poll::Ready(Ok(()))
    }
}

impl<S: SegmentStream> AsyncWrite for KtlsStream<S> {
    /// Takes all of `data`, or as many whole records as fit into 256 KiB.
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        if data.is_empty() {
            return Poll::Ready(Ok(0));
        }
        let taken = self.send.write_len(data.len());
        while self.writes_at_once(taken) {
            // The copy is made under the transport's lock, like the transport's own copies. An earlier copy would be
            // wasted if the transport has no room.
            let mut parts = data[..taken].chunks(self.send.record_size());
            let mut copies = |_| {
                let part = parts.next()?;
                let _copy = cost::work(WorkKind::Copy);
                Some((Bytes::copy_from_slice(part), TxTag::PLAIN))
            };
            if let WriteOutcome::Written(_) = ready!(self.poll_write_at_once(cx, &mut copies))? {
                return Poll::Ready(Ok(taken));
            }
        }
        ready!(self.poll_writable(cx))?;
        for part in data[..taken].chunks(self.send.record_size()) {
            self.write_record(RecordContent::Lent(part), part.len())?;
        }
        self.stream.flush();
        Poll::Ready(Ok(taken))
    }

    /// Completes when all written data will be delivered without further polling.
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_committed(cx)
    }

    /// Closes the stream like [`close`](KtlsStream::close).
    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_close(cx)
    }
}
