//! Counters of the TLS engine. Names follow the mlx5 driver and Linux where possible.

use nic_engine::ContextCounters;

offload_base::counters! {
    /// Counters of the TLS engine.
    ///
    /// ```
    /// use nic_sim::stats::TlsEngineCounters;
    /// use nic_sim::{NicConfig, nic};
    ///
    /// let (device, _driver) = nic(NicConfig::default());
    /// assert_eq!(device.engine_counters::<TlsEngineCounters>().tx_tls_encrypted_packets, 0);
    /// ```
    pub struct TlsEngineCounters {
        /// Frames with encrypted payload.
        pub tx_tls_encrypted_packets: "tx_tls_encrypted_packets",
        /// Record bytes encrypted and sent.
        pub tx_tls_encrypted_bytes: "tx_tls_encrypted_bytes",
        /// Frames with decrypted record bytes.
        pub rx_tls_decrypted_packets: "rx_tls_decrypted_packets",
        /// Record bytes decrypted.
        pub rx_tls_decrypted_bytes: "rx_tls_decrypted_bytes",
        /// Frames with a wrong tag or an unexpected record header.
        pub rx_tls_err: "rx_tls_err",
        /// Times that a receive context lost its position in the stream.
        pub rx_tls_lost: "rx_tls_lost",
        /// Times that a receive context resumed after a gap.
        pub rx_tls_found: "rx_tls_found",
        /// Frames with a resync request.
        pub rx_tls_resync_req_pkt: "rx_tls_resync_req_pkt",
        /// Answers with a record number that were still useful.
        pub rx_tls_resync_res_ok: "rx_tls_resync_res_ok",
        /// Answers that were negative or too late.
        pub rx_tls_resync_res_skip: "rx_tls_resync_res_skip",
    }
}

/// Reports a driver's counters of TLS contexts under their names.
pub(super) fn publish(of: &ContextCounters, visit: &mut dyn FnMut(&'static str, u64)) {
    visit("tx_tls_ctx", of.transmit.created);
    visit("tx_tls_del", of.transmit.removed);
    visit("tx_tls_pool_alloc", of.pool_alloc);
    visit("tx_tls_pool_free", of.pool_free);
    visit("tx_tls_ooo", of.ooo);
    visit("tx_tls_next_record", of.next_record);
    visit("tx_tls_dump_packets", of.dump_packets);
    visit("tx_tls_dump_bytes", of.dump_bytes);
    visit("tx_tls_resync_bytes", of.resync_bytes);
    visit("tx_tls_drop_no_sync_data", of.no_sync_data);
    visit("tx_tls_drop_bypass_req", of.no_unit);
    visit("tx_tls_needs_software", of.needs_software);
    visit("rx_tls_ctx", of.receive.created);
    visit("rx_tls_del", of.receive.removed);
    visit("rx_tls_resync_req_start", of.asked);
    visit("rx_tls_resync_req_end", of.told);
    visit("rx_tls_resync_req_skip", of.skipped);
    visit("rx_tls_resync_res_retry", of.retried);
}
