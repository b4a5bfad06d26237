//! Packets that no policy protects pass the layer unchanged.

use super::rig::{NOW, SecureEnd, sa, tcp};
use ipsec::{KeyedDevice, SecureDevice};
use offload_api::mock::{MockDevice, drive};
use offload_api::{
    Direction, DropReason, Handle, NetDevice, NoRecords, PacketAsk, StreamAsk, TransmitResult, TxAsk, TxPacket, engines,
};
use std::collections::BTreeSet;

/// A context encrypts the payload after the headers. Payload must not be moved into the headers, which leave
/// unencrypted.
#[test]
fn payload_of_a_context_is_not_moved_into_headers() {
    for ipv6 in [false, true] {
        let device = MockDevice::default();
        let mut secure = SecureDevice::new(Box::new(device.clone()));
        secure.keying().unwrap().set_default(Direction::Transmit, true);
        let plain = tcp(ipv6, b"a record that no one else is to read", None);
        let context = StreamAsk::whole(Handle { index: 3, generation: 1 }, 0, 37);
        let ask = TxAsk { streams: [Some(context), None], ..plain.ask };
        let sent = secure.transmit(NOW, TxPacket { ask, ..plain.clone() }, &NoRecords);
        assert_eq!(sent, TransmitResult::Posted);
        let [kept] = &device.take_sent()[..] else { panic!("one packet") };
        assert_eq!((&kept.header, &kept.fragments, kept.ask), (&plain.header, &plain.fragments, ask), "IPv6: {ipv6}");
    }
}

/// The packet asks for another engine's work, for which this layer has no context. Whatever the policy says, the packet
/// leaves neither plain nor in ESP.
#[test]
fn packet_for_another_engine_does_not_leave_unprocessed() {
    for ipv6 in [false, true] {
        // A handle in the range of an engine other than ESP.
        let context = Handle { index: Handle::indices(engines::STANDARD, 1).start, generation: 0 };
        let plain = tcp(ipv6, b"to be sealed by an engine of another", None);
        let ask = TxAsk { packet: Some(PacketAsk { context, number: 1, args: 0 }), ..plain.ask };
        let asking = || TxPacket { ask, ..plain.clone() };
        let device = MockDevice::default();
        let mut passing = SecureDevice::new(Box::new(device.clone()));
        passing.keying().unwrap().set_default(Direction::Transmit, true);
        assert_eq!(passing.transmit(NOW, asking(), &NoRecords), TransmitResult::Dropped(DropReason::Unsupported));
        assert_eq!(passing.counters().out_asks, 1);
        for offload in super::KINDS {
            for mode in super::MODES {
                let mut end = SecureEnd::new(1);
                end.key(&[sa(Direction::Transmit, offload, mode, ipv6)]);
                assert_eq!(
                    end.secure.transmit(NOW, asking(), &NoRecords),
                    TransmitResult::Dropped(DropReason::Unsupported)
                );
                end.secure.flush(NOW);
                assert!(end.frames().is_empty(), "{offload:?} {mode:?}");
                assert_eq!(end.counted("ipsec_tx_foreign_asks"), 1);
                assert_eq!(end.send(plain.clone()).len(), 1, "the SA is none the worse for it");
            }
        }
        assert!(device.take_sent().is_empty());
    }
}

/// If all packets bypass IPsec, all interfaces of the device are available except the one for SAs, which this layer
/// uses itself. If all packets are protected, no context can be created.
#[test]
fn bypassed_packets_have_all_device_interfaces() {
    let calls = |wrap: &dyn Fn(MockDevice) -> Option<Box<dyn NetDevice>>| -> BTreeSet<String> {
        let mut device = MockDevice::default();
        match wrap(device.clone()) {
            Some(mut wrapped) => drive(&mut *wrapped),
            None => drive(&mut device),
        }
        device.take_calls().into_iter().collect()
    };
    let plain = calls(&|_| None);
    for several in [false, true] {
        let wrapped = |bypass: bool| {
            calls(&|device| {
                let mut layer: Box<dyn NetDevice> = match several {
                    false => Box::new(SecureDevice::new(Box::new(device))),
                    true => SecureDevice::for_queues(vec![Box::new(device), Box::<MockDevice>::default()]).remove(0),
                };
                for direction in [Direction::Transmit, Direction::Receive] {
                    layer.keying().unwrap().set_default(direction, bypass);
                }
                Some(layer)
            })
        };
        let missing: Vec<String> = plain.difference(&wrapped(true)).cloned().collect();
        // A multi-queue layer answers questions about queues itself.
        let own =
            |call: &String| call.contains("_sa(") || call.contains("policy(") || several && call.starts_with("queue");
        // This layer rejects an empty packet, which a device would send.
        let unexpected: Vec<_> = missing.iter().filter(|call| !own(call) && !call.starts_with("transmit(0")).collect();
        assert!(unexpected.is_empty(), "several queues: {several}, not passed on: {unexpected:?}");
        assert!(!wrapped(false).iter().any(|call| call.starts_with("create(")), "nothing passes");
    }
}
