//! Loads: when packets come, with their sizes and flows. The same seed gives the same load.

use offload_base::{Rng, Seed};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// A packet that comes.
///
/// See [`Load`] for an example.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Arrival {
    /// When.
    pub at_ns: f64,
    /// Its flow.
    pub flow: u64,
    /// How long it is.
    pub bytes: u32,
}

/// What comes.
///
/// ```
/// use crypto_services::Load;
///
/// let packets: Vec<_> = Load::Imix.arrivals(7, 1e9, 0.1).collect();
/// let bits: f64 = packets.iter().map(|packet| 8.0 * f64::from(packet.bytes)).sum();
/// assert!((bits / 1e8 - 1.0).abs() < 0.05, "1 Gb/s for a tenth of a second");
/// assert!(packets.windows(2).all(|pair| pair[0].at_ns <= pair[1].at_ns));
/// assert_eq!(Load::named("imix"), Some(Load::Imix));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Load {
    /// Packets of 1,464 bytes at random times, always as many.
    Steady,
    /// The same, but half a second at three halves of the rate and half a second at half of it.
    Bursty,
    /// Sizes change: a quarter of a second each of 64 bytes, 512, 1,464 and of all three.
    Mixed,
    /// Sources of 1,464 bytes that are on for a while and off for longer, by chance. Each sends one packet at least while it is on, so rates below
    /// 1 Mb/s are exceeded.
    OnOff,
    /// 7 packets of 64 bytes to 4 of 594 and one of 1,518.
    Imix,
    /// Flows of web search: sizes as measured for DCTCP.
    WebSearch,
    /// Flows of data mining: sizes as measured for VL2.
    DataMining,
}

impl Load {
    /// All of them.
    pub const ALL: [Load; 7] =
        [Load::Steady, Load::Bursty, Load::Mixed, Load::OnOff, Load::Imix, Load::WebSearch, Load::DataMining];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Load::Steady => "steady",
            Load::Bursty => "bursty",
            Load::Mixed => "mixed",
            Load::OnOff => "on-off",
            Load::Imix => "imix",
            Load::WebSearch => "web-search",
            Load::DataMining => "data-mining",
        }
    }

    /// The load of a name.
    pub fn named(name: &str) -> Option<Load> {
        Load::ALL.into_iter().find(|load| load.name() == name)
    }

    /// Packets for `seconds`, at `bits_a_second` on average; none at a rate that is infinite or not above 0. Loads of flows come near the rate only in
    /// the long run, because a few flows have most of the bytes.
    pub fn arrivals(self, seed: u64, bits_a_second: f64, seconds: f64) -> Box<dyn Iterator<Item = Arrival>> {
        let rng = Seed(seed).stream(self.name());
        let has_rate = bits_a_second > 0.0 && bits_a_second.is_finite();
        let end_ns = if has_rate { 1e9 * seconds } else { f64::NEG_INFINITY };
        let phase = |at_ns: f64, length: f64| (at_ns / (1e9 * length)) as u64;
        match self {
            Load::Steady => Box::new(by_chance(rng, end_ns, move |_, _| (LARGE, bits_a_second))),
            Load::Bursty => Box::new(by_chance(rng, end_ns, move |at, _| {
                let times = if phase(at, 0.5) % 2 == 0 { 1.5 } else { 0.5 };
                (LARGE, times * bits_a_second)
            })),
            Load::Mixed => Box::new(by_chance(rng, end_ns, move |at, rng| {
                let bytes = match phase(at, 0.25) % 4 {
                    0 => 64,
                    1 => 512,
                    2 => LARGE,
                    _ => [64, 512, LARGE][rng.below(3) as usize],
                };
                // By the mean size of the phase, so that its rate is the load's.
                let mean = if phase(at, 0.25) % 4 == 3 { (64 + 512 + LARGE) / 3 } else { bytes };
                (bytes, bits_a_second * f64::from(bytes) / f64::from(mean))
            })),
            Load::Imix => Box::new(by_chance(rng, end_ns, move |_, rng| {
                let bytes = match rng.below(12) {
                    0..7 => 64,
                    7..11 => 594,
                    _ => 1518,
                };
                (bytes, bits_a_second * f64::from(bytes) / IMIX_MEAN)
            })),
            Load::OnOff => Box::new(OnOff::new(rng, end_ns, bits_a_second)),
            Load::WebSearch => Box::new(Flows::new(rng, end_ns, bits_a_second, &WEB_SEARCH)),
            Load::DataMining => Box::new(Flows::new(rng, end_ns, bits_a_second, &DATA_MINING)),
        }
    }
}

/// The time until the next random event, where events are `mean` apart on average.
fn exponential(rng: &mut Rng, mean: f64) -> f64 {
    -mean * (1.0 - rng.unit()).ln()
}

/// Random packets: `next` gives the size of the packet after a time, and the rate in bits a second at that time.
fn by_chance(
    mut rng: Rng,
    end_ns: f64,
    mut next: impl FnMut(f64, &mut Rng) -> (u32, f64),
) -> impl Iterator<Item = Arrival> {
    let mut at_ns = 0.0;
    core::iter::from_fn(move || {
        let (bytes, rate) = next(at_ns, &mut rng);
        at_ns += exponential(&mut rng, 8e9 * f64::from(bytes) / rate);
        (at_ns < end_ns).then(|| Arrival { at_ns, flow: rng.below(FLOWS), bytes })
    })
}

/// Sources that are on and off.
#[derive(Debug)]
struct OnOff {
    rng: Rng,
    end_ns: f64,
    /// By their next packet: when, which source, how many of its packets are left.
    sources: BinaryHeap<Reverse<(u64, u64, u32)>>,
    gap_ns: f64,
}

impl OnOff {
    fn new(mut rng: Rng, end_ns: f64, bits_a_second: f64) -> OnOff {
        // Each is on for a third of its time.
        let gap_ns = 8e9 * f64::from(LARGE) / (3.0 * bits_a_second / SOURCES as f64);
        let sources = (0..SOURCES).map(|source| {
            let at = rng.below((3.0 * ON_NS) as u64);
            Reverse((at, source, ((exponential(&mut rng, ON_NS) / gap_ns) as u32).saturating_add(1)))
        });
        OnOff { sources: sources.collect(), rng, end_ns, gap_ns }
    }
}

impl Iterator for OnOff {
    type Item = Arrival;

    fn next(&mut self) -> Option<Arrival> {
        let Reverse((at, source, left)) = self.sources.pop()?;
        let at_ns = at as f64;
        if at_ns >= self.end_ns {
            return None;
        }
        let (pause, left) = match left {
            0 | 1 => {
                let off = exponential(&mut self.rng, 2.0 * ON_NS);
                (off, ((exponential(&mut self.rng, ON_NS) / self.gap_ns) as u32).saturating_add(1))
            }
            left => (exponential(&mut self.rng, self.gap_ns), left - 1),
        };
        self.sources.push(Reverse((at + 1 + pause as u64, source, left)));
        Some(Arrival { at_ns, flow: source, bytes: LARGE })
    }
}

/// Flows that come by chance, each with its bytes in packets of 1,464 at a tenth of the load's rate.
#[derive(Debug)]
struct Flows {
    rng: Rng,
    end_ns: f64,
    next_ns: f64,
    between_ns: f64,
    gap_ns: f64,
    sizes: &'static [(f64, f64)],
    /// By their next packet: when, which, bytes left.
    open: BinaryHeap<Reverse<(u64, u64, u64)>>,
    flows: u64,
}

impl Flows {
    fn new(rng: Rng, end_ns: f64, bits_a_second: f64, sizes: &'static [(f64, f64)]) -> Flows {
        let between_ns = 8e9 * mean(sizes) / bits_a_second;
        let gap_ns = 8e9 * f64::from(LARGE) / (bits_a_second / 10.0);
        Flows { rng, end_ns, next_ns: 0.0, between_ns, gap_ns, sizes, open: BinaryHeap::new(), flows: 0 }
    }
}

impl Iterator for Flows {
    type Item = Arrival;

    fn next(&mut self) -> Option<Arrival> {
        let soonest = |flows: &Flows| flows.open.peek().map_or(f64::INFINITY, |Reverse((at, ..))| *at as f64);
        while self.next_ns < soonest(self) && self.next_ns < self.end_ns {
            let bytes = quantile(self.sizes, self.rng.unit()).max(1.0) as u64;
            self.open.push(Reverse((self.next_ns as u64, self.flows, bytes)));
            self.flows += 1;
            self.next_ns += exponential(&mut self.rng, self.between_ns);
        }
        let Reverse((at, flow, left)) = self.open.pop()?;
        if at as f64 >= self.end_ns {
            return None;
        }
        let bytes = left.min(LARGE.into());
        if left > bytes {
            let gap = exponential(&mut self.rng, self.gap_ns);
            self.open.push(Reverse((at + 1 + gap as u64, flow, left - bytes)));
        }
        Some(Arrival { at_ns: at as f64, flow, bytes: bytes as u32 })
    }
}

/// The size that a `share` of flows does not exceed: straight lines between the published points.
fn quantile(sizes: &[(f64, f64)], share: f64) -> f64 {
    let pair = sizes.windows(2).find(|pair| share <= pair[1].1);
    pair.map_or(sizes[sizes.len() - 1].0, |pair| {
        let ((from, low), (to, high)) = (pair[0], pair[1]);
        from + (to - from) * (share - low) / (high - low)
    })
}

fn mean(sizes: &[(f64, f64)]) -> f64 {
    sizes.windows(2).map(|pair| (pair[0].0 + pair[1].0) / 2.0 * (pair[1].1 - pair[0].1)).sum()
}

/// Bytes of a large packet: the poster's.
const LARGE: u32 = 1464;
/// Flows of loads that say nothing of flows.
const FLOWS: u64 = 64;
/// Mean bytes of IMIX (7:4:1).
const IMIX_MEAN: f64 = (7.0 * 64.0 + 4.0 * 594.0 + 1518.0) / 12.0;
/// Sources of [`Load::OnOff`], and for how long one is on, on average.
const SOURCES: u64 = 8;
const ON_NS: f64 = 3e8;

/// Bytes of flows, and how many of 1 have no more: web search, as measured by Alizadeh and others, "Data Center TCP (DCTCP)", SIGCOMM 2010, in the
/// points that "pFabric", SIGCOMM 2013, and generators of traffic use.
const WEB_SEARCH: [(f64, f64); 12] = [
    (0.0, 0.0),
    (10e3, 0.15),
    (20e3, 0.2),
    (30e3, 0.3),
    (50e3, 0.4),
    (80e3, 0.53),
    (200e3, 0.6),
    (1e6, 0.7),
    (2e6, 0.8),
    (5e6, 0.9),
    (10e6, 0.97),
    (30e6, 1.0),
];
/// Data mining, as measured by Greenberg and others, "VL2", SIGCOMM 2009, in points of the same kind. Flows above 100 MB, two of 100, end there: those of up to
/// a gigabyte that were measured would be all of a run of seconds.
const DATA_MINING: [(f64, f64); 13] = [
    (0.0, 0.0),
    (180.0, 0.1),
    (216.0, 0.2),
    (560.0, 0.3),
    (900.0, 0.4),
    (1100.0, 0.5),
    (1870.0, 0.6),
    (3160.0, 0.7),
    (10e3, 0.8),
    (400e3, 0.9),
    (3.16e6, 0.95),
    (99e6, 0.98),
    (100e6, 1.0),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_load_has_its_rate_and_is_the_same_again() {
        for load in Load::ALL {
            let seconds = match load {
                Load::WebSearch => 60.0,
                // One of its long flows takes 80 s.
                Load::DataMining => 800.0,
                _ => 8.0,
            };
            let all: Vec<Arrival> = load.arrivals(3, 1e8, seconds).collect();
            assert!(load.arrivals(3, 1e8, seconds).eq(all.iter().copied()));
            assert!(!load.arrivals(4, 1e8, seconds).eq(all.iter().copied()));
            assert!(all.windows(2).all(|pair| pair[0].at_ns <= pair[1].at_ns));
            let rate = all.iter().map(|packet| 8.0 * f64::from(packet.bytes)).sum::<f64>() / seconds;
            let within = match load {
                Load::WebSearch => 0.3,
                Load::DataMining => 0.3,
                Load::OnOff => 0.25,
                _ => 0.02,
            };
            println!("{} {rate:.3e}", load.name());
            assert!((rate / 1e8 - 1.0).abs() < within, "{} {rate}", load.name());
        }
    }

    #[test]
    fn sizes_of_flows_are_those_that_were_published() {
        let mut rng = Seed(5).stream("sizes");
        for sizes in [&WEB_SEARCH[..], &DATA_MINING[..]] {
            let drawn: Vec<f64> = (0..200_000).map(|_| quantile(sizes, rng.unit())).collect();
            for (bytes, share) in &sizes[1..sizes.len() - 1] {
                let below = drawn.iter().filter(|size| *size <= bytes).count() as f64 / drawn.len() as f64;
                assert!((below - share).abs() < 0.005, "{bytes}: {below}");
            }
            let average = drawn.iter().sum::<f64>() / drawn.len() as f64;
            assert!((average / mean(sizes) - 1.0).abs() < 0.05);
        }
    }
}
