//! `artel top`: a fleet on one screen, live.
//!
//! **Invariant:** keys are answered also while Redis is not. The terminal is given back as it was, whatever ends this.

mod draw;
mod sample;
#[cfg(test)]
mod tests;
mod view;

use std::time::Duration;

use artel::Fleet;
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::buffer::Buffer;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

use crate::args::TopArgs;
use crate::exit::{FAILURE, Failure, OK, USAGE};
use crate::harmless::harmless;
use crate::printer;
use crate::settings::Place;
use crate::signals::Signals;
use draw::{Look, draw};
use sample::{Reader, Sample};
use view::{Action, View};

/// The size of a frame where there is no terminal.
const SIZE: (u16, u16) = (80, 24);
/// The shortest time between two readings.
const EVERY_MIN: Duration = Duration::from_millis(100);

/// What changes the view.
enum News {
    Sample(Box<Sample>),
    Away(String),
    Remark(String),
}

pub(crate) async fn top(place: &Place, args: &TopArgs) -> Result<u8, Failure> {
    let every = args.every.max(EVERY_MIN);
    let mut reader = Reader::new(place.open()?);
    let mut view = View::new();
    view.update(reader.read().await?);
    let look = Look { coloured: printer::screen().coloured };
    if args.once {
        tokio::time::sleep(every).await;
        view.update(reader.read().await?);
        let size = printer::size().unwrap_or(SIZE);
        printer::shown(&text(&frame(&view, size)))?;
        return Ok(OK);
    }
    if !printer::has_terminal() {
        return Err(Failure::new(USAGE, "top needs a terminal").hint(
            "`artel top --once` prints one frame, `artel status --watch` a page each second",
        ));
    }
    show(place.open()?, reader, view, look, every).await
}

async fn show(
    fleet: Fleet,
    reader: Reader,
    mut view: View,
    look: Look,
    every: Duration,
) -> Result<u8, Failure> {
    let mut signals = Signals::catch()?;
    // A core dump is of no use here: give the terminal back.
    let mut quit =
        signal(SignalKind::quit()).map_err(|error| Failure::new(FAILURE, error.to_string()))?;
    let (tell, mut news) = mpsc::channel(8);
    let reading = tokio::spawn(read_on(reader, every, tell.clone()));
    let mut keys = printer::keys();
    let mut screen = printer::full_screen()?;
    let code = loop {
        screen.draw(|frame| draw(frame, &view, look))?;
        tokio::select! {
            code = signals.next() => break if code == 130 { OK } else { code },
            _ = quit.recv() => break 131,
            Some(news) = news.recv() => match news {
                News::Sample(sample) => view.update(*sample),
                News::Away(why) => view.away(why),
                News::Remark(text) => view.remark = text,
            },
            key = keys.recv() => match key {
                // The terminal is gone.
                None => break OK,
                // Another size: draw again.
                Some(None) => {}
                Some(Some(key)) => match view.key(key) {
                    Action::None => {}
                    Action::Quit => break OK,
                    Action::Requeue(record) => {
                        let (errors, tell) = (fleet.errors(), tell.clone());
                        tokio::spawn(async move {
                            let put_back = errors.requeue(None).put_back(&[*record]).await;
                            let text = match put_back {
                                Ok(done) if done.messages > 0 => "it is back at work, under a new id".to_owned(),
                                Ok(_) => "that message is no longer stored".to_owned(),
                                Err(error) => harmless(&error.to_string()),
                            };
                            let _ = tell.send(News::Remark(text)).await;
                        });
                    }
                },
            },
        }
    };
    reading.abort();
    drop(screen);
    Ok(code)
}

/// Reads the fleet again and again.
async fn read_on(mut reader: Reader, every: Duration, tell: mpsc::Sender<News>) {
    let mut ticks = tokio::time::interval(every);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    ticks.tick().await;
    loop {
        ticks.tick().await;
        let news = match reader.read().await {
            Ok(sample) => News::Sample(Box::new(sample)),
            Err(error) => News::Away(harmless(&error.to_string())),
        };
        if tell.send(news).await.is_err() {
            return;
        }
    }
}

/// The view as a frame of this size.
fn frame(view: &View, (width, height): (u16, u16)) -> Buffer {
    let look = Look { coloured: false };
    let Ok(mut terminal) = Terminal::new(TestBackend::new(width, height));
    let Ok(_) = terminal.draw(|frame| draw(frame, view, look));
    terminal.backend().buffer().clone()
}

/// A frame as lines.
fn text(frame: &Buffer) -> String {
    let width = usize::from(frame.area.width).max(1);
    let line = |cells: &[ratatui::buffer::Cell]| {
        let line: String = cells.iter().map(ratatui::buffer::Cell::symbol).collect();
        format!("{}\n", line.trim_end())
    };
    frame.content.chunks(width).map(line).collect()
}
