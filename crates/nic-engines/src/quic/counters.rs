//! Counters of the QUIC engine, under the names of the mlx5 driver and of Linux where those exist.

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
        /// QUIC packets that the device sealed.
        pub quic_tx_pkts: "quic_tx_pkts",
        /// Bytes of those packets, headers and tags included.
        pub quic_tx_bytes: "quic_tx_bytes",
        /// Packets dropped: they were to be sealed, and could not be.
        pub quic_tx_drop_pkts: "quic_tx_drop_pkts",
        /// Of those dropped, the number was used before on its path.
        pub quic_tx_drop_number: "quic_tx_drop_number",
        /// Of those dropped, the key of their generation is not there.
        pub quic_tx_drop_key: "quic_tx_drop_key",
        /// QUIC packets that the device opened.
        pub quic_rx_pkts: "quic_rx_pkts",
        /// Bytes of those packets, headers and tags included.
        pub quic_rx_bytes: "quic_rx_bytes",
        /// Packets of a known connection that no key in place opens, handed up as they are.
        pub quic_rx_auth_fail: "quic_rx_auth_fail",
        /// Packets of a key phase whose key is not there, handed up as they are.
        pub quic_rx_no_key: "quic_rx_no_key",
    }
}
