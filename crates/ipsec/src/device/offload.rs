//! What the device does of it, and what it tells.
//!
//! Lifetimes are the host's, which sees all packets of an SA, those that came in fragments or before the device had it
//! too; the device counts along, so that what is past a limit does not leave it, or get by it, before the host knows.
//!
//! In packet offload the device counts sequence numbers; the host counts along, one for each packet it hands over, so
//! that it can go on by itself, with numbers the device cannot have used, should the device lose the SA. What the
//! device is to protect it finds by its own policies: the host tells it of one when the first packet for it comes, in the
//! order that the host's have, and every packet names the SA that it must not leave without.

use super::queues::Queue;
use super::sas::Sas;
use crate::counters::IpsecCounters;
use crate::keying::{SaEvent, SaId};
use crate::sad::InDevice;
use offload_api::ipsec::DeviceSaEvent;
use offload_api::{EspMode, Handle, Prefix, SaParams, SaRefusal, Selector};
use offload_base::QuickHash;
use offload_esp::ReachedLimit;
use offload_esp::selectors::rank;
use smallvec::SmallVec;
use std::collections::{BTreeMap, HashMap, VecDeque};

/// The SAs in the device, those that wait for it, and the policies installed there.
///
/// Invariant: an SA is in the device at its own queue, or in one of the two waiting lines, or the host's; an installed policy
/// leads to an SA that the device has.
#[derive(Debug)]
pub(super) struct Offload {
    places: Vec<QueueSas>,
    /// SAs that the device had no time for yet, the oldest first.
    waiting_for_device: VecDeque<SaId>,
    /// How many SAs ever waited for room in the device.
    waited_for_room: u64,
    /// What the device was told to protect, by the policies it came from.
    installed: HashMap<(Selector, u32), Vec<InstalledPolicy>>,
    counters: IpsecCounters,
}

/// The SAs that belong to one queue of the device.
#[derive(Clone, Debug, Default)]
struct QueueSas {
    /// SAs that the device has here, by its names. Looked up, never walked.
    in_device: HashMap<Handle, SaId, QuickHash>,
    /// SAs that the device has no room for here, the oldest first: they are the host's until others leave the device.
    waiting_for_room: BTreeMap<u64, SaId>,
}

/// What the device was told to protect by which SA, and at which queue.
#[derive(Debug)]
struct InstalledPolicy {
    selector: Selector,
    sa: SaId,
    queue: usize,
}

impl Offload {
    pub(super) fn new(queues: usize) -> Offload {
        Offload {
            places: vec![QueueSas::default(); queues],
            waiting_for_device: VecDeque::new(),
            waited_for_room: 0,
            installed: HashMap::new(),
            counters: IpsecCounters::default(),
        }
    }

    pub(super) fn counters(&self) -> IpsecCounters {
        self.counters
    }

    /// The SA that the device has at `queue` under this name.
    pub(super) fn find(&self, queue: usize, handle: Handle) -> Option<SaId> {
        self.places[queue].in_device.get(&handle).copied()
    }

    /// Gives an SA to the device, at once or when that has time, or room, for it; until then it is the host's.
    pub(super) fn offer(&mut self, queues: &mut [Queue], sas: &mut Sas, id: SaId) -> Option<SaRefusal> {
        if self.waiting_for_device.is_empty() {
            match self.put_in_device(queues, sas, id) {
                Err(SaRefusal::Busy) => {}
                Err(SaRefusal::NoSpace) => {
                    self.wait_for_room(sas, id);
                    return Some(SaRefusal::NoSpace);
                }
                result => return result.err(),
            }
        }
        self.waiting_for_device.push_back(id);
        None
    }

    /// Gives the device those SAs that it had no time for.
    fn offer_again(&mut self, queues: &mut [Queue], sas: &mut Sas) {
        while let Some(id) = self.waiting_for_device.front().copied() {
            self.counters.sa_offload_retried += 1;
            match self.put_in_device(queues, sas, id) {
                Err(SaRefusal::Busy) => return,
                Ok(()) => self.counters.sa_offload_later += 1,
                // It was used up meanwhile, or is gone.
                Err(SaRefusal::UnknownSa) => {}
                Err(refused) => {
                    sas.tell(SaEvent::OffloadLost { sa: id });
                    if refused == SaRefusal::NoSpace {
                        self.wait_for_room(sas, id);
                    }
                }
            }
            self.waiting_for_device.pop_front();
            sas.move_epoch();
        }
    }

    /// Puts an SA at the end of the line of those that the device has no room for at its queue.
    fn wait_for_room(&mut self, sas: &mut Sas, id: SaId) {
        let Some(sa) = sas.find_mut(id) else { return };
        self.waited_for_room += 1;
        sa.waits_for_room = Some(self.waited_for_room);
        self.places[sa.queue].waiting_for_room.insert(self.waited_for_room, id);
    }

    /// An SA left the device: gives it those that it had no room for at this queue, as far as there is some.
    fn offer_room(&mut self, queues: &mut [Queue], sas: &mut Sas, queue: usize) {
        while let Some((place, id)) = self.places[queue].waiting_for_room.first_key_value().map(|(at, id)| (*at, *id)) {
            self.counters.sa_offload_retried += 1;
            let refused = self.put_in_device(queues, sas, id).err();
            if refused == Some(SaRefusal::NoSpace) {
                return;
            }
            self.places[queue].waiting_for_room.remove(&place);
            sas.find_mut(id).into_iter().for_each(|sa| sa.waits_for_room = None);
            match refused {
                None => self.counters.sa_offload_later += 1,
                Some(SaRefusal::Busy) => self.waiting_for_device.push_back(id),
                Some(_) => {}
            }
            sas.move_epoch();
        }
    }

    fn put_in_device(&mut self, queues: &mut [Queue], sas: &mut Sas, id: SaId) -> Result<(), SaRefusal> {
        let Some(sa) = sas.find_mut(id).filter(|sa| !sa.retired) else {
            return Err(SaRefusal::UnknownSa);
        };
        let device = queues[sa.queue].inner.ipsec().ok_or(SaRefusal::NoDevice)?;
        // As it stands by now.
        let params = SaParams { last_number: sa.number(), lifetime: sa.meter.left(), ..sa.params.clone() };
        let handle = device.add_sa(&params)?;
        sa.offload = Some(InDevice { handle, kind: sa.params.offload, selectors: SmallVec::new() });
        self.places[sa.queue].in_device.insert(handle, id);
        tracing::debug!(sa = ?id, "SA offloaded");
        Ok(())
    }

    /// Takes an SA, and what the device was told to use it for, back.
    pub(super) fn take_back(&mut self, queues: &mut [Queue], sas: &mut Sas, id: SaId) {
        let Some(sa) = sas.find_mut(id) else { return };
        let places = &mut self.places[sa.queue];
        if let Some(place) = sa.waits_for_room.take() {
            places.waiting_for_room.remove(&place);
        }
        let Some(place) = sa.offload.take() else { return };
        places.in_device.remove(&place.handle);
        if let Some(device) = queues[sa.queue].inner.ipsec() {
            device.remove_sa(place.handle);
        }
    }

    /// The device is not to protect packets by a policy that is gone.
    pub(super) fn forget_policy(&mut self, queues: &mut [Queue], sas: &mut Sas, selector: &Selector, priority: u32) {
        let rank = rank(selector, priority);
        for policy in self.installed.remove(&(*selector, priority)).unwrap_or_default() {
            if let Some(place) = sas.find_mut(policy.sa).and_then(|sa| sa.offload.as_mut()) {
                place.selectors.retain(|named| *named != (policy.selector, rank));
            }
            if let Some(device) = queues[policy.queue].inner.ipsec() {
                device.remove_policy(&policy.selector, rank);
            }
        }
    }

    /// Sees to it that the device's policies lead such packets to this SA, and says at which queue, and what the device
    /// calls it.
    pub(super) fn install_policy(
        &mut self,
        queues: &mut [Queue],
        sas: &mut Sas,
        id: SaId,
        (selector, priority): (Selector, u32),
    ) -> Option<(usize, Handle)> {
        let sa = sas.find_mut(id)?;
        // Narrowed, it would be more specific: it stands where the host's own stands.
        let rank = rank(&selector, priority);
        // In transport mode an SA is one of many that a policy may lead to: to the device, each has a policy of its own.
        let narrowed = match sa.params.mode {
            EspMode::Transport => Selector {
                source: Some(Prefix::host(sa.params.source)),
                destination: Some(Prefix::host(sa.params.destination)),
                ..selector
            },
            EspMode::Tunnel => selector,
        };
        let (place, queue) = (sa.offload.as_mut()?, sa.queue);
        let handle = place.handle;
        if place.selectors.contains(&(narrowed, rank)) {
            return Some((queue, handle));
        }
        queues[queue].inner.ipsec()?.set_policy(&narrowed, rank, handle).ok()?;
        place.selectors.push((narrowed, rank));
        let installed = self.installed.entry((selector, priority)).or_default();
        let before = installed.iter().position(|other| other.selector == narrowed).map(|at| installed.swap_remove(at));
        installed.push(InstalledPolicy { selector: narrowed, sa: id, queue });
        // An older SA gave way.
        let Some(before) = before else { return Some((queue, handle)) };
        if let Some(place) = sas.find_mut(before.sa).and_then(|sa| sa.offload.as_mut()) {
            place.selectors.retain(|named| *named != (narrowed, rank));
        }
        if before.queue != queue
            && let Some(device) = queues[before.queue].inner.ipsec()
        {
            device.remove_policy(&narrowed, rank);
        }
        Some((queue, handle))
    }

    /// Takes note of what the device tells about SAs.
    pub(super) fn hear(&mut self, queues: &mut [Queue], sas: &mut Sas, queue: usize) {
        let (mut lost, mut room) = (false, false);
        while let Some(event) = queues[queue].inner.ipsec().and_then(|device| device.poll_sa_event()) {
            let find = |handle| self.find(queue, handle);
            // The device has limits reached as well as the host. It may have counted more: what it dropped.
            let mut limit = |handle, reached| find(handle).into_iter().for_each(|sa| sas.note_limit(sa, reached));
            match event {
                DeviceSaEvent::SoftLimit(handle, reached) => limit(handle, ReachedLimit::Soft(reached)),
                DeviceSaEvent::HardLimit(handle, reached) => limit(handle, ReachedLimit::Hard(reached)),
                DeviceSaEvent::Lost(handle) => {
                    // An SA of a device that was reset goes on in software.
                    if let Some(id) = self.places[queue].in_device.remove(&handle) {
                        sas.go_on_in_software(id);
                    }
                    (lost, room) = (true, true);
                }
                DeviceSaEvent::Removed(_) => room = true,
                DeviceSaEvent::SequenceExhausted(handle) => {
                    find(handle).into_iter().for_each(|sa| sas.retire(sa, SaEvent::SequenceExhausted { sa }));
                }
                DeviceSaEvent::Crossed(handle, number) => {
                    find(handle).into_iter().for_each(|sa| sas.tell(SaEvent::Crossed { sa, number }));
                }
                // Of those that are removed, nothing is known here any more.
                _ => {}
            }
        }
        if lost {
            // With an SA, the device lost the policies that named it.
            self.installed.retain(|_, policies| {
                policies.retain(|policy| sas.find(policy.sa).is_some_and(|sa| sa.offload.is_some()));
                !policies.is_empty()
            });
        }
        self.offer_again(queues, sas);
        if room {
            self.offer_room(queues, sas, queue);
        }
    }
}
