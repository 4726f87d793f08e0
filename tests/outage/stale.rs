//! Workers that lost their leases and do not know it yet. P5, P9

use std::process::{Child, Command, Stdio};
use std::time::Duration;

use ordered_outbox::Publisher as _;
use ordered_outbox::outcome::Verdict;
use ordered_outbox::store::{Finalize, Finalized};

use crate::support::{eventually, expire_leases, ids, request, rows};
use crate::{Outbox, QUEUE, quick};

fn order(outbox: &Outbox) -> Vec<(i64, bool)> {
    outbox.sqs.accepted().iter().map(|accepted| (accepted.outbox_id, accepted.is_copy)).collect()
}

// C23
#[tokio::test]
async fn a_worker_that_thaws_behind_its_successor_sends_a_copy_that_is_dropped_and_its_finalize_is_refused() {
    let outbox = Outbox::new().await;
    let publisher = outbox.publisher(quick().publish_timeout).await;
    outbox.seed(1, 2).await;
    // A claims 1 and is frozen before its send
    let mut a = outbox.store.session();
    let claimed = a.claim(&request("A", 10)).await.unwrap().messages;
    assert_eq!(ids(&claimed), [1]);
    expire_leases(&outbox.store).await;
    // B takes over and sends 1 and 2
    let b = outbox.start(quick()).await;
    eventually("B sent both", || outbox.all_done()).await;
    // A thaws
    let destination = publisher.destination(&claimed[0]).unwrap();
    let outcomes = publisher.publish(&destination, &claimed).await;
    assert_eq!(order(&outbox), [(1, false), (2, false), (1, true)]);
    assert_eq!(outbox.sqs.delivered()["order-0"], [1, 2]);
    let verdict = quick().patience.verdict(&claimed[0], outcomes[0].clone(), Duration::ZERO).unwrap();
    let before = rows(&outbox.store).await;
    for verdict in [
        verdict,
        Verdict::Dead { error: "too late".into() },
        Verdict::Backoff { delay: Duration::ZERO, error: "too late".into() },
        Verdict::Defer { delay: Duration::ZERO, error: "too late".into() },
    ] {
        let finalized = a.finalize(&[Finalize::new(&claimed[0], verdict)]).await.unwrap();
        assert_eq!(finalized, [Finalized::LeaseLost]);
    }
    assert_eq!(rows(&outbox.store).await, before);
    b.finish().await;
}

/// `outbox run` with short leases, as a process that can be frozen.
struct Frozen(Child);

impl Frozen {
    fn start(outbox: &Outbox) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_outbox"));
        command
            .args(["--json", "run", "--queue-url", &outbox.sqs.url(QUEUE), "--source", "test"])
            .args(["--lease", "2s", "--publish-timeout", "1s", "--poll-interval", "50ms", "--run-length", "1"])
            .env("DATABASE_URL", outbox.database.url())
            .env("AWS_ENDPOINT_URL", outbox.sqs.endpoint())
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        Self(command.spawn().unwrap())
    }

    fn signal(&self, name: &str) {
        assert!(Command::new("kill").args([name, &self.0.id().to_string()]).status().unwrap().success());
    }

    /// Stops it; the summary it printed.
    async fn finish(mut self) -> serde_json::Value {
        self.signal("-TERM");
        let mut stdout = self.0.stdout.take().unwrap();
        // the queue it may still speak to is in this process
        let output = tokio::task::spawn_blocking(move || std::io::read_to_string(&mut stdout).unwrap()).await.unwrap();
        assert!(self.0.wait().unwrap().success());
        serde_json::from_str(&output).unwrap()
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        // already gone, unless the test failed
        let _gone = self.0.kill();
        let _reaped = self.0.wait();
    }
}

// C23
#[tokio::test]
async fn a_request_of_a_frozen_process_that_arrives_behind_its_successors_is_a_copy_and_its_finalize_is_counted_as_lost()
 {
    let outbox = Outbox::new().await;
    outbox.seed(1, 2).await;
    let mut door = outbox.sqs.hold_next();
    let a = Frozen::start(&outbox);
    door.arrived().await;
    a.signal("-STOP");
    let b = Frozen::start(&outbox);
    eventually("B took over and sent both", || outbox.all_done()).await;
    let before = rows(&outbox.store).await;
    door.open().await;
    assert_eq!(order(&outbox), [(1, false), (2, false), (1, true)]);
    a.signal("-CONT");
    // what it says last is what it found out about its row
    assert_eq!(a.finish().await["lease_lost"], 1);
    assert_eq!(b.finish().await["lease_lost"], 0);
    assert_eq!(outbox.sqs.delivered()["order-0"], [1, 2]);
    assert_eq!(rows(&outbox.store).await, before);
}
