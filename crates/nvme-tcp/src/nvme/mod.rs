//! What NVMe itself defines, whatever carries it: commands, completions, status.

pub mod command;
pub mod completion;
pub mod fabrics;
pub mod identify;
pub mod log;
pub mod status;

pub use command::{AdminOpcode, Command, FabricsType, IoOpcode, Sgl, SglKind};
pub use completion::Completion;
pub use status::Status;

/// The little-endian number of 2 bytes at `at`.
pub(crate) fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

/// The little-endian number of 4 bytes at `at`.
pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// The little-endian number of 8 bytes at `at`.
pub(crate) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) | u64::from(u32_at(bytes, at + 4)) << 32
}

/// Puts `value` at `at`.
pub(crate) fn put(bytes: &mut [u8], at: usize, value: &[u8]) {
    bytes[at..at + value.len()].copy_from_slice(value);
}
