//! IPsec (RFC 4301) between a host's stack and its network device: security associations (SAs), policies and ESP, in
//! software or on an offload NIC.
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
//! - [`SecureDevice`]: a [`NetDevice`](offload_api::NetDevice) around another one. [`SecureDevice::for_queues`] puts one
//!   layer around all queues of a multi-queue device.
//! - [`Spd`]: the policies. [`Sad`]: the SAs and their indices.
//! - [`KeyMemory`]: the used keys of this process and, with a [`NumberFile`], of earlier processes.
//! - [`Keying`]: the trait by which a keying daemon adds SAs and policies.
//! - [`KeyFile`]: SAs and policies in the syntax of `ip xfrm`.
//! - [`IpsecCounters`]: counters, under Linux's names where Linux has one.
//!
//! The packet formats, replay windows and lifetimes are in the crate [`offload_esp`], which the device's engine uses
//! too.
//!
//! Invariant: a packet that a policy protects leaves protected or not at all. The layer drops and counts the packet if
//! no SA exists, if the SA is used up, or if the device refuses the packet.
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
pub use memory::{KeyMemory, NumberFile, NumberFileError, NumberMark, NumberStore, SPENT, UsedKeys};
pub use sad::Sad;
pub use spd::Spd;

/// The crates that appear in this crate's API, so that a program needs no further line in its Cargo.toml.
pub use {offload_api as api, offload_base as base};

/// Compiles the README's example as a doc test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
