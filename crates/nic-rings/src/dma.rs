//! What crosses PCIe, by purpose, in bytes as hardware moves them.
//!
//! Ring entries here are typed values; what they would weigh as descriptors is stated below and counted when
//! the device fetches or writes them. Sizes are those of the ConnectX family: 64-byte send queue blocks,
//! 16-byte segments within them, 64-byte completions, 16-byte receive descriptors.

offload_base::counters! {
    /// Bytes the device moved over PCIe, by purpose.
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
        /// Send descriptors of packets, headers inlined in them included.
        pub tx_descriptors: "tx_descriptors",
        /// Payload read to be sent.
        pub tx_payload: "tx_payload",
        /// Descriptors of context parameters and fences on send rings.
        pub tx_parameters: "tx_parameters",
        /// Descriptors of DUMPs, and the payload they read again to rebuild a context.
        pub tx_resync: "tx_resync",
        /// Receive descriptors.
        pub rx_descriptors: "rx_descriptors",
        /// Received packets written to host memory.
        pub rx_payload: "rx_payload",
        /// Completions, of every ring.
        pub completions: "completions",
        /// Control commands, keys included.
        pub control: "control",
        /// Contexts fetched from host memory and written back there.
        pub context: "context",
        /// Descriptors of jobs and of commands between them.
        pub job_descriptors: "job_descriptors",
        /// Sources of jobs, read, additional data included.
        pub job_source: "job_source",
        /// Results of jobs, written.
        pub job_target: "job_target",
    }
}

/// A send descriptor: control and Ethernet segments with the headers inline, then one segment a fragment,
/// rounded up to whole blocks.
pub const fn packet_descriptor_bytes(header_bytes: usize, fragments: usize) -> u64 {
    let segments = CONTROL_SEGMENT + ETHERNET_SEGMENT + header_bytes + fragments * DATA_SEGMENT;
    (segments.div_ceil(SEND_BLOCK) * SEND_BLOCK) as u64
}

/// A DUMP descriptor: one block.
pub const DUMP_DESCRIPTOR: u64 = SEND_BLOCK as u64;
/// A fence: a block that does nothing but wait.
pub const FENCE_DESCRIPTOR: u64 = SEND_BLOCK as u64;
/// What follows a packet, in the descriptor itself.
pub const AHEAD_DESCRIPTOR: u64 = SEND_BLOCK as u64;
/// Static TLS parameters: version, record number, IV, key index, with the update's own header.
pub const STATIC_PARAMETERS_DESCRIPTOR: u64 = 3 * SEND_BLOCK as u64;
/// TLS progress parameters.
pub const PROGRESS_PARAMETERS_DESCRIPTOR: u64 = SEND_BLOCK as u64;
/// A receive descriptor: address, length, key.
pub const RECEIVE_DESCRIPTOR: u64 = 16;
/// A completion.
pub const COMPLETION: u64 = 64;
/// A question about a context, or an answer to one: a block, as on a send queue.
pub const CONTROL_QUERY: u64 = SEND_BLOCK as u64;
/// Giving a context from the driver's pool another key: the key, and static parameters.
pub const CONTROL_REUSE: u64 = 3 * SEND_BLOCK as u64;
/// Taking its key from a context that goes to the driver's pool: a block.
pub const CONTROL_PARK: u64 = SEND_BLOCK as u64;
/// A command on a send ring: one block, and a context's key and state with it.
pub const COMMAND_DESCRIPTOR: u64 = 3 * SEND_BLOCK as u64;
/// A control command that creates or destroys a context: command, key object and context, as mailboxes.
pub const CONTROL_COMMAND: u64 = 512;

/// A job: a block with session, IV and target, and a segment for each further piece, rounded up to whole blocks.
pub const fn job_descriptor_bytes(pieces: usize) -> u64 {
    let segments = SEND_BLOCK + pieces * DATA_SEGMENT;
    (segments.div_ceil(SEND_BLOCK) * SEND_BLOCK) as u64
}

const SEND_BLOCK: usize = 64;
const CONTROL_SEGMENT: usize = 16;
const ETHERNET_SEGMENT: usize = 16;
const DATA_SEGMENT: usize = 16;
