//! A stand-in for SQS on loopback, for what no real queue can be made to do: it replies to each request as scripted.

use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinHandle, JoinSet};

/// A reply to one request.
pub(crate) enum Reply {
    /// A status and a body, with the error code of the query protocol if there is one, as SQS sends it.
    Http(u16, String, Option<&'static str>),
    /// Throttled, and to be tried again after so many milliseconds.
    RetryAfter(u32),
    /// Nothing, ever.
    Hang,
    /// The connection ends without a reply.
    Close,
}

impl Reply {
    /// HTTP 200 with a JSON body.
    pub(crate) fn ok(body: &Value) -> Self {
        Self::Http(200, body.to_string(), None)
    }

    /// An error of the SQS model.
    pub(crate) fn error(status: u16, code: &'static str) -> Self {
        let body = json!({"__type": format!("com.amazonaws.sqs#{code}"), "message": "scripted"});
        Self::Http(status, body.to_string(), Some(code))
    }

    /// Accepts every entry of this request.
    pub(crate) fn accept(request: &Value) -> Self {
        let entries = request["Entries"].as_array().unwrap();
        Self::ok(
            &json!({"Successful": entries.iter().map(|entry| accepted(entry["Id"].as_str().unwrap())).collect::<Vec<_>>()}),
        )
    }
}

/// An entry of `Successful`.
pub(crate) fn accepted(id: &str) -> Value {
    json!({"Id": id, "MessageId": format!("m{id}"), "MD5OfMessageBody": "0", "SequenceNumber": format!("s{id}")})
}

/// An entry of `Failed`.
pub(crate) fn failed(id: &str, code: &str, sender_fault: bool) -> Value {
    json!({"Id": id, "Code": code, "SenderFault": sender_fault, "Message": "scripted"})
}

/// The server; it ends with its value.
pub(crate) struct Double {
    port: u16,
    sent: Arc<Mutex<Vec<Vec<String>>>>,
    server: JoinHandle<()>,
}

type Script = dyn Fn(&str, &Value) -> Reply + Send + Sync;

impl Double {
    /// Replies to a `SendMessageBatch` by `script`; to everything else as an empty FIFO queue does.
    pub(crate) async fn new(script: impl Fn(&Value) -> Reply + Send + Sync + 'static) -> Self {
        let attributes = json!({"Attributes": {"FifoQueue": "true", "MaximumMessageSize": "1048576"}});
        Self::scripted(move |operation, request| match operation {
            "SendMessageBatch" => script(request),
            _ => Reply::ok(&attributes),
        })
        .await
    }

    /// Replies to everything by `script`, which is told the operation.
    pub(crate) async fn scripted(script: impl Fn(&str, &Value) -> Reply + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let (script, sent): (Arc<Script>, _) = (Arc::new(script), Arc::new(Mutex::new(Vec::new())));
        let record = Arc::clone(&sent);
        let server = tokio::spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((connection, _)) = listener.accept().await {
                connections.spawn(serve(connection, Arc::clone(&script), Arc::clone(&record)));
            }
        });
        Self { port, sent, server }
    }

    pub(crate) fn endpoint(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    pub(crate) fn queue_url(&self) -> String {
        format!("http://127.0.0.1:{}/000000000000/double.fifo", self.port)
    }

    /// The deduplication ids of each `SendMessageBatch` so far, in the order of arrival.
    pub(crate) fn sent(&self) -> Vec<Vec<String>> {
        self.sent.lock().unwrap().clone()
    }

    /// Ends it: from here on, connections are refused.
    pub(crate) async fn stop(&mut self) {
        self.server.abort();
        assert!((&mut self.server).await.unwrap_err().is_cancelled());
    }
}

impl Drop for Double {
    fn drop(&mut self) {
        self.server.abort();
    }
}

async fn serve(mut connection: TcpStream, script: Arc<Script>, sent: Arc<Mutex<Vec<Vec<String>>>>) {
    let (reader, mut writer) = connection.split();
    let mut reader = BufReader::new(reader);
    while let Some((operation, request)) = read(&mut reader).await {
        if operation == "SendMessageBatch" {
            let ids = request["Entries"].as_array().unwrap().iter();
            let ids = ids.map(|entry| entry["MessageDeduplicationId"].as_str().unwrap().to_owned()).collect();
            sent.lock().unwrap().push(ids);
        }
        let text = match script(&operation, &request) {
            Reply::Http(status, body, code) => {
                let code = code.map_or(String::new(), |code| format!("x-amzn-query-error: {code};Sender\r\n"));
                format!("HTTP/1.1 {status} Scripted\r\n{code}content-length: {}\r\n\r\n{body}", body.len())
            }
            Reply::RetryAfter(milliseconds) => format!(
                "HTTP/1.1 403 Scripted\r\nx-amz-retry-after: {milliseconds}\r\n\
                 x-amzn-query-error: RequestThrottled;Sender\r\ncontent-length: 2\r\n\r\n{{}}"
            ),
            Reply::Hang => std::future::pending().await,
            Reply::Close => return,
        };
        if writer.write_all(text.as_bytes()).await.is_err() {
            return;
        }
    }
}

/// Operation and body of the next request.
async fn read(reader: &mut (impl tokio::io::AsyncBufRead + Unpin)) -> Option<(String, Value)> {
    let (mut operation, mut length) = (String::new(), 0);
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).await.ok()? == 0 {
            return None;
        }
        match line.trim_end().split_once(": ") {
            Some((name, value)) if name.eq_ignore_ascii_case("content-length") => length = value.parse().ok()?,
            Some((name, value)) if name.eq_ignore_ascii_case("x-amz-target") => {
                value.rsplit('.').next()?.clone_into(&mut operation);
            }
            None if line == "\r\n" => break,
            Some(_) | None => {}
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).await.ok()?;
    Some((operation, serde_json::from_slice(&body).ok()?))
}
