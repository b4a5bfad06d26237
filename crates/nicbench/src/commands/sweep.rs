//! `nicbench sweep`: makes every point of a grid that is not yet in the results file.
//!
//! Runs in virtual time are spread over the cores; runs in real time follow, one at a time. Each row is written as soon
//! as its run ends, so that a killed sweep can continue. A sweep can be made in parts ([`Shard`]) on several machines;
//! `merge` joins their files.
//!
//! [`Shard`]: crate::shard::Shard

use super::report::{about, figures, grid_of};
use super::runs::Runnable;
use super::submit::{self, SubmitOptions};
use crate::build::{self, Build};
use crate::results::{MachineInfo, ResultRow, ResultsFile, first_line, read_rows};
use crate::shard::{PLACE_OF_SHARD, PartArgument, PlannedPoint, Shard, ShardPlan, SweepPart};
use crate::sweep::{Point, Sweep, SweepStudy};
use clap::Args;
use core::sync::atomic::{AtomicUsize, Ordering};
use core::time::Duration;
use indicatif::{ProgressBar, ProgressStyle};
use nic_sim::wire::impairment::Share;
use offload_bench_tls::facts::RunClock;
use offload_cli::program::{self, FAILED, UNUSABLE};
use offload_cli::scenario::Made;
use offload_console::say;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{File, TryLockError};
use std::io::{self, IsTerminal, Read, Seek, SeekFrom, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

/// Run a scenario over a grid, into a file of JSON Lines; continues a killed sweep
#[derive(Args, Debug)]
#[command(allow_negative_numbers = true, after_long_help = EXAMPLE, after_help = "--help tells what a grid looks like")]
pub(crate) struct SweepOptions {
    /// The grid, as TOML
    file: PathBuf,
    /// The file for the results; runs already in the file are not repeated. Default: the grid's name with .jsonl
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Concurrent runs in virtual time. Default: one for each core
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=1024))]
    jobs: Option<u16>,
    /// More published figures that the grid may name, as TOML like crates/bench/published/*.toml; may be given several
    /// times
    #[arg(long, value_name = "FILE")]
    published: Vec<PathBuf>,
    /// Make only this part of the sweep: 3/64; auto: the part given by Slurm, HyperQueue, Kubernetes, PBS, LSF or SGE;
    /// auto/64, if the scheduler does not tell the number of parts. A part has its own file, GRID.3-of-64.jsonl
    #[arg(long, value_name = "I/N")]
    shard: Option<PartArgument>,
    #[command(flatten)]
    parts: PartsOptions,
    #[command(flatten)]
    submit: SubmitOptions,
}

/// The options of a sweep's parts.
#[derive(Args, Clone, Debug)]
pub(crate) struct PartsOptions {
    /// With --shard or --submit: share of the points made by two parts, so that a merge detects machines with other
    /// results
    #[arg(long, value_name = "SHARE", default_value = "0.01")]
    pub(crate) overlap: Share,
    /// With --shard or --submit: results of an earlier sweep with the points' durations, so that parts take equally
    /// long
    #[arg(long, value_name = "FILE")]
    pub(crate) costs: Option<PathBuf>,
    /// With --shard or --submit: include runs in real time. By default, parts have only runs in virtual time
    #[arg(long)]
    pub(crate) timed: bool,
}

const EXAMPLE: &str = r#"A grid has studies such as this:

[[study]]
name = "loss"
title = "Goodput by packet loss"
command = "iperf"                                    # any command that makes runs
fixed = { streams = 8, bytes = "16MiB" }             # its options, by their long names; a bare option is true
grid = { mode = ["tcp", "tls-nic"], loss = [0, 0.01], seed = [1, 2, 3] }
plot = { x = "loss", series = "mode", y = ["goodput_gbps", "tx_host_ns_per_byte.total"] }

Options that vary together form one option of the grid; its values are tables with a name:
who = [{ name = "CPU", mode = "tls-cpu", files = "nvme-cpu" }, { name = "NIC", mode = "tls-nic", files = "nvme-nic" }]

Values of the NICs vary as options do, by the names that a file for --nic has:
grid = { nic.context_cache_bytes = [208, "4MiB"], nic.delays.dma = ["600ns", "2us"], mode = ["tls-nic"] }

Each combination of the grid's values is one run. Options that are neither x nor series, such as seeds, are repetitions: reports
take the median. y names fields of runs[] as the command prints them with --json; inner ones with a dot. "F, times less than L" in y
plots L's F divided by this line's F, for costs; "times more than" the reverse, for speeds.
published = { FIELD = "ID" } in plot sets a published figure beside a field."#;

pub(crate) fn run(options: &SweepOptions) -> ExitCode {
    if let Some(scheduler) = options.submit.scheduler() {
        return submit::run(scheduler, options);
    }
    match sweep(options) {
        Ok(0) => ExitCode::SUCCESS,
        Ok(failed) => program::fail("nicbench", &format!("{failed} runs failed; run again to try them again"), FAILED),
        Err(message) => program::fail("nicbench", &message, UNUSABLE),
    }
}

impl SweepOptions {
    fn grid(&self) -> Result<Sweep, String> {
        grid_of(&self.file, &figures(&self.published)?)
    }

    /// Checks that all points can be run.
    pub(crate) fn check(&self) -> Result<(), String> {
        let sweep = self.grid()?;
        planned(&jobs(&sweep, &self.file)?, 1, &self.parts).map(drop)
    }

    pub(crate) fn grid_file(&self) -> &Path {
        &self.file
    }

    pub(crate) fn submission(&self) -> &SubmitOptions {
        &self.submit
    }

    /// Returns the same options with all files in `folder`.
    pub(crate) fn inside(&self, folder: &Path) -> SweepOptions {
        let there = |path: &PathBuf| path.file_name().map_or_else(|| path.clone(), |name| folder.join(name));
        let parts = PartsOptions { costs: self.parts.costs.as_ref().map(there), ..self.parts.clone() };
        SweepOptions {
            file: there(&self.file),
            out: Some(there(&self.results_file())),
            jobs: self.jobs,
            published: self.published.iter().map(there).collect(),
            shard: self.shard,
            parts,
            submit: self.submit.clone(),
        }
    }

    /// Returns the results file of the whole sweep.
    pub(crate) fn results_file(&self) -> PathBuf {
        self.out.clone().unwrap_or_else(|| self.file.with_extension("jsonl"))
    }

    /// Returns the program's arguments that make one part; `{shard}` is a placeholder for the part.
    pub(crate) fn part_arguments(&self, shard: &str) -> Vec<String> {
        let text = |path: &Path| path.display().to_string();
        let mut all = vec!["sweep".to_string(), text(&self.file), "--shard".into(), shard.into()];
        all.extend(["--out".into(), text(&self.results_file())]);
        // Only given options are passed on, so that the printed command stays short.
        if self.parts.overlap.as_f64() != DEFAULT_OVERLAP {
            all.extend(["--overlap".into(), self.parts.overlap.as_f64().to_string()]);
        }
        let files = self.parts.costs.iter().map(|path| ("--costs", path));
        for (option, path) in files.chain(self.published.iter().map(|path| ("--published", path))) {
            all.extend([option.into(), text(path)]);
        }
        all.extend(self.parts.timed.then(|| "--timed".into()));
        all.extend(self.jobs.iter().flat_map(|jobs| ["--jobs".into(), jobs.to_string()]));
        all
    }
}

/// Returns the file of a part, beside the file of the whole sweep.
pub(crate) fn part_file(whole: &Path, shard: Shard) -> PathBuf {
    whole.with_extension(format!("{}-of-{}.jsonl", shard.number, shard.of))
}

/// Runs the sweep and returns the number of failed runs.
fn sweep(options: &SweepOptions) -> Result<usize, String> {
    let sweep = options.grid()?;
    let mut jobs = jobs(&sweep, &options.file)?;
    let (mut out, mut part) = (options.results_file(), None);
    if let Some(shard) = options.shard.map(PartArgument::part).transpose()? {
        // The plan covers only runs that parts may make, so real-time runs are removed before planning.
        jobs.retain(|job| options.parts.timed || !job.run.about().is_real);
        let (points, plan) = planned(&jobs, shard.of, &options.parts)?;
        let studies: Vec<_> = jobs.iter().map(|job| &job.study.name[..]).collect();
        let command = submit::shell_line("nicbench", &options.part_arguments(PLACE_OF_SHARD));
        part = Some(SweepPart::new(&points, &studies, &plan, shard, command));
        let mut point = 0..;
        jobs.retain(|_| point.next().is_some_and(|point| plan.has(shard.number, point)));
        out = part_file(&out, shard);
    }
    let (file, done) = results(&out, part.as_ref()).map_err(|error| about(&out, &error))?;
    let known: BTreeSet<_> = jobs.iter().map(SweepJob::name).collect();
    // Rows of an older grid stay in the file: deleting results is the user's decision.
    let strangers = done.difference(&known).count();
    jobs.retain(|job| !done.contains(&job.name()));
    // Runs in real time measure this machine, so no other run may compete for its cores.
    let (alone, spread): (Vec<_>, Vec<_>) = jobs.into_iter().partition(|job| job.run.about().is_real);
    let work = SweepWork {
        file: Mutex::new(file),
        machine: MachineInfo::this(),
        progress: SweepProgress::for_runs(spread.len() + alone.len())?,
        failed: AtomicUsize::new(0),
    };
    let threads = options.jobs.map_or(work.machine.cores, usize::from);
    // Virtual time does not depend on the load, so these runs share the cores.
    work.make(&spread, threads)?;
    work.make(&alone, 1)?;
    work.progress.bar.finish_and_clear();
    let failed = work.failed.into_inner();
    let made = spread.len() + alone.len() - failed;
    say!("{}: {made} new runs, {} already present", out.display(), done.len());
    if strangers > 0 {
        say!("{}: {strangers} of them are not of this grid; a report tells of them too", out.display());
    }
    Ok(failed)
}

/// Returns every point of the grid once, in the grid's order.
fn jobs<'a>(sweep: &'a Sweep, file: &Path) -> Result<Vec<SweepJob<'a>>, String> {
    let (mut jobs, mut known) = (Vec::new(), BTreeSet::new());
    for study in &sweep.studies {
        for (number, point) in study.points().into_iter().enumerate() {
            let wrong = |error| about(file, &format!("study `{}`: {error}", study.name));
            let run = Runnable::parse(&point.arguments()).map_err(wrong)?;
            if run.about().runs > 1 {
                let several =
                    format!("`{}` makes {} runs, and a point is one", point.arguments().join(" "), run.about().runs);
                return Err(wrong(several + ": say which, such as mode"));
            }
            let job = SweepJob { study, number, point, run };
            // Two combinations may give one command line, for example if a value has no effect on it.
            if known.insert(job.name()) {
                jobs.push(job);
            }
        }
    }
    Ok(jobs)
}

/// Assigns the points to `of` parts.
fn planned(jobs: &[SweepJob<'_>], of: u32, parts: &PartsOptions) -> Result<(Vec<PlannedPoint>, ShardPlan), String> {
    let mut seconds = BTreeMap::new();
    if let Some(path) = &parts.costs {
        let text = std::fs::read_to_string(path).map_err(|error| about(path, &error))?;
        let rows = read_rows(&text).map_err(|error| about(path, &error))?.rows;
        seconds = rows.into_iter().map(|row| ((row.study, row.arguments), row.seconds)).collect();
    }
    // A point without a known duration is assumed to take the median duration.
    let mut sorted: Vec<f64> = seconds.values().copied().collect();
    sorted.sort_by(f64::total_cmp);
    // The median is robust against a few very long points.
    let usual = sorted.get(sorted.len() / 2).copied().unwrap_or(1.0);
    let planned = |job: &SweepJob<'_>| {
        let (study, arguments) = job.name();
        let cost = seconds.get(&(study.clone(), arguments.clone())).copied().unwrap_or(usual);
        PlannedPoint::new(&study, &arguments, cost)
    };
    let points: Vec<PlannedPoint> = jobs.iter().map(planned).collect();
    let plan = ShardPlan::new(&points, of, parts.overlap.as_f64());
    Ok((points, plan))
}

/// Opens the results file for appending, and reads its runs.
fn results(path: &Path, part: Option<&SweepPart>) -> io::Result<(File, FinishedRuns)> {
    let mut file = File::options().read(true).write(true).create(true).truncate(false).open(path)?;
    // Two sweeps on one file would make every point twice and mix their rows.
    match file.try_lock() {
        Err(TryLockError::WouldBlock) => return Err(io::Error::other("another sweep is writing it")),
        // A file system without locks is no reason to refuse.
        Ok(()) | Err(TryLockError::Error(_)) => {}
    }
    let mut text = String::new();
    file.read_to_string(&mut text)?;
    let ResultsFile { part: of_file, rows, whole } = read_rows(&text).map_err(io::Error::other)?;
    // Removes an incomplete last row, left by a killed process.
    file.set_len(whole as u64)?;
    file.seek(SeekFrom::End(0))?;
    match (part, of_file) {
        // The first line identifies the part before any row, so that a later start can check it.
        (Some(part), None) if whole == 0 => file.write_all(first_line(part)?.as_bytes())?,
        (Some(part), Some(of_file)) => {
            let other = if of_file.shard == part.shard { None } else { Some("they are different parts") };
            if let Some(why) = part.differs(&of_file).or(other) {
                return Err(io::Error::other(format!("it is a part of another sweep: {why}; say another --out")));
            }
        }
        (Some(_), None) => return Err(io::Error::other("it has results of no part; say another --out")),
        // Rows of a part are incomplete by design and must not be extended as a whole sweep.
        (None, Some(of_file)) => {
            let (shard, of) = (of_file.shard, of_file.of);
            return Err(io::Error::other(format!(
                "it is for part {shard} of {of} only: say another --out, or --shard {shard}/{of}"
            )));
        }
        (None, None) => {}
    }
    let this = Build::this();
    // Rows of several builds are legal, because a sweep may continue after an update, but comparisons need care.
    if let Some(warning) = build::warning(rows.iter().map(|row| &row.build).chain([&this])) {
        say!("{}: {warning}; another --out makes all of them anew", path.display());
    }
    Ok((file, rows.into_iter().map(|row| (row.study, row.arguments)).collect()))
}

/// Finished runs by study and arguments.
type FinishedRuns = BTreeSet<(String, Vec<String>)>;

struct SweepJob<'a> {
    study: &'a SweepStudy,
    /// Number of the point in its study.
    number: usize,
    point: Point,
    run: Runnable,
}

impl SweepJob<'_> {
    /// Returns study and arguments.
    fn name(&self) -> (String, Vec<String>) {
        (self.study.name.clone(), self.point.arguments())
    }
}

struct SweepWork {
    file: Mutex<File>,
    machine: MachineInfo,
    progress: SweepProgress,
    failed: AtomicUsize,
}

impl SweepWork {
    /// Makes all jobs on `threads` threads. A failed run is reported and counted; a write error ends the sweep.
    fn make(&self, jobs: &[SweepJob<'_>], threads: usize) -> Result<(), String> {
        let next = AtomicUsize::new(0);
        let one_after_another = || {
            while let Some(job) = jobs.get(next.fetch_add(1, Ordering::Relaxed)) {
                self.make_one(job)?;
            }
            Ok(())
        };
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..threads.min(jobs.len())).map(|_| scope.spawn(one_after_another)).collect();
            threads.into_iter().try_for_each(|thread| thread.join().unwrap_or_else(|_| Err("a thread panicked".into())))
        })
    }

    fn make_one(&self, job: &SweepJob<'_>) -> Result<(), String> {
        let arguments = job.point.arguments();
        let told = |what: &str| {
            self.progress.bar.suspend(|| say!("nicbench: {}: {what}", arguments.join(" ")));
            self.failed.fetch_add(1, Ordering::Relaxed);
        };
        let begun = Instant::now();
        // A panic of one run must not end the other runs.
        let result = catch_unwind(AssertUnwindSafe(|| job.run.run()));
        let seconds = begun.elapsed().as_secs_f64();
        match result {
            Err(_) => told("it panicked, as told above"),
            Ok(Err(failure)) => told(&failure.to_string()),
            Ok(Ok(Made { whole: false, .. })) => told("data did not arrive whole"),
            Ok(Ok(made)) => {
                for run in made.facts.runs {
                    let row = ResultRow {
                        study: job.study.name.clone(),
                        title: job.study.title.clone(),
                        plot: job.study.plot.clone(),
                        point: job.number,
                        settings: job.point.settings.clone(),
                        arguments: arguments.clone(),
                        seed: made.facts.seed,
                        // A run that measures this machine is real, even if it uses virtual time inside.
                        clock: if job.run.about().is_real { RunClock::Real } else { made.facts.clock }.to_string(),
                        nic: made.facts.nic.clone(),
                        build: Build::this(),
                        machine: self.machine.clone(),
                        seconds,
                        run,
                    };
                    // One write per row keeps rows whole, even if the process is killed between two rows.
                    let line = serde_json::to_string(&row).map_err(|error| error.to_string())? + "\n";
                    let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
                    file.write_all(line.as_bytes()).map_err(|error| format!("results cannot be written: {error}"))?;
                }
            }
        }
        self.progress.one_more();
        Ok(())
    }
}

/// The progress of a sweep: a bar on a terminal, occasional lines in a file.
struct SweepProgress {
    bar: ProgressBar,
    /// Time of the last line. `None` on a terminal, which has a bar.
    told: Option<Mutex<Instant>>,
}

impl SweepProgress {
    fn for_runs(runs: usize) -> Result<SweepProgress, String> {
        let style =
            ProgressStyle::with_template("{wide_bar} {pos}/{len}, {eta} left").map_err(|error| error.to_string())?;
        let bar = ProgressBar::new(runs as u64).with_style(style);
        let told = (!io::stderr().is_terminal()).then(|| Mutex::new(Instant::now()));
        Ok(SweepProgress { bar, told })
    }

    fn one_more(&self) {
        self.bar.inc(1);
        let Some(told) = &self.told else { return };
        let mut told = told.lock().unwrap_or_else(PoisonError::into_inner);
        if told.elapsed() >= BETWEEN_LINES {
            *told = Instant::now();
            let (made, all, left) = (self.bar.position(), self.bar.length().unwrap_or(0), self.bar.eta().as_secs());
            say!("nicbench: {made} of {all} runs, {left} s left");
        }
    }
}

const DEFAULT_OVERLAP: f64 = 0.01;
const BETWEEN_LINES: Duration = Duration::from_secs(10);
