"""Other engines: `export` writes files for them, and a plugin stretches models in vLLM."""

#: The module of each format that `export` writes.
FORMATS = {
    "gguf": "ntk_alibi.engines.gguf",
    "onnx": "ntk_alibi.engines.onnx",
    "torch": "ntk_alibi.engines.torch_program",
}
