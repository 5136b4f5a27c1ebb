use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use artel_hub::{
    ArchiveError, ArchiveStore, EventHub, History, HubNotice, JsonLinesArchive, Keys, NOTICES,
    Query, Queue, Record, SqliteArchive, Topic,
};

use crate::{LONG, Seen, eventually};

const NUMBERS: Topic<u32> = Topic::json("numbers");

fn hub_with(history: &History) -> (EventHub, artel_hub::Subscription) {
    let hub = EventHub::new();
    let keys = Keys::any(["numbers", "words/**"]).expect("keys");
    let archive = hub.subscribe(keys).name("archive").archive(history).expect("subscribed");
    (hub, archive)
}

fn stores() -> (tempfile::TempDir, Vec<History>) {
    let folder = tempfile::tempdir().expect("a folder");
    let sqlite = SqliteArchive::open(folder.path().join("history.db")).expect("opened");
    let lines =
        JsonLinesArchive::rotating(folder.path().join("lines"), 1 << 20, 4).expect("opened");
    (folder, vec![History::new(sqlite), History::new(lines)])
}

#[test]
fn an_archive_is_asked_by_key_time_and_text() {
    let (_folder, stores) = stores();
    for history in stores {
        let (hub, archive) = hub_with(&history);
        let words: Topic<String> = Topic::json("words/en");
        for number in 0..300 {
            hub.blocking_publish(&NUMBERS, number).expect("published");
        }
        for word in ["apple", "pear's \"core\"", "pineapple"] {
            hub.blocking_publish(&words, word.into()).expect("published");
        }
        hub.blocking_publish(&Topic::<u8>::new("elsewhere"), 1).expect("published");
        hub.blocking_publish(&Topic::<u8>::new("words/bare"), 1).expect("published");
        eventually("all to be committed", || archive.stats().lag == 0);
        let ask = |query: Query| history.query(&query).expect("asked");
        assert_eq!(ask(Query::all().key("numbers").unwrap()).len(), 300);
        let texts = ask(Query::all().key("words/*").unwrap().text("apple"));
        let texts: Vec<_> = texts.into_iter().map(|one| one.payload.unwrap()).collect();
        assert_eq!(texts, ["apple", "pineapple"]);
        assert_eq!(ask(Query::all().text("pear's")).len(), 1);
        assert_eq!(ask(Query::all().key("words/bare").unwrap())[0].payload, None);
        let now = SystemTime::now() + Duration::from_secs(60);
        assert_eq!(ask(Query::all().until(now)).len(), 304);
        assert_eq!(ask(Query::all().from(now)).len(), 0);
        let page = ask(Query::all().limit(100));
        let next = ask(Query::all().limit(100).after(page[99].id));
        assert_eq!(next.first().map(|one| one.payload.clone()), Some(Some(100.into())));
        let mut out = Vec::new();
        let many = history.export(&Query::all().limit(50), &mut out).expect("exported");
        let lines: Vec<Record> =
            out.lines().map(|line| serde_json::from_str(&line.unwrap()).unwrap()).collect();
        assert_eq!((many, lines.len()), (304, 304));
        assert_eq!(hub.blocking_shutdown(LONG).leftovers, 0);
    }
}

#[test]
fn archives_are_bounded_by_age_and_size() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("history.db");
    let small = SqliteArchive::open(&path).expect("opened").keep_bytes(200_000);
    let history = History::new(small);
    let (hub, archive) = hub_with(&history);
    let words: Topic<String> = Topic::json("words/long");
    let fill = |hub: &EventHub, archive: &artel_hub::Subscription| {
        for number in 0..5000 {
            let queue_has_room = || archive.stats().lag < 4000;
            eventually("room", queue_has_room);
            hub.blocking_publish(&words, format!("{number} {}", "x".repeat(100)))
                .expect("published");
        }
        eventually("all to be committed", || archive.stats().lag == 0);
        assert_eq!(archive.stats().dropped, 0);
    };
    fill(&hub, &archive);
    let kept = history.query(&Query::all().limit(10_000)).expect("asked");
    assert!(kept.len() > 500 && kept.len() < 4000, "{}", kept.len());
    assert!(kept.last().unwrap().payload.as_ref().unwrap().as_str().unwrap().starts_with("4999 "));
    hub.blocking_shutdown(LONG);

    let old = SqliteArchive::open(&path).expect("opened").keep_for(Duration::ZERO);
    let history = History::new(old);
    let (hub, archive) = hub_with(&history);
    hub.blocking_publish(&NUMBERS, 1).expect("published");
    eventually("it to be committed", || archive.stats().lag == 0);
    let left = history.query(&Query::all()).expect("asked");
    assert!(left.len() <= 1, "older than nothing is everything but the last: {}", left.len());
    hub.blocking_shutdown(LONG);

    let lines = folder.path().join("lines");
    let history = History::new(JsonLinesArchive::rotating(&lines, 100_000, 3).expect("opened"));
    let (hub, archive) = hub_with(&history);
    fill(&hub, &archive);
    hub.blocking_shutdown(LONG);
    let files: Vec<u64> = std::fs::read_dir(&lines)
        .expect("a folder")
        .map(|file| file.unwrap().path())
        .filter(|path| path.extension().is_some_and(|ending| ending == "jsonl"))
        .map(|path| path.metadata().unwrap().len())
        .collect();
    assert_eq!(files.len(), 4);
    assert!(files.iter().all(|bytes| *bytes <= 100_000), "{files:?}");
    let first = history.query(&Query::all().limit(1)).expect("asked")[0].id;
    let second = JsonLinesArchive::rotating(&lines, 100_000, 3).expect_err("one writer at a time");
    assert!(second.to_string().contains("somebody else writes there"), "{second}");
    drop((history, archive, hub));
    let again = History::new(JsonLinesArchive::rotating(&lines, 100_000, 3).expect("opened"));
    assert_eq!(again.query(&Query::all().limit(1)).expect("asked")[0].id, first);
}

/// A disk that refuses for a while: what waits is committed when it is well again, in order.
#[test]
fn a_full_disk_is_told_and_loses_nothing_that_fits_the_queue() {
    struct Sick {
        full: Arc<AtomicBool>,
        inner: SqliteArchive,
    }
    impl ArchiveStore for Sick {
        fn append(&mut self, records: &[Record]) -> Result<(), ArchiveError> {
            if self.full.load(Ordering::SeqCst) {
                let nowhere = JsonLinesArchive::rotating("/proc/no/such/folder", 1, 1);
                return Err(nowhere.expect_err("nobody can write there"));
            }
            self.inner.append(records)
        }
        fn query(&mut self, query: &Query) -> Result<Vec<Record>, ArchiveError> {
            self.inner.query(query)
        }
    }
    let folder = tempfile::tempdir().expect("a folder");
    let full = Arc::new(AtomicBool::new(true));
    let inner = SqliteArchive::open(folder.path().join("history.db")).expect("opened");
    let history = History::new(Sick { full: full.clone(), inner });
    let (hub, archive) = hub_with(&history);
    let notices = Seen::<HubNotice>::new();
    let told = hub.subscribe(&NOTICES).on(artel_hub::Context::Thread);
    let _told = told.spawn(notices.handler()).expect("subscribed");
    for number in 0..2000 {
        hub.blocking_publish(&NUMBERS, number).expect("the publisher does not wait for a disk");
    }
    eventually("the trouble to be told", || {
        let critical = |one: &HubNotice| one.severity() == artel_hub::Severity::Critical;
        notices.all().iter().any(critical)
    });
    assert_eq!(history.query(&Query::all()).expect("asked").len(), 0);
    full.store(false, Ordering::SeqCst);
    eventually("all to be committed", || archive.stats().lag == 0);
    let all = history.query(&Query::all().limit(5000)).expect("asked");
    let numbers: Vec<u64> =
        all.iter().map(|one| one.payload.clone().unwrap().as_u64().unwrap()).collect();
    assert_eq!(numbers, (0..2000).collect::<Vec<_>>());
    assert_eq!(archive.stats().dropped, 0);
    hub.blocking_shutdown(LONG);
}

/// Writes that really fail, for good: it is told, and what could not be written is a dead letter.
/// The process may not write files beyond a size, which is as good as a full disk.
#[test]
fn a_disk_that_stays_full_leaves_dead_letters() {
    const ME: &str = "history::a_disk_that_stays_full_leaves_dead_letters";
    if let Some(folder) = std::env::var_os("HUB_FULL_DISK") {
        return fill_the_disk(std::path::Path::new(&folder));
    }
    let folder = tempfile::tempdir().expect("a folder");
    let run = Command::new("sh")
        .args(["-c", "trap '' XFSZ; ulimit -f 512; exec \"$0\" --exact \"$1\" --nocapture"])
        .arg(std::env::current_exe().expect("a path"))
        .arg(ME)
        .env("HUB_FULL_DISK", folder.path())
        .output()
        .expect("it runs");
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
}

fn fill_the_disk(folder: &std::path::Path) {
    let sqlite = SqliteArchive::open(folder.join("history.db")).expect("opened");
    let lines = JsonLinesArchive::rotating(folder.join("lines"), 1 << 30, 1).expect("opened");
    for history in [History::new(sqlite), History::new(lines)] {
        let (hub, archive) = hub_with(&history);
        let words: Topic<String> = Topic::json("words/long");
        let mut published = 0;
        while archive.stats().errors == 0 {
            hub.blocking_publish(&words, "x".repeat(1000)).expect("published");
            published += 1;
            assert!(published < 100_000, "the disk is never full");
        }
        let (lag, dropped) = (archive.stats().lag, archive.stats().dropped);
        assert!(lag > 0, "what is not written waits");
        let report = hub.blocking_shutdown(Duration::from_millis(100));
        assert_eq!((report.leftovers, report.stuck.len()), (lag, 0));
        let letters = hub.dead_letters().count().expect("counted") as u64;
        assert_eq!(letters + hub.stats().letters_lost, lag);
        let written = history.query(&Query::all().limit(usize::MAX)).expect("asked").len() as u64;
        assert_eq!(written + lag + dropped, published, "everything is somewhere");
    }
}

#[test]
fn an_archive_that_cannot_be_opened_says_where() {
    let folder = tempfile::tempdir().expect("a folder");
    let error = SqliteArchive::open(folder.path()).expect_err("a folder is no file");
    assert!(error.to_string().contains(&folder.path().display().to_string()), "{error}");
    let error = JsonLinesArchive::rotating("/proc/no/such/folder", 1, 1).expect_err("no folder");
    assert!(error.to_string().contains("/proc/no/such/folder: not opened"), "{error}");
}

/// The archive of a process that is killed holds everything it said was committed.
#[test]
fn a_killed_process_keeps_what_was_committed() {
    if let Some(path) = std::env::var_os("HUB_ARCHIVE") {
        return be_killed(std::path::Path::new(&path));
    }
    let folder = tempfile::tempdir().expect("a folder");
    for round in 0..3 {
        let path = folder.path().join(format!("history-{round}.db"));
        let mut child = Command::new(std::env::current_exe().expect("a path"))
            .args(["--exact", "history::a_killed_process_keeps_what_was_committed", "--nocapture"])
            .env("HUB_ARCHIVE", &path)
            .stdout(Stdio::piped())
            .spawn()
            .expect("it runs");
        let out = BufReader::new(child.stdout.take().expect("piped"));
        let mut committed = 0;
        for line in out.lines() {
            let Some(count) = line.expect("a line").strip_prefix("committed ").map(str::to_owned)
            else {
                continue;
            };
            committed = count.parse().expect("a number");
            if committed > 2000 * (round + 1) {
                child.kill().expect("killed"); // SIGKILL
                break;
            }
        }
        child.wait().expect("it is dead");
        let history = History::new(SqliteArchive::open(&path).expect("opens after the kill"));
        let all = history.query(&Query::all().limit(usize::MAX)).expect("asked");
        assert!(all.len() as u64 >= committed, "{} of {committed}", all.len());
        for (place, record) in all.iter().enumerate() {
            assert_eq!(record.payload, Some((place as u64).into()), "no gap, none twice");
        }
    }
}

/// The child: publishes for ever, and says how many are committed.
fn be_killed(path: &std::path::Path) {
    let history = History::new(SqliteArchive::open(path).expect("opened"));
    let hub = EventHub::new();
    let keys = Keys::any(["numbers"]).expect("keys");
    let subscribe = hub.subscribe(keys).queue(Queue::bounded(500));
    let archive = subscribe.archive(&history).expect("subscribed");
    let publisher = hub.publisher(&NUMBERS).expect("a publisher");
    for number in 0u32.. {
        publisher.blocking_publish(number).expect("published");
        if number % 100 == 99 {
            let stats = archive.stats();
            println!("committed {}", (u64::from(number) + 1).saturating_sub(stats.lag));
        }
    }
}

/// A number of files beyond all others made it count for ever, or remove what it had.
#[test]
fn an_archive_of_very_many_files_is_opened() {
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("history.jsonl"), "x\n").expect("written");
    drop(JsonLinesArchive::rotating(folder.path(), 1000, usize::MAX).expect("opened"));
    assert!(folder.path().join("history.jsonl").exists());
}
