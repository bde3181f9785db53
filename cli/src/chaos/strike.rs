//! Carries the plan out: strikes, waits, mends, and writes down what it did.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::Result;
use serde::Serialize;
use simulation::chaos::books::Stores;
use simulation::proxy::Link;

use super::faults::{Fault, FaultKind, Store};
use super::house::{House, Member, Role};
use super::record::locked;
use crate::output::tell;
use crate::services::{Services, StartServiceError};
use domain::runtime::clock::system_ms;

/// How much of its end the append-only file loses where Redis comes back older.
const LOST_BYTES: u64 = 64 * 1024;

/// A fault that happened.
#[derive(Debug, Clone, Serialize)]
pub struct Struck {
    /// When it began, in ms after the load.
    pub at_ms: i64,
    /// When it was mended.
    pub until_ms: i64,
    /// What it was.
    pub kind: FaultKind,
    /// What exactly: which process, which link.
    pub what: String,
}

/// Strikes.
#[derive(Debug)]
pub struct Striker {
    house: Arc<House>,
    stores: Arc<Stores>,
    began_ms: i64,
    struck: Mutex<Vec<Struck>>,
    /// One at a time for what two faults must not do to each other: a link, a store, a process.
    guards: [tokio::sync::Mutex<()>; 4],
}

/// What a fault keeps to itself.
#[derive(Debug, Clone, Copy)]
enum Guard {
    Processes,
    Links,
    Redis,
    Postgres,
}

impl Striker {
    /// Over this house; time counts from when the load began.
    #[must_use]
    pub fn new(house: Arc<House>, stores: Arc<Stores>, began_ms: i64) -> Self {
        Self { house, stores, began_ms, struck: Mutex::default(), guards: Default::default() }
    }

    /// What happened.
    #[must_use]
    pub fn struck(&self) -> Vec<Struck> {
        locked(&self.struck).clone()
    }

    /// Carries a plan out to its end.
    ///
    /// # Errors
    /// Something could not be hurt, or not be mended: the run proves nothing then.
    pub async fn carry_out(self: Arc<Self>, plan: Vec<Fault>) -> Result<()> {
        let mut under_way = tokio::task::JoinSet::new();
        for fault in plan {
            let wait_ms = self.began_ms + fault.at_ms - system_ms();
            tokio::time::sleep(Duration::from_millis(wait_ms.max(0).unsigned_abs())).await;
            let striker = Arc::clone(&self);
            under_way.spawn(async move { striker.strike(fault).await });
        }
        while let Some(ended) = under_way.join_next().await {
            ended??;
        }
        Ok(())
    }

    async fn strike(&self, fault: Fault) -> Result<()> {
        let (first, second) = guards_of(fault.kind);
        let _first = self.guard(first).lock().await;
        let _second = match second {
            Some(guard) => Some(self.guard(guard).lock().await),
            None => None,
        };
        let at_ms = system_ms() - self.began_ms;
        let what = self.describe(&fault);
        tell(&format!("{:6.1} s  {what}", seconds(at_ms)));
        let lasts = Duration::from_millis(fault.lasts_ms.unsigned_abs());
        self.hurt(&fault).await?;
        tokio::time::sleep(lasts).await;
        self.mend(&fault).await?;
        let until_ms = system_ms() - self.began_ms;
        locked(&self.struck).push(Struck { at_ms, until_ms, kind: fault.kind, what });
        Ok(())
    }

    fn guard(&self, guard: Guard) -> &tokio::sync::Mutex<()> {
        let [processes, links, redis, postgres] = &self.guards;
        match guard {
            Guard::Processes => processes,
            Guard::Links => links,
            Guard::Redis => redis,
            Guard::Postgres => postgres,
        }
    }

    fn members(&self, fault: &Fault) -> Vec<&Member> {
        let one = |members| one_of(members, fault.target);
        match fault.kind {
            FaultKind::ApiKilled | FaultKind::ApiFrozen => one(self.house.of(Role::Api).collect()),
            FaultKind::WorkerKilled | FaultKind::WorkerFrozen => one(self.house.of(Role::Worker).collect()),
            FaultKind::WorkersKilled => self.house.of(Role::Worker).collect(),
            FaultKind::LinkCut | FaultKind::LinkFrozen | FaultKind::LinkDeaf => {
                one(self.house.members.iter().collect())
            }
            FaultKind::RedisUnreachable | FaultKind::PostgresUnreachable => self.house.members.iter().collect(),
            FaultKind::RedisKilled
            | FaultKind::RedisKilledEmpty
            | FaultKind::RedisKilledOlder
            | FaultKind::RedisFlushed
            | FaultKind::PostgresKilled
            | FaultKind::BothKilled => Vec::new(),
        }
    }

    async fn hurt(&self, fault: &Fault) -> Result<()> {
        let members = self.members(fault);
        match fault.kind {
            FaultKind::ApiKilled | FaultKind::WorkerKilled | FaultKind::WorkersKilled => {
                members.into_iter().try_for_each(Member::kill)
            }
            FaultKind::ApiFrozen | FaultKind::WorkerFrozen => members.into_iter().try_for_each(Member::freeze),
            FaultKind::LinkCut
            | FaultKind::LinkFrozen
            | FaultKind::LinkDeaf
            | FaultKind::RedisUnreachable
            | FaultKind::PostgresUnreachable => {
                let (store, link) = link_of(fault);
                members.into_iter().for_each(|member| member.set_link(store, link));
                Ok(())
            }
            FaultKind::RedisFlushed => self.stores.flush_redis().await,
            FaultKind::RedisKilled => self.stop_redis(|services| services.redis().kill()).await,
            FaultKind::RedisKilledEmpty => {
                self.stop_redis(|services| services.redis().kill().and_then(|()| services.redis().forget())).await
            }
            FaultKind::RedisKilledOlder => {
                self.stop_redis(|services| {
                    services.redis().kill().and_then(|()| services.redis().forget_latest(LOST_BYTES))
                })
                .await
            }
            FaultKind::PostgresKilled => self.stop_postgres().await,
            FaultKind::BothKilled => {
                self.stop_postgres().await?;
                self.stop_redis(|services| services.redis().kill()).await
            }
        }
    }

    async fn mend(&self, fault: &Fault) -> Result<()> {
        let members = self.members(fault);
        match fault.kind {
            FaultKind::ApiKilled | FaultKind::WorkerKilled | FaultKind::WorkersKilled => {
                members.into_iter().try_for_each(Member::start)
            }
            FaultKind::ApiFrozen | FaultKind::WorkerFrozen => members.into_iter().try_for_each(Member::resume),
            FaultKind::LinkCut
            | FaultKind::LinkFrozen
            | FaultKind::LinkDeaf
            | FaultKind::RedisUnreachable
            | FaultKind::PostgresUnreachable => {
                let (store, _) = link_of(fault);
                members.into_iter().for_each(|member| member.set_link(store, Link::Whole));
                Ok(())
            }
            FaultKind::RedisFlushed => Ok(()),
            FaultKind::RedisKilled | FaultKind::RedisKilledEmpty | FaultKind::RedisKilledOlder => {
                self.start_redis().await
            }
            FaultKind::PostgresKilled => self.start_postgres().await,
            FaultKind::BothKilled => {
                self.start_postgres().await?;
                self.start_redis().await
            }
        }
    }

    async fn stop_postgres(&self) -> Result<()> {
        self.house.note_store(Store::Postgres, false);
        self.with_services(|services| services.postgres().kill()).await
    }

    async fn start_postgres(&self) -> Result<()> {
        self.with_services(|services| services.postgres().restart()).await?;
        self.house.note_store(Store::Postgres, true);
        Ok(())
    }

    async fn stop_redis(
        &self,
        stop: impl FnOnce(&mut Services) -> Result<(), StartServiceError> + Send + 'static,
    ) -> Result<()> {
        self.house.note_store(Store::Redis, false);
        self.with_services(stop).await
    }

    async fn start_redis(&self) -> Result<()> {
        self.with_services(|services| services.redis().restart()).await?;
        self.house.note_store(Store::Redis, true);
        Ok(())
    }

    /// Works on the servers, which blocks, where it blocks nobody else.
    async fn with_services(
        &self,
        work: impl FnOnce(&mut Services) -> Result<(), StartServiceError> + Send + 'static,
    ) -> Result<()> {
        let services = Arc::clone(&self.house.services);
        Ok(tokio::task::spawn_blocking(move || work(&mut locked(&services))).await??)
    }

    fn describe(&self, fault: &Fault) -> String {
        let lasts = seconds(fault.lasts_ms);
        let names: Vec<&str> = self.members(fault).into_iter().map(|member| member.name.as_str()).collect();
        let (store, link) = link_of(fault);
        let store = match store {
            Store::Postgres => "Postgres",
            Store::Redis => "Redis",
        };
        let link = match link {
            Link::Cut => "cut",
            Link::Frozen => "frozen",
            Link::Deaf => "deaf",
            Link::Slow(_) => "slow",
            Link::Whole => "whole",
        };
        match fault.kind {
            FaultKind::ApiKilled | FaultKind::WorkerKilled => {
                format!("{} killed, back after {lasts:.1} s", names.join(", "))
            }
            FaultKind::WorkersKilled => format!("all workers killed, back after {lasts:.1} s"),
            FaultKind::ApiFrozen | FaultKind::WorkerFrozen => format!("{} frozen for {lasts:.1} s", names.join(", ")),
            FaultKind::LinkCut | FaultKind::LinkFrozen | FaultKind::LinkDeaf => {
                format!("{} to {store}: link {link} for {lasts:.1} s", names.join(", "))
            }
            FaultKind::RedisUnreachable | FaultKind::PostgresUnreachable => {
                format!("{store} unreachable for all ({link}) for {lasts:.1} s")
            }
            FaultKind::RedisFlushed => "Redis: FLUSHALL".to_owned(),
            FaultKind::RedisKilled | FaultKind::PostgresKilled => {
                format!("{}, back with its data after {lasts:.1} s", fault.kind.words())
            }
            FaultKind::RedisKilledEmpty => format!("Redis killed, back empty after {lasts:.1} s"),
            FaultKind::RedisKilledOlder => format!("Redis killed, back without its last 64 KiB after {lasts:.1} s"),
            FaultKind::BothKilled => format!("Postgres and Redis killed, back after {lasts:.1} s"),
        }
    }
}

fn one_of(members: Vec<&Member>, target: usize) -> Vec<&Member> {
    members.get(target % members.len().max(1)).copied().into_iter().collect()
}

/// In one order, so that two faults never wait for each other.
fn guards_of(kind: FaultKind) -> (Guard, Option<Guard>) {
    match kind.class() {
        "process" => (Guard::Processes, None),
        "link" => (Guard::Links, None),
        "redis" => (Guard::Redis, None),
        _ if kind == FaultKind::BothKilled => (Guard::Redis, Some(Guard::Postgres)),
        _ => (Guard::Postgres, None),
    }
}

fn link_of(fault: &Fault) -> (Store, Link) {
    match fault.kind {
        FaultKind::LinkCut => (fault.store, Link::Cut),
        FaultKind::LinkFrozen => (fault.store, Link::Frozen),
        FaultKind::LinkDeaf => (fault.store, Link::Deaf),
        FaultKind::RedisUnreachable => (Store::Redis, fault.link),
        FaultKind::PostgresUnreachable => (Store::Postgres, fault.link),
        _ => (fault.store, Link::Whole),
    }
}

fn seconds(ms: i64) -> f64 {
    Duration::from_millis(ms.unsigned_abs()).as_secs_f64()
}
