//! Contexts, keys and connection IDs of connections in a device.
//!
//! A connection asks for a context per direction when it opens, and again after a refusal or loss. The state machine
//! does not reveal the path of a connection ID. An authentic packet does, so software opens the first packet of each
//! ID. Thus only authentic packets create state in the device.
//!
//! Invariants: a context has at most two keys, of successive generations. The device has at most the configured number
//! of connection IDs; the oldest is replaced first.

use super::EndpointCore;
use crate::config::Config;
use crate::crypto::keyring::{Keyring, LearnedCid};
use offload_api::quic::QuicContext;
use offload_api::{
    ContextBackoff, ContextNews, ContextRefusal, DatagramSocket, Direction, Handle, QuicContexts, SocketEvent,
};
use offload_base::Instant;
use smallvec::SmallVec;
use std::collections::VecDeque;

/// The device state shared by all connections of an endpoint.
#[derive(Debug)]
pub(super) struct NicQuicPort {
    number: u16,
    cid_bytes: u8,
    /// Whether the device knows the QUIC port.
    is_known: bool,
    /// Connections with commands for the device.
    pub(super) due: VecDeque<usize>,
}

/// The device state of a connection.
#[derive(Debug)]
pub(crate) struct ConnectionOffload {
    transmit: ContextSlot,
    receive: ContextSlot,
    /// Connection IDs in the device, the oldest first.
    told: VecDeque<(Cid, u32)>,
    /// Connection IDs that are or were in the device, because packets that it opened may be processed late.
    known: VecDeque<(Cid, u32)>,
    had: RecentContexts,
    /// Connection IDs to install.
    learned: VecDeque<LearnedCid>,
    /// Connection IDs to remove.
    stale: Vec<Cid>,
    most_cids_a_path: usize,
    /// The highest generation that has opened a packet.
    generation: u64,
    /// Whether the connection is on the list of due connections.
    pub(super) is_listed: bool,
    /// Time at which the next key may replace the previous one, because late packets under the previous key are no
    /// longer expected.
    refill_at: Option<Instant>,
}

type Cid = SmallVec<[u8; 20]>;

/// The latest contexts of a connection. Packets opened by a lost context may be processed late, but only a few contexts
/// can be lost meanwhile.
#[derive(Debug, Default)]
struct RecentContexts(VecDeque<Handle>);

impl RecentContexts {
    /// Contexts of the last four creations in both directions.
    const MAX_CONTEXTS: usize = 8;

    /// Adds a context. Returns a context that is too old to matter.
    fn note(&mut self, context: Handle) -> Option<Handle> {
        self.0.push_back(context);
        if self.0.len() > RecentContexts::MAX_CONTEXTS { self.0.pop_front() } else { None }
    }
}

/// A context, or the attempt to get one.
#[derive(Debug, Default)]
struct ContextSlot {
    wanted: bool,
    context: Option<Handle>,
    /// The generations of the installed keys.
    keys: [Option<u64>; 2],
    again: ContextBackoff,
}

impl ContextSlot {
    fn is_due(&self) -> bool {
        self.wanted && self.context.is_none() && self.again.is_due()
    }

    fn lose(&mut self) -> bool {
        let had = self.context.take().is_some();
        self.keys = [None; 2];
        had
    }
}

impl NicQuicPort {
    pub(super) fn new(number: u16, cid_bytes: u8) -> NicQuicPort {
        NicQuicPort { number, cid_bytes, is_known: false, due: VecDeque::new() }
    }
}

impl ConnectionOffload {
    pub(super) fn new(config: &Config) -> ConnectionOffload {
        let place = |wanted| ContextSlot { wanted, ..ContextSlot::default() };
        ConnectionOffload {
            transmit: place(config.offload.transmit()),
            receive: place(config.offload.receive()),
            told: VecDeque::new(),
            known: VecDeque::new(),
            had: RecentContexts::default(),
            learned: VecDeque::new(),
            stale: Vec::new(),
            most_cids_a_path: config.device_cids_a_path * config.paths.max(1) as usize,
            generation: 0,
            is_listed: false,
            refill_at: None,
        }
    }

    /// Starts asking for contexts, because the connection is open.
    pub(super) fn begin(&mut self) {
        self.transmit.again.begin();
        self.receive.again.begin();
    }

    /// Returns the path of a connection ID that is or was in the device.
    pub(super) fn path_of(&self, cid: &[u8]) -> Option<u32> {
        self.known.iter().rev().find(|(known, _)| known[..] == *cid).map(|(_, path)| *path)
    }

    fn has_cid(&self, cid: &[u8]) -> bool {
        self.told.iter().any(|(told, _)| told[..] == *cid)
    }

    fn note_cid(&mut self, cid: Cid, path: u32) {
        if self.path_of(&cid).is_none() {
            self.known.push_back((cid.clone(), path));
            // Four times the limit, because packets of replaced IDs may be processed late.
            if self.known.len() > 4 * self.most_cids_a_path {
                self.known.pop_front();
            }
        }
        self.told.push_back((cid, path));
    }

    /// Records packets opened by software and the highest generation of any packet. If the generation is new, `until`
    /// gives the time until which packets of the previous one may arrive.
    pub(super) fn note_opened(&mut self, learned: Vec<LearnedCid>, generation: u64, until: impl FnOnce() -> Instant) {
        for _ in &learned {
            self.receive.again.note_unit();
        }
        if self.receive.wanted {
            for learned in learned {
                // The latest packet number helps the device to recover the next ones.
                self.learned.retain(|known| known.cid != learned.cid);
                self.learned.push_back(learned);
            }
        }
        if generation > self.generation {
            self.generation = generation;
            // The peer starts the next generation three PTO later at the earliest (RFC 9001 6.5), and the key must be
            // installed by then. One PTO, of the slowest path and with our own acknowledgment delay, is left for
            // packets sent before the update.
            self.refill_at = Some(until());
        }
    }

    pub(super) fn note_sent(&mut self) {
        self.transmit.again.note_unit();
    }

    pub(super) fn forget_path(&mut self, path: u32) {
        // The device's IDs of this path are removed; the other paths keep theirs.
        let (stale, told): (VecDeque<_>, _) = self.told.drain(..).partition(|(_, of)| *of == path);
        self.told = told;
        self.stale.extend(stale.into_iter().map(|(cid, _)| cid));
        self.learned.retain(|learned| learned.path != path);
    }

    /// Returns the time at which the next key is due. `None` once the key is due: then it waits for room in the device,
    /// which has no deadline.
    pub(super) fn next_event(&self, now: Instant) -> Option<Instant> {
        self.refill_at.filter(|at| self.receive.context.is_some() && *at > now)
    }

    pub(super) fn is_due(&self, now: Instant) -> bool {
        let receives = self.receive.context.is_some();
        self.transmit.is_due()
            || self.receive.is_due()
            || receives
                && (!self.learned.is_empty() || !self.stale.is_empty() || self.missing_generation(now).is_some())
    }

    /// Returns the generation whose key the receive context lacks: the current one, or the next once its slot is free.
    fn missing_generation(&self, now: Instant) -> Option<u64> {
        let lacks = |generation: &u64| self.receive.keys[(generation & 1) as usize] != Some(*generation);
        let next = self.generation + 1;
        let next = Some(next).filter(|_| self.refill_at.is_none_or(|at| at <= now));
        [Some(self.generation), next].into_iter().flatten().find(lacks)
    }

    /// Tests whether a context can seal packets.
    pub(super) fn may_seal(&self) -> bool {
        self.transmit.context.is_some()
    }

    /// Returns the context that can seal packets of a generation.
    pub(super) fn sealer(&self, generation: u64) -> Option<Handle> {
        let has_key = self.transmit.keys[(generation & 1) as usize] == Some(generation);
        self.transmit.context.filter(|_| has_key)
    }

    /// Tests whether the sealing context lacks the key of a generation.
    pub(super) fn sealer_without(&self, generation: u64) -> bool {
        self.transmit.context.is_some() && self.sealer(generation).is_none()
    }
}

impl EndpointCore {
    /// Sends the due commands to the device while it has room.
    pub(crate) fn update_device(&mut self, now: Instant, socket: &mut dyn DatagramSocket) {
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
                if self.update_connection(at, now, &mut contexts) == Err(ContextRefusal::Busy) {
                    // The other commands have no room either. They are retried in the next turn, because the device
                    // needs them for the next packet at the earliest.
                    break;
                }
                self.take_due();
            }
        });
        // Without a device, no connection asks again.
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

    fn update_connection(
        &mut self,
        at: usize,
        now: Instant,
        contexts: &mut QuicContexts<'_>,
    ) -> Result<(), ContextRefusal> {
        let EndpointCore { connections, offload: port, counters, by_context, .. } = self;
        let Some(conn) = connections.get_mut(at) else { return Ok(()) };
        // The device must know the port before it can find any connection ID there.
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
                    // Old contexts are forgotten, or devices that are reset again and again would fill the table.
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
        // The key comes before the connection IDs, so that the device never steers a packet to a context without its
        // key.
        while let Some(generation) = of.missing_generation(now) {
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
        while let Some(LearnedCid { cid, path, number }) = of.learned.front().cloned() {
            if !of.has_cid(&cid) && of.told.len() >= of.most_cids_a_path {
                // A full list replaces its oldest ID: peers change IDs, and the new ones carry the traffic.
                let Some((oldest, _)) = of.told.front() else { break };
                contexts.forget(context, port.number, oldest)?;
                of.told.pop_front();
                counters.cids_evicted += 1;
            }
            contexts.learn(context, port.number, &cid, path, Some(number))?;
            of.learned.pop_front();
            if !of.has_cid(&cid) {
                of.note_cid(cid, path);
                counters.cids += 1;
            }
        }
        Ok(())
    }

    /// Installs the key of a generation in the transmit context, before packets under this key are sealed.
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

    /// Processes an event of the device.
    pub(crate) fn note_device(&mut self, event: SocketEvent) {
        match event {
            SocketEvent::Reset => {
                self.counters.resets += 1;
                // A reset device has forgotten the port as well.
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
        let ConnectionOffload { transmit, receive, told, learned, .. } = &mut conn.offload;
        for place in [transmit, &mut *receive] {
            if place.context.is_some_and(&is_lost) && place.lose() {
                place.again.note_lost();
                tracing::debug!(parent: span, "offload lost");
            }
        }
        // The device's connection IDs went with the receive context. They are learned again from packets that software
        // opens.
        if receive.context.is_none() {
            learned.clear();
            told.clear();
        }
        self.note_ready(at);
    }

    /// Schedules the contexts of an ended connection to be given back.
    pub(super) fn forget_contexts(&mut self, of: &ConnectionOffload) {
        let contexts = [of.transmit.context, of.receive.context];
        self.offload_leaving.extend(contexts.into_iter().flatten());
        for context in &of.had.0 {
            self.by_context.remove(context);
        }
    }

    /// Gives contexts back to the device.
    pub(crate) fn release_contexts(&mut self, socket: &mut dyn DatagramSocket) {
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

    /// Even if a device is reset again and again, only the latest contexts are remembered.
    #[test]
    fn latest_lost_contexts_are_remembered() {
        let mut had = RecentContexts::default();
        let handles: Vec<_> =
            Handle::indices(engines::QUIC, 100).map(|index| Handle { index, generation: 1 }).collect();
        let forgotten: Vec<_> = handles.iter().filter_map(|handle| had.note(*handle)).collect();
        assert_eq!(forgotten, handles[..handles.len() - RecentContexts::MAX_CONTEXTS]);
        assert!(had.0.iter().eq(&handles[handles.len() - RecentContexts::MAX_CONTEXTS..]));
    }
}
