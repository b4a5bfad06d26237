//! What a stream counts, under Linux' names (`/proc/net/tls_stat`) where there are any.

use core::fmt;
use offload_base::counters::CounterSet;

offload_base::counters! {
    /// What one stream counts. A direction begins in software; each change of side is counted where it arrives, and
    /// the `Curr` values say where it is now: nowhere once it has ended, as with a socket that is gone.
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
        /// Transmit directions in software at present.
        pub curr_tx_sw: "TlsCurrTxSw",
        /// Receive directions in software at present.
        pub curr_rx_sw: "TlsCurrRxSw",
        /// Transmit directions on a device at present.
        pub curr_tx_device: "TlsCurrTxDevice",
        /// Receive directions on a device at present.
        pub curr_rx_device: "TlsCurrRxDevice",
        /// Times a transmit direction began in software or came back to it.
        pub tx_sw: "TlsTxSw",
        /// Times a receive direction began in software or came back to it.
        pub rx_sw: "TlsRxSw",
        /// Times a transmit direction went to a device.
        pub tx_device: "TlsTxDevice",
        /// Times a receive direction went to a device.
        pub rx_device: "TlsRxDevice",
        /// Times a device that had lost its place was told which record begins where.
        pub rx_device_resync: "TlsRxDeviceResync",
        /// Times a device announced a question about where records begin, and did not come back to it.
        pub rx_resync_given_up: "TlsRxResyncGivenUp",
        /// Records that did not verify.
        pub decrypt_error: "TlsDecryptError",
        /// Transmit keys changed.
        pub tx_rekey_ok: "TlsTxRekeyOk",
        /// Receive keys changed.
        pub rx_rekey_ok: "TlsRxRekeyOk",
        /// Transmit keys that should have changed and could not.
        pub tx_rekey_error: "TlsTxRekeyError",
        /// Receive keys that should have changed and could not.
        pub rx_rekey_error: "TlsRxRekeyError",
        /// KeyUpdates received.
        pub rx_rekey_received: "TlsRxRekeyReceived",
        /// Changed transmit keys that a device got. This, [`tx_rekey_sw`](Self::tx_rekey_sw) and
        /// [`tx_rekey_aborted`](Self::tx_rekey_aborted) make [`tx_rekey_ok`](Self::tx_rekey_ok), when the direction has
        /// ended.
        pub tx_rekey_device: "TlsTxRekeyDevice",
        /// Changed transmit keys that stayed in software: the direction was there, the device refused them or was
        /// reset, or they changed again first.
        pub tx_rekey_sw: "TlsTxRekeySw",
        /// Transmit directions that ended while a changed key waited for the device.
        pub tx_rekey_aborted: "TlsTxRekeyAborted",
        /// Changed receive keys that a device got. This, [`rx_rekey_sw`](Self::rx_rekey_sw) and
        /// [`rx_rekey_aborted`](Self::rx_rekey_aborted) make [`rx_rekey_ok`](Self::rx_rekey_ok), when the direction has
        /// ended.
        pub rx_rekey_device: "TlsRxRekeyDevice",
        /// Changed receive keys that stayed in software.
        pub rx_rekey_sw: "TlsRxRekeySw",
        /// Receive directions that ended while a changed key waited for the device.
        pub rx_rekey_aborted: "TlsRxRekeyAborted",
        /// Times a transmit direction left its device for it sent too much again.
        pub tx_policy_sw: "TlsTxPolicySw",
        /// Times it was given back, for that was over.
        pub tx_policy_device: "TlsTxPolicyDevice",
        /// Records sealed in software.
        pub tx_records_sw: "TlsTxRecordsSw",
        /// Records handed over for a device to seal.
        pub tx_records_device: "TlsTxRecordsDevice",
        /// Records no byte of which a device had decrypted.
        pub rx_records_sw: "TlsRxRecordsSw",
        /// Records partly decrypted by a device, and finished in software.
        pub rx_records_partial: "TlsRxRecordsPartial",
        /// Bytes of those that were left for software to decrypt. (It authenticates all of them.)
        pub rx_partial_sw_bytes: "TlsRxPartialSwBytes",
        /// Records wholly decrypted and verified by a device.
        pub rx_records_device: "TlsRxRecordsDevice",
        /// Bytes of records decrypted with a key that was no longer theirs, and restored.
        pub rx_restored_bytes: "TlsRxRestoredBytes",
        /// Offload requests a device or its absence turned down.
        pub offload_refused: "TlsOffloadRefused",
        /// Times a device was asked again for what it had refused for the time being.
        pub offload_retried: "TlsOffloadRetried",
        /// Directions that a device took after it had refused them for the time being.
        pub offload_later: "TlsOffloadLater",
        /// Device resets seen.
        pub device_resets: "TlsDeviceResets",
    }
}

/// Counters as `/proc/net/tls_stat` of Linux shows them: its seventeen lines, in its order and to the byte, then ours that
/// Linux has none of. `set` may hold many streams' counters.
///
/// Two of Linux' stay zero: `TlsDecryptRetry` and `TlsRxNoPadViolation` are of a bet on records without padding, which
/// nobody makes here.
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
    // As net/tls/tls_proc.c lists them.
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
    // Ours.
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

    /// The names that Linux documents (Documentation/networking/tls.rst, "Statistics"), spelt as there.
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
    fn nothing_that_is_counted_is_left_out() {
        let mut counted = 0;
        TlsCounters::default().visit(&mut |name, _| {
            counted += 1;
            assert_eq!(LINES.iter().filter(|line| **line == name).count(), 1, "{name}");
        });
        assert_eq!(LINES.len(), counted + 2, "and the two of Linux that nothing here can move");
    }
}
