//! Hosts and applications in real time: a thread of their own, beside that of the devices.
//!
//! Both threads spin a little before they sleep, so that a doorbell or an interrupt takes a fraction of a microsecond
//! while there is traffic. A wake-up through the kernel takes tens of them, and a transfer is a chain of wake-ups.
//!
//! tokio is there for what applications want of it, its sockets and timers: they are used as within tokio. What blocks
//! keeps every host waiting. A task that panics ends alone; whoever waits for it panics as well.

use crate::executor::{Handle, RealClock, RealTime, RealTimeConfig};
use crate::runtime::{Runtime, TaskFuture};
use core::panic::AssertUnwindSafe;
use futures_util::FutureExt;
use offload_base::cost::Meter;
use offload_base::{Alarm, Clock, Instant, Timers};
use std::borrow::Cow;
use std::io;

/// The thread of the hosts.
#[derive(Debug)]
pub(crate) struct RealHosts {
    executor: RealTime,
}

impl RealHosts {
    /// Starts it, metered if there is a meter.
    pub(crate) fn start(
        tokio: tokio::runtime::Handle,
        clock: RealClock,
        meter: Option<&Meter>,
    ) -> io::Result<RealHosts> {
        let config = RealTimeConfig { clock, meter: meter.cloned(), tokio: Some(tokio), ..RealTimeConfig::default() };
        Ok(RealHosts { executor: RealTime::start("hosts", config)? })
    }

    /// What runs tasks on it.
    pub(crate) fn runtime(&self) -> HostRuntime {
        HostRuntime { executor: self.executor.handle() }
    }
}

/// Runs tasks on the thread of the hosts.
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
        // The panic was reported where it happened, and the task's promise is broken: its waiter hears of it.
        let contained = AssertUnwindSafe(task).catch_unwind().map(|_ended| ());
        self.executor.spawn_task(name, Box::pin(contained));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tokio_runtime;
    use core::time::Duration;
    use std::panic::catch_unwind;
    use std::sync::Arc;

    #[test]
    fn applications_have_tokio_and_a_panic_ends_one_task() {
        let tokio = tokio_runtime::start(1, None).expect("a thread");
        let hosts = RealHosts::start(tokio.handle().clone(), RealClock::new(), None).expect("a thread");
        let runtime: Arc<dyn Runtime> = Arc::new(hosts.runtime());
        let doomed = runtime.spawn("doomed", async { panic!("on purpose") });
        assert!(catch_unwind(AssertUnwindSafe(|| tokio.block_on(doomed))).is_err());
        let timers = runtime.clone();
        let survivor = runtime.spawn("survivor", async move {
            timers.sleep(Duration::from_micros(10)).await;
            tokio::spawn(async { 42 }).await.expect("a task of tokio's")
        });
        assert_eq!(tokio.block_on(survivor), 42);
    }
}
