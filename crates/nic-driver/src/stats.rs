//! What the driver counts, under the names of the mlx5 driver and of Linux where those exist.

offload_base::counters! {
    /// What the driver counts, but of contexts.
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
        /// Packets refused: too large, too many fragments, or an offload the device lacks.
        pub tx_drop_unsupported: "tx_drop_unsupported",
        /// Packets dropped: the ring was full, and nobody had asked for room.
        pub tx_queue_dropped: "tx_queue_dropped",
    }
}
