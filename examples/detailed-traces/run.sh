#!/usr/bin/env bash
# Looks into every engine step of one answer and prints where the time of two of them went, op by op.
#
#   OTLP_ENDPOINT   where traces go by OTLP over gRPC     (http://127.0.0.1:4317, a Jaeger started here)
#   JAEGER          that Jaeger's address for questions   (http://127.0.0.1:16686)
#
# and the variables of examples/common.sh.
set -euo pipefail
cd "$(dirname "$0")/../.."
source examples/common.sh

start_jaeger
# Each op of each step is a span; the queue has to hold them until they are sent.
OTEL_BSP_SCHEDULE_DELAY=500 OTEL_BSP_MAX_QUEUE_SIZE=100000 start_limpid \
    --collect-detailed-traces all --detailed-trace-step-ratio 1 --otlp-traces-endpoint "$OTLP_ENDPOINT"

trace=$(new_id 16)
ask "$trace" 120 8
stop_limpid

python3 scripts/jaeger-trace.py "$JAEGER" "$trace"
echo
python3 examples/detailed-traces/steps.py "$JAEGER"

wait_for_enter
