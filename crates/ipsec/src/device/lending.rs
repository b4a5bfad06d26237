//! SAs that the device works by for somebody else: a switch, whose packets this layer never sees.
//!
//! Invariant: no number of an SA that is lent is used by this host, nor by a process that starts later: the device alone knows
//! how far it has counted.

use super::SecureDevice;
use offload_api::{Direction, Handle, KeyingError, OffloadKind, SaId};

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
        let of_reqid = self
            .lent
            .iter()
            .filter_map(|id| self.sad.find(*id))
            .filter(|sa| sa.params.direction == direction && sa.params.reqid == reqid && !sa.retired);
        Ok(of_reqid.filter_map(|sa| sa.offload.as_ref().map(|place| place.handle)).collect())
    }

    fn may_lend(&self, id: SaId, direction: Direction, reqid: u32) -> bool {
        self.sad.find(id).is_some_and(|sa| {
            let is_whole = sa.offload.as_ref().is_some_and(|place| place.kind == OffloadKind::Packet);
            let is_meant = sa.params.direction == direction && sa.params.reqid == reqid;
            is_whole && is_meant && !sa.lent && !sa.retired
        })
    }
}
