//! Metrics for Prometheus: OpenMetrics 1.0 text over HTTP, served by a thread.
//!
//! The server handles one request at a time and limits each request to a few seconds and 8 KiB. A slow or hostile
//! client can therefore only delay other clients. The server ends on drop.

use core::fmt::Write as _;
use core::net::{Ipv4Addr, SocketAddr};
use core::sync::atomic::{AtomicBool, Ordering};
use core::time::Duration;
use offload_bench_tls::live::{HostSample, Sample};
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Instant;

/// Parses the address of a metrics server: a port of this machine's loopback address, or an address with a port.
///
/// ```
/// use nicbench::openmetrics::address;
///
/// assert_eq!(address("9464").unwrap().to_string(), "127.0.0.1:9464");
/// assert_eq!(address("[::1]:9464").unwrap().to_string(), "[::1]:9464");
/// assert!(address("here").is_err());
/// ```
///
/// # Errors
/// In words, if the text is neither.
pub fn address(text: &str) -> Result<SocketAddr, String> {
    let port = text.parse().map(|port: u16| SocketAddr::from((Ipv4Addr::LOCALHOST, port)));
    port.or_else(|_| text.parse())
        .map_err(|_| "a port of the loopback address, 9464, or an address: 127.0.0.1:9464".into())
}

/// A server of the latest sample.
///
/// ```
/// use nicbench::openmetrics::Server;
/// use std::io::{Read, Write};
/// use std::net::TcpStream;
///
/// let server = Server::bind("127.0.0.1:0".parse()?)?;
/// let mut stream = TcpStream::connect(server.address())?;
/// stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")?;
/// let mut answer = String::new();
/// stream.read_to_string(&mut answer)?;
/// assert!(answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.ends_with("# EOF\n"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Server {
    address: SocketAddr,
    shown: Arc<ServedSample>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct ServedSample {
    last: Mutex<Option<Sample>>,
    ends: AtomicBool,
}

impl Server {
    /// Starts the server. With port 0 the system chooses a free port.
    ///
    /// # Errors
    /// If the address cannot be bound.
    pub fn bind(address: SocketAddr) -> io::Result<Server> {
        let listener = TcpListener::bind(address)?;
        let (address, shown) = (listener.local_addr()?, Arc::new(ServedSample::default()));
        let of_thread = shown.clone();
        let thread = thread::Builder::new().name("openmetrics".into()).spawn(move || serve(&listener, &of_thread))?;
        Ok(Server { address, shown, thread: Some(thread) })
    }

    /// Returns the bound address.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Replaces the served sample.
    pub fn show(&self, sample: &Sample) {
        *self.shown.last.lock().unwrap_or_else(PoisonError::into_inner) = Some(sample.clone());
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.shown.ends.store(true, Ordering::Release);
        // This connection wakes the thread, which waits for a client.
        let woken = TcpStream::connect_timeout(&self.address, LONGEST).is_ok();
        if let Some(thread) = self.thread.take().filter(|_| woken) {
            let _ended = thread.join();
        }
    }
}

fn serve(listener: &TcpListener, shown: &ServedSample) {
    for stream in listener.incoming() {
        if shown.ends.load(Ordering::Acquire) {
            return;
        }
        match stream {
            // A failed answer concerns only its client.
            Ok(stream) => drop(answer(stream, shown)),
            // Most likely the process is out of descriptors; a pause lets other descriptors close.
            Err(_) => thread::sleep(PAUSE),
        }
    }
}

fn answer(mut stream: TcpStream, shown: &ServedSample) -> io::Result<()> {
    // A client that does not read its answer must not hold the only thread.
    stream.set_write_timeout(Some(LONGEST))?;
    let (status, body) = match request(&mut stream)? {
        Request::Metrics => {
            let last = shown.last.lock().unwrap_or_else(PoisonError::into_inner).clone();
            ("200 OK", text(last.as_ref()))
        }
        Request::Elsewhere => ("404 Not Found", "metrics are at /metrics\n".into()),
        Request::Otherwise => ("405 Method Not Allowed", "only GET is answered\n".into()),
        Request::TooLong => ("431 Request Header Fields Too Large", "a request has 8 KiB at most\n".into()),
        Request::Garbage => ("400 Bad Request", "this is no request of HTTP/1.1\n".into()),
    };
    let kind = if status == "200 OK" { "application/openmetrics-text; version=1.0.0" } else { "text/plain" };
    // The connection closes after each answer, because a kept connection would occupy the only thread.
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}; charset=utf-8\r\nContent-Length: {}\r\nAllow: GET\r\nConnection: close\r\n\r\n",
        body.len()
    );
    stream.write_all((head + &body).as_bytes())
}

#[derive(Debug, PartialEq, Eq)]
enum Request {
    Metrics,
    Elsewhere,
    Otherwise,
    TooLong,
    Garbage,
}

/// Reads the head of a request, for [`LONGEST`] at most.
fn request(stream: &mut TcpStream) -> io::Result<Request> {
    let (began, mut head) = (Instant::now(), Vec::new());
    while !head.windows(4).any(|four| four == b"\r\n\r\n") {
        if head.len() >= MAX_BYTES {
            return Ok(Request::TooLong);
        }
        // The limit covers the whole head: a client that sends one byte at a time must not renew it.
        let left = LONGEST.checked_sub(began.elapsed()).filter(|left| !left.is_zero());
        stream.set_read_timeout(Some(left.ok_or(io::ErrorKind::TimedOut)?))?;
        let mut piece = [0; 1024];
        match stream.read(&mut piece)? {
            0 => return Ok(Request::Garbage),
            read => head.extend(&piece[..read]),
        }
    }
    Ok(asked(&head))
}

/// Classifies a request by its request line.
fn asked(head: &[u8]) -> Request {
    let line = head.split(|byte| *byte == b'\r').next().and_then(|line| core::str::from_utf8(line).ok());
    let words: Vec<&str> = line.unwrap_or_default().split(' ').collect();
    let [method, target, version] = words[..] else { return Request::Garbage };
    match (version.starts_with("HTTP/1."), method, target.split('?').next()) {
        (false, ..) => Request::Garbage,
        (true, "GET", Some("/metrics")) => Request::Metrics,
        (true, "GET", _) => Request::Elsewhere,
        _ => Request::Otherwise,
    }
}

/// Formats a sample as OpenMetrics 1.0: one family for each counter, with `nicbench_` in front of its name.
fn text(sample: Option<&Sample>) -> String {
    let mut text = String::new();
    if let Some(sample) = sample {
        let mode = &sample.mode;
        let hosts = [("sender", &sample.sender), ("receiver", &sample.receiver)];
        let _ = write!(
            text,
            "# TYPE nicbench_run_seconds gauge\n# UNIT nicbench_run_seconds seconds\n# HELP nicbench_run_seconds The run's clock.\n\
             nicbench_run_seconds{{mode=\"{mode}\"}} {}\n\
             # TYPE nicbench_received_bytes counter\n# UNIT nicbench_received_bytes bytes\n# HELP nicbench_received_bytes User data that arrived.\n\
             nicbench_received_bytes_total{{mode=\"{mode}\"}} {}\n\
             # TYPE nicbench_contexts gauge\n# HELP nicbench_contexts Contexts of the NIC.\n",
            sample.at.as_secs_f64(),
            sample.received
        );
        for (host, of) in hosts {
            let _ = writeln!(text, "nicbench_contexts{{mode=\"{mode}\",host=\"{host}\"}} {}", of.contexts);
        }
        let of_both: Vec<(&str, &HostSample)> = hosts.to_vec();
        // OpenMetrics requires the samples of a family to be adjacent, so the outer loop is over names and the inner
        // one over hosts.
        let mut names: Vec<&str> =
            of_both.iter().flat_map(|(_, of)| of.counters.iter()).map(|(name, _)| name).collect();
        names.sort_unstable();
        names.dedup();
        for name in names {
            let _ = writeln!(text, "# TYPE nicbench_{name} counter");
            for (host, of) in hosts {
                let value = of.counters.value(name);
                let _ = writeln!(text, "nicbench_{name}_total{{mode=\"{mode}\",host=\"{host}\"}} {value}");
            }
        }
    }
    text + "# EOF\n"
}

/// Time limit of reading a request, and of writing an answer.
const LONGEST: Duration = Duration::from_secs(2);
const PAUSE: Duration = Duration::from_millis(100);
const MAX_BYTES: usize = 8 << 10;

#[cfg(test)]
mod tests {
    use super::*;
    use offload_bench::iperf::{Iperf, Until};
    use offload_bench_tls::bulk::Mode;
    use offload_bench_tls::live::Live;
    use offload_bench_tls::observers::Observers;
    use std::collections::{BTreeMap, BTreeSet};

    /// Parses a text's samples by name and labels, and checks the rules of OpenMetrics 1.0: each family is declared
    /// once, before its samples; families are not interleaved; names and labels are well formed; a counter's samples
    /// end in `_total`; the text ends with `# EOF`.
    fn parsed(text: &str) -> BTreeMap<String, f64> {
        let body = text.strip_suffix("# EOF\n").expect("ends with # EOF");
        let (mut families, mut samples, mut family) =
            (BTreeSet::new(), BTreeMap::new(), (String::new(), String::new()));
        for line in body.lines() {
            if let Some(declared) = line.strip_prefix("# ") {
                let mut words = declared.splitn(3, ' ');
                let (what, name, rest) = (words.next().unwrap(), words.next().unwrap(), words.next().unwrap());
                assert!(is_name(name), "{line}");
                match what {
                    "TYPE" => {
                        assert!(families.insert(name.to_owned()), "{name} is declared twice");
                        assert!(["counter", "gauge"].contains(&rest), "{line}");
                        // OpenMetrics 1.0 reserves these suffixes for samples.
                        let ends = ["_total", "_created", "_bucket", "_count", "_sum", "_info"];
                        assert!(!ends.iter().any(|end| name.ends_with(end)), "{name} has a reserved end");
                        family = (name.into(), rest.into());
                    }
                    "UNIT" => assert!(family.0 == name && name.ends_with(&format!("_{rest}")), "{line}"),
                    "HELP" => assert_eq!(family.0, name),
                    _ => panic!("{line}"),
                }
                continue;
            }
            let (series, value) = line.rsplit_once(' ').expect(line);
            let (name, labels) = series.split_once('{').expect(line);
            // OpenMetrics 1.0: samples of counters end in `_total`, samples of gauges have the family's name.
            let end = if family.1 == "counter" { "_total" } else { "" };
            assert_eq!(name, family.0.clone() + end, "{line}");
            for label in labels.strip_suffix('}').expect(line).split(',') {
                let (key, value) = label.split_once('=').expect(line);
                let quoted = value.strip_prefix('"').and_then(|value| value.strip_suffix('"')).expect(line);
                assert!(is_name(key) && !quoted.contains(['"', '\\', '\n']), "{line}");
            }
            assert!(samples.insert(series.to_owned(), value.parse().expect(line)).is_none(), "{series} is there twice");
        }
        samples
    }

    fn is_name(name: &str) -> bool {
        name.starts_with(|first: char| first.is_ascii_alphabetic() || first == '_')
            && name.chars().all(|one| one.is_ascii_alphanumeric() || one == '_')
    }

    #[test]
    fn metrics_of_a_run_can_be_parsed() {
        let server = Arc::new(Server::bind((Ipv4Addr::LOCALHOST, 0).into()).unwrap());
        let (shown, every) = (server.clone(), Duration::from_micros(100));
        let live = Live::new(every, move |sample| shown.show(sample));
        Iperf {
            until: Until::Bytes(1 << 20),
            observers: Observers { live: Some(live), ..Observers::default() },
            ..Iperf::new(Mode::TlsNic)
        }
        .run()
        .unwrap();
        let answer = asks(&server, b"GET /metrics HTTP/1.1\r\n\r\n");
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        assert!(head.contains("Content-Type: application/openmetrics-text; version=1.0.0; charset=utf-8"), "{head}");
        assert!(head.contains(&format!("Content-Length: {}", body.len())));
        let samples = parsed(body);
        assert_eq!(samples[r#"nicbench_received_bytes_total{mode="tls-nic"}"#], f64::from(1 << 20));
        assert!(samples[r#"nicbench_tx_packets_total{mode="tls-nic",host="sender"}"#] > 20.0);
        assert!(samples[r#"nicbench_run_seconds{mode="tls-nic"}"#] > 0.0);
        assert_eq!(parsed(&text(None)).len(), 0);
    }

    #[test]
    fn bad_requests_are_answered_and_bounded() {
        let server = Server::bind((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
        let long = [b"GET /metrics HTTP/1.1\r\nX: ".as_slice(), &[b'x'; 9 << 10]].concat();
        for (request, status) in [
            (b"GET / HTTP/1.1\r\n\r\n".as_slice(), "404"),
            (b"POST /metrics HTTP/1.1\r\n\r\n", "405"),
            (b"\x16\x03\x01\x00\r\n\r\n", "400"),
            (b"GET /metrics HTTP/1.1", "400"),
            (&long[..MAX_BYTES], "431"),
        ] {
            let answer = asks(&server, request);
            assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{answer}");
        }
        assert_eq!(asked(b"GET /metrics?x=1 HTTP/1.0\r\n"), Request::Metrics);
    }

    /// Sends `request`, closes the sending side and returns the answer.
    fn asks(server: &Server, request: &[u8]) -> String {
        let mut stream = TcpStream::connect(server.address()).unwrap();
        stream.write_all(request).unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }
}
