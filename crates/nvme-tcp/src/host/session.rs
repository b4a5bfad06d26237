//! The tasks of a host. One task serves the admin queue and thus the controller; each other task serves an I/O queue.
//!
//! ```text
//!   admin task:  connect, enable, identify -> tell the others -> serve -> lost -> cut the others -> back off -> again
//!   I/O task:    wait to be told -> connect -> serve -> lost -> have the admin task begin again
//! ```

use super::error::{CommandError, HostError, Unsuitable};
use super::events::HostEvent;
use super::inspected_namespace::InspectedNamespace;
use super::inspections::{InspectionResult, NamespaceInspections};
use super::lane::LaneInstruction;
use super::link::QueueLink;
use super::queue_service::{QueueDuties, ServiceEnd, serve};
use super::{Association, HostConfig, HostShared, events, lock};
use crate::core::queue::{Buffer, CommandData};
use crate::wire::{
    CC_ENABLE, CSTS_READY, ConnectData, ControllerData, DISCOVERY_NQN, Status, commands, identify, property,
};
use core::future::{Future, poll_fn};
use core::pin::Pin;
use core::sync::atomic::Ordering;
use core::task::Poll;
use core::time::Duration;
use offload_base::{Instant, Timers};
use smallvec::SmallVec;
use std::sync::Arc;
use tracing::{debug, debug_span};

/// A task of a host, to be spawned by the caller. A panic, or dropping the task before its end, ends the host.
pub type HostTask = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Creates one task for each lane.
pub(super) fn tasks(shared: &Arc<HostShared>) -> Vec<HostTask> {
    let task = || TaskGuard(shared.clone());
    let io = (1..shared.lanes.len()).map(|number| Box::pin(keep_queue(task(), number)) as HostTask);
    core::iter::once(Box::pin(keep_controller(task())) as HostTask).chain(io).collect()
}

/// Part of each task. Dropping it, for any reason, ends the host, so that no caller waits forever.
struct TaskGuard(Arc<HostShared>);

impl Drop for TaskGuard {
    fn drop(&mut self) {
        self.0.end(&HostError::TaskLost);
    }
}

async fn keep_controller(task: TaskGuard) {
    let shared = &task.0;
    let mut delay = Duration::ZERO;
    loop {
        let generation = shared.begin();
        let ended = match shared.unless_closed(open_controller(shared, generation)).await {
            Ok((link, association, events)) => {
                let version = association.data.version;
                let known = shared.publish(Arc::new(association));
                // Half the keep-alive time, so that one Keep Alive may be lost.
                let keep_alive = (!shared.config.keep_alive.is_zero()).then(|| shared.config.keep_alive / 2);
                let looking = Some(NamespaceInspections::new(version, shared.config.path_wait, known));
                serve(shared, 0, generation, link, QueueDuties { keep_alive, events, looking }).await
            }
            Err(HostError::Closed) => ServiceEnd::Wanted,
            Err(error) => {
                shared.lose_controller(generation, &error, error.is_final());
                ServiceEnd::Failed(error)
            }
        };
        if let ServiceEnd::Wanted = ended {
            return shared.end(&HostError::Closed);
        }
        let loss = shared.loss();
        let too_long = shared.timers.now() - loss.since > shared.config.give_up_after;
        if !loss.was_live || loss.is_final || too_long {
            return shared.end(&loss.error);
        }
        // Each failure doubles the delay, until a connection has lasted.
        let lasted = loss.lived.is_some_and(|lived| lived >= shared.config.reconnect_delay_max);
        delay = if lasted { Duration::ZERO } else { delay * 2 };
        delay = delay.max(shared.config.reconnect_delay).min(shared.config.reconnect_delay_max);
        let mut wait = delay.max(loss.wait);
        debug!(parent: &shared.span, ?wait, "reconnect after a pause");
        while !wait.is_zero() {
            if shared.back_off(wait).await {
                return shared.end(&HostError::Closed);
            }
            // Another queue may have lost its controller silently meanwhile.
            wait = shared.loss().wait;
        }
    }
}

async fn keep_queue(task: TaskGuard, number: usize) {
    let shared = &task.0;
    loop {
        let Some(association) = shared.wait_for_controller(number).await else { return };
        // The controller granted fewer queues than the host has lanes.
        if number > usize::from(association.queues) {
            if shared.hand_over(number).await { continue } else { return }
        }
        match open_queue(shared, &association, number as u16).await {
            Ok(link) => {
                shared.connected(&association);
                if let ServiceEnd::Wanted =
                    serve(shared, number, association.generation, link, QueueDuties::default()).await
                {
                    return;
                }
            }
            // Not final: only the admin queue can find out whether the controller is gone permanently.
            Err(error) => shared.lose_controller(association.generation, &error, false),
        }
    }
}

/// The loss of a controller.
pub(super) struct ControllerLoss {
    pub(super) error: HostError,
    /// Whether another attempt would fail in the same way.
    is_final: bool,
    /// Whether the host was connected at least once.
    was_live: bool,
    /// When the connection was lost.
    since: Instant,
    /// Duration of the last connection, if there was one.
    lived: Option<Duration>,
    /// Time until the lost controller has certainly given the host up.
    wait: Duration,
}

impl HostShared {
    fn begin(&self) -> u64 {
        let mut central = lock(&self.central);
        central.generation += 1;
        (central.connected, central.live_since) = (0, None);
        let now = self.timers.now();
        central.lost_since.get_or_insert(now);
        central.generation
    }

    /// Publishes a controller, so that the other tasks connect. Returns the namespaces that are in doubt.
    fn publish(&self, association: Arc<Association>) -> Vec<Arc<InspectedNamespace>> {
        let queues = usize::from(association.queues);
        self.queues.store(queues.max(1), Ordering::Relaxed);
        // Under the lock, so that a concurrent loss is not overtaken by this instruction.
        let mut central = lock(&self.central);
        central.association = Some(association.clone());
        let in_doubt = central.doubt();
        self.note_if_live(&mut central);
        for lane in self.lanes.iter().skip(1) {
            lane.instruct(LaneInstruction::Open(association.clone()));
        }
        in_doubt
    }

    fn connected(&self, association: &Association) {
        let mut central = lock(&self.central);
        if central.generation == association.generation && central.association.is_some() {
            central.connected += 1;
            self.note_if_live(&mut central);
        }
    }

    fn note_if_live(&self, central: &mut super::HostState) {
        if central.is_live() {
            central.was_live = true;
            central.lost_since = None;
            central.live_since = Some(self.timers.now());
            central.stats.connects += 1;
            debug!(parent: &self.span, queues = central.connected, connects = central.stats.connects, "connected");
            central.wake();
        }
    }

    /// Closes all queues of the controller after the failure of one. Later commands wait for the reconnect.
    pub(super) fn lose_controller(&self, generation: u64, error: &HostError, is_final: bool) {
        let mut central = lock(&self.central);
        if central.generation != generation {
            return;
        }
        debug!(parent: &self.span, %error, "queue lost");
        let now = self.timers.now();
        let is_first = central.lost != generation;
        let was_there = central.association.take().is_some();
        if (was_there || !is_first) && error.is_silence() {
            // NVM Express Base Specification 2.1, 9.6: a command must not be sent again while the controller may still
            // execute the first one. A controller that has not noticed the loss continues until its keep-alive timer
            // expires.
            let seconds = self.config.keep_alive.as_millis().div_ceil(1000) as u64;
            central.quiet_until = Some(now + Duration::from_secs(seconds));
        }
        // The other queues of a lost controller fail as a consequence. Only the first error is kept.
        if !is_first {
            return;
        }
        central.lost = generation;
        central.lost_since.get_or_insert(now);
        (central.last_error, central.is_final) = (Some(error.clone()), is_final);
        self.lanes.iter().for_each(|lane| lane.instruct(LaneInstruction::Cut));
    }

    pub(super) fn loss(&self) -> ControllerLoss {
        let (central, now) = (lock(&self.central), self.timers.now());
        ControllerLoss {
            error: central.last_error.clone().unwrap_or(HostError::Closed),
            is_final: central.is_final,
            was_live: central.was_live,
            since: central.lost_since.unwrap_or(now),
            lived: central.live_since.map(|live| central.lost_since.unwrap_or(now) - live),
            wait: central.quiet_until.map_or(Duration::ZERO, |until| until - now),
        }
    }

    /// Ends the host permanently. The first error is kept.
    fn end(&self, error: &HostError) {
        let error = {
            let mut central = lock(&self.central);
            central.association = None;
            if central.ended.is_none() {
                debug!(parent: &self.span, reason = %error, "host ended");
            }
            central.ended.get_or_insert_with(|| error.clone()).clone()
        };
        let held = self.given_up.end();
        self.lanes.iter().for_each(|lane| lane.end(&error));
        held.into_iter().for_each(|entry| entry.complete(CommandError::Lost(error.clone())));
        lock(&self.central).wake();
    }

    /// Waits for `delay`. Returns true if the host was closed.
    async fn back_off(&self, delay: Duration) -> bool {
        let mut alarm = self.timers.alarm();
        let until = self.timers.now() + delay;
        poll_fn(|cx| match self.lanes[0].take_instruction(cx) {
            Some(LaneInstruction::End) => Poll::Ready(true),
            _ => alarm.poll(cx, Some(until)).map(|()| false),
        })
        .await
    }

    /// Runs `opening` unless the host is closed.
    async fn unless_closed<T>(&self, opening: impl Future<Output = Result<T, HostError>>) -> Result<T, HostError> {
        let mut opening = core::pin::pin!(opening);
        poll_fn(|cx| match self.lanes[0].take_instruction(cx) {
            Some(LaneInstruction::End) => Poll::Ready(Err(HostError::Closed)),
            _ => opening.as_mut().poll(cx),
        })
        .await
    }

    /// Hands the commands of a lane without a queue to the first I/O lane, until there is another controller. Returns
    /// false if the host is closed.
    async fn hand_over(&self, number: usize) -> bool {
        poll_fn(|cx| match self.lanes[number].hand_over(cx, &self.lanes[1]) {
            None => Poll::Pending,
            Some(LaneInstruction::End) => Poll::Ready(false),
            Some(LaneInstruction::Cut) => Poll::Ready(true),
            Some(LaneInstruction::Open(association)) => {
                // A new controller replaced an unread `Cut`. The instruction is put back for the next call.
                self.lanes[number].instruct(LaneInstruction::Open(association));
                Poll::Ready(true)
            }
        })
        .await
    }

    /// Waits for a controller. `None` if the host is closed.
    async fn wait_for_controller(&self, number: usize) -> Option<Arc<Association>> {
        poll_fn(|cx| {
            loop {
                match self.lanes[number].take_instruction(cx) {
                    Some(LaneInstruction::End) => return Poll::Ready(None),
                    Some(LaneInstruction::Open(association)) => return Poll::Ready(Some(association)),
                    Some(LaneInstruction::Cut) => {}
                    None => return Poll::Pending,
                }
            }
        })
        .await
    }
}

/// Opens the admin queue. Returns the controller, ready for I/O queues, and whether it reports events.
async fn open_controller(shared: &HostShared, generation: u64) -> Result<(QueueLink, Association, bool), HostError> {
    let config = &shared.config;
    let (mut link, ReadyController { data, entries }) = open_admin(&*shared.connector, &shared.timers, config).await?;
    if data.command_capsule < 4 || data.response_capsule < 1 {
        return Err(HostError::Unsuitable(Unsuitable::SmallCapsules));
    }
    if data.sgl_support & 3 == 0 {
        return Err(HostError::Unsuitable(Unsuitable::NoSgls));
    }
    if data.in_capsule_offset != 0 {
        return Err(HostError::Unsuitable(Unsuitable::DataOffset));
    }
    if entries == 0 {
        return Err(HostError::Unsuitable(Unsuitable::NoRoom));
    }
    // The checks above follow NVMe over Fabrics: a host must not send capsules that the controller cannot take.
    let wanted = events::requested_notices(&data);
    let events = !wanted.is_empty()
        && match link.execute("events", commands::enable_notices(wanted), CommandData::None).await {
            Ok(_) => true,
            // Events are optional.
            Err(HostError::Refused { .. }) => false,
            Err(error) => return Err(error),
        };
    let granted =
        link.execute("a number of queues", commands::number_of_queues(config.queues), CommandData::None).await?;
    let (submission, completion) = (granted.completion.result as u16, (granted.completion.result >> 16) as u16);
    // Both numbers are 0's based, and a controller may grant more than was requested.
    let queues = submission.min(completion).saturating_add(1).min(config.queues);
    // MAXCMD 0 means no limit reported. A queue has one entry more than it has commands.
    let commands = data.max_commands.checked_sub(1).unwrap_or(MAX_DEPTH);
    let framing = link.queue.framing();
    let association = Association {
        generation,
        digests: (framing.header_digest, framing.data_digest),
        queues,
        depth: config.depth.min(entries).min(commands).clamp(1, MAX_DEPTH),
        in_capsule: (data.command_capsule - 4).saturating_mul(16),
        max_transfer: match data.max_transfer {
            0 => MAX_TRANSFER,
            shift => 4096u32.checked_shl(shift.into()).filter(|bytes| *bytes > 0).unwrap_or(MAX_TRANSFER),
        },
        data,
    };
    Ok((link, association, events))
}

impl HostShared {
    /// Puts all namespaces in doubt: no command for a namespace is sent before its new inspection.
    pub(super) fn doubt(&self) -> Vec<Arc<InspectedNamespace>> {
        lock(&self.central).doubt()
    }

    /// Takes the result of an inspection. Commands for an unchanged namespace continue; others fail.
    pub(super) fn decide(&self, InspectionResult { known, now, is_told }: InspectionResult) {
        {
            let mut central = lock(&self.central);
            // A concurrent `Host::disk` may have seen that the namespace has grown.
            let latest =
                central.known.get(&known.id).filter(|latest| latest.is_same_namespace(&known)).unwrap_or(&known);
            if now.is_some_and(|(data, ids)| latest.is(&data, &ids)) {
                known.confirm();
            } else if !known.is_gone() {
                known.mark_gone();
                if !is_told {
                    central.untold.keep(HostEvent::NamespacesChanged(vec![known.id]));
                }
            }
        }
        self.wake_lanes();
    }

    /// Wakes all lanes, because commands for namespaces may continue or fail now.
    pub(super) fn wake_lanes(&self) {
        self.lanes.iter().for_each(|lane| lane.wake());
    }
}

/// A controller that is ready.
pub(super) struct ReadyController {
    data: ControllerData,
    /// CAP.MQES: maximum number of queue entries, less one.
    entries: u16,
}

/// Connects an admin queue, and enables the controller.
pub(super) async fn open_admin(
    connector: &dyn super::Connector,
    timers: &Arc<dyn Timers>,
    config: &HostConfig,
) -> Result<(QueueLink, ReadyController), HostError> {
    let queue_config = config.queue_config(ADMIN_DEPTH, ADMIN_CAPSULE);
    let mut link = QueueLink::open(connector, timers, queue_config, config.connect_timeout).await?;
    let id = connect(&mut link, config, 0, ADMIN_DEPTH, 0xffff).await?;
    let discovery = config.subsystem == DISCOVERY_NQN;
    let capabilities = property_get(&mut link, property::CAP, true).await?;
    link.execute("to be enabled", commands::property_set(property::CC, ENABLE), CommandData::None).await?;
    // CAP.TO, bits 31:24, in units of 500 ms.
    let ready_by = timers.now() + Duration::from_millis(500) * ((capabilities >> 24) as u8 as u32 + 1);
    loop {
        let status = property_get(&mut link, property::CSTS, false).await? as u32;
        if status & CSTS_READY != 0 {
            break;
        }
        if status & FATAL != 0 {
            return Err(HostError::Unsuitable(Unsuitable::Failed));
        }
        if timers.now() >= ready_by {
            return Err(HostError::TimedOut("the controller's start"));
        }
        sleep(timers, READY_POLL).await;
    }
    let buffer = CommandData::Read(Buffer::zeroed(identify::LEN));
    let finished = link.execute("Identify", commands::identify(CONTROLLER, 0), buffer).await?;
    let CommandData::Read(buffer) = finished.submission.payload else {
        return Err(HostError::Unsuitable(Unsuitable::Unidentified));
    };
    let data = ControllerData::parse(&buffer.to_vec()).ok_or(HostError::Unsuitable(Unsuitable::Unidentified))?;
    // Identify must describe the controller of the Connect, or later queues would go to another one.
    if data.controller != id {
        return Err(HostError::Unsuitable(Unsuitable::Another));
    }
    if data.keep_alive == 0 && !discovery && !config.keep_alive.is_zero() {
        return Err(HostError::Unsuitable(Unsuitable::NoKeepAlive));
    }
    Ok((link, ReadyController { data, entries: capabilities as u16 }))
}

async fn open_queue(shared: &HostShared, association: &Association, id: u16) -> Result<QueueLink, HostError> {
    let config = &shared.config;
    // Connect may always carry its data in the capsule. Later commands obey the controller's limit.
    let queue_config = config.queue_config(association.depth, ADMIN_CAPSULE.max(association.in_capsule));
    let mut link = QueueLink::open(&*shared.connector, &shared.timers, queue_config, config.connect_timeout).await?;
    connect(&mut link, config, id, association.depth, association.data.controller).await?;
    link.queue.set_in_capsule(association.in_capsule);
    let span = debug_span!(parent: &shared.span, "nvme_queue", queue = id);
    link.offload(config.offload, &shared.offloads, &span);
    Ok(link)
}

/// Sends a Connect. Returns the controller's identifier.
async fn connect(
    link: &mut QueueLink,
    config: &HostConfig,
    id: u16,
    depth: u16,
    controller: u16,
) -> Result<u16, HostError> {
    let data = ConnectData {
        host_id: config.host_id,
        controller,
        subsystem: config.subsystem.clone(),
        host: config.host.clone(),
    };
    let command = commands::connect(id, depth, config.keep_alive);
    // Connect's data travel in the capsule, because the transfer limits are not known yet.
    let payload = CommandData::Write(SmallVec::from_iter([data.to_bytes().into()]));
    let finished = link.execute("a connection", command, payload).await.map_err(|error| match error {
        HostError::Refused { status, result: SUBSYSTEM_AT_FAULT, .. }
            if status.is_same_as(Status::CONNECT_INVALID_PARAMETERS) =>
        {
            HostError::NoSubsystem { subsystem: config.subsystem.clone(), status }
        }
        error => error,
    })?;
    let result = finished.completion.result;
    if result & AUTHENTICATION_REQUIRED != 0 {
        return Err(HostError::Unsuitable(Unsuitable::Authentication));
    }
    Ok(result as u16)
}

async fn property_get(link: &mut QueueLink, offset: u32, wide: bool) -> Result<u64, HostError> {
    let finished = link.execute("a property", commands::property_get(offset, wide), CommandData::None).await?;
    Ok(finished.completion.result)
}

async fn sleep(timers: &Arc<dyn Timers>, span: Duration) {
    let mut alarm = timers.alarm();
    let until = timers.now() + span;
    poll_fn(|cx| alarm.poll(cx, Some(until))).await;
}

/// Maximum number of commands in the admin queue.
const ADMIN_DEPTH: u16 = 31;
/// Bytes of in-capsule data that Admin and Fabrics commands may always have (NVMe/TCP 3.3.2.1).
const ADMIN_CAPSULE: u32 = 8192;
/// CC: enabled, I/O queue entries of 64 and 16 bytes.
const ENABLE: u32 = CC_ENABLE | 6 << 16 | 4 << 20;
/// CSTS.CFS.
const FATAL: u32 = 1 << 1;
/// CNS of Identify Controller.
const CONTROLLER: u8 = 0x01;
/// ATR and ASCR of Connect's result.
const AUTHENTICATION_REQUIRED: u64 = 0b11 << 17;
/// IATTR and IPO of a refused Connect: the error is in its data, at SUBNQN (NVM Express Base Specification 2.1, section
/// 6.3).
const SUBSYSTEM_AT_FAULT: u64 = 1 << 16 | 256;
/// Interval to poll a controller that is not ready.
const READY_POLL: Duration = Duration::from_millis(10);
/// Transfer limit of a controller that reports no limit.
const MAX_TRANSFER: u32 = 1 << 30;
/// Maximum number of commands in a queue.
const MAX_DEPTH: u16 = 4095;
