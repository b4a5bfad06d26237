//! A sweep in parts, one for each machine or task of a scheduler: which points are whose, and what a part's file says of itself.
//!
//! Invariant: the parts of a plan make every point, and what a part makes follows from the grid, the number of parts, the overlap
//! and the costs alone, so that machines agree on it without a word to each other.

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Which part: `3/64` is the third of 64.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shard {
    /// From 1.
    pub(crate) number: u32,
    pub(crate) of: u32,
}

/// Which part a command line asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Asked {
    /// That one.
    This(Shard),
    /// The one that the scheduler's variables name, of so many where they do not tell how many there are.
    Auto(Option<u32>),
}

impl core::str::FromStr for Asked {
    type Err = String;

    fn from_str(text: &str) -> Result<Asked, String> {
        let number = |text: &str| text.parse::<u32>().map_err(|_| format!("`{text}` is not a number of parts"));
        let (part, of) = match text.split_once('/') {
            None if text == "auto" => return Ok(Asked::Auto(None)),
            None => return Err("a part is I/N, such as 3/64, or auto, or auto/N".into()),
            Some((part, of)) => (part, number(of)?),
        };
        if !(1..=MAX_SHARDS).contains(&of) {
            return Err(format!("there are 1 to {MAX_SHARDS} parts, not {of}"));
        }
        if part == "auto" {
            return Ok(Asked::Auto(Some(of)));
        }
        let number = number(part)?;
        if !(1..=of).contains(&number) {
            return Err(format!("parts are numbered from 1 to {of}: there is no {number}"));
        }
        Ok(Asked::This(Shard { number, of }))
    }
}

impl Asked {
    /// The part, by the variables of this process.
    pub(crate) fn shard(self) -> Result<Shard, String> {
        match self {
            Asked::This(shard) => Ok(shard),
            Asked::Auto(of) => from_variables(of, |name| std::env::var(name).ok()),
        }
    }
}

/// The variables in which a scheduler tells a task of an array which one it is.
struct Variables {
    scheduler: &'static str,
    index: &'static str,
    /// Of the first task, where the array need not begin with 0.
    first: Option<&'static str>,
    /// Between one and the next.
    step: Option<&'static str>,
    /// How many there are, or the index of the last.
    count: Option<&'static str>,
    last: Option<&'static str>,
}

const SCHEDULERS: [Variables; 6] = [
    Variables {
        scheduler: "Slurm",
        index: "SLURM_ARRAY_TASK_ID",
        first: Some("SLURM_ARRAY_TASK_MIN"),
        step: Some("SLURM_ARRAY_TASK_STEP"),
        count: Some("SLURM_ARRAY_TASK_COUNT"),
        last: None,
    },
    Variables { scheduler: "HyperQueue", index: "HQ_TASK_ID", first: None, step: None, count: None, last: None },
    Variables {
        scheduler: "Kubernetes",
        index: "JOB_COMPLETION_INDEX",
        first: None,
        step: None,
        count: None,
        last: None,
    },
    Variables { scheduler: "PBS", index: "PBS_ARRAY_INDEX", first: None, step: None, count: None, last: None },
    // LSF numbers from 1, and says so nowhere.
    Variables {
        scheduler: "LSF",
        index: "LSB_JOBINDEX",
        first: None,
        step: Some("LSB_JOBINDEX_STEP"),
        count: None,
        last: Some("LSB_JOBINDEX_END"),
    },
    Variables {
        scheduler: "SGE",
        index: "SGE_TASK_ID",
        first: Some("SGE_TASK_FIRST"),
        step: Some("SGE_TASK_STEPSIZE"),
        count: None,
        last: Some("SGE_TASK_LAST"),
    },
];

fn from_variables(of: Option<u32>, variable: impl Fn(&str) -> Option<String>) -> Result<Shard, String> {
    // LSF and SGE set theirs to 0 or `undefined` for jobs that are no arrays.
    let number = |name: &str| variable(name).and_then(|text| text.parse::<u32>().ok());
    let present = |of: &&Variables| match of.scheduler {
        "LSF" | "SGE" => number(of.index).is_some_and(|index| index > 0),
        _ => variable(of.index).is_some(),
    };
    let Some(task) = SCHEDULERS.iter().find(present) else {
        let names: Vec<_> = SCHEDULERS.iter().map(|known| known.index).collect();
        return Err(format!("no scheduler says which part this is: none of {} is set", names.join(", ")));
    };
    let wrong = |name: &str| format!("{}: {name} is not a number", task.scheduler);
    let optional =
        |name: Option<&str>, otherwise: u32| match name.and_then(|name| variable(name).map(|text| (name, text))) {
            Some((name, text)) => text.parse::<u32>().map_err(|_| wrong(name)),
            None => Ok(otherwise),
        };
    let index = number(task.index).ok_or_else(|| wrong(task.index))?;
    let first = optional(task.first, if task.scheduler == "LSF" { 1 } else { 0 })?;
    let step = optional(task.step, 1)?.max(1);
    let told = match (task.count.and_then(&number), task.last.and_then(&number)) {
        (Some(count), _) => Some(count),
        (None, Some(last)) if last >= first => Some((last - first) / step + 1),
        (None, _) => None,
    };
    let of = match (of, told) {
        (Some(of), Some(told)) if of != told => {
            return Err(format!("{} has an array of {told} tasks, not {of}", task.scheduler));
        }
        (of, told) => of
            .or(told)
            .ok_or_else(|| format!("{} does not tell how many parts there are: say --shard auto/N", task.scheduler))?,
    };
    let place = index.checked_sub(first).map(|behind| behind / step).filter(|place| *place < of && of <= MAX_SHARDS);
    let place = place
        .ok_or_else(|| format!("{}: {} is {index}, and {of} parts begin with {first}", task.scheduler, task.index))?;
    Ok(Shard { number: place + 1, of })
}

/// A point, as a plan sees it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Planned {
    /// Of study and arguments.
    pub(crate) hash: [u8; 32],
    /// How long it is thought to take, in seconds.
    pub(crate) cost: f64,
}

impl Planned {
    pub(crate) fn new(study: &str, arguments: &[String], cost: f64) -> Planned {
        let mut hash = Sha256::new();
        for text in core::iter::once(study).chain(arguments.iter().map(String::as_str)) {
            hash.update((text.len() as u64).to_le_bytes());
            hash.update(text);
        }
        Planned { hash: hash.finalize().into(), cost }
    }
}

/// Who makes which point.
#[derive(Debug)]
pub(crate) struct Plan {
    of: u32,
    /// The part that makes it, from 1, by point.
    homes: Vec<u32>,
    /// Whether the part behind that one makes it too.
    twice: Vec<bool>,
}

impl Plan {
    /// The longest point first, each to the part that has least to do. A share of the points, `overlap`, is made by two parts.
    pub(crate) fn new(points: &[Planned], of: u32, overlap: f64) -> Plan {
        let mut order: Vec<usize> = (0..points.len()).collect();
        order.sort_by(|one, other| points[*other].cost.total_cmp(&points[*one].cost).then(one.cmp(other)));
        // Whole microseconds: sums of them are the same in any order, on any machine.
        let micros = |cost: f64| (cost.clamp(0.0, MAX_COST) * 1e6) as u64;
        let mut parts: BinaryHeap<Reverse<(u64, u32)>> = (1..=of).map(|part| Reverse((0, part))).collect();
        let mut homes = vec![1; points.len()];
        for point in order {
            let Some(Reverse((load, part))) = parts.pop() else { break };
            homes[point] = part;
            parts.push(Reverse((load + micros(points[point].cost).max(1), part)));
        }
        let mut twice = vec![false; points.len()];
        if of > 1 {
            let mut by_hash: Vec<usize> = (0..points.len()).collect();
            by_hash.sort_by_key(|point| points[*point].hash);
            let shared = (points.len() as f64 * overlap).ceil() as usize;
            by_hash.into_iter().take(shared).for_each(|point| twice[point] = true);
        }
        Plan { of, homes, twice }
    }

    /// Whether a part makes a point.
    pub(crate) fn has(&self, shard: u32, point: usize) -> bool {
        let home = self.homes[point];
        home == shard || (self.twice[point] && home % self.of + 1 == shard)
    }
}

/// What a part's file says of itself, in its first line.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Part {
    /// SHA-256 of the names of its studies and the arguments of all points.
    pub(crate) grid: String,
    /// SHA-256 of who makes which point.
    pub(crate) plan: String,
    /// Of this crate.
    pub(crate) version: String,
    /// Which part this is, from 1.
    pub(crate) shard: u32,
    pub(crate) of: u32,
    /// How many points it has.
    pub(crate) points: usize,
    /// The studies in their order, and how many points all parts together have of each.
    pub(crate) studies: Vec<(String, usize)>,
    /// The command that makes it.
    pub(crate) command: String,
}

impl Part {
    /// `studies`: of each point, in the order of the grid. `merge` tells the command, which holds `{shard}` for the part.
    pub(crate) fn new(points: &[Planned], studies: &[&str], plan: &Plan, shard: Shard, command: String) -> Part {
        let (mut grid, mut who) = (Sha256::new(), Sha256::new());
        for (at, point) in points.iter().enumerate() {
            grid.update(point.hash);
            who.update(plan.homes[at].to_le_bytes());
            who.update([u8::from(plan.twice[at])]);
        }
        let mut counts: Vec<(String, usize)> = Vec::new();
        for study in studies {
            match counts.last_mut() {
                Some((last, count)) if last == study => *count += 1,
                _ => counts.push((study.to_string(), 1)),
            }
        }
        Part {
            grid: hexadecimal(&grid.finalize()),
            plan: hexadecimal(&who.finalize()),
            version: env!("CARGO_PKG_VERSION").into(),
            shard: shard.number,
            of: shard.of,
            points: (0..points.len()).filter(|point| plan.has(shard.number, *point)).count(),
            studies: counts,
            command,
        }
    }

    /// What keeps two files from being parts of one sweep.
    pub(crate) fn differs(&self, other: &Part) -> Option<&'static str> {
        if self.version != other.version {
            Some("they were made by different versions")
        } else if self.grid != other.grid || self.studies != other.studies {
            Some("they are of different grids")
        } else if self.of != other.of {
            Some("the grid was cut into different numbers of parts")
        } else if self.plan != other.plan {
            Some("they were made with different --overlap or --costs, so points are missing or made by others")
        } else {
            None
        }
    }

    /// The command that makes the part with this number.
    pub(crate) fn command_of(&self, shard: u32) -> String {
        self.command.replace(PLACE_OF_SHARD, &format!("{shard}/{}", self.of))
    }
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Where a command of a [`Part`] has the part.
pub(crate) const PLACE_OF_SHARD: &str = "{shard}";
/// As many as a study has points, at most.
pub(crate) const MAX_SHARDS: u32 = 100_000;
/// Seconds; years.
const MAX_COST: f64 = 1e9;

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    fn points(costs: impl IntoIterator<Item = f64>) -> Vec<Planned> {
        let arguments = |at: usize| vec!["iperf".to_string(), at.to_string()];
        costs.into_iter().enumerate().map(|(at, cost)| Planned::new("a", &arguments(at), cost)).collect()
    }

    #[test]
    fn parts_are_asked_for_by_number_or_by_a_scheduler() {
        let asked = |text: &str| text.parse::<Asked>();
        assert_eq!(asked("3/64"), Ok(Asked::This(Shard { number: 3, of: 64 })));
        assert_eq!((asked("auto"), asked("auto/8")), (Ok(Asked::Auto(None)), Ok(Asked::Auto(Some(8)))));
        for wrong in ["0/4", "5/4", "1/0", "4", "1/2/3", "-1/2", "auto/0", "auto/x", "", "1/9999999999"] {
            assert!(asked(wrong).is_err(), "{wrong}");
        }
    }

    /// What each of them sets for a task of an array.
    #[test]
    fn each_scheduler_is_understood() {
        let of_task = |of: Option<u32>, variables: &[(&str, &str)]| {
            let variables: HashMap<&str, &str> = variables.iter().copied().collect();
            from_variables(of, |name| variables.get(name).map(ToString::to_string))
        };
        let part = |number, of| Ok(Shard { number, of });
        let slurm = [
            ("SLURM_ARRAY_TASK_ID", "14"),
            ("SLURM_ARRAY_TASK_MIN", "10"),
            ("SLURM_ARRAY_TASK_STEP", "2"),
            ("SLURM_ARRAY_TASK_COUNT", "4"),
        ];
        assert_eq!(of_task(None, &slurm), part(3, 4));
        assert_eq!(of_task(Some(4), &slurm), part(3, 4));
        assert!(of_task(Some(5), &slurm).unwrap_err().contains("an array of 4 tasks, not 5"));
        let sge = [("SGE_TASK_ID", "3"), ("SGE_TASK_FIRST", "1"), ("SGE_TASK_LAST", "5"), ("SGE_TASK_STEPSIZE", "2")];
        assert_eq!(of_task(None, &sge), part(2, 3));
        assert_eq!(of_task(None, &[("LSB_JOBINDEX", "8"), ("LSB_JOBINDEX_END", "8")]), part(8, 8));
        for index in ["HQ_TASK_ID", "JOB_COMPLETION_INDEX", "PBS_ARRAY_INDEX"] {
            assert_eq!(of_task(Some(64), &[(index, "63")]), part(64, 64));
            assert!(of_task(None, &[(index, "0")]).unwrap_err().contains("say --shard auto/N"));
            assert!(of_task(Some(64), &[(index, "64")]).unwrap_err().contains("64 parts begin with 0"));
            assert!(of_task(Some(64), &[(index, "x")]).unwrap_err().contains("is not a number"));
        }
        // A job of LSF or SGE that is no array.
        let none = [("LSB_JOBINDEX", "0"), ("SGE_TASK_ID", "undefined")];
        assert!(of_task(Some(2), &none).unwrap_err().contains("no scheduler"));
    }

    #[test]
    fn parts_make_every_point_and_some_of_them_twice() {
        for (count, of, overlap, shared) in [(1000, 7, 0.01, 10), (5, 8, 0.0, 0), (64, 4, 1.0, 64), (10, 1, 0.5, 0)] {
            let points = points((0..count).map(|at| f64::from(at % 5)));
            let plan = Plan::new(&points, of, overlap);
            let makers = |point| (1..=of).filter(|shard| plan.has(*shard, point)).count();
            assert!((0..points.len()).all(|point| makers(point) >= 1));
            assert_eq!((0..points.len()).filter(|point| makers(*point) == 2).count(), shared);
        }
    }

    /// No part takes longer than the ideal and one point more.
    #[test]
    fn parts_take_about_as_long() {
        let points = points((0..500).map(|at| f64::from(1 + at * at % 97)));
        let plan = Plan::new(&points, 9, 0.0);
        let load = |shard| (0..points.len()).filter(|at| plan.has(shard, *at)).map(|at| points[at].cost).sum::<f64>();
        let ideal = points.iter().map(|point| point.cost).sum::<f64>() / 9.0;
        assert!((1..=9).all(|shard| load(shard) <= ideal + 97.0 && load(shard) >= ideal - 97.0));
    }

    #[test]
    fn parts_of_other_sweeps_are_told_apart() {
        let part = |costs: &[f64], of, overlap| {
            let points = points(costs.iter().copied());
            let plan = Plan::new(&points, of, overlap);
            Part::new(
                &points,
                &vec!["a"; points.len()],
                &plan,
                Shard { number: 1, of },
                format!("x --shard {PLACE_OF_SHARD}"),
            )
        };
        let one = part(&[1.0, 2.0, 3.0], 2, 0.0);
        assert_eq!(one.differs(&part(&[1.0, 2.0, 3.0], 2, 0.0)), None);
        assert!(one.differs(&part(&[1.0, 2.0], 2, 0.0)).unwrap().contains("grids"));
        assert!(one.differs(&part(&[1.0, 2.0, 3.0], 3, 0.0)).unwrap().contains("numbers of parts"));
        assert!(one.differs(&part(&[1.0, 2.0, 3.0], 2, 0.5)).unwrap().contains("--overlap"));
        assert!(one.differs(&part(&[3.0, 2.0, 2.0], 2, 0.0)).unwrap().contains("--costs"));
        assert!(one.differs(&Part { version: "9".into(), ..one.clone() }).unwrap().contains("versions"));
        assert_eq!((one.command_of(2), &one.studies[..]), ("x --shard 2/2".into(), &[("a".into(), 3)][..]));
    }
}
