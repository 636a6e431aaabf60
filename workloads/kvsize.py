"""What one token of KV cache weighs, and what a model computes per token: a registry, and Hugging Face's config.json.

KV bytes per token = 2 · layers · kv_heads · head_dim · dtype bytes; with multi-head latent attention (MLA)
layers · (kv_lora_rank + rope_dim) · dtype bytes. Source: serving.md of the design, with its check values.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass, replace

DTYPE_BYTES = {
    "bf16": 2,
    "bfloat16": 2,
    "fp16": 2,
    "float16": 2,
    "half": 2,
    "fp8": 1,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
    "fp32": 4,
    "float32": 4,
}


class ModelError(ValueError):
    """A model that is unknown, or whose KV size cannot be told from its config. The message says what to do."""


@dataclass(frozen=True, slots=True)
class Mla:
    """Multi-head latent attention: per layer and token one latent of ``kv_lora_rank`` and one key of ``rope_dim``.

    ``qk_head_dim`` (without and with rope together) and ``v_head_dim`` are what attention computes with, per head.
    """

    kv_lora_rank: int
    rope_dim: int
    qk_head_dim: int
    v_head_dim: int


@dataclass(frozen=True, slots=True)
class KvModel:
    """A model as far as its KV cache and its prefill are concerned.

    ``params`` are the parameters a token passes through (of a mixture of experts: the active ones), for FLOPs;
    ``dtype_bytes`` is of the KV cache; ``mla`` is None for multi-head and grouped-query attention.
    """

    name: str
    layers: int
    kv_heads: int
    head_dim: int
    dtype_bytes: int
    hidden: int
    heads: int
    params: float
    mla: Mla | None = None

    def __post_init__(self) -> None:
        for field in ("layers", "kv_heads", "head_dim", "dtype_bytes", "hidden", "heads", "params"):
            if not getattr(self, field) > 0:
                raise ModelError(f"{self.name}: {field} is {getattr(self, field)}; it must be above 0")

    @property
    def bytes_per_token(self) -> int:
        """KV bytes of one token, the whole model (one copy)."""
        return self.layers * self.bytes_per_token_per_layer

    @property
    def bytes_per_token_per_layer(self) -> int:
        if self.mla is not None:
            return (self.mla.kv_lora_rank + self.mla.rope_dim) * self.dtype_bytes
        return 2 * self.kv_heads * self.head_dim * self.dtype_bytes

    def bytes_per_token_per_gpu(self, tp: int) -> int:
        """KV bytes of one token that each of ``tp`` GPUs holds, and so sends.

        KV heads are shared out evenly, so that tp GPUs hold ``bytes_per_token`` together. With more GPUs than KV heads
        each head is held by tp/kv_heads GPUs; with MLA every GPU holds the whole latent. Raises ModelError where the heads
        do not divide.
        """
        if tp < 1:
            raise ModelError(f"tp is {tp}; it must be at least 1")
        if self.mla is not None:
            return self.bytes_per_token
        if self.kv_heads % tp and tp % self.kv_heads:
            raise ModelError(f"{self.name}: {self.kv_heads} KV heads cannot be shared by tp {tp}; use a divisor or a multiple")
        heads = max(1, self.kv_heads // tp)
        return self.bytes_per_token // self.kv_heads * heads

    @property
    def attention_flops_per_pair(self) -> int:
        """FLOPs of attention for one new token on one earlier one, all layers: 4 · heads · head_dim · layers."""
        qk, v = (self.mla.qk_head_dim, self.mla.v_head_dim) if self.mla is not None else (self.head_dim, self.head_dim)
        return 2 * self.heads * (qk + v) * self.layers

    def with_dtype(self, dtype: str) -> KvModel:
        """The same model with its KV cache in ``bf16``, ``fp16`` or ``fp8``. Raises ModelError."""
        return replace(self, dtype_bytes=dtype_bytes(dtype))


def dtype_bytes(dtype: str) -> int:
    """Bytes of one element. Raises ModelError."""
    size = DTYPE_BYTES.get(dtype.lower().removeprefix("torch."))
    if size is None:
        raise ModelError(f"{dtype!r} is no KV dtype known here; use bf16, fp16 or fp8")
    return size


def _gqa(name: str, layers: int, kv_heads: int, head_dim: int, hidden: int, heads: int, params: float) -> KvModel:
    return KvModel(name, layers, kv_heads, head_dim, 2, hidden, heads, params)


# Shapes and parameter counts: the models' own config.json and model cards. Mixtures of experts: active parameters.
MODELS = {
    model.name.lower(): model
    for model in (
        _gqa("Llama-3-8B", 32, 8, 128, 4096, 32, 8.03e9),
        _gqa("Llama-3-70B", 80, 8, 128, 8192, 64, 70.55e9),
        _gqa("Llama-3.1-8B", 32, 8, 128, 4096, 32, 8.03e9),
        _gqa("Llama-3.1-70B", 80, 8, 128, 8192, 64, 70.55e9),
        _gqa("Llama-3.3-70B", 80, 8, 128, 8192, 64, 70.55e9),
        _gqa("Llama-3.1-405B", 126, 8, 128, 16384, 128, 405.85e9),
        _gqa("Qwen3-4B", 36, 8, 128, 2560, 32, 4.02e9),
        _gqa("Qwen3-8B", 36, 8, 128, 4096, 32, 8.19e9),
        _gqa("Qwen3-32B", 64, 8, 128, 5120, 64, 32.76e9),
        _gqa("Mixtral-8x7B", 32, 8, 128, 4096, 32, 12.88e9),
        KvModel("DeepSeek-V3", 61, 128, 128, 2, 7168, 128, 37.0e9, Mla(512, 64, 192, 128)),
    )
}


def load_model(name_or_path: str, *, dtype: str | None = None) -> KvModel:
    """A model by its name (``llama-3.1-70b``, ``meta-llama/Llama-3.1-70B-Instruct``) or by a ``config.json`` or its directory.

    ``dtype`` overrides that of the KV cache. Raises ModelError.
    """
    from workloads.hfconfig import is_config_path, read_config  # it needs KvModel

    model = MODELS.get(_plain(name_or_path))
    if model is not None:
        return model.with_dtype(dtype) if dtype is not None else model
    if is_config_path(name_or_path):
        return read_config(name_or_path, dtype=dtype)
    near = difflib.get_close_matches(_plain(name_or_path), list(MODELS), n=1, cutoff=0.5)
    hint = f"did you mean {MODELS[near[0]].name}?" if near else f"known are {', '.join(m.name for m in MODELS.values())};"
    raise ModelError(f"no model {name_or_path!r}; {hint} or give the path of a Hugging Face config.json")


def _plain(name: str) -> str:
    plain = name.rpartition("/")[2].lower().removeprefix("meta-")
    for suffix in ("-instruct-v0.1", "-v0.1", "-instruct", "-base"):
        plain = plain.removesuffix(suffix)
    return plain
