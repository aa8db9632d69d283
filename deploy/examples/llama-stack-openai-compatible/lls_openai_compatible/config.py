"""What `config` in the custom resource may contain."""

from llama_stack.providers.utils.inference.model_registry import RemoteInferenceProviderConfig
from pydantic import HttpUrl, SecretStr


class OpenAICompatibleConfig(RemoteInferenceProviderConfig):
    """Configuration of the provider."""

    url: HttpUrl
    api_token: SecretStr | None = None
