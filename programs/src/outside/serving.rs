//! The life of a program on an emulated host with a wire to the outside.
//!
//! ```text
//!   open: check the files, open the wire, begin capture and timeline                  OutsideHost::open
//!   a server: until SIGINT, SIGTERM or the loss of the wire; then pending answers      OutsideHost::until_interrupted
//!   a client: until done, or interrupted like a server                                OutsideHost::until_done
//!   end capture and timeline in any case                                              OutsideHost::end
//! ```

use super::mirroring::{self, Mirroring};
use super::{Outside, OutsideOptions, route_by_policies};
use core::convert::Infallible;
use core::net::IpAddr;
use core::time::Duration;
use ipsec::KeyedDevice;
use linux_mirror::MirrorListener;
use linux_mirror::sa::SaMirrorCounters;
use offload_base::counters::CounterSet;
use offload_bench::keys;
use offload_cli::files::{Claimed, Files};
use offload_cli::options::WireOptions;
use offload_cli::program;
use offload_cli::trace_options::{TraceFile, TraceOptions};
use offload_console::say;
use offload_testbed::attach::Gate;
use offload_testbed::bed::{BedHost, Builder};
use offload_testbed::{Capture, Testbed};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// An error message and the exit status.
pub type Stop = (String, u8);

/// Returns the error for a bad option, or for a file or a wire that cannot be used.
pub fn unusable(message: impl ToString) -> Stop {
    (message.to_string(), program::UNUSABLE)
}

/// Prints the result of a program and returns its exit status.
pub fn told(name: &str, result: Result<String, Stop>) -> std::process::ExitCode {
    match result {
        Ok(text) => program::write_out(name, &text),
        Err((message, status)) => program::fail(name, &message, status),
    }
}

/// The files of one run, besides the files named in [`OutsideOptions`].
#[derive(Clone, Debug)]
pub struct RunFiles<'a> {
    /// Files that are read, as in [`Files`].
    pub read: Vec<&'a Path>,
    /// The folder that is served, as in [`Files`].
    pub served: Option<&'a Path>,
    /// The file for received data.
    pub out: Option<&'a Path>,
    /// Options of the capture and the timeline.
    pub trace: &'a TraceOptions,
}

impl<'a> RunFiles<'a> {
    /// Returns the files of a run that has at most a capture and a timeline.
    pub fn new(trace: &'a TraceOptions) -> RunFiles<'a> {
        RunFiles { read: Vec::new(), served: None, out: None, trace }
    }

    /// Checks that no two of the files are the same, and that output files can be written. Leaves no new files behind.
    ///
    /// # Errors If a file cannot be used.
    pub fn check(&self, options: &OutsideOptions) -> Result<(), Stop> {
        self.claim(options).map(drop).map_err(unusable)
    }

    fn claim(&self, options: &OutsideOptions) -> Result<Claimed, String> {
        self.with(options, &options.number_files()?).claim()
    }

    /// Returns these files together with the files of the options.
    fn with<'b>(&'b self, options: &'b OutsideOptions, numbers: &'b [PathBuf]) -> Files<'b> {
        let of_options = options.keys.iter().chain(&options.key_changes).chain(numbers).map(PathBuf::as_path);
        let written = [self.out, self.trace.pcap.as_deref(), self.trace.trace.as_deref()];
        Files {
            read: self.read.iter().copied().chain(of_options).collect(),
            served: self.served,
            written: written.into_iter().flatten().collect(),
        }
    }
}

/// An emulated host with a wire to the outside, with its capture and its timeline.
pub struct OutsideHost {
    name: &'static str,
    options: OutsideOptions,
    outside: Outside,
    bed: Testbed,
    capture: Option<Capture>,
    trace: Option<TraceFile>,
    /// The mirror's socket. Removed on drop.
    agents: Option<MirrorListener>,
    mirrored: Option<SaMirrorCounters>,
}

impl OutsideHost {
    /// Checks the files, opens the end of the wire, and builds a host there, called `host`. `name` is the program's
    /// name.
    ///
    /// # Errors If two files are the same or one cannot be written, or the end or a key file cannot be used. No new
    /// file is left then.
    pub fn open(
        name: &'static str,
        host: &str,
        options: &OutsideOptions,
        wire: &WireOptions,
        files: &RunFiles<'_>,
    ) -> Result<OutsideHost, Stop> {
        OutsideHost::open_with(name, host, options, wire, files, Ok)
    }

    /// Opens a host like [`open`](Self::open); `behind` extends the testbed after the wire is open.
    ///
    /// # Errors As [`open`](Self::open), and if `behind` fails.
    pub fn open_with(
        name: &'static str,
        host: &str,
        options: &OutsideOptions,
        wire: &WireOptions,
        files: &RunFiles<'_>,
        behind: impl FnOnce(Builder) -> io::Result<Builder>,
    ) -> Result<OutsideHost, Stop> {
        options.check(wire).map_err(unusable)?;
        let claimed = files.claim(options).map_err(unusable)?;
        let outside = Outside::open(options).map_err(unusable)?;
        options.check_keys().map_err(unusable)?;
        let agents = mirroring::bind(options).map_err(unusable)?;
        let capture = files.trace.pcap.as_deref().map(begin_capture).transpose().map_err(unusable)?;
        let trace = files.trace.begin().map_err(unusable)?;
        let tracer = trace.as_ref().map(TraceFile::tracer);
        let bed = outside.bed(host, options, wire, (capture.as_ref(), tracer), behind).map_err(unusable)?;
        // From here on the files are used. On an earlier return, new files are deleted again.
        claimed.keep();
        Ok(OutsideHost { name, options: options.clone(), outside, bed, capture, trace, agents, mirrored: None })
    }

    /// Returns the host.
    pub fn host(&self) -> &BedHost {
        self.bed.host(0)
    }

    /// Returns the gate that holds a keying daemon's messages, for a Linux machine that does not use the front.
    pub fn gate(&self) -> Gate {
        self.outside.gate.clone()
    }

    /// Runs `work` with the host before it serves.
    pub fn set_up<T>(&mut self, work: impl Future<Output = T>) -> T {
        self.bed.run(work)
    }

    /// Returns the log for TLS secrets, if a capture is to contain them.
    pub fn secrets(&self) -> Option<Arc<dyn rustls::KeyLog>> {
        self.capture.clone().map(|capture| Arc::new(capture) as Arc<dyn rustls::KeyLog>)
    }

    /// Opens the services with `listen`, prints `instructions`, and serves until SIGINT, SIGTERM or the loss of the
    /// wire. Meanwhile keys change as the options say. Then `close` may finish pending work for ten seconds, or until a
    /// second signal.
    ///
    /// # Errors If nothing can be served, or the end of the wire is lost.
    pub fn until_interrupted<L>(
        &mut self,
        instructions: &str,
        listen: impl FnOnce(&BedHost) -> io::Result<L>,
        close: impl Future,
    ) -> Result<(), Stop> {
        self.until_interrupted_beside(
            instructions,
            |host| {
                let listening = listen(host)?;
                Ok(async move {
                    let _listening = listening;
                    core::future::pending().await
                })
            },
            close,
        )
    }

    /// Serves like [`until_interrupted`](Self::until_interrupted), for a program with work of its own, which `begin`
    /// starts.
    ///
    /// # Errors As [`until_interrupted`](Self::until_interrupted).
    pub fn until_interrupted_beside<W: Future<Output = Infallible>>(
        &mut self,
        instructions: &str,
        begin: impl FnOnce(&BedHost) -> io::Result<W>,
        close: impl Future,
    ) -> Result<(), Stop> {
        let (name, options, outside) = (self.name, &self.options, &self.outside);
        let host = self.bed.host(0).clone();
        let (agents, mirrored) = (&self.agents, &mut self.mirrored);
        let ended = self.bed.run(async {
            let mut mirroring =
                agents.as_ref().map(|agents| Mirroring::listen(agents, options, outside.gate.clone())).transpose()?;
            // Signals must be handled before the first output line, because scripts signal the program as soon as they
            // have read that line.
            let (mut interrupts, mut changes) = (Interrupts::listen()?, Changes::listen(options)?);
            let mut work = core::pin::pin!(begin(&host)?);
            // The instructions are optional: the host serves without a reader.
            let _ = program::write_out(name, instructions);
            let changed = async {
                match &mut changes {
                    Some(changes) => changes.make(&host).await,
                    None => core::future::pending().await,
                }
            };
            let mirror = async {
                match &mut mirroring {
                    Some(mirroring) => mirroring.mirror(&host).await,
                    None => core::future::pending().await,
                }
            };
            let ended = tokio::select! {
                biased;
                error = outside.gone() => Err(error),
                () = interrupts.next() => Ok(()),
                never = changed => match never {},
                never = mirror => match never {},
                never = &mut work => match never {},
            };
            // The counters are read before the mirror is dropped with this future.
            *mirrored = mirroring.as_ref().map(Mirroring::counters);
            if ended.is_ok() {
                interrupts.take_leave(close, host.runtime().sleep(FAREWELL)).await;
            }
            // Numbers were used until now, so they are stored after the farewell.
            write_numbers(&host);
            ended
        });
        ended.map_err(|error| match error.kind() {
            // The host served until the wire was lost, so this is no bad option.
            ErrorKind::NetworkDown => (error.to_string(), program::FAILED),
            _ => unusable(error),
        })
    }

    /// Runs a program that ends by itself. If a capture or a timeline is being written, SIGINT and SIGTERM end the
    /// program in order, so that the file is completed.
    ///
    /// # Errors If the program was interrupted, or the end of the wire was lost.
    pub fn until_done<T>(&mut self, work: impl Future<Output = T>) -> io::Result<T> {
        let (outside, writes) = (&self.outside, self.capture.is_some() || self.trace.is_some());
        let host = self.host().clone();
        self.bed.run(async {
            // Without an output file the default action of a signal is right: the program just ends.
            let mut interrupts = if writes { Some(Interrupts::listen()?) } else { None };
            let interrupted = async {
                match &mut interrupts {
                    Some(interrupts) => interrupts.next().await,
                    None => core::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                gone = outside.gone() => Err(gone),
                () = interrupted => Err(ErrorKind::Interrupted.into()),
                // The host lingers so that a lost closing packet can be sent again.
                done = async { (work.await, host.runtime().sleep(LINGER).await).0 } => Ok(done),
            }
        })
    }

    /// Ends the capture and the timeline, prints a summary of the timeline to standard error, and returns the counters.
    ///
    /// # Errors If a file could not be written.
    pub fn end(self) -> Result<CounterSet, Stop> {
        let mut counters = self.bed.counters();
        self.outside.count(&mut counters);
        self.mirrored.iter().for_each(|mirrored| counters.add(mirrored));
        // Dropping the testbed sends pending packets, which belong in the capture.
        drop(self.bed);
        let traced = self.trace.map(TraceFile::end).transpose();
        let captured = self.capture.map(|capture| capture.finish()).transpose();
        if let Some(summary) = traced.map_err(unusable)? {
            say!("{}: {summary}", self.name);
        }
        captured.map_err(|error| unusable(format!("the capture: {error}")))?;
        Ok(counters)
    }
}

/// Serves over the kernel's network, on a tokio runtime: `serve` runs until SIGINT or SIGTERM, then `close` finishes
/// pending work.
///
/// # Errors The error of `serve`; if signal handlers cannot be installed.
pub async fn kernel_until_interrupted(
    serve: impl Future<Output = io::Result<Infallible>>,
    close: impl Future,
) -> io::Result<()> {
    let mut interrupts = Interrupts::listen()?;
    tokio::select! {
        biased;
        () = interrupts.next() => {}
        never = serve => match never? {},
    }
    interrupts.take_leave(close, tokio::time::sleep(FAREWELL)).await;
    Ok(())
}

/// Begins a capture in the file at `path`.
///
/// # Errors The reason as text, if the file cannot be written.
pub fn begin_capture(path: &Path) -> Result<Capture, String> {
    Capture::create(path).map_err(|error| format!("{}: {error}", path.display()))
}

/// SIGINT and SIGTERM, received from its creation on.
struct Interrupts {
    interrupt: Signal,
    terminate: Signal,
}

impl Interrupts {
    fn listen() -> io::Result<Interrupts> {
        Ok(Interrupts { interrupt: signal(SignalKind::interrupt())?, terminate: signal(SignalKind::terminate())? })
    }

    /// Completes at the next signal.
    async fn next(&mut self) {
        tokio::select! {
            biased;
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }

    /// Runs `close` until it is done, the time is over, or the next signal arrives.
    async fn take_leave(&mut self, close: impl Future, time: impl Future) {
        tokio::select! {
            biased;
            _ = close => {}
            () = self.next() => {}
            _ = time => {}
        }
    }
}

fn write_numbers(host: &BedHost) {
    host.stack().with_device(|device| device.keying().into_iter().for_each(|keying| keying.write_numbers()));
}

/// The file of key changes, and the signal to read it.
struct Changes {
    file: PathBuf,
    addresses: [IpAddr; 2],
    hangup: Signal,
}

impl Changes {
    /// Returns the changes of the options, if there are any.
    fn listen(options: &OutsideOptions) -> io::Result<Option<Changes>> {
        let Some(file) = options.key_changes.clone() else { return Ok(None) };
        Ok(Some(Changes { file, addresses: options.addresses(), hangup: signal(SignalKind::hangup())? }))
    }

    /// Applies the file to the keys of `host` at each signal.
    async fn make(&mut self, host: &BedHost) -> Infallible {
        loop {
            self.hangup.recv().await;
            let now = host.now();
            let done = host.stack().with_device(|device| match device.keying() {
                Some(keying) => keys::change(&self.file, now, keying, &self.addresses),
                None => Err("the host has no ESP, so no keys can change".into()),
            });
            match done {
                Ok((added, refused)) => {
                    say!("keys changed as {} says, {added} SAs came", self.file.display());
                    refused.iter().for_each(|refused| say!("{refused}"));
                }
                Err(error) => say!("keys did not change: {error}"),
            }
            // An error may follow changes that were applied, so the routes are updated in any case.
            route_by_policies(host);
        }
    }
}

/// Time that a host stays after its program is done, longer than TCP's delay before it retransmits a FIN.
const LINGER: Duration = Duration::from_secs(1);
/// Time for clients to receive their last answers.
const FAREWELL: Duration = Duration::from_secs(10);
