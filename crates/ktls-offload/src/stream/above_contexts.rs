//! The contexts of a device, as lent to a protocol above TLS.

use offload_api::{
    ContextNews, ContextRefusal, Contexts, Direction, EngineInfo, Handle, Key, NewContext, Piece, Spec, TlsContexts,
};
use offload_base::Seq;

/// The contexts of a device without the TLS engine, which the stream below uses. A new context is made only while the device
/// opens, or seals, the records that carry its units; a context is given back at any time.
pub(super) struct AboveTls<'a> {
    pub(super) contexts: &'a mut dyn Contexts,
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
    fn check(self) -> Result<(), ContextRefusal> {
        match self {
            When::Now => Ok(()),
            When::Later => Err(ContextRefusal::Busy),
            When::Never => Err(ContextRefusal::Unsupported),
        }
    }
}

impl Contexts for AboveTls<'_> {
    /// TLS's own is taken.
    fn engine(&mut self, name: &str) -> Option<EngineInfo> {
        self.contexts.engine(name).filter(|engine| engine.name != TlsContexts::ENGINE)
    }

    /// What the context is to work on is in records: one layer higher than the protocol says, which knows of none below it.
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

    fn calls(wrapped: Option<When>) -> Vec<String> {
        let mut device = MockDevice::default();
        match wrapped {
            Some(when) => drive_contexts(&mut AboveTls { contexts: &mut device, opens: when, seals: when }),
            None => drive_contexts(&mut device),
        }
        device.take_calls()
    }

    /// The TLS engine is taken, and contexts come one layer higher.
    #[test]
    fn every_call_reaches_the_device() {
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
