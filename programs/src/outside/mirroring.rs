//! Receives SAs and policies of a host from the Linux machine that negotiates its keys: an agent, `linux-mirror sa`,
//! sends them to a Unix socket.
//!
//! One agent at a time is accepted, and only one of this process's owner. Its changes are applied at once; every second
//! it is told the counters of the SAs.

use super::{OutsideOptions, route_by_policies};
use clap::ValueEnum;
use core::convert::Infallible;
use core::time::Duration;
use ipsec::{KeyedDevice, Keying};
use linux_mirror::sa::{SaMirror, SaMirrorCounters};
use linux_mirror::{MirrorListener, is_of_owner};
use offload_api::{Direction, OffloadKind};
use offload_console::say;
use offload_testbed::attach::Gate;
use offload_testbed::bed::BedHost;
use std::collections::BTreeSet;
use std::io::{self, ErrorKind};
use tokio::net::{UnixListener, UnixStream};
use zeroize::Zeroizing;

/// The NIC's share of the work for mirrored SAs
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum MirrorOffload {
    /// No offload: the host does ESP
    None,
    /// The cipher, under headers of the host
    Crypto,
    /// All of ESP
    Packet,
}

/// Binds the socket of the options, if there is one. The socket exists before the host does, because the host keeps its
/// numbers beside it.
pub(super) fn bind(options: &OutsideOptions) -> Result<Option<MirrorListener>, String> {
    let bound = options
        .mirror
        .as_ref()
        .map(|path| MirrorListener::bind(path).map_err(|error| format!("{}: {error}", path.display())));
    bound.transpose()
}

/// The mirror's socket and the mirrored state.
pub(super) struct Mirroring {
    agents: UnixListener,
    mirror: SaMirror,
    /// Holds the daemon's IKE messages until its kernel's state is mirrored.
    gate: Gate,
    /// Present if the SAs belong to the NIC's switch, to which they are lent. The host itself then sends with no SA.
    lending: Option<Lending>,
    /// The last complaint about SAs that the switch does not get.
    complaint: String,
}

impl Mirroring {
    /// Starts to accept agents.
    pub(super) fn listen(listener: &MirrorListener, options: &OutsideOptions, gate: Gate) -> io::Result<Mirroring> {
        let agents = listener.socket().try_clone()?;
        agents.set_nonblocking(true)?;
        let kind = match options.mirror_offload {
            MirrorOffload::None => OffloadKind::None,
            MirrorOffload::Crypto => OffloadKind::Crypto,
            MirrorOffload::Packet => OffloadKind::Packet,
        };
        let mirror = SaMirror::new(&options.addresses()).offloaded(kind);
        Ok(Mirroring {
            agents: UnixListener::from_std(agents)?,
            mirror,
            gate,
            lending: options.lends.then(Lending::default),
            complaint: String::new(),
        })
    }

    /// Returns the counters so far.
    pub(super) fn counters(&self) -> SaMirrorCounters {
        self.mirror.counters()
    }

    /// Mirrors to `host`, one agent after the other.
    pub(super) async fn mirror(&mut self, host: &BedHost) -> Infallible {
        loop {
            match self.agents.accept().await {
                Ok((agent, _)) if is_of_owner(&agent).unwrap_or(false) => {
                    say!("mirror: an agent is there");
                    self.gate.attend(true);
                    let error = self.listen_to(agent, host).await;
                    self.gate.attend(false);
                    say!("mirror: the agent went ({error}); SAs and policies stay");
                }
                Ok(_) => say!("mirror: refused an agent of another owner"),
                Err(_) => tokio::time::sleep(PATIENCE).await,
            }
        }
    }

    /// Mirrors the changes that `agent` sends until it disconnects.
    async fn listen_to(&mut self, agent: UnixStream, host: &BedHost) -> io::Error {
        self.mirror.connect();
        // The agent's bytes contain keys, which must not stay in freed memory.
        let mut bytes = Zeroizing::new(vec![0; 1 << 16]);
        let (mut sending, mut sent) = (Zeroizing::new(Vec::new()), 0);
        let mut time_to_report = tokio::time::interval(BETWEEN_REPORTS);
        loop {
            if sent == sending.len()
                && let Some(next) = self.mirror.poll_transmit()
            {
                (sending, sent) = (next, 0);
            }
            tokio::select! {
                readable = agent.readable() => match readable.and_then(|()| agent.try_read(&mut bytes)) {
                    Ok(0) => return ErrorKind::UnexpectedEof.into(),
                    Ok(length) => self.replay(&bytes[..length], host),
                    Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                    Err(error) => return error,
                },
                writable = agent.writable(), if sent < sending.len() => {
                    match writable.and_then(|()| agent.try_write(&sending[sent..])) {
                        Ok(length) => sent += length,
                        Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                        Err(error) => return error,
                    }
                }
                ticket = self.gate.wait() => self.mirror.sync(ticket),
                Ok(_) = self.agents.accept() => say!("mirror: refused a second agent"),
                _ = time_to_report.tick() => host.stack().with_device(|device| {
                    let Some(keying) = device.keying() else { return };
                    // SAs that the NIC refused before, for lack of time or of stored numbers, may be lent now.
                    let due = self.lending.as_mut().map(|lending| lending.due(&self.mirror.reqids()));
                    self.lend(due.unwrap_or_default(), keying);
                    self.mirror.report(keying);
                }),
            }
        }
    }

    fn replay(&mut self, bytes: &[u8], host: &BedHost) {
        let policies = |mirror: &SaMirror| (mirror.counters().policies_added, mirror.counters().policies_deleted);
        let before = policies(&self.mirror);
        let now = host.now();
        host.stack().with_device(|device| {
            let Some(keying) = device.keying() else { return };
            self.mirror.receive(now, bytes, keying);
            let changed = self.mirror.poll_reqids();
            self.lend(changed, keying);
        });
        // Routes follow from policies only, so SA changes leave them alone.
        if policies(&self.mirror) != before {
            route_by_policies(host);
        }
        // The daemon's messages leave only after the state that they refer to is installed.
        self.gate.pass(self.mirror.synced());
        while let Some(refusal) = self.mirror.poll_refusal() {
            say!("mirror: {refusal}");
        }
    }

    /// Lends the SAs of these reqids to the switch, if the SAs are the switch's.
    fn lend(&mut self, reqids: BTreeSet<u32>, keying: &mut dyn Keying) {
        let Some(lending) = &mut self.lending else { return };
        for reqid in reqids {
            let mut lent = 0;
            for direction in [Direction::Transmit, Direction::Receive] {
                match keying.lend_sas(direction, reqid) {
                    Ok(sas) => lent += sas.len(),
                    Err(error) => {
                        let complaint = format!("mirror: the switch does not get the SAs of reqid {reqid}: {error}");
                        // The switch is asked again every second, but the same complaint is logged once.
                        if complaint != self.complaint {
                            say!("{complaint}");
                        }
                        self.complaint = complaint;
                    }
                }
            }
            lending.note(reqid, lent >= self.mirror.sas_with_reqid(reqid));
        }
    }
}

/// SAs that are lent again because not all could be lent, or not all that policies need exist.
///
/// Invariant: each turn tries at most [`AT_A_TIME`] reqids, starting with reqids known not to be lent, and reaches
/// every reqid in the end.
#[derive(Debug, Default)]
struct Lending {
    unlent: BTreeSet<u32>,
    /// The reqid that was tried last.
    last: u32,
}

impl Lending {
    /// Records whether all SAs of a reqid are lent.
    fn note(&mut self, reqid: u32, all: bool) {
        if all {
            self.unlent.remove(&reqid);
        } else {
            self.unlent.insert(reqid);
        }
    }

    /// Returns the reqids out of `there` with SAs to be lent now.
    fn due(&mut self, there: &BTreeSet<u32>) -> BTreeSet<u32> {
        self.unlent.retain(|reqid| there.contains(reqid));
        let in_turn = |all: &BTreeSet<u32>, most| {
            let (before, behind) = (all.range(..=self.last), all.range(self.last.saturating_add(1)..));
            behind.chain(before).take(most).copied().collect::<Vec<_>>()
        };
        // Half of the turn is left to reqids that were lent, so that unlendable ones cannot starve them.
        let mut due = in_turn(&self.unlent, AT_A_TIME / 2);
        let others = in_turn(there, AT_A_TIME - due.len());
        self.last = others.last().copied().unwrap_or(self.last);
        due.extend(others);
        due.into_iter().collect()
    }
}

/// Reqids that are lent again every second. Each costs a scan of all SAs.
const AT_A_TIME: usize = 64;

/// Pause after a failed accept, for example for want of file descriptors.
const PATIENCE: Duration = Duration::from_millis(100);
const BETWEEN_REPORTS: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_turn_lends_some_sas_and_all_get_their_turn() {
        let there: BTreeSet<u32> = (0..1000).collect();
        let mut lending = Lending::default();
        lending.note(7, false);
        lending.note(2000, false);
        let mut tried = BTreeSet::new();
        for turn in 0..16 {
            let due = lending.due(&there);
            assert!(due.len() <= AT_A_TIME && due.contains(&7), "{turn}");
            tried.extend(due);
        }
        assert_eq!(tried, there, "one that went is not tried");
        lending.note(7, true);
        assert!((0..3).any(|_| !lending.due(&there).contains(&7)));
        let few: BTreeSet<u32> = [3, u32::MAX].into();
        (0..3).for_each(|_| assert_eq!(lending.due(&few), few));
        assert!(lending.due(&BTreeSet::new()).is_empty());
        // Many unlendable reqids do not starve the other reqids.
        (0..1000).for_each(|reqid| lending.note(reqid, false));
        let tried: BTreeSet<u32> = (0..32).flat_map(|_| lending.due(&there)).collect();
        assert_eq!(tried, there);
    }
}
