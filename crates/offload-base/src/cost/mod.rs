//! The cost meter: which domain the CPU time went to, and for what kind of work.
//!
//! Code opens a scope where the kind of work changes; the driver of hosts, devices and wires opens a scope for
//! the domain. With the feature `meter` a `Meter` collects the time of the threads that are attached to it; on
//! any other thread a scope is one load and a branch. Without the feature a scope is nothing at all, and a `Meter` has no
//! value, so that code which takes an `Option` of one needs no condition.
//!
//! `meter`: what keeps the time.

#[cfg(feature = "meter")]
mod meter;

#[cfg(feature = "meter")]
pub use meter::{Attached, Meter, Report};
#[cfg(not(feature = "meter"))]
pub use unmetered::{Attached, Meter};

use core::marker::PhantomData;

/// Whose time it is. Domains are charged, not crates: a driver's time is its host's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Domain {
    /// Nobody's: the executor, the harness, an application's own sums.
    Outside,
    /// A host, by its number in the testbed.
    Host(u8),
    /// A device, by its number in the testbed.
    Device(u8),
    /// The wires and whatever is attached to them.
    Wire,
    /// A real thread waiting for something to do. Not charged.
    Parked,
}

/// What kind of work it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Work {
    /// TCP/IP, the driver and everything not named below.
    Stack,
    /// Moving payload from one place to another.
    Copy,
    /// Making and taking apart records and PDUs.
    Framing,
    /// Encrypting, decrypting, authenticating.
    Crypto,
    /// Checking or making digests.
    Digest,
    /// The application's own: making the data, hashing what arrived.
    Application,
}

/// All kinds of work, in the order of their declaration.
pub const WORKS: [Work; 6] = [Work::Stack, Work::Copy, Work::Framing, Work::Crypto, Work::Digest, Work::Application];

#[cfg(not(feature = "meter"))]
mod unmetered {
    /// A meter, of which there is no value in a build without the feature `meter`.
    #[derive(Clone, Copy, Debug)]
    pub enum Meter {}

    /// The attachment of a thread to a [`Meter`].
    #[derive(Debug)]
    pub enum Attached {}

    impl Meter {
        /// Meters the calling thread.
        pub fn attach(&self) -> Attached {
            match *self {}
        }
    }
}

/// From here to the end of the guard's life the time is `domain`'s; its work starts as [`Work::Stack`].
///
/// ```
/// use offload_base::cost::{self, Domain};
///
/// let _device = cost::domain(Domain::Device(0)); // on a thread that is not metered: nothing happens
/// ```
pub fn domain(domain: Domain) -> Scope {
    Scope::open(|_| (domain, Work::Stack))
}

/// From here to the end of the guard's life the time is spent on `work`, in the same domain.
///
/// ```
/// use offload_base::cost::{self, Domain, Work};
///
/// let _host = cost::domain(Domain::Host(0));
/// let _copy = cost::work(Work::Copy); // the host's, if the thread is metered
/// ```
pub fn work(work: Work) -> Scope {
    Scope::open(|running| (running, work))
}

/// From here to [`unpark`] this thread waits for something to do, and nobody is charged. For a runtime's hooks
/// around its waits, which cannot keep a guard; code that can opens [`Domain::Parked`] as a scope.
///
/// ```
/// use offload_base::cost;
///
/// cost::park(); // on a thread that is not metered: nothing happens
/// cost::unpark();
/// ```
pub fn park() {
    #[cfg(feature = "meter")]
    meter::park();
}

/// Ends what [`park`] began; without it, nothing. Scopes opened in between must be closed by now.
///
/// See [`park`] for an example.
pub fn unpark() {
    #[cfg(feature = "meter")]
    meter::unpark();
}

/// An open scope. Scopes close in the reverse order of their opening.
///
/// See [`domain`] for an example.
#[derive(Debug)]
#[must_use = "a scope ends when it is dropped"]
pub struct Scope {
    #[cfg(feature = "meter")]
    outer: Option<meter::Slot>,
    thread_bound: PhantomData<*const ()>,
}

impl Scope {
    /// Opens a scope, whose domain and work `next` makes of the domain that runs.
    #[cfg(feature = "meter")]
    fn open(next: impl FnOnce(Domain) -> (Domain, Work)) -> Scope {
        Scope { outer: meter::open(next), thread_bound: PhantomData }
    }

    /// No thread is metered.
    #[cfg(not(feature = "meter"))]
    fn open(_: impl FnOnce(Domain) -> (Domain, Work)) -> Scope {
        Scope { thread_bound: PhantomData }
    }
}

impl Drop for Scope {
    fn drop(&mut self) {
        #[cfg(feature = "meter")]
        if let Some(outer) = self.outer {
            meter::close(outer);
        }
    }
}
