//! The container's half of the poster's table: AES-128-GCM by a service in a container, reached by a datagram through
//! the kernel's network stack.
//!
//! `tests/linux/container_rows.sh` runs it in a network namespace behind a veth pair. By hand:
//!
//! ```sh
//! cargo run --release -p beside-aws-lc --features aws-lc --example container -- serve 127.0.0.1:7001
//! cargo run --release -p beside-aws-lc --features aws-lc --example container -- ask 127.0.0.1:7001
//! ```
//!
//! `serve` seals each datagram and returns it. `ask` prints, for each size of the table, the median time to the answer,
//! the median without ciphering (a datagram that begins with a zero is returned unchanged), and the time of sealing
//! alone in this process. aws-lc does the sealing, because `OPENSSL_ia32cap` can switch off its AES-NI.

#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "printing is the whole purpose, so a failed write loses no other work"
)]

use aws_lc_rs::aead::{AES_128_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use crypto_services::published::ROWS;
use std::hint::black_box;
use std::io;
use std::net::UdpSocket;
use std::process::ExitCode;
use std::time::{Duration, Instant};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let done = match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["serve", address] => serve(address),
        ["ask", address] => ask(address),
        _ => {
            eprintln!("container: takes serve ADDRESS or ask ADDRESS, for example serve 127.0.0.1:7001");
            return ExitCode::from(2);
        }
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("container: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Serves until the process is killed.
fn serve(address: &str) -> io::Result<()> {
    let (socket, key) = (UdpSocket::bind(address)?, key()?);
    let (mut buffer, mut number) = (vec![0; 65_536], 0);
    loop {
        let (len, asker) = socket.recv_from(&mut buffer)?;
        let mut packet = buffer[..len].to_vec();
        if packet.first() != Some(&0) {
            number += 1;
            seal(&key, number, &mut packet)?;
        }
        // A client that is gone is no reason to stop.
        let _sent = socket.send_to(&packet, asker);
    }
}

fn ask(address: &str) -> io::Result<()> {
    let socket = UdpSocket::bind(if address.starts_with('[') { "[::]:0" } else { "0.0.0.0:0" })?;
    socket.connect(address)?;
    socket.set_read_timeout(Some(Duration::from_secs(5)))?;
    let key = key()?;
    println!("bytes  sealed_us  echoed_us  sealing_us");
    for row in ROWS {
        let bytes = row.bytes as usize;
        // A first byte other than zero asks for sealing.
        let sealed = median(|| round_trip(&socket, &vec![1; bytes], bytes + 16))?;
        let echoed = median(|| round_trip(&socket, &vec![0; bytes], bytes))?;
        let mut number = 0;
        let sealing = median(|| {
            let mut packet = vec![1; bytes];
            packet.reserve(16);
            let began = Instant::now();
            number += 1;
            seal(&key, number, black_box(&mut packet))?;
            Ok(began.elapsed())
        })?;
        let micros = |time: Duration| time.as_nanos() as f64 / 1e3;
        println!("{bytes:>5}  {:>9.2}  {:>9.2}  {:>10.2}", micros(sealed), micros(echoed), micros(sealing));
    }
    Ok(())
}

/// Returns the time to an answer of `answer` bytes.
fn round_trip(socket: &UdpSocket, packet: &[u8], answer: usize) -> io::Result<Duration> {
    let mut buffer = vec![0; 65_536];
    let began = Instant::now();
    socket.send(packet)?;
    let len = socket.recv(&mut buffer)?;
    let took = began.elapsed();
    if len == answer {
        Ok(took)
    } else {
        Err(io::Error::other(format!("an answer of {len} bytes came, not of {answer}")))
    }
}

fn median(mut once: impl FnMut() -> io::Result<Duration>) -> io::Result<Duration> {
    let mut times = (0..ROUNDS).map(|_| once()).collect::<io::Result<Vec<_>>>()?;
    times.sort_unstable();
    Ok(times[times.len() / 2])
}

fn key() -> io::Result<LessSafeKey> {
    let key = UnboundKey::new(&AES_128_GCM, &[7; 16]).map_err(|_| io::Error::other("a key of 16 bytes was refused"))?;
    Ok(LessSafeKey::new(key))
}

fn seal(key: &LessSafeKey, number: u64, packet: &mut Vec<u8>) -> io::Result<()> {
    let mut nonce = [0; 12];
    nonce[4..].copy_from_slice(&number.to_be_bytes());
    let sealed = key.seal_in_place_append_tag(Nonce::assume_unique_for_key(nonce), Aad::empty(), packet);
    sealed.map_err(|_| io::Error::other("a packet could not be sealed"))
}

const ROUNDS: usize = 4001;
