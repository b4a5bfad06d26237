//! What a NIC is told of bearers: a context in each direction, asked for when the bearer is opened, and again when the NIC would not
//! or lost it.

use super::core::{Core, State};
use crate::device::{PACKETS, PdcpContext, tunnel_key};
use offload_api::{AskAgain, ContextNews, DatagramSocket, Direction, Handle, Key, NewContext, Refused, SocketEvent};

/// The contexts of one bearer.
pub(super) struct Contexts {
    transmit: Place,
    receive: Place,
    /// Receive contexts that there were with the same keys: what they opened comes up late.
    had: Vec<Handle>,
}

#[derive(Default)]
struct Place {
    wanted: bool,
    context: Option<Handle>,
    again: AskAgain,
}

impl Place {
    fn new(wanted: bool) -> Place {
        let mut place = Place { wanted, ..Place::default() };
        place.again.begin();
        place
    }

    fn is_due(&self) -> bool {
        self.wanted && self.context.is_none() && self.again.is_due()
    }
}

impl Contexts {
    pub(super) fn new(wanted: bool) -> Contexts {
        Contexts { transmit: Place::new(wanted), receive: Place::new(wanted), had: Vec::new() }
    }

    /// Gives up all contexts, which are to be given back.
    pub(super) fn begin_again(&mut self) -> Vec<Handle> {
        let wanted = self.transmit.wanted;
        let Contexts { transmit, receive, .. } = ::core::mem::replace(self, Contexts::new(wanted));
        transmit.context.into_iter().chain(receive.context).collect()
    }

    /// What protects PDUs.
    pub(super) fn sealer(&self) -> Option<Handle> {
        self.transmit.context
    }

    /// Whether what this context opened was opened by the keys that are in use.
    pub(super) fn is_ours(&self, context: Handle) -> bool {
        self.receive.context == Some(context) || self.had.contains(&context)
    }

    pub(super) fn note_received(&mut self) {
        if self.receive.wanted && self.receive.context.is_none() {
            self.receive.again.note_unit();
        }
    }

    pub(super) fn note_sent(&mut self, pdus: usize) {
        if self.transmit.wanted && self.transmit.context.is_none() {
            (0..pdus).for_each(|_| self.transmit.again.note_unit());
        }
    }

    fn is_due(&self) -> bool {
        self.transmit.is_due() || self.receive.is_due()
    }

    fn lacks(&self) -> bool {
        [&self.transmit, &self.receive].into_iter().any(|place| place.wanted && place.context.is_none())
    }

    fn lose(&mut self, is_lost: impl Fn(Handle) -> bool) {
        if let Some(context) = self.receive.context.filter(|context| is_lost(*context)) {
            self.had.push(context);
            if self.had.len() > MOST_HAD {
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

impl Core {
    pub(super) fn note_event(&mut self, event: SocketEvent) {
        let is_lost = |lost| match event {
            SocketEvent::Reset => true,
            SocketEvent::Context(ContextNews::Removed(context)) => context == lost,
            _ => false,
        };
        if let SocketEvent::NotSent(_) = event {
            self.counters.lost_in_device += 1;
            return;
        }
        for (tunnel, state) in &mut self.bearers {
            state.contexts.lose(is_lost);
            if state.contexts.lacks() {
                self.asking.insert(*tunnel);
            }
        }
    }
}

/// Gives contexts back, and asks for those that bearers lack.
pub(super) fn tell(core: &mut Core, socket: &mut dyn DatagramSocket) {
    let is_due = |tunnel: &u32| core.bearers.get(tunnel).is_some_and(|state| state.contexts.is_due());
    let due: Vec<u32> = core.asking.iter().filter(|tunnel| is_due(tunnel)).copied().collect();
    if due.is_empty() && core.given_up.is_empty() {
        return;
    }
    let (bearers, counters, mut given_up) =
        (&mut core.bearers, &mut core.counters, ::core::mem::take(&mut core.given_up));
    let mut has_engine = false;
    socket.control(&mut |device| {
        let Some(contexts) = device.contexts() else { return };
        given_up.drain(..).for_each(|context| contexts.remove(context));
        let Some(engine) = contexts.engine(PACKETS).map(|engine| engine.number) else { return };
        has_engine = true;
        for tunnel in &due {
            if let Some(state) = bearers.get_mut(tunnel) {
                counters.contexts += ask_for(state, contexts, engine);
            }
        }
    });
    let lacks = |tunnel: &u32| core.bearers.get(tunnel).is_some_and(|state| state.contexts.lacks());
    core.asking.retain(|tunnel| lacks(tunnel));
    if !has_engine {
        for state in core.bearers.values_mut() {
            (state.contexts.transmit.wanted, state.contexts.receive.wanted) = (false, false);
        }
        core.is_device = false;
        core.asking.clear();
    }
}

/// Says how many it was given.
fn ask_for(state: &mut State, contexts: &mut dyn offload_api::Contexts, engine: u8) -> u64 {
    let mut given = 0;
    let State { contexts: of, keys: [sent, received], config, entity, tunnel, .. } = state;
    let asks = [
        (&mut of.transmit, Direction::Transmit, sent, Vec::new()),
        (&mut of.receive, Direction::Receive, received, vec![Key::Engine(engine, tunnel_key(tunnel.local))]),
    ];
    for (place, direction, security, keys) in asks {
        if !place.is_due() {
            continue;
        }
        let next = entity.receiver().expected();
        let spec = PdcpContext { config: config.clone(), security: security.clone(), next, drops_duplicates: false };
        match contexts.create(NewContext { engine, direction, flow: None, keys, spec: Box::new(spec) }) {
            Ok(context) => {
                place.context = Some(context);
                place.again.end();
                given += 1;
            }
            Err((Refused::Unsupported, _)) => place.wanted = false,
            Err((refused, _)) => place.again.note_refused(refused),
        }
    }
    given
}

/// What a context that was lost had opened is read soon after.
const MOST_HAD: usize = 8;
