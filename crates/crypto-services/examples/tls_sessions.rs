//! TLS 1.2 sessions between OpenSSL and OpenSSL, one for each suite of the poster. The chains open every record of both
//! sides with the key log, and seal the plaintext to the same bytes.
//!
//! `cargo run --release -p crypto-services --example tls_sessions`. Needs the command `openssl`; uses only 127.0.0.1.

#![allow(clippy::print_stdout, reason = "printing is the whole purpose, so a failed write loses no other work")]

use crypto_services::{SecretBytes, Suite, SuiteCipher, SuiteKeys};
use hmac::{Hmac, KeyInit, Mac};
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};
use std::thread;

/// Sessions to run: OpenSSL's cipher name, options, kind of the server's key, and chain.
const SESSIONS: [(&str, &[&str], &str, Suite); 9] = [
    ("ECDHE-RSA-CHACHA20-POLY1305", &[], "rsa", Suite::ChaCha20Poly1305),
    ("ECDHE-ECDSA-AES128-GCM-SHA256", &[], "ec", Suite::Aes128Gcm),
    ("ECDHE-RSA-AES128-GCM-SHA256", &[], "rsa", Suite::Aes128Gcm),
    ("ECDHE-ECDSA-AES256-GCM-SHA384", &[], "ec", Suite::Aes256Gcm),
    ("AES128-GCM-SHA256", &[], "rsa", Suite::Aes128Gcm),
    ("ECDHE-RSA-AES128-SHA", &[], "rsa", Suite::Aes128CbcShaEtm),
    ("ECDHE-RSA-AES128-SHA", &["-no_etm"], "rsa", Suite::Aes128CbcSha),
    ("AES256-SHA", &[], "rsa", Suite::Aes256CbcShaEtm),
    ("AES256-SHA", &["-no_etm"], "rsa", Suite::Aes256CbcSha),
];

fn main() -> ExitCode {
    match Command::new("openssl").arg("version").output() {
        Ok(version) => print!("{}", String::from_utf8_lossy(&version.stdout)),
        Err(error) => {
            println!("SKIPPED: openssl cannot be run ({error})");
            return ExitCode::SUCCESS;
        }
    }
    let mut failed = false;
    for (name, options, key, suite) in SESSIONS {
        match session(name, options, key, suite) {
            Ok((sent, received, bytes)) => println!(
                "{name:32} {:22} {sent:>3} records sent, {received:>3} received, {bytes:>7} bytes: opened, and sealed to the same",
                suite.name()
            ),
            Err(error) => {
                println!("{name:32} {:22} {error}", suite.name());
                failed = true;
            }
        }
    }
    if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

/// Runs a session through a recording relay, then checks its records with the chain.
fn session(name: &str, options: &[&str], key: &str, suite: Suite) -> io::Result<(usize, usize, usize)> {
    let folder = std::env::temp_dir().join(format!("tls-sessions-{}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    let path = |file: &str| folder.join(file).to_string_lossy().into_owned();
    let (certificate, secret, log) = (path("certificate.pem"), path("key.pem"), path("log"));
    let kind: &[&str] = if key == "ec" { &["ec", "-pkeyopt", "ec_paramgen_curve:P-256"] } else { &["rsa:2048"] };
    let made = Command::new("openssl")
        .args(["req", "-x509", "-nodes", "-subj", "/CN=localhost", "-keyout", &secret, "-out", &certificate, "-newkey"])
        .args(kind)
        .output()?;
    ensure(made.status.success(), "openssl req failed")?;
    let _ = std::fs::remove_file(&log);
    // Another program may take the free port before the server does; the session then fails with an error.
    let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
    let accept = format!("127.0.0.1:{port}");
    let mut server = OpensslServer(
        Command::new("openssl")
            .args([
                "s_server",
                "-accept",
                &accept,
                "-cert",
                &certificate,
                "-key",
                &secret,
                "-tls1_2",
                "-cipher",
                name,
                "-rev",
            ])
            // The server understands only one of the client's options.
            .args(options.iter().filter(|option| **option == "-no_etm"))
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()?,
    );
    // The server prints ACCEPT when it listens.
    let mut said = [0; 64];
    if let Some(stdout) = server.0.stdout.as_mut() {
        ensure(stdout.read(&mut said)? > 0, "openssl s_server ended at once")?;
    }
    let relay = TcpListener::bind("127.0.0.1:0")?;
    let connect = relay.local_addr()?.to_string();
    // The relay records the wire in both directions, because OpenSSL does not export records.
    let relayed = thread::spawn(move || -> io::Result<(Vec<u8>, Vec<u8>)> {
        let (client, server) = (relay.accept()?.0, TcpStream::connect(accept)?);
        let (from_client, to_server) = (client.try_clone()?, server.try_clone()?);
        let sent = thread::spawn(move || pass(from_client, to_server));
        let received = pass(server, client)?;
        let sent = sent.join().map_err(|_| io::Error::other("the relay ended"))??;
        Ok((sent, received))
    });
    let mut client = OpensslServer(
        Command::new("openssl")
            .args(["s_client", "-connect", &connect, "-tls1_2", "-cipher", name, "-keylogfile", &log, "-quiet"])
            .args(options)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()?,
    );
    // Lines of many lengths. The server returns each line reversed.
    let (mut stdin, mut stdout) = (client.0.stdin.take(), client.0.stdout.take());
    for length in [1, 15, 16, 17, 63, 200, 1000, 4000] {
        let line = format!("{}\n", "abcdefg".repeat(length / 7 + 1).split_at(length).0);
        if let (Some(stdin), Some(stdout)) = (&mut stdin, &mut stdout) {
            stdin.write_all(line.as_bytes())?;
            let mut back = vec![0; line.len()];
            stdout
                .read_exact(&mut back)
                .map_err(|_| io::Error::other("openssl s_client ended: no such suite or option?"))?;
            let turned: Vec<u8> = line.trim().bytes().rev().chain([b'\n']).collect();
            // The option -rev makes the server reverse each line.
            ensure(back == turned, "openssl s_server -rev did not turn the line round")?;
        }
    }
    drop((stdin, stdout));
    client.0.kill()?;
    server.0.kill()?;
    let (sent, received) = relayed.join().map_err(|_| io::Error::other("the relay ended"))??;
    let checked = check(&sent, &received, Path::new(&log), suite);
    std::fs::remove_dir_all(&folder)?;
    checked
}

/// A child process that is killed on drop.
struct OpensslServer(Child);

impl Drop for OpensslServer {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Forwards bytes until the end of the stream. Returns all of them.
fn pass(mut from: TcpStream, mut to: TcpStream) -> io::Result<Vec<u8>> {
    let (mut all, mut buffer) = (Vec::new(), [0; 4096]);
    loop {
        match from.read(&mut buffer) {
            Ok(0) | Err(_) => break,
            Ok(bytes) => {
                all.extend_from_slice(&buffer[..bytes]);
                if to.write_all(&buffer[..bytes]).is_err() {
                    break;
                }
            }
        }
    }
    let _ = to.shutdown(std::net::Shutdown::Write);
    Ok(all)
}

fn ensure(holds: bool, what: &str) -> io::Result<()> {
    holds.then_some(()).ok_or_else(|| io::Error::other(what.to_owned()))
}

/// Splits a stream into records: type and body.
fn records(mut stream: &[u8]) -> Vec<(u8, &[u8])> {
    let mut records = Vec::new();
    while let [kind, _, _, high, low, rest @ ..] = stream {
        let length = usize::from(u16::from_be_bytes([*high, *low]));
        let Some((body, rest)) = rest.split_at_checked(length) else { break };
        records.push((*kind, body));
        stream = rest;
    }
    records
}

/// Opens and seals all records of both sides. Returns the number of records of each side, and the plaintext bytes.
fn check(sent: &[u8], received: &[u8], log: &Path, suite: Suite) -> io::Result<(usize, usize, usize)> {
    let hello = |stream| records(stream).first().and_then(|(_, body)| Some(body.get(6..38)?.to_vec()));
    let no_hello = || io::Error::other("no hello was seen");
    let (client, server) = (hello(sent).ok_or_else(no_hello)?, hello(received).ok_or_else(no_hello)?);
    let log = std::fs::read_to_string(log)?;
    let line = log.lines().find_map(|line| line.strip_prefix(&format!("CLIENT_RANDOM {} ", hex(&client))));
    let master = line.and_then(unhex).ok_or_else(|| io::Error::other("the key log lacks the session"))?;

    let [cipher, mac, _] = suite.key_lengths();
    let iv = match suite {
        Suite::ChaCha20Poly1305 => 12,
        _ if mac == 0 => 4,
        _ => 0,
    };
    // RFC 5246 6.3: the key block holds MAC keys, cipher keys and IVs, each for client and server.
    let seed = [b"key expansion".as_slice(), &server, &client].concat();
    let block = match suite {
        Suite::Aes256Gcm => expand::<Hmac<sha2::Sha384>>(&master, &seed),
        _ => expand::<Hmac<sha2::Sha256>>(&master, &seed),
    };
    let (mut rest, mut take) = (&block[..], Vec::new());
    for length in [mac, mac, cipher, cipher, iv, iv] {
        let (part, after) = rest.split_at(length);
        take.push(part.to_vec());
        rest = after;
    }
    let (mut counts, mut bytes) = ([0, 0], 0);
    for (side, stream) in [sent, received].into_iter().enumerate() {
        let keys = SuiteKeys {
            cipher: SecretBytes::new(take[2 + side].clone()),
            mac: SecretBytes::new(take[side].clone()),
            header: SecretBytes::new(Vec::new()),
        };
        let chain = SuiteCipher::new(suite, &keys).map_err(io::Error::other)?;
        // Records before ChangeCipherSpec are not protected.
        let protected = records(stream).into_iter().skip_while(|(kind, _)| *kind != CHANGE_CIPHER_SPEC).skip(1);
        for (number, (kind, body)) in (0u64..).zip(protected) {
            bytes += open_and_seal(&chain, &take[4 + side], number, kind, body)?;
            counts[side] += 1;
        }
    }
    ensure(counts.iter().all(|count| *count > 8), "there were too few records")?;
    Ok((counts[0], counts[1], bytes))
}

fn open_and_seal(chain: &SuiteCipher, salt: &[u8], number: u64, kind: u8, body: &[u8]) -> io::Result<usize> {
    let (mut iv, explicit) = ([0; 16], if chain.suite() == Suite::ChaCha20Poly1305 { 0 } else { 16 - salt.len() });
    let explicit = if salt.len() == 4 { 8 } else { explicit };
    let (prefix, sealed) = body.split_at_checked(explicit).ok_or_else(|| io::Error::other("a record is too short"))?;
    match chain.suite() {
        // RFC 7905: the record number is XORed into the IV.
        Suite::ChaCha20Poly1305 => {
            iv[..12].copy_from_slice(salt);
            iv[4..12].iter_mut().zip(number.to_be_bytes()).for_each(|(byte, of_number)| *byte ^= of_number);
        }
        // RFC 5288: the salt, followed by the explicit nonce of the record.
        _ if salt.len() == 4 => {
            iv[..4].copy_from_slice(salt);
            iv[4..12].copy_from_slice(prefix);
        }
        _ => iv.copy_from_slice(prefix),
    }
    let header = |length: usize| {
        let mut header = [&number.to_be_bytes()[..], &[kind, 3, 3]].concat();
        header.extend((length as u16).to_be_bytes());
        header
    };
    // TLS 1.2 puts the length of the plaintext into the header. MAC-then-encrypt does not know it yet.
    let aad = match chain.suite() {
        Suite::Aes128CbcSha | Suite::Aes256CbcSha => header(0)[..11].to_vec(),
        Suite::Aes128CbcShaEtm | Suite::Aes256CbcShaEtm => header(body.len().saturating_sub(20)),
        _ => header(sealed.len().saturating_sub(16)),
    };
    let mut packet = sealed.to_vec();
    chain.open(&iv, &aad, &mut packet).map_err(|error| io::Error::other(format!("record {number}: {error}")))?;
    let bytes = packet.len();
    // Sealing the opened record again must reproduce the bytes of OpenSSL.
    chain.seal(&iv, &aad, &mut packet);
    ensure(packet == sealed, "a record was sealed to other bytes")?;
    Ok(bytes)
}

/// Expands a secret with the PRF of TLS 1.2 (RFC 5246 5), enough bytes for any suite.
fn expand<M: Mac + KeyInit>(secret: &[u8], seed: &[u8]) -> Vec<u8> {
    let mac = |parts: &[&[u8]]| {
        let mut mac = <M as KeyInit>::new_from_slice(secret).expect("HMAC takes keys of any length");
        parts.iter().for_each(|part| mac.update(part));
        mac.finalize().into_bytes().to_vec()
    };
    let (mut a, mut out) = (mac(&[seed]), Vec::new());
    while out.len() < 160 {
        out.extend(mac(&[&a, seed]));
        a = mac(&[&a]);
    }
    out
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    let pairs = text.trim().as_bytes().chunks(2);
    pairs.map(|pair| u8::from_str_radix(core::str::from_utf8(pair).ok()?, 16).ok()).collect()
}

/// Type of ChangeCipherSpec. All later records are protected.
const CHANGE_CIPHER_SPEC: u8 = 20;
