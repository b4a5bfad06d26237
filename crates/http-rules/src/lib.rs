//! The rules of HTTP for servers of files: preconditions, ranges, entity tags, `Host`, malformed HTTP/3 requests.
//!
//! - [`FileVersion`]: one version of a file, with entity tag and date; [`EntityTag`]; [`date`]: dates of any year;
//! - [`Preconditions`]: `If-Match` and related fields (RFC 9110 section 13), for reads and writes;
//! - [`range`]: `Range` and `Content-Range`; [`reply`]: status, range and fields of the answer to a GET or HEAD;
//! - [`check_target`]: the request target and `Host` of HTTP/1.1 (RFC 9112 section 3);
//! - [`http3`]: requests that RFC 9114 calls malformed.
//!
//! ```text
//! request > check_target or http3::check_head > reply (GET, HEAD), Preconditions::evaluate (writes)
//! ```
//! No function reads a clock or a file. [`FileVersion::from_metadata`] reads metadata that the caller provides.

#![forbid(unsafe_code)]

mod conditions;
pub mod date;
pub mod http3;
pub mod range;
mod reply;
mod tag;
mod target;
mod version;

pub use conditions::{CurrentState, Preconditions, UnmetPrecondition};
/// Crate `http`, re-exported for its types in this interface.
pub use http;
pub use reply::{FileReply, reply};
pub use tag::EntityTag;
pub use target::{BadTarget, check_target};
pub use version::FileVersion;

/// Compiles and runs the README's example.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
