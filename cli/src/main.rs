//! The program: join a fleet, look at it, take its errors.
//!
//! Data goes to stdout, everything else to stderr; exit codes are in [`exit`].

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
mod printer;
mod repeats;
mod settings;
mod signals;
mod table;
mod times;
mod variables;

use std::ffi::OsString;

use args::{Action, Args};
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
    // Do not wait for tasks that still run: all important output is flushed already.
    runtime.shutdown_background();
    match result {
        Ok(code) => code.into(),
        Err(failure) => printer::report(&failure),
    }
}

async fn perform(args: Args, words: &[OsString]) -> Result<u8, Failure> {
    let global = args.global.clone();
    let look = || place(&global, Need::Nothing).map(|(place, _)| place);
    let action = args.action()?;
    // A process of `verify` or `bench` has no log.
    if !matches!(action, Action::VerifyPart(_) | Action::BenchPart(_)) {
        let of_up = matches!(&action, Action::Run(run) if run.tethered);
        printer::start_log(&global, of_up);
        let (file, variables) = layers::remarks();
        if let Some(file) = file {
            tracing::info!("settings are read from {}", file.display());
        }
        variables.iter().for_each(|variable| tracing::warn!("{variable}"));
    }
    match action {
        Action::Run(run) => commands::run::run(&global, Start::of_run(&run)).await,
        Action::Work(work) => commands::run::run(&global, Start::of_work(&work)).await,
        Action::Up(up) => commands::up::up(&global, &up, layers::passed_on(words)?).await,
        Action::Send(options) => commands::send::send(&look()?, &options).await,
        Action::Errors(command) => commands::errors::errors(&look()?, &command).await,
        Action::Schedule(command) => commands::schedule::schedule(&look()?, &command).await,
        Action::Cron(command) => commands::cron::cron(&look()?, &command).await,
        Action::Pause(what) => commands::orders::pause(&look()?, &what).await,
        Action::Resume(what) => commands::orders::resume(&look()?, &what).await,
        Action::Drain(member) => commands::orders::drain(&look()?, &member).await,
        Action::StepDown => commands::orders::step_down(&look()?).await,
        Action::CleanTemp => commands::clean::clean(&look()?).await,
        Action::Show { id, json } => commands::show::show(&look()?, &id, json).await,
        Action::Data(command) => commands::data::data(&look()?, &command).await,
        Action::Fleets { json } => commands::fleets::fleets(&look()?, json).await,
        Action::Fleet(command) => commands::fleets::fleet(&look()?, &command).await,
        Action::Status(options) => commands::status::status(&look()?, &options).await,
        Action::Stats { json } => commands::stats::stats(&look()?, json).await,
        Action::Doctor { json } => {
            commands::doctor::doctor(&look()?, &settings::private(&global)?, json).await
        }
        Action::Event(command) => commands::event::event(&look()?, &command).await,
        Action::Lock(command) => commands::lock::lock(&look()?, &command).await,
        Action::Verify(options) => commands::verify::verify(&global, &options, words).await,
        Action::VerifyPart(part) => commands::verify::part(&global, part).await,
        Action::Bench(options) => commands::bench::bench(&global, &options, words).await,
        Action::BenchPart(part) => commands::bench::part(&global, part).await,
        Action::Embedded(command) => {
            commands::embedded::embedded(&settings::private(&global)?, &command)
        }
        Action::Config(command) => {
            commands::config::config(&global, &command, &layers::told(words))
        }
        Action::Completions(shell) => commands::pages::completions(shell),
        Action::Man(words) => commands::pages::man(&words),
    }
}
