//! `nicbench report`.

use crate::report::page;
use crate::results;
use crate::sweep::Sweep;
use clap::Args;
use offload_bench::published::{self, Figure};
use offload_cli::files::Files;
use offload_cli::program::{self, UNUSABLE};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// One HTML page about results, with everything inside: plots and tables, published figures beside ours
#[derive(Args, Debug)]
pub(crate) struct ReportOptions {
    /// The sweeps' results files
    #[arg(required = true)]
    results: Vec<PathBuf>,
    /// The grid of the results: gives the current titles and plots, in place of the ones stored in the results
    #[arg(long, value_name = "FILE")]
    grid: Option<PathBuf>,
    /// More published figures, as TOML like crates/bench/published/*.toml; may be given several times
    #[arg(long, value_name = "FILE")]
    published: Vec<PathBuf>,
    /// The file for the page
    #[arg(long, value_name = "FILE", default_value = "report.html")]
    html: PathBuf,
    /// Write each plot into this directory too, as SVG
    #[arg(long, value_name = "DIR")]
    svg: Option<PathBuf>,
    /// Write the values of each plot into this directory too, as CSV
    #[arg(long, value_name = "DIR")]
    csv: Option<PathBuf>,
}

pub(crate) fn run(options: &ReportOptions) -> ExitCode {
    match report(options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => program::fail("nicbench", &message, UNUSABLE),
    }
}

fn report(options: &ReportOptions) -> Result<(), String> {
    let figures = figures(&options.published)?;
    let grid = options.grid.as_ref().map(|grid| grid_of(grid, &figures)).transpose()?;
    let mut rows = Vec::new();
    for path in &options.results {
        let text = std::fs::read_to_string(path).map_err(|error| about(path, &error))?;
        rows.extend(results::read_rows(&text).map_err(|error| about(path, &error))?.rows);
    }
    if let Some(grid) = grid {
        for row in &mut rows {
            // Rows of studies outside of the grid keep their stored titles and plots.
            if let Some(study) = grid.studies.iter().find(|study| study.name == row.study) {
                (row.title, row.plot) = (study.title.clone(), study.plot.clone());
            }
        }
    }
    let (page, plots) = page::page(&rows, &figures);
    let mut made = vec![(options.html.clone(), page)];
    for (directory, extension) in [(&options.svg, "svg"), (&options.csv, "csv")] {
        let Some(directory) = directory else { continue };
        std::fs::create_dir_all(directory).map_err(|error| about(directory, &error))?;
        let text = |plot: &page::DrawnPlot| if extension == "svg" { plot.svg.clone() } else { Some(plot.csv.clone()) };
        let files =
            plots.iter().filter_map(|plot| Some((directory.join(format!("{}.{extension}", plot.name)), text(plot)?)));
        made.extend(files);
    }
    let read = options.results.iter().chain(&options.grid).chain(&options.published).map(PathBuf::as_path).collect();
    Files { read, served: None, written: made.iter().map(|(path, _)| path.as_path()).collect() }.claim()?.keep();
    made.iter().try_for_each(|(path, text)| std::fs::write(path, text).map_err(|error| about(path, &error)))
}

/// Reads a grid, and checks that all published figures it names are in `figures`.
pub(crate) fn grid_of(path: &Path, figures: &[Figure]) -> Result<Sweep, String> {
    let text = std::fs::read_to_string(path).map_err(|error| about(path, &error))?;
    let sweep = Sweep::parse(&text).map_err(|error| about(path, &error))?;
    sweep.check_published(figures).map_err(|error| about(path, &error))?;
    Ok(sweep)
}

/// Returns the built-in published figures and the figures of these files. A later figure replaces one of the same name.
pub(crate) fn figures(files: &[PathBuf]) -> Result<Vec<Figure>, String> {
    let mut figures = published::figures();
    for path in files {
        let text = std::fs::read_to_string(path).map_err(|error| about(path, &error))?;
        // The first match wins in a lookup, so later files go to the front.
        figures.splice(0..0, published::read(&text).map_err(|error| about(path, &error))?);
    }
    Ok(figures)
}

/// Formats an error with the path it concerns.
pub(crate) fn about(path: &Path, error: &dyn core::fmt::Display) -> String {
    format!("{}: {error}", path.display())
}
