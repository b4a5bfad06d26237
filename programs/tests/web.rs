//! The web server and its client on two emulated hosts, in virtual time: every mode delivers every byte, files are sent
//! without copying, and a pinned client refuses an intercepting proxy.

use core::net::SocketAddr;
use core::time::Duration;
use http_rules::FileVersion;
use hyper::StatusCode;
use hyper::header::{CONTENT_RANGE, ETAG};
use ktls_offload::InPlace;
use nic_sim::NicConfig;
use nic_sim::wire::{Impairments, LinkConfig};
use offload_base::{Instant, Seed};
use offload_host_stack::TcpConfig;
use offload_programs::web::client::{HttpsClientTls, Session, read_body};
use offload_programs::web::comparison::Comparison;
use offload_programs::web::pin::{Pin, trust};
use offload_programs::web::server::Server;
use offload_programs::web::site::Site;
use offload_programs::web::{Mode, WebFailure};
use offload_testbed::Testbed;
use offload_testbed::identity::{self, Randomness};
use rcgen::{CertificateParams, IsCa, Issuer, KeyPair};
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use std::fs::File;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::SystemTime;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

#[path = "web/http3.rs"]
mod http3;

#[test]
fn every_mode_gives_every_byte_uncopied() {
    let folder = WebFolder::new("modes", &[("empty", 0), ("small", 700), ("a page.txt", 5_000), ("large", 3_000_001)]);
    let impairments = Impairments { loss: "0.01".parse().unwrap(), ..Impairments::default() };
    for (mode, lossy) in Mode::ALL.into_iter().flat_map(|mode| [(mode, false), (mode, true)]) {
        let link = if lossy { LinkConfig { impairments, ..LinkConfig::default() } } else { LinkConfig::default() };
        let row = Comparison { connections: 3, link, ..Comparison::new(&folder.0).unwrap() }.run(mode).unwrap();
        // Each of three connections fetches the empty file once and the three others four times.
        assert_eq!(row.requests, 3 * (1 + 3 * 4), "{mode}");
        assert_eq!(row.counters.value("http_requests"), row.requests);
        assert_eq!(row.counters.value("http_partial_content"), 3 * 3 * 3);
        // File content is shared with the transport. Response heads are copied, and so are parts too short to be worth
        // sharing.
        let (shared, copied) = (row.counters.value("write_shared_bytes"), row.counters.value("write_copied_bytes"));
        assert_eq!(shared, 3 * (5_000 + 2_500 + 3_000_001 + 1_500_001), "{mode}");
        assert!(copied < 750 * row.requests, "{mode}: {copied}");
        let by_nic = row.counters.value("tx_tls_encrypted_bytes");
        assert_eq!(by_nic > row.bytes, mode == Mode::HttpsNic, "{mode}: {by_nic}");
        if !lossy {
            let seen = (row.counters.value("TlsTxRecordsDevice") > 0, row.counters.value("TlsRxRecordsDevice") > 0);
            assert_eq!(seen, (mode == Mode::HttpsNic, mode == Mode::HttpsNic));
        }
    }
}

#[test]
fn two_runs_of_a_seed_are_the_same() {
    let folder = WebFolder::new("same", &[("large", 1_000_000)]);
    let run = || Comparison::new(&folder.0).unwrap().run(Mode::HttpsNic).unwrap();
    let (once, again) = (run(), run());
    assert_eq!((once.goodput_gbps, &once.counters), (again.goodput_gbps, &again.counters));
}

#[test]
fn keys_change_under_way() {
    let folder = WebFolder::new("rekey", &[("large", 2_000_000)]);
    for mode in [Mode::HttpsCpu, Mode::HttpsNic] {
        let row = Comparison { records_per_key: Some(20), ..Comparison::new(&folder.0).unwrap() }.run(mode).unwrap();
        let updates = row.counters.value("TlsTxRekeyOk");
        assert!(updates >= 4 * 5, "{mode}: {updates}");
        assert_eq!((updates, row.counters.value("TlsRxRekeyError")), (row.counters.value("TlsRxRekeyOk"), 0), "{mode}");
    }
}

/// Sends requests of various paths and ranges to one server.
#[test]
fn ranges_are_of_one_version() {
    let folder = WebFolder::new("ranges", &[("file", 10_000)]);
    let mut bed = two_hosts();
    let (host, client) = (bed.host(0).clone(), bed.host(1).clone());
    let server = server(&folder, Mode::Http, identity::server_config(Randomness::Seeded(Seed(1)), None));
    let _listens_on = server.listen(&host, 80).unwrap();
    let answers = bed.run(client.clone().spawn("client", async move {
        let mut session = Session::open(&client, SocketAddr::from((host.address(), 80)), "server", None).await?;
        let mut answers = Vec::new();
        for (path, range) in [
            ("/file", Some("bytes=100-199")),
            ("/file", Some("bytes=10000-")),
            ("/file", Some("bytes=0-1,3-4")),
            ("/none", None),
            ("/../../etc/passwd", None),
            ("/%zz", None),
            ("/", None),
        ] {
            let answer = session.get(path, range).await?;
            let header = |name| answer.headers().get(name).map(|value| value.to_str().unwrap().to_string());
            let (status, range, tag) = (answer.status(), header(CONTENT_RANGE), header(ETAG));
            answers.push((status, range, tag.is_some(), read_body(answer, |_| Ok(())).await?));
        }
        session.close().await?;
        Ok::<_, WebFailure>(answers)
    }));
    let text = |range: &str| Some(range.to_string());
    let expected = [
        (StatusCode::PARTIAL_CONTENT, text("bytes 100-199/10000"), true, 100),
        (StatusCode::RANGE_NOT_SATISFIABLE, text("bytes */10000"), true, 14),
        (StatusCode::OK, None, true, 10_000),
        (StatusCode::NOT_FOUND, None, false, 10),
        (StatusCode::NOT_FOUND, None, false, 10),
        (StatusCode::BAD_REQUEST, None, false, 18),
        (StatusCode::OK, None, false, 5),
    ];
    assert_eq!(answers.unwrap(), expected);
}

/// Returns the status lines and bodies of a server's answers to raw requests.
fn said(folder: &WebFolder, requests: &[&str]) -> Vec<(String, String)> {
    let status = |head: String| head.lines().next().unwrap().to_string();
    answers(folder, requests).into_iter().map(|(head, body)| (status(head), body)).collect()
}

/// Returns the heads and bodies of a server's answers to raw requests.
fn answers(folder: &WebFolder, requests: &[&str]) -> Vec<(String, String)> {
    let mut bed = two_hosts();
    let (host, client) = (bed.host(0).clone(), bed.host(1).clone());
    let server = server(folder, Mode::Http, identity::server_config(Randomness::Seeded(Seed(1)), None));
    let _listens_on = server.listen(&host, 80).unwrap();
    let mut answers = Vec::new();
    for request in requests {
        let (client, request, to) = (client.clone(), request.to_string(), SocketAddr::from((host.address(), 80)));
        let answer = bed.run(client.clone().spawn("client", async move {
            let mut stream = client.stack().connect(None, to).await.unwrap();
            stream.write_all(request.as_bytes()).await.unwrap();
            let mut answer = Vec::new();
            stream.read_to_end(&mut answer).await.unwrap();
            String::from_utf8_lossy(&answer).into_owned()
        }));
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        answers.push((head.to_string(), body.to_string()));
    }
    answers
}

/// RFC 9110 and 9112: preconditions, ranges, `Host` and HEAD.
#[test]
fn requests_follow_the_rules_of_http() {
    let folder = WebFolder::new("rules", &[("file", 10)]);
    let tag = FileVersion::from_metadata(&std::fs::metadata(folder.0.join("file")).unwrap()).entity_tag().to_string();
    let host = "HTTP/1.1\r\nHost: a\r\n";
    const PAST: &str = "Fri, 01 Jan 1960 00:00:00 GMT";
    const DATE: &str = "Sun, 09 Sep 2001 01:46:40 GMT";
    let cases = [
        (format!("GET /file {host}"), 200),
        (format!("GET /file {host}If-None-Match: \"x\", W/{tag}\r\n"), 304),
        (format!("HEAD /file {host}If-None-Match: {tag}\r\n"), 304),
        (format!("GET /file {host}If-None-Match: \"x\"\r\nIf-None-Match: {tag}\r\n"), 304),
        (format!("GET /file {host}If-None-Match: *\r\n"), 304),
        (format!("GET /file {host}If-None-Match: {tag}\r\nRange: bytes=0-0\r\n"), 304),
        (format!("GET /file {host}If-Modified-Since: {DATE}\r\n"), 304),
        (format!("GET /file {host}If-Modified-Since: Sunday, 09-Sep-01 01:46:40 GMT\r\n"), 304),
        (format!("GET /file {host}If-Modified-Since: Sun Sep  9 01:46:40 2001\r\n"), 304),
        (format!("GET /file {host}If-Modified-Since: {PAST}\r\n"), 200),
        (format!("GET /file {host}If-Modified-Since: x\r\n"), 200),
        (format!("GET /file {host}If-Match: \"x\", {tag}\r\n"), 200),
        (format!("GET /file {host}If-Match: W/{tag}\r\n"), 412),
        (format!("HEAD /file {host}If-Match: \"x\"\r\n"), 412),
        (format!("GET /file {host}If-Unmodified-Since: {PAST}\r\n"), 412),
        (format!("GET /none {host}If-Match: \"x\"\r\n"), 404),
        (format!("GET / {host}If-None-Match: *\r\n"), 304),
        (format!("PUT /file {host}If-Match: \"x\"\r\nContent-Length: 0\r\n"), 412),
        (format!("PUT /file {host}If-Match: {tag}\r\nContent-Length: 0\r\n"), 200),
        (format!("PUT /file {host}If-None-Match: *\r\nContent-Length: 0\r\n"), 412),
        (format!("PUT /none {host}If-None-Match: *\r\nContent-Length: 0\r\n"), 200),
        (format!("PUT /none {host}If-Match: *\r\nContent-Length: 0\r\n"), 412),
        (format!("POST / {host}If-None-Match: *\r\nContent-Length: 0\r\n"), 412),
        (format!("POST /file {host}If-Unmodified-Since: {PAST}\r\nContent-Length: 0\r\n"), 412),
        (format!("GET /file {host}Range: bytes=0-1\r\n"), 206),
        (format!("GET /file {host}Range: bytes=0-1\r\nIf-Range: {tag}\r\n"), 206),
        (format!("GET /file {host}Range: bytes=0-1\r\nIf-Range: W/{tag}\r\n"), 200),
        // The file's time was set by a user, so it is older than its last change and a valid `If-Range` date.
        (format!("GET /file {host}Range: bytes=0-1\r\nIf-Range: {DATE}\r\n"), 200),
        (format!("GET /file {host}Range: bytes=-0\r\n"), 416),
        (format!("HEAD /file {host}Range: bytes=0-1\r\n"), 200),
        (format!("HEAD /file {host}Range: bytes=-0\r\n"), 200),
        (format!("DELETE /file {host}"), 405),
        ("GET /file HTTP/1.0\r\n".into(), 200),
        (format!("GET http://other/file {host}"), 200),
        ("GET /file HTTP/1.1\r\n".into(), 400),
        ("GET http://other/file HTTP/1.1\r\n".into(), 400),
        (format!("GET /file {host}Host: a\r\n"), 400),
        ("GET /file HTTP/1.1\r\nHost: a b\r\n".into(), 400),
        ("GET /file HTTP/1.1\r\nHost:\r\n".into(), 400),
        (format!("GET * {host}"), 400),
    ];
    let requests: Vec<String> = cases.iter().map(|(head, _)| format!("{head}Connection: close\r\n\r\n")).collect();
    let requests: Vec<&str> = requests.iter().map(String::as_str).collect();
    for ((request, status), (head, body)) in cases.iter().zip(answers(&folder, &requests)) {
        assert!(head["HTTP/1.1".len()..].starts_with(&format!(" {status} ")), "{request}: {head}");
        let fields: &[&str] = match status {
            200 if request.contains("/file") && !request.starts_with('P') => {
                &["etag: ", "last-modified: ", "content-length: 10"]
            }
            304 if request.contains("/file") => &["etag: ", "last-modified: "],
            206 => &["etag: ", "last-modified: ", "content-range: bytes 0-1/10"],
            416 => &["content-range: bytes */10"],
            405 => &["allow: GET, HEAD, PUT, POST"],
            _ => &[],
        };
        assert!(fields.iter().all(|field| head.contains(field)), "{request}: {head}");
        // RFC 9110 9.3.2, 15.4.5: answers to HEAD and answers 304 have no content.
        if *status == 304 || request.starts_with("HEAD") {
            assert_eq!(body, "", "{request}");
        }
    }
}

/// File times may be before 1970.
#[test]
fn a_file_of_any_time_is_given() {
    let folder = WebFolder::new("times", &[("file", 10)]);
    let old = SystemTime::UNIX_EPOCH - Duration::from_secs(315_619_200);
    File::options().write(true).open(folder.0.join("file")).unwrap().set_modified(old).unwrap();
    let (head, _) = &answers(&folder, &["GET /file HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"])[0];
    assert!(
        head.starts_with("HTTP/1.1 200 ") && head.contains("last-modified: Fri, 01 Jan 1960 00:00:00 GMT"),
        "{head}"
    );
}

#[test]
fn unserved_paths_answer_like_missing_ones() {
    let folder = WebFolder::new("oracle", &[("file", 10)]);
    symlink("circle", folder.0.join("circle")).unwrap();
    symlink("/etc/passwd", folder.0.join("outside")).unwrap();
    let ask = |path: &str| format!("GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
    // Each path either leads outside, to a link circle, or nowhere. Different answers would tell an attacker which of
    // these it is.
    let paths = [
        "/none",
        "/../../../../../../../../../etc/passwd",
        "/../../../../../../../../../etc/nope",
        "/../../../../../../../../../etc/passwd/nope",
        "/outside",
        "/circle",
        "/circle/file",
        "/file/",
        &format!("/{}", "x".repeat(300)),
        &format!("/{}", "x/".repeat(3000)),
    ];
    let requests: Vec<String> = paths.iter().map(|path| ask(path)).collect();
    let requests: Vec<&str> = requests.iter().map(String::as_str).collect();
    for (path, answer) in paths.iter().zip(said(&folder, &requests)) {
        assert_eq!(answer, ("HTTP/1.1 404 Not Found".into(), "not found\n".into()), "{:.60}", path);
    }
}

#[test]
fn a_malformed_body_is_the_clients_fault() {
    let folder = WebFolder::new("chunk", &[("file", 10)]);
    let head = "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";
    let answers = said(&folder, &[&format!("{head}zz\r\nab\r\n0\r\n\r\n"), &format!("{head}2\r\nabc\r\n0\r\n\r\n")]);
    for answer in answers {
        assert_eq!(answer, ("HTTP/1.1 400 Bad Request".into(), "no body\n".into()));
    }
}

#[test]
fn a_server_with_an_rsa_key_is_spoken_to_over_tls_12_and_13() {
    let folder = WebFolder::new("rsa", &[("file", 10_000)]);
    for version in [&rustls::version::TLS12, &rustls::version::TLS13] {
        let certificate = CertificateDer::from_pem_slice(RSA).unwrap();
        let mut config = ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_protocol_versions(&[version])
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![certificate.clone()], PrivateKeyDer::from_pem_slice(RSA).unwrap())
            .unwrap();
        // The NIC needs the traffic secrets.
        config.enable_secret_extraction = true;
        let mut bed = two_hosts();
        let (host, client) = (bed.host(0).clone(), bed.host(1).clone());
        let server = server(&folder, Mode::HttpsNic, config);
        let _listens_on = server.listen(&host, 443).unwrap();
        let mut config = identity::client_config(Randomness::System, None);
        trust(&mut config, vec![certificate], None).unwrap();
        let tls = HttpsClientTls {
            config: Arc::new(config),
            name: identity::server_name(),
            nic: true,
            records_per_key: None,
        };
        let fetched = bed.run(client.clone().spawn("client", async move {
            let to = SocketAddr::from((host.address(), 443));
            let mut session = Session::open(&client, to, "server", Some(tls)).await?;
            let answer = session.get("/file", None).await?;
            let bytes = read_body(answer, |_| Ok(())).await?;
            session.close_both_sides(&client, Duration::from_secs(2)).await?;
            // Both FINs are acknowledged before the time is over.
            assert!(client.now() - Instant::ZERO < Duration::from_secs(2), "{version:?}");
            Ok::<_, WebFailure>(bytes)
        }));
        assert_eq!(fetched.unwrap(), 10_000, "{version:?}");
    }
}

#[test]
fn a_file_cut_short_on_its_way_ends_the_connection() {
    let folder = WebFolder::new("cut", &[("file", 8_000_000)]);
    for mode in Mode::ALL {
        let mut bed = two_hosts();
        let (host, client) = (bed.host(0).clone(), bed.host(1).clone());
        let server = server(&folder, mode, identity::server_config(Randomness::Seeded(Seed(1)), None));
        let _listens_on = server.listen(&host, mode.port()).unwrap();
        let tls = mode.is_secure().then(|| client_tls(vec![identity::authority()], None));
        let path = folder.0.join("file");
        let (read, outcome) = bed.run(client.clone().spawn("client", async move {
            let to = SocketAddr::from((host.address(), mode.port()));
            let mut session = Session::open(&client, to, "server", tls).await.unwrap();
            let answer = session.get("/file", None).await.unwrap();
            let mut read = 0;
            let outcome = read_body(answer, |chunk| {
                // The first chunk proves that the answer has begun; only then the file is cut.
                if read == 0 {
                    File::options().write(true).open(&path)?.set_len(5_000_000)?;
                }
                read += chunk.len();
                Ok(())
            })
            .await;
            (read, outcome)
        }));
        assert!(outcome.is_err(), "{mode}: {read} bytes of 8000000 are not the file");
        assert!(read < 8_000_000, "{mode}");
        File::options().write(true).open(folder.0.join("file")).unwrap().set_len(8_000_000).unwrap();
    }
}

/// Connects to a server with the certificate in `shown`, as a client that trusts the authorities of the testbed and of
/// the proxy. Returns the outcome and the number of requests that the server received.
fn connection(shown: ServerConfig, pin: Option<Pin>) -> (Result<u64, String>, u64) {
    let folder = WebFolder::new("pin", &[("secret", 3_000)]);
    let mut bed = two_hosts();
    let (host, client) = (bed.host(0).clone(), bed.host(1).clone());
    let server = server(&folder, Mode::HttpsNic, shown);
    let _listens_on = server.listen(&host, 443).unwrap();
    let tls = client_tls(vec![identity::authority(), Proxy::new().authority], pin);
    let fetched = bed.run(client.clone().spawn("client", async move {
        let to = SocketAddr::from((host.address(), 443));
        let mut session = Session::open(&client, to, "server", Some(tls)).await?;
        let answer = session.get("/secret", None).await?;
        let bytes = read_body(answer, |_| Ok(())).await?;
        session.close().await?;
        Ok::<_, WebFailure>(bytes)
    }));
    bed.run(server.idle());
    (fetched.map_err(|error| error.to_string()), server.counters().value("http_requests"))
}

#[test]
fn pinned_client_refuses_an_intercepting_proxy() {
    let honest = || identity::server_config(Randomness::Seeded(Seed(1)), None);
    let pin = Pin::for_certificate(&identity::server_certificate());
    assert_eq!(connection(honest(), Some(pin)), (Ok(3_000), 1));

    // The client trusts the proxy's authority, like that of a company's proxy. Without a pin the proxy reads
    // everything.
    let proxy = Proxy::new();
    assert_eq!(connection(proxy.config(), None), (Ok(3_000), 1));
    let (fetched, seen_by_proxy) = connection(proxy.config(), Some(pin));
    let error = fetched.unwrap_err();
    assert!(error.contains("the connection is intercepted"), "{error}");
    assert!(
        error.contains(&pin.to_string()) && error.contains(&Pin::for_certificate(&proxy.certificate).to_string()),
        "{error}"
    );
    assert_eq!(seen_by_proxy, 0);
}

/// An intercepting proxy that has an authority of its own and signs a certificate for any server's name.
struct Proxy {
    authority: CertificateDer<'static>,
    certificate: CertificateDer<'static>,
    key: PrivatePkcs8KeyDer<'static>,
}

impl Proxy {
    fn new() -> Proxy {
        let key_pair = |name| KeyPair::from_pkcs8_pem_and_sign_algo(name, &rcgen::PKCS_ED25519).unwrap();
        let (authority_key, key) = (key_pair(PROXY_AUTHORITY_KEY), key_pair(PROXY_KEY));
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let authority = params.self_signed(&authority_key).unwrap();
        let issuer = Issuer::new(params, authority_key);
        let names = vec!["server.nic-offload.test".to_string()];
        let certificate = CertificateParams::new(names).unwrap().signed_by(&key, &issuer).unwrap();
        Proxy {
            authority: authority.der().clone(),
            certificate: certificate.der().clone(),
            key: key.serialize_der().into(),
        }
    }

    fn config(&self) -> ServerConfig {
        let base = identity::server_config(Randomness::Seeded(Seed(3)), None);
        let mut config = ServerConfig::builder_with_provider(base.crypto_provider().clone())
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![self.certificate.clone()], self.key.clone_key().into())
            .unwrap();
        config.enable_secret_extraction = true;
        config
    }
}

fn two_hosts() -> Testbed {
    Testbed::builder(Seed(1))
        .host("server", NicConfig::default(), TcpConfig::default())
        .host("client", NicConfig::default(), TcpConfig::default())
        .wire(0, 1, LinkConfig::default())
        .build()
        .unwrap()
}

fn server(folder: &WebFolder, mode: Mode, tls: ServerConfig) -> Server {
    Server::new(Site::new(&folder.0, Arc::new(InPlace)).unwrap(), mode, tls).without_dates()
}

fn client_tls(roots: Vec<CertificateDer<'static>>, pin: Option<Pin>) -> HttpsClientTls {
    let mut config = identity::client_config(Randomness::Seeded(Seed(2)), None);
    trust(&mut config, roots, pin).unwrap();
    HttpsClientTls { config: Arc::new(config), name: identity::server_name(), nic: true, records_per_key: None }
}

/// A folder of seeded files, old enough that any change shows.
struct WebFolder(PathBuf);

impl WebFolder {
    fn new(name: &str, files: &[(&str, usize)]) -> WebFolder {
        let path = std::env::temp_dir().join(format!("nic-offload-web-{name}-{}", std::process::id()));
        // A test may create several, one after the other.
        std::fs::create_dir_all(&path).unwrap();
        let long_ago = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
        for (name, bytes) in files {
            let mut content = vec![0; *bytes];
            Seed(1).stream(name).fill(&mut content);
            std::fs::write(path.join(name), content).unwrap();
            File::options().write(true).open(path.join(name)).unwrap().set_modified(long_ago).unwrap();
        }
        WebFolder(path)
    }
}

impl Drop for WebFolder {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).unwrap();
    }
}

/// Test keys that protect nothing.
const RSA: &[u8] = include_bytes!("rsa.pem");
const PROXY_AUTHORITY_KEY: &str = "-----BEGIN PRIVATE KEY-----\n\
    MC4CAQAwBQYDK2VwBCIEICY4nkSHvvQQkiuBD7bXBdqKoZWRZ/5QRcBjmgZcmzPD\n\
    -----END PRIVATE KEY-----\n";
const PROXY_KEY: &str = "-----BEGIN PRIVATE KEY-----\n\
    MC4CAQAwBQYDK2VwBCIEIEiwAk+6Ild9gUgI2kgc28iAVCpn7dkJrJwDaBYnmNTV\n\
    -----END PRIVATE KEY-----\n";
