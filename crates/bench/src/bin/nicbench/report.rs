//! `nicbench report`.

use clap::Args;
use offload_bench::program::{self, UNUSABLE};
use offload_bench::report::page;
use offload_bench::{published, sweep};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Results as one HTML page with everything inside: plots and tables, published figures beside ours
#[derive(Args, Debug)]
pub(crate) struct ReportOptions {
    /// Results of sweeps
    #[arg(required = true)]
    results: Vec<PathBuf>,
    /// Where the page goes
    #[arg(long, value_name = "FILE", default_value = "report.html")]
    html: PathBuf,
    /// Puts each plot into this directory too, as SVG
    #[arg(long, value_name = "DIR")]
    svg: Option<PathBuf>,
}

pub(crate) fn run(options: &ReportOptions) -> ExitCode {
    match report(options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => program::fail("nicbench", &message, UNUSABLE),
    }
}

fn report(options: &ReportOptions) -> Result<(), String> {
    let about = |path: &Path, error: &dyn core::fmt::Display| format!("{}: {error}", path.display());
    let mut rows = Vec::new();
    for path in &options.results {
        let text = std::fs::read_to_string(path).map_err(|error| about(path, &error))?;
        let wrong = |(line, error): (usize, String)| about(path, &format!("line {line} is no result: {error}"));
        rows.extend(sweep::read_rows(&text).map_err(wrong)?.0);
    }
    let (page, pictures) = page::page(&rows, &published::figures());
    std::fs::write(&options.html, page).map_err(|error| about(&options.html, &error))?;
    if let Some(directory) = &options.svg {
        std::fs::create_dir_all(directory).map_err(|error| about(directory, &error))?;
        for picture in pictures {
            let path = directory.join(picture.name + ".svg");
            std::fs::write(&path, picture.svg).map_err(|error| about(&path, &error))?;
        }
    }
    Ok(())
}
