//! The keying interface: adds, changes and deletes SAs and policies.

use super::SecureDevice;
use crate::keying::{Keying, KeyingError, SaAdded, SaEvent, SaId, SaUse};
use crate::sad::Sa;
use core::net::IpAddr;
use offload_api::{Direction, EspKey, Handle, Lifetime, OffloadKind, Policy, SaParams, Selector};
use offload_base::Instant;
use offload_esp::ReachedLimit;

impl Keying for SecureDevice {
    fn add_sa(&mut self, now: Instant, params: SaParams) -> Result<SaAdded, KeyingError> {
        let queue = self.sas.least_used_queue();
        self.add_sa_at(now, queue, params)
    }

    fn update_sa(&mut self, now: Instant, id: SaId, lifetime: Lifetime) -> Result<(), KeyingError> {
        let sa = self.sas.renew(now, id, lifetime)?;
        if let (Some(place), Some(device)) = (&sa.offload, self.queues[sa.queue].inner.ipsec()) {
            device.update_sa(place.handle, lifetime);
        }
        Ok(())
    }

    fn rekey_sa(&mut self, now: Instant, id: SaId, spi: u32, key: EspKey) -> Result<SaAdded, KeyingError> {
        let Sa { params: old, queue, .. } = self.sas.find(id).ok_or(KeyingError::NotFound)?;
        let (queue, successor) = (*queue, SaParams { spi, key, last_number: 0, ..old.clone() });
        if self.sas.sad().find_exactly(old.direction, spi, old.source, old.destination).is_some() {
            return Err(KeyingError::Exists);
        }
        if old.key.is_same_as(&successor.key) {
            return Err(KeyingError::KeyReused);
        }
        // On the same ring, so that the successor's packets cannot overtake its predecessor's.
        self.add_sa_at(now, queue, successor)
    }

    fn delete_sa(&mut self, id: SaId) -> Result<(), KeyingError> {
        self.sas.find(id).ok_or(KeyingError::NotFound)?;
        self.offload.remove_from_device(&mut self.queues, &mut self.sas, id);
        self.sas.remove(id);
        tracing::debug!(sa = ?id, "SA deleted");
        Ok(())
    }

    fn find_sa(&self, direction: Direction, spi: u32, source: IpAddr, destination: IpAddr) -> Option<SaId> {
        self.sas.sad().find_exactly(direction, spi, source, destination)
    }

    fn sa_use(&self, id: SaId) -> Option<SaUse> {
        let sa = self.sas.find(id)?;
        Some(SaUse { bytes: sa.meter.bytes(), packets: sa.meter.packets(), number: sa.number() })
    }

    fn lend_sas(&mut self, direction: Direction, reqid: u32) -> Result<Vec<Handle>, KeyingError> {
        self.lend(direction, reqid)
    }

    fn add_policy(&mut self, policy: Policy) -> Result<(), KeyingError> {
        self.policies.table_mut(policy.direction).add(policy)?;
        self.install_for_lent(&policy);
        self.sas.changed();
        Ok(())
    }

    fn delete_policy(&mut self, direction: Direction, selector: &Selector, priority: u32) -> Result<(), KeyingError> {
        self.policies.table_mut(direction).remove(selector, priority).ok_or(KeyingError::NotFound)?;
        if direction == Direction::Transmit {
            self.offload.forget_policy(&mut self.queues, &mut self.sas, selector, priority);
        }
        self.sas.changed();
        Ok(())
    }

    fn policies(&self, direction: Direction) -> Vec<Policy> {
        self.policies.table(direction).policies().collect()
    }

    fn set_default(&mut self, direction: Direction, bypass: bool) {
        self.policies.set_default(direction, bypass);
        self.sas.changed();
    }

    fn poll_sa_event(&mut self) -> Option<SaEvent> {
        (0..self.queues.len())
            .for_each(|queue| self.offload.apply_device_events(&mut self.queues, &mut self.sas, queue));
        self.sas.pop_event()
    }

    fn write_numbers(&mut self) {
        self.sas.write_exact_numbers();
    }
}

impl SecureDevice {
    /// Adds an SA with a given queue.
    fn add_sa_at(&mut self, now: Instant, queue: usize, params: SaParams) -> Result<SaAdded, KeyingError> {
        let (offload, spi, receives) = (params.offload, params.spi, params.direction == Direction::Receive);
        let id = self.sas.add(now, queue, params)?;
        let wanted = offload != OffloadKind::None;
        let refused = wanted.then(|| self.offload.offer(&mut self.queues, &mut self.sas, id)).flatten();
        if receives {
            self.counters.in_held_opened += self.held.release(self.sas.sad(), &mut self.queues);
        }
        self.sas.changed();
        tracing::debug!(sa = ?id, spi = %format_args!("{spi:#x}"), receives, ?refused, "SA added");
        Ok(SaAdded { sa: id, spi, refused })
    }

    /// Runs all due timers of SAs: lifetimes, path MTUs and keep-alives.
    pub(super) fn handle_sa_timeouts(&mut self, now: Instant) {
        while let Some(due) = self.sas.next_due(now) {
            if let Some(reached) = due.reached {
                if matches!(reached, ReachedLimit::Hard(_)) {
                    self.offload.remove_from_device(&mut self.queues, &mut self.sas, due.sa);
                }
                self.sas.on_limit(due.sa, reached);
            }
            if due.path_mtu_expired {
                self.sas.changed();
            }
            if let Some(ethernet) = due.keep_alive {
                self.send_keep_alive(now, due.sa, ethernet);
            }
        }
    }
}
