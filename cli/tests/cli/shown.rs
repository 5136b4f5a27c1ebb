//! Every block of code on the README and on the pages under `docs/` is run: commands by a shell, programs as the
//! examples that they are copied from.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use artel_rig::{Server, eventually};

/// Commands that no test can run, and what runs them.
const ELSEWHERE: [(&str, &str); 3] = [
    ("./dev up", "people; `up.rs` tests the program behind it"),
    ("./dev test", "CI, and this test is a part of it"),
    ("cargo install --path cli", "people; CI builds the same package"),
];
/// These run until they are stopped.
const SERVICES: [&str; 2] = ["artel work", "artel run"];
/// How long one line may take.
const PATIENCE: Duration = Duration::from_secs(120);

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn read(path: impl AsRef<Path>) -> String {
    std::fs::read_to_string(root().join(&path))
        .unwrap_or_else(|error| panic!("{}: {error}", path.as_ref().display()))
}

/// The pages with blocks of code; `commands.md` is what `--help` says.
fn pages() -> Vec<PathBuf> {
    let mut pages = vec![PathBuf::from("README.md")];
    let docs = std::fs::read_dir(root().join("docs")).expect("a folder").flatten();
    pages.extend(docs.map(|entry| Path::new("docs").join(entry.file_name())));
    pages.retain(|page| page.extension().is_some_and(|ending| ending == "md"));
    pages.retain(|page| page.file_name().is_some_and(|name| name != "commands.md"));
    assert!(pages.len() > 5, "{pages:?}");
    pages.sort();
    pages
}

/// The blocks of a page: language and text. `./dev record` runs the command of the recording.
fn blocks(page: &Path) -> Vec<(String, String)> {
    let text = read(page);
    let text =
        match (text.split_once("<!-- recording -->"), text.split_once("<!-- end of recording -->"))
        {
            (Some((before, _)), Some((_, after))) => format!("{before}{after}"),
            _ => text,
        };
    let parts: Vec<&str> = text.split("```").collect();
    assert!(parts.len() % 2 == 1, "{}: a block without an end", page.display());
    let inside =
        parts.into_iter().skip(1).step_by(2).map(|block| block.split_once('\n').expect("a line"));
    inside.map(|(language, text)| (language.to_owned(), text.to_owned())).collect()
}

/// All files of these folders, without indentation.
fn flat_sources(folders: &[&str]) -> Vec<String> {
    let files =
        folders.iter().flat_map(|folder| std::fs::read_dir(root().join(folder)).expect("a folder"));
    let files = files.flatten().map(|entry| entry.path()).filter(|path| path.is_file());
    files.map(|path| flat(&std::fs::read_to_string(path).expect("a text"))).collect()
}

fn flat(text: &str) -> String {
    text.lines().map(str::trim).fold(String::new(), |all, line| all + line + "\n")
}

/// The program takes these settings.
#[track_caller]
fn are_settings(text: &str) {
    let dir = tempfile::tempdir().expect("a folder");
    let (page, file) = (dir.path().join("page.sh"), dir.path().join("artel.toml"));
    std::fs::write(&page, "#!/bin/sh\n").expect("written");
    let executable = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(&page, executable).expect("executable");
    std::fs::write(&file, text).expect("written");
    let mut command = Command::new(env!("CARGO_BIN_EXE_artel"));
    let output =
        command.args(["config", "check"]).current_dir(dir.path()).output().expect("it runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn every_program_on_a_page_is_an_example_that_is_run() {
    let examples =
        flat_sources(&["examples", "examples/handlers", "examples/languages", "examples/http"]);
    let mut seen = 0;
    for page in pages() {
        for (language, text) in blocks(&page) {
            match language.as_str() {
                "rust" | "sh" | "python" | "js" => {
                    let text = flat(&text);
                    let found = examples.iter().any(|example| example.contains(&text));
                    assert!(found, "{}: no example has this:\n{text}", page.display());
                    seen += 1;
                }
                "toml" => {
                    let table = toml::de::DeTable::parse(&text).expect("TOML");
                    match table.get_ref().get("dependencies") {
                        Some(dependencies) => {
                            let dependencies = dependencies.get_ref().as_table().expect("a table");
                            assert!(dependencies.contains_key("artel"));
                        }
                        None => are_settings(&text),
                    }
                }
                // An alert, with every field that a sink gets.
                "json" => {
                    let shown: serde_json::Value = serde_json::from_str(&text).expect("JSON");
                    let alert = serde_json::from_value::<artel::hub::notify::Alert>(shown.clone());
                    let alert = serde_json::to_value(alert.expect("an alert")).expect("JSON");
                    assert_eq!(alert, shown, "{}", page.display());
                }
                "console" | "text" => {} // the other test
                other => panic!("{}: how is a block of {other:?} run?", page.display()),
            }
        }
    }
    assert!(seen > 10, "{seen}");
    let tests = read("tests/examples.rs");
    for entry in std::fs::read_dir(root().join("examples")).expect("a folder").flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let run = name
            .strip_suffix(".rs")
            .is_none_or(|name| tests.contains(&format!("example(\"{name}\")")));
        assert!(run, "tests/examples.rs does not run {name}");
    }
}

/// A shell to which lines are given one by one.
struct Shell {
    child: Child,
    input: ChildStdin,
    lines: Receiver<String>,
    services: Vec<String>,
    waits: Vec<String>,
}

impl Shell {
    fn new(dir: &Path, url: &str) -> Shell {
        let programs =
            Path::new(env!("CARGO_BIN_EXE_artel")).parent().expect("a folder").to_owned();
        let path = format!("{}:{}", programs.display(), std::env::var("PATH").expect("a path"));
        let mut child = Command::new("sh")
            .current_dir(dir)
            .env_clear()
            .envs([
                ("PATH", path.as_str()),
                ("HOME", &dir.display().to_string()),
                ("EDITOR", "true"),
            ])
            .env("ARTEL_REDIS_URL", url)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(std::fs::File::create(dir.join("stderr")).expect("a file"))
            .spawn()
            .expect("a shell");
        let (sender, lines) = channel();
        let output = BufReader::new(child.stdout.take().expect("piped"));
        std::thread::spawn(move || {
            output.lines().map_while(Result::ok).try_for_each(|line| sender.send(line))
        });
        let input = child.stdin.take().expect("piped");
        Shell { child, input, lines, services: Vec::new(), waits: Vec::new() }
    }

    /// Runs these lines; the status of the last, and everything they print.
    fn status(&mut self, lines: &str) -> (String, String) {
        writeln!(self.input, "{lines}\nprintf '\\n@@%s\\n' $?").expect("the shell reads");
        let mut output = String::new();
        loop {
            let line =
                self.lines.recv_timeout(PATIENCE).unwrap_or_else(|_| panic!("no end: {lines}"));
            match line.strip_prefix("@@") {
                Some(status) => return (status.to_owned(), output.trim().to_owned()),
                None => output = output + &line + "\n",
            }
        }
    }

    fn run(&mut self, line: &str) -> String {
        let (status, output) = self.status(&format!("{{ {line}\n}} </dev/null"));
        assert_eq!(status, "0", "{line}\n{output}");
        output
    }

    /// Starts a line and leaves it running; its process.
    fn start(&mut self, line: &str, exec: &str) -> String {
        let (_, process) =
            self.status(&format!("( {exec}{line}\n) </dev/null >/dev/null & echo $!"));
        process
    }

    /// What a reader of the page does with a line.
    fn follow(&mut self, line: &str, old: &Server, new: &Server) {
        if let Some(arguments) = line.strip_prefix("redis-cli ") {
            let (_, words) = self.status(&format!("printf '%s\\n' {arguments}"));
            let words: Vec<&str> = words.lines().collect();
            let (server, words) = match words[..] {
                ["-p", port, ..] if port == new.port().to_string() => (new, &words[2..]),
                ["-p", ..] => (old, &words[2..]),
                _ => (old, &words[..]),
            };
            ask(server, words);
        } else if SERVICES.iter().any(|service| line.starts_with(service)) {
            let process = self.start(line, "exec ");
            self.services.push(process);
            eventually("it to join", || members(old) == self.services.len());
        } else if line.starts_with("artel event wait") {
            let process = self.start(line, "");
            self.waits.push(process);
        } else {
            self.run(line);
        }
        if line.starts_with("artel event set") {
            for process in std::mem::take(&mut self.waits) {
                self.run(&format!("wait {process}"));
            }
        }
    }

    /// Stops what a block started.
    fn stop_services(&mut self) {
        assert!(self.waits.is_empty(), "nothing ends a wait");
        for process in std::mem::take(&mut self.services) {
            self.run(&format!("kill -TERM {process} && wait {process}"));
        }
    }

    fn end(mut self) {
        drop(self.input);
        self.child.wait().expect("ends");
    }
}

/// How many members are in the fleets of the pages.
fn members(server: &Server) -> usize {
    let count = |fleet| {
        redis::cmd("ZCARD").arg(format!("artel:{{{fleet}}}:members")).query(&mut server.connect())
    };
    ["artel", "orders"].into_iter().map(|fleet| count(fleet).unwrap_or(0)).sum()
}

/// Runs a command of `redis-cli`. Waits until a replica has caught up, as the page says.
fn ask(server: &Server, words: &[&str]) {
    let answer = || -> redis::Value {
        let mut command = redis::cmd(words[0]);
        words[1..].iter().for_each(|word| {
            command.arg(*word);
        });
        command.query(&mut server.connect()).unwrap_or_else(|error| panic!("{words:?}: {error}"))
    };
    let behind = |answer: redis::Value| {
        let text: String = redis::from_redis_value(answer).unwrap_or_default();
        text.contains("master_link_status:down")
    };
    eventually("the new server to have everything", || !behind(answer()));
}

/// One page after the other, line by line, as a reader would.
#[test]
fn every_command_on_a_page_works() {
    let mut seen = 0;
    for page in pages() {
        let (old, new) = (Server::any(), Server::any());
        let dir = tempfile::tempdir().expect("a folder");
        for (name, text) in [
            ("handle.sh", read("examples/handlers/handle.sh")),
            ("generate.sh", read("examples/handlers/generate.sh")),
            ("mail.sh", read("examples/handlers/mail.sh")),
            ("import.sh", "#!/bin/sh\n".to_owned()),
            ("report.sh", "#!/bin/sh\n".to_owned()),
        ] {
            std::fs::write(dir.path().join(name), text).expect("written");
        }
        let mut shell = Shell::new(dir.path(), &old.url());
        shell.run("chmod +x *.sh");
        for (language, text) in blocks(&page) {
            // In two steps: a port may contain the digits of the other one.
            let text = text.replace("6379", "<old>").replace("6380", "<new>");
            let text = text.replace("<old>", &old.port().to_string());
            let text = text.replace("<new>", &new.port().to_string());
            match language.as_str() {
                "console" => {
                    for line in text.lines() {
                        let line = line.strip_prefix("$ ").expect("a command");
                        seen += 1;
                        if !ELSEWHERE.iter().any(|(command, _)| line.starts_with(command)) {
                            shell.follow(line, &old, &new);
                        }
                    }
                    shell.stop_services();
                }
                // `connections.rs` sets this user, and takes away each permission in turn.
                "text" if text.starts_with("ACL SETUSER artel ") => {}
                "text" => {
                    let mut connection = old.connect();
                    for line in text.lines() {
                        let mut words = line.split_whitespace();
                        let mut command = redis::cmd(words.next().expect("a command"));
                        words.for_each(|word| {
                            command.arg(word);
                        });
                        let () = command.query(&mut connection).expect("Redis takes it");
                    }
                }
                _ => {} // the other test
            }
        }
        shell.end();
    }
    assert!(seen > 30, "{seen}");
}
