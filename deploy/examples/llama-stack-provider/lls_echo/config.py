"""What `config` in the custom resource may contain."""

from pydantic import BaseModel


class EchoConfig(BaseModel):
    """Configuration of the provider."""

    prefix: str = ""
    url: str | None = None
    api_token: str | None = None
