//! The threads of a testbed in real time: two for each host, but no more than the machine has cores.
//!
//! Devices are assigned first, then hosts. With enough cores each device and each host has its own thread. With fewer
//! cores they share threads, because preemption in the middle of a transfer would be worse. If only the devices'
//! threads remain, each host shares with its own device. A wire runs with the device that it leads to.
//!
//! All threads spin a little before they sleep, so that a doorbell or an interrupt takes a fraction of a microsecond
//! under traffic. A wake-up through the kernel takes tens of microseconds, and a transfer is a chain of wake-ups.
//!
//! Applications use tokio's sockets and timers as inside tokio. A blocking call stalls all tasks of its thread. A panic
//! in a host's task ends only that task; a task that waits for it panics as well.

use crate::executor::{Handle, RealTime, RealTimeConfig};
use crate::runtime::{Runtime, TaskFuture};
use core::panic::AssertUnwindSafe;
use core::time::Duration;
use futures_util::FutureExt;
use offload_base::cost::CpuMeter;
use offload_base::{Alarm, Clock, Instant, RealClock, Timers};
use std::borrow::Cow;
use std::io;
use std::num::NonZero;

/// The threads of hosts and devices.
#[derive(Debug)]
pub(crate) struct RealThreads {
    threads: Vec<RealTime>,
    hosts: usize,
}

impl RealThreads {
    /// Starts the threads of `hosts` hosts, each with a device, metered if `meter` is given.
    pub(crate) fn start(
        tokio: &tokio::runtime::Handle,
        clock: RealClock,
        meter: Option<&CpuMeter>,
        hosts: usize,
    ) -> io::Result<RealThreads> {
        let cores = std::thread::available_parallelism().map_or(1, NonZero::get);
        RealThreads::start_on(cores, tokio, clock, meter, hosts)
    }

    fn start_on(
        cores: usize,
        tokio: &tokio::runtime::Handle,
        clock: RealClock,
        meter: Option<&CpuMeter>,
        hosts: usize,
    ) -> io::Result<RealThreads> {
        let start = |number| {
            let tokio = Some(tokio.clone());
            let config = RealTimeConfig { clock, spin: SPIN, meter: meter.cloned(), tokio };
            RealTime::start(&format!("testbed {number}"), config)
        };
        let threads: io::Result<_> = (0..(2 * hosts).clamp(1, cores)).map(start).collect();
        Ok(RealThreads { threads: threads?, hosts })
    }

    /// Returns the executor of a device, by its host's number.
    pub(crate) fn device(&self, number: usize) -> Handle {
        self.thread_of(number).handle()
    }

    /// Returns the runtime of a host.
    pub(crate) fn host(&self, number: usize) -> HostRuntime {
        // With threads for devices only, a host shares the thread of its own device, whose memory is in that core's
        // caches.
        let dealt = if self.threads.len() <= self.hosts { number } else { self.hosts + number };
        HostRuntime { executor: self.thread_of(dealt).handle() }
    }

    /// Returns whether two devices run on different threads.
    pub(crate) fn parts_devices(&self, one: usize, other: usize) -> bool {
        one % self.threads.len() != other % self.threads.len()
    }

    /// Returns the thread of the device or host at position `dealt` of the assignment.
    fn thread_of(&self, dealt: usize) -> &RealTime {
        &self.threads[dealt % self.threads.len()]
    }
}

/// The runtime of a host's tasks.
#[derive(Clone, Debug)]
pub(crate) struct HostRuntime {
    executor: Handle,
}

impl Clock for HostRuntime {
    fn now(&self) -> Instant {
        self.executor.now()
    }
}

impl Timers for HostRuntime {
    fn alarm(&self) -> Box<dyn Alarm> {
        self.executor.alarm()
    }
}

impl Runtime for HostRuntime {
    fn spawn_task(&self, name: Cow<'static, str>, task: TaskFuture) {
        // The panic was reported where it occurred, and the broken promise tells the waiting task.
        let contained = AssertUnwindSafe(task).catch_unwind().map(|_ended| ());
        self.executor.spawn_task(name, Box::pin(contained));
    }
}

/// Spin time, about the cost of a wake-up through the kernel.
const SPIN: Duration = Duration::from_micros(50);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tokio_runtime;
    use std::collections::BTreeSet;
    use std::panic::catch_unwind;
    use std::sync::Arc;

    #[test]
    fn applications_have_tokio_and_a_panic_ends_one_task() {
        let tokio = tokio_runtime::start(1, None).expect("a thread");
        let threads = RealThreads::start(tokio.handle(), RealClock::new(), None, 1).expect("threads");
        let runtime: Arc<dyn Runtime> = Arc::new(threads.host(0));
        let doomed = runtime.spawn("doomed", async { panic!("on purpose") });
        assert!(catch_unwind(AssertUnwindSafe(|| tokio.block_on(doomed))).is_err());
        let timers = runtime.clone();
        let survivor = runtime.spawn("survivor", async move {
            timers.sleep(Duration::from_micros(10)).await;
            tokio::spawn(async { 42 }).await.expect("a task of tokio's")
        });
        assert_eq!(tokio.block_on(survivor), 42);
    }

    #[test]
    fn devices_share_no_thread_while_another_has_none() {
        let tokio = tokio_runtime::start(1, None).expect("a thread");
        for (hosts, cores) in (1..=3).flat_map(|hosts| (1..=2 * hosts + 1).map(move |cores| (hosts, cores))) {
            let threads = RealThreads::start_on(cores, tokio.handle(), RealClock::new(), None, hosts).expect("threads");
            let (mut of_devices, mut of_all) = (BTreeSet::new(), BTreeSet::new());
            let shared = cores <= hosts;
            for number in 0..hosts {
                let running = |runtime: Arc<dyn Runtime>| {
                    let asked = runtime.spawn("asked", async { std::thread::current().name().map(str::to_owned) });
                    tokio.block_on(asked).expect("it has a name")
                };
                let [of_device, of_host] =
                    [running(Arc::new(threads.device(number))), running(Arc::new(threads.host(number)))];
                assert!(!shared || of_device == of_host, "a host shares with its own device");
                of_devices.insert(of_device);
                of_all.insert(of_host);
            }
            of_all.extend(of_devices.iter().cloned());
            assert_eq!(of_devices.len(), hosts.min(cores));
            assert_eq!(of_all.len(), cores.min(2 * hosts));
        }
    }
}
