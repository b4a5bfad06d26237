//! A device around a driver that reports the calls between stack and driver to a [`Tracer`].

use super::arrows::TcpPosition;
use super::perfetto::{Note, Slice};
use super::units::{Follower, StreamUnit, UnitProtocol};
use super::{TraceState, Tracer, TrackKind};
use core::any::Any;
use core::task::Waker;
use offload_api::rx::TlsVerdict;
use offload_api::{
    Contexts, DeviceEvent, IpsecDevice, NetDevice, PathCaps, RecordSource, RssDevice, RxPacket, TransmitResult,
    TxPacket,
};
use offload_base::Instant;
use offload_base::counters::CounterSet;
use offload_formats::{FlowKey, Headers};
use std::collections::HashMap;

/// A tracing device around another device. It changes no call.
pub(crate) struct TracedDevice {
    inner: Box<dyn NetDevice>,
    tracer: Tracer,
    tracks: Tracks,
    /// Record and PDU followers of each direction of each flow, by the receiver's flow key.
    followers: HashMap<FlowKey, Follower>,
    /// Sequence number after the last sent byte of each flow.
    sent_to: HashMap<FlowKey, offload_base::Seq>,
    /// Packets posted since the last doorbell, and the flow of one of these packets.
    posted: u64,
    last_flow: Option<FlowKey>,
    /// The driver's counters at the last doorbell.
    counted: CounterSet,
    /// Time of the previous call, because events carry no time.
    now: Instant,
}

#[derive(Clone)]
struct Tracks {
    host: String,
    tcp: u64,
    driver: u64,
    send_ring: u64,
}

impl TracedDevice {
    /// Wraps queue `queue` of the host called `host`.
    pub(crate) fn new(inner: Box<dyn NetDevice>, tracer: &Tracer, host: &str, queue: usize) -> TracedDevice {
        let named = |name: &str| if queue == 0 { name.to_owned() } else { format!("{name}, queue {queue}") };
        let mut state = tracer.lock();
        // Tracks are shown in the order of creation.
        for name in ["application", "TLS written", "TLS read"] {
            state.track(host, name, TrackKind::Slices);
        }
        let tracks = Tracks {
            tcp: state.track(host, &named("TCP"), TrackKind::Slices),
            driver: state.track(host, &named("driver"), TrackKind::Slices),
            send_ring: state.track(host, &named("send ring: room, in packets"), TrackKind::Counter),
            host: host.to_owned(),
        };
        drop(state);
        TracedDevice {
            inner,
            tracer: tracer.clone(),
            tracks,
            followers: HashMap::new(),
            sent_to: HashMap::new(),
            posted: 0,
            last_flow: None,
            counted: CounterSet::default(),
            now: Instant::ZERO,
        }
    }

    /// Follows a direction of a flow, beginning with the flow's SYN.
    fn follow<'a>(
        &mut self,
        place: &TcpPosition,
        is_sent: bool,
        by_nic: bool,
        payload: impl Iterator<Item = &'a [u8]>,
    ) {
        // A SYN begins a new stream, also of a flow that was known before.
        if place.syn {
            forget_some(&mut self.followers);
            self.followers.insert(place.flow, Follower::new(place.seq + 1));
        } else if let Some(follower) = self.followers.get_mut(&place.flow) {
            let (tracer, host, now) = (&self.tracer, &self.tracks.host, self.now);
            follower.pass(now, place.seq, place.len, payload, &mut |unit| {
                unit_slice(&mut tracer.lock(), host, now, unit, is_sent, by_nic);
            });
        }
    }

    fn event(&self, name: &str, notes: &[Note<'_>]) {
        let slice =
            Slice { track: self.tracks.driver, name, from: self.now, to: self.now, notes, flows: &[], ends: &[] };
        self.tracer.lock().slice(&slice);
    }

    fn segment(&self, name: &str, place: &TcpPosition, notes: &[Note<'_>], flows: &[u64], ends: &[u64]) {
        let own = [("seq", u64::from(place.seq.0)), ("ack", place.ack.into()), ("bytes", place.len.into())];
        let notes: Vec<Note<'_>> = own.into_iter().chain(notes.iter().copied()).collect();
        let slice = Slice { track: self.tracks.tcp, name, from: self.now, to: self.now, notes: &notes, flows, ends };
        self.tracer.lock().slice(&slice);
    }
}

/// Draws a unit from its first to its last byte. Units of several flows may overlap, so each unit has its own track
/// meanwhile.
fn unit_slice(state: &mut TraceState, host: &str, now: Instant, unit: StreamUnit, is_sent: bool, by_nic: bool) {
    let track = match (unit.layer, is_sent) {
        (UnitProtocol::Tls, true) => "TLS written",
        (UnitProtocol::Tls, false) => "TLS read",
        (UnitProtocol::Nvme, true) => "NVMe/TCP written",
        (UnitProtocol::Nvme, false) => "NVMe/TCP read",
    };
    let track = state.lane(host, track, unit.from, now);
    let notes = [("number", unit.number), ("bytes", unit.len), ("by the NIC", by_nic.into())];
    state.slice(&Slice { track, name: unit.name, from: unit.from, to: now, notes: &notes, flows: &[], ends: &[] });
}

/// Empties a full table. A host with very many flows therefore shows only some of them.
fn forget_some<T>(flows: &mut HashMap<FlowKey, T>) {
    if flows.len() >= MAX_FLOWS {
        flows.clear();
    }
}

impl NetDevice for TracedDevice {
    fn path(&self, flow: &FlowKey) -> PathCaps {
        self.inner.path(flow)
    }

    fn room(&self, flow: &FlowKey) -> usize {
        self.inner.room(flow)
    }

    fn room_paced(&self, flow: &FlowKey) -> usize {
        self.inner.room_paced(flow)
    }

    fn transmit(&mut self, now: Instant, packet: TxPacket, source: &dyn RecordSource) -> TransmitResult {
        self.now = now;
        let (ask, fragments, len) = (packet.ask, packet.fragments.clone(), packet.payload_len());
        let transport = Headers::parse_unfinished(&packet.header).transport();
        let place = transport.and_then(|transport| TcpPosition::read(&transport, &packet.header, len));
        // The packet's header and fragments were read before, because the driver consumes the packet.
        let sent = self.inner.transmit(now, packet, source);
        match (sent, place) {
            (TransmitResult::Posted, Some(place)) => {
                let end = place.seq + place.len;
                forget_some(&mut self.sent_to);
                let sent_to = self.sent_to.entry(place.flow).or_insert(place.seq);
                // A segment that starts below the highest sent byte is a retransmission.
                let again = place.len > 0 && (place.seq - *sent_to) < 0;
                if (end - *sent_to) > 0 {
                    *sent_to = end;
                }
                let arrows = self.tracer.lock().arrows.sent(&place, ask.mss);
                let name = if again { "retransmit" } else { "send" };
                let notes = [("segments", arrows.len() as u64), ("for the NIC to seal", ask.has_context().into())];
                self.segment(name, &place, &notes, &arrows, &[]);
                self.follow(&place, true, ask.has_context(), fragments.iter().map(|piece| &piece[..]));
                self.last_flow = Some(place.flow.reversed());
            }
            (TransmitResult::Posted, None) => {
                let notes = [("bytes", len as u64), ("for the NIC to seal", ask.packet.is_some().into())];
                self.event("send datagram", &notes);
            }
            (TransmitResult::NeedsSoftware(_), _) => self.event("the host is to seal it", &[("bytes", len as u64)]),
            (TransmitResult::Dropped(_), _) => self.event("dropped", &[("bytes", len as u64)]),
        }
        self.posted += u64::from(sent == TransmitResult::Posted);
        sent
    }

    fn flush(&mut self, now: Instant) {
        self.now = now;
        self.inner.flush(now);
        if self.posted == 0 {
            return;
        }
        let mut counted = CounterSet::default();
        self.inner.count(&mut counted);
        // The doorbell's notes show only counters that changed since the previous doorbell.
        let moved = counted.iter().map(|(name, value)| (name, value.saturating_sub(self.counted.value(name))));
        let notes: Vec<Note<'_>> =
            core::iter::once(("packets", self.posted)).chain(moved.filter(|(_, by)| *by > 0)).collect();
        self.event("doorbell", &notes);
        self.counted = counted;
        self.posted = 0;
        if let Some(flow) = &self.last_flow {
            // The room after the doorbell shows how far the device is behind.
            let room = self.inner.room(flow) as u64;
            self.tracer.lock().counter(self.tracks.send_ring, now, room);
        }
    }

    fn receive(&mut self, now: Instant) -> Option<RxPacket> {
        self.now = now;
        let packet = self.inner.receive(now)?;
        // The lengths of a joined packet may be wrong, but its payload offset is known.
        let headers = if packet.joined.is_some() { Headers::parse_unfinished } else { Headers::parse };
        if let Some(transport) = headers(&packet.frame).transport()
            && let end = if packet.joined.is_some() { packet.frame.len() } else { transport.end }
            && let Some(payload) = packet.frame.get(transport.payload..end)
            && let Some(place) = TcpPosition::read(&transport, &packet.frame, payload.len())
        {
            let ends = self.tracer.lock().arrows.received(&place);
            let opened = packet.meta.tls() == TlsVerdict::Decrypted;
            let notes = [("segments", ends.len() as u64), ("opened by the NIC", opened.into())];
            self.segment("receive", &place, &notes, &[], &ends);
            self.follow(&place, false, opened, core::iter::once(payload));
        }
        Some(packet)
    }

    fn poll_event(&mut self) -> Option<DeviceEvent> {
        let event = self.inner.poll_event()?;
        let (name, header) = match event {
            DeviceEvent::Ready { .. } => ("context ready", None),
            DeviceEvent::Removed { .. } => ("context removed", None),
            DeviceEvent::ResyncRequested { header, .. } => ("resync requested", Some(header)),
            DeviceEvent::ResyncStarted { from, .. } => ("resync started", Some(from)),
            DeviceEvent::ResyncCancelled { .. } => ("resync cancelled", None),
            DeviceEvent::KeyMissing { .. } => ("key missing", None),
            DeviceEvent::Reset => ("reset", None),
            _ => ("event", None),
        };
        self.event(name, header.map(|seq| ("seq", seq.0.into())).as_slice());
        Some(event)
    }

    fn serves(&self, flow: &FlowKey) -> bool {
        self.inner.serves(flow)
    }

    fn arm(&mut self, waker: &Waker) -> bool {
        self.inner.arm(waker)
    }

    fn next_event(&self) -> Option<Instant> {
        self.inner.next_event()
    }

    fn handle_timeout(&mut self, now: Instant) {
        self.now = now;
        self.inner.handle_timeout(now);
    }

    fn count(&self, set: &mut CounterSet) {
        self.inner.count(set);
    }

    fn ipsec(&mut self) -> Option<&mut dyn IpsecDevice> {
        self.inner.ipsec()
    }

    fn rss(&mut self) -> Option<&mut dyn RssDevice> {
        self.inner.rss()
    }

    fn contexts(&mut self) -> Option<&mut dyn Contexts> {
        self.inner.contexts()
    }

    fn as_any(&mut self) -> &mut dyn Any {
        self.inner.as_any()
    }
}

const MAX_FLOWS: usize = 1 << 16;
