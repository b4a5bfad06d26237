//! Policies, and the decisions they lead to.

use super::sas::Sas;
use crate::keying::SaId;
use crate::spd::Spd;
use core::cell::Cell;
use offload_api::ipsec::Packet;
use offload_api::{Action, Direction, Selector};
use offload_formats::IpView;

/// The policies of both directions, and what is done with packets that no policy is about.
///
/// Invariant: a remembered decision counts only as long as policies and SAs are as they were when it was made.
#[derive(Debug, Default)]
pub(super) struct Policies {
    /// For packets sent, and for packets received.
    databases: [Spd; 2],
    /// Whether packets pass that no policy is about.
    bypass: [bool; 2],
    /// What is done with packets like the one that was asked about last. A stack asks three times about each: for its
    /// path, for room, and when it sends it.
    decided: Cell<Option<(Packet, Decision)>>,
}

/// What is done with packets to be sent, as long as policies and SAs are what they are.
#[derive(Clone, Copy, Debug)]
pub(super) struct Decision {
    /// When it was decided.
    epoch: u64,
    /// The action of the policy that matches, or the default.
    pub(super) action: Option<Action>,
    /// Which one: its selector and priority.
    pub(super) policy: Option<(Selector, u32)>,
    /// The SA, if they are to be protected and there is one.
    pub(super) sa: Option<SaId>,
}

impl Policies {
    pub(super) fn of(&self, direction: Direction) -> &Spd {
        &self.databases[direction as usize]
    }

    pub(super) fn of_mut(&mut self, direction: Direction) -> &mut Spd {
        &mut self.databases[direction as usize]
    }

    /// Sets whether packets pass that no policy is about.
    pub(super) fn set_default(&mut self, direction: Direction, bypass: bool) {
        self.bypass[direction as usize] = bypass;
    }

    /// What is done with a packet to be sent, and by which SA.
    pub(super) fn decide(&self, sas: &Sas, packet: &Packet) -> Decision {
        if let Some((asked, decision)) = self.decided.get()
            && decision.epoch == sas.epoch()
            && asked == *packet
        {
            return decision;
        }
        let policy = self.of(Direction::Transmit).find(packet);
        let action = policy.map(|policy| policy.action).or(self.default_of(Direction::Transmit));
        let named = policy.map(|policy| (policy.selector, policy.priority));
        let sa = match &action {
            Some(Action::Protect(template)) => sas.sad().find_wanted(template, packet),
            _ => None,
        };
        let decision = Decision { epoch: sas.epoch(), action, policy: named, sa };
        self.decided.set(Some((*packet, decision)));
        decision
    }

    /// What is done with a packet.
    pub(super) fn action(&self, direction: Direction, packet: &Packet) -> Option<Action> {
        self.of(direction).action(packet).or(self.default_of(direction))
    }

    fn default_of(&self, direction: Direction) -> Option<Action> {
        self.bypass[direction as usize].then_some(Action::Bypass)
    }

    /// Whether what is done with a fragment depends on what only the whole packet shows.
    pub(super) fn must_be_whole(&self, direction: Direction, view: &IpView, selectors: &Packet) -> bool {
        view.hides_protocol() || (view.may_hide_ports() && self.of(direction).asks_for_ports(selectors))
    }
}
