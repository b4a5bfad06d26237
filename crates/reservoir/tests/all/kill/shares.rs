//! Two servers of one folder write one file together. Each server writes its share of the blocks.

use super::shell;
use core::pin::pin;
use offload_base::Seed;
use offload_reservoir::copy::{Copy, CopyLocation, CopyOutcome, PlainDialer};
use offload_reservoir::rooted::Rooted;
use offload_reservoir::{Server, ServerLimits, Shell};
use offload_testbed::VirtualTime;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::Notify;

/// Each server writes about half of the file, and only the file remains in the folder.
#[test]
fn two_servers_write_one_file() {
    for verify in [false, true] {
        let world = SharesFixture::new();
        let outcome = world.executor().block_on(world.copy().verify(verify).run(&[world.from()], &world.to())).unwrap();
        world.check(&outcome);
        let puts = [0, 1].map(|at| world.puts(at));
        assert!(puts.iter().all(|puts| *puts >= BLOCKS / 4), "{puts:?}");
        assert_eq!(outcome.bytes, SIZE as u64);
    }
}

/// Either server restarts during the copy, and its journal has its blocks.
#[test]
fn a_server_of_the_two_is_begun_anew() {
    for (at, after) in [(0, 3), (1, 3), (0, 12), (1, 12), (0, 19), (1, 19)] {
        let world = SharesFixture::new();
        let mut executor = world.executor();
        let outcome = executor.block_on(async {
            let (copy, sources, to) = (world.copy(), [world.from()], world.to());
            let mut copying = pin!(copy.run(&sources, &to));
            tokio::select! {
                biased;
                ended = &mut copying => panic!("{ended:?}"),
                () = world.wait_for_puts(at, after) => {}
            }
            world.begin_anew(at);
            copying.await
        });
        world.check(&outcome.unwrap());
    }
}

/// After a dropped copy, the next copy does not send the blocks of either journal again.
#[test]
fn blocks_of_both_servers_are_not_sent_again() {
    let world = SharesFixture::new();
    let mut executor = world.executor();
    world.drop_half_way(&mut executor);
    let copy = world.copy().resume(true);
    let outcome = executor.block_on(copy.run(&[world.from()], &world.to())).unwrap();
    world.check(&outcome);
    assert!(outcome.resumed >= 19 * BLOCK && outcome.bytes + outcome.resumed == SIZE as u64, "{outcome:?}");
}

/// The next copy uses only one server. The blocks of both servers are not sent again, and no part of the two uploads
/// remains.
#[test]
fn one_server_completes_a_file_of_two() {
    let world = SharesFixture::new();
    let mut executor = world.executor();
    world.drop_half_way(&mut executor);
    let copy = world.copy().stripe(Vec::new()).resume(true);
    let outcome = executor.block_on(copy.run(&[world.from()], &world.to())).unwrap();
    world.check(&outcome);
    assert!(outcome.resumed >= 19 * BLOCK && outcome.bytes + outcome.resumed == SIZE as u64, "{outcome:?}");
}

/// A folder and its two servers.
struct SharesFixture {
    files: tempfile::TempDir,
    content: Vec<u8>,
    servers: Arc<Mutex<[Option<Server>; 2]>>,
    puts: Arc<[Mutex<usize>; 2]>,
    put: Arc<Notify>,
    shell: Mutex<Option<Shell>>,
}

impl SharesFixture {
    fn new() -> SharesFixture {
        let files = tempfile::tempdir().unwrap();
        let mut content = vec![0; SIZE];
        Seed(1).stream("content").fill(&mut content);
        std::fs::create_dir(files.path().join("store")).unwrap();
        std::fs::write(files.path().join("from"), &content).unwrap();
        let (servers, puts, put, shell) = Default::default();
        SharesFixture { files, content, servers, puts, put, shell }
    }

    /// Returns an executor on which both servers run from now on.
    fn executor(&self) -> VirtualTime {
        let executor = VirtualTime::new();
        *self.shell.lock().unwrap() = Some(shell(Arc::new(executor.handle())));
        [0, 1].into_iter().for_each(|at| self.begin_anew(at));
        executor
    }

    /// Starts a copy, and drops it when the second server has taken ten blocks. Then restarts both servers.
    fn drop_half_way(&self, executor: &mut VirtualTime) {
        executor.block_on(async {
            let (copy, sources, to) = (self.copy(), [self.from()], self.to());
            tokio::select! {
                biased;
                ended = copy.run(&sources, &to) => panic!("{ended:?}"),
                () = self.wait_for_puts(1, 10) => {}
            }
        });
        executor.run_for(core::time::Duration::from_secs(1));
        [0, 1].into_iter().for_each(|at| self.begin_anew(at));
    }

    /// Restarts a server. The old server and its locks are gone.
    fn begin_anew(&self, at: usize) {
        let (puts, put) = (self.puts.clone(), self.put.clone());
        let log = move |line: &str| {
            if line.contains("PUT /large") {
                *puts[at].lock().unwrap_or_else(PoisonError::into_inner) += 1;
                put.notify_waiters();
            }
        };
        let folder = Arc::new(Rooted::open(&self.store()).unwrap());
        let server = Server::new(folder, self.shell(), ServerLimits::default()).open_to_all().with_log(Arc::new(log));
        if let Some(before) = self.servers.lock().unwrap()[at].replace(server) {
            // The old server must not answer the copy's next request.
            before.close();
        }
    }

    async fn wait_for_puts(&self, at: usize, count: usize) {
        while self.puts(at) < count {
            self.put.notified().await;
        }
    }

    fn puts(&self, at: usize) -> usize {
        *self.puts[at].lock().unwrap()
    }

    fn shell(&self) -> Shell {
        self.shell.lock().unwrap().clone().unwrap()
    }

    fn copy(&self) -> Copy {
        let (servers, spawner) = (self.servers.clone(), self.shell());
        let dial = PlainDialer::new(move |host: &str, _| {
            let at = usize::from(host == "two");
            let server = servers.lock().unwrap()[at].clone().ok_or(io::ErrorKind::ConnectionRefused)?;
            let (ours, theirs) = tokio::io::duplex(1 << 12);
            spawner.spawn(async move { server.serve(theirs, "client").await });
            Ok(ours)
        });
        let copy = Copy::new(self.shell(), Arc::new(dial)).stripe(vec!["two".parse().unwrap()]);
        // Two streams go to each server.
        copy.streams(4).block(BLOCK).unwrap()
    }

    fn store(&self) -> std::path::PathBuf {
        self.files.path().join("store")
    }

    fn from(&self) -> CopyLocation {
        CopyLocation::local(&self.files.path().join("from")).unwrap()
    }

    fn to(&self) -> CopyLocation {
        CopyLocation::parse("https://one/large", None).unwrap()
    }

    fn check(&self, outcome: &CopyOutcome) {
        assert_eq!((outcome.copied, &outcome.failed[..]), (1, &[][..]));
        assert!(std::fs::read(self.store().join("large")).unwrap() == self.content);
        let left: Vec<_> = names(&self.store());
        assert_eq!(left, ["large"]);
    }
}

fn names(folder: &Path) -> Vec<String> {
    std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

const BLOCK: u64 = 64 << 10;
const BLOCKS: usize = 40;
const SIZE: usize = BLOCKS * BLOCK as usize - 1000;
