//! Whether one more request is let in.
//!
//! vLLM's two limits, both over everything that has not ended: its number, and the prompt tokens whose first
//! answer is still to come. What is let in holds a [`Ticket`], so the counts follow it on every way out.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use limpid_telemetry::observation::AdmissionLimit;

/// Settings; `None` is no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AdmissionLimits {
    /// Most requests that have not ended; each choice of a request is one.
    pub max_num_queued_reqs: Option<usize>,
    /// Prompt tokens waiting for their first answer at which no more is let in.
    pub max_num_queued_tokens: Option<usize>,
}

/// A request that was not let in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the server is full: {}", describe(self))]
pub struct NotAdmitted {
    /// The limit that was met.
    pub limit: AdmissionLimit,
    /// What it allows.
    pub allowed: usize,
    /// What is there.
    pub found: usize,
    /// What the request would add.
    pub asked: usize,
}

fn describe(refused: &NotAdmitted) -> String {
    let NotAdmitted { limit, allowed, found, asked } = refused;
    match limit {
        AdmissionLimit::MaxNumQueuedReqs => {
            format!("{found} requests are open and {asked} more were asked for; allowed: {allowed} in all")
        }
        AdmissionLimit::MaxNumQueuedTokens => {
            format!(
                "{found} prompt tokens wait for their first answer; allowed: requests while they are below {allowed}"
            )
        }
    }
}

#[derive(Debug, Default)]
struct Counts {
    requests: usize,
    /// Prompt tokens without an answer.
    backlog: usize,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Admission {
    limits: AdmissionLimits,
    counts: Arc<Mutex<Counts>>,
}

impl Admission {
    pub(super) fn new(limits: AdmissionLimits) -> Admission {
        Admission { limits, counts: Arc::default() }
    }

    /// Lets all choices of a request in, or none. The prompt counts once: the choices share it.
    pub(super) fn admit(
        &self,
        num_choices: usize,
        num_prompt_tokens: usize,
    ) -> Result<Vec<Ticket>, NotAdmitted> {
        let mut counts = lock(&self.counts);
        let refused = |limit, allowed, found, asked| Err(NotAdmitted { limit, allowed, found, asked });
        if let Some(allowed) = self.limits.max_num_queued_reqs
            && counts.requests.saturating_add(num_choices) > allowed
        {
            return refused(AdmissionLimit::MaxNumQueuedReqs, allowed, counts.requests, num_choices);
        }
        if let Some(allowed) = self.limits.max_num_queued_tokens
            && counts.backlog >= allowed
        {
            return refused(AdmissionLimit::MaxNumQueuedTokens, allowed, counts.backlog, num_prompt_tokens);
        }
        counts.requests += num_choices;
        counts.backlog += num_prompt_tokens;
        let ticket = |index| Ticket {
            counts: Arc::clone(&self.counts),
            backlog: if index == 0 { num_prompt_tokens } else { 0 },
        };
        Ok((0..num_choices).map(ticket).collect())
    }
}

/// One choice that was let in.
#[derive(Debug)]
pub(super) struct Ticket {
    counts: Arc<Mutex<Counts>>,
    backlog: usize,
}

impl Ticket {
    /// The prompt has its first answer.
    pub(super) fn prefilled(&mut self) {
        let backlog = std::mem::take(&mut self.backlog);
        if backlog > 0 {
            lock(&self.counts).backlog -= backlog;
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.prefilled();
        lock(&self.counts).requests -= 1;
    }
}

fn lock(counts: &Mutex<Counts>) -> MutexGuard<'_, Counts> {
    counts.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn admission(max_num_queued_reqs: Option<usize>, max_num_queued_tokens: Option<usize>) -> Admission {
        Admission::new(AdmissionLimits { max_num_queued_reqs, max_num_queued_tokens })
    }

    #[test]
    fn every_choice_takes_a_place_until_it_ends() {
        let admission = admission(Some(3), None);
        let mut first = admission.admit(2, 10).expect("two of three");
        let refused = admission.admit(2, 10).expect_err("four of three");
        assert_eq!(refused.limit, AdmissionLimit::MaxNumQueuedReqs);
        assert_eq!((refused.allowed, refused.found, refused.asked), (3, 2, 2));
        let _second = admission.admit(1, 10).expect("three of three");
        first.pop();
        assert!(admission.admit(2, 10).is_err());
        drop(first);
        assert!(admission.admit(2, 10).is_ok());
    }

    #[test]
    fn a_prompt_is_backlog_once_until_its_first_answer() {
        let admission = admission(None, Some(10));
        let mut first = admission.admit(3, 9).expect("nothing waits yet");
        let second = admission.admit(1, 100).expect("9 tokens wait, which is below 10");
        let refused = admission.admit(1, 1).expect_err("109 tokens wait");
        assert_eq!((refused.limit, refused.found), (AdmissionLimit::MaxNumQueuedTokens, 109));
        drop(second);
        let _third = admission.admit(1, 1).expect("9 tokens wait again");
        assert!(admission.admit(1, 1).is_err());
        first[0].prefilled();
        first[0].prefilled();
        assert!(admission.admit(1, 1).is_ok(), "one token waits");
    }

    #[test]
    fn limits_of_zero_let_nothing_in_and_no_limits_let_everything_in() {
        assert!(admission(Some(0), None).admit(1, 1).is_err());
        assert!(admission(None, Some(0)).admit(1, 1).is_err());
        assert!(admission(None, None).admit(1 << 20, 1 << 20).is_ok());
    }
}
