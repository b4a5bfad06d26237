//! Execution and completion of commands with all their data present.

use super::{Connection, ConnectionState};
use crate::core::controller::job::{Job, Reply};
use crate::core::controller::{Target, admin, fabrics, io};
use crate::namespace::{DataPieces, Namespace, Operation};
use crate::wire::{
    AdminOpcode, Command, Completion, DataHeader, ErrorEntry, FabricsType, IoOpcode, Pdu, PduLimits, Status,
};
use bytes::Bytes;
use offload_base::Instant;
use smallvec::SmallVec;
use std::sync::Arc;

impl Connection {
    /// Executes a command. All its data are present.
    pub(super) fn start(&mut self, now: Instant, id: u16, target: &mut Target) {
        let Some(incoming) = self.commands.get_mut(&id) else { return };
        incoming.started = true;
        let (data, charge) = (incoming.data.finish(), incoming.charge.take());
        let command = incoming.command;
        // `refused` was set when the command arrived; the data had to be received all the same, to keep the stream in
        // order.
        let reply = match incoming.refused {
            Some(status) => Err(status),
            None => self.execute(now, &command, data, target),
        };
        match reply {
            Ok(Reply::Result(result)) => self.complete_with(id, Status::SUCCESS, result, target),
            Ok(Reply::Data(mut data)) => {
                let data = split_pieces(&mut data, command.sgl().length as usize);
                self.send_data(id, data, target);
            }
            Ok(Reply::Aborted(aborted)) => {
                self.complete_with(aborted, Status::ABORTED_BY_REQUEST, 0, target);
                self.complete_with(id, Status::SUCCESS, 0, target);
            }
            Ok(Reply::Failed(status, result)) => self.complete_with(id, status, result, target),
            Ok(Reply::Waits) => self.handle_wakeup(target),
            Ok(Reply::Job(namespaces, operation)) => {
                self.jobs.push_back(Job::new(id, namespaces, operation, charge));
            }
            Err(status) => self.complete_with(id, status, 0, target),
        }
    }

    fn execute(
        &mut self,
        now: Instant,
        command: &Command,
        data: DataPieces,
        target: &mut Target,
    ) -> Result<Reply, Status> {
        if command.opcode() == AdminOpcode::Fabrics as u8 {
            return self.execute_fabrics(now, command, &data.concat(), target);
        }
        let queue = self.queue.ok_or(Status::COMMAND_SEQUENCE_ERROR)?;
        if queue.id == 0 {
            return admin::execute(target, queue.controller, command, &data.concat(), now);
        }
        let session = target.sessions.get(&queue.controller).ok_or(Status::INTERNAL_ERROR)?;
        let write_cache = session.features.write_cache();
        // Namespace FFFFFFFFh flushes all namespaces, as VWC in Identify Controller announces.
        if command.opcode() == IoOpcode::Flush as u8 && command.namespace() == u32::MAX {
            let subsystem = target.subsystems.get(session.subsystem()).ok_or(Status::INTERNAL_ERROR)?;
            return Ok(Reply::Job(subsystem.namespaces.values().cloned().collect(), Operation::Flush));
        }
        let namespace = self.namespace(command.namespace(), target)?;
        // Checked again, because the namespace may have been replaced while the data were on their way.
        io::check(command, &namespace, self.config.max_transfer_bytes())?;
        let operation = io::operation(command, &namespace, data, write_cache)?;
        Ok(Reply::Job(SmallVec::from_iter([namespace]), operation))
    }

    fn execute_fabrics(
        &mut self,
        now: Instant,
        command: &Command,
        data: &[u8],
        target: &mut Target,
    ) -> Result<Reply, Status> {
        let kind = FabricsType::from_u8(command.fabrics_type()).ok_or(Status::INVALID_FIELD)?;
        if kind == FabricsType::Connect {
            if self.queue.is_some() {
                return Err(Status::COMMAND_SEQUENCE_ERROR);
            }
            return Ok(match fabrics::connect(target, self.id, &self.account, command, data, now) {
                Ok(connected) => {
                    self.queue = Some(connected.queue);
                    self.work = connected.work;
                    if connected.queue.id > 0 {
                        // IOCCSZ limits the capsules of I/O queues from here on.
                        let limits = self.receiver.limits();
                        self.receiver.set_limits(PduLimits { max_in_capsule: self.config.in_capsule, ..limits });
                    }
                    // The answer has to wait for commands of earlier connections of this queue.
                    self.connecting = Some((command.identifier(), connected.waits_for));
                    Reply::Waits
                }
                Err((status, result)) => Reply::Failed(status, result),
            });
        }
        let queue = self.queue.ok_or(Status::COMMAND_SEQUENCE_ERROR)?;
        match (kind, queue.id) {
            (FabricsType::PropertyGet, 0) => fabrics::property_get(target, queue.controller, command, now),
            (FabricsType::PropertySet, 0) => {
                let set = fabrics::property_set(target, queue.controller, command, now)?;
                for id in set.given_up {
                    self.forget(id);
                }
                Ok(if set.flush.is_empty() { Reply::Result(0) } else { Reply::Job(set.flush, Operation::Flush) })
            }
            (FabricsType::Disconnect, 0) => Err(Status::INVALID_QUEUE_TYPE),
            (FabricsType::Disconnect, _) => {
                if command.u16(40) != 0 {
                    return Err(Status::CONNECT_FORMAT);
                }
                // A running job cannot be called back, and completes normally. All other commands are aborted with the
                // queue.
                let begun = |id: u16| self.commands.get(&id).is_some_and(|incoming| incoming.started);
                let waits = |id: u16| self.jobs.iter().any(|job| job.command == id);
                let others = self.commands.keys().copied().filter(|id| *id != command.identifier());
                let aborted: Vec<u16> = others.filter(|id| !begun(*id) || waits(*id)).collect();
                self.jobs.clear();
                // Memory that an aborted command returns must not be used to request data for the next command.
                self.unasked.clear();
                self.account.stop_waiting();
                for id in aborted {
                    self.complete_with(id, Status::ABORTED_QUEUE_DELETED, 0, target);
                }
                self.state = ConnectionState::Disconnecting(command.identifier());
                self.finish_disconnect(target);
                Ok(Reply::Waits)
            }
            _ => Err(Status::INVALID_FIELD),
        }
    }

    /// Answers a Connect once all commands of the queue's earlier connections are over.
    pub(super) fn finish_connect(&mut self, target: &mut Target) {
        let id = self.id;
        let Some((command, _)) = self.connecting.take_if(|(_, before)| before.is_over_or_registers(id)) else { return };
        self.deadline = None;
        let controller = self.queue.map_or(0, |queue| queue.controller);
        self.complete_with(command, Status::SUCCESS, u64::from(controller), target);
    }

    /// Aborts the commands that an Abort named. Running commands see the abort themselves.
    pub(super) fn handle_aborts(&mut self, target: &mut Target) {
        let aborts = self.work.as_ref().map(|work| work.take_aborts()).unwrap_or_default();
        for (id, until) in aborts {
            // A newer command may have the same identifier. Its number is higher, and it is not aborted.
            let named = self.commands.get_mut(&id).filter(|incoming| incoming.number < until);
            let Some(incoming) = named else { continue };
            let jobs = self.jobs.len();
            self.jobs.retain(|job| job.command != id);
            if self.jobs.len() < jobs || (!incoming.started && incoming.asked == 0) {
                self.complete_with(id, Status::ABORTED_BY_REQUEST, 0, target);
            } else if !incoming.started {
                // Requested data are on their way and must be received before the command can end.
                incoming.refused = incoming.refused.or(Some(Status::ABORTED_BY_REQUEST));
            }
        }
    }

    /// Answers a Disconnect once no job is running, and closes the connection.
    pub(super) fn finish_disconnect(&mut self, target: &mut Target) {
        if let ConnectionState::Disconnecting(command) = self.state
            && self.jobs_out == 0
        {
            self.complete_with(command, Status::SUCCESS, 0, target);
            self.close(target);
        }
    }

    pub(super) fn namespace(&self, id: u32, target: &Target) -> Result<Arc<Namespace>, Status> {
        let queue = self.queue.ok_or(Status::COMMAND_SEQUENCE_ERROR)?;
        let session = target.sessions.get(&queue.controller).ok_or(Status::INTERNAL_ERROR)?;
        let subsystem = target.subsystems.get(session.subsystem()).ok_or(Status::INTERNAL_ERROR)?;
        subsystem.namespaces.get(&id).cloned().ok_or(Status::INVALID_NAMESPACE)
    }

    /// Sends the data that command `id` read, and completes the command.
    pub(super) fn send_data(&mut self, id: u16, mut data: DataPieces, target: &mut Target) {
        let total: usize = data.iter().map(Bytes::len).sum();
        self.read_bytes += total;
        // NVMe/TCP Transport Specification 1.0, 3.6.2.9: SUCCESS may replace the response only if flow control is off.
        // The result is then zero.
        let success = self.queue.is_some_and(|queue| !queue.flow_control);
        let mut offset = 0;
        while offset < total {
            // All PDUs but the last carry a multiple of 4 bytes.
            let length = (total - offset).min((self.config.data_bytes & !3).max(4) as usize);
            let last = offset + length == total;
            let header = DataHeader {
                command: id,
                tag: 0,
                offset: offset as u32,
                length: length as u32,
                last,
                success: last && success,
            };
            let pieces = split_pieces(&mut data, length);
            self.queue_pdu(&Pdu::ControllerData(header), pieces);
            offset += length;
        }
        if success && total > 0 {
            self.forget(id);
        } else {
            self.complete_with(id, Status::SUCCESS, 0, target);
        }
    }

    pub(super) fn complete_with(&mut self, id: u16, status: Status, result: u64, target: &mut Target) {
        let Some(command) = self.forget(id) else { return };
        // The error log belongs to the controller, so that the host can read it on the admin queue.
        if !status.is_success()
            && let Some(queue) = self.queue
            && let Some(session) = target.sessions.get_mut(&queue.controller)
        {
            let (block, namespace) = if queue.id == 0 { (0, 0) } else { (io::range(&command).0, command.namespace()) };
            let entry = ErrorEntry { count: 0, queue: queue.id, command: id, status, block, namespace };
            session.record_error(entry);
        }
        let completion = self.completion(id, status, result);
        self.queue_pdu(&Pdu::Response(completion), []);
    }

    /// Removes a command; its identifier can be used again.
    pub(super) fn forget(&mut self, id: u16) -> Option<Command> {
        let incoming = self.commands.remove(&id)?;
        // The budget of this command is free, so the next command may be asked for its data.
        if incoming.admitted {
            self.asked_bytes -= incoming.total as usize;
            self.ask();
        }
        Some(incoming.command)
    }

    pub(super) fn completion(&self, id: u16, status: Status, result: u64) -> Completion {
        // A reserved queue head tells the host that flow control is off.
        let queue_head = self.queue.map_or(0, |queue| if queue.flow_control { queue.head } else { u16::MAX });
        Completion { result, queue_head, queue: 0, command: id, status }
    }
}

/// Splits `length` bytes off the front of `data`.
fn split_pieces(data: &mut DataPieces, length: usize) -> DataPieces {
    let mut taken = DataPieces::new();
    let (mut left, mut whole) = (length, 0);
    for piece in data.iter_mut() {
        if left == 0 {
            break;
        }
        let part = piece.split_to(piece.len().min(left));
        left -= part.len();
        whole += usize::from(piece.is_empty());
        taken.push(part);
    }
    data.drain(..whole);
    taken
}
