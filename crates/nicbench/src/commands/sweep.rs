//! `nicbench sweep`: every point of a grid that is not yet in the results file.
//!
//! Runs in virtual time are spread over the cores, those in real time are made alone, afterwards. A row is written as
//! soon as it is there, so that a sweep that was killed goes on where it was.

use super::report::{about, figures, grid_of};
use super::runs::{Made, Runnable};
use crate::program::{self, FAILED, UNUSABLE};
use crate::results::{Machine, Row, read_rows};
use crate::sweep::{Point, Study};
use clap::Args;
use core::sync::atomic::{AtomicUsize, Ordering};
use core::time::Duration;
use indicatif::{ProgressBar, ProgressStyle};
use std::collections::BTreeSet;
use std::fs::{File, TryLockError};
use std::io::{self, IsTerminal, Read, Seek, SeekFrom, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

/// Any of the runs over a grid, into a file of JSON Lines; goes on where it was killed
#[derive(Args, Debug)]
#[command(allow_negative_numbers = true, after_long_help = EXAMPLE, after_help = "--help tells what a grid looks like")]
pub(crate) struct SweepOptions {
    /// The grid, as TOML
    file: PathBuf,
    /// Where results go; those already there are not made again. Default: the grid's name with .jsonl
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Runs at once, in virtual time. Default: one for each core
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=1024))]
    jobs: Option<u16>,
    /// More published figures that the grid may name, as TOML like crates/bench/published/*.toml; may be given several times
    #[arg(long, value_name = "FILE")]
    published: Vec<PathBuf>,
}

const EXAMPLE: &str = r#"A grid has studies such as this:

[[study]]
name = "loss"
title = "Goodput by packet loss"
command = "iperf"                                    # any command that makes runs
fixed = { streams = 8, bytes = "16MiB" }             # its options, by their long names; a bare option is true
grid = { mode = ["tcp", "tls-nic"], loss = [0, 0.01], seed = [1, 2, 3] }
plot = { x = "loss", series = "mode", y = ["goodput_gbps", "tx_host_ns_per_byte.total"] }

Options that vary together are one of the grid, whose values are tables with a name:
who = [{ name = "CPU", mode = "tls-cpu", files = "nvme-cpu" }, { name = "NIC", mode = "tls-nic", files = "nvme-nic" }]

Each combination of the grid's values is one run. What is neither x nor series, as seeds are, is repetition: reports take the
median. y names fields of runs[] as the command prints them with --json; inner ones with a dot. "F, times less than L" in y
stands for how many times less of F there is than on the line L, for costs; "times more than", for speeds.
published = { FIELD = "ID" } in plot sets a published figure beside a field."#;

pub(crate) fn run(options: &SweepOptions) -> ExitCode {
    match sweep(options) {
        Ok(0) => ExitCode::SUCCESS,
        Ok(failed) => program::fail("nicbench", &format!("{failed} runs failed; run again to try them again"), FAILED),
        Err(message) => program::fail("nicbench", &message, UNUSABLE),
    }
}

/// How many runs failed.
fn sweep(options: &SweepOptions) -> Result<usize, String> {
    let sweep = grid_of(&options.file, &figures(&options.published)?)?;
    let out = options.out.clone().unwrap_or_else(|| options.file.with_extension("jsonl"));
    let (file, done) = results(&out).map_err(|error| about(&out, &error))?;
    let (mut spread, mut alone, mut known) = (Vec::new(), Vec::new(), BTreeSet::new());
    for study in &sweep.studies {
        for (number, point) in study.points().into_iter().enumerate() {
            let wrong = |error| about(&options.file, &format!("study `{}`: {error}", study.name));
            let run = Runnable::parse(&point.arguments()).map_err(wrong)?;
            if run.runs() > 1 {
                let several =
                    format!("`{}` makes {} runs, and a point is one", point.arguments().join(" "), run.runs());
                return Err(wrong(several + ": say which, such as mode"));
            }
            let name = (study.name.clone(), point.arguments());
            if known.insert(name.clone()) && !done.contains(&name) {
                let (real, job) = (run.real(), Job { study, number, point, run });
                if real { alone.push(job) } else { spread.push(job) }
            }
        }
    }
    let work = Work {
        file: Mutex::new(file),
        machine: Machine::this(),
        progress: Progress::of(spread.len() + alone.len())?,
        failed: AtomicUsize::new(0),
    };
    let threads = options.jobs.map_or(work.machine.cores, usize::from);
    work.make(&spread, threads)?;
    work.make(&alone, 1)?;
    work.progress.bar.finish_and_clear();
    let failed = work.failed.into_inner();
    let made = spread.len() + alone.len() - failed;
    eprintln!("{}: {} runs were there, {made} made", out.display(), done.len());
    let strangers = done.difference(&known).count();
    if strangers > 0 {
        eprintln!("{}: {strangers} of them are not of this grid; a report tells of them too", out.display());
    }
    Ok(failed)
}

/// The results file, ready to be written on, and the runs in it.
fn results(path: &Path) -> io::Result<(File, Done)> {
    let mut file = File::options().read(true).write(true).create(true).truncate(false).open(path)?;
    match file.try_lock() {
        Err(TryLockError::WouldBlock) => return Err(io::Error::other("another sweep is writing it")),
        // A file system that knows no locks is no reason not to write.
        Ok(()) | Err(TryLockError::Error(_)) => {}
    }
    let mut text = String::new();
    file.read_to_string(&mut text)?;
    let (rows, whole) = read_rows(&text).map_err(io::Error::other)?;
    // What a kill left behind the last whole row goes.
    file.set_len(whole as u64)?;
    file.seek(SeekFrom::End(0))?;
    Ok((file, rows.into_iter().map(|row| (row.study, row.arguments)).collect()))
}

/// Runs by study and arguments.
type Done = BTreeSet<(String, Vec<String>)>;

struct Job<'a> {
    study: &'a Study,
    /// Of the point, in its study.
    number: usize,
    point: Point,
    run: Runnable,
}

struct Work {
    file: Mutex<File>,
    machine: Machine,
    progress: Progress,
    failed: AtomicUsize,
}

impl Work {
    /// Makes all of them, so many at once. A run that fails is told and counted; a file that cannot be written ends it.
    fn make(&self, jobs: &[Job<'_>], threads: usize) -> Result<(), String> {
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

    fn make_one(&self, job: &Job<'_>) -> Result<(), String> {
        let arguments = job.point.arguments();
        let told = |what: &str| {
            self.progress.bar.suspend(|| eprintln!("nicbench: {}: {what}", arguments.join(" ")));
            self.failed.fetch_add(1, Ordering::Relaxed);
        };
        match catch_unwind(AssertUnwindSafe(|| job.run.run())) {
            Err(_) => told("it panicked, as told above"),
            Ok(Err(message)) => told(&message),
            Ok(Ok(Made { whole: false, .. })) => told("data did not arrive whole"),
            Ok(Ok(made)) => {
                for run in made.facts.runs {
                    let row = Row {
                        study: job.study.name.clone(),
                        title: job.study.title.clone(),
                        plot: job.study.plot.clone(),
                        point: job.number,
                        settings: job.point.settings.clone(),
                        arguments: arguments.clone(),
                        seed: made.facts.seed,
                        clock: made.facts.clock.to_string(),
                        version: env!("CARGO_PKG_VERSION").into(),
                        machine: self.machine.clone(),
                        run,
                    };
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

/// How far it is: a bar for a terminal, lines now and then for a file.
struct Progress {
    bar: ProgressBar,
    /// When a line was last written, where there is no terminal for a bar.
    told: Option<Mutex<Instant>>,
}

impl Progress {
    fn of(runs: usize) -> Result<Progress, String> {
        let style =
            ProgressStyle::with_template("{wide_bar} {pos}/{len}, {eta} left").map_err(|error| error.to_string())?;
        let bar = ProgressBar::new(runs as u64).with_style(style);
        let told = (!io::stderr().is_terminal()).then(|| Mutex::new(Instant::now()));
        Ok(Progress { bar, told })
    }

    fn one_more(&self) {
        self.bar.inc(1);
        let Some(told) = &self.told else { return };
        let mut told = told.lock().unwrap_or_else(PoisonError::into_inner);
        if told.elapsed() >= BETWEEN_LINES {
            *told = Instant::now();
            let (made, all, left) = (self.bar.position(), self.bar.length().unwrap_or(0), self.bar.eta().as_secs());
            eprintln!("nicbench: {made} of {all} runs, {left} s left");
        }
    }
}

const BETWEEN_LINES: Duration = Duration::from_secs(10);
