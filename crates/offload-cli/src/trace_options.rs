//! `--pcap`, `--trace` and `--trace-limit`: the files in which a run can be looked at.

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
    /// Capture what the first host's NIC sends and receives (pcapng, with the secrets of TLS handshakes). With several modes, one
    /// file each: its name gets the mode's before the extension
    #[arg(long, value_name = "FILE")]
    pub pcap: Option<PathBuf>,
    /// Write a timeline of hosts, NICs and the wire, to be opened at ui.perfetto.dev. It has lengths, sequence
    /// numbers and counters, no keys and no payload. The costs of hosts and devices include the writing
    #[arg(long, value_name = "FILE")]
    pub trace: Option<PathBuf>,
    /// How long that file may become; later events are counted only
    #[arg(long, value_name = "SIZE", value_parser = options::bytes, default_value = "64MiB", requires = "trace")]
    pub trace_limit: u64,
}

impl TraceOptions {
    /// Begins the timeline, if there is to be one.
    ///
    /// # Errors
    /// In words, if the file cannot be written.
    pub fn begin(&self) -> Result<Option<TraceFile>, String> {
        self.trace.as_deref().map(|path| self.begin_at(path)).transpose()
    }

    /// Begins the timeline of one of several ways, if there is to be one: in a file of its own, whose name has the way's.
    ///
    /// # Errors
    /// In words, if the file cannot be written.
    pub fn begin_for(&self, way: impl fmt::Display, several: bool) -> Result<Option<TraceFile>, String> {
        match &self.trace {
            Some(path) if several => self.begin_at(&files::named_for(path, way)).map(Some),
            _ => self.begin(),
        }
    }

    /// Begins a timeline in another file.
    ///
    /// # Errors
    /// In words, if the file cannot be written.
    pub fn begin_at(&self, path: &Path) -> Result<TraceFile, String> {
        let begun = File::create(path).and_then(|file| Tracer::new(BufWriter::new(file), self.trace_limit));
        let tracer = begun.map_err(|error| format!("{}: {error}", path.display()))?;
        Ok(TraceFile { path: path.to_owned(), tracer })
    }
}

/// A timeline that is being written into a file.
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
    /// What is to be told.
    pub fn tracer(&self) -> &Tracer {
        &self.tracer
    }

    /// Ends the timeline, and says what it holds.
    ///
    /// # Errors
    /// In words, if the file could not be written.
    pub fn end(self) -> Result<String, String> {
        match self.tracer.finish() {
            Ok(summary) => Ok(format!("{}: {summary}", self.path.display())),
            Err(error) => Err(format!("{}: {error}", self.path.display())),
        }
    }
}
