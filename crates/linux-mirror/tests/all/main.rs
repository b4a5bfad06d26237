//! Tests of the mirrors with a kernel's messages, and of the agent without a writable standard error.
//!
//! - `console`: the agent without standard error.
//! - `sa/`: SAs and policies; `tc/`: filters. `tests/linux/mirror_guest.sh` and `tc_mirror_guest.sh` run real kernels.

mod console;
mod sa;
mod tc;
