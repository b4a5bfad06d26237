//! Security associations as the driver knows them.
//!
//! Commands go on the send ring, between the packets they were given between: an SA can be used at once, and is given up
//! after all that was posted before. A place is used again, under the next generation, after the device has given it up.
//!
//! Invariant: the driver names no SA to the device that it has not told it of.

use crate::Driver;
use nic_rings::packet::{ControlCommand, SendDescriptor};
use offload_api::engines;
use offload_api::ipsec::{DeviceSaEvent, PolicyChange, SaCommand};
use offload_api::{
    ContextEvent, Direction, EspAsk, EspMode, Handle, IpsecDevice, Lifetime, Limits, OffloadKind, SaParams, SaRefused,
    Selector, Slots, TxPacket,
};
use offload_api::{Key, KeyBytes};
use offload_esp::trailer_len;
use offload_formats::frame::ETHERNET_BYTES;
use std::collections::VecDeque;

/// All SAs in the device, by place.
#[derive(Debug)]
pub(super) struct DeviceSas {
    slots: Slots<Shadow>,
    policies: u32,
    /// Commands on the ring whose end somebody waits for.
    under_way: usize,
    /// What there was no room for; each SA and policy is given up only once.
    waiting: VecDeque<ControlCommand>,
    events: VecDeque<DeviceSaEvent>,
}

/// What the driver remembers of an SA.
#[derive(Clone, Copy, Debug)]
struct Shadow {
    direction: Direction,
    kind: OffloadKind,
    leaving: bool,
}

/// What a command does to an SA's being there.
#[derive(Clone, Copy, Debug)]
pub(super) enum SaChange {
    Added(Handle),
    Removed(Handle),
}

impl SaChange {
    pub(super) fn by(command: &ControlCommand) -> Option<SaChange> {
        match command {
            ControlCommand::Create { handle, .. } => Some(SaChange::Added(*handle)),
            ControlCommand::Destroy { handle } => Some(SaChange::Removed(*handle)),
            _ => None,
        }
    }
}

/// Whether the contexts of an engine are SAs: they come and go on the send ring, and have a face of their own.
pub(super) fn has(engine: u8) -> bool {
    engine == engines::ESP
}

impl DeviceSas {
    pub(super) fn new(limit: u32) -> DeviceSas {
        DeviceSas {
            slots: Slots::new(Handle::indices(engines::ESP, limit)),
            policies: 0,
            under_way: 0,
            waiting: VecDeque::new(),
            events: VecDeque::new(),
        }
    }

    pub(super) fn waits_for_sends(&self) -> bool {
        self.under_way > 0 || !self.waiting.is_empty()
    }

    pub(super) fn has_events(&self) -> bool {
        !self.events.is_empty()
    }

    /// The device has done it.
    pub(super) fn note_done(&mut self, change: SaChange) {
        self.under_way = self.under_way.saturating_sub(1);
        match change {
            SaChange::Added(handle) => {
                if self.shadow(handle).is_some_and(|sa| sa.direction == Direction::Receive && !sa.leaving) {
                    self.events.push_back(DeviceSaEvent::Ready(handle));
                }
            }
            SaChange::Removed(handle) => {
                if self.slots.remove(handle).is_some() {
                    self.events.push_back(DeviceSaEvent::Removed(handle));
                }
            }
        }
    }

    /// The device has told of something.
    pub(super) fn note(&mut self, event: ContextEvent) {
        self.events.extend(DeviceSaEvent::of_context_event(event));
    }

    /// The device has none any more.
    pub(super) fn vacate_all(&mut self) {
        let all: Vec<Handle> = self.slots.handles().collect();
        for handle in all {
            self.slots.remove(handle);
            self.events.push_back(DeviceSaEvent::Lost(handle));
        }
        self.policies = 0;
        self.under_way = 0;
        self.waiting.clear();
    }

    fn shadow(&self, handle: Handle) -> Option<&Shadow> {
        self.slots.get(handle)
    }
}

impl Driver {
    /// Whether the device can make of a packet what it is to be.
    pub(super) fn can_protect(&self, packet: &TxPacket, ask: EspAsk) -> bool {
        if packet.ask.has_context() || packet.ask.rate.is_some() {
            return false;
        }
        match ask {
            EspAsk::Protect { sa } => self
                .sas
                .shadow(sa)
                .is_some_and(|sa| sa.direction == Direction::Transmit && sa.kind == OffloadKind::Packet && !sa.leaving),
            EspAsk::Finish { sa, at, .. } => {
                let known = self.sas.shadow(sa).is_some_and(|sa| {
                    sa.direction == Direction::Transmit && sa.kind == OffloadKind::Crypto && !sa.leaving
                });
                let payload = packet.ask.mss.map_or(packet.payload_len(), usize::from);
                let encrypted = (packet.header.len() + payload).checked_sub(usize::from(at) + offload_esp::ESP_AND_IV);
                let longest = usize::from(self.config.mtu) + ETHERNET_BYTES;
                known
                    && encrypted
                        .is_some_and(|encrypted| packet.header.len() + payload + trailer_len(encrypted) <= longest)
            }
        }
    }

    /// Posts what waited for room.
    pub(super) fn post_waiting_commands(&mut self) {
        while self.send.has_room()
            && let Some(command) = self.sas.waiting.pop_front()
        {
            self.post_command(command);
        }
        self.ring_doorbell();
    }

    fn post_command(&mut self, command: ControlCommand) {
        if SaChange::by(&command).is_some() {
            self.sas.under_way += 1;
            self.wake_when_sent();
        }
        self.post(SendDescriptor::Control { epoch: self.epoch, command: Box::new(command) });
    }

    /// Posts a command, now or when there is room: it takes something away, or changes it.
    fn post_or_wait(&mut self, command: ControlCommand) {
        self.sas.waiting.push_back(command);
        self.post_waiting_commands();
        if !self.sas.waiting.is_empty() {
            self.wake_when_sent();
        }
    }

    fn has_room_for_command(&mut self) -> bool {
        self.reap_sent();
        self.post_waiting_commands();
        self.send.has_room()
    }
}

impl IpsecDevice for Driver {
    fn add_sa(&mut self, sa: &SaParams) -> Result<Handle, SaRefused> {
        check(sa)?;
        if !self.has_room_for_command() {
            return Err(SaRefused::Busy);
        }
        let shadow = Shadow { direction: sa.direction, kind: sa.offload, leaving: false };
        let handle = self.sas.slots.insert(shadow).map_err(|_| SaRefused::NoSpace)?;
        let keys = match sa.direction {
            Direction::Transmit => Vec::new(),
            Direction::Receive => {
                vec![Key::Engine(engines::ESP, KeyBytes::of_addresses(sa.spi, sa.source, sa.destination))]
            }
        };
        let (direction, spec) = (sa.direction, Box::new(sa.clone()));
        self.post_command(ControlCommand::Create { handle, flow: None, direction, keys, spec });
        self.ring_doorbell();
        Ok(handle)
    }

    fn update_sa(&mut self, sa: Handle, lifetime: Lifetime) {
        if self.sas.shadow(sa).is_some() {
            self.post_or_wait(to_sa(sa, SaCommand::Renew(lifetime)));
        }
    }

    fn advance_sa(&mut self, sa: Handle, last: u64) -> Result<(), SaRefused> {
        let known = self.sas.shadow(sa).filter(|sa| sa.direction == Direction::Transmit && !sa.leaving);
        known.filter(|sa| sa.kind == OffloadKind::Packet).ok_or(SaRefused::UnknownSa)?;
        if !self.has_room_for_command() {
            return Err(SaRefused::Busy);
        }
        self.post_command(to_sa(sa, SaCommand::GoOnAfter(last)));
        self.ring_doorbell();
        Ok(())
    }

    fn remove_sa(&mut self, sa: Handle) {
        let Some(shadow) = self.sas.slots.get_mut(sa) else { return };
        if !core::mem::replace(&mut shadow.leaving, true) {
            self.post_or_wait(ControlCommand::Destroy { handle: sa });
        }
    }

    fn set_policy(&mut self, selector: &Selector, rank: u64, sa: Handle) -> Result<(), SaRefused> {
        let known = self.sas.shadow(sa).filter(|sa| sa.direction == Direction::Transmit && !sa.leaving);
        known.filter(|sa| sa.kind == OffloadKind::Packet).ok_or(SaRefused::UnknownSa)?;
        if !self.has_room_for_command() {
            return Err(SaRefused::Busy);
        }
        self.post_command(to_policies(PolicyChange::Set { selector: *selector, rank, sa }));
        self.ring_doorbell();
        Ok(())
    }

    fn remove_policy(&mut self, selector: &Selector, rank: u64) {
        self.post_or_wait(to_policies(PolicyChange::Remove { selector: *selector, rank }));
    }

    fn poll_sa_event(&mut self) -> Option<DeviceSaEvent> {
        self.reap_sent();
        self.reap_control();
        self.sas.events.pop_front()
    }
}

fn to_sa(handle: Handle, command: SaCommand) -> ControlCommand {
    ControlCommand::Command { handle, command: Box::new(command) }
}

fn to_policies(change: PolicyChange) -> ControlCommand {
    ControlCommand::Change { engine: engines::ESP, change: Box::new(change) }
}

/// What the device can take, as ConnectX devices have it.
fn check(sa: &SaParams) -> Result<(), SaRefused> {
    if sa.offload == OffloadKind::None {
        return Err(SaRefused::NoDevice);
    }
    if !sa.key.suite().encrypts() {
        return Err(SaRefused::Suite(sa.key.suite()));
    }
    let whole = sa.offload == OffloadKind::Packet;
    if sa.encapsulation.is_some() && !(whole && sa.mode == EspMode::Transport) {
        return Err(SaRefused::Encapsulation);
    }
    if sa.direction == Direction::Receive && (sa.source.is_unspecified() || sa.destination.is_unspecified()) {
        return Err(SaRefused::Wildcard);
    }
    if whole && sa.direction == Direction::Receive && !WINDOWS.contains(&sa.replay_window) {
        return Err(SaRefused::ReplayWindow(sa.replay_window));
    }
    let Lifetime { soft, hard } = sa.lifetime;
    if whole && !(in_order(&soft, &hard, |limits| limits.bytes) && in_order(&soft, &hard, |limits| limits.packets)) {
        return Err(SaRefused::Lifetime);
    }
    Ok(())
}

/// Whether neither is zero, and the hard limit above the soft one.
fn in_order(soft: &Limits, hard: &Limits, of: impl Fn(&Limits) -> Option<u64>) -> bool {
    let (soft, hard) = (of(soft), of(hard));
    soft != Some(0) && hard != Some(0) && soft.zip(hard).is_none_or(|(soft, hard)| soft < hard)
}

/// Replay windows of a device, in packets.
const WINDOWS: [u32; 4] = [32, 64, 128, 256];
