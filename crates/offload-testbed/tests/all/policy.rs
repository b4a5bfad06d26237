//! A flow with too many retransmissions leaves its device and returns when the wire is calm.

use crate::keyed;

use bytes::Bytes;
use keyed::{accept, connect};
use ktls_offload::{Offload, TlsCounters};
use nic_sim::NicConfig;
use nic_sim::wire::{Crossing, Impairment, LinkConfig};
use offload_api::{TlsSuite, TlsVersion};
use offload_base::counters::Counters;
use offload_base::{Rng, Seed};
use offload_host_stack::TcpConfig;
use offload_testbed::Testbed;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

offload_base::counters! {
    /// Counters of a wire that is bad for a time.
    struct SpellCounters {
        /// Frames lost.
        pub lost: "wire_spell_lost",
    }
}

/// An impairment that loses one frame in thirty while switched on.
#[derive(Debug)]
struct BadSpell {
    on: Arc<AtomicBool>,
    rng: Rng,
    counters: SpellCounters,
}

impl Impairment for BadSpell {
    fn pass(&mut self, crossing: Crossing, onward: &mut dyn FnMut(Crossing)) {
        if self.on.load(Ordering::Relaxed) && self.rng.chance(1.0 / 30.0) {
            self.counters.lost += 1;
        } else {
            onward(crossing);
        }
    }

    fn counters(&self) -> &dyn Counters {
        &self.counters
    }
}

/// Sends 16 MiB each over a calm, a bad and again a calm wire. Returns the sender's counters after each.
fn three_spells(limit: Option<f64>) -> [TlsCounters; 3] {
    let mut bed = Testbed::builder(Seed(1))
        .host("server", NicConfig::default(), TcpConfig::default())
        .host("client", NicConfig::default(), TcpConfig::default())
        .wire(0, 1, LinkConfig::default())
        .build()
        .unwrap();
    let on = Arc::new(AtomicBool::new(false));
    let spell = BadSpell { on: on.clone(), rng: Seed(1).stream("spell"), counters: SpellCounters::default() };
    // Only data of the server is lost: acknowledgments must not blur the rate of retransmissions.
    bed.cable(0).left_to_right.lock().unwrap().impair(Box::new(spell));
    let (server, client) = (bed.host(0).clone(), bed.host(1).clone());
    let sender = server.clone();
    let serving = server.spawn("application", async move {
        let mut stream = accept(&sender, 1, (TlsVersion::Tls13, TlsSuite::Aes128Gcm)).await?;
        stream.set_retransmit_limit(limit);
        stream.offload(Offload { tx: true, rx: false });
        let mut after = [TlsCounters::default(); 3];
        for (bad, counters) in [false, true, false].into_iter().zip(&mut after) {
            // The wire changes when data is queued, so the last data of a spell may pass in the next spell.
            on.store(bad, Ordering::Relaxed);
            for _ in 0..64 {
                stream.send_chunk(Bytes::from(vec![7; SPELL / 64])).await?;
            }
            *counters = *stream.counters();
        }
        stream.close().await?;
        io::Result::Ok(after)
    });
    let receiver = client.clone();
    let fetching = client.spawn("application", async move {
        let mut stream = connect(&receiver, &server, 1, (TlsVersion::Tls13, TlsSuite::Aes128Gcm)).await?;
        stream.offload(Offload { tx: false, rx: true });
        let mut bytes = 0;
        while let Some(chunk) = stream.next_chunk().await? {
            assert!(chunk.iter().all(|byte| *byte == 7));
            bytes += chunk.len();
        }
        io::Result::Ok(bytes)
    });
    assert_eq!(bed.run(fetching).unwrap(), 3 * SPELL);
    // Without losses the test would pass for the wrong reason.
    assert!(bed.counters().value("wire_spell_lost") > 50, "the spell was bad");
    bed.run(serving).unwrap()
}

#[test]
fn a_flow_leaves_its_device_in_a_bad_spell_and_returns_after_it() {
    let [calm, bad, after] = three_spells(Some(0.02));
    assert_eq!((calm.tx_policy_sw, calm.curr_tx_device), (0, 1));
    assert!(bad.tx_policy_sw >= 1, "{bad:?}");
    assert!(bad.tx_records_sw > 0, "{bad:?}");
    assert_eq!(after.tx_policy_device, after.tx_policy_sw, "it came back each time: {after:?}");
    assert_eq!((after.curr_tx_device, after.curr_tx_sw), (1, 0));
    assert_eq!(after.tx_device, 1 + after.tx_policy_device);
}

#[test]
fn without_a_limit_it_stays() {
    let [_, _, after] = three_spells(None);
    assert_eq!((after.tx_policy_sw, after.tx_records_sw, after.curr_tx_device), (0, 0, 1));
}

const SPELL: usize = 16 << 20;
