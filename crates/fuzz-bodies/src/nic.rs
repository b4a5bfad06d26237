//! A device without a wire: it keeps what it is given, receives nothing, and takes every TLS context without doing
//! anything with it.

use core::task::Waker;
use offload_api::{
    Contexts, DeviceEvent, Direction, FlowKey, Handle, IpsecDevice, Keying, NetDevice, NvmeTcpDevice, PathCaps,
    RecordSource, Refused, RssDevice, RxPacket, Sent, TlsDevice, TlsKey, TlsResync, TxPacket,
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

    fn tls(&mut self) -> Option<&mut dyn TlsDevice> {
        Some(self)
    }

    fn room_paced(&self, flow: &FlowKey) -> usize {
        self.room(flow)
    }

    fn serves(&self, _: &FlowKey) -> bool {
        true
    }

    fn count(&self, _: &mut CounterSet) {}

    fn nvme(&mut self) -> Option<&mut dyn NvmeTcpDevice> {
        None
    }

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
        None
    }
}

impl TlsDevice for Nic {
    fn add(&mut self, _: &FlowKey, direction: Direction, _: Seq, number: u64, key: &TlsKey) -> Result<Handle, Refused> {
        let handle = Handle { index: self.contexts, generation: 0 };
        self.contexts += 1;
        if direction == Direction::Receive {
            self.receiving.push((handle, number, key.clone()));
        }
        Ok(handle)
    }

    fn resync(&mut self) -> TlsResync {
        TlsResync::DriverRequest
    }

    fn answer_resync(&mut self, _: Handle, _: Seq, _: Option<u64>) {}

    fn remove(&mut self, _: Handle) {}
}
