//! What the device counts, but for its engines, under the names of the mlx5 driver and of Linux where those exist.

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
        /// Bytes of frames sent.
        pub tx_bytes: "tx_bytes",
        /// Packets that were cut into segments.
        pub tx_tso_packets: "tx_tso_packets",
        /// Payload bytes of such packets.
        pub tx_tso_bytes: "tx_tso_bytes",
        /// Frames that were held back to the rate their packet asked for.
        pub tx_paced_packets: "tx_paced_packets",
        /// Frames whose checksums the device filled in.
        pub tx_csum_partial: "tx_csum_partial",
        /// Packets dropped: they name a context that the device does not have.
        pub tx_drop_unknown_context: "tx_drop_unknown_context",
        /// Packets dropped: their bytes were not the next of their context, or not framed as records.
        pub tx_drop_out_of_sync: "tx_drop_out_of_sync",
        /// Packets dropped: the key that their context needs is not there, or another's. The context is given up.
        pub tx_drop_no_key: "tx_drop_no_key",
        /// Parameters and DUMPs that came to nothing: their context is gone, or out of step.
        pub tx_stale_parameters: "tx_stale_parameters",
        /// Frames received.
        pub rx_packets: "rx_packets",
        /// Bytes of frames received.
        pub rx_bytes: "rx_bytes",
        /// Packets handed up that were joined of several frames.
        pub rx_lro_packets: "rx_lro_packets",
        /// Bytes of such packets, headers once.
        pub rx_lro_bytes: "rx_lro_bytes",
        /// Frames dropped: not for this address.
        pub rx_drop_address: "rx_drop_address",
        /// Frames dropped: no receive buffer was posted, or the host has too many packets to look at.
        pub rx_out_of_buffer: "rx_out_of_buffer",
        /// Frames dropped: longer than a receive buffer.
        pub rx_oversize_pkts_phy: "rx_oversize_pkts_phy",
        /// Frames whose checksums were checked and right.
        pub rx_csum_unnecessary: "rx_csum_unnecessary",
        /// Frames whose checksums were not checked.
        pub rx_csum_none: "rx_csum_none",
        /// Frames with a wrong checksum, handed up so marked.
        pub rx_csum_bad: "rx_csum_bad",
        /// Contexts fetched from host memory.
        pub ctx_fetched: "ctx_fetched",
        /// Contexts written to host memory to make room for others.
        pub ctx_evicted: "ctx_evicted",
        /// Interrupts raised.
        pub interrupts: "ch_events",
        /// Times the device was reset.
        pub resets: "resets",
    }
}
