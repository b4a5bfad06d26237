//! `nicbench sweep`: every point of a grid that is not yet in the results file.
//!
//! Runs in virtual time are spread over the cores, those in real time are made alone, afterwards. A row is written as
//! soon as it is there, so that a sweep that was killed goes on where it was.

use crate::runs::Runnable;
use clap::Args;
use core::sync::atomic::{AtomicUsize, Ordering};
use indicatif::{ProgressBar, ProgressStyle};
use offload_bench::program::{self, FAILED, UNUSABLE};
use offload_bench::sweep::{Machine, Point, Row, Study, Sweep, read_rows};
use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Mutex, PoisonError};

/// Any of the runs over a grid, into a file of JSON Lines; goes on where it was killed
#[derive(Args, Debug)]
pub(crate) struct SweepOptions {
    /// The grid, as TOML
    file: PathBuf,
    /// Where results go; those already there are not made again. Default: the grid's name with .jsonl
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Runs at once, in virtual time. Default: one for each core
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=1024))]
    jobs: Option<u16>,
}

pub(crate) fn run(options: &SweepOptions) -> ExitCode {
    match sweep(options) {
        Ok(0) => ExitCode::SUCCESS,
        Ok(failed) => program::fail("nicbench", &format!("{failed} runs failed; run again to try them again"), FAILED),
        Err(message) => program::fail("nicbench", &message, UNUSABLE),
    }
}

/// How many runs failed.
fn sweep(options: &SweepOptions) -> Result<usize, String> {
    let about = |path: &Path, error: &dyn core::fmt::Display| format!("{}: {error}", path.display());
    let text = std::fs::read_to_string(&options.file).map_err(|error| about(&options.file, &error))?;
    let sweep = Sweep::parse(&text).map_err(|error| about(&options.file, &error))?;
    let out = options.out.clone().unwrap_or_else(|| options.file.with_extension("jsonl"));
    let (file, done) = results(&out).map_err(|error| about(&out, &error))?;
    let (mut spread, mut alone) = (Vec::new(), Vec::new());
    for study in &sweep.studies {
        for point in study.points() {
            let wrong = |error| format!("{}: study `{}`: {error}", options.file.display(), study.name);
            let run = Runnable::parse(&point.arguments()).map_err(wrong)?;
            if !done.contains(&(study.name.clone(), point.arguments())) {
                let (real, job) = (run.real(), Job { study, point, run });
                if real { alone.push(job) } else { spread.push(job) }
            }
        }
    }
    let style =
        ProgressStyle::with_template("{wide_bar} {pos}/{len}, {eta} left").map_err(|error| error.to_string())?;
    let progress = ProgressBar::new((spread.len() + alone.len()) as u64).with_style(style);
    let work = Work { file: Mutex::new(file), machine: Machine::this(), progress, failed: AtomicUsize::new(0) };
    let threads = options.jobs.map_or(work.machine.cores, usize::from);
    work.make(&spread, threads)?;
    work.make(&alone, 1)?;
    work.progress.finish_and_clear();
    let made = spread.len() + alone.len();
    eprintln!("{}: {} runs were there, {made} made", out.display(), done.len());
    Ok(work.failed.into_inner())
}

/// The results file, ready to be written on, and the runs in it.
fn results(path: &Path) -> io::Result<(File, Done)> {
    let mut file = File::options().read(true).write(true).create(true).truncate(false).open(path)?;
    let mut text = String::new();
    file.read_to_string(&mut text)?;
    let (rows, whole) = read_rows(&text).map_err(|(line, error)| {
        io::Error::new(io::ErrorKind::InvalidData, format!("line {line} is no result: {error}"))
    })?;
    // What a kill left behind the last whole row goes.
    file.set_len(whole as u64)?;
    file.seek(SeekFrom::End(0))?;
    Ok((file, rows.into_iter().map(|row| (row.study, row.arguments)).collect()))
}

/// Runs by study and arguments.
type Done = BTreeSet<(String, Vec<String>)>;

struct Job<'a> {
    study: &'a Study,
    point: Point,
    run: Runnable,
}

struct Work {
    file: Mutex<File>,
    machine: Machine,
    progress: ProgressBar,
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
            threads.into_iter().try_for_each(|thread| {
                thread.join().unwrap_or_else(|_| Err("a run panicked; the others were made".into()))
            })
        })
    }

    fn make_one(&self, job: &Job<'_>) -> Result<(), String> {
        let arguments = job.point.arguments();
        let told = |what: &str| {
            self.progress.suspend(|| eprintln!("nicbench: {}: {what}", arguments.join(" ")));
            self.failed.fetch_add(1, Ordering::Relaxed);
        };
        match job.run.run() {
            Err(message) => told(&message),
            Ok(made) if !made.whole => told("data did not arrive whole"),
            Ok(made) => {
                for run in made.facts.runs {
                    let row = Row {
                        study: job.study.name.clone(),
                        title: job.study.title.clone(),
                        plot: job.study.plot.clone(),
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
        self.progress.inc(1);
        Ok(())
    }
}
