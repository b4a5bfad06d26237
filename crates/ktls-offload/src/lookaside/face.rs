//! The device that a stream over an accelerator sees: a TLS engine, and nothing else.

use super::News;
use super::receive::ReceiveQueue;
use super::send::SendQueue;
use core::task::Waker;
use offload_api::{
    Capabilities, ContextNews, Contexts, DeviceEvent, Direction, EngineInfo, FlowKey, Handle, IpsecDevice, Keying,
    NetDevice, NewContext, PathCaps, RecordSource, Refused, RssDevice, RxPacket, Sent, Spec, TlsCapabilities,
    TlsContext, TlsContexts, TlsKey, TlsSuite, TlsVersion, TxPacket, engines, tx::DropReason,
};
use offload_base::Instant;
use offload_base::counters::CounterSet;
use offload_jobs::JobClient;
use offload_transforms::{Aead, Secret, Transform};

/// See the module.
pub(super) struct OnlyTls<'a> {
    pub(super) send: &'a mut SendQueue,
    pub(super) receive: &'a mut ReceiveQueue,
    pub(super) news: &'a mut News,
    /// There is somebody who hands on what jobs have sealed.
    pub(super) runs: bool,
}

impl Contexts for OnlyTls<'_> {
    fn engine(&mut self, name: &str) -> Option<EngineInfo> {
        if name != TlsContexts::ENGINE {
            return None;
        }
        let info = EngineInfo::new(engines::TLS, TlsContexts::ENGINE, 2 * super::CONTEXTS);
        Some(EngineInfo { capabilities: Capabilities::new(KNOWN), ..info })
    }

    fn create(&mut self, new: NewContext) -> Result<Handle, (Refused, Spec)> {
        let NewContext { engine, direction, flow, spec, .. } = new;
        let (Some(flow), engines::TLS, Some(context)) = (flow, engine, spec.downcast_ref::<TlsContext>()) else {
            return Err((Refused::Unsupported, spec));
        };
        let made = match direction {
            Direction::Transmit if !self.runs => Err(Refused::Unsupported),
            Direction::Transmit => self.send.add_context(flow, &context.key),
            Direction::Receive => self.receive.add_context(flow, context, self.news),
        };
        made.map_err(|refused| (refused, spec))
    }

    fn remove(&mut self, context: Handle) {
        self.send.release(context, self.news);
        self.receive.remove(context, self.news);
    }

    fn poll_news(&mut self) -> Option<ContextNews> {
        None
    }
}

/// Nobody sends packets by it: it is lent for its contexts.
impl NetDevice for OnlyTls<'_> {
    fn path(&self, _: &FlowKey) -> PathCaps {
        PathCaps { epoch: 0, mtu: 0, checksum: false, tso_max_bytes: 0, udp_segmentation: false, pacing: false }
    }

    fn room(&self, _: &FlowKey) -> usize {
        0
    }

    fn room_paced(&self, _: &FlowKey) -> usize {
        0
    }

    fn transmit(&mut self, _: Instant, _: TxPacket, _: &dyn RecordSource) -> Sent {
        Sent::Dropped(DropReason::Unsupported)
    }

    fn flush(&mut self, _: Instant) {}

    fn receive(&mut self, _: Instant) -> Option<RxPacket> {
        None
    }

    fn poll_event(&mut self) -> Option<DeviceEvent> {
        None
    }

    fn serves(&self, _: &FlowKey) -> bool {
        false
    }

    fn arm(&mut self, _: &Waker) -> bool {
        true
    }

    fn next_event(&self) -> Option<Instant> {
        None
    }

    fn handle_timeout(&mut self, _: Instant) {}

    fn count(&self, _: &mut CounterSet) {}

    fn ipsec(&mut self) -> Option<&mut dyn IpsecDevice> {
        None
    }

    fn rss(&mut self) -> Option<&mut dyn RssDevice> {
        None
    }

    fn keying(&mut self) -> Option<&mut dyn Keying> {
        None
    }

    fn contexts(&mut self) -> Option<&mut dyn Contexts> {
        Some(self)
    }
}

/// Opens a session for the records of a key.
pub(super) fn open_session(client: &mut JobClient, key: &TlsKey) -> Result<Handle, Refused> {
    let aead = match key.suite() {
        TlsSuite::Aes128Gcm => Aead::Aes128Gcm,
        TlsSuite::Aes256Gcm => Aead::Aes256Gcm,
        TlsSuite::ChaCha20Poly1305 => Aead::ChaCha20Poly1305,
        _ => return Err(Refused::Unsupported),
    };
    let transform = Transform::Aead { aead, key: Secret::new(key.key().to_vec()) };
    client.open(transform).map_err(|(refused, _)| refused)
}

const KNOWN: TlsCapabilities = TlsCapabilities {
    versions: &[TlsVersion::Tls12, TlsVersion::Tls13],
    suites: &[TlsSuite::Aes128Gcm, TlsSuite::Aes256Gcm, TlsSuite::ChaCha20Poly1305],
};
