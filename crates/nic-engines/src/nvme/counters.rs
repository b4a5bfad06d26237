//! Counters of the NVMe/TCP engine. Names follow the mlx5 driver and Linux where possible.

use nic_engine::ContextCounters;

offload_base::counters! {
    /// Counters of the NVMe/TCP engine.
    ///
    /// ```
    /// use nic_sim::stats::NvmeTcpCounters;
    /// use nic_sim::{NicConfig, nic};
    ///
    /// let (device, _driver) = nic(NicConfig::default());
    /// assert_eq!(device.engine_counters::<NvmeTcpCounters>().rx_nvmeotcp_packets, 0);
    /// ```
    pub struct NvmeTcpCounters {
        /// Frames with placed data.
        pub rx_nvmeotcp_packets: "rx_nvmeotcp_packets",
        /// Bytes placed.
        pub rx_nvmeotcp_bytes: "rx_nvmeotcp_bytes",
        /// Bytes placed that passed stages.
        pub rx_nvmeotcp_opened_bytes: "rx_nvmeotcp_opened_bytes",
        /// Frames with digests verified by the device.
        pub rx_nvmeotcp_checked: "rx_nvmeotcp_checked",
        /// Times that a receive context lost its position in the stream.
        pub rx_nvmeotcp_drop: "rx_nvmeotcp_drop",
        /// Times that a receive context found its position with the help of software.
        pub rx_nvmeotcp_resync: "rx_nvmeotcp_resync",
        /// Data digests computed and sent.
        pub tx_nvmeotcp_digests: "tx_nvmeotcp_digests",
        /// Bytes of data that passed stages on transmit, retransmissions included.
        pub tx_nvmeotcp_sealed_bytes: "tx_nvmeotcp_sealed_bytes",
    }
}

/// Reports a driver's counters of NVMe/TCP contexts under their names.
pub(super) fn publish(of: &ContextCounters, visit: &mut dyn FnMut(&'static str, u64)) {
    visit("rx_nvmeotcp_sk_add", of.receive.created);
    visit("rx_nvmeotcp_sk_add_fail", of.receive.refused);
    visit("rx_nvmeotcp_sk_del", of.receive.removed);
    visit("rx_nvmeotcp_ddp_setup", of.placed);
    visit("rx_nvmeotcp_ddp_setup_fail", of.not_placed);
    visit("rx_nvmeotcp_ddp_teardown", of.released);
    visit("tx_nvmeotcp_sk_add", of.transmit.created);
    visit("tx_nvmeotcp_sk_add_fail", of.transmit.refused);
    visit("tx_nvmeotcp_sk_del", of.transmit.removed);
    visit("tx_nvmeotcp_ooo", of.ooo);
    visit("tx_nvmeotcp_bypass", of.bypass);
    visit("tx_nvmeotcp_dump_packets", of.dump_packets);
    visit("tx_nvmeotcp_dump_bytes", of.dump_bytes);
    visit("tx_nvmeotcp_needs_software", of.needs_software);
    visit("tx_nvmeotcp_drop_no_sync_data", of.no_sync_data + of.no_unit);
}
