//! `nicbench merge`: joins the files of a sweep's parts into one results file.
//!
//! Invariant: a merged file is written only if machines that made the same point in virtual time agree on every fact
//! except CPU times.

use super::report::about;
use crate::build;
use crate::results::{ResultRow, ResultsFile, read_rows};
use crate::shard::SweepPart;
use clap::Args;
use offload_cli::files::Files;
use offload_cli::program::{self, FAILED, UNUSABLE};
use offload_console::say;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Join the files of a sweep's parts; fails if machines that made the same point in virtual time do not agree
#[derive(Args, Debug)]
#[command(after_help = "Exit status: 0; 1 if parts are missing or machines do not agree; 2 if a file cannot be used")]
pub(crate) struct MergeOptions {
    /// Files written by `nicbench sweep --shard`
    #[arg(required = true)]
    files: Vec<PathBuf>,
    /// The file for the results
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
}

pub(crate) fn run(options: &MergeOptions) -> ExitCode {
    match merge(&options.files, &options.out) {
        Ok(merged) => {
            say!("{}: {merged}", options.out.display());
            ExitCode::SUCCESS
        }
        Err(NotMerged::Unusable(message)) => program::fail("nicbench", &message, UNUSABLE),
        Err(NotMerged::Failed(message)) => program::fail("nicbench", &message, FAILED),
    }
}

/// Reason why no merged file was written.
#[derive(Debug)]
pub(crate) enum NotMerged {
    /// A file holds no part of a sweep, or cannot be read or written.
    Unusable(String),
    /// The files do not fit together.
    Failed(String),
}

/// Summary of a merge.
#[derive(Debug, Default)]
pub(crate) struct MergeSummary {
    points: usize,
    files: usize,
    /// Points made by two parts with equal results.
    agreed: usize,
}

impl core::fmt::Display for MergeSummary {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let MergeSummary { points, files, agreed } = self;
        write!(f, "{points} points of {files} parts; {agreed} were made twice, and are equal in virtual time")
    }
}

/// Writes the rows of all parts, in the order of the grid.
pub(crate) fn merge(files: &[PathBuf], out: &Path) -> Result<MergeSummary, NotMerged> {
    let read = files.iter().map(PathBuf::as_path).collect();
    let claimed = Files { read, served: None, written: vec![out] }.claim().map_err(NotMerged::Unusable)?;
    let (points, merged) = gather(files)?;
    if let Some(warning) = build::warning(points.values().map(|found| &found.row.build)) {
        say!("{}: {warning}", out.display());
    }
    let mut text = String::new();
    for row in points.into_values() {
        let line = serde_json::to_string(&row.row).map_err(|error| NotMerged::Unusable(error.to_string()))?;
        text.push_str(&line);
        text.push('\n');
    }
    std::fs::write(out, text).map_err(|error| NotMerged::Unusable(about(out, &error)))?;
    claimed.keep();
    Ok(merged)
}

/// Rows by position in the grid: study, point.
type Points<'a> = BTreeMap<(usize, usize), FoundRow<'a>>;

struct FoundRow<'a> {
    row: ResultRow,
    file: &'a Path,
}

fn gather(files: &[PathBuf]) -> Result<(Points<'_>, MergeSummary), NotMerged> {
    let mut points = Points::new();
    let mut merged = MergeSummary { files: files.len(), ..MergeSummary::default() };
    let mut first: Option<(SweepPart, &Path)> = None;
    // Number of missing points of each part.
    let mut there: BTreeMap<u32, usize> = BTreeMap::new();
    let mut disagreements = Vec::new();
    for file in files {
        let (part, rows) = read_part(file)?;
        match &first {
            None => first = Some((part.clone(), file)),
            Some((known, other)) => {
                // Parts of another grid, plan or build would give a file that looks complete and is not.
                if let Some(why) = known.differs(&part) {
                    return Err(NotMerged::Failed(format!("{} and {}: {why}", other.display(), file.display())));
                }
            }
        }
        // The count starts at the part's size and falls with each row, so that a part that was killed shows as
        // incomplete.
        let of_part = there.entry(part.shard).or_insert(part.points);
        for row in rows {
            let stranger = || NotMerged::Failed(format!("{}: it is not of its grid: {}", file.display(), row.name()));
            let study = part.studies.iter().position(|(name, _)| *name == row.study).ok_or_else(stranger)?;
            match points.entry((study, row.point)) {
                Entry::Vacant(free) => {
                    *of_part = of_part.saturating_sub(1);
                    free.insert(FoundRow { row, file });
                }
                Entry::Occupied(known) => {
                    // Two parts made this point: machines must agree on all facts of virtual time.
                    *of_part = of_part.saturating_sub(1);
                    merged.agreed += 1;
                    disagreements.extend(disagreement(known.get(), &row, file));
                }
            }
        }
    }
    // No file was given, so there is nothing to compare.
    let Some((part, _)) = first else { return Ok((points, merged)) };
    // One disagreement casts doubt on every row of these machines, so nothing is written.
    if !disagreements.is_empty() {
        let count = disagreements.len();
        disagreements.truncate(MAX_REPORTED);
        let more = if count > MAX_REPORTED { format!("\n(and {} more)", count - MAX_REPORTED) } else { String::new() };
        return Err(NotMerged::Failed(format!(
            "machines do not agree on what happens in virtual time, so none of these results can be trusted:\n{}{more}",
            disagreements.join("\n")
        )));
    }
    merged.points = points.len();
    let all: usize = part.studies.iter().map(|(_, count)| count).sum();
    // A merge without these points would look complete in a report.
    if merged.points < all {
        return Err(missing(&part, &there, all - merged.points));
    }
    Ok((points, merged))
}

fn read_part(file: &Path) -> Result<(SweepPart, Vec<ResultRow>), NotMerged> {
    let wrong = |error: &dyn core::fmt::Display| NotMerged::Unusable(about(file, error));
    // A whole sweep has no first line of a part and is refused.
    let text = std::fs::read_to_string(file).map_err(|error| wrong(&error))?;
    let ResultsFile { part, rows, .. } = read_rows(&text).map_err(|error| wrong(&error))?;
    let part = part.ok_or_else(|| wrong(&"it does not say which part of a sweep it is: make it with --shard"))?;
    Ok((part, rows))
}

/// Describes the disagreement of two machines about one point. `None` if they agree.
fn disagreement(known: &FoundRow<'_>, row: &ResultRow, file: &Path) -> Option<String> {
    if !row.is_virtual() {
        return None;
    }
    let mut fields = known.row.differs(row);
    if known.row.arguments != row.arguments {
        fields.insert(0, "arguments".into());
    }
    if fields.is_empty() {
        return None;
    }
    // A run has hundreds of counters, and the first differences suffice to find the cause.
    fields.truncate(MAX_REPORTED);
    let machine = |row: &ResultRow, file: &Path| format!("{} ({})", file.display(), row.machine);
    let (one, other) = (machine(&known.row, known.file), machine(row, file));
    Some(format!("  {}: {} differ between {one} and {other}", row.name(), fields.join(", ")))
}

/// Describes the missing points, with the commands that make them.
fn missing(part: &SweepPart, there: &BTreeMap<u32, usize>, points: usize) -> NotMerged {
    let lacks = |shard: &u32| there.get(shard).is_none_or(|lacking| *lacking > 0);
    let mut commands: Vec<String> = (1..=part.of).filter(lacks).map(|shard| part.command_of(shard)).collect();
    let parts = commands.len();
    commands.truncate(MAX_REPORTED);
    let more =
        if parts > MAX_REPORTED { format!("\n  (and {} more parts)", parts - MAX_REPORTED) } else { String::new() };
    NotMerged::Failed(format!(
        "{points} points are missing; these commands make them:\n  {}{more}",
        commands.join("\n  ")
    ))
}

const MAX_REPORTED: usize = 20;
