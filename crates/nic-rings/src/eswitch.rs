//! The host's control of its NIC's switch: commands, answers in the same order, and the frames of representors.
//!
//! Invariant: there is room for the answer to every command on the ring.

use crate::ring::{Consumer, Producer, ring};
use crate::signal::Signal;
use bytes::Bytes;
use core::net::IpAddr;
use core::time::Duration;
use nic_switch::{
    Change, ChangeError, FunctionConfig, Rule, RuleReport, SwitchMode, Tunnel, TunnelDevice, TunnelHop,
    TunnelProtection, Vport,
};

/// A command to the switch.
///
/// ```
/// use nic_rings::eswitch::EswitchCommand;
/// use nic_switch::{SwitchMode, Vport};
///
/// assert_ne!(EswitchCommand::Mode(SwitchMode::Switchdev), EswitchCommand::Reset(Vport::Virtual(3)));
/// ```
#[derive(Clone, Debug, PartialEq)]
pub enum EswitchCommand {
    /// Creates a function.
    Function(Vport, FunctionConfig),
    /// Removes a function. Frames that its driver still sends are dropped.
    Remove(Vport),
    /// Resets a function: its contexts and its queued packets are discarded.
    Reset(Vport),
    /// Selects the component that decides about forwarding.
    Mode(SwitchMode),
    /// Changes rules, all or none of them.
    Change(Vec<Change>),
    /// Replaces all rules.
    Replace(Vec<Rule>),
    /// Adds a tunnel.
    Tunnel(Tunnel),
    /// Sets or removes the next hop towards a tunnel's remote end.
    NextHop(IpAddr, Option<TunnelHop>),
    /// Sets the interval at which rules pass a frame to their representor. `None`: never.
    Sampling(Option<Duration>),
    /// Sets or removes the SAs, of the first queue of the host's function, that protect a network of a tunnel.
    Protect(TunnelDevice, Option<u32>, Option<TunnelProtection>),
    /// Sets whether tunnel packets pass only under an SA, even for networks without a protection of their own.
    ProtectAll(bool),
    /// Sets whether frames from the wire that match no rule go to the uplink's representor on the rings, as for other
    /// ports. The host's own function then receives only frames for neighbour discovery.
    RepresentUplink(bool),
    /// Requests the rules with their counters.
    Report,
}

/// An answer of the switch.
///
/// ```
/// use nic_rings::eswitch::EswitchAnswer;
///
/// assert_ne!(EswitchAnswer::Done, EswitchAnswer::Rules(Vec::new()));
/// ```
#[derive(Clone, Debug, PartialEq)]
pub enum EswitchAnswer {
    /// The command was carried out.
    Done,
    /// The command was refused, and nothing has changed.
    Refused(ChangeError),
    /// The port has no function.
    NoFunction(Vport),
    /// The rules with their counters.
    Rules(Vec<RuleReport>),
}

/// A frame at the representor of a port.
///
/// ```
/// use bytes::Bytes;
/// use nic_rings::eswitch::RepresentedFrame;
/// use nic_switch::Vport;
///
/// let frame = RepresentedFrame { port: Vport::Virtual(0), frame: Bytes::from_static(&[0; 60]) };
/// assert_eq!(frame.port.to_string(), "pf0vf0");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RepresentedFrame {
    /// Port by which the frame arrived, or will leave.
    pub port: Vport,
    /// The frame.
    pub frame: Bytes,
}

/// The device's ends of the switch rings.
///
/// See [`eswitch_rings`] for an example.
#[derive(Debug)]
pub struct EswitchDeviceRings {
    /// Commands from the host.
    pub commands: Consumer<EswitchCommand>,
    /// Answers to the commands.
    pub answers: Producer<EswitchAnswer>,
    /// Frames that matched no rule.
    pub represented: Producer<RepresentedFrame>,
    /// Frames that the host sends through representors.
    pub injected: Consumer<RepresentedFrame>,
    /// Doorbell from host to device.
    pub doorbell: Signal,
    /// Interrupt from device to host.
    pub interrupt: Signal,
}

/// The host's ends of the switch rings.
///
/// See [`eswitch_rings`] for an example.
#[derive(Debug)]
pub struct EswitchDriverRings {
    /// Commands to the switch.
    pub commands: Producer<EswitchCommand>,
    /// Answers to the commands.
    pub answers: Consumer<EswitchAnswer>,
    /// Frames that matched no rule.
    pub represented: Consumer<RepresentedFrame>,
    /// Frames that the host sends through representors.
    pub injected: Producer<RepresentedFrame>,
    /// Doorbell from host to device.
    pub doorbell: Signal,
    /// Interrupt from device to host.
    pub interrupt: Signal,
}

/// Creates the rings of a switch for `commands` commands, and `frames` frames of representors in each direction.
///
/// ```
/// use nic_rings::eswitch::{EswitchCommand, eswitch_rings};
///
/// let (mut device, mut driver) = eswitch_rings(16, 256);
/// driver.commands.push(EswitchCommand::Report).unwrap();
/// assert_eq!(device.commands.pop(), Some(EswitchCommand::Report));
/// ```
pub fn eswitch_rings(commands: usize, frames: usize) -> (EswitchDeviceRings, EswitchDriverRings) {
    // As many answers as commands: the device never waits for room.
    let (to_device, taken) = ring(commands);
    let (answers, answered) = ring(commands);
    // A full ring of frames drops frames, as a slow port does. It never blocks commands.
    let (up, represented) = ring(frames);
    let (injected, down) = ring(frames);
    let (doorbell, interrupt) = (Signal::new(), Signal::new());
    let device = EswitchDeviceRings {
        commands: taken,
        answers,
        represented: up,
        injected: down,
        doorbell: doorbell.clone(),
        interrupt: interrupt.clone(),
    };
    (device, EswitchDriverRings { commands: to_device, answers: answered, represented, injected, doorbell, interrupt })
}
