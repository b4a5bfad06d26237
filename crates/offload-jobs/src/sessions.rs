//! The sessions of a queue on the CPU, in place of a device's engine and contexts.

use crate::{TRANSFORM, TransformCapabilities};
use offload_api::{
    Capabilities, ContextNews, ContextRefusal, Contexts, EngineInfo, Handle, NewContext, Piece, Slots, Spec,
};
use offload_transforms::{Session, Transform};
use std::collections::VecDeque;
use std::sync::Arc;

/// All sessions of a queue.
#[derive(Debug)]
pub(crate) struct CpuSessions {
    slots: Slots<Arc<Session>>,
    most: u32,
    news: VecDeque<ContextNews>,
}

impl CpuSessions {
    pub(crate) fn new(most: u32) -> CpuSessions {
        CpuSessions { slots: Slots::new(Handle::indices(0, most)), most, news: VecDeque::new() }
    }

    /// Returns an existing session.
    pub(crate) fn get(&self, handle: Handle) -> Option<&Arc<Session>> {
        self.slots.get(handle)
    }
}

impl Contexts for CpuSessions {
    fn engine(&mut self, name: &str) -> Option<EngineInfo> {
        let capabilities = Capabilities::new(TransformCapabilities::ALL);
        (name == TRANSFORM).then(|| EngineInfo { capabilities, ..EngineInfo::new(0, TRANSFORM, self.most) })
    }

    /// Creates a session. Refuses an invalid transform at once, because there is no ring in between.
    fn create(&mut self, new: NewContext) -> Result<Handle, (ContextRefusal, Spec)> {
        let session = match new.spec.downcast_ref::<Transform>() {
            Some(transform) if new.engine == 0 => Session::new(transform),
            _ => return Err((ContextRefusal::Unsupported, new.spec)),
        };
        let Ok(session) = session else { return Err((ContextRefusal::Unsupported, new.spec)) };
        let Ok(handle) = self.slots.insert(Arc::new(session)) else { return Err((ContextRefusal::NoSpace, new.spec)) };
        // Reported like a device's answer, so that callers need not distinguish the two.
        self.news.push_back(ContextNews::Ready(handle));
        Ok(handle)
    }

    /// Jobs place no buffers, so the pieces are dropped and return to their owner at once.
    fn place(&mut self, _: Handle, _: u64, _: Vec<Piece>, _: Option<Spec>) {}

    fn remove(&mut self, context: Handle) {
        if self.slots.remove(context).is_some() {
            self.news.push_back(ContextNews::Removed(context));
        }
    }

    fn poll_news(&mut self) -> Option<ContextNews> {
        self.news.pop_front()
    }
}
