//! The device contexts of a stream.
//!
//! Invariant: a context is listed here from its creation until the stream removes it or the device reports its removal.
//! Other modules hold handles only. A listed context that is no longer in use is therefore always removed, at the
//! latest when the stream is dropped.

use super::offload::NotOffloaded;
use offload_api::{Direction, Handle, SegmentStream, TlsContexts, TlsKey};
use offload_base::Seq;
use smallvec::SmallVec;

/// The device contexts of one stream.
#[derive(Debug, Default)]
pub(super) struct StreamContexts {
    held: SmallVec<[(Direction, Handle); 2]>,
}

impl StreamContexts {
    /// Creates a context on the device.
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

    /// Returns whether `context` belongs to this stream.
    pub(super) fn knows(&self, context: Handle) -> bool {
        self.held.iter().any(|(_, handle)| *handle == context)
    }

    /// Notes that the device removed the context.
    pub(super) fn is_gone(&mut self, gone: Handle) {
        self.held.retain(|(_, handle)| *handle != gone);
    }

    /// Removes all contexts except `in_use`. Removing a context that a reset already removed is harmless.
    pub(super) fn keep_only<S: SegmentStream>(&mut self, stream: &mut S, in_use: [Option<Handle>; 2]) {
        self.held.retain(|(direction, handle)| {
            let used = in_use.contains(&Some(*handle));
            if !used {
                release_context(stream, *direction, *handle);
            }
            used
        });
    }
}

fn release_context<S: SegmentStream>(stream: &mut S, direction: Direction, context: Handle) {
    match direction {
        // Queued bytes may still need the context for their first transmission or a retransmission.
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
