//! The three signals as OTLP services.

use std::future::Future;

use opentelemetry_proto::tonic::collector::logs::v1::logs_service_client::LogsServiceClient;
use opentelemetry_proto::tonic::collector::logs::v1::{ExportLogsServiceRequest, ExportLogsServiceResponse};
use opentelemetry_proto::tonic::collector::metrics::v1::metrics_service_client::MetricsServiceClient;
use opentelemetry_proto::tonic::collector::metrics::v1::{
    ExportMetricsServiceRequest, ExportMetricsServiceResponse,
};
use opentelemetry_proto::tonic::collector::trace::v1::trace_service_client::TraceServiceClient;
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use tonic::codec::CompressionEncoding::Gzip;
use tonic::transport::Channel;
use tonic::{Request, Response, Status};

/// An OTLP service.
pub(super) trait Signal: Send + Sync + 'static {
    const NAME: &'static str;
    /// What it sends, in the plural.
    const ITEMS: &'static str;
    type Request: prost::Message + Clone + Default + 'static;
    type Response: prost::Message + Default + 'static;

    /// One unary call.
    fn call(
        channel: Channel,
        gzip: bool,
        request: Request<Self::Request>,
    ) -> impl Future<Output = Result<Response<Self::Response>, Status>> + Send;

    /// How many items the collector refused of those it answered well, and why.
    fn refused(response: &Self::Response) -> Option<(u64, &str)>;
}

pub(super) struct Traces;
pub(super) struct Metrics;
pub(super) struct Logs;

impl Signal for Traces {
    const NAME: &'static str = "traces";
    const ITEMS: &'static str = "spans";
    type Request = ExportTraceServiceRequest;
    type Response = ExportTraceServiceResponse;

    async fn call(
        channel: Channel,
        gzip: bool,
        request: Request<Self::Request>,
    ) -> Result<Response<Self::Response>, Status> {
        let client = TraceServiceClient::new(channel);
        let mut client = if gzip { client.send_compressed(Gzip).accept_compressed(Gzip) } else { client };
        client.export(request).await
    }

    fn refused(response: &Self::Response) -> Option<(u64, &str)> {
        let partial = response.partial_success.as_ref()?;
        let refused = u64::try_from(partial.rejected_spans).unwrap_or(0);
        (refused > 0).then_some((refused, &partial.error_message))
    }
}

impl Signal for Metrics {
    const NAME: &'static str = "metrics";
    const ITEMS: &'static str = "data points";
    type Request = ExportMetricsServiceRequest;
    type Response = ExportMetricsServiceResponse;

    async fn call(
        channel: Channel,
        gzip: bool,
        request: Request<Self::Request>,
    ) -> Result<Response<Self::Response>, Status> {
        let client = MetricsServiceClient::new(channel);
        let mut client = if gzip { client.send_compressed(Gzip).accept_compressed(Gzip) } else { client };
        client.export(request).await
    }

    fn refused(response: &Self::Response) -> Option<(u64, &str)> {
        let partial = response.partial_success.as_ref()?;
        let refused = u64::try_from(partial.rejected_data_points).unwrap_or(0);
        (refused > 0).then_some((refused, &partial.error_message))
    }
}

impl Signal for Logs {
    const NAME: &'static str = "logs";
    const ITEMS: &'static str = "log records";
    type Request = ExportLogsServiceRequest;
    type Response = ExportLogsServiceResponse;

    async fn call(
        channel: Channel,
        gzip: bool,
        request: Request<Self::Request>,
    ) -> Result<Response<Self::Response>, Status> {
        let client = LogsServiceClient::new(channel);
        let mut client = if gzip { client.send_compressed(Gzip).accept_compressed(Gzip) } else { client };
        client.export(request).await
    }

    fn refused(response: &Self::Response) -> Option<(u64, &str)> {
        let partial = response.partial_success.as_ref()?;
        let refused = u64::try_from(partial.rejected_log_records).unwrap_or(0);
        (refused > 0).then_some((refused, &partial.error_message))
    }
}
