//! SAs and policies come and go.

use super::SecureDevice;
use crate::sad::Sa;
use core::net::IpAddr;
use offload_api::ipsec::{SaAdded, SaUse};
use offload_api::{
    Direction, EspKey, Handle, Keying, KeyingError, Lifetime, OffloadKind, Policy, SaEvent, SaId, SaParams, Selector,
};
use offload_base::Instant;

impl Keying for SecureDevice {
    fn add_sa(&mut self, now: Instant, params: SaParams) -> Result<SaAdded, KeyingError> {
        let queue = self.least_used_queue();
        self.add_sa_at(now, queue, params)
    }

    fn update_sa(&mut self, now: Instant, id: SaId, lifetime: Lifetime) -> Result<(), KeyingError> {
        let sa = self.sad.find_mut(id).ok_or(KeyingError::NotFound)?;
        if sa.retired {
            return Err(KeyingError::UsedUp);
        }
        sa.meter.renew(now, lifetime);
        sa.params.lifetime = lifetime;
        let (in_device, queue) = (sa.offload.as_ref().map(|place| place.handle), sa.queue);
        self.sad.note_deadline(id);
        if let (Some(handle), Some(device)) = (in_device, self.queues[queue].inner.ipsec()) {
            device.update_sa(handle, lifetime);
        }
        Ok(())
    }

    fn rekey_sa(&mut self, now: Instant, id: SaId, spi: u32, key: EspKey) -> Result<SaAdded, KeyingError> {
        let Sa { params: old, queue, .. } = self.sad.find(id).ok_or(KeyingError::NotFound)?;
        let (queue, successor) = (*queue, SaParams { spi, key, last_number: 0, ..old.clone() });
        if self.sad.find_exactly(old.direction, spi, old.source, old.destination).is_some() {
            return Err(KeyingError::Exists);
        }
        if old.key.is_same_as(&successor.key) {
            return Err(KeyingError::KeyReused);
        }
        // On the same ring: what its predecessor still sends is not overtaken.
        self.add_sa_at(now, queue, successor)
    }

    fn delete_sa(&mut self, id: SaId) -> Result<(), KeyingError> {
        let queue = self.sad.find(id).ok_or(KeyingError::NotFound)?.queue;
        self.take_from_device(id);
        self.leave_numbers(id);
        self.queues[queue].used -= 1;
        self.sad.remove(id);
        self.changed();
        tracing::debug!(sa = ?id, "SA deleted");
        Ok(())
    }

    fn find_sa(&self, direction: Direction, spi: u32, source: IpAddr, destination: IpAddr) -> Option<SaId> {
        self.sad.find_exactly(direction, spi, source, destination)
    }

    fn sa_use(&self, id: SaId) -> Option<SaUse> {
        let sa = self.sad.find(id)?;
        Some(SaUse { bytes: sa.meter.bytes(), packets: sa.meter.packets(), number: sa.number() })
    }

    fn lend_sas(&mut self, direction: Direction, reqid: u32) -> Result<Vec<Handle>, KeyingError> {
        self.lend(direction, reqid)
    }

    fn add_policy(&mut self, policy: Policy) -> Result<(), KeyingError> {
        self.policies[policy.direction as usize].add(policy)?;
        self.lead_to_lent(&policy);
        self.changed();
        Ok(())
    }

    fn delete_policy(&mut self, direction: Direction, selector: &Selector, priority: u32) -> Result<(), KeyingError> {
        self.policies[direction as usize].remove(selector, priority).ok_or(KeyingError::NotFound)?;
        if direction == Direction::Transmit {
            self.forget_policy(selector, priority);
        }
        self.changed();
        Ok(())
    }

    fn policies(&self, direction: Direction) -> Vec<Policy> {
        self.policies[direction as usize].policies().collect()
    }

    fn set_default(&mut self, direction: Direction, bypass: bool) {
        self.bypass[direction as usize] = bypass;
        self.changed();
    }

    fn poll_sa_event(&mut self) -> Option<SaEvent> {
        (0..self.queues.len()).for_each(|queue| self.hear_device(queue));
        self.events.pop()
    }

    fn write_numbers(&mut self) {
        self.settle_numbers();
    }
}

impl SecureDevice {
    /// Adds an SA, whose packets are to leave by `queue`.
    fn add_sa_at(&mut self, now: Instant, queue: usize, mut params: SaParams) -> Result<SaAdded, KeyingError> {
        let (offload, spi, receives) = (params.offload, params.spi, params.direction == Direction::Receive);
        let marks = self.go_on_after_mark(&mut params)?;
        // Whatever its number: nobody but a store is believed to know what was sent under it.
        let sends = (params.direction == Direction::Transmit).then(|| params.key.clone());
        let id = self.sad.add(now, params)?;
        if let Some(Err(refused)) = sends.map(|key| self.memory.used().begin(&key)) {
            self.sad.remove(id);
            return Err(refused);
        }
        self.sad.find_mut(id).into_iter().for_each(|sa| (sa.queue, sa.marks) = (queue, marks));
        self.queues[queue].used += 1;
        let refused = if offload == OffloadKind::None { None } else { self.offer_to_device(id) };
        if receives {
            self.release_held();
        }
        self.changed();
        tracing::debug!(sa = ?id, spi = %format_args!("{spi:#x}"), receives, ?refused, "SA added");
        Ok(SaAdded { sa: id, spi, refused })
    }

    /// Paths may be others now, and what waited for an SA may go.
    pub(super) fn changed(&mut self) {
        self.epoch += 1;
        self.wake();
    }

    /// Does what SAs have to do by now: lifetimes end, a path may have become wider, a translator needs to hear of us.
    pub(super) fn handle_sa_timeouts(&mut self, now: Instant) {
        while let Some(id) = self.sad.next_due(now) {
            let Some(sa) = self.sad.find_mut(id) else { return };
            let reached = sa.meter.handle_timeout(now);
            let widened = sa.forget_path_mtu(now);
            let silent = sa.was_silent(now);
            self.sad.note_deadline(id);
            if let Some(reached) = reached {
                if matches!(reached, offload_esp::Reached::Hard(_)) {
                    self.take_from_device(id);
                }
                self.on_limit(id, reached);
            }
            if widened {
                self.changed();
            }
            if let Some(ethernet) = silent {
                self.send_keep_alive(now, id, ethernet);
            }
        }
    }
}
