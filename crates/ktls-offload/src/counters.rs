//! Stream counters, with the names of Linux (`/proc/net/tls_stat`) where Linux has them.

use core::fmt;
use offload_base::counters::CounterSet;

offload_base::counters! {
    /// Counters of one stream. A direction begins in software, and each move between software and device is counted at
    /// its destination. The `Curr` values tell where a direction is now; a direction that has ended is not counted
    /// there.
    ///
    /// ```
    /// use ktls_offload::TlsCounters;
    /// use offload_base::counters::CounterSet;
    ///
    /// let mut set = CounterSet::default();
    /// set.add(&TlsCounters { rx_records_partial: 2, ..TlsCounters::default() });
    /// assert_eq!(set.value("TlsRxRecordsPartial"), 2);
    /// ```
    pub struct TlsCounters {
        /// Transmit directions currently in software.
        pub curr_tx_sw: "TlsCurrTxSw",
        /// Receive directions currently in software.
        pub curr_rx_sw: "TlsCurrRxSw",
        /// Transmit directions currently on a device.
        pub curr_tx_device: "TlsCurrTxDevice",
        /// Receive directions currently on a device.
        pub curr_rx_device: "TlsCurrRxDevice",
        /// Times a transmit direction began in software or returned to software.
        pub tx_sw: "TlsTxSw",
        /// Times a receive direction began in software or returned to software.
        pub rx_sw: "TlsRxSw",
        /// Times a transmit direction moved to a device.
        pub tx_device: "TlsTxDevice",
        /// Times a receive direction moved to a device.
        pub rx_device: "TlsRxDevice",
        /// Record positions told to a device that had lost synchronization.
        pub rx_device_resync: "TlsRxDeviceResync",
        /// Resync requests that a device announced and then did not make.
        pub rx_resync_given_up: "TlsRxResyncGivenUp",
        /// Records that failed authentication.
        pub decrypt_error: "TlsDecryptError",
        /// Transmit key changes.
        pub tx_rekey_ok: "TlsTxRekeyOk",
        /// Receive key changes.
        pub rx_rekey_ok: "TlsRxRekeyOk",
        /// Failed transmit key changes.
        pub tx_rekey_error: "TlsTxRekeyError",
        /// Failed receive key changes.
        pub rx_rekey_error: "TlsRxRekeyError",
        /// KeyUpdates received.
        pub rx_rekey_received: "TlsRxRekeyReceived",
        /// Changed transmit keys that a device received. After the direction ends, the sum of this counter,
        /// [`tx_rekey_sw`](Self::tx_rekey_sw) and [`tx_rekey_aborted`](Self::tx_rekey_aborted) equals
        /// [`tx_rekey_ok`](Self::tx_rekey_ok).
        pub tx_rekey_device: "TlsTxRekeyDevice",
        /// Changed transmit keys that stayed in software: the direction was in software, the device refused the key or
        /// was reset, or the key changed again first.
        pub tx_rekey_sw: "TlsTxRekeySw",
        /// Transmit directions that ended while a changed key waited for the device.
        pub tx_rekey_aborted: "TlsTxRekeyAborted",
        /// Changed receive keys that a device received. After the direction ends, the sum of this counter,
        /// [`rx_rekey_sw`](Self::rx_rekey_sw) and [`rx_rekey_aborted`](Self::rx_rekey_aborted) equals
        /// [`rx_rekey_ok`](Self::rx_rekey_ok).
        pub rx_rekey_device: "TlsRxRekeyDevice",
        /// Changed receive keys that stayed in software.
        pub rx_rekey_sw: "TlsRxRekeySw",
        /// Receive directions that ended while a changed key waited for the device.
        pub rx_rekey_aborted: "TlsRxRekeyAborted",
        /// Times a transmit direction left its device because of too many retransmissions.
        pub tx_policy_sw: "TlsTxPolicySw",
        /// Times such a direction returned to its device after retransmissions had decreased.
        pub tx_policy_device: "TlsTxPolicyDevice",
        /// Records sealed in software.
        pub tx_records_sw: "TlsTxRecordsSw",
        /// Records queued for a device to seal.
        pub tx_records_device: "TlsTxRecordsDevice",
        /// Received records without any byte decrypted by a device.
        pub rx_records_sw: "TlsRxRecordsSw",
        /// Received records partly decrypted by a device and completed in software.
        pub rx_records_partial: "TlsRxRecordsPartial",
        /// Bytes of partly decrypted records that software decrypted. (Software authenticates all their bytes.)
        pub rx_partial_sw_bytes: "TlsRxPartialSwBytes",
        /// Received records wholly decrypted and verified by a device.
        pub rx_records_device: "TlsRxRecordsDevice",
        /// Bytes that a device decrypted with an outdated key and that software re-encrypted.
        pub rx_restored_bytes: "TlsRxRestoredBytes",
        /// Offload requests refused by a device or for lack of one.
        pub offload_refused: "TlsOffloadRefused",
        /// Repeated requests to a device after a temporary refusal.
        pub offload_retried: "TlsOffloadRetried",
        /// Directions that a device accepted after a temporary refusal.
        pub offload_later: "TlsOffloadLater",
        /// Device resets observed.
        pub device_resets: "TlsDeviceResets",
    }
}

/// Formats counters like `/proc/net/tls_stat` of Linux: its seventeen lines in its order, byte for byte, then the
/// counters that Linux lacks. `set` may sum many streams.
///
/// Two counters of Linux stay zero: `TlsDecryptRetry` and `TlsRxNoPadViolation` belong to its optimistic decryption of
/// unpadded records, which this crate does not do.
///
/// ```
/// use ktls_offload::{TlsCounters, tls_stat};
/// use offload_base::counters::CounterSet;
///
/// let mut set = CounterSet::default();
/// set.add(&TlsCounters { tx_device: 1, ..TlsCounters::default() });
/// set.add(&TlsCounters { tx_device: 2, ..TlsCounters::default() });
/// let text = tls_stat(&set).to_string();
/// assert_eq!(text.lines().nth(6), Some("TlsTxDevice                     \t3"));
/// ```
pub fn tls_stat(set: &CounterSet) -> impl fmt::Display + '_ {
    set.proc_net(LINES)
}

const LINES: &[&str] = &[
    // The order of net/tls/tls_proc.c.
    "TlsCurrTxSw",
    "TlsCurrRxSw",
    "TlsCurrTxDevice",
    "TlsCurrRxDevice",
    "TlsTxSw",
    "TlsRxSw",
    "TlsTxDevice",
    "TlsRxDevice",
    "TlsDecryptError",
    "TlsRxDeviceResync",
    "TlsDecryptRetry",
    "TlsRxNoPadViolation",
    "TlsRxRekeyOk",
    "TlsRxRekeyError",
    "TlsTxRekeyOk",
    "TlsTxRekeyError",
    "TlsRxRekeyReceived",
    // Counters that Linux lacks.
    "TlsRxResyncGivenUp",
    "TlsTxRekeyDevice",
    "TlsTxRekeySw",
    "TlsTxRekeyAborted",
    "TlsRxRekeyDevice",
    "TlsRxRekeySw",
    "TlsRxRekeyAborted",
    "TlsTxPolicySw",
    "TlsTxPolicyDevice",
    "TlsTxRecordsSw",
    "TlsTxRecordsDevice",
    "TlsRxRecordsSw",
    "TlsRxRecordsPartial",
    "TlsRxPartialSwBytes",
    "TlsRxRecordsDevice",
    "TlsRxRestoredBytes",
    "TlsOffloadRefused",
    "TlsOffloadRetried",
    "TlsOffloadLater",
    "TlsDeviceResets",
];

#[cfg(test)]
mod tests {
    use super::*;
    use offload_base::counters::Counters;

    /// Compares with the names that Linux documents (Documentation/networking/tls.rst, "Statistics").
    #[test]
    fn the_text_is_that_of_linux_with_ours_behind() {
        let mut set = CounterSet::default();
        set.add(&TlsCounters { curr_tx_sw: 1, rx_rekey_received: 12_345_678_901, ..TlsCounters::default() });
        let text = tls_stat(&set).to_string();
        assert!(text.starts_with("TlsCurrTxSw                     \t1\nTlsCurrRxSw                     \t0\n"));
        assert_eq!(text.lines().nth(16), Some("TlsRxRekeyReceived              \t12345678901"));
        assert_eq!(text.lines().count(), LINES.len());
    }

    #[test]
    fn statistics_include_every_counter() {
        let mut counted = 0;
        TlsCounters::default().visit(&mut |name, _| {
            counted += 1;
            assert_eq!(LINES.iter().filter(|line| **line == name).count(), 1, "{name}");
        });
        assert_eq!(LINES.len(), counted + 2, "and the two of Linux that nothing here can move");
    }
}
