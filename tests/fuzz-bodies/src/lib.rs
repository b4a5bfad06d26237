//! The bodies of the fuzz targets, one module each, and a test that replays the committed inputs.
//!
//! The targets themselves are in `fuzz/`, for nightly and cargo-fuzz. Here any compiler runs the same functions over
//! `fuzz/corpus`, so that a fault found once stays fixed.

#![forbid(unsafe_code)]

pub mod attach;
pub mod device_contexts;
pub mod device_frames;
pub mod esp_input;
pub mod gtpu_datagrams;
pub mod host_connection;
pub mod host_stack;
pub mod inflaters;
mod input;
pub mod key_file;
pub mod mirror_frames;
pub mod netlink_messages;
pub mod nvme_pdus;
pub mod nvme_structures;
pub mod pdcp_pdus;
pub mod protection;
pub mod quic_datagrams;
pub mod quic_frames;
pub mod resumable_aead;
pub mod service_graphs;
mod still;
pub mod switch_rules;
pub mod switched_frames;
pub mod tc_filters;
pub mod tc_lines;
mod tcp_frame;
pub mod tls_handshake;
pub mod tls_records;

use offload_api::PathCaps;
use offload_api::mock::MockDevice;

/// Returns a device without a wire, which accepts packets of up to 64 KiB and every context.
fn device(room: usize) -> MockDevice {
    let path =
        PathCaps { epoch: 0, mtu: 1500, checksum: true, tso_max_bytes: 65_535, udp_segmentation: true, pacing: false };
    let device = MockDevice::plain(path);
    device.set_room(room);
    device
}

/// A target: its name and its body.
pub type Target = (&'static str, fn(&[u8]));

/// All targets.
///
/// ```
/// let (name, run) = fuzz_bodies::TARGETS[0];
/// run(format!("{name} takes any bytes").as_bytes());
/// ```
pub const TARGETS: &[Target] = &[
    ("attach", attach::run),
    ("device_contexts", device_contexts::run),
    ("device_frames", device_frames::run),
    ("esp_input", esp_input::run),
    ("gtpu_datagrams", gtpu_datagrams::run),
    ("host_connection", host_connection::run),
    ("host_stack", host_stack::run),
    ("inflaters", inflaters::run),
    ("key_file", key_file::run),
    ("mirror_frames", mirror_frames::run),
    ("netlink_messages", netlink_messages::run),
    ("nvme_pdus", nvme_pdus::run),
    ("nvme_structures", nvme_structures::run),
    ("pdcp_pdus", pdcp_pdus::run),
    ("protection", protection::run),
    ("quic_datagrams", quic_datagrams::run),
    ("quic_frames", quic_frames::run),
    ("resumable_aead", resumable_aead::run),
    ("service_graphs", service_graphs::run),
    ("switch_rules", switch_rules::run),
    ("switched_frames", switched_frames::run),
    ("tc_filters", tc_filters::run),
    ("tc_lines", tc_lines::run),
    ("tls_handshake", tls_handshake::run),
    ("tls_records", tls_records::run),
];
