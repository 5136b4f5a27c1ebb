//! The program: join a fleet, look at it, take its errors.
//!
//! Data goes to stdout, everything else to stderr; exit codes are in [`exit`].

mod alerts;
mod archive;
mod args;
mod builtin;
mod commands;
mod embedded;
mod exit;
mod external;
mod file;
mod harmless;
mod http;
mod layers;
mod log_file;
mod otlp;
mod printer;
mod repeats;
mod secret;
mod settings;
mod signals;
mod supervisor;
mod table;
mod times;
mod variables;
mod watchers;

use std::ffi::OsString;

use args::{Args, Command};
use commands::run::Start;
use exit::Failure;
use settings::{Need, place};

fn main() -> std::process::ExitCode {
    let words: Vec<OsString> = std::env::args_os().collect();
    let args = match layers::read(&words) {
        Ok(args) => args,
        Err(failure) => return printer::report(&failure),
    };
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return printer::report(&Failure::new(exit::FAILURE, error.to_string())),
    };
    let result = runtime.block_on(perform(args, &words));
    otlp::end();
    // Do not wait for tasks that still run: all important output is flushed already.
    runtime.shutdown_background();
    printer::end_log();
    match result {
        Ok(code) => code.into(),
        Err(failure) => printer::report(&failure),
    }
}

async fn perform(args: Args, words: &[OsString]) -> Result<u8, Failure> {
    let global = args.global.clone();
    let look = || place(&global, Need::Nothing).map(|(place, _)| place);
    let action = args.action()?;
    if !matches!(action, Command::Serve(_)) {
        global.one_fleet()?;
    }
    // A process of `verify` or `bench` has no log.
    if !matches!(action, Command::VerifyPart(_) | Command::BenchPart(_)) {
        let of_up = matches!(&action, Command::Run(run) if run.tethered);
        let (file, traced) = match &action {
            Command::Run(run) => (Some(&run.process.log), Some(&run.process.traces)),
            Command::Work(work) => (Some(&work.process.log), Some(&work.process.traces)),
            Command::Send(send) => (None, Some(&send.traces)),
            _ => (None, None),
        };
        let traced = traced.map(|traced| otlp::start(traced, global.fleet())).transpose()?;
        printer::start_log(&global.output, file, of_up, traced.flatten())?;
        let (file, variables) = layers::remarks();
        if let Some(file) = file {
            tracing::info!("settings are read from {}", file.display());
        }
        variables.iter().for_each(|variable| tracing::warn!("{variable}"));
    }
    match action {
        Command::Run(run) => commands::run::run(&global, Start::of_run(&run)).await,
        Command::Work(work) => commands::run::run(&global, Start::of_work(&work)).await,
        Command::Up(up) => commands::up::up(&global, &up, layers::passed_on(words)?).await,
        Command::Send(options) => commands::send::send(&look()?, &options).await,
        Command::GetErrors(args) => commands::take::take(&look()?, &args).await,
        Command::Errors(command) => commands::errors::errors(&look()?, &command).await,
        Command::Schedule(command) => commands::schedule::schedule(&look()?, &command).await,
        Command::Cron(command) => commands::cron::cron(&look()?, &command).await,
        Command::Pause(what) => commands::orders::pause(&look()?, &what).await,
        Command::Resume(what) => commands::orders::resume(&look()?, &what).await,
        Command::Drain { member } => commands::orders::drain(&look()?, &member).await,
        Command::StepDown => commands::orders::step_down(&look()?).await,
        Command::Clean(_) => commands::clean::clean(&look()?).await,
        Command::Show { id, json } => commands::show::show(&look()?, &id, json).await,
        Command::Data(command) => commands::data::data(&look()?, &command).await,
        Command::Fleets { json } => commands::fleets::fleets(&look()?, json).await,
        Command::Fleet(command) => commands::fleets::fleet(&look()?, &command).await,
        Command::Status(options) => commands::status::status(&look()?, &options).await,
        Command::Top(options) => commands::top::top(&look()?, &options).await,
        Command::Serve(options) => commands::serve::serve(&global, &options).await,
        Command::Stats { json } => commands::stats::stats(&look()?, json).await,
        Command::History(options) => match &options.archive {
            Some(place) => commands::history::archived(place, &options),
            None => commands::history::history(&look()?, &options).await,
        },
        Command::Doctor { json } => {
            commands::doctor::doctor(&look()?, &settings::private(&global)?, json).await
        }
        Command::Notify(command) => commands::notify::notify(global.fleet(), &command).await,
        Command::Event(command) => commands::event::event(&look()?, &command).await,
        Command::Lock(command) => commands::lock::lock(&look()?, &command).await,
        Command::Verify(options) => commands::verify::verify(&global, &options, words).await,
        Command::VerifyPart(part) => commands::verify::part(&global, part).await,
        Command::Bench(options) => commands::bench::bench(&global, &options, words).await,
        Command::BenchPart(part) => commands::bench::part(&global, part).await,
        Command::Embedded(command) => {
            commands::embedded::embedded(&settings::private(&global)?, &command)
        }
        Command::Config(command) => {
            commands::config::config(&global, &command, &layers::told(words))
        }
        Command::Completions { shell } => commands::pages::completions(shell),
        Command::Man { command } => commands::pages::man(&command),
    }
}
