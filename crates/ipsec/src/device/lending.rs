//! SAs that the device works by for somebody else: a switch, whose packets this layer never sees.
//!
//! Where policies want packets protected by an SA that is lent, the device does so, from any sender.
//!
//! Invariant: no number of an SA that is lent is used by this host, nor by a process that starts later: the device alone knows
//! how far it has counted.

use super::SecureDevice;
use crate::sad::Sa;
use offload_api::{Direction, Handle, KeyingError, OffloadKind, SaId};
use std::collections::BTreeMap;

impl SecureDevice {
    /// Lends the SAs of a direction and a `reqid` that the device does all of; also those that are lent already.
    pub(super) fn lend(&mut self, direction: Direction, reqid: u32) -> Result<Vec<Handle>, KeyingError> {
        let Self { sad, lent, .. } = self;
        lent.retain(|id| sad.find(*id).is_some());
        let new: Vec<SaId> = self.sad.ids().filter(|id| self.may_lend(*id, direction, reqid)).collect();
        for id in new {
            self.give_numbers_away(id)?;
            self.sad.hide(id);
            self.lent.push(id);
            self.changed();
        }
        let of_reqid = self.lent.iter().filter_map(|id| Some((*id, self.sad.find(*id)?)));
        let of_reqid = of_reqid.filter(|(_, sa)| {
            sa.params.direction == direction && sa.params.reqid == reqid && !sa.retired && sa.offload.is_some()
        });
        let of_reqid: Vec<(SaId, &Sa)> = of_reqid.collect();
        let handles = of_reqid.iter().filter_map(|(_, sa)| Some(sa.offload.as_ref()?.handle)).collect();
        if direction == Direction::Transmit {
            // Of several between the same ends, the newest sends.
            let newest: BTreeMap<_, SaId> =
                of_reqid.iter().map(|(id, sa)| ((sa.params.source, sa.params.destination), *id)).collect();
            let policies = self.of_reqid.get(&reqid).cloned().unwrap_or_default();
            for id in newest.into_values() {
                for policy in &policies {
                    // One for which there is no room protects nothing, and what it is about does not leave in its place.
                    let _there_is_room = self.make_device_find(id, *policy);
                }
            }
        }
        Ok(handles)
    }

    fn may_lend(&self, id: SaId, direction: Direction, reqid: u32) -> bool {
        self.sad.find(id).is_some_and(|sa| {
            let is_whole = sa.offload.as_ref().is_some_and(|place| place.kind == OffloadKind::Packet);
            let is_meant = sa.params.direction == direction && sa.params.reqid == reqid;
            is_whole && is_meant && !sa.lent && !sa.retired
        })
    }
}
