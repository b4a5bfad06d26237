//! The driver of the switch of a NIC: what a host asks of it, and the frames of representors.
//!
//! Invariant: answers are handed out in the order of the commands.

use bytes::Bytes;
use core::task::{Context, Poll, Waker};
use nic_rings::eswitch::{EswitchAnswer, EswitchCommand, EswitchDriverRings, Represented};
use nic_switch::Vport;

/// The management of a NIC's switch, the host's side. Made by `nic_sim::switched_nic`.
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
    /// Commands of which the answer was not handed out.
    asked: usize,
    commands: usize,
}

impl EswitchDriver {
    /// For `nic-sim`, which makes the device as well.
    pub fn new(rings: EswitchDriverRings) -> EswitchDriver {
        EswitchDriver { commands: rings.commands.room(), rings, asked: 0 }
    }

    /// Asks something of the switch.
    ///
    /// # Errors
    /// If there are as many questions without an answer as there is room for: gives the command back.
    pub fn command(&mut self, command: EswitchCommand) -> Result<(), Box<EswitchCommand>> {
        if self.asked == self.commands {
            return Err(Box::new(command));
        }
        self.rings.commands.push(command).map_err(Box::new)?;
        self.asked += 1;
        self.rings.doorbell.raise();
        Ok(())
    }

    /// The answer to the oldest command that has none yet, if it is there.
    pub fn answer(&mut self) -> Option<EswitchAnswer> {
        let answer = self.rings.answers.pop()?;
        self.asked -= 1;
        Some(answer)
    }

    /// The same, waiting.
    pub fn poll_answer(&mut self, cx: &mut Context<'_>) -> Poll<EswitchAnswer> {
        self.rings.interrupt.arm(cx.waker());
        self.answer().map_or(Poll::Pending, Poll::Ready)
    }

    /// A frame that no rule took, with the port it came in by.
    pub fn receive(&mut self) -> Option<(Vport, Bytes)> {
        self.rings.represented.pop().map(|Represented { port, frame }| (port, frame))
    }

    /// Sends a frame by the representor of a port: it leaves by the port. False: there is no room.
    pub fn send(&mut self, port: Vport, frame: Bytes) -> bool {
        let sent = self.rings.injected.push(Represented { port, frame }).is_ok();
        self.rings.doorbell.raise();
        sent
    }

    /// Has `waker` woken when there is an answer or a frame.
    pub fn register(&self, waker: &Waker) {
        self.rings.interrupt.arm(waker);
    }
}
