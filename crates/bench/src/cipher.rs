//! Costs of the 5G ciphers and MACs beside AES-GCM, on one core, by packet length, number of parallel packets and
//! instruction set.

use cellular_crypto::{Algorithm, Backend, CipherJob, Engine, Iv, Key, MacJob, SealJob, TagLen};
use offload_bench_tls::choices;
use serde::Serialize;
use std::time::Instant;

choices! {
    /// A cipher, a MAC or both.
    pub enum Cipher {
        /// AES-128-GCM, one packet after the other.
        Aes128Gcm = "aes-128-gcm",
        /// AES-256-GCM, one packet after the other.
        Aes256Gcm = "aes-256-gcm",
        /// Ciphering with SNOW 3G.
        Nea1 = "nea1",
        /// Ciphering with AES-128.
        Nea2 = "nea2",
        /// Ciphering with ZUC-128.
        Nea3 = "nea3",
        /// Ciphering with Snow 5G.
        Nea4 = "nea4",
        /// Ciphering with AES-256.
        Nea5 = "nea5",
        /// Ciphering with ZUC-256.
        Nea6 = "nea6",
        /// Integrity with SNOW 3G.
        Nia1 = "nia1",
        /// Integrity with AES-128.
        Nia2 = "nia2",
        /// Integrity with ZUC-128.
        Nia3 = "nia3",
        /// Integrity with Snow 5G.
        Nia4 = "nia4",
        /// Integrity with AES-256.
        Nia5 = "nia5",
        /// Integrity with ZUC-256.
        Nia6 = "nia6",
        /// Authenticated encryption with Snow 5G.
        Nca4 = "nca4",
        /// Authenticated encryption with AES-256.
        Nca5 = "nca5",
        /// Authenticated encryption with ZUC-256.
        Nca6 = "nca6",
    }
}

choices! {
    /// The instruction set of parallel lanes. AES uses the processor's fastest instructions in any case, except in
    /// AES-GCM.
    pub enum CipherLanes {
        /// The fastest that the processor supports.
        Best = "best",
        /// Safe Rust without special instructions.
        Portable = "portable",
        /// AVX2: eight packets in parallel.
        Avx2 = "avx2",
        /// AVX-512: sixteen packets in parallel.
        Avx512 = "avx512",
    }
}

/// The kind of work of a cipher.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Work {
    Gcm(resumable_aead::Algorithm),
    Cipher(Algorithm),
    Mac(Algorithm),
    Both(Algorithm),
}

impl Cipher {
    fn work(self) -> Work {
        use Algorithm::{Aes128, Aes256, Snow3g, Snow5g, Zuc128, Zuc256};
        match self {
            Cipher::Aes128Gcm => Work::Gcm(resumable_aead::Algorithm::Aes128Gcm),
            Cipher::Aes256Gcm => Work::Gcm(resumable_aead::Algorithm::Aes256Gcm),
            Cipher::Nea1 => Work::Cipher(Snow3g),
            Cipher::Nea2 => Work::Cipher(Aes128),
            Cipher::Nea3 => Work::Cipher(Zuc128),
            Cipher::Nea4 => Work::Cipher(Snow5g),
            Cipher::Nea5 => Work::Cipher(Aes256),
            Cipher::Nea6 => Work::Cipher(Zuc256),
            Cipher::Nia1 => Work::Mac(Snow3g),
            Cipher::Nia2 => Work::Mac(Aes128),
            Cipher::Nia3 => Work::Mac(Zuc128),
            Cipher::Nia4 => Work::Mac(Snow5g),
            Cipher::Nia5 => Work::Mac(Aes256),
            Cipher::Nia6 => Work::Mac(Zuc256),
            Cipher::Nca4 => Work::Both(Snow5g),
            Cipher::Nca5 => Work::Both(Aes256),
            Cipher::Nca6 => Work::Both(Zuc256),
        }
    }
}

impl CipherLanes {
    fn backend(self) -> Backend {
        match self {
            CipherLanes::Best => Backend::best(),
            CipherLanes::Portable => Backend::Portable,
            CipherLanes::Avx2 => Backend::Avx2,
            CipherLanes::Avx512 => Backend::Avx512,
        }
    }

    fn of_gcm(self, algorithm: resumable_aead::Algorithm) -> resumable_aead::Backend {
        match self {
            CipherLanes::Best => resumable_aead::Backend::best(algorithm),
            CipherLanes::Portable => resumable_aead::Backend::Portable,
            CipherLanes::Avx2 => resumable_aead::Backend::Avx2,
            CipherLanes::Avx512 => resumable_aead::Backend::Avx512,
        }
    }
}

/// A batch of packets to be protected. Each packet has its own key, like packets of different users.
///
/// ```
/// use offload_bench::cipher::{Cipher, Packets};
///
/// let run = Packets { size: 256, in_flight: 4, bytes: 1 << 16, ..Packets::new(Cipher::Nea1) }.run()?;
/// assert!(run.ns_per_byte > 0.0 && run.fastest_ns_per_byte <= run.ns_per_byte);
/// # Ok::<(), offload_bench::cipher::LanesError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packets {
    /// The cipher.
    pub cipher: Cipher,
    /// The instruction set.
    pub lanes: CipherLanes,
    /// Bytes of a packet.
    pub size: usize,
    /// Packets in a batch.
    pub in_flight: usize,
    /// Bytes in total. Half as many are processed before, unmeasured.
    pub bytes: u64,
}

/// The result of a run: CPU time of one core of this machine.
///
/// See [`Packets`] for an example.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CipherRun {
    /// Name of the cipher.
    pub cipher: &'static str,
    /// The requested instruction set.
    pub lanes: &'static str,
    /// The instruction set that was used.
    pub instructions: String,
    /// Bytes of a packet.
    pub size: usize,
    /// Packets in a batch.
    pub in_flight: usize,
    /// Nanoseconds per byte: the median of the run's slices.
    pub ns_per_byte: f64,
    /// Nanoseconds per byte in the fastest slice.
    pub fastest_ns_per_byte: f64,
    /// Nanoseconds per packet.
    pub ns_per_packet: f64,
    /// Throughput of one core in 10^9 bits per second.
    pub gbps: f64,
}

/// The processor lacks the requested instructions.
///
/// See [`Packets`] for an example.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{cipher}: this processor has no instructions for lanes by {lanes}")]
pub struct LanesError {
    cipher: Cipher,
    lanes: CipherLanes,
}

impl Packets {
    /// Returns batches of 32 packets of 1,464 bytes, 16 MiB in total, with the fastest instructions.
    pub fn new(cipher: Cipher) -> Packets {
        Packets { cipher, lanes: CipherLanes::Best, size: 1464, in_flight: 32, bytes: 16 << 20 }
    }

    /// Measures the cipher.
    ///
    /// # Errors [`LanesError`].
    pub fn run(&self) -> Result<CipherRun, LanesError> {
        let refused = LanesError { cipher: self.cipher, lanes: self.lanes };
        let (instructions, mut slices) = match self.cipher.work() {
            Work::Gcm(algorithm) => {
                let backend = self.lanes.of_gcm(algorithm);
                let key = |packet: usize| {
                    resumable_aead::Key::with_backend(algorithm, &vec![packet as u8; algorithm.key_len()], backend)
                };
                let keys: Vec<_> = (0..self.in_flight).map(key).collect::<Result<_, _>>().map_err(|_| refused)?;
                let slices = self.measure(|packets| {
                    for (packet, key) in packets.iter_mut().zip(&keys) {
                        // Sealing cannot fail: the nonce allows this length.
                        let _tag = std::hint::black_box(key.seal_in_place(&[1; 12], &[], packet));
                    }
                });
                (format!("{backend:?}"), slices)
            }
            // All 5G algorithms run on one engine, which processes the packets of a batch in parallel lanes.
            work @ (Work::Cipher(algorithm) | Work::Mac(algorithm) | Work::Both(algorithm)) => {
                let engine = Engine::with_backend(self.lanes.backend()).ok_or(refused)?;
                let key = |packet: usize| Key::new(algorithm, &vec![packet as u8; algorithm.key_len()]);
                // The keys have the algorithm's own length, so no key is dropped.
                let keys: Vec<Key> = (0..self.in_flight).filter_map(|packet| key(packet).ok()).collect();
                // AES always uses the processor's best instructions, so the row names them instead of the requested
                // lanes.
                let of_aes = resumable_aead::AesKey::new(&[0; 16])
                    .ok()
                    .filter(|_| matches!(algorithm, Algorithm::Aes128 | Algorithm::Aes256));
                // The row must name the instructions that really did the work.
                let instructions = match of_aes {
                    Some(key) => format!("{:?}", key.backend()),
                    None => format!("{:?}", engine.backend()),
                };
                (instructions, self.measure(|packets| batch(engine, work, &keys, packets)))
            }
        };
        // The median resists slices in which the machine did other work.
        slices.sort_unstable_by(f64::total_cmp);
        let (median, fastest) = (slices[slices.len() / 2], slices[0]);
        use offload_bench_tls::choice::Choice;
        Ok(CipherRun {
            cipher: self.cipher.name(),
            lanes: self.lanes.name(),
            instructions,
            size: self.size,
            in_flight: self.in_flight,
            ns_per_byte: median,
            fastest_ns_per_byte: fastest,
            ns_per_packet: median * self.size as f64,
            gbps: 8.0 / median,
        })
    }

    /// Returns the nanoseconds per byte of each slice.
    fn measure(&self, mut batch: impl FnMut(&mut [Vec<u8>])) -> Vec<f64> {
        let mut packets = vec![vec![0x5a; self.size.max(1)]; self.in_flight.max(1)];
        let bytes = (packets.len() * packets[0].len()) as u64;
        // A slice has whole batches, so small runs may process more bytes than requested.
        let batches = (self.bytes / SLICES / bytes).max(1);
        // Unmeasured batches first, so that caches and clock frequency settle.
        (0..batches * SLICES / 2).for_each(|_| batch(&mut packets));
        let slice = |_| {
            let start = Instant::now();
            (0..batches).for_each(|_| batch(&mut packets));
            // The clock may not advance during a very short slice, so a slice takes at least a nanosecond.
            start.elapsed().as_nanos().max(1) as f64 / (batches * bytes) as f64
        };
        (0..SLICES).map(slice).collect()
    }
}

/// Processes one batch with an engine.
fn batch(engine: Engine, work: Work, keys: &[Key], packets: &mut [Vec<u8>]) {
    let each = packets.iter_mut().zip(keys).enumerate();
    let iv = |packet: usize| Iv::from_bytes([packet as u8; 16]);
    // No packet exceeds the maximum length of a message, so no job is dropped.
    match work {
        Work::Cipher(_) => {
            let each = each.map(|(n, (data, key))| CipherJob::new(key, iv(n), data));
            let mut jobs: Vec<_> = each.flatten().collect();
            engine.cipher(&mut jobs);
        }
        Work::Mac(_) => {
            let each = each.map(|(n, (data, key))| MacJob::new(key, iv(n), data, TagLen::FOUR));
            let mut jobs: Vec<_> = each.flatten().collect();
            engine.mac(&mut jobs);
            std::hint::black_box(&jobs);
        }
        Work::Both(_) | Work::Gcm(_) => {
            let each = each.map(|(n, (data, key))| SealJob::new(key, iv(n), &[], data, TagLen::FOUR));
            let mut jobs: Vec<_> = each.flatten().collect();
            engine.seal(&mut jobs);
            std::hint::black_box(&jobs);
        }
    }
}

/// Returns the runs as a table, one row each.
///
/// ```
/// assert!(offload_bench::cipher::table(&[]).contains("in flight"));
/// ```
pub fn table(runs: &[CipherRun]) -> String {
    let mut text = String::from("cipher       lanes     by           size  in flight    ns/B  ns/packet   Gb/s\n");
    for run in runs {
        let CipherRun { cipher, lanes, instructions, size, in_flight, ns_per_byte, ns_per_packet, gbps, .. } = run;
        text += &format!(
            "{cipher:<12} {lanes:<9} {instructions:<10} {size:>6} {in_flight:>10} {ns_per_byte:>7.3} {ns_per_packet:>10.0} {gbps:>6.1}\n"
        );
    }
    text
}

/// Parts of a run that are measured separately.
const SLICES: u64 = 15;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_cipher_runs_with_every_instruction_that_there_is() {
        for cipher in Cipher::ALL {
            // These two exist on every processor.
            for lanes in [CipherLanes::Best, CipherLanes::Portable] {
                let packets = Packets { lanes, size: 100, in_flight: 3, bytes: 10_000, ..Packets::new(cipher) };
                let run = packets.run().unwrap();
                assert!(run.ns_per_byte > 0.0 && run.fastest_ns_per_byte <= run.ns_per_byte, "{run:?}");
                let aes = [Cipher::Nea2, Cipher::Nea5, Cipher::Nia2, Cipher::Nia5, Cipher::Nca5].contains(&cipher);
                let expected = match resumable_aead::AesKey::new(&[0; 16]) {
                    Ok(key) if aes => format!("{:?}", key.backend()),
                    _ if cipher.work() == Work::Gcm(resumable_aead::Algorithm::Aes128Gcm) => run.instructions.clone(),
                    _ if cipher.work() == Work::Gcm(resumable_aead::Algorithm::Aes256Gcm) => run.instructions.clone(),
                    _ => format!("{:?}", lanes.backend()),
                };
                assert_eq!(run.instructions, expected, "{cipher}");
            }
        }
    }

    #[test]
    fn instructions_that_are_not_there_are_told() {
        let run = Packets { lanes: CipherLanes::Avx512, bytes: 1, ..Packets::new(Cipher::Nea3) }.run();
        assert_eq!(run.is_ok(), Backend::Avx512.is_available());
        let error = LanesError { cipher: Cipher::Nea3, lanes: CipherLanes::Avx512 };
        assert_eq!(error.to_string(), "nea3: this processor has no instructions for lanes by avx512");
    }
}
