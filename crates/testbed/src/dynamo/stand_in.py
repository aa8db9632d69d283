"""STAND-IN of the test bed for dynamo.vllm, dynamo.sglang and dynamo.trtllm, whose engines need GPUs.

It parses the arguments that providers write, refuses all others, and starts Dynamo's own mocker with them. Answers are random words.
"""
import argparse
import json
import sys


def no_abbreviations(engine):
    return argparse.ArgumentParser(prog=f"dynamo.{engine} (STAND-IN)", allow_abbrev=False)


def vllm():
    parser = no_abbreviations("vllm")
    parser.add_argument("--model", required=True)
    parser.add_argument("--max-model-len", type=int)
    parser.add_argument("--tensor-parallel-size", type=int)
    parser.add_argument("--block-size", type=int, default=16)
    parser.add_argument("--kv-transfer-config", type=json.loads)
    parser.add_argument("--kv-events-config", type=json.loads)
    parser.add_argument("--is-prefill-worker", action="store_true")
    parser.add_argument("--is-decode-worker", action="store_true")
    return parser


def sglang():
    parser = no_abbreviations("sglang")
    parser.add_argument("--model-path", dest="model", required=True)
    parser.add_argument("--context-length", dest="max_model_len", type=int)
    parser.add_argument("--tp", type=int)
    parser.add_argument("--page-size", dest="block_size", type=int, default=1)
    parser.add_argument("--kv-events-config", type=json.loads)
    parser.add_argument("--disaggregation-transfer-backend", choices=["nixl"])
    parser.add_argument("--disaggregation-bootstrap-port", type=int)
    parser.add_argument("--host")
    parser.add_argument("--skip-tokenizer-init", action="store_true")
    return parser


def trtllm():
    parser = no_abbreviations("trtllm")
    parser.add_argument("--model-path", dest="model", required=True)
    parser.add_argument("--max-seq-len", dest="max_model_len", type=int)
    parser.add_argument("--tensor-parallel-size", type=int)
    parser.add_argument("--kv-block-size", dest="block_size", type=int, default=32)
    parser.add_argument("--override-engine-args", type=json.loads, default={})
    parser.add_argument("--publish-kv-events", "--publish-events-and-metrics", dest="kv_events_config", action="store_true")
    return parser


def role(parser, args):
    """The role of a worker: `agg`, `prefill` or `decode`."""
    roles = {
        "prefill": getattr(args, "is_prefill_worker", False),
        "decode": getattr(args, "is_decode_worker", False),
    }
    given = [args.disaggregation_mode] if args.disaggregation_mode else []
    given += [name for name, is_given in roles.items() if is_given]
    if len(given) > 1:
        parser.error(f"two roles: {given}")
    return given[0] if given else "agg"


def transfers(engine, args):
    """Whether the engine could hand a KV cache from prefill to decode."""
    if engine == "vllm":
        return bool((args.kv_transfer_config or {}).get("kv_connector")) or args.is_prefill_worker or args.is_decode_worker
    if engine == "sglang":
        return args.disaggregation_transfer_backend and args.disaggregation_bootstrap_port and args.host == "0.0.0.0"
    return "cache_transceiver_config" in args.override_engine_args


def mocker_arguments(engine, words):
    parser = {"vllm": vllm, "sglang": sglang, "trtllm": trtllm}[engine]()
    parser.add_argument("--served-model-name")
    parser.add_argument("--trust-remote-code", action="store_true")
    parser.add_argument("--disaggregation-mode", choices=["agg", "prefill", "decode"])
    args = parser.parse_args(words)
    mode = role(parser, args)
    if mode != "agg" and not transfers(engine, args):
        parser.error(f"a {mode} worker has no way to transfer its KV cache")
    mocker = ["--engine-type", engine, "--model-path", args.model, "--model-name", args.served_model_name or args.model]
    mocker += ["--disaggregation-mode", mode, "--block-size", str(args.block_size)]
    if args.max_model_len:
        mocker += ["--max-model-len", str(args.max_model_len)]
    # Without a cache of prefixes, the mocker publishes no KV events.
    if not args.kv_events_config:
        mocker.append("--no-enable-prefix-caching")
    return mocker


def main(engine):
    arguments = mocker_arguments(engine, sys.argv[1:])
    print(f"STAND-IN for dynamo.{engine}: dynamo.mocker {' '.join(arguments)}", flush=True)
    sys.argv[1:] = arguments
    from dynamo.mocker.main import main as mocker

    mocker()
