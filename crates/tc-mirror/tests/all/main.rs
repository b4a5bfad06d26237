//! What is read of a kernel's messages, and what becomes of it at a mirror. Whole kernels are asked by `tests/linux/tc_mirror_guest.sh`.

mod mirror;
mod watch;
