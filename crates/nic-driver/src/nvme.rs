//! NVMe/TCP contexts as the driver knows them.
//!
//! Nothing is sent with those for what arrives, so they can be given up at once; but a command that finds the control
//! ring full waits here, for buffers have to come home. Those for what leaves are given up after the last descriptor
//! that uses them.
//!
//! Invariant: whatever a peer sends, no command waits twice; so no more wait than there are contexts and commands of theirs.

use crate::Driver;
use crate::recovery::Sending;
use nic_rings::packet::ControlCommand;
use offload_api::{
    Direction, FlowKey, Handle, Key, Layer, NvmeTcpConfig, NvmeTcpContext, NvmeTcpDevice, NvmeTcpLimits, Piece,
    Refused, Slots, engines,
};
use offload_base::Seq;
use std::collections::{HashSet, VecDeque};

/// All contexts, by place. Looked up, never walked.
#[derive(Debug)]
pub(super) struct NvmeContexts {
    slots: Slots<Context>,
    /// For when the control ring has room; each once.
    waiting: VecDeque<Waiting>,
    /// What is in `waiting`.
    waits: HashSet<Waiting>,
    /// How many contexts are to be given up when their last descriptor is done.
    leaving: usize,
}

/// A command that waits for room. Given a second time meanwhile, it would say nothing new: a query asks for what is so when
/// it is carried out, of answers the last one counts, and nothing is placed while something waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Waiting {
    Query(Handle),
    Answer(Handle),
    Unplace(Handle, u16),
    Destroy(Handle),
}

#[derive(Debug)]
struct Context {
    flow: FlowKey,
    transmit: Option<Transmit>,
    /// Where software was asked whether a PDU begins, and what it said last.
    answer: Option<(Seq, bool)>,
}

/// What the driver remembers of a transmit context.
#[derive(Clone, Copy, Debug, Default)]
struct Transmit {
    sending: Sending,
    /// Descriptors under way that use the context.
    under_way: u32,
    leaving: bool,
}

impl NvmeContexts {
    pub(super) fn new(limit: u32) -> NvmeContexts {
        NvmeContexts {
            slots: Slots::new(Handle::indices(engines::NVME_TCP, limit)),
            waiting: VecDeque::new(),
            waits: HashSet::new(),
            leaving: 0,
        }
    }

    pub(super) fn flow(&self, handle: Handle) -> Option<FlowKey> {
        self.context(handle).map(|context| context.flow)
    }

    /// A transmit context that packets may name.
    pub(super) fn sending(&self, handle: Handle) -> Option<&Sending> {
        let transmit = self.context(handle)?.transmit.as_ref().filter(|transmit| !transmit.leaving)?;
        Some(&transmit.sending)
    }

    pub(super) fn sending_mut(&mut self, handle: Handle) -> Option<&mut Sending> {
        let transmit = self.context_mut(handle)?.transmit.as_mut().filter(|transmit| !transmit.leaving)?;
        Some(&mut transmit.sending)
    }

    /// A descriptor that uses the context was posted.
    pub(super) fn note_posted(&mut self, handle: Handle) {
        if let Some(Context { transmit: Some(transmit), .. }) = self.context_mut(handle) {
            transmit.under_way += 1;
        }
    }

    /// One was done; with the last one, a context that is to be given up goes.
    pub(super) fn note_done(&mut self, handle: Handle) {
        let Some(Context { transmit: Some(transmit), .. }) = self.context_mut(handle) else { return };
        transmit.under_way -= 1;
        if transmit.leaving && transmit.under_way == 0 {
            self.leaving -= 1;
            self.wait(Waiting::Destroy(handle));
        }
    }

    /// Whether a context is to be given up when descriptors are done.
    pub(super) fn waits_for_sends(&self) -> bool {
        self.leaving > 0
    }

    fn context(&self, handle: Handle) -> Option<&Context> {
        self.slots.get(handle)
    }

    fn context_mut(&mut self, handle: Handle) -> Option<&mut Context> {
        self.slots.get_mut(handle)
    }

    /// The device has given the context up, or never had it.
    pub(super) fn vacate(&mut self, handle: Handle) -> Option<FlowKey> {
        self.slots.remove(handle).map(|context| context.flow)
    }

    pub(super) fn vacate_all(&mut self) {
        let all: Vec<Handle> = self.slots.handles().collect();
        for handle in all {
            self.vacate(handle);
        }
        self.waiting.clear();
        self.waits.clear();
        self.leaving = 0;
    }

    fn wait(&mut self, command: Waiting) {
        if self.waits.insert(command) {
            self.waiting.push_back(command);
        }
    }

    /// The next command that waited. One whose context has gone meanwhile says nothing to the device.
    fn next_waiting(&mut self) -> Option<ControlCommand> {
        while let Some(command) = self.waiting.pop_front() {
            self.waits.remove(&command);
            if let Some(command) = self.spell_out(command) {
                return Some(command);
            }
        }
        None
    }

    fn spell_out(&self, command: Waiting) -> Option<ControlCommand> {
        Some(match command {
            Waiting::Query(handle) => ControlCommand::Query { handle },
            Waiting::Answer(handle) => {
                let (header, is_header) = self.context(handle)?.answer?;
                ControlCommand::Answer { handle, header, number: is_header.then_some(0) }
            }
            Waiting::Unplace(handle, command) => ControlCommand::Unplace { handle, buffer: command.into() },
            Waiting::Destroy(handle) => ControlCommand::Destroy { handle },
        })
    }

    fn occupy(&mut self, context: Context) -> Option<Handle> {
        self.slots.insert(context).ok()
    }
}

impl Driver {
    /// Asks the device where it thinks a PDU starts, after a packet with which a context asked for help.
    pub(super) fn query_nvme_resync(&mut self, handle: Handle) {
        if self.nvme.context(handle).is_some() {
            self.give(Waiting::Query(handle));
        }
    }

    /// Gives the device what waits for room on the control ring.
    pub(super) fn give_waiting(&mut self) {
        let mut any = false;
        while self.has_room_for_control() {
            let Some(command) = self.nvme.next_waiting() else { break };
            any |= self.command(command).is_ok();
        }
        if any {
            self.ring_doorbell();
        }
    }

    /// A context that `command` creates.
    fn create(&mut self, context: Context, command: impl FnOnce(Handle) -> ControlCommand) -> Result<Handle, Refused> {
        if !self.has_room_for_control() {
            return Err(Refused::Busy);
        }
        let handle = self.nvme.occupy(context).ok_or(Refused::NoSpace)?;
        let given = self.command(command(handle)).inspect_err(|_| {
            self.nvme.vacate(handle);
        });
        self.ring_doorbell();
        given.map(|()| handle)
    }

    fn give(&mut self, command: Waiting) {
        if !self.nvme.waiting.is_empty() || !self.has_room_for_control() {
            self.nvme.wait(command);
            return self.give_waiting();
        }
        if let Some(command) = self.nvme.spell_out(command) {
            // There is room.
            let _given = self.command(command);
            self.ring_doorbell();
        }
    }
}

impl NvmeTcpDevice for Driver {
    fn limits(&mut self) -> NvmeTcpLimits {
        NvmeTcpLimits { max_pieces: MAX_PIECES, io_threshold: self.config.nvme_io_threshold }
    }

    fn add(&mut self, flow: &FlowKey, start: Seq, config: &NvmeTcpConfig) -> Result<Handle, Refused> {
        let context = Context { flow: *flow, transmit: None, answer: None };
        let (flow, config) = (*flow, *config);
        let layer = if config.over_tls { Layer::SECOND } else { Layer::FIRST };
        let added = self.create(context, |handle| ControlCommand::Create {
            handle,
            flow: Some(flow),
            direction: Direction::Receive,
            keys: vec![Key::Flow(flow, layer)],
            spec: Box::new(NvmeTcpContext::Receive { start, config }),
        });
        match added {
            Ok(_) => self.counters.rx_nvmeotcp_sk_add += 1,
            Err(_) => self.counters.rx_nvmeotcp_sk_add_fail += 1,
        }
        added
    }

    fn add_transmit(&mut self, flow: &FlowKey) -> Result<Handle, Refused> {
        let context = Context { flow: *flow, transmit: Some(Transmit::default()), answer: None };
        let flow = *flow;
        let added = self.create(context, |handle| ControlCommand::Create {
            handle,
            flow: Some(flow),
            direction: Direction::Transmit,
            keys: Vec::new(),
            spec: Box::new(NvmeTcpContext::Transmit),
        });
        match added {
            Ok(_) => self.counters.tx_nvmeotcp_sk_add += 1,
            Err(_) => self.counters.tx_nvmeotcp_sk_add_fail += 1,
        }
        added
    }

    fn place(&mut self, handle: Handle, command: u16, buffer: Vec<Piece>) {
        // Behind what waits it might come later than the command it is for.
        let taken = self.nvme.flow(handle).is_some()
            && buffer.len() <= MAX_PIECES
            && self.nvme.waiting.is_empty()
            && self.has_room_for_control()
            && self.command(ControlCommand::Place { handle, buffer: command.into(), pieces: buffer }).is_ok();
        if taken {
            self.counters.rx_nvmeotcp_ddp_setup += 1;
        } else {
            self.counters.rx_nvmeotcp_ddp_setup_fail += 1;
        }
        self.ring_doorbell();
    }

    fn release(&mut self, handle: Handle, command: u16) {
        if self.nvme.flow(handle).is_some() {
            self.counters.rx_nvmeotcp_ddp_teardown += 1;
            self.give(Waiting::Unplace(handle, command));
        }
    }

    fn answer_resync(&mut self, handle: Handle, header: Seq, is_header: bool) {
        if let Some(context) = self.nvme.context_mut(handle) {
            context.answer = Some((header, is_header));
            self.give(Waiting::Answer(handle));
        }
    }

    fn remove(&mut self, handle: Handle) {
        let Some(context) = self.nvme.context_mut(handle) else { return };
        match &mut context.transmit {
            Some(transmit) => {
                if core::mem::replace(&mut transmit.leaving, true) {
                    return;
                }
                self.counters.tx_nvmeotcp_sk_del += 1;
                if transmit.under_way > 0 {
                    self.nvme.leaving += 1;
                    self.wake_when_sent();
                    return self.reap_sent();
                }
            }
            None => self.counters.rx_nvmeotcp_sk_del += 1,
        }
        self.give(Waiting::Destroy(handle));
    }
}

/// Pieces of a command's buffer.
const MAX_PIECES: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;
    use nic_rings::config::NicConfig;
    use nic_rings::packet::ControlCompletion;
    use nic_rings::rings;
    use offload_api::NetDevice;

    /// While the device does not come to look at its control ring, a peer has it lose its place again and again.
    #[test]
    fn what_waits_for_the_control_ring_waits_once() {
        let config = NicConfig { control_ring: 4, ..NicConfig::default() };
        let (mut device, host) = rings(&config);
        let mut driver = {
            let infos = nic_device::engine::Engines::of(&config).infos();
            Driver::new(config, 0, host, infos)
        };
        let flow = FlowKey::tcp("10.0.0.2:5000".parse().unwrap(), "10.0.0.1:4420".parse().unwrap());
        let handle = NvmeTcpDevice::add(&mut driver, &flow, Seq(0), &NvmeTcpConfig::default()).unwrap();
        for round in 0..100_000 {
            driver.query_nvme_resync(handle);
            driver.answer_resync(handle, Seq(round), round % 2 == 0);
            driver.release(handle, 7);
        }
        assert_eq!((driver.nvme.waiting.len(), driver.nvme.waits.len()), (3, 3));
        driver.remove(handle);
        let mut carried_out = Vec::new();
        while let Some(entry) = device.control.pop() {
            device.control_completions.push(ControlCompletion::Answered(handle)).unwrap();
            driver.poll_event();
            carried_out.push(entry.command);
        }
        assert_eq!(driver.nvme.waiting.len(), 0);
        // A query and an answer had a place at once.
        let [_create, _query, _answer, rest @ ..] = &carried_out[..] else { panic!("{carried_out:?}") };
        let [
            ControlCommand::Unplace { buffer: 7, .. },
            ControlCommand::Query { .. },
            ControlCommand::Answer { header: Seq(99_999), number: None, .. },
            ControlCommand::Destroy { .. },
        ] = rest
        else {
            panic!("{rest:?}")
        };
    }
}
