//! What a device is told of a bearer, and how it is told: contexts of its packet engine, and batches for its job engine.
//!
//! Both engines are in the crate `nic-pdcp`. A context, or a session, is one direction of a bearer.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use offload_api::{CompletedJob, Handle, Job, JobOutcome, JobStatus, KeyBytes, Way};

use crate::{Config, Security};

/// The packet engine of a NIC: protects PDUs that leave in GTP-U, and opens those that arrive.
pub const PACKETS: &str = "pdcp";
/// The job engine of an accelerator: protects and opens batches of PDUs.
pub const BATCHES: &str = "pdcp-batches";

/// What a context of either engine is made from.
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
    /// The bearer's.
    pub config: Config,
    /// Keys of the direction.
    pub security: Security,
    /// Receiving: the COUNT that is to come next, from which the device goes on by what it sees.
    pub next: u64,
    /// Receiving: the device remembers the last [`REMEMBERED`] COUNTs and drops what comes twice. The host's window decides all the same.
    pub drops_duplicates: bool,
}

/// COUNTs that a device remembers.
pub const REMEMBERED: u32 = 512;

/// What a NIC finds the context of a received PDU by: the tunnel's number at this end (TEID), in a datagram to GTP-U's port.
///
/// ```
/// use pdcp::device::tunnel_key;
///
/// assert_ne!(tunnel_key(1), tunnel_key(2));
/// ```
pub fn tunnel_key(tunnel: u32) -> KeyBytes {
    KeyBytes::from_parts(&[&tunnel.to_be_bytes()])
}

/// A job that protects (`Way::Apply`) or opens (`Way::Undo`) PDUs of one session, each with its COUNT.
///
/// A PDU to be protected has its MAC-I's room at its end. [`batch_done`] reads what comes of it.
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
    /// The COUNT that it was worked on with.
    pub count: u32,
    /// Header, SDU, MAC-I.
    pub pdu: BytesMut,
    /// Of opened ones: MAC-I fits, or there is none.
    pub authentic: bool,
}

/// What came of a batch: its PDUs, worked on, in order. If the status is not `Done`, none; the source has them as they were.
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

/// Does a [`batch`]: what the job engine does, and a CPU may do as well.
///
/// `Length`: the batch is not laid out as `batch` does it. `OutOfSpace`: the target is shorter than the source.
pub fn run_batch(context: &PdcpContext, job: &mut Job) -> JobOutcome {
    let source_bytes = job.source_len();
    let [table, body] = &job.source[..] else { return JobOutcome::failed(JobStatus::Length) };
    let Some(mut pdus) = parted(table.clone(), body) else { return JobOutcome::failed(JobStatus::Length) };
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
    for ((count, pdu), authentic) in pdus.iter().zip(authentic) {
        job.target.put_u32(*count);
        job.target.put_u32(pdu.len() as u32 | if authentic { AUTHENTIC } else { 0 });
    }
    for (_, pdu) in &pdus {
        job.target.put_slice(pdu);
    }
    JobOutcome { status: JobStatus::Done, consumed: source_bytes, produced: source_bytes, checksums: None }
}

/// The PDUs of a batch; `None`: table and body do not fit each other.
fn parted(mut table: Bytes, body: &Bytes) -> Option<Vec<(u32, BytesMut)>> {
    let (mut pdus, mut at) = (Vec::with_capacity(table.len() / ENTRY), 0);
    while table.has_remaining() {
        let count = table.try_get_u32().ok()?;
        let bytes = table.try_get_u32().ok()? as usize;
        let end = at + bytes;
        pdus.push((count, BytesMut::from(body.get(at..end)?)));
        at = end;
    }
    (at == body.len()).then_some(pdus)
}

/// COUNT, and how many bytes the PDU has.
const ENTRY: usize = 8;
/// Beside how many bytes it has: a PDU is far shorter.
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
    fn a_changed_pdu_is_told_apart_from_its_neighbours() {
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
    fn a_batch_that_is_laid_out_otherwise_is_refused() {
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
