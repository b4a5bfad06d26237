//! Device events about a connection's flow, queued for the application.
//!
//! Invariant: at most two events are queued per context: the latest one, and a missing key. The queue is therefore
//! bounded by the number of contexts, even if the application never reads it.

use super::connection::Connection;
use offload_api::DeviceEvent;
use std::collections::VecDeque;

/// Events that the application has not taken yet.
#[derive(Debug, Default)]
pub(super) struct DeviceEventQueue {
    /// Boxed while not empty, because most connections have no events.
    #[expect(clippy::box_collection, reason = "an idle connection takes 2 KiB at most")]
    kept: Option<Box<VecDeque<DeviceEvent>>>,
}

impl DeviceEventQueue {
    fn take(&mut self) -> Option<DeviceEvent> {
        let kept = self.kept.as_mut()?;
        let event = kept.pop_front();
        if kept.is_empty() {
            self.kept = None;
        }
        event
    }

    /// Queues an event and removes the queued events that it supersedes.
    fn push(&mut self, event: DeviceEvent) {
        let kept = self.kept.get_or_insert_default();
        kept.retain(|earlier| !supersedes(&event, earlier));
        kept.push_back(event);
    }
}

impl Connection {
    /// Takes the next device event for the application.
    pub(crate) fn take_device_event(&mut self) -> Option<DeviceEvent> {
        self.news.take()
    }

    /// Queues an event for the application, unless the application has dropped the connection.
    pub(crate) fn note_device_event(&mut self, event: DeviceEvent) {
        // Events for a dropped stream would only take memory.
        if !self.holder.is_gone() {
            self.news.push(event);
            self.readiness.device_event = true;
        }
    }
}

/// Returns whether `event` makes `earlier` irrelevant to the application.
fn supersedes(event: &DeviceEvent, earlier: &DeviceEvent) -> bool {
    match (event, earlier) {
        // A reset does not replace the news of a removal, for which the application may be waiting.
        (DeviceEvent::Reset, DeviceEvent::Removed { .. }) => false,
        (DeviceEvent::Reset, _) => true,
        (DeviceEvent::ResyncRequested { handle, .. }, DeviceEvent::ResyncRequested { handle: before, .. })
        | (
            DeviceEvent::ResyncStarted { handle, .. } | DeviceEvent::ResyncCancelled { handle, .. },
            DeviceEvent::ResyncStarted { handle: before, .. }
            | DeviceEvent::ResyncCancelled { handle: before, .. }
            | DeviceEvent::ResyncRequested { handle: before, .. },
        )
        | (
            DeviceEvent::Removed { handle, .. },
            DeviceEvent::Removed { handle: before, .. }
            | DeviceEvent::Ready { handle: before, .. }
            | DeviceEvent::ResyncStarted { handle: before, .. }
            | DeviceEvent::ResyncCancelled { handle: before, .. }
            | DeviceEvent::ResyncRequested { handle: before, .. },
        ) => handle == before,
        _ => event == earlier,
    }
}

#[cfg(test)]
mod tests {
    use super::super::state::TcpState;
    use super::*;
    use crate::config::TcpConfig;
    use offload_api::{FlowKey, Handle};
    use offload_base::Seq;

    #[test]
    fn resync_requests_displace_no_other_event() {
        let flow = FlowKey::tcp("10.0.0.1:1".parse().unwrap(), "10.0.0.2:2".parse().unwrap());
        let mut connection = Connection::new(flow, TcpState::Established, Seq(0), 0, &TcpConfig::default());
        let [old, new] = [0, 1].map(|index| Handle { index, generation: 0 });
        let resync = |handle, header| DeviceEvent::ResyncRequested { flow, handle, header: Seq(header) };
        connection.note_device_event(DeviceEvent::Ready { flow, handle: old });
        connection.note_device_event(resync(old, 1));
        connection.note_device_event(DeviceEvent::Removed { flow, handle: old });
        connection.note_device_event(DeviceEvent::Reset);
        connection.note_device_event(DeviceEvent::Reset);
        connection.note_device_event(DeviceEvent::Ready { flow, handle: new });
        (0..1000).for_each(|header| connection.note_device_event(resync(new, header)));
        let events: Vec<DeviceEvent> = core::iter::from_fn(|| connection.take_device_event()).collect();
        let expected = [
            DeviceEvent::Removed { flow, handle: old },
            DeviceEvent::Reset,
            DeviceEvent::Ready { flow, handle: new },
            resync(new, 999),
        ];
        assert_eq!(events, expected);
    }
}
