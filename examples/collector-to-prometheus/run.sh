#!/usr/bin/env bash
# Pushes limpid's metrics to a collector and asks Prometheus, which scrapes that collector, about them.
#
#   OTLP_ENDPOINT   where metrics go by OTLP over gRPC    (http://127.0.0.1:4317, a collector started here)
#   PROMETHEUS      address of Prometheus                 (http://127.0.0.1:9090, started here)
#
# and the variables of examples/common.sh.
set -euo pipefail
cd "$(dirname "$0")/../.."
source examples/common.sh

if [[ -z "${OTLP_ENDPOINT:-}" ]]; then
    OTLP_ENDPOINT=http://127.0.0.1:4317
    docker compose --file otel-collector/compose.yaml up --detach collector prometheus
    clean_ups+=("docker compose --file otel-collector/compose.yaml down")
fi
OTEL_METRIC_EXPORT_INTERVAL=1000 start_limpid --otlp-metrics-endpoint "$OTLP_ENDPOINT"

for _ in 1 2 3; do
    ask "$(new_id 16)" 120 32
done
python3 examples/collector-to-prometheus/queries.py "${PROMETHEUS:-http://127.0.0.1:9090}" 3

wait_for_enter
