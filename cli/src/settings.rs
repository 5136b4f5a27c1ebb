//! Turns options into the configuration of the library.

use std::ffi::OsString;
use std::path::Path;

use artel::{Address, Config, Durability, Fleet};

use crate::args::{EmbeddedMode, Global, LeaderWorks, MakeArgs, MemberArgs};
use crate::embedded::{self, Embedded, Hold};
use crate::exit::{FAILURE, Failure, UNREACHABLE, USAGE};
use crate::{file, printer, variables};

/// Where the fleet is.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    pub(crate) redis: Address,
    pub(crate) fleet: String,
    /// When what is told counts as done.
    pub(crate) durability: Durability,
}

impl Place {
    /// The fleet, without a connection.
    pub(crate) fn open(&self) -> Result<Fleet, artel::Error> {
        Fleet::open(&self.redis, &self.fleet)
    }

    /// The fleet, connected to a Redis that was checked.
    pub(crate) async fn connect(&self) -> Result<Fleet, artel::Error> {
        Fleet::connect(&self.redis, &self.fleet).await?.durable(self.durability).await
    }

    /// The fleet, for a command that tells what it changed. It connects only if replicas must be there.
    pub(crate) async fn lasting(&self) -> Result<Fleet, artel::Error> {
        self.open()?.durable(self.durability).await
    }
}

/// What to do when no address is given and nothing answers.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Need {
    /// Start the private server.
    Server,
    /// Report an error.
    Nothing,
}

/// The address that was given. If none was given: the private server if it answers, else localhost
/// if it answers, else as `need` says. An address that was given is never replaced by another.
///
/// While the hold is kept, the private server is not stopped as unused.
pub(crate) fn place(global: &Global, need: Need) -> Result<(Place, Option<Hold>), Failure> {
    let (url, hold) = match url(global)? {
        Some(url) => {
            // The private server is found without an address, so this one does not count as given.
            if !private(global).is_ok_and(|private| private.url() == url) {
                variables::address_given();
            }
            (url, None)
        }
        None => default_url(global, need)?,
    };
    let mut redis = Address::new(url);
    if let Some(ca) = &global.tls_ca {
        redis = redis.with_ca(read(ca)?);
    }
    if let (Some(certificate), Some(key)) = (&global.tls_cert, &global.tls_key) {
        redis = redis.with_identity(read(certificate)?, read(key)?);
    }
    if let Some(path) = &global.sentinel_password_file {
        let password = String::from_utf8(read(path)?).unwrap_or_default();
        redis = redis.with_sentinel_login(global.sentinel_user.clone(), password.trim_end());
    }
    let (fleet, durability) = (global.fleet().to_owned(), global.durability);
    Ok((Place { redis, fleet, durability }, hold))
}

/// The server that the command line names for `verify` or `bench`, if it does. An address from the environment or from a
/// file may be that of a production server, so it is not used.
pub(crate) fn named_server(
    command: &str,
    global: &Global,
    words: &[OsString],
) -> Result<Option<String>, Failure> {
    let said = |flag: &&str| {
        let with = format!("{flag}=");
        words.iter().any(|word| word == flag || word.to_string_lossy().starts_with(&with))
    };
    let elsewhere = ["--host", "--port", "--db", "--redis-url-file", "--fleet"];
    if let Some(word) = elsewhere.into_iter().find(said) {
        return Err(Failure::new(USAGE, format!("{command} knows no {word}")).hint(
            "`--redis redis://127.0.0.1:PORT` names a server; without it a private one is started",
        ));
    }
    Ok(global.redis.clone().filter(|url| said(&"--redis") && url != "private"))
}

/// The address that was given, if any.
fn url(global: &Global) -> Result<Option<String>, Failure> {
    if let Some(url) = &global.redis {
        return Ok(Some(url.clone()));
    }
    if let Some(path) = &global.redis_url_file {
        let text = String::from_utf8(read(path)?).unwrap_or_default();
        if text.trim().is_empty() {
            let error = format!("{} holds no address", path.display());
            return Err(Failure::new(USAGE, error)
                .hint("it should hold one line such as redis://:password@host:6379"));
        }
        return Ok(Some(text.trim().to_owned()));
    }
    if global.host.is_none() && global.port.is_none() && global.db.is_none() {
        return Ok(None);
    }
    let host = match global.host.as_deref().unwrap_or("127.0.0.1") {
        host if host.contains(':') => format!("[{host}]"), // an IPv6 address
        host => host.to_owned(),
    };
    let (port, db) = (global.port.unwrap_or(6379), global.db.unwrap_or(0));
    let scheme =
        if global.tls_ca.is_some() || global.tls_cert.is_some() { "rediss" } else { "redis" };
    Ok(Some(format!("{scheme}://{host}:{port}/{db}")))
}

fn default_url(global: &Global, need: Need) -> Result<(String, Option<Hold>), Failure> {
    if global.embedded == EmbeddedMode::Never {
        let error = "no Redis is configured, and --embedded is never";
        return Err(Failure::new(USAGE, error).hint("pass `--redis <URL>`, or set ARTEL_REDIS_URL"));
    }
    let private = private(global)?;
    // In a terminal session, each remark is printed once.
    let say = |text: &str| {
        if global.output.verbose > 0 || (!global.output.quiet && !private.was_said(text)) {
            printer::remark(text);
        }
    };
    if private.is_there()? {
        let hold = match need {
            Need::Nothing => private.wait().map(|()| None)?,
            // Under the lock, so that a process that leaves cannot stop it now.
            Need::Server => Some(private.ensure()?),
        };
        say(&format!("no Redis configured: using the private server, {}", private.url()));
        return Ok((private.url(), hold));
    }
    if embedded::localhost_answers() {
        say("no Redis configured: using the one on localhost, redis://127.0.0.1:6379");
        return Ok(("redis://127.0.0.1:6379".to_owned(), None));
    }
    if need == Need::Nothing {
        let error = "no Redis is configured, none answers on localhost, and no private server runs";
        return Err(Failure::new(UNREACHABLE, error)
            .hint("pass `--redis <URL>`, or start a fleet first: `artel up`, `artel run`"));
    }
    let hold = private.ensure()?;
    let verb = if hold.started { "started" } else { "using" };
    say(&format!(
        "no Redis configured: {verb} the private server, {} (this machine only, for trying out; \
         `artel embedded stop` ends it)",
        private.url()
    ));
    Ok((private.url(), Some(hold)))
}

/// The private server of this user.
pub(crate) fn private(global: &Global) -> Result<Embedded, Failure> {
    Embedded::new(global.data_dir.as_deref(), global.server.as_deref())
}

fn read(path: &Path) -> Result<Vec<u8>, Failure> {
    file::read(path).map_err(|error| {
        Failure::new(FAILURE, format!("cannot read {}: {error}", path.display()))
            .hint("is the path right, and may this user read it?")
    })
}

/// The configuration of a member; without `make` it never leads.
pub(crate) fn config(make: Option<&MakeArgs>, args: &MemberArgs) -> Config {
    let mut config = Config::default();
    if let Some(make) = make {
        config.messages_max = make.max_messages;
        config.interval = make.interval;
        config.leader_works = match make.leader_works {
            LeaderWorks::Never => artel::LeaderWorks::Never,
            LeaderWorks::Alone => artel::LeaderWorks::Alone,
            LeaderWorks::Always => artel::LeaderWorks::Always,
        };
    }
    config.lease = args.lease;
    config.attempts_max = args.attempts_max;
    config.takeover_step = args.takeover_timeout;
    config.handler_timeout = args.handler_timeout;
    config.retries = args.retries;
    config.backoff = args.backoff.clone();
    config.backlog_max = args.backlog_max;
    config.errors_max = args.errors_max;
    config.lane_weights = args.lane_weights;
    config.ledger = args.ledger;
    config.stop_grace = args.stop_grace;
    if args.replicas > 0 {
        config.durability = Durability::Replicated(args.replicas);
    }
    if let Some(concurrency) = args.concurrency {
        config.concurrency = concurrency;
    }
    config
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::RunArgs;
    use clap::Parser;

    #[derive(Parser)]
    struct Only {
        #[command(flatten)]
        run: RunArgs,
    }

    /// The help shows the defaults of the program; they must be those of the library.
    #[test]
    fn the_defaults_are_the_library_s() {
        let run = Only::parse_from(["artel"]).run;
        let config = config(Some(&run.make), &run.member);
        assert_eq!(format!("{config:?}"), format!("{:?}", Config::default()));
    }
}
