//! Full transmit rings.

use super::*;

#[test]
fn a_full_ring_gets_room_when_the_device_catches_up() {
    let stream = RecordStream::new(Seq(0), 0, &[16_000]);
    let (mut device, mut driver) = nic(fast(NicConfig { send_queue_bytes: 40_000, ..NicConfig::default() }));
    let context = driver.tls().unwrap().add(&sender(), Direction::Transmit, Seq(0), 0, &key()).unwrap();
    let mut posted = 0;
    while driver.room(&sender()) > 0 {
        // Each packet starts in the middle of the record, so that each needs a resync.
        assert_eq!(
            driver.transmit(Instant::ZERO, stream.packet(8000, 8000, 1448, context), &stream),
            TransmitResult::Posted
        );
        posted += 1;
    }
    assert_eq!(posted, 3, "16000 bytes each, DUMPs included");
    driver.flush(Instant::ZERO);
    assert_eq!(driver.counters().doorbells, 2, "one for the context, one for all packets");
    assert!(driver.arm(Waker::noop()));
    assert_eq!(frames(&mut device).len(), 3 * 6);
    assert!(!driver.arm(Waker::noop()), "the device has caught up");
    driver.poll_event();
    assert!(driver.arm(Waker::noop()), "room is announced once, because the waiting task may be gone");
    assert!(driver.room(&sender()) > 0);
    assert_eq!(driver.context_counters(engines::TLS).ooo, 2, "the first is where the context begins");
    assert_eq!(driver.context_counters(engines::TLS).dump_bytes, 3 * 8000);
    assert_eq!(device.counters().interrupts, 2, "one for the context, one for the room");
}

/// The ring fills while the interrupt service sleeps. The service is woken when there is room again.
#[test]
fn returning_room_wakes_a_sleeping_driver() {
    #[derive(Default)]
    struct RingWaker(std::sync::atomic::AtomicU32);
    impl std::task::Wake for RingWaker {
        fn wake(self: std::sync::Arc<RingWaker>) {
            self.0.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        }
    }
    let woken = std::sync::Arc::new(RingWaker::default());
    let stream = RecordStream::new(Seq(0), 0, &[16_000]);
    // One packet fills the ring.
    let (mut device, mut driver) = nic(fast(NicConfig { send_queue_bytes: 1, ..NicConfig::default() }));
    let context = driver.tls().unwrap().add(&sender(), Direction::Transmit, Seq(0), 0, &key()).unwrap();
    frames(&mut device);
    driver.poll_event();
    assert!(driver.arm(&woken.clone().into()), "no work: the service sleeps");
    assert!(driver.room(&sender()) > 0);
    assert_eq!(driver.transmit(Instant::ZERO, stream.packet(0, 8000, 1448, context), &stream), TransmitResult::Posted);
    driver.flush(Instant::ZERO);
    // A result of 0 requests a wakeup.
    assert_eq!(driver.room(&sender()), 0);
    assert_eq!(woken.0.load(std::sync::atomic::Ordering::SeqCst), 0);
    assert!(!frames(&mut device).is_empty());
    assert_eq!(woken.0.load(std::sync::atomic::Ordering::SeqCst), 1);
    assert!(!driver.arm(&woken.clone().into()), "room has returned");
    assert!(driver.arm(&woken.clone().into()), "room was announced before");
    assert_eq!(woken.0.load(std::sync::atomic::Ordering::SeqCst), 1);
    // With enough room for all, sending wakes no task.
    assert!(driver.room(&sender()) > 0);
    assert_eq!(
        driver.transmit(Instant::ZERO, stream.packet(8000, 8000, 1448, context), &stream),
        TransmitResult::Posted
    );
    driver.flush(Instant::ZERO);
    assert!(driver.arm(&woken.clone().into()));
    assert!(!frames(&mut device).is_empty());
    assert_eq!(woken.0.load(std::sync::atomic::Ordering::SeqCst), 1);
}
