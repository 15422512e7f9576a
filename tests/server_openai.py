#!/usr/bin/env python3
"""The server against the official client of the API it has: chat, streams, tools, JSON, logprobs, cancellation, errors.

    server_openai.py EBB MODEL_DIR

Run by `make test-openai`, which puts the package openai into a virtual environment. Speaks to 127.0.0.1 only."""
import concurrent.futures
import json
import re
import subprocess
import sys
import time
import urllib.request

import openai

ANSWER = 24  # tokens


def start(ebb, model):
    server = subprocess.Popen([ebb, "serve", "-m", model, "--port", "0", "--seqs", "4", "--threads", "2", "--state", "leap8",
                               "--api-key", "secret", "--ctx", "8192"], stderr=subprocess.PIPE, text=True)
    for line in server.stderr:
        found = re.match(r"(http://\S+)/ ", line)
        if found:
            return server, found.group(1)
    raise SystemExit("the server did not start")


def metric(url, name):
    request = urllib.request.Request(url + "/metrics", headers={"Authorization": "Bearer secret"})
    text = urllib.request.urlopen(request, timeout=20).read().decode()
    return float(re.search("^" + re.escape(name) + " (.*)$", text, re.M).group(1))


def wait_for(url, name, value):
    for _ in range(500):
        if metric(url, name) == value:
            return
        time.sleep(0.02)
    raise AssertionError(f"{name} is {metric(url, name)}, expected {value}")


def user(text):
    return [{"role": "user", "content": text}]


TOOL = {"type": "function", "function": {"name": "get_weather", "description": "the weather", "parameters": {
    "type": "object", "properties": {"city": {"type": "string", "maxLength": 12}, "unit": {"enum": ["C", "F"]}},
    "required": ["city", "unit"]}}}


def test_models(client, name, url):
    assert [m.id for m in client.models.list()] == [name]


def test_chat(client, name, url):
    a = client.chat.completions.create(model=name, messages=user("Tell me of Alice"), temperature=0, max_tokens=ANSWER)
    b = client.chat.completions.create(model=name, messages=user("Tell me of Alice"), temperature=0, max_completion_tokens=ANSWER)
    assert a.choices[0].message.content == b.choices[0].message.content
    assert a.choices[0].finish_reason in ("stop", "length")
    assert a.usage.total_tokens == a.usage.prompt_tokens + a.usage.completion_tokens
    assert a.usage.prompt_tokens_details.cached_tokens >= 0


def test_stream(client, name, url):
    whole = client.chat.completions.create(model=name, messages=user("Hello there"), temperature=0, max_tokens=ANSWER)
    stream = client.chat.completions.create(model=name, messages=user("Hello there"), temperature=0, max_tokens=ANSWER, stream=True,
                                            stream_options={"include_usage": True}, extra_body={"return_progress": True})
    text, usage, reasons, roles = "", None, [], 0
    for chunk in stream:
        usage = chunk.usage or usage
        for choice in chunk.choices:
            text += choice.delta.content or ""
            roles += choice.delta.role == "assistant"
            if choice.finish_reason:
                reasons.append(choice.finish_reason)
    assert text == whole.choices[0].message.content
    assert usage.completion_tokens == whole.usage.completion_tokens
    assert reasons == [whole.choices[0].finish_reason] and roles == 1


def test_completions(client, name, url):
    a = client.completions.create(model=name, prompt=["Alice was", "The sea"], max_tokens=8, temperature=0, n=2, logprobs=2)
    assert [c.index for c in a.choices] == [0, 1, 2, 3]
    assert a.choices[0].text == a.choices[1].text and a.choices[2].text == a.choices[3].text
    assert len(a.choices[0].logprobs.tokens) == len(a.choices[0].logprobs.token_logprobs) > 0
    b = client.completions.create(model=name, prompt="Alice was", max_tokens=8, temperature=0, stream=True)
    assert "".join(c.choices[0].text for c in b if c.choices) == a.choices[0].text


def test_seeds(client, name, url):
    def say(seed):
        return client.chat.completions.create(model=name, messages=user("Hi"), seed=seed, temperature=1, max_tokens=ANSWER, n=2)
    a, b, c = say(1), say(1), say(2)
    assert [x.message.content for x in a.choices] == [x.message.content for x in b.choices]
    assert a.choices[0].message.content != c.choices[0].message.content


def test_logprobs(client, name, url):
    a = client.chat.completions.create(model=name, messages=user("Hi"), temperature=0, max_tokens=6, logprobs=True, top_logprobs=4)
    for entry in a.choices[0].logprobs.content:
        assert len(entry.top_logprobs) == 4 and entry.logprob <= 0
        assert entry.token == entry.top_logprobs[0].token
        assert bytes(entry.bytes).decode(errors="replace") == entry.token


def test_stop(client, name, url):
    whole = client.chat.completions.create(model=name, messages=user("Tell me of Alice"), temperature=0, max_tokens=ANSWER)
    text = whole.choices[0].message.content
    word = text[len(text) // 2:len(text) // 2 + 3]
    a = client.chat.completions.create(model=name, messages=user("Tell me of Alice"), temperature=0, max_tokens=ANSWER, stop=[word])
    assert a.choices[0].message.content == text[:text.index(word)]
    assert a.choices[0].finish_reason == "stop"


def test_json(client, name, url):
    schema = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 10}, "age": {"type": "integer"},
                                               "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 2}},
              "required": ["name", "age", "tags"], "additionalProperties": False}
    for seed in range(4):
        a = client.chat.completions.create(model=name, messages=user("JSON please"), seed=seed, temperature=1, max_tokens=600, response_format={
            "type": "json_schema", "json_schema": {"name": "person", "strict": True, "schema": schema}})
        value = json.loads(a.choices[0].message.content)
        assert list(value) == ["name", "age", "tags"] and isinstance(value["age"], int) and set(value["tags"]) <= {"a", "b"}
    a = client.chat.completions.create(model=name, messages=user("JSON"), temperature=0, max_tokens=3, response_format={"type": "json_object"})
    assert a.choices[0].message.content.lstrip().startswith("{")


def test_tools(client, name, url):
    messages = user("The weather in Ulm?")
    a = client.chat.completions.create(model=name, messages=messages, tools=[TOOL], tool_choice="required", temperature=1, seed=1)
    call = a.choices[0].message.tool_calls[0]
    arguments = json.loads(call.function.arguments)
    assert a.choices[0].finish_reason == "tool_calls" and call.function.name == "get_weather"
    assert arguments["unit"] in ("C", "F") and isinstance(arguments["city"], str)
    messages += [a.choices[0].message.model_dump(exclude_none=True), {"role": "tool", "tool_call_id": call.id, "content": "21 C"}]
    client.chat.completions.create(model=name, messages=messages, tools=[TOOL], max_tokens=4)
    named = {"type": "function", "function": {"name": "get_weather"}}
    stream = client.chat.completions.create(model=name, messages=user("Weather?"), tools=[TOOL], tool_choice=named, stream=True, temperature=0)
    calls = [c for chunk in stream for choice in chunk.choices for c in choice.delta.tool_calls or []]
    assert calls[0].function.name == "get_weather" and json.loads(calls[0].function.arguments)


def test_cancel(client, name, url):
    before = metric(url, 'ebb_requests_total{end="cancelled"}')
    stream = client.chat.completions.create(model=name, messages=user("Hello"), stream=True, max_tokens=6000, extra_body={"ignore_eos": True})
    next(iter(stream))
    assert metric(url, "ebb_requests_running") == 1
    stream.close()
    wait_for(url, "ebb_requests_running", 0)
    wait_for(url, 'ebb_requests_total{end="cancelled"}', before + 1)


def test_errors(client, name, url):
    def fails(kind, word, **more):
        try:
            client.chat.completions.create(**{"model": name, "messages": user("x"), "max_tokens": 4, **more})
        except kind as error:
            assert word in str(error), str(error)
            return
        raise AssertionError(f"{more} was not refused")
    fails(openai.NotFoundError, "other", model="other")
    fails(openai.BadRequestError, "temperature", temperature=9)
    fails(openai.BadRequestError, "colour", extra_body={"colour": 1})
    fails(openai.BadRequestError, "context", messages=user("word " * 20000))
    fails(openai.BadRequestError, "pattern", response_format={"type": "json_schema", "json_schema": {
        "name": "x", "schema": {"type": "string", "pattern": "a"}}})
    try:
        openai.OpenAI(base_url=url + "/v1", api_key="wrong", max_retries=0).models.list()
    except openai.AuthenticationError:
        return
    raise AssertionError("a wrong key was taken")


def test_many(client, name, url):
    """Eight at a time over four slots: the same greedy answers as one at a time."""
    def say(text):
        return client.chat.completions.create(model=name, messages=user(text), temperature=0, max_tokens=ANSWER).choices[0].message.content
    texts = [f"Say {i} and more" for i in range(8)]
    alone = [say(t) for t in texts]
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        assert list(pool.map(say, texts)) == alone


def main():
    ebb, model = sys.argv[1:3]
    server, url = start(ebb, model)
    failures = 0
    try:
        client = openai.OpenAI(base_url=url + "/v1", api_key="secret", max_retries=0, timeout=120)
        name = client.models.list().data[0].id
        for test in [v for k, v in sorted(globals().items()) if k.startswith("test_")]:
            try:
                test(client, name, url)
                print(f"{test.__name__}: good")
            except Exception as error:  # every test is run, whatever the others do
                failures += 1
                print(f"{test.__name__}: FAILED: {type(error).__name__}: {error}")
    finally:
        server.terminate()
        code = server.wait(60)
    print(f"openai {openai.__version__}: {failures} failed")
    return 1 if failures or code else 0


if __name__ == "__main__":
    sys.exit(main())
