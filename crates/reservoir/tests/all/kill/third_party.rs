//! COPY: a server reports success only if the requested file has arrived with the bytes of the source.

use super::shell;
use super::uploads::{ask, sum};
use bytes::Bytes;
use core::convert::Infallible;
use core::time::Duration;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::header::{CONTENT_LENGTH, CONTENT_RANGE, ETAG, RANGE};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use offload_reservoir::copy::PlainDialer;
use offload_reservoir::digest::HashAlgorithm;
use offload_reservoir::rooted::Rooted;
use offload_reservoir::{Server, ServerLimits, Shell};
use offload_testbed::VirtualTime;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::SystemTime;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// A server that executes COPY, and `https://other`. Each has its own folder.
struct ThirdPartyFixture {
    files: tempfile::TempDir,
    executor: VirtualTime,
    shell: Shell,
    server: Server,
}

impl ThirdPartyFixture {
    /// Makes the servers. The other server is a reservoir or `foreign`.
    fn new(foreign: Option<ForeignServer>) -> ThirdPartyFixture {
        let (files, executor) = (tempfile::tempdir().unwrap(), VirtualTime::new());
        let shell = shell(Arc::new(executor.handle()));
        let serve = |name: &str| {
            std::fs::create_dir(files.path().join(name)).unwrap();
            let folder = Rooted::open(&files.path().join(name)).unwrap();
            Server::new(Arc::new(folder), shell.clone(), ServerLimits::default()).open_to_all()
        };
        let (other, spawner) = (serve("there"), shell.clone());
        let dial = PlainDialer::new(move |_: &str, _| {
            let (ours, theirs) = tokio::io::duplex(1 << 16);
            let (other, foreign) = (other.clone(), foreign.clone());
            spawner.spawn(async move {
                let Some(foreign) = foreign else { return other.serve(theirs, "server").await };
                let service = service_fn(move |request| foreign.clone().answer(request));
                let http = hyper::server::conn::http1::Builder::new();
                drop(http.serve_connection(TokioIo::new(theirs), service).await);
            });
            Ok(ours)
        });
        let server = serve("here").with_third_party(Arc::new(dial), 4);
        ThirdPartyFixture { files, executor, shell, server }
    }

    fn here(&self, name: &str) -> PathBuf {
        self.files.path().join("here").join(name)
    }

    fn there(&self, name: &str) -> PathBuf {
        self.files.path().join("there").join(name)
    }

    fn copy(&mut self, name: &str, fields: &[&str]) -> (u16, String) {
        let (ours, theirs) = tokio::io::duplex(1 << 16);
        let server = self.server.clone();
        self.shell.spawn(async move { server.serve(theirs, "client").await });
        self.executor.block_on(ask(ours, "COPY", name, fields, b""))
    }

    /// Returns all names in the local folder, including hidden names.
    fn entries(&mut self) -> Vec<String> {
        self.executor.run_for(Duration::from_secs(1));
        let entries = std::fs::read_dir(self.here("")).unwrap();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }
}

/// Writes a file with a time in 1980, as reproducible builds do.
fn write(path: &Path, text: &str) {
    std::fs::write(path, text).unwrap();
    let time = SystemTime::UNIX_EPOCH + Duration::from_secs(10 * 365 * 86_400);
    std::fs::File::options().write(true).open(path).unwrap().set_modified(time).unwrap();
}

#[test]
fn copy_replaces_a_file_of_the_same_size_and_time() {
    for (way, source, target) in [("Source", "there", "here"), ("Destination", "here", "there")] {
        let mut world = ThirdPartyFixture::new(None);
        let (from, to) = (world.files.path().join(source).join("f"), world.files.path().join(target).join("f"));
        for release in ["release 1.0", "release 1.1"] {
            // The first release has no earlier file.
            let _ = std::fs::remove_file(&from);
            write(&from, release);
            let (status, answer) = world.copy("/f", &[&format!("{way}: https://other/f"), "Overwrite: T"]);
            assert!(status == 202 && answer.contains("success: Created"), "{answer}");
            assert_eq!(std::fs::read_to_string(&to).unwrap(), release, "{way}");
        }
    }
}

#[test]
fn copy_that_may_not_overwrite_leaves_the_file() {
    for way in ["Source", "Destination"] {
        let mut world = ThirdPartyFixture::new(None);
        write(&world.here("f"), "mine");
        write(&world.there("f"), "theirs");
        for overwrite in ["F", "f"] {
            let fields = [format!("{way}: https://other/f"), format!("Overwrite: {overwrite}")];
            let (status, answer) = world.copy("/f", &[&fields[0], &fields[1]]);
            assert_eq!(status, 412, "{answer}");
        }
        for unclear in [&["Overwrite: maybe"][..], &["Overwrite: F\u{e9}"], &["Overwrite: T", "Overwrite: F"]] {
            let other = format!("{way}: https://other/f");
            assert_eq!(world.copy("/f", &[&[&other[..]], unclear].concat()).0, 400, "{unclear:?}");
        }
        assert_eq!(std::fs::read_to_string(world.here("f")).unwrap(), "mine");
        assert_eq!(std::fs::read_to_string(world.there("f")).unwrap(), "theirs");
        std::fs::remove_file(if way == "Source" { world.here("f") } else { world.there("f") }).unwrap();
        let (_, answer) = world.copy("/f", &[&format!("{way}: https://other/f"), "Overwrite: F"]);
        assert!(answer.contains("success: Created"), "{answer}");
    }
}

/// An upload blocks a copy only as long as the upload's client is connected.
#[test]
fn copy_takes_a_name_over_from_an_upload_that_was_left() {
    let mut world = ThirdPartyFixture::new(None);
    write(&world.there("f"), "theirs");
    let (mut open, theirs) = tokio::io::duplex(1 << 16);
    let server = world.server.clone();
    world.shell.spawn(async move { server.serve(theirs, "client").await });
    let named = "reservoir-upload: u\r\nreservoir-blocks: 2048/1024";
    let begin = format!("POST /f HTTP/1.1\r\nhost: x\r\n{named}\r\ncontent-length: 0\r\n\r\n");
    world.executor.block_on(async {
        open.write_all(begin.as_bytes()).await.unwrap();
        open.read_exact(&mut [0; 12]).await.unwrap();
    });
    assert_eq!(world.copy("/f", &["Source: https://other/f"]).0, 423);
    drop(open);
    // The server notices the closed connection.
    world.executor.run_for(Duration::from_secs(1));
    let (_, answer) = world.copy("/f", &["Source: https://other/f"]);
    assert!(answer.contains("success: Created"), "{answer}");
    assert_eq!(world.entries(), ["f"]);
}

/// Folder names without a slash, at either end and in both directions.
#[test]
fn copy_is_of_one_file_to_its_name() {
    let mut world = ThirdPartyFixture::new(None);
    std::fs::create_dir_all(world.there("tree/sub")).unwrap();
    write(&world.there("tree/sub/f"), "in a tree");
    std::fs::create_dir(world.there("one")).unwrap();
    write(&world.there("one/only"), "one");
    for source in ["tree", "one", "none"] {
        let (_, answer) = world.copy("/dst", &[&format!("Source: https://other/{source}")]);
        assert!(answer.contains("failure: ") && !answer.contains("success"), "{answer}");
    }
    assert!(world.entries().is_empty());
    std::fs::create_dir(world.here("folder")).unwrap();
    write(&world.here("f"), "mine");
    for folder in ["/folder", "/folder/", "/new/"] {
        assert_eq!(world.copy(folder, &["Source: https://other/one/only"]).0, 409, "{folder}");
    }
    let (_, answer) = world.copy("/folder", &["Destination: https://other/new"]);
    assert!(answer.contains("failure: "), "{answer}");
    let (_, answer) = world.copy("/f", &["Destination: https://other/tree"]);
    assert!(answer.contains("failure: "), "{answer}");
    assert_eq!(std::fs::read_dir(world.here("folder")).unwrap().count(), 0);
    assert_eq!(std::fs::read_dir(world.there("tree")).unwrap().count(), 1);
    assert!(!world.there("new").exists());
}

/// A server that is not a reservoir, with one file.
#[derive(Clone)]
struct ForeignServer {
    content: Arc<Mutex<Option<&'static [u8]>>>,
    /// The value of its `Digest` field.
    digest: Option<String>,
}

impl ForeignServer {
    async fn answer(self, request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
        let (method, is_part) = (request.method().clone(), request.headers().contains_key(RANGE));
        let content = *self.content.lock().unwrap();
        let mut response = Response::new(Full::default());
        match (method, content) {
            (Method::PUT, _) => {
                let _ = request.into_body().collect().await;
                // Every upload in these tests has this content.
                *self.content.lock().unwrap() = Some(CONTENT);
            }
            (Method::GET | Method::HEAD, None) => *response.status_mut() = StatusCode::NOT_FOUND,
            (method @ (Method::GET | Method::HEAD), Some(content)) => {
                let fields = response.headers_mut();
                fields.insert(ETAG, "\"1\"".parse().unwrap());
                fields.extend(
                    self.digest
                        .map(|digest| ("digest".parse().unwrap(), digest.parse().unwrap()))
                        .into_iter()
                        .collect::<hyper::HeaderMap>(),
                );
                fields.insert(CONTENT_LENGTH, content.len().into());
                if is_part {
                    let range = format!("bytes 0-{}/{}", content.len() - 1, content.len());
                    fields.insert(CONTENT_RANGE, range.parse().unwrap());
                    *response.status_mut() = StatusCode::PARTIAL_CONTENT;
                }
                if method == Method::GET {
                    *response.body_mut() = content.into();
                }
            }
            _ => *response.status_mut() = StatusCode::METHOD_NOT_ALLOWED,
        }
        Ok(response)
    }
}

const CONTENT: &[u8] = b"of another make";

#[test]
fn required_checksum_is_verified() {
    let right = HashAlgorithm::Adler32.field_of_rfc3230(&sum(HashAlgorithm::Adler32, CONTENT));
    let cases = [(Some(right), true), (Some("adler32=00000001".into()), false), (None, false)];
    for (digest, fits) in cases {
        for pulls in [true, false] {
            let content = Arc::new(Mutex::new(pulls.then_some(CONTENT)));
            let mut world = ThirdPartyFixture::new(Some(ForeignServer { content, digest: digest.clone() }));
            let field = if pulls { "Source: https://other/f" } else { "Destination: https://other/f" };
            if !pulls {
                std::fs::write(world.here("f"), CONTENT).unwrap();
            }
            let (_, answer) = world.copy("/f", &[field, "RequireChecksumVerification: true"]);
            assert_eq!(
                (answer.contains("success:"), answer.contains("failure:")),
                (fits, !fits),
                "{digest:?}: {answer}"
            );
            if pulls {
                assert_eq!(world.here("f").exists(), fits);
            }
            let (_, answer) = world.copy("/f", &[field, "RequireChecksumVerification: false"]);
            assert!(answer.contains("success:"), "{answer}");
            assert_eq!(world.copy("/f", &[field, "RequireChecksumVerification: perhaps"]).0, 400);
        }
    }
    // Two reservoirs compare their files by BLAKE3.
    for field in ["Source: https://other/f", "Destination: https://other/f"] {
        let mut world = ThirdPartyFixture::new(None);
        write(&world.there("f"), "theirs");
        write(&world.here("f"), "mine");
        let (_, answer) = world.copy("/f", &[field, "RequireChecksumVerification: true"]);
        assert!(answer.contains("success:"), "{answer}");
        assert_eq!(std::fs::read(world.here("f")).unwrap(), std::fs::read(world.there("f")).unwrap());
    }
}
