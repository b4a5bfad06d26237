//! Loads: arrival times, sizes and flows of packets. The same seed gives the same load.

use offload_base::{Rng, Seed};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// An arriving packet.
///
/// See [`TrafficLoad`] for an example.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PacketArrival {
    /// Time of arrival.
    pub at_ns: f64,
    /// Identifier of the flow.
    pub flow: u64,
    /// Length in bytes.
    pub bytes: u32,
}

/// A kind of load.
///
/// ```
/// use crypto_services::TrafficLoad;
///
/// let packets: Vec<_> = TrafficLoad::Imix.arrivals(7, 1e9, 0.1).collect();
/// let bits: f64 = packets.iter().map(|packet| 8.0 * f64::from(packet.bytes)).sum();
/// assert!((bits / 1e8 - 1.0).abs() < 0.05, "1 Gb/s for a tenth of a second");
/// assert!(packets.windows(2).all(|pair| pair[0].at_ns <= pair[1].at_ns));
/// assert_eq!(TrafficLoad::from_name("imix"), Some(TrafficLoad::Imix));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TrafficLoad {
    /// Packets of 1,464 bytes with random gaps, at a constant mean rate.
    Steady,
    /// Packets that alternate between half a second at 150 % and half a second at 50 % of the rate.
    Bursty,
    /// Changing sizes: a quarter of a second each of 64 bytes, 512, 1,464, and a random mix of all three.
    Mixed,
    /// Sources of 1,464-byte packets that are on for a random time and off for longer. Each sends at least one packet
    /// while on, so low rates below 1 Mb/s are exceeded.
    OnOff,
    /// Internet mix: 7 packets of 64 bytes to 4 of 594 and one of 1,518.
    Imix,
    /// Web search flows, with sizes as measured for DCTCP.
    WebSearch,
    /// Data mining flows, with sizes as measured for VL2.
    DataMining,
}

impl TrafficLoad {
    /// All loads.
    pub const ALL: [TrafficLoad; 7] = [
        TrafficLoad::Steady,
        TrafficLoad::Bursty,
        TrafficLoad::Mixed,
        TrafficLoad::OnOff,
        TrafficLoad::Imix,
        TrafficLoad::WebSearch,
        TrafficLoad::DataMining,
    ];

    /// Returns the load's name.
    pub fn name(self) -> &'static str {
        match self {
            TrafficLoad::Steady => "steady",
            TrafficLoad::Bursty => "bursty",
            TrafficLoad::Mixed => "mixed",
            TrafficLoad::OnOff => "on-off",
            TrafficLoad::Imix => "imix",
            TrafficLoad::WebSearch => "web-search",
            TrafficLoad::DataMining => "data-mining",
        }
    }

    /// Returns the load with this name.
    pub fn from_name(name: &str) -> Option<TrafficLoad> {
        TrafficLoad::ALL.into_iter().find(|load| load.name() == name)
    }

    /// Generates packets for `seconds` at a mean rate of `bits_a_second`; no packets if the rate is infinite or not
    /// positive. Loads of flows approach the rate only in the long run, because a few flows have most of the bytes.
    pub fn arrivals(self, seed: u64, bits_a_second: f64, seconds: f64) -> Box<dyn Iterator<Item = PacketArrival>> {
        let rng = Seed(seed).stream(self.name());
        // An infinite or invalid rate would give gaps of zero and never end.
        let has_rate = bits_a_second > 0.0 && bits_a_second.is_finite();
        let end_ns = if has_rate { 1e9 * seconds } else { f64::NEG_INFINITY };
        let phase = |at_ns: f64, length: f64| (at_ns / (1e9 * length)) as u64;
        match self {
            TrafficLoad::Steady => Box::new(by_chance(rng, end_ns, move |_, _| (LARGE, bits_a_second))),
            TrafficLoad::Bursty => Box::new(by_chance(rng, end_ns, move |at, _| {
                let times = if phase(at, 0.5) % 2 == 0 { 1.5 } else { 0.5 };
                (LARGE, times * bits_a_second)
            })),
            TrafficLoad::Mixed => Box::new(by_chance(rng, end_ns, move |at, rng| {
                let bytes = match phase(at, 0.25) % 4 {
                    0 => 64,
                    1 => 512,
                    2 => LARGE,
                    _ => [64, 512, LARGE][rng.below(3) as usize],
                };
                // The gap follows the mean size of the phase, so that the phase has the load's rate.
                let mean = if phase(at, 0.25) % 4 == 3 { (64 + 512 + LARGE) / 3 } else { bytes };
                (bytes, bits_a_second * f64::from(bytes) / f64::from(mean))
            })),
            TrafficLoad::Imix => Box::new(by_chance(rng, end_ns, move |_, rng| {
                let bytes = match rng.below(12) {
                    0..7 => 64,
                    7..11 => 594,
                    _ => 1518,
                };
                (bytes, bits_a_second * f64::from(bytes) / IMIX_MEAN)
            })),
            TrafficLoad::OnOff => Box::new(OnOff::new(rng, end_ns, bits_a_second)),
            TrafficLoad::WebSearch => Box::new(Flows::new(rng, end_ns, bits_a_second, &WEB_SEARCH)),
            TrafficLoad::DataMining => Box::new(Flows::new(rng, end_ns, bits_a_second, &DATA_MINING)),
        }
    }
}

/// Draws the time until the next event of a Poisson process with this mean gap.
fn exponential(rng: &mut Rng, mean: f64) -> f64 {
    -mean * (1.0 - rng.unit()).ln()
}

/// Generates packets with exponential gaps. `next` returns the size of the next packet and the present rate in bits per
/// second.
fn by_chance(
    mut rng: Rng,
    end_ns: f64,
    mut next: impl FnMut(f64, &mut Rng) -> (u32, f64),
) -> impl Iterator<Item = PacketArrival> {
    let mut at_ns = 0.0;
    core::iter::from_fn(move || {
        let (bytes, rate) = next(at_ns, &mut rng);
        at_ns += exponential(&mut rng, 8e9 * f64::from(bytes) / rate);
        (at_ns < end_ns).then(|| PacketArrival { at_ns, flow: rng.below(FLOWS), bytes })
    })
}

/// Sources that alternate between on and off.
#[derive(Debug)]
struct OnOff {
    rng: Rng,
    end_ns: f64,
    /// Sources by time of the next packet: (time, source, packets left in this burst).
    sources: BinaryHeap<Reverse<(u64, u64, u32)>>,
    gap_ns: f64,
}

impl OnOff {
    fn new(mut rng: Rng, end_ns: f64, bits_a_second: f64) -> OnOff {
        // Each source is on for a third of the time.
        let gap_ns = 8e9 * f64::from(LARGE) / (3.0 * bits_a_second / SOURCES as f64);
        let sources = (0..SOURCES).map(|source| {
            let at = rng.below((3.0 * ON_NS) as u64);
            Reverse((at, source, ((exponential(&mut rng, ON_NS) / gap_ns) as u32).saturating_add(1)))
        });
        OnOff { sources: sources.collect(), rng, end_ns, gap_ns }
    }
}

impl Iterator for OnOff {
    type Item = PacketArrival;

    fn next(&mut self) -> Option<PacketArrival> {
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
        // At least one nanosecond later, so that time always advances.
        self.sources.push(Reverse((at + 1 + pause as u64, source, left)));
        Some(PacketArrival { at_ns, flow: source, bytes: LARGE })
    }
}

/// Flows with random arrivals. Each sends its bytes in packets of 1,464 bytes at a tenth of the load's rate.
#[derive(Debug)]
struct Flows {
    rng: Rng,
    end_ns: f64,
    next_ns: f64,
    between_ns: f64,
    gap_ns: f64,
    sizes: &'static [(f64, f64)],
    /// Flows by time of the next packet: (time, flow, bytes left).
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
    type Item = PacketArrival;

    fn next(&mut self) -> Option<PacketArrival> {
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
        Some(PacketArrival { at_ns: at as f64, flow, bytes: bytes as u32 })
    }
}

/// Returns the size that a `share` of flows does not exceed, interpolated between the published points.
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

/// Bytes of a large packet, as in the poster.
const LARGE: u32 = 1464;
/// Number of flows in loads without a flow model.
const FLOWS: u64 = 64;
/// Mean packet size of IMIX (7:4:1).
const IMIX_MEAN: f64 = (7.0 * 64.0 + 4.0 * 594.0 + 1518.0) / 12.0;
/// Number of sources of [`TrafficLoad::OnOff`], and mean on-time in nanoseconds.
const SOURCES: u64 = 8;
const ON_NS: f64 = 3e8;

/// Cumulative distribution of flow sizes in bytes: web search, measured by Alizadeh et al., "Data Center TCP (DCTCP)",
/// SIGCOMM 2010, in the points that "pFabric", SIGCOMM 2013, and traffic generators use.
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
/// Data mining, measured by Greenberg et al., "VL2", SIGCOMM 2009, in similar points. Flows above 100 MB, two of 100,
/// are cut to that size, because measured flows of up to a gigabyte would dominate a run of seconds.
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
    fn loads_have_their_rate_and_are_reproducible() {
        for load in TrafficLoad::ALL {
            let seconds = match load {
                TrafficLoad::WebSearch => 60.0,
                // A single long flow takes 80 s.
                TrafficLoad::DataMining => 800.0,
                _ => 8.0,
            };
            let all: Vec<PacketArrival> = load.arrivals(3, 1e8, seconds).collect();
            assert!(load.arrivals(3, 1e8, seconds).eq(all.iter().copied()));
            assert!(!load.arrivals(4, 1e8, seconds).eq(all.iter().copied()));
            assert!(all.windows(2).all(|pair| pair[0].at_ns <= pair[1].at_ns));
            let rate = all.iter().map(|packet| 8.0 * f64::from(packet.bytes)).sum::<f64>() / seconds;
            let within = match load {
                TrafficLoad::WebSearch => 0.3,
                TrafficLoad::DataMining => 0.3,
                TrafficLoad::OnOff => 0.25,
                _ => 0.02,
            };
            println!("{} {rate:.3e}", load.name());
            assert!((rate / 1e8 - 1.0).abs() < within, "{} {rate}", load.name());
        }
    }

    #[test]
    fn flow_sizes_match_the_published_ones() {
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
