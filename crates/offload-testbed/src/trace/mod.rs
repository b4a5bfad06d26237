//! Timelines of runs for Perfetto (<https://ui.perfetto.dev>): the events of each host, NIC and wire, with arrows from
//! a host's segment to the peer's segment.
//!
//! ```text
//!  application   TracedDevice (TCP, TLS, driver)   TracedPort (rings, NIC, engines)   wire
//!       \__________________|________________________________|________________________/
//!                        Tracer: tracks, arrows, limit --> perfetto: bytes of the file
//! ```
//!
//! A tracer observes from outside: through a device around the driver (`device`) and a port around the NIC (`port`). A
//! run without a tracer has neither and costs nothing more. A run with a tracer has the same virtual times and the same
//! bytes on the wire. The timeline holds lengths, types, sequence numbers and counters, and neither keys nor payload.
//!
//! - `perfetto`: the file format;
//! - `arrows`: the arrow of each packet;
//! - `units`: TLS records and NVMe/TCP PDUs in a stream.

mod arrows;
mod device;
mod perfetto;
mod port;
mod units;

pub(crate) use device::TracedDevice;
pub(crate) use port::{TracedNic, TracedPort};

use crate::runtime::lock;
use arrows::Arrows;
use core::fmt;
use offload_base::Instant;
use perfetto::Slice;
use std::collections::HashMap;
use std::io::{self, Write};
use std::sync::{Arc, Mutex, MutexGuard};

/// A writer of a timeline. Clones write to the same timeline.
///
/// ```
/// use nic_sim::NicConfig;
/// use nic_sim::wire::LinkConfig;
/// use offload_base::Seed;
/// use offload_host_stack::TcpConfig;
/// use offload_testbed::{Testbed, Tracer};
/// use tokio::io::AsyncWriteExt;
///
/// let path = std::env::temp_dir().join(format!("example-{}.pftrace", std::process::id()));
/// let tracer = Tracer::new(std::io::BufWriter::new(std::fs::File::create(&path)?), 1 << 20)?;
/// let mut bed = Testbed::builder(Seed(1))
///     .host("server", NicConfig::default(), TcpConfig::default())
///     .host("client", NicConfig::default(), TcpConfig::default())
///     .wire(0, 1, LinkConfig::default())
///     .traced(&tracer)
///     .build()?;
/// let (server, client) = (bed.host(0).clone(), bed.host(1).clone());
/// let mut listener = server.stack().listen(7, 8)?;
/// bed.run(async {
///     let (mut stream, _peer) =
///         tokio::try_join!(client.stack().connect(None, (server.address(), 7).into()), listener.accept())?;
///     stream.write_all(b"hello").await
/// })?;
/// let summary = tracer.finish()?;
/// assert_eq!(summary.left_out, 0);
/// assert_eq!(std::fs::metadata(&path)?.len(), summary.bytes);
/// # std::fs::remove_file(&path)?;
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone)]
pub struct Tracer {
    state: Arc<Mutex<TraceState>>,
}

/// Totals of a finished timeline.
///
/// See [`Tracer`] for an example.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TraceSummary {
    /// Size of the file in bytes.
    pub bytes: u64,
    /// Number of slices and counter values in the file.
    pub events: u64,
    /// Slices and counter values omitted because the size limit was reached.
    pub left_out: u64,
}

impl fmt::Display for TraceSummary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} events, {} bytes", self.events, self.bytes)?;
        if self.left_out > 0 {
            write!(
                f,
                "; the limit was reached, and {} events after it are missing: raise --trace-limit",
                self.left_out
            )?;
        }
        Ok(())
    }
}

/// The track of an application: its waits, with times and lengths.
///
/// ```
/// use offload_base::Instant;
/// use offload_testbed::Tracer;
///
/// let tracer = Tracer::new(std::io::sink(), 1 << 20)?;
/// let application = tracer.application("server", "application");
/// application.span("send", Instant::ZERO, Instant::from_nanos(700), 4096);
/// assert_eq!(tracer.finish()?.events, 1);
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct ApplicationTrack {
    tracer: Tracer,
    track: u64,
}

impl ApplicationTrack {
    /// Draws a span from `from` to `to`, in which the application did `name` with `bytes` bytes. Spans of one track
    /// must be disjoint or nested.
    pub fn span(&self, name: &str, from: Instant, to: Instant, bytes: u64) {
        self.tracer.lock().slice(&Slice {
            track: self.track,
            name,
            from,
            to,
            notes: &[("bytes", bytes)],
            flows: &[],
            ends: &[],
        });
    }
}

impl Tracer {
    /// Begins a timeline on `output`. The tracer writes in small pieces, so `output` should be buffered. The first
    /// event that would make the file longer than `limit` bytes ends the file; later events are counted.
    ///
    /// # Errors
    /// If `output` fails.
    pub fn new(output: impl Write + Send + 'static, limit: u64) -> io::Result<Tracer> {
        let mut state = TraceState {
            output: Output::Open(Box::new(output)),
            limit,
            summary: TraceSummary::default(),
            full: false,
            tracks: HashMap::new(),
            lanes: HashMap::new(),
            arrows: Arrows::default(),
        };
        state.write(&perfetto::beginning());
        Ok(Tracer { state: Arc::new(Mutex::new(state)) })
    }

    /// Returns the track `name` for an application of `host`. Equal names give the same track.
    pub fn application(&self, host: &str, name: &str) -> ApplicationTrack {
        let track = self.lock().track(host, name, TrackKind::Slices);
        ApplicationTrack { tracer: self.clone(), track }
    }

    /// Ends the timeline and closes its output. Later events are not written.
    ///
    /// # Errors
    /// If `output` fails now or has failed before.
    pub fn finish(&self) -> io::Result<TraceSummary> {
        let mut state = self.lock();
        match core::mem::replace(&mut state.output, Output::Finished) {
            Output::Open(mut output) => output.flush()?,
            Output::Failed(error) => return Err(error),
            Output::Finished => {}
        }
        Ok(state.summary)
    }

    fn lock(&self) -> MutexGuard<'_, TraceState> {
        lock(&self.state)
    }
}

impl fmt::Debug for Tracer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tracer").field("summary", &self.lock().summary).finish_non_exhaustive()
    }
}

enum Output {
    Open(Box<dyn Write + Send>),
    Failed(io::Error),
    Finished,
}

/// The kind of a track's content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TrackKind {
    Slices,
    Counter,
}

struct TraceState {
    output: Output,
    limit: u64,
    summary: TraceSummary,
    /// Whether the limit was reached. Nothing more is written then, not even a shorter event.
    full: bool,
    /// Tracks by host and name. The host of a host's own track is `""`.
    tracks: HashMap<(String, String), u64>,
    /// End of the last slice on each of several parallel tracks, where slices may overlap.
    lanes: HashMap<(String, String), Vec<Instant>>,
    arrows: Arrows,
}

impl TraceState {
    /// Returns the track `name` of `group`, such as a host. The first use writes the track's name to the file.
    fn track(&mut self, group: &str, name: &str, kind: TrackKind) -> u64 {
        let key = (group.to_owned(), name.to_owned());
        if let Some(track) = self.tracks.get(&key) {
            return *track;
        }
        // A host's tracks are shown below the host's own track.
        let parent = if group.is_empty() { None } else { Some(self.track("", group, TrackKind::Slices)) };
        // Perfetto reserves track 0.
        let track = self.tracks.len() as u64 + 1;
        self.tracks.insert(key, track);
        self.write(&perfetto::track(track, parent, name, kind == TrackKind::Counter));
        track
    }

    /// Returns a track that is free from `from` to `to` and reserves it: `name`, or a parallel track `name, 2`.
    fn lane(&mut self, group: &str, name: &str, from: Instant, to: Instant) -> u64 {
        let lanes = self.lanes.entry((group.to_owned(), name.to_owned())).or_default();
        let free = lanes.iter().position(|until| *until <= from).unwrap_or(lanes.len());
        match lanes.get_mut(free) {
            Some(until) => *until = to,
            None => lanes.push(to),
        }
        match free {
            0 => self.track(group, name, TrackKind::Slices),
            beside => self.track(group, &format!("{name}, {}", beside + 1), TrackKind::Slices),
        }
    }

    fn slice(&mut self, slice: &Slice<'_>) {
        // After the limit nothing more is written, so that the file ends with a complete packet.
        if self.full {
            self.summary.left_out += 1;
        } else {
            let written = self.write(&slice.packets());
            self.count(written);
        }
    }

    fn counter(&mut self, track: u64, at: Instant, value: u64) {
        if self.full {
            self.summary.left_out += 1;
        } else {
            let written = self.write(&perfetto::counter(track, at, value));
            self.count(written);
        }
    }

    fn count(&mut self, written: bool) {
        let counter = if written { &mut self.summary.events } else { &mut self.summary.left_out };
        *counter += 1;
    }

    /// Writes whole packets. Returns false if the limit was reached or an earlier write failed; [`Tracer::finish`]
    /// reports the error.
    fn write(&mut self, packets: &[u8]) -> bool {
        let Output::Open(output) = &mut self.output else { return false };
        if self.summary.bytes + packets.len() as u64 > self.limit {
            self.full = true;
        }
        if self.full {
            return false;
        }
        match output.write_all(packets) {
            Ok(()) => self.summary.bytes += packets.len() as u64,
            Err(error) => self.output = Output::Failed(error),
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::perfetto::tests::{ProtobufValue, decode, field};
    use super::*;
    use crate::bed::Testbed;
    use nic_sim::NicConfig;
    use nic_sim::wire::{Impairments, LinkConfig, Share};
    use offload_base::Seed;
    use offload_base::counters::CounterSet;
    use offload_host_stack::TcpConfig;
    use std::collections::{HashMap, HashSet};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    #[derive(Clone, Default)]
    struct Shared(Arc<Mutex<Vec<u8>>>);

    impl Write for Shared {
        fn write(&mut self, data: &[u8]) -> io::Result<usize> {
            lock(&self.0).extend_from_slice(data);
            Ok(data.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    const SECRET: &[u8; 16] = b"payload, and all";

    /// Sends a megabyte over a lossy wire. Returns the end time and the counters.
    fn transfer(tracer: Option<&Tracer>) -> (Instant, CounterSet) {
        let loss = Impairments { loss: Share::new(0.01).expect("a share"), ..Impairments::default() };
        let mut bed = Testbed::builder(Seed(1))
            .host("server", NicConfig::default(), TcpConfig::default())
            .host("client", NicConfig::default(), TcpConfig::default())
            .wire(0, 1, LinkConfig { impairments: loss, ..LinkConfig::default() })
            .traced(tracer)
            .build()
            .expect("a testbed");
        let (server, client) = (bed.host(0).clone(), bed.host(1).clone());
        let mut listener = server.stack().listen(7, 8).expect("a listener");
        let sending = server.spawn("send", async move {
            let mut stream = listener.accept().await?;
            stream.write_all(&SECRET.repeat(65_536)).await?;
            stream.shutdown().await
        });
        let received = bed.run(async move {
            let mut stream = client.stack().connect(None, (server.address(), 7).into()).await?;
            let mut all = Vec::new();
            stream.read_to_end(&mut all).await.map(|_| all.len())
        });
        assert_eq!(received.expect("a transfer"), 1 << 20);
        bed.run(sending).expect("a transfer");
        (bed.now(), bed.counters())
    }

    #[test]
    fn timeline_is_nested_and_changes_nothing() {
        let file = Shared::default();
        let tracer = Tracer::new(file.clone(), 1 << 30).expect("room");
        // The tracer only observes: one changed nanosecond would make traces useless for timing.
        assert_eq!(transfer(Some(&tracer)), transfer(None), "virtual time and counters stay the same");
        let summary = tracer.finish().expect("a file");
        let file = core::mem::take(&mut *lock(&file.0));
        assert_eq!((summary.bytes, summary.left_out), (file.len() as u64, 0));
        assert!(!file.windows(SECRET.len()).any(|bytes| bytes == SECRET), "no payload");

        let (mut names, mut used) = (HashMap::new(), HashSet::new());
        let (mut open, mut latest) = (HashMap::<u64, u32>::new(), HashMap::new());
        let (mut ended, mut passed) = (HashSet::new(), HashMap::<u64, u32>::new());
        for (_, packet) in decode(&file) {
            let ProtobufValue::Bytes(packet) = packet else { panic!("no packet") };
            let packet = decode(&packet);
            if let Some(ProtobufValue::Bytes(descriptor)) = field(&packet, 60) {
                let descriptor = decode(&descriptor);
                names.insert(number(&descriptor, 1), field(&descriptor, 2));
            }
            let Some(ProtobufValue::Bytes(event)) = field(&packet, 11) else { continue };
            let (event, at) = (decode(&event), number(&packet, 8));
            let track = number(&event, 11);
            let Some(Some(ProtobufValue::Bytes(name))) = names.get(&track) else { panic!("track {track} has no name") };
            used.insert(String::from_utf8_lossy(name).into_owned());
            assert!(latest.insert(track, at).is_none_or(|before| before <= at), "time goes back");
            // Perfetto needs properly nested slices in every track.
            let depth = open.entry(track).or_default();
            match number(&event, 9) {
                1 => *depth += 1,
                2 => *depth = depth.checked_sub(1).expect("what ends has begun"),
                kind => assert_eq!(kind, 4, "a counter"),
            }
            for (field, value) in &event {
                let (47 | 48, ProtobufValue::Number(arrow)) = (field, value) else { continue };
                assert!(!ended.contains(arrow), "an arrow goes on after its end");
                *passed.entry(*arrow).or_default() += 1;
                if *field == 48 {
                    ended.insert(*arrow);
                }
            }
        }
        assert!(open.values().all(|depth| *depth == 0), "all slices are closed");
        for track in
            ["TCP", "driver", "send ring: room, in packets", "rings", "NIC", "server to client", "client to server"]
        {
            assert!(used.contains(track), "{track} is empty; there are {used:?}");
        }
        // Lost segments have shorter arrows; a complete one passes five slices.
        let whole = ended.iter().filter(|arrow| passed[*arrow] == 5).count();
        assert!(whole > 700, "{whole} of {} arrows: host, NIC, wire, NIC, host", passed.len());
    }

    fn number(message: &[(u64, ProtobufValue)], wanted: u64) -> u64 {
        match field(message, wanted) {
            Some(ProtobufValue::Number(number)) => number,
            other => panic!("field {wanted} is {other:?}"),
        }
    }

    #[test]
    fn slices_that_overlap_are_on_tracks_side_by_side() {
        let tracer = Tracer::new(io::sink(), 1 << 20).expect("room");
        let mut state = tracer.lock();
        let mut lane = |from, to| state.lane("host", "TLS read", Instant::from_nanos(from), Instant::from_nanos(to));
        let (first, second) = (lane(0, 10), lane(5, 12));
        assert_ne!(first, second);
        assert_eq!([lane(10, 15), lane(12, 13), lane(15, 15), lane(15, 20)], [first, second, first, first]);
        let names: HashMap<u64, &str> = state.tracks.iter().map(|((_, name), track)| (*track, &name[..])).collect();
        assert_eq!((names[&first], names[&second]), ("TLS read", "TLS read, 2"));
    }

    #[test]
    fn limit_ends_the_file_after_a_whole_event() {
        let file = Shared::default();
        let tracer = Tracer::new(file.clone(), 10_000).expect("room");
        transfer(Some(&tracer));
        let summary = tracer.finish().expect("a file");
        assert!(summary.bytes <= 10_000 && summary.bytes == lock(&file.0).len() as u64);
        assert!(summary.left_out > 1000 && summary.to_string().contains("raise --trace-limit"), "{summary}");
        decode(&lock(&file.0));
    }
}
