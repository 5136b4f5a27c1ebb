//! Many messages, in and out: a bare list without any promise, a raw loop with a fence and a claim, and Artel.

use std::time::Duration;

use artel_measure::{drain, generate, send};
use artel_rig::Server;

use crate::report::{Goal, Series, Table};
use artel_bench::load::{BATCHES, BYTES, FAILS, Gauge, LOOPS, MESSAGES, Result, WAITING, own_cpu};
use artel_bench::raw::{self, Push};

/// What one way of many messages costs, a value per round each.
#[derive(Default)]
struct Way {
    rate: Series,
    redis_cpu: Series,
    own_cpu: Series,
}

/// What is measured with batches of one size.
#[derive(Default)]
struct Size {
    bare_in: Way,
    bare_in_alone: Way,
    bare_out: Way,
    fenced_in: Way,
    fenced_out: Way,
    generated: Way,
    sent: Way,
    out: Way,
    out_failing: Way,
}

/// Everything about throughput and memory.
#[derive(Default)]
pub(crate) struct Flows {
    sizes: [Size; BATCHES.len()],
    memory_bare: Series,
    memory: Series,
}

impl Flows {
    /// One round.
    pub(crate) async fn measure(&mut self, server: &Server, gauge: &mut Gauge) -> Result<()> {
        for (size, batch) in self.sizes.iter_mut().zip(BATCHES) {
            size.measure(&server.url(), gauge, batch).await?;
        }
        let beside_payload = |bytes: f64| bytes / WAITING as f64 - BYTES as f64;
        gauge.flush()?;
        let before = gauge.memory()?;
        raw::push(&server.url(), WAITING, BATCHES[0], LOOPS, Push::Bare).await?;
        self.memory_bare.push(beside_payload(gauge.memory()? - before));
        gauge.flush()?;
        let before = gauge.memory()?;
        generate(&server.url(), "waiting", WAITING, BATCHES[0]).await?;
        self.memory.push(beside_payload(gauge.memory()? - before));
        Ok(())
    }

    /// What is only allocated once is not a matter of messages: scripts, the server's own tables.
    pub(crate) async fn warm_up(server: &Server) -> Result<()> {
        raw::push(&server.url(), WAITING, BATCHES[0], LOOPS, Push::Bare).await?;
        generate(&server.url(), "warm-up", WAITING, BATCHES[0]).await?;
        Ok(())
    }

    pub(crate) fn add_to(&self, table: &mut Table) {
        for (size, batch) in self.sizes.iter().zip(BATCHES) {
            size.add_to(table, batch);
        }
        let (bare, artel) = (&self.memory_bare, &self.memory);
        table.compare("memory beside payload, bytes", bare, artel, Goal::AtMost(20.0));
    }
}

impl Size {
    async fn measure(&mut self, url: &str, gauge: &mut Gauge, batch: usize) -> Result<()> {
        let all = MESSAGES;
        gauge.flush()?;
        self.bare_in.cost(gauge, raw::push(url, all, batch, LOOPS, Push::Bare)).await?;
        self.bare_out.cost(gauge, raw::drain(url, all, batch, Push::Bare)).await?;
        self.bare_in_alone.cost(gauge, raw::push(url, all, batch, 1, Push::Bare)).await?;
        gauge.flush()?;
        self.generated.cost(gauge, generate(url, "speed", all, batch)).await?;
        self.out.cost(gauge, drain(url, "speed", all, 0)).await?;
        gauge.flush()?;
        self.sent.cost(gauge, send(url, "speed", all, batch)).await?;
        self.out_failing.cost(gauge, drain(url, "speed", all, FAILS)).await?;
        gauge.flush()?;
        self.fenced_in.cost(gauge, raw::push(url, all, batch, LOOPS, Push::Fenced)).await?;
        self.fenced_out.cost(gauge, raw::drain(url, all, batch, Push::Fenced)).await?;
        Ok(())
    }

    fn add_to(&self, table: &mut Table, batch: usize) {
        let large = batch == BATCHES[0];
        let at_least = Goal::RatioAtLeast(if large { 1.5 } else { 1.0 });
        let goal = |goal: Goal| if large { goal } else { Goal::None };
        let mut row = |name: &str, raw: &Series, artel: &Series, goal| {
            table.compare(&format!("{name}, by {batch}"), raw, artel, goal);
        };
        row("in, 4 senders, bare: messages/s", &self.bare_in.rate, &self.sent.rate, at_least);
        let alone = &self.bare_in_alone.rate;
        row("in, generator, bare: messages/s", alone, &self.generated.rate, at_least);
        row("in, fenced: messages/s", &self.fenced_in.rate, &self.sent.rate, Goal::None);
        row("out, bare: messages/s", &self.bare_out.rate, &self.out.rate, at_least);
        row("out, fenced: messages/s", &self.fenced_out.rate, &self.out.rate, Goal::None);
        let failing = &self.out_failing;
        let most = goal(Goal::RatioAtLeast(0.8));
        row("out, 1 in 20 fails, bare: messages/s", &self.bare_out.rate, &failing.rate, most);
        let (bare_in, bare_out) = (&self.bare_in, &self.bare_out);
        let sums = |one: &Series, other: &Series| one.plus(other);
        let redis = (
            sums(&bare_in.redis_cpu, &bare_out.redis_cpu),
            sums(&self.generated.redis_cpu, &self.out.redis_cpu),
        );
        let own = (
            sums(&bare_in.own_cpu, &bare_out.own_cpu),
            sums(&self.generated.own_cpu, &self.out.own_cpu),
        );
        let failing = sums(&self.sent.redis_cpu, &failing.redis_cpu);
        let most = Goal::AtMost(if large { 0.4 } else { 1.0 });
        row("Redis CPU in + out, us", &redis.0, &redis.1, most);
        row("the same, 1 in 20 fails", &redis.0, &failing, goal(Goal::AtMost(0.8)));
        row("own CPU in + out, us", &own.0, &own.1, goal(Goal::AtMost(0.5)));
        row("own CPU out, us", &bare_out.own_cpu, &self.out.own_cpu, Goal::None);
    }
}

impl Way {
    /// Runs [`MESSAGES`] messages one way, and adds up what that took of both processes. A member's
    /// coming and going is in the CPU times, not in the rate.
    async fn cost(
        &mut self,
        gauge: &mut Gauge,
        run: impl Future<Output = Result<Duration>>,
    ) -> Result<()> {
        let (redis, own) = (gauge.cpu()?, own_cpu());
        let took = run.await?;
        let each = |cpu: Duration| cpu.as_secs_f64() * 1e6 / MESSAGES as f64;
        self.rate.push(MESSAGES as f64 / took.as_secs_f64());
        self.redis_cpu.push(each(gauge.cpu()?.saturating_sub(redis)));
        self.own_cpu.push(each(own_cpu().saturating_sub(own)));
        Ok(())
    }
}
