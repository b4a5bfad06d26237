//! A sweep in parts, one for each machine or scheduler task: the assignment of points to parts, and the identification
//! in a part's file.
//!
//! Invariant: the parts of a plan cover every point. A part follows only from the grid, the number of parts, the
//! overlap and the costs, so that machines agree on the parts without communication.

use crate::build::Build;
pub(crate) use offload_base::part::{MAX_PARTS as MAX_SHARDS, PartArgument, WorkPart as Shard};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// A point as input of a plan.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PlannedPoint {
    /// Hash of study and arguments.
    pub(crate) hash: [u8; 32],
    /// Expected duration in seconds.
    pub(crate) cost: f64,
}

impl PlannedPoint {
    pub(crate) fn new(study: &str, arguments: &[String], cost: f64) -> PlannedPoint {
        let mut hash = Sha256::new();
        for text in core::iter::once(study).chain(arguments.iter().map(String::as_str)) {
            // The length separates the texts, so that no two lists of texts hash alike.
            hash.update((text.len() as u64).to_le_bytes());
            hash.update(text);
        }
        PlannedPoint { hash: hash.finalize().into(), cost }
    }
}

/// An assignment of points to parts.
#[derive(Debug)]
pub(crate) struct ShardPlan {
    of: u32,
    /// The part that makes each point, from 1.
    homes: Vec<u32>,
    /// Whether the following part makes the point too.
    twice: Vec<bool>,
}

impl ShardPlan {
    /// Assigns points to parts: the longest point first, each to the part with the least load. A share of the points,
    /// `overlap`, goes to two parts.
    pub(crate) fn new(points: &[PlannedPoint], of: u32, overlap: f64) -> ShardPlan {
        let mut order: Vec<usize> = (0..points.len()).collect();
        // Longest first: short points at the end even out the loads. Equal costs keep the grid's order, so that
        // machines agree.
        order.sort_by(|one, other| points[*other].cost.total_cmp(&points[*one].cost).then(one.cmp(other)));
        // Whole microseconds, because their sums do not depend on the order of addition.
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
            // The hash chooses the shared points, so that the choice does not depend on the order of studies.
            let mut by_hash: Vec<usize> = (0..points.len()).collect();
            by_hash.sort_by_key(|point| points[*point].hash);
            let shared = (points.len() as f64 * overlap).ceil() as usize;
            by_hash.into_iter().take(shared).for_each(|point| twice[point] = true);
        }
        ShardPlan { of, homes, twice }
    }

    /// Returns whether a part makes a point.
    pub(crate) fn has(&self, shard: u32, point: usize) -> bool {
        let home = self.homes[point];
        home == shard || (self.twice[point] && home % self.of + 1 == shard)
    }
}

/// The identification of a part, in the first line of its file.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SweepPart {
    /// SHA-256 of all points' studies and arguments.
    pub(crate) grid: String,
    /// SHA-256 of the assignment.
    pub(crate) plan: String,
    /// The build of the program that makes the part.
    pub(crate) build: Build,
    /// Number of the part, from 1.
    pub(crate) shard: u32,
    pub(crate) of: u32,
    /// Number of points of the part.
    pub(crate) points: usize,
    /// The studies in order, with the number of their points in all parts.
    pub(crate) studies: Vec<(String, usize)>,
    /// The command that makes the part.
    pub(crate) command: String,
}

impl SweepPart {
    /// Describes a part. `studies` has each point's study, in the order of the grid; `command` contains `{shard}` in
    /// place of the part.
    pub(crate) fn new(
        points: &[PlannedPoint],
        studies: &[&str],
        plan: &ShardPlan,
        shard: Shard,
        command: String,
    ) -> SweepPart {
        let (mut grid, mut who) = (Sha256::new(), Sha256::new());
        for (at, point) in points.iter().enumerate() {
            // The order of points is part of the hash, because rows refer to points by number.
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
        SweepPart {
            grid: hexadecimal(&grid.finalize()),
            plan: hexadecimal(&who.finalize()),
            build: Build::this(),
            shard: shard.number,
            of: shard.of,
            points: (0..points.len()).filter(|point| plan.has(shard.number, *point)).count(),
            studies: counts,
            command,
        }
    }

    /// Returns the reason why two files cannot be parts of one sweep. `None` if they can.
    pub(crate) fn differs(&self, other: &SweepPart) -> Option<&'static str> {
        if self.build != other.build {
            Some("they were made by different builds: build both from one commit, with one compiler")
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

    /// Returns the command that makes part `shard`.
    pub(crate) fn command_of(&self, shard: u32) -> String {
        self.command.replace(PLACE_OF_SHARD, &format!("{shard}/{}", self.of))
    }
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Placeholder of the part in a [`SweepPart`]'s command.
pub(crate) const PLACE_OF_SHARD: &str = "{shard}";
/// Maximum cost in seconds, about 30 years.
const MAX_COST: f64 = 1e9;

#[cfg(test)]
mod tests {
    use super::*;

    fn points(costs: impl IntoIterator<Item = f64>) -> Vec<PlannedPoint> {
        let arguments = |at: usize| vec!["iperf".to_string(), at.to_string()];
        costs.into_iter().enumerate().map(|(at, cost)| PlannedPoint::new("a", &arguments(at), cost)).collect()
    }

    #[test]
    fn parts_make_every_point_and_some_of_them_twice() {
        for (count, of, overlap, shared) in [(1000, 7, 0.01, 10), (5, 8, 0.0, 0), (64, 4, 1.0, 64), (10, 1, 0.5, 0)] {
            let points = points((0..count).map(|at| f64::from(at % 5)));
            let plan = ShardPlan::new(&points, of, overlap);
            let makers = |point| (1..=of).filter(|shard| plan.has(*shard, point)).count();
            assert!((0..points.len()).all(|point| makers(point) >= 1));
            assert_eq!((0..points.len()).filter(|point| makers(*point) == 2).count(), shared);
        }
    }

    /// No part takes longer than the ideal and one more point.
    #[test]
    fn parts_take_about_as_long() {
        let points = points((0..500).map(|at| f64::from(1 + at * at % 97)));
        let plan = ShardPlan::new(&points, 9, 0.0);
        let load = |shard| (0..points.len()).filter(|at| plan.has(shard, *at)).map(|at| points[at].cost).sum::<f64>();
        let ideal = points.iter().map(|point| point.cost).sum::<f64>() / 9.0;
        assert!((1..=9).all(|shard| load(shard) <= ideal + 97.0 && load(shard) >= ideal - 97.0));
    }

    #[test]
    fn parts_of_other_sweeps_are_refused() {
        let part = |costs: &[f64], of, overlap| {
            let points = points(costs.iter().copied());
            let plan = ShardPlan::new(&points, of, overlap);
            SweepPart::new(
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
        let build = Build { commit: "0123".into(), ..Build::this() };
        assert!(one.differs(&SweepPart { build, ..one.clone() }).unwrap().contains("builds"));
        assert_eq!((one.command_of(2), &one.studies[..]), ("x --shard 2/2".into(), &[("a".into(), 3)][..]));
    }
}
