//! The reservoir's protocol on top of HTTP, shared by client and server: names of header fields, and limits.
//!
//! The chapter on the protocol in `docs/reservoir.md` describes the requests that carry these fields.

/// Product name of servers and clients. Clients recognize reservoir servers by the part before the slash.
pub(crate) const PRODUCT: &str = concat!("nic-offload-reservoir/", env!("CARGO_PKG_VERSION"));

/// Tests whether a `Server` field names a reservoir of any version.
pub(crate) fn is_reservoir(server: &str) -> bool {
    server.split('/').next() == PRODUCT.split('/').next()
}

/// The client's name of an upload.
pub(crate) const UPLOAD: &str = "reservoir-upload";
/// The sizes of the upload's file and of its blocks: `SIZE/BLOCK`.
pub(crate) const BLOCKS: &str = "reservoir-blocks";
/// The share of the blocks that this server writes, and the number of shares: `NUMBER/COUNT`.
pub(crate) const SHARE: &str = "reservoir-share";
/// Maximum number of servers that write one file.
pub(crate) const MAX_SHARES: u16 = 64;
/// Asks the server to resume an upload.
pub(crate) const RESUME: &str = "reservoir-resume";
/// Asks the server to read the present blocks again, even if the upload is open.
pub(crate) const CHECK: &str = "reservoir-check";
/// Asks the server to read the whole file again before the file gets its name.
pub(crate) const VERIFY: &str = "reservoir-verify";
/// The permission bits of the source: nine bits, octal.
pub(crate) const MODE: &str = "reservoir-mode";
/// Asks the server to store runs of zeros as holes.
pub(crate) const SPARSE: &str = "reservoir-sparse";
/// The number of present blocks, in a response.
pub(crate) const PRESENT: &str = "reservoir-present";
/// The number of missing blocks, in a refusal.
pub(crate) const MISSING: &str = "reservoir-missing";
/// The kind of an entry in a response: `folder`, or absent for files.
pub(crate) const KIND: &str = "reservoir-kind";
/// The block size for which a client wants checksums in trailers.
pub(crate) const BLOCK: &str = "reservoir-block";
/// The source's modification time in seconds since 1970, as ownCloud's clients and rclone send it.
pub(crate) const MTIME: &str = "x-oc-mtime";
/// The token for the other server of a COPY (HTTP-TPC).
pub(crate) const TRANSFER_AUTHORIZATION: &str = "transferheaderauthorization";
