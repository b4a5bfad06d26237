//! A kernel UDP socket as a [`DatagramSocket`] without a device.
//!
//! Control messages (ip(7), ipv6(7), udp(7)) carry the local address of a datagram, its ECN bits, and the size of
//! datagrams that the kernel joined (GRO) or must cut (GSO).
//!
//! Invariant: a datagram is removed from its batch after the kernel has accepted it, and not before.

use crate::contexts::Contexts;
use crate::datagram::{Datagram, EcnCodepoint, TxDatagram};
use crate::rx::RxMeta;
use crate::socket::{DatagramSocket, SendLimits, SendRefusal, SocketEvent};
use bytes::BytesMut;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use core::num::NonZeroU16;
use core::task::{Context, Poll};
use nix::cmsg_space;
use nix::errno::Errno;
use nix::libc::{in_addr, in_pktinfo, in6_addr, in6_pktinfo};
use nix::sys::socket::{
    ControlMessage, ControlMessageOwned, MsgFlags, SockaddrStorage, recvmsg, sendmsg, setsockopt, sockopt,
};
use std::collections::VecDeque;
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::AsRawFd;
use tokio::io::Interest;
use tokio::net::UdpSocket;

/// A tokio [`UdpSocket`] as a [`DatagramSocket`], for protocols on hosts without a device. (Feature `tokio`, on Linux.)
///
/// Every ask is refused, and `meta` is empty. Fragmentation is an option of the socket, not of a datagram: by default
/// Linux sets IPv4's DF on datagrams that fit the known path MTU, and fragments larger ones.
///
/// The kernel joins received datagrams of one sender if it can, which then arrive as one ([`Datagram::split`]), and
/// cuts sends of several datagrams. If the kernel refuses to cut, the datagrams are sent one by one.
///
/// ```
/// use bytes::Bytes;
/// use offload_api::{DatagramSocket, EcnCodepoint, TokioDatagrams, TxDatagram};
/// use std::collections::VecDeque;
/// use std::future::poll_fn;
/// use tokio::net::UdpSocket;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let mut near = TokioDatagrams::new(UdpSocket::bind("127.0.0.1:0").await?)?;
/// let mut far = TokioDatagrams::new(UdpSocket::bind("127.0.0.1:0").await?)?;
/// let hello = TxDatagram::new(far.local_addr()?, Bytes::from_static(b"hello"));
/// let mut batch = VecDeque::from([TxDatagram { ecn: EcnCodepoint::Capable0, ..hello }]);
/// poll_fn(|cx| near.poll_send(cx, &mut batch)).await?;
/// let mut received = Vec::new();
/// poll_fn(|cx| far.poll_receive(cx, &mut received, 1)).await?;
/// assert_eq!((&received[0].data[..], received[0].ecn), (&b"hello"[..], EcnCodepoint::Capable0));
/// assert!(!near.control(&mut |_| {}), "there is no device");
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct TokioDatagrams {
    socket: UdpSocket,
    local: SocketAddr,
    /// Zeroed receive buffer.
    buffer: BytesMut,
    /// Whether the kernel cuts sends of several datagrams; false after the first refusal.
    cuts: bool,
}

impl TokioDatagrams {
    /// Socket buffer size that [`bind`](Self::bind) requests for each direction.
    pub const SOCKET_BUFFER: usize = 2 << 20;

    /// Binds a socket and requests kernel buffers of [`SOCKET_BUFFER`](Self::SOCKET_BUFFER) bytes
    /// ([`set_buffers`](Self::set_buffers)).
    ///
    /// # Errors
    /// If the address cannot be bound, or as for [`new`](Self::new).
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub fn bind(address: SocketAddr) -> io::Result<TokioDatagrams> {
        let socket = std::net::UdpSocket::bind(address)?;
        socket.set_nonblocking(true)?;
        let socket = TokioDatagrams::new(UdpSocket::from_std(socket)?)?;
        socket.set_buffers(Self::SOCKET_BUFFER, Self::SOCKET_BUFFER)?;
        Ok(socket)
    }

    /// Requests kernel buffers for received and sent datagrams (`SO_RCVBUF`, `SO_SNDBUF`). Linux silently limits the
    /// sizes to `net.core.rmem_max` and `net.core.wmem_max`, 208 KiB by default. Datagrams that arrive while the
    /// receive buffer is full are lost.
    ///
    /// # Errors
    /// The errors of the kernel.
    pub fn set_buffers(&self, receive: usize, send: usize) -> io::Result<()> {
        setsockopt(&self.socket, sockopt::RcvBuf, &receive)?;
        Ok(setsockopt(&self.socket, sockopt::SndBuf, &send)?)
    }

    /// Enables the control messages of `socket`.
    ///
    /// # Errors
    /// If the socket is not bound, or the kernel does not support the options.
    pub fn new(socket: UdpSocket) -> io::Result<TokioDatagrams> {
        let local = socket.local_addr()?;
        match local {
            SocketAddr::V4(_) => {
                setsockopt(&socket, sockopt::IpRecvTos, &true)?;
                setsockopt(&socket, sockopt::Ipv4PacketInfo, &true)?;
            }
            SocketAddr::V6(_) => {
                // The kernel reports ECN only as part of the traffic class.
                setsockopt(&socket, sockopt::Ipv6RecvTClass, &true)?;
                setsockopt(&socket, sockopt::Ipv6RecvPacketInfo, &true)?;
                // A dual-stack socket also reports the TOS of IPv4 datagrams. An IPv6-only socket refuses the option,
                // which is harmless.
                let _ = setsockopt(&socket, sockopt::IpRecvTos, &true);
            }
        }
        // Linux before 5.0 does not join datagrams.
        let _ = setsockopt(&socket, sockopt::UdpGroSegment, &true);
        Ok(TokioDatagrams { socket, local, buffer: BytesMut::new(), cuts: true })
    }

    /// Returns the tokio socket.
    pub fn socket(&self) -> &UdpSocket {
        &self.socket
    }

    /// Sends the first entry of `batch` and removes the datagrams that the kernel accepted.
    fn send_first(&mut self, batch: &mut VecDeque<TxDatagram>) -> io::Result<()> {
        let Some(first) = batch.front_mut() else { return Ok(()) };
        // Only a send of several datagrams can fail for lack of segmentation.
        if first.count() > 1 {
            let sent = if self.cuts { self.send(first) } else { Err(io::ErrorKind::Unsupported.into()) };
            match sent {
                Err(error) if refuses_to_cut(&error) => {
                    let mut rest = first.clone();
                    let one = rest.split_to(1);
                    self.send(&one)?;
                    // If the datagram itself were invalid, the send of its first part would have failed too. The kernel
                    // does not cut.
                    self.cuts = false;
                    *first = rest;
                    return self.send_first(batch);
                }
                sent => sent?,
            }
        } else {
            self.send(first)?;
        }
        batch.pop_front();
        Ok(())
    }

    fn send(&self, datagram: &TxDatagram) -> io::Result<()> {
        self.socket.try_io(Interest::WRITABLE, || Ok(send_message(&self.socket, self.local, datagram)?))
    }

    /// Returns the reason why a datagram cannot be sent, as far as it is known without the kernel.
    fn check(&self, datagram: &TxDatagram) -> Result<(), SendRefusal> {
        let TxDatagram { to, source, ask, .. } = *datagram;
        let SendLimits { bytes, segments, .. } = limits(to);
        if ask.is_some() {
            return Err(SendRefusal::Ask);
        }
        if let Some(source_address) = source.filter(|source| source.is_ipv4() != to.is_ipv4()) {
            return Err(SendRefusal::Source { source_address, to });
        }
        match (datagram.count(), datagram.payload_len()) {
            (1, all) if all > bytes => Err(SendRefusal::TooLong { most: bytes }),
            (count, all) if count > segments || all > bytes => Err(SendRefusal::TooMany { segments, bytes }),
            _ => Ok(()),
        }
    }
}

impl DatagramSocket for TokioDatagrams {
    fn poll_send(
        &mut self,
        cx: &mut Context<'_>,
        batch: &mut VecDeque<TxDatagram>,
    ) -> Poll<Result<usize, SendRefusal>> {
        let before = batch.len();
        while let Some(first) = batch.front() {
            let TxDatagram { to, source, .. } = *first;
            let sent = match self.check(first) {
                Ok(()) => match self.socket.poll_send_ready(cx) {
                    // Datagrams were sent before, so the call reports them now and waits in the next call.
                    Poll::Pending if batch.len() < before => break,
                    Poll::Pending => return Poll::Pending,
                    Poll::Ready(Ok(())) => self.send_first(batch).map_err(|error| refusal(error, to, source)),
                    Poll::Ready(Err(error)) => Err(error.into()),
                },
                Err(refused) => Err(refused),
            };
            match sent {
                Ok(()) => {}
                // The socket was not ready after all; the loop polls again and registers the waker.
                Err(SendRefusal::Io(error)) if passes(&error) => {}
                // Datagrams were sent before, so the next call reports the error.
                Err(_) if batch.len() < before => break,
                Err(refused) => return Poll::Ready(Err(refused)),
            }
        }
        Poll::Ready(Ok(before - batch.len()))
    }

    /// Returns the kernel's limits. The kernel fragments datagrams that exceed the path MTU.
    fn limits(&mut self, to: SocketAddr) -> SendLimits {
        limits(to)
    }

    fn poll_receive(
        &mut self,
        cx: &mut Context<'_>,
        batch: &mut Vec<Datagram>,
        most: usize,
    ) -> Poll<io::Result<usize>> {
        let before = batch.len();
        while batch.len() - before < most {
            let received = match self.socket.poll_recv_ready(cx) {
                Poll::Pending if batch.len() > before => break,
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Ok(())) => {
                    let Self { socket, local, buffer, .. } = self;
                    // Clears the readiness if the kernel has no datagram, so the loop ends in `poll_recv_ready`.
                    socket.try_io(Interest::READABLE, || receive_message(socket, *local, buffer))
                }
                Poll::Ready(Err(error)) => Err(error),
            };
            match received {
                Ok(datagram) => batch.push(datagram),
                Err(error) if passes(&error) => {}
                // Datagrams were received before, so the next call reports the error.
                Err(_) if batch.len() > before => break,
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
        Poll::Ready(Ok(batch.len() - before))
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    fn control(&mut self, _: &mut dyn FnMut(&mut dyn Contexts)) -> bool {
        false
    }

    fn poll_device_event(&mut self, _: &mut Context<'_>) -> Poll<SocketEvent> {
        Poll::Pending
    }
}

fn limits(to: SocketAddr) -> SendLimits {
    let bytes = if to.is_ipv4() { LONGEST_OVER_FOUR } else { LONGEST_OVER_SIX };
    SendLimits { bytes, segments: SEGMENTS, segments_bytes: bytes }
}

/// Tests whether the kernel refused to cut (udp(7)): the route has no checksum offload, or Linux is older than 4.18.
fn refuses_to_cut(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::Unsupported
        || matches!(error.raw_os_error().map(Errno::from_raw), Some(Errno::EIO | Errno::EINVAL | Errno::EOPNOTSUPP))
}

/// Tests whether the operation must be retried, now or when the socket is ready.
fn passes(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}

fn refusal(error: io::Error, to: SocketAddr, source: Option<IpAddr>) -> SendRefusal {
    match (error.raw_os_error().map(Errno::from_raw), source) {
        // With an explicit source, these errors mean that the source is wrong.
        (Some(Errno::EINVAL | Errno::EADDRNOTAVAIL | Errno::ENETUNREACH), Some(source_address)) => {
            SendRefusal::Source { source_address, to }
        }
        (Some(Errno::ENETUNREACH | Errno::EHOSTUNREACH), None) => SendRefusal::Unreachable { to },
        _ => error.into(),
    }
}

fn send_message(socket: &UdpSocket, local: SocketAddr, datagram: &TxDatagram) -> Result<(), Errno> {
    let slices: Vec<_> = datagram.pieces.iter().map(|piece| IoSlice::new(piece)).collect();
    let to = match datagram.to {
        // An IPv6 socket reaches IPv4 hosts by IPv4-mapped addresses (RFC 4291 2.5.5.2).
        SocketAddr::V4(to) if local.is_ipv6() => SocketAddr::new(to.ip().to_ipv6_mapped().into(), to.port()),
        to => to,
    };
    let (tos, class) = (datagram.ecn.bits(), i32::from(datagram.ecn.bits()));
    let segment = datagram.segment.map_or(0, NonZeroU16::get);
    // Control messages borrow their contents, so both variants live until the send.
    let (four, six);
    let mut messages = Vec::with_capacity(3);
    if datagram.ecn != EcnCodepoint::NotCapable {
        messages.push(match datagram.to {
            SocketAddr::V4(_) => ControlMessage::Ipv4Tos(&tos),
            SocketAddr::V6(_) => ControlMessage::Ipv6TClass(&class),
        });
    }
    match datagram.source {
        Some(IpAddr::V4(address)) => {
            let address = in_addr { s_addr: u32::from_ne_bytes(address.octets()) };
            four = in_pktinfo { ipi_ifindex: 0, ipi_spec_dst: address, ipi_addr: in_addr { s_addr: 0 } };
            messages.push(ControlMessage::Ipv4PacketInfo(&four));
        }
        Some(IpAddr::V6(address)) => {
            six = in6_pktinfo { ipi6_addr: in6_addr { s6_addr: address.octets() }, ipi6_ifindex: 0 };
            messages.push(ControlMessage::Ipv6PacketInfo(&six));
        }
        None => {}
    }
    if datagram.count() > 1 {
        messages.push(ControlMessage::UdpGsoSegments(&segment));
    }
    let to = SockaddrStorage::from(to);
    sendmsg(socket.as_raw_fd(), &slices, &messages, MsgFlags::empty(), Some(&to)).map(|_| ())
}

fn receive_message(socket: &UdpSocket, local: SocketAddr, buffer: &mut BytesMut) -> io::Result<Datagram> {
    // The received part is split off the buffer, so one allocation serves several datagrams.
    // Received datagrams share the allocation, and a new one is made when the rest is too short.
    if buffer.len() < LONGEST {
        *buffer = BytesMut::zeroed(BUFFER_BYTES);
    }
    // Space for all messages of either IP version.
    let mut messages = cmsg_space!(i32, i32, in_pktinfo, in6_pktinfo, i32);
    let mut slices = [IoSliceMut::new(&mut buffer[..LONGEST])];
    let (descriptor, flags) = (socket.as_raw_fd(), MsgFlags::empty());
    let received = recvmsg::<SockaddrStorage>(descriptor, &mut slices, Some(&mut messages), flags)?;
    let bytes = received.bytes;
    let from = received.address.as_ref().and_then(address_of).ok_or(io::ErrorKind::InvalidData)?;
    let (mut to, mut ecn, mut joined) = (local, EcnCodepoint::NotCapable, None);
    for message in received.cmsgs()? {
        match message {
            ControlMessageOwned::Ipv4Tos(tos) => ecn = EcnCodepoint::from_bits(tos),
            ControlMessageOwned::Ipv6TClass(class) => ecn = EcnCodepoint::from_bits(class as u8),
            ControlMessageOwned::Ipv4PacketInfo(info) => {
                to.set_ip(Ipv4Addr::from(info.ipi_addr.s_addr.to_ne_bytes()).into());
            }
            ControlMessageOwned::Ipv6PacketInfo(info) => {
                // Dual-stack sockets report IPv4 addresses in mapped form.
                to.set_ip(Ipv6Addr::from(info.ipi6_addr.s6_addr).to_canonical());
            }
            ControlMessageOwned::UdpGroSegments(bytes) => joined = u16::try_from(bytes).ok().and_then(NonZeroU16::new),
            _ => {}
        }
    }
    let data = buffer.split_to(bytes);
    // The kernel reports a segment size for single datagrams too.
    let joined = joined.filter(|bytes| usize::from(bytes.get()) < data.len());
    Ok(Datagram { from, to, ecn, data, meta: RxMeta::default(), joined })
}

fn address_of(address: &SockaddrStorage) -> Option<SocketAddr> {
    // Dual-stack sockets report IPv4 senders in mapped form.
    let four = address.as_sockaddr_in().map(|four| SocketAddr::from(*four));
    let six = || address.as_sockaddr_in6().map(|six| SocketAddr::from(*six));
    let mut address = four.or_else(six)?;
    address.set_ip(address.ip().to_canonical());
    Some(address)
}

/// Longer than any datagram and any joined datagrams.
const LONGEST: usize = 65_536;
/// Allocation size of the receive buffer.
const BUFFER_BYTES: usize = 4 * LONGEST;
/// Maximum UDP payload over IPv4: 65,535 bytes less the IPv4 and UDP headers (RFC 768). Over IPv6 the IP header does
/// not count (RFC 8200 4.5).
const LONGEST_OVER_FOUR: usize = 65_507;
const LONGEST_OVER_SIX: usize = 65_527;
/// Linux's UDP_MAX_SEGMENTS before 6.9.
const SEGMENTS: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tx::PacketAsk;
    use crate::unit::Handle;
    use bytes::Bytes;
    use std::future::poll_fn;

    async fn bound(address: &str) -> TokioDatagrams {
        TokioDatagrams::new(UdpSocket::bind(address).await.unwrap()).unwrap()
    }

    async fn send(socket: &mut TokioDatagrams, datagram: TxDatagram) -> Result<usize, SendRefusal> {
        let mut batch = VecDeque::from([datagram]);
        let sent = poll_fn(|cx| socket.poll_send(cx, &mut batch)).await;
        assert_eq!(batch.len(), usize::from(sent.is_err()), "a refused datagram stays in the batch");
        sent
    }

    /// Receives `count` datagrams, split.
    async fn receive(socket: &mut TokioDatagrams, count: usize) -> Vec<Datagram> {
        let (mut batch, mut single) = (Vec::new(), Vec::new());
        while single.len() < count {
            poll_fn(|cx| socket.poll_receive(cx, &mut batch, 8)).await.unwrap();
            single.extend(batch.drain(..).flat_map(Datagram::split));
        }
        single
    }

    #[tokio::test]
    async fn socket_buffers_follow_the_wish() {
        use nix::sys::socket::getsockopt;
        let socket = TokioDatagrams::bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let sizes = || {
            let socket = socket.socket();
            [getsockopt(socket, sockopt::RcvBuf).unwrap(), getsockopt(socket, sockopt::SndBuf).unwrap()]
        };
        let default = sizes();
        socket.set_buffers(50_000, 60_000).unwrap();
        // The kernel doubles the value for its own use (socket(7)).
        assert_eq!(sizes(), [100_000, 120_000]);
        assert!(default.iter().all(|size| *size > 120_000), "{default:?}");
    }

    #[tokio::test]
    async fn addresses_and_ecn_go_both_ways() {
        for (address, other) in [("127.0.0.1:0", "127.0.0.2"), ("[::1]:0", "::1")] {
            let (mut near, mut far) = (bound(address).await, bound(address).await);
            let to = far.local_addr().unwrap();
            let source: IpAddr = other.parse().unwrap();
            for ecn in [EcnCodepoint::NotCapable, EcnCodepoint::Capable0, EcnCodepoint::CongestionExperienced] {
                let pieces = [&b"in "[..], b"", b"pieces"].map(Bytes::from_static);
                let datagram = TxDatagram { ecn, ..TxDatagram::new(to, Bytes::new()) };
                send(&mut near, TxDatagram { pieces: pieces.into_iter().collect(), ..datagram }).await.unwrap();
                let [datagram] = &receive(&mut far, 1).await[..] else { panic!("one") };
                assert_eq!((&datagram.data[..], datagram.ecn), (&b"in pieces"[..], ecn));
                assert_eq!((datagram.from, datagram.to), (near.local_addr().unwrap(), to));
            }
            // A socket bound to the unspecified address chooses a source and reports the destination.
            let any = if to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
            let (mut near, mut far) = (bound(any).await, bound(any).await);
            let to = SocketAddr::new(source, far.local_addr().unwrap().port());
            send(&mut near, TxDatagram { source: Some(source), ..TxDatagram::new(to, Bytes::new()) }).await.unwrap();
            let [datagram] = &receive(&mut far, 1).await[..] else { panic!("one") };
            assert_eq!((datagram.from.ip(), datagram.to), (source, to));
        }
    }

    #[tokio::test]
    async fn datagram_batches_keep_their_boundaries_with_and_without_gso() {
        for cuts in [true, false] {
            let (mut near, mut far) = (bound("127.0.0.1:0").await, bound("127.0.0.1:0").await);
            near.cuts = cuts;
            let data: Vec<u8> = (0..10_100u32).map(|at| (at / 7) as u8).collect();
            let burst = TxDatagram {
                segment: NonZeroU16::new(1000),
                ecn: EcnCodepoint::Capable1,
                ..TxDatagram::new(far.local_addr().unwrap(), data.clone().into())
            };
            assert_eq!(send(&mut near, burst).await.unwrap(), 1);
            let received = receive(&mut far, 11).await;
            assert!(received.iter().map(|datagram| &datagram.data[..]).eq(data.chunks(1000)));
            assert!(received.iter().all(|datagram| datagram.ecn == EcnCodepoint::Capable1));
        }
    }

    #[tokio::test]
    async fn unsendable_datagrams_are_returned_with_an_error() {
        let mut socket = bound("127.0.0.1:0").await;
        let to = socket.local_addr().unwrap();
        let plain = TxDatagram::new(to, Bytes::from(vec![0; 100]));
        let ask = Some(PacketAsk { context: Handle { index: 3, generation: 0 }, number: 0, args: 0 });
        assert!(matches!(send(&mut socket, TxDatagram { ask, ..plain.clone() }).await, Err(SendRefusal::Ask)));
        let source = Some(Ipv6Addr::LOCALHOST.into());
        assert!(matches!(
            send(&mut socket, TxDatagram { source, ..plain.clone() }).await,
            Err(SendRefusal::Source { .. })
        ));
        let foreign = Some(Ipv4Addr::new(192, 0, 2, 1).into());
        assert!(matches!(
            send(&mut socket, TxDatagram { source: foreign, ..plain.clone() }).await,
            Err(SendRefusal::Source { .. })
        ));
        let long = TxDatagram::new(to, Bytes::from(vec![0; LONGEST_OVER_FOUR + 1]));
        assert!(matches!(send(&mut socket, long).await, Err(SendRefusal::TooLong { most: LONGEST_OVER_FOUR })));
        let segment = NonZeroU16::new(1);
        assert!(matches!(
            send(&mut socket, TxDatagram { segment, ..plain.clone() }).await,
            Err(SendRefusal::TooMany { segments: SEGMENTS, .. })
        ));
        // Datagrams before a refused one are sent.
        let mut batch = VecDeque::from([plain.clone(), TxDatagram { ask, ..plain }]);
        assert_eq!(poll_fn(|cx| socket.poll_send(cx, &mut batch)).await.unwrap(), 1);
        assert!(matches!(poll_fn(|cx| socket.poll_send(cx, &mut batch)).await, Err(SendRefusal::Ask)));
        assert_eq!((batch.len(), receive(&mut socket, 1).await.len()), (1, 1));
    }

    #[tokio::test]
    async fn a_dual_stack_socket_shows_ipv4_addresses_as_ipv4() {
        let (mut near, mut far) = (bound("[::]:0").await, bound("127.0.0.1:0").await);
        let to = far.local_addr().unwrap();
        let datagram = TxDatagram { ecn: EcnCodepoint::Capable0, ..TxDatagram::new(to, Bytes::from_static(b"there")) };
        send(&mut near, datagram).await.unwrap();
        let [datagram] = &receive(&mut far, 1).await[..] else { panic!("one") };
        assert_eq!((&datagram.data[..], datagram.ecn), (&b"there"[..], EcnCodepoint::Capable0));
        let back = datagram.from;
        send(&mut far, TxDatagram { ecn: EcnCodepoint::Capable0, ..TxDatagram::new(back, Bytes::new()) })
            .await
            .unwrap();
        let [datagram] = &receive(&mut near, 1).await[..] else { panic!("one") };
        assert_eq!((datagram.from, datagram.to.ip()), (to, to.ip()));
        assert_eq!(datagram.ecn, EcnCodepoint::Capable0);
    }

    /// A socket polled before a datagram arrives is woken.
    #[tokio::test]
    async fn a_receiver_is_woken() {
        let (mut near, mut far) = (bound("127.0.0.1:0").await, bound("127.0.0.1:0").await);
        let to = far.local_addr().unwrap();
        let waiting = tokio::spawn(async move { receive(&mut far, 1).await.len() });
        tokio::task::yield_now().await;
        send(&mut near, TxDatagram::new(to, Bytes::from_static(b"wake"))).await.unwrap();
        assert_eq!(waiting.await.unwrap(), 1);
    }
}
