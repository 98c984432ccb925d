#!/usr/bin/env bash
# Sends the traces of two requests to Jaeger and prints where to see them.
#
#   LIMPID          the binary to run                     (cargo run --release --)
#   LIMPID_ARGS     more arguments for `serve`            (none: the default model)
#   PORT            limpid's port                         (8000)
#   OTLP_ENDPOINT   where traces go by OTLP over gRPC     (http://127.0.0.1:4317, a Jaeger started here)
set -euo pipefail
cd "$(dirname "$0")/../.."

port="${PORT:-8000}"
base="http://127.0.0.1:$port"
pids=()
container=""

clean_up() {
    for pid in "${pids[@]}"; do
        kill -TERM "$pid" 2> /dev/null || true
        wait "$pid" 2> /dev/null || true
    done
    if [[ -n "$container" ]]; then
        docker stop "$container" > /dev/null
    fi
}
trap clean_up EXIT

if [[ -z "${OTLP_ENDPOINT:-}" ]]; then
    OTLP_ENDPOINT=http://127.0.0.1:4317
    if ! (exec 3<> /dev/tcp/127.0.0.1/4317) 2> /dev/null; then
        container=$(docker run --rm --detach --publish 127.0.0.1:4317:4317 --publish 127.0.0.1:16686:16686 \
            jaegertracing/jaeger:2.13.0)
    fi
fi

read -ra limpid <<< "${LIMPID:-cargo run --release --}"
read -ra arguments <<< "${LIMPID_ARGS:-}"
OTEL_BSP_SCHEDULE_DELAY=500 "${limpid[@]}" serve "${arguments[@]}" --host 127.0.0.1 --port "$port" \
    --collect-detailed-traces all --otlp-traces-endpoint "$OTLP_ENDPOINT" &
pids+=($!)
until curl --silent --fail --output /dev/null "$base/health"; do
    kill -0 "${pids[0]}" 2> /dev/null || { echo "limpid ended" >&2; exit 1; }
    sleep 0.2
done

new_id() {
    od -An -N "$1" -tx1 /dev/urandom | tr -d ' \n'
}

# Asks a question as part of a trace of ours, whose id is then known.
ask() {
    curl --silent --no-buffer "$base/v1/chat/completions" --header 'content-type: application/json' \
        --header "traceparent: 00-$1-$(new_id 8)-01" --max-time "$2" --output /dev/null --data "{
            \"messages\": [{\"role\": \"user\", \"content\": \"What is a lighthouse for?\"}],
            \"max_tokens\": $3, \"stream\": true}"
}

whole=$(new_id 16)
ask "$whole" 120 32
echo "an answer:        http://127.0.0.1:16686/trace/$whole"

given_up=$(new_id 16)
if ask "$given_up" 1 2000; then
    echo "an answer:        http://127.0.0.1:16686/trace/$given_up"
else
    echo "one given up:     http://127.0.0.1:16686/trace/$given_up"
fi

if [[ -t 0 ]]; then
    read -rp "Press Enter to stop. "
fi
