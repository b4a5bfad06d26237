//! Copies from and to servers in memory: scripted servers, and a reservoir.

use super::{Copy, CopyLocation, PlainDialer, SyncMode};
use crate::credentials::ServerTokens;
use crate::mtime;
use crate::name::Name;
use crate::rooted::Rooted;
use crate::{Server, ServerLimits, Shell};
use bytes::Bytes;
use core::convert::Infallible;
use core::sync::atomic::{AtomicUsize, Ordering};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::header::{CONTENT_RANGE, DATE, ETAG, LAST_MODIFIED, RANGE};
use hyper::http::request::Parts;
use hyper::http::response::Builder;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::SystemTime;

type Scripted = Arc<dyn Fn(&str, &Parts, Bytes) -> Response<Full<Bytes>> + Send + core::marker::Sync>;

/// Creates a copy. Its host `store` is a reservoir over `root`, and its other hosts follow scripts.
fn copy(root: &Path, scripted: Scripted) -> Copy {
    let server =
        Server::new(Arc::new(Rooted::open(root).unwrap()), Shell::tokio(), ServerLimits::default()).open_to_all();
    let dial = PlainDialer::new(move |host: &str, port| {
        let (ours, theirs) = tokio::io::duplex(1 << 16);
        if host == "store" {
            let server = server.clone();
            tokio::spawn(async move { server.serve(theirs, "memory").await });
            return Ok(ours);
        }
        let (scripted, host) = (scripted.clone(), if port == 443 { host.to_owned() } else { format!("{host}:{port}") });
        let service = service_fn(move |request: Request<Incoming>| {
            let (scripted, host) = (scripted.clone(), host.clone());
            async move {
                let (head, body) = request.into_parts();
                let body = body.collect().await.map(|body| body.to_bytes()).unwrap_or_default();
                Ok::<_, Infallible>(scripted(&host, &head, body))
            }
        });
        tokio::spawn(hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(theirs), service));
        Ok(ours)
    });
    Copy::new(Shell::tokio(), Arc::new(dial)).block(1024).unwrap().retries(1)
}

fn silent() -> Scripted {
    Arc::new(|_, _, _| status(StatusCode::NOT_FOUND))
}

fn status(status: StatusCode) -> Response<Full<Bytes>> {
    Response::builder().status(status).body(Full::default()).unwrap()
}

/// Answers with a file, or with the requested range of it.
fn file(head: &Parts, builder: Builder, bytes: &[u8]) -> Response<Full<Bytes>> {
    let whole = bytes.len() as u64;
    let asked = head.headers.get(RANGE).map(|range| http_rules::range::select(range.to_str().unwrap(), whole));
    let (builder, bytes) = match asked {
        Some(http_rules::range::SelectedRange::Part(range)) => (
            builder
                .status(StatusCode::PARTIAL_CONTENT)
                .header(CONTENT_RANGE, format!("bytes {}-{}/{whole}", range.start, range.end - 1)),
            &bytes[range.start as usize..range.end as usize],
        ),
        _ => (builder, bytes),
    };
    builder.body(Full::from(bytes.to_vec())).unwrap()
}

fn url(text: &str) -> CopyLocation {
    CopyLocation::parse(text, None).unwrap()
}

fn set_modified(path: &Path, time: &str) {
    std::fs::File::open(path).unwrap().set_modified(mtime::from_text(time).unwrap()).unwrap();
}

fn modified(path: &Path) -> SystemTime {
    std::fs::metadata(path).unwrap().modified().unwrap()
}

#[tokio::test]
async fn token_reaches_its_own_server_only() {
    let folder = tempfile::tempdir().unwrap();
    let heard = Arc::new(Mutex::new(Vec::new()));
    let hearing = heard.clone();
    let scripted: Scripted = Arc::new(move |host, head, _| {
        let token = head.headers.get("authorization").map(|token| token.to_str().unwrap().to_owned());
        hearing.lock().unwrap().push((host.to_owned(), token));
        match head.method {
            Method::OPTIONS => status(StatusCode::METHOD_NOT_ALLOWED),
            _ => file(head, Response::builder().header(ETAG, "\"1\""), &[7; 5000]),
        }
    });
    let servers = ["mine", "other", "third"].map(|host| (host.to_owned(), 443)).into();
    let tokens = ServerTokens::read("mine SECRET\nthird THIRD").unwrap().bind(&servers).unwrap();
    let copy = copy(folder.path(), scripted).tokens(tokens);
    let to = CopyLocation::local(&folder.path().join("copied")).unwrap();
    copy.run(&[url("https://MINE/a")], &to).await.unwrap();
    copy.run(&[url("https://other/a")], &to).await.unwrap();
    copy.clone().stripe(vec!["third".parse().unwrap()]).run(&[url("https://mine/a")], &to).await.unwrap();
    // The token of a place is not sent to other servers.
    let place = CopyLocation::parse("https://other/a", Some("OWN")).unwrap();
    copy.clone().stripe(vec!["other:444".parse().unwrap()]).run(&[place], &to).await.unwrap();
    copy.run(&[url("https://other/a")], &url("https://mine/b")).await.unwrap();
    let heard = core::mem::take(&mut *heard.lock().unwrap());
    for (host, token) in &heard {
        // Requests to the striped port of `other` must carry no token at all.
        let allowed: &[Option<&str>] = match &host[..] {
            "mine" => &[Some("Bearer SECRET")],
            "third" => &[Some("Bearer THIRD")],
            "other" => &[None, Some("Bearer OWN")],
            _ => &[None],
        };
        assert!(allowed.contains(&token.as_deref()), "{host} heard {token:?}");
    }
    for host in ["mine", "third", "other", "other:444"] {
        assert!(heard.iter().any(|(heard, _)| heard == host), "{host} was not asked");
    }
}

#[tokio::test]
async fn ranges_of_two_versions_are_never_put_together() {
    let (old, new) = ("Sat, 28 Nov 2026 09:00:00 GMT", "Sat, 28 Nov 2026 09:00:05 GMT");
    let validators: [&[(hyper::header::HeaderName, [&'static str; 2])]; 6] = [
        &[],
        &[(LAST_MODIFIED, [old, new])],
        &[(LAST_MODIFIED, [old, new]), (DATE, [new, "Sat, 28 Nov 2026 10:00:00 GMT"])],
        // Both changes have the same date, within one second.
        &[(LAST_MODIFIED, [old, old]), (DATE, [old, old])],
        &[(ETAG, ["W/\"1\"", "W/\"2\""])],
        &[(ETAG, ["W/\"1\"", "W/\"1\""])],
    ];
    for (case, fields) in validators.into_iter().enumerate() {
        for after in 0..8 {
            let folder = tempfile::tempdir().unwrap();
            let (gets, fields) = (AtomicUsize::new(0), fields.to_vec());
            let scripted: Scripted = Arc::new(move |_, head, _| {
                let before = if head.method == Method::GET { gets.fetch_add(1, Ordering::Relaxed) } else { 0 };
                let is_new = before >= after || gets.load(Ordering::Relaxed) > after;
                let builder = fields.iter().fold(Response::builder(), |builder, (name, values)| {
                    builder.header(name, values[usize::from(is_new)])
                });
                match head.method {
                    Method::OPTIONS => status(StatusCode::METHOD_NOT_ALLOWED),
                    _ => file(head, builder, &[b'A' + u8::from(is_new); 10_000]),
                }
            });
            let copy = copy(folder.path(), scripted).streams(2).resume(true);
            for to in ["local", "store"] {
                let place = match to {
                    "local" => CopyLocation::local(&folder.path().join(to)).unwrap(),
                    _ => url("https://store/store"),
                };
                // The first attempt fails, and the second resumes.
                for _ in 0..2 {
                    let _ = copy.run(&[url("https://other/a")], &place).await;
                    if let Ok(came) = std::fs::read(folder.path().join(to)) {
                        let first = came[0];
                        assert!(came.iter().all(|byte| *byte == first), "case {case}, changed after {after}, to {to}");
                    }
                }
            }
        }
    }
}

#[tokio::test]
async fn file_without_a_version_comes_by_one_request() {
    let folder = tempfile::tempdir().unwrap();
    let gets = Arc::new(AtomicUsize::new(0));
    let counted = gets.clone();
    let scripted: Scripted = Arc::new(move |_, head, _| {
        counted.fetch_add(usize::from(head.method == Method::GET), Ordering::Relaxed);
        file(head, Response::builder(), &[5; 100_000])
    });
    let to = CopyLocation::local(&folder.path().join("copied")).unwrap();
    let outcome = copy(folder.path(), scripted).verify(true).run(&[url("https://other/a")], &to).await.unwrap();
    assert_eq!((outcome.copied, outcome.failed.len(), gets.load(Ordering::Relaxed)), (1, 0, 1));
    assert_eq!(std::fs::read(folder.path().join("copied")).unwrap(), [5; 100_000]);
}

#[tokio::test]
async fn url_with_a_query_is_asked_for_as_it_is_written() {
    let folder = tempfile::tempdir().unwrap();
    let heard = Arc::new(Mutex::new(Vec::new()));
    let hearing = heard.clone();
    let scripted: Scripted = Arc::new(move |_, head, body| {
        hearing.lock().unwrap().push((head.method.clone(), head.uri.to_string(), body));
        match head.method {
            Method::GET if head.uri == "/a(1)/b%2Bc?sig=a%2Bb/&x=1" => {
                file(head, Response::builder().header(ETAG, "\"1\""), &[7; 5000])
            }
            Method::PUT => status(StatusCode::CREATED),
            // The signature is for one method.
            _ => status(StatusCode::FORBIDDEN),
        }
    });
    let copy = copy(folder.path(), scripted);
    let from = url("https://other/a(1)/b%2Bc?sig=a%2Bb/&x=1");
    let to = CopyLocation::local(folder.path()).unwrap();
    let outcome = copy.run(&[from], &to).await.unwrap();
    assert_eq!((outcome.copied, outcome.failed.len()), (1, 0), "{:?}", outcome.failed);
    assert_eq!(std::fs::read(folder.path().join("b+c")).unwrap(), [7; 5000]);
    let from = CopyLocation::local(&folder.path().join("b+c")).unwrap();
    let outcome = copy.run(std::slice::from_ref(&from), &url("https://other/put?sig=z")).await.unwrap();
    assert_eq!((outcome.copied, outcome.failed.len()), (1, 0), "{:?}", outcome.failed);
    {
        let heard = heard.lock().unwrap();
        let puts: Vec<_> = heard.iter().filter(|(method, ..)| *method == Method::PUT).collect();
        assert!(puts.len() == 1 && puts[0].1 == "/put?sig=z" && puts[0].2 == [7; 5000][..], "{puts:?}");
    }
    for (sources, to) in [(vec![to.clone()], "https://other/put?sig=z"), (vec![from.clone(), from], "https://other/?x")]
    {
        let told = copy.run(&sources, &url(to)).await.err().unwrap().to_string();
        assert!(told.contains("one file") && !told.contains("sig"), "{told}");
    }
}

#[tokio::test]
async fn redirect_is_reported_without_its_query() {
    let folder = tempfile::tempdir().unwrap();
    let scripted: Scripted = Arc::new(|_, head, _| match head.uri.path() {
        "/private" => status(StatusCode::UNAUTHORIZED),
        _ => {
            let moved = Response::builder().status(StatusCode::FOUND).header("location", "https://else/a?sig=SECRET");
            moved.body(Full::default()).unwrap()
        }
    });
    let copy = copy(folder.path(), scripted);
    let to = CopyLocation::local(folder.path()).unwrap();
    let told = copy.run(&[url("https://other/a")], &to).await.err().unwrap().to_string();
    assert!(told.contains("not followed: ask https://else/a itself") && !told.contains("SECRET"), "{told}");
    let told = copy.run(&[url("https://other/private")], &to).await.err().unwrap().to_string();
    assert!(told.contains("no token was sent: set RESERVOIR_TOKEN") && told.contains("`other:443 TOKEN`"), "{told}");
}

#[tokio::test]
async fn times_of_any_sign_are_kept() {
    let folder = tempfile::tempdir().unwrap();
    let (from, root) = (folder.path().join("from"), folder.path().join("root"));
    std::fs::create_dir(&root).unwrap();
    let copy = copy(&root, silent()).sync(SyncMode::SizeTime);
    for time in ["0", "0.5", "-1.25", "-1000000000.000000001", "1700000000.123456789", "13569465600"] {
        for size in [10, 5000] {
            std::fs::write(&from, vec![1; size]).unwrap();
            set_modified(&from, time);
            let source = CopyLocation::local(&from).unwrap();
            let local = CopyLocation::local(&folder.path().join("local")).unwrap();
            copy.run(std::slice::from_ref(&source), &local).await.unwrap();
            assert_eq!(modified(&folder.path().join("local")), modified(&from), "{time}");
            assert_eq!(copy.run(std::slice::from_ref(&source), &local).await.unwrap().present, 1, "{time}");
            let name = format!("{time} {size}");
            let to = CopyLocation::parse(&format!("https://store/{time}%20{size}"), None).unwrap();
            let outcome = copy.clone().sync(SyncMode::Nothing).run(&[source], &to).await.unwrap();
            assert_eq!(outcome.copied, 1, "{:?}", outcome.failed);
            assert_eq!(modified(&root.join(name)), modified(&from), "{time}");
        }
    }
}

#[tokio::test]
async fn file_of_the_same_second_is_copied_again() {
    let folder = tempfile::tempdir().unwrap();
    let (from, root) = (folder.path().join("from"), folder.path().join("root"));
    std::fs::create_dir(&root).unwrap();
    let copy = copy(&root, silent());
    for (to, there) in
        [(url("https://store/a"), "root/a"), (CopyLocation::local(&folder.path().join("b")).unwrap(), "b")]
    {
        for copy in [copy.clone().resume(true), copy.clone().sync(SyncMode::SizeTime)] {
            for (bytes, time, present) in
                [("AAAA", "1700000000", 0), ("BBBB", "1700000000.9", 0), ("BBBB", "1700000000.9", 1)]
            {
                std::fs::write(&from, bytes).unwrap();
                set_modified(&from, time);
                let outcome = copy.run(&[CopyLocation::local(&from).unwrap()], &to).await.unwrap();
                assert_eq!(outcome.present, present, "{there}, {bytes}, {:?}", outcome.failed);
                assert_eq!(std::fs::read_to_string(folder.path().join(there)).unwrap(), bytes);
            }
            std::fs::remove_file(folder.path().join(there)).unwrap();
        }
    }
}

#[tokio::test]
async fn empty_folders_are_made_and_reserved_names_reported() {
    let folder = tempfile::tempdir().unwrap();
    let (from, root) = (folder.path().join("from"), folder.path().join("root"));
    std::fs::create_dir_all(from.join("a/empty")).unwrap();
    std::fs::create_dir_all(from.join("b")).unwrap();
    std::fs::create_dir(&root).unwrap();
    std::fs::write(from.join("b/file"), "text").unwrap();
    std::fs::write(from.join("b/.reservoir-settings"), "precious").unwrap();
    std::fs::write(from.join("b").join(Name::from_url("/x").unwrap().unfinished().path()), "half").unwrap();
    let copy = copy(&root, silent());
    let source = CopyLocation::local(&from).unwrap();
    for (to, there) in [
        (url("https://store/into/"), "root/into/from"),
        (CopyLocation::local(&folder.path().join("to")).unwrap(), "to"),
    ] {
        // The second time, the destination is complete already.
        for _ in 0..2 {
            let outcome = copy.run(std::slice::from_ref(&source), &to).await.unwrap();
            assert_eq!((outcome.copied, outcome.folders, outcome.failed.len()), (1, 1, 1), "{:?}", outcome.failed);
            assert!(outcome.failed[0].1.contains(".reservoir-settings"), "{:?}", outcome.failed);
            assert!(folder.path().join(there).join("a/empty").is_dir());
        }
    }
    let outcome = copy.exclude(vec![".reservoir-settings".parse().unwrap(), "a".parse().unwrap()]);
    let outcome = outcome.run(&[source, url("https://store/into/from/")], &url("https://store/all/")).await.unwrap();
    assert_eq!((outcome.copied, outcome.folders, outcome.failed.len()), (2, 0, 0), "{:?}", outcome.failed);
    // A server lists its reserved names, so the copy back reports them too.
    std::fs::write(root.join("into/from/.reservoir-settings"), "precious").unwrap();
    std::os::unix::fs::symlink(".", root.join("into/from/circle")).unwrap();
    let to = CopyLocation::local(&folder.path().join("back")).unwrap();
    let outcome = self::copy(&root, silent()).run(&[url("https://store/into/")], &to).await.unwrap();
    let told: String = outcome.failed.iter().map(|(_, why)| why.as_str()).collect();
    assert_eq!((outcome.folders, outcome.failed.len()), (1, 2), "{told}");
    assert!(told.contains(".reservoir-settings") && told.contains("neither file nor folder"), "{told}");
    assert!(folder.path().join("back/from/a/empty").is_dir());
}

#[tokio::test]
async fn empty_folder_fails_on_a_server_without_folders() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(folder.path().join("from/a/empty")).unwrap();
    let made = Arc::new(Mutex::new(vec!["/".to_owned()]));
    let making = made.clone();
    let scripted: Scripted = Arc::new(move |host, head, _| {
        let path = head.uri.path().to_owned();
        let mut made = making.lock().unwrap();
        let above = path.trim_end_matches('/').rsplit_once('/').unwrap().0.to_owned() + "/";
        match head.method.as_str() {
            "MKCOL" if host == "plain" || made.contains(&path) => status(StatusCode::METHOD_NOT_ALLOWED),
            "MKCOL" if !made.contains(&above) => status(StatusCode::CONFLICT),
            "MKCOL" => {
                made.push(path);
                status(StatusCode::CREATED)
            }
            // A folder without its slash is redirected, as by Apache.
            "HEAD" if host == "dav" && made.contains(&(path.clone() + "/")) => status(StatusCode::MOVED_PERMANENTLY),
            "HEAD" if host == "dav" && made.contains(&path) => status(StatusCode::OK),
            _ => status(StatusCode::NOT_FOUND),
        }
    });
    let copy = copy(folder.path(), scripted);
    let source = CopyLocation::local(&folder.path().join("from")).unwrap();
    let outcome = copy.run(std::slice::from_ref(&source), &url("https://dav/x/")).await.unwrap();
    assert_eq!((outcome.folders, outcome.failed.len()), (1, 0), "{:?}", outcome.failed);
    assert_eq!(made.lock().unwrap()[1..], ["/x/", "/x/from/", "/x/from/a/", "/x/from/a/empty/"]);
    // The second time the folder exists.
    let outcome = copy.run(std::slice::from_ref(&source), &url("https://dav/x/")).await.unwrap();
    assert_eq!((outcome.folders, outcome.failed.len()), (1, 0), "{:?}", outcome.failed);
    let outcome = copy.run(&[source], &url("https://plain/x/")).await.unwrap();
    assert!(outcome.folders == 0 && outcome.failed[0].1.contains("405"), "{:?}", outcome.failed);
}

/// The relay learns only that its reader is gone; the destination's response has the reason.
#[tokio::test]
async fn refusal_of_a_destination_is_not_tried_again() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("large"), vec![3; 1 << 20]).unwrap();
    let puts = Arc::new(AtomicUsize::new(0));
    let counted = puts.clone();
    let dial = PlainDialer::new({
        let server =
            Server::new(Arc::new(Rooted::open(folder.path()).unwrap()), Shell::tokio(), ServerLimits::default());
        let server = server.open_to_all();
        move |host: &str, _| {
            let (ours, theirs) = tokio::io::duplex(1 << 12);
            let (server, counted, is_store) = (server.clone(), counted.clone(), host == "store");
            tokio::spawn(async move {
                if is_store {
                    return server.serve(theirs, "memory").await;
                }
                // The server answers without reading the body.
                let service = service_fn(move |request: Request<Incoming>| {
                    let is_put = request.method() == Method::PUT;
                    counted.fetch_add(usize::from(is_put), Ordering::Relaxed);
                    let refusal = if is_put { StatusCode::INSUFFICIENT_STORAGE } else { StatusCode::NOT_FOUND };
                    core::future::ready(Ok::<_, Infallible>(status(refusal)))
                });
                let http1 = hyper::server::conn::http1::Builder::new();
                drop(http1.serve_connection(TokioIo::new(theirs), service).await);
            });
            Ok(ours)
        }
    });
    let copy = Copy::new(Shell::tokio(), Arc::new(dial));
    let outcome = copy.run(&[url("https://store/large")], &url("https://full/large")).await.unwrap();
    assert!(outcome.failed[0].1.contains("507"), "{:?}", outcome.failed);
    assert_eq!(puts.load(Ordering::Relaxed), 1);
}

#[test]
fn secrets_of_a_url_are_in_no_message() {
    for bad in [
        "https://me:PASSWORD@host/a",
        "https://me:PASS/WORD@host/a",
        "https://me:PASS?WORD@host/a",
        "http://me:PASSWORD@host/a",
        "ftp://me:PASSWORD@host/a?PASSWORD",
        "s3://KEY:PASSWORD@bucket/a",
        "s3://KEY:PASS/WORD@bucket/a",
        "https://host:x/a?sig=PASSWORD",
        "https://host/a?sig=PASSWORD#part",
        "https://host/a#PASSWORD",
        "https://?sig=PASSWORD",
    ] {
        let told = CopyLocation::parse(bad, None).err().unwrap().to_string();
        assert!(!told.contains("PASS") && !told.contains("WORD"), "{told}");
    }
    let place = CopyLocation::parse("https://Host/a?sig=PASSWORD", None).unwrap();
    assert_eq!((place.to_string(), place.server()), ("https://host/a".to_owned(), Some(("host", 443))));
}
