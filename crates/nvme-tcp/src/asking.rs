//! Asking a device for a context of one stream, in one direction: when, and what came of it, counted.
//!
//! Invariant: a device that refused for good, or that is not there, is not asked any more; one that refused for the time
//! being is, as [`ContextBackoff`] tells.

use crate::lock;
use offload_api::{ContextBackoff, ContextRefusal, FlowKey, Handle, NvmeTcpContexts, SegmentStream};
use std::sync::{Arc, Mutex};
use tracing::{Span, debug, trace};

offload_base::counters! {
    /// How often the streams of a [`Host`](crate::Host) or a [`Server`](crate::Server) asked devices for contexts: a host for
    /// one that places what it receives, both for one that fills in the digests of what they send.
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
        /// Contexts that a device, or its absence, turned down when it was first asked, or for good.
        pub offload_refused: "NvmeOffloadRefused",
        /// Times a device was asked again for what it had refused for the time being, or had given up unasked.
        pub offload_retried: "NvmeOffloadRetried",
        /// Contexts that a device took then.
        pub offload_later: "NvmeOffloadLater",
        /// Contexts that a device gave up unasked.
        pub offload_lost: "NvmeOffloadLost",
        /// Those of them that lacked the key of a volume, which is then taken for one that the device does not have.
        pub offload_keys_missing: "NvmeOffloadKeysMissing",
    }
}

/// Those of all streams of a host or a server.
pub(crate) type SharedCounters = Arc<Mutex<OffloadCounters>>;

/// One stream's wish for one context.
#[derive(Debug)]
pub(crate) struct Asking {
    again: ContextBackoff,
    counters: SharedCounters,
    /// Span of the connection.
    span: Span,
}

impl Default for Asking {
    fn default() -> Asking {
        Asking::new(&SharedCounters::default(), &Span::none())
    }
}

impl Asking {
    /// Nothing is wanted yet.
    pub(crate) fn new(counters: &SharedCounters, span: &Span) -> Asking {
        Asking { again: ContextBackoff::default(), counters: counters.clone(), span: span.clone() }
    }

    /// A context is wanted, and the device is to be asked as soon as may be: nobody did yet, or it was reset.
    pub(crate) fn begin(&mut self) {
        self.again.begin();
    }

    /// The device gave up, unasked, the context that it had.
    pub(crate) fn note_lost(&mut self) {
        debug!(parent: &self.span, "NVMe/TCP context lost");
        lock(&self.counters).offload_lost += 1;
        self.again.note_lost();
    }

    /// It is going to give it up, for a key of a volume is not there.
    pub(crate) fn note_key_missing(&self) {
        lock(&self.counters).offload_keys_missing += 1;
    }

    /// The stream has one more PDU to send.
    pub(crate) fn note_unit(&mut self) {
        self.again.note_unit();
    }

    /// No context is wanted any more.
    pub(crate) fn end(&mut self) {
        self.again.end();
    }

    /// Whether a context is wanted that is not there.
    pub(crate) fn waits(&self) -> bool {
        self.again.waits()
    }

    /// Whether to ask now.
    pub(crate) fn is_due(&self) -> bool {
        self.again.is_due()
    }

    /// Asks the device below `stream`, by `add`; gives the context, if it takes the flow.
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
        self.settle(answer)
    }

    /// There is no device to ask.
    pub(crate) fn note_no_device(&mut self) {
        self.settle(Err(ContextRefusal::Unsupported));
    }

    fn settle(&mut self, answer: Result<Handle, ContextRefusal>) -> Option<Handle> {
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
