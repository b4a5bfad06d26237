//! Parsing of a kernel's filters, and their effect at a mirror.

mod mirror;
mod watch;
