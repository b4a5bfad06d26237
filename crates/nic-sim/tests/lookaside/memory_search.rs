//! A search of all memory of the process for a secret: a test of another crate shares it.

use std::sync::{Mutex, PoisonError};

/// Held during a search, because the search of another thread holds a copy of all memory.
static SEARCH: Mutex<()> = Mutex::new(());

/// How often, in all that this process can write to, the first 16 bytes of a secret lie. `byte` computes it byte by byte: so the
/// search has no copy of its own.
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
        // 16 bytes identify it; those of an expanded key begin with the key.
        let is_key = |at: &usize| {
            bytes
                .get(*at..at + 16)
                .is_some_and(|window| window.iter().enumerate().all(|(at, found)| *found == byte(at)))
        };
        found += memchr::memchr_iter(byte(0), &bytes).filter(is_key).count();
        // What was read may hold the key: it is not to be found by the next look.
        bytes.fill(0);
    }
    found
}

/// Overwrites what functions that have returned left on the stack.
#[inline(never)]
pub(crate) fn scrub_stack() {
    let mut deep = [0u8; 256 << 10];
    core::hint::black_box(&mut deep);
}
