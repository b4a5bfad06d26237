//! SAs that the device works by for somebody else: a switch, whose packets this layer never sees.
//!
//! Where policies want packets protected by an SA that is lent, the device does so, from any sender.

use super::SecureDevice;
use super::sas::Sas;
use crate::keying::{KeyingError, SaId};
use crate::sad::{Sa, Sad};
use offload_api::{Action, Direction, Handle, OffloadKind, Policy};
use std::collections::BTreeMap;

/// The SAs that are lent, in the order they were.
///
/// Invariant: no number of an SA that is lent is used by this host, nor by a process that starts later: the device alone knows
/// how far it has counted.
#[derive(Debug, Default)]
pub(super) struct Lent(Vec<SaId>);

impl Lent {
    /// Lends the SAs of a direction and a `reqid` that the device does all of; returns why one of them is not lent.
    fn lend(&mut self, sas: &mut Sas, direction: Direction, reqid: u32) -> Option<KeyingError> {
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

    /// SAs that are lent and that the device has.
    fn of<'a>(&'a self, sad: &'a Sad, direction: Direction, reqid: u32) -> impl Iterator<Item = (SaId, &'a Sa)> {
        let lent = self.0.iter().filter_map(|id| Some((*id, sad.find(*id)?)));
        lent.filter(move |(_, sa)| {
            sa.params.direction == direction && sa.params.reqid == reqid && !sa.retired && sa.offload.is_some()
        })
    }
}

impl SecureDevice {
    /// Lends the SAs of a direction and a `reqid` that the device does all of; also those that are lent already. Keying hears of one that is used
    /// up, because an earlier process lent it, that it needs a successor.
    pub(super) fn lend(&mut self, direction: Direction, reqid: u32) -> Result<Vec<Handle>, KeyingError> {
        let refused = self.lent.lend(&mut self.sas, direction, reqid);
        for policy in self.policies.of(direction).policies().collect::<Vec<_>>() {
            if matches!(policy.action, Action::Protect(template) if template.reqid == reqid) {
                self.lead_to_lent(&policy);
            }
        }
        let lent = self.lent.of(self.sas.sad(), direction, reqid);
        let handles: Vec<Handle> = lent.filter_map(|(_, sa)| Some(sa.offload.as_ref()?.handle)).collect();
        refused.filter(|_| handles.is_empty()).map_or(Ok(handles), Err)
    }

    /// Has the device protect what a policy is about by SAs that are lent, if it is to be protected by one of those.
    pub(super) fn lead_to_lent(&mut self, policy: &Policy) {
        let (Direction::Transmit, Action::Protect(template)) = (policy.direction, policy.action) else { return };
        // Of several between the same ends, the newest sends.
        let lent = self.lent.of(self.sas.sad(), Direction::Transmit, template.reqid);
        let newest: BTreeMap<_, SaId> = lent.map(|(id, sa)| ((sa.params.source, sa.params.destination), id)).collect();
        for id in newest.into_values() {
            // One for which there is no room protects nothing, and what it is about does not leave in its place.
            let named = (policy.selector, policy.priority);
            let _there_is_room = self.offload.install_policy(&mut self.queues, &mut self.sas, id, named);
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
