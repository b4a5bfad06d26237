//! The NVMe/TCP engines. The receiving one follows PDUs as their bytes arrive, puts data where they belong and checks
//! their digests; the sending one fills digests in.
//!
//! - `framing`: how a PDU's first bytes tell where its parts are;
//! - `cursor`: a place in a PDU, and what passing its bytes does;
//! - `receive`: the stream: gaps, searching, tracking, asking;
//! - `placement`: the buffers of commands;
//! - `transmit`: digests of what leaves.
//!
//! Source: Pismenny et al., "Autonomous NIC Offloads", ASPLOS 2021, and the ULP DDP series proposed for Linux.

mod cursor;
mod framing;
mod placement;
mod receive;
mod transmit;

use crate::context::{Engine, ImageReader, ImageWriter, Slab, Slabs};
use crate::packet::engines;
pub(crate) use placement::Placement;
pub(crate) use receive::{NvmeReceive, Received};
pub(crate) use transmit::NvmeTransmit;

/// Contexts for PDUs of NVMe/TCP.
#[derive(Debug)]
pub(crate) struct NvmeTcp;

/// Where a context stands, by direction.
#[derive(Debug)]
pub(crate) enum NvmeState {
    Transmit(NvmeTransmit),
    Receive(NvmeReceive),
}

impl Engine for NvmeTcp {
    const ID: u8 = engines::NVME_TCP;
    type State = NvmeState;
    /// The buffers of commands; of a transmit context there are none.
    type Held = Placement;

    fn save(state: &NvmeState, image: &mut ImageWriter<'_>) {
        match state {
            NvmeState::Transmit(engine) => {
                image.put_u8(TRANSMIT);
                engine.write(image);
            }
            NvmeState::Receive(engine) => {
                image.put_u8(RECEIVE);
                engine.write(image);
            }
        }
    }

    fn load(image: &mut ImageReader<'_>) -> Option<NvmeState> {
        match image.take_u8()? {
            TRANSMIT => NvmeTransmit::read(image).map(NvmeState::Transmit),
            RECEIVE => NvmeReceive::read(image).map(NvmeState::Receive),
            _ => None,
        }
    }

    fn slab(slabs: &mut Slabs) -> &mut Slab<NvmeTcp> {
        &mut slabs.nvme
    }
}

const TRANSMIT: u8 = 1;
const RECEIVE: u8 = 2;
