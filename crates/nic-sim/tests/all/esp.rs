//! ESP on the device: packets that must not leave.

use nic_sim::stats::EspCounters;
use nic_sim::wire::Port;
use nic_sim::{Delays, Driver, EspEngineConfig, NicConfig, nic};
use offload_api::ipsec::DeviceSaEvent;
use offload_api::{
    DeviceEvent, Direction, DropReason, EspAsk, EspKey, EspSuite, Handle, IpsecDevice, Lifetime, NetDevice, NoRecords,
    OffloadKind, SaParams, Selector, TransmitResult, TxAsk, TxPacket, engines,
};
use offload_base::Instant;
use offload_base::counters::CounterSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

const SA: Handle = Handle { index: Handle::indices(engines::ESP, 1).start, generation: 0 };
const FINISH: EspAsk = EspAsk::Finish { sa: SA, at: 34, number: 1, next_header: 6 };

fn packet(ask: EspAsk) -> TxPacket {
    let mut header = vec![0u8; 14];
    header[12] = 8;
    header.extend_from_slice(&[0x45, 0, 0, 56, 0, 0, 0, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    header.resize(70, 0);
    TxPacket {
        header: header.into(),
        ask: TxAsk { packet: Some(ask.into()), ..TxAsk::default() },
        ..TxPacket::default()
    }
}

#[test]
fn a_driver_rejects_sas_that_its_device_cannot_protect() {
    let (_device, mut driver) = nic(NicConfig { engines: EspEngineConfig { sas: 0 }.into(), ..NicConfig::default() });
    assert!(driver.ipsec().is_none());
    for ask in [EspAsk::Protect { sa: SA }, FINISH] {
        let sent = driver.transmit(Instant::ZERO, packet(ask), &NoRecords);
        assert_eq!(sent, TransmitResult::Dropped(DropReason::Unsupported));
    }
    let mut counters = CounterSet::default();
    driver.count(&mut counters);
    assert_eq!(counters.value("tx_ipsec_refused"), 2);
}

#[test]
fn a_device_without_a_matching_policy_drops_the_packet() {
    let config = NicConfig { delays: Delays::NONE, line_rate: None, ..NicConfig::default() };
    let (mut device, mut driver) = nic(config);
    let sa = |spi| {
        let key = EspKey::new(EspSuite::Aes128Gcm, &[7; 20]).unwrap();
        let params = SaParams::new(Direction::Transmit, spi, [10, 0, 0, 1].into(), [10, 0, 0, 2].into(), key);
        SaParams { offload: OffloadKind::Packet, ..params }
    };
    let ipsec = driver.ipsec().unwrap();
    let [meant, found] = [256, 257].map(|spi| ipsec.add_sa(&sa(spi)).unwrap());
    assert_eq!(
        driver.transmit(Instant::ZERO, packet(EspAsk::Protect { sa: meant }), &NoRecords),
        TransmitResult::Posted
    );
    // The device's policies select another SA than the host intends.
    driver.ipsec().unwrap().set_policy(&Selector::ANY, 0, found).unwrap();
    assert_eq!(
        driver.transmit(Instant::ZERO, packet(EspAsk::Protect { sa: meant }), &NoRecords),
        TransmitResult::Posted
    );
    let sent = driver.transmit(Instant::ZERO, packet(FINISH), &NoRecords);
    assert_eq!(sent, TransmitResult::Dropped(DropReason::Unsupported), "the device does not know this SA");
    driver.flush(Instant::ZERO);
    device.process(Instant::ZERO);
    assert!(device.poll_frame(Instant::ZERO).is_none());
    let counters: EspCounters = device.engine_counters();
    assert_eq!((counters.ipsec_tx_drop_pkts, counters.ipsec_tx_drop_no_state), (2, 2));
}

#[test]
fn a_name_from_before_a_reset_takes_no_sa_away() {
    let config = NicConfig { delays: Delays::NONE, line_rate: None, ..NicConfig::default() };
    let (mut device, mut driver) = nic(config);
    let key = EspKey::new(EspSuite::Aes128Gcm, &[7; 20]).unwrap();
    let params = SaParams::new(Direction::Transmit, 0x1001, [10, 0, 0, 1].into(), [10, 0, 0, 2].into(), key);
    let params = SaParams { offload: OffloadKind::Crypto, ..params };
    let old = driver.ipsec().unwrap().add_sa(&params).unwrap();
    device.reset(Instant::ZERO);
    device.process(Instant::ZERO);
    assert_eq!(driver.poll_event(), Some(DeviceEvent::Reset));
    assert_eq!(driver.ipsec().unwrap().poll_sa_event(), Some(DeviceSaEvent::Lost(old)));
    let new = driver.ipsec().unwrap().add_sa(&params).unwrap();
    assert_eq!(new.index, old.index, "its place");
    driver.ipsec().unwrap().remove_sa(old);
    let finish = EspAsk::Finish { sa: new, at: 34, number: 1, next_header: 6 };
    assert_eq!(driver.transmit(Instant::ZERO, packet(finish), &NoRecords), TransmitResult::Posted);
    driver.ipsec().unwrap().remove_sa(new);
    let sent = driver.transmit(Instant::ZERO, packet(finish), &NoRecords);
    assert_eq!(sent, TransmitResult::Dropped(DropReason::Unsupported));
}

/// A waker with a flag.
#[derive(Default)]
struct FlagWaker(AtomicBool);

impl std::task::Wake for FlagWaker {
    fn wake(self: Arc<FlagWaker>) {
        self.0.store(true, Ordering::SeqCst);
    }
}

#[test]
fn the_device_hears_of_each_command_though_no_packet_follows() {
    let (_device, mut driver) = nic(NicConfig::default());
    let key = EspKey::new(EspSuite::Aes128Gcm, &[7; 20]).unwrap();
    let params = SaParams::new(Direction::Transmit, 256, [10, 0, 0, 1].into(), [10, 0, 0, 2].into(), key);
    let params = SaParams { offload: OffloadKind::Packet, ..params };
    let sa = driver.ipsec().unwrap().add_sa(&params).unwrap();
    type SaRequest = fn(&mut dyn IpsecDevice, Handle);
    let asks: [(&str, SaRequest); 5] = [
        ("set a policy", |ipsec, sa| ipsec.set_policy(&Selector::ANY, 0, sa).unwrap()),
        ("advance an SA", |ipsec, sa| ipsec.advance_sa(sa, 1000).unwrap()),
        ("update an SA", |ipsec, sa| ipsec.update_sa(sa, Lifetime::default())),
        ("remove a policy", |ipsec, _| ipsec.remove_policy(&Selector::ANY, 0)),
        ("remove an SA", |ipsec, sa| ipsec.remove_sa(sa)),
    ];
    for (name, ask) in asks {
        let rung = driver.counters().doorbells;
        ask(driver.ipsec().unwrap(), sa);
        assert_eq!(driver.counters().doorbells, rung + 1, "{name}");
    }
}

/// The host's service sleeps while SAs come and go, with a free ring and with a full one.
#[test]
fn an_sa_is_made_and_removed_on_an_idle_device() {
    let config = NicConfig { delays: Delays::NONE, line_rate: None, ..NicConfig::default() };
    for full in [false, true] {
        let (mut device, mut driver) = nic(config.clone());
        let woken = Arc::new(FlagWaker::default());
        let mut run_until = |driver: &mut Driver, event: DeviceSaEvent| {
            for _ in 0..10 {
                // Only events make the service run; without a wakeup the SA would wait forever.
                device.process(Instant::ZERO);
                while device.poll_frame(Instant::ZERO).is_some() {}
                assert!(woken.0.swap(false, Ordering::SeqCst), "the service is woken for {event:?}");
                let seen = driver.ipsec().unwrap().poll_sa_event();
                while !driver.arm(&woken.clone().into()) {
                    assert_eq!(driver.poll_event(), None);
                }
                if seen == Some(event) {
                    return;
                }
            }
            panic!("{event:?} is never reported");
        };
        assert!(driver.arm(&woken.clone().into()));
        let key = EspKey::new(EspSuite::Aes128Gcm, &[7; 20]).unwrap();
        let params = SaParams::new(Direction::Receive, 0x1001, [10, 0, 0, 1].into(), [10, 0, 0, 2].into(), key);
        let params = SaParams { offload: OffloadKind::Crypto, ..params };
        let sa = driver.ipsec().unwrap().add_sa(&params).unwrap();
        run_until(&mut driver, DeviceSaEvent::Ready(sa));
        // A full ring delays the removal until the device has made room.
        if full {
            let packet = || TxPacket { header: [0xff; 60].into_iter().collect(), ..TxPacket::default() };
            while driver.transmit(Instant::ZERO, packet(), &NoRecords) == TransmitResult::Posted {}
            driver.flush(Instant::ZERO);
        }
        driver.ipsec().unwrap().remove_sa(sa);
        run_until(&mut driver, DeviceSaEvent::Removed(sa));
    }
}
