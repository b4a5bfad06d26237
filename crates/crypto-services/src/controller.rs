//! Controllers: decide the number of instances of each service, window by window.

use crate::window::{ServiceDemand, ServiceWindow};
use crate::{Fabric, Service, ServiceCosts};
use std::collections::VecDeque;

/// A policy that decides at the end of each window how many instances the services should have.
///
/// ```
/// use crypto_services::{Controller, InstanceDecision, ServiceWindow};
///
/// /// Adds an instance wherever anything waits.
/// #[derive(Debug)]
/// struct Eager;
///
/// impl Controller for Eager {
///     fn name(&self) -> &'static str {
///         "eager"
///     }
///
///     fn decide(&mut self, _: f64, services: &[ServiceWindow]) -> Vec<InstanceDecision> {
///         let waits = services.iter().filter(|service| service.waiting > 0);
///         waits.map(|of| InstanceDecision { service: of.service, instances: of.instances + 1, why: "packets wait".into() }).collect()
///     }
/// }
///
/// assert!(Eager.decide(1e6, &[]).is_empty());
/// ```
pub trait Controller: core::fmt::Debug {
    /// Returns the controller's name.
    fn name(&self) -> &'static str;

    /// Returns the changes for a window of `window_ns`, in the order of execution. The fabric refuses changes that
    /// exceed its area.
    fn decide(&mut self, window_ns: f64, services: &[ServiceWindow]) -> Vec<InstanceDecision>;
}

/// A decision to give a service a number of instances.
///
/// See [`Controller`] for an example.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InstanceDecision {
    /// The service.
    pub service: Service,
    /// New number of instances.
    pub instances: u32,
    /// Reason, for the log.
    pub why: String,
}

/// A change of instances, executed or refused.
///
/// See [`RunOutcome`](crate::RunOutcome) for an example.
#[derive(Clone, Debug, PartialEq)]
pub struct InstanceChange {
    /// Time of the change.
    pub at_ns: f64,
    /// The decision.
    pub decision: InstanceDecision,
    /// Number of instances before.
    pub from: u32,
    /// Whether the area sufficed and the change was made.
    pub done: bool,
}

/// Lets the controller decide at the end of a window, and executes the decisions.
pub(crate) fn control(
    fabric: &mut Fabric,
    controller: &mut dyn Controller,
    now_ns: f64,
    window_ns: f64,
) -> Vec<InstanceChange> {
    let windows = fabric.take_window();
    let decided = controller.decide(window_ns, &windows).into_iter().map(|decision| {
        let from = windows.iter().find(|of| of.service == decision.service).map_or(0, |of| of.instances);
        // A decision without room is recorded as well, to show the lack of area.
        let done = fabric.set_instances(now_ns, decision.service, decision.instances).is_ok();
        InstanceChange { at_ns: now_ns, decision, from, done }
    });
    decided.collect()
}

/// A controller that never changes anything.
///
/// ```
/// use crypto_services::{Controller, Fixed};
///
/// assert!(Fixed.decide(1e6, &[]).is_empty());
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Fixed;

impl Controller for Fixed {
    fn name(&self) -> &'static str {
        "fixed"
    }

    fn decide(&mut self, _: f64, _: &[ServiceWindow]) -> Vec<InstanceDecision> {
        Vec::new()
    }
}

/// A controller that adds an instance to busy services and removes one from idle services, at most one per window.
///
/// ```
/// use crypto_services::Hysteresis;
///
/// let patient = Hysteresis::new(0.9, 0.3);
/// assert_eq!(format!("{patient:?}"), "Hysteresis { high: 0.9, low: 0.3 }");
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Hysteresis {
    high: f64,
    low: f64,
}

impl Hysteresis {
    /// Creates a controller that grows a service above the utilisation `high` and shrinks it below `low`.
    pub fn new(high: f64, low: f64) -> Hysteresis {
        Hysteresis { high, low }
    }
}

impl Controller for Hysteresis {
    fn name(&self) -> &'static str {
        "hysteresis"
    }

    fn decide(&mut self, window_ns: f64, services: &[ServiceWindow]) -> Vec<InstanceDecision> {
        let decide = |of: &ServiceWindow| {
            let busy = of.work.total_ns() / (window_ns * f64::from(of.instances));
            let instances = match busy {
                busy if busy > self.high => of.instances + 1,
                // A service must keep one instance.
                busy if busy < self.low && of.instances > 1 => of.instances - 1,
                _ => return None,
            };
            Some(InstanceDecision { service: of.service, instances, why: format!("{:.0} % at work", 100.0 * busy) })
        };
        services.iter().filter_map(decide).collect()
    }
}

/// Objective and parameters of a [`Predictive`] controller.
///
/// See [`Predictive`] for an example.
#[derive(Clone, Debug)]
pub struct Goal {
    /// Maximum time in the fabric for 99 of 100 packets.
    pub target_ns: f64,
    /// Number of windows for which a service keeps the most instances that any of these windows needed.
    pub dwell: usize,
    /// Maximum number of windows averaged while the load does not change.
    pub memory: usize,
    /// Number of windows within which waiting packets should be processed.
    pub clear: f64,
    /// A service shrinks only if the load could grow by this share.
    pub margin: f64,
    /// Available area.
    pub area: f64,
    /// The costs of the services.
    pub costs: ServiceCosts,
}

impl Goal {
    /// Creates parameters for windows of a millisecond.
    pub fn new(target_ns: f64, area: f64) -> Goal {
        Goal { target_ns, area, dwell: 20, memory: 80, clear: 4.0, margin: 0.02, costs: ServiceCosts::default() }
    }
}

/// A controller that predicts waiting times by queueing theory and gives each service the fewest instances with which
/// 99 of 100 packets meet the target. Services grow at once and shrink after a dwell time. If a service has to grow
/// again within ten dwell times under the same load, the shrinking was a mistake, and the service does not shrink again
/// for as long.
///
/// The predicted load is the mean of the last windows. If the work of the last one, two, four and so on windows differs
/// from the earlier mean by more than four standard deviations, the load has changed and earlier windows are discarded.
/// If the area is short, the service that lacks most instances, relative to its present ones, grows first. A service
/// that cannot get all needed instances gets the rest of the area.
///
/// ```
/// use crypto_services::{Controller, Goal, Predictive};
///
/// assert_eq!(Predictive::new(Goal::new(1e6, 64.0)).name(), "queue");
/// ```
#[derive(Debug)]
pub struct Predictive {
    goal: Goal,
    services: Vec<ServiceHistory>,
}

/// A controller's history of a service.
#[derive(Debug)]
struct ServiceHistory {
    service: Service,
    windows: VecDeque<ServiceDemand>,
    needed: VecDeque<u32>,
    /// Windows since the last shrink. `None` if there was none, or if it was followed by growth.
    shrank: Option<usize>,
    /// Number of windows during which the service must not shrink.
    held: usize,
}

impl ServiceHistory {
    fn for_service(service: Service) -> ServiceHistory {
        ServiceHistory { service, windows: VecDeque::new(), needed: VecDeque::new(), shrank: None, held: 0 }
    }

    /// Adds the work of a window. Returns the predicted work, and the number of windows it covers.
    fn note(&mut self, last: ServiceDemand, memory: usize) -> (ServiceDemand, usize) {
        self.windows.push_back(last);
        // At least one window is needed for any prediction.
        if self.windows.len() > memory.max(1) {
            self.windows.pop_front();
        }
        if let Some(windows) = self.changed() {
            // Only these windows belong to the new load.
            self.windows.drain(..self.windows.len() - windows);
            // The needs of earlier windows belong to another load.
            (self.shrank, self.held) = (None, 0);
        }
        (sum(self.windows.iter()), self.windows.len())
    }

    /// Returns the number of last windows with a changed load, or `None`.
    fn changed(&self) -> Option<usize> {
        let mut last = ServiceDemand::default();
        for (taken, work) in (1..self.windows.len()).zip(self.windows.iter().rev()) {
            last.add(work);
            // Powers of two find sudden and slow changes with few comparisons.
            if !taken.is_power_of_two() {
                continue;
            }
            let before = sum(self.windows.iter().take(self.windows.len() - taken));
            let share = taken as f64 / (self.windows.len() - taken) as f64;
            // The sum of a random number of packets has the variance of their number times their mean square. The same
            // holds for the reference, which is scaled by `share`.
            let square =
                |work: &ServiceDemand| work.packets() as f64 * (1.0 + work.variation()) * work.mean_ns().powi(2);
            let by_chance = (square(&before) * share).max(square(&last));
            let deviation = (by_chance * (1.0 + share)).sqrt();
            if (last.total_ns() - before.total_ns() * share).abs() > DEVIATIONS * deviation {
                return Some(taken);
            }
        }
        None
    }

    /// Records a change: `grows` or shrinks.
    fn note_change(&mut self, grows: bool, dwell: usize) {
        match (grows, self.shrank) {
            (false, _) => {
                self.shrank = Some(0);
                // The next shrink needs its own dwell time: several shrinks may not follow each other at once.
                self.needed.clear();
            }
            (true, Some(since)) if since < REGRET * dwell => (self.held, self.shrank) = (REGRET * dwell, None),
            (true, _) => {}
        }
    }
}

fn sum<'a>(windows: impl Iterator<Item = &'a ServiceDemand>) -> ServiceDemand {
    let mut all = ServiceDemand::default();
    windows.for_each(|work| all.add(work));
    all
}

/// Number of standard deviations that counts as a change of the load.
const DEVIATIONS: f64 = 4.0;
/// Number of dwell times within which growth shows that a shrink was a mistake.
const REGRET: usize = 10;

impl Predictive {
    /// Creates a controller without history.
    pub fn new(goal: Goal) -> Predictive {
        Predictive { goal, services: Vec::new() }
    }

    /// Returns the fewest instances with which 99 of 100 packets pass within `time_ns` under `times` the load, and with
    /// which the waiting packets are processed within `clear_ns`.
    fn needed_for(
        &self,
        of: &ServiceWindow,
        (work, span_ns): (&ServiceDemand, f64),
        time_ns: f64,
        (times, clear_ns): (f64, f64),
    ) -> u32 {
        // More instances than the area holds are pointless, even with an infinite demand.
        let most = ((self.goal.area / self.goal.costs.get(of.service).area) as u32).max(1);
        let backlog = of.waiting as f64 * work.mean_ns();
        // More instances do not make a serial packet faster. If a packet alone exceeds the target, only its wait
        // counts.
        let too_slow = work.queue(span_ns, 2).servers == 2 && work.longest_ns() > time_ns;
        let fits = |instances: u32| {
            let queue = work.queue(span_ns / times, instances);
            let longest = work.longest_ns() / if queue.servers == 1 { f64::from(instances) } else { 1.0 };
            let Some(wait) = queue.wait_exceeded_by(0.01) else { return false };
            // The backlog shrinks only by the capacity beyond the load.
            let spare = f64::from(instances) - times * work.total_ns() / span_ns;
            // A backlog of up to `time_ns` occurs by chance and does not count.
            let clears = spare > 0.0 && backlog <= time_ns + spare * clear_ns;
            wait + if too_slow { 0.0 } else { longest } <= time_ns && clears
        };
        (1..most).find(|instances| fits(*instances)).unwrap_or(most)
    }

    /// Limits decisions to the free area, in their order. A decision without room for one more instance stays, so that
    /// the log shows it.
    fn fit(&self, services: &[ServiceWindow], decisions: &mut [InstanceDecision]) {
        let area = |service: Service, instances: u32| self.goal.costs.get(service).area * f64::from(instances);
        // May be negative, if the present instances exceed the area.
        let mut left = self.goal.area - services.iter().map(|of| area(of.service, of.instances)).sum::<f64>();
        for decision in decisions {
            let has = services.iter().find(|of| of.service == decision.service).map_or(0, |of| of.instances);
            // Areas are sums of tenths, so rounding errors must not cost an instance.
            let room = ((left + 1e-6) / area(decision.service, 1)) as u32;
            if room > 0 && decision.instances - has.min(decision.instances) > room {
                decision.instances = has + room;
                decision.why += &format!("; there is area for {}", decision.instances);
            }
            if room > 0 || decision.instances < has {
                left += area(decision.service, has) - area(decision.service, decision.instances);
            }
        }
    }
}

impl Controller for Predictive {
    fn name(&self) -> &'static str {
        "queue"
    }

    fn decide(&mut self, window_ns: f64, services: &[ServiceWindow]) -> Vec<InstanceDecision> {
        // Each service may use the whole target except for the service times of the other services: long waits at two
        // services at once are rare, because a service passes packets on no faster than it works.
        let alone = |of: &ServiceWindow| of.work.mean_ns() / f64::from(of.instances);
        let all_alone: f64 = services.iter().map(alone).sum();
        let mut decisions = Vec::new();
        for of in services {
            // Services appear when the first chain uses them, so the controller learns the services from the windows.
            let place = self.services.iter().position(|past| past.service == of.service).unwrap_or_else(|| {
                self.services.push(ServiceHistory::for_service(of.service));
                self.services.len() - 1
            });
            let (work, counted) = self.services[place].note(of.work, self.goal.memory);
            let (span_ns, time) = (window_ns * counted as f64, self.goal.target_ns - (all_alone - alone(of)));
            // The other services may need almost the whole target. A quarter is left in any case.
            let time = time.max(self.goal.target_ns / 4.0);
            let needed = |times: f64, clear_ns: f64| match work.packets() {
                0 => 1,
                _ => self.needed_for(of, (&work, span_ns), time, (times, clear_ns)),
            };
            let now = needed(1.0, self.goal.clear * window_ns);
            // The packets waiting now will have left before the service shrinks.
            let with_margin = needed(1.0 + self.goal.margin, f64::INFINITY);
            let busy = 100.0 * work.total_ns() / (span_ns * f64::from(of.instances));
            let (dwell, past) = (self.goal.dwell, &mut self.services[place]);
            // The largest need of the dwell time decides about shrinking.
            past.needed.push_back(with_margin.max(now));
            if past.needed.len() > dwell {
                past.needed.pop_front();
            }
            past.shrank = past.shrank.map(|since| since + 1);
            past.held = past.held.saturating_sub(1);
            let keep = past.needed.iter().copied().max().unwrap_or(now);
            if now > of.instances {
                let why = format!("{busy:.0} % at work, {} wait: {now} keep 99 of 100 in time", of.waiting);
                decisions.push(InstanceDecision { service: of.service, instances: now, why });
                past.note_change(true, dwell);
            } else if past.held == 0 && past.needed.len() >= dwell && keep < of.instances {
                let why = format!("{keep} were enough for {dwell} windows");
                decisions.push(InstanceDecision { service: of.service, instances: keep, why });
                past.note_change(false, dwell);
            }
        }
        // Shrinking first frees area. Then the service that lacks most instances grows.
        let behind = |decision: &InstanceDecision| {
            let has = services.iter().find(|of| of.service == decision.service).map_or(1, |of| of.instances);
            f64::from(decision.instances) / f64::from(has)
        };
        decisions.sort_by(|a, b| {
            let (a, b) = (behind(a), behind(b));
            (a > 1.0).cmp(&(b > 1.0)).then(b.total_cmp(&a))
        });
        self.fit(services, &mut decisions);
        decisions
    }
}
