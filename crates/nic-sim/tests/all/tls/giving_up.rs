//! Contexts and keys leave the NIC, and waiting commands are executed, even without other traffic. The host's service
//! sleeps unless it is woken, as in a real shell.

use super::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

#[derive(Default)]
struct ServiceWaker(AtomicU32);

impl std::task::Wake for ServiceWaker {
    fn wake(self: Arc<ServiceWaker>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

/// A NIC, and its host's service, which sleeps.
struct SleepingHost {
    device: Device,
    driver: Driver,
    wakes: Arc<ServiceWaker>,
    events: Vec<DeviceEvent>,
}

impl SleepingHost {
    fn new(config: NicConfig) -> SleepingHost {
        let (device, driver) = nic(fast(config));
        SleepingHost { device, driver, wakes: Arc::default(), events: Vec::new() }
    }

    fn add(&mut self, number: usize, direction: Direction) -> Handle {
        let flow = flow(1 + number as u16);
        self.driver.tls().unwrap().add(&flow, direction, Seq(0), 0, &key()).expect("the device looks often enough")
    }

    fn falls_asleep(&mut self) {
        self.run();
        assert!(self.driver.arm(&self.wakes.clone().into()));
        self.events.clear();
    }

    /// Runs device and service until both are idle. The service runs only when woken.
    fn run(&mut self) -> usize {
        let mut sent = 0;
        for _ in 0..LONG {
            sent += frames(&mut self.device).len();
            if self.wakes.0.swap(0, Ordering::SeqCst) > 0 {
                loop {
                    self.events.extend(std::iter::from_fn(|| self.driver.poll_event()));
                    if self.driver.arm(&self.wakes.clone().into()) {
                        break;
                    }
                }
            }
        }
        sent
    }

    fn removed(&self) -> usize {
        self.events.iter().filter(|event| matches!(event, DeviceEvent::Removed { .. })).count()
    }
}

#[test]
fn contexts_given_up_at_once_all_leave() {
    for direction in [Direction::Transmit, Direction::Receive] {
        for (count, context_pool) in [(200, 1024), (600, 0), (600, 300), (600, 1024)] {
            let mut host = SleepingHost::new(NicConfig {
                engines: TlsEngineConfig { context_pool, ..TlsEngineConfig::default() }.into(),
                ..NicConfig::default()
            });
            host.driver.arm(&host.wakes.clone().into());
            let mut handles = Vec::new();
            for number in 0..count {
                handles.push(host.add(number, direction));
                host.run();
            }
            host.falls_asleep();
            handles.into_iter().for_each(|handle| host.driver.tls().unwrap().remove(handle));
            host.run();
            let left = (host.removed(), host.device.contexts());
            assert_eq!(left, (count, 0), "{count} to {direction:?}, a pool of {context_pool}");
        }
    }
}

/// The ring is full of keys for pooled contexts, which have no completions either.
#[test]
fn packets_behind_keys_for_pooled_contexts_complete() {
    let mut host = SleepingHost::new(NicConfig { control_ring: 8, ..NicConfig::default() });
    host.driver.arm(&host.wakes.clone().into());
    let mut handles: Vec<Handle> = Vec::new();
    for number in 0..12 {
        handles.push(host.add(number, Direction::Transmit));
        host.run();
    }
    handles.drain(..).for_each(|handle| host.driver.tls().unwrap().remove(handle));
    let receiver = host.add_when_there_is_room(Direction::Receive);
    host.falls_asleep();
    let taken = (0..12).map_while(|number| {
        let flow = flow(100 + number);
        host.driver.tls().unwrap().add(&flow, Direction::Transmit, Seq(0), 0, &key()).ok()
    });
    handles.extend(taken);
    assert_eq!(handles.len(), 8, "one per place of the ring");
    host.driver.tls().unwrap().remove(receiver);
    host.driver.tls().unwrap().remove(handles[0]);
    for handle in &handles[1..4] {
        host.driver.tls().unwrap().answer_resync(*handle, Seq(9), None);
    }
    host.run();
    assert_eq!((host.removed(), host.device.contexts()), (2, 7));
    assert_eq!(host.device.engine_counters::<TlsEngineCounters>().rx_tls_resync_res_skip, 3, "answers came, too");
}

/// The application removes a context while its last packet is in the device and the service sleeps.
#[test]
fn a_context_leaves_after_its_last_packet() {
    for context_pool in [0, 8] {
        let stream = RecordStream::new(Seq(0), 0, &[3000]);
        let mut host = SleepingHost::new(NicConfig {
            engines: TlsEngineConfig { context_pool, ..TlsEngineConfig::default() }.into(),
            ..NicConfig::default()
        });
        host.driver.arm(&host.wakes.clone().into());
        let context = host.add(0, Direction::Transmit);
        host.falls_asleep();
        let sent = host.driver.transmit(Instant::ZERO, stream.packet(0, 2000, 1000, context), &stream);
        assert_eq!(sent, TransmitResult::Posted);
        host.driver.flush(Instant::ZERO);
        host.driver.tls().unwrap().remove(context);
        assert_eq!(host.run(), 2);
        assert_eq!((host.removed(), host.device.contexts()), (1, 0));
    }
}

/// A context that is being removed encrypts the posted packets and accepts no new ones.
#[test]
fn a_context_that_leaves_is_named_by_no_packet() {
    let stream = RecordStream::new(Seq(0), 0, &[3000]);
    let mut host = SleepingHost::new(NicConfig::default());
    let context = host.add(0, Direction::Transmit);
    let send = |host: &mut SleepingHost, at| {
        let sent = host.driver.transmit(Instant::ZERO, stream.packet(at, 1000, 1000, context), &stream);
        host.driver.flush(Instant::ZERO);
        sent
    };
    assert_eq!(send(&mut host, 0), TransmitResult::Posted);
    host.driver.tls().unwrap().remove(context);
    for at in [1000, 0] {
        assert_eq!(
            send(&mut host, at),
            TransmitResult::NeedsSoftware(stream.units[0]),
            "with and without the right position"
        );
    }
    assert_eq!(host.run(), 1);
}

impl SleepingHost {
    fn add_when_there_is_room(&mut self, direction: Direction) -> Handle {
        self.run();
        self.add(99, direction)
    }
}

/// Number of rounds after which all pending work is done.
const LONG: usize = 50;
