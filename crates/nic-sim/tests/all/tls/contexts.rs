//! Lifecycle of contexts: slots, generations, the pool, resets, and secrecy of keys.

use super::*;

#[test]
fn slots_are_reused_with_a_new_generation() {
    let stream = RecordStream::new(Seq(0), 0, &[3000]);
    let config = NicConfig {
        engines: TlsEngineConfig { contexts: 1, context_pool: 0, ..TlsEngineConfig::default() }.into(),
        ..NicConfig::default()
    };
    let (mut device, mut driver) = nic(fast(config));
    let first = driver.tls().unwrap().add(&sender(), Direction::Transmit, Seq(0), 0, &key()).unwrap();
    assert_eq!(
        driver.tls().unwrap().add(&sender(), Direction::Transmit, Seq(0), 0, &key()),
        Err(ContextRefusal::NoSpace)
    );
    assert_eq!(driver.transmit(Instant::ZERO, stream.packet(0, 3021, 1000, first), &stream), TransmitResult::Posted);
    driver.tls().unwrap().remove(first);
    assert_eq!(driver.poll_event(), None, "a packet is still in the device");
    driver.flush(Instant::ZERO);
    let payload: Vec<u8> = frames(&mut device).iter().flat_map(|frame| frame.data[HEADERS..].to_vec()).collect();
    assert_eq!(payload, stream.wire);
    assert_eq!(driver.poll_event(), None, "the removal is posted now");
    frames(&mut device);
    assert_eq!(driver.poll_event(), Some(DeviceEvent::Removed { flow: sender(), handle: first }));
    let second = driver.tls().unwrap().add(&sender(), Direction::Transmit, Seq(0), 0, &key()).unwrap();
    assert_eq!((second.index, second.generation), (first.index, first.generation + 1));
    let sent = driver.transmit(Instant::ZERO, stream.packet(0, 100, 1000, first), &stream);
    assert_eq!(sent, TransmitResult::NeedsSoftware(stream.units[0]), "the old handle is stale");
}

/// The pool saves the device a creation and removal, and saves the driver the wait.
#[test]
fn a_context_from_the_pool_needs_a_key_only() {
    let stream = RecordStream::new(Seq(0), 0, &[3000]);
    let control = [0, 1].map(|context_pool| {
        let (mut device, mut driver) = nic(fast(NicConfig {
            engines: TlsEngineConfig { contexts: 1, context_pool, ..TlsEngineConfig::default() }.into(),
            ..NicConfig::default()
        }));
        // The slot is reused five times, with or without the pool.
        for generation in 0..5 {
            let handle = driver.tls().unwrap().add(&sender(), Direction::Transmit, Seq(0), 0, &key()).unwrap();
            assert_eq!(handle, Handle { index: 0, generation });
            assert_eq!(
                driver.transmit(Instant::ZERO, stream.packet(0, 3021, 1000, handle), &stream),
                TransmitResult::Posted
            );
            driver.tls().unwrap().remove(handle);
            driver.flush(Instant::ZERO);
            let left: Vec<u8> = frames(&mut device).iter().flat_map(|frame| frame.data[HEADERS..].to_vec()).collect();
            assert_eq!(left, stream.wire, "the pool's context has the new key");
            let pooled = driver.poll_event();
            frames(&mut device);
            assert_eq!(device.contexts(), 0, "no key is left there");
            let gone = Some(DeviceEvent::Removed { flow: sender(), handle });
            assert_eq!(pooled.or_else(|| driver.poll_event()), gone);
            assert_eq!(pooled.is_some(), context_pool == 1, "a pooled context is removed at once");
        }
        let counted = driver.context_counters(engines::TLS);
        let made = if context_pool == 1 { (1, 0) } else { (5, 5) };
        assert_eq!((counted.pool_alloc, counted.pool_free), made);
        // The counters of contexts are the same in both cases.
        assert_eq!((counted.transmit.created, counted.transmit.removed), (5, 5));
        // The pool's contexts can be used for receiving too, and a reset empties the pool.
        let flow = sender().reversed();
        let handle = driver.tls().unwrap().add(&flow, Direction::Receive, Seq(0), 0, &key()).unwrap();
        frames(&mut device);
        assert_eq!(driver.poll_event(), Some(DeviceEvent::Ready { flow, handle }));
        assert_eq!(driver.context_counters(engines::TLS).pool_free, made.1 + context_pool as u64);
        driver.tls().unwrap().remove(handle);
        frames(&mut device);
        device.reset(Instant::ZERO);
        while driver.poll_event().is_some() {}
        let alloc = driver.context_counters(engines::TLS).pool_alloc;
        driver.tls().unwrap().add(&sender(), Direction::Transmit, Seq(0), 0, &key()).unwrap();
        assert_eq!(driver.context_counters(engines::TLS).pool_alloc, alloc + 1);
        (device.dma().control, device.dma().completions)
    });
    // The pool more than halves the bytes of commands.
    assert!(control[1].0 * 2 < control[0].0 && control[1].1 < control[0].1, "{control:?}");
}

#[test]
fn commands_from_before_a_reset_are_forgotten() {
    let stream = RecordStream::new(Seq(0), 0, &[100]);
    let (mut device, mut driver) = nic(fast(NicConfig::default()));
    device.reset(Instant::ZERO);
    // The driver does not know of the reset when it posts this command.
    driver.tls().unwrap().add(&sender().reversed(), Direction::Receive, Seq(0), 0, &key()).unwrap();
    frames(&mut device);
    assert_eq!(driver.poll_event(), Some(DeviceEvent::Reset));
    assert_eq!(driver.poll_event(), None);
    device.receive_frame(Instant::ZERO, segments(&stream, 1000).remove(0));
    device.process(Instant::ZERO);
    assert_eq!(driver.receive(Instant::ZERO).unwrap().meta.tls(), TlsVerdict::NotDecrypted);
}

/// For any number of resets before the driver looks, and any fill level of the control ring.
#[test]
fn a_driver_that_looks_away_hears_of_the_last_reset() {
    for commands in 0..4 {
        let (mut device, mut driver) = nic(fast(NicConfig { control_ring: 4, ..NicConfig::default() }));
        for _ in 0..commands {
            let _ = driver.tls().unwrap().add(&sender(), Direction::Transmit, Seq(0), 0, &key());
        }
        frames(&mut device);
        for _ in 0..6 {
            device.reset(Instant::ZERO);
        }
        while driver.poll_event().is_some() {}
        device.process(Instant::ZERO);
        while driver.poll_event().is_some() {}
        let flow = sender().reversed();
        let handle = driver.tls().unwrap().add(&flow, Direction::Receive, Seq(0), 0, &key()).unwrap();
        frames(&mut device);
        assert_eq!(driver.poll_event(), Some(DeviceEvent::Ready { flow, handle }), "{commands} commands before");
    }
}

/// The debug output of both halves contains no key or IV, with a pending command, an active context inside a record, an
/// evicted context, and a parked context.
#[test]
fn keys_are_never_printed() {
    let (key, iv) = ([0xc7; 16], [0xb3; 12]);
    let key = TlsKey::new(TlsVersion::Tls13, TlsSuite::Aes128Gcm, &key, iv).unwrap();
    let (mut device, mut driver) = nic(fast(NicConfig { context_cache_bytes: 208, ..NicConfig::default() }));
    let stream = RecordStream::new(Seq(0), 0, &[3000]);
    let mut printed = Vec::new();
    for direction in [Direction::Transmit, Direction::Receive, Direction::Transmit] {
        let handle = driver.tls().unwrap().add(&sender(), direction, Seq(0), 0, &key).unwrap();
        printed.push(format!("{driver:?} {device:?}"));
        frames(&mut device);
        while driver.poll_event().is_some() {}
        if direction == Direction::Transmit {
            assert_eq!(
                driver.transmit(Instant::ZERO, stream.packet(0, 900, 1000, handle), &stream),
                TransmitResult::Posted
            );
            driver.flush(Instant::ZERO);
            assert_eq!(frames(&mut device).len(), 1);
        }
        printed.push(format!("{driver:?} {device:?}"));
        if direction == Direction::Transmit {
            driver.tls().unwrap().remove(handle);
            printed.push(format!("{driver:?} {device:?}"));
        }
    }
    for text in printed {
        assert!(text.contains("Driver") && text.contains("Device"));
        for secret in ["199, 199", "179, 179", "c7c7", "b3b3"] {
            assert!(!text.to_lowercase().contains(secret), "{text}");
        }
    }
}
