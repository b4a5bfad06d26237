//! Requests to a device for a context of one stream in one direction, with counters.
//!
//! Invariant: a device that refused permanently, or that is absent, is not asked again. A device that refused
//! temporarily is asked again as [`AskAgain`] decides.

use crate::lock;
use offload_api::{ContextBackoff, ContextRefusal, FlowKey, Handle, NvmeTcpContexts, SegmentStream};
use std::sync::{Arc, Mutex};
use tracing::{Span, debug, trace};

offload_base::counters! {
    /// Requests for device contexts by the streams of a [`Host`](crate::Host) or a [`Server`](crate::Server). A host
    /// requests contexts that place received data; both request contexts that fill in the digests of sent data.
    ///
    /// ```
    /// use nvme_tcp::OffloadCounters;
    /// use offload_base::counters::CounterSet;
    ///
    /// let mut set = CounterSet::default();
    /// set.add(&OffloadCounters { offload_later: 2, ..OffloadCounters::default() });
    /// assert_eq!(set.value("NvmeOffloadLater"), 2);
    /// ```
    pub struct OffloadCounters {
        /// Contexts refused at the first request, permanently, or for lack of a device.
        pub offload_refused: "NvmeOffloadRefused",
        /// Repeated requests after a temporary refusal, or after the device had removed the context.
        pub offload_retried: "NvmeOffloadRetried",
        /// Contexts granted to repeated requests.
        pub offload_later: "NvmeOffloadLater",
        /// Contexts that a device removed by itself.
        pub offload_lost: "NvmeOffloadLost",
        /// Contexts removed because the key of a volume was missing. The key then counts as absent on the device.
        pub offload_keys_missing: "NvmeOffloadKeysMissing",
    }
}

/// The counters of all streams of a host or a server.
pub(crate) type SharedCounters = Arc<Mutex<OffloadCounters>>;

/// The request of a stream for a context, with its retries.
#[derive(Debug)]
pub(crate) struct ContextRequest {
    again: ContextBackoff,
    counters: SharedCounters,
    /// Span of the connection.
    span: Span,
}

impl Default for ContextRequest {
    fn default() -> ContextRequest {
        ContextRequest::new(&SharedCounters::default(), &Span::none())
    }
}

impl ContextRequest {
    /// Creates a request that is not pending.
    pub(crate) fn new(counters: &SharedCounters, span: &Span) -> ContextRequest {
        ContextRequest { again: ContextBackoff::default(), counters: counters.clone(), span: span.clone() }
    }

    /// Requests a context as soon as possible. For the first request, and after a reset of the device.
    pub(crate) fn begin(&mut self) {
        self.again.begin();
    }

    /// Handles the removal of the context by the device.
    pub(crate) fn note_lost(&mut self) {
        debug!(parent: &self.span, "NVMe/TCP context lost");
        lock(&self.counters).offload_lost += 1;
        self.again.note_lost();
    }

    /// Counts a context that the device is about to remove because the key of a volume is missing.
    pub(crate) fn note_key_missing(&self) {
        lock(&self.counters).offload_keys_missing += 1;
    }

    /// Counts one more PDU that the stream has to send.
    pub(crate) fn note_unit(&mut self) {
        self.again.note_unit();
    }

    /// Ends the request.
    pub(crate) fn end(&mut self) {
        self.again.end();
    }

    /// Returns whether a context is requested and not installed.
    pub(crate) fn waits(&self) -> bool {
        self.again.waits()
    }

    /// Returns whether to ask the device now.
    pub(crate) fn is_due(&self) -> bool {
        self.again.is_due()
    }

    /// Asks the device below `stream` by calling `add`. Returns the context if the device grants it.
    pub(crate) fn ask(
        &mut self,
        stream: &mut dyn SegmentStream,
        add: impl Fn(&FlowKey, &mut NvmeTcpContexts<'_>) -> Result<Handle, ContextRefusal>,
    ) -> Option<Handle> {
        let mut answer = Err(ContextRefusal::Unsupported);
        stream.control(&mut |flow, contexts| {
            if let Some(mut contexts) = NvmeTcpContexts::from_contexts(contexts) {
                answer = add(&flow, &mut contexts);
            }
        });
        self.complete(answer)
    }

    /// Handles the absence of a device.
    pub(crate) fn note_no_device(&mut self) {
        self.complete(Err(ContextRefusal::Unsupported));
    }

    fn complete(&mut self, answer: Result<Handle, ContextRefusal>) -> Option<Handle> {
        let again = self.again.was_refused();
        let mut counters = lock(&self.counters);
        counters.offload_retried += u64::from(again);
        match answer {
            Ok(handle) => {
                debug!(parent: &self.span, ?handle, "NVMe/TCP context installed");
                counters.offload_later += u64::from(again);
                self.again.end();
            }
            Err(reason) if reason.passes() => {
                trace!(parent: &self.span, %reason, "NVMe/TCP context refused for now");
                // A temporary refusal counts once. Repetitions count as retries.
                counters.offload_refused += u64::from(!again);
                self.again.note_refused(reason);
            }
            Err(reason) => {
                debug!(parent: &self.span, %reason, "NVMe/TCP context refused");
                counters.offload_refused += 1;
                self.again.end();
            }
        }
        answer.ok()
    }
}
