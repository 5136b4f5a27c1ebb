//! Proves that spans lead from publish to handle. In a process of its own: tracing remembers for
//! the whole process which spans anybody wants.
#![allow(missing_docs)]

use std::sync::{Arc, Mutex};

use artel_hub::{Context, Delivery, EventHub, Topic};
use tracing::span::{Attributes, Id};
use tracing_subscriber::layer::{Context as LayerContext, Layer, SubscriberExt};
use tracing_subscriber::registry::LookupSpan;

const NUMBERS: Topic<u32> = Topic::new("numbers");

/// Writes down every span with its parents.
#[derive(Clone, Default)]
struct Spans(Arc<Mutex<Vec<String>>>);

impl<S> Layer<S> for Spans
where
    S: tracing::Subscriber + for<'a> LookupSpan<'a>,
{
    fn on_new_span(&self, _: &Attributes<'_>, id: &Id, cx: LayerContext<'_, S>) {
        let scope = cx.span_scope(id).into_iter().flatten();
        let names: Vec<&str> = scope.map(|span| span.name()).collect();
        self.0.lock().expect("not poisoned").push(names.join(" < "));
    }
}

/// A span leads from the request that published, through the publish, to the handler, wherever it
/// runs.
#[test]
fn spans_lead_from_publish_to_handle() {
    let spans = Spans::default();
    let registry = tracing_subscriber::registry().with(spans.clone());
    let dispatch = tracing::Dispatch::new(registry);
    let hub = EventHub::new();
    let inside = dispatch.clone();
    let subscription = hub
        .subscribe(&NUMBERS)
        .on(Context::Thread)
        .spawn_with(move || {
            // A thread of its own has no subscriber of traces unless it is given one.
            let guard = Box::new(tracing::dispatcher::set_default(&inside));
            std::mem::forget(guard);
            |_: Delivery<'_, u32>| tracing::info_span!("work").in_scope(|| ())
        })
        .expect("subscribed");
    let inline = hub.subscribe(&NUMBERS).inline(|_: Delivery<'_, u32>| ()).expect("subscribed");
    tracing::dispatcher::with_default(&dispatch, || {
        tracing::info_span!("request").in_scope(|| {
            hub.blocking_publish(&NUMBERS, 1).expect("published");
        });
    });
    let due = std::time::Instant::now() + std::time::Duration::from_secs(30);
    while subscription.stats().lag > 0 && std::time::Instant::now() < due {
        std::thread::yield_now();
    }
    let said = spans.0.lock().expect("not poisoned").clone();
    assert!(said.contains(&"publish < request".into()), "{said:?}");
    assert!(said.contains(&"work < handle < publish < request".into()), "{said:?}");
    assert_eq!(said.iter().filter(|one| one.starts_with("handle < publish")).count(), 2);
    drop((subscription, inline));
}
