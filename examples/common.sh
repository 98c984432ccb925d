# What the scripts of the examples share: a limpid that ends with the script, and questions to it.
#
#   LIMPID        the binary to run                   (cargo run --release --)
#   LIMPID_ARGS   more arguments for `serve`          (none: the default model)
#   PORT          limpid's port                       (8000)
#
# To be sourced from the repository's root.

port="${PORT:-8000}"
base="http://127.0.0.1:$port"
limpid_pid=""
clean_ups=()

stop_limpid() {
    if [[ -n "$limpid_pid" ]]; then
        kill -TERM "$limpid_pid" 2> /dev/null || true
        # It sends what it still holds before it ends.
        wait "$limpid_pid" 2> /dev/null || true
        limpid_pid=""
    fi
}

clean_up() {
    stop_limpid
    for command in "${clean_ups[@]}"; do
        $command > /dev/null
    done
}
trap clean_up EXIT

# Starts limpid with these arguments and waits until it answers.
start_limpid() {
    local limpid arguments
    read -ra limpid <<< "${LIMPID:-cargo run --release --}"
    read -ra arguments <<< "${LIMPID_ARGS:-}"
    "${limpid[@]}" serve "${arguments[@]}" --host 127.0.0.1 --port "$port" "$@" &
    limpid_pid=$!
    until curl --silent --fail --output /dev/null "$base/health"; do
        kill -0 "$limpid_pid" 2> /dev/null || { echo "limpid ended" >&2; exit 1; }
        sleep 0.2
    done
}

# Makes sure that a Jaeger takes OTLP, unless OTLP_ENDPOINT says where traces go.
start_jaeger() {
    JAEGER="${JAEGER:-http://127.0.0.1:16686}"
    if [[ -z "${OTLP_ENDPOINT:-}" ]]; then
        OTLP_ENDPOINT=http://127.0.0.1:4317
        if ! (exec 3<> /dev/tcp/127.0.0.1/4317) 2> /dev/null; then
            local container
            container=$(docker run --rm --detach --publish 127.0.0.1:4317:4317 --publish 127.0.0.1:16686:16686 \
                jaegertracing/jaeger:2.13.0)
            clean_ups+=("docker stop $container")
        fi
    fi
}

# Random bytes in hex.
new_id() {
    od -An -N "$1" -tx1 /dev/urandom | tr -d ' \n'
}

# Asks a question as part of a trace of ours, whose id is then known: trace id, seconds to wait, tokens.
ask() {
    curl --silent --no-buffer "$base/v1/chat/completions" --header 'content-type: application/json' \
        --header "traceparent: 00-$1-$(new_id 8)-01" --max-time "$2" --output /dev/null --data "{
            \"messages\": [{\"role\": \"user\", \"content\": \"What is a lighthouse for?\"}],
            \"max_tokens\": $3, \"stream\": true}"
}

# Lets a person look before everything ends.
wait_for_enter() {
    if [[ -t 0 ]]; then
        read -rp "Press Enter to stop. "
    fi
}
