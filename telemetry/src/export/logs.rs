//! Log records to OTLP: a bounded queue, and a task that sends what is in it.
//!
//! A record is plain protobuf from the moment it is made, so the SDK's logger would only add a second queue.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use opentelemetry_proto::tonic::collector::logs::v1::ExportLogsServiceRequest;
use opentelemetry_proto::tonic::common::v1::InstrumentationScope;
use opentelemetry_proto::tonic::logs::v1::{LogRecord, ResourceLogs, ScopeLogs};
use opentelemetry_proto::tonic::resource::v1::Resource as ProtoResource;
use opentelemetry_proto::transform::common::tonic::ResourceAttributesWithSchema;
use opentelemetry_sdk::Resource;
use tokio::sync::{mpsc, watch};

use super::ExportRuntime;
use super::closing::Closing;
use super::counts::{Counts, Place};
use super::deliver::Delivery;
use super::signal::Logs;
use crate::config::QueueLimits;
use crate::logs::Record;

/// The way in. Clones share the queue.
#[derive(Clone)]
pub(crate) struct LogQueue {
    sender: mpsc::UnboundedSender<Record>,
    bound: u64,
    counts: Arc<Counts>,
    /// True once nothing more will be sent.
    ended: watch::Receiver<bool>,
}

impl LogQueue {
    /// Starts the task that empties the queue until [`Closing`] begins, and once more then.
    pub(crate) fn start(
        runtime: &ExportRuntime,
        delivery: Delivery,
        closing: Closing,
        limits: QueueLimits,
        resource: &Resource,
        counts: &Arc<Counts>,
    ) -> LogQueue {
        let (sender, receiver) = mpsc::unbounded_channel();
        let (end, ended) = watch::channel(false);
        let resource: ResourceAttributesWithSchema = resource.into();
        let resource =
            ProtoResource { attributes: resource.attributes.0.clone(), ..ProtoResource::default() };
        let sending = Sending {
            receiver,
            delivery,
            closing,
            resource,
            batch: limits.max_export_batch_size,
            delay: limits.schedule_delay,
        };
        if let Some(handle) = runtime.handle() {
            handle.spawn(async move {
                sending.run().await;
                end.send_replace(true);
            });
        }
        LogQueue { sender, bound: limits.max_queue_size as u64, counts: Arc::clone(counts), ended }
    }

    /// Queues a record, or counts it as dropped. Never waits.
    pub(crate) fn push(&self, record: Record) {
        // No word about a full queue: it would have to be queued itself. The counter tells.
        if self.counts.enqueue(1, self.bound) == Place::Taken && self.sender.send(record).is_err() {
            self.counts.gave_up(1);
        }
    }

    /// Whether both are the same queue.
    pub(crate) fn is(&self, other: &LogQueue) -> bool {
        self.sender.same_channel(&other.sender)
    }

    /// Returns once the last records are delivered or given up, after [`Closing`] has begun.
    pub(crate) async fn ended(&self) {
        let mut ended = self.ended.clone();
        // An error means that the task is gone.
        let _ = ended.wait_for(|ended| *ended).await;
    }
}

struct Sending {
    receiver: mpsc::UnboundedReceiver<Record>,
    delivery: Delivery,
    closing: Closing,
    resource: ProtoResource,
    batch: usize,
    delay: Duration,
}

impl Sending {
    async fn run(mut self) {
        let mut batch = Vec::with_capacity(self.batch);
        loop {
            let first = tokio::select! {
                first = self.receiver.recv() => first,
                () = self.closing.beginning() => break,
            };
            let Some(first) = first else { return };
            batch.push(first);
            let full = async {
                while batch.len() < self.batch {
                    match self.receiver.recv().await {
                        Some(record) => batch.push(record),
                        None => return,
                    }
                }
            };
            tokio::select! {
                () = full => {}
                () = tokio::time::sleep(self.delay) => {}
                () = self.closing.beginning() => {}
            }
            self.send(&mut batch).await;
        }
        self.receiver.close();
        while self.receiver.recv_many(&mut batch, self.batch).await > 0 {
            self.send(&mut batch).await;
        }
    }

    async fn send(&self, batch: &mut Vec<Record>) {
        let count = batch.len() as u64;
        let mut scopes: BTreeMap<String, Vec<LogRecord>> = BTreeMap::new();
        for record in batch.drain(..) {
            scopes.entry(record.target).or_default().push(record.log);
        }
        let scope_logs = scopes.into_iter().map(|(name, log_records)| ScopeLogs {
            scope: Some(InstrumentationScope { name, ..InstrumentationScope::default() }),
            log_records,
            ..ScopeLogs::default()
        });
        let message = ExportLogsServiceRequest {
            resource_logs: vec![ResourceLogs {
                resource: Some(self.resource.clone()),
                scope_logs: scope_logs.collect(),
                ..ResourceLogs::default()
            }],
        };
        self.delivery.deliver::<Logs>(message, count).await;
    }
}
