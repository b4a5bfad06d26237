//! The stream as tokio's traits have it. Nothing here needs a runtime.

use super::KtlsStream;
use crate::record::send::Content;
use core::pin::Pin;
use core::task::{Context, Poll, ready};
use offload_api::SegmentStream;
use offload_base::cost::{self, Work};
use std::io;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

impl<S: SegmentStream> AsyncRead for KtlsStream<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if into.remaining() == 0 {
            return Poll::Ready(Ok(()));
        }
        ready!(self.poll_plain(cx))?;
        let copy = cost::work(Work::Copy);
        let mut copied = 0;
        while let Some(front) = self.plain.front_mut()
            && into.remaining() > 0
        {
            let length = front.data.len().min(into.remaining());
            into.put_slice(&front.data[..length]);
            copied += length;
            if length == front.data.len() {
                self.plain.pop_front();
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
        ready!(self.poll_writable(cx))?;
        let taken = self.write_len(data.len());
        for part in data[..taken].chunks(self.record_size) {
            self.write_record(Content::Lent(part), part.len())?;
        }
        self.stream.flush();
        Poll::Ready(Ok(taken))
    }

    /// Ready when everything written will be delivered with nobody polling.
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_committed(cx)
    }

    /// As [`close`](KtlsStream::close).
    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_close(cx)
    }
}
