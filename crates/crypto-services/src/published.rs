//! "Microservice-based in-network security framework for FPGA NICs" (Hussain et al., a poster): its table, and the line
//! through two rows.
//!
//! The poster claims that the FPGA cuts latency by 88.5 to 97.3 %; its table gives 88.5 to 96.9 %. Most of the
//! reduction is the container's network stack, some 190 us of each row. Compared with the time of the CPU's AES
//! instructions alone, the FPGA takes 9 to 31 times as long.

/// Latencies of AES-GCM for one message size, in microseconds.
///
/// ```
/// use crypto_services::published::{ROWS, fpga_line};
///
/// // Fitted on the first and the last row, the line says the four between within 0.05 us.
/// for row in &ROWS[1..5] {
///     assert!((fpga_line().micros(row.bytes) - row.fpga).abs() < 0.05);
/// }
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PublishedRow {
    /// Message size in bytes.
    pub bytes: u32,
    /// Time for encryption alone, in a container with AES-NI.
    pub container_compute: f64,
    /// End-to-end time in a container with AES-NI.
    pub container: f64,
    /// End-to-end time of the FPGA.
    pub fpga: f64,
}

impl PublishedRow {
    /// Returns the share by which the FPGA reduces the container's end-to-end time.
    pub(crate) fn reduction(&self) -> f64 {
        1.0 - self.fpga / self.container
    }

    /// Returns the FPGA's time divided by the time of AES-NI alone.
    pub(crate) fn slowdown(&self) -> f64 {
        self.fpga / self.container_compute
    }
}

/// The poster's table.
pub const ROWS: [PublishedRow; 6] = [
    PublishedRow { bytes: 64, container_compute: 0.65, container: 192.57, fpga: 5.89 },
    PublishedRow { bytes: 128, container_compute: 0.67, container: 194.65, fpga: 6.94 },
    PublishedRow { bytes: 256, container_compute: 0.69, container: 219.18, fpga: 9.07 },
    PublishedRow { bytes: 512, container_compute: 0.75, container: 231.17, fpga: 13.29 },
    PublishedRow { bytes: 1024, container_compute: 0.83, container: 243.21, fpga: 21.87 },
    PublishedRow { bytes: 1464, container_compute: 0.93, container: 253.73, fpga: 29.16 },
];

/// A latency that grows linearly with the message.
///
/// See [`PublishedRow`] for an example.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LatencyLine {
    /// Time for an empty message.
    pub fixed_us: f64,
    /// Time for each byte.
    pub per_byte_ns: f64,
}

impl LatencyLine {
    /// Creates the line through two points of bytes and microseconds.
    pub fn through(a: (u32, f64), b: (u32, f64)) -> LatencyLine {
        let per_byte_us = (b.1 - a.1) / (f64::from(b.0) - f64::from(a.0));
        LatencyLine { fixed_us: a.1 - per_byte_us * f64::from(a.0), per_byte_ns: 1000.0 * per_byte_us }
    }

    /// Returns the time for a message.
    pub fn micros(&self, bytes: u32) -> f64 {
        self.fixed_us + self.per_byte_ns * f64::from(bytes) / 1000.0
    }
}

/// Returns the FPGA's line through the rows for 64 and 1,464 bytes.
pub fn fpga_line() -> LatencyLine {
    let [first, .., last] = ROWS;
    LatencyLine::through((first.bytes, first.fpga), (last.bytes, last.fpga))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_contradicts_the_claimed_reduction() {
        let percent =
            |of: fn(f64, f64) -> f64, start: f64| ROWS.iter().map(|row| 100.0 * row.reduction()).fold(start, of);
        assert!((percent(f64::min, 100.0) - 88.5).abs() < 0.05);
        assert!((percent(f64::max, 0.0) - 96.9).abs() < 0.05, "the poster claims 97.3");
        let slowest = ROWS.iter().map(PublishedRow::slowdown).fold(0.0, f64::max);
        let fastest = ROWS.iter().map(PublishedRow::slowdown).fold(f64::MAX, f64::min);
        assert!((fastest - 9.06).abs() < 0.01 && (slowest - 31.35).abs() < 0.01, "{fastest} {slowest}");
    }

    #[test]
    fn aes_block_takes_266_ns() {
        assert!((fpga_line().per_byte_ns * 16.0 - 266.0).abs() < 0.1);
        assert!((fpga_line().fixed_us - 4.83).abs() < 0.01);
    }
}
