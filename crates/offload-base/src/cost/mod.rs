//! The cost meter: CPU time by domain and by kind of work.
//!
//! Code opens a scope where the kind of work changes. The code that drives hosts, devices and wires opens a scope for
//! the domain. With the feature `meter`, a `CpuMeter` collects the time of its attached threads; on any other thread a
//! scope costs one load and one branch. Without the feature a scope is empty, and `CpuMeter` is a type without values,
//! so code that takes an `Option<CpuMeter>` compiles unconditionally.
//!
//! `meter`: the measurement itself.

#[cfg(feature = "meter")]
mod meter;

#[cfg(feature = "meter")]
pub use meter::{CpuMeter, CpuReport, MeterGuard};
#[cfg(not(feature = "meter"))]
pub use unmetered::{CpuMeter, MeterGuard};

use core::marker::PhantomData;

/// The owner of CPU time. Domains are charged, not crates: a driver's time belongs to its host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Domain {
    /// Outside of the simulation: the executor, the harness, an application's own computation.
    Outside,
    /// A host, by its number in the testbed.
    Host(u8),
    /// A device, by its number in the testbed.
    Device(u8),
    /// The wires and their attachments.
    Wire,
    /// A real thread that waits for work. Not charged.
    Parked,
}

/// A kind of work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum WorkKind {
    /// TCP/IP, the driver and everything not listed below.
    Stack,
    /// Copying payload.
    Copy,
    /// Building and parsing records and PDUs.
    Framing,
    /// Encryption, decryption and authentication.
    Crypto,
    /// Computing or verifying digests.
    Digest,
    /// The application's own work: generating data, hashing received data.
    Application,
}

/// All kinds of work, in the order of declaration.
pub const WORKS: [WorkKind; 6] =
    [WorkKind::Stack, WorkKind::Copy, WorkKind::Framing, WorkKind::Crypto, WorkKind::Digest, WorkKind::Application];

#[cfg(not(feature = "meter"))]
mod unmetered {
    /// A meter. It has no values in a build without the feature `meter`.
    #[derive(Clone, Copy, Debug)]
    pub enum CpuMeter {}

    /// A guard that keeps a thread metered. It has no values without the feature `meter`.
    #[derive(Debug)]
    pub enum MeterGuard {}

    impl CpuMeter {
        /// Meters the calling thread.
        pub fn attach(&self) -> MeterGuard {
            match *self {}
        }
    }
}

/// Charges the time until the guard is dropped to `domain`. The kind of work starts as [`WorkKind::Stack`].
///
/// ```
/// use offload_base::cost::{self, Domain};
///
/// let _device = cost::domain(Domain::Device(0)); // without effect on a thread that is not metered
/// ```
pub fn domain(domain: Domain) -> CostScope {
    CostScope::open(|_| (domain, WorkKind::Stack))
}

/// Charges the time until the guard is dropped to `work`, in the current domain.
///
/// ```
/// use offload_base::cost::{self, Domain, WorkKind};
///
/// let _host = cost::domain(Domain::Host(0));
/// let _copy = cost::work(WorkKind::Copy); // charged to the host, if the thread is metered
/// ```
pub fn work(work: WorkKind) -> CostScope {
    CostScope::open(|running| (running, work))
}

/// Stops charging this thread until [`unpark`]. For a runtime's hooks around its waits, which cannot keep a guard.
/// Other code opens [`Domain::Parked`] as a scope.
///
/// ```
/// use offload_base::cost;
///
/// cost::park(); // without effect on a thread that is not metered
/// cost::unpark();
/// ```
pub fn park() {
    #[cfg(feature = "meter")]
    meter::park();
}

/// Ends a [`park`]; without one, does nothing. Scopes opened since must be closed by now.
///
/// See [`park`] for an example.
pub fn unpark() {
    #[cfg(feature = "meter")]
    meter::unpark();
}

/// An open scope. Scopes close in the reverse order of opening.
///
/// See [`domain`] for an example.
#[derive(Debug)]
#[must_use = "a scope ends when it is dropped"]
pub struct CostScope {
    #[cfg(feature = "meter")]
    outer: Option<meter::TimeSlot>,
    thread_bound: PhantomData<*const ()>,
}

impl CostScope {
    /// Opens a scope. `next` maps the running domain to the scope's domain and work.
    #[cfg(feature = "meter")]
    fn open(next: impl FnOnce(Domain) -> (Domain, WorkKind)) -> CostScope {
        CostScope { outer: meter::open(next), thread_bound: PhantomData }
    }

    /// Opens a scope that measures nothing.
    #[cfg(not(feature = "meter"))]
    fn open(_: impl FnOnce(Domain) -> (Domain, WorkKind)) -> CostScope {
        CostScope { thread_bound: PhantomData }
    }
}

impl Drop for CostScope {
    fn drop(&mut self) {
        #[cfg(feature = "meter")]
        if let Some(outer) = self.outer {
            meter::close(outer);
        }
    }
}
