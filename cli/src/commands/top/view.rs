//! [`View`]: what `top` knows and what the user wants to see. Pure: it is changed by samples and by keys.
//!
//! **Invariant:** nothing is put back to work without a yes. While the view is paused, what is shown stays.

use std::collections::{HashMap, VecDeque};
use std::time::SystemTime;

use artel::ErrorRecord;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::sample::{Counts, ErrorRow, MemberRow, Sample};
use crate::commands::status::natural;

/// Rates that are remembered.
pub(super) const HISTORY: usize = 240;

/// What the members are sorted by.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Sort {
    Label,
    Done,
    Failed,
    InFlight,
}

impl Sort {
    fn next(self) -> Sort {
        match self {
            Sort::Label => Sort::Done,
            Sort::Done => Sort::Failed,
            Sort::Failed => Sort::InFlight,
            Sort::InFlight => Sort::Label,
        }
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Sort::Label => "label",
            Sort::Done => "done",
            Sort::Failed => "failed",
            Sort::InFlight => "runs",
        }
    }
}

/// The list in which the arrow keys move.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Focus {
    Members,
    Errors,
}

/// What the keys mean now.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) enum Mode {
    Lists,
    /// A filter is being typed.
    Filter,
    /// The selected error is open.
    Error,
    /// Put the selected error back to work?
    Confirm,
    Help,
}

/// What a key asks the program to do.
#[derive(Debug, PartialEq)]
pub(super) enum Action {
    None,
    Quit,
    Requeue(Box<ErrorRecord>),
}

/// How many of something happened per second, for each sample.
pub(super) type Rates = VecDeque<f64>;

pub(super) struct View {
    pub(super) sample: Sample,
    pub(super) generated: Rates,
    pub(super) done: Rates,
    pub(super) failed: Rates,
    /// What each member does per second.
    pub(super) member_rates: HashMap<String, f64>,
    pub(super) sort: Sort,
    pub(super) filter: String,
    pub(super) focus: Focus,
    pub(super) mode: Mode,
    pub(super) member_at: usize,
    /// The selected error, by its id: the list moves under it.
    pub(super) error_id: Option<String>,
    pub(super) is_paused: bool,
    /// What the program has to say: an error of Redis, or what became of an action.
    pub(super) remark: String,
    pub(super) is_away: bool,
}

impl View {
    pub(super) fn new() -> View {
        View {
            sample: Sample::default(),
            generated: Rates::new(),
            done: Rates::new(),
            failed: Rates::new(),
            member_rates: HashMap::new(),
            sort: Sort::Label,
            filter: String::new(),
            focus: Focus::Members,
            mode: Mode::Lists,
            member_at: 0,
            error_id: None,
            is_paused: false,
            remark: String::new(),
            is_away: false,
        }
    }

    /// What is known now.
    pub(super) fn update(&mut self, sample: Sample) {
        if self.is_away {
            self.is_away = false;
            self.remark = "Redis answers again".to_owned();
        }
        if self.is_paused {
            return;
        }
        if let Some(seconds) = seconds(self.sample.time, sample.time) {
            let (before, now) = (&self.sample.counts, &sample.counts);
            for (rates, of) in [
                (
                    &mut self.generated,
                    (|counts| counts.generated + counts.sent) as fn(&Counts) -> u64,
                ),
                (&mut self.done, |counts| counts.done),
                (&mut self.failed, |counts| counts.failed),
            ] {
                rates.push_back(of(now).saturating_sub(of(before)) as f64 / seconds);
                let much = rates.len().saturating_sub(HISTORY);
                rates.drain(..much);
            }
            let known: HashMap<&str, u64> =
                self.sample.members.iter().map(|one| (&*one.id, one.done + one.failed)).collect();
            self.member_rates = sample
                .members
                .iter()
                .filter_map(|one| {
                    let before = known.get(&*one.id)?;
                    let more = (one.done + one.failed).saturating_sub(*before);
                    Some((one.id.clone(), more as f64 / seconds))
                })
                .collect();
        }
        self.sample = sample;
        self.member_at = self.member_at.min(self.members().len().saturating_sub(1));
        if self.mode == Mode::Error && self.error().is_none() {
            self.mode = Mode::Lists;
            self.remark = "that message is no longer among the newest failed ones".to_owned();
        }
    }

    /// Redis cannot be asked.
    pub(super) fn away(&mut self, why: String) {
        self.is_away = true;
        self.remark = why;
    }

    /// The members that match the filter, sorted.
    pub(super) fn members(&self) -> Vec<&MemberRow> {
        let matches =
            |row: &&MemberRow| self.is_wanted(&[&row.label, &row.role, &row.place, &row.id]);
        let mut rows: Vec<&MemberRow> = self.sample.members.iter().filter(matches).collect();
        rows.sort_by_cached_key(|row| {
            let most_first = |count: u64| u64::MAX - count;
            let key = match self.sort {
                Sort::Label => 0,
                Sort::Done => most_first(row.done),
                Sort::Failed => most_first(row.failed),
                Sort::InFlight => most_first(row.in_flight),
            };
            (key, natural(&row.label), row.id.clone())
        });
        rows
    }

    /// The errors that match the filter, the newest first.
    pub(super) fn errors(&self) -> Vec<&ErrorRow> {
        let matches = |row: &&ErrorRow| {
            self.is_wanted(&[&row.id, &row.kind, &row.reason, &row.who, &row.payload])
        };
        self.sample.errors.iter().filter(matches).collect()
    }

    fn is_wanted(&self, texts: &[&str]) -> bool {
        let filter = self.filter.to_lowercase();
        texts.iter().any(|text| text.to_lowercase().contains(&filter))
    }

    /// Where the selected error is in the list; the first one if none is selected.
    pub(super) fn error_at(&self) -> usize {
        let errors = self.errors();
        let id = self.error_id.as_deref();
        errors.iter().position(|row| Some(&*row.id) == id).unwrap_or(0)
    }

    /// The selected error.
    pub(super) fn error(&self) -> Option<&ErrorRow> {
        let errors = self.errors();
        match (&self.mode, &self.error_id) {
            // One that is open must not turn into another one.
            (Mode::Error | Mode::Confirm, Some(id)) => errors.into_iter().find(|row| row.id == *id),
            _ => errors.get(self.error_at()).copied(),
        }
    }

    /// What a key does.
    pub(super) fn key(&mut self, key: KeyEvent) -> Action {
        if key.modifiers.contains(KeyModifiers::CONTROL) {
            return if key.code == KeyCode::Char('c') { Action::Quit } else { Action::None };
        }
        match self.mode {
            Mode::Lists => return self.key_of_lists(key.code),
            Mode::Filter => self.key_of_filter(key.code),
            Mode::Error => match key.code {
                KeyCode::Char('r') => self.ask(),
                KeyCode::Char('q') => return Action::Quit,
                KeyCode::Up | KeyCode::Char('k') => self.move_by(-1),
                KeyCode::Down | KeyCode::Char('j') => self.move_by(1),
                KeyCode::Esc | KeyCode::Enter => self.mode = Mode::Lists,
                _ => {}
            },
            Mode::Confirm => {
                let error = self.error().and_then(|row| row.record.clone());
                self.mode = Mode::Lists;
                match (key.code, error) {
                    (KeyCode::Char('y' | 'Y'), Some(record)) => {
                        self.remark = format!("putting {} back to work …", record.id);
                        return Action::Requeue(Box::new(record));
                    }
                    (KeyCode::Char('y' | 'Y'), None) => {
                        self.remark = "that message is no longer stored".to_owned();
                    }
                    _ => self.remark = "nothing was put back".to_owned(),
                }
            }
            Mode::Help => self.mode = Mode::Lists,
        }
        Action::None
    }

    fn key_of_lists(&mut self, code: KeyCode) -> Action {
        self.remark.clear();
        match code {
            KeyCode::Char('q') => return Action::Quit,
            KeyCode::Char('s') => self.sort = self.sort.next(),
            KeyCode::Char('/') => self.mode = Mode::Filter,
            KeyCode::Char('p') | KeyCode::Char(' ') => self.is_paused = !self.is_paused,
            KeyCode::Char('?') | KeyCode::Char('h') => self.mode = Mode::Help,
            KeyCode::Char('r') => self.ask(),
            KeyCode::Tab | KeyCode::BackTab => {
                self.focus = match self.focus {
                    Focus::Members => Focus::Errors,
                    Focus::Errors => Focus::Members,
                }
            }
            KeyCode::Up | KeyCode::Char('k') => self.move_by(-1),
            KeyCode::Down | KeyCode::Char('j') => self.move_by(1),
            KeyCode::PageUp => self.move_by(-10),
            KeyCode::PageDown => self.move_by(10),
            KeyCode::Enter if self.error().is_some() => {
                self.focus = Focus::Errors;
                self.error_id = self.error().map(|row| row.id.clone());
                self.mode = Mode::Error;
            }
            KeyCode::Esc => self.filter.clear(),
            _ => {}
        }
        Action::None
    }

    fn key_of_filter(&mut self, code: KeyCode) {
        match code {
            KeyCode::Enter => self.mode = Mode::Lists,
            KeyCode::Esc => {
                self.filter.clear();
                self.mode = Mode::Lists;
            }
            KeyCode::Backspace => {
                self.filter.pop();
            }
            KeyCode::Char(c) if self.filter.len() < 60 => self.filter.push(c),
            _ => {}
        }
        self.member_at = 0;
    }

    /// Asks whether to put the selected error back to work.
    fn ask(&mut self) {
        self.error_id = self.error().map(|row| row.id.clone());
        match self.error_id {
            Some(_) => {
                self.focus = Focus::Errors;
                self.mode = Mode::Confirm;
            }
            None => self.remark = "no failed message is selected".to_owned(),
        }
    }

    fn move_by(&mut self, rows: isize) {
        let moved =
            |at: usize, count: usize| at.saturating_add_signed(rows).min(count.saturating_sub(1));
        match self.focus {
            Focus::Members => self.member_at = moved(self.member_at, self.members().len()),
            Focus::Errors => {
                let at = moved(self.error_at(), self.errors().len());
                self.error_id = self.errors().get(at).map(|row| row.id.clone());
            }
        }
    }
}

/// The time between two samples, if there are two.
fn seconds(before: Option<SystemTime>, now: Option<SystemTime>) -> Option<f64> {
    let seconds = now?.duration_since(before?).ok()?.as_secs_f64();
    (seconds > 0.0).then_some(seconds)
}
