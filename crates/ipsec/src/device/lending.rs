//! SAs that the device works by for somebody else: a switch, whose packets this layer never sees.
//!
//! Where policies want packets protected by an SA that is lent, the device does so, from any sender.
//!
//! Invariant: no number of an SA that is lent is used by this host, nor by a process that starts later: the device alone knows
//! how far it has counted.

use super::SecureDevice;
use crate::keying::{KeyingError, SaEvent, SaId};
use crate::sad::Sa;
use offload_api::{Action, Direction, Handle, Limit, OffloadKind, Policy};
use std::collections::BTreeMap;

impl SecureDevice {
    /// Lends the SAs of a direction and a `reqid` that the device does all of; also those that are lent already. Keying hears of one that is used
    /// up, because an earlier process lent it, that it needs a successor.
    pub(super) fn lend(&mut self, direction: Direction, reqid: u32) -> Result<Vec<Handle>, KeyingError> {
        let Self { sad, lent, .. } = self;
        lent.retain(|id| sad.find(*id).is_some());
        let new: Vec<SaId> = self.sad.ids().filter(|id| self.may_lend(*id, direction, reqid)).collect();
        let mut refused = None;
        for id in new {
            match self.give_numbers_away(id) {
                Ok(()) => {
                    self.sad.hide(id);
                    self.lent.push(id);
                    self.changed();
                }
                Err(error) => {
                    if error == KeyingError::UsedUp {
                        self.sad.retire(id);
                        self.tell(SaEvent::SoftLimit { sa: id, limit: Limit::Packets });
                    }
                    refused.get_or_insert(error);
                }
            }
        }
        if direction == Direction::Transmit {
            let is_of_reqid =
                |policy: &Policy| matches!(policy.action, Action::Protect(template) if template.reqid == reqid);
            for policy in self.policies[direction as usize].policies().filter(is_of_reqid).collect::<Vec<_>>() {
                self.lead_to_lent(&policy);
            }
        }
        let lent = self.lent_of(direction, reqid);
        let handles: Vec<Handle> = lent.filter_map(|(_, sa)| Some(sa.offload.as_ref()?.handle)).collect();
        refused.filter(|_| handles.is_empty()).map_or(Ok(handles), Err)
    }

    /// Has the device protect what a policy is about by SAs that are lent, if it is to be protected by one of those.
    pub(super) fn lead_to_lent(&mut self, policy: &Policy) {
        let (Direction::Transmit, Action::Protect(template)) = (policy.direction, policy.action) else { return };
        // Of several between the same ends, the newest sends.
        let lent = self.lent_of(Direction::Transmit, template.reqid);
        let newest: BTreeMap<_, SaId> = lent.map(|(id, sa)| ((sa.params.source, sa.params.destination), id)).collect();
        for id in newest.into_values() {
            // One for which there is no room protects nothing, and what it is about does not leave in its place.
            let _there_is_room = self.make_device_find(id, (policy.selector, policy.priority));
        }
    }

    /// SAs that are lent and that the device has, in the order they were lent.
    fn lent_of(&self, direction: Direction, reqid: u32) -> impl Iterator<Item = (SaId, &Sa)> {
        let lent = self.lent.iter().filter_map(|id| Some((*id, self.sad.find(*id)?)));
        lent.filter(move |(_, sa)| {
            sa.params.direction == direction && sa.params.reqid == reqid && !sa.retired && sa.offload.is_some()
        })
    }

    fn may_lend(&self, id: SaId, direction: Direction, reqid: u32) -> bool {
        self.sad.find(id).is_some_and(|sa| {
            let is_whole = sa.offload.as_ref().is_some_and(|place| place.kind == OffloadKind::Packet);
            let is_meant = sa.params.direction == direction && sa.params.reqid == reqid;
            is_whole && is_meant && !sa.lent && !sa.retired
        })
    }
}
