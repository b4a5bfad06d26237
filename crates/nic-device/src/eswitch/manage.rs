//! The host's commands to its switch, and the frames of representors.
//!
//! Invariant: changes take effect between frames, in the order of the commands.

use super::{FrameSource, SwitchedDevice};
use crate::queue_pair::Interrupt;
use bytes::Bytes;
use core::task::Waker;
use nic_rings::Delays;
use nic_rings::eswitch::{EswitchAnswer, EswitchCommand, EswitchDeviceRings, RepresentedFrame};
use nic_switch::{ChangeError, Vport};
use offload_base::Instant;
use offload_base::time::earliest;

/// The device's end of the rings by which the host manages the switch.
#[derive(Debug)]
pub(super) struct SwitchManager {
    rings: EswitchDeviceRings,
    /// Time at which the device reads the rings.
    due: Option<Instant>,
    interrupt: Interrupt,
}

impl SwitchManager {
    pub(super) fn new(rings: EswitchDeviceRings) -> SwitchManager {
        SwitchManager { rings, due: None, interrupt: Interrupt::default() }
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

    /// Passes a frame at a port's representor to the host. Returns false if the ring is full.
    pub(super) fn represent(&mut self, now: Instant, delays: Delays, port: Vport, frame: Bytes) -> bool {
        let shown = self.rings.represented.push(RepresentedFrame { port, frame }).is_ok();
        if shown {
            self.interrupt.start(now, delays.dma + delays.interrupt, &self.rings.interrupt);
        }
        shown
    }

    /// Tests whether ring entries are due.
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
    /// Executes the host's commands that are due.
    pub(super) fn manage(&mut self, now: Instant) {
        let delays = self.config.delays;
        if self.manager.is_due(now, delays) {
            while let Some(command) = self.manager.rings.commands.pop() {
                let answer = self.carry_out(now, command);
                // The answer ring is as large as the command ring, and the host takes an answer before it sends more
                // commands.
                let _ = self.manager.rings.answers.push(answer);
            }
            self.manager.interrupt.start(now, delays.interrupt, &self.manager.rings.interrupt);
            while let Some(RepresentedFrame { port, frame }) = self.manager.rings.injected.pop() {
                self.switch.inject(port, frame.into(), &mut self.out);
                self.hand_out(now, None, FrameSource::Representor);
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
                // A new function at this port starts without the memory of the old one's fragments.
                self.fragments_out.remove(&FrameSource::Port(port));
                match self.place_of(port) {
                    // Dropping the function drops its rings, by which its driver learns of the removal.
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
