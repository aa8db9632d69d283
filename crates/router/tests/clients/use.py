"""Uses the router as the pages of its clients show. Arguments: its address, a key, a model, and the sentence that the model answers.

Prints a line of JSON: the tokens that the router reported to the clients.
"""

import json
import sys

import anthropic
import openai
from langchain_openai import ChatOpenAI

address, key, model, sentence = sys.argv[1:]
question = [{"role": "user", "content": "Hello"}]
tokens = {"input": 0, "output": 0}


def count(usage):
    tokens["input"] += getattr(usage, "prompt_tokens", None) or usage.input_tokens
    # Anthropic's tokens of a prompt are those that no cache had.
    tokens["input"] += getattr(usage, "cache_read_input_tokens", None) or 0
    tokens["output"] += getattr(usage, "completion_tokens", None) or usage.output_tokens


def expect(condition, what):
    if not condition:
        raise SystemExit(f"not as expected: {what}")


def says(text, what):
    expect(sentence in text, f"{what} answers {text!r}")


def fails(call, error, kind):
    try:
        call()
    except error as found:
        body = found.body.get("error", found.body)
        expect(body["type"] == kind, f"{found!r} of the type {kind}")
        return
    raise SystemExit(f"no {error.__name__}")


client = openai.OpenAI(base_url=f"{address}/v1", api_key=key, max_retries=0)
expect(model in [one.id for one in client.models.list()], "the list of models")
whole = client.chat.completions.create(model=model, messages=question)
says(whole.choices[0].message.content, "OpenAI's client")
count(whole.usage)
stream = client.chat.completions.create(model=model, messages=question, stream=True)
parts = list(stream)
expect(all(part.choices for part in parts), "no event without a choice, because no tokens were requested")
says("".join(part.choices[0].delta.content or "" for part in parts), "a stream of OpenAI's client")
# The same tokens again: the prompt is the same.
count(whole.usage)
options = {"include_usage": True}
stream = client.chat.completions.create(model=model, messages=question, stream=True, stream_options=options)
parts = list(stream)
expect(parts[-1].usage, "the last event has the tokens that were requested")
count(parts[-1].usage)
completed = client.completions.create(model=model, prompt="Hello")
says(completed.choices[0].text, "a completion")
count(completed.usage)
fails(lambda: client.chat.completions.create(model="absent", messages=question), openai.NotFoundError, "model_not_found")
wrong = client.with_options(api_key="wrong")
fails(lambda: wrong.models.list(), openai.AuthenticationError, "unauthenticated")

claude = anthropic.Anthropic(base_url=address, api_key=key, max_retries=0)
message = claude.messages.create(model=model, max_tokens=64, messages=question)
says(message.content[0].text, "Anthropic's client")
count(message.usage)
with claude.messages.stream(model=model, max_tokens=64, messages=question) as stream:
    says("".join(stream.text_stream), "a stream of Anthropic's client")
    count(stream.get_final_message().usage)
call = lambda: claude.messages.create(model="absent", max_tokens=1, messages=question)
fails(call, anthropic.NotFoundError, "not_found_error")
fails(lambda: claude.with_options(api_key="wrong").messages.create(model=model, max_tokens=1, messages=question),
      anthropic.AuthenticationError, "authentication_error")

chain = ChatOpenAI(base_url=f"{address}/v1", api_key=key, model=model, max_retries=0, stream_usage=True)
answer = chain.invoke("Hello")
says(answer.content, "LangChain")
tokens["input"] += answer.usage_metadata["input_tokens"]
tokens["output"] += answer.usage_metadata["output_tokens"]
pieces = list(chain.stream("Hello"))
says("".join(piece.content for piece in pieces), "a stream of LangChain")
usage = [piece.usage_metadata for piece in pieces if piece.usage_metadata]
expect(usage, "LangChain gets the tokens of a stream that it requests")
tokens["input"] += usage[-1]["input_tokens"]
tokens["output"] += usage[-1]["output_tokens"]

print(json.dumps(tokens))
