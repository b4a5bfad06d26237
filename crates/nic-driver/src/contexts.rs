//! The driver's view of contexts of any engine: the existing contexts, and the device's position in the stream of each.
//!
//! For the host, a context exists at once, because commands and packets reach the device in order. The context is
//! removed only after everything posted with it is done. Its place is reused, with the next generation, only after the
//! device has confirmed the removal. A transmit context may instead go to a pool: the device erases the key and keeps
//! the place, and the next flow's key is put there, in the order of the control ring, without waiting for a
//! confirmation. The contexts of an engine with commands on the send ring are in `ordered`.

use crate::ordered::is_ordered;
use crate::recovery::TransmitPosition;
use nic_rings::EngineDescription;
use offload_api::{Direction, FlowKey, Handle, Slots};
use offload_base::Seq;

/// All contexts, by engine and place.
#[derive(Debug)]
pub(super) struct ContextTable {
    of_engines: Vec<EngineContexts>,
    /// Number of contexts that will be removed when their last descriptor is done.
    leaving: usize,
}

/// The contexts of one engine.
#[derive(Debug)]
struct EngineContexts {
    slots: Slots<Shadow>,
    /// Parked transmit contexts: places where the device keeps a context without a key.
    pool: Vec<Handle>,
}

/// The driver's record of a context.
#[derive(Debug)]
pub(super) struct Shadow {
    pub(super) flow: Option<FlowKey>,
    pub(super) direction: Direction,
    pub(super) leaving: bool,
    /// Last answer of software: the position of the question, and the number of the unit that starts there, if any.
    pub(super) answer: Option<(Seq, Option<u64>)>,
    sending: TransmitPosition,
    /// Number of posted descriptors that use the context and are not done.
    under_way: u32,
}

impl Shadow {
    pub(super) fn new(flow: Option<FlowKey>, direction: Direction) -> Shadow {
        Shadow { flow, direction, leaving: false, answer: None, sending: TransmitPosition::default(), under_way: 0 }
    }

    fn can_transmit(&self) -> bool {
        self.direction == Direction::Transmit && !self.leaving
    }
}

impl ContextTable {
    pub(super) fn new(engines: &[EngineDescription]) -> ContextTable {
        let of_engine = |engine: &EngineDescription| {
            // The places of such an engine are managed by `OrderedContexts`.
            let places = if is_ordered(engine) { 0 } else { engine.info.contexts };
            EngineContexts { slots: Slots::new(Handle::indices(engine.info.number, places)), pool: Vec::new() }
        };
        ContextTable { of_engines: engines.iter().map(of_engine).collect(), leaving: 0 }
    }

    /// Tests whether packets may use this context.
    pub(super) fn can_transmit(&self, handle: Handle) -> bool {
        self.shadow(handle).is_some_and(Shadow::can_transmit)
    }

    /// Returns the sending state of a context that packets may use.
    pub(super) fn sending(&self, handle: Handle) -> Option<&TransmitPosition> {
        let shadow = self.shadow(handle).filter(|shadow| shadow.can_transmit())?;
        Some(&shadow.sending)
    }

    pub(super) fn sending_mut(&mut self, handle: Handle) -> Option<&mut TransmitPosition> {
        let shadow = self.shadow_mut(handle).filter(|shadow| shadow.can_transmit())?;
        Some(&mut shadow.sending)
    }

    /// Notes a posted descriptor that uses the context.
    pub(super) fn note_posted(&mut self, handle: Handle) {
        if let Some(shadow) = self.shadow_mut(handle) {
            shadow.under_way += 1;
        }
    }

    /// Notes a completed descriptor. Returns whether the context can be removed now.
    #[must_use]
    pub(super) fn note_done(&mut self, handle: Handle) -> bool {
        let Some(shadow) = self.shadow_mut(handle) else { return false };
        shadow.under_way -= 1;
        // The device may still refer to a context while a descriptor of it is in flight.
        let unused = shadow.leaving && shadow.under_way == 0;
        self.leaving -= usize::from(unused);
        unused
    }

    /// Stops new uses of the context. Returns whether it can be removed now, or `None` if a removal was requested
    /// before.
    pub(super) fn leave(&mut self, handle: Handle) -> Option<bool> {
        let shadow = self.shadow_mut(handle).filter(|shadow| !shadow.leaving)?;
        shadow.leaving = true;
        let unused = shadow.under_way == 0;
        self.leaving += usize::from(!unused);
        Some(unused)
    }

    pub(super) fn waits_for_sends(&self) -> bool {
        self.leaving > 0
    }

    /// Returns a context that is not being removed.
    pub(super) fn live(&self, handle: Handle) -> Option<&Shadow> {
        self.shadow(handle).filter(|shadow| !shadow.leaving)
    }

    pub(super) fn shadow(&self, handle: Handle) -> Option<&Shadow> {
        self.of_engines.get(usize::from(handle.engine()))?.slots.get(handle)
    }

    pub(super) fn shadow_mut(&mut self, handle: Handle) -> Option<&mut Shadow> {
        self.engine_mut(handle.engine())?.slots.get_mut(handle)
    }

    /// Returns the number of parked contexts of an engine.
    pub(super) fn pooled(&self, engine: u8) -> usize {
        self.of_engines.get(usize::from(engine)).map_or(0, |of_engine| of_engine.pool.len())
    }

    /// Occupies a place of an engine: a parked one if `from_pool` is set or no other is free. Returns whether the place
    /// was parked.
    pub(super) fn occupy(&mut self, engine: u8, shadow: Shadow, from_pool: bool) -> Option<(Handle, bool)> {
        let EngineContexts { slots, pool } = self.engine_mut(engine)?;
        let shadow = if from_pool && !pool.is_empty() {
            shadow
        } else {
            // Without `from_pool`, a parked place is the last resort: it serves a flow's transmit context without a
            // confirmation.
            match slots.insert(shadow) {
                Ok(handle) => return Some((handle, false)),
                Err(shadow) => shadow,
            }
        };
        let handle = pool.pop()?;
        slots.fill(handle, shadow).ok().map(|()| (handle, true))
    }

    /// Frees a place, which will be reused with the next generation.
    pub(super) fn vacate(&mut self, handle: Handle) -> Option<Shadow> {
        let shadow = self.engine_mut(handle.engine())?.slots.remove(handle)?;
        self.leaving -= usize::from(shadow.leaving && shadow.under_way > 0);
        Some(shadow)
    }

    /// Frees a place in which the device keeps a parked context.
    pub(super) fn park(&mut self, handle: Handle) -> Option<Shadow> {
        let of_engine = self.engine_mut(handle.engine())?;
        let (shadow, next) = of_engine.slots.reserve(handle)?;
        of_engine.pool.push(next);
        self.leaving -= usize::from(shadow.leaving && shadow.under_way > 0);
        Some(shadow)
    }

    /// Frees all places. Only a reset takes time proportional to the number of contexts.
    pub(super) fn vacate_all(&mut self) {
        for EngineContexts { slots, pool } in &mut self.of_engines {
            let all: Vec<Handle> = slots.handles().collect();
            for handle in all {
                slots.remove(handle);
            }
            for parked in pool.drain(..) {
                slots.release(parked);
            }
        }
        self.leaving = 0;
    }

    fn engine_mut(&mut self, engine: u8) -> Option<&mut EngineContexts> {
        self.of_engines.get_mut(usize::from(engine))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use offload_api::EngineInfo;

    const ENGINE: u8 = 0;

    fn contexts() -> ContextTable {
        ContextTable::new(&[EngineDescription::new(EngineInfo::new(ENGINE, "of this test", 2))])
    }

    fn occupy(contexts: &mut ContextTable, from_pool: bool) -> Option<(Handle, bool)> {
        contexts.occupy(ENGINE, Shadow::new(None, Direction::Transmit), from_pool)
    }

    #[test]
    fn parked_place_is_reused_on_request_or_when_full() {
        let mut contexts = contexts();
        let (first, from_pool) = occupy(&mut contexts, true).unwrap();
        assert!(!from_pool, "nothing is parked yet");
        contexts.park(first).unwrap();
        assert_eq!(contexts.pooled(ENGINE), 1);
        let (second, from_pool) = occupy(&mut contexts, false).unwrap();
        assert!(!from_pool && second.index != first.index);
        let (third, from_pool) = occupy(&mut contexts, false).unwrap();
        assert!(from_pool && third == Handle { generation: first.generation + 1, ..first });
        assert!(occupy(&mut contexts, true).is_none(), "there are two places");
        contexts.vacate(second).unwrap();
        contexts.park(third).unwrap();
        let (fourth, from_pool) = occupy(&mut contexts, true).unwrap();
        assert!(from_pool && fourth.index == first.index, "though the other is free");
    }

    #[test]
    fn leaving_context_waits_for_its_last_descriptor() {
        // Each way in which a leaving context can end must also end the wait for it.
        for way in ["done", "vacated", "parked", "reset"] {
            let mut contexts = contexts();
            let (handle, _) = occupy(&mut contexts, false).unwrap();
            contexts.note_posted(handle);
            contexts.note_posted(handle);
            assert!(!contexts.note_done(handle) && !contexts.waits_for_sends());
            assert_eq!(contexts.leave(handle), Some(false));
            assert_eq!(contexts.leave(handle), None, "that was said");
            assert!(contexts.waits_for_sends());
            match way {
                "done" => assert!(contexts.note_done(handle)),
                "vacated" => assert!(contexts.vacate(handle).is_some()),
                "parked" => assert!(contexts.park(handle).is_some()),
                _ => contexts.vacate_all(),
            }
            assert!(!contexts.waits_for_sends(), "{way}");
            contexts.vacate(handle);
            let (next, _) = occupy(&mut contexts, false).unwrap();
            assert_eq!(contexts.leave(next), Some(true), "nothing of it is under way");
            assert!(!contexts.waits_for_sends(), "{way}");
            if way == "parked" { contexts.park(next) } else { contexts.vacate(next) }.unwrap();
            assert!(!contexts.waits_for_sends(), "{way}");
        }
    }
}
