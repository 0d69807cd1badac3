//! Small calls that are under way at the same time go to the master together.
//!
//! ```text
//!   a ---------> out            b, c, d wait while two are out,
//!   b, c, d -------> out        and go as one when one of them is back
//! ```
//!
//! A call that is alone waits for nothing. With many, the master and the connection have few calls to
//! deal with, and each is answered by the second that is sent after it came. Only those go together
//! that cannot hold each other up.

use std::collections::HashMap;
use std::future::Future;
use std::hash::Hash;
use std::pin::Pin;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::oneshot;

use crate::error::Error;

/// How many calls of one kind may be out while others wait.
const OUT: usize = 2;

/// Calls of more entries than this go on their own, and so many go together at the most.
pub(crate) const SMALL: usize = 32;
const MOST: usize = 1024;

/// A call that others can join.
pub(crate) trait Gathered: Sized + Send + 'static {
    /// Those of one kind go together.
    type Kind: Clone + Eq + Hash + Send + 'static;
    /// What is answered.
    type Answer: Send + 'static;

    fn kind(&self) -> Self::Kind;

    /// For how many entries it asks.
    fn count(&self) -> usize;

    /// Asks for another's entries, too, behind its own.
    fn append(&mut self, other: Self);

    /// Takes the answer to the first so many entries.
    fn take(answer: &mut Self::Answer, count: usize) -> Self::Answer;
}

type Result<Request> = std::result::Result<<Request as Gathered>::Answer, Error>;
type Boxed<Output> = Pin<Box<dyn Future<Output = Output> + Send>>;
type Call<Request> = Box<dyn Fn(Request) -> Boxed<Result<Request>> + Send + Sync>;

/// Calls of one method.
pub(crate) struct Gather<Request: Gathered>(Arc<Inner<Request>>);

struct Inner<Request: Gathered> {
    call: Call<Request>,
    lines: Mutex<HashMap<Request::Kind, Line<Request>>>,
}

/// Calls of one kind.
struct Line<Request: Gathered> {
    out: usize,
    waiting: Vec<Waiting<Request>>,
}

struct Waiting<Request: Gathered> {
    request: Request,
    answer: oneshot::Sender<Result<Request>>,
}

/// What comes of asking.
enum Place<Request: Gathered> {
    Now(Request, Turn<Request>),
    Later(oneshot::Receiver<Result<Request>>),
}

/// One of the calls that may be out. Given back, those that wait have it.
struct Turn<Request: Gathered> {
    inner: Arc<Inner<Request>>,
    kind: Request::Kind,
}

impl<Request: Gathered> Gather<Request> {
    /// Calls that are carried out so.
    pub(crate) fn new<Answer>(call: impl Fn(Request) -> Answer + Send + Sync + 'static) -> Self
    where
        Answer: Future<Output = Result<Request>> + Send + 'static,
    {
        let call: Call<Request> = Box::new(move |request| Box::pin(call(request)));
        Self(Arc::new(Inner { call, lines: Mutex::default() }))
    }

    /// Asks, with others if there are. To be called within the store's runtime.
    pub(crate) async fn ask(&self, request: Request) -> Result<Request> {
        if request.count() > SMALL {
            return (self.0.call)(request).await;
        }
        match self.place(request) {
            Place::Now(request, turn) => {
                let answer = (self.0.call)(request).await;
                drop(turn);
                answer
            }
            Place::Later(answer) => answer.await.unwrap_or(Err(Error::Closed)),
        }
    }

    fn place(&self, request: Request) -> Place<Request> {
        let kind = request.kind();
        let mut lines = self.0.lines.lock();
        let line = lines.entry(kind.clone()).or_insert_with(Line::new);
        if line.out >= OUT {
            let (answer, receiver) = oneshot::channel();
            line.waiting.push(Waiting { request, answer });
            return Place::Later(receiver);
        }
        line.out += 1;
        Place::Now(request, Turn { inner: self.0.clone(), kind })
    }
}

impl<Request: Gathered> Line<Request> {
    fn new() -> Self {
        Self { out: 0, waiting: Vec::new() }
    }

    /// Those that go next, in the order in which they came.
    fn next(&mut self) -> Vec<Waiting<Request>> {
        self.waiting.retain(|waiting| !waiting.answer.is_closed());
        let mut count = 0;
        let fits = |waiting: &Waiting<Request>| {
            count += waiting.request.count();
            count <= MOST
        };
        let fitting = self.waiting.iter().map(fits).take_while(|fits| *fits).count();
        self.waiting.drain(..fitting).collect()
    }
}

impl<Request: Gathered> Inner<Request> {
    async fn carry_out(&self, together: Vec<Waiting<Request>>) {
        let mut counts = Vec::with_capacity(together.len());
        let mut all: Option<Request> = None;
        for Waiting { request, answer } in together {
            counts.push((request.count(), answer));
            match &mut all {
                Some(all) => all.append(request),
                None => all = Some(request),
            }
        }
        let Some(all) = all else { return };
        let mut answer = (self.call)(all).await;
        for (count, receiver) in counts {
            let answer = match &mut answer {
                Ok(answer) => Ok(Request::take(answer, count)),
                Err(error) => Err(error.clone()),
            };
            // Whoever waited may have gone.
            let _ = receiver.send(answer);
        }
    }
}

impl<Request: Gathered> Drop for Turn<Request> {
    /// Also where whoever asked has gone: others wait for this.
    fn drop(&mut self) {
        let mut lines = self.inner.lines.lock();
        let Some(line) = lines.get_mut(&self.kind) else { return };
        let next = line.next();
        if next.is_empty() {
            line.out -= 1;
            if line.out == 0 {
                lines.remove(&self.kind);
            }
            return;
        }
        // A runtime that ends drops what it is given, and this turn with it.
        drop(lines);
        let turn = Self { inner: self.inner.clone(), kind: self.kind.clone() };
        let carry_out = async move {
            turn.inner.carry_out(next).await;
            drop(turn);
        };
        // Without one the store is going: those that wait are told so.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(carry_out);
        }
    }
}

impl<Request: Gathered> std::fmt::Debug for Gather<Request> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Gather").field("kinds", &self.0.lines.lock().len()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::{Semaphore, mpsc};
    use tokio::task::{AbortHandle, JoinSet};

    use super::*;

    /// Numbers, whose answer are the numbers.
    impl Gathered for (u8, Vec<u32>) {
        type Kind = u8;
        type Answer = Vec<u32>;

        fn kind(&self) -> u8 {
            self.0
        }

        fn count(&self) -> usize {
            self.1.len()
        }

        fn append(&mut self, other: Self) {
            self.1.extend(other.1);
        }

        fn take(answer: &mut Vec<u32>, count: usize) -> Vec<u32> {
            answer.drain(..count).collect()
        }
    }

    struct Calls {
        gather: Arc<Gather<(u8, Vec<u32>)>>,
        /// How many entries each call has.
        seen: mpsc::UnboundedReceiver<usize>,
        /// So many may be answered.
        answers: Arc<Semaphore>,
    }

    fn calls() -> Calls {
        let (see, seen) = mpsc::unbounded_channel();
        let answers = Arc::new(Semaphore::new(0));
        let permitted = answers.clone();
        let gather = Gather::new(move |(_, numbers): (u8, Vec<u32>)| {
            let (see, permitted) = (see.clone(), permitted.clone());
            async move {
                see.send(numbers.len()).unwrap();
                permitted.acquire().await.unwrap().forget();
                if numbers.contains(&666) { Err(Error::Closed) } else { Ok(numbers) }
            }
        });
        Calls { gather: Arc::new(gather), seen, answers }
    }

    impl Calls {
        fn ask(
            &self,
            asked: &mut JoinSet<(Vec<u32>, Vec<u32>)>,
            kind: u8,
            numbers: Vec<u32>,
        ) -> AbortHandle {
            let gather = self.gather.clone();
            asked.spawn(async move {
                let answer = gather.ask((kind, numbers.clone())).await;
                (numbers, answer.unwrap_or_default())
            })
        }
    }

    #[tokio::test]
    async fn those_that_come_while_two_are_out_go_together_and_each_has_its_own_answer() {
        let mut calls = calls();
        let mut asked = JoinSet::new();
        for number in 0..20 {
            calls.ask(&mut asked, 0, vec![number; 1 + number as usize % 3]);
        }
        // Another kind waits for none of them, nor does a large one.
        calls.ask(&mut asked, 1, vec![50; 7]);
        calls.ask(&mut asked, 0, vec![60; SMALL + 1]);
        let mut first = Vec::new();
        for _ in 0..4 {
            first.push(calls.seen.recv().await.unwrap());
        }
        assert_eq!(first, [1, 2, 7, SMALL + 1]);
        assert!(calls.seen.try_recv().is_err());
        calls.answers.add_permits(1);
        let rest = (2..20).map(|number| 1 + number % 3).sum::<usize>();
        assert_eq!(calls.seen.recv().await, Some(rest));
        calls.answers.add_permits(100);
        while let Some(answered) = asked.join_next().await {
            let (numbers, answer) = answered.unwrap();
            assert_eq!(numbers, answer);
        }
        assert!(calls.gather.0.lines.lock().is_empty());
    }

    #[tokio::test]
    async fn who_goes_away_holds_up_nobody_and_who_waited_and_went_is_not_asked_for() {
        let mut calls = calls();
        let mut asked = JoinSet::new();
        let went: Vec<_> =
            (0..4).map(|number| calls.ask(&mut asked, 0, vec![number])).skip(2).collect();
        assert_eq!((calls.seen.recv().await, calls.seen.recv().await), (Some(1), Some(1)));
        for waiting in &went {
            waiting.abort();
        }
        for _ in &went {
            assert!(asked.join_next().await.unwrap().unwrap_err().is_cancelled());
        }
        calls.answers.add_permits(2);
        while let Some(answered) = asked.join_next().await {
            let (numbers, answer) = answered.unwrap();
            assert_eq!(numbers, answer);
        }
        assert!(calls.seen.try_recv().is_err());
        assert!(calls.gather.0.lines.lock().is_empty());

        let went: Vec<_> = (0..2).map(|number| calls.ask(&mut asked, 0, vec![number])).collect();
        calls.ask(&mut asked, 0, vec![7, 7, 7]);
        assert_eq!((calls.seen.recv().await, calls.seen.recv().await), (Some(1), Some(1)));
        for out in &went {
            out.abort();
        }
        assert_eq!(calls.seen.recv().await, Some(3));
        calls.answers.add_permits(1);
        let mut answered = Vec::new();
        while let Some(done) = asked.join_next().await {
            answered.extend(done.ok());
        }
        assert_eq!(answered, [(vec![7; 3], vec![7; 3])]);
    }

    #[tokio::test]
    async fn what_fails_fails_for_those_that_went_together_and_the_next_go_on() {
        let calls = calls();
        let mut asked = JoinSet::new();
        for number in [1, 2, 666, 3] {
            calls.ask(&mut asked, 0, vec![number]);
        }
        tokio::task::yield_now().await;
        calls.answers.add_permits(100);
        let mut failed = Vec::new();
        while let Some(answered) = asked.join_next().await {
            let (numbers, answer) = answered.unwrap();
            if answer.is_empty() {
                failed.push(numbers[0]);
            }
        }
        failed.sort_unstable();
        assert_eq!(failed, [3, 666]);
        assert_eq!(calls.gather.ask((0, vec![9])).await.unwrap(), [9]);
    }
}
