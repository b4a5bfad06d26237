//! What no policy protects passes the layer as it is.

use crate::rig::{End, NOW, sa, tcp};
use core::task::Waker;
use ipsec::SecureDevice;
use offload_api::{
    Contexts, DeviceEvent, Direction, DropReason, FlowKey, Handle, IpsecDevice, Keying, NetDevice, NoRecords,
    PacketAsk, PathCaps, RecordSource, RssDevice, RxPacket, Sent, StreamAsk, TxAsk, TxPacket, engines,
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

/// Another engine's work, for which this layer has no context: whatever the policy, it leaves neither as it is nor in ESP.
#[test]
fn what_another_engine_is_asked_for_does_not_leave_without_it() {
    for ipv6 in [false, true] {
        let context = Handle { index: Handle::indices(engines::STANDARD, 1).start, generation: 0 };
        let plain = tcp(ipv6, b"to be sealed by an engine of another", None);
        let ask = TxAsk { packet: Some(PacketAsk { context, number: 1, args: 0 }), ..plain.ask };
        let asking = || TxPacket { ask, ..plain.clone() };
        let device = Keeps::default();
        let mut passing = SecureDevice::new(Box::new(device.clone()));
        passing.keying().unwrap().set_default(Direction::Transmit, true);
        assert_eq!(passing.transmit(NOW, asking(), &NoRecords), Sent::Dropped(DropReason::Unsupported));
        assert_eq!(passing.counters().out_asks, 1);
        for offload in crate::KINDS {
            for mode in crate::MODES {
                let mut end = End::new(1);
                end.key(&[sa(Direction::Transmit, offload, mode, ipv6)]);
                assert_eq!(end.secure.transmit(NOW, asking(), &NoRecords), Sent::Dropped(DropReason::Unsupported));
                end.secure.flush(NOW);
                assert!(end.frames().is_empty(), "{offload:?} {mode:?}");
                assert_eq!(end.counted("ipsec_tx_foreign_asks"), 1);
                assert_eq!(end.send(plain.clone()).len(), 1, "the SA is none the worse for it");
            }
        }
        assert!(device.0.lock().unwrap().is_empty());
    }
}
