//! NVMe/TCP contexts as the driver knows them.
//!
//! Nothing is sent with them, so a context can be given up at once; but a command that finds the control ring full
//! waits here, for buffers have to come home.

use crate::device::NVME_HANDLES;
use crate::driver::Driver;
use crate::engine::layout::Layout;
use crate::packet::ControlCommand;
use offload_api::{FlowKey, Handle, NvmeTcpConfig, NvmeTcpDevice, NvmeTcpLimits, Piece, Refused};
use offload_base::Seq;
use std::collections::{HashMap, VecDeque};

/// All contexts, by place. Looked up, never walked.
#[derive(Debug, Default)]
pub(super) struct NvmeContexts {
    flows: Vec<(u32, Option<FlowKey>)>,
    free: Vec<u32>,
    by_flow: HashMap<FlowKey, Handle>,
    /// For when the control ring has room.
    waiting: VecDeque<ControlCommand>,
}

impl NvmeContexts {
    pub(super) fn flow(&self, handle: Handle) -> Option<FlowKey> {
        let (generation, flow) = self.flows.get(handle.index.checked_sub(NVME_HANDLES)? as usize)?;
        flow.filter(|_| *generation == handle.generation)
    }

    /// The device has given the context up, or never had it.
    pub(super) fn vacate(&mut self, handle: Handle) -> Option<FlowKey> {
        let flow = self.flow(handle)?;
        let place = &mut self.flows[(handle.index - NVME_HANDLES) as usize];
        *place = (place.0.wrapping_add(1), None);
        self.free.push(handle.index - NVME_HANDLES);
        if self.by_flow.get(&flow) == Some(&handle) {
            self.by_flow.remove(&flow);
        }
        Some(flow)
    }

    pub(super) fn vacate_all(&mut self) {
        for index in 0..self.flows.len() as u32 {
            let generation = self.flows[index as usize].0;
            self.vacate(Handle { index: index + NVME_HANDLES, generation });
        }
        self.waiting.clear();
    }

    fn occupy(&mut self, flow: FlowKey, limit: u32) -> Option<Handle> {
        let index = match self.free.pop() {
            Some(index) => index,
            None if (self.flows.len() as u32) < limit => {
                self.flows.push((0, None));
                self.flows.len() as u32 - 1
            }
            None => return None,
        };
        let place = &mut self.flows[index as usize];
        place.1 = Some(flow);
        let handle = Handle { index: index + NVME_HANDLES, generation: place.0 };
        self.by_flow.insert(flow, handle);
        Some(handle)
    }
}

impl Driver {
    /// Asks the device where it thinks a PDU starts, after the packet in `frame`.
    pub(super) fn query_nvme_resync(&mut self, frame: &[u8]) {
        let flow = Layout::of_frame(frame).map(|layout| layout.flow_of_receiver(frame));
        if let Some(handle) = flow.and_then(|flow| self.nvme.by_flow.get(&flow).copied()) {
            self.nvme.waiting.push_back(ControlCommand::QueryNvmeResync { handle });
            self.give_waiting();
        }
    }

    /// Gives the device what waits for room on the control ring.
    pub(super) fn give_waiting(&mut self) {
        let mut any = false;
        while self.has_room_for_control() {
            let Some(command) = self.nvme.waiting.pop_front() else { break };
            any |= self.command(command).is_ok();
        }
        if any {
            self.ring_doorbell();
        }
    }

    fn give(&mut self, command: ControlCommand) {
        self.nvme.waiting.push_back(command);
        self.give_waiting();
    }
}

impl NvmeTcpDevice for Driver {
    fn limits(&self) -> NvmeTcpLimits {
        NvmeTcpLimits { max_pieces: MAX_PIECES, io_threshold: self.config.nvme_io_threshold }
    }

    fn add(&mut self, flow: &FlowKey, start: Seq, config: &NvmeTcpConfig) -> Result<Handle, Refused> {
        let added = if self.has_room_for_control() {
            self.nvme.occupy(*flow, self.config.nvme_contexts).ok_or(Refused::NoSpace)
        } else {
            Err(Refused::Busy)
        };
        let added = added.and_then(|handle| {
            let create = ControlCommand::CreateNvme { handle, flow: *flow, start, config: *config };
            self.command(create).map(|()| handle).inspect_err(|_| {
                self.nvme.vacate(handle);
            })
        });
        match added {
            Ok(_) => self.counters.rx_nvmeotcp_sk_add += 1,
            Err(_) => self.counters.rx_nvmeotcp_sk_add_fail += 1,
        }
        self.ring_doorbell();
        added
    }

    fn place(&mut self, handle: Handle, command: u16, buffer: Vec<Piece>) {
        // Behind what waits it might come later than the command it is for.
        let taken = self.nvme.flow(handle).is_some()
            && buffer.len() <= MAX_PIECES
            && self.nvme.waiting.is_empty()
            && self.has_room_for_control()
            && self.command(ControlCommand::Place { handle, command, buffer }).is_ok();
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
            self.give(ControlCommand::Unplace { handle, command });
        }
    }

    fn answer_resync(&mut self, handle: Handle, header: Seq, is_header: bool) {
        if self.nvme.flow(handle).is_some() {
            self.give(ControlCommand::AnswerNvmeResync { handle, header, is_header });
        }
    }

    fn remove(&mut self, handle: Handle) {
        if self.nvme.flow(handle).is_some() {
            self.counters.rx_nvmeotcp_sk_del += 1;
            self.give(ControlCommand::Destroy { handle });
        }
    }
}

/// Pieces of a command's buffer.
const MAX_PIECES: usize = 256;
