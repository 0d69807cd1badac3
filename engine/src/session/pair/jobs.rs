//! Transfers, as their callers know them.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use kvferry_proto::TransferId;

use super::{SLACK, World};
use crate::transfer::{Op, Outcome, Spec};

/// What the caller of a transfer knows of it.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) op: Op,
    pub(super) slices: u32,
    pub(super) notification: bool,
    pub(super) by_reference: bool,
    pub(super) deadline: Instant,
    pub(super) ended: Option<Outcome>,
}

pub(super) type Token = usize;

impl World {
    pub(super) fn submit(&mut self) {
        let op = if self.random.one_in(2) { Op::Write } else { Op::Read };
        let slices = u32::try_from(self.random.below(7)).unwrap();
        let notification = slices == 0 || self.random.one_in(2);
        let allowed = Duration::from_micros(200_000 + self.random.below(6_000_000));
        let by_reference = self.random.one_in(2);
        let deadline = self.now + allowed;
        let job = Job { op, slices, notification, by_reference, deadline, ended: None };
        let spec = Spec {
            op,
            slice_bytes: vec![1; slices as usize],
            notifies: notification,
            by_reference,
            begun: self.now,
            deadline: job.deadline,
        };
        let token = self.jobs.len();
        let incarnation = self.session.known.unwrap_or(self.target.incarnation);
        let id = self.session.submit(self.now, incarnation, spec, token).unwrap();
        self.jobs.push(job);
        self.by_id.insert(id, token);
    }

    pub(super) fn end(&mut self, id: TransferId, token: Token, outcome: Outcome) {
        self.by_id.remove(&id);
        let job = &mut self.jobs[token];
        assert!(job.ended.is_none(), "{id} ended twice: {:?}, {outcome:?}", job.ended);
        assert!(
            self.now <= job.deadline + SLACK,
            "{id} ended late by {:?} with {outcome:?}: {job:?}",
            self.now - job.deadline
        );
        if let Outcome::Done = outcome {
            let there = self.target.stored.get(&token).map_or(0, BTreeSet::len);
            let complete = job.op == Op::Read || there == job.slices as usize;
            assert!(complete, "{id} is done with {there} of {} slices", job.slices);
            let told = self.target.delivered.contains_key(&token);
            assert_eq!(told, job.notification, "{id} is done, its notification is not");
        }
        job.ended = Some(outcome);
    }
}
