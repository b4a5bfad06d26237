//! Controllers: how many instances each service is to have, decided window by window.

use crate::window::{ServiceWindow, Work};
use crate::{Costs, Fabric, Service};
use std::collections::VecDeque;

/// Decides, at the end of each window, how many instances services are to have.
///
/// ```
/// use crypto_services::{Controller, Decision, ServiceWindow};
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
///     fn decide(&mut self, _: f64, services: &[ServiceWindow]) -> Vec<Decision> {
///         let waits = services.iter().filter(|service| service.waiting > 0);
///         waits.map(|of| Decision { service: of.service, instances: of.instances + 1, why: "packets wait".into() }).collect()
///     }
/// }
///
/// assert!(Eager.decide(1e6, &[]).is_empty());
/// ```
pub trait Controller: core::fmt::Debug {
    /// What it is called.
    fn name(&self) -> &'static str;

    /// Changes, in the order in which the fabric tries them: it refuses those that do not fit its area. The window had `window_ns`.
    fn decide(&mut self, window_ns: f64, services: &[ServiceWindow]) -> Vec<Decision>;
}

/// A service is to have so many instances.
///
/// See [`Controller`] for an example.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// Which one.
    pub service: Service,
    /// How many.
    pub instances: u32,
    /// Why, for the log.
    pub why: String,
}

/// A change that was made.
///
/// See [`Outcome`](crate::Outcome) for an example.
#[derive(Clone, Debug, PartialEq)]
pub struct Change {
    /// When.
    pub at_ns: f64,
    /// What was decided.
    pub decision: Decision,
    /// Instances before.
    pub from: u32,
    /// Whether there was area for it.
    pub done: bool,
}

/// At the end of a window: has the controller decide, and does it.
pub(crate) fn control(
    fabric: &mut Fabric,
    controller: &mut dyn Controller,
    now_ns: f64,
    window_ns: f64,
) -> Vec<Change> {
    let windows = fabric.take_window();
    let decided = controller.decide(window_ns, &windows).into_iter().map(|decision| {
        let from = windows.iter().find(|of| of.service == decision.service).map_or(0, |of| of.instances);
        let done = fabric.set_instances(now_ns, decision.service, decision.instances).is_ok();
        Change { at_ns: now_ns, decision, from, done }
    });
    decided.collect()
}

/// Never changes anything.
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

    fn decide(&mut self, _: f64, _: &[ServiceWindow]) -> Vec<Decision> {
        Vec::new()
    }
}

/// Grows what is too busy and shrinks what is too idle, by one instance a window.
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
    /// With a share of its time at work above which a service grows, and one below which it shrinks.
    pub fn new(high: f64, low: f64) -> Hysteresis {
        Hysteresis { high, low }
    }
}

impl Controller for Hysteresis {
    fn name(&self) -> &'static str {
        "hysteresis"
    }

    fn decide(&mut self, window_ns: f64, services: &[ServiceWindow]) -> Vec<Decision> {
        let decide = |of: &ServiceWindow| {
            let busy = of.work.total_ns() / (window_ns * f64::from(of.instances));
            let instances = match busy {
                busy if busy > self.high => of.instances + 1,
                busy if busy < self.low && of.instances > 1 => of.instances - 1,
                _ => return None,
            };
            Some(Decision { service: of.service, instances, why: format!("{:.0} % at work", 100.0 * busy) })
        };
        services.iter().filter_map(decide).collect()
    }
}

/// What a [`Predictive`] controller is to reach.
///
/// See [`Predictive`] for an example.
#[derive(Clone, Debug)]
pub struct Goal {
    /// The longest time that 99 of 100 packets may be in the fabric.
    pub target_ns: f64,
    /// Windows for which a service keeps what it needed in any of them.
    pub dwell: usize,
    /// Windows whose load is averaged, as long as none of them shows that the load has changed.
    pub memory: usize,
    /// Windows in which what waits is to be worked off.
    pub clear: f64,
    /// A service shrinks only if this share more load would still fit.
    pub margin: f64,
    /// The area that there is.
    pub area: f64,
    /// What services cost.
    pub costs: Costs,
}

impl Goal {
    /// For windows of a millisecond, with a target and an area.
    pub fn new(target_ns: f64, area: f64) -> Goal {
        Goal { target_ns, area, dwell: 20, memory: 80, clear: 4.0, margin: 0.02, costs: Costs::default() }
    }
}

/// Predicts by queueing theory how long packets will wait, and gives each service the fewest instances with which 99 of 100 are in time. It
/// grows at once, and shrinks after a dwell time. If it has to grow again within ten dwell times though the load is the same, it shrinks no more for as
/// long: what shrank was needed.
///
/// The load it counts on is the mean of the last windows. If the last one, two, four and so on have more or less work than chance allows (four standard
/// deviations), the load has changed, and the windows before say nothing any more. Of two services that are to grow, the one that is further behind comes first
/// when area is short: the bottleneck. A service that cannot have all that it needs gets what is left of the area.
///
/// ```
/// use crypto_services::{Controller, Goal, Predictive};
///
/// assert_eq!(Predictive::new(Goal::new(1e6, 64.0)).name(), "queue");
/// ```
#[derive(Debug)]
pub struct Predictive {
    goal: Goal,
    services: Vec<Past>,
}

/// What a controller remembers of a service.
#[derive(Debug)]
struct Past {
    service: Service,
    windows: VecDeque<Work>,
    needed: VecDeque<u32>,
    /// Windows since it shrank.
    shrank: Option<usize>,
    /// Windows for which it does not shrink.
    held: usize,
}

impl Past {
    fn of(service: Service) -> Past {
        Past { service, windows: VecDeque::new(), needed: VecDeque::new(), shrank: None, held: 0 }
    }

    /// Takes the work of a window. Returns what is to be counted on, and of how many windows it is.
    fn note(&mut self, last: Work, memory: usize) -> (Work, usize) {
        self.windows.push_back(last);
        if self.windows.len() > memory.max(1) {
            self.windows.pop_front();
        }
        if let Some(windows) = self.changed() {
            // So few are the new load's.
            self.windows.drain(..self.windows.len() - windows);
            // What it needed was under another load.
            (self.shrank, self.held) = (None, 0);
        }
        (sum(self.windows.iter()), self.windows.len())
    }

    /// The last windows, if they have another load than those before.
    fn changed(&self) -> Option<usize> {
        let mut last = Work::default();
        for (taken, work) in (1..self.windows.len()).zip(self.windows.iter().rev()) {
            last.add(work);
            if !taken.is_power_of_two() {
                continue;
            }
            let before = sum(self.windows.iter().take(self.windows.len() - taken));
            let share = taken as f64 / (self.windows.len() - taken) as f64;
            // A sum of so many packets by chance has the variance of their number times their mean square; so has what it is compared with.
            let square = |work: &Work| work.packets() as f64 * (1.0 + work.variation()) * work.mean_ns().powi(2);
            let by_chance = (square(&before) * share).max(square(&last));
            let deviation = (by_chance * (1.0 + share)).sqrt();
            if (last.total_ns() - before.total_ns() * share).abs() > DEVIATIONS * deviation {
                return Some(taken);
            }
        }
        None
    }

    /// Takes note of what it is to have.
    fn note_change(&mut self, grows: bool, dwell: usize) {
        match (grows, self.shrank) {
            (false, _) => {
                self.shrank = Some(0);
                // The next one has a dwell time of its own: in one step, where several were to follow each other.
                self.needed.clear();
            }
            (true, Some(since)) if since < REGRET * dwell => (self.held, self.shrank) = (REGRET * dwell, None),
            (true, _) => {}
        }
    }
}

fn sum<'a>(windows: impl Iterator<Item = &'a Work>) -> Work {
    let mut all = Work::default();
    windows.for_each(|work| all.add(work));
    all
}

/// How far from the mean of the windows before is no chance.
const DEVIATIONS: f64 = 4.0;
/// Dwell times within which growth shows that it should not have shrunk.
const REGRET: usize = 10;

impl Predictive {
    /// Without a past.
    pub fn new(goal: Goal) -> Predictive {
        Predictive { goal, services: Vec::new() }
    }

    /// The fewest instances with which 99 of 100 packets are through in `time_ns` under `times` the load, and with which what waits is worked off in
    /// `clear_ns`.
    fn needed_for(
        &self,
        of: &ServiceWindow,
        (work, span_ns): (&Work, f64),
        time_ns: f64,
        (times, clear_ns): (f64, f64),
    ) -> u32 {
        let most = ((self.goal.area / self.goal.costs.of(of.service).area) as u32).max(1);
        let backlog = of.waiting as f64 * work.mean_ns();
        // More instances do not make a serial packet faster: if it is too slow by itself, only its wait counts.
        let too_slow = work.queue(span_ns, 2).servers == 2 && work.longest_ns() > time_ns;
        let fits = |instances: u32| {
            let queue = work.queue(span_ns / times, instances);
            let longest = work.longest_ns() / if queue.servers == 1 { f64::from(instances) } else { 1.0 };
            let Some(wait) = queue.wait_exceeded_by(0.01) else { return false };
            let spare = f64::from(instances) - times * work.total_ns() / span_ns;
            // So much work waits now and then by itself.
            let clears = spare > 0.0 && backlog <= time_ns + spare * clear_ns;
            wait + if too_slow { 0.0 } else { longest } <= time_ns && clears
        };
        (1..most).find(|instances| fits(*instances)).unwrap_or(most)
    }

    /// Cuts decisions, in their order, down to the area that is left. Where not one more instance fits, the decision stays, so that the log shows it.
    fn fit(&self, services: &[ServiceWindow], decisions: &mut [Decision]) {
        let area = |service: Service, instances: u32| self.goal.costs.of(service).area * f64::from(instances);
        let mut left = self.goal.area - services.iter().map(|of| area(of.service, of.instances)).sum::<f64>();
        for decision in decisions {
            let has = services.iter().find(|of| of.service == decision.service).map_or(0, |of| of.instances);
            // Areas are sums of tenths.
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

    fn decide(&mut self, window_ns: f64, services: &[ServiceWindow]) -> Vec<Decision> {
        // Each service may use the target up by itself, less what the others take with no wait at all: long waits at two services at once are
        // rare, since one hands on to the next no faster than it works.
        let alone = |of: &ServiceWindow| of.work.mean_ns() / f64::from(of.instances);
        let all_alone: f64 = services.iter().map(alone).sum();
        let mut decisions = Vec::new();
        for of in services {
            let place = self.services.iter().position(|past| past.service == of.service).unwrap_or_else(|| {
                self.services.push(Past::of(of.service));
                self.services.len() - 1
            });
            let (work, counted) = self.services[place].note(of.work, self.goal.memory);
            let (span_ns, time) = (window_ns * counted as f64, self.goal.target_ns - (all_alone - alone(of)));
            let time = time.max(self.goal.target_ns / 4.0);
            let needed = |times: f64, clear_ns: f64| match work.packets() {
                0 => 1,
                _ => self.needed_for(of, (&work, span_ns), time, (times, clear_ns)),
            };
            let now = needed(1.0, self.goal.clear * window_ns);
            // What waits is gone by the time that it shrinks.
            let with_margin = needed(1.0 + self.goal.margin, f64::INFINITY);
            let busy = 100.0 * work.total_ns() / (span_ns * f64::from(of.instances));
            let (dwell, past) = (self.goal.dwell, &mut self.services[place]);
            past.needed.push_back(with_margin.max(now));
            if past.needed.len() > dwell {
                past.needed.pop_front();
            }
            past.shrank = past.shrank.map(|since| since + 1);
            past.held = past.held.saturating_sub(1);
            let keep = past.needed.iter().copied().max().unwrap_or(now);
            if now > of.instances {
                let why = format!("{busy:.0} % at work, {} wait: {now} keep 99 of 100 in time", of.waiting);
                decisions.push(Decision { service: of.service, instances: now, why });
                past.note_change(true, dwell);
            } else if past.held == 0 && past.needed.len() >= dwell && keep < of.instances {
                let why = format!("{keep} were enough for {dwell} windows");
                decisions.push(Decision { service: of.service, instances: keep, why });
                past.note_change(false, dwell);
            }
        }
        // What shrinks makes room; then the one that is furthest behind.
        let behind = |decision: &Decision| {
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
