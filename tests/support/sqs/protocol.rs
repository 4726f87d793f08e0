//! The JSON protocol of SQS: operations in, replies out, refusals as AWS words them.

use aws_sdk_sqs::types::QueueAttributeName;
use serde_json::{Map, Value, json};

use super::Accepted;
use super::fault::{EntryFault, Fault};
use super::md5;
use super::queue::{Entry, FifoQueue, sequence_number};
use super::state::State;

const MAX_ENTRIES: usize = 10;
const MAX_BATCH_BYTES: usize = 1 << 20;

/// A request, as a script sees it.
#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    /// For example `SendMessageBatch`.
    pub operation: String,
    /// Name of the queue.
    pub queue: String,
    /// Access key id it was signed with.
    pub access_key: String,
    /// Entries of a `SendMessageBatch`.
    pub entries: Vec<Entry>,
    /// All of it.
    pub body: Value,
}

impl Request {
    pub(super) fn parse(operation: &str, access_key: &str, body: Value) -> Self {
        let url = body["QueueUrl"].as_str().or(body["QueueName"].as_str()).unwrap_or_default();
        let queue = url.rsplit('/').next().unwrap_or_default().to_owned();
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let entry = |entry: &Value| Entry {
            id: text(&entry["Id"]),
            group: text(&entry["MessageGroupId"]),
            deduplication_id: text(&entry["MessageDeduplicationId"]),
            body: text(&entry["MessageBody"]),
            attributes: entry["MessageAttributes"].as_object().cloned().unwrap_or_default(),
        };
        let entries = body["Entries"].as_array().map(|entries| entries.iter().map(entry).collect());
        let (operation, access_key) = (operation.to_owned(), access_key.to_owned());
        Self { operation, queue, access_key, entries: entries.unwrap_or_default(), body }
    }

    /// Whether it is a `SendMessageBatch`.
    pub fn sends(&self) -> bool {
        self.operation == "SendMessageBatch"
    }

    /// Whether it holds what can be taken: a check of permissions does not.
    pub fn offers(&self) -> bool {
        self.sends() && self.entries.iter().any(|entry| !entry.group.is_empty())
    }
}

/// A refusal of a request or of an entry.
pub(super) struct Refusal {
    pub(super) status: u16,
    pub(super) code: &'static str,
    pub(super) message: String,
}

fn refusal(code: &'static str, message: impl Into<String>) -> Refusal {
    Refusal { status: 400, code, message: message.into() }
}

fn no_queue() -> Refusal {
    refusal("AWS.SimpleQueueService.NonExistentQueue", "The specified queue does not exist.")
}

impl State {
    /// Does what is asked, but for these entries.
    pub(super) fn operate(&mut self, request: &Request, faults: &[Option<EntryFault>]) -> Result<Value, Refusal> {
        let (now, port) = (self.now(), self.port);
        let queue = self.queues.get_mut(&request.queue);
        match request.operation.as_str() {
            "CreateQueue" => {
                let attributes = request.body["Attributes"].as_object().into_iter().flatten();
                let attributes = attributes.map(|(name, value)| (name.clone(), value.as_str().unwrap().to_owned()));
                self.queues.insert(request.queue.clone(), FifoQueue::new(attributes.collect()));
                Ok(json!({"QueueUrl": url(port, &request.queue)}))
            }
            "DeleteQueue" => self.queues.remove(&request.queue).map(|_| json!({})).ok_or_else(no_queue),
            "GetQueueUrl" => queue.map(|_| json!({"QueueUrl": url(port, &request.queue)})).ok_or_else(no_queue),
            "GetQueueAttributes" => {
                let mut attributes = queue.ok_or_else(no_queue)?.attributes.clone();
                let size = QueueAttributeName::MaximumMessageSize.as_str().to_owned();
                attributes.entry(size).or_insert_with(|| (1 << 20).to_string());
                Ok(json!({"Attributes": attributes}))
            }
            "ReceiveMessage" => {
                let most = request.body["MaxNumberOfMessages"].as_u64().unwrap_or(1) as usize;
                Ok(json!({"Messages": queue.ok_or_else(no_queue)?.receive(most, now)}))
            }
            "DeleteMessage" => {
                let handle = request.body["ReceiptHandle"].as_str().unwrap_or_default();
                queue.ok_or_else(no_queue)?.delete(handle);
                Ok(json!({}))
            }
            "SendMessageBatch" => self.send(request, faults),
            other => Err(refusal("InvalidAction", format!("{other} is not known here."))),
        }
    }

    fn send(&mut self, request: &Request, faults: &[Option<EntryFault>]) -> Result<Value, Refusal> {
        let now = self.now();
        let queue = self.queues.get_mut(&request.queue).ok_or_else(no_queue)?;
        check_batch(&request.entries)?;
        let (mut successful, mut failed) = (Vec::new(), Vec::new());
        for (place, entry) in request.entries.iter().enumerate() {
            let fault = faults.get(place).copied().flatten();
            let refused = match fault {
                Some(EntryFault::Refused(code, sender)) => Some((code, sender, "scripted".to_owned())),
                _ => check_entry(queue, entry).err().map(|refusal| (refusal.code, true, refusal.message)),
            };
            let accepts = refused.is_none() && !matches!(fault, Some(EntryFault::Forgotten | EntryFault::Contradicted));
            if let Some((code, sender, message)) = refused {
                failed.push(json!({"Id": entry.id, "Code": code, "SenderFault": sender, "Message": message}));
                continue;
            }
            let mut word = json!({
                "Id": entry.id,
                "MessageId": "none",
                "MD5OfMessageBody": md5::of_body(&entry.body),
                "MD5OfMessageAttributes": md5::of_attributes(&entry.attributes),
            });
            if accepts {
                let receipt = queue.accept(entry, now);
                word["MessageId"] = receipt.message_id.into();
                word["SequenceNumber"] = sequence_number(receipt.sequence).into();
                self.accepted.push(Accepted {
                    queue: request.queue.clone(),
                    group: entry.group.clone(),
                    deduplication_id: entry.deduplication_id.clone(),
                    outbox_id: entry.attributes.get("outbox-id").map_or(0, |_| entry.outbox_id()),
                    is_copy: receipt.is_copy,
                });
            }
            match fault {
                Some(EntryFault::AcceptedUnmentioned | EntryFault::Forgotten) => {}
                Some(EntryFault::Misnamed) => {
                    word["Id"] = format!("{}-nobody", entry.id).into();
                    successful.push(word);
                }
                Some(EntryFault::Contradicted) => {
                    failed.push(json!({"Id": entry.id, "Code": "InternalError", "SenderFault": false}));
                    successful.push(word);
                }
                Some(EntryFault::Refused(..)) | None => successful.push(word),
            }
        }
        Ok(json!({"Successful": successful, "Failed": failed}))
    }
}

fn check_batch(entries: &[Entry]) -> Result<(), Refusal> {
    let mut ids: Vec<_> = entries.iter().map(|entry| &entry.id).collect();
    ids.sort_unstable();
    ids.dedup();
    let is_id = |id: &str| {
        (1..=80).contains(&id.len()) && id.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_'))
    };
    let refuse = |code, message: &str| Err(refusal(code, message));
    if entries.is_empty() {
        return refuse(
            "AWS.SimpleQueueService.EmptyBatchRequest",
            "There should be at least one entry in the request.",
        );
    }
    if entries.len() > MAX_ENTRIES {
        return refuse("AWS.SimpleQueueService.TooManyEntriesInBatchRequest", "Maximum number of entries is 10.");
    }
    if !ids.iter().all(|id| is_id(id)) {
        return refuse("AWS.SimpleQueueService.InvalidBatchEntryId", "A batch entry id is illegal.");
    }
    if ids.len() < entries.len() {
        return refuse("AWS.SimpleQueueService.BatchEntryIdsNotDistinct", "Two entries have one id.");
    }
    if entries.iter().map(Entry::size).sum::<usize>() > MAX_BATCH_BYTES {
        return refuse(
            "AWS.SimpleQueueService.BatchRequestTooLong",
            "Batch requests cannot be longer than 1048576 bytes.",
        );
    }
    Ok(())
}

fn check_entry(queue: &FifoQueue, entry: &Entry) -> Result<(), Refusal> {
    let is_name = |text: &str| (1..=128).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic());
    let is_sendable =
        |c: char| matches!(c, '\t' | '\n' | '\r' | ' '..='\u{D7FF}' | '\u{E000}'..='\u{FFFD}' | '\u{10000}'..);
    if entry.group.is_empty() {
        return Err(refusal("MissingParameter", "The request must contain the parameter MessageGroupId."));
    }
    if !is_name(&entry.group) || !is_name(&entry.deduplication_id) {
        return Err(refusal("InvalidParameterValue", "A group id or deduplication id is illegal."));
    }
    if entry.body.is_empty() || !entry.body.chars().all(is_sendable) {
        return Err(refusal("InvalidMessageContents", "Invalid characters found."));
    }
    check_attributes(&entry.attributes)?;
    let most = queue.maximum_message_size();
    if entry.size() > most {
        let reason = format!("One or more parameters are invalid. Reason: Message must be shorter than {most} bytes.");
        return Err(refusal("InvalidParameterValue", reason));
    }
    Ok(())
}

fn check_attributes(attributes: &Map<String, Value>) -> Result<(), Refusal> {
    if attributes.len() > 10 {
        return Err(refusal("InvalidParameterValue", "Number of message attributes exceeds the allowed maximum [10]."));
    }
    for (name, value) in attributes {
        let is_name = (1..=256).contains(&name.len())
            && name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'));
        if !is_name || value["StringValue"].as_str().is_none_or(str::is_empty) {
            return Err(refusal("InvalidParameterValue", format!("The attribute '{name}' is illegal.")));
        }
    }
    Ok(())
}

fn url(port: u16, queue: &str) -> String {
    format!("http://127.0.0.1:{port}/000000000000/{queue}")
}

impl Fault {
    /// What is wrong with the entries, if that is what is wrong.
    pub(super) fn of_entries(&self) -> &[Option<EntryFault>] {
        match self {
            Self::Entries(faults) => faults,
            _ => &[],
        }
    }
}
