//! Copies that are killed again and again in virtual time: at any call of a medium and at any byte of a wire, at either
//! end. No byte is wrong, no journaled block is sent or written twice, and a copy does not trust a journal over its
//! medium. Media fail at any call and lose unsynced bytes. All the same, each block that a copy or a journal counts as
//! present is on the medium.
//!
//! `RESERVOIR_SEEDS=10000 cargo test --release -p offload-reservoir --test all kill` runs as many schedules.

mod forgotten;
mod lost;
mod medium;
mod names;
mod patience;
mod rights;
mod rules;
mod shares;
mod third_party;
mod uploads;

use core::pin::Pin;
use core::sync::atomic::{AtomicU64, Ordering};
use core::task::{Context, Poll};
use core::time::Duration;
use ktls_offload::InPlace;
use medium::{MediumMount, RamDisk};
use offload_base::{Clock, Rng, Seed};
use offload_reservoir::attributes::Preserve;
use offload_reservoir::blocks::Blocks;
use offload_reservoir::copy::{Copy, CopyError, CopyLocation, CopyOutcome, PlainDialer};
use offload_reservoir::name::Name;
use offload_reservoir::{Server, ServerLimits, Shell, Task};
use offload_testbed::{Runtime, VirtualTime};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio::io::{AsyncRead, AsyncWrite, DuplexStream, ReadBuf};
use tokio::sync::Notify;

#[test]
fn kills_cost_no_byte_and_no_block_twice() {
    let number = |name: &str, otherwise: u64| std::env::var(name).map_or(otherwise, |text| text.parse().unwrap());
    let (first, seeds) = (number("RESERVOIR_FIRST_SEED", 0), number("RESERVOIR_SEEDS", 1500));
    let mut told = ScheduleCounts::default();
    for seed in first..first + seeds {
        KillSchedule::new(Seed(seed)).run(&mut told);
    }
    println!("{seeds} schedules: {told:?}");
    // Smaller counts would mean that the test kills too few processes.
    assert!(told.kills > seeds && told.vouched > seeds && told.healed > 0 && told.power > 0, "{told:?}");
    assert!(told.losses > seeds / 4, "{told:?}");
}

/// A copy reports a full disk, and loses no complete blocks: as soon as there is room, the copy resumes.
#[test]
fn full_disk_is_reported_and_the_next_copy_resumes() {
    for (way, says) in [
        (CopyRoute::Pull, "no storage space"),
        (CopyRoute::Push, "disk is full"),
        (CopyRoute::Here, "no storage space"),
    ] {
        let schedule = KillSchedule::with(Seed(7), way, vec![vec![7; 30 << 10]]);
        let mut executor = VirtualTime::new();
        let shell = shell(Arc::new(executor.handle()));
        schedule.destination().set_room(20 << 10);
        let outcome = schedule.whole_run(&mut executor, &shell);
        let told = &outcome.failed[0].1;
        assert!(told.to_lowercase().contains(says), "{told}");
        schedule.destination().set_room(u64::MAX);
        let outcome = schedule.whole_run(&mut executor, &shell);
        assert!(outcome.failed.is_empty() && outcome.resumed > 0, "{way:?}: {outcome:?}");
        schedule.check_files();
    }
}

/// An unreadable source fails under its own name, and the copy copies the other files.
#[test]
fn a_file_that_cannot_be_read_fails_alone() {
    for way in [CopyRoute::Pull, CopyRoute::Push, CopyRoute::Here] {
        let schedule = KillSchedule::with(Seed(8), way, vec![vec![1; 9000], vec![2; 9000], vec![3; 9000]]);
        let source = if way == CopyRoute::Pull { &schedule.there } else { &schedule.here };
        source.spoil(schedule.files[1].0.path(), 5000);
        let mut executor = VirtualTime::new();
        let timers = executor.handle();
        let shell = shell(Arc::new(executor.handle()));
        let began = timers.now();
        let outcome = schedule.whole_run(&mut executor, &shell);
        assert_eq!((outcome.copied, outcome.failed.len()), (2, 1), "{way:?}: {outcome:?}");
        // An error of this end is reported at once and in its own words.
        if way != CopyRoute::Pull {
            assert!(outcome.failed[0].1.ends_with("file-1: a sector cannot be read"), "{outcome:?}");
            assert!(timers.now() - began < Duration::from_secs(1), "{way:?} waits for an answer");
        }
        assert!(outcome.failed[0].0.ends_with("file-1"), "{outcome:?}");
        assert_eq!(schedule.destination().get(schedule.target(&schedule.files[1].0).path()), None);
    }
}

/// Some system files have bytes but the size zero. A copy must not silently lose the bytes.
#[test]
fn file_without_a_size_is_refused() {
    let there = tempfile::tempdir().unwrap();
    let mut executor = VirtualTime::new();
    let shell = shell(Arc::new(executor.handle()));
    let nowhere = PlainDialer::new(|_: &str, _| Err::<DuplexStream, _>(io::ErrorKind::NotFound.into()));
    let copy = Copy::new(shell, Arc::new(nowhere));
    let (from, to) = (Path::new("/proc/self/status"), there.path().join("copy"));
    let outcome =
        executor.block_on(copy.run(&[CopyLocation::local(from).unwrap()], &CopyLocation::local(&to).unwrap())).unwrap();
    assert!(outcome.failed.len() == 1 && outcome.failed[0].1.contains("does not tell its size"), "{outcome:?}");
    assert!(!to.exists());
}

/// A copy reports a source that changes during the copy, and makes no file.
#[test]
fn source_that_changes_during_a_copy_is_reported() {
    for way in [CopyRoute::Pull, CopyRoute::Push, CopyRoute::Here] {
        let schedule = KillSchedule::with(Seed(9), way, vec![vec![1; 30 << 10]]);
        let source = if way == CopyRoute::Pull { &schedule.there } else { &schedule.here };
        source.touch_after(schedule.files[0].0.path(), 8);
        let mut executor = VirtualTime::new();
        let shell = shell(Arc::new(executor.handle()));
        let outcome = schedule.whole_run(&mut executor, &shell);
        assert!(outcome.failed.len() == 1 && outcome.failed[0].1.contains("was changed"), "{way:?}: {outcome:?}");
        assert_eq!(schedule.destination().get(schedule.target(&schedule.files[0].0).path()), None);
    }
}

/// A copy reports extended attributes that the server or the destination's medium cannot store, before it copies a
/// byte.
#[test]
fn unsupported_attributes_are_reported_at_once() {
    let preserve = Preserve { mode: false, extended: true };
    // HTTP encodes one such byte as three.
    let cases = [
        (CopyRoute::Push, 1000, "leave xattrs out"),
        (CopyRoute::Pull, 1000, "leave xattrs out"),
        (CopyRoute::Here, 1000, "leave xattrs out"),
        (CopyRoute::Push, 60_000, "go with a file"),
        (CopyRoute::Pull, 60_000, "too many"),
    ];
    for (way, bytes, says) in cases {
        let schedule = KillSchedule::with(Seed(10), way, vec![vec![1; 30 << 10]]);
        let source = if way == CopyRoute::Pull { &schedule.there } else { &schedule.here };
        source.give_attribute(schedule.files[0].0.path(), b"user.a", &vec![0xff; bytes]);
        let mut executor = VirtualTime::new();
        let shell = shell(Arc::new(executor.handle()));
        let (server, client) = (schedule.server(&shell, None), schedule.here.mount(None));
        let copy = schedule.copy(&shell, &server.0, &schedule.wire(&client, &server.1), false).preserve(preserve);
        let (sources, to) = schedule.places(&client);
        let outcome = executor.block_on(copy.run(&sources, &to)).unwrap();
        assert!(outcome.failed.len() == 1 && outcome.failed[0].1.contains(says), "{way:?}: {outcome:?}");
        assert_eq!(outcome.bytes, 0, "{way:?}: {outcome:?}");
        let left = schedule.destination().paths();
        assert_eq!(left.len(), usize::from(way == CopyRoute::Here), "{way:?}: {left:?}");
    }
}

/// The counts of all schedules.
#[derive(Debug, Default)]
struct ScheduleCounts {
    kills: u64,
    power: u64,
    /// Blocks in a journal after a kill.
    vouched: u64,
    healed: u64,
    /// Schedules with a loss of unsynced bytes or names.
    losses: u64,
}

/// The direction of a copy.
#[derive(Clone, Copy, Debug, PartialEq)]
enum CopyRoute {
    Pull,
    Push,
    Relay,
    Here,
}

struct KillSchedule {
    seed: Seed,
    random: Rng,
    way: CopyRoute,
    block: u64,
    streams: usize,
    files: Vec<(Name, Vec<u8>)>,
    /// The disks of the client and of the server. One disk has the sources and one has the destinations. It can be the
    /// same disk.
    here: RamDisk,
    there: RamDisk,
    /// The blocks that the medium has lost once.
    lost: BTreeSet<(PathBuf, u64)>,
}

impl KillSchedule {
    fn new(seed: Seed) -> KillSchedule {
        let mut random = seed.stream("schedule");
        let way = [CopyRoute::Pull, CopyRoute::Push, CopyRoute::Relay, CopyRoute::Here][random.below(4) as usize];
        let block = 1024 << random.below(3);
        let streams = 1 + random.below(4) as usize;
        let files = (0..1 + random.below(3)).map(|number| {
            let size = match random.below(5) {
                0 => random.below(3) * block,
                1 => random.below(1024),
                _ => random.below(40 << 10),
            };
            let mut bytes = vec![0; size as usize];
            random.fill(&mut bytes);
            (Name::from_url(&format!("/file-{number}")).unwrap(), bytes)
        });
        let files: Vec<_> = files.collect();
        KillSchedule { random, ..KillSchedule::for_files(seed, way, block, streams, files) }
    }

    /// Makes a schedule with blocks of 1 KiB, two streams, and these files.
    fn with(seed: Seed, way: CopyRoute, files: Vec<Vec<u8>>) -> KillSchedule {
        let named = files.into_iter().enumerate();
        let named = named.map(|(number, bytes)| (Name::from_url(&format!("/file-{number}")).unwrap(), bytes));
        KillSchedule::for_files(seed, way, 1024, 2, named.collect())
    }

    fn for_files(seed: Seed, way: CopyRoute, block: u64, streams: usize, files: Vec<(Name, Vec<u8>)>) -> KillSchedule {
        let random = seed.stream("rounds");
        let (here, there) = (RamDisk::new(seed.derive("here")), RamDisk::new(seed.derive("there")));
        for (name, bytes) in &files {
            if matches!(way, CopyRoute::Push | CopyRoute::Here) { &here } else { &there }.put(name, bytes);
        }
        KillSchedule { seed, random, way, block, streams, files, here, there, lost: BTreeSet::new() }
    }

    /// Returns the name of a file at the destination.
    fn target(&self, name: &Name) -> Name {
        Name::from_url(&format!("/to{}", name.to_url())).unwrap()
    }

    fn destination(&self) -> &RamDisk {
        if matches!(self.way, CopyRoute::Pull | CopyRoute::Here) { &self.here } else { &self.there }
    }

    /// Runs a copy without a kill.
    fn whole_run(&self, executor: &mut VirtualTime, shell: &Shell) -> CopyOutcome {
        let (server, client) = (self.server(shell, None), self.here.mount(None));
        let copy = self.copy(shell, &server.0, &self.wire(&client, &server.1), false).retries(2);
        let (sources, to) = self.places(&client);
        let outcome = executor.block_on(copy.run(&sources, &to)).unwrap();
        self.here.crash(false);
        self.there.crash(false);
        outcome
    }

    /// Returns a wire that never breaks.
    fn wire(&self, client: &MediumMount, server: &MediumMount) -> Arc<WireFailure> {
        let bytes = AtomicU64::new(u64::MAX);
        Arc::new(WireFailure { bytes, ends: [client.clone(), server.clone()], died: Notify::new() })
    }

    fn run(mut self, told: &mut ScheduleCounts) {
        let verify = self.random.below(3) == 0;
        let mut executor = VirtualTime::new();
        let runtime = Arc::new(executor.handle());
        let shell = shell(runtime);
        let mut server = self.server(&shell, None);
        let kills = self.random.below(6);
        for round in 0.. {
            let last = round >= kills;
            let lied = self.destination().lied();
            self.lost.extend(lied.into_iter().map(|(path, offset)| (path, offset / self.block)));
            let vouched = self.vouched();
            told.vouched += vouched.len() as u64;
            self.destination().take_written();
            let calls = |random: &mut Rng| (!last && random.below(3) == 0).then(|| 1 + random.below(60));
            let client = self.here.mount(calls(&mut self.random));
            let calls = calls(&mut self.random);
            // In some rounds the server survives the client's death, with all its state.
            if calls.is_some() || self.there.kills() || server.1.is_dead() || self.random.below(2) == 0 {
                self.there.crash(false);
                server = self.server(&shell, calls);
            }
            if verify && self.random.below(2) == 0 {
                let writes = 1 + self.random.below(20);
                self.destination().lie(writes);
            }
            let bytes = if last { u64::MAX } else { 1 + self.random.below(60 << 10) };
            // A copy that ends because of a failed medium is repeated on a working medium.
            let fails = round <= kills && self.random.below(3) == 0;
            let calls = fails.then(|| 1 + self.random.below(150));
            self.destination().lose_in(calls);
            let wire = Arc::new(WireFailure {
                bytes: AtomicU64::new(bytes),
                ends: [client.clone(), server.1.clone()],
                died: Notify::new(),
            });
            let copy = self.copy(&shell, &server.0, &wire, verify);
            let (sources, to) = self.places(&client);
            let ended = executor.block_on(async {
                tokio::select! {
                    biased;
                    () = wire.died.notified() => None,
                    outcome = copy.run(&sources, &to) => Some(outcome),
                }
            });
            let dead = wire.is_dead();
            // The tasks of the dead processes notice the end.
            executor.run_for(core::time::Duration::from_secs(1));
            self.destination().lose_in(None);
            // A file that is opened after a loss may still get the error.
            let has_lost = self.destination().losses() > 0;
            self.check_written(&vouched);
            let whole =
                |outcome: &Result<CopyOutcome, CopyError>| outcome.as_ref().is_ok_and(|copy| copy.failed.is_empty());
            if last && has_lost && !ended.as_ref().is_some_and(whole) {
                assert!(round < kills + 10, "{}: {ended:?}", self.what());
                continue;
            }
            if last {
                let outcome =
                    ended.expect("nobody was killed").unwrap_or_else(|error| panic!("{}: {error}", self.what()));
                assert!(outcome.failed.is_empty(), "{}: {:?}", self.what(), outcome.failed);
                told.healed += outcome.healed;
                if !has_lost {
                    self.check_moved(&vouched, &copy, &outcome);
                }
                if round == 0 {
                    self.check_names();
                }
                told.losses += u64::from(has_lost);
                break;
            }
            assert!(dead || has_lost || ended.as_ref().is_some_and(whole), "{}: {ended:?}", self.what());
            told.kills += u64::from(dead);
            let (power_here, power_there) = (self.random.below(4) == 0, self.random.below(4) == 0);
            self.here.crash(power_here);
            if server.1.is_dead() || power_there {
                self.there.crash(power_there);
            }
            told.power += u64::from(power_here) + u64::from(power_there);
            self.corrupt_sometimes();
        }
        self.check_files();
    }

    fn what(&self) -> String {
        format!("seed {}, {:?}, blocks of {}, {} streams", self.seed.0, self.way, self.block, self.streams)
    }

    fn server(&self, shell: &Shell, calls: Option<u64>) -> (Server, MediumMount) {
        let mounted = self.there.mount(calls);
        (Server::new(Arc::new(mounted.clone()), shell.clone(), ServerLimits::default()).open_to_all(), mounted)
    }

    fn copy(&self, shell: &Shell, server: &Server, wire: &Arc<WireFailure>, verify: bool) -> Copy {
        let (server, wire, spawner) = (server.clone(), wire.clone(), shell.clone());
        let dial = PlainDialer::new(move |_: &str, _| {
            let (ours, theirs) = tokio::io::duplex(1 << 12);
            let (server, theirs) = (server.clone(), FailingStream { stream: theirs, fate: wire.clone() });
            spawner.spawn(async move { server.serve(theirs, "client").await });
            Ok(FailingStream { stream: ours, fate: wire.clone() })
        });
        let copy = Copy::new(shell.clone(), Arc::new(dial)).streams(self.streams).resume(true).verify(verify);
        copy.block(self.block).unwrap()
    }

    fn places(&self, client: &MediumMount) -> (Vec<CopyLocation>, CopyLocation) {
        let on_server = |name: &Name| CopyLocation::parse(&format!("https://server{}", name.to_url()), None).unwrap();
        let on_client = |name: &Name| CopyLocation::in_folder(Arc::new(client.clone()), name.clone());
        let to = Name::from_url("/to").unwrap();
        let sources = self.files.iter().map(|(name, _)| match self.way {
            CopyRoute::Pull | CopyRoute::Relay => on_server(name),
            CopyRoute::Push | CopyRoute::Here => on_client(name),
        });
        // A single file would take the name of the folder.
        let to = if self.files.len() == 1 { self.target(&self.files[0].0) } else { to };
        let to = if matches!(self.way, CopyRoute::Pull | CopyRoute::Here) { on_client(&to) } else { on_server(&to) };
        (sources.collect(), to)
    }

    /// Returns the blocks that a journal counts as present and that the medium has. It must have them at any time,
    /// because a surviving server remembers the lost blocks.
    fn vouched(&self) -> BTreeSet<(PathBuf, u64)> {
        let mut vouched = BTreeSet::new();
        for (name, bytes) in &self.files {
            let target = self.target(name);
            let blocks = Blocks::new(bytes.len() as u64, self.block).unwrap();
            let (journal, data) = (hidden(&target, "journal"), hidden(&target, "part"));
            let medium = self.destination();
            let (Some(text), Some(there)) = (medium.get(&journal), medium.get(&data)) else { continue };
            // A later line about a block may withdraw an earlier line.
            let mut lines = BTreeMap::new();
            for line in text.split(|byte| *byte == b'\n').skip(1) {
                let line = str::from_utf8(line).ok().and_then(|line| line.rsplit_once(' '));
                let Some((text, check)) = line else { continue };
                if check == format!("{:08x}", crc32c::crc32c(text.as_bytes())) {
                    let mut words = text.split(' ');
                    let number: u64 = words.next().unwrap().parse().unwrap();
                    lines.insert(number, words.next().unwrap());
                }
            }
            for (number, crc) in lines {
                let range = blocks.range(number);
                let there = there.get(range.start as usize..range.end as usize);
                let was_lost = self.lost.contains(&(data.clone(), number));
                if !was_lost && there.is_some_and(|there| format!("{:08x}", crc32c::crc32c(there)) == crc) {
                    let durable = medium.durable(&data).unwrap_or_default();
                    let durable = durable.get(range.start as usize..range.end as usize);
                    assert!(durable == there, "{}: block {number} is not on the medium", self.what());
                    vouched.insert((data.clone(), number));
                }
            }
        }
        vouched
    }

    /// Checks that no write of the last round touched a block of `vouched`.
    fn check_written(&self, vouched: &BTreeSet<(PathBuf, u64)>) {
        for (name, range) in self.destination().take_written() {
            for block in range.start / self.block..range.end.div_ceil(self.block) {
                assert!(!vouched.contains(&(name.clone(), block)), "{}: block {block} is written twice", self.what());
            }
        }
    }

    /// Checks that no block of `vouched` was sent again.
    fn check_moved(&self, vouched: &BTreeSet<(PathBuf, u64)>, copy: &Copy, outcome: &CopyOutcome) {
        let mut needed = 0;
        for (name, bytes) in &self.files {
            let blocks = Blocks::new(bytes.len() as u64, self.block).unwrap();
            let data = hidden(&self.target(name), "part");
            let is_vouched = |number: &u64| vouched.contains(&(data.clone(), *number));
            let missing = (0..blocks.count()).filter(|number| !is_vouched(number)).map(|number| blocks.range(number));
            needed += missing.map(|range| range.end - range.start).sum::<u64>();
        }
        let moved = copy.progress().bytes();
        assert!(moved <= needed + outcome.healed * self.block, "{}: {moved} bytes, not {needed}", self.what());
    }

    /// Corrupts a journaled block in some rounds.
    fn corrupt_sometimes(&mut self) {
        if self.random.below(4) != 0 {
            return;
        }
        if let Some((name, number)) = self.vouched().pop_first() {
            self.destination().corrupt(&name, (number * self.block) as usize);
            self.lost.insert((name, number));
        }
    }

    /// Checks after a run without a kill that the files keep their names in a power failure.
    fn check_names(&self) {
        for (name, _) in &self.files {
            let is_durable = self.destination().is_name_durable(&self.target(name));
            assert!(is_durable, "{}: the name {name} is not on the medium", self.what());
        }
    }

    fn check_files(&self) {
        for (name, bytes) in &self.files {
            let target = self.target(name);
            let there = self.destination().get(target.path());
            assert!(there.as_ref() == Some(bytes), "{}: {name} is wrong", self.what());
            let durable = self.destination().durable(target.path());
            assert!(durable.as_ref() == Some(bytes), "{}: {name} is not on the medium", self.what());
        }
        // A lost name may have made an upload start again. If a kill ends that upload, the earlier file counts as
        // present.
        if self.destination().losses() > 0 {
            return;
        }
        // A kill between the rename of the file and the removal of its journal leaves the journal. The next copy of the
        // name takes it over.
        let left = self.destination().paths();
        let parts = left.iter().filter(|path| path.extension().is_some_and(|kind| kind == "part")).count();
        assert_eq!(parts, 0, "{}: {left:?}", self.what());
    }
}

/// Returns the path of a hidden file next to a target.
fn hidden(target: &Name, kind: &str) -> PathBuf {
    let hash: String = blake3::hash(target.last().unwrap().as_encoded_bytes()).to_hex().as_str()[..24].into();
    target.folder().path().join(format!(".reservoir-{hash}.{kind}"))
}

fn shell(runtime: Arc<dyn Runtime>) -> Shell {
    let timers = runtime.clone();
    Shell::new(timers, Arc::new(InPlace), Arc::new(move |task: Task| runtime.spawn_task("task".into(), task)))
}

/// Both ends of all connections, and the byte at which one end dies.
struct WireFailure {
    bytes: AtomicU64,
    ends: [MediumMount; 2],
    died: Notify,
}

impl WireFailure {
    fn is_dead(&self) -> bool {
        let dead = self.bytes.load(Ordering::Relaxed) == 0 || self.ends.iter().any(MediumMount::is_dead);
        if dead {
            self.died.notify_one();
        }
        dead
    }

    /// Lets bytes pass, up to the byte at which the end dies. Returns the number of passed bytes.
    fn pass(&self, bytes: usize) -> io::Result<usize> {
        if self.is_dead() {
            return Err(io::ErrorKind::ConnectionReset.into());
        }
        let left = self.bytes.load(Ordering::Relaxed);
        let passed = left.min(bytes as u64);
        self.bytes.store(left - passed, Ordering::Relaxed);
        Ok(passed as usize)
    }
}

struct FailingStream {
    stream: DuplexStream,
    fate: Arc<WireFailure>,
}

impl AsyncRead for FailingStream {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if self.fate.is_dead() {
            return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
        }
        Pin::new(&mut self.stream).poll_read(cx, into)
    }
}

impl AsyncWrite for FailingStream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        if self.fate.is_dead() {
            return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
        }
        let left = usize::try_from(self.fate.bytes.load(Ordering::Relaxed)).unwrap_or(usize::MAX);
        let data = &data[..data.len().min(left)];
        let written = core::task::ready!(Pin::new(&mut self.stream).poll_write(cx, data))?;
        Poll::Ready(self.fate.pass(written))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
