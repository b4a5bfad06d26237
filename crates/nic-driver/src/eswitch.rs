//! The driver of a NIC's switch: the host's commands, and the frames of representors.
//!
//! Invariant: answers are returned in the order of the commands.

use bytes::Bytes;
use core::task::{Context, Poll, Waker};
use nic_rings::eswitch::{EswitchAnswer, EswitchCommand, EswitchDriverRings, RepresentedFrame};
use nic_switch::Vport;

/// The host's driver of a NIC's switch. Created by `nic_sim::switched_nic`.
///
/// ```
/// use nic_sim::eswitch::{EswitchAnswer, EswitchCommand};
/// use nic_sim::wire::Port;
/// use nic_sim::{Delays, NicConfig, SwitchConfig, switched_nic};
/// use nic_switch::{SwitchMode, RuleFile};
/// use offload_base::Instant;
///
/// let config = NicConfig { delays: Delays::NONE, ..NicConfig::default() };
/// let (mut device, _host, mut eswitch) = switched_nic(config, SwitchConfig::default());
/// let file = RuleFile::parse("rules", "tc filter add dev p0 ingress prio 1 flower action drop")?;
/// for command in [EswitchCommand::Mode(SwitchMode::Switchdev), EswitchCommand::Change(file.changes)] {
///     eswitch.command(command).expect("there is room");
/// }
/// device.process(Instant::ZERO);
/// assert_eq!([eswitch.answer(), eswitch.answer()], [Some(EswitchAnswer::Done), Some(EswitchAnswer::Done)]);
/// # Ok::<(), nic_switch::ParseError>(())
/// ```
#[derive(Debug)]
pub struct EswitchDriver {
    rings: EswitchDriverRings,
    /// Number of commands without a returned answer.
    asked: usize,
    commands: usize,
}

impl EswitchDriver {
    /// Creates the driver. Called by `nic-sim`, which also creates the device.
    pub fn new(rings: EswitchDriverRings) -> EswitchDriver {
        EswitchDriver { commands: rings.commands.room(), rings, asked: 0 }
    }

    /// Sends a command to the switch.
    ///
    /// # Errors
    /// Returns the command if the maximum number of commands is unanswered.
    pub fn command(&mut self, command: EswitchCommand) -> Result<(), Box<EswitchCommand>> {
        if self.asked == self.commands {
            return Err(Box::new(command));
        }
        self.rings.commands.push(command).map_err(Box::new)?;
        self.asked += 1;
        self.rings.doorbell.raise();
        Ok(())
    }

    /// Returns the answer to the oldest unanswered command, if it has arrived.
    pub fn answer(&mut self) -> Option<EswitchAnswer> {
        let answer = self.rings.answers.pop()?;
        self.asked -= 1;
        Some(answer)
    }

    /// Polls for the answer to the oldest unanswered command.
    pub fn poll_answer(&mut self, cx: &mut Context<'_>) -> Poll<EswitchAnswer> {
        self.rings.interrupt.arm(cx.waker());
        self.answer().map_or(Poll::Pending, Poll::Ready)
    }

    /// Returns a frame that matched no rule, with the port by which it arrived.
    pub fn receive(&mut self) -> Option<(Vport, Bytes)> {
        self.rings.represented.pop().map(|RepresentedFrame { port, frame }| (port, frame))
    }

    /// Sends a frame through the representor of a port: the frame leaves by the port. Returns false if there is no
    /// room.
    pub fn send(&mut self, port: Vport, frame: Bytes) -> bool {
        let sent = self.rings.injected.push(RepresentedFrame { port, frame }).is_ok();
        self.rings.doorbell.raise();
        sent
    }

    /// Registers `waker` for the next answer or frame.
    pub fn register(&self, waker: &Waker) {
        self.rings.interrupt.arm(waker);
    }
}
