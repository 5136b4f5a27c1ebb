//! [`Wakes`]: which process waits for which event, and whether it returned after the event was set.
//!
//! Every member waits for one event after the other. Each event has a name of its own, and another
//! process is ordered to set it once. The waiter must receive the wake-up or read the event; its
//! timer is too long to help.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use crate::director::Director;
use crate::history::Entry;
use crate::process::Process;
use crate::promise::Invariant;

/// If no process has set the event after this time, another one is ordered to.
const TOLD_MAX: Duration = Duration::from_secs(3);
/// A director that has seen nothing for this long does not know whether all was well.
const BLIND: Duration = Duration::from_secs(1);
/// A waiter must return within this time, if nothing disturbs it.
const WAKE_MAX: Duration = Duration::from_secs(10);

/// The open waits, by the name of the event.
#[derive(Debug, Default)]
pub(crate) struct Wakes {
    open: HashMap<String, Wake>,
}

#[derive(Debug)]
struct Wake {
    /// The index of the waiter among the processes.
    whose: usize,
    told: Option<Instant>,
    /// Since when the event is set and nothing disturbs the waiter.
    set: Option<Instant>,
}

impl Wakes {
    pub(crate) fn waits(&mut self, name: &str, whose: usize) {
        self.open.insert(name.to_owned(), Wake { whose, told: None, set: None });
    }

    /// The events to set now, each with its waiter. With `again`, also those that are set already:
    /// Redis may have lost that.
    pub(crate) fn tell(&mut self, now: Instant, again: bool) -> Vec<(String, usize)> {
        let mut names = Vec::new();
        for (name, wake) in &mut self.open {
            let told = wake.told.is_some_and(|told| now < told + TOLD_MAX);
            if (again || wake.set.is_none()) && !told {
                wake.told = Some(now);
                names.push((name.clone(), wake.whose));
            }
        }
        names
    }

    pub(crate) fn set(&mut self, name: &str, now: Instant) {
        if let Some(wake) = self.open.get_mut(name) {
            wake.set.get_or_insert(now);
        }
    }

    /// Ends a wait; `false` if it was not open.
    pub(crate) fn woke(&mut self, name: &str) -> bool {
        self.open.remove(name).is_some()
    }

    /// This process is gone: ends its waits.
    pub(crate) fn gone(&mut self, whose: usize) {
        self.open.retain(|_, wake| wake.whose != whose);
    }

    /// Something disturbs these waiters: their time begins again.
    pub(crate) fn hold(&mut self, now: Instant, held: impl Fn(usize) -> bool) {
        for wake in self.open.values_mut().filter(|wake| held(wake.whose)) {
            wake.set = wake.set.map(|_| now);
        }
    }

    /// Redis lost its data: every event must be set again.
    pub(crate) fn lost(&mut self) {
        for wake in self.open.values_mut() {
            (wake.told, wake.set) = (None, None);
        }
    }

    /// A wait that is still open although its event was set `since` ago.
    pub(crate) fn asleep(&self, now: Instant, since: Duration) -> Option<&str> {
        let late = |wake: &Wake| wake.set.is_some_and(|set| now >= set + since);
        self.open.iter().find(|(_, wake)| late(wake)).map(|(name, _)| name.as_str())
    }
}

impl Director<'_> {
    /// Reads an entry: a process waits for an event, has set one, or returned.
    pub(crate) fn wake(&mut self, at: usize, who: &str, entry: &Entry) {
        let lives = self.stage.processes[at].is_alive() && who == self.stage.processes[at].name();
        match entry {
            Entry::Waits(name) if lives => self.watch.wakes.waits(name, at),
            Entry::Set(name) => self.watch.wakes.set(name, Instant::now()),
            Entry::Woke(name) if self.watch.wakes.woke(name) && !self.stage.redis_hurt => {
                let _ = self.stage.books.drop_event(name);
            }
            _ => {}
        }
    }

    /// Orders processes to set the events that others wait for, and checks that no wait takes too
    /// long.
    pub(crate) fn watch_over_waits(&mut self) {
        let now = Instant::now();
        // A director that was held up itself, for example by a Redis that starts slowly, saw
        // nothing meanwhile. A Redis that does not answer, on a busy machine, keeps all waiters
        // waiting.
        let blind = std::mem::replace(&mut self.watch.looked, now) + BLIND < now;
        let silent = self.stage.books.answered + BLIND < now;
        let (processes, down) = (&self.stage.processes, self.stage.redis_hurt || blind || silent);
        self.watch.wakes.hold(now, |at| down || processes[at].hurt || !processes[at].is_alive());
        for (name, whose) in self.watch.wakes.tell(now, self.watch.lossy) {
            let able = |process: &Process| process.is_alive() && !process.hurt;
            // Not the fleet next door: it has other events.
            let many = self.sender() + 1;
            let others = (1..many).map(|by| (whose + by) % many);
            if let Some(other) = others.into_iter().find(|at| able(&self.stage.processes[*at])) {
                self.stage.processes[other].tell(&format!("set {name}"));
            }
        }
        if let Some(name) = self.watch.wakes.asleep(now, WAKE_MAX).map(str::to_owned) {
            let what =
                format!("a wait for {name} did not return within {WAKE_MAX:?} after it was set");
            self.watch.wakes.woke(&name);
            self.watch.checker.blame(Invariant::NoWakeUpMissed, what, vec![name]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_waits_is_missed_only_if_nothing_was_in_the_way() {
        let (mut wakes, begun) = (Wakes::default(), Instant::now());
        let after = |seconds| begun + Duration::from_secs(seconds);
        wakes.waits("m1.1:1", 0);
        wakes.waits("m2.1:1", 1);
        assert_eq!(wakes.tell(begun, false).len(), 2);
        assert_eq!(wakes.tell(after(1), true).len(), 0, "told already");
        wakes.set("m1.1:1", after(1));
        assert_eq!(wakes.tell(after(4), false), [("m2.1:1".to_owned(), 1)], "not set: told again");
        wakes.set("m2.1:1", after(4));
        wakes.hold(after(5), |whose| whose == 0);
        assert_eq!(wakes.asleep(after(12), WAKE_MAX), None);
        assert_eq!(wakes.asleep(after(14), WAKE_MAX), Some("m2.1:1"));
        assert!(wakes.woke("m2.1:1") && !wakes.woke("m2.1:1"));
        assert_eq!(wakes.asleep(after(15), WAKE_MAX), Some("m1.1:1"));
        wakes.gone(0);
        assert_eq!(wakes.asleep(after(99), WAKE_MAX), None);
    }
}
