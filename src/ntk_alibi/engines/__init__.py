"""Other engines: what each needs to run stretched ALiBi models, and `export` to their files."""

#: The modules of the formats that `export` writes, by their names.
FORMATS = {
    "gguf": "ntk_alibi.engines.gguf",
    "onnx": "ntk_alibi.engines.onnx",
    "openvino": "ntk_alibi.engines.openvino",
    "torch": "ntk_alibi.engines.torch_program",
}
