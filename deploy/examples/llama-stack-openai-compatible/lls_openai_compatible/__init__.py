"""A Llama Stack inference provider for servers with an API like that of OpenAI."""


async def get_adapter_impl(config, deps):
    """The server calls this for a remote provider."""
    from .impl import OpenAICompatible

    return OpenAICompatible(config=config)
