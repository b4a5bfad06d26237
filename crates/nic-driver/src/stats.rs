//! What the driver counts, under the names of the mlx5 driver and of Linux where those exist.

offload_base::counters! {
    /// What the driver counts.
    ///
    /// ```
    /// use nic_sim::{NicConfig, nic};
    ///
    /// let (_device, driver) = nic(NicConfig::default());
    /// assert_eq!(driver.counters().tx_tls_ooo, 0);
    /// ```
    pub struct DriverCounters {
        /// Doorbells rung.
        pub doorbells: "tx_doorbells",
        /// Transmit contexts created.
        pub tx_tls_ctx: "tx_tls_ctx",
        /// Transmit contexts given up.
        pub tx_tls_del: "tx_tls_del",
        /// Transmit contexts created in the device; the others came from the driver's pool.
        pub tx_tls_pool_alloc: "tx_tls_pool_alloc",
        /// Transmit contexts destroyed in the device; the others went to the driver's pool.
        pub tx_tls_pool_free: "tx_tls_pool_free",
        /// Packets that were not the next of their context, so that it had to be rebuilt, or they to be sealed in software.
        pub tx_tls_ooo: "tx_tls_ooo",
        /// Times a context began afresh at a record, what was before it sealed in software.
        pub tx_tls_next_record: "tx_tls_next_record",
        /// DUMPs posted.
        pub tx_tls_dump_packets: "tx_tls_dump_packets",
        /// Bytes in DUMPs.
        pub tx_tls_dump_bytes: "tx_tls_dump_bytes",
        /// Payload bytes of packets that needed a resync.
        pub tx_tls_resync_bytes: "tx_tls_resync_bytes",
        /// Packets dropped: their record is no longer in the send queue, so neither device nor software can encrypt them.
        pub tx_tls_drop_no_sync_data: "tx_tls_drop_no_sync_data",
        /// Packets dropped: they ask to be encrypted, and the transport says that they are of no record.
        pub tx_tls_drop_bypass_req: "tx_tls_drop_bypass_req",
        /// Packets sent back to be sealed in software.
        pub tx_tls_needs_software: "tx_tls_needs_software",
        /// Packets refused: too large, too many fragments, or an offload the device lacks.
        pub tx_drop_unsupported: "tx_drop_unsupported",
        /// Packets dropped: the ring was full, and nobody had asked for room.
        pub tx_queue_dropped: "tx_queue_dropped",
        /// Packets refused: the device has not the SA that they are to be protected by.
        pub tx_ipsec_refused: "tx_ipsec_refused",
        /// Receive contexts created.
        pub rx_tls_ctx: "rx_tls_ctx",
        /// Receive contexts given up.
        pub rx_tls_del: "rx_tls_del",
        /// Times the device was queried where it thinks a record starts.
        pub rx_tls_resync_req_start: "rx_tls_resync_req_start",
        /// Times it told, and the protocol was asked.
        pub rx_tls_resync_req_end: "rx_tls_resync_req_end",
        /// NVMe/TCP contexts created.
        pub rx_nvmeotcp_sk_add: "rx_nvmeotcp_sk_add",
        /// NVMe/TCP contexts refused.
        pub rx_nvmeotcp_sk_add_fail: "rx_nvmeotcp_sk_add_fail",
        /// NVMe/TCP contexts given up.
        pub rx_nvmeotcp_sk_del: "rx_nvmeotcp_sk_del",
        /// Buffers of commands given to the device.
        pub rx_nvmeotcp_ddp_setup: "rx_nvmeotcp_ddp_setup",
        /// Buffers it did not take.
        pub rx_nvmeotcp_ddp_setup_fail: "rx_nvmeotcp_ddp_setup_fail",
        /// Buffers asked back before they were full.
        pub rx_nvmeotcp_ddp_teardown: "rx_nvmeotcp_ddp_teardown",
        /// NVMe/TCP transmit contexts created.
        pub tx_nvmeotcp_sk_add: "tx_nvmeotcp_sk_add",
        /// NVMe/TCP transmit contexts refused.
        pub tx_nvmeotcp_sk_add_fail: "tx_nvmeotcp_sk_add_fail",
        /// NVMe/TCP transmit contexts given up.
        pub tx_nvmeotcp_sk_del: "tx_nvmeotcp_sk_del",
        /// Packets that were not the next of their NVMe/TCP context, and hold a digest or what has not been sent before: the
        /// context had to be rebuilt, or the digest to be made by software.
        pub tx_nvmeotcp_ooo: "tx_nvmeotcp_ooo",
        /// Packets that were not the next, hold no digest, and left as they are.
        pub tx_nvmeotcp_bypass: "tx_nvmeotcp_bypass",
        /// DUMPs posted for NVMe/TCP contexts.
        pub tx_nvmeotcp_dump_packets: "tx_nvmeotcp_dump_packets",
        /// Bytes in them.
        pub tx_nvmeotcp_dump_bytes: "tx_nvmeotcp_dump_bytes",
        /// Packets sent back for software to make their digest.
        pub tx_nvmeotcp_needs_software: "tx_nvmeotcp_needs_software",
        /// Packets dropped: their PDU is no longer in the send queue.
        pub tx_nvmeotcp_drop_no_sync_data: "tx_nvmeotcp_drop_no_sync_data",
        /// Requests passed over, for there was no place on the control ring or the device no longer waited; and answers, for
        /// there was no place or the context is gone.
        pub rx_tls_resync_req_skip: "rx_tls_resync_req_skip",
        /// Answers that waited for a place on the control ring.
        pub rx_tls_resync_res_retry: "rx_tls_resync_res_retry",
    }
}
