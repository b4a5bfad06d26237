//! A program on an emulated host whose wire ends outside: what is opened before it, what ends it, what it leaves.
//!
//! ```text
//!   files are checked, then the wire is opened, then capture and timeline begin      OutsideHost::open
//!   a server: until SIGINT, SIGTERM or the wire goes; then answers may end           OutsideHost::until_interrupted
//!   a client: until it is done, or one of these                                      OutsideHost::until_done
//!   capture and timeline end, whatever came of it                                    OutsideHost::end
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

/// What went wrong, and the exit status that says so.
pub type Stop = (String, u8);

/// An option is bad, or a file or a wire cannot be used.
pub fn unusable(message: impl ToString) -> Stop {
    (message.to_string(), program::UNUSABLE)
}

/// What a program of this kind says at its end, and its exit status.
pub fn told(name: &str, result: Result<String, Stop>) -> std::process::ExitCode {
    match result {
        Ok(text) => program::write_out(name, &text),
        Err((message, status)) => program::fail(name, &message, status),
    }
}

/// The files of one run, beside those that [`OutsideOptions`] name.
#[derive(Clone, Debug)]
pub struct RunFiles<'a> {
    /// As in [`Files`].
    pub read: Vec<&'a Path>,
    /// As in [`Files`].
    pub served: Option<&'a Path>,
    /// What arrives.
    pub out: Option<&'a Path>,
    /// A capture and a timeline.
    pub trace: &'a TraceOptions,
}

impl<'a> RunFiles<'a> {
    /// No files but a capture and a timeline, if they are asked for.
    pub fn new(trace: &'a TraceOptions) -> RunFiles<'a> {
        RunFiles { read: Vec::new(), served: None, out: None, trace }
    }

    /// Sees that none of them is another one, and that those to be written can be; none is left that was not there.
    ///
    /// # Errors
    /// If one of them is of no use.
    pub fn check(&self, options: &OutsideOptions) -> Result<(), Stop> {
        self.claim(options).map(drop).map_err(unusable)
    }

    fn claim(&self, options: &OutsideOptions) -> Result<Claimed, String> {
        self.with(options, &options.number_files()?).claim()
    }

    /// All of them, with those of the options.
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

/// An emulated host whose wire ends outside, with what is written about it.
pub struct OutsideHost {
    name: &'static str,
    options: OutsideOptions,
    outside: Outside,
    bed: Testbed,
    capture: Option<Capture>,
    trace: Option<TraceFile>,
    /// Gone when this is dropped.
    agents: Option<MirrorListener>,
    mirrored: Option<SaMirrorCounters>,
}

impl OutsideHost {
    /// Checks the files, opens the end of the wire, and makes a host there, called `host`. `name` is the program's.
    ///
    /// # Errors
    /// If a file is one of the others or cannot be written, or the end or a file of keys cannot be used. Then no file is left
    /// that was not there.
    pub fn open(
        name: &'static str,
        host: &str,
        options: &OutsideOptions,
        wire: &WireOptions,
        files: &RunFiles<'_>,
    ) -> Result<OutsideHost, Stop> {
        OutsideHost::open_with(name, host, options, wire, files, Ok)
    }

    /// The same for a host that is more: `behind` adds to it, when its wire is open.
    ///
    /// # Errors
    /// As [`open`](Self::open); if `behind` says so.
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
        claimed.keep();
        Ok(OutsideHost { name, options: options.clone(), outside, bed, capture, trace, agents, mirrored: None })
    }

    /// The host.
    pub fn host(&self) -> &BedHost {
        self.bed.host(0)
    }

    /// Where what a keying daemon says waits, for a Linux that does not come by the front.
    pub fn gate(&self) -> Gate {
        self.outside.gate.clone()
    }

    /// Does something with the host before it serves.
    pub fn set_up<T>(&mut self, work: impl Future<Output = T>) -> T {
        self.bed.run(work)
    }

    /// Where secrets of TLS are to go, if there is a capture that they open.
    pub fn secrets(&self) -> Option<Arc<dyn rustls::KeyLog>> {
        self.capture.clone().map(|capture| Arc::new(capture) as Arc<dyn rustls::KeyLog>)
    }

    /// Has `listen` open what is to be served, says `instructions`, and serves until SIGINT or SIGTERM, or until the end of the
    /// wire goes. Until then, keys change as the options say. Then `close` may end what is under way, for ten seconds, or
    /// until somebody is out of patience.
    ///
    /// # Errors
    /// If nothing can be served; if the end of the wire goes.
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

    /// The same for a program with work of its own, which `begin` begins: it goes on until then.
    ///
    /// # Errors
    /// As [`until_interrupted`](Self::until_interrupted).
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
            // Signals are heard from the first line on that anybody can read.
            let (mut interrupts, mut changes) = (Interrupts::listen()?, Changes::listen(options)?);
            let mut work = core::pin::pin!(begin(&host)?);
            // Nobody has to read this to be served.
            let _written = program::write_out(name, instructions);
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
            *mirrored = mirroring.as_ref().map(Mirroring::counters);
            if ended.is_ok() {
                interrupts.take_leave(close, host.runtime().sleep(FAREWELL)).await;
            }
            // Some were used until now.
            write_numbers(&host);
            ended
        });
        ended.map_err(|error| match error.kind() {
            // It could serve until then.
            ErrorKind::NetworkDown => (error.to_string(), program::FAILED),
            _ => unusable(error),
        })
    }

    /// Runs a program that ends by itself. While a file is written that ought to be ended, SIGINT and SIGTERM end it too.
    ///
    /// # Errors
    /// If it was ended, or the end of the wire goes.
    pub fn until_done<T>(&mut self, work: impl Future<Output = T>) -> io::Result<T> {
        let (outside, writes) = (&self.outside, self.capture.is_some() || self.trace.is_some());
        let host = self.host().clone();
        self.bed.run(async {
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
                // The peer is to hear that connections were closed, though a packet is lost.
                done = async { (work.await, host.runtime().sleep(LINGER).await).0 } => Ok(done),
            }
        })
    }

    /// Ends capture and timeline, says on standard error what the timeline holds, and tells what was counted.
    ///
    /// # Errors
    /// If a file could not be written.
    pub fn end(self) -> Result<CounterSet, Stop> {
        let mut counters = self.bed.counters();
        self.outside.count(&mut counters);
        self.mirrored.iter().for_each(|mirrored| counters.add(mirrored));
        // What is still sent is written too.
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

/// The same over the kernel's network, on a runtime of tokio's: `serve` runs until SIGINT or SIGTERM, then `close` does what is
/// to be done.
///
/// # Errors
/// What `serve` fails with; if signals cannot be waited for.
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
/// # Errors
/// In words, if it cannot be written.
pub fn begin_capture(path: &Path) -> Result<Capture, String> {
    Capture::create(path).map_err(|error| format!("{}: {error}", path.display()))
}

/// SIGINT and SIGTERM, from the moment that this is there.
struct Interrupts {
    interrupt: Signal,
    terminate: Signal,
}

impl Interrupts {
    fn listen() -> io::Result<Interrupts> {
        Ok(Interrupts { interrupt: signal(SignalKind::interrupt())?, terminate: signal(SignalKind::terminate())? })
    }

    /// Ready when somebody wants the program to end.
    async fn next(&mut self) {
        tokio::select! {
            biased;
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }

    /// Lets what is under way end, until the time is over or somebody is out of patience.
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

/// The file that says what changes, and the signal to read it.
struct Changes {
    file: PathBuf,
    addresses: [IpAddr; 2],
    hangup: Signal,
}

impl Changes {
    /// Those of the options, if there are to be any.
    fn listen(options: &OutsideOptions) -> io::Result<Option<Changes>> {
        let Some(file) = options.key_changes.clone() else { return Ok(None) };
        Ok(Some(Changes { file, addresses: options.addresses(), hangup: signal(SignalKind::hangup())? }))
    }

    /// Changes keys of `host` at each signal.
    async fn make(&mut self, host: &BedHost) -> Infallible {
        loop {
            self.hangup.recv().await;
            let now = host.now();
            let done = host.stack().with_device(|device| match device.keying() {
                Some(keying) => keys::change(&self.file, now, keying, &self.addresses),
                None => Err("there is no ESP whose keys could change".into()),
            });
            match done {
                Ok((added, refused)) => {
                    say!("keys changed as {} says, {added} SAs came", self.file.display());
                    refused.iter().for_each(|refused| say!("{refused}"));
                }
                Err(error) => say!("keys did not change: {error}"),
            }
            // Of what was done before an error, too.
            route_by_policies(host);
        }
    }
}

/// How long a host stays after its program is done: longer than TCP waits before it sends a closing packet again.
const LINGER: Duration = Duration::from_secs(1);
/// What clients have to take their last answers in.
const FAREWELL: Duration = Duration::from_secs(10);
