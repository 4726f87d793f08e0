//! The command line: what people and scripts read, and what is refused before anything changes.

#[path = "../support/mod.rs"]
mod support;

mod answers;
mod check;
mod connection;
mod enqueue;
mod gates;
mod help;
mod outbox;
mod pipes;
mod purge;
mod queues;
mod run;
mod show;
mod status;
mod stdin;
