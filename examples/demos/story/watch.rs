//! Observers: wrappers around the parts of a host and a wire that record passing events.

use crate::story::log::Log;
use crate::story::reading::{CounterChanges, Reading};
use crate::story::{StateRebuild, StoryStep};
use core::any::Any;
use core::task::Waker;
use core::time::Duration;
use nic_sim::frame::Frame;
use nic_sim::stats::TlsEngineCounters;
use nic_sim::wire::{Crossing, Impairment, Port};
use nic_sim::{Device, Driver};
use offload_api::{
    ContextNews, ContextRefusal, Contexts, DeviceEvent, EngineInfo, FlowKey, Handle, IpsecDevice, Key, Layer, Lookup,
    NetDevice, NewContext, PathCaps, Piece, RecordSource, RssDevice, RxPacket, Spec, StreamAsk, TransmitResult,
    TxPacket, engines,
};
use offload_base::counters::{CounterSet, Counters};
use offload_base::{Instant, Seq};
use offload_formats::IpHeaders;
use std::collections::VecDeque;

/// The host of a driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// The sender. Its posted bytes belong to the story.
    Server,
    /// The receiver. Questions of its NIC and their answers belong to the story.
    Client,
}

/// An observed driver.
pub(super) struct WatchedDriver {
    driver: Driver,
    role: Role,
    log: Log,
    /// Time of the host's last call.
    now: Instant,
    /// Additional delay of the NIC's questions.
    question_delay: Duration,
    /// Delayed questions, each with its due time.
    held_up: VecDeque<(Instant, DeviceEvent)>,
}

impl WatchedDriver {
    /// Wraps a driver.
    pub(super) fn new(driver: Driver, role: Role, log: Log, question_delay: Duration) -> WatchedDriver {
        WatchedDriver { driver, role, log, now: Instant::ZERO, question_delay, held_up: VecDeque::new() }
    }

    /// Returns the next event for the host, if it is due.
    fn due_event(&mut self) -> Option<DeviceEvent> {
        loop {
            if self.held_up.front().is_some_and(|(until, _)| *until <= self.now) {
                return self.held_up.pop_front().map(|(_, event)| event);
            }
            match self.driver.poll_event()? {
                // Only questions are delayed; all other events keep their order.
                event @ DeviceEvent::ResyncRequested { .. } if !self.question_delay.is_zero() => {
                    self.held_up.push_back((self.now + self.question_delay, event));
                }
                event => return Some(event),
            }
        }
    }
}

impl NetDevice for WatchedDriver {
    fn transmit(&mut self, now: Instant, packet: TxPacket, source: &dyn RecordSource) -> TransmitResult {
        self.now = now;
        let (seq, bytes) = (packet.ask.seq, packet.payload_len() as u32);
        let Some(ask) = packet.ask.streams[Layer::FIRST.index()].filter(|_| self.role == Role::Server) else {
            return self.driver.transmit(now, packet, source);
        };
        // The packet moves to the driver below, so its request is read first.
        let records = records_of(source, ask);
        // The difference of the counters shows the work that this packet caused.
        let before = self.driver.context_counters(engines::TLS);
        let sent = self.driver.transmit(now, packet, source);
        let after = self.driver.context_counters(engines::TLS);
        let rebuilt = (after.ooo > before.ooo).then(|| StateRebuild {
            dumps: after.dump_packets - before.dump_packets,
            dumped_bytes: after.dump_bytes - before.dump_bytes,
        });
        self.log.note_posted(now, seq, &records, bytes, rebuilt);
        sent
    }

    fn poll_event(&mut self) -> Option<DeviceEvent> {
        let event = self.due_event()?;
        if self.role == Role::Client {
            match event {
                DeviceEvent::ResyncRequested { header, .. } => {
                    if let Some(header) = self.log.place(header) {
                        self.log.note(self.now, StoryStep::Asked { header });
                    }
                }
                DeviceEvent::ResyncStarted { from, to, .. } => {
                    if let Some(bytes) = self.log.span(from, to.distance_from(from)) {
                        self.log.note(self.now, StoryStep::Announced(bytes));
                    }
                }
                _ => {}
            }
        }
        Some(event)
    }

    fn receive(&mut self, now: Instant) -> Option<RxPacket> {
        self.now = now;
        self.driver.receive(now)
    }

    fn path(&self, flow: &FlowKey) -> PathCaps {
        self.driver.path(flow)
    }

    fn room(&self, flow: &FlowKey) -> usize {
        self.driver.room(flow)
    }

    fn room_paced(&self, flow: &FlowKey) -> usize {
        self.driver.room_paced(flow)
    }

    fn flush(&mut self, now: Instant) {
        self.driver.flush(now);
    }

    fn arm(&mut self, waker: &Waker) -> bool {
        self.driver.arm(waker)
    }

    fn next_event(&self) -> Option<Instant> {
        // The host must wake for a delayed question even if the driver is idle.
        let held_up = self.held_up.front().map(|(until, _)| *until);
        [self.driver.next_event(), held_up].into_iter().flatten().min()
    }

    fn handle_timeout(&mut self, now: Instant) {
        self.now = now;
        self.driver.handle_timeout(now);
    }

    fn count(&self, set: &mut CounterSet) {
        self.driver.count(set);
    }

    fn serves(&self, flow: &FlowKey) -> bool {
        self.driver.serves(flow)
    }

    fn ipsec(&mut self) -> Option<&mut dyn IpsecDevice> {
        self.driver.ipsec()
    }

    fn rss(&mut self) -> Option<&mut dyn RssDevice> {
        self.driver.rss()
    }

    fn contexts(&mut self) -> Option<&mut dyn Contexts> {
        Some(self)
    }

    fn as_any(&mut self) -> &mut dyn Any {
        self.driver.as_any()
    }
}

impl Contexts for WatchedDriver {
    fn engine(&mut self, name: &str) -> Option<EngineInfo> {
        self.driver.engine(name)
    }

    fn create(&mut self, new: NewContext) -> Result<Handle, (ContextRefusal, Spec)> {
        self.driver.create(new)
    }

    fn steer(&mut self, context: Handle, key: Key, to_it: bool) -> Result<(), ContextRefusal> {
        self.driver.steer(context, key, to_it)
    }

    fn command(&mut self, context: Handle, command: Spec) -> Result<(), (ContextRefusal, Spec)> {
        Contexts::command(&mut self.driver, context, command)
    }

    fn change(&mut self, engine: u8, change: Spec) -> Result<(), (ContextRefusal, Spec)> {
        self.driver.change(engine, change)
    }

    fn place(&mut self, context: Handle, buffer: u64, pieces: Vec<Piece>, stages: Option<Spec>) {
        self.driver.place(context, buffer, pieces, stages);
    }

    fn release(&mut self, context: Handle, buffer: u64) {
        self.driver.release(context, buffer);
    }

    fn answer(&mut self, context: Handle, header: Seq, number: Option<u64>) {
        if self.role == Role::Client
            && let Some(header) = self.log.place(header)
        {
            self.log.note_answer(self.now, header, number);
        }
        self.driver.answer(context, header, number);
    }

    fn remove(&mut self, context: Handle) {
        self.driver.remove(context);
    }

    fn poll_news(&mut self) -> Option<ContextNews> {
        self.driver.poll_news()
    }
}

/// Returns the records of the bytes in `ask`.
fn records_of(source: &dyn RecordSource, ask: StreamAsk) -> Vec<(u64, Seq, Seq)> {
    let (mut records, mut at) = (Vec::new(), ask.offset);
    while at < ask.end() {
        let Lookup::In(record) = source.unit_at(Layer::FIRST, at) else { break };
        records.push((record.number, record.start, record.start + record.len));
        at = record.end();
    }
    records
}

/// An observed device, for its receive path.
pub(super) struct WatchedPort {
    pub(super) device: Device,
    pub(super) reading: Reading,
    pub(super) log: Log,
}

impl Port for WatchedPort {
    fn receive_frame(&mut self, now: Instant, frame: Frame) {
        let data = tcp_data(&frame).and_then(|(seq, bytes)| self.log.span(seq, bytes));
        // The difference of the counters shows the packet's result.
        let before: TlsEngineCounters = self.device.engine_counters();
        self.device.receive_frame(now, frame);
        let after: TlsEngineCounters = self.device.engine_counters();
        if let Some(bytes) = data {
            let moved = CounterChanges {
                decrypted: after.rx_tls_decrypted_packets > before.rx_tls_decrypted_packets,
                asked: after.rx_tls_resync_req_pkt > before.rx_tls_resync_req_pkt,
                failed: after.rx_tls_err > before.rx_tls_err,
                lost: after.rx_tls_lost > before.rx_tls_lost,
                found: after.rx_tls_found > before.rx_tls_found,
            };
            self.log.note(now, StoryStep::Arrived { bytes, made: self.reading.note(bytes, moved) });
        }
    }

    fn poll_frame(&mut self, now: Instant) -> Option<Frame> {
        self.device.poll_frame(now)
    }

    fn process(&mut self, now: Instant) {
        self.device.process(now);
    }

    fn next_event(&self) -> Option<Instant> {
        self.device.next_event()
    }

    fn register_doorbell(&mut self, waker: &Waker) {
        self.device.register_doorbell(waker);
    }
}

offload_base::counters! {
    /// Counters of the wire's impairment.
    pub(super) struct FateCounters {
        /// Lost packets.
        pub lost: "wire_lost",
        /// Delayed packets.
        pub held_back: "wire_reordered",
    }
}

/// Loses one packet and delays another, each at its first passage. Packets are counted from 1.
#[derive(Debug)]
pub(super) struct StoryImpairment {
    pub(super) lose: Option<usize>,
    pub(super) hold_back: Option<usize>,
    pub(super) by: core::time::Duration,
    pub(super) log: Log,
    pub(super) counters: FateCounters,
}

impl Impairment for StoryImpairment {
    fn pass(&mut self, crossing: Crossing, onward: &mut dyn FnMut(Crossing)) {
        let data = tcp_data(&crossing.frame).and_then(|(seq, bytes)| self.log.span(seq, bytes));
        let Some(bytes) = data else { return onward(crossing) };
        // Retransmissions have no number and always pass, so that the story ends.
        let number = self.log.number_if_new(bytes);
        if number.is_none() {
            onward(crossing);
        } else if number == self.lose {
            self.counters.lost += 1;
            self.log.note(crossing.arrives, StoryStep::Lost(bytes));
        } else if number == self.hold_back {
            self.counters.held_back += 1;
            self.log.note(crossing.arrives, StoryStep::HeldBack(bytes));
            onward(Crossing { arrives: crossing.arrives + self.by, ..crossing });
        } else {
            onward(crossing);
        }
    }

    fn counters(&self) -> &dyn Counters {
        &self.counters
    }
}

/// Returns the sequence number and the length of a frame's payload, if the frame carries TCP.
fn tcp_data(frame: &Frame) -> Option<(Seq, u32)> {
    let packet = frame.data.get(ETHERNET_HEADER..)?;
    let ip = IpHeaders::parse(packet).ok().filter(|ip| ip.protocol == PROTOCOL_TCP)?;
    let tcp = &packet[ip.upper..ip.end];
    let seq = u32::from_be_bytes(*tcp.get(4..)?.first_chunk()?);
    let header = usize::from(*tcp.get(12)? >> 4) * 4;
    Some((Seq(seq), tcp.len().checked_sub(header)? as u32))
}

const ETHERNET_HEADER: usize = 14;
/// Protocol number of TCP (IANA).
const PROTOCOL_TCP: u8 = 6;
