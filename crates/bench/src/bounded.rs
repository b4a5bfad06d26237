//! Runs over a wire that loses every packet end with an error.

use crate::fio::{Fio, Pattern};
use crate::http::{FileSource, Http};
use crate::iperf::{Iperf, Until};
use nic_sim::wire::LinkConfig;
use nic_sim::wire::impairment::{Impairments, Share};
use offload_base::Seed;
use offload_bench_tls::bulk::{Bulk, Mode};
use offload_bench_tls::payload::Payload;

#[test]
fn runs_over_a_dead_wire_end_with_an_error() {
    // TCP gives up after its retransmission limit, which must reach the caller as an error and not as a hang.
    let loss: Share = "1".parse().unwrap();
    let link = LinkConfig { impairments: Impairments { loss, ..Impairments::default() }, ..LinkConfig::default() };
    for mode in Mode::ALL {
        let until = Until::Bytes(1);
        assert!(Iperf { streams: 2, until, link: link.clone(), ..Iperf::new(mode) }.run().is_err());
        assert!(Fio { link: link.clone(), ..Fio::new(mode, Pattern::Read) }.run().is_err());
        for files in FileSource::ALL {
            assert!(Http { files, link: link.clone(), ..Http::new(mode) }.run().is_err());
        }
        assert!(Bulk { link: link.clone(), ..Bulk::new(mode, Payload::seeded(Seed(1), 1)) }.run().is_err());
    }
}
