//! Runs that end, whatever the wire does: a sender that tries again and again over one that takes everything, such as a disk's
//! host that wants its connection back, would do so for ever, and virtual time costs nothing.

use core::future::{Future, poll_fn};
use core::pin::pin;
use core::task::Poll;
use core::time::Duration;
use offload_testbed::bed::Testbed;
use std::io;

/// Runs `future`, but no longer than [`LONGEST`] on the testbed's clock.
pub(crate) fn run<T, E: From<io::Error>>(
    bed: &mut Testbed,
    future: impl Future<Output = Result<T, E>>,
) -> Result<T, E> {
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

#[cfg(test)]
mod tests {
    use crate::bulk::{Bulk, Mode};
    use crate::fio::{Fio, Pattern};
    use crate::http::{Files, Http};
    use crate::iperf::{Iperf, Until};
    use crate::payload::Payload;
    use nic_sim::wire::LinkConfig;
    use nic_sim::wire::impairment::{Impairments, Share};
    use offload_base::Seed;

    #[test]
    fn over_a_wire_that_loses_everything_every_run_ends_with_an_error() {
        let loss: Share = "1".parse().unwrap();
        let link = LinkConfig { impairments: Impairments { loss, ..Impairments::default() }, ..LinkConfig::default() };
        for mode in Mode::ALL {
            let until = Until::Bytes(1);
            assert!(Iperf { streams: 2, until, link: link.clone(), ..Iperf::new(mode) }.run().is_err());
            assert!(Fio { link: link.clone(), ..Fio::new(mode, Pattern::Read) }.run().is_err());
            for files in Files::ALL {
                assert!(Http { files, link: link.clone(), ..Http::new(mode) }.run().is_err());
            }
            assert!(Bulk { link: link.clone(), ..Bulk::new(mode, Payload::seeded(Seed(1), 1)) }.run().is_err());
        }
    }
}
