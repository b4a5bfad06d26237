//! A device without a wire: it keeps what it is given, receives nothing, and takes every TLS context without doing
//! anything with it.

use core::task::Waker;
use offload_api::{
    Capabilities, ContextNews, Contexts, DeviceEvent, Direction, EngineInfo, FlowKey, Handle, IpsecDevice, Key, Keying,
    NetDevice, NewContext, PathCaps, Piece, RecordSource, Refused, ResyncMode, RssDevice, RxPacket, Sent, Spec,
    TlsCapabilities, TlsContext, TlsContexts, TlsKey, TlsSuite, TlsVersion, TxPacket, engines,
};
use offload_base::counters::CounterSet;
use offload_base::{Instant, Seq};

#[derive(Default)]
pub(crate) struct Nic {
    pub(crate) sent: Vec<TxPacket>,
    /// What it says of its room, whatever it was given.
    pub(crate) room: usize,
    /// TLS contexts given out.
    pub(crate) contexts: u32,
    /// Those of them that receive: the number of the first record, and the key.
    pub(crate) receiving: Vec<(Handle, u64, TlsKey)>,
}

impl Nic {
    pub(crate) fn with_room(room: usize) -> Nic {
        Nic { room, ..Nic::default() }
    }
}

impl NetDevice for Nic {
    fn path(&self, _: &FlowKey) -> PathCaps {
        PathCaps { epoch: 0, mtu: 1500, checksum: true, tso_max_bytes: 65_535, udp_segmentation: true, pacing: false }
    }

    fn room(&self, _: &FlowKey) -> usize {
        self.room
    }

    fn transmit(&mut self, _: Instant, packet: TxPacket, _: &dyn RecordSource) -> Sent {
        assert!(packet.payload_len() <= 65_535);
        self.sent.push(packet);
        Sent::Posted
    }

    fn flush(&mut self, _: Instant) {}

    fn receive(&mut self, _: Instant) -> Option<RxPacket> {
        None
    }

    fn poll_event(&mut self) -> Option<DeviceEvent> {
        None
    }

    fn arm(&mut self, _: &Waker) -> bool {
        true
    }

    fn next_event(&self) -> Option<Instant> {
        None
    }

    fn handle_timeout(&mut self, _: Instant) {}

    fn room_paced(&self, flow: &FlowKey) -> usize {
        self.room(flow)
    }

    fn serves(&self, _: &FlowKey) -> bool {
        true
    }

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

impl Contexts for Nic {
    fn engine(&mut self, name: &str) -> Option<EngineInfo> {
        (name == TlsContexts::ENGINE).then(|| EngineInfo {
            number: engines::TLS,
            name: TlsContexts::ENGINE,
            contexts: Handle::PLACES,
            counts_units: true,
            resync: ResyncMode::DriverRequest,
            pool: 0,
            capabilities: Capabilities::new(TlsCapabilities {
                versions: &[TlsVersion::Tls12, TlsVersion::Tls13],
                suites: &[TlsSuite::Aes128Gcm, TlsSuite::Aes256Gcm, TlsSuite::ChaCha20Poly1305],
            }),
        })
    }

    fn create(&mut self, new: NewContext) -> Result<Handle, (Refused, Spec)> {
        let TlsContext { number, key, .. } = *new.spec.downcast().map_err(|spec| (Refused::Unsupported, spec))?;
        let handle = Handle { index: self.contexts, generation: 0 };
        self.contexts += 1;
        if new.direction == Direction::Receive {
            self.receiving.push((handle, number, key));
        }
        Ok(handle)
    }

    fn steer(&mut self, _: Handle, _: Key, _: bool) -> Result<(), Refused> {
        Err(Refused::Unsupported)
    }

    fn command(&mut self, _: Handle, command: Spec) -> Result<(), (Refused, Spec)> {
        Err((Refused::Unsupported, command))
    }

    fn change(&mut self, _: u8, change: Spec) -> Result<(), (Refused, Spec)> {
        Err((Refused::Unsupported, change))
    }

    fn place(&mut self, _: Handle, _: u64, _: Vec<Piece>) {}

    fn release(&mut self, _: Handle, _: u64) {}

    fn answer(&mut self, _: Handle, _: Seq, _: Option<u64>) {}

    fn remove(&mut self, _: Handle) {}

    fn poll_news(&mut self) -> Option<ContextNews> {
        None
    }
}
