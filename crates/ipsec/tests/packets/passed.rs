//! What no policy protects passes the layer as it is.

use crate::rig::{NOW, tcp};
use core::task::Waker;
use ipsec::SecureDevice;
use offload_api::{
    Contexts, DeviceEvent, Direction, FlowKey, Handle, IpsecDevice, Keying, NetDevice, NoRecords, NvmeTcpDevice,
    PathCaps, RecordSource, RssDevice, RxPacket, Sent, StreamAsk, TlsDevice, TxAsk, TxPacket,
};
use offload_base::Instant;
use offload_base::counters::CounterSet;
use std::sync::{Arc, Mutex};

/// A device that keeps what it is given.
#[derive(Clone, Default)]
struct Keeps(Arc<Mutex<Vec<TxPacket>>>);

impl NetDevice for Keeps {
    fn path(&self, _: &FlowKey) -> PathCaps {
        PathCaps { epoch: 0, mtu: 1500, checksum: true, tso_max_bytes: 0, udp_segmentation: false, pacing: false }
    }
    fn room(&self, _: &FlowKey) -> usize {
        64
    }
    fn room_paced(&self, flow: &FlowKey) -> usize {
        self.room(flow)
    }
    fn transmit(&mut self, _: Instant, packet: TxPacket, _: &dyn RecordSource) -> Sent {
        self.0.lock().unwrap().push(packet);
        Sent::Posted
    }
    fn flush(&mut self, _: Instant) {}
    fn receive(&mut self, _: Instant) -> Option<RxPacket> {
        None
    }
    fn poll_event(&mut self) -> Option<DeviceEvent> {
        None
    }
    fn serves(&self, _: &FlowKey) -> bool {
        true
    }
    fn arm(&mut self, _: &Waker) -> bool {
        true
    }
    fn next_event(&self) -> Option<Instant> {
        None
    }
    fn handle_timeout(&mut self, _: Instant) {}
    fn count(&self, _: &mut CounterSet) {}
    fn tls(&mut self) -> Option<&mut dyn TlsDevice> {
        None
    }
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

/// What a context is to encrypt is behind the headers; what is in them leaves as it is.
#[test]
fn nothing_that_a_context_is_to_encrypt_comes_to_be_a_header() {
    for ipv6 in [false, true] {
        let device = Keeps::default();
        let mut secure = SecureDevice::new(Box::new(device.clone()));
        secure.keying().unwrap().set_default(Direction::Transmit, true);
        let plain = tcp(ipv6, b"a record that no one else is to read", None);
        let context = StreamAsk::whole(Handle { index: 3, generation: 1 }, 0, 37);
        let ask = TxAsk { streams: [Some(context), None], ..plain.ask };
        let sent = secure.transmit(NOW, TxPacket { ask, ..plain.clone() }, &NoRecords);
        assert_eq!(sent, Sent::Posted);
        let [kept] = &device.0.lock().unwrap()[..] else { panic!("one packet") };
        assert_eq!((&kept.header, &kept.fragments, kept.ask), (&plain.header, &plain.fragments, ask), "IPv6: {ipv6}");
    }
}
