"""A Llama Stack inference provider that answers with what it was asked."""


async def get_provider_impl(config, deps):
    """The server calls this for an inline provider; a remote one has get_adapter_impl()."""
    from .impl import Echo

    return Echo(config)
