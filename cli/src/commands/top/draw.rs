//! Draws a [`View`]. Colour is never the only carrier of meaning.

use std::time::SystemTime;

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{
    Block, Borders, Cell, Clear, HighlightSpacing, Paragraph, Row, Sparkline, Table, TableState,
    Wrap,
};

use super::sample::{ErrorRow, Generator};
use super::view::{Focus, Mode, Rates, View};
use crate::times;

/// The width of the bar that shows the lease.
const BAR: usize = 20;
const KEYS: &str = "q quit  s sort  / filter  Tab list  Enter open  r requeue  p pause  ? help";
const HELP: [&str; 11] = [
    "q, Ctrl-C        quit",
    "s                sort members by label, done, failed, runs",
    "/                filter members and failed messages by a text",
    "Esc              no filter",
    "Tab              move in the other list",
    "Up, Down, j, k   move",
    "Enter            open the selected failed message",
    "r                put the selected failed message back to work",
    "p, Space         pause the view, or go on",
    "?                this help",
    "any key          back",
];

/// How things look, with colour or without.
#[derive(Clone, Copy)]
pub(super) struct Look {
    pub(super) coloured: bool,
}

impl Look {
    fn paint(self, colour: Color) -> Style {
        if self.coloured { Style::new().fg(colour) } else { Style::new() }
    }

    fn trouble(self) -> Style {
        self.paint(Color::Red).add_modifier(Modifier::BOLD)
    }

    fn title(self) -> Style {
        self.paint(Color::Cyan)
    }
}

pub(super) fn draw(frame: &mut Frame<'_>, view: &View, look: Look) {
    let area = frame.area();
    let [head, rates, books, members, errors, notices, foot] = Layout::vertical([
        Constraint::Length(2),
        Constraint::Length(3),
        Constraint::Length(2),
        Constraint::Fill(4),
        Constraint::Fill(3),
        Constraint::Fill(3),
        Constraint::Length(1),
    ])
    .areas(area);
    draw_head(frame, head, view, look);
    draw_rates(frame, rates, view, look);
    draw_books(frame, books, view, look);
    draw_members(frame, members, view, look);
    draw_errors(frame, errors, view, look);
    draw_notices(frame, notices, view, look);
    draw_foot(frame, foot, view, look);
    match view.mode {
        Mode::Error => draw_error(frame, area, view, look),
        Mode::Help => {
            let lines: Vec<Line<'_>> = HELP.iter().map(|line| Line::from(*line)).collect();
            popup(frame, area, " keys ", lines, look);
        }
        Mode::Lists | Mode::Filter | Mode::Confirm => {}
    }
}

/// Parts of a line, two blanks between them.
fn parts(parts: Vec<Span<'_>>) -> Line<'_> {
    let mut all = Vec::new();
    for part in parts.into_iter().filter(|part| !part.content.is_empty()) {
        if !all.is_empty() {
            all.push(Span::raw("  "));
        }
        all.push(part);
    }
    Line::from(all)
}

fn draw_head(frame: &mut Frame<'_>, area: Rect, view: &View, look: Look) {
    let sample = &view.sample;
    let bold = Style::new().add_modifier(Modifier::BOLD);
    let state = match (view.is_away, view.is_paused) {
        (true, _) => Span::styled("NO ANSWER", look.trouble()),
        (false, true) => Span::styled("PAUSED", look.paint(Color::Yellow)),
        (false, false) => Span::raw(""),
    };
    let first = parts(vec![
        Span::styled(format!("fleet {}", sample.fleet), bold),
        Span::raw(sample.server.as_str()),
        Span::raw(format!("{:.1} ms", sample.rtt.as_secs_f64() * 1e3)),
        Span::raw(sample.time.map(times::point).unwrap_or_default()),
        state,
    ]);
    let second = match (&sample.generator, &sample.trouble) {
        (_, Some(trouble)) => Line::styled(format!("trouble: {trouble}"), look.trouble()),
        (Some(generator), None) => lease(generator, look),
        (None, None) => Line::from("generator: nobody leads"),
    };
    frame.render_widget(Paragraph::new(vec![first, second]), area);
}

/// The generator, its term, and how much of its lease is left.
fn lease(generator: &Generator, look: Look) -> Line<'_> {
    let share = generator.left.as_secs_f64() / generator.lease.as_secs_f64().max(0.001);
    let full = ((share * BAR as f64).round() as usize).min(BAR);
    let colour = if share > 0.34 { Color::Green } else { Color::Red };
    Line::from(vec![
        Span::styled("generator ", look.title()),
        Span::styled(generator.label.as_str(), Style::new().add_modifier(Modifier::BOLD)),
        Span::raw(format!("  term {}  lease [", generator.term)),
        Span::styled("#".repeat(full), look.paint(colour)),
        Span::raw(format!("{}] {}", ".".repeat(BAR - full), times::span(generator.left))),
    ])
}

fn draw_rates(frame: &mut Frame<'_>, area: Rect, view: &View, look: Look) {
    let rows = [
        ("generated", &view.generated, Color::Cyan),
        ("done", &view.done, Color::Green),
        ("failed", &view.failed, Color::Red),
    ];
    for (at, (name, rates, colour)) in rows.into_iter().enumerate() {
        let line = Rect { y: area.y + at as u16, height: 1, ..area }.intersection(area);
        let [text, history] =
            Layout::horizontal([Constraint::Length(24), Constraint::Fill(1)]).areas(line);
        let now = rates.back().map_or_else(|| "-".to_owned(), |rate| per_second(*rate));
        frame.render_widget(Paragraph::new(format!("{name:<10}{now:>12}")), text);
        frame.render_widget(sparkline(rates, history.width).style(look.paint(colour)), history);
    }
}

fn per_second(rate: f64) -> String {
    match rate {
        rate if rate >= 100.0 => format!("{rate:.0}/s"),
        rate => format!("{rate:.1}/s"),
    }
}

/// The newest rates, the newest at the right.
fn sparkline(rates: &Rates, width: u16) -> Sparkline<'static> {
    let shown = rates.iter().rev().take(usize::from(width)).rev();
    let values: Vec<u64> = shown.map(|rate| (rate * 1000.0) as u64).collect();
    let top = values.iter().copied().max().unwrap_or(0).max(1);
    Sparkline::default().data(values).max(top)
}

fn draw_books(frame: &mut Frame<'_>, area: Rect, view: &View, look: Look) {
    let (counts, sample) = (&view.sample.counts, &view.sample);
    let balance = format!("balance {}", counts.balance);
    // What a narrow screen has no room for stands last.
    let (trouble, balance) = match counts.balance {
        0 => (Span::raw(""), Span::raw(balance)),
        _ => (Span::styled(balance, look.trouble()), Span::raw("")),
    };
    let sent = if counts.sent > 0 { format!("sent {}", counts.sent) } else { String::new() };
    let later = match counts.scheduled {
        0 => String::new(),
        later => format!("scheduled {later}"),
    };
    let mut books = vec![
        trouble,
        Span::raw(format!("waiting {}", counts.waiting)),
        Span::raw(format!("claimed {}", counts.claimed)),
        Span::raw(later),
        Span::raw(format!("done {}", counts.done)),
        Span::raw(format!("failed {}", counts.failed)),
        Span::raw(format!("generated {}", counts.generated)),
        Span::raw(sent),
        balance,
    ];
    while books.len() > 1 && parts(books.clone()).width() > usize::from(area.width) {
        books.pop();
    }
    let mut lanes = vec![Span::styled("lanes", look.title())];
    for (name, count) in &sample.lanes {
        let paused = sample.paused.iter().any(|paused| paused == name || paused == "all");
        let paused = if paused { " (paused)" } else { "" };
        lanes.push(Span::raw(format!("{name} {count}{paused}")));
    }
    if let Some(oldest) = sample.oldest.filter(|_| counts.waiting > 0) {
        lanes.push(Span::raw(format!("oldest {}", times::span(oldest))));
    }
    frame.render_widget(Paragraph::new(vec![parts(books), parts(lanes)]), area);
}

/// The frame of a list: a line with its title above it.
fn list(title: String, focused: bool, look: Look) -> Block<'static> {
    let mark = if focused { ">" } else { " " };
    let style = if focused { look.title().add_modifier(Modifier::BOLD) } else { look.title() };
    Block::new().borders(Borders::TOP).title(Span::styled(format!("{mark}{title} "), style))
}

fn draw_members(frame: &mut Frame<'_>, area: Rect, view: &View, look: Look) {
    let members = view.members();
    let filtered = match view.filter.as_str() {
        "" => String::new(),
        filter => format!(" of {}, with \"{filter}\"", view.sample.members.len()),
    };
    let title = format!("members: {}{filtered}, by {}", members.len(), view.sort.name());
    let rows = members.iter().map(|member| {
        let rate = view.member_rates.get(&member.id);
        let rate = rate.map_or_else(|| "-".to_owned(), |rate| per_second(*rate));
        let row = Row::new(vec![
            Cell::from(member.label.clone()),
            Cell::from(member.role.clone()),
            Cell::from(format!("{:>9}", member.done)),
            Cell::from(format!("{:>7}", member.failed)),
            Cell::from(format!("{rate:>9}")),
            Cell::from(format!("{:>4}", member.in_flight)),
            Cell::from(format!("{:>7}", times::span(member.seen))),
            Cell::from(member.place.clone()),
        ]);
        match member.role.as_str() {
            "generator" => row.style(look.paint(Color::Cyan)),
            "overdue" => row.style(look.trouble()),
            _ => row,
        }
    });
    let widths = [
        Constraint::Fill(2),
        Constraint::Length(10),
        Constraint::Length(9),
        Constraint::Length(7),
        Constraint::Length(9),
        Constraint::Length(4),
        Constraint::Length(7),
        Constraint::Fill(3),
    ];
    let head = ["LABEL", "ROLE", "     DONE", " FAILED", "     RATE", "RUNS", "   SEEN", "PROCESS"];
    let focused = view.focus == Focus::Members;
    let table = Table::new(rows, widths).header(Row::new(head)).block(list(title, focused, look));
    render_list(frame, area, table, (!members.is_empty()).then_some(view.member_at), focused);
}

fn draw_errors(frame: &mut Frame<'_>, area: Rect, view: &View, look: Look) {
    let errors = view.errors();
    let found = match view.filter.as_str() {
        "" => String::new(),
        filter => format!(", {} of the newest with \"{filter}\"", view.errors().len()),
    };
    let title = format!("failed messages: {} stored{found}, the newest first", view.sample.stored);
    let now = view.sample.time.unwrap_or(SystemTime::UNIX_EPOCH);
    let rows = errors.iter().map(|error| {
        let age = times::span(now.duration_since(error.failed_at).unwrap_or_default());
        Row::new(vec![error.id.clone(), age, error.kind.clone(), error.reason.clone()])
    });
    let widths = [
        Constraint::Length(24),
        Constraint::Length(10),
        Constraint::Length(12),
        Constraint::Fill(1),
    ];
    let head = ["ID", "AGE", "KIND", "REASON"];
    let focused = view.focus == Focus::Errors;
    let table = Table::new(rows, widths).header(Row::new(head)).block(list(title, focused, look));
    render_list(frame, area, table, (!errors.is_empty()).then_some(view.error_at()), focused);
}

/// A list that scrolls to its selected row; the row is marked only where the arrow keys move.
fn render_list(
    frame: &mut Frame<'_>,
    area: Rect,
    table: Table<'_>,
    selected: Option<usize>,
    focused: bool,
) {
    let mut state = TableState::default().with_selected(selected);
    let mark = if focused { Style::new().add_modifier(Modifier::REVERSED) } else { Style::new() };
    let table = table
        .row_highlight_style(mark)
        .highlight_spacing(HighlightSpacing::Always)
        .highlight_symbol(if focused { "> " } else { "  " });
    frame.render_stateful_widget(table, area, &mut state);
}

fn draw_notices(frame: &mut Frame<'_>, area: Rect, view: &View, look: Look) {
    let block = list("notices".to_owned(), false, look);
    let room = usize::from(block.inner(area).height);
    let all = &view.sample.notices;
    let lines: Vec<Line<'_>> = all[all.len().saturating_sub(room)..]
        .iter()
        .map(|notice| Line::from(format!("  {}  {}", notice.clock(), notice.text)))
        .collect();
    frame.render_widget(Paragraph::new(lines).block(block), area);
}

fn draw_foot(frame: &mut Frame<'_>, area: Rect, view: &View, look: Look) {
    let line = match &view.mode {
        Mode::Filter => {
            Line::from(format!("filter: {}_   Enter keeps it, Esc clears it", view.filter))
        }
        Mode::Confirm => {
            let id = view.error_id.as_deref().unwrap_or_default();
            Line::styled(format!("put {id} back to work? y/n"), look.paint(Color::Yellow))
        }
        _ if !view.remark.is_empty() => {
            let style = if view.is_away { look.trouble() } else { look.paint(Color::Yellow) };
            Line::styled(view.remark.clone(), style)
        }
        _ => Line::from(KEYS),
    };
    frame.render_widget(Paragraph::new(line), area);
}

fn draw_error(frame: &mut Frame<'_>, area: Rect, view: &View, look: Look) {
    let Some(ErrorRow { id, kind, reason, who, attempt, failed_at, payload, .. }) = view.error()
    else {
        return;
    };
    let field = |name: &'static str, value: String| {
        Line::from(vec![Span::styled(format!("{name:<9}"), look.title()), Span::raw(value)])
    };
    let mut lines = vec![
        field("failed", times::point(*failed_at)),
        field("member", who.clone()),
        field("attempt", attempt.to_string()),
        field("reason", reason.clone()),
        field("payload", payload.clone()),
    ];
    if !kind.is_empty() {
        lines.insert(1, field("kind", kind.clone()));
    }
    popup(frame, area, &format!(" {id}   r requeue   Esc back "), lines, look);
}

/// A box over the lists.
fn popup(frame: &mut Frame<'_>, area: Rect, title: &str, lines: Vec<Line<'_>>, look: Look) {
    let width = area.width.saturating_sub(8).clamp(20, 120).min(area.width);
    let height = area.height.saturating_sub(6).clamp(3, 24).min(area.height);
    let room = Rect {
        x: area.x + (area.width - width) / 2,
        y: area.y + (area.height - height) / 2,
        width,
        height,
    };
    let block = Block::bordered().title(Span::styled(title.to_owned(), look.title()));
    frame.render_widget(Clear, room);
    frame.render_widget(Paragraph::new(lines).wrap(Wrap { trim: false }).block(block), room);
}
