//! The device's stream contexts, for flows that bypass IPsec in both directions. For other flows contexts are refused,
//! because this layer wraps their packets.

use super::queues::SecureQueue;
use super::{ONLY, SecureDevice, packet_of};
use offload_api::{
    Action, ContextNews, ContextRefusal, Contexts, Direction, EngineInfo, FlowKey, Handle, Key, NewContext, Piece,
    Spec, engines,
};
use offload_base::Seq;

impl SecureDevice {
    fn passes(&mut self, flow: &FlowKey) -> bool {
        let is_plain = |action| matches!(action, Some(Action::Bypass));
        is_plain(self.decide(&packet_of(flow)).action)
            && is_plain(self.policies.action(Direction::Receive, &packet_of(&flow.reversed())))
    }

    fn contexts_at(&mut self, queue: usize) -> Option<&mut dyn Contexts> {
        self.queues[queue].inner.contexts()
    }

    fn engine_at(&mut self, queue: usize, name: &str) -> Option<EngineInfo> {
        // This layer alone uses the device's ESP engine.
        self.contexts_at(queue)?.engine(name).filter(|engine| engine.number != engines::ESP)
    }

    fn create_at(&mut self, queue: usize, new: NewContext) -> Result<Handle, (ContextRefusal, Spec)> {
        if !new.flow.is_some_and(|flow| self.passes(&flow)) {
            return Err((ContextRefusal::Path, new.spec));
        }
        match self.contexts_at(queue) {
            Some(contexts) => contexts.create(new),
            None => Err((ContextRefusal::Unsupported, new.spec)),
        }
    }

    fn command_at(&mut self, queue: usize, context: Handle, command: Spec) -> Result<(), (ContextRefusal, Spec)> {
        match self.contexts_at(queue) {
            Some(contexts) => contexts.command(context, command),
            None => Err((ContextRefusal::Unsupported, command)),
        }
    }

    fn change_at(&mut self, queue: usize, engine: u8, change: Spec) -> Result<(), (ContextRefusal, Spec)> {
        match self.contexts_at(queue) {
            Some(contexts) if engine != engines::ESP => contexts.change(engine, change),
            _ => Err((ContextRefusal::Unsupported, change)),
        }
    }
}

/// Implements `Contexts` for a single-queue layer and for one queue of a multi-queue layer.
macro_rules! contexts_of {
    ($face:ty, |$this:ident| $layer:expr, $queue:expr) => {
        impl Contexts for $face {
            fn engine(&mut self, name: &str) -> Option<EngineInfo> {
                let $this = self;
                $layer.engine_at($queue, name)
            }

            fn create(&mut self, new: NewContext) -> Result<Handle, (ContextRefusal, Spec)> {
                let $this = self;
                $layer.create_at($queue, new)
            }

            fn steer(&mut self, context: Handle, key: Key, to_it: bool) -> Result<(), ContextRefusal> {
                let $this = self;
                $layer
                    .contexts_at($queue)
                    .map_or(Err(ContextRefusal::Unsupported), |face| face.steer(context, key, to_it))
            }

            fn command(&mut self, context: Handle, command: Spec) -> Result<(), (ContextRefusal, Spec)> {
                let $this = self;
                $layer.command_at($queue, context, command)
            }

            fn change(&mut self, engine: u8, change: Spec) -> Result<(), (ContextRefusal, Spec)> {
                let $this = self;
                $layer.change_at($queue, engine, change)
            }

            fn place(&mut self, context: Handle, buffer: u64, pieces: Vec<Piece>, stages: Option<Spec>) {
                let $this = self;
                if let Some(contexts) = $layer.contexts_at($queue) {
                    contexts.place(context, buffer, pieces, stages);
                }
            }

            fn release(&mut self, context: Handle, buffer: u64) {
                let $this = self;
                if let Some(contexts) = $layer.contexts_at($queue) {
                    contexts.release(context, buffer);
                }
            }

            fn answer(&mut self, context: Handle, header: Seq, number: Option<u64>) {
                let $this = self;
                if let Some(contexts) = $layer.contexts_at($queue) {
                    contexts.answer(context, header, number);
                }
            }

            fn remove(&mut self, context: Handle) {
                let $this = self;
                if let Some(contexts) = $layer.contexts_at($queue) {
                    contexts.remove(context);
                }
            }

            fn poll_news(&mut self) -> Option<ContextNews> {
                let $this = self;
                $layer.contexts_at($queue)?.poll_news()
            }
        }
    };
}

contexts_of!(SecureDevice, |layer| layer, ONLY);
contexts_of!(SecureQueue, |face| face.layer(), face.queue);
