//! TLS as a kind of context: the state of one direction, and the key that it refers to.

use super::tls_rx::TlsReceive;
use super::tls_tx::TlsTransmit;
use crate::context::{Engine, ImageReader, ImageWriter, Slab, Slabs};
use crate::packet::engines;
use resumable_aead::Key;

/// Contexts for TLS records.
#[derive(Debug)]
pub(crate) struct Tls;

/// Where a context stands, by direction.
#[derive(Debug)]
pub(crate) enum TlsState {
    Transmit(TlsTransmit),
    Receive(TlsReceive),
}

impl Engine for Tls {
    const ID: u8 = engines::TLS;
    type State = TlsState;
    type Held = Key;

    fn save(state: &TlsState, image: &mut ImageWriter<'_>) {
        match state {
            TlsState::Transmit(engine) => {
                image.put_u8(TRANSMIT);
                engine.write(image);
            }
            TlsState::Receive(engine) => {
                image.put_u8(RECEIVE);
                engine.write(image);
            }
        }
    }

    fn load(image: &mut ImageReader<'_>) -> Option<TlsState> {
        match image.take_u8()? {
            TRANSMIT => TlsTransmit::read(image).map(TlsState::Transmit),
            RECEIVE => TlsReceive::read(image).map(TlsState::Receive),
            _ => None,
        }
    }

    fn slab(slabs: &mut Slabs) -> &mut Slab<Tls> {
        &mut slabs.tls
    }
}

const TRANSMIT: u8 = 1;
const RECEIVE: u8 = 2;
