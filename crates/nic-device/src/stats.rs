//! Counters of the device without its engines. Names follow the mlx5 driver and Linux where possible.

offload_base::counters! {
    /// Counters of the device.
    ///
    /// ```
    /// use nic_sim::{NicConfig, nic};
    ///
    /// let (device, driver) = nic(NicConfig::default());
    /// assert_eq!(device.counters().rx_packets, 0);
    /// assert_eq!(driver.counters().doorbells, 0);
    /// ```
    pub struct DeviceCounters {
        /// Frames sent.
        pub tx_packets: "tx_packets",
        /// Bytes of sent frames.
        pub tx_bytes: "tx_bytes",
        /// Packets cut into segments.
        pub tx_tso_packets: "tx_tso_packets",
        /// Payload bytes of packets cut into segments.
        pub tx_tso_bytes: "tx_tso_bytes",
        /// Frames delayed to the rate that their packet requested.
        pub tx_paced_packets: "tx_paced_packets",
        /// Frames with checksums filled in by the device.
        pub tx_csum_partial: "tx_csum_partial",
        /// Packets dropped because the device does not have their context.
        pub tx_drop_unknown_context: "tx_drop_unknown_context",
        /// Packets dropped because their bytes did not continue the context's stream, or were not framed as records.
        pub tx_drop_out_of_sync: "tx_drop_out_of_sync",
        /// Packets dropped because the key of their context was missing or belonged to another owner. The context is
        /// removed.
        pub tx_drop_no_key: "tx_drop_no_key",
        /// Parameters and DUMPs without effect, because their context is gone or out of sync.
        pub tx_stale_parameters: "tx_stale_parameters",
        /// Frames received.
        pub rx_packets: "rx_packets",
        /// Bytes of received frames.
        pub rx_bytes: "rx_bytes",
        /// Packets joined of several frames.
        pub rx_lro_packets: "rx_lro_packets",
        /// Bytes of joined packets, with headers counted once.
        pub rx_lro_bytes: "rx_lro_bytes",
        /// Frames dropped because of another destination address.
        pub rx_drop_address: "rx_drop_address",
        /// Frames dropped for lack of receive buffers, or because the host had too many packets pending.
        pub rx_out_of_buffer: "rx_out_of_buffer",
        /// Frames dropped because of a length above a receive buffer's.
        pub rx_oversize_pkts_phy: "rx_oversize_pkts_phy",
        /// Frames with correct checksums.
        pub rx_csum_unnecessary: "rx_csum_unnecessary",
        /// Frames with unchecked checksums.
        pub rx_csum_none: "rx_csum_none",
        /// Frames with a wrong checksum, passed to the host with this mark.
        pub rx_csum_bad: "rx_csum_bad",
        /// Contexts fetched from host memory.
        pub ctx_fetched: "ctx_fetched",
        /// Contexts written to host memory to make room for others.
        pub ctx_evicted: "ctx_evicted",
        /// Interrupts raised.
        pub interrupts: "ch_events",
        /// Device resets.
        pub resets: "resets",
    }
}
