//! A model of a kernel's SAs and policies. It builds messages with a different crate than the one under test.

use core::net::IpAddr;
use netlink_packet_core::{NetlinkHeader, NetlinkMessage, NetlinkPayload};
use netlink_packet_xfrm::constants::*;
use netlink_packet_xfrm::nlas::UserTemplate;
use netlink_packet_xfrm::policy::{DelGetMessage as PolicyGone, ModifyMessage as PolicyMessage};
use netlink_packet_xfrm::state::{DelGetMessage as SaGone, ModifyMessage as SaMessage};
use netlink_packet_xfrm::{
    Address, AlgAead, ExpireMessage, Id, LifetimeConfig, Replay, ReplayEsn, Selector, UserExpire, UserPolicyId,
    UserPolicyInfo, UserSaId, UserSaInfo, XfrmAttrs, XfrmMessage,
};
use std::collections::BTreeMap;

/// An SA of the kernel.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct KernelSa {
    pub(crate) info: UserSaInfo,
    pub(crate) attributes: Vec<XfrmAttrs>,
}

impl KernelSa {
    /// Returns an AES-128-GCM SA with a key derived from `key`.
    pub(crate) fn new(source: IpAddr, destination: IpAddr, spi: u32, key: u64) -> KernelSa {
        let family = if source.is_ipv4() { AF_INET } else { AF_INET6 };
        let mut info = UserSaInfo {
            id: Id { daddr: Address::from_ip(&destination), spi, proto: 50 },
            saddr: Address::from_ip(&source),
            lifetime_cfg: unlimited(),
            family,
            reqid: 1,
            ..UserSaInfo::default()
        };
        info.lifetime_cur.add_time = 1000;
        let mut material = key.to_be_bytes().to_vec();
        material.resize(20, 7);
        KernelSa { info, attributes: vec![aead("rfc4106(gcm(aes))", &material, 128), replay(0, 0)] }
    }

    pub(crate) fn with(mut self, attribute: XfrmAttrs) -> KernelSa {
        self.attributes.push(attribute);
        self
    }
}

pub(crate) fn unlimited() -> LifetimeConfig {
    LifetimeConfig {
        soft_byte_limit: u64::MAX,
        hard_byte_limit: u64::MAX,
        soft_packet_limit: u64::MAX,
        hard_packet_limit: u64::MAX,
        soft_add_expires_seconds: 0,
        hard_add_expires_seconds: 0,
        soft_use_expires_seconds: 0,
        hard_use_expires_seconds: 0,
    }
}

pub(crate) fn aead(name: &str, key: &[u8], icv: u32) -> XfrmAttrs {
    let mut alg_name = [0; 64];
    alg_name[..name.len()].copy_from_slice(name.as_bytes());
    XfrmAttrs::EncryptionAlgAead(AlgAead {
        alg_name,
        alg_key_len: 8 * key.len() as u32,
        alg_icv_len: icv,
        alg_key: key.to_vec(),
    })
}

pub(crate) fn replay(sent: u32, received: u32) -> XfrmAttrs {
    XfrmAttrs::ReplayState(Replay { oseq: sent, seq: received, bitmap: 0 })
}

pub(crate) fn replay_esn(sent: u64, received: u64, window: u32) -> XfrmAttrs {
    XfrmAttrs::ReplayStateEsn(ReplayEsn {
        bmp_len: 0,
        oseq: sent as u32,
        seq: received as u32,
        oseq_hi: (sent >> 32) as u32,
        seq_hi: (received >> 32) as u32,
        replay_window: window,
        bmp: Vec::new(),
    })
}

/// A policy of the kernel.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct KernelPolicy {
    pub(crate) info: UserPolicyInfo,
    pub(crate) templates: Vec<UserTemplate>,
}

impl KernelPolicy {
    /// Returns a policy for packets between two hosts, with a transport-mode template.
    pub(crate) fn new(index: u32, direction: u8, source: IpAddr, destination: IpAddr, priority: u32) -> KernelPolicy {
        let selector = Selector {
            daddr: Address::from_ip(&destination),
            saddr: Address::from_ip(&source),
            family: if source.is_ipv4() { AF_INET } else { AF_INET6 },
            prefixlen_d: if source.is_ipv4() { 32 } else { 128 },
            prefixlen_s: if source.is_ipv4() { 32 } else { 128 },
            ..Selector::default()
        };
        let info = UserPolicyInfo {
            selector,
            lifetime_cfg: unlimited(),
            priority,
            index,
            direction,
            ..UserPolicyInfo::default()
        };
        KernelPolicy { info, templates: vec![template(0, 1)] }
    }

    pub(crate) fn attributes(&self) -> Vec<XfrmAttrs> {
        if self.templates.is_empty() { Vec::new() } else { vec![XfrmAttrs::Template(self.templates.clone())] }
    }
}

pub(crate) fn template(mode: u8, reqid: u32) -> UserTemplate {
    UserTemplate {
        id: Id { proto: 50, ..Id::default() },
        family: AF_INET,
        saddr: Address::default(),
        reqid,
        mode,
        share: 0,
        optional: 0,
        aalgos: u32::MAX,
        ealgos: u32::MAX,
        calgos: u32::MAX,
    }
}

/// Returns a message as the kernel sends it.
pub(crate) fn bytes(message: XfrmMessage, sequence: u32, flags: u16) -> Vec<u8> {
    let kind = message.message_type();
    let mut header = NetlinkHeader::default();
    (header.message_type, header.sequence_number, header.flags) = (kind, sequence, flags);
    let mut bytes = NetlinkMessage::new(header, NetlinkPayload::from(message));
    bytes.finalize();
    let mut datagram = vec![0; bytes.buffer_len()];
    bytes.serialize(&mut datagram);
    // `finalize` chooses another type for messages whose type two requests share.
    datagram[4..6].copy_from_slice(&kind.to_ne_bytes());
    datagram
}

pub(crate) fn done(sequence: u32) -> Vec<u8> {
    [&20u32.to_ne_bytes()[..], &3u16.to_ne_bytes(), &2u16.to_ne_bytes(), &sequence.to_ne_bytes(), &[0; 8]].concat()
}

pub(crate) fn error(sequence: u32, errno: i32) -> Vec<u8> {
    let mut bytes = [&36u32.to_ne_bytes()[..], &2u16.to_ne_bytes(), &[0; 2], &sequence.to_ne_bytes(), &[0; 4]].concat();
    bytes.extend((-errno).to_ne_bytes());
    bytes.extend([0; 16]);
    bytes
}

pub(crate) fn sa_message(sa: &KernelSa) -> SaMessage {
    SaMessage { user_sa_info: sa.info, nlas: sa.attributes.clone() }
}

pub(crate) fn sa_gone(sa: &KernelSa) -> XfrmMessage {
    let UserSaInfo { id, family, .. } = sa.info;
    XfrmMessage::DeleteSa(SaGone {
        user_sa_id: UserSaId { daddr: id.daddr, spi: id.spi, family, proto: id.proto },
        nlas: vec![XfrmAttrs::SaInfo(sa.info)],
    })
}

pub(crate) fn policy_gone(policy: &KernelPolicy) -> XfrmMessage {
    let UserPolicyInfo { selector, direction, .. } = policy.info;
    XfrmMessage::DeletePolicy(PolicyGone {
        user_policy_id: UserPolicyId { selector, index: 0, direction },
        nlas: vec![XfrmAttrs::PolicyInfo(policy.info)],
    })
}

pub(crate) fn policy_message(policy: &KernelPolicy) -> PolicyMessage {
    PolicyMessage { user_policy_info: policy.info, nlas: policy.attributes() }
}

/// A fake kernel with one netlink socket.
#[derive(Debug, Default)]
pub(crate) struct FakeKernel {
    pub(crate) sas: BTreeMap<(Vec<u8>, u32), KernelSa>,
    pub(crate) policies: BTreeMap<u32, KernelPolicy>,
    /// Messages that the socket has not read yet.
    pub(crate) queue: Vec<Vec<u8>>,
    /// Whether the socket is full, so that messages are dropped.
    pub(crate) full: bool,
}

impl FakeKernel {
    fn tell(&mut self, message: XfrmMessage) {
        if !self.full {
            self.queue.push(bytes(message, 0, 0));
        }
    }

    pub(crate) fn add_sa(&mut self, sa: KernelSa) {
        self.tell(XfrmMessage::AddSa(sa_message(&sa)));
        self.sas.insert((sa.info.id.daddr.addr.to_vec(), sa.info.id.spi), sa);
    }

    pub(crate) fn update_sa(&mut self, number: usize, packets: u64) {
        let Some(sa) = self.sas.values_mut().nth(number) else { return };
        sa.info.lifetime_cfg.hard_packet_limit = packets;
        let message = XfrmMessage::UpdateSa(sa_message(sa));
        self.tell(message);
    }

    pub(crate) fn delete_sa(&mut self, number: usize, expires: bool) {
        let Some(name) = self.sas.keys().nth(number).cloned() else { return };
        let Some(sa) = self.sas.remove(&name) else { return };
        match expires {
            false => self.tell(sa_gone(&sa)),
            true => self.tell(XfrmMessage::Expire(ExpireMessage { expire: UserExpire { state: sa.info, hard: 1 } })),
        }
    }

    pub(crate) fn put_policy(&mut self, policy: KernelPolicy) {
        self.tell(XfrmMessage::UpdatePolicy(policy_message(&policy)));
        self.policies.insert(policy.info.index, policy);
    }

    pub(crate) fn delete_policy(&mut self, number: usize) {
        let Some(index) = self.policies.keys().nth(number).copied() else { return };
        let Some(policy) = self.policies.remove(&index) else { return };
        self.tell(policy_gone(&policy));
    }

    /// Answers queries. Messages that would change the kernel's state are ignored.
    pub(crate) fn request(&mut self, request: &[u8]) {
        let kind = u16::from_ne_bytes([request[4], request[5]]);
        let sequence = u32::from_ne_bytes(request[8..12].try_into().unwrap());
        match kind {
            XFRM_MSG_GETSA => {
                // A dump has no room limit, because the reader drives it.
                let all: Vec<_> = self.sas.values().map(|sa| XfrmMessage::AddSa(sa_message(sa))).collect();
                self.queue.extend(all.into_iter().map(|message| bytes(message, sequence, 2)));
                self.queue.push(done(sequence));
            }
            XFRM_MSG_GETPOLICY => {
                let all: Vec<_> =
                    self.policies.values().map(|one| XfrmMessage::AddPolicy(policy_message(one))).collect();
                self.queue.extend(all.into_iter().map(|message| bytes(message, sequence, 2)));
                self.queue.push(done(sequence));
            }
            XFRM_MSG_GETDEFAULT => self.queue.push(error(sequence, 22)),
            _ => {}
        }
    }
}
