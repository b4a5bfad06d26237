//! A search of the process's memory for a secret. A test of another crate includes this file.

use std::sync::{Mutex, PoisonError};

/// Held during a search, because each search holds a copy of all memory.
static SEARCH: Mutex<()> = Mutex::new(());

/// Counts the occurrences of a secret's first 16 bytes in all writable memory of this process. `byte` computes the
/// secret byte by byte, so that the search has no copy of its own.
pub(crate) fn copies(byte: impl Fn(usize) -> u8) -> usize {
    use std::io::{Read, Seek, SeekFrom};
    let _search = SEARCH.lock().unwrap_or_else(PoisonError::into_inner);
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let mut memory = std::fs::File::open("/proc/self/mem").unwrap();
    let mut found = 0;
    for line in maps.lines().filter(|line| line.split(' ').nth(1).is_some_and(|rights| rights.starts_with("rw"))) {
        let (start, end) = line.split(' ').next().unwrap().split_once('-').unwrap();
        let (start, end) = (u64::from_str_radix(start, 16).unwrap(), u64::from_str_radix(end, 16).unwrap());
        let mut bytes = vec![0; (end - start) as usize];
        if memory.seek(SeekFrom::Start(start)).is_err() || memory.read_exact(&mut bytes).is_err() {
            continue;
        }
        // 16 bytes identify the key; an expanded key starts with the key itself.
        let is_key = |at: &usize| {
            bytes
                .get(*at..at + 16)
                .is_some_and(|window| window.iter().enumerate().all(|(at, found)| *found == byte(at)))
        };
        found += memchr::memchr_iter(byte(0), &bytes).filter(is_key).count();
        // The buffer may contain the key, so it is cleared before the next search.
        bytes.fill(0);
    }
    found
}

/// Overwrites the stack below the current function.
#[inline(never)]
pub(crate) fn scrub_stack() {
    let mut deep = [0u8; 256 << 10];
    core::hint::black_box(&mut deep);
}
