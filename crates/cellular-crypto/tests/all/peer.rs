//! 128-NEA and 128-NIA 1 to 3 compared with intel-ipsec-mb, where it is installed: each number of bits to 2,048, and
//! lengths to 8,188 bytes. Its ZUC cipher takes whole bytes only.

use crate::ipsec_mb::IpsecMbPeer;
use cellular_crypto::{Algorithm, CipherJob, Engine, Iv, Key, MacJob, TagLen};

#[test]
fn every_length_matches_ipsec_mb() {
    let Some(peer) = IpsecMbPeer::build() else { return };
    let mut jobs = Vec::new();
    for algorithm in [Algorithm::Snow3g, Algorithm::Aes128, Algorithm::Zuc128] {
        for mac in [false, true] {
            // Their ZUC cipher takes whole bytes only.
            let whole = algorithm == Algorithm::Zuc128 && !mac;
            let bits = (1..=2048).filter(|bits| !whole || bits % 8 == 0);
            jobs.extend(bits.map(|bits| PeerJob::new(algorithm, mac, bits)));
            // A prime step keeps the test short and reaches each length modulo 64.
            jobs.extend((257..8188).step_by(step()).chain([8188]).map(|bytes| PeerJob::new(algorithm, mac, 8 * bytes)));
        }
    }
    let keys: Vec<Key> = jobs.iter().map(|job| Key::new(job.algorithm, &job.key).unwrap()).collect();
    let mut ours: Vec<Vec<u8>> = jobs.iter().map(|job| job.message.clone()).collect();
    let (mut macs, mut ciphers) = (Vec::new(), Vec::new());
    for ((job, key), data) in jobs.iter().zip(&keys).zip(&mut ours) {
        match job.mac {
            true => macs.push(MacJob::for_bits(key, job.iv, &job.message, job.bits, TagLen::FOUR).unwrap()),
            false => ciphers.push(CipherJob::new(key, job.iv, data).unwrap()),
        }
    }
    Engine::best().cipher(&mut ciphers);
    Engine::best().mac(&mut macs);
    let tags: Vec<_> = macs.iter().map(MacJob::tag).collect();

    // The program gets all jobs on standard input and prints their results in order.
    let mut input = (jobs.len() as u32).to_le_bytes().to_vec();
    jobs.iter().for_each(|job| job.write(&mut input));
    for instructions in ["sse", "avx512"] {
        // AVX-512 may be missing.
        let Some(theirs) = peer.run(&[instructions, "check"], input.clone()) else {
            eprintln!("SKIPPED: this processor lacks {instructions}");
            continue;
        };
        let (mut theirs, mut tags) = (&theirs[..], tags.iter());
        for (job, data) in jobs.iter().zip(&ours) {
            let what = format!("{instructions}: {:?}, MAC {}, {} bits", job.algorithm, job.mac, job.bits);
            let len = if job.mac { 4 } else { data.len() };
            let (this, rest) = theirs.split_at(len);
            theirs = rest;
            match job.mac {
                true => assert_eq!(tags.next().unwrap().as_bytes(), this, "{what}"),
                false => assert_eq!(first(data, job.bits), first(this, job.bits), "{what}"),
            }
        }
        // Nothing is left: both sides had the same jobs.
        assert!(theirs.is_empty());
    }
}

/// Returns 1 if `IPSEC_MB_EVERY` is set: every length.
fn step() -> usize {
    if std::env::var_os("IPSEC_MB_EVERY").is_some() { 1 } else { 101 }
}

struct PeerJob {
    algorithm: Algorithm,
    mac: bool,
    bits: usize,
    key: [u8; 16],
    iv: Iv,
    message: Vec<u8>,
}

impl PeerJob {
    fn new(algorithm: Algorithm, mac: bool, bits: usize) -> PeerJob {
        // A linear congruential generator, seeded differently for each job.
        let mut state = bits as u32 | u32::from(algorithm.number()) << 24 | u32::from(mac) << 31;
        let mut byte = || {
            state = state.wrapping_mul(0x915f_77f5).wrapping_add(1);
            (state >> 24) as u8
        };
        let key = std::array::from_fn(|_| byte());
        // AES counts from zero in the IV's last eight bytes.
        let mut iv: [u8; 16] = std::array::from_fn(|_| byte());
        if algorithm == Algorithm::Aes128 {
            iv[8..].fill(0);
        }
        PeerJob {
            algorithm,
            mac,
            bits,
            key,
            iv: Iv::from_bytes(iv),
            message: (0..bits.div_ceil(8)).map(|_| byte()).collect(),
        }
    }

    fn write(&self, to: &mut Vec<u8>) {
        to.extend([self.algorithm.number(), u8::from(self.mac)]);
        to.extend((self.bits as u32).to_le_bytes());
        to.extend(self.key);
        to.extend(self.iv.bytes());
        to.extend(&self.message);
    }
}

/// Returns the first bits, with zeros in the rest of the last byte.
fn first(bytes: &[u8], bits: usize) -> Vec<u8> {
    let mut first = bytes[..bits.div_ceil(8)].to_vec();
    if let (Some(last), used @ 1..) = (first.last_mut(), bits % 8) {
        *last &= !(0xff >> used);
    }
    first
}
