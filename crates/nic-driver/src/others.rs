//! Contexts of engines that were added to the NIC: by number, in their own types.
//!
//! As with TLS, a context is created at once as far as the host is concerned, and given up after everything posted with it is
//! done.

use crate::Driver;
use crate::contexts::Shadow;
use nic_rings::packet::ControlCommand;
use offload_api::{ContextNews, Contexts, EngineInfo, Handle, NewContext, Refused, Spec};
use offload_base::Seq;

impl Contexts for Driver {
    fn engine(&mut self, name: &str) -> Option<EngineInfo> {
        self.engines[FIRST..].iter().find(|engine| engine.name == name).copied()
    }

    fn create(&mut self, new: NewContext) -> Result<Handle, (Refused, Spec)> {
        let NewContext { engine, direction, flow, keys, spec } = new;
        if usize::from(engine) < FIRST || usize::from(engine) >= self.engines.len() {
            return Err((Refused::Unsupported, spec));
        }
        if !self.has_room_for_control() {
            return Err((Refused::Busy, spec));
        }
        let Some(handle) = self.contexts.insert(engine, Shadow::new(flow, direction)) else {
            return Err((Refused::NoSpace, spec));
        };
        // There is room.
        let _given = self.command(ControlCommand::Create { handle, flow, direction, keys, spec });
        self.ring_doorbell();
        Ok(handle)
    }

    fn command(&mut self, context: Handle, command: Spec) -> Result<(), (Refused, Spec)> {
        if !self.has_room_for_control() {
            return Err((Refused::Busy, command));
        }
        if self.contexts.shadow(context).is_some() {
            // There is room.
            let _given = self.command(ControlCommand::Command { handle: context, command });
            self.ring_doorbell();
        }
        Ok(())
    }

    fn change(&mut self, engine: u8, change: Spec) -> Result<(), (Refused, Spec)> {
        if usize::from(engine) < FIRST || usize::from(engine) >= self.engines.len() {
            return Err((Refused::Unsupported, change));
        }
        if !self.has_room_for_control() {
            return Err((Refused::Busy, change));
        }
        // There is room.
        let _given = self.command(ControlCommand::Change { engine, change });
        self.ring_doorbell();
        Ok(())
    }

    fn answer(&mut self, context: Handle, header: Seq, number: Option<u64>) {
        self.answer_question(context, header, number);
    }

    fn remove(&mut self, context: Handle) {
        if usize::from(context.engine()) >= FIRST {
            self.remove_context(context);
        }
    }

    fn poll_news(&mut self) -> Option<ContextNews> {
        self.reap_sent();
        self.reap_control();
        self.news.pop_front()
    }
}

/// The first engine that is not every NIC's.
pub(super) const FIRST: usize = offload_api::engines::STANDARD as usize;
