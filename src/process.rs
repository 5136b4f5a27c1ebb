//! This process, as other people see it.

/// The name of this machine.
pub(crate) fn host() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// Who asks, for the common log: `user@host:pid`, or `host:pid` if the environment names no user.
pub(crate) fn who() -> String {
    let user = std::env::var("USER").ok().filter(|user| !user.is_empty());
    let user = user.map_or_else(String::new, |user| format!("{user}@"));
    let who = format!("{user}{}:{}", host(), std::process::id());
    who.chars().filter(|c| !c.is_control()).take(100).collect()
}
