//! What the device does of it, and what it tells.
//!
//! Lifetimes are the host's, which sees all packets of an SA, those that came in fragments or before the device had it
//! too; the device counts along, so that what is past a limit does not leave it, or get by it, before the host knows.
//!
//! In packet offload the device counts sequence numbers; the host counts along, one for each packet it hands over, so
//! that it can go on by itself, with numbers the device cannot have used, should the device lose the SA. What the
//! device is to protect it finds by its own policies: the host tells it of one when the first packet for it comes, in the
//! order that the host's have, and every packet names the SA that it must not leave without.

use super::{By, Decision, SecureDevice, Told};
use crate::sad::InDevice;
use offload_api::ipsec::DeviceSaEvent;
use offload_api::{
    DropReason, EspAsk, EspMode, Handle, OffloadKind, Prefix, SaEvent, SaId, SaParams, SaRefused, Selector, Sent,
    TxAsk, TxPacket,
};
use offload_base::Instant;
use offload_esp::Reached;
use offload_esp::selectors::rank;
use smallvec::SmallVec;

impl SecureDevice {
    /// Gives an SA to the device, at once or when that has time, or room, for it; until then it is the host's.
    pub(super) fn offer_to_device(&mut self, id: SaId) -> Option<SaRefused> {
        if self.waiting_for_device.is_empty() {
            match self.put_in_device(id) {
                Err(SaRefused::Busy) => {}
                Err(SaRefused::NoSpace) => {
                    self.wait_for_room(id);
                    return Some(SaRefused::NoSpace);
                }
                result => return result.err(),
            }
        }
        self.waiting_for_device.push_back(id);
        None
    }

    /// Gives the device those SAs that it had no time for.
    pub(super) fn offer_again(&mut self) {
        while let Some(id) = self.waiting_for_device.front().copied() {
            self.counters.sa_offload_retried += 1;
            match self.put_in_device(id) {
                Err(SaRefused::Busy) => return,
                Ok(()) => self.counters.sa_offload_later += 1,
                // It was used up meanwhile, or is gone.
                Err(SaRefused::UnknownSa) => {}
                Err(refused) => {
                    self.tell(SaEvent::OffloadLost { sa: id });
                    if refused == SaRefused::NoSpace {
                        self.wait_for_room(id);
                    }
                }
            }
            self.waiting_for_device.pop_front();
            self.epoch += 1;
        }
    }

    /// Puts an SA at the end of the line of those that the device has no room for at its queue.
    fn wait_for_room(&mut self, id: SaId) {
        let Some(sa) = self.sad.find_mut(id) else { return };
        self.waited_for_room += 1;
        sa.waits_for_room = Some(self.waited_for_room);
        self.queues[sa.queue].waiting_for_room.insert(self.waited_for_room, id);
    }

    /// An SA left the device: gives it those that it had no room for at this queue, as far as there is some.
    fn offer_room(&mut self, queue: usize) {
        while let Some((place, id)) = self.queues[queue].waiting_for_room.first_key_value().map(|(at, id)| (*at, *id)) {
            self.counters.sa_offload_retried += 1;
            let refused = self.put_in_device(id).err();
            if refused == Some(SaRefused::NoSpace) {
                return;
            }
            self.queues[queue].waiting_for_room.remove(&place);
            self.sad.find_mut(id).into_iter().for_each(|sa| sa.waits_for_room = None);
            match refused {
                None => self.counters.sa_offload_later += 1,
                Some(SaRefused::Busy) => self.waiting_for_device.push_back(id),
                Some(_) => {}
            }
            self.epoch += 1;
        }
    }

    fn put_in_device(&mut self, id: SaId) -> Result<(), SaRefused> {
        let Some(sa) = self.sad.find_mut(id).filter(|sa| !sa.retired) else {
            return Err(SaRefused::UnknownSa);
        };
        let queue = &mut self.queues[sa.queue];
        let device = queue.inner.ipsec().ok_or(SaRefused::NoDevice)?;
        // As it stands by now.
        let params = SaParams { last_number: sa.number(), lifetime: sa.meter.left(), ..sa.params.clone() };
        let handle = device.add_sa(&params)?;
        sa.offload = Some(InDevice { handle, kind: sa.params.offload, selectors: SmallVec::new() });
        queue.sas.insert(handle, id);
        tracing::debug!(sa = ?id, "SA offloaded");
        Ok(())
    }

    /// Takes an SA, and what the device was told to use it for, back.
    pub(super) fn take_from_device(&mut self, id: SaId) {
        let Some(sa) = self.sad.find_mut(id) else { return };
        if let Some(place) = sa.waits_for_room.take() {
            self.queues[sa.queue].waiting_for_room.remove(&place);
        }
        let (Some(place), queue) = (sa.offload.take(), &mut self.queues[sa.queue]) else { return };
        queue.sas.remove(&place.handle);
        if let Some(device) = queue.inner.ipsec() {
            device.remove_sa(place.handle);
        }
    }

    /// The device is not to protect packets by a policy that is gone.
    pub(super) fn forget_policy(&mut self, selector: &Selector, priority: u32) {
        let rank = rank(selector, priority);
        for told in self.told.remove(&(*selector, priority)).unwrap_or_default() {
            if let Some(place) = self.sad.find_mut(told.sa).and_then(|sa| sa.offload.as_mut()) {
                place.selectors.retain(|named| *named != (told.selector, rank));
            }
            if let Some(device) = self.queues[told.queue].inner.ipsec() {
                device.remove_policy(&told.selector, rank);
            }
        }
    }

    /// Hands a plain packet to the device, which is to protect it.
    pub(super) fn hand_over_plain(
        &mut self,
        now: Instant,
        id: SaId,
        packet: TxPacket,
        decision: &Decision,
        packets: u32,
    ) -> Sent {
        let found = decision.policy.and_then(|policy| self.make_device_find(id, policy));
        let Some((queue, sa)) = found else {
            self.counters.out_state_invalid += 1;
            return Sent::Dropped(DropReason::Policy);
        };
        let ask = TxAsk { packet: Some(EspAsk::Protect { sa }.into()), ..packet.ask };
        let sent = self.queues[queue].post(now, TxPacket { ask, ..packet });
        if sent == Sent::Posted {
            self.counters.out_packet += u64::from(packets);
            self.take_numbers(id, packets);
        } else {
            self.counters.out_state_invalid += 1;
        }
        sent
    }

    /// Sees to it that the device's policies lead such packets to this SA, and says at which queue, and what the device
    /// calls it.
    pub(super) fn make_device_find(
        &mut self,
        id: SaId,
        (selector, priority): (Selector, u32),
    ) -> Option<(usize, Handle)> {
        let sa = self.sad.find_mut(id)?;
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
        self.queues[queue].inner.ipsec()?.set_policy(&narrowed, rank, handle).ok()?;
        place.selectors.push((narrowed, rank));
        let told = self.told.entry((selector, priority)).or_default();
        let before = told.iter().position(|other| other.selector == narrowed).map(|at| told.swap_remove(at));
        told.push(Told { selector: narrowed, sa: id, queue });
        // An older SA gave way.
        let Some(before) = before else { return Some((queue, handle)) };
        if let Some(place) = self.sad.find_mut(before.sa).and_then(|sa| sa.offload.as_mut()) {
            place.selectors.retain(|told| *told != (narrowed, rank));
        }
        if before.queue != queue
            && let Some(device) = self.queues[before.queue].inner.ipsec()
        {
            device.remove_policy(&narrowed, rank);
        }
        Some((queue, handle))
    }

    /// An SA goes on without the device. Its numbers go on where the device can have been at most; of one that is lent, nobody
    /// knows where that is.
    fn goes_on_in_software(&mut self, id: SaId) {
        if let Some(sa) = self.sad.find_mut(id) {
            sa.offload = None;
            if sa.lent {
                self.sad.retire(id);
            }
            self.tell(SaEvent::OffloadLost { sa: id });
            self.epoch += 1;
        }
    }

    /// Takes note of what the device tells about SAs.
    pub(super) fn hear_device(&mut self, queue: usize) {
        let (mut lost, mut room) = (false, false);
        while let Some(event) = self.queues[queue].inner.ipsec().and_then(|device| device.poll_sa_event()) {
            let find = |handle| self.queues[queue].sas.get(&handle).copied();
            match event {
                DeviceSaEvent::SoftLimit(handle, limit) => self.hear_limit(find(handle), Reached::Soft(limit)),
                DeviceSaEvent::HardLimit(handle, limit) => self.hear_limit(find(handle), Reached::Hard(limit)),
                DeviceSaEvent::Lost(handle) => {
                    // An SA of a device that was reset goes on in software.
                    if let Some(id) = self.queues[queue].sas.remove(&handle) {
                        self.goes_on_in_software(id);
                    }
                    (lost, room) = (true, true);
                }
                DeviceSaEvent::Removed(_) => room = true,
                DeviceSaEvent::SequenceExhausted(handle) => {
                    if let Some(id) = find(handle) {
                        self.sad.retire(id);
                        self.epoch += 1;
                        self.tell(SaEvent::SequenceExhausted { sa: id });
                    }
                }
                DeviceSaEvent::Crossed(handle, number) => {
                    if let Some(id) = find(handle) {
                        self.tell(SaEvent::Crossed { sa: id, number });
                    }
                }
                // Of those that are removed, nothing is known here any more.
                _ => {}
            }
        }
        if lost {
            // With an SA, the device lost the policies that named it.
            let Self { told, sad, .. } = self;
            told.retain(|_, policies| {
                policies.retain(|told| sad.find(told.sa).is_some_and(|sa| sa.offload.is_some()));
                !policies.is_empty()
            });
        }
        self.offer_again();
        if room {
            self.offer_room(queue);
        }
    }

    /// The device has limits reached as well as the host, and each is told once. The device may have counted more: what
    /// it dropped.
    fn hear_limit(&mut self, id: Option<SaId>, reached: Reached) {
        let Some(id) = id else { return };
        if let Some(reached) = self.sad.find_mut(id).and_then(|sa| sa.meter.note(reached)) {
            self.on_limit(id, reached);
        }
    }

    /// Whether an SA is worked on by the device, and how much of it.
    pub fn offloaded(&self, id: SaId) -> OffloadKind {
        match self.sad.find(id).map(|sa| sa.by()) {
            Some(By::Device(_, kind)) => kind,
            Some(By::Software) | None => OffloadKind::None,
        }
    }
}
