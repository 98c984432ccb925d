#!/usr/bin/env python3
"""Draws a trace as text, from what Jaeger's query API answers.

    scripts/jaeger-trace.py http://127.0.0.1:16686 TRACE_ID
"""

import json
import sys
import time
import urllib.error
import urllib.request

WIDTH = 56
PATIENCE = 20  # seconds until the trace has arrived, its SERVER span last


def tags(span):
    return {tag["key"]: tag["value"] for tag in span["tags"]}


def fetch(jaeger, trace_id):
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            with urllib.request.urlopen(f"{jaeger}/api/traces/{trace_id}", timeout=30) as answer:
                spans = json.load(answer)["data"][0]["spans"]
            if any(tags(span).get("span.kind") == "server" for span in spans):
                return spans
        except urllib.error.HTTPError as error:
            if error.code != 404:
                raise
        if time.monotonic() > deadline:
            sys.exit(f"Jaeger has no whole trace {trace_id}")
        time.sleep(0.2)


def duration(micros):
    if micros < 1_000:
        return f"{micros} µs"
    return f"{micros / 1e3:.1f} ms" if micros < 1_000_000 else f"{micros / 1e6:.2f} s"


def rows(spans):
    """Name with its place in the tree, and the span."""
    ids = {span["spanID"] for span in spans}
    children = {}
    for span in spans:
        parent = next((reference["spanID"] for reference in span["references"]), None)
        children.setdefault(parent if parent in ids else None, []).append(span)

    def below(parent, indent):
        siblings = sorted(children.get(parent, []), key=lambda span: span["startTime"])
        for index, span in enumerate(siblings):
            last = index + 1 == len(siblings)
            branch = "" if parent is None else indent + ("└─ " if last else "├─ ")
            yield branch + span["operationName"], span
            deeper = "" if parent is None else indent + ("   " if last else "│  ")
            yield from below(span["spanID"], deeper)

    return list(below(None, ""))


def draw(spans):
    drawn = rows(spans)
    start = min(span["startTime"] for span in spans)
    whole = max(max(span["startTime"] + span["duration"] for span in spans) - start, 1)
    names = max(len(name) for name, _ in drawn)
    for name, span in drawn:
        begin = (span["startTime"] - start) * WIDTH // whole
        length = max(span["duration"] * WIDTH // whole, 1)
        bar = (" " * min(begin, WIDTH - 1) + "█" * length)[:WIDTH]
        print(f"{name:<{names}}  {bar:<{WIDTH}}  {duration(span['duration']):>9}")
    for _, span in drawn:
        for key, value in sorted(tags(span).items()):
            if key.startswith(("gen_ai.latency.", "gen_ai.usage.", "gen_ai.response.finish")):
                print(f"  {key:<42}{value:.6f} s" if isinstance(value, float) else f"  {key:<42}{value}")


if __name__ == "__main__":
    draw(fetch(sys.argv[1].rstrip("/"), sys.argv[2]))
