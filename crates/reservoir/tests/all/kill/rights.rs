//! Permissions of a copy: only the owner can read an arriving file. A complete file has the permissions of its source
//! or of the replaced file.

use super::shell;
use offload_reservoir::attributes::Preserve;
use offload_reservoir::blocks::Blocks;
use offload_reservoir::copy::{Copy, CopyLocation, PlainDialer};
use offload_reservoir::landing::{LandingFile, ResumeMode};
use offload_reservoir::name::Name;
use offload_reservoir::rooted::Rooted;
use offload_reservoir::{Server, ServerLimits};
use offload_testbed::VirtualTime;
use std::fs::{self, File, Permissions};
use std::io::Write;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// As with `cp`, the readers of a copy are at most the readers of the source.
#[test]
fn new_file_gets_the_rights_of_its_source() {
    for way in WAYS {
        for size in [0, 100, 3000, 400 << 10] {
            let world = RightsFixture::new();
            let modes = [0o600, 0o640, 0o644, 0o400, 0o755, 0o666];
            modes.iter().for_each(|mode| world.put("from", &mode.to_string(), *mode, size));
            world.copy(way, Preserve::default());
            for mode in modes {
                let expected = mode & !world.umask();
                assert_eq!(world.mode(&mode.to_string()), expected, "{way:?}, {size} bytes of {mode:o}");
            }
        }
    }
}

/// Many small files go in packs.
#[test]
fn packed_file_gets_the_rights_of_its_source() {
    for way in WAYS {
        let world = RightsFixture::new();
        let mode = |number: u32| [0o600, 0o640, 0o444, 0o755][number as usize % 4];
        (0..24).for_each(|number| world.put("from", &number.to_string(), mode(number), 10));
        world.copy(way, Preserve::default());
        for number in 0..24 {
            assert_eq!(world.mode(&number.to_string()), mode(number) & !world.umask(), "{way:?}, {number}");
        }
    }
}

/// A user may have made the file private, or given the file to another owner.
#[test]
fn replaced_file_keeps_its_rights_and_its_owner() {
    for (way, files) in WAYS.into_iter().flat_map(|way| [(way, 2), (way, 20)]) {
        let world = RightsFixture::new();
        fs::create_dir(world.path("to")).unwrap();
        let mut owner = (0, 0);
        for number in 0..files {
            let name = number.to_string();
            world.put("from", &name, 0o644, 10);
            world.put("to", &name, [0o600, 0o664][number % 2], 7);
            let there = world.path("to").join(&name);
            // Only root may do this, so other users test with their own files.
            let given = chown(&there, Some(1), Some(1));
            if given.is_err() && number == 0 {
                // The test harness hides the output of `eprintln` for a successful test.
                std::io::stderr()
                    .write_all(b"SKIPPED: the owner of a replaced file: only root gives files away\n")
                    .unwrap();
            }
            let metadata = fs::metadata(&there).unwrap();
            owner = (metadata.uid(), metadata.gid());
        }
        world.copy(way, Preserve::default());
        for number in 0..files {
            let there = fs::metadata(world.path("to").join(number.to_string())).unwrap();
            assert_eq!(there.len(), 10);
            assert_eq!(there.mode() & 0o777, [0o600, 0o664][number % 2], "{way:?}, {files} files");
            assert_eq!((there.uid(), there.gid()), owner, "{way:?}, {files} files");
        }
    }
}

#[test]
fn preserved_mode_goes_before_that_of_the_replaced_file() {
    for way in WAYS {
        let world = RightsFixture::new();
        fs::create_dir(world.path("to")).unwrap();
        world.put("from", "file", 0o646, 3000);
        world.put("to", "file", 0o600, 7);
        world.copy(way, Preserve { mode: true, extended: false });
        assert_eq!(world.mode("file"), 0o646, "{way:?}");
    }
}

#[test]
fn hidden_files_are_their_owners_alone() {
    let world = RightsFixture::new();
    let folder = Arc::new(Rooted::open(&world.path("from")).unwrap());
    let (name, blocks) = (Name::from_url("/file").unwrap(), Blocks::new(10, 1024).unwrap());
    let landing = LandingFile::open(folder, &name, blocks, "source", ResumeMode::Anew).unwrap();
    landing.write(b"not for al", 0).unwrap();
    let modes: Vec<u32> = fs::read_dir(world.path("from"))
        .unwrap()
        .map(|entry| entry.unwrap().metadata().unwrap().mode() & 0o777)
        .collect();
    // The journal and the data.
    assert_eq!(modes, [0o600, 0o600]);
}

#[derive(Clone, Copy, Debug)]
enum RightsRoute {
    Here,
    Push,
    Pull,
    Relay,
}

const WAYS: [RightsRoute; 4] = [RightsRoute::Here, RightsRoute::Push, RightsRoute::Pull, RightsRoute::Relay];

/// A source folder and a destination folder.
struct RightsFixture(tempfile::TempDir);

impl RightsFixture {
    fn new() -> RightsFixture {
        let world = RightsFixture(tempfile::tempdir().unwrap());
        fs::create_dir(world.path("from")).unwrap();
        world
    }

    fn path(&self, folder: &str) -> PathBuf {
        self.0.path().join(folder)
    }

    fn put(&self, folder: &str, name: &str, mode: u32, size: usize) {
        let path = self.path(folder).join(name);
        fs::write(&path, vec![7; size]).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
    }

    fn mode(&self, name: &str) -> u32 {
        fs::metadata(self.path("to").join(name)).unwrap().mode() & 0o777
    }

    /// Returns the bits that the system removes from the permissions of a new file.
    fn umask(&self) -> u32 {
        let probe = self.path("probe");
        File::options().write(true).create(true).truncate(false).mode(0o777).open(&probe).unwrap();
        !fs::metadata(&probe).unwrap().mode() & 0o777
    }

    fn copy(&self, way: RightsRoute, preserve: Preserve) {
        let mut executor = VirtualTime::new();
        let shell = shell(Arc::new(executor.handle()));
        let folder = Arc::new(Rooted::open(self.0.path()).unwrap());
        let server = Server::new(folder, shell.clone(), ServerLimits::default()).open_to_all();
        let spawner = shell.clone();
        let dial = PlainDialer::new(move |_: &str, _| {
            let (ours, theirs) = tokio::io::duplex(1 << 16);
            let server = server.clone();
            spawner.spawn(async move { server.serve(theirs, "client").await });
            Ok(ours)
        });
        let local = |path: &Path| CopyLocation::local(path).unwrap();
        let remote = |name| CopyLocation::parse(&format!("https://server/{name}"), None).unwrap();
        let (from, to) = match way {
            RightsRoute::Here => (local(&self.path("from/")), local(&self.path("to/"))),
            RightsRoute::Push => (local(&self.path("from/")), remote("to/")),
            RightsRoute::Pull => (remote("from/"), local(&self.path("to/"))),
            RightsRoute::Relay => (remote("from/"), remote("to/")),
        };
        let copy = Copy::new(shell, Arc::new(dial)).block(1024).unwrap().preserve(preserve);
        let outcome = executor.block_on(copy.run(&[from], &to)).unwrap();
        assert!(outcome.failed.is_empty(), "{outcome:?}");
    }
}
