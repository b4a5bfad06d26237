//! The policies and their decisions.

use super::sas::SaTable;
use crate::keying::SaId;
use crate::spd::Spd;
use core::cell::Cell;
use offload_api::ipsec::Packet;
use offload_api::{Action, Direction, Selector};
use offload_formats::IpView;

/// The policies of both directions, and the defaults for unmatched packets.
///
/// Invariant: a cached decision is valid only in the epoch in which it was made.
#[derive(Debug, Default)]
pub(super) struct PolicyTables {
    /// One database per direction.
    databases: [Spd; 2],
    /// Whether unmatched packets pass, per direction.
    bypass: [bool; 2],
    /// The last decision and its packet. A stack asks three times about each packet: for its path, for room, and for
    /// sending.
    decided: Cell<Option<(Packet, PolicyDecision)>>,
}

/// The decision about packets to be sent, valid while policies and SAs do not change.
#[derive(Clone, Copy, Debug)]
pub(super) struct PolicyDecision {
    /// The epoch in which the decision was made.
    epoch: u64,
    /// The matching policy's action, or the default.
    pub(super) action: Option<Action>,
    /// The matching policy's selector and priority.
    pub(super) policy: Option<(Selector, u32)>,
    /// The SA, if the packet is protected and the SA exists.
    pub(super) sa: Option<SaId>,
}

impl PolicyTables {
    pub(super) fn table(&self, direction: Direction) -> &Spd {
        &self.databases[direction as usize]
    }

    pub(super) fn table_mut(&mut self, direction: Direction) -> &mut Spd {
        &mut self.databases[direction as usize]
    }

    /// Sets whether unmatched packets pass.
    pub(super) fn set_default(&mut self, direction: Direction, bypass: bool) {
        self.bypass[direction as usize] = bypass;
    }

    /// Decides about a packet to be sent.
    pub(super) fn decide(&self, sas: &SaTable, packet: &Packet) -> PolicyDecision {
        if let Some((asked, decision)) = self.decided.get()
            && decision.epoch == sas.epoch()
            && asked == *packet
        {
            return decision;
        }
        let policy = self.table(Direction::Transmit).find(packet);
        let action = policy.map(|policy| policy.action).or(self.default_of(Direction::Transmit));
        let named = policy.map(|policy| (policy.selector, policy.priority));
        let sa = match &action {
            Some(Action::Protect(template)) => sas.sad().find_wanted(template, packet),
            _ => None,
        };
        let decision = PolicyDecision { epoch: sas.epoch(), action, policy: named, sa };
        self.decided.set(Some((*packet, decision)));
        decision
    }

    /// Returns the action for a packet of this direction.
    pub(super) fn action(&self, direction: Direction, packet: &Packet) -> Option<Action> {
        self.table(direction).action(packet).or(self.default_of(direction))
    }

    fn default_of(&self, direction: Direction) -> Option<Action> {
        self.bypass[direction as usize].then_some(Action::Bypass)
    }

    /// Tests whether the decision about a fragment depends on fields that only the whole packet shows.
    pub(super) fn needs_whole_packet(&self, direction: Direction, view: &IpView, selectors: &Packet) -> bool {
        view.hides_protocol() || (view.may_hide_ports() && self.table(direction).asks_for_ports(selectors))
    }
}
