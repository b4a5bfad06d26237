//! The interface to devices: contexts of a NIC's packet engine, and batches for an accelerator's job engine.
//!
//! Both engines are in the crate `nic-pdcp`. A context or session belongs to one direction of a bearer.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use offload_api::{CompletedJob, Handle, Job, JobOutcome, JobStatus, KeyBytes, Way};

use crate::{Config, Security};

/// The name of a NIC's packet engine, which protects outgoing PDUs in GTP-U and opens arriving ones.
pub const PACKETS: &str = "pdcp";
/// The name of an accelerator's job engine, which protects and opens batches of PDUs.
pub const BATCHES: &str = "pdcp-batches";

/// The parameters of a context of either engine.
///
/// ```
/// use pdcp::crypto::{Algorithm, Direction, Key};
/// use pdcp::device::PdcpContext;
/// use pdcp::{BearerKind, Config, Security, SnLen};
///
/// let config = Config::data(BearerKind::Unacknowledged, SnLen::Eighteen);
/// let security = Security::new(1, Direction::Downlink)?.ciphered(Key::new(Algorithm::Snow3g, &[7; 16])?);
/// let context = PdcpContext { config, security, next: 0, drops_duplicates: false };
/// assert!(!format!("{context:?}").contains("7, 7"), "keys are not printed");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct PdcpContext {
    /// The bearer's configuration.
    pub config: Config,
    /// The keys of the direction.
    pub security: Security,
    /// For receiving: the COUNT expected next. The device tracks later COUNTs itself.
    pub next: u64,
    /// For receiving: whether the device drops duplicates among the last [`REMEMBERED`] COUNTs. The host's window still
    /// decides.
    pub drops_duplicates: bool,
}

/// Number of COUNTs that a device remembers.
pub const REMEMBERED: u32 = 512;

/// Returns the steering key of a received PDU: the local tunnel endpoint identifier (TEID), in a datagram to GTP-U's
/// port.
///
/// ```
/// use pdcp::device::tunnel_key;
///
/// assert_ne!(tunnel_key(1), tunnel_key(2));
/// ```
pub fn tunnel_key(tunnel: u32) -> KeyBytes {
    KeyBytes::from_parts(&[&tunnel.to_be_bytes()])
}

/// Creates a job that protects (`Way::Apply`) or opens (`Way::Undo`) PDUs of one session, each with its COUNT.
///
/// A PDU to be protected must have room for the MAC-I at its end. [`batch_done`] reads the result.
///
/// ```
/// use bytes::BytesMut;
/// use offload_api::{Handle, JobStatus, Way};
/// use pdcp::crypto::{Algorithm, Direction, Key};
/// use pdcp::device::{PdcpContext, batch, batch_done, run_batch};
/// use pdcp::{BearerKind, Config, Security, SnLen};
///
/// let config = Config::data(BearerKind::Unacknowledged, SnLen::Twelve);
/// let key = |byte| Key::new(Algorithm::Zuc128, &[byte; 16]);
/// let security = Security::new(1, Direction::Uplink)?.ciphered(key(1)?).authenticated(key(2)?);
/// let context = PdcpContext { config, security, next: 0, drops_duplicates: false };
///
/// let session = Handle { index: 0, generation: 0 };
/// let clear = vec![(7, BytesMut::from(&b"\x80\x07an SDU\0\0\0\0"[..]))];
/// let mut job = batch(session, Way::Apply, &clear);
/// let outcome = run_batch(&context, &mut job); // what the engine does
/// let (status, pdus) = batch_done(job.done(outcome));
/// assert_eq!(status, JobStatus::Done);
/// assert_ne!(pdus[0].pdu, clear[0].1);
///
/// let mut job = batch(session, Way::Undo, &[(7, pdus[0].pdu.clone())]);
/// let outcome = run_batch(&context, &mut job);
/// let (_, opened) = batch_done(job.done(outcome));
/// assert!(opened[0].authentic && opened[0].pdu.starts_with(b"\x80\x07an SDU"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn batch(session: Handle, way: Way, pdus: &[(u32, BytesMut)]) -> Job {
    let bytes: usize = pdus.iter().map(|(_, pdu)| ENTRY + pdu.len()).sum();
    let mut source = BytesMut::with_capacity(bytes);
    for (count, pdu) in pdus {
        source.put_u32(*count);
        source.put_u32(pdu.len() as u32);
    }
    for (_, pdu) in pdus {
        source.put_slice(pdu);
    }
    let table = source.split_to(ENTRY * pdus.len()).freeze();
    let mut job = Job::new(session, table, BytesMut::with_capacity(bytes));
    job.source.push(source.freeze());
    job.way = way;
    job
}

/// A PDU of a batch.
///
/// See [`batch`] for an example.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BatchPdu {
    /// The COUNT used by the engine.
    pub count: u32,
    /// Header, SDU, MAC-I.
    pub pdu: BytesMut,
    /// For opened PDUs: whether the MAC-I was valid or absent.
    pub authentic: bool,
}

/// Returns the status and the processed PDUs of a batch, in order. If the status is not `Done`, there are no PDUs; the
/// source still has the originals.
pub fn batch_done(done: CompletedJob) -> (JobStatus, Vec<BatchPdu>) {
    if done.outcome.status != JobStatus::Done {
        return (done.outcome.status, Vec::new());
    }
    let mut target = done.target;
    let table = done.source.first().map_or(0, Bytes::len).min(target.len());
    let mut entries = target.split_to(table);
    let mut pdus = Vec::with_capacity(table / ENTRY);
    while entries.len() >= ENTRY {
        let (count, told) = (entries.get_u32(), entries.get_u32());
        let bytes = (told & !AUTHENTIC) as usize;
        pdus.push(BatchPdu { count, pdu: target.split_to(bytes.min(target.len())), authentic: told & AUTHENTIC != 0 });
    }
    (JobStatus::Done, pdus)
}

/// Processes a [`batch`], as the job engine does; the CPU may call it too.
///
/// Fails with `Length` if the batch is malformed, and with `OutOfSpace` if the target is shorter than the source.
pub fn run_batch(context: &PdcpContext, job: &mut Job) -> JobOutcome {
    let source_bytes = job.source_len();
    let [table, body] = &job.source[..] else { return JobOutcome::failed(JobStatus::Length) };
    let Some(mut pdus) = split_batch(table.clone(), body) else { return JobOutcome::failed(JobStatus::Length) };
    if job.target.capacity() - job.target.len() < source_bytes {
        return JobOutcome::failed(JobStatus::OutOfSpace);
    }
    let clear = context.config.clear_bytes();
    let authentic = match job.way {
        Way::Apply => {
            context.security.protect(clear, &mut pdus);
            vec![true; pdus.len()]
        }
        Way::Undo => context.security.open(clear, &mut pdus),
    };
    // The target has the same layout as the source: the table first, then the PDUs.
    for ((count, pdu), authentic) in pdus.iter().zip(authentic) {
        job.target.put_u32(*count);
        job.target.put_u32(pdu.len() as u32 | if authentic { AUTHENTIC } else { 0 });
    }
    for (_, pdu) in &pdus {
        job.target.put_slice(pdu);
    }
    JobOutcome { status: JobStatus::Done, consumed: source_bytes, produced: source_bytes, checksums: None }
}

/// Splits a batch into its PDUs. `None` if table and body do not match.
fn split_batch(mut table: Bytes, body: &Bytes) -> Option<Vec<(u32, BytesMut)>> {
    let (mut pdus, mut at) = (Vec::with_capacity(table.len() / ENTRY), 0);
    while table.has_remaining() {
        let count = table.try_get_u32().ok()?;
        let bytes = table.try_get_u32().ok()? as usize;
        let end = at + bytes;
        pdus.push((count, BytesMut::from(body.get(at..end)?)));
        at = end;
    }
    // Bytes that belong to no PDU would be processed silently, so they make the batch malformed.
    (at == body.len()).then_some(pdus)
}

/// Size of a table entry: COUNT and the PDU's length.
const ENTRY: usize = 8;
/// A flag in the length field, which is never needed for lengths.
const AUTHENTIC: u32 = 1 << 31;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{BearerKind, SnLen};
    use cellular_crypto::{Algorithm, Direction, Key};

    fn context() -> PdcpContext {
        let key = |byte| Key::new(Algorithm::Aes128, &[byte; 16]).unwrap();
        let security = Security::new(3, Direction::Uplink).unwrap().ciphered(key(1)).authenticated(key(2));
        let config = Config::data(BearerKind::Unacknowledged, SnLen::Twelve);
        PdcpContext { config, security, next: 0, drops_duplicates: false }
    }

    #[test]
    fn only_a_changed_pdu_of_a_batch_fails() {
        let session = Handle { index: 0, generation: 0 };
        let clear: Vec<_> = (0..5).map(|count| (count, BytesMut::zeroed(20 + count as usize))).collect();
        let mut job = batch(session, Way::Apply, &clear);
        let outcome = run_batch(&context(), &mut job);
        let (_, mut sealed) = batch_done(job.done(outcome));
        sealed[3].pdu[10] ^= 1;
        let sealed: Vec<_> = sealed.into_iter().map(|sealed| (sealed.count, sealed.pdu)).collect();
        let mut job = batch(session, Way::Undo, &sealed);
        let outcome = run_batch(&context(), &mut job);
        let (status, opened) = batch_done(job.done(outcome));
        let authentic: Vec<_> = opened.iter().map(|opened| opened.authentic).collect();
        assert_eq!((status, authentic), (JobStatus::Done, vec![true, true, true, false, true]));
        assert!(opened.iter().zip(&clear).all(|(opened, clear)| opened.pdu.len() == clear.1.len()));
    }

    #[test]
    fn malformed_batch_is_refused() {
        let session = Handle { index: 0, generation: 0 };
        let job = || batch(session, Way::Apply, &[(1, BytesMut::zeroed(30))]);
        let mut cases = [job(), job(), job(), job()];
        cases[0].source.pop();
        cases[1].source[1] = Bytes::from(vec![0; 29]);
        cases[2].source[0] = Bytes::from(vec![0; 7]);
        cases[3].source[0] = Bytes::from(vec![0xff; 8]);
        for mut case in cases {
            assert_eq!(run_batch(&context(), &mut case).status, JobStatus::Length);
            assert!(case.target.is_empty());
        }
        let mut case = job();
        case.target = BytesMut::with_capacity(8);
        assert_eq!(run_batch(&context(), &mut case).status, JobStatus::OutOfSpace);
    }
}
