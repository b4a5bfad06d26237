//! How the host manages the switch of its NIC: commands, their answers in the same order, and the frames of representors.
//!
//! Invariant: there is room for the answer of every command that the ring took.

use crate::ring::{Consumer, Producer, ring};
use crate::signal::Signal;
use bytes::Bytes;
use core::net::IpAddr;
use core::time::Duration;
use nic_switch::{
    Change, ChangeError, FunctionConfig, SwitchMode, NextHop, TunnelProtection, Rule, RuleReport, Tunnel, TunnelDevice, Vport,
};

/// What the switch is told.
///
/// ```
/// use nic_rings::eswitch::EswitchCommand;
/// use nic_switch::{SwitchMode, Vport};
///
/// assert_ne!(EswitchCommand::Mode(SwitchMode::Switchdev), EswitchCommand::Reset(Vport::Virtual(3)));
/// ```
#[derive(Clone, Debug, PartialEq)]
pub enum EswitchCommand {
    /// Sets up a function.
    Function(Vport, FunctionConfig),
    /// Removes a function. What its driver still sends goes nowhere.
    Remove(Vport),
    /// Resets a function: its contexts and what it was to send are gone.
    Reset(Vport),
    /// Sets who decides where frames go.
    Mode(SwitchMode),
    /// Changes rules, all or none.
    Change(Vec<Change>),
    /// Puts rules in place of all that there are.
    Replace(Vec<Rule>),
    /// Adds a tunnel.
    Tunnel(Tunnel),
    /// Tells the way to a tunnel's other end, or that there is none any more.
    NextHop(IpAddr, Option<NextHop>),
    /// Has rules leave a frame to their representor as often as this; `None`: never.
    Sampling(Option<Duration>),
    /// Says by which SAs of the first queue of the host's function a network of a tunnel is protected, or that it is not.
    Protect(TunnelDevice, Option<u32>, Option<TunnelProtection>),
    /// Says whether packets of tunnels pass only under an SA, whatever networks are named.
    ProtectAll(bool),
    /// Says whether what no rule takes of the wire's frames goes to the uplink's representor on the rings, as that of other ports does. The
    /// host's own function gets of it only what finds neighbours.
    RepresentUplink(bool),
    /// Asks for the rules and what they have seen.
    Report,
}

/// What the switch answers.
///
/// ```
/// use nic_rings::eswitch::EswitchAnswer;
///
/// assert_ne!(EswitchAnswer::Done, EswitchAnswer::Rules(Vec::new()));
/// ```
#[derive(Clone, Debug, PartialEq)]
pub enum EswitchAnswer {
    /// It is done.
    Done,
    /// Nothing has changed.
    Refused(ChangeError),
    /// There is no function at this port.
    NoFunction(Vport),
    /// The rules.
    Rules(Vec<RuleReport>),
}

/// A frame at the representor of a port.
///
/// ```
/// use bytes::Bytes;
/// use nic_rings::eswitch::Represented;
/// use nic_switch::Vport;
///
/// let frame = Represented { port: Vport::Virtual(0), frame: Bytes::from_static(&[0; 60]) };
/// assert_eq!(frame.port.to_string(), "pf0vf0");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Represented {
    /// The port that the frame came in by, or is to leave by.
    pub port: Vport,
    /// The frame.
    pub frame: Bytes,
}

/// The device's ends.
///
/// See [`eswitch_rings`] for an example.
#[derive(Debug)]
pub struct EswitchDeviceRings {
    /// Commands.
    pub commands: Consumer<EswitchCommand>,
    /// Their answers.
    pub answers: Producer<EswitchAnswer>,
    /// Frames that no rule took.
    pub represented: Producer<Represented>,
    /// Frames that the host sends by representors.
    pub injected: Consumer<Represented>,
    /// Host to device.
    pub doorbell: Signal,
    /// Device to host.
    pub interrupt: Signal,
}

/// The host's ends.
///
/// See [`eswitch_rings`] for an example.
#[derive(Debug)]
pub struct EswitchDriverRings {
    /// Commands.
    pub commands: Producer<EswitchCommand>,
    /// Their answers.
    pub answers: Consumer<EswitchAnswer>,
    /// Frames that no rule took.
    pub represented: Consumer<Represented>,
    /// Frames that the host sends by representors.
    pub injected: Producer<Represented>,
    /// Host to device.
    pub doorbell: Signal,
    /// Device to host.
    pub interrupt: Signal,
}

/// Makes the rings of a switch, for so many commands, and so many frames of representors each way.
///
/// ```
/// use nic_rings::eswitch::{EswitchCommand, eswitch_rings};
///
/// let (mut device, mut driver) = eswitch_rings(16, 256);
/// driver.commands.push(EswitchCommand::Report).unwrap();
/// assert_eq!(device.commands.pop(), Some(EswitchCommand::Report));
/// ```
pub fn eswitch_rings(commands: usize, frames: usize) -> (EswitchDeviceRings, EswitchDriverRings) {
    let (to_device, taken) = ring(commands);
    let (answers, answered) = ring(commands);
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
