//! The sessions of a device of services, with their ciphers and chains.

use crate::driven::ControlledFabric;
use crate::{ChainId, SERVICES, ServiceSpec, Suite, SuiteCipher};
use offload_api::{
    Capabilities, CompletedJob, ContextNews, ContextRefusal, Contexts, EngineInfo, Handle, Job, JobOutcome, JobStatus,
    NewContext, Piece, Slots, Spec, Way,
};
use offload_jobs::{TRANSFORM, TransformCapabilities, perform};
use offload_transforms::{Aead, HmacHash, MacOrder, Session, Transform};
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

/// The sessions of a device, and the device.
#[derive(Debug)]
pub(crate) struct ServiceSessions {
    pub(crate) device: ControlledFabric,
    /// Chains for sealing and for opening, by tenant and suite.
    chains: HashMap<(u16, Suite), [ChainId; 2]>,
    pub(crate) slots: Slots<Arc<ServiceSession>>,
    most: u32,
    open: u32,
    news: VecDeque<ContextNews>,
}

/// A session: its cipher, and its chains for sealing and for opening.
#[derive(Debug)]
pub(crate) struct ServiceSession {
    pub(crate) work: SessionWork,
    pub(crate) chains: [ChainId; 2],
}

#[derive(Debug)]
pub(crate) enum SessionWork {
    Transform(Session),
    Cipher(SuiteCipher),
}

impl SessionWork {
    /// Executes a job.
    pub(crate) fn done(&self, mut job: Job) -> CompletedJob {
        let outcome = match self {
            SessionWork::Transform(session) => perform(session, &mut job),
            SessionWork::Cipher(cipher) => run(cipher, &mut job),
        };
        job.done(outcome)
    }
}

/// Executes a job with a suite's cipher.
fn run(cipher: &SuiteCipher, job: &mut Job) -> JobOutcome {
    let mut packet = Vec::with_capacity(job.source_len() + TAG_MAX);
    job.source.iter().for_each(|piece| packet.extend_from_slice(piece));
    let consumed = packet.len();
    match job.way {
        Way::Apply => cipher.seal(&job.iv, &job.aad, &mut packet),
        Way::Undo if cipher.open(&job.iv, &job.aad, &mut packet).is_err() => {
            return JobOutcome::failed(JobStatus::NotAuthentic);
        }
        Way::Undo => {}
    }
    // A suite leaves nothing behind if it cannot seal a packet. Only a 5G cipher may seal an empty packet to an empty
    // one.
    let may_be_empty = consumed == 0 && matches!(cipher.suite(), Suite::Nea(_));
    if packet.is_empty() && !may_be_empty && job.way == Way::Apply {
        return JobOutcome::failed(JobStatus::Length);
    }
    // Checked before anything is written, so that a failed job leaves the target unchanged.
    if job.target.capacity() - job.target.len() < packet.len() {
        return JobOutcome::failed(JobStatus::OutOfSpace);
    }
    job.target.extend_from_slice(&packet);
    JobOutcome { status: JobStatus::Done, consumed, produced: packet.len(), checksums: None }
}

impl Contexts for ServiceSessions {
    fn engine(&mut self, name: &str) -> Option<EngineInfo> {
        match name {
            TRANSFORM => {
                let capabilities = Capabilities::new(TransformCapabilities { aeads: &AEADS });
                Some(EngineInfo { capabilities, ..EngineInfo::new(OF_TRANSFORMS, TRANSFORM, self.most) })
            }
            SERVICES => Some(EngineInfo::new(OF_SUITES, SERVICES, self.most)),
            _ => None,
        }
    }

    fn create(&mut self, new: NewContext) -> Result<Handle, (ContextRefusal, Spec)> {
        let made = match new.engine {
            OF_TRANSFORMS => new.spec.downcast_ref().and_then(|transform| {
                let work = SessionWork::Transform(Session::new(transform).ok()?);
                Some((work, suite_of(transform)?, 0, 1))
            }),
            _ => new.spec.downcast_ref().and_then(|spec: &ServiceSpec| {
                let work = SessionWork::Cipher(SuiteCipher::new(spec.suite, &spec.keys).ok()?);
                Some((work, spec.suite, spec.tenant, spec.share))
            }),
        };
        let Some((work, suite, tenant, share)) = made else { return Err((ContextRefusal::Unsupported, new.spec)) };
        let session = self.chains(tenant, suite, share).map(|chains| Arc::new(ServiceSession { work, chains }));
        let handle = session.and_then(|session| self.slots.insert(session).ok());
        let Some(handle) = handle else { return Err((ContextRefusal::NoSpace, new.spec)) };
        self.open += 1;
        self.news.push_back(ContextNews::Ready(handle));
        Ok(handle)
    }

    /// Ignores the pieces, because a job has no buffers to place. Dropping the pieces returns them.
    fn place(&mut self, _: Handle, _: u64, _: Vec<Piece>, _: Option<Spec>) {}

    fn remove(&mut self, context: Handle) {
        if self.slots.remove(context).is_some() {
            self.open -= 1;
            self.news.push_back(ContextNews::Removed(context));
        }
    }

    fn poll_news(&mut self) -> Option<ContextNews> {
        self.news.pop_front()
    }
}

impl ServiceSessions {
    /// Creates an empty table with room for `most` sessions.
    pub(crate) fn new(device: ControlledFabric, most: u32) -> ServiceSessions {
        ServiceSessions {
            device,
            chains: HashMap::new(),
            slots: Slots::new(Handle::indices(0, most)),
            most,
            open: 0,
            news: VecDeque::new(),
        }
    }

    /// Returns a tenant's chains of a suite for sealing and opening. `None` if their services, or another chain, do not
    /// fit.
    fn chains(&mut self, tenant: u16, suite: Suite, share: u32) -> Option<[ChainId; 2]> {
        if let Some(chains) = self.chains.get(&(tenant, suite)) {
            return Some(*chains);
        }
        if self.chains.len() >= CHAINS_MAX || self.open >= self.most {
            return None;
        }
        // Opening needs all services of sealing and one more. If the chain for opening fits, the other one fits as
        // well.
        let back = self.device.fabric.add_chain(suite.graph(crate::TransformDirection::Undo), share).ok()?;
        let out = self.device.fabric.add_chain(suite.graph(crate::TransformDirection::Apply), share).ok()?;
        self.chains.insert((tenant, suite), [out, back]);
        Some([out, back])
    }
}

/// Returns the suite for a transform.
fn suite_of(transform: &Transform) -> Option<Suite> {
    match transform {
        Transform::Aead { aead: Aead::Aes128Gcm, .. } => Some(Suite::Aes128Gcm),
        Transform::Aead { aead: Aead::Aes256Gcm, .. } => Some(Suite::Aes256Gcm),
        Transform::Aead { aead: Aead::ChaCha20Poly1305, .. } => Some(Suite::ChaCha20Poly1305),
        Transform::CbcHmac { order, hash: HmacHash::Sha1, cipher_key, .. } => match (order, cipher_key.bytes().len()) {
            (MacOrder::MacThenEncrypt, 16) => Some(Suite::Aes128CbcSha),
            (MacOrder::MacThenEncrypt, _) => Some(Suite::Aes256CbcSha),
            (MacOrder::EncryptThenMac, 16) => Some(Suite::Aes128CbcShaEtm),
            (MacOrder::EncryptThenMac, _) => Some(Suite::Aes256CbcShaEtm),
            _ => None,
        },
        _ => None,
    }
}

const AEADS: [Aead; 3] = [Aead::Aes128Gcm, Aead::Aes256Gcm, Aead::ChaCha20Poly1305];
const OF_TRANSFORMS: u8 = 0;
const OF_SUITES: u8 = 1;
/// Maximum number of chains of all tenants, because each has places at each service.
const CHAINS_MAX: usize = 256;
/// Maximum bytes that a suite appends: padding and a MAC.
const TAG_MAX: usize = 64;
