//! The results of a run, in text and as JSON.

use std::fmt;

use distlock_report::Latencies;

/// The results of one run.
#[derive(Debug)]
pub(crate) struct HandOverResults {
    /// Times of one round trip to the server.
    pub(super) trips: Latencies,
    /// Times of one durable change of a row. The list is empty if the store's changes are not
    /// measured.
    pub(super) changes: Latencies,
    /// Times from the start of a release to the grant to another process.
    pub(super) passed: Latencies,
    /// The same of the exclusive lock, if the run measured it as well.
    pub(super) exclusive: Option<Latencies>,
    /// Grants of each process.
    pub(super) grants: Vec<u64>,
    /// Requests of all processes together.
    pub(super) requests: u64,
    pub(super) seconds: f64,
}

impl HandOverResults {
    /// Returns a quantile of the times, in microseconds.
    fn quantile_micros(latencies: &Latencies, share: f64) -> f64 {
        latencies.quantile(share).as_secs_f64() * 1e6
    }

    /// Returns the median time of these hand-overs, divided by the median time of a round trip.
    fn in_trips(&self, passed: &Latencies) -> f64 {
        Self::quantile_micros(passed, 0.5) / Self::quantile_micros(&self.trips, 0.5)
    }

    /// Returns [`in_trips`](Self::in_trips) of the exclusive lock.
    fn exclusive_in_trips(&self) -> Option<f64> {
        self.exclusive.as_ref().map(|passed| self.in_trips(passed))
    }

    /// Returns the median time of a hand-over, divided by the median time of one durable change of
    /// a row. Returns `None` if the store's durable changes are not measured.
    fn hand_over_per_change(&self) -> Option<f64> {
        let change = Self::quantile_micros(&self.changes, 0.5);
        (self.changes.count() > 0).then(|| Self::quantile_micros(&self.passed, 0.5) / change)
    }

    /// Returns the largest number of grants of one process, divided by the smallest.
    #[expect(clippy::cast_precision_loss, reason = "counts of some thousands")]
    fn unfairness(&self) -> f64 {
        let most = self.grants.iter().max().copied().unwrap_or(0);
        let least = self.grants.iter().min().copied().unwrap_or(0);
        most as f64 / least as f64
    }

    /// Returns the largest share of all grants that one process received.
    #[expect(clippy::cast_precision_loss, reason = "counts of some thousands")]
    fn largest_share(&self) -> f64 {
        let most = self.grants.iter().max().copied().unwrap_or(0);
        most as f64 / self.grants.iter().sum::<u64>() as f64
    }

    /// Returns the number of requests of all processes, divided by the number of times that the
    /// lock passed from one process to another.
    #[expect(clippy::cast_precision_loss, reason = "counts of some thousands")]
    fn requests_per_hand_over(&self) -> f64 {
        self.requests as f64 / self.passed.count() as f64
    }

    /// Returns the number of requests of all processes, divided by the number of grants.
    #[expect(clippy::cast_precision_loss, reason = "counts of some thousands")]
    fn requests_per_grant(&self) -> f64 {
        self.requests as f64 / self.grants.iter().sum::<u64>() as f64
    }

    /// Returns the number of grants of all processes in a second.
    #[expect(clippy::cast_precision_loss, reason = "counts of some thousands")]
    fn grants_per_second(&self) -> f64 {
        self.grants.iter().sum::<u64>() as f64 / self.seconds
    }

    /// Returns the average number of requests of one process in a second.
    #[expect(clippy::cast_precision_loss, reason = "counts of some thousands")]
    fn requests_per_second(&self) -> f64 {
        self.requests as f64 / self.seconds / self.grants.len() as f64
    }

    /// Returns the results as one JSON object.
    pub(crate) fn json(&self) -> serde_json::Value {
        let per_change = self.hand_over_per_change();
        serde_json::json!({
            "processes": self.grants.len(),
            "seconds": self.seconds,
            "passed": self.passed.count(),
            "trip_p50_us": Self::quantile_micros(&self.trips, 0.5),
            "passed_p50_us": Self::quantile_micros(&self.passed, 0.5),
            "passed_p99_us": Self::quantile_micros(&self.passed, 0.99),
            "passed_over_trip": self.in_trips(&self.passed),
            "exclusive_over_trip": self.exclusive_in_trips(),
            "change_p50_us": per_change.map(|_| Self::quantile_micros(&self.changes, 0.5)),
            "passed_over_change": per_change,
            "requests": self.requests,
            "requests_a_pass": self.requests_per_hand_over(),
            "requests_a_grant": self.requests_per_grant(),
            "requests_a_second": self.requests_per_second(),
            "grants": self.grants,
            "grants_a_second": self.grants_per_second(),
            "unfairness": self.unfairness(),
            "largest_share": self.largest_share(),
        })
    }
}

impl fmt::Display for HandOverResults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.passed.count() == 0 {
            return writeln!(
                f,
                "{} processes for {:.1} s: the lock was never passed on; {:.1} grants a second; \
                 {} requests, {:.2} a second of each process",
                self.grants.len(),
                self.seconds,
                self.grants_per_second(),
                self.requests,
                self.requests_per_second(),
            );
        }
        writeln!(
            f,
            "{} processes for {:.1} s: passed on {} times, from release to grant \
             p50 {:.0} us, p99 {:.0} us",
            self.grants.len(),
            self.seconds,
            self.passed.count(),
            Self::quantile_micros(&self.passed, 0.5),
            Self::quantile_micros(&self.passed, 0.99),
        )?;
        writeln!(
            f,
            "one trip p50 {:.0} us: {:.2} times",
            Self::quantile_micros(&self.trips, 0.5),
            self.in_trips(&self.passed),
        )?;
        if let Some(exclusive) = self.exclusive_in_trips() {
            writeln!(f, "the exclusive lock passed on in {exclusive:.2} trips")?;
        }
        writeln!(
            f,
            "{} requests: {:.1} for each time it passed on, {:.1} for each grant",
            self.requests,
            self.requests_per_hand_over(),
            self.requests_per_grant(),
        )?;
        if let Some(ratio) = self.hand_over_per_change() {
            let change = Self::quantile_micros(&self.changes, 0.5);
            writeln!(f, "one durable change p50 {change:.0} us: {ratio:.2} times")?;
        }
        writeln!(
            f,
            "grants {:?}: {:.2} times as many for the luckiest as for the unluckiest, \
             {:.0} % of all",
            self.grants,
            self.unfairness(),
            self.largest_share() * 100.0,
        )
    }
}
