//! UDP sockets of an application, and datagrams received for them.

use super::opening::{MAX_PORTS_TRIED, random_port};
use super::shards::may_choose;
use super::socket_contexts::{RecordedEvent, SocketContexts};
use super::{SocketOpenError, Stack};
use crate::network::ParsedDatagram;
use crate::udp::SendError;
use bytes::{Buf, Bytes, BytesMut};
use core::net::{IpAddr, SocketAddr};
use core::num::NonZeroU16;
use offload_api::{Contexts, Datagram, FlowKey, NetDevice, Protocol, RxPacket, SendLimits, SocketEvent, TxDatagram};
use offload_base::Instant;

impl Stack {
    /// Opens a UDP socket at `port`, or at a free port if `port` is `None`. Returns the port.
    ///
    /// # Errors
    /// Fails if the port is in use, or if no free port was found.
    pub fn bind_udp(&mut self, port: Option<u16>) -> Result<u16, SocketOpenError> {
        let port = match port {
            Some(0) => return Err(SocketOpenError::NoPort),
            Some(port) => port,
            None => {
                let tried = (0..MAX_PORTS_TRIED).map(|_| random_port(&mut self.ports));
                let place = &self.place;
                // Each shard chooses from its own ports only, so that two shards never choose the same port.
                let mut free = tried.filter(|port| may_choose(place.as_ref(), *port) && !self.sockets.is_bound(*port));
                free.next().ok_or(SocketOpenError::NoPort)?
            }
        };
        self.sockets.bind(port)?;
        Ok(port)
    }

    /// Closes the UDP socket at `port` and drops its unread datagrams. The next [`transmit`](Self::transmit) removes
    /// the socket's contexts from the device.
    pub fn close_udp(&mut self, port: u16) {
        self.left.extend(self.sockets.close(port));
    }

    /// Queues `data` as one datagram from the UDP socket at `port`. The next [`transmit`](Self::transmit) sends it, in
    /// fragments if it exceeds the path MTU.
    ///
    /// # Errors
    /// Fails if `to` has no route, the datagram is too long, or the device has fallen behind.
    pub fn send_datagram(
        &mut self,
        now: Instant,
        port: u16,
        to: SocketAddr,
        data: Bytes,
        device: &dyn NetDevice,
    ) -> Result<(), SendError> {
        self.send_datagrams(now, port, TxDatagram::new(to, data), device)
    }

    /// Queues `data` as datagrams of `bytes` bytes each (the last may be shorter) from the UDP socket at `port`. This
    /// is UDP segmentation, done by the device if it can. The next [`transmit`](Self::transmit) sends them.
    ///
    /// # Errors
    /// Fails if `to` has no route, the segment size exceeds the path MTU, there are more than 128 segments, the total
    /// exceeds the maximum packet size, or the device has fallen behind.
    pub fn send_segmented(
        &mut self,
        now: Instant,
        (port, to): (u16, SocketAddr),
        data: Bytes,
        bytes: NonZeroU16,
        device: &dyn NetDevice,
    ) -> Result<(), SendError> {
        let datagrams = TxDatagram { segment: Some(bytes), ..TxDatagram::new(to, data) };
        self.send_datagrams(now, port, datagrams, device)
    }

    /// Queues datagrams from the UDP socket at `port` for the next [`transmit`](Self::transmit), to be processed by the
    /// device contexts that they name. A datagram that names a context (`ask`) is never fragmented here and never sent
    /// unprocessed.
    ///
    /// # Errors
    /// Fails if the datagrams cannot be sent in this form, or the device has fallen behind. Then no datagram is sent.
    pub fn send_datagrams(
        &mut self,
        now: Instant,
        port: u16,
        datagrams: TxDatagram,
        device: &dyn NetDevice,
    ) -> Result<(), SendError> {
        if datagrams.ask.is_some_and(|ask| !self.sockets.may_ask(ask)) {
            return Err(SendError::NoContext);
        }
        // The flow selects the path's capabilities. A datagram that may be fragmented needs no capability specific to
        // its flow, so a placeholder flow is enough.
        let may_be_cut = datagrams.segment.is_none() && datagrams.ask.is_none() && !datagrams.dont_fragment;
        let flow =
            if may_be_cut { self.placeholder_flow() } else { self.flow_to(port, datagrams.to, datagrams.source)? };
        let sent = self.network.send_datagrams(now, port, datagrams, &device.path(&flow), &mut self.counters);
        if sent == Err(SendError::Full) {
            self.sockets.block(port);
        }
        sent
    }

    /// Returns the limits of one send call from the UDP socket at `port`. All limits are zero if `to` has no route.
    pub fn datagram_limits(&self, now: Instant, port: u16, to: SocketAddr, device: &dyn NetDevice) -> SendLimits {
        match self.flow_to(port, to, None) {
            Ok(flow) => self.network.datagram_limits(now, &to, &device.path(&flow)),
            Err(_) => SendLimits { bytes: 0, segments: 0, segments_bytes: 0 },
        }
    }

    /// Returns the flow of datagrams from the UDP socket at `port`. A named `source` becomes its local address, because
    /// a lower layer such as IPsec may have a different path for each source.
    fn flow_to(&self, port: u16, to: SocketAddr, source: Option<IpAddr>) -> Result<FlowKey, SendError> {
        let local = SocketAddr::new(self.network.source_of(to, source)?, port);
        Ok(FlowKey { protocol: Protocol::Udp, local, remote: to })
    }

    /// Calls `f` with the contexts of `device`. The UDP socket at `port` owns each context that `f` creates, and gets
    /// its events by [`socket_event`](Self::socket_event). Returns false, without calling `f`, if the device has no
    /// contexts.
    pub fn control_udp(&mut self, port: u16, device: &mut dyn NetDevice, f: &mut dyn FnMut(&mut dyn Contexts)) -> bool {
        if device.contexts().is_none() {
            return false;
        }
        self.sockets.mark_controlled(port);
        let mut of_socket = SocketContexts::new(device);
        // Events are applied only after `f` returns, because `f` borrows the device.
        f(&mut of_socket);
        for noted in of_socket.into_noted() {
            match noted {
                RecordedEvent::Event(event) => self.on_device_event(event),
                RecordedEvent::News(news) => self.sockets.on_news(news),
                RecordedEvent::Made(context) => self.sockets.own(port, context),
                RecordedEvent::GivenUp(context) => self.sockets.give_up(context),
            }
        }
        true
    }

    /// Takes the next context event of the UDP socket at `port`.
    pub fn socket_event(&mut self, port: u16) -> Option<SocketEvent> {
        self.sockets.take_event(port)
    }

    /// Takes the next datagram received at the UDP socket at `port`, or several datagrams that the device joined.
    pub fn take_datagram(&mut self, port: u16) -> Option<Datagram> {
        self.sockets.take(port)
    }

    /// Takes the next single datagram and its source.
    pub(crate) fn take_single_datagram(&mut self, port: u16) -> Option<(BytesMut, SocketAddr)> {
        self.sockets.take_single(port)
    }

    /// Returns the next UDP socket that has datagrams, can send again, or has context events.
    pub fn next_udp_ready(&mut self) -> Option<u16> {
        self.sockets.next_ready()
    }

    pub(super) fn on_datagram(&mut self, now: Instant, parsed: ParsedDatagram, packet: RxPacket, left: Option<u16>) {
        let port = parsed.to.port();
        if !self.sockets.is_bound(port) {
            // The socket may be open on another shard. Only the last shard may report a closed port.
            let left = left.unwrap_or_else(|| self.shards_to_ask(false, true));
            if left > 0 {
                return self.pass_datagram_on(parsed, packet, left);
            }
            let mut frame = packet.frame;
            self.counters.udp_no_ports += 1;
            if packet.meta.is_opened() {
                // An ICMP error would quote the datagram, and so send decrypted bytes in clear.
                return;
            }
            frame.truncate(parsed.payload.end);
            self.network.refuse_datagram(now, &frame, packet.meta.protection, &mut self.counters);
            return;
        }
        let ParsedDatagram { from, to, ecn, payload } = parsed;
        let RxPacket { frame: mut data, meta, joined, placed: _ } = packet;
        // The counters count each datagram that the peer sent, even if the device joined several.
        data.truncate(payload.end);
        data.advance(payload.start);
        let count = joined.map_or(1, |bytes| data.len().div_ceil(bytes.get().into()).max(1)) as u64;
        if self.sockets.deliver(port, Datagram { from, to, ecn, data, meta, joined }) {
            self.counters.udp_in_datagrams += count;
        } else {
            self.counters.udp_receive_drops += count;
        }
    }
}
