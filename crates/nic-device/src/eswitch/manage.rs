//! What the host asks of its switch, and the frames of representors.
//!
//! Invariant: changes are made between frames, in the order they were asked for.

use super::{Sender, SwitchedDevice};
use crate::queue_pair::Interrupt;
use bytes::Bytes;
use core::task::Waker;
use nic_rings::Delays;
use nic_rings::eswitch::{EswitchAnswer, EswitchCommand, EswitchDeviceRings, RepresentedFrame};
use nic_switch::{ChangeError, Vport};
use offload_base::Instant;
use offload_base::time::earliest;

/// The device's side of the rings by which the host manages the switch.
#[derive(Debug)]
pub(super) struct Manager {
    rings: EswitchDeviceRings,
    /// When what the host has put on its rings is looked at.
    due: Option<Instant>,
    interrupt: Interrupt,
}

impl Manager {
    pub(super) fn new(rings: EswitchDeviceRings) -> Manager {
        Manager { rings, due: None, interrupt: Interrupt::default() }
    }

    pub(super) fn wake(&self) {
        self.rings.doorbell.raise();
    }

    pub(super) fn register_doorbell(&self, waker: &Waker) {
        self.rings.doorbell.arm(waker);
    }

    pub(super) fn next_event(&self) -> Option<Instant> {
        earliest(self.due, self.interrupt.due)
    }

    /// Shows the host a frame at the representor of a port. False: it has too many that it did not look at.
    pub(super) fn represent(&mut self, now: Instant, delays: Delays, port: Vport, frame: Bytes) -> bool {
        let shown = self.rings.represented.push(RepresentedFrame { port, frame }).is_ok();
        if shown {
            self.interrupt.start(now, delays.dma + delays.interrupt, &self.rings.interrupt);
        }
        shown
    }

    /// Whether there is something to be done, and it is time.
    fn is_due(&mut self, now: Instant, delays: Delays) -> bool {
        if self.rings.commands.is_empty() && self.rings.injected.is_empty() {
            return false;
        }
        let due = *self.due.get_or_insert(now + delays.doorbell + delays.dma);
        if due <= now {
            self.due = None;
        }
        due <= now
    }
}

impl SwitchedDevice {
    /// Does what the host asks, when it is time.
    pub(super) fn manage(&mut self, now: Instant) {
        let delays = self.config.delays;
        if self.manager.is_due(now, delays) {
            while let Some(command) = self.manager.rings.commands.pop() {
                let answer = self.carry_out(now, command);
                // There is room for as many answers as for commands, and the host takes one before it asks more.
                let _room = self.manager.rings.answers.push(answer);
            }
            self.manager.interrupt.start(now, delays.interrupt, &self.manager.rings.interrupt);
            while let Some(RepresentedFrame { port, frame }) = self.manager.rings.injected.pop() {
                self.switch.inject(port, frame.into(), &mut self.out);
                self.hand_out(now, None, Sender::Representor);
            }
        }
        self.manager.interrupt.raise_when_due(now, &self.manager.rings.interrupt);
    }

    fn carry_out(&mut self, now: Instant, command: EswitchCommand) -> EswitchAnswer {
        let done =
            |result: Result<(), ChangeError>| result.map_or_else(EswitchAnswer::Refused, |()| EswitchAnswer::Done);
        match command {
            EswitchCommand::Function(port, config) => self.switch.set_function(port, config),
            EswitchCommand::Remove(port) => {
                self.switch.remove_function(port);
                self.fragments_out.remove(&Sender::Port(port));
                match self.place_of(port) {
                    Ok(place) => drop(self.functions.remove(place)),
                    Err(_) => return EswitchAnswer::NoFunction(port),
                }
            }
            EswitchCommand::Reset(port) => {
                if !self.reset_function(now, port) {
                    return EswitchAnswer::NoFunction(port);
                }
            }
            EswitchCommand::Mode(mode) => self.switch.set_mode(mode),
            EswitchCommand::Change(changes) => return done(self.switch.change(&changes)),
            EswitchCommand::Replace(rules) => return done(self.switch.replace_rules(rules)),
            EswitchCommand::Tunnel(tunnel) => self.switch.add_tunnel(tunnel),
            EswitchCommand::NextHop(to, hop) => self.switch.set_next_hop(to, hop),
            EswitchCommand::Sampling(every) => self.switch.set_sampling(every),
            EswitchCommand::Protect(tunnel, key, protection) => self.switch.protect(tunnel, key, protection),
            EswitchCommand::ProtectAll(all) => self.switch.protect_all(all),
            EswitchCommand::RepresentUplink(represented) => self.uplink_represented = represented,
            EswitchCommand::Report => return EswitchAnswer::Rules(self.switch.rules().collect()),
        }
        EswitchAnswer::Done
    }
}
