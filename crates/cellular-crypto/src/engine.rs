//! Assignment of jobs to lanes: jobs of one generator run side by side, sorted by length.

use crate::aes_modes::{Cmac, keystream};
use crate::eia3::Eia3;
use crate::jobs::{CipherJob, MacJob, OpenJob, SealJob};
use crate::key::ExpandedKey;
use crate::lane::{Lane, LaneWork};
use crate::run::GeneratorKind;
use crate::sst::Subkeys;
use crate::{Algorithm, Backend, Iv};
use resumable_aead::AesKey;

/// Runs jobs with one back-end, up to its number of lanes at a time.
///
/// ```
/// use cellular_crypto::{Algorithm, CipherJob, Engine, Iv, Key, MacJob, OpenJob, SealJob, TagLen};
///
/// let keys = [Algorithm::Snow3g, Algorithm::Zuc128].map(|algorithm| Key::new(algorithm, &[7; 16]).expect("16 bytes"));
/// let mut packets = [[0; 40]; 6];
/// let mut jobs = Vec::new();
/// for (index, packet) in packets.iter_mut().enumerate() {
///     jobs.push(CipherJob::new(&keys[index % 2], Iv::from_bytes([index as u8; 16]), packet)?);
/// }
/// Engine::best().cipher(&mut jobs);
///
/// let mut jobs = [MacJob::new(&keys[0], Iv::from_bytes([0; 16]), b"message", TagLen::FOUR)?];
/// Engine::best().mac(&mut jobs);
/// assert_eq!(jobs[0].tag(), keys[0].mac(&Iv::from_bytes([0; 16]), b"message", TagLen::FOUR)?);
///
/// let key = Key::new(Algorithm::Zuc256, &[7; 32])?;
/// let mut data = *b"message";
/// let mut jobs = [SealJob::new(&key, Iv::from_bytes([0x24; 16]), b"", &mut data, TagLen::FOUR)?];
/// Engine::best().seal(&mut jobs);
/// let tag = jobs[0].tag();
/// let mut jobs = [OpenJob::new(&key, Iv::from_bytes([0x24; 16]), b"", &mut data, tag.as_bytes())?];
/// Engine::best().open(&mut jobs);
/// assert!(jobs[0].is_authentic());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Engine {
    backend: Backend,
}

impl Engine {
    /// Creates an engine with the fastest back-end of this processor.
    pub fn best() -> Engine {
        Engine { backend: Backend::best() }
    }

    /// Creates an engine with a specific back-end, for tests and benchmarks. Returns `None` if it is not available.
    pub fn with_backend(backend: Backend) -> Option<Engine> {
        backend.is_available().then_some(Engine { backend })
    }

    /// Returns the back-end.
    pub fn backend(self) -> Backend {
        self.backend
    }

    /// NEA: ciphers or deciphers the data of all jobs.
    pub fn cipher(self, jobs: &mut [CipherJob<'_>]) {
        self.run(jobs.iter_mut().map(CipherJob::start));
    }

    /// NIA: computes the tags of all jobs.
    pub fn mac(self, jobs: &mut [MacJob<'_>]) {
        self.run(jobs.iter_mut().map(MacJob::start));
    }

    /// NCA: ciphers the data of all jobs and computes their tags.
    pub fn seal(self, jobs: &mut [SealJob<'_>]) {
        self.run(jobs.iter_mut().map(SealJob::start));
    }

    /// NCA: compares the tags of all jobs, and deciphers the data of authentic ones.
    pub fn open(self, jobs: &mut [OpenJob<'_>]) {
        self.run(jobs.iter_mut().map(OpenJob::start));
    }

    /// Runs the jobs that need lanes or CMACs.
    fn run<'a>(self, started: impl ExactSizeIterator<Item = StartedJob<'a>>) {
        let jobs = started.len();
        let mut lanes: [Vec<Lane<'_>>; 4] = Default::default();
        // A CMAC wipes its secrets in place, so the vector must not grow and move them.
        let mut cmacs = Vec::new();
        for (number, started) in started.enumerate() {
            match started {
                StartedJob::Done => {}
                StartedJob::Lane(stream, lane) => lanes[stream as usize].push(lane),
                StartedJob::Cmac(cmac) => {
                    if cmacs.is_empty() {
                        cmacs.reserve_exact(jobs - number);
                    }
                    cmacs.push(cmac);
                }
            }
        }
        Cmac::run(&mut cmacs);
        for stream in [GeneratorKind::Snow3g, GeneratorKind::Snow5g, GeneratorKind::Zuc128, GeneratorKind::Zuc256] {
            let lanes = &mut lanes[stream as usize];
            // Messages of similar lengths end together, so that few lanes run empty.
            if !lanes.is_sorted_by_key(|lane| lane.blocks) {
                lanes.sort_unstable_by_key(|lane| lane.blocks);
            }
            self.backend.run(stream, lanes);
        }
    }
}

/// The work that remains after a job has started.
enum StartedJob<'a> {
    Done,
    Lane(GeneratorKind, Lane<'a>),
    Cmac(Cmac<'a>),
}

impl CipherJob<'_> {
    fn start(&mut self) -> StartedJob<'_> {
        match (self.key.algorithm(), &self.key.secret) {
            (_, ExpandedKey::Aes128(key)) => {
                // TS 33.401 B.1.3: an eight-byte prefix and a 64-bit counter.
                let prefix = u128::from_be_bytes(*self.iv.bytes()) >> 64 << 64;
                key.cipher.counter_mode(prefix, self.data);
            }
            (_, ExpandedKey::Aes256(key)) => key.counter_mode(wide_counter(&self.iv), self.data),
            (algorithm, ExpandedKey::Bytes(key)) => {
                // AES is done at once; generators wait for their batch.
                return StartedJob::lane(algorithm, key, &self.iv, LaneWork::Cipher(self.data));
            }
        }
        StartedJob::Done
    }
}

impl MacJob<'_> {
    fn start(&mut self) -> StartedJob<'_> {
        let (message, bits, tag) = (self.message, self.bits, &mut self.tag);
        let key = match &self.key.secret {
            ExpandedKey::Aes128(key) => {
                let prefix = *self.iv.bytes().first_chunk().expect("16 bytes");
                return StartedJob::Cmac(Cmac::new(key, prefix, message, bits, tag));
            }
            ExpandedKey::Aes256(key) => {
                *tag = aes_subkeys(key, &self.iv).tag(message, &[]);
                return StartedJob::Done;
            }
            ExpandedKey::Bytes(key) => key,
        };
        let work = match self.key.algorithm() {
            Algorithm::Snow3g => LaneWork::Uia2 { message, bits, tag },
            Algorithm::Zuc128 => LaneWork::Eia3(Eia3::new(message, bits), tag),
            _ => LaneWork::Sst { message, tag },
        };
        StartedJob::lane(self.key.algorithm(), key, &self.iv, work)
    }
}

impl SealJob<'_> {
    fn start(&mut self) -> StartedJob<'_> {
        let (aad, tag) = (self.aad, &mut self.tag);
        match &self.key.secret {
            ExpandedKey::Bytes(key) => {
                let work = LaneWork::Seal { aad, data: self.data, subkeys: None, tag };
                StartedJob::lane(self.key.algorithm(), key, &self.iv, work)
            }
            ExpandedKey::Aes256(key) => {
                key.counter_mode(wide_counter(&self.iv), self.data);
                *tag = aes_subkeys(key, &self.iv).tag(aad, self.data);
                StartedJob::Done
            }
            ExpandedKey::Aes128(_) => unreachable!("no NCA has keys of 128 bits"),
        }
    }
}

impl OpenJob<'_> {
    fn start(&mut self) -> StartedJob<'_> {
        let (aad, tag, authentic) = (self.aad, self.tag, &mut self.authentic);
        match &self.key.secret {
            ExpandedKey::Bytes(key) => {
                let work = LaneWork::Open { aad, data: self.data, tag, authentic };
                StartedJob::lane(self.key.algorithm(), key, &self.iv, work)
            }
            ExpandedKey::Aes256(key) => {
                *authentic = aes_subkeys(key, &self.iv).accepts(aad, self.data, tag);
                match *authentic {
                    true => key.counter_mode(wide_counter(&self.iv), self.data),
                    false => self.data.fill(0),
                }
                StartedJob::Done
            }
            ExpandedKey::Aes128(_) => unreachable!("no NCA has keys of 128 bits"),
        }
    }
}

impl<'a> StartedJob<'a> {
    fn lane(algorithm: Algorithm, key: &'a [u8; 32], iv: &Iv, work: LaneWork<'a>) -> StartedJob<'a> {
        let stream = match algorithm {
            Algorithm::Snow3g => GeneratorKind::Snow3g,
            Algorithm::Snow5g => GeneratorKind::Snow5g,
            Algorithm::Zuc128 => GeneratorKind::Zuc128,
            _ => GeneratorKind::Zuc256,
        };
        StartedJob::Lane(stream, Lane { key, iv: *iv.bytes(), blocks: work.blocks(), work })
    }
}

/// Returns H, Q and P of 256-NIA5 and 256-NCA5.
fn aes_subkeys(key: &AesKey, iv: &Iv) -> Subkeys {
    // The lowest bit of the first byte separates their counter blocks from the message's.
    Subkeys::new(&keystream(key, wide_counter(iv) | 1 << 120))
}

/// Returns the first counter block of 256-NEA5: twelve bytes of the IV, and a 32-bit counter.
fn wide_counter(iv: &Iv) -> u128 {
    u128::from_be_bytes(*iv.bytes()) >> 32 << 32
}
