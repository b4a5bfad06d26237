//! A device as the owner of a UDP socket may see it.
//!
//! Invariant: what happens to contexts meanwhile, made or given up here, or reset, is noted in its order: a context that
//! was made after a reset is not taken for one that was lost by it.

use core::any::Any;
use core::task::Waker;
use offload_api::{
    ContextNews, Contexts, DeviceEvent, EngineInfo, FlowKey, Handle, IpsecDevice, Keying, NetDevice, NewContext,
    NvmeTcpDevice, PathCaps, RecordSource, Refused, RssDevice, RxPacket, Sent, Spec, TlsDevice, TxPacket,
};
use offload_base::counters::CounterSet;
use offload_base::{Instant, Seq};

/// A device that notes what is done with contexts.
pub(super) struct SocketDevice<'a> {
    device: &'a mut dyn NetDevice,
    noted: Vec<Noted>,
}

/// What happened meanwhile.
pub(super) enum Noted {
    Event(DeviceEvent),
    News(ContextNews),
    Made(Handle),
    GivenUp(Handle),
}

impl Noted {
    fn is_about(&self, context: Handle) -> bool {
        match self {
            Noted::News(ContextNews::Ready(about) | ContextNews::Removed(about)) => *about == context,
            Noted::News(ContextNews::Event(event)) => event.context == context,
            Noted::Event(DeviceEvent::Ready { handle, .. } | DeviceEvent::Removed { handle, .. }) => *handle == context,
            _ => false,
        }
    }
}

impl<'a> SocketDevice<'a> {
    pub(super) fn new(device: &'a mut dyn NetDevice) -> SocketDevice<'a> {
        SocketDevice { device, noted: Vec::new() }
    }

    pub(super) fn into_noted(self) -> Vec<Noted> {
        self.noted
    }

    /// Notes what the device has to tell up to now.
    fn note_told(&mut self) {
        let Self { device, noted } = self;
        noted.extend(core::iter::from_fn(|| device.contexts()?.poll_news()).map(Noted::News));
        noted.extend(core::iter::from_fn(|| device.poll_event()).map(Noted::Event));
    }
}

impl NetDevice for SocketDevice<'_> {
    fn path(&self, flow: &FlowKey) -> PathCaps {
        self.device.path(flow)
    }

    fn room(&self, flow: &FlowKey) -> usize {
        self.device.room(flow)
    }

    fn room_paced(&self, flow: &FlowKey) -> usize {
        self.device.room_paced(flow)
    }

    fn transmit(&mut self, now: Instant, packet: TxPacket, source: &dyn RecordSource) -> Sent {
        self.device.transmit(now, packet, source)
    }

    fn flush(&mut self, now: Instant) {
        self.device.flush(now);
    }

    fn receive(&mut self, now: Instant) -> Option<RxPacket> {
        self.device.receive(now)
    }

    /// The stack takes them, and tells the socket its own.
    fn poll_event(&mut self) -> Option<DeviceEvent> {
        None
    }

    fn serves(&self, flow: &FlowKey) -> bool {
        self.device.serves(flow)
    }

    fn arm(&mut self, waker: &Waker) -> bool {
        self.device.arm(waker)
    }

    fn next_event(&self) -> Option<Instant> {
        self.device.next_event()
    }

    fn handle_timeout(&mut self, now: Instant) {
        self.device.handle_timeout(now);
    }

    fn count(&self, set: &mut CounterSet) {
        self.device.count(set);
    }

    fn tls(&mut self) -> Option<&mut dyn TlsDevice> {
        self.device.tls()
    }

    fn nvme(&mut self) -> Option<&mut dyn NvmeTcpDevice> {
        self.device.nvme()
    }

    fn ipsec(&mut self) -> Option<&mut dyn IpsecDevice> {
        self.device.ipsec()
    }

    fn rss(&mut self) -> Option<&mut dyn RssDevice> {
        self.device.rss()
    }

    fn keying(&mut self) -> Option<&mut dyn Keying> {
        self.device.keying()
    }

    fn contexts(&mut self) -> Option<&mut dyn Contexts> {
        if self.device.contexts().is_some() { Some(self) } else { None }
    }
}

/// Shown only where the device has this face, which it keeps.
impl Contexts for SocketDevice<'_> {
    fn engine(&mut self, name: &str) -> Option<EngineInfo> {
        self.device.contexts()?.engine(name)
    }

    fn create(&mut self, new: NewContext) -> Result<Handle, (Refused, Spec)> {
        let Some(contexts) = self.device.contexts() else { return Err((Refused::Unsupported, new.spec)) };
        let made = contexts.create(new);
        // A reset that the driver has just heard of was before; what is told of the new one, after.
        let told_from = self.noted.len();
        self.note_told();
        if let Ok(context) = made {
            let after = self.noted[told_from..].iter().position(|noted| noted.is_about(context));
            let at = after.map_or(self.noted.len(), |after| told_from + after);
            self.noted.insert(at, Noted::Made(context));
        }
        made
    }

    fn command(&mut self, context: Handle, command: Spec) -> Result<(), (Refused, Box<dyn Any + Send>)> {
        match self.device.contexts() {
            Some(contexts) => contexts.command(context, command),
            None => Err((Refused::Unsupported, command)),
        }
    }

    fn change(&mut self, engine: u8, change: Spec) -> Result<(), (Refused, Spec)> {
        match self.device.contexts() {
            Some(contexts) => contexts.change(engine, change),
            None => Err((Refused::Unsupported, change)),
        }
    }

    fn answer(&mut self, context: Handle, header: Seq, number: Option<u64>) {
        if let Some(contexts) = self.device.contexts() {
            contexts.answer(context, header, number);
        }
    }

    fn remove(&mut self, context: Handle) {
        if let Some(contexts) = self.device.contexts() {
            contexts.remove(context);
            self.noted.push(Noted::GivenUp(context));
        }
    }

    /// The stack takes them, and tells the socket its own.
    fn poll_news(&mut self) -> Option<ContextNews> {
        None
    }
}
