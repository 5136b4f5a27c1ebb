//! The documented exit codes, and the error and hint that belong to a code other than 0.

use artel::{BadAddress, Unfit, Unreached};

/// Success; also after a clean drain on SIGTERM or Ctrl-C.
pub(crate) const OK: u8 = 0;
/// Something failed.
pub(crate) const FAILURE: u8 = 1;
/// The command line is wrong.
pub(crate) const USAGE: u8 = 2;
/// Redis cannot be reached.
pub(crate) const UNREACHABLE: u8 = 3;
/// It did not happen within the given time.
pub(crate) const TIMED_OUT: u8 = 4;
/// It is not found, not set or not held.
pub(crate) const NOT_FOUND: u8 = 5;
/// The fleet does not do its work: it has no members, or nobody leads or works although somebody
/// should.
pub(crate) const UNHEALTHY: u8 = 6;

/// What did not happen, why, and what to try.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) code: u8,
    pub(crate) error: String,
    pub(crate) hint: Option<String>,
}

impl Failure {
    pub(crate) fn new(code: u8, error: impl Into<String>) -> Failure {
        Failure { code, error: error.into(), hint: None }
    }

    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Failure {
        self.hint = Some(hint.into());
        self
    }
}

/// An error of the operating system.
impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Failure {
        Failure::new(FAILURE, error.to_string())
    }
}

impl From<artel::Error> for Failure {
    fn from(error: artel::Error) -> Failure {
        use artel::Error;
        let text = error.to_string();
        match error {
            Error::Config { field, ref problem } => misconfigured(field, problem),
            Error::Address { ref why } => {
                let name = crate::layers::name_of("redis");
                Failure::new(USAGE, format!("{name} {why}")).hint(address_hint(why))
            }
            Error::Unreachable { why, .. } => {
                Failure::new(UNREACHABLE, text).hint(unreachable_hint(why))
            }
            Error::NoAnswer { .. } => Failure::new(UNREACHABLE, text)
                .hint("is it busy, frozen or behind a firewall? `redis-cli ping` should answer"),
            Error::Denied { why, .. } => Failure::new(FAILURE, text).hint(denied_hint(why)),
            Error::Conflict { ref field, ref theirs, .. } => {
                let flag = field.trim_end_matches("_ms").replace('_', "-");
                let hint = format!(
                    "leave out `--{flag}` to take the fleet's {theirs}, or stop all members first \
                     (`artel clean --temp` ends those that are dead)"
                );
                Failure::new(FAILURE, text).hint(hint)
            }
            Error::Protocol { ref theirs, ours, .. } => {
                let newer = theirs.parse::<u32>().is_ok_and(|theirs| theirs > ours);
                Failure::new(FAILURE, text).hint(match newer {
                    true => "this program is older than the fleet: use the newer version",
                    false => {
                        "two versions cannot share a fleet: stop all of its processes, then start all of \
                         them with one version"
                    }
                })
            }
            Error::SlotMoving { .. } => Failure::new(UNHEALTHY, text).hint(
                "try again when the slot is there. If nobody is moving it, \
                 `redis-cli --cluster fix HOST:PORT` ends what was left half done",
            ),
            Error::BeingRemoved { ref fleet } => Failure::new(FAILURE, text).hint(format!(
                "wait until it is removed; if the removal was interrupted, `artel fleet remove {fleet}` finishes it"
            )),
            Error::InDoubt { .. } => Failure::new(UNREACHABLE, text)
                .hint("`artel show ID` shows whether it was sent, once Redis answers again"),
            Error::Exhausted { .. } => Failure::new(FAILURE, text).hint(
                "correct Redis's clock; if that is not enough, stop all members and lower the \
                 number by hand (docs/operations.md, \"Clocks\")",
            ),
            Error::Unreplicated { .. } => Failure::new(UNHEALTHY, text).hint(
                "`artel doctor` shows the replicas; with `--durability local` nobody waits for them",
            ),
            Error::TooFewReplicas { replicas, .. } => {
                Failure::new(FAILURE, text).hint(replicas_hint(replicas))
            }
            Error::Unfit { ref why, .. } => Failure::new(FAILURE, text).hint(unfit_hint(why)),
            Error::NotHeld { .. } => {
                Failure::new(NOT_FOUND, text).hint("`artel lock status` shows who holds it now")
            }
            Error::Full { .. } => Failure::new(FAILURE, text)
                .hint("start more workers, or give Redis more memory; `artel status` shows what waits"),
            _ => Failure::new(FAILURE, text),
        }
    }
}

fn denied_hint(why: artel::Denial) -> &'static str {
    match why {
        artel::Denial::Keys => {
            "this user may not touch the keys of this fleet: is the `--fleet` name right? \
             Its rights need `~artel:{NAME}:*`"
        }
        artel::Denial::Sentinel => {
            "the sentinels have credentials of their own: `--sentinel-password-file FILE`, and \
             `--sentinel-user NAME` if they have users"
        }
        _ => {
            "put user and password into the address, redis://user:password@host:port, \
             and give that user the rights that docs/operations.md names"
        }
    }
}

fn replicas_hint(there: u32) -> String {
    match there {
        0 => "start replicas, or leave out `--durability`".to_owned(),
        n => format!("start more replicas, or try `--durability replicated:{n}`"),
    }
}

/// A setting with an invalid value, by the name that the user knows.
fn misconfigured(field: &str, problem: &str) -> Failure {
    let hint = match field {
        "fleet" => "try `--fleet orders`",
        "tls_ca" => "it should have a line `-----BEGIN CERTIFICATE-----`",
        "dedup" | "kind" | "lane" | "message" | "expires" => {
            "`artel send --help` shows what is allowed"
        }
        "retries" => "try `--retries 5`; at most 1000",
        "due" => "try `--in 10m`; at most 366 days ahead",
        "cron" | "entry" => "`artel cron set --help` shows what is allowed",
        "member" => "`artel status` shows the members",
        "alert" => "`artel notify rules` shows the rules",
        "alert_to" => "at most 8 sinks, each once",
        "backoff" => "try `--backoff 5s..1h`",
        "event" => "try a name such as `new-prices`",
        "lock" => "try a name such as `nightly-report`",
        "reread_every" | "ttl" => "`artel event --help` shows what is allowed",
        "id" => "`artel send` prints the id of each message that is given as an argument",
        "timeout" => "try `--timeout 5s`",
        "cursor" => "`artel errors list` says where the next page begins",
        _ => "`artel run --help` shows the defaults",
    };
    let name = match field {
        // Arguments, not options.
        "event" | "lock" => format!("the name of the {field}"),
        "id" => "the id".to_owned(),
        "cron" => "the periodic entry:".to_owned(),
        "entry" => "the name of the entry".to_owned(),
        "due" => "its time".to_owned(),
        "message" => "the message cannot be added:".to_owned(),
        "member" => "it".to_owned(),
        // Options with another name on the command line.
        "reread_every" => crate::layers::name_of("consumer-timeout"),
        "takeover_step" => crate::layers::name_of("takeover-timeout"),
        _ => crate::layers::name_of(&field.replace('_', "-")),
    };
    Failure::new(USAGE, format!("{name} {problem}")).hint(hint)
}

/// What to try with an address that cannot be used.
fn address_hint(why: &BadAddress) -> &'static str {
    match why {
        BadAddress::NotTls => "write rediss:// instead of redis://",
        BadAddress::Insecure => "pass the certificate to trust with `--tls-ca <FILE>`",
        BadAddress::Hash => "write `%23` for #",
        BadAddress::NoMaster => "try `--redis redis-sentinel://HOST:26379?master=mymaster`",
        _ => "try `--redis redis://127.0.0.1:6379`",
    }
}

/// What to try with a server that cannot keep the promise.
fn unfit_hint(why: &Unfit) -> &'static str {
    match why {
        Unfit::Evicts { .. } => "`redis-cli config set maxmemory-policy noeviction`",
        Unfit::TooOld { .. } => "Artel needs Redis 7.0 or Valkey 7.2, or later",
        Unfit::Occupied { .. } => "use another name, or another `--fleet`",
        _ => "use another `--fleet` name or another `--db`",
    }
}

/// What to try with a Redis that cannot be reached.
fn unreachable_hint(why: Unreached) -> &'static str {
    match why {
        Unreached::UnknownAuthority => {
            "the server's certificate is signed by an authority that is not trusted here: \
             pass its certificate with `--tls-ca <FILE>`"
        }
        Unreached::OtherName => {
            "the server's certificate is for another name: use a name it is for in the address"
        }
        Unreached::Expired => {
            "the server's certificate has expired: renew it (or is this machine's clock wrong?)"
        }
        Unreached::CertificateWanted => {
            "the server asks for a client certificate: pass one with `--tls-cert <FILE> --tls-key <FILE>`"
        }
        Unreached::CertificateRefused => {
            "the server refuses the TLS connection: is the client certificate (`--tls-cert`) signed by \
             an authority that the server trusts?"
        }
        Unreached::NoTls => "write redis:// instead of rediss://, or give the port that speaks TLS",
        Unreached::OnlyTls => "write rediss:// instead of redis://",
        Unreached::Replica => {
            "give the address of the primary, or of the sentinels: redis-sentinel://HOST:26379?master=NAME"
        }
        Unreached::UnknownMaster => "`redis-cli -p 26379 sentinel masters` lists the names",
        Unreached::NoCluster => "write redis:// for a single server",
        Unreached::NoSentinel => "are they running? Sentinels usually have port 26379",
        Unreached::Circle => {
            "a node of this cluster is wrong about who owns the slot: `redis-cli --cluster check HOST:PORT`"
        }
        Unreached::NoPrimary => {
            "`redis-cli --cluster check HOST:PORT`, or `redis-cli -p 26379 sentinel masters`, says what is missing"
        }
        Unreached::NotRedis => "is the port right? Redis usually has 6379",
        Unreached::PerhapsTls => {
            "is it a TLS port? `rediss://` is for TLS, `redis://` for plain connections"
        }
        _ => "start Redis, or pass `--redis <URL>`",
    }
}
