//! Sessions on the CPU: the engine that a device would have, and its contexts.

use crate::{TRANSFORM, TransformCapabilities};
use offload_api::{Capabilities, ContextNews, Contexts, EngineInfo, Handle, NewContext, Piece, ContextRefusal, Slots, Spec};
use offload_transforms::{Session, Transform};
use std::collections::VecDeque;
use std::sync::Arc;

/// All sessions of a queue.
#[derive(Debug)]
pub(crate) struct Sessions {
    slots: Slots<Arc<Session>>,
    most: u32,
    news: VecDeque<ContextNews>,
}

impl Sessions {
    pub(crate) fn new(most: u32) -> Sessions {
        Sessions { slots: Slots::new(Handle::indices(0, most)), most, news: VecDeque::new() }
    }

    /// A session that there is.
    pub(crate) fn get(&self, handle: Handle) -> Option<&Arc<Session>> {
        self.slots.get(handle)
    }
}

impl Contexts for Sessions {
    fn engine(&mut self, name: &str) -> Option<EngineInfo> {
        let capabilities = Capabilities::new(TransformCapabilities::ALL);
        (name == TRANSFORM).then(|| EngineInfo { capabilities, ..EngineInfo::new(0, TRANSFORM, self.most) })
    }

    /// A transform that no session can be made of is refused at once: the CPU has no ring on the way.
    fn create(&mut self, new: NewContext) -> Result<Handle, (ContextRefusal, Spec)> {
        let session = match new.spec.downcast_ref::<Transform>() {
            Some(transform) if new.engine == 0 => Session::new(transform),
            _ => return Err((ContextRefusal::Unsupported, new.spec)),
        };
        let Ok(session) = session else { return Err((ContextRefusal::Unsupported, new.spec)) };
        let Ok(handle) = self.slots.insert(Arc::new(session)) else { return Err((ContextRefusal::NoSpace, new.spec)) };
        self.news.push_back(ContextNews::Ready(handle));
        Ok(handle)
    }

    /// A job has no buffers to place: the pieces go home at once.
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
