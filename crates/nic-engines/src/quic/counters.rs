//! Counters of the QUIC engine. Names follow the mlx5 driver and Linux where possible.

offload_base::counters! {
    /// Counters of the QUIC engine.
    ///
    /// ```
    /// use nic_sim::stats::QuicCounters;
    /// use nic_sim::{NicConfig, nic};
    ///
    /// let (device, _driver) = nic(NicConfig::default());
    /// assert_eq!(device.engine_counters::<QuicCounters>().quic_tx_pkts, 0);
    /// ```
    pub struct QuicCounters {
        /// Packets sealed.
        pub quic_tx_pkts: "quic_tx_pkts",
        /// Bytes of sealed packets, with headers and tags.
        pub quic_tx_bytes: "quic_tx_bytes",
        /// Packets dropped because they could not be sealed.
        pub quic_tx_drop_pkts: "quic_tx_drop_pkts",
        /// Drops because the number was used before on its path.
        pub quic_tx_drop_number: "quic_tx_drop_number",
        /// Drops because the key of the generation was missing.
        pub quic_tx_drop_key: "quic_tx_drop_key",
        /// Packets opened.
        pub quic_rx_pkts: "quic_rx_pkts",
        /// Bytes of opened packets, with headers and tags.
        pub quic_rx_bytes: "quic_rx_bytes",
        /// Packets of a known connection that no present key opens, passed to the host unchanged.
        pub quic_rx_auth_fail: "quic_rx_auth_fail",
        /// Packets of a key phase without a key, passed to the host unchanged.
        pub quic_rx_no_key: "quic_rx_no_key",
    }
}
