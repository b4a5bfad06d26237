//! The device, as a protocol above TLS sees it.

use core::task::Waker;
use offload_api::{
    ContextNews, Contexts, DeviceEvent, Direction, EngineInfo, FlowKey, Handle, IpsecDevice, Key, Keying, NetDevice,
    NewContext, PathCaps, Piece, RecordSource, Refused, RssDevice, RxPacket, Sent, Spec, TlsContexts, TxPacket,
};
use offload_base::counters::CounterSet;
use offload_base::{Instant, Seq};

/// A device as a protocol above TLS may see it: without the TLS engine, which is taken. It takes new contexts only while it
/// opens, or seals, the records in which their units are; what it has, it gives back at any time.
pub(super) struct AboveTls<'a> {
    pub(super) device: &'a mut dyn NetDevice,
    pub(super) opens: When,
    pub(super) seals: When,
}

/// Whether the device opens records, or seals them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum When {
    Now,
    /// It is to get the context, or is installing it.
    Later,
    Never,
}

impl When {
    pub(super) fn of(now: bool, later: bool) -> When {
        match (now, later) {
            (true, _) => When::Now,
            (false, true) => When::Later,
            (false, false) => When::Never,
        }
    }

    /// # Errors
    /// If a context of a layer above is not to be had, or not now.
    fn check(self) -> Result<(), Refused> {
        match self {
            When::Now => Ok(()),
            When::Later => Err(Refused::Busy),
            When::Never => Err(Refused::Unsupported),
        }
    }
}

impl NetDevice for AboveTls<'_> {
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

    fn poll_event(&mut self) -> Option<DeviceEvent> {
        self.device.poll_event()
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

    fn serves(&self, flow: &FlowKey) -> bool {
        self.device.serves(flow)
    }

    fn count(&self, set: &mut CounterSet) {
        self.device.count(set);
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

impl Contexts for AboveTls<'_> {
    /// TLS's own is taken.
    fn engine(&mut self, name: &str) -> Option<EngineInfo> {
        self.device.contexts()?.engine(name).filter(|engine| engine.name != TlsContexts::ENGINE)
    }

    /// What the context is to work on is in records: one layer higher than the protocol says, which knows of none below it.
    fn create(&mut self, mut new: NewContext) -> Result<Handle, (Refused, Spec)> {
        let when = match new.direction {
            Direction::Receive => self.opens,
            Direction::Transmit => self.seals,
        };
        if let Err(refused) = when.check() {
            return Err((refused, new.spec));
        }
        for key in &mut new.keys {
            let Key::Flow(_, layer) = key else { continue };
            let Some(above) = layer.above() else { return Err((Refused::Unsupported, new.spec)) };
            *layer = above;
        }
        match self.device.contexts() {
            Some(contexts) => contexts.create(new),
            None => Err((Refused::Unsupported, new.spec)),
        }
    }

    fn steer(&mut self, context: Handle, key: Key, to_it: bool) -> Result<(), Refused> {
        let key = match key {
            Key::Flow(flow, layer) => Key::Flow(flow, layer.above().ok_or(Refused::Unsupported)?),
            key @ Key::Engine(..) => key,
        };
        self.device.contexts().map_or(Err(Refused::Unsupported), |contexts| contexts.steer(context, key, to_it))
    }

    fn command(&mut self, context: Handle, command: Spec) -> Result<(), (Refused, Spec)> {
        // Without a device the context is gone.
        self.device.contexts().map_or(Ok(()), |contexts| contexts.command(context, command))
    }

    fn change(&mut self, engine: u8, change: Spec) -> Result<(), (Refused, Spec)> {
        match self.device.contexts() {
            Some(contexts) => contexts.change(engine, change),
            None => Err((Refused::Unsupported, change)),
        }
    }

    fn place(&mut self, context: Handle, buffer: u64, pieces: Vec<Piece>, stages: Option<Spec>) {
        // Without a device they are dropped, and so go home.
        if let Some(contexts) = self.device.contexts() {
            contexts.place(context, buffer, pieces, stages);
        }
    }

    fn release(&mut self, context: Handle, buffer: u64) {
        self.device.contexts().into_iter().for_each(|contexts| contexts.release(context, buffer));
    }

    fn answer(&mut self, context: Handle, header: Seq, number: Option<u64>) {
        self.device.contexts().into_iter().for_each(|contexts| contexts.answer(context, header, number));
    }

    fn remove(&mut self, context: Handle) {
        self.device.contexts().into_iter().for_each(|contexts| contexts.remove(context));
    }

    fn poll_news(&mut self) -> Option<ContextNews> {
        self.device.contexts()?.poll_news()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use offload_api::mock::{MockDevice, drive};

    fn calls(wrapped: Option<When>) -> Vec<String> {
        let mut device = MockDevice::default();
        match wrapped {
            Some(when) => drive(&mut AboveTls { device: &mut device, opens: when, seals: when }),
            None => drive(&mut device),
        }
        device.take_calls()
    }

    /// The TLS engine is taken, and contexts come one layer higher.
    #[test]
    fn every_face_of_the_device_is_there() {
        let mut expected = calls(None);
        let is_first = |call: &String| call == "engine(\"nvme-tcp\")";
        let tls_from = expected.iter().position(|call| call == "engine(\"tls\")").unwrap();
        let tls_to = expected.iter().position(is_first).unwrap();
        // It is asked for once for each direction, and not found.
        expected.splice(tls_from..tls_to, ["engine(\"tls\")", "engine(\"tls\")"].map(String::from));
        let expected: Vec<String> = expected.iter().map(|call| call.replace("Layer(0)", "Layer(1)")).collect();
        assert_eq!(calls(Some(When::Now)), expected);
        for when in [When::Later, When::Never] {
            assert!(!calls(Some(when)).iter().any(|call| call.starts_with("create(")), "{when:?}");
        }
    }
}
