//! The contexts of a device, as lent to a UDP socket.
//!
//! Invariant: all events during the loan are recorded in their order: contexts created or removed through the loan,
//! news, and resets. A context created after a reset is therefore not mistaken for one that the reset destroyed.

use offload_api::{
    ContextNews, ContextRefusal, Contexts, DeviceEvent, EngineInfo, Handle, Key, NetDevice, NewContext, Piece, Spec,
};
use offload_base::Seq;

/// A wrapper around the contexts of `device` that records each creation and removal.
pub(super) struct SocketContexts<'a> {
    device: &'a mut dyn NetDevice,
    noted: Vec<RecordedEvent>,
}

/// A recorded event.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum RecordedEvent {
    Event(DeviceEvent),
    News(ContextNews),
    Made(Handle),
    GivenUp(Handle),
}

impl RecordedEvent {
    fn is_about(&self, context: Handle) -> bool {
        match self {
            RecordedEvent::News(ContextNews::Ready(about) | ContextNews::Removed(about)) => *about == context,
            RecordedEvent::News(ContextNews::Event(event)) => event.context == context,
            RecordedEvent::Event(DeviceEvent::Ready { handle, .. } | DeviceEvent::Removed { handle, .. }) => {
                *handle == context
            }
            _ => false,
        }
    }
}

impl<'a> SocketContexts<'a> {
    pub(super) fn new(device: &'a mut dyn NetDevice) -> SocketContexts<'a> {
        SocketContexts { device, noted: Vec::new() }
    }

    pub(super) fn into_noted(self) -> Vec<RecordedEvent> {
        self.noted
    }

    /// Records the events that the device has reported so far.
    fn note_told(&mut self) {
        let Self { device, noted } = self;
        noted.extend(core::iter::from_fn(|| device.contexts()?.poll_news()).map(RecordedEvent::News));
        noted.extend(core::iter::from_fn(|| device.poll_event()).map(RecordedEvent::Event));
    }
}

/// Exists only while the device has contexts.
impl Contexts for SocketContexts<'_> {
    fn engine(&mut self, name: &str) -> Option<EngineInfo> {
        self.device.contexts()?.engine(name)
    }

    fn create(&mut self, new: NewContext) -> Result<Handle, (ContextRefusal, Spec)> {
        let Some(contexts) = self.device.contexts() else { return Err((ContextRefusal::Unsupported, new.spec)) };
        let made = contexts.create(new);
        // A reset that the driver has reported just now happened before the creation. News about the new context came
        // after it.
        let told_from = self.noted.len();
        self.note_told();
        if let Ok(context) = made {
            let told = self.noted.split_off(told_from);
            let (after, before): (Vec<_>, Vec<_>) = told.into_iter().partition(|noted| noted.is_about(context));
            self.noted.extend(before.into_iter().chain([RecordedEvent::Made(context)]).chain(after));
        }
        made
    }

    fn steer(&mut self, context: Handle, key: Key, to_it: bool) -> Result<(), ContextRefusal> {
        self.device.contexts().map_or(Err(ContextRefusal::Unsupported), |contexts| contexts.steer(context, key, to_it))
    }

    fn command(&mut self, context: Handle, command: Spec) -> Result<(), (ContextRefusal, Spec)> {
        match self.device.contexts() {
            Some(contexts) => contexts.command(context, command),
            None => Err((ContextRefusal::Unsupported, command)),
        }
    }

    fn change(&mut self, engine: u8, change: Spec) -> Result<(), (ContextRefusal, Spec)> {
        match self.device.contexts() {
            Some(contexts) => contexts.change(engine, change),
            None => Err((ContextRefusal::Unsupported, change)),
        }
    }

    fn place(&mut self, context: Handle, buffer: u64, pieces: Vec<Piece>, stages: Option<Spec>) {
        // Without a device, the dropped pieces return to their owner by themselves.
        if let Some(contexts) = self.device.contexts() {
            contexts.place(context, buffer, pieces, stages);
        }
    }

    fn release(&mut self, context: Handle, buffer: u64) {
        if let Some(contexts) = self.device.contexts() {
            contexts.release(context, buffer);
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
            self.noted.push(RecordedEvent::GivenUp(context));
        }
    }

    /// Always `None`: the stack takes the news and passes them to the sockets.
    fn poll_news(&mut self) -> Option<ContextNews> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use offload_api::mock::{MockDevice, drive_contexts};
    use offload_api::{Direction, engines};

    const OLD: Handle = Handle { index: Handle::indices(engines::TLS, 1).start, generation: 0 };
    const NEW: Handle = Handle { generation: 1, ..OLD };

    #[test]
    fn new_context_is_recorded_between_reset_and_its_news() {
        let mut device = MockDevice::default();
        device.tells(DeviceEvent::Reset);
        [OLD, NEW].into_iter().for_each(|context| device.tells_news(ContextNews::Ready(context)));
        let mut of_socket = SocketContexts::new(&mut device);
        let new = || NewContext {
            engine: engines::TLS,
            direction: Direction::Receive,
            flow: None,
            keys: Vec::new(),
            spec: Box::new(()),
        };
        assert_eq!(of_socket.create(new()).map_err(|(refused, _)| refused), Ok(NEW));
        of_socket.remove(NEW);
        assert_eq!(of_socket.poll_news(), None, "the wrapper reports no news itself");
        let expected = [
            RecordedEvent::News(ContextNews::Ready(OLD)),
            RecordedEvent::Event(DeviceEvent::Reset),
            RecordedEvent::Made(NEW),
            RecordedEvent::News(ContextNews::Ready(NEW)),
            RecordedEvent::GivenUp(NEW),
        ];
        assert_eq!(of_socket.into_noted(), expected);
    }

    /// Event polls are left out because the wrapper polls more often than the caller.
    #[test]
    fn wrapped_contexts_pass_every_call_to_the_device() {
        let calls = |wrapped: bool| {
            let mut device = MockDevice::default();
            match wrapped {
                true => drive_contexts(&mut SocketContexts::new(&mut device)),
                false => drive_contexts(&mut device),
            }
            let mut calls = device.take_calls();
            calls.retain(|call| !matches!(&**call, "poll_event()" | "poll_news()"));
            calls
        };
        assert_eq!(calls(true), calls(false));
    }
}
