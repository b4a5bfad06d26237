//! The interface of protocols to contexts of any engine.

use crate::Driver;
use crate::contexts::Shadow;
use crate::control::WaitingCommand;
use crate::ordered::is_ordered;
use nic_rings::EngineDescription;
use nic_rings::packet::{ControlCommand, MAX_PIECES};
use offload_api::{ContextNews, ContextRefusal, Contexts, Direction, EngineInfo, Handle, Key, NewContext, Piece, Spec};
use offload_base::Seq;

impl Contexts for Driver {
    fn engine(&mut self, name: &str) -> Option<EngineInfo> {
        self.engines
            .iter()
            .find(|engine| engine.info.name == name && has_contexts_here(engine))
            .map(|engine| engine.info.clone())
    }

    fn create(&mut self, new: NewContext) -> Result<Handle, (ContextRefusal, Spec)> {
        let (engine, direction) = (new.engine, new.direction);
        let created = self.create_context(new);
        let counts = self.counts.for_engine(engine).direction(direction);
        counts.created += u64::from(created.is_ok());
        counts.refused += u64::from(created.is_err());
        created
    }

    fn steer(&mut self, context: Handle, key: Key, to_it: bool) -> Result<(), ContextRefusal> {
        if is_foreign(&key, context.engine()) {
            return Err(ContextRefusal::Unsupported);
        }
        if !self.has_room_for_control() {
            return Err(ContextRefusal::Busy);
        }
        if self.contexts.shadow(context).is_some() {
            // The room was checked above.
            let _ = self.command(ControlCommand::Steer { handle: context, key, to_it });
            self.ring_doorbell();
        }
        Ok(())
    }

    fn command(&mut self, context: Handle, command: Spec) -> Result<(), (ContextRefusal, Spec)> {
        if !self.has_room_for_control() {
            return Err((ContextRefusal::Busy, command));
        }
        if self.contexts.shadow(context).is_some() {
            // The room was checked above.
            let _ = self.command(ControlCommand::Command { handle: context, command });
            self.ring_doorbell();
        }
        Ok(())
    }

    fn change(&mut self, engine: u8, change: Spec) -> Result<(), (ContextRefusal, Spec)> {
        if !self.description(engine).is_some_and(has_contexts_here) {
            return Err((ContextRefusal::Unsupported, change));
        }
        if !self.has_room_for_control() {
            return Err((ContextRefusal::Busy, change));
        }
        // The room was checked above.
        let _ = self.command(ControlCommand::Change { engine, change });
        self.ring_doorbell();
        Ok(())
    }

    fn place(&mut self, context: Handle, buffer: u64, pieces: Vec<Piece>, stages: Option<Spec>) {
        // A queued command might reach the device after the peer's data. Such a buffer is refused instead.
        let taken = self.contexts.live(context).is_some()
            && pieces.len() <= MAX_PIECES
            && !self.control.is_waiting()
            // The stages need one more descriptor.
            && self.has_room_for_commands(1 + usize::from(stages.is_some()))
            && self.command(ControlCommand::Place { handle: context, buffer, pieces, stages }).is_ok();
        let counts = self.counts.for_context(context);
        counts.placed += u64::from(taken);
        counts.not_placed += u64::from(!taken);
        self.ring_doorbell();
    }

    fn release(&mut self, context: Handle, buffer: u64) {
        if self.contexts.live(context).is_some() {
            self.counts.for_context(context).released += 1;
            self.give_or_wait(WaitingCommand::Unplace(context, buffer));
        }
    }

    fn answer(&mut self, context: Handle, header: Seq, number: Option<u64>) {
        match self.contexts.shadow_mut(context).filter(|shadow| !shadow.leaving) {
            Some(shadow) => {
                shadow.answer = Some((header, number));
                self.give_or_wait(WaitingCommand::Answer(context));
            }
            None => self.counts.for_context(context).skipped += 1,
        }
    }

    fn remove(&mut self, context: Handle) {
        let Some(direction) = self.contexts.live(context).map(|shadow| shadow.direction) else { return };
        self.counts.for_context(context).direction(direction).removed += 1;
        match self.contexts.leave(context) {
            Some(true) => self.give_or_wait(WaitingCommand::GiveUp(context)),
            // Descriptors are in flight. The last completion will remove the context.
            Some(false) => {
                self.wake_when_sent();
                // The last completion may have arrived before the wake-up was requested.
                self.reap_sent();
            }
            None => {}
        }
    }

    fn poll_news(&mut self) -> Option<ContextNews> {
        self.reap_sent();
        self.reap_control();
        self.news.pop_front()
    }
}

impl Driver {
    fn create_context(&mut self, new: NewContext) -> Result<Handle, (ContextRefusal, Spec)> {
        let NewContext { engine, direction, flow, keys, spec } = new;
        // A key of another engine would divert its packets to this context.
        let has_foreign = keys.iter().any(|key| is_foreign(key, engine));
        if !self.description(engine).is_some_and(has_contexts_here) || has_foreign {
            return Err((ContextRefusal::Unsupported, spec));
        }
        // A parked context can become any transmit context of a flow, and the device does not report the reuse.
        let reused = flow.filter(|_| direction == Direction::Transmit && keys.is_empty());
        let reused = reused.filter(|_| self.contexts.pooled(engine) > 0);
        if !(self.has_room_for_control() || reused.is_some() && self.rings.control.room() > 0) {
            return Err((ContextRefusal::Busy, spec));
        }
        let shadow = Shadow::new(flow, direction);
        let Some((handle, from_pool)) = self.contexts.occupy(engine, shadow, reused.is_some()) else {
            return Err((ContextRefusal::NoSpace, spec));
        };
        // The room was checked above.
        let _ = match reused {
            Some(flow) => self.command_unreported(ControlCommand::Reuse { handle, flow, spec }),
            None => {
                let counts = self.counts.for_context(handle);
                counts.pool_alloc += u64::from(direction == Direction::Transmit);
                counts.pool_free += u64::from(from_pool);
                self.command(ControlCommand::Create { handle, flow, direction, keys, spec })
            }
        };
        self.ring_doorbell();
        Ok(handle)
    }
}

/// Tests whether a key belongs to another engine, to whose contexts it leads.
fn is_foreign(key: &Key, engine: u8) -> bool {
    matches!(key, Key::Engine(of, _) if *of != engine)
}

/// Tests whether an engine's contexts are accessible here. Contexts on the send ring have an interface of their own.
fn has_contexts_here(engine: &EngineDescription) -> bool {
    !is_ordered(engine) && engine.info.contexts > 0
}
