//! The speed of AES-256-XTS with every back end of this processor, beside aws-lc: `cargo run --release -p beside-aws-lc
//! --features aws-lc --example xts_throughput`.
//!
//! Prints GB/s (1e9 bytes) of the fastest of many short runs over 64 KiB in data units of 512 and 4096 bytes. The
//! entries of a row take turns, so that other load of the machine affects all alike.

#![allow(clippy::print_stdout, reason = "printing is the whole purpose, so a failed write loses no other work")]
#![allow(unsafe_code)] // aws-lc's safe interface has no XTS

use std::hint::black_box;
use std::time::{Duration, Instant};

use resumable_aead::{Backend, DataUnits, XtsKey};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let key: [u8; 64] = std::array::from_fn(|at| at as u8);
    let available = Backend::ALL.into_iter().filter(|&backend| XtsKey::is_available(backend));
    let keys = available.map(|backend| XtsKey::with_backend(&key, backend)).collect::<Result<Vec<_>, _>>()?;
    let names: Vec<_> = keys.iter().map(|key| format!("{:?}", key.backend())).collect();
    for decrypting in [false, true] {
        println!("\nAES-256-XTS: {}\n", if decrypting { "decrypt" } else { "encrypt" });
        println!("| bytes in a unit | aws-lc | {} |\n|---|---|{}", names.join(" | "), "---|".repeat(names.len()));
        for len in [512, 4096] {
            row(&key, &keys, DataUnits::new(len)?, decrypting)?;
        }
    }
    Ok(())
}

fn row(
    key: &[u8; 64],
    keys: &[XtsKey],
    units: DataUnits,
    decrypting: bool,
) -> Result<(), resumable_aead::NotWholeUnits> {
    let aws_lc = AwsLcXts::new(key, decrypting);
    let mut data = vec![0; AREA];
    for key in keys {
        // A row is meaningful only if both give the same result.
        let (mut ours, mut theirs) = (data.clone(), data.clone());
        if decrypting {
            key.decrypt(units, 0, &mut ours)?
        } else {
            key.encrypt(units, 0, &mut ours)?
        }
        aws_lc.apply(units.len(), &mut theirs);
        assert!(ours == theirs, "aws-lc differs from {key:?}");
    }
    let mut fastest = vec![Duration::MAX; keys.len() + 1];
    let begin = Instant::now();
    while begin.elapsed() < Duration::from_millis(150) * fastest.len() as u32 {
        for (index, fastest) in fastest.iter_mut().enumerate() {
            let start = Instant::now();
            match index.checked_sub(1).map(|index| &keys[index]) {
                None => aws_lc.apply(units.len(), black_box(&mut data)),
                Some(key) if decrypting => key.decrypt(units, 0, black_box(&mut data))?,
                Some(key) => key.encrypt(units, 0, black_box(&mut data))?,
            }
            *fastest = start.elapsed().min(*fastest);
        }
    }
    let rate = |fastest: &Duration| format!("{:.2}", AREA as f64 / fastest.as_nanos() as f64);
    println!("| {} | {} |", units.len(), fastest.iter().map(rate).collect::<Vec<_>>().join(" | "));
    Ok(())
}

/// A key of aws-lc, expanded once and used with changing numbers.
struct AwsLcXts(*mut aws_lc_sys::EVP_CIPHER_CTX);

impl AwsLcXts {
    fn new(key: &[u8; 64], decrypting: bool) -> Self {
        // SAFETY: the context is this value's own; the key has the 64 bytes that the cipher takes, and a null pointer says that
        // an argument is not given.
        unsafe {
            let cipher = aws_lc_sys::EVP_aes_256_xts();
            let context = aws_lc_sys::EVP_CIPHER_CTX_new();
            let (none, no_number) = (std::ptr::null_mut(), [0; 16]);
            let way = i32::from(!decrypting);
            let done = aws_lc_sys::EVP_CipherInit_ex(context, cipher, none, key.as_ptr(), no_number.as_ptr(), way);
            assert_eq!(done, 1, "aws-lc takes the key");
            AwsLcXts(context)
        }
    }

    fn apply(&self, unit: usize, data: &mut [u8]) {
        for (number, unit) in data.chunks_exact_mut(unit).enumerate() {
            let number = (number as u128).to_le_bytes();
            let (none, mut written) = (std::ptr::null_mut(), 0);
            // SAFETY: the context was made in `new`; the number has 16 bytes, and the unit is read and written in place.
            let done = unsafe {
                let context = self.0;
                aws_lc_sys::EVP_CipherInit_ex(context, std::ptr::null(), none, std::ptr::null(), number.as_ptr(), -1)
                    & aws_lc_sys::EVP_CipherUpdate(
                        context,
                        unit.as_mut_ptr(),
                        &mut written,
                        unit.as_ptr(),
                        unit.len() as i32,
                    )
            };
            assert_eq!(done, 1, "aws-lc takes the unit");
        }
    }
}

impl Drop for AwsLcXts {
    fn drop(&mut self) {
        // SAFETY: made in `new`, freed once.
        unsafe { aws_lc_sys::EVP_CIPHER_CTX_free(self.0) };
    }
}

const AREA: usize = 65536;
