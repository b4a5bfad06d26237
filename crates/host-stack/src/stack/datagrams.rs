//! UDP: an application's sockets, and what arrives for them.

use super::opening::{PORTS_TRIED, random_port};
use super::shards::may_choose;
use super::{OpenError, Stack};
use crate::network::ParsedDatagram;
use crate::udp::SendError;
use bytes::{Buf, Bytes};
use core::net::SocketAddr;
use core::num::NonZeroU16;
use offload_api::{Datagram, FlowKey, NetDevice, Protocol, RxPacket};
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

    /// Closes the UDP socket at `port`, and drops what was not read.
    pub fn close_udp(&mut self, port: u16) {
        self.sockets.close(port);
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
        let caps = device.path(&self.nobodys_flow());
        let sent = self.network.send_datagram(now, port, to, data, &caps, &mut self.counters);
        if sent == Err(SendError::Full) {
            self.sockets.block(port);
        }
        sent
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
        let local = SocketAddr::new(self.network.source_to(to)?, port);
        let caps = device.path(&FlowKey { protocol: Protocol::Udp, local, remote: to });
        let sent = self.network.send_segmented(now, (port, to), data, bytes, &caps, &mut self.counters);
        if sent == Err(SendError::Full) {
            self.sockets.block(port);
        }
        sent
    }

    /// The next datagram that arrived at the UDP socket at `port`.
    pub fn take_datagram(&mut self, port: u16) -> Option<Datagram> {
        self.sockets.take(port)
    }

    /// The next UDP socket at which datagrams arrived, or that can send again.
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
            frame.truncate(parsed.payload.end);
            self.network.refuse_datagram(now, &frame, packet.meta.protection, &mut self.counters);
            return;
        }
        let ParsedDatagram { from, to, ecn, payload } = parsed;
        let RxPacket { frame: mut data, meta, joined, placed: _ } = packet;
        data.truncate(payload.end);
        data.advance(payload.start);
        if self.sockets.deliver(port, Datagram { from, to, ecn, data, meta, joined }) {
            self.counters.udp_in_datagrams += 1;
        } else {
            self.counters.udp_receive_drops += 1;
        }
    }
}
