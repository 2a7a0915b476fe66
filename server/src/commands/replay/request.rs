//! A request for a trial, counted on this node.
//!
//! Here: the checks of the request, the one trial at a time, the time limit. Not here: the replay
//! (`replay`), the thread and the form of the answer (`admin`).

use serde::{Deserialize, Serialize};
use tollgate_http::ServiceError;
use tollgate_limits::{Limits, LimitsError};

use super::{ReplayError, Trial, TryCounts};
use crate::limits::LimitsHandle;
use crate::runtime::service::Service;

/// Longest time of a replay, in milliseconds.
const REPLAY_MS_MAX: u64 = 5000;
/// Longest time that can be asked for, in minutes: two days.
const TRY_MINUTES_MAX: u64 = 2880;

/// A request for a trial.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct TryRequest {
    /// The name of the limit.
    pub(crate) name: String,
    /// The TOML of its `[[limit]]`.
    pub(crate) toml: String,
    /// The last minutes to replay, from 1 to 2,880.
    pub(crate) minutes: u64,
}

impl TryRequest {
    /// Checks the request and returns the limits that it tries.
    ///
    /// # Errors
    ///
    /// The text has a mistake, or the time is out of bounds.
    pub(crate) fn check(&self, service: &Service) -> Result<Limits, ServiceError> {
        if !(1..=TRY_MINUTES_MAX).contains(&self.minutes) {
            let detail = format!("minutes is a number from 1 to {TRY_MINUTES_MAX}");
            return Err(ServiceError::Invalid { detail, line: None });
        }
        let now = service.limits().load();
        now.limits().with_trial(&self.name, &self.toml).map_err(invalid)
    }

    /// Replays the recording of this node; counts of several nodes add up. Blocks for up to 5 s.
    /// `show` returns the form in which a counted key is shown, of its hash, its text and the name
    /// of its limit.
    ///
    /// # Errors
    ///
    /// The text has a mistake, nothing is recorded, another trial runs, or the replay needs more
    /// than it may use.
    pub(crate) fn count(
        &self,
        service: &Service,
        show: &dyn Fn(u64, &[u8], &str) -> String,
    ) -> Result<TryCounts, ServiceError> {
        let now = service.limits().load();
        let then = LimitsHandle::new(self.check(service)?, 1).load();
        let recorder = service.recorder().ok_or_else(|| {
            let reason = "nothing is recorded: start the server with --recorder";
            ServiceError::Conflict(reason.to_owned())
        })?;
        let _only = recorder.start_replay().ok_or_else(|| {
            ServiceError::Unavailable("another limit is being tried: try again soon".to_owned())
        })?;
        let clock = service.clock();
        let (start, recording) = (clock.now(), recorder.recording());
        let trial = Trial {
            name: &self.name,
            now: &now,
            then: &then,
            shards: service.shards(),
            origin_unix_ns: clock.unix_ns(engine::Nanos(0)),
            span_ms: (start.unix_ms.saturating_sub(self.minutes * 60_000), start.unix_ms),
        };
        let end_ms = start.mono.millis() + REPLAY_MS_MAX;
        let is_over = || clock.now().mono.millis() >= end_ms;
        trial.replay(&recording, &is_over, show).map_err(|error| match error {
            ReplayError::TooLong { .. } => ServiceError::Unavailable(error.to_string()),
            ReplayError::NoRoom => ServiceError::Full(error.to_string()),
        })
    }
}

fn invalid(error: LimitsError) -> ServiceError {
    match error {
        LimitsError::Refused { line, reason, .. } => {
            ServiceError::Invalid { detail: reason, line: Some(line) }
        }
        error => ServiceError::Invalid { detail: error.to_string(), line: None },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn service(recorder: &str) -> Service {
        let flags = ["-m", "8", "--http", "127.0.0.1:0", "--recorder", recorder];
        Service::of_flags(&flags, Limits::default())
    }

    fn request(minutes: u64, policy: &str) -> TryRequest {
        let toml = format!("[[limit]]\nname = \"a\"\nmatch = \"a:{{x}}\"\npolicy = \"{policy}\"\n");
        TryRequest { name: "a".to_owned(), toml, minutes }
    }

    fn refusal(service: &Service, request: &TryRequest) -> String {
        let counted = request.count(service, &|_, _, _| String::new());
        counted.expect_err("it is refused").to_string()
    }

    #[test]
    fn bad_requests_are_refused_before_anything_is_replayed() {
        let service = service("0");
        assert!(refusal(&service, &request(0, "block")).contains("from 1 to 2880"));
        assert!(refusal(&service, &request(2881, "block")).contains("from 1 to 2880"));
        let mistake = request(60, "fixed:0/s").count(&service, &|_, _, _| String::new());
        assert!(matches!(mistake, Err(ServiceError::Invalid { line: Some(4), .. })), "{mistake:?}");
        assert!(refusal(&service, &request(60, "block")).contains("--recorder"));
    }

    #[test]
    fn second_trial_at_a_time_is_refused() {
        let service = service("64k");
        let recorder = service.recorder().expect("it records");
        let first = recorder.start_replay();
        assert!(refusal(&service, &request(60, "block")).contains("another limit"));
        drop(first);
        let counted = request(60, "block").count(&service, &|_, _, _| String::new());
        assert_eq!(counted, Ok(TryCounts::default()));
    }
}
