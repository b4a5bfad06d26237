//! Runs that end, whatever the wire does: a sender that tries again and again over one that takes everything, such as a disk's
//! host that wants its connection back, would do so for ever, and virtual time costs nothing.

use core::future::{Future, poll_fn};
use core::pin::pin;
use core::task::Poll;
use core::time::Duration;
use offload_testbed::bed::Testbed;
use std::io;

/// Runs `future`, but no longer than an hour of the testbed's clock.
///
/// # Errors
/// Of `future`; or [`io::ErrorKind::TimedOut`].
pub fn run<T, E: From<io::Error>>(bed: &mut Testbed, future: impl Future<Output = Result<T, E>>) -> Result<T, E> {
    let runtime = bed.runtime();
    bed.run(async move {
        let (mut future, mut limit) = (pin!(future), pin!(runtime.sleep(LONGEST)));
        poll_fn(|cx| match future.as_mut().poll(cx) {
            Poll::Pending => limit.as_mut().poll(cx).map(|()| Err(too_long().into())),
            ended => ended,
        })
        .await
    })
}

fn too_long() -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, "not done after an hour of the run's clock")
}

/// Far more than TCP takes to give up.
const LONGEST: Duration = Duration::from_secs(3600);
