//! Loopback demos of nic-offload, one file each.
