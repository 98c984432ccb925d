"""Prints two engine steps from Jaeger, the one with the most tokens and one with a single token: their parts, and
the ops by the time that all layers together took, with the rates they achieved.

    python3 steps.py http://127.0.0.1:16686
"""

import json
import sys
import urllib.parse
import urllib.request
from collections import defaultdict

SHOWN = 8


def tag(span, key, default=0):
    return next((tag["value"] for tag in span["tags"] if tag["key"] == key), default)


def parent(span):
    return next((reference["spanID"] for reference in span["references"]
                 if reference["refType"] == "CHILD_OF"), None)


def steps(jaeger):
    query = urllib.parse.urlencode(
        {"service": "limpid", "operation": "engine.step", "limit": 1000, "lookback": "1h"})
    with urllib.request.urlopen(f"{jaeger}/api/traces?{query}", timeout=30) as answer:
        return [trace["spans"] for trace in json.load(answer)["data"]]


def root(spans):
    return next(span for span in spans if span["operationName"] == "engine.step")


def count(number, noun):
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def show(spans):
    step = root(spans)
    tokens, requests = tag(step, "limpid.step.num_tokens"), tag(step, "limpid.step.num_requests")
    print(f"A step of {count(tokens, 'token')} of {count(requests, 'request')}: {step['duration'] / 1e3:.2f} ms")
    parts = sorted((span for span in spans if parent(span) == step["spanID"]),
                   key=lambda span: span["startTime"])
    for part in parts:
        print(f"  {part['operationName']:<12}{part['duration'] / 1e3:>9.2f} ms")
    forward = next((part for part in parts if part["operationName"] == "forward"), None)
    kinds = defaultdict(lambda: [0, 0, 0, 0])
    for span in spans:
        if forward and parent(span) == forward["spanID"]:
            # layer.3.attention -> attention
            kind = span["operationName"].split(".", 2)[-1]
            sums = kinds[kind]
            sums[0] += 1
            sums[1] += span["duration"]
            sums[2] += tag(span, "limpid.flops")
            sums[3] += tag(span, "limpid.bytes_read") + tag(span, "limpid.bytes_written")
    print(f"  {'op':<16}{'times':>6}{'ms':>9}{'GFLOP/s':>10}{'GB/s':>8}")
    slowest = sorted(kinds.items(), key=lambda item: -item[1][1])
    for kind, (times, micros, flops, moved) in slowest[:SHOWN]:
        rates = (f"{flops / micros / 1e3:>10.1f}{moved / micros / 1e3:>8.1f}" if micros else "")
        print(f"  {kind:<16}{times:>6}{micros / 1e3:>9.2f}{rates}")
    print()


def main():
    found = steps(sys.argv[1].rstrip("/"))
    if not found:
        sys.exit("Jaeger has no engine.step")
    tokens = lambda spans: tag(root(spans), "limpid.step.num_tokens")
    show(max(found, key=tokens))
    show(min(found, key=tokens))


if __name__ == "__main__":
    main()
