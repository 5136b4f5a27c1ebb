//! The program: join a fleet, look at it, take its errors.
//!
//! Data goes to stdout, everything else to stderr; exit codes are in [`exit`].

mod args;
mod builtin;
mod commands;
mod exit;
mod printer;
mod settings;
mod signals;

use args::{Action, Args};
use exit::Failure;

fn main() -> std::process::ExitCode {
    let args = match Args::read() {
        Ok(args) => args,
        Err(failure) => return printer::report(&failure),
    };
    printer::start_log(&args.global);
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return printer::report(&Failure::new(exit::FAILURE, error.to_string())),
    };
    let result = runtime.block_on(perform(args));
    // Whatever still runs is not waited for: everything that matters was flushed before.
    runtime.shutdown_background();
    match result {
        Ok(code) => code.into(),
        Err(failure) => printer::report(&failure),
    }
}

async fn perform(args: Args) -> Result<u8, Failure> {
    let place = settings::place(&args.global)?;
    match args.action()? {
        Action::Run(run) => commands::run::run(&place, &run).await,
        Action::GetErrors(options) => commands::errors::take(&place, &options).await,
        Action::CleanTemp => commands::clean::clean(&place).await,
        Action::Status(options) => commands::status::status(&place, &options).await,
    }
}
