"""Stand-in for `ray.serve.llm` of Ray 2.60.0: its entry point for one model, and no engine.

The deployments have the names and resources of Ray's own (`ray/llm/_internal/serve/core`: `ingress/builder.py`,
`server/builder.py`, `server/llm_server.py`), and unknown arguments are refused as `LLMConfig` refuses them. The answer is
always the text of `sentence.txt` beside this file.

Two engine arguments are its own: `stand_in_load_seconds`, the time to load the model, and `stand_in_failure`, the message
with which loading fails.
"""

import json
import os
import time

from fastapi import FastAPI, HTTPException, Request
from fastapi.responses import StreamingResponse
from ray import serve

with open(os.path.join(os.path.dirname(__file__), "sentence.txt")) as file:
    SENTENCE = file.read()

# Type of each argument, by name.
ENGINE_KWARGS = {
    "max_model_len": int,
    "tensor_parallel_size": int,
    "stand_in_load_seconds": int,
    "stand_in_failure": str,
}

app = FastAPI()


def build_openai_app(builder_config):
    check(builder_config, {"llm_configs": list})
    if len(builder_config["llm_configs"]) != 1:
        raise ValueError("the stand-in serves one model")
    config = builder_config["llm_configs"][0]
    check(config, {"model_loading_config": dict, "engine_kwargs": dict, "deployment_config": dict})
    check(config["model_loading_config"], {"model_id": str, "model_source": str})
    check(config["deployment_config"], {"name": str, "num_replicas": int})
    check(config["engine_kwargs"], ENGINE_KWARGS, optional=True)
    options = dict(config["deployment_config"])
    options["name"] = f"LLMServer:{options['name']}"
    gpus = config["engine_kwargs"].get("tensor_parallel_size", 1)
    server = serve.deployment(
        LLMServer,
        **options,
        placement_group_bundles=[{"CPU": 1, "GPU": 1}] + [{"GPU": 1}] * (gpus - 1),
        placement_group_strategy="PACK",
        health_check_period_s=10,
        health_check_timeout_s=10,
    )
    ingress = serve.deployment(OpenAiIngress, autoscaling_config={"target_ongoing_requests": 1e9})
    return ingress.bind(server.bind(config), config)


def check(given, known, optional=False):
    """Refuses unknown names, missing names and values of another type."""
    unknown = set(given) - set(known)
    missing = set() if optional else set(known) - set(given)
    wrong = [name for name, value in given.items() if name in known and type(value) is not known[name]]
    if unknown or missing or wrong:
        raise ValueError(f"unknown {sorted(unknown)}, missing {sorted(missing)}, of another type {wrong}: {given}")


class LLMServer:
    def __init__(self, config):
        arguments = config["engine_kwargs"]
        time.sleep(arguments.get("stand_in_load_seconds", 0))
        if "stand_in_failure" in arguments:
            raise RuntimeError(arguments["stand_in_failure"])

        self.fingerprint = f"{os.uname().nodename} {arguments.get('max_model_len')}"

    def replica(self):
        """Pod and context length of this replica."""
        return self.fingerprint


async def events(common):
    """A word in each event.

    It is above the class, because `serve.ingress` copies the functions that are defined by then.
    """
    words = [word + " " for word in SENTENCE.split(" ")]
    words[-1] = words[-1].rstrip()
    choices = [{"index": 0, "delta": {"content": word}} for word in words]
    for choice in choices + [{"index": 0, "delta": {}, "finish_reason": "stop"}]:
        yield "data: " + json.dumps({**common, "object": "chat.completion.chunk", "choices": [choice]}) + "\n\n"
    yield "data: [DONE]\n\n"


@serve.ingress(app)
class OpenAiIngress:
    def __init__(self, server, config):
        self.server = server
        self.model = config["model_loading_config"]["model_id"]
        self.length = config["engine_kwargs"].get("max_model_len")

    @app.get("/v1/models")
    async def models(self):
        # Ray's own has the length at this place (`core/configs/openai_api_models.py`, to_model_metadata).
        card = {
            "id": self.model,
            "object": "model",
            "owned_by": "stand-in",
            "metadata": {"max_request_context_length": self.length},
        }
        return {"object": "list", "data": [card]}

    @app.post("/v1/chat/completions")
    async def chat(self, request: Request):
        body = await request.json()
        if body.get("model") != self.model:
            raise HTTPException(404, f"unknown model {body.get('model')}")
        replica = await self.server.replica.remote()
        common = {"id": "1", "model": self.model, "system_fingerprint": replica}
        if body.get("stream"):
            return StreamingResponse(events(common), media_type="text/event-stream")
        message = {"role": "assistant", "content": SENTENCE}
        choice = {"index": 0, "finish_reason": "stop", "message": message}
        return {**common, "object": "chat.completion", "choices": [choice]}
