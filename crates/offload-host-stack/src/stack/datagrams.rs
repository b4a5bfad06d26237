//! UDP: an application's sockets, and what arrives for them.

use super::opening::{PORTS_TRIED, random_port};
use super::shards::may_choose;
use super::socket_contexts::{Noted, SocketContexts};
use super::{OpenError, Stack};
use crate::network::ParsedDatagram;
use crate::udp::SendError;
use bytes::{Buf, Bytes, BytesMut};
use core::net::{IpAddr, SocketAddr};
use core::num::NonZeroU16;
use offload_api::{Contexts, Datagram, FlowKey, NetDevice, Protocol, RxPacket, SendLimits, SocketEvent, TxDatagram};
use offload_base::Instant;

impl Stack {
    /// Opens a UDP socket at `port`, or at any port that is free, and returns its port.
    ///
    /// # Errors
    /// If the port is in use, or none is free.
    pub fn bind_udp(&mut self, port: Option<u16>) -> Result<u16, OpenError> {
        let port = match port {
            Some(0) => return Err(OpenError::NoPort),
            Some(port) => port,
            None => {
                let tried = (0..PORTS_TRIED).map(|_| random_port(&mut self.ports));
                let place = &self.place;
                let mut free = tried.filter(|port| may_choose(place.as_ref(), *port) && !self.sockets.is_bound(*port));
                free.next().ok_or(OpenError::NoPort)?
            }
        };
        self.sockets.bind(port)?;
        Ok(port)
    }

    /// Closes the UDP socket at `port`, and drops what was not read. The contexts that were made through it are given back
    /// to the device at the next [`transmit`](Self::transmit).
    pub fn close_udp(&mut self, port: u16) {
        self.left.extend(self.sockets.close(port));
    }

    /// Sends `data` from the UDP socket at `port`, at the next [`transmit`](Self::transmit): in fragments, if the path
    /// takes no packet of their size.
    ///
    /// # Errors
    /// If there is no way to `to`, no packet has space for so many bytes, or the device has fallen behind.
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

    /// Sends `data` from the UDP socket at `port` as datagrams of `bytes` bytes each, but for the last, at the next
    /// [`transmit`](Self::transmit): UDP segmentation, by the device if it can.
    ///
    /// # Errors
    /// If there is no way to `to`, the path takes no datagrams of that size, they are more than 128 or have more bytes than
    /// a packet has space for, or the device has fallen behind.
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

    /// Sends datagrams from the UDP socket at `port`, at the next [`transmit`](Self::transmit), and has the device work on
    /// them as they ask. Those with an ask are never cut into fragments here, nor sent as they are.
    ///
    /// # Errors
    /// If they cannot be sent like this, or the device has fallen behind. None of them is sent, then.
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
        let may_be_cut = datagrams.segment.is_none() && datagrams.ask.is_none() && !datagrams.dont_fragment;
        let flow = if may_be_cut { self.nobodys_flow() } else { self.flow_to(port, datagrams.to, datagrams.source)? };
        let sent = self.network.send_datagrams(now, port, datagrams, &device.path(&flow), &mut self.counters);
        if sent == Err(SendError::Full) {
            self.sockets.block(port);
        }
        sent
    }

    /// What may be sent from the UDP socket at `port` at a time; no bytes where there is no way to `to`.
    pub fn datagram_limits(&self, now: Instant, port: u16, to: SocketAddr, device: &dyn NetDevice) -> SendLimits {
        match self.flow_to(port, to, None) {
            Ok(flow) => self.network.datagram_limits(now, &to, &device.path(&flow)),
            Err(_) => SendLimits { bytes: 0, segments: 0, segments_bytes: 0 },
        }
    }

    /// The flow of datagrams from the UDP socket at `port`, if they name a `source`, from that address: a layer below, such
    /// as IPsec, may have another path for it.
    fn flow_to(&self, port: u16, to: SocketAddr, source: Option<IpAddr>) -> Result<FlowKey, SendError> {
        let local = SocketAddr::new(self.network.source_of(to, source)?, port);
        Ok(FlowKey { protocol: Protocol::Udp, local, remote: to })
    }

    /// Calls `f` with the contexts of `device`. The UDP socket at `port` owns each context that `f` makes, and hears of it
    /// by [`socket_event`](Self::socket_event). Returns false, without a call of `f`, if the device has no contexts.
    pub fn control_udp(&mut self, port: u16, device: &mut dyn NetDevice, f: &mut dyn FnMut(&mut dyn Contexts)) -> bool {
        if device.contexts().is_none() {
            return false;
        }
        self.sockets.mark_controlled(port);
        let mut of_socket = SocketContexts::new(device);
        f(&mut of_socket);
        for noted in of_socket.into_noted() {
            match noted {
                Noted::Event(event) => self.on_device_event(event),
                Noted::News(news) => self.sockets.on_news(news),
                Noted::Made(context) => self.sockets.own(port, context),
                Noted::GivenUp(context) => self.sockets.give_up(context),
            }
        }
        true
    }

    /// The next event of the contexts of the UDP socket at `port`.
    pub fn socket_event(&mut self, port: u16) -> Option<SocketEvent> {
        self.sockets.take_event(port)
    }

    /// The next datagram that arrived at the UDP socket at `port`; or several, if the device joined them.
    pub fn take_datagram(&mut self, port: u16) -> Option<Datagram> {
        self.sockets.take(port)
    }

    /// The next datagram as it was sent, and by whom.
    pub(crate) fn take_single_datagram(&mut self, port: u16) -> Option<(BytesMut, SocketAddr)> {
        self.sockets.take_single(port)
    }

    /// The next UDP socket at which datagrams arrived, that can send again, or whose contexts have news.
    pub fn next_udp_ready(&mut self) -> Option<u16> {
        self.sockets.next_ready()
    }

    pub(super) fn on_datagram(&mut self, now: Instant, parsed: ParsedDatagram, packet: RxPacket, left: Option<u16>) {
        let port = parsed.to.port();
        if !self.sockets.is_bound(port) {
            let left = left.unwrap_or_else(|| self.shards_to_ask(false, true));
            if left > 0 {
                return self.pass_datagram_on(parsed, packet, left);
            }
            let mut frame = packet.frame;
            self.counters.udp_no_ports += 1;
            if packet.meta.is_opened() {
                // An answer quotes it, and what came sealed is not to leave in clear.
                return;
            }
            frame.truncate(parsed.payload.end);
            self.network.refuse_datagram(now, &frame, packet.meta.protection, &mut self.counters);
            return;
        }
        let ParsedDatagram { from, to, ecn, payload } = parsed;
        let RxPacket { frame: mut data, meta, joined, placed: _ } = packet;
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
