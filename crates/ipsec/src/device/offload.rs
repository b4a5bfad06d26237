//! SAs and policies in the device, and the device's events.
//!
//! The host enforces lifetimes, because it sees all packets of an SA, including fragments and packets from before the
//! offload. The device counts too, so that no packet beyond a limit passes before the host reacts.
//!
//! With packet offload, the device assigns sequence numbers. The host counts in parallel, one per packet handed over,
//! so that it can continue with unused numbers if the device loses the SA. The device finds the packets to protect by
//! its own policies. The host installs a policy when its first packet comes, with the host's rank, and every packet
//! names its required SA.

use super::queues::DeviceQueue;
use super::sas::SaTable;
use crate::counters::IpsecCounters;
use crate::keying::{SaEvent, SaId};
use crate::sad::OffloadState;
use offload_api::ipsec::DeviceSaEvent;
use offload_api::{EspMode, Handle, Prefix, SaParams, SaRefusal, Selector};
use offload_base::QuickHash;
use offload_esp::ReachedLimit;
use offload_esp::selectors::rank;
use smallvec::SmallVec;
use std::collections::{BTreeMap, HashMap, VecDeque};

/// The offloaded SAs, the SAs that wait for the device, and the policies installed there.
///
/// Invariant: an SA is in the device at its own queue, or in one of the two waiting lines, or handled by the host
/// alone. An installed policy leads to an SA that the device has.
#[derive(Debug)]
pub(super) struct OffloadedSas {
    places: Vec<QueueSas>,
    /// SAs that the device was too busy to take, the oldest first.
    waiting_for_device: VecDeque<SaId>,
    /// Tickets given so far to SAs that wait for room.
    waited_for_room: u64,
    /// Device policies, by the host policy that they come from.
    installed: HashMap<(Selector, u32), Vec<InstalledPolicy>>,
    counters: IpsecCounters,
}

/// The SAs of one device queue.
#[derive(Clone, Debug, Default)]
struct QueueSas {
    /// SAs in the device, by handle. Only looked up, never iterated.
    in_device: HashMap<Handle, SaId, QuickHash>,
    /// SAs without room in the device, by ticket. The host handles them until other SAs leave the device.
    waiting_for_room: BTreeMap<u64, SaId>,
}

/// A policy in the device.
#[derive(Debug)]
struct InstalledPolicy {
    selector: Selector,
    sa: SaId,
    queue: usize,
}

impl OffloadedSas {
    pub(super) fn new(queues: usize) -> OffloadedSas {
        OffloadedSas {
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

    /// Returns the SA with a device handle.
    pub(super) fn find(&self, queue: usize, handle: Handle) -> Option<SaId> {
        self.places[queue].in_device.get(&handle).copied()
    }

    /// Gives an SA to the device now, or later if the device is busy or full. Until then the host handles the SA.
    pub(super) fn offer(&mut self, queues: &mut [DeviceQueue], sas: &mut SaTable, id: SaId) -> Option<SaRefusal> {
        // A new SA queues after the waiting ones, so that the device gets the SAs in order.
        if self.waiting_for_device.is_empty() {
            match self.install_sa(queues, sas, id) {
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

    /// Retries the SAs that found the device busy.
    fn offer_again(&mut self, queues: &mut [DeviceQueue], sas: &mut SaTable) {
        while let Some(id) = self.waiting_for_device.front().copied() {
            self.counters.sa_offload_retried += 1;
            match self.install_sa(queues, sas, id) {
                Err(SaRefusal::Busy) => return,
                Ok(()) => self.counters.sa_offload_later += 1,
                // The SA was used up or deleted meanwhile.
                Err(SaRefusal::UnknownSa) => {}
                Err(refused) => {
                    sas.report(SaEvent::OffloadLost { sa: id });
                    if refused == SaRefusal::NoSpace {
                        self.wait_for_room(sas, id);
                    }
                }
            }
            self.waiting_for_device.pop_front();
            sas.invalidate_paths();
        }
    }

    /// Puts an SA at the end of its queue's line for room in the device.
    fn wait_for_room(&mut self, sas: &mut SaTable, id: SaId) {
        let Some(sa) = sas.find_mut(id) else { return };
        self.waited_for_room += 1;
        sa.waits_for_room = Some(self.waited_for_room);
        self.places[sa.queue].waiting_for_room.insert(self.waited_for_room, id);
    }

    /// Retries the SAs that found no room at this queue, until the device is full again.
    fn offer_room(&mut self, queues: &mut [DeviceQueue], sas: &mut SaTable, queue: usize) {
        while let Some((place, id)) = self.places[queue].waiting_for_room.first_key_value().map(|(at, id)| (*at, *id)) {
            self.counters.sa_offload_retried += 1;
            let refused = self.install_sa(queues, sas, id).err();
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
            sas.invalidate_paths();
        }
    }

    fn install_sa(&mut self, queues: &mut [DeviceQueue], sas: &mut SaTable, id: SaId) -> Result<(), SaRefusal> {
        let Some(sa) = sas.find_mut(id).filter(|sa| !sa.retired) else {
            return Err(SaRefusal::UnknownSa);
        };
        let device = queues[sa.queue].inner.ipsec().ok_or(SaRefusal::NoDevice)?;
        // The current state, so that the device continues the SA's numbers and lifetime.
        let params = SaParams { last_number: sa.number(), lifetime: sa.meter.left(), ..sa.params.clone() };
        let handle = device.add_sa(&params)?;
        sa.offload = Some(OffloadState { handle, kind: sa.params.offload, selectors: SmallVec::new() });
        self.places[sa.queue].in_device.insert(handle, id);
        tracing::debug!(sa = ?id, "SA offloaded");
        Ok(())
    }

    /// Removes an SA and its policies from the device.
    pub(super) fn remove_from_device(&mut self, queues: &mut [DeviceQueue], sas: &mut SaTable, id: SaId) {
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

    /// Removes a deleted policy from the device.
    pub(super) fn forget_policy(
        &mut self,
        queues: &mut [DeviceQueue],
        sas: &mut SaTable,
        selector: &Selector,
        priority: u32,
    ) {
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

    /// Installs a device policy that leads the packets of a host policy to this SA. Returns the SA's queue and device
    /// handle.
    pub(super) fn install_policy(
        &mut self,
        queues: &mut [DeviceQueue],
        sas: &mut SaTable,
        id: SaId,
        (selector, priority): (Selector, u32),
    ) -> Option<(usize, Handle)> {
        let sa = sas.find_mut(id)?;
        // The narrowed selector is more specific than the host's. It keeps the host policy's rank, so that the order of
        // the policies is the same in the device.
        let rank = rank(&selector, priority);
        // In transport mode, one policy may lead to many SAs. In the device, each SA has its own policy.
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
        // Successors replace their predecessor's device policy, because the selector is the same.
        let before = installed.iter().position(|other| other.selector == narrowed).map(|at| installed.swap_remove(at));
        installed.push(InstalledPolicy { selector: narrowed, sa: id, queue });
        // An older SA had this policy before.
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

    /// Applies the device's events to the SAs.
    pub(super) fn apply_device_events(&mut self, queues: &mut [DeviceQueue], sas: &mut SaTable, queue: usize) {
        let (mut lost, mut room) = (false, false);
        while let Some(event) = queues[queue].inner.ipsec().and_then(|device| device.poll_sa_event()) {
            let find = |handle| self.find(queue, handle);
            // The host reaches the same limits. But the device may count more packets, including packets
            // that it drops itself.
            let mut limit = |handle, reached| find(handle).into_iter().for_each(|sa| sas.note_limit(sa, reached));
            match event {
                DeviceSaEvent::SoftLimit(handle, reached) => limit(handle, ReachedLimit::Soft(reached)),
                DeviceSaEvent::HardLimit(handle, reached) => limit(handle, ReachedLimit::Hard(reached)),
                DeviceSaEvent::Lost(handle) => {
                    // The device was reset; its SAs continue in software.
                    if let Some(id) = self.places[queue].in_device.remove(&handle) {
                        sas.continue_in_software(id);
                    }
                    (lost, room) = (true, true);
                }
                DeviceSaEvent::Removed(_) => room = true,
                DeviceSaEvent::SequenceExhausted(handle) => {
                    find(handle).into_iter().for_each(|sa| sas.retire(sa, SaEvent::SequenceExhausted { sa }));
                }
                DeviceSaEvent::Crossed(handle, number) => {
                    find(handle).into_iter().for_each(|sa| sas.report(SaEvent::Crossed { sa, number }));
                }
                // The SA was removed here already.
                _ => {}
            }
        }
        if lost {
            // The device drops a lost SA's policies with it.
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
