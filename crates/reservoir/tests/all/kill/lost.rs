//! A medium that loses all unsynced bytes and names before one of its calls, for each call in turn: every file that
//! succeeds in the end is on the medium.

use super::medium::RamDisk;
use super::shell;
use super::uploads::ask;
use core::fmt::Debug;
use offload_base::Seed;
use offload_reservoir::blocks::{BlockHasher, Blocks};
use offload_reservoir::copy::{Copy, CopyLocation, PlainDialer};
use offload_reservoir::landing::{LandingFile, ResumeMode};
use offload_reservoir::name::Name;
use offload_reservoir::{Server, ServerLimits};
use offload_testbed::VirtualTime;
use std::io;
use std::sync::Arc;

/// Half of each second block is written while the block before it is synced.
#[test]
fn block_or_name_that_is_lost_is_written_again() {
    for seed in 0..4 {
        for calls in 1.. {
            let medium = RamDisk::new(Seed(seed));
            let (folder, name) = (Arc::new(medium.mount(None)), Name::from_url("/file").unwrap());
            let blocks = Blocks::new(4 << 10, 1 << 10).unwrap();
            medium.lose_in(Some(calls));
            let landing = again(|| LandingFile::open(folder.clone(), &name, blocks, "source", ResumeMode::Resume));
            again(|| {
                for pair in landing.missing().chunks(2) {
                    let epoch = landing.epoch();
                    for &number in pair {
                        landing.write(&[number as u8; 512], blocks.range(number).start)?;
                    }
                    for &number in pair {
                        landing.write(&[number as u8; 512], blocks.range(number).start + 512)?;
                        let mut hasher = BlockHasher::new(blocks, number);
                        hasher.update(&[number as u8; 1024]);
                        // The next attempt resumes a failed block.
                        let _ = landing.done(number, hasher.finish(), epoch);
                    }
                }
                if landing.missing().is_empty() { Ok(()) } else { Err(io::Error::other("blocks are missing")) }
            });
            again(|| landing.finish(None));
            let content: Vec<u8> = (0..4).flat_map(|number| [number; 1024]).collect();
            assert!(medium.durable(name.path()) == Some(content), "{calls} calls");
            assert!(medium.is_name_durable(&name), "{calls} calls");
            if medium.losses() == 0 {
                break;
            }
        }
    }
}

/// Small files go in packs, to a server and from a server.
#[test]
fn pack_that_is_lost_is_written_again() {
    for (seed, up) in [(1, true), (2, true), (1, false), (2, false)] {
        for calls in 1.. {
            let (here, there) = (RamDisk::new(Seed(seed)), RamDisk::new(Seed(seed)));
            // Only the target loses bytes.
            let (source, target) = if up { (&here, &there) } else { (&there, &here) };
            let names: Vec<Name> = (0..20).map(|number| Name::from_url(&format!("/{number}")).unwrap()).collect();
            names.iter().for_each(|name| source.put(name, name.to_url().as_bytes()));
            let mut executor = VirtualTime::new();
            let shell = shell(Arc::new(executor.handle()));
            let server = Server::new(Arc::new(there.mount(None)), shell.clone(), ServerLimits::default()).open_to_all();
            let spawner = shell.clone();
            let dial = PlainDialer::new(move |_: &str, _| {
                let (ours, theirs) = tokio::io::duplex(1 << 16);
                let server = server.clone();
                spawner.spawn(async move { server.serve(theirs, "client").await });
                Ok(ours)
            });
            let copy = Copy::new(shell, Arc::new(dial)).streams(1).resume(true);
            let (local, remote) = (
                CopyLocation::in_folder(Arc::new(here.mount(None)), Name::root()),
                CopyLocation::parse("https://server/", None).unwrap(),
            );
            let (from, to) = if up { (local, remote) } else { (remote, local) };
            target.lose_in(Some(calls));
            again(|| {
                let outcome = executor.block_on(copy.run(core::slice::from_ref(&from), &to)).unwrap();
                if outcome.failed.is_empty() { Ok(()) } else { Err(outcome) }
            });
            for name in &names {
                assert!(target.durable(name.path()) == Some(name.to_url().into_bytes()), "{name}, {calls} calls");
                assert!(target.is_name_durable(name), "{name}, {calls} calls");
            }
            if target.losses() == 0 {
                break;
            }
        }
    }
}

/// The client of an upload dies after a loss. The next client finds a file with the right size and time. The name of
/// that file may be lost.
#[test]
fn file_that_a_later_client_finds_has_a_name_that_lasts() {
    let name = Name::from_url("/file").unwrap();
    for (size, restarts, calls) in [1000, (1 << 20) + 1]
        .into_iter()
        .flat_map(|size| [false, true].map(|restarts| (size, restarts)))
        .flat_map(|(size, restarts)| (1..60).map(move |calls| (size, restarts, calls)))
    {
        let (here, there) = (RamDisk::new(Seed(1)), RamDisk::new(Seed(2)));
        let content = vec![7; size];
        here.put(&name, &content);
        there.put(&name, b"old");
        let mut executor = VirtualTime::new();
        let shell = shell(Arc::new(executor.handle()));
        let serve = || Server::new(Arc::new(there.mount(None)), shell.clone(), ServerLimits::default()).open_to_all();
        let (mut server, mut ends) = (serve(), Vec::new());
        there.lose_in(Some(calls));
        // The first client stops at its first error, and the second client retries.
        for retries in [0, 4] {
            let (served, spawner) = (server.clone(), shell.clone());
            let dial = PlainDialer::new(move |_: &str, _| {
                let (ours, theirs) = tokio::io::duplex(1 << 16);
                let served = served.clone();
                spawner.spawn(async move { served.serve(theirs, "client").await });
                Ok(ours)
            });
            let copy = Copy::new(shell.clone(), Arc::new(dial)).streams(1).resume(true).retries(retries);
            let from = CopyLocation::in_folder(Arc::new(here.mount(None)), name.clone());
            let to = CopyLocation::parse("https://server/file", None).unwrap();
            let ended = executor.block_on(copy.run(&[from], &to));
            ends.push(ended.is_ok_and(|outcome| outcome.failed.is_empty()));
            if restarts {
                drop((copy, server));
                server = serve();
            }
        }
        if ends[1] {
            let context = format!("{size} bytes, restarts: {restarts}, {calls} calls");
            assert!(there.durable(name.path()).as_ref() == Some(&content), "{context}");
            assert!(there.is_name_durable(&name), "{context}");
        }
    }
}

/// A successful copy may have found the file of an earlier, failed copy.
#[test]
fn copy_between_servers_succeeds_with_a_name_that_lasts() {
    let name = Name::from_url("/file").unwrap();
    for (pulls, size, overwrite) in [
        (true, 3000, "T"),
        (true, 3000, "F"),
        (false, 3000, "T"),
        (false, (1 << 20) + 1, "T"),
        (false, (1 << 20) + 1, "F"),
    ] {
        for (replaces, calls) in
            [false, true].into_iter().flat_map(|replaces| (1..60).map(move |calls| (replaces, calls)))
        {
            // A copy that may not overwrite never succeeds here.
            if replaces && overwrite == "F" {
                continue;
            }
            let (here, there) = (RamDisk::new(Seed(1)), RamDisk::new(Seed(2)));
            let (source, target) = if pulls { (&there, &here) } else { (&here, &there) };
            let content = vec![7; size];
            source.put(&name, &content);
            if replaces {
                target.put(&name, b"old");
            }
            let mut executor = VirtualTime::new();
            let shell = shell(Arc::new(executor.handle()));
            let serve = |medium: &RamDisk| {
                Server::new(Arc::new(medium.mount(None)), shell.clone(), ServerLimits::default()).open_to_all()
            };
            let (other, spawner) = (serve(&there), shell.clone());
            let dial = PlainDialer::new(move |_: &str, _| {
                let (ours, theirs) = tokio::io::duplex(1 << 16);
                let other = other.clone();
                spawner.spawn(async move { other.serve(theirs, "server").await });
                Ok(ours)
            });
            let server = serve(&here).with_third_party(Arc::new(dial), 4);
            target.lose_in(Some(calls));
            let way = if pulls { "Source" } else { "Destination" };
            let fields = [format!("{way}: https://other/file"), format!("Overwrite: {overwrite}")];
            for _ in 0..4 {
                let (ours, theirs) = tokio::io::duplex(1 << 16);
                let served = server.clone();
                shell.spawn(async move { served.serve(theirs, "client").await });
                let (_, answer) = executor.block_on(ask(ours, "COPY", "/file", &[&fields[0], &fields[1]], b""));
                if answer.contains("success") {
                    let context = format!("{way}, {size} bytes, {overwrite}, {replaces}, {calls} calls");
                    assert!(target.durable(name.path()).as_ref() == Some(&content), "{context}");
                    assert!(target.is_name_durable(&name), "{context}");
                    break;
                }
            }
        }
    }
}

/// A push sends the version that the client requested, at whatever time another file takes the name.
#[test]
fn push_sends_the_version_that_its_precondition_names() {
    let name = Name::from_url("/file").unwrap();
    for calls in 1.. {
        let (here, there) = (RamDisk::new(Seed(1)), RamDisk::new(Seed(2)));
        here.put(&name, b"old");
        let mut executor = VirtualTime::new();
        let shell = shell(Arc::new(executor.handle()));
        let serve =
            |it: &RamDisk| Server::new(Arc::new(it.mount(None)), shell.clone(), ServerLimits::default()).open_to_all();
        let (other, spawner) = (serve(&there), shell.clone());
        let dial = PlainDialer::new(move |_: &str, _| {
            let (ours, theirs) = tokio::io::duplex(1 << 16);
            let other = other.clone();
            spawner.spawn(async move { other.serve(theirs, "server").await });
            Ok(ours)
        });
        let server = serve(&here).with_third_party(Arc::new(dial), 4);
        let connect = || {
            let ((ours, theirs), server) = (tokio::io::duplex(1 << 16), server.clone());
            shell.spawn(async move { server.serve(theirs, "client").await });
            ours
        };
        let (_, head) = executor.block_on(ask(connect(), "HEAD", "/file", &[], b""));
        let tag = head.lines().find_map(|line| line.strip_prefix("etag: ")).unwrap();
        here.put_in(calls, &name, b"new version");
        let fields = ["Destination: https://other/file", &format!("If-Match: {tag}")];
        let (_, answer) = executor.block_on(ask(connect(), "COPY", "/file", &fields, b""));
        let sent = there.get(name.path());
        assert!(sent.as_deref().is_none_or(|sent| sent == b"old"), "{calls} calls: {answer}");
        // The copy made fewer calls than that: all calls are tested.
        if here.awaits_a_file() {
            assert!(answer.contains("success"), "{answer}");
            break;
        }
    }
}

/// Repeats an attempt until the attempt succeeds. Only the one loss, or a later report of the loss, can fail it.
fn again<T, E: Debug>(mut attempt: impl FnMut() -> Result<T, E>) -> T {
    for _ in 0..4 {
        if let Ok(done) = attempt() {
            return done;
        }
    }
    attempt().unwrap()
}
