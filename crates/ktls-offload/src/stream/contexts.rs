//! The contexts that a stream has in a device.
//!
//! Invariant: a context is listed here from the moment a device gives it until it is given back, or the device has said
//! that it is gone. Everybody else holds names only, so forgetting one loses nothing: what is listed and not in use is
//! given back, and all of it when the stream goes.

use super::offload::NotOffloaded;
use offload_api::{Direction, Handle, SegmentStream, TlsContexts, TlsKey};
use offload_base::Seq;
use smallvec::SmallVec;

/// The contexts of one stream.
#[derive(Debug, Default)]
pub(super) struct Contexts {
    held: SmallVec<[(Direction, Handle); 2]>,
}

impl Contexts {
    /// Asks the device for a context.
    pub(super) fn add<S: SegmentStream>(
        &mut self,
        stream: &mut S,
        direction: Direction,
        start: Seq,
        number: u64,
        key: &TlsKey,
    ) -> Result<Handle, NotOffloaded> {
        let mut result = Err(NotOffloaded::NoDevice);
        stream.control(&mut |flow, device| {
            result = match TlsContexts::from_contexts(device) {
                Some(mut tls) => tls.add(&flow, direction, start, number, key).map_err(NotOffloaded::from),
                None => Err(NotOffloaded::NoTls),
            };
        });
        let handle = result?;
        self.held.push((direction, handle));
        Ok(handle)
    }

    /// Whether this one is the stream's.
    pub(super) fn knows(&self, context: Handle) -> bool {
        self.held.iter().any(|(_, handle)| *handle == context)
    }

    /// The device says that it has this one no more.
    pub(super) fn is_gone(&mut self, gone: Handle) {
        self.held.retain(|(_, handle)| *handle != gone);
    }

    /// Gives back all but those in use. (Giving back what a reset took does no harm: the device knows no such context.)
    pub(super) fn keep_only<S: SegmentStream>(&mut self, stream: &mut S, in_use: [Option<Handle>; 2]) {
        self.held.retain(|(direction, handle)| {
            let used = in_use.contains(&Some(*handle));
            if !used {
                give_back(stream, *direction, *handle);
            }
            used
        });
    }
}

fn give_back<S: SegmentStream>(stream: &mut S, direction: Direction, context: Handle) {
    match direction {
        // Bytes queued with it may still have to leave, or leave again.
        Direction::Transmit => stream.release(context),
        Direction::Receive => {
            stream.control(&mut |_, device| {
                if let Some(mut tls) = TlsContexts::from_contexts(device) {
                    tls.remove(context);
                }
            });
        }
    }
}
