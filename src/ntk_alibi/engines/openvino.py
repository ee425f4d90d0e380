"""The format "openvino": a folder that OpenVINO and optimum's OVModelForCausalLM load.

As in optimum-intel, keys and values are a state of the model: callers pass new tokens only, and
reset the state before another text. The input beam_idx tells which row of the last call each row
continues: 0, 1, 2, … except in beam search.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import openvino
import torch
from openvino import opset13
from openvino.passes import MakeStateful, Manager

from ntk_alibi.engines.graph import BATCH, Axes, Graph, Running, graph_format


def write(graph: Graph, path: Path, dtype: str) -> Running:
    """Write a graph, with its weights in .bin, and run it."""
    openvino.save_model(convert(graph), path, compress_to_fp16=dtype == "float16")
    compiled = openvino.Core().compile_model(path, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    running = compiled.create_infer_request()

    def call(
        tokens: torch.Tensor, mask: torch.Tensor, past: list[torch.Tensor]
    ) -> tuple[torch.Tensor, list[torch.Tensor]]:
        inputs = {"input_ids": tokens.numpy(), "attention_mask": mask.numpy()}
        if past:
            inputs["beam_idx"] = np.arange(len(tokens), dtype=np.int32)
        logits = running.infer(inputs)["logits"]
        return torch.from_numpy(logits.copy()), past

    inputs: dict[str, Axes] = dict(list(graph.inputs.items())[:2])
    if graph.cache:
        inputs["beam_idx"] = (BATCH,)
    engine = f"OpenVINO {openvino.get_version().split('-')[0]} in float32"
    return Running(engine, call, inputs, {"logits": graph.outputs["logits"]})


def convert(graph: Graph) -> openvino.Model:
    """Return OpenVINO's model of a graph, with its cache as a state."""
    model = openvino.convert_model(graph.program)
    for ports, names in ((model.inputs, graph.inputs), (model.outputs, graph.outputs)):
        for port, name in zip(ports, names, strict=True):
            port.get_tensor().set_names({name})
    if graph.cache:
        _keep_cache(model, graph)
    return model


def _keep_cache(model: openvino.Model, graph: Graph) -> None:
    """Make keys and values a state, empty at first, whose rows beam_idx chooses."""
    rows = opset13.parameter(openvino.PartialShape([-1]), openvino.Type.i32, name="beam_idx")
    rows.output(0).get_tensor().set_names({"beam_idx"})
    model.add_parameters([rows])
    for name in graph.cache:
        past = model.input(name)
        readers = past.get_target_inputs()
        chosen = opset13.gather(past, rows, opset13.constant(0))
        for reader in readers:
            reader.replace_source_output(chosen.output(0))
    model.validate_nodes_and_infer_types()
    passes = Manager()
    passes.register_pass(MakeStateful(graph.cache))
    passes.run_passes(model)
    shape_of_ids = opset13.shape_of(model.input("input_ids"))
    batch = opset13.gather(shape_of_ids, opset13.constant([0]), opset13.constant(0))
    _, heads, _, head_dim = graph.inputs[next(iter(graph.cache))]
    shape = opset13.concat([batch, opset13.constant([heads, 0, head_dim])], axis=0)
    for node in model.get_ops():
        if node.get_type_name() == "ReadValue":
            node.set_arguments([opset13.broadcast(opset13.constant(np.float32(0)), shape)])
    model.validate_nodes_and_infer_types()


FORMAT = graph_format("openvino_model.xml", ("float32", "float16"), write, traced="float32")
