"""Ready-made handlers that call an inference server over HTTP: `openai`, `kserve_v2` and `rest`."""
