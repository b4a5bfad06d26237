//! Servers that have lost an upload and cannot resume the upload: the copy reports the reason.

use super::medium::RamDisk;
use super::shell;
use core::convert::Infallible;
use core::sync::atomic::{AtomicUsize, Ordering};
use http_body_util::{BodyExt, Empty};
use hyper::body::{Bytes, Incoming};
use hyper::header::{CONTENT_RANGE, SERVER};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use offload_base::Seed;
use offload_reservoir::copy::{Copy, CopyLocation, PlainDialer};
use offload_reservoir::name::Name;
use offload_reservoir::tokens::Tokens;
use offload_reservoir::{Server, ServerLimits};
use offload_testbed::VirtualTime;
use std::sync::{Arc, OnceLock};

/// The server loses the upload at its end, and then forbids a second upload.
#[test]
fn copy_reports_why_a_server_does_not_resume_an_upload() {
    let medium = RamDisk::new(Seed(1));
    let name = Name::from_url("/file").unwrap();
    medium.put(&name, &[7; 3000]);
    let mut executor = VirtualTime::new();
    let shell = shell(Arc::new(executor.handle()));
    let begun = Arc::new(AtomicUsize::new(0));
    let (spawner, counted) = (shell.clone(), begun.clone());
    let dial = PlainDialer::new(move |_: &str, _| {
        let (ours, theirs) = tokio::io::duplex(1 << 16);
        let begun = counted.clone();
        let service = service_fn(move |request| answer(request, begun.clone()));
        let connection = hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(theirs), service);
        spawner.spawn(async move { drop(connection.await) });
        Ok(ours)
    });
    let copy = Copy::new(shell, Arc::new(dial)).streams(1).block(1024).unwrap();
    let from = CopyLocation::in_folder(Arc::new(medium.mount(None)), name);
    let to = CopyLocation::parse("https://server/file", None).unwrap();
    let outcome = executor.block_on(copy.run(&[from], &to)).unwrap();
    assert!(outcome.failed.len() == 1 && outcome.failed[0].1.contains("403"), "{outcome:?}");
    assert_eq!(begun.load(Ordering::Relaxed), 2, "asked once more than needed");
}

/// A token becomes invalid during a copy. The copy reports that, and a copy with another token resumes.
#[test]
fn expired_token_is_reported_and_the_next_copy_resumes() {
    let (here, there) = (RamDisk::new(Seed(1)), RamDisk::new(Seed(2)));
    let name = Name::from_url("/file").unwrap();
    here.put(&name, &[7; 30_000]);
    let mut executor = VirtualTime::new();
    let shell = shell(Arc::new(executor.handle()));
    let tokens = |of: &str| {
        let text = "[[token]]\nname = \"me\"\nrights = [\"read\", \"write\"]\nsha256 = \"".to_owned() + of + "\"\n";
        Tokens::read(&text).unwrap()
    };
    let (served, puts) = (Arc::new(OnceLock::<Server>::new()), Arc::new(AtomicUsize::new(0)));
    let serving = served.clone();
    let log = move |line: &str| {
        // All tokens become invalid with the sixth block.
        if line.contains("PUT") && puts.fetch_add(1, Ordering::Relaxed) == 5 {
            serving.get().unwrap().set_tokens(Tokens::default());
        }
    };
    let server =
        Server::new(Arc::new(there.mount(None)), shell.clone(), ServerLimits::default()).with_log(Arc::new(log));
    let server = served.get_or_init(|| server);
    // SHA-256 of "abc".
    server.set_tokens(tokens("ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"));
    let (spawner, dialed) = (shell.clone(), server.clone());
    let dial = Arc::new(PlainDialer::new(move |_: &str, _| {
        let (ours, theirs) = tokio::io::duplex(1 << 16);
        let server = dialed.clone();
        spawner.spawn(async move { server.serve(theirs, "client").await });
        Ok(ours)
    }));
    let client = Arc::new(here.mount(None));
    let mut copy = |token| {
        let copy = Copy::new(shell.clone(), dial.clone()).streams(2).block(1024).unwrap().resume(true);
        let from = CopyLocation::in_folder(client.clone(), name.clone());
        let to = CopyLocation::parse("https://server/file", Some(token)).unwrap();
        executor.block_on(copy.run(&[from], &to)).unwrap()
    };
    let outcome = copy("abc");
    assert!(outcome.failed.len() == 1 && outcome.failed[0].1.contains("has expired"), "{outcome:?}");
    // SHA-256 of "another".
    server.set_tokens(tokens("ae448ac86c4e8e4dec645729708ef41873ae79c6dff84eff73360989487f08e5"));
    let outcome = copy("another");
    assert!(outcome.failed.is_empty() && outcome.resumed >= 5 * 1024, "{outcome:?}");
    assert_eq!(there.get(name.path()), Some(vec![7; 30_000]));
}

async fn answer(request: Request<Incoming>, begun: Arc<AtomicUsize>) -> Result<Response<Empty<Bytes>>, Infallible> {
    let is_end = request.headers().get(CONTENT_RANGE).is_some_and(|range| range.as_bytes().starts_with(b"bytes */"));
    let status = match *request.method() {
        Method::HEAD => StatusCode::NOT_FOUND,
        Method::PUT if is_end => StatusCode::GONE,
        Method::PUT => StatusCode::ACCEPTED,
        Method::POST if begun.fetch_add(1, Ordering::Relaxed) > 0 => StatusCode::FORBIDDEN,
        _ => StatusCode::OK,
    };
    // A client that still sends must not get an error before the answer.
    let _ = request.into_body().collect().await;
    Ok(Response::builder().status(status).header(SERVER, "nic-offload-reservoir/1").body(Empty::new()).unwrap())
}
