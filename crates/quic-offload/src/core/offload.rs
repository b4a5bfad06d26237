//! What a device is told of connections: contexts, keys, connection IDs.
//!
//! A connection asks for a context in each direction, once it is open, and again when the device would not or lost it. Which path
//! a connection ID is of, the state machine does not tell; an authentic packet does, the first of which software opens. So
//! only what is authentic makes state in the device.
//!
//! Invariants: a context has two keys at most, those of two generations that follow each other; the device is told of so many
//! connection IDs at most as the configuration allows, the oldest goes first.

use super::Core;
use crate::config::Config;
use crate::crypto::keyring::{Keyring, Learned};
use offload_api::quic::QuicContext;
use offload_api::{
    ContextBackoff, ContextNews, ContextRefusal, DatagramSocket, Direction, Handle, QuicContexts, SocketEvent,
};
use offload_base::Instant;
use smallvec::SmallVec;
use std::collections::VecDeque;

/// What is the same for all connections of an endpoint.
#[derive(Debug)]
pub(super) struct Port {
    number: u16,
    cid_bytes: u8,
    /// The device knows that there is QUIC at the port.
    is_known: bool,
    /// Connections that have something to tell the device.
    pub(super) due: VecDeque<usize>,
}

/// What a device has of a connection.
#[derive(Debug)]
pub(crate) struct OfConnection {
    transmit: Place,
    receive: Place,
    /// Connection IDs that the device was told of, the oldest first.
    told: VecDeque<(Cid, u32)>,
    /// All that it was told of, ever, as far as that may matter still: what it opened comes up late.
    known: VecDeque<(Cid, u32)>,
    had: Had,
    /// Those that it is to be told of.
    learned: VecDeque<Learned>,
    /// Those that it is to forget.
    stale: Vec<Cid>,
    most_cids_a_path: usize,
    /// The highest generation under which anything was opened.
    generation: u64,
    /// It is on the list of those that have something to tell the device.
    pub(super) is_listed: bool,
    /// When the next one's key takes the place of the one before: late packets came until then.
    refill_at: Option<Instant>,
}

type Cid = SmallVec<[u8; 20]>;

/// The last contexts that a connection had: what they opened comes up late, but not so late that more than a few were lost
/// meanwhile.
#[derive(Debug, Default)]
struct Had(VecDeque<Handle>);

impl Had {
    /// Those of the last four times that it was given any.
    const MOST: usize = 8;

    /// Says which one is too old to matter.
    fn note(&mut self, context: Handle) -> Option<Handle> {
        self.0.push_back(context);
        if self.0.len() > Had::MOST { self.0.pop_front() } else { None }
    }
}

/// A context, or the wait for one.
#[derive(Debug, Default)]
struct Place {
    wanted: bool,
    context: Option<Handle>,
    /// It works on packets; of one that receives the device says so.
    keys: [Option<u64>; 2],
    again: ContextBackoff,
}

impl Place {
    fn is_due(&self) -> bool {
        self.wanted && self.context.is_none() && self.again.is_due()
    }

    fn lose(&mut self) -> bool {
        let had = self.context.take().is_some();
        self.keys = [None; 2];
        had
    }
}

impl Port {
    pub(super) fn new(number: u16, cid_bytes: u8) -> Port {
        Port { number, cid_bytes, is_known: false, due: VecDeque::new() }
    }
}

impl OfConnection {
    pub(super) fn new(config: &Config) -> OfConnection {
        let place = |wanted| Place { wanted, ..Place::default() };
        OfConnection {
            transmit: place(config.offload.transmit()),
            receive: place(config.offload.receive()),
            told: VecDeque::new(),
            known: VecDeque::new(),
            had: Had::default(),
            learned: VecDeque::new(),
            stale: Vec::new(),
            most_cids_a_path: config.device_cids_a_path * config.paths.max(1) as usize,
            generation: 0,
            is_listed: false,
            refill_at: None,
        }
    }

    /// The connection is open.
    pub(super) fn begin(&mut self) {
        self.transmit.again.begin();
        self.receive.again.begin();
    }

    /// The path of a connection ID that a device was told of.
    pub(super) fn path_of(&self, cid: &[u8]) -> Option<u32> {
        self.known.iter().rev().find(|(known, _)| known[..] == *cid).map(|(_, path)| *path)
    }

    fn is_told(&self, cid: &[u8]) -> bool {
        self.told.iter().any(|(told, _)| told[..] == *cid)
    }

    fn note_told(&mut self, cid: Cid, path: u32) {
        if self.path_of(&cid).is_none() {
            self.known.push_back((cid.clone(), path));
            if self.known.len() > 4 * self.most_cids_a_path {
                self.known.pop_front();
            }
        }
        self.told.push_back((cid, path));
    }

    /// Takes note of packets that software opened, and of the highest generation of any; and if that is a new one, until when
    /// packets of the one before may come.
    pub(super) fn note_opened(&mut self, learned: Vec<Learned>, generation: u64, until: impl FnOnce() -> Instant) {
        for _ in &learned {
            self.receive.again.note_unit();
        }
        if self.receive.wanted {
            for learned in learned {
                // The device opens the next ones by what the last one tells.
                self.learned.retain(|known| known.cid != learned.cid);
                self.learned.push_back(learned);
            }
        }
        if generation > self.generation {
            self.generation = generation;
            // The peer begins the next one three PTO later at the earliest (RFC 9001 6.5): by then, its key is there. A third of
            // that, on the slowest path and as if acknowledgements took no longer than ours, is for packets that were sent before
            // the update.
            self.refill_at = Some(until());
        }
    }

    pub(super) fn note_sent(&mut self) {
        self.transmit.again.note_unit();
    }

    pub(super) fn forget_path(&mut self, path: u32) {
        let (stale, told): (VecDeque<_>, _) = self.told.drain(..).partition(|(_, of)| *of == path);
        self.told = told;
        self.stale.extend(stale.into_iter().map(|(cid, _)| cid));
        self.learned.retain(|learned| learned.path != path);
    }

    /// Returns the time at which the next key is due. `None` once the key is due: it then waits for room in the device, which has no deadline.
    pub(super) fn next_event(&self, now: Instant) -> Option<Instant> {
        self.refill_at.filter(|at| self.receive.context.is_some() && *at > now)
    }

    pub(super) fn is_due(&self, now: Instant) -> bool {
        let receives = self.receive.context.is_some();
        self.transmit.is_due()
            || self.receive.is_due()
            || receives && (!self.learned.is_empty() || !self.stale.is_empty() || self.wants_key(now).is_some())
    }

    /// The generation whose key the receive context lacks: the latest, or the one after it, once that has a place.
    fn wants_key(&self, now: Instant) -> Option<u64> {
        let lacks = |generation: &u64| self.receive.keys[(generation & 1) as usize] != Some(*generation);
        let next = self.generation + 1;
        let next = Some(next).filter(|_| self.refill_at.is_none_or(|at| at <= now));
        [Some(self.generation), next].into_iter().flatten().find(lacks)
    }

    /// Whether there is a context that seals packets.
    pub(super) fn may_seal(&self) -> bool {
        self.transmit.context.is_some()
    }

    /// The context that seals packets of a generation; the generation's key is there.
    pub(super) fn sealer(&self, generation: u64) -> Option<Handle> {
        let has_key = self.transmit.keys[(generation & 1) as usize] == Some(generation);
        self.transmit.context.filter(|_| has_key)
    }

    /// A context that seals, and lacks the key of a generation.
    pub(super) fn sealer_without(&self, generation: u64) -> bool {
        self.transmit.context.is_some() && self.sealer(generation).is_none()
    }
}

impl Core {
    /// Tells the device what it is to know, by what it has room for.
    pub(crate) fn tell_device(&mut self, now: Instant, socket: &mut dyn DatagramSocket) {
        if self.offload.due.is_empty() {
            return;
        }
        let mut has_device = false;
        socket.control(&mut |contexts| {
            let Some(mut contexts) = QuicContexts::from_contexts(contexts) else {
                return;
            };
            has_device = true;
            while let Some(at) = self.offload.due.front().copied() {
                if self.tell_of(at, now, &mut contexts) == Err(ContextRefusal::Busy) {
                    // There is no room for the other commands either. The next turn with room sends them: the device needs them for the next
                    // packet at the earliest.
                    break;
                }
                self.take_due();
            }
        });
        while !has_device && let Some(at) = self.take_due() {
            if let Some(conn) = self.connections.get_mut(at) {
                (conn.offload.transmit.wanted, conn.offload.receive.wanted) = (false, false);
            }
        }
    }

    fn take_due(&mut self) -> Option<usize> {
        let at = self.offload.due.pop_front()?;
        if let Some(conn) = self.connections.get_mut(at) {
            conn.offload.is_listed = false;
        }
        Some(at)
    }

    fn tell_of(&mut self, at: usize, now: Instant, contexts: &mut QuicContexts<'_>) -> Result<(), ContextRefusal> {
        let Core { connections, offload: port, counters, by_context, .. } = self;
        let Some(conn) = connections.get_mut(at) else { return Ok(()) };
        if !port.is_known {
            contexts.listen(port.number, port.cid_bytes)?;
            port.is_known = true;
        }
        let (of, span) = (&mut conn.offload, &conn.span);
        let had = &mut of.had;
        for (place, direction, generation) in [
            (&mut of.transmit, Direction::Transmit, conn.transmit_generation),
            (&mut of.receive, Direction::Receive, of.generation),
        ] {
            if !place.is_due() {
                continue;
            }
            let Some(spec) = context_of(&conn.keyring, direction, generation) else { continue };
            match contexts.create(direction, spec) {
                Ok(context) => {
                    place.context = Some(context);
                    place.keys[(generation & 1) as usize] = Some(generation);
                    place.again.end();
                    counters.contexts += 1;
                    tracing::debug!(parent: span, ?direction, ?context, "offload installed");
                    by_context.insert(context, at);
                    if let Some(oldest) = had.note(context) {
                        by_context.remove(&oldest);
                    }
                }
                Err(ContextRefusal::Unsupported) => {
                    place.wanted = false;
                    tracing::debug!(parent: span, ?direction, "offload unsupported");
                }
                Err(refused) => {
                    tracing::debug!(parent: span, ?direction, ?refused, "offload refused");
                    counters.contexts_refused += 1;
                    place.again.note_refused(refused);
                }
            }
        }
        let Some(context) = of.receive.context else { return Ok(()) };
        while let Some(generation) = of.wants_key(now) {
            let Some(key) = conn.keyring.lock().generation(false, generation) else { break };
            contexts.set_key(context, generation, key.key.clone())?;
            of.receive.keys[(generation & 1) as usize] = Some(generation);
            counters.keys += 1;
        }
        if of.refill_at.is_some_and(|at| at <= now) {
            of.refill_at = None;
        }
        while let Some(cid) = of.stale.last() {
            contexts.forget(context, port.number, cid)?;
            of.stale.pop();
        }
        while let Some(Learned { cid, path, number }) = of.learned.front().cloned() {
            if !of.is_told(&cid) && of.told.len() >= of.most_cids_a_path {
                let Some((oldest, _)) = of.told.front() else { break };
                contexts.forget(context, port.number, oldest)?;
                of.told.pop_front();
                counters.cids_evicted += 1;
            }
            contexts.learn(context, port.number, &cid, path, Some(number))?;
            of.learned.pop_front();
            if !of.is_told(&cid) {
                of.note_told(cid, path);
                counters.cids += 1;
            }
        }
        Ok(())
    }

    /// Gives the transmit context of a connection the key of a generation, before packets are sealed by it.
    pub(super) fn renew_sealer(&mut self, at: usize, generation: u64, socket: &mut dyn DatagramSocket) {
        let Some(conn) = self.connections.get_mut(at) else { return };
        let (Some(context), Some(key)) =
            (conn.offload.transmit.context, conn.keyring.lock().generation(true, generation))
        else {
            return;
        };
        let mut done = false;
        socket.control(&mut |contexts| {
            done = QuicContexts::from_contexts(contexts)
                .is_some_and(|mut quic| quic.set_key(context, generation, key.key.clone()).is_ok());
        });
        if done {
            conn.offload.transmit.keys[(generation & 1) as usize] = Some(generation);
            self.counters.keys += 1;
        }
    }

    /// What the device has to tell.
    pub(crate) fn note_device(&mut self, event: SocketEvent) {
        match event {
            SocketEvent::Reset => {
                self.counters.resets += 1;
                self.offload.is_known = false;
                for at in self.all() {
                    self.lose_contexts(at, |_| true);
                }
            }
            SocketEvent::Context(ContextNews::Removed(context)) => {
                if let Some(at) = self.by_context.get(&context) {
                    self.lose_contexts(*at, |known| known == context);
                }
            }
            SocketEvent::NotSent(_) => self.counters.lost_in_device += 1,
            _ => {}
        }
    }

    fn lose_contexts(&mut self, at: usize, is_lost: impl Fn(Handle) -> bool) {
        let Some(conn) = self.connections.get_mut(at) else { return };
        let span = &conn.span;
        let OfConnection { transmit, receive, told, learned, .. } = &mut conn.offload;
        for place in [transmit, &mut *receive] {
            if place.context.is_some_and(&is_lost) && place.lose() {
                place.again.note_lost();
                tracing::debug!(parent: span, "offload lost");
            }
        }
        if receive.context.is_none() {
            learned.clear();
            told.clear();
        }
        self.note_ready(at);
    }

    /// Marks the contexts of a connection that has ended, so that they are given back.
    pub(super) fn forget_contexts(&mut self, of: &OfConnection) {
        let contexts = [of.transmit.context, of.receive.context];
        self.offload_leaving.extend(contexts.into_iter().flatten());
        for context in &of.had.0 {
            self.by_context.remove(context);
        }
    }

    /// Gives contexts back.
    pub(crate) fn give_back(&mut self, socket: &mut dyn DatagramSocket) {
        if self.offload_leaving.is_empty() {
            return;
        }
        let leaving = core::mem::take(&mut self.offload_leaving);
        socket.control(&mut |contexts| {
            if let Some(mut contexts) = QuicContexts::from_contexts(contexts) {
                leaving.iter().for_each(|context| contexts.remove(*context));
            }
        });
    }

    fn all(&self) -> Vec<usize> {
        self.connections.iter().map(|(at, _)| at).collect()
    }
}

fn context_of(keyring: &Keyring, direction: Direction, generation: u64) -> Option<QuicContext> {
    let transmit = direction == Direction::Transmit;
    let keys = keyring.lock();
    let key = keys.generation(transmit, generation)?.key.clone();
    Some(QuicContext { header: keys.header(transmit)?, generation, key })
}

#[cfg(test)]
mod tests {
    use super::*;
    use offload_api::engines;

    /// A device that is reset for ever makes nobody remember all contexts that there were.
    #[test]
    fn of_contexts_that_were_lost_the_last_ones_are_known() {
        let mut had = Had::default();
        let handles: Vec<_> =
            Handle::indices(engines::QUIC, 100).map(|index| Handle { index, generation: 1 }).collect();
        let forgotten: Vec<_> = handles.iter().filter_map(|handle| had.note(*handle)).collect();
        assert_eq!(forgotten, handles[..handles.len() - Had::MOST]);
        assert!(had.0.iter().eq(&handles[handles.len() - Had::MOST..]));
    }
}
