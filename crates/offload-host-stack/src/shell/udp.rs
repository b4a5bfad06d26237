//! An async UDP socket.

use super::{Inner, Shard};
use crate::udp::SendError;
use bytes::{Bytes, BytesMut};
use core::fmt;
use core::future::poll_fn;
use core::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use core::num::NonZeroU16;
use core::task::{Context, Poll, Waker};
use offload_api::{Contexts, Datagram, DatagramSocket, SendLimits, SendRefusal, SocketEvent, TxDatagram};
use offload_base::Instant;
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

/// A UDP socket, and a [`DatagramSocket`] for protocols whose packets a device processes. The receive queue holds about
/// 200 KiB; further datagrams are dropped and counted. Any number of tasks may wait for datagrams; each datagram goes
/// to one task. Dropping the socket closes the port.
///
/// ```
/// use offload_host_stack::Host;
///
/// async fn echo(host: Host) -> std::io::Result<()> {
///     let socket = host.bind_udp(Some(7))?;
///     loop {
///         let (data, from) = socket.recv_from().await?;
///         socket.send_to(data.freeze(), from).await?;
///     }
/// }
/// ```
pub struct UdpSocket {
    shard: Arc<Shard>,
    port: u16,
}

/// Tasks that wait for a socket.
#[derive(Debug, Default)]
pub(crate) struct UdpWakers {
    pub(crate) readable: Vec<Waker>,
    pub(crate) writable: Vec<Waker>,
    pub(crate) device_event: Vec<Waker>,
}

/// Stores the task's waker, once per task. Tasks that have stopped waiting leave their wakers behind, so a full list
/// wakes all tasks, and the tasks still waiting register again.
fn store_waker(waiting: &mut Vec<Waker>, cx: &Context<'_>) {
    if !waiting.iter().any(|waker| waker.will_wake(cx.waker())) {
        if waiting.len() == MAX_WAKERS {
            waiting.drain(..).for_each(Waker::wake);
        }
        waiting.push(cx.waker().clone());
    }
}

impl UdpSocket {
    pub(crate) fn new(shard: Arc<Shard>, port: u16) -> UdpSocket {
        shard.add_handle();
        UdpSocket { shard, port }
    }

    /// Returns the IPv4 address and the port. [`local_addrs`](Self::local_addrs) returns all addresses.
    pub fn local_addr(&self) -> SocketAddr {
        let address = self.shard.with(|inner, _| inner.stack.config().address);
        SocketAddr::V4(SocketAddrV4::new(address, self.port))
    }

    /// Returns all current addresses of the socket, with its port: IPv4, then IPv6 link-local, configured, and
    /// autoconfigured.
    ///
    /// ```
    /// use offload_host_stack::UdpSocket;
    ///
    /// fn speaks_six(socket: &UdpSocket) -> bool {
    ///     socket.local_addrs().iter().any(|address| address.is_ipv6())
    /// }
    /// ```
    pub fn local_addrs(&self) -> Vec<SocketAddr> {
        let addresses = self.shard.with(|inner, _| inner.stack.addresses());
        addresses.into_iter().map(|address| SocketAddr::new(address, self.port)).collect()
    }

    /// Waits for the next datagram. Returns its payload and its source.
    ///
    /// # Errors
    /// Never at present. Callers should still handle errors, as with other sockets.
    pub async fn recv_from(&self) -> io::Result<(BytesMut, SocketAddr)> {
        poll_fn(|cx| self.poll_recv_from(cx)).await
    }

    /// Polls for the next datagram. Returns its payload and its source.
    ///
    /// # Errors
    /// As for [`recv_from`](Self::recv_from).
    pub fn poll_recv_from(&self, cx: &mut Context<'_>) -> Poll<io::Result<(BytesMut, SocketAddr)>> {
        self.shard.with(|inner, _| match inner.stack.take_single_datagram(self.port) {
            Some(datagram) => Poll::Ready(Ok(datagram)),
            None => {
                store_waker(&mut inner.udp_waiting(self.port).readable, cx);
                Poll::Pending
            }
        })
    }

    /// Sends `data` to `to` as one datagram, as soon as the device has room. Delivery is not guaranteed. A datagram
    /// above the path MTU is sent in fragments.
    ///
    /// # Errors
    /// `HostUnreachable` if `to` has no route, `InvalidInput` if `data` exceed the maximum packet size.
    pub async fn send_to(&self, data: Bytes, to: SocketAddr) -> io::Result<()> {
        poll_fn(|cx| self.poll_send_to(cx, &data, to)).await
    }

    /// Polls the sending of `data` to `to`.
    ///
    /// # Errors
    /// As for [`send_to`](Self::send_to).
    pub fn poll_send_to(&self, cx: &mut Context<'_>, data: &Bytes, to: SocketAddr) -> Poll<io::Result<()>> {
        self.shard.with(|inner, now| {
            let sent = inner.stack.send_datagram(now, self.port, to, data.clone(), &*inner.device);
            self.after_send(cx, inner, now, sent)
        })
    }

    /// Sends `data` to `to` as datagrams of `bytes` bytes each (the last may be shorter), as soon as the device has
    /// room. One call sends up to 128 datagrams; a device that segments UDP gets one packet for all of them.
    ///
    /// # Errors
    /// `HostUnreachable` if `to` has no route; `InvalidInput` if a datagram exceeds the path MTU, or if `data` exceed
    /// 128 datagrams or about 65,500 bytes.
    ///
    /// ```
    /// use bytes::Bytes;
    /// use core::num::NonZeroU16;
    /// use offload_host_stack::Host;
    ///
    /// async fn burst(host: Host, to: std::net::SocketAddr) -> std::io::Result<()> {
    ///     let socket = host.bind_udp(None)?;
    ///     let size = NonZeroU16::new(1200).expect("not zero");
    ///     socket.send_segmented(Bytes::from(vec![0; 40 * 1200]), size, to).await
    /// }
    /// ```
    pub async fn send_segmented(&self, data: Bytes, bytes: NonZeroU16, to: SocketAddr) -> io::Result<()> {
        poll_fn(|cx| self.poll_send_segmented(cx, &data, bytes, to)).await
    }

    /// Polls the sending of `data` to `to` as datagrams of `bytes` bytes each.
    ///
    /// # Errors
    /// As for [`send_segmented`](Self::send_segmented).
    pub fn poll_send_segmented(
        &self,
        cx: &mut Context<'_>,
        data: &Bytes,
        bytes: NonZeroU16,
        to: SocketAddr,
    ) -> Poll<io::Result<()>> {
        self.shard.with(|inner, now| {
            let sent = inner.stack.send_segmented(now, (self.port, to), data.clone(), bytes, &*inner.device);
            self.after_send(cx, inner, now, sent)
        })
    }

    fn after_send(
        &self,
        cx: &mut Context<'_>,
        inner: &mut Inner,
        now: Instant,
        sent: Result<(), SendError>,
    ) -> Poll<io::Result<()>> {
        match sent {
            Ok(()) => {
                inner.transmit(now);
                Poll::Ready(Ok(()))
            }
            Err(SendError::Full) => {
                store_waker(&mut inner.udp_waiting(self.port).writable, cx);
                Poll::Pending
            }
            Err(error) => Poll::Ready(Err(error.into())),
        }
    }
}

/// The device is the one of the shard at which the socket was opened. A datagram may name contexts of any socket of
/// that shard.
///
/// ```
/// use bytes::Bytes;
/// use offload_host_stack::Host;
/// use offload_api::{DatagramSocket, EcnCodepoint, TxDatagram};
/// use std::collections::VecDeque;
/// use std::future::poll_fn;
///
/// /// Answers each datagram that carries a congestion mark.
/// async fn report_marks(host: Host) -> Result<(), Box<dyn std::error::Error>> {
///     let mut socket = host.bind_udp(Some(7))?;
///     let mut received = Vec::new();
///     loop {
///         poll_fn(|cx| socket.poll_receive(cx, &mut received, 16)).await?;
///         let marked = received.drain(..).filter(|it| it.ecn == EcnCodepoint::CongestionExperienced);
///         let answer = |from, to| TxDatagram { source: Some(to), ..TxDatagram::new(from, Bytes::from_static(b"CE")) };
///         let mut answers: VecDeque<_> = marked.map(|it| answer(it.from, it.to.ip())).collect();
///         while !answers.is_empty() {
///             poll_fn(|cx| socket.poll_send(cx, &mut answers)).await?;
///         }
///     }
/// }
/// ```
impl DatagramSocket for UdpSocket {
    fn poll_send(
        &mut self,
        cx: &mut Context<'_>,
        batch: &mut VecDeque<TxDatagram>,
    ) -> Poll<Result<usize, SendRefusal>> {
        self.shard.with(|inner, now| {
            let (before, mut handed_over) = (batch.len(), 0);
            let stopped = loop {
                let queued = before - batch.len();
                let Some(first) = batch.front() else { break None };
                // The clone is cheap, because payloads are shared; the batch must stay intact if the send fails.
                match inner.stack.send_datagrams(now, self.port, first.clone(), &*inner.device) {
                    Ok(()) => drop(batch.pop_front()),
                    // The device takes the queued datagrams now; then there may be room for more.
                    Err(SendError::Full) if handed_over < queued => {
                        inner.transmit(now);
                        handed_over = queued;
                    }
                    Err(error) => break Some((error, first)),
                }
            };
            let sent = before - batch.len();
            if handed_over < sent {
                inner.transmit(now);
            }
            match stopped {
                Some((SendError::Full, _)) if sent == 0 => {
                    store_waker(&mut inner.udp_waiting(self.port).writable, cx);
                    Poll::Pending
                }
                // After a partial success the error is not reported. The next call meets the same error.
                Some((error, first)) if sent == 0 => Poll::Ready(Err(error.refusal(first))),
                _ => Poll::Ready(Ok(sent)),
            }
        })
    }

    fn limits(&mut self, to: SocketAddr) -> SendLimits {
        self.shard.with(|inner, now| inner.stack.datagram_limits(now, self.port, to, &*inner.device))
    }

    fn poll_receive(
        &mut self,
        cx: &mut Context<'_>,
        batch: &mut Vec<Datagram>,
        most: usize,
    ) -> Poll<io::Result<usize>> {
        self.shard.with(|inner, _| {
            let before = batch.len();
            batch.extend(core::iter::from_fn(|| inner.stack.take_datagram(self.port)).take(most));
            // A caller that asks for no datagrams must not wait for one.
            if batch.len() == before && most > 0 {
                store_waker(&mut inner.udp_waiting(self.port).readable, cx);
                return Poll::Pending;
            }
            Poll::Ready(Ok(batch.len() - before))
        })
    }

    /// Returns the unspecified address, because the socket receives datagrams to any address of its host
    /// ([`local_addrs`](Self::local_addrs)).
    fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), self.port))
    }

    fn control(&mut self, f: &mut dyn FnMut(&mut dyn Contexts)) -> bool {
        self.shard.with(|inner, now| {
            let Inner { stack, device, .. } = inner;
            let has_contexts = stack.control_udp(self.port, &mut **device, f);
            device.flush(now);
            has_contexts
        })
    }

    fn poll_device_event(&mut self, cx: &mut Context<'_>) -> Poll<SocketEvent> {
        self.shard.with(|inner, _| match inner.stack.socket_event(self.port) {
            Some(event) => Poll::Ready(event),
            None => {
                store_waker(&mut inner.udp_waiting(self.port).device_event, cx);
                Poll::Pending
            }
        })
    }
}

impl Drop for UdpSocket {
    fn drop(&mut self) {
        self.shard.with(|inner, now| {
            inner.stack.close_udp(self.port);
            inner.forget_udp(self.port);
            // Removes the socket's contexts from the device.
            inner.transmit(now);
        });
        self.shard.remove_handle();
    }
}

impl fmt::Debug for UdpSocket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UdpSocket").field("port", &self.port).finish_non_exhaustive()
    }
}

/// Maximum number of stored wakers per kind, more than any application needs. Each costs two words.
const MAX_WAKERS: usize = 1024;
