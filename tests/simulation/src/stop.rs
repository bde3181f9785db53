//! A flow that is stopped on its way: at a point between two writes its process dies, is stopped for a while, or
//! something breaks around it. A stopped flow is a future that is held and not polled: it goes on later, as a zombie.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use domain::flow::{FaultPoint, Faults};
use redis::aio::MultiplexedConnection;
use tokio::sync::Notify;

use crate::lane::{Lane, OldCopy, fail_over, lose_keys};
use crate::op::Told;
use crate::proxy::{Link, Proxy};

/// How long a link stays deaf: then its connections end, and what was done on them is unknown.
const DEAF_FOR: Duration = Duration::from_millis(30);
/// No flow takes so long: it hangs.
const HANGS_AFTER: Duration = Duration::from_secs(20);

/// What happens at a point.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Break {
    /// The process dies.
    Kill,
    /// The request is given up, as when its caller hangs up: the process lives on.
    GiveUp,
    /// The process is stopped; others go on.
    Pause,
    /// Redis is flushed.
    LoseRedis,
    /// Redis fails over to an older copy of itself.
    FailOver,
    /// Redis cannot be reached for the rest of the flow.
    CutRedis,
    /// All connections to Postgres break.
    BreakPg,
    /// Postgres does what it is asked, and after so many answers none arrives.
    DeafPg(u32),
    /// The same of Redis.
    DeafRedis(u32),
}

impl Break {
    /// In words.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Kill => "the process dies",
            Self::GiveUp => "the request is given up",
            Self::Pause => "the process is stopped",
            Self::LoseRedis => "Redis is flushed",
            Self::FailOver => "Redis fails over to an older copy",
            Self::CutRedis => "Redis cannot be reached",
            Self::BreakPg => "connections to Postgres break",
            Self::DeafPg(_) => "an answer of Postgres is lost",
            Self::DeafRedis(_) => "an answer of Redis is lost",
        }
    }
}

impl fmt::Display for Break {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What happens to a flow, and when: at the point that it passes as its `at`th, from 0.
#[derive(Debug, Clone, Copy)]
pub struct Incident {
    /// The point, by its number.
    pub at: usize,
    /// What happens there.
    pub what: Break,
}

/// What a flow came to for now.
pub enum Driven {
    /// It answered.
    Told(Box<Told>),
    /// It stands at that point.
    Stopped(FaultPoint),
    /// It does not end.
    Hangs,
}

/// What hook and driver share.
#[derive(Default)]
struct Watch {
    passed: AtomicUsize,
    hit: Mutex<Option<FaultPoint>>,
    stopped: Notify,
    resume: Notify,
}

/// A flow under way.
pub struct Flow {
    future: Pin<Box<dyn Future<Output = Told>>>,
    watch: Arc<Watch>,
}

impl Flow {
    /// A flow that has not begun; `make` gets the faults that it must run with.
    pub fn new(
        lane: &Lane,
        process: usize,
        incident: Option<Incident>,
        make: impl FnOnce(Faults) -> Pin<Box<dyn Future<Output = Told>>>,
    ) -> Self {
        let watch = Arc::new(Watch::default());
        let faults = incident.map_or_else(Faults::default, |incident| {
            let breaker = Breaker::new(lane, process, incident.what, &watch);
            let watch = Arc::clone(&watch);
            Faults::at_each(move |point| {
                if watch.passed.fetch_add(1, Ordering::SeqCst) != incident.at {
                    return Box::pin(std::future::ready(()));
                }
                *watch.hit.lock().unwrap_or_else(PoisonError::into_inner) = Some(point);
                Box::pin(breaker.clone().act())
            })
        });
        Self { future: make(faults), watch }
    }

    /// Lets it run until it answers or stops.
    pub async fn run(&mut self) -> Driven {
        tokio::select! {
            biased;
            told = &mut self.future => Driven::Told(Box::new(told)),
            () = self.watch.stopped.notified() => {
                self.hit().map_or(Driven::Hangs, Driven::Stopped)
            }
            () = tokio::time::sleep(HANGS_AFTER) => Driven::Hangs,
        }
    }

    /// Lets it go on from where it was stopped.
    pub async fn go_on(&mut self) -> Driven {
        self.watch.resume.notify_one();
        self.run().await
    }

    /// The point at which its incident happened, if it has.
    #[must_use]
    pub fn hit(&self) -> Option<FaultPoint> {
        *self.watch.hit.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What is needed to break something from inside a flow.
#[derive(Clone)]
struct Breaker {
    what: Break,
    watch: Arc<Watch>,
    admin: MultiplexedConnection,
    prefix: String,
    copy: Arc<OldCopy>,
    pg: Arc<Proxy>,
    redis: Arc<Proxy>,
}

impl Breaker {
    fn new(lane: &Lane, process: usize, what: Break, watch: &Arc<Watch>) -> Self {
        let process = &lane.processes[process];
        Self {
            what,
            watch: Arc::clone(watch),
            admin: lane.redis.clone(),
            prefix: lane.prefix.clone(),
            copy: lane.copy(),
            pg: Arc::clone(&process.pg),
            redis: Arc::clone(&process.redis),
        }
    }

    async fn act(mut self) {
        match self.what {
            Break::Kill | Break::GiveUp => {
                self.watch.stopped.notify_one();
                std::future::pending::<()>().await;
            }
            Break::Pause => {
                self.watch.stopped.notify_one();
                self.watch.resume.notified().await;
            }
            // Where even this fails, Redis is away: that too is a break.
            Break::LoseRedis => drop(lose_keys(&mut self.admin, &self.prefix).await),
            Break::FailOver => drop(fail_over(&mut self.admin, &self.prefix, &self.copy).await),
            Break::CutRedis => self.redis.set(Link::Cut),
            Break::BreakPg => {
                self.pg.set(Link::Cut);
                tokio::task::yield_now().await;
                tokio::time::sleep(Duration::from_millis(2)).await;
                self.pg.set(Link::Whole);
            }
            Break::DeafPg(answers) => deafen(&self.pg, answers),
            Break::DeafRedis(answers) => deafen(&self.redis, answers),
        }
    }
}

fn deafen(link: &Arc<Proxy>, answers: u32) {
    link.deafen_after(answers);
    let link = Arc::clone(link);
    tokio::spawn(async move {
        tokio::time::sleep(DEAF_FOR).await;
        link.hear_again();
    });
}
