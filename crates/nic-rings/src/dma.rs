//! Transfers over PCIe, by purpose, in bytes as hardware moves them.
//!
//! Ring entries are typed values in this emulation. The sizes that they would have as descriptors are stated here, and
//! counted when the device fetches or writes an entry. The sizes are those of the ConnectX family: 64-byte blocks on
//! send queues, 16-byte segments in a block, 64-byte completions, 16-byte receive descriptors.

offload_base::counters! {
    /// Bytes that the device moved over PCIe, by purpose.
    ///
    /// ```
    /// use nic_rings::dma::DmaBytes;
    /// use offload_base::counters::CounterSet;
    ///
    /// let mut set = CounterSet::default();
    /// set.add(&DmaBytes { tx_payload: 1448, ..DmaBytes::default() });
    /// assert_eq!(set.moved().collect::<Vec<_>>(), [("tx_payload", 1448)]);
    /// ```
    pub struct DmaBytes {
        /// Send descriptors of packets, with inlined headers.
        pub tx_descriptors: "tx_descriptors",
        /// Payload read for sending.
        pub tx_payload: "tx_payload",
        /// Descriptors of context parameters and fences on send rings.
        pub tx_parameters: "tx_parameters",
        /// Descriptors of DUMPs, and the payload read again to rebuild a context.
        pub tx_resync: "tx_resync",
        /// Receive descriptors.
        pub rx_descriptors: "rx_descriptors",
        /// Received packets written to host memory.
        pub rx_payload: "rx_payload",
        /// Completions of all rings.
        pub completions: "completions",
        /// Control commands, with keys.
        pub control: "control",
        /// Contexts read from and written to host memory.
        pub context: "context",
        /// Descriptors of jobs, and of commands between jobs.
        pub job_descriptors: "job_descriptors",
        /// Sources of jobs, with additional authenticated data.
        pub job_source: "job_source",
        /// Results of jobs.
        pub job_target: "job_target",
    }
}

/// Returns the size of a send descriptor in bytes: control segment, Ethernet segment with inlined headers, and one
/// segment per fragment, rounded up to whole blocks.
pub const fn packet_descriptor_bytes(header_bytes: usize, fragments: usize) -> u64 {
    // Headers are inlined, so that the device needs no second fetch for them.
    let segments = CONTROL_SEGMENT + ETHERNET_SEGMENT + header_bytes + fragments * DATA_SEGMENT;
    (segments.div_ceil(SEND_BLOCK) * SEND_BLOCK) as u64
}

/// Size of a DUMP descriptor: one block.
pub const DUMP_DESCRIPTOR: u64 = SEND_BLOCK as u64;
/// Size of a fence: one empty block.
pub const FENCE_DESCRIPTOR: u64 = SEND_BLOCK as u64;
/// Size of an [`Ahead`](crate::packet::SendDescriptor::Ahead) descriptor, with the bytes inlined: one block.
pub const AHEAD_DESCRIPTOR: u64 = SEND_BLOCK as u64;
/// Size of static TLS parameters: version, record number, IV and key index, with the header of the update.
pub const STATIC_PARAMETERS_DESCRIPTOR: u64 = 3 * SEND_BLOCK as u64;
/// Size of TLS progress parameters.
pub const PROGRESS_PARAMETERS_DESCRIPTOR: u64 = SEND_BLOCK as u64;
/// Size of a receive descriptor: address, length and key.
pub const RECEIVE_DESCRIPTOR: u64 = 16;
/// Size of a completion.
pub const COMPLETION: u64 = 64;
/// Size of a query about a context, or of its answer: one block, as on a send queue.
pub const CONTROL_QUERY: u64 = SEND_BLOCK as u64;
/// Size of a command that gives a new key to a context from the driver's pool: the key and static parameters.
pub const CONTROL_REUSE: u64 = 3 * SEND_BLOCK as u64;
/// Size of a command that moves a context to the driver's pool, without its key: one block.
pub const CONTROL_PARK: u64 = SEND_BLOCK as u64;
/// Size of a command on a send ring: one block, and the context's key and state.
pub const COMMAND_DESCRIPTOR: u64 = 3 * SEND_BLOCK as u64;
/// Size of a control command that creates or destroys a context: mailboxes with command, key object and context.
pub const CONTROL_COMMAND: u64 = 512;

/// Returns the size of a job in bytes: a block with session, IV and target, and a segment per further piece, rounded up
/// to whole blocks.
pub const fn job_descriptor_bytes(pieces: usize) -> u64 {
    let segments = SEND_BLOCK + pieces * DATA_SEGMENT;
    (segments.div_ceil(SEND_BLOCK) * SEND_BLOCK) as u64
}

const SEND_BLOCK: usize = 64;
const CONTROL_SEGMENT: usize = 16;
const ETHERNET_SEGMENT: usize = 16;
const DATA_SEGMENT: usize = 16;
