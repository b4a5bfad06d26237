//! A mock device for tests (feature `mock`): keeps packets and contexts, reports the events that the test supplies, and
//! records each call.
//!
//! A device that wraps another device must forward everything that it does not handle itself. [`drive`] calls every
//! method. The calls that a wrapped [`MockDevice`] records must equal those of a bare one, except for the wrapper's
//! intended changes.

use crate::contexts::{Capabilities, ContextNews, Contexts, EngineInfo, NewContext, Spec};
use crate::device::{DeviceEvent, NetDevice, PathCaps};
use crate::direction::Direction;
use crate::ipsec::{DeviceSaEvent, IpsecDevice, Lifetime, SaParams, SaRefusal, Selector};
use crate::key::{Key, KeyBytes};
use crate::nvme::NvmeTcpContexts;
use crate::record::{TlsSuite, TlsVersion};
use crate::refused::ContextRefusal;
use crate::rss::{INDIRECTION_ENTRIES, RssDevice};
use crate::rx::{Piece, RxPacket};
use crate::source::{NoRecords, RecordSource};
use crate::tls::{TlsCapabilities, TlsContexts};
use crate::tx::{TransmitResult, TxPacket};
use crate::unit::{Handle, Layer, engines};
use core::any::Any;
use core::net::SocketAddr;
use core::task::Waker;
use offload_base::counters::CounterSet;
use offload_base::{Instant, Seq};
use offload_formats::FlowKey;
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A device with engines and no wire. Clones share one device. Panics if a packet to be cut exceeds the announced TSO
/// maximum.
///
/// ```
/// use offload_api::mock::{MockDevice, drive};
/// use offload_api::{NetDevice, NoRecords, TxPacket};
/// use offload_base::Instant;
///
/// let device = MockDevice::default();
/// let mut below = device.clone();
/// let _ = below.transmit(Instant::ZERO, TxPacket::default(), &NoRecords);
/// assert_eq!(device.take_sent().len(), 1);
///
/// drive(&mut below);
/// assert!(device.take_calls().iter().any(|call| call == "engine(\"tls\")"));
/// ```
#[derive(Clone, Debug, Default)]
pub struct MockDevice(Arc<Mutex<MockState>>);

#[derive(Debug)]
struct MockState {
    path: PathCaps,
    room: usize,
    is_plain: bool,
    sent: Vec<TxPacket>,
    received: VecDeque<RxPacket>,
    events: VecDeque<DeviceEvent>,
    news: VecDeque<ContextNews>,
    /// Number of contexts of each engine.
    contexts: BTreeMap<u8, u32>,
    created: Vec<(Handle, NewContext)>,
    calls: Vec<String>,
}

impl Default for MockState {
    fn default() -> MockState {
        let path =
            PathCaps { epoch: 0, mtu: 1500, checksum: true, tso_max_bytes: 0, udp_segmentation: false, pacing: false };
        MockState {
            path,
            room: 64,
            is_plain: false,
            sent: Vec::new(),
            received: VecDeque::new(),
            events: VecDeque::new(),
            news: VecDeque::new(),
            contexts: BTreeMap::new(),
            created: Vec::new(),
            calls: Vec::new(),
        }
    }
}

impl MockDevice {
    /// Generation of all contexts. Handles of generation 0 are stale.
    pub const GENERATION: u32 = 1;

    /// Returns and clears the sent packets.
    pub fn take_sent(&self) -> Vec<TxPacket> {
        core::mem::take(&mut self.inner().sent)
    }

    /// Returns and clears the recorded calls: method and arguments without times.
    pub fn take_calls(&self) -> Vec<String> {
        core::mem::take(&mut self.inner().calls)
    }

    /// Adds a packet to receive.
    pub fn receives(&self, packet: RxPacket) {
        self.inner().received.push_back(packet);
    }

    /// Adds an event to report.
    pub fn tells(&self, event: DeviceEvent) {
        self.inner().events.push_back(event);
    }

    /// Adds a context event to report.
    pub fn tells_news(&self, news: ContextNews) {
        self.inner().news.push_back(news);
    }

    /// Makes a device that only carries packets and has contexts: it records no calls, has no other interfaces, and no
    /// timers.
    pub fn plain(path: PathCaps) -> MockDevice {
        let device = MockDevice::default();
        device.inner().path = path;
        device.inner().is_plain = true;
        device
    }

    /// Sets the space that the device reports, regardless of queued packets.
    pub fn set_room(&self, packets: usize) {
        self.inner().room = packets;
    }

    /// Returns and clears the created contexts with their parameters.
    pub fn take_created(&self) -> Vec<(Handle, NewContext)> {
        core::mem::take(&mut self.inner().created)
    }

    fn note(&self, call: impl FnOnce() -> String) {
        let mut inner = self.inner();
        if !inner.is_plain {
            inner.calls.push(call());
        }
    }

    fn inner(&self) -> MutexGuard<'_, MockState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Calls every method of every interface of `device`.
pub fn drive(device: &mut dyn NetDevice) {
    let flow = flow();
    device.path(&flow);
    device.room(&flow);
    device.room_paced(&flow);
    let _ = device.transmit(Instant::ZERO, TxPacket::default(), &NoRecords);
    device.flush(Instant::ZERO);
    device.receive(Instant::ZERO);
    device.poll_event();
    device.serves(&flow);
    device.arm(Waker::noop());
    device.next_event();
    device.handle_timeout(Instant::ZERO);
    device.count(&mut CounterSet::default());
    if let Some(rss) = device.rss() {
        rss.queue();
        rss.queues();
        let _ = rss.set_indirection(&[0; INDIRECTION_ENTRIES]);
    }
    if let Some(ipsec) = device.ipsec() {
        drive_ipsec(ipsec);
    }
    if let Some(contexts) = device.contexts() {
        drive_contexts(contexts);
    }
}

/// Calls every method of `contexts`, for both directions of each engine of the [`MockDevice`].
pub fn drive_contexts(contexts: &mut dyn Contexts) {
    for name in [TlsContexts::ENGINE, NvmeTcpContexts::ENGINE] {
        for direction in [Direction::Transmit, Direction::Receive] {
            drive_engine(contexts, name, direction, &flow());
        }
    }
}

fn flow() -> FlowKey {
    let ends = ["10.0.0.1:443", "10.0.0.2:5000"].map(|end| end.parse::<SocketAddr>().expect("an address"));
    FlowKey::tcp(ends[0], ends[1])
}

fn drive_engine(contexts: &mut dyn Contexts, name: &str, direction: Direction, flow: &FlowKey) {
    let Some(engine) = contexts.engine(name).map(|engine| engine.number) else { return };
    let keys = match direction {
        Direction::Transmit => Vec::new(),
        Direction::Receive => vec![Key::Flow(*flow, Layer::FIRST)],
    };
    let new = NewContext { engine, direction, flow: Some(*flow), keys, spec: Box::new(()) };
    let Ok(context) = contexts.create(new) else { return };
    let _ = contexts.steer(context, Key::Engine(engine, KeyBytes::from_parts(&[&[1]])), true);
    let _ = contexts.command(context, Box::new(()));
    let _ = contexts.change(engine, Box::new(()));
    contexts.place(context, 7, Vec::new(), None);
    contexts.release(context, 7);
    contexts.answer(context, Seq(9), Some(1));
    contexts.poll_news();
    contexts.remove(context);
}

fn drive_ipsec(ipsec: &mut dyn IpsecDevice) {
    let sa = Handle { index: Handle::indices(engines::ESP, 1).start, generation: 0 };
    ipsec.update_sa(sa, Lifetime::default());
    let _ = ipsec.advance_sa(sa, 7);
    let _ = ipsec.set_policy(&Selector::ANY, 1, sa);
    ipsec.remove_policy(&Selector::ANY, 1);
    ipsec.remove_sa(sa);
    ipsec.poll_sa_event();
}

impl NetDevice for MockDevice {
    fn path(&self, flow: &FlowKey) -> PathCaps {
        self.note(|| format!("path({flow:?})"));
        self.inner().path
    }

    fn room(&self, flow: &FlowKey) -> usize {
        self.note(|| format!("room({flow:?})"));
        self.inner().room
    }

    fn room_paced(&self, flow: &FlowKey) -> usize {
        self.note(|| format!("room_paced({flow:?})"));
        self.inner().room
    }

    fn transmit(&mut self, _: Instant, packet: TxPacket, _: &dyn RecordSource) -> TransmitResult {
        self.note(|| format!("transmit({} bytes)", packet.header.len() + packet.payload_len()));
        let mut inner = self.inner();
        assert!(
            packet.ask.mss.is_none() || packet.payload_len() <= inner.path.tso_max_bytes as usize,
            "too long to be cut"
        );
        inner.sent.push(packet);
        TransmitResult::Posted
    }

    fn flush(&mut self, _: Instant) {
        self.note(|| "flush()".into());
    }

    fn receive(&mut self, _: Instant) -> Option<RxPacket> {
        self.note(|| "receive()".into());
        self.inner().received.pop_front()
    }

    fn poll_event(&mut self) -> Option<DeviceEvent> {
        self.note(|| "poll_event()".into());
        self.inner().events.pop_front()
    }

    fn serves(&self, flow: &FlowKey) -> bool {
        self.note(|| format!("serves({flow:?})"));
        true
    }

    fn arm(&mut self, _: &Waker) -> bool {
        self.note(|| "arm()".into());
        true
    }

    fn next_event(&self) -> Option<Instant> {
        // A recorded device always has a timer due, so that a wrapper's forwarding is visible.
        self.note(|| "next_event()".into());
        (!self.inner().is_plain).then_some(Instant::ZERO)
    }

    fn handle_timeout(&mut self, _: Instant) {
        self.note(|| "handle_timeout()".into());
    }

    fn count(&self, _: &mut CounterSet) {
        self.note(|| "count()".into());
    }

    fn ipsec(&mut self) -> Option<&mut dyn IpsecDevice> {
        if self.inner().is_plain { None } else { Some(self) }
    }

    fn rss(&mut self) -> Option<&mut dyn RssDevice> {
        if self.inner().is_plain { None } else { Some(self) }
    }

    fn contexts(&mut self) -> Option<&mut dyn Contexts> {
        Some(self)
    }

    fn as_any(&mut self) -> &mut dyn Any {
        self
    }
}

impl Contexts for MockDevice {
    fn engine(&mut self, name: &str) -> Option<EngineInfo> {
        self.note(|| format!("engine({name:?})"));
        let known = [(TlsContexts::ENGINE, engines::TLS), (NvmeTcpContexts::ENGINE, engines::NVME_TCP)];
        let (name, number) = known.into_iter().find(|(known, _)| *known == name)?;
        let capabilities = match number {
            engines::TLS => Capabilities::new(TlsCapabilities {
                versions: &[TlsVersion::Tls12, TlsVersion::Tls13],
                suites: &[TlsSuite::Aes128Gcm, TlsSuite::Aes256Gcm, TlsSuite::ChaCha20Poly1305],
            }),
            _ => Capabilities::default(),
        };
        Some(EngineInfo { counts_units: true, capabilities, ..EngineInfo::new(number, name, Handle::PLACES) })
    }

    fn create(&mut self, new: NewContext) -> Result<Handle, (ContextRefusal, Spec)> {
        let NewContext { engine, direction, flow, keys, .. } = &new;
        self.note(|| format!("create({engine}, {direction:?}, {flow:?}, {keys:?})"));
        let mut inner = self.inner();
        // Slots are never reused, so that tests can tell contexts apart.
        let place = inner.contexts.entry(*engine).or_default();
        let index = Handle::indices(*engine, 1).start + *place;
        let handle = Handle { index, generation: MockDevice::GENERATION };
        *place += 1;
        inner.created.push((handle, new));
        Ok(handle)
    }

    fn steer(&mut self, context: Handle, key: Key, to_it: bool) -> Result<(), ContextRefusal> {
        self.note(|| format!("steer({context:?}, {key:?}, {to_it})"));
        Ok(())
    }

    fn command(&mut self, context: Handle, _: Spec) -> Result<(), (ContextRefusal, Spec)> {
        self.note(|| format!("command({context:?})"));
        Ok(())
    }

    fn change(&mut self, engine: u8, _: Spec) -> Result<(), (ContextRefusal, Spec)> {
        self.note(|| format!("change({engine})"));
        Ok(())
    }

    fn place(&mut self, context: Handle, buffer: u64, pieces: Vec<Piece>, _: Option<Spec>) {
        self.note(|| format!("place({context:?}, {buffer}, {} pieces)", pieces.len()));
    }

    fn release(&mut self, context: Handle, buffer: u64) {
        self.note(|| format!("release({context:?}, {buffer})"));
    }

    fn answer(&mut self, context: Handle, header: Seq, number: Option<u64>) {
        self.note(|| format!("answer({context:?}, {header:?}, {number:?})"));
    }

    fn remove(&mut self, context: Handle) {
        self.note(|| format!("remove({context:?})"));
    }

    fn poll_news(&mut self) -> Option<ContextNews> {
        self.note(|| "poll_news()".into());
        self.inner().news.pop_front()
    }
}

impl IpsecDevice for MockDevice {
    fn add_sa(&mut self, sa: &SaParams) -> Result<Handle, SaRefusal> {
        self.note(|| format!("add_sa({:#x})", sa.spi));
        Err(SaRefusal::NoDevice)
    }

    fn update_sa(&mut self, sa: Handle, _: Lifetime) {
        self.note(|| format!("update_sa({sa:?})"));
    }

    fn advance_sa(&mut self, sa: Handle, last: u64) -> Result<(), SaRefusal> {
        self.note(|| format!("advance_sa({sa:?}, {last})"));
        Ok(())
    }

    fn remove_sa(&mut self, sa: Handle) {
        self.note(|| format!("remove_sa({sa:?})"));
    }

    fn set_policy(&mut self, _: &Selector, rank: u64, sa: Handle) -> Result<(), SaRefusal> {
        self.note(|| format!("set_policy({rank}, {sa:?})"));
        Ok(())
    }

    fn remove_policy(&mut self, _: &Selector, rank: u64) {
        self.note(|| format!("remove_policy({rank})"));
    }

    fn poll_sa_event(&mut self) -> Option<DeviceSaEvent> {
        self.note(|| "poll_sa_event()".into());
        None
    }
}

impl RssDevice for MockDevice {
    fn queue(&self) -> u16 {
        self.note(|| "queue()".into());
        0
    }

    fn queues(&self) -> u16 {
        self.note(|| "queues()".into());
        1
    }

    fn set_indirection(&mut self, _: &[u16; INDIRECTION_ENTRIES]) -> Result<(), ContextRefusal> {
        self.note(|| "set_indirection()".into());
        Ok(())
    }
}
