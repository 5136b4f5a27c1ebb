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

/// The memory that this process uses, if the system reports it.
pub(crate) fn memory_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok().map(|kb| kb * 1024)
}
