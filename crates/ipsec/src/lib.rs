//! IPsec (RFC 4301) below a host's stack: security associations, policies and ESP, in software or by an offload NIC.
//!
//! ```text
//!   stack
//!     | NetDevice       plain packets
//!   SecureDevice        Spd: bypass, discard or protect; Sad: by which SA
//!     |                 keys: Keying, or a KeyFile
//!     | NetDevice       ESP packets, or plain ones for the device to finish
//!   driver
//! ```
//!
//! - [`SecureDevice`]: a [`NetDevice`](offload_api::NetDevice) around another one; or around each
//!   queue of one that has several ([`SecureDevice::of_queues`]);
//! - [`Spd`]: policies; [`Sad`]: security associations and what finds them;
//! - [`KeyMemory`]: which keys were used, in this process and, with a [`NumberFile`], in those before;
//! - [`Keying`]: the trait by which a keying daemon adds SAs and policies;
//! - [`KeyFile`]: both as text that reads like `ip xfrm` lines;
//! - [`IpsecCounters`]: what is counted, under Linux's names.
//!
//! The packet formats, windows and lifetimes are in the crate [`offload_esp`], which a device's engine uses as well.
//!
//! Invariant: a packet that a policy wants protected never leaves in any other way: it is dropped, and counted, when
//! there is no security association for it, or it is used up, or the device refuses.
//!
//! ```
//! use ipsec::{KeyFile, KeyedDevice, SecureDevice};
//! use nic_sim::{NicConfig, nic};
//! use offload_api::{FlowKey, NetDevice};
//! use offload_base::Instant;
//!
//! let file: KeyFile = "
//!     state add src 10.0.0.1 dst 10.0.0.2 proto esp spi 0x1001
//!         reqid 1 mode transport
//!         aead rfc4106(gcm(aes)) 0x000102030405060708090a0b0c0d0e0faabbccdd 128
//!     policy add src 10.0.0.1 dst 10.0.0.2 dir out
//!         tmpl proto esp reqid 1 mode transport
//! ".parse()?;
//! let (_device, driver) = nic(NicConfig::default());
//! let mut secure = SecureDevice::new(Box::new(driver));
//! file.apply(Instant::ZERO, secure.keying().unwrap(), &["10.0.0.1".parse()?])?;
//!
//! let flow = FlowKey::tcp("10.0.0.1:5000".parse()?, "10.0.0.2:80".parse()?);
//! assert_eq!(secure.path(&flow).mtu, 1466, "ESP takes its share");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![forbid(unsafe_code)]

mod counters;
mod device;
pub mod keyfile;
mod keying;
mod memory;
pub mod sad;
pub mod spd;

pub use counters::IpsecCounters;
pub use device::SecureDevice;
pub use keyfile::KeyFile;
pub use keying::{KeyedDevice, Keying, KeyingError, SaAdded, SaEvent, SaId, SaUse};
pub use memory::{KeyMemory, Mark, NumberFile, NumberFileError, NumberStore, SPENT, UsedKeys};
pub use sad::Sad;
pub use spd::Spd;

/// The crates whose types appear here, so that a program needs no other in its Cargo.toml.
pub use {offload_api as api, offload_base as base};

/// The README's example runs with the others.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
