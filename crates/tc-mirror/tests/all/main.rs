//! Parsing of a kernel's messages and their effect at a mirror; the agent without a writable standard error.
//! `tests/linux/tc_mirror_guest.sh` runs whole kernels.

mod console;
mod mirror;
mod watch;
