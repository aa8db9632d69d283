"""The provider itself: models, answers and streams come from the server at `url`."""

from llama_stack.providers.utils.inference.openai_mixin import OpenAIMixin

from .config import OpenAICompatibleConfig


class OpenAICompatible(OpenAIMixin):
    """Serves the models that the server at `url` lists."""

    config: OpenAICompatibleConfig
    # Engines reject options that they do not know.
    supports_stream_options: bool = False

    def get_base_url(self):
        return str(self.config.url)

    def get_api_key(self):
        # The client requires one.
        return self.config.api_token.get_secret_value() if self.config.api_token else "none"
