//! Charges a task's time to a host, a device or the wires.

use core::future::Future;
use core::pin::Pin;
use core::task::{Context, Poll};
use offload_base::cost::{self, Domain};
use pin_project_lite::pin_project;

/// Charges every poll of `future` to `domain`.
///
/// ```
/// use offload_base::cost::{Domain, CpuMeter};
/// use offload_testbed::{VirtualTime, in_domain};
///
/// let meter = CpuMeter::new();
/// let attached = meter.attach();
/// VirtualTime::new().block_on(in_domain(Domain::Host(0), async {
///     std::hint::black_box(vec![1u8; 1 << 20]);
/// }));
/// drop(attached);
/// assert!(!meter.report().total(Domain::Host(0)).is_zero());
/// ```
pub fn in_domain<F: Future>(domain: Domain, future: F) -> InDomain<F> {
    InDomain { domain, future }
}

pin_project! {
    /// A future with polls charged to a domain. Made by [`in_domain`].
    #[derive(Debug)]
    pub struct InDomain<F> {
        domain: Domain,
        #[pin]
        future: F,
    }
}

impl<F: Future> Future for InDomain<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let this = self.project();
        // The scope lasts for this poll only: between polls other tasks run on the thread.
        let _scope = cost::domain(*this.domain);
        this.future.poll(cx)
    }
}
