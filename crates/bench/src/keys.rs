//! IPsec for emulated hosts, with SAs and policies from a file.
//!
//! ```
//! use ipsec::{KeyFile, KeyMemory, KeyedDevice};
//! use nic_sim::{NicConfig, nic};
//! use offload_bench::keys;
//!
//! let (_device, driver) = nic(NicConfig::default());
//! let keys: KeyFile = "policy setdefault in accept out accept".parse()?;
//! let mut queues = keys::tried(&keys, vec![Box::new(driver)], &["10.0.0.1".parse()?], KeyMemory::new());
//! assert!(queues[0].keying().is_some());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use core::fmt;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use ipsec::{KeyFile, KeyMemory, KeyedDevice, Keying, NumberFile, SaAdded, SecureDevice};
use nic_sim::{NicConfig, nic};
use offload_api::ipsec::Packet;
use offload_api::{Action, Direction, NetDevice, Policy, Prefix, SaParams, SaRefusal, Selector};
use offload_base::Instant;
use offload_esp::selectors::rank;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// Reads a file of SAs and policies, and checks that a host with these addresses can use the file.
///
/// # Errors Text with the name of the file.
pub fn read(path: &Path, addresses: &[IpAddr]) -> Result<KeyFile, String> {
    read_with(path, |keys| refused(keys, addresses).map(drop))
}

/// Reads a file for the first of two hosts; the second uses the mirrored keys. The hosts will use TCP, over IPv6 or
/// IPv4, to `port` of the first.
///
/// # Errors Text with the name of the file; also if no policy protects that traffic.
pub fn read_for_both(path: &Path, hosts: [&[IpAddr]; 2], ipv6: bool, port: u16) -> Result<KeyFile, String> {
    read_with(path, |keys| {
        refused(keys, hosts[0])?;
        refused(&keys.mirrored(), hosts[1]).map_err(|error| format!("at the other end, {error}"))?;
        // The policy is checked for the IP version that the transfer will use.
        let of_family = |addresses: &[IpAddr]| addresses.iter().copied().find(|address| address.is_ipv6() == ipv6);
        let [Some(here), Some(there)] = hosts.map(of_family) else {
            return Err("is for hosts without addresses of that family".into());
        };
        match keys.policies().any(|policy| protects(policy, (here, port), there)) {
            true => Ok(()),
            false => Err(format!("no policy has TCP between {here} port {port} and {there} protected")),
        }
    })
}

/// Returns the SAs of a host for which a device rejects the requested offload, with the reasons. These SAs work in
/// software.
///
/// ```
/// use ipsec::KeyFile;
/// use offload_bench::keys::{self, RefusedSa};
///
/// let keys: KeyFile = "state add src 10.0.0.2 dst 10.0.0.1 proto esp spi 256 replay-window 100 offload packet dir in
///     aead rfc4106(gcm(aes)) 0x000102030405060708090a0b0c0d0e0f10111213 128".parse()?;
/// let refused: Vec<RefusedSa> = keys::refused(&keys, &["10.0.0.1".parse()?])?;
/// let [refused] = &refused[..] else { panic!("one SA") };
/// assert_eq!(refused.to_string(), "SA 0x100: the device has no replay window of 100 packets; software has to do it");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// Text, if an SA does not belong to this host.
pub fn refused(keys: &KeyFile, addresses: &[IpAddr]) -> Result<Vec<RefusedSa>, String> {
    refused_after(keys, addresses, &KeyMemory::new())
}

/// Returns the rejected SAs like [`refused`], if keys were used before according to `memory`, which is not changed.
///
/// # Errors Text, if an SA does not belong to this host, or its key must not send any more.
pub fn refused_after(keys: &KeyFile, addresses: &[IpAddr], memory: &KeyMemory) -> Result<Vec<RefusedSa>, String> {
    let (_device, driver) = nic(NicConfig::default());
    secured(keys, vec![Box::new(driver)], addresses, memory.trial()).map(|(_, refused)| refused)
}

/// Returns the routes of tunnelled packets: a packet in a tunnel is routed to the tunnel's other end instead of its own
/// destination. Packets of other policies are routed by their own destinations. Routes are in the order of policy
/// priorities, and the first route with a packet's destination decides. Routes ignore protocols and ports: a tunnel
/// policy with a protocol or port routes all packets to its destinations, and other policies with a protocol or port
/// make no route.
///
/// ```
/// use ipsec::KeyFile;
/// use offload_api::Prefix;
/// use offload_bench::keys;
///
/// let keys: KeyFile = "policy add src 10.0.0.1 dst 192.168.0.0/16 dir out
///     tmpl src 10.0.0.1 dst 10.0.0.9 proto esp reqid 1 mode tunnel".parse()?;
/// let office = Prefix::new("192.168.0.0".parse()?, 16).unwrap();
/// assert_eq!(keys::routes(keys.policies()), [(office, Some("10.0.0.9".parse()?))]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn routes<'a>(policies: impl IntoIterator<Item = &'a Policy>) -> Vec<(Prefix, Option<IpAddr>)> {
    let mut policies: Vec<&Policy> =
        policies.into_iter().filter(|policy| policy.direction == Direction::Transmit).collect();
    // Policies are matched in this order, so routes must have the same one.
    policies.sort_by_key(|policy| rank(&policy.selector, policy.priority));
    let everybody = [Ipv4Addr::UNSPECIFIED.into(), Ipv6Addr::UNSPECIFIED.into()].map(|all| Prefix::new(all, 0));
    // A policy for some ports cannot exempt all packets of its destinations from a tunnel.
    let route = |policy: &Policy| {
        let via = match policy.action {
            Action::Protect(template) => template.destination,
            Action::Bypass | Action::Discard => None,
        };
        let Selector { protocol, source_port, destination_port, .. } = policy.selector;
        if via.is_none() && (protocol.is_some() || source_port.is_some() || destination_port.is_some()) {
            return Vec::new();
        }
        let destinations = policy.selector.destination.map_or(everybody, |prefix| [Some(prefix), None]);
        destinations.into_iter().flatten().map(|prefix| (prefix, via)).collect()
    };
    policies.into_iter().flat_map(route).collect()
}

/// Opens the memory of the keys that a host uses with real peers: in this process, and in the store of numbers in the
/// folder `store`. The store takes over the numbers that earlier versions stored beside `path`, a key file or the
/// socket of a daemon's agent.
///
/// `keys` is the key file, or `None` if the user declares that all its keys are new. A key without an entry may have
/// been used before if its file is older than the store.
///
/// # Errors If the store cannot be used, or may not know the last number of a key. The error is a text for the user.
pub fn memory(store: &Path, path: &Path, keys: Option<&KeyFile>) -> Result<KeyMemory, String> {
    let mut numbers = NumberFile::in_folder(store).map_err(|error| error.to_string())?;
    numbers.take_over(path).map_err(|error| error.to_string())?;
    if let Some(keys) = keys {
        let written = path.metadata().and_then(|metadata| metadata.modified());
        let written = written.map_err(|error| format!("{}: {error}", path.display()))?;
        let unknown = keys.sas().find(|sa| !numbers.accounts_for(&sa.key, sa.spi, written));
        if let Some(SaParams { spi, .. }) = unknown {
            let (path, store) = (path.display(), store.display());
            return Err(format!(
                "{path}: SA {spi:#x}: {store} does not know how far its key came, and began after the file was written: if the key was \
                 never used, start with --new-keys; else give the SA a new one"
            ));
        }
    }
    Ok(KeyMemory::process_wide().with_store(numbers))
}

/// Returns the default folder of the store: `$XDG_STATE_HOME/nic-offload`; else `/var/lib/nic-offload` for root, and
/// `~/.local/state/nic-offload` for other users.
///
/// # Errors If the user has no home. The error is a text for the user.
pub fn default_store() -> Result<PathBuf, String> {
    // Linux reports the user of the process; elsewhere the process counts as unprivileged.
    let is_root =
        std::fs::metadata("/proc/self").is_ok_and(|process| std::os::unix::fs::MetadataExt::uid(&process) == 0);
    store_of(is_root, |name| std::env::var_os(name))
}

fn store_of(is_root: bool, variable: impl Fn(&str) -> Option<OsString>) -> Result<PathBuf, String> {
    // XDG Base Directory Specification: a relative path must be ignored.
    let absolute = |name| variable(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let state = match (absolute("XDG_STATE_HOME"), is_root) {
        (Some(state), _) => state,
        (None, true) => "/var/lib".into(),
        (None, false) => absolute("HOME").ok_or(NO_STORE)?.join(".local/state"),
    };
    Ok(state.join("nic-offload"))
}

/// The queues of a NIC, as a host's shards use them.
pub type Queues = Vec<Box<dyn NetDevice>>;

/// An SA that a device refused to offload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RefusedSa {
    /// The SPI.
    pub spi: u32,
    /// Why.
    pub why: SaRefusal,
}

impl RefusedSa {
    fn from_added(added: SaAdded) -> Option<RefusedSa> {
        added.refused.map(|why| RefusedSa { spi: added.spi, why })
    }
}

impl fmt::Display for RefusedSa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SA {:#x}: {}; software has to do it", self.spi, self.why)
    }
}

/// Wraps the drivers of a NIC's queues in IPsec with `keys`, for a host with these addresses. Also returns the SAs
/// whose offload the device rejected.
///
/// # Errors Text, if an SA does not belong to this host, or its key must not send any more.
pub fn secured(
    keys: &KeyFile,
    drivers: Queues,
    addresses: &[IpAddr],
    memory: KeyMemory,
) -> Result<(Queues, Vec<RefusedSa>), String> {
    let mut queues = SecureDevice::for_queues_with(drivers, memory);
    let mut refused = Vec::new();
    if let Some(keying) = queues.first_mut().and_then(|queue| queue.keying()) {
        let added = keys.apply(Instant::ZERO, keying, addresses).map_err(|error| error.to_string())?;
        refused.extend(added.into_iter().filter_map(RefusedSa::from_added));
    }
    Ok((queues, refused))
}

/// Wraps drivers like [`secured`], with keys that were checked before.
///
/// # Panics If the keys are refused after all.
pub fn tried(keys: &KeyFile, drivers: Queues, addresses: &[IpAddr], memory: KeyMemory) -> Queues {
    match secured(keys, drivers, addresses, memory) {
        Ok((queues, _)) => queues,
        Err(error) => panic!("keys that were checked before are refused: {error}"),
    }
}

/// Applies a file of changes to a host's SAs and policies: other lifetimes, successors, deletions. Returns the number
/// of new SAs, and the SAs whose offload the device rejected.
///
/// # Errors Text with the name of the file. Changes before the failed statement stay in force.
pub fn change(
    path: &Path,
    now: Instant,
    keying: &mut dyn Keying,
    addresses: &[IpAddr],
) -> Result<(usize, Vec<RefusedSa>), String> {
    let mut done = (0, Vec::new());
    read_with(path, |changes| {
        let added = changes.apply(now, keying, addresses).map_err(|error| error.to_string())?;
        done = (added.len(), added.into_iter().filter_map(RefusedSa::from_added).collect());
        Ok(())
    })?;
    Ok(done)
}

fn read_with(path: &Path, check: impl FnOnce(&KeyFile) -> Result<(), String>) -> Result<KeyFile, String> {
    let about = |error: &dyn fmt::Display| format!("{}: {error}", path.display());
    let text = std::fs::read_to_string(path).map_err(|error| about(&error))?;
    let keys: KeyFile = text.parse().map_err(|error| about(&error))?;
    check(&keys).map_err(|error| about(&error))?;
    Ok(keys)
}

/// Returns whether a policy protects TCP between `server` and `client`, at least for some port of the client.
fn protects(policy: &Policy, (server, port): (IpAddr, u16), client: IpAddr) -> bool {
    let Policy { direction, selector, action, .. } = policy;
    let sent = *direction == Direction::Transmit;
    let other = if sent { selector.destination_port } else { selector.source_port }.unwrap_or(0);
    let (source, destination) = if sent { (server, client) } else { (client, server) };
    let ports = Some(if sent { (port, other) } else { (other, port) });
    matches!(action, Action::Protect(_)) && selector.matches(&Packet { source, destination, protocol: TCP, ports })
}

const TCP: u8 = 6;
const NO_STORE: &str = "there is no home to keep used numbers in: name a folder with --state";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn store_follows_the_variables_and_the_user() {
        let store = |is_root, variables: &[(&str, &str)]| {
            let variable = |name: &str| variables.iter().find(|(its, _)| *its == name).map(|(_, value)| value.into());
            store_of(is_root, variable).ok().map(|path| path.display().to_string())
        };
        let home = ("HOME", "/home/me");
        assert_eq!(store(true, &[home]).as_deref(), Some("/var/lib/nic-offload"));
        assert_eq!(store(false, &[home]).as_deref(), Some("/home/me/.local/state/nic-offload"));
        let state = ("XDG_STATE_HOME", "/state");
        assert_eq!(
            [true, false].map(|root| store(root, &[home, state])),
            [(); 2].map(|()| Some("/state/nic-offload".into()))
        );
        assert_eq!(store(true, &[("XDG_STATE_HOME", "here")]).as_deref(), Some("/var/lib/nic-offload"));
        assert_eq!(store(false, &[]), None);
    }

    /// Among policies for the same packet, the one with the lowest priority number decides the route.
    #[test]
    fn routes_follow_priorities() {
        let tunnel = |to: &str, by: &str, rest: &str| {
            format!(
                "policy add src 10.0.0.1 dst {to} {rest} dir out tmpl src 10.0.0.1 dst {by} proto esp reqid 1 mode tunnel\n"
            )
        };
        // Overlapping destinations with all combinations of priority and prefix length.
        let text = tunnel("192.168.7.0/24", "10.0.0.7", "priority 20")
            + &tunnel("192.168.0.0/16", "10.0.0.9", "priority 10")
            + &tunnel("172.16.0.0/12", "10.0.0.7", "priority 30")
            + &tunnel("172.16.5.0/24", "10.0.0.9", "priority 30")
            + "policy add src 10.0.0.1 dst 172.16.0.0/12 proto udp dport 53 dir out priority 1\n"
            + "policy add src 10.0.0.1 dst 172.16.9.0/24 dir out priority 5\n"
            + &tunnel("172.20.0.0/16", "10.0.0.9", "proto tcp dport 80 priority 2");
        let keys: KeyFile = text.parse().unwrap();
        let routes = routes(keys.policies());
        let way = |to: &str| {
            let to: IpAddr = to.parse().unwrap();
            let route = routes.iter().find(|(prefix, _)| prefix.contains(to));
            route.and_then(|(_, via)| *via).map(|via| via.to_string())
        };
        let by = |end: &str| Some(end.to_owned());
        assert_eq!(way("192.168.7.1"), by("10.0.0.9"), "the lower number, though less specific");
        assert_eq!(way("172.16.1.1"), by("10.0.0.7"), "a bypass of one port makes no route");
        assert_eq!(way("172.16.5.1"), by("10.0.0.9"), "of one number, the more specific");
        assert_eq!(way("172.16.9.1"), None, "it passes");
        assert_eq!(way("172.20.0.1"), by("10.0.0.9"), "some ports are tunnelled");
        assert_eq!(way("203.0.113.1"), None);
    }
}
