//! The management interface of a host's NIC switch.
//!
//! Invariant: each command gets its own answer. Representors' frames wait for a receiver, up to a limit.

use crate::runtime::lock;
use bytes::Bytes;
use core::future::poll_fn;
use core::task::{Poll, Waker};
use nic_sim::eswitch::{EswitchAnswer, EswitchCommand};
use nic_sim::{EswitchDriver, Vport};
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};

/// A manager of the switch in a host's NIC. A clone manages the same switch.
///
/// ```
/// use nic_sim::eswitch::{EswitchAnswer, EswitchCommand};
/// use nic_sim::switch::SwitchMode;
/// use nic_sim::{NicConfig, SwitchConfig};
/// use offload_base::Seed;
/// use offload_host_stack::TcpConfig;
/// use offload_testbed::Testbed;
///
/// let mut bed = Testbed::builder(Seed(1))
///     .host("hypervisor", NicConfig::default(), TcpConfig::default())
///     .switched(SwitchConfig::default())
///     .vm(0, "guest", NicConfig::default(), TcpConfig::default())
///     .build()?;
/// let eswitch = bed.host(0).eswitch().expect("its NIC has one").clone();
/// assert_eq!(bed.run(eswitch.ask(EswitchCommand::Mode(SwitchMode::Switchdev))), EswitchAnswer::Done);
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Eswitch {
    shared: Arc<Mutex<EswitchState>>,
}

#[derive(Debug)]
struct EswitchState {
    driver: EswitchDriver,
    /// Commands issued and answers received so far. Answers come in the order of commands.
    asked: u64,
    answered: u64,
    answers: BTreeMap<u64, EswitchAnswer>,
    frames: VecDeque<(Vport, Bytes)>,
    waiting: Vec<Waker>,
}

impl Eswitch {
    pub(super) fn new(driver: EswitchDriver) -> Eswitch {
        let (answers, frames, waiting) = (BTreeMap::new(), VecDeque::new(), Vec::new());
        let shared = EswitchState { driver, asked: 0, answered: 0, answers, frames, waiting };
        Eswitch { shared: Arc::new(Mutex::new(shared)) }
    }

    /// Sends a command to the switch and waits for the answer.
    pub async fn ask(&self, command: EswitchCommand) -> EswitchAnswer {
        let (mut command, mut number) = (Some(command), 0);
        poll_fn(|cx| {
            let mut shared = lock(&self.shared);
            if let Some(asked) = command.take() {
                match shared.driver.command(asked) {
                    Ok(()) => {
                        number = shared.asked;
                        shared.asked += 1;
                    }
                    // The ring is full: the command waits here and is tried again at the next wake.
                    Err(back) => command = Some(*back),
                }
            }
            // Only a command that the ring has accepted has a number and an answer.
            let answer = if command.is_none() { shared.answers.remove(&number) } else { None };
            answer.map_or_else(|| shared.wait(cx.waker()), Poll::Ready)
        })
        .await
    }

    /// Waits for the next frame that no rule matched, and returns its ingress port too.
    pub async fn receive(&self) -> (Vport, Bytes) {
        poll_fn(|cx| {
            let mut shared = lock(&self.shared);
            let frame = shared.frames.pop_front();
            frame.map_or_else(|| shared.wait(cx.waker()), Poll::Ready)
        })
        .await
    }

    /// Sends a frame out of `port`, by the port's representor. Returns false if the queue is full.
    pub fn send(&self, port: Vport, frame: Bytes) -> bool {
        lock(&self.shared).driver.send(port, frame)
    }

    /// Delivers the device's answers and frames. Never ends.
    pub(super) async fn serve(self) {
        poll_fn(|cx| {
            let mut shared = lock(&self.shared);
            shared.driver.register(cx.waker());
            shared.hear();
            Poll::<()>::Pending
        })
        .await;
    }
}

impl EswitchState {
    fn wait<T>(&mut self, waker: &Waker) -> Poll<T> {
        // Several askers wait at a time; one that polls again must not be woken twice.
        if !self.waiting.iter().any(|other| other.will_wake(waker)) {
            self.waiting.push(waker.clone());
        }
        Poll::Pending
    }

    fn hear(&mut self) {
        while let Some(answer) = self.driver.answer() {
            self.answers.insert(self.answered, answer);
            self.answered += 1;
        }
        // Frames beyond the limit stay in the ring, which drops and counts its overflow.
        while self.frames.len() < MAX_FRAMES
            && let Some(frame) = self.driver.receive()
        {
            self.frames.push_back(frame);
        }
        self.waiting.drain(..).for_each(Waker::wake);
    }
}

/// Maximum number of frames that wait here. Further frames wait in the ring, which drops and counts its overflow.
const MAX_FRAMES: usize = 256;
