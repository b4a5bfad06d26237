//! The typed face of TLS contexts.

use crate::Driver;
use crate::contexts::Shadow;
use nic_rings::packet::ControlCommand;
use offload_api::{Direction, FlowKey, Handle, Key, Layer, Refused, TlsContext, TlsDevice, TlsKey, TlsResync};
use offload_base::Seq;

impl TlsDevice for Driver {
    fn add(
        &mut self,
        flow: &FlowKey,
        direction: Direction,
        start: Seq,
        number: u64,
        key: &TlsKey,
    ) -> Result<Handle, Refused> {
        if !self.config.knows(key) {
            return Err(Refused::Unsupported);
        }
        let shadow = Shadow::new(Some(*flow), direction);
        let (handle, from_pool) = self.contexts.occupy(shadow).ok_or(Refused::NoSpace)?;
        let spec = Box::new(TlsContext { start, number, key: key.clone() });
        if from_pool && direction == Direction::Transmit {
            if let Err(refused) = self.command_unreported(ControlCommand::Reuse { handle, flow: *flow, spec }) {
                self.contexts.park(handle);
                return Err(refused);
            }
        } else {
            let keys = match direction {
                Direction::Transmit => Vec::new(),
                Direction::Receive => vec![Key::Flow(*flow, Layer::FIRST)],
            };
            let command = ControlCommand::Create { handle, flow: Some(*flow), direction, keys, spec };
            if let Err(refused) = self.command(command) {
                // What the device keeps there it keeps.
                let _ = if from_pool { self.contexts.park(handle) } else { self.contexts.vacate(handle) };
                return Err(refused);
            }
            self.counters.tx_tls_pool_alloc += u64::from(direction == Direction::Transmit);
            self.counters.tx_tls_pool_free += u64::from(from_pool);
        }
        match direction {
            Direction::Transmit => self.counters.tx_tls_ctx += 1,
            Direction::Receive => self.counters.rx_tls_ctx += 1,
        }
        self.ring_doorbell();
        Ok(handle)
    }

    fn resync(&mut self) -> TlsResync {
        self.config.tls_resync
    }

    fn answer_resync(&mut self, handle: Handle, header: Seq, number: Option<u64>) {
        self.answer_question(handle, header, number);
    }

    fn remove(&mut self, handle: Handle) {
        self.remove_context(handle);
    }
}
