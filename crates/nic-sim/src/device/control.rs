//! The control ring: contexts come and go; and reset, which takes them all.

use crate::context::{Context, Engine, Subject};
use crate::device::Device;
use crate::dma;
use crate::engine::nvme::{NvmeReceive, NvmeState, NvmeTcp, NvmeTransmit, Placement};
use crate::engine::tls::{Tls, TlsState};
use crate::engine::tls_record::Protection;
use crate::engine::tls_rx::TlsReceive;
use crate::engine::tls_tx::TlsTransmit;
use crate::packet::{ControlCommand, ControlCompletion};
use crate::steering::Key;
use offload_api::{Direction, FlowKey, Handle, TlsKey, TlsResync, TlsSuite};
use offload_base::{Instant, Seq};
use resumable_aead::Algorithm;

impl Device {
    /// Resets the device: every context is gone, what was on the send ring is thrown away, and the driver is
    /// told. Receive buffers stay posted.
    pub fn reset(&mut self, now: Instant) {
        self.contexts.clear();
        self.steering.clear();
        self.esp.clear();
        self.flush_send_ring();
        self.counters.resets += 1;
        self.show_sent(now);
        self.reset_unreported = true;
        self.report_reset(now);
        // Whoever runs the device may be asleep until a later event than the interrupt this starts.
        self.rings.doorbell.raise();
    }

    /// Carries out all commands given so far.
    pub(super) fn run_control(&mut self, now: Instant) {
        while let Some(entry) = self.rings.control.pop() {
            self.dma.control += match &entry.command {
                ControlCommand::CreateTls { .. }
                | ControlCommand::CreateNvme { .. }
                | ControlCommand::CreateNvmeTransmit { .. }
                | ControlCommand::Destroy { .. } => dma::CONTROL_COMMAND,
                // A descriptor for each piece.
                ControlCommand::Place { buffer, .. } => {
                    dma::CONTROL_QUERY + dma::RECEIVE_DESCRIPTOR * buffer.len() as u64
                }
                ControlCommand::QueryResync { .. }
                | ControlCommand::AnswerResync { .. }
                | ControlCommand::Unplace { .. }
                | ControlCommand::QueryNvmeResync { .. }
                | ControlCommand::AnswerNvmeResync { .. } => dma::CONTROL_QUERY,
                ControlCommand::SetIndirection { table } => dma::CONTROL_QUERY + size_of_val(&**table) as u64,
                ControlCommand::ReuseTls { .. } => dma::CONTROL_REUSE,
                ControlCommand::ParkTls { .. } => dma::CONTROL_PARK,
            };
            if entry.epoch != self.counters.resets {
                continue;
            }
            let report = entry.report;
            let completion = match entry.command {
                ControlCommand::CreateTls { handle, flow, direction, start, number, key } => {
                    match self.create(handle, flow, direction, (start, number), &key) {
                        Some(()) => ControlCompletion::Created(handle),
                        None => ControlCompletion::Refused(handle),
                    }
                }
                ControlCommand::ReuseTls { handle, flow, key } => {
                    // The driver asks for nothing that the engines do not know.
                    let _made = self.create(handle, flow, Direction::Transmit, (Seq(0), 0), &key);
                    if !report {
                        continue;
                    }
                    ControlCompletion::Done(handle)
                }
                ControlCommand::ParkTls { handle } => {
                    self.contexts.remove(handle, &mut self.steering);
                    if !report {
                        continue;
                    }
                    ControlCompletion::Done(handle)
                }
                ControlCommand::QueryResync { handle } => {
                    let header = self.receive_engine(handle).and_then(|engine| engine.question());
                    ControlCompletion::Resync { handle, header }
                }
                ControlCommand::AnswerResync { handle, header, number } => {
                    let of_use = self.receive_engine(handle).is_some_and(|engine| engine.answer(header, number));
                    match (of_use, number) {
                        (true, Some(_)) => self.counters.rx_tls_resync_res_ok += 1,
                        _ => self.counters.rx_tls_resync_res_skip += 1,
                    }
                    ControlCompletion::Answered(handle)
                }
                ControlCommand::CreateNvme { handle, flow, start, config } => {
                    let keys = vec![Key::Flow(flow, usize::from(config.over_tls))];
                    let engine = NvmeState::Receive(NvmeReceive::new(config, start));
                    self.create_nvme(handle, Subject { flow: Some(flow), keys }, engine)
                }
                ControlCommand::CreateNvmeTransmit { handle, flow } => {
                    let engine = NvmeState::Transmit(NvmeTransmit::default());
                    self.create_nvme(handle, Subject { flow: Some(flow), keys: Vec::new() }, engine)
                }
                ControlCommand::Place { handle, command, buffer } => {
                    // Without a context the buffer is dropped, and so goes home.
                    if let Some(placement) = self.contexts.held::<NvmeTcp>(handle) {
                        placement.insert(command, buffer);
                    }
                    ControlCompletion::Answered(handle)
                }
                ControlCommand::Unplace { handle, command } => {
                    if let Some(placement) = self.contexts.held::<NvmeTcp>(handle) {
                        placement.remove(command);
                    }
                    ControlCompletion::Answered(handle)
                }
                ControlCommand::QueryNvmeResync { handle } => {
                    let header = self.nvme_receive(handle).and_then(|(engine, _)| engine.question());
                    ControlCompletion::Resync { handle, header }
                }
                ControlCommand::AnswerNvmeResync { handle, header, is_header } => {
                    let context = self.nvme_receive(handle);
                    let found = context.is_some_and(|(engine, _)| engine.answer(header, is_header));
                    self.counters.rx_nvmeotcp_resync += u64::from(found);
                    ControlCompletion::Answered(handle)
                }
                ControlCommand::SetIndirection { table } => {
                    self.new_indirection = Some(table);
                    ControlCompletion::IndirectionSet
                }
                ControlCommand::Destroy { handle } => {
                    self.contexts.remove(handle, &mut self.steering);
                    ControlCompletion::Destroyed(handle)
                }
            };
            // The driver gives no more commands than there is room for completions.
            let _room = self.report(now, completion);
        }
    }

    /// Tells the driver of the last reset, as soon as there is room: in between, it may have been told of others.
    pub(super) fn report_reset(&mut self, now: Instant) {
        if self.reset_unreported {
            let reset = ControlCompletion::Reset { resets: self.counters.resets };
            self.reset_unreported = self.report(now, reset).is_err();
        }
    }

    fn receive_engine(&mut self, handle: Handle) -> Option<&mut TlsReceive> {
        match self.contexts.get::<Tls>(handle, &mut self.dma)? {
            Context { state: TlsState::Receive(engine), .. } => Some(engine),
            Context { state: TlsState::Transmit(_), .. } => None,
        }
    }

    fn create_nvme(&mut self, handle: Handle, subject: Subject, engine: NvmeState) -> ControlCompletion {
        if handle.engine() != NvmeTcp::ID || handle.place() >= self.config.nvme_contexts {
            return ControlCompletion::Refused(handle);
        }
        let Device { contexts, steering, dma, .. } = self;
        contexts.insert::<NvmeTcp>(handle, subject, (engine, Placement::default()), steering, dma);
        ControlCompletion::Created(handle)
    }

    fn create(
        &mut self,
        handle: Handle,
        flow: FlowKey,
        direction: Direction,
        (start, number): (Seq, u64),
        key: &TlsKey,
    ) -> Option<()> {
        if handle.engine() != Tls::ID || handle.place() >= self.config.tls_contexts || !self.config.knows(key) {
            return None;
        }
        let expanded = resumable_aead::Key::new(algorithm(key.suite())?, key.key()).ok()?;
        let (engine, keys) = match direction {
            Direction::Transmit => (TlsState::Transmit(TlsTransmit::new(Protection::of(key))), Vec::new()),
            Direction::Receive => {
                let asks = self.config.tls_resync != TlsResync::CoreHint;
                let engine = TlsReceive::new(Protection::of(key), start, number, asks);
                (TlsState::Receive(engine), vec![Key::Flow(flow, 0)])
            }
        };
        let Device { contexts, steering, dma, .. } = self;
        contexts.insert::<Tls>(handle, Subject { flow: Some(flow), keys }, (engine, expanded), steering, dma);
        Some(())
    }

    pub(super) fn report(&mut self, now: Instant, completion: ControlCompletion) -> Result<(), ControlCompletion> {
        self.rings.control_completions.push(completion)?;
        self.dma.completions += dma::COMPLETION;
        self.interrupt(now);
        Ok(())
    }
}

fn algorithm(suite: TlsSuite) -> Option<Algorithm> {
    match suite {
        TlsSuite::Aes128Gcm => Some(Algorithm::Aes128Gcm),
        TlsSuite::Aes256Gcm => Some(Algorithm::Aes256Gcm),
        TlsSuite::ChaCha20Poly1305 => Some(Algorithm::ChaCha20Poly1305),
        _ => None,
    }
}
