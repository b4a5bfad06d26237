//! Preconditions, ranges, `Host` and methods, as bytes of HTTP/1.1 to a server.

use super::medium::RamDisk;
use super::shell;
use offload_base::Seed;
use offload_reservoir::copy::PlainDialer;
use offload_reservoir::name::Name;
use offload_reservoir::rooted::Rooted;
use offload_reservoir::storage::Folder;
use offload_reservoir::{Server, ServerLimits, Shell};
use offload_testbed::VirtualTime;
use std::collections::BTreeMap;
use std::fs::{File, FileTimes};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};

/// Each case has a method, fields, and the statuses for an existing file and for an absent name. `TAG` stands for the
/// file's tag.
#[test]
fn preconditions_of_every_method_are_evaluated() {
    const PAST: &str = "Fri, 01 Jan 1960 00:00:00 GMT";
    const FUTURE: &str = "Fri, 31 Dec 9999 23:59:59 GMT";
    let put = "content-length: 3\r\n";
    let begin = "reservoir-upload: u\r\nreservoir-blocks: 3/1024\r\n";
    let part = "content-range: bytes 0-2/3\r\ncontent-length: 3\r\n";
    let writes = [("PUT", put, [204, 201]), ("PUT", part, [204, 201]), ("POST", begin, [200, 200])];
    let conditions: &[(String, bool, bool)] = &[
        ("if-match: TAG".into(), true, false),
        ("if-match: \"x\", TAG".into(), true, false),
        ("if-match: \"x\"\r\nif-match: TAG".into(), true, false),
        ("if-match: W/TAG".into(), false, false),
        ("if-match: \"stale\"".into(), false, false),
        ("if-match: stale".into(), false, false),
        ("if-match: *".into(), true, false),
        ("if-none-match: *".into(), false, true),
        ("if-none-match: TAG".into(), false, true),
        ("if-none-match: \"x\",W/TAG".into(), false, true),
        ("if-none-match: \"x\"\r\nif-none-match: TAG".into(), false, true),
        ("if-none-match: \"x\"".into(), true, true),
        (format!("if-unmodified-since: {PAST}"), false, true),
        ("if-unmodified-since: Sunday, 06-Nov-70 08:49:37 GMT".into(), false, true),
        ("if-unmodified-since: Fri Jan  1 00:00:00 1960".into(), false, true),
        (format!("if-unmodified-since: {FUTURE}"), true, true),
        ("if-unmodified-since: never".into(), true, true),
        (format!("if-modified-since: {FUTURE}"), true, true),
        (format!("if-match: TAG\r\nif-unmodified-since: {PAST}"), true, false),
        (format!("if-match: \"x\"\r\nif-unmodified-since: {FUTURE}"), false, false),
        ("if-match: TAG\r\nif-none-match: *".into(), false, false),
    ];
    for (method, fields, done) in writes {
        for (condition, with_file, without) in conditions {
            let mut bed = RulesTestbed::in_memory(Server::open_to_all);
            let tag = bed.ask("PUT", "/f", "x-oc-mtime: 1000000000\r\ncontent-length: 3\r\n", "old").tag_of(&mut bed);
            let fields = format!("{fields}{}\r\n", condition.replace("TAG", &tag));
            let body = if method == "PUT" { "new" } else { "" };
            let statuses = ["/f", "/absent"].map(|path| bed.ask(method, path, &fields, body).status);
            let expected = [if *with_file { done[0] } else { 412 }, if *without { done[1] } else { 412 }];
            assert_eq!(statuses, expected, "{method} {condition}");
            let is_replaced = *with_file && method == "PUT";
            let content = bed.ask("GET", "/f", "", "").body;
            assert_eq!(content, if is_replaced { "new" } else { "old" }, "{method} {condition}");
        }
    }
    let reads = [
        ("if-none-match: TAG", 304),
        ("if-none-match: \"x\", W/TAG", 304),
        ("if-none-match: *", 304),
        ("if-none-match: x", 200),
        ("if-none-match: TAG\r\nrange: bytes=0-0", 304),
        ("if-modified-since: Fri, 31 Dec 9999 23:59:59 GMT", 304),
        ("if-modified-since: Fri, 01 Jan 1960 00:00:00 GMT", 200),
        ("if-match: \"x\", TAG", 200),
        ("if-match: \"x\"", 412),
        ("if-unmodified-since: Fri, 01 Jan 1960 00:00:00 GMT", 412),
    ];
    let mut bed = RulesTestbed::in_memory(Server::open_to_all);
    let tag = bed.ask("PUT", "/f", "x-oc-mtime: 1000000000\r\ncontent-length: 3\r\n", "old").tag_of(&mut bed);
    for (condition, expected) in reads {
        for method in ["GET", "HEAD"] {
            let answer = bed.ask(method, "/f", &format!("{}\r\n", condition.replace("TAG", &tag)), "");
            assert_eq!(answer.status, expected, "{method} {condition}");
            assert_eq!(answer.fields.get("etag"), Some(&tag), "{method} {condition}");
            if expected == 304 {
                assert_eq!(answer.fields.get("last-modified").unwrap(), "Sun, 09 Sep 2001 01:46:40 GMT");
                assert_eq!((answer.fields.get("content-length"), &*answer.body), (None, ""), "{method} {condition}");
            }
            // The status of an absent name is 404 under every condition (RFC 9110 13.2.1).
            assert_eq!(bed.ask(method, "/absent", &format!("{condition}\r\n"), "").status, 404, "{method} {condition}");
        }
    }
    for kind in ["names", "pack"] {
        let fields =
            format!("content-type: application/x-reservoir-{kind}\r\ncontent-length: 4\r\nif-none-match: *\r\n");
        assert_eq!(bed.ask("POST", "/", &fields, "\0\0\0\0").status, 400, "{kind}");
    }
    assert_eq!(bed.ask("GET", "/", "if-none-match: *\r\n", "").status, 304);
    assert_eq!(bed.ask("GET", "/", "if-match: \"x\"\r\n", "").status, 412);
}

/// The server also evaluates the condition at the end of the upload, not only at the start of the request.
#[test]
fn file_that_appears_during_an_upload_is_not_replaced() {
    let name = Name::from_url("/f").unwrap();
    let (upload, blocks) = ("reservoir-upload: u\r\n", "reservoir-blocks: 3/1024\r\n");
    let new = "if-none-match: *\r\n";
    let part = "content-range: bytes 0-2/3\r\ncontent-length: 3\r\n";
    let finish = "content-range: bytes */3\r\ncontent-length: 0\r\n";
    // The file comes in parts, with the condition at the start, at the end, or at both.
    for (first, last) in [(new, ""), ("", new), (new, new)] {
        let mut bed = RulesTestbed::in_memory(Server::open_to_all);
        assert_eq!(bed.ask("POST", "/f", &format!("{upload}{blocks}{first}"), "").status, 200);
        assert_eq!(bed.ask("PUT", "/f", &format!("{upload}{blocks}{part}"), "new").status, 202);
        bed.medium().put(&name, b"other");
        assert_eq!(bed.ask("PUT", "/f", &format!("{upload}{blocks}{finish}{last}"), "").status, 412);
        assert_eq!(bed.medium().get(name.path()).unwrap(), b"other");
        if (first, last) != (new, "") {
            continue;
        }
        // Now the client knows the other file, and may replace it.
        assert_eq!(bed.ask("PUT", "/f", &format!("{upload}{blocks}{finish}"), "").status, 204);
        assert_eq!(bed.medium().get(name.path()).unwrap(), b"new");
    }
    // The parts have no upload name but the digest of the file. The first part has the condition.
    let mut bed = RulesTestbed::in_memory(Server::open_to_all);
    let digest = "repr-digest: sha-256=:EVB6Di9eadXfpApiob17buV+a82FxnybhDGzb/8hxDc=:\r\n";
    let part = |range: &str, fields: &str| format!("content-range: bytes {range}/3\r\n{digest}{fields}");
    assert_eq!(bed.ask("PUT", "/f", &part("0-1", "content-length: 2\r\nif-none-match: *\r\n"), "ne").status, 202);
    bed.medium().put(&name, b"other");
    assert_eq!(bed.ask("PUT", "/f", &part("2-2", "content-length: 1\r\n"), "w").status, 412);
    // The file comes in one request, and the other file appears during the body.
    for (condition, path) in [(new, "/f"), ("if-match: TAG\r\n", "/old")] {
        let mut bed = RulesTestbed::in_memory(Server::open_to_all);
        let tag = bed.ask("PUT", "/old", "content-length: 3\r\n", "old").tag_at(&mut bed, "/old");
        let head = format!("content-length: 3\r\n{}", condition.replace("TAG", &tag));
        let (medium, at) = (bed.medium().clone(), Name::from_url(path).unwrap());
        let appears = move || medium.put(&at, b"other");
        assert_eq!(bed.ask_in_two("PUT", path, &head, "ne", appears, "w").status, 412);
        assert_eq!(bed.medium().get(Path::new(&path[1..])).unwrap(), b"other");
        // The upload leaves no files, and an upload without the condition replaces the file.
        assert!(bed.medium().paths().iter().all(|path| !path.to_str().unwrap().starts_with(".reservoir-")));
        assert_eq!(bed.ask("PUT", path, "content-length: 3\r\n", "new").status, 204);
    }
}

#[test]
fn copy_between_servers_has_the_preconditions_of_the_file_here() {
    let name = Name::from_url("/f").unwrap();
    for (appears, condition, expected) in [
        (false, "if-none-match: *", "success: Created\n"),
        (false, "if-match: *", "412"),
        (true, "if-none-match: *", "failure: "),
    ] {
        let mut bed = RulesTestbed::in_memory(|server| server);
        let other = RulesTestbed::in_memory(Server::open_to_all);
        other.medium().put(&Name::from_url("/source").unwrap(), b"new");
        let (medium, name, shell) = (bed.medium().clone(), name.clone(), bed.shell.clone());
        let served =
            Server::new(Arc::new(other.medium().mount(None)), shell.clone(), ServerLimits::default()).open_to_all();
        let dial = PlainDialer::new(move |_: &str, _| {
            // The file appears after the server has checked the preconditions, and before the server connects to the
            // other server.
            if appears {
                medium.put(&name, b"other");
            }
            let (ours, theirs) = tokio::io::duplex(1 << 16);
            let served = served.clone();
            shell.spawn(async move { served.serve(theirs, "server").await });
            Ok(ours)
        });
        let own = Arc::new(bed.medium().mount(None));
        bed.server = Server::new(own, bed.shell.clone(), ServerLimits::default())
            .open_to_all()
            .with_third_party(Arc::new(dial), 1);
        let answer = bed.ask("COPY", "/f", &format!("source: https://other/source\r\n{condition}\r\n"), "");
        assert!(answer.body.contains(expected) || answer.status.to_string() == expected, "{condition}: {answer:?}");
        let content = bed.medium().get(Path::new("f"));
        let there = if appears { Some(&b"other"[..]) } else { expected.starts_with("success").then_some(&b"new"[..]) };
        assert_eq!(content.as_deref(), there, "{condition}");
    }
    let mut bed = RulesTestbed::in_memory(|server| server.open_to_all().with_third_party(Arc::new(nowhere()), 1));
    bed.medium().put(&name, b"here");
    for (condition, fields) in [
        ("if-none-match: *", "source: https://other/source"),
        ("if-match: \"stale\"", "source: https://other/source"),
        ("if-match: \"stale\"", "destination: https://other/target"),
        ("if-unmodified-since: Fri, 01 Jan 1960 00:00:00 GMT", "destination: https://other/target"),
    ] {
        assert_eq!(
            bed.ask("COPY", "/f", &format!("{fields}\r\n{condition}\r\n"), "").status,
            412,
            "{fields} {condition}"
        );
    }
}

/// Another program makes the file, before each call to the medium in turn.
#[test]
fn copy_that_may_not_overwrite_replaces_no_late_file() {
    let name = Name::from_url("/f").unwrap();
    for condition in ["overwrite: F", "if-none-match: *"] {
        for calls in 1.. {
            let mut bed = RulesTestbed::in_memory(|server| server);
            let other = RulesTestbed::in_memory(Server::open_to_all);
            other.medium().put(&Name::from_url("/source").unwrap(), b"new");
            let shell = bed.shell.clone();
            let served =
                Server::new(Arc::new(other.medium().mount(None)), shell.clone(), ServerLimits::default()).open_to_all();
            let dial = PlainDialer::new(move |_: &str, _| {
                let (ours, theirs) = tokio::io::duplex(1 << 16);
                let served = served.clone();
                shell.spawn(async move { served.serve(theirs, "server").await });
                Ok(ours)
            });
            let own = Arc::new(bed.medium().mount(None));
            bed.server = Server::new(own, bed.shell.clone(), ServerLimits::default())
                .open_to_all()
                .with_third_party(Arc::new(dial), 1);
            bed.medium().put_in(calls, &name, b"other");
            bed.ask("COPY", "/f", &format!("source: https://other/source\r\n{condition}\r\n"), "");
            if bed.medium().awaits_a_file() {
                break;
            }
            assert_eq!(bed.medium().get(Path::new("f")).as_deref(), Some(&b"other"[..]), "{condition}, {calls} calls");
        }
    }
}

/// HEAD answers like GET, and ignores ranges.
#[test]
fn head_is_get_without_bytes() {
    let mut bed = RulesTestbed::in_memory(Server::open_to_all);
    bed.medium().put(&Name::from_url("/f").unwrap(), b"0123456789");
    for (fields, is_range) in [
        ("", false),
        ("range: bytes=2-4\r\n", true),
        ("range: bytes=10-\r\n", true),
        ("range: bytes=-0\r\n", true),
        ("range: bytes=0-1,3-4\r\n", false),
        ("range: bytes=0-1\r\nrange: bytes=0-1\r\n", false),
        ("range: bytes=0 - 1\r\n", false),
        ("if-match: \"x\"\r\n", false),
        ("if-none-match: *\r\n", false),
        ("want-repr-digest: sha-256=1\r\n", false),
    ] {
        let plain = bed.ask("GET", "/f", "", "");
        let (get, head) = (bed.ask("GET", "/f", fields, ""), bed.ask("HEAD", "/f", fields, ""));
        let expected = if is_range { &plain } else { &get };
        assert_eq!((head.status, &head.fields), (expected.status, &expected.fields), "{fields}");
        assert_eq!(head.body, "", "{fields}");
    }
    let part = bed.ask("GET", "/f", "range: Bytes=2-4\r\n", "");
    assert_eq!((part.status, &*part.body, &*part.fields["content-range"]), (206, "234", "bytes 2-4/10"));
    for range in ["bytes=10-", "bytes=-0"] {
        let none = bed.ask("GET", "/f", &format!("range: {range}\r\n"), "");
        assert_eq!((none.status, &*none.fields["content-range"]), (416, "bytes */10"), "{range}");
    }
}

#[test]
fn one_host_is_needed_and_the_target_is_a_path() {
    let mut bed = RulesTestbed::in_memory(Server::open_to_all);
    bed.medium().put(&Name::from_url("/f").unwrap(), b"here");
    for (head, expected) in [
        ("GET /f HTTP/1.1\r\nhost: a", 200),
        ("GET /f HTTP/1.1\r\nhost: [::1]:8443", 200),
        ("GET http://other/f HTTP/1.1\r\nhost: a", 200),
        ("GET /f HTTP/1.0", 200),
        ("OPTIONS * HTTP/1.1\r\nhost: a", 200),
        ("GET /f HTTP/1.1", 400),
        ("GET /f HTTP/1.1\r\nhost:", 400),
        ("GET /f HTTP/1.1\r\nhost: a b", 400),
        ("GET /f HTTP/1.1\r\nhost: a/b", 400),
        ("GET /f HTTP/1.1\r\nhost: u@a", 400),
        ("GET /f HTTP/1.1\r\nhost: a:99999", 400),
        ("GET /f HTTP/1.1\r\nhost: a\r\nhost: a", 400),
        ("GET /f HTTP/1.0\r\nhost: a\r\nhost: b", 400),
        ("GET http://other/f HTTP/1.1", 400),
        ("GET * HTTP/1.1\r\nhost: a", 400),
        ("GET f HTTP/1.1\r\nhost: a", 400),
    ] {
        let answer = bed.ask_raw(&format!("{head}\r\nconnection: close\r\n\r\n"), || {}, "");
        assert_eq!(answer.status, expected, "{head}");
    }
    for method in ["DELETE", "TRACE", "PATCH", "MKCOL"] {
        let answer = bed.ask(method, "/f", "", "");
        assert_eq!(
            (answer.status, &*answer.fields["allow"]),
            (405, "COPY, GET, HEAD, MKCOL, OPTIONS, POST, PUT"),
            "{method}"
        );
    }
}

/// Files can have times before 1970 and after 9999.
#[test]
fn files_of_any_time_are_given() {
    let there = tempfile::tempdir().unwrap();
    std::fs::write(there.path().join("old"), "text").unwrap();
    let old = SystemTime::UNIX_EPOCH - Duration::from_secs(315_619_200);
    File::options().write(true).open(there.path().join("old")).unwrap().set_modified(old).unwrap();
    let mut bed = RulesTestbed::start(None, |_| Arc::new(Rooted::open(there.path()).unwrap()), Server::open_to_all);
    for method in ["GET", "HEAD"] {
        let answer = bed.ask(method, "/old", "", "");
        assert_eq!(
            (answer.status, &*answer.fields["last-modified"]),
            (200, "Fri, 01 Jan 1960 00:00:00 GMT"),
            "{method}"
        );
    }
    let list = bed.ask("GET", "/", "accept: application/x-ndjson\r\n", "").body;
    assert!(list.contains("\"modified\":-315619200000000000"), "{list}");

    let mut bed = RulesTestbed::in_memory(Server::open_to_all);
    let late = bed.ask("PUT", "/late", "x-oc-mtime: 300000000000\r\ncontent-length: 4\r\n", "text");
    assert_eq!(late.status, 201);
    // The time of the file is later than the time of the answer (RFC 9110 8.8.2.1).
    let answer = bed.ask("GET", "/late", "", "");
    assert_eq!((answer.status, &*answer.body, answer.fields.contains_key("last-modified")), (200, "text", true));
}

/// A change in place with a restored time still makes another version.
#[test]
fn digest_is_that_of_the_bytes_that_are_there() {
    let there = tempfile::tempdir().unwrap();
    let path = there.path().join("f");
    let mut bed = RulesTestbed::start(None, |_| Arc::new(Rooted::open(there.path()).unwrap()), Server::open_to_all);
    let times = FileTimes::new().set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000));
    let mut digests = Vec::new();
    for content in ["one", "two"] {
        std::fs::write(&path, content).unwrap();
        File::options().write(true).open(&path).unwrap().set_times(times).unwrap();
        digests.push(bed.ask("HEAD", "/f", "want-repr-digest: sha-256=1\r\n", "").fields["repr-digest"].clone());
    }
    assert_ne!(digests[0], digests[1]);
}

/// The entity tag of the answer belongs to the version before the change.
#[test]
fn digest_of_a_changing_file_is_left_out() {
    let mut bed = RulesTestbed::in_memory(Server::open_to_all);
    bed.medium().put(&Name::from_url("/f").unwrap(), &vec![7; 5 << 20]);
    bed.medium().touch_after(Path::new("f"), 1);
    for (fields, is_told) in [("want-repr-digest: sha-256=1\r\n", false), ("want-digest: sha-256\r\n", true)] {
        let answer = bed.ask("HEAD", "/f", fields, "");
        let is_there = ["repr-digest", "digest"].iter().any(|field| answer.fields.contains_key(*field));
        assert_eq!((answer.status, is_there), (200, is_told), "{answer:?}");
    }
}

/// A server and an executor for its tasks.
struct RulesTestbed {
    executor: VirtualTime,
    shell: Shell,
    medium: Option<RamDisk>,
    server: Server,
}

impl RulesTestbed {
    fn in_memory(set_up: impl FnOnce(Server) -> Server) -> RulesTestbed {
        let medium = RamDisk::new(Seed(1));
        RulesTestbed::start(Some(medium.clone()), |_| Arc::new(medium.mount(None)), set_up)
    }

    fn start(
        medium: Option<RamDisk>,
        folder: impl FnOnce(&Shell) -> Arc<dyn Folder>,
        set_up: impl FnOnce(Server) -> Server,
    ) -> RulesTestbed {
        let executor = VirtualTime::new();
        let shell = shell(Arc::new(executor.handle()));
        let server = set_up(Server::new(folder(&shell), shell.clone(), ServerLimits::default()));
        RulesTestbed { executor, shell, medium, server }
    }

    fn medium(&self) -> &RamDisk {
        self.medium.as_ref().unwrap()
    }

    fn ask(&mut self, method: &str, path: &str, fields: &str, body: &str) -> ParsedResponse {
        self.ask_in_two(method, path, fields, body, || {}, "")
    }

    fn ask_in_two(
        &mut self,
        method: &str,
        path: &str,
        fields: &str,
        first: &str,
        between: impl FnOnce() + Send + 'static,
        second: &str,
    ) -> ParsedResponse {
        let head = format!("{method} {path} HTTP/1.1\r\nhost: a\r\nconnection: close\r\n{fields}\r\n{first}");
        self.ask_raw(&head, between, second)
    }

    /// Sends the first part, waits until the server is idle, and sends the second part.
    fn ask_raw(&mut self, first: &str, between: impl FnOnce() + Send + 'static, second: &str) -> ParsedResponse {
        let (mut ours, theirs) = tokio::io::duplex(1 << 16);
        let (server, shell) = (self.server.clone(), self.shell.clone());
        self.shell.spawn(async move { server.serve(theirs, "client").await });
        let (first, second) = (first.to_owned(), second.to_owned());
        let said = self.executor.block_on(async move {
            ours.write_all(first.as_bytes()).await.unwrap();
            shell.sleep(Duration::from_millis(1)).await;
            between();
            ours.write_all(second.as_bytes()).await.unwrap();
            read(ours).await
        });
        ParsedResponse::parse(&said)
    }
}

async fn read(mut stream: DuplexStream) -> String {
    let mut said = Vec::new();
    stream.read_to_end(&mut said).await.unwrap();
    String::from_utf8(said).unwrap()
}

fn nowhere() -> PlainDialer<impl Fn(&str, u16) -> std::io::Result<DuplexStream>> {
    PlainDialer::new(|_: &str, _| Err(std::io::ErrorKind::NotFound.into()))
}

#[derive(Debug)]
struct ParsedResponse {
    status: u16,
    fields: BTreeMap<String, String>,
    body: String,
}

impl ParsedResponse {
    fn parse(said: &str) -> ParsedResponse {
        let (head, body) = said.split_once("\r\n\r\n").unwrap();
        let mut lines = head.lines();
        let status = lines.next().unwrap()[9..12].parse().unwrap();
        let fields = lines.map(|line| line.split_once(": ").unwrap());
        let mut fields: BTreeMap<_, _> = fields.map(|(name, value)| (name.to_lowercase(), value.to_owned())).collect();
        fields.remove("date");
        let chunked = fields.get("transfer-encoding").is_some_and(|coding| coding == "chunked");
        // The lengths and the bytes of chunks are on alternating lines.
        let body = if chunked { body.split("\r\n").skip(1).step_by(2).collect() } else { body.to_owned() };
        ParsedResponse { status, fields, body }
    }

    /// Returns the tag of the uploaded file.
    fn tag_of(&self, bed: &mut RulesTestbed) -> String {
        self.tag_at(bed, "/f")
    }

    fn tag_at(&self, bed: &mut RulesTestbed, path: &str) -> String {
        assert!(matches!(self.status, 201 | 204), "{self:?}");
        bed.ask("HEAD", path, "", "").fields["etag"].clone()
    }
}
