//! The contexts that a stream over an accelerator offers: a TLS engine only.

use super::EventQueue;
use super::receive::LookasideReceiveQueue;
use super::send::LookasideSendQueue;
use offload_api::{
    Capabilities, ContextNews, ContextRefusal, Contexts, Direction, EngineInfo, Handle, NewContext, Piece, Spec,
    TlsCapabilities, TlsContext, TlsContexts, TlsKey, TlsSuite, TlsVersion, engines,
};
use offload_jobs::JobClient;
use offload_transforms::{Aead, SecretBytes, Transform};

/// The contexts of a [`LookasideStream`](super::LookasideStream) as lent to the stream above.
pub(super) struct LookasideContexts<'a> {
    pub(super) send: &'a mut LookasideSendQueue,
    pub(super) receive: &'a mut LookasideReceiveQueue,
    pub(super) news: &'a mut EventQueue,
    /// Whether a [`RunLookaside`](super::RunLookaside) exists that passes on sealed records.
    pub(super) runs: bool,
}

impl Contexts for LookasideContexts<'_> {
    fn engine(&mut self, name: &str) -> Option<EngineInfo> {
        if name != TlsContexts::ENGINE {
            return None;
        }
        let info = EngineInfo::new(engines::TLS, TlsContexts::ENGINE, 2 * super::CONTEXTS);
        Some(EngineInfo { capabilities: Capabilities::new(KNOWN), ..info })
    }

    fn create(&mut self, new: NewContext) -> Result<Handle, (ContextRefusal, Spec)> {
        let NewContext { engine, direction, flow, spec, .. } = new;
        let (Some(flow), engines::TLS, Some(context)) = (flow, engine, spec.downcast_ref::<TlsContext>()) else {
            return Err((ContextRefusal::Unsupported, spec));
        };
        let made = match direction {
            Direction::Transmit if !self.runs => Err(ContextRefusal::Unsupported),
            Direction::Transmit => self.send.add_context(flow, &context.key),
            Direction::Receive => self.receive.add_context(flow, context, self.news),
        };
        made.map_err(|refused| (refused, spec))
    }

    /// Drops the pieces, because TLS places no data.
    fn place(&mut self, _: Handle, _: u64, _: Vec<Piece>, _: Option<Spec>) {}

    fn remove(&mut self, context: Handle) {
        self.send.release(context, self.news);
        self.receive.remove(context, self.news);
    }

    fn poll_news(&mut self) -> Option<ContextNews> {
        None
    }
}

/// Opens an accelerator session for the records of `key`.
pub(super) fn open_session(client: &mut JobClient, key: &TlsKey) -> Result<Handle, ContextRefusal> {
    let aead = match key.suite() {
        TlsSuite::Aes128Gcm => Aead::Aes128Gcm,
        TlsSuite::Aes256Gcm => Aead::Aes256Gcm,
        TlsSuite::ChaCha20Poly1305 => Aead::ChaCha20Poly1305,
        _ => return Err(ContextRefusal::Unsupported),
    };
    let transform = Transform::Aead { aead, key: SecretBytes::new(key.key().to_vec()) };
    client.open(transform).map_err(|(refused, _)| refused)
}

const KNOWN: TlsCapabilities = TlsCapabilities {
    versions: &[TlsVersion::Tls12, TlsVersion::Tls13],
    suites: &[TlsSuite::Aes128Gcm, TlsSuite::Aes256Gcm, TlsSuite::ChaCha20Poly1305],
};
