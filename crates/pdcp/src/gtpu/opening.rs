//! PDUs of a bearer that jobs open, in the order of arrival.
//!
//! Jobs finish in any order. The receiver gets the PDUs in the order in which the network delivered them, so that its
//! window of COUNTs moves as if the CPU had opened each PDU at once.

use crate::IncomingPdu;
use crate::config::cost;
use std::collections::VecDeque;

/// The batches of one bearer that wait for their own jobs, or for earlier batches.
#[derive(Default)]
pub(super) struct OpeningBatches {
    batches: VecDeque<OpeningBatch>,
    /// Number of PDUs in `batches`.
    pdus: usize,
    /// Cost in bytes of the batches that are ready.
    bytes: usize,
}

struct OpeningBatch {
    /// The job that opens the batch. `None` if the CPU does.
    job: Option<u64>,
    /// PDUs in the batch.
    pdus: usize,
    /// The PDUs. `None` while the job has them.
    ready: Option<Vec<IncomingPdu>>,
}

impl OpeningBatches {
    pub(super) fn is_empty(&self) -> bool {
        self.batches.is_empty()
    }

    /// Returns the number of PDUs that have not reached the receiver yet.
    pub(super) fn pdus(&self) -> usize {
        self.pdus
    }

    /// Tests whether the PDUs that wait for an earlier job fill the buffer.
    pub(super) fn is_full(&self, buffer: usize) -> bool {
        self.bytes > buffer
    }

    /// Appends PDUs that a job has.
    pub(super) fn push_job(&mut self, job: u64, pdus: usize) {
        self.pdus += pdus;
        self.batches.push_back(OpeningBatch { job: Some(job), pdus, ready: None });
    }

    /// Appends PDUs that no job opens.
    ///
    /// # Errors
    /// The number of PDUs, which are dropped, if they have to wait and earlier ready PDUs already fill the buffer.
    pub(super) fn push_ready(&mut self, pdus: Vec<IncomingPdu>, buffer: usize) -> Result<(), usize> {
        let bytes = bytes_of(&pdus);
        if !self.is_empty() && self.bytes + bytes > buffer {
            return Err(pdus.len());
        }
        self.pdus += pdus.len();
        self.bytes += bytes;
        self.batches.push_back(OpeningBatch { job: None, pdus: pdus.len(), ready: Some(pdus) });
        Ok(())
    }

    /// Takes the PDUs of a job that ended.
    pub(super) fn complete(&mut self, job: u64, pdus: Vec<IncomingPdu>) {
        if let Some(batch) = self.batches.iter_mut().find(|batch| batch.job == Some(job)) {
            self.bytes += bytes_of(&pdus);
            batch.ready = Some(pdus);
        }
    }

    /// Removes the oldest batch, if its PDUs are ready.
    pub(super) fn pop(&mut self) -> Option<Vec<IncomingPdu>> {
        self.batches.front().filter(|batch| batch.ready.is_some())?;
        let OpeningBatch { pdus, ready, .. } = self.batches.pop_front()?;
        self.pdus -= pdus;
        self.bytes -= ready.as_ref().map_or(0, |ready| bytes_of(ready));
        ready
    }
}

fn bytes_of(pdus: &[IncomingPdu]) -> usize {
    let len = |pdu: &IncomingPdu| match pdu {
        IncomingPdu::Pdu(pdu) | IncomingPdu::Opened { pdu, .. } | IncomingPdu::Rejected { pdu, .. } => pdu.len(),
    };
    pdus.iter().map(|pdu| cost(len(pdu))).sum()
}
