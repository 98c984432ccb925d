"""Asks a limpid server one question and streams the answer.

The address comes from OPENAI_BASE_URL and the key from OPENAI_API_KEY, as the official client reads them.
"""

import secrets
import sys

from openai import OpenAI


def main() -> None:
    question = " ".join(sys.argv[1:]) or "What is a lighthouse for?"
    client = OpenAI()
    model = client.models.list().data[0].id

    # limpid's SERVER span becomes a child of this span and belongs to this trace.
    traceparent = f"00-{secrets.token_hex(16)}-{secrets.token_hex(8)}-01"
    stream = client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": question}],
        max_tokens=64,
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
        extra_headers={"traceparent": traceparent},
    )
    usage = None
    for chunk in stream:
        if chunk.choices and chunk.choices[0].delta.content:
            print(chunk.choices[0].delta.content, end="", flush=True)
        usage = chunk.usage or usage
    print()
    print(f"{usage.prompt_tokens} tokens in, {usage.completion_tokens} tokens out, trace {traceparent[3:35]}")


if __name__ == "__main__":
    main()
