//! Security associations: the interface to the ESP engine's contexts, which are commanded on the send ring.

use crate::Driver;
use crate::ordered::{OrderedContext, OrderedContexts, OrderedNews};
use nic_rings::EngineDescription;
use nic_rings::packet::ControlCommand;
use offload_api::engines;
use offload_api::ipsec::{DeviceSaEvent, PolicyChange, SaCommand};
use offload_api::{
    Direction, EspAsk, Handle, IpsecDevice, Lifetime, Limits, OffloadKind, PacketAsk, SaParams, SaRefusal, Selector,
    TxPacket,
};
use offload_api::{Key, KeyBytes};
use offload_esp::trailer_len;
use offload_formats::frame::ETHERNET_BYTES;

/// All SAs in the device, with the kind of offload of each.
pub(super) type DeviceSas = OrderedContexts<OffloadKind>;

/// Creates an empty table with the engine's capacity.
pub(super) fn device_sas(of: &[EngineDescription]) -> DeviceSas {
    OrderedContexts::new(engines::ESP, of.get(usize::from(engines::ESP)).map_or(0, |engine| engine.info.contexts))
}

impl Driver {
    /// Tests whether the device can protect a packet with its SA. A failure is counted.
    pub(super) fn can_protect(&mut self, packet: &TxPacket, ask: PacketAsk) -> bool {
        let can = !packet.ask.has_context() && packet.ask.rate.is_none() && self.takes(packet, ask.into());
        self.counts.for_engine(engines::ESP).not_wrapped += u64::from(!can);
        can
    }

    /// Tests whether the device has an engine with room for SAs.
    pub(super) fn has_ipsec(&self) -> bool {
        self.description(engines::ESP).is_some_and(|engine| engine.info.contexts > 0)
    }

    fn takes(&self, packet: &TxPacket, ask: EspAsk) -> bool {
        match ask {
            EspAsk::Protect { sa } => self.ordered.sending(sa) == Some(&OffloadKind::Packet),
            EspAsk::Finish { sa, at, .. } => {
                let known = self.ordered.sending(sa) == Some(&OffloadKind::Crypto);
                let payload = packet.ask.mss.map_or(packet.payload_len(), usize::from);
                // The offset comes from the caller, and may lie beyond the packet.
                let encrypted = (packet.header.len() + payload).checked_sub(usize::from(at) + offload_esp::ESP_AND_IV);
                let longest = usize::from(self.config.mtu) + ETHERNET_BYTES;
                known
                    && encrypted
                        .is_some_and(|encrypted| packet.header.len() + payload + trailer_len(encrypted) <= longest)
            }
        }
    }

    /// Checks that a transmit SA exists, and encapsulates whole packets in the device.
    fn has_packet_sa(&self, sa: Handle) -> Result<(), SaRefusal> {
        self.ordered.sending(sa).filter(|kind| **kind == OffloadKind::Packet).map(|_| ()).ok_or(SaRefusal::UnknownSa)
    }
}

impl IpsecDevice for Driver {
    fn add_sa(&mut self, sa: &SaParams) -> Result<Handle, SaRefusal> {
        check(sa)?;
        if !self.has_room_for_command() {
            return Err(SaRefusal::Busy);
        }
        let context = OrderedContext { direction: sa.direction, leaving: false, of_engine: sa.offload };
        let handle = self.ordered.slots.insert(context).map_err(|_| SaRefusal::NoSpace)?;
        let keys = match sa.direction {
            Direction::Transmit => Vec::new(),
            Direction::Receive => {
                vec![Key::Engine(engines::ESP, KeyBytes::from_addresses(sa.spi, sa.source, sa.destination))]
            }
        };
        let (direction, spec) = (sa.direction, Box::new(sa.clone()));
        self.post_command(ControlCommand::Create { handle, flow: None, direction, keys, spec });
        self.ring_doorbell();
        Ok(handle)
    }

    fn update_sa(&mut self, sa: Handle, lifetime: Lifetime) {
        if self.ordered.slots.get(sa).is_some() {
            self.post_or_wait(to_sa(sa, SaCommand::Renew(lifetime)));
        }
    }

    fn advance_sa(&mut self, sa: Handle, last: u64) -> Result<(), SaRefusal> {
        self.has_packet_sa(sa)?;
        if !self.has_room_for_command() {
            return Err(SaRefusal::Busy);
        }
        self.post_command(to_sa(sa, SaCommand::GoOnAfter(last)));
        self.ring_doorbell();
        Ok(())
    }

    fn remove_sa(&mut self, sa: Handle) {
        let Some(context) = self.ordered.slots.get_mut(sa) else { return };
        // A repeated removal must not post a second command.
        if !core::mem::replace(&mut context.leaving, true) {
            self.post_or_wait(ControlCommand::Destroy { handle: sa });
        }
    }

    fn set_policy(&mut self, selector: &Selector, rank: u64, sa: Handle) -> Result<(), SaRefusal> {
        self.has_packet_sa(sa)?;
        if !self.has_room_for_command() {
            return Err(SaRefusal::Busy);
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
        while let Some(news) = self.ordered.pop_news() {
            let event = match news {
                OrderedNews::Ready(sa) => Some(DeviceSaEvent::Ready(sa)),
                OrderedNews::Removed(sa) => Some(DeviceSaEvent::Removed(sa)),
                OrderedNews::Lost(sa) => Some(DeviceSaEvent::Lost(sa)),
                OrderedNews::Event(event) => DeviceSaEvent::from_context_event(event),
            };
            if event.is_some() {
                return event;
            }
        }
        None
    }
}

fn to_sa(handle: Handle, command: SaCommand) -> ControlCommand {
    ControlCommand::Command { handle, command: Box::new(command) }
}

fn to_policies(change: PolicyChange) -> ControlCommand {
    ControlCommand::Change { engine: engines::ESP, change: Box::new(change) }
}

/// Checks that the device supports an SA: like ConnectX devices, and also AES-GMAC, tunnels in UDP and larger windows.
fn check(sa: &SaParams) -> Result<(), SaRefusal> {
    if sa.offload == OffloadKind::None {
        return Err(SaRefusal::NoDevice);
    }
    let whole = sa.offload == OffloadKind::Packet;
    if sa.encapsulation.is_some() && !whole {
        return Err(SaRefusal::Encapsulation);
    }
    if sa.direction == Direction::Receive && (sa.source.is_unspecified() || sa.destination.is_unspecified()) {
        return Err(SaRefusal::Wildcard);
    }
    if whole && sa.direction == Direction::Receive && !WINDOWS.contains(&sa.replay_window) {
        return Err(SaRefusal::ReplayWindow(sa.replay_window));
    }
    let Lifetime { soft, hard } = sa.lifetime;
    if whole && !(in_order(&soft, &hard, |limits| limits.bytes) && in_order(&soft, &hard, |limits| limits.packets)) {
        return Err(SaRefusal::Lifetime);
    }
    Ok(())
}

/// Tests that no limit is zero, and that the hard limit is above the soft one.
fn in_order(soft: &Limits, hard: &Limits, of: impl Fn(&Limits) -> Option<u64>) -> bool {
    let (soft, hard) = (of(soft), of(hard));
    soft != Some(0) && hard != Some(0) && soft.zip(hard).is_none_or(|(soft, hard)| soft < hard)
}

/// Sizes of a device's replay window, in packets.
const WINDOWS: [u32; 8] = [32, 64, 128, 256, 512, 1024, 2048, 4096];
