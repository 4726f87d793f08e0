//! Real processes, real PostgreSQL, a real SQS protocol: several dispatchers, killed and stopped.

mod support;

use std::process::{Child, Command, ExitStatus, Stdio};

use ordered_outbox::{MessageId, Store};
use support::queue::{Queue, Received};
use support::{Database, eventually, rows, seed};

/// A dispatcher process; killed with this value.
struct Process(Child);

impl Process {
    /// `outbox run` on this database and queue. Leases are short, so that what a kill leaves behind comes back soon.
    fn start(database: &Database, queue: &Queue, arguments: &[&str]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_outbox"));
        command
            .args(["--json", "run", "--queue-url", queue.url(), "--lease", "2s", "--publish-timeout", "1s"])
            .args(["--poll-interval", "50ms"])
            .args(arguments)
            .env("DATABASE_URL", database.url())
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        Self(command.spawn().unwrap())
    }

    fn signal(&self, name: &str) {
        assert!(Command::new("kill").args([name, &self.0.id().to_string()]).status().unwrap().success());
    }

    /// SIGKILL: no handler, no farewell.
    fn kill(mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }

    /// Waits for the end; its status and the summary it printed.
    fn wait(mut self) -> (ExitStatus, serde_json::Value) {
        let mut output = String::new();
        std::io::Read::read_to_string(self.0.stdout.as_mut().unwrap(), &mut output).unwrap();
        (self.0.wait().unwrap(), serde_json::from_str(&output).unwrap_or_default())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // already gone, in most tests
        let _gone = self.0.kill();
        let _reaped = self.0.wait();
    }
}

async fn all_done(store: &Store) -> bool {
    rows(store).await.iter().all(|(_, status, _)| status == "done")
}

/// The ids received, without those seen before: what a consumer with a high-water mark applies.
fn first_deliveries(received: &[Received]) -> Vec<MessageId> {
    let mut seen = std::collections::HashSet::new();
    received.iter().map(Received::outbox_id).filter(|id| seen.insert(*id)).collect()
}

/// P2
#[tokio::test]
async fn four_processes_publish_one_aggregate_in_exact_order() {
    for [run_length, group_batching] in [["1", "1"], ["7", "1"], ["20", "10"]] {
        let (database, queue) = (Database::new().await, Queue::fifo().await);
        let store = database.store().await;
        let seeded = seed(&store, &[("order-1", "e"); 60]).await;
        let processes: Vec<_> = (0..4)
            .map(|_| {
                Process::start(&database, &queue, &["--run-length", run_length, "--group-batching", group_batching])
            })
            .collect();
        eventually("all done", || all_done(&store)).await;
        for process in &processes {
            process.signal("-TERM");
        }
        for process in processes {
            let (status, summary) = process.wait();
            assert!(status.success());
            assert_eq!(summary["order_gaps"], 0);
        }
        let received: Vec<_> = queue.receive_all().await.iter().map(Received::outbox_id).collect();
        assert_eq!(received, seeded, "run length {run_length}, group batching {group_batching}");
        assert!(rows(&store).await.iter().all(|(_, _, attempts)| *attempts == 1), "each claimed once");
    }
}

/// C07, C36 (P1)
#[tokio::test]
async fn dispatchers_killed_in_the_middle_of_sending_lose_nothing_and_keep_order() {
    let (database, queue) = (Database::new().await, Queue::fifo().await);
    let store = database.store().await;
    let names: Vec<_> = (0..5).map(|n| format!("order-{n}")).collect();
    let mut seeded = Vec::new();
    for round in 0..3 {
        let messages: Vec<_> = (0..100).map(|n| (names[n % 5].as_str(), "e")).collect();
        seeded.extend(seed(&store, &messages).await);
        let process = Process::start(&database, &queue, &[]);
        let target = round * 100 + 30;
        // killed while it surely holds leases: some of this round's rows are done, and not all of them
        eventually("it is in the middle of sending", || async {
            rows(&store).await.iter().filter(|(_, status, _)| status == "done").count() > target
        })
        .await;
        process.kill();
    }
    let last = Process::start(&database, &queue, &[]);
    eventually("all done", || all_done(&store)).await;
    last.signal("-TERM");
    assert!(last.wait().0.success());
    let received = queue.receive_all().await;
    let delivered = first_deliveries(&received);
    assert_eq!(delivered.len(), seeded.len(), "nothing is lost");
    for name in &names {
        let aggregate = |id: &MessageId| names[(id - seeded[0]) as usize % 5] == *name;
        let expected: Vec<_> = seeded.iter().copied().filter(aggregate).collect();
        let ours: Vec<_> = delivered.iter().copied().filter(aggregate).collect();
        assert_eq!(ours, expected, "{name}");
    }
}

// C35
#[tokio::test]
async fn sigterm_and_sigint_end_a_dispatcher_with_exit_0_and_leave_no_lease() {
    for signal in ["-TERM", "-INT"] {
        let (database, queue) = (Database::new().await, Queue::fifo().await);
        let store = database.store().await;
        let seeded = seed(&store, &[("order-1", "e"); 300]).await;
        let process = Process::start(&database, &queue, &["--run-length", "50"]);
        eventually("it is in the middle of sending", || async {
            rows(&store).await.iter().any(|(_, status, _)| status == "done")
        })
        .await;
        process.signal(signal);
        let (status, summary) = process.wait();
        assert!(status.success(), "{status}");
        let after = rows(&store).await;
        assert_eq!(after.iter().filter(|(_, status, _)| status == "processing").count(), 0, "every lease was given up");
        let spent: i32 = after.iter().map(|(_, _, attempts)| attempts).sum();
        let done = after.iter().filter(|(_, status, _)| status == "done").count();
        assert_eq!((spent as usize, summary["published"].as_u64()), (done, Some(done as u64)), "the rest was refunded");
        let received: Vec<_> = queue.receive_all().await.iter().map(Received::outbox_id).collect();
        assert_eq!(received, seeded[..done]);
    }
}

#[tokio::test]
async fn a_drain_sends_what_is_due_and_exits_0_although_something_waits_behind_a_gate() {
    let (database, queue) = (Database::new().await, Queue::fifo().await);
    let store = database.store().await;
    seed(&store, &[("order-1", "e"), ("order-2", "e"), ("order-1", "e")]).await;
    // SQS takes no U+FFFE in a body; JSON and PostgreSQL do
    support::execute(&store, "UPDATE outbox SET payload = to_jsonb(U&'\\FFFE'::text) WHERE id = 1").await;
    let (status, summary) = Process::start(&database, &queue, &["--drain"]).wait();
    assert!(status.success());
    assert_eq!((summary["published"].as_u64(), summary["dead"].as_u64()), (Some(1), Some(1)));
    let after: Vec<_> = rows(&store).await.into_iter().map(|(_, status, _)| status).collect();
    assert_eq!(after, ["dead", "done", "pending"]);
    store.skip(1, "the customer was told by phone").await.unwrap();
    assert!(Process::start(&database, &queue, &["--drain"]).wait().0.success());
    let received: Vec<_> = queue.receive_all().await.iter().map(Received::outbox_id).collect();
    assert_eq!(received, [2, 3]);
    let row = store.show(2).await.unwrap().unwrap();
    assert!(row.broker_message_id.is_some() && row.broker_sequence.is_some(), "kept for audit");
}

// C17
#[tokio::test]
async fn two_outboxes_with_the_same_ids_feed_one_queue_and_nothing_is_taken_for_a_copy() {
    let queue = Queue::fifo().await;
    for name in ["order-1", "order-2"] {
        let database = Database::new().await;
        let store = database.store().await;
        assert_eq!(seed(&store, &[(name, "e"); 3]).await, [1, 2, 3]);
        assert!(Process::start(&database, &queue, &["--drain"]).wait().0.success());
    }
    let received: Vec<_> =
        queue.receive_all().await.into_iter().map(|message| (message.group.clone(), message.outbox_id())).collect();
    let expected = [("order-1", 1), ("order-1", 2), ("order-1", 3), ("order-2", 1), ("order-2", 2), ("order-2", 3)];
    assert_eq!(received, expected.map(|(group, id)| (group.to_owned(), id)));
}

// C22
#[tokio::test]
async fn a_queue_that_is_deleted_and_created_again_costs_no_message_and_no_attempt() {
    let (database, queue) = (Database::new().await, Queue::fifo().await);
    let store = database.store().await;
    let process = Process::start(&database, &queue, &["--backoff-base", "100ms"]);
    seed(&store, &[("order-1", "e")]).await;
    eventually("the first is done", || all_done(&store)).await;
    queue.delete().await;
    let seeded = seed(&store, &[("order-1", "e"), ("order-1", "e"), ("order-2", "e")]).await;
    eventually("the outage is noticed", || async {
        let row = store.show(seeded[0]).await.unwrap().unwrap();
        row.last_error.is_some_and(|error| error.starts_with("destination unavailable: "))
    })
    .await;
    queue.create_again().await;
    eventually("all done", || all_done(&store)).await;
    process.signal("-TERM");
    assert!(process.wait().0.success());
    let received = queue.receive_all().await;
    let order_1: Vec<_> = received.iter().filter(|m| m.group == "order-1").map(Received::outbox_id).collect();
    assert_eq!(order_1, [seeded[0], seeded[1]]);
    assert!(rows(&store).await.iter().all(|(_, _, attempts)| *attempts == 1));
}
