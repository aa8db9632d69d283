"""What the server imports first."""

try:
    from llama_stack_api import Api, InlineProviderSpec
except ImportError:  # its name since 1.0
    from ogx_api import Api, InlineProviderSpec


def get_provider_spec():
    """Says what this package provides; the same as lls-provider-spec.yaml."""
    return InlineProviderSpec(
        api=Api.inference,
        provider_type="inline::lls-echo",
        module="lls_echo",
        config_class="lls_echo.config.EchoConfig",
        pip_packages=[],
        is_external=True,
    )
