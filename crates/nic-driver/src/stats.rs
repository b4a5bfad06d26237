//! Counters of the driver, under the names of the mlx5 driver and of Linux where such names exist.

offload_base::counters! {
    /// Counters of the driver, without its contexts.
    ///
    /// ```
    /// use nic_sim::{NicConfig, nic};
    ///
    /// let (_device, driver) = nic(NicConfig::default());
    /// assert_eq!(driver.counters().doorbells, 0);
    /// ```
    pub struct DriverCounters {
        /// Doorbells rung.
        pub doorbells: "tx_doorbells",
        /// Packets refused because of their size, their number of fragments, or an unsupported offload.
        pub tx_drop_unsupported: "tx_drop_unsupported",
        /// Packets dropped because the ring was full, and the caller had not asked for room.
        pub tx_queue_dropped: "tx_queue_dropped",
    }
}
