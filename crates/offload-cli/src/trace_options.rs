//! `--pcap`, `--trace` and `--trace-limit`: files for examining a run.

use crate::{files, options};
use clap::Args;
use core::fmt;
use offload_testbed::Tracer;
use std::fs::File;
use std::io::BufWriter;
use std::path::{Path, PathBuf};

/// The capture and the timeline of a run.
///
/// ```
/// use clap::Parser;
/// use offload_cli::trace_options::TraceOptions;
///
/// #[derive(Parser)]
/// struct Options {
///     #[command(flatten)]
///     trace: TraceOptions,
/// }
///
/// let options = Options::parse_from(["demo", "--trace", "run.pftrace", "--trace-limit", "8MiB"]);
/// assert_eq!(options.trace.trace_limit, 8 << 20);
/// assert!(Options::parse_from(["demo"]).trace.begin().unwrap().is_none());
/// ```
#[derive(Args, Clone, Debug)]
pub struct TraceOptions {
    /// Capture the traffic of the first host's NIC (pcapng, with the secrets of TLS handshakes). With several modes,
    /// each has its own file, with the mode's name before the extension
    #[arg(long, value_name = "FILE")]
    pub pcap: Option<PathBuf>,
    /// Write a timeline of hosts, NICs and the wire, to be opened at ui.perfetto.dev. It has lengths, sequence numbers
    /// and counters, no keys and no payload. The costs of hosts and devices include the writing
    #[arg(long, value_name = "FILE")]
    pub trace: Option<PathBuf>,
    /// Maximum size of the timeline; later events are only counted
    #[arg(long, value_name = "SIZE", value_parser = options::bytes, default_value = "64MiB", requires = "trace")]
    pub trace_limit: u64,
}

impl TraceOptions {
    /// Begins the timeline, if the option is given.
    ///
    /// # Errors
    /// A message, if the file cannot be written.
    pub fn begin(&self) -> Result<Option<TraceFile>, String> {
        self.trace.as_deref().map(|path| self.begin_at(path)).transpose()
    }

    /// Begins the timeline of one of several modes, if the option is given, in its own file with the mode's name.
    ///
    /// # Errors
    /// A message, if the file cannot be written.
    pub fn begin_for(&self, way: impl fmt::Display, several: bool) -> Result<Option<TraceFile>, String> {
        match &self.trace {
            Some(path) if several => self.begin_at(&files::named_for(path, way)).map(Some),
            _ => self.begin(),
        }
    }

    /// Begins a timeline in the file at `path`.
    ///
    /// # Errors
    /// A message, if the file cannot be written.
    pub fn begin_at(&self, path: &Path) -> Result<TraceFile, String> {
        let begun = File::create(path).and_then(|file| Tracer::new(BufWriter::new(file), self.trace_limit));
        let tracer = begun.map_err(|error| format!("{}: {error}", path.display()))?;
        Ok(TraceFile { path: path.to_owned(), tracer })
    }
}

/// A timeline under construction in a file.
///
/// ```
/// use clap::Parser;
/// use offload_cli::trace_options::TraceOptions;
///
/// #[derive(Parser)]
/// struct Options {
///     #[command(flatten)]
///     trace: TraceOptions,
/// }
///
/// let path = std::env::temp_dir().join(format!("example-{}.options.pftrace", std::process::id()));
/// let options = Options::parse_from(["demo".as_ref(), "--trace".as_ref(), path.as_os_str()]);
/// let file = options.trace.begin()?.unwrap();
/// file.tracer().application("server", "application");
/// assert!(file.end()?.contains("0 events"));
/// # std::fs::remove_file(&path).unwrap();
/// # Ok::<(), String>(())
/// ```
#[derive(Debug)]
pub struct TraceFile {
    path: PathBuf,
    tracer: Tracer,
}

impl TraceFile {
    /// Returns the tracer that records the run.
    pub fn tracer(&self) -> &Tracer {
        &self.tracer
    }

    /// Ends the timeline and returns its summary as text.
    ///
    /// # Errors
    /// A message, if the file could not be written.
    pub fn end(self) -> Result<String, String> {
        match self.tracer.finish() {
            Ok(summary) => Ok(format!("{}: {summary}", self.path.display())),
            Err(error) => Err(format!("{}: {error}", self.path.display())),
        }
    }
}
