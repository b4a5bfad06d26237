//! Contexts of bearers in a NIC: one per direction, requested when the bearer is opened, and again after a refusal or
//! loss.

use super::core::{BearerState, NodeCore};
use crate::device::{PACKETS, PdcpContext, tunnel_key};
use offload_api::{
    ContextBackoff, ContextNews, ContextRefusal, DatagramSocket, Direction, Handle, Key, NewContext, SocketEvent,
};
use std::collections::HashMap;

/// The contexts of one bearer.
pub(super) struct BearerContexts {
    transmit: BearerContextSlot,
    receive: BearerContextSlot,
    /// Earlier receive contexts with the same keys, because packets that they opened may be read late.
    had: Vec<Handle>,
}

#[derive(Default)]
struct BearerContextSlot {
    wanted: bool,
    context: Option<Handle>,
    again: ContextBackoff,
}

impl BearerContextSlot {
    fn new(wanted: bool) -> BearerContextSlot {
        let mut place = BearerContextSlot { wanted, ..BearerContextSlot::default() };
        place.again.begin();
        place
    }

    fn is_due(&self) -> bool {
        self.wanted && self.context.is_none() && self.again.is_due()
    }

    fn note_units(&mut self, units: usize) -> bool {
        if self.wanted && self.context.is_none() {
            (0..units).for_each(|_| self.again.note_unit());
        }
        self.is_due()
    }
}

impl BearerContexts {
    pub(super) fn new(wanted: bool) -> BearerContexts {
        BearerContexts {
            transmit: BearerContextSlot::new(wanted),
            receive: BearerContextSlot::new(wanted),
            had: Vec::new(),
        }
    }

    /// Removes and returns all contexts, which the caller must give back.
    pub(super) fn remove_all(&mut self) -> Vec<Handle> {
        let wanted = self.transmit.wanted;
        let BearerContexts { transmit, receive, .. } = ::core::mem::replace(self, BearerContexts::new(wanted));
        transmit.context.into_iter().chain(receive.context).collect()
    }

    /// Returns the context that protects PDUs.
    pub(super) fn sealer(&self) -> Option<Handle> {
        self.transmit.context
    }

    /// Tests whether a context has the current keys.
    pub(super) fn has_current_keys(&self, context: Handle) -> bool {
        self.receive.context == Some(context) || self.had.contains(&context)
    }

    /// Counts a received PDU. Returns whether the receive context must be requested now.
    pub(super) fn note_received(&mut self) -> bool {
        self.receive.note_units(1)
    }

    /// Counts sent PDUs. Returns whether the transmit context must be requested now.
    pub(super) fn note_sent(&mut self, pdus: usize) -> bool {
        self.transmit.note_units(pdus)
    }

    fn lose(&mut self, is_lost: impl Fn(Handle) -> bool) {
        if let Some(context) = self.receive.context.filter(|context| is_lost(*context)) {
            // Packets opened by the lost context may still be in the socket.
            self.had.push(context);
            if self.had.len() > MAX_FORMER {
                self.had.remove(0);
            }
        }
        for place in [&mut self.transmit, &mut self.receive] {
            if place.context.take_if(|context| is_lost(*context)).is_some() {
                place.again.note_lost();
            }
        }
    }
}

impl NodeCore {
    /// Records lost contexts and packets. A bearer asks for a lost context again with one of its next PDUs.
    pub(super) fn note_event(&mut self, event: SocketEvent) {
        match event {
            SocketEvent::NotSent(_) => self.counters.lost_in_device += 1,
            SocketEvent::Reset => {
                self.owners.clear();
                self.bearers.values_mut().for_each(|state| state.contexts.lose(|_| true));
            }
            SocketEvent::Context(ContextNews::Removed(context)) => {
                let owner = self.owners.remove(&context);
                if let Some(state) = owner.and_then(|tunnel| self.bearers.get_mut(&tunnel)) {
                    state.contexts.lose(|lost| lost == context);
                }
            }
            _ => {}
        }
    }
}

/// Gives contexts back, and requests missing ones.
pub(super) fn update_device(core: &mut NodeCore, socket: &mut dyn DatagramSocket) {
    if core.asking.is_empty() && core.given_up.is_empty() {
        return;
    }
    // A refused bearer asks again with one of its next PDUs, so that idle bearers cost the other bearers nothing.
    let due = ::core::mem::take(&mut core.asking);
    let mut given_up = ::core::mem::take(&mut core.given_up);
    for context in &given_up {
        core.owners.remove(context);
    }
    let NodeCore { bearers, counters, owners, .. } = core;
    let mut has_engine = false;
    socket.control(&mut |contexts| {
        given_up.drain(..).for_each(|context| contexts.remove(context));
        let Some(engine) = contexts.engine(PACKETS).map(|engine| engine.number) else { return };
        has_engine = true;
        for tunnel in &due {
            if let Some(state) = bearers.get_mut(tunnel) {
                counters.contexts += request_missing(state, contexts, engine, owners);
            }
        }
    });
    // Without the engine, no bearer asks again.
    if !has_engine {
        for state in core.bearers.values_mut() {
            (state.contexts.transmit.wanted, state.contexts.receive.wanted) = (false, false);
        }
        core.is_device = false;
    }
}

/// Requests a bearer's missing contexts. Returns the number granted.
fn request_missing(
    state: &mut BearerState,
    contexts: &mut dyn offload_api::Contexts,
    engine: u8,
    owners: &mut HashMap<Handle, u32>,
) -> u64 {
    let mut given = 0;
    let BearerState { contexts: of, keys: [sent, received], config, entity, tunnel, .. } = state;
    let asks = [
        (&mut of.transmit, Direction::Transmit, sent, Vec::new()),
        (&mut of.receive, Direction::Receive, received, vec![Key::Engine(engine, tunnel_key(tunnel.local))]),
    ];
    for (place, direction, security, keys) in asks {
        if !place.is_due() {
            continue;
        }
        // The device continues at the receiver's window, not at COUNT 0.
        let next = entity.receiver().expected();
        let spec = PdcpContext { config: config.clone(), security: security.clone(), next, drops_duplicates: false };
        match contexts.create(NewContext { engine, direction, flow: None, keys, spec: Box::new(spec) }) {
            Ok(context) => {
                place.context = Some(context);
                owners.insert(context, tunnel.local);
                place.again.end();
                given += 1;
            }
            Err((ContextRefusal::Unsupported, _)) => place.wanted = false,
            Err((refused, _)) => place.again.note_refused(refused),
        }
    }
    given
}

/// Limit of remembered contexts. Packets that a lost context opened are read soon after.
const MAX_FORMER: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gtpu::GtpTunnel;
    use crate::gtpu::queues::QueuePlace;
    use crate::{BearerKind, Config, Entity, Security, SnLen};
    use cellular_crypto::Direction as Way;
    use std::sync::Arc;

    /// A full device costs an idle bearer one request and then nothing. Each turn of the driver considers only bearers
    /// with PDUs.
    #[test]
    fn refused_bearer_asks_again_only_with_its_own_pdus() {
        let mut core = NodeCore::new(QueuePlace::new(0, 1), true, false, Arc::default());
        let config = Config::data(BearerKind::Unacknowledged, SnLen::Eighteen);
        let null = || Security::new(1, Way::Uplink).expect("an identity");
        for local in 1..=100 {
            let entity = Entity::new(config.clone(), null(), null()).expect("a configuration");
            let tunnel = GtpTunnel { local, remote: local, peer: ([10, 0, 0, 1], 2152).into() };
            core.open(tunnel, config.clone(), [null(), null()], entity).expect("a free TEID");
        }
        // Stands for a turn of the driver with a device that refuses everything.
        let ask = |core: &mut NodeCore| {
            let due = ::core::mem::take(&mut core.asking);
            for tunnel in &due {
                let contexts = &mut core.bearers.get_mut(tunnel).expect("it is open").contexts;
                contexts.transmit.again.note_refused(ContextRefusal::NoSpace);
                contexts.receive.again.note_refused(ContextRefusal::NoSpace);
            }
            due.len()
        };
        assert_eq!([ask(&mut core), ask(&mut core)], [100, 0]);
        let state = core.bearers.get_mut(&7).expect("it is open");
        assert!(state.contexts.note_sent(1), "the first unit after the first refusal");
        core.asking.insert(7);
        assert_eq!([ask(&mut core), ask(&mut core)], [1, 0]);
        let lost = Handle { index: 1, generation: 1 };
        core.note_event(SocketEvent::Context(ContextNews::Removed(lost)));
        core.note_event(SocketEvent::Reset);
        assert_eq!(ask(&mut core), 0);
    }
}
