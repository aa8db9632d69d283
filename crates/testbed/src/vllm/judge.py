"""Asks vLLM whether it takes the arguments that providers write for it.

Standard input is a JSON list of questions, standard output the list of answers. A question is `{"form": …, "arguments": …}`:

- `serve`: the words after `vllm serve`;
- `dynamo`: the words after `python3 -m dynamo.vllm`;
- `kaito`: the text of KAITO's inference configuration;
- `ray`: the engine_kwargs of Ray Serve LLM.

An answer is `{"refused": reason, "taken": null}` or `{"refused": null, "taken": {name: value}}`, with every value by vLLM's name for
it. Anything that is an object is an empty object.

With the argument `examples` it writes a list of `[flag, text]` instead: an example of each flag.
"""

import contextlib
import dataclasses
import enum
import io
import json
import sys
import types
import typing

import yaml
from vllm import AsyncEngineArgs
from vllm.entrypoints.cli.serve import ServeSubcommand
from vllm.entrypoints.launchers.cli_args import FrontendArgs
from vllm.utils.argparse_utils import FlexibleArgumentParser

SERVE = ServeSubcommand()

# The flags that dynamo.vllm takes before it gives the others to vLLM, of those that the provider writes: up to Dynamo 0.9, and
# since 1.0 (Dynamo `components/src/dynamo/vllm/backend_args.py`, DynamoVllmArgGroup).
DYNAMO_SWITCHES = ["--is-prefill-worker", "--is-decode-worker"]
DYNAMO_FLAGS = {"--disaggregation-mode": ["agg", "prefill", "decode"]}


def serve(words):
    parser = FlexibleArgumentParser(prog="vllm")
    SERVE.subparser_init(parser.add_subparsers(dest="subparser"))
    parsed = parser.parse_args(["serve", *words])
    SERVE.validate(parsed)
    # As ServeSubcommand.cmd does.
    parsed.model = parsed.model_tag or parsed.model
    AsyncEngineArgs.from_cli_args(parsed)
    return plain_values(parsed)


def dynamo(words):
    parser = FlexibleArgumentParser(prog="dynamo.vllm")
    for switch in DYNAMO_SWITCHES:
        parser.add_argument(switch, action="store_true")
    for flag, choices in DYNAMO_FLAGS.items():
        parser.add_argument(flag, choices=choices)
    AsyncEngineArgs.add_cli_args(parser)
    parsed = parser.parse_args(words)
    AsyncEngineArgs.from_cli_args(parsed)
    return plain_values(parsed)


def kaito(text):
    """KAITO `presets/workspace/inference/vllm/inference_api.py`, KAITOArgumentParser.parse_args: two words for each entry."""
    entries = yaml.safe_load(text)["vllm"]
    words = [word for key, value in entries.items() for word in (f"--{key}", str(value))]
    return serve(["model-of-the-preset", *words])


def ray(values):
    """Ray `llm/_internal/serve/engines/vllm/vllm_models.py`, VLLMEngineConfig.from_llm_config: the names of both classes."""
    engine = fields_of(AsyncEngineArgs)
    unknown = sorted(set(values) - set(engine) - set(fields_of(FrontendArgs)))
    if unknown:
        raise ValueError(f"Unknown engine argument: {', '.join(unknown)}")
    given = AsyncEngineArgs(**{name: value for name, value in values.items() if name in engine})
    taken = {name: getattr(given, name, value) for name, value in values.items()}
    return {name: plain(value) for name, value in taken.items()}


def plain_values(parsed):
    return {name: plain(value) for name, value in vars(parsed).items()}


def plain(value):
    if isinstance(value, enum.Enum):
        return value.name
    if isinstance(value, (list, tuple, set)):
        return [plain(item) for item in value]
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    return {}


def fields_of(arguments):
    return {field.name: field.type for field in dataclasses.fields(arguments)}


def examples():
    """What a user could write for each argument, by its type."""
    types_of = fields_of(AsyncEngineArgs) | fields_of(FrontendArgs)
    parser = SERVE.subparser_init(FlexibleArgumentParser(prog="vllm").add_subparsers())
    found = []
    for action in parser._actions:
        flag = next((flag for flag in action.option_strings if flag.startswith("--")), None)
        if flag and action.dest in types_of:
            found.append([flag.removeprefix("--"), example(action, types_of[action.dest])])
    return found


def example(action, annotation):
    if action.nargs == 0:
        return ""
    if action.choices:
        return str(next(choice for choice in action.choices if choice is not None))
    kinds = list(kinds_of(annotation))
    for kind in kinds:
        if isinstance(kind, type) and issubclass(kind, enum.Enum):
            return next(iter(kind)).name
    for kind, text in [(int, "3"), (float, "0.5"), (str, "auto")]:
        if kind in kinds:
            return text
    return "{}"


def kinds_of(annotation):
    """The plain types in a union or a list; the type of the values of a literal."""
    origin = typing.get_origin(annotation)
    if origin is typing.Literal:
        yield from {type(value) for value in typing.get_args(annotation)}
    elif origin in (typing.Union, types.UnionType, list, set):
        for part in typing.get_args(annotation):
            yield from kinds_of(part)
    else:
        yield annotation


def answer(question):
    complaints = io.StringIO()
    try:
        with contextlib.redirect_stderr(complaints):
            return {"refused": None, "taken": FORMS[question["form"]](question["arguments"])}
    except SystemExit:
        # After the usage, which is long.
        reason = complaints.getvalue().rpartition(": error: ")[2].strip()
        return {"refused": reason or "it ended", "taken": None}
    # vLLM raises whatever comes to hand.
    except Exception as error:
        return {"refused": f"{type(error).__name__}: {error}", "taken": None}


FORMS = {"serve": serve, "dynamo": dynamo, "kaito": kaito, "ray": ray}

if __name__ == "__main__":
    # vLLM logs to the standard output, which is for the answers.
    with contextlib.redirect_stdout(sys.stderr):
        written = examples() if sys.argv[1:] == ["examples"] else [answer(question) for question in json.load(sys.stdin)]
    json.dump(written, sys.stdout)
