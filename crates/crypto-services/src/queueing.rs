//! Waiting times by queueing theory: exact where a closed form exists, otherwise by Allen and Cunneen's approximation.
//!
//! Rates are per unit of the service times.

/// An M/G/c queue: Poisson arrivals, any service times, c servers.
///
/// ```
/// use crypto_services::queueing::QueueModel;
///
/// // Half busy, service always one second: M/D/1 waits half a second on average.
/// let queue = QueueModel { arrivals: 0.5, service: 1.0, variation: 0.0, servers: 1 };
/// assert_eq!(queue.mean_wait(), Some(0.5));
/// assert_eq!(QueueModel { arrivals: 1.5, ..queue }.mean_wait(), None, "it never catches up");
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct QueueModel {
    /// Arrivals per unit of time.
    pub arrivals: f64,
    /// Mean service time.
    pub service: f64,
    /// Squared coefficient of variation of service times: variance divided by the squared mean. 0: constant; 1:
    /// exponential.
    pub variation: f64,
    /// Number of servers.
    pub servers: u32,
}

impl QueueModel {
    /// Returns the utilisation of each server, from 0 to 1.
    pub(crate) fn utilisation(&self) -> f64 {
        self.arrivals * self.service / f64::from(self.servers)
    }

    /// Returns the share of arrivals that wait (Erlang C), exact for exponential service. `None` if the queue grows
    /// without limit.
    pub(crate) fn waiting_share(&self) -> Option<f64> {
        let (load, busy) = (self.arrivals * self.service, self.utilisation());
        // With a utilisation of one or more, the queue never empties.
        if busy >= 1.0 {
            return None;
        }
        // Erlang B by recursion, which neither overflows nor cancels.
        let lost = (1..=self.servers).fold(1.0, |lost, servers| load * lost / (f64::from(servers) + load * lost));
        Some(lost / (1.0 - busy * (1.0 - lost)))
    }

    /// Returns the mean wait: exact for one server (Pollaczek and Khinchine) and for exponential service, otherwise
    /// approximate.
    pub fn mean_wait(&self) -> Option<f64> {
        let exponential = self.waiting_share()? * self.service / (f64::from(self.servers) * (1.0 - self.utilisation()));
        Some(exponential * (1.0 + self.variation) / 2.0)
    }

    /// Returns the wait that a `share` of arrivals exceeds; 0 if fewer wait at all. The tail of the wait is assumed to
    /// be exponential, which is exact for exponential service, and close elsewhere if few arrivals wait longer. `None`
    /// if the queue grows without limit.
    ///
    /// ```
    /// use crypto_services::queueing::QueueModel;
    ///
    /// // M/M/1, half busy: of 100, 50 wait, and one waits longer than 2 ln 50 times the service.
    /// let queue = QueueModel { arrivals: 0.5, service: 1.0, variation: 1.0, servers: 1 };
    /// let wait = queue.wait_exceeded_by(0.01).expect("it catches up");
    /// assert!((wait - 2.0 * 50f64.ln()).abs() < 1e-9);
    /// assert_eq!(queue.wait_exceeded_by(0.6), Some(0.0));
    /// ```
    pub fn wait_exceeded_by(&self, share: f64) -> Option<f64> {
        let waiting = self.waiting_share()?;
        if waiting <= share {
            return Some(0.0);
        }
        // The mean wait of waiting arrivals is the mean wait divided by their share.
        Some(self.mean_wait()? / waiting * (waiting / share).ln())
    }

    /// Returns the smallest number of servers, up to `most`, with a mean wait of at most `target`.
    ///
    /// ```
    /// use crypto_services::queueing::QueueModel;
    ///
    /// let queue = QueueModel { arrivals: 3.0, service: 1.0, variation: 1.0, servers: 1 };
    /// assert_eq!(queue.servers_for(0.1, 64), Some(6));
    /// assert_eq!(queue.servers_for(0.1, 5), None);
    /// ```
    pub fn servers_for(&self, target: f64, most: u32) -> Option<u32> {
        (1..=most).find(|servers| {
            let queue = QueueModel { servers: *servers, ..*self };
            queue.mean_wait().is_some_and(|wait| wait <= target)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Pipeline, Service, ServiceChain};
    use offload_base::Seed;

    const PACKETS: usize = 16_000_000;

    /// Draws from an exponential distribution with mean 1.
    fn exponential(rng: &mut offload_base::Rng) -> f64 {
        -((rng.next_u64() >> 11) as f64 + 0.5).ln() + 53.0 * std::f64::consts::LN_2
    }

    fn within_a_percent(measured: f64, predicted: f64) {
        assert!((measured / predicted - 1.0).abs() < 0.01, "measured {measured}, predicted {predicted}");
    }

    /// Simulates a first-come, first-served queue. Returns the mean wait.
    fn simulate(servers: usize, busy: f64, mut service: impl FnMut(&mut offload_base::Rng) -> f64) -> f64 {
        let mut rng = Seed(11).stream("queue");
        let mut free = vec![0.0; servers];
        let (mut now, mut waited) = (0.0, 0.0);
        for _ in 0..PACKETS {
            now += exponential(&mut rng) / (busy * servers as f64);
            let next = (0..servers).fold(0, |best, server| if free[server] < free[best] { server } else { best });
            let start = f64::max(now, free[next]);
            waited += start - now;
            free[next] = start + service(&mut rng);
        }
        waited / PACKETS as f64
    }

    #[test]
    fn exponential_service_matches_erlang() {
        for servers in [1, 2, 4, 8] {
            let queue = QueueModel { arrivals: 0.7 * f64::from(servers), service: 1.0, variation: 1.0, servers };
            within_a_percent(simulate(servers as usize, 0.7, exponential), queue.mean_wait().unwrap());
        }
    }

    /// IMIX (7:4:1) through a single stage of a chain, which is an M/G/1 queue.
    #[test]
    fn chain_matches_pollaczek_and_khinchine() {
        let chain = ServiceChain::new(&[Service::Aes128]).unwrap();
        let interval = chain.bottleneck().interval_ns();
        let sizes: Vec<u32> = [(7, 64u32), (4, 594), (1, 1518)]
            .into_iter()
            .flat_map(|(share, bytes)| vec![bytes.div_ceil(16); share])
            .collect();
        let moment =
            |power: i32| sizes.iter().map(|blocks| (f64::from(*blocks) * interval).powi(power)).sum::<f64>() / 12.0;
        let (mean, square) = (moment(1), moment(2));
        let queue =
            QueueModel { arrivals: 0.6 / mean, service: mean, variation: square / (mean * mean) - 1.0, servers: 1 };

        let mut rng = Seed(3).stream("imix");
        let mut pipeline = Pipeline::new(&chain);
        let (mut now, mut waited) = (0.0, 0.0);
        for _ in 0..PACKETS {
            now += exponential(&mut rng) / queue.arrivals;
            waited += pipeline.pass(now, sizes[(rng.next_u64() % 12) as usize]).waited_ns;
        }
        within_a_percent(waited / PACKETS as f64, queue.mean_wait().unwrap());
    }
}
