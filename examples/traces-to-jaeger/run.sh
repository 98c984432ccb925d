#!/usr/bin/env bash
# Sends the traces of two requests to Jaeger and prints where to see them.
#
#   OTLP_ENDPOINT   where traces go by OTLP over gRPC     (http://127.0.0.1:4317, a Jaeger started here)
#
# and the variables of examples/common.sh.
set -euo pipefail
cd "$(dirname "$0")/../.."
source examples/common.sh

start_jaeger
OTEL_BSP_SCHEDULE_DELAY=500 start_limpid --collect-detailed-traces all --otlp-traces-endpoint "$OTLP_ENDPOINT"

whole=$(new_id 16)
ask "$whole" 120 32
echo "an answer:        $JAEGER/trace/$whole"

given_up=$(new_id 16)
if ask "$given_up" 1 2000; then
    echo "an answer:        $JAEGER/trace/$given_up"
else
    echo "one given up:     $JAEGER/trace/$given_up"
fi

wait_for_enter
