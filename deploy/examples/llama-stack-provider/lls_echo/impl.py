"""The provider itself."""

import time
import uuid

try:
    from llama_stack_api import InferenceProvider, Model, ModelsProtocolPrivate, ModelType, OpenAIChatCompletion
except ImportError:  # its name since 1.0
    from ogx_api import InferenceProvider, Model, ModelsProtocolPrivate, ModelType, OpenAIChatCompletion


class Echo(InferenceProvider, ModelsProtocolPrivate):
    """Serves the model `echo-1`."""

    def __init__(self, config):
        self.config = config

    async def initialize(self):
        """Called once, when the server starts."""

    async def shutdown(self):
        """Called once, when the server stops."""

    async def list_models(self):
        return [Model(identifier="echo-1", provider_resource_id="echo-1", provider_id=self.__provider_id__, model_type=ModelType.llm)]

    async def should_refresh_models(self):
        return False

    async def register_model(self, model):
        return model

    async def unregister_model(self, model_id):
        return None

    async def openai_chat_completion(self, params):
        if params.stream:
            raise NotImplementedError("echo does not stream")
        asked = params.messages[-1].content
        return OpenAIChatCompletion.model_validate(
            {
                "id": f"chatcmpl-{uuid.uuid4()}",
                "created": int(time.time()),
                "model": params.model,
                "choices": [
                    {
                        "index": 0,
                        "finish_reason": "stop",
                        "message": {"role": "assistant", "content": f"{self.config.prefix}{asked}"},
                    }
                ],
            }
        )

    async def openai_completion(self, params):
        raise NotImplementedError("echo has no completions")

    async def openai_embeddings(self, params):
        raise NotImplementedError("echo has no embeddings")
