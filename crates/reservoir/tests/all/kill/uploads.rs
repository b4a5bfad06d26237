//! Uploads of other clients: bytes that do not match their digest do not become a file, and two uploads never mix.

use super::medium::RamDisk;
use super::shell;
use core::time::Duration;
use offload_base::Seed;
use offload_reservoir::copy::{Copy, CopyLocation, PlainDialer};
use offload_reservoir::digest::{DigestHasher, HashAlgorithm, hexadecimal};
use offload_reservoir::name::Name;
use offload_reservoir::tokens::Tokens;
use offload_reservoir::{Server, ServerLimits, Shell};
use offload_testbed::VirtualTime;
use std::path::Path;
use std::sync::Arc;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};

/// A server of a medium, for clients that use HTTP/1.1.
struct UploadsFixture {
    medium: RamDisk,
    executor: VirtualTime,
    shell: Shell,
    server: Server,
}

impl UploadsFixture {
    fn new() -> UploadsFixture {
        let (medium, executor) = (RamDisk::new(Seed(1)), VirtualTime::new());
        let shell = shell(Arc::new(executor.handle()));
        let server = UploadsFixture::server(&medium, &shell);
        UploadsFixture { medium, executor, shell, server }
    }

    fn server(medium: &RamDisk, shell: &Shell) -> Server {
        Server::new(Arc::new(medium.mount(None)), shell.clone(), ServerLimits::default()).open_to_all()
    }

    /// Replaces the server with a new server, which has no uploads in memory.
    fn begin_anew(&mut self) {
        self.server = UploadsFixture::server(&self.medium, &self.shell);
    }

    fn connect(&self) -> DuplexStream {
        let (ours, theirs) = tokio::io::duplex(1 << 16);
        let server = self.server.clone();
        self.shell.spawn(async move { server.serve(theirs, "client").await });
        ours
    }

    /// Makes a copy from or to the server.
    fn copy(&self) -> Copy {
        let (server, spawner) = (self.server.clone(), self.shell.clone());
        let dial = PlainDialer::new(move |_: &str, _| {
            let (ours, theirs) = tokio::io::duplex(1 << 16);
            let server = server.clone();
            spawner.spawn(async move { server.serve(theirs, "client").await });
            Ok(ours)
        });
        Copy::new(self.shell.clone(), Arc::new(dial))
    }

    /// Sends a request on a new connection. Returns the status and the whole answer.
    fn ask(&mut self, method: &str, name: &str, fields: &[&str], content: &[u8]) -> (u16, String) {
        let stream = self.connect();
        self.executor.block_on(ask(stream, method, name, fields, content))
    }

    fn put(&mut self, name: &str, fields: &[&str], content: &[u8]) -> u16 {
        self.ask("PUT", name, fields, content).0
    }

    /// Returns the paths of the medium, after a second of virtual time.
    fn paths(&mut self) -> Vec<String> {
        self.executor.run_for(Duration::from_secs(1));
        self.medium.paths().iter().map(|path| path.display().to_string()).collect()
    }
}

pub(super) async fn ask(
    mut stream: DuplexStream,
    method: &str,
    name: &str,
    fields: &[&str],
    content: &[u8],
) -> (u16, String) {
    let mut head = format!("{method} {name} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n");
    let has_length = fields.iter().any(|field| {
        let field = field.to_ascii_lowercase();
        field.starts_with("content-length:") || field.starts_with("transfer-encoding:")
    });
    // Some tests send a wrong length, or chunks.
    if !has_length {
        head += &format!("content-length: {}\r\n", content.len());
    }
    fields.iter().for_each(|field| head += &format!("{field}\r\n"));
    head += "\r\n";
    stream.write_all(&[head.as_bytes(), content].concat()).await.unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.unwrap();
    let answer = String::from_utf8(answer).unwrap();
    (answer[9..12].parse().unwrap(), answer)
}

pub(super) fn sum(algorithm: HashAlgorithm, bytes: &[u8]) -> Vec<u8> {
    let mut summer = DigestHasher::new(algorithm);
    summer.update(bytes);
    summer.finish()
}

/// Makes a digest field of RFC 9530. The digest is wrong if `wrong`.
fn digest(field: &str, algorithm: HashAlgorithm, bytes: &[u8], wrong: bool) -> String {
    let mut value = sum(algorithm, bytes);
    // One wrong bit is enough.
    value[0] ^= u8::from(wrong);
    format!("{field}: {}", algorithm.field(&value))
}

const ALL: [HashAlgorithm; 7] = [
    HashAlgorithm::Sha256,
    HashAlgorithm::Sha512,
    HashAlgorithm::Blake3,
    HashAlgorithm::Sha1,
    HashAlgorithm::Md5,
    HashAlgorithm::Adler32,
    HashAlgorithm::Crc32c,
];

#[test]
fn wrong_digest_makes_no_file() {
    let mut world = UploadsFixture::new();
    let bytes: Vec<u8> = (0..1000_u32).map(|at| at as u8).collect();
    let whole: &[&str] = &[];
    for range in [whole, &["Content-Range: bytes 0-999/1000"]] {
        for algorithm in ALL {
            for field in ["Repr-Digest", "Content-Digest"] {
                let right = digest(field, HashAlgorithm::Sha256, &bytes, false);
                let wrong = digest(field, algorithm, &bytes, true);
                // The wrong digest comes alone, after a right digest, before a right digest, and on its own line.
                let member = wrong.split_once(": ").unwrap().1;
                let behind = format!("{right}, {member}");
                let ahead = format!("{wrong}, {}", right.split_once(": ").unwrap().1);
                for lines in [vec![&wrong[..]], vec![&behind], vec![&ahead], vec![&right, &wrong]] {
                    let fields = [range, &lines[..]].concat();
                    assert_eq!(world.put("/f", &fields, &bytes), 400, "{fields:?}");
                }
            }
            let mut value = sum(algorithm, &bytes);
            let right = format!("Digest: {}", algorithm.field_of_rfc3230(&value));
            value[0] ^= 1;
            let wrong = format!("Digest: {}", algorithm.field_of_rfc3230(&value));
            assert_eq!(world.put("/f", &[range, &[&wrong]].concat(), &bytes), 400, "{wrong}");
            assert_eq!(world.put("/right", &[range, &[&right]].concat(), &bytes) / 100, 2, "{right}");
        }
        let md5 = sum(HashAlgorithm::Md5, b"other");
        let old = format!("Content-MD5: {}", &HashAlgorithm::Md5.field_of_rfc3230(&md5)[4..]);
        let own = format!("OC-Checksum: SHA1:{}", hexadecimal(&sum(HashAlgorithm::Sha1, b"other")));
        for wrong in [&old[..], &own] {
            assert_eq!(world.put("/f", &[range, &[wrong]].concat(), &bytes), 400, "{wrong}");
        }
    }
    assert_eq!(world.paths(), ["right"]);
}

#[test]
fn digest_of_trailers_is_checked() {
    let mut world = UploadsFixture::new();
    for (field, wrong, status) in [("Content-Digest", true, 409), ("Content-Digest", false, 202)] {
        for algorithm in ALL {
            let trailer = digest(field, algorithm, b"some", wrong);
            let content = format!("4\r\nsome\r\n0\r\n{trailer}\r\n\r\n");
            let fields = ["Transfer-Encoding: chunked", "Trailer: Content-Digest", "Content-Range: bytes 0-3/8"];
            let of = digest("Repr-Digest", HashAlgorithm::Sha256, b"somemore", false);
            let told = world.put("/f", &[&fields[..], &[&of]].concat(), content.as_bytes());
            assert_eq!(told, status, "{trailer}");
        }
    }
    let of = digest("Repr-Digest", HashAlgorithm::Sha256, b"somemore", false);
    assert_eq!(world.put("/f", &["Content-Range: bytes 4-7/8", &of], b"more"), 201);
    let content = format!("4\r\nsome\r\n0\r\n{}\r\n\r\n", digest("Repr-Digest", HashAlgorithm::Md5, b"else", false));
    let fields = ["Transfer-Encoding: chunked", "Trailer: Repr-Digest", "Content-Range: bytes 0-3/4"];
    assert_eq!(world.put("/g", &fields, content.as_bytes()), 400);
    assert_eq!(world.paths(), ["f"]);
}

#[test]
fn malformed_digest_is_refused() {
    let mut world = UploadsFixture::new();
    let cases = [
        "Repr-Digest: sha-256=:!!!:",
        "Repr-Digest: sha-256=AAAA",
        "Repr-Digest: sha-256=:AAAA:",
        "Repr-Digest: unknown=5",
        "Repr-Digest: \u{e9}",
        "Content-Digest: crc32c=::",
        "Digest: SHA-256=!!",
        "Digest: sha-256=ZZZ",
        "Digest: adler32=123456789",
        "Content-MD5: AAAA",
        "OC-Checksum: SHA1:0000",
        "OC-Checksum: SHA1",
        "Reservoir-Subtree: 00",
    ];
    for bad in cases {
        assert_eq!(world.put("/f", &[bad], b"bytes"), 400, "{bad}");
        assert_eq!(world.put("/f", &[bad, "Content-Range: bytes 0-4/10"], b"bytes"), 400, "{bad}");
    }
    assert!(world.paths().is_empty());
    // RFC 9530 2: servers ignore unknown algorithms.
    assert_eq!(world.put("/f", &["Repr-Digest: unixsum=:AAAA:", "Digest: unixcksum=1"], b"bytes"), 201);
}

#[test]
fn name_of_a_folder_is_refused() {
    let mut world = UploadsFixture::new();
    for name in ["/", "/folder/"] {
        assert_eq!(world.put(name, &[], b"bytes"), 409, "{name}");
        let named = ["Reservoir-Upload: u", "Reservoir-Blocks: 4/1024"];
        assert_eq!(world.ask("POST", name, &named, b"").0, 409, "{name}");
    }
    assert!(world.paths().is_empty());
}

#[test]
fn coded_content_is_refused() {
    let mut world = UploadsFixture::new();
    let part = "Content-Range: bytes 0-4/5";
    let pack = "Content-Type: application/x-reservoir-pack";
    let named = ["Reservoir-Upload: u", "Reservoir-Blocks: 5/1024", "Content-Range: bytes */5"];
    let of_content = digest("Content-Digest", HashAlgorithm::Sha256, b"bytes", false);
    let of_file = digest("Repr-Digest", HashAlgorithm::Sha256, b"bytes", false);
    let cases: [(&str, &[&str], u16); 15] = [
        ("PUT", &[part, "Transfer-Encoding: chunked, chunked"], 501),
        // These requests have bytes or digests that the server cannot use.
        ("POST", &[named[0], named[1]], 400),
        ("PUT", &named, 400),
        ("POST", &[pack, &of_content], 400),
        ("POST", &[pack, &of_file], 400),
        ("POST", &[named[0], named[1], "Content-Length: 0", &of_content], 400),
        ("PUT", &["Content-Encoding: gzip"], 415),
        ("PUT", &["Content-Encoding: identity", "Content-Encoding: br"], 415),
        ("PUT", &["Content-Type: Multipart/Byteranges; boundary=x"], 415),
        ("PUT", &[part, "Transfer-Encoding: gzip, chunked"], 501),
        ("PUT", &[part, part], 400),
        ("PUT", &["Content-Range: bytes 0-4/5\u{e9}"], 400),
        ("POST", &[part, pack], 400),
        ("POST", &["Content-Encoding: gzip", pack], 415),
        ("COPY", &[part, "Source: https://other/f"], 400),
    ];
    for (method, fields, status) in cases {
        let content =
            if fields.iter().any(|field| field.contains("chunked")) { "5\r\nbytes\r\n0\r\n\r\n" } else { "bytes" };
        assert_eq!(world.ask(method, "/f", fields, content.as_bytes()).0, status, "{method} {fields:?}");
    }
    assert!(world.paths().is_empty());
    assert_eq!(world.put("/f", &["Content-Encoding: identity"], b"bytes"), 201);
}

#[test]
fn parts_of_two_files_are_never_one() {
    let (a, b) = ([b'A'; 2000], [b'B'; 2000]);
    let declared = |bytes| digest("Repr-Digest", HashAlgorithm::Sha256, bytes, false);
    let (front, rest) = ("Content-Range: bytes 0-999/2000", "Content-Range: bytes 1000-1999/2000");
    for restarts in [false, true] {
        let mut world = UploadsFixture::new();
        // This part has no field that identifies its file.
        for (fields, part) in [([front, "X: y"], &a[..1000]), ([rest, "X-OC-Mtime: 1"], &b[1000..])] {
            assert_eq!(world.put("/f", &fields, part), 400);
        }
        assert_eq!(world.put("/f", &[front, &declared(&a)], &a[..1000]), 202);
        if restarts {
            world.begin_anew();
        }
        assert_eq!(world.put("/f", &[rest, &declared(&b)], &b[1000..]), 202);
        assert_eq!(world.medium.get(Path::new("f")), None);
        // The file of `b` is complete now, with its own two parts.
        assert_eq!(world.put("/f", &[front, &declared(&b)], &b[..1000]), 201);
        assert!(world.medium.get(Path::new("f")).unwrap() == b);
        assert_eq!(world.paths(), ["f"]);
    }
}

#[test]
fn parts_with_a_wrong_file_digest_leave_no_files() {
    let mut world = UploadsFixture::new();
    let of = digest("Digest", HashAlgorithm::Sha256, b"x", false).replace("=:", "=").replace(":\r", "");
    let of = of.trim_end_matches(':');
    assert_eq!(world.put("/f", &["Content-Range: bytes 4-7/8", of], b"more"), 202);
    assert_eq!(world.put("/f", &["Content-Range: bytes 0-3/8", of], b"some"), 400);
    assert!(world.paths().is_empty());
}

/// A wrong part has overwritten a right part, which no longer counts as present.
#[test]
fn part_that_was_written_over_is_missing() {
    let mut world = UploadsFixture::new();
    let named = ["Reservoir-Upload: u", "Reservoir-Blocks: 2048/2048"];
    assert_eq!(world.ask("POST", "/f", &named, b"").0, 200);
    let put = |world: &mut UploadsFixture, range: &str, more: &str, content: &[u8]| {
        let range = format!("Content-Range: bytes {range}/2048");
        world.put("/f", &[&named[..], &[&range, more]].concat(), content)
    };
    assert_eq!(put(&mut world, "0-1023", "x: y", &[1; 1024]), 202);
    let wrong = digest("Content-Digest", HashAlgorithm::Sha256, &[1; 1024], false);
    assert_eq!(put(&mut world, "0-1023", &wrong, &[2; 1024]), 409);
    assert_eq!(put(&mut world, "1024-2047", "x: y", &[1; 1024]), 202);
    assert_eq!(put(&mut world, "*", "x: y", b""), 409);
    assert_eq!(put(&mut world, "0-1023", "x: y", &[1; 1024]), 202);
    assert_eq!(put(&mut world, "*", "x: y", b""), 201);
    assert!(world.medium.get(Path::new("f")).unwrap() == [1; 2048]);
}

/// The digest can come with any request of the upload.
#[test]
fn named_upload_has_all_declared_digests() {
    let named = ["Reservoir-Upload: u", "Reservoir-Blocks: 4/1024"];
    for (at, algorithm) in
        [(0, HashAlgorithm::Md5), (1, HashAlgorithm::Sha1), (2, HashAlgorithm::Sha512), (3, HashAlgorithm::Blake3)]
    {
        let mut world = UploadsFixture::new();
        let wrong = digest("Repr-Digest", algorithm, b"else", false);
        let of = |number: usize| if number.min(2) == at.min(2) { &wrong[..] } else { "x: y" };
        assert_eq!(world.ask("POST", "/f", &[named[0], named[1], of(0)], b"").0, 200);
        assert_eq!(world.put("/f", &[named[0], named[1], of(1), "Content-Range: bytes 0-3/4"], b"some"), 202);
        assert_eq!(world.put("/f", &[named[0], named[1], of(2), "Content-Range: bytes */4"], b""), 422);
        assert_eq!(world.medium.get(Path::new("f")), None);
    }
}

/// A late request of a replaced upload does not change the replacing upload.
#[test]
fn late_part_of_another_upload_is_refused() {
    let mut world = UploadsFixture::new();
    let fields = |id: &str, range: &str| {
        [format!("Reservoir-Upload: {id}"), "Reservoir-Blocks: 2048/1024".to_owned(), format!("Content-Range: {range}")]
    };
    let ask = |world: &mut UploadsFixture, method: &str, id: &str, range: &str, content: &[u8]| {
        let fields = fields(id, range);
        let fields: Vec<&str> = fields.iter().take(if method == "POST" { 2 } else { 3 }).map(String::as_str).collect();
        world.ask(method, "/f", &fields, content).0
    };
    assert_eq!(ask(&mut world, "POST", "a", "", b""), 200);
    assert_eq!(ask(&mut world, "PUT", "a", "bytes 0-1023/2048", &[1; 1024]), 202);
    assert_eq!(ask(&mut world, "POST", "b", "", b""), 200);
    assert_eq!(ask(&mut world, "PUT", "b", "bytes 0-1023/2048", &[2; 1024]), 202);
    assert_eq!(ask(&mut world, "PUT", "a", "bytes 1024-2047/2048", &[1; 1024]), 423);
    world.begin_anew();
    assert_eq!(ask(&mut world, "PUT", "a", "bytes 1024-2047/2048", &[1; 1024]), 410);
    assert_eq!(ask(&mut world, "PUT", "b", "bytes 1024-2047/2048", &[2; 1024]), 202);
    assert_eq!(ask(&mut world, "PUT", "b", "bytes */2048", b""), 201);
    assert!(world.medium.get(Path::new("f")).unwrap() == [2; 2048]);
}

/// An earlier version of the server identified uploads by texts such as `whole 0`.
#[test]
fn upload_name_does_not_match_a_one_request_file() {
    let mut world = UploadsFixture::new();
    let mut slow = world.connect();
    let (status, content) = world.executor.block_on(async {
        slow.write_all(b"PUT /f HTTP/1.1\r\nhost: x\r\ncontent-length: 4\r\n\r\nso").await.unwrap();
        world.shell.sleep(Duration::from_secs(1)).await;
        let (mut ours, theirs) = tokio::io::duplex(1 << 16);
        let server = world.server.clone();
        world.shell.spawn(async move { server.serve(theirs, "client").await });
        for number in 0..64 {
            for name in ["whole", "request"] {
                let head = format!(
                    "PUT /f HTTP/1.1\r\nhost: x\r\nreservoir-upload: {name} {number}\r\nreservoir-blocks: 4/16777216\r\ncontent-range: bytes 0-3/4\r\ncontent-length: 4\r\n\r\nevil"
                );
                ours.write_all(head.as_bytes()).await.unwrap();
                let mut answer = [0; 2000];
                let length = ours.read(&mut answer).await.unwrap();
                assert!(answer[..length].starts_with(b"HTTP/1.1 423"));
            }
        }
        slow.write_all(b"me").await.unwrap();
        let mut line = [0; 12];
        slow.read_exact(&mut line).await.unwrap();
        (line, world.medium.get(Path::new("f")))
    });
    assert!(status.ends_with(b"201") && content.unwrap() == b"some");
}

/// The same user's next upload gets the name as soon as the first client has disconnected. Uploads of other users wait.
#[test]
fn upload_gives_way_once_its_client_has_gone() {
    let mut world = UploadsFixture::new();
    let token = |name: &str| {
        let hash = hexadecimal(&sum(HashAlgorithm::Sha256, name.as_bytes()));
        format!("[[token]]\nname = \"{name}\"\nsha256 = \"{hash}\"\nrights = [\"read\", \"write\"]\n")
    };
    world.server.set_tokens(Tokens::read(&(token("me") + &token("other"))).unwrap());
    let (me, other) = ("Authorization: Bearer me", "Authorization: Bearer other");
    let named = ["Reservoir-Upload: u", "Reservoir-Blocks: 2048/1024"];
    let mut open = world.connect();
    let begin =
        format!("POST /f HTTP/1.1\r\nhost: x\r\n{me}\r\n{}\r\n{}\r\ncontent-length: 0\r\n\r\n", named[0], named[1]);
    world.executor.block_on(async {
        open.write_all(begin.as_bytes()).await.unwrap();
        let mut line = [0; 12];
        open.read_exact(&mut line).await.unwrap();
        assert!(line.ends_with(b"200"));
    });
    // The first client is still connected, so even its own user has to wait.
    let (status, answer) = world.ask("PUT", "/f", &[me], b"mine");
    let until = answer.split_once("until ").unwrap().1;
    assert!(until[2..].starts_with(':') && until[5..].starts_with(" UTC"), "{answer}");
    assert!(status == 423 && answer.contains("retry-after: 60"), "{answer}");
    // The connection ends as after `kill -9`.
    drop(open);
    world.executor.run_for(Duration::from_secs(1));
    assert_eq!(world.put("/f", &[other], b"others'"), 423);
    assert_eq!(world.put("/f", &[me], b"mine"), 201);
    assert_eq!(world.put("/f", &[other], b"others'"), 204);
    assert_eq!(world.paths(), ["f"]);
}

/// Uploads of disconnected clients do not count as unfinished uploads of the user, but keep their blocks.
#[test]
fn killed_uploads_use_up_no_places_of_their_user() {
    let mut world = UploadsFixture::new();
    let named = ["Reservoir-Upload: u", "Reservoir-Blocks: 2048/1024"];
    let most = ServerLimits::default().uploads_of_a_user;
    for number in 0..=most {
        assert_eq!(world.ask("POST", &format!("/f{number}"), &named, b"").0, 200);
        let part = [&named[..], &["Content-Range: bytes 0-1023/2048"]].concat();
        assert_eq!(world.put(&format!("/f{number}"), &part, &[7; 1024]), 202);
    }
    let resumed = [&named[..], &["Reservoir-Resume: ?1"]].concat();
    let (status, answer) = world.ask("POST", "/f0", &resumed, b"");
    assert!(status == 200 && answer.contains("reservoir-present: 1"), "{answer}");
    let mut open: Vec<_> = (0..=most).map(|_| world.connect()).collect();
    let statuses = world.executor.block_on(async {
        let mut statuses = Vec::new();
        for (number, stream) in open.iter_mut().enumerate() {
            let head = format!("POST /g{number} HTTP/1.1\r\nhost: x\r\n{}\r\n{}\r\n", named[0], named[1]);
            stream.write_all(format!("{head}content-length: 0\r\n\r\n").as_bytes()).await.unwrap();
            let mut line = [0; 12];
            stream.read_exact(&mut line).await.unwrap();
            statuses.push(line[9..].to_vec());
        }
        statuses
    });
    assert_eq!(statuses.iter().filter(|status| *status == b"200").count(), most);
    assert_eq!(statuses.last().unwrap(), b"429");
}

/// The server has not noticed the end of a killed client's connection yet.
#[test]
fn copy_waits_for_a_name_that_is_locked() {
    for size in [3000, 3 << 20] {
        let mut world = UploadsFixture::new();
        let here = RamDisk::new(Seed(2));
        here.put(&Name::from_url("/f").unwrap(), &vec![7; size]);
        let mut open = world.connect();
        let sleeper = world.shell.clone();
        world.shell.spawn(async move {
            let named = "reservoir-upload: u\r\nreservoir-blocks: 2048/1024";
            let begin = format!("POST /f HTTP/1.1\r\nhost: x\r\n{named}\r\ncontent-length: 0\r\n\r\n");
            open.write_all(begin.as_bytes()).await.unwrap();
            sleeper.sleep(Duration::from_secs(30)).await;
            drop(open);
        });
        world.executor.run_for(Duration::from_secs(1));
        let copy = world.copy();
        let from = CopyLocation::in_folder(Arc::new(here.mount(None)), Name::from_url("/f").unwrap());
        let to = CopyLocation::parse("https://server/f", None).unwrap();
        let outcome = world.executor.block_on(copy.run(&[from], &to)).unwrap();
        assert_eq!((outcome.copied, outcome.failed.len()), (1, 0), "{outcome:?}");
        assert_eq!(world.medium.get(Path::new("f")).unwrap().len(), size);
    }
}

#[test]
fn users_with_spaces_in_their_names_stay_distinct() {
    let mut world = UploadsFixture::new();
    let token = |name: &str, token: &str| {
        let hash = hexadecimal(&sum(HashAlgorithm::Sha256, token.as_bytes()));
        format!("[[token]]\nname = \"{name}\"\nsha256 = \"{hash}\"\nrights = [\"write\"]\n")
    };
    let tokens = token("a b", "one") + &token("a", "two");
    world.server.set_tokens(Tokens::read(&tokens).unwrap());
    let blocks = "Reservoir-Blocks: 2048/1024";
    let one = ["Authorization: Bearer one", "Reservoir-Upload: c", blocks];
    assert_eq!(world.ask("POST", "/f", &one, b"").0, 200);
    let part = [&one[..], &["Content-Range: bytes 0-1023/2048"]].concat();
    assert_eq!(world.put("/f", &part, &[1; 1024]), 202);
    world.begin_anew();
    world.server.set_tokens(Tokens::read(&tokens).unwrap());
    let two = ["Authorization: Bearer two", "Reservoir-Upload: b c", blocks, "Reservoir-Resume: ?1"];
    let (status, answer) = world.ask("POST", "/f", &two, b"");
    assert!(status == 200 && answer.contains("reservoir-present: 0"), "{answer}");
}

#[test]
fn impossible_length_is_refused_and_leaves_no_file() {
    let mut world = UploadsFixture::new();
    for length in [1_u64 << 62, (1 << 62) + 1, 1 << 63, u64::MAX - 3] {
        assert_eq!(world.put("/f", &[&format!("Content-Length: {length}")], b"some"), 413, "{length}");
    }
    for length in [1_u64 << 44, (1 << 62) - 1] {
        assert_eq!(world.put("/f", &[&format!("Content-Length: {length}")], b""), 413, "{length}");
        let blocks = format!("Reservoir-Blocks: {length}/1073741824");
        let named = ["Reservoir-Upload: u", &blocks, "Content-Length: 0"];
        assert!([400, 413].contains(&world.ask("POST", "/f", &named, b"").0));
    }
    assert!(world.paths().is_empty());
}

#[test]
fn full_disk_leaves_no_files_of_a_pack() {
    let files = 40;
    for pulls in [false, true] {
        let mut world = UploadsFixture::new();
        let (here, there) = (RamDisk::new(Seed(2)), world.medium.clone());
        let (source, target) = if pulls { (&there, &here) } else { (&here, &there) };
        for number in 0..files {
            source.put(&Name::from_url(&format!("/file-{number}")).unwrap(), &[7; 1000]);
        }
        // There is room for about half of the files.
        target.set_room(20_500);
        let copy = world.copy().retries(0);
        let local = CopyLocation::in_folder(Arc::new(here.mount(None)), Name::root());
        let remote = CopyLocation::parse("https://server/", None).unwrap();
        let (from, to) = if pulls { (remote, local) } else { (local, remote) };
        let outcome = world.executor.block_on(copy.run(&[from], &to)).unwrap();
        assert!(outcome.failed.len() >= files / 2, "{outcome:?}");
        let left = target.paths().into_iter().filter(|path| path.display().to_string().contains("reservoir"));
        assert_eq!(left.collect::<Vec<_>>(), Vec::<std::path::PathBuf>::new());
    }
}
