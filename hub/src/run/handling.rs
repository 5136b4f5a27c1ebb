//! The handling of one event: filter it, call the handler, measure the time, report a failure.
//!
//! **Invariant:** every outcome of user code, panics included, is returned as a [`Failure`].

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::end::life::Orders;
use crate::event::AnyEvent;
use crate::hub_core::HubCore;
use crate::keep::dead_letter::{Cause, Letter};
use crate::notice::HubNotice;
use crate::publish::current::at_depth;
use crate::run::filter::{Answer, Filters};
use crate::run::handler::{Delivery, Handler, HandlerError, Remedy, Severity};
use crate::run::restart::{AttemptRecord, Verdict};
use crate::run::subscriber::Subscriber;
use crate::stats::{add, count, sample_every};
use crate::sync::Slot;
use crate::wait::reader::Stretch;

/// How many quick events are handled between two checks for waiting publishers.
const SHOWN: usize = 16;

/// A failure of a handler, a filter or a factory.
pub(crate) struct Failure {
    pub(crate) remedy: Remedy,
    pub(crate) severity: Severity,
    pub(crate) reason: String,
}

impl Failure {
    /// The handler exceeded its time-out.
    pub(crate) fn late(time: Duration) -> Failure {
        let reason = format!("timeout: its handler took longer than {time:?}");
        Failure { remedy: Remedy::Late, severity: Severity::Error, reason }
    }

    pub(crate) fn cause(&self) -> Cause {
        if self.remedy == Remedy::Late { Cause::Timeout } else { Cause::Failed }
    }
}

impl From<HandlerError> for Failure {
    fn from(error: HandlerError) -> Failure {
        let (remedy, severity) = (error.remedy, error.severity);
        Failure { remedy, severity, reason: error.to_string() }
    }
}

/// Converts a panic into a failure that needs a new handler.
pub(crate) fn panicked(me: &Subscriber, panic: Box<dyn std::any::Any + Send>) -> Failure {
    count(&me.counts.troubles().panics);
    let text = match (panic.downcast_ref::<&str>(), panic.downcast_ref::<String>()) {
        (Some(text), _) => (*text).to_string(),
        (_, Some(text)) => text.clone(),
        _ => "with a value that is not text".to_string(),
    };
    discard(panic);
    let reason = format!("panicked: {text}");
    Failure { remedy: Remedy::Fatal, severity: Severity::Error, reason }
}

/// Drops a user value and catches a panic of its `Drop`.
pub(crate) fn discard<V>(value: V) {
    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| drop(value))) {
        std::mem::forget(panic);
    }
}

/// The parts needed to handle events without awaiting.
pub(crate) struct Handling<'a, T> {
    pub(crate) me: &'a Subscriber,
    pub(crate) filters: &'a mut Filters<T>,
    pub(crate) record: &'a mut AttemptRecord,
    pub(crate) sampler: &'a mut Sampler,
    pub(crate) depth: u16,
    /// The filter runs now. A panic is then the filter's.
    pub(crate) filtering: bool,
}

/// The progress in a stretch.
#[derive(Default)]
pub(crate) struct Tally {
    /// Events finished in this stretch, and the bytes finished in total.
    pub(crate) passed: u64,
    pub(crate) bytes: u64,
    /// How many of these events are in the public counters.
    told: u64,
    /// Filtered events that are not in the public counters yet, and the position of the last one.
    filtered: u64,
    filtered_last: u64,
    /// Other runners write to the same counters.
    pub(crate) shared: bool,
}

impl Tally {
    pub(crate) fn new(shared: bool) -> Tally {
        Tally { shared, ..Tally::default() }
    }

    #[inline]
    fn add(&mut self, handled: bool, bytes: u32) {
        self.passed += 1;
        self.bytes += u64::from(bytes);
        if !handled {
            self.filtered += 1;
            self.filtered_last = self.passed;
        }
    }

    /// Adds the progress to the public counters.
    #[inline]
    pub(crate) fn tell(&mut self, me: &Subscriber) {
        let filtered = std::mem::take(&mut self.filtered);
        let processed = self.passed - self.told - filtered;
        self.told = self.passed;
        if self.shared {
            me.counts.processed.fetch_add(processed, Ordering::Relaxed);
            me.counts.filtered.fetch_add(filtered, Ordering::Relaxed);
            return;
        }
        add(&me.counts.processed, processed);
        if filtered > 0 {
            add(&me.counts.filtered, filtered);
        }
    }

    /// Removes the last event: its runner was replaced before it finished it.
    pub(crate) fn without_last(&mut self) {
        if self.passed > self.told {
            if self.filtered_last == self.passed {
                self.filtered -= 1;
            }
            self.passed -= 1;
        }
    }
}

impl<T: 'static> Handling<'_, T> {
    /// Whether the next `events` events need only the filter and the handler, provided that they
    /// are plain.
    #[inline]
    pub(crate) fn is_plain(&self, events: u32) -> bool {
        self.depth == 0 && self.record.is_clean() && self.sampler.is_quiet(events)
    }

    /// Handles a stretch of the log, until there are new orders or a publisher waits for the
    /// progress.
    #[inline(always)]
    pub(crate) fn stretch<H: Handler<T>>(
        &mut self,
        handler: &mut H,
        stretch: &Stretch<'_, AnyEvent>,
        orders: Orders,
        tally: &mut Tally,
    ) -> Result<(), Box<Failure>> {
        let mut slots = stretch.slots;
        if self.me.life.orders() != orders {
            return Ok(()); // orders are checked after the first event is shown
        }
        while let Some(event) = slots.first().and_then(Slot::get) {
            let some = &slots[..slots.len().min(SHOWN)];
            let before = tally.passed;
            if self.is_plain(some.len() as u32) && event.plain {
                self.quick(handler, some, stretch, orders, tally)?;
                self.sampler.skip((tally.passed - before) as u32);
            } else {
                let handled = self.handle(handler, event, 0)?;
                tally.add(handled, event.bytes);
            }
            slots = &slots[(tally.passed - before) as usize..];
            let wanted = stretch.passed(tally.passed, tally.bytes);
            if self.me.life.orders() != orders {
                break; // before the last event is counted
            }
            tally.tell(self.me);
            if wanted {
                break;
            }
        }
        Ok(())
    }

    /// Handles events while they are plain and there are no new orders.
    #[inline(always)]
    fn quick<H: Handler<T>>(
        &mut self,
        handler: &mut H,
        slots: &[Slot<AnyEvent>],
        stretch: &Stretch<'_, AnyEvent>,
        orders: Orders,
        tally: &mut Tally,
    ) -> Result<(), Box<Failure>> {
        for event in slots.iter().map_while(Slot::get).take_while(|event| event.plain) {
            self.filtering = true;
            let payload = event.view::<T>();
            let answer = payload.map_or(Answer::Unwanted, |some| self.filters.ask(event, some));
            self.filtering = false;
            let handled = match (answer, payload) {
                (Answer::Wanted, Some(payload)) => {
                    let delivery = Delivery { event, payload, attempt: 1, lagged: 0 };
                    if let Err(error) = handler.immediate(delivery) {
                        return Err(Box::new(error.into()));
                    }
                    true
                }
                (Answer::Failed(error), _) => {
                    return Err(Box::new(filter_failed((*error).into())));
                }
                _ => false,
            };
            tally.add(handled, event.bytes);
            stretch.show(tally.passed);
            if self.me.life.orders() != orders {
                break;
            }
        }
        Ok(())
    }

    /// Handles one event. `false` if a filter rejected it.
    #[inline(always)]
    pub(crate) fn handle<H: Handler<T>>(
        &mut self,
        handler: &mut H,
        event: &AnyEvent,
        lagged: u64,
    ) -> Result<bool, Box<Failure>> {
        let me = self.me;
        let mut payload = event.view::<T>();
        let clean = self.record.is_clean();
        let attempt = if clean { 1 } else { self.record.attempt(event.id()) };
        // On a retry the filters are not asked again: a rate limit might reject the event then.
        if let Some(some) = payload.filter(|_| attempt == 1 && !self.filters.is_empty()) {
            self.filtering = true;
            match self.filters.ask(event, some) {
                Answer::Wanted => {}
                Answer::Unwanted => payload = None,
                Answer::Failed(error) => return Err(Box::new(filter_failed((*error).into()))),
            }
            self.filtering = false;
        }
        let Some(payload) = payload else {
            if !clean {
                self.record.done_with(event.id());
            }
            return Ok(false);
        };
        if event.depth != self.depth {
            self.depth = event.depth;
            at_depth(event.depth);
        }
        let delivery = Delivery { event, payload, attempt, lagged };
        let result = match event.plain && !self.sampler.is_due() {
            true => handler.immediate(delivery),
            false => {
                let span = span(me, event);
                let _entered = span.as_ref().map(|span| span.enter());
                let sampled = self.sampler.begin();
                let result = handler.immediate(delivery);
                self.sampler.end(sampled, me);
                result
            }
        };
        match result {
            Ok(()) => {
                if !clean {
                    self.record.handled(event.id());
                }
                Ok(true)
            }
            Err(error) => Err(Box::new(error.into())),
        }
    }
}

/// The payload, if the subscriber wants this event.
pub(crate) fn wanted<'e, T: 'static>(
    me: &Subscriber,
    filters: &mut Filters<T>,
    event: &'e AnyEvent,
    attempt: u32,
) -> Result<Option<&'e T>, Failure> {
    let Some(payload) = event.view::<T>() else { return Ok(None) };
    if filters.is_empty() || attempt > 1 {
        return Ok(Some(payload));
    }
    match catch_unwind(AssertUnwindSafe(|| filters.ask(event, payload))) {
        Ok(Answer::Wanted) => Ok(Some(payload)),
        Ok(Answer::Unwanted) => Ok(None),
        Ok(Answer::Failed(error)) => Err(filter_failed((*error).into())),
        Err(panic) => Err(filter_failed(panicked(me, panic))),
    }
}

/// A failing filter would fail again, so the event becomes a dead letter.
pub(crate) fn filter_failed(failure: Failure) -> Failure {
    let reason = format!("its filter: {}", failure.reason);
    Failure { remedy: Remedy::Skip, reason, ..failure }
}

/// Counts and reports a failed attempt, and has the next step decided. If the event is not tried
/// again, makes it a dead letter and returns `true`.
pub(crate) fn judge(
    core: &HubCore,
    me: &Subscriber,
    event: &AnyEvent,
    failure: &Failure,
    record: &mut AttemptRecord,
    decide: impl FnOnce(&mut AttemptRecord) -> Verdict,
) -> (Verdict, bool) {
    let attempt = record.attempt(event.id());
    failed(core, me, event, failure, attempt);
    let verdict = decide(record);
    // The event that spent the budget is not passed on to others.
    let is_letter =
        matches!(verdict, Verdict::Letter | Verdict::End | Verdict::Anew { letter: true, .. });
    if is_letter {
        letter(core, me, event, attempt, failure);
        record.done_with(event.id());
    }
    (verdict, is_letter)
}

/// Counts and reports a failed attempt.
pub(crate) fn failed(
    core: &HubCore,
    me: &Subscriber,
    event: &AnyEvent,
    failure: &Failure,
    attempt: u32,
) {
    count(&me.counts.troubles().errors);
    let notice = HubNotice::HandlerFailed {
        subscriber: me.name().to_string(),
        key: event.key().into(),
        severity: failure.severity,
        reason: failure.reason.clone(),
        attempt,
    };
    core.say_of(event, notice);
}

/// Makes an event a dead letter.
pub(crate) fn letter(
    core: &HubCore,
    me: &Subscriber,
    event: &AnyEvent,
    attempts: u32,
    failure: &Failure,
) {
    count(&me.counts.troubles().letters);
    let letter = Letter::new(event, me.name(), attempts, failure.severity, &failure.reason);
    core.keep(vec![letter.because(failure.cause())]);
    let notice = HubNotice::DeadLetter {
        subscriber: me.name().to_string(),
        key: event.key().into(),
        reason: failure.reason.clone(),
    };
    core.say_of(event, notice);
}

pub(crate) fn span(me: &Subscriber, event: &AnyEvent) -> Option<tracing::Span> {
    let parent = event.meta().span.as_ref()?;
    Some(tracing::debug_span!(
        target: "artel_hub",
        parent: parent.id(),
        "handle",
        subscriber = &**me.name(),
        key = event.key(),
        sequence = event.sequence()
    ))
}

/// Chooses which events are timed. The distance between two samples is random, so that a regular
/// pattern of events is not missed.
#[derive(Debug)]
pub(crate) struct Sampler {
    wait: u32,
    weight: u32,
    chance: u32,
    /// Handlers are quick: progress need not be shown to publishers after every event.
    quick: bool,
}

impl Default for Sampler {
    fn default() -> Sampler {
        Sampler { wait: 0, weight: 1, chance: rand::random::<u32>() | 1, quick: false }
    }
}

impl Sampler {
    /// Whether none of the next `events` events is to be timed.
    #[inline]
    fn is_quiet(&self, events: u32) -> bool {
        self.quick && self.wait >= events
    }

    #[inline]
    fn skip(&mut self, events: u32) {
        self.wait = self.wait.saturating_sub(events);
    }

    /// Whether the next event is to be timed. Counts down otherwise.
    #[inline]
    fn is_due(&mut self) -> bool {
        let due = self.wait == 0;
        self.wait = self.wait.saturating_sub(1);
        due
    }

    #[inline]
    pub(crate) fn begin(&mut self) -> Option<Instant> {
        if self.wait > 0 {
            self.wait -= 1;
            return None;
        }
        Some(Instant::now())
    }

    #[inline]
    pub(crate) fn end(&mut self, begun: Option<Instant>, me: &Subscriber) {
        let Some(begun) = begun else { return };
        let took = begun.elapsed();
        me.counts.took(took, self.weight);
        let every = sample_every(took);
        self.quick = every > 8;
        // xorshift: random enough for this.
        self.chance ^= self.chance << 13;
        self.chance ^= self.chance >> 17;
        self.chance ^= self.chance << 5;
        self.weight = 1 + self.chance % (2 * every - 1);
        self.wait = self.weight - 1;
    }
}
