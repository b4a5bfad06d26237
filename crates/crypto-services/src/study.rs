//! Studies: a load through a fabric under a controller, compared with the least sufficient area.

use crate::controller::{Controller, InstanceChange, control};
use crate::load::PacketArrival;
use crate::{DepartedPacket, Fabric, FabricConfig, FabricError, Graph, Packet, Service};
use std::collections::BTreeMap;

/// Parameters of a study.
///
/// ```
/// use crypto_services::{Goal, TrafficLoad, Predictive, Study, Suite, TransformDirection};
///
/// let study = Study::new(Suite::Aes128Gcm.graph(TransformDirection::Apply));
/// let load: Vec<_> = TrafficLoad::Steady.arrivals(1, 1e9, 0.2).collect();
/// let outcome = study.run(&load, &mut Predictive::new(Goal::new(study.target_ns, 64.0)))?;
/// assert_eq!(outcome.departed as usize + outcome.refused as usize, load.len());
/// assert!(outcome.instances[0].1 >= 1);
/// # Ok::<(), crypto_services::FabricError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Study {
    /// The chain.
    pub graph: Graph,
    /// The device.
    pub fabric: FabricConfig,
    /// Interval of the controller's decisions.
    pub control_ns: f64,
    /// Length of a window. In each window, 99 of 100 packets should meet the target.
    pub window_ns: f64,
    /// Target of a packet's time in the fabric.
    pub target_ns: f64,
    /// Share of windows that may miss the target, from 0 to 1.
    pub may_miss: f64,
}

/// Results of a window of [`Study::window_ns`].
///
/// See [`RunOutcome`] for an example.
#[derive(Clone, Debug, PartialEq)]
pub struct StudyWindow {
    /// Start of the window.
    pub at_ns: f64,
    /// Number of packets that arrived.
    pub packets: u64,
    /// Arrived bits per second.
    pub bits_a_second: f64,
    /// 99th percentile of the time in the fabric; infinite if more than one of 100 packets was refused.
    pub p99_ns: f64,
    /// Instances of each service at the end of the window.
    pub instances: Vec<u32>,
}

/// Results for packets of one size.
///
/// See [`RunOutcome`] for an example.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SizeResult {
    /// Packet size.
    pub bytes: u32,
    /// Number of departed packets.
    pub packets: u64,
    /// Bits per second of the departed packets over the run.
    pub bits_a_second: f64,
    /// Median of the time in the fabric.
    pub p50_ns: f64,
    /// 99th percentile of the time in the fabric.
    pub p99_ns: f64,
}

/// Results of a run.
///
/// ```
/// use crypto_services::{Fixed, TrafficLoad, Study, Suite, TransformDirection};
///
/// let study = Study::new(Suite::Nea(2).graph(TransformDirection::Apply));
/// let load: Vec<_> = TrafficLoad::Steady.arrivals(1, 1e8, 0.1).collect();
/// let outcome = study.run(&load, &mut Fixed)?;
/// assert_eq!((outcome.missed, outcome.changes.len(), outcome.windows.len()), (0, 0, 10));
/// assert_eq!(outcome.sizes[0].bytes, 1464);
/// assert!(outcome.sizes[0].p50_ns > 20_000.0, "92 blocks of AES, one after the other");
/// # Ok::<(), crypto_services::FabricError>(())
/// ```
#[derive(Clone, Debug)]
pub struct RunOutcome {
    /// Results by window.
    pub windows: Vec<StudyWindow>,
    /// Number of windows that missed the target.
    pub missed: usize,
    /// Decisions of the controller.
    pub changes: Vec<InstanceChange>,
    /// Results by packet size, for the 16 most frequent sizes.
    pub sizes: Vec<SizeResult>,
    /// Integral of the area over time, in AES-128 instance seconds.
    pub area_seconds: f64,
    /// Number of departed packets.
    pub departed: u64,
    /// Number of refused packets.
    pub refused: u64,
    /// Instances at the end.
    pub instances: Vec<(Service, u32)>,
}

impl RunOutcome {
    /// Returns the mean area; 0 for a load without packets.
    pub fn mean_area(&self, study: &Study) -> f64 {
        self.area_seconds / ((self.windows.len().max(1)) as f64 * study.window_ns / 1e9)
    }
}

/// The least area for arrivals that are all known in advance.
///
/// See [`Study::optimum`] for an example.
#[derive(Clone, Debug, PartialEq)]
pub struct Optimum {
    /// Integral of the area over time, in AES-128 instance seconds; infinite if too many windows miss the target with
    /// any chain.
    pub area_seconds: f64,
    /// Growth step that each window needs: how often the bottleneck got another instance.
    pub needed: Vec<usize>,
    /// Number of windows that miss the target.
    pub missed: usize,
}

impl Study {
    /// Creates a study with a decision each millisecond, windows of 10 ms, a target of 1 ms, and 1 % of windows allowed
    /// to miss.
    pub fn new(graph: Graph) -> Study {
        Study {
            graph,
            fabric: FabricConfig { queue: 4096, ..FabricConfig::default() },
            control_ns: 1e6,
            window_ns: 1e7,
            target_ns: 1e6,
            may_miss: 0.01,
        }
    }

    /// Runs a load, sorted by time, through the fabric, starting with one instance of each service.
    ///
    /// # Errors
    /// [`FabricError::Area`] if one instance of each does not fit.
    pub fn run(&self, load: &[PacketArrival], controller: &mut dyn Controller) -> Result<RunOutcome, FabricError> {
        self.run_from(load, controller, &[])
    }

    /// Runs a load like [`run`](Self::run), starting with these instances.
    ///
    /// # Errors
    /// [`FabricError`] if they do not fit, or belong to no service of the chain.
    pub fn run_from(
        &self,
        load: &[PacketArrival],
        controller: &mut dyn Controller,
        instances: &[(Service, u32)],
    ) -> Result<RunOutcome, FabricError> {
        let mut fabric = Fabric::new(self.fabric.clone());
        let chain = fabric.add_chain(self.graph.clone(), 1)?;
        for (service, count) in instances {
            fabric.set_up(*service, *count)?;
        }
        let services: Vec<Service> = self.graph.steps().iter().map(|step| step.service).collect();
        let end_ns = load.last().map_or(0.0, |last| (last.at_ns / self.window_ns).floor() + 1.0) * self.window_ns;
        let mut seen = RunRecords::new(self, (end_ns / self.window_ns).round() as usize);
        // An interval of zero, or of no number, would never end.
        let control_ns = self.control_ns.max(1.0);
        let (mut changes, mut next_control, mut next_window, mut next) = (Vec::new(), control_ns, 1.0, 0);
        let mut now = 0.0;
        while now < end_ns {
            // Decisions and windows have separate periods, so each step ends at the earlier of the two.
            now = next_control.min(next_window * self.window_ns).min(end_ns);
            while let Some(arrival) = load.get(next)
                && arrival.at_ns < now
            {
                let packet = Packet { chain, flow: arrival.flow, bytes: arrival.bytes, name: next as u64 };
                let taken = fabric.offer(arrival.at_ns, packet).is_ok();
                seen.add_arrival(arrival, taken);
                next += 1;
            }
            fabric.advance(now);
            core::iter::from_fn(|| fabric.poll()).for_each(|departed| seen.left(&departed));
            if now >= next_control {
                changes.extend(control(&mut fabric, controller, now, control_ns));
                next_control += control_ns;
            }
            if now >= next_window * self.window_ns {
                next_window += 1.0;
            }
            seen.instances(now, services.iter().map(|service| fabric.instances(*service)));
        }
        let area_seconds = fabric.area_seconds();
        // Packets in the fabric at the end of the load count as well.
        while let Some(at) = fabric.next_event_ns() {
            fabric.advance(at);
            core::iter::from_fn(|| fabric.poll()).for_each(|departed| seen.left(&departed));
        }
        let instances = services.iter().map(|service| (*service, fabric.instances(*service))).collect();
        let (windows, sizes, departed) = seen.finish();
        let missed = windows.iter().filter(|window| window.p99_ns > self.target_ns).count();
        let refused = fabric.refused();
        Ok(RunOutcome { windows, missed, changes, sizes, area_seconds, departed, refused, instances })
    }

    /// Returns the instances after 0, 1, 2 ... growth steps of the bottleneck, as far as the area allows. Lists
    /// services with more than one instance.
    ///
    /// ```
    /// use crypto_services::{Service, Study, Suite, TransformDirection};
    ///
    /// let steps = Study::new(Suite::Aes128Gcm.graph(TransformDirection::Apply)).growth(1464);
    /// assert_eq!(steps[3], [(Service::Aes128, 4)]);
    /// assert_eq!(steps[6], [(Service::Aes128, 6), (Service::Ghash, 2)], "GHASH is the bottleneck behind five of AES");
    /// ```
    pub fn growth(&self, bytes: u32) -> Vec<Vec<(Service, u32)>> {
        let steps: Vec<_> = self.graph.steps().iter().filter(|step| !step.once).collect();
        let cost = |service: Service| self.fabric.costs.get(service);
        let all: f64 = self.graph.steps().iter().map(|step| cost(step.service).area).sum();
        let (mut area, mut instances) = (all, vec![1u32; steps.len()]);
        let mut growth = Vec::new();
        while area <= self.fabric.area + 1e-6 {
            let counts = steps.iter().zip(&instances).map(|(step, count)| (step.service, *count));
            growth.push(counts.filter(|(_, count)| *count > 1).collect());
            // Time of a packet at a service, with all instances at work.
            let time = |place: usize| {
                f64::from(steps[place].blocks(bytes)) * cost(steps[place].service).block_ns
                    / f64::from(instances[place])
            };
            let Some(slowest) =
                (0..steps.len()).reduce(|best, place| if time(place) > time(best) { place } else { best })
            else {
                break;
            };
            instances[slowest] += 1;
            area += cost(steps[slowest].service).area;
        }
        growth
    }

    /// Computes the least area over time for known arrivals. For each window, it finds the least growth step that meets
    /// the target and processes the window's packets within the window. Dynamic programming then chooses the growth
    /// steps and the windows that miss; new instances occupy area during configuration.
    ///
    /// ```
    /// use crypto_services::{Fixed, TrafficLoad, Study, Suite, TransformDirection};
    ///
    /// let study = Study::new(Suite::Aes128Gcm.graph(TransformDirection::Apply));
    /// let load: Vec<_> = TrafficLoad::Steady.arrivals(1, 1e9, 0.2).collect();
    /// let optimum = study.optimum(&load)?;
    /// assert!(optimum.needed.iter().all(|step| (2..5).contains(step)), "three or four of AES: {:?}", optimum.needed);
    /// # Ok::<(), crypto_services::FabricError>(())
    /// ```
    ///
    /// # Errors
    /// [`FabricError::Area`] if one instance of each service does not fit.
    pub fn optimum(&self, load: &[PacketArrival]) -> Result<Optimum, FabricError> {
        let bytes = load.iter().map(|arrival| u64::from(arrival.bytes)).sum::<u64>() / load.len().max(1) as u64;
        Fabric::new(self.fabric.clone()).add_chain(self.graph.clone(), 1)?;
        let mut growth = self.growth(bytes as u32);
        let windows = load.last().map_or(0, |last| (last.at_ns / self.window_ns) as usize + 1);
        let mut needed = Vec::with_capacity(windows);
        let mut from = 0;
        for window in 0..windows {
            let end_ns = (window as f64 + 1.0) * self.window_ns;
            let length = load[from..].partition_point(|arrival| arrival.at_ns < end_ns);
            // Each window is studied alone, as if it began at time zero.
            let part: Vec<PacketArrival> = load[from..from + length]
                .iter()
                .map(|arrival| PacketArrival { at_ns: arrival.at_ns - window as f64 * self.window_ns, ..*arrival })
                .collect();
            from += length;
            needed.push(self.least_growth(&part, &growth)?);
        }
        // More growth than any window needs is never optimal, and a large device would have room for many steps.
        growth.truncate(1 + needed.iter().copied().max().unwrap_or(0));
        let areas: Vec<f64> = growth.iter().map(|instances| self.area_of(instances)).collect();
        let may_miss = ((self.may_miss * windows as f64) as usize).min(windows);
        Ok(least_area(&areas, needed, may_miss, self.window_ns, self.longest_start()))
    }

    /// Returns the area of a chain with these instances, and one instance of each other service.
    pub fn area_of(&self, instances: &[(Service, u32)]) -> f64 {
        let count = |service: Service| instances.iter().find(|(of, _)| *of == service).map_or(1, |(_, count)| *count);
        let area = |service: Service| f64::from(count(service)) * self.fabric.costs.get(service).area;
        self.graph.steps().iter().map(|step| area(step.service)).sum()
    }

    /// Returns the least area with which a load's work can be done while it arrives. `None` if it does not fit.
    ///
    /// ```
    /// use crypto_services::{TrafficLoad, Study, Suite, TransformDirection};
    ///
    /// let study = Study::new(Suite::Aes128Gcm.graph(TransformDirection::Apply));
    /// let load: Vec<_> = TrafficLoad::Steady.arrivals(1, 1e9, 0.1).collect();
    /// assert_eq!(study.area_for(&load).map(|area| (10.0 * area).round()), Some(42.0), "three of AES");
    /// ```
    pub fn area_for(&self, load: &[PacketArrival]) -> Option<f64> {
        let span_ns = load.last()?.at_ns.max(1.0);
        let bytes = load.iter().map(|arrival| u64::from(arrival.bytes)).sum::<u64>() / load.len() as u64;
        let alone = Study { window_ns: span_ns, ..self.clone() };
        let growth = self.growth(bytes as u32);
        growth.iter().find(|instances| alone.works_off(load, instances)).map(|instances| self.area_of(instances))
    }

    /// Returns whether every service can do the work of a window within the window. Otherwise a backlog would remain
    /// for the next window.
    fn works_off(&self, load: &[PacketArrival], instances: &[(Service, u32)]) -> bool {
        self.graph.steps().iter().filter(|step| !step.once).all(|step| {
            let count = instances.iter().find(|(of, _)| *of == step.service).map_or(1, |(_, count)| *count);
            let blocks: f64 = load.iter().map(|arrival| f64::from(step.blocks(arrival.bytes))).sum();
            blocks * self.fabric.costs.get(step.service).block_ns <= f64::from(count) * self.window_ns
        })
    }

    fn longest_start(&self) -> f64 {
        self.graph.steps().iter().map(|step| self.fabric.costs.get(step.service).start_ns).fold(0.0, f64::max)
    }

    /// Returns the least growth step that meets the target; the number of steps if none does.
    fn least_growth(&self, load: &[PacketArrival], growth: &[Vec<(Service, u32)>]) -> Result<usize, FabricError> {
        // A single decision at the end is enough, because the controller changes nothing.
        let alone = Study { control_ns: self.window_ns, ..self.clone() };
        let is_enough = |step: &Vec<(Service, u32)>| {
            Ok::<bool, FabricError>(
                self.works_off(load, step) && alone.run_from(load, &mut crate::Fixed, step)?.missed == 0,
            )
        };
        // More instances never make a window worse, so bisection finds the least step.
        let (mut low, mut high) = (0, growth.len());
        while low < high {
            let middle = (low + high) / 2;
            if is_enough(&growth[middle])? { high = middle } else { low = middle + 1 }
        }
        Ok(low)
    }
}

/// Computes the least area over time for windows that need these steps, if `may_miss` windows may have less.
fn least_area(areas: &[f64], needed: Vec<usize>, may_miss: usize, window_ns: f64, start_ns: f64) -> Optimum {
    // Least cost so far, by number of misses and by growth step.
    let mut least = vec![vec![f64::INFINITY; areas.len()]; may_miss + 1];
    least[0].fill(0.0);
    for need in &needed {
        let mut next = vec![vec![f64::INFINITY; areas.len()]; may_miss + 1];
        for (missed, before) in least.iter().enumerate() {
            for (step, area) in areas.iter().enumerate() {
                let misses = missed + usize::from(step < *need);
                if misses > may_miss {
                    continue;
                }
                // The first window may begin with any step, because nothing has to be configured under load.
                let grown = |(cost, from): (&f64, &f64)| cost + start_ns * (area - from).max(0.0);
                let best = before.iter().zip(areas).map(grown).fold(f64::INFINITY, f64::min);
                let cost = &mut next[misses][step];
                *cost = cost.min(best + area * window_ns);
            }
        }
        least = next;
    }
    let mut best = (f64::INFINITY, 0);
    for (missed, costs) in least.iter().enumerate() {
        for cost in costs {
            if *cost < best.0 {
                best = (*cost, missed);
            }
        }
    }
    Optimum { area_seconds: best.0 / 1e9, needed, missed: best.1 }
}

/// Records of a run.
struct RunRecords<'a> {
    study: &'a Study,
    windows: Vec<Vec<f64>>,
    instances: Vec<Vec<u32>>,
    bits: Vec<f64>,
    sizes: BTreeMap<u32, Vec<f64>>,
    departed: u64,
}

impl RunRecords<'_> {
    fn new(study: &Study, windows: usize) -> RunRecords<'_> {
        RunRecords {
            study,
            windows: vec![Vec::new(); windows],
            instances: vec![Vec::new(); windows],
            bits: vec![0.0; windows],
            sizes: BTreeMap::new(),
            departed: 0,
        }
    }

    fn window_of(&self, at_ns: f64) -> usize {
        ((at_ns / self.study.window_ns) as usize).min(self.windows.len().saturating_sub(1))
    }

    fn add_arrival(&mut self, arrival: &PacketArrival, taken: bool) {
        let window = self.window_of(arrival.at_ns);
        self.bits[window] += 8.0 * f64::from(arrival.bytes);
        if !taken {
            // A refused packet counts as infinitely late.
            self.windows[window].push(f64::INFINITY);
        }
    }

    fn left(&mut self, departed: &DepartedPacket) {
        let window = self.window_of(departed.came_ns);
        self.windows[window].push(departed.sojourn_ns());
        self.sizes.entry(departed.packet.bytes).or_default().push(departed.sojourn_ns());
        self.departed += 1;
    }

    fn instances(&mut self, at_ns: f64, instances: impl Iterator<Item = u32>) {
        // The window that ends now, or the current one.
        let window = self.window_of(at_ns - 1.0);
        self.instances[window] = instances.collect();
    }

    fn finish(self) -> (Vec<StudyWindow>, Vec<SizeResult>, u64) {
        let (window_ns, seconds) = (self.study.window_ns, self.windows.len() as f64 * self.study.window_ns / 1e9);
        let rows = self.windows.into_iter().zip(self.instances).zip(self.bits).enumerate();
        let windows = rows.map(|(number, ((mut sojourns, instances), bits))| StudyWindow {
            at_ns: number as f64 * window_ns,
            packets: sojourns.len() as u64,
            bits_a_second: bits / window_ns * 1e9,
            p99_ns: percentile(&mut sojourns, 0.99),
            instances,
        });
        let mut sizes: Vec<(u32, Vec<f64>)> = self.sizes.into_iter().collect();
        sizes.sort_by_key(|(_, sojourns)| std::cmp::Reverse(sojourns.len()));
        // The most frequent sizes are kept, then sorted by size for the table.
        sizes.truncate(SIZES);
        sizes.sort_by_key(|(bytes, _)| *bytes);
        let sizes = sizes.into_iter().map(|(bytes, mut sojourns)| SizeResult {
            bytes,
            packets: sojourns.len() as u64,
            bits_a_second: 8.0 * f64::from(bytes) * sojourns.len() as f64 / seconds,
            p50_ns: percentile(&mut sojourns, 0.5),
            p99_ns: percentile(&mut sojourns, 0.99),
        });
        (windows.collect(), sizes.collect(), self.departed)
    }
}

/// Returns the smallest value that a `share` of the values does not exceed; 0 without values.
fn percentile(values: &mut [f64], share: f64) -> f64 {
    if values.is_empty() {
        return 0.0;
    }
    let place = ((share * values.len() as f64).ceil() as usize).clamp(1, values.len()) - 1;
    *values.select_nth_unstable_by(place, f64::total_cmp).1
}

/// Maximum number of packet sizes in a table.
const SIZES: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;

    /// Tries every choice of steps.
    fn by_hand(areas: &[f64], needed: &[usize], may_miss: usize, start: f64) -> f64 {
        fn go(areas: &[f64], needed: &[usize], before: Option<usize>, left: usize, start: f64) -> f64 {
            let Some((need, rest)) = needed.split_first() else { return 0.0 };
            let each = (0..areas.len()).filter_map(|step| {
                let left = if step < *need { left.checked_sub(1)? } else { left };
                let grown = before.map_or(0.0, |before| start * (areas[step] - areas[before]).max(0.0));
                Some(10.0 * areas[step] + grown + go(areas, rest, Some(step), left, start))
            });
            each.fold(f64::INFINITY, f64::min)
        }
        go(areas, needed, None, may_miss, start) / 1e9
    }

    #[test]
    fn optimum_matches_exhaustive_search() {
        let mut rng = offload_base::Seed(9).stream("optimum");
        for _ in 0..200 {
            let areas: Vec<f64> = (1..4).map(|step| f64::from(step) * 1.5).collect();
            let needed: Vec<usize> = (0..6).map(|_| rng.below(3) as usize).collect();
            let (may_miss, start) = (rng.below(3) as usize, rng.below(40) as f64);
            let expected = by_hand(&areas, &needed, may_miss, start);
            let found = least_area(&areas, needed, may_miss, 10.0, start);
            assert!((found.area_seconds - expected).abs() < 1e-12, "{found:?}, {expected}");
            assert!(found.missed <= may_miss);
        }
    }

    #[test]
    fn percentiles_are_measured_values() {
        assert_eq!(percentile(&mut [3.0, 1.0, 2.0], 0.5), 2.0);
        assert_eq!(percentile(&mut [1.0; 100], 0.99), 1.0);
        let mut one_of_hundred: Vec<f64> = (0..99).map(f64::from).chain([f64::INFINITY]).collect();
        assert_eq!(percentile(&mut one_of_hundred, 0.99), 98.0);
        assert_eq!(percentile(&mut [], 0.99), 0.0);
    }
}
