//! An SQS on loopback that can be broken on purpose: FIFO queues, five minutes of deduplication on a clock that the test
//! moves, and every fault a real one has and no test can order there. Its log of what arrived and what was accepted is the
//! witness for order.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use aws_sdk_sqs::types::QueueAttributeName;
use socket2::Socket;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::Instant;

mod fault;
mod http;
mod md5;
mod protocol;
mod queue;
mod state;

pub use fault::{EntryFault, Fault, Loss};
pub use protocol::Request;
pub use queue::Entry;

use queue::FifoQueue;
use state::{Held, Limit, State};

/// The server; it ends with its value.
pub struct Sqs {
    state: Arc<Mutex<State>>,
    port: u16,
    server: Option<JoinHandle<()>>,
    /// Keeps the port while connections are refused.
    _port: Socket,
}

/// A `SendMessageBatch` that arrived, whatever became of it.
#[derive(Clone, Debug)]
pub struct Arrival {
    /// When.
    pub at: Instant,
    /// Name of the queue.
    pub queue: String,
    /// Of its entries, in order.
    pub deduplication_ids: Vec<String>,
    /// Of its entries, in order.
    pub groups: Vec<String>,
    /// Of its entries, together.
    pub bytes: usize,
}

/// An entry that a queue took.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Accepted {
    /// Name of the queue.
    pub queue: String,
    /// Message group id.
    pub group: String,
    /// Message deduplication id.
    pub deduplication_id: String,
    /// Row id.
    pub outbox_id: i64,
    /// Recognized, and not delivered again.
    pub is_copy: bool,
}

/// A request that waits outside: late, like one that a network or a frozen process held up.
pub struct Door {
    arrived: oneshot::Receiver<()>,
    open: oneshot::Sender<()>,
    served: oneshot::Receiver<()>,
}

impl Door {
    /// Waits until the request is there.
    pub async fn arrived(&mut self) {
        (&mut self.arrived).await.unwrap();
    }

    /// Lets it in, and waits until it was served.
    pub async fn open(self) {
        self.open.send(()).unwrap();
        self.served.await.unwrap();
    }
}

impl fmt::Debug for Sqs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sqs").field("port", &self.port).finish_non_exhaustive()
    }
}

impl Sqs {
    /// A server without queues, in the runtime of the caller.
    pub fn start() -> Self {
        let socket = http::bind(0);
        let port = socket.local_addr().unwrap().as_socket().unwrap().port();
        let mut sqs = Self { state: Arc::new(Mutex::new(State::new(port))), port, server: None, _port: socket };
        sqs.take_connections();
        sqs
    }

    /// Where it is.
    pub fn endpoint(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// The URL of a queue, whether it is there or not.
    pub fn url(&self, queue: &str) -> String {
        format!("{}/000000000000/{queue}", self.endpoint())
    }

    /// Makes an empty queue of this name, FIFO unless these attributes say otherwise; returns its URL.
    pub fn create(&self, queue: &str, attributes: &[(QueueAttributeName, &str)]) -> String {
        let attributes = [(QueueAttributeName::FifoQueue, "true")].iter().chain(attributes);
        let attributes: BTreeMap<_, _> =
            attributes.map(|(name, value)| (name.as_str().to_owned(), (*value).to_owned())).collect();
        self.state().queues.insert(queue.to_owned(), FifoQueue::new(attributes));
        self.url(queue)
    }

    /// Removes a queue with all that is in it.
    pub fn delete(&self, queue: &str) {
        assert!(self.state().queues.remove(queue).is_some());
    }

    /// From now on asks `script` about every request what goes wrong with it.
    pub fn script(&self, script: impl FnMut(&Request) -> Option<Fault> + Send + 'static) {
        self.state().script = Some(Box::new(script));
    }

    /// Where it listens.
    pub const fn port(&self) -> u16 {
        self.port
    }

    /// From now on this goes wrong with every `SendMessageBatch`.
    pub fn fail_with(&self, fault: Fault) {
        self.script(move |request| request.sends().then(|| fault.clone()));
    }

    /// These go wrong with the next `SendMessageBatch`es, one after the other, and then nothing does.
    pub fn fail_next(&self, faults: impl IntoIterator<Item = Fault>) {
        let mut faults = faults.into_iter().collect::<Vec<_>>().into_iter();
        self.script(move |request| if request.sends() { faults.next() } else { None });
    }

    /// From now on nothing goes wrong.
    pub fn heal(&self) {
        let mut state = self.state();
        state.script = None;
        state.trusted = None;
        state.limit = None;
    }

    /// From now on only these access key ids are taken, and others refused with HTTP 403 and this code.
    pub fn trust_only(&self, access_keys: &[&str], code: &'static str) {
        self.state().trusted = Some((access_keys.iter().map(|key| (*key).to_owned()).collect(), code));
    }

    /// From now on only so many `SendMessageBatch`es a second are taken; the others are throttled.
    pub fn limit(&self, per_second: u32) {
        self.state().limit = Some(Limit::new(per_second));
    }

    /// How many were refused for that so far.
    pub fn over_limit(&self) -> usize {
        self.state().over_limit
    }

    /// The next `SendMessageBatch` with something to take waits outside until it is let in.
    pub fn hold_next(&self) -> Door {
        let (arrived, open, served) = (oneshot::channel(), oneshot::channel(), oneshot::channel());
        self.state().doors.push_back(Held { arrived: arrived.0, opened: open.1, served: served.0 });
        Door { arrived: arrived.1, open: open.0, served: served.1 }
    }

    /// From now on refuses connections, and cuts those there are.
    pub async fn refuse_connections(&mut self) {
        let Some(server) = self.server.take() else { return };
        server.abort();
        assert!(server.await.unwrap_err().is_cancelled());
    }

    /// Takes connections, as at the start.
    pub fn take_connections(&mut self) {
        assert!(self.server.is_none());
        self.server = Some(tokio::spawn(http::serve(http::listen(self.port), Arc::clone(&self.state))));
    }

    /// Moves its clock on.
    pub fn advance(&self, by: Duration) {
        self.state().moved += by;
    }

    /// Every `SendMessageBatch` so far, in the order of arrival.
    pub fn arrivals(&self) -> Vec<Arrival> {
        self.state().arrivals.clone()
    }

    /// Every entry that was taken so far, in order, copies as well.
    pub fn accepted(&self) -> Vec<Accepted> {
        self.state().accepted.clone()
    }

    /// Row ids by group, as a consumer gets them: in the order of acceptance, without copies.
    pub fn delivered(&self) -> BTreeMap<String, Vec<i64>> {
        let mut delivered = BTreeMap::<_, Vec<_>>::new();
        for accepted in self.state().accepted.iter().filter(|accepted| !accepted.is_copy) {
            delivered.entry(accepted.group.clone()).or_default().push(accepted.outbox_id);
        }
        delivered
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }
}

impl Drop for Sqs {
    fn drop(&mut self) {
        if let Some(server) = &self.server {
            server.abort();
        }
    }
}
