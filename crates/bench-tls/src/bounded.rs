//! A time limit for runs. A sender that reconnects forever, over a wire that loses every packet, would never end,
//! because virtual time costs nothing.

use core::future::{Future, poll_fn};
use core::pin::pin;
use core::task::Poll;
use core::time::Duration;
use offload_testbed::bed::Testbed;
use std::io;

/// Runs `future` for at most an hour of the testbed's clock.
///
/// # Errors The error of `future`, or [`io::ErrorKind::TimedOut`].
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

/// Far more time than TCP takes to give up.
const LONGEST: Duration = Duration::from_secs(3600);
