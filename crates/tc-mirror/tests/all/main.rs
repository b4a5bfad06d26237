//! What is read of a kernel's messages, and what becomes of it at a mirror; the agent without standard error. Whole kernels are asked by `tests/linux/tc_mirror_guest.sh`.

mod console;
mod mirror;
mod watch;
