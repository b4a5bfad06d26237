//! Limits on the work and the memory that clients can cause, in virtual time: unread lists, digests of huge files,
//! connections without a token.

mod digests;
mod folder;
mod lists;
mod program;
mod slots;

use core::sync::atomic::{AtomicU64, Ordering};
use core::time::Duration;
use folder::CountingFolder;
use offload_reservoir::copy::{Copy, PlainDialer};
use offload_reservoir::tokens::Tokens;
use offload_reservoir::{Server, ServerLimits, Shell, Task};
use offload_testbed::{Runtime, VirtualTime};
use std::sync::Arc;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};

/// A server on its own executor.
struct BoundsTestbed {
    executor: VirtualTime,
    shell: Shell,
    folders: Arc<CountingFolder>,
    server: Server,
    /// The duration of a blocking call, in milliseconds.
    blocked: Arc<AtomicU64>,
}

impl BoundsTestbed {
    fn new(limits: ServerLimits) -> BoundsTestbed {
        let executor = VirtualTime::new();
        let runtime: Arc<dyn Runtime> = Arc::new(executor.handle());
        let (timers, pool) = (runtime.clone(), runtime.clone());
        let span = Arc::new(AtomicU64::new(1));
        let blocked = span.clone();
        let pool = move |work: Box<dyn FnOnce() + Send>| {
            let (timers, span) = (pool.clone(), Duration::from_millis(blocked.load(Ordering::Relaxed)));
            pool.spawn_task(
                "work".into(),
                Box::pin(async move {
                    // Blocking work takes virtual time here, so that a test can count the work of an interval.
                    timers.sleep(span).await;
                    work();
                }),
            );
        };
        let spawn = move |task: Task| runtime.spawn_task("task".into(), task);
        let shell = Shell::new(timers, Arc::new(pool), Arc::new(spawn));
        let folders = Arc::new(CountingFolder::default());
        let server = Server::new(folders.clone(), shell.clone(), limits);
        server.set_tokens(Tokens::read(TOKENS).unwrap());
        BoundsTestbed { executor, shell, folders, server, blocked: span }
    }

    /// Connects to the server, and sends a request with the token "abc".
    fn ask(&mut self, head: &str) -> DuplexStream {
        self.ask_with("abc", head)
    }

    fn ask_with(&mut self, token: &str, head: &str) -> DuplexStream {
        let (mut ours, theirs) = tokio::io::duplex(1 << 12);
        let server = self.server.clone();
        self.shell.spawn(async move { server.serve(theirs, "client").await });
        let head = format!("{head} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {token}\r\n");
        self.executor.block_on(async { ours.write_all(head.as_bytes()).await }).unwrap();
        ours
    }

    fn copy(&self) -> Copy {
        let (server, spawner) = (self.server.clone(), self.shell.clone());
        let dial = PlainDialer::new(move |_: &str, _| {
            let (ours, theirs) = tokio::io::duplex(1 << 16);
            let server = server.clone();
            spawner.spawn(async move { server.serve(theirs, "client").await });
            Ok(ours)
        });
        Copy::new(self.shell.clone(), Arc::new(dial)).retries(1)
    }
}

/// Reads the head of an answer.
async fn head_of(stream: &mut DuplexStream) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.unwrap());
    }
    String::from_utf8(head).unwrap()
}

/// Users "one" and "two", with the tokens "abc" and "test".
const TOKENS: &str = r#"
[[token]]
name = "one"
rights = ["read"]
sha256 = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
[[token]]
name = "two"
rights = ["read"]
sha256 = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"
"#;
