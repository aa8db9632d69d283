"""What the server imports first."""

from llama_stack_api import Api, RemoteProviderSpec


def get_provider_spec():
    """Says what this package provides; the same as lls-provider-spec.yaml."""
    return RemoteProviderSpec(
        api=Api.inference,
        adapter_type="lls-openai-compatible",
        provider_type="remote::lls-openai-compatible",
        module="lls_openai_compatible",
        config_class="lls_openai_compatible.config.OpenAICompatibleConfig",
        pip_packages=[],
        is_external=True,
    )
