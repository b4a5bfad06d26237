//! One IPsec layer around the queues of a device: interactions between shards.

use super::MODES;
use super::rig::{self, NOW, SecureEnd, address, datagram, sa, tcp};
use bytes::Bytes;
use core::num::NonZeroU64;
use core::task::Waker;
use ipsec::{KeyedDevice, SecureDevice};
use nic_sim::frame::Frame;
use nic_sim::wire::Port;
use nic_sim::{Delays, Device, EspEngineConfig, NicConfig, TlsEngineConfig, multi_queue_nic};
use offload_api::fragmentation::fragment;
use offload_api::{
    Action, Direction, EspMode, FlowKey, NetDevice, NoRecords, OffloadKind, Policy, ResyncMode, SaParams, Selector,
    Template, TransmitResult, TxAsk, TxPacket, TypedContexts, UdpEncapsulation,
};
use offload_base::counters::CounterSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Wake;

/// A waker that counts its calls.
#[derive(Default)]
struct QueueWakeCounter(AtomicUsize);

impl Wake for QueueWakeCounter {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

impl QueueWakeCounter {
    fn take(&self) -> bool {
        self.0.swap(0, Ordering::Relaxed) > 0
    }
}

/// Returns host 1's device with two queues, and an SA to host 2 at the first one.
fn queues(kind: OffloadKind) -> (Device, [Box<dyn NetDevice>; 2]) {
    let config =
        NicConfig { mac: [2, 0, 0, 0, 0, 1], delays: Delays::NONE, line_rate: None, queues: 2, ..NicConfig::default() };
    let (device, drivers) = multi_queue_nic(config);
    let mut queues = SecureDevice::for_queues(drivers.into_iter().map(|driver| Box::new(driver) as _).collect());
    let keying = queues[1].keying().expect("an IPsec layer");
    let action = Action::Protect(Template::transport(1));
    keying.add_policy(Policy { direction: Direction::Transmit, selector: Selector::ANY, priority: 0, action }).unwrap();
    assert_eq!(keying.add_sa(NOW, sa(Direction::Transmit, kind, EspMode::Transport, false)).unwrap().refused, None);
    (device, queues.try_into().ok().expect("as many as there were"))
}

/// Returns all frames that the device sends, without serving its queues.
fn frames(device: &mut Device) -> Vec<Frame> {
    device.process(NOW);
    let frames = core::iter::from_fn(|| device.poll_frame(NOW)).collect();
    device.process(NOW);
    frames
}

#[test]
fn task_is_woken_for_room_at_another_queue() {
    for kind in [OffloadKind::None, OffloadKind::Crypto, OffloadKind::Packet] {
        let (mut device, [mut home, mut other]) = queues(kind);
        let flow = FlowKey::tcp("10.0.0.1:5000".parse().unwrap(), "10.0.0.2:80".parse().unwrap());
        let (serves_home, serves_other) =
            (Arc::new(QueueWakeCounter::default()), Arc::new(QueueWakeCounter::default()));
        let mut sent = 0;
        // The second shard fills the first queue, where the SA is.
        while other.room(&flow) > 0 {
            assert_eq!(other.transmit(NOW, tcp(false, &[1; 1000], None), &NoRecords), TransmitResult::Posted);
            sent += 1;
        }
        assert_eq!(home.room(&flow), 0, "{kind:?}: it is the same queue");
        other.flush(NOW);
        for (queue, woken) in [(&mut home, &serves_home), (&mut other, &serves_other)] {
            let waker = Waker::from(woken.clone());
            while !queue.arm(&waker) {
                assert!(queue.poll_event().is_none() && queue.receive(NOW).is_none());
            }
        }
        assert!(!serves_other.take(), "{kind:?}: there is no room yet");
        assert_eq!(frames(&mut device).len(), sent, "{kind:?}: the doorbell of the other queue rang");
        assert!(serves_home.take(), "{kind:?}");
        assert!(home.receive(NOW).is_none() && home.poll_event().is_none());
        // The home queue's task makes the room known when it serves its queue.
        home.flush(NOW);
        home.arm(&Waker::from(serves_home.clone()));
        assert!(serves_other.take(), "{kind:?}: there is room");
        assert!(other.room(&flow) > 0, "{kind:?}");
    }
}

/// Bypassed packets are paced by the device, and a paced flow keeps few packets in the device. Protected packets are
/// not paced.
#[test]
fn bypassed_packets_are_paced_as_without_the_layer() {
    let flow = |port| FlowKey::tcp("10.0.0.1:5000".parse().unwrap(), ([10, 0, 0, 2], port).into());
    let rate = NonZeroU64::new(1_000_000);
    for count in [1, 2] {
        let (_device, drivers) = multi_queue_nic(NicConfig { queues: count, ..NicConfig::default() });
        let mut queues = SecureDevice::for_queues(drivers.into_iter().map(|driver| Box::new(driver) as _).collect());
        let queue = queues.last_mut().unwrap();
        let keying = queue.keying().expect("an IPsec layer");
        let selector = Selector { destination_port: Some(443), ..Selector::ANY };
        let action = Action::Protect(Template::transport(1));
        keying.add_policy(Policy { direction: Direction::Transmit, selector, priority: 0, action }).unwrap();
        keying.add_sa(NOW, sa(Direction::Transmit, OffloadKind::Crypto, EspMode::Transport, false)).unwrap();
        keying.set_default(Direction::Transmit, true);
        let (plain, protected) = (flow(80), flow(443));
        assert!(queue.path(&plain).pacing && !queue.path(&protected).pacing, "{count} queues");
        let mut sent = 0;
        while queue.room_paced(&plain) > 0 {
            let mut packet = tcp(false, &[1; 1000], None);
            packet.ask.rate = rate;
            assert_eq!(queue.transmit(NOW, packet, &NoRecords), TransmitResult::Posted);
            sent += 1;
        }
        // A paced flow occupies only a few entries, even if the ring has room.
        assert!((1..10).contains(&sent), "{count} queues: {sent}");
        assert!(queue.room(&plain) > 0 && queue.room_paced(&flow(81)) > 0, "{count} queues");
        assert_eq!(queue.room_paced(&protected), queue.room(&protected), "{count} queues");
    }
}

/// Two shards may use the same identification for packets to the same host.
#[test]
fn fragments_of_two_shards_are_not_joined() {
    let (mut device, mut queues) = queues(OffloadKind::None);
    let payloads = [[1; 2000], [2; 2000]];
    let mut pieces = payloads.map(|payload| datagram(false, 53, &payload, 1200).into_iter());
    while let [Some(first), Some(second)] = pieces.each_mut().map(Iterator::next) {
        for (queue, piece) in queues.iter_mut().zip([first, second]) {
            assert_eq!(queue.transmit(NOW, piece, &NoRecords), TransmitResult::Posted);
            queue.flush(NOW);
        }
    }
    let mut receiver = SecureEnd::new(2);
    receiver.key(&[sa(Direction::Receive, OffloadKind::None, EspMode::Transport, false)]);
    let received = receiver.receive(frames(&mut device));
    assert_eq!(received.len(), 2);
    for (packet, payload) in received.iter().zip(&payloads) {
        assert!(packet.ends_with(payload));
    }
}

/// A host may poll its queues in any order. Whole packets of an SA that wait at a queue, joined or not, must not be
/// overtaken by a fragmented one, whichever queue is polled first.
#[test]
fn fragments_do_not_overtake_packets_of_their_sa() {
    const QUEUES: usize = 4;
    const WHOLE: usize = 200;
    let ways =
        [OffloadKind::Crypto, OffloadKind::Packet].into_iter().flat_map(|kind| MODES.map(|mode| (kind, mode, false)));
    // Devices accept ESP in UDP with packet offload only.
    for (kind, mode, udp) in ways.chain(MODES.map(|mode| (OffloadKind::Packet, mode, true))) {
        let encapsulation = udp.then_some(UdpEncapsulation { source_port: 4500, destination_port: 4500 });
        let params = |direction, kind, spi| SaParams { spi, encapsulation, ..sa(direction, kind, mode, false) };
        for (lro, first) in (0..QUEUES).flat_map(|first| [(false, first), (true, first)]) {
            let what = format!("{kind:?} {mode:?}, UDP: {udp}, LRO: {lro}, queue {first} first");
            let config = NicConfig {
                lro,
                queues: QUEUES as u16,
                engines: EspEngineConfig { sas: 64 }.into(),
                ..NicConfig::default()
            };
            let config = NicConfig { mac: [2, 0, 0, 0, 0, 2], delays: Delays::NONE, line_rate: None, ..config };
            let (mut device, drivers) = multi_queue_nic(config);
            let mut queues =
                SecureDevice::for_queues(drivers.into_iter().map(|driver| Box::new(driver) as _).collect());
            let keying = queues[0].keying().expect("an IPsec layer");
            let action = Action::Protect(match mode {
                EspMode::Transport => Template::transport(1),
                EspMode::Tunnel => Template::tunnel(address(false, 1), address(false, 2), 1),
            });
            let policy = Policy { direction: Direction::Receive, selector: Selector::ANY, priority: 0, action };
            keying.add_policy(policy).unwrap();
            // One SA at each queue, so that most fragments arrive at another queue.
            let spis: Vec<u32> = (0..QUEUES as u32).map(|number| 0x2000 + number).collect();
            for spi in &spis {
                let added = keying.add_sa(NOW, params(Direction::Receive, kind, *spi)).unwrap();
                assert_eq!(added.refused, None, "{what}");
            }
            for _ in 0..4 {
                assert!(frames(&mut device).is_empty());
                assert!(queues.iter_mut().all(|queue| queue.poll_event().is_none()));
            }
            for spi in spis {
                let mut sender = SecureEnd::new(1);
                sender.key(&[params(Direction::Transmit, OffloadKind::None, spi)]);
                // Without the last segment, which has PSH, so that the joined packet still waits.
                let mut sent = sender.send(tcp(false, &[1; (WHOLE + 1) * 100], Some(100)));
                assert_eq!(sent.pop().map(|_| sent.len()), Some(WHOLE));
                let whole = SecureEnd::with(1, NicConfig { mtu: 9000, ..NicConfig::default() });
                sent.extend(in_fragments(whole, params(Direction::Transmit, OffloadKind::None, spi), WHOLE));
                sent.into_iter().for_each(|frame| device.receive_frame(NOW, frame));
                device.process(NOW);
                let mut received = [0, 0];
                // A packet opened by one shard may belong to a shard that was polled before, so the queues are polled
                // repeatedly.
                for queue in (first..QUEUES).chain(0..QUEUES).chain(0..QUEUES) {
                    while let Some(packet) = queues[queue].receive(NOW) {
                        let is_tcp = packet.frame[23] == 6;
                        received[usize::from(!is_tcp)] += packet.frame.len() - if is_tcp { 54 } else { 42 };
                    }
                }
                assert_eq!(received, [WHOLE * 100, 3000], "{what}, SPI {spi:#x}");
            }
            let mut set = CounterSet::default();
            queues.iter().for_each(|queue| queue.count(&mut set));
            assert_eq!(set.value("XfrmInStateSeqError"), 0, "{what}");
            assert_eq!(set.value("ipsec_sw_rx_pkts"), QUEUES as u64, "{what}: the rest is the device's");
        }
    }
}

/// Returns the fragments of the ESP packet after `after` others, which exceeds a path of 1500 bytes.
fn in_fragments(mut sender: SecureEnd, sa: SaParams, after: usize) -> Vec<Frame> {
    sender.key(&[sa]);
    for _ in 0..after {
        sender.send(tcp(false, &[0], None));
    }
    let [frame] = sender.send(datagram(false, 53, &[2; 3000], 9000).remove(0)).try_into().expect("one packet");
    let (header, payload) = frame.data.split_at(34);
    let fragments = [Bytes::copy_from_slice(payload)].into_iter().collect();
    let packet = TxPacket { header: header.to_vec().into(), fragments, ask: TxAsk::default() };
    fragment(packet, 14, 1500, 77).expect("it may be cut").iter().map(rig::frame).collect()
}

#[test]
fn layer_passes_on_the_devices_resync_mode() {
    for resync in [ResyncMode::DriverRequest, ResyncMode::CoreHint, ResyncMode::Asynchronous] {
        for queues in [1, 2] {
            let (_device, drivers) = multi_queue_nic(NicConfig {
                engines: TlsEngineConfig { resync, ..TlsEngineConfig::default() }.into(),
                queues,
                ..NicConfig::default()
            });
            let drivers = drivers.into_iter().map(|driver| Box::new(driver) as Box<dyn NetDevice>).collect();
            for mut queue in SecureDevice::for_queues(drivers) {
                assert_eq!(queue.tls().unwrap().resync(), resync, "{queues} queues");
            }
        }
    }
}
