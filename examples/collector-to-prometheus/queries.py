"""Asks Prometheus what limpid did, once it knows of as many requests as were sent.

    python3 queries.py http://127.0.0.1:9090 3
"""

import json
import sys
import time
import urllib.parse
import urllib.request

PATIENCE = 120  # seconds; a scrape interval may be a minute

QUERIES = [
    ("requests that ended", "sum(vllm:request_success_total)"),
    ("tokens in", "sum(vllm:prompt_tokens_total)"),
    ("tokens out", "sum(vllm:generation_tokens_total)"),
    ("time to first token, mean in s",
     "sum(vllm:time_to_first_token_seconds_sum) / sum(vllm:time_to_first_token_seconds_count)"),
    ("time between tokens, mean in s",
     "sum(vllm:inter_token_latency_seconds_sum) / sum(vllm:inter_token_latency_seconds_count)"),
    ("time to first token, 95th percentile in s",
     "histogram_quantile(0.95, sum by (le) (vllm:time_to_first_token_seconds_bucket))"),
]


def value(prometheus, query):
    """The query's only value; None if there is none."""
    query = urllib.parse.urlencode({"query": query})
    with urllib.request.urlopen(f"{prometheus}/api/v1/query?{query}", timeout=30) as answer:
        result = json.load(answer)["data"]["result"]
    return float(result[0]["value"][1]) if result else None


def main():
    prometheus, expected = sys.argv[1].rstrip("/"), float(sys.argv[2])
    deadline = time.monotonic() + PATIENCE
    while (value(prometheus, QUERIES[0][1]) or 0) < expected:
        if time.monotonic() > deadline:
            sys.exit(f"{prometheus} does not know of {expected:.0f} requests")
        time.sleep(0.5)
    for title, query in QUERIES:
        print(f"{title:<42}{value(prometheus, query):>10.4g}    {query}")


if __name__ == "__main__":
    main()
