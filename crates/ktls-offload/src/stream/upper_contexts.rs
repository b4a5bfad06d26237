//! The contexts of a device, as lent to a protocol above TLS.

use offload_api::{
    ContextNews, ContextRefusal, Contexts, Direction, EngineInfo, Handle, Key, NewContext, Piece, Spec, TlsContexts,
};
use offload_base::Seq;

/// The contexts of a device, without the TLS engine that this stream uses. A protocol above TLS can create a context
/// only while the device opens or seals the records around its units. Removing a context is always possible.
pub(super) struct UpperContexts<'a> {
    pub(super) contexts: &'a mut dyn Contexts,
    pub(super) opens: ContextAvailability,
    pub(super) seals: ContextAvailability,
}

/// Whether the device opens or seals records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ContextAvailability {
    Now,
    /// The direction waits for a context, or the device is installing one.
    Later,
    Never,
}

impl ContextAvailability {
    pub(super) fn from_flags(now: bool, later: bool) -> ContextAvailability {
        match (now, later) {
            (true, _) => ContextAvailability::Now,
            (false, true) => ContextAvailability::Later,
            (false, false) => ContextAvailability::Never,
        }
    }

    /// Checks that a context of a layer above is possible now.
    ///
    /// # Errors
    /// `Busy` if such a context is possible only later, `Unsupported` if never.
    fn check(self) -> Result<(), ContextRefusal> {
        match self {
            ContextAvailability::Now => Ok(()),
            ContextAvailability::Later => Err(ContextRefusal::Busy),
            ContextAvailability::Never => Err(ContextRefusal::Unsupported),
        }
    }
}

impl Contexts for UpperContexts<'_> {
    /// Returns information about an engine. The TLS engine is hidden, because this stream uses it.
    fn engine(&mut self, name: &str) -> Option<EngineInfo> {
        self.contexts.engine(name).filter(|engine| engine.name != TlsContexts::ENGINE)
    }

    /// Creates a context one layer higher than requested, because the protocol above does not know about TLS below.
    fn create(&mut self, mut new: NewContext) -> Result<Handle, (ContextRefusal, Spec)> {
        let when = match new.direction {
            Direction::Receive => self.opens,
            Direction::Transmit => self.seals,
        };
        if let Err(refused) = when.check() {
            return Err((refused, new.spec));
        }
        for key in &mut new.keys {
            let Key::Flow(_, layer) = key else { continue };
            let Some(above) = layer.above() else { return Err((ContextRefusal::Unsupported, new.spec)) };
            *layer = above;
        }
        self.contexts.create(new)
    }

    fn steer(&mut self, context: Handle, key: Key, to_it: bool) -> Result<(), ContextRefusal> {
        let key = match key {
            Key::Flow(flow, layer) => Key::Flow(flow, layer.above().ok_or(ContextRefusal::Unsupported)?),
            key @ Key::Engine(..) => key,
        };
        self.contexts.steer(context, key, to_it)
    }

    fn command(&mut self, context: Handle, command: Spec) -> Result<(), (ContextRefusal, Spec)> {
        self.contexts.command(context, command)
    }

    fn change(&mut self, engine: u8, change: Spec) -> Result<(), (ContextRefusal, Spec)> {
        self.contexts.change(engine, change)
    }

    fn place(&mut self, context: Handle, buffer: u64, pieces: Vec<Piece>, stages: Option<Spec>) {
        self.contexts.place(context, buffer, pieces, stages);
    }

    fn release(&mut self, context: Handle, buffer: u64) {
        self.contexts.release(context, buffer);
    }

    fn answer(&mut self, context: Handle, header: Seq, number: Option<u64>) {
        self.contexts.answer(context, header, number);
    }

    fn remove(&mut self, context: Handle) {
        self.contexts.remove(context);
    }

    fn poll_news(&mut self) -> Option<ContextNews> {
        self.contexts.poll_news()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use offload_api::mock::{MockDevice, drive_contexts};

    fn calls(wrapped: Option<ContextAvailability>) -> Vec<String> {
        let mut device = MockDevice::default();
        match wrapped {
            Some(when) => drive_contexts(&mut UpperContexts { contexts: &mut device, opens: when, seals: when }),
            None => drive_contexts(&mut device),
        }
        device.take_calls()
    }

    /// Checks that the TLS engine is hidden and that contexts are raised by one layer.
    #[test]
    fn every_call_reaches_the_device() {
        let mut expected = calls(None);
        let is_first = |call: &String| call == "engine(\"nvme-tcp\")";
        let tls_from = expected.iter().position(|call| call == "engine(\"tls\")").unwrap();
        let tls_to = expected.iter().position(is_first).unwrap();
        // Each direction looks up the TLS engine once, without success.
        expected.splice(tls_from..tls_to, ["engine(\"tls\")", "engine(\"tls\")"].map(String::from));
        let expected: Vec<String> = expected.iter().map(|call| call.replace("Layer(0)", "Layer(1)")).collect();
        assert_eq!(calls(Some(ContextAvailability::Now)), expected);
        for when in [ContextAvailability::Later, ContextAvailability::Never] {
            assert!(!calls(Some(when)).iter().any(|call| call.starts_with("create(")), "{when:?}");
        }
    }
}
