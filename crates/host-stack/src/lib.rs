//! A sans-IO TCP/IP stack whose segments keep what the device said about them.
