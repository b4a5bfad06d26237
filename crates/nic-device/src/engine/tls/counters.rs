//! Counters of the TLS engine, under the names of the mlx5 driver and of Linux where those exist.

offload_base::counters! {
    /// Counters of the TLS engine.
    ///
    /// ```
    /// use nic_sim::stats::TlsCounters;
    /// use nic_sim::{NicConfig, nic};
    ///
    /// let (device, _driver) = nic(NicConfig::default());
    /// assert_eq!(device.engine_counters::<TlsCounters>().tx_tls_encrypted_packets, 0);
    /// ```
    pub struct TlsCounters {
        /// Frames with payload the device encrypted.
        pub tx_tls_encrypted_packets: "tx_tls_encrypted_packets",
        /// Record bytes it encrypted and sent.
        pub tx_tls_encrypted_bytes: "tx_tls_encrypted_bytes",
        /// Frames whose record bytes the device decrypted.
        pub rx_tls_decrypted_packets: "rx_tls_decrypted_packets",
        /// Record bytes decrypted.
        pub rx_tls_decrypted_bytes: "rx_tls_decrypted_bytes",
        /// Frames with a wrong tag or without the record that should be there.
        pub rx_tls_err: "rx_tls_err",
        /// Times a receive context lost its place in the stream.
        pub rx_tls_lost: "rx_tls_lost",
        /// Times one took up its work again after a gap.
        pub rx_tls_found: "rx_tls_found",
        /// Frames with which a context asked for help.
        pub rx_tls_resync_req_pkt: "rx_tls_resync_req_pkt",
        /// Answers of a record number that were of use.
        pub rx_tls_resync_res_ok: "rx_tls_resync_res_ok",
        /// Answers that said no, or came too late.
        pub rx_tls_resync_res_skip: "rx_tls_resync_res_skip",
    }
}
