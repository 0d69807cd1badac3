//! What an iteration took of adapters and the kernel, apart from time.

use kvferry_engine::RdmaCounts;

use crate::calls::Calls;

/// How many calls are named, of those that were made most often.
const NAMED: usize = 6;

/// Of both processes.
#[derive(Debug)]
pub(crate) struct Counted {
    pub(crate) work: RdmaCounts,
    /// Or why they could not be counted.
    pub(crate) calls: anyhow::Result<Calls>,
}

impl Counted {
    /// What was done from one moment to another.
    pub(crate) fn between(before: RdmaCounts, after: RdmaCounts) -> RdmaCounts {
        RdmaCounts {
            requests: after.requests - before.requests,
            doorbells: after.doorbells - before.doorbells,
            completions: after.completions - before.completions,
            armed: after.armed - before.armed,
        }
    }

    /// All system calls together.
    pub(crate) fn calls(&self) -> Option<u64> {
        self.calls.as_ref().ok().map(|calls| calls.values().sum())
    }

    /// Those that were made most often, each scaled by this, or why nothing is known.
    pub(crate) fn most_frequent(&self, scale: f64) -> String {
        let calls = match &self.calls {
            Ok(calls) => calls,
            Err(error) => return format!("not counted: {error:#}"),
        };
        let mut sorted: Vec<_> = calls.iter().collect();
        sorted.sort_by_key(|(_, count)| std::cmp::Reverse(**count));
        let named = sorted.into_iter().take(NAMED);
        let named = named.map(|(call, count)| format!("{call} {:.0}", *count as f64 * scale));
        named.collect::<Vec<_>>().join(", ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_named_by_how_often_they_were_made() {
        let calls = [("read", 3), ("epoll_wait", 40)].map(|(call, count)| (call.to_owned(), count));
        let counted = Counted { work: RdmaCounts::default(), calls: Ok(Calls::from(calls)) };
        assert_eq!(counted.calls(), Some(43));
        assert_eq!(counted.most_frequent(2.0), "epoll_wait 80, read 6");
    }
}
