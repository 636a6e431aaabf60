"""Hugging Face's config.json as a KvModel: refuses what it cannot size, rather than guess it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from workloads.kvsize import KvModel, Mla, ModelError, dtype_bytes


def is_config_path(text: str) -> bool:
    """Whether a model's name is meant as a path: it ends in .json, or is there."""
    return text.endswith(".json") or Path(text).exists()


def read_config(path: str | Path, *, dtype: str | None = None) -> KvModel:
    """Read a ``config.json`` (or the one in a directory).

    ``head_dim`` counts where it is given (it is not always hidden / heads); multimodal models are read from their
    ``text_config``; ``kv_lora_rank`` means MLA. Parameters are estimated from the shapes. Raises ModelError: no such file,
    fields missing, no dtype, or layers whose KV does not grow with every token (sliding windows, linear attention).
    """
    path = Path(path)
    if path.is_dir():
        path = path / "config.json"
    try:
        top = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ModelError(f"{path}: cannot be read ({error.strerror or error}); check the path of the config.json") from error
    except ValueError as error:
        raise ModelError(f"{path}: is not JSON ({error}); give a Hugging Face config.json") from error
    if not isinstance(top, dict):
        raise ModelError(f"{path}: is not an object; give a Hugging Face config.json")
    inner = top.get("text_config")
    config = _Config(str(path), inner if isinstance(inner, dict) else top)
    kv_dtype = dtype or _dtype(top, config.values)
    if kv_dtype is None:
        raise ModelError(f"{path}: has no torch_dtype or dtype; name the dtype of the KV cache (bf16, fp16, fp8)")
    config.refuse_partial_attention()
    name = top.get("_name_or_path") or top.get("name") or path.parent.name or str(path)
    return _model(config, str(name), dtype_bytes(kv_dtype))


def _dtype(*configs: Mapping[str, object]) -> str | None:
    for config in configs:
        for key in ("torch_dtype", "dtype"):
            value = config.get(key)
            if isinstance(value, str) and value != "auto":
                return value
    return None


class _Config:
    def __init__(self, path: str, values: Mapping[str, object]) -> None:
        self.path = path
        self.values = values

    def count(self, *keys: str, default: int | None = None) -> int:
        for key in keys:
            value = self.values.get(key)
            if value is None:
                continue
            if type(value) is not int or value < 1:
                raise ModelError(f"{self.path}: {key}: is {value!r}; it must be a whole number above 0")
            return value
        if default is not None:
            return default
        raise ModelError(f"{self.path}: {keys[0]}: is missing; give a config.json of a decoder with attention")

    def refuse_partial_attention(self) -> None:
        """Keeps out models whose KV is not the same for every token, for which one figure would be wrong."""
        kinds = self.values.get("layer_types")
        if isinstance(kinds, list):
            other = sorted({str(kind) for kind in kinds} - {"full_attention"})
            if other:
                raise ModelError(
                    f"{self.path}: layer_types: has {', '.join(other)}, whose KV does not grow with every token; "
                    "choose a model with full attention in all layers"
                )
            return
        window = self.values.get("sliding_window")
        if window is not None and self.values.get("use_sliding_window", True):
            raise ModelError(
                f"{self.path}: sliding_window: is {window!r}, so KV stops growing there; choose a model without, or set it null"
            )


def _model(config: _Config, name: str, size: int) -> KvModel:
    layers = config.count("num_hidden_layers", "n_layer", "num_layers")
    hidden = config.count("hidden_size", "n_embd")
    heads = config.count("num_attention_heads", "n_head")
    mla = None
    if config.values.get("kv_lora_rank") is not None:
        rope = config.count("qk_rope_head_dim")
        value_dim = config.count("v_head_dim")
        mla = Mla(config.count("kv_lora_rank"), rope, config.count("qk_nope_head_dim") + rope, value_dim)
        kv_heads, head_dim = heads, value_dim
    else:
        # Multi-query models of the first generation say so by a flag.
        kv_heads = config.count("num_key_value_heads", default=1 if config.values.get("multi_query") is True else heads)
        if config.values.get("head_dim") is None and hidden % heads:
            raise ModelError(f"{config.path}: head_dim: is missing and {hidden} / {heads} is not whole; write it in the config")
        head_dim = config.count("head_dim", default=max(1, hidden // heads))
    params = _params(config, layers, hidden, heads, kv_heads, head_dim, mla)
    return KvModel(name, layers, kv_heads, head_dim, size, hidden, heads, params, mla)


def _params(config: _Config, layers: int, hidden: int, heads: int, kv_heads: int, head_dim: int, mla: Mla | None) -> float:
    """Parameters a token passes through: embeddings, attention, and a gated MLP of three matrices per (active) expert."""
    vocabulary = config.count("vocab_size")
    embeddings = vocabulary * hidden * (1 if config.values.get("tie_word_embeddings") is True else 2)
    if mla is None:
        attention = hidden * head_dim * (2 * heads + 2 * kv_heads)
    else:
        q_rank = config.values.get("q_lora_rank")
        q_width = heads * mla.qk_head_dim
        query = hidden * q_width if type(q_rank) is not int else q_rank * (hidden + q_width)
        nope = mla.qk_head_dim - mla.rope_dim
        latent = hidden * (mla.kv_lora_rank + mla.rope_dim) + mla.kv_lora_rank * heads * (nope + mla.v_head_dim)
        attention = query + latent + heads * mla.v_head_dim * hidden
    dense = 3 * hidden * config.count("intermediate_size", "n_inner", default=4 * hidden)
    active = config.values.get("num_experts_per_tok")
    if type(active) is not int:
        return float(embeddings + layers * (attention + dense))
    # A shared expert has a width of its own in some models and counts as whole experts in others.
    expert = 3 * hidden * config.count("moe_intermediate_size", "intermediate_size")
    shared = expert * _zero_or_more(config, "n_shared_experts")
    shared += 3 * hidden * _zero_or_more(config, "shared_expert_intermediate_size")
    first_dense = min(layers, _zero_or_more(config, "first_k_dense_replace"))
    experts = (layers - first_dense) * (active * expert + shared) + first_dense * dense
    return float(embeddings + layers * attention + experts)


def _zero_or_more(config: _Config, key: str) -> int:
    value = config.values.get(key)
    return value if type(value) is int and value > 0 else 0
