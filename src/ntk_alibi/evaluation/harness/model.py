"""A Hugging Face model of the harness with patched attention: `--model ntk_alibi`.

It differs from the harness's HFLM in four ways:

- attention is patched;
- inputs are truncated only if max_length is given, and by a documented rule;
- requests whose texts are prefixes of one another share one pass;
- logits are computed only where a request needs them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterator, Sequence
from functools import lru_cache, partial
from importlib.metadata import version
from inspect import signature
from typing import TYPE_CHECKING, Any

import torch
from lm_eval.api.registry import register_model
from lm_eval.models.huggingface import HFLM
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence
from tqdm.auto import tqdm

from ntk_alibi import _checks, _names
from ntk_alibi.evaluation.harness import stored_answers
from ntk_alibi.evaluation.harness.passes import Pass, group_prefixes, scored_span, token_edges
from ntk_alibi.integrations import PatchHandle, patch
from ntk_alibi.integrations.settings import ATTENTIONS
from ntk_alibi.methods import ORIGINAL, Method, as_method, method_name, read_entry
from ntk_alibi.models.checked_loader import WholeCausalLM
from ntk_alibi.models.loading import (
    NANO_BLOOM,
    check_usable,
    checkpoint_name,
    reading,
    train_length_or_warn,
)
from ntk_alibi.scaling import scaling_to_config

if TYPE_CHECKING:
    from lm_eval.api.instance import Instance
    from lm_eval.api.model import CacheHook


TRUNCATIONS = ("middle", "left")

#: Stands for "no limit" where the harness needs an integer.
UNLIMITED = 2**31 - 1

#: Logits that are computed at a time: 128 MiB in float32.
LOGITS_AT_A_TIME = 2**25

#: Number of texts with several requests whose tokens are remembered.
TEXTS_REMEMBERED = 512

PACKAGES = ("ntk-alibi", "lm_eval", "transformers", "torch", "accelerate")


def _check_options(pretrained: Any, options: Collection[str]) -> None:
    """Refuse arguments that neither this model nor, where it loads one, transformers takes."""
    ours, theirs = (signature(kind).parameters for kind in (StretchedLM, HFLM))
    for name in options:
        if name in theirs:
            continue
        meant = _names.did_you_mean(name, ours.keys() - {"options"})
        if name in ("scaling", "factor"):  # as `patch` has them, and checkpoints
            meant = ": method names both, such as method=ntk:4"
        if meant or isinstance(pretrained, torch.nn.Module):
            raise ValueError(f"model_args must be arguments of the model, got {name!r}{meant}")


def _check_sizes(max_length: int | None, batch_size: Any) -> None:
    """Check the limit of tokens, and a batch size such as 4, "4", "auto" and "auto:2"."""
    if max_length is not None:
        _checks.integer("max_length", max_length, minimum=2)
    if not str(batch_size).startswith("auto"):
        number = int(batch_size) if str(batch_size).lstrip("-").isdecimal() else batch_size
        _checks.integer("batch_size", number, minimum=1)
    elif max_length is None:
        _checks.missing("max_length", "with batch_size=auto, which tests batches of it")


@register_model("ntk_alibi")
class StretchedLM(HFLM):  # type: ignore[misc]
    """A stretched ALiBi model for lm-evaluation-harness.

    Args:
        pretrained: a folder, a name on the hub, or a model; by default the embedded nano BLOOM.
        method: the name of a method, such as "ntk:4", or what else `as_method` takes; by default
            the patch that the checkpoint was saved with, or "original".
        train_length: training length in tokens; by default the one in the model's config.
        attention: attention implementation, as for `ntk_alibi.patch`.
        max_length: greatest number of tokens of an input; by default there is no limit.
        truncation: rule for longer inputs: "middle" removes the middle, as LongBench does; "left"
            removes the beginning, as the harness does. Continuations are never truncated.
        share_prefixes: whether requests whose texts are prefixes of one another share a pass; with
            a dynamic method, they also share the factor of the longest one.
        quiet: whether to hide the progress bars.
        **options: further arguments of the harness's HFLM.
    """

    AUTO_MODEL_CLASS = WholeCausalLM

    def __init__(
        self,
        pretrained: Any = None,
        *,
        method: Any = None,
        train_length: int | None = None,
        attention: str = "fused",
        max_length: int | None = None,
        truncation: str = "middle",
        share_prefixes: bool = True,
        quiet: bool = False,
        **options: Any,
    ) -> None:
        if train_length is not None:
            _checks.integer("train_length", train_length, minimum=1)
        as_method(method, train_length or 2)  # until the checkpoint tells the length
        self.attention = _checks.choice("attention", attention, ATTENTIONS)
        self.truncation_rule = _checks.choice("truncation", truncation, TRUNCATIONS)
        self.share_prefixes = _checks.boolean("share_prefixes", share_prefixes)
        self.quiet = quiet
        _check_options(pretrained, options)
        _check_sizes(max_length, options.get("batch_size", 1))
        accelerator = torch.accelerator.current_accelerator()
        device = "cpu" if accelerator is None else accelerator.type  # the harness assumes CUDA
        options = {"dtype": "float32", "device": device, "max_length": max_length, **options}
        if pretrained is None or isinstance(pretrained, str):
            pretrained = checkpoint_name(pretrained)
            with reading(pretrained):
                super().__init__(pretrained, **options)
        elif isinstance(pretrained, torch.nn.Module):
            super().__init__(pretrained, **options)
        else:
            raise TypeError(f"pretrained must be a folder, a name or a model, got {pretrained!r}")
        check_usable(self.model)
        self._split_among_processes()
        # All methods read the same texts.
        self._token_spans = lru_cache(maxsize=TEXTS_REMEMBERED)(self._find_token_spans)
        self.train_length = train_length or train_length_or_warn(self.config)
        self._patch: PatchHandle | None = None
        if method is None and read_entry(self.config) is not None:
            self._patch = saved = patch(self.model)
            self.method = Method(method_name(saved.scaling), saved.scaling, saved.log_n)
        else:
            self.stretch(as_method(method, self.train_length))

    @classmethod
    def create_from_arg_obj(cls, arg_dict: dict[str, Any], additional_config: Any = None) -> Any:
        """Make a model as the harness's command line does.

        The harness names results by the argument `pretrained`; without it, at random.
        """
        lm = super().create_from_arg_obj(arg_dict, additional_config)
        arg_dict.setdefault("pretrained", NANO_BLOOM)
        return lm

    def _split_among_processes(self) -> None:
        """Join the processes of `accelerate launch`; the harness does so on accelerators only."""
        from accelerate import Accelerator

        # Made before any bare PartialState, which ignores ACCELERATE_USE_CPU.
        shared = getattr(self, "accelerator", None) or Accelerator()
        if shared.num_processes > 1:
            self.accelerator = shared
            self._rank, self._world_size = shared.process_index, shared.num_processes

    def stretch(self, method: Method) -> None:
        """Patch the model with another method, and nothing of the patch that it was saved with."""
        form: Any = self.attention
        scaling = ORIGINAL if method.scaling is None else method.scaling
        self._patch = patch(self.model, scaling, attention=form, log_n=method.log_n)
        self.method = method

    def release(self) -> None:
        """Undo the patch."""
        if self._patch is not None:
            self._patch.undo()
        self._patch = None

    @property
    def digest(self) -> str:
        """A digest of the weights and all settings, which tells stored answers of models apart."""
        weights = float(sum(p.detach().double().sum() for p in self.model.parameters())).hex()
        info = json.dumps([weights, self.get_model_info()], default=str, sort_keys=True)
        return hashlib.sha256(info.encode()).hexdigest()[:16]

    def set_cache_hook(self, cache_hook: CacheHook) -> None:
        """Take the harness's store of answers; refuse one of another model, method or setting."""
        if cache_hook.dbdict is not None:
            stored_answers.claim(cache_hook.dbdict, self.digest, self.method.name)
        super().set_cache_hook(cache_hook)

    @property
    def limit(self) -> int | None:
        """Greatest number of tokens of an input, or None for no limit."""
        limit: int | None = self._max_length
        return limit

    @property
    def max_length(self) -> int:
        """The limit as an integer, which the harness needs."""
        return self.limit or UNLIMITED

    def get_model_info(self) -> dict[str, Any]:
        """Return the settings that the harness stores with every result, and ours."""
        scaling = self.method.scaling
        has_config = scaling is None or hasattr(scaling, "to_config")
        return {
            **super().get_model_info(),
            "model_dtype": str(self.model.dtype),
            "method": self.method.name,
            "scaling": scaling_to_config(scaling) if has_config else repr(scaling),
            "log_n": None if self.method.log_n is None else self.method.log_n.to_config(),
            "attention": self.attention,
            "patch": repr(self._patch),
            "train_length": self.train_length,
            "max_length": self.limit,
            "truncation": self.truncation_rule if self.limit else "nothing is cut off",
            "share_prefixes": self.share_prefixes,
            "versions": {name: version(name) for name in PACKAGES},
        }

    def truncate(self, tokens: list[int], limit: int) -> list[int]:
        """Return at most `limit` tokens, cut by the truncation rule."""
        if len(tokens) <= limit:
            return tokens
        head = (limit + 1) // 2 if self.truncation_rule == "middle" else 0
        return tokens[:head] + tokens[len(tokens) - (limit - head) :]

    def tok_batch_encode(
        self,
        strings: list[str],
        padding_side: str = "left",
        left_truncate_len: int | None = None,
        truncation: bool = False,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Encode prompts as tokens and a mask, truncated by our rule instead of the harness's."""
        limit = left_truncate_len or UNLIMITED
        encode = super().tok_batch_encode  # gets one prompt at a time: others cannot change it
        rows = [self.truncate(encode([string])[0][0].tolist(), limit) for string in strings]
        _checks.integer("tokens of a prompt", min(map(len, rows)), minimum=1)
        return self._pad(rows, padding_side)

    def _pad(self, rows: Sequence[list[int]], side: str) -> tuple[torch.Tensor, torch.Tensor]:
        """Return rows of tokens as a tensor with padding on one side, and its mask."""
        pad = partial(pad_sequence, batch_first=True, padding_side=side)
        tokens = [torch.tensor(row) for row in rows]
        mask = pad([torch.ones_like(row) for row in tokens])
        return pad(tokens, padding_value=self.tokenizer.pad_token_id), mask

    def loglikelihood(
        self, requests: list[Instance], disable_tqdm: bool = False
    ) -> list[tuple[float, bool]]:
        """Return the log-likelihood of each continuation, and whether it is the greedy one."""
        pairs = [request.args for request in requests]
        return self._answer(list(self._passes(pairs)), pairs, disable_tqdm)

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """Return the text that is generated for each prompt."""
        quiet = disable_tqdm or self.quiet
        answers: list[str] = super().generate_until(requests, disable_tqdm=quiet)
        return answers

    def _loglikelihood_tokens(
        self,
        requests: list[tuple[Any, list[int], list[int]]],
        disable_tqdm: bool = False,
        override_bs: int | None = None,
    ) -> list[tuple[float, bool]]:
        """Answer requests of tokens, such as the windows of loglikelihood_rolling."""
        passes = self._single_passes((i, c, t) for i, (_, c, t) in enumerate(requests))
        return self._answer(passes, [key for key, _, _ in requests], disable_tqdm, override_bs)

    def _passes(self, pairs: Sequence[tuple[str, str]]) -> Iterator[Pass]:
        """Yield passes that answer all requests; prefixes of one another share one."""
        alone = []
        texts = ["".join(pair) for pair in pairs]
        for group in group_prefixes(texts, share=self.share_prefixes):
            if len(group) == 1:
                alone += group
                continue
            scored = tuple(scored_span(*pairs[i]) for i in group)
            tokens, token_spans = self._token_spans(texts[group[0]], scored)
            spans = []
            for i, span in zip(group, token_spans, strict=True):
                if span is None:
                    alone.append(i)
                else:
                    spans.append((i, span[0], tokens[span[0] : span[1]]))
            if spans:
                yield Pass(tokens, spans)
        yield from self._single_passes((i, *self._encode(*pairs[i])) for i in sorted(alone))

    def _find_token_spans(
        self, text: str, scored: tuple[tuple[int, int], ...]
    ) -> tuple[list[int], list[tuple[int, int] | None]]:
        """Return the tokens of a text, and for each span of characters the span of its tokens.

        It is None if an end is inside a token, or the text is too long.
        """
        tokens = self.tok_encode(text)
        fits = len(tokens) <= self.max_length
        edges = token_edges(self.tokenizer, tokens, text) if fits else {}
        spans = [(edges.get(begin), edges.get(end)) for begin, end in scored]
        return tokens, [None if b is None or e is None else (b, e) for b, e in spans]

    def _encode(self, context: str, continuation: str) -> tuple[list[int], list[int]]:
        if context.rstrip():
            pair: tuple[list[int], list[int]] = self._encode_pair(context, continuation)
            return pair
        tokens = self.tok_encode(context + continuation, add_special_tokens=False)
        if tokens[0] == self.prefix_token_id:
            return tokens[:1], tokens[1:]
        return [self.prefix_token_id], tokens

    def _single_passes(self, requests: Any) -> list[Pass]:
        """Make a pass for each request; those that differ only in the last token share one."""
        passes: dict[tuple[int, ...], Pass] = {}
        for number, context, targets in requests:
            room = self.max_length + 1 - len(targets)
            _checks.integer("tokens of context", room, minimum=1)
            kept = self.truncate(context, room)
            tokens = [*kept, *targets]
            shared = passes.setdefault(tuple(tokens[:-1]), Pass(tokens, []))
            shared.spans.append((number, len(kept), targets))
        return list(passes.values())

    def _answer(
        self, passes: list[Pass], keys: Sequence[Any], quiet: bool, size: int | None = None
    ) -> list[tuple[float, bool]]:
        """Run the passes, the longest first, and store each answer in the cache immediately."""
        answers: list[Any] = [None] * len(keys)
        passes.sort(key=lambda one: -len(one.tokens))
        if size is None:
            size = self._detect_batch_size() if self.batch_size == "auto" else self.batch_size
        with tqdm(
            total=len(keys),
            desc=f"loglikelihood, {self.method.name}",
            disable=quiet or self.quiet or self.rank != 0,
        ) as bar:
            for begin in range(0, len(passes), size):
                batch = passes[begin : begin + size]
                for number, answer in self.answer_batch(batch):
                    answers[number] = answer
                    if keys[number] is not None:
                        self.cache_hook.add_partial("loglikelihood", keys[number], answer)
                    bar.update()
                if self.cache_hook.dbdict is not None:
                    self.cache_hook.dbdict.commit()
        return answers

    @torch.inference_mode()
    def answer_batch(self, batch: list[Pass]) -> list[tuple[int, tuple[float, bool]]]:
        """Run a batch of passes, and return the index and the answer of each request."""
        ids, mask = self._pad([one.inputs for one in batch], "right")
        with torch.autocast(
            self.device.type,
            dtype=self.mixed_precision_dtype,
            enabled=self.mixed_precision_dtype is not None,
        ):
            hidden = self.model.base_model(
                ids.to(self.device),
                attention_mask=None if mask.all() else mask.to(self.device),
                use_cache=False,
            )[0]
            pairs = zip(hidden, batch, strict=True)
            return [answer for row, one in pairs for answer in self._score(row, one)]

    def _score(self, hidden: torch.Tensor, one: Pass) -> list[tuple[int, tuple[float, bool]]]:
        """Return the answers of one pass; logits are computed for some positions at a time."""
        head = self.model.get_output_embeddings()
        scored = torch.tensor([b - 1 + i for _, b, t in one.spans for i in range(len(t))])
        targets = torch.tensor([token for _, _, tokens in one.spans for token in tokens])
        likelihood, greedy = [], []
        size = max(1, LOGITS_AT_A_TIME // self.model.config.vocab_size)
        for positions, expected in zip(scored.split(size), targets.split(size), strict=True):
            expected = expected.to(hidden.device)
            logits = head(hidden[positions.to(hidden.device)])
            scores = F.log_softmax(logits, -1, dtype=self.softmax_dtype or torch.float32)
            likelihood.append(scores.gather(1, expected[:, None])[:, 0].double().cpu())
            greedy.append((logits.argmax(-1) == expected).cpu())
        lengths = [len(tokens) for _, _, tokens in one.spans]
        parts = zip(
            one.spans,
            torch.cat(likelihood).split(lengths),
            torch.cat(greedy).split(lengths),
            strict=True,
        )
        return [(number, (float(ll.sum()), bool(g.all()))) for (number, _, _), ll, g in parts]
