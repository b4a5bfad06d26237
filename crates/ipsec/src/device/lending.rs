//! SAs lent to the device for a switch. This layer never sees their packets.
//!
//! If a policy protects packets by a lent SA, the device does so for any sender.

use super::SecureDevice;
use super::sas::SaTable;
use crate::keying::{KeyingError, SaId};
use crate::sad::{Sa, Sad};
use offload_api::{Action, Direction, Handle, OffloadKind, Policy};
use std::collections::BTreeMap;

/// The lent SAs, in the order of lending.
///
/// Invariant: the numbers of a lent SA are used neither by this host nor by a later process, because only the device
/// knows how far it has counted.
#[derive(Debug, Default)]
pub(super) struct LentSas(Vec<SaId>);

impl LentSas {
    /// Lends the fully offloaded SAs of a direction and `reqid`. Returns the first reason why an SA was not lent.
    fn lend(&mut self, sas: &mut SaTable, direction: Direction, reqid: u32) -> Option<KeyingError> {
        self.0.retain(|id| sas.find(*id).is_some());
        let mut refused = None;
        for id in sas.sad().ids().filter(|id| may_lend(sas.sad(), *id, direction, reqid)).collect::<Vec<_>>() {
            match sas.lend(id) {
                Ok(()) => self.0.push(id),
                Err(error) => refused = refused.or(Some(error)),
            }
        }
        refused
    }

    /// Returns the lent SAs that the device has.
    fn in_device<'a>(&'a self, sad: &'a Sad, direction: Direction, reqid: u32) -> impl Iterator<Item = (SaId, &'a Sa)> {
        let lent = self.0.iter().filter_map(|id| Some((*id, sad.find(*id)?)));
        lent.filter(move |(_, sa)| {
            sa.params.direction == direction && sa.params.reqid == reqid && !sa.retired && sa.offload.is_some()
        })
    }
}

impl SecureDevice {
    /// Lends the fully offloaded SAs of a direction and `reqid`. The result includes SAs lent before. If an SA is used
    /// up because an earlier process lent it, the keying daemon gets an event that asks for a successor.
    pub(super) fn lend(&mut self, direction: Direction, reqid: u32) -> Result<Vec<Handle>, KeyingError> {
        let refused = self.lent.lend(&mut self.sas, direction, reqid);
        for policy in self.policies.table(direction).policies().collect::<Vec<_>>() {
            if matches!(policy.action, Action::Protect(template) if template.reqid == reqid) {
                self.install_for_lent(&policy);
            }
        }
        let lent = self.lent.in_device(self.sas.sad(), direction, reqid);
        let handles: Vec<Handle> = lent.filter_map(|(_, sa)| Some(sa.offload.as_ref()?.handle)).collect();
        refused.filter(|_| handles.is_empty()).map_or(Ok(handles), Err)
    }

    /// Installs a policy in the device for each lent SA that the policy can use.
    pub(super) fn install_for_lent(&mut self, policy: &Policy) {
        let (Direction::Transmit, Action::Protect(template)) = (policy.direction, policy.action) else { return };
        // Of several SAs between the same ends, the newest sends.
        let lent = self.lent.in_device(self.sas.sad(), Direction::Transmit, template.reqid);
        let newest: BTreeMap<_, SaId> = lent.map(|(id, sa)| ((sa.params.source, sa.params.destination), id)).collect();
        for id in newest.into_values() {
            // If the device has no room for the policy, matching packets are not protected by this SA, and no packet
            // leaves plain because of that.
            let named = (policy.selector, policy.priority);
            let _ = self.offload.install_policy(&mut self.queues, &mut self.sas, id, named);
        }
    }
}

fn may_lend(sad: &Sad, id: SaId, direction: Direction, reqid: u32) -> bool {
    sad.find(id).is_some_and(|sa| {
        let is_whole = sa.offload.as_ref().is_some_and(|place| place.kind == OffloadKind::Packet);
        let is_meant = sa.params.direction == direction && sa.params.reqid == reqid;
        is_whole && is_meant && !sa.lent && !sa.retired
    })
}
